//! Databases under power cuts of a disk that reorders, loses and tears what it was sent and not
//! told to keep.
//!
//! A lane on a simulated disk is mounted, and a real database works on it, one transaction after
//! the other; after each, where the record of the disk stands is noted. Then the power is cut at
//! every request of the record: the volume is recovered, the database's files are copied out of it,
//! and the database opens them. It must find them sound and every transaction that it had
//! acknowledged before the cut.
//!
//! One ordinary test starts this program again in a mount namespace of its own; without root,
//! /dev/fuse, e2fsprogs or Python it says so and does nothing.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_base::rng::Rng;
use polylane_base::sync::{Arc, thread};
use polylane_ext4::Ext4;
use polylane_front::Lane;
use polylane_front::fuse::{
    InitFlags, ServeOptions, Stop, mount_options, negotiate_without, serve,
};
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::{Crash, Event, Image, SimDisk, SimOptions, Tear};
use polylane_vfs::fs::FileSystem as _;
use polylane_vfs::{OpCtx, Options, Vfs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// A volume small enough that its log wraps while the database works.
const IMAGE_BYTES: usize = 16 << 20;
const FORMAT: &str = "-Fq -t ext4 -b 4096 -N 512 -J size=4 -E lazy_itable_init=0,nodiscard";

/// The files that SQLite may leave.
const FILES: [&str; 4] = ["db", "db-journal", "db-wal", "db-shm"];

/// Commits a transaction for each line that it reads, and then says which: a row here, a row and an
/// index there, some of them large, an old one away. With less than `EXTRA` SQLite lets a rollback
/// journal that it deleted come back after a cut, and then takes the transaction back.
const WORK: &str = r#"
import sqlite3, sys
db = sqlite3.connect("db", isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[1]); db.execute("PRAGMA synchronous=EXTRA")
db.execute("CREATE TABLE a(n INTEGER PRIMARY KEY, t)")
db.execute("CREATE TABLE b(n, t)"); db.execute("CREATE INDEX i ON b(t)")
db.execute("PRAGMA wal_autocheckpoint=20")
print(0, flush=True)
for n, line in enumerate(sys.stdin, 1):
    db.execute("BEGIN"); db.execute("INSERT INTO a VALUES(?, ?)", (n, "x" * (n * 7919 % 9000)))
    db.execute("INSERT INTO b VALUES(?, ?)", (n, str(n * 7919 % 1009)))
    db.execute("DELETE FROM a WHERE n = ?", (n - 12,)); db.execute("COMMIT")
    print(n, flush=True)
"#;

/// For each directory that it reads: the last transaction of the database in it, or what is wrong.
const LOOK: &str = r#"
import sqlite3, sys
for line in sys.stdin:
    try:
        db = sqlite3.connect(line.strip() + "/db")
        wrong = [row for row in db.execute("PRAGMA integrity_check")]
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        last = [-1, -1]
        if names == ["a", "b", "i"]:
            last = [db.execute("SELECT coalesce(max(n), 0) FROM " + t).fetchone()[0] for t in "ab"]
        rows = db.execute("SELECT count(*) FROM b").fetchone()[0] if "b" in names else -1
        good = wrong == [("ok",)] and last[0] == last[1] and rows == last[0]
        made = names == ["a", "b", "i"]
        print(last[0] if good or not made else ("damaged", wrong, last, rows), flush=True)
    except sqlite3.Error as error:
        print("damaged", error, flush=True)
"#;

/// A program that answers a line with a line.
struct Script {
    child: Child,
    asks: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Script {
    fn start(text: &str, argument: &str, at: &Path) -> Script {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", text, argument]).current_dir(at);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let asks = child.stdin.take();
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        Script { child, asks, says }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("a line");
        line.trim().to_string()
    }

    fn ask(&mut self, words: &str) -> String {
        writeln!(self.asks.as_mut().expect("open"), "{words}").expect("it reads");
        self.line()
    }

    fn end(mut self) {
        drop(self.asks.take());
        assert!(self.child.wait().expect("ends").success());
    }
}

/// What a database did to a disk.
struct Recorded {
    base: Image,
    events: Vec<Event>,
    /// Events after which a transaction was acknowledged, and its number.
    promises: Vec<(usize, i64)>,
}

impl Recorded {
    /// The last transaction that was acknowledged before a cut; -1: none was.
    fn promised(&self, position: usize) -> i64 {
        let before = self.promises.iter().filter(|(at, _)| *at <= position);
        before.map(|(_, number)| *number).max().unwrap_or(-1)
    }
}

fn blank() -> Image {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(IMAGE_BYTES as u64).expect("a length");
    let made = Command::new("mke2fs").args(FORMAT.split(' ')).arg(file.path()).status();
    assert!(made.expect("mke2fs runs").success());
    Image::new(fs::read(file.path()).expect("readable"))
}

/// A volume on `disk`. It commits when it is asked to.
fn open(disk: &Arc<SimDisk>) -> Result<Ext4, String> {
    let commit_interval = Duration::from_secs(3600);
    let options = polylane_ext4::Options { commit_interval, ..Default::default() };
    Ext4::open(disk.clone(), Arc::new(SystemClock), &options).map_err(|error| error.to_string())
}

/// A lane that is mounted at `at`, while `work` runs.
fn mounted(fs: &Arc<Ext4>, at: &Path, work: impl FnOnce()) {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).expect("/dev/fuse");
    let options = CString::new(mount_options(device.as_raw_fd(), 0, 0, true)).expect("text");
    let (kind, flags) = ("fuse.polylane", MountFlags::empty());
    rustix::mount::mount("test", at, kind, flags, Some(options.as_c_str())).expect("mounted");
    let params = Some(negotiate_without(&device, 5000, InitFlags::empty()).expect("negotiated"));
    let options = Options {
        clock: Arc::new(SystemClock),
        cache_bytes_limit: 8 << 20,
        dirty_bytes_limit: 4 << 20,
        flush_interval: Duration::from_millis(300),
        mount_path: at.to_string_lossy().into_owned().into_bytes(),
        covered: vec![],
    };
    let lane = Lane::new(Vfs::new(fs.clone(), options).expect("opens"), 0);
    let stop = Stop::new().expect("an eventfd");
    let stopped = stop.clone();
    let options = ServeOptions { params, incarnation: 0, threads: 2, in_flight: None };
    let server = thread::spawn(move || serve(device, lane, options, &stopped));
    work();
    rustix::mount::unmount(at, UnmountFlags::DETACH).expect("mounted");
    stop.request();
    server.join().expect("no panic").expect("no failure");
}

/// Has SQLite commit `count` transactions. Odd seeds: on a disk that ends requests out of turn.
fn record(mode: &str, count: i64, seed: u64) -> Recorded {
    let base = blank();
    let delay = (seed % 2 == 1).then_some(seed);
    let disk = SimDisk::new(base.clone(), SimOptions { record: true, delay, ..Default::default() });
    let fs = Arc::new(open(&disk).expect("opens"));
    let at = tempfile::tempdir().expect("a mount point");
    let mut promises = Vec::new();
    mounted(&fs, at.path(), || {
        let mut database = Script::start(WORK, mode, at.path());
        let mut said = database.line();
        for number in 0..=count {
            assert_eq!(said, number.to_string());
            promises.push((disk.position(), number));
            if number < count {
                said = database.ask("");
            }
        }
        database.end();
    });
    Recorded { base, events: disk.events(), promises }
}

/// The database's files as they are after the power was cut, in a directory.
fn recover(image: Image) -> Result<tempfile::TempDir, String> {
    let fs = open(&SimDisk::new(image, SimOptions::default()))?;
    let (dir, ctx) = (tempfile::tempdir().expect("a directory"), OpCtx::service());
    let root = fs.root().map_err(|errno| errno.to_string())?.ino;
    for name in FILES {
        let Ok(attr) = fs.lookup(&ctx, root, name.as_bytes()) else { continue };
        let mut bytes = vec![0; attr.size as usize];
        let read = fs.read(&ctx, attr.ino, 0, bytes.len(), &mut &mut bytes[..]);
        read.map_err(|errno| format!("{name}: {errno}"))?;
        fs::write(dir.path().join(name), bytes).expect("room");
    }
    Ok(dir)
}

/// Cuts at `share` percent of the requests of a record. How many images were looked at.
fn cut(run: &Recorded, seed: u64, share: u64) -> u64 {
    let (mut rng, mut states) = (Rng::new(seed), 0);
    let mut judge = Script::start(LOOK, "", Path::new("/"));
    let mut crash = Crash::new(&run.base, &run.events);
    let tear = Tear { unit_bytes: 4096, whole: Some(1024..2048) };
    while let Some(changed) = crash.advance() {
        if !changed || !rng.percent(share) {
            continue;
        }
        let (position, promised) = (crash.position(), run.promised(crash.position()));
        for fates in crash.choices(&mut rng, 1, 1) {
            let image = crash.image(&tear, |n| fates[n]);
            let dir = recover(image).unwrap_or_else(|why| {
                panic!("seed {seed}, after event {position}, {fates:?}: {why}")
            });
            let found = judge.ask(&dir.path().to_string_lossy());
            let last: i64 = found.parse().unwrap_or_else(|_| {
                panic!("seed {seed}, after event {position}, {fates:?}: {found}")
            });
            assert!(
                last >= promised,
                "seed {seed}, after event {position}, {fates:?}: {promised} was acknowledged, \
                 {last} is the last"
            );
            states += 1;
        }
    }
    judge.end();
    states
}

fn lacks() -> Option<&'static str> {
    let fuse = || File::options().read(true).write(true).open("/dev/fuse").is_ok();
    match () {
        () if !rustix::process::geteuid().is_root() => Some("needs root"),
        () if !fuse() => Some("/dev/fuse cannot be opened"),
        () if Command::new("mke2fs").arg("-V").output().is_err() => Some("mke2fs is not installed"),
        () if !PathBuf::from("/usr/bin/python3").exists() => Some("Python is not installed"),
        () => None,
    }
}

#[test]
fn databases_survive_cuts_of_a_disk_that_reorders() {
    if let Some(why) = lacks() {
        return println!("skipped: {why}");
    }
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().expect("the path of this program"))
        .args(["--ignored", "--nocapture", "--test-threads", "1"])
        .status()
        .expect("unshare starts");
    assert!(status.success(), "{status}");
}

/// Whatever is left of the writes that the disk was not told to keep.
#[test]
#[ignore = "in a private mount namespace"]
fn sqlite_has_every_transaction_that_it_acknowledged() {
    let first = number("POLYLANE_CRASH_SEED", 1) << 8;
    let (count, share, rounds) = if is_full() { (100, 100, 4) } else { (24, 40, 1) };
    for round in 0..rounds {
        for (at, mode) in ["DELETE", "WAL", "TRUNCATE", "PERSIST"].into_iter().enumerate() {
            let seed = first + 4 * round + (at as u64 + round) % 4;
            let run = record(mode, count, seed);
            let states = cut(&run, seed, share);
            println!("crash: SQLite, {mode}: {count} transactions, {states} states");
            assert!(states > 40, "too few states were looked at");
        }
    }
}
