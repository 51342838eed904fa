//! kill -9 of a command before each of its steps: the next command uses or removes what is left.
//!
//! The steps are the command's calls of the kernel that change something or tell another process
//! something, all of them, in their order: strace lists them once, and then kills the command at
//! each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::host::{Host, polylane, succeeds, text};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, skip, unavailable};

/// Calls before which a command is killed.
const STEPS: &str = "write,writev,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,\
                     mkdirat,rmdir,ftruncate,fchmod,fchmodat,fchown,fchownat,chown,flock,fsync,\
                     fdatasync,clone,clone3,fork,vfork,connect,sendmsg,sendto,recvmsg,bind,listen,\
                     mount,umount2,move_mount,open_tree,setsid,ioctl";

/// The steps of a command that comes to its end: each one's call, and of how many such it is.
fn steps_of(host: &Host, arguments: &[&str]) -> Vec<(String, usize)> {
    let log = host.path("steps");
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", text(&log), "-e", &format!("trace={STEPS}")]);
    command.arg(binary()).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("strace");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let mut steps: Vec<(String, usize)> = Vec::new();
    for line in fs::read_to_string(&log).expect("a log").lines() {
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
    let traces = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let traces = traces.is_ok_and(|output| output.status.success());
    if !traces {
        skip(test, "strace cannot trace here");
    }
    !traces || unavailable(test)
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

/// A call of a process, and before how many such calls it is killed.
struct Kill {
    call: &'static str,
    count: u64,
}

impl Kill {
    fn random(random: &mut Rng) -> Kill {
        let calls: Vec<&str> = STEPS.split(',').collect();
        let call = calls[random.below(calls.len() as u64) as usize];
        Kill { call, count: 1 + random.below(6) }
    }

    /// strace that kills each process that it traces before that call of its.
    fn tracer(&self) -> Command {
        let mut command = Command::new("strace");
        command.args(["-f", "-I", "2", "-qq", "-o", "/dev/null"]);
        command.args(["-e", &format!("trace={}", self.call), "-e"]);
        command.arg(format!("inject={}:signal=KILL:when={}", self.call, self.count));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Waits so long for its end; whether it has ended.
fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Ends a tracer; what it traces and was not killed goes on without it.
fn end_tracer(mut tracer: Child) {
    signal_to(tracer.id(), "TERM");
    // It may wait for ever for a thread that stops just then; its end lets that go on, too.
    if !ends_within(&mut tracer, Duration::from_secs(1)) {
        let _ = tracer.kill();
    }
    tracer.wait().expect("ended");
}

/// A lane that random kills are tried on.
struct Tried {
    host: Host,
    pool: String,
    at: PathBuf,
    volume: PathBuf,
    random: Rng,
    seed: u64,
}

impl Tried {
    fn new(word: &str) -> Tried {
        let host = Host::new();
        let (pool, at, volume) = (host.pool(word), host.dir("m"), host.path("v.img"));
        succeeds(&["pool", "create", &pool]);
        succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
        let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        Tried { host, pool, at, volume, random: Rng::new(seed), seed }
    }

    fn mount(&self) -> [&str; 6] {
        ["mount", "--once", "--pool", &self.pool, text(&self.volume), text(&self.at)]
    }

    /// The lane can be mounted, has what the former round wrote, takes more, and goes away.
    fn is_usable(&self, round: usize, shown: &str) {
        let output = polylane(&self.mount());
        assert!(output.status.success(), "{shown}: {output:?}");
        let former = fs::read_to_string(self.at.join("file")).unwrap_or_default();
        assert!(round == 0 || former == (round - 1).to_string(), "{shown}: {former:?}");
        fs::write(self.at.join("file"), round.to_string()).expect("the lane serves");
        let output = polylane(&["umount", "--all", text(&self.at)]);
        assert!(output.status.success(), "{shown}: {output:?}");
        self.host.assert_nothing_is_left();
        assert_no_file_is_left(&format!("{}@", self.pool), round);
    }

    fn end(self) {
        succeeds(&["pool", "rm", &self.pool]);
        polylane_tests::volume::assert_clean(&self.volume);
    }
}

/// Every process of a lane that starts is killed before its nth call of a kind: command,
/// supervisor, holder, keeper, service, or several of them. Such calls are too many to try all.
#[test]
fn a_lane_of_which_any_process_was_killed_while_it_started_is_mounted() {
    if cannot_run("a_lane_of_which_any_process_was_killed_while_it_started_is_mounted") {
        return;
    }
    let mut tried = Tried::new("starts");
    for round in 0..24 {
        let kill = Kill::random(&mut tried.random);
        let shown = format!("seed {}, {round}: {} {}", tried.seed, kill.call, kill.count);
        let mut tracer = kill.tracer();
        tracer.arg(binary()).args(tried.mount());
        let mut tracer = tracer.spawn().expect("strace");
        ends_within(&mut tracer, Duration::from_secs(1));
        end_tracer(tracer);
        tried.is_usable(round, &shown);
    }
    tried.end();
}

/// Every process of a lane is killed before its nth call of a kind while the lane is unmounted, or
/// its service replaced, or its pool removed.
#[test]
fn a_lane_of_which_any_process_was_killed_while_it_ended_is_mounted_again() {
    if cannot_run("a_lane_of_which_any_process_was_killed_while_it_ended_is_mounted_again") {
        return;
    }
    let mut tried = Tried::new("ends");
    for round in 0..18 {
        let output = polylane(&tried.mount());
        assert!(output.status.success(), "{output:?}");
        let kill = Kill::random(&mut tried.random);
        let verb: &[&str] = match round % 3 {
            0 => &["umount", text(&tried.at)],
            1 => &["pool", "upgrade", &tried.pool],
            _ => &["pool", "rm", &tried.pool],
        };
        let shown = format!("seed {}, {round}: {verb:?}, {} {}", tried.seed, kill.call, kill.count);
        let supervisor = tried.host.supervisor();
        let path = format!("/proc/{supervisor}/task/{supervisor}/children");
        let children = fs::read_to_string(path).expect("children");
        let mut tracer = kill.tracer();
        let own = supervisor.to_string();
        for pid in children.split_whitespace().chain([own.as_str()]) {
            tracer.args(["-p", pid]);
        }
        let tracer = tracer.spawn().expect("strace");
        std::thread::sleep(Duration::from_millis(200));
        let mut command = Command::new(binary());
        command.args(verb).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut command = command.spawn().expect("polylane");
        ends_within(&mut command, Duration::from_secs(3));
        end_tracer(tracer);
        assert!(ends_within(&mut command, Duration::from_secs(40)), "{shown}: it hangs");
        tried.is_usable(round, &shown);
    }
    tried.end();
}
