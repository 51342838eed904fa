//! The flush-solo rule: a journal is the stream that has flush epochs to itself.
//!
//! A file system that commits writes its log, flushes, writes the commit record, flushes. So between
//! two flushes there is often nothing but the log's next piece, and that piece starts exactly where
//! the last one ended. Data that is fsynced shares its epochs with the log or jumps about.
//!
//! An *epoch* is what lies between two flushes and writes something. An epoch is *solo* for a flow
//! that wrote all of it. A flow is hot, and its writes bypass the cache, when it has at least
//! [`EPOCH_COUNT_MIN`] epochs, as many solo epochs, those being [`SOLO_PERCENT_MIN`] of its epochs,
//! writes [`EPOCH_BYTES_MEAN_MAX`] per epoch on average, and was not read. Its range is remembered
//! as a region, so that the next lap is hot from its first write.
//!
//! # Invariants
//!
//! - Every hot flow lies in a marked region.
//! - Regions do not overlap.

use super::flows::{Flow, Flows, Slot};
use super::{Access, Admission, Region, Rule};

/// Flows remembered per volume.
pub const FLOW_COUNT_MAX: u16 = 512;

/// Regions remembered per volume: a journal for each of a few partitions.
pub const REGION_COUNT_MAX: usize = 16;

/// Epochs, and solo epochs, before a flow can be hot.
pub const EPOCH_COUNT_MIN: u32 = 8;

/// The part of a hot flow's epochs that are solo, at least.
pub const SOLO_PERCENT_MIN: u32 = 30;

/// A flow that writes more than this per epoch is a stream of data.
pub const EPOCH_BYTES_MEAN_MAX: u64 = 256 << 10;

/// A hot flow on its first lap that writes more than this per epoch is a stream of data after all.
pub const EPOCH_BYTES_MEAN_HOT_MAX: u64 = 512 << 10;

/// A new lap starts at most this far behind the start of its region: logs begin with a superblock
/// or a descriptor that is not rewritten each time.
pub const LAP_SLACK_BYTES: u64 = 64 << 10;

/// Inside a region, a write this near the head of the log is the log's, out of order.
pub const REORDER_BYTES: u64 = 256 << 10;

/// Reads of a region that are borne before it is a journal no longer: probes of `blkid` and the
/// like.
pub const READ_COUNT_MAX: u32 = 2;

#[derive(Default)]
struct Stream {
    first: u64,
    next: u64,
    /// The last epoch that it wrote in.
    epoch: u64,
    epochs: u32,
    solo: u32,
    hot: bool,
    read: bool,
}

impl Flow for Stream {
    fn next(&self) -> u64 {
        self.next
    }
}

impl Stream {
    fn range(&self) -> Region {
        Region { first: self.first, end: self.next }
    }

    fn bytes_per_epoch(&self) -> u64 {
        (self.next - self.first) / u64::from(self.epochs.max(1))
    }

    /// Appended piece by piece with flushes between: a log of some kind.
    fn is_append_like(&self) -> bool {
        let small = self.bytes_per_epoch() <= EPOCH_BYTES_MEAN_MAX;
        self.epochs >= EPOCH_COUNT_MIN && small && !self.read
    }

    fn is_journal_like(&self) -> bool {
        let (solo, epochs) = (u64::from(self.solo), u64::from(self.epochs));
        let often = solo * 100 >= epochs * u64::from(SOLO_PERCENT_MIN);
        self.is_append_like() && self.solo >= EPOCH_COUNT_MIN && often
    }
}

/// A remembered range.
struct Mark {
    region: Region,
    /// Whether it is taken for a journal now; a read suspends it until a flow inside proves itself.
    active: bool,
    /// Where the log's last write ended.
    head: u64,
    /// Times the log came round, so that the region is known to be a circle.
    laps: u32,
    reads: u32,
}

/// Who wrote in the epoch that is not over yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    None,
    One(Slot),
    Many,
}

/// The default detector for one volume.
pub struct FlushSolo {
    flows: Flows<Stream>,
    marks: Vec<Mark>,
    epoch: u64,
    writers: Writers,
    written: bool,
}

impl Default for FlushSolo {
    fn default() -> Self {
        FlushSolo {
            flows: Flows::new(FLOW_COUNT_MAX),
            marks: Vec::with_capacity(REGION_COUNT_MAX),
            epoch: 1,
            writers: Writers::None,
            written: false,
        }
    }
}

impl FlushSolo {
    /// A detector that knows regions from the volume's last use. Reads before its first write do
    /// not count against them: a guest that recovers reads its journal.
    pub fn with_regions(known: &[Region]) -> Self {
        let mut detector = FlushSolo::default();
        known.iter().take(REGION_COUNT_MAX).for_each(|region| detector.remember(*region));
        detector
    }

    fn write(&mut self, range: Region, fua: bool) -> Admission {
        self.written = true;
        let slot = match self.flows.find(range.first) {
            Some(slot) => self.extend(slot, range),
            None => self.start(range),
        };
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

    fn extend(&mut self, slot: Slot, range: Region) -> Slot {
        let epoch = self.epoch;
        let grown = self.flows.get(slot).epochs >= 2;
        self.flows.touch(slot, grown, |stream| {
            stream.next = range.end;
            stream.epochs += u32::from(stream.epoch != epoch);
            stream.epoch = epoch;
        });
        slot
    }

    fn start(&mut self, range: Region) -> Slot {
        let hot = self.resumes(range);
        self.flows.insert(Stream {
            first: range.first,
            next: range.end,
            epoch: self.epoch,
            epochs: 1,
            hot,
            ..Stream::default()
        })
    }

    /// Whether a write that continues no flow is a known log's: a new lap, or out of order.
    fn resumes(&mut self, range: Region) -> bool {
        let inside = |mark: &&mut Mark| mark.active && mark.region.contains(range.first);
        let Some(mark) = self.marks.iter_mut().find(inside) else { return false };
        let lap = range.first - mark.region.first <= LAP_SLACK_BYTES;
        mark.laps += u32::from(lap);
        lap || range.first.abs_diff(mark.head) <= REORDER_BYTES
    }

    fn admit(&mut self, slot: Slot, range: Region) -> Admission {
        if !self.flows.get(slot).hot && self.runs_into_mark(range) {
            self.flows.get_mut(slot).hot = true;
        }
        let stream = self.flows.get(slot);
        if !stream.hot {
            return if stream.is_append_like() { Admission::Cold } else { Admission::Normal };
        }
        let (written, too_fast) =
            (stream.range(), stream.bytes_per_epoch() > EPOCH_BYTES_MEAN_HOT_MAX);
        let Some(at) = self.marks.iter().position(|mark| mark.region.overlaps(&written)) else {
            self.flows.get_mut(slot).hot = false;
            return Admission::Normal;
        };
        if too_fast && self.marks[at].laps == 0 {
            self.forget(at);
            return Admission::Normal;
        }
        self.marks[at].head = range.end;
        self.grow(at, range.end);
        Admission::Bypass
    }

    /// Whether a write starts at the start of a region: its flow was the log before the region.
    fn runs_into_mark(&self, range: Region) -> bool {
        self.marks.iter().any(|mark| mark.active && mark.region.first == range.first)
    }

    /// The log went on to `end`; regions it reaches are the same log's.
    fn grow(&mut self, at: usize, end: u64) {
        if end <= self.marks[at].region.end {
            return;
        }
        self.marks[at].region.end = end;
        let grown = self.marks[at].region;
        if self.marks.iter().filter(|mark| mark.region.overlaps(&grown)).count() > 1 {
            self.remember(grown);
        }
    }

    fn end_epoch(&mut self) {
        if let Writers::One(slot) = self.writers {
            let stream = self.flows.get_mut(slot);
            stream.solo += 1;
            let found = stream.range();
            if !stream.hot && stream.is_journal_like() {
                stream.hot = true;
                self.remember(found);
            }
        }
        if self.writers != Writers::None {
            self.epoch += 1;
            self.writers = Writers::None;
        }
    }

    /// Marks a range, together with what is known of it.
    fn remember(&mut self, found: Region) {
        let mut mark = Mark { region: found, active: true, head: found.end, laps: 0, reads: 0 };
        self.marks.retain(|known| {
            let same = known.region.overlaps(&found);
            if same {
                mark.region.first = mark.region.first.min(known.region.first);
                mark.region.end = mark.region.end.max(known.region.end);
                mark.laps += known.laps;
            }
            !same
        });
        if self.marks.len() == REGION_COUNT_MAX {
            self.forget(0);
        }
        self.marks.push(mark);
    }

    fn read(&mut self, range: Region) {
        if !self.written {
            return;
        }
        for at in 0..self.marks.len() {
            let mark = &mut self.marks[at];
            if mark.region.overlaps(&range) {
                mark.reads += 1;
                if mark.reads > READ_COUNT_MAX {
                    mark.active = false;
                    mark.reads = 0;
                    let region = mark.region;
                    self.cool(region);
                }
            }
        }
    }

    fn discard(&mut self, range: Region) {
        while let Some(at) = self.marks.iter().position(|mark| mark.region.overlaps(&range)) {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: usize) {
        let mark = self.marks.remove(at);
        self.cool(mark.region);
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
            Access::Write { fua } => return self.write(range, fua),
            Access::Read => self.read(range),
            Access::Discard => self.discard(range),
            Access::Flush => self.end_epoch(),
        }
        Admission::Normal
    }

    fn regions(&self) -> Vec<Region> {
        self.marks.iter().filter(|mark| mark.active).map(|mark| mark.region).collect()
    }
}
