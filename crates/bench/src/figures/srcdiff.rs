//! `srcdiff`: tenants that compare two source trees with `diff -r`, each through a union of its own
//! over both (Polytropon's Sourcediff, which takes two releases of Linux).
//!
//! The trees are made up, the same in each run, unless `POLYLANE_SOURCE_TREES` names a directory
//! that holds two, `old` and `new`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polylane_base::rng::Rng;

use super::shared_lower::{Reading, files_below};
use crate::Options;
use crate::report::{Better, Report};
use crate::tools::{command, path};
use crate::unions::Ground;

/// Names a directory with two trees, `old` and `new`.
const TREES: &str = "POLYLANE_SOURCE_TREES";

/// The checksum of all differences is the answer.
const SCRIPT: &str = "echo ready; while read -r go; do diff -r old new | cksum; done";

/// Files of a made-up tree.
const FILES: u64 = 4000;

/// The same for a look.
const FILES_QUICK: u64 = 400;

const FILES_PER_DIRECTORY: u64 = 40;

/// Sizes go round up to this, prime to everything: 16 KiB on the average, as Linux has.
const SIZES: u64 = 32_749;

/// Every so many files differ between the trees, by a line in so many.
const CHANGED: u64 = 8;
const LINES_PER_CHANGE: u64 = 50;

/// Of every so many files one is in the old tree alone, another in the new one.
const ALONE: u64 = 50;

/// Measures files of both trees per second, all tenants in total.
///
/// # Errors
/// Not root, no `diff`, no trees where they are said to be, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "diff -r over two source trees on a shared lower, all tenants in total";
    let mut report = Report::new("srcdiff", title, "tenants", "files/s", Better::Higher);
    command("diff", &["--version"]).context("diff is missing: install diffutils")?;
    let ground = Ground::of(options)?;
    let made = ground.lower()?;
    let lower = match std::env::var_os(TREES) {
        Some(given) if options.ceph_conf.is_some() => {
            // A lower is in the file system.
            let given = Path::new(&given).join(".");
            command("cp", &["-r", path(&given)?, path(made.path())?])?;
            made.path().to_path_buf()
        }
        Some(given) => PathBuf::from(given),
        None => {
            make_trees(made.path(), if options.quick { FILES_QUICK } else { FILES })?;
            made.path().to_path_buf()
        }
    };
    let (files, bytes) = size(&lower)?;
    let whose = if lower == made.path() { "made up" } else { "given" };
    report.notes.push(format!("two trees, {whose}: {files} files, {} MiB", bytes >> 20));
    let arguments = ["-euc", SCRIPT];
    let (lower, units) = (&lower, files as f64);
    Reading { ground: &ground, lower, program: "sh", arguments: &arguments, units }
        .measure(options, &mut report)?;
    Ok(report)
}

/// Files and bytes of both trees.
fn size(lower: &Path) -> Result<(usize, u64)> {
    let mut size = (0, 0);
    for tree in ["old", "new"] {
        let tree = lower.join(tree);
        ensure!(tree.is_dir(), "{} is no directory: {TREES}", tree.display());
        let files = files_below(&tree)?;
        size = (size.0 + files.len(), size.1 + files.iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
    Ok(size)
}

/// Makes two trees of almost `files` files each.
fn make_trees(dir: &Path, files: u64) -> Result<()> {
    for (tree, other) in [("old", ALONE - 1), ("new", ALONE - 2)] {
        for number in 0..files {
            let parent = dir.join(tree).join(format!("part-{}", number / FILES_PER_DIRECTORY));
            if number.is_multiple_of(FILES_PER_DIRECTORY) {
                fs::create_dir_all(&parent).context("directory of a source tree")?;
            }
            if number % ALONE != other {
                let text = text(number, tree == "new");
                let path = parent.join(format!("file-{number}.c"));
                fs::write(path, text).context("file of a source tree")?;
            }
        }
    }
    Ok(())
}

/// Lines of a file, in the new tree or the old one.
fn text(number: u64, new: bool) -> String {
    let size = (number * 6007 % SIZES) as usize;
    let changed = new && number.is_multiple_of(CHANGED);
    let mut rng = Rng::new(number);
    let mut text = String::with_capacity(size + 64);
    let mut line = 0;
    while text.len() < size {
        let value = rng.next_u64();
        let value = if changed && line % LINES_PER_CHANGE == 0 { !value } else { value };
        let _ = writeln!(text, "    values[{line}] = 0x{value:016x};");
        line += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_the_same_each_time_and_differ_from_each_other() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("temporary directory"));
        for dir in &dirs {
            make_trees(dir.path(), 100).expect("trees");
            // Two of a hundred are in the other tree alone.
            assert_eq!(size(dir.path()).expect("sizes").0, 2 * 98);
        }
        let [first, second] = dirs.each_ref().map(|dir| {
            let files = files_below(dir.path()).expect("files");
            let mut texts: Vec<_> = files
                .iter()
                .map(|(path, _)| {
                    let name = path.strip_prefix(dir.path()).expect("below it").to_path_buf();
                    (name, fs::read_to_string(path).expect("text"))
                })
                .collect();
            texts.sort();
            texts
        });
        assert_eq!(first, second);
        let differ = (0..100).filter(|&number| text(number, true) != text(number, false)).count();
        // File 0 is empty in both.
        assert_eq!(differ, 12);
    }

    #[test]
    fn a_missing_tree_is_told_by_its_name() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("old")).expect("a directory");
        let error = size(dir.path()).expect_err("one tree is missing").to_string();
        assert!(error.contains("/new is no directory: POLYLANE_SOURCE_TREES"), "{error}");
    }
}
