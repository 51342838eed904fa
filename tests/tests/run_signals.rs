//! Signals: who gets them, how often, and that the end is always the end.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, assert_nothing_remains, signal_to};
use polylane_tests::{lacks, unavailable};

const OPTIONS: &str = "--mem --no-preload";

#[test]
fn signals_to_the_supervisor_reach_command() {
    if unavailable("signals_to_the_supervisor_reach_command") {
        return;
    }
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        let mut run = Run::new(OPTIONS).script("echo up; exec sleep 1000").start();
        assert_eq!(run.line(), "up");
        run.signal(signal);
        assert_eq!(run.end().code(), Some(status), "{signal}");
    }
}

#[test]
fn a_caller_that_ignores_signals_hears_how_command_ended() {
    let name = "a_caller_that_ignores_signals_hears_how_command_ended";
    if unavailable(name) {
        return;
    }
    // By the first one the kernel tells a process nothing of how its children end.
    for ignored in ["--ignore-signal=CHLD", "--ignore-signal"] {
        let run = Run::new(OPTIONS).script("echo up >/lane/file && (exit 2); exit $(($? + 1))");
        let output = run.by(&[ignored]).output();
        assert_eq!(output.status.code(), Some(3), "{ignored}: {output:?}");
    }
}

#[test]
fn command_may_handle_them_and_end_as_it_likes() {
    if unavailable("command_may_handle_them_and_end_as_it_likes") {
        return;
    }
    let script = "trap 'echo got; exit 3' TERM; trap 'echo one' USR1; echo up; \
                  while :; do sleep 0.05; done";
    let mut run = Run::new(OPTIONS).script(script).start();
    assert_eq!(run.line(), "up");
    run.signal("USR1");
    assert_eq!(run.line(), "one");
    run.signal("TERM");
    assert_eq!(run.line(), "got");
    assert_eq!(run.end().code(), Some(3));
}

#[test]
fn a_command_that_does_not_end_is_killed_after_five_seconds() {
    if unavailable("a_command_that_does_not_end_is_killed_after_five_seconds") {
        return;
    }
    let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let mut run = Run::new(OPTIONS).script(script).start();
    assert_eq!(run.line(), "up");
    let start = Instant::now();
    run.signal("TERM");
    assert_eq!(run.end().code(), Some(128 + 9));
    let took = start.elapsed();
    assert!(took > Duration::from_secs(4), "it gets its time, not {took:?}");
}

#[test]
fn what_command_leaves_running_goes_with_it() {
    if unavailable("what_command_leaves_running_goes_with_it") {
        return;
    }
    // A daemon with a session of its own that ignores what it can, and holds a file of the lane
    // open.
    let script = "setsid sh -c 'trap \"\" TERM HUP INT; exec 3>/lane/open; \
                  while :; do sleep 1; done' \
                  >/dev/null 2>&1 & sleep 0.3; exit 4";
    assert_eq!(Run::new(OPTIONS).script(script).output().status.code(), Some(4));
}

#[test]
fn a_killed_supervisor_takes_everything_along() {
    if unavailable("a_killed_supervisor_takes_everything_along") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let script = "setsid sleep 1000 & echo kept > /lane/file; echo up; exec sleep 1000";
    let run = Run::new("--no-preload --memory 64M --cpus 0 --dir").arg(dir.path());
    let mut run = run.script(script).start();
    assert_eq!(run.line(), "up");
    run.signal("KILL");
    run.end();
    let kept = std::fs::read_to_string(dir.path().join("file")).expect("what was written");
    assert_eq!(kept, "kept\n", "the service flushes before it goes");
}

#[test]
fn a_supervisor_killed_at_any_moment_leaves_nothing() {
    if unavailable("a_supervisor_killed_at_any_moment_leaves_nothing") {
        return;
    }
    // A run takes some 20 ms to come up.
    for step in 0..40 {
        let options = "--mem --no-preload --memory 64M --cpus 0";
        let run = Run::new(options).script("echo x > /lane/x; exec sleep 1000").start();
        std::thread::sleep(Duration::from_micros(step * 750));
        run.signal("KILL");
        run.end();
    }
}

#[test]
fn a_service_that_does_not_answer_is_cut_off() {
    if unavailable("a_service_that_does_not_answer_is_cut_off") {
        return;
    }
    let script = "echo up; while :; do ls -l /lane >/dev/null; done";
    let mut run = Run::new(OPTIONS).script(script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "STOP");
    std::thread::sleep(Duration::from_millis(300));
    run.signal("TERM");
    assert_eq!(run.end().code(), Some(128 + 15));
}

#[test]
fn nohup_holds() {
    if unavailable("nohup_holds") {
        return;
    }
    let mut run = Command::new("nohup")
        .arg(polylane_tests::binary())
        .args(["run", "--pool", "test-nohup", "--mem", "--no-preload", "--"])
        .args(["sh", "-c", "echo up; sleep 1; echo end"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("nohup");
    let mut output = run.stdout.take().expect("piped");
    let mut up = [0; 3];
    output.read_exact(&mut up).expect("up");
    signal_to(run.id(), "HUP");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("rest");
    assert_eq!((&up, rest.as_str()), (b"up\n", "end\n"));
    assert!(run.wait().expect("wait").success());
    assert_nothing_remains("test-nohup");
}

/// Runs a script in a lane on a terminal of its own. Types each of `keys` as a person would: a
/// moment after the terminal showed the text before it. What the terminal showed.
fn on_a_terminal(pool: &str, script: &str, keys: &[(&str, &[u8])]) -> String {
    let file = tempfile::tempdir().expect("tempdir");
    let path = file.path().join("script");
    std::fs::write(&path, script).expect("write");
    let line = format!(
        "{} run --pool {pool} --mem --no-preload -- sh {}",
        polylane_tests::binary().display(),
        path.display()
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1)");
    let mut input = terminal.stdin.take().expect("piped");
    let mut output = terminal.stdout.take().expect("piped");
    let mut shown = Vec::new();
    let (mut left, mut from) = (keys.iter(), 0);
    let mut next = left.next();
    let mut buffer = [0; 256];
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..count]);
        while let Some((text, key)) = next
            && let Some(at) = String::from_utf8_lossy(&shown[from..]).find(text)
        {
            std::thread::sleep(Duration::from_millis(500));
            input.write_all(key).expect("type");
            from += at + text.len();
            next = left.next();
        }
    }
    terminal.wait().expect("wait");
    assert_nothing_remains(pool);
    String::from_utf8_lossy(&shown).replace('\r', "")
}

#[test]
fn control_c_reaches_command_once() {
    let name = "control_c_reaches_command_once";
    if unavailable(name) || lacks(name, &["script"]) {
        return;
    }
    let script = "trap 'echo got' INT\necho up\nfor i in 1 2 3 4 5; do sleep 0.4; done\necho end\n";
    let shown = on_a_terminal("test-control-c", script, &[("up", b"\x03")]);
    assert_eq!(shown.matches("got").count(), 1, "{shown}");
    assert!(shown.ends_with("end\n"), "COMMAND decides whether it goes on: {shown}");
}

#[test]
fn an_interactive_shell_has_job_control() {
    let name = "an_interactive_shell_has_job_control";
    if unavailable(name) || lacks(name, &["script", "bash"]) {
        return;
    }
    let script = "exec bash --norc -i\n";
    let typed: [(&str, &[u8]); 5] = [
        ("up", b"echo sleeping-$((1)); sleep 100\n"),
        ("sleeping-1", b"\x1a"),
        ("Stopped", b"echo stopped-$(jobs -s | wc -l)\n"),
        ("stopped-1", b"kill -KILL %1; sleep 0.3\n"),
        ("Killed", b"exit 5\n"),
    ];
    let shown = on_a_terminal("test-job-control", &format!("echo up\n{script}"), &typed);
    assert!(shown.contains("stopped-1"), "{shown}");
    assert!(!shown.contains("no job control"), "{shown}");
}
