//! What a lane's fast way in has done: counters for people, never read by the code that counts.
//!
//! One array per worker, and one for the helpers together; a reader sums them. No clock is read for
//! any of them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use polylane_ipc::message::{Op, Status};

/// How a worker's requests ended, and how it waited. Counts since start.
#[derive(Debug)]
pub struct Stats {
    by_op: [AtomicU64; Op::ALL.len()],
    failed: AtomicU64,
    use_kernel: AtomicU64,
    refused: AtomicU64,
    handed_off: AtomicU64,
    kept: AtomicU64,
    left: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    sleeps: AtomicU64,
    streamed: AtomicU64,
    stream_failed: AtomicU64,
    brought_back: AtomicU64,
    loans_failed: AtomicU64,
}

/// What all workers and helpers did, at one moment; not a consistent cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests by operation, in the order of [`Op::ALL`].
    pub by_op: Vec<(Op, u64)>,
    /// Requests that ended with an errno.
    pub failed: u64,
    /// Requests that were sent to the kernel's way.
    pub use_kernel: u64,
    /// Messages that are no request: unknown operation or arguments out of range.
    pub refused: u64,
    /// Requests that a helper thread finished because they could block.
    pub handed_off: u64,
    /// Requests that waited for a device on the thread that took them, while another one served.
    pub kept: u64,
    /// Syncs that were left to a thread that committed the same.
    pub left: u64,
    /// File bytes given to clients.
    pub read_bytes: u64,
    /// File bytes taken from clients.
    pub written_bytes: u64,
    /// Times that a worker found nothing to do and slept.
    pub sleeps: u64,
    /// Changes that clients made under leases and that reached the file system.
    pub streamed: u64,
    /// Those that failed: their clients broke the rules.
    pub stream_failed: u64,
    /// Pages that clients wrote on loan and that reached the file system.
    pub brought_back: u64,
    /// Loans of which something did not.
    pub loans_failed: u64,
}

impl Totals {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.by_op.iter().map(|(_, count)| count).sum()
    }
}

impl Default for Stats {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Stats {
            by_op: std::array::from_fn(|_| zero()),
            failed: zero(),
            use_kernel: zero(),
            refused: zero(),
            handed_off: zero(),
            kept: zero(),
            left: zero(),
            read_bytes: zero(),
            written_bytes: zero(),
            sleeps: zero(),
            streamed: zero(),
            stream_failed: zero(),
            brought_back: zero(),
            loans_failed: zero(),
        }
    }
}

impl Stats {
    /// One request of this kind was taken. By the one worker whose array this is: no locked
    /// addition on the way of every request.
    pub(super) fn took(&self, op: Op) {
        let count = &self.by_op[op as usize];
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// An entry of a stream was applied.
    pub(super) fn streamed(&self, done: bool) {
        let count = if done { &self.streamed } else { &self.stream_failed };
        count.fetch_add(1, Relaxed);
    }

    /// A loan ended.
    pub(super) fn brought_back(&self, pages: usize, whole: bool) {
        self.brought_back.fetch_add(pages as u64, Relaxed);
        self.loans_failed.fetch_add(u64::from(!whole), Relaxed);
    }

    /// A request ended like this.
    pub(super) fn ended(&self, status: Status) {
        match status {
            Status::Done(_) => return,
            Status::Failed(_) => &self.failed,
            Status::UseKernel => &self.use_kernel,
        }
        .fetch_add(1, Relaxed);
    }

    /// A message that is no request.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A request waits for a device on the thread that took it.
    pub(super) fn kept(&self) {
        self.kept.fetch_add(1, Relaxed);
    }

    /// A sync was left to a thread that commits the same.
    pub(super) fn left(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    /// A helper was asked to finish a request.
    pub(super) fn handed_off(&self) {
        self.handed_off.fetch_add(1, Relaxed);
    }

    /// File bytes were given to a client.
    pub(super) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// File bytes were taken from a client.
    pub(super) fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// File bytes that went either way.
    pub(super) fn moved(&self) -> u64 {
        self.read_bytes.load(Relaxed).wrapping_add(self.written_bytes.load(Relaxed))
    }

    /// The worker goes to sleep.
    pub(super) fn slept(&self) {
        self.sleeps.fetch_add(1, Relaxed);
    }

    /// The sums over `all`.
    pub fn totals<'a>(all: impl IntoIterator<Item = &'a Stats>) -> Totals {
        let mut sum =
            Totals { by_op: Op::ALL.iter().map(|op| (*op, 0)).collect(), ..Totals::default() };
        for stats in all {
            for (index, counter) in stats.by_op.iter().enumerate() {
                sum.by_op[index].1 += counter.load(Relaxed);
            }
            sum.failed += stats.failed.load(Relaxed);
            sum.use_kernel += stats.use_kernel.load(Relaxed);
            sum.refused += stats.refused.load(Relaxed);
            sum.handed_off += stats.handed_off.load(Relaxed);
            sum.kept += stats.kept.load(Relaxed);
            sum.left += stats.left.load(Relaxed);
            sum.read_bytes += stats.read_bytes.load(Relaxed);
            sum.written_bytes += stats.written_bytes.load(Relaxed);
            sum.sleeps += stats.sleeps.load(Relaxed);
            sum.streamed += stats.streamed.load(Relaxed);
            sum.stream_failed += stats.stream_failed.load(Relaxed);
            sum.brought_back += stats.brought_back.load(Relaxed);
            sum.loans_failed += stats.loans_failed.load(Relaxed);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_operation() {
        let (a, b) = (Stats::default(), Stats::default());
        a.took(Op::Open);
        b.took(Op::Open);
        b.took(Op::Readdir);
        b.ended(Status::Failed(2));
        b.ended(Status::UseKernel);
        b.ended(Status::Done(3));
        a.read(10);
        let sum = Stats::totals([&a, &b]);
        assert_eq!(sum.requests(), 3);
        assert_eq!(sum.by_op[Op::Open as usize], (Op::Open, 2));
        assert_eq!((sum.failed, sum.use_kernel, sum.read_bytes), (1, 1, 10));
    }

    /// `took` indexes by number: the numbers are dense.
    #[test]
    fn operation_numbers_are_dense() {
        for (index, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, index);
        }
    }
}
