//! kill -9 of a command before each of its steps: the next command uses or removes what is left.
//!
//! The steps are the command's calls of the kernel that change something or tell another process
//! something, all of them, in their order: strace lists them once, and then kills the command at
//! each.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_tests::host::{Host, polylane, succeeds, text};
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
