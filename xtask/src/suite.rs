//! Everything that `make test` runs, and its sum: one plain last line.
//!
//! A step that fails does not keep the later ones from running. A test that could not run here has
//! written why to the file that `POLYLANE_TEST_SKIPS` names; it counts as skipped, not as passed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::limit::{DEADLINE, FLAKY, RUN_AGAIN};

/// How long everything may take: a check that hangs is told by its own report, within the 90
/// minutes that CI gives it with its builds.
const WHOLE: Duration = Duration::from_secs(65 * 60);

/// What was counted so far.
#[derive(Debug)]
pub struct Tally {
    begun: SystemTime,
    passed: usize,
    failed: usize,
    /// Test binaries that said that they begin and have not said how they ended.
    running: usize,
    /// Tests that failed and passed when they were run again.
    flaky: Vec<String>,
}

impl Tally {
    /// Nothing yet; the time begins.
    pub fn new() -> Self {
        Self { begun: SystemTime::now(), passed: 0, failed: 0, running: 0, flaky: Vec::new() }
    }

    /// Counts a step that is no test binary: as one test.
    pub fn step(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                eprintln!("xtask: FAILED {name}: {error:#}");
                self.failed += 1;
            }
        }
    }

    /// Runs `cargo test` with these arguments, each test binary under a time limit
    /// ([`crate::limit`]), shows what it prints and counts its tests. One that fails without a
    /// failed test (it does not compile, a binary crashed or hung) counts as one failure.
    pub fn cargo_test(&mut self, root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(root).arg("test").arg("--no-fail-fast");
        // Before `args`: what comes after a "--" there is the tests'.
        command.arg("--config").arg(self.runner()?).args(args);
        command.env(DEADLINE, self.deadline().to_string());
        command.envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("run cargo")?;
        let output = child.stdout.take().context("cargo's output")?;
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| told.send(line))
        });
        let failed_before = self.failed;
        loop {
            match lines.recv_timeout(Duration::from_secs(1)) {
                Ok(line) => {
                    println!("{line}");
                    self.count(&line);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                // A process that cannot die may hold cargo's output open for ever.
                Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.all_ended();
        let status = child.wait().context("wait for cargo")?;
        if !status.success() && self.failed == failed_before {
            eprintln!("xtask: FAILED cargo test {}", args.join(" "));
            self.failed += 1;
        }
        Ok(())
    }

    /// Cargo's setting that puts this program in front of each test binary: a copy, since the
    /// workspace's build may replace the program.
    fn runner(&self) -> Result<String> {
        let copy = crate::target_dir().join("xtask-limited");
        let unfinished = copy.with_extension("new");
        let me = std::env::current_exe().context("this program's path")?;
        std::fs::create_dir_all(crate::target_dir()).context("target directory")?;
        std::fs::copy(&me, &unfinished).context("copy this program")?;
        std::fs::rename(&unfinished, &copy).context("name the copy of this program")?;
        let copy = copy.to_str().context("target directory is not UTF-8")?;
        Ok(format!(r#"target."cfg(unix)".runner = ["{copy}", "limited"]"#))
    }

    /// When test binaries that still run are ended, seconds since the epoch.
    fn deadline(&self) -> u64 {
        let begun = self.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        (begun + WHOLE).as_secs()
    }

    /// A binary that begins and never says how its tests ended has crashed: one failure. They are
    /// counted at the end, because one may start another.
    fn all_ended(&mut self) {
        self.failed += std::mem::take(&mut self.running);
    }

    /// Adds up a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn count(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.running += 1;
        }
        if let Some(test) = line.strip_prefix(FLAKY) {
            self.flaky.push(test.to_string());
        }
        if let Some(count) = line.strip_prefix(RUN_AGAIN) {
            self.failed = self.failed.saturating_sub(count.parse().unwrap_or(0));
        }
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.running = self.running.saturating_sub(1);
        for part in counts.split(';') {
            match part.trim().split_once(' ') {
                Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Prints the sum, with the reasons of what was skipped.
    pub fn finish(self, skips: &Path) -> Result<()> {
        let reasons = std::fs::read_to_string(skips).unwrap_or_default();
        print!("{reasons}");
        self.flaky.iter().for_each(|test| println!("flaky, passed when run again: {test}"));
        println!("{}", self.sum(reasons.lines().count()));
        match self.failed {
            0 => Ok(()),
            count => bail!("{count} failed"),
        }
    }

    fn sum(&self, skipped: usize) -> String {
        let passed = self.passed.saturating_sub(skipped);
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let mut tally = Tally::new();
        tally.count("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.count("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured");
        tally.step("fmt", Ok(()));
        tally.step("tidy", Err(anyhow::anyhow!("on purpose, in a test")));
        assert_eq!((tally.passed, tally.failed, tally.running), (8, 3, 0));
        assert_eq!(tally.sum(2), "6 passed, 3 failed, 2 skipped");
    }

    #[test]
    fn a_test_that_passes_the_second_time_is_told() {
        let mut tally = Tally::new();
        tally.count("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured");
        tally.count("xtask: failed tests that are run again: 2");
        tally.count("test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured");
        tally.count("xtask: FLAKY attach-0123: grows");
        assert_eq!((tally.passed, tally.failed), (5, 1));
        assert_eq!(tally.flaky, ["attach-0123: grows"]);
    }

    #[test]
    fn a_crashed_binary_is_a_failure() {
        let mut tally = Tally::new();
        tally.count("running 3 tests");
        tally.count("running 1 test");
        tally.count("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured");
        tally.all_ended();
        assert_eq!((tally.passed, tally.failed, tally.running), (1, 1, 0));
    }
}
