//! `group-commit`: threads that append and sync, each a file of its own, by form of the commits:
//! one write with the data in the log, or data in place, the log's body, and the commit block.
//!
//! All of it is in this process: our ext4 on a file of the host, without a page cache and without
//! ways in. So what differs is the form alone.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polylane_base::{Ino, SystemClock};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_ext4::journal::Form;
use polylane_ext4::{Ext4, Options as Ext4Options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem as _, Kind, NewNode, Syncing};

use crate::report::{Better, Report};
use crate::{Options, progress};

const VOLUME_MIB: usize = 256;

/// One append: a block of the file.
const APPEND: [u8; 4096] = [0x61; 4096];

/// A file begins anew at this size.
const FILE_BYTES: u64 = 1 << 20;

const POINTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Whether the data of a sync goes to the log.
const SYSTEMS: [(&str, bool); 2] = [("two writes", false), ("one write", true)];

/// Syncs a second by form.
///
/// # Errors
/// mke2fs is missing, or the host's.
pub fn run(options: &Options) -> Result<Report> {
    let title = "appends of 4 KiB, each synced, by the form of their commits";
    let mut report = Report::new("group-commit", title, "threads", "syncs/s", Better::Higher);
    report.baseline = SYSTEMS[0].0.into();
    let time = Duration::from_secs_f64(if options.quick { 0.5 } else { 2.0 });
    let place = options.disk.as_deref().unwrap_or(&options.out);
    std::fs::create_dir_all(place)?;
    let dir = tempfile::tempdir_in(place)?;
    let image = dir.path().join("volume");
    format(&image)?;
    for threads in POINTS {
        for repeat in 0..options.repeats() {
            for turn in 0..SYSTEMS.len() {
                let (name, logs) = SYSTEMS[(turn + repeat) % SYSTEMS.len()];
                progress(&format!("group-commit {threads} {name} {repeat}"));
                let (rate, one_write) = measure(&image, logs, threads, time)?;
                report.add(name, &threads.to_string(), rate, &[("of_one_write", one_write)]);
            }
        }
    }
    report.notes.push(format!(
        "our ext4 in this process on a file of {VOLUME_MIB} MiB, all of it written before; \
         of_one_write: part of the commits that took that form"
    ));
    Ok(report)
}

/// A file system all of whose blocks are written on the host, so that no sync waits for space.
fn format(image: &Path) -> Result<()> {
    let mut file = File::create(image)?;
    for _ in 0..VOLUME_MIB {
        file.write_all(&vec![0; 1 << 20])?;
    }
    file.sync_all()?;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fqt", "ext4", "-b", "4096", "-m", "0", "-J", "size=32"]);
    mke2fs.args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]).arg(image);
    ensure!(mke2fs.status().context("run mke2fs")?.success(), "mke2fs failed");
    Ok(())
}

fn device(image: &Path) -> Result<Arc<FileDevice>> {
    let open = |flags| -> Result<_> {
        let opened = File::options().read(true).write(true).custom_flags(flags).open(image);
        Ok(opened.with_context(|| format!("open {}", image.display()))?.into())
    };
    // File systems in memory may have no direct I/O.
    let io = open(libc::O_DIRECT).or_else(|_| open(0))?;
    Ok(FileDevice::open(Files { io, plain: open(0)?, lock: open(0)? }, Way::Ring)?)
}

/// Syncs a second of `threads` threads, and the part of their commits that took one write.
fn measure(image: &Path, logs: bool, threads: usize, time: Duration) -> Result<(f64, f64)> {
    let fs = Ext4::open(device(image)?, Arc::new(SystemClock), &Ext4Options::default());
    let fs = fs.map_err(|error| anyhow!("open the volume: {error}"))?;
    let root = fs.root()?.ino;
    let files: Vec<Ino> = (0..threads)
        .map(|thread| file(&fs, root, &format!("{thread}")))
        .collect::<polylane_base::Result<_>>()?;
    fs.sync(&OpCtx::service())?;
    let before = commits(&fs);
    let begin = Instant::now();
    let done: polylane_base::Result<u64> = thread::scope(|scope| {
        let work = |ino| {
            scope.spawn({
                let fs = &fs;
                move || append(fs, ino, logs, begin, time)
            })
        };
        let all: Vec<_> = files.iter().map(|ino| work(*ino)).collect();
        all.into_iter().map(|it| it.join().expect("no panic")).sum()
    });
    let rate = done? as f64 / begin.elapsed().as_secs_f64();
    let (one, all) = commits(&fs);
    fs.close().map_err(|error| anyhow!("close the volume: {error}"))?;
    Ok((rate, (one - before.0) as f64 / (all - before.1).max(1) as f64))
}

/// The file of that name, made where it is not there.
fn file(fs: &Ext4, root: Ino, name: &str) -> polylane_base::Result<Ino> {
    let (ctx, new) = (OpCtx::service(), NewNode::new(Kind::File, 0o600));
    match fs.lookup(&ctx, root, name.as_bytes()) {
        Ok(found) => Ok(found.ino),
        Err(_) => Ok(fs.create(&ctx, root, name.as_bytes(), &new)?.node.ino),
    }
}

/// Commits by one write, and all.
fn commits(fs: &Ext4) -> (u64, u64) {
    let counts = fs.commits();
    let of = |form: Form| counts.iter().find(|(name, _)| *name == form.name()).map_or(0, |it| it.1);
    (of(Form::OneWrite), Form::ALL.iter().map(|form| of(*form)).sum())
}

/// One thread, until `time` is over; how many syncs it made.
fn append(
    fs: &Ext4,
    ino: Ino,
    logs: bool,
    begin: Instant,
    time: Duration,
) -> polylane_base::Result<u64> {
    let (ctx, mut count, mut at) = (OpCtx::service(), 0, 0);
    let syncing = Syncing { bytes: APPEND.len() as u64, data_only: true };
    while begin.elapsed() < time {
        if at == 0 {
            let set = polylane_vfs::fs::SetAttr { size: Some(0), ..Default::default() };
            fs.setattr(&ctx, ino, &set)?;
        }
        match logs {
            true => fs.write_synced(&ctx, ino, at, &mut &APPEND[..], syncing)?,
            false => fs.write(&ctx, ino, at, &mut &APPEND[..])?,
        };
        fs.fsync(&ctx, ino, true)?;
        (count, at) = (count + 1, (at + APPEND.len() as u64) % FILE_BYTES);
    }
    Ok(count)
}
