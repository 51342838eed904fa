//! Free blocks that take room on the medium though no file has them: what a file system without a
//! log gives back to a full medium, so that there is room for its metadata.
//!
//! They count as free, and are the last ones to be allocated.
//!
//! # Locking
//!
//! `aside → group`. Held across I/O, by threads that start no handle meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use polylane_base::Errno;
use polylane_base::sync::Mutex;

use super::{Allocator, Claim};
use crate::error::{Error, Result};
use crate::format::DeviceBlock;
use crate::journal::Freed;

/// Blocks that are set aside at a time: as many as are given back at a time.
const PIECE: u32 = 64;

/// Blocks that are set aside of a small file system, where they are no more than an eighth of it.
/// Of a larger one it is a fiftieth of its blocks, as many as only metadata may take.
const LEAST: u64 = 256;

/// See above.
#[derive(Default)]
pub(super) struct Aside {
    claims: Mutex<Vec<Claim>>,
    count: AtomicU32,
    /// Some were set aside once.
    used: AtomicBool,
}

impl Allocator {
    /// How many blocks are set aside.
    pub fn aside(&self) -> u32 {
        self.aside.count.load(Ordering::Acquire)
    }

    /// Sets blocks aside until there are `most`, or less in a small file system or a full one.
    ///
    /// # Errors
    /// `NoSpace`: the medium has no room for more; the device's, or a corrupt bitmap.
    pub fn set_aside(&self, most: u32) -> Result<()> {
        let blocks = self.geometry.block_count;
        let most = u64::from(most).min((blocks / 50).max(LEAST.min(blocks / 8))) as u32;
        let mut claims = self.aside.claims.lock();
        self.aside.used.store(true, Ordering::Release);
        while self.aside() < most && self.available_blocks() > 2 * u64::from(most) {
            // Far from where files begin, and in the same place each time.
            let goal = DeviceBlock(blocks - u64::from(most));
            let claim = match self.find(goal, PIECE.min(most - self.aside())) {
                // Another has claimed what was free a moment ago.
                Err(Error::Errno(Errno::ENOSPC)) => break,
                found => found?,
            };
            self.free_blocks.fetch_add(claim.count.into(), Ordering::AcqRel);
            if let Err(why) = self.reserve_room(&claim) {
                self.put_back(claim.start, claim.count);
                return Err(why);
            }
            self.aside.count.fetch_add(claim.count, Ordering::AcqRel);
            claims.push(claim);
        }
        Ok(())
    }

    fn reserve_room(&self, claim: &Claim) -> Result<()> {
        let mut at = 0;
        while at < claim.count {
            let (block, left) = (claim.start.0 + u64::from(at), u64::from(claim.count - at));
            at += self.io.reserve(DeviceBlock(block), left, left)? as u32;
        }
        Ok(())
    }

    /// Gives up to `most` of them back to the medium; they are free blocks like others then.
    pub fn give_aside(&self, most: u32) -> Option<Freed> {
        let mut claims = self.aside.claims.lock();
        let claim = claims.last_mut()?;
        let count = most.min(claim.count);
        claim.count -= count;
        let start = DeviceBlock(claim.start.0 + u64::from(claim.count));
        if claim.count == 0 {
            claims.pop();
        }
        self.aside.count.fetch_sub(count, Ordering::AcqRel);
        // What a medium keeps is no room for others: the next one is tried.
        let _ = self.io.discard(start, count.into());
        self.put_back(start, count);
        Some(Freed { start, count })
    }

    /// The file system is full: what is set aside can be allocated. Whether it is worth another
    /// look.
    pub(super) fn end_aside(&self) -> bool {
        if !self.aside.used.load(Ordering::Acquire) {
            return false;
        }
        let mut claims = self.aside.claims.lock();
        self.aside.count.store(0, Ordering::Release);
        claims.drain(..).for_each(|claim| self.put_back(claim.start, claim.count));
        true
    }
}
