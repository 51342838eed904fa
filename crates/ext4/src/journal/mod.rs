//! The running journal: handles, transactions, commits, checkpoints.
//!
//! ```text
//!  handles ──► running transaction ──commit──► log (descriptors, revokes) ─flush─ commit block
//!                 blocks changed                      │
//!                 blocks freed                        ▼
//!                 groups touched                checkpoint list ──write home─flush──► tail moves
//! ```
//!
//! # Invariants
//!
//! - A metadata block changes only under a handle, and a handle belongs to one transaction.
//! - A commit block is written only after a flush made its log body durable, or together with it
//!   (`form`); that flush covers file data written before (ordered mode: data is written before the
//!   extents that show it), and where there is none such data is durable already.
//! - Commit blocks are written in the order of their transactions, each after the one before is
//!   durable; the body of the next one may be in the log by then, and counts for nothing yet.
//! - Log space is used again only after the homes of all that it held were written and flushed, and
//!   the journal's superblock says so durably.
//! - Blocks freed by a transaction are given to the allocator only after it committed.
//! - A handle that changed something and is dropped without [`Handle::complete`] stops the journal:
//!   half a change must never be committed.
//! - A medium without room is no failure: a commit that finds none is done later.
//! - After a failure nothing is written any more: every call answers [`Error::Stopped`].
//!
//! # Locking
//!
//! `log → gate (entered: a handle; shut: closing a transaction) → changes of a slot → block data`;
//! `progress` is taken alone. A thread that writes a body takes `log` and keeps it across I/O, and
//! so does a checkpoint of a full log. The flush and the write of a commit block, and the
//! committer's checkpoint, do without it, and take it again afterwards. A thread with a handle
//! waits for no lock that a thread without one may hold while it starts one: inodes' and
//! directories' locks come before the handle. One thread has one handle at a time.

mod backing;
mod checkpoint;
mod commit;
mod copy;
mod flight;
mod form;
mod gate;
mod handle;
mod homes;
mod left;
mod log;
mod logged;
#[cfg(test)]
mod tests;
mod tuning;
mod turns;
mod unlogged;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use polylane_base::Time;
use polylane_base::sync::{Arc, Condvar, Mutex};
use rustc_hash::FxHashSet;

use crate::cache::MetaBlock;
use crate::error::{Error, Result};
use crate::format::journal::JournalSuperblock;
use crate::format::{DeviceBlock, GroupIndex};
use crate::io::BlockIo;
use crate::recovery::JournalMap;
use crate::trace::Trace;
pub use form::Form;
use form::Forms;
use gate::{Gate, Slot};
pub use handle::Handle;
pub use left::Teller;
use log::Log;
use logged::Logged;
use polylane_vfs::OpCtx;
pub use tuning::Tuning;
pub use turns::Promise;

/// The number of a transaction: its lower half is the one in the log, which wraps to 0 and goes on.
/// The upper half is what keeps numbers apart in memory: they grow, and none is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tid(pub u64);

impl Tid {
    /// Whether `self` is `other` or a later one.
    pub fn reached(self, other: Tid) -> bool {
        self.0 >= other.0
    }

    /// The first transaction of a life that begins with `sequence` in the log.
    fn first(sequence: u32) -> Tid {
        Tid(1 << 32 | u64::from(sequence))
    }

    /// The following transaction.
    fn next(self) -> Tid {
        Tid(self.0 + 1)
    }

    /// The one before.
    fn before(self) -> Tid {
        Tid(self.0 - 1)
    }

    /// Its number in the log. Recovery, ours and everybody's, wants them without a gap.
    fn sequence(self) -> u32 {
        self.0 as u32
    }
}

/// A run of blocks that a transaction freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freed {
    /// First block.
    pub start: DeviceBlock,
    /// Blocks.
    pub count: u32,
}

/// What the journal asks of the file system around it.
pub trait Client: Send + Sync {
    /// The last changes of a transaction that is being closed: checksums of bitmaps and the
    /// descriptors of `groups`, the list of orphans. `handle` is the only one.
    ///
    /// # Errors
    /// The device's; the journal then stops.
    fn seal(&self, handle: &Handle<'_>, groups: &FxHashSet<GroupIndex>) -> Result<()>;

    /// Whether the device is to have freed blocks back.
    fn gives_back(&self) -> bool;

    /// The transaction that freed these blocks has committed, no file uses them yet, and no
    /// checkpoint writes to them: the device may have them back. Called without locks, since it may
    /// take its time.
    fn discard(&self, freed: &[Freed]);

    /// Now they may be used again. Called with the log's lock: does no I/O.
    fn release(&self, freed: &[Freed]);

    /// For a file system without a log, whose homes have nothing else to get room from: sets free
    /// blocks that take room aside, until there are `most`, or less in a small one. Called with the
    /// log's lock.
    ///
    /// # Errors
    /// `NoSpace`: there are less; the device's.
    fn set_aside(&self, most: u32) -> Result<()>;

    /// Gives up to `most` of them back to the medium: they are free blocks like others. None: there
    /// are none. Called with the log's lock.
    fn give_aside(&self, most: u32) -> Option<Freed>;

    /// How many there are.
    fn aside(&self) -> u32;

    /// Now, for the commit block.
    fn now(&self) -> Time;
}

/// Log blocks that any transaction may need beside what its handles change: the superblock and a
/// few inodes of the list of orphans, a revoke block.
const RUNNING_OVERHEAD: usize = 8;

/// How often a commit is tried for which the medium had no room.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Numbers that fit into a revoke block of 1 KiB, the smallest.
const REVOKES_PER_BLOCK: usize = 120;

/// Blocks of one transaction, at most, however large the log is: room for a transaction is taken on
/// the host when the log is opened ([`backing`]).
const TRANSACTION_BLOCKS_MAX: u32 = 8192;

/// Log blocks that a slot is given ahead for its next handles, at most.
const CREDITS_AHEAD_MAX: usize = 32;

/// What handles of the running transaction did, as far as one slot of the gate knows.
#[derive(Default)]
struct Changes {
    blocks: Vec<Arc<MetaBlock>>,
    groups: Vec<GroupIndex>,
    freed: Vec<Freed>,
    revoked: FxHashSet<DeviceBlock>,
}

/// What the committer is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Write zeros ahead of the log's head, and bring home what it holds where that is much.
    Upkeep,
    /// Commit, and then the same.
    Commit,
    /// Commit, and return.
    End,
}

/// The state that waiters look at.
struct Progress {
    committed: Tid,
    wanted: Tid,
    /// Threads that wait for a close.
    waiting: u32,
    /// How often transactions on their way to the log were called back.
    grounded: u64,
    /// Threads that flush or write a commit block.
    writers: u32,
    /// A thread waits for there to be none.
    draining: bool,
    /// Threads that wait for transactions of an even and of an odd number; see [`turns`].
    watching: [u32; 2],
    /// Threads that wait for one to go on behind it.
    in_turn: u32,
    /// The last transaction that had somebody lead it.
    led: Tid,
    /// How often that was given up.
    given_up: u64,
    /// Syncs whose threads went on with other work.
    left: Vec<left::Left>,
    /// Zeros are to be written ahead of the head, by the committer.
    zeroing: bool,
    /// The log is to be brought home, by the committer.
    checkpointing: bool,
    ending: bool,
}

/// The journal of a mounted file system. Thread-safe.
pub struct Journal {
    io: Arc<BlockIo>,
    map: JournalMap,
    /// There is no log: what a transaction changed goes home at once (`unlogged`).
    unlogged: bool,
    gate: Gate<Changes>,
    /// Log blocks that the running transaction comes to, with what open handles were promised and
    /// slots were given ahead.
    load: AtomicUsize,
    /// The running transaction. Changes while the gate is shut.
    current: AtomicU64,
    /// Transactions closed, empty ones too: after each, room for handles has to be looked at anew.
    /// Changes under `progress`.
    closes: AtomicU64,
    log: Mutex<Log>,
    progress: Mutex<Progress>,
    /// See [`left`].
    teller: Mutex<Option<left::ToTeller>>,
    /// A transaction was closed, or the journal stopped.
    closed: Condvar,
    /// A transaction of an even, of an odd number has committed, or all are to look again.
    landed: [Condvar; 2],
    /// One has committed, and a thread that waits to go on behind it may.
    turn: Condvar,
    /// No thread flushes or writes a commit block.
    drained: Condvar,
    /// The committer is wanted.
    wish: Condvar,
    /// The medium had no room for the last commit.
    starved: AtomicBool,
    /// See [`backing`].
    ahead: backing::Ahead,
    /// See [`checkpoint`].
    background: checkpoint::Background,
    short: AtomicBool,
    tight: AtomicBool,
    stopped: AtomicBool,
    reason: Mutex<Option<Error>>,
    /// Blocks freed by transactions that have not committed.
    freeing: AtomicU64,
    blocks_max: usize,
    credits_ahead: usize,
    /// Commits by their form.
    forms: Forms,
    /// The last ones, and what came to them.
    pub trace: Trace,
    /// Blocks of files that are in the log.
    pub logged: Logged,
    /// See [`Tuning`].
    tuning: Tuning,
}

impl Journal {
    /// Takes over a recovered journal and makes its superblock say: the log begins here, empty.
    ///
    /// # Errors
    /// The device failed.
    pub fn open(
        io: Arc<BlockIo>,
        map: JournalMap,
        mut superblock: JournalSuperblock,
        next_sequence: u32,
        tuning: Tuning,
    ) -> Result<Journal> {
        superblock.take_over();
        let journal = Journal::empty(io, map, superblock, next_sequence, tuning);
        let mut log = journal.log.lock();
        journal.write_superblock(&log)?;
        journal.set_aside(&mut log)?;
        drop(log);
        Ok(journal)
    }

    /// One whose log is empty.
    fn empty(
        io: Arc<BlockIo>,
        map: JournalMap,
        mut superblock: JournalSuperblock,
        next_sequence: u32,
        tuning: Tuning,
    ) -> Journal {
        let first = superblock.first();
        let tid = Tid::first(next_sequence);
        superblock.set_tail(tid.sequence(), first);
        let size = superblock.end() - first;
        let log = Log::empty(superblock);
        let before = tid.before();
        polylane_sys::cpu::prepare();
        let gate = Gate::new(tuning.slots);
        let blocks_max = (size / 4).min(TRANSACTION_BLOCKS_MAX) as usize;
        // What all slots have ahead is at most an eighth of what a transaction may hold.
        let credits_ahead = (blocks_max / 8 / gate.slots().len()).min(CREDITS_AHEAD_MAX);
        Journal {
            io,
            unlogged: map.is_empty(),
            map,
            gate,
            load: AtomicUsize::new(0),
            current: AtomicU64::new(tid.0),
            closes: AtomicU64::new(0),
            log: Mutex::new(log),
            progress: Mutex::new(Progress {
                committed: before,
                wanted: before,
                waiting: 0,
                grounded: 0,
                writers: 0,
                draining: false,
                watching: [0; 2],
                in_turn: 0,
                led: before,
                given_up: 0,
                left: Vec::new(),
                zeroing: false,
                checkpointing: false,
                ending: false,
            }),
            teller: Mutex::default(),
            closed: Condvar::new(),
            landed: [Condvar::new(), Condvar::new()],
            turn: Condvar::new(),
            drained: Condvar::new(),
            wish: Condvar::new(),
            starved: AtomicBool::new(false),
            ahead: backing::Ahead::default(),
            background: checkpoint::Background::default(),
            short: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            reason: Mutex::new(None),
            freeing: AtomicU64::new(0),
            blocks_max,
            credits_ahead,
            forms: Forms::default(),
            trace: Trace::default(),
            logged: Logged::default(),
            tuning,
        }
    }

    /// Joins the running transaction with room for `credits` block changes. Waits while the
    /// transaction is full.
    ///
    /// # Errors
    /// [`Error::Stopped`], or `ENOSPC` when the journal can never hold that much.
    pub fn start<'a>(&'a self, ctx: &OpCtx<'a>, credits: usize) -> Result<Handle<'a>> {
        if credits + RUNNING_OVERHEAD > self.blocks_max {
            return Err(polylane_base::Errno::ENOSPC.into());
        }
        loop {
            self.check()?;
            let closes = self.closes.load(Ordering::Acquire);
            let pass = self.gate.enter(polylane_sys::cpu::current());
            // It stays the running one until the pass is dropped.
            let tid = self.current();
            let slot = pass.slot();
            if self.take_credits(slot, credits) {
                let (credits, open) = (Cell::new(credits), Cell::new(false));
                let (_pass, ctx) = (Some(pass), *ctx);
                return Ok(Handle { journal: self, slot, _pass, tid, ctx, credits, open });
            }
            drop(pass);
            self.wait_for_room(tid, closes)?;
        }
    }

    /// Takes room for `count` block changes out of what the slot has ahead, or out of what the
    /// running transaction has left, and then some ahead; if there is none left, out of what other
    /// slots have ahead. Whether there was any.
    fn take_credits(&self, slot: &Slot<Changes>, count: usize) -> bool {
        let less = |have: usize| have.checked_sub(count);
        if slot.credits.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok() {
            return true;
        }
        if self.add_load(count + self.credits_ahead) {
            slot.credits.fetch_add(self.credits_ahead, Ordering::AcqRel);
            return true;
        }
        for slot in self.gate.slots() {
            let ahead = slot.credits.swap(0, Ordering::AcqRel);
            self.load.fetch_sub(ahead, Ordering::AcqRel);
        }
        self.add_load(count)
    }

    /// Adds `count` blocks to the running transaction's load, if it has room for them.
    fn add_load(&self, count: usize) -> bool {
        let most = self.blocks_max - RUNNING_OVERHEAD;
        let more = |load: usize| Some(load + count).filter(|load| *load <= most);
        self.load.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Adds `count` blocks to the running transaction's load that no handle was promised.
    fn grow(&self, count: usize) {
        self.load.fetch_add(count, Ordering::AcqRel);
    }

    /// Takes back what a handle was promised and did not use: the slot keeps some.
    fn return_credits(&self, slot: &Slot<Changes>, count: usize) {
        if slot.credits.load(Ordering::Acquire) < self.credits_ahead {
            slot.credits.fetch_add(count, Ordering::AcqRel);
        } else {
            self.load.fetch_sub(count, Ordering::AcqRel);
        }
    }

    /// Log blocks that the running transaction comes to, with what open handles were promised.
    /// Changes while it is counted.
    fn load(&self) -> usize {
        let ahead = |slot: &Slot<Changes>| slot.credits.load(Ordering::Acquire);
        let ahead = self.gate.slots().iter().map(ahead).sum();
        self.load.load(Ordering::Acquire).saturating_sub(ahead)
    }

    /// Waits until a transaction is closed after `closes` others; asks for the close of `full`.
    fn wait_for_room(&self, full: Tid, closes: u64) -> Result<()> {
        let mut progress = self.progress.lock();
        loop {
            if self.closes.load(Ordering::Acquire) != closes {
                return Ok(());
            }
            self.check()?;
            if !progress.wanted.reached(full) {
                progress.wanted = full;
                self.wish.notify_all();
            }
            progress.waiting += 1;
            progress = self.closed.wait(progress);
            progress.waiting -= 1;
        }
    }

    /// Whether an empty log can hold the running transaction. Handles keep it small enough but
    /// where one changes more than it was promised.
    pub fn can_hold_running(&self) -> bool {
        let (load, size) = (self.load(), self.log.lock().size() as usize);
        // A descriptor for at least 60 blocks, the revokes, the commit block.
        load + load / 60 + RUNNING_OVERHEAD < size
    }

    /// The transaction that a change made now belongs to.
    pub fn current(&self) -> Tid {
        Tid(self.current.load(Ordering::Acquire))
    }

    /// A transaction that has committed only when every change of the block so far has.
    pub fn latest(&self, block: &MetaBlock) -> Tid {
        // In this order: a closing transaction lets the next one begin before its blocks are clean.
        match block.dirty_in.load(Ordering::Acquire) {
            0 => self.current().before(),
            _ => self.current(),
        }
    }

    /// Whether an earlier failure stopped the journal.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether a new operation may begin: `ENOSPC` while the medium has no room for commits and
    /// half of what the running transaction can hold is used up. The other half is for those
    /// under way.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn admit(&self) -> Result<()> {
        let is_full = || self.load() > self.blocks_max / 2;
        match self.is_starved() && is_full() {
            true => Err(polylane_base::Errno::ENOSPC.into()),
            false => Ok(()),
        }
    }

    /// Whether the medium had no room for the last commit.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire)
    }

    /// Notes whether the medium had room for a commit; the committer tries again where it had none.
    fn note_room(&self, found: bool) {
        if self.starved.swap(!found, Ordering::AcqRel) == found {
            drop(self.progress.lock());
            self.wish.notify_all();
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Stops the journal for good and wakes all who wait. The first reason is kept.
    pub fn stop(&self, why: Option<&Error>) {
        let why = why.filter(|error| **error != Error::Stopped);
        let mut reason = self.reason.lock();
        *reason = reason.take().or(why.cloned());
        drop(reason);
        self.stopped.store(true, Ordering::Release);
        self.tell_all(&self.progress.lock());
        self.closed.notify_all();
        self.wish.notify_all();
    }

    /// Why the journal was stopped, when that is known.
    pub fn reason(&self) -> Option<Error> {
        self.reason.lock().clone()
    }

    /// Most blocks of data that a handle may log, beside what else it changes; 0: there is no log.
    pub fn data_blocks_max(&self) -> usize {
        if self.unlogged { 0 } else { self.blocks_max / 4 }
    }

    /// Whether `tid` has committed.
    pub fn has_committed(&self, tid: Tid) -> bool {
        self.progress.lock().committed.reached(tid)
    }

    /// Blocks that will be free once what was done so far has committed.
    pub fn freeing(&self) -> u64 {
        self.freeing.load(Ordering::Acquire)
    }

    /// The committer's life: waits for a wish or for `interval`, commits, until [`Journal::close`].
    /// While the medium has no room it tries again and again.
    pub fn run(&self, client: &dyn Client, interval: Duration) {
        loop {
            let wish = self.wait_for_wish(interval);
            if self.is_stopped() {
                return;
            }
            let refused = wish != Wish::Upkeep && self.commit(client).is_err();
            if wish == Wish::End || (refused && !self.is_starved()) {
                return;
            }
            if let Err(why) = self.back_ahead(client).and_then(|()| self.checkpoint_early(client)) {
                return self.stop(Some(&why));
            }
        }
    }

    /// Waits until the committer has something to do.
    fn wait_for_wish(&self, interval: Duration) -> Wish {
        let progress = self.progress.lock();
        let starved = self.is_starved();
        let short = starved || self.is_short();
        let pause = if short { interval.min(RETRY_PAUSE) } else { interval };
        let idle = |p: &mut Progress| {
            let content = starved || (p.committed.reached(p.wanted) && !self.is_starved());
            content && !p.ending && !p.zeroing && !p.checkpointing && !self.is_stopped()
        };
        let (mut progress, timed_out) = self.wish.wait_timeout_while(progress, pause, idle);
        let zeroing = std::mem::take(&mut progress.zeroing);
        let upkeep = std::mem::take(&mut progress.checkpointing) || zeroing;
        let is_done = progress.committed.reached(progress.wanted);
        match progress.ending {
            true => Wish::End,
            false if upkeep && is_done && !starved && !timed_out => Wish::Upkeep,
            false => Wish::Commit,
        }
    }

    /// Tells the committer to commit what there is and return.
    pub fn close(&self) {
        self.progress.lock().ending = true;
        self.wish.notify_all();
    }
}
