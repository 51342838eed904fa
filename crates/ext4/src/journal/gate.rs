//! Who may change metadata when: many at a time, each by a slot, or one who shuts everybody out.
//!
//! Joining a transaction is part of every operation. A thread that enters writes to the slot of its
//! CPU alone, so two cores that begin operations at the same time have no cache line in common; the
//! thread that shuts the gate, once per commit, looks at every slot.
//!
//! ```text
//! enter: slot.inside += 1; shut? ─ no ─► inside      leave: slot.inside -= 1; shut? ─ yes ─► wake
//!                              └ yes ─► leave, wait
//! shut:  shut = true; wait until every slot.inside is 0
//! ```
//!
//! Each side writes its own word and then reads the other's, all sequentially consistent: one of
//! both sees the other (Dekker). The locks and condition variables are for those who wait.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use polylane_base::sync::{Condvar, Mutex};

/// How often who shuts the gate looks before it sleeps: handles are short.
const SPINS: u32 = 200;

/// Most slots; more cores share them.
const SLOTS_MAX: usize = 64;

/// What cores keep apart. On two cache lines: CPUs fetch them in pairs.
#[repr(align(128))]
pub(super) struct Slot<T> {
    inside: AtomicU32,
    /// Log blocks that the journal gave this slot for its next handles.
    pub credits: AtomicUsize,
    /// What handles of this slot did. Rarely waited for: a thread that was moved to another CPU in
    /// the middle of an operation, or more CPUs than slots.
    pub changes: Mutex<T>,
}

/// Open to many or shut by one. Thread-safe.
pub(super) struct Gate<T> {
    slots: Box<[Slot<T>]>,
    shut: AtomicBool,
    waiting: Mutex<()>,
    /// A slot may be empty, and somebody shuts the gate.
    left: Condvar,
    /// The gate is open again.
    opened: Condvar,
}

/// Being inside. Leaves when it is dropped.
pub(super) struct Pass<'a, T> {
    gate: &'a Gate<T>,
    slot: &'a Slot<T>,
}

/// The gate shut, nobody inside. Opens it when it is dropped.
pub(super) struct Shut<'a, T>(&'a Gate<T>);

impl<T: Default> Gate<T> {
    /// An open gate with a slot for each of `cores`, 64 at most.
    pub fn new(cores: usize) -> Gate<T> {
        let slot = |_| Slot {
            inside: AtomicU32::new(0),
            credits: AtomicUsize::new(0),
            changes: Mutex::new(T::default()),
        };
        Gate {
            slots: (0..cores.clamp(1, SLOTS_MAX)).map(slot).collect(),
            shut: AtomicBool::new(false),
            waiting: Mutex::new(()),
            left: Condvar::new(),
            opened: Condvar::new(),
        }
    }
}

impl<T> Gate<T> {
    /// Waits until the gate is open and goes in by the slot of `cpu`, which may be any number.
    pub fn enter(&self, cpu: u32) -> Pass<'_, T> {
        let slot = &self.slots[cpu as usize % self.slots.len()];
        loop {
            slot.inside.fetch_add(1, Ordering::SeqCst);
            let pass = Pass { gate: self, slot };
            if !self.shut.load(Ordering::SeqCst) {
                return pass;
            }
            drop(pass);
            let mut waiting = self.waiting.lock();
            while self.shut.load(Ordering::SeqCst) {
                waiting = self.opened.wait(waiting);
            }
        }
    }

    /// Shuts the gate and waits until everybody has left. One thread at a time.
    pub fn shut(&self) -> Shut<'_, T> {
        let was_shut = self.shut.swap(true, Ordering::SeqCst);
        debug_assert!(!was_shut, "two shut the gate");
        for _ in 0..SPINS {
            if self.is_empty() {
                return Shut(self);
            }
            std::hint::spin_loop();
        }
        let mut waiting = self.waiting.lock();
        while !self.is_empty() {
            waiting = self.left.wait(waiting);
        }
        Shut(self)
    }

    fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.inside.load(Ordering::SeqCst) == 0)
    }

    /// All slots.
    pub fn slots(&self) -> &[Slot<T>] {
        &self.slots
    }
}

impl<'a, T> Pass<'a, T> {
    /// The slot by which it went in.
    pub fn slot(&self) -> &'a Slot<T> {
        self.slot
    }
}

impl<'a, T> Shut<'a, T> {
    /// All slots; nobody is in any of them.
    pub fn slots(&self) -> &'a [Slot<T>] {
        &self.0.slots
    }
}

impl<T> Drop for Pass<'_, T> {
    fn drop(&mut self) {
        self.slot.inside.fetch_sub(1, Ordering::SeqCst);
        if self.gate.shut.load(Ordering::SeqCst) {
            // Not between the look and the sleep of who shuts it.
            drop(self.gate.waiting.lock());
            self.gate.left.notify_one();
        }
    }
}

impl<T> Drop for Shut<'_, T> {
    fn drop(&mut self) {
        self.0.shut.store(false, Ordering::SeqCst);
        drop(self.0.waiting.lock());
        self.0.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::sync::thread;

    /// Under Miri, which goes over orders that this machine never shows, less of it.
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

    #[test]
    fn nobody_is_inside_while_it_is_shut_and_nothing_is_lost() {
        let gate = Gate::<u64>::new(2);
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for cpu in 0..3 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let pass = gate.enter(cpu);
                        inside.fetch_add(1, Ordering::Relaxed);
                        *pass.slot().changes.lock() += 1;
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            let mut taken = 0;
            while taken < 3 * ROUNDS {
                let shut = gate.shut();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                let take = |slot: &Slot<u64>| std::mem::take(&mut *slot.changes.lock());
                taken += shut.slots().iter().map(take).sum::<u64>();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                drop(shut);
                thread::yield_now();
            }
            assert_eq!(taken, 3 * ROUNDS);
        });
    }

    #[test]
    fn who_shuts_it_sleeps_until_the_last_one_leaves() {
        let gate = Gate::<()>::new(64);
        let passes = [gate.enter(1), gate.enter(63)];
        let is_shut = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _shut = gate.shut();
                is_shut.store(true, Ordering::SeqCst);
            });
            while !gate.shut.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            for pass in passes {
                assert!(!is_shut.load(Ordering::SeqCst), "somebody is inside");
                drop(pass);
            }
        });
        drop(gate.enter(0));
    }
}
