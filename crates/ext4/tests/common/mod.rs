//! Images made by mke2fs, in memory, and judged by e2fsck.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use polylane_base::{Ino, TestClock};
use polylane_block::freeze::Freezable;
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector};
use polylane_ext4::{Ext4, Options};
use polylane_sys::buffer::Buffer;
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::{FileSystem, Kind};

pub mod author;
pub mod log;

/// Bytes in a block of most images here.
pub const BLOCK: usize = 4096;
/// Bytes moved at a time.
const PIECE: usize = 1 << 20;
/// Requests to memory are over long before.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// What a lane's volume is formatted with, lazy initialisation off.
pub const LANE: &[&str] =
    &["-t", "ext4", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"];

/// Whether e2fsprogs are here; says so when they are not.
pub fn have_tools() -> bool {
    let found = Command::new("mke2fs").arg("-V").output().is_ok();
    if !found {
        eprintln!("skipped: mke2fs is not installed");
    }
    found
}

/// Number of the root directory.
pub fn root(fs: &Ext4) -> Ino {
    fs.root().expect("root").ino
}

/// Makes a file, directory or whatever `kind` is, which must succeed.
pub fn create(fs: &Ext4, dir: Ino, name: &str, kind: Kind) -> Ino {
    fs.create(&OpCtx::service(), dir, name.as_bytes(), &node(kind, 0o755)).expect("room").node.ino
}

/// Runs `work` on a fresh image, which must come out clean, also where the power goes after it.
pub fn on(mib: u64, args: &[&str], work: impl FnOnce(&Arc<Ext4>)) {
    if !have_tools() {
        return;
    }
    let device = make(mib, args);
    let freezable = Freezable::new(device.clone());
    let fs = open_on(freezable.clone());
    work(&fs);
    assert_eq!(fs.stopped_by(), None);
    fs.sync(&OpCtx::service()).expect("syncs");
    let cut = cut(&freezable, &device);
    fs.close().expect("closes");
    assert_eq!(complaints(&device), None, "{args:?}");
    let again = load(&std::fs::read(cut.path()).expect("readable"));
    open(&again).close().expect("closes");
    assert_eq!(complaints(&again), None, "{args:?}, after a power cut");
}

/// A device holding what mke2fs makes of `args`, `mib` MiB large.
pub fn make(mib: u64, args: &[&str]) -> Arc<RamDevice> {
    load(&image(mib, args))
}

/// The bytes of what mke2fs makes of `args`, `mib` MiB large.
pub fn image(mib: u64, args: &[&str]) -> Vec<u8> {
    let image = tempfile::NamedTempFile::new().expect("temporary file");
    image.as_file().set_len(mib << 20).expect("sparse file");
    let made = Command::new("mke2fs").arg("-Fq").args(args).arg(image.path()).output();
    let made = made.expect("mke2fs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read(image.path()).expect("readable")
}

/// A device holding `bytes`.
pub fn load(bytes: &[u8]) -> Arc<RamDevice> {
    let device = Arc::new(RamDevice::new((bytes.len() / 512) as u64));
    let waiter = Waiter::new(device.clone());
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            let sector = Sector((index * PIECE / 512) as u64);
            waiter.write(sector, Buffer::copy_of(piece), false).expect("in range");
        }
    }
    device
}

/// The bytes in a file of a device that nobody writes to.
pub fn save(device: &Arc<RamDevice>) -> tempfile::NamedTempFile {
    let mut image = tempfile::NamedTempFile::new().expect("temporary file");
    let waiter = Waiter::new(device.clone());
    let bytes = device.sector_count() as usize * 512;
    for at in (0..bytes).step_by(PIECE) {
        let length = PIECE.min(bytes - at);
        let piece = waiter.read(Sector((at / 512) as u64), length).expect("in range");
        image.write_all(&piece).expect("written");
    }
    image
}

/// What a power cut leaves on `device`, which is in use by way of `freezable`. [`save`] alone reads
/// one part after the other, while the committer may be bringing the log home: old blocks and a log
/// that no longer has their new versions.
pub fn cut(freezable: &Arc<Freezable>, device: &Arc<RamDevice>) -> tempfile::NamedTempFile {
    let frozen = freezable.freeze(DRAINED_WITHIN).expect("what is under way ends");
    let image = save(device);
    drop(frozen);
    image
}

/// What `e2fsck -fn` complains about; nothing when the image is clean.
pub fn complaints(device: &Arc<RamDevice>) -> Option<String> {
    let image = save(device);
    let done = Command::new("e2fsck").arg("-fn").arg(image.path()).output().expect("e2fsck runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (done.status.code() != Some(0)).then_some(said)
}

/// What dumpe2fs says of the superblock.
pub fn dumped(device: &Arc<RamDevice>) -> String {
    let image = save(device);
    let said = Command::new("dumpe2fs").arg("-h").arg(image.path()).output();
    String::from_utf8_lossy(&said.expect("dumpe2fs runs").stdout).into_owned()
}

/// Opens an image.
pub fn open(device: &Arc<RamDevice>) -> Arc<Ext4> {
    open_on(device.clone())
}

/// The same on any device.
pub fn open_on(device: Arc<dyn BlockDevice>) -> Arc<Ext4> {
    open_by(device, Arc::new(TestClock::default()))
}

/// The same by a clock that others go by, too.
pub fn open_by(device: Arc<dyn BlockDevice>, clock: Arc<TestClock>) -> Arc<Ext4> {
    Arc::new(Ext4::open(device, clock, &Options::default()).expect("opens"))
}

/// A cache of `mode` over `fs`, as large as that of a VFS with `options`.
pub fn cached(fs: Arc<Ext4>, mode: Mode, options: &polylane_vfs::Options) -> Arc<dyn FileSystem> {
    let settings = Settings {
        mode,
        bytes_limit: options.cache_bytes_limit,
        dirty_bytes_limit: options.dirty_bytes_limit,
        flush_interval: options.flush_interval,
        clock: options.clock.clone(),
    };
    Arc::new(Cached::new(fs, settings).expect("a root"))
}
