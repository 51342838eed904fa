//! The last syncs, one by one: which form each took, and why.

use std::time::{Duration, Instant};

use polylane_base::{Errno, Ino};
use polylane_block::Error as DeviceError;
use polylane_ext4::DataMode;
use polylane_ext4::trace::{Part, STEPS, Step};
use polylane_testkit::sim::{Fault, FaultOn, Image};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::FileSystem;

use super::synced::{Bench, bench, open};
use crate::common;

/// A part of a sync, with its reason and its bytes; of a commit these are the journal's to know.
type Told = (Part, &'static str, u64);

const WRITE: Part = Part::Write;
const COMMIT: Part = Part::Commit;

impl Bench {
    /// What the trace tells of `run`, and how long it says that this took.
    fn traced(&self, run: impl FnOnce()) -> Vec<Told> {
        let before = self.fs.syncs();
        run();
        let after = self.fs.syncs();
        let begin = before.last().map_or(0, |last| {
            after.iter().rposition(|step| step == last).expect("not so many at a time") + 1
        });
        let new = &after[begin..];
        let ends = |step: &Step| step.at_us + step.took_us;
        // Each number is cut to whole microseconds.
        assert!(new.windows(2).all(|two| ends(&two[0]) <= ends(&two[1]) + 2), "{new:?}");
        let bytes = |step: &Step| if step.part == COMMIT { 0 } else { step.bytes };
        assert!(new.iter().all(|step| step.part != COMMIT || step.bytes > 0), "{new:?}");
        new.iter().map(|step| (step.part, step.why, bytes(step))).collect()
    }

    fn unsynced(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        assert_eq!(self.fs.write(&OpCtx::service(), ino, offset, &mut &bytes[..]), Ok(bytes.len()));
    }

    fn fsync(&self, ino: Ino, data_only: bool) {
        self.fs.fsync(&OpCtx::service(), ino, data_only).expect("durable");
    }
}

#[test]
fn each_sync_tells_its_parts_and_why() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let file = bench.create("file");
    bench.synced(file, 0, &[1; 8192], false);
    let small = bench.traced(|| bench.synced(file, 8192, &[2; 1000], false));
    assert_eq!(small, [(WRITE, "small", 1000), (COMMIT, "one_write", 0)]);
    let large = bench.traced(|| bench.synced(file, 16384, &[3; 300_000], true));
    assert_eq!(large, [(WRITE, "large", 300_000), (COMMIT, "with_data", 0)]);
    let over = bench.traced(|| bench.synced(file, 65536, &[4; 4096], true));
    assert_eq!(over, [(WRITE, "overwrite", 4096)], "durable where it is, nothing commits");
    let name = bench.traced(|| {
        bench.create("name");
        bench.fsync(bench.fs.root().expect("root").ino, false);
    });
    assert_eq!(name, [(COMMIT, "one_write", 0)], "a directory");
    assert_eq!(bench.traced(|| bench.fsync(file, false)), [], "all of it is durable");
    assert_eq!(bench.traced(|| bench.unsynced(file, 400_000, &[5; 9000])), [], "nobody syncs it");
    let behind = bench.traced(|| bench.fsync(file, false));
    assert_eq!(behind, [(COMMIT, "unflushed", 0)], "what was written in place is flushed first");
    bench.unsynced(file, 65536, &[6; 4096]);
    let flushed = bench.traced(|| bench.fsync(file, true));
    assert_eq!(flushed, [(Part::Flush, "in_place", 0)], "blocks that were there");
    bench.unsynced(file, 65536, &[7; 4096]);
    let all = bench.traced(|| bench.fs.sync(&OpCtx::service()).expect("durable"));
    assert_eq!(all, [(COMMIT, "unflushed", 0)], "sync of all, with the file's times");
}

#[test]
fn commits_that_revoke_much_or_are_large_say_so() {
    if !common::have_tools() {
        return;
    }
    // A log that no checkpoint empties meanwhile: what is at home is not revoked.
    let blank = || Image::new(common::image(64, &[common::LANE, &["-J", "size=16"]].concat()));
    let bench = open(blank(), DataMode::Ordered);
    let root = bench.fs.root().expect("root").ino;
    let file = bench.create("file");
    (0..80).for_each(|at| bench.synced(file, at * 4096, &[at as u8; 4096], false));
    bench.remove("file");
    assert_eq!(bench.traced(|| bench.fsync(root, false)), [(COMMIT, "revokes", 0)]);
    let bench = open(blank(), DataMode::Data);
    let file = bench.create("file");
    bench.synced(file, 0, &[1; 4096], false);
    bench.unsynced(file, 0, &vec![2; 2 << 20]);
    assert_eq!(bench.traced(|| bench.fsync(file, false)), [(COMMIT, "large", 0)]);
    let logged = bench.fs.syncs().last().expect("the commit").bytes;
    assert!((2 << 20..3 << 20).contains(&logged), "{logged} bytes in the log");
    let small = bench.traced(|| bench.synced(file, 0, &[3; 100], true));
    assert_eq!(small, [(WRITE, "data_mode", 100), (COMMIT, "one_write", 0)]);
}

/// The host has no room for a while: what the transaction waits for it counts.
#[test]
fn a_commit_that_waits_for_room_says_how_long() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let root = bench.fs.root().expect("root").ino;
    bench.fsync(root, false);
    bench.create("name");
    let error = DeviceError::NoSpace;
    bench.disk.set_fault(Some(Fault { on: FaultOn::Write, nth: 0, error, lasting: true }));
    assert_eq!(bench.fs.fsync(&OpCtx::service(), root, false), Err(Errno::ENOSPC));
    let closed = Instant::now();
    std::thread::sleep(Duration::from_millis(100));
    let waited = closed.elapsed().as_micros() as u64;
    bench.disk.set_fault(None);
    bench.fsync(root, false);
    let commit = *bench.fs.syncs().last().expect("the commit");
    assert!(commit.part == COMMIT && commit.took_us >= waited, "{commit:?}, {waited} us");
}

/// Syncs that are many times what the log holds: it is emptied meanwhile, and each goes as before.
#[test]
fn a_full_log_changes_no_form_and_only_the_last_syncs_are_kept() {
    let Some(bench) = bench(DataMode::Data) else { return };
    let file = bench.create("file");
    let count = |bench: &Bench| -> u64 { bench.fs.commits().iter().map(|(_, count)| count).sum() };
    bench.synced(file, 0, &[1; 100_000], false);
    let before = count(&bench);
    for round in 0..100u8 {
        let told = bench.traced(|| bench.synced(file, 0, &[round; 100_000], false));
        assert_eq!(told, [(WRITE, "data_mode", 100_000), (COMMIT, "one_write", 0)], "{round}");
    }
    assert_eq!(count(&bench) - before, 100);
    assert_eq!(bench.fs.syncs().len(), STEPS);
}
