//! Extended attributes as bytes: the area in an inode and the block outside.
//!
//! ```text
//! inode: magic 0xea020000; entries; … values, from the end backwards
//! block: magic, references u32, blocks u32 = 1, hash u32, checksum u32, 12 bytes;
//!        entries; … values
//! entry: name length u8, name index u8, value offset u16, value inode u32, value size u32,
//!        hash u32, name, padding to 4; four zero bytes end the list
//! ```
//! Value offsets count from the first entry in an inode and from the block's start in a block.

use super::checksum::crc;
use super::{le16, le32, put16, put32};

const MAGIC: u32 = 0xea02_0000;
const ENTRY_BYTES: usize = 16;
/// Bytes before the entries of a block.
pub const BLOCK_HEADER: usize = 32;
/// Bytes before the entries in an inode.
pub const INODE_HEADER: usize = 4;

/// The name prefixes that have a number. `system.` (7) is the format's own: it has no handler in
/// Linux either.
const PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
];

/// An attribute as it is stored. One whose prefix has a number that is not known here (8:
/// `system.richacl`, 10: `gnu.`, ...) is kept as it is, and has no name for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// Number of its prefix.
    pub index: u8,
    /// The name behind the prefix, at most 255 bytes.
    pub rest: Vec<u8>,
    /// The value; empty where an inode of its own holds it.
    pub value: Vec<u8>,
    /// The inode that holds the value.
    pub outside: Option<Outside>,
}

/// The inode that holds a value (`ea_inode`), as the attribute's entry tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outside {
    /// Its number; 0: it is still to be made.
    pub ino: u32,
    /// Bytes of the value.
    pub size: u32,
    /// The entry's hash, see [`outside_hash`].
    pub hash: u32,
}

impl Attribute {
    /// One of this whole name. `None` for prefixes without a number.
    pub fn new(name: &[u8], value: Vec<u8>) -> Option<Attribute> {
        let (index, rest) = split(name)?;
        Some(Attribute { index, rest: rest.to_vec(), value, outside: None })
    }

    /// Whether it is no attribute of programs' but holds inline data: `system.data`.
    pub fn is_inline_data(&self) -> bool {
        self.index == 7 && self.rest == b"data"
    }

    /// Its whole name, as programs write it; `None` where its prefix is not known here.
    pub fn name(&self) -> Option<Vec<u8>> {
        let (_, prefix) = PREFIXES.iter().find(|(number, _)| *number == self.index)?;
        Some([prefix, &self.rest[..]].concat())
    }

    /// Whether programs know it by this name.
    pub fn is_named(&self, name: &[u8]) -> bool {
        split(name) == Some((self.index, &self.rest))
    }
}

/// Splits a name into its prefix' number and the rest. `None` for prefixes without one.
pub fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    let found = PREFIXES.iter().find(|(_, prefix)| name.starts_with(prefix));
    found.map(|(index, prefix)| (*index, &name[prefix.len()..]))
}

/// Bytes that an attribute takes, entry and value.
pub fn cost(attribute: &Attribute) -> usize {
    (ENTRY_BYTES + attribute.rest.len()).next_multiple_of(4)
        + if attribute.outside.is_some() { 0 } else { attribute.value.len().next_multiple_of(4) }
}

/// Reads the attributes in an inode's area; none when the magic number is missing.
///
/// # Errors
/// The broken rule.
pub fn decode_inode(area: &[u8]) -> Result<Vec<Attribute>, &'static str> {
    if area.len() < INODE_HEADER + 4 || le32(area, 0) != MAGIC {
        return Ok(Vec::new());
    }
    decode(area, INODE_HEADER, INODE_HEADER)
}

/// Reads the attributes in a block.
///
/// # Errors
/// The broken rule.
pub fn decode_block(block: &[u8]) -> Result<Vec<Attribute>, &'static str> {
    if le32(block, 0) != MAGIC || le32(block, 8) != 1 {
        return Err("h_magic or h_blocks");
    }
    decode(block, BLOCK_HEADER, 0)
}

fn decode(area: &[u8], first: usize, base: usize) -> Result<Vec<Attribute>, &'static str> {
    let (mut at, mut found) = (first, Vec::new());
    while at + 4 <= area.len() && le32(area, at) != 0 {
        let name_len = usize::from(area[at]);
        let end = at + ENTRY_BYTES + name_len;
        if end > area.len() {
            return Err("e_name_len");
        }
        let (offset, size) = (usize::from(le16(area, at + 2)), le32(area, at + 8) as usize);
        let outside = match le32(area, at + 4) {
            0 => None,
            ino => Some(Outside { ino, size: size as u32, hash: le32(area, at + 12) }),
        };
        let start = base + offset;
        let value = match size {
            _ if outside.is_some() => &[],
            0 => &[],
            _ => area.get(start..start.saturating_add(size)).ok_or("e_value_offs")?,
        };
        let rest = area[at + ENTRY_BYTES..end].to_vec();
        found.push(Attribute { index: area[at + 1], rest, value: value.to_vec(), outside });
        at = end.next_multiple_of(4);
    }
    Ok(found)
}

/// Writes attributes into an inode's area. Returns false, leaving it as it was, when they do not
/// fit.
pub fn encode_inode(area: &mut [u8], attributes: &[Attribute]) -> bool {
    if attributes.is_empty() {
        area.fill(0);
        return true;
    }
    let needed: usize = INODE_HEADER + 4 + attributes.iter().map(cost).sum::<usize>();
    if needed > area.len() {
        return false;
    }
    area.fill(0);
    put32(area, 0, MAGIC);
    encode(area, INODE_HEADER, INODE_HEADER, attributes);
    true
}

/// Whether attributes fit into a block of so many bytes.
pub fn fit_block(bytes: usize, attributes: &[Attribute]) -> bool {
    BLOCK_HEADER + 4 + attributes.iter().map(cost).sum::<usize>() <= bytes
}

/// Writes attributes into a block with one reference. Returns false when they do not fit.
pub fn encode_block(block: &mut [u8], attributes: &[Attribute]) -> bool {
    if !fit_block(block.len(), attributes) {
        return false;
    }
    block.fill(0);
    put32(block, 0, MAGIC);
    set_references(block, 1);
    put32(block, 8, 1);
    let hash = encode(block, BLOCK_HEADER, 0, attributes);
    put32(block, 12, hash);
    true
}

/// Writes the entries, sorted as readers expect, and returns the hash over their hashes.
fn encode(area: &mut [u8], first: usize, base: usize, attributes: &[Attribute]) -> u32 {
    let key =
        |attribute: &&Attribute| (attribute.index, attribute.rest.len(), attribute.rest.clone());
    let mut sorted: Vec<&Attribute> = attributes.iter().collect();
    sorted.sort_by_key(key);
    let (mut at, mut end, mut all) = (first, area.len(), 0u32);
    for attribute in sorted {
        let (index, rest) = (attribute.index, &attribute.rest[..]);
        end -= attribute.value.len().next_multiple_of(4);
        area[end..end + attribute.value.len()].copy_from_slice(&attribute.value);
        area[at] = rest.len() as u8;
        area[at + 1] = index;
        let offset = if attribute.value.is_empty() { 0 } else { end - base };
        put16(area, at + 2, offset as u16);
        let hash = match attribute.outside {
            Some(outside) => {
                put32(area, at + 4, outside.ino);
                put32(area, at + 8, outside.size);
                outside.hash
            }
            None => {
                put32(area, at + 8, attribute.value.len() as u32);
                entry_hash(rest, &attribute.value)
            }
        };
        put32(area, at + 12, hash);
        area[at + ENTRY_BYTES..][..rest.len()].copy_from_slice(rest);
        at = (at + ENTRY_BYTES + rest.len()).next_multiple_of(4);
        all = all.rotate_left(16) ^ hash;
    }
    all
}

/// The hash of an entry whose value an inode holds: over the name, and the value's checksum.
pub fn outside_hash(rest: &[u8], value_sum: u32) -> u32 {
    entry_hash(rest, &value_sum.to_le_bytes())
}

fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let mut hash = name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    for word in value.chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        hash = hash.rotate_left(16) ^ u32::from_le_bytes(padded);
    }
    hash
}

/// How many inodes share the block.
pub fn references(block: &[u8]) -> u32 {
    le32(block, 4)
}

/// Stores the number of sharers.
pub fn set_references(block: &mut [u8], count: u32) {
    put32(block, 4, count);
}

fn checksum(block: &[u8], seed: u32, home: u64) -> u32 {
    let sum = crc(crc(seed, &home.to_le_bytes()), &block[..0x10]);
    crc(crc(sum, &[0; 4]), &block[0x14..])
}

/// Whether the block's checksum is right.
pub fn checksum_ok(block: &[u8], seed: u32, home: u64) -> bool {
    le32(block, 0x10) == checksum(block, seed, home)
}

/// Stores the block's checksum.
pub fn put_checksum(block: &mut [u8], seed: u32, home: u64) {
    let sum = checksum(block, seed, home);
    put32(block, 0x10, sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Vec<Attribute> {
        let make = |index, rest: &str, value: &[u8]| Attribute {
            outside: None,
            index,
            rest: rest.as_bytes().to_vec(),
            value: value.to_vec(),
        };
        vec![
            make(1, "a", b"1234"),
            make(4, "long-name", b"abcde"),
            make(6, "x", b""),
            make(8, "", b"rich"),
            make(200, "of somebody else", b"?"),
        ]
    }

    #[test]
    fn attributes_come_back() {
        let sorted = |mut list: Vec<Attribute>| {
            list.sort_by_key(|attribute| attribute.index);
            list
        };
        let mut area = vec![0xff; 160];
        assert!(encode_inode(&mut area, &attributes()));
        assert_eq!(sorted(decode_inode(&area).expect("whole")), attributes());
        let mut block = vec![0xff; 4096];
        assert!(encode_block(&mut block, &attributes()));
        put_checksum(&mut block, 4, 1 << 40);
        assert!(checksum_ok(&block, 4, 1 << 40) && !checksum_ok(&block, 4, 1));
        assert_eq!(sorted(decode_block(&block).expect("whole")), attributes());
        assert!(!encode_inode(&mut [0; 40], &attributes()));
        let names: Vec<_> = attributes().iter().map(Attribute::name).collect();
        assert_eq!(names[0].as_deref(), Some(&b"user.a"[..]));
        assert_eq!(names[3..], [None, None], "kept, and not shown");
        assert!(attributes()[1].is_named(b"trusted.long-name"));
        assert!(!attributes()[3].is_named(b"system.richacl"));
        put32(&mut block, BLOCK_HEADER + 8, 5000);
        assert!(decode_block(&block).is_err());
    }
}
