//! Small syncs: how many requests they take, and that what the log holds of files and what is
//! written in place never get in each other's way.

use std::sync::Arc;

use polylane_base::{Ino, TestClock};
use polylane_ext4::{DataMode, Ext4, Options};
use polylane_testkit::sim::{Event, Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, Syncing};

use crate::common;

pub struct Bench {
    pub disk: Arc<SimDisk>,
    pub fs: Ext4,
}

pub fn open(image: Image, data: DataMode) -> Bench {
    open_on(image, data, SimOptions::default())
}

fn open_on(image: Image, data: DataMode, options: SimOptions) -> Bench {
    let disk = SimDisk::new(image, SimOptions { record: true, ..options });
    let commit_interval = std::time::Duration::from_secs(3600);
    let options = Options { commit_interval, data, ..Options::default() };
    let fs = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &options).expect("opens");
    Bench { disk, fs }
}

pub fn bench(data: DataMode) -> Option<Bench> {
    if !common::have_tools() {
        return None;
    }
    let blank = Image::new(common::image(16, common::LANE));
    Some(open(blank, data))
}

impl Bench {
    pub fn create(&self, name: &str) -> Ino {
        let new = NewNode::new(Kind::File, 0o600);
        let root = self.fs.root().expect("root").ino;
        self.fs.create(&OpCtx::service(), root, name.as_bytes(), &new).expect("room").node.ino
    }

    /// As the page cache writes before a sync, and that sync.
    pub fn synced(&self, ino: Ino, offset: u64, bytes: &[u8], data_only: bool) {
        let syncing = Syncing { bytes: bytes.len() as u64, data_only };
        let written =
            self.fs.write_synced(&OpCtx::service(), ino, offset, &mut &bytes[..], syncing);
        assert_eq!(written, Ok(bytes.len()));
        self.fs.fsync(&OpCtx::service(), ino, data_only).expect("durable");
    }

    /// Writes in place and makes it durable.
    pub fn placed(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        assert_eq!(self.fs.write(&OpCtx::service(), ino, offset, &mut &bytes[..]), Ok(bytes.len()));
        self.fs.fsync(&OpCtx::service(), ino, true).expect("durable");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        let root = self.fs.root().expect("root").ino;
        let attr = self.fs.lookup(&OpCtx::service(), root, name.as_bytes()).expect("is there");
        let mut bytes = vec![0; attr.size as usize];
        self.fs
            .read(&OpCtx::service(), attr.ino, 0, bytes.len(), &mut &mut bytes[..])
            .expect("reads");
        bytes
    }

    pub fn remove(&self, name: &str) {
        let root = self.fs.root().expect("root").ino;
        let gone = self.fs.unlink(&OpCtx::service(), root, name.as_bytes()).expect("is there").node;
        self.fs.forget(gone.ino);
    }

    /// The requests that `run` takes: durable writes, others, and flushes.
    fn requests(&self, run: impl FnOnce()) -> [usize; 3] {
        let before = self.disk.events().len();
        run();
        let events = self.disk.events();
        let count = |is: &dyn Fn(&Event) -> bool| events[before..].iter().filter(|e| is(e)).count();
        [
            count(&|event| matches!(event, Event::Write { fua: true, .. })),
            count(&|event| matches!(event, Event::Write { fua: false, .. })),
            count(&|event| matches!(event, Event::Flush { .. })),
        ]
    }

    /// The same disk after a power cut that loses nothing of what it was sent.
    pub fn cut(self) -> Bench {
        let image = self.disk.image();
        drop(self);
        open(image.rebased(), DataMode::Ordered)
    }
}

#[test]
fn a_small_sync_is_one_durable_write() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let log = bench.create("log");
    bench.synced(log, 0, &[1; 5000], false);
    let mut broken = 0;
    for at in 0..20 {
        let end = 5000 + at * 1000;
        match bench.requests(|| bench.synced(log, end, &[at as u8; 1000], at % 2 == 0)) {
            [1, 0, 0] => {}
            // The journal's blocks do not lie side by side there.
            [0, 2, 1] => broken += 1,
            taken => panic!("append {at}: {taken:?}"),
        }
    }
    assert!(broken < 3, "{broken} of 20");
    let made = bench.requests(|| bench.synced(bench.create("new"), 0, &[7; 4096], false));
    assert_eq!(made, [1, 0, 0], "a new file with its data and its name");
    let placed = bench.create("placed");
    bench.placed(placed, 0, &[2; 20_000]);
    let over = bench.requests(|| bench.synced(placed, 4096, &[3; 8192], true));
    assert_eq!(over, [1, 0, 0], "over written blocks");
    assert_eq!(
        bench.requests(|| bench.fs.fsync(&OpCtx::service(), placed, true).expect("durable")),
        [0, 0, 0]
    );
    let whole = bench.requests(|| bench.synced(placed, 4096, &[4; 8192], false));
    assert_eq!(whole, [1, 0, 0], "the same with the file's times");
    let bench = bench.cut();
    let bytes = bench.read("placed");
    assert!(bytes[4096..12288] == [4; 8192] && bytes[..4096] == [2; 4096]);
    assert_eq!(bench.read("log").len(), 25_000);
    assert_eq!(bench.read("new"), [7; 4096]);
}

/// Why a sync took the form that it took is told by two counts: where its bytes went, and how they
/// were committed.
#[test]
fn each_write_and_each_commit_has_its_reason() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let counts = || -> std::collections::BTreeMap<_, _> {
        let (writes, commits) = (bench.fs.writes(), bench.fs.commits());
        let writes = writes.map(|(name, count)| (("writes", name), count));
        writes.into_iter().chain(commits.into_iter().map(|(n, c)| (("commits", n), c))).collect()
    };
    let file = bench.create("file");
    bench.synced(file, 0, &[1; 8192], false);
    let mut before = counts();
    let mut more = |expected: &[(&'static str, &'static str)]| {
        let now = counts();
        let grown = now.iter().filter(|(name, count)| **count > before[*name]);
        let grown: Vec<_> = grown.map(|(name, _)| *name).collect();
        before = now;
        assert_eq!(grown, expected);
    };
    bench.synced(file, 8192, &[2; 1000], false);
    more(&[("commits", "one_write"), ("writes", "small")]);
    bench.synced(file, 16384, &[3; 300_000], false);
    more(&[("commits", "with_data"), ("writes", "large")]);
    bench.synced(file, 65536, &[4; 4096], true);
    more(&[("writes", "overwrite")]);
    bench.fs.write(&OpCtx::service(), file, 400_000, &mut &[5; 9000][..]).expect("room");
    more(&[("writes", "unsynced")]);
    bench.fs.fsync(&OpCtx::service(), file, false).expect("durable");
    more(&[("commits", "unflushed")]);
    drop(bench);
    let Some(bench) = self::bench(DataMode::Data) else { return };
    bench.synced(bench.create("file"), 0, &[1; 8192], false);
    let writes = bench.fs.writes().into_iter().filter(|(_, count)| *count > 0);
    assert_eq!(writes.map(|(name, _)| name).collect::<Vec<_>>(), ["data_mode"]);
}

/// The records of a transaction go along in its one write as long as they fit a sector.
#[test]
fn few_revokes_go_along_and_many_are_flushed_first() {
    if !common::have_tools() {
        return;
    }
    // A log that no checkpoint empties meanwhile: what is at home is not revoked.
    let bytes = common::image(64, &[common::LANE, &["-J", "size=16"]].concat());
    let bench = open(Image::new(bytes), DataMode::Ordered);
    let root = bench.fs.root().expect("root").ino;
    for (blocks, flushes) in [(3, false), (16, false), (60, false), (80, true)] {
        let file = bench.create("file");
        for at in 0..blocks {
            bench.synced(file, at * 4096, &[at as u8; 4096], false);
        }
        let form = |name| bench.fs.commits().into_iter().find(|(form, _)| *form == name);
        let before = [form("one_write"), form("revokes")].map(|it| it.expect("a form").1);
        bench.remove("file");
        bench.fs.fsync(&OpCtx::service(), root, false).expect("durable");
        let after = [form("one_write"), form("revokes")].map(|it| it.expect("a form").1);
        let taken = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(taken, if flushes { [0, 1] } else { [1, 0] }, "{blocks} blocks");
    }
    bench.cut().fs.close().expect("closes");
}

/// What a file shows for the first time is durable before the commit block is.
#[test]
fn a_commit_that_shows_what_is_not_durable_flushes_first() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let (shown, synced) = (bench.create("shown"), bench.create("synced"));
    bench.fs.sync(&OpCtx::service()).expect("durable");
    bench.fs.write(&OpCtx::service(), shown, 0, &mut &[5; 4096][..]).expect("in place");
    let [durable, _, flushes] = bench.requests(|| bench.synced(synced, 0, &[6; 100], false));
    assert_eq!((durable, flushes), (1, 1), "body, flush, commit block");
}

/// A replay brings back what the log holds: not where it was overwritten in place since.
#[test]
fn what_is_written_over_logged_data_stays() {
    for again in [false, true] {
        let Some(bench) = bench(DataMode::Ordered) else { return };
        let file = bench.create("file");
        bench.synced(file, 0, &[1; 12_000], false);
        if again {
            bench.synced(file, 4096, &[2; 4096], false);
        }
        bench.placed(file, 0, &[3; 9000]);
        bench.placed(file, 8000, &[4; 500]);
        let bytes = bench.read("file");
        let bench = bench.cut();
        assert!(bench.read("file") == bytes, "{again}");
        assert!(bytes[..8000].iter().all(|byte| *byte == 3) && bytes[8400] == 4);
        assert!(bytes[8500..9000].iter().all(|byte| *byte == 3) && bytes[11_999] == 1);
    }
}

/// Once a checkpoint wrote it home, what is written in place is what is read.
#[test]
fn what_is_written_over_checkpointed_data_is_read() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let file = bench.create("file");
    for value in 1..8 {
        bench.synced(file, 0, &[value; 9000], false);
        // A question where it lies has it written there.
        bench.fs.pieces(&OpCtx::service(), file, 0, 9000, &mut |_| true).expect("told");
        bench.placed(file, 4096, &[value + 100; 4096]);
        let bytes = bench.read("file");
        assert!(bytes[4096..8192] == [value + 100; 4096] && bytes[..4096] == [value; 4096]);
    }
}

/// Blocks of logged data that were freed are another file's: a replay leaves that alone.
#[test]
fn freed_blocks_of_logged_data_belong_to_whoever_has_them_next() {
    for checkpointed in [false, true] {
        let Some(bench) = bench(DataMode::Ordered) else { return };
        let file = bench.create("file");
        bench.synced(file, 0, &[1; 40_960], false);
        if checkpointed {
            let mut seen = 0;
            let told = bench.fs.pieces(&OpCtx::service(), file, 0, 40_960, &mut |_| {
                seen += 1;
                true
            });
            assert!(told.is_ok() && seen > 0, "where it is said to be");
        }
        bench.remove("file");
        bench.fs.sync(&OpCtx::service()).expect("durable");
        let mut others = Vec::new();
        for at in 0..60 {
            let name = format!("other{at}");
            bench.placed(bench.create(&name), 0, &[at + 2; 40_960]);
            others.push(name);
        }
        bench.fs.sync(&OpCtx::service()).expect("durable");
        let bench = bench.cut();
        for (name, at) in others.iter().zip(2..) {
            assert!(bench.read(name).iter().all(|byte| *byte == at), "{name}, {checkpointed}");
        }
    }
}

/// With all data in the journal nothing is written in place before a checkpoint.
#[test]
fn all_data_can_go_to_the_log() {
    let Some(bench) = bench(DataMode::Data) else { return };
    let file = bench.create("file");
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
    let written = bench.requests(|| {
        assert_eq!(bench.fs.write(&OpCtx::service(), file, 100, &mut &bytes[..]), Ok(bytes.len()));
    });
    assert_eq!(written, [0, 0, 0]);
    bench.fs.fsync(&OpCtx::service(), file, false).expect("durable");
    let bench = bench.cut();
    assert!(bench.read("file")[100..] == bytes);
    bench.fs.close().expect("closes");
}

/// Bytes that begin as the journal's own blocks do are the file's all the same.
#[test]
fn data_that_looks_like_a_journal_is_data() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let mut bytes = vec![9; 12_288];
    for at in [0, 4096, 8192] {
        // A commit block of the next transactions, as far as it can be guessed.
        bytes[at..at + 12].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2, 0, 0, 0, 3]);
    }
    let file = bench.create("file");
    bench.synced(file, 0, &bytes, false);
    assert!(bench.read("file") == bytes);
    let bench = bench.cut();
    assert!(bench.read("file") == bytes);
}

/// Where the first of `events` that `is` so is, and the last.
fn span(events: &[Event], is: impl Fn(&Event) -> bool) -> (usize, usize) {
    let at = |found: Option<usize>| found.expect("there is one");
    (at(events.iter().position(&is)), at(events.iter().rposition(&is)))
}

/// Data and the body of the log are one batch; the commit block is sent when a flush has made both
/// durable.
#[test]
fn a_large_sync_sends_data_and_the_logs_body_together() {
    if !common::have_tools() {
        return;
    }
    let blank = Image::new(common::image(16, common::LANE));
    let late = SimOptions { delay: Some(27), ..SimOptions::default() };
    let bench = open_on(blank, DataMode::Ordered, late);
    for (name, bytes, data_only) in [("data", 100_000, true), ("all", 2_500_000, false)] {
        let file = bench.create(name);
        let before = bench.disk.events().len();
        bench.synced(file, 0, &vec![0xd7; bytes], data_only);
        let events = bench.disk.events()[before..].to_vec();
        let is_data = |event: &Event| match event {
            Event::Write { data, .. } => data.starts_with(&[0xd7; 512]),
            _ => false,
        };
        let is_body =
            |event: &Event| matches!(event, Event::Write { fua: false, .. }) && !is_data(event);
        let is_commit = |event: &Event| matches!(event, Event::Write { fua: true, .. });
        let is_flush = |event: &Event| matches!(event, Event::Flush { .. });
        let is_done = |event: &Event| matches!(event, Event::Done { .. });
        let (data, body) = (span(&events, is_data), span(&events, is_body));
        let first = data.0.min(body.0);
        let sent = data.1.max(body.1);
        let waited = events[first..sent].iter().filter(|event| is_done(event)).count();
        assert_eq!(waited, 0, "{name}: one batch: {}", events.len());
        let (flush, commit) = (span(&events, is_flush), span(&events, is_commit));
        assert!(flush.0 == flush.1 && commit.0 == commit.1, "{name}: one flush, one commit block");
        assert!(sent < flush.0 && flush.0 < commit.0, "{name}");
        let answered = events[sent..flush.0].iter().filter(|event| is_done(event)).count();
        assert_eq!(answered, flush.0 - 1 - sent, "{name}: all of it answered, then the flush");
        assert!(events[flush.0..commit.0].iter().any(is_done), "{name}: flushed, then the commit");
    }
    let bench = bench.cut();
    assert!(
        bench.read("data") == vec![0xd7; 100_000] && bench.read("all") == vec![0xd7; 2_500_000]
    );
}

/// What waits for the sync's batch is read and written over as if it were in its place, whoever
/// looks first.
#[test]
fn deferred_data_is_what_the_file_holds() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let file = bench.create("file");
    let deferred = |offset: u64, bytes: &[u8]| {
        let syncing = Syncing { bytes: 1 << 20, data_only: false };
        let written =
            bench.fs.write_synced(&OpCtx::service(), file, offset, &mut &bytes[..], syncing);
        assert_eq!(written, Ok(bytes.len()));
    };
    let mut model = vec![0; 70_000];
    for round in 1..=60u8 {
        let (at, len) = (usize::from(round) * 977 % 60_000, usize::from(round) * 331 % 10_000 + 1);
        model[at..at + len].fill(round);
        let bytes = model[at..at + len].to_vec();
        match round % 4 {
            0 => bench.synced(file, at as u64, &bytes, false),
            1 => drop(bench.fs.write(&OpCtx::service(), file, at as u64, &mut &bytes[..])),
            _ => deferred(at as u64, &bytes),
        }
        if round % 5 == 0 {
            let bytes = bench.read("file");
            assert!(bytes[..] == model[..bytes.len()], "round {round}");
        }
    }
    bench.fs.fsync(&OpCtx::service(), file, false).expect("durable");
    let size = bench.read("file").len();
    let bench = bench.cut();
    let bytes = bench.read("file");
    assert!(bytes.len() == size && bytes[..] == model[..size]);
}

/// Blocks that were deferred and freed before the sync are nobody's afterwards.
#[test]
fn deferred_data_of_removed_files_is_written_over_by_nobody() {
    let Some(bench) = bench(DataMode::Ordered) else { return };
    for round in 0..8u8 {
        let file = bench.create("gone");
        let syncing = Syncing { bytes: 1 << 20, data_only: false };
        let bytes = vec![0xaa; 200_000];
        let written = bench.fs.write_synced(&OpCtx::service(), file, 0, &mut &bytes[..], syncing);
        assert_eq!(written, Ok(bytes.len()));
        bench.remove("gone");
        let kept = bench.create(&format!("kept{round}"));
        bench.synced(kept, 0, &vec![round; 150_000], true);
    }
    bench.fs.sync(&OpCtx::service()).expect("durable");
    let bench = bench.cut();
    for round in 0..8u8 {
        assert!(bench.read(&format!("kept{round}")) == vec![round; 150_000]);
    }
    bench.fs.close().expect("closes");
}

/// Each write by a descriptor with `O_DSYNC` or `O_SYNC` is one request, as a write with its sync.
#[test]
fn a_write_that_syncs_is_one_durable_write() {
    const O_DSYNC: i32 = 0o10_000;
    const O_SYNC: i32 = 0o4_010_000;
    let Some(bench) = bench(DataMode::Ordered) else { return };
    let Bench { disk, fs } = bench;
    let options = polylane_vfs::Options {
        clock: Arc::new(TestClock::default()),
        cache_bytes_limit: 4 << 20,
        dirty_bytes_limit: 4 << 20,
        flush_interval: std::time::Duration::from_secs(3600),
        mount_path: b"/lane".to_vec(),
        covered: vec![],
    };
    let vfs = polylane_vfs::Vfs::new(Arc::new(fs), options).expect("opens");
    let ctx = OpCtx::service();
    for (flags, name) in [(O_DSYNC, &b"data"[..]), (O_SYNC, b"all")] {
        let flags = flags | 2 | 0o100;
        let file = vfs.open_path(&ctx, &vfs.root(), name, flags, 0o600, 0).expect("made");
        let write = |at: u64, bytes: &[u8]| {
            let before = disk.events().len();
            let written = file.write(&ctx, Some(at), &mut &bytes[..]).expect("room");
            assert_eq!(written.count, bytes.len());
            file.sync_written(&ctx, flags).expect("durable");
            let events = disk.events();
            let new = events[before..].iter().filter(|event| !matches!(event, Event::Done { .. }));
            let durable = |event: &&Event| matches!(event, Event::Write { fua: true, .. });
            (new.clone().filter(durable).count(), new.count())
        };
        write(0, &[1; 4096]);
        // Where the journal's blocks do not lie side by side there are three.
        let odd = (1..30).filter(|at| write(at * 1000, &[2; 1000]) != (1, 1)).count();
        assert!(odd < 4, "{odd} of 30 appends");
        let odd = (0..20).filter(|at| write(at * 1000, &[3; 3000]) != (1, 1)).count();
        assert!(odd < 4, "{odd} of 20 writes over what is there");
    }
}
