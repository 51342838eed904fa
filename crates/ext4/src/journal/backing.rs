//! Room on the medium for what a commit needs, before it is needed.
//!
//! A volume promises more than its host has. So that a lane on a full host can be emptied, the
//! blocks of the log that a commit goes to take room already, and so do the homes of what it
//! carries: a checkpoint and a replay then find room, whatever becomes of the host. What takes no
//! room reads as zeros, and has zeros written to it; its content does not change. Where the medium
//! can reserve space, homes are reserved, and the blocks beside them.
//!
//! ```text
//!  first          head                zeroed              backed                        end
//!   │ in use, or   │ free, written      │ free, reserved    │ may take no room            │
//!   │ free         │                    │                   │                             │
//! ```
//!
//! - Opening sets aside what one transaction can hold, and some more (the *spare part*): reserved
//!   where the medium can do so, else written with zeros.
//! - The head never passes `backed`. It moves on by itself while the medium has room; else the log
//!   is emptied by a checkpoint and begins again at `first`.
//! - A commit to a block that is only reserved has the host change its own metadata, too. So the
//!   committer writes zeros ahead of the head while commits go on: as much as was used so far, up
//!   to a bound, a few blocks at a time and without the log's lock. A commit that comes to where
//!   zeros are on their way waits for them; behind them it goes to reserved blocks.
//! - A home for which the medium has no room gets it from the spare part, which is discarded.
//! - After that the medium is *short*: freed blocks are given back to it at once, so that what is
//!   removed makes room. Once half of the spare part is used up nothing new is made (`ENOSPC`).
//!
//! Devices that do not tell what takes room ([`BlockDevice::allocation`]) are taken to have room
//! for all. So are those that put every write in a new place, as far as they say nothing of it.
//!
//! [`BlockDevice::allocation`]: polylane_block::BlockDevice::allocation

use std::sync::atomic::Ordering;

use polylane_base::sync::{Condvar, Mutex};

use super::log::{Closed, Log};
use super::{Client, Freed, Journal, REVOKES_PER_BLOCK, Tid};
use crate::error::Result;
use crate::format::DeviceBlock;

/// Log blocks that are given room ahead of the head by a commit that lacks them.
const AHEAD: u32 = 512;

/// Log blocks that have zeros ahead of a head that has moved, at least and at most: as many as the
/// log has used, so that a lane of few commits writes few zeros.
const ZEROS: std::ops::RangeInclusive<u32> = 64..=2048;

/// Blocks that the committer writes zeros to at a time: a sync that falls together with it waits
/// for 256 KiB more. The host's own journal has a commit to make with the next sync after each, for
/// blocks that were only reserved: the fewer the better.
const AHEAD_PART: u32 = 64;

const _: () = assert!(AHEAD_PART <= *ZEROS.start(), "no more than is wanted ahead");

/// What the committer does behind `zeroed`, without the log's lock.
#[derive(Default)]
pub(super) struct Ahead {
    part: Mutex<Part>,
    /// It ended.
    ended: Condvar,
}

/// Log blocks that the committer writes zeros to, from the first on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Part {
    #[default]
    None,
    /// They may be written with zeros at any moment: nobody else writes there.
    Begun,
    /// So many are written.
    Ended(u32, u32),
}

impl Ahead {
    fn begin(&self) {
        *self.part.lock() = Part::Begun;
    }

    fn end(&self, start: u32, count: u32) {
        *self.part.lock() = Part::Ended(start, count);
        self.ended.notify_all();
    }

    /// Waits until nothing is under way. What has ended, once.
    fn settle(&self) -> Option<(u32, u32)> {
        let mut part = self.part.lock();
        while *part == Part::Begun {
            part = self.ended.wait(part);
        }
        match std::mem::take(&mut *part) {
            Part::Ended(start, count) => Some((start, count)),
            _ => None,
        }
    }
}

/// Blocks of the spare part, at most; also an eighth of the log.
pub(super) const SPARE_MAX: u32 = 2048;

/// Blocks that are taken from the spare part at a time.
pub(super) const LENT: u32 = 64;

/// Homes that are given room at a time: 256 KiB of blocks of 4 KiB.
const RESERVED: u64 = 64;

/// Log blocks that a transaction takes: its own, a descriptor for some 250 of them, and the commit
/// block.
pub(super) fn log_blocks(blocks: usize) -> usize {
    blocks + blocks / 200 + 5
}

impl Journal {
    /// Log blocks that one transaction can take, at most.
    fn most(&self) -> u32 {
        log_blocks(self.blocks_max + super::RUNNING_OVERHEAD + 8) as u32
    }

    fn spare(&self, log: &Log) -> u32 {
        SPARE_MAX.min(log.size() / 8)
    }

    /// Sets room aside when the log is opened. A medium without room for it gives what it has.
    pub(super) fn set_aside(&self, log: &mut Log) -> Result<()> {
        let end = log.superblock.first() + self.most() + self.spare(log);
        self.back_log(log, end).or_else(|why| if why.is_no_space() { Ok(()) } else { Err(why) })
    }

    /// Has the log take room up to block `end`, as far as there is a log.
    fn back_log(&self, log: &mut Log, end: u32) -> Result<()> {
        self.settle_ahead(log);
        let end = end.min(log.superblock.end());
        while log.backed < end {
            let wanted = self.map.run(log.backed, end - log.backed).into();
            let backed = self.io.reserve(self.map.device_block(log.backed), wanted, wanted);
            log.backed += backed.inspect_err(|_| self.note_short(log))? as u32;
        }
        Ok(())
    }

    /// Waits for the zeros that are on their way, and moves on behind them.
    fn settle_ahead(&self, log: &mut Log) {
        if let Some((start, count)) = self.ahead.settle()
            && start == log.zeroed
        {
            log.zeroed += count;
            log.backed = log.backed.max(log.zeroed);
        }
    }

    /// Blocks that are to have zeros: the first behind them.
    fn zeros_wanted(log: &Log) -> u32 {
        let ahead = match log.head - log.superblock.first() {
            0 => 0,
            used => used.clamp(*ZEROS.start(), *ZEROS.end()),
        };
        (log.head + ahead).min(log.superblock.end())
    }

    /// Writes zeros to a few more log blocks while commits go on. How many are left to do: 0,
    /// nothing.
    fn zero_part(&self) -> Result<u32> {
        let mut log = self.log.lock();
        self.settle_ahead(&mut log);
        let start = log.zeroed;
        let left = Self::zeros_wanted(&log).saturating_sub(start);
        if left == 0 || self.is_short() {
            return Ok(0);
        }
        let most = self.map.run(start, log.superblock.end() - start);
        let home = self.map.device_block(start);
        self.ahead.begin();
        drop(log);
        let zeroed = self.io.back(home, most.min(AHEAD_PART).into(), most.into());
        self.ahead.end(start, *zeroed.as_ref().unwrap_or(&0) as u32);
        match zeroed {
            Ok(zeroed) => Ok(left.saturating_sub(zeroed as u32)),
            // The commit that needs the room finds out, and says so.
            Err(polylane_block::Error::NoSpace) => Ok(0),
            Err(why) => Err(why.into()),
        }
    }

    /// Asks the committer for zeros where half of those that are wanted ahead of the head are used
    /// up.
    fn ask_for_zeros(&self, log: &Log) {
        let wanted = Self::zeros_wanted(log) - log.head;
        let is_low = log.zeroed.saturating_sub(log.head) < wanted / 2;
        if is_low && log.zeroed < log.superblock.end() && !self.is_short() {
            let mut progress = self.progress.lock();
            if !std::mem::replace(&mut progress.zeroing, true) {
                self.wish.notify_all();
            }
        }
    }

    /// The next `needed` blocks from the head on are written to: no zeros come there any more.
    fn claim(&self, log: &mut Log, needed: u32) {
        let end = (log.head + needed).min(log.superblock.end());
        if log.zeroed < end {
            self.settle_ahead(log);
            log.zeroed = log.zeroed.max(end);
        }
    }

    /// The medium had no room for something.
    fn note_short(&self, log: &Log) {
        self.short.store(true, Ordering::Release);
        let left = log.backed - log.superblock.first();
        let tight = left < self.most() + self.spare(log) / 2;
        self.tight.store(tight, Ordering::Release);
    }

    /// Whether the medium has no room to speak of: freed blocks are to go back to it at once.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Whether nothing new may be made: what room is set aside is needed to remove things.
    pub fn is_tight(&self, client: &dyn Client) -> bool {
        self.tight.load(Ordering::Acquire) || self.unlogged && self.is_spare_needed(client)
    }

    /// Writes zeros to the blocks of the log that were never written on the medium, all of them.
    ///
    /// # Errors
    /// The device's.
    pub fn zero_all(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.settle_ahead(&mut log);
        let end = if self.unlogged { 0 } else { log.superblock.end() };
        while log.zeroed < end {
            let most = self.map.run(log.zeroed, end - log.zeroed).into();
            let zeroed = self.io.back(self.map.device_block(log.zeroed), most, most);
            log.zeroed += zeroed.inspect_err(|_| self.note_short(&log))? as u32;
            log.backed = log.backed.max(log.zeroed);
        }
        Ok(())
    }

    /// Gives the log back what was lent of it, and writes zeros ahead of its head. Without a log,
    /// sets blocks aside.
    ///
    /// # Errors
    /// The device's.
    pub fn back_ahead(&self, client: &dyn Client) -> Result<()> {
        if self.unlogged {
            return self.set_blocks_aside(client);
        }
        let mut log = self.log.lock();
        let least = log.superblock.first() + self.most() + self.spare(&log);
        match self.back_log(&mut log, least) {
            Err(why) if why.is_no_space() => return Ok(()),
            Ok(()) => {
                self.short.store(false, Ordering::Release);
                self.tight.store(false, Ordering::Release);
            }
            failed => return failed,
        }
        drop(log);
        while !self.is_stopped() && self.zero_part()? > 0 {}
        Ok(())
    }

    /// Before a transaction is written to the log: room there, and for what it carries.
    pub(super) fn prepare(&self, log: &mut Log, closed: &Closed) -> Result<()> {
        let blocks = closed.blocks.len() + closed.revoked.len() / REVOKES_PER_BLOCK + 8;
        self.make_room(log, blocks)?;
        let needed = log_blocks(blocks) as u32;
        if !self.reaches(log, needed) {
            let ahead = self.back_log(log, log.head + needed + AHEAD);
            if !self.reaches(log, needed) {
                ahead?;
                self.restart(log, closed.tid)?;
            }
        }
        if !self.reaches(log, needed) {
            return Err(polylane_block::Error::NoSpace.into());
        }
        self.claim(log, needed);
        self.ask_for_zeros(log);
        let lend = |log: &mut Log| self.lend_spare(log, needed);
        let unless_full = |done: Result<()>| match done {
            Err(why) if why.is_no_space() => Ok(false),
            done => done.map(|()| true),
        };
        // Where there is no room either they wait in the log.
        if !unless_full(self.back_homes(log, closed, &lend))?
            && unless_full(self.restart(log, closed.tid))?
        {
            unless_full(self.back_homes(log, closed, &lend))?;
        }
        Ok(())
    }

    /// Whether so many blocks from the head on take room.
    fn reaches(&self, log: &Log, needed: u32) -> bool {
        let end = log.superblock.end();
        log.backed == end || log.head + needed <= log.backed
    }

    /// Has the log, emptied, begin again at its first block with transaction `tid`.
    fn restart(&self, log: &mut Log, tid: Tid) -> Result<()> {
        if !log.flying.is_empty() {
            return Err(polylane_block::Error::NoSpace.into());
        }
        self.checkpoint_locked(log)?;
        let first = log.superblock.first();
        (log.head, log.tail) = (first, first);
        log.superblock.set_tail(tid.sequence(), first);
        self.write_superblock(log)
    }

    /// Has the homes of what a transaction carries take room, if need be what `lend` gives back to
    /// the medium: it says whether it had any.
    ///
    /// # Errors
    /// `NoSpace`, where a part has room; the device's.
    pub(super) fn back_homes(
        &self,
        log: &mut Log,
        closed: &Closed,
        lend: &dyn Fn(&mut Log) -> bool,
    ) -> Result<()> {
        let mut homes = closed.blocks.iter().map(|block| block.home).peekable();
        while let Some(home) = homes.next() {
            if log.homes.has(home) {
                continue;
            }
            let mut count = 1;
            while homes.next_if(|next| next.0 == home.0 + count).is_some() {
                count += 1;
            }
            let mut at = home;
            while at.0 < home.0 + count {
                match self.back_home(log, at, home.0 + count - at.0) {
                    Ok(backed) => at.0 += backed,
                    Err(polylane_block::Error::NoSpace) if lend(log) => {}
                    Err(why) => return Err(why.into()),
                }
            }
        }
        Ok(())
    }

    /// Has the first of `left` homes from `at` on take room. How many.
    fn back_home(
        &self,
        log: &mut Log,
        at: DeviceBlock,
        left: u64,
    ) -> std::result::Result<u64, polylane_block::Error> {
        let backed = match self.is_short() {
            true => self.io.back(at, left, left),
            // What the next transactions carry is near.
            false => self.io.reserve(at, left, left.max(RESERVED - at.0 % RESERVED)),
        }?;
        (at.0..at.0 + backed).for_each(|home| log.homes.add(DeviceBlock(home)));
        Ok(backed)
    }

    /// Has the homes of data that is about to be logged take room, which is not the log's.
    ///
    /// # Errors
    /// `NoSpace`, where a part may have room; the device's.
    pub fn reserve_homes(
        &self,
        start: DeviceBlock,
        count: u32,
    ) -> std::result::Result<(), polylane_block::Error> {
        let mut log = self.log.lock();
        let (mut at, end) = (start, start.0 + u64::from(count));
        while at.0 < end {
            at.0 += match log.homes.has(at) {
                true => 1,
                false => self.back_home(&mut log, at, end - at.0)?,
            };
        }
        Ok(())
    }

    /// Blocks that are free were given back to the medium: they take no room.
    pub fn lost_room(&self, start: DeviceBlock, count: u32) {
        self.log.lock().homes.lose(Freed { start, count });
    }

    /// Gives some of the log's room back to the medium, for homes. False: there is none to spare.
    fn lend_spare(&self, log: &mut Log, needed: u32) -> bool {
        self.settle_ahead(log);
        let least = (log.head + needed).max(log.superblock.first() + self.most());
        let lent = log.backed.saturating_sub(least).min(LENT);
        let start = log.backed - lent;
        // Behind a head that came round lies what the log still needs.
        let is_free = log.tail <= log.head;
        if lent == 0 || !is_free || self.map.run(start, lent) < lent {
            return false;
        }
        let given = self.io.discard(self.map.device_block(start), lent.into()).is_ok();
        if given {
            (log.backed, log.zeroed) = (start, log.zeroed.min(start));
            log.lapped = false;
        }
        self.note_short(log);
        given
    }
}
