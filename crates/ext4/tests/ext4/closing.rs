//! Closing under load: threads go on changing things, as packages are unpacked and replaced, while
//! the file system is closed under them. The image is then clean, not merely recoverable, and holds
//! every file whose sync was answered before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::TestClock;
use polylane_base::rng::Rng;
use polylane_ext4::Ext4;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{Kind, SetAttr};
use polylane_vfs::{Create, Cred, Node, OpCtx, PathError, Vfs};

use crate::common;

const THREADS: u64 = 4;
const ROUNDS: u64 = 8;
const CACHE_BYTES: u64 = 4 << 20;
/// A thread that has not ended this long after the close is stuck.
const TIME_MAX: Duration = Duration::from_secs(60);
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;

const DIR: Create<'_> = Create { kind: Kind::Dir, perm: 0o755, umask: 0, rdev: 0, target: b"" };

/// What is in a file: a byte, so often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content(u8, usize);

/// A thread that unpacks as a package manager does: writes beside, sets the mode, sometimes syncs,
/// renames over, removes some.
struct Unpacker {
    vfs: Arc<Vfs>,
    dir: Node,
    rng: Rng,
    /// Files whose content and name were synced since they last changed.
    synced: BTreeMap<Vec<u8>, Content>,
}

impl Unpacker {
    /// Goes on until something is refused.
    fn run(mut self, steps: &AtomicU64) -> BTreeMap<Vec<u8>, Content> {
        while self.step().is_ok() {
            steps.fetch_add(1, Ordering::Relaxed);
        }
        self.synced
    }

    fn step(&mut self) -> Result<(), PathError> {
        let (cred, vfs, dir) = (Cred::root(), &self.vfs, &self.dir);
        let name = format!("file-{}", self.rng.below(30)).into_bytes();
        let beside = [&name[..], b".new"].concat();
        let content = Content(self.rng.below(256) as u8, 1 + self.rng.below(40_000) as usize);
        let file =
            vfs.open_path(&OpCtx::as_user(&cred), dir, &beside, O_RDWR | O_CREAT, 0o600, 0)?;
        file.write(&OpCtx::as_user(&cred), Some(0), &mut &vec![content.0; content.1][..])?;
        let set = SetAttr { perm: Some(0o644), ..SetAttr::default() };
        vfs.setattr(&OpCtx::as_user(&cred), file.node(), &set)?;
        if self.rng.percent(25) {
            drop(file);
            return Ok(vfs.unlink(&OpCtx::as_user(&cred), dir, &beside)?);
        }
        let sync = self.rng.percent(40);
        if sync {
            file.fsync(&OpCtx::service(), false)?;
        }
        self.synced.remove(&name);
        vfs.rename(&OpCtx::as_user(&cred), dir, &beside, dir, &name, 0)?;
        if sync {
            vfs.open(&OpCtx::as_user(&cred), dir, 0)?.fsync(&OpCtx::service(), false)?;
            self.synced.insert(name, content);
        }
        Ok(())
    }
}

fn content_of(vfs: &Vfs, dir: &Node, name: &[u8]) -> Option<Content> {
    let node = vfs.lookup(&OpCtx::service(), dir, name).ok()?;
    let file = vfs.open(&OpCtx::service(), &node, O_RDWR).expect("opens");
    let mut bytes = vec![0; 50_000];
    let count = file.read(&OpCtx::service(), 0, bytes.len(), &mut &mut bytes[..]).expect("reads");
    let first = *bytes.first()?;
    bytes[..count].iter().all(|byte| *byte == first).then_some(Content(first, count))
}

fn vfs_on(fs: &Arc<Ext4>) -> Arc<Vfs> {
    let options = small_options(Arc::new(TestClock::default()), CACHE_BYTES);
    Vfs::new(fs.clone(), options).expect("a root")
}

#[test]
fn an_image_closed_under_load_is_clean_and_holds_what_was_synced() {
    if !common::have_tools() {
        return;
    }
    let image = common::image(64, common::LANE);
    for round in 0..ROUNDS {
        close_under_load(&image, round);
    }
}

fn close_under_load(image: &[u8], round: u64) {
    let device = common::load(image);
    let fs = common::open(&device);
    let vfs = vfs_on(&fs);
    let steps = Arc::new(AtomicU64::new(0));
    let start = |thread: u64| {
        let (vfs, steps) = (vfs.clone(), steps.clone());
        let name = format!("package{thread}").into_bytes();
        let dir = vfs.create(&OpCtx::service(), &vfs.root(), &name, &DIR).expect("made");
        let rng = Rng::new(round * 100 + thread);
        let unpacker = Unpacker { vfs, dir, rng, synced: BTreeMap::new() };
        (name, std::thread::spawn(move || unpacker.run(&steps)))
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    let begun = Instant::now();
    while steps.load(Ordering::Relaxed) < 100 + 40 * round {
        assert!(begun.elapsed() < TIME_MAX, "the threads do not get on");
        std::thread::sleep(Duration::from_micros(50));
    }
    // The order of a service's end, in which some thread has not let go yet.
    vfs.sync(&OpCtx::service()).expect("syncs");
    fs.close().expect("closes");
    let closed = Instant::now();
    while threads.iter().any(|(_, thread)| !thread.is_finished()) {
        assert!(closed.elapsed() < TIME_MAX, "a thread is stuck");
        std::thread::sleep(Duration::from_millis(1));
    }
    let all: Vec<_> = threads
        .into_iter()
        .map(|(name, thread)| (name, thread.join().expect("a thread failed")))
        .collect();
    drop(vfs);
    drop(fs);
    assert_eq!(common::complaints(&device), None, "round {round}");
    let fs = common::open(&device);
    assert_eq!(fs.recovered.transactions, 0, "round {round}: not closed cleanly");
    let vfs = vfs_on(&fs);
    for (dir, synced) in all {
        let dir = vfs.lookup(&OpCtx::service(), &vfs.root(), &dir).expect("is there");
        for (name, content) in synced {
            let found = content_of(&vfs, &dir, &name);
            assert_eq!(found, Some(content), "round {round}: {}", String::from_utf8_lossy(&name));
        }
    }
    vfs.sync(&OpCtx::service()).expect("syncs");
    drop(vfs);
    fs.close().expect("closes");
}
