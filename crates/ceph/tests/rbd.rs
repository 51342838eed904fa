//! An image of a cluster as a device: the contract of devices, one writer, snapshots, bad input.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the tests
//! say so and pass: `make test-ceph` starts one.

#[path = "common/cluster.rs"]
mod cluster;

use std::io::{BufRead, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cluster::cluster;
use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_block::remote::Remote as _;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Op, Request, Sector};
use polylane_ceph::rbd::{Failure, RESIZE_TURN_TIME, RbdDevice, Settings};
use polylane_sys::buffer::Buffer;
use polylane_testkit::block_suite;
use rustix::process::{Pid, Signal, kill_process};

/// Of a process that is to have it, and its pool.
const IMAGE: &str = "POLYLANE_TEST_IMAGE";
const POOL: &str = "POLYLANE_TEST_POOL";

static IMAGES: AtomicU32 = AtomicU32::new(0);

/// An image that is not there yet.
fn settings(cluster: &Path) -> Settings {
    let number = IMAGES.fetch_add(1, Ordering::Relaxed);
    Settings {
        user: "admin".to_string(),
        pool: "rbd".to_string(),
        image: format!("test-{}-{number}", std::process::id()),
        snapshot: None,
        conf: cluster::conf(cluster),
        key: cluster::key(cluster),
        timeout: Duration::from_secs(20),
        session: format!("test-{number}"),
        request_time_max: None,
        holder: "a test".to_string(),
    }
}

fn create(settings: &Settings) -> Arc<RbdDevice> {
    settings.clone().prepare().unwrap().create(4 << 20).unwrap()
}

fn open(settings: &Settings) -> Result<Arc<RbdDevice>, Failure> {
    settings.clone().prepare().unwrap().open()
}

#[test]
fn an_image_keeps_the_contract_of_devices() {
    let Some(cluster) = cluster() else { return };
    block_suite::run(&|| create(&settings(&cluster)));
}

#[test]
fn an_image_has_one_writer_and_its_snapshots_are_read() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    let device = create(&settings);
    let waiter = Waiter::new(device.clone());
    waiter.write(Sector(8), Buffer::copy_of(&[7; 4096]), true).unwrap();
    let (timeout, session) = (Duration::from_secs(1), "another".to_string());
    let hasty = Settings { timeout, session, ..settings.clone() };
    let refused = open(&hasty).map(drop);
    let Err(Failure::InUse(Some(by))) = &refused else { panic!("{refused:?}") };
    assert!(by.starts_with("a test (client "), "{by}");
    let snapshot = Settings { snapshot: Some("s".to_string()), ..settings.clone() };
    let prepared = || snapshot.clone().prepare().unwrap();
    prepared().snapshot().unwrap();
    assert_eq!(prepared().snapshot(), Err(Failure::Exists));
    waiter.write(Sector(8), Buffer::copy_of(&[8; 4096]), true).unwrap();
    let old = open(&snapshot).unwrap();
    assert!(old.read_only());
    let read = Waiter::new(old).read(Sector(8), 4096).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    settings.clone().prepare().unwrap().grow(8 << 20).unwrap();
    device.grow().unwrap();
    assert_eq!(device.sector_count(), (8 << 20) / 512);
    drop((waiter, device));
    let looked = settings.clone().prepare().unwrap().look(8).unwrap();
    assert_eq!(
        (looked.size, looked.snapshots, looked.holder),
        (8 << 20, vec!["s".to_string()], None)
    );
    let clone = Settings { image: format!("{}-clone", settings.image), ..settings.clone() };
    prepared().clone_to("rbd", &clone.image).unwrap();
    let read = Waiter::new(open(&clone).unwrap()).read(Sector(8), 4096).unwrap();
    assert!(read.iter().all(|byte| *byte == 7), "a clone has what the snapshot has");
    let remove = |settings: &Settings| settings.clone().prepare().unwrap().remove();
    assert!(matches!(remove(&settings), Err(Failure::HasOthers(_))));
    let again = Waiter::new(open(&settings).unwrap());
    assert!(again.read(Sector(8), 4096).unwrap().iter().all(|byte| *byte == 8));
    drop(again);
    [clone, snapshot, settings].iter().for_each(|settings| remove(settings).unwrap());
}

#[test]
fn what_is_not_there_is_named() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    assert_eq!(open(&settings).err(), Some(Failure::Open(Errno::ENOENT)));
    let nowhere = Settings { pool: "nope".to_string(), ..settings.clone() };
    assert_eq!(open(&nowhere).err(), Some(Failure::Pool(Errno::ENOENT)));
    let key = Some("AQBBBBBBBBBBBBAABBBBBBBBBBBBBBBBBBBBBA==".to_string());
    let stranger = Settings { key, ..settings };
    assert!(matches!(open(&stranger).err(), Some(Failure::Connect(_))));
}

/// The lock of a process that ended without letting go, as one of a killed service: its client
/// lives on in here, and is barred.
#[test]
fn the_next_process_of_a_session_takes_the_image_over_at_once() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    let former = Waiter::new(create(&settings));
    former.write(Sector(0), Buffer::copy_of(&[1; 4096]), true).unwrap();
    let began = std::time::Instant::now();
    let next = Waiter::new(open(&settings).unwrap());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let barred = former.write(Sector(0), Buffer::copy_of(&[2; 4096]), true);
    assert!(barred.is_err(), "the former one writes no more");
    assert!(next.read(Sector(0), 4096).unwrap().iter().all(|byte| *byte == 1));
}

/// Whatever order the cluster takes them in, and whether or not a client has the image: none of
/// them makes it smaller.
#[test]
fn an_image_that_many_resize_at_once_only_grows() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    drop(create(&settings));
    let grow = |size: u64| settings.clone().prepare().unwrap().grow(size);
    for (round, is_open) in [false, true].into_iter().cycle().take(6).enumerate() {
        let device = is_open.then(|| open(&settings).unwrap());
        let base = (round as u64 + 1) * (64 << 20);
        let sizes: Vec<u64> = [3, 1, 4, 2].map(|part| base + (part << 22)).to_vec();
        let results: Vec<_> = std::thread::scope(|scope| {
            let each: Vec<_> = sizes.iter().map(|&size| scope.spawn(move || grow(size))).collect();
            each.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for (size, result) in sizes.iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(Failure::Smaller(has)) => assert!(has > *size, "{has} {size}"),
                Err(other) => panic!("{other}"),
            }
        }
        let size = settings.clone().prepare().unwrap().look(8).unwrap().size;
        assert_eq!(size, base + (4 << 22), "the largest");
        assert_eq!(grow(base), Err(Failure::Smaller(size)));
        drop(device);
    }
    settings.clone().prepare().unwrap().remove().unwrap();
}

/// What one of Ceph's programs says.
fn said_by(cluster: &Path, program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.arg("-c").arg(cluster.join("ceph.conf")).args(["-n", "client.admin"]).args(words);
    let output = command.env("RBD_FORCE_ALLOW_V1", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The object by whose lock resizes take turns.
fn header_of(cluster: &Path, settings: &Settings) -> String {
    let info = said_by(cluster, "rbd", &["info", &format!("rbd/{}", settings.image)]);
    let id = info.split_once("\tid: ").expect("an id").1.lines().next().unwrap();
    format!("rbd_header.{id}")
}

/// Another host is at it: a resize waits for its turn, and says so when that takes too long.
#[test]
fn a_resize_waits_for_the_one_before() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    drop(create(&settings));
    let by = |program: &str, words: &[&str]| said_by(&cluster, program, words);
    let header = header_of(&cluster, &settings);
    let other = |action: &[&str]| {
        let words = [&["-p", "rbd", "lock"], action, &["--lock-cookie", "other"]].concat();
        by("rados", &words);
    };
    other(&["get", &header, "polylane.resize", "--lock-type", "exclusive"]);
    let grow = |timeout| Settings { timeout, ..settings.clone() }.prepare().unwrap().grow(8 << 20);
    let size = || settings.clone().prepare().unwrap().look(8).unwrap().size;
    assert_eq!(grow(Duration::from_secs(5)), Err(Failure::Resizing));
    assert_eq!(size(), 4 << 20);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| grow(Duration::from_secs(60)));
        let watchers = || by("rados", &["-p", "rbd", "listwatchers", &header]);
        while watchers().is_empty() && !waits.is_finished() {}
        assert_eq!(size(), 4 << 20);
        let client = by("rados", &["-p", "rbd", "lock", "info", &header, "polylane.resize"]);
        let locker = client.split_once("client.").expect("a locker").1;
        let locker = format!("client.{}", locker.split('"').next().unwrap());
        other(&["break", &header, "polylane.resize", &locker]);
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
    assert_eq!(size(), 8 << 20);
    settings.prepare().unwrap().remove().unwrap();
}

/// Of format 1, which has no id, and no lock by which a lane could have it.
#[test]
fn an_image_of_the_old_format_grows() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    let name = format!("rbd/{}", settings.image);
    said_by(&cluster, "rbd", &["create", &name, "--size", "4M", "--image-format", "1"]);
    let grow = |size: u64| settings.clone().prepare().unwrap().grow(size);
    assert_eq!((grow(8 << 20), grow(8 << 20)), (Ok(()), Ok(())));
    assert_eq!(grow(4 << 20), Err(Failure::Smaller(8 << 20)));
    assert_eq!(settings.clone().prepare().unwrap().look(8).unwrap().size, 8 << 20);
    assert_eq!(open(&settings).err(), Some(Failure::NoLock));
    settings.prepare().unwrap().remove().unwrap();
}

/// The process that has the image is stopped: it is asked in vain until its lock can be broken.
#[test]
fn a_resize_that_takes_long_keeps_its_turn() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    drop(create(&settings));
    let mut holder = Holder::start(&settings);
    kill_process(Pid::from_child(&holder.process), Signal::STOP).unwrap();
    let grow = |size: u64, timeout: u64| {
        let timeout = Duration::from_secs(timeout);
        Settings { timeout, ..settings.clone() }.prepare().unwrap().grow(size)
    };
    let header = header_of(&cluster, &settings);
    let turns = || said_by(&cluster, "rados", &["-p", "rbd", "lock", "list", &header]);
    let mut refused = Duration::ZERO;
    std::thread::scope(|scope| {
        let long = scope.spawn(|| grow(64 << 20, 120));
        while !turns().contains("polylane.resize") && !long.is_finished() {}
        let began = Instant::now();
        while !long.is_finished() {
            match grow(16 << 20, 2) {
                Err(Failure::Resizing) => refused = began.elapsed(),
                other => eprintln!("the long one is at its end: {other:?}"),
            }
        }
        assert_eq!(long.join().unwrap(), Ok(()));
    });
    holder.kill();
    assert!(refused > RESIZE_TURN_TIME + Duration::from_secs(2), "{refused:?}");
    assert_eq!(settings.clone().prepare().unwrap().look(8).unwrap().size, 64 << 20);
    settings.prepare().unwrap().remove().unwrap();
}

/// Another process that has an image, and changes it as it is told.
struct Holder {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(settings: &Settings) -> Holder {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holder", "--nocapture", "--ignored"])
            .env(IMAGE, &settings.image)
            .env(POOL, &settings.pool)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut holder = Holder { process, input, lines };
        holder.wait_for("holds");
        holder
    }

    fn wait_for(&mut self, word: &str) {
        assert!(self.lines.by_ref().map(Result::unwrap).any(|line| line.contains(word)), "{word}");
    }

    /// Makes a change, which has completed when this returns.
    fn change(&mut self, change: Change, slot: u64, byte: u8) {
        let number = Change::ALL.iter().position(|one| *one == change).unwrap();
        writeln!(self.input, "{number} {slot} {byte}").unwrap();
        self.wait_for("changed");
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Write,
    DurableWrite,
    DurableZeroes,
}

impl Change {
    const ALL: [Change; 3] = [Change::Write, Change::DurableWrite, Change::DurableZeroes];
}

/// Not a test: has an image, and changes it, until it is killed.
#[test]
#[ignore = "started by Holder"]
fn holder() {
    let (Ok(image), Ok(pool)) = (std::env::var(IMAGE), std::env::var(POOL)) else { return };
    let Some(cluster) = cluster() else { return };
    let session = image.clone();
    let device = open(&Settings { image, pool, session, ..settings(&cluster) }).unwrap();
    let waiter = Waiter::new(device);
    println!("holds");
    for line in std::io::stdin().lock().lines().map(Result::unwrap) {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let sector = Sector(numbers[1] * 8);
        let data = vec![Buffer::copy_of(&[numbers[2] as u8; 4096])];
        let request = match Change::ALL[numbers[0] as usize] {
            Change::Write => Request::with_data(Op::Write { fua: false }, sector, data, 0),
            Change::DurableWrite => Request::with_data(Op::Write { fua: true }, sector, data, 0),
            Change::DurableZeroes => {
                Request::without_data(Op::WriteZeroes { unmap: true, fua: true }, sector, 8, 0)
            }
        };
        waiter.all([request]).pop().unwrap().result.unwrap();
        println!("changed");
    }
}

/// A cache of librbd's that keeps what is written until it is flushed; discards of parts of
/// objects are left out.
const CONFIGURATION: [(&str, &str); 5] = [
    ("rbd_cache", "true"),
    ("rbd_cache_policy", "writeback"),
    ("rbd_cache_writethrough_until_flush", "false"),
    ("rbd_cache_max_dirty_age", "1000"),
    ("rbd_skip_partial_discard", "true"),
];

/// Changes in some order, of which the durable ones and what came before them are there when the
/// process was killed. Then one that is not durable: it is lost where librbd has a cache.
fn killed_amid_changes(settings: &Settings, rng: &mut Rng, when_open: impl Fn()) -> bool {
    const SLOTS: u64 = 64;
    let mut expected = [0_u8; SLOTS as usize];
    let mut holder = Holder::start(settings);
    when_open();
    let mut change = |holder: &mut Holder, change, slot: u64, byte: u8| {
        holder.change(change, slot, byte);
        expected[slot as usize] = if change == Change::DurableZeroes { 0 } else { byte };
    };
    for byte in 1..40 {
        change(&mut holder, *rng.pick(&Change::ALL), rng.below(SLOTS), byte);
    }
    let durable = *rng.pick(&[Change::DurableWrite, Change::DurableZeroes]);
    change(&mut holder, durable, rng.below(SLOTS), 40);
    holder.change(Change::Write, SLOTS, 41);
    holder.kill();
    let next = Settings { session: settings.image.clone(), ..settings.clone() };
    let next = Waiter::new(open(&next).unwrap());
    let read = |slot: u64| next.read(Sector(slot * 8), 4096).unwrap();
    for (slot, byte) in (0..).zip(expected) {
        let first = read(slot)[0];
        assert!(read(slot).iter().all(|one| *one == byte), "{slot}: {first} and not {byte}");
    }
    read(SLOTS).iter().all(|byte| *byte == 0)
}

/// The configuration of an image and of its pool go before ours. librbd takes it over when the
/// image is opened.
#[test]
fn what_was_durable_is_there_whatever_cache_the_image_is_given() {
    let Some(cluster) = cluster() else { return };
    let rbd = |words: &[&str]| drop(said_by(&cluster, "rbd", words));
    let image = |pool: &str| {
        let settings = Settings { pool: pool.to_string(), ..settings(&cluster) };
        drop(create(&settings));
        let name = format!("{pool}/{}", settings.image);
        (settings, name)
    };
    let set = |name: &str| {
        let set = |(key, value): (&str, &str)| rbd(&["config", "image", "set", name, key, value]);
        CONFIGURATION.into_iter().for_each(set);
    };
    let rng = &mut Rng::new(std::process::id().into());

    let (own, name) = image("rbd");
    set(&name);
    assert!(killed_amid_changes(&own, rng, || {}), "it has a cache");

    let (former, name) = image("rbd");
    set(&name);
    let remove = || rbd(&["config", "image", "remove", &name, "rbd_cache"]);
    assert!(killed_amid_changes(&former, rng, remove), "it has a cache until it is closed");

    let (late, name) = image("rbd");
    let lost = killed_amid_changes(&late, rng, || set(&name));
    assert!(!lost, "it has no cache until it is opened again");

    let pool = format!("test-{}", std::process::id());
    drop(said_by(&cluster, "ceph", &["osd", "pool", "create", &pool, "1"]));
    rbd(&["pool", "init", &pool]);
    let set = |(key, value): (&str, &str)| rbd(&["config", "pool", "set", &pool, key, value]);
    CONFIGURATION.into_iter().for_each(set);
    let (pooled, _) = image(&pool);
    assert!(killed_amid_changes(&pooled, rng, || {}), "it has its pool's cache");
    let images = [own, former, late, pooled];
    images.into_iter().for_each(|one| one.prepare().unwrap().remove().unwrap());
}

/// Its former client would write on when another has it.
#[test]
fn an_image_whose_configuration_bars_nobody_is_refused() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    drop(create(&settings));
    let name = format!("rbd/{}", settings.image);
    let option = "rbd_blocklist_on_break_lock";
    said_by(&cluster, "rbd", &["config", "image", "set", &name, option, "false"]);
    assert_eq!(open(&settings).err(), Some(Failure::BarsNobody));
    let snapshot = Settings { snapshot: Some("s".to_string()), ..settings.clone() };
    snapshot.clone().prepare().unwrap().snapshot().unwrap();
    assert!(open(&snapshot).is_ok(), "it is read alone");
    snapshot.prepare().unwrap().remove().unwrap();
    said_by(&cluster, "rbd", &["config", "image", "remove", &name, option]);
    drop(open(&settings).unwrap());
    settings.prepare().unwrap().remove().unwrap();
}
