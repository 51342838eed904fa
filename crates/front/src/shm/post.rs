//! Where a worker runs.
//!
//! A worker is pinned, so that the client that shares its CPU knows it and sleeps instead of
//! spinning. But two that share a CPU take turns on it, at 3 µs and more a turn, while two on
//! different CPUs answer each other in a third of a microsecond. The tenant's threads go where the
//! scheduler puts them; so the worker makes room: after many requests in a row from its own CPU it
//! moves to another of the pool's. The scheduler may follow, hence the streak, and hence no more
//! than one move per streak.
//!
//! Where threads wait for CPUs a client and its worker on two of them both wait behind others, and
//! waking up on another CPU costs more than a turn on the own one. So a worker that finds its CPU
//! crowded *joins* its client: it is pinned to the client's CPU, and follows it. Each sleeps as
//! soon as it has nothing to do, and a trip is two turns of one CPU. After a while the worker steps
//! aside to see whether CPUs are short still; the more often they were, the longer it stays
//! (`docs/decisions/0020-crowded-cpus.md`).

use polylane_base::{Errno, Result};
use polylane_sys::cpu;

/// Requests in a row from the worker's own CPU before it moves. At 3 µs a turn this is a tenth of a
/// scheduler's time slice: moving more often would cost more than it gains.
const STREAK: u32 = 64;

/// Sleeps that a worker stays with its client before it looks whether CPUs are short still, at
/// first and at most: a few milliseconds, and a second or so.
const STAY_MIN: u32 = 256;
const STAY_MAX: u32 = 1 << 15;

/// Sleeps without a crowded CPU after which staying was in vain: the next stay is a short one.
const CALM: u32 = 256;

/// What a sleep that began because others waited for the CPU counts against one that did not, and
/// the count at which the worker takes CPUs for short: a thread of its own service, such as the one
/// that commits, is gone soon.
const CROWDED: u32 = 3;
const CROWD: u32 = 16;

/// Requests in a row from one other CPU after which a worker that joined its client follows it.
const FOLLOW: u32 = 4;

/// Requests between two that wait for a device, at most, by which a client is one that waits for
/// its device rather than for its worker.
const BETWEEN: u32 = 8;

/// A worker's CPU, and those it may move to.
#[derive(Debug)]
pub(super) struct Post {
    cpu: Option<u32>,
    allowed: Vec<u32>,
    /// Requests in a row from the own CPU; of a worker that joined its client, from `other`.
    streak: u32,
    other: u32,
    /// Requests since the last one that waited for a device, and how many of those in a row came
    /// from `other`.
    between: u32,
    waits: u32,
    /// Sleeps that began because others waited for its CPU, [`CROWDED`] for each, less others.
    crowd: u32,
    /// It joined its client, and stays for so many sleeps.
    stays: Option<u32>,
    /// How long the last stay was to be.
    stay: u32,
    /// Sleeps since then.
    calm: u32,
}

impl Post {
    /// Pinned to `cpu` (`None`: nowhere), free to move among `allowed`.
    pub(super) fn new(cpu: Option<u32>, allowed: Vec<u32>) -> Post {
        let (streak, other, between, waits) = (0, u32::MAX, 0, 0);
        let (crowd, stays, stay, calm) = (0, None, STAY_MIN, CALM);
        Post { cpu, allowed, streak, other, between, waits, crowd, stays, stay, calm }
    }

    /// Pins the calling thread. A CPU that went offline or out of the cpuset is given up: any other
    /// will do.
    pub(super) fn take(&mut self) {
        if self.cpu.is_some_and(|cpu| cpu::pin(&[cpu]).is_err()) {
            self.cpu = None;
        }
    }

    /// The worker slept; `crowded`: because others waited for its CPU; `client`: where the last
    /// request came from. Returns whether the worker has moved.
    pub(super) fn slept(&mut self, crowded: bool, client: u32) -> bool {
        match self.stays {
            None => {
                self.calm = self.calm.saturating_add(1);
                self.crowd = match crowded {
                    true => self.crowd + CROWDED,
                    false => self.crowd.saturating_sub(1),
                };
                self.crowd >= CROWD && self.cpu.is_some() && self.join(client)
            }
            Some(left) if left > 1 => {
                self.stays = Some(left - 1);
                false
            }
            Some(_) => {
                (self.stays, self.calm) = (None, 0);
                self.step_aside().is_ok()
            }
        }
    }

    fn join(&mut self, client: u32) -> bool {
        self.stay = if self.calm < CALM { (self.stay * 2).min(STAY_MAX) } else { STAY_MIN };
        (self.stays, self.streak, self.crowd) = (Some(self.stay), 0, 0);
        self.move_to(client).is_ok()
    }

    /// A device was waited for, for a client on that CPU that slept meanwhile: waking it is quicker
    /// there. After a few in a row the worker joins it. Returns whether the worker has moved.
    pub(super) fn waited(&mut self, client: u32) -> bool {
        let in_row = client == self.other && self.between <= BETWEEN;
        (self.waits, self.between) = (if in_row { self.waits + 1 } else { 0 }, 0);
        (self.other, self.streak) = (client, 0);
        let joins = self.waits >= FOLLOW && self.stays.is_none() && self.cpu.is_some();
        if joins {
            (self.stays, self.waits) = (Some(STAY_MIN), 0);
        }
        joins && self.move_to(client).is_ok()
    }

    /// Whether the worker has joined its client.
    pub(super) fn has_joined(&self) -> bool {
        self.stays.is_some()
    }

    /// Whether the worker stays where it is.
    pub(super) fn is_pinned(&self) -> bool {
        self.cpu.is_some()
    }

    /// The CPU that the worker runs on.
    pub(super) fn here(&self) -> u32 {
        self.cpu.unwrap_or_else(cpu::current)
    }

    /// A request was served whose client is on that CPU. Returns whether the worker has moved.
    pub(super) fn served(&mut self, client: u32) -> bool {
        self.between = self.between.saturating_add(1);
        let near = client == self.here();
        if self.stays.is_none() {
            self.streak = if near { self.streak + 1 } else { 0 };
            return self.streak >= STREAK && self.step_aside().is_ok();
        }
        self.streak = if near || client != self.other { 0 } else { self.streak + 1 };
        self.other = client;
        self.streak >= FOLLOW && self.move_to(client).is_ok()
    }

    /// Moves to the next CPU.
    fn step_aside(&mut self) -> Result<()> {
        self.move_to(self.next().ok_or(Errno::ENOENT)?)
    }

    fn move_to(&mut self, cpu: u32) -> Result<()> {
        self.streak = 0;
        if self.cpu == Some(cpu) || !self.allowed.contains(&cpu) {
            return Err(Errno::ENOENT);
        }
        cpu::pin(&[cpu])?;
        self.cpu = Some(cpu);
        Ok(())
    }

    /// The CPU after the present one in the ring of those allowed, if it is another.
    fn next(&self) -> Option<u32> {
        let at = self.allowed.iter().position(|cpu| Some(*cpu) == self.cpu)?;
        let next = self.allowed[(at + 1) % self.allowed.len()];
        (Some(next) != self.cpu).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_cpu_is_another_one_of_the_set() {
        assert_eq!(Post::new(Some(1), vec![1, 5, 7]).next(), Some(5));
        assert_eq!(Post::new(Some(7), vec![1, 5, 7]).next(), Some(1));
        assert_eq!(Post::new(Some(1), vec![1]).next(), None);
        assert_eq!(Post::new(None, vec![1, 2]).next(), None);
        assert_eq!(Post::new(Some(3), vec![]).next(), None);
    }

    /// Sleeps until the worker moves, at most so many.
    fn sleeps(post: &mut Post, crowded: bool, client: u32, most: u32) -> Option<u32> {
        (1..=most).find(|_| post.slept(crowded, client))
    }

    #[test]
    fn a_crowded_worker_joins_its_client_for_a_while() {
        let all = cpu::allowed().unwrap();
        let [first, second] = [all[0], all[all.len() - 1]];
        if first == second {
            return eprintln!("not tried: there is one CPU");
        }
        let mut post = Post::new(Some(first), vec![first, second]);
        post.take();
        let enough = CROWD.div_ceil(CROWDED);
        assert_eq!(sleeps(&mut post, true, second, enough - 1), None);
        assert_eq!(sleeps(&mut post, false, second, CROWD), None);
        assert_eq!(sleeps(&mut post, true, second, enough), Some(enough), "not in between");
        assert_eq!(post.here(), second);
        assert_eq!(sleeps(&mut post, false, second, STAY_MAX), Some(STAY_MIN));
        assert_eq!(post.here(), first, "it looks whether they are short still");
        assert_eq!(sleeps(&mut post, true, second, enough), Some(enough));
        assert_eq!(sleeps(&mut post, false, second, STAY_MAX), Some(2 * STAY_MIN));
        assert_eq!(sleeps(&mut post, false, second, CALM), None);
        assert_eq!(sleeps(&mut post, true, second, enough), Some(enough));
        let stay = sleeps(&mut post, false, second, STAY_MAX);
        assert_eq!(stay, Some(STAY_MIN), "they were not for a while");
        cpu::pin(&all).unwrap();
    }

    #[test]
    fn a_worker_joins_a_client_that_waits_for_its_device() {
        let all = cpu::allowed().unwrap();
        let [first, second] = [all[0], all[all.len() - 1]];
        if first == second {
            return eprintln!("not tried: there is one CPU");
        }
        let mut post = Post::new(Some(first), vec![first, second]);
        post.take();
        let waits = |post: &mut Post, between: u32| {
            (0..between).for_each(|_| assert!(!post.served(second)));
            post.waited(second)
        };
        assert!(!(0..100).any(|_| waits(&mut post, BETWEEN + 1)), "it waits for its worker, too");
        assert!(!(0..100).any(|at| post.waited([first, second][at % 2])), "two of them");
        assert_eq!((1..100).find(|_| waits(&mut post, BETWEEN)), Some(FOLLOW));
        assert_eq!(post.here(), second);
        assert_eq!(sleeps(&mut post, false, second, STAY_MAX), Some(STAY_MIN));
        assert_eq!(post.here(), first, "it looks whether that is so still");
        cpu::pin(&all).unwrap();
    }

    #[test]
    fn a_worker_that_joined_its_client_follows_it() {
        let mut post = Post::new(Some(u32::MAX), vec![0, u32::MAX]);
        sleeps(&mut post, true, u32::MAX, CROWD);
        assert!(!(0..100).any(|_| post.served(u32::MAX)), "where it is anyway");
        assert!(!(0..100).any(|number| post.served(number % 2)), "now here, now there");
        let moved = (0..FOLLOW + 1).filter(|_| post.served(0)).count();
        // CPU 0 may be outside this process's set; then the worker stays where it is.
        assert_eq!(moved, usize::from(post.here() == 0));
    }

    #[test]
    fn only_a_streak_from_the_own_cpu_moves_a_worker() {
        let mut post = Post::new(Some(u32::MAX), vec![0, u32::MAX]);
        for _ in 1..STREAK {
            assert!(!post.served(u32::MAX));
        }
        assert!(!post.served(1));
        let moved = (0..STREAK).filter(|_| post.served(u32::MAX)).count();
        // As above.
        assert_eq!(moved, usize::from(post.here() == 0));
    }
}
