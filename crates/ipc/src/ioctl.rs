//! Requests of ioctl(2) that programs with the library make on descriptors of a lane's FUSE mount.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `ioctl(2)` request on any descriptor of the lane's FUSE mount: writes a 16-byte one-use ticket
/// for [`Op::Redeem`](crate::message::Op::Redeem). `_IOR('P', 1, [u8; 16])`.
pub const IOCTL_IDENTIFY: u32 = 0x8010_5001;

/// Beside the open(2) flags that a ticket's reply tells: the descriptor is a slot that its client
/// has not shared, so the kernel was not told of the file's status flags.
pub const UNFLAGGED: u64 = 1 << 32;

/// `ioctl(2)` request on a descriptor of the lane's FUSE mount: where its file lies on the medium.
/// In: a [`PiecesQuestion`]. Out: a [`PiecesAnswer`]. `_IOWR('P', 2, [u8; PIECES_BYTES])`.
pub const IOCTL_PIECES: u32 = 0xd000_5002;

/// `ioctl(2)` requests on a descriptor of the lane's FUSE mount that ask for, or set, the inode
/// flags of its file: as `FS_IOC_GETFLAGS`, `_SETFLAGS` (an `int` each), `_FSGETXATTR` and
/// `_FSSETXATTR` (a `struct fsxattr`), which the kernel would take elsewhere. `_IOR('P', 3, …)`,
/// `_IOW('P', 4, …)`, then 5 and 6.
pub const IOCTL_FLAGS: [u32; 4] = [0x8004_5003, 0x4004_5004, 0x801c_5005, 0x401c_5006];

/// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`, `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, each at the
/// place of its twin in [`IOCTL_FLAGS`]. The first two take an `int`, whatever their numbers say.
pub const FS_IOC_FLAGS: [u32; 4] = [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820];

/// `FS_IOC_GETVERSION` and `EXT4_IOC_GETVERSION`, which write an `int` each.
pub const FS_IOC_VERSION: [u32; 2] = [0x8008_7601, 0x8008_6603];

/// `struct fsxattr`: inode flags in other words, and what file systems with projects and extents of
/// a given size have besides.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FsXattr {
    /// `fsx_xflags`: inode flags.
    pub xflags: u32,
    /// `fsx_extsize`: bytes of an extent.
    pub extent_bytes: u32,
    /// `fsx_nextents`: extents.
    pub extents: u32,
    /// `fsx_projid`: the project.
    pub project: u32,
    /// `fsx_cowextsize`: bytes of an extent that is shared.
    pub shared_extent_bytes: u32,
    /// `fsx_pad`
    pub unused: [u8; 8],
}

/// Bytes of `struct fsxattr`.
pub const FSXATTR_BYTES: usize = size_of::<FsXattr>();

/// Bytes of the argument of [`IOCTL_PIECES`].
pub const PIECES_BYTES: usize = size_of::<PiecesAnswer>();

/// Most pieces of one answer.
pub const PIECES_MAX: usize = 127;

/// What [`IOCTL_PIECES`] asks: which bytes of the file. Lies at the start of the argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PiecesQuestion {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// One piece of a file on its medium, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WirePiece {
    /// Where it starts in the file.
    pub offset: u64,
    /// Where it starts on the medium.
    pub place: u64,
    /// How long it is.
    pub len: u64,
    /// Whether nothing was written there: not 0 if so.
    pub unwritten: u64,
}

/// What [`IOCTL_PIECES`] answers, in the host's byte order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PiecesAnswer {
    /// How many of `pieces` count.
    pub count: u32,
    /// Whether more follow these: not 0 if so.
    pub more: u32,
    /// The pieces, in the file's order.
    pub pieces: [WirePiece; PIECES_MAX],
    /// Zeros.
    pub unused: [u8; 24],
}

const _: () = {
    assert!(size_of::<FsXattr>() == 28 && offset_of!(FsXattr, shared_extent_bytes) == 16);
    assert!(size_of::<PiecesQuestion>() == 16 && size_of::<WirePiece>() == 32);
    assert!(size_of::<PiecesAnswer>() == 4096 && offset_of!(PiecesAnswer, pieces) == 8);
    // The number of a request says how long its argument is.
    assert!(IOCTL_PIECES >> 16 & 0x3fff == PIECES_BYTES as u32);
    assert!(IOCTL_FLAGS[2] >> 16 & 0x3fff == FSXATTR_BYTES as u32);
};
