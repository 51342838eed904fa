//! `polylane daemon`, started for a test, and its interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::binary;
use crate::host::{Host, text, until};
use crate::http::{self, Answer};
use crate::pool::signal_to;

/// A daemon of a test; dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    /// Its process.
    pub child: Child,
    /// Its socket.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts one with a directory's configuration and waits until it listens.
    pub fn start(host: &Host, config: &Path) -> Daemon {
        Daemon::start_with(host, config, &[])
    }

    /// Starts one with some variables of its environment as well.
    pub fn start_with(host: &Host, config: &Path, variables: &[(&str, &Path)]) -> Daemon {
        Daemon::start_by(&binary(), host, config, variables)
    }

    /// The same by another file of this program, which the daemon's commands are of as well.
    pub fn start_by(
        program: &Path,
        host: &Host,
        config: &Path,
        variables: &[(&str, &Path)],
    ) -> Daemon {
        let (socket, log) = (host.path("daemon.sock"), host.path("daemon.log"));
        let mut command = Command::new(program);
        command.args(["daemon", "--config", text(config), "--socket", text(&socket)]);
        command.stdin(Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
        command.envs(variables.iter().copied());
        let child = command.spawn().expect("polylane");
        let daemon = Daemon { child, socket, log };
        until("the daemon listens", || {
            std::os::unix::net::UnixStream::connect(&daemon.socket).is_ok()
        });
        daemon
    }

    /// The answer of a request.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        http::request(&self.socket, method, path, body)
    }

    /// The answer of a request that is done at once or in a while.
    pub fn done(&self, method: &str, path: &str, body: &str) -> Answer {
        let answer = self.request(method, path, body);
        if answer.status != 202 {
            return answer;
        }
        let task = format!("/v1/tasks/{}", answer.body["id"]);
        assert!(answer.head.contains(&format!("location: {task}")), "{}", answer.head);
        until("the task ends", || self.request("GET", &task, "").body["state"] != "running");
        let mut ended = self.request("GET", &task, "");
        if ended.body["state"] == "failed" {
            ended.status = 409;
        }
        ended
    }

    /// Lines that it has said.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// Kills it.
    pub fn kill(&mut self) {
        signal_to(self.child.id(), "KILL");
        self.child.wait().expect("ended");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// A mount path as one segment.
pub fn mounts(path: &Path) -> String {
    format!("/v1/mounts/{}", text(path).replace('/', "%2F"))
}

/// The error code of an answer.
pub fn code(answer: &Answer) -> &str {
    answer.body["error"]["code"].as_str().unwrap_or("no code")
}
