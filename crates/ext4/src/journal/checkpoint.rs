//! Checkpoints: committed versions go home, and the log is free again.

use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_block::Error as DeviceError;
use polylane_sys::buffer::Buffer;

use super::Journal;
use super::backing::log_blocks;
use super::log::{Log, Pending};
use super::logged::LOGGED_MAX;
use crate::cache::MetaBlock;
use crate::error::Result;
use crate::format::DeviceBlock;

impl Journal {
    /// Writes every committed version home and empties the log.
    ///
    /// # Errors
    /// The device failed.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_locked(&mut *self.landed_log()?)
    }

    /// Empties a log that is half full, or holds much of files. A medium without room for that only
    /// puts it off: what has committed is in the log.
    pub(super) fn checkpoint_early(&self, log: &mut Log) -> Result<()> {
        let used = log.used();
        let is_due = used > log.size() / 2 || self.logged.len() > LOGGED_MAX;
        if !is_due || used < log.checkpoint_at {
            return Ok(());
        }
        match self.checkpoint_locked(log) {
            Err(why) if why.is_no_space() => {
                log.checkpoint_at = used + (self.blocks_max / 8) as u32;
                Ok(())
            }
            result => result,
        }
    }

    /// Makes room for `blocks` and what goes with them into the log.
    pub(super) fn make_room(&self, log: &mut Log, blocks: usize) -> Result<()> {
        if (log.size() - log.used()) as usize > log_blocks(blocks) {
            return Ok(());
        }
        self.checkpoint_locked(log)
    }

    /// Transactions on their way stay in the log: it begins with them then.
    pub(super) fn checkpoint_locked(&self, log: &mut Log) -> Result<()> {
        let blocks = self.send_home(log)?;
        self.io.flush()?;
        log.tail = log.flying.front().map_or(log.head, |flying| flying.start);
        log.checkpoint_at = 0;
        if let Some(last) = log.last.take() {
            let (next, tail) = (last.next().sequence(), log.tail);
            log.superblock.set_tail(next, tail);
            self.write_superblock(log)?;
        }
        // Not before a replay brings none of their versions back: what is not in the log may be
        // written in place.
        for block in &blocks {
            let is_dirty = block.dirty_in.load(Ordering::Acquire) != 0;
            if !is_dirty && block.closed_in.load(Ordering::Acquire) == 0 {
                block.home_is_old.store(false, Ordering::Release);
            }
        }
        drop(blocks);
        self.logged.sweep();
        Ok(())
    }

    /// Writes every committed version home. Where the medium has no room they wait on, all of them:
    /// those that got home will be written there once more.
    fn send_home(&self, log: &mut Log) -> Result<Vec<Arc<MetaBlock>>> {
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
        let (buffers, result) = self.io.write_all(runs);
        match result {
            Err(error @ DeviceError::NoSpace) => {
                let again = blocks.into_iter().zip(buffers);
                let again = again.map(|(block, data)| (block.home, Pending { data, block }));
                log.pending.extend(again);
                Err(error.into())
            }
            // A failure stops the journal: nobody will ask for these versions again.
            Err(error) => Err(error.into()),
            Ok(()) => {
                log.keep(buffers);
                Ok(blocks)
            }
        }
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
        // Whoever is on the way to a commit block sees the stop, or has been there.
        self.wait_for_writers();
        note()?;
        log.superblock.set_errno(-Errno::EUCLEAN.0);
        self.write_superblock(&log)
    }

    /// Writes the journal's superblock, where there is one.
    pub(super) fn write_superblock(&self, log: &Log) -> Result<()> {
        if self.unlogged {
            return Ok(());
        }
        let home = self.map.device_block(0);
        let mut block = self.io.read(home)?;
        let bytes = log.superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        self.io.write_durable(home, block)?;
        Ok(())
    }
}
