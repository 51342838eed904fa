//! What a running pool can be asked, over a socket beside its lock; and `polylane stats`.
//!
//! Attachments are asked by [`attach`]; their statistics have the form of a pool's: `attachment`
//! stands for `pool`, and `service` is the engine.

pub mod prometheus;
pub mod rates;
pub mod summary;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::shown::escape_control;
use polylane_base::sync::thread;
use polylane_sys::procstat::ProcessStat;
use polylane_sys::scm;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attach;
use crate::awake::{self, BACKLOG, Mute};
use crate::copying::{Target, Wish};
use crate::failure::{Failure, Result};
use crate::link::{Link, ToService};
use crate::names;
use crate::wait::wait_for;

/// How long pools and attachments may take to answer, all together.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Commands that may be connected at a time. One more is turned away.
const CLIENTS_MAX: usize = 64;

/// What a command asks at a pool's socket, in its first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Counters, as one message.
    Stats,
    /// This volume is going to be copied: what follows is [`copying`](crate::copying)'s.
    Copy(Target),
    /// The upper on this volume or directory is to be made whole: what follows is
    /// [`solidify`](crate::solidify)'s.
    Solidify(Target),
    /// This volume is going to go over to other bases: what follows is a `Step` of it.
    Rebase(Target),
}

/// What was heard of commands.
#[derive(Default)]
pub(crate) struct Heard {
    /// Statistics are wanted.
    pub(crate) stats: bool,
    /// Who wants something of a volume.
    pub(crate) copiers: Vec<(Link, Wish, Target)>,
    /// Who wants an upper whole.
    pub(crate) solidifiers: Vec<(Link, Target)>,
}

/// The supervisor's side: commands that connect, ask, and wait for the answer. None of them is
/// ever waited for.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Option<OwnedFd>,
    /// They have not asked yet.
    connected: Vec<Link>,
    /// They want the next statistics of the service.
    waiting: Vec<Link>,
}

impl Listener {
    /// Listens at `path`. Without a socket nothing can be asked, and nothing else is lost.
    pub(crate) fn new(path: &Path) -> Listener {
        // The name is locked, so whatever lies here is a dead pool's.
        let _ = fs::remove_file(path);
        let socket = scm::listen(path, BACKLOG).ok();
        Listener { socket, connected: Vec::new(), waiting: Vec::new() }
    }

    /// The listening socket, and those who have not asked yet.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.iter().map(AsFd::as_fd);
        socket.chain(self.connected.iter().map(AsFd::as_fd))
    }

    /// Takes in what has come, when one of the [`fds`](Listener::fds) is readable.
    pub(crate) fn hear(&mut self) -> Heard {
        let mut heard = Heard::default();
        for client in std::mem::take(&mut self.connected) {
            if !wait_for(client.as_fd(), Duration::ZERO) {
                self.connected.push(client);
                continue;
            }
            match client.receive() {
                Ok(Some((Question::Stats, _))) => {
                    self.waiting.push(client);
                    heard.stats = true;
                }
                Ok(Some((Question::Copy(target), _))) => {
                    heard.copiers.push((client, Wish::Copy, target));
                }
                Ok(Some((Question::Rebase(target), _))) => {
                    heard.copiers.push((client, Wish::Rebase, target));
                }
                Ok(Some((Question::Solidify(target), _))) => {
                    heard.solidifiers.push((client, target));
                }
                Ok(None) | Err(_) => {}
            }
        }
        if let Some(socket) = &self.socket
            && wait_for(socket.as_fd(), Duration::ZERO)
            && let Ok(client) = scm::accept(socket)
            && self.connected.len() + self.waiting.len() < CLIENTS_MAX
        {
            self.connected.push(Link::from_fd(client));
        }
        heard
    }

    /// Asks a new service what the former one was asked and did not answer.
    pub(crate) fn ask_again(&self, service: &Link) {
        if !self.waiting.is_empty() {
            // Its end shows at its process.
            let _ = service.send(&ToService::Stats, &[]);
        }
    }

    /// Answers everybody who wants statistics. A packet never blocks on an empty socket buffer.
    pub(crate) fn answer(&mut self, stats: &Value) {
        for client in self.waiting.drain(..) {
            let _ = client.send(stats, &[]);
        }
    }
}

/// The statistics of all running pools of this user, or of one: where it is a pool that lasts, of
/// each of its lanes. One that is stopped, or does not answer within [`ANSWER_TIME_MAX`], has a
/// name, a `state` and, where it is known, a `pid`.
///
/// # Errors
/// One line when the named pool does not run.
pub fn collect(pool: Option<&str>) -> Result<Vec<Value>> {
    let Some(name) = pool else { return Ok(ask_all(sockets())) };
    let is_of_it = |path: &PathBuf| {
        let own = path.file_stem().and_then(|stem| stem.to_str());
        own.is_some_and(|own| own == name || names::lane_number(own).is_some_and(|n| n.0 == name))
    };
    let asked = ask_all(sockets().into_iter().filter(is_of_it).collect());
    match asked.is_empty() {
        true => Err(Failure::failed(format!("pool '{name}': not running"))),
        false => Ok(asked),
    }
}

/// The statistics of all running pools of this user, then those of attachments.
///
/// # Errors
/// As [`collect`].
pub fn all() -> Result<Vec<Value>> {
    thread::scope(|scope| {
        let attached = scope.spawn(|| attach::statistics(ANSWER_TIME_MAX));
        let mut all = collect(None)?;
        all.extend(attached.join().unwrap_or_default());
        Ok(all)
    })
}

/// The sockets of this user's pools, by name.
fn sockets() -> Vec<PathBuf> {
    let entries = fs::read_dir(names::runtime_dir()).into_iter().flatten();
    let mut sockets: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.sort();
    sockets
}

/// How long a pool may take to say whether a volume is its own.
pub(crate) const MINE_TIME_MAX: Duration = Duration::from_secs(5);

/// Asks the pools of this user one after the other, by name, or tells which cannot be asked; those
/// that have ended are left out.
pub(crate) fn ask_each(
    question: Question,
) -> impl Iterator<Item = (String, std::result::Result<Link, Mute>)> {
    sockets().into_iter().filter_map(move |socket| {
        let pool = socket.file_stem()?.to_string_lossy().into_owned();
        let link = match awake::connect(&socket, None, MINE_TIME_MAX) {
            Ok(line) => Link::from_fd(line),
            Err(Mute::Ended) => return None,
            Err(mute) => return Some((pool, Err(mute))),
        };
        link.send(&question, &[]).ok()?;
        Some((pool, Ok(link)))
    })
}

/// Asks pools, all at the same time; those that have ended are left out.
fn ask_all(sockets: Vec<PathBuf>) -> Vec<Value> {
    let asked: Vec<Asked> = sockets.iter().filter_map(|socket| Asked::new(socket)).collect();
    let end = Instant::now() + ANSWER_TIME_MAX;
    asked.into_iter().filter_map(|asked| asked.answer(end)).collect()
}

/// A pool that was asked.
struct Asked {
    name: String,
    /// `None`: so many wait for its answer that no more are let in.
    line: Option<Link>,
    pid: Option<u32>,
}

impl Asked {
    /// `None`: it has ended.
    fn new(socket: &Path) -> Option<Asked> {
        let name = socket.file_stem()?.to_string_lossy().into_owned();
        let line = match scm::connect_now(socket) {
            Ok(line) => line,
            Err(Errno::EAGAIN) => return Some(Asked { name, line: None, pid: None }),
            Err(_) => return None,
        };
        let pid = scm::listener_pid(&line).ok();
        let line = Link::from_fd(line);
        line.send(&Question::Stats, &[]).ok()?;
        Some(Asked { name, line: Some(line), pid })
    }

    /// Its statistics, or that it gives none; `None` from one that has ended meanwhile.
    fn answer(self, end: Instant) -> Option<Value> {
        let stopped = self.pid.and_then(ProcessStat::of).is_some_and(|stat| stat.is_stopped());
        let left = end.saturating_duration_since(Instant::now());
        if let Some(line) = self.line
            && !stopped
            && wait_for(line.as_fd(), left)
        {
            return Some(line.receive().ok()??.0);
        }
        let state = if stopped { STOPPED } else { SILENT };
        Some(serde_json::json!({ "pool": self.name, "pid": self.pid, "state": state }))
    }
}

/// `state` of a pool that answers ...
pub const RUNNING: &str = "running";
/// ... of one whose supervisor a signal has stopped, as Ctrl-Z does ...
pub const STOPPED: &str = "stopped";
/// ... and of one that does not answer.
pub const SILENT: &str = "no answer";

/// Histograms, whose buckets say nothing to people.
const HISTOGRAM: &str = "latency_counts";

/// All of a pool's statistics as lines: nested names joined by dots.
pub fn lines(stats: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    flatten("", stats, &mut lines);
    lines
}

fn flatten(name: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(key, _)| *key != HISTOGRAM) {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, lines);
            }
        }
        Value::String(text) => lines.push(format!("{name}: {}", escape_control(text))),
        other => lines.push(format!("{name}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_spared_histograms() {
        let share = serde_json::json!({ "latency_counts": [1, 2, 3], "latency_p99_us": 7.5 });
        let stats = serde_json::json!({ "pool": "p", "service": { "share": share, "dir": null } });
        let expected = ["pool: p", "service.dir: null", "service.share.latency_p99_us: 7.5"];
        assert_eq!(lines(&stats), expected);
        let stats = serde_json::json!({ "pool": "p\u{1b}[m\nq: 1" });
        assert_eq!(lines(&stats), ["pool: p\\e[m\\nq: 1"]);
    }

    #[test]
    fn pools_are_asked_together_and_one_that_is_silent_is_said_to_be() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| dir.path().join(name).with_extension("sock");
        // No listener; a listener that says nothing; a listener without room.
        drop(scm::listen(&path("dead"), 8).expect("listen"));
        let silent: Vec<_> = ["a", "b", "c"].map(|name| scm::listen(&path(name), 8)).into();
        let full = scm::listen(&path("full"), 0).expect("listen");
        let mut waiting = Vec::new();
        while let Ok(client) = scm::connect_now(&path("full")) {
            waiting.push(client);
        }
        let start = Instant::now();
        let all = ask_all(["dead", "a", "b", "c", "full", "none"].map(path).into());
        assert!(start.elapsed() < 2 * ANSWER_TIME_MAX, "{:?}", start.elapsed());
        let told: Vec<_> = all.iter().map(|pool| (&pool["pool"], &pool["state"])).collect();
        let expected = ["a", "b", "c", "full"].map(Value::from);
        let state = Value::from(SILENT);
        assert_eq!(told, expected.iter().map(|name| (name, &state)).collect::<Vec<_>>());
        assert_eq!(all[0]["pid"], std::process::id());
        drop((silent, full));
    }
}
