//! The page that a lane and the coordinator share: who writes which word, and the bell.
//!
//! | from byte | written by | what |
//! |---|---|---|
//! | 0 | lane | line A: what it spent and got done, what it was short of ([`lane`]) |
//! | 128 | coordinator | line B: what it may spend in this window ([`terms`]) |
//! | 256 | both, while somebody waits | the bell, a 32-bit futex |
//! | 320 | coordinator, at times | what requests cost ([`costs`]), and for people ([`note`]) |
//! | 512 | lane | counters for people ([`counters`]) |
//! | 1024 | lane | latencies, then times that requests were held back, as histograms |
//!
//! Totals only ever grow (modulo 2^64), so a reader needs no lock and a writer that is killed just
//! stops. Line B changes as a whole: its sequence is odd meanwhile. A writer that is killed in the
//! middle leaves it odd, and the lane falls back on the last line it saw.
//!
//! # Trust
//!
//! Each lane has a page of its own, so it can lie about itself only. Both sides take the other's
//! words as numbers to be clamped; neither indexes by them or waits for them without a limit.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use polylane_sys::{Region, futex};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// 64-bit words of a page.
const WORDS: usize = PAGE_BYTES / 8;

/// Where the bell is, in bytes.
const BELL_OFFSET: usize = 256;

/// Words of line A.
pub mod lane {
    /// Cost of all requests that went.
    pub const SPENT: usize = 0;
    /// Cost of all requests that are answered.
    pub const DONE: usize = 1;
    /// Requests that went.
    pub const REQUESTS: usize = 2;
    /// Bytes of them that were read.
    pub const READ_BYTES: usize = 3;
    /// Bytes of them that were written.
    pub const WRITTEN_BYTES: usize = 4;
    /// The window (line B's sequence) in which a request waited for credit ...
    pub const SHORT_IN: usize = 5;
    /// ... first at this time.
    pub const SHORT_SINCE: usize = 6;
    /// The window in which a request waited for room in flight.
    pub const CROWDED_IN: usize = 7;
    /// Threads that listen for the bell.
    pub const WAITERS: usize = 8;
    /// Nanoseconds that requests were at the device, of those whose time was taken ...
    pub const STAYED_NS: usize = 9;
    /// ... and how many they are.
    pub const STAYED: usize = 10;
}

/// Words of line B.
pub mod terms {
    /// Odd while the line changes; names the window.
    pub const SEQUENCE: usize = 16;
    /// One slice before the first slice of the grant is released, at the latest when the window
    /// began.
    pub const START: usize = 17;
    /// Its length.
    pub const TICK: usize = 18;
    /// [`super::flag`] bits from bit 0, from bit 32 the number of slices of a window, from bit 48
    /// the device's low water.
    pub const FLAGS: usize = 19;
    /// What `SPENT` may come up to without the grant.
    pub const BASE: usize = 20;
    /// The grant: so much more by the end of the window, and at that pace until the next.
    pub const GRANT: usize = 21;
    /// What `SPENT` may come up to as debt.
    pub const OVERDRAFT: usize = 22;
    /// Most cost in flight.
    pub const INFLIGHT_MAX: usize = 23;
    /// When the line is too old to go by.
    pub const STALE_AT: usize = 24;
    /// Cost per second to fall back on then.
    pub const FALLBACK: usize = 25;
    /// What `REQUESTS` may come up to.
    pub const REQUESTS_MAX: usize = 26;
    /// What `READ_BYTES` and `WRITTEN_BYTES` together may come up to.
    pub const BYTES_MAX: usize = 27;
    /// What `READ_BYTES` may come up to.
    pub const READ_BYTES_MAX: usize = 28;
    /// What `WRITTEN_BYTES` may come up to.
    pub const WRITTEN_BYTES_MAX: usize = 29;
    /// The lane's part of the device by weight among those that are active, in millionths.
    pub const ENTITLED: usize = 30;
    /// The lane's part of what was done on the device, in millionths, over the last second.
    pub const ACHIEVED: usize = 31;
    /// What a request at the device costs on average; behind the bell, since the line is full.
    pub const REQUEST_COST: usize = 33;
}

/// Bits of [`terms::FLAGS`].
pub mod flag {
    /// Nothing is limited: nobody else wants the device.
    pub const OPEN: u64 = 1;
    /// Requests cost sectors, as WDT counts, and a lane without credit never starts one.
    pub const SECTORS: u64 = 2;
    /// `SPENT` is not limited; the other limits are.
    pub const FREE: u64 = 4;
    /// Credit is checked under one lock for all lanes.
    pub const SHARED_LOCK: u64 = 8;
}

/// Words of the costs: those of `CostModel`, in its order.
pub mod costs {
    /// The first of eight.
    pub const FIRST: usize = 40;
    /// How many.
    pub const COUNT: usize = 8;
}

/// Words that the coordinator notes for people and for its successor.
pub mod note {
    /// The lane's weight.
    pub const WEIGHT: usize = 48;
    /// Capacity of the device, in millionths.
    pub const CAPACITY: usize = 49;
    /// Nanoseconds of windows in which the lane waited for credit, and at whose end nothing was in
    /// flight on the device: work that was not conserved.
    pub const IDLE_NS: usize = 50;
    /// How often the lane's requests were let go beside what its policy gives it, because nothing
    /// went to the device while they waited.
    pub const LET_GO: usize = 51;
}

/// Words of the counters.
pub mod counters {
    /// Requests that read.
    pub const READS: usize = 64;
    /// Requests that wrote.
    pub const WRITES: usize = 65;
    /// Flushes.
    pub const FLUSHES: usize = 66;
    /// Discards and zeroings.
    pub const DISCARDS: usize = 67;
    /// Requests that were held back.
    pub const HELD: usize = 68;
    /// Nanoseconds that they were.
    pub const HELD_NS: usize = 69;
    /// Nanoseconds that the requests in [`LATENCY`] took.
    pub const LATENCY_NS: usize = 70;
    /// The first word of the latencies of every [`SAMPLE`](super::SAMPLE)th request.
    pub const LATENCY: usize = 128;
    /// The first word of the times held back.
    pub const HOLDING: usize = 256;
    /// Buckets of a histogram.
    pub const BUCKETS: usize = 128;
}

/// One request in so many has its latency taken: reading the clock twice costs more than the rest.
pub const SAMPLE: u64 = 8;

/// The words of a page, and its bell.
pub trait Words {
    /// Loads the word.
    fn load(&self, word: usize, order: Ordering) -> u64;
    /// Stores the word.
    fn store(&self, word: usize, value: u64, order: Ordering);
    /// Adds to the word, wrapping; what was there.
    fn add(&self, word: usize, value: u64, order: Ordering) -> u64;
    /// Stores `new` in the word if `current` is there; whether it was.
    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool;
    /// The bell.
    fn bell(&self) -> u32;
    /// Rings it: whoever sleeps wakes up.
    fn ring(&self);
    /// Sleeps while the bell is `heard`, at most for `limit`.
    fn sleep(&self, heard: u32, limit: Duration);
    /// Orders what was stored before it against what is loaded after it.
    fn fence(&self);
}

/// A page in a region that both sides map.
#[derive(Debug)]
pub struct Mapped(pub Region);

impl Words for Mapped {
    #[inline]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0.word64(word * 8).load(order)
    }

    #[inline]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.0.word64(word * 8).store(value, order);
    }

    #[inline]
    fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        self.0.word64(word * 8).fetch_add(value, order)
    }

    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool {
        self.0.word64(word * 8).compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    fn bell(&self) -> u32 {
        self.0.word32(BELL_OFFSET).load(Ordering::SeqCst)
    }

    fn ring(&self) {
        self.0.word32(BELL_OFFSET).fetch_add(1, Ordering::SeqCst);
        futex::wake(self.0.word32(BELL_OFFSET), u32::MAX >> 1);
    }

    fn sleep(&self, heard: u32, limit: Duration) {
        futex::wait(self.0.word32(BELL_OFFSET), heard, Some(limit));
    }

    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A page in private memory, for lanes of one process and for the simulated device.
#[derive(Debug)]
pub struct Private {
    words: Box<[AtomicU64]>,
    bell: AtomicU32,
}

impl Default for Private {
    fn default() -> Self {
        let words = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Private { words, bell: AtomicU32::new(0) }
    }
}

impl Words for Private {
    #[inline]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.words[word].load(order)
    }

    #[inline]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.words[word].store(value, order);
    }

    #[inline]
    fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        self.words[word].fetch_add(value, order)
    }

    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool {
        self.words[word].compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    fn bell(&self) -> u32 {
        self.bell.load(Ordering::SeqCst)
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.bell, u32::MAX >> 1);
    }

    fn sleep(&self, heard: u32, limit: Duration) {
        futex::wait(&self.bell, heard, Some(limit));
    }

    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl<T: Words + ?Sized> Words for std::sync::Arc<T> {
    #[inline]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        (**self).load(word, order)
    }

    #[inline]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        (**self).store(word, value, order);
    }

    #[inline]
    fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        (**self).add(word, value, order)
    }

    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool {
        (**self).exchange(word, current, new, order)
    }

    fn bell(&self) -> u32 {
        (**self).bell()
    }

    fn ring(&self) {
        (**self).ring();
    }

    fn sleep(&self, heard: u32, limit: Duration) {
        (**self).sleep(heard, limit);
    }

    #[inline]
    fn fence(&self) {
        (**self).fence();
    }
}

/// What the coordinator lets a lane do in a window. All totals are modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Line B's sequence: even, and another one in each window. 0: there is no window yet.
    pub window: u64,
    /// See [`terms`], in nanoseconds of the monotonic clock.
    pub start: u64,
    /// Its length in nanoseconds.
    pub tick: u64,
    /// [`flag`] bits.
    pub flags: u64,
    /// Parts in which the grant is released, at most 65 535.
    pub slices: u64,
    /// With fewer requests of average cost than this at the device, a lane without credit or room
    /// may go; at most 65 535. 0: it may not.
    pub low_water: u64,
    /// What a request at the device costs on average. 0: as much as the lane's own.
    pub request_cost: u64,
    /// See [`terms`].
    pub base: u64,
    /// See [`terms`].
    pub grant: u64,
    /// See [`terms`].
    pub overdraft: u64,
    /// See [`terms`].
    pub inflight_max: u64,
    /// See [`terms`].
    pub stale_at: u64,
    /// See [`terms`].
    pub fallback: u64,
    /// See [`terms`]; `None` for no limit, as with the three below.
    pub requests_max: Option<u64>,
    /// See [`terms`].
    pub bytes_max: Option<u64>,
    /// See [`terms`].
    pub read_bytes_max: Option<u64>,
    /// See [`terms`].
    pub written_bytes_max: Option<u64>,
    /// See [`terms`].
    pub entitled: u64,
    /// See [`terms`].
    pub achieved: u64,
}

/// Bits of the flags' word that say which of the four limits hold.
const LIMIT_BITS: [u64; 4] = [1 << 16, 1 << 17, 1 << 18, 1 << 19];

/// What fits in a quarter of the flags' word.
const QUARTER_MAX: u64 = 0xffff;

/// How often a reader looks again at a line that changes under it.
const READ_TRIES: usize = if cfg!(loom) { 2 } else { 64 };

impl Terms {
    fn limits(&self) -> [Option<u64>; 4] {
        [self.requests_max, self.bytes_max, self.read_bytes_max, self.written_bytes_max]
    }

    /// Writes line B and rings the bell if somebody listens. The coordinator alone does; the
    /// window's number is what comes after the last one's, and is returned.
    pub fn publish(&self, words: &impl Words) -> u64 {
        // Odd already when the last coordinator was killed right here.
        let window = (words.load(terms::SEQUENCE, Ordering::Relaxed) | 1).wrapping_add(1);
        words.store(terms::SEQUENCE, window.wrapping_sub(1), Ordering::Relaxed);
        let mut flags = self.flags | self.slices.min(QUARTER_MAX) << 32;
        flags |= self.low_water.min(QUARTER_MAX) << 48;
        for (bit, limit) in LIMIT_BITS.into_iter().zip(self.limits()) {
            flags |= if limit.is_some() { bit } else { 0 };
        }
        let fields = [
            (terms::START, self.start),
            (terms::TICK, self.tick),
            (terms::FLAGS, flags),
            (terms::BASE, self.base),
            (terms::GRANT, self.grant),
            (terms::OVERDRAFT, self.overdraft),
            (terms::INFLIGHT_MAX, self.inflight_max),
            (terms::STALE_AT, self.stale_at),
            (terms::FALLBACK, self.fallback),
            (terms::REQUESTS_MAX, self.requests_max.unwrap_or(0)),
            (terms::BYTES_MAX, self.bytes_max.unwrap_or(0)),
            (terms::READ_BYTES_MAX, self.read_bytes_max.unwrap_or(0)),
            (terms::WRITTEN_BYTES_MAX, self.written_bytes_max.unwrap_or(0)),
            (terms::ENTITLED, self.entitled),
            (terms::ACHIEVED, self.achieved),
            (terms::REQUEST_COST, self.request_cost),
        ];
        // Release, so that whoever sees one of them sees the odd sequence before it.
        fields.into_iter().for_each(|(word, value)| words.store(word, value, Ordering::Release));
        words.store(terms::SEQUENCE, window, Ordering::Release);
        ring_if_heard(words);
        window
    }

    /// Reads line B; `None` when it is being written for longer than it takes, or never was.
    pub fn read(words: &impl Words) -> Option<Terms> {
        (0..READ_TRIES).find_map(|_| Terms::try_read(words)).filter(|terms| terms.window != 0)
    }

    fn try_read(words: &impl Words) -> Option<Terms> {
        let window = words.load(terms::SEQUENCE, Ordering::Acquire);
        let get = |word| words.load(word, Ordering::Acquire);
        let flags = get(terms::FLAGS);
        let limit = |index: usize, word| (flags & LIMIT_BITS[index] != 0).then(|| get(word));
        let terms = Terms {
            window,
            start: get(terms::START),
            tick: get(terms::TICK),
            flags: flags & 0xffff,
            slices: flags >> 32 & QUARTER_MAX,
            low_water: flags >> 48,
            request_cost: get(terms::REQUEST_COST),
            base: get(terms::BASE),
            grant: get(terms::GRANT),
            overdraft: get(terms::OVERDRAFT),
            inflight_max: get(terms::INFLIGHT_MAX),
            stale_at: get(terms::STALE_AT),
            fallback: get(terms::FALLBACK),
            requests_max: limit(0, terms::REQUESTS_MAX),
            bytes_max: limit(1, terms::BYTES_MAX),
            read_bytes_max: limit(2, terms::READ_BYTES_MAX),
            written_bytes_max: limit(3, terms::WRITTEN_BYTES_MAX),
            entitled: get(terms::ENTITLED),
            achieved: get(terms::ACHIEVED),
        };
        let same = words.load(terms::SEQUENCE, Ordering::Relaxed) == window;
        (same && window.is_multiple_of(2)).then_some(terms)
    }

    /// What may have been spent at `now`, without debt: the grant is released slice by slice, and
    /// goes on at its pace when the next window is late.
    pub fn released(&self, now: u64) -> u64 {
        let slices = self.slices.max(1);
        let slice_ns = (self.tick / slices).max(1);
        let begun = now.saturating_sub(self.start) / slice_ns;
        let part = u128::from(self.grant) * u128::from(begun) / u128::from(slices);
        self.base.wrapping_add(part as u64)
    }

    /// When more will be released.
    pub fn next_slice(&self, now: u64) -> u64 {
        let slice_ns = (self.tick / self.slices.max(1)).max(1);
        let begun = now.saturating_sub(self.start) / slice_ns;
        self.start.saturating_add((begun + 1).saturating_mul(slice_ns)).max(now + 1)
    }
}

/// Wakes whoever listens. What they wait for has been stored before.
pub(super) fn ring_if_heard(words: &impl Words) {
    words.fence();
    if words.load(lane::WAITERS, Ordering::Relaxed) > 0 {
        words.ring();
    }
}

/// How far `total` is ahead of `other`; totals wrap, so half of all numbers are ahead.
#[inline]
pub fn ahead(total: u64, other: u64) -> i64 {
    total.wrapping_sub(other) as i64
}
