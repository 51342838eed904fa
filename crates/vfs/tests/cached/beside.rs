//! Others change the files below, between any two steps and in the middle of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use polylane_base::rng::Rng;
use polylane_base::{Clock, Ino, Time};
use polylane_testkit::fault::{Call, Faulty};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::cached::{Cached, Mode};
use polylane_vfs::fs::{FileSystem, Kind, SetAttr};
use polylane_vfs::memfs::MemFs;

use crate::{Fs, MODES, settings};

/// Milliseconds, that the test moves.
#[derive(Default)]
struct Hands(AtomicI64);

impl Hands {
    fn set(&self, ms: i64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    fn move_on(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for Hands {
    fn now(&self) -> Time {
        let ms = self.0.load(Ordering::Relaxed);
        Time { sec: 1_000_000 + ms / 1000, nsec: (ms % 1000) as u32 * 1_000_000 }
    }
}

/// A cache over files that others change.
struct Lane {
    /// Without the cache.
    others: Fs,
    faults: Arc<Faulty>,
    fs: Cached,
    ino: Ino,
    /// The host's clock, and the cache's.
    clocks: [Arc<Hands>; 2],
}

fn ctx() -> OpCtx<'static> {
    OpCtx::service()
}

impl Lane {
    fn new(mode: Mode) -> Lane {
        let clocks = [Arc::new(Hands::default()), Arc::new(Hands::default())];
        let others: Fs = Arc::new(MemFs::new(1 << 30, 1 << 10, clocks[0].clone()));
        let faults = Faulty::volatile(others.clone());
        let fs = Cached::new(faults.clone(), settings(mode, clocks[1].clone())).unwrap();
        let root = fs.root().unwrap().ino;
        let ino = fs.create(&ctx(), root, b"f", &node(Kind::File, 0o644)).unwrap().node.ino;
        Lane { others, faults, fs, ino, clocks }
    }

    fn write(&self, fs: &dyn FileSystem, (at, bytes): (u64, &[u8])) {
        assert_eq!(fs.write(&ctx(), self.ino, at, &mut &*bytes), Ok(bytes.len()));
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0xee; 1 << 20];
        let len = bytes.len();
        let count = self.fs.read(&ctx(), self.ino, 0, len, &mut bytes.as_mut_slice()).unwrap();
        bytes.truncate(count);
        bytes
    }

    fn pass(&self, ms: i64) {
        for clock in &self.clocks {
            clock.move_on(ms);
        }
    }
}

fn put(content: &mut Vec<u8>, (at, bytes): (u64, &[u8])) {
    let end = at as usize + bytes.len();
    content.resize(content.len().max(end), 0);
    content[at as usize..end].copy_from_slice(bytes);
}

/// Time may stand still between two changes. What is kept back is synced before others change the
/// file: else it would win.
#[test]
fn reads_are_right_whatever_others_do_and_when() {
    for (mode, seed) in MODES.into_iter().flat_map(|mode| (1..9).map(move |seed| (mode, seed))) {
        let lane = Lane::new(mode);
        let (mut rng, mut content) = (Rng::new(seed), Vec::new());
        for step in 0..600 {
            lane.pass([0, 0, 10, 100][rng.below(4) as usize]);
            let mut write =
                || (rng.below(200_000), vec![rng.below(256) as u8; 1 + rng.below(9000) as usize]);
            let (own, theirs) = (write(), write());
            let (own, theirs) = ((own.0, &own.1[..]), (theirs.0, &theirs.1[..]));
            let sync = || lane.fs.fsync(&ctx(), lane.ino, false).unwrap();
            match rng.below(8) {
                0 => {
                    lane.write(&lane.fs, own);
                    put(&mut content, own);
                }
                1 => {
                    sync();
                    lane.write(&*lane.others, theirs);
                    put(&mut content, theirs);
                }
                2 => {
                    sync();
                    let size = rng.below(200_000);
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    lane.others.setattr(&ctx(), lane.ino, &set).unwrap();
                    content.resize(size as usize, 0);
                }
                3 if mode == Mode::WriteThrough => {
                    lane.faults.block(Call::Write, true);
                    thread::scope(|scope| {
                        scope.spawn(|| lane.write(&lane.fs, own));
                        lane.faults.await_blocked(1);
                        lane.write(&*lane.others, theirs);
                        lane.pass([0, 100][rng.below(2) as usize]);
                        lane.faults.block(Call::Write, false);
                    });
                    put(&mut content, theirs);
                    put(&mut content, own);
                }
                4 if mode == Mode::WriteThrough => {
                    lane.faults.keep_answer_back(Call::Write);
                    thread::scope(|scope| {
                        scope.spawn(|| lane.write(&lane.fs, own));
                        lane.faults.await_kept_back();
                        lane.write(&*lane.others, theirs);
                        lane.pass([0, 100][rng.below(2) as usize]);
                        lane.faults.answer();
                    });
                    put(&mut content, own);
                    put(&mut content, theirs);
                }
                _ => assert!(lane.read() == content, "{mode:?} seed {seed} step {step}"),
            }
        }
    }
}

/// A change that moves no time, as of a program that stores through a mapping.
#[test]
fn what_leaves_no_trace_is_seen_after_a_minute() {
    for mode in MODES {
        let lane = Lane::new(mode);
        lane.write(&*lane.others, (0, &[1; 5000]));
        lane.clocks[1].set(10_000);
        assert_eq!(lane.read(), [1; 5000]);
        lane.write(&*lane.others, (0, &[2; 5000]));
        lane.clocks[1].set(69_000);
        assert_eq!(lane.read(), [1; 5000], "pages are kept");
        lane.clocks[1].set(71_000);
        assert_eq!(lane.read(), [2; 5000], "{mode:?}");
        lane.write(&*lane.others, (0, &[3; 5000]));
        lane.clocks[1].set(60_000);
        assert_eq!(lane.read(), [3; 5000], "{mode:?}: the clock was set back");
    }
}
