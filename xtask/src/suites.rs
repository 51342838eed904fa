//! `cargo xtask suites`: test suites of other projects in lanes, beside the host in the same run.
//!
//! A suite is a shell script `tests/suites/NAME.sh`. `prepare` gets the suite and builds it below
//! `BUILT` (a directory of the host that stays); it exits 77 after a line that says why the suite
//! cannot be had here. `run` starts in an empty directory, runs the suite in it and appends a line
//! per test to `RESULTS`: `pass NAME` or `fail NAME`; a test that was skipped has no line. Where
//! `ONLY` names a file, it has the names of the tests to run, one a line.
//!
//! `run` is done in a directory of the host, then in a lane on an ext4 volume by the library, then
//! by FUSE alone; e2fsck looks at the volume after each. A test is a difference if it passes on the
//! host and does not in the lane; a lane's result that matters is taken again, and only what both
//! runs say counts. `tests/suites/known.txt` lists the known differences ([`crate::known`]). What a
//! script printed is in `suites-NAME-DOOR.log` beside the binary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::apps::{Scratch, is_there, last_line, patience};
use crate::campaign::{now, said};
use crate::known::{Door, Judgement, Known, Outcomes, judge};

/// A suite, and what its script needs.
pub struct Suite {
    /// Its script's name, and its name in the list of known differences.
    pub name: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    /// Seconds after which one run of it has failed.
    limit: u32,
}

const fn suite(
    name: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    limit: u32,
) -> Suite {
    Suite { name, about, needs, limit }
}

/// Every suite there is a script of.
pub const SUITES: &[Suite] = &[
    suite("cpython", "CPython's tests of files and processes", &["/usr/bin/python3"], 1800),
    suite("go", "Go's tests of os, os/exec, io, path/filepath, syscall and others", &["go"], 1800),
    suite("libuv", "libuv's tests of files, watches and processes", &["cmake", "cc"], 1800),
    suite("git", "git's tests of its files, 31 scripts", &["make", "cc"], 3600),
    suite("gvisor", "gVisor's tests of system calls on files", &[], 3600),
];

/// The exit status of a script that says why its suite cannot be had here.
const SKIPPED: i32 = 77;

/// How a run of a suite ended: each test's outcome, or why there are none.
type Ended = std::result::Result<Outcomes, String>;

/// Where things are.
struct Places<'a> {
    root: &'a Path,
    target: &'a Path,
    binary: PathBuf,
}

/// What was found by one door.
struct Found {
    door: Door,
    judgement: Judgement,
}

/// Runs the named suites, or all; prints a table in Markdown and writes what was found to
/// `docs/results/DATE/suites-NAME.json`.
///
/// # Errors
/// There is a difference that is not listed, a listed one that is none, or a run did not end.
pub fn run(root: &Path, target: &Path, names: &[String]) -> Result<()> {
    if let Some(wrong) = names.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        bail!("there is no suite '{wrong}'");
    }
    let binary = std::env::var_os("POLYLANE_BIN")
        .map_or_else(|| target.join("release/polylane"), PathBuf::from);
    ensure!(binary.exists(), "{} is missing; run make build", binary.display());
    let places = Places { root, target, binary };
    let known = Known::read(root)?;
    let mut table =
        String::from("| suite | what | host | library | FUSE only |\n|---|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for suite in SUITES.iter().filter(|s| names.is_empty() || names.iter().any(|n| n == s.name)) {
        let cells = match suite.prepare(&places)? {
            Some(reason) => format!(" skipped: {reason} | – | – |"),
            None => suite.beside_the_host(&places, &known, &mut wrong)?,
        };
        let row = format!("| {} | {} |{cells}", suite.name, suite.about);
        eprintln!("xtask: {row}");
        table += &(row + "\n");
    }
    println!("{table}");
    for line in &wrong {
        println!("{line}");
    }
    ensure!(wrong.is_empty(), "{} unexpected", wrong.len());
    Ok(())
}

impl Suite {
    /// Builds the suite; why it cannot be had here, if it cannot.
    fn prepare(&self, places: &Places) -> Result<Option<String>> {
        if let Some(tool) = self.needs.iter().find(|tool| !is_there(tool)) {
            return Ok(Some(format!("no {tool}")));
        }
        let log = places.log(self, "prepare");
        let mut command = Command::new("sh");
        command.arg("-eu").arg(places.script(self)).arg("prepare");
        self.environment(places, &mut command)?;
        let done = command.output().context("run sh")?;
        std::fs::write(&log, &done.stderr).with_context(|| log.display().to_string())?;
        match done.status.code() {
            Some(0) => Ok(None),
            Some(SKIPPED) => Ok(Some(last_line(&done.stdout))),
            _ => bail!("{} could not be built; see {}", self.name, log.display()),
        }
    }

    /// Runs the suite on the host and by each door: the row's cells. What is unexpected is added to
    /// `wrong`.
    fn beside_the_host(
        &self,
        places: &Places,
        known: &Known,
        wrong: &mut Vec<String>,
    ) -> Result<String> {
        let begin = Instant::now();
        let host = match self.outcomes(places, None, &[])? {
            Ok(outcomes) => outcomes,
            Err(reason) => return Ok(format!(" skipped: fails on the host: {reason} | – | – |")),
        };
        let passes = host.values().filter(|passed| **passed).count();
        let mut cells =
            format!(" {passes} of {} pass, {} s |", host.len(), begin.elapsed().as_secs());
        let mut found = Vec::new();
        for door in [Door::Library, Door::Fuse] {
            let begin = Instant::now();
            let judgement = match self.judged(places, known, &host, door)? {
                Ok(judgement) => judgement,
                Err(reason) => {
                    wrong.push(format!("{} {door}: {reason}", self.name));
                    let _ = write!(cells, " **fails**: {reason} |");
                    continue;
                }
            };
            let _ = write!(cells, " {judgement}, {} s |", begin.elapsed().as_secs());
            wrong.extend(judgement.wrong().map(|line| format!("{} {door}: {line}", self.name)));
            found.push(Found { door, judgement });
        }
        self.keep(places, host.len(), passes, &found)?;
        Ok(cells)
    }

    /// The suite by one door, judged; what would count as wrong is run once more by itself.
    fn judged(
        &self,
        places: &Places,
        known: &Known,
        host: &Outcomes,
        door: Door,
    ) -> Result<std::result::Result<Judgement, String>> {
        let listed = known.of(self.name, door);
        let mut lane = match self.outcomes(places, Some(door), &[])? {
            Ok(outcomes) => outcomes,
            Err(reason) => return Ok(Err(reason)),
        };
        let first = judge(host, &lane, &listed);
        let again = first.to_run_again();
        if again.is_empty() {
            return Ok(Ok(first));
        }
        let second = match self.outcomes(places, Some(door), &again)? {
            Ok(outcomes) => outcomes,
            Err(reason) => return Ok(Err(format!("run again: {reason}"))),
        };
        for name in again {
            let passes = second.get(&name).copied().unwrap_or(false);
            lane.insert(name, passes);
        }
        let mut judgement = judge(host, &lane, &listed);
        judgement.flaky = first.unlisted.iter().filter(|n| lane[*n]).cloned().collect();
        Ok(Ok(judgement))
    }

    /// One run: on the host, or in a lane by `door`; the tests of `only`, or all.
    fn outcomes(&self, places: &Places, door: Option<Door>, only: &[String]) -> Result<Ended> {
        let dir = Scratch::new(&format!("suite-{}", self.name))?;
        let (volume, results) = (dir.0.join("volume.img"), dir.0.join("results"));
        let place = dir.0.join("place");
        std::fs::create_dir(&place).with_context(|| place.display().to_string())?;
        let limit = self.limit * patience();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=20", &limit.to_string()]);
        if let Some(door) = door {
            command.arg(&places.binary).args(["run", "--size", "8G", "--volume"]).arg(&volume);
            command.args(["--at", "/lane"]);
            command.args((door == Door::Fuse).then_some("--no-preload")).arg("--");
        }
        let start = if door.is_some() { Path::new("/lane") } else { &place };
        let script = places.script(self);
        command
            .args(["sh", "-euc", "cd \"$1\"; exec sh -eu \"$2\" run", "sh"])
            .arg(start)
            .arg(script);
        self.environment(places, &mut command)?;
        if !only.is_empty() {
            let list = dir.0.join("only");
            std::fs::write(&list, only.join("\n") + "\n").context("write the list of tests")?;
            command.env("ONLY", list);
        }
        let done = command.env("RESULTS", &results).output().context("run timeout")?;
        let log = places.log(self, door.map_or("host", Door::name));
        std::fs::write(&log, [done.stdout, done.stderr].concat())
            .with_context(|| log.display().to_string())?;
        match done.status.code() {
            Some(0) => {}
            Some(124 | 137) => return Ok(Err(format!("not done after {limit} s"))),
            code => {
                return Ok(Err(format!("status {}, see {}", code.unwrap_or(-1), log.display())));
            }
        }
        if door.is_some() {
            let check =
                Command::new(&places.binary).args(["volume", "check"]).arg(&volume).output();
            let check = check.context("run volume check")?;
            if !check.status.success() {
                return Ok(Err(format!("volume check: {}", last_line(&check.stderr))));
            }
        }
        let text = std::fs::read_to_string(&results).context("the script wrote no results")?;
        Ok(Ok(read_outcomes(&text)))
    }

    fn environment(&self, places: &Places, command: &mut Command) -> Result<()> {
        let built = places.target.join("suites").join(self.name);
        std::fs::create_dir_all(&built).with_context(|| built.display().to_string())?;
        command.env("BUILT", built).env("SUITES", places.root.join("tests/suites"));
        command.env_remove("ONLY").stdin(Stdio::null());
        Ok(())
    }

    /// Writes what was found to `docs/results/DATE/suites-NAME.json`.
    fn keep(&self, places: &Places, tests: usize, passes: usize, found: &[Found]) -> Result<()> {
        let folder = places.root.join("docs/results").join(said("date", &["-u", "+%F"])?);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let doors: Vec<Value> = found.iter().map(Found::as_json).collect();
        let value = json!({
            "command": format!("cargo xtask suites {}", self.name),
            "date": now()?,
            "revision": said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_default(),
            "machine": said("uname", &["-srm"])?,
            "tests": tests,
            "pass_on_host": passes,
            "doors": doors,
        });
        let path = folder.join(format!("suites-{}.json", self.name));
        let text = serde_json::to_string_pretty(&value).context("results as JSON")?;
        std::fs::write(&path, text + "\n").with_context(|| path.display().to_string())
    }
}

impl Found {
    fn as_json(&self) -> Value {
        let Judgement { same, known, unlisted, needless, flaky } = &self.judgement;
        json!({
            "door": self.door.name(),
            "as_on_host": same,
            "known_differences": known,
            "unlisted_differences": unlisted,
            "listed_and_pass": needless,
            "passed_when_run_again": flaky,
        })
    }
}

impl Places<'_> {
    fn script(&self, suite: &Suite) -> PathBuf {
        self.root.join(format!("tests/suites/{}.sh", suite.name))
    }

    fn log(&self, suite: &Suite, what: &str) -> PathBuf {
        self.target.join(format!("suites/{}-{what}.log", suite.name))
    }
}

/// The outcomes that a script wrote. A test with several lines passes if every line says so.
fn read_outcomes(text: &str) -> Outcomes {
    let mut outcomes = BTreeMap::new();
    for line in text.lines() {
        let (passed, name) = match line.split_once(' ') {
            Some(("pass", name)) => (true, name),
            Some(("fail", name)) => (false, name),
            _ => continue,
        };
        *outcomes.entry(name.to_string()).or_insert(true) &= passed;
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_with_several_lines_passes_if_each_says_so() {
        let outcomes = read_outcomes("pass a b\nfail c\npass c\npass d\nfail d\nnoise\n");
        let expected = [("a b", true), ("c", false), ("d", false)];
        assert!(outcomes.iter().map(|(name, passed)| (name.as_str(), *passed)).eq(expected));
    }

    #[test]
    fn every_suite_has_a_script_and_every_script_is_a_suite() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/suites");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let scripts = files.filter(|path| path.extension().is_some_and(|end| end == "sh"));
        let mut there: Vec<_> =
            scripts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
        let mut named: Vec<_> = SUITES.iter().map(|suite| suite.name.to_string()).collect();
        there.sort();
        named.sort();
        assert_eq!(there, named);
    }
}
