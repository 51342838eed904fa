//! Which lanes wait at the device for what others have there.

use super::memory::{Relief, Seems};
use super::{LookBack, Planner};

/// Requests stay at the device for so many times what they take alone, and half a slice for those
/// that went together with them: there is a queue.
const QUEUED: f64 = 2.0;

/// A lane whose requests stay for so many times what they take alone, and half a slice, may be
/// hurt.
const SLOWED: f64 = 1.5;

/// Where less than this part of the most that was done is done on average, lanes leave credit for
/// other reasons than the device, such as CPUs.
const USED_MIN: f64 = 0.85;

impl Planner {
    pub(super) fn base_of(&self, lane: &LookBack) -> f64 {
        if lane.memory.base_ns > 0.0 { lane.memory.base_ns } else { self.base_ns }
    }

    /// Its requests stay at the device for so many times what they take alone, and half a slice.
    fn stays(&self, lane: &LookBack, times: f64) -> bool {
        let burst_ns = (self.config.tick_ns / self.config.slice_count) as f64 / 2.0;
        lane.memory.stay_ns() > times * self.base_of(lane) + burst_ns
    }

    /// Its requests wait at the device.
    pub(super) fn is_queued(&self, lane: &LookBack) -> bool {
        let wants = lane.wants_more() && lane.inflight_ns > 0 && !self.water.is_below();
        wants && self.stays(lane, QUEUED)
    }

    /// Whether it has credit that it does not use although it always has requests at a device that
    /// works, and whether they take longer than alone.
    pub(super) fn seems_hurt(&self, lane: &LookBack) -> Seems {
        let wants = lane.wants_more() && lane.inflight_ns > 0;
        if !lane.leaves_credit() || lane.waits() || !wants || self.water.is_idle() {
            return Seems::Not;
        }
        match self.stays(lane, SLOWED) {
            true => Seems::Slowed,
            false if self.is_used() => Seems::Perhaps,
            false => Seems::Not,
        }
    }

    /// As much is done as the device was seen to do.
    fn is_used(&self) -> bool {
        self.done_long >= USED_MIN * self.best_long[0].max(self.best_long[1])
    }

    /// It has credit that it cannot use because its requests wait behind others', and something is
    /// done for it.
    pub(super) fn is_hurt(&self, lane: &LookBack) -> bool {
        lane.memory.relief() > Relief::None
    }

    /// What it leaves, the others do not get.
    pub(super) fn keeps_all(&self, lane: &LookBack) -> bool {
        lane.memory.relief() == Relief::All
    }

    /// It is hurt, and has so few requests that they wait behind all of the others', until it gets
    /// what its weight gives it.
    pub(super) fn is_crowded_out(&self, lane: &LookBack) -> bool {
        lane.memory.has_few() && lane.memory.deprived && self.is_hurt(lane)
    }
}
