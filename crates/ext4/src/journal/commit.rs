//! Commits: a transaction is closed, copied, and written to the log. Its way from there is
//! `flight`'s.
//!
//! *A medium without room.* Before a transaction is closed the log has room for it, or the commit
//! is refused and the transaction goes on. A closed one whose log blocks find no room on the medium
//! is kept, and is what the next commit begins with. Either way nothing is lost, whoever waits is
//! told `ENOSPC`, and the committer tries again by itself.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Instant;

use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;

use super::gate::{Shut, Slot};
use super::left::Teller;
use super::log::{Closed, Log};
use super::turns::Lead;
use super::{Changes, Client, Handle, Journal, RUNNING_OVERHEAD, Tid, copy};
use crate::cache::MetaBlock;
use crate::error::{Error, Result};
use crate::format::DeviceBlock;
use crate::format::journal::{Codec, Tag, TransactionSum};
use polylane_vfs::OpCtx;

/// Transactions that may be on their way to the log at a time: with the running one's share they
/// leave a quarter of it free.
const FLYING_MAX: usize = 2;

/// The transaction that is to be committed, and its lead, if the caller has that. `None`: all.
type Wanted<'a> = Option<(Tid, Option<Lead<'a>>)>;

impl Journal {
    /// Commits the running transaction, if it holds anything, and all before it. A failure stops
    /// the journal, before anybody can commit a later one.
    ///
    /// # Errors
    /// The device's.
    pub fn commit(&self, client: &dyn Client) -> Result<()> {
        let result = self.commit_or_stop(None, client);
        self.tell_elsewhere();
        result
    }

    /// Has `tid` committed when it returns. `tid` must be one that a handle had: a transaction
    /// without changes never commits. A thread that comes while a commit is under way waits for it,
    /// and then commits for all that came meanwhile, or finds that another has. `teller`: who tells
    /// those that left theirs to it.
    ///
    /// # Errors
    /// [`Error::Stopped`], the device's.
    pub fn commit_up_to(&self, tid: Tid, client: &dyn Client, teller: Teller) -> Result<()> {
        match self.has_committed(tid) {
            true => Ok(()),
            false => self.commit_and_tell((tid, None), client, teller),
        }
    }

    /// The same, by a caller that may have the lead.
    pub(super) fn commit_and_tell(
        &self,
        wanted: (Tid, Option<Lead<'_>>),
        client: &dyn Client,
        teller: Teller,
    ) -> Result<()> {
        let stopped = self.is_stopped();
        let result = self.commit_or_stop(Some(wanted), client);
        match teller {
            Teller::Here => self.tell_due(),
            Teller::Elsewhere => self.tell_elsewhere(),
        }
        // A thread that waited meanwhile is told what another's commit failed of.
        result.map_err(|why| if stopped { why } else { self.cause(why) })
    }

    /// Why the journal was stopped, in place of that it was.
    pub(super) fn cause(&self, why: Error) -> Error {
        match why {
            Error::Stopped => self.reason().unwrap_or(Error::Stopped),
            why => why,
        }
    }

    fn commit_or_stop(&self, wanted: Wanted<'_>, client: &dyn Client) -> Result<()> {
        let result = self.commit_wanted(wanted, client);
        match &result {
            Ok(()) => self.note_room(true),
            Err(why) if why.is_no_space() => self.note_room(false),
            Err(why) => self.stop(Some(why)),
        }
        result
    }

    fn commit_wanted(&self, wanted: Wanted<'_>, client: &dyn Client) -> Result<()> {
        // Given up on return, unless what it is of has committed.
        let (wanted, mut lead) = wanted.map_or((None, None), |(tid, lead)| (Some(tid), lead));
        let mut log = self.log.lock();
        if wanted.is_none() && !log.held.is_empty() {
            // A commit of all may be for the space that comes free.
            self.settle_background(&mut log)?;
            self.release_held(&mut log, client);
        }
        loop {
            self.check()?;
            if wanted.is_some_and(|tid| self.has_committed(tid)) {
                return Ok(());
            }
            let last = log.last_flying();
            if let Some(tid) = wanted.filter(|tid| last.is_some_and(|last| last.reached(*tid))) {
                self.wait_for_landing(log, tid)?;
            } else if let Some(obstacle) = last.filter(|_| !self.may_follow(&log)) {
                match wanted.filter(|_| lead.is_none()).map(|tid| (tid, self.lead(tid))) {
                    Some((tid, Err(given_up))) => self.wait_for_leader(log, tid, given_up)?,
                    took => {
                        lead = lead.or(took.and_then(|(_, took)| took.ok()));
                        self.wait_for_turn(log, obstacle)?;
                    }
                }
            } else if let Some(stalled) = log.stalled.pop_front() {
                log = self.take_off(log, client, stalled, true)?;
                continue;
            } else {
                break;
            }
            // Most that wait need the log's lock no more.
            if wanted.is_some_and(|tid| self.has_committed(tid)) {
                return Ok(());
            }
            log = self.log.lock();
        }
        // What is wanted holds something: others may leave theirs to this thread.
        let leads = lead.is_none() && wanted.is_some();
        let _lead = leads.then(|| self.lead(self.current()).ok());
        self.make_room(&mut log, self.blocks_max + RUNNING_OVERHEAD)?;
        let closed = self.close_running(&mut log, client)?;
        self.note_close(closed.is_empty());
        if !closed.is_empty() {
            drop(self.take_off(log, client, closed, false)?);
        } else if let Some(last) = log.last_flying() {
            self.wait_for_landing(log, last)?;
        }
        Ok(())
    }

    /// Whether the next transaction may go on its way behind those that are there. A small one may
    /// as well wait: more come to it meanwhile, and share its flush.
    fn may_follow(&self, log: &Log) -> bool {
        log.stalled.is_empty()
            && log.flying.len() < FLYING_MAX
            && !log.flying.back().is_some_and(|last| last.alone)
            && !self.is_short()
            && self.load() >= self.tuning.overlap_blocks
    }

    /// Tells who waits for room that the full transaction is closed. An empty one stays open, and
    /// nobody is waited for any more.
    fn note_close(&self, empty: bool) {
        let mut progress = self.progress.lock();
        self.closes.fetch_add(1, Ordering::AcqRel);
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
        let (shut, began) = (self.gate.shut(), Instant::now());
        let tid = self.current();
        let slots = shut.slots();
        let groups = |slot: &Slot<Changes>| std::mem::take(&mut slot.changes.lock().groups);
        let groups = slots.iter().flat_map(groups).collect();
        let (credits, open) = (Cell::new(0), Cell::new(false));
        let (_pass, ctx) = (None, OpCtx::service());
        let last = Handle { journal: self, slot: &slots[0], _pass, tid, ctx, credits, open };
        client.seal(&last, &groups)?;
        last.complete();
        // A handle that was dropped half done stops the journal before it leaves the gate.
        self.check()?;
        let Changes { mut blocks, freed, revoked, .. } = self.gather(&shut);
        let clean = |block: &MetaBlock| block.dirty_in.store(0, Ordering::Release);
        blocks
            .extract_if(.., |block| revoked.contains(&block.home))
            .for_each(|block| clean(&block));
        let copies = copy::out(&blocks, &mut log.spare, self.tuning.copiers);
        let mut revoked: Vec<_> = revoked.into_iter().collect();
        revoked.sort_unstable();
        let closed = Closed { tid, blocks, copies, freed, revoked, began };
        if !closed.is_empty() {
            self.current.store(tid.next().0, Ordering::Release);
        }
        // Last: a block counts as changed until its copy counts, and no fsync takes the change for
        // one of the transaction before.
        closed.blocks.iter().for_each(|block| clean(block));
        Ok(closed)
    }

    /// What all slots know of the running transaction; then they know nothing, and have nothing
    /// ahead. By places on the device, so that what is written does not depend on which CPU did it.
    fn gather(&self, shut: &Shut<'_, Changes>) -> Changes {
        let mut all = Changes::default();
        for slot in shut.slots() {
            let changes = std::mem::take(&mut *slot.changes.lock());
            all.blocks.extend(changes.blocks);
            all.freed.extend(changes.freed);
            all.revoked.extend(changes.revoked);
            slot.credits.store(0, Ordering::Release);
        }
        self.load.store(0, Ordering::Release);
        all.blocks.sort_unstable_by_key(|block| block.home);
        all.freed.sort_unstable_by_key(|freed| freed.start);
        all
    }

    /// What a transaction's body is in the log: revokes, descriptors, and its copies, which it no
    /// longer has then.
    pub(super) fn lay_out(&self, log: &Log, closed: &mut Closed) -> Body {
        let block_bytes = self.io.block_bytes();
        let (codec, sequence) = (log.codec, closed.tid.sequence());
        let mut blocks: Vec<Buffer> = Vec::with_capacity(closed.blocks.len() + 8);
        for part in closed.revoked.chunks(codec.revokes_per_block(block_bytes)) {
            let mut block = Buffer::zeroed(block_bytes);
            codec.put_revoke(&mut block, sequence, part);
            blocks.push(block);
        }
        let revokes = blocks.len();
        let per_descriptor = codec.tags_per_block(block_bytes);
        let mut copies = std::mem::take(&mut closed.copies);
        let tag = |block: &Arc<MetaBlock>, data: &mut Buffer| codec.log(block.home, sequence, data);
        let tags = copy::tags(&closed.blocks, &mut copies, self.tuning.copiers, &tag);
        let mut copies = copies.into_iter();
        for tags in tags.chunks(per_descriptor) {
            let mut descriptor = Buffer::zeroed(block_bytes);
            codec.put_descriptor(&mut descriptor, sequence, tags);
            blocks.push(descriptor);
            blocks.extend(copies.by_ref().take(tags.len()));
        }
        let mut sum = TransactionSum::default();
        blocks[revokes..].iter().for_each(|block| sum.add(block));
        Body { codec, blocks, revokes, tags, sum }
    }

    /// Writes a body to the log, and with it what is deferred of files. In the log's first lap also
    /// the commit block's place, so that no room can be missing for what must not fail.
    pub(super) fn write_body(&self, log: &mut Log, body: &mut Body) -> Result<()> {
        let room_for_commit = !log.lapped;
        if room_for_commit {
            body.blocks.push(Buffer::zeroed(self.io.block_bytes()));
        }
        let runs = self.place(log, std::mem::take(&mut body.blocks));
        let (blocks, result) = self.io.write_body(runs);
        body.blocks = blocks;
        if room_for_commit {
            body.blocks.pop();
            log.head = log.before(log.head);
        }
        Ok(result?)
    }

    /// Gives blocks their places from the head of the log on, in as few runs as the journal's
    /// layout allows.
    pub(super) fn place(
        &self,
        log: &mut Log,
        mut blocks: Vec<Buffer>,
    ) -> Vec<(DeviceBlock, Vec<Buffer>)> {
        let mut runs = Vec::new();
        while !blocks.is_empty() {
            let room = (log.superblock.end() - log.head).min(blocks.len() as u32);
            let count = self.map.run(log.head, room);
            let rest = blocks.split_off(count as usize);
            runs.push((self.map.device_block(log.head), blocks));
            log.advance(count);
            blocks = rest;
        }
        runs
    }
}

/// A transaction's blocks as they go to the log.
pub(super) struct Body {
    codec: Codec,
    pub(super) blocks: Vec<Buffer>,
    /// How many of them, the first ones, are revoke blocks.
    revokes: usize,
    tags: Vec<Tag>,
    /// Of descriptors and logged blocks.
    pub(super) sum: TransactionSum,
}

impl Body {
    /// The copies, as they are to go home: without the log's escapes.
    pub(super) fn into_copies(self, block_bytes: usize) -> Vec<Buffer> {
        let part = self.codec.tags_per_block(block_bytes) + 1;
        let logged = self.blocks.into_iter().skip(self.revokes).enumerate();
        let copies = logged.filter(|(index, _)| index % part != 0).map(|(_, data)| data);
        let restored = copies.zip(&self.tags).map(|(mut data, tag)| {
            self.codec.restore(tag, &mut data);
            data
        });
        restored.collect()
    }
}
