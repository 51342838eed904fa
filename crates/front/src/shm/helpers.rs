//! Threads that wait so that workers need not: for the device, or for the kernel to give pages
//! back.
//!
//! Jobs are taken in turn from the sessions that have any, so that a client that posts nothing but
//! fsyncs waits behind itself. The queue is bounded by its posters: one job per mailbox at most.
//!
//! # Locking
//!
//! `queue` is a leaf: jobs run without it.

use std::collections::{BTreeMap, VecDeque};

use polylane_base::Result;
use polylane_base::sync::{Arc, Condvar, Mutex, thread};

use super::guarded;
use super::slices::Slices;

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

/// Jobs by session; `turns` holds each session that has jobs exactly once.
#[derive(Default)]
struct Queue {
    jobs: BTreeMap<u64, VecDeque<Job>>,
    turns: VecDeque<u64>,
    closed: bool,
}

impl Helpers {
    /// A queue without threads.
    pub(super) fn new() -> Helpers {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new() });
        Helpers { shared, threads: Mutex::default() }
    }

    /// Starts `count` threads.
    pub(super) fn spawn(&self, count: usize) -> Result<()> {
        for index in 0..count {
            let shared = Arc::clone(&self.shared);
            let thread = super::spawn(format!("shm-helper-{index}"), move || shared.run())?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Queues a job of a session. After `stop` the job is dropped.
    pub(super) fn post(&self, session: u64, job: Job) {
        let mut queue = self.shared.queue.lock();
        if !queue.closed {
            queue.push(session, job);
            self.shared.more.notify_one();
        }
    }

    /// Lets the threads finish what is queued and waits for them.
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
    fn run(&self) {
        let mut slices = Slices::default();
        while let Some(job) = self.next() {
            slices.begin();
            guarded(job);
            slices.end();
        }
    }

    /// The next job; `None` once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue = self.more.wait(queue);
        }
    }
}

impl Queue {
    fn push(&mut self, session: u64, job: Job) {
        let jobs = self.jobs.entry(session).or_default();
        if jobs.is_empty() {
            self.turns.push_back(session);
        }
        jobs.push_back(job);
    }

    /// The first job of the session whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        let session = self.turns.pop_front()?;
        let jobs = self.jobs.get_mut(&session)?;
        let job = jobs.pop_front();
        match jobs.is_empty() {
            true => drop(self.jobs.remove(&session)),
            false => self.turns.push_back(session),
        }
        job
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
        for session in [1, 1, 1, 2, 3, 3] {
            let sender = sender.clone();
            queue.push(session, Box::new(move || sender.send(session).unwrap()));
        }
        while let Some(job) = queue.pop() {
            job();
        }
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2, 3, 1, 3, 1]);
        assert!(queue.jobs.is_empty());
    }

    #[test]
    fn stop_finishes_what_is_queued_and_survives_a_panic() {
        let (sender, receiver) = mpsc::channel();
        let helpers = Helpers::new();
        helpers.spawn(2).unwrap();
        helpers.post(1, Box::new(|| panic!("a job that panics")));
        for number in 0..100 {
            let sender = sender.clone();
            helpers.post(number % 7, Box::new(move || sender.send(number).unwrap()));
        }
        helpers.stop();
        helpers.post(1, Box::new(|| unreachable!("posted after stop")));
        assert_eq!(receiver.try_iter().count(), 100);
    }
}
