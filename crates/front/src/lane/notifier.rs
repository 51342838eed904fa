//! The notifier: four threads that tell the kernel what to drop.
//!
//! *Pages*: `FUSE_NOTIFY_INVAL_INODE` blocks in the kernel until dirty pages of the range were
//! written back, that is, until *we* have served those WRITE requests. So it is sent by a thread
//! that serves nothing, and whoever waits for it must not be a thread that the kernel's requests
//! need.
//!
//! *Names* are of what the fast lane removed or moved, of slots that are over, and of files whose
//! own node was opened once by a ticket. `FUSE_NOTIFY_INVAL_ENTRY` blocks while the kernel holds
//! the directory for somebody else. Nobody waits for it: a name that is gone is never believed
//! (timeouts are 0), but until the kernel drops it, it keeps the inode, and
//! with it the space of a removed file.
//!
//! Of a lane whose names and states the kernel remembers (`memory.rs`) some names are *owed*: those
//! of a former service, and what the fast lane changed just as the kernel was told of it. Requests
//! wait until the kernel has dropped them, or will ask again before it believes them, but no
//! longer than `NAMES_PATIENCE`: `getdents64` into a page whose fault does not end, or an fsync
//! of a directory, holds it in the kernel for as long as a program likes.
//!
//! *States* are attributes and access lists, of such a lane alone, and owed as well.
//! `FUSE_NOTIFY_INVAL_INODE` without pages waits for nothing but an inode that the kernel is about
//! to give up.
//!
//! *Slots* are notified by a thread of their own. A page that the kernel is filling is locked, and
//! the notification waits for it; the fill of a slot's page waits for the file's own node. So there
//! are two levels, and a thread on each: slots above own nodes, and the fill of an own node's page
//! waits for nobody.
//!
//! # Invariants
//!
//! - A waiter returns after every notification it asked for was taken by the kernel or refused by
//!   it, or after the notifier stopped. States that are owed are told before it stops: an answer
//!   that waits for one is not sent too early by a service that ends.
//! - Without a FUSE session there is nobody to notify: waiting returns at once.
//! - At most `NAMES_MAX` names wait, or as many as the kernel knows inodes, and those that are
//!   owed; what is more is left to the kernel's own memory pressure.
//!
//! # Locking
//!
//! `Latch::left` is a leaf, and so are the queues, but for the count of inodes that the kernel
//! knows. Callers hold no VFS lock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::sync::{Arc, Condvar, Mutex, thread};

/// The way to the kernel that the notifier goes itself. The front end that speaks with the kernel
/// hands it in: this side knows no protocol.
pub(crate) trait Kernel: Send + Sync {
    /// Tells the kernel that a file has grown to `size`.
    fn grow(&self, node_id: u64, size: u64);

    /// Something is queued for a thread, which may have to be started first.
    fn comes(&self, work: Work);
}

/// What there is a thread for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Pages(Level),
    Names,
    States,
}

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

/// What the kernel is to do with a file's pages.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Write back and drop those of a range.
    Drop(Range),
    /// Know that the file has this many bytes.
    Grow(u64),
}

/// One notification to send.
pub(crate) struct Job {
    pub(crate) node_id: u64,
    pub(crate) action: Action,
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

/// A name to drop.
pub(crate) struct Name {
    pub(crate) dir_id: u64,
    pub(crate) name: Vec<u8>,
    /// The kernel keeps it, and looks it up before it believes it again: somebody may work there.
    pub(crate) expires: bool,
    _owed: Option<Owed>,
}

/// A state to drop.
pub(crate) struct Stated {
    pub(crate) node_id: u64,
    _owed: Owed,
}

/// What one thread has to tell the kernel before anybody is answered, in order.
#[derive(Default)]
struct Debt {
    owed: AtomicU64,
    paid: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Debt {
    fn owe(self: &Arc<Self>) -> Owed {
        self.owed.fetch_add(1, Ordering::Relaxed);
        Owed(self.clone())
    }

    fn is_paid(&self, owed: u64) -> bool {
        self.paid.load(Ordering::Acquire) >= owed
    }

    /// How much is owed altogether, unless all of it is paid.
    fn unpaid(&self) -> Option<u64> {
        let owed = self.owed.load(Ordering::Acquire);
        (!self.is_paid(owed)).then_some(owed)
    }

    /// Waits until so much is paid, or for `patience`. Whether it is.
    fn settle_within(&self, owed: u64, patience: Duration) -> bool {
        let lock = self.lock.lock();
        let (_lock, _) = self.changed.wait_timeout_while(lock, patience, |_| !self.is_paid(owed));
        self.is_paid(owed)
    }

    fn settle(&self) {
        let owed = self.owed.load(Ordering::Acquire);
        let mut lock = self.lock.lock();
        while !self.is_paid(owed) {
            lock = self.changed.wait(lock);
        }
    }
}

/// One of it. Dropped, it is told, refused or thrown away.
struct Owed(Arc<Debt>);

impl Drop for Owed {
    fn drop(&mut self) {
        let lock = self.0.lock.lock();
        self.0.paid.fetch_add(1, Ordering::Release);
        drop(lock);
        self.0.changed.notify_all();
    }
}

/// How long a name that is gone may keep a request waiting.
pub(super) const NAMES_PATIENCE: Duration = Duration::from_millis(20);

/// Between two looks at how far the names' thread has come.
const PAUSE: Duration = Duration::from_micros(50);

/// Names that may wait to be dropped.
const NAMES_MAX: usize = 65_536;

struct Queue<T>(Mutex<(VecDeque<T>, bool)>, Condvar);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue(Mutex::default(), Condvar::new())
    }
}

impl<T> Queue<T> {
    /// Adds work, unless nobody would do it or `max` others wait: false then. `max` is asked for
    /// where more than `NAMES_MAX` wait.
    fn push(&self, work: T, max: impl Fn() -> usize) -> bool {
        let mut queue = self.0.lock();
        let taken = queue.1 && (queue.0.len() < NAMES_MAX || queue.0.len() < max());
        if taken {
            queue.0.push_back(work);
            drop(queue);
            self.1.notify_one();
        }
        taken
    }

    fn set_running(&self, running: bool) {
        let mut queue = self.0.lock();
        queue.1 = running;
        let left = std::mem::take(&mut queue.0);
        drop(queue);
        drop(left);
        self.1.notify_all();
    }

    /// Takes no more work; what there is will be done.
    fn finish(&self) {
        self.0.lock().1 = false;
        self.1.notify_all();
    }

    /// The next piece of work; `None` once stopped.
    fn next(&self) -> Option<T> {
        let mut queue = self.0.lock();
        loop {
            if let Some(work) = queue.0.pop_front() {
                return Some(work);
            }
            if !queue.1 {
                return None;
            }
            queue = self.1.wait(queue);
        }
    }
}

/// Whose pages a thread drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// Those of slots.
    Slots,
    /// Those of files' own nodes.
    Own,
}

/// The queues in front of the three threads. Thread-safe.
#[derive(Default)]
pub struct Notifier {
    pages: [Queue<Job>; 2],
    names: Queue<Name>,
    states: Queue<Stated>,
    names_debt: Arc<Debt>,
    states_debt: Arc<Debt>,
    /// Of the names owed, so many are waited for no more.
    names_late: AtomicU64,
    /// There are names of a former service that are not owed yet.
    will_owe: AtomicBool,
    /// For what is told without a thread in between.
    kernel: Mutex<Option<Arc<dyn Kernel>>>,
    /// Names that were handed over, and those that were dropped.
    names_given: AtomicU64,
    names_dropped: AtomicU64,
}

impl Notifier {
    /// Makes the kernel write back and drop the pages that it has of `range` under nodes, and waits
    /// for it.
    pub(crate) fn invalidate(&self, nodes: &[(Level, u64)], range: Range) {
        self.wait_for(nodes, Action::Drop(range));
    }

    /// Makes the kernel know that a file has grown, and waits for it.
    pub(crate) fn grow(&self, node_id: u64, size: u64) {
        self.wait_for(&[(Level::Own, node_id)], Action::Grow(size));
    }

    /// As [`Notifier::grow`], by the calling thread: for files of which the kernel has no pages.
    /// Not for the threads that serve what the kernel asks: it may be filling one. False: there is
    /// no session.
    pub(crate) fn grow_now(&self, node_id: u64, size: u64) -> bool {
        let kernel = self.kernel.lock().clone();
        kernel.is_some_and(|kernel| {
            kernel.grow(node_id, size);
            true
        })
    }

    /// Queues work for a thread; false: none takes it.
    fn push<T>(&self, (queue, kind): (&Queue<T>, Work), work: T, max: impl Fn() -> usize) -> bool {
        let taken = queue.push(work, max);
        if taken && let Some(kernel) = &*self.kernel.lock() {
            kernel.comes(kind);
        }
        taken
    }

    fn wait_for(&self, nodes: &[(Level, u64)], action: Action) {
        if nodes.is_empty() {
            return;
        }
        let latch = Arc::new(Latch { left: Mutex::new(nodes.len()), zero: Condvar::new() });
        for (level, node_id) in nodes {
            // A job that is not taken opens the latch when it is dropped.
            let job = Job { node_id: *node_id, action, done: latch.clone() };
            let queue = (&self.pages[*level as usize], Work::Pages(*level));
            self.push(queue, job, || usize::MAX);
        }
        let mut left = latch.left.lock();
        while *left > 0 {
            left = latch.zero.wait(left);
        }
    }

    /// Makes the kernel drop a name, some time. It knows `known` inodes: so many names may wait, at
    /// least.
    pub(crate) fn forget_name(&self, dir_id: u64, name: &[u8], known: impl Fn() -> usize) {
        self.names_given.fetch_add(1, Ordering::Relaxed);
        let name = Name { dir_id, name: name.to_vec(), expires: false, _owed: None };
        if !self.push((&self.names, Work::Names), name, known) {
            self.name_dropped();
        }
    }

    /// Makes the kernel look a name up before it believes it again, some time, as
    /// [`Notifier::forget_name`] does.
    pub(crate) fn expire_name(&self, dir_id: u64, name: &[u8], known: impl Fn() -> usize) {
        self.names_given.fetch_add(1, Ordering::Relaxed);
        let name = Name { dir_id, name: name.to_vec(), expires: true, _owed: None };
        if !self.push((&self.names, Work::Names), name, known) {
            self.name_dropped();
        }
    }

    /// Makes the kernel drop a name (`expires`: or ask before it believes it again) before anybody
    /// is answered who [settles](Notifier::settle), or for [`NAMES_PATIENCE`].
    pub(crate) fn owe_name(&self, dir_id: u64, name: &[u8], expires: bool) {
        self.names_given.fetch_add(1, Ordering::Relaxed);
        let _owed = Some(self.names_debt.owe());
        let name = Name { dir_id, name: name.to_vec(), expires, _owed };
        if !self.push((&self.names, Work::Names), name, || usize::MAX) {
            self.name_dropped();
        }
    }

    /// Makes the kernel drop the state of an inode before anybody is answered who settles. Takes no
    /// lock but leaves.
    pub(crate) fn owe_state(&self, node_id: u64) {
        let job = Stated { node_id, _owed: self.states_debt.owe() };
        self.push((&self.states, Work::States), job, || usize::MAX);
    }

    /// Whether the kernel has not heard of everything yet that it is to hear before an answer.
    pub(crate) fn owes(&self) -> bool {
        let is_waited_for = |owed| owed > self.names_late.load(Ordering::Acquire);
        self.will_owe.load(Ordering::Acquire)
            || self.states_debt.unpaid().is_some()
            || self.names_debt.unpaid().is_some_and(is_waited_for)
    }

    /// Whether the kernel has not heard of all names yet that it is to hear of.
    pub(crate) fn owes_names(&self) -> bool {
        self.will_owe.load(Ordering::Acquire) || self.names_debt.unpaid().is_some()
    }

    /// Waits until the kernel has heard of it; for names no longer than [`NAMES_PATIENCE`], since a
    /// program can have the kernel hold a directory for as long as it likes. What comes late holds
    /// up no other request. Not for threads that serve what the kernel asks.
    pub(crate) fn settle(&self) {
        let start = Instant::now();
        while self.will_owe.load(Ordering::Acquire) {
            if start.elapsed() > NAMES_PATIENCE {
                self.will_owe(false);
            }
            thread::sleep(PAUSE);
        }
        self.states_debt.settle();
        if let Some(owed) = self.names_debt.unpaid()
            && owed > self.names_late.load(Ordering::Acquire)
            && !self.names_debt.settle_within(owed, NAMES_PATIENCE)
        {
            self.names_late.fetch_max(owed, Ordering::AcqRel);
        }
    }

    /// Names will be owed as soon as there is a session, or are by now.
    pub(crate) fn will_owe(&self, will: bool) {
        self.will_owe.store(will, Ordering::Release);
    }

    /// The same of states alone: no directory that the kernel has locked is waited for.
    pub(crate) fn settle_states(&self) {
        self.states_debt.settle();
    }

    /// A name was dropped.
    pub(crate) fn name_dropped(&self) {
        self.names_dropped.fetch_add(1, Ordering::Release);
    }

    /// Waits until the names handed over so far are dropped, or for `patience`.
    pub(crate) fn settle_names(&self, patience: Duration) {
        let (given, start) = (self.names_given.load(Ordering::Relaxed), Instant::now());
        while self.names_dropped.load(Ordering::Acquire) < given && start.elapsed() < patience {
            thread::sleep(PAUSE);
        }
    }

    /// The session that owns the threads is ready: work is taken from now on.
    pub(crate) fn start(&self, kernel: Arc<dyn Kernel>) {
        *self.kernel.lock() = Some(kernel);
        self.pages.iter().for_each(|queue| queue.set_running(true));
        self.names.set_running(true);
        self.states.set_running(true);
    }

    /// Lets the threads of pages and names end, and every waiter for these go.
    pub(crate) fn stop(&self) {
        *self.kernel.lock() = None;
        self.pages.iter().for_each(|queue| queue.set_running(false));
        self.names.set_running(false);
    }

    /// Lets the thread of states end once it has told the kernel all that is owed: replies wait for
    /// that.
    pub(crate) fn finish_states(&self) {
        self.states.finish();
    }

    /// The next job of a pages thread; `None` once stopped.
    pub(crate) fn next_pages(&self, level: Level) -> Option<Job> {
        self.pages[level as usize].next()
    }

    /// The next state to drop; `None` once stopped.
    pub(crate) fn next_state(&self) -> Option<Stated> {
        self.states.next()
    }

    /// The next job of the names thread; `None` once stopped.
    pub(crate) fn next_name(&self) -> Option<Name> {
        self.names.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing takes what is queued for it, as while a program holds a directory.
    struct Blocked;

    impl Kernel for Blocked {
        fn grow(&self, _node_id: u64, _size: u64) {}

        fn comes(&self, _work: Work) {}
    }

    /// A service that is replaced answers what waits for a state to be told: not before, and not
    /// never.
    #[test]
    fn states_that_are_owed_are_told_before_the_end() {
        let notifier = Arc::new(Notifier::default());
        notifier.start(Arc::new(Blocked));
        (1..=3).for_each(|node| notifier.owe_state(node));
        notifier.stop();
        notifier.finish_states();
        let told = Arc::new(AtomicU64::new(0));
        let waits = thread::spawn({
            let (notifier, told) = (notifier.clone(), told.clone());
            move || {
                notifier.settle_states();
                told.load(Ordering::SeqCst)
            }
        });
        assert!(notifier.owes(), "nothing is thrown away");
        while let Some(state) = notifier.next_state() {
            told.fetch_add(state.node_id, Ordering::SeqCst);
        }
        assert_eq!(waits.join().expect("answered"), 6, "answered after the last");
        notifier.owe_state(4);
        notifier.settle_states();
    }

    #[test]
    fn names_that_come_late_hold_up_no_request() {
        let notifier = Notifier::default();
        notifier.start(Arc::new(Blocked));
        notifier.owe_name(1, b"a", true);
        assert!(notifier.owes() && notifier.owes_names());
        notifier.settle();
        assert!(!notifier.owes(), "waited for once");
        assert!(notifier.owes_names(), "nothing is told for good meanwhile");
        notifier.settle();
        notifier.owe_name(1, b"b", true);
        assert!(notifier.owes(), "the next one may come in time");
        for _ in 0..2 {
            assert!(notifier.next_name().is_some());
        }
        assert!(!notifier.owes() && !notifier.owes_names());
        notifier.settle();
        notifier.will_owe(true);
        assert!(notifier.owes() && notifier.owes_names());
        notifier.settle();
        assert!(!notifier.owes() && !notifier.owes_names(), "there is no session");
    }
}
