//! The default policy, `ledger`, in one process: lanes spend device time, a coordinator grants it
//! every few milliseconds.
//!
//! ```text
//! lane:         admit  cost <= what is granted and not spent?  room in flight?   ─► go, charged
//! coordinator:  tick   who wanted more, who left over, what was done
//!                      ─► capacity ─► weighted max-min over demand ─► grants for the next window
//! ```
//!
//! This is the very code that runs between processes ([`Lane`], [`Board`], [`plan`](super::plan))
//! on pages in private memory, as a [`Policy`] for the simulated device: what is measured and
//! tested there is what lanes do.

use std::collections::VecDeque;
use std::sync::Arc;

use polylane_base::sync::Mutex;

use super::board::{Board, Device, Limits, Rule, SeatId};
use super::cost::CostModel;
use super::depth::{AtDevice, Depth};
use super::lane::Lane;
use super::page::Private;
pub use super::plan::Config;
use super::{Io, Nanos, Policy, Verdict};

/// The policy.
pub struct Ledger {
    board: Board<Arc<Private>>,
    lanes: Vec<Seated>,
    depth: Arc<Told>,
}

/// What was said that the device has, if anything was.
#[derive(Debug, Default)]
struct Told(Mutex<Option<AtDevice>>);

impl Depth for Told {
    fn look(&self) -> Option<AtDevice> {
        *self.0.lock()
    }
}

/// A lane of this process.
struct Seated {
    seat: SeatId,
    lane: Lane<Arc<Private>>,
    /// When its requests in flight went, the oldest first. Which of them is answered does not
    /// matter to the mean.
    sent: VecDeque<Nanos>,
}

impl Ledger {
    /// A ledger of a device with these costs, by which it has a capacity of 1.
    pub fn new(cost: CostModel, config: Config) -> Self {
        Ledger::with_rule(Rule::Ledger, cost, config)
    }

    /// Another rule by the same code.
    pub fn with_rule(rule: Rule, cost: CostModel, config: Config) -> Self {
        let device = Device { cost, config, capacity: None };
        let depth = Arc::new(Told::default());
        Ledger { board: Board::new(rule, device, 0), lanes: Vec::new(), depth }
    }

    /// The capacity as estimated: device time per time, 1 when the cost model is right.
    pub fn capacity(&self) -> f64 {
        self.board.capacity()
    }

    /// Device time granted to each lane in this window.
    pub fn grants(&self) -> Vec<u64> {
        self.board.grants()
    }

    /// Changes all limits of a lane.
    pub fn set_limits(&mut self, lane: usize, limits: Limits) {
        self.board.set(self.lanes[lane].seat, limits);
    }

    /// Takes a lane away; its requests go on unlimited by the others.
    pub fn remove(&mut self, lane: usize) {
        self.board.leave(self.lanes[lane].seat);
    }
}

impl Policy for Ledger {
    fn add_lane(&mut self, weight: u32) -> usize {
        let page = Arc::new(Private::default());
        let limits = Limits { weight, ..Limits::default() };
        let seat = self.board.join(page.clone(), limits, 0);
        let lane = Lane::new(page, None).with_depth(Some(self.depth.clone()));
        self.lanes.push(Seated { seat, lane, sent: VecDeque::new() });
        self.lanes.len() - 1
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        let seat = self.lanes[lane].seat;
        let limits = self.board.limits(seat).unwrap_or_default();
        self.board.set(seat, Limits { weight, ..limits });
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let Seated { lane, sent, .. } = &mut self.lanes[lane];
        let verdict = lane.admit(io, || now);
        if verdict == Verdict::Go {
            sent.push_back(now);
        }
        verdict
    }

    fn complete(&mut self, now: Nanos, lane: usize, io: &Io) {
        let Seated { lane, sent, .. } = &mut self.lanes[lane];
        lane.complete(lane.cost(io));
        if let Some(sent) = sent.pop_front() {
            lane.note_stay(now.saturating_sub(sent));
        }
    }

    fn at_device(&mut self, now: AtDevice) {
        *self.depth.0.lock() = Some(now);
    }

    fn tick(&mut self, now: Nanos) {
        self.board.tick(now, self.depth.requests());
    }

    fn next_tick(&self) -> Nanos {
        self.board.next_tick()
    }
}
