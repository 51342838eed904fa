//! What the kernel sent before is done first: for answers that must not be too early.
//!
//! close(2) does not wait for RELEASE. So a flock(2) that was held by a descriptor closed a moment
//! ago may still stand in the way of the next one, although no program can see why. Before a
//! refusal is final, [`Progress::settle`] lets the readers finish what the kernel had sent by then.
//!
//! # Invariants
//!
//! - A mark is odd while its reader may have a request in hand, and moves with every request.
//! - Waiting is bounded by [`PATIENCE`]: a reader may be slow for reasons of its own.
//!
//! # Locking
//!
//! `session` is a leaf.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex, thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest wait for a reader: longer than a thread that wants a busy CPU waits for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest wait for an empty device. A busy one may never be seen empty, and then what was sent
/// first has long been read.
const EMPTY_PATIENCE: Duration = Duration::from_millis(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// How far each reader of a session has come.
#[derive(Debug)]
pub(crate) struct Marks(Vec<AtomicU64>);

impl Marks {
    pub(crate) fn new(readers: usize) -> Arc<Marks> {
        Arc::new(Marks((0..readers).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Waits until every reader is done with what it had in hand, or until `end`.
    fn settle(&self, end: Instant) {
        for mark in &self.0 {
            let before = mark.load(Ordering::SeqCst);
            let moved = || before % 2 == 0 || mark.load(Ordering::SeqCst) != before;
            while !moved() && Instant::now() < end {
                thread::sleep(PAUSE);
            }
        }
    }

    /// How many readers there are to be.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The mark of that reader, which runs from now on.
    pub(crate) fn begin(&self, reader: usize) -> Mark<'_> {
        self.0[reader].fetch_or(1, Ordering::SeqCst);
        Mark(&self.0[reader])
    }
}

/// The mark of one reader, who alone moves it.
pub(crate) struct Mark<'a>(&'a AtomicU64);

impl Mark<'_> {
    /// Sleeps by `sleep`, as one who has no request in hand.
    pub(crate) fn asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::SeqCst);
        let result = sleep();
        self.0.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// A request is done.
    pub(crate) fn step(&self) {
        self.0.fetch_add(2, Ordering::SeqCst);
    }
}

struct Session {
    device: Arc<OwnedFd>,
    marks: Arc<Marks>,
}

/// The readers of a lane's session, if there is one. Thread-safe.
#[derive(Default)]
pub struct Progress {
    session: Mutex<Option<Session>>,
}

impl Progress {
    /// Readers begin to read from that device.
    pub(crate) fn begin(&self, device: Arc<OwnedFd>, marks: Arc<Marks>) {
        *self.session.lock() = Some(Session { device, marks });
    }

    /// They have ended.
    pub(crate) fn end(&self) {
        *self.session.lock() = None;
    }

    /// Waits until every request that the kernel had sent before is done, or for `PATIENCE`. Not
    /// for readers, who would wait for each other.
    pub fn settle(&self) {
        let session = self.session.lock();
        let Some(Session { device, marks }) = session.as_ref() else { return };
        let (device, marks) = (device.clone(), marks.clone());
        drop(session);
        let start = Instant::now();
        while has_request(&device) && start.elapsed() < EMPTY_PATIENCE {
            thread::sleep(PAUSE);
        }
        marks.settle(start + PATIENCE);
    }

    /// The same for what was already read: enough for one request that must not overtake another.
    pub(crate) fn settle_read(&self) {
        let marks = self.session.lock().as_ref().map(|session| session.marks.clone());
        if let Some(marks) = marks {
            marks.settle(Instant::now() + PATIENCE);
        }
    }
}

/// Whether a request waits to be read.
fn has_request(device: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(device, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents() == PollFlags::IN
}
