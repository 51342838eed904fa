//! What guests do while detectors of journals watch: programs that fsync, and programs that look
//! like a journal and are none.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polylane_base::rng::Rng;

/// Files that a thread of [`mail`] keeps.
const FILES: u64 = 64;
const MIB: usize = 1 << 20;

/// A load; it ends by itself after a time.
pub(super) type Load = fn(&Path, Duration) -> Result<()>;

/// By name.
pub(super) const LOADS: [(&str, Load); 6] = [
    ("mail", |dir, time| mail(dir, 4, time).map(drop)),
    ("sqlite", sqlite),
    ("redo", redo),
    ("lsm", lsm),
    ("stream", stream),
    ("copy", copy),
];

/// All of them at the same time, each in a directory of its own.
///
/// # Errors
/// The first one's.
pub(super) fn mixed(dir: &Path, time: Duration) -> Result<()> {
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let started: Vec<_> = LOADS
            .iter()
            .map(|(name, load)| {
                let own = dir.join(name);
                scope.spawn(move || {
                    fs::create_dir_all(&own)?;
                    load(&own, time)
                })
            })
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|_| Ok(()))).collect()
    });
    results.into_iter().collect()
}

/// Mails per second that `threads` threads deliver.
///
/// # Errors
/// The file system's.
pub(super) fn mail(dir: &Path, threads: u64, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || deliver(dir, thread, start, time));
        let workers: Vec<_> = (0..threads).map(start).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.map(|count| count.unwrap_or_else(|_| Ok(0))).collect()
    });
    let total = counts.into_iter().sum::<Result<u64>>()?;
    Ok(total as f64 / start.elapsed().as_secs_f64())
}

/// One thread: delivers a mail, appends to one, reads one, and removes what is too much.
fn deliver(dir: &Path, thread: u64, start: Instant, time: Duration) -> Result<u64> {
    let mut rng = Rng::new(thread);
    let box_of = |number: u64| dir.join(format!("{thread}-{number}"));
    let (data, mut read) = (vec![0x6d; 16 << 10], Vec::new());
    let mut count = 0;
    while start.elapsed() < time {
        let mut file = File::create(box_of(rng.below(FILES)))?;
        file.write_all(&data[..(rng.below(4) as usize + 1) * 4096])?;
        file.sync_all()?;
        if let Ok(mut old) = File::options().append(true).open(box_of(rng.below(FILES))) {
            old.write_all(&data[..4096])?;
            old.sync_all()?;
        }
        if let Ok(mut old) = File::open(box_of(rng.below(FILES))) {
            read.clear();
            old.read_to_end(&mut read)?;
        }
        let _ = fs::remove_file(box_of(rng.below(FILES)));
        count += 1;
    }
    Ok(count)
}

/// Mails that [`mailboxes`] keeps.
pub(super) const MAILS: u64 = 4096;

/// A mail server whose mails do not fit into its guest's memory, so that reads reach the volume:
/// what is read is dropped from the page cache before. `threads` threads; first all mails are
/// written, then each thread delivers a mail in the place of an old one, appends to one, both made
/// durable, and reads two, the lower its number the more often.
///
/// # Errors
/// The file system's.
pub(super) fn mailboxes(dir: &Path, threads: u64, time: Duration) -> Result<()> {
    let (mut rng, data) = (Rng::new(7), vec![0x6d; 16 << 10]);
    for number in 0..MAILS {
        fs::write(dir.join(number.to_string()), &data[..(rng.below(4) as usize + 1) * 4096])?;
    }
    rustix::fs::syncfs(File::open(dir)?)?;
    let start = Instant::now();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let begin = |thread| scope.spawn(move || serve(dir, thread, start, time));
        let workers: Vec<_> = (0..threads).map(begin).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.map(|result| result.unwrap_or(Ok(()))).collect()
    });
    results.into_iter().collect()
}

fn serve(dir: &Path, thread: u64, start: Instant, time: Duration) -> Result<()> {
    let mut rng = Rng::new(100 + thread);
    let (data, mut read) = (vec![0x6d; 16 << 10], Vec::new());
    let mail = |number: u64| dir.join(number.to_string());
    while start.elapsed() < time {
        let (new, old) = (mail(rng.below(MAILS)), mail(rng.below(MAILS)));
        // It may be another thread's by now, or gone for a moment.
        let _ = fs::remove_file(&new);
        let mut file = File::create(&new)?;
        file.write_all(&data[..(rng.below(4) as usize + 1) * 4096])?;
        file.sync_all()?;
        if let Ok(mut file) = File::options().append(true).open(&old)
            && file.metadata()?.len() < data.len() as u64
        {
            file.write_all(&data[..4096])?;
            file.sync_all()?;
        }
        for _ in 0..2 {
            let last = rng.below(MAILS);
            let number = rng.below(last + 1);
            let Ok(mut file) = File::open(mail(number)) else { continue };
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            read.clear();
            file.read_to_end(&mut read)?;
        }
    }
    Ok(())
}

/// Whether [`sqlite`] can run here.
pub(super) fn has_sqlite() -> bool {
    super::guest::has("sqlite3")
}

/// Transactions of one row, half of them with a write-ahead log. Nothing without sqlite3.
fn sqlite(dir: &Path, time: Duration) -> Result<()> {
    let start = Instant::now();
    let mut round = 0;
    while has_sqlite() && start.elapsed() < time {
        let mode = if round % 2 == 0 { "wal" } else { "delete" };
        let mut script = format!(
            "pragma journal_mode={mode}; pragma synchronous=full;\n\
             create table if not exists t(a integer primary key, b blob);\n"
        );
        for _ in 0..50 {
            script += "insert into t(b) values(randomblob(300));\n";
        }
        script += "delete from t where a < (select max(a) from t) - 20000;\n";
        let mut child = Command::new("sqlite3")
            .arg(dir.join(format!("{mode}.db")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("run sqlite3")?;
        child.stdin.take().context("its input")?.write_all(script.as_bytes())?;
        ensure!(child.wait()?.success(), "sqlite3 failed");
        round += 1;
    }
    Ok(())
}

/// A database's redo log: a file that was allocated before, overwritten round and round, each
/// record made durable.
fn redo(dir: &Path, time: Duration) -> Result<()> {
    let (mut rng, start) = (Rng::new(3), Instant::now());
    let file = File::create(dir.join("redo.log"))?;
    let zeros = vec![0; 16 * MIB];
    file.write_all_at(&zeros, 0)?;
    file.sync_all()?;
    let mut at = 0;
    while start.elapsed() < time {
        let length = 512 * (rng.below(16) as usize + 1);
        if at + length > zeros.len() {
            at = 0;
        }
        file.write_all_at(&vec![0x72; length], at as u64)?;
        file.sync_data()?;
        at += length;
    }
    Ok(())
}

/// A log-structured store: a log appended and made durable, tables written in one piece when it is
/// full, four of them merged into one.
fn lsm(dir: &Path, time: Duration) -> Result<()> {
    let (mut rng, start) = (Rng::new(4), Instant::now());
    let table = vec![0x74; 4 * MIB];
    let (mut generation, mut tables) = (0u64, Vec::new());
    while start.elapsed() < time {
        let path = dir.join(format!("{generation}.log"));
        let mut log = File::create(&path)?;
        for _ in 0..200 {
            log.write_all(&table[..64 + rng.below(4000) as usize])?;
            log.sync_data()?;
            if start.elapsed() >= time {
                break;
            }
        }
        let sst = dir.join(format!("{generation}.sst"));
        let mut file = File::create(&sst)?;
        file.write_all(&table)?;
        file.sync_all()?;
        fs::remove_file(&path)?;
        tables.push(sst);
        generation += 1;
        if tables.len() == 4 {
            merge(dir, &mut tables)?;
        }
    }
    Ok(())
}

fn merge(dir: &Path, tables: &mut Vec<std::path::PathBuf>) -> Result<()> {
    let mut merged = File::create(dir.join("merged.sst"))?;
    for table in tables.drain(..) {
        let mut data = Vec::new();
        File::open(&table)?.read_to_end(&mut data)?;
        merged.write_all(&data)?;
        fs::remove_file(&table)?;
    }
    merged.sync_all()?;
    Ok(())
}

/// A recording: large pieces one after the other, the file begun again when it is long.
fn stream(dir: &Path, time: Duration) -> Result<()> {
    let start = Instant::now();
    let mut file = File::create(dir.join("stream"))?;
    let piece = vec![0x73; MIB];
    let mut count = 0;
    while start.elapsed() < time {
        file.write_all(&piece)?;
        count += 1;
        if count % 16 == 0 {
            file.sync_data()?;
        }
        if count % 96 == 0 {
            file.seek(SeekFrom::Start(0))?;
        }
    }
    Ok(())
}

/// A tree of files copied again and again.
fn copy(dir: &Path, time: Duration) -> Result<()> {
    let (mut rng, start) = (Rng::new(6), Instant::now());
    let data = vec![0x63; 256 << 10];
    for number in 0..100 {
        fs::write(dir.join(format!("from-{number}")), &data[..1 + rng.below(1 << 18) as usize])?;
    }
    while start.elapsed() < time {
        for number in 0..100 {
            let to = dir.join(format!("to-{number}"));
            fs::copy(dir.join(format!("from-{number}")), &to)?;
            if number % 20 == 19 {
                File::open(&to)?.sync_all()?;
            }
        }
    }
    Ok(())
}
