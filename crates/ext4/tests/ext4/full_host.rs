//! A host without room under the image: nothing that was acknowledged is lost, what needs room is
//! refused, and all goes on when there is room again. And what damage leaves in the superblock.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_base::{Errno, Ino, SystemClock, TestClock};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::{BlockDevice, Error as DeviceError};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::sim::{Fault, FaultOn, Image, SimDisk, SimOptions};
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode};
use polylane_vfs::{Cred, OpCtx, Vfs};

use crate::common;

const ROOT: Ino = Ino(2);
const FILE_BYTES: usize = 20_000;
/// Longer than any wait here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn file() -> NewNode<'static> {
    NewNode::new(Kind::File, 0o644)
}

fn name(at: usize) -> Vec<u8> {
    format!("file-{at}").into_bytes()
}

fn content(at: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|byte| (byte * 7 + at * 31) as u8).collect()
}

/// One file made, written and synced; every error is told.
fn make(fs: &Ext4, at: usize) -> Result<(), Errno> {
    let ino = fs.create(&OpCtx::service(), ROOT, &name(at), &file())?.node.ino;
    let bytes = content(at);
    let written = fs.write(&OpCtx::service(), ino, 0, &mut &bytes[..]);
    let done = match written {
        Ok(count) if count < bytes.len() => Err(Errno::ENOSPC),
        other => other.and_then(|_| fs.fsync(&OpCtx::service(), ino, false)),
    };
    fs.forget(ino);
    done
}

fn check(fs: &Ext4, at: usize) {
    let attr = fs.lookup(&OpCtx::service(), ROOT, &name(at)).unwrap();
    let mut bytes = vec![0; FILE_BYTES + 1];
    let count = fs.read(&OpCtx::service(), attr.ino, 0, bytes.len(), &mut &mut bytes[..]).unwrap();
    assert!(count == FILE_BYTES && bytes[..count] == content(at)[..], "file {at}");
    fs.forget(attr.ino);
}

fn open(device: Arc<dyn BlockDevice>) -> Ext4 {
    let mut options = Options::default();
    options.tuning.overlap_blocks = 0;
    Ext4::open(device, Arc::new(TestClock::default()), &options).unwrap()
}

/// From each write of a workload on, the host has no room, for a while.
#[test]
fn a_host_that_is_full_for_a_while_costs_nothing_but_time() {
    if !common::have_tools() {
        return;
    }
    let base = Image::new(common::image(16, &[common::LANE, &["-J", "size=4"]].concat()));
    let (mut refused, mut nth) = (0, 4);
    loop {
        let disk = SimDisk::new(base.clone(), SimOptions::default());
        let fs = open(disk.clone());
        let error = DeviceError::NoSpace;
        disk.set_fault(Some(Fault { on: FaultOn::Write, nth, error, lasting: true }));
        let done: Vec<usize> = (0..12).filter(|at| make(&fs, *at).is_ok()).collect();
        assert!(!fs.is_stopped(), "{:?} at write {nth}", fs.stopped_by());
        let before = disk.failures();
        refused += 12 - done.len();
        // Room again: the names that were refused are free or hold what can be replaced.
        disk.set_fault(None);
        for at in (0..12).filter(|at| !done.contains(at)) {
            if fs.unlink(&OpCtx::service(), ROOT, &name(at)).is_ok_and(|changed| {
                fs.forget(changed.node.ino);
                true
            }) || fs.lookup(&OpCtx::service(), ROOT, &name(at)).is_err()
            {
                make(&fs, at).unwrap();
            }
        }
        (0..12).for_each(|at| check(&fs, at));
        fs.close().unwrap();
        let device = common::load(&disk.image().bytes());
        assert_eq!(common::complaints(&device), None, "no room from write {nth} on");
        let fs = open(device);
        (0..12).for_each(|at| check(&fs, at));
        if before == 0 {
            break;
        }
        nth += 1;
    }
    assert!(refused > 20, "{refused} operations were refused");
}

/// Names are made in memory as long as the journal has room for them; then they are refused, at
/// once, and are made again when the host has room.
#[test]
fn names_are_refused_when_the_journal_cannot_be_written() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(64, &[common::LANE, &["-J", "size=4"]].concat());
    let disk = SimDisk::new(Image::new(bytes), SimOptions::default());
    let fs = open(disk.clone());
    let error = DeviceError::NoSpace;
    disk.set_fault(Some(Fault { on: FaultOn::Write, nth: 0, error, lasting: true }));
    let mut made = 0;
    let refused = loop {
        match fs.create(&OpCtx::service(), ROOT, &name(made), &file()) {
            Ok(changed) => fs.forget(changed.node.ino),
            Err(errno) => break errno,
        }
        made += 1;
    };
    assert!(refused == Errno::ENOSPC && made > 100, "{refused:?} after {made}");
    assert_eq!(fs.sync(&OpCtx::service()), Err(Errno::ENOSPC));
    assert_eq!(fs.unlink(&OpCtx::service(), ROOT, &name(0)).map(|_| ()), Err(Errno::ENOSPC));
    disk.set_fault(None);
    let until = Instant::now() + PATIENCE;
    while make(&fs, made).is_err() {
        assert!(Instant::now() < until, "there is room, and nobody notices");
        std::thread::sleep(Duration::from_millis(20));
    }
    fs.sync(&OpCtx::service()).unwrap();
    fs.close().unwrap();
    let device = common::load(&disk.image().bytes());
    assert_eq!(common::complaints(&device), None);
    let fs = open(device);
    assert!((0..made).all(|at| fs.lookup(&OpCtx::service(), ROOT, &name(at)).is_ok()));
    check(&fs, made);
}

/// A small file system of the host, mounted while this lives.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(mib: u64) -> Option<Host> {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("host.img"), dir.path().join("host"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        run("mke2fs", &["-Fq", "-t", "ext4", "-m", "0", "-O", "^has_journal"], &image);
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).output();
        let host = Host { dir };
        mounted.is_ok_and(|output| output.status.success()).then_some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("host").join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path().join("host")).status();
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    let done = Command::new(program).args(arguments).arg(path).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn device(path: &Path) -> Arc<FileDevice> {
    let open = |flags: i32| -> OwnedFd {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(flags).open(path).unwrap().into()
    };
    let files = Files { io: open(libc_direct()), plain: open(0), lock: open(0) };
    FileDevice::open(files, Way::Ring).unwrap()
}

fn libc_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// A lane promises more than its host has. Somebody else's file leaves, and all goes on.
#[test]
fn a_lane_outlives_a_full_host() {
    let Some(host) = Host::new(64).filter(|_| common::have_tools()) else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let (volume, other) = (host.path("volume"), host.path("other"));
    std::fs::File::create(&volume).unwrap().set_len(256 << 20).unwrap();
    run("mke2fs", &["-Fq", "-t", "ext4", "-b", "4096", "-m", "0", "-N", "1024"], &volume);
    let options = Options::default();
    let fs = Arc::new(Ext4::open(device(&volume), Arc::new(SystemClock), &options).unwrap());
    let small = polylane_testkit::subject::small_options(Arc::new(SystemClock), 4 << 20);
    let vfs = Vfs::new(fs.clone(), small).unwrap();
    let free = rustix::fs::statvfs(host.path("").as_path()).unwrap();
    let left = free.f_bavail * free.f_frsize;
    std::fs::write(&other, vec![1; left as usize - (4 << 20)]).unwrap();

    let cred = Cred::root();
    let write = |at: usize| -> Result<(), Errno> {
        let path = name(at);
        let flags = 0o2 | 0o100;
        let file = vfs.open_path(&OpCtx::as_user(&cred), &vfs.root(), &path, flags, 0o644, 0);
        let file = file.map_err(|_| Errno::ENOSPC)?;
        let bytes = content(at).repeat(8);
        let written = file.write(&OpCtx::as_user(&cred), Some(0), &mut &bytes[..])?;
        file.fsync(&OpCtx::service(), false)?;
        if written.count < bytes.len() { Err(Errno::ENOSPC) } else { Ok(()) }
    };
    let mut at = 0;
    let refused = loop {
        match write(at) {
            Ok(()) => at += 1,
            Err(errno) => break errno,
        }
    };
    assert!(refused == Errno::ENOSPC && (10..200).contains(&at), "{refused:?} after {at}");
    assert!(!fs.is_stopped(), "{:?}", fs.stopped_by());
    // What needs no room works on.
    vfs.unlink(&OpCtx::as_user(&cred), &vfs.root(), &name(0)).unwrap();
    std::fs::remove_file(&other).unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(errno) = write(at) {
        assert!(errno == Errno::ENOSPC && Instant::now() < until, "{errno:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    (at + 1..at + 20).for_each(|more| write(more).unwrap());
    vfs.sync(&OpCtx::service()).unwrap();
    drop(vfs);
    fs.close().unwrap();
    drop(fs);
    run("e2fsck", &["-fn"], &volume);
    let fs = Ext4::open(device(&volume), Arc::new(SystemClock), &options).unwrap();
    for at in 1..at + 20 {
        let attr = fs.lookup(&OpCtx::service(), ROOT, &name(at)).unwrap();
        let mut bytes = vec![0; 8 * FILE_BYTES];
        assert_eq!(
            fs.read(&OpCtx::service(), attr.ino, 0, bytes.len(), &mut &mut bytes[..]),
            Ok(8 * FILE_BYTES)
        );
        assert!(bytes == content(at).repeat(8), "file {at}");
    }
}

/// What e2fsck -fn and dumpe2fs find of an error, and that the file system opens again.
#[test]
fn damage_is_written_down_for_e2fsck() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(16, &[common::LANE, &["-J", "size=4"]].concat());
    let disk = SimDisk::new(Image::new(bytes), SimOptions::default());
    let fs = open(disk.clone());
    make(&fs, 1).unwrap();
    fs.close().unwrap();
    drop(fs);
    // The second half of the root directory's inode: its checksum is wrong now.
    let mut bytes = disk.image().bytes();
    let at = inode_at(&bytes, ROOT.0 as usize);
    bytes[at + 0x90] ^= 0xff;
    let disk = SimDisk::new(Image::new(bytes), SimOptions::default());
    let fs = open(disk.clone());
    assert_eq!(
        fs.lookup(&OpCtx::service(), ROOT, &name(1)).map(|attr| attr.ino),
        Err(Errno::EUCLEAN)
    );
    assert!(fs.is_stopped());
    drop(fs);
    let image = common::save(&common::load(&disk.image().bytes()));
    let said = Command::new("dumpe2fs").arg("-h").arg(image.path()).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    for wanted in ["with errors", "FS Error count:           1", "checksum", "EFSCORRUPTED"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(said.contains("Journal errno:            -117"), "{said}");
    let mended = Command::new("e2fsck").arg("-fy").arg(image.path()).output().unwrap();
    assert!(mended.status.code().is_some_and(|code| code & !3 == 0));
    let fs = open(common::load(&std::fs::read(image.path()).unwrap()));
    check(&fs, 1);
    fs.close().unwrap();
}

/// Where damage has made a directory's name appear below itself, a rename meets the directories
/// that it works in once more. The VFS, which knows the tree, is left out here.
#[test]
fn renames_between_a_directory_and_one_above_it_end() {
    if !common::have_tools() {
        return;
    }
    let bytes = common::image(16, &[common::LANE, &["-J", "size=4"]].concat());
    let fs = open(common::load(&bytes));
    let directory = NewNode { kind: Kind::Dir, ..file() };
    let above = fs.create(&OpCtx::service(), ROOT, b"above", &directory).unwrap().node.ino;
    fs.create(&OpCtx::service(), above, b"below", &directory).unwrap();
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let up = fs.rename(&OpCtx::service(), above, b"below", ROOT, b"above", mode);
        let down = fs.rename(&OpCtx::service(), ROOT, b"above", above, b"below", mode);
        assert_eq!((up, down), (Err(Errno::EUCLEAN), Err(Errno::EUCLEAN)));
    }
    fs.close().unwrap();
}

/// Where an inode of group 0 lies, in bytes.
fn inode_at(image: &[u8], ino: usize) -> usize {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    word(4096 + 8) * 4096 + (ino - 1) * 256
}

/// Fills a lane until its host is full; what was synced is there after a kill, though the host has
/// no room yet, and removing makes room, for the lane and on the host.
#[test]
fn a_lane_on_a_full_host_is_opened_again_and_emptied() {
    let Some(host) = Host::new(40).filter(|_| common::have_tools()) else {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    };
    let volume = host.path("volume");
    std::fs::File::create(&volume).unwrap().set_len(256 << 20).unwrap();
    let holes = "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1";
    let options = ["-Fq", "-t", "ext4", "-b", "4096", "-m", "0", "-E", holes];
    let made = Command::new("mke2fs").args(options).arg(&volume).output().unwrap();
    if !made.status.success() {
        eprintln!("skipped: this mke2fs makes no volumes of holes");
        return;
    }
    let options = Options::default();
    let open = || Ext4::open(device(&volume), Arc::new(SystemClock), &options).unwrap();
    let fs = open();
    // Synced, and without bytes: nothing but metadata, until nothing new is made.
    let synced =
        |fs: &Ext4, at: usize| make(fs, at).inspect_err(|errno| assert_eq!(*errno, Errno::ENOSPC));
    let mut made = 0;
    while synced(&fs, made).is_ok() {
        made += 1;
    }
    let names = |at: usize| format!("name-{at}").into_bytes();
    let named = |fs: &Ext4, at: usize| {
        let ino = fs.create(&OpCtx::service(), ROOT, &names(at), &file())?.node.ino;
        let synced = fs.fsync(&OpCtx::service(), ino, false);
        fs.forget(ino);
        synced
    };
    let known = (0..200).take_while(|at| named(&fs, *at).is_ok()).count();
    assert!(made > 100 && !fs.is_stopped(), "{made} files, {known} names: {:?}", fs.stopped_by());
    // Killed: nothing is written any more.
    drop(fs);
    let fs = open();
    (0..made).for_each(|at| check(&fs, at));
    assert!((0..known).all(|at| {
        fs.lookup(&OpCtx::service(), ROOT, &names(at)).map(|it| fs.forget(it.ino)).is_ok()
    }));
    for at in 0..made {
        let gone = fs.unlink(&OpCtx::service(), ROOT, &name(at)).unwrap();
        fs.forget(gone.node.ino);
        if at % 7 == 0 {
            fs.sync(&OpCtx::service()).unwrap();
        }
    }
    fs.sync(&OpCtx::service()).unwrap();
    let until = Instant::now() + PATIENCE;
    while make(&fs, made + 1).is_err() {
        assert!(Instant::now() < until, "what was removed made no room");
        std::thread::sleep(Duration::from_millis(50));
    }
    // All of it: while the host is short, what is removed goes back by itself, and no longer.
    Ext4::trim(&fs, 1).unwrap();
    (0..made / 2).for_each(|at| make(&fs, at).unwrap());
    fs.close().unwrap();
    drop(fs);
    run("e2fsck", &["-fn"], &volume);
    let fs = open();
    (0..made / 2).for_each(|at| check(&fs, at));
}

/// The same until it is done, however often it finds no room.
fn until_done<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(errno) => assert!(errno == Errno::ENOSPC && Instant::now() < until, "{errno:?}"),
        }
    }
}

/// A life of a lane in which what goes to the medium is of every kind: data, log and commit blocks,
/// homes, both superblocks, discards.
fn live(disk: &Arc<SimDisk>) {
    let mut options = Options { discard: true, ..Options::default() };
    options.tuning.overlap_blocks = 0;
    let fs = until_done(|| {
        let opened = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &options);
        opened.map_err(|why| {
            assert!(why.is_no_space(), "{why}");
            Errno::ENOSPC
        })
    });
    let made = |at: usize| {
        until_done(|| {
            if let Ok(refused) = fs.unlink(&OpCtx::service(), ROOT, &name(at)) {
                fs.forget(refused.node.ino);
            }
            make(&fs, at)
        });
    };
    (0..6).for_each(made);
    for at in (0..6).step_by(2) {
        let gone = until_done(|| fs.unlink(&OpCtx::service(), ROOT, &name(at)));
        fs.forget(gone.node.ino);
    }
    until_done(|| fs.sync(&OpCtx::service()));
    // Advice that the medium does not take is no failure of what was freed.
    until_done(|| FileSystem::trim(&fs, &OpCtx::service(), 4096));
    made(6);
    assert!(!fs.is_stopped(), "{:?}", fs.stopped_by());
    // Where closing finds no room the next opening replays what is missing.
    if let Err(why) = fs.close() {
        assert!(why.is_no_space(), "{why}");
    }
}

/// Every single write and discard of that life finds no room once, and then there is room: all goes
/// on, and nothing that was told done is lost.
#[test]
fn each_write_and_discard_may_find_no_room_once() {
    if !common::have_tools() {
        return;
    }
    let base = Image::new(common::image(16, &[common::LANE, &["-J", "size=4"]].concat()));
    for (on, least) in [(FaultOn::Write, 30), (FaultOn::Zero, 2)] {
        let mut nth = 0;
        loop {
            let disk = SimDisk::new(base.clone(), SimOptions::default());
            let error = DeviceError::NoSpace;
            disk.set_fault(Some(Fault { on, nth, error, lasting: false }));
            live(&disk);
            if disk.failures() == 0 {
                break;
            }
            disk.set_fault(None);
            let device = common::load(&disk.image().bytes());
            let fs = open(device.clone());
            [1, 3, 5, 6].into_iter().for_each(|at| check(&fs, at));
            assert!(
                [0, 2, 4]
                    .into_iter()
                    .all(|at| fs.lookup(&OpCtx::service(), ROOT, &name(at)).is_err())
            );
            make(&fs, 7).unwrap();
            fs.close().unwrap();
            assert_eq!(common::complaints(&device), None, "{on:?} {nth}");
            nth += 1;
        }
        assert!(nth >= least, "{nth} requests of {on:?}");
    }
}
