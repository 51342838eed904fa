//! What a board knows of its lanes for an audit: see [`crate::qos::audit`].

use std::sync::atomic::Ordering::Relaxed;

use super::{Board, Rule, SECOND, SeatId};
use crate::qos::Nanos;
use crate::qos::audit::{Audit, Decision, Flows, Look};
use crate::qos::cost::{CostModel, PAGE_BYTES};
use crate::qos::page::{Words, ahead, lane};

/// What is kept of a lane for its audit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    audit: Audit,
    /// How often of late it wanted more, 0 to 1.
    wants: f64,
    last: Option<Last>,
}

/// Totals at the last look.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Nanos,
    counted: Flows,
    said: Said,
    others: u64,
}

/// What a page says.
#[derive(Clone, Copy, Debug)]
struct Said {
    spent: u64,
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
}

/// Time over which it is averaged whether a lane wants more.
const WANTS_NS: f64 = 320e6;

/// A lane that wanted more for this part of it does.
const WANTS: f64 = 0.3;

impl Said {
    fn of(words: &impl Words) -> Said {
        let get = |word| words.load(word, Relaxed);
        Said {
            spent: get(lane::SPENT),
            requests: get(lane::REQUESTS),
            read_bytes: get(lane::READ_BYTES),
            written_bytes: get(lane::WRITTEN_BYTES),
        }
    }

    /// What was added to it since.
    fn since(&self, last: &Said) -> Said {
        let grown = |new: u64, old: u64| ahead(new, old).max(0) as u64;
        Said {
            spent: grown(self.spent, last.spent),
            requests: grown(self.requests, last.requests),
            read_bytes: grown(self.read_bytes, last.read_bytes),
            written_bytes: grown(self.written_bytes, last.written_bytes),
        }
    }

    /// What that comes to, by the account or by the counters, whichever is less: a lie in one of
    /// them is as good as in both.
    fn units(&self, rule: Rule, cost: &CostModel) -> u64 {
        let bytes = (self.read_bytes, self.written_bytes);
        let counted = match in_sectors(rule) {
            true => sectors(bytes.0, bytes.1),
            false => least_ns(cost, self.requests, bytes),
        };
        self.spent.min(counted)
    }
}

fn in_sectors(rule: Rule) -> bool {
    matches!(rule, Rule::Wdt | Rule::WdtSharedLock)
}

fn sectors(read: u64, written: u64) -> u64 {
    read.saturating_add(written) / 512
}

/// The least that requests can cost: as if each went on where the last one ended, in the cheaper
/// direction. A page does not tell requests by direction, so nor does what is compared with it.
fn least_ns(cost: &CostModel, requests: u64, (read, written): (u64, u64)) -> u64 {
    let each = cost.read.sequential_ns.min(cost.write.sequential_ns);
    let pages = |bytes: u64, ns: u64| (bytes / PAGE_BYTES).saturating_mul(ns);
    requests
        .saturating_mul(each)
        .saturating_add(pages(read, cost.read.page_ns))
        .saturating_add(pages(written, cost.write.page_ns))
}

impl Watched {
    /// After each window: whether the lane wants more than it does.
    pub(super) fn hear(&mut self, wants: bool, tick_ns: Nanos) {
        let part = (tick_ns as f64 / WANTS_NS).min(1.0);
        self.wants += (f64::from(u8::from(wants)) - self.wants) * part;
    }
}

impl<W: Words> Board<W> {
    /// Compares what a lane says with what the kernel counted for its process, totals of which are
    /// given, and decides what the kernel is to hold it to. To be called about once a second.
    pub fn audit(&mut self, id: SeatId, counted: Flows, now: Nanos) -> Decision {
        let Some(index) = self.seats.iter().position(|seat| seat.id == id) else {
            return Decision::Keep;
        };
        let others = self.told_by_all(now).saturating_sub(self.told_by(index));
        let (rule, cost) = (self.rule, self.device.cost);
        let said = Said::of(&self.seats[index].words);
        let this = Last { at: now, counted, said, others };
        let Some(last) = self.seats[index].watched.last.replace(this) else {
            return Decision::Keep;
        };
        let weight = u64::from(self.seats[index].limits.weight);
        let (mut weights, mut contended) = (weight, false);
        for (other, seat) in self.seats.iter().enumerate() {
            if other != index && seat.active_until >= now {
                weights += u64::from(seat.limits.weight);
                contended |= seat.watched.wants > WANTS;
            }
        }
        let counted = counted.since(last.counted);
        let did = match in_sectors(rule) {
            true => sectors(counted.read.bytes, counted.write.bytes),
            false => {
                let requests = counted.read.requests.saturating_add(counted.write.requests);
                least_ns(&cost, requests, (counted.read.bytes, counted.write.bytes))
            }
        };
        self.seats[index].watched.audit.look(&Look {
            seconds: now.saturating_sub(last.at) as f64 / SECOND as f64,
            counted,
            did,
            said: said.since(&last.said).units(rule, &cost),
            others: others.saturating_sub(last.others),
            part: weight as f64 / weights.max(1) as f64,
            contended,
        })
    }

    /// What a lane is held to by the kernel, per second.
    pub fn bound(&self, id: SeatId) -> Option<Flows> {
        self.seats.iter().find(|seat| seat.id == id)?.watched.audit.bound()
    }

    /// What a lane said that it did since it joined.
    pub(super) fn told_by(&self, index: usize) -> u64 {
        Said::of(&self.seats[index].words).units(self.rule, &self.device.cost)
    }

    /// The same of all, those that left among them. Several are audited at a time.
    fn told_by_all(&mut self, now: Nanos) -> u64 {
        match self.told {
            Some((at, told)) if at == now => told,
            _ => {
                let each = (0..self.seats.len()).map(|index| self.told_by(index));
                let told = each.fold(self.told_by_gone, u64::saturating_add);
                self.told = Some((now, told));
                told
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use polylane_base::rng::Rng;

    use super::*;
    use crate::qos::audit::Flow;
    use crate::qos::board::{Device, Limits};
    use crate::qos::cost::Line;
    use crate::qos::page::Private;
    use crate::qos::{Io, Kind};

    const TICK: Nanos = 5_000_000;

    /// Two lanes of one weight, both of which always have something at the device; what the kernel
    /// counts of the first.
    struct World {
        board: Board<Arc<Private>>,
        pages: [Arc<Private>; 2],
        seats: [SeatId; 2],
        counted: Flows,
        now: Nanos,
    }

    impl World {
        fn new(rule: Rule) -> World {
            let mut board = Board::new(rule, Device::default(), 0);
            let pages = [Arc::new(Private::default()), Arc::new(Private::default())];
            let seats =
                [0, 1].map(|lane: usize| board.join(pages[lane].clone(), Limits::default(), 0));
            World { board, pages, seats, counted: Flows::default(), now: 0 }
        }

        /// A lane reads a page so many times, and says so or not.
        fn read(&mut self, lane: usize, count: u64, says: bool) {
            if lane == 0 {
                self.counted.read.requests += count;
                self.counted.read.bytes += count * 4096;
            }
            if says {
                let cost = match in_sectors(self.board.rule) {
                    true => count * 8,
                    false => count * 10_000,
                };
                self.pages[lane].add(lane::SPENT, cost, Relaxed);
                self.pages[lane].add(lane::REQUESTS, count, Relaxed);
                self.pages[lane].add(lane::READ_BYTES, count * 4096, Relaxed);
            }
        }

        /// A second of windows; `act` is called in each.
        fn second(&mut self, mut act: impl FnMut(&mut World)) -> Decision {
            for _ in 0..200 {
                self.now += TICK;
                act(self);
                self.board.tick(self.now, None);
            }
            self.board.audit(self.seats[0], self.counted, self.now)
        }
    }

    /// The other lane has 20 requests in each window, and always one at the device.
    fn second(world: &mut World, count: u64, says: bool) -> Decision {
        world.second(|world| {
            world.read(0, count, says);
            world.read(1, 20, true);
        })
    }

    #[test]
    fn a_lane_that_does_not_say_what_it_does_is_bound_to_its_part() {
        for rule in [Rule::Ledger, Rule::Wdt, Rule::Static] {
            let mut world = World::new(rule);
            let decisions: Vec<_> = (0..6).map(|_| second(&mut world, 400, false)).collect();
            assert_eq!(decisions[..3], [Decision::Keep; 3], "{rule:?}: the first look is none");
            let Decision::Bind(bound) = decisions[3] else { panic!("{rule:?}: {decisions:?}") };
            // 80 000 requests by the kernel's count, 4000 by what the other one says.
            let half = (41_500..=42_500).contains(&bound.read.requests);
            assert!(half, "{rule:?}: {bound:?}");
            assert!(world.board.bound(world.seats[0]).is_some(), "{rule:?}");
        }
    }

    #[test]
    fn a_lane_that_says_it_is_not_bound() {
        for rule in Rule::ALL {
            let mut world = World::new(rule);
            for _ in 0..12 {
                assert_eq!(second(&mut world, 400, true), Decision::Keep, "{rule:?}");
            }
        }
    }

    /// Small writes, which cost more than reads, by any device's costs; some are split on their
    /// way, and some are counted in another second than they are said in.
    #[test]
    fn a_lane_that_writes_and_says_it_is_not_bound() {
        let mut rng = Rng::new(24);
        for round in 0..40 {
            let mut world = World::new(Rule::Ledger);
            let mut line = || Line {
                sequential_ns: 200 + rng.below(20_000),
                random_ns: 20_000,
                page_ns: 100 + rng.below(8000),
            };
            let (read, write) = (line(), line());
            if round > 0 {
                world.board.device.cost = CostModel { read, write, ..CostModel::default() };
            }
            let (cost, mut late) = (world.board.device.cost, 0);
            for second in 0..12 {
                let decision = world.second(|world| {
                    let (count, held) = (400, rng.below(40));
                    let arrived = count + std::mem::replace(&mut late, held) - held;
                    world.counted.write.requests += arrived + arrived / 10;
                    world.counted.write.bytes += arrived * 4096;
                    let io = Io { kind: Kind::Write, bytes: 4096, sequential: true };
                    let page = &world.pages[0];
                    page.add(lane::SPENT, count * cost.cost_ns(&io), Relaxed);
                    page.add(lane::REQUESTS, count, Relaxed);
                    page.add(lane::WRITTEN_BYTES, count * 4096, Relaxed);
                    world.read(1, 20, true);
                });
                assert_eq!(decision, Decision::Keep, "{cost:?}, second {second}");
            }
        }
    }

    #[test]
    fn a_lane_that_lies_in_one_word_only_is_bound_as_well() {
        for word in [lane::SPENT, lane::REQUESTS] {
            let mut world = World::new(Rule::Ledger);
            let mut bound = false;
            for _ in 0..8 {
                let decision = world.second(|world| {
                    world.read(0, 400, true);
                    world.read(1, 20, true);
                    world.pages[0].store(word, 7, Relaxed);
                });
                bound |= matches!(decision, Decision::Bind(_));
            }
            assert!(bound, "word {word}");
        }
    }

    #[test]
    fn others_that_leave_do_not_count_backwards() {
        let mut world = World::new(Rule::Ledger);
        second(&mut world, 400, true);
        let third = Arc::new(Private::default());
        let seat = world.board.join(third, Limits::default(), world.now);
        second(&mut world, 400, true);
        world.board.leave(seat);
        let before = world.board.told_by_all(world.now);
        assert_eq!(second(&mut world, 400, true), Decision::Keep);
        assert!(world.board.told_by_all(world.now) > before);
        let nobody = world.board.audit(99, Flows { read: Flow::default(), ..world.counted }, 0);
        assert_eq!(nobody, Decision::Keep);
    }
}
