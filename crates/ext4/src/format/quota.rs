//! Quota files (`vfsv1`, version 1 of the tree): what each user, group or project takes, and may.
//!
//! Blocks of 1 KiB whatever the file system's are. The first begins with a header; the second is
//! the root of a tree of four levels, each node 256 numbers of blocks by eight bits of the id. The
//! last level names blocks of entries, which are searched by id.

use std::mem::size_of;

use polylane_base::record;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::inode::RawInode;

polylane_base::record! {
    /// How a quota file begins: `struct v2_disk_dqheader` and `struct v2_disk_dqinfo`.
    struct HeaderRecord: 32 {
        0x00 magic: U32,
        0x04 version: U32,
        0x08 bgrace: U32,
        0x0c igrace: U32,
        0x10 flags: U32,
        0x14 blocks: U32,
        0x18 free_blk: U32,
        0x1c free_entry: U32,
    }

    /// How a block of entries begins, and one that is not used: `struct qt_disk_dqdbheader`.
    struct HeadRecord: 16 {
        0x00 next_free: U32,
        0x04 prev_free: U32,
        0x08 entries: U16,
        0x0a pad1: U16,
        0x0c pad2: U32,
    }

    /// One id's limits and usage: `struct v2r1_disk_dqblk`.
    struct EntryRecord: 72 {
        0x00 id: U32,
        0x04 pad: U32,
        0x08 ihardlimit: U64,
        0x10 isoftlimit: U64,
        0x18 curinodes: U64,
        0x20 bhardlimit: U64,
        0x28 bsoftlimit: U64,
        0x30 curspace: U64,
        0x38 btime: U64,
        0x40 itime: U64,
    }
}

/// Bytes of a block of a quota file.
pub const BLOCK_BYTES: usize = 1024;
/// The root of the tree.
pub const ROOT: u32 = 1;
/// Levels of the tree.
pub const LEVELS: u32 = 4;

/// A time that keeps the entry of id 0 from being all zeros.
const NOT_BEGUN: u64 = 1;

const VERSION: u32 = 1;
const MAGICS: [u32; 3] = [0xd9c0_1f11, 0xd9c0_1927, 0xd9c0_3f14];
/// Entries of a block.
pub const ENTRIES: usize = (BLOCK_BYTES - size_of::<HeadRecord>()) / size_of::<EntryRecord>();

/// Whose usage a quota file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaKind {
    /// Users'.
    User,
    /// Groups'.
    Group,
    /// Projects'.
    Project,
}

impl QuotaKind {
    /// All of them, in the format's order.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
}

/// What an inode was charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// Its user, group and project.
    pub ids: [u32; 3],
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Itself, and those that hold values of its attributes; 0 for a free one.
    pub inodes: u64,
}

impl Charge {
    /// Of an inode as it is on disk, with attributes whose values lie in so many inodes; nothing
    /// for a free one.
    pub fn of(raw: &RawInode, values: u64, block_bytes: u32) -> Charge {
        match raw.mode() {
            0 => Charge::default(),
            _ => Charge {
                ids: [raw.uid(), raw.gid(), raw.project()],
                bytes: raw.sectors(block_bytes) * 512,
                inodes: 1 + values,
            },
        }
    }
}

/// The counters of a quota file's first block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Blocks of the file.
    pub blocks: u32,
    /// The first of the list of unused blocks; 0: none.
    pub free_block: u32,
    /// The first of the list of blocks with room for an entry; 0: none.
    pub free_entry: u32,
}

impl Info {
    /// From the first block; `None`: it is none of this kind and version.
    pub fn decode(block: &[u8], kind: QuotaKind) -> Option<Info> {
        let header: &HeaderRecord = record::get(block, 0)?;
        let is_good = header.magic.get() == MAGICS[kind as usize];
        let blocks = header.blocks.get();
        let (free_block, free_entry) = (header.free_blk.get(), header.free_entry.get());
        let inside = blocks > ROOT && free_block < blocks && free_entry < blocks;
        let is_known = is_good && header.version.get() == VERSION && inside;
        is_known.then_some(Info { blocks, free_block, free_entry })
    }

    /// Into the first block.
    pub fn encode(self, block: &mut [u8]) {
        let header: &mut HeaderRecord = record::at_mut(block, 0);
        header.blocks.set(self.blocks);
        header.free_blk.set(self.free_block);
        header.free_entry.set(self.free_entry);
    }
}

/// For how many seconds a soft limit may be passed: of bytes, and of inodes. From the first block.
pub fn graces(block: &[u8]) -> [u64; 2] {
    record::get::<HeaderRecord>(block, 0)
        .map_or([0; 2], |header| [header.bgrace.get().into(), header.igrace.get().into()])
}

/// The place of `id`'s number in a node of a level.
pub fn slot(id: u32, level: u32) -> usize {
    4 * (id >> (8 * (LEVELS - 1 - level)) & 0xff) as usize
}

/// The head of a block of entries, or of an unused one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// The next in its list; 0: none.
    pub next: u32,
    /// The one before it; 0: it is the first.
    pub before: u32,
    /// Entries in use.
    pub count: u16,
}

impl Head {
    /// Of a block.
    pub fn decode(block: &[u8]) -> Head {
        let head: &HeadRecord = record::at(block, 0);
        let (next, before) = (head.next_free.get(), head.prev_free.get());
        Head { next, before, count: head.entries.get() }
    }

    /// Into a block.
    pub fn encode(self, block: &mut [u8]) {
        let head: &mut HeadRecord = record::at_mut(block, 0);
        head.next_free.set(self.next);
        head.prev_free.set(self.before);
        head.entries.set(self.count);
    }
}

fn place(index: usize) -> usize {
    size_of::<HeadRecord>() + index * size_of::<EntryRecord>()
}

fn entry(block: &[u8], index: usize) -> &EntryRecord {
    record::at(block, place(index))
}

fn is_used(block: &[u8], index: usize) -> bool {
    entry(block, index).as_bytes().iter().any(|byte| *byte != 0)
}

/// The number of a block in a node, at the place that [`slot`] tells.
pub fn below(block: &[u8], slot: usize) -> u32 {
    record::at::<U32>(block, slot).get()
}

/// Stores it.
pub fn set_below(block: &mut [u8], slot: usize, number: u32) {
    record::at_mut::<U32>(block, slot).set(number);
}

/// The ids of a block of entries, with the place of each.
pub fn ids(block: &[u8]) -> impl Iterator<Item = (u32, usize)> {
    let used = (0..ENTRIES).filter(|index| is_used(block, *index));
    used.map(|index| (entry(block, index).id.get(), index))
}

/// The first place that no entry has.
pub fn unused(block: &[u8]) -> Option<usize> {
    (0..ENTRIES).find(|index| !is_used(block, *index))
}

/// Begins an entry: nothing is taken, and no limit is set.
pub fn begin(block: &mut [u8], index: usize, id: u32) {
    let entry: &mut EntryRecord = record::at_mut(block, place(index));
    entry.id.set(id);
    if id == 0 {
        // One of zeros would be none.
        entry.itime.set(NOT_BEGUN);
    }
}

/// What an id takes: bytes and inodes.
pub fn usage(block: &[u8], index: usize) -> (u64, u64) {
    let entry = entry(block, index);
    (entry.curspace.get(), entry.curinodes.get())
}

/// Stores what an id takes.
pub fn set_usage(block: &mut [u8], index: usize, (bytes, inodes): (u64, u64)) {
    let entry: &mut EntryRecord = record::at_mut(block, place(index));
    entry.curspace.set(bytes);
    entry.curinodes.set(inodes);
}

/// What an id may take of one kind: bytes, or inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// May be passed until `until`; 0: none.
    pub soft: u64,
    /// Is never passed; 0: none.
    pub hard: u64,
    /// When the grace time of the soft limit ends, in seconds since 1970; 0: it is not passed.
    pub until: u64,
}

impl Limit {
    /// Whether `amount` may be had now.
    pub fn allows(self, amount: u64, now: u64) -> bool {
        let past_soft = self.soft > 0 && amount > self.soft;
        let over = past_soft && self.until > NOT_BEGUN && now >= self.until;
        !over && (self.hard == 0 || amount <= self.hard)
    }

    /// The lower of the two, where there is one.
    pub fn lowest(self) -> Option<u64> {
        [self.soft, self.hard].into_iter().filter(|limit| *limit > 0).min()
    }

    /// When the grace time ends once `amount` is taken.
    fn until(self, amount: u64, now: u64, grace: u64) -> u64 {
        match self.soft > 0 && amount > self.soft {
            true if self.until > NOT_BEGUN => self.until,
            true => now + grace,
            false if self.until == NOT_BEGUN => NOT_BEGUN,
            false => 0,
        }
    }
}

/// The limits of an entry: of bytes, and of inodes.
pub fn limits(block: &[u8], index: usize) -> [Limit; 2] {
    let entry = entry(block, index);
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
    let (soft, hard) = (bytes(entry.bsoftlimit.get()), bytes(entry.bhardlimit.get()));
    let of_bytes = Limit { soft, hard, until: entry.btime.get() };
    let (soft, hard) = (entry.isoftlimit.get(), entry.ihardlimit.get());
    [of_bytes, Limit { soft, hard, until: entry.itime.get() }]
}

/// Begins and ends grace times, after the usage changed.
pub fn set_times(block: &mut [u8], index: usize, now: u64, graces: [u64; 2]) {
    let ([of_bytes, of_inodes], (bytes, inodes)) = (limits(block, index), usage(block, index));
    let entry: &mut EntryRecord = record::at_mut(block, place(index));
    entry.btime.set(of_bytes.until(bytes, now, graces[0]));
    entry.itime.set(of_inodes.until(inodes, now, graces[1]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_lists_are_where_they_are_said_to_be() {
        let mut block = vec![0; BLOCK_BYTES];
        Head { next: 5, before: 6, count: 2 }.encode(&mut block);
        begin(&mut block, 0, 0);
        begin(&mut block, 1, 1000);
        set_usage(&mut block, 1, (4096, 7));
        assert_eq!(ids(&block).collect::<Vec<_>>(), [(0, 0), (1000, 1)]);
        assert_eq!((usage(&block, 0), usage(&block, 1)), ((0, 0), (4096, 7)));
        assert_eq!(unused(&block), Some(2));
        assert_eq!(Head::decode(&block), Head { next: 5, before: 6, count: 2 });
        assert_eq!(ENTRIES, 14);
        let slots = [0, 1, 2, 3].map(|level| slot(0x0102_03ff, level) / 4);
        assert_eq!(slots, [1, 2, 3, 255]);
    }

    #[test]
    fn limits_are_kept_and_grace_begins_and_ends() {
        let mut block = vec![0; BLOCK_BYTES];
        begin(&mut block, 3, 7);
        let entry: &mut EntryRecord = record::at_mut(&mut block, place(3));
        entry.bsoftlimit.set(4);
        entry.bhardlimit.set(8);
        entry.isoftlimit.set(2);
        let [bytes, inodes] = limits(&block, 3);
        assert_eq!((bytes.soft, bytes.hard, inodes.soft, inodes.hard), (4096, 8192, 2, 0));
        assert!(bytes.allows(8192, 50) && !bytes.allows(8193, 50) && inodes.allows(u64::MAX, 50));
        set_usage(&mut block, 3, (4096, 3));
        set_times(&mut block, 3, 50, [100, 10]);
        let [bytes, inodes] = limits(&block, 3);
        assert_eq!((bytes.until, inodes.until), (0, 60));
        assert!(inodes.allows(3, 59) && !inodes.allows(3, 60) && inodes.allows(2, 60));
        set_usage(&mut block, 3, (4097, 4));
        set_times(&mut block, 3, 55, [100, 10]);
        assert_eq!(limits(&block, 3).map(|limit| limit.until), [155, 60]);
        set_usage(&mut block, 3, (0, 2));
        set_times(&mut block, 3, 300, [100, 10]);
        assert_eq!(limits(&block, 3).map(|limit| limit.until), [0, 0]);
    }

    #[test]
    fn headers_of_others_are_refused() {
        let mut block = vec![0; BLOCK_BYTES];
        let header: &mut HeaderRecord = record::at_mut(&mut block, 0);
        header.magic.set(MAGICS[1]);
        header.version.set(VERSION);
        Info { blocks: 6, free_block: 0, free_entry: 5 }.encode(&mut block);
        assert!(Info::decode(&block, QuotaKind::Group).is_some());
        assert!(Info::decode(&block, QuotaKind::User).is_none());
        Info { blocks: 6, free_block: 0, free_entry: 6 }.encode(&mut block);
        assert!(Info::decode(&block, QuotaKind::Group).is_none());
    }
}
