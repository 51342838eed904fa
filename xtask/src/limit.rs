//! A test binary under a time limit: `cargo xtask limited BINARY ARGS…`, which cargo calls in place
//! of each test binary that `cargo xtask test` runs.
//!
//! A test that hangs must be one failed binary that says where it hung, not a check that never
//! ends. Detached processes of a test (keepers, services, attachments) are found because this
//! process adopts them (`prctl(2)`, PR_SET_CHILD_SUBREAPER). Those still there when the binary has
//! ended are killed; where that does not help, the FUSE connections made meanwhile are aborted, so
//! that no later `sync` or `umount` waits for a server that cannot die.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// How long one test binary may run. The slowest takes about three minutes on two slow cores.
const LIMIT: Duration = Duration::from_secs(900);

/// Names the end of the whole check, seconds since the epoch: what begins later has no time left.
pub const DEADLINE: &str = "POLYLANE_TEST_DEADLINE";

/// Seconds that each test binary may run, where that is not [`LIMIT`].
pub const EACH: &str = "POLYLANE_TEST_LIMIT";

/// How long a killed process may take to go. One that waits for a dead device may never.
const GRACE: Duration = Duration::from_secs(10);

/// What `timeout(1)` says too.
const TIMED_OUT: u8 = 124;

/// Each is a directory named by the minor number of a FUSE superblock's device.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Runs `words` (a test binary and its arguments) and ends as it ended, or with 124 after it was
/// killed because its time was over.
pub fn run(words: &[OsString]) -> Result<ExitCode> {
    let (binary, args) = words.split_first().context("no test binary was named")?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("become the reaper")?;
    let limit = limit();
    let before = connections();
    // Of a shell's background jobs and under nohup(1) signals are ignored, and tests send them.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT").arg(binary).args(args);
    let ended = reap();
    let child = command.spawn().context("start the tests")?;
    let code = wait(&ended, Pid::from_child(&child), limit);
    if code.is_none() {
        descendants().iter().for_each(|pid| println!("xtask: hangs: {}", portrait(*pid)));
    }
    end_what_is_left(&before, code.is_some());
    if code.is_none() {
        let name = Path::new(binary).file_name().unwrap_or(binary).to_string_lossy();
        println!("xtask: FAILED {name}: had not ended after {} s", limit.as_secs());
    }
    Ok(ExitCode::from(code.unwrap_or(TIMED_OUT)))
}

/// What is left of the whole check's time, at most [`LIMIT`] or what [`EACH`] says.
fn limit() -> Duration {
    let seconds = |name| std::env::var(name).ok()?.parse().ok().map(Duration::from_secs);
    let most = seconds(EACH).unwrap_or(LIMIT);
    let Some(deadline) = seconds(DEADLINE) else { return most };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    deadline.saturating_sub(now).min(most)
}

/// Waits for every child and every process that was adopted, in a thread that ends with this
/// process: an adopted process must not stay a zombie, since tests wait for it to be gone.
fn reap() -> Receiver<(Pid, u8)> {
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => drop(told.send((pid, code(status)))),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                // There is none now.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    });
    ended
}

/// The binary's exit code; `None`: it did not end in time.
fn wait(ended: &Receiver<(Pid, u8)>, main: Pid, limit: Duration) -> Option<u8> {
    let start = Instant::now();
    loop {
        let (pid, code) = ended.recv_timeout(limit.saturating_sub(start.elapsed())).ok()?;
        if pid == main {
            return Some(code);
        }
    }
}

/// As the shell says it: 128 and the signal for a process that was killed.
fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Kills what the binary left behind; `tell`: and says what it was.
fn end_what_is_left(before: &BTreeSet<OsString>, tell: bool) {
    for pid in descendants() {
        if tell {
            println!("xtask: left behind, and killed: {}", portrait(pid));
        }
        let _gone = rustix::process::kill_process(pid, Signal::KILL);
    }
    let start = Instant::now();
    let mut aborted = false;
    while !descendants().is_empty() && start.elapsed() < GRACE {
        // A process that serves a file system and waits for it too cannot die before it is aborted.
        if start.elapsed() > GRACE / 4 && !std::mem::replace(&mut aborted, true) {
            abort_new(before);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn abort_new(before: &BTreeSet<OsString>) {
    for name in connections().difference(before) {
        drop(std::fs::write(Path::new(CONNECTIONS).join(name).join("abort"), "1"));
    }
}

fn connections() -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(CONNECTIONS).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

/// Every process below this one, zombies left out.
fn descendants() -> Vec<Pid> {
    let mut below = Vec::new();
    let mut parents = vec![std::process::id().cast_signed()];
    let all = processes();
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|process| process.1 == parent).map(|process| process.0);
        for child in children {
            parents.push(child);
            below.extend(Pid::from_raw(child));
        }
    }
    below
}

/// Every process with its parent.
fn processes() -> Vec<(i32, i32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// `/proc/PID/stat`: after the name in brackets, which may hold anything, state and parent.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.next()?.parse().ok()
}

/// One line for what a process is, and one for where in the kernel each of its threads waits.
fn portrait(pid: Pid) -> String {
    let pid = pid.as_raw_nonzero();
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let mut text = format!("{pid} {words}");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let state = read("stat");
        let state = state.rsplit_once(')').map_or("", |(_, rest)| rest).trim_start();
        let stack = read("stack");
        let calls: Vec<&str> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let name = read("comm");
        text += &format!(
            "\n    {} {} {}",
            name.trim_end(),
            &state[..1.min(state.len())],
            calls.join(" < ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_past_any_name() {
        let me = std::process::id().cast_signed();
        let mut child = Command::new("sleep").arg("60").spawn().expect("start sleep");
        let pid = Pid::from_child(&child);
        assert_eq!(parent(pid.as_raw_nonzero().get()), Some(me));
        assert!(descendants().contains(&pid));
        // It has words once the kernel has read the program, which takes a busy disk a while.
        while !portrait(pid).contains("sleep 60") {
            assert!(child.try_wait().expect("look at sleep").is_none(), "{}", portrait(pid));
            std::thread::yield_now();
        }
        child.kill().expect("kill sleep");
        while parent(pid.as_raw_nonzero().get()).is_some() {
            std::thread::yield_now();
        }
        assert!(!descendants().contains(&pid), "a zombie is no process");
        child.wait().expect("wait for sleep");
    }

    #[test]
    fn what_takes_too_long_is_not_waited_for() {
        let (told, ended) = mpsc::channel();
        let main = Pid::from_raw(10).expect("a pid");
        let other = Pid::from_raw(11).expect("a pid");
        told.send((other, 0)).expect("send");
        assert_eq!(wait(&ended, main, Duration::from_millis(20)), None);
        told.send((main, 3)).expect("send");
        assert_eq!(wait(&ended, main, Duration::from_secs(60)), Some(3));
    }
}
