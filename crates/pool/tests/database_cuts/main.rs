//! Databases under power cuts of a disk that reorders, loses and tears what it was sent and not
//! told to keep.
//!
//! A lane on a simulated disk is mounted, and a real database works on it, one transaction after
//! the other; after each, where the record of the disk stands is noted. Then the power is cut at
//! requests of the record: the volume is recovered, the database's files are copied out of it, and
//! the database opens them. It must find them sound and every transaction that it had acknowledged
//! before the cut.
//!
//! `POLYLANE_DATABASE_CUTS` says how many images each database is asked about, `POLYLANE_DATABASES`
//! which of them (a part of a test's name). One ordinary test starts this program again in a mount
//! namespace of its own; without root, /dev/fuse, e2fsprogs or Python it says so and does nothing.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, Ino, SystemClock};
use polylane_ext4::Ext4;
use polylane_front::Lane;
use polylane_front::fuse::{
    InitFlags, ServeOptions, Stop, mount_options, negotiate_without, serve,
};
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::{Crash, Event, Image, SimDisk, SimOptions, Tear};
use polylane_vfs::fs::{FileSystem as _, Kind};
use polylane_vfs::{OpCtx, Options, Vfs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

mod etcd;
mod postgresql;
mod rocksdb;
mod sqlite;

/// What every volume is made with.
const FORMAT: &str = "-Fq -t ext4 -b 4096 -E lazy_itable_init=0,nodiscard";

/// A database and what is done with it. Its scripts are Python, run in the root of a volume.
pub struct Database {
    /// Its name.
    name: &'static str,
    /// The argument of `work`, or what else there is to say.
    mode: &'static str,
    /// Programs that it takes, beside Python.
    needs: &'static [&'static str],
    /// The size of its volume.
    image_mib: usize,
    /// Further options of mke2fs.
    format: &'static str,
    /// What every script begins with.
    binding: &'static str,
    /// Makes it, before anything is recorded; says a line and ends.
    make: Option<&'static str>,
    /// Says `0`, then commits a transaction for each line that it reads and says its number.
    work: &'static str,
    /// For each directory that it reads: the last transaction of the database in it, or what is
    /// wrong.
    look: &'static str,
    /// Transactions in an ordinary run, and in a full one.
    transactions: (i64, i64),
}

/// A program that answers a line with a line.
struct Script {
    child: Child,
    asks: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Script {
    fn start(database: &Database, text: &str, at: &Path) -> Script {
        let mut command = Command::new("/usr/bin/python3");
        let text = [database.binding, text].concat();
        command.args(["-c", &text, database.mode]).current_dir(at);
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
    /// Events after which another set of images may be left, about.
    fn changes(&self) -> u64 {
        let is = |event: &&Event| !matches!(event, Event::Flush { .. });
        self.events.iter().filter(is).count() as u64 * 3 / 4
    }

    /// The last transaction that was acknowledged before a cut; -1: none was.
    fn promised(&self, position: usize) -> i64 {
        let before = self.promises.iter().filter(|(at, _)| *at <= position);
        before.map(|(_, number)| *number).max().unwrap_or(-1)
    }
}

fn blank(database: &Database) -> Image {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len((database.image_mib as u64) << 20).expect("a length");
    let words = FORMAT.split(' ').chain(database.format.split(' '));
    let made = Command::new("mke2fs").args(words).arg(file.path()).status();
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

/// A volume with the database as it was made.
fn made(database: &Database) -> Image {
    let blank = blank(database);
    let Some(make) = database.make else { return blank };
    let disk = SimDisk::new(blank, SimOptions::default());
    let fs = Arc::new(open(&disk).expect("opens"));
    let at = tempfile::tempdir().expect("a mount point");
    mounted(&fs, at.path(), || {
        let mut script = Script::start(database, make, at.path());
        assert_eq!(script.line(), "0", "{}", database.name);
        script.end();
    });
    fs.close().expect("closes");
    disk.image().rebased()
}

/// Has a database commit `count` transactions. Odd seeds: on a disk that ends requests out of turn.
fn record(database: &Database, base: &Image, count: i64, seed: u64) -> Recorded {
    let delay = (seed % 2 == 1).then_some(seed);
    let disk = SimDisk::new(base.clone(), SimOptions { record: true, delay, ..Default::default() });
    let fs = Arc::new(open(&disk).expect("opens"));
    let at = tempfile::tempdir().expect("a mount point");
    let mut promises = Vec::new();
    mounted(&fs, at.path(), || {
        let mut script = Script::start(database, database.work, at.path());
        let mut said = script.line();
        for number in 0..=count {
            assert_eq!(said, number.to_string());
            promises.push((disk.position(), number));
            if number < count {
                said = script.ask("");
            }
        }
        script.end();
    });
    Recorded { base: base.clone(), events: disk.events(), promises }
}

/// The database's files as they are after the power was cut, in a directory.
fn recover(image: Image) -> Result<tempfile::TempDir, String> {
    let fs = open(&SimDisk::new(image, SimOptions::default()))?;
    let dir = tempfile::tempdir().expect("a directory");
    let root = fs.root().map_err(|errno| errno.to_string())?.ino;
    copy_out(&fs, root, dir.path())?;
    Ok(dir)
}

/// Copies all below a directory of the volume to one of the host.
fn copy_out(fs: &Ext4, dir: Ino, to: &Path) -> Result<(), String> {
    let ctx = OpCtx::service();
    let mut names = Vec::new();
    let listed = fs.readdir(&ctx, dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    listed.map_err(|errno| format!("{}: {errno}", to.display()))?;
    for name in names.iter().filter(|name| !matches!(&name[..], b"." | b".." | b"lost+found")) {
        let to = to.join(OsStr::from_bytes(name));
        let failed = |errno: Errno| format!("{}: {errno}", to.display());
        let attr = fs.lookup(&ctx, dir, name).map_err(failed)?;
        let permissions = fs::Permissions::from_mode(attr.mode() & 0o7777);
        match attr.kind {
            Kind::Dir => {
                fs::create_dir(&to).expect("room");
                copy_out(fs, attr.ino, &to)?;
                fs::set_permissions(&to, permissions).expect("a mode");
            }
            Kind::File => {
                let file = File::create(&to).expect("room");
                file.set_len(attr.size).expect("a length");
                file.set_permissions(permissions).expect("a mode");
                copy_data(fs, attr.ino, attr.size, &file).map_err(failed)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Copies what is no hole, nor zeros by the megabyte.
fn copy_data(fs: &Ext4, ino: Ino, size: u64, to: &File) -> Result<(), Errno> {
    const PART: usize = 1 << 20;
    for at in (0..size).step_by(PART) {
        let mut bytes = vec![0; PART.min((size - at) as usize)];
        fs.read(&OpCtx::service(), ino, at, bytes.len(), &mut &mut bytes[..])?;
        if bytes.iter().any(|byte| *byte != 0) {
            to.write_all_at(&bytes, at).expect("room");
        }
    }
    Ok(())
}

/// Where the power is cut: in one of how many requests on average.
#[derive(Clone, Copy)]
struct Share {
    one_in: u64,
}

/// Cuts at a share of the requests of a record, until `most` images were looked at. How many.
fn cut(database: &Database, run: &Recorded, seed: u64, share: Share, most: u64) -> u64 {
    let (mut rng, mut states) = (Rng::new(seed), 0);
    let mut judge = Script::start(database, database.look, Path::new("/"));
    let mut crash = Crash::new(&run.base, &run.events);
    let tear = Tear { unit_bytes: 4096, whole: Some(1024..2048) };
    while let Some(changed) = crash.advance() {
        if !changed || rng.below(share.one_in) != 0 {
            continue;
        }
        let (position, promised) = (crash.position(), run.promised(crash.position()));
        for fates in crash.choices(&mut rng, 1, 1) {
            if states == most {
                break;
            }
            let at =
                || format!("{}, seed {seed}, after event {position}, {fates:?}", database.name);
            let image = crash.image(&tear, |n| fates[n]);
            let dir = recover(image).unwrap_or_else(|why| panic!("{}: {why}", at()));
            let found = judge.ask(&dir.path().to_string_lossy());
            let last: i64 = found.parse().unwrap_or_else(|_| panic!("{}: {found}", at()));
            assert!(last >= promised, "{}: {promised} was acknowledged, {last} is the last", at());
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
        () if !Path::new("/usr/bin/python3").exists() => Some("Python is not installed"),
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
        .args(std::env::var("POLYLANE_DATABASES"))
        .status()
        .expect("unshare starts");
    assert!(status.success(), "{status}");
}

/// How many images each database is asked about: `POLYLANE_DATABASE_CUTS`, else some in a full run,
/// and none in an ordinary one but of SQLite.
fn wanted(ordinary: u64) -> u64 {
    number("POLYLANE_DATABASE_CUTS", if is_full() { 500 } else { ordinary })
}

/// Records runs of a database, and cuts each at so many places that `wanted` images come of them.
fn survives(database: &Database, wanted: u64) {
    if wanted == 0 {
        return println!("skipped: {}: part of the campaign", database.name);
    }
    if let Some(missing) = database.needs.iter().find(|program| !Path::new(program).exists()) {
        return println!("skipped: {}: {missing} is not installed", database.name);
    }
    let count =
        if is_full() || wanted > 200 { database.transactions.1 } else { database.transactions.0 };
    let first = number("POLYLANE_CRASH_SEED", 1) << 8;
    let base = made(database);
    let (mut states, mut rounds) = (0, 0);
    while states < wanted && rounds < 20 {
        let run = record(database, &base, count, first + rounds);
        // Four images at a cut, and the whole run is looked at.
        let cuts = (wanted - states).div_ceil(4).max(1);
        let share = Share { one_in: (run.changes() / cuts).max(1) };
        states += cut(database, &run, first + rounds, share, wanted - states);
        rounds += 1;
        let (name, mode, events) = (database.name, database.mode, run.events.len());
        println!("crash: {name}, {mode}: {count} transactions, {events} events, {states} states");
    }
    assert!(states >= wanted, "{}: too few states were looked at", database.name);
}

/// Whatever is left of the writes that the disk was not told to keep.
#[test]
#[ignore = "in a private mount namespace"]
fn sqlite_has_every_transaction_that_it_acknowledged() {
    for mode in ["DELETE", "WAL", "TRUNCATE", "PERSIST"] {
        survives(&sqlite::database(mode), wanted(60));
    }
}

#[test]
#[ignore = "in a private mount namespace"]
fn postgresql_has_every_transaction_that_it_acknowledged() {
    survives(&postgresql::database(), wanted(0));
}

#[test]
#[ignore = "in a private mount namespace"]
fn rocksdb_has_every_put_that_it_acknowledged() {
    survives(&rocksdb::database(), wanted(40));
}

#[test]
#[ignore = "in a private mount namespace"]
fn etcd_has_every_put_that_it_acknowledged() {
    survives(&etcd::database(), wanted(0));
}
