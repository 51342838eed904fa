//! When things reach what lies below, and what others do there.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use polylane_base::{IdRange, Ino, Result, SystemClock};
use polylane_testkit::fault::{Call, Faulty};
use polylane_testkit::fs_suite::node;
use polylane_testkit::subject::small_options;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::{Character, FileSystem, Kind, Work};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::mapped::{IdMap, Mapped};
use polylane_vfs::{Create, OpCtx, Vfs};

use crate::{CACHE_BYTES, Fs, MODES, clock, memfs, settings};

fn ctx() -> OpCtx<'static> {
    OpCtx::service()
}

fn file(fs: &dyn FileSystem, name: &str) -> Ino {
    let root = fs.root().unwrap().ino;
    fs.create(&ctx(), root, name.as_bytes(), &node(Kind::File, 0o644)).unwrap().node.ino
}

fn found(fs: &dyn FileSystem, name: &str) -> Ino {
    fs.lookup(&ctx(), fs.root().unwrap().ino, name.as_bytes()).unwrap().ino
}

fn write(fs: &dyn FileSystem, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize> {
    fs.write(&ctx(), ino, at, &mut &*bytes)
}

fn read(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let size = fs.getattr(&ctx(), ino).unwrap().size as usize;
    let mut bytes = vec![0xee; size + 1];
    let count = fs.read(&ctx(), ino, 0, size + 1, &mut bytes.as_mut_slice()).unwrap();
    bytes.truncate(count);
    bytes
}

/// Never written back by itself.
fn lazy(mode: Mode) -> Settings {
    Settings { flush_interval: Duration::from_secs(3600), ..settings(mode, Arc::new(SystemClock)) }
}

fn watched(mode: Mode) -> (Arc<Faulty>, Cached) {
    let below = Faulty::new(memfs());
    let fs = Cached::new(below.clone(), lazy(mode)).unwrap();
    (below, fs)
}

#[test]
fn fsync_reaches_what_lies_below() {
    for mode in MODES {
        let (below, fs) = watched(mode);
        let ino = file(&fs, "f");
        write(&fs, ino, 0, b"bytes").unwrap();
        let is_there = below.getattr(&ctx(), ino).unwrap().size == 5;
        assert_eq!(is_there, mode == Mode::WriteThrough, "{mode:?}");
        assert_eq!(read(&fs, ino), b"bytes");
        assert_eq!(fs.getattr(&ctx(), ino).unwrap().size, 5);
        let before = below.calls(Call::Sync);
        fs.fsync(&ctx(), ino, true).unwrap();
        assert_eq!(read(&*below, ino), b"bytes", "{mode:?}");
        assert_eq!(below.calls(Call::Sync), before + 1, "{mode:?}");
        fs.fsync(&ctx(), ino, false).unwrap();
        assert_eq!(below.calls(Call::Sync), before + 2, "also when nothing is kept back");
        write(&fs, ino, 3, b"more").unwrap();
        fs.sync(&ctx()).unwrap();
        assert_eq!(read(&*below, ino), b"bytmore");
        assert_eq!(fs.keeps_writes(), mode == Mode::WriteBack);
    }
}

/// What is lost with the process, of a file system whose data is to be cached and of others.
#[test]
fn what_may_be_lost_is_said() {
    for (mode, of_cached) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let memfs = memfs();
        let character = Character { cache_data: of_cached, ..memfs.character() };
        let fs: Fs = Faulty::with_character(memfs, character);
        let fs: Fs = Arc::new(Cached::new(fs, lazy(mode)).unwrap());
        let map = IdMap::new(vec![IdRange { kept: 0, shown: 0, count: 1 }]).unwrap();
        for fs in [fs.clone(), Arc::new(Mapped::new(fs, map))] {
            let writes = of_cached || mode == Mode::WriteBack;
            assert_eq!(fs.keeps_writes(), writes, "{mode:?} {of_cached}");
            assert_eq!(fs.keeps_names(), of_cached, "{mode:?}");
            let throttled = fs.write_may_wait(1 << 30);
            let ino = file(&*fs, "f");
            write(&*fs, ino, 0, &[1; 5000]).unwrap();
            let dirty = if mode == Mode::WriteBack { 8192 } else { 0 };
            assert_eq!(fs.dirty_bytes(ino), dirty);
            assert_eq!((throttled, fs.write_may_wait(1 << 30)), (false, dirty > 0));
            assert_eq!(fs.is_slow(Work::Write), of_cached && dirty == 0);
            fs.unlink(&ctx(), fs.root().unwrap().ino, b"f").unwrap();
            fs.forget(ino);
        }
    }
}

/// The end of a cache is the end of what it keeps back.
#[test]
fn what_waits_is_written_in_the_end() {
    let (below, fs) = watched(Mode::WriteBack);
    let ino = file(&fs, "f");
    write(&fs, ino, 10_000, b"end").unwrap();
    drop(fs);
    let ino = found(&*below, "f");
    assert_eq!(read(&*below, ino).len(), 10_003);
}

#[test]
fn it_keeps_no_more_than_it_may_and_asks_once() {
    for mode in MODES {
        let (below, fs) = watched(mode);
        let ino = file(&fs, "f");
        for page in 0..4 * CACHE_BYTES / 4096 {
            write(&fs, ino, page * 4096, &[page as u8; 4096]).unwrap();
        }
        fs.sync(&ctx()).unwrap();
        read(&fs, ino);
        assert!(fs.stats().pages * 4096 <= CACHE_BYTES, "{mode:?}: {:?}", fs.stats());
        let mut last = [0; 4096];
        let at = 4 * CACHE_BYTES - 4096;
        let mut again = || fs.read(&ctx(), ino, at, 4096, &mut last.as_mut_slice()).unwrap();
        again();
        let asked = below.calls(Call::Read);
        again();
        assert_eq!(below.calls(Call::Read), asked, "{mode:?}");
        let looks = below.calls(Call::Look);
        for _ in 0..3 {
            assert_eq!(found(&fs, "f"), ino);
            assert!(fs.lookup(&ctx(), fs.root().unwrap().ino, b"none").is_err());
            fs.getattr(&ctx(), ino).unwrap();
        }
        let asked = below.calls(Call::Look) - looks;
        assert!(asked <= 2, "names and states are kept: {asked} questions");
    }
}

/// The VFS above a cache has no pages of its own.
#[test]
fn no_byte_is_in_two_caches() {
    let fs = Arc::new(Cached::new(crate::model(), lazy(Mode::WriteBack)).unwrap());
    let vfs = Vfs::new(fs.clone(), small_options(clock(), CACHE_BYTES)).unwrap();
    let new = Create { kind: Kind::File, perm: 0o644, umask: 0, rdev: 0, target: b"" };
    vfs.create(&ctx(), &vfs.root(), b"f", &new).unwrap();
    let open = vfs.open_path(&ctx(), &vfs.root(), b"f", 2, 0, 0).unwrap();
    open.write(&ctx(), Some(0), &mut &[7; 9000][..]).unwrap();
    assert_eq!(vfs.stats().pages, 0);
    assert_eq!(fs.stats().pages, 3);
}

/// A directory of the host in a cache.
fn on_host(mode: Mode) -> (tempfile::TempDir, Cached) {
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::open(dir.path()).unwrap();
    let below: Fs = Arc::new(HostDir::with_descriptors(file.into(), 32).unwrap());
    let fs = Cached::new(below, lazy(mode)).unwrap();
    (dir, fs)
}

/// Changes beside a cache are seen at once: of the same size and within one tick, too.
#[test]
fn what_others_change_on_the_host_is_seen() {
    for mode in MODES {
        let (dir, fs) = on_host(mode);
        let path = dir.path().join("f");
        std::fs::write(&path, vec![0; 9000]).unwrap();
        let ino = found(&fs, "f");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        for round in 1..200_u8 {
            file.write_all_at(&[round], u64::from(round) * 40).unwrap();
            assert_eq!(read(&fs, ino)[usize::from(round) * 40], round, "{mode:?}");
        }
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read(&fs, ino), b"short");
        std::fs::rename(&path, dir.path().join("g")).unwrap();
        assert!(fs.lookup(&ctx(), fs.root().unwrap().ino, b"f").is_err());
        assert_eq!(found(&fs, "g"), ino);
        // What is written here and there in turn.
        write(&fs, ino, 5, b" and").unwrap();
        fs.fsync(&ctx(), ino, false).unwrap();
        file.write_all_at(b"S", 0).unwrap();
        assert_eq!(read(&fs, ino), b"Short and");
        write(&fs, ino, 9, b" long").unwrap();
        assert_eq!(read(&fs, ino), b"Short and long");
        fs.sync(&ctx()).unwrap();
        assert_eq!(std::fs::read(dir.path().join("g")).unwrap(), b"Short and long", "{mode:?}");
    }
}

#[test]
fn what_is_kept_back_wins_over_what_others_write() {
    let (dir, fs) = on_host(Mode::WriteBack);
    let path = dir.path().join("f");
    let ino = file(&fs, "f");
    write(&fs, ino, 0, b"here").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    std::fs::write(&path, b"there").unwrap();
    assert_eq!(read(&fs, ino), b"here");
    fs.fsync(&ctx(), ino, false).unwrap();
    assert_eq!(&std::fs::read(&path).unwrap()[..4], b"here");
}
