//! `layers`: `ls -lR`, `find -size` and `tar` over three layers of this host's own files, the
//! second time that they are read; and directories of a lower that have many names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::report::{Better, Report};
use crate::unions::{Union, Way};
use crate::{Options, progress};

/// The first is the baseline.
const WAYS: [Way; 6] =
    [Way::Plain, Way::Overlayfs, Way::FuseOverlayfs, Way::LaneFuse, Way::Lane, Way::Cached];

/// What the trees are made of, up to so many files and bytes: as many as a small Debian has.
const SOURCES: [&str; 3] = ["/usr/lib", "/usr/share", "/usr/bin"];
const FILES_MAX: usize = 6773;
const BYTES_MAX: u64 = 207 << 20;
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Every so many files of a lower layer are also in the one above it.
const AGAIN: usize = 50;

const LOADS: [(&str, &str); 3] = [
    ("ls -lR", "ls -lR . >/dev/null"),
    ("find -size", "find . -size +100k >/dev/null"),
    ("tar", "tar -cf - . | cat >/dev/null"),
];

/// Measures milliseconds for each load.
///
/// # Errors
/// Not root, or a union cannot be mounted.
pub fn run(options: &Options) -> Result<Report> {
    let title = "three layers of a system's files, read again";
    let mut report = Report::new("layers", title, "load", "ms", Better::Lower);
    report.baseline = WAYS[0].name().to_string();
    let ways = Way::available(&WAYS, &mut report.notes);
    let place = tempfile::tempdir().context("directory of layers")?;
    let lowers = ["high", "middle", "low"].map(|name| place.path().join(name));
    let (files, bytes) = make_layers(&lowers)?;
    report.notes.push(format!("{files} files, {} MiB", bytes >> 20));
    let unions: Vec<(Way, Union)> =
        ways.iter().map(|&way| Ok((way, Union::mount(way, &lowers)?))).collect::<Result<_>>()?;
    for (point, script) in LOADS {
        for (_, union) in &unions {
            timed(union, script)?;
        }
        for repeat in 0..options.repeats() {
            for (way, union) in &unions {
                progress(&format!("{point}, {}, repeat {}", way.name(), repeat + 1));
                report.add(way.name(), point, timed(union, script)?, &[]);
            }
        }
    }
    Ok(report)
}

fn timed(union: &Union, script: &str) -> Result<f64> {
    let begun = Instant::now();
    let mut program = union.program("sh", &["-euc", script]);
    let done = program.stdout(Stdio::null()).status().context("run sh")?;
    let took = begun.elapsed();
    ensure!(done.success(), "failed: {script}");
    Ok(took.as_secs_f64() * 1e3)
}

/// Spreads files of this host over the layers; how many, and their bytes.
fn make_layers(layers: &[PathBuf; 3]) -> Result<(usize, u64)> {
    let found = host_files();
    let bytes = found.values().sum();
    let part = found.len().div_ceil(layers.len()).max(1);
    for (number, path) in found.keys().enumerate() {
        let layer = layers.len() - 1 - number / part;
        copy(path, &layers[layer])?;
        if layer > 0 && number % AGAIN == 0 {
            copy(path, &layers[layer - 1])?;
        }
    }
    for layer in layers {
        fs::create_dir_all(layer)?;
    }
    Ok((found.len(), bytes))
}

fn copy(path: &Path, layer: &Path) -> Result<()> {
    let to = layer.join(path.strip_prefix("/").unwrap_or(path));
    let above = to.parent().context("a directory")?;
    fs::create_dir_all(above).with_context(|| format!("make {}", above.display()))?;
    fs::copy(path, &to).map(drop).with_context(|| format!("copy {}", path.display()))
}

/// Files of this host with their bytes, in the order of their names.
fn host_files() -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut bytes = 0;
    let each = FILES_MAX / SOURCES.len();
    // As many bytes as belong to so many files, and some more for a large one.
    let fits = |files: usize, bytes: u64| {
        bytes <= BYTES_MAX * (files as u64 + 1) / FILES_MAX as u64 + FILE_BYTES_MAX
    };
    for (number, source) in SOURCES.iter().enumerate() {
        let limit = if number + 1 == SOURCES.len() { FILES_MAX } else { each * (number + 1) };
        let mut dirs = vec![PathBuf::from(source)];
        while let Some(dir) = dirs.pop() {
            // Not all are root's to read, and some go meanwhile.
            let mut entries: Vec<_> = fs::read_dir(&dir).into_iter().flatten().flatten().collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let Ok(metadata) = entry.metadata() else { continue };
                let size = metadata.size();
                if metadata.is_dir() {
                    dirs.push(entry.path());
                } else if metadata.is_file()
                    && found.len() < limit
                    && fits(found.len(), bytes + size)
                {
                    bytes += size;
                    found.insert(entry.path(), size);
                }
            }
        }
    }
    found
}

/// Numbers of names in a directory.
const NAMES: [usize; 3] = [10_000, 30_000, 100_000];

const NAMES_LOADS: [(&str, &str); 3] = [
    ("list", "ls -f large | wc -l >/dev/null"),
    ("look up", "find large -size 1 >/dev/null"),
    ("create", "cd large; seq -f new%.0f 1 1000 | xargs touch"),
];

/// Measures microseconds for each name of a lower's directory that has many.
///
/// # Errors
/// Not root, or a union cannot be mounted.
pub fn run_names(options: &Options) -> Result<Report> {
    let title = "a lower's directory with many names: list, look all up, create 1000";
    let mut report = Report::new("large-dirs", title, "names", "µs a name", Better::Lower);
    report.baseline = WAYS[0].name().to_string();
    let ways = Way::available(&WAYS, &mut report.notes);
    let counts = if options.quick { &NAMES[..2] } else { &NAMES[..] };
    for &count in counts {
        let lower = tempfile::tempdir().context("directory of a lower")?;
        let dir = lower.path().join("large");
        fs::create_dir(&dir).context("directory of many names")?;
        for number in 0..count {
            fs::write(dir.join(format!("name{number}")), "").context("a name")?;
        }
        let lowers = [lower.path().to_path_buf()];
        for repeat in 0..options.repeats() {
            for &way in &ways {
                progress(&format!("{count} names, {}, repeat {}", way.name(), repeat + 1));
                let union = Union::mount(way, &lowers)?;
                for (load, script) in NAMES_LOADS {
                    let names = if load == "create" { 1000 } else { count };
                    let us = timed(&union, script)? * 1e3 / names as f64;
                    report.add(way.name(), &format!("{load}, {count}"), us, &[]);
                }
            }
        }
    }
    Ok(report)
}
