//! Sparse images of every kind on a host that fills and empties at any step: nothing that was
//! acknowledged is lost, the lane can be emptied while the host is full, and the image that is
//! left is clean and can be written to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_base::{Errno, Ino, Result, TestClock};
use polylane_block::BlockDevice;
use polylane_block::device::{
    Allocation, Channel, Completion, Error, Op, Request, Sector, Submitted,
};
use polylane_block::ram::RamDevice;
use polylane_ext4::{Ext4, Options};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, SetAttr, XattrMode};

use crate::common;

/// Bytes of a block of the host.
const HOST_BLOCK: usize = 4096;
/// Sectors in one.
const UNIT: u64 = 8;
const DIRS: u64 = 8;
const NAMES: u64 = 40;
/// Longer than any wait here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which of its blocks the host has given room to, and how many it has.
struct Room {
    taken: BTreeSet<u64>,
    /// Those that were written; the others are reserved.
    written: BTreeSet<u64>,
    limit: usize,
}

impl Room {
    fn take(&mut self, sectors: std::ops::Range<u64>) -> std::result::Result<(), Error> {
        let blocks = sectors.start / UNIT..sectors.end.div_ceil(UNIT);
        let more: Vec<u64> = blocks.filter(|block| !self.taken.contains(block)).collect();
        match self.taken.len() + more.len() > self.limit {
            true if !more.is_empty() => Err(Error::NoSpace),
            _ => {
                self.taken.extend(more);
                Ok(())
            }
        }
    }
}

/// A sparse file on that host.
struct Sparse {
    disk: Arc<RamDevice>,
    reserves: bool,
    room: Mutex<Room>,
}

impl Sparse {
    fn new(bytes: &[u8], reserves: bool) -> Arc<Sparse> {
        let blocks = bytes.chunks(HOST_BLOCK).zip(0..);
        let used = blocks.filter(|(block, _)| block.iter().any(|byte| *byte != 0));
        let taken: BTreeSet<u64> = used.map(|(_, at)| at).collect();
        let room = Room { written: taken.clone(), taken, limit: usize::MAX };
        Arc::new(Sparse { disk: common::load(bytes), reserves, room: Mutex::new(room) })
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().expect("no thread panics in here")
    }

    /// From now on the host has so many blocks left.
    fn leave(&self, blocks: usize) {
        let mut room = self.room();
        room.limit = room.taken.len() + blocks;
    }

    fn note(&self, request: &Request) -> std::result::Result<(), Error> {
        let (mut room, sectors) = (self.room(), request.sector.0..request.sector.0 + request.count);
        match request.op {
            Op::Write { .. } => {
                room.take(sectors.clone())?;
                room.written.extend(sectors.start / UNIT..sectors.end.div_ceil(UNIT));
            }
            Op::Discard => {
                for at in sectors.start.div_ceil(UNIT)..sectors.end / UNIT {
                    room.taken.remove(&at);
                    room.written.remove(&at);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl BlockDevice for Sparse {
    fn sector_count(&self) -> u64 {
        self.disk.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = self.disk.clone().channel();
        Box::new(Counted { sparse: self, inner })
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        let (room, end) = (self.room(), sector.0 + count);
        let has = |at: u64| room.written.contains(&(at / UNIT));
        let here = has(sector.0);
        let next = |at: u64| (at / UNIT + 1) * UNIT;
        let mut at = next(sector.0);
        while at < end && has(at) == here {
            at = next(at);
        }
        (if here { Allocation::Data } else { Allocation::Hole }, at.min(end) - sector.0)
    }

    fn reserve(&self, sector: Sector, count: u64) -> std::result::Result<(), Error> {
        match self.reserves {
            true => self.room().take(sector.0..sector.0 + count),
            false => Err(Error::Unsupported),
        }
    }
}

struct Counted {
    sparse: Arc<Sparse>,
    inner: Box<dyn Channel>,
}

impl Channel for Counted {
    fn submit(&mut self, request: Request) -> Submitted {
        match self.sparse.note(&request) {
            Ok(()) => self.inner.submit(request),
            Err(full) => Submitted::Done(request.complete(Err(full))),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }
}

fn open(device: &Arc<Sparse>) -> Ext4 {
    let commit_interval = Duration::from_millis(5);
    let options = Options { commit_interval, ..Options::default() };
    Ext4::open(device.clone(), Arc::new(TestClock::default()), &options).expect("opens")
}

fn until_done<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(errno) => assert!(errno == Errno::ENOSPC && Instant::now() < until, "{errno:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is known of a name: its content, if that was acknowledged.
type Names = BTreeMap<(u64, u64), Option<Vec<u8>>>;

struct Life<'a> {
    fs: &'a Ext4,
    dirs: Vec<Ino>,
    names: Names,
    rng: Rng,
    refused: usize,
}

fn dir_name(at: u64) -> String {
    format!("dir-{at}")
}

/// Long: directories grow.
fn name(at: u64) -> String {
    format!("{at}-{}", "n".repeat(180))
}

impl Life<'_> {
    fn ctx() -> OpCtx<'static> {
        OpCtx::service()
    }

    fn content(&mut self) -> Vec<u8> {
        let (len, first) = (self.rng.below(40_000), self.rng.below(250));
        (0..len).map(|at| (at + first) as u8 | 1).collect()
    }

    /// Makes or replaces what a name holds, and syncs it.
    fn write(&mut self, key: (u64, u64)) -> Result<()> {
        let (ctx, dir, name) = (Self::ctx(), self.dirs[key.0 as usize], name(key.1));
        let content = self.content();
        let ino = match self.fs.lookup(&ctx, dir, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(_) => {
                self.fs.create(&ctx, dir, name.as_bytes(), &node(Kind::File, 0o600))?.node.ino
            }
        };
        self.names.insert(key, None);
        let done = self.fill(ino, &content);
        self.fs.forget(ino);
        self.names.insert(key, done.is_ok().then_some(content));
        done
    }

    fn fill(&mut self, ino: Ino, content: &[u8]) -> Result<()> {
        let (ctx, size) = (Self::ctx(), Some(0));
        self.fs.setattr(&ctx, ino, &SetAttr { size, ..SetAttr::default() })?;
        // In pieces from the end on: the tree of extents grows.
        let mut at = content.len();
        while at > 0 {
            let piece = (1 + self.rng.below(9000) as usize).min(at);
            at -= piece;
            if self.fs.write(&ctx, ino, at as u64, &mut &content[at..at + piece])? < piece {
                return Err(Errno::ENOSPC);
            }
        }
        if self.rng.percent(30) {
            let value = vec![3; 1 + self.rng.below(900) as usize];
            self.fs.setxattr(&ctx, ino, b"user.value", &value, XattrMode::Any)?;
        }
        if self.rng.percent(20) {
            // Behind the end: what was written stays.
            let mode = Fallocate::Allocate { keep_size: true };
            match self.fs.fallocate(&ctx, ino, mode, 1 << 20, 1 + self.rng.below(60_000)) {
                // A file with a block map.
                Ok(_) | Err(Errno::EOPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.fs.fsync(&ctx, ino, false)
    }

    fn remove(&mut self, key: (u64, u64)) -> Result<()> {
        let known = self.names.insert(key, None);
        let gone = self.fs.unlink(&Self::ctx(), self.dirs[key.0 as usize], name(key.1).as_bytes());
        match gone {
            Ok(gone) => self.fs.forget(gone.node.ino),
            Err(Errno::ENOENT) => {}
            // It was refused before anything changed.
            Err(refused) => {
                known.map(|known| self.names.insert(key, known));
                return Err(refused);
            }
        }
        self.names.remove(&key);
        Ok(())
    }

    fn step(&mut self, device: &Sparse) {
        let key = (self.rng.below(DIRS), self.rng.below(NAMES));
        let done = match self.rng.below(10) {
            0 => {
                device.leave(self.rng.below(30) as usize);
                Ok(())
            }
            1 => {
                device.leave(self.rng.below(600) as usize);
                Ok(())
            }
            2 => self.fs.sync(&Self::ctx()),
            3 => self.remove(key),
            _ => self.write(key),
        };
        match done {
            Err(Errno::ENOSPC) => self.refused += 1,
            done => done.expect("done, or no room"),
        }
        assert!(!self.fs.is_stopped(), "{:?}", self.fs.stopped_by());
    }

    fn check(&self) {
        let known = self.names.iter().filter_map(|(key, known)| Some((key, known.as_ref()?)));
        for ((dir, at), content) in known {
            let found =
                self.fs.lookup(&Self::ctx(), self.dirs[*dir as usize], name(*at).as_bytes());
            let ino = found.expect("an acknowledged name").ino;
            let mut bytes = vec![0; content.len() + 1];
            let count = self.fs.read(&Self::ctx(), ino, 0, bytes.len(), &mut &mut bytes[..]);
            assert!(count == Ok(content.len()) && bytes[..content.len()] == content[..]);
            self.fs.forget(ino);
        }
    }
}

fn dirs(fs: &Ext4) -> Vec<Ino> {
    let root = common::root(fs);
    let find = |at| match fs.lookup(&OpCtx::service(), root, dir_name(at).as_bytes()) {
        Ok(found) => found.ino,
        Err(_) => common::create(fs, root, &dir_name(at), Kind::Dir),
    };
    (0..DIRS).map(find).collect()
}

/// Some steps of a lane's life, from opening the image to closing it. The host has as little room
/// then as the last step left it.
fn live_a_while(device: &Arc<Sparse>, names: &mut Names, rng: Rng) -> usize {
    let fs = open(device);
    assert_eq!(fs.read_only_reasons, Vec::<String>::new());
    let names_now = std::mem::take(names);
    let mut life = Life { fs: &fs, dirs: dirs(&fs), names: names_now, rng, refused: 0 };
    life.check();
    (0..100).for_each(|_| life.step(device));
    life.check();
    let refused = life.refused;
    *names = life.names;
    let closed = fs.close();
    drop(fs);
    // Where the log cannot be brought home the next opening does.
    let is_replayed = || common::dumped(&device.disk).contains("needs_recovery");
    let ends =
        closed.is_ok() || closed.as_ref().is_err_and(|why| why.is_no_space() && is_replayed());
    assert!(ends, "{closed:?}");
    refused
}

/// The host is full, and the lane is emptied but for one directory.
fn empty(device: &Arc<Sparse>, names: &mut Names, rng: Rng) {
    let fs = open(device);
    let names_now = std::mem::take(names);
    let mut life = Life { fs: &fs, dirs: dirs(&fs), names: names_now, rng, refused: 0 };
    // What is removed is more than what was set aside and is to be set aside again.
    device.leave(4000);
    (1..DIRS).flat_map(|dir| (0..NAMES / 2).map(move |at| (dir, at))).for_each(|key| {
        until_done(|| life.write(key));
    });
    device.leave(0);
    for key in (1..DIRS).flat_map(|dir| (0..NAMES).map(move |at| (dir, at))) {
        until_done(|| life.remove(key));
    }
    until_done(|| fs.sync(&OpCtx::service()));
    // What was removed makes room.
    let until = Instant::now() + PATIENCE;
    while life.write((1, 1)).is_err() {
        assert!(Instant::now() < until, "what was removed made no room");
        fs.sync(&OpCtx::service()).expect("syncs");
    }
    *names = life.names;
    fs.close().expect("closes");
}

fn live(bytes: &[u8], (seed, reserves): (u64, bool)) -> usize {
    let (device, mut rng) = (Sparse::new(bytes, reserves), Rng::new(seed));
    let fs = open(&device);
    dirs(&fs);
    fs.close().expect("room");
    drop(fs);
    let (mut names, mut refused) = (Names::new(), 0);
    for _ in 0..4 {
        refused += live_a_while(&device, &mut names, Rng::new(rng.below(1 << 40)));
    }
    empty(&device, &mut names, Rng::new(seed));
    assert_eq!(common::complaints(&device.disk), None);
    device.leave(1 << 20);
    let fs = open(&device);
    assert_eq!(fs.read_only_reasons, Vec::<String>::new());
    let mut life = Life { fs: &fs, dirs: dirs(&fs), names, rng, refused: 0 };
    life.check();
    life.write((2, 2)).expect("room");
    fs.close().expect("closes");
    refused
}

#[test]
fn images_of_every_kind_outlive_a_host_that_fills_at_every_step() {
    if !common::have_tools() {
        return;
    }
    let lazy = "lazy_itable_init=1,lazy_journal_init=1";
    let kinds: [&[&str]; 8] = [
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal", "-E", lazy, "-g", "2048"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^orphan_file"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal,quota,project,inline_data,ea_inode"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal,^metadata_csum,^uninit_bg,^flex_bg"],
        &["-t", "ext2"],
        &["-t", "ext4", "-b", "4096", "-J", "size=4", "-E", lazy, "-g", "2048"],
        &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "quota,orphan_file"],
    ];
    for kind in kinds {
        let bytes = common::image(48, kind);
        let mut refused = 0;
        for (seed, reserves) in (0..12).map(|seed| (seed, seed % 3 > 0)) {
            eprintln!("{kind:?}, seed {seed}");
            refused += live(&bytes, (seed, reserves));
        }
        assert!(refused > 100, "{kind:?}: {refused} operations were refused");
    }
}
