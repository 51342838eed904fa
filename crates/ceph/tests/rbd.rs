//! An image of a cluster as a device: the contract of devices, one writer, snapshots, bad input.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the tests
//! say so and pass: `make test-ceph` starts one.

#[path = "common/cluster.rs"]
mod cluster;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cluster::cluster;
use polylane_base::Errno;
use polylane_block::remote::Remote as _;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector};
use polylane_ceph::rbd::{Failure, RbdDevice, Settings};
use polylane_sys::buffer::Buffer;
use polylane_testkit::block_suite;

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

/// Another host is at it: a resize waits for its turn, and says so when that takes too long.
#[test]
fn a_resize_waits_for_the_one_before() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster);
    drop(create(&settings));
    let by = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.arg("-c").arg(cluster.join("ceph.conf")).args(["-n", "client.admin"]).args(words);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let info = by("rbd", &["info", &format!("rbd/{}", settings.image)]);
    let id = info.split_once("\tid: ").expect("an id").1.lines().next().unwrap();
    let header = format!("rbd_header.{id}");
    let other = |action: &[&str]| {
        let words = [&["-p", "rbd", "lock"], action, &["--lock-cookie", "other"]].concat();
        by("rados", &words);
    };
    other(&["get", &header, "polylane.resize", "--lock-type", "exclusive"]);
    let grow = |timeout| Settings { timeout, ..settings.clone() }.prepare().unwrap().grow(8 << 20);
    let size = || settings.clone().prepare().unwrap().look(8).unwrap().size;
    let late = grow(Duration::from_secs(1));
    assert!(matches!(late, Err(Failure::Call(_, Errno::EBUSY))), "{late:?}");
    assert_eq!(size(), 4 << 20);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| grow(Duration::from_secs(60)));
        while by("rados", &["-p", "rbd", "listwatchers", &header]).is_empty() {}
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
