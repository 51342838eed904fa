//! What a volume's channels hand to its clerk, and the bells by which they are answered.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Condvar, Mutex, thread};
use polylane_sys::event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::{Error, Op, Sector};

/// How often the pin is looked at when nothing else happens.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// How long a channel sleeps at a bell that makes no sound.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Make durable what has completed.
    Flush,
    /// A discard or write-zeroes of these sectors.
    Zero(Op, Sector, u64),
    /// Give a hole its chunk.
    Fill(u32),
    /// Nothing: what was closed is open again when this is answered.
    Again,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The request is done.
    Done(Result<(), Error>),
    /// The request can be tried again.
    Again,
}

/// Something to do for a request in a channel's slot.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) bell: Arc<Bell>,
    pub(super) slot: usize,
}

/// Where a channel's answers come.
#[derive(Debug)]
pub(super) struct Bell {
    rung: AtomicBool,
    answers: Mutex<Vec<(usize, Answer)>>,
    event: Option<OwnedFd>,
}

impl Bell {
    pub(super) fn new() -> Bell {
        let event = event::eventfd().ok();
        Bell { rung: AtomicBool::new(false), answers: Mutex::default(), event }
    }

    pub(super) fn ring(&self, slot: usize, answer: Answer) {
        self.answers.lock().push((slot, answer));
        // A channel that sees the word takes the event too, so it must be there.
        if let Some(event) = &self.event {
            event::notify(event);
        }
        self.rung.store(true, Ordering::Release);
    }

    /// Readable while there are answers.
    pub(super) fn event(&self) -> Option<&OwnedFd> {
        self.event.as_ref()
    }

    /// The answers that are there. Without any it costs a look at one word.
    #[inline]
    pub(super) fn take(&self) -> Vec<(usize, Answer)> {
        if !self.rung.load(Ordering::Acquire) {
            return Vec::new();
        }
        // Before the answers: one that comes now is found, or rings again.
        self.rung.store(false, Ordering::Release);
        if let Some(event) = &self.event {
            event::drain(event);
        }
        std::mem::take(&mut *self.answers.lock())
    }

    /// Sleeps until there may be answers, or `other` is readable.
    pub(super) fn wait(&self, other: Option<impl AsFd>) {
        if self.rung.load(Ordering::Acquire) {
            return;
        }
        let Some(event) = &self.event else { return thread::sleep(LOOK_AGAIN) };
        let mut fds = vec![PollFd::new(event, PollFlags::IN)];
        fds.extend(other.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // A limit, so that no mistake of ours is for ever.
        let limit = Timespec { tv_sec: TICK.as_secs() as i64, tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&limit));
    }
}

/// The way to a clerk.
#[derive(Default)]
pub(super) struct Desk {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Desk {
    pub(super) fn push(&self, job: Job) {
        self.queue.lock().jobs.push_back(job);
        self.wake.notify_one();
    }

    /// No more jobs come; the clerk ends when it has done those that are there.
    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.wake.notify_one();
    }

    /// The jobs that are there, if need be after a while; `None` at the end.
    pub(super) fn take(&self, limit: Duration) -> Option<VecDeque<Job>> {
        let idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.closed;
        let (mut queue, _) = self.wake.wait_timeout_while(self.queue.lock(), limit, idle);
        match queue.jobs.is_empty() && queue.closed {
            true => None,
            false => Some(std::mem::take(&mut queue.jobs)),
        }
    }
}
