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

use std::mem::{offset_of, size_of};

use polylane_base::record;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::checksum::crc;

polylane_base::record! {
    /// `struct ext4_xattr_ibody_header`.
    struct InodeHeader: 4 {
        0x00 magic: U32,
    }

    /// `struct ext4_xattr_header`.
    struct BlockHeader: 32 {
        0x00 magic: U32,
        0x04 refcount: U32,
        0x08 blocks: U32,
        0x0c hash: U32,
        0x10 checksum: U32,
        0x14 reserved: [U32; 3],
    }

    /// `struct ext4_xattr_entry`, before the name.
    struct EntryRecord: 16 {
        0x00 name_len: u8,
        0x01 name_index: u8,
        0x02 value_offs: U16,
        0x04 value_inum: U32,
        0x08 value_size: U32,
        0x0c hash: U32,
    }
}

const MAGIC: u32 = 0xea02_0000;
const ENTRY_BYTES: usize = size_of::<EntryRecord>();
/// Bytes before the entries of a block.
pub const BLOCK_HEADER: usize = size_of::<BlockHeader>();
/// Bytes before the entries in an inode.
pub const INODE_HEADER: usize = size_of::<InodeHeader>();
/// Bytes of the zeros that end the entries.
const END_BYTES: usize = size_of::<U32>();

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
    let header = record::get::<InodeHeader>(area, 0).filter(|header| header.magic.get() == MAGIC);
    match header {
        Some(_) if area.len() >= INODE_HEADER + END_BYTES => {
            decode(area, INODE_HEADER, INODE_HEADER)
        }
        _ => Ok(Vec::new()),
    }
}

/// Reads the attributes in a block.
///
/// # Errors
/// The broken rule.
pub fn decode_block(block: &[u8]) -> Result<Vec<Attribute>, &'static str> {
    let header: &BlockHeader = record::at(block, 0);
    if header.magic.get() != MAGIC || header.blocks.get() != 1 {
        return Err("h_magic or h_blocks");
    }
    decode(block, BLOCK_HEADER, 0)
}

fn decode(area: &[u8], first: usize, base: usize) -> Result<Vec<Attribute>, &'static str> {
    let (mut at, mut found) = (first, Vec::new());
    let is_end = |at| record::get::<U32>(area, at).is_none_or(|word| *word == 0);
    while !is_end(at) {
        let entry = record::get::<EntryRecord>(area, at).ok_or("e_name_len")?;
        let name = at + ENTRY_BYTES..at + ENTRY_BYTES + usize::from(entry.name_len);
        let end = name.end;
        let rest = area.get(name).ok_or("e_name_len")?.to_vec();
        let size = entry.value_size.get();
        let outside = match entry.value_inum.get() {
            0 => None,
            ino => Some(Outside { ino, size, hash: entry.hash.get() }),
        };
        let (start, size) = (base + usize::from(entry.value_offs.get()), size as usize);
        let value = match size {
            _ if outside.is_some() => &[],
            0 => &[],
            _ => area.get(start..start.saturating_add(size)).ok_or("e_value_offs")?,
        };
        let (index, value) = (entry.name_index, value.to_vec());
        found.push(Attribute { index, rest, value, outside });
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
    let needed: usize = INODE_HEADER + END_BYTES + attributes.iter().map(cost).sum::<usize>();
    if needed > area.len() {
        return false;
    }
    area.fill(0);
    record::at_mut::<InodeHeader>(area, 0).magic.set(MAGIC);
    encode(area, INODE_HEADER, INODE_HEADER, attributes);
    true
}

/// Whether attributes fit into a block of so many bytes.
pub fn fit_block(bytes: usize, attributes: &[Attribute]) -> bool {
    BLOCK_HEADER + END_BYTES + attributes.iter().map(cost).sum::<usize>() <= bytes
}

/// Writes attributes into a block with one reference. Returns false when they do not fit.
pub fn encode_block(block: &mut [u8], attributes: &[Attribute]) -> bool {
    if !fit_block(block.len(), attributes) {
        return false;
    }
    block.fill(0);
    let hash = encode(block, BLOCK_HEADER, 0, attributes);
    let header: &mut BlockHeader = record::at_mut(block, 0);
    (header.magic, header.hash) = (MAGIC.into(), hash.into());
    (header.refcount, header.blocks) = (1.into(), 1.into());
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
        let mut entry = EntryRecord::new_zeroed();
        (entry.name_len, entry.name_index) = (rest.len() as u8, index);
        if !attribute.value.is_empty() {
            entry.value_offs.set((end - base) as u16);
        }
        let hash = match attribute.outside {
            Some(outside) => {
                entry.value_inum.set(outside.ino);
                entry.value_size.set(outside.size);
                outside.hash
            }
            None => {
                entry.value_size.set(attribute.value.len() as u32);
                entry_hash(rest, &attribute.value)
            }
        };
        entry.hash.set(hash);
        *record::at_mut(area, at) = entry;
        area[at + ENTRY_BYTES..][..rest.len()].copy_from_slice(rest);
        at = (at + ENTRY_BYTES + rest.len()).next_multiple_of(4);
        all = all.rotate_left(16) ^ hash;
    }
    all
}

/// The hash of an entry whose value an inode holds: over the name, and the value's checksum.
pub fn outside_hash(rest: &[u8], value_sum: u32) -> u32 {
    entry_hash(rest, U32::new(value_sum).as_bytes())
}

fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let mut hash = name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    for word in value.chunks(4) {
        let mut padded = U32::ZERO;
        padded.as_mut_bytes()[..word.len()].copy_from_slice(word);
        hash = hash.rotate_left(16) ^ padded.get();
    }
    hash
}

/// How many inodes share the block.
pub fn references(block: &[u8]) -> u32 {
    record::at::<BlockHeader>(block, 0).refcount.get()
}

/// Stores the number of sharers.
pub fn set_references(block: &mut [u8], count: u32) {
    record::at_mut::<BlockHeader>(block, 0).refcount.set(count);
}

fn checksum(block: &[u8], seed: u32, home: u64) -> u32 {
    let (before, rest) = block.split_at(offset_of!(BlockHeader, checksum));
    let zero = [0; size_of::<U32>()];
    let sum = crc(crc(seed, U64::new(home).as_bytes()), before);
    crc(crc(sum, &zero), &rest[zero.len()..])
}

/// Whether the block's checksum is right.
pub fn checksum_ok(block: &[u8], seed: u32, home: u64) -> bool {
    record::at::<BlockHeader>(block, 0).checksum.get() == checksum(block, seed, home)
}

/// Stores the block's checksum.
pub fn put_checksum(block: &mut [u8], seed: u32, home: u64) {
    let sum = checksum(block, seed, home);
    record::at_mut::<BlockHeader>(block, 0).checksum.set(sum);
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
        record::at_mut::<EntryRecord>(&mut block, BLOCK_HEADER).value_size.set(5000);
        assert!(decode_block(&block).is_err());
    }
}
