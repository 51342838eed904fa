//! The threads that serve clients: workers with their followers, and helpers. The first client has
//! them started, so a lane that is used by the kernel alone has none. Where not all of them can be
//! started, that client is refused, and the next one has the rest started.
//!
//! # Locking
//!
//! `state` is held while threads start, which take it never.

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_base::{Errno, Result};
use polylane_sys::cpu;

use super::helpers::Helpers;
use super::post::Post;
use super::role::Role;
use super::stats::Stats;
use super::worker::{Inbox, Worker};
use super::{Config, Spawn, join};
use crate::beat::{self, Beat};

/// The threads of a server beside its acceptor. Thread-safe.
pub(super) struct Crew {
    /// Of each worker.
    stats: Vec<Arc<Stats>>,
    spawn: Spawn,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of each worker that has a thread or is about to.
    roles: Vec<Arc<Role>>,
    /// Of the first worker first.
    workers: Vec<thread::JoinHandle<()>>,
    stopped: bool,
}

impl Crew {
    /// For so many workers; none of its threads is there yet.
    pub(super) fn of(workers: usize, spawn: Spawn) -> Crew {
        let stats = (0..workers).map(|_| Arc::default()).collect();
        Crew { stats, spawn, state: Mutex::default() }
    }

    /// What each worker has done.
    pub(super) fn stats(&self) -> impl Iterator<Item = &Stats> {
        self.stats.iter().map(|stats| &**stats)
    }

    /// Has all of its threads run.
    ///
    /// # Errors
    /// What the kernel says to the first one that cannot be started: those before it stay. `EAGAIN`
    /// also where the server stops.
    pub(super) fn begin(
        &self,
        config: &Config,
        (helpers, inboxes): (&Arc<Helpers>, &[Arc<Inbox>]),
    ) -> Result<()> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(Errno::EAGAIN);
        }
        helpers.fill(config.helpers, self.spawn)?;
        let each = 1 + config.followers;
        for at in state.workers.len()..inboxes.len() * each {
            let (group, number) = (at / each, at % each);
            if state.roles.len() == group {
                state.roles.push(self.role(config, helpers, (group, &inboxes[group]))?);
            }
            let role = state.roles[group].clone();
            let run = Box::new(move || role.run(number));
            state.workers.push((self.spawn)(format!("shm-worker-{group}"), run)?);
        }
        Ok(())
    }

    /// What the threads of a worker have in turn.
    fn role(
        &self,
        config: &Config,
        helpers: &Arc<Helpers>,
        (group, inbox): (usize, &Arc<Inbox>),
    ) -> Result<Arc<Role>> {
        // Several workers share the CPUs out among them; a lone one may use them all.
        let others = if config.workers.len() == 1 { cpu::allowed()? } else { Vec::new() };
        let post = Post::new(config.workers[group], others);
        let beat = match config.heart.clone() {
            Some(heart) => Beat::watched(heart, beat::WORKERS + group),
            None => Beat::unwatched(),
        };
        let shared = (helpers.clone(), self.stats[group].clone());
        let worker = Box::new(Worker::new(post, inbox.clone(), shared, beat));
        Role::new(inbox, 1 + config.followers, worker)
    }

    /// Lets the workers serve what was posted, and waits for them. None start from now on.
    pub(super) fn stop(&self, inboxes: &[Arc<Inbox>]) {
        let State { workers, .. } =
            std::mem::replace(&mut *self.state.lock(), State { stopped: true, ..State::default() });
        inboxes.iter().for_each(|inbox| inbox.stop());
        join(workers);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use polylane_base::Uid;
    use polylane_base::rng::Rng;
    use polylane_base::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    thread_local! {
        /// How many threads the calling one may start.
        static ALLOWED: Cell<usize> = const { Cell::new(0) };
    }

    fn scarce(name: String, run: Box<dyn FnOnce() + Send>) -> Result<thread::JoinHandle<()>> {
        let left = ALLOWED.get().checked_sub(1).ok_or(Errno::EAGAIN)?;
        ALLOWED.set(left);
        super::super::spawn(name, run)
    }

    /// Where threads are scarce, each client has more of them started, until all are there; and
    /// the end waits for those that are.
    #[test]
    fn what_could_not_be_started_is_started_for_a_later_client() {
        let config =
            Config { workers: vec![None; 2], helpers: 3, followers: 2, ..Config::default() };
        let all = config.helpers + config.workers.len() * (1 + config.followers);
        let mut complete = 0;
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let inboxes: Vec<_> = (0..2).map(|group| Inbox::new(group).expect("inbox")).collect();
            let (helpers, done) = (Arc::new(Helpers::new()), Arc::new(AtomicUsize::new(0)));
            let crew = Crew::of(2, scarce);
            let (mut started, mut posted) = (0, 0);
            // Some end before all are there.
            for _ in 0..1 + rng.below(8) {
                let allowed = rng.below(5) as usize;
                ALLOWED.set(allowed);
                let begun = crew.begin(&config, (&helpers, &inboxes));
                assert_eq!(started + allowed - ALLOWED.get(), all.min(started + allowed));
                started = all.min(started + allowed);
                assert_eq!(begun.is_ok(), started == all, "seed {seed}: {started}");
                assert_eq!(helpers.any(), started > 0, "seed {seed}");
                let job = done.clone();
                helpers.post(Uid(0), 0, Box::new(move || _ = job.fetch_add(1, Ordering::SeqCst)));
                posted += 1;
            }
            crew.stop(&inboxes);
            ALLOWED.set(1);
            assert_eq!(crew.begin(&config, (&helpers, &inboxes)), Err(Errno::EAGAIN));
            assert_eq!(ALLOWED.get(), 1, "none starts after the end");
            helpers.stop();
            let expected = if started > 0 { posted } else { 0 };
            assert_eq!(done.load(Ordering::SeqCst), expected, "seed {seed}");
            complete += usize::from(started == all);
        }
        assert!((1..60).contains(&complete), "{complete}");
    }
}
