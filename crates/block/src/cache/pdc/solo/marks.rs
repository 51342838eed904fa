//! The regions of a volume that are taken for journals.
//!
//! # Invariants
//!
//! - Regions do not overlap.
//! - There are at most [`REGION_COUNT_MAX`].

use super::super::Region;

/// Regions remembered per volume: a journal for each of a few partitions.
pub const REGION_COUNT_MAX: usize = 16;

/// A new lap starts at most this far behind the start of its region: logs begin with a superblock
/// or a descriptor that is not rewritten each time.
pub const LAP_SLACK_BYTES: u64 = 64 << 10;

/// Inside a region, a write this little ahead of the log's head is the log's, out of order.
pub const REORDER_BYTES: u64 = 256 << 10;

/// A log may leave out this much: ext3 journals have an indirect block every 4 MiB, at times two.
pub const GAP_BYTES: u64 = 8 << 10;

/// A log's superblock is no larger.
const BLOCK_BYTES_MAX: u64 = 4096;

/// A region that bypasses this much without a solo epoch or a commit was taken over by data. It is
/// a quarter of the journal that mke2fs makes on volumes up to 64 GiB, and so the largest
/// transaction there. Of a larger region it is a quarter, too.
const UNPROVEN_BYTES_MAX: u64 = 64 << 20;

/// Reads of a region that are borne before it is a journal no longer: probes of `blkid` and the
/// like.
pub const READ_COUNT_MAX: u32 = 2;

/// A remembered range.
struct Mark {
    region: Region,
    /// Whether it is taken for a journal now; reads suspend it until a flow inside proves itself.
    active: bool,
    /// Where the log's last write ended. `None`: it is known from the volume's last use, and goes
    /// on wherever its next write begins.
    head: Option<u64>,
    /// What lies before is the log's alone: its last solo epoch or commit ended here, in this lap
    /// or an earlier one. Data may follow behind the log's end without a gap.
    proven: u64,
    /// The log came round: its end is known.
    closed: bool,
    /// How far this lap and the one before seemed to reach.
    reach: u64,
    last_reach: u64,
    /// Bytes that bypassed since a solo epoch or a commit.
    unproven_bytes: u64,
    reads: u32,
}

impl Mark {
    /// Whether all of `range` is the log's for certain.
    fn holds(&self, range: Region) -> bool {
        self.region.first <= range.first && range.end <= self.proven
    }

    /// A lap is over. What two laps in turn reached is the log's end.
    fn end_lap(&mut self, written_end: u64) {
        let reach = std::mem::take(&mut self.reach);
        if reach == self.last_reach {
            self.proven = self.proven.max(reach);
        }
        if !self.closed || reach == self.last_reach {
            self.region.end = self.proven.max(written_end);
        }
        (self.last_reach, self.closed) = (reach, true);
    }
}

/// What became of a log's advance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Advance {
    /// It is its region's.
    Inside,
    /// It came round; the lap before ended at this address.
    NewLap(u64),
    /// It left the circle, or has no region.
    Outside,
}

/// All marks of a volume.
#[derive(Default)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    fn active(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter().filter(|mark| mark.active)
    }

    /// The ranges taken for journals now.
    pub(super) fn regions(&self) -> impl Iterator<Item = Region> {
        self.active().map(|mark| mark.region)
    }

    /// Marks a range, together with the regions that it touches. The log is at `head`: at the end,
    /// or inside, if this is not its first lap.
    pub(super) fn add(&mut self, found: Region, head: u64) {
        self.put(found, Some(head), found.end);
    }

    /// Marks a range that was a journal when the volume was used last: nothing is proven yet.
    pub(super) fn remember(&mut self, known: Region) {
        self.put(known, None, known.first);
    }

    fn put(&mut self, found: Region, head: Option<u64>, proven: u64) {
        let mut region = found;
        self.0.retain(|known| {
            let same = known.region.overlaps(&found);
            if same {
                region.first = region.first.min(known.region.first);
                region.end = region.end.max(known.region.end);
            }
            !same
        });
        if self.0.len() == REGION_COUNT_MAX {
            self.0.remove(0);
        }
        self.0.push(Mark {
            region,
            active: true,
            head,
            proven,
            closed: false,
            reach: 0,
            last_reach: 0,
            unproven_bytes: 0,
            reads: 0,
        });
    }

    /// Whether a write is a known log's, whatever it continues.
    pub(super) fn holds(&self, range: Region) -> bool {
        self.active().any(|mark| mark.holds(range))
    }

    /// Whether a write that continues no flow is a known log's: a new lap, or out of order.
    pub(super) fn resumes(&self, range: Region) -> bool {
        self.active().any(|mark| {
            let lap = range.first - mark.region.first.min(range.first) <= LAP_SLACK_BYTES;
            let near = |head| head < range.first && range.first - head <= REORDER_BYTES;
            let open = lap || mark.head.is_none_or(near);
            mark.holds(range) || (mark.region.contains(range.first) && open)
        })
    }

    /// Counts `bytes` that the log which wrote `written` lets bypass; a region that thereby had too
    /// much without a solo epoch or a commit to be a log's.
    pub(super) fn bypass(&mut self, written: Region, bytes: u64) -> Option<Region> {
        let hit = |mark: &&mut Mark| mark.active && mark.region.overlaps(&written);
        let mark = self.0.iter_mut().find(hit)?;
        mark.unproven_bytes = mark.unproven_bytes.saturating_add(bytes);
        let transaction = (mark.proven - mark.region.first) / 4;
        (mark.unproven_bytes > transaction.max(UNPROVEN_BYTES_MAX)).then_some(mark.region)
    }

    /// The head of the log that this write continues after a small gap.
    pub(super) fn gap_before(&self, range: Region) -> Option<u64> {
        let near = |head: u64| head < range.first && range.first - head <= GAP_BYTES;
        self.active().filter_map(|mark| mark.head).find(|head| near(*head))
    }

    /// Whether a region starts at this address.
    pub(super) fn starts_at(&self, address: u64) -> bool {
        self.active().any(|mark| mark.region.first == address)
    }

    /// The heads of logs that have not come round yet, other than `found`.
    pub(super) fn open_ends(&self, found: Region) -> impl Iterator<Item = u64> {
        let other = move |mark: &&Mark| !mark.closed && !mark.region.overlaps(&found);
        self.active().filter(other).filter_map(|mark| mark.head)
    }

    /// Whether a write runs into a region from the front: its flow was the log before the region.
    pub(super) fn enters(&self, range: Region) -> bool {
        self.active().any(|mark| range.contains(mark.region.first))
    }

    /// The log that wrote `written` is now at the end of it; regions that it reaches are its own.
    /// One block may be a superblock at the start of the region: that is not the log's head.
    pub(super) fn advance(&mut self, written: Region) -> Advance {
        let same = |mark: &&mut Mark| mark.active && mark.region.overlaps(&written);
        let Some(mark) = self.0.iter_mut().find(same) else { return Advance::Outside };
        if written.first == mark.region.first && written.bytes() <= BLOCK_BYTES_MAX {
            return Advance::Inside;
        }
        let Some(old) = mark.head.replace(written.end) else { return Advance::Inside };
        let start = written.first.saturating_sub(LAP_SLACK_BYTES) <= mark.region.first;
        if written.end < old && start {
            mark.end_lap(written.end);
            return Advance::NewLap(old);
        }
        mark.reach = mark.reach.max(written.end);
        // A transaction that came round had no commit at the log's end, which is not proven then:
        // the next lap may go as far.
        let end = if mark.closed { mark.last_reach } else { 0 };
        if written.end <= mark.region.end.max(end) {
            return Advance::Inside;
        }
        if mark.closed {
            mark.head = Some(old);
            return Advance::Outside;
        }
        let region = Region { first: mark.region.first, end: written.end };
        match self.0.iter().filter(|mark| mark.region.overlaps(&region)).count() {
            1 => self.stretch(region),
            _ => self.add(region, region.end),
        }
        Advance::Inside
    }

    /// What a log wrote up to `end` shared its epoch with nothing else, or is a commit.
    pub(super) fn prove(&mut self, end: u64) {
        let inside =
            |mark: &&mut Mark| mark.active && mark.region.first < end && end <= mark.region.end;
        self.0.iter_mut().filter(inside).for_each(|mark| {
            (mark.proven, mark.unproven_bytes) = (mark.proven.max(end), 0);
        });
    }

    fn stretch(&mut self, grown: Region) {
        if let Some(mark) = self.0.iter_mut().find(|mark| mark.region.first == grown.first) {
            mark.region = grown;
        }
    }

    /// Counts a read; a region that is thereby suspended.
    pub(super) fn read(&mut self, range: Region) -> Option<Region> {
        let hit = |mark: &&mut Mark| mark.active && mark.region.overlaps(&range);
        let mark = self.0.iter_mut().find(hit)?;
        mark.reads += 1;
        if mark.reads <= READ_COUNT_MAX {
            return None;
        }
        (mark.active, mark.reads) = (false, 0);
        Some(mark.region)
    }

    /// Forgets one region that touches `range`, if there is one.
    pub(super) fn forget(&mut self, range: Region) -> Option<Region> {
        let at = self.0.iter().position(|mark| mark.region.overlaps(&range))?;
        Some(self.0.remove(at).region)
    }
}
