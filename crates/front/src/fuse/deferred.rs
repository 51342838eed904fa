//! Work for the threads that may wait for the kernel, in order.
//!
//! # Locking
//!
//! `state` is a leaf.

use std::collections::VecDeque;

use polylane_base::Result;
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_vfs::handover::Answered;
use polylane_vfs::{Cred, Node, OpCtx, OpenFile, Origin};

use crate::lane::Lane;
use crate::lane::notifier::Range;
use crate::lane::tag::Beside;

/// Work for the thread that may wait for the kernel.
pub(super) enum Job {
    /// A request, from the start.
    Request(Vec<u8>),
    /// The same, once the readers are done with what may give room back.
    Again(Vec<u8>),
    /// A reply, after pages under other nodes than `except` are dropped.
    Reply { reply: Reply, node: Node, range: Range, except: Option<u64> },
    /// A reply, after the pages of what was written are dropped.
    ReplyWritten { reply: Reply, again: Again, range: Range },
    /// A reply, once the kernel has heard which states are others now.
    Settled { reply: Reply },
    /// Pages to drop under other nodes than `except`; the reply was sent.
    Drop { node: Node, range: Range, except: Option<u64> },
    /// A file's size to be told, if it is more than this.
    TellSize(Node, u64),
}

/// A reply that waits for the kernel.
pub(super) struct Reply {
    pub(super) unique: u64,
    pub(super) body: Vec<u8>,
    /// Dropped with the rest, once it is sent.
    pub(super) _until_sent: Option<Answered>,
}

/// A write that was done, while the kernel filled pages of the file.
pub(super) struct Again {
    pub(super) file: Arc<OpenFile>,
    pub(super) writer: Cred,
    pub(super) data: Vec<u8>,
    /// Of open(2), `O_SYNC` and `O_DSYNC` also by this write alone.
    pub(super) flags: i32,
    /// Those that began meanwhile.
    pub(super) beside: Beside,
}

impl Again {
    /// The kernel checked the writer's permissions; the write had its turn.
    fn ctx(&self) -> OpCtx<'_> {
        OpCtx::new(Origin::Fuse, &self.writer).kernel_checked()
    }

    /// Has what was written in a range be there once the kernel's pages are gone.
    pub(super) fn keep(&self, lane: &Lane, range: Range) -> Result<()> {
        lane.keep_written((&self.file, self.flags), range, self.beside, |within| {
            let mut bytes = &self.data[..within.min(self.data.len())];
            self.file.write_mapped(&self.ctx(), range.offset, &mut bytes)
        })
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
