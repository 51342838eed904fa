//! The page cache above: writes are delayed, gathered and written back by a thread of its own, and
//! blocks are found only then.
//!
//! No single state of the tree is legal here, since each file is written back when it is. So files
//! are judged one by one, byte by byte: what is found of a file that was never renamed must, in
//! each byte, be what that byte was at the last sync of the file before the cut or at any time
//! since; its size must lie between those it had. A file that is replaced (write another, sync it,
//! rename it over) must be a whole version, none older than the last one whose directory was
//! synced. So it is with a cache of the lane's own between the VFS and ext4.

use std::sync::Arc;
use std::time::Duration;

use polylane_base::TestClock;
use polylane_base::rng::Rng;
use polylane_ext4::{DataMode, Ext4};
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::{Crash, Event, Image, SimDisk, SimOptions};
use polylane_testkit::subject::small_options;
use polylane_vfs::cached::{Cached as FileCache, Mode, Settings};
use polylane_vfs::fs::{FileSystem, SetAttr};
use polylane_vfs::{Cred, OpCtx, OpenFile, Options, Vfs};

use super::states::{FEATURES, format, keep, open_with, reopen_with, tear};
use super::tree::Tree;
use super::{Limit, have_tools, judge};

/// Files that are written in place, and files that are replaced.
const WRITTEN: usize = 4;
const REPLACED: usize = 2;
/// Largest file.
const BYTES_MAX: u64 = 24 * 4096;
/// Small, so that pages are evicted and writers wait.
const CACHE_BYTES: u64 = 96 * 4096;
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;
const O_TRUNC: i32 = 0o1000;

/// What a file was after a change.
struct Version {
    /// Events before the change began, and before it was over.
    start: usize,
    content: Vec<u8>,
}

/// A file's life.
#[derive(Default)]
struct Life {
    versions: Vec<Version>,
    /// Events before a sync was over, and the version that it promised.
    synced: Vec<(usize, usize)>,
}

impl Life {
    /// The versions that a cut after `position` events may show.
    fn window(&self, position: usize) -> &[Version] {
        let promised = self.synced.iter().filter(|(end, _)| *end <= position);
        let first = promised.map(|(_, version)| *version).max().unwrap_or(0);
        let begun = self.versions.iter().take_while(|version| version.start < position).count();
        &self.versions[first..begun.max(first + 1)]
    }

    /// Whether `found` is a mixture of the window's versions.
    fn judge_written(&self, found: &[u8], position: usize) -> Result<(), String> {
        let window = self.window(position);
        let sizes = window.iter().map(|version| version.content.len());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{} bytes, not {least}..={most}", found.len()));
        }
        let legal = |at: usize| {
            let was = |version: &Version| version.content.get(at).copied().unwrap_or(0);
            window.iter().any(|version| was(version) == found[at])
        };
        match (0..found.len()).find(|at| !legal(*at)) {
            Some(at) => Err(format!("byte {at} is {}, of {} versions", found[at], window.len())),
            None => Ok(()),
        }
    }

    /// Whether `found` is one of the window's versions.
    fn judge_replaced(&self, found: &[u8], position: usize) -> Result<(), String> {
        let window = self.window(position);
        match window.iter().any(|version| version.content == found) {
            true => Ok(()),
            false => Err(format!("no whole version of {}: {} bytes", window.len(), found.len())),
        }
    }
}

/// A run: the cache, what is in the files, and what was promised.
struct Cached<'a> {
    disk: &'a SimDisk,
    vfs: Arc<Vfs>,
    rng: Rng,
    written: Vec<Life>,
    replaced: Vec<Life>,
}

fn written_name(index: usize) -> String {
    format!("w{index}")
}

fn replaced_name(index: usize) -> String {
    format!("r{index}")
}

impl Cached<'_> {
    fn open(&self, name: &str, flags: i32) -> Arc<OpenFile> {
        let (cred, root) = (Cred::root(), self.vfs.root());
        let opened =
            self.vfs.open_path(&OpCtx::as_user(&cred), &root, name.as_bytes(), flags, 0o644, 0);
        opened.unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    /// The files, empty and durable.
    fn begin(&mut self) {
        (0..WRITTEN).for_each(|n| drop(self.open(&written_name(n), O_RDWR | O_CREAT)));
        (0..REPLACED).for_each(|n| drop(self.open(&replaced_name(n), O_RDWR | O_CREAT)));
        self.vfs.sync(&OpCtx::service()).expect("syncs");
        let end = self.disk.position();
        let born = || Life {
            versions: vec![Version { start: 0, content: Vec::new() }],
            synced: vec![(end, 0)],
        };
        self.written = (0..WRITTEN).map(|_| born()).collect();
        self.replaced = (0..REPLACED).map(|_| born()).collect();
    }

    fn step(&mut self) {
        let index = self.rng.below(WRITTEN as u64) as usize;
        match self.rng.below(100) {
            0..55 => self.write(index),
            55..65 => self.truncate(index),
            65..85 => self.sync_file(index),
            85..95 => self.replace(),
            95..98 => self.sync_all(),
            // The flusher gets its turn.
            _ => std::thread::sleep(Duration::from_millis(3)),
        }
    }

    fn write(&mut self, index: usize) {
        let offset = self.rng.below(BYTES_MAX - 1);
        let most = [600, 9000, 60_000][self.rng.below(3) as usize];
        let len = 1 + self.rng.below(most.min(BYTES_MAX - offset));
        let fill = 1 + self.rng.below(200) as u8;
        let start = self.disk.position();
        let file = self.open(&written_name(index), O_RDWR);
        let bytes = vec![fill; len as usize];
        let done = file.write(&OpCtx::service(), Some(offset), &mut &bytes[..]).expect("room");
        assert_eq!(done.count, bytes.len());
        let mut content = self.latest(index);
        let end = (offset + len) as usize;
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].fill(fill);
        self.written[index].versions.push(Version { start, content });
    }

    fn truncate(&mut self, index: usize) {
        let size = self.rng.below(BYTES_MAX);
        let start = self.disk.position();
        let file = self.open(&written_name(index), O_RDWR);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::service(), file.node(), &set).expect("cut");
        let mut content = self.latest(index);
        content.resize(size as usize, 0);
        self.written[index].versions.push(Version { start, content });
    }

    fn latest(&self, index: usize) -> Vec<u8> {
        let last = self.written[index].versions.last();
        last.map(|version| version.content.clone()).unwrap_or_default()
    }

    fn sync_file(&mut self, index: usize) {
        let version = self.written[index].versions.len() - 1;
        let data_only = self.rng.percent(50);
        self.open(&written_name(index), O_RDWR).fsync(&OpCtx::service(), data_only).expect("syncs");
        let end = self.disk.position();
        self.written[index].synced.push((end, version));
    }

    fn replace(&mut self) {
        let index = self.rng.below(REPLACED as u64) as usize;
        let size = self.rng.below(BYTES_MAX) as usize;
        let fill = 1 + self.rng.below(200) as u8;
        let content: Vec<u8> =
            (0..size).map(|at| fill.wrapping_add((at / 4096) as u8).max(1)).collect();
        let start = self.disk.position();
        let file = self.open("new", O_RDWR | O_CREAT | O_TRUNC);
        file.write(&OpCtx::service(), Some(0), &mut &content[..]).expect("room");
        file.fsync(&OpCtx::service(), false).expect("syncs");
        let (cred, root) = (Cred::root(), self.vfs.root());
        let name = replaced_name(index);
        self.vfs
            .rename(&OpCtx::as_user(&cred), &root, b"new", &root, name.as_bytes(), 0)
            .expect("renames");
        self.replaced[index].versions.push(Version { start, content });
        if self.rng.percent(40) {
            let dir = self.vfs.open(&OpCtx::as_user(&cred), &root, 0).expect("opens");
            dir.fsync(&OpCtx::service(), false).expect("syncs");
            let end = self.disk.position();
            for life in &mut self.replaced {
                life.synced.push((end, life.versions.len() - 1));
            }
        }
    }

    fn sync_all(&mut self) {
        self.vfs.sync(&OpCtx::service()).expect("syncs");
        let end = self.disk.position();
        for life in self.written.iter_mut().chain(&mut self.replaced) {
            life.synced.push((end, life.versions.len() - 1));
        }
    }
}

/// A run that was recorded, with what its files went through.
struct Recorded {
    events: Vec<Event>,
    written: Vec<Life>,
    replaced: Vec<Life>,
}

/// A cache of the lane's own over `fs`, as small as the VFS' would be.
fn in_a_cache(fs: Arc<Ext4>, mode: Option<Mode>, options: &Options) -> Arc<dyn FileSystem> {
    let Some(mode) = mode else { return fs };
    let settings = Settings {
        mode,
        bytes_limit: options.cache_bytes_limit,
        dirty_bytes_limit: options.dirty_bytes_limit,
        flush_interval: options.flush_interval,
        clock: options.clock.clone(),
    };
    Arc::new(FileCache::new(fs, settings).expect("a root"))
}

fn record(base: &Image, seed: u64, steps: usize, mode: Option<Mode>) -> Recorded {
    let delay = (seed % 2 == 1).then_some(seed);
    let disk = SimDisk::new(base.clone(), SimOptions { record: true, delay, ..Default::default() });
    let clock = Arc::new(TestClock::default());
    let interval = Duration::from_millis(2 + seed % 7);
    let fs: Arc<Ext4> =
        Arc::new(open_with(&disk, clock.clone(), (interval, DataMode::Ordered)).expect("opens"));
    let mut options = small_options(clock, CACHE_BYTES);
    options.flush_interval = Duration::from_millis(1 + seed % 5);
    let above = in_a_cache(fs.clone(), mode, &options);
    let vfs = Vfs::new(above, options).expect("a cache");
    let (rng, written, replaced) = (Rng::new(seed), Vec::new(), Vec::new());
    let mut run = Cached { disk: &disk, vfs, rng, written, replaced };
    run.begin();
    (0..steps).for_each(|_| run.step());
    run.sync_all();
    let Cached { vfs, written, replaced, .. } = run;
    drop(vfs);
    fs.close().expect("closes");
    judge::clean(&disk.image()).expect("clean after an orderly close");
    Recorded { events: disk.events(), written, replaced }
}

impl Recorded {
    fn judge(&self, found: &Tree, position: usize) -> Result<(), String> {
        // Before the files were durable none of this holds.
        let begun = self.written.first().is_some_and(|life| life.synced[0].0 <= position);
        if !begun {
            return Ok(());
        }
        let content = |name: &str| -> Result<Arc<Vec<u8>>, String> {
            found.nodes.get(name).map(|node| node.data.clone()).ok_or(format!("{name} is gone"))
        };
        for (index, life) in self.written.iter().enumerate() {
            let name = written_name(index);
            life.judge_written(&content(&name)?, position)
                .map_err(|why| format!("{name}: {why}"))?;
        }
        for (index, life) in self.replaced.iter().enumerate() {
            let name = replaced_name(index);
            life.judge_replaced(&content(&name)?, position)
                .map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }
}

fn explore(
    base: &Image,
    seed: u64,
    (steps, cuts): (usize, u64),
    mode: Option<Mode>,
) -> (u64, Result<(), String>) {
    let run = record(base, seed, steps, mode);
    let (mut crash, mut rng, mut states) = (Crash::new(base, &run.events), Rng::new(seed), 0);
    while crash.advance().is_some() {
        if rng.below(run.events.len() as u64) >= cuts {
            continue;
        }
        let position = crash.position();
        for fates in crash.choices(&mut rng, 1, 2) {
            let image = crash.image(&tear(false), |n| fates[n]);
            let fsck = rng.below(if is_full() { 5 } else { 30 }) == 0;
            let found = reopen_with(&image, fsck, &|found| run.judge(found, position));
            let found = found.and_then(|_| match fsck {
                true => judge::recovered(&image).map(drop),
                false => Ok(()),
            });
            states += 1;
            if let Err(why) = found {
                keep(&image);
                return (states, Err(format!("{why}\nafter event {position}: {fates:?}")));
            }
        }
    }
    (states, Ok(()))
}

#[test]
fn delayed_writes_keep_their_promises() {
    keep_their_promises(&[None]);
}

#[test]
fn writes_in_a_cache_keep_their_promises() {
    keep_their_promises(&[Some(Mode::WriteBack), Some(Mode::WriteThrough)]);
}

/// Run by run with one mode after the other.
fn keep_their_promises(modes: &[Option<Mode>]) {
    if !have_tools() {
        return;
    }
    let bases = FEATURES.map(|features| format(features, &[]));
    let first = number("POLYLANE_CRASH_SEED", 1) << 20;
    let (runs, steps, cuts) = if is_full() { (2000, 250, 200) } else { (12, 120, 40) };
    let (mut states, mut done, limit) = (0, 0, Limit::list(runs));
    while !limit.ends_at(done) {
        limit.progress("page cache", done);
        let seed = first + done as u64;
        done += 1;
        let (base, mode) = (&bases[seed as usize % bases.len()], modes[done % modes.len()]);
        let (count, outcome) = explore(base, seed, (steps, cuts), mode);
        states += count;
        if let Err(why) = outcome {
            panic!("seed {seed}: {why}");
        }
    }
    println!("crash: page cache: runs: {}, {states} states", limit.told(0, done));
    assert!(states > 100);
}
