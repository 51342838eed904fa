//! Processes that are killed before each of their steps, by strace: the calls of the kernel that
//! change something or tell another process something.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;

use crate::host::text;
use crate::pool::signal_to;
use crate::skip;

/// Calls before which a command is killed.
pub const STEPS: &str = "write,writev,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,\
                     mkdirat,rmdir,ftruncate,fchmod,fchmodat,fchown,fchownat,chown,flock,fsync,\
                     fdatasync,clone,clone3,fork,vfork,connect,sendmsg,sendto,recvmsg,bind,listen,\
                     mount,umount2,move_mount,open_tree,setsid,ioctl";

/// Whether strace cannot trace here, which is said.
pub fn cannot_trace(test: &str) -> bool {
    let traces = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let traces = traces.is_ok_and(|output| output.status.success());
    if !traces {
        skip(test, "strace cannot trace here");
    }
    !traces
}

/// The seed that was asked for (`POLYLANE_SEED`), else always the same.
pub fn seed() -> u64 {
    let given = std::env::var("POLYLANE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(26)
}

/// A call of a process, and before how many such calls it is killed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kill {
    /// The call.
    pub call: String,
    /// The number of the call of that kind that is not made any more.
    pub count: usize,
}

/// Most calls of a kind that count as steps of their own: what follows is a process at work.
const REPEATS_MAX: usize = 30;

/// Every step of the processes in a log of strace's: each kind of call, as often as the process
/// that makes it most often does. Each step of each thread is one of these, up to the 30th call of
/// a kind.
pub fn steps_in(log: &Path) -> Vec<Kill> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let text = fs::read_to_string(log).expect("a log");
    for line in text.lines() {
        // "PID CALL(…": the rest are ends, signals and calls that go on.
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let Some((call, _)) = call.trim_start().split_once('(') else { continue };
        if STEPS.split(',').any(|step| step == call) {
            *counts.entry((call, pid)).or_default() += 1;
        }
    }
    let most = |call: &str| {
        let all = counts.iter().filter(|((of, _), _)| *of == call);
        all.map(|(_, count)| *count).max().unwrap_or(0).min(REPEATS_MAX)
    };
    let of_call = |call| (1..=most(call)).map(move |count| (call, count));
    let all = STEPS.split(',').flat_map(of_call);
    all.map(|(call, count)| Kill { call: call.to_string(), count }).collect()
}

/// strace that follows processes and writes their steps to a log.
pub fn tracer(log: &Path, calls: &str) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-I", "2", "-q", "-o", text(log), "-e", &format!("trace={calls}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Kill {
    /// strace that kills each process that it traces before that call of its.
    pub fn tracer(&self, log: &Path) -> Command {
        let mut command = tracer(log, &self.call);
        command.arg("-e").arg(format!("inject={}:signal=KILL:when={}", self.call, self.count));
        command
    }
}

/// Processes that were killed by a tracer, by its log.
pub fn killed_in(log: &Path) -> usize {
    let text = fs::read_to_string(log).expect("a log");
    text.lines().filter(|line| line.ends_with("+++ killed by SIGKILL +++")).count()
}

/// Waits so long for its end; whether it has ended.
pub fn ends_within(child: &mut Child, limit: Duration) -> bool {
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
pub fn end_tracer(mut tracer: Child) {
    signal_to(tracer.id(), "TERM");
    // It may wait for ever for a thread that stops just then; its end lets that go on, too.
    if !ends_within(&mut tracer, Duration::from_secs(1)) {
        let _ = tracer.kill();
    }
    tracer.wait().expect("ended");
}

/// Of these steps those that are tried: `few` in a random order, or with `POLYLANE_STEPS=N/M` the
/// Nth of M parts of all.
pub fn chosen(mut steps: Vec<Kill>, few: usize, random: &mut Rng) -> Vec<Kill> {
    for last in (1..steps.len()).rev() {
        steps.swap(last, random.below(last as u64 + 1) as usize);
    }
    let part = std::env::var("POLYLANE_STEPS").ok();
    let part = part.as_deref().and_then(|part| part.split_once('/'));
    let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
    match part.and_then(|(part, parts)| Some((number(part)?, number(parts)?))) {
        Some((part, parts)) => steps.into_iter().skip(part - 1).step_by(parts).collect(),
        None => steps.into_iter().take(few).collect(),
    }
}
