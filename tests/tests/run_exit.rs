//! `polylane run`: exit statuses, and bad input as one clear line with nothing left behind.

use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, assert_nothing_remains, no_library};
use polylane_tests::unavailable;

#[test]
fn the_status_is_commands_own() {
    if unavailable("the_status_is_commands_own") {
        return;
    }
    for (script, status) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -SEGV $$", 128 + 11),
        ("kill -KILL $$", 128 + 9),
    ] {
        let output = Run::new("--mem --no-preload").script(script).output();
        assert_eq!(output.status.code(), Some(status), "{script}");
    }
}

/// Nothing that looked at the tenant keeps its mounts there: the kernel would be waited for.
#[test]
fn a_run_ends_with_its_command_whoever_came_by_the_library() {
    let name = "a_run_ends_with_its_command_whoever_came_by_the_library";
    if unavailable(name) || no_library(name) {
        return;
    }
    let script = ": > /lane/f; : > /lane/f; read line < /lane/f; sh -c ': > /lane/g'; exit 3";
    let start = Instant::now();
    let output = Run::new("--mem").env("POLYLANE_PATIENCE", "0").script(script).output();
    assert_eq!(output.status.code(), Some(3));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?} for a few files");
}

#[test]
fn a_command_that_cannot_start_is_126_or_127() {
    if unavailable("a_command_that_cannot_start_is_126_or_127") {
        return;
    }
    for (command, status, word) in [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("/no/such/file", 127, "/no/such/file: command not found"),
        ("/etc/passwd", 126, "/etc/passwd: cannot execute it"),
        ("/", 126, "/: cannot execute it"),
    ] {
        let (code, line) = Run::new("--mem --no-preload --").arg(command).refusal();
        assert_eq!(code, status, "{line}");
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (options, word) in [
        ("--mem --no-such-option -- true", "--no-such-option"),
        ("--mem", "COMMAND"),
        ("--mem --", "COMMAND"),
        ("--volume v --mem -- true", "--mem"),
        ("--volume v --size 1M -- true", "--size"),
        ("--mem true", "'true'"),
        ("--mem --dir /tmp -- true", "--dir"),
        ("--mem --root --at /x -- true", "--at"),
        ("--mem --at relative -- true", "relative"),
        ("--mem --at /a/../b -- true", "/a/../b"),
        ("--mem --at / -- true", "--root"),
        ("--mem --memory 1M -- true", "--memory"),
        ("--mem --memory 0 -- true", "--memory"),
        ("--mem --memory lots -- true", "lots"),
        ("--mem --size 12 -- true", "--size"),
        ("--mem --cpus 0-x -- true", "0-x"),
        ("--mem --cpus 1000 -- true", "1000"),
        ("--mem --weight 0 -- true", "--weight"),
        ("--mem --weight 10001 -- true", "--weight"),
        ("--dir /tmp --size 1G -- true", "--size"),
        ("--ceph a/b -- true", "--ceph"),
        ("--ceph a --size 1G -- true", "--size"),
        ("--timeout 3s --mem -- true", "--ceph"),
        ("--mem --cache=none -- true", "--cache: only a volume has one"),
        ("--mem --medium file -- true", "--medium: only a volume has one"),
        ("--dir /tmp --medium mem -- true", "--medium mem: keeps"),
        ("--mem --qos ledger -- true", "--qos: lanes share the devices"),
        ("--mem --kernel-fs ext4 -- true", "'--mem' cannot be used with '--kernel-fs"),
    ] {
        let (status, line) = Run::new(options).refusal();
        assert_eq!(status, 2, "{options}: {line}");
        let expected = word.trim_end_matches(" or --dir");
        assert!(line.contains(expected), "{options}: {line}");
    }
    let (status, line) = Run::named("a/b", "--mem -- true").refusal();
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("a/b"), "{line}");
}

#[test]
fn what_the_host_refuses_is_one_line_and_status_1() {
    if unavailable("what_the_host_refuses_is_one_line_and_status_1") {
        return;
    }
    for (options, word) in [
        ("--mem --no-preload --at /etc/passwd -- true", "/etc/passwd"),
        ("--mem --no-preload --at /etc/passwd/below -- true", "/etc/passwd"),
        ("--dir /proc/no/such/dir -- true", "/proc/no/such/dir"),
        ("--dir /etc/passwd -- true", "/etc/passwd"),
    ] {
        let (status, line) = Run::new(options).refusal();
        assert_eq!(status, 1, "{options}: {line}");
        assert!(line.contains(word), "{options}: {line}");
    }
}

#[test]
fn a_host_without_fuse_is_told() {
    if unavailable("a_host_without_fuse_is_told") {
        return;
    }
    // In a mount namespace of its own, the device is hidden under something that is none, or is not
    // there at all.
    for (hide, word) in [
        ("mount --bind /dev/null /dev/fuse", "/dev/fuse"),
        ("mount -t tmpfs tmpfs /dev && : >/dev/null", "/dev/fuse"),
    ] {
        let script = format!("{hide} && exec \"$@\" run --pool nofuse --mem -- true");
        let output = std::process::Command::new("unshare")
            .args(["--mount", "--propagation=private", "sh", "-c", &script, "sh"])
            .arg(polylane_tests::binary())
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        let own: Vec<&str> = said.lines().filter(|line| line.starts_with("polylane:")).collect();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(own.iter().any(|line| line.contains(word)), "{said}");
        assert_nothing_remains("nofuse");
    }
}

#[test]
fn a_pool_name_is_used_once() {
    if unavailable("a_pool_name_is_used_once") {
        return;
    }
    let mut first = Run::new("--mem --no-preload").script("echo up; exec sleep 1000").start();
    assert_eq!(first.line(), "up");
    let pool = first.pool.clone();
    let again = std::process::Command::new(polylane_tests::binary())
        .args(["run", "--pool", &pool, "--mem", "--no-preload", "--", "true"])
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&format!("pool '{pool}' is in use")), "{said}");
    first.signal("TERM");
    assert_eq!(first.end().code(), Some(128 + 15));
    assert!(Run::named(&pool, "--mem --no-preload").script("true").output().status.success());
}

#[test]
fn commands_without_their_words_and_completions() {
    let polylane = |words: &[&str]| {
        let output = std::process::Command::new(polylane_tests::binary())
            .args(words)
            .output()
            .expect("polylane");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for command in ["volume", "attach", "container", "top", "umount"] {
        assert_eq!(polylane(&[command]).0, Some(2), "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let (status, script) = polylane(&["completions", shell]);
        assert_eq!(status, Some(0));
        assert!(script.contains("no-preload"), "{shell}");
        assert!(!script.contains("control"), "{shell}: hidden commands stay hidden");
    }
    let (_, findings) = polylane(&["doctor", "--json"]);
    assert!(findings.contains("\"fuse-resend\""), "{findings}");
    let findings: serde_json::Value = serde_json::from_str(&findings).expect("JSON");
    let attach = findings.as_array().and_then(|all| all.iter().find(|one| one["name"] == "attach"));
    let found = attach.and_then(|one| one["found"].as_str()).expect("what auto takes");
    // A front end that is passed over is named with what it lacks.
    for (better, taken) in [("ublk", "nbd"), ("ublk", "loop"), ("nbd", "loop"), ("loop", "none")] {
        assert!(
            !found.starts_with(taken) || found.contains(&format!("; not {better}: ")),
            "{found}"
        );
    }
}
