//! Damaged images: opening them, walking them and working on them ends, in success or in an error
//! that names what is wrong. Never in a panic (overflow is checked), a loop without end or memory
//! out of proportion.
//!
//! `cargo test` takes 2000 images; `POLYLANE_CORRUPT_IMAGES` another number, from
//! `POLYLANE_CORRUPT_SEED` on. `POLYLANE_EXT4_IMAGES` names a folder of more images (e2fsprogs'
//! `tests/*/image.gz`, unpacked), each taken as it is and with random bits changed.

#[path = "../crash/ace.rs"]
#[allow(dead_code, reason = "only the set-up is used")]
mod ace;
#[path = "../crash/judge.rs"]
#[allow(dead_code, reason = "only a part is used")]
mod judge;
mod mutate;
#[path = "../crash/script.rs"]
#[allow(dead_code, reason = "only a part is used")]
mod script;
mod sites;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Ino, TestClock};
use polylane_ext4::{Error, Ext4, Options};
use polylane_testkit::effort::number;
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, RenameMode};

use script::{Op, Runner};

/// Far longer than any image takes, also for a campaign that gives way to all else for minutes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Far more than any image needs; the test itself holds some.
const MEMORY_KIB_MAX: u64 = 1 << 20;
/// Names read in one walk: damage can make directories point anywhere.
const NAMES_MAX: usize = 3000;

const FORMAT: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "4096",
    "-g",
    "2048",
    "-N",
    "512",
    "-J",
    "size=4",
    // A seed stands for one image, wherever it is made.
    "-U",
    "6c616e65-6c61-4e65-8c61-6e656c616e65",
    "-E",
    concat!(
        "nodiscard,lazy_itable_init=0,lazy_journal_init=0,",
        "hash_seed=706f6c79-6c61-4e65-8c61-6e656c616e65",
    ),
];

fn open(disk: &Arc<SimDisk>) -> polylane_ext4::Result<Ext4> {
    let options = Options { commit_interval: Duration::from_secs(3600), ..Options::default() };
    Ext4::open(disk.clone(), Arc::new(TestClock::default()), &options)
}

/// Something of everything: an indexed directory, deep extent trees, attribute blocks, long links.
fn contents() -> Vec<Op> {
    let mut ops = ace::setup();
    let name = |n: u32| format!("B/{n:03}{}", "x".repeat(90));
    ops.extend((0..120).map(|n| Op::Create(name(n))));
    ops.extend((0..40).map(|n| Op::Unlink(name(n * 3))));
    ops.push(Op::Symlink("B/long".into(), 500));
    ops.push(Op::SetXattr("foo".into(), "user.big".into(), 3000));
    ops.push(Op::SetXattr("A".into(), "trusted.small".into(), 50));
    // Every other block: more extents than an inode holds.
    ops.extend((0..400).map(|n| Op::Write("A/deep/holes".into(), n * 8192, 4096)));
    let mode = Fallocate::Allocate { keep_size: true };
    ops.push(Op::Fallocate("A/bar".into(), mode, 0, 100_000));
    ops.push(Op::Sync);
    ops
}

/// Two images of the same tree: closed, and cut off with a full log and orphans.
fn bases(features: &str) -> [Image; 2] {
    let mut file = judge::scratch();
    Image::zeroed(16 << 20).save(file.as_file_mut()).expect("written");
    let mut command = Command::new("mke2fs");
    command.arg("-Fq").args(FORMAT).args(["-O", features]).arg(file.path());
    let made = command.output().expect("mke2fs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let blank = Image::new(std::fs::read(file.path()).expect("readable"));
    let disk = SimDisk::new(blank, SimOptions::default());
    let fs = open(&disk).expect("opens");
    let mut runner = Runner::new(&fs, false);
    for op in contents() {
        runner.apply(&op).unwrap_or_else(|errno| panic!("{op:?}: {errno}"));
    }
    fs.close().expect("closes");
    let closed = disk.image().rebased();
    let disk = SimDisk::new(closed.clone(), SimOptions::default());
    let fs = open(&disk).expect("opens");
    let mut runner = Runner::new(&fs, false);
    let ops = [
        Op::Hold(0, "A/deep/holes".into()),
        Op::Unlink("A/deep/holes".into()),
        Op::Tmpfile(1),
        Op::WriteSlot(1, 0, 9000),
        Op::Rmdir("A/deep".into()),
        Op::Sync,
        Op::RemoveXattr("foo".into(), "user.big".into()),
        Op::Create("A/logged".into()),
        Op::Sync,
    ];
    ops.iter().for_each(|op| runner.apply(op).expect("works"));
    [closed, disk.image().rebased()]
}

/// How an image ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Refused,
    Stopped,
    Worked,
}

/// Opens the image, reads everything, changes some of it.
fn exercise(image: &Image, seed: u64) -> Ending {
    let disk = SimDisk::new(image.clone(), SimOptions::default());
    let fs = match open(&disk) {
        Ok(fs) => fs,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(error, Error::Stopped), "a first failure has a name");
            return Ending::Refused;
        }
    };
    let paths = walk(&fs);
    work(&fs, &paths, seed);
    let closed = fs.close().is_ok();
    if closed
        && !fs.recovered.eq(&polylane_ext4::recovery::Recovered::default())
        && seed.is_multiple_of(4)
    {
        drop(fs);
        // What was opened and closed opens again, or says why not.
        let _ = open(&disk).map(|fs| walk(&fs));
    }
    if closed { Ending::Worked } else { Ending::Stopped }
}

/// Reads names, attributes and the ends of every file; returns the paths.
fn walk(fs: &Ext4) -> Vec<String> {
    let Ok(root) = fs.root() else { return Vec::new() };
    let (mut todo, mut seen) = (vec![(String::new(), root)], HashSet::new());
    let mut paths = Vec::new();
    while let Some((path, attr)) = todo.pop() {
        let _ = fs.listxattr(&OpCtx::service(), attr.ino).map(|names| {
            names.iter().for_each(|name| drop(fs.getxattr(&OpCtx::service(), attr.ino, name)));
        });
        match attr.kind {
            Kind::Dir if seen.insert(attr.ino) => {
                for name in names(fs, attr.ino) {
                    if let Ok(child) = fs.lookup(&OpCtx::service(), attr.ino, &name)
                        && paths.len() + todo.len() < NAMES_MAX
                    {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                        todo.push((below, child));
                    }
                }
            }
            Kind::File => read(fs, attr.ino, attr.size),
            Kind::Symlink => drop(fs.readlink(&OpCtx::service(), attr.ino)),
            _ => {}
        }
        paths.push(path);
    }
    let _ = fs.statfs(&OpCtx::service());
    paths
}

fn names(fs: &Ext4, dir: Ino) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let _ = fs.readdir(&OpCtx::service(), dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        assert!(names.len() < 1_000_000, "an endless directory");
        true
    });
    // Positions lead on, too.
    let (mut from, mut steps) = (0, 0);
    loop {
        let mut next = None;
        let listed = fs.readdir(&OpCtx::service(), dir, from, &mut |entry| {
            next = Some(entry.next);
            false
        });
        steps += 1;
        match next {
            Some(position) if listed.is_ok() && steps < 300 => from = position,
            _ => return names,
        }
    }
}

fn read(fs: &Ext4, ino: Ino, size: u64) {
    let mut buffer = vec![0; 256 << 10];
    for offset in [0, size / 2, size.saturating_sub(5000)] {
        let _ = fs.read(&OpCtx::service(), ino, offset, buffer.len(), &mut &mut buffer[..]);
    }
    let _ = fs.seek(&OpCtx::service(), ino, 0, polylane_vfs::fs::SeekFor::Hole);
    let _ = fs.seek(&OpCtx::service(), ino, 0, polylane_vfs::fs::SeekFor::Data);
}

/// A few changes of what was found; every error is fine.
fn work(fs: &Ext4, paths: &[String], seed: u64) {
    let mut rng = Rng::new(seed);
    let mut runner = Runner::new(fs, seed.is_multiple_of(2));
    for _ in 0..30 {
        let path = paths.get(rng.below(paths.len() as u64) as usize).cloned().unwrap_or_default();
        let other =
            format!("{}/new", paths.get(rng.below(8) as usize).cloned().unwrap_or_default());
        let other = other.trim_start_matches('/').to_string();
        let allocate = Fallocate::Allocate { keep_size: false };
        let op = match rng.below(16) {
            0 => Op::Create(other),
            1 => Op::Mkdir(other),
            2 => Op::Symlink(other, 200),
            3 => Op::Unlink(path),
            4 => Op::Rmdir(path),
            5 => Op::Rename(path, other, RenameMode::Replace),
            6 => Op::Link(path, other),
            7 => Op::Write(path, rng.below(1 << 20), 9000),
            8 => Op::Write(path, 0, 200_000),
            9 => Op::Truncate(path, rng.below(100_000)),
            10 => Op::Truncate(path, 0),
            11 => Op::Fallocate(path, allocate, rng.below(1 << 20), 50_000),
            12 => Op::Fallocate(path, Fallocate::PunchHole, rng.below(1 << 16), 50_000),
            13 => Op::SetXattr(path, "user.x".into(), 1 + rng.below(3000) as usize),
            14 => Op::Fallocate(path, Fallocate::CollapseRange, 4096, 8192),
            _ => Op::Fsync(path),
        };
        let _ = runner.apply(&op);
    }
    let _ = runner.apply(&Op::Sync);
    runner.release_all();
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs one image on a thread of its own.
fn guarded(image: Image, seed: u64) -> Result<Ending, String> {
    let (send, receive) = mpsc::channel();
    let run = move || {
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| exercise(&image, seed)));
        let _ = send.send(ended.map_err(drop));
    };
    std::thread::Builder::new().name("image".into()).spawn(run).expect("a thread");
    match receive.recv_timeout(PATIENCE) {
        Ok(Ok(ending)) => Ok(ending),
        Ok(Err(())) => {
            let said = PANICS.lock().expect("not poisoned").pop();
            Err(format!("panic: {}", said.unwrap_or_default()))
        }
        Err(_) => Err("does not end".into()),
    }
}

/// Most memory that this process ever had, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Collects panics of the threads that look at images; others are shown as ever.
fn watch_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match std::thread::current().name() {
        Some("image") => PANICS.lock().expect("not poisoned").push(info.to_string()),
        _ => usual(info),
    }));
}

#[test]
fn damaged_images_are_named_and_survived() {
    if Command::new("mke2fs").arg("-V").output().is_err() {
        eprintln!("skipped: mke2fs is not installed");
        return;
    }
    watch_panics();
    let features = [
        "^orphan_file",
        "orphan_file,metadata_csum_seed",
        "^metadata_csum,^64bit",
        "^metadata_csum,uninit_bg",
    ];
    let bases: Vec<Image> = features.iter().flat_map(|features| bases(features)).collect();
    let sites: Vec<sites::Sites> = bases.iter().map(sites::Sites::of).collect();
    let (first, count) =
        (number("POLYLANE_CORRUPT_SEED", 0), number("POLYLANE_CORRUPT_IMAGES", 2000));
    let (mut endings, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for seed in first..first + count {
        if seed > first && (seed - first) % 5000 == 0 {
            println!("corrupt: at {} of {count}", seed - first);
        }
        let base = (seed % bases.len() as u64) as usize;
        let (mut image, mut rng) = (bases[base].clone(), Rng::new(seed));
        let how = mutate::damage(&mut image, &sites[base], &mut rng);
        match guarded(image, seed) {
            Ok(ending) => *endings.entry(ending).or_insert(0) += 1,
            Err(why) => {
                let known: &mut Vec<String> = failures.entry(why).or_default();
                known.push(format!("seed {seed}: {how}"));
            }
        }
        if failures.keys().any(|why| why == "does not end") {
            break;
        }
    }
    let done: u64 = endings.values().sum();
    let how = if done == count { "whole" } else { "cut short" };
    println!("corrupt: {done} of {count}, {how}: {endings:?}, peak {} KiB", memory_peak_kib());
    for (why, seeds) in &failures {
        println!("{} times {why}\n  {}", seeds.len(), seeds[..seeds.len().min(3)].join("\n  "));
    }
    assert!(failures.is_empty(), "{} kinds of failures", failures.len());
    assert!(memory_peak_kib() < MEMORY_KIB_MAX, "memory out of proportion");
    assert!(endings.len() == 3 || count < 500, "damage did too little or too much: {endings:?}");
}

/// Says how an image as it is ended, and what was found wrong with it.
fn tell(name: &OsStr, ending: Ending, image: &Image) {
    let found = match open(&SimDisk::new(image.clone(), SimOptions::default())) {
        Err(error) => error.to_string(),
        Ok(fs) => {
            let _ = walk(&fs);
            match fs.stopped_by() {
                Some(error) => error.to_string(),
                None => fs.read_only_reasons.join(", "),
            }
        }
    };
    println!("{}: {ending:?} {found}", name.to_string_lossy());
}

#[test]
fn images_of_a_folder_are_survived() {
    let Some(folder) = std::env::var_os("POLYLANE_EXT4_IMAGES") else {
        eprintln!("skipped: POLYLANE_EXT4_IMAGES is not set");
        return;
    };
    watch_panics();
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("a folder").flatten().collect();
    files.sort_by_key(|entry| entry.path());
    let (mut endings, mut failures) = (BTreeMap::new(), Vec::new());
    for file in files {
        let image = Image::new(std::fs::read(file.path()).expect("readable"));
        for seed in 0..16 {
            let (mut image, mut rng) = (image.clone(), Rng::new(seed));
            // Most structures lie in the first MiB; as it is first.
            for _ in 0..seed * 4 {
                let at = rng.below((image.len() as u64).min(1 << 20)) as usize;
                image.write(at, &[rng.next_u64() as u8]);
            }
            let untouched = (seed == 0).then(|| image.clone());
            match guarded(image, seed) {
                Ok(ending) => {
                    *endings.entry(ending).or_insert(0) += 1;
                    untouched.inspect(|image| tell(&file.file_name(), ending, image));
                }
                Err(why) => failures.push(format!("{:?}, seed {seed}: {why}", file.file_name())),
            }
        }
    }
    println!("corrupt: folder: {endings:?}, peak {} KiB", memory_peak_kib());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
