//! Where a worker runs.
//!
//! A worker is pinned, so that the client that shares its CPU knows it and sleeps instead of
//! spinning. But two that share a CPU take turns on it, at 3 µs and more a turn, while two on
//! different CPUs answer each other in a third of a microsecond. The tenant's threads go where the
//! scheduler puts them; so the worker makes room: after many requests in a row from its own CPU it
//! moves to another of the pool's. The scheduler may follow, hence the streak, and hence no more
//! than one move per streak.
//!
//! Where threads wait for CPUs nobody is to be pinned: a pinned worker that waits for its CPU
//! beside an idle one keeps its client waiting too. So a worker that finds its CPU crowded lets
//! itself be moved, until it was alone on its CPU for a while.

use polylane_base::Result;
use polylane_sys::cpu;

/// Requests in a row from the worker's own CPU before it moves. At 3 µs a turn this is a tenth of a
/// scheduler's time slice: moving more often would cost more than it gains.
const STREAK: u32 = 64;

/// Sleeps in a row, none of which began because others waited for the CPU, after which a worker
/// that was let go is pinned again.
const CALM: u32 = 256;

/// A worker's CPU, and those it may move to.
#[derive(Debug)]
pub(super) struct Post {
    cpu: Option<u32>,
    allowed: Vec<u32>,
    streak: u32,
    /// It was let go, and has slept so many times since its CPU was crowded.
    adrift: Option<u32>,
}

impl Post {
    /// Pinned to `cpu` (`None`: nowhere), free to move among `allowed`.
    pub(super) fn new(cpu: Option<u32>, allowed: Vec<u32>) -> Post {
        Post { cpu, allowed, streak: 0, adrift: None }
    }

    /// Pins the calling thread. A CPU that went offline or out of the cpuset is given up: any other
    /// will do.
    pub(super) fn take(&mut self) {
        if self.cpu.is_some_and(|cpu| cpu::pin(&[cpu]).is_err()) {
            self.cpu = None;
        }
    }

    /// The worker slept; `crowded`: because others waited for its CPU. Returns whether it is pinned
    /// again, perhaps to another CPU than before.
    pub(super) fn slept(&mut self, crowded: bool) -> bool {
        match (self.adrift, crowded) {
            (None, true) if self.cpu.is_some() && cpu::pin(&self.allowed).is_ok() => {
                (self.cpu, self.adrift) = (None, Some(0));
            }
            (Some(_), true) => self.adrift = Some(0),
            (Some(calm), false) if calm + 1 < CALM => self.adrift = Some(calm + 1),
            (Some(_), false) => {
                (self.cpu, self.adrift) = (Some(cpu::current()), None);
                self.take();
                return self.cpu.is_some();
            }
            (None, _) => {}
        }
        false
    }

    /// Whether the worker stays where it is.
    pub(super) fn is_pinned(&self) -> bool {
        self.cpu.is_some()
    }

    /// The CPU that the worker runs on.
    pub(super) fn here(&self) -> u32 {
        self.cpu.unwrap_or_else(cpu::current)
    }

    /// A request was served whose client is (`near`) or is not on this CPU. Returns whether the
    /// worker has moved.
    pub(super) fn served(&mut self, near: bool) -> bool {
        self.streak = if near { self.streak + 1 } else { 0 };
        self.streak >= STREAK && self.step_aside().is_ok()
    }

    /// Moves to the next CPU.
    fn step_aside(&mut self) -> Result<()> {
        self.streak = 0;
        let next = self.next().ok_or(polylane_base::Errno::ENOENT)?;
        cpu::pin(&[next])?;
        self.cpu = Some(next);
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

    #[test]
    fn a_crowded_worker_is_let_go_until_it_is_calm() {
        let here = cpu::allowed().unwrap();
        let mut post = Post::new(Some(here[0]), here.clone());
        post.take();
        post.slept(false);
        assert!(post.is_pinned());
        post.slept(true);
        assert!(!post.is_pinned());
        assert_eq!(cpu::allowed().unwrap(), here);
        assert!(!(1..CALM).any(|_| post.slept(false)));
        post.slept(true);
        assert!(!(1..CALM).any(|_| post.slept(false)), "it was crowded in between");
        assert!(post.slept(false) && post.is_pinned());
        assert_eq!(cpu::allowed().unwrap(), [post.cpu.unwrap()]);
        assert!(!Post { cpu: None, ..post }.is_pinned());
    }

    #[test]
    fn only_a_streak_from_the_own_cpu_moves_a_worker() {
        let mut post = Post::new(Some(u32::MAX), vec![0, u32::MAX]);
        for _ in 1..STREAK {
            assert!(!post.served(true));
        }
        assert!(!post.served(false));
        let moved = (0..STREAK).filter(|_| post.served(true)).count();
        // CPU 0 may be outside this process's set; then the worker stays where it is.
        assert_eq!(moved, usize::from(post.here() == 0));
    }
}
