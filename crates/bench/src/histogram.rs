//! A latency histogram: fixed memory, 3 % relative error, no allocation while recording.
//!
//! Buckets are powers of two cut into 32 equal parts, as in HdrHistogram.

use serde::{Deserialize, Serialize};

const PARTS_LOG2: u32 = 5;
const PARTS: usize = 1 << PARTS_LOG2;
const BUCKETS: usize = (64 - PARTS_LOG2 as usize + 1) * PARTS;

/// Counts of durations in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    sum: u64,
    max: u64,
}

/// What a reader wants to know of a histogram; nanoseconds throughout.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Durations recorded.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: f64,
    /// 90th percentile.
    pub p90_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// Largest.
    pub max_ns: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS].into(), total: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts `times` operations of `ns` nanoseconds each.
    pub fn record(&mut self, ns: u64, times: u64) {
        self.counts[bucket(ns)] += times;
        self.total += times;
        self.sum = self.sum.saturating_add(ns.saturating_mul(times));
        self.max = self.max.max(ns);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The duration below which `fraction` (0..=1) of all lie, in nanoseconds; 0 when empty.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let rank = ((self.total as f64 * fraction).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(index).min(self.max as f64);
            }
        }
        0.0
    }

    /// The usual percentiles.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.total,
            mean_ns: self.sum as f64 / self.total.max(1) as f64,
            p50_ns: self.quantile(0.5),
            p90_ns: self.quantile(0.9),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max as f64,
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() - PARTS_LOG2;
    (shift as usize + 1) * PARTS + ((ns >> shift) as usize - PARTS)
}

fn middle(index: usize) -> f64 {
    if index < PARTS {
        return index as f64;
    }
    let shift = index / PARTS - 1;
    ((PARTS + index % PARTS) as f64 + 0.5) * (1u64 << shift) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_a_bucket_near_it() {
        for ns in (0..64).map(|bit| 1u64 << bit).chain([0, 31, 33, 999, 123_456_789, u64::MAX]) {
            let middle = middle(bucket(ns));
            assert!((middle - ns as f64).abs() <= ns as f64 / 32.0 + 0.5, "{ns} → {middle}");
        }
    }

    #[test]
    fn quantiles_are_read_back() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|ns| histogram.record(ns, 1));
        let summary = histogram.summary();
        assert!((summary.p50_ns - 500.0).abs() < 20.0, "{summary:?}");
        assert!((summary.p99_ns - 990.0).abs() < 35.0, "{summary:?}");
        assert_eq!((summary.count, summary.max_ns), (1000, 1000.0));
    }
}
