//! What the journal asks of the file system around it.

use std::sync::atomic::Ordering;

use polylane_base::Time;
use rustc_hash::FxHashSet;

use crate::error::Result;
use crate::format::GroupIndex;
use crate::journal::{Client, Freed, Handle, Journal};
use crate::orphan;
use crate::volume::Volume;

impl Client for Volume {
    fn seal(&self, handle: &Handle<'_>, groups: &FxHashSet<GroupIndex>) -> Result<()> {
        orphan::seal(self, handle)?;
        self.alloc.seal(handle, groups);
        Ok(())
    }

    fn gives_back(&self) -> bool {
        // What is removed on a full medium makes room there at once.
        let is_short = || self.journal.as_ref().is_some_and(Journal::is_short);
        self.discard || is_short() || self.full.load(Ordering::Relaxed)
    }

    fn discard(&self, freed: &[Freed]) {
        let mut given = 0;
        for run in freed {
            // Advice: a device that cannot, or will not, keeps the blocks.
            if self.io.discard(run.start, run.count.into()).is_ok() {
                given += u64::from(run.count);
            }
        }
        self.found_room(given);
    }

    fn release(&self, freed: &[Freed]) {
        self.alloc.release(freed);
    }

    fn set_aside(&self, most: u32) -> Result<()> {
        self.alloc.set_aside(most)
    }

    fn give_aside(&self, most: u32) -> Option<Freed> {
        self.alloc.give_aside(most)
    }

    fn aside(&self) -> u32 {
        self.alloc.aside()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }
}
