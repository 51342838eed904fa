//! The kernel as judge: a script must print and return on every lane what it does on tmpfs.

use std::fmt::Write as _;

use crate::{Lane, Outcome, Script, chosen};

/// Runs each named script on tmpfs and on each lane. What the programs say about errors is compared
/// too when the script begins with `exec 2>&1`.
///
/// # Panics
/// Any output or exit status differs; all differences are told.
pub fn same_as_tmpfs(scripts: &[(String, Script)], lanes: &[Lane]) {
    let mut wrong = String::new();
    for (name, script) in scripts {
        let judge = script.run(Lane::Tmpfs);
        for lane in chosen(lanes) {
            let outcome = script.run(lane);
            if (outcome.status, &outcome.stdout) != (judge.status, &judge.stdout) {
                let _ = write!(wrong, "{}", difference(name, &judge, lane, &outcome));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn difference(name: &str, judge: &Outcome, lane: Lane, outcome: &Outcome) -> String {
    let (status, expected_status) = (outcome.status, judge.status);
    let mut told = format!("\n=== {name} on {lane:?}: status {status} (tmpfs {expected_status})\n");
    let expected: Vec<&str> = judge.stdout.lines().collect();
    let found: Vec<&str> = outcome.stdout.lines().collect();
    let lines = 0..expected.len().max(found.len());
    let different = lines.filter(|index| expected.get(*index) != found.get(*index));
    for index in different.take(12) {
        let _ = writeln!(told, "line {}", index + 1);
        let _ = writeln!(told, "  tmpfs: {}", expected.get(index).unwrap_or(&"(end)"));
        let _ = writeln!(told, "  lane:  {}", found.get(index).unwrap_or(&"(end)"));
    }
    for line in outcome.stderr.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev() {
        let _ = writeln!(told, "  stderr: {line}");
    }
    told
}
