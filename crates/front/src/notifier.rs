//! The notifier: the one thread that tells the kernel to drop pages.
//!
//! `FUSE_NOTIFY_INVAL_INODE` blocks in the kernel until dirty pages of the range were written back, that is,
//! until *we* have served those WRITE requests. So it is sent by a thread that serves nothing, and
//! whoever waits for it must not be a thread that the kernel's requests need.
//!
//! # Invariants
//!
//! - A waiter returns after every notification it asked for was taken by the kernel or refused by it,
//!   or after the notifier stopped.
//! - Without a FUSE session there is nobody to notify: waiting returns at once.
//!
//! # Locking
//!
//! `queue` and `Latch::left` are leaves. Callers hold no VFS lock.

use std::collections::VecDeque;

use polylane_base::sync::{Arc, Condvar, Mutex};

/// A byte range of a file; `len` 0 means to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes; 0: all that follow.
    pub len: u64,
}

impl Range {
    /// The whole file.
    pub const ALL: Range = Range { offset: 0, len: 0 };
}

/// One invalidation to send.
pub(crate) struct Job {
    pub(crate) node_id: u64,
    pub(crate) range: Range,
    done: Arc<Latch>,
}

impl Drop for Job {
    /// Sent, refused or thrown away: the waiter goes on in any case.
    fn drop(&mut self) {
        let mut left = self.done.left.lock();
        *left -= 1;
        if *left == 0 {
            self.done.zero.notify_all();
        }
    }
}

struct Latch {
    left: Mutex<usize>,
    zero: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

/// The queue in front of the notifier thread. Thread-safe.
#[derive(Default)]
pub struct Notifier {
    queue: Mutex<Queue>,
    work: Condvar,
}

impl Notifier {
    /// Makes the kernel write back and drop the pages that it has of `range` under `node_ids`, and
    /// waits for it.
    pub(crate) fn invalidate(&self, node_ids: &[u64], range: Range) {
        let latch = Arc::new(Latch { left: Mutex::new(node_ids.len()), zero: Condvar::new() });
        let mut queue = self.queue.lock();
        if !queue.running || node_ids.is_empty() {
            return;
        }
        for &node_id in node_ids {
            queue.jobs.push_back(Job { node_id, range, done: latch.clone() });
        }
        drop(queue);
        self.work.notify_one();
        let mut left = latch.left.lock();
        while *left > 0 {
            left = latch.zero.wait(left).unwrap_or_else(|poison| poison.into_inner());
        }
    }

    /// The session that owns the thread is ready: jobs are taken from now on.
    pub(crate) fn start(&self) {
        self.queue.lock().running = true;
    }

    /// Lets the thread end and every waiter go.
    pub(crate) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.running = false;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(jobs);
        self.work.notify_all();
    }

    /// The next job; `None` once stopped.
    pub(crate) fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if !queue.running {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.work.wait(queue).unwrap_or_else(|poison| poison.into_inner());
        }
    }
}
