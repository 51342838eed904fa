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

mod record;
mod superblock;

use std::mem::{offset_of, size_of};

use polylane_base::record::{at, at_mut, slice, slice_mut};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use self::record::{CommitRecord, HeaderRecord, RevokeRecord, TagRecord, TagV3Record};
pub use self::superblock::{JournalCompat, JournalIncompat, JournalSuperblock};
use super::DeviceBlock;
use super::checksum::{crc, crc32_be};
use crate::error::Result;

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

bitflags::bitflags! {
    /// Flags of a tag.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct TagFlags: u16 {
        const ESCAPE = 1;
        const SAME_UUID = 2;
        const DELETED = 4;
        const LAST = 8;
        const _ = !0;
    }
}

/// Bytes of a block header.
pub const HEADER_BYTES: usize = size_of::<HeaderRecord>();
const TAIL_BYTES: usize = size_of::<U32>();
const UUID_BYTES: usize = 16;

/// Bytes that lie before a commit block's checksum.
const COMMIT_HEAD: usize = offset_of!(CommitRecord, chksum);
/// Bytes before a revoke block's entries.
const REVOKE_HEADER: usize = size_of::<RevokeRecord>();
/// Kind and length of the checksum of a transaction.
const CRC32: (u8, u8) = (1, 4);

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
        let high = if self.wide { size_of::<U32>() } else { 0 };
        let numbers = size_of::<TagRecord>() + high;
        match self.sums {
            Sums::V3 => size_of::<TagV3Record>(),
            // jbd2 counts the checksum once more than it stores it.
            Sums::V2 => numbers + size_of::<U16>(),
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
        (block_bytes - REVOKE_HEADER - self.tail()) / self.revoke_bytes()
    }

    fn revoke_bytes(&self) -> usize {
        if self.wide { size_of::<U64>() } else { size_of::<U32>() }
    }

    /// The type and sequence of a block, if it has the magic number.
    pub fn header(block: &[u8]) -> Option<(u32, u32)> {
        let header: &HeaderRecord = at(block, 0);
        let is_ours = header.magic.get() == MAGIC;
        is_ours.then(|| (header.blocktype.get(), header.sequence.get()))
    }

    fn tail_sum(&self, block: &[u8]) -> u32 {
        let at = block.len() - TAIL_BYTES;
        crc(crc(self.seed, &block[..at]), &[0; TAIL_BYTES])
    }

    fn put_tail(&self, block: &mut [u8]) {
        if self.sums.of_blocks() {
            let sum = self.tail_sum(block);
            let end = block.len();
            at_mut::<U32>(block, end - TAIL_BYTES).set(sum);
        }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right.
    pub fn tail_ok(&self, block: &[u8]) -> bool {
        let stored = at::<U32>(block, block.len() - TAIL_BYTES);
        !self.sums.of_blocks() || *stored == self.tail_sum(block)
    }

    fn data_sum(&self, sequence: u32, logged: &[u8]) -> u32 {
        crc(crc(self.seed, U32::new(sequence).as_bytes()), logged)
    }

    /// Prepares a block for the log (escaping it where needed) and makes its tag.
    pub fn log(&self, home: DeviceBlock, sequence: u32, block: &mut [u8]) -> Tag {
        let first = at_mut::<U32>(block, 0);
        let escaped = *first == MAGIC;
        if escaped {
            first.set(0);
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
            at_mut::<U32>(logged, 0).set(MAGIC);
        }
    }

    /// Writes a descriptor block for `tags`, at most [`Codec::tags_per_block`] of them, at least
    /// one.
    pub fn put_descriptor(&self, block: &mut [u8], sequence: u32, tags: &[Tag]) {
        block.fill(0);
        *at_mut(block, 0) = HeaderRecord::new(BlockType::Descriptor, sequence);
        let mut place = HEADER_BYTES;
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = TagFlags::empty();
            flags.set(TagFlags::SAME_UUID, index > 0);
            flags.set(TagFlags::ESCAPE, tag.escaped);
            flags.set(TagFlags::LAST, index + 1 == tags.len());
            self.put_tag(&mut block[place..], tag, flags);
            place += self.tag_bytes();
            if index == 0 {
                block[place..place + UUID_BYTES].copy_from_slice(&self.uuid);
                place += UUID_BYTES;
            }
        }
        self.put_tail(block);
    }

    fn put_tag(&self, bytes: &mut [u8], tag: &Tag, flags: TagFlags) {
        let blocknr = (tag.home.0 as u32).into();
        let high = ((tag.home.0 >> 32) as u32).into();
        if self.sums == Sums::V3 {
            let (flags, checksum) = (u32::from(flags.bits()).into(), tag.checksum.into());
            *at_mut(bytes, 0) = TagV3Record { blocknr, flags, blocknr_high: high, checksum };
            return;
        }
        let (checksum, flags) = ((tag.checksum as u16).into(), flags.bits().into());
        *at_mut(bytes, 0) = TagRecord { blocknr, checksum, flags };
        if self.wide {
            *at_mut(bytes, size_of::<TagRecord>()) = high;
        }
    }

    /// Reads the tags of a descriptor block. They end with the one that says so, or with the block:
    /// debugfs leaves full ones without a last tag.
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let end = block.len() - self.tail();
        let (mut place, mut tags) = (HEADER_BYTES, Vec::new());
        while place + self.tag_bytes() <= end {
            let (tag, flags) = self.tag(&block[place..]);
            tags.push(tag);
            place += self.tag_bytes();
            if !flags.contains(TagFlags::SAME_UUID) {
                place += UUID_BYTES;
            }
            if flags.contains(TagFlags::LAST) {
                break;
            }
        }
        tags
    }

    fn tag(&self, bytes: &[u8]) -> (Tag, TagFlags) {
        let (low, high, flags, checksum) = if self.sums == Sums::V3 {
            let tag: &TagV3Record = at(bytes, 0);
            (tag.blocknr, tag.blocknr_high, tag.flags.get() as u16, tag.checksum.get())
        } else {
            let tag: &TagRecord = at(bytes, 0);
            let high = if self.wide { *at(bytes, size_of::<TagRecord>()) } else { U32::ZERO };
            (tag.blocknr, high, tag.flags.get(), tag.checksum.get().into())
        };
        let (flags, high) =
            (TagFlags::from_bits_retain(flags), if self.wide { high.get() } else { 0 });
        let home = DeviceBlock(u64::from(low.get()) | u64::from(high) << 32);
        (Tag { home, escaped: flags.contains(TagFlags::ESCAPE), checksum }, flags)
    }

    /// Writes a revoke block, at most [`Codec::revokes_per_block`] entries.
    pub fn put_revoke(&self, block: &mut [u8], sequence: u32, revoked: &[DeviceBlock]) {
        block.fill(0);
        let header = HeaderRecord::new(BlockType::Revoke, sequence);
        let count = REVOKE_HEADER + revoked.len() * self.revoke_bytes();
        *at_mut(block, 0) = RevokeRecord { header, count: (count as u32).into() };
        if self.wide {
            let entries = slice_mut::<U64>(block, REVOKE_HEADER, revoked.len());
            entries.iter_mut().zip(revoked).for_each(|(entry, home)| entry.set(home.0));
        } else {
            let entries = slice_mut::<U32>(block, REVOKE_HEADER, revoked.len());
            entries.iter_mut().zip(revoked).for_each(|(entry, home)| entry.set(home.0 as u32));
        }
        self.put_tail(block);
    }

    /// Reads a revoke block.
    ///
    /// # Errors
    /// Its length is impossible.
    pub fn revoked(&self, block: &[u8]) -> Result<Vec<DeviceBlock>, &'static str> {
        let used = at::<RevokeRecord>(block, 0).count.get() as usize;
        if used < REVOKE_HEADER || used > block.len() - self.tail() {
            return Err("r_count");
        }
        let count = (used - REVOKE_HEADER) / self.revoke_bytes();
        if self.wide {
            let homes = slice::<U64>(block, REVOKE_HEADER, count).iter();
            return Ok(homes.map(|home| DeviceBlock(home.get())).collect());
        }
        let homes = slice::<U32>(block, REVOKE_HEADER, count).iter();
        Ok(homes.map(|home| DeviceBlock(home.get().into())).collect())
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
        let mut commit = CommitRecord::new_zeroed();
        commit.header = HeaderRecord::new(BlockType::Commit, sequence);
        (commit.commit_sec, commit.commit_nsec) = (sec.into(), nsec.into());
        if self.sums == Sums::V1 {
            (commit.chksum_type, commit.chksum_size) = CRC32;
            commit.chksum[0].set(total.0);
        }
        *at_mut(block, 0) = commit;
        if self.sums.of_blocks() {
            let sum = crc(self.seed, block);
            at_mut::<CommitRecord>(block, 0).chksum[0].set(sum);
        }
    }

    /// Whether the checksum that a commit block has of itself (v2, v3) is right. Behind its fields
    /// there is nothing: where only the first sector of it was written when the power went, it
    /// counts, as for Linux.
    pub fn commit_ok(&self, block: &[u8]) -> bool {
        let (fields, rest) = block.split_at(size_of::<CommitRecord>());
        let zero = [0; size_of::<U32>()];
        let head = crc(crc(self.seed, &fields[..COMMIT_HEAD]), &zero);
        let fields = crc(head, &fields[COMMIT_HEAD + zero.len()..]);
        let stored = at::<CommitRecord>(block, 0).chksum[0];
        let sum = |rest: &[u8]| stored == crc(fields, rest);
        !self.sums.of_blocks() || sum(rest) || sum(&vec![0; rest.len()])
    }

    /// Whether a commit block with checksum v1 ends a transaction of the blocks that `sum` is of.
    pub fn transaction_ok(block: &[u8], sum: TransactionSum) -> bool {
        let commit: &CommitRecord = at(block, 0);
        let kind = (commit.chksum_type, commit.chksum_size);
        let stored = commit.chksum[0].get();
        kind == CRC32 && stored == sum.0 || kind == (0, 0) && stored == 0
    }

    /// When a transaction was committed, in seconds.
    pub fn commit_seconds(block: &[u8]) -> u64 {
        at::<CommitRecord>(block, 0).commit_sec.get()
    }
}

impl HeaderRecord {
    fn new(kind: BlockType, sequence: u32) -> Self {
        let (blocktype, sequence) = ((kind as u32).into(), sequence.into());
        HeaderRecord { magic: MAGIC.into(), blocktype, sequence }
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
            at_mut::<U32>(&mut block, 0).set(MAGIC);
            let original = block.clone();
            let tag = codec.log(DeviceBlock(1), 9, &mut block);
            let first = *at::<U32>(&block, 0);
            assert!(tag.escaped && first == 0 && codec.logged_ok(&tag, 9, &block));
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
            at_mut::<CommitRecord>(&mut block, 0).commit_sec ^= U64::new(1);
            assert!(!codec.sums.of_blocks() || !codec.commit_ok(&block));
        }
    }
}
