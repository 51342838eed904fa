//! Several threads at once: renames across directories, lookups, creation and removal of the same
//! names, forgetting against looking up. Checked at the end: the tree is a tree, nothing leaked.

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_vfs::{Create, Cred, Kind, Node, OpCtx, RENAME_EXCHANGE, Vfs};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{forgetful::Forgetful, *};

const THREADS: u64 = 4;
const STEPS: usize = 4000;

const DIR: Create<'_> = Create { kind: Kind::Dir, perm: 0o755, umask: 0, rdev: 0, target: b"" };

/// Some of few directories and names, so that threads meet often.
fn some_dir(vfs: &Vfs, rng: &mut Rng, root: &Node) -> Node {
    let mut at = root.clone();
    for _ in 0..rng.below(4) {
        let name = [b'a' + rng.below(3) as u8];
        match vfs.lookup(&OpCtx::service(), &at, &name) {
            Ok(node) if node.kind() == Kind::Dir => at = node,
            _ => break,
        }
    }
    at
}

fn step(vfs: &Vfs, rng: &mut Rng, root: &Node) {
    let cred = Cred::root();
    let dir = some_dir(vfs, rng, root);
    let name = [b'a' + rng.below(5) as u8];
    match rng.below(10) {
        0..2 => drop(vfs.create(&OpCtx::as_user(&cred), &dir, &name, &DIR)),
        2..4 => {
            let opened =
                vfs.open_path(&OpCtx::as_user(&cred), &dir, &name, O_RDWR | O_CREAT, 0o644, 0);
            if let Ok(file) = opened {
                let written =
                    file.write(&OpCtx::as_user(&cred), None, &mut &b"some data"[..]).unwrap();
                assert_eq!(written.count, 9);
                assert!(
                    read(&file, written.end - 9, 9) == b"some data"
                        || file.node().kind() != Kind::File
                );
            }
        }
        4 => _ = vfs.unlink(&OpCtx::as_user(&cred), &dir, &name),
        5 => _ = vfs.rmdir(&OpCtx::as_user(&cred), &dir, &name),
        6..8 => {
            let to_dir = some_dir(vfs, rng, root);
            let to = [b'a' + rng.below(5) as u8];
            let flags = if rng.percent(20) { RENAME_EXCHANGE } else { 0 };
            let _ = vfs.rename(&OpCtx::as_user(&cred), &dir, &name, &to_dir, &to, flags);
        }
        8 => {
            if let Ok(node) = vfs.lookup(&OpCtx::as_user(&cred), &dir, &name) {
                let to = [b'a' + rng.below(5) as u8];
                let _ = vfs.link(&OpCtx::as_user(&cred), &node, &some_dir(vfs, rng, root), &to);
            }
        }
        _ => {
            let result = vfs.resolve(&OpCtx::as_user(&cred), &dir, b"a/b/../c/./b", true);
            if let Some(errno) = errno(result) {
                assert!([Errno::ENOENT, Errno::ENOTDIR].contains(&errno), "{errno:?}");
            }
        }
    }
}

/// Walks the whole tree; returns directories and inodes found.
fn survey(lane: &Lane) -> (usize, BTreeSet<u64>) {
    let cred = Cred::root();
    let (mut dirs, mut inodes) = (0, BTreeSet::new());
    let mut todo = vec![lane.root.clone()];
    while let Some(dir) = todo.pop() {
        dirs += 1;
        inodes.insert(dir.ino().0);
        let open = lane.vfs.open(&OpCtx::as_user(&cred), &dir, O_RDONLY).unwrap();
        let mut subdirs = 0;
        for name in names(&open).iter().filter(|name| !name.starts_with('.')) {
            let node = lane.vfs.lookup(&OpCtx::as_user(&cred), &dir, name.as_bytes()).unwrap();
            inodes.insert(node.ino().0);
            if node.kind() == Kind::Dir {
                let up = lane.vfs.lookup(&OpCtx::as_user(&cred), &node, b"..").unwrap();
                assert_eq!(up.ino(), dir.ino(), "{name}");
                todo.push(node);
                subdirs += 1;
            }
        }
        assert_eq!(lane.vfs.getattr(&OpCtx::service(), &dir).unwrap().nlink, 2 + subdirs);
    }
    (dirs, inodes)
}

fn storm(lane: &Lane) {
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..STEPS {
                    step(&lane.vfs, &mut rng, &lane.root);
                }
            });
        }
    });
    let (dirs, inodes) = survey(lane);
    assert!(dirs >= 1);
    let stats = lane.vfs.stats();
    assert_eq!(stats.inodes, inodes.len() as u64, "no inode outlives its names");
    // What the table says is what the libservice says.
    let vfs = Vfs::new(lane.fs.clone(), options()).unwrap();
    let fresh = Lane { root: vfs.root(), vfs, fs: lane.fs.clone() };
    assert_eq!(survey(&fresh).1, inodes);
}

#[test]
fn a_storm_of_names() {
    storm(&lane());
}

#[test]
fn a_storm_of_names_on_a_cached_lane() {
    let mut options = options();
    options.cache_bytes_limit = 64 * PAGE as u64;
    options.dirty_bytes_limit = 8 * PAGE as u64;
    options.flush_interval = std::time::Duration::from_millis(1);
    storm(&lane_with(options, |character| character.cache_data = true));
}

#[test]
fn a_storm_of_names_on_a_volatile_lane() {
    storm(&lane_with(options(), |character| character.volatile = true));
}

/// An inode is forgotten and looked up again all the time: nobody may get one whose forgetting is
/// under way.
#[test]
fn forgetting_and_looking_up() {
    let fs = Arc::new(Forgetful::default());
    let vfs = Vfs::new(fs.clone(), options()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(node) = vfs.resolve(&OpCtx::as_user(&cred), &root, b"f", true) else {
                        continue;
                    };
                    assert_eq!(vfs.getattr(&OpCtx::service(), &node).map(|attr| attr.size), Ok(1));
                }
            });
        }
        // While the name is away, lookups drop what the table keeps of it.
        let mut rng = Rng::new(1);
        let end = Instant::now() + Duration::from_secs(20);
        while fs.forgotten.load(Ordering::Relaxed) < 5000 && Instant::now() < end {
            fs.away.store(rng.percent(50), Ordering::Relaxed);
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(fs.forgotten.load(Ordering::Relaxed) > 100);
}

/// Readers of one file while it is written, cut and flushed: every page is of one writing.
#[test]
fn a_storm_on_one_cached_file() {
    let mut options = options();
    options.cache_bytes_limit = 64 * PAGE as u64;
    options.dirty_bytes_limit = 8 * PAGE as u64;
    options.flush_interval = std::time::Duration::from_millis(1);
    let lane = lane_with(options, |character| character.cache_data = true);
    let file = lane.file("f", &vec![0; 200 * PAGE]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let at = rng.below(200) * PAGE as u64;
                    let bytes = read(file, at, PAGE);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "page at {at} is torn");
                }
            });
        }
        let mut rng = Rng::new(9);
        for step in 0..5000u32 {
            let at = rng.below(200) * PAGE as u64;
            write(&file, at, &[step as u8; PAGE]);
            if step % 500 == 0 {
                file.fsync(&OpCtx::service(), false).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
