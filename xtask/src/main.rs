//! One door for contributors: `cargo xtask check | rooms | tidy | loom`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

mod lexer;
mod rooms;
mod tidy;

const USAGE: &str = "usage: cargo xtask TASK

  check   fmt, clippy with warnings denied, rooms, tidy, tests, docs
  rooms   which crate may use which
  tidy    sizes, headers and forbidden words of every source file
  loom    the request queues under every interleaving (bounds are stated in the tests)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    if args.next().is_some() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let outcome = match task.as_str() {
        "check" => check(),
        "rooms" => step("rooms", || rooms::check(&root())),
        "tidy" => step("tidy", || tidy::check(&root())),
        "loom" => step("loom", loom),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {task}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Cheap steps first: a wrong edge or a long line is known before anything is compiled.
fn check() -> Result<()> {
    step("fmt", || cargo(&["fmt", "--all", "--check"], &[]))?;
    step("rooms", || rooms::check(&root()))?;
    step("tidy", || tidy::check(&root()))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    step("clippy", || cargo(&clippy, &[]))?;
    // The whole-system tests need the release binary and have their own door: `make test`.
    let tests = ["test", "--workspace", "--exclude", "polylane-tests", "--quiet"];
    step("test", || cargo(&tests, &[]))?;
    let doc = ["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"];
    step("doc", || cargo(&doc, &[("RUSTDOCFLAGS", "-D warnings")]))
}

/// Runs every `*loom*.rs` test of `ipc` under `--cfg loom`, in a target directory of its own so
/// that the ordinary build is not thrown away.
fn loom() -> Result<()> {
    let mut args: Vec<String> =
        ["test", "--release", "--package", "polylane-ipc"].map(String::from).into_iter().collect();
    let tests = root().join("crates/ipc/tests");
    let entries = std::fs::read_dir(&tests).with_context(|| format!("read {}", tests.display()))?;
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".rs").filter(|stem| stem.contains("loom")) {
            args.extend(["--test".into(), stem.into()]);
        }
    }
    if !args.iter().any(|arg| arg == "--test") {
        bail!("no test in {} has 'loom' in its name", tests.display());
    }
    let target = target_dir().join("loom");
    let target = target.to_str().context("target directory is not UTF-8")?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    cargo(&args, &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", target)])
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    run().with_context(|| name.to_string())?;
    eprintln!("xtask: {name:7} ok  {:6.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(args).envs(env.iter().copied());
    let status = command.status().context("run cargo")?;
    if !status.success() {
        bail!("'cargo {}' failed", args.join(" "));
    }
    Ok(())
}

/// The workspace: the parent of this package.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
