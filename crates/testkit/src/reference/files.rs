//! Open files of the reference.

use super::walk::{Goal, Walked};
use super::{EXEC, Open, READ, Reference, User, WRITE, node, without_set_id};
use crate::ops::{Op, SMALL_TIME};
use crate::subject::{EITHER_TIME, Failure, Outcome, Value, pattern};
use polylane_base::{Errno, Ino, Time};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, NewNode, SeekFor, SetAttr, SetTime};

impl Reference {
    pub(super) fn file_op(&mut self, user: User, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, ref path, flags, perm } => self.open(user, slot, path, flags, perm),
            Op::LinkOpen { slot, ref to } => {
                let open = self.slot(slot)?;
                let done = self.link_to(user, open.ino, open.linkable, to)?;
                for other in self.open.values_mut().filter(|other| other.ino == open.ino) {
                    other.linkable = false;
                }
                Ok(done)
            }
            Op::Close { slot } => {
                self.slot(slot)?;
                self.open.remove(&slot);
                Ok(Value::Done)
            }
            Op::Read { slot, at, len } => self.read(slot, at, len),
            Op::Write { slot, at, len, fill } => self.write(user, slot, at, &pattern(fill, len)),
            Op::Resize { slot, size } => {
                let open = self.slot(slot)?;
                let writable = open.flags & libc::O_ACCMODE != libc::O_RDONLY;
                if !writable || self.attr(open.ino).kind != Kind::File {
                    return Err(Errno::EINVAL.into());
                }
                self.set_open_size(user, open.ino, size)?;
                Ok(Value::Done)
            }
            Op::Fallocate { slot, flags, at, len } => self.fallocate(user, slot, flags, at, len),
            Op::Seek { slot, at, target } => self.seek(slot, at, target),
            Op::Copy { from, at, to, to_at, len } => self.copy(user, (from, at), (to, to_at), len),
            Op::StatOpen { slot } => Ok(self.state(self.slot(slot)?.ino)),
            Op::Fsync { slot, .. } => self.slot(slot).map(|_| Value::Done),
            _ => unreachable!("not an operation on open files: {op:?}"),
        }
    }

    pub(super) fn seek(&self, slot: u8, at: u64, target: SeekFor) -> Outcome {
        let open = self.slot(slot)?;
        if self.attr(open.ino).kind != Kind::File {
            return Err(Failure::NoFile);
        }
        Ok(Value::Offset(self.fs.seek(&OpCtx::service(), open.ino, at, target)?))
    }

    pub(super) fn open(
        &mut self,
        user: User,
        slot: u8,
        path: &str,
        flags: i32,
        perm: u32,
    ) -> Outcome {
        let tmpfile = libc::O_TMPFILE & !libc::O_DIRECTORY;
        let new = NewNode { perm: perm & 0o7777, ..node(Kind::File) };
        if flags & tmpfile != 0 {
            let dir = self.resolve(user, path, true)?;
            let above = self.attr(dir);
            if above.kind != Kind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            self.may(user, dir, WRITE | EXEC)?;
            let made = self.fs.create_unlinked(
                &OpCtx::service(),
                dir,
                &self.inherit(user, &above, &new),
            )?;
            let linkable = flags & libc::O_EXCL == 0;
            self.open.insert(slot, Open { ino: made.ino, flags, linkable });
            return Ok(Value::Done);
        }
        let ino = if flags & libc::O_CREAT != 0 {
            if flags & libc::O_DIRECTORY != 0 {
                return Err(Errno::EINVAL.into());
            }
            match self.open_create(user, path, flags, &new)? {
                (ino, true) => {
                    self.open.insert(slot, Open { ino, flags, linkable: false });
                    return Ok(Value::Done);
                }
                (ino, false) => ino,
            }
        } else {
            self.resolve(user, path, flags & libc::O_NOFOLLOW == 0)?
        };
        self.open_known(user, ino, flags)?;
        self.open.insert(slot, Open { ino, flags, linkable: false });
        Ok(Value::Done)
    }

    /// `O_CREAT`: the inode, and whether it is new.
    pub(super) fn open_create(
        &mut self,
        user: User,
        path: &str,
        flags: i32,
        new: &NewNode<'_>,
    ) -> Result<(Ino, bool), Failure> {
        let exclusive = flags & libc::O_EXCL != 0;
        let mut path = path.to_string();
        let mut links = 0;
        loop {
            let last = match self.walk(user, &path, Goal::Parent)? {
                Walked::Last(last) if !last.slash => last,
                _ => return Err(Errno::EISDIR.into()),
            };
            let found = match self.find(last.dir, &last.name) {
                Err(Errno::ENOENT) => {
                    return Ok((self.create_at(user, last.dir, &last.name, new)?, true));
                }
                found => found?,
            };
            if exclusive {
                return Err(Errno::EEXIST.into());
            }
            match found.kind {
                Kind::Dir => return Err(Errno::EISDIR.into()),
                Kind::Symlink if flags & libc::O_NOFOLLOW != 0 => return Err(Errno::ELOOP.into()),
                Kind::Symlink => {
                    links += 1;
                    if links > 40 {
                        return Err(Errno::ELOOP.into());
                    }
                    path =
                        self.beside(last.dir, &self.fs.readlink(&OpCtx::service(), found.ino)?)?;
                }
                _ => return Ok((found.ino, false)),
            }
        }
    }

    /// `may_open` and truncation.
    pub(super) fn open_known(&self, user: User, ino: Ino, flags: i32) -> Result<(), Failure> {
        let attr = self.attr(ino);
        if flags & libc::O_DIRECTORY != 0 && attr.kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        let mut mask = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags & libc::O_TRUNC != 0 {
            mask |= WRITE;
        }
        match attr.kind {
            Kind::Symlink => return Err(Errno::ELOOP.into()),
            Kind::Dir if mask & WRITE != 0 => return Err(Errno::EISDIR.into()),
            _ => self.may(user, ino, mask)?,
        }
        // Pipes, sockets and devices are the front end's affair.
        if !matches!(attr.kind, Kind::File | Kind::Dir) {
            return Err(Failure::Leaves);
        }
        if flags & libc::O_TRUNC != 0 {
            self.set_open_size(user, ino, 0)?;
        }
        Ok(())
    }

    /// `file_remove_privs`: set-id bits go with a change of data.
    pub(super) fn kill_privileges(&self, user: User, ino: Ino) {
        if user.is_root() {
            return;
        }
        let attr = self.attr(ino);
        let perm = without_set_id(&attr, user.in_group(attr.gid));
        if perm != attr.perm {
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            self.fs.setattr(&OpCtx::service(), ino, &set).expect("a mode can be changed");
        }
    }

    /// Truncation of a file that is open.
    pub(super) fn set_open_size(&self, user: User, ino: Ino, size: u64) -> Result<(), Errno> {
        self.fs.setattr(
            &OpCtx::service(),
            ino,
            &SetAttr { size: Some(size), ..SetAttr::default() },
        )?;
        self.kill_privileges(user, ino);
        Ok(())
    }

    pub(super) fn slot(&self, slot: u8) -> Result<Open, Failure> {
        self.open.get(&slot).copied().ok_or(Failure::NoFile)
    }

    pub(super) fn slot_to_read(&self, slot: u8) -> Result<Open, Failure> {
        let open = self.slot(slot)?;
        if open.flags & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::EBADF.into());
        }
        match self.attr(open.ino).kind {
            Kind::File => Ok(open),
            Kind::Dir => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    pub(super) fn slot_to_write(&self, slot: u8) -> Result<Open, Failure> {
        let open = self.slot(slot)?;
        match open.flags & libc::O_ACCMODE {
            libc::O_RDONLY => Err(Errno::EBADF.into()),
            _ => Ok(open),
        }
    }

    pub(super) fn read(&self, slot: u8, at: u64, len: usize) -> Outcome {
        let open = self.slot_to_read(slot)?;
        Ok(Value::Bytes(self.bytes(open.ino, at, len)?))
    }

    pub(super) fn bytes(&self, ino: Ino, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; len];
        let count = self.fs.read(&OpCtx::service(), ino, at, len, &mut buffer.as_mut_slice())?;
        buffer.truncate(count);
        Ok(buffer)
    }

    pub(super) fn write(&self, user: User, slot: u8, at: Option<u64>, bytes: &[u8]) -> Outcome {
        let open = self.slot_to_write(slot)?;
        let end = self.attr(open.ino).size;
        let at = at.filter(|_| open.flags & libc::O_APPEND == 0).unwrap_or(end);
        if !bytes.is_empty() {
            self.kill_privileges(user, open.ino);
            self.fs.write(&OpCtx::service(), open.ino, at, &mut &*bytes)?;
        }
        Ok(Value::Offset(at + bytes.len() as u64))
    }

    pub(super) fn fallocate(&self, user: User, slot: u8, flags: i32, at: u64, len: u64) -> Outcome {
        let open = self.slot_to_write(slot)?;
        let keep_size = flags & 1 != 0;
        let mode = match flags & !1 {
            0 => Fallocate::Allocate { keep_size },
            2 => Fallocate::PunchHole,
            8 => Fallocate::CollapseRange,
            16 => Fallocate::ZeroRange { keep_size },
            _ => Fallocate::InsertRange,
        };
        let done = self.fs.fallocate(&OpCtx::service(), open.ino, mode, at, len);
        if !matches!(done, Err(Errno::EFBIG)) {
            // ext4 takes the file for changed before it looks at the range.
            self.kill_privileges(user, open.ino);
        }
        if done.is_err() && self.attr(open.ino).mtime.sec < SMALL_TIME {
            let time = Time { sec: EITHER_TIME, nsec: 0 };
            let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
            self.fs.setattr(&OpCtx::service(), open.ino, &set)?;
        }
        done?;
        Ok(Value::Done)
    }

    pub(super) fn copy(
        &self,
        user: User,
        (from, at): (u8, u64),
        (to, to_at): (u8, u64),
        len: u64,
    ) -> Outcome {
        for slot in [self.slot(from)?, self.slot(to)?] {
            if self.attr(slot.ino).kind == Kind::Dir {
                return Err(Errno::EISDIR.into());
            }
        }
        let source = self.slot_to_read(from)?;
        let target = self.slot_to_write(to)?;
        if target.flags & libc::O_APPEND != 0 {
            return Err(Errno::EBADF.into());
        }
        let left = self.attr(source.ino).size.saturating_sub(at);
        let len = len.min(left);
        if source.ino == target.ino && to_at + len > at && to_at < at + len {
            return Err(Errno::EINVAL.into());
        }
        let bytes = self.bytes(source.ino, at, len as usize)?;
        if !bytes.is_empty() {
            self.kill_privileges(user, target.ino);
            self.fs.write(&OpCtx::service(), target.ino, to_at, &mut bytes.as_slice())?;
        }
        Ok(Value::Offset(len))
    }
}
