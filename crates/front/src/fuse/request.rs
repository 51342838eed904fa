//! Requests: bytes from /dev/fuse, checked once, as values.
//!
//! The kernel is trusted to be the kernel, its bytes are not: every field is read through
//! [`Reader`], which cannot leave the message, and whatever does not fit is `EIO` to the one who
//! asked.

use polylane_base::record::{self, Record};
use polylane_base::{Errno, Gid, Result};
use zerocopy::native_endian::U32;

use super::flags::{LockFlags, ReadFlags, SetattrFields, WriteFlags};
use super::protocol::{EXT_GROUPS, IN_HEADER_BYTES, opcode};
use super::records::{ExtHeader, InHeader, Lk, Setattr, Transfer};

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

    /// The structure that is next.
    pub(crate) fn record<T: Record>(&mut self) -> Result<&'a T> {
        let (head, tail) = T::ref_from_prefix(self.0).map_err(|_| Errno::EIO)?;
        self.0 = tail;
        Ok(head)
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
        let raw = record::get::<InHeader>(message, 0)?;
        let header = Header {
            opcode: raw.opcode.get(),
            unique: raw.unique.get(),
            node_id: raw.nodeid.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            pid: raw.pid.get(),
        };
        let length = raw.len.get() as usize;
        let extension_bytes = usize::from(raw.total_extlen.get()) * 8;
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
            let header = rest.record::<ExtHeader>()?;
            let size = header.size.get() as usize;
            let body = start.0.get(size_of::<ExtHeader>()..size).ok_or(Errno::EIO)?;
            if header.kind == EXT_GROUPS {
                let mut body = Reader(body);
                let count = body.record::<U32>()?.get() as usize;
                let ids = record::get_slice::<U32>(body.0, 0, count).ok_or(Errno::EIO)?;
                return Ok(ids.iter().map(|id| Gid(id.get())).collect());
            }
            rest = Reader(start.0.get(size.next_multiple_of(8)..).unwrap_or_default());
        }
        Ok(Vec::new())
    }
}

/// `fuse_setattr_in`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetattrIn {
    /// Which fields are meant.
    pub valid: SetattrFields,
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
        let raw = args.record::<Setattr>()?;
        Ok(SetattrIn {
            valid: SetattrFields::from_bits_retain(raw.valid.get()),
            fh: raw.fh.get(),
            size: raw.size.get(),
            atime: (raw.atime.get(), raw.atimensec.get()),
            mtime: (raw.mtime.get(), raw.mtimensec.get()),
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
        })
    }

    /// Whether nothing but the size changes, through an open handle: ftruncate(2).
    pub fn is_ftruncate(&self) -> bool {
        use SetattrFields as Fields;
        let is_owned = self.valid.intersects(Fields::MODE | Fields::UID | Fields::GID);
        let now = self.valid.intersects(Fields::ATIME_NOW | Fields::MTIME_NOW);
        let given_time = self.valid.intersects(Fields::ATIME | Fields::MTIME) && !now;
        !is_owned && !given_time && self.valid.contains(Fields::FH | Fields::SIZE)
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
    /// [`ReadFlags`] or [`WriteFlags`].
    transfer_flags: u32,
    /// The descriptor's flags at the time of the call.
    pub flags: i32,
}

impl TransferIn {
    /// Reads the structure.
    pub fn read(args: &mut Reader<'_>) -> Result<TransferIn> {
        let raw = args.record::<Transfer>()?;
        Ok(TransferIn {
            fh: raw.fh.get(),
            offset: raw.offset.get(),
            size: raw.size.get(),
            transfer_flags: raw.transfer_flags.get(),
            flags: raw.flags.get() as i32,
        })
    }

    /// How a READ is to be done.
    pub fn read_flags(&self) -> ReadFlags {
        ReadFlags::from_bits_retain(self.transfer_flags)
    }

    /// How a WRITE is to be done.
    pub fn write_flags(&self) -> WriteFlags {
        WriteFlags::from_bits_retain(self.transfer_flags)
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
    /// Which family of locks.
    pub flags: LockFlags,
}

impl LockIn {
    /// Reads the structure.
    pub fn read(args: &mut Reader<'_>) -> Result<LockIn> {
        let raw = args.record::<Lk>()?;
        Ok(LockIn {
            fh: raw.fh.get(),
            owner: raw.owner.get(),
            start: raw.start.get(),
            end: raw.end.get(),
            kind: raw.kind.get(),
            pid: raw.pid.get(),
            flags: LockFlags::from_bits_retain(raw.lk_flags.get()),
        })
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
