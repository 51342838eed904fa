//! POSIX access control lists: on disk shorter than as the attributes that programs see.
//!
//! ```text
//! disk:       version u32 = 1; entries {tag u16, permissions u16}, for single users and groups
//!             followed by {id u32}
//! attribute:  version u32 = 2; entries {tag u16, permissions u16, id u32}, id ffffffff for none
//! ```

use std::mem::size_of;

use polylane_base::record;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

polylane_base::record! {
    /// What both forms begin with.
    struct Header: 4 {
        0x00 version: U32,
    }

    /// An entry on disk that names no one.
    struct ShortEntry: 4 {
        0x00 tag: U16,
        0x02 permissions: U16,
    }

    /// Any other entry.
    struct LongEntry: 8 {
        0x00 short: ShortEntry,
        0x04 id: U32,
    }
}

const DISK_VERSION: Header = Header { version: U32::new(1) };
const ATTRIBUTE_VERSION: Header = Header { version: U32::new(2) };
const HEADER_BYTES: usize = size_of::<Header>();
const NO_ID: U32 = U32::new(u32::MAX);

/// Whether entries of this tag name a user or a group. `None` for unknown tags.
fn has_id(tag: U16) -> Option<bool> {
    match tag.get() {
        0x02 | 0x08 => Some(true),
        0x01 | 0x04 | 0x10 | 0x20 => Some(false),
        _ => None,
    }
}

/// From the attribute's form to the one on disk; `None` when it is not a list.
pub fn to_disk(attribute: &[u8]) -> Option<Vec<u8>> {
    if record::get(attribute, 0) != Some(&ATTRIBUTE_VERSION) {
        return None;
    }
    let mut disk = DISK_VERSION.as_bytes().to_vec();
    for entry in <[LongEntry]>::ref_from_bytes(&attribute[HEADER_BYTES..]).ok()? {
        match has_id(entry.short.tag)? {
            true => disk.extend_from_slice(entry.as_bytes()),
            false => disk.extend_from_slice(entry.short.as_bytes()),
        }
    }
    Some(disk)
}

/// From the form on disk to the attribute's; `None` when it is not a list.
pub fn from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    if record::get(disk, 0) != Some(&DISK_VERSION) {
        return None;
    }
    let mut attribute = ATTRIBUTE_VERSION.as_bytes().to_vec();
    let mut at = HEADER_BYTES;
    while at < disk.len() {
        let short: ShortEntry = *record::get(disk, at)?;
        let (entry, bytes) = match has_id(short.tag)? {
            true => (*record::get::<LongEntry>(disk, at)?, size_of::<LongEntry>()),
            false => (LongEntry { short, id: NO_ID }, size_of::<ShortEntry>()),
        };
        attribute.extend_from_slice(entry.as_bytes());
        at += bytes;
    }
    Some(attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_others_are_refused() {
        let entries = [(1, 6, u32::MAX), (2, 6, 1234), (4, 4, u32::MAX), (0x20, 4, u32::MAX)];
        let mut attribute = polylane_testkit::acl::value(entries);
        let disk = to_disk(&attribute).expect("a list");
        assert_eq!(disk.len(), 4 + 3 * 4 + 8);
        assert_eq!(from_disk(&disk), Some(attribute.clone()));
        for cut in 0..disk.len() {
            let part = from_disk(&disk[..cut]);
            assert!(part.is_none() || [4, 8, 16, 20].contains(&cut), "{cut}");
        }
        attribute[4] = 3;
        assert_eq!(to_disk(&attribute), None);
        assert_eq!(to_disk(b""), None);
        assert_eq!(to_disk(&[2, 0, 0, 0, 1]), None);
    }
}
