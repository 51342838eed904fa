//! The device on files of this host, every way that requests can go.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::device::{Error, Op, Request, Sector};
use crate::qos;
use crate::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_sys::uring::{Action, Finished};
use rustix::fs::Mode;

const MIB: u64 = 1 << 20;

struct Disk {
    path: tempfile::TempPath,
}

impl Disk {
    fn new(bytes: u64) -> Disk {
        Disk::new_in(&std::env::temp_dir(), bytes)
    }

    fn new_in(dir: &std::path::Path, bytes: u64) -> Disk {
        let file = tempfile::NamedTempFile::new_in(dir).expect("file");
        file.as_file().set_len(bytes).expect("size");
        Disk { path: file.into_temp_path() }
    }

    fn open(&self, way: Way, direct: bool) -> Arc<FileDevice> {
        let open = |flags| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
            rustix::fs::open(&*self.path, flags, Mode::empty())
        };
        let plain = open(OFlags::empty()).expect("open");
        let io = match direct {
            true => open(OFlags::DIRECT).or_else(|_| open(OFlags::empty())).expect("open"),
            false => open(OFlags::empty()).expect("open"),
        };
        let lock = open(OFlags::empty()).expect("open");
        FileDevice::open(Files { io, plain, lock }, way).expect("device")
    }
}

/// Every way that requests can go.
fn ways() -> impl Iterator<Item = (Way, bool)> {
    [Way::Ring, Way::Calls].into_iter().flat_map(|way| [true, false].map(|direct| (way, direct)))
}

#[test]
fn what_is_written_is_read_and_outlives_the_device() {
    for (way, direct) in ways() {
        let disk = Disk::new(4 * MIB);
        let waiter = Waiter::new(disk.open(way, direct));
        for (sector, bytes) in [(0, 4096), (9, 512), (4097, 3 * 512), (8, 512)] {
            let data = Buffer::copy_of(&vec![sector as u8 + 1; bytes]);
            waiter.write(Sector(sector), data, sector == 9).expect("write");
        }
        waiter.flush().expect("flush");
        drop(waiter);
        let waiter = Waiter::new(disk.open(way, direct));
        let read = waiter.read(Sector(7), 4 * 512).expect("read");
        let firsts: Vec<u8> = read.iter().step_by(512).copied().collect();
        assert_eq!(firsts, [1, 9, 10, 0], "{way:?} {direct}");
        assert!(waiter.read(Sector(4097), 1536).expect("read").iter().all(|b| *b == 2));
        assert_eq!(waiter.read(Sector(8192), 512).unwrap_err(), Error::OutOfRange);
    }
}

#[test]
fn zeroed_and_discarded_ranges_read_as_zeros_and_their_space_comes_back() {
    use std::os::unix::fs::MetadataExt;
    for (way, direct) in ways() {
        let disk = Disk::new(4 * MIB);
        let waiter = Waiter::new(disk.open(way, direct));
        let used = || std::fs::metadata(&*disk.path).expect("stat").blocks() * 512;
        waiter.write(Sector(0), Buffer::copy_of(&vec![7; 2 << 20]), true).expect("write");
        assert!(used() >= 2 * MIB);
        waiter.write_zeroes(Sector(0), 2047, false).expect("zero");
        waiter.write_zeroes(Sector(2048), 1024, true).expect("zero");
        waiter.discard(Sector(3072), 1023).expect("discard");
        let read = waiter.read(Sector(0), 2 << 20).expect("read");
        for (sector, bytes) in read.chunks(512).enumerate() {
            let expected = if matches!(sector, 2047 | 4095) { 7 } else { 0 };
            assert!(bytes.iter().all(|b| *b == expected), "{way:?} {direct} sector {sector}");
        }
        assert!(used() < 2 * MIB, "{way:?} {direct}: {} bytes in use", used());
    }
}

/// On a host that has a call for it (ext4, XFS, Btrfs), and on one that has none (tmpfs).
#[test]
fn zeros_that_may_not_be_a_hole_have_space() {
    use std::os::unix::fs::MetadataExt;
    let temporary = std::env::temp_dir();
    let dirs = [temporary.as_path(), std::path::Path::new("/dev/shm")];
    for (dir, (way, direct)) in dirs.into_iter().flat_map(|dir| ways().map(move |way| (dir, way))) {
        let disk = Disk::new_in(dir, 4 * MIB);
        let waiter = Waiter::new(disk.open(way, direct));
        let used = || std::fs::metadata(&*disk.path).expect("stat").blocks() * 512;
        waiter.write(Sector(0), Buffer::copy_of(&vec![7; 1 << 20]), true).expect("write");
        waiter.write_zeroes(Sector(0), 4096, false).expect("zero");
        assert!(used() >= 2 * MIB, "{}: {} bytes in use", disk.path.display(), used());
        let read = waiter.read(Sector(0), 2 << 20).expect("read");
        assert!(read.iter().all(|byte| *byte == 0), "{}", disk.path.display());
    }
}

#[test]
fn many_requests_at_once_come_back_each_once_with_back_pressure() {
    for (way, direct) in ways() {
        let disk = Disk::new(8 * MIB);
        let device = disk.open(way, direct);
        let waiter = Waiter::new(device.clone());
        let many = 16 * u64::from(DEPTH);
        let write = |tag: u64| {
            let op = Op::Write { fua: false };
            Request::with_data(op, Sector(tag), vec![Buffer::copy_of(&[tag as u8; 512])], tag)
        };
        let mut tags: Vec<u64> = waiter.all((0..many).map(write)).iter().map(|c| c.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..many).collect::<Vec<_>>());
        let read = waiter.read(Sector(0), (many * 512) as usize).expect("read");
        assert!(read.chunks(512).enumerate().all(|(i, bytes)| bytes[0] == i as u8));
        let totals = device.totals();
        assert_eq!((totals.writes, totals.reads, totals.failed), (many, 1, 0));
        assert_eq!((totals.written_bytes, totals.direct), (many * 512, totals.direct && direct));
    }
}

#[test]
fn a_request_of_many_pieces_arrives_whole() {
    for (way, direct) in ways() {
        let disk = Disk::new(4 * MIB);
        let waiter = Waiter::new(disk.open(way, direct));
        let pieces = (0..3000u32).map(|n| Buffer::copy_of(&[n as u8; 512])).collect();
        let op = Op::Write { fua: true };
        let done = waiter.all([Request::with_data(op, Sector(1), pieces, 0)]);
        assert_eq!((done[0].result, done[0].data.len()), (Ok(()), 3000), "{way:?} {direct}");
        let read = waiter.read(Sector(1), 3000 * 512).expect("read");
        assert!(read.chunks(512).enumerate().all(|(i, bytes)| bytes.iter().all(|b| *b == i as u8)));
    }
}

#[test]
fn a_file_cut_behind_our_back_is_a_medium_error() {
    for (way, direct) in ways() {
        let disk = Disk::new(MIB);
        let waiter = Waiter::new(disk.open(way, direct));
        std::fs::OpenOptions::new()
            .write(true)
            .open(&*disk.path)
            .expect("open")
            .set_len(4096)
            .expect("cut");
        let error = waiter.read(Sector(1024), 512).unwrap_err();
        assert_eq!(error, Error::Medium(Errno::EIO), "{way:?} {direct}");
    }
}

#[test]
fn a_failed_flush_stops_the_device() {
    // /dev/full takes no byte, and fdatasync on a character device is EINVAL.
    let open = || rustix::fs::open("/dev/full", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    for way in [Way::Ring, Way::Calls] {
        let [io, plain, lock] = [(); 3].map(|()| open().expect("open"));
        let files = Files { io, plain, lock };
        let mut device = FileDevice::open(files, way).expect("device");
        Arc::get_mut(&mut device).expect("alone").sectors = 100.into();
        let waiter = Waiter::new(device.clone());
        let full = waiter.write(Sector(0), Buffer::zeroed(512), false).unwrap_err();
        assert_eq!(full, Error::NoSpace);
        assert!(!device.is_stopped(), "space may come back");
        assert_eq!(waiter.flush().unwrap_err(), Error::Medium(Errno::EINVAL));
        assert!(device.is_stopped());
        assert_eq!(waiter.read(Sector(0), 512).unwrap_err(), Error::Stopped);
    }
}

/// Also those that are not aligned for direct I/O, which a sync of their own makes durable.
#[test]
fn durable_writes_of_any_alignment_arrive() {
    for (way, direct) in ways() {
        let disk = Disk::new(4 * MIB);
        let device = disk.open(way, direct);
        let waiter = Waiter::new(device.clone());
        for (sector, bytes) in [(0, 512), (8, 4096), (17, 1536), (64, 1 << 20)] {
            let data = Buffer::copy_of(&vec![sector as u8 + 1; bytes]);
            waiter.write(Sector(sector), data, true).expect("durable");
            let read = waiter.read(Sector(sector), bytes).expect("read");
            assert!(read.iter().all(|byte| *byte == sector as u8 + 1), "{way:?} {direct} {sector}");
        }
        assert!(!device.is_stopped());
    }
}

/// What a request asks of the host, each answered as `answers` says, and what it comes to.
fn asked(device: &FileDevice, answers: &[Result<usize>]) -> (Vec<Action>, Option<Answered>) {
    let op = Op::Write { fua: true };
    let request = Request::with_data(op, Sector(8), vec![Buffer::zeroed(4096)], 0);
    let mut task = match task::Task::new(device, request) {
        Ok(task) => task,
        Err(completion) => return (Vec::new(), Some(completion.result)),
    };
    let mut actions = Vec::new();
    for result in answers {
        let operation = task.operation(device, 0);
        actions.push(operation.action);
        if let task::Next::Over(over) = task.step(device, Finished { operation, result: *result }) {
            return (actions, Some(task.complete(over).result));
        }
    }
    drop(task.complete(Ok(())));
    (actions, None)
}

/// What a request is answered.
type Answered = std::result::Result<(), Error>;

/// As the kernel does for a disk without FUA: a write, and a flush behind it.
#[test]
fn where_the_host_refuses_durable_writes_a_flush_follows() {
    let [durable, plain] = [true, false].map(|durable| Action::Write { durable });
    for errno in [Errno::EOPNOTSUPP, Errno::EINVAL] {
        let disk = Disk::new(MIB);
        let device = disk.open(Way::Calls, true);
        let refused = asked(&device, &[Err(errno), Err(errno)]);
        assert_eq!(refused, (vec![durable, plain], Some(Err(Error::Medium(errno)))), "all ways");
        assert!(!device.totals().refuses_durable && !device.is_stopped());
        let first = asked(&device, &[Err(errno), Ok(4096), Ok(0)]);
        assert_eq!(first, (vec![durable, plain, Action::Sync], Some(Ok(()))));
        let next = asked(&device, &[Ok(1024), Ok(3072), Ok(0)]);
        assert_eq!(next, (vec![plain, plain, Action::Sync], Some(Ok(()))), "not asked again");
        assert!(device.totals().refuses_durable, "it is told");
        // The write itself was at fault: as any other that is not durable.
        let failed = asked(&device, &[Err(errno)]);
        assert_eq!(failed, (vec![plain], Some(Err(Error::Medium(errno)))));
        assert!(!device.is_stopped());
        let unflushed = asked(&device, &[Ok(4096), Err(Errno::EIO)]);
        assert_eq!(unflushed, (vec![plain, Action::Sync], Some(Err(Error::Medium(Errno::EIO)))));
        assert!(device.is_stopped(), "a failed flush");
    }
    let disk = Disk::new(MIB);
    let device = disk.open(Way::Calls, true);
    let failed = asked(&device, &[Err(Errno::EIO)]);
    assert_eq!(failed, (vec![durable], Some(Err(Error::Medium(Errno::EIO)))));
    assert!(device.is_stopped(), "a durable write that failed, not one that was refused");
    assert_eq!(asked(&device, &[]), (vec![], Some(Err(Error::Stopped))));
}

/// One of two flushes at a time is told that a page was lost, and stops the device.
#[test]
fn a_flush_beside_one_that_failed_is_not_told_done() {
    let disk = Disk::new(MIB);
    let device = disk.open(Way::Calls, true);
    let flush = || {
        task::Task::new(&device, Request::without_data(Op::Flush, Sector(0), 0, 0)).expect("one")
    };
    let [mut first, mut second] = [flush(), flush()];
    let operations = [first.operation(&device, 0), second.operation(&device, 1)];
    let results = [Err(Errno::EIO), Ok(0)];
    let mut answers = Vec::new();
    for ((task, operation), result) in
        [&mut first, &mut second].into_iter().zip(operations).zip(results)
    {
        match task.step(&device, Finished { operation, result }) {
            task::Next::Over(over) => answers.push(over),
            task::Next::Go => panic!("a flush is one operation"),
        }
    }
    assert_eq!(answers, [Err(Error::Medium(Errno::EIO)), Err(Error::Stopped)]);
    drop([first, second].map(|task| task.complete(Ok(()))));
}

/// A loop device has a cache and no FUA: the kernel flushes behind each durable write.
#[test]
fn a_disk_without_fua_is_flushed_by_the_kernel() {
    let below = Disk::new(4 * MIB);
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&*below.path).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return eprintln!("skipped: needs root and loop devices");
    };
    let path = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
    let name = path.file_name().expect("a device").to_owned();
    let told = |what: &str| {
        let dir = Path::new("/sys/block").join(&name);
        std::fs::read_to_string(dir.join(what)).expect("readable")
    };
    // Documentation/block/stat.rst: the 16th number is of flush requests.
    let flushes = || told("stat").split_whitespace().nth(15).map(|count| count.parse::<u64>());
    let flushes = || flushes().expect("Linux 5.5").expect("a number");
    let outcome = std::panic::catch_unwind(|| {
        assert_eq!(
            (told("queue/fua").trim(), told("queue/write_cache").trim()),
            ("0", "write back")
        );
        for way in [Way::Ring, Way::Calls] {
            let open = |flags| {
                rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())
            };
            let [plain, lock] = [(); 2].map(|()| open(OFlags::empty()).expect("open"));
            let io = open(OFlags::DIRECT).expect("open");
            let device = FileDevice::open(Files { io, plain, lock }, way).expect("device");
            let waiter = Waiter::new(device.clone());
            let before = flushes();
            waiter.write(Sector(8), Buffer::copy_of(&[way as u8 + 1; 4096]), false).expect("write");
            assert_eq!(flushes(), before, "{way:?}: none behind what is not durable");
            waiter.write(Sector(64), Buffer::copy_of(&[way as u8 + 3; 4096]), true).expect("write");
            assert!(flushes() > before, "{way:?}: one behind what is");
            assert_eq!(waiter.read(Sector(64), 512).expect("read")[0], way as u8 + 3);
            assert!(!device.refuses_durable.load(Ordering::Relaxed), "the kernel sees to it");
        }
    });
    let gone = Command::new("losetup").arg("--detach").arg(&path).status();
    assert!(gone.is_ok_and(|gone| gone.success()));
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn holes_are_told_from_data_and_a_longer_file_is_a_larger_device() {
    let disk = Disk::new(MIB);
    let device = disk.open(Way::Calls, true);
    let waiter = Waiter::new(device.clone());
    waiter.write(Sector(1024), Buffer::copy_of(&[1; 4096]), false).expect("write");
    assert_eq!(device.allocation(Sector(0), 2048), (Allocation::Hole, 1024));
    assert_eq!(device.allocation(Sector(1024), 1024), (Allocation::Data, 8));
    assert_eq!(device.allocation(Sector(1032), 100), (Allocation::Hole, 100));
    assert_eq!(waiter.read(Sector(2048), 512).unwrap_err(), Error::OutOfRange);
    let file = std::fs::OpenOptions::new().write(true).open(&*disk.path).expect("open");
    file.set_len(2 * MIB).expect("longer");
    device.grow().expect("grow");
    assert_eq!(device.sector_count(), 4096);
    waiter.read(Sector(2048), 512).expect("there");
    file.set_len(MIB).expect("shorter");
    device.grow().expect("grow");
    assert_eq!(device.sector_count(), 4096);
}

#[test]
fn a_channel_says_when_it_has_something() {
    use rustix::event::{PollFd, PollFlags, poll};
    let disk = Disk::new(MIB);
    let mut channel = disk.open(Way::Ring, true).channel();
    if channel.event().is_none() {
        return;
    }
    let read = Request::with_data(Op::Read, Sector(0), vec![Buffer::zeroed(4096)], 5);
    assert!(matches!(channel.submit(read), crate::Submitted::Pending));
    let mut done = Vec::new();
    channel.poll(&mut done);
    if done.is_empty() {
        let event = channel.event().expect("a ring");
        poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], None).expect("poll");
        channel.poll(&mut done);
    }
    assert_eq!(done.len(), 1);
}

#[test]
fn a_channel_rests_until_something_is_over_or_a_watched_descriptor_changes() {
    use crate::freeze::Freezable;
    let disks = [Disk::new(MIB), Disk::new(MIB)];
    let event = polylane_sys::event::eventfd().expect("event");
    let device = Freezable::new(disks[0].open(Way::Ring, true));
    let mut channel = device.clone().channel();
    if !channel.watch(&[event.as_fd()]) {
        return println!("SKIP: no io_uring here");
    }
    // Nobody polls before the rest, which has to start the request itself.
    let served = |channel: &mut dyn Channel| {
        let read = Request::with_data(Op::Read, Sector(0), vec![Buffer::zeroed(4096)], 5);
        assert!(matches!(channel.submit(read), crate::Submitted::Pending));
        let mut done = Vec::new();
        while done.is_empty() {
            if !channel.rest() {
                channel.park();
                channel.poll(&mut done);
                return false;
            }
            channel.poll(&mut done);
        }
        done[0].result.is_ok()
    };
    if !served(&mut *channel) {
        return println!("SKIP: the kernel cannot poll more than once");
    }
    let frozen = device.freeze(std::time::Duration::from_secs(30)).expect("freeze");
    let flush = Request::without_data(Op::Flush, Sector(0), 0, 1);
    assert!(matches!(channel.submit(flush), crate::Submitted::Pending));
    assert!(!channel.rest(), "what waits for the thaw is nothing to rest for");
    frozen.replace(disks[1].open(Way::Ring, true)).expect("replace");
    drop(frozen);
    let mut done = Vec::new();
    while done.is_empty() {
        channel.poll(&mut done);
        channel.park();
    }
    assert!(served(&mut *channel), "the device that took its place watches, too");
    polylane_sys::event::notify(&event);
    assert!(channel.rest());
}

/// Limits of bandwidth count zeros that are written by hand, from the first request on that tells.
#[test]
fn zeros_that_are_written_by_hand_are_writes() {
    let zeroes = |unmap| Op::WriteZeroes { unmap, fua: false };
    let kind = |device: &Arc<FileDevice>, op| qos::Kind::of(op, &**device);
    for way in [Way::Ring, Way::Calls] {
        let disk = Disk::new_in(Path::new("/dev/shm"), 4 * MIB);
        let device = disk.open(way, false);
        let waiter = Waiter::new(device.clone());
        assert_eq!(kind(&device, zeroes(false)), qos::Kind::Discard, "nothing is known yet");
        waiter.write_zeroes(Sector(0), 16, false).expect("zeros");
        assert_eq!(kind(&device, zeroes(false)), qos::Kind::Write, "a tmpfs zeroes no range");
        waiter.write_zeroes(Sector(0), 16, true).expect("a hole");
        waiter.discard(Sector(0), 16).expect("a hole");
        assert_eq!(kind(&device, zeroes(true)), qos::Kind::Discard);
        assert_eq!(kind(&device, Op::Discard), qos::Kind::Discard);
        let open = || {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(&*disk.path, flags, Mode::empty()).expect("open")
        };
        let files = Files { io: open(), plain: open(), lock: open() };
        let pool = FileDevice::open_pool(files, way).expect("device");
        for op in [zeroes(false), zeroes(true), Op::Discard] {
            assert_eq!(kind(&pool, op), qos::Kind::Write, "no block of it may go");
        }
    }
}
