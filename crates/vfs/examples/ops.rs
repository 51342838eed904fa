//! Nanoseconds per file operation on a memfs lane: `cargo run --release --example ops [THREADS
//! [ONLY]]`.
//!
//! A profiling aid, not a figure: the figures are in `bench`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_testkit::fault::Faulty;
use polylane_vfs::fs::{Character, FileSystem};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Cred, Node, OpCtx, Options, Vfs};

const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;

/// A lane on memfs, straight or behind the page cache.
fn lane(cached: bool) -> Arc<Vfs> {
    let clock = Arc::new(SystemClock);
    let memfs = Arc::new(MemFs::new(1 << 30, 1 << 20, clock.clone()));
    let character = Character { cache_data: true, ..memfs.character() };
    let fs: Arc<dyn FileSystem> =
        if cached { Faulty::with_character(memfs, character) } else { memfs };
    let options = Options {
        clock,
        cache_bytes_limit: 64 << 20,
        dirty_bytes_limit: 32 << 20,
        flush_interval: Duration::from_secs(5),
        mount_path: b"/lane".to_vec(),
        covered: vec![b".polylane".to_vec()],
    };
    Vfs::new(fs, options).expect("memfs has a root")
}

/// Time that this thread ran: what else the machine does matters less.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn time(name: &str, rounds: u32, mut op: impl FnMut(u32)) {
    if std::env::args().nth(2).is_some_and(|only| !name.contains(&only)) {
        return;
    }
    for round in 0..rounds / 10 {
        op(round);
    }
    let begin = cpu_ns();
    for round in 0..rounds {
        op(round);
    }
    let ns = (cpu_ns() - begin) / f64::from(rounds);
    println!("{name:<24} {ns:>8.1} ns");
}

/// One transaction: create, rename, unlink. Every name is new.
fn transaction(vfs: &Vfs, cred: &Cred, root: &Node, dir: &str, round: u32) {
    let from = format!("{dir}/file-{round}");
    let to = format!("{dir}/renamed-{round}");
    drop(vfs.open_path(
        &OpCtx::as_user(cred),
        root,
        from.as_bytes(),
        O_RDWR | O_CREAT,
        0o644,
        0o22,
    ));
    let a = vfs.resolve_parent(&OpCtx::as_user(cred), root, from.as_bytes()).expect("exists");
    let b = vfs.resolve_parent(&OpCtx::as_user(cred), root, to.as_bytes()).expect("exists");
    vfs.rename(&OpCtx::as_user(cred), &a.dir, &a.name, &b.dir, &b.name, 0).expect("renames");
    let b = vfs.resolve_parent(&OpCtx::as_user(cred), root, to.as_bytes()).expect("exists");
    vfs.unlink(&OpCtx::as_user(cred), &b.dir, &b.name).expect("unlinks");
}

/// The three parts of a transaction, on a few files in turn.
fn parts(vfs: &Vfs, cred: &Cred, root: &Node, dir: &str) {
    const FILES: u32 = 64;
    const TURNS: u32 = 4000;
    let names =
        |kind: &str| -> Vec<String> { (0..FILES).map(|n| format!("{dir}/{kind}-{n}")).collect() };
    let (from, to) = (names("from"), names("to"));
    let last = |path: &String| {
        vfs.resolve_parent(&OpCtx::as_user(cred), root, path.as_bytes()).expect("exists")
    };
    let mut sums = [0.0; 4];
    for _ in 0..TURNS {
        let mut at = cpu_ns();
        let mut lap = |sum: &mut f64| {
            let now = cpu_ns();
            *sum += now - at;
            at = now;
        };
        for name in &from {
            drop(vfs.open_path(
                &OpCtx::as_user(cred),
                root,
                name.as_bytes(),
                O_RDWR | O_CREAT,
                0o644,
                0o22,
            ));
        }
        lap(&mut sums[0]);
        for (from, to) in from.iter().zip(&to) {
            let (a, b) = (last(from), last(to));
            vfs.rename(&OpCtx::as_user(cred), &a.dir, &a.name, &b.dir, &b.name, 0)
                .expect("renames");
        }
        lap(&mut sums[1]);
        for name in &to {
            let a = last(name);
            vfs.unlink(&OpCtx::as_user(cred), &a.dir, &a.name).expect("unlinks");
        }
        lap(&mut sums[2]);
        to.iter().for_each(|name| drop(black_box(last(name))));
        lap(&mut sums[3]);
    }
    for (name, sum) in ["create+close", "rename", "unlink", "resolve_parent"].iter().zip(sums) {
        println!("{name:<24} {:>8.1} ns", sum / f64::from(FILES * TURNS));
    }
}

fn one(vfs: &Vfs, dir: &str) {
    let cred = Cred { uid: polylane_base::Uid(1000), ..Cred::root() };
    let root = vfs.root();
    let rounds = 500_000;
    let file = format!("{dir}/data");
    let open = |path: &str, flags| {
        vfs.open_path(&OpCtx::as_user(&cred), &root, path.as_bytes(), flags, 0o644, 0o22)
            .expect("opens")
    };
    let data = open(&file, O_RDWR | O_CREAT);
    let mut page = [7u8; 4096];
    data.write(&OpCtx::as_user(&cred), Some(0), &mut &page[..]).expect("writes");
    time("resolve dir/data", rounds, |_| {
        black_box(
            vfs.resolve(&OpCtx::as_user(&cred), &root, file.as_bytes(), true).expect("exists"),
        );
    });
    time("resolve absent", rounds, |_| {
        black_box(vfs.resolve(&OpCtx::as_user(&cred), &root, b"absent", true).expect_err("absent"));
    });
    time("stat dir/data", rounds, |_| {
        let node =
            vfs.resolve(&OpCtx::as_user(&cred), &root, file.as_bytes(), true).expect("exists");
        black_box(vfs.getattr(&OpCtx::service(), &node).expect("lives"));
    });
    time("fstat", rounds, |_| {
        black_box(vfs.getattr(&OpCtx::service(), data.node()).expect("lives"));
    });
    time("open+close dir/data", rounds, |_| drop(black_box(open(&file, O_RDWR))));
    time("read 4 KiB", rounds, |_| {
        black_box(data.read(&OpCtx::service(), 0, 4096, &mut &mut page[..]).expect("reads"));
    });
    time("write 4 KiB", rounds, |_| {
        black_box(data.write(&OpCtx::as_user(&cred), Some(0), &mut &page[..]).expect("writes"));
    });
    parts(vfs, &cred, &root, dir);
    time("create+rename+unlink", rounds, |round| transaction(vfs, &cred, &root, dir, round));
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    for cached in [false, true] {
        println!("{}", if cached { "memfs behind the page cache" } else { "memfs" });
        run(&lane(cached), threads);
    }
}

fn run(vfs: &Vfs, threads: usize) {
    let root = vfs.root();
    let dirs: Vec<String> = (0..threads).map(|n| format!("dir{n}")).collect();
    for dir in &dirs {
        let kind = polylane_vfs::Kind::Dir;
        let new = polylane_vfs::Create { kind, perm: 0o777, umask: 0, rdev: 0, target: b"" };
        vfs.create(&OpCtx::service(), &root, dir.as_bytes(), &new).expect("creates");
    }
    std::thread::scope(|scope| {
        for dir in &dirs {
            scope.spawn(|| one(vfs, dir));
        }
    });
    println!("{:?}", vfs.stats());
}
