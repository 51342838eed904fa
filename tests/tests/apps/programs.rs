//! Programs that people run: databases, git, a compiler, Python's own tests, static binaries.

use std::process::Command;

use polylane_tests::oracle::same_as_tmpfs;
use polylane_tests::{LANES, Lane, MEMORY, Script, binary, lacks, scripts, tool, unavailable};

fn compare(name: &str, script: Script, needed: &[&str], lanes: &[Lane]) {
    if !unavailable(name) && !lacks(name, needed) {
        same_as_tmpfs(&[(name.to_string(), script)], lanes);
    }
}

#[test]
fn sqlite_rollback_journal_with_two_writers() {
    let script = Script::file("sqlite-writers.sh").env("JOURNAL", "delete").limit(120);
    compare("sqlite_rollback_journal_with_two_writers", script, &["sqlite3"], &LANES);
}

#[test]
fn sqlite_wal_with_two_writers() {
    let script = Script::file("sqlite-writers.sh").env("JOURNAL", "wal").limit(120);
    compare("sqlite_wal_with_two_writers", script, &["sqlite3"], &LANES);
}

#[test]
fn git_session() {
    let script = Script::file("git-session.sh").limit(120);
    compare("git_session", script, &["git"], &LANES);
}

#[test]
fn c_project_with_make() {
    let script = Script::file("c-project.sh").limit(120);
    compare("c_project_with_make", script, &["gcc", "make", "nm", "strip"], &LANES);
}

/// Tests of Python that fail on tmpfs too are excused, because both lists are the same then.
#[test]
fn python_standard_library_tests() {
    let script = Script::file("python-stdlib.sh").limit(400);
    let test = "python_standard_library_tests";
    let probe = Command::new("/usr/bin/python3").args(["-c", "import test.test_os"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return polylane_tests::skip(test, "/usr/bin/python3 has no test suite");
    }
    compare(test, script, &[], &MEMORY);
}

#[test]
fn redis_survives_kill_with_its_append_only_file() {
    let script = Script::file("redis.sh").limit(120);
    let needed = ["redis-benchmark", "redis-check-rdb", "redis-cli"];
    compare("redis_survives_kill_with_its_append_only_file", script, &needed, &LANES);
}

#[test]
fn static_busybox() {
    compare("static_busybox", Script::file("busybox.sh"), &["busybox"], &LANES);
}

#[test]
fn static_go_program() {
    let test = "static_go_program";
    if unavailable(test) || lacks(test, &["go"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory for the program");
    let program = dir.path().join("program");
    let cache = binary().with_file_name("go-cache");
    let go = tool("go").expect("it was there above");
    let mut build = Command::new(go);
    build.arg("build").arg("-o").arg(&program).arg(scripts().join("static.go"));
    build.envs([("CGO_ENABLED", "0"), ("GOPROXY", "off"), ("GO111MODULE", "off")]);
    let output = build.env("GOCACHE", cache).output().expect("run go");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The mount hides /srv only; the program lies in the host's temporary directory.
    let script = Script::new(r#""$PROGRAM""#).env("PROGRAM", &program);
    compare(test, script, &[], &LANES);
}
