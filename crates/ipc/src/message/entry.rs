//! An entry of a directory as a reply has it.

use zerocopy::native_endian;

polylane_base::record! {
    /// A `linux_dirent64` entry before its name.
    pub struct EntryHead: 19 {
        /// The inode's number.
        0x00 ino: native_endian::U64,
        /// The position after it.
        0x08 next: native_endian::U64,
        /// Of the entry with its name and padding, in bytes.
        0x10 len: native_endian::U16,
        /// `DT_*`
        0x12 kind: u8,
    }
}

/// Bytes of an [`EntryHead`].
pub const ENTRY_HEAD_BYTES: usize = size_of::<EntryHead>();
