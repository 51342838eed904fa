//! What a lane did in a window, and what is remembered of it.

use crate::qos::Nanos;

/// Over what rates and what is in flight are averaged, in windows.
pub(super) const AVERAGE_WINDOWS: f64 = 8.0;

/// Whether a lane that seems hurt is: what it gets done in so many windows while it is believed,
/// against as many while it is not. The first of them do not count.
const TRY_WINDOWS: u32 = 32;
const TRY_SETTLE_WINDOWS: u32 = 12;

/// It is if it gets so many times more.
const RELIEF: f64 = 1.03;

/// One that was found to be, and gets so many times less, likewise: the device may have changed.
const FALL: f64 = 1.2;

/// A lane that was found not to be hurt, and gets so many times less than it did then, is looked at
/// again.
const SETBACK: f64 = 1.05;

/// What was found holds for so many windows: that it is hurt, and that it is not, which holds twice
/// as long each time that it is found again.
const HURT_WINDOWS: u32 = 1600;
const HURT_WINDOWS_MIN: u32 = 200;
const CONTENT_WINDOWS: u32 = 800;
const CONTENT_WINDOWS_MAX: u32 = 3200;

/// A lane counts as one that wants more than it does for so many windows, with the last in which it
/// did.
const WANTED_WINDOWS: u32 = 8;

/// A lane has so many requests in flight on average if it always wants the device.
const BUSY: f64 = 0.7;

/// A lane with fewer requests than this there may be small, if it has as many per nanosecond: four
/// a second.
const SMALL_MAX: f64 = 2.0;
const SMALL_RATE_MIN: f64 = 4e-9;

/// A lane that is hurt with fewer requests there is: the others have no more in flight than keeps
/// the device busy.
const FEW_MAX: f64 = 6.0;

/// What is remembered of a lane from window to window; whoever keeps the lane keeps it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Memory {
    /// What a request of its costs on average.
    pub(super) request_ns: f64,
    /// Requests per nanosecond.
    pub(super) rate: f64,
    /// Time at the device and how many requests it is of, in a window on average.
    pub(super) stayed: (f64, f64),
    /// How long its requests stay alone; 0: not known.
    pub(super) base_ns: f64,
    pub(super) trial: Trial,
    /// Device time per nanosecond that it gets done, on average.
    pub(super) done: f64,
    pub(super) hurt: Hurt,
    /// For how long it was found not to be hurt the last time.
    content_windows: u32,
    /// Whether it seems to be.
    seems: Seems,
    /// For how many windows it still counts as one that wants more than it does.
    wanted_windows: u32,
    /// It gets less than its weight gives it of what is done.
    pub(super) deprived: bool,
    /// It asks for less than its weight gives it, however long its requests stay.
    pub(super) small: bool,
}

/// Whether a lane that leaves credit gets more when the others get less.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) enum Hurt {
    /// It has not been looked at, or does not seem to be.
    #[default]
    Unknown,
    /// This is being found out.
    Tried(Try),
    /// It is, for so many windows more; this was done then, and this is done for it.
    Found(u32, f64, Relief),
    /// It is not since it has no more to ask for, for so many windows more; this was done then.
    Content(u32, f64),
}

/// Whether a lane seems to be hurt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Seems {
    /// It does not.
    #[default]
    Not,
    /// It leaves credit although it always has requests at the device.
    Perhaps,
    /// These stay longer than alone, too.
    Slowed,
}

/// What is done for a lane that is hurt, or may be: each is more than the one before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Relief {
    /// Nothing.
    None,
    /// The others have no more in flight than keeps the device busy.
    Room,
    /// Nor do they get what it leaves.
    All,
}

/// One half of a comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Try {
    /// What is compared: the less, then the more.
    reliefs: [Relief; 2],
    /// How it seemed when this began.
    seemed: Seems,
    /// The more is done in this half.
    more: bool,
    windows: u32,
    /// What it got done, and what all did.
    done: (f64, f64),
    /// The same of the other half, if that is over.
    other: Option<(f64, f64)>,
}

impl Try {
    fn new(seemed: Seems, reliefs: [Relief; 2]) -> Try {
        Try { reliefs, seemed, more: true, windows: 0, done: (0.0, 0.0), other: None }
    }
}

/// What a lane showed in the present trial.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Trial {
    pub(super) windows: u32,
    pub(super) requests: u64,
    pub(super) stayed: (u64, u64),
}

impl Memory {
    pub(super) fn look(&mut self, look: &LookBack, elapsed_ns: Nanos) {
        let ease = |mean: &mut f64, new: f64| *mean += (new - *mean) / AVERAGE_WINDOWS;
        if look.requests > 0 {
            let mean = look.spent_ns as f64 / look.requests as f64;
            if self.request_ns == 0.0 {
                self.request_ns = mean;
            }
            ease(&mut self.request_ns, mean);
        }
        ease(&mut self.rate, look.requests as f64 / elapsed_ns.max(1) as f64);
        ease(&mut self.done, look.done_ns as f64 / elapsed_ns.max(1) as f64);
        ease(&mut self.stayed.0, look.stayed_ns as f64);
        ease(&mut self.stayed.1, look.stayed as f64);
        self.wanted_windows = match look.wants_more() {
            true => WANTED_WINDOWS,
            false => self.wanted_windows.saturating_sub(1),
        };
    }

    /// It wants more than it does, or did in one of the last windows: between two batches of its
    /// requests it has nothing at the device for a moment.
    pub(super) fn wanted_more(&self) -> bool {
        self.wanted_windows > 0
    }

    /// How long its requests stay at the device.
    pub(super) fn stay_ns(&self) -> f64 {
        if self.stayed.1 > 1e-6 { self.stayed.0 / self.stayed.1 } else { 0.0 }
    }

    /// Goes on with the question whether it is hurt, as it seems or does not; `all` is what all
    /// lanes get done, `part` the lane's by weight.
    pub(super) fn doubt(&mut self, seems: Seems, all: f64, part: f64) {
        self.seems = seems;
        self.hurt = match self.hurt {
            Hurt::Unknown if self.seems != Seems::Not => self.ask(),
            Hurt::Unknown => Hurt::Unknown,
            Hurt::Tried(tried) => self.go_on(tried, all, part),
            Hurt::Found(left, done, relief)
                if left > HURT_WINDOWS - HURT_WINDOWS_MIN
                    || left > 0 && FALL * self.done > done =>
            {
                Hurt::Found(left - 1, done, relief)
            }
            Hurt::Content(left, done) if left > 0 && SETBACK * self.done > done => {
                Hurt::Content(left - 1, done)
            }
            Hurt::Found(..) | Hurt::Content(..) if self.seems != Seems::Not => self.ask(),
            Hurt::Found(..) | Hurt::Content(..) => Hurt::Unknown,
        };
    }

    /// Begins to ask. Of one with few requests it is seen first whether room is enough.
    fn ask(&self) -> Hurt {
        let more = if self.has_few() { Relief::Room } else { Relief::All };
        Hurt::Tried(Try::new(self.seems, [Relief::None, more]))
    }

    fn go_on(&mut self, mut tried: Try, all: f64, part: f64) -> Hurt {
        tried.windows += 1;
        if tried.windows > TRY_SETTLE_WINDOWS {
            tried.done = (tried.done.0 + self.done, tried.done.1 + all);
        }
        // While it gets more and more there is nothing to compare with.
        let each = f64::from(TRY_WINDOWS - TRY_SETTLE_WINDOWS);
        let rises = tried.more && self.done * each > SETBACK * tried.done.0;
        let half = |more, other| Try { more, other, windows: 0, done: (0.0, 0.0), ..tried };
        match tried.other {
            _ if tried.windows < TRY_WINDOWS => Hurt::Tried(tried),
            None if rises => Hurt::Tried(half(true, None)),
            None => Hurt::Tried(half(!tried.more, Some(tried.done))),
            Some(other) if tried.more => self.find(&tried, part, [tried.done, other]),
            Some(other) => self.find(&tried, part, [other, tried.done]),
        }
    }

    /// Compares what was done while more was done for it with what was done while less was.
    fn find(&mut self, tried: &Try, part: f64, [more, less]: [(f64, f64); 2]) -> Hurt {
        let fairer = tried.seemed == Seems::Slowed || is_fairer(part, more, less);
        let helps = fairer && more.0 > RELIEF * less.0;
        let [least, most] = tried.reliefs;
        match (helps, least, most) {
            (true, _, Relief::Room) => {
                Hurt::Tried(Try::new(tried.seemed, [Relief::Room, Relief::All]))
            }
            (true, ..) | (false, Relief::Room, _) => {
                self.content_windows = 0;
                Hurt::Found(HURT_WINDOWS, self.done, if helps { most } else { least })
            }
            (false, ..) => {
                self.content_windows = match tried.seemed {
                    Seems::Slowed => {
                        (2 * self.content_windows).clamp(CONTENT_WINDOWS, CONTENT_WINDOWS_MAX)
                    }
                    // One whose requests do not stay long is asked again as late as can be.
                    Seems::Perhaps | Seems::Not => CONTENT_WINDOWS_MAX,
                };
                Hurt::Content(self.content_windows, self.done)
            }
        }
    }

    /// Other lanes are there than when that was found out.
    pub(super) fn forget_hurt(&mut self) {
        (self.hurt, self.content_windows) = (Hurt::Unknown, 0);
    }

    /// What is done for it in this window.
    pub(super) fn relief(&self) -> Relief {
        match self.hurt {
            _ if self.seems == Seems::Not => Relief::None,
            Hurt::Tried(Try { more, reliefs: [less_relief, more_relief], .. }) => {
                if more {
                    more_relief
                } else {
                    less_relief
                }
            }
            Hurt::Found(.., relief) => relief,
            Hurt::Unknown | Hurt::Content(..) => Relief::None,
        }
    }

    /// It has so few requests at the device that each waits behind all of the others'.
    pub(super) fn has_few(&self) -> bool {
        self.at_device() < FEW_MAX
    }

    pub(super) fn is_busy(&self) -> bool {
        self.at_device() >= BUSY
    }

    /// Finds out whether it is small: one request after the other or nearly so, which are less than
    /// its `fair` part of device time even if each stays only as long as one alone, `base_ns`.
    /// Beside a flood such a lane always has one at the device, and wants no more for all that.
    pub(super) fn measure(&mut self, fair: f64, base_ns: f64) {
        let few = self.rate > SMALL_RATE_MIN && self.at_device() < SMALL_MAX;
        self.small = few && self.demand(base_ns) < fair;
    }

    /// Device time per nanosecond that it would do if it had the device for itself: it pauses as
    /// long as it does now, or has as many requests there.
    fn demand(&self, base_ns: f64) -> f64 {
        let at_device = self.at_device();
        let pause_ns = (1.0 - at_device).max(0.0) / self.rate;
        at_device.max(1.0) * self.request_ns / (pause_ns + base_ns)
    }

    /// Requests at the device, on average, by Little's law.
    fn at_device(&self) -> f64 {
        self.rate * self.stay_ns()
    }
}

/// Whether the first is fairer to a lane that has this part by weight, and to all others together:
/// the sum of the logarithms of what each does, by weight, is larger (proportional fairness).
fn is_fairer(part: f64, (mine, all): (f64, f64), (mine_else, all_else): (f64, f64)) -> bool {
    let gain =
        |now: f64, then: f64| (now.max(f64::MIN_POSITIVE) / then.max(f64::MIN_POSITIVE)).ln();
    part * gain(mine, mine_else) + (1.0 - part) * gain(all - mine, all_else - mine_else) > 0.0
}

/// What a lane did in the window that is over.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LookBack {
    /// At least 1.
    pub weight: u32,
    /// Device time of requests that went.
    pub spent_ns: u64,
    /// Device time of requests that were answered.
    pub done_ns: u64,
    /// Requests that went.
    pub requests: u64,
    /// Device time in flight now.
    pub inflight_ns: u64,
    /// Time that requests stayed at the device, ...
    pub stayed_ns: u64,
    /// ... of so many whose time was taken.
    pub stayed: u64,
    /// What was granted for this window ...
    pub grant_ns: u64,
    /// ... and is in its account: debt if negative.
    pub left_ns: i64,
    /// It had to wait for credit.
    pub short_of_credit: bool,
    /// It had to wait for room in flight.
    pub short_of_room: bool,
    /// It did as much as a person lets it do.
    pub limited: bool,
    /// Least device time that it is to have in a window, if it wants it.
    pub floor_ns: u64,
    /// From the last call.
    pub memory: Memory,
}

impl LookBack {
    pub(super) fn waits(&self) -> bool {
        self.short_of_credit || self.short_of_room
    }

    pub(super) fn leaves_credit(&self) -> bool {
        self.left_ns > i64::try_from(self.grant_ns).unwrap_or(i64::MAX)
    }

    /// It has few requests, which wait behind all that are at the device.
    pub(super) fn is_small(&self) -> bool {
        self.memory.small && !self.waits()
    }

    /// It would do more if it could.
    pub(super) fn wants_more(&self) -> bool {
        let busy = self.inflight_ns > 0 && self.memory.is_busy() && !self.memory.small;
        !self.limited && (self.waits() || busy)
    }
}
