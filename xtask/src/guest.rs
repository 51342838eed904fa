//! `cargo xtask guest`: the tests that need a guest, with the kits that they need.
//!
//! A kit is made once, by `tests/guest/kit.sh`, and lies in the target directory; where it cannot
//! be made (no archive in reach, no such package) its tests say so and are skipped. At the end
//! every step that a guest reported stands in a table.
//!
//! `POLYLANE_GUEST_PATIENCE` is how many times its limits everything may take, for busy hosts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::limit;
use crate::suite::Tally;

/// Seconds that all guests may take, and those of one test binary, on a host that is not busy.
const LIMITS: (u64, u64) = (2 * 3600, 3600);

/// The Debian suites whose kernels are booted.
const SUITES: [&str; 2] = ["stable", "backports"];

/// Runs the guests' tests, or those whose names contain one of `names`.
///
/// # Errors
/// One failed.
pub fn run(root: &Path, target: &Path, names: &[String]) -> Result<()> {
    let kits = target.join("guest");
    fs::create_dir_all(&kits).with_context(|| kits.display().to_string())?;
    for suite in SUITES {
        let script = root.join("tests/guest/kit.sh");
        let made = Command::new("sh").arg(script).arg(suite).arg(kits.join(suite)).status();
        if !made.context("run sh")?.success() {
            eprintln!("xtask: no kit of {suite} can be made here; what needs it is skipped");
        }
    }
    let skips = target.join("skipped-tests.txt");
    fs::write(&skips, "").with_context(|| skips.display().to_string())?;
    let consoles = kits.join("consoles");
    let _ = fs::remove_dir_all(&consoles);
    let text = |path: &Path| path.to_str().map(String::from).context("a path is not UTF-8");
    let (kits, skips_path) = (text(&kits)?, text(&skips)?);
    let patience = std::env::var("POLYLANE_GUEST_PATIENCE").ok();
    let patience: u64 = patience.and_then(|number| number.parse().ok()).unwrap_or(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let deadline = (now + LIMITS.0 * patience).to_string();
    let each = (LIMITS.1 * patience).to_string();
    let env = [
        (limit::DEADLINE, deadline.as_str()),
        (limit::EACH, each.as_str()),
        ("POLYLANE_GUEST", kits.as_str()),
        ("POLYLANE_GUEST_SHOW", "1"),
        ("POLYLANE_TEST_SKIPS", skips_path.as_str()),
    ];
    let mut args = vec!["--package", "polylane-tests"];
    args.extend(["--test", "guest", "--test", "vhost", "--test", "vhost_journals"]);
    let mut words = vec!["--test-threads=1"];
    words.extend(names.iter().map(String::as_str));
    let mut tally = Tally::new();
    tally.tests(root, &args, &words, &env)?;
    print!("{}", table(&consoles)?);
    tally.finish(&fs::read_to_string(&skips).unwrap_or_default())
}

/// What the guests reported, in Markdown.
fn table(consoles: &Path) -> Result<String> {
    let mut text = String::from("| guest | what went well |\n|---|---|\n");
    let entries = fs::read_dir(consoles).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let printed = fs::read(&path).with_context(|| path.display().to_string())?;
        let printed = String::from_utf8_lossy(&printed).replace('\r', "");
        for step in printed.lines().filter_map(|line| line.strip_prefix("ok ")) {
            let _ = writeln!(text, "| {name} | {step} |");
        }
    }
    Ok(text)
}
