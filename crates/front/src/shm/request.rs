//! From a message, which is a claim of a client, to a [`FileRequest`], which was checked.
//!
//! A message is copied out of shared memory once and its paths once; then everything is looked at
//! here, and only here: path lengths, NUL bytes, flags, ranges, types, times, mode bits. What comes
//! out can be handed to the VFS as it is. Whether a handle exists is the session's to say.
//! Pure: no I/O, no locks, no panics on any input (`tests` feed it random words).

mod brings;
mod kernels;
mod shows;

use polylane_base::{Errno, Gid, Result, Time, Uid};
use polylane_ipc::message::{self, LockFlags, MARK, Message, Op, PATH_BYTES_MAX, SetWhat};
use polylane_vfs::fs::{SeekFor, SetAttr, SetTime, XattrMode};
use polylane_vfs::{LockFamily, LockKind};
use zerocopy::little_endian::U64;

pub use self::brings::Brings;
pub use self::shows::{HowToWrite, ShowRead};

/// Largest offset of a byte behind the end of a file: `i64::MAX`, as `loff_t` allows.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Last byte of a lock that reaches to the file's end, however far it grows.
pub(super) const TO_THE_END: u64 = u64::MAX;

/// Largest value of an extended attribute (`XATTR_SIZE_MAX`).
pub(super) const XATTR_BYTES_MAX: u64 = 65536;
/// Longest name of an extended attribute (`XATTR_NAME_MAX`).
const XATTR_NAME_BYTES_MAX: usize = 255;

/// Most bytes of one read or write, as `MAX_RW_COUNT` of the kernel.
const RW_BYTES_MAX: u64 = 0x7fff_f000;

/// Bytes of both paths together at most: what a worker sets aside for them.
pub(super) const PATHS_BYTES_MAX: usize = 2 * PATH_BYTES_MAX;

/// An open file or directory of one session: place in its table and the use of that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Handle {
    /// Place in the session's table.
    pub index: u32,
    /// Tells successive uses of one place apart; never 0.
    pub generation: u32,
}

impl Handle {
    /// The handle in its 64-bit form on the wire.
    pub fn to_wire(self) -> u64 {
        u64::from(self.index) | u64::from(self.generation) << 32
    }

    /// Any 64 bits as a handle; the session's table knows whether it exists.
    pub fn from_wire(word: u64) -> Handle {
        Handle { index: word as u32, generation: (word >> 32) as u32 }
    }
}

/// Where a path starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The root of the lane.
    Root,
    /// An open directory of the session.
    Dir(Handle),
}

impl Start {
    fn from_wire(word: u64) -> Start {
        match word {
            message::DIR_ROOT => Start::Root,
            word => Start::Dir(Handle::from_wire(word)),
        }
    }
}

/// A path and where it starts: no NUL inside, 1 to 4095 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At<'a> {
    /// Where it starts.
    pub start: Start,
    /// The path.
    pub path: &'a [u8],
}

/// An object named by path or by handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object<'a> {
    /// By path; `follow`: a symbolic link at the end is followed.
    Path {
        /// The path.
        at: At<'a>,
        /// Whether a last symbolic link is followed.
        follow: bool,
    },
    /// An open file or directory.
    Handle(Handle),
    /// The directory a path would have started from (`AT_EMPTY_PATH`).
    Start(Start),
}

/// A checked lock request; `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockArgs {
    /// The open file.
    pub handle: Handle,
    /// Whose lock.
    pub family: LockFamily,
    /// Kind.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte, at most `i64::MAX`, or [`TO_THE_END`].
    pub end: u64,
    /// Wait until the lock can be had.
    pub wait: bool,
    /// Lend the POSIX locks of the file, if that can be.
    pub lend: bool,
}

/// A request whose every argument was checked. Field meanings: [`Op`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FileRequest<'a> {
    Ping { position: Option<u32> },
    Open { at: At<'a>, flags: i32, perm: u32, umask: u32, slot: Option<u32>, brings: Brings },
    Close { handle: Handle, at_rest: bool },
    Read { handle: Handle, offset: u64, len: usize, show: ShowRead },
    Write { handle: Handle, offset: u64, len: usize, how: HowToWrite },
    Stat { object: Object<'a>, mark: bool },
    Fstat { handle: Handle, show: bool },
    Access { object: Object<'a>, mask: u32, mark: bool },
    Mkdir { at: At<'a>, perm: u32, umask: u32 },
    Mknod { at: At<'a>, mode: u32, umask: u32, rdev: u64 },
    Symlink { target: &'a [u8], at: At<'a> },
    Link { from: Object<'a>, to: At<'a> },
    Unlink { at: At<'a>, dir: bool, leased: bool },
    Rename { from: At<'a>, to: At<'a>, flags: u32, leased: bool },
    Readlink { object: Object<'a> },
    Setattr { object: Object<'a>, set: SetAttr },
    Fsync { handle: Handle, data_only: bool },
    Sync,
    Fallocate { handle: Handle, flags: u32, offset: u64, len: u64 },
    Seek { handle: Handle, offset: u64, target: SeekFor },
    Statfs,
    Getxattr { object: Object<'a>, name: &'a [u8], len: usize },
    Setxattr { object: Object<'a>, name: &'a [u8], value_at: usize, len: usize, mode: XattrMode },
    Listxattr { object: Object<'a>, len: usize },
    Removexattr { object: Object<'a>, name: &'a [u8] },
    Lock(LockArgs),
    GetLock(LockArgs),
    Cancel { mailbox: u32 },
    OpenDir { at: At<'a>, follow: bool, list: usize },
    Redeem { ticket: [u8; 16] },
    ShareAll,
    CopyRange { from: Handle, offset: u64, to: Handle, at: u64, len: u64 },
    Expose { handle: Handle, shared: bool },
    ExposeAll { count: usize },
    SetFlags { handle: Handle, flags: i32 },
    Readdir { handle: Handle, position: u64, len: usize },
    Lease { start: Start, path: &'a [u8], tell_sole: bool },
    Extend { handle: Handle },
    Oplock { handle: Handle, reads: bool },
}

/// Bytes of both paths of `message`, which lie at the start of its buffer.
///
/// # Errors
/// `ENAMETOOLONG` when one is longer than a path may be or both do not fit into the buffer.
pub(super) fn path_bytes(message: &Message, buffer_bytes: usize) -> Result<usize> {
    let (first, second) = (message.path_len as usize, message.path2_len as usize);
    if first > PATH_BYTES_MAX || second > PATH_BYTES_MAX || first + second > buffer_bytes {
        return Err(Errno::ENAMETOOLONG);
    }
    Ok(first + second)
}

/// A message being checked, with the one copy of its paths.
struct Checker<'a> {
    message: &'a Message,
    first: &'a [u8],
    second: &'a [u8],
    buffer_bytes: usize,
}

impl<'a> FileRequest<'a> {
    /// Checks `message`, whose paths are `paths` ([`path_bytes`] long) and whose buffer holds
    /// `buffer_bytes`.
    ///
    /// # Errors
    /// What the system call would say to such arguments.
    pub(super) fn check(
        message: &'a Message,
        paths: &'a [u8],
        buffer_bytes: usize,
    ) -> Result<FileRequest<'a>> {
        let (first, second) =
            paths.split_at_checked(message.path_len as usize).ok_or(Errno::ENAMETOOLONG)?;
        if paths.contains(&0) {
            return Err(Errno::EINVAL);
        }
        Checker { message, first, second, buffer_bytes }.request()
    }
}

impl<'a> Checker<'a> {
    /// A table: one arm per operation.
    fn request(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let (handle, show) = (Handle::from_wire(m.handle), shows::wants_view(m));
        Ok(match m.op {
            Op::Ping => FileRequest::Ping { position: self.position() },
            Op::Open => self.open()?,
            Op::Close => FileRequest::Close { handle, at_rest: m.flags & message::AT_REST != 0 },
            Op::Read => {
                let show = ShowRead::of(m);
                FileRequest::Read { handle, offset: m.offset, len: self.read_len()?, show }
            }
            Op::Write => {
                let how = HowToWrite::of(m);
                FileRequest::Write { handle, offset: m.offset, len: self.write_len()?, how }
            }
            Op::Stat => {
                FileRequest::Stat { object: self.object(m.flags)?, mark: m.flags & MARK != 0 }
            }
            Op::Fstat => FileRequest::Fstat { handle, show },
            Op::Access => self.access()?,
            Op::Mkdir => self.mkdir()?,
            Op::Mknod => self.mknod()?,
            Op::Symlink => FileRequest::Symlink { target: target(self.first)?, at: self.at2()? },
            Op::Link => self.link()?,
            Op::Unlink => self.unlink()?,
            Op::Rename => self.rename()?,
            Op::Readlink => FileRequest::Readlink { object: self.unfollowed() },
            Op::SetattrPath => self.setattr(self.object(m.flags)?)?,
            Op::SetattrHandle => self.setattr(Object::Handle(handle))?,
            Op::Fsync => FileRequest::Fsync { handle, data_only: m.flags & 1 != 0 },
            Op::Sync => FileRequest::Sync,
            Op::Fallocate => self.fallocate()?,
            Op::Seek => self.seek()?,
            Op::Statfs => FileRequest::Statfs,
            Op::Getxattr => self.getxattr()?,
            Op::Setxattr => self.setxattr()?,
            Op::Listxattr => {
                FileRequest::Listxattr { object: self.xattr_object(), len: self.reply_len() }
            }
            Op::Removexattr => {
                FileRequest::Removexattr { object: self.xattr_object(), name: self.xattr_name()? }
            }
            Op::Lock => FileRequest::Lock(self.lock()?),
            Op::GetLock => FileRequest::GetLock(self.lock()?),
            Op::Cancel => FileRequest::Cancel { mailbox: small(m.arg[0])? },
            Op::OpenDir => self.open_dir()?,
            Op::Redeem => FileRequest::Redeem { ticket: self.ticket() },
            Op::ShareAll => FileRequest::ShareAll,
            Op::CopyRange => self.copy_range()?,
            Op::Expose => {
                FileRequest::Expose { handle, shared: m.flags & message::MAP_SHARED != 0 }
            }
            Op::ExposeAll => self.expose_all()?,
            Op::SetFlags => FileRequest::SetFlags { handle, flags: m.flags as i32 },
            Op::Readdir => self.readdir(),
            Op::Lease => self.lease(),
            Op::Extend => FileRequest::Extend { handle },
            Op::Oplock => FileRequest::Oplock { handle, reads: m.mode as i32 == libc::F_RDLCK },
        })
    }

    /// Of the entry of the stream that is asked about.
    fn position(&self) -> Option<u32> {
        (self.message.flags & message::STREAMED != 0).then_some(self.message.arg[0] as u32)
    }

    /// The first path below `dir`.
    fn at(&self) -> Result<At<'a>> {
        path(Start::from_wire(self.message.dir), self.first)
    }

    /// The second path below `dir2`.
    fn at2(&self) -> Result<At<'a>> {
        path(Start::from_wire(self.message.dir2), self.second)
    }

    /// What `dir`, the first path and `AT_*` flags name.
    fn object(&self, flags: u32) -> Result<Object<'a>> {
        let empty_ok = flags & libc::AT_EMPTY_PATH as u32 != 0;
        if self.first.is_empty() && empty_ok {
            return Ok(Object::Start(Start::from_wire(self.message.dir)));
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW as u32 == 0;
        Ok(Object::Path { at: self.at()?, follow })
    }

    /// The first path, its last link not followed; an empty path is the start itself.
    fn unfollowed(&self) -> Object<'a> {
        match self.at() {
            Ok(at) => Object::Path { at, follow: false },
            Err(_) => Object::Start(Start::from_wire(self.message.dir)),
        }
    }

    /// Bytes to read: as many as the caller, the buffer and the offset range have room for.
    fn read_len(&self) -> Result<usize> {
        let m = self.message;
        if m.offset > OFFSET_MAX {
            return Err(Errno::EINVAL);
        }
        let len = m.length.min(RW_BYTES_MAX).min(self.buffer_bytes as u64);
        Ok(len.min(OFFSET_MAX - m.offset) as usize)
    }

    fn expose_all(&self) -> Result<FileRequest<'a>> {
        let (count, rest) = ((self.message.length / 8) as usize, self.message.length % 8);
        let fits = rest == 0 && (1..=message::EXPOSED_MAX).contains(&count);
        if fits { Ok(FileRequest::ExposeAll { count }) } else { Err(Errno::EINVAL) }
    }

    /// Bytes to write: the same, but none at all where some were offered is an error.
    fn write_len(&self) -> Result<usize> {
        match self.read_len()? {
            0 if self.message.length > 0 => Err(Errno::EFBIG),
            len => Ok(len),
        }
    }

    /// How many bytes of a reply the client has room for.
    fn reply_len(&self) -> usize {
        self.message.length.min(self.buffer_bytes as u64) as usize
    }

    fn open(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let flags = m.flags as i32;
        if flags & libc::O_CREAT != 0 && flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::EINVAL);
        }
        let slot = match m.arg[0] {
            message::NO_SLOT => None,
            number => Some(small(number)?),
        };
        let (perm, umask) = (m.mode & 0o7777, m.umask & 0o777);
        let brings = Brings::new(m, self.buffer_bytes);
        Ok(FileRequest::Open { at: self.at()?, flags, perm, umask, slot, brings })
    }

    fn access(&self) -> Result<FileRequest<'a>> {
        let mask = self.message.mode;
        if mask & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        let flags = self.message.flags;
        Ok(FileRequest::Access { object: self.object(flags)?, mask, mark: flags & MARK != 0 })
    }

    fn mkdir(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        // mkdir(2) takes the sticky bit and the permissions, never set-id bits.
        Ok(FileRequest::Mkdir { at: self.at()?, perm: m.mode & 0o1777, umask: m.umask & 0o777 })
    }

    fn mknod(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let mode = match m.mode & libc::S_IFMT {
            0 => m.mode | libc::S_IFREG,
            libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK => {
                m.mode
            }
            libc::S_IFDIR => return Err(Errno::EPERM),
            _ => return Err(Errno::EINVAL),
        };
        let mode = mode & (libc::S_IFMT | 0o7777);
        Ok(FileRequest::Mknod { at: self.at()?, mode, umask: m.umask & 0o777, rdev: m.arg[0] })
    }

    fn link(&self) -> Result<FileRequest<'a>> {
        let flags = self.message.flags as i32;
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::EINVAL);
        }
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let from = match (self.first.is_empty() && flags & libc::AT_EMPTY_PATH != 0, follow) {
            (true, true) => Object::Handle(Handle::from_wire(self.message.handle)),
            (true, false) => Object::Start(Start::from_wire(self.message.dir)),
            (false, follow) => Object::Path { at: self.at()?, follow },
        };
        Ok(FileRequest::Link { from, to: self.at2()? })
    }

    fn unlink(&self) -> Result<FileRequest<'a>> {
        let flags = (self.message.flags & !message::LEASED).cast_signed();
        if flags & !libc::AT_REMOVEDIR != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(FileRequest::Unlink { at: self.at()?, dir: flags != 0, leased: self.is_leased() })
    }

    fn rename(&self) -> Result<FileRequest<'a>> {
        let flags = self.message.flags & !message::LEASED;
        let (no_replace, exchange, whiteout) =
            (libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT);
        let unknown = flags & !(no_replace | exchange | whiteout) != 0;
        if unknown || (flags & exchange != 0 && flags & (no_replace | whiteout) != 0) {
            return Err(Errno::EINVAL);
        }
        let leased = self.is_leased();
        Ok(FileRequest::Rename { from: self.at()?, to: self.at2()?, flags, leased })
    }

    fn lease(&self) -> FileRequest<'a> {
        let start = Start::from_wire(self.message.dir);
        let tell_sole = self.message.flags & message::TELL_SOLE != 0;
        FileRequest::Lease { start, path: self.first, tell_sole }
    }

    fn is_leased(&self) -> bool {
        self.message.flags & message::LEASED != 0
    }

    fn setattr(&self, object: Object<'a>) -> Result<FileRequest<'a>> {
        let m = self.message;
        let mask = SetWhat::from_bits_retain(m.arg[0]);
        let has = |what| mask.contains(what);
        let size = has(SetWhat::SIZE).then_some(m.length);
        if size.is_some_and(|size| size > OFFSET_MAX) {
            return Err(Errno::EINVAL);
        }
        let set = SetAttr {
            perm: has(SetWhat::PERM).then_some(m.mode & 0o7777),
            uid: if has(SetWhat::UID) { Some(Uid(small(m.arg[1])?)) } else { None },
            gid: if has(SetWhat::GID) { Some(Gid(small(m.arg[2])?)) } else { None },
            size,
            atime: stamp(has(SetWhat::ATIME), has(SetWhat::ATIME_NOW), m.time[0], m.time[1])?,
            mtime: stamp(has(SetWhat::MTIME), has(SetWhat::MTIME_NOW), m.time[2], m.time[3])?,
            ..SetAttr::default()
        };
        Ok(FileRequest::Setattr { object, set })
    }

    fn fallocate(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        if m.length == 0 || m.offset > OFFSET_MAX || m.length > OFFSET_MAX {
            return Err(Errno::EINVAL);
        }
        if m.offset + m.length > OFFSET_MAX {
            return Err(Errno::EFBIG);
        }
        let (handle, flags) = (Handle::from_wire(m.handle), m.flags);
        Ok(FileRequest::Fallocate { handle, flags, offset: m.offset, len: m.length })
    }

    fn seek(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let target = match m.flags as i32 {
            libc::SEEK_DATA => SeekFor::Data,
            libc::SEEK_HOLE => SeekFor::Hole,
            _ => return Err(Errno::EINVAL),
        };
        if m.offset > OFFSET_MAX {
            return Err(Errno::ENXIO);
        }
        Ok(FileRequest::Seek { handle: Handle::from_wire(m.handle), offset: m.offset, target })
    }

    /// The object of an xattr call: the handle when the path is empty.
    fn xattr_object(&self) -> Object<'a> {
        let follow = self.message.flags & libc::AT_SYMLINK_NOFOLLOW as u32 == 0;
        match self.at() {
            Ok(at) => Object::Path { at, follow },
            Err(_) => Object::Handle(Handle::from_wire(self.message.handle)),
        }
    }

    fn xattr_name(&self) -> Result<&'a [u8]> {
        match self.second.len() {
            1..=XATTR_NAME_BYTES_MAX => Ok(self.second),
            _ => Err(Errno::ERANGE),
        }
    }

    fn getxattr(&self) -> Result<FileRequest<'a>> {
        let (object, name) = (self.xattr_object(), self.xattr_name()?);
        Ok(FileRequest::Getxattr { object, name, len: self.reply_len() })
    }

    fn setxattr(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let value_at = self.first.len() + self.second.len();
        if m.length > XATTR_BYTES_MAX || m.length > (self.buffer_bytes - value_at) as u64 {
            return Err(Errno::E2BIG);
        }
        let mode = match i32::try_from(m.arg[0]) {
            Ok(0) => XattrMode::Any,
            Ok(libc::XATTR_CREATE) => XattrMode::Create,
            Ok(libc::XATTR_REPLACE) => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let (object, name) = (self.xattr_object(), self.xattr_name()?);
        Ok(FileRequest::Setxattr { object, name, value_at, len: m.length as usize, mode })
    }

    fn lock(&self) -> Result<LockArgs> {
        let m = self.message;
        let flags = LockFlags::from_bits_retain(m.flags);
        let family = match flags & (LockFlags::OFD | LockFlags::FLOCK) {
            none if none.is_empty() => LockFamily::Posix,
            LockFlags::OFD => LockFamily::Ofd,
            LockFlags::FLOCK => LockFamily::Flock,
            _ => return Err(Errno::EINVAL),
        };
        let kind = match m.mode as i32 {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        let (start, end) = match family {
            LockFamily::Flock => (0, TO_THE_END),
            LockFamily::Posix | LockFamily::Ofd => byte_range(m.offset, m.length)?,
        };
        let (handle, wait) = (Handle::from_wire(m.handle), flags.contains(LockFlags::WAIT));
        let lend = flags.contains(LockFlags::LEND) && family == LockFamily::Posix;
        Ok(LockArgs { handle, family, kind, start, end, wait, lend })
    }

    fn open_dir(&self) -> Result<FileRequest<'a>> {
        let follow = self.message.flags as i32 & libc::O_NOFOLLOW == 0;
        Ok(FileRequest::OpenDir { at: self.at()?, follow, list: self.reply_len() })
    }

    fn ticket(&self) -> [u8; 16] {
        zerocopy::transmute!([0, 1].map(|at| U64::new(self.message.arg[at])))
    }

    fn copy_range(&self) -> Result<FileRequest<'a>> {
        let m = self.message;
        let at = m.arg[0];
        if m.offset > OFFSET_MAX || at > OFFSET_MAX {
            return Err(Errno::EINVAL);
        }
        if at == OFFSET_MAX {
            return Err(Errno::EFBIG);
        }
        let len = m.length.min(OFFSET_MAX - m.offset).min(OFFSET_MAX - at);
        let (from, to) = (Handle::from_wire(m.handle), Handle::from_wire(m.dir));
        Ok(FileRequest::CopyRange { from, offset: m.offset, to, at, len })
    }

    fn readdir(&self) -> FileRequest<'a> {
        let m = self.message;
        let handle = Handle::from_wire(m.handle);
        FileRequest::Readdir { handle, position: m.offset, len: self.reply_len() }
    }
}

/// A path that may be walked: not empty.
fn path(start: Start, path: &[u8]) -> Result<At<'_>> {
    match path {
        [] => Err(Errno::ENOENT),
        path => Ok(At { start, path }),
    }
}

/// The target of a new symbolic link: not empty.
fn target(target: &[u8]) -> Result<&[u8]> {
    match target {
        [] => Err(Errno::ENOENT),
        target => Ok(target),
    }
}

/// A number that is 32 bits wide where it is used.
fn small(word: u64) -> Result<u32> {
    u32::try_from(word).map_err(|_| Errno::EINVAL)
}

/// A time to set, when `given` or `now` says that there is one.
fn stamp(given: bool, now: bool, sec: u64, nsec: u64) -> Result<Option<SetTime>> {
    match (given, now) {
        (_, true) => Ok(Some(SetTime::Now)),
        (false, false) => Ok(None),
        (true, false) => match u32::try_from(nsec) {
            Ok(nsec @ 0..=999_999_999) => Ok(Some(SetTime::At(Time { sec: sec as i64, nsec }))),
            _ => Err(Errno::EINVAL),
        },
    }
}

/// First and last byte of `length` bytes at `offset`; a length of 0 reaches to the end.
fn byte_range(offset: u64, length: u64) -> Result<(u64, u64)> {
    if offset > OFFSET_MAX {
        return Err(Errno::EINVAL);
    }
    match length {
        0 => Ok((offset, TO_THE_END)),
        length if length - 1 > OFFSET_MAX - offset => Err(Errno::EOVERFLOW),
        length => Ok((offset, offset + (length - 1))),
    }
}

#[cfg(test)]
mod tests;
