//! What a running pool can be asked, over a socket beside its lock; and `polylane stats`.
//!
//! Attachments are asked by [`attach`]; their statistics have the form of a pool's: `attachment`
//! stands for `pool`, and `service` is the engine.

pub mod prometheus;
pub mod rates;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_sys::scm;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attach;
use crate::copying::Target;
use crate::failure::{Failure, Result};
use crate::keeper::wait_for;
use crate::link::{Link, ToService};
use crate::names;

/// How long a pool may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Commands that may be connected at a time. One more is turned away.
const CLIENTS_MAX: usize = 64;

/// What a command asks at a pool's socket, in its first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Counters, as one message.
    Stats,
    /// This volume is going to be copied: what follows is [`copying`](crate::copying)'s.
    Copy(Target),
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
        Listener { socket: scm::listen(path, 8).ok(), connected: Vec::new(), waiting: Vec::new() }
    }

    /// The listening socket, and those who have not asked yet.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let socket = self.socket.iter().map(AsFd::as_fd);
        socket.chain(self.connected.iter().map(AsFd::as_fd))
    }

    /// Takes in what has come, when one of the [`fds`](Listener::fds) is readable: whether
    /// statistics are wanted, and whoever wants to copy a volume.
    pub(crate) fn hear(&mut self) -> (bool, Vec<(Link, Target)>) {
        let (mut stats, mut copiers) = (false, Vec::new());
        for client in std::mem::take(&mut self.connected) {
            if !wait_for(client.as_fd(), Duration::ZERO) {
                self.connected.push(client);
                continue;
            }
            match client.receive() {
                Ok(Some((Question::Stats, _))) => {
                    self.waiting.push(client);
                    stats = true;
                }
                Ok(Some((Question::Copy(target), _))) => copiers.push((client, target)),
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
        (stats, copiers)
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

/// The statistics of all running pools of this user, or of one.
///
/// # Errors
/// One line when the named pool does not run.
pub fn collect(pool: Option<&str>) -> Result<Vec<Value>> {
    if let Some(name) = pool {
        let socket = names::runtime_dir().join(format!("{name}.sock"));
        return ask(&socket)
            .map(|stats| vec![stats])
            .ok_or_else(|| Failure::failed(format!("pool '{name}': not running")));
    }
    Ok(sockets().iter().filter_map(|socket| ask(socket)).collect())
}

/// The statistics of all running pools of this user, then those of attachments.
///
/// # Errors
/// As [`collect`].
pub fn all() -> Result<Vec<Value>> {
    let mut all = collect(None)?;
    all.extend(attach::statistics(ANSWER_TIME_MAX));
    Ok(all)
}

/// The sockets of this user's pools, by name.
pub(crate) fn sockets() -> Vec<PathBuf> {
    let entries = fs::read_dir(names::runtime_dir()).into_iter().flatten();
    let mut sockets: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.sort();
    sockets
}

/// One pool's answer; `None` from a pool that has ended or does not answer.
fn ask(socket: &Path) -> Option<Value> {
    let pool = Link::from_fd(scm::connect(socket).ok()?);
    pool.send(&Question::Stats, &[]).ok()?;
    if !wait_for(pool.as_fd(), ANSWER_TIME_MAX) {
        return None;
    }
    Some(pool.receive().ok()??.0)
}

/// Histograms, whose buckets say nothing to people.
const HISTOGRAM: &str = "latency_counts";

/// A pool's statistics as lines for people: nested names joined by dots.
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
        Value::String(text) => lines.push(format!("{name}: {text}")),
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
    }
}
