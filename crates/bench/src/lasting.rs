//! Lanes that last, each in a pool of its own as a host's tenants have them, and loads in them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::tools::{fast_way, path, polylane};
use crate::worker::Outcome;

/// A lane in a pool that has nothing else. Dropped, both are gone.
pub(crate) struct Lane {
    at: PathBuf,
    pool: String,
    /// Its other mounts, the last first.
    shares: Vec<PathBuf>,
    /// What gives a program the fast way.
    environment: Vec<(String, String)>,
    run: PathBuf,
}

impl Lane {
    /// Makes a pool with these limits, and mounts a lane in it. The mount path is in `dir`, by the
    /// pool's name.
    ///
    /// # Errors
    /// Not root; the pool or the lane cannot be made.
    pub(crate) fn mount(dir: &Path, name: &str, limits: &[&str], source: &[&str]) -> Result<Lane> {
        let pool = format!("bench-{}-{name}", std::process::id());
        let at = dir.join(name);
        std::fs::create_dir(&at).with_context(|| format!("create {}", at.display()))?;
        polylane(&[&["pool", "create", &pool], limits].concat())?;
        let (shares, environment, run) = (Vec::new(), Vec::new(), PathBuf::new());
        let mut lane = Lane { at, pool, shares, environment, run };
        lane.mount_at(&lane.at, &[], source)?;
        (lane.environment, lane.run) = fast_way(&lane.at)?;
        Ok(lane)
    }

    /// One more mount of the same service.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn share(&mut self, source: &[&str]) -> Result<PathBuf> {
        let at = self.at.with_extension(format!("share{}", self.shares.len()));
        std::fs::create_dir(&at).with_context(|| format!("create {}", at.display()))?;
        self.mount_at(&at, &["--share"], source)?;
        self.shares.insert(0, at.clone());
        Ok(at)
    }

    fn mount_at(&self, at: &Path, words: &[&str], source: &[&str]) -> Result<()> {
        let all = [&["mount", "--pool", &self.pool], words, source, &[path(at)?]].concat();
        polylane(&all).map(drop)
    }

    /// Where it is.
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// The directory with its socket and library.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run
    }

    /// Its pool.
    pub(crate) fn pool(&self) -> &str {
        &self.pool
    }

    /// What gives a program the fast way into it.
    pub(crate) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// Its statistics.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn stats(&self) -> Result<Value> {
        let name = format!("{}@1", self.pool);
        let mut all: Value =
            serde_json::from_str(&polylane(&["stats", "--json", "--pool", &name])?)?;
        Ok(all[0].take())
    }

    /// Its service's process.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub(crate) fn service(&self) -> Result<u32> {
        let pid = self.stats()?["service_pid"].as_u64().context("a lane without a service")?;
        Ok(u32::try_from(pid)?)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let gone = self.shares.iter().chain([&self.at]).try_for_each(|at| {
            polylane(&[OsStr::new("umount"), OsStr::new("-l"), at.as_os_str()]).map(drop)
        });
        let gone = gone.and_then(|()| polylane(&["pool", "rm", &self.pool]).map(drop));
        if let Err(error) = gone {
            eprintln!("polylane: bench: lanes: {error:#}");
        }
    }
}

/// A worker (`bench worker`) that is ready. Dropped, it has ended.
pub(crate) struct Worker {
    child: Child,
    go: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one by a command that ends in its own words.
    ///
    /// # Errors
    /// It cannot be started, or ends before it is ready.
    pub(crate) fn start(mut command: Command) -> Result<Worker> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
        let go = child.stdin.take().context("its input")?;
        let told = BufReader::new(child.stdout.take().context("its output")?);
        let mut worker = Worker { child, go, told };
        let line = worker.line()?;
        ensure!(line == "ready", "a worker ended before it was ready: {line}");
        Ok(worker)
    }

    /// Lets it work.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn go(&mut self) -> Result<()> {
        Ok(self.go.write_all(b"go\n")?)
    }

    /// What it did, once it has done it.
    ///
    /// # Errors
    /// One of its calls failed.
    pub(crate) fn outcome(mut self) -> Result<Outcome> {
        let line = self.line()?;
        let outcome = Outcome::from_json(&line).context("a worker failed")?;
        self.go.write_all(b"end\n")?;
        let status = self.child.wait().context("wait for a worker")?;
        ensure!(status.success(), "a worker {status}");
        Ok(outcome)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.told.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
