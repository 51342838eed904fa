//! Counters: each channel writes its own, readers add them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::{Completion, Op};

/// What a device did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests that read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Writes that were durable at completion.
    pub durable_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub zeroings: u64,
    /// Requests of any kind that failed.
    pub failed: u64,
    /// Bytes that reads found in the host's page cache, and that they did not; both 0 where nobody
    /// looks.
    pub cached_bytes: u64,
    /// See `cached_bytes`.
    pub uncached_bytes: u64,
    /// Requests go through io_uring.
    pub ring: bool,
    /// Requests go past the host's page cache.
    pub direct: bool,
    /// The host has refused a write that is durable by itself: each is a write and a flush.
    pub refuses_durable: bool,
}

impl Totals {
    /// Adds what another device did for the same volume.
    pub fn add(&mut self, other: &Totals) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.durable_writes += other.durable_writes;
        self.flushes += other.flushes;
        self.zeroings += other.zeroings;
        self.failed += other.failed;
        self.cached_bytes += other.cached_bytes;
        self.uncached_bytes += other.uncached_bytes;
        self.ring |= other.ring;
        self.direct |= other.direct;
        self.refuses_durable |= other.refuses_durable;
    }
}

/// One channel's counters: written by its thread alone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    durable_writes: AtomicU64,
    flushes: AtomicU64,
    zeroings: AtomicU64,
    failed: AtomicU64,
    cached_bytes: AtomicU64,
    uncached_bytes: AtomicU64,
}

/// A plain addition: there is one writer.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed) + count, Relaxed);
}

impl Counters {
    /// Counts an answered request.
    pub(super) fn note(&self, completion: &Completion) {
        let bytes = || completion.data.iter().map(|buffer| buffer.len() as u64).sum();
        match completion.op {
            _ if completion.result.is_err() => add(&self.failed, 1),
            Op::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes());
            }
            Op::Write { fua } => {
                add(&self.writes, 1);
                add(&self.durable_writes, fua.into());
                add(&self.written_bytes, bytes());
            }
            Op::Flush => add(&self.flushes, 1),
            Op::Discard | Op::WriteZeroes { .. } => add(&self.zeroings, 1),
        }
    }

    /// Counts what a read found in the host's page cache, and what it did not.
    pub(super) fn note_look(&self, found: u64, missed: u64) {
        add(&self.cached_bytes, found);
        add(&self.uncached_bytes, missed);
    }

    /// Adds this channel's part.
    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.reads += self.reads.load(Relaxed);
        totals.read_bytes += self.read_bytes.load(Relaxed);
        totals.writes += self.writes.load(Relaxed);
        totals.written_bytes += self.written_bytes.load(Relaxed);
        totals.durable_writes += self.durable_writes.load(Relaxed);
        totals.flushes += self.flushes.load(Relaxed);
        totals.zeroings += self.zeroings.load(Relaxed);
        totals.failed += self.failed.load(Relaxed);
        totals.cached_bytes += self.cached_bytes.load(Relaxed);
        totals.uncached_bytes += self.uncached_bytes.load(Relaxed);
    }
}
