//! Work for the threads that may wait for the kernel, in order.
//!
//! # Locking
//!
//! `state` is a leaf.

use std::collections::VecDeque;

use polylane_base::Result;
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_vfs::handover::Answered;
use polylane_vfs::{Cred, Node, OpenFile};

use crate::lane::Beside;
use crate::notifier::Range;

/// Work for the thread that may wait for the kernel.
pub(super) enum Job {
    /// A request, from the start.
    Request(Vec<u8>),
    /// The same, once the readers are done with what may give room back.
    Again(Vec<u8>),
    /// A reply, after pages under other nodes than `except` are dropped.
    Reply {
        unique: u64,
        body: Vec<u8>,
        node: Node,
        range: Range,
        except: Option<u64>,
        answered: Option<Answered>,
    },
    /// A reply, after the pages of what was written are dropped.
    ReplyWritten {
        unique: u64,
        body: Vec<u8>,
        again: Again,
        range: Range,
        answered: Option<Answered>,
    },
    /// Pages to drop under other nodes than `except`; the reply was sent.
    Drop { node: Node, range: Range, except: u64 },
}

/// A write that was done, while the kernel filled pages of the file.
pub(super) struct Again {
    pub(super) file: Arc<OpenFile>,
    pub(super) writer: Cred,
    /// Where it came to lie.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
    /// Of open(2), `O_SYNC` and `O_DSYNC` also by this write alone.
    pub(super) flags: i32,
    /// Those that began meanwhile.
    pub(super) beside: Beside,
}

impl Again {
    /// Writes once more, what lies within the file still; whether that succeeded.
    pub(super) fn write(&self) -> bool {
        let keep = self.file.size().saturating_sub(self.offset).min(self.data.len() as u64);
        self.file.write_mapped(&self.writer, self.offset, &mut &self.data[..keep as usize]).is_ok()
    }

    /// What the first write was to do before it is answered.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_written(self.flags)
    }
}

/// The queue of the deferred thread or of the filler, and whether it is to end.
#[derive(Default)]
pub(super) struct Deferred {
    state: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

impl Deferred {
    /// Hands a job over; gives it back when the thread is about to end.
    pub(super) fn push(&self, job: Job) -> Option<Job> {
        let mut state = self.state.lock();
        if state.1 {
            return Some(job);
        }
        state.0.push_back(job);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// The next job; `None` when all are done and no more will come.
    pub(super) fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.0.pop_front() {
                return Some(job);
            }
            if state.1 {
                return None;
            }
            state = self.changed.wait(state);
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}
