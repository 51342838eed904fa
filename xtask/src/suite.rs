//! Everything that `make test` runs, and its sum: one plain last line.
//!
//! A step that fails does not keep the later ones from running. A test that could not run here has
//! written why to the file that `POLYLANE_TEST_SKIPS` names; it counts as skipped, not as passed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::binaries::{self, Binary, Ended, Runner};
use crate::limit::DEADLINE;

/// How long everything may take: a check that hangs is told by its own report, within the 90
/// minutes that CI gives it with its builds.
const WHOLE: Duration = Duration::from_secs(65 * 60);

/// What was counted so far.
#[derive(Debug)]
pub struct Tally {
    begun: SystemTime,
    passed: usize,
    failed: usize,
    /// Tests that failed and passed when they were run again.
    flaky: Vec<String>,
}

impl Tally {
    /// Nothing yet; the time begins.
    pub fn new() -> Self {
        Self { begun: SystemTime::now(), passed: 0, failed: 0, flaky: Vec::new() }
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

    /// Builds the test binaries that `args` select and runs them side by side, those of the whole
    /// system with `words`, each under a time limit ([`crate::limit`]); shows what they print and
    /// counts their tests. Tests of the whole system, which have real programs, kernels and clocks,
    /// are run once more, alone, when they failed and all others have ended: the second outcome
    /// counts and the first is told. The rooms' own tests get no second chance. What does not
    /// compile is one failure, and so is a binary that fails without a failed test: it crashed or
    /// hung.
    pub fn tests(
        &mut self,
        root: &Path,
        args: &[&str],
        words: &[&str],
        env: &[(&str, &str)],
    ) -> Result<()> {
        let binaries = match binaries::build(root, args) {
            Ok(binaries) => binaries,
            Err(error) => {
                self.step("build of tests", Err(error));
                return Ok(());
            }
        };
        let limited = self.limited()?;
        let outputs = crate::target_dir().join("test-output");
        std::fs::create_dir_all(&outputs).context("folder of tests' output")?;
        let deadline = self.deadline().to_string();
        let env = [&[(DEADLINE, deadline.as_str())], env].concat();
        let runner = Runner { limited: &limited, outputs: &outputs, env: &env };
        let mut failed = Vec::new();
        runner.run(binaries, words, |ended| {
            let tests = ended.failed_tests();
            self.ended(&ended);
            if ended.binary.of_whole_system && !tests.is_empty() {
                failed.push((ended.binary, tests));
            }
        })?;
        failed.into_iter().try_for_each(|(binary, tests)| self.again(&runner, binary, &tests))
    }

    /// Shows what a test binary said and counts its tests.
    fn ended(&mut self, ended: &Ended) {
        println!("{}: {:.1} s", ended.binary.name, ended.took.as_secs_f64());
        print!("{}", ended.output);
        let before = self.failed;
        let mut running = 0;
        ended.output.lines().for_each(|line| self.count(line, &mut running));
        // One that begins and never says how its tests ended has crashed.
        self.failed += running;
        if !ended.success && self.failed == before {
            eprintln!("xtask: FAILED {}", ended.binary.name);
            self.failed += 1;
        }
    }

    /// Runs tests that failed once more, one at a time.
    fn again(
        &mut self,
        runner: &Runner<'_>,
        binary: Binary,
        tests: &BTreeSet<String>,
    ) -> Result<()> {
        let mut words = vec!["--exact", "--test-threads=1"];
        words.extend(tests.iter().map(String::as_str));
        println!("{}: {} that failed are run again", binary.name, tests.len());
        let second = runner.one(binary, &words)?;
        self.failed = self.failed.saturating_sub(tests.len());
        self.ended(&second);
        let still = second.failed_tests();
        let flaky = tests.difference(&still).filter(|_| second.output.contains("test result: "));
        self.flaky.extend(flaky.map(|test| format!("{}: {test}", second.binary.name)));
        Ok(())
    }

    /// Runs `cargo test` as it is with these arguments, for documents' examples, and counts.
    pub fn examples(&mut self, root: &Path, args: &[&str]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(root).args(["test", "--doc", "--no-fail-fast"]).args(args);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.context("run cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}");
        let (before, mut running) = (self.failed, 0);
        text.lines().for_each(|line| self.count(line, &mut running));
        if !output.status.success() && self.failed == before {
            self.step("examples in documents", Err(anyhow::anyhow!("cargo test --doc failed")));
        }
        Ok(())
    }

    /// A copy of this program, which sets tests their limit: the workspace's build may replace the
    /// program itself.
    fn limited(&self) -> Result<PathBuf> {
        let copy = crate::target_dir().join("xtask-limited");
        let unfinished = copy.with_extension("new");
        let me = std::env::current_exe().context("this program's path")?;
        std::fs::create_dir_all(crate::target_dir()).context("target directory")?;
        std::fs::copy(&me, &unfinished).context("copy this program")?;
        std::fs::rename(&unfinished, &copy).context("name the copy of this program")?;
        Ok(copy)
    }

    /// When test binaries that still run are ended, seconds since the epoch.
    fn deadline(&self) -> u64 {
        let begun = self.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        (begun + WHOLE).as_secs()
    }

    /// Adds up a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    /// `running`: test binaries that said that they begin and have not said how they ended; one may
    /// start another.
    fn count(&mut self, line: &str, running: &mut usize) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            *running += 1;
        }
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        *running = running.saturating_sub(1);
        for part in counts.split(';') {
            match part.trim().split_once(' ') {
                Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Prints the sum, with the reasons of what was skipped: a line each.
    ///
    /// # Errors
    /// Something failed.
    pub fn finish(self, reasons: &str) -> Result<()> {
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

    fn ended(output: &str, success: bool) -> Ended {
        let binary = Binary::default();
        Ended { binary, output: output.to_owned(), success, took: Duration::ZERO }
    }

    #[test]
    fn results_are_added_up() {
        let mut tally = Tally::new();
        tally.ended(&ended("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured", true));
        tally.ended(&ended("test result: FAILED. 4 passed; 2 failed; 0 ignored", false));
        tally.step("fmt", Ok(()));
        tally.step("tidy", Err(anyhow::anyhow!("on purpose, in a test")));
        assert_eq!((tally.passed, tally.failed), (8, 3));
        assert_eq!(tally.sum(2), "6 passed, 3 failed, 2 skipped");
    }

    #[test]
    fn a_crashed_binary_is_a_failure() {
        let mut tally = Tally::new();
        let one_of_two = "running 3 tests\nrunning 1 test\ntest result: ok. 1 passed; 0 failed";
        tally.ended(&ended(one_of_two, false));
        assert_eq!((tally.passed, tally.failed), (1, 1));
        tally.ended(&ended("running 1 test\ntest result: ok. 1 passed; 0 failed", false));
        assert_eq!((tally.passed, tally.failed), (2, 2), "it failed without a failed test");
    }
}
