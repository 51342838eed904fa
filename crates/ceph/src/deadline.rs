//! Calls that end in time, though what they call does not.
//!
//! libcephfs waits for a cluster that is away for as long as that lasts, and a thread in it cannot
//! be called back. So a call is made by a thread of its own, and who asked for it waits for a
//! limited time. A call that has not begun by then is withdrawn, and is never made. One that has
//! begun is *overdue*: it goes on, and may still change something when the cluster is back.
//!
//! # Invariants
//!
//! - A call on an inode begins when no overdue one on it is left, so nothing that was asked for
//!   later is undone by an overdue call.
//! - At most [`THREADS_MAX`] calls are under way.
//!
//! # Locking
//!
//! A call's `state`, then `overdue`; `queue` alone.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, Condvar, Mutex, MutexGuard, thread};
use polylane_base::{Errno, Ino, Result};

/// Threads at most, each with one call.
const THREADS_MAX: usize = 64;

/// How long a thread waits for another call before it ends.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// What a call is on, so that others on the same wait while it is overdue.
pub(crate) type On<'a> = &'a [Ino];

type Work = Box<dyn FnOnce() + Send>;

/// Does something in a thread of its own; `None`: that has not ended in time, and goes on.
pub(crate) fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, waits) = mpsc::channel();
    let spawned = thread::Builder::new().name("ceph-start".to_string()).spawn(move || {
        // What is late is dropped here.
        let _ = done.send(work());
    });
    spawned.ok()?;
    waits.recv_timeout(limit).ok()
}

/// Says that calls end in time. Thread-safe.
pub(crate) struct Deadline {
    limit: Duration,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    /// How many overdue calls there are on an inode.
    overdue: Mutex<HashMap<Ino, usize>>,
    settled: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

/// How far a call has come.
enum State<T> {
    Waits,
    Runs,
    Ended(T),
    /// Its time was over before it began.
    Withdrawn,
    /// Its time was over while it ran.
    Overdue,
}

struct Call<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

impl Deadline {
    /// Calls end within `limit`.
    pub(crate) fn new(limit: Duration) -> Deadline {
        Deadline { limit, shared: Arc::default() }
    }

    /// Calls `work`, which is on these inodes. `EIO`: it has not ended in time.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        on: On<'_>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let until = Instant::now() + self.limit;
        self.shared.wait_for_turn(on, until)?;
        let call = Arc::new(Call { state: Mutex::new(State::Waits), ended: Condvar::new() });
        let (its, shared, keys) = (call.clone(), self.shared.clone(), on.to_vec());
        self.shared.give(Box::new(move || its.run(work, &shared, &keys)))?;
        call.wait(until, &self.shared, on)
    }

    /// Whether a call is overdue: later ones may wait as long.
    pub(crate) fn is_behind(&self) -> bool {
        !self.shared.overdue.lock().is_empty()
    }

    /// How many calls are overdue, each counted for every inode that it is on.
    #[cfg(test)]
    fn overdue(&self) -> usize {
        self.shared.overdue.lock().values().sum()
    }
}

impl<T> Call<Result<T>> {
    fn run(&self, work: impl FnOnce() -> Result<T>, shared: &Shared, on: On<'_>) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Waits) {
            return;
        }
        *state = State::Runs;
        drop(state);
        let result = work();
        let mut state = self.state.lock();
        match *state {
            State::Overdue => {
                // Before another call on the same: what it refers to is let go of.
                drop(result);
                shared.settle(on);
            }
            _ => *state = State::Ended(result),
        }
        self.ended.notify_all();
    }

    fn wait(&self, until: Instant, shared: &Shared, on: On<'_>) -> Result<T> {
        let limit = until.saturating_duration_since(Instant::now());
        let is_open = |state: &mut State<_>| matches!(state, State::Waits | State::Runs);
        let (mut state, _) = self.ended.wait_timeout_while(self.state.lock(), limit, is_open);
        match std::mem::replace(&mut *state, State::Withdrawn) {
            State::Ended(result) => result,
            State::Runs => {
                *state = State::Overdue;
                shared.add(on);
                Err(Errno::EIO)
            }
            State::Waits | State::Withdrawn | State::Overdue => Err(Errno::EIO),
        }
    }
}

impl Shared {
    /// Waits until no overdue call is on any of these.
    fn wait_for_turn(&self, on: On<'_>, until: Instant) -> Result<()> {
        let overdue = self.overdue.lock();
        if overdue.is_empty() {
            return Ok(());
        }
        let limit = until.saturating_duration_since(Instant::now());
        let is_taken =
            |overdue: &mut HashMap<Ino, usize>| on.iter().any(|ino| overdue.contains_key(ino));
        match self.settled.wait_timeout_while(overdue, limit, is_taken).1 {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    fn add(&self, on: On<'_>) {
        let mut overdue = self.overdue.lock();
        on.iter().for_each(|&ino| *overdue.entry(ino).or_default() += 1);
    }

    fn settle(&self, on: On<'_>) {
        let mut overdue = self.overdue.lock();
        for ino in on {
            if let Some(count) = overdue.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    overdue.remove(ino);
                }
            }
        }
        self.settled.notify_all();
    }

    /// Has a thread do it: one that is idle, or a new one, or else the first that is.
    fn give(self: &Arc<Self>, work: Work) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(work);
        if queue.waiting.len() <= queue.idle || queue.threads == THREADS_MAX {
            self.more.notify_one();
            return Ok(());
        }
        queue.threads += 1;
        drop(queue);
        let shared = self.clone();
        let thread = thread::Builder::new().name("ceph-call".to_string());
        if thread.spawn(move || shared.work()).is_err() {
            // What was given is withdrawn in time unless another thread comes to it.
            self.queue.lock().threads -= 1;
        }
        Ok(())
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                work();
                queue = self.queue.lock();
                continue;
            }
            let is_idle;
            (queue, is_idle) = self.sleep(queue);
            if is_idle {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// Sleeps until there is work; true: there was none for long.
    fn sleep<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> (MutexGuard<'a, Queue>, bool) {
        queue.idle += 1;
        let is_empty = |queue: &mut Queue| queue.waiting.is_empty();
        let (mut queue, was_idle) = self.more.wait_timeout_while(queue, IDLE_TIME_MAX, is_empty);
        queue.idle -= 1;
        (queue, was_idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_call_that_does_not_end_is_overdue_until_it_does() {
        let hasty = Deadline::new(LIMIT);
        assert_eq!(hasty.call(&[Ino(1)], || Ok(7)), Ok(7));
        assert_eq!(hasty.call(&[], || Err::<(), _>(Errno::ENOENT)), Err(Errno::ENOENT));
        let (go, stop) = mpsc::channel::<()>();
        let late = Arc::new(());
        let kept = Arc::downgrade(&late);
        let stuck = move || stop.recv_timeout(LONG).map_err(|_| Errno::EINVAL).map(|()| late);
        assert_eq!(hasty.call(&[Ino(1), Ino(2)], stuck), Err(Errno::EIO));
        assert!(hasty.overdue() == 2 && hasty.is_behind());
        assert_eq!(hasty.call(&[Ino(3)], || Ok(8)), Ok(8), "of another inode");
        let never = || -> Result<()> { panic!("called beside an overdue one") };
        assert_eq!(hasty.call(&[Ino(2)], never), Err(Errno::EIO));
        let patient = Deadline { limit: LONG, shared: hasty.shared.clone() };
        let waits = thread::spawn(move || patient.call(&[Ino(1)], || Ok(9)));
        go.send(()).expect("it runs");
        assert_eq!(waits.join().expect("no panic"), Ok(9), "begun when the overdue one ended");
        assert_eq!(kept.strong_count(), 0, "what is late is dropped");
        assert!(hasty.overdue() == 0 && !hasty.is_behind());
    }

    #[test]
    fn what_takes_too_long_at_the_start_is_left_alone() {
        assert_eq!(in_time(LONG, || 7), Some(7));
        let (go, stop) = mpsc::channel::<()>();
        assert_eq!(in_time(LIMIT, move || stop.recv_timeout(LONG).is_ok()), None);
        go.send(()).expect("it goes on");
    }

    #[test]
    fn a_call_that_never_began_is_never_made() {
        let deadline = Arc::new(Deadline::new(LIMIT));
        let (go, stop) = mpsc::channel::<()>();
        let stop = Arc::new(Mutex::new(stop));
        let calls: Vec<_> = (0..THREADS_MAX)
            .map(|_| {
                let (deadline, stop) = (deadline.clone(), stop.clone());
                let stuck = move || stop.lock().recv_timeout(LONG).map_err(|_| Errno::EINVAL);
                thread::spawn(move || deadline.call(&[], stuck))
            })
            .collect();
        for call in calls {
            assert_eq!(call.join().expect("no panic"), Err(Errno::EIO));
        }
        let never = || -> Result<()> { panic!("there is no thread for it") };
        assert_eq!(deadline.call(&[], never), Err(Errno::EIO));
        (0..THREADS_MAX).for_each(|_| go.send(()).expect("they run"));
        let patient = Deadline { limit: LONG, shared: deadline.shared.clone() };
        assert_eq!(patient.call(&[], || Ok(1)), Ok(1));
    }
}
