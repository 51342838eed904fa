//! Whether a lane does at the device what it says in its page, and what it is held to if not.
//!
//! What a lane says it spent is compared, look by look, with what the kernel counted for its
//! process. Units are those that the lane is charged in, whatever they are. Pure: what was seen is
//! an argument, what the kernel is to be told is the result.
//!
//! | a lane | then |
//! |---|---|
//! | lies in three looks, takes more than its part, others want more | is bound to its part |
//! | is bound, and others want more | its bound follows its part of what is really done |
//! | is at its bound, and the others want no more | its bound goes up by a quarter |
//! | is bound, and alone | is let go, and bound at the first look next time |
//! | said what it did for ten looks | is let go |
//!
//! To lie is to do more than [`LIE`] times what one says.
//!
//! An honest lane may do more than it says as well: what a copy-on-write volume moves is not
//! charged. That is why its part is what it is held to, and no less: by the kernel's counts it gets
//! what its weight gives it, whatever it says.

/// Requests and bytes of one direction: totals, differences or rates per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flows {
    /// From the device.
    pub read: Flow,
    /// To it.
    pub write: Flow,
}

impl Flow {
    fn since(self, last: Flow) -> Flow {
        Flow {
            requests: self.requests.saturating_sub(last.requests),
            bytes: self.bytes.saturating_sub(last.bytes),
        }
    }

    /// So many times this, and no less than the least.
    fn times(self, factor: f64) -> Flow {
        let scaled = |count: u64, least: u64| ((count as f64 * factor) as u64).max(least);
        Flow {
            requests: scaled(self.requests, REQUESTS_MIN).min(REQUESTS_MAX),
            bytes: scaled(self.bytes, BYTES_MIN),
        }
    }
}

impl Flows {
    /// What was added to these totals since. A total that went down (its group was made anew)
    /// counts as nothing.
    #[must_use]
    pub fn since(self, last: Flows) -> Flows {
        Flows { read: self.read.since(last.read), write: self.write.since(last.write) }
    }

    fn times(self, factor: f64) -> Flows {
        Flows { read: self.read.times(factor), write: self.write.times(factor) }
    }

    /// With the other direction's numbers for one in which nothing was done, so that it does not go
    /// unlimited.
    fn whole(self) -> Flows {
        match (self.read.requests, self.write.requests) {
            (0, _) => Flows { read: self.write, ..self },
            (_, 0) => Flows { write: self.read, ..self },
            _ => self,
        }
    }
}

/// More than so many times what a lane said is a lie. Requests that the kernel splits, and what a
/// lane's file system moves without being charged, are below that.
pub const LIE: f64 = 1.5;

/// What is less than this part of its share is nobody's concern.
const TRIFLE: f64 = 0.05;

/// So much more than its part hurts nobody.
const TOLERANCE: f64 = 1.05;

/// Looks in a row at which a lane must lie to be bound.
const STRIKES: u32 = 3;

/// Looks in a row at which it must not lie, to be let go and to be trusted again.
const HONEST_LOOKS: u32 = 10;

/// Looks in a row at which nobody else must be there to be let go.
const LONE_LOOKS: u32 = 2;

/// A bound goes up by this while the others want no more.
const RELAX: f64 = 1.25;

/// A lane that does this part of what it is bound to may want more.
const USED: f64 = 0.8;

/// The most that was done on the device is forgotten at this rate per look.
const FORGET: f64 = 1.0 / 64.0;

/// A bound that would change by less than this part stays.
const SAME: f64 = 0.05;

/// The least that a lane is held to, per second and direction, so that it ends in time.
const REQUESTS_MIN: u64 = 64;
const BYTES_MIN: u64 = 1 << 20;

/// The most that the kernel takes for a limit of requests.
const REQUESTS_MAX: u64 = u32::MAX as u64 - 1;

/// What was seen since the last look.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Look {
    /// Seconds since then; less than a millisecond counts as one.
    pub seconds: f64,
    /// What the kernel counted.
    pub counted: Flows,
    /// The same, as what the lane is charged in.
    pub did: u64,
    /// What the lane says that it spent.
    pub said: u64,
    /// What the other lanes say.
    pub others: u64,
    /// Its part by weight among the lanes that are active, itself among them: 0 to 1. 1: alone.
    pub part: f64,
    /// Another lane wants more than it gets.
    pub contended: bool,
}

/// What the kernel is to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing.
    Keep,
    /// The lane may do so much per second.
    Bind(Flows),
    /// It may do what it likes.
    Free,
}

/// What is remembered of a lane from look to look.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Audit {
    /// It is held to this, which is so much per second in its own units.
    bound: Option<(Flows, f64)>,
    strikes: u32,
    honest: u32,
    lone: u32,
    /// It has been bound, and was not honest for long enough since.
    known: bool,
    /// The most that was really done on the device of late, per second.
    best: f64,
}

impl Audit {
    /// What the lane is held to, per second.
    pub fn bound(&self) -> Option<Flows> {
        self.bound.map(|(bound, _)| bound)
    }

    /// Decides after a look. The result is in force from then on.
    pub fn look(&mut self, look: &Look) -> Decision {
        let seconds = look.seconds.max(1e-3);
        let part = look.part.clamp(0.0, 1.0);
        let all = look.did.saturating_add(look.others) as f64 / seconds;
        self.best = (self.best * (1.0 - FORGET)).max(all);
        let (did, fair) = (look.did as f64 / seconds, part * self.best);
        let lies = did > LIE * (look.said as f64 / seconds) + TRIFLE * fair;
        self.honest = if lies { 0 } else { self.honest.saturating_add(1) };
        self.lone = if part < 1.0 { 0 } else { self.lone.saturating_add(1) };
        if self.honest >= HONEST_LOOKS {
            self.known = false;
        }
        match self.bound {
            None => self.judge(look, lies && did > TOLERANCE * fair, fair),
            Some(_) if self.honest >= HONEST_LOOKS || self.lone >= LONE_LOOKS => {
                self.bound = None;
                self.strikes = 0;
                Decision::Free
            }
            Some((bound, rate)) => self.adjust(look, (bound, rate), fair),
        }
    }

    /// Of a lane that is not bound.
    fn judge(&mut self, look: &Look, takes: bool, fair: f64) -> Decision {
        let guilty = takes && look.contended && look.part < 1.0;
        self.strikes = if guilty { self.strikes.saturating_add(1) } else { 0 };
        if self.strikes < if self.known { 1 } else { STRIKES } {
            return Decision::Keep;
        }
        self.known = true;
        self.bind(look.counted.whole().times(fair / look.did.max(1) as f64), fair)
    }

    /// Of a lane that is bound to this, which is `rate`.
    fn adjust(&mut self, look: &Look, (bound, rate): (Flows, f64), fair: f64) -> Decision {
        let did = look.did as f64 / look.seconds.max(1e-3);
        let target = match look.contended {
            true => fair,
            false if did > USED * rate => (rate * RELAX).max(fair),
            false => rate,
        };
        let next = match did > target / 2.0 {
            // By its present mix of sizes and directions.
            true => look.counted.whole().times(target / look.did.max(1) as f64),
            // It wants less than it may.
            false => bound.times(target / rate.max(1.0)),
        };
        let near = |new: u64, old: u64| new.abs_diff(old) as f64 <= SAME * old as f64;
        let same =
            |new: Flow, old: Flow| near(new.requests, old.requests) && near(new.bytes, old.bytes);
        if same(next.read, bound.read) && same(next.write, bound.write) {
            return Decision::Keep;
        }
        self.bind(next, target)
    }

    fn bind(&mut self, bound: Flows, rate: f64) -> Decision {
        self.bound = Some((bound, rate));
        Decision::Bind(bound)
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::rng::Rng;

    use super::*;

    /// A device that does a million units a second, and two lanes that always want all of it; one
    /// of them says only `says` of what it does. Requests of 4 KiB take a unit.
    struct World {
        audit: Audit,
        says: f64,
        part: f64,
        /// What the other one asks for at most.
        other_max: u64,
    }

    const ALL: u64 = 1_000_000;

    impl World {
        fn new(says: f64, part: f64) -> World {
            World { audit: Audit::default(), says, part, other_max: ALL }
        }

        /// A second; what the lane did in it, and what was decided then. Unbound, a flood leaves a
        /// tenth to the other.
        fn second(&mut self, wants: u64) -> (u64, Decision) {
            let may = self.audit.bound().map_or(ALL * 9 / 10, |bound| bound.read.requests);
            let did = wants.min(may);
            let others = (ALL - did).min(self.other_max);
            let flow = Flow { requests: did, bytes: did * 4096 };
            let look = Look {
                seconds: 1.0,
                counted: Flows { read: flow, write: Flow::default() },
                did,
                said: (did as f64 * self.says) as u64,
                others,
                part: if others == 0 { 1.0 } else { self.part },
                contended: others > 0 && (others < self.other_max || self.other_max == ALL),
            };
            (did, self.audit.look(&look))
        }
    }

    #[test]
    fn who_lies_is_held_to_its_part_and_let_go_when_it_does_no_more() {
        let mut world = World::new(0.0, 0.25);
        for second in 0..30 {
            let (did, _) = world.second(ALL);
            assert_eq!(world.audit.bound().is_some(), second >= 2, "second {second}");
            assert!(second < 3 || did.abs_diff(ALL / 4) <= ALL / 50, "second {second}: {did}");
        }
        world.says = 1.0;
        let free = (0..30).find(|_| world.second(ALL).1 == Decision::Free);
        assert_eq!(free, Some(HONEST_LOOKS as usize - 1));
        assert_eq!(world.audit.bound(), None);
    }

    #[test]
    fn who_was_let_go_since_it_was_alone_is_bound_again_at_once() {
        let mut world = World::new(0.0, 0.5);
        (0..5).for_each(|_| assert!(world.second(ALL).0 > 0));
        world.other_max = 0;
        let free = (0..9).find(|_| world.second(ALL).1 == Decision::Free);
        assert_eq!(free, Some(LONE_LOOKS as usize - 1), "alone it may do what it likes");
        world.other_max = ALL;
        assert!(matches!(world.second(ALL).1, Decision::Bind(_)));
    }

    #[test]
    fn what_the_others_do_not_want_it_may_have() {
        let mut world = World::new(0.0, 0.5);
        (0..5).for_each(|_| assert!(world.second(ALL).0 > 0));
        world.other_max = ALL / 10;
        let did = (0..20).map(|_| world.second(ALL).0).max();
        assert!(did >= Some(ALL * 8 / 10), "{did:?}");
    }

    #[test]
    fn a_direction_that_was_not_used_is_bound_too() {
        let mut audit = Audit::default();
        let write = Flow { requests: 1000, bytes: 4_096_000 };
        let counted = Flows { read: Flow::default(), write };
        let look = Look {
            seconds: 1.0,
            counted,
            did: 1000,
            said: 0,
            others: 1000,
            part: 0.25,
            contended: true,
        };
        let decisions: Vec<_> = (0..3).map(|_| audit.look(&look)).collect();
        assert_eq!(decisions[..2], [Decision::Keep; 2]);
        let Decision::Bind(bound) = decisions[2] else { panic!("{decisions:?}") };
        assert_eq!((bound.read.requests, bound.read), (500, bound.write));
    }

    /// A number below 1.
    fn fraction(rng: &mut Rng) -> f64 {
        rng.below(1 << 20) as f64 / f64::from(1 << 20)
    }

    /// A lane that reports what it does, or three quarters of it, is never bound, whatever it does.
    #[test]
    fn nobody_who_is_honest_is_bound() {
        let mut rng = Rng::new(1);
        for _ in 0..200 {
            let (says, part) = (0.75 + fraction(&mut rng), fraction(&mut rng));
            let mut world = World::new(says, part);
            for _ in 0..60 {
                let (did, decision) = world.second(rng.below(2 * ALL));
                assert_eq!(decision, Decision::Keep, "{did}: says {says}, part {part}");
            }
        }
    }

    /// A lane that takes no more than its part is not bound either, whatever it reports.
    #[test]
    fn nobody_who_takes_its_part_is_bound() {
        let mut rng = Rng::new(2);
        for _ in 0..200 {
            let (says, part) = (fraction(&mut rng), 0.85 * fraction(&mut rng));
            let mut world = World::new(says, part);
            for _ in 0..30 {
                let (_, decision) = world.second((part * ALL as f64) as u64);
                assert_eq!(decision, Decision::Keep, "says {says}, part {part}");
            }
        }
    }

    /// Once it is found out, a liar gets its part and no more, however it comes and goes.
    #[test]
    fn a_liar_gets_its_part() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let (says, part) = (fraction(&mut rng) / 2.0, 0.05 + 0.8 * fraction(&mut rng));
            let (mut world, mut found) = (World::new(says, part), false);
            for _ in 0..60 {
                let wants = if rng.below(3) > 0 { ALL } else { 0 };
                let (did, _) = world.second(wants);
                let most = 1.1 * part * ALL as f64;
                assert!(!found || did as f64 <= most, "{did}: says {says}, part {part}");
                found = world.audit.bound().is_some();
            }
        }
    }

    /// Whatever is seen, a bound lets something through and is a number that the kernel takes.
    #[test]
    fn bounds_are_numbers_that_the_kernel_takes() {
        let mut rng = Rng::new(4);
        for _ in 0..2000 {
            let mut audit = Audit::default();
            for _ in 0..8 {
                // Of any size.
                let mut any = || rng.below(u64::MAX) >> rng.below(64);
                let flows = [any(), any(), any(), any(), any(), any(), any(), any()];
                let [a, b, c, d, did, said, others, rest] = flows;
                let look = Look {
                    seconds: rest as f64 - 1e3,
                    counted: Flows {
                        read: Flow { requests: a, bytes: b },
                        write: Flow { requests: c, bytes: d },
                    },
                    did,
                    said,
                    others,
                    part: (rest % 7) as f64 / 3.0 - 0.5,
                    contended: rest % 3 > 0,
                };
                audit.look(&look);
                for flow in audit.bound().iter().flat_map(|bound| [bound.read, bound.write]) {
                    assert!((REQUESTS_MIN..=REQUESTS_MAX).contains(&flow.requests), "{look:?}");
                    assert!(flow.bytes >= BYTES_MIN, "{look:?}");
                }
            }
        }
    }
}
