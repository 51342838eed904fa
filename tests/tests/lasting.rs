//! Lanes that last, over what happens to them meanwhile: floods of words, kills, upgrades.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use polylane_tests::host::{Host, child, polylane, refused, succeeds, text, until};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, unavailable};

/// Words of 2 MiB in a file that something appends to.
fn flood(path: &std::path::Path) {
    let mut file = fs::File::options().append(true).create(true).open(path).expect("open");
    let line = format!("{}\n", "x".repeat(1023));
    file.write_all(line.repeat(2 << 10).as_bytes()).expect("write");
}

#[test]
fn the_log_of_a_lane_stays_small_and_what_a_run_says_is_not_touched() {
    if unavailable("the_log_of_a_lane_stays_small_and_what_a_run_says_is_not_touched") {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["mount", "--size", "256M", text(&volume), text(&at)]);
    let mounts = host.mounts();
    let (pool, number) = (mounts[0]["pool"].as_str().expect("a name"), &mounts[0]["service"]);
    let log = std::path::PathBuf::from(format!("/run/polylane/{pool}@{number}.log"));
    let size = || fs::metadata(&log).expect("a log").len();
    for _ in 0..2 {
        flood(&log);
        assert!(size() >= 2 << 20);
        // What the supervisor says of it comes last, and stays.
        signal_to(child(host.supervisor(), "polylane-svc"), "KILL");
        until("the log is small", || size() <= 1 << 20);
        until("and says why", || fs::read_to_string(&log).is_ok_and(|l| l.contains("again")));
    }
    fs::write(at.join("file"), "x").expect("it serves");
    succeeds(&["umount", text(&at)]);
    assert!(!log.exists(), "it goes with its lane");
    host.assert_nothing_is_left();

    let said = host.path("said");
    flood(&said);
    let stderr = fs::File::options().append(true).open(&said).expect("open");
    let run = ["run", "--mem", "--size", "64M", "--", "sh", "-c", "echo word >&2"];
    let mut command = Command::new(binary());
    let status = command.args(run).stdin(Stdio::null()).stderr(stderr).status().expect("a run");
    assert!(status.success());
    let said = fs::read_to_string(&said).expect("read");
    assert!(said.len() >= 2 << 20 && said.contains("word\n"), "{}", said.len());
}

/// COMMAND has each lane at its path, and nothing of them is left after it, however it ends.
#[test]
fn a_run_has_several_lanes_each_at_its_path() {
    if unavailable("a_run_has_several_lanes_each_at_its_path") {
        return;
    }
    let host = Host::new();
    let (pool, dir) = (host.pool("several"), host.dir("d"));
    succeeds(&["pool", "create", &pool]);
    let [one, two, three] = ["1.img", "2.img", "3.img"].map(|name| host.path(name));
    let [a, b, c] = ["/srv/a", "/srv/b", "/opt/c"];
    let several = |pool: &str, script: &str| {
        let mut words = vec!["run", "--pool", pool, "--size", "64M"];
        words.extend(["--volume", text(&one), "--at", a, "--volume", text(&two), "--at", b]);
        words.extend(["--dir", text(&dir), "--at", c, "--", "sh", "-euc", script]);
        polylane(&words)
    };
    let script = "echo 1 >/srv/a/f; echo 2 >/srv/b/f; echo 3 >/opt/c/f; ls /srv";
    let own = format!("{pool}-own");
    for pool in [&pool, &own] {
        let output = several(pool, script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(output.stdout, b"a\nb\n");
        let output = several(pool, "cat /srv/a/f /srv/b/f /opt/c/f; exit 7");
        assert_eq!(output.status.code(), Some(7), "COMMAND's");
        assert_eq!(output.stdout, b"1\n2\n3\n", "what was written is there");
    }
    assert_eq!(fs::read(dir.join("f")).expect("the directory's"), b"3\n");
    [&one, &two].iter().for_each(|volume| polylane_tests::volume::assert_clean(volume));
    host.assert_nothing_is_left();

    // One that cannot be had ends the run before COMMAND.
    let words = ["run", "--volume", text(&one), "--at", a, "--dir", "/etc/passwd", "--at", b];
    let (status, line) = refused(&[&words[..], &["--", "touch", text(&host.path("ran"))]].concat());
    assert!(status == 1 && line.contains("/etc/passwd"), "{line}");
    assert!(!host.path("ran").exists());
    // In pairs: one volume has one opener.
    let words = ["run", "--volume", text(&one), "--at", a, "--volume", text(&one), "--at", b];
    let (status, line) = refused(&[&words[..], &["--", "true"]].concat());
    assert!(status == 1 && line.contains("1.img"), "{line}");

    // A run that is killed takes all of its lanes with it.
    let mut command = Command::new(binary());
    command.args(["run", "--pool", &pool, "--size", "64M", "--volume", text(&one), "--at", a]);
    command.args(["--volume", text(&three), "--at", b, "--", "sh", "-c"]);
    command.arg("echo x >/srv/b/g; sync; echo >$0; sleep 60").arg(text(&host.path("ready")));
    let mut running = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("a run");
    until("it runs", || host.path("ready").exists());
    running.kill().expect("kill");
    running.wait().expect("wait");
    until("the pool can be removed", || polylane(&["pool", "rm", &pool]).status.success());
    let words = ["run", "--volume", text(&three), "--at", "/srv", "--", "cat", "/srv/g"];
    until("the volume is free", || polylane(&words).stdout == b"x\n");
    host.assert_nothing_is_left();
}
