//! Policies that do not adapt: `none`, and `static`, the paper's ST.

use super::{Io, Kind, Nanos, Policy, Verdict};

/// Everything goes.
#[derive(Default)]
pub struct Ungoverned {
    lanes: usize,
}

impl Policy for Ungoverned {
    fn add_lane(&mut self, _weight: u32) -> usize {
        self.lanes += 1;
        self.lanes - 1
    }

    fn set_weight(&mut self, _lane: usize, _weight: u32) {}

    fn admit(&mut self, _now: Nanos, _lane: usize, _io: &Io) -> Verdict {
        Verdict::Go
    }

    fn complete(&mut self, _now: Nanos, _lane: usize, _io: &Io) {}

    fn tick(&mut self, _now: Nanos) {}

    fn next_tick(&self) -> Nanos {
        Nanos::MAX
    }
}

/// The slice of blk-throttle, which ST sits on: a limit holds per slice, what is left is lost.
const SLICE_NS: Nanos = 100_000_000;

/// Upper limits of read and of write bandwidth, each lane's by its weight (WDT §2, "ST").
pub struct Static {
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    weights: Vec<u32>,
    used: Vec<Used>,
    slice: u64,
}

/// Bytes of a lane in the slice.
#[derive(Clone, Copy, Default, Debug)]
pub struct Used {
    /// Read.
    pub read: u64,
    /// Written or given up.
    pub write: u64,
}

impl Static {
    /// Shares these bandwidths of the device.
    pub fn new(read_bytes_per_s: u64, write_bytes_per_s: u64) -> Self {
        let (weights, used) = (Vec::new(), Vec::new());
        Static { read_bytes_per_s, write_bytes_per_s, weights, used, slice: 0 }
    }

    /// What a lane may read and write in a slice: a byte at least, which lets a request go.
    pub fn limit(&self, lane: usize) -> Used {
        let sum: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let part = |bytes_per_s: u64| {
            let per_slice = u128::from(bytes_per_s) * u128::from(SLICE_NS) / 1_000_000_000;
            (per_slice * u128::from(self.weights[lane]) / u128::from(sum.max(1))).max(1) as u64
        };
        Used { read: part(self.read_bytes_per_s), write: part(self.write_bytes_per_s) }
    }
}

impl Policy for Static {
    fn add_lane(&mut self, weight: u32) -> usize {
        self.weights.push(weight.max(1));
        self.used.push(Used::default());
        self.weights.len() - 1
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        self.weights[lane] = weight.max(1);
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let slice = now / SLICE_NS;
        if slice != self.slice {
            self.slice = slice;
            self.used.fill(Used::default());
        }
        let limit = self.limit(lane);
        let used = &mut self.used[lane];
        let (used, limit) = match io.kind {
            Kind::Read => (&mut used.read, limit.read),
            Kind::Write | Kind::Discard => (&mut used.write, limit.write),
            Kind::Flush => return Verdict::Go,
        };
        if *used >= limit {
            return Verdict::Wait((slice + 1) * SLICE_NS);
        }
        *used += if io.kind == Kind::Discard { 0 } else { io.bytes };
        Verdict::Go
    }

    fn complete(&mut self, _now: Nanos, _lane: usize, _io: &Io) {}

    fn tick(&mut self, _now: Nanos) {}

    fn next_tick(&self) -> Nanos {
        Nanos::MAX
    }
}
