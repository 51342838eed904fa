//! The state of an inode, as libservices and front ends exchange it.

use polylane_base::{Gid, Ino, Time, Uid};

/// What a directory entry or inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A named pipe.
    Fifo = 1,
    /// A character device.
    Char = 2,
    /// A directory.
    Dir = 4,
    /// A block device.
    Block = 6,
    /// A regular file.
    File = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A UNIX-domain socket.
    Socket = 12,
}

impl Kind {
    /// The `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }

    /// The kind named by the `S_IFMT` bits, if they name one.
    pub const fn from_mode(mode: u32) -> Option<Kind> {
        Self::from_dtype(((mode >> 12) & 0xf) as u8)
    }

    /// The kind for a `d_type` of readdir(3), if it is one.
    pub const fn from_dtype(dtype: u8) -> Option<Kind> {
        Some(match dtype {
            1 => Kind::Fifo,
            2 => Kind::Char,
            4 => Kind::Dir,
            6 => Kind::Block,
            8 => Kind::File,
            10 => Kind::Symlink,
            12 => Kind::Socket,
            _ => return None,
        })
    }
}

/// The state of an inode, as in inode(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Tells a reused inode number from its former owner.
    pub generation: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits: the low 12 bits of `st_mode`.
    pub perm: u32,
    /// Hard links; 0 once the last name is gone.
    pub nlink: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Device number (`makedev`) for devices, else 0.
    pub rdev: u64,
    /// Bytes; the length of the target for a symbolic link.
    pub size: u64,
    /// Allocated 512-byte units.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Inode flags, bits of [`flags`](crate::flags).
    pub flags: u32,
}

impl Attr {
    /// `st_mode`: kind and permission bits.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }
}

/// A change of time stamp: to a given time or to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The file system's clock.
    Now,
    /// This time.
    At(Time),
}

/// Changes to an inode; `None` leaves a field as it is. `ctime` moves with any change, unless it is
/// given: the VFS gives it when it hands on times that it kept (access times, delayed writes).
/// Front ends leave it `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// New permission bits (12 bits).
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<Uid>,
    /// New group.
    pub gid: Option<Gid>,
    /// New size; growing leaves a hole. Moves `mtime` too, also when the size stays.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// Exactly this change time.
    pub ctime: Option<Time>,
    /// New inode flags, of those that can be set
    /// ([`Character::flags`](crate::fs::Character::flags)); others stay.
    pub flags: Option<u32>,
    /// New project, where [`FileSystem::project`](crate::fs::FileSystem::project) tells one.
    pub project: Option<u32>,
}

/// Totals, as in statvfs(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Block size in bytes.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u32,
    /// `f_type`, for example `TMPFS_MAGIC`.
    pub magic: u32,
}
