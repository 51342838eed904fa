//! What a request costs: a base by kind and place, and so much per page.
//!
//! The linear model of Linux' iocost. Wrong coefficients make the sharing of *device time* as
//! wrong, but not the sharing of what is charged.

use super::{Io, Kind};

/// Bytes that are charged as one.
pub const PAGE_BYTES: u64 = 4096;

/// Costs of one kind of request, in nanoseconds of device time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Base of a request that continues the last one.
    pub sequential_ns: u64,
    /// Base of any other.
    pub random_ns: u64,
    /// Each page.
    pub page_ns: u64,
}

/// The coefficients of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// Reads.
    pub read: Line,
    /// Writes.
    pub write: Line,
    /// A discard of any size.
    pub discard_ns: u64,
    /// A flush.
    pub flush_ns: u64,
}

impl Default for CostModel {
    /// An NVMe drive of the middle class: 100 000 random reads or 50 000 random writes a second,
    /// 2 GB/s and 1 GB/s in large pieces.
    fn default() -> Self {
        CostModel {
            read: Line { sequential_ns: 4_000, random_ns: 8_000, page_ns: 2_000 },
            write: Line { sequential_ns: 8_000, random_ns: 16_000, page_ns: 4_000 },
            discard_ns: 20_000,
            flush_ns: 20_000,
        }
    }
}

impl CostModel {
    /// Device time of a request; at least a nanosecond.
    pub fn cost_ns(&self, io: &Io) -> u64 {
        let line = match io.kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
            Kind::Discard => return self.discard_ns.max(1),
            Kind::Flush => return self.flush_ns.max(1),
        };
        let base = if io.sequential { line.sequential_ns } else { line.random_ns };
        let pages = io.bytes.div_ceil(PAGE_BYTES);
        base.saturating_add(pages.saturating_mul(line.page_ns)).max(1)
    }

    /// Bytes per second in random reads of a page: what the policies of WDT's paper start from.
    pub fn read_bandwidth(&self) -> u64 {
        PAGE_BYTES * 1_000_000_000 / (self.read.random_ns + self.read.page_ns).max(1)
    }

    /// The same in writes.
    pub fn write_bandwidth(&self) -> u64 {
        PAGE_BYTES * 1_000_000_000 / (self.write.random_ns + self.write.page_ns).max(1)
    }

    /// As the words of a shared page.
    pub fn to_words(&self) -> [u64; 8] {
        let line = |line: &Line| [line.sequential_ns, line.random_ns, line.page_ns];
        let ([a, b, c], [d, e, f]) = (line(&self.read), line(&self.write));
        [a, b, c, d, e, f, self.discard_ns, self.flush_ns]
    }

    /// From the words of a shared page.
    pub fn from_words([a, b, c, d, e, f, discard_ns, flush_ns]: [u64; 8]) -> Self {
        let line = |sequential_ns, random_ns, page_ns| Line { sequential_ns, random_ns, page_ns };
        CostModel { read: line(a, b, c), write: line(d, e, f), discard_ns, flush_ns }
    }
}
