//! jbd2 on disk: the journal's superblock, descriptors with their tags, revokes and commits.
//!
//! Everything is big-endian. With checksum v3 a tag is 16 bytes:
//!
//! | offset | field |
//! |---|---|
//! | 0 | block number, low |
//! | 4 | flags: ESCAPE 1, SAME_UUID 2, DELETED 4, LAST 8 |
//! | 8 | block number, high |
//! | 12 | crc32c(journal seed, sequence, block as logged) |
//!
//! Without it, tags end where block numbers do: 12 bytes with 64-bit ones, 8 without. Their flags
//! are at 6, and at 4 checksum v2 has the lower half of that checksum. With v2 each tag takes two
//! bytes more, which hold nothing.
//!
//! The first tag of a descriptor is followed by the journal's UUID. A logged block that begins with
//! the journal's magic number has it zeroed (ESCAPE). Descriptor and revoke blocks end in a
//! checksum over the block with that field zero.
//!
//! With checksum v1 a commit block has one sum for its transaction: the kind (1) at 12, its length
//! (4) at 13, and at 16 the crc32 ([`crc32_be`], from ~0) over every descriptor block and every
//! block as logged, in the order of the log, without revokes. All three zero: it has none.

use super::DeviceBlock;
use super::checksum::{crc, crc32_be};
use crate::error::{Corrupt, Error, Result, Structure};

/// First word of every journal block that is not a logged one.
pub const MAGIC: u32 = 0xc03b_3998;

/// What a journal block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum BlockType {
    /// Tags for the logged blocks that follow.
    Descriptor = 1,
    /// The end of a transaction.
    Commit = 2,
    /// Superblock, first version.
    SuperV1 = 3,
    /// Superblock.
    SuperV2 = 4,
    /// Blocks that older transactions must not be replayed to.
    Revoke = 5,
}

/// Incompatible feature: revoke records.
pub const REVOKE: u32 = 1;
/// Incompatible feature: 64-bit block numbers.
pub const SIXTY_FOUR_BIT: u32 = 2;
/// Incompatible feature: commit without waiting for the log body.
pub const ASYNC_COMMIT: u32 = 4;
/// Incompatible feature: 16-bit checksum per tag.
pub const CSUM_V2: u32 = 8;
/// Incompatible feature: 32-bit checksum per tag.
pub const CSUM_V3: u32 = 0x10;
/// Incompatible feature: an area for fast commits at the end.
pub const FAST_COMMIT: u32 = 0x20;
/// Compatible feature: a checksum over the whole transaction (v1).
pub const COMPAT_CHECKSUM: u32 = 1;

const INCOMPAT_KNOWN: u32 =
    REVOKE | SIXTY_FOUR_BIT | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;

/// Blocks for fast commits where the superblock does not say how many.
const FAST_BLOCKS: u32 = 256;

/// Bytes of a block header.
pub const HEADER_BYTES: usize = 12;
const TAIL_BYTES: usize = 4;
/// Blocks of the journal that there is none of: as many as mke2fs gives a small image.
const UNLOGGED_BLOCKS: u32 = 4096;
/// Bytes of a commit block's fields.
const COMMIT_BYTES: usize = 0x3c;
const UUID_BYTES: usize = 16;

/// Where the fields begin that the first version of the superblock has not.
const V2_FIELDS: usize = 0x24;
/// The kind of checksum.
const CRC32C: u8 = 4;
/// Kind and length of the checksum of a transaction.
const CRC32: [u8; 2] = [1, 4];

const TAG_ESCAPE: u32 = 1;
const TAG_SAME_UUID: u32 = 2;
const TAG_LAST: u32 = 8;

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn put_be32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put_be64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn corrupt(field: &'static str) -> Error {
    Corrupt::new(Structure::JournalSuperblock, 0, field).into()
}

/// The journal's superblock: its bytes, checked, with accessors.
#[derive(Clone)]
pub struct JournalSuperblock {
    raw: Box<[u8; 1024]>,
}

impl JournalSuperblock {
    /// Reads and checks the first block of a journal of `blocks` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Incompatible`].
    pub fn decode(block: &[u8], block_bytes: u32, blocks: u32) -> Result<Self> {
        let raw: [u8; 1024] =
            block.get(..1024).and_then(|b| b.try_into().ok()).ok_or(corrupt("size"))?;
        let superblock = JournalSuperblock { raw: Box::new(raw) };
        match (be32(&raw, 0), be32(&raw, 4)) {
            (MAGIC, 3 | 4) => {}
            _ => return Err(corrupt("magic number or type")),
        }
        if be32(&raw, 0x0c) != block_bytes {
            return Err(corrupt("s_blocksize"));
        }
        if superblock.incompat() & !INCOMPAT_KNOWN != 0 {
            let unknown = superblock.incompat() & !INCOMPAT_KNOWN;
            return Err(Error::Incompatible(vec![format!("journal unknown ({unknown:#x})")]));
        }
        superblock.check_sums()?;
        let (first, end) = (superblock.first(), superblock.end());
        match () {
            () if superblock.total() > blocks || end < 4 => Err(corrupt("s_maxlen")),
            () if first == 0 || first >= end => Err(corrupt("s_first")),
            () if superblock.start() >= end => Err(corrupt("s_start")),
            () if superblock.start() != 0 && superblock.start() < first => Err(corrupt("s_start")),
            () => Ok(superblock),
        }
    }

    /// Refuses what speaks of checksums as no writer does, and a superblock whose own is wrong.
    fn check_sums(&self) -> Result<()> {
        let raw = &*self.raw;
        if be32(raw, 4) == BlockType::SuperV2 as u32 && be32(raw, 0x2c) != 0 {
            return Err(Error::Incompatible(vec![format!(
                "journal ro_compat ({:#x})",
                be32(raw, 0x2c)
            )]));
        }
        let both = self.incompat() & (CSUM_V2 | CSUM_V3) == CSUM_V2 | CSUM_V3;
        match self.has_checksums() {
            true if both => Err(corrupt("two kinds of checksums")),
            true if raw[0x50] != CRC32C => Err(corrupt("s_checksum_type")),
            true if be32(raw, 0xfc) != self.checksum() => Err(corrupt("checksum")),
            _ => Ok(()),
        }
    }

    /// What stands for the superblock of a journal that there is none of: it says how large a
    /// transaction may be.
    pub fn of_none(block_bytes: u32) -> Self {
        let mut raw = Box::new([0; 1024]);
        let fields = [(0, MAGIC), (4, 4), (0x0c, block_bytes), (0x10, UNLOGGED_BLOCKS), (0x14, 1)];
        fields.into_iter().for_each(|(at, value)| put_be32(&mut *raw, at, value));
        JournalSuperblock { raw }
    }

    /// The bytes for the disk, with a fresh checksum.
    pub fn encode(&self) -> [u8; 1024] {
        let mut bytes = *self.raw;
        if self.has_checksums() {
            put_be32(&mut bytes, 0xfc, self.checksum());
        }
        bytes
    }

    fn checksum(&self) -> u32 {
        let mut bytes = *self.raw;
        put_be32(&mut bytes, 0xfc, 0);
        crc(!0, &bytes)
    }

    /// Incompatible features in use; a version 1 superblock has none.
    pub fn incompat(&self) -> u32 {
        if be32(&*self.raw, 4) == 4 { be32(&*self.raw, 0x28) } else { 0 }
    }

    /// Whether per-block checksums are in use.
    pub fn has_checksums(&self) -> bool {
        self.incompat() & (CSUM_V2 | CSUM_V3) != 0
    }

    /// Whether each transaction has one checksum, in its commit block (v1). In the same journal as
    /// other ones it counts for nothing.
    pub fn has_transaction_checksums(&self) -> bool {
        let compat = if be32(&*self.raw, 4) == 4 { be32(&*self.raw, 0x24) } else { 0 };
        compat & COMPAT_CHECKSUM != 0 && !self.has_checksums()
    }

    /// Whether commit blocks were written without waiting for what is before them in the log.
    pub fn has_async_commits(&self) -> bool {
        self.incompat() & ASYNC_COMMIT != 0
    }

    /// Makes the journal, whose log is empty, one that we write: of the second version, with
    /// checksums v1 and asynchronous commits. No reader takes a journal that has the checksums of
    /// another version, too.
    pub fn take_over(&mut self) {
        let raw = &mut *self.raw;
        if be32(raw, 4) == BlockType::SuperV1 as u32 {
            put_be32(raw, 4, BlockType::SuperV2 as u32);
            raw[V2_FIELDS..].fill(0);
            put_be32(raw, 0x40, 1);
        }
        let compat = be32(raw, 0x24);
        put_be32(raw, 0x24, compat | COMPAT_CHECKSUM);
        let incompat = be32(raw, 0x28) & !(CSUM_V2 | CSUM_V3);
        put_be32(raw, 0x28, incompat | SIXTY_FOUR_BIT | ASYNC_COMMIT | REVOKE);
        // The kind of the checksums that there are no more, and the superblock's own.
        raw[0x50] = 0;
        put_be32(raw, 0xfc, 0);
    }

    /// First block of the log area, counted from the journal's start.
    pub fn first(&self) -> u32 {
        be32(&*self.raw, 0x14)
    }

    /// One past the last block of the log area.
    pub fn end(&self) -> u32 {
        self.total().saturating_sub(self.fast_blocks())
    }

    /// One past the last block of the journal.
    pub fn total(&self) -> u32 {
        be32(&*self.raw, 0x10)
    }

    /// Blocks behind the log area that are kept for fast commits.
    pub fn fast_blocks(&self) -> u32 {
        match (self.incompat() & FAST_COMMIT != 0, be32(&*self.raw, 0x54)) {
            (false, _) => 0,
            (true, 0) => FAST_BLOCKS,
            (true, count) => count,
        }
    }

    /// Sequence of the first transaction in the log, or of the next one when the log is empty.
    pub fn sequence(&self) -> u32 {
        be32(&*self.raw, 0x18)
    }

    /// Where the first transaction begins; 0: the log is empty.
    pub fn start(&self) -> u32 {
        be32(&*self.raw, 0x1c)
    }

    /// Stores where the log begins, and its sequence.
    pub fn set_tail(&mut self, sequence: u32, start: u32) {
        put_be32(&mut *self.raw, 0x18, sequence);
        put_be32(&mut *self.raw, 0x1c, start);
    }

    /// An error that stopped the journal, 0 for none.
    pub fn errno(&self) -> i32 {
        be32(&*self.raw, 0x20) as i32
    }

    /// Stores the error.
    pub fn set_errno(&mut self, errno: i32) {
        put_be32(&mut *self.raw, 0x20, errno as u32);
    }

    /// The journal's UUID.
    pub fn uuid(&self) -> [u8; UUID_BYTES] {
        std::array::from_fn(|index| self.raw[0x30 + index])
    }

    /// Shape of this journal's blocks.
    pub fn codec(&self) -> Codec {
        let incompat = self.incompat();
        Codec {
            seed: crc(!0, &self.uuid()),
            uuid: self.uuid(),
            wide: incompat & SIXTY_FOUR_BIT != 0,
            sums: match () {
                () if incompat & CSUM_V3 != 0 => Sums::V3,
                () if incompat & CSUM_V2 != 0 => Sums::V2,
                () if self.has_transaction_checksums() => Sums::V1,
                () => Sums::None,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sums {
    None,
    /// One for each transaction, in its commit block.
    V1,
    V2,
    V3,
}

impl Sums {
    /// Whether descriptors, revoke blocks and logged blocks have one each.
    fn of_blocks(self) -> bool {
        matches!(self, Sums::V2 | Sums::V3)
    }
}

/// How one journal shapes its blocks.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    seed: u32,
    uuid: [u8; UUID_BYTES],
    wide: bool,
    sums: Sums,
}

/// A tag: where a logged block belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Home of the block.
    pub home: DeviceBlock,
    /// Its first word was the magic number and is stored as zero.
    pub escaped: bool,
    checksum: u32,
}

/// The checksum v1 of a transaction: of its descriptors and logged blocks so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionSum(u32);

impl Default for TransactionSum {
    fn default() -> Self {
        TransactionSum(!0)
    }
}

impl TransactionSum {
    /// Takes the next block of the log in: a descriptor, or a block as logged.
    pub fn add(&mut self, block: &[u8]) {
        self.0 = crc32_be(self.0, block);
    }
}

impl Codec {
    fn tag_bytes(&self) -> usize {
        let numbers = if self.wide { 12 } else { 8 };
        match self.sums {
            Sums::V3 => 16,
            // jbd2 counts the checksum once more than it stores it.
            Sums::V2 => numbers + 2,
            Sums::None | Sums::V1 => numbers,
        }
    }

    fn tail(&self) -> usize {
        if self.sums.of_blocks() { TAIL_BYTES } else { 0 }
    }

    /// Most tags in a descriptor block.
    pub fn tags_per_block(&self, block_bytes: usize) -> usize {
        (block_bytes - HEADER_BYTES - UUID_BYTES - self.tail()) / self.tag_bytes()
    }

    /// Most revoked blocks in a revoke block.
    pub fn revokes_per_block(&self, block_bytes: usize) -> usize {
        (block_bytes - 16 - self.tail()) / self.revoke_bytes()
    }

    fn revoke_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// The type and sequence of a block, if it has the magic number.
    pub fn header(block: &[u8]) -> Option<(u32, u32)> {
        (be32(block, 0) == MAGIC).then(|| (be32(block, 4), be32(block, 8)))
    }

    fn put_header(block: &mut [u8], kind: BlockType, sequence: u32) {
        put_be32(block, 0, MAGIC);
        put_be32(block, 4, kind as u32);
        put_be32(block, 8, sequence);
    }

    fn tail_sum(&self, block: &[u8]) -> u32 {
        let at = block.len() - TAIL_BYTES;
        crc(crc(self.seed, &block[..at]), &[0; TAIL_BYTES])
    }

    fn put_tail(&self, block: &mut [u8]) {
        if self.sums.of_blocks() {
            let sum = self.tail_sum(block);
            let at = block.len() - TAIL_BYTES;
            put_be32(block, at, sum);
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right.
    pub fn tail_ok(&self, block: &[u8]) -> bool {
        !self.sums.of_blocks() || be32(block, block.len() - TAIL_BYTES) == self.tail_sum(block)
    }

    fn data_sum(&self, sequence: u32, logged: &[u8]) -> u32 {
        crc(crc(self.seed, &sequence.to_be_bytes()), logged)
    }

    /// Prepares a block for the log (escaping it where needed) and makes its tag.
    pub fn log(&self, home: DeviceBlock, sequence: u32, block: &mut [u8]) -> Tag {
        let escaped = be32(block, 0) == MAGIC;
        if escaped {
            put_be32(block, 0, 0);
        }
        let checksum = match self.sums {
            Sums::None | Sums::V1 => 0,
            Sums::V2 => self.data_sum(sequence, block) & 0xffff,
            Sums::V3 => self.data_sum(sequence, block),
        };
        Tag { home, escaped, checksum }
    }

    /// Whether a block read from the log is the one that was tagged.
    pub fn logged_ok(&self, tag: &Tag, sequence: u32, logged: &[u8]) -> bool {
        match self.sums {
            Sums::None | Sums::V1 => true,
            Sums::V2 => self.data_sum(sequence, logged) & 0xffff == tag.checksum,
            Sums::V3 => self.data_sum(sequence, logged) == tag.checksum,
        }
    }

    /// Undoes the escaping of a block read from the log.
    pub fn restore(&self, tag: &Tag, logged: &mut [u8]) {
        if tag.escaped {
            put_be32(logged, 0, MAGIC);
        }
    }

    /// Writes a descriptor block for `tags`, at most [`Codec::tags_per_block`] of them, at least
    /// one.
    pub fn put_descriptor(&self, block: &mut [u8], sequence: u32, tags: &[Tag]) {
        block.fill(0);
        Self::put_header(block, BlockType::Descriptor, sequence);
        let mut at = HEADER_BYTES;
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = if index > 0 { TAG_SAME_UUID } else { 0 };
            flags |= if tag.escaped { TAG_ESCAPE } else { 0 };
            flags |= if index + 1 == tags.len() { TAG_LAST } else { 0 };
            self.put_tag(&mut block[at..], tag, flags);
            at += self.tag_bytes();
            if index == 0 {
                block[at..at + UUID_BYTES].copy_from_slice(&self.uuid);
                at += UUID_BYTES;
            }
        }
        self.put_tail(block);
    }

    fn put_tag(&self, at: &mut [u8], tag: &Tag, flags: u32) {
        put_be32(at, 0, tag.home.0 as u32);
        let high = (tag.home.0 >> 32) as u32;
        match self.sums {
            Sums::V3 => {
                put_be32(at, 4, flags);
                put_be32(at, 8, high);
                put_be32(at, 12, tag.checksum);
            }
            _ => {
                put_be32(at, 4, (tag.checksum & 0xffff) << 16 | flags);
                if self.wide {
                    put_be32(at, 8, high);
                }
            }
        }
    }

    /// Reads the tags of a descriptor block. They end with the one that says so, or with the block:
    /// debugfs leaves full ones without a last tag.
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let end = block.len() - self.tail();
        let (mut at, mut tags) = (HEADER_BYTES, Vec::new());
        while at + self.tag_bytes() <= end {
            let (tag, flags) = self.tag(&block[at..]);
            tags.push(tag);
            at += self.tag_bytes();
            if flags & TAG_SAME_UUID == 0 {
                at += UUID_BYTES;
            }
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    fn tag(&self, at: &[u8]) -> (Tag, u32) {
        let low = u64::from(be32(at, 0));
        let (flags, checksum) = match self.sums {
            Sums::V3 => (be32(at, 4), be32(at, 12)),
            _ => (be32(at, 4) & 0xffff, be32(at, 4) >> 16),
        };
        let has_high = self.sums == Sums::V3 || self.wide;
        let high = if has_high && self.wide { u64::from(be32(at, 8)) } else { 0 };
        let home = DeviceBlock(low | high << 32);
        (Tag { home, escaped: flags & TAG_ESCAPE != 0, checksum }, flags)
    }

    /// Writes a revoke block, at most [`Codec::revokes_per_block`] entries.
    pub fn put_revoke(&self, block: &mut [u8], sequence: u32, revoked: &[DeviceBlock]) {
        block.fill(0);
        Self::put_header(block, BlockType::Revoke, sequence);
        put_be32(block, 12, (16 + revoked.len() * self.revoke_bytes()) as u32);
        for (index, home) in revoked.iter().enumerate() {
            match self.wide {
                true => put_be64(block, 16 + index * 8, home.0),
                false => put_be32(block, 16 + index * 4, home.0 as u32),
            }
        }
        self.put_tail(block);
    }

    /// Reads a revoke block.
    ///
    /// # Errors
    /// Its length is impossible.
    pub fn revoked(&self, block: &[u8]) -> Result<Vec<DeviceBlock>, &'static str> {
        let used = be32(block, 12) as usize;
        if used < 16 || used > block.len() - self.tail() {
            return Err("r_count");
        }
        let entries = block[16..used].chunks_exact(self.revoke_bytes());
        let number = |entry: &[u8]| entry.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Ok(entries.map(|entry| DeviceBlock(number(entry))).collect())
    }

    /// Writes the commit block of a transaction of the blocks that `total` is of; that counts for
    /// nothing unless the journal has checksums v1.
    pub fn put_commit(
        &self,
        block: &mut [u8],
        sequence: u32,
        (sec, nsec): (u64, u32),
        total: TransactionSum,
    ) {
        block.fill(0);
        Self::put_header(block, BlockType::Commit, sequence);
        put_be64(block, 0x30, sec);
        put_be32(block, 0x38, nsec);
        match self.sums {
            Sums::None => {}
            Sums::V1 => {
                block[12..14].copy_from_slice(&CRC32);
                put_be32(block, 0x10, total.0);
            }
            Sums::V2 | Sums::V3 => {
                let sum = crc(self.seed, block);
                put_be32(block, 0x10, sum);
            }
        }
    }

    /// Whether the checksum that a commit block has of itself (v2, v3) is right. Behind its fields
    /// there is nothing: where only the first sector of it was written when the power went, it
    /// counts, as for Linux.
    pub fn commit_ok(&self, block: &[u8]) -> bool {
        let head = crc(crc(self.seed, &block[..0x10]), &[0; 4]);
        let (fields, rest) = block[0x14..].split_at(COMMIT_BYTES - 0x14);
        let sum = |rest: &[u8]| crc(crc(head, fields), rest) == be32(block, 0x10);
        !self.sums.of_blocks() || sum(rest) || sum(&vec![0; rest.len()])
    }

    /// Whether a commit block with checksum v1 ends a transaction of the blocks that `sum` is of.
    pub fn transaction_ok(block: &[u8], sum: TransactionSum) -> bool {
        let (kind, stored) = (&block[12..14], be32(block, 0x10));
        kind == CRC32 && stored == sum.0 || kind == [0, 0] && stored == 0
    }

    /// When a transaction was committed, in seconds.
    pub fn commit_seconds(block: &[u8]) -> u64 {
        u64::from(be32(block, 0x30)) << 32 | u64::from(be32(block, 0x34))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codecs() -> Vec<Codec> {
        let sums = [Sums::None, Sums::V1, Sums::V2, Sums::V3];
        let codec = |sums, wide| Codec { seed: 77, uuid: [9; 16], wide, sums };
        sums.into_iter().flat_map(|sums| [codec(sums, false), codec(sums, true)]).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "12 MB of checksums")]
    fn descriptors_come_back_full() {
        for codec in codecs() {
            let count = codec.tags_per_block(4096);
            let mut logged = vec![0xabu8; 4096];
            let tag = |n| codec.log(DeviceBlock(5 + n as u64), 3, &mut logged);
            let tags: Vec<Tag> = (0..count).map(tag).collect();
            let mut block = vec![0; 4096];
            codec.put_descriptor(&mut block, 3, &tags);
            assert!(codec.tail_ok(&block), "{codec:?}");
            let back = codec.tags(&block);
            assert_eq!(back.len(), tags.len());
            assert!(back.iter().zip(&tags).all(|(a, b)| a.home == b.home), "{codec:?}");
            assert!(back.iter().all(|tag| codec.logged_ok(tag, 3, &logged)), "{codec:?}");
        }
        let v3 = Codec { seed: 1, uuid: [0; 16], wide: true, sums: Sums::V3 };
        assert_eq!((v3.tags_per_block(4096), v3.revokes_per_block(4096)), (254, 509));
    }

    #[test]
    fn blocks_that_look_like_ours_are_escaped() {
        for codec in codecs() {
            let mut block = vec![1u8; 4096];
            put_be32(&mut block, 0, MAGIC);
            let original = block.clone();
            let tag = codec.log(DeviceBlock(1), 9, &mut block);
            assert!(tag.escaped && be32(&block, 0) == 0 && codec.logged_ok(&tag, 9, &block));
            codec.restore(&tag, &mut block);
            assert_eq!(block, original);
        }
    }

    #[test]
    fn revokes_and_commits_come_back() {
        for codec in codecs() {
            let mut block = vec![0; 4096];
            let homes: Vec<_> =
                (1..=codec.revokes_per_block(4096) as u64).map(DeviceBlock).collect();
            codec.put_revoke(&mut block, 4, &homes);
            assert!(codec.tail_ok(&block));
            assert_eq!(codec.revoked(&block).expect("whole"), homes);
            let mut total = TransactionSum::default();
            total.add(b"a descriptor and what follows it");
            codec.put_commit(&mut block, 4, (1 << 33, 5), total);
            let of_total = codec.sums == Sums::V1;
            assert_eq!(Codec::transaction_ok(&block, total), of_total || codec.sums == Sums::None);
            assert!(!of_total || !Codec::transaction_ok(&block, TransactionSum::default()));
            assert!(codec.commit_ok(&block));
            assert_eq!(
                (Codec::header(&block), Codec::commit_seconds(&block)),
                (Some((2, 4)), 1 << 33)
            );
            block[600..].fill(7);
            assert!(codec.commit_ok(&block), "its first sector is new");
            block[0x34] ^= 1;
            assert!(!codec.sums.of_blocks() || !codec.commit_ok(&block));
        }
    }
}
