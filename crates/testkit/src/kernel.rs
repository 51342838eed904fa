//! Steps applied to the host's kernel, in a directory of a real file system.
//!
//! It keeps the reference honest: what the reference expects, Linux must do. The thread that
//! applies steps takes on the user of each step, so the process has to be root.
//! [`crate::ops::Limits::host`] leaves out what depends on the host's settings (protected links,
//! sticky directories) or has no system call in safe hands (truncate by path).

use crate::ops::{Op, Step, USERS};
use crate::subject::{Failure, Outcome, State, Subject, Value, pattern};
use polylane_base::Errno;
use polylane_vfs::fs::{Kind, XattrMode};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, Uid, XattrFlags,
};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// See the module header. Steps must be applied on one thread.
pub struct Kernel {
    base: PathBuf,
    open: BTreeMap<u8, OwnedFd>,
}

/// A host call's error.
fn errno(error: rustix::io::Errno) -> Failure {
    Failure::Errno(Errno(error.raw_os_error()))
}

fn done(result: rustix::io::Result<()>) -> Outcome {
    result.map(|()| Value::Done).map_err(errno)
}

/// The thread as one of [`USERS`]; root again when dropped.
struct As;

impl As {
    fn user(who: usize) -> As {
        let (uid, gid, groups) = USERS[who];
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups).expect("needs root");
        rustix::thread::set_thread_res_gid(gid, gid, Gid::ROOT).expect("needs root");
        rustix::thread::set_thread_res_uid(uid, uid, Uid::ROOT).expect("needs root");
        As
    }
}

impl Drop for As {
    fn drop(&mut self) {
        let root = Uid::ROOT;
        rustix::thread::set_thread_res_uid(root, root, root).expect("the saved id is root's");
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).expect("root again");
    }
}

impl Kernel {
    /// Steps act in `base`, an empty directory that every user can reach.
    pub fn new(base: PathBuf) -> Kernel {
        Kernel { base, open: BTreeMap::new() }
    }

    fn path(&self, path: &str) -> PathBuf {
        // Not `join`: that would take an absolute path for the whole.
        let mut full = self.base.clone().into_os_string();
        full.push("/");
        full.push(path.trim_start_matches('/'));
        full.into()
    }

    fn fd(&self, slot: u8) -> Result<&OwnedFd, Failure> {
        self.open.get(&slot).ok_or(Failure::NoFile)
    }

    fn kind_of(&self, slot: u8) -> Result<(FileType, u64), Failure> {
        let stat = rustix::fs::fstat(self.fd(slot)?).map_err(errno)?;
        Ok((FileType::from_raw_mode(stat.st_mode), stat.st_size as u64))
    }

    fn names_op(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Mkdir { path, perm } => {
                done(rustix::fs::mkdirat(CWD, self.path(path), Mode::from_raw_mode(*perm)))
            }
            Op::Mknod { path, kind, perm } => {
                let kind = if *kind == Kind::Fifo { FileType::Fifo } else { FileType::Socket };
                let mode = Mode::from_raw_mode(*perm);
                done(rustix::fs::mknodat(CWD, self.path(path), kind, mode, 0))
            }
            Op::Symlink { target, path } => {
                done(rustix::fs::symlinkat(target.as_str(), CWD, self.path(path)))
            }
            Op::Link { from, to } => {
                let none = AtFlags::empty();
                done(rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), none))
            }
            Op::Unlink { path } => {
                done(rustix::fs::unlinkat(CWD, self.path(path), AtFlags::empty()))
            }
            Op::Rmdir { path } => {
                done(rustix::fs::unlinkat(CWD, self.path(path), AtFlags::REMOVEDIR))
            }
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                done(rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags))
            }
            Op::Readlink { path } => {
                let target = rustix::fs::readlinkat(CWD, self.path(path), Vec::new());
                Ok(Value::Bytes(target.map_err(errno)?.into_bytes()))
            }
            Op::List { path } => self.list(path),
            _ => unreachable!("not an operation on names: {op:?}"),
        }
    }

    fn list(&self, path: &str) -> Outcome {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = rustix::fs::openat(CWD, self.path(path), flags, Mode::empty()).map_err(errno)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let kind = entry.file_type().as_raw_mode();
            let kind = Kind::from_mode(kind).expect("the host tells kinds in its listings");
            names.push((entry.file_name().to_bytes().to_vec(), kind));
        }
        names.retain(|entry| !matches!(entry.0.as_slice(), b"." | b".."));
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Value::Names(names))
    }

    fn file_op(&mut self, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, ref path, flags, perm } => {
                let flags = OFlags::from_bits_retain(flags as u32);
                let mode = Mode::from_raw_mode(perm);
                let fd = rustix::fs::openat(CWD, self.path(path), flags, mode).map_err(errno)?;
                self.open.insert(slot, fd);
                Ok(Value::Done)
            }
            Op::LinkOpen { slot, ref to } => {
                let link = format!("/proc/self/fd/{}", self.fd(slot)?.as_raw_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                done(rustix::fs::linkat(CWD, link, CWD, self.path(to), follow))
            }
            Op::Close { slot } => {
                self.open.remove(&slot).map(|_| Value::Done).ok_or(Failure::NoFile)
            }
            Op::Read { slot, at, len } => {
                let mut buffer = vec![0; len];
                let count = rustix::io::pread(self.fd(slot)?, &mut buffer, at).map_err(errno)?;
                buffer.truncate(count);
                Ok(Value::Bytes(buffer))
            }
            Op::Write { slot, at, len, fill } => self.write(slot, at, &pattern(fill, len)),
            Op::Resize { slot, size } => done(rustix::fs::ftruncate(self.fd(slot)?, size)),
            Op::Fallocate { slot, flags, at, len } => {
                let flags = FallocateFlags::from_bits_retain(flags as u32);
                done(rustix::fs::fallocate(self.fd(slot)?, flags, at, len))
            }
            Op::Seek { slot, at, target } => {
                let target = match target {
                    polylane_vfs::fs::SeekFor::Data => SeekFrom::Data(at),
                    polylane_vfs::fs::SeekFor::Hole => SeekFrom::Hole(at),
                };
                if self.kind_of(slot)?.0 != FileType::RegularFile {
                    return Err(Failure::NoFile);
                }
                rustix::fs::seek(self.fd(slot)?, target).map(Value::Offset).map_err(errno)
            }
            Op::Copy { from, at, to, to_at, len } => self.copy((from, at), (to, to_at), len),
            Op::StatOpen { slot } => {
                let stat = rustix::fs::fstat(self.fd(slot)?).map_err(errno)?;
                Ok(Value::State(state(&stat)))
            }
            Op::Fsync { slot, .. } => self.fd(slot).map(|_| Value::Done),
            _ => unreachable!("not an operation on open files: {op:?}"),
        }
    }

    fn write(&self, slot: u8, at: Option<u64>, bytes: &[u8]) -> Outcome {
        let fd = self.fd(slot)?;
        let end = self.kind_of(slot)?.1;
        let append = rustix::fs::fcntl_getfl(fd).map_err(errno)?.contains(OFlags::APPEND);
        let at = at.filter(|_| !append).unwrap_or(end);
        let count = rustix::io::pwrite(fd, bytes, at).map_err(errno)?;
        assert_eq!(count, bytes.len(), "the host has space");
        Ok(Value::Offset(at + count as u64))
    }

    fn copy(&self, from: (u8, u64), to: (u8, u64), len: u64) -> Outcome {
        let (source, target) = (self.fd(from.0)?, self.fd(to.0)?);
        let (mut at, mut to_at) = (from.1, to.1);
        let (at, to_at) = (Some(&mut at), Some(&mut to_at));
        let copied = rustix::fs::copy_file_range(source, at, target, to_at, len as usize);
        copied.map(|count| Value::Offset(count as u64)).map_err(errno)
    }

    fn state_op(&mut self, op: &Op) -> Outcome {
        let follow_flags =
            |follow| if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match op {
            Op::Chmod { path, perm } => {
                let mode = Mode::from_raw_mode(*perm);
                done(rustix::fs::chmodat(CWD, self.path(path), mode, AtFlags::empty()))
            }
            Op::Chown { path, uid, gid, follow } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = follow_flags(*follow);
                done(rustix::fs::chownat(CWD, self.path(path), uid, gid, flags))
            }
            Op::Times { path, atime, mtime } => {
                let (last_access, last_modification) = (timespec(*atime), timespec(*mtime));
                let times = Timestamps { last_access, last_modification };
                done(rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::empty()))
            }
            Op::Stat { path, follow } => {
                let stat = rustix::fs::statat(CWD, self.path(path), follow_flags(*follow));
                Ok(Value::State(state(&stat.map_err(errno)?)))
            }
            Op::Access { path, mask } => {
                let mask = Access::from_bits_retain(*mask as _);
                done(rustix::fs::accessat(CWD, self.path(path), mask, AtFlags::EACCESS))
            }
            Op::SetXattr { path, name, len, mode } => {
                let flags = match mode {
                    XattrMode::Any => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let value = vec![b'x'; *len];
                done(rustix::fs::setxattr(self.path(path), name.as_str(), &value, flags))
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 4096];
                let got = rustix::fs::getxattr(self.path(path), name.as_str(), &mut value[..]);
                value.truncate(got.map_err(errno)?);
                Ok(Value::Bytes(value))
            }
            Op::ListXattr { path } => {
                let mut list = vec![0; 4096];
                let got = rustix::fs::listxattr(self.path(path), &mut list[..]).map_err(errno)?;
                let names = list[..got].split(|&byte| byte == 0).filter(|name| !name.is_empty());
                let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                names.sort();
                Ok(Value::Xattrs(names))
            }
            Op::RemoveXattr { path, name } => {
                done(rustix::fs::removexattr(self.path(path), name.as_str()))
            }
            Op::Sync => Ok(Value::Done),
            _ => unreachable!("not an operation on state: {op:?}"),
        }
    }
}

impl Subject for Kernel {
    fn apply(&mut self, step: &Step) -> Outcome {
        let _user = As::user(step.who);
        match &step.op {
            Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Readlink { .. }
            | Op::List { .. } => self.names_op(&step.op),
            Op::Open { .. }
            | Op::LinkOpen { .. }
            | Op::Close { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Resize { .. }
            | Op::Fallocate { .. }
            | Op::Seek { .. }
            | Op::Copy { .. }
            | Op::StatOpen { .. }
            | Op::Fsync { .. } => self.file_op(&step.op),
            _ => self.state_op(&step.op),
        }
    }
}

fn state(stat: &rustix::fs::Stat) -> State {
    let kind = Kind::from_mode(stat.st_mode).expect("the host knows no other kinds");
    State {
        kind,
        perm: stat.st_mode & 0o7777,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if kind == Kind::Dir { 0 } else { stat.st_size as u64 },
        mtime: Some(stat.st_mtime).filter(|&sec| sec < crate::ops::SMALL_TIME),
        ino: stat.st_ino,
    }
}

fn timespec(seconds: Option<i64>) -> Timespec {
    match seconds {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(-1) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(tv_sec) => Timespec { tv_sec, tv_nsec: 0 },
    }
}
