//! `polylane stats`: counters of running pools, over a socket beside each pool's lock.

pub mod prometheus;
pub mod rates;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use polylane_sys::scm;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::keeper::wait_for;
use crate::names;

/// How long a pool may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Largest answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Clients that may wait at a time. One more is turned away.
const WAITING_MAX: usize = 64;

/// The supervisor's side: clients that wait for the next answer of the service.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Option<OwnedFd>,
    waiting: Vec<OwnedFd>,
}

impl Listener {
    /// Listens at `path`. Without a socket there are no statistics, and nothing else is lost.
    pub(crate) fn new(path: &Path) -> Listener {
        // The name is locked, so whatever lies here is a dead pool's.
        let _ = fs::remove_file(path);
        Listener { socket: scm::listen(path, 8).ok(), waiting: Vec::new() }
    }

    /// The listening socket.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Takes a client in; whether there is one.
    pub(crate) fn accept(&mut self) -> bool {
        let client = self.socket.as_ref().and_then(|socket| scm::accept(socket).ok());
        self.waiting.extend(client.filter(|_| self.waiting.len() < WAITING_MAX));
        !self.waiting.is_empty()
    }

    /// Answers everybody who waits. A packet never blocks on an empty socket buffer.
    pub(crate) fn answer(&mut self, stats: &Value) {
        let bytes = stats.to_string().into_bytes();
        for client in self.waiting.drain(..) {
            let _ = scm::send(&client, &bytes, &[]);
        }
    }
}

/// The statistics of all running pools of this user, or of one.
///
/// # Errors
/// One line when the named pool does not run.
pub fn collect(pool: Option<&str>) -> Result<Vec<Value>> {
    let dir = names::runtime_dir();
    if let Some(name) = pool {
        let socket = dir.join(format!("{name}.sock"));
        return ask(&socket)
            .map(|stats| vec![stats])
            .ok_or_else(|| Failure::failed(format!("pool '{name}': not running")));
    }
    let Ok(entries) = fs::read_dir(&dir) else { return Ok(Vec::new()) };
    let mut sockets: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    sockets.sort();
    Ok(sockets.iter().filter_map(|socket| ask(socket)).collect())
}

/// One pool's answer; `None` from a pool that has ended or does not answer.
fn ask(socket: &Path) -> Option<Value> {
    let socket = scm::connect(socket).ok()?;
    if !wait_for(socket.as_fd(), ANSWER_TIME_MAX) {
        return None;
    }
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let got = scm::receive(&socket, &mut bytes).ok()?;
    serde_json::from_slice(bytes.get(..got.count)?).ok()
}

/// A pool's statistics as lines for people: nested names joined by dots.
pub fn lines(stats: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    flatten("", stats, &mut lines);
    lines
}

fn flatten(name: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, lines);
            }
        }
        Value::String(text) => lines.push(format!("{name}: {text}")),
        other => lines.push(format!("{name}: {other}")),
    }
}
