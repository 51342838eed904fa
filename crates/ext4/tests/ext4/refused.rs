//! A medium that fails durable writes, and no other request.

use std::sync::Arc;

use polylane_base::{Errno, TestClock};
use polylane_block::Error as DeviceError;
use polylane_ext4::{DataMode, Error, Ext4, Options};
use polylane_testkit::sim::{Event, Fault, FaultOn, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, Syncing};

use super::synced::{bench, open};

/// From the next durable write on.
fn refusing(errno: Errno) -> Fault {
    let error = DeviceError::Medium(errno);
    Fault { on: FaultOn::Durable, nth: 0, error, lasting: true }
}

/// As the kernel fails the mount: by name, and before anything but the write that failed was sent.
#[test]
fn a_medium_that_refuses_them_is_refused_and_stays_as_it_is() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    bench.synced(bench.create("file"), 0, &[1; 5000], false);
    let cut = bench.disk.image().rebased();
    bench.fs.close().expect("closes");
    let closed = bench.disk.image().rebased();
    for (image, is_closed) in [(closed, true), (cut, false)] {
        for errno in [Errno::EOPNOTSUPP, Errno::EIO] {
            let fault = Some(refusing(errno));
            let options = SimOptions { record: true, fault, ..SimOptions::default() };
            let disk = SimDisk::new(image.clone(), options);
            let clock = Arc::new(TestClock::default());
            let opened = Ext4::open(disk.clone(), clock, &Options::default()).map(drop);
            assert_eq!(opened.err(), Some(Error::Device(DeviceError::Medium(errno))));
            let events = disk.events();
            let sent = events.iter().filter(|event| matches!(event, Event::Write { .. }));
            let durable =
                sent.clone().filter(|event| matches!(event, Event::Write { fua: true, .. }));
            assert_eq!(durable.count(), 1, "it is not tried again");
            // A log is replayed first, in place, and stays until its blocks are durable there.
            assert!(sent.count() == 1 || !is_closed, "written before it was refused");
            let bench = open(disk.image().rebased(), DataMode::Ordered);
            assert!(bench.read("file") == [1; 5000], "{errno:?}");
            bench.fs.close().expect("closes");
        }
    }
}

/// As the kernel aborts its journal: the sync is told the error, nothing is written any more, and
/// what was told durable is there.
#[test]
fn one_that_fails_in_a_commit_stops_the_file_system_by_name() {
    for bytes in [1000, 300_000] {
        let Some(bench) = bench(DataMode::Ordered) else { return };
        let (ctx, fs) = (OpCtx::service(), &bench.fs);
        bench.synced(bench.create("kept"), 0, &[1; 5000], false);
        let file = bench.create("file");
        bench.disk.set_fault(Some(refusing(Errno::EIO)));
        let syncing = Syncing { bytes, data_only: false };
        let data = vec![2; bytes as usize];
        fs.write_synced(&ctx, file, 0, &mut &data[..], syncing).expect("into memory");
        assert_eq!(fs.fsync(&ctx, file, false), Err(Errno::EIO), "{bytes}");
        assert_eq!(fs.stopped_by(), Some(Error::Device(DeviceError::Medium(Errno::EIO))));
        bench.disk.set_fault(None);
        let sent = bench.disk.events().len();
        assert!(fs.fsync(&ctx, file, false).is_err(), "a medium that is well again proves nothing");
        let root = fs.root().expect("root").ino;
        let created = fs.create(&ctx, root, b"new", &NewNode::new(Kind::File, 0o600)).map(drop);
        assert_eq!(created, Err(Errno::EROFS));
        assert!(fs.close().is_err());
        assert_eq!(bench.disk.events().len(), sent, "nothing is written any more");
        let bench = bench.cut();
        assert!(bench.read("kept") == [1; 5000]);
        bench.fs.close().expect("closes");
    }
}

/// Data over written blocks that is to be durable in place: the sync is told, and the file keeps in
/// each block what was there or what was written.
#[test]
fn one_that_fails_in_place_is_told() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let (ctx, fs) = (OpCtx::service(), &bench.fs);
    let file = bench.create("file");
    bench.placed(file, 0, &[1; 16384]);
    bench.disk.set_fault(Some(refusing(Errno::EIO)));
    let syncing = Syncing { bytes: 8192, data_only: true };
    let written = fs.write_synced(&ctx, file, 4096, &mut &[2; 8192][..], syncing);
    assert_eq!(written, Err(Errno::EIO));
    bench.disk.set_fault(None);
    let bench = bench.cut();
    let found = bench.read("file");
    for (block, bytes) in found.chunks(4096).enumerate() {
        let may_be_new = (1..3).contains(&block);
        let whole = bytes.iter().all(|byte| *byte == bytes[0]);
        assert!(whole && (bytes[0] == 1 || (bytes[0] == 2 && may_be_new)), "block {block}");
    }
}
