//! Test binaries, several at a time: most whole-system tests wait for a disk, a clock or a process,
//! so that one binary alone leaves the cores idle.
//!
//! Cargo builds them and says where they are; each runs under a time limit ([`crate::limit`]) with
//! its output in a file, which is printed when it ends.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// At most so many at a time: each starts threads of its own.
const SIDE_BY_SIDE_MAX: usize = 4;

/// Test binaries that take the longest: of their kind they begin first, so that none of them runs
/// alone at the end.
const LONGEST: &[&str] = &[
    "posix",
    "apps",
    "volume_cut",
    "longtail",
    "images",
    "ext4",
    "kernel",
    "crash",
    "shares",
    "block",
    "shm",
    "vfs",
];

/// Test binaries that compare times or rates, or start whole machines: nothing runs beside them.
const ALONE: &[&str] = &["qos", "run_limits", "guest", "vhost", "vhost_journals"];

/// A dot a test is enough to say of a room's own.
const QUIET: &[&str] = &["--quiet"];

/// A test binary that cargo built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binary {
    /// As Cargo.toml or the file's name has it.
    pub name: String,
    path: PathBuf,
    /// The package's folder: where cargo would start it.
    folder: PathBuf,
    /// It runs lanes and programs as their users do, and is no room's own.
    pub of_whole_system: bool,
}

/// What a test binary said, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub binary: Binary,
    pub output: String,
    pub success: bool,
    pub took: Duration,
}

impl Ended {
    /// Names of the tests that failed.
    pub fn failed_tests(&self) -> BTreeSet<String> {
        self.output.lines().filter_map(failed_test).map(str::to_owned).collect()
    }
}

/// The name in libtest's `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// How test binaries are started.
#[derive(Debug)]
pub struct Runner<'a> {
    /// A copy of this program, which sets the limit.
    pub limited: &'a Path,
    /// Where output is kept while a binary runs.
    pub outputs: &'a Path,
    pub env: &'a [(&'a str, &'a str)],
}

/// Has cargo build the test binaries of the packages that `args` select.
///
/// # Errors
/// Cargo cannot be started, or something does not compile; cargo has said what.
pub fn build(root: &Path, args: &[&str]) -> Result<Vec<Binary>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("run cargo")?;
    if !output.status.success() {
        bail!("cargo test --no-run {}", args.join(" "));
    }
    let mut binaries: Vec<Binary> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(artifact).collect();
    binaries.sort_by_key(|binary| {
        let place = LONGEST.iter().position(|name| *name == binary.name);
        (binary.of_whole_system, place.unwrap_or(LONGEST.len()), binary.name.clone())
    });
    Ok(binaries)
}

/// The test binary in a line of cargo's JSON, if it tells of one.
fn artifact(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Binary {
        name: message["target"]["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
        of_whole_system: folder.ends_with("tests"),
        folder,
    })
}

impl Runner<'_> {
    /// Runs all of them, those of the whole system with these arguments, and hands each over when
    /// it has ended: first one more side by side than the machine has cores, then those of
    /// [`ALONE`].
    pub fn run(
        &self,
        binaries: Vec<Binary>,
        args: &[&str],
        mut ended: impl FnMut(Ended),
    ) -> Result<()> {
        let (alone, together): (VecDeque<_>, VecDeque<_>) =
            binaries.into_iter().partition(|binary| ALONE.contains(&binary.name.as_str()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for (queue, most) in [(together, (cores + 1).min(SIDE_BY_SIDE_MAX)), (alone, 1)] {
            let queue = Mutex::new(queue);
            let (tell, told) = mpsc::channel();
            std::thread::scope(|scope| -> Result<()> {
                for _ in 0..most {
                    let (tell, queue) = (tell.clone(), &queue);
                    scope.spawn(move || {
                        while let Some(binary) = next(queue) {
                            let args = if binary.of_whole_system { args } else { QUIET };
                            drop(tell.send(self.one(binary, args)));
                        }
                    });
                }
                drop(tell);
                hand_over(&told, &mut ended)
            })?;
        }
        Ok(())
    }

    /// Runs one, to its end or that of its time.
    pub fn one<S: AsRef<OsStr>>(&self, binary: Binary, args: &[S]) -> Result<Ended> {
        let path = self.outputs.join(binary.path.file_name().context("a test binary's name")?);
        let output = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let begun = Instant::now();
        let mut command = Command::new(self.limited);
        command.arg("limited").arg(&binary.path).args(args).current_dir(&binary.folder);
        command.env("CARGO_MANIFEST_DIR", &binary.folder).envs(self.env.iter().copied());
        command.stdin(Stdio::null()).stderr(output.try_clone().context("a test's output")?);
        let status = command.stdout(output).status().context("start a test binary")?;
        let output = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Ended { binary, output, success: status.success(), took: begun.elapsed() })
    }
}

fn next(queue: &Mutex<VecDeque<Binary>>) -> Option<Binary> {
    queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front()
}

fn hand_over(told: &Receiver<Result<Ended>>, ended: &mut impl FnMut(Ended)) -> Result<()> {
    told.iter().try_for_each(|one| one.map(&mut *ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test apps::git ... FAILED"), Some("apps::git"));
        assert_eq!(failed_test("test apps::git ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 4 passed; 2 failed"), None);
    }

    #[test]
    fn test_binaries_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/p/tests/Cargo.toml",
            "target":{"name":"apps"},"profile":{"test":true},"executable":"/t/apps-01"}"#;
        let binary = artifact(&line.replace('\n', "")).expect("a test binary");
        assert_eq!(
            (binary.name.as_str(), binary.folder.as_path()),
            ("apps", Path::new("/p/tests"))
        );
        assert!(binary.of_whole_system);
        for other in ["", "{}", r#"{"reason":"build-finished"}"#] {
            assert_eq!(artifact(other), None);
        }
        assert_eq!(
            artifact(&line.replace('\n', "").replace("\"test\":true", "\"test\":false")),
            None
        );
    }
}
