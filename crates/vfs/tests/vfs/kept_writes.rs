//! A libservice that keeps writes to itself, and loses some of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use polylane_base::{Errno, TestClock};
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::handover::{Kind, Store};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{OpCtx, Vfs};

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
