//! Copies of volumes in use: one moment of them, whatever happens meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::pool::{Run, signal_to};
use polylane_tests::volume::{HostFs, assert_clean};
use polylane_tests::{binary, lacks, seed, unavailable};

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Attachments that end while they are copied.
const ROUNDS: u32 = 24;

/// Numbers its records, makes each durable, and only then says its number. A write that fails, as
/// one may when the service is killed, is done again.
const WRITER: &str = "i=0; while :; do i=$((i+1)); \
                      until echo $i | dd of=/lane/log oflag=append,dsync conv=notrunc; do :; done; \
                      echo $i; mkdir -p /lane/d/$i; rm -rf /lane/d; done 2>/dev/null";

fn polylane(words: &[&str]) -> Output {
    Command::new(binary()).args(words).output().expect("polylane runs")
}

fn good(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn sh(script: &str) -> String {
    good(&Command::new("sh").args(["-euc", script]).output().expect("sh runs"))
}

/// Tries until it succeeds.
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A lane whose tenant is [`WRITER`].
struct Writing {
    child: Child,
    pool: String,
    /// The last number that it said.
    said: Arc<AtomicU64>,
}

impl Writing {
    fn start(pool: &str, volume: &Path) -> Writing {
        let mut child = Command::new(binary())
            .args(["run", "--pool", pool, "--size", "256M", "--volume"])
            .arg(volume)
            .args(["--", "sh", "-c", WRITER])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start polylane");
        let said = Arc::new(AtomicU64::new(0));
        let (heard, lines) = (said.clone(), child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                heard.store(line.parse().expect("a number"), Ordering::SeqCst);
            }
        });
        let writing = Writing { child, pool: pool.to_string(), said };
        writing.goes_on();
        writing
    }

    fn said(&self) -> u64 {
        self.said.load(Ordering::SeqCst)
    }

    /// Waits for some more records.
    fn goes_on(&self) {
        let before = self.said();
        wait_until("the writer goes on", || self.said() > before + 5);
    }

    /// Waits until it says nothing more.
    fn stands_still(&self) {
        wait_until("the writer stands still", || {
            let before = self.said();
            std::thread::sleep(Duration::from_millis(300));
            self.said() == before
        });
    }

    /// Ends it; the last number.
    fn end(mut self) -> u64 {
        signal_to(self.child.id(), "TERM");
        wait_until("the lane ends", || self.child.try_wait().expect("wait").is_some());
        self.said()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last record on a volume, which must have all from 1 on. One may be there twice whose first
/// write was not acknowledged.
fn records(volume: &Path) -> u64 {
    let output = Run::new("--no-preload --volume").arg(volume).script("cat /lane/log").output();
    let text = good(&output);
    text.lines().fold(0, |last, line| {
        let number: u64 = line.parse().expect("a number");
        assert!(number == last || number == last + 1, "{}: {text}", volume.display());
        number
    })
}

/// What a copy must be: sound, with every record that was acknowledged before it was asked for.
fn assert_copy(dir: &Path, copy: &str, acknowledged: u64) {
    let path = dir.join(copy);
    good(&polylane(&["volume", "check", path.to_str().expect("a name")]));
    let tried = dir.join(format!("{copy}.tried"));
    let (path, at) = (path.to_str().expect("a name"), tried.to_str().expect("a name"));
    good(&polylane(&["volume", "clone", path, at]));
    let found = records(&tried);
    assert!(found >= acknowledged, "{copy}: {found} records, {acknowledged} were acknowledged");
    good(&polylane(&["volume", "rm", at]));
}

fn place(test: &str) -> Option<tempfile::TempDir> {
    if unavailable(test) || lacks(test, &["mke2fs", "e2fsck"]) {
        return None;
    }
    Some(tempfile::tempdir().expect("tempdir"))
}

/// Copies a volume under a writing tenant in `dir`, and looks at all copies.
fn copies_under_a_writer(pool: &str, dir: &Path) {
    let volume = dir.join("v");
    let writing = Writing::start(pool, &volume);
    let at = |name: &str| dir.join(name).to_str().expect("a name").to_string();
    let mut acknowledged = Vec::new();
    for (kind, name) in [("snapshot", "s1"), ("clone", "c1"), ("snapshot", "s2"), ("clone", "c2")] {
        acknowledged.push((name, writing.said()));
        good(&polylane(&["volume", kind, &at("v"), &at(name)]));
        writing.goes_on();
    }
    let stats = good(&polylane(&["stats", "--all", "--pool", pool]));
    assert!(stats.contains("service.volume.copies: 4"), "{stats}");
    let refused = polylane(&["volume", "snapshot", &at("v"), &at("s1")]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("s1: cannot create it"), "{said}");
    writing.goes_on();
    let last = writing.end();
    for (name, acknowledged) in acknowledged {
        assert_copy(dir, name, acknowledged);
    }
    good(&polylane(&["volume", "check", &at("v")]));
    assert!(records(&volume) >= last);
    // What was written to a clone is in no other volume.
    let script = "echo mine > /lane/mine";
    good(&Run::new("--volume").arg(dir.join("c1")).script(script).output());
    assert_copy(dir, "s1", 1);
    assert!(records(&dir.join("c2")) > 0);
    good(&polylane(&["volume", "rm", &at("v"), &at("c1"), &at("c2")]));
    good(&polylane(&["volume", "rm", &at("s2")]));
    good(&polylane(&["volume", "rm", &at("s1")]));
    let left: Vec<_> = fs::read_dir(dir).expect("list").flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_lane_is_copied_while_it_writes() {
    let Some(dir) = place("a_lane_is_copied_while_it_writes") else { return };
    copies_under_a_writer(&format!("live-{}", std::process::id()), dir.path());
}

#[test]
fn a_lane_is_copied_while_it_writes_where_the_host_shares_blocks() {
    let name = "a_lane_is_copied_while_it_writes_where_the_host_shares_blocks";
    if place(name).is_none() {
        return;
    }
    let Some(host) = HostFs::new(name, "xfs", 1 << 30) else { return };
    let dir = host.path().join("volumes");
    fs::create_dir(&dir).expect("mkdir");
    copies_under_a_writer(&format!("live-xfs-{}", std::process::id()), &dir);
}

/// A copier that makes a volume stand still, says what it is told, and does nothing more.
struct Copier {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    _input: ChildStdin,
}

impl Copier {
    fn start(socket: &Path, volume: &Path) -> Copier {
        let script = "import json, os, socket, sys\n\
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            s.connect(sys.argv[1])\n\
            stat = os.stat(sys.argv[2])\n\
            target = {'device': stat.st_dev, 'inode': stat.st_ino}\n\
            s.settimeout(60)\n\
            s.send(json.dumps({'Copy': target}).encode())\n\
            while True:\n\
            \tanswer = s.recv(65536)\n\
            \tprint(answer.decode(), flush=True)\n\
            \tif not answer: break\n";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .args([socket, volume])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let input = child.stdin.take().expect("piped");
        let mut copier = Copier { child, lines, _input: input };
        assert_eq!(copier.line(), "\"Mine\"");
        assert_eq!(copier.line(), "\"Done\"");
        copier
    }

    /// What it is told next. It gives up after a minute by itself.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("read");
        line.trim_end().to_string()
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket_of(pool: &str) -> PathBuf {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join("polylane"));
    let dirs = [Some(PathBuf::from("/run/polylane")), runtime];
    let sockets = dirs.into_iter().flatten().map(|dir| dir.join(format!("{pool}.sock")));
    let uid = sh("id -u");
    let other = PathBuf::from(format!("/tmp/polylane-{}/{pool}.sock", uid.trim()));
    sockets.chain([other]).find(|path| path.exists()).expect("the pool's socket")
}

#[test]
fn a_lane_goes_on_when_its_copier_or_its_service_is_killed() {
    let name = "a_lane_goes_on_when_its_copier_or_its_service_is_killed";
    let Some(dir) = place(name).filter(|_| !lacks(name, &["python3"])) else { return };
    let (pool, volume) = (format!("live-kill-{}", std::process::id()), dir.path().join("v"));
    let writing = Writing::start(&pool, &volume);
    let copier = Copier::start(&socket_of(&pool), &volume);
    writing.stands_still();
    let to = dir.path().join("s").to_str().expect("a name").to_string();
    let words = ["volume", "snapshot", volume.to_str().expect("a name"), &to];
    let refused = polylane(&words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("by another command"), "{said}");
    drop(copier);
    writing.goes_on();
    let mut copier = Copier::start(&socket_of(&pool), &volume);
    writing.stands_still();
    let service = polylane_tests::pool::service_of(&pool).expect("a service");
    signal_to(service, "KILL");
    assert!(copier.line().contains("Ended"));
    writing.goes_on();
    good(&polylane(&words));
    writing.goes_on();
    // The supervisor, with the volume standing still: nothing is lost with it.
    let acknowledged = writing.said();
    let mut copier = Copier::start(&socket_of(&writing.pool), &volume);
    signal_to(writing.child.id(), "KILL");
    assert_eq!(copier.line(), "", "the line ends with it");
    drop(writing);
    wait_until("the volume is free", || {
        polylane(&["volume", "check", volume.to_str().expect("a name")]).status.success()
    });
    assert!(records(&volume) >= acknowledged);
    assert_copy(dir.path(), "s", 1);
}

/// A state directory with an attached volume, which goes with it.
struct Attached {
    dir: tempfile::TempDir,
}

impl Attached {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.dir.path()).env("XDG_STATE_HOME", self.dir.path());
        command.args(words);
        command
    }

    fn polylane(&self, words: &[&str]) -> String {
        good(&self.command(words).output().expect("polylane runs"))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mount = self.dir.path().join("mnt");
        let _ = Command::new("umount").arg(mount).output();
        let mut command = Command::new(binary());
        command.current_dir(self.dir.path()).env("XDG_STATE_HOME", self.dir.path());
        let _ = command.args(["detach", "v"]).output();
    }
}

#[test]
fn an_attached_volume_is_copied_between_two_writes() {
    let test = "an_attached_volume_is_copied_between_two_writes";
    if lacks(test, &["nbdcopy"]) {
        return;
    }
    let place = Attached { dir: tempfile::tempdir().expect("tempdir") };
    let path = place.dir.path().to_str().expect("a name").to_string();
    place.polylane(&["volume", "create", "v", "--size", "32M", "--fs", "none"]);
    place.polylane(&["attach", "v", "--via", "nbd", "--socket", "nbd"]);
    let uri = format!("nbd+unix:///?socket={path}/nbd");
    for round in 1..=3 {
        sh(&format!("cd {path}; head -c 32M /dev/urandom > data; nbdcopy --flush data '{uri}'"));
        sh(&format!("cp {path}/data {path}/data.{round}"));
        place.polylane(&["volume", "snapshot", "v", &format!("s{round}")]);
    }
    place.polylane(&["volume", "clone", "v", "c"]);
    sh(&format!("cd {path}; head -c 32M /dev/zero > data; nbdcopy --flush data '{uri}'"));
    sh(&format!("cd {path}; nbdcopy '{uri}' back; cmp back data"));
    place.polylane(&["detach", "v"]);
    for (name, data) in
        [("s1", "data.1"), ("s2", "data.2"), ("s3", "data.3"), ("c", "data.3"), ("v", "data")]
    {
        place.polylane(&["volume", "export", name, "out"]);
        sh(&format!("cd {path}; cmp out {data}; rm out"));
    }
}

#[test]
fn a_mounted_volume_is_copied_while_its_user_writes() {
    let test = "a_mounted_volume_is_copied_while_its_user_writes";
    if unavailable(test) || lacks(test, &["mkfs.ext4", "mount", "e2fsck"]) {
        return;
    }
    let place = Attached { dir: tempfile::tempdir().expect("tempdir") };
    place.polylane(&["volume", "create", "v", "--size", "256M"]);
    let mut command = Command::new(binary());
    command.current_dir(place.dir.path()).env("XDG_STATE_HOME", place.dir.path());
    let attached = command.args(["attach", "v", "--via", "loop"]).output().expect("polylane runs");
    if !attached.status.success() {
        let why = String::from_utf8_lossy(&attached.stderr).into_owned();
        return polylane_tests::skip(test, why.trim());
    }
    let device = String::from_utf8(attached.stdout).expect("text");
    let mount = place.dir.path().join("mnt");
    fs::create_dir(&mount).expect("mkdir");
    sh(&format!("mount {} {}", device.trim(), mount.display()));
    let mut acknowledged = 0;
    let mut log = fs::File::create(mount.join("log")).expect("create");
    for name in ["s1", "s2"] {
        for _ in 0..20 {
            acknowledged += 1;
            writeln!(log, "{acknowledged}").expect("write");
            log.sync_all().expect("sync");
        }
        place.polylane(&["volume", "snapshot", "v", name]);
    }
    writeln!(log, "later").expect("write");
    log.sync_all().expect("sync");
    drop(log);
    sh(&format!("umount {}", mount.display()));
    place.polylane(&["detach", "v"]);
    let count = |volume: &str| {
        let path = place.dir.path().join(volume);
        let script = "wc -l < /lane/log";
        let output = Run::new("--no-preload --volume").arg(path).script(script).output();
        good(&output).trim().parse::<u64>().expect("a number")
    };
    for (name, wanted) in [("s1", 20), ("s2", 40)] {
        place.polylane(&["volume", "check", name]);
        place.polylane(&["volume", "clone", name, "tried"]);
        assert_eq!(count("tried"), wanted, "{name}");
        place.polylane(&["volume", "rm", "tried"]);
    }
    assert_eq!(count("v"), 41);
    place.polylane(&["volume", "export", "v", "raw"]);
    assert_clean(&place.dir.path().join("raw"));
}

/// The attachment ends before, while or after a copy is made: the copy is there, and whole.
#[test]
fn a_copy_that_meets_the_end_of_the_attachment_is_made() {
    let test = "a_copy_that_meets_the_end_of_the_attachment_is_made";
    if lacks(test, &["nbdcopy"]) {
        return;
    }
    let place = Attached { dir: tempfile::tempdir().expect("tempdir") };
    let path = place.dir.path().to_str().expect("a name").to_string();
    let copy = format!("cd {path}; nbdcopy --flush data 'nbd+unix:///?socket={path}/nbd'");
    let mut rng = Rng::new(seed());
    for round in 0..ROUNDS {
        place.polylane(&["volume", "create", "v", "--size", "16M", "--fs", "none"]);
        let cache = ["none", "writeback"][rng.below(2) as usize];
        let attach = ["attach", "v", "--via", "nbd", "--socket", "nbd", "--cache", cache];
        place.polylane(&attach);
        sh(&format!("cd {path}; head -c 16M /dev/urandom > data"));
        sh(&copy);
        let kind = ["snapshot", "clone"][rng.below(2) as usize];
        let mut commands = [vec!["volume", kind, "v", "s"], vec!["detach", "v"]];
        commands.rotate_left(rng.below(2) as usize);
        let pause = Duration::from_micros(rng.below(60_000));
        let [first, second] = commands.map(|words| {
            let mut command = place.command(&words);
            let child = command.stderr(Stdio::piped()).spawn().expect("polylane runs");
            std::thread::sleep(pause);
            child
        });
        for child in [first, second] {
            let output = child.wait_with_output().expect("wait");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}, {kind}, {pause:?}: {said}");
        }
        for name in ["s", "v"] {
            place.polylane(&["volume", "export", name, "out"]);
            sh(&format!("cd {path}; cmp out data; rm out"));
        }
        place.polylane(&["volume", "rm", "v", "s"]);
        let left = fs::read_dir(place.dir.path()).expect("list");
        let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| name == "data" || name == "polylane"), "{left:?}");
    }
}
