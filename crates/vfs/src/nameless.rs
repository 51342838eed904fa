//! What lost its last name: views that nobody uses are given up.
//!
//! That may lead to other sessions and their streams, so whoever has names removed by a stream does
//! it afterwards, without locks. Nothing waits in between but for a moment: an inode lies here
//! until it was told, and who would know how much room there is waits for that, though not as long
//! as it may take to free a large file.
//!
//! # Locking
//!
//! One thread at a time has the turn. It calls [`Viewer`](crate::Viewer)s, which may remove names
//! by streams: they find the turn taken and leave what they removed to whoever has it. `waiting`
//! and `taken` are leaves.

use std::time::Duration;

use polylane_base::sync::{Condvar, Mutex};

use crate::core::Core;
use crate::inode::Node;
use crate::vfs::Vfs;

/// Longest wait for whoever gives up views: what has few blocks is freed by then.
const PATIENCE: Duration = Duration::from_millis(100);

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Nameless {
    waiting: Mutex<Vec<Node>>,
    /// Whether somebody has the turn.
    taken: Mutex<bool>,
    ended: Condvar,
}

/// The turn, until it is dropped.
struct Turn<'a>(&'a Nameless);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.ended.notify_all();
    }
}

impl Nameless {
    /// The turn, if it is free before `patience` is over.
    fn turn(&self, patience: Duration) -> Option<Turn<'_>> {
        let taken = self.taken.lock();
        let (mut taken, still) = self.ended.wait_timeout_while(taken, patience, |taken| *taken);
        *taken = true;
        (!still).then(|| Turn(self))
    }
}

impl Vfs {
    /// What a streamed call took a name from: where that was the last one, views that nobody uses
    /// are given up. Call without locks, those of whoever has the call made included.
    pub fn lost_a_name(&self, node: &Node) {
        self.core.lost_a_name(node);
    }

    /// As [`Vfs::lost_a_name`], with locks of the caller's own: it is done by the next
    /// [`Vfs::tell_nameless`].
    pub fn note_nameless(&self, node: Node) {
        self.core.nameless.waiting.lock().push(node);
    }

    /// Does what was noted. Call without locks, as above.
    pub fn tell_nameless(&self) {
        self.core.tell_nameless();
    }

    /// Whether somebody does what was noted just now: [`Vfs::statfs`] waits for that, a moment.
    pub fn tells_nameless(&self) -> bool {
        *self.core.nameless.taken.lock()
    }
}

impl Core {
    /// What was noted before this call is over when it returns, unless somebody has it open, or it
    /// takes long. Call without locks, but not from a [`Viewer`](crate::Viewer).
    pub(crate) fn end_nameless(&self) {
        if let Some(turn) = self.nameless.turn(PATIENCE) {
            self.tell_waiting(&turn);
        }
        self.tell_nameless();
    }

    fn tell_nameless(&self) {
        while !self.nameless.waiting.lock().is_empty() {
            // The thread that has the turn looks again after it.
            let Some(turn) = self.nameless.turn(Duration::ZERO) else { return };
            self.tell_waiting(&turn);
        }
    }

    fn tell_waiting(&self, _turn: &Turn<'_>) {
        let nodes = std::mem::take(&mut *self.nameless.waiting.lock());
        nodes.iter().for_each(|node| self.lost_a_name(node));
    }

    /// After a name was removed: nothing but open files keeps what has none left. Call without
    /// locks.
    pub(crate) fn lost_a_name(&self, node: &Node) {
        if node.nlink() == 0 {
            self.let_go_of(node);
        }
    }
}
