//! Commits: a transaction is closed, copied, and written to the log.
//!
//! *A medium without room.* Before a transaction is closed the log has room for it, or the commit
//! is refused and the transaction goes on. A closed one whose log blocks find no room on the medium
//! is kept, and is what the next commit begins with. Either way nothing is lost, whoever waits is
//! told `ENOSPC`, and the committer tries again by itself.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_base::Time;
use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;

use super::log::{Closed, Log};
use super::{Client, Handle, Journal, REVOKES_PER_BLOCK, RUNNING_OVERHEAD, Running, Tid};
use crate::cache::MetaBlock;
use crate::error::Result;
use crate::format::journal::Tag;

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
        match &result {
            Ok(()) => self.note_room(true),
            Err(why) if why.is_no_space() => self.note_room(false),
            Err(why) => self.stop(Some(why)),
        }
        result
    }

    fn commit_locked(&self, log: &mut Log, client: &dyn Client) -> Result<()> {
        self.check()?;
        if let Some(stalled) = log.stalled.take() {
            self.log_closed(log, client, stalled)?;
        }
        self.make_room(log, self.blocks_max + RUNNING_OVERHEAD)?;
        let closed = self.close_running(log, client)?;
        self.note_close(closed.is_empty());
        match closed.is_empty() {
            true => Ok(()),
            false => self.log_closed(log, client, closed),
        }
    }

    /// Brings a closed transaction into the log, or keeps it for another try.
    fn log_closed(&self, log: &mut Log, client: &dyn Client, mut closed: Closed) -> Result<()> {
        let head = log.head;
        let written = self.write_closed(log, client, &mut closed);
        if let Err(why) = written {
            if why.is_no_space() {
                log.head = head;
                log.stalled = Some(closed);
            }
            return Err(why);
        }
        let tid = closed.tid;
        client.release(&closed.freed);
        let freed: u64 = closed.freed.iter().map(|run| u64::from(run.count)).sum();
        self.freeing.fetch_sub(freed, Ordering::AcqRel);
        log.retire(closed);
        // Under the log's lock: commits are told in their order.
        self.progress.lock().committed = tid;
        self.checkpoint_early(log)
    }

    fn write_closed(&self, log: &mut Log, client: &dyn Client, closed: &mut Closed) -> Result<()> {
        self.make_room(log, closed.blocks.len() + closed.revoked.len() / REVOKES_PER_BLOCK + 8)?;
        self.write_body(log, closed)?;
        self.io.flush()?;
        self.write_commit(log, closed.tid, client.now())
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

    /// Writes descriptors, revokes and copies. In the log's first lap also the commit block's
    /// place, so that no room can be missing for what must not fail.
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
        let room_for_commit = !log.lapped;
        if room_for_commit {
            body.push(Buffer::zeroed(block_bytes));
        }
        let (mut written, result) = self.append(log, body);
        if room_for_commit {
            written.pop();
            log.head = log.before(log.head);
        }
        // The copies come back, as they are to go home: without the log's escapes.
        let written = written.into_iter().skip(revokes);
        let is_copy = |(index, _): &(usize, Buffer)| index % (per_descriptor + 1) != 0;
        closed.copies = written.enumerate().filter(is_copy).map(|(_, data)| data).collect();
        for (tag, data) in all_tags.iter().zip(&mut closed.copies) {
            log.codec.restore(tag, data);
        }
        result
    }

    /// Writes blocks at the head of the log, in as few requests as the journal's layout allows.
    /// Gives them back in order, written or not.
    fn append(&self, log: &mut Log, mut body: Vec<Buffer>) -> (Vec<Buffer>, Result<()>) {
        let mut runs = Vec::new();
        while !body.is_empty() {
            let room = (log.superblock.end() - log.head).min(body.len() as u32);
            let count = self.map.run(log.head, room);
            let rest = body.split_off(count as usize);
            runs.push((self.map.device_block(log.head), body));
            log.advance(count);
            body = rest;
        }
        let (blocks, result) = self.io.write_all(runs);
        (blocks, result.map_err(Into::into))
    }

    fn write_commit(&self, log: &mut Log, tid: Tid, now: Time) -> Result<()> {
        let mut block = Buffer::zeroed(self.io.block_bytes());
        log.codec.put_commit(&mut block, tid.0, now.sec.max(0) as u64, now.nsec);
        self.io.write_durable(self.map.device_block(log.head), block)?;
        log.advance(1);
        Ok(())
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
