//! Commands, runtimes and services that are killed leave nothing behind; containers go on.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::binary;
use polylane_tests::host::{children, service_below, text, until};
use polylane_tests::killed::{self, STEPS};

use super::{Engine, kill, parent_of};

fn service_now(engine: &Engine) -> Option<u32> {
    let lanes = engine.host.mounts();
    let supervisor = lanes[0]["supervisor"].as_u64().expect("a number") as u32;
    service_below(supervisor)
}

fn service_of(engine: &Engine) -> u32 {
    service_now(engine).expect("a service")
}

/// Making one may take long, as where an image is copied to a cluster.
#[test]
fn a_name_is_taken_as_long_as_a_command_makes_its_container() {
    let Some(engine) = Engine::new("a_name_is_taken_as_long_as_a_command_makes_its_container")
    else {
        return;
    };
    let create = ["container", "create", "--name", "new", "busybox", "true"];
    engine.succeeds(&create);
    let id = engine.one("new")["id"].as_str().expect("an identity").to_string();
    let place = engine.host.path("state/polylane/containers").join(&id);
    // As if its command had come only so far.
    let lock = fs::File::open(place.join("lock")).expect("its lock");
    lock.lock().expect("free");
    let record = fs::read_to_string(place.join("record.json")).expect("its record");
    let making = record.replace("\"ready\"", "\"making\"");
    assert_ne!(making, record);
    fs::write(place.join("record.json"), making).expect("write");
    let (status, said) = engine.refused(&create);
    assert!(status == 1 && said.contains("new: a container has that name"), "{status} {said}");
    assert!(engine.containers().is_empty(), "it is not there yet");
    drop(lock);
    engine.succeeds(&create);
    assert_ne!(engine.one("new")["id"], id.as_str(), "what was killed is removed");
    engine.succeeds(&["container", "rm", "new"]);
    engine.assert_nothing_is_left(&[id]);
}

#[test]
fn what_a_kill_leaves_the_next_command_uses_or_removes() {
    let Some(engine) = Engine::new("what_a_kill_leaves_the_next_command_uses_or_removes") else {
        return;
    };
    let run = [
        "container",
        "run",
        "-d",
        "--name",
        "k",
        "busybox",
        "sh",
        "-c",
        "while :; do sleep 0.1; done",
    ];
    // The engine, at any moment of its work.
    let mut ids = Vec::new();
    for step in 0..16_u64 {
        let mut child = engine
            .host
            .command(&run)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        std::thread::sleep(std::time::Duration::from_millis(step * 25));
        let _ = child.kill();
        let _ = child.wait();
        // Who waits for it goes on, and is another process.
        let listed = engine.containers();
        ids.extend(listed.iter().filter_map(|one| one["id"].as_str().map(str::to_string)));
        if !listed.is_empty() {
            engine.succeeds(&["container", "rm", "-f", "k"]);
        }
        let left = || {
            engine.containers();
            engine.left()
        };
        until(&format!("step {step}: nothing is left: {:?}", left()), || left().is_empty());
    }
    assert!(!ids.is_empty(), "none of them came far enough");
    // Who waits for a container: it runs on, and what it says is kept.
    engine.succeeds(&run);
    let pid = engine.pid("k");
    let watcher = parent_of(pid);
    kill(watcher);
    assert_eq!(engine.pid("k"), pid);
    engine.succeeds(&["container", "exec", "k", "true"]);
    engine.succeeds(&["container", "stop", "-t", "0", "k"]);
    assert_eq!(engine.one("k")["state"], "exited");
    engine.succeeds(&["container", "start", "k"]);
    // Its service: the container goes on.
    let pid = engine.pid("k");
    kill(service_of(&engine));
    let words = ["container", "exec", "k", "sh", "-c", "echo x >/after && cat /after"];
    assert_eq!(engine.succeeds(&words), "x\n");
    assert_eq!(engine.pid("k"), pid);
    // Its first process.
    kill(engine.pid("k"));
    until("it has ended", || engine.one("k")["exit_status"] == 137);
    ids.extend(engine.one("k")["id"].as_str().map(str::to_string));
    engine.succeeds(&["container", "rm", "k"]);
    engine.assert_nothing_is_left(&ids);
}

/// A container's programs, by FUSE and with the library: one that does exactly what it should while
/// its service is killed at random moments. What it has synced is there afterwards.
const EXACT: &str = r#"
exec 3</etc/passwd 4>>/log
n=0
until [ -e /stop ]; do
    n=$((n + 1))
    echo $n >/f$n && sync /f$n && cat /f$n >/dev/null || echo bad $n >>/bad
    mv /f$n /g$n && rm /g$n || echo moved $n >>/bad
    echo $n >&4 && sync /log || { echo appended $n >>/bad; exec 4>>/log; }
    read line <&3 || { echo closed $n >>/bad; }
    exec 3</etc/passwd
    ls /bin >/dev/null || echo listed $n >>/bad
done
echo n $n; cat /bad 2>/dev/null; exit 9
"#;

#[test]
fn a_container_goes_on_when_its_service_is_killed() {
    let name = "a_container_goes_on_when_its_service_is_killed";
    let Some(engine) = Engine::new(name) else { return };
    for applet in ["mv", "sync", "touch"] {
        let link = engine.host.path("busybox/bin").join(applet);
        std::os::unix::fs::symlink("busybox", link).expect("link");
    }
    engine.succeeds(&["image", "import", text(&engine.host.path("busybox")), "exact"]);
    engine.succeeds(&["container", "run", "-d", "--name", "e", "exact", "sh", "-c", EXACT]);
    let pid = engine.pid("e");
    let mut rng = polylane_base::rng::Rng::new(u64::from(std::process::id()));
    for round in 0..8 {
        std::thread::sleep(std::time::Duration::from_millis(100 + rng.below(600)));
        let before = service_of(&engine);
        kill(before);
        until("there is another service", || service_now(&engine).is_some_and(|it| it != before));
        assert_eq!(engine.pid("e"), pid, "round {round}");
    }
    engine.succeeds(&["container", "exec", "e", "touch", "/stop"]);
    until("it ends", || engine.one("e")["state"] == "exited");
    let said = engine.succeeds(&["container", "logs", "e"]);
    // Before it: what programs said of names and bytes that went with a service.
    let (before, rest) = said.split_once("\nn ").unwrap_or(("", said.trim_start_matches("n ")));
    let (first, rest) = rest.split_once('\n').expect("a line");
    let count: u64 = first.parse().unwrap_or_else(|_| panic!("a number: {said}"));
    assert!(before.lines().count() < 100, "{before}");
    // The shell's own open log lost bytes when the kill came between its write and its sync.
    let lost = |line: &str| ["bad", "appended", "moved"].iter().any(|what| line.starts_with(what));
    assert!(rest.lines().all(lost) && rest.lines().count() < 40, "{rest}");
    assert!(count > 20, "{count} rounds only");
    assert_eq!(engine.one("e")["exit_status"], 9);
    engine.succeeds(&["container", "rm", "e"]);
    engine.assert_nothing_is_left(&[]);
}

/// A runtime that is killed as long after its start as the first line of a file says, in seconds.
const KILLED: &str = r#"#!/bin/sh
case " $* " in *" run "*) ;; *) exec runc "$@" ;; esac
runc "$@" &
pid=$!
sleep "$(cat "$0.after")"
kill -9 "$pid" 2>/dev/null
wait "$pid"
"#;

/// The runtime, killed at any moment of a start: one line or a container that runs, and nothing is
/// left once it is removed.
#[test]
fn a_runtime_that_is_killed_leaves_nothing_behind() {
    let name = "a_runtime_that_is_killed_leaves_nothing_behind";
    let Some(engine) = Engine::new(name) else { return };
    let program = engine.host.program("killed", KILLED);
    let (mut refused, mut ran) = (0, 0);
    let mut ids = Vec::new();
    for step in 0..14_u64 {
        let after = format!("{:.3}\n", (step * step) as f64 / 400.0);
        fs::write(engine.host.path("killed.after"), &after).expect("write");
        let words = ["container", "create", "--name", "k", "--runtime", text(&program)];
        engine.succeeds(&[&words[..], &["busybox", "sleep", "1000"]].concat());
        ids.extend(engine.one("k")["id"].as_str().map(str::to_string));
        let output = engine.run(&["container", "start", "k"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => ran += 1,
            false => {
                refused += 1;
                assert_eq!(said.matches('\n').count(), 1, "{after}: {said}");
            }
        }
        engine.succeeds(&["container", "rm", "-f", "k"]);
        engine.assert_nothing_is_left(&ids);
    }
    assert!(refused > 1, "{refused} starts were cut off, {ran} were not");
}

/// A container that is run, and removed, while any of its processes is killed before any of its
/// steps: engine, watcher, runtime, the commands that mount its lane, and what serves it.
struct Steps<'a> {
    engine: &'a Engine,
    log: PathBuf,
    ids: Vec<String>,
    rounds: usize,
    hits: usize,
}

const RUN_K: [&str; 8] = ["container", "run", "-d", "--name", "k", "busybox", "sleep", "1000"];
const REMOVE_K: [&str; 4] = ["container", "rm", "-f", "k"];

impl Steps<'_> {
    /// Traces what the words start, and these processes, until that has ended or `done`.
    fn trace(&self, mut tracer: Command, pids: &[u32], words: &[&str], done: impl Fn() -> bool) {
        for pid in pids {
            tracer.args(["-p", &pid.to_string()]);
        }
        tracer.arg(binary()).args(words).env("XDG_STATE_HOME", self.engine.host.path("state"));
        let mut tracer = tracer.spawn().expect("strace");
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && !done() && !killed::ends_within(&mut tracer, TICK) {}
        killed::end_tracer(tracer);
    }

    /// The process that runs when this is asked for.
    fn processes(&self) -> Vec<u32> {
        let lanes = self.engine.host.mounts();
        let lane = lanes.iter().filter_map(|lane| lane["supervisor"].as_u64());
        let supervisors: Vec<u32> = lane.map(|pid| pid as u32).collect();
        let below = supervisors.iter().filter_map(|pid| children(*pid)).flatten();
        let below: Vec<u32> = below.collect();
        let watcher = parent_of(self.engine.pid("k"));
        supervisors.into_iter().chain(below).chain([watcher]).collect()
    }

    fn run_whole(&self) {
        self.engine.succeeds(&RUN_K);
    }

    /// The next commands make something of whatever was left, and it can be removed.
    fn is_usable(&mut self, shown: &str) {
        let hits = killed::killed_in(&self.log);
        let shown = format!("round {}, {hits} killed: {shown}", self.rounds);
        let listed = self.engine.containers();
        self.ids.extend(listed.iter().filter_map(|one| one["id"].as_str().map(str::to_string)));
        if self.engine.one("k")["state"] == "running" {
            let output = self.engine.run(&["container", "exec", "k", "true"]);
            // One that has just been removed is not there, or its first process has ended.
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.lines().count() <= 1, "{shown}: {said}");
        }
        if !self.engine.containers().is_empty() {
            self.engine.succeeds(&REMOVE_K);
        }
        let left = || {
            self.engine.containers();
            self.engine.left()
        };
        until(&format!("{shown}: nothing is left: {:?}", left()), || left().is_empty());
        self.engine.succeeds(&["container", "run", "--rm", "--name", "k", "busybox", "true"]);
        self.rounds += 1;
        self.hits += usize::from(hits > 0);
    }
}

const TICK: Duration = Duration::from_millis(50);

#[test]
fn a_container_of_which_any_process_was_killed_at_a_step_is_run_or_removed() {
    let name = "a_container_of_which_any_process_was_killed_at_a_step_is_run_or_removed";
    if killed::cannot_trace(name) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let log = engine.host.path("log");
    let mut steps = Steps { engine: &engine, log, ids: Vec::new(), rounds: 0, hits: 0 };
    let seed = killed::seed();
    let random = &mut polylane_base::rng::Rng::new(seed);
    let runs = || engine.one("k")["state"] == "running";
    steps.trace(killed::tracer(&steps.log, STEPS), &[], &RUN_K, runs);
    let all = killed::steps_in(&steps.log);
    assert!(all.len() >= 60, "{all:?}");
    steps.is_usable("nothing");
    for kill in killed::chosen(all, 12, random) {
        steps.trace(kill.tracer(&steps.log), &[], &RUN_K, runs);
        steps.is_usable(&format!("seed {seed}: run, {kill:?}"));
    }
    steps.run_whole();
    steps.trace(killed::tracer(&steps.log, STEPS), &steps.processes(), &REMOVE_K, || false);
    let all = killed::steps_in(&steps.log);
    assert!(all.len() >= 20, "{all:?}");
    steps.is_usable("nothing, rm");
    for kill in killed::chosen(all, 6, random) {
        steps.run_whole();
        steps.trace(kill.tracer(&steps.log), &steps.processes(), &REMOVE_K, || false);
        steps.is_usable(&format!("seed {seed}: rm, {kill:?}"));
    }
    let Steps { ids, rounds, hits, .. } = steps;
    println!("seed {seed}: in {hits} of {rounds} rounds a process was killed");
    assert!(4 * hits >= rounds, "seed {seed}: {hits} of {rounds}");
    engine.assert_nothing_is_left(&ids);
}
