//! Pollution-defensive caching: journals recognised by their block addresses, kept out of the
//! cache.
//!
//! A journal is written in order, in a circle, each piece followed by a flush, and read only after
//! a crash. Caching it evicts data that will be read and copies bytes that will not. A rule watches
//! the requests of **one volume** and answers for each write how the cache shall take it:
//! [`Admission`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`paper`] | the rule of Lee et al., SYSTOR'16: large sequential loops; write-only volumes |
//! | [`solo`] | the default: streams that have flush epochs to themselves; regions remembered |
//! | `flows` | the bounded table of sequential write flows behind both |
//! | [`score`] | recall and precision of a rule on requests whose truth is known |
//!
//! Pure code: time is an argument, the result is a decision; no locks, no I/O. State is bounded per
//! volume ([`solo::FLOW_COUNT_MAX`], [`solo::marks::REGION_COUNT_MAX`]). `docs/design/pdc.md` has
//! the reasons and the measurements.

mod flows;
pub mod paper;
pub mod score;
pub mod solo;

use polylane_base::record;
use zerocopy::big_endian::U32;

pub use paper::Paper;
pub use solo::FlushSolo;

/// How the cache shall take a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// A journal's: the cache does not keep it; cached copies of the range are dropped.
    Bypass,
    /// Appended and flushed like a log, but not known to be a journal: the cold end of the cache.
    Cold,
    /// Everything else.
    Normal,
}

/// A request as a rule sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write {
        /// Durable at completion.
        fua: bool,
        /// What the data begins with.
        opening: Opening,
    },
    /// The range is given up, or zeroed without data.
    Discard,
    /// Completed writes are made durable; has no range.
    Flush,
}

/// What the data of a write begins with, as far as a rule cares. A guest may say anything: the
/// worst that it can do to itself is to lose its own cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opening {
    /// Nothing that is known, or it was not looked at.
    #[default]
    Unknown,
    /// The header of a record of XFS's log.
    XfsRecord,
    /// A block of jbd2's log that begins a transaction, or goes on with one: what blocks follow, or
    /// what blocks are revoked.
    JournalBlocks,
    /// A commit record of jbd2's log.
    JournalCommit,
    /// The superblock of jbd2's log, right behind which the log begins.
    JournalSuperblock,
    /// The first block of ext4's fast commits after a whole commit.
    FastCommit,
}

polylane_base::record! {
    /// The beginning of data, as big-endian words.
    struct Head: 12 {
        0x00 magic: U32,
        0x04 kind: U32,
        0x08 last: U32,
    }
}

impl Opening {
    /// All that are known, with their names in recordings.
    const NAMED: [(Opening, &'static str); 5] = [
        (Opening::XfsRecord, "xfs"),
        (Opening::JournalBlocks, "jbd2"),
        (Opening::JournalCommit, "jbd2-commit"),
        (Opening::JournalSuperblock, "jbd2-superblock"),
        (Opening::FastCommit, "fast-commit"),
    ];

    /// `XLOG_HEADER_MAGIC_NUM`, big-endian, at the beginning of `struct xlog_rec_header`; after it
    /// the cycle, and the version of the log, 1 or 2.
    const XFS_RECORD: u32 = 0xfeed_babe;

    /// `JBD2_MAGIC_NUMBER`, big-endian, at the beginning of `journal_header_t`; after it the kind
    /// of block (1 descriptor, 2 commit, 3 and 4 superblock, 5 revocations) and the transaction's
    /// number.
    const JBD2_BLOCK: u32 = 0xc03b_3998;

    /// `struct ext4_fc_tl`, little-endian (9, 8), of `EXT4_FC_TAG_HEAD` with its length; after it
    /// `fc_features`, none of which is defined, and the transaction's number.
    const FAST_COMMIT: u32 = 0x0900_0800;

    /// Looks at data, twelve bytes of it.
    pub fn of(data: &[u8]) -> Opening {
        let Some(head) = record::get::<Head>(data, 0) else { return Opening::Unknown };
        match (head.magic.get(), head.kind.get(), head.last.get()) {
            (Self::XFS_RECORD, _, 1 | 2) => Opening::XfsRecord,
            (Self::JBD2_BLOCK, 1 | 5, _) => Opening::JournalBlocks,
            (Self::JBD2_BLOCK, 2, _) => Opening::JournalCommit,
            (Self::JBD2_BLOCK, 3 | 4, _) => Opening::JournalSuperblock,
            (Self::FAST_COMMIT, 0, 1..) => Opening::FastCommit,
            _ => Opening::Unknown,
        }
    }

    /// Data that begins so, for replays: [`Opening::of`] finds it there.
    pub fn example(self) -> [u8; 12] {
        let block = |magic: u32, kind: u32, last: u32| {
            zerocopy::transmute!(Head { magic: magic.into(), kind: kind.into(), last: last.into() })
        };
        match self {
            Opening::Unknown => [0; 12],
            Opening::XfsRecord => block(Self::XFS_RECORD, 1, 2),
            Opening::JournalBlocks => block(Self::JBD2_BLOCK, 1, 1),
            Opening::JournalCommit => block(Self::JBD2_BLOCK, 2, 1),
            Opening::JournalSuperblock => block(Self::JBD2_BLOCK, 4, 1),
            Opening::FastCommit => block(Self::FAST_COMMIT, 0, 1),
        }
    }

    /// Its name in recordings; empty where nothing is known.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|named| named.0 == self).map_or("", |named| named.1)
    }

    /// What a recording says; [`Opening::Unknown`] for every other text.
    pub fn named(name: &str) -> Opening {
        Self::NAMED.iter().find(|named| named.1 == name).map_or(Opening::Unknown, |named| named.0)
    }
}

/// A range of the volume taken for a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte.
    pub first: u64,
    /// Past the last byte.
    pub end: u64,
}

impl Region {
    /// The range of `length` bytes at `offset`, cut off at the end of the address space.
    pub fn at(offset: u64, length: u64) -> Self {
        Region { first: offset, end: offset.saturating_add(length) }
    }

    /// Whether `offset` lies inside.
    pub fn contains(&self, offset: u64) -> bool {
        self.first <= offset && offset < self.end
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.first < other.end && other.first < self.end
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.first
    }
}

/// A rule that tells journals from data, for one volume.
pub trait Rule {
    /// Notes one request, in the order of arrival, and says how to take it; the answer means
    /// something for writes only. `now_us` is in microseconds and never falls.
    fn observe(&mut self, now_us: u64, access: Access, range: Region) -> Admission;

    /// The ranges now taken for journals, in no order.
    fn regions(&self) -> Vec<Region>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opening_is_found_in_its_example_and_by_its_name() {
        for (opening, name) in Opening::NAMED {
            assert_eq!(Opening::of(&opening.example()), opening);
            assert_eq!((opening.name(), Opening::named(name)), (name, opening));
        }
        assert_eq!(Opening::of(&Opening::Unknown.example()), Opening::Unknown);
        assert_eq!(Opening::of(&[]), Opening::Unknown);
    }
}
