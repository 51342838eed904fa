//! A volume in the process that serves it, the service of a pool or the engine of an attachment: a
//! device that stands still for a copy, and goes on over another stack of files.
//!
//! # Invariants
//!
//! - It is frozen for [`FROZEN_TIME_MAX`] at most, whatever becomes of whoever asked for it: the
//!   process looks at [`Held::time_left`] whenever it waits, and calls [`Held::thaw`].
//! - While it is frozen this process does nothing that needs the volume.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_block::cache::Cached;
use polylane_block::file::{Files, Totals, Way};
use polylane_block::freeze::{Freezable, Frozen};
use polylane_block::map::Unit;
use polylane_block::qos::governed::Governor;
use serde::{Deserialize, Serialize};

use super::cache::{self, CacheSpec};
use super::pool_file::Parts;
use super::stack::{Assembled, Own, Stack};
use super::translation::Translation;
use crate::failure::{Failure, Result, say};

/// Longest time that a volume stands still.
pub const FROZEN_TIME_MAX: Duration = Duration::from_secs(30);

/// How long requests under way may take to be answered before it stands still.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// How long threads may take to let go of a volume that is closed.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(5);

/// What the process that holds a volume's files for good asks of the one that serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Settle what is on the volume, make it durable, stand still.
    Freeze,
    /// Go on; it is a failure not to stand still any more.
    Thaw,
    /// Go on over the files that come with it: three descriptors each, the volume's own first.
    Exchange,
    /// Go on over these files of its bases, base below base: they have the same content as those
    /// before. It need not stand still.
    Rebase,
}

/// The answer to an [`Ask`]: nothing, or one line that says why it could not be done.
pub type Answer = Option<String>;

/// A volume that is served.
pub struct Held {
    device: Arc<Freezable>,
    now: Assembled,
    unit: Arc<Unit>,
    cache: CacheSpec,
    translation: Translation,
    governor: Option<Arc<Governor>>,
    frozen: Option<Frozen>,
    /// What was counted over former stacks.
    carried: Totals,
    freezes: u64,
    longest: Duration,
}

impl Held {
    /// Makes a device of a volume's files; what goes on to them is charged to `governor`'s lane.
    pub fn open(
        name: &str,
        parts: Parts,
        cache: CacheSpec,
        translation: Translation,
        governor: Option<Arc<Governor>>,
    ) -> Result<Held> {
        let unit = Unit::start(&translation.unit());
        let unit = unit.map_err(|error| Failure::because(name, "start its translation", error))?;
        let engine = (unit.clone(), translation.engine());
        let now = Stack::assemble(parts, Way::Ring, Some(engine), cache, governor.as_ref())?;
        let device = Freezable::new(now.device.clone());
        let (carried, longest) = (Totals::default(), Duration::ZERO);
        Ok(Held {
            device,
            now,
            unit,
            cache,
            translation,
            governor,
            frozen: None,
            carried,
            freezes: 0,
            longest,
        })
    }

    /// The device, the same one whatever lies under it.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// What its own bytes are on, without what the engine on it knows.
    pub fn file(&self) -> Arc<dyn BlockDevice> {
        self.now.own.medium()
    }

    /// Lets go of it for good. An image in a cluster is closed on return, so that the next process
    /// finds it free.
    pub fn close(self) {
        let remote = match &self.now.own {
            Own::Remote(image) => Some(image.clone()),
            Own::File(_) | Own::Bypass(_) => None,
        };
        drop(self);
        let Some(remote) = remote else { return };
        let began = Instant::now();
        // A thread that ends may still have it.
        while Arc::strong_count(&remote) > 1 && began.elapsed() < LET_GO_TIME_MAX {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its cache, if it has one.
    pub fn cache(&self) -> Option<&Arc<Cached>> {
        self.now.cache.as_ref()
    }

    /// Takes the new size of its file in.
    pub fn grow(&self) -> polylane_base::Result<()> {
        let buffered = self.now.buffered.as_ref().map_or(Ok(()), |file| file.grow());
        let result = self.now.own.grow().and(buffered);
        self.device.grown();
        result
    }

    /// How long it may stand still from now on; `None` when it does not.
    pub fn time_left(&self) -> Option<Duration> {
        self.frozen.as_ref().map(|frozen| FROZEN_TIME_MAX.saturating_sub(frozen.elapsed()))
    }

    /// Lets requests pass again; whether they did not.
    pub fn thaw(&mut self) -> bool {
        let frozen = self.frozen.take();
        if let Some(frozen) = &frozen {
            self.now.engine.resume();
            self.longest = self.longest.max(frozen.elapsed());
        }
        frozen.is_some()
    }

    /// Does what is asked; `settle` brings whatever is on the volume into order before.
    pub fn answer(
        &mut self,
        ask: Ask,
        fds: Vec<OwnedFd>,
        settle: impl FnOnce() -> Result<()>,
    ) -> Answer {
        // A volume stands still as soon as the device lets it, not as its share does.
        let _hurry = self.governor.as_ref().map(Governor::hurry);
        let done = match ask {
            Ask::Freeze => settle().and_then(|()| self.freeze()),
            Ask::Thaw if self.thaw() => Ok(()),
            Ask::Thaw => Err(too_late()),
            Ask::Exchange => self.exchange(fds),
            Ask::Rebase => self.rebase(fds),
        };
        done.err().map(|failure| failure.line)
    }

    fn freeze(&mut self) -> Result<()> {
        let failed =
            |error| Failure::failed(format!("volume: cannot be made to stand still: {error}"));
        self.frozen = Some(self.device.freeze(DRAIN_TIME_MAX).map_err(failed)?);
        // Its file may be a base from now on, which nobody but who merges snapshots may change.
        self.now.engine.pause();
        self.freezes += 1;
        Ok(())
    }

    fn exchange(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        if self.frozen.is_none() {
            return Err(too_late());
        }
        let start = Instant::now();
        let engine = (self.unit.clone(), self.translation.engine());
        let parts = Parts { files: files_of(fds), bypass: None, remote: None };
        let next =
            Stack::assemble(parts, Way::Ring, Some(engine), self.cache, self.governor.as_ref())?;
        if let (Some(old), Some(new)) = (self.cache(), &next.cache) {
            new.remember(&old.found());
        }
        let before = self.totals();
        if let Some(frozen) = &self.frozen {
            frozen.replace(next.device.clone()).map_err(|error| {
                Failure::failed(format!("volume: its new files do not take its place: {error}"))
            })?;
        }
        (self.now, self.carried) = (next, before);
        self.thaw();
        if start.elapsed() > DRAIN_TIME_MAX {
            say(format_args!("volume: its new files took {:?} to open", start.elapsed()));
        }
        Ok(())
    }

    fn rebase(&mut self, fds: Vec<OwnedFd>) -> Result<()> {
        let refuse = |why: &str| Failure::failed(format!("volume: {why}"));
        let base = self.now.base.as_ref().ok_or_else(|| refuse("is on no base"))?;
        let below = Stack::below(files_of(fds), Way::Ring, self.cache)?;
        let below = below.ok_or_else(|| refuse("its bases came without their files"))?;
        base.replace(below).map_err(|error| {
            refuse(&format!("its new bases do not take the place of the former: {error}"))
        })
    }

    /// What its own file did, and whether it stopped.
    fn totals(&self) -> Totals {
        let buffered = self.now.buffered.as_ref().map(|file| file.totals()).unwrap_or_default();
        let mut totals = self.now.own.totals();
        totals.add(&buffered);
        totals.add(&self.carried);
        totals
    }

    /// Counters as JSON.
    pub fn stats(&self) -> serde_json::Value {
        let (totals, engine) = (self.totals(), self.now.engine.totals());
        serde_json::json!({
            "size_bytes": self.device.sector_count() * 512,
            "reads": totals.reads,
            "read_bytes": totals.read_bytes,
            "writes": totals.writes,
            "written_bytes": totals.written_bytes,
            "durable_writes": totals.durable_writes,
            "flushes": totals.flushes,
            "zeroings": totals.zeroings,
            "failed": totals.failed,
            "translations": engine.translations,
            "chunks_made_ahead": engine.made_ahead,
            "translation": self.translation.describe(),
            "io_uring": totals.ring,
            "direct_io": totals.direct,
            "durable_writes_refused": totals.refuses_durable,
            "bypass": self.now.own.is_bypassing(),
            "stopped": self.now.own.is_stopped(),
            "copies": self.freezes,
            "longest_freeze_us": u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX),
            "cache": self.now.cache.as_deref().map(cache::stats),
        })
    }
}

fn too_late() -> Failure {
    Failure::failed("volume: does not stand still any more: the copy took too long")
}

/// Descriptors by three: for data, the same without O_DIRECT, with the lock.
pub fn files_of(fds: Vec<OwnedFd>) -> Vec<Files> {
    let (mut fds, mut files) = (fds.into_iter(), Vec::new());
    while let (Some(io), Some(plain), Some(lock)) = (fds.next(), fds.next(), fds.next()) {
        files.push(Files { io, plain, lock });
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_block::Sector;
    use polylane_block::image::{Draft, DurableDraft};
    use polylane_block::qos::lane::Lane;
    use polylane_block::qos::page::{Mapped, PAGE_BYTES, counters};
    use polylane_block::wait::Waiter;
    use polylane_sys::Region;
    use polylane_sys::buffer::Buffer;

    #[test]
    fn a_thaw_that_comes_too_late_is_a_failure_and_files_of_nothing_are_none() {
        let dir = tempfile::tempdir().expect("dir");
        let files = Draft::new(&dir.path().join("v"), 1 << 20)
            .and_then(Draft::durable)
            .and_then(DurableDraft::publish);
        let files = vec![files.expect("volume")];
        let held = Held::open(
            "v",
            Parts { files, bypass: None, remote: None },
            CacheSpec::default(),
            Translation::default(),
            None,
        );
        let mut held = held.expect("open");
        let settled = || Ok(());
        assert_eq!(held.answer(Ask::Freeze, vec![], settled), None);
        let refused = held.answer(Ask::Freeze, vec![], settled).expect("twice");
        assert!(refused.contains("frozen already"), "{refused}");
        assert!(held.time_left().is_some_and(|left| left <= FROZEN_TIME_MAX));
        let refused = held.answer(Ask::Exchange, vec![], settled).expect("no files");
        assert!(refused.contains("no file was handed down"), "{refused}");
        assert_eq!(held.answer(Ask::Thaw, vec![], settled), None);
        let late = held.answer(Ask::Thaw, vec![], settled).expect("thawed");
        assert!(late.contains("too long"), "{late}");
        let unsettled = || Err(Failure::failed("lane: full"));
        assert_eq!(held.answer(Ask::Freeze, vec![], unsettled).as_deref(), Some("lane: full"));
        assert_eq!(held.time_left(), None);
        let waiter = Waiter::new(held.device());
        waiter.write(Sector(0), Buffer::zeroed(4096), false).expect("write");
        assert_eq!(held.stats()["copies"], 1);
        assert_eq!(held.stats()["writes"], 1);
    }

    /// Reads one place `times`: how many reads the lane was charged for.
    fn charged_reads(cache: &str, times: usize) -> u64 {
        let dir = tempfile::tempdir().expect("dir");
        let files = Draft::new(&dir.path().join("v"), 1 << 20)
            .and_then(Draft::durable)
            .and_then(DurableDraft::publish);
        let parts = Parts { files: vec![files.expect("volume")], bypass: None, remote: None };
        let spec = serde_json::json!({ "mode": cache, "store": "own" });
        let spec: CacheSpec = serde_json::from_value(spec).expect("a cache");
        let governor = Governor::new();
        let page = Region::create("test-lane", PAGE_BYTES).expect("page").0;
        governor.set(Some(Lane::new(Mapped(page), None)));
        let held = Held::open("v", parts, spec, Translation::default(), Some(governor.clone()));
        let waiter = Waiter::new(held.expect("open").device());
        waiter.write(Sector(0), Buffer::zeroed(4096), false).expect("write");
        for _ in 0..times {
            waiter.read(Sector(0), 4096).expect("read");
        }
        governor.total(counters::READS)
    }

    #[test]
    fn what_the_own_cache_finds_is_not_charged() {
        assert_eq!(charged_reads("none", 3), 3);
        assert_eq!(charged_reads("writethrough", 3), 0);
        assert_eq!(charged_reads("directsync", 3), 3);
    }
}
