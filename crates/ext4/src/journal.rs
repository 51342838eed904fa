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
//! - A commit block is written only after a flush made its log body durable; the same flush covers
//!   file data written before (ordered mode: data is written before the extents that show it).
//! - Log space is used again only after the homes of all that it held were written and flushed, and
//!   the journal's superblock says so durably.
//! - Blocks freed by a transaction are given to the allocator only after it committed.
//! - After a failure nothing is written any more: every call answers [`Error::Stopped`].
//!
//! # Locking
//!
//! `gate (shared: a handle; exclusive: closing a transaction) → running → block data`. The
//! committer alone takes `log`. Nobody waits for a commit while holding the gate.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use polylane_base::Time;
use polylane_base::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use polylane_sys::buffer::Buffer;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::{BlockCache, MetaBlock};
use crate::error::{Error, Result};
use crate::format::journal::{CSUM_V3, Codec, JournalSuperblock, REVOKE, SIXTY_FOUR_BIT, Tag};
use crate::format::{DeviceBlock, GroupIndex};
use crate::io::BlockIo;
use crate::recovery::JournalMap;

/// The number of a transaction, as in the log. Compared modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tid(pub u32);

impl Tid {
    /// Whether `self` is `other` or a later one.
    pub fn reached(self, other: Tid) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }

    /// The following transaction. 0 is skipped: it marks clean blocks.
    fn next(self) -> Tid {
        Tid(self.0.wrapping_add(1).max(1))
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
    /// Brings bitmaps' checksums and descriptors of `groups` into their blocks; called while no
    /// handle exists. Returns the descriptor blocks it changed.
    fn close_groups(&self, groups: &FxHashSet<GroupIndex>) -> Result<Vec<Arc<MetaBlock>>>;

    /// The transaction that freed these blocks has committed: they may be used again.
    fn release(&self, freed: &[Freed]);

    /// Now, for the commit block.
    fn now(&self) -> Time;
}

struct Running {
    tid: Tid,
    blocks: Vec<Arc<MetaBlock>>,
    groups: FxHashSet<GroupIndex>,
    freed: Vec<Freed>,
    revoked: FxHashSet<DeviceBlock>,
    credits: usize,
}

impl Running {
    fn new(tid: Tid) -> Self {
        Running {
            tid,
            blocks: Vec::new(),
            groups: FxHashSet::default(),
            freed: Vec::new(),
            revoked: FxHashSet::default(),
            credits: 0,
        }
    }

    /// Log blocks that it may come to, with what open handles were promised.
    fn log_blocks(&self) -> usize {
        self.blocks.len() + self.groups.len() + self.credits + self.revoked.len() / 500 + 4
    }
}

/// A transaction that takes no more changes, with copies of its blocks as they were at the close.
struct Closed {
    tid: Tid,
    copies: Vec<(Arc<MetaBlock>, Buffer)>,
    freed: Vec<Freed>,
    revoked: Vec<DeviceBlock>,
}

impl Closed {
    fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.revoked.is_empty()
    }
}

/// A committed version that its home does not have yet.
struct Pending {
    data: Buffer,
    block: Arc<MetaBlock>,
}

/// The log area, owned by whoever commits or checkpoints.
struct Log {
    superblock: JournalSuperblock,
    codec: Codec,
    head: u32,
    tail: u32,
    /// The last committed transaction, if the log holds any.
    last: Option<Tid>,
    pending: FxHashMap<DeviceBlock, Pending>,
}

/// The state that waiters look at.
struct Progress {
    committed: Tid,
    wanted: Tid,
    closing: bool,
}

/// The journal of a mounted file system. Thread-safe.
pub struct Journal {
    io: Arc<BlockIo>,
    map: JournalMap,
    gate: RwLock<()>,
    running: Mutex<Running>,
    current: AtomicU32,
    log: Mutex<Log>,
    progress: Mutex<Progress>,
    changed: Condvar,
    stopped: AtomicBool,
    blocks_max: usize,
}

/// The right to change metadata, as part of the running transaction. Must not be held across a wait
/// for anything but device reads of metadata.
pub struct Handle<'a> {
    journal: &'a Journal,
    _gate: RwLockReadGuard<'a, ()>,
    tid: Tid,
    credits: usize,
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
    ) -> Result<Journal> {
        let first = superblock.first();
        let tid = Tid(next_sequence.max(1));
        superblock.add_incompat(SIXTY_FOUR_BIT | CSUM_V3 | REVOKE);
        superblock.set_tail(tid.0, first);
        let size = superblock.end() - first;
        let log = Log {
            codec: superblock.codec(),
            superblock,
            head: first,
            tail: first,
            last: None,
            pending: FxHashMap::default(),
        };
        let before = Tid(tid.0.wrapping_sub(1));
        let journal = Journal {
            io,
            map,
            gate: RwLock::new(()),
            running: Mutex::new(Running::new(tid)),
            current: AtomicU32::new(tid.0),
            log: Mutex::new(log),
            progress: Mutex::new(Progress { committed: before, wanted: before, closing: false }),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            blocks_max: (size / 4) as usize,
        };
        journal.write_superblock(&journal.log.lock())?;
        Ok(journal)
    }

    /// Joins the running transaction with room for `credits` block changes. Waits while the
    /// transaction is full.
    ///
    /// # Errors
    /// [`Error::Stopped`], or `ENOSPC` when the journal can never hold that much.
    pub fn start(&self, credits: usize) -> Result<Handle<'_>> {
        if credits > self.blocks_max {
            return Err(polylane_base::Errno::ENOSPC.into());
        }
        loop {
            self.check()?;
            let gate = self.gate.read();
            let mut running = self.running.lock();
            if running.log_blocks() + credits <= self.blocks_max {
                running.credits += credits;
                let tid = running.tid;
                drop(running);
                return Ok(Handle { journal: self, _gate: gate, tid, credits });
            }
            let full = running.tid;
            drop(running);
            drop(gate);
            self.wait_for(full)?;
        }
    }

    /// The transaction that a change made now belongs to.
    pub fn current(&self) -> Tid {
        Tid(self.current.load(Ordering::Acquire))
    }

    /// Whether an earlier failure stopped the journal.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Stops the journal for good and wakes all who wait.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        drop(self.progress.lock());
        self.changed.notify_all();
    }

    /// Whether `tid` has committed.
    pub fn has_committed(&self, tid: Tid) -> bool {
        self.progress.lock().committed.reached(tid)
    }

    /// Waits until `tid` has committed, asking for that commit. `tid` must be one that a handle
    /// had: a transaction without changes never commits.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn wait_for(&self, tid: Tid) -> Result<()> {
        let mut progress = self.progress.lock();
        loop {
            if progress.committed.reached(tid) {
                return Ok(());
            }
            self.check()?;
            if !progress.wanted.reached(tid) {
                progress.wanted = tid;
                self.changed.notify_all();
            }
            progress = match self.changed.wait(progress) {
                Ok(guard) => guard,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    /// The committer's life: waits for a wish or for `interval`, commits, until [`Journal::close`].
    pub fn run(&self, client: &dyn Client, interval: std::time::Duration) {
        loop {
            let closing = {
                let progress = self.progress.lock();
                let idle = |p: &mut Progress| p.committed.reached(p.wanted) && !p.closing;
                let waited = self.changed.wait_timeout_while(progress, interval, idle);
                waited.unwrap_or_else(|poison| poison.into_inner()).0.closing
            };
            if self.is_stopped() || (self.commit(client).is_err() && self.fail()) || closing {
                return;
            }
        }
    }

    fn fail(&self) -> bool {
        self.stop();
        true
    }

    /// Tells the committer to commit what there is and return.
    pub fn close(&self) {
        self.progress.lock().closing = true;
        self.changed.notify_all();
    }

    /// Commits the running transaction, if it holds anything.
    ///
    /// # Errors
    /// The device failed; the caller stops the journal.
    pub fn commit(&self, client: &dyn Client) -> Result<()> {
        self.check()?;
        let mut log = self.log.lock();
        let closed = self.close_running(client)?;
        let tid = closed.tid;
        if closed.is_empty() {
            let mut progress = self.progress.lock();
            progress.wanted = progress.committed;
            return Ok(());
        }
        self.make_room(&mut log, closed.copies.len() + closed.revoked.len() / 500 + 8)?;
        self.write_body(&mut log, &closed)?;
        self.io.flush()?;
        self.write_commit(&mut log, tid, client.now())?;
        client.release(&closed.freed);
        log.retire(closed);
        let used = log.used();
        drop(log);
        self.progress.lock().committed = tid;
        self.changed.notify_all();
        if used as usize > self.blocks_max * 2 { self.checkpoint() } else { Ok(()) }
    }

    /// Closes the running transaction: no handle is open while its blocks are copied. An empty one
    /// keeps its number, since the log must have no gaps.
    fn close_running(&self, client: &dyn Client) -> Result<Closed> {
        let _gate = self.gate.write();
        let mut guard = self.running.lock();
        let tid = guard.tid;
        let running = std::mem::replace(&mut *guard, Running::new(tid));
        let mut blocks = running.blocks;
        if !running.groups.is_empty() {
            let descriptors = client.close_groups(&running.groups)?;
            let fresh =
                |block: &Arc<MetaBlock>| block.dirty_in.swap(tid.0, Ordering::AcqRel) != tid.0;
            blocks.extend(descriptors.into_iter().filter(fresh));
        }
        let (freed, revoked) = (running.freed, running.revoked);
        let mut copies = Vec::with_capacity(blocks.len());
        for block in blocks {
            block.dirty_in.store(0, Ordering::Release);
            if !revoked.contains(&block.home) {
                let copy = copy_out(&block);
                copies.push((block, copy));
            }
        }
        let closed = Closed { tid, copies, freed, revoked: revoked.into_iter().collect() };
        if !closed.is_empty() {
            guard.tid = tid.next();
            self.current.store(guard.tid.0, Ordering::Release);
        }
        Ok(closed)
    }

    fn make_room(&self, log: &mut Log, blocks: usize) -> Result<()> {
        // One descriptor for some 250 blocks, and the commit block.
        let needed = blocks + blocks / 200 + 4;
        if (log.size() - log.used()) as usize > needed {
            return Ok(());
        }
        self.checkpoint_locked(log)
    }

    fn write_body(&self, log: &mut Log, closed: &Closed) -> Result<()> {
        let block_bytes = self.io.block_bytes();
        let sequence = closed.tid.0;
        let mut body: Vec<Buffer> = Vec::with_capacity(closed.copies.len() + 8);
        for part in closed.revoked.chunks(log.codec.revokes_per_block(block_bytes)) {
            let mut block = Buffer::zeroed(block_bytes);
            log.codec.put_revoke(&mut block, sequence, part);
            body.push(block);
        }
        for part in closed.copies.chunks(log.codec.tags_per_block(block_bytes)) {
            let mut descriptor = Buffer::zeroed(block_bytes);
            let mut logged: Vec<Buffer> =
                part.iter().map(|(_, data)| Buffer::copy_of(data)).collect();
            let tag = |(copy, data): (&(Arc<MetaBlock>, Buffer), &mut Buffer)| {
                log.codec.log(copy.0.home, sequence, data)
            };
            let tags: Vec<Tag> = part.iter().zip(&mut logged).map(tag).collect();
            log.codec.put_descriptor(&mut descriptor, sequence, &tags);
            body.push(descriptor);
            body.extend(logged);
        }
        self.append(log, body)
    }

    /// Writes blocks at the head of the log, in as few requests as the journal's layout allows.
    fn append(&self, log: &mut Log, mut body: Vec<Buffer>) -> Result<()> {
        let mut runs = Vec::new();
        while !body.is_empty() {
            let room = (log.superblock.end() - log.head).min(body.len() as u32);
            let count = self.map.run(log.head, room);
            let rest = body.split_off(count as usize);
            runs.push((self.map.device_block(log.head), body));
            log.head = log.after(log.head, count);
            body = rest;
        }
        Ok(self.io.write_all(runs)?)
    }

    fn write_commit(&self, log: &mut Log, tid: Tid, now: Time) -> Result<()> {
        let mut block = Buffer::zeroed(self.io.block_bytes());
        log.codec.put_commit(&mut block, tid.0, now.sec.max(0) as u64, now.nsec);
        self.io.write_durable(self.map.device_block(log.head), block)?;
        log.head = log.after(log.head, 1);
        Ok(())
    }

    /// Writes every committed version home and empties the log.
    ///
    /// # Errors
    /// The device failed.
    pub fn checkpoint(&self) -> Result<()> {
        self.check()?;
        self.checkpoint_locked(&mut self.log.lock())
    }

    fn checkpoint_locked(&self, log: &mut Log) -> Result<()> {
        let mut pending: Vec<Pending> = log.pending.drain().map(|(_, pending)| pending).collect();
        pending.sort_by_key(|pending| pending.block.home);
        let mut runs: Vec<(DeviceBlock, Vec<Buffer>)> = Vec::new();
        for entry in &pending {
            // The pending versions stay ours: a failed write must leave them to be seen.
            let copy = Buffer::copy_of(&entry.data);
            match runs.last_mut() {
                Some((start, data)) if start.0 + data.len() as u64 == entry.block.home.0 => {
                    data.push(copy);
                }
                _ => runs.push((entry.block.home, vec![copy])),
            }
        }
        self.io.write_all(runs)?;
        self.io.flush()?;
        for entry in &pending {
            if entry.block.dirty_in.load(Ordering::Acquire) == 0 {
                entry.block.home_is_old.store(false, Ordering::Release);
            }
        }
        log.tail = log.head;
        if let Some(last) = log.last.take() {
            let (next, head) = (last.next().0, log.head);
            log.superblock.set_tail(next, head);
            self.write_superblock(log)?;
        }
        Ok(())
    }

    /// Leaves an empty, clean log behind; nothing may be written afterwards.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(&self) -> Result<()> {
        self.check()?;
        let mut log = self.log.lock();
        self.checkpoint_locked(&mut log)?;
        let next = self.running.lock().tid.0;
        log.superblock.set_tail(next, 0);
        self.write_superblock(&log)?;
        self.stopped.store(true, Ordering::Release);
        Ok(())
    }

    fn write_superblock(&self, log: &Log) -> Result<()> {
        let home = self.map.device_block(0);
        let mut block = self.io.read(home)?;
        block[..1024].copy_from_slice(&log.superblock.encode());
        self.io.write_durable(home, block)?;
        Ok(())
    }
}

impl Log {
    fn size(&self) -> u32 {
        self.superblock.end() - self.superblock.first()
    }

    fn used(&self) -> u32 {
        (self.head + self.size() - self.tail) % self.size()
    }

    fn after(&self, index: u32, count: u32) -> u32 {
        let first = self.superblock.first();
        first + (index - first + count) % self.size()
    }

    /// The transaction is durable: its versions wait for their homes, and what it revoked waits no
    /// longer.
    fn retire(&mut self, closed: Closed) {
        for home in &closed.revoked {
            if let Some(pending) = self.pending.remove(home) {
                pending.block.home_is_old.store(false, Ordering::Release);
            }
        }
        self.last = Some(closed.tid);
        for (block, data) in closed.copies {
            self.pending.insert(block.home, Pending { data, block });
        }
    }
}

/// The block's content as it goes to the log, sealed. Called while no handle exists.
fn copy_out(block: &MetaBlock) -> Buffer {
    let seal = *block.seal.lock();
    let mut data = block.data.write();
    seal.apply(&mut data);
    block.home_is_old.store(true, Ordering::Release);
    Buffer::copy_of(&data)
}

impl Handle<'_> {
    /// The transaction this handle is part of.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Opens a block for change.
    pub fn modify<'b>(&self, block: &'b Arc<MetaBlock>) -> RwLockWriteGuard<'b, Buffer> {
        if block.dirty_in.swap(self.tid.0, Ordering::AcqRel) != self.tid.0 {
            self.journal.running.lock().blocks.push(block.clone());
        }
        block.data.write()
    }

    /// Notes that bitmaps or counters of `group` changed.
    pub fn touch_group(&self, group: GroupIndex) {
        self.journal.running.lock().groups.insert(group);
    }

    /// Frees data blocks: the allocator gets them back when the transaction has committed.
    pub fn free(&self, start: DeviceBlock, count: u32) {
        self.journal.running.lock().freed.push(Freed { start, count });
    }

    /// Frees a metadata block: older versions of it in the log must not be replayed any more.
    pub fn free_metadata(&self, cache: &BlockCache, home: DeviceBlock) {
        let mut running = self.journal.running.lock();
        running.freed.push(Freed { start: home, count: 1 });
        running.revoked.insert(home);
        drop(running);
        cache.forget(home);
    }

    /// The block is metadata again, freed or not before in this transaction: a revoke of it is
    /// taken back.
    pub fn claim_metadata(&self, home: DeviceBlock) {
        self.journal.running.lock().revoked.remove(&home);
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.journal.running.lock().credits -= self.credits;
    }
}
