//! `limits`: one user who has all that a user may have of a service, and wants more of all of it at
//! once; how long another user's empty requests take beside.
//!
//! The user is a process that speaks the wire itself ([`worker::limits`](crate::worker::limits)).

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::histogram::Histogram;
use crate::report::{Better, Report};
use crate::tools::{fast_way, path, polylane};
use crate::worker::limits::{Client, LOAD};
use crate::{Options, progress};

/// Who that is: a number that no host gives out.
const USER: u32 = 54_321;

/// # Errors
/// The caller is not root, or a lane or a client cannot be started.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(rustix::process::geteuid().is_root(), "needs root: it acts as another user");
    let title = "empty request of one user beside another that is at all limits at once";
    let mut report = Report::new("limits", title, "beside", "µs (p50)", Better::Lower);
    report.baseline = "root".into();
    let time = Duration::from_millis(if options.quick { 1000 } else { 4000 });
    for repeat in 0..options.repeats() {
        progress(&format!("limits, repeat {}", repeat + 1));
        let lane = Lane::new()?;
        let own = Client::connect(&lane.socket, &lane.at)?;
        let mut add = |point: &str, found: Histogram| {
            let found = found.summary();
            let extra = [("p99_us", found.p99_ns / 1e3), ("max_us", found.max_ns / 1e3)];
            report.add("root", point, found.p50_ns / 1e3, &extra);
        };
        add("nobody", own.pings(time)?);
        let computes = Busy::start(&["sh", "-c", "echo; while :; do :; done"], &lane)?;
        add("one that computes", own.pings(time)?);
        drop(computes);
        let program = std::env::current_exe().context("own path")?;
        let words = [path(&program)?, "bench", "worker", LOAD, path(&lane.at)?, "600s"];
        let user = Busy::start(&words, &lane)?;
        add("one at all limits", own.pings(time)?);
        if repeat == 0 {
            report.notes.push(format!("that user has {}", user.said));
        }
    }
    report.notes.push("requests follow one another from one client that spins for replies".into());
    Ok(report)
}

/// A lane in memory, at a path that every user may search.
struct Lane {
    at: PathBuf,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Lane {
    fn new() -> Result<Lane> {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().context("directory for the lane")?;
        let at = dir.path().join("lane");
        std::fs::create_dir(&at)?;
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        };
        open(dir.path(), 0o755)?;
        polylane(&["mount", "mem:256M", path(&at)?])?;
        let mut lane = Lane { at, socket: PathBuf::new(), _dir: dir };
        open(&lane.at, 0o777)?;
        std::fs::write(lane.at.join("f"), "x")?;
        open(&lane.at.join("f"), 0o666)?;
        lane.socket = fast_way(&lane.at)?.1.join("socket");
        Ok(lane)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = path(&self.at).and_then(|at| polylane(&["umount", "-l", at]));
    }
}

/// A process of the other user, from when it said a line; it ends with this.
struct Busy {
    process: Child,
    said: String,
}

impl Busy {
    fn start(words: &[&str], lane: &Lane) -> Result<Busy> {
        let [program, rest @ ..] = words else { bail!("no program") };
        let mut command = Command::new(program);
        command.args(rest).env("LIMITS_SOCKET", &lane.socket);
        command.uid(USER).gid(USER).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = command.spawn().with_context(|| (*program).to_string())?;
        let mut busy = Busy { process, said: String::new() };
        let out = busy.process.stdout.as_mut().context("its output")?;
        BufReader::new(out).read_line(&mut busy.said)?;
        busy.said.truncate(busy.said.trim_end().len());
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
