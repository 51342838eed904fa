//! The rule of the paper (Lee et al., "Reducing Journaling Harm on Virtualized I/O Systems",
//! SYSTOR'16, §4), for comparison.
//!
//! *Internal journal*: "PDC maintains a series of access flows with first and last LBAs in a hash
//! table, and monitors if the upcoming request is in a consecutive address range. If there is a
//! range where consecutive writes forms a large loop, PDC regards the range as journal area."
//! *External journal*: "We monitor the I/O requests on each file during a certain time and regard
//! the write-only file as a journal device".
//!
//! What the paper leaves open, and what was chosen: a loop is *large* from
//! [`LOOP_BYTES_MIN`] on; it is a loop when a write starts at a flow's first address again; a
//! marked range stays marked while it is not read; the *certain time* is [`PERIOD_US`].

use super::flows::{Flow, Flows, Slot};
use super::{Access, Admission, Region, Rule};

/// A loop at least this long is a journal: the least that mke2fs makes by default.
pub const LOOP_BYTES_MIN: u64 = 4 << 20;

/// A volume written but not read for this long is a journal device.
pub const PERIOD_US: u64 = 60_000_000;

/// Flows remembered.
const FLOW_COUNT_MAX: u16 = 512;

/// Long flows whose first address is watched, and marked ranges; the oldest goes.
const REGION_COUNT_MAX: usize = 64;

struct Stream {
    first: u64,
    next: u64,
    read: bool,
}

impl Flow for Stream {
    fn next(&self) -> u64 {
        self.next
    }
}

/// The paper's detector for one volume.
pub struct Paper {
    flows: Flows<Stream>,
    /// Flows long enough to be a loop, which a write at `first` would close.
    long: Vec<Slot>,
    regions: Vec<Region>,
    period_start_us: Option<u64>,
    period: Period,
    external: bool,
}

#[derive(Default)]
struct Period {
    written: bool,
    read: bool,
}

impl Default for Paper {
    fn default() -> Self {
        Paper {
            flows: Flows::new(FLOW_COUNT_MAX),
            long: Vec::new(),
            regions: Vec::new(),
            period_start_us: None,
            period: Period::default(),
            external: false,
        }
    }
}

impl Paper {
    fn write(&mut self, range: Region) -> Admission {
        self.period.written = true;
        let closes = |slot: &Slot| self.flows.get(*slot).first == range.first;
        if let Some(at) = self.long.iter().position(closes) {
            let slot = self.long.swap_remove(at);
            let stream = self.flows.get(slot);
            let (found, read) = (Region { first: stream.first, end: stream.next }, stream.read);
            if !read {
                self.mark(found);
            }
            self.flows.remove(slot);
        }
        match self.flows.find(range.first) {
            Some(slot) => self.extend(slot, range.end),
            None => self.start(range),
        }
        let marked = self.external || self.regions.iter().any(|r| r.contains(range.first));
        if marked { Admission::Bypass } else { Admission::Normal }
    }

    fn start(&mut self, range: Region) {
        let stream = Stream { first: range.first, next: range.end, read: false };
        self.forget_replaced(range.end, None);
        let slot = self.flows.insert(stream);
        self.forget_long(slot);
    }

    fn extend(&mut self, slot: Slot, end: u64) {
        let stream = self.flows.get(slot);
        let long = end - stream.first >= LOOP_BYTES_MIN;
        self.forget_replaced(end, Some(slot));
        self.flows.touch(slot, long, |stream| stream.next = end);
        if long && !self.long.contains(&slot) {
            if self.long.len() == REGION_COUNT_MAX {
                self.long.remove(0);
            }
            self.long.push(slot);
        }
    }

    /// A flow that now continues at `next` replaces another one there, perhaps a long one.
    fn forget_replaced(&mut self, next: u64, by: Option<Slot>) {
        if let Some(slot) = self.flows.find(next).filter(|slot| Some(*slot) != by) {
            self.forget_long(slot);
        }
    }

    fn forget_long(&mut self, slot: Slot) {
        self.long.retain(|long| *long != slot);
    }

    fn mark(&mut self, found: Region) {
        if let Some(known) = self.regions.iter_mut().find(|region| region.overlaps(&found)) {
            *known = Region { first: known.first.min(found.first), end: known.end.max(found.end) };
            return;
        }
        if self.regions.len() == REGION_COUNT_MAX {
            self.regions.remove(0);
        }
        self.regions.push(found);
    }

    fn read(&mut self, range: Region) {
        self.period.read = true;
        self.external = false;
        self.unmark(range);
        for slot in &self.long {
            let stream = self.flows.get_mut(*slot);
            let written = Region { first: stream.first, end: stream.next };
            stream.read |= written.overlaps(&range);
        }
    }

    fn unmark(&mut self, range: Region) {
        self.regions.retain(|region| !region.overlaps(&range));
    }

    fn tick(&mut self, now_us: u64) {
        let start_us = *self.period_start_us.get_or_insert(now_us);
        if now_us.saturating_sub(start_us) >= PERIOD_US {
            let Period { written, read } = std::mem::take(&mut self.period);
            self.external = !read && (written || self.external);
            self.period_start_us = Some(now_us);
        }
    }
}

impl Rule for Paper {
    fn observe(&mut self, now_us: u64, access: Access, range: Region) -> Admission {
        self.tick(now_us);
        match access {
            Access::Write { .. } => return self.write(range),
            Access::Read => self.read(range),
            Access::Discard => self.unmark(range),
            Access::Flush => {}
        }
        Admission::Normal
    }

    fn regions(&self) -> Vec<Region> {
        match self.external {
            true => vec![Region { first: 0, end: u64::MAX }],
            false => self.regions.clone(),
        }
    }
}
