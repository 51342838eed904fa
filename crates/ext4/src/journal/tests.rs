//! Commits that overlap, one held request after the other: what is told durable, and when.

mod left;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, Ino, TestClock};
use polylane_block::Error as DeviceError;
use polylane_testkit::sim::{Crash, Event, Fate, Gate, Held, Image, SimDisk, SimOptions, Tear};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, NewNode, Syncing};

use super::{Form, Tuning};
use crate::format::DeviceBlock;
use crate::{Ext4, Options};

/// Longer than an answer takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

const IMAGE_BYTES: usize = 16 << 20;

/// An open file system whose medium the test lets go on, step by step.
struct Bench {
    base: Image,
    disk: Arc<SimDisk>,
    gate: Arc<Gate>,
    fs: Arc<Ext4>,
}

impl Drop for Bench {
    /// Nobody waits for a test that has failed.
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// Without a log: a full file system allocates what is set aside, which is room for metadata no
/// more.
#[test]
fn what_is_allocated_is_not_set_aside() {
    let options = ["-b", "4096", "-O", "^has_journal"];
    let Some(image) = crate::fresh::image(IMAGE_BYTES as u64, &options) else { return };
    let fs = open(SimDisk::new(image, SimOptions::default()));
    let journal = fs.volume.journal.as_ref().expect("one that logs nothing");
    let is_tight = || {
        journal.short.store(true, Ordering::Release);
        journal.is_tight(&*fs.volume)
    };
    let aside = || fs.volume.alloc.aside();
    assert_eq!((aside() > 0, is_tight()), (true, false));
    let (file, mode) = (create(&fs, "file"), Fallocate::Allocate { keep_size: false });
    let (mut at, mut piece) = (0, IMAGE_BYTES as u64);
    while piece >= 4096 {
        match fs.fallocate(&OpCtx::service(), file, mode, at, piece) {
            Err(Errno::ENOSPC) => piece /= 2,
            done => at += done.map(|_| piece).expect("room, or none"),
        }
    }
    assert_eq!((aside(), is_tight()), (0, true));
}

/// What an fsync on a thread of its own answers.
type Answer = Receiver<polylane_base::Result<()>>;

fn open(disk: Arc<dyn polylane_block::BlockDevice>) -> Arc<Ext4> {
    // Every commit begins before the one before has ended.
    open_with(disk, 0)
}

fn open_with(disk: Arc<dyn polylane_block::BlockDevice>, overlap_blocks: usize) -> Arc<Ext4> {
    // Every commit takes two writes, and none comes by the clock.
    let tuning = Tuning { overlap_blocks, one_write_bytes: 0, ..Tuning::default() };
    let commit_interval = Duration::from_secs(3600);
    let options = Options { commit_interval, tuning, discard: true, ..Options::default() };
    Arc::new(Ext4::open(disk, Arc::new(TestClock::default()), &options).expect("opens"))
}

impl Bench {
    /// A new file system with files `names`, all durable. `None`, and said so, without mke2fs.
    fn with(names: &[&str]) -> Option<Bench> {
        Bench::of(names, 0)
    }

    /// The same, on which transactions of so many blocks overlap.
    fn of(names: &[&str], overlap_blocks: usize) -> Option<Bench> {
        let blank = crate::fresh::image(IMAGE_BYTES as u64, &["-b", "4096"])?;
        let first = SimDisk::new(blank, SimOptions::default());
        let fs = open(first.clone());
        for name in names {
            create(&fs, name);
        }
        fs.close().expect("closes");
        let base = first.image().rebased();
        let disk = SimDisk::new(base.clone(), SimOptions { record: true, ..SimOptions::default() });
        let gate = Gate::new(disk.clone());
        let fs = open_with(gate.clone(), overlap_blocks);
        Some(Bench { base, disk, gate, fs })
    }

    fn sync_on_thread(&self, ino: Ino, data_only: bool) -> Answer {
        let (send, answer) = mpsc::channel();
        let fs = self.fs.clone();
        thread::spawn(move || {
            // A test that has failed does not listen.
            let _ = send.send(fs.fsync(&OpCtx::service(), ino, data_only));
        });
        answer
    }

    /// Writes a file and syncs it on another thread, until what was written is flushed: the file,
    /// the answer to come, and the write of the commit block.
    fn behind_the_flush_of(&self, name: &str) -> (Ino, Answer, Held) {
        let (gate, fs, ctx) = (&self.gate, &self.fs, &OpCtx::service());
        let file = fs.lookup(ctx, root(fs), name.as_bytes()).expect("is there").ino;
        fs.write(ctx, file, 0, &mut &[1; 4096][..]).expect("room");
        gate.shut();
        let commit = self.sync_on_thread(file, false);
        gate.let_go(gate.flush(&[]));
        (file, commit, gate.durable_write())
    }

    /// Threads that wait for a transaction on its way.
    fn watching(&self) -> u32 {
        let journal = self.fs.volume.journal.as_ref().expect("a journal");
        let progress = journal.progress.lock();
        progress.watching.iter().sum::<u32>() + progress.in_turn
    }

    /// Waits until somebody waits for a transaction on its way; a durable write instead is the
    /// commit block of one that does not.
    fn somebody_waits(&self) {
        self.gate.wait("a thread that waits for the commit before", |held| {
            assert!(held.iter().all(|held| held.is_flush), "a commit block ahead of its turn");
            (self.watching() > 0).then_some(())
        });
    }

    /// Shuts the gate on two commits, of files "first" and "second": the flush of the first is
    /// held, and the body of the second, written and made durable meanwhile, waits for it.
    fn overlap(&self) -> (Answer, Answer, Held) {
        self.gate.shut();
        let first = self.sync_on_thread(create(&self.fs, "first"), false);
        let flush = self.gate.flush(&[]);
        let second = self.sync_on_thread(create(&self.fs, "second"), false);
        self.gate.let_go(self.gate.flush(&[flush]));
        self.somebody_waits();
        (first, second, flush)
    }

    /// Names of the root directory after a power cut now: of what is not durable nothing is there.
    fn names_after_a_cut(&self) -> Vec<String> {
        let events = self.disk.events();
        let mut crash = Crash::new(&self.base, &events);
        while crash.advance().is_some() {}
        let image = crash.image(&Tear::at(512), |_| Fate::Lost);
        let fs = open(SimDisk::new(image, SimOptions::default()));
        let mut names = Vec::new();
        let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        fs.readdir(&OpCtx::service(), root(&fs), 0, &mut each).expect("lists");
        names
    }
}

fn root(fs: &Ext4) -> Ino {
    fs.root().expect("root").ino
}

fn create(fs: &Ext4, name: &str) -> Ino {
    let new = NewNode::new(Kind::File, 0o600);
    fs.create(&OpCtx::service(), root(fs), name.as_bytes(), &new).expect("room").node.ino
}

fn told(answer: &Answer) -> polylane_base::Result<()> {
    answer.recv_timeout(PATIENCE).expect("is told in the end")
}

fn untold(answer: &Answer) -> bool {
    answer.try_recv() == Err(mpsc::TryRecvError::Empty)
}

#[test]
fn a_commit_is_told_after_the_one_before_it() {
    let Some(bench) = Bench::with(&[]) else { return };
    let gate = &bench.gate;
    let (first, second, flush) = bench.overlap();
    assert!(untold(&first) && untold(&second), "nothing is durable");
    let there = bench.names_after_a_cut();
    assert!(!there.iter().any(|name| name == "first" || name == "second"), "{there:?}");

    gate.let_go(flush);
    let commit = gate.durable_write();
    assert!(untold(&first) && untold(&second), "no commit block is written");
    assert_eq!(bench.watching(), 1, "the second waits for the first one's commit block");
    gate.let_go(commit);
    assert_eq!(told(&first), Ok(()));
    let commit = gate.durable_write();
    assert!(untold(&second), "its commit block is not written");
    let there = bench.names_after_a_cut();
    assert!(there.contains(&"first".into()) && !there.contains(&"second".into()), "{there:?}");
    gate.let_go(commit);
    assert_eq!(told(&second), Ok(()));
    assert!(bench.names_after_a_cut().contains(&"second".into()));
    let steps = bench.fs.syncs();
    assert_eq!(steps.iter().map(|step| step.why).collect::<Vec<_>>(), ["large", "behind"]);
    assert!(steps[1].at_us <= steps[0].at_us + steps[0].took_us, "it began meanwhile: {steps:?}");
}

#[test]
fn a_commit_whose_predecessor_fails_is_not_told_durable() {
    let Some(bench) = Bench::with(&[]) else { return };
    let (gate, fs) = (&bench.gate, &bench.fs);
    let (first, second, flush) = bench.overlap();
    gate.fail(flush, DeviceError::Medium(Errno::EIO));
    assert_eq!(told(&first), Err(Errno::EIO));
    assert_eq!(told(&second), Err(Errno::EIO));
    assert!(fs.is_stopped());
    assert!(gate.held().is_empty(), "a commit block behind one that is not there");
    let there = bench.names_after_a_cut();
    assert!(!there.iter().any(|name| name == "first" || name == "second"), "{there:?}");
}

#[test]
fn commits_called_back_for_want_of_room_are_written_again_in_their_order() {
    let Some(bench) = Bench::with(&[]) else { return };
    let (gate, fs) = (&bench.gate, &bench.fs);
    let (first, second, flush) = bench.overlap();
    gate.let_go(flush);
    gate.fail(gate.durable_write(), DeviceError::NoSpace);
    assert_eq!(told(&first), Err(Errno::ENOSPC));
    assert_eq!(told(&second), Err(Errno::ENOSPC));
    gate.open();
    assert_eq!(fs.sync(&OpCtx::service()), Ok(()));
    let there = bench.names_after_a_cut();
    assert!(there.contains(&"first".into()) && there.contains(&"second".into()), "{there:?}");
}

/// Three who sync while a commit is on its way share the next one: one waits for his turn, the
/// others for their transaction.
#[test]
fn of_those_who_wait_one_leads() {
    let Some(bench) = Bench::of(&[], usize::MAX) else { return };
    let (gate, fs) = (&bench.gate, &bench.fs);
    let journal = fs.volume.journal.as_ref().expect("a journal");
    let commits = || Form::ALL.map(|form| journal.commits(form)).iter().sum::<u64>();
    let before = commits();
    gate.shut();
    let first = bench.sync_on_thread(create(fs, "first"), false);
    let flush = gate.flush(&[]);
    let others = ["a", "b", "c"].map(|name| create(fs, name));
    let others = others.map(|ino| bench.sync_on_thread(ino, false));
    let waiting = || {
        let progress = journal.progress.lock();
        (progress.in_turn, progress.watching.iter().sum::<u32>())
    };
    gate.wait("a leader and two others", |_| (waiting() == (1, 2)).then_some(()));
    gate.let_go(flush);
    gate.let_go(gate.durable_write());
    assert_eq!(told(&first), Ok(()));
    let flush = gate.flush(&[]);
    assert!(others.iter().all(untold), "nothing of theirs is durable");
    assert_eq!(waiting(), (0, 2), "two wait for theirs");
    gate.let_go(flush);
    gate.let_go(gate.durable_write());
    assert_eq!(others.map(|other| told(&other)), [Ok(()); 3]);
    assert_eq!(commits() - before, 2);
    let there = bench.names_after_a_cut();
    assert!(["a", "b", "c"].iter().all(|name| there.contains(&(*name).into())), "{there:?}");
}

/// A lead that is given up has the others look again, and another take it.
#[test]
fn a_lead_that_is_given_up_is_taken_again() {
    let Some(bench) = Bench::of(&[], usize::MAX) else { return };
    create(&bench.fs, "file");
    let journal = bench.fs.volume.journal.as_ref().expect("a journal");
    let tid = journal.current();
    let lead = journal.lead(tid).expect("nobody leads");
    let given_up = journal.lead(tid).err().expect("it is taken");
    thread::scope(|scope| {
        let waits = || journal.wait_for_leader(journal.log.lock(), tid, given_up);
        let other = scope.spawn(waits);
        bench.gate.wait("a thread that waits for it", |_| (bench.watching() > 0).then_some(()));
        drop(lead);
        assert_eq!(other.join().expect("no panic"), Ok(()));
        assert!(!journal.has_committed(tid));
    });
    assert_eq!(journal.wait_for_leader(journal.log.lock(), tid, given_up), Ok(()));
    let lead = journal.lead(tid).expect("it was given up");
    assert_eq!(bench.fs.sync(&OpCtx::service()), Ok(()));
    let given_up = journal.progress.lock().given_up;
    drop(lead);
    assert_eq!(journal.progress.lock().given_up, given_up, "it has committed");
}

/// While a transaction is copied, what it has logged is neither read from its home nor written
/// there, and an fsync waits for it.
#[test]
fn logged_blocks_are_live_while_their_transaction_closes() {
    let Some(bench) = Bench::with(&["file"]) else { return };
    let fs = &bench.fs;
    let file = fs.lookup(&OpCtx::service(), root(fs), b"file").expect("is there").ino;
    let syncing = Syncing { bytes: 8192, data_only: false };
    let write = |byte: u8| {
        let mut data = &[byte; 8192][..];
        fs.write_synced(&OpCtx::service(), file, 0, &mut data, syncing).expect("room")
    };
    write(1);
    let journal = fs.volume.journal.as_ref().expect("a journal");
    let [first, second] = &journal.logged.find(DeviceBlock(0), u32::MAX)[..] else {
        panic!("two blocks of data are logged")
    };
    let tid = journal.current();
    // Copies are made in the blocks' order: the commit stops before the second one.
    let held = second.read();
    let commit = bench.sync_on_thread(file, false);
    let begun = Instant::now();
    while first.closed_in.load(Ordering::Acquire) == 0 {
        assert!(begun.elapsed() < PATIENCE, "no commit begins");
        thread::yield_now();
    }
    assert_eq!(journal.logged.run(first.home, 2), (true, 2), "none may be written in place");
    assert_eq!((journal.latest(first), journal.latest(second)), (tid, tid));
    drop(held);
    assert_eq!(told(&commit), Ok(()));
    assert_eq!(journal.logged.run(first.home, 2), (true, 2), "their homes are old");
    write(2);
    let mut data = [0; 8192];
    fs.read(&OpCtx::service(), file, 0, 8192, &mut &mut data[..]).expect("reads");
    assert_eq!(data, [2; 8192]);
}

/// A commit under way may have flushed before the file was last written in place.
#[test]
fn fdatasync_beside_a_commit_flushes_what_was_written_since_its_flush() {
    let Some(bench) = Bench::with(&["file"]) else { return };
    let (file, commit, block) = bench.behind_the_flush_of("file");
    let (gate, fs) = (&bench.gate, &bench.fs);
    fs.write(&OpCtx::service(), file, 0, &mut &[2; 4096][..]).expect("in place");
    let data = bench.sync_on_thread(file, true);
    bench.gate.wait("a thread that waits for the commit", |_| (bench.watching() > 0).then_some(()));
    assert!(untold(&data), "its blocks are not mapped yet");
    gate.let_go(block);
    assert_eq!(told(&commit), Ok(()));
    let flush = gate.wait("a flush of its own", |held| {
        assert!(untold(&data), "told without a flush");
        held.first().copied()
    });
    assert!(flush.is_flush);
    gate.let_go(flush);
    assert_eq!(told(&data), Ok(()));
}

/// A device may take its time with what it is given back; others commit meanwhile.
#[test]
fn nobody_waits_for_the_log_while_freed_blocks_are_given_back() {
    let Some(bench) = Bench::with(&["file", "other"]) else { return };
    let (gate, fs) = (&bench.gate, &bench.fs);
    let lookup = |name: &[u8]| fs.lookup(&OpCtx::service(), root(fs), name).expect("is there").ino;
    let (file, syncing) = (lookup(b"file"), Syncing { bytes: 4096, data_only: false });
    fs.write_synced(&OpCtx::service(), file, 0, &mut &[7; 4096][..], syncing).expect("room");
    fs.fsync(&OpCtx::service(), file, false).expect("durable");
    fs.unlink(&OpCtx::service(), root(fs), b"file").expect("is there");
    fs.forget(file);
    let other = lookup(b"other");
    fs.write(&OpCtx::service(), other, 0, &mut &[1; 4096][..]).expect("room");
    gate.shut();
    let commit = bench.sync_on_thread(other, false);
    gate.let_go(gate.flush(&[]));
    gate.let_go(gate.durable_write());
    let discard = gate.durable_write();
    let journal = fs.volume.journal.as_ref().expect("a journal");
    let log = journal.log.try_lock().expect("the log does not wait for a discard");
    let goes_home = |pending: &super::log::Pending| pending.data[..] == [7; 4096];
    assert!(!log.pending.values().any(goes_home), "what is given back goes home");
    drop(log);
    assert!(untold(&commit), "its blocks are not free yet");
    gate.let_go(discard);
    assert_eq!(told(&commit), Ok(()));
}

/// The log is brought home while commits go on; what they free meanwhile is nobody's until that has
/// ended, and a cut at any moment finds all that was told.
#[test]
fn no_commit_waits_for_the_log_to_be_brought_home() {
    let Some(bench) = Bench::with(&["file", "gone"]) else { return };
    let (gate, fs) = (&bench.gate, &bench.fs);
    let lookup = |name: &[u8]| fs.lookup(&OpCtx::service(), root(fs), name).expect("is there").ino;
    let (file, gone) = (lookup(b"file"), lookup(b"gone"));
    let journal = fs.volume.journal.as_ref().expect("a journal");
    let syncing = Syncing { bytes: 4096, data_only: false };
    let write = |ino: Ino, byte: u8| {
        let mut data = &[byte; 4096][..];
        fs.write_synced(&OpCtx::service(), ino, 0, &mut data, syncing).expect("room");
    };
    let commit = |ino: Ino| {
        let known = gate.held();
        let answer = bench.sync_on_thread(ino, false);
        gate.let_go(gate.flush(&known));
        // The commit block, and what is given back.
        let answered = gate.wait("an answer", |held| {
            held.iter()
                .filter(|it| !it.is_flush && !known.contains(it))
                .for_each(|it| gate.let_go(*it));
            answer.try_recv().ok()
        });
        assert_eq!(answered, Ok(()));
    };
    write(gone, 1);
    fs.fsync(&OpCtx::service(), gone, false).expect("durable");
    let half = journal.log.lock().size() / 2;
    while journal.log.lock().used() + 16 < half {
        write(file, 2);
        fs.fsync(&OpCtx::service(), file, false).expect("durable");
    }
    gate.shut();
    while journal.log.lock().used() <= half {
        write(file, 3);
        commit(file);
    }
    // The versions are at home, and not durable there.
    let homes = gate.flush(&[]);
    let tail = journal.log.lock().tail;
    let removed = fs.unlink(&OpCtx::service(), root(fs), b"gone").expect("is there").node;
    fs.forget(removed.ino);
    write(file, 4);
    commit(file);
    assert!(journal.freeing() > 0, "blocks are free that an older version is on its way to");
    assert_eq!(journal.log.lock().tail, tail, "the log begins where its superblock says");
    assert!(!journal.logged.is_empty() && gate.held() == [homes]);
    let there = bench.names_after_a_cut();
    assert!(there.contains(&"file".into()) && !there.contains(&"gone".into()), "{there:?}");
    gate.let_go(homes);
    let superblock = gate.durable_write();
    write(file, 5);
    commit(file);
    assert_eq!(journal.log.lock().tail, tail, "the superblock is not durable");
    gate.let_go(superblock);
    gate.wait("the end of the checkpoint", |_| (journal.freeing() == 0).then_some(()));
    let log = journal.log.lock();
    assert!(log.tail != tail && log.used() < half / 2 && log.homing.is_empty());
    assert!(log.pending.len() < 16, "what is newer waits for the next one");
}

/// What a checkpoint could not bring home goes with the next one, but for what was revoked.
#[test]
fn a_checkpoint_without_room_is_made_later() {
    let Some(bench) = Bench::with(&["file", "gone"]) else { return };
    let fs = &bench.fs;
    let lookup = |name: &[u8]| fs.lookup(&OpCtx::service(), root(fs), name).expect("is there").ino;
    let journal = fs.volume.journal.as_ref().expect("a journal");
    for (name, byte) in [(&b"file"[..], 1), (b"gone", 2)] {
        let syncing = Syncing { bytes: 4096, data_only: false };
        let mut data = &[byte; 4096][..];
        let ino = lookup(name);
        fs.write_synced(&OpCtx::service(), ino, 0, &mut data, syncing).expect("room");
        fs.fsync(&OpCtx::service(), ino, false).expect("durable");
    }
    // As the committer does it, by the medium's refusal in the middle.
    let mut log = journal.log.lock();
    let before = log.pending.len();
    let mut plan = journal.begin_background(&mut log);
    drop(log);
    let removed = fs.unlink(&OpCtx::service(), root(fs), b"gone").expect("is there").node;
    fs.forget(removed.ino);
    fs.fsync(&OpCtx::service(), root(fs), false).expect("durable");
    assert!(journal.freeing() > 0);
    let buffers = std::mem::take(&mut plan.runs).into_iter().flat_map(|(_, data)| data).collect();
    journal.background.end(plan, (buffers, Err(DeviceError::NoSpace.into())));
    let mut log = journal.log.lock();
    journal.settle_background(&mut log).expect("put off");
    assert!(log.checkpoint_at > 0 && log.pending.len() >= before - 1);
    assert!(log.pending.values().all(|pending| pending.data[..] != [2; 4096]), "it was revoked");
    assert!(log.pending.values().any(|pending| pending.data[..] == [1; 4096]));
    drop(log);
    assert_eq!(fs.sync(&OpCtx::service()), Ok(()));
    assert_eq!(journal.freeing(), 0);
}

/// What a commit frees while an older version of it is on its way home comes to nobody's file, and
/// the medium does not get it back.
#[test]
fn a_block_is_nobodys_while_an_older_version_of_it_goes_home() {
    let Some(bench) = Bench::with(&["gone", "other"]) else { return };
    let fs = &bench.fs;
    let lookup = |name: &[u8]| fs.lookup(&OpCtx::service(), root(fs), name).expect("is there").ino;
    let (gone, other) = (lookup(b"gone"), lookup(b"other"));
    let journal = fs.volume.journal.as_ref().expect("a journal");
    let syncing = Syncing { bytes: 4096, data_only: false };
    fs.write_synced(&OpCtx::service(), gone, 0, &mut &[1; 4096][..], syncing).expect("room");
    fs.fsync(&OpCtx::service(), gone, false).expect("durable");
    // Two blocks more, which are in place.
    fs.write(&OpCtx::service(), gone, 4096, &mut &[1; 8192][..]).expect("room");
    let mut plan = journal.begin_background(&mut journal.log.lock());
    let homes = journal.log.lock().homing.clone();
    fs.unlink(&OpCtx::service(), root(fs), b"gone").expect("is there");
    fs.forget(gone);
    fs.fsync(&OpCtx::service(), root(fs), false).expect("durable");
    let events = bench.disk.events();
    let given = events.iter().filter_map(|event| match event {
        Event::Zero { at, len, .. } => Some(at / 4096..(at + len) / 4096),
        _ => None,
    });
    let given: Vec<_> = given.flatten().map(|block| DeviceBlock(block as u64)).collect();
    assert_eq!(given.len(), 2, "the others are given back: {given:?}");
    assert!(given.iter().all(|block| !homes.contains(block)), "{given:?} of {homes:?}");
    // The first blocks that are free, in place.
    const LEN: usize = 64 * 4096;
    fs.write(&OpCtx::service(), other, 0, &mut &[2; LEN][..]).expect("room");
    let done = journal.carry_out(&mut plan, usize::MAX);
    journal.background.end(plan, done);
    journal.settle_background(&mut journal.log.lock()).expect("home");
    let mut data = vec![0; LEN];
    fs.read(&OpCtx::service(), other, 0, LEN, &mut &mut data[..]).expect("reads");
    assert!(data.iter().all(|byte| *byte == 2), "an older version came on top");
    assert_eq!(fs.sync(&OpCtx::service()), Ok(()));
    assert_eq!(journal.freeing(), 0, "it is free in the end");
}
