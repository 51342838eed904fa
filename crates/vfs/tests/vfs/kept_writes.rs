//! A libservice that keeps writes to itself, and loses some of them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use polylane_base::{Errno, TestClock};
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::handover::{Kind, Store};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{OpCtx, OpenFile, Vfs};

use crate::common::*;

fn keeping() -> (OwnedFd, Lane) {
    let handover = Store::create().unwrap();
    let memfs = MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default()));
    let fs = Faulty::keeping(Arc::new(memfs));
    let vfs = Vfs::new(fs.clone(), options()).unwrap();
    vfs.tell_unsynced(Arc::new(Store::attach(&handover).unwrap().0));
    let root = vfs.root();
    (handover, Lane { vfs, fs, root })
}

/// The files that the next service would find to have lost bytes.
fn unsynced(handover: &OwnedFd) -> Vec<u64> {
    let records = Store::attach(handover).unwrap().1;
    let unsynced = records.iter().filter(|record| record.kind == Kind::Unsynced);
    unsynced.map(|record| record.words[0]).collect()
}

/// A sync of everything says that it has succeeded, but has lost the bytes of a file.
#[test]
fn a_file_that_a_sync_lost_is_unsynced_until_a_program_was_told() {
    let (handover, lane) = keeping();
    let ctx = &OpCtx::service();
    let opened = ["a", "b"].map(|path| {
        let first = lane.file(path, b"bytes");
        (path, [first, lane.open(path, O_RDWR).unwrap()])
    });
    assert_eq!(unsynced(&handover).len(), 2);
    // The sync passes, the first file that is asked for does not.
    lane.fs.fail_once(Call::Sync, 1, Errno::EIO);
    assert_eq!(lane.vfs.sync(ctx), Err(Errno::EIO));
    let [lost] = unsynced(&handover)[..] else { panic!("one of them is durable") };
    assert_eq!(lane.vfs.sync(ctx), Ok(()));
    assert_eq!(unsynced(&handover), [lost], "no program knows yet");
    for (path, files) in opened {
        let told = match files[0].node().ino().0 == lost {
            true => Err(Errno::EIO),
            false => Ok(()),
        };
        for file in &files {
            assert_eq!(file.fsync(ctx, false), told, "{path}");
            assert_eq!(file.fsync(ctx, false), Ok(()), "{path}");
        }
        let later = lane.open(path, O_RDWR).unwrap();
        assert_eq!(later.fsync(ctx, true), Ok(()), "{path}");
    }
    assert_eq!(unsynced(&handover), []);
    let gone = lane.file("c", b"bytes");
    lane.fs.fail_once(Call::Sync, 1, Errno::ESTALE);
    assert_eq!(lane.vfs.sync(ctx), Ok(()), "a file that went meanwhile lost nothing");
    assert_eq!(gone.fsync(ctx, false), Ok(()));
}

/// The libservice tells the first that asks of a failure, and no other: each opening is to know.
#[test]
fn a_failed_fsync_is_told_to_every_opening() {
    let (handover, lane) = keeping();
    let ctx = &OpCtx::service();
    let first = lane.file("a", b"bytes");
    let second = lane.open("a", O_RDWR).unwrap();
    lane.fs.fail_once(Call::Sync, 0, Errno::ENOSPC);
    for file in [&first, &second] {
        assert_eq!(file.fsync(ctx, false), Err(Errno::ENOSPC));
        assert_eq!(file.fsync(ctx, false), Ok(()));
    }
    write(&first, 0, b"again");
    assert_eq!(second.fsync(ctx, true), Ok(()));
    assert_eq!(unsynced(&handover), []);
}

/// A failure is told to one of two syncs that overlap, and late: the other one is no success, and
/// each opening is told once.
#[test]
fn syncs_that_overlap_a_failure_are_all_told_of_it() {
    let (handover, lane) = keeping();
    let sync = |file: &OpenFile| file.fsync(&OpCtx::service(), false);
    let first = lane.file("a", b"bytes");
    let second = lane.open("a", O_RDWR).unwrap();
    let other = lane.file("b", b"bytes");
    for way in ["fsync", "sync"] {
        write(&first, 0, b"again");
        lane.fs.fail_once(Call::Sync, 0, Errno::EIO);
        lane.fs.block_failures(true);
        let (ended, ends) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sync(&first), Err(Errno::EIO)));
            lane.fs.await_blocked(1);
            let (second, lane) = (&second, &lane);
            scope.spawn(move || {
                let synced = match way {
                    "fsync" => sync(second),
                    _ => lane.vfs.sync(&OpCtx::service()),
                };
                ended.send(synced).unwrap();
            });
            assert_eq!(sync(&other), Ok(()), "of another file");
            // That it does not end can be seen for some time only.
            let early = ends.recv_timeout(Duration::from_millis(100));
            lane.fs.block_failures(false);
            early.expect_err("its outcome is not known yet");
        });
        assert_eq!(ends.recv().unwrap(), Err(Errno::EIO), "{way}");
        let told = if way == "sync" { Err(Errno::EIO) } else { Ok(()) };
        assert_eq!(sync(&second), told, "{way}");
        for file in [&first, &second] {
            assert_eq!(sync(file), Ok(()), "{way}");
        }
    }
    assert_eq!(unsynced(&handover), []);
}
