//! Small files that were kept and are stored together: by few writes, whole, each with its times;
//! and what cannot be stored so is stored all the same.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use polylane_base::{Errno, Ino, TestClock, Time};
use polylane_block::Error as DeviceError;
use polylane_ext4::{Ext4, Options};
use polylane_testkit::sim::{Fault, FaultOn, Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, FileSystem, Kind, Late, NewNode};

use crate::common;

const ROOT: Ino = Ino(2);
const FILES: usize = 60;

fn open(disk: &Arc<SimDisk>) -> Ext4 {
    Ext4::open(disk.clone(), Arc::new(TestClock::default()), &Options::default()).unwrap()
}

fn new_disk() -> Arc<SimDisk> {
    let bytes = common::image(32, &[common::LANE, &["-J", "size=4"]].concat());
    SimDisk::new(Image::new(bytes), SimOptions::default())
}

/// A file's bytes: 1 to 9000, now and then as many as no run holds.
fn content(at: usize) -> Vec<u8> {
    let len = if at % 20 == 7 { (1 << 20) + 5 } else { 1 + at * 607 % 9000 };
    (0..len).map(|byte| (byte * 7 + at * 31) as u8).collect()
}

fn times(at: usize) -> [Time; 2] {
    let time = |sec| Time { sec, nsec: at as u32 };
    [time(1_000_000_000), time(1_100_000_000)]
}

fn name(at: usize) -> Vec<u8> {
    format!("file-{at}").into_bytes()
}

/// Makes a file, with room for its bytes promised.
fn make(fs: &Ext4, at: usize) -> Ino {
    let new = NewNode::new(Kind::File, 0o644);
    let ino = fs.create(&OpCtx::service(), ROOT, &name(at), &new).unwrap().node.ino;
    fs.reserve(&OpCtx::service(), ino, 0, content(at).len() as u64).unwrap();
    ino
}

fn store(fs: &Ext4, files: &[Ino]) -> Vec<Result<Attr, Errno>> {
    let contents: Vec<_> = (0..files.len()).map(content).collect();
    let mut sources: Vec<_> = contents.iter().map(|bytes| &bytes[..]).collect();
    let mut writes = Vec::new();
    for (at, (ino, source)) in files.iter().zip(&mut sources).enumerate() {
        writes.push(Late { ino: *ino, offset: 0, source, times: times(at) });
    }
    fs.write_late(&OpCtx::service(), &mut writes)
}

fn check(fs: &Ext4, at: usize) {
    let attr = fs.lookup(&OpCtx::service(), ROOT, &name(at)).unwrap();
    let expected = content(at);
    let mut bytes = vec![0; expected.len() + 1];
    let count = fs.read(&OpCtx::service(), attr.ino, 0, bytes.len(), &mut &mut bytes[..]).unwrap();
    assert!(bytes[..count] == expected[..], "file {at}");
    assert_eq!([attr.mtime, attr.ctime], times(at));
    let blocks = expected.len().div_ceil(4096) as u64;
    assert_eq!((attr.size, attr.blocks), (expected.len() as u64, 8 * blocks));
}

/// Closes, has e2fsck look, opens again and compares everything.
fn close_and_check(fs: &Ext4, disk: &SimDisk) {
    let free = fs.statfs(&OpCtx::service()).unwrap().bfree;
    fs.close().unwrap();
    let device = common::load(&disk.image().bytes());
    assert_eq!(common::complaints(&device), None);
    let fs = common::open(&device);
    (0..FILES).for_each(|at| check(&fs, at));
    assert_eq!(
        fs.statfs(&OpCtx::service()).unwrap().bfree,
        free,
        "no promise is left, no block is lost"
    );
}

#[test]
fn many_small_files_are_a_few_writes() {
    if !common::have_tools() {
        return;
    }
    let disk = new_disk();
    let fs = open(&disk);
    let files: Vec<Ino> = (0..FILES).map(|at| make(&fs, at)).collect();
    // One has bytes already.
    fs.write(&OpCtx::service(), files[11], 0, &mut &[9; 5000][..]).unwrap();
    let before = disk.requests();
    let stored = store(&fs, &files);
    let writes = disk.requests() - before;
    for (at, stored) in stored.iter().enumerate() {
        assert_eq!(stored.map(|attr| [attr.mtime, attr.ctime]), Ok(times(at)));
        check(&fs, at);
    }
    assert!(writes <= 20, "{writes} requests for {FILES} files");
    close_and_check(&fs, &disk);
}

/// From each write on the host has no room, for a while: what was refused is stored later, and
/// nothing that was promised is lost or promised twice.
#[test]
fn what_finds_no_room_is_stored_later() {
    if !common::have_tools() {
        return;
    }
    let (mut nth, mut refused) = (0, 0);
    loop {
        let disk = new_disk();
        let fs = open(&disk);
        let files: Vec<Ino> = (0..FILES).map(|at| make(&fs, at)).collect();
        let before = disk.failures();
        let error = DeviceError::NoSpace;
        disk.set_fault(Some(Fault { on: FaultOn::Write, nth, error, lasting: true }));
        let failed = store(&fs, &files).iter().filter(|stored| stored.is_err()).count();
        disk.set_fault(None);
        refused += failed;
        assert!(store(&fs, &files).iter().all(Result::is_ok), "no room from write {nth} on");
        close_and_check(&fs, &disk);
        if disk.failures() == before {
            break;
        }
        nth += 5;
    }
    assert!(refused > FILES, "{refused} were refused");
}
