//! What a request sets of an inode.

bitflags::bitflags! {
    /// `arg[0]` of `Op::SetattrPath` and `Op::SetattrHandle`: what is to be set.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SetWhat: u64 {
        /// `mode` holds new permission bits.
        const PERM = 1;
        /// `arg[1]` holds a new owner.
        const UID = 2;
        /// `arg[2]` holds a new group.
        const GID = 4;
        /// `length` holds a new size.
        const SIZE = 8;
        /// `time[0..2]` hold a new access time (seconds, nanoseconds).
        const ATIME = 16;
        /// The access time is to be now.
        const ATIME_NOW = 32;
        /// `time[2..4]` hold a new modification time.
        const MTIME = 64;
        /// The modification time is to be now.
        const MTIME_NOW = 128;
    }
}
