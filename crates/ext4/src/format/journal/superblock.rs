//! The journal's superblock.

use std::mem::offset_of;

use zerocopy::{FromZeros, IntoBytes};

use super::record::{HeaderRecord, SuperblockRecord};
use super::{BlockType, Codec, MAGIC, Sums, UUID_BYTES};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::checksum::crc;

bitflags::bitflags! {
    /// `s_feature_incompat` of a journal.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct JournalIncompat: u32 {
        /// Revoke records.
        const REVOKE = 1;
        /// 64-bit block numbers.
        const SIXTY_FOUR_BIT = 2;
        /// Commit without waiting for the log body.
        const ASYNC_COMMIT = 4;
        /// 16-bit checksum per tag.
        const CSUM_V2 = 8;
        /// 32-bit checksum per tag.
        const CSUM_V3 = 0x10;
        /// An area for fast commits at the end.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }

    /// `s_feature_compat` of a journal.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct JournalCompat: u32 {
        /// A checksum over the whole transaction (v1).
        const CHECKSUM = 1;
        const _ = !0;
    }
}

const INCOMPAT_KNOWN: JournalIncompat = JournalIncompat::REVOKE
    .union(JournalIncompat::SIXTY_FOUR_BIT)
    .union(JournalIncompat::ASYNC_COMMIT)
    .union(JournalIncompat::CSUM_V2)
    .union(JournalIncompat::CSUM_V3)
    .union(JournalIncompat::FAST_COMMIT);
/// Either kind of checksums of blocks.
const CSUMS: JournalIncompat = JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3);

/// Blocks for fast commits where the superblock does not say how many.
const FAST_BLOCKS: u32 = 256;

/// Blocks of the journal that there is none of: a transaction then holds no more than the blocks
/// that are set aside for homes without room.
const UNLOGGED_BLOCKS: u32 = 1024;
/// Where the fields begin that the first version of the superblock has not.
const V2_FIELDS: usize = offset_of!(SuperblockRecord, feature_compat);
/// The kind of checksum.
const CRC32C: u8 = 4;
fn corrupt(field: &'static str) -> Error {
    Corrupt::new(Structure::JournalSuperblock, 0, field).into()
}

/// The journal's superblock: its bytes, checked, with accessors.
#[derive(Clone)]
pub struct JournalSuperblock {
    raw: Box<SuperblockRecord>,
}

impl JournalSuperblock {
    /// Reads and checks the first block of a journal of `blocks` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Incompatible`].
    pub fn decode(block: &[u8], block_bytes: u32, blocks: u32) -> Result<Self> {
        let raw =
            polylane_base::record::get::<SuperblockRecord>(block, 0).ok_or(corrupt("size"))?;
        let superblock = JournalSuperblock { raw: Box::new(*raw) };
        let is_known = superblock.is_version(BlockType::SuperV1) || superblock.is_v2();
        if raw.header.magic.get() != MAGIC || !is_known {
            return Err(corrupt("magic number or type"));
        }
        if raw.blocksize.get() != block_bytes {
            return Err(corrupt("s_blocksize"));
        }
        let unknown = superblock.incompat() & !INCOMPAT_KNOWN;
        if !unknown.is_empty() {
            let unknown = unknown.bits();
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
        let ro_compat = self.raw.feature_ro_compat.get();
        if self.is_v2() && ro_compat != 0 {
            return Err(Error::Incompatible(vec![format!("journal ro_compat ({ro_compat:#x})")]));
        }
        let compat = JournalCompat::from_bits_retain(self.raw.feature_compat.get());
        let has_two = self.incompat().contains(CSUMS) || compat.contains(JournalCompat::CHECKSUM);
        match self.has_checksums() {
            true if has_two => Err(corrupt("two kinds of checksums")),
            true if self.raw.checksum_type != CRC32C => Err(corrupt("s_checksum_type")),
            true if self.raw.checksum.get() != self.checksum() => Err(corrupt("checksum")),
            _ => Ok(()),
        }
    }

    fn is_version(&self, version: BlockType) -> bool {
        self.raw.header.blocktype.get() == version as u32
    }

    fn is_v2(&self) -> bool {
        self.is_version(BlockType::SuperV2)
    }

    /// What stands for the superblock of a journal that there is none of: it says how large a
    /// transaction may be.
    pub fn of_none(block_bytes: u32) -> Self {
        let mut raw = SuperblockRecord::new_zeroed();
        raw.header = HeaderRecord::new(BlockType::SuperV2, 0);
        raw.blocksize.set(block_bytes);
        raw.maxlen.set(UNLOGGED_BLOCKS);
        raw.first.set(1);
        JournalSuperblock { raw: Box::new(raw) }
    }

    /// That of a new journal of so many blocks, its own among them. It is empty.
    pub fn fresh(block_bytes: u32, blocks: u32, uuid: [u8; UUID_BYTES]) -> Self {
        let mut superblock = JournalSuperblock::of_none(block_bytes);
        superblock.raw.maxlen.set(blocks);
        superblock.raw.sequence.set(1);
        superblock.raw.nr_users.set(1);
        superblock.raw.uuid = uuid;
        superblock
    }

    /// The bytes for the disk, with a fresh checksum.
    pub fn encode(&self) -> [u8; 1024] {
        let mut record = *self.raw;
        if self.has_checksums() {
            record.checksum.set(self.checksum());
        }
        zerocopy::transmute!(record)
    }

    fn checksum(&self) -> u32 {
        let mut record = *self.raw;
        record.checksum.set(0);
        crc(!0, record.as_bytes())
    }

    /// Incompatible features in use; a version 1 superblock has none.
    pub fn incompat(&self) -> JournalIncompat {
        let bits = if self.is_v2() { self.raw.feature_incompat.get() } else { 0 };
        JournalIncompat::from_bits_retain(bits)
    }

    /// Whether per-block checksums are in use.
    pub fn has_checksums(&self) -> bool {
        self.incompat().intersects(CSUMS)
    }

    /// Whether each transaction has one checksum, in its commit block (v1). A journal that has
    /// those of another version as well is refused.
    pub fn has_transaction_checksums(&self) -> bool {
        let compat = JournalCompat::from_bits_retain(self.raw.feature_compat.get());
        self.is_v2() && compat.contains(JournalCompat::CHECKSUM)
    }

    /// Whether commit blocks were written without waiting for what is before them in the log.
    pub fn has_async_commits(&self) -> bool {
        self.incompat().contains(JournalIncompat::ASYNC_COMMIT)
    }

    /// Makes the journal, whose log is empty, one that we write: of the second version, with
    /// checksums v1 and asynchronous commits. No reader takes a journal that has the checksums of
    /// another version, too.
    pub fn take_over(&mut self) {
        if self.is_version(BlockType::SuperV1) {
            self.raw.as_mut_bytes()[V2_FIELDS..].fill(0);
            self.raw.header.blocktype.set(BlockType::SuperV2 as u32);
            self.raw.nr_users.set(1);
        }
        let incompat = self.incompat() & !CSUMS
            | JournalIncompat::SIXTY_FOUR_BIT
            | JournalIncompat::ASYNC_COMMIT
            | JournalIncompat::REVOKE;
        let raw = &mut *self.raw;
        raw.feature_compat.set(raw.feature_compat.get() | JournalCompat::CHECKSUM.bits());
        raw.feature_incompat.set(incompat.bits());
        // The kind of the checksums that there are no more, and the superblock's own.
        raw.checksum_type = 0;
        raw.checksum.set(0);
    }

    /// First block of the log area, counted from the journal's start.
    pub fn first(&self) -> u32 {
        self.raw.first.get()
    }

    /// One past the last block of the log area.
    pub fn end(&self) -> u32 {
        self.total().saturating_sub(self.fast_blocks())
    }

    /// One past the last block of the journal.
    pub fn total(&self) -> u32 {
        self.raw.maxlen.get()
    }

    /// Blocks behind the log area that are kept for fast commits.
    pub fn fast_blocks(&self) -> u32 {
        let has_area = self.incompat().contains(JournalIncompat::FAST_COMMIT);
        match (has_area, self.raw.num_fc_blks.get()) {
            (false, _) => 0,
            (true, 0) => FAST_BLOCKS,
            (true, count) => count,
        }
    }

    /// Sequence of the first transaction in the log, or of the next one when the log is empty.
    pub fn sequence(&self) -> u32 {
        self.raw.sequence.get()
    }

    /// Where the first transaction begins; 0: the log is empty.
    pub fn start(&self) -> u32 {
        self.raw.start.get()
    }

    /// Stores where the log begins, and its sequence.
    pub fn set_tail(&mut self, sequence: u32, start: u32) {
        self.raw.sequence.set(sequence);
        self.raw.start.set(start);
    }

    /// An error that stopped the journal, 0 for none.
    pub fn errno(&self) -> i32 {
        self.raw.errno.get() as i32
    }

    /// Stores the error.
    pub fn set_errno(&mut self, errno: i32) {
        self.raw.errno.set(errno as u32);
    }

    /// The journal's UUID.
    pub fn uuid(&self) -> [u8; UUID_BYTES] {
        self.raw.uuid
    }

    /// Shape of this journal's blocks.
    pub fn codec(&self) -> Codec {
        let incompat = self.incompat();
        Codec {
            seed: crc(!0, &self.uuid()),
            uuid: self.uuid(),
            wide: incompat.contains(JournalIncompat::SIXTY_FOUR_BIT),
            sums: match () {
                () if incompat.contains(JournalIncompat::CSUM_V3) => Sums::V3,
                () if incompat.contains(JournalIncompat::CSUM_V2) => Sums::V2,
                () if self.has_transaction_checksums() => Sums::V1,
                () => Sums::None,
            },
        }
    }
}
