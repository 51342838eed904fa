//! How much lanes may have in flight beside others that want little.

/// It is tried so many times more or less, for so many windows, the first of which do not count.
/// More is kept if that much more is done, less if not that much less.
const ROOM_STEP: f64 = 1.3;
const ROOM_STEP_WINDOWS: u32 = 12;
const ROOM_SETTLE_WINDOWS: u32 = 2;
const ROOM_GAIN: f64 = 1.03;
/// Steps between two tries: more after each one in vain.
const ROOM_REST_MIN: u32 = 32;
const ROOM_REST_MAX: u32 = 1024;

/// How much may be in flight beside lanes that want little: the least that keeps the device busy,
/// found by trying more and less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Device time in flight; 0: not known.
    pub(super) ns: f64,
    /// What was tried, and what was done before: more if positive.
    tried: Option<(bool, f64)>,
    /// The next try is to be of less.
    less: bool,
    /// Steps to wait until then, and how many there were last.
    rest: u32,
    rest_last: u32,
    /// Windows of the present step and the sum of what was done in them.
    windows: u32,
    sum: f64,
    last: f64,
}

impl Room {
    /// A window in which lanes waited for room, and what was done in it.
    pub(super) fn see(&mut self, done: f64) {
        self.windows += 1;
        // What was in flight before a step is done in its first windows.
        if self.windows > ROOM_SETTLE_WINDOWS {
            self.sum += done;
        }
        if self.windows < ROOM_STEP_WINDOWS {
            return;
        }
        let mean = self.sum / f64::from(ROOM_STEP_WINDOWS - ROOM_SETTLE_WINDOWS);
        (self.windows, self.sum) = (0, 0.0);
        match self.tried.take() {
            Some((true, before)) if mean > ROOM_GAIN * before => self.attempt(true, mean),
            Some((true, _)) => self.give_up(true),
            Some((false, before)) if mean * ROOM_GAIN > before => self.pause(ROOM_REST_MIN),
            Some((false, _)) => self.give_up(false),
            None if self.rest > 0 => self.rest -= 1,
            None => self.attempt(!self.less, if self.last > 0.0 { self.last } else { mean }),
        }
        self.last = mean;
    }

    fn attempt(&mut self, more: bool, before: f64) {
        self.ns *= if more { ROOM_STEP } else { 1.0 / ROOM_STEP };
        self.tried = Some((more, before));
    }

    fn give_up(&mut self, more: bool) {
        self.ns *= if more { 1.0 / ROOM_STEP } else { ROOM_STEP };
        self.less = more;
        self.pause((2 * self.rest_last).clamp(ROOM_REST_MIN, ROOM_REST_MAX));
    }

    fn pause(&mut self, steps: u32) {
        (self.rest, self.rest_last) = (steps, steps);
    }
}
