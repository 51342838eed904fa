//! kill -9 of a command before each of its steps: the next command uses or removes what is left.
//!
//! The steps are the command's calls of the kernel that change something or tell another process
//! something, all of them, in their order: strace lists them once, and then kills the command at
//! each. The steps of all processes of a lane are too many for each run of the tests: some are
//! tried each time, all of them in parts with `POLYLANE_STEPS=1/4` to `4/4`, or others with another
//! `POLYLANE_SEED`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::daemon::{self, Daemon};
use polylane_tests::host::{Host, child, polylane, succeeds, text, until};
use polylane_tests::killed::{
    self, Kill, STEPS, chosen, end_tracer, ends_within, killed_in, steps_in, tracer,
};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, http, unavailable};

/// The steps of a command that comes to its end: each one's call, and of how many such it is.
fn steps_of(host: &Host, arguments: &[&str]) -> Vec<(String, usize)> {
    let log = host.path("steps");
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", text(&log), "-e", &format!("trace={STEPS}")]);
    command.arg(binary()).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("strace");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    steps_of_one(&log)
}

/// The steps in a log of strace's of one process.
fn steps_of_one(log: &Path) -> Vec<(String, usize)> {
    let mut steps: Vec<(String, usize)> = Vec::new();
    for line in fs::read_to_string(log).expect("a log").lines() {
        let Some((call, _)) = line.split_once('(').filter(|(call, _)| !call.contains(' ')) else {
            continue;
        };
        let former = steps.iter().filter(|(other, _)| other == call).count();
        steps.push((call.to_string(), former + 1));
    }
    steps
}

/// Kills a command before this step, if it comes to it.
fn kill_before((call, count): &(String, usize), arguments: &[&str]) {
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
    command.arg(format!("inject={call}:signal=KILL:when={count}"));
    command.arg(binary()).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("strace");
    let said = String::from_utf8_lossy(&output.stderr);
    // A refusal is none of this test's.
    assert!(!said.contains("polylane:"), "{arguments:?}: {said}");
}

/// Kills the command at each step; before each round `begin` makes what it needs, and afterwards
/// `check` is told the step. How many steps there are.
fn at_each_step(host: &Host, arguments: &[&str], begin: impl Fn(), check: impl Fn(usize)) -> usize {
    begin();
    let steps = steps_of(host, arguments);
    check(0);
    for (number, step) in steps.iter().enumerate() {
        begin();
        kill_before(step, arguments);
        check(number + 1);
    }
    steps.len()
}

fn cannot_run(test: &str) -> bool {
    killed::cannot_trace(test) || unavailable(test)
}

/// Files of a pool in the run-time directory.
fn left_of(pool: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/polylane").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(pool)).collect()
}

fn assert_no_file_is_left(pool: &str, step: usize) {
    // A supervisor's last files go when its command is told, or a moment later.
    polylane_tests::host::until("no file is left", || left_of(pool).is_empty());
    assert_eq!(left_of(pool), Vec::<String>::new(), "step {step}");
}

#[test]
fn a_pool_whose_making_was_killed_is_made_and_one_whose_removal_was_is_removed() {
    if cannot_run("a_pool_whose_making_was_killed_is_made_and_one_whose_removal_was_is_removed") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("steps");
    let exists = || polylane(&["pool", "info", "--json", &pool]).status.success();
    let create = ["pool", "create", "--memory", "256M", &pool];
    let steps = at_each_step(
        &host,
        &create,
        || drop(succeeds(&["pool", "rm", "--if-exists", &pool])),
        |step| {
            if !exists() {
                succeeds(&create);
            }
            assert!(succeeds(&["pool", "info", "--json", &pool]).contains("268435456"), "{step}");
            succeeds(&["pool", "rm", &pool]);
            assert_no_file_is_left(&pool, step);
        },
    );
    assert!(steps >= 4, "{steps}");
    let set = ["pool", "set", "--weight", "300", &pool];
    let steps = at_each_step(
        &host,
        &set,
        || {
            if !exists() {
                drop(succeeds(&create))
            }
        },
        |step| {
            let weight = |weight: &str| {
                let info = succeeds(&["pool", "info", "--json", &pool]).replace([' ', '\n'], "");
                info.contains(&format!("\"weight\":{weight}"))
            };
            succeeds(&set);
            assert!(weight("300"), "{step}");
            succeeds(&["pool", "rm", &pool]);
        },
    );
    assert!(steps >= 4, "{steps}");
    let steps = at_each_step(
        &host,
        &["pool", "rm", &pool],
        || {
            if !exists() {
                drop(succeeds(&create))
            }
        },
        |step| {
            succeeds(&["pool", "rm", "--if-exists", &pool]);
            assert!(!exists(), "{step}");
            assert_no_file_is_left(&pool, step);
        },
    );
    assert!(steps >= 3, "{steps}");
}

/// A lane of a volume, whose file tells whether all was kept.
#[test]
fn a_lane_whose_command_was_killed_is_mounted_and_unmounted() {
    if cannot_run("a_lane_whose_command_was_killed_is_mounted_and_unmounted") {
        return;
    }
    let host = Host::new();
    let (pool, at, volume) = (host.pool("lane"), host.dir("m"), host.path("v.img"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
    let file = at.join("file");
    let mount = ["mount", "--once", "--pool", &pool, text(&volume), text(&at)];
    let keeps = |step: usize| {
        succeeds(&mount);
        let former = fs::read_to_string(&file).unwrap_or_default();
        assert!(step == 0 || former == format!("{}", step - 1), "step {step}: {former}");
        fs::write(&file, step.to_string()).expect("the lane serves");
    };
    let gone = |step: usize| {
        succeeds(&["umount", "--all", text(&at)]);
        host.assert_nothing_is_left();
        assert_no_file_is_left(&format!("{pool}@"), step);
    };
    let steps = at_each_step(
        &host,
        &mount,
        || (),
        |step| {
            keeps(step);
            gone(step);
        },
    );
    assert!(steps >= 6, "{steps}");
    let forget = |path: &Path| {
        succeeds(&mount);
        fs::remove_file(path).expect("removed");
    };
    forget(&file);
    let steps = at_each_step(
        &host,
        &["umount", text(&at)],
        || drop(succeeds(&mount)),
        |step| {
            gone(step);
            keeps(step);
            gone(step);
        },
    );
    assert!(steps >= 3, "{steps}");
    forget(&file);
    let steps = at_each_step(
        &host,
        &["pool", "upgrade", &pool],
        || drop(succeeds(&mount)),
        |step| {
            keeps(step);
            succeeds(&["pool", "upgrade", &pool]);
            assert_eq!(fs::read_to_string(&file).expect("the lane serves"), step.to_string());
        },
    );
    assert!(steps >= 3, "{steps}");
    gone(0);
}

/// A lane that kills are tried on. The order of the steps is by a seed, `POLYLANE_SEED` or always
/// the same; a few are tried, or with `POLYLANE_STEPS=N/M` the Nth of M parts of all.
struct Tried {
    host: Host,
    pool: String,
    at: PathBuf,
    volume: PathBuf,
    random: Rng,
    seed: u64,
    rounds: usize,
    hits: usize,
}

impl Tried {
    fn new(word: &str) -> Tried {
        let host = Host::new();
        let (pool, at, volume) = (host.pool(word), host.dir("m"), host.path("v.img"));
        succeeds(&["pool", "create", &pool]);
        succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
        let seed = killed::seed();
        let random = Rng::new(seed);
        Tried { host, pool, at, volume, random, seed, rounds: 0, hits: 0 }
    }

    fn mount(&self) -> [&str; 6] {
        ["mount", "--once", "--pool", &self.pool, text(&self.volume), text(&self.at)]
    }

    fn log(&self) -> PathBuf {
        self.host.path("log")
    }

    /// The lane can be mounted, has what the former round wrote, takes more, and goes away.
    fn is_usable(&mut self, shown: &str) {
        let (round, hits) = (self.rounds, killed_in(&self.log()));
        let shown = format!("seed {}, round {round}, {hits} killed: {shown}", self.seed);
        // A removal may have come to its end: a lane whose processes were killed is not in use.
        let _ = polylane(&["pool", "create", &self.pool]);
        let output = polylane(&self.mount());
        assert!(output.status.success(), "{shown}: {output:?}");
        let former = fs::read_to_string(self.at.join("file")).unwrap_or_default();
        assert!(round == 0 || former == (round - 1).to_string(), "{shown}: {former:?}");
        fs::write(self.at.join("file"), round.to_string()).expect("the lane serves");
        let output = polylane(&["umount", "--all", text(&self.at)]);
        assert!(output.status.success(), "{shown}: {output:?}");
        self.host.assert_nothing_is_left();
        assert_no_file_is_left(&format!("{}@", self.pool), round);
        self.rounds += 1;
        self.hits += usize::from(hits > 0);
    }

    /// Some of the steps were come to: a test whose kills hit no process would show nothing.
    fn end(self) {
        let Tried { rounds, hits, seed, .. } = self;
        println!("seed {seed}: in {hits} of {rounds} rounds a process was killed");
        assert!(4 * hits >= rounds, "seed {seed}: {hits} of {rounds}");
        succeeds(&["pool", "rm", "--if-exists", &self.pool]);
        polylane_tests::volume::assert_clean(&self.volume);
    }

    /// Begins to mount under a tracer, which is then ended.
    fn start(&self, mut tracer: Command, limit: Duration) {
        tracer.arg(binary()).args(self.mount());
        let mut tracer = tracer.spawn().expect("strace");
        let end = Instant::now() + limit;
        let serves = || self.host.mounts().iter().any(|mount| mount["state"] == "serving");
        while Instant::now() < end && !serves() {
            if ends_within(&mut tracer, Duration::from_millis(50)) {
                break;
            }
        }
        end_tracer(tracer);
    }

    /// Runs a command while the processes of the lane are traced; whether it came to its end.
    fn finish(&self, mut tracer: Command, verb: &[&str]) -> bool {
        let supervisor = self.host.supervisor();
        let path = format!("/proc/{supervisor}/task/{supervisor}/children");
        let children = fs::read_to_string(path).expect("children");
        let own = supervisor.to_string();
        for pid in children.split_whitespace().chain([own.as_str()]) {
            tracer.args(["-p", pid]);
        }
        let tracer = tracer.spawn().expect("strace");
        until("strace is attached", || {
            let status = fs::read_to_string(format!("/proc/{supervisor}/status"));
            // One that has ended is traced no more.
            status.map_or(true, |status| !status.contains("TracerPid:\t0\n"))
        });
        let mut command = Command::new(binary());
        command.args(verb).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut command = command.spawn().expect("polylane");
        ends_within(&mut command, Duration::from_secs(3));
        end_tracer(tracer);
        ends_within(&mut command, Duration::from_secs(40))
    }
}

/// Each process of a lane that starts is killed before its nth call of a kind: command, supervisor,
/// holder, keeper, service, or several of them. The steps are those of a start that nothing
/// disturbs.
#[test]
fn a_lane_of_which_any_process_was_killed_while_it_started_is_mounted() {
    if cannot_run("a_lane_of_which_any_process_was_killed_while_it_started_is_mounted") {
        return;
    }
    let mut tried = Tried::new("starts");
    let begin = Instant::now();
    tried.start(tracer(&tried.log(), STEPS), Duration::from_secs(20));
    let limit = Duration::from_secs(1).max(2 * begin.elapsed());
    let steps = steps_in(&tried.log());
    assert!(steps.len() >= 40, "{steps:?}");
    tried.is_usable("nothing");
    for kill in chosen(steps, 24, &mut tried.random) {
        tried.start(kill.tracer(&tried.log()), limit);
        tried.is_usable(&format!("{kill:?}"));
    }
    tried.hits += 1;
    tried.end();
}

/// Each process of a lane is killed before its nth call of a kind while the lane is unmounted, its
/// service replaced, or its pool removed.
#[test]
fn a_lane_of_which_any_process_was_killed_while_it_ended_is_mounted_again() {
    if cannot_run("a_lane_of_which_any_process_was_killed_while_it_ended_is_mounted_again") {
        return;
    }
    let mut tried = Tried::new("ends");
    let (at, pool) = (text(&tried.at).to_string(), tried.pool.clone());
    for verb in [&["umount", &at][..], &["pool", "upgrade", &pool], &["pool", "rm", &pool]] {
        let output = polylane(&tried.mount());
        assert!(output.status.success(), "{output:?}");
        assert!(tried.finish(tracer(&tried.log(), STEPS), verb), "{verb:?}: it hangs");
        let steps = steps_in(&tried.log());
        tried.is_usable(&format!("{verb:?}"));
        tried.hits += 1;
        for kill in chosen(steps, 6, &mut tried.random) {
            let output = polylane(&tried.mount());
            assert!(output.status.success(), "{output:?}");
            let ended = tried.finish(kill.tracer(&tried.log()), verb);
            assert!(ended, "seed {}: {verb:?}, {kill:?}: it hangs", tried.seed);
            tried.is_usable(&format!("{verb:?}, {kill:?}"));
        }
    }
    tried.end();
}

/// A daemon that a tracer watches, in a session that the commands which it starts are in as well.
struct TracedDaemon {
    tracer: Child,
    socket: PathBuf,
}

impl TracedDaemon {
    /// Starts it; `kill`: before which call it is killed.
    fn start(tried: &Tried, kill: Option<&Kill>) -> TracedDaemon {
        let socket = tried.host.path("daemon.sock");
        let mut command = Command::new("setsid");
        command.args(["strace", "-q", "-o", text(&tried.log()), "-e"]);
        match kill {
            Some(Kill { call, count }) => {
                command.args([&format!("trace={call}"), "-e"]);
                command.arg(format!("inject={call}:signal=KILL:when={count}"));
            }
            None => drop(command.arg(format!("trace={STEPS}"))),
        }
        command.arg(binary()).args(["daemon", "--config", text(&tried.host.path("absent"))]);
        command.args(["--socket", text(&socket)]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        TracedDaemon { tracer: command.spawn().expect("strace"), socket }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.tracer.try_wait(), Ok(None))
    }

    /// The status of an answer, waited for until the change is made; `None`: it was killed.
    fn done(&mut self, method: &str, path: &str, body: &str) -> Option<u16> {
        let answer = loop {
            match http::try_request(&self.socket, method, path, body) {
                Some(answer) => break answer,
                None if self.has_ended() => return None,
                // It does not listen yet, or strace tells of its end a moment later.
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if answer.status != 202 {
            return Some(answer.status);
        }
        let task = format!("/v1/tasks/{}", answer.body["id"]);
        loop {
            let now = http::try_request(&self.socket, "GET", &task, "")?;
            match now.body["state"].as_str() {
                Some("running") => std::thread::sleep(Duration::from_millis(5)),
                Some("done") => return Some(200),
                _ => return Some(409),
            }
        }
    }

    /// Ends it, and waits until the commands have ended that it started.
    fn end(mut self) {
        if !self.has_ended() {
            signal_to(child(self.tracer.id(), "polylane"), "KILL");
        }
        self.tracer.wait().expect("ended");
        let session = self.tracer.id().to_string();
        let of_session = |stat: String| {
            // "PID (COMM) STATE PARENT GROUP SESSION …"
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(3)) == Some(&*session)
        };
        until("its commands have ended", || {
            let all = fs::read_dir("/proc").expect("/proc").flatten();
            let mut stats = all.filter_map(|one| fs::read_to_string(one.path().join("stat")).ok());
            !stats.any(of_session)
        });
    }
}

/// The changes of a pool and a lane's life by HTTP, each waited for; whether all were made.
fn by_daemon(tried: &Tried, mut done: impl FnMut(&str, &str, &str) -> Option<u16>) -> bool {
    let (pool, at) = (format!("/v1/pools/{}", tried.pool), daemon::mounts(&tried.at));
    let mount = serde_json::json!({ "source": text(&tried.volume), "pool": tried.pool });
    let changes = [
        ("PUT", &pool, r#"{"weight":200}"#.to_string()),
        ("PUT", &at, mount.to_string()),
        ("PUT", &pool, r#"{"weight":300}"#.to_string()),
        ("DELETE", &at, String::new()),
        ("DELETE", &pool, String::new()),
    ];
    changes.iter().all(|(method, path, body)| match done(method, path, body) {
        Some(status) => {
            assert_eq!(status, 200, "{method} {path}");
            true
        }
        None => false,
    })
}

/// The daemon is killed before each of its calls while a pool is made, its lane mounted, its limits
/// set, the lane unmounted and the pool removed: the next daemon makes the same changes, and so do
/// commands without one.
#[test]
fn what_a_killed_daemon_leaves_the_next_one_uses() {
    let name = "what_a_killed_daemon_leaves_the_next_one_uses";
    if cannot_run(name) || polylane_tests::lacks(name, &["setsid"]) {
        return;
    }
    let mut tried = Tried::new("daemon");
    let traced = |tried: &Tried, kill: Option<&Kill>| {
        let mut daemon = TracedDaemon::start(tried, kill);
        let whole = by_daemon(tried, |method, path, body| daemon.done(method, path, body));
        daemon.end();
        whole
    };
    assert!(traced(&tried, None), "nothing kills it");
    tried.is_usable("nothing");
    let steps = steps_of_one(&tried.log()).into_iter().map(|(call, count)| Kill { call, count });
    let steps: Vec<Kill> = steps.collect();
    assert!(steps.len() >= 16, "{steps:?}");
    let all = steps.len();
    for kill in chosen(steps, all, &mut tried.random) {
        let whole = traced(&tried, Some(&kill));
        let killed = killed_in(&tried.log()) > 0;
        assert!(killed || whole, "seed {}: {kill:?}: no answer", tried.seed);
        let next = Daemon::start(&tried.host, &tried.host.path("absent"));
        let answer =
            |method: &str, path: &str, body: &str| Some(next.done(method, path, body).status);
        assert!(by_daemon(&tried, answer), "seed {}: {kill:?}", tried.seed);
        drop(next);
        tried.is_usable(&format!("daemon, {kill:?}"));
    }
    tried.end();
}
