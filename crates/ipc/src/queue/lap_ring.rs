//! A ring whose slots carry their lap: survives the death of any participant at any instruction.
//!
//! ```text
//!  slot word:  lap (31 bits) │ FULL (1 bit) │ value (32 bits)
//!  place p:    slot p mod N, lap p div N
//!  EMPTY@lap ─ push: one compare-and-swap, with the value ─► FULL@lap ─ pop: one ─► EMPTY@lap+1
//! ```
//!
//! A slot changes by one compare-and-swap that carries everything, so there is no half-done state
//! that a dead participant could leave behind. `head` and `tail` only say where to look: whoever
//! finds one lagging (its owner was delayed, or killed between slot and counter) moves it on.
//! Lock-free: when one participant's step fails, another's has succeeded. First in, first out by
//! slot order.
//!
//! A lap number repeats after 2³¹ laps; a participant would have to be stopped between its load and
//! its compare-and-swap for that long to be fooled.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{RequestQueue, Ticket};
use crate::memory::{Memory, Word32, Word64};

const HEAD: usize = 0;
const TAIL: usize = 64;
/// Counts pushes; sleeping consumers wait for it to change.
const PUSHES: usize = 72;
/// Consumers asleep, or killed while asleep: more wakes than needed are harmless.
const SLEEPERS: usize = 8;
const SLOTS: usize = 128;
const SLOT_BYTES: usize = 64;

const FULL: u64 = 1 << 32;
const LAP_SHIFT: u32 = 33;
const LAP_MASK: u64 = (1 << 31) - 1;

/// Failed steps before an operation gives up. Each means that somebody else got on; no honest set
/// of participants fails one so often, hostile memory may.
const ATTEMPTS: u32 = 10_000;

/// Longest sleep: a consumer killed between being woken and taking its value takes the wake-up with
/// it.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// A view of a lap-tagged ring.
#[derive(Clone, Copy, Debug)]
pub struct LapRing<M> {
    memory: M,
    slots: usize,
}

/// What a slot means to a place.
enum Slot {
    /// Empty, in the place's own lap.
    Empty,
    /// Full, in the place's own lap; the value.
    Full(u32),
    /// Of an earlier lap: for a producer, the ring is full.
    Behind,
    /// Of a later lap: the place is used up, the counter lags.
    Ahead,
}

impl<M: Memory> LapRing<M> {
    /// Bytes that a ring of `slots` slots takes.
    pub const fn bytes(slots: usize) -> usize {
        SLOTS + slots * SLOT_BYTES
    }

    /// The ring of `slots` slots, a power of two, at the start of `memory`, which began as zeros.
    #[inline]
    pub fn new(memory: M, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "slots must be a power of two");
        LapRing { memory, slots }
    }

    #[inline]
    fn slot(&self, place: u64) -> &M::W64 {
        self.memory.word64(SLOTS + (place as usize & (self.slots - 1)) * SLOT_BYTES)
    }

    #[inline]
    fn lap(&self, place: u64) -> u64 {
        (place >> self.slots.trailing_zeros()) & LAP_MASK
    }

    #[inline]
    fn look(&self, word: u64, place: u64) -> Slot {
        let ahead = (word >> LAP_SHIFT).wrapping_sub(self.lap(place)) & LAP_MASK;
        match (ahead, word & FULL != 0) {
            (0, false) => Slot::Empty,
            (0, true) => Slot::Full(word as u32),
            _ if ahead > LAP_MASK / 2 => Slot::Behind,
            _ => Slot::Ahead,
        }
    }

    /// Moves a counter past `place`, unless somebody did.
    #[inline]
    fn advance(&self, counter: usize, place: u64) {
        let next = place.wrapping_add(1);
        let word = self.memory.word64(counter);
        let _ = word.compare_exchange(place, next, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl<M: Memory> RequestQueue for LapRing<M> {
    fn push(&self, value: u32) -> bool {
        for _ in 0..ATTEMPTS {
            let place = self.memory.word64(TAIL).load(Ordering::Acquire);
            let slot = self.slot(place);
            let word = slot.load(Ordering::Acquire);
            match self.look(word, place) {
                Slot::Empty => {
                    let full = self.lap(place) << LAP_SHIFT | FULL | u64::from(value);
                    let order = (Ordering::SeqCst, Ordering::Relaxed);
                    let won = slot.compare_exchange(word, full, order.0, order.1).is_ok();
                    self.advance(TAIL, place);
                    if won {
                        self.wake_one();
                        return true;
                    }
                }
                Slot::Full(_) | Slot::Ahead => self.advance(TAIL, place),
                Slot::Behind => return false,
            }
        }
        false
    }

    fn pop(&self, _ticket: &mut Ticket) -> Option<u32> {
        for _ in 0..ATTEMPTS {
            let place = self.memory.word64(HEAD).load(Ordering::Acquire);
            let slot = self.slot(place);
            let word = slot.load(Ordering::SeqCst);
            match self.look(word, place) {
                Slot::Full(value) => {
                    let empty = ((self.lap(place) + 1) & LAP_MASK) << LAP_SHIFT;
                    let order = (Ordering::AcqRel, Ordering::Relaxed);
                    let won = slot.compare_exchange(word, empty, order.0, order.1).is_ok();
                    self.advance(HEAD, place);
                    if won {
                        return Some(value);
                    }
                }
                Slot::Ahead => self.advance(HEAD, place),
                Slot::Empty | Slot::Behind => return None,
            }
        }
        None
    }

    fn ready(&self, _ticket: &Ticket) -> bool {
        let place = self.memory.word64(HEAD).load(Ordering::Acquire);
        let word = self.slot(place).load(Ordering::SeqCst);
        matches!(self.look(word, place), Slot::Full(_) | Slot::Ahead)
    }

    fn pop_wait(&self, ticket: &mut Ticket, spins: u32, timeout: Duration) -> Option<u32> {
        for _ in 0..spins {
            if let Some(value) = self.pop(ticket) {
                return Some(value);
            }
            self.memory.pause();
        }
        let sleepers = self.memory.word32(SLEEPERS);
        sleepers.fetch_add(1, Ordering::SeqCst);
        self.memory.total_order();
        let pushes = self.memory.word32(PUSHES).load(Ordering::SeqCst);
        let found = self.pop(ticket);
        if found.is_none() {
            self.memory.wait(PUSHES, pushes, timeout.min(SLEEP_MAX));
        }
        sleepers.fetch_add(u32::MAX, Ordering::Relaxed);
        found.or_else(|| self.pop(ticket))
    }
}

impl<M: Memory> LapRing<M> {
    /// After a push: a sleeper either saw the value or is seen here.
    fn wake_one(&self) {
        self.memory.total_order();
        if self.memory.word32(SLEEPERS).load(Ordering::SeqCst) > 0 {
            self.memory.word32(PUSHES).fetch_add(1, Ordering::SeqCst);
            self.memory.wake(PUSHES, 1);
        }
    }
}
