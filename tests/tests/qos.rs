//! Shares of a device between pools: `--qos`, `polylane pool set`, the coordinator's end.
//!
//! Shares are compared under `static` with a device said to be slow, so that the limits count and
//! not how fast the host's disk is at that moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polylane_sys::procstat::ProcessStat;
use polylane_tests::pool::{Run, Running, assert_nothing_remains, signal_to};
use polylane_tests::{lacks, unavailable};
use serde_json::Value;

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(45);

/// The lanes of a device share it by one policy at a time.
static DEVICE: Mutex<()> = Mutex::new(());

/// A directory for volumes, and the device to oneself; `None` where this cannot be tested.
fn place(test: &str) -> Option<(tempfile::TempDir, MutexGuard<'static, ()>)> {
    if unavailable(test) || lacks(test, &["mke2fs"]) {
        return None;
    }
    let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((tempfile::tempdir().expect("tempdir"), alone))
}

/// A pool that writes all the time. It ends with this, also when a test fails.
struct Writer(Option<Running>);

impl Writer {
    fn start(dir: &Path, options: &str) -> Writer {
        let script = "while :; do dd if=/dev/zero of=/lane/f bs=4k count=16 conv=notrunc,fsync \
            2>/dev/null || sleep 0.05; done";
        Writer::with(dir, options, script)
    }

    fn with(dir: &Path, options: &str, script: &str) -> Writer {
        let options = format!("--no-preload --size 64M {options} --volume");
        let run = Run::new(&options).env("XDG_STATE_HOME", dir).longer(length());
        let count = fs::read_dir(dir).map_or(0, |entries| entries.count());
        let volume: PathBuf = dir.join(format!("volume-{count}"));
        let writer = Writer(Some(run.arg(volume).script(script).start()));
        writer.until("it writes", |stats| written(stats) > 0);
        writer
    }

    fn running(&self) -> &Running {
        self.0.as_ref().expect("runs")
    }

    /// Its statistics now, if it answers.
    fn stats(&self) -> Option<Value> {
        let pool = &self.running().pool;
        let words = ["stats", "--json", "--pool", pool];
        let output = Command::new(polylane_tests::binary()).args(words).output().expect("stats");
        serde_json::from_slice::<Vec<Value>>(&output.stdout).ok()?.pop()
    }

    /// Its statistics as soon as they show this.
    fn until(&self, what: &str, shows: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let stats = self.stats();
            if let Some(stats) = stats.as_ref().filter(|stats| shows(stats)) {
                return stats.clone();
            }
            assert!(start.elapsed() < PATIENCE, "waited for: {what}; last seen: {stats:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(mut self) {
        let run = self.0.take().expect("runs");
        run.signal("TERM");
        run.end();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(mut run) = self.0.take() {
            let _ = run.child.kill();
            let _ = run.child.wait();
            if !std::thread::panicking() {
                assert_nothing_remains(&run.pool);
            }
        }
    }
}

fn written(stats: &Value) -> u64 {
    stats["service"]["share"]["written_bytes"].as_u64().unwrap_or(0)
}

fn entitled(stats: &Value) -> f64 {
    stats["service"]["share"]["entitled_part"].as_f64().unwrap_or(-1.0)
}

fn coordinated(stats: &Value) -> bool {
    stats["share"]["joined"] == true && stats["service"]["share"]["coordinated"] == true
}

/// What two writers write at the same time, as a ratio, once it is in this range: it is measured
/// anew until then.
fn until_ratio(one: &Writer, other: &Writer, range: std::ops::Range<f64>) {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while start.elapsed() < PATIENCE {
        let look = || [one, other].map(|writer| written(&writer.until("counters", |_| true)));
        let before = look();
        std::thread::sleep(Duration::from_millis(1500));
        let after = look();
        let rates = [0, 1].map(|index| after[index].saturating_sub(before[index]) as f64);
        let ratio = rates[0] / rates[1].max(1.0);
        if range.contains(&ratio) {
            return;
        }
        seen.push(ratio);
    }
    panic!("waited for a ratio in {range:?}; seen: {seen:?}");
}

/// How fast a counter of a writer's share grows, per second, once it is in this range: it is
/// measured anew until then.
fn until_rate(writer: &Writer, counter: &str, range: std::ops::Range<f64>) {
    let (start, mut seen) = (Instant::now(), Vec::new());
    let look = || {
        let stats = writer.until(counter, |stats| stats["service"]["share"][counter].is_u64());
        (Instant::now(), stats["service"]["share"][counter].as_u64().unwrap_or(0))
    };
    while start.elapsed() < PATIENCE {
        let before = look();
        std::thread::sleep(Duration::from_millis(1500));
        let after = look();
        let grown = after.1.saturating_sub(before.1) as f64;
        let rate = grown / after.0.duration_since(before.0).as_secs_f64();
        if range.contains(&rate) {
            return;
        }
        seen.push(rate);
    }
    panic!("waited for {counter} a second in {range:?}; seen: {seen:?}");
}

fn polylane(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(polylane_tests::binary()).args(words).output().expect("polylane");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// Writes a profile that says that the device takes `ns` for a write, wherever it counts.
fn say_slow(dir: &Path, ns: u64) {
    let first = Writer::start(dir, "--qos static");
    let stats = first.until("a device", |stats| stats["share"]["device"].is_string());
    let device = stats["share"]["device"].as_str().expect("a string").to_string();
    first.end();
    let profiles = dir.join("polylane/devices");
    fs::create_dir_all(&profiles).expect("mkdir");
    let line = format!(r#"{{"sequential_ns": {ns}, "random_ns": {ns}, "page_ns": 1000}}"#);
    let text = format!(r#"{{"read": {line}, "write": {line}}}"#);
    fs::write(profiles.join(format!("{device}.json")), text).expect("write a profile");
}

#[test]
fn weights_share_a_device_and_change_at_once() {
    let Some((dir, _alone)) = place("weights_share_a_device_and_change_at_once") else { return };
    // 1000 pages a second: 4 MB/s for both together.
    say_slow(dir.path(), 1_000_000);
    let heavy = Writer::start(dir.path(), "--qos static --weight 300");
    let light = Writer::start(dir.path(), "--qos static --weight 100");
    until_ratio(&heavy, &light, 2.0..4.5);
    let (status, said) = polylane(&["pool", "set", &light.running().pool, "--weight", "300"]);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    until_ratio(&heavy, &light, 0.6..1.6);
    let (_, said) = polylane(&["pool", "ls"]);
    for writer in [&heavy, &light] {
        let line = said.lines().find(|line| line.starts_with(&writer.running().pool));
        let line = line.unwrap_or_else(|| panic!("not listed: {said}"));
        assert!(line.contains("300") && line.contains("static"), "{line}");
    }
    let (status, said) = polylane(&["top", "--once", "--interval", "0.2"]);
    assert!(status == Some(0) && said.contains(&light.running().pool), "{said}");
    let (_, said) = polylane(&["stats", "--prometheus"]);
    let sample = format!("polylane_share_weight{{pool=\"{}\",", light.running().pool);
    assert!(said.contains(&sample), "{said}");
    let (status, said) = polylane(&["pool", "set", &light.running().pool, "--weight", "0"]);
    assert!(status == Some(2) && said.contains("--weight"), "{said}");
    let (status, said) = polylane(&["pool", "set", "nobody-has-this-name", "--weight", "5"]);
    assert!(status == Some(1) && said.contains("not running"), "{said}");
    heavy.end();
    light.end();
}

#[test]
fn a_coordinator_that_is_killed_is_replaced() {
    let Some((dir, _alone)) = place("a_coordinator_that_is_killed_is_replaced") else { return };
    let first = Writer::start(dir.path(), "--qos ledger --weight 100");
    let second = Writer::start(dir.path(), "--qos ledger --weight 300");
    first.until("its part beside the second", |stats| (entitled(stats) - 0.25).abs() < 0.01);
    for writer in [&first, &second] {
        let stats = writer.until("counters", |_| true);
        let device = stats["share"]["device"].as_str().expect("a device").replacen('-', ":", 1);
        let counted = Path::new("/sys/dev/block").join(device).join("stat").exists();
        assert_eq!(stats["service"]["share"]["sees_device"], counted, "what the kernel counts");
    }
    // The first pool's keeper: the second's only waits for its turn.
    let keeper = keeper_of(first.running().child.id()).expect("a keeper");
    signal_to(keeper, "KILL");
    for writer in [&first, &second] {
        let before = written(&writer.until("counters", |_| true));
        writer.until("a coordinator again", coordinated);
        writer.until("writes after that", |stats| written(stats) > before);
    }
    second.until("its part", |stats| (entitled(stats) - 0.75).abs() < 0.01);
    // The pool has another keeper, which is a candidate again: with the second's killed too,
    // somebody still coordinates.
    let replaced = until_some("another keeper", || {
        keeper_of(first.running().child.id()).filter(|pid| *pid != keeper)
    });
    assert_ne!(replaced, keeper);
    signal_to(keeper_of(second.running().child.id()).expect("a keeper"), "KILL");
    for writer in [&first, &second] {
        writer.until("a coordinator once more", coordinated);
    }
    second.until("its part", |stats| (entitled(stats) - 0.75).abs() < 0.01);
    first.end();
    second.until("all of the device", |stats| entitled(stats) > 0.99);
    second.end();
}

#[test]
fn lanes_that_are_killed_hold_up_nobody() {
    let Some((dir, _alone)) = place("lanes_that_are_killed_hold_up_nobody") else { return };
    let stays = Writer::start(dir.path(), "--qos ledger --weight 100");
    for round in 0..3_u64 {
        let killed = Writer::start(dir.path(), "--qos ledger --weight 900");
        stays.until("its part beside the other", |stats| entitled(stats) < 0.2);
        signal_to(killed.running().service(), "KILL");
        killed.until("another service", |stats| stats["service_restarts"] == 1);
        killed.until("writes by that", |stats| written(stats) > 0 && coordinated(stats));
        std::thread::sleep(Duration::from_millis(37 * round));
        drop(killed);
        let before = written(&stays.until("counters", |_| true));
        stays.until("all of the device", |stats| entitled(stats) > 0.99);
        stays.until("writes after that", |stats| written(stats) > before);
    }
    stays.end();
}

#[test]
fn limits_of_a_person_hold_and_are_lifted() {
    let Some((dir, _alone)) = place("limits_of_a_person_hold_and_are_lifted") else { return };
    let writer = Writer::start(dir.path(), "");
    let stats = writer.until("a policy", |stats| stats["share"]["joined"] == true);
    assert_eq!(stats["share"]["policy"], "ledger", "the default");
    let pool = &writer.running().pool;
    let set = |words: &[&str]| {
        let (status, said) = polylane(&[&["pool", "set", pool], words].concat());
        assert_eq!((status, said.as_str()), (Some(0), ""), "{words:?}");
    };
    // More than any of the limits lets through, before and after: otherwise they would prove
    // nothing.
    until_rate(&writer, "requests", 50.0..f64::INFINITY);
    set(&["--max-iops", "20"]);
    until_rate(&writer, "requests", 10.0..40.0);
    set(&["--max-iops", "0"]);
    until_rate(&writer, "requests", 50.0..f64::INFINITY);
    until_rate(&writer, "written_bytes", 300e3..f64::INFINITY);
    set(&["--max-bandwidth", "128K"]);
    until_rate(&writer, "written_bytes", 65e3..262e3);
    let limits = writer.until("what was asked for", |_| true)["share"]["wanted"].clone();
    assert_eq!((&limits["iops_max"], &limits["bw_max"]), (&0.into(), &(128 << 10).into()));
    // Not to wait for its last bytes at that rate.
    set(&["--max-bandwidth", "0"]);
    writer.end();
}

/// Something that ends with this.
struct Flood(std::process::Child);

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Flood {
    /// Reads a file at random places, as fast as the disk does, in this control group.
    fn start(group: &Path, file: &Path) -> Flood {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec fio --name=flood --filename={} --size=128m \
             --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=32 --thread \
             --time_based --runtime=600 --output=/dev/null",
            group.display(),
            file.display()
        );
        Flood(Command::new("sh").args(["-c", &script]).spawn().expect("sh"))
    }
}

/// Where version 1 counts and throttles what groups do at a device.
const BLKIO: &str = "/sys/fs/cgroup/blkio";

/// Requests that a group has read from a device so far, as the kernel counts them.
fn reads_of(group: &Path, device: &str) -> u64 {
    let text = fs::read_to_string(group.join("blkio.throttle.io_serviced")).unwrap_or_default();
    let line = format!("{device} Read ");
    let found = text.lines().find_map(|text| text.strip_prefix(&line)?.parse().ok());
    found.unwrap_or(0)
}

/// A lane whose process does more at the disk than it says is held to its share by the kernel, and
/// let go when it no longer does. What is added to the service here says nothing at all.
#[test]
#[ignore = "needs a disk and CPUs that are free: cargo xtask campaign qos"]
fn a_lane_that_lies_is_held_to_its_share_by_the_kernel() {
    let test = "a_lane_that_lies_is_held_to_its_share_by_the_kernel";
    let throttle = Path::new(BLKIO).join("blkio.throttle.read_iops_device");
    if let Err(error) = fs::OpenOptions::new().write(true).open(&throttle) {
        return polylane_tests::skip(test, &format!("{}: {error}", throttle.display()));
    }
    let Some((dir, _alone)) = place(test) else { return };
    if lacks(test, &["fio"]) {
        return;
    }
    let script = "for i in 1 2 3 4; do (while :; do dd if=/dev/zero of=/lane/f$i bs=64k count=16 \
        conv=notrunc,fsync 2>/dev/null || sleep 0.05; done) & done; wait";
    // One lane alone never counts as one that wants more than it gets.
    let honest = [(); 2].map(|()| Writer::with(dir.path(), "--qos ledger --weight 100", script));
    let liar = Writer::start(dir.path(), "--qos ledger --weight 100");
    let stats = liar.until("its group", |stats| stats["share"]["watched"] == true);
    let device = stats["share"]["device"].as_str().expect("a device").replacen('-', ":", 1);
    let service = liar.running().service();
    let own = fs::read_to_string(format!("/proc/{service}/cgroup")).expect("its groups");
    let own = own.lines().find_map(|line| line.split_once(":blkio:/")).expect("a group").1;
    let group = Path::new(BLKIO).join(own);
    assert!(own.ends_with("@io"), "{own}");

    let rate = |time: u64| {
        let (begin, before) = (Instant::now(), reads_of(&group, &device));
        std::thread::sleep(Duration::from_millis(time));
        (reads_of(&group, &device) - before) as f64 / begin.elapsed().as_secs_f64()
    };
    let bound = || liar.until("statistics", |_| true)["share"]["bound"].clone();
    let reads = |bound: &Value| bound["read_requests"].as_f64().unwrap_or(f64::INFINITY);
    let flood = Flood::start(&group, &dir.path().join("flood"));
    let (start, mut best, mut seen) = (Instant::now(), 0.0_f64, Vec::new());
    // Beside other tests the honest lane may want less for a while, and the bound go up.
    loop {
        let (before, got, after) = (bound(), rate(1500), bound());
        if before.is_null() {
            best = best.max(got);
        }
        seen.push((reads(&before), got, reads(&after)));
        // On a busy machine a rate may halve by itself.
        let is_bound = !before.is_null() && !after.is_null();
        if is_bound && got <= 1.25 * reads(&before).max(reads(&after)) && got <= 0.7 * best {
            break;
        }
        assert!(start.elapsed() < 2 * PATIENCE, "its best {best}; bounds and rates: {seen:?}");
    }
    // The bound is off for a while where the honest lanes want less.
    until_some("a bound that is shown", || {
        let (status, said) = polylane(&["top", "--once", "--interval", "0.2"]);
        (status == Some(0) && said.contains("bound")).then_some(())
    });
    for lane in &honest {
        assert!(lane.until("statistics", |_| true)["share"]["bound"].is_null());
    }
    drop(flood);
    liar.until("its release", |stats| stats["share"]["bound"].is_null());
    honest.into_iter().for_each(Writer::end);
    liar.end();
    assert!(!group.exists(), "its group is gone with it");
}

/// How long to go on killing.
fn length() -> Duration {
    let seconds = std::env::var("POLYLANE_QOS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// Services and coordinators are killed at random instants; everybody has their part again.
#[test]
#[ignore = "long: cargo xtask campaign qos"]
fn shares_recover_from_kills_at_length() {
    let Some((dir, _alone)) = place("shares_recover_from_kills_at_length") else { return };
    let limit = length();
    let weights = [100, 300, 600];
    let writers =
        weights.map(|weight| Writer::start(dir.path(), &format!("--qos ledger --weight {weight}")));
    let (start, mut dice) = (Instant::now(), u64::from(std::process::id()));
    let mut times = [Vec::new(), Vec::new()];
    while start.elapsed() < limit {
        // A congruential generator: what counts is that the instants differ.
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(3000 + (dice >> 33) % 2000));
        let victim = writers[(dice >> 40) as usize % writers.len()].running();
        let kills_service = (dice >> 50) % 2 == 0;
        let killed = match kills_service {
            true => victim.service(),
            false => until_some("a keeper", || keeper_of(victim.child.id())),
        };
        signal_to(killed, "KILL");
        let since = Instant::now();
        let before: Vec<u64> =
            writers.iter().map(|writer| written(&writer.until("counters", |_| true))).collect();
        for ((writer, weight), before) in writers.iter().zip(weights).zip(before) {
            let part = f64::from(weight) / 1000.0;
            writer.until("its part", |stats| {
                coordinated(stats) && (entitled(stats) - part).abs() < 0.01
            });
            // A service that was killed begins to count anew.
            writer.until("writes", |stats| written(stats) != before);
        }
        times[usize::from(kills_service)].push(since.elapsed().as_millis());
    }
    for (what, times) in ["keepers", "services"].into_iter().zip(&mut times) {
        times.sort_unstable();
        let (median, worst) = (times.get(times.len() / 2), times.last());
        println!(
            "{what}: {} killed, all have their parts after {median:?} ms, at most {worst:?} ms",
            times.len()
        );
    }
    writers.into_iter().for_each(Writer::end);
}

/// What `find` finds, as soon as it does.
fn until_some<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The keeper among the children of a supervisor.
fn keeper_of(supervisor: u32) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = ProcessStat::of(pid)?;
        (stat.parent == supervisor && stat.name == b"polylane-keep").then_some(pid)
    })
}
