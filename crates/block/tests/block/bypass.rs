//! Volumes in a pool file, on media that the tests control: the contract of a device, power cuts,
//! and damaged directories. Real hosts are in `tests/tests/bypass.rs`.

use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_block::bypass::{
    BypassVolume, Directory, DirectoryError, Extents, Id, Layout, PoolBytes, Road, Volume,
};
use polylane_block::device::{
    Allocation, BlockDevice, Channel, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use polylane_block::medium::{Medium, Space};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_sys::extents::HostExtent;
use polylane_testkit::block_suite;
use polylane_testkit::effort::number;
use polylane_testkit::sim::{Crash, Gate, Image, SimDisk, SimOptions, Tear};

const POOL: Id = [7; 16];
const CHUNK: u64 = 4096;

/// Small enough for a cut at every event.
const SMALL: Layout = Layout { head_bytes: 0, record_pages: 1, entry_pages: 1, chunk_bytes: CHUNK };
const SMALL_CHUNKS: u32 = 24;

fn small_sectors() -> u64 {
    SMALL.chunk_at(SMALL_CHUNKS) / SECTOR_BYTES as u64
}

fn id(number: u8) -> Id {
    [number; 16]
}

/// Makes a volume as a pool file does.
fn make(road: &Road, layout: Layout, id: Id, size: u64) -> Result<Volume, DirectoryError> {
    let mut directory = Directory::load_to_change(road, layout, POOL)?;
    directory.reclaim(road)?;
    let volume = directory.begin(road, id, size)?;
    for chunk in directory.unclean(&volume) {
        road.zero(layout.chunk_at(chunk), layout.chunk_bytes)?;
    }
    road.flush()?;
    directory.finish(road, &volume)?;
    Ok(volume)
}

fn open(road: Road, layout: Layout, id: Id) -> Arc<BypassVolume> {
    BypassVolume::open((POOL, id), layout, vec![road], None, Box::new(|_| ())).expect("open")
}

/// The pool file's pages of 8 KiB in an order that has nothing to do with theirs.
fn shuffled(bytes: u64, disk_sectors: u64) -> Extents {
    const PIECE: u64 = 8192;
    let mut places: Vec<u64> = (1..=bytes.div_ceil(PIECE)).collect();
    let mut rng = Rng::new(3);
    for at in (1..places.len()).rev() {
        places.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let extent = |(at, place): (usize, &u64)| HostExtent {
        offset: at as u64 * PIECE,
        physical: place * PIECE,
        length: PIECE,
        unwritten: false,
        shared: false,
        flags: 0,
    };
    let found: Vec<_> = places.iter().enumerate().map(extent).collect();
    Extents::new(&found, bytes, disk_sectors).expect("good")
}

/// A volume of 1 MiB and a bit in chunks of 32 KiB that lie in pieces all over a disk.
fn scattered(disk: impl Fn(u64) -> Arc<dyn BlockDevice>) -> Arc<BypassVolume> {
    let layout = Layout { chunk_bytes: 32 << 10, ..SMALL };
    let bytes = layout.chunk_at(40);
    let sectors = bytes / 512 + 64;
    let disk = disk(sectors);
    let road = || Road::new(disk.clone(), shuffled(bytes, sectors));
    Directory::format(&road(), layout, POOL, 40).expect("format");
    make(&road(), layout, id(1), (1 << 20) + 4096).expect("make");
    open(road(), layout, id(1))
}

#[test]
fn a_volume_in_pieces_keeps_the_contract() {
    block_suite::run(&|| scattered(|sectors| Arc::new(RamDevice::new(sectors))));
}

/// The disk answers late, in any order, and is often busy.
#[test]
fn a_volume_on_a_slow_disk_keeps_the_contract() {
    block_suite::run(&|| {
        scattered(|sectors| {
            let options = SimOptions { delay: Some(5), depth: 3, ..SimOptions::default() };
            SimDisk::new(Image::zeroed(sectors as usize * SECTOR_BYTES), options)
        })
    });
}

#[test]
fn an_error_of_any_slice_is_the_requests_once() {
    use polylane_testkit::sim::{Fault, FaultOn};
    let layout = Layout { chunk_bytes: 32 << 10, ..SMALL };
    let bytes = layout.chunk_at(8);
    let sectors = bytes / 512 + 64;
    let options = SimOptions { delay: Some(1), ..SimOptions::default() };
    let disk = SimDisk::new(Image::zeroed(sectors as usize * SECTOR_BYTES), options);
    let road = || Road::new(disk.clone(), shuffled(bytes, sectors));
    Directory::format(&road(), layout, POOL, 8).expect("format");
    make(&road(), layout, id(1), 8 * (32 << 10)).expect("make");
    let volume = open(road(), layout, id(1));
    let waiter = Waiter::new(volume);
    for nth in 0..8 {
        disk.set_fault(Some(Fault::eio(FaultOn::Write, nth)));
        let write = |tag: u64| {
            let op = Op::Write { fua: false };
            Request::with_data(op, Sector(tag * 128), vec![Buffer::zeroed(64 << 10)], tag)
        };
        let done = waiter.all([write(0), write(1)]);
        let failed = done.iter().filter(|completion| completion.result.is_err()).count();
        assert_eq!((done.len(), failed), (2, 1), "fault {nth}");
    }
}

#[test]
fn discarded_chunks_serve_other_volumes_which_see_zeros() {
    let disk = Arc::new(RamDevice::new(small_sectors()));
    let road = || Road::new(disk.clone(), Extents::identity(small_sectors()));
    Directory::format(&road(), SMALL, POOL, SMALL_CHUNKS).expect("format");
    make(&road(), SMALL, id(1), 20 * CHUNK).expect("make");
    let full = make(&road(), SMALL, id(2), 5 * CHUNK).expect_err("no room");
    assert_eq!(full, DirectoryError::NoChunks { free: 4, needed: 5 });
    let one = open(road(), SMALL, id(1));
    let first = Waiter::new(one.clone());
    first.write(Sector(0), Buffer::copy_of(&vec![9; 20 * 4096]), false).expect("write");
    // All of chunks 1 to 9, and parts of 0 and 10.
    first.discard(Sector(4), 80).expect("discard");
    let read = first.read(Sector(0), 20 * 4096).expect("read");
    for (sector, bytes) in read.chunks(512).enumerate() {
        let expected = if (4..84).contains(&sector) { 0 } else { 9 };
        assert!(bytes.iter().all(|byte| *byte == expected), "sector {sector}");
    }
    assert_eq!(one.allocation(Sector(9), 100), (Allocation::Hole, 7));
    assert_eq!(
        one.runs(0..160).expect("runs").iter().filter(|r| r.space == Space::Hole).count(),
        9
    );
    make(&road(), SMALL, id(2), 13 * CHUNK).expect("there is room now");
    let second = Waiter::new(open(road(), SMALL, id(2)));
    assert!(second.read(Sector(0), 13 * 4096).expect("read").iter().all(|byte| *byte == 0));
    // What it gave away is gone: writes there find no room until there is some again.
    let refused = first.write(Sector(8), Buffer::zeroed(512), false).expect_err("no room");
    assert_eq!(refused, Error::NoSpace);
    second.discard(Sector(0), 13 * 8).expect("discard");
    first.write(Sector(9), Buffer::copy_of(&[5; 512]), false).expect("room again");
    let read = first.read(Sector(8), 1024).expect("read");
    assert!(read[..512].iter().all(|b| *b == 0) && read[512..].iter().all(|b| *b == 5));
    one.allocate(16..24).expect("a hole gets its chunk");
    assert_eq!(one.allocation(Sector(8), 100), (Allocation::Data, 8));
    assert_eq!(one.allocation(Sector(24), 100).0, Allocation::Hole);
    first.write_zeroes(Sector(25), 8, false).expect("zeros that have space");
    assert_eq!(one.allocation(Sector(24), 100).0, Allocation::Data);
    assert_eq!(one.allocation(Sector(32), 100).0, Allocation::Data);
    assert!(first.read(Sector(24), 8192).expect("read").iter().all(|byte| *byte == 0));
    let mut directory = Directory::load_to_change(&road(), SMALL, POOL).expect("load");
    let volume = directory.find(&id(1)).expect("there");
    directory.remove(&road(), &volume).expect("remove");
    assert_eq!(directory.find(&id(1)), Err(DirectoryError::NoVolume));
    assert_eq!(directory.free_chunks(), SMALL_CHUNKS);
}

/// Zeros that take space, for many holes, some of them in chunks that others wrote: a flush that
/// comes while they are made is answered before them.
#[test]
fn many_holes_get_their_chunks_in_turns() {
    const CHUNKS: u32 = 40;
    let sectors = SMALL.chunk_at(CHUNKS) / SECTOR_BYTES as u64;
    let image = Image::zeroed(sectors as usize * SECTOR_BYTES);
    let gate = Gate::new(SimDisk::new(image, SimOptions::default()));
    let road = || Road::new(gate.clone(), Extents::identity(sectors));
    Directory::format(&road(), SMALL, POOL, CHUNKS).expect("format");
    make(&road(), SMALL, id(1), u64::from(CHUNKS) * CHUNK).expect("make");
    let volume = open(road(), SMALL, id(1));
    let waiter = Waiter::new(volume.clone());
    let bytes = CHUNKS as usize * CHUNK as usize;
    waiter.write(Sector(0), Buffer::copy_of(&vec![9; bytes]), false).expect("write");
    let count = u64::from(CHUNKS) * 8;
    waiter.discard(Sector(0), count).expect("discard");
    let mut channel = volume.clone().channel();
    gate.shut();
    let zeroes = Op::WriteZeroes { unmap: false, fua: false };
    let submit = |channel: &mut dyn Channel, request| {
        assert!(matches!(channel.submit(request), Submitted::Pending));
    };
    submit(&mut *channel, Request::without_data(zeroes, Sector(4), count - 4, 1));
    gate.wait("the first turn", |held| held.first().copied());
    submit(&mut *channel, Request::without_data(Op::Flush, Sector(0), 0, 2));
    gate.open();
    let mut done = Vec::new();
    gate.wait("both", |_| {
        channel.poll(&mut done);
        (done.len() == 2).then_some(())
    });
    let done: Vec<_> = done.iter().map(|it| (it.tag, it.result)).collect();
    assert_eq!(done, [(2, Ok(())), (1, Ok(()))]);
    for sector in (0..count).step_by(8) {
        assert_eq!(volume.allocation(Sector(sector), 8), (Allocation::Data, 8), "{sector}");
    }
    assert!(waiter.read(Sector(0), bytes).expect("read").iter().all(|byte| *byte == 0));
}

/// What each sector of a volume may show after a cut: its last durable content, and later ones.
type Allowed = Vec<Vec<u8>>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { sector: u64, count: u64, fua: bool },
    Discard { sector: u64, count: u64 },
    Zero { sector: u64, count: u64, unmap: bool, fua: bool },
    Flush,
}

const VOLUME_CHUNKS: u64 = 10;
const VOLUME_SECTORS: u64 = VOLUME_CHUNKS * CHUNK / 512;

fn step(rng: &mut Rng) -> Step {
    let sector = rng.below(VOLUME_SECTORS - 1);
    let count = rng.below((VOLUME_SECTORS - sector).min(30)) + 1;
    match rng.below(8) {
        0..=2 => Step::Write { sector, count, fua: rng.percent(30) },
        3..=4 => Step::Discard { sector, count },
        5 => Step::Zero { sector, count, unmap: rng.percent(50), fua: rng.percent(30) },
        _ => Step::Flush,
    }
}

/// Does a step; what may be there meanwhile goes to `allowed` before, what must be after.
fn run(
    waiter: &Waiter,
    step: Step,
    value: u8,
    allowed: &mut Allowed,
    begun: &mut dyn FnMut(&Allowed),
) {
    let (value, range, fua) = match step {
        Step::Write { sector, count, fua } => (value, sector..sector + count, fua),
        Step::Discard { sector, count } => (0, sector..sector + count, false),
        Step::Zero { sector, count, fua, .. } => (0, sector..sector + count, fua),
        Step::Flush => (0, 0..0, false),
    };
    let range = range.start as usize..range.end as usize;
    allowed[range.clone()].iter_mut().for_each(|held| held.push(value));
    begun(allowed);
    match step {
        Step::Write { sector, count, fua } => {
            let data = Buffer::copy_of(&vec![value; count as usize * SECTOR_BYTES]);
            waiter.write(Sector(sector), data, fua).map(drop)
        }
        Step::Discard { sector, count } => waiter.discard(Sector(sector), count),
        Step::Zero { sector, count, unmap, fua } => {
            let op = Op::WriteZeroes { unmap, fua };
            waiter.all([Request::without_data(op, Sector(sector), count, 0)])[0].result
        }
        Step::Flush => waiter.flush(),
    }
    .expect("the medium is well");
    let durable = match step {
        Step::Flush => 0..VOLUME_SECTORS as usize,
        _ if fua => range,
        _ => 0..0,
    };
    for held in &mut allowed[durable] {
        held.drain(..held.len() - 1);
    }
}

/// Opens a volume of an image and compares.
fn check(image: Image, volume: u8, allowed: &Allowed, what: &str) {
    let disk = SimDisk::new(image, SimOptions::default());
    let road = Road::new(disk, Extents::identity(small_sectors()));
    let waiter = Waiter::new(open(road, SMALL, id(volume)));
    let read = waiter.read(Sector(0), VOLUME_SECTORS as usize * SECTOR_BYTES).expect("read");
    for (sector, bytes) in read.chunks(SECTOR_BYTES).enumerate() {
        let byte = bytes[0];
        assert!(
            bytes.iter().all(|other| *other == byte) && allowed[sector].contains(&byte),
            "{what}, volume {volume}, sector {sector}: {byte:#x}, not of {:x?}",
            allowed[sector]
        );
    }
}

/// A new volume of all that is free shows nothing of anybody's.
fn check_new(image: Image, what: &str) {
    let disk = SimDisk::new(image, SimOptions::default());
    let road = || Road::new(disk.clone(), Extents::identity(small_sectors()));
    let mut directory = Directory::load_to_change(&road(), SMALL, POOL).expect("load");
    directory.reclaim(&road()).expect("reclaim");
    let free = u64::from(directory.free_chunks());
    if free == 0 {
        return;
    }
    make(&road(), SMALL, id(99), free * CHUNK).expect("make");
    let waiter = Waiter::new(open(road(), SMALL, id(99)));
    let read = waiter.read(Sector(0), (free * CHUNK) as usize).expect("read");
    assert!(read.iter().all(|byte| *byte == 0), "{what}: a new volume holds something");
}

/// Two volumes that give chunks away and take them, and a third that is made and removed, cut at
/// every event.
#[test]
fn after_a_power_cut_every_sector_shows_durable_content_or_later() {
    let (begin, limit) = (std::time::Instant::now(), number("POLYLANE_CRASH_SECONDS", 0));
    let (mut seed, mut states) = (0, 0);
    while seed < 6 || begin.elapsed().as_secs() < limit {
        states += cut_everywhere(seed);
        seed += 1;
    }
    println!("{seed} workloads, {states} states");
    assert!(states > 1000, "{states} states");
}

fn cut_everywhere(seed: u64) -> usize {
    let first = {
        let disk = SimDisk::new(
            Image::zeroed(small_sectors() as usize * SECTOR_BYTES),
            SimOptions::default(),
        );
        let road = Road::new(disk.clone(), Extents::identity(small_sectors()));
        Directory::format(&road, SMALL, POOL, SMALL_CHUNKS).expect("format");
        for volume in [1, 2] {
            make(&road, SMALL, id(volume), VOLUME_CHUNKS * CHUNK).expect("make");
        }
        disk.image()
    };
    let disk = SimDisk::new(first.clone(), SimOptions { record: true, ..SimOptions::default() });
    let road = || Road::new(disk.clone(), Extents::identity(small_sectors()));
    let waiters = [1, 2].map(|volume| Waiter::new(open(road(), SMALL, id(volume))));
    let zeros: Allowed = (0..VOLUME_SECTORS).map(|_| vec![0]).collect();
    let mut allowed = [zeros.clone(), zeros];
    let mut history = vec![(0, allowed.clone())];
    let mut rng = Rng::new(seed);
    for number in 0..24u8 {
        let which = rng.below(2) as usize;
        let value = number + 1 + 100 * which as u8;
        let mut own = allowed[which].clone();
        let other = allowed[1 - which].clone();
        run(&waiters[which], step(&mut rng), value, &mut own, &mut |now| {
            let mut both = [now.clone(), other.clone()];
            if which == 1 {
                both.swap(0, 1);
            }
            history.push((disk.position(), both));
        });
        allowed[which] = own;
        history.push((disk.position(), allowed.clone()));
        if number % 8 == 5 && make(&road(), SMALL, id(3), 2 * CHUNK).is_ok() {
            let mut directory = Directory::load_to_change(&road(), SMALL, POOL).expect("load");
            let third = directory.find(&id(3)).expect("made");
            directory.remove(&road(), &third).expect("remove");
            history.push((disk.position(), allowed.clone()));
        }
    }
    let events = disk.events();
    let (mut crash, mut rng) = (Crash::new(&first, &events), Rng::new(seed ^ 0xc0de));
    let (tear, mut states) = (Tear::at(SECTOR_BYTES), 0);
    loop {
        let at = history.iter().rposition(|(position, _)| *position <= crash.position());
        let allowed = &history[at.expect("a state before")].1;
        for fates in crash.choices(&mut rng, 2, 2) {
            let image = crash.image(&tear, |index| fates[index]);
            let what = format!("seed {seed}, event {}", crash.position());
            check(image.clone(), 1, &allowed[0], &what);
            check(image.clone(), 2, &allowed[1], &what);
            check_new(image, &what);
            states += 1;
        }
        if crash.advance().is_none() {
            return states;
        }
    }
}

#[test]
fn a_damaged_directory_is_mended_from_its_copy_or_named() {
    let disk = Arc::new(RamDevice::new(small_sectors()));
    let road = Road::new(disk.clone(), Extents::identity(small_sectors()));
    Directory::format(&road, SMALL, POOL, SMALL_CHUNKS).expect("format");
    let volume = make(&road, SMALL, id(1), 9 * CHUNK).expect("make");
    let waiter = Waiter::new(disk);
    let pages = 3;
    let directory = waiter.read(Sector(0), 2 * pages * 4096).expect("read");
    let load = || Directory::load(&road, SMALL, POOL);
    let mut rng = Rng::new(8);
    for _ in 0..200 {
        let mut damaged = Buffer::copy_of(&directory);
        let (copy, page) = (rng.below(2) as usize, rng.below(pages as u64) as usize);
        let at =
            |copy: usize, rng: &mut Rng| (copy * pages + page) * 4096 + rng.below(4096) as usize;
        damaged[at(copy, &mut rng)] ^= 1 << rng.below(8);
        waiter.write(Sector(0), Buffer::copy_of(&damaged), false).expect("write");
        assert_eq!(load().expect("the other copy").find(&id(1)), Ok(volume));
        damaged[at(1 - copy, &mut rng)] ^= 1 << rng.below(8);
        waiter.write(Sector(0), damaged, false).expect("write");
        assert_eq!(load().expect_err("damaged"), DirectoryError::Page(page as u32));
    }
    waiter.write(Sector(0), directory, false).expect("write");
    assert_eq!(load().expect("whole").find(&id(1)), Ok(volume));
    assert_eq!(Directory::load(&road, SMALL, id(8)).expect_err("other"), DirectoryError::Page(0));
    let geometry = Directory::load(&road, Layout { chunk_bytes: 8192, ..SMALL }, POOL);
    assert_eq!(geometry.expect_err("other"), DirectoryError::Geometry(SMALL_CHUNKS, CHUNK));
}
