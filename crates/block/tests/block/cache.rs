//! Caches: the contract of every device in every mode, any admission against a model, power cuts at
//! every event, media that fail.

use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_block::cache::host::HostStore;
use polylane_block::cache::own::{BYTES_MIN, OwnStore};
use polylane_block::cache::pdc::{Admission, Region};
use polylane_block::cache::{Cached, Mode, Road, Store};
use polylane_block::device::{
    Allocation, BlockDevice, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image;
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_testkit::block_suite;
use polylane_testkit::sim::{Crash, Fault, FaultOn, Image, SimDisk, SimOptions, Tear};

const SECTORS: u64 = 8192 + 5;
const CACHED: [Mode; 3] = [Mode::Writeback, Mode::Writethrough, Mode::Pdc];

fn simulated(options: SimOptions) -> Arc<SimDisk> {
    SimDisk::new(Image::zeroed(SECTORS as usize * SECTOR_BYTES), options)
}

/// A fresh sparse file, through the page cache and past it.
fn host_store(way: Way) -> Arc<dyn Store> {
    let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(SECTORS * SECTOR_BYTES as u64).expect("size");
    host_store_on(&path, way)
}

fn host_store_on(path: &std::path::Path, way: Way) -> Arc<dyn Store> {
    let (cached, direct) = devices_on(path, way);
    HostStore::new(cached, direct, true)
}

/// A file through the page cache, and past it.
fn devices_on(path: &std::path::Path, way: Way) -> (Arc<FileDevice>, Arc<FileDevice>) {
    let direct = image::open(path).expect("open");
    let copy = |fd: &std::os::fd::OwnedFd| fd.try_clone().expect("dup");
    let cached =
        Files { io: copy(&direct.plain), plain: copy(&direct.lock), lock: copy(&direct.lock) };
    let cached = FileDevice::open(cached, way).expect("device");
    (cached, FileDevice::open(direct, way).expect("device"))
}

#[test]
fn own_stores_are_devices_like_any_other() {
    for mode in CACHED {
        block_suite::run(&|| {
            let store = OwnStore::new(Arc::new(RamDevice::new(SECTORS)), BYTES_MIN);
            Cached::new(store, mode)
        });
        block_suite::run(&|| {
            let options = SimOptions { delay: Some(7), depth: 3, ..SimOptions::default() };
            Cached::new(OwnStore::new(simulated(options), BYTES_MIN), mode)
        });
    }
}

#[test]
fn host_stores_are_devices_like_any_other() {
    for (mode, way) in
        [(Mode::Writeback, Way::Ring), (Mode::Pdc, Way::Ring), (Mode::Pdc, Way::Calls)]
    {
        block_suite::run(&|| Cached::new(host_store(way), mode));
    }
}

#[test]
fn a_host_store_tells_what_reads_find_in_the_page_cache() {
    const BYTES: usize = 256 << 10;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    for way in [Way::Ring, Way::Calls] {
        let path = dir.path().join("volume");
        std::fs::write(&path, vec![7; SECTORS as usize * SECTOR_BYTES]).expect("file");
        let file = std::fs::File::open(&path).expect("open");
        file.sync_all().expect("synced");
        let device = Cached::new(host_store_on(&path, way), Mode::Writeback);
        let waiter = Waiter::new(device.clone());
        let read = |from: u64| {
            let before = device.totals().hits_and_misses?;
            let data = waiter.read(Sector(from), BYTES).expect("read");
            assert!(data.iter().all(|byte| *byte == 7));
            let (hits, misses) = device.totals().hits_and_misses?;
            Some((hits - before.0, misses - before.1))
        };
        let all = (BYTES / SECTOR_BYTES) as u64;
        if read(0).is_none() {
            eprintln!("skipped: {}: its file system does not tell hits", dir.path().display());
            return;
        }
        assert_eq!(read(0), Some((all, 0)), "{way:?}: just read");
        let dropped = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, dropped).expect("dropped");
        assert_eq!(read(0), Some((0, all)), "{way:?}: dropped");
    }
}

/// A journal's write that is alone goes past the cache, one beside data goes with it; neither is
/// there afterwards.
#[test]
fn a_host_store_keeps_no_journal_by_either_way() {
    const PIECE: usize = 32 << 10;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    for way in [Way::Ring, Way::Calls] {
        let path = dir.path().join("volume");
        std::fs::write(&path, vec![7; SECTORS as usize * SECTOR_BYTES]).expect("file");
        let file = std::fs::File::open(&path).expect("open");
        file.sync_all().expect("synced");
        // Of a large folio that the file was written by the kernel drops no part.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
        let (cached, direct) = devices_on(&path, way);
        let device = Cached::new(HostStore::new(cached.clone(), direct.clone(), true), Mode::Pdc);
        device.mark_journal(Sector(4096), 4096);
        let waiter = Waiter::new(device.clone());
        let pieces = |beside_data: bool, byte: u8| {
            for piece in 0..16 {
                if beside_data {
                    let data = Buffer::copy_of(&[byte; 4096]);
                    waiter.write(Sector(piece * 8), data, false).expect("data");
                }
                let at = Sector(4096 + piece * PIECE as u64 / SECTOR_BYTES as u64);
                let log = Buffer::copy_of(&[byte; PIECE]);
                waiter.write(at, log, false).expect("a journal's write");
                waiter.flush().expect("flush");
            }
            (cached.totals().writes, direct.totals().writes)
        };
        waiter.flush().expect("flush");
        assert_eq!(pieces(false, 1), (0, 16), "{way:?}: past the cache");
        assert_eq!(device.totals().forgotten_bytes, 0);
        assert_eq!(pieces(true, 2), (32, 16), "{way:?}: with the data");
        let totals = device.totals();
        assert_eq!(totals.bypassed_bytes, 2 * 16 * PIECE as u64);
        assert_eq!(totals.forgotten_bytes, 16 * PIECE as u64, "{way:?}");
        let found = waiter.read(Sector(4096), 16 * PIECE).expect("read");
        assert!(found.iter().all(|byte| *byte == 2), "{way:?}: the newest");
        // The kernel drops no folio that something of its own holds at that moment (compaction, a
        // batch of another CPU), so a piece may stay; a journal that is kept would be all of them.
        if let Some((hits, misses)) = device.totals().hits_and_misses {
            let all = (16 * PIECE / SECTOR_BYTES) as u64;
            assert_eq!(hits + misses, all, "{way:?}");
            assert!(hits <= all / 4, "{way:?}: {hits} of {all} sectors were kept");
        }
    }
}

#[test]
fn simulated_media_behind_a_host_store_too() {
    for seed in 0..3 {
        block_suite::run(&|| {
            let options = SimOptions { delay: Some(seed), depth: 4, ..SimOptions::default() };
            let disk = simulated(options);
            Cached::new(HostStore::new(disk.clone(), disk, true), Mode::Pdc)
        });
    }
}

/// What is in flight on a road: the range, and for a write its new byte.
struct Flying {
    first: u64,
    end: u64,
    write: Option<u8>,
}

/// Dirty blocks take the cache's room, not the medium's; beside them a hole stays one, also where
/// blocks of it are in the cache: given up, or read.
#[test]
fn a_dirty_own_store_knows_the_holes_of_its_medium() {
    let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(SECTORS * SECTOR_BYTES as u64).expect("size");
    let (medium, _) = devices_on(&path, Way::Calls);
    let store = OwnStore::new(medium, BYTES_MIN);
    let waiter = Waiter::new(Cached::new(store.clone(), Mode::Writeback));
    waiter.write(Sector(64), Buffer::copy_of(&[1; 8192]), false).expect("kept");
    assert_eq!(store.allocation(Sector(0), 1024), (Allocation::Hole, 64));
    assert_eq!(store.allocation(Sector(64), 1024), (Allocation::Data, 8));
    assert_eq!(store.allocation(Sector(75), 1024), (Allocation::Data, 5));
    assert_eq!(store.allocation(Sector(80), 512), (Allocation::Hole, 512));
    waiter.flush().expect("flushed");
    let (allocation, _) = store.allocation(Sector(64), 16);
    assert_eq!(allocation, Allocation::Data, "the medium has it now");
    assert_eq!(store.allocation(Sector(80), 8), (Allocation::Hole, 8));
    waiter.discard(Sector(64), 8).expect("given up");
    waiter.read(Sector(256), 8192).expect("zeros");
    waiter.write(Sector(128), Buffer::copy_of(&[1; 512]), false).expect("kept");
    assert_eq!(store.allocation(Sector(64), 8), (Allocation::Hole, 8), "given up");
    assert_eq!(store.allocation(Sector(256), 16), (Allocation::Hole, 16), "read");
    assert_eq!(store.allocation(Sector(128), 8), (Allocation::Data, 1));
}

/// Random requests on two roads, several in flight, writes with any admission, against a model.
/// Requests in flight together share blocks but no sector, so every answer is known.
fn any_admission_agrees_with_a_model(store: Arc<dyn Store>, seed: u64, steps: usize) {
    const AREA: u64 = 4096;
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; AREA as usize];
    let mut roads: Vec<Box<dyn Road>> = (0..2).map(|_| store.clone().road(false)).collect();
    let mut flying: Vec<Option<Flying>> = Vec::new();
    let mut done = Vec::new();
    for step in 0..steps {
        let longest = if rng.percent(5) { 300 } else { 24 };
        let count = 1 + rng.below(longest);
        let first = rng.below(AREA - count);
        let end = first + count;
        let clash = |other: &Flying| other.first < end && first < other.end;
        let which = rng.below(2) as usize;
        let admission = *rng.pick(&[Admission::Normal, Admission::Cold, Admission::Bypass]);
        let tag = flying.len() as u64;
        let byte = (step % 250) as u8 + 1;
        let fua = rng.percent(15);
        if !roads[which].has_room() {
            collect(&mut roads, &mut done, &mut flying, &mut model);
            continue;
        }
        let (request, write) = match rng.below(10) {
            0 => (Request::without_data(Op::Flush, Sector(0), 0, tag), None),
            _ if flying.iter().flatten().any(clash) => {
                collect(&mut roads, &mut done, &mut flying, &mut model);
                continue;
            }
            1 => (Request::without_data(Op::Discard, Sector(first), count, tag), Some(0)),
            2..=5 => {
                let data = vec![Buffer::copy_of(&vec![byte; count as usize * SECTOR_BYTES])];
                (Request::with_data(Op::Write { fua }, Sector(first), data, tag), Some(byte))
            }
            _ => {
                let data = vec![Buffer::zeroed(count as usize * SECTOR_BYTES)];
                (Request::with_data(Op::Read, Sector(first), data, tag), None)
            }
        };
        let (first, end) = if request.op == Op::Flush { (0, 0) } else { (first, end) };
        flying.push(Some(Flying { first, end, write }));
        match roads[which].submit(request, admission) {
            Submitted::Done(completion) => done.push(completion),
            Submitted::Pending => {}
            Submitted::Busy(_) => panic!("there was room"),
        }
        if rng.percent(40) {
            collect(&mut roads, &mut done, &mut flying, &mut model);
        }
    }
    while flying.iter().any(Option::is_some) {
        roads.iter_mut().for_each(|road| road.park());
        collect(&mut roads, &mut done, &mut flying, &mut model);
    }
}

fn collect(
    roads: &mut [Box<dyn Road>],
    done: &mut Vec<Completion>,
    flying: &mut [Option<Flying>],
    model: &mut [u8],
) {
    roads.iter_mut().for_each(|road| road.poll(done));
    for completion in done.drain(..) {
        let tag = completion.tag as usize;
        let flown = flying[tag].take().expect("answered once");
        assert_eq!(completion.result, Ok(()), "{:?}", completion.op);
        let range = flown.first as usize..flown.end as usize;
        match flown.write {
            Some(byte) => model[range].fill(byte),
            None if completion.op == Op::Read => {
                for (sector, bytes) in range.zip(completion.data[0].chunks(SECTOR_BYTES)) {
                    let expected = model[sector];
                    assert!(bytes.iter().all(|b| *b == expected), "sector {sector}: {}", bytes[0]);
                }
            }
            None => {}
        }
    }
}

#[test]
fn marks_that_change_under_a_load_never_show_old_data() {
    for seed in 0..12 {
        let options = SimOptions { delay: Some(seed), depth: 6, ..SimOptions::default() };
        let own = OwnStore::new(simulated(options), BYTES_MIN);
        any_admission_agrees_with_a_model(own, seed, 4000);
    }
    for (seed, way) in [(1, Way::Ring), (2, Way::Ring), (3, Way::Calls)] {
        any_admission_agrees_with_a_model(host_store(way), seed, 4000);
    }
}

#[test]
fn threads_and_marks_at_once_lose_nothing() {
    let options = SimOptions { delay: Some(3), depth: 8, ..SimOptions::default() };
    let own: Arc<dyn Store> = OwnStore::new(simulated(options), BYTES_MIN);
    for store in [own, host_store(Way::Ring)] {
        let device = Cached::new(store, Mode::Pdc);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let device = device.clone();
                scope.spawn(move || writer(&device, thread));
            }
        });
        let waiter = Waiter::new(device);
        for thread in 0..6u64 {
            let found = waiter.read(Sector(thread), SECTOR_BYTES).expect("read");
            assert_eq!(found[0], 120 + thread as u8);
        }
    }
}

/// Owns every sixth sector of the first 600 and leaves a number of its own in the last round.
fn writer(device: &Arc<Cached>, thread: u64) {
    let waiter = Waiter::new(device.clone());
    for round in 0..20u64 {
        let byte = if round == 19 { 120 + thread as u8 } else { round as u8 };
        if thread == 0 {
            // What is a journal changes all the time.
            device.mark_journal(Sector(round * 30), 24);
        }
        for sector in (thread..600).step_by(6) {
            let data = Buffer::copy_of(&[byte; SECTOR_BYTES]);
            waiter.write(Sector(sector), data, sector % 5 == 0).expect("write");
        }
        waiter.flush().expect("flush");
        for sector in (thread..600).step_by(18) {
            let found = waiter.read(Sector(sector), SECTOR_BYTES).expect("read");
            assert!(found.iter().all(|b| *b == byte), "thread {thread} sector {sector}");
        }
    }
}

/// Random requests, cut at every event: each sector shows its last durable content or a later one.
#[test]
fn after_a_power_cut_nothing_durable_is_lost() {
    const SMALL: u64 = 64;
    for seed in 0..30 {
        let empty = Image::zeroed(SMALL as usize * SECTOR_BYTES);
        let options = SimOptions { record: true, ..SimOptions::default() };
        let disk = SimDisk::new(empty.clone(), options);
        let mode = CACHED[seed as usize % 3];
        let device = Cached::new(OwnStore::new(disk.clone(), BYTES_MIN), mode);
        device.mark_journal(Sector(16), 16);
        let waiter = Waiter::new(device);
        let mut rng = Rng::new(seed);
        let mut allowed: Vec<Vec<u8>> = vec![vec![0]; SMALL as usize];
        let mut history = vec![(0, allowed.clone())];
        for step in 0..16u8 {
            let (sector, count) = (rng.below(SMALL - 12), rng.below(12) + 1);
            let (fua, flush) = (rng.percent(20), rng.percent(30));
            let value = if rng.percent(15) { 0 } else { 0x80 + step };
            let range = sector as usize..(sector + count) as usize;
            if !flush {
                allowed[range.clone()].iter_mut().for_each(|held| held.push(value));
            }
            history.push((disk.position(), allowed.clone()));
            match (flush, value) {
                (true, _) => waiter.flush().expect("flush"),
                (false, 0) => waiter.discard(Sector(sector), count).expect("discard"),
                (false, _) => {
                    let data = Buffer::copy_of(&vec![value; count as usize * SECTOR_BYTES]);
                    waiter.write(Sector(sector), data, fua).map(drop).expect("write");
                }
            }
            let durable = if flush { 0..SMALL as usize } else { range };
            if flush || (value != 0 && (fua || mode.is_durable())) {
                allowed[durable].iter_mut().for_each(|held| drop(held.drain(..held.len() - 1)));
            }
            history.push((disk.position(), allowed.clone()));
        }
        check_cuts(&empty, &disk, &history, seed);
    }
}

fn check_cuts(empty: &Image, disk: &SimDisk, history: &[(usize, Vec<Vec<u8>>)], seed: u64) {
    let events = disk.events();
    let mut crash = Crash::new(empty, &events);
    let mut rng = Rng::new(seed ^ 0xc0de);
    loop {
        let at = history.iter().rposition(|(position, _)| *position <= crash.position());
        let allowed = &history[at.expect("a state before")].1;
        for fates in crash.choices(&mut rng, 3, 3) {
            let image = crash.image(&Tear::at(SECTOR_BYTES), |index| fates[index]).bytes();
            for (sector, content) in image.chunks(SECTOR_BYTES).enumerate() {
                let (byte, held) = (content[0], &allowed[sector]);
                assert!(
                    content.iter().all(|b| *b == byte) && held.contains(&byte),
                    "seed {seed} event {} sector {sector}: {byte:#x}, not of {held:x?}",
                    crash.position()
                );
            }
        }
        if crash.advance().is_none() {
            return;
        }
    }
}

#[test]
fn dirty_data_outlives_a_failed_write_and_a_failed_flush() {
    let one = |byte| Buffer::copy_of(&[byte; SECTOR_BYTES]);
    let disk = simulated(SimOptions::default());
    let waiter = Waiter::new(Cached::new(OwnStore::new(disk.clone(), BYTES_MIN), Mode::Writeback));
    disk.set_fault(Some(Fault::eio(FaultOn::Write, 0)));
    waiter.write(Sector(3), one(7), false).expect("into the cache");
    assert!(matches!(waiter.flush(), Err(Error::Medium(_))), "its write failed");
    assert_eq!(waiter.read(Sector(3), SECTOR_BYTES).expect("read")[0], 7);
    waiter.flush().expect("the medium is well again, and nothing was forgotten");
    let mut sector = [0; SECTOR_BYTES];
    disk.image().read(3 * SECTOR_BYTES, &mut sector);
    assert_eq!(sector[0], 7);
    disk.set_fault(Some(Fault::eio(FaultOn::Flush, 0)));
    waiter.write(Sector(4), one(8), false).expect("into the cache");
    assert!(waiter.flush().is_err());
    assert_eq!(waiter.read(Sector(4), SECTOR_BYTES).expect("read")[0], 8);
    assert_eq!(waiter.flush(), Err(Error::Stopped), "a second flush proves nothing");
    assert_eq!(waiter.write(Sector(5), one(9), false).map(drop), Err(Error::Stopped));
}

#[test]
fn memory_and_dirty_blocks_are_bounded_and_an_end_in_good_order_loses_nothing() {
    let disk = simulated(SimOptions { record: true, ..SimOptions::default() });
    let device = Cached::new(OwnStore::new(disk.clone(), BYTES_MIN), Mode::Writeback);
    let waiter = Waiter::new(device.clone());
    // Four times the cache, never flushed.
    for sector in (0..8192).step_by(8) {
        let data = Buffer::copy_of(&vec![(sector / 8 % 255) as u8; 8 * SECTOR_BYTES]);
        waiter.write(Sector(sector), data, false).expect("write");
    }
    assert!(disk.position() > 20, "more than half of the cache is never dirty");
    // What waits to be written keeps its place, for as long as the writer of this machine takes.
    waiter.flush().expect("flush");
    for _ in 0..2 {
        for sector in (0..800).step_by(8) {
            waiter.read(Sector(sector), 8 * SECTOR_BYTES).expect("read");
        }
    }
    let (hits, misses) = device.totals().hits_and_misses.expect("own memory knows");
    assert!(hits >= 700 && misses >= 1, "{hits} {misses}");
    let last = Buffer::copy_of(&[255; 8 * SECTOR_BYTES]);
    waiter.write(Sector(8184), last, false).expect("a write that nobody flushes");
    drop((waiter, device));
    let mut sector = [0; SECTOR_BYTES];
    for number in (0..8192usize).step_by(8) {
        disk.image().read(number * SECTOR_BYTES, &mut sector);
        let written = if number == 8184 { 255 } else { (number / 8 % 255) as u8 };
        assert_eq!(sector[0], written);
    }
}

#[test]
fn what_is_marked_goes_past_the_cache_and_is_counted() {
    let disk = simulated(SimOptions::default());
    let device = Cached::new(OwnStore::new(disk.clone(), BYTES_MIN), Mode::Pdc);
    device.mark_journal(Sector(80), 16);
    let waiter = Waiter::new(device.clone());
    let data = Buffer::copy_of(&[5; 16 * SECTOR_BYTES]);
    waiter.write(Sector(80), data, false).expect("write");
    let mut sector = [0; SECTOR_BYTES];
    disk.image().read(80 * SECTOR_BYTES, &mut sector);
    assert_eq!(sector[0], 0, "it waits for the flush");
    waiter.write(Sector(80), Buffer::copy_of(&[6; SECTOR_BYTES]), true).expect("FUA");
    waiter.flush().expect("flush");
    disk.image().read(80 * SECTOR_BYTES, &mut sector);
    assert_eq!(sector[0], 6);
    disk.image().read(81 * SECTOR_BYTES, &mut sector);
    assert_eq!(sector[0], 5);
    let totals = device.totals();
    assert_eq!(totals.bypassed_bytes, 17 * 512);
    assert_eq!(totals.regions, [Region::at(80 * 512, 16 * 512)]);
    assert_eq!(waiter.read(Sector(80), SECTOR_BYTES).expect("read")[0], 6);
    assert_eq!(waiter.read(Sector(81), SECTOR_BYTES).expect("read")[0], 5);
}

/// Three quarters of the cache are read again and again while a journal of four times its size is
/// written. The share of reads that find their block, and what is counted of it.
fn hits_beside_a_journal(mode: Mode) -> (u64, u64) {
    const HOT: u64 = BYTES_MIN / 4096 * 3 / 4;
    let device = Cached::new(OwnStore::new(Arc::new(RamDevice::new(SECTORS)), BYTES_MIN), mode);
    device.mark_journal(Sector(4096), 4096);
    let waiter = Waiter::new(device.clone());
    for round in 0..4 {
        for block in 0..HOT {
            waiter.read(Sector(block * 8), 4096).expect("read");
        }
        for piece in 0..32 {
            let at = Sector(4096 + (round * 32 + piece) * 64 % 4096);
            waiter.write(at, Buffer::zeroed(32 << 10), false).expect("a journal's write");
            waiter.flush().expect("flush");
        }
    }
    let (hits, misses) = device.totals().hits_and_misses.expect("own memory knows");
    assert_eq!(hits + misses, 4 * HOT * 8, "in sectors");
    (hits, misses)
}

#[test]
fn a_journal_takes_no_hits_from_what_is_read_again() {
    let (hits, misses) = hits_beside_a_journal(Mode::Pdc);
    assert_eq!(hits, misses * 3, "all but the first round");
    let (polluted, _) = hits_beside_a_journal(Mode::Writeback);
    assert!(polluted < hits, "{polluted} hits of {hits}");
}
