//! One door for contributors: `cargo xtask check`, `test` and more.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

mod apps;
mod binaries;
mod campaign;
mod floors;
mod fuzz;
mod guest;
mod known;
mod lexer;
mod limit;
mod records;
mod rooms;
mod suite;
mod suites;
mod threats;
mod tidy;
mod walks;

use suite::Tally;

const USAGE: &str = "usage: cargo xtask TASK

  check   fmt, rooms, tidy, clippy with warnings denied, docs, the rooms' tests
  test    the same, loom and the whole-system tests, with one sum at the end
  system  the whole-system tests alone (they need `make build tools`)
  apps    databases, servers, compilers … on ext4 volumes, by library, FUSE and both: a table
          (apps NAME…: only those; POLYLANE_APPS_SECONDS: how long loads run, 60 unless set)
  guest   block front ends and guests' volumes on Debian's kernels, under QEMU (guest NAME…: only
          tests with such names)
  suites  test suites of other projects in lanes, by library and FUSE, beside the host: a table
          (suites NAME…: only those; tests/suites/known.txt lists the known differences)
  rooms   which crate may use which; the floors inside of each crate, as ARCHITECTURE.md has them,
          and circles of modules (rooms CRATE: what holds the circles of a crate together)
  tidy    sizes, headers and forbidden words of every source file; steps of docs/walks
  loom    queues and the page of shares under every interleaving (bounds are stated in the tests)
  crash   power cuts, failing media and damaged images; with --full all of docs/design/crash.md,
          which takes hours (POLYLANE_CRASH_SECONDS, POLYLANE_CORRUPT_IMAGES: how long, how many)
  miri    what Miri can run: words of shared memory, buffers, pure parts (a nightly toolchain)
  campaign  the long runs: crash, corrupt (100 000 images), fsx, power-cut, databases, stress,
          clients, trees, large-dir, ceph, attach, qos, and fuzz-image, fuzz-fuse, fuzz-channel,
          fuzz-virtio, or all four as 'fuzz'; results in docs/results (campaign NAME…: only those;
          POLYLANE_CAMPAIGN_SECONDS)";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let task = args.next().unwrap_or_default().to_string_lossy().into_owned();
    if task == "limited" {
        return limit::run(&args.collect::<Vec<_>>()).unwrap_or_else(|error| {
            eprintln!("xtask limited: {error:#}");
            ExitCode::FAILURE
        });
    }
    let args = args.map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = args.collect();
    let full = task == "crash" && words == ["--full"];
    if !words.is_empty()
        && !full
        && !matches!(task.as_str(), "apps" | "campaign" | "guest" | "rooms" | "suites")
    {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let outcome = match task.as_str() {
        "check" => check(),
        "test" => test(),
        "system" => whole_system(),
        "apps" => apps::run(&root(), &target_dir(), &words),
        "guest" => guest::run(&root(), &target_dir(), &words),
        "suites" => suites::run(&root(), &target_dir(), &words),
        "rooms" => floors::print(&root(), words.first().map(String::as_str))
            .and_then(|()| step("rooms", all_rooms)),
        "tidy" => step("tidy", || {
            tidy::check(&root())?;
            walks::check(&root())?;
            threats::check(&root())
        }),
        "loom" => step("loom", loom),
        "crash" => step("crash", || crash(full)),
        "miri" => step("miri", miri),
        "campaign" => campaign::run(&root(), &words),
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

/// A step that is no test: its name and what it does.
type Step = (&'static str, fn() -> Result<()>);

/// Cheap steps first: a wrong edge or a long line is known before anything is compiled.
const STEPS: &[Step] = &[
    ("fmt", || cargo(&["fmt", "--all", "--check"], &[])),
    ("rooms", all_rooms),
    ("tidy", || tidy::check(&root())),
    ("walks", || walks::check(&root())),
    ("threats", || threats::check(&root())),
    ("clippy", || {
        let lint = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        cargo(&lint, &[])
    }),
    ("doc", || {
        let doc = ["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"];
        cargo(&doc, &[("RUSTDOCFLAGS", "-D warnings")])
    }),
];

/// Arrows between crates, then the floors inside of them.
fn all_rooms() -> Result<()> {
    rooms::check(&root())?;
    floors::check(&root())
}

/// The rooms' own tests. The whole-system tests need the release binary and have their own door.
const ROOMS: &[&str] = &["--workspace", "--exclude", "polylane-tests"];

fn check() -> Result<()> {
    for (name, run) in STEPS {
        step(name, run)?;
    }
    step("fuzz", || fuzz::check(&root(), &target_dir()))?;
    let mut tally = Tally::new();
    rooms_tests(&mut tally)?;
    tally.finish("")
}

/// The rooms' own tests, and their documents' examples.
fn rooms_tests(tally: &mut Tally) -> Result<()> {
    tally.tests(&root(), ROOMS, &[], &[])?;
    tally.examples(&root(), &[ROOMS, &["--quiet"]].concat())
}

/// Everything, whatever fails on the way.
fn test() -> Result<()> {
    let mut tally = Tally::new();
    for (name, run) in STEPS {
        tally.step(name, step(name, run));
    }
    tally.step("loom", step("loom", loom));
    tally.examples(&root(), &["--workspace", "--quiet"])?;
    // One build for both kinds of tests: each alone would have features of its own, and the crates
    // below be compiled twice.
    with_reasons(tally, &["--workspace"])
}

/// Real programs and POSIX suites in lanes.
fn whole_system() -> Result<()> {
    with_reasons(Tally::new(), &["--package", "polylane-tests"])
}

/// Runs tests that tell why they were skipped, and sums up.
fn with_reasons(mut tally: Tally, args: &[&str]) -> Result<()> {
    let skips = target_dir().join("skipped-tests.txt");
    std::fs::create_dir_all(target_dir()).context("target directory")?;
    std::fs::write(&skips, "").with_context(|| format!("write {}", skips.display()))?;
    let path = skips.to_str().context("target directory is not UTF-8")?;
    tally.tests(&root(), args, &[], &[("POLYLANE_TEST_SKIPS", path)])?;
    tally.finish(&std::fs::read_to_string(&skips).unwrap_or_default())
}

/// Runs every `*loom*.rs` test of the rooms that have one under `--cfg loom`, in a target directory
/// of its own so that the ordinary build is not thrown away.
fn loom() -> Result<()> {
    let target = target_dir().join("loom");
    let target = target.to_str().context("target directory is not UTF-8")?;
    for room in ["ipc", "block"] {
        let package = format!("polylane-{room}");
        let mut args: Vec<String> =
            ["test", "--release", "--quiet", "--package", &package].map(String::from).into();
        let tests = root().join("crates").join(room).join("tests");
        let entries =
            std::fs::read_dir(&tests).with_context(|| format!("read {}", tests.display()))?;
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(stem) = name.strip_suffix(".rs").filter(|stem| stem.contains("loom")) {
                args.extend(["--test".into(), stem.into()]);
            }
        }
        if !args.iter().any(|arg| arg == "--test") {
            bail!("no test in {} has 'loom' in its name", tests.display());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        cargo(&args, &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", target)])?;
    }
    Ok(())
}

/// How tests are built that run for hours: Cargo.toml says what it is.
const PROFILE: &str = "--profile=campaign";

/// The crash and damage tests with their counts shown; `full`: the campaign.
fn crash(full: bool) -> Result<()> {
    let images = std::env::var("POLYLANE_CORRUPT_IMAGES").unwrap_or_else(|_| "100000".into());
    let campaign = [("POLYLANE_CRASH", "full"), ("POLYLANE_CORRUPT_IMAGES", images.as_str())];
    let env: &[(&str, &str)] = if full { &campaign } else { &[] };
    let test: &[&str] = if full { &["test", PROFILE] } else { &["test"] };
    let run = |package: &str, tests: &[&str], names: &[&str], env: &[(&str, &str)]| {
        let alone = ["--", "--nocapture", "--test-threads=1"];
        cargo(&[test, &["--package", package], tests, &alone, names].concat(), env)
    };
    run("polylane-ext4", &["--test", "crash", "--test", "corrupt"], &[], env)?;
    let longer = [("POLYLANE_CRASH_SECONDS", "600")];
    let given = std::env::var_os("POLYLANE_CRASH_SECONDS").is_some();
    let env: &[(&str, &str)] = if full && !given { &longer } else { &[] };
    run("polylane-block", &["--test", "block"], &["crash::", "overlay::"], env)?;
    cargo(&["build", "--release", "--package", "polylane"], &[])?;
    let env: &[(&str, &str)] = if full { &campaign[..1] } else { &[] };
    run("polylane-tests", &["--test", "volume_cut"], &[], env)
}

/// What Miri can run of the rooms' own tests: what asks the kernel for nothing but files and
/// the wall's clocks. No shared memory (memfd), no mapping given back in part (frames), no thread's
/// own clock or slice, no programs such as mke2fs.
const MIRI: &[(&str, &[&str])] = &[
    ("polylane-base", &[]),
    ("polylane-sys", &["buffer::"]),
    ("polylane-ipc", &["message::", "layout::", "handshake::"]),
    ("polylane-client", &[]),
    ("polylane-vfs", &["acl::", "lock::", "name::", "memfs::"]),
    (
        "polylane-ext4",
        &[
            "alloc::free::",
            "changes::",
            "dir::",
            "extents::",
            "format::",
            "journal::gate::",
            "promised::",
        ],
    ),
    (
        "polylane-block",
        &[
            "bypass::chunks::",
            "bypass::extents::",
            "bypass::format::",
            "cache::own::queues::",
            "cache::pdc::",
            "gate::",
            "map::",
            "overlay::present::",
            "qos::depth::",
            "qos::plan::",
            "qos::wdt::",
        ],
    ),
    (
        "polylane-front",
        &[
            "shm::helpers::tests::sessions_take_turns",
            "shm::rights::lease::",
            "shm::post::",
            "shm::table::",
        ],
    ),
];

fn miri() -> Result<()> {
    for (package, filters) in MIRI {
        step(package, || miri_room(package, filters))?;
    }
    Ok(())
}

fn miri_room(package: &str, filters: &[&str]) -> Result<()> {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "miri", "test", "--quiet", "--package", package]);
    command.args(["--lib", "--"]).args(filters).current_dir(root());
    for own in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(own);
    }
    command.env("CARGO_TARGET_DIR", target_dir().join("miri"));
    // Files and clocks of the host are looked at by the tests themselves.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    if !command.status().context("run rustup")?.success() {
        bail!("{package} under Miri failed");
    }
    Ok(())
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
