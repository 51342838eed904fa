//! `cargo xtask campaign`: the long runs, one after the other, each with what it said kept under
//! docs/results/. A part that fails does not end the others.
//!
//! `POLYLANE_CAMPAIGN_SECONDS` bounds each part that has no end by itself (default an hour); lists
//! are done whole. Variables that a part sets can be given from outside, for a trial:
//! `POLYLANE_CORRUPT_IMAGES=500 cargo xtask campaign corrupt`. What was cut short is said so.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{PROFILE, fuzz, target_dir};

/// Begins the name of a part that runs a fuzz target, which follows.
const FUZZ: &str = "fuzz-";

/// Begins the command of a whole-system test.
const WHOLE: &str = "cargo test -p polylane-tests --test";

/// What a test says of a list that it did not do whole.
const CUT: &str = "cut short";

/// How a part went.
enum Outcome {
    Whole,
    Cut,
    Failed,
}

impl Outcome {
    fn of(good: bool, text: &str) -> Outcome {
        match good {
            false => Outcome::Failed,
            true if text.contains(CUT) => Outcome::Cut,
            true => Outcome::Whole,
        }
    }
}

/// One part: its name, the command, and what it finds in its environment.
struct Part {
    name: &'static str,
    command: Vec<String>,
    env: Vec<(&'static str, String)>,
    /// Ends with this many seconds of repetition, as often as it fits; 0: once.
    repeat_seconds: u64,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// Lanes on a cluster, for longer than `make test-ceph`.
fn ceph() -> Part {
    let env = [
        ("POLYLANE_CEPH_ALL", "1"),
        ("POLYLANE_CEPH_FSX", "100000"),
        ("POLYLANE_CEPH_CUT", "400"),
        ("POLYLANE_KILLS", "50"),
    ];
    let env = env.map(|(name, value)| (name, value.to_string())).to_vec();
    Part { name: "ceph", command: words("scripts/test-ceph.sh"), env, repeat_seconds: 0 }
}

/// A directory of more than 2 GiB.
fn large_dir() -> Part {
    let test = format!("cargo test {PROFILE} -p polylane-ext4 --test ext4 large_dirs");
    let command = words(&format!("{test} -- --ignored --nocapture"));
    Part { name: "large-dir", command, env: vec![], repeat_seconds: 0 }
}

fn parts(seconds: u64) -> Vec<Part> {
    // What works in the test's own process is built to be fast, with every check.
    let room = |tests: &str| words(&format!("cargo test {PROFILE} -p polylane-ext4 {tests}"));
    let alone = "-- --nocapture --test-threads=1";
    let crash = room(&format!("--test crash {alone}"));
    let corrupt = room(&format!("--test corrupt {alone}"));
    let stress = room("--test ext4 -- stress:: model::");
    let trees = room("--test kernel large_trees -- --ignored --nocapture");
    let whole = |test: &str| words(&format!("{WHOLE} {test} -- --nocapture"));
    let clients = "-p polylane-pool --test hostile_clients -- --nocapture";
    let databases = "-p polylane-pool --test database_cuts -- --nocapture";
    let attach = "cargo test -p polylane-tests --test attach at_length -- --ignored --nocapture";
    // One after the other: the lanes of a disk share it.
    let qos = "cargo test -p polylane-tests --test qos -- --ignored --nocapture --test-threads=1";
    let fuzz = |name: &'static str| {
        let target = name.strip_prefix(FUZZ).unwrap_or(name);
        let command = fuzz::command(&target_dir(), target, seconds);
        Part { name, command, env: vec![], repeat_seconds: 0 }
    };
    let full = || ("POLYLANE_CRASH", "full".to_string());
    let seconds_each = ("POLYLANE_CRASH_SECONDS", seconds.to_string());
    let images = ("POLYLANE_CORRUPT_IMAGES", "100000".to_string());
    vec![
        Part { name: "crash", command: crash, env: vec![full(), seconds_each], repeat_seconds: 0 },
        Part { name: "corrupt", command: corrupt, env: vec![images], repeat_seconds: 0 },
        Part {
            name: "fsx",
            command: whole("posix fsx"),
            env: vec![("POLYLANE_FSX_OPERATIONS", "1000000".to_string())],
            repeat_seconds: 0,
        },
        Part {
            name: "power-cut",
            command: whole("power_cut"),
            env: vec![("POLYLANE_POWER_CUTS", "25".to_string())],
            repeat_seconds: 0,
        },
        Part {
            name: "databases",
            command: words(&format!("cargo test {PROFILE} {databases}")),
            env: vec![full()],
            repeat_seconds: 0,
        },
        Part { name: "stress", command: stress, env: vec![], repeat_seconds: seconds },
        Part {
            name: "clients",
            command: words(&format!("cargo test {PROFILE} {clients}")),
            env: vec![("POLYLANE_CLIENTS_SECONDS", seconds.to_string())],
            repeat_seconds: 0,
        },
        Part {
            name: "ext4-beside-kernel",
            command: whole("ext4_beside_kernel random"),
            env: vec![("POLYLANE_BESIDE_SECONDS", seconds.to_string())],
            repeat_seconds: 0,
        },
        Part { name: "trees", command: trees, env: vec![], repeat_seconds: 0 },
        Part { name: "attach", command: words(attach), env: vec![], repeat_seconds: 0 },
        Part {
            name: "qos",
            command: words(qos),
            env: vec![("POLYLANE_QOS_SECONDS", seconds.to_string())],
            repeat_seconds: 0,
        },
        fuzz("fuzz-image"),
        fuzz("fuzz-fuse"),
        fuzz("fuzz-channel"),
        fuzz("fuzz-virtio"),
    ]
}

/// Runs the parts named, or all; writes what they said to `docs/results/DATE/campaign-NAME.txt`.
///
/// # Errors
/// A part failed, or its results cannot be written.
pub fn run(root: &Path, names: &[String]) -> Result<()> {
    let seconds = std::env::var("POLYLANE_CAMPAIGN_SECONDS").ok().and_then(|s| s.parse().ok());
    let mut parts = parts(seconds.unwrap_or(3600));
    parts.extend([large_dir(), ceph()]);
    if let Some(unknown) = names.iter().find(|name| !parts.iter().any(|part| part.is(name))) {
        bail!("no part is called '{unknown}'");
    }
    let mut failed = Vec::new();
    let wanted = |part: &&Part| names.is_empty() || names.iter().any(|name| part.is(name));
    for part in parts.iter().filter(wanted) {
        let start = Instant::now();
        let ended = part.run(root);
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        match &ended {
            Ok(false) => eprintln!("campaign: {:18} ok      {minutes:6.1} min", part.name),
            Ok(true) => eprintln!("campaign: {:18} ok, {CUT} {minutes:6.1} min", part.name),
            Err(error) => {
                eprintln!("campaign: {:18} FAILED  {minutes:6.1} min: {error:#}", part.name);
                failed.push(part.name);
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("failed: {}", failed.join(", ")),
    }
}

impl Part {
    /// Whether `name` means this part: its own, or `fuzz` for every fuzz target.
    fn is(&self, name: &str) -> bool {
        self.name == name || name == "fuzz" && self.name.starts_with(FUZZ)
    }

    /// Runs the part; whether some of it was cut short.
    fn run(&self, root: &Path) -> Result<bool> {
        let folder = root.join("docs/results").join(said("date", &["-u", "+%F"])?);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let path = folder.join(format!("campaign-{}.txt", self.name));
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        if let Some(target) = self.name.strip_prefix(FUZZ) {
            fuzz::prepare(root, &target_dir(), target)?;
        }
        // Where things are on this machine is nobody's business.
        let shown = self.command.join(" ").replace(&*target_dir().to_string_lossy(), "target");
        writeln!(file, "{shown}")?;
        for (name, value) in &self.env {
            writeln!(file, "{name}={}", std::env::var(name).unwrap_or(value.clone()))?;
        }
        let revision = said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_default();
        let machine = said("uname", &["-srm"])?;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        writeln!(file, "revision {revision}, {}, {machine}, {cores} CPUs", now()?)?;
        let (start, mut rounds, mut is_cut) = (Instant::now(), 0, false);
        loop {
            let outcome = self.once(root, &mut file)?;
            rounds += 1;
            is_cut |= matches!(outcome, Outcome::Cut);
            if matches!(outcome, Outcome::Failed) {
                writeln!(file, "FAILED in round {rounds}, {}", now()?)?;
                bail!("see {}", path.display());
            }
            if start.elapsed().as_secs() >= self.repeat_seconds {
                break;
            }
        }
        let cut = if is_cut { ", some of it cut short" } else { "" };
        writeln!(file, "ok{cut}, {rounds} round(s), {}", now()?)?;
        Ok(is_cut)
    }

    /// One run of the command, its words added to `file`.
    fn once(&self, root: &Path, file: &mut File) -> Result<Outcome> {
        let (program, arguments) = self.command.split_first().context("a command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .envs(self.env.iter().filter(|(name, _)| std::env::var_os(name).is_none()).cloned())
            // What cargo builds, and where, is no result.
            .env("CARGO_TERM_QUIET", "true")
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.try_clone()?)
            .spawn()
            .with_context(|| format!("run {program}"))?;
        let mut text = String::new();
        for line in
            child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines())
        {
            let line = line?;
            if is_progress(&line) {
                eprintln!("campaign: {line}");
            }
            text.extend([&*line, "\n"]);
        }
        // Sums, and all of a failure; not every test's line, nor how far it was on the way.
        let good = child.wait()?.success();
        let is_passed = |line: &str| line.starts_with("test ") && line.ends_with("... ok");
        let dull = |line: &str| is_passed(line) || is_progress(line);
        let keep = |line: &&str| !good || !dull(line);
        text.lines().filter(keep).try_for_each(|line| writeln!(file, "{line}"))?;
        Ok(Outcome::of(good, &text))
    }
}

/// Whether a test says how far it is: `crash: depth 2: at 459 of 18605`.
fn is_progress(line: &str) -> bool {
    line.split_once(": at ").is_some_and(|(_, rest)| rest.contains(" of "))
}

/// What a program printed, without the space around it.
pub fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The date and time, for results.
pub fn now() -> Result<String> {
    said("date", &["-u", "+%F %T UTC"])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a part runs this ignored test of this file of `tests/`.
    fn runs(part: &Part, file: &str, test: &str) -> bool {
        let words: Vec<&str> = part.command.iter().map(String::as_str).collect();
        let named = words.windows(2).position(|two| two == ["--test", file]);
        let Some(at) = named.filter(|_| words.contains(&"--ignored")) else { return false };
        let mut filters = words[at + 2..].iter().filter(|word| !word.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| test.contains(filter))
    }

    #[test]
    fn every_test_that_is_left_to_a_part_is_run_by_it() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
            let file = entry.path().file_stem().unwrap().to_str().unwrap().to_string();
            for rest in text.split("#[ignore").skip(1) {
                let Some((_, rest)) = rest.split_once("cargo xtask campaign ") else { continue };
                let (name, rest) = rest.split_once('"').unwrap();
                let test = rest.split_once("fn ").unwrap().1.split_once('(').unwrap().0;
                let parts = parts(1);
                let part = parts.iter().find(|part| part.is(name)).unwrap();
                assert!(runs(part, &file, test), "{name} does not run {file}'s {test}");
                seen += 1;
            }
        }
        assert!(seen >= 3, "{seen}");
    }

    #[test]
    fn a_list_that_was_cut_is_not_whole() {
        let said = "crash: depth 2: 812 of 18605, cut short: Totals";
        assert!(matches!(Outcome::of(true, said), Outcome::Cut));
        assert!(matches!(Outcome::of(true, "depth 2: 18605 of 18605, whole"), Outcome::Whole));
        assert!(matches!(Outcome::of(false, said), Outcome::Failed));
    }

    #[test]
    fn how_far_a_part_is_is_no_result() {
        assert!(is_progress("test pairs ... crash: depth 2: at 459 of 18605"));
        assert!(!is_progress("crash: depth 2: 18605 of 18605, whole: Totals"));
    }

    #[test]
    fn every_fuzz_target_is_a_part() {
        let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
        let files = std::fs::read_dir(targets).unwrap().flatten().map(|entry| entry.path());
        let stem = |path: std::path::PathBuf| path.file_stem().unwrap().to_str().unwrap().into();
        let mut there: Vec<String> = files.map(stem).collect();
        let parts = parts(1);
        let named = parts.iter().filter_map(|part| part.name.strip_prefix(FUZZ));
        let mut named: Vec<String> = named.map(String::from).collect();
        there.sort();
        named.sort();
        assert_eq!(there, named);
        assert!(parts.iter().filter(|part| part.is("fuzz")).count() == there.len());
    }
}
