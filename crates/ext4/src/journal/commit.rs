//! Commits and checkpoints: the log area, and the way of a closed transaction through it.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_base::Time;
use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;
use rustc_hash::FxHashMap;

use super::{Client, Freed, Handle, Journal, REVOKES_PER_BLOCK, Running, Tid};
use crate::cache::MetaBlock;
use crate::error::Result;
use crate::format::DeviceBlock;
use crate::format::journal::{Codec, JournalSuperblock, Tag};

/// A transaction that takes no more changes, with copies of its blocks as they were at the close.
struct Closed {
    tid: Tid,
    blocks: Vec<Arc<MetaBlock>>,
    /// The content of each.
    copies: Vec<Buffer>,
    freed: Vec<Freed>,
    revoked: Vec<DeviceBlock>,
}

impl Closed {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty()
    }
}

/// A committed version that its home does not have yet.
struct Pending {
    data: Buffer,
    block: Arc<MetaBlock>,
}

/// The log area, owned by whoever commits or checkpoints.
pub(super) struct Log {
    superblock: JournalSuperblock,
    codec: Codec,
    head: u32,
    tail: u32,
    /// The last committed transaction, if the log holds any.
    last: Option<Tid>,
    pending: FxHashMap<DeviceBlock, Pending>,
    /// Buffers of a block to copy into.
    spare: Vec<Buffer>,
}

/// Spare buffers that are kept: what a busy lane copies between two checkpoints.
const SPARE_MAX: usize = 512;

impl Journal {
    /// Commits the running transaction, if it holds anything. A failure stops the journal, before
    /// anybody can commit a later one.
    ///
    /// # Errors
    /// The device's.
    pub fn commit(&self, client: &dyn Client) -> Result<()> {
        self.commit_or_stop(&mut self.log.lock(), client)
    }

    /// Has `tid` committed when it returns. `tid` must be one that a handle had: a transaction
    /// without changes never commits. Whoever comes while a commit is under way waits for it, and
    /// then commits for all who came meanwhile, or finds that another has.
    ///
    /// # Errors
    /// [`Error::Stopped`](crate::error::Error::Stopped), the device's.
    pub fn commit_up_to(&self, tid: Tid, client: &dyn Client) -> Result<()> {
        if self.has_committed(tid) {
            return Ok(());
        }
        let mut log = self.log.lock();
        if self.has_committed(tid) {
            return Ok(());
        }
        self.commit_or_stop(&mut log, client)
    }

    fn commit_or_stop(&self, log: &mut Log, client: &dyn Client) -> Result<()> {
        let result = self.commit_locked(log, client);
        if let Err(why) = &result {
            self.stop(Some(why));
        }
        result
    }

    fn commit_locked(&self, log: &mut Log, client: &dyn Client) -> Result<()> {
        self.check()?;
        let mut closed = self.close_running(log, client)?;
        let tid = closed.tid;
        self.note_close(closed.is_empty());
        if closed.is_empty() {
            return Ok(());
        }
        self.make_room(log, closed.blocks.len() + closed.revoked.len() / REVOKES_PER_BLOCK + 8)?;
        self.write_body(log, &mut closed)?;
        self.io.flush()?;
        self.write_commit(log, tid, client.now())?;
        client.release(&closed.freed);
        let freed: u64 = closed.freed.iter().map(|run| u64::from(run.count)).sum();
        self.freeing.fetch_sub(freed, Ordering::AcqRel);
        log.retire(closed);
        // Under the log's lock: commits are told in their order.
        self.progress.lock().committed = tid;
        if log.used() as usize > self.blocks_max * 2 {
            self.checkpoint_locked(log)?;
        }
        Ok(())
    }

    /// Tells who waits for room that the full transaction is closed. An empty one stays open, and
    /// nobody is waited for any more.
    fn note_close(&self, empty: bool) {
        let mut progress = self.progress.lock();
        progress.closes += 1;
        if empty {
            progress.wanted = progress.committed;
        }
        if progress.waiting > 0 {
            self.closed.notify_all();
        }
    }

    /// Closes the running transaction: no handle is open while its blocks are copied. An empty one
    /// keeps its number, since the log must have no gaps.
    fn close_running(&self, log: &mut Log, client: &dyn Client) -> Result<Closed> {
        let _gate = self.gate.write();
        let (tid, groups) = {
            let mut running = self.running.lock();
            (running.tid, std::mem::take(&mut running.groups))
        };
        let open = Cell::new(false);
        let last = Handle { journal: self, _gate: None, tid, credits: 0, open };
        client.seal(&last, &groups)?;
        last.complete();
        // A handle that was dropped half done stops the journal before it leaves the gate.
        self.check()?;
        let mut guard = self.running.lock();
        let running = std::mem::replace(&mut *guard, Running::new(tid));
        self.load.store(0, Ordering::Release);
        let (mut blocks, freed, revoked) = (running.blocks, running.freed, running.revoked);
        blocks.iter().for_each(|block| block.dirty_in.store(0, Ordering::Release));
        blocks.retain(|block| !revoked.contains(&block.home));
        let copies = blocks.iter().map(|block| copy_out(block, log.spare.pop())).collect();
        let revoked = revoked.into_iter().collect();
        let closed = Closed { tid, blocks, copies, freed, revoked };
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

    fn write_body(&self, log: &mut Log, closed: &mut Closed) -> Result<()> {
        let block_bytes = self.io.block_bytes();
        let sequence = closed.tid.0;
        let mut body: Vec<Buffer> = Vec::with_capacity(closed.blocks.len() + 8);
        for part in closed.revoked.chunks(log.codec.revokes_per_block(block_bytes)) {
            let mut block = Buffer::zeroed(block_bytes);
            log.codec.put_revoke(&mut block, sequence, part);
            body.push(block);
        }
        let revokes = body.len();
        let per_descriptor = log.codec.tags_per_block(block_bytes);
        let mut copies = std::mem::take(&mut closed.copies).into_iter();
        let mut all_tags: Vec<Tag> = Vec::with_capacity(closed.blocks.len());
        for part in closed.blocks.chunks(per_descriptor) {
            let mut logged: Vec<Buffer> = copies.by_ref().take(part.len()).collect();
            let tag = |(block, data): (&Arc<MetaBlock>, &mut Buffer)| {
                log.codec.log(block.home, sequence, data)
            };
            let tags: Vec<Tag> = part.iter().zip(&mut logged).map(tag).collect();
            let mut descriptor = Buffer::zeroed(block_bytes);
            log.codec.put_descriptor(&mut descriptor, sequence, &tags);
            body.push(descriptor);
            body.extend(logged);
            all_tags.extend(tags);
        }
        // The copies come back, as they are to go home: without the log's escapes.
        let written = self.append(log, body)?.into_iter().skip(revokes);
        let is_copy = |(index, _): &(usize, Buffer)| index % (per_descriptor + 1) != 0;
        closed.copies = written.enumerate().filter(is_copy).map(|(_, data)| data).collect();
        for (tag, data) in all_tags.iter().zip(&mut closed.copies) {
            log.codec.restore(tag, data);
        }
        Ok(())
    }

    /// Writes blocks at the head of the log, in as few requests as the journal's layout allows.
    fn append(&self, log: &mut Log, mut body: Vec<Buffer>) -> Result<Vec<Buffer>> {
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
        let mut blocks = Vec::with_capacity(pending.len());
        for Pending { data, block } in pending {
            match runs.last_mut() {
                Some((start, run)) if start.0 + run.len() as u64 == block.home.0 => run.push(data),
                _ => runs.push((block.home, vec![data])),
            }
            blocks.push(block);
        }
        // A failure stops the journal: nobody will ask for these versions again.
        log.keep(self.io.write_all(runs)?);
        self.io.flush()?;
        for block in &blocks {
            if block.dirty_in.load(Ordering::Acquire) == 0 {
                block.home_is_old.store(false, Ordering::Release);
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

    pub(super) fn write_superblock(&self, log: &Log) -> Result<()> {
        let home = self.map.device_block(0);
        let mut block = self.io.read(home)?;
        block[..1024].copy_from_slice(&log.superblock.encode());
        self.io.write_durable(home, block)?;
        Ok(())
    }
}

impl Log {
    /// A log without transactions.
    pub(super) fn empty(superblock: JournalSuperblock) -> Log {
        let first = superblock.first();
        Log {
            codec: superblock.codec(),
            superblock,
            head: first,
            tail: first,
            last: None,
            pending: FxHashMap::default(),
            spare: Vec::new(),
        }
    }

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
        for (block, data) in closed.blocks.into_iter().zip(closed.copies) {
            let older = self.pending.insert(block.home, Pending { data, block });
            self.keep(older.map(|older| older.data));
        }
    }

    /// Keeps buffers to copy into.
    fn keep(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        self.spare.extend(buffers.into_iter().take(room));
    }
}

/// The block's content as it goes to the log, sealed. Called while no handle exists.
fn copy_out(block: &MetaBlock, spare: Option<Buffer>) -> Buffer {
    let mut data = block.data.write();
    block.seal(&mut data);
    block.home_is_old.store(true, Ordering::Release);
    let Some(mut copy) = spare else { return Buffer::copy_of(&data) };
    copy.copy_from_slice(&data);
    copy
}
