//! How many requests a device must have at least so that nobody need wait.

/// It is never more: what the kernel queues for a disk, about.
const LOW_MAX: f64 = 1024.0;

/// So many times more, and one, for each look at which the device had nothing although a lane was
/// held back; and back by so much of the difference at each other one.
const RISE: f64 = 1.25;
const FALL: f64 = 0.02;

/// Beside a lane that has few requests it is so many times what keeps the device busy, at most: so
/// many times longer than alone do requests stay there then.
const BESIDE_SMALL: f64 = 2.0;

/// The low water of a device: with fewer requests there it may run dry before the next lane looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LowWater {
    requests: f64,
    /// At the last look there were fewer.
    below: bool,
}

impl LowWater {
    /// A look: `depth` requests at the device, if that is known; so many would keep it busy if each
    /// stayed as long as one alone; some lane was held back since the last one; some lane has few
    /// requests, which would wait behind all that are there.
    pub(super) fn see(&mut self, depth: Option<u64>, busy: f64, (held, small): (bool, bool)) {
        let Some(depth) = depth else {
            *self = LowWater::default();
            return;
        };
        // What is not a number is less than nothing.
        let least = if busy >= 1.0 { busy.min(LOW_MAX) } else { 1.0 };
        if held && depth == 0 {
            self.requests = self.requests.max(least) * RISE + 1.0;
        } else {
            self.requests += (least - self.requests) * FALL;
        }
        let most = if small { (BESIDE_SMALL * least).min(LOW_MAX) } else { LOW_MAX };
        self.requests = self.requests.clamp(least, most);
        self.below = (depth as f64) < self.requests;
    }

    /// In requests; 0 when nothing is known.
    pub(super) fn requests(&self) -> u64 {
        self.requests as u64
    }

    /// The device had less to do: nobody waits for it.
    pub(super) fn is_below(&self) -> bool {
        self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_while_lanes_are_held_back_beside_an_idle_device_and_falls_again() {
        let mut water = LowWater::default();
        assert_eq!((water.requests(), water.is_below()), (0, false));
        water.see(Some(20), 8.0, (true, false));
        assert_eq!((water.requests(), water.is_below()), (8, false), "what keeps it busy");
        water.see(Some(0), 8.0, (false, false));
        assert_eq!((water.requests(), water.is_below()), (8, true), "nobody was held back");
        (0..5).for_each(|_| water.see(Some(0), 8.0, (true, false)));
        assert!(water.requests() > 20, "{water:?}");
        (0..100).for_each(|_| water.see(Some(0), 1e12, (true, false)));
        assert_eq!(water.requests(), 1024, "not for ever");
        (0..400).for_each(|_| water.see(Some(3), 8.0, (true, false)));
        assert_eq!(water.requests(), 8);
        (0..100).for_each(|_| water.see(Some(0), 8.0, (true, true)));
        assert_eq!(water.requests(), 16, "beside a lane that has few requests");
        (0..20).for_each(|_| water.see(Some(0), 8.0, (true, false)));
        assert!(water.requests() > 100, "{water:?}");
        water.see(Some(0), 8.0, (true, true));
        assert_eq!((water.requests(), water.is_below()), (16, true), "at once");
        water.see(Some(16), 8.0, (true, true));
        assert!(!water.is_below());
        water.see(None, 8.0, (true, false));
        assert_eq!((water.requests(), water.is_below()), (0, false), "nothing is known");
        water.see(Some(0), f64::NAN, (true, false));
        assert!(water.requests() <= 1024);
    }
}
