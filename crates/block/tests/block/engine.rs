//! The engine on every medium: the contract, what the map makes of holes, streams, a full host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_block::device::{Allocation, BlockDevice, Error, Op, Request, SECTOR_BYTES, Sector};
use polylane_block::device::{Completion, Submitted};
use polylane_block::engine::{Engine, Options};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image;
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::medium::Medium;
use polylane_block::qos::{Admission, Io, Kind, Nanos, Verdict};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_testkit::block_suite;
use polylane_testkit::sim::{Fault, FaultOn, Image, SimDisk, SimOptions};

const SECTORS: u64 = 4096;
const CHUNK: u64 = 16 << 10;
const CHUNK_SECTORS: u64 = CHUNK / SECTOR_BYTES as u64;

fn unit() -> Arc<Unit> {
    Unit::start(&UnitOptions { threads: 2, cpus: Vec::new() }).expect("threads")
}

/// Small chunks, so that a small volume has many.
fn options() -> Options {
    Options {
        chunk_bytes: CHUNK,
        ahead_bytes: 4 * CHUNK,
        ahead_always: true,
        prefetch_bytes: 8 * CHUNK,
        reserve_bytes: 0,
        ..Options::default()
    }
}

fn simulated(options: SimOptions) -> Arc<SimDisk> {
    SimDisk::new(Image::zeroed(SECTORS as usize * SECTOR_BYTES), options)
}

fn file(way: Way, direct: bool) -> Arc<FileDevice> {
    let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(SECTORS * SECTOR_BYTES as u64).expect("size");
    let Files { io, plain, lock } = image::open(&path).expect("open");
    let io = if direct { io } else { plain.try_clone().expect("dup") };
    FileDevice::open(Files { io, plain, lock }, way).expect("device")
}

fn suite(make: &dyn Fn() -> Arc<dyn Medium>) {
    let unit = unit();
    for must_translate in [false, true] {
        let options = Options { must_translate, ..options() };
        block_suite::run(&|| Engine::open(make(), Some(unit.clone()), &options).expect("open"));
    }
    block_suite::run(&|| Engine::open(make(), None, &options()).expect("open"));
}

#[test]
fn an_engine_is_a_device_like_any_other_in_memory() {
    suite(&|| Arc::new(RamDevice::new(SECTORS)));
}

#[test]
fn an_engine_is_a_device_like_any_other_on_a_late_disk() {
    for seed in 0..3 {
        let pause = Duration::from_micros(20 * (seed % 2));
        let options = SimOptions { delay: Some(seed), depth: 5, pause, ..SimOptions::default() };
        suite(&|| simulated(options.clone()));
    }
}

#[test]
fn an_engine_is_a_device_like_any_other_on_files() {
    suite(&|| file(Way::Ring, true));
    for (way, direct) in [(Way::Ring, false), (Way::Calls, true), (Way::Calls, false)] {
        let unit = unit();
        let open = || Engine::open(file(way, direct), Some(unit.clone()), &options());
        block_suite::run(&|| open().expect("open"));
    }
}

fn filled(sectors: u64, byte: u8) -> Buffer {
    Buffer::copy_of(&vec![byte; sectors as usize * SECTOR_BYTES])
}

/// Waits until `condition` holds; false if it never does.
fn comes_true(condition: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn holes_are_read_without_the_medium_and_no_longer_once_they_are_written() {
    let disk = simulated(SimOptions::default());
    let engine = Engine::open(disk.clone(), Some(unit()), &options()).expect("open");
    let surveyed = SECTORS / CHUNK_SECTORS / 8;
    assert!(comes_true(|| engine.totals().translations >= surveyed));
    let waiter = Waiter::new(engine);
    let read = |sector, count: u64| {
        waiter.read(Sector(sector), count as usize * SECTOR_BYTES).expect("read")
    };
    let before = disk.requests();
    assert!(read(0, SECTORS).iter().all(|byte| *byte == 0));
    waiter.discard(Sector(3), 1000).expect("discard");
    waiter.write_zeroes(Sector(0), SECTORS, true).expect("zeroes");
    assert_eq!(disk.requests(), before, "the medium was not asked");
    waiter.write_zeroes(Sector(0), CHUNK_SECTORS, false).expect("zeros that have space");
    assert_eq!(disk.requests(), before + 1);
    let before = before + 1;
    waiter.write(Sector(40), filled(1, 7), false).expect("write");
    assert_eq!(read(40, 1)[0], 7);
    assert_eq!(disk.requests(), before + 2);
    // The rest is still known; a discard of all brings this chunk back too.
    assert!(read(64, SECTORS - 64).iter().all(|byte| *byte == 0));
    assert_eq!(disk.requests(), before + 2);
    waiter.discard(Sector(0), SECTORS).expect("discard");
    let after = disk.requests();
    assert!(read(0, SECTORS).iter().all(|byte| *byte == 0));
    assert_eq!(disk.requests(), after);
}

#[test]
fn a_stream_of_small_writes_finds_its_space_made_and_what_it_does_not_use_goes_back() {
    let disk = simulated(SimOptions::default());
    let engine = Engine::open(disk.clone(), Some(unit()), &options()).expect("open");
    let waiter = Waiter::new(engine.clone());
    let all = disk.free_blocks();
    for at in 0..40 {
        waiter.write(Sector(at * 8), filled(8, 9), false).expect("write");
        // Slow enough that the unit keeps ahead.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(comes_true(|| engine.totals().made_ahead >= 4), "{:?}", engine.totals());
    assert!(all - disk.free_blocks() > 40);
    let read = waiter.read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read");
    assert!(read[..40 * 4096].iter().all(|byte| *byte == 9));
    assert!(read[40 * 4096..].iter().all(|byte| *byte == 0));
    drop((waiter, engine));
    assert_eq!(all - disk.free_blocks(), 40, "blocks that were written, in whole chunks");
}

/// What a journal reserved keeps its space, whatever the unit makes around it.
#[test]
fn what_is_reserved_is_no_space_that_was_made_ahead() {
    let file = file(Way::Calls, false);
    let engine = Engine::open(file.clone(), Some(unit()), &options()).expect("open");
    let reserved = Sector(3 * CHUNK_SECTORS);
    if engine.reserve(reserved, 8) == Err(Error::Unsupported) {
        eprintln!("skipped: the host's file system reserves no space");
        return;
    }
    let waiter = Waiter::new(engine.clone());
    for at in 0..CHUNK_SECTORS / 8 * 2 {
        waiter.write(Sector(at * 8), filled(8, 9), false).expect("write");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(comes_true(|| engine.totals().made_ahead >= 3), "{:?}", engine.totals());
    let filled = || engine.allocation(reserved, 8) == (Allocation::Data, 8);
    assert!(comes_true(filled), "the stream made the chunk's space");
    engine.pause();
    assert!(filled(), "what was reserved went back");
    assert_eq!(engine.reserve(Sector(SECTORS - 1), u64::MAX), Err(Error::OutOfRange));
    assert_eq!(engine.reserve(Sector(1 << 60), 1), Err(Error::OutOfRange));
}

/// Threads write, read and discard in each other's chunks while the unit makes space: a zero
/// written ahead of somebody would show.
#[test]
fn space_made_ahead_never_takes_data_away() {
    for seed in 0..6u64 {
        let pause = Duration::from_micros(60);
        let disk = simulated(SimOptions { delay: Some(seed), pause, ..SimOptions::default() });
        let engine = Engine::open(disk, Some(unit()), &options()).expect("open");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let waiter = Waiter::new(engine.clone());
                scope.spawn(move || stream_and_look(&waiter, thread, seed));
            }
        });
    }
}

/// Every fourth block of a range is this thread's: the four are neighbours in each chunk.
fn stream_and_look(waiter: &Waiter, thread: u64, seed: u64) {
    let byte = |at: u64| (at * 4 + thread + seed) as u8 | 1;
    for at in 0..100 {
        let sector = Sector((at * 4 + thread) * 8);
        waiter.write(sector, filled(8, byte(at)), at % 11 == 0).expect("write");
        if at % 7 == 3 {
            waiter.discard(sector, 8).expect("discard");
            waiter.write(sector, filled(8, byte(at)), false).expect("write");
        }
        let back = Sector(((at / 2) * 4 + thread) * 8);
        let read = waiter.read(back, 4096).expect("read");
        assert!(read.iter().all(|found| *found == byte(at / 2)), "thread {thread} block {at}");
    }
    for at in 0..100 {
        let read = waiter.read(Sector((at * 4 + thread) * 8), 4096).expect("read");
        assert!(read.iter().all(|found| *found == byte(at)), "thread {thread} block {at}");
    }
}

#[test]
fn a_full_host_stops_what_is_ahead_and_answers_the_rest_until_there_is_room() {
    let disk = simulated(SimOptions { blocks: 50, ..SimOptions::default() });
    let engine = Engine::open(disk.clone(), Some(unit()), &options()).expect("open");
    let waiter = Waiter::new(engine);
    let mut written = 0;
    let error = loop {
        match waiter.write(Sector(written * 8), filled(8, 5), false) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoSpace);
    waiter.flush().expect("what was acknowledged can be made durable");
    let read = waiter.read(Sector(0), written as usize * 4096).expect("read");
    // What was made ahead is not given back: up to four chunks, and the one that is written.
    assert!(written * 4096 >= 50 * 4096 - 5 * CHUNK, "{written}");
    assert!(read.iter().all(|byte| *byte == 5));
    disk.set_blocks(512);
    waiter.write(Sector(written * 8), filled(8, 6), true).expect("there is room again");
    assert_eq!(waiter.read(Sector(written * 8), 512).expect("read")[0], 6);
}

#[test]
fn below_the_reserve_nothing_is_made_ahead() {
    let disk = simulated(SimOptions { blocks: 100, ..SimOptions::default() });
    let options = Options { reserve_bytes: 90 * 4096, ..options() };
    let engine = Engine::open(disk.clone(), Some(unit()), &options).expect("open");
    let waiter = Waiter::new(engine.clone());
    for at in 0..60 {
        waiter.write(Sector(at * 8), filled(8, 5), false).expect("write");
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(engine.totals().made_ahead <= 2, "{:?}", engine.totals());
}

#[test]
fn errors_of_the_medium_come_through_once_and_the_volume_goes_on() {
    for on in [FaultOn::Write, FaultOn::Zero, FaultOn::Read] {
        let disk = simulated(SimOptions { delay: Some(3), ..SimOptions::default() });
        let engine = Engine::open(disk.clone(), Some(unit()), &options()).expect("open");
        let waiter = Waiter::new(engine);
        waiter.write(Sector(0), filled(8, 1), true).expect("write");
        disk.set_fault(Some(Fault::eio(on, 0)));
        let failed = match on {
            FaultOn::Write => waiter.write(Sector(0), filled(8, 2), false).map(drop),
            FaultOn::Zero => waiter.discard(Sector(0), CHUNK_SECTORS),
            _ => waiter.read(Sector(0), 4096).map(drop),
        };
        assert!(matches!(failed, Err(Error::Medium(_))), "{on:?}: {failed:?}");
        let read = waiter.read(Sector(0), 4096).expect("read");
        assert!(read.iter().all(|byte| *byte == read[0]) && read[0] <= 2, "{on:?}: {}", read[0]);
        waiter.write(Sector(0), filled(8, 3), false).expect("write");
        assert_eq!(waiter.read(Sector(0), 512).expect("read")[0], 3);
    }
}

/// Lets one request in flight at a time, and counts.
struct OneAtATime {
    state: std::sync::Mutex<(bool, u64)>,
}

impl Admission for OneAtATime {
    fn admit(&self, now: Nanos, _io: &Io) -> Verdict {
        let mut state = self.state.lock().expect("lock");
        if state.0 {
            return Verdict::Wait(now + 50_000);
        }
        *state = (true, state.1 + 1);
        Verdict::Go
    }

    fn complete(&self, _now: Nanos, _io: &Io) {
        let mut state = self.state.lock().expect("lock");
        assert!(std::mem::replace(&mut state.0, false), "completed what did not go");
    }
}

#[test]
fn requests_wait_for_their_turn_and_each_is_charged_once() {
    let admission = Arc::new(OneAtATime { state: Default::default() });
    let options = Options { admission: Some(admission.clone()), ..options() };
    let disk = simulated(SimOptions { delay: Some(1), ..SimOptions::default() });
    let engine = Engine::open(disk, Some(unit()), &options).expect("open");
    let waiter = Waiter::new(engine);
    let write = |tag| {
        let data = vec![filled(1, tag as u8)];
        Request::with_data(Op::Write { fua: false }, Sector(tag), data, tag)
    };
    let done = waiter.all((0..200).map(write));
    assert!(done.iter().all(|completion| completion.result.is_ok()) && done.len() == 200);
    assert_eq!(*admission.state.lock().expect("lock"), (false, 200));
}

/// Lets everything go, and notes it.
#[derive(Default)]
struct Noted(std::sync::Mutex<Vec<Io>>);

impl Admission for Noted {
    fn admit(&self, _now: Nanos, io: &Io) -> Verdict {
        self.0.lock().expect("lock").push(*io);
        Verdict::Go
    }

    fn complete(&self, _now: Nanos, _io: &Io) {}
}

#[test]
fn zeros_that_the_medium_writes_by_hand_are_charged_as_writes() {
    let noted = Arc::new(Noted::default());
    let options = Options { admission: Some(noted.clone()), ..options() };
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("file");
    file.as_file().set_len(SECTORS * 512).expect("size");
    let open = || file.reopen().expect("open").into();
    let files = Files { io: open(), plain: open(), lock: open() };
    let device = FileDevice::open(files, Way::Calls).expect("device");
    let waiter = Waiter::new(Engine::open(device, Some(unit()), &options).expect("open"));
    for _ in 0..2 {
        waiter.write_zeroes(Sector(0), 64, false).expect("zeros");
    }
    let kinds: Vec<_> =
        noted.0.lock().expect("lock").iter().map(|io| (io.kind, io.bytes)).collect();
    assert_eq!(kinds, [(Kind::Discard, 64 * 512), (Kind::Write, 64 * 512)]);
}

#[test]
fn a_descriptor_tells_when_a_turn_has_come() {
    use rustix::event::{PollFd, PollFlags, poll};
    let admission = Arc::new(OneAtATime { state: Default::default() });
    let options = Options { admission: Some(admission), ..options() };
    let engine = Engine::open(file(Way::Ring, true), Some(unit()), &options).expect("open");
    let mut channel = engine.channel();
    if channel.event().is_none() {
        return;
    }
    let mut done: Vec<Completion> = Vec::new();
    for tag in 0..20 {
        let data = vec![filled(8, 3)];
        let request = Request::with_data(Op::Write { fua: false }, Sector(tag * 8), data, tag);
        assert!(matches!(channel.submit(request), Submitted::Pending));
    }
    loop {
        channel.poll(&mut done);
        if done.len() == 20 {
            return;
        }
        let event = channel.event().expect("there was one");
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(event, PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 }),
        );
        assert_eq!(ready, Ok(1), "after {} answers", done.len());
    }
}

#[test]
fn nonsense_sizes_are_refused() {
    for chunk_bytes in [0, 512, 5000, 3 << 20] {
        let options = Options { chunk_bytes, ..options() };
        let opened = Engine::open(Arc::new(RamDevice::new(64)), None, &options).map(drop);
        assert_eq!(opened, Err(Error::OutOfRange), "{chunk_bytes}");
    }
}
