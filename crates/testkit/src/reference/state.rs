//! State of inodes in the reference: modes, owners, times, extended attributes.

use super::{READ, Reference, User, WRITE, without_set_id};
use crate::ops::Op;
use crate::subject::{Outcome, State, Value};
use polylane_base::{Errno, Gid, Ino, Time, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, SetAttr, SetTime};

impl Reference {
    pub(super) fn state(&self, ino: Ino) -> Value {
        Value::State(State::of(&self.attr(ino)))
    }

    pub(super) fn state_op(&mut self, user: User, op: &Op) -> Outcome {
        match op {
            Op::Truncate { path, size } => {
                let ino = self.resolve(user, path, true)?;
                match self.attr(ino).kind {
                    Kind::File => {}
                    Kind::Dir => return Err(Errno::EISDIR.into()),
                    _ => return Err(Errno::EINVAL.into()),
                }
                self.may(user, ino, WRITE)?;
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.fs.setattr(&OpCtx::service(), ino, &set)?;
                self.kill_privileges(user, ino);
                Ok(Value::Done)
            }
            Op::Chmod { path, perm } => self.chmod(user, path, *perm),
            Op::Chown { path, uid, gid, follow } => self.chown(user, path, (*uid, *gid), *follow),
            Op::Times { path, atime, mtime } => self.times(user, path, *atime, *mtime),
            Op::Stat { path, follow } => Ok(self.state(self.resolve(user, path, *follow)?)),
            Op::Access { path, mask } => {
                let ino = self.resolve(user, path, true)?;
                self.may(user, ino, *mask)?;
                Ok(Value::Done)
            }
            Op::SetXattr { path, name, len, mode } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, true)?;
                let value = vec![b'x'; *len];
                self.fs.setxattr(&OpCtx::service(), ino, name.as_bytes(), &value, *mode)?;
                Ok(Value::Done)
            }
            Op::GetXattr { path, name } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, false)?;
                Ok(Value::Bytes(self.fs.getxattr(&OpCtx::service(), ino, name.as_bytes())?))
            }
            Op::ListXattr { path } => {
                let ino = self.resolve(user, path, true)?;
                let names = self.fs.listxattr(&OpCtx::service(), ino)?;
                Ok(Value::Xattrs(names))
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, true)?;
                self.fs.removexattr(&OpCtx::service(), ino, name.as_bytes())?;
                Ok(Value::Done)
            }
            Op::Sync => Ok(Value::Done),
            _ => unreachable!("not an operation on state: {op:?}"),
        }
    }
    pub(super) fn chmod(&self, user: User, path: &str, perm: u32) -> Outcome {
        let ino = self.resolve(user, path, true)?;
        let attr = self.attr(ino);
        if !user.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
        let strip = !user.is_root() && !user.in_group(attr.gid);
        let perm = Some(if strip { perm & !0o2000 } else { perm });
        self.fs.setattr(&OpCtx::service(), ino, &SetAttr { perm, ..SetAttr::default() })?;
        Ok(Value::Done)
    }

    pub(super) fn chown(
        &self,
        user: User,
        path: &str,
        ids: (Option<u32>, Option<u32>),
        follow: bool,
    ) -> Outcome {
        let ino = self.resolve(user, path, follow)?;
        let attr = self.attr(ino);
        let (uid, gid) = (ids.0.map(Uid), ids.1.map(Gid));
        let mine = user.uid == attr.uid;
        let uid_ok = uid.is_none_or(|uid| mine && uid == attr.uid);
        let gid_ok = gid.is_none_or(|gid| mine && (gid == attr.gid || user.in_group(gid)));
        let member = user.is_root() || user.in_group(attr.gid);
        let perm = match attr.kind {
            Kind::Dir => None,
            _ => Some(without_set_id(&attr, member)).filter(|&perm| perm != attr.perm),
        };
        // Also where neither changes, the bits are the owner's to lose.
        let bits_ok = mine || perm.is_none();
        let allowed = user.is_root() || uid_ok && gid_ok && bits_ok;
        if !allowed {
            return Err(Errno::EPERM.into());
        }
        self.fs.setattr(
            &OpCtx::service(),
            ino,
            &SetAttr { uid, gid, perm, ..SetAttr::default() },
        )?;
        Ok(Value::Done)
    }

    pub(super) fn times(
        &self,
        user: User,
        path: &str,
        atime: Option<i64>,
        mtime: Option<i64>,
    ) -> Outcome {
        let ino = self.resolve(user, path, true)?;
        if !user.owns(&self.attr(ino)) {
            match (atime, mtime) {
                (None, None) => {}
                (Some(-1), Some(-1)) => self.may(user, ino, WRITE)?,
                _ => return Err(Errno::EPERM.into()),
            }
        }
        let set = SetAttr { atime: set_time(atime), mtime: set_time(mtime), ..SetAttr::default() };
        if set != SetAttr::default() {
            self.fs.setattr(&OpCtx::service(), ino, &set)?;
        }
        Ok(Value::Done)
    }

    pub(super) fn xattr_check(
        &self,
        user: User,
        ino: Ino,
        name: &str,
        change: bool,
    ) -> Result<(), Errno> {
        let mask = if change { WRITE } else { READ };
        let Some(rest) = name.strip_prefix("user.") else {
            return self.may(user, ino, mask).and(Err(Errno::EOPNOTSUPP));
        };
        let attr = self.attr(ino);
        if !matches!(attr.kind, Kind::File | Kind::Dir) {
            return Err(if change { Errno::EPERM } else { Errno::ENODATA });
        }
        let sticky = attr.kind == Kind::Dir && attr.perm & 0o1000 != 0;
        if change && sticky && !user.owns(&attr) {
            return Err(Errno::EPERM);
        }
        self.may(user, ino, mask)?;
        // The file system refuses a name that is its prefix alone, after the rights.
        if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

fn set_time(seconds: Option<i64>) -> Option<SetTime> {
    seconds.map(|sec| match sec {
        -1 => SetTime::Now,
        sec => SetTime::At(Time { sec, nsec: 0 }),
    })
}
