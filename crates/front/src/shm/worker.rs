//! Workers: one per core group, pinned, each looking at its request queue in every channel. Which
//! thread is the worker changes (`role`).
//!
//! ```text
//!   ┌─► commands? ─► one round over all channels, a few requests each ─► something? ──┐
//!   │                                         nothing                                 │
//!   │      spin while the budget lasts ◄────────┘                                     │
//!   │             spent: say "asleep", look once more, epoll_wait                     │
//!   └─────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! - A worker never waits for anything but work: what can block goes to the helpers, and an fsync
//!   stays with the thread, which lends the role. One thing is excepted: an fsync of little on a
//!   medium that usually answers sooner than another thread wakes.
//! - A round takes at most [`BATCH`] requests from one channel, so that a client that floods delays
//!   others by so many requests and no more.
//! - No clock is read but around a sleep. An idle worker sleeps in epoll_wait.
//!
//! # Locking
//!
//! `Inbox::commands` is a leaf.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use polylane_base::Result;
use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_ipc::budget::{self, BUDGET_MAX, Sleep, WORKER_PATIENCE};
use polylane_sys::event::{self, Epoll, Interest, eventfd};
use polylane_sys::sched;

use super::dispatch::{self, Scratch, Waiting};
use super::helpers::Helpers;
use super::post::Post;
use super::request::PATHS_BYTES_MAX;
use super::roster::Roster;
use super::session::Session;
use super::slices::Slices;
use super::stats::Stats;
use crate::beat::Beat;

/// Requests taken from one channel before the next one has its turn.
const BATCH: usize = 8;

/// Times in a row that a queue may claim to hold requests and give none before the worker sleeps
/// all the same: a broken or hostile client must not keep it awake.
const FALSE_HINTS_MAX: u32 = 16;
/// How long it then sleeps: other clients, who found it awake, wait no longer than this.
const FALSE_HINT_SLEEP: Duration = Duration::from_millis(1);

/// Rounds between two looks at where an unpinned worker runs and at who has gone quiet.
const UPKEEP_PERIOD: u32 = 256;

/// Looks and requests between two times that a busy worker listens for those who have gone quiet.
const LISTEN_PERIOD: usize = 128;

/// Epoll token of the inbox; sessions count from 0.
const INBOX: u64 = u64::MAX;

/// Requests of a stopping worker's last rounds: enough for every mailbox of any client that waits.
const LAST_ROUNDS: usize = 1024;

enum Command {
    Add(Arc<Session>),
    Remove(u64),
    Stop,
}

/// How a worker is told what to serve. Thread-safe.
pub(super) struct Inbox {
    group: usize,
    commands: Mutex<Vec<Command>>,
    any: AtomicBool,
    event: OwnedFd,
    epoll: Epoll,
    /// Readable when there is no worker any more.
    over: OwnedFd,
    is_over: AtomicBool,
}

impl Inbox {
    /// The inbox of a core group's worker.
    pub(super) fn new(group: usize) -> Result<Arc<Inbox>> {
        let (epoll, event, over) = (Epoll::new()?, eventfd()?, eventfd()?);
        epoll.add(&event, INBOX, Interest::Level)?;
        let (commands, any) = (Mutex::default(), AtomicBool::new(false));
        let is_over = AtomicBool::new(false);
        Ok(Arc::new(Inbox { group, commands, any, event, epoll, over, is_over }))
    }

    /// Serve this session too. Fails when its doorbell cannot be watched.
    pub(super) fn add(&self, session: &Arc<Session>) -> Result<()> {
        self.epoll.add(
            session.connection.channel.doorbell(self.group),
            session.connection.id,
            Interest::Edge,
        )?;
        self.post(Command::Add(session.clone()));
        Ok(())
    }

    /// Serve that session no longer.
    pub(super) fn remove(&self, session: &Session) {
        // Only fails when it was never added.
        let _ = self.epoll.remove(session.connection.channel.doorbell(self.group));
        self.post(Command::Remove(session.connection.id));
    }

    /// Serve what has been posted, then end.
    pub(super) fn stop(&self) {
        self.post(Command::Stop);
    }

    /// The set of all clients' doorbells and its own.
    pub(super) fn doorbells(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Readable from the moment on that there is no worker any more.
    pub(super) fn over(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }

    /// Whether there is no worker any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Wakes the worker.
    pub(super) fn ring(&self) {
        self.any.store(true, Ordering::Release);
        event::notify(&self.event);
    }

    fn post(&self, command: Command) {
        self.commands.lock().push(command);
        self.ring();
    }

    fn take(&self) -> Vec<Command> {
        self.any.store(false, Ordering::Relaxed);
        event::drain(&self.event);
        std::mem::take(&mut *self.commands.lock())
    }
}

/// What a worker is made of.
pub(super) struct Worker {
    post: Post,
    inbox: Arc<Inbox>,
    helpers: Arc<Helpers>,
    stats: Arc<Stats>,
    roster: Roster,
    scratch: Scratch,
    budget: Budget,
    slices: Slices,
    /// The CPU that the last request came from.
    client: u32,
    /// The thread that was the worker last.
    thread: Option<usize>,
    false_hints: u32,
    /// Looks and requests since it last listened for doorbells.
    unheard: usize,
    stopping: bool,
    beat: Beat,
}

impl Worker {
    /// The worker of an inbox's core group.
    pub(super) fn new(
        post: Post,
        inbox: Arc<Inbox>,
        (helpers, stats): (Arc<Helpers>, Arc<Stats>),
        beat: Beat,
    ) -> Worker {
        Worker {
            post,
            roster: Roster::new(inbox.group),
            inbox,
            helpers,
            stats,
            scratch: Box::new([0; PATHS_BYTES_MAX]),
            budget: Budget::default(),
            slices: Slices::default(),
            client: u32::MAX,
            thread: None,
            false_hints: 0,
            unheard: 0,
            stopping: false,
            beat,
        }
    }

    /// The calling thread, of this number, is the worker from now on: again, or instead of another
    /// one.
    pub(super) fn takes_over(&mut self, thread: usize) {
        if self.thread.replace(thread) != Some(thread) {
            self.post.take();
            self.slices.taken_over();
        }
        // A session that rang in between may be dormant.
        self.unheard = LISTEN_PERIOD;
        self.roster.set_asleep(false);
        self.publish_cpu();
    }

    /// The calling thread is about to be the worker no longer: clients have to ring. Returns
    /// whether there is something to do already.
    pub(super) fn leave(&mut self) -> bool {
        // So that only rings from now on are heard.
        self.listen(Some(Duration::ZERO));
        self.roster.set_asleep(true);
        self.inbox.any.load(Ordering::Relaxed) || self.roster.has_requests()
    }

    /// The thread waited for a device, for a client on that CPU, and replied.
    pub(super) fn has_waited_for(&mut self, client: u32) {
        self.client = client;
        if self.post.waited(client) {
            self.roster.set_cpu(self.post.here());
        }
        self.waited_for();
    }

    /// Serves until told to stop, or until a request waits for a device and another thread would
    /// serve meanwhile.
    pub(super) fn lead(&mut self, may_leave: impl Fn() -> bool) -> Option<Waiting> {
        let (mut rounds, mut waiting): (u32, _) = (0, Vec::new());
        while !self.stopping {
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(UPKEEP_PERIOD) {
                self.publish_cpu();
                self.roster.rest();
            }
            if self.inbox.any.load(Ordering::Relaxed) {
                self.obey();
                // Not one more round: it could end in a sleep from which nobody rings.
                continue;
            }
            let count = self.round(&mut waiting);
            self.unheard += count + 1;
            if self.unheard >= LISTEN_PERIOD && self.roster.any_dormant() {
                self.listen(Some(Duration::ZERO));
            }
            if count > 0 {
                self.slices.served(count as u64, || self.stats.moved());
                self.false_hints = 0;
                if !waiting.is_empty()
                    && let Some(kept) = self.keep_one(&mut waiting, may_leave())
                {
                    return Some(kept);
                }
                self.waited_for();
            } else if self.budget.spin(self.roster.hot_count() as u32, sched::give_way) {
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
        self.roster.heat_all();
        for _ in 0..LAST_ROUNDS {
            if self.round(&mut waiting) == 0 {
                break;
            }
            self.keep_one(&mut waiting, false);
        }
        None
    }

    /// The worker served a client that waits, perhaps on this very CPU: then the client waits for
    /// the CPU, not only for the reply.
    fn waited_for(&mut self) {
        if self.post.served(self.client) {
            self.roster.set_cpu(self.post.here());
        } else if self.client == self.post.here() {
            return self.budget.yield_now();
        }
        self.budget.found();
    }

    /// A few requests of each channel; returns how many there were. Those that wait for a device go
    /// to `waiting`.
    fn round(&mut self, waiting: &mut Vec<Waiting>) -> usize {
        let around = (&self.helpers, &*self.stats);
        let (scratch, client, beat) = (&mut self.scratch, &mut self.client, &mut self.beat);
        let count = self.roster.round(BATCH, |session, mailbox| {
            *client = session.connection.channel.client_cpu(mailbox);
            beat.busy();
            waiting.extend(dispatch::on_worker(session, mailbox, scratch, around));
        });
        if count > 0 {
            self.beat.idle();
        }
        count
    }

    /// Of those that wait for a device one can stay with this thread: a sync that commits, to which
    /// others are left, or else the first. Nothing is served here from then on, as what waits for
    /// the commit would wait for ever.
    fn keep_one(&self, waiting: &mut Vec<Waiting>, may_leave: bool) -> Option<Waiting> {
        let around = (&self.helpers, &*self.stats);
        let which = waiting.iter().position(Waiting::can_lead).unwrap_or(0);
        let kept = may_leave.then(|| waiting.swap_remove(which).keep(around.1));
        waiting.drain(..).for_each(|waits| waits.leave_or_hand_off(around));
        kept
    }

    /// Announces sleep, looks once more, sleeps until a client or the inbox rings.
    fn sleep(&mut self) {
        self.roster.set_asleep(true);
        let hint = self.roster.has_requests();
        self.false_hints = if hint { self.false_hints + 1 } else { 0 };
        let timeout = (self.false_hints > FALSE_HINTS_MAX).then_some(FALSE_HINT_SLEEP);
        if !hint || timeout.is_some() {
            self.stats.slept();
            let start = Instant::now();
            self.listen(timeout);
            self.slept(start.elapsed());
        } else {
            self.slept(Duration::ZERO);
        }
        self.roster.set_asleep(false);
        self.publish_cpu();
    }

    /// A sleep is over. Where CPUs are short the worker goes to its client's.
    fn slept(&mut self, took: Duration) {
        // A worker that slept for its client's sake alone has learnt nothing of others.
        let learnt = self.budget.crowded || !self.budget.yielding || self.post.has_joined();
        if learnt && self.post.slept(self.budget.crowded, self.client) {
            self.roster.set_cpu(self.post.here());
        }
        self.budget.slept(took);
    }

    /// Waits for doorbells and the inbox (`None`: for ever), and wakes the sessions that rang.
    fn listen(&mut self, timeout: Option<Duration>) {
        self.unheard = 0;
        let mut ready = Vec::new();
        // Failing to wait (no memory) means another round, no more.
        let _ = self.inbox.epoll.wait(&mut ready, timeout);
        for event in ready.iter().filter(|event| event.token != INBOX) {
            self.roster.rang(event.token, self.post.here());
        }
    }

    /// Tells the clients where the worker runs, unless it is pinned and they know.
    fn publish_cpu(&self) {
        if !self.post.is_pinned() {
            self.roster.set_cpu(self.post.here());
        }
    }

    fn obey(&mut self) {
        for command in self.inbox.take() {
            match command {
                Command::Add(session) => self.roster.add(session, self.post.here()),
                Command::Remove(id) => self.roster.remove(id),
                Command::Stop => self.stopping = true,
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox.is_over.store(true, Ordering::Release);
        event::notify(&self.inbox.over);
    }
}

/// How long to look before sleeping: longer while looking pays off, shorter when it was in vain.
struct Budget {
    full: u32,
    left: u32,
    /// Looks since there was work last, by which it is told when to give way.
    looks: u32,
    sleeps: u32,
    /// Others were found to wait for this CPU.
    crowded: bool,
    /// The next sleep is no sign that looking is in vain.
    yielding: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            full: BUDGET_MAX,
            left: BUDGET_MAX,
            looks: 0,
            sleeps: 0,
            crowded: false,
            yielding: false,
        }
    }
}

impl Budget {
    /// There was work.
    fn found(&mut self) {
        (self.looks, self.crowded, self.yielding) = (0, false, false);
        if self.left < self.full {
            self.full = budget::after_find(self.full);
        }
        self.left = self.full;
    }

    /// There was work, and whoever gave it needs this CPU to go on: looking for more keeps it away.
    fn yield_now(&mut self) {
        (self.left, self.looks, self.crowded, self.yielding) = (0, 0, false, true);
    }

    /// There was none in a round over `channels`; whether to look again. `give_way` lets others
    /// have this CPU, and says whether they waited for it: then there is one look more.
    fn spin(&mut self, channels: u32, give_way: impl FnOnce() -> bool) -> bool {
        if self.crowded {
            return false;
        }
        self.left = self.left.saturating_sub(channels.max(1));
        self.looks = self.looks.wrapping_add(1);
        if self.left > 0 && self.looks.is_multiple_of(WORKER_PATIENCE) {
            self.crowded = give_way();
        }
        self.left > 0
    }

    /// Looking was in vain, or was not tried, and a sleep that took this long is over.
    fn slept(&mut self, took: Duration) {
        self.looks = 0;
        let (crowded, yielding) =
            (std::mem::take(&mut self.crowded), std::mem::take(&mut self.yielding));
        if crowded || !yielding {
            self.sleeps = self.sleeps.wrapping_add(1);
            self.full = budget::after_sleep(self.full, self.sleeps, Sleep::new(took, crowded));
        }
        self.left = self.full;
    }
}

#[cfg(test)]
mod tests {
    use polylane_ipc::budget::{BUDGET_MIN, PROBE_PERIOD};

    use super::*;

    const LONG: Duration = Duration::from_secs(1);

    fn looks(budget: &mut Budget) -> u32 {
        (1..).find(|_| !budget.spin(1, || false)).unwrap()
    }

    #[test]
    fn the_budget_shrinks_in_vain_and_grows_with_finds() {
        let mut budget = Budget::default();
        assert_eq!(looks(&mut budget), BUDGET_MAX);
        for _ in 0..40 {
            budget.slept(LONG);
        }
        assert_eq!(looks(&mut budget), BUDGET_MIN);
        budget.slept(LONG);
        for _ in 0..40 {
            budget.spin(1, || false);
            budget.found();
        }
        assert_eq!(looks(&mut budget), BUDGET_MAX);
        let probed = (0..PROBE_PERIOD).any(|_| {
            budget.slept(LONG);
            budget.full == BUDGET_MAX
        });
        assert!(probed);
        (0..40).for_each(|_| budget.slept(LONG));
        (0..8).for_each(|_| budget.slept(Duration::ZERO));
        assert_eq!(looks(&mut budget), BUDGET_MAX);
    }

    #[test]
    fn many_channels_use_the_budget_up_sooner() {
        let mut budget = Budget::default();
        assert_eq!((1..).find(|_| !budget.spin(100, || false)), Some(BUDGET_MAX / 100));
        assert!(Budget::default().spin(0, || false));
    }

    #[test]
    fn where_others_wait_for_the_cpu_it_sleeps_after_one_look_more() {
        let mut budget = Budget::default();
        let asked = (1..).find(|_| budget.spin(1, || true) && budget.crowded);
        assert_eq!(asked, Some(WORKER_PATIENCE));
        assert!(!budget.spin(1, || unreachable!("it knows")));
        budget.slept(Duration::ZERO);
        assert_eq!((budget.full, budget.crowded), (BUDGET_MAX, false));
        // Who works is asked anew.
        (1..WORKER_PATIENCE).for_each(|_| assert!(budget.spin(1, || true)));
        budget.found();
        (1..WORKER_PATIENCE).for_each(|_| assert!(budget.spin(1, || true)));
        assert!(!budget.crowded);
    }
}
