//! Which room may use which. cargo accepts a wrong edge silently; this table does not.
//!
//! The reasons are in ARCHITECTURE.md. A lower room that needs something from above defines a trait
//! and lets the upper one hand it in.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A room: its crate (`polylane-` left out), what it may use, what its tests may use besides.
struct Room {
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
}

const ROOMS: &[Room] = &[
    room("base", &[], &[]),
    room("sys", &["base"], &[]),
    room("ipc", &["base", "sys"], &[]),
    room("block", &["base", "sys"], &["testkit"]),
    room("vfs", &["base", "sys"], &["testkit"]),
    room("ext4", &["base", "sys", "block", "vfs"], &["testkit"]),
    room("union", &["base", "vfs"], &["sys", "block", "ext4", "testkit"]),
    room("testkit", &["base", "sys", "block", "vfs"], &[]),
    room("front", &["base", "sys", "ipc", "block", "vfs"], &["testkit"]),
    room("ceph", &["base", "sys", "block", "vfs"], &["testkit"]),
    room("image", &["base", "sys"], &[]),
    room("volume", &["base", "sys", "block", "ext4"], &[]),
    room(
        "pool",
        &["base", "sys", "ipc", "block", "volume", "ceph", "vfs", "ext4", "union", "front"],
        &["testkit"],
    ),
    room("client", &["base", "sys", "ipc"], &[]),
    room(
        "bench",
        &["base", "sys", "ipc", "block", "ceph", "vfs", "ext4", "front", "pool"],
        &["testkit"],
    ),
    room("daemon", &["base", "sys"], &[]),
    room("engine", &["base", "sys", "volume", "pool", "image"], &[]),
    room(
        "polylane",
        &["base", "sys", "volume", "pool", "image", "engine", "bench", "daemon"],
        &["testkit"],
    ),
    room("tests", &["base"], &["base", "front", "ipc", "sys", "testkit"]),
    room("xtask", &[], &[]),
];

const fn room(
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
) -> Room {
    Room { name, uses, tests_use }
}

/// Compares every workspace member's dependencies with the table.
pub fn check(root: &Path) -> Result<()> {
    let wrong = violations(&metadata(root)?)?;
    for line in &wrong {
        eprintln!("rooms: {line}");
    }
    match wrong.len() {
        0 => Ok(()),
        count => bail!("{count} wrong edge(s); the table is xtask/src/rooms.rs"),
    }
}

fn metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("read what cargo metadata says")
}

fn violations(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
    let mut wrong = Vec::new();
    for package in packages {
        let name = short(package["name"].as_str().context("package without a name")?);
        let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
            wrong.push(format!(
                "crate '{name}' is not in the table: add a line with what it may use"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().context("dependency without a name")?;
            if dependency["path"].is_string() {
                let test_only = dependency["kind"].as_str() == Some("dev");
                wrong.extend(edge(room, short(target), test_only));
            }
        }
    }
    Ok(wrong)
}

fn edge(room: &Room, target: &str, test_only: bool) -> Option<String> {
    let allowed = room.uses.contains(&target) || (test_only && room.tests_use.contains(&target));
    let kind = if test_only { "its tests may use" } else { "it may use" };
    let list = if test_only { [room.uses, room.tests_use].concat() } else { room.uses.to_vec() };
    (!allowed).then(|| {
        let name = room.name;
        format!(
            "{name} -> {target}: {kind} only [{}]; let {name} define a trait and the room above \
             hand {target}'s implementation in",
            list.join(", ")
        )
    })
}

fn short(name: &str) -> &str {
    name.strip_prefix("polylane-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, dependency: &str, kind: Option<&str>) -> Vec<String> {
        let package = serde_json::json!({ "packages": [{ "name": name, "dependencies": [
            { "name": dependency, "kind": kind, "path": "/x" },
            { "name": "libc", "kind": null },
        ]}]});
        violations(&package).expect("well-formed")
    }

    #[test]
    fn an_upward_edge_is_rejected() {
        assert!(one("polylane-front", "polylane-vfs", None).is_empty());
        assert!(one("polylane-vfs", "polylane-front", None)[0].starts_with("vfs -> front"));
        assert!(one("polylane-client", "polylane-vfs", None)[0].starts_with("client -> vfs"));
    }

    #[test]
    fn the_test_kit_is_for_tests_only() {
        assert!(one("polylane-vfs", "polylane-testkit", Some("dev")).is_empty());
        assert_eq!(one("polylane-vfs", "polylane-testkit", None).len(), 1);
    }

    #[test]
    fn an_unknown_crate_is_rejected() {
        assert!(one("polylane-attic", "polylane-base", None)[0].contains("not in the table"));
    }
}
