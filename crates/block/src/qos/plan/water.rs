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

/// What is at the device is averaged over so many looks.
const AVERAGE_LOOKS: f64 = 8.0;

/// The low water of a device: with fewer requests there it may run dry before the next lane looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LowWater {
    requests: f64,
    /// Requests at the device, on average.
    depth: f64,
    /// They are fewer than keep it busy.
    below: bool,
}

/// What lanes do at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Some lane was held back since the last look.
    pub(super) held: bool,
    /// Some lane has few requests, which would wait behind all that are at the device.
    pub(super) small: bool,
    /// Some lane has credit that it cannot use for what the others have at the device.
    pub(super) hurt: bool,
}

impl LowWater {
    /// A look: `depth` requests at the device, if that is known; so many would keep it busy if each
    /// stayed as long as one alone.
    pub(super) fn see(&mut self, depth: Option<u64>, busy: f64, seen: Seen) {
        let Some(depth) = depth else {
            *self = LowWater::default();
            return;
        };
        // What is not a number is less than nothing.
        let least = if busy >= 1.0 { busy.min(LOW_MAX) } else { 1.0 };
        if seen.held && depth == 0 {
            self.requests = self.requests.max(least) * RISE + 1.0;
        } else {
            self.requests += (least - self.requests) * FALL;
        }
        let most = match seen {
            // A device that does more for those who owe does less for the one to which they do.
            Seen { hurt: true, .. } => least,
            Seen { small: true, .. } => (BESIDE_SMALL * least).min(LOW_MAX),
            _ => LOW_MAX,
        };
        self.requests = self.requests.clamp(least, most);
        self.depth += (depth as f64 - self.depth) / AVERAGE_LOOKS;
        self.below = self.depth < least;
    }

    /// The device has next to nothing to do: no lane is in another's way.
    pub(super) fn is_idle(&self) -> bool {
        self.requests > 0.0 && self.depth < 1.0
    }

    /// In requests; 0 when nothing is known.
    pub(super) fn requests(&self) -> u64 {
        self.requests as u64
    }

    /// The device has less to do than keeps it busy: no lane waits for it.
    pub(super) fn is_below(&self) -> bool {
        self.below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Seen = Seen { held: true, small: false, hurt: false };
    const NOBODY: Seen = Seen { held: false, small: false, hurt: false };

    #[test]
    fn it_rises_while_lanes_are_held_back_beside_an_idle_device_and_falls_again() {
        let mut water = LowWater::default();
        assert_eq!((water.requests(), water.is_below()), (0, false));
        (0..20).for_each(|_| water.see(Some(20), 8.0, HELD));
        assert_eq!((water.requests(), water.is_below()), (8, false), "what keeps it busy");
        water.see(Some(0), 8.0, NOBODY);
        assert_eq!((water.requests(), water.is_below()), (8, false), "nobody was held back");
        (0..20).for_each(|_| water.see(Some(0), 8.0, HELD));
        assert!(water.requests() > 20 && water.is_below(), "{water:?}");
        (0..100).for_each(|_| water.see(Some(0), 1e12, HELD));
        assert_eq!(water.requests(), 1024, "not for ever");
        (0..400).for_each(|_| water.see(Some(3), 8.0, HELD));
        assert_eq!(water.requests(), 8);
        (0..100).for_each(|_| water.see(Some(0), 8.0, Seen { small: true, ..HELD }));
        assert_eq!(water.requests(), 16, "beside a lane that has few requests");
        (0..20).for_each(|_| water.see(Some(0), 8.0, HELD));
        assert!(water.requests() > 100, "{water:?}");
        water.see(Some(0), 8.0, Seen { hurt: true, ..HELD });
        assert_eq!(water.requests(), 8, "at once beside a lane that is owed");
        water.see(None, 8.0, HELD);
        assert_eq!((water.requests(), water.is_below()), (0, false), "nothing is known");
        water.see(Some(0), f64::NAN, HELD);
        assert!(water.requests() <= 1024);
    }

    #[test]
    fn a_device_that_has_nothing_now_and_then_is_busy() {
        let mut water = LowWater::default();
        for look in 0..200 {
            water.see(Some(if look % 2 == 0 { 0 } else { 60 }), 8.0, HELD);
            assert!(look < 20 || !water.is_below(), "{water:?}");
        }
    }
}
