//! Requests: bytes from /dev/fuse, checked once, as values.
//!
//! The kernel is trusted to be the kernel, its bytes are not: every field is read through
//! [`Reader`], which cannot leave the message, and whatever does not fit is `EIO` to the one who
//! asked.

use polylane_base::{Errno, Gid, Result};

use super::protocol::{EXT_GROUPS, IN_HEADER_BYTES, fattr, opcode};

/// A cursor that cannot leave its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(Errno::EIO)?;
        self.0 = tail;
        Ok(head)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Errno::EIO)?;
        self.0 = tail;
        Ok(u32::from_ne_bytes(*head))
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Errno::EIO)?;
        self.0 = tail;
        Ok(u64::from_ne_bytes(*head))
    }

    /// A string up to its NUL, which must be there.
    pub fn string(&mut self) -> Result<&'a [u8]> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::EIO)?;
        let text = self.bytes(length)?;
        self.bytes(1)?;
        Ok(text)
    }

    /// A string that is a file name: not empty, no slash.
    pub fn name(&mut self) -> Result<&'a [u8]> {
        match self.string()? {
            b"" => Err(Errno::EIO),
            name if name.contains(&b'/') => Err(Errno::EIO),
            name => Ok(name),
        }
    }
}

/// `struct fuse_in_header`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What is asked for.
    pub opcode: u32,
    /// The number that the reply repeats.
    pub unique: u64,
    /// The inode it is about.
    pub node_id: u64,
    /// The caller's file-system user.
    pub uid: u32,
    /// The caller's file-system group.
    pub gid: u32,
    /// The calling *thread* as the mount's pid namespace sees it; 0 from outside.
    pub pid: u32,
}

/// One message: header, arguments, extensions.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks what.
    pub header: Header,
    /// Operation-specific bytes.
    pub args: Reader<'a>,
    extensions: Reader<'a>,
}

impl<'a> Request<'a> {
    /// Takes a message apart. `None` when not even a reply could be addressed.
    pub fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let mut reader = Reader(message.get(..IN_HEADER_BYTES)?);
        let length = reader.u32().ok()? as usize;
        let header = Header {
            opcode: reader.u32().ok()?,
            unique: reader.u64().ok()?,
            node_id: reader.u64().ok()?,
            uid: reader.u32().ok()?,
            gid: reader.u32().ok()?,
            pid: reader.u32().ok()?,
        };
        // The extension length is 16 bits in units of 8 bytes; 16 bits of padding follow.
        let extension_units = reader.u32().ok()?.to_ne_bytes();
        let extension_bytes =
            usize::from(u16::from_ne_bytes([extension_units[0], extension_units[1]])) * 8;
        let body = message.get(IN_HEADER_BYTES..)?;
        let args_bytes = body.len().checked_sub(extension_bytes)?;
        let (args, extensions) = body.split_at_checked(args_bytes)?;
        (length == message.len()).then_some(Request {
            header,
            args: Reader(args),
            extensions: Reader(extensions),
        })
    }

    /// The caller's groups that the kernel found worth telling; empty where it told none.
    pub fn groups(&self) -> Result<Vec<Gid>> {
        let mut rest = self.extensions;
        while !rest.0.is_empty() {
            let start = rest;
            let (size, kind) = (rest.u32()? as usize, rest.u32()?);
            let mut body = Reader(start.0.get(8..size).ok_or(Errno::EIO)?);
            if kind == EXT_GROUPS {
                let count = body.u32()? as usize;
                let bytes = body.bytes(count.checked_mul(4).ok_or(Errno::EIO)?)?;
                let (ids, _) = bytes.as_chunks();
                return Ok(ids.iter().map(|id| Gid(u32::from_ne_bytes(*id))).collect());
            }
            rest = Reader(start.0.get(size.next_multiple_of(8)..).unwrap_or_default());
        }
        Ok(Vec::new())
    }
}

/// `fuse_setattr_in`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetattrIn {
    /// `FATTR_*`: which fields are meant.
    pub valid: u32,
    /// Open handle.
    pub fh: u64,
    /// New size.
    pub size: u64,
    /// New access time.
    pub atime: (u64, u32),
    /// New modification time.
    pub mtime: (u64, u32),
    /// New mode.
    pub mode: u32,
    /// New owner.
    pub uid: u32,
    /// New group.
    pub gid: u32,
}

impl SetattrIn {
    /// Reads the structure.
    pub fn read(args: &mut Reader<'_>) -> Result<SetattrIn> {
        let valid = args.u32()?;
        args.u32()?;
        let (fh, size, _lock_owner) = (args.u64()?, args.u64()?, args.u64()?);
        let (atime, mtime, _ctime) = (args.u64()?, args.u64()?, args.u64()?);
        let (atime_nsec, mtime_nsec, _ctime_nsec) = (args.u32()?, args.u32()?, args.u32()?);
        let mode = args.u32()?;
        args.u32()?;
        let (uid, gid) = (args.u32()?, args.u32()?);
        let (atime, mtime) = ((atime, atime_nsec), (mtime, mtime_nsec));
        Ok(SetattrIn { valid, fh, size, atime, mtime, mode, uid, gid })
    }

    /// Whether nothing but the size changes, through an open handle: ftruncate(2).
    pub fn is_ftruncate(&self) -> bool {
        let meant = self.valid & (fattr::MODE | fattr::UID | fattr::GID);
        let times = self.valid & (fattr::ATIME_NOW | fattr::MTIME_NOW);
        let given_time = self.valid & (fattr::ATIME | fattr::MTIME) != 0 && times == 0;
        meant == 0 && !given_time && self.valid & fattr::FH != 0 && self.valid & fattr::SIZE != 0
    }
}

/// `fuse_read_in` and the read part of `fuse_write_in`: they have one layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferIn {
    /// Open handle.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// `READ_*` or `WRITE_*`.
    pub transfer_flags: u32,
    /// The descriptor's flags at the time of the call.
    pub flags: i32,
}

impl TransferIn {
    /// Reads the structure.
    pub fn read(args: &mut Reader<'_>) -> Result<TransferIn> {
        let (fh, offset) = (args.u64()?, args.u64()?);
        let (size, transfer_flags) = (args.u32()?, args.u32()?);
        let _lock_owner = args.u64()?;
        let flags = args.u32()? as i32;
        args.u32()?;
        Ok(TransferIn { fh, offset, size, transfer_flags, flags })
    }
}

/// `fuse_lk_in`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockIn {
    /// Open handle.
    pub fh: u64,
    /// Who asks, as the kernel scrambled it.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process, for `F_GETLK` of others.
    pub pid: u32,
    /// `LK_*`.
    pub flags: u32,
}

impl LockIn {
    /// Reads the structure.
    pub fn read(args: &mut Reader<'_>) -> Result<LockIn> {
        let (fh, owner, start, end) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?);
        let (kind, pid, flags) = (args.u32()?, args.u32()?, args.u32()?);
        args.u32()?;
        Ok(LockIn { fh, owner, start, end, kind, pid, flags })
    }
}

/// Whether an operation changes files or names, or opens something: done twice, it would show.
pub fn changes(code: u32) -> bool {
    use opcode::{
        COPY_FILE_RANGE, COPY_FILE_RANGE_64, CREATE, FALLOCATE, LINK, MKDIR, MKNOD, OPEN,
        REMOVEXATTR, RENAME, RENAME2, RMDIR, SETATTR, SETXATTR, SYMLINK, TMPFILE, UNLINK, WRITE,
    };
    matches!(
        code,
        COPY_FILE_RANGE
            | COPY_FILE_RANGE_64
            | CREATE
            | FALLOCATE
            | LINK
            | MKDIR
            | MKNOD
            | OPEN
            | REMOVEXATTR
            | RENAME
            | RENAME2
            | RMDIR
            | SETATTR
            | SETXATTR
            | SYMLINK
            | TMPFILE
            | UNLINK
            | WRITE
    )
}

/// Whether an operation is answered at all.
pub fn wants_reply(code: u32) -> bool {
    !matches!(
        code,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY
    )
}
