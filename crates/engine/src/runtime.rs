//! The OCI runtime: found on the host, and told what to do by its command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polylane_base::shown::Shown;
use polylane_pool::failure::{Failure, Result};
use serde_json::Value;

use crate::place::{self, Place};

/// Runtimes that are looked for, the first one first.
const KNOWN: [&str; 2] = ["runc", "crun"];

/// Where programs are that no PATH names.
const DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Most bytes of a runtime's messages that are read.
const LOG_BYTES_MAX: usize = 1 << 20;

/// The program of the runtime that was asked for, or of the first that the host has.
///
/// # Errors
/// One line: there is none.
pub(crate) fn find(asked: Option<&str>) -> Result<PathBuf> {
    match asked {
        Some(name) => program(name).ok_or_else(|| {
            Failure::failed(format!(
                "{}: no such runtime: install it, or name another with --runtime",
                Shown::new(name)
            ))
        }),
        None => KNOWN.iter().find_map(|name| program(name)).ok_or_else(|| {
            Failure::failed("container: no OCI runtime on this host: install runc or crun")
        }),
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        use std::os::unix::fs::PermissionsExt;
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return fs::canonicalize(name).ok().filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    dirs.chain(DIRS.map(PathBuf::from)).map(|dir| dir.join(name)).find(is_program)
}

/// The runtime of one container.
pub(crate) struct Runtime<'a> {
    pub(crate) program: &'a Path,
    pub(crate) place: &'a Place,
    pub(crate) id: &'a str,
}

impl Runtime<'_> {
    /// A command of it that writes its messages to `log`.
    pub(crate) fn command(&self, log: &str) -> Command {
        let mut command = Command::new(self.program);
        command.arg("--root").arg(place::runtime_state());
        command.arg("--log").arg(self.place.file(log)).args(["--log-format", "json"]);
        command
    }

    /// What it said last as an error, or the last line of `said`.
    pub(crate) fn error(&self, log: &str, said: &[u8]) -> String {
        let mut text = fs::read(self.place.file(log)).unwrap_or_default();
        text.truncate(LOG_BYTES_MAX);
        let text = String::from_utf8_lossy(&text).into_owned();
        let message = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            let is_error = matches!(line["level"].as_str(), Some("error" | "fatal"));
            line["msg"].as_str().filter(|_| is_error).map(str::to_string)
        };
        let said = String::from_utf8_lossy(said);
        let last = || said.lines().rfind(|line| !line.trim().is_empty()).map(str::to_string);
        let line = text.lines().rev().find_map(message).or_else(last).unwrap_or_default();
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        polylane_base::shown::escape_control(&line)
    }

    /// Executes a command of it that ends by itself.
    fn execute(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.command("runtime.log");
        command.args(words).stdin(Stdio::null());
        command.output().map_err(|error| Failure::path(self.program, "execute it", error))
    }

    /// Executes a command of it that has to succeed.
    fn act(&self, words: &[&str], what: &str) -> Result<()> {
        let output = self.execute(words)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "{}: {what}: {}",
                self.id,
                self.error("runtime.log", &output.stderr)
            ))),
        }
    }

    /// Sends a signal to the container's first process.
    pub(crate) fn kill(&self, signal: &str) -> Result<()> {
        self.act(&["kill", self.id, signal], &format!("cannot send {signal}"))
    }

    /// Stops all of the container's processes where they are.
    pub(crate) fn pause(&self) -> Result<()> {
        self.act(&["pause", self.id], "the runtime cannot pause it")
    }

    /// Lets them go on.
    pub(crate) fn resume(&self) -> Result<()> {
        self.act(&["resume", self.id], "the runtime cannot resume it")
    }

    /// Ends whatever there is of the container at the runtime; nothing is no error.
    pub(crate) fn delete(&self) -> Result<()> {
        let is_known = || place::runtime_state().join(self.id).exists();
        if !is_known() {
            return Ok(());
        }
        let output = self.execute(&["delete", "--force", self.id])?;
        // Nobody else has a state directory there.
        let _ = fs::remove_dir(place::runtime_state());
        match output.status.success() || !is_known() {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "{}: the runtime cannot remove it: {}",
                self.id,
                self.error("runtime.log", &output.stderr)
            ))),
        }
    }
}
