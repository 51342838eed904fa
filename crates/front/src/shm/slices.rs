//! Time slices that follow what a thread does.
//!
//! A thread that wakes preempts one whose slices are longer than its own (Linux 6.12), and no other
//! before that one's slice is over. So a thread that works in long stretches, copying a megabyte or
//! committing a large transaction, takes long slices, and delays no other; its share of the CPU
//! stays what it was. A thread that answers in microseconds has short ones.

use std::time::Duration;

use polylane_sys::sched;

/// Slices for short stretches: the shortest that Linux gives.
const SHORT: Duration = Duration::from_micros(100);
/// Slices for long ones: longer than those of tenants' threads, and shorter than Linux' own, so
/// that a program outside of any lane that only computes keeps nobody waiting.
const LONG: Duration = Duration::from_millis(1);

/// Stretches of CPU time from which on they are long, and up to which they are short again.
const LONG_NS: u64 = 60_000;
const SHORT_NS: u64 = 30_000;

/// Bytes in a request on average that make a worker's stretches long, and short again: 16 KiB are
/// copied in 2 to 4 µs, and many requests are served in a row.
const LONG_BYTES: u64 = 16 << 10;
const SHORT_BYTES: u64 = 8 << 10;
/// Requests between two looks.
const PERIOD: u64 = 32;

/// The slices of one thread, or of a role that threads take over from one another.
#[derive(Debug, Default)]
pub(super) struct Slices {
    long: bool,
    /// A running mean of stretches, or what was moved up to the last look.
    mean_ns: u64,
    cpu: Duration,
    requests: u64,
    bytes: u64,
}

impl Slices {
    /// The thread begins a stretch.
    pub(super) fn begin(&mut self) {
        self.cpu = sched::cpu_time();
    }

    /// The stretch is over.
    pub(super) fn end(&mut self) {
        let took = sched::cpu_time().saturating_sub(self.cpu).as_nanos() as u64;
        if self.stretch(took) {
            self.ask();
        }
    }

    /// So many requests more were served; `bytes`: moved since the thread began.
    pub(super) fn served(&mut self, requests: u64, bytes: impl FnOnce() -> u64) {
        self.requests += requests;
        if self.requests >= PERIOD && self.moved(bytes()) {
            self.ask();
        }
    }

    /// Another thread took over: it has the slices that the one before had.
    pub(super) fn taken_over(&self) {
        self.ask();
    }

    /// Takes a stretch in; whether slices of another length are wanted.
    fn stretch(&mut self, took_ns: u64) -> bool {
        self.mean_ns = (self.mean_ns * 7 + took_ns) / 8;
        self.become_long(if self.long { self.mean_ns > SHORT_NS } else { self.mean_ns > LONG_NS })
    }

    /// Takes in what the last requests moved; whether slices of another length are wanted.
    fn moved(&mut self, bytes: u64) -> bool {
        let each = bytes.wrapping_sub(self.bytes) / self.requests;
        (self.requests, self.bytes) = (0, bytes);
        self.become_long(if self.long { each > SHORT_BYTES } else { each >= LONG_BYTES })
    }

    fn become_long(&mut self, long: bool) -> bool {
        std::mem::replace(&mut self.long, long) != long
    }

    fn ask(&self) {
        // A kernel that refuses has slices of its own.
        let _ = sched::set_slice(if self.long { LONG } else { SHORT });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_decide_by_their_mean() {
        let mut slices = Slices::default();
        assert!(!(0..100).any(|_| slices.stretch(20_000)), "short ones stay short");
        assert!(!slices.stretch(300_000), "one alone does not count");
        assert!((0..20).any(|_| slices.stretch(150_000)) && slices.long);
        assert!(!(0..100).any(|_| slices.stretch(45_000)), "in between nothing changes");
        assert!((0..20).any(|_| slices.stretch(20_000)) && !slices.long);
    }

    #[test]
    fn bytes_decide_by_request() {
        let mut slices = Slices::default();
        let (mut total, mut looks) = (0, 0);
        let mut serve = |slices: &mut Slices, each: u64| {
            for _ in 0..PERIOD {
                total += each;
                slices.served(1, || {
                    looks += 1;
                    total
                });
            }
            slices.long
        };
        assert!(!serve(&mut slices, 4096));
        assert!(serve(&mut slices, 256 << 10));
        assert!(serve(&mut slices, 12 << 10), "in between nothing changes");
        assert!(!serve(&mut slices, 100));
        assert_eq!(looks, 4);
    }
}
