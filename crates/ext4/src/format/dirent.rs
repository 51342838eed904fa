//! Directory blocks: linear entries, and the nodes of a hash tree dressed up as entries.
//!
//! ```text
//! entry: inode u32, record length u16, name length u8, type u8, name, padding to 4
//! tail (with checksums): an entry of inode 0, length 12, no name, type 0xde, then the checksum
//! ```
//! Record lengths cover a block exactly. An entry of inode 0 is free space.

use std::mem::size_of;

use polylane_base::record;
use polylane_vfs::fs::Kind;
use zerocopy::little_endian::{U16, U32};

use super::checksum::crc;

polylane_base::record! {
    /// `struct ext4_dir_entry_2`, before the name.
    pub(super) struct EntryRecord: 8 {
        0x00 inode: U32,
        0x04 rec_len: U16,
        0x06 name_len: u8,
        0x07 file_type: u8,
    }

    /// `struct ext4_dir_entry_tail`: an entry without a name, and the checksum.
    struct TailRecord: 12 {
        0x00 entry: EntryRecord,
        0x08 checksum: U32,
    }
}

/// Offset of `..` in a directory's first block.
pub const DOT_DOT_AT: usize = (HEADER_BYTES + b".".len()).next_multiple_of(4);
/// Bytes before the name.
pub(super) const HEADER_BYTES: usize = size_of::<EntryRecord>();
/// Bytes of the checksum tail.
pub const TAIL_BYTES: usize = size_of::<TailRecord>();
/// Type of the tail's pretended entry.
const TAIL_TYPE: u8 = 0xde;

/// An entry in use, or free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Where it begins in the block.
    pub offset: usize,
    /// Inode number; 0: free space.
    pub ino: u32,
    /// Bytes up to the next entry.
    pub record_bytes: usize,
    /// File type code of `filetype`; 0: unknown.
    pub file_type: u8,
    /// The name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Bytes that the entry itself needs; what lies behind is free.
    pub fn used_bytes(&self) -> usize {
        if self.ino == 0 { 0 } else { record_bytes(self.name.len()) }
    }
}

/// Bytes that an entry with a name of `name_bytes` needs.
pub fn record_bytes(name_bytes: usize) -> usize {
    (HEADER_BYTES + name_bytes).next_multiple_of(4)
}

/// The entry at an offset that has one.
fn entry_mut(block: &mut [u8], offset: usize) -> &mut EntryRecord {
    record::at_mut(block, offset)
}

/// Walks the entries of a block, its tail left out.
pub struct Entries<'a> {
    block: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Entries<'a> {
    /// All entries of `block`; `has_tail`: the last 12 bytes are a checksum tail.
    pub fn new(block: &'a [u8], has_tail: bool) -> Self {
        let end = block.len() - if has_tail { TAIL_BYTES } else { 0 };
        Entries { block, at: 0, end }
    }

    /// The entry that begins at `offset`.
    ///
    /// # Errors
    /// No whole entry can begin there.
    pub fn at(block: &'a [u8], offset: usize, has_tail: bool) -> Result<Entry<'a>, &'static str> {
        Entries { at: offset, ..Entries::new(block, has_tail) }.parse()
    }

    fn parse(&self) -> Result<Entry<'a>, &'static str> {
        let (block, at) = (self.block, self.at);
        let header = record::get::<EntryRecord>(&block[..self.end], at);
        let header = header.ok_or("rec_len: no room for an entry")?;
        // 65535 and 0 stand for 65536 in 64 KiB blocks, which are not supported.
        let record = usize::from(header.rec_len.get());
        let name_bytes = usize::from(header.name_len);
        match () {
            () if record < HEADER_BYTES || !record.is_multiple_of(4) => Err("rec_len"),
            () if at + record > self.end => Err("rec_len: past the block"),
            () if HEADER_BYTES + name_bytes > record => Err("name_len"),
            () => Ok(Entry {
                offset: at,
                ino: header.inode.get(),
                record_bytes: record,
                file_type: header.file_type,
                name: &block[at + HEADER_BYTES..][..name_bytes],
            }),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let entry = self.parse();
        // A broken record ends the walk: where the next one begins is unknown.
        self.at = entry.as_ref().map_or(self.end, |entry| self.at + entry.record_bytes);
        Some(entry)
    }
}

/// Writes an entry at `offset`.
pub fn put_entry(
    block: &mut [u8],
    offset: usize,
    record: usize,
    ino: u32,
    file_type: u8,
    name: &[u8],
) {
    let (inode, rec_len) = (ino.into(), (record as u16).into());
    *entry_mut(block, offset) =
        EntryRecord { inode, rec_len, name_len: name.len() as u8, file_type };
    block[offset + HEADER_BYTES..][..name.len()].copy_from_slice(name);
}

/// Makes the entry at `offset` name another inode.
pub fn set_target(block: &mut [u8], offset: usize, ino: u32, file_type: u8) {
    let entry = entry_mut(block, offset);
    (entry.inode, entry.file_type) = (ino.into(), file_type);
}

/// Makes `block` an empty directory block: one free record, and a tail if it has one.
pub fn put_empty(block: &mut [u8], has_tail: bool) {
    block.fill(0);
    let end = block.len() - if has_tail { TAIL_BYTES } else { 0 };
    put_entry(block, 0, end, 0, 0, b"");
    if has_tail {
        *entry_mut(block, end) = tail_entry();
    }
}

/// Makes `block` the first one of a directory `own` without entries: `.` and `..`, and a tail if it
/// has one.
pub fn put_first(block: &mut [u8], has_tail: bool, own: u32, parent: u32) {
    put_empty(block, has_tail);
    let end = block.len() - if has_tail { TAIL_BYTES } else { 0 };
    put_entry(block, 0, DOT_DOT_AT, own, 2, b".");
    put_entry(block, DOT_DOT_AT, end - DOT_DOT_AT, parent, 2, b"..");
}

/// Puts an entry (inode, type code, name) into free space of the block, looking from `hint` on
/// first, where an entry must begin. Returns where, or `None` when there is no room.
///
/// # Errors
/// The block is broken.
pub fn insert(
    block: &mut [u8],
    has_tail: bool,
    hint: usize,
    (ino, file_type, name): (u32, u8, &[u8]),
) -> Result<Option<usize>, &'static str> {
    let needed = record_bytes(name.len());
    let mut place = room(Entries { at: hint, ..Entries::new(block, has_tail) }, needed)?;
    if place.is_none() && hint > 0 {
        place = room(Entries::new(block, has_tail), needed)?;
    }
    let Some((offset, used, record)) = place else { return Ok(None) };
    if used > 0 {
        entry_mut(block, offset).rec_len.set(used as u16);
    }
    put_entry(block, offset + used, record - used, ino, file_type, name);
    Ok(Some(offset + used))
}

/// The first entry with `needed` bytes to spare: its offset, what it uses, what it has.
fn room(
    entries: Entries<'_>,
    needed: usize,
) -> Result<Option<(usize, usize, usize)>, &'static str> {
    for entry in entries {
        let entry = entry?;
        if entry.record_bytes - entry.used_bytes() >= needed {
            return Ok(Some((entry.offset, entry.used_bytes(), entry.record_bytes)));
        }
    }
    Ok(None)
}

/// Removes the entry at `offset`: its space joins the entry before it, or becomes free. Returns
/// where the free space now begins: an entry's offset.
///
/// # Errors
/// The block is broken or no entry begins there.
pub fn remove(block: &mut [u8], has_tail: bool, offset: usize) -> Result<usize, &'static str> {
    let mut before: Option<(usize, usize)> = None;
    let mut record = None;
    for entry in Entries::new(block, has_tail) {
        let entry = entry?;
        if entry.offset == offset {
            record = Some(entry.record_bytes);
            break;
        }
        before = Some((entry.offset, entry.record_bytes));
    }
    let record = record.ok_or("no entry at this offset")?;
    match before {
        Some((joined, length)) => {
            entry_mut(block, joined).rec_len.set((length + record) as u16);
            Ok(joined)
        }
        None => {
            entry_mut(block, offset).inode.set(0);
            Ok(offset)
        }
    }
}

/// Whether the block ends in a checksum tail and its sum is right for the directory's seed.
pub fn checksum_ok(block: &[u8], inode_seed: u32) -> bool {
    let at = block.len() - TAIL_BYTES;
    let tail: &TailRecord = record::at(block, at);
    tail.entry == tail_entry() && tail.checksum.get() == crc(inode_seed, &block[..at])
}

/// What a tail begins with.
fn tail_entry() -> EntryRecord {
    let (inode, rec_len) = (0.into(), (TAIL_BYTES as u16).into());
    EntryRecord { inode, rec_len, name_len: 0, file_type: TAIL_TYPE }
}

/// Stores the checksum in the tail.
pub fn put_checksum(block: &mut [u8], inode_seed: u32) {
    let at = block.len() - TAIL_BYTES;
    let sum = crc(inode_seed, &block[..at]);
    record::at_mut::<TailRecord>(block, at).checksum.set(sum);
}

/// The kind that an entry's file type names.
pub fn kind_of(file_type: u8) -> Kind {
    match file_type {
        2 => Kind::Dir,
        3 => Kind::Char,
        4 => Kind::Block,
        5 => Kind::Fifo,
        6 => Kind::Socket,
        7 => Kind::Symlink,
        _ => Kind::File,
    }
}

/// The type code of a directory entry for the `S_IFMT` bits of a mode.
pub fn file_type(mode: u16) -> u8 {
    match mode >> 12 {
        0x8 => 1,
        0x4 => 2,
        0x2 => 3,
        0x6 => 4,
        0x1 => 5,
        0xc => 6,
        0xa => 7,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;
    use std::collections::BTreeMap;

    fn names(block: &[u8]) -> BTreeMap<Vec<u8>, u32> {
        let entries = Entries::new(block, true).map(|entry| entry.expect("whole"));
        entries.filter(|entry| entry.ino != 0).map(|e| (e.name.to_vec(), e.ino)).collect()
    }

    #[test]
    fn a_block_holds_what_was_put_and_not_removed() {
        let mut rng = Rng::new(3);
        let mut block = vec![0; 4096];
        put_empty(&mut block, true);
        let (mut model, mut hint) = (BTreeMap::new(), 0);
        for step in 1..if cfg!(miri) { 60 } else { 4000 } {
            if rng.percent(60) {
                let length = 1 + rng.below(40) as usize;
                let mut name = format!("{step:x}-").into_bytes();
                name.resize(name.len() + length, b'n');
                let put = insert(&mut block, true, hint, (step, 1, &name)).expect("whole");
                if let Some(offset) = put {
                    model.insert(name, step);
                    hint = offset;
                }
            } else if let Some(name) = model.keys().next().cloned() {
                let found = Entries::new(&block, true).map(|entry| entry.expect("whole"));
                let offset = found.filter(|e| e.ino != 0 && e.name == name).map(|e| e.offset);
                let offset = offset.last().expect("present");
                hint = remove(&mut block, true, offset).expect("whole");
                model.remove(&name);
            }
            assert_eq!(names(&block), model);
        }
        put_checksum(&mut block, 5);
        assert!(checksum_ok(&block, 5) && !checksum_ok(&block, 6));
    }

    #[test]
    fn broken_records_end_the_walk_with_an_error() {
        for value in [3, 0, 5000, 10] {
            let mut block = vec![0; 4096];
            put_empty(&mut block, false);
            insert(&mut block, false, 0, (9, 1, b"name")).expect("whole");
            entry_mut(&mut block, 0).rec_len.set(value);
            let walk: Vec<_> = Entries::new(&block, false).collect();
            assert!(walk.last().expect("one").is_err(), "{value}");
        }
    }
}
