//! Threads that wait so that workers need not: for the device, or for the kernel to give pages
//! back.
//!
//! Jobs are taken in turn from the users that have any, and of each user in turn from its sessions,
//! so that a client that posts nothing but fsyncs waits behind itself. The queue is bounded by its
//! posters: one job per mailbox at most.
//!
//! # Locking
//!
//! `queue` is a leaf: jobs run without it.

use std::collections::{BTreeMap, VecDeque};

use polylane_base::sync::{Arc, Condvar, Mutex, thread};
use polylane_base::{Result, Uid};

use super::slices::Slices;
use super::{Spawn, guarded};

/// Something to do that may take a while.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A fixed set of helper threads and their queue.
pub(super) struct Helpers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// Jobs by user and session.
#[derive(Default)]
struct Queue {
    jobs: InTurn<Uid, InTurn<u64, VecDeque<Job>>>,
    /// Threads outside that may post jobs yet.
    expected: usize,
    closed: bool,
}

/// A thread outside that may post a job: until this is dropped the helpers do not stop.
pub(super) struct Expected(Arc<Shared>);

impl Expected {
    /// Queues a job of a user's session.
    pub(super) fn post(&self, user: Uid, session: u64, job: Job) {
        self.0.post(user, session, job);
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.expected -= 1;
        if queue.closed && queue.expected == 0 {
            self.0.more.notify_all();
        }
    }
}

/// Queues by key, from which one thing is taken in turn; `turns` holds each key that has any
/// exactly once.
struct InTurn<K, Q> {
    queues: BTreeMap<K, Q>,
    turns: VecDeque<K>,
}

impl<K, Q> Default for InTurn<K, Q> {
    fn default() -> Self {
        InTurn { queues: BTreeMap::new(), turns: VecDeque::new() }
    }
}

impl<K: Copy + Ord, Q: Default> InTurn<K, Q> {
    /// The queue of a key, which is about to have something.
    fn of(&mut self, key: K) -> &mut Q {
        let turns = &mut self.turns;
        self.queues.entry(key).or_insert_with(|| {
            turns.push_back(key);
            Q::default()
        })
    }

    /// Takes from the queue whose turn it is; `take` says, too, whether that queue is empty then.
    fn pop<T>(&mut self, take: impl FnOnce(&mut Q) -> (Option<T>, bool)) -> Option<T> {
        let key = self.turns.pop_front()?;
        let (taken, empty) = take(self.queues.get_mut(&key)?);
        match empty {
            true => drop(self.queues.remove(&key)),
            false => self.turns.push_back(key),
        }
        taken
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl Helpers {
    /// A queue without threads.
    pub(super) fn new() -> Helpers {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new() });
        Helpers { shared, threads: Mutex::default() }
    }

    /// Starts threads until there are `count`. One that fails leaves those before it.
    pub(super) fn fill(&self, count: usize, spawn: Spawn) -> Result<()> {
        let mut threads = self.threads.lock();
        for index in threads.len()..count {
            let shared = Arc::clone(&self.shared);
            let run = Box::new(move || shared.run());
            threads.push(spawn(format!("shm-helper-{index}"), run)?);
        }
        Ok(())
    }

    /// Whether any thread takes jobs.
    pub(super) fn any(&self) -> bool {
        !self.threads.lock().is_empty()
    }

    /// Queues a job of a user's session. After `stop` the job is dropped.
    pub(super) fn post(&self, user: Uid, session: u64, job: Job) {
        self.shared.post(user, session, job);
    }

    /// A thread that is none of the helpers may post a job later.
    pub(super) fn expect(&self) -> Expected {
        self.shared.queue.lock().expected += 1;
        Expected(self.shared.clone())
    }

    /// Lets the threads finish what is queued and expected, and waits for them.
    pub(super) fn stop(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.more.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A helper's panic was caught and counted where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn post(&self, user: Uid, session: u64, job: Job) {
        let mut queue = self.queue.lock();
        if !queue.closed || queue.expected > 0 {
            queue.push(user, session, job);
            self.more.notify_one();
        }
    }

    fn run(&self) {
        let mut slices = Slices::default();
        while let Some(job) = self.next() {
            slices.begin();
            guarded(job);
            slices.end();
        }
    }

    /// The next job; `None` once the queue is closed and empty, and no job is expected any more.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            if queue.closed && queue.expected == 0 {
                return None;
            }
            queue = self.more.wait(queue);
        }
    }
}

impl Queue {
    fn push(&mut self, user: Uid, session: u64, job: Job) {
        self.jobs.of(user).of(session).push_back(job);
    }

    /// The first job of the session whose turn it is, of the user whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        self.jobs.pop(|sessions| {
            let job = sessions.pop(|jobs| (jobs.pop_front(), jobs.is_empty()));
            (job, sessions.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn sessions_take_turns() {
        let (sender, receiver) = mpsc::channel();
        let mut queue = Queue::default();
        for (user, session) in [(7, 1), (7, 1), (7, 1), (7, 2), (7, 3), (7, 3), (8, 4), (8, 4)] {
            let sender = sender.clone();
            queue.push(Uid(user), session, Box::new(move || sender.send(session).unwrap()));
        }
        while let Some(job) = queue.pop() {
            job();
        }
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 4, 2, 4, 3, 1, 3, 1]);
        assert!(queue.jobs.is_empty());
    }

    #[test]
    fn stop_finishes_what_is_queued_and_survives_a_panic() {
        let (sender, receiver) = mpsc::channel();
        let helpers = Helpers::new();
        helpers.fill(2, crate::shm::spawn).unwrap();
        helpers.post(Uid(0), 1, Box::new(|| panic!("a job that panics")));
        for number in 0..100 {
            let sender = sender.clone();
            helpers.post(Uid(0), number % 7, Box::new(move || sender.send(number).unwrap()));
        }
        helpers.stop();
        helpers.post(Uid(0), 1, Box::new(|| unreachable!("posted after stop")));
        assert_eq!(receiver.try_iter().count(), 100);
    }
}
