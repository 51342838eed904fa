//! A worker's role, and the threads among which it passes: a leader and its followers.
//!
//! ```text
//!  thread   serves ─► an fsync ─► lends the role, syncs ─► has it back, replies ─► serves
//!                                   │                 └─► else: replies, follows
//!                         a client rings meanwhile
//!  follower  sleeps ────────────────┴─► takes the role, serves
//! ```
//!
//! The thread that takes a request which waits for a device serves it itself: the client that waits
//! for it hears from the thread that it woke. Meanwhile the role lies here, and the doorbells of
//! all clients ring. The first one to ring wakes a follower, which serves from then on.
//!
//! # Invariants
//!
//! - The role is in the hands of one thread, or lies here; then its set of doorbells is watched for
//!   the followers, and at least one thread is a follower. It lies here, too, until its first
//!   thread runs.
//! - The watch is for one report: who takes the role back ends it, so that a leader's own sleep
//!   wakes nobody else.
//!
//! # Locking
//!
//! `idle` is a leaf.

use polylane_base::Result;
use polylane_base::sync::atomic::{AtomicUsize, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_sys::event::{Epoll, Interest};

use super::dispatch::Waiting;
use super::guarded;
use super::worker::{Inbox, Worker};

/// Epoll tokens: the doorbells of all clients, and the end of the role.
const DOORBELLS: u64 = 0;
const OVER: u64 = 1;

/// The role of a core group's worker. Thread-safe.
pub(super) struct Role {
    /// The role while no thread has it in hand.
    idle: Mutex<Option<Box<Worker>>>,
    inbox: Arc<Inbox>,
    /// Threads that may have it, and those that wait for a device just now.
    threads: usize,
    away: AtomicUsize,
    watch: Epoll,
}

impl Role {
    /// A role for so many threads, at least one, which nobody has yet.
    pub(super) fn new(
        inbox: &Arc<Inbox>,
        threads: usize,
        worker: Box<Worker>,
    ) -> Result<Arc<Role>> {
        let watch = Epoll::new()?;
        watch.add(inbox.doorbells(), DOORBELLS, Interest::Nothing)?;
        watch.add(inbox.over(), OVER, Interest::Level)?;
        let (idle, away) = (Mutex::new(Some(worker)), AtomicUsize::new(0));
        Ok(Arc::new(Role { idle, inbox: inbox.clone(), threads, away, watch }))
    }

    /// Whether the leader may be away: another thread would lead.
    fn has_followers(&self) -> bool {
        self.away.load(Ordering::Relaxed) + 1 < self.threads
    }

    /// The life of thread `number`: it leads or follows until the role ends. The first one leads
    /// from the first.
    pub(super) fn run(&self, number: usize) {
        let mut in_hand = if number == 0 { self.take_back() } else { None };
        while let Some(mut worker) = in_hand.take().or_else(|| self.follow()) {
            worker.takes_over(number);
            let Some(waiting) = worker.lead(|| self.has_followers()) else { return };
            in_hand = self.serve_away(number, worker, waiting);
        }
    }

    /// Serves a request that waits for a device, while the role is lent. Returns the role, if no
    /// follower took it meanwhile.
    fn serve_away(
        &self,
        number: usize,
        worker: Box<Worker>,
        waiting: Waiting,
    ) -> Option<Box<Worker>> {
        let client = waiting.client_cpu();
        self.away.fetch_add(1, Ordering::Relaxed);
        self.lend(worker);
        let mut answer = None;
        guarded(|| answer = waiting.serve());
        let mut back = self.take_back();
        self.away.fetch_sub(1, Ordering::Relaxed);
        // A client that gets the reply finds the worker awake.
        if let Some(worker) = &mut back {
            worker.takes_over(number);
        }
        if let Some(answer) = answer {
            guarded(|| answer.send());
        }
        if let Some(worker) = &mut back {
            worker.has_waited_for(client);
        }
        back
    }

    /// Lets a follower have the role as soon as a client wants something.
    fn lend(&self, mut worker: Box<Worker>) {
        let any = worker.leave();
        *self.idle.lock() = Some(worker);
        // Failing to watch (no memory) means that clients wait until the role is taken back.
        let _ = self.watch.change(self.inbox.doorbells(), DOORBELLS, Interest::Once);
        if any {
            self.inbox.ring();
        }
    }

    fn take_back(&self) -> Option<Box<Worker>> {
        let worker = self.idle.lock().take()?;
        let _ = self.watch.change(self.inbox.doorbells(), DOORBELLS, Interest::Nothing);
        Some(worker)
    }

    /// Waits until there is something to lead; `None`: there never will be.
    fn follow(&self) -> Option<Box<Worker>> {
        loop {
            if self.inbox.is_over() {
                return None;
            }
            // Failing to wait (no memory) means another look, no more.
            let _ = self.watch.wait(&mut Vec::new(), None);
            if let Some(worker) = self.idle.lock().take() {
                return Some(worker);
            }
        }
    }
}
