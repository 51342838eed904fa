//! What runs while its service dies or hangs goes on with the next one, and how fast.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, no_library, signal_to};
use polylane_tests::{binary, lacks, unavailable};

/// Works on the lane all the time, says when it has begun.
/// Errors are expected while the service is away: files of a former lane in memory are stale.
const LOAD: &str = r#"
cd /
for worker in 1 2 3; do
    ( i=0; while :; do
        i=$((i + 1))
        ( echo $i > /lane/$worker.$((i % 50)) && cat /lane/* && ls -l /lane ) >/dev/null 2>&1
    done ) &
done
sleep 0.5
echo up
"#;

#[test]
fn a_killed_service_is_replaced_under_load() {
    if unavailable("a_killed_service_is_replaced_under_load") {
        return;
    }
    let script = format!(
        "{LOAD}\nsleep 3\n\
         mkdir /lane/again && echo x > /lane/again/file && cat /lane/again/file && \
         ls -d /lane/again"
    );
    let mut run = Run::new("--mem --no-preload").script(&script).start();
    assert_eq!(run.line(), "up");
    for _ in 0..3 {
        let before = run.service();
        signal_to(before, "KILL");
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert_ne!(run.service(), before);
    }
    assert_eq!(run.line(), "x");
    assert_eq!(run.line(), "/lane/again");
    assert_eq!(run.end().code(), Some(0));
}

/// Asked for its counters, a service dies before it answers: the next one does.
#[test]
fn what_a_killed_service_was_asked_the_next_one_answers() {
    if unavailable("what_a_killed_service_was_asked_the_next_one_answers") {
        return;
    }
    let mut run = Run::new("--mem").script("echo up; sleep 60").start();
    assert_eq!(run.line(), "up");
    let service = run.service();
    signal_to(service, "STOP");
    let mut stats = Command::new(binary());
    let stats = stats.args(["stats", "--json", "--pool", &run.pool]).stdout(Stdio::piped());
    let asked = Instant::now();
    let stats = stats.spawn().expect("polylane");
    std::thread::sleep(Duration::from_millis(500));
    signal_to(service, "KILL");
    let output = stats.wait_with_output().expect("stats ends");
    assert!(output.status.success(), "{output:?}");
    assert!(asked.elapsed() < Duration::from_secs(4), "it was told nothing");
    signal_to(run.child.id(), "TERM");
    run.end();
}

#[test]
fn a_preloaded_command_outlives_its_service() {
    let name = "a_preloaded_command_outlives_its_service";
    if unavailable(name) || no_library(name) {
        return;
    }
    let script = "echo up; for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > /lane/f$i; cat /lane/f$i; \
                  sleep 0.1; done";
    let mut run = Run::new("--mem").script(script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    // A file written to the service that dies may be gone before it is read.
    let lines: Vec<String> =
        std::iter::from_fn(|| Some(run.line()).filter(|l| !l.is_empty())).collect();
    assert!(lines.len() >= 9 && lines.ends_with(&["10".to_string()]), "{lines:?}");
    assert_eq!(run.end().code(), Some(0));
}

/// Makes, writes and renames a file again and again, for as long as it may.
const BUSY: &str = r#"
import os
print("up", flush=True)
while True:
    try:
        with open("/lane/f", "wb", 0) as f:
            f.write(b"x" * 100)
        os.rename("/lane/f", "/lane/g")
    except OSError:
        pass
"#;

/// How often the service was replaced, and how many renames came by the library since.
fn replaced_and_renamed(pool: &str) -> Option<(u64, u64)> {
    let output = Command::new(binary()).args(["stats", "--json", "--pool", pool]).output();
    let said: serde_json::Value = serde_json::from_slice(&output.ok()?.stdout).ok()?;
    let pool = said.get(0).unwrap_or(&said);
    let by_library = &pool["service"]["shared_memory"]["by_operation"];
    Some((pool["service_restarts"].as_u64()?, by_library["rename"].as_u64().unwrap_or(0)))
}

/// A program with the library is back at the next service, by the library, within a second.
#[test]
fn a_preloaded_program_is_back_within_a_second() {
    let name = "a_preloaded_program_is_back_within_a_second";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::create_dir(dir.path().join("tree")).expect("made");
    let tree = format!("--dir {}", dir.path().join("tree").display());
    let volume = format!("--size 256M --volume {}", dir.path().join("volume").display());
    for options in [tree, volume] {
        let script = format!("exec /usr/bin/python3 -c '{BUSY}'");
        let mut run = Run::new(&options).script(&script).start();
        assert_eq!(run.line(), "up");
        let mut times = Vec::new();
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(700));
            let killed = Instant::now();
            signal_to(run.service(), "KILL");
            let is_back = |(restarts, renames)| restarts == round && renames > 0;
            let back = || replaced_and_renamed(&run.pool).is_some_and(is_back);
            while !back() {
                assert!(killed.elapsed() < Duration::from_secs(20), "it does not come back");
            }
            times.push(killed.elapsed());
        }
        times.sort();
        println!("{options}: back after {times:?}");
        assert!(times[2] < Duration::from_secs(1), "{options}: {times:?}");
        run.signal("TERM");
        run.end();
    }
}

/// A file in constant use, which the library reads and writes without asking the service.
const HOLDER: &str = r#"
import os, time
fd = os.open("/lane/f", os.O_RDWR | os.O_CREAT)
for _ in range(40):
    os.pwrite(fd, b"old!" * 1024, 0)
    assert os.pread(fd, 4, 4092) == b"old!"
print("up", flush=True)
time.sleep(2)
os.system("printf new! > /lane/f")
try:
    print(os.pread(fd, 4, 0).decode())
except OSError:
    print("gone")
try:
    os.pwrite(fd, b"late", 0)
except OSError:
    pass
print(open("/lane/f").read())
"#;

#[test]
fn nobody_reads_what_a_dead_service_showed() {
    let name = "nobody_reads_what_a_dead_service_showed";
    if unavailable(name) || no_library(name) {
        return;
    }
    let script = format!("exec /usr/bin/python3 -c '{HOLDER}'");
    let mut run = Run::new("--mem").env("POLYLANE_VIEWS", "eager").script(&script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    let held = run.line();
    assert!(held == "gone" || held == "new!", "{held}");
    let kept = run.line();
    assert!(kept == "new!" || kept == "late" && held == "new!", "{kept}");
    assert_eq!(run.end().code(), Some(0));
}

#[test]
fn files_of_a_host_directory_survive_the_service() {
    if unavailable("files_of_a_host_directory_survive_the_service") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let script = "echo kept > /lane/file && sync /lane/file; echo up; sleep 2; \
                  cat /lane/file; echo more > /lane/second; sync /lane/second";
    let mut run = Run::new("--no-preload --dir").arg(dir.path()).script(script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    assert_eq!(run.line(), "kept");
    assert_eq!(run.end().code(), Some(0));
    let second = std::fs::read_to_string(dir.path().join("second")).expect("second");
    assert_eq!(second, "more\n");
}

/// A directory has no lock: a run on one begins when the service of a killed run, which may be
/// writing there, has ended.
#[test]
fn a_run_on_a_directory_waits_for_the_service_of_a_killed_one() {
    if unavailable("a_run_on_a_directory_waits_for_the_service_of_a_killed_one") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let mut killed = Run::new("--dir").arg(dir.path()).script("echo up; sleep 60").start();
    assert_eq!(killed.line(), "up");
    let service = killed.service();
    signal_to(service, "STOP");
    killed.signal("KILL");
    let next = Run::new("--dir").arg(dir.path()).script("touch /lane/begun; echo up");
    let mut next = next.start();
    // It looks again and again.
    let looked = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", next.child.id()));
        let status = status.unwrap_or_default();
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sleeps.and_then(|n| n.trim().parse().ok()).unwrap_or(0) > 50
    };
    let begun = dir.path().join("begun");
    let end = Instant::now() + Duration::from_secs(20);
    while !begun.exists() && !looked() {
        assert!(Instant::now() < end, "it neither waits nor begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    let waited = !begun.exists();
    signal_to(service, "CONT");
    assert_eq!(next.line(), "up");
    let left = std::fs::read(format!("/proc/{service}/cmdline")).unwrap_or_default();
    assert!(waited && left.is_empty(), "{waited} {left:?}");
    assert_eq!(next.end().code(), Some(0));
    killed.end();
}

#[test]
fn a_service_that_keeps_dying_ends_the_run() {
    if unavailable("a_service_that_keeps_dying_ends_the_run") {
        return;
    }
    let script = "echo up; while :; do sleep 1; done";
    let mut run = Run::new("--mem --no-preload").script(script).start();
    assert_eq!(run.line(), "up");
    for _ in 0..200 {
        if run.child.try_wait().expect("wait").is_some() {
            break;
        }
        if let Some(service) = run.service_now() {
            signal_to(service, "KILL");
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(run.end().code(), Some(1));
}
