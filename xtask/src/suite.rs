//! Everything that `make test` runs, and its sum: one plain last line.
//!
//! A step that fails does not keep the later ones from running. A test that could not run here has
//! written why to the file that `POLYLANE_TEST_SKIPS` names; it counts as skipped, not as passed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What was counted so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: usize,
    failed: usize,
    /// Test binaries that said that they begin and have not said how they ended.
    running: usize,
}

impl Tally {
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

    /// Runs `cargo test` with these arguments, shows what it prints and counts its tests. One that
    /// fails without a failed test (it does not compile, a binary crashed) counts as one failure.
    pub fn cargo_test(&mut self, root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(root).arg("test").arg("--no-fail-fast").args(args);
        command.envs(env.iter().copied()).stdout(Stdio::piped());
        let mut child = command.spawn().context("run cargo")?;
        let output = child.stdout.take().context("cargo's output")?;
        let failed_before = self.failed;
        for line in BufReader::new(output).lines() {
            let line = line.context("read cargo's output")?;
            println!("{line}");
            self.count(&line);
        }
        self.all_ended();
        let status = child.wait().context("wait for cargo")?;
        if !status.success() && self.failed == failed_before {
            eprintln!("xtask: FAILED cargo test {}", args.join(" "));
            self.failed += 1;
        }
        Ok(())
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
        let mut tally = Tally::default();
        tally.count("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.count("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured");
        tally.step("fmt", Ok(()));
        tally.step("tidy", Err(anyhow::anyhow!("on purpose, in a test")));
        assert_eq!(tally, Tally { passed: 8, failed: 3, running: 0 });
        assert_eq!(tally.sum(2), "6 passed, 3 failed, 2 skipped");
    }

    #[test]
    fn a_crashed_binary_is_a_failure() {
        let mut tally = Tally::default();
        tally.count("running 3 tests");
        tally.count("running 1 test");
        tally.count("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured");
        tally.all_ended();
        assert_eq!(tally, Tally { passed: 1, failed: 1, running: 0 });
    }
}
