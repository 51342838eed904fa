//! Checkpoints: committed versions go home, and the log is free again.
//!
//! The committer makes one as soon as the log is half full, without the log's lock: commits go on
//! meanwhile, and none waits for it unless the log is nearly full (a quarter left, or 8192 blocks
//! of files). Then
//!
//! - newer versions of what goes home gather in the log, and wait for the next checkpoint;
//! - a block that a commit frees while an older version of it goes home is given to nobody before
//!   that has ended: it would come on top of what the next owner writes there;
//! - a block counts as live until the superblock is durable that says where the log begins now.
//!
//! A thread that needs the checkpoint's end, or writes the superblock, waits for it with the log's
//! lock, and has the log know of it.

use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_sys::buffer::Buffer;

use super::backing::log_blocks;
use super::log::{Log, Pending};
use super::logged::{LOGGED_FULL, LOGGED_MAX};
use super::{Client, Journal, Tid};
use crate::cache::MetaBlock;
use crate::error::{Error, Result};
use crate::format::DeviceBlock;
use crate::format::journal::JournalSuperblock;

/// Runs that the committer sends home at a time: a sync that falls together with them waits for
/// these at the device.
const RUNS_AT_A_TIME: usize = 32;

/// A checkpoint that the committer makes without the log's lock.
#[derive(Default)]
pub(super) struct Background {
    stage: Mutex<Stage>,
    ended: Condvar,
}

/// How far it has come.
#[derive(Default)]
enum Stage {
    #[default]
    None,
    /// Its writes are on their way.
    Begun,
    /// They ended; the log does not know yet.
    Ended(Plan, Vec<Buffer>, Result<()>),
}

impl Background {
    fn begin(&self) {
        *self.stage.lock() = Stage::Begun;
    }

    pub(super) fn end(&self, plan: Plan, (buffers, result): (Vec<Buffer>, Result<()>)) {
        *self.stage.lock() = Stage::Ended(plan, buffers, result);
        self.ended.notify_all();
    }

    /// Waits until no writes are on their way. What ended, once.
    fn settle(&self) -> Option<(Plan, Vec<Buffer>, Result<()>)> {
        let mut stage = self.stage.lock();
        while matches!(*stage, Stage::Begun) {
            stage = self.ended.wait(stage);
        }
        match std::mem::take(&mut *stage) {
            Stage::Ended(plan, buffers, result) => Some((plan, buffers, result)),
            _ => None,
        }
    }
}

/// What a checkpoint writes home, and where the log begins then.
pub(super) struct Plan {
    blocks: Vec<Arc<MetaBlock>>,
    pub(super) runs: Vec<(DeviceBlock, Vec<Buffer>)>,
    tail: u32,
    /// The last transaction whose versions they are, if the log holds any; then the superblock
    /// that says so.
    last: Option<(Tid, JournalSuperblock)>,
}

impl Journal {
    /// Writes every committed version home and empties the log.
    ///
    /// # Errors
    /// The device failed.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_locked(&mut *self.landed_log()?)
    }

    /// Whether the log is half full, or holds much of files.
    fn is_due(&self, log: &Log) -> bool {
        let used = log.used();
        let due = used > log.size() / 2 || self.logged.len() > LOGGED_MAX;
        due && used >= log.checkpoint_at && log.homing.is_empty()
    }

    /// Asks the committer for a checkpoint where one is due.
    pub(super) fn ask_for_checkpoint(&self, log: &Log) {
        if self.is_due(log) {
            let mut progress = self.progress.lock();
            if !std::mem::replace(&mut progress.checkpointing, true) {
                self.wish.notify_all();
            }
        }
    }

    /// Empties a log that is half full, or holds much of files, while commits go on: the log's lock
    /// is not held while blocks are written. For the committer.
    ///
    /// # Errors
    /// The device failed. A medium without room only puts it off: what has committed is in the log.
    pub(super) fn checkpoint_early(&self, client: &dyn Client) -> Result<()> {
        let mut log = self.log.lock();
        if !self.is_due(&log) || self.is_stopped() {
            return Ok(());
        }
        let mut plan = self.begin_background(&mut log);
        drop(log);
        let done = self.carry_out(&mut plan, RUNS_AT_A_TIME);
        self.background.end(plan, done);
        log = self.log.lock();
        // Another thread may have been faster.
        self.settle_background(&mut log)?;
        self.release_held(&mut log, client);
        Ok(())
    }

    /// From now on its writes may be on their way.
    pub(super) fn begin_background(&self, log: &mut Log) -> Plan {
        let plan = self.plan(log);
        log.homing = plan.blocks.iter().map(|block| block.home).collect();
        self.background.begin();
        plan
    }

    /// Waits for the committer's checkpoint, if one is under way, and has the log know of it.
    pub(super) fn settle_background(&self, log: &mut Log) -> Result<()> {
        let Some((plan, buffers, result)) = self.background.settle() else { return Ok(()) };
        let concluded = self.conclude(log, plan, (buffers, result));
        log.homing.clear();
        log.revoked_since.clear();
        self.or_put_off(log, concluded)
    }

    /// What a medium without room refused is tried again when more of the log is used.
    fn or_put_off(&self, log: &mut Log, done: Result<()>) -> Result<()> {
        match done {
            Err(why) if why.is_no_space() => {
                log.checkpoint_at = log.used() + (self.blocks_max / 8) as u32;
                Ok(())
            }
            done => done,
        }
    }

    /// Releases freed blocks that waited for the end of a checkpoint, if it has ended.
    pub(super) fn release_held(&self, log: &mut Log, client: &dyn Client) {
        if log.homing.is_empty() && !log.held.is_empty() {
            let held = std::mem::take(&mut log.held);
            self.release_freed(client, &held);
        }
    }

    /// Makes room for `blocks` and what goes with them into the log, where there is none: only then
    /// does a commit wait for a checkpoint.
    pub(super) fn make_room(&self, log: &mut Log, blocks: usize) -> Result<()> {
        let has_room = |log: &Log| (log.size() - log.used()) as usize > log_blocks(blocks);
        let holds_few =
            |log: &Log| self.logged.len() <= LOGGED_FULL || log.used() < log.checkpoint_at;
        if has_room(log) && holds_few(log) {
            return Ok(());
        }
        self.settle_background(log)?;
        match has_room(log) {
            true if holds_few(log) => Ok(()),
            true => {
                let done = self.checkpoint_locked(log);
                self.or_put_off(log, done)
            }
            false => self.checkpoint_locked(log),
        }
    }

    /// Transactions on their way stay in the log: it begins with them then.
    pub(super) fn checkpoint_locked(&self, log: &mut Log) -> Result<()> {
        self.settle_background(log)?;
        let mut plan = self.plan(log);
        let done = self.carry_out(&mut plan, usize::MAX);
        self.conclude(log, plan, done)
    }

    /// Takes every committed version out of the log's account.
    fn plan(&self, log: &mut Log) -> Plan {
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
        let tail = log.flying.front().map_or(log.head, |flying| flying.start);
        let last = log.last.map(|last| {
            let mut superblock = log.superblock.clone();
            superblock.set_tail(last.next().sequence(), tail);
            (last, superblock)
        });
        Plan { blocks, runs, tail, last }
    }

    /// Writes the versions home, so many runs at a time, and, when they are durable, the
    /// superblock. Gives the buffers back. Nothing more is written once the journal has stopped:
    /// replay finds what is in the log.
    pub(super) fn carry_out(&self, plan: &mut Plan, runs_max: usize) -> (Vec<Buffer>, Result<()>) {
        let (mut buffers, mut done) = (Vec::with_capacity(plan.blocks.len()), Ok(()));
        let mut left = std::mem::take(&mut plan.runs);
        while !left.is_empty() {
            let rest = left.split_off(left.len().min(runs_max));
            done = done.and_then(|()| self.check());
            match done {
                Ok(()) => {
                    let (written, result) = self.io.write_all(left);
                    buffers.extend(written);
                    done = result.map_err(Error::from);
                }
                Err(_) => buffers.extend(left.into_iter().flat_map(|(_, data)| data)),
            }
            left = rest;
        }
        let told = done.and_then(|()| {
            self.io.flush()?;
            plan.last.as_ref().map_or(Ok(()), |(_, superblock)| self.put_superblock(superblock))
        });
        (buffers, told)
    }

    /// What was planned was done, or was not. Where the medium has no room the versions wait on,
    /// all of them: those that got home will be written there once more.
    fn conclude(
        &self,
        log: &mut Log,
        plan: Plan,
        (buffers, done): (Vec<Buffer>, Result<()>),
    ) -> Result<()> {
        let Plan { blocks, tail, last, .. } = plan;
        if let Err(why) = done {
            // Another failure stops the journal: these versions are not asked for again.
            if why.is_no_space() {
                let again = blocks.into_iter().zip(buffers);
                again.for_each(|(block, data)| log.put_back(Pending { data, block }));
            }
            return Err(why);
        }
        (log.tail, log.checkpoint_at) = (tail, 0);
        if let Some((last, superblock)) = last {
            log.superblock = superblock;
            log.last = log.last.filter(|now| *now != last);
        }
        // Not before a replay brings none of their versions back: what is not in the log may be
        // written in place.
        for block in &blocks {
            let is_dirty = block.dirty_in.load(Ordering::Acquire) != 0;
            let is_newer = is_dirty || log.pending.contains_key(&block.home);
            if !is_newer && block.closed_in.load(Ordering::Acquire) == 0 {
                block.home_is_old.store(false, Ordering::Release);
            }
        }
        log.keep(buffers);
        drop(blocks);
        self.logged.sweep();
        Ok(())
    }

    /// Leaves an empty, clean log behind; nothing may be written afterwards.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(&self) -> Result<()> {
        let mut log = self.landed_log()?;
        self.checkpoint_locked(&mut log)?;
        let next = self.current().sequence();
        log.superblock.set_tail(next, 0);
        self.write_superblock(&log)?;
        self.stopped.store(true, Ordering::Release);
        Ok(())
    }

    /// For a journal that damage stopped: says so in its superblock, after `note` has said it
    /// elsewhere. The log stays as it is. Waits for a commit or checkpoint that is under way.
    ///
    /// # Errors
    /// The device failed.
    pub fn record_damage(&self, note: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut log = self.log.lock();
        // A thread that is on its way to a commit block sees the stop, or has written it.
        self.wait_for_writers();
        // What it failed with stopped the journal, or would.
        let _ = self.settle_background(&mut log);
        note()?;
        log.superblock.set_errno(-Errno::EUCLEAN.0);
        self.write_superblock(&log)
    }

    /// Writes the journal's superblock, where there is one. No checkpoint is under way.
    pub(super) fn write_superblock(&self, log: &Log) -> Result<()> {
        self.put_superblock(&log.superblock)
    }

    fn put_superblock(&self, superblock: &JournalSuperblock) -> Result<()> {
        if self.unlogged {
            return Ok(());
        }
        let home = self.map.device_block(0);
        let mut block = self.io.read(home)?;
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        self.io.write_durable(home, block)?;
        Ok(())
    }
}
