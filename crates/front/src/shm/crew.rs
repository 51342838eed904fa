//! The threads that serve clients: workers with their followers, and helpers. The first client has
//! them started, so a lane that is used by the kernel alone has none.
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
use super::{Config, join, spawn};
use crate::beat::{self, Beat};

/// The threads of a server beside its acceptor. Thread-safe.
pub(super) struct Crew {
    /// Of each worker.
    stats: Vec<Arc<Stats>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    workers: Vec<thread::JoinHandle<()>>,
    /// Whether all of them run; `None`: they were not needed yet.
    begun: Option<Result<()>>,
}

impl Crew {
    /// For so many workers; none of its threads is there yet.
    pub(super) fn of(workers: usize) -> Crew {
        Crew { stats: (0..workers).map(|_| Arc::default()).collect(), state: Mutex::default() }
    }

    /// What each worker has done.
    pub(super) fn stats(&self) -> impl Iterator<Item = &Stats> {
        self.stats.iter().map(|stats| &**stats)
    }

    /// Has all of its threads run.
    ///
    /// # Errors
    /// What the kernel says to new threads, from then on; `EAGAIN`: the server stops.
    pub(super) fn begin(
        &self,
        config: &Config,
        (helpers, inboxes): (&Arc<Helpers>, &[Arc<Inbox>]),
    ) -> Result<()> {
        let mut state = self.state.lock();
        let State { workers, begun } = &mut *state;
        *begun.get_or_insert_with(|| self.start(config, (helpers, inboxes), workers))
    }

    fn start(
        &self,
        config: &Config,
        (helpers, inboxes): (&Arc<Helpers>, &[Arc<Inbox>]),
        threads: &mut Vec<thread::JoinHandle<()>>,
    ) -> Result<()> {
        helpers.spawn(config.helpers)?;
        for (group, cpu) in config.workers.iter().enumerate() {
            let inbox = inboxes[group].clone();
            // Several workers share the CPUs out among them; a lone one may use them all.
            let others = if config.workers.len() == 1 { cpu::allowed()? } else { Vec::new() };
            let post = Post::new(*cpu, others);
            let beat = match config.heart.clone() {
                Some(heart) => Beat::watched(heart, beat::WORKERS + group),
                None => Beat::unwatched(),
            };
            let count = 1 + config.followers;
            let role = Role::new(&inbox, count)?;
            let shared = (helpers.clone(), self.stats[group].clone());
            let mut first = Some(Box::new(Worker::new(post, inbox, shared, beat)));
            for number in 0..count {
                let (role, first) = (role.clone(), first.take());
                let run = move || role.run(number, first);
                threads.push(spawn(format!("shm-worker-{group}"), run)?);
            }
        }
        Ok(())
    }

    /// Lets the workers serve what was posted, and waits for them. None start from now on.
    pub(super) fn stop(&self, inboxes: &[Arc<Inbox>]) {
        let workers = {
            let mut state = self.state.lock();
            state.begun = Some(Err(Errno::EAGAIN));
            std::mem::take(&mut state.workers)
        };
        inboxes.iter().for_each(|inbox| inbox.stop());
        join(workers);
    }
}
