//! Volumes beside each other, and a host without room.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_block::device::{BlockDevice, Channel, Error, Op, Request, Sector, Submitted};
use polylane_block::engine::{Engine, Options};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image::{self, ImageError};
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;

const MIB: u64 = 1 << 20;

fn volume(path: &Path, bytes: u64, way: Way) -> Arc<FileDevice> {
    std::fs::File::create(path).expect("create").set_len(bytes).expect("size");
    FileDevice::open(image::open(path).expect("open"), way).expect("device")
}

fn fill(channel: &mut dyn Channel) -> u64 {
    let mut count = 0;
    loop {
        let data = vec![Buffer::zeroed(4096)];
        let op = Op::Write { fua: false };
        match channel.submit(Request::with_data(op, Sector(count * 8), data, count)) {
            Submitted::Pending => count += 1,
            Submitted::Busy(request) => {
                drop(request.complete(Err(Error::Stopped)));
                return count;
            }
            Submitted::Done(_) => panic!("a ring answers later"),
        }
    }
}

/// What one volume is busy or broken with, the other does not notice.
#[test]
fn two_volumes_share_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let one = volume(&dir.path().join("one"), 4 * MIB, Way::Ring);
    let other = volume(&dir.path().join("other"), 4 * MIB, Way::Ring);
    let mut stuck = one.clone().channel();
    if one.totals().ring {
        // No thread polls it: its requests stay where they are.
        assert_eq!(fill(&mut *stuck), 64);
    }
    let waiter = Waiter::new(other.clone());
    for sector in 0..100 {
        let data = Buffer::copy_of(&[7; 512]);
        waiter.write(Sector(sector), data, sector % 9 == 0).expect("write");
    }
    waiter.flush().expect("flush");
    assert_eq!((other.totals().writes, one.totals().writes), (100, 0));
    let mut done = Vec::new();
    while one.totals().ring && done.len() < 64 {
        stuck.park();
        stuck.poll(&mut done);
    }
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    // A failed flush stops a device, and it alone. /dev/full cannot be synced.
    let full = || {
        let mut options = std::fs::OpenOptions::new();
        std::os::fd::OwnedFd::from(options.read(true).write(true).open("/dev/full").expect("open"))
    };
    let files = Files { io: full(), plain: full(), lock: full() };
    let broken = FileDevice::open(files, Way::Ring).expect("device");
    assert!(Waiter::new(broken.clone()).flush().is_err() && broken.is_stopped());
    assert!(!one.is_stopped() && !other.is_stopped());
    waiter.flush().expect("flush");
}

/// A host without room answers `NoSpace`, keeps what it has, and goes on when there is room.
#[test]
fn a_full_host_is_an_error_that_passes() {
    let dir = tempfile::tempdir().expect("dir");
    let host = dir.path();
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(host).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not mount a small tmpfs");
        return;
    }
    for way in [Way::Ring, Way::Calls] {
        let path = host.join("volume");
        let device = volume(&path, 64 * MIB, way);
        let waiter = Waiter::new(device.clone());
        let block = |byte: u8| Buffer::copy_of(&vec![byte; MIB as usize]);
        let mut written = 0;
        let error = loop {
            match waiter.write(Sector(written * 2048), block(written as u8 + 1), false) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(Errno::from(error), Errno::ENOSPC, "{way:?}");
        assert!((6..=8).contains(&written), "{way:?}: {written} MiB");
        waiter.flush().expect("what was acknowledged can be made durable");
        for at in 0..written {
            let found = waiter.read(Sector(at * 2048), MIB as usize).expect("read");
            assert!(found.iter().all(|byte| *byte == at as u8 + 1), "{way:?} {at}");
        }
        waiter.discard(Sector(0), 2 * 2048).expect("discard");
        waiter.write(Sector(written * 2048), block(99), true).expect("there is room again");
        assert!(!device.is_stopped());
        assert!(std::fs::metadata(&path).expect("stat").blocks() * 512 <= 8 * MIB);
        drop((waiter, device));
        std::fs::remove_file(path).expect("remove");
        // A ring gives its files back when the kernel comes to it.
        let free =
            || rustix::fs::statvfs(host).is_ok_and(|of| of.f_bavail * of.f_frsize >= 7 * MIB);
        let limit = Instant::now() + Duration::from_secs(10);
        while !free() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let _ = Command::new("umount").arg(host).status();
}

/// A small host file system on a loop device; `None` where this user may not have one.
struct Host {
    dir: tempfile::TempDir,
    image: tempfile::TempPath,
}

impl Host {
    fn new(kind: &str, bytes: u64) -> Option<Host> {
        let image = tempfile::NamedTempFile::new().expect("file");
        image.as_file().set_len(bytes).expect("size");
        let host = Host { dir: tempfile::tempdir().expect("dir"), image: image.into_temp_path() };
        let made = Command::new(format!("mkfs.{kind}")).arg("-q").arg(&*host.image).output();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-o", "loop"]).arg(&*host.image).arg(host.dir.path()).output();
        let well = |output: std::io::Result<std::process::Output>| {
            output.is_ok_and(|output| output.status.success())
        };
        (well(made) && well(mounted)).then_some(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).stderr(Stdio::null()).status();
    }
}

/// Streams that fill the host while space is made ahead of them: what is acknowledged stays, room
/// that comes back is used, and what was made in vain is given back at the end.
#[test]
fn streams_fill_a_host_and_go_on_when_there_is_room() {
    let Some(host) = Host::new("ext4", 64 * MIB) else {
        eprintln!("skipped: this user may not mount a small ext4");
        return;
    };
    let path = host.dir.path().join("volume");
    let file = volume(&path, 256 * MIB, Way::Ring);
    let unit = Unit::start(&UnitOptions::default()).expect("thread");
    let options = Options { reserve_bytes: 0, ahead_always: true, ..Options::default() };
    let engine = Engine::open(file, Some(unit), &options).expect("engine");
    let waiter = Waiter::new(engine.clone());
    let block = |at: u64| Buffer::copy_of(&[(at % 251) as u8 + 1; 4096]);
    let mut written = 0;
    let error = loop {
        match waiter.write(Sector(written * 8), block(written), false) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoSpace);
    assert!(written * 4096 > 32 * MIB, "{written} blocks");
    assert!(engine.totals().made_ahead > 16, "{:?}", engine.totals());
    waiter.flush().expect("what was acknowledged can be made durable");
    let check = |written: u64| {
        for at in 0..written {
            let found = waiter.read(Sector(at * 8), 4096).expect("read");
            assert!(found[..] == block(at)[..], "block {at} of {written}");
        }
    };
    check(written);
    // The last eighth makes room for as much again.
    let given = written / 8;
    waiter.discard(Sector((written - given) * 8), given * 8).expect("discard");
    for at in written - given..written {
        waiter.write(Sector(at * 8), block(at), at % 100 == 0).expect("there is room again");
    }
    check(written);
    drop((waiter, engine));
    let used = std::fs::metadata(&path).expect("stat").blocks() * 512;
    // The host's own map takes some blocks, and a chunk may be begun.
    assert!(used <= written * 4096 + 2 * MIB, "{used} bytes for {written} blocks");
}

/// A loop device, which goes at the end.
struct Loop(String);

impl Loop {
    fn over(below: &Path) -> Option<Loop> {
        let mut losetup = Command::new("losetup");
        let made = losetup.args(["--find", "--show"]).arg(below).output().ok()?;
        let name = String::from_utf8_lossy(&made.stdout).trim().to_string();
        made.status.success().then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The kernel claims a device for those that mount it, not for a loop device over it.
#[test]
fn what_is_mounted_over_two_loop_devices_is_nobody_elses() {
    let image = tempfile::NamedTempFile::new().expect("file");
    image.as_file().set_len(8 * MIB).expect("size");
    let made = Command::new("mkfs.ext4").arg("-q").arg(image.path()).output();
    let dir = tempfile::tempdir().expect("dir");
    let first = Loop::over(image.path());
    let second = first.as_ref().and_then(|first| Loop::over(Path::new(&first.0)));
    let (Ok(_), Some(first), Some(second)) = (made, first, second) else {
        eprintln!("skipped: this user may not have loop devices");
        return;
    };
    let open = |path: &Path| image::open(path).map(drop);
    assert_eq!(open(image.path()), Ok(()), "not mounted yet");
    assert_eq!(open(Path::new(&first.0)), Ok(()), "not mounted yet");
    let mounted = Command::new("mount").arg(&second.0).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not mount");
        return;
    }
    let found = [image.path(), Path::new(&first.0), Path::new(&second.0)].map(open);
    let _ = Command::new("umount").arg(dir.path()).status();
    for error in found {
        let Err(ImageError::Claimed(claimed)) = error else { panic!("{error:?}") };
        assert_eq!(claimed.at.as_deref(), Some(dir.path()));
    }
    assert_eq!(open(image.path()), Ok(()), "mounted no more");
}
