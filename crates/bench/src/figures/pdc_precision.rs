//! `pdc-precision`: what the detectors find of the journals of the kernel's file systems, by load.
//!
//! Each file system lives on an attached volume whose engine writes every request down
//! (`attach --record`); the rules are then judged on these, and beside them stands what the engine
//! itself let bypass. The truth comes from the file systems' own tools, after the fact.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polylane_block::cache::pdc::{FlushSolo, Paper, Region};

use super::guest::{Guest, command, has};
use super::pdc_loads::{LOADS, has_sqlite, mixed};
use super::{pdc_csv, pdc_trace};
use crate::report::{Better, Report};
use crate::{Options, progress};

const MIB: f64 = (1 << 20) as f64;
const SIZE: &str = "1G";
const JOURNAL_SIZE: &str = "64M";

/// A file system: how it is made and mounted, and where its journal is.
struct Kind {
    name: &'static str,
    tool: &'static str,
    make: &'static [&'static str],
    mount: &'static [&'static str],
    truth: fn(&Path) -> Result<Vec<Region>>,
    /// All loads one by one, or mail and all together only.
    all: bool,
}

const EXT: [&str; 6] =
    ["-F", "-q", "-J", "size=32", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];

const KINDS: [Kind; 8] = [
    Kind { name: "ext4", tool: "mkfs.ext4", make: &EXT, mount: &[], truth: of_ext, all: true },
    Kind {
        name: "ext4 data=journal",
        tool: "mkfs.ext4",
        make: &EXT,
        mount: &["-o", "data=journal"],
        truth: of_ext,
        all: false,
    },
    Kind {
        name: "ext4 fast_commit",
        tool: "mkfs.ext4",
        make: &["-F", "-q", "-O", "fast_commit", "-E", "lazy_itable_init=0,nodiscard"],
        mount: &[],
        truth: of_ext,
        all: false,
    },
    Kind { name: "ext3", tool: "mkfs.ext3", make: &EXT, mount: &[], truth: of_ext, all: false },
    Kind {
        name: "XFS",
        tool: "mkfs.xfs",
        make: &["-q", "-f", "-K", "-s", "size=4096"],
        mount: &[],
        truth: of_xfs,
        all: true,
    },
    Kind {
        name: "XFS, 512-byte sectors",
        tool: "mkfs.xfs",
        make: &["-q", "-f", "-K", "-s", "size=512"],
        mount: &[],
        truth: of_xfs,
        all: false,
    },
    Kind {
        name: "btrfs",
        tool: "mkfs.btrfs",
        make: &["-q", "-f", "-K"],
        mount: &[],
        truth: |_| Ok(Vec::new()),
        all: true,
    },
    // Its journal is on another volume: see `external`.
    Kind {
        name: "ext4, external journal",
        tool: "mkfs.ext4",
        make: &["-F", "-q", "-E", "lazy_itable_init=0,nodiscard"],
        mount: &[],
        truth: |_| Ok(Vec::new()),
        all: false,
    },
];

/// # Errors
/// Loop devices cannot be had here; what a file system or its tools say.
pub fn run(options: &Options) -> Result<Report> {
    let title =
        "share of a journal's bytes that bypass the cache (recall), by file system and load";
    let mut report =
        Report::new("pdc-precision", title, "file system, load", "recall", Better::Higher);
    report.baseline = "paper".into();
    let time = Duration::from_secs(if options.quick { 2 } else { 12 });
    fs::create_dir_all(&options.out)?;
    for kind in &KINDS {
        if !has(kind.tool) {
            report.notes.push(format!("{}: {} is not installed: left out", kind.name, kind.tool));
            continue;
        }
        let loads = LOADS.iter().filter(|load| kind.all || load.0 == "mail");
        let named = |name: &&str| *name != "sqlite" || has_sqlite();
        let names: Vec<&str> = loads.map(|load| load.0).filter(named).collect();
        for name in names.into_iter().chain(["mixed"]) {
            progress(&format!("pdc-precision {}, {name}", kind.name));
            let dir = tempfile::tempdir_in(&options.out)?;
            one(&mut report, dir.path(), kind, name, time)?;
        }
    }
    if !has_sqlite() {
        report.notes.push("sqlite3 is not installed: its load is left out".into());
    }
    report.notes.push(
        "guests: this host's kernel on loop devices of 'polylane attach --cache pdc'; precision: \
         the journal's share of the bypassed bytes; lead: journal bytes before the first bypass; \
         nan: there is no journal on this volume, and nothing shall bypass"
            .into(),
    );
    Ok(report)
}

/// One file system under one load.
fn one(report: &mut Report, dir: &Path, kind: &Kind, name: &str, time: Duration) -> Result<()> {
    let external = kind.name.contains("external");
    let log = external.then(|| recorded(dir, "journal", JOURNAL_SIZE)).transpose()?;
    let mut guest = recorded(dir, "guest", SIZE)?;
    let log_name = log.as_ref().map(|log| format!("device={}", log.device)).unwrap_or_default();
    let mut make = kind.make.to_vec();
    if let Some(log) = &log {
        command("mke2fs", &["-F", "-q", "-O", "journal_dev", "-b", "4096", &log.device])?;
        make.extend(["-b", "4096", "-J", &log_name]);
    }
    guest.format(kind.tool, &make, kind.mount)?;
    let load = LOADS.iter().find(|load| load.0 == name).map_or(mixed as _, |load| load.1);
    load(&guest.mount, time)?;
    let point = format!("{}, {name}", kind.name);
    finish(report, dir, &point, guest, "guest", kind.truth)?;
    if let Some(log) = log {
        // All of it but the superblock in its second KiB.
        let whole = |path: &Path| Ok(vec![Region { first: 4096, end: fs::metadata(path)?.len() }]);
        finish(report, dir, &format!("{point} (its device)"), log, "journal", whole)?;
    }
    Ok(())
}

fn recorded(dir: &Path, name: &str, size: &str) -> Result<Guest> {
    let trace = dir.join(format!("{name}.csv"));
    let trace = trace.to_str().context("a name")?;
    Guest::new(dir, name, size, &["--cache", "pdc"], &["--record", trace])
}

/// Ends a guest and judges the rules on what it asked for.
fn finish(
    report: &mut Report,
    dir: &Path,
    point: &str,
    guest: Guest,
    name: &str,
    truth: impl Fn(&Path) -> Result<Vec<Region>>,
) -> Result<()> {
    let cache = guest.stats()?["cache"].clone();
    let volume = guest.volume.clone();
    guest.end()?;
    let journal = truth(&volume).with_context(|| format!("{point}: where its journal is"))?;
    let trace = pdc_csv::load(&dir.join(format!("{name}.csv")))?;
    pdc_trace::judge(report, point, "paper", &trace, &journal, Paper::default);
    pdc_trace::judge(report, point, "flush-solo", &trace, &journal, FlushSolo::default);
    let live = cache["bypassed_bytes"].as_f64().unwrap_or(0.0) / MIB;
    report.notes.push(format!("{point}: its engine let {live:.1} MiB bypass"));
    Ok(())
}

/// The blocks of inode 8, without the indirect ones.
///
/// # Errors
/// debugfs is missing, or names none.
pub(super) fn of_ext(volume: &Path) -> Result<Vec<Region>> {
    let path = volume.to_str().context("a name")?;
    let said = command("debugfs", &["-R", "stat <8>", path])?;
    let regions = ext_blocks(&said);
    ensure!(!regions.is_empty(), "debugfs names no blocks of inode 8");
    Ok(regions)
}

/// Reads `(0-11):1057-1068, (IND):1069, (12-1035):1070-2093` after the last colon-ended word.
fn ext_blocks(said: &str) -> Vec<Region> {
    let entries = said.split(['\n', ',']).map(str::trim).filter_map(|entry| {
        let (logical, physical) = entry.strip_prefix('(')?.split_once("):")?;
        logical.starts_with(|c: char| c.is_ascii_digit()).then_some(physical)
    });
    let blocks = entries.filter_map(|text| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    });
    blocks.map(|(first, last)| Region { first: first * 4096, end: (last + 1) * 4096 }).collect()
}

/// Start and length of the log, in the superblock.
fn of_xfs(volume: &Path) -> Result<Vec<Region>> {
    let path = volume.to_str().context("a name")?;
    let print = "print blocksize agblocks agblklog logstart logblocks";
    let said = command("xfs_db", &["-r", "-c", "sb 0", "-c", print, path])?;
    let field = |name: &str| {
        let lines = said.lines().filter_map(|line| line.split_once(" = "));
        let value = lines.filter(|line| line.0 == name).find_map(|line| line.1.parse().ok());
        value.with_context(|| format!("xfs_db: no {name}"))
    };
    let (block, start): (u64, u64) = (field("blocksize")?, field("logstart")?);
    let (group, bits): (u64, u64) = (field("agblocks")?, field("agblklog")?);
    let first = ((start >> bits) * group + (start & ((1 << bits) - 1))) * block;
    Ok(vec![Region { first, end: first + field("logblocks")? * block }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_as_debugfs_prints_them() {
        let extents = "Inode: 8   Type: regular\nEXTENTS:\n(0-4095):8-4103, (4096):9000\n";
        let bytes = |first: u64, last: u64| Region { first: first * 4096, end: (last + 1) * 4096 };
        assert_eq!(ext_blocks(extents), [bytes(8, 4103), bytes(9000, 9000)]);
        let blocks = "BLOCKS:\n(0-11):57-68, (IND):69, (12-1035):70-1093, (DIND):1094\nTOTAL: 9\n";
        assert_eq!(ext_blocks(blocks), [bytes(57, 68), bytes(70, 1093)]);
        assert_eq!(ext_blocks("nothing"), []);
    }
}
