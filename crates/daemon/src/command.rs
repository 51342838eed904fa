//! One command of this program in a process of its own, for a limited time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use polylane_base::sync::{Arc, Mutex};
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::manager;
use crate::refusal::Refusal;

/// Most bytes of a command's output that are kept.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Most bytes of a command's last line that are shown.
const LINE_BYTES_MAX: usize = 400;

/// Longest time of a command, unless the desired state says otherwise.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(90);

/// Longest time of a command that only looks, waiting for its turn included.
pub(crate) const LOOK_TIME_MAX: Duration = Duration::from_secs(10);

/// Most commands at a time that only look.
const LOOKS_MAX: usize = 8;

/// This program's file.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: Arc<Path>,
    looks: Arc<Semaphore>,
}

/// Where the running command of a task writes its messages; empty between commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages(Arc<Mutex<Option<Arc<Said>>>>);

impl Messages {
    /// The last line that the running command has said so far.
    pub(crate) fn last_line(&self) -> Option<String> {
        let said = self.0.lock().clone()?;
        let text = said.text().ok()?;
        // A bar on a terminal's line ends with a carriage return.
        let line = text.rsplit(['\n', '\r']).find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(LINE_BYTES_MAX).collect())
    }
}

impl Program {
    pub(crate) fn new(path: PathBuf) -> Program {
        Program { path: path.into(), looks: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }

    /// A program whose looks wait for none of this one's: for another kind of callers.
    pub(crate) fn apart(&self) -> Program {
        Program { looks: Arc::new(Semaphore::new(LOOKS_MAX)), path: Arc::clone(&self.path) }
    }

    /// Executes a command that only looks; its output. [`LOOKS_MAX`] look at a time. One that
    /// nobody waits for any more is killed.
    ///
    /// # Errors
    /// As [`execute`](Program::execute); its turn did not come.
    pub(crate) async fn look(&self, words: &[String]) -> Result<String, Refusal> {
        let start = Instant::now();
        let turn = tokio::time::timeout(LOOK_TIME_MAX, self.looks.acquire()).await;
        let _turn = turn.map_err(|_| Refusal::busy("too much is looked at: try again later"))?;
        let left = LOOK_TIME_MAX.saturating_sub(start.elapsed());
        self.run(words, left, &Messages::default(), true).await
    }

    /// Executes a command and waits for its end, `limit` at most: then it is killed. Its output.
    ///
    /// Its output goes into files of memory and not into pipes: a process that outlives the command
    /// may inherit them and would keep a pipe open.
    ///
    /// # Errors
    /// It cannot be started, its time was over, or it failed: its status as one of HTTP, with its
    /// own line.
    pub(crate) async fn execute(
        &self,
        words: &[String],
        limit: Duration,
        messages: &Messages,
    ) -> Result<String, Refusal> {
        self.run(words, limit, messages, false).await
    }

    async fn run(
        &self,
        words: &[String],
        limit: Duration,
        messages: &Messages,
        is_look: bool,
    ) -> Result<String, Refusal> {
        let broken = |error: io::Error| Refusal::internal(&format_args!("{words:?}: {error}"));
        let (output, error) = (Said::new().map_err(broken)?, Said::new().map_err(broken)?);
        let error = Arc::new(error);
        let mut command = Command::new(&*self.path);
        for name in manager::VARIABLES {
            command.env_remove(name);
        }
        // A change goes on to its end whoever still listens; see [`Program::look`].
        command.kill_on_drop(is_look);
        let ends = (output.end().map_err(broken)?, error.end().map_err(broken)?);
        command.args(words).stdin(Stdio::null()).stdout(ends.0).stderr(ends.1);
        let mut child = command.spawn().map_err(broken)?;
        *messages.0.lock() = Some(Arc::clone(&error));
        let ended = tokio::time::timeout(limit, child.wait()).await;
        *messages.0.lock() = None;
        let Ok(status) = ended else {
            // Not waited for: one in a file system that does not answer ends when that does.
            child.start_kill().map_err(broken)?;
            let message = format!("not done within {} s", limit.as_secs());
            return Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message));
        };
        let status = status.map_err(broken)?;
        if status.success() {
            return output.text().map_err(broken);
        }
        let line = error.text().map_err(broken)?;
        let line =
            line.trim_end().strip_prefix("polylane: ").unwrap_or(line.trim_end()).to_string();
        Err(match status.code() {
            Some(1) => Refusal::new(StatusCode::CONFLICT, "failed", line),
            Some(2) => Refusal::new(StatusCode::BAD_REQUEST, "usage", line),
            _ => Refusal::internal(&format_args!("{status}: {line}")),
        })
    }
}

/// What a command writes.
#[derive(Debug)]
struct Said(File);

impl Said {
    fn new() -> io::Result<Said> {
        Ok(Said(File::from(memfd_create(c"polylane-command", MemfdFlags::CLOEXEC)?)))
    }

    fn end(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// Read at an offset: the command writes at the file's own.
    fn text(&self) -> io::Result<String> {
        let length = usize::try_from(self.0.metadata()?.len()).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(OUTPUT_BYTES_MAX)];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
