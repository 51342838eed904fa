//! A gate before a device: requests pass one by one, and can be kept out while those inside finish.
//!
//! Every channel counts what it has inside in a word of its own, so two channels never write the
//! same line of memory; whether the gate is closed is a word that all read and that hardly ever
//! changes. Whoever closes it adds the counts up.
//!
//! # Invariants
//!
//! - A request that entered has raised its count *before* it looked whether the gate is closed, and
//!   whoever closes it looks at the counts *after* that: one of the two sees the other (both
//!   sequentially consistent). So once the counts are zero, nothing is inside and nothing enters.
//!
//! # Locking
//!
//! `counts` is taken to make and to drop a pass and by whoever closes the gate; `sleepers` by those
//! who find it closed. A request that passes an open gate takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::{Condvar, Mutex};

/// A sleeper looks again after this time: whoever leaves does not wait for whoever watches.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What one pass has inside. Written by its owner alone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    counts: Mutex<Vec<Arc<Count>>>,
    sleepers: Mutex<()>,
    wake: Condvar,
}

/// The right of one channel to pass.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    count: Arc<Count>,
}

impl Gate {
    /// One more pass.
    pub(crate) fn pass(self: &Arc<Self>) -> Pass {
        let count = Arc::<Count>::default();
        self.counts.lock().push(count.clone());
        Pass { gate: self.clone(), count }
    }

    /// Keeps everybody out from now on; false when it is closed already.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Lets everybody in.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        drop(self.sleepers.lock());
        self.wake.notify_all();
    }

    /// How many requests are inside.
    pub(crate) fn inside(&self) -> u64 {
        self.counts.lock().iter().map(|count| count.0.load(Ordering::SeqCst)).sum()
    }

    /// Waits until nothing is inside, until `end` at most; whether that is so. The gate is closed.
    pub(crate) fn drain(&self, end: Instant) -> bool {
        while self.inside() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let sleepers = self.sleepers.lock();
            drop(self.wake.wait_timeout(sleepers, left.min(LOOK_AGAIN)));
        }
        true
    }
}

impl Pass {
    /// Goes in with one request; false at a closed gate.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let count = self.count.0.load(Ordering::Relaxed);
        self.count.0.store(count + 1, Ordering::SeqCst);
        if self.gate.closed.load(Ordering::SeqCst) {
            self.leave(1);
            return false;
        }
        true
    }

    /// Goes out with so many requests.
    #[inline]
    pub(crate) fn leave(&self, requests: u64) {
        let count = self.count.0.load(Ordering::Relaxed);
        self.count.0.store(count.saturating_sub(requests), Ordering::Release);
        if self.gate.closed.load(Ordering::Relaxed) {
            self.gate.wake.notify_all();
        }
    }

    /// Sleeps until the gate is open, for a moment at most.
    pub(crate) fn wait(&self) {
        let sleepers = self.gate.sleepers.lock();
        if self.gate.closed.load(Ordering::SeqCst) {
            drop(self.gate.wake.wait_timeout(sleepers, LOOK_AGAIN));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.counts.lock().retain(|count| !Arc::ptr_eq(count, &self.count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::sync::thread;

    #[test]
    fn a_closed_gate_keeps_out_and_drains() {
        let gate = Arc::<Gate>::default();
        let (one, other) = (gate.pass(), gate.pass());
        assert!(one.enter() && one.enter() && other.enter());
        assert!(gate.close() && !gate.close());
        assert!(!other.enter());
        assert_eq!(gate.inside(), 3);
        assert!(!gate.drain(Instant::now()), "three are inside");
        one.leave(2);
        other.leave(1);
        assert!(gate.drain(Instant::now()));
        gate.open();
        assert!(other.enter());
        other.leave(1);
        drop((one, other));
        assert!(gate.counts.lock().is_empty());
    }

    /// While it is closed and drained nobody changes what is behind the gate.
    #[test]
    fn nobody_is_inside_of_a_drained_gate() {
        let gate = Arc::<Gate>::default();
        let (inside, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let guests: Vec<_> = (0..3)
            .map(|_| {
                let (pass, inside, stop) = (gate.pass(), inside.clone(), stop.clone());
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if !pass.enter() {
                            pass.wait();
                            continue;
                        }
                        inside.fetch_add(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        pass.leave(1);
                    }
                })
            })
            .collect();
        for _ in 0..if cfg!(miri) { 5 } else { 200 } {
            assert!(gate.close());
            assert!(gate.drain(Instant::now() + Duration::from_secs(30)), "not drained in 30 s");
            for _ in 0..50 {
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            }
            gate.open();
        }
        stop.store(true, Ordering::Relaxed);
        guests.into_iter().for_each(|guest| guest.join().expect("a guest"));
    }
}
