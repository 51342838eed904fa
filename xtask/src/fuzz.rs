//! Fuzz targets without `cargo-fuzz`: built by a nightly toolchain with its coverage flags, started
//! on a corpus of seeds.
//!
//! A run that begins with nothing spends its time on inputs of a few bytes. Seeds are of the form
//! that a target reads, and the same on every machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where the binaries are: coverage needs a target of its own.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Seeds of each target.
const SEEDS: u64 = 48;

/// What `cargo fuzz run --sanitizer none` builds with.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing \
                     -Cllvm-args=-simplifycfg-branch-fold-threshold=0 -Cdebug-assertions";

/// The command that runs a target for so long: `binary flags corpus`.
pub fn command(target_dir: &Path, name: &str, seconds: u64) -> Vec<String> {
    let limits = format!(
        "-max_total_time={seconds} -timeout=60 -rss_limit_mb=2048 -max_len=4096 \
         -print_final_stats=1"
    );
    let folder = target_dir.join("fuzz");
    let binary = folder.join(TRIPLE).join("release").join(name);
    let words = limits.split_whitespace().map(String::from);
    let corpus = folder.join("corpus").join(name).display().to_string();
    std::iter::once(binary.display().to_string()).chain(words).chain([corpus]).collect()
}

/// Builds every target and writes the seeds of `name`, beside what earlier runs found.
///
/// # Errors
/// There is no nightly toolchain, or the targets do not build.
pub fn prepare(root: &Path, target_dir: &Path, name: &str) -> Result<()> {
    let folder = target_dir.join("fuzz");
    let status = nightly("build", root, &folder)
        .args(["--release", "--bins", "--target", TRIPLE])
        .env("RUSTFLAGS", FLAGS)
        .status()
        .context("run rustup")?;
    if !status.success() {
        bail!("the fuzz targets do not build (a nightly toolchain is needed)");
    }
    write_seeds(&folder.join("corpus").join(name), name)
}

/// Whether the targets are sound Rust; nothing is linked, and no fuzzing library needed for it.
///
/// # Errors
/// They are not. Without a nightly toolchain nothing is looked at, which is said.
pub fn check(root: &Path, target_dir: &Path) -> Result<()> {
    let version = Command::new("rustup").args(["run", "nightly", "rustc", "-V"]).output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("xtask: fuzz: not looked at: there is no nightly toolchain");
        return Ok(());
    }
    let folder = target_dir.join("fuzz");
    let status = nightly("check", root, &folder).arg("--quiet").status().context("run rustup")?;
    if status.success() { Ok(()) } else { bail!("fuzz/ does not build") }
}

fn nightly(task: &str, root: &Path, folder: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", task]).current_dir(root.join("fuzz"));
    // This task's own toolchain and flags are not that one's.
    for own in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(own);
    }
    command.env("CARGO_TARGET_DIR", folder);
    command
}

fn write_seeds(folder: &PathBuf, name: &str) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for number in 0..SEEDS {
        let path = folder.join(format!("seed-{number:02}"));
        std::fs::write(&path, seed(name, number)).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// One seed of a target.
fn seed(name: &str, number: u64) -> Vec<u8> {
    let mut random = Random(number);
    if name == "image" { damage(&mut random) } else { commands(&mut random) }
}

/// Random bytes, with runs that are small, as fields are.
fn commands(random: &mut Random) -> Vec<u8> {
    let len = 16 + random.below(2000);
    let small = random.below(100) < 70;
    let mut byte = || match small && random.below(100) < 60 {
        true => random.below(56) as u8,
        false => random.next() as u8,
    };
    (0..len).map(|_| byte()).collect()
}

/// One to eight changes `{block, offset, how, value}`. Most of them are where an image has its
/// metadata: the superblock, group descriptors, bitmaps and inode tables come first in each group
/// of 2048 blocks.
fn damage(random: &mut Random) -> Vec<u8> {
    let mut input = Vec::new();
    for _ in 0..1 + random.below(8) {
        let block = match random.below(4) {
            0 => 0,
            1 => random.below(64),
            2 => 2048 + random.below(64),
            _ => random.below(4096),
        };
        let offset = if block == 0 { 1024 + random.below(1024) } else { random.below(4092) };
        let value = if random.below(2) == 0 { random.below(300) } else { random.next() };
        input.extend((block as u16).to_le_bytes());
        input.extend((offset as u16).to_le_bytes());
        // The superblock is sealed again, or it would only be refused.
        input.push(random.below(4) as u8 | if block == 0 { 4 } else { 0 });
        input.extend((value as u32).to_le_bytes());
    }
    input
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_a_target_reads_and_the_same_each_time() {
        for number in 0..SEEDS {
            let image = seed("image", number);
            assert!(image.len().is_multiple_of(9) && (9..=72).contains(&image.len()));
            assert_eq!(image, seed("image", number));
            assert!((16..2016).contains(&seed("fuse", number).len()));
        }
        assert_ne!(seed("image", 1), seed("image", 2));
    }
}
