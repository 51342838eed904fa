//! The flush-solo rule: a journal is the stream that has flush epochs to itself.
//!
//! A file system that commits writes its log, flushes, writes the commit record, flushes. So
//! between two flushes there is often nothing but the log's next piece, and that piece starts
//! exactly where the last one ended. Data that is fsynced shares its epochs with the log or jumps
//! about.
//!
//! An *epoch* is what lies between two flushes and writes something. An epoch is *solo* for a flow
//! that wrote all of it. A flow that has solo epochs and a journal's signature ([`stream`]) is hot:
//! its writes bypass the cache. Its range is remembered as a region ([`marks`]), so that the next
//! lap is hot from its first write. A flow that is merely appended and flushed goes to the cold
//! end.
//!
//! # Invariants
//!
//! - A hot flow that writes lies in an active region, or is cooled.
//! - `candidates` names live flows with solo epochs, at most [`CANDIDATE_COUNT_MAX`].

pub mod marks;
pub mod stream;

use marks::{Advance, Marks};
use stream::Stream;

use super::flows::{Flows, Slot};
use super::{Access, Admission, Opening, Region, Rule};

/// Flows remembered per volume.
pub const FLOW_COUNT_MAX: u16 = 512;

/// Flows watched for reads and for coming round.
pub const CANDIDATE_COUNT_MAX: usize = 64;

/// Flows begun last, among which is the one that overtook its predecessor.
const RECENT_COUNT: usize = 16;

/// The block of most file systems, and so of their logs' superblocks.
const BLOCK_BYTES: u64 = 4096;

/// Sizes of blocks that are written again when a record ends inside them.
const TAIL_BYTES: [u64; 4] = [4096, 512, 1024, 2048];

/// Who wrote in the epoch that is not over yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    None,
    One(Slot),
    Many,
}

/// A flow watched by its first address, which may be gone from the table.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Watch {
    first: u64,
    slot: Slot,
}

/// The default detector for one volume.
pub struct FlushSolo {
    flows: Flows<Stream>,
    marks: Marks,
    candidates: Vec<Watch>,
    recent: [Watch; RECENT_COUNT],
    recent_at: usize,
    epoch: u64,
    writers: Writers,
    written: bool,
    /// A commit of jbd2's was seen: one of its logs is on the volume.
    committed: bool,
}

impl Default for FlushSolo {
    fn default() -> Self {
        FlushSolo {
            flows: Flows::new(FLOW_COUNT_MAX),
            marks: Marks::default(),
            candidates: Vec::with_capacity(CANDIDATE_COUNT_MAX),
            recent: [Watch { first: u64::MAX, slot: 0 }; RECENT_COUNT],
            recent_at: 0,
            epoch: 1,
            writers: Writers::None,
            written: false,
            committed: false,
        }
    }
}

impl FlushSolo {
    /// A detector that knows regions from the volume's last use. Reads before its first write do
    /// not count against them: a guest that recovers reads its journal.
    pub fn with_regions(known: &[Region]) -> Self {
        let mut detector = FlushSolo::default();
        let sound = known.iter().filter(|region| region.first < region.end);
        sound.for_each(|region| detector.marks.remember(*region));
        detector
    }

    fn write(&mut self, range: Region, fua: bool, opening: Opening) -> Admission {
        if range.first >= range.end {
            return Admission::Normal;
        }
        self.written = true;
        let slot = self.follow(range, opening);
        self.open(slot, range, opening);
        self.writers = match self.writers {
            Writers::None => Writers::One(slot),
            Writers::One(other) if other == slot => Writers::One(slot),
            _ => Writers::Many,
        };
        if fua && self.writers == Writers::One(slot) {
            self.end_epoch();
        }
        self.admit(slot, range)
    }

    /// Tells a flow what the data of its last write begins with.
    fn open(&mut self, slot: Slot, range: Region, opening: Opening) {
        let stream = self.flows.get_mut(slot);
        match opening {
            Opening::Unknown => {}
            Opening::XfsRecord => stream.open_record(),
            Opening::JournalSuperblock => stream.open_superblock(range),
            Opening::JournalBlocks => {
                stream.open_transaction(range);
                if !stream.hot && self.follows_superblock(slot, range) {
                    self.committed = true;
                    self.flows.get_mut(slot).hot = true;
                    self.marks.add(range, range.end);
                }
            }
            Opening::FastCommit => stream.open_fast_commits(),
            Opening::JournalCommit => {
                if stream.commit(range) {
                    self.committed = true;
                    self.prove(slot);
                }
            }
        }
    }

    /// Whether a write, which is now a part of `slot`, begins where a superblock ends that was
    /// written alone. A copy of a log writes what lies before the superblock, too.
    fn follows_superblock(&self, slot: Slot, range: Region) -> bool {
        let ends_there = |slot: &Slot| self.flows.get(*slot).next == range.first;
        let other = self.flows.find(range.first).filter(ends_there);
        let other = other.is_some_and(|other| self.flows.get(other).is_log_superblock());
        other || self.flows.get(slot).continues_superblock(range)
    }

    /// The flow that a write belongs to, extended by it; a new one if it continues none. Fast
    /// commits begin where the log beside them ends, and over again after a single block.
    fn follow(&mut self, range: Region, opening: Opening) -> Slot {
        let epoch = self.epoch;
        let begins = opening == Opening::FastCommit || self.rewrites_superblock(range, opening);
        if let Some(slot) = self.continued(range).filter(|_| !begins) {
            let (grown, mut paired) = (self.flows.get(slot).is_grown(), false);
            self.flows.touch(slot, grown, |stream| paired = stream.append(range, epoch));
            if paired {
                self.prove(slot);
            }
            return self.join_overtaken(slot, range.end);
        }
        let rewound = self.rewound(range);
        if let Some(slot) = rewound.filter(|_| opening != Opening::FastCommit) {
            let grown = self.flows.get(slot).is_grown();
            self.flows.touch(slot, grown, |stream| stream.rewind(range, epoch));
            return slot;
        }
        let old = self.came_round(range);
        let mut begun = match old {
            Some(slot) => {
                let (log, circle) = (self.committed(slot), *self.flows.get(slot));
                if circle.is_block_by_block() {
                    log.into_iter().for_each(|log| self.flows.get_mut(log).end_circle());
                }
                circle.again(range, epoch, log.is_some())
            }
            None => Stream::begin(range, epoch),
        };
        begun.hot = self.marks.resumes(range);
        old.into_iter().for_each(|slot| self.flows.remove(slot));
        let slot = self.flows.insert(begun);
        if old.is_some() {
            self.watch(Watch { first: range.first, slot });
        }
        self.recent[self.recent_at % RECENT_COUNT] = Watch { first: range.first, slot };
        self.recent_at += 1;
        self.join_overtaken(slot, range.end)
    }

    /// The flow that this write continues: a hot one first, which may leave out a little. A
    /// superblock is continued by none. Data may fill the volume up to the start of a log; the
    /// log's next lap does not continue it.
    fn continued(&self, range: Region) -> Option<Slot> {
        let exact = self.flows.find(range.first);
        let hot = |slot: &Slot| self.flows.get(*slot).hot;
        if let Some(slot) = exact.filter(hot).or_else(|| self.skipped(range)) {
            return Some(slot).filter(|slot| !self.flows.get(*slot).is_in_place());
        }
        let own = |slot: &Slot| {
            !self.flows.get(*slot).is_in_place() && !self.marks.starts_at(range.first)
        };
        exact.filter(own)
    }

    /// The hot flow that goes on here after a small gap.
    fn skipped(&self, range: Region) -> Option<Slot> {
        let slot = self.flows.find(self.marks.gap_before(range)?)?;
        self.flows.get(slot).hot.then_some(slot)
    }

    /// A flow whose last block this write begins with.
    fn rewound(&self, range: Region) -> Option<Slot> {
        let ends = TAIL_BYTES.iter().filter_map(|bytes| range.first.checked_add(*bytes));
        let slot = ends.filter(|end| *end <= range.end).find_map(|end| self.flows.find(end))?;
        (self.flows.get(slot).first <= range.first).then_some(slot)
    }

    /// Whether it is a log's superblock that was written alone before, whatever ends at its
    /// beginning.
    fn rewrites_superblock(&self, range: Region, opening: Opening) -> bool {
        let old = self.rewound(range).filter(|_| opening == Opening::JournalSuperblock);
        old.is_some_and(|slot| self.flows.get(slot).is_log_superblock())
    }

    /// The watched flow whose next lap begins with this write.
    fn came_round(&self, range: Region) -> Option<Slot> {
        let round =
            |watch: &&Watch| self.is_live(**watch) && self.flows.get(watch.slot).comes_round(range);
        self.candidates.iter().rev().find(round).map(|watch| watch.slot)
    }

    /// The flow other than `slot` that has just written a commit.
    fn committed(&self, slot: Slot) -> Option<Slot> {
        let logs = self.candidates.iter().filter(|watch| watch.slot != slot);
        let mut live = logs.filter(|watch| self.is_live(**watch));
        live.find(|watch| self.flows.get(watch.slot).has_committed(self.epoch)).map(|log| log.slot)
    }

    /// A flow that began ahead of this one's end, because requests came out of order, is the same.
    fn join_overtaken(&mut self, slot: Slot, end: u64) -> Slot {
        let Some(watch) = self.recent.iter().find(|w| w.first == end).copied() else { return slot };
        if watch.slot == slot || !self.is_live(watch) {
            return slot;
        }
        let later = *self.flows.get(watch.slot);
        if !later.is_new(self.epoch) {
            return slot;
        }
        self.flows.remove(watch.slot);
        self.flows.touch(slot, true, |stream| stream.join(&later));
        if self.writers == Writers::One(watch.slot) {
            self.writers = Writers::One(slot);
        }
        slot
    }

    fn is_live(&self, watch: Watch) -> bool {
        self.flows.is_live(watch.slot) && self.flows.get(watch.slot).first == watch.first
    }

    fn admit(&mut self, slot: Slot, range: Region) -> Admission {
        let (stream, inside) = (self.flows.get(slot), self.marks.holds(range));
        if !stream.hot && !inside && !self.marks.enters(range) {
            return if stream.is_append_like() { Admission::Cold } else { Admission::Normal };
        }
        if stream.is_in_place() {
            // The superblock at the start of a log: part of it, but not its head.
            return if stream.hot || inside { Admission::Bypass } else { Admission::Normal };
        }
        let written = stream.range();
        let lost = match stream.is_refuted() {
            true => Some(written),
            false => self.marks.bypass(written, range.bytes()),
        };
        if let Some(region) = lost {
            self.discard(region);
            return Admission::Normal;
        }
        let advance = self.marks.advance(written);
        if let Advance::NewLap(end) = advance {
            // What is written there from now on is not the log's.
            self.flows.find(end).filter(|old| *old != slot).into_iter().for_each(|old| {
                self.flows.remove(old);
            });
        }
        // Each lap of fast commits reaches as far as it does.
        let grows = advance == Advance::Outside && self.flows.get(slot).is_fast_commits();
        if grows {
            self.marks.add(written, written.end);
        }
        let hot = grows || advance != Advance::Outside;
        self.flows.get_mut(slot).hot = hot;
        if hot { Admission::Bypass } else { Admission::Normal }
    }

    fn end_epoch(&mut self) {
        if let Writers::One(slot) = self.writers {
            self.flows.get_mut(slot).end_solo();
            self.prove(slot);
        }
        if self.writers != Writers::None {
            self.epoch += 1;
            self.writers = Writers::None;
        }
    }

    /// A flow had an epoch to itself, or wrote a commit: perhaps it is a journal.
    fn prove(&mut self, slot: Slot) {
        let stream = *self.flows.get(slot);
        if stream.hot {
            self.marks.prove(stream.proven);
        } else if stream.is_journal(self.has_superblock(&stream), self.committed) {
            self.flows.get_mut(slot).hot = true;
            if !stream.is_fast_commits() {
                self.forget_open_ends(stream.journal_range());
            }
            let found = stream.journal_range();
            self.marks.add(Region { first: found.first, end: stream.journal_end() }, found.end);
        }
        if stream.is_candidate() {
            self.watch(Watch { first: stream.first, slot });
        }
    }

    /// Whether a block right before a flow is rewritten in epochs of its own.
    fn has_superblock(&self, stream: &Stream) -> bool {
        let ends = [stream.first, stream.first.saturating_add(BLOCK_BYTES)];
        let slots = ends.iter().filter_map(|end| self.flows.find(*end));
        slots.map(|slot| self.flows.get(slot)).any(Stream::is_superblock)
    }

    /// A new journal is perhaps the next lap of one whose end is not known yet: what is written
    /// there from now on proves itself anew.
    fn forget_open_ends(&mut self, found: Region) {
        let flows = &self.flows;
        let ends = self.marks.open_ends(found).filter_map(|end| flows.find(end));
        let ends: Vec<Slot> = ends.collect();
        ends.into_iter().for_each(|slot| self.flows.remove(slot));
    }

    fn watch(&mut self, watch: Watch) {
        let (flows, same) = (&self.flows, |other: &Watch| other.first == watch.first);
        let live =
            |other: &Watch| flows.is_live(other.slot) && flows.get(other.slot).first == other.first;
        self.candidates.retain(|other| !same(other) && live(other));
        if self.candidates.len() == CANDIDATE_COUNT_MAX {
            self.candidates.remove(0);
        }
        self.candidates.push(watch);
    }

    fn read(&mut self, range: Region) {
        for at in 0..self.candidates.len() {
            let watch = self.candidates[at];
            if self.is_live(watch) && self.flows.get(watch.slot).range().overlaps(&range) {
                self.flows.get_mut(watch.slot).read = true;
            }
        }
        if self.written
            && let Some(region) = self.marks.read(range)
        {
            self.cool(region);
        }
    }

    fn discard(&mut self, range: Region) {
        while let Some(region) = self.marks.forget(range) {
            self.cool(region);
        }
    }

    /// The flows of a region prove themselves anew.
    fn cool(&mut self, region: Region) {
        let inside =
            |(slot, stream): (Slot, &Stream)| stream.range().overlaps(&region).then_some(slot);
        let slots: Vec<Slot> = self.flows.iter().filter_map(inside).collect();
        slots.into_iter().for_each(|slot| self.flows.remove(slot));
        self.writers = Writers::Many;
    }
}

impl Rule for FlushSolo {
    fn observe(&mut self, _now_us: u64, access: Access, range: Region) -> Admission {
        match access {
            Access::Write { fua, opening } => return self.write(range, fua, opening),
            Access::Read => self.read(range),
            Access::Discard => self.discard(range),
            Access::Flush => self.end_epoch(),
        }
        Admission::Normal
    }

    fn regions(&self) -> Vec<Region> {
        self.marks.regions().collect()
    }
}
