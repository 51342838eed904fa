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

/// A lane whose requests do not stay long is hurt only if so much of what all do is done while it
/// is believed: the others lose what it gets, and the device works as before.
const ALL_KEPT: f64 = 0.95;

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

/// A lane has so many requests in flight on average if it always wants the device.
const BUSY: f64 = 0.7;

/// A lane with fewer requests than this there may be small, if it has as many per nanosecond: four
/// a second.
const SMALL_MAX: f64 = 2.0;
const SMALL_RATE_MIN: f64 = 4e-9;

/// A lane that is hurt with fewer requests there is: the others have no more in flight than keeps
/// the device busy.
const FEW_MAX: f64 = 4.0;

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
    /// It is, for so many windows more; this was done then. How it seemed when it was asked.
    Found(u32, f64, Seems),
    /// It is not since it has no more to ask for, for so many windows more; this was done then.
    Content(u32, f64),
}

/// Whether a lane seems to be hurt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seems {
    /// It does not.
    Not,
    /// It leaves credit although it always has requests at the device.
    Perhaps,
    /// These stay longer than alone, too.
    Slowed,
}

/// One half of a comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Try {
    /// How it seemed when this began.
    seemed: Seems,
    /// It is believed in this half.
    believed: bool,
    windows: u32,
    /// What it got done, and what all did.
    done: (f64, f64),
    /// The same of the other half, if that is over.
    other: Option<(f64, f64)>,
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
    }

    /// How long its requests stay at the device.
    pub(super) fn stay_ns(&self) -> f64 {
        if self.stayed.1 > 1e-6 { self.stayed.0 / self.stayed.1 } else { 0.0 }
    }

    /// Goes on with the question whether it is hurt, as it seems or does not; `all` is what all
    /// lanes get done.
    pub(super) fn doubt(&mut self, seems: Seems, all: f64) {
        let half = |seemed, believed, other| {
            Hurt::Tried(Try { seemed, believed, windows: 0, done: (0.0, 0.0), other })
        };
        self.hurt = match self.hurt {
            Hurt::Unknown if seems != Seems::Not => half(seems, true, None),
            Hurt::Unknown => Hurt::Unknown,
            Hurt::Tried(mut tried) => {
                tried.windows += 1;
                if tried.windows > TRY_SETTLE_WINDOWS {
                    tried.done = (tried.done.0 + self.done, tried.done.1 + all);
                }
                // While it gets more and more there is nothing to compare with.
                let each = f64::from(TRY_WINDOWS - TRY_SETTLE_WINDOWS);
                let rises = tried.believed && self.done * each > SETBACK * tried.done.0;
                let seemed = tried.seemed;
                match tried.other {
                    _ if tried.windows < TRY_WINDOWS => Hurt::Tried(tried),
                    None if rises => half(seemed, true, None),
                    None => half(seemed, !tried.believed, Some(tried.done)),
                    Some(other) if tried.believed => self.find(seemed, tried.done, other),
                    Some(other) => self.find(seemed, other, tried.done),
                }
            }
            Hurt::Found(left, done, seemed)
                if left > HURT_WINDOWS - HURT_WINDOWS_MIN
                    || left > 0 && FALL * self.done > done =>
            {
                Hurt::Found(left - 1, done, seemed)
            }
            Hurt::Content(left, done) if left > 0 && SETBACK * self.done > done => {
                Hurt::Content(left - 1, done)
            }
            Hurt::Found(..) | Hurt::Content(..) if seems != Seems::Not => half(seems, true, None),
            Hurt::Found(..) | Hurt::Content(..) => Hurt::Unknown,
        };
    }

    /// Compares what was done while it was believed with what was done while it was not.
    fn find(&mut self, seemed: Seems, believed: (f64, f64), other: (f64, f64)) -> Hurt {
        let keeps = seemed == Seems::Slowed || believed.1 > ALL_KEPT * other.1;
        let hurt = keeps && believed.0 > RELIEF * other.0;
        self.content_windows = match hurt {
            true => 0,
            // One whose requests do not stay long is asked again as late as can be.
            false if seemed != Seems::Slowed => CONTENT_WINDOWS_MAX,
            false => (2 * self.content_windows).clamp(CONTENT_WINDOWS, CONTENT_WINDOWS_MAX),
        };
        match hurt {
            true => Hurt::Found(HURT_WINDOWS, self.done, seemed),
            false => Hurt::Content(self.content_windows, self.done),
        }
    }

    /// Other lanes are there than when that was found out.
    pub(super) fn forget_hurt(&mut self) {
        (self.hurt, self.content_windows) = (Hurt::Unknown, 0);
    }

    /// Whether it is taken for hurt in this window, as it seems now. Who was slowed when this was
    /// asked has to be so still: for it, more of the device may be given up.
    pub(super) fn is_believed(&self, seems: Seems) -> bool {
        let asked = match self.hurt {
            Hurt::Tried(tried) if tried.believed => tried.seemed,
            Hurt::Found(.., seemed) => seemed,
            Hurt::Unknown | Hurt::Tried(_) | Hurt::Content(..) => return false,
        };
        match asked {
            Seems::Slowed => seems == Seems::Slowed,
            Seems::Perhaps | Seems::Not => seems != Seems::Not,
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
