//! No policy stops a device: whatever lanes come, go and ask for, a request waits beside an idle
//! device for a second at most.

use std::collections::VecDeque;
use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_block::qos::board::{Board, Device, Limits, Rule, SeatId};
use polylane_block::qos::cost::CostModel;
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Private, Words, lane as words};
use polylane_block::qos::{Io, Kind, Nanos, Verdict};

const MILLISECOND: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;

/// How long a request may be held while the device has nothing to do.
const HELD_MAX: Nanos = SECOND;

/// A lane and what it wants.
struct Tenant {
    seat: SeatId,
    page: Arc<Private>,
    lane: Lane<Arc<Private>>,
    /// Requests that it keeps wanting while it is active.
    depth: usize,
    sizes: (u64, u64),
    kind: Option<Kind>,
    active_until: Nanos,
    idle_until: Nanos,
    waiting: VecDeque<Io>,
    /// At the device: when each ends, and what it was.
    sent: VecDeque<(Nanos, Io)>,
    /// How long its first request has waited beside an idle device.
    held: Nanos,
}

struct World {
    rng: Rng,
    rule: Rule,
    board: Board<Arc<Private>>,
    tenants: Vec<Tenant>,
    cost: CostModel,
    /// When the device has done what it has.
    free_at: Nanos,
    /// The coordinator does nothing until then.
    dead_until: Nanos,
    worst: Nanos,
    done: u64,
}

impl World {
    fn new(rule: Rule, seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            rule,
            board: Board::new(rule, Device::default(), 0),
            tenants: Vec::new(),
            cost: CostModel::default(),
            free_at: 0,
            dead_until: 0,
            worst: 0,
            done: 0,
        }
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn join(&mut self, now: Nanos) {
        let weight = self.pick(&[1, 10, 100, 1000, 10_000]);
        let page = Arc::new(Private::default());
        let seat = self.board.join(page.clone(), Limits { weight, ..Limits::default() }, now);
        let smallest = self.pick(&[512, 4096, 65_536, 1 << 20]);
        let kinds =
            [None, Some(Kind::Read), Some(Kind::Write), Some(Kind::Discard), Some(Kind::Flush)];
        let tenant = Tenant {
            seat,
            page: page.clone(),
            lane: Lane::new(page, None),
            depth: self.pick(&[1, 2, 8, 64]),
            sizes: (smallest, self.pick(&[1, 1, 8, 32])),
            kind: self.pick(&kinds),
            active_until: 0,
            // Many do nothing at first.
            idle_until: now + self.pick(&[0, SECOND, 3 * SECOND, 7 * SECOND]),
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            held: 0,
        };
        self.tenants.push(tenant);
    }

    /// Lanes come, go, and change their weight; at times there is no coordinator.
    fn change(&mut self, now: Nanos) {
        match self.rng.below(40) {
            0..4 if self.tenants.len() < 8 => self.join(now),
            4 if self.tenants.len() > 1 => {
                let index = self.rng.below(self.tenants.len() as u64) as usize;
                let gone = self.tenants.swap_remove(index);
                self.board.leave(gone.seat);
            }
            5..9 if !self.tenants.is_empty() => {
                let index = self.rng.below(self.tenants.len() as u64) as usize;
                let weight = self.pick(&[1, 50, 2000, 10_000]);
                let limits = Limits { weight, ..Limits::default() };
                self.board.set(self.tenants[index].seat, limits);
            }
            9 => self.dead_until = now + self.pick(&[100 * MILLISECOND, 5 * SECOND]),
            _ => {}
        }
    }

    fn request(&mut self, index: usize) -> Io {
        let (smallest, times) = self.tenants[index].sizes;
        let bytes = smallest * (1 + self.rng.below(times));
        let kind = match self.tenants[index].kind {
            Some(kind) => kind,
            None => self.pick(&[Kind::Read, Kind::Write, Kind::Discard]),
        };
        Io { kind, bytes, sequential: self.rng.below(2) == 0 }
    }

    fn step(&mut self, now: Nanos) {
        self.answer(now);
        if now >= self.dead_until && now >= self.board.next_tick() {
            let depth = self.tenants.iter().map(|tenant| tenant.sent.len() as u64).sum();
            self.board.tick(now, (self.rng.below(4) > 0).then_some(depth));
        }
        let idle = now >= self.free_at;
        for index in 0..self.tenants.len() {
            self.serve(index, now, idle);
        }
    }

    fn answer(&mut self, now: Nanos) {
        for tenant in &mut self.tenants {
            while tenant.sent.front().is_some_and(|(end, _)| *end <= now) {
                let Some((_, io)) = tenant.sent.pop_front() else { break };
                tenant.lane.complete(tenant.lane.cost(&io));
                self.done += 1;
            }
        }
    }

    fn serve(&mut self, index: usize, now: Nanos, idle: bool) {
        if now >= self.tenants[index].active_until && now >= self.tenants[index].idle_until {
            let (busy, rest) = (self.rng.below(4000), self.rng.below(3000));
            let tenant = &mut self.tenants[index];
            tenant.active_until = now + busy * MILLISECOND;
            tenant.idle_until = tenant.active_until + rest * MILLISECOND;
        }
        while now < self.tenants[index].active_until
            && self.tenants[index].waiting.len() + self.tenants[index].sent.len()
                < self.tenants[index].depth
        {
            let io = self.request(index);
            self.tenants[index].waiting.push_back(io);
        }
        let tenant = &mut self.tenants[index];
        while let Some(io) = tenant.waiting.front().copied() {
            if let Verdict::Wait(_) = tenant.lane.admit(&io, || now) {
                tenant.held += if idle { MILLISECOND } else { 0 };
                self.worst = self.worst.max(tenant.held);
                return;
            }
            tenant.waiting.pop_front();
            tenant.held = 0;
            self.free_at = self.free_at.max(now) + self.cost.cost_ns(&io);
            tenant.sent.push_back((self.free_at, io));
        }
    }
}

#[test]
fn no_request_waits_for_more_than_a_second_beside_an_idle_device() {
    for rule in Rule::ALL {
        for seed in 0..12 {
            let mut world = World::new(rule, seed);
            world.join(0);
            for millisecond in 0..30_000 {
                let now = SECOND + millisecond * MILLISECOND;
                if millisecond % 100 == 0 {
                    world.change(now);
                }
                world.step(now);
            }
            let what =
                format!("{} of seed {seed}: {} ms", world.rule.name(), world.worst / MILLISECOND);
            assert!(world.worst <= HELD_MAX, "{what}");
            assert!(world.done > 0, "{what}");
        }
    }
}

/// What the total of WDT's credits comes from is what its heaviest lane did. In its first second it
/// does nothing.
#[test]
fn a_lane_that_is_idle_at_first_stops_nobody() {
    for rule in Rule::ALL {
        let mut world = World::new(rule, 7);
        world.join(0);
        let tenant = &mut world.tenants[0];
        (tenant.depth, tenant.sizes, tenant.kind) = (1, (1 << 20, 1), Some(Kind::Read));
        (tenant.idle_until, tenant.active_until) = (12 * SECOND, 0);
        let mut done = Vec::new();
        for millisecond in 0..40_000 {
            world.step(SECOND + millisecond * MILLISECOND);
            // It always wants more from then on.
            let tenant = &mut world.tenants[0];
            if millisecond > 12_000 {
                (tenant.active_until, tenant.idle_until) = (60 * SECOND, 60 * SECOND);
            }
            if millisecond % 1000 == 0 {
                done.push(world.done);
            }
        }
        assert!(world.worst <= HELD_MAX, "{}: {}", rule.name(), world.worst);
        let each_second = done[15..].windows(2).all(|pair| pair[1] > pair[0]);
        assert!(each_second, "{}: {done:?}", rule.name());
    }
}

/// What a lane says that it has at the device need not be so.
#[test]
fn a_lane_that_claims_work_for_ever_does_not_stop_the_watch() {
    for rule in [Rule::Static, Rule::Wdt, Rule::WdtSharedLock] {
        let mut world = World::new(rule, 3);
        for _ in 0..2 {
            world.join(0);
        }
        world.tenants[0].idle_until = 60 * SECOND;
        world.tenants[0].page.store(words::SPENT, 1 << 40, std::sync::atomic::Ordering::Relaxed);
        let tenant = &mut world.tenants[1];
        (tenant.depth, tenant.sizes, tenant.kind) = (4, (1 << 20, 32), Some(Kind::Write));
        (tenant.active_until, tenant.idle_until) = (60 * SECOND, 60 * SECOND);
        for millisecond in 0..30_000 {
            world.step(SECOND + millisecond * MILLISECOND);
        }
        assert!(world.worst <= HELD_MAX, "{}: {}", rule.name(), world.worst);
    }
}
