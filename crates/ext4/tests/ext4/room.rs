//! Space on a sparse medium: what the log carries home finds it there, and few calls make it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

use polylane_base::TestClock;
use polylane_base::rng::Rng;
use polylane_block::BlockDevice;
use polylane_block::cache::own::{BYTES_MIN, OwnStore};
use polylane_block::cache::{Cached, Mode};
use polylane_block::device::{
    Allocation, Channel, Completion, Error, Op, Request, Sector, Submitted,
};
use polylane_ext4::{DataMode, Ext4, Options};
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode, Syncing};

use crate::common;

const BLOCK_BYTES: usize = 4096;
/// Sectors in a block.
const UNIT: u64 = 8;

/// Which blocks take space, and what was done to get it.
#[derive(Default)]
struct Room {
    taken: BTreeSet<u64>,
    reserved: usize,
    zeroed: usize,
    /// Those by the thread that syncs, not by the committer.
    zeroed_by_syncs: usize,
    /// Sectors that it wrote.
    sectors_by_syncs: u64,
    /// Blocks that were written; the others that take space are reserved.
    written: BTreeSet<u64>,
    /// Blocks that were only reserved when that thread wrote content to them.
    reserved_by_syncs: usize,
    /// Blocks that got content while they took no space.
    violations: Vec<u64>,
}

/// A sparse disk that can reserve space, or cannot.
struct Sparse {
    disk: Arc<SimDisk>,
    reserves: bool,
    /// The thread of the test, which syncs.
    opener: ThreadId,
    room: Mutex<Room>,
}

impl Sparse {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().expect("no thread panics in here")
    }

    fn note(&self, request: &Request) {
        let (first, mut room) = (request.sector.0 / UNIT, self.room());
        match request.op {
            Op::Write { .. } => {
                let by_sync = std::thread::current().id() == self.opener;
                let bytes: usize = request.data.iter().map(|buffer| buffer.len()).sum();
                room.sectors_by_syncs += if by_sync { bytes as u64 / 512 } else { 0 };
                let content = request.data.iter().flat_map(|buffer| buffer.chunks(BLOCK_BYTES));
                for (at, block) in (first..).zip(content) {
                    if !room.written.insert(at) {
                        continue;
                    }
                    let is_reserved = !room.taken.insert(at);
                    if block.iter().all(|byte| *byte == 0) {
                        room.zeroed += 1;
                        room.zeroed_by_syncs += usize::from(by_sync);
                    } else if is_reserved {
                        room.reserved_by_syncs += usize::from(by_sync);
                    } else {
                        room.violations.push(at);
                        room.taken.remove(&at);
                    }
                }
            }
            Op::Discard => {
                for at in request.sector.0.div_ceil(UNIT)..(request.sector.0 + request.count) / UNIT
                {
                    room.taken.remove(&at);
                    room.written.remove(&at);
                }
            }
            _ => {}
        }
    }
}

impl BlockDevice for Sparse {
    fn sector_count(&self) -> u64 {
        self.disk.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = self.disk.clone().channel();
        Box::new(Noted { sparse: self, inner })
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        let (first, blocks, room) = (sector.0 / UNIT, count / UNIT, self.room());
        // Space that is reserved is a hole, as hosts tell it.
        let has = room.written.contains(&first);
        let same =
            (first..first + blocks).take_while(|at| room.written.contains(at) == has).count();
        (if has { Allocation::Data } else { Allocation::Hole }, same as u64 * UNIT)
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        if !self.reserves {
            return Err(Error::Unsupported);
        }
        let mut room = self.room();
        room.reserved += 1;
        room.taken.extend(sector.0 / UNIT..(sector.0 + count) / UNIT);
        Ok(())
    }
}

struct Noted {
    sparse: Arc<Sparse>,
    inner: Box<dyn Channel>,
}

impl Channel for Noted {
    fn submit(&mut self, request: Request) -> Submitted {
        self.sparse.note(&request);
        self.inner.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }
}

fn open(bytes: Vec<u8>, reserves: bool, has_cache: bool, discard: bool) -> (Arc<Sparse>, Ext4) {
    let blocks = bytes.chunks(BLOCK_BYTES).zip(0..);
    let used = blocks.filter(|(block, _)| block.iter().any(|byte| *byte != 0));
    let taken: BTreeSet<u64> = used.map(|(_, at)| at).collect();
    let disk = SimDisk::new(Image::new(bytes), SimOptions::default());
    let room = Mutex::new(Room { written: taken.clone(), taken, ..Room::default() });
    let sparse = Arc::new(Sparse { disk, reserves, opener: std::thread::current().id(), room });
    let commit_interval = Duration::from_secs(3600);
    let data = DataMode::Data;
    let options = Options { commit_interval, data, discard, ..Options::default() };
    let clock = Arc::new(TestClock::default());
    let device: Arc<dyn BlockDevice> = match has_cache {
        true => Cached::new(OwnStore::new(sparse.clone(), BYTES_MIN), Mode::Writeback),
        false => sparse.clone(),
    };
    (sparse, Ext4::open(device, clock, &options).expect("opens"))
}

/// Files grow, are made anew and removed, free blocks are given back to the medium: a checkpoint
/// finds space at every home.
#[test]
fn homes_take_space_before_they_get_content() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(32, common::LANE);
    // Behind a cache of its own zeros have to get to the medium before what replaces them.
    let kinds = [
        (1, true, false),
        (2, true, false),
        (3, false, false),
        (4, false, true),
        (5, true, true),
        (6, true, true),
    ];
    for (seed, reserves, has_cache) in kinds {
        // Also freed blocks are given back, by some.
        let (sparse, fs) = open(bytes.clone(), reserves, has_cache, seed % 2 == 0);
        let (ctx, root) = (OpCtx::service(), fs.root().expect("root").ino);
        let (mut rng, mut sizes) = (Rng::new(seed), [0_u64; 6]);
        for _ in 0..400 {
            let at = rng.below(6) as usize;
            let name = [b'a' + at as u8];
            match rng.below(20) {
                0 => drop(fs.trim(1).expect("trims")),
                1 => fs.sync(&ctx).expect("durable"),
                2 | 3 if sizes[at] > 0 => {
                    let gone = fs.unlink(&ctx, root, &name).expect("is there").node;
                    fs.forget(gone.ino);
                    sizes[at] = 0;
                }
                _ => {
                    let new = NewNode::new(Kind::File, 0o600);
                    let ino = match sizes[at] {
                        0 => fs.create(&ctx, root, &name, &new).expect("room").node.ino,
                        _ => fs.lookup(&ctx, root, &name).expect("is there").ino,
                    };
                    let data = vec![at as u8 + 1; 1 + rng.below(9000) as usize];
                    let syncing = Syncing { bytes: data.len() as u64, data_only: false };
                    fs.write_synced(&ctx, ino, sizes[at], &mut &data[..], syncing).expect("room");
                    fs.fsync(&ctx, ino, false).expect("durable");
                    sizes[at] += data.len() as u64;
                    fs.forget(ino);
                }
            }
        }
        fs.close().expect("closes");
        let room = sparse.room();
        assert_eq!(room.violations, Vec::<u64>::new(), "seed {seed}: content without space");
        assert_eq!(room.reserved > 0, reserves, "seed {seed}");
    }
}

/// One call makes space for the blocks that a growing file takes next.
#[test]
fn a_growing_file_seldom_needs_space() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(32, common::LANE);
    let [with, without] = [true, false].map(|reserves| {
        let (sparse, fs) = open(bytes.clone(), reserves, false, false);
        let (ctx, root) = (OpCtx::service(), fs.root().expect("root").ino);
        let new = NewNode::new(Kind::File, 0o600);
        let ino = fs.create(&ctx, root, b"log", &new).expect("room").node.ino;
        // The committer writes zeros to the log as fast as it can: they are not the file's.
        let calls = |room: &Room| room.zeroed_by_syncs + room.reserved;
        let before = calls(&sparse.room());
        for at in 0..256 {
            let syncing = Syncing { bytes: 1024, data_only: true };
            fs.write_synced(&ctx, ino, at * 1024, &mut &[7; 1024][..], syncing).expect("room");
            fs.fsync(&ctx, ino, true).expect("durable");
        }
        let after = calls(&sparse.room());
        after - before
    });
    // Without: each of the 64 blocks, beside what the log gets ahead of its head.
    assert!(with + 50 <= without, "{with} with, {without} without");
}

/// Files that take the place of others, as what is published does, take turns in a few blocks:
/// those that were freed need no space again, unless they were given back to the medium.
#[test]
fn what_was_freed_still_has_its_space() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(32, common::LANE);
    let [kept, given] = [false, true].map(|discard| {
        let (sparse, fs) = open(bytes.clone(), true, false, discard);
        let (ctx, root) = (OpCtx::service(), fs.root().expect("root").ino);
        let publish = || {
            let new = NewNode::new(Kind::File, 0o600);
            let ino = fs.create(&ctx, root, b"new", &new).expect("room").node.ino;
            let syncing = Syncing { bytes: 4096, data_only: false };
            fs.write_synced(&ctx, ino, 0, &mut &[7; 4096][..], syncing).expect("room");
            fs.fsync(&ctx, ino, false).expect("durable");
            let renamed = fs.rename(&ctx, root, b"new", root, b"published", RenameMode::Replace);
            let other = renamed.expect("renames").other;
            fs.fsync(&ctx, root, false).expect("durable");
            other.into_iter().chain([fs.getattr(&ctx, ino).expect("is there")]).for_each(|attr| {
                fs.forget(attr.ino);
            });
        };
        (0..8).for_each(|_| publish());
        let before = sparse.room().reserved;
        (0..100).for_each(|_| publish());
        let reserved = sparse.room().reserved - before;
        assert_eq!(sparse.room().violations, Vec::<u64>::new());
        reserved
    });
    assert!(kept < 10 && given > 50, "{kept} reservations, {given} where freed blocks are given");
}

/// What a log needs is reserved when it is opened; zeros follow when it is used, as many as were
/// used. Where space cannot be reserved they are written at once.
#[test]
fn a_log_that_is_opened_writes_no_zeros() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(64, &[common::LANE, &["-J", "size=16"]].concat());
    let [with, without] = [true, false].map(|reserves| {
        let (sparse, fs) = open(bytes.clone(), reserves, false, false);
        let before = { sparse.room().taken.len() };
        assert_eq!(sparse.room().zeroed == 0, reserves, "{}", sparse.room().zeroed);
        let (ctx, root) = (OpCtx::service(), fs.root().expect("root").ino);
        let new = NewNode::new(Kind::File, 0o600);
        fs.create(&ctx, root, b"file", &new).expect("room");
        fs.close().expect("closes");
        let room = sparse.room();
        assert_eq!(room.violations, Vec::<u64>::new());
        (before, room.zeroed)
    });
    assert_eq!(with.0, without.0, "as much is set aside");
    assert!(with.1 < 200, "{} blocks of zeros for one commit", with.1);
}

/// In the first lap of its log a file system that syncs writes what later laps write: the log's
/// room is made by the committer, who is asked long before.
#[test]
fn no_sync_of_the_first_lap_makes_room_for_the_log() {
    if !common::have_tools() {
        return;
    }
    const LOG_BLOCKS: u64 = 4096;
    const APPENDS: u64 = 700;
    let bytes = common::image(64, &[common::LANE, &["-J", "size=16"]].concat());
    let (sparse, fs) = open(bytes, true, false, false);
    let (ctx, root) = (OpCtx::service(), fs.root().expect("root").ino);
    let new = NewNode::new(Kind::File, 0o600);
    let ino = fs.create(&ctx, root, b"log", &new).expect("room").node.ino;
    fs.fsync(&ctx, ino, false).expect("durable");
    let count = |room: &Room| {
        let by_syncs = room.zeroed_by_syncs + room.reserved_by_syncs;
        (room.zeroed, by_syncs, room.sectors_by_syncs)
    };
    let before = count(&sparse.room());
    for at in 0..APPENDS {
        let syncing = Syncing { bytes: 1024, data_only: true };
        fs.write_synced(&ctx, ino, at * 1024, &mut &[7; 1024][..], syncing).expect("room");
        fs.fsync(&ctx, ino, true).expect("durable");
        // The committer's turn.
        std::thread::sleep(Duration::from_micros(100));
    }
    let after = count(&sparse.room());
    let (zeroed, by_syncs) = (after.0 - before.0, after.1 - before.1);
    assert!(zeroed as u64 > LOG_BLOCKS / 4, "{zeroed} of {LOG_BLOCKS} blocks of the log got room");
    // Where the committer gets no CPU for long a sync goes to what is reserved.
    assert!(8 * by_syncs <= zeroed, "of {zeroed} blocks: syncs were the first in {by_syncs}");
    let sectors = (after.2 - before.2) / APPENDS;
    assert!((24..=40).contains(&sectors), "{sectors} sectors for an append");
    // No zeros came to where a commit was: after a power cut all of it is there.
    let disk = SimDisk::new(sparse.disk.image(), SimOptions::default());
    let fs = Ext4::open(disk, Arc::new(TestClock::default()), &Options::default()).expect("opens");
    let root = fs.root().expect("root").ino;
    let log = fs.lookup(&ctx, root, b"log").expect("is there");
    assert_eq!(log.size, APPENDS * 1024);
    let mut content = vec![0; log.size as usize];
    fs.read(&ctx, log.ino, 0, content.len(), &mut &mut content[..]).expect("reads");
    assert!(content.iter().all(|byte| *byte == 7));
}
