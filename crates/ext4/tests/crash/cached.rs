//! The page cache above: writes are delayed, gathered and written back by a thread of its own, and
//! blocks are found only then.
//!
//! No single state of the tree is legal here, since each file is written back when it is. So files
//! are judged one by one, byte by byte: what is found of a file that was never renamed must, in
//! each byte, be what that byte was at the last sync of the file before the cut or at any time
//! since; its size must lie between those it had. A file that is replaced (write another, sync it,
//! rename it over) must be a whole version, none older than the last one whose directory was
//! synced. So it is with a cache of the lane's own between the VFS and ext4.
//!
//! It is done by one thread, and by several of different users that write, rename and sync the same
//! files, in every way that makes durable: fsync and fdatasync, whole or left to the thread that
//! commits, writes by `O_DSYNC` and `O_SYNC`, syncs of the directory and of all. A file is changed
//! by one thread at a time, so that its versions have an order; whoever syncs it does so beside.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Gid, TestClock, Uid};
use polylane_ext4::{DataMode, Ext4};
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::{Crash, Event, Image, SimDisk, SimOptions};
use polylane_testkit::subject::small_options;
use polylane_vfs::cached::{Cached as FileCache, Mode, Settings};
use polylane_vfs::fs::{FileSystem, SetAttr, SyncLead, SyncLeft};
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
const O_DSYNC: i32 = 0o10_000;
const O_SYNC: i32 = 0o4_010_000;
/// Who works, by turns.
const USERS: [u32; 3] = [0, 1000, 65_534];

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
    /// It has its other name.
    moved: bool,
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
    written: [Mutex<Life>; WRITTEN],
    replaced: [Mutex<Life>; REPLACED],
    /// Syncs that were left to another's commit.
    left: AtomicUsize,
}

/// A thread that works in it, as a user.
struct Actor<'a> {
    run: &'a Cached<'a>,
    number: usize,
    cred: Cred,
    rng: Rng,
}

fn written_name(index: usize, moved: bool) -> String {
    format!("{}{index}", if moved { "moved" } else { "w" })
}

fn replaced_name(index: usize) -> String {
    format!("r{index}")
}

fn user(number: usize) -> Cred {
    let id = USERS[number % USERS.len()];
    Cred { uid: Uid(id), gid: Gid(id), ..Cred::root() }
}

/// Its lock is held while the file is changed or opened, and never during a sync.
fn of(life: &Mutex<Life>) -> MutexGuard<'_, Life> {
    life.lock().expect("no panic")
}

impl Life {
    fn latest(&self) -> Vec<u8> {
        self.versions.last().map(|version| version.content.clone()).unwrap_or_default()
    }
}

impl<'a> Cached<'a> {
    /// The files, empty and durable, each of another user.
    fn new(disk: &'a SimDisk, vfs: Arc<Vfs>) -> Cached<'a> {
        let open_to_all = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        vfs.setattr(&OpCtx::service(), &vfs.root(), &open_to_all).expect("changed");
        let born = || Mutex::new(Life::default());
        let (written, replaced) = ([(); WRITTEN].map(|()| born()), [(); REPLACED].map(|()| born()));
        let run = Cached { disk, vfs, written, replaced, left: AtomicUsize::new(0) };
        let create = |n: usize, name: &str| drop(run.open(&user(n), name, O_RDWR | O_CREAT));
        (0..WRITTEN).for_each(|n| create(n, &written_name(n, false)));
        (0..REPLACED).for_each(|n| create(n, &replaced_name(n)));
        run.vfs.sync(&OpCtx::service()).expect("syncs");
        let end = disk.position();
        for life in run.written.iter().chain(&run.replaced) {
            let mut life = of(life);
            life.versions.push(Version { start: 0, content: Vec::new() });
            life.synced.push((end, 0));
        }
        run
    }

    fn open(&self, cred: &Cred, name: &str, flags: i32) -> Arc<OpenFile> {
        let root = self.vfs.root();
        let opened =
            self.vfs.open_path(&OpCtx::as_user(cred), &root, name.as_bytes(), flags, 0o666, 0);
        opened.unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    /// Does `sync`, and notes that it promised what `lives` were when it began.
    fn promised<'l>(&self, lives: impl Iterator<Item = &'l Mutex<Life>>, sync: impl FnOnce()) {
        let then: Vec<_> = lives.map(|life| (life, of(life).versions.len() - 1)).collect();
        sync();
        let end = self.disk.position();
        then.into_iter().for_each(|(life, version)| of(life).synced.push((end, version)));
    }

    fn sync_all(&self) {
        let all = self.written.iter().chain(&self.replaced);
        self.promised(all, || self.vfs.sync(&OpCtx::service()).expect("syncs"));
    }
}

impl Actor<'_> {
    fn step(&mut self) {
        let index = self.rng.below(WRITTEN as u64) as usize;
        match self.rng.below(100) {
            0..50 => self.write(index),
            50..58 => self.truncate(index),
            58..80 => self.sync_file(index),
            80..84 => self.rename(index),
            84..92 => self.replace(),
            92..95 => self.sync_names(),
            95..98 => self.run.sync_all(),
            // The flusher gets its turn.
            _ => std::thread::sleep(Duration::from_millis(3)),
        }
    }

    /// Opens a file by the name that it has.
    fn open(&self, index: usize, life: &Life, flags: i32) -> Arc<OpenFile> {
        self.run.open(&self.cred, &written_name(index, life.moved), flags)
    }

    fn write(&mut self, index: usize) {
        let offset = self.rng.below(BYTES_MAX - 1);
        let most = [600, 9000, 60_000][self.rng.below(3) as usize];
        let len = 1 + self.rng.below(most.min(BYTES_MAX - offset));
        let fill = 1 + self.rng.below(200) as u8;
        let flags = *self.rng.pick(&[0, 0, 0, 0, O_DSYNC, O_SYNC]);
        let (run, bytes) = (self.run, vec![fill; len as usize]);
        let mut life = of(&run.written[index]);
        let start = run.disk.position();
        let file = self.open(index, &life, O_RDWR | flags);
        let ctx = OpCtx::as_user(&self.cred);
        let done = file.write(&ctx, Some(offset), &mut &bytes[..]).expect("room");
        assert_eq!(done.count, bytes.len());
        let (mut content, end) = (life.latest(), (offset + len) as usize);
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].fill(fill);
        life.versions.push(Version { start, content });
        drop(life);
        if flags != 0 {
            let sync = || file.sync_written(&ctx, flags).expect("syncs");
            run.promised([&run.written[index]].into_iter(), sync);
        }
    }

    fn truncate(&mut self, index: usize) {
        let size = self.rng.below(BYTES_MAX);
        let mut life = of(&self.run.written[index]);
        let start = self.run.disk.position();
        let file = self.open(index, &life, O_RDWR);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run.vfs.setattr(&OpCtx::as_user(&self.cred), file.node(), &set).expect("cut");
        let mut content = life.latest();
        content.resize(size as usize, 0);
        life.versions.push(Version { start, content });
    }

    fn sync_file(&mut self, index: usize) {
        let (data_only, by_halves) = (self.rng.percent(50), self.rng.percent(60));
        let leads = self.rng.percent(50);
        let life = of(&self.run.written[index]);
        let file = self.open(index, &life, O_RDWR);
        drop(life);
        let sync = || match by_halves {
            true => sync_by_halves(self.run, &file, data_only, leads),
            false => file.fsync(&OpCtx::service(), data_only).expect("syncs"),
        };
        self.run.promised([&self.run.written[index]].into_iter(), sync);
    }

    /// Gives a file its other name. Not durable before a commit; there is one of both at any time.
    fn rename(&mut self, index: usize) {
        let mut life = of(&self.run.written[index]);
        let (from, to) = (written_name(index, life.moved), written_name(index, !life.moved));
        self.rename_over(&from, &to);
        life.moved = !life.moved;
    }

    fn rename_over(&self, from: &str, to: &str) {
        let (vfs, root) = (&self.run.vfs, self.run.vfs.root());
        let ctx = OpCtx::as_user(&self.cred);
        vfs.rename(&ctx, &root, from.as_bytes(), &root, to.as_bytes(), 0).expect("renames");
    }

    fn replace(&mut self) {
        let index = self.rng.below(REPLACED as u64) as usize;
        let size = self.rng.below(BYTES_MAX) as usize;
        let fill = 1 + self.rng.below(200) as u8;
        let content: Vec<u8> =
            (0..size).map(|at| fill.wrapping_add((at / 4096) as u8).max(1)).collect();
        let name = format!("new{}", self.number);
        let file = self.run.open(&self.cred, &name, O_RDWR | O_CREAT | O_TRUNC);
        file.write(&OpCtx::as_user(&self.cred), Some(0), &mut &content[..]).expect("room");
        file.fsync(&OpCtx::service(), false).expect("syncs");
        let mut life = of(&self.run.replaced[index]);
        let start = self.run.disk.position();
        self.rename_over(&name, &replaced_name(index));
        life.versions.push(Version { start, content });
        drop(life);
        if self.rng.percent(40) {
            self.sync_names();
        }
    }

    fn sync_names(&self) {
        let run = self.run;
        let dir = run.vfs.open(&OpCtx::as_user(&self.cred), &run.vfs.root(), 0).expect("opens");
        let sync = || dir.fsync(&OpCtx::service(), false).expect("syncs");
        run.promised(run.replaced.iter(), sync);
    }
}

/// As a worker of the service does it, that leaves the second half to a thread which commits, or
/// has others leave theirs to it.
fn sync_by_halves(run: &Cached<'_>, file: &OpenFile, data_only: bool, leads: bool) {
    let ctx = OpCtx::service();
    if file.has_to_write() && !file.sync_commits(data_only) {
        return file.fsync(&ctx, data_only).expect("syncs");
    }
    let Some(half) = file.try_begin_sync().expect("a file") else {
        return file.fsync(&ctx, data_only).expect("syncs");
    };
    let lead = if leads { file.lead_sync(data_only) } else { None };
    if let Some(lead) = lead {
        let kept = SyncLead::keep(lead);
        assert_eq!(kept.and_then(|()| file.sync_rest(&ctx, data_only, half)), Ok(()));
        return;
    }
    let (told, ended) = mpsc::channel();
    let mut left_to_another = || -> polylane_vfs::fs::OnSynced {
        let told = told.clone();
        Box::new(move |result| told.send(result).expect("somebody waits"))
    };
    let synced = match file.leave_sync(data_only, &mut left_to_another).expect("left") {
        SyncLeft::Done => file.end_sync(half, Ok(())),
        SyncLeft::ToCaller => file.sync_rest(&ctx, data_only, half),
        SyncLeft::ToAnother => {
            run.left.fetch_add(1, Ordering::Relaxed);
            file.end_sync(half, ended.recv().expect("is told"))
        }
    };
    assert_eq!(synced, Ok(()));
}

/// A run that was recorded, with what its files went through.
struct Recorded {
    events: Vec<Event>,
    left: usize,
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

/// How a run is done.
#[derive(Clone, Copy)]
struct Way {
    /// Steps of all actors together.
    steps: usize,
    /// Cuts, about.
    cuts: u64,
    actors: usize,
    /// A cache of the lane's own.
    mode: Option<Mode>,
}

fn record(base: &Image, seed: u64, way: Way) -> Recorded {
    let delay = (seed % 2 == 1).then_some(seed);
    // Long enough that others come while one commits.
    let pause = Duration::from_micros(if way.actors > 1 { 300 } else { 0 });
    let options = SimOptions { record: true, delay, pause, ..SimOptions::default() };
    let disk = SimDisk::new(base.clone(), options);
    let clock = Arc::new(TestClock::default());
    let interval = Duration::from_millis(2 + seed % 7);
    // One in four, by several.
    let data = if way.actors > 1 && seed % 4 == 2 { DataMode::Data } else { DataMode::Ordered };
    let fs: Arc<Ext4> = Arc::new(open_with(&disk, clock.clone(), (interval, data)).expect("opens"));
    let mut options = small_options(clock, CACHE_BYTES);
    options.flush_interval = Duration::from_millis(1 + seed % 5);
    let above = in_a_cache(fs.clone(), way.mode, &options);
    let vfs = Vfs::new(above, options).expect("a cache");
    let run = Cached::new(&disk, vfs);
    std::thread::scope(|scope| {
        for number in 0..way.actors {
            let (run, cred) = (&run, user(number + seed as usize));
            let mut actor = Actor { run, number, cred, rng: Rng::new(seed * 16 + number as u64) };
            scope.spawn(move || (0..way.steps / way.actors).for_each(|_| actor.step()));
        }
    });
    run.sync_all();
    let Cached { vfs, written, replaced, left, .. } = run;
    let lives = |lives: Vec<Mutex<Life>>| -> Vec<Life> {
        lives.into_iter().map(|life| life.into_inner().expect("no panic")).collect()
    };
    let (written, replaced) = (lives(written.into()), lives(replaced.into()));
    drop(vfs);
    fs.close().expect("closes");
    judge::clean(&disk.image()).expect("clean after an orderly close");
    Recorded { events: disk.events(), left: left.into_inner(), written, replaced }
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
            let names = [false, true].map(|moved| written_name(index, moved));
            let name = match names.each_ref().map(|name| found.nodes.contains_key(name)) {
                [true, false] => &names[0],
                [false, true] => &names[1],
                [both, _] => {
                    return Err(format!("{names:?}: {}", if both { "both" } else { "none" }));
                }
            };
            life.judge_written(&content(name)?, position)
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

fn explore(base: &Image, seed: u64, way: Way) -> (u64, usize, Result<(), String>) {
    let run = record(base, seed, way);
    let (mut crash, mut rng, mut states) = (Crash::new(base, &run.events), Rng::new(seed), 0);
    while crash.advance().is_some() {
        if rng.below(run.events.len() as u64) >= way.cuts {
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
                let why = format!("{why}\nafter event {position}: {fates:?}");
                return (states, run.left, Err(why));
            }
        }
    }
    (states, run.left, Ok(()))
}

#[test]
fn delayed_writes_keep_their_promises() {
    keep_their_promises(&[None], 1);
}

#[test]
fn writes_in_a_cache_keep_their_promises() {
    keep_their_promises(&[Some(Mode::WriteBack), Some(Mode::WriteThrough)], 1);
}

/// What one makes durable another may have written, and a third may have led the commit.
#[test]
fn syncs_of_several_writers_keep_their_promises() {
    keep_their_promises(&[None, None, Some(Mode::WriteBack)], 4);
}

/// Run by run with one mode after the other.
fn keep_their_promises(modes: &[Option<Mode>], actors: usize) {
    if !have_tools() {
        return;
    }
    let bases = FEATURES.map(|features| format(features, &[]));
    let first = number("POLYLANE_CRASH_SEED", 1) << 20;
    let (runs, steps, cuts) = if is_full() { (2000, 250, 200) } else { (12, 120, 40) };
    let (mut states, mut left, mut done, limit) = (0, 0, 0, Limit::list(runs));
    while !limit.ends_at(done) {
        limit.progress(&format!("page cache, {actors} actors"), done);
        let seed = first + done as u64;
        done += 1;
        let (base, mode) = (&bases[seed as usize % bases.len()], modes[done % modes.len()]);
        let (count, to_others, outcome) = explore(base, seed, Way { steps, cuts, actors, mode });
        (states, left) = (states + count, left + to_others);
        if let Err(why) = outcome {
            panic!("{actors} actors, seed {seed}: {why}");
        }
    }
    let told = limit.told(0, done);
    println!(
        "crash: page cache: {actors} actors, runs: {told}, {states} states, {left} syncs left"
    );
    assert!(states > 100);
    assert!(left > 0 || actors == 1, "no sync was left to another's commit");
}
