//! File systems without a journal: transactions are closed as ever, and what one changed goes home
//! at once, in the order of places on the device, and is flushed.
//!
//! A power cut in between leaves half of a transaction at home: e2fsck is needed then, as it is
//! with Linux. What fsync promised before is there.

use std::sync::atomic::Ordering;

use polylane_base::sync::{Arc, MutexGuard};
use polylane_sys::buffer::Buffer;

use super::backing::{LENT, SPARE_MAX};
use super::log::{Closed, Log};
use super::{Client, Journal, Tuning};
use crate::error::{Error, Result};
use crate::format::DeviceBlock;
use crate::format::journal::JournalSuperblock;
use crate::io::BlockIo;
use crate::recovery::JournalMap;

impl Journal {
    /// The journal of a file system that has none.
    pub fn unlogged(io: Arc<BlockIo>, tuning: Tuning) -> Journal {
        let superblock = JournalSuperblock::of_none(io.block_bytes() as u32);
        Journal::empty(io, JournalMap::default(), superblock, 1, tuning)
    }

    /// Brings a closed transaction home and tells that it is durable, or keeps it for another try.
    /// Returns the log's lock. `again`: it is one that had no room before, and goes to the front.
    pub(super) fn bring_home<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        client: &dyn Client,
        mut closed: Closed,
        again: bool,
    ) -> Result<MutexGuard<'a, Log>> {
        let backed = self.back_all(&mut log, client, &closed);
        if let Err(why) = backed.and_then(|()| self.write_home(&mut closed)) {
            if why.is_no_space() {
                log.stall(closed, again);
            }
            return Err(why);
        }
        for block in &closed.blocks {
            let others = block.closed_in.fetch_sub(1, Ordering::AcqRel) - 1;
            if others == 0 && block.dirty_in.load(Ordering::Acquire) == 0 {
                block.home_is_old.store(false, Ordering::Release);
            }
        }
        if client.gives_back() {
            client.discard(&closed.freed);
            closed.freed.iter().for_each(|run| log.homes.lose(*run));
        }
        self.release_freed(client, &closed.freed);
        log.keep(closed.copies);
        self.tell_committed(closed.tid);
        Ok(log)
    }

    /// Has every home of a transaction take room before the first is written to: a part of a
    /// transaction is damage.
    fn back_all(&self, log: &mut Log, client: &dyn Client, closed: &Closed) -> Result<()> {
        let lend = |log: &mut Log| {
            self.short.store(true, Ordering::Release);
            let given = client.give_aside(LENT);
            given.iter().for_each(|run| log.homes.lose(*run));
            given.is_some()
        };
        self.back_homes(log, closed, &lend)
    }

    /// Whether the running transaction may need all that is set aside, and what removes things
    /// some more.
    pub(super) fn is_spare_needed(&self, client: &dyn Client) -> bool {
        self.is_short() && (client.aside() as usize) < self.load() + self.blocks_max / 4
    }

    /// Sets aside what was lent, as far as there is room again.
    pub(super) fn set_blocks_aside(&self, client: &dyn Client) -> Result<()> {
        let _log = self.log.lock();
        let done = client.set_aside(SPARE_MAX);
        let is_full = done.as_ref().is_err_and(Error::is_no_space);
        self.short.store(is_full, Ordering::Release);
        if is_full { Ok(()) } else { done }
    }

    /// Writes what a transaction changed to its homes, durable on return.
    fn write_home(&self, closed: &mut Closed) -> Result<()> {
        let mut runs: Vec<(DeviceBlock, Vec<Buffer>)> = Vec::new();
        let copies = std::mem::take(&mut closed.copies);
        for (block, data) in closed.blocks.iter().zip(copies) {
            match runs.last_mut() {
                Some((start, run)) if start.0 + run.len() as u64 == block.home.0 => run.push(data),
                _ => runs.push((block.home, vec![data])),
            }
        }
        let (buffers, result) = self.io.write_all(runs);
        closed.copies = buffers;
        result?;
        Ok(self.io.flush()?)
    }
}
