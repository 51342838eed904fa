//! Fast commits: what operations changed since the last transaction, in the blocks behind the log.
//!
//! Everything is little-endian. A block is a row of tags, none of which goes on in the next block:
//! kind (16 bits), length of the value (16 bits), value. A commit begins in a block of its own and
//! ends with a tail, whose value goes on to the block's end.
//!
//! | kind | value |
//! |---|---|
//! | 1 add range | inode, extent (12 bytes, as in a tree): these blocks are the file's there |
//! | 2 delete range | inode, first file block, count: nothing is there |
//! | 3 create, 4 link, 5 unlink | directory, inode, name |
//! | 6 inode | inode, the inode up to `i_extra_isize`; `i_block` counts only where it is no map |
//! | 7 pad | anything |
//! | 8 tail | transaction, crc32c (from 0) over the commit's tags up to here |
//! | 9 head | features (none known), transaction; the area's first tag |
//!
//! The transaction is the one that a full commit would have had: commits count when it follows the
//! last one of the log.

use std::mem::{offset_of, size_of};

use polylane_base::record;
use zerocopy::little_endian::{U16, U32};

use super::FileBlock;
use super::checksum::crc;
use super::extent::{Extent, ExtentRecord};
use super::inode::CLASSIC_BYTES;

polylane_base::record! {
    /// `struct ext4_fc_tl`: begins a tag.
    struct TagRecord: 4 {
        0x00 kind: U16,
        0x02 len: U16,
    }

    /// `struct ext4_fc_head`.
    struct HeadRecord: 8 {
        0x00 features: U32,
        0x04 tid: U32,
    }

    /// `struct ext4_fc_tail`.
    struct TailRecord: 8 {
        0x00 tid: U32,
        0x04 crc: U32,
    }

    /// `struct ext4_fc_add_range`.
    struct AddRecord: 16 {
        0x00 ino: U32,
        0x04 extent: ExtentRecord,
    }

    /// `struct ext4_fc_del_range`.
    struct DeleteRecord: 12 {
        0x00 ino: U32,
        0x04 lblk: U32,
        0x08 len: U32,
    }

    /// `struct ext4_fc_dentry_info`, before the name.
    struct EntryRecord: 8 {
        0x00 parent_ino: U32,
        0x04 ino: U32,
    }
}

/// Bytes before a value.
const TAG_BYTES: usize = size_of::<TagRecord>();
/// Of the tail's value, what its checksum covers.
const TAIL_SUMMED: usize = offset_of!(TailRecord, crc);
const NAME_BYTES_MAX: usize = 255;

/// A name of a directory, and the inode that it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The directory's inode.
    pub parent: u32,
    /// The inode.
    pub ino: u32,
    /// The name.
    pub name: Vec<u8>,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These blocks are the file's.
    Add(u32, Extent),
    /// The file has a hole: first block, count.
    Delete(u32, FileBlock, u32),
    /// A name with a new inode, which has its state already.
    Create(Entry),
    /// A name.
    Link(Entry),
    /// The name is gone.
    Unlink(Entry),
    /// The inode's bytes, as many as count.
    Inode(u32, Vec<u8>),
}

/// What all commits of the area change that are whole and follow the last transaction, `next` being
/// the number behind it. What is torn ends them, as a power cut leaves it.
///
/// # Errors
/// Names what is wrong in a commit whose checksum is right, or the features that are not known.
pub fn changes(
    blocks: &[impl std::ops::Deref<Target = [u8]>],
    next: u32,
) -> Result<Vec<Change>, &'static str> {
    let (mut whole, mut running, mut sum, mut begun) = (Vec::new(), Vec::new(), 0, false);
    for block in blocks {
        let mut at = 0;
        while let Some(head) = block.get(at..at + TAG_BYTES) {
            let tag: &TagRecord = record::at(head, 0);
            let (kind, len) = (tag.kind.get(), usize::from(tag.len.get()));
            let Some(bytes) = block.get(at..at + TAG_BYTES + len) else { return Ok(whole) };
            let value = &bytes[TAG_BYTES..];
            match kind {
                9 => match record::get::<HeadRecord>(value, 0) {
                    Some(head) if head.tid == next && head.features == 0 => begun = true,
                    Some(head) if head.tid == next => return Err("features of fast commits"),
                    _ => return Ok(whole),
                },
                1..=7 if begun => running.push((kind, value)),
                8 if begun => {
                    let Some(tail) = record::get::<TailRecord>(value, 0) else { return Ok(whole) };
                    sum = crc(sum, &bytes[..TAG_BYTES + TAIL_SUMMED]);
                    if tail.tid != next || tail.crc != sum {
                        return Ok(whole);
                    }
                    let decoded = running.drain(..).filter_map(|(kind, value)| change(kind, value));
                    whole.extend(decoded.collect::<Result<Vec<_>, _>>()?);
                }
                _ => return Ok(whole),
            }
            sum = if kind == 8 { 0 } else { crc(sum, bytes) };
            at += TAG_BYTES + len;
        }
    }
    Ok(whole)
}

/// `None` for padding.
fn change(kind: u16, value: &[u8]) -> Option<Result<Change, &'static str>> {
    let decoded = match kind {
        1 => add(value),
        2 => record::get::<DeleteRecord>(value, 0)
            .map(|gone| Change::Delete(gone.ino.get(), FileBlock(gone.lblk.get()), gone.len.get())),
        3 => entry(value).map(Change::Create),
        4 => entry(value).map(Change::Link),
        5 => entry(value).map(Change::Unlink),
        6 => inode(value),
        7 => return None,
        _ => None,
    };
    Some(decoded.ok_or("value of a tag of a fast commit"))
}

fn add(value: &[u8]) -> Option<Change> {
    let added: &AddRecord = record::get(value, 0)?;
    let extent = added.extent.extent();
    (extent.count > 0).then_some(Change::Add(added.ino.get(), extent))
}

fn inode(value: &[u8]) -> Option<Change> {
    let (ino, bytes) = value.split_at_checked(size_of::<U32>())?;
    let ino: &U32 = record::get(ino, 0)?;
    (bytes.len() >= CLASSIC_BYTES).then(|| Change::Inode(ino.get(), bytes.to_vec()))
}

fn entry(value: &[u8]) -> Option<Entry> {
    let head: &EntryRecord = record::get(value, 0)?;
    let name = &value[size_of::<EntryRecord>()..];
    let has_length = (1..=NAME_BYTES_MAX).contains(&name.len());
    let is_plain =
        !name.iter().any(|byte| matches!(byte, 0 | b'/')) && !matches!(name, b"." | b"..");
    let (parent, ino) = (head.parent_ino.get(), head.ino.get());
    (has_length && is_plain).then(|| Entry { parent, ino, name: name.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = value.len() as u16;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), value].concat()
    }

    /// A block that holds `tags` and a tail.
    fn block(tags: &[Vec<u8>], tid: u32) -> Vec<u8> {
        let mut bytes = tags.concat();
        let rest = (1024 - bytes.len() - TAG_BYTES) as u16;
        bytes.extend([8u16.to_le_bytes(), rest.to_le_bytes()].concat());
        bytes.extend(tid.to_le_bytes());
        let sum = crc(0, &bytes);
        bytes.extend(sum.to_le_bytes());
        bytes.resize(1024, 0);
        bytes
    }

    fn head(tid: u32) -> Vec<u8> {
        tag(9, &[[0; 4], tid.to_le_bytes()].concat())
    }

    fn delete(ino: u32) -> Vec<u8> {
        tag(2, &[ino.to_le_bytes(), 5u32.to_le_bytes(), 6u32.to_le_bytes()].concat())
    }

    #[test]
    fn commits_count_up_to_the_first_that_is_not_whole() {
        let first = block(&[head(7), delete(20), tag(7, &[1; 9])], 7);
        let second = block(&[delete(21)], 7);
        let change = |ino| Change::Delete(ino, FileBlock(5), 6);
        assert_eq!(changes(&[&first[..], &second], 7), Ok(vec![change(20), change(21)]));
        assert_eq!(changes(&[&first[..], &second], 8), Ok(vec![]), "of an older transaction");
        assert_eq!(changes(&[&second[..], &first], 7), Ok(vec![]), "no head");
        let other = block(&[delete(21)], 6);
        assert_eq!(changes(&[&first[..], &other], 7), Ok(vec![change(20)]));
        for at in [0, 12, 30, 50] {
            let mut torn = second.clone();
            torn[at] ^= 1;
            let expected = if at < 24 { vec![change(20)] } else { vec![change(20), change(21)] };
            assert_eq!(changes(&[&first[..], &torn], 7), Ok(expected), "{at}");
        }
        assert_eq!(changes(&[&first[..], &[0; 1024]], 7), Ok(vec![change(20)]));
    }

    #[test]
    fn values_that_cannot_be_are_damage_where_the_sum_is_right() {
        for bad in [tag(1, &[0; 15]), tag(2, &[0; 11]), tag(4, &[0; 8]), tag(6, &[0; 100])] {
            assert!(changes(&[&block(&[head(7), bad], 7)[..]], 7).is_err());
        }
        let unknown = tag(9, &[1, 0, 0, 0, 7, 0, 0, 0]);
        assert!(changes(&[&block(&[unknown], 7)[..]], 7).is_err());
        let name = |name: &[u8]| tag(3, &[&[2, 0, 0, 0, 12, 0, 0, 0][..], name].concat());
        let entry = Entry { parent: 2, ino: 12, name: b"n".to_vec() };
        let made = changes(&[&block(&[head(7), name(b"n")], 7)[..]], 7);
        assert_eq!(made, Ok(vec![Change::Create(entry)]));
        assert!(changes(&[&block(&[head(7), name(b"a/b")], 7)[..]], 7).is_err());
    }
}
