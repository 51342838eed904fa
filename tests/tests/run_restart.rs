//! A service that dies is replaced under the running tenant.

use polylane_tests::pool::{Run, no_library, signal_to};
use polylane_tests::unavailable;

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
