//! Runs a workload on a simulated disk, and looks at every image that a power cut may leave.

use std::collections::HashSet;
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Clock, TestClock, Time};
use polylane_ext4::format::journal::JournalSuperblock;
use polylane_ext4::{DataMode, Ext4, Options};
use polylane_testkit::sim::{Crash, Event, Fate, Image, SimDisk, SimOptions, Tear};

use super::judge;
use super::oracle::{History, Span, Window};
use super::script::{Op, POISON, Runner};
use super::tree::{Node, Tree, node, snapshot};
use polylane_vfs::OpCtx;

/// What mke2fs is asked for: small, several groups, nothing random.
const FORMAT: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "4096",
    "-g",
    "2048",
    "-N",
    "512",
    "-J",
    "size=4",
    "-U",
    "6a2c9b5e-0d5e-4a6c-9f0a-1b2c3d4e5f60",
    "-E",
    "nodiscard,lazy_itable_init=0,lazy_journal_init=0,\
     hash_seed=33333333-3333-3333-3333-333333333333",
];

/// Kinds of images that are tried: with the list of orphans, with the orphan file, as older mke2fs
/// make them, with block maps in place of extents, and with quotas.
pub const FEATURES: [&str; 5] = [
    "^orphan_file",
    "orphan_file,metadata_csum_seed",
    "^orphan_file,^metadata_csum,uninit_bg",
    "^orphan_file,^extent,^64bit",
    "orphan_file,quota,project",
];

const IMAGE_BYTES: usize = 16 << 20;

/// Every free block is poisoned; `setup` was done and the file system closed.
pub fn format(features: &str, setup: &[Op]) -> Image {
    let mut file = judge::scratch();
    Image::new(vec![POISON; IMAGE_BYTES]).save(file.as_file_mut()).expect("written");
    let mut command = Command::new("mke2fs");
    command.arg("-Fq").args(FORMAT).args(["-O", features]).arg(file.path());
    let made = command.output().expect("mke2fs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let blank = Image::new(std::fs::read(file.path()).expect("readable"));
    let disk = SimDisk::new(blank, SimOptions::default());
    let fs = open(&disk).expect("a new file system opens");
    let mut runner = Runner::new(&fs, false);
    for op in setup {
        runner.apply(op).unwrap_or_else(|errno| panic!("setup: {op:?}: {errno}"));
    }
    drop(runner);
    fs.close().expect("closes");
    let image = disk.image().rebased();
    judge::clean(&image).expect("clean after setup");
    image
}

/// The same image, its next transaction's number one of the last in 32 bits.
pub fn late_numbered(mut image: Image) -> Image {
    for at in (0..image.len()).step_by(4096) {
        let mut block = [0; 4096];
        image.read(at, &mut block);
        let is_journal = block[..8] == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
        if let (true, Ok(mut journal)) = (is_journal, JournalSuperblock::decode(&block, 4096, 1024))
        {
            journal.set_tail(0xffff_fff0, 0);
            image.write(at, &journal.encode());
            return image;
        }
    }
    panic!("no journal in the image");
}

/// Opens; commits happen when asked for, not by the clock, so that runs repeat.
pub fn open(disk: &Arc<SimDisk>) -> Result<Ext4, String> {
    let seldom = (Duration::from_secs(3600), DataMode::Ordered);
    open_with(disk, Arc::new(TestClock::default()), seldom)
}

/// Opens with a clock, and commits every `commit_interval`: with an odd one as many as possible at
/// a time.
///
/// # Errors
/// The image does not open.
pub fn open_with(
    disk: &Arc<SimDisk>,
    clock: Arc<dyn Clock>,
    (commit_interval, data): (Duration, DataMode),
) -> Result<Ext4, String> {
    let mut options = Options { commit_interval, data, ..Options::default() };
    if commit_interval.subsec_millis() % 2 == 1 {
        // Every commit begins before the one before has ended.
        options.tuning.overlap_blocks = 0;
    }
    Ext4::open(disk.clone(), clock, &options).map_err(|error| format!("open: {error}"))
}

/// How writes tear. jbd2 takes a block for a unit: a commit block of which half is there is damage
/// for e2fsck and the kernel. Ours is asked for more, tears at every sector, where the others are
/// not asked. The 1024 bytes of the superblock are written in place by every implementation and are
/// a unit always.
pub fn tear(sectors: bool) -> Tear {
    match sectors {
        true => Tear { unit_bytes: 512, whole: Some(1024..2048) },
        false => Tear::at(4096),
    }
}

/// A workload and how it is run.
#[derive(Clone, Debug)]
pub struct Workload {
    pub ops: Vec<Op>,
    /// The disk answers late and in any order.
    pub delay: Option<u64>,
    /// Inodes stay in memory between operations.
    pub warm: bool,
    /// The clock is set back again and again.
    pub backwards: bool,
    /// Writeback differs only where a commit meets a write, which no commit does here: what may be
    /// found is the same.
    pub data: DataMode,
}

/// A clock that loses a minute at every reading.
struct Backwards(AtomicI64);

impl Clock for Backwards {
    fn now(&self) -> Time {
        Time { sec: 1_700_000_000 - 60 * self.0.fetch_add(1, Ordering::Relaxed), nsec: 0 }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "workload: {:?}, warm {}, backwards {}, {:?}",
            self.delay, self.warm, self.backwards, self.data
        )?;
        self.ops.iter().enumerate().try_for_each(|(at, op)| writeln!(f, "  {at}: {op:?}"))
    }
}

/// A run that was recorded from open to close.
pub struct Run {
    pub base: Image,
    pub events: Vec<Event>,
    pub history: History,
    pub after: Image,
}

/// Runs a workload.
///
/// # Errors
/// The file system does not open or close, or its tree cannot be read.
pub fn record(base: &Image, workload: &Workload) -> Result<Run, String> {
    let options = SimOptions { record: true, delay: workload.delay, ..SimOptions::default() };
    let disk = SimDisk::new(base.clone(), options);
    let clock: Arc<dyn Clock> = match workload.backwards {
        true => Arc::new(Backwards(AtomicI64::new(0))),
        false => Arc::new(TestClock::default()),
    };
    let fs = open_with(&disk, clock, (Duration::from_secs(3600), workload.data))?;
    let mut history = History::default();
    let mut runner = Runner::new(&fs, workload.warm);
    history.states.push(look(&fs, &runner)?);
    for op in &workload.ops {
        let synced = runner.synced(op);
        let start = disk.position();
        let result = runner.apply(op);
        let end = disk.position();
        history.states.push(look(&fs, &runner)?);
        let promises = match (op, synced) {
            (Op::Sync, _) => history.states.len() - 1,
            (Op::Fdatasync(_), Some(ino)) => history.last_change(ino, true),
            (_, Some(ino)) => history.last_change(ino, false),
            _ => 0,
        };
        let (op, ok, bytes_of) = (op.clone(), result.is_ok(), synced);
        history.spans.push(Span { op, start, end, ok, promises, bytes_of });
    }
    runner.release_all();
    let start = disk.position();
    drop(runner);
    fs.close().map_err(|error| format!("close: {error}"))?;
    let promises = history.states.len();
    history.states.push(history.states[promises - 1].clone());
    let (op, end) = (Op::Sync, disk.position());
    history.spans.push(Span { op, start, end, ok: true, promises, bytes_of: None });
    Ok(Run { base: base.clone(), events: disk.events(), history, after: disk.image() })
}

/// The tree while the file system runs, with what is held open.
///
/// # Errors
/// It cannot be read.
pub fn look(fs: &Ext4, runner: &Runner<'_>) -> Result<Tree, String> {
    let mut tree = snapshot(fs, &|ino| !runner.may_forget(ino));
    if let Ok(tree) = &mut tree {
        let held = runner
            .held()
            .map(|ino| runner.fs.getattr(&OpCtx::service(), ino).and_then(|a| node(runner.fs, a)));
        let held: polylane_base::Result<Vec<Node>> = held.collect();
        tree.held = held.map_err(|errno| format!("held: {errno}"))?;
    }
    tree.map_err(|error| format!("live: {error}"))
}

/// How much is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// One cut in this many, chosen at random; 1: all.
    pub cut_every: u64,
    /// Writes in doubt that are tried alone, present and absent.
    pub single: usize,
    /// Random mixtures per cut.
    pub random: usize,
    /// One state in this many goes to e2fsck, closed and raw, and is written to. 0: none.
    pub fsck_every: u64,
    /// One state in this many is mounted by the kernel. 0: none.
    pub kernel_every: u64,
    /// One state in this many has its recovery cut as well. 0: none.
    pub double_every: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub workloads: u64,
    pub cuts: u64,
    pub states: u64,
    pub repeated: u64,
    pub double: u64,
    pub fsck: u64,
    pub kernel: u64,
}

impl Totals {
    pub fn add(&mut self, more: Totals) {
        self.workloads += more.workloads;
        self.cuts += more.cuts;
        self.states += more.states;
        self.repeated += more.repeated;
        self.double += more.double;
        self.fsck += more.fsck;
        self.kernel += more.kernel;
    }
}

/// Looks at the states of one run.
pub struct Explorer<'a> {
    run: &'a Run,
    effort: Effort,
    rng: Rng,
    known: HashSet<(u64, Window)>,
    pub totals: Totals,
}

impl<'a> Explorer<'a> {
    pub fn new(run: &'a Run, effort: Effort, seed: u64) -> Self {
        let totals = Totals { workloads: 1, ..Totals::default() };
        Explorer { run, effort, rng: Rng::new(seed), known: HashSet::new(), totals }
    }

    /// Every cut of the run.
    ///
    /// # Errors
    /// What is wrong with which state.
    pub fn explore(&mut self) -> Result<(), String> {
        let run = self.run;
        let mut crash = Crash::new(&run.base, &run.events);
        while let Some(changed) = crash.advance() {
            let ended = run.history.spans.iter().any(|span| span.end == crash.position());
            let chosen = self.rng.below(self.effort.cut_every) == 0;
            if (changed && chosen) || ended {
                self.cut(&crash)?;
            }
        }
        Ok(())
    }

    fn cut(&mut self, crash: &Crash<'_>) -> Result<(), String> {
        self.totals.cuts += 1;
        let window = self.run.history.window(crash.position());
        for fates in crash.choices(&mut self.rng, self.effort.single, self.effort.random) {
            let sectors = self.rng.percent(50);
            let image = crash.image(&tear(sectors), |n| fates[n]);
            let torn = sectors && fates.iter().any(|fate| matches!(fate, Fate::Torn(_)));
            if !self.known.insert((image.fingerprint(), window.clone())) {
                self.totals.repeated += 1;
                continue;
            }
            self.state(&image, &window, torn).map_err(|why| {
                keep(&image);
                let unit = if torn { "sectors" } else { "blocks" };
                format!("{why}\nafter event {}: {fates:?}, {unit}", crash.position())
            })?;
        }
        Ok(())
    }

    fn due(&mut self, every: u64) -> bool {
        every > 0 && self.rng.below(every) == 0
    }

    fn state(&mut self, image: &Image, window: &Window, torn: bool) -> Result<(), String> {
        self.totals.states += 1;
        let fsck = self.due(self.effort.fsck_every);
        let found = reopen(&self.run.history, image, window, fsck)?;
        if fsck && !torn {
            self.totals.fsck += 1;
            judge::recovered(image)?;
        }
        if self.due(self.effort.kernel_every)
            && !torn
            && let Some(seen) = judge::kernel(image)?
        {
            self.totals.kernel += 1;
            agree(&found, &seen)?;
        }
        if self.due(self.effort.double_every) {
            self.double(image, window, torn)?;
        }
        Ok(())
    }

    /// Cuts the recovery of `image` at each of its own writes. e2fsck is not asked about what a
    /// `torn` sector may have left in the log.
    fn double(&mut self, image: &Image, window: &Window, torn: bool) -> Result<(), String> {
        let disk = SimDisk::new(image.clone(), SimOptions { record: true, ..Default::default() });
        let fs = open(&disk)?;
        fs.close().map_err(|error| format!("close: {error}"))?;
        drop(fs);
        let events = disk.events();
        let mut crash = Crash::new(image, &events);
        while let Some(changed) = crash.advance() {
            if !changed {
                continue;
            }
            for fates in crash.choices(&mut self.rng, 3, 1) {
                let again = crash.image(&tear(false), |n| fates[n]);
                self.totals.double += 1;
                let fsck = self.due(self.effort.fsck_every);
                let outcome = reopen(&self.run.history, &again, window, fsck);
                let outcome = outcome.and_then(|_| match fsck && !torn {
                    true => judge::recovered(&again).map(drop),
                    false => Ok(()),
                });
                outcome.map_err(|why| {
                    keep(&again);
                    format!("{why}\nafter event {} of recovery, {fates:?}", crash.position())
                })?;
            }
        }
        Ok(())
    }
}

/// Opens a crash image, judges its tree, closes it; with `fsck` uses it first and has it checked.
///
/// # Errors
/// What is wrong.
pub fn reopen(
    history: &History,
    image: &Image,
    window: &Window,
    fsck: bool,
) -> Result<Tree, String> {
    reopen_with(image, fsck, &|found| history.judge(found, window).map(drop))
}

/// The same with any judge of the tree.
///
/// # Errors
/// What is wrong.
pub fn reopen_with(
    image: &Image,
    fsck: bool,
    judge: &dyn Fn(&Tree) -> Result<(), String>,
) -> Result<Tree, String> {
    let disk = SimDisk::new(image.clone(), SimOptions::default());
    let fs = open(&disk)?;
    let found = snapshot(&fs, &|_| false)?;
    judge(&found)?;
    if fsck {
        still_works(&fs).map_err(|errno| format!("use after recovery: {errno}"))?;
    }
    fs.close().map_err(|error| format!("close: {error}"))?;
    if fsck {
        judge::clean(&disk.image())?;
    }
    Ok(found)
}

fn still_works(fs: &Ext4) -> polylane_base::Result<()> {
    let mut runner = Runner::new(fs, false);
    let path = || "after-recovery".to_string();
    runner.apply(&Op::Create(path()))?;
    runner.apply(&Op::Write(path(), 100, 9000))?;
    runner.apply(&Op::Fsync(path()))?;
    runner.apply(&Op::Unlink(path()))
}

/// The kernel's recovery must show the same names, modes, sizes and bytes as ours.
pub fn agree(found: &Tree, seen: &judge::Seen) -> Result<(), String> {
    let ours: Vec<&String> = found.nodes.keys().collect();
    let theirs: Vec<&String> = seen.keys().collect();
    if ours != theirs {
        return Err(format!("names: ours {ours:?}, the kernel's {theirs:?}"));
    }
    for (path, node) in &found.nodes {
        let attr = node.meta.attr;
        let (mode, size, bytes) = &seen[path];
        let content = if node.meta.target.is_empty() { &*node.data } else { &node.meta.target };
        if (attr.mode(), attr.size, content) != (*mode, *size, bytes) {
            return Err(format!("'{path}': the kernel sees mode {mode:o}, {size} bytes"));
        }
    }
    Ok(())
}

/// Saves a bad image where `POLYLANE_CRASH_KEEP` says.
pub fn keep(image: &Image) {
    if let Some(path) = std::env::var_os("POLYLANE_CRASH_KEEP") {
        let mut file = std::fs::File::create(path).expect("POLYLANE_CRASH_KEEP can be written");
        image.save(&mut file).expect("written");
    }
}
