//! Eight threads at once through the VFS, on a journal so small that they wait for room in it all
//! the time. What each thread knows of its own files must be on the image after it was closed and
//! opened again; e2fsck has the last word. A test that does not end in time is a deadlock.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Ino, TestClock};
use polylane_block::ram::RamDevice;
use polylane_ext4::Ext4;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{FileSystem, Kind, SetAttr, XattrMode};
use polylane_vfs::{Create, Cred, Node, OpCtx, RENAME_EXCHANGE, Vfs};

use crate::common;

const THREADS: u64 = 8;
const STEPS: usize = 1500;
const CACHE_BYTES: u64 = 1 << 20;
const TIME_MAX: Duration = Duration::from_secs(300);
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;

const DIR: Create<'_> = Create { kind: Kind::Dir, perm: 0o755, umask: 0, rdev: 0, target: b"" };

/// What a thread knows of its directory: name to content.
type Known = BTreeMap<Vec<u8>, Vec<u8>>;

struct Lane {
    device: Arc<RamDevice>,
    fs: Arc<Ext4>,
    vfs: Arc<Vfs>,
}

impl Lane {
    fn open(device: Arc<RamDevice>) -> Lane {
        let fs = common::open(&device);
        let options = small_options(Arc::new(TestClock::default()), CACHE_BYTES);
        let vfs = Vfs::new(fs.clone(), options).expect("a root");
        Lane { device, fs, vfs }
    }

    fn close(self) -> Arc<RamDevice> {
        self.vfs.sync(&OpCtx::service()).expect("writes back");
        drop(self.vfs);
        self.fs.close().expect("closes");
        assert_eq!(common::complaints(&self.device), None);
        self.device
    }
}

/// Runs `work`; a deadlock fails the test instead of hanging it.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(work());
    });
    match waiting.recv_timeout(TIME_MAX) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("did not end in {TIME_MAX:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => panic!("ended without an answer"),
        },
    }
}

/// One thread's private directory: everything must come out as known.
struct Private<'a> {
    vfs: &'a Vfs,
    dir: Node,
    known: Known,
}

impl Private<'_> {
    fn step(&mut self, rng: &mut Rng) {
        let cred = Cred::root();
        let (name, other) = (some_name(rng), some_name(rng));
        match rng.below(12) {
            0..5 => self.write(rng, &name),
            5 => {
                let gone = self.vfs.unlink(&OpCtx::as_user(&cred), &self.dir, &name);
                assert_eq!(gone.is_ok(), self.known.remove(&name).is_some(), "{gone:?}");
            }
            6..8 => {
                let moved =
                    self.vfs.rename(&OpCtx::as_user(&cred), &self.dir, &name, &self.dir, &other, 0);
                let content = self.known.get(&name).cloned();
                assert_eq!(moved.is_ok(), content.is_some(), "{moved:?}");
                if let Some(content) = content.filter(|_| name != other) {
                    self.known.remove(&name);
                    self.known.insert(other, content);
                }
            }
            8..10 => self.truncate(rng, &name),
            10 => {
                if let Ok(node) = self.vfs.lookup(&OpCtx::as_user(&cred), &self.dir, &name) {
                    let file = self.vfs.open(&OpCtx::as_user(&cred), &node, O_RDWR).expect("opens");
                    file.fsync(&OpCtx::service(), rng.percent(50)).expect("syncs");
                }
            }
            _ => self.list(),
        }
    }

    fn write(&mut self, rng: &mut Rng, name: &[u8]) {
        let cred = Cred::root();
        let file = self
            .vfs
            .open_path(&OpCtx::as_user(&cred), &self.dir, name, O_RDWR | O_CREAT, 0o644, 0)
            .unwrap_or_else(|error| panic!("{error:?}"));
        let at = rng.below(60_000);
        let bytes = vec![rng.below(256) as u8; 1 + rng.below(30_000) as usize];
        let written = file.write(&OpCtx::as_user(&cred), Some(at), &mut &bytes[..]).expect("room");
        assert_eq!(written.count, bytes.len());
        let content = self.known.entry(name.to_vec()).or_default();
        let end = at as usize + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at as usize..end].copy_from_slice(&bytes);
    }

    fn truncate(&mut self, rng: &mut Rng, name: &[u8]) {
        let cred = Cred::root();
        let Ok(node) = self.vfs.lookup(&OpCtx::as_user(&cred), &self.dir, name) else { return };
        let size = rng.below(80_000);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::as_user(&cred), &node, &set).expect("truncates");
        self.known.get_mut(name).expect("known").resize(size as usize, 0);
    }

    fn list(&self) {
        let open = self.vfs.open(&OpCtx::service(), &self.dir, 0).expect("opens");
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        open.readdir(&OpCtx::service(), 0, &mut each).expect("lists");
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        assert_eq!(names, self.known.keys().cloned().collect::<Vec<_>>());
    }
}

fn some_name(rng: &mut Rng) -> Vec<u8> {
    format!("a-file-with-a-name-{}", rng.below(40)).into_bytes()
}

/// Operations in directories that all threads share: any of them may fail, none may hang.
fn shared_step(vfs: &Vfs, rng: &mut Rng) {
    let cred = Cred::root();
    let (dir, to_dir) = (shared_dir(vfs, rng), shared_dir(vfs, rng));
    let (name, to) = (some_name(rng), some_name(rng));
    match rng.below(10) {
        0 => _ = vfs.create(&OpCtx::as_user(&cred), &dir, &name, &DIR),
        1..4 => {
            if let Ok(file) =
                vfs.open_path(&OpCtx::as_user(&cred), &dir, &name, O_RDWR | O_CREAT, 0o644, 0)
            {
                let at = Some(rng.below(20_000));
                file.write(&OpCtx::as_user(&cred), at, &mut &[7; 3000][..]).expect("room");
                if rng.percent(20) {
                    file.fsync(&OpCtx::service(), false).expect("syncs");
                }
            }
        }
        4 => _ = vfs.unlink(&OpCtx::as_user(&cred), &dir, &name),
        5 => _ = vfs.rmdir(&OpCtx::as_user(&cred), &dir, &name),
        6..8 => {
            let flags = if rng.percent(20) { RENAME_EXCHANGE } else { 0 };
            let _ = vfs.rename(&OpCtx::as_user(&cred), &dir, &name, &to_dir, &to, flags);
        }
        8 => {
            if let Ok(node) = vfs.lookup(&OpCtx::as_user(&cred), &dir, &name) {
                let _ = vfs.link(&OpCtx::as_user(&cred), &node, &to_dir, &to);
            }
        }
        _ => {
            let open = vfs.open(&OpCtx::as_user(&cred), &dir, 0).expect("opens");
            let listed = open.readdir(&OpCtx::service(), 0, &mut |_| true);
            assert!(matches!(listed, Ok(()) | Err(Errno::ENOENT)));
        }
    }
}

fn shared_dir(vfs: &Vfs, rng: &mut Rng) -> Node {
    let cred = Cred::root();
    let name = format!("shared{}", rng.below(3));
    let mut at =
        vfs.lookup(&OpCtx::as_user(&cred), &vfs.root(), name.as_bytes()).expect("made first");
    for _ in 0..rng.below(3) {
        match vfs.lookup(&OpCtx::as_user(&cred), &at, &some_name(rng)) {
            Ok(node) if node.kind() == Kind::Dir => at = node,
            _ => break,
        }
    }
    at
}

fn storm(vfs: &Arc<Vfs>, seed: u64) -> Vec<Known> {
    let cred = Cred::root();
    for shared in 0..3 {
        let name = format!("shared{shared}");
        vfs.create(&OpCtx::as_user(&cred), &vfs.root(), name.as_bytes(), &DIR).expect("made");
    }
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let vfs = vfs.clone();
            std::thread::spawn(move || {
                let mut rng = Rng::new(seed * 1000 + thread);
                let name = format!("private{thread}");
                let dir = vfs.create(&OpCtx::service(), &vfs.root(), name.as_bytes(), &DIR);
                let dir = dir.expect("made");
                let mut own = Private { vfs: &vfs, dir, known: Known::new() };
                for _ in 0..STEPS {
                    match rng.percent(60) {
                        true => own.step(&mut rng),
                        false => shared_step(&vfs, &mut rng),
                    }
                }
                own.known
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a thread failed")).collect()
}

fn check(vfs: &Arc<Vfs>, all: Vec<Known>) {
    let cred = Cred::root();
    for (thread, known) in all.into_iter().enumerate() {
        let name = format!("private{thread}");
        let dir =
            vfs.lookup(&OpCtx::as_user(&cred), &vfs.root(), name.as_bytes()).expect("is there");
        for (name, content) in &known {
            let node = vfs.lookup(&OpCtx::as_user(&cred), &dir, name).expect("is there");
            let file = vfs.open(&OpCtx::as_user(&cred), &node, O_RDWR).expect("opens");
            let mut bytes = vec![0; content.len() + 100];
            let count =
                file.read(&OpCtx::service(), 0, bytes.len(), &mut &mut bytes[..]).expect("reads");
            assert_eq!(count, content.len());
            let wrong: Vec<usize> = (0..count).filter(|at| bytes[*at] != content[*at]).collect();
            if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
                panic!(
                    "{thread}: {}: {} of {count} bytes wrong, {first}..={last}: {} for {}",
                    String::from_utf8_lossy(name),
                    wrong.len(),
                    bytes[*first],
                    content[*first]
                );
            }
        }
        Private { vfs, dir, known }.list();
    }
}

#[test]
fn eight_threads_on_one_small_journal() {
    if !common::have_tools() {
        return;
    }
    for seed in 1..4 {
        let device = in_time(move || {
            let lane = Lane::open(common::make(64, common::LANE));
            let known = storm(&lane.vfs, seed);
            let lane = Lane::open(lane.close());
            check(&lane.vfs, known);
            lane.close()
        });
        assert_eq!(common::complaints(&device), None);
    }
}

/// Threads that fill the disk, remove what they wrote, and fill it again.
#[test]
fn a_disk_that_is_filled_and_emptied_by_all() {
    if !common::have_tools() {
        return;
    }
    in_time(|| {
        let lane = Lane::open(common::make(16, common::LANE));
        let vfs = &lane.vfs;
        let full: u32 = std::thread::scope(|scope| {
            let fill = |thread| scope.spawn(move || fill_and_empty(vfs, thread));
            let threads: Vec<_> = (0..THREADS).map(fill).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread failed")).sum()
        });
        assert!(full > 0, "the disk was never full");
        let device = lane.close();
        let lane = Lane::open(device);
        let totals =
            polylane_vfs::fs::FileSystem::statfs(&*lane.fs, &OpCtx::service()).expect("totals");
        assert!(totals.bfree * 4096 > 9 << 20, "{totals:?}: what was removed is free again");
        lane.close();
    });
}

/// How often the disk was full.
fn fill_and_empty(vfs: &Vfs, thread: u64) -> u32 {
    let cred = Cred::root();
    let name = format!("f{thread}");
    let bytes = vec![thread as u8; 64 << 10];
    let mut full = 0;
    for _ in 0..6 {
        let opened = vfs.open_path(
            &OpCtx::as_user(&cred),
            &vfs.root(),
            name.as_bytes(),
            O_RDWR | O_CREAT,
            0o644,
            0,
        );
        let file = opened.unwrap_or_else(|error| panic!("{error:?}"));
        // A few MiB more than there are.
        for round in 0..100 {
            match file.write(
                &OpCtx::as_user(&cred),
                Some(round * bytes.len() as u64),
                &mut &bytes[..],
            ) {
                Ok(written) if written.count == bytes.len() => {}
                Ok(_) | Err(Errno::ENOSPC) => {
                    full += 1;
                    break;
                }
                Err(errno) => panic!("{errno:?}"),
            }
        }
        file.fsync(&OpCtx::service(), false).expect("what was taken can be written");
        drop(file);
        vfs.unlink(&OpCtx::as_user(&cred), &vfs.root(), name.as_bytes())
            .expect("unlinks on a full disk");
    }
    full
}

/// Inodes that share one block of attributes, as the kernel makes them: `SHARERS` files of the
/// root, made from one that has the block alone.
const SHARERS: u64 = 64;

/// An image where they do.
fn with_shared_attributes() -> Arc<RamDevice> {
    let device = common::make(16, &[common::LANE, &["-O", "^metadata_csum"]].concat());
    let fs = common::open(&device);
    let root = fs.root().expect("root").ino;
    let new = polylane_testkit::fs_suite::node(Kind::File, 0o600);
    let make = |n: u64| {
        let name = format!("file-{n}");
        fs.create(&OpCtx::service(), root, name.as_bytes(), &new).expect("room").node.ino.0
    };
    let inodes: Vec<u64> = (0..SHARERS).map(make).collect();
    fs.setxattr(&OpCtx::service(), Ino(inodes[0]), b"user.shared", &[7; 2000], XattrMode::Any)
        .expect("room");
    fs.close().expect("closes");
    let image = common::save(&device);
    let debugfs = |commands: &str| {
        let mut debugfs = Command::new("debugfs");
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), commands).expect("written");
        let done = debugfs.arg("-wf").arg(file.path()).arg(image.path()).output();
        String::from_utf8_lossy(&done.expect("debugfs runs").stdout).into_owned()
    };
    let said = debugfs(&format!("stat <{}>\n", inodes[0]));
    let block = said.lines().find_map(|line| line.strip_prefix("File ACL: "));
    let block: u64 = block.and_then(|text| text.trim().parse().ok()).expect("it has a block");
    assert_ne!(block, 0);
    let share = |ino: &u64| format!("sif <{ino}> file_acl {block}\nsif <{ino}> blocks 8\n");
    debugfs(&inodes[1..].iter().map(share).collect::<String>());
    let mut bytes = std::fs::read(image.path()).expect("readable");
    let place = &mut bytes[block as usize * 4096..][..4096];
    polylane_ext4::format::xattr::set_references(place, SHARERS as u32);
    let device = common::load(&bytes);
    assert_eq!(common::complaints(&device), None);
    device
}

/// Each lets go of it once: the block is free when the last has, and not before.
#[test]
fn a_shared_block_of_attributes_is_let_go_of_by_many_at_once() {
    if !common::have_tools() {
        return;
    }
    let device = with_shared_attributes();
    let base = std::fs::read(common::save(&device).path()).expect("readable");
    for _ in 0..40 {
        let device = common::load(&base);
        let fs = common::open(&device);
        let root = fs.root().expect("root").ino;
        let start = std::sync::Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, start) = (&fs, &start);
                scope.spawn(move || {
                    for n in (thread..SHARERS).step_by(THREADS as usize) {
                        let name = format!("file-{n}");
                        let file = fs
                            .lookup(&OpCtx::service(), root, name.as_bytes())
                            .expect("is there")
                            .ino;
                        start.wait();
                        fs.removexattr(&OpCtx::service(), file, b"user.shared").expect("has it");
                    }
                });
            }
        });
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}
