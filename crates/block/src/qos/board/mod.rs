//! The coordinator's side: the lanes of one device, and what each may do in the next window.
//!
//! Nothing here knows where the pages are, what time it is or how lanes come and go: the caller
//! says so. `polylane-pool` runs it between processes, the simulated device in one.
//!
//! # Invariants
//!
//! - A lane's words are numbers from a stranger: differences are clamped to what the device can
//!   have done, and no arithmetic on them can fail.
//! - Line B of a lane is written by one board at a time; a new board goes on from the page's words.

mod audit;
mod paper;
mod told;
mod watch;

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::page::{Terms, Words, ahead, counters, flag, lane, note};
use super::plan::{LookBack, Memory, Planner, Share};
use super::wdt::{self, Wdt};
use super::{Nanos, lane as lane_side};
pub use told::{Device, Limits, Rule, WEIGHTS};
use watch::Watch;

/// Number of a lane on a board.
pub type SeatId = u64;

/// A lane that did nothing for this long does not count as one that shares.
const IDLE_NS: Nanos = 1_000_000_000;

/// Windows until terms are too old to go by.
const STALE_TICKS: u64 = 4;

/// Windows between two notes to a lane that does nothing.
const IDLE_TICKS: u64 = 16;

/// Windows between two looks at a lane that does nothing, when none does anything ...
const SLEEP_TICKS: u64 = 4;

/// ... or there are more lanes than this, beside those that do something again.
const LANES_FEW: usize = 64;

/// Windows between two looks when none has done anything for [`DEEP_NS`]: less than its terms last.
const DEEP_TICKS: u64 = 20;
const DEEP_NS: Nanos = 5_000_000_000;

/// Time for which unused allowance of a limit lasts.
const BURST_NS: u128 = 20_000_000;

const SECOND: Nanos = 1_000_000_000;
const NS: u128 = SECOND as u128;

/// In-flight room goes down by this much while a latency target is missed, and up again.
const ROOM_DOWN: f64 = 0.8;
const ROOM_UP: f64 = 1.1;
const ROOM_MIN: f64 = 0.1;

struct Seat<W> {
    id: SeatId,
    words: W,
    limits: Limits,
    terms: Terms,
    seen: Seen,
    active_until: Nanos,
    published_at: Nanos,
    memory: Memory,
    /// Parts of a request and of a byte that limits have yet to give, in billionths.
    rests: [u128; 2],
    /// Spent since the second began, and in millionths of all in the last one.
    second_spent: u64,
    achieved: u64,
    latencies: Vec<u64>,
    watched: audit::Watched,
    watch: Watch,
}

/// A lane's totals at the last tick.
#[derive(Clone, Copy, Default)]
struct Seen {
    spent: u64,
    done: u64,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    stayed_ns: u64,
    stayed: u64,
}

impl Seen {
    fn of(words: &impl Words) -> Seen {
        Seen {
            // Before `SPENT`, so that no more is done than was spent.
            done: words.load(lane::DONE, Acquire),
            spent: words.load(lane::SPENT, Acquire),
            requests: words.load(lane::REQUESTS, Relaxed),
            read_bytes: words.load(lane::READ_BYTES, Relaxed),
            written_bytes: words.load(lane::WRITTEN_BYTES, Relaxed),
            // The other way round: no more of them than time.
            stayed: words.load(lane::STAYED, Acquire),
            stayed_ns: words.load(lane::STAYED_NS, Relaxed),
        }
    }

    fn bytes(&self) -> u64 {
        self.read_bytes.wrapping_add(self.written_bytes)
    }
}

/// All lanes of a device.
pub struct Board<W> {
    rule: Rule,
    device: Device,
    planner: Planner,
    wdt: Wdt,
    seats: Vec<Seat<W>>,
    next_id: SeatId,
    last_tick: Nanos,
    /// Some lane was active then.
    awake: bool,
    /// When it was the last time.
    awake_at: Nanos,
    /// Counts ticks: which of the lanes that do nothing are looked at.
    turn: u64,
    second_end: Nanos,
    /// Part of the in-flight room that is given out: latency targets lower it.
    room: f64,
    /// What lanes that left said that they did, and at some time what all did.
    told_by_gone: u64,
    told: Option<(Nanos, u64)>,
    let_go_count: u64,
    /// When the watch looked last.
    looked_at: Nanos,
}

impl<W: Words> Board<W> {
    /// A board without lanes, at `now`.
    pub fn new(rule: Rule, device: Device, now: Nanos) -> Self {
        let mut planner = Planner::new(device.config);
        planner.set_capacity(device.capacity.unwrap_or(1.0));
        Board {
            rule,
            device,
            planner,
            wdt: Wdt::new(device.cost.read_bandwidth()),
            seats: Vec::new(),
            next_id: 0,
            last_tick: now,
            awake: true,
            awake_at: now,
            turn: 0,
            second_end: now + SECOND,
            room: 1.0,
            told_by_gone: 0,
            told: None,
            let_go_count: 0,
            looked_at: now,
        }
    }

    /// The device time per time that the ledger has found.
    pub fn capacity(&self) -> f64 {
        self.planner.capacity()
    }

    /// Whether there are no lanes.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Device time granted to each lane in this window.
    pub fn grants(&self) -> Vec<u64> {
        self.seats.iter().map(|seat| seat.terms.grant).collect()
    }

    /// Adds a lane and writes its page, so that it may start at once.
    pub fn join(&mut self, words: W, limits: Limits, now: Nanos) -> SeatId {
        let limits = limits.bounded();
        self.device.cost.store(&words);
        let seen = Seen::of(&words);
        let id = self.next_id;
        self.next_id += 1;
        self.wdt.add(limits.weight);
        self.seats.push(Seat {
            id,
            words,
            limits,
            terms: Terms { base: seen.spent, ..Terms::default() },
            seen,
            active_until: 0,
            published_at: now,
            memory: Memory::default(),
            rests: [0; 2],
            second_spent: 0,
            achieved: 0,
            latencies: Vec::new(),
            watched: audit::Watched::default(),
            watch: Watch::default(),
        });
        self.begin(self.seats.len() - 1, now);
        id
    }

    /// Takes a lane away.
    pub fn leave(&mut self, id: SeatId) {
        if let Some(index) = self.seats.iter().position(|seat| seat.id == id) {
            self.told_by_gone = self.told_by_gone.saturating_add(self.told_by(index));
            self.seats.remove(index);
            self.wdt.remove(index);
        }
    }

    /// Changes a lane's limits, from the next window on.
    pub fn set(&mut self, id: SeatId, limits: Limits) {
        if let Some(index) = self.seats.iter().position(|seat| seat.id == id) {
            let limits = limits.bounded();
            self.seats[index].limits = limits;
            self.wdt.set(index, limits.weight);
        }
    }

    /// A lane's limits.
    pub fn limits(&self, id: SeatId) -> Option<Limits> {
        self.seats.iter().find(|seat| seat.id == id).map(|seat| seat.limits)
    }

    /// The window of this rule.
    pub fn tick_ns(&self) -> Nanos {
        match self.rule {
            Rule::Static | Rule::Wdt | Rule::WdtSharedLock => wdt::WINDOW_NS,
            Rule::Ledger => self.planner.config().tick_ns,
        }
    }

    /// When [`Board::tick`] is due: the end of the window, or a look at who waits.
    pub fn next_tick(&self) -> Nanos {
        let asleep = self.last_tick.saturating_sub(self.awake_at);
        let ticks = match self.rule == Rule::Ledger && !self.awake {
            true if asleep >= DEEP_NS => DEEP_TICKS,
            true => SLEEP_TICKS,
            false => 1,
        };
        let due = self.last_tick + self.tick_ns() * ticks;
        self.next_look().map_or(due, |look| due.min(look))
    }

    /// Looks back and plans the next window. `depth`: requests that the device has now, if known.
    pub fn tick(&mut self, now: Nanos, depth: Option<u64>) {
        let elapsed = now.saturating_sub(self.last_tick);
        if elapsed < self.tick_ns() {
            return self.watch(now, depth);
        }
        match self.rule {
            Rule::Ledger => self.tick_ledger(now, elapsed, depth),
            Rule::Wdt | Rule::WdtSharedLock => self.tick_wdt(now),
            Rule::Static => self.tick_static(now),
        }
        self.watch(now, depth);
        self.last_tick = now;
        if now >= self.second_end {
            self.end_second(now);
        }
    }

    /// The first terms of a new lane.
    fn begin(&mut self, index: usize, now: Nanos) {
        match self.rule {
            Rule::Ledger => self.inform_idle(index, self.active_weight(now), now),
            Rule::Wdt | Rule::WdtSharedLock => {
                let seat = &mut self.seats[index];
                seat.terms.grant = self.wdt.budget(index) as u64;
                self.publish_wdt(index, now);
            }
            Rule::Static => self.publish_static(index, now),
        }
    }

    fn tick_ledger(&mut self, now: Nanos, elapsed: Nanos, depth: Option<u64>) {
        let (believable, tick_ns) = (self.planner.believable_ns(elapsed), self.tick_ns());
        let (mut active, mut looks, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        let parts = if self.awake && self.seats.len() > LANES_FEW { SLEEP_TICKS } else { 1 };
        self.turn = self.turn.wrapping_add(1);
        for (index, seat) in self.seats.iter_mut().enumerate() {
            if seat.active_until < now
                && !seat.stirs()
                && !self.turn.wrapping_add(index as u64).is_multiple_of(parts)
            {
                seat.watch.waits = false;
                continue;
            }
            let look = seat.look(now, believable, tick_ns);
            if seat.active_until >= now {
                active.push(index);
                looks.push(look);
            } else if now.saturating_sub(seat.published_at) >= IDLE_TICKS * tick_ns {
                idle.push(index);
            }
        }
        self.awake = !active.is_empty();
        if self.awake {
            self.awake_at = now;
        }
        self.note_idle(&active, &looks, elapsed);
        let shares = self.planner.plan(elapsed, depth, &mut looks);
        let weights = active.iter().map(|index| u64::from(self.seats[*index].limits.weight)).sum();
        let alone = active.len() == 1;
        for ((index, look), share) in active.into_iter().zip(&looks).zip(&shares) {
            self.inform(index, (look, share), (alone, weights), now);
        }
        idle.into_iter().for_each(|index| self.inform_idle(index, weights, now));
    }

    /// Books a window at whose end the device had nothing to do to the lanes that waited in it.
    fn note_idle(&self, active: &[usize], looks: &[LookBack], elapsed: Nanos) {
        if looks.iter().any(|look| look.inflight_ns > 0) {
            return;
        }
        for (index, _) in active.iter().zip(looks).filter(|(_, look)| look.short_of_credit) {
            self.seats[*index].words.add(note::IDLE_NS, elapsed, Relaxed);
        }
    }

    /// Weights of the lanes that are active.
    fn active_weight(&self, now: Nanos) -> u64 {
        let active = self.seats.iter().filter(|seat| seat.active_until >= now);
        active.map(|seat| u64::from(seat.limits.weight)).sum()
    }

    /// Tells an active lane what it may do.
    fn inform(
        &mut self,
        index: usize,
        (look, share): (&LookBack, &Share),
        (alone, weights): (bool, u64),
        now: Nanos,
    ) {
        let tick_ns = self.tick_ns();
        let config = *self.planner.config();
        let (room, low_water) = (self.room, self.planner.low_water());
        let request_cost = self.planner.request_ns();
        let per_second = self.planner.capacity() * 1e9;
        let seat = &mut self.seats[index];
        let weight = u64::from(seat.limits.weight);
        seat.memory = look.memory;
        let inflight_max = match share.inflight_ns_max {
            u64::MAX => u64::MAX,
            most => (most as f64 * room) as u64,
        };
        let limited = seat.limit(now, tick_ns);
        let part = weight as f64 / weights.max(1) as f64;
        let slice_ns = tick_ns / config.slice_count;
        seat.terms = Terms {
            flags: match (alone && !limited, alone || share.free) {
                (true, _) => flag::OPEN,
                (false, true) => flag::FREE,
                (false, false) => 0,
            },
            start: now - seat.phase(slice_ns).min(now),
            tick: tick_ns,
            slices: config.slice_count,
            low_water,
            request_cost,
            base: seat.seen.spent.wrapping_add(share.balance_ns as u64),
            grant: share.grant_ns,
            overdraft: seat.seen.spent.wrapping_add(share.debt_ns),
            inflight_max,
            stale_at: now + STALE_TICKS * tick_ns,
            fallback: (part * per_second) as u64,
            entitled: (part * 1e6) as u64,
            achieved: seat.achieved,
            ..seat.terms
        };
        seat.publish(now);
    }

    /// Tells a lane that does nothing how it may begin beside others of these weights. What it
    /// does shows at the next look.
    fn inform_idle(&mut self, index: usize, others: u64, now: Nanos) {
        let tick_ns = self.tick_ns();
        let capacity = self.planner.capacity();
        let (inflight_max, low_water) = (self.planner.base_ns(), self.planner.low_water());
        let request_cost = self.planner.request_ns();
        let seat = &mut self.seats[index];
        let weight = u64::from(seat.limits.weight);
        let part = weight as f64 / (others + weight) as f64;
        let fair = (part * capacity * tick_ns as f64) as u64;
        seat.limit(now, tick_ns);
        seat.terms = Terms {
            flags: 0,
            start: now,
            tick: tick_ns,
            slices: 1,
            low_water,
            request_cost,
            base: seat.seen.spent,
            grant: 0,
            overdraft: seat.seen.spent.wrapping_add(if others == 0 { fair } else { fair / 4 }),
            inflight_max: inflight_max.max(fair / 4),
            stale_at: now + 3 * IDLE_TICKS * tick_ns,
            fallback: (part * capacity * 1e9) as u64,
            entitled: (part * 1e6) as u64,
            achieved: seat.achieved,
            ..seat.terms
        };
        seat.publish(now);
    }

    /// Once a second: who got what, and whether latency targets are met.
    fn end_second(&mut self, now: Nanos) {
        self.second_end = now + SECOND;
        let all: u128 = self.seats.iter().map(|seat| u128::from(seat.second_spent)).sum();
        let mut missed = None;
        for seat in &mut self.seats {
            let spent = u128::from(std::mem::take(&mut seat.second_spent));
            seat.achieved = (spent * 1_000_000).checked_div(all).unwrap_or(0) as u64;
            if let Some(target) = seat.limits.latency_ns
                && let Some(p99) = seat.second_p99()
            {
                missed = Some(missed.unwrap_or(false) || p99 > target);
            }
        }
        self.room = match missed {
            Some(true) => (self.room * ROOM_DOWN).max(ROOM_MIN),
            Some(false) | None => (self.room * ROOM_UP).min(1.0),
        };
    }
}

impl<W: Words> Seat<W> {
    /// A lane that did nothing does something again.
    fn stirs(&self) -> bool {
        self.words.load(lane::SPENT, Relaxed) != self.seen.spent
            || self.words.load(lane::SHORT_IN, Relaxed) == self.terms.window
    }

    /// What the lane did since the last tick.
    fn look(&mut self, now: Nanos, believable: u64, tick_ns: Nanos) -> LookBack {
        let (last, seen) = (self.seen, Seen::of(&self.words));
        self.seen = seen;
        let gone = |new: u64, old: u64| (ahead(new, old).max(0) as u64).min(believable);
        let spent_ns = gone(seen.spent, last.spent);
        let requests = gone(seen.requests, last.requests);
        self.second_spent = self.second_spent.saturating_add(spent_ns);
        let in_window = |word| self.words.load(word, Relaxed) == self.terms.window;
        let inflight_ns = ahead(seen.spent, seen.done).max(0) as u64;
        let (says_short, says_crowded) = (in_window(lane::SHORT_IN), in_window(lane::CROWDED_IN));
        self.watch.waits = says_short || says_crowded;
        let done_ns = gone(seen.done, last.done);
        let (left_ns, released_ns) = self.left(now);
        // It may have been short before the last slices were released, or its last request was
        // answered. What is not so by its own account is a lie.
        let short_of_credit = says_short && left_ns <= released_ns;
        let had_ns = inflight_ns.saturating_add(done_ns);
        let short_of_room = says_crowded && had_ns >= self.terms.inflight_max;
        let wants = inflight_ns > 0 || short_of_credit || short_of_room;
        self.watched.hear(wants, tick_ns);
        if spent_ns > 0 || wants {
            self.active_until = now + IDLE_NS;
        }
        LookBack {
            weight: self.limits.weight,
            spent_ns,
            done_ns,
            requests,
            inflight_ns,
            stayed_ns: ahead(seen.stayed_ns, last.stayed_ns).max(0) as u64,
            stayed: gone(seen.stayed, last.stayed),
            grant_ns: self.terms.grant,
            left_ns,
            short_of_credit,
            short_of_room,
            limited: self.is_limited(),
            floor_ns: self.floor_ns(tick_ns),
            memory: self.memory,
        }
    }

    /// So much earlier than the window its slices begin: lanes that wait go one after the other,
    /// not all at once.
    fn phase(&self, slice_ns: Nanos) -> Nanos {
        (self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % slice_ns.max(1)
    }

    /// What is in the account, and what of it was released since the last window: slices only say
    /// when it may be spent. No lane owes for a time in which nothing was limited.
    fn left(&self, now: Nanos) -> (i64, i64) {
        if self.terms.flags & (flag::OPEN | flag::FREE) != 0 {
            return (0, 0);
        }
        let elapsed = u128::from(now.saturating_sub(self.published_at));
        let part = elapsed * u128::from(self.terms.grant) / u128::from(self.terms.tick.max(1));
        let left = ahead(self.terms.base.wrapping_add(part as u64), self.seen.spent);
        (left, i64::try_from(part).unwrap_or(i64::MAX))
    }

    /// Device time that the lane's minima take in a window.
    fn floor_ns(&self, tick_ns: Nanos) -> u64 {
        let part = |total: u64, rate: Option<u64>| match (total, rate) {
            (0, _) | (_, None) => 0,
            (total, Some(rate)) => {
                let each = self.seen.spent as f64 / total as f64;
                (each * rate as f64 * tick_ns as f64 / 1e9) as u64
            }
        };
        let requests = part(self.seen.requests, self.limits.requests_min);
        requests.max(part(self.seen.bytes(), self.limits.bytes_min))
    }

    /// Moves the limits on by a window; whether there are any.
    fn limit(&mut self, now: Nanos, tick_ns: Nanos) -> bool {
        let elapsed = u128::from(now.saturating_sub(self.published_at).max(tick_ns));
        let next = |rate: Option<u64>, last: Option<u64>, total: u64, rest: &mut u128| {
            let rate = u128::from(rate?);
            let burst = rate * BURST_NS.max(u128::from(tick_ns)) / NS;
            let most = total.wrapping_add(burst.max(1) as u64);
            // What is less than one stays for the next window, or slow limits would not hold.
            let all = rate * elapsed + *rest;
            *rest = all % NS;
            let last = last.unwrap_or(total).wrapping_add((all / NS) as u64);
            Some(if ahead(last, most) > 0 { most } else { last })
        };
        let (terms, limits, [one, two]) = (&mut self.terms, &self.limits, &mut self.rests);
        terms.requests_max = next(limits.requests_max, terms.requests_max, self.seen.requests, one);
        terms.bytes_max = next(limits.bytes_max, terms.bytes_max, self.seen.bytes(), two);
        terms.requests_max.is_some() || terms.bytes_max.is_some()
    }

    /// Credits used in WDT's window, and for how long there were any.
    fn wdt_use(&mut self, from: Nanos, now: Nanos) -> wdt::Use {
        let look = self.look(now, u64::MAX >> 2, wdt::WINDOW_NS);
        let since = self.words.load(lane::SHORT_SINCE, Relaxed);
        let end = if look.short_of_credit { since.clamp(from, now) } else { now };
        wdt::Use { credits: look.spent_ns as f64, active_ns: (end - from).max(1) }
    }

    /// The latency that 99 per cent of the last second's requests stayed below.
    fn second_p99(&mut self) -> Option<u64> {
        let now: Vec<u64> = (0..counters::BUCKETS)
            .map(|bucket| self.words.load(counters::LATENCY + bucket, Relaxed))
            .collect();
        let last = std::mem::replace(&mut self.latencies, now);
        let before = |bucket: usize| last.get(bucket).copied().unwrap_or(0);
        let counts: Vec<u64> = self
            .latencies
            .iter()
            .enumerate()
            .map(|(bucket, count)| count.wrapping_sub(before(bucket)))
            .collect();
        lane_side::percentile(&counts, 0.99)
    }

    fn publish(&mut self, now: Nanos) {
        self.words.store(note::WEIGHT, self.limits.weight.into(), Relaxed);
        self.published_at = now;
        self.terms.window = self.terms.publish(&self.words);
    }
}
