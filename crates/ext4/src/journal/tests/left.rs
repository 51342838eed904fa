//! Syncs that are left to a commit: each is told once, when its transaction is durable or has
//! failed.

use std::sync::mpsc::{Sender, channel};

use polylane_base::rng::Rng;
use polylane_testkit::sim::{Fault, FaultOn};
use polylane_vfs::fs::{OnSynced, SyncLead, SyncLeft};

use super::*;

/// Leaves the sync of a file, if a thread takes it.
fn leave(fs: &Ext4, ino: Ino, data_only: bool) -> Result<Answer, SyncLeft> {
    let (send, answer) = mpsc::channel();
    let told = &mut || -> OnSynced {
        let send = send.clone();
        Box::new(move |synced| {
            // A test that has failed does not listen.
            let _ = send.send(synced);
        })
    };
    match fs.leave_sync(ino, data_only, told) {
        Ok(SyncLeft::ToAnother) => Ok(answer),
        left => Err(left.expect("the medium is well")),
    }
}

fn takes_syncs(fs: &Ext4) -> bool {
    fs.volume.journal.as_ref().is_some_and(|journal| journal.takes_syncs())
}

/// How a thread leads a commit.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Leads {
    /// It has locks while it commits.
    Locked,
    /// It has none.
    Unlocked,
    /// It promised to before, and was at something else until then.
    Promised,
}

use Leads::{Locked, Promised, Unlocked};

/// A commit on its way, a thread that leads the next one, and two syncs that were left to it.
fn left_to_a_leader(bench: &Bench, how: Leads) -> (Answer, Answer, [Answer; 2]) {
    let (gate, fs) = (&bench.gate, &bench.fs);
    gate.shut();
    let first = bench.sync_on_thread(create(fs, "first"), false);
    gate.flush(&[]);
    let [leader, a, b] = ["leader", "a", "b"].map(|name| create(fs, name));
    assert!(!takes_syncs(fs), "nobody leads them");
    assert_eq!(leave(fs, a, false).err(), Some(SyncLeft::ToCaller));
    let lead = (how == Promised).then(|| fs.lead_sync(leader, false).expect("none leads"));
    let before = lead.as_ref().map(|_| [a, b].map(|ino| leave(fs, ino, ino == b)));
    let (send, leads) = mpsc::channel();
    let on = fs.clone();
    thread::spawn(move || {
        let ctx = &OpCtx::service();
        // A test that has failed does not listen.
        let _ = send.send(match how {
            Locked => on.fsync(ctx, leader, false),
            Unlocked => on.fsync_unlocked(ctx, leader, false),
            Promised => lead.map_or(Ok(()), SyncLead::keep),
        });
    });
    if let Some(left) = before {
        let journal = fs.volume.journal.as_ref().expect("a journal");
        let waits = || journal.progress.lock().in_turn == 1;
        gate.wait("the leader waits for its turn", |_| waits().then_some(()));
        return (first, leads, left.map(|left| left.expect("somebody promised")));
    }
    gate.wait("a leader", |_| takes_syncs(fs).then_some(()));
    assert!(fs.lead_sync(leader, false).is_none(), "one leads already");
    let left = [a, b].map(|ino| leave(fs, ino, ino == b).expect("somebody leads"));
    (first, leads, left)
}

#[test]
fn they_are_told_when_their_transaction_is_durable() {
    for how in [Unlocked, Locked, Promised] {
        let Some(bench) = Bench::of(&[], usize::MAX) else { return };
        let gate = &bench.gate;
        let (first, leads, left) = left_to_a_leader(&bench, how);
        gate.let_go(gate.flush(&[]));
        gate.let_go(gate.durable_write());
        assert_eq!(told(&first), Ok(()));
        let flush = gate.flush(&[]);
        assert!(left.iter().all(untold), "nothing of theirs is durable");
        gate.let_go(flush);
        let block = gate.durable_write();
        assert!(left.iter().all(untold), "their commit block is not written");
        gate.let_go(block);
        assert_eq!(left.map(|left| told(&left)), [Ok(()); 2], "{how:?}");
        assert_eq!(told(&leads), Ok(()));
        let there = bench.names_after_a_cut();
        assert!(["a", "b"].iter().all(|name| there.contains(&(*name).into())), "{there:?}");
        let root = root(&bench.fs);
        assert_eq!(leave(&bench.fs, root, false).err(), Some(SyncLeft::Done));
    }
}

/// Whatever becomes of the commit before theirs, and of their own: each has its error.
#[test]
fn a_commit_that_fails_is_the_error_of_each() {
    let (eio, no_space) = (DeviceError::Medium(Errno::EIO), DeviceError::NoSpace);
    let both = [(eio, Errno::EIO), (no_space, Errno::ENOSPC)];
    let ways =
        [(false, Unlocked), (true, Unlocked), (true, Locked), (false, Promised), (true, Promised)];
    for ((error, errno), (own, how)) in
        both.iter().flat_map(|it| ways.iter().map(|way| (*it, *way)))
    {
        let what = format!("{errno:?}, own: {own}, {how:?}");
        let Some(bench) = Bench::of(&[], usize::MAX) else { return };
        let gate = &bench.gate;
        let (first, leads, left) = left_to_a_leader(&bench, how);
        gate.let_go(gate.flush(&[]));
        if own {
            gate.let_go(gate.durable_write());
            assert_eq!(told(&first), Ok(()));
            gate.let_go(gate.flush(&[]));
        }
        gate.fail(gate.durable_write(), error);
        assert_eq!(left.map(|left| told(&left)), [Err(errno); 2], "{what}");
        assert_eq!(told(&leads), Err(errno), "{what}");
        gate.open();
        if errno == Errno::ENOSPC {
            assert_eq!(bench.fs.sync(&OpCtx::service()), Ok(()), "{what}");
            let there = bench.names_after_a_cut();
            assert!(["a", "b"].iter().all(|name| there.contains(&(*name).into())), "{what}");
        }
        let journal = bench.fs.volume.journal.as_ref().expect("a journal");
        assert!(journal.progress.lock().left.is_empty(), "{what}");
    }
}

/// A commit of all leads nothing: who leads the next transaction is told of it, and those that left
/// theirs of either.
#[test]
fn a_commit_of_all_that_fails_is_the_error_of_each() {
    let (eio, no_space) = (DeviceError::Medium(Errno::EIO), DeviceError::NoSpace);
    for (error, errno) in [(eio, Errno::EIO), (no_space, Errno::ENOSPC)] {
        let Some(bench) = Bench::of(&[], usize::MAX) else { return };
        let (gate, fs) = (&bench.gate, &bench.fs);
        gate.shut();
        let first = create(fs, "first");
        let (send, all) = mpsc::channel();
        let on = fs.clone();
        thread::spawn(move || {
            // A test that has failed does not listen.
            let _ = send.send(on.sync(&OpCtx::service()));
        });
        let flush = gate.flush(&[]);
        let leads = bench.sync_on_thread(create(fs, "leader"), false);
        let second = create(fs, "second");
        gate.wait("a leader", |_| takes_syncs(fs).then_some(()));
        let left = [first, second].map(|ino| leave(fs, ino, false).expect("somebody leads"));
        gate.let_go(flush);
        gate.fail(gate.durable_write(), error);
        assert_eq!(left.map(|left| told(&left)), [Err(errno); 2]);
        assert_eq!((told(&leads), told(&all)), (Err(errno), Err(errno)));
        gate.open();
    }
}

/// What a commit under way does not cover is not left to it.
#[test]
fn data_written_in_place_behind_a_flush_is_not_left_to_it() {
    let Some(bench) = Bench::with(&["file"]) else { return };
    let (file, commit, block) = bench.behind_the_flush_of("file");
    let (gate, fs) = (&bench.gate, &bench.fs);
    let before = leave(fs, file, true).expect("what was written is flushed");
    fs.write(&OpCtx::service(), file, 0, &mut &[2; 4096][..]).expect("in place");
    assert_eq!(leave(fs, file, true).err(), Some(SyncLeft::ToCaller));
    gate.let_go(block);
    assert_eq!((told(&commit), told(&before)), (Ok(()), Ok(())));
    assert_eq!(leave(fs, file, true).err(), Some(SyncLeft::ToCaller), "it has to be flushed");
}

/// The worker does the first half of a sync only where a commit is made: what may go to its place
/// durably waits for the device.
#[test]
fn a_sync_commits_where_the_file_grew_or_changed_or_a_thread_is_about_to() {
    let Some(bench) = Bench::with(&["file"]) else { return };
    let fs = &bench.fs;
    let file = fs.lookup(&OpCtx::service(), root(fs), b"file").expect("is there").ino;
    assert!(!fs.sync_commits(file, true, 0), "over its blocks");
    assert!(fs.sync_commits(file, true, 1), "it grew");
    assert!(fs.sync_commits(file, false, 0), "its times");
    assert!(fs.lead_sync(file, false).is_none(), "all is durable");
    let made = create(fs, "made");
    assert!(fs.sync_commits(made, true, 0), "it is new");
    let lead = fs.lead_sync(made, false).expect("no thread leads");
    assert!(fs.sync_commits(file, true, 0), "a thread is about to");
    assert_eq!(lead.keep(), Ok(()));
    assert!(!fs.sync_commits(file, true, 0) && !fs.sync_commits(made, true, 0));
}

/// What a thread was told of a file that it made: its name, the answer, and where the record of the
/// medium was then.
type Told = (String, polylane_base::Result<()>, usize);

/// Makes files and syncs them, in one way or another, until the medium fails.
fn make_and_sync(bench: (&Arc<Ext4>, &Arc<SimDisk>), seed: u64, said: &Sender<Told>) -> usize {
    let ((fs, disk), mut rng) = (bench, Rng::new(seed));
    let (ctx, mut asked) = (&OpCtx::service(), 0);
    for number in 0..12 {
        let name = format!("{seed}-{number}");
        let new = NewNode::new(Kind::File, 0o600);
        let Ok(made) = fs.create(ctx, root(fs), name.as_bytes(), &new) else { return asked };
        let (ino, data_only) = (made.node.ino, rng.percent(30));
        let syncing = Syncing { bytes: 4096, data_only };
        let _ = fs.write_synced(ctx, ino, 0, &mut &[1; 100][..], syncing);
        asked += 1;
        let told = &mut || -> OnSynced {
            let (said, disk, name) = (said.clone(), disk.clone(), name.clone());
            Box::new(move |synced| said.send((name, synced, disk.position())).expect("listens"))
        };
        let answered = match rng.below(8) {
            0 => fs.sync(ctx),
            1 => fs.fsync(ctx, ino, data_only),
            2 => fs.fsync_unlocked(ctx, ino, data_only),
            // One that goes without a word keeps it as well.
            3 if rng.percent(50) => {
                drop(fs.lead_sync(ino, data_only));
                fs.fsync_unlocked(ctx, ino, data_only)
            }
            3 => match fs.lead_sync(ino, data_only).map_or(Ok(()), SyncLead::keep) {
                Ok(()) => fs.fsync_unlocked(ctx, ino, data_only),
                failed => failed,
            },
            _ => match fs.leave_sync(ino, data_only, told) {
                Ok(SyncLeft::ToAnother) => continue,
                Ok(SyncLeft::Done) => Ok(()),
                Ok(SyncLeft::ToCaller) => fs.fsync_unlocked(ctx, ino, data_only),
                Err(errno) => Err(errno),
            },
        };
        said.send((name, answered, disk.position())).expect("listens");
    }
    asked
}

/// Threads that sync in every way, on a medium that fails once, for good, or has no room for a
/// while: each sync is answered once, and what was said to be durable is there after a cut at that
/// moment.
#[test]
fn each_is_told_once_and_nothing_that_is_not_durable() {
    let Some(blank) = crate::fresh::image(IMAGE_BYTES as u64, &["-b", "4096"]) else { return };
    let mut left = 0;
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let error = *rng.pick(&[DeviceError::NoSpace, DeviceError::Medium(Errno::EIO)]);
        let on = *rng.pick(&[FaultOn::Write, FaultOn::Flush, FaultOn::Any]);
        let fault = Fault { on, nth: 20 + rng.below(60), error, lasting: rng.percent(50) };
        let record = SimOptions { record: true, ..SimOptions::default() };
        let pause = Duration::from_micros(200);
        let disk = SimDisk::new(blank.clone(), SimOptions { pause, ..record });
        let one_write_bytes = *rng.pick(&[0, 256 << 10, 1 << 20]);
        let tuning = Tuning {
            overlap_blocks: *rng.pick(&[0, usize::MAX]),
            one_write_bytes,
            ..Tuning::default()
        };
        let commit_interval = Duration::from_secs(3600);
        let options = Options { commit_interval, tuning, ..Options::default() };
        let fs = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &options);
        let fs = Arc::new(fs.expect("opens"));
        if rng.percent(75) {
            disk.set_fault(Some(fault));
        }
        let (said, heard) = channel();
        let asked: usize = thread::scope(|scope| {
            let begin = |number: u64| {
                let (fs, disk, said) = (&fs, &disk, said.clone());
                scope.spawn(move || make_and_sync((fs, disk), 100 * seed + number, &said))
            };
            let threads: Vec<_> = (0..6).map(begin).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        // Room is found for what was kept back.
        disk.set_fault(None);
        let told: Vec<Told> =
            (0..asked).map(|_| heard.recv_timeout(PATIENCE).expect("each is told")).collect();
        drop(said);
        left += usize::from(told.iter().any(|(_, answer, _)| answer.is_err()));
        let journal = fs.volume.journal.as_ref().expect("a journal");
        assert!(journal.progress.lock().left.is_empty(), "seed {seed}");
        assert!(heard.try_recv().is_err(), "seed {seed}: told twice");
        let events = disk.events();
        for (name, ..) in told.iter().filter(|(_, answer, _)| answer.is_ok()).step_by(9) {
            let at = told.iter().find(|it| it.0 == *name).expect("is among them").2;
            let mut crash = Crash::new(&blank, &events);
            while crash.position() < at && crash.advance().is_some() {}
            let image = crash.image(&Tear::at(512), |_| Fate::Lost);
            let after = open(SimDisk::new(image, SimOptions::default()));
            let found = after.lookup(&OpCtx::service(), root(&after), name.as_bytes());
            assert!(found.is_ok(), "seed {seed}: {name} was durable at {at}");
        }
    }
    assert!(left > 0, "no commit has failed");
}
