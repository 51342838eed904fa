//! What the superblock keeps of errors that were found: the first one, and the last.

/// What the superblock keeps of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorNote {
    /// When, in seconds.
    pub now: u64,
    /// The inode that it was found at, 0 for none.
    pub ino: u32,
    /// What is wrong; the first 31 bytes are kept, where Linux keeps the name of a function.
    pub what: &'static str,
    /// The kind, as Linux numbers them.
    pub code: u8,
}

/// Where the parts of an error lie.
pub(super) struct ErrorPlaces {
    pub(super) time: usize,
    pub(super) time_high: usize,
    pub(super) ino: usize,
    pub(super) block: usize,
    pub(super) function: usize,
    pub(super) line: usize,
    pub(super) code: usize,
}

impl ErrorPlaces {
    /// Of the first one since e2fsck.
    pub(super) const FIRST: ErrorPlaces = ErrorPlaces {
        time: 0x198,
        time_high: 0x278,
        ino: 0x19c,
        block: 0x1a0,
        function: 0x1a8,
        line: 0x1c8,
        code: 0x27a,
    };
    /// Of the last one.
    pub(super) const LAST: ErrorPlaces = ErrorPlaces {
        time: 0x1cc,
        time_high: 0x279,
        ino: 0x1d0,
        block: 0x1d8,
        function: 0x1e0,
        line: 0x1d4,
        code: 0x27b,
    };
}
