//! Requests of ioctl(2) that programs with the library make on descriptors of a lane's FUSE mount.

/// `ioctl(2)` request on any descriptor of the lane's FUSE mount: writes a 16-byte one-use ticket
/// for [`Op::Redeem`](crate::message::Op::Redeem). `_IOR('P', 1, [u8; 16])`.
pub const IOCTL_IDENTIFY: u32 = 0x8010_5001;

/// Beside the open(2) flags that a ticket's reply tells: the descriptor is a slot that its client
/// has not shared, so the kernel was not told of the file's status flags.
pub const UNFLAGGED: u64 = 1 << 32;

/// `ioctl(2)` request on a descriptor of the lane's FUSE mount: where its file lies on the medium.
/// In: offset and length, words of 64 bits. Out: how many pieces follow and whether there are more
/// (two words of 32 bits), then [`PIECE_BYTES`] for each: offset, place, length, whether it is
/// unwritten. `_IOWR('P', 2, [u8; PIECES_BYTES])`.
pub const IOCTL_PIECES: u32 = 0xd000_5002;

/// `ioctl(2)` requests on a descriptor of the lane's FUSE mount that ask for, or set, the inode
/// flags of its file: as `FS_IOC_GETFLAGS`, `_SETFLAGS` (an `int` each), `_FSGETXATTR` and
/// `_FSSETXATTR` (a `struct fsxattr`), which the kernel would take elsewhere. `_IOR('P', 3, …)`,
/// `_IOW('P', 4, …)`, then 5 and 6.
pub const IOCTL_FLAGS: [u32; 4] = [0x8004_5003, 0x4004_5004, 0x801c_5005, 0x401c_5006];

/// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`, `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`, each at the
/// place of its twin in [`IOCTL_FLAGS`]. The first two take an `int`, whatever their numbers say.
pub const FS_IOC_FLAGS: [u32; 4] = [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820];

/// Bytes of `struct fsxattr`.
pub const FSXATTR_BYTES: usize = 28;

/// Bytes of the argument of [`IOCTL_PIECES`].
pub const PIECES_BYTES: usize = 4096;

/// Bytes for a piece.
pub const PIECE_BYTES: usize = 32;
