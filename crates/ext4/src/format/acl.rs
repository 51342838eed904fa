//! POSIX access control lists: on disk shorter than as the attributes that programs see.
//!
//! ```text
//! disk:       version u32 = 1; entries {tag u16, permissions u16}, for single users and groups
//!             followed by {id u32}
//! attribute:  version u32 = 2; entries {tag u16, permissions u16, id u32}, id ffffffff for none
//! ```

use super::{le16, le32, put16, put32};

const DISK_VERSION: u32 = 1;
const ATTRIBUTE_VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const SHORT_BYTES: usize = 4;
const LONG_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whether entries of this tag name a user or a group. `None` for unknown tags.
fn has_id(tag: u16) -> Option<bool> {
    match tag {
        0x02 | 0x08 => Some(true),
        0x01 | 0x04 | 0x10 | 0x20 => Some(false),
        _ => None,
    }
}

/// From the attribute's form to the one on disk; `None` when it is not a list.
pub fn to_disk(attribute: &[u8]) -> Option<Vec<u8>> {
    if attribute.len() < HEADER_BYTES || le32(attribute, 0) != ATTRIBUTE_VERSION {
        return None;
    }
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    let entries = attribute[HEADER_BYTES..].chunks_exact(LONG_BYTES);
    if !entries.remainder().is_empty() {
        return None;
    }
    for entry in entries {
        let bytes = if has_id(le16(entry, 0))? { LONG_BYTES } else { SHORT_BYTES };
        disk.extend_from_slice(&entry[..bytes]);
    }
    Some(disk)
}

/// From the form on disk to the attribute's; `None` when it is not a list.
pub fn from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    if disk.len() < HEADER_BYTES || le32(disk, 0) != DISK_VERSION {
        return None;
    }
    let mut attribute = ATTRIBUTE_VERSION.to_le_bytes().to_vec();
    let mut rest = &disk[HEADER_BYTES..];
    while !rest.is_empty() {
        let tag = (rest.len() >= SHORT_BYTES).then(|| le16(rest, 0))?;
        let long = has_id(tag)?;
        let bytes = if long { LONG_BYTES } else { SHORT_BYTES };
        let entry = rest.get(..bytes)?;
        let mut whole = [0; LONG_BYTES];
        put16(&mut whole, 0, tag);
        put16(&mut whole, 2, le16(entry, 2));
        put32(&mut whole, 4, if long { le32(entry, 4) } else { NO_ID });
        attribute.extend_from_slice(&whole);
        rest = &rest[bytes..];
    }
    Some(attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_others_are_refused() {
        let entries = [(1, 6, NO_ID), (2, 6, 1234), (4, 4, NO_ID), (0x20, 4, NO_ID)];
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
