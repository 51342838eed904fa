//! The memory that queues and mailboxes are written over: numbered atomic words, pauses and
//! futexes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use polylane_sys::Region;
use polylane_sys::futex::{self, Woken};

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $int:ty, $atomic:ty) => {
        $(#[$doc])*
        pub trait $name {
            /// Atomic load.
            fn load(&self, order: Ordering) -> $int;
            /// Atomic store.
            fn store(&self, value: $int, order: Ordering);
            /// Stores `value`, returns what was there.
            fn swap(&self, value: $int, order: Ordering) -> $int;
            /// Adds, returns what was there. Wraps.
            fn fetch_add(&self, value: $int, order: Ordering) -> $int;
            /// Sets bits, returns what was there.
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int;
            /// Keeps these bits alone, returns what was there.
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int;
            /// Stores `new` if `current` is there; else returns what is.
            fn compare_exchange(
                &self, current: $int, new: $int, success: Ordering, failure: Ordering,
            ) -> Result<$int, $int>;
        }

        impl $name for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> $int {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $int, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn swap(&self, value: $int, order: Ordering) -> $int {
                self.swap(value, order)
            }
            #[inline]
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.fetch_add(value, order)
            }
            #[inline]
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                self.fetch_or(bits, order)
            }
            #[inline]
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                self.fetch_and(bits, order)
            }
            #[inline]
            fn compare_exchange(
                &self, current: $int, new: $int, success: Ordering, failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}

word! {
    /// An atomic 32-bit word.
    Word32, u32, AtomicU32
}
word! {
    /// An atomic 64-bit word.
    Word64, u64, AtomicU64
}

/// A piece of memory shared by the participants of an algorithm. Offsets are in bytes from its
/// start.
pub trait Memory {
    /// Its 32-bit words.
    type W32: Word32;
    /// Its 64-bit words.
    type W64: Word64;

    /// The 32-bit word at `offset`.
    fn word32(&self, offset: usize) -> &Self::W32;

    /// The 64-bit word at `offset`.
    fn word64(&self, offset: usize) -> &Self::W64;

    /// Sleeps while the word at `offset` holds `expected`, at most for `timeout`.
    fn wait(&self, offset: usize, expected: u32, timeout: Duration) -> Woken;

    /// Wakes at most `count` sleepers on the word at `offset`.
    fn wake(&self, offset: usize, count: u32);

    /// Lets others run for the moment that one look at a word takes.
    fn pause(&self);

    /// Orders every store before it against every load after it, as a `SeqCst` fence.
    fn fence(&self);

    /// Orders every load before it against all that follows.
    fn fence_acquire(&self);

    /// Orders all that precedes it against every store after it.
    fn fence_release(&self);

    /// What a `SeqCst` read-modify-write or store implies towards a `SeqCst` load after it. Nothing
    /// to do on real atomics, where all four accesses of such a pattern are `SeqCst`; loom, which
    /// models `SeqCst` accesses as acquire and release, needs it as a fence.
    fn total_order(&self);
}

/// [`Memory`] in a mapped region, from a base on.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<'a> {
    region: &'a Region,
    base: usize,
}

impl<'a> Mapped<'a> {
    /// The memory of `region` from `base` on.
    #[inline]
    pub fn new(region: &'a Region, base: usize) -> Self {
        Mapped { region, base }
    }
}

impl Memory for Mapped<'_> {
    type W32 = AtomicU32;
    type W64 = AtomicU64;

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        self.region.word32(self.base + offset)
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        self.region.word64(self.base + offset)
    }

    fn wait(&self, offset: usize, expected: u32, timeout: Duration) -> Woken {
        futex::wait(self.word32(offset), expected, Some(timeout))
    }

    fn wake(&self, offset: usize, count: u32) {
        futex::wake(self.word32(offset), count);
    }

    #[inline]
    fn pause(&self) {
        std::hint::spin_loop();
    }

    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn fence_acquire(&self) {
        std::sync::atomic::fence(Ordering::Acquire);
    }

    #[inline]
    fn fence_release(&self) {
        std::sync::atomic::fence(Ordering::Release);
    }

    #[inline]
    fn total_order(&self) {}
}
