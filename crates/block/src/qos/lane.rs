//! A lane's side of the page: may a request go, what is charged, waiting for more.
//!
//! ```text
//! admit ─ the pass of this window still holds? ─ yes ─► go: two loads, three additions
//!            │ no
//!            ▼  under the lane's own lock, once a slice
//!         review: read line B, work out a new pass ─► go, or wait until, and say what was short
//! ```
//!
//! The unthrottled way reads no clock, makes no system call and writes nothing that another lane
//! reads. Threads of one lane may overdraw by a request each, as in WDT: debt.
//!
//! # Work first
//!
//! A lane that would have to wait looks at how many requests the device has, where the kernel tells
//! ([`Depth`]). If they cost less than the low water of its terms it goes, with as much at once as
//! the device is short of: whether the device works does not depend on when the coordinator, or the
//! lane whose turn it would be, gets a CPU. What goes so is charged, and is debt. A lane that owes
//! more has a lower low-water mark, so that the lane to which most is owed goes first.
//!
//! Work is counted in cost: eight requests of 256 KiB are more of it than sixty of a page. And a
//! device that has nothing at one look is not idle for that: the others' requests may be on their
//! way, in a batch that their thread is making. A lane that owes much goes only if the device did
//! nothing at all between two of its looks, a slice apart.
//!
//! # When the coordinator is gone
//!
//! Line B says until when it holds. After that the lane goes on at its fair share of the last
//! window that it knows, by its own clock. A lane that never had a window is not held back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polylane_base::sync::Mutex;

use super::cost::CostModel;
use super::depth::Depth;
use super::page::{Terms, Words, ahead, costs, counters, flag, lane, ring_if_heard};
use super::{Io, Kind, Nanos, Verdict};

/// Time for which a lane that falls back may save up.
const FALLBACK_BURST_NS: u64 = 5_000_000;

/// A request is not held back for longer while nothing of its lane is at the device and nobody
/// coordinates.
const HELD_NS_MAX: Nanos = 250_000_000;

/// Cost between two looks at the clock when nothing is limited.
const OPEN_COST: u64 = 20_000_000;

/// A lane that owes so many of its grants goes before its turn only if the device does nothing for
/// a slice; who owes less, with more there.
const DEBT_GRANTS: u64 = 4;

/// A sleeper looks again after this time at the latest.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// How long a lane waits for the lock that all lanes share before it takes it from its holder, who
/// may have been killed.
const LOCK_TRIES: u32 = 100_000;

/// What may go without a look at line B.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Pass {
    window: AtomicU64,
    spent_max: AtomicU64,
    inflight_max: AtomicU64,
}

/// What a review keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    terms: Terms,
    /// The terms are stale.
    fallback: Option<FallBack>,
    /// The device had nothing when it was looked at: since when, and what it had done.
    idle: Option<(Nanos, u64)>,
}

/// How a lane goes on by itself.
#[derive(Clone, Copy, Debug)]
struct FallBack {
    /// Since when, and what had been spent.
    since: Nanos,
    base: u64,
    /// A request has had to wait since then, and none went.
    held_since: Option<Nanos>,
}

/// A lane. Thread-safe; there is one per page.
#[derive(Debug)]
pub struct Lane<W> {
    words: W,
    /// The word that all lanes lock, for `wdt-shared-lock`: its first.
    shared: Option<W>,
    /// What the device has to do, where that can be told.
    depth: Option<Arc<dyn Depth>>,
    cost: CostModel,
    sectors: bool,
    pass: Pass,
    known: Mutex<Known>,
}

/// What a request cost when it went.
pub type Cost = u64;

impl<W: Words> Lane<W> {
    /// The lane of this page, which the coordinator has set up. What a former process of the lane
    /// left in flight or waiting is over.
    pub fn new(words: W, shared: Option<W>) -> Self {
        words.store(lane::WAITERS, 0, Ordering::SeqCst);
        words.store(lane::DONE, words.load(lane::SPENT, Ordering::Relaxed), Ordering::Release);
        let cost = CostModel::load(&words);
        let known = Known { terms: Terms::read(&words).unwrap_or_default(), ..Known::default() };
        let sectors = known.terms.flags & flag::SECTORS != 0;
        let (pass, known) = (Pass::default(), Mutex::new(known));
        Lane { words, shared, depth: None, cost, sectors, pass, known }
    }

    /// The same lane, which looks at the device before it waits.
    #[must_use]
    pub fn with_depth(self, depth: Option<Arc<dyn Depth>>) -> Self {
        Lane { depth, ..self }
    }

    /// Whether it can look at the device.
    pub fn sees_device(&self) -> bool {
        self.depth.is_some()
    }

    /// The page.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// What a request costs here.
    #[inline]
    pub fn cost(&self, io: &Io) -> Cost {
        if self.sectors { io.bytes.div_ceil(512) } else { self.cost.cost_ns(io) }
    }

    /// Whether a request may go; if so it is charged and must be completed later. `now` is asked
    /// when it matters.
    #[inline]
    pub fn admit(&self, io: &Io, now: impl FnOnce() -> Nanos) -> Verdict {
        let cost = self.cost(io);
        let window = self.words.load(super::page::terms::SEQUENCE, Ordering::Acquire);
        let known = self.pass.window.load(Ordering::Acquire) == window && self.shared.is_none();
        let spent = self.words.load(lane::SPENT, Ordering::Relaxed);
        let inflight = inflight(spent, self.words.load(lane::DONE, Ordering::Relaxed));
        let has_credit = ahead(self.pass.spent_max.load(Ordering::Relaxed), spent) > 0;
        if known && has_credit && inflight < self.pass.inflight_max.load(Ordering::Relaxed) {
            self.charge(io, cost);
            return Verdict::Go;
        }
        self.review(io, cost, now())
    }

    /// Charges a request that goes whatever it costs, and must be completed later.
    pub fn let_go(&self, io: &Io) -> Verdict {
        self.charge(io, self.cost(io));
        Verdict::Go
    }

    #[inline]
    fn charge(&self, io: &Io, cost: Cost) {
        self.words.add(lane::SPENT, cost, Ordering::AcqRel);
        self.words.add(lane::REQUESTS, 1, Ordering::Relaxed);
        let word = match io.kind {
            Kind::Read => lane::READ_BYTES,
            Kind::Write => lane::WRITTEN_BYTES,
            Kind::Discard | Kind::Flush => return,
        };
        self.words.add(word, io.bytes, Ordering::Relaxed);
    }

    /// The slow way: reads the terms and decides by them.
    #[cold]
    fn review(&self, io: &Io, cost: Cost, now: Nanos) -> Verdict {
        let _shared = self.shared.as_ref().map(SharedLock::take);
        let mut known = self.known.lock();
        if let Some(terms) = Terms::read(&self.words)
            && terms.window != known.terms.window
        {
            *known = Known { terms, fallback: None, ..*known };
        }
        let terms = known.terms;
        if terms.window == 0 || terms.flags & flag::OPEN != 0 && now < terms.stale_at {
            // Not for ever: the coordinator may be gone, which a clock has to tell.
            self.renew(&terms, self.total(lane::SPENT).wrapping_add(OPEN_COST), u64::MAX);
            self.charge(io, cost);
            return Verdict::Go;
        }
        let verdict = match self.over_limit(&terms, now) {
            Some(until) => Verdict::Wait(until),
            None if now >= terms.stale_at => self.fall_back(&mut known, now),
            None => self.by_terms(&mut known, cost, now),
        };
        if verdict == Verdict::Go {
            self.charge(io, cost);
        }
        verdict
    }

    fn by_terms(&self, known: &mut Known, cost: Cost, now: Nanos) -> Verdict {
        let terms = &{ known.terms };
        let spent = self.total(lane::SPENT);
        let inflight = inflight(spent, self.total(lane::DONE));
        if inflight > 0 && inflight >= terms.inflight_max {
            self.words.store(lane::CROWDED_IN, terms.window, Ordering::Relaxed);
            return self.unless_low(known, cost, now);
        }
        let free = terms.flags & flag::FREE != 0;
        let released = if free { spent.wrapping_add(u64::MAX >> 2) } else { terms.released(now) };
        // The other limits are looked at for each request.
        let limited = terms.requests_max.is_some()
            || terms.bytes_max.is_some()
            || terms.read_bytes_max.is_some()
            || terms.written_bytes_max.is_some();
        let left = ahead(released, spent);
        if !limited {
            self.renew(terms, released, terms.inflight_max);
        }
        let strict = terms.flags & flag::SECTORS != 0;
        let may_start = left == 0 && inflight == 0;
        let may_owe = ahead(terms.overdraft, spent.wrapping_add(cost)) >= 0;
        if left > 0 || !strict && (may_start || may_owe) {
            return Verdict::Go;
        }
        self.note_short(terms, now);
        self.unless_low(known, cost, now)
    }

    /// To wait for the next slice, unless the device has little to do.
    fn unless_low(&self, known: &mut Known, cost: Cost, now: Nanos) -> Verdict {
        let spent = self.total(lane::SPENT);
        let short_of = self.device_short_of(known, cost, now);
        let terms = &known.terms;
        if short_of == 0 {
            return Verdict::Wait(terms.next_slice(now));
        }
        // Not to look again for each of them: to look costs as much as a request.
        let room = inflight(spent, self.total(lane::DONE));
        self.renew(terms, spent.wrapping_add(short_of), room.saturating_add(short_of));
        Verdict::Go
    }

    /// What the device has less than it should, as cost, for a lane whose request costs this; 0 for
    /// nothing.
    fn device_short_of(&self, known: &mut Known, cost: Cost, now: Nanos) -> Cost {
        let terms = &known.terms;
        if terms.low_water == 0 {
            return 0;
        }
        let Some(found) = self.depth.as_ref().and_then(|depth| depth.look()) else {
            return 0;
        };
        let owed = ahead(self.total(lane::SPENT), terms.released(now)).max(0) as u64;
        let each = if terms.request_cost == 0 { cost } else { terms.request_cost };
        let most = u128::from(terms.grant.saturating_mul(DEBT_GRANTS).max(1));
        let left = most.saturating_sub(owed.into());
        let low = (u128::from(terms.low_water) * left).div_ceil(most) as u64;
        let short_of = low.saturating_sub(found.requests).saturating_mul(each);
        let idle = known.idle.take().filter(|(_, done)| found.requests == 0 && *done == found.done);
        let slice_ns = terms.tick / terms.slices.max(1);
        match idle {
            _ if short_of > 0 => short_of,
            Some((since, _)) if now.saturating_sub(since) >= slice_ns => cost,
            _ if found.requests > 0 => 0,
            _ => {
                known.idle = idle.or(Some((now, found.done)));
                0
            }
        }
    }

    /// The coordinator has not been heard of: the fair share of the last window, by the clock; but
    /// a request at least each [`HELD_NS_MAX`] beside none of its own at the device.
    fn fall_back(&self, known: &mut Known, now: Nanos) -> Verdict {
        let spent = self.total(lane::SPENT);
        let fresh = FallBack { since: now, base: spent, held_since: None };
        let fallback = known.fallback.get_or_insert(fresh);
        let rate = u128::from(known.terms.fallback.max(1));
        let credit = |ns: u64| (u128::from(ns) * rate / 1_000_000_000) as u64;
        let time = now.saturating_sub(fallback.since).saturating_add(FALLBACK_BURST_NS);
        let left = ahead(fallback.base.wrapping_add(credit(time)), spent);
        if left as u64 > credit(2 * FALLBACK_BURST_NS) && left > 0 {
            *fallback = fresh;
        }
        let held_since = *fallback.held_since.get_or_insert(now);
        let long = now.saturating_sub(held_since) >= HELD_NS_MAX;
        if left > 0 || long && inflight(spent, self.total(lane::DONE)) == 0 {
            fallback.held_since = None;
            return Verdict::Go;
        }
        Verdict::Wait(now + FALLBACK_BURST_NS / 5)
    }

    /// When to ask again, if a limit is reached: one that a person set, or the policy's own on
    /// either direction.
    fn over_limit(&self, terms: &Terms, now: Nanos) -> Option<Nanos> {
        let (read, written) = (self.total(lane::READ_BYTES), self.total(lane::WRITTEN_BYTES));
        let over = |max: Option<u64>, total: u64| max.is_some_and(|max| ahead(max, total) <= 0);
        // A limit outlives its coordinator for a while only: nobody would lift it. Those of the
        // policy do not: there are no windows any more in which they grow.
        let person = now < terms.stale_at.saturating_add(1_000_000_000)
            && (over(terms.requests_max, self.total(lane::REQUESTS))
                || over(terms.bytes_max, read.wrapping_add(written)));
        let policy = now < terms.stale_at
            && (over(terms.read_bytes_max, read) || over(terms.written_bytes_max, written));
        if !person && !policy {
            return None;
        }
        if !person {
            self.note_short(terms, now);
        }
        Some(terms.next_slice(now))
    }

    /// Tells the coordinator that a request waits for more.
    fn note_short(&self, terms: &Terms, now: Nanos) {
        if self.words.load(lane::SHORT_IN, Ordering::Relaxed) != terms.window {
            self.words.store(lane::SHORT_SINCE, now, Ordering::Relaxed);
            self.words.store(lane::SHORT_IN, terms.window, Ordering::Release);
        }
    }

    fn renew(&self, terms: &Terms, spent_max: u64, inflight_max: u64) {
        self.pass.spent_max.store(spent_max, Ordering::Relaxed);
        self.pass.inflight_max.store(inflight_max, Ordering::Relaxed);
        self.pass.window.store(terms.window, Ordering::Release);
    }

    fn total(&self, word: usize) -> u64 {
        self.words.load(word, Ordering::Relaxed)
    }

    /// A request that went for this cost is done.
    #[inline]
    pub fn complete(&self, cost: Cost) {
        self.words.add(lane::DONE, cost, Ordering::AcqRel);
        // By a change that changes nothing: it comes before a waiter's own, who then sees what was
        // done, or after it.
        if self.words.add(lane::WAITERS, 0, Ordering::AcqRel) > 0 {
            // Somebody waits for room in flight.
            ring_if_heard(&self.words);
        }
    }

    /// Sleeps until something may have changed since `attempt` said when to ask again; what it says
    /// last. Returns early now and then.
    pub fn wait<T>(
        &self,
        now: impl Fn() -> Nanos,
        mut attempt: impl FnMut() -> Result<T, Nanos>,
    ) -> Result<T, Nanos> {
        let heard = self.words.bell();
        self.words.add(lane::WAITERS, 1, Ordering::SeqCst);
        self.words.fence();
        // A thread that changes something after this sees a waiter.
        let found = attempt();
        if let Err(until) = &found {
            let left = Duration::from_nanos(until.saturating_sub(now()));
            self.words.sleep(heard, left.min(SLEEP_MAX));
        }
        self.words.add(lane::WAITERS, u64::MAX, Ordering::SeqCst);
        found
    }

    /// Wakes all sleepers.
    pub fn wake(&self) {
        self.words.ring();
    }

    /// Counts a request for people.
    pub fn note(&self, kind: Kind) {
        let word = match kind {
            Kind::Read => counters::READS,
            Kind::Write => counters::WRITES,
            Kind::Flush => counters::FLUSHES,
            Kind::Discard => counters::DISCARDS,
        };
        self.words.add(word, 1, Ordering::Relaxed);
    }

    /// Notes how long a request was at the device.
    pub fn note_stay(&self, ns: Nanos) {
        self.words.add(lane::STAYED_NS, ns, Ordering::Relaxed);
        self.words.add(lane::STAYED, 1, Ordering::Release);
    }

    /// Notes the latency of a request, from its making to its answer.
    pub fn note_latency(&self, ns: Nanos) {
        self.words.add(counters::LATENCY + bucket(ns), 1, Ordering::Relaxed);
        self.words.add(counters::LATENCY_NS, ns, Ordering::Relaxed);
    }

    /// Notes that a request was held back.
    pub fn note_held(&self, ns: Nanos) {
        self.words.add(counters::HELD, 1, Ordering::Relaxed);
        self.words.add(counters::HELD_NS, ns, Ordering::Relaxed);
        self.words.add(counters::HOLDING + bucket(ns), 1, Ordering::Relaxed);
    }
}

/// Cost in flight. A request that outlived a change of pages may be done where it was not spent.
#[inline]
fn inflight(spent: u64, done: u64) -> u64 {
    ahead(spent, done).max(0) as u64
}

/// Which bucket of a histogram: four to each doubling from 256 ns on.
pub fn bucket(ns: Nanos) -> usize {
    let ns = ns.max(256);
    let power = ns.ilog2();
    let quarter = (ns >> (power - 2)) & 3;
    (((power - 8) * 4) as usize + quarter as usize).min(counters::BUCKETS - 1)
}

/// The largest time that falls in a bucket, in nanoseconds.
pub fn bucket_end(bucket: usize) -> Nanos {
    let (power, quarter) = (bucket as u32 / 4 + 8, bucket as u64 % 4);
    ((4 + quarter + 1) << (power - 2)) - 1
}

/// The time that this part of what a histogram counted stayed below; `None` for an empty one.
pub fn percentile(counts: &[u64], part: f64) -> Option<Nanos> {
    let all: u64 = counts.iter().fold(0, |all, count| all.saturating_add(*count));
    let rank = (all as f64 * part).ceil().max(1.0) as u64;
    let mut sum = 0_u64;
    let found = counts.iter().position(|count| {
        sum = sum.saturating_add(*count);
        all > 0 && sum >= rank
    })?;
    Some(bucket_end(found))
}

/// The lock that all lanes share, for the comparison with WDT's first version.
struct SharedLock<'a, W: Words>(&'a W);

impl<'a, W: Words> SharedLock<'a, W> {
    fn take(words: &'a W) -> Self {
        for _ in 0..LOCK_TRIES {
            if words.exchange(0, 0, 1, Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
        }
        SharedLock(words)
    }
}

impl<W: Words> Drop for SharedLock<'_, W> {
    fn drop(&mut self) {
        self.0.store(0, 0, Ordering::Release);
    }
}

impl CostModel {
    /// The costs that the coordinator wrote into a page.
    pub fn load(words: &impl Words) -> CostModel {
        let get = |index: usize| words.load(costs::FIRST + index, Ordering::Acquire);
        CostModel::from_words(std::array::from_fn(get))
    }

    /// Writes the costs into a page.
    pub fn store(&self, words: &impl Words) {
        for (index, value) in self.to_words().into_iter().enumerate() {
            words.store(costs::FIRST + index, value, Ordering::Release);
        }
    }
}
