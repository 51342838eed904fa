//! Bypass volumes: on real ext4 and XFS hosts, which lie on loop devices that go with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::{binary, lacks, skip};

/// How long anything may take that is waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// A host's file system with a state directory of its own. Whatever is attached, pinned or mounted
/// there goes with it.
struct Host {
    dir: tempfile::TempDir,
    mount: PathBuf,
}

impl Host {
    /// `None`, and said so, where it cannot be had.
    fn new(test: &str, kind: &str, options: &str) -> Option<Host> {
        let mkfs = format!("mkfs.{kind}");
        if lacks(test, &[&mkfs, "losetup", "swapoff"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("tempdir");
        let host = Host { mount: dir.path().join("host"), dir };
        fs::create_dir(&host.mount).expect("directory");
        let image = host.dir.path().join("image");
        let (image, mount) = (image.display(), host.mount.display());
        let script = format!("truncate -s 512M {image}; {mkfs} -q {image}");
        good(&Command::new("sh").args(["-euc", &script]).output().expect("sh runs"));
        let mounted = Command::new("mount")
            .args(["-o", &format!("loop{options}")])
            .args([image.to_string(), mount.to_string()])
            .output()
            .expect("mount runs");
        if !mounted.status.success() {
            skip(test, &format!("no {kind} can be mounted here: {}", said(&mounted)));
            return None;
        }
        Some(host)
    }

    /// An overlay, as containers have it.
    fn overlay(test: &str) -> Option<Host> {
        let dir = tempfile::tempdir_in("/dev/shm").expect("tempdir");
        let host = Host { mount: dir.path().join("host"), dir };
        let part = |name: &str| host.dir.path().join(name).display().to_string();
        for name in ["lower", "upper", "work", "host"] {
            fs::create_dir(part(name)).expect("directory");
        }
        let [lower, upper, work] = ["lower", "upper", "work"].map(part);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&host.mount);
        let mounted = mount.output().expect("mount runs");
        if !mounted.status.success() {
            skip(test, &format!("no overlay can be mounted here: {}", said(&mounted)));
            return None;
        }
        Some(host)
    }

    fn path(&self, name: &str) -> String {
        self.mount.join(name).to_str().expect("a name").to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.dir.path()).stdin(Stdio::null());
        command
    }

    fn polylane(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("polylane runs")
    }

    fn create(&self, name: &str, size: &str, fs: &str) -> String {
        let path = self.path(name);
        let words = ["volume", "create", &path, "--medium", "bypass", "--size", size, "--fs", fs];
        good(&self.polylane(&words));
        path
    }

    fn info(&self, volume: &str) -> serde_json::Value {
        let text = good(&self.polylane(&["volume", "info", "--json", volume]));
        serde_json::from_str(&text).expect("JSON")
    }

    fn attach(&self, volume: &str) -> String {
        good(&self.polylane(&["attach", volume, "--via", "loop"])).trim().to_string()
    }

    /// What the one attachment says of itself.
    fn attached(&self) -> serde_json::Value {
        let text = good(&self.polylane(&["attach", "--list", "--json"]));
        let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        list[0].clone()
    }

    /// Pool files that are pinned here.
    fn pinned(&self) -> Vec<String> {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let here = self.mount.to_str().expect("a name").to_string();
        let first = |line: &str| line.split_whitespace().next().map(str::to_string);
        swaps.lines().filter_map(first).filter(|path| path.starts_with(&here)).collect()
    }

    /// Processes of this test: those that have something open below its directory.
    fn processes(&self, named: &str) -> Vec<i32> {
        let mine = self.mount.as_path();
        let uses = |entry: &fs::DirEntry| {
            let fds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
            fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|open| open.starts_with(mine))
        };
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let found = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read(entry.path().join("cmdline")).ok()?;
            let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
            let right = name.starts_with(named.as_bytes()) || comm.starts_with(named);
            (right && uses(&entry)).then_some(pid)
        });
        found.collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for volume in fs::read_dir(&self.mount).into_iter().flatten().flatten() {
            let _ = self.command(&["detach"]).arg(volume.path()).output();
        }
        for pool in self.pinned() {
            let _ = Command::new("swapoff").arg(pool).output();
        }
        let unmount = |option: &[&str]| {
            let done = Command::new("umount").args(option).arg(&self.mount).output();
            done.is_ok_and(|done| done.status.success())
        };
        let begin = Instant::now();
        while !unmount(&[]) {
            if begin.elapsed() > Duration::from_secs(10) {
                let _ = unmount(&["-l"]);
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn good(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {printed}{}", output.status, said(output));
    printed
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills a process, which may have ended since it was seen.
fn kill(pid: i32) {
    Command::new("kill").args(["-9", &pid.to_string()]).output().expect("kill runs");
}

/// Whether this machine lets us pin at all; says so if not.
fn may_not_pin(test: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let sets = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let may = sets >> 21 & 1 == 1;
    if !may {
        skip(test, "needs CAP_SYS_ADMIN");
    }
    !may
}

const HOSTS: [&str; 2] = ["ext4", "xfs"];

#[test]
fn a_bypass_volume_is_made_used_and_removed() {
    let test = "a_bypass_volume_is_made_used_and_removed";
    if may_not_pin(test) || lacks(test, &["mke2fs"]) {
        return;
    }
    for kind in HOSTS {
        let Some(host) = Host::new(test, kind, "") else { continue };
        let volume = host.create("v", "50M", "ext4");
        let other = host.create("w", "20M", "none");
        let info = host.info(&volume);
        assert_eq!(info["size_bytes"], 50 << 20);
        assert_eq!(info["allocated_bytes"], 52 << 20, "whole chunks");
        assert_eq!(info["content"], "ext4-clean");
        assert!(info["pool"].as_str().expect("a pool file").ends_with("polylane.pool"));
        assert_eq!(host.pinned(), Vec::<String>::new(), "nobody uses it");
        let script = format!(
            "head -c 9000000 /dev/urandom > /lane/f; sync /lane/f; cksum < /lane/f; \
             grep -c {} /proc/swaps",
            host.path("polylane.pool")
        );
        let run = |script: &str| {
            good(&host.polylane(&["run", "--volume", &volume, "--", "sh", "-c", script]))
        };
        let first = run(&script);
        assert!(first.ends_with("\n1\n"), "pinned while in use: {first}");
        let second = run("cksum < /lane/f; cat /proc/swaps");
        assert_eq!(first.lines().next(), second.lines().next());
        assert_eq!(host.pinned(), Vec::<String>::new(), "nobody uses it any more");
        // A backup that reads the pool file while it is in use, and again afterwards.
        let pool = host.path("polylane.pool");
        run(&format!("cat {pool} > /dev/null; cp /lane/f /lane/g; sync /lane/g"));
        let read = |how| {
            let script = format!("dd if={pool} bs=1M status=none {how} | cksum");
            good(&Command::new("sh").args(["-euc", &script]).output().expect("sh runs"))
        };
        assert_eq!(read(""), read("iflag=direct"), "the page cache hides what went past it");
        good(&host.polylane(&["volume", "check", &volume]));
        let map = good(&host.polylane(&["volume", "map", "--json", &volume]));
        let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
        assert!(map["extent_count"].as_u64() > Some(0) && map["layers"][0]["base"] == false);
        let listed = good(&host.polylane(&["volume", "ls", &host.path("")]));
        assert!(listed.contains("50 MiB") && listed.contains("20 MiB"), "{listed}");
        assert!(Path::new(&host.path("polylane.pool")).exists());
        good(&host.polylane(&["volume", "rm", &volume, &other]));
        assert!(!Path::new(&host.path("polylane.pool")).exists(), "nothing is in it");
    }
}

#[test]
fn fio_verifies_through_an_attached_volume_whose_engine_is_killed() {
    let test = "fio_verifies_through_an_attached_volume_whose_engine_is_killed";
    if may_not_pin(test) || lacks(test, &["fio"]) {
        return;
    }
    if !Path::new("/dev/loop-control").exists() || !Path::new("/dev/fuse").exists() {
        return skip(test, "no loop devices, or no FUSE");
    }
    for kind in HOSTS {
        let Some(host) = Host::new(test, kind, "") else { continue };
        // Two that are in use together, so that the second is in a pool file of its own.
        let volume = host.create("v", "64M", "none");
        let device = host.attach(&volume);
        let other = host.create("w", "16M", "none");
        assert!(host.info(&other)["pool"].as_str().expect("pool").ends_with("polylane-2.pool"));
        // Its blocks cannot be shared, and a copy of all of them takes longer than it may stand
        // still: who asks is told what to do.
        for copy in ["snapshot", "clone"] {
            let refused = host.polylane(&["volume", copy, &volume, &host.path("copy")]);
            assert_eq!(refused.status.code(), Some(1), "{refused:?}");
            assert!(said(&refused).contains("end its lane or detach it first"), "{refused:?}");
            assert!(!Path::new(&host.path("copy")).exists());
        }
        assert_eq!(host.attached()["stats"]["engine"]["bypass"], true);
        let fio = Command::new("fio")
            .args([
                "--name=v",
                "--ioengine=libaio",
                "--direct=1",
                "--rw=randwrite",
                "--bsrange=4k-512k",
            ])
            .args(["--size=64M", "--iodepth=16", "--verify=crc32c", "--fsync=50", "--loops=2"])
            .arg("--verify_state_save=0")
            .arg(format!("--filename={device}"))
            .stdout(Stdio::null())
            .spawn()
            .expect("fio runs");
        let mut fio = Running(fio);
        until("fio writes", || {
            host.attached()["stats"]["engine"]["writes"].as_u64().unwrap_or(0) > 20
        });
        let engine = host.processes("polylane-engine[");
        assert_eq!(engine.len(), 1, "{engine:?}");
        kill(engine[0]);
        let status = fio.0.wait().expect("fio ends");
        assert!(status.success(), "{kind}: {status:?}");
        let stats = host.attached()["stats"].clone();
        assert_eq!(
            (&stats["engine_restarts"], &stats["engine"]["bypass"]),
            (&1.into(), &true.into())
        );
        // Right after its engine was killed, a loop device may let go late.
        until("it is detached", || {
            let output = host.polylane(&["detach", &volume]);
            output.status.success() || said(&output).contains("is not attached")
        });
        until("nothing is pinned", || host.pinned().is_empty());
    }
}

#[test]
fn a_volume_whose_pool_file_is_unpinned_goes_on_through_the_file() {
    let test = "a_volume_whose_pool_file_is_unpinned_goes_on_through_the_file";
    if may_not_pin(test) {
        return;
    }
    for kind in HOSTS {
        let Some(host) = Host::new(test, kind, "") else { continue };
        let volume = host.create("v", "32M", "ext4");
        let script = "head -c 3000000 /dev/urandom > /lane/a; sync /lane/a; echo ready; \
                      read line; head -c 3000000 /dev/urandom > /lane/b; sync /lane/b; \
                      cat /lane/a /lane/b | cksum";
        let child = host
            .command(&["run", "--volume", &volume, "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("polylane runs");
        let mut running = Running(child);
        let mut lines = {
            use std::io::{BufRead, BufReader};
            BufReader::new(running.0.stdout.take().expect("piped")).lines()
        };
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let pool = host.path("polylane.pool");
        assert_eq!(host.pinned(), std::slice::from_ref(&pool));
        good(&Command::new("swapoff").arg(&pool).output().expect("swapoff runs"));
        drop(std::io::Write::write_all(&mut running.0.stdin.take().expect("piped"), b"go\n"));
        let sum = lines.next().expect("a line").expect("text");
        assert!(running.0.wait().expect("it ends").success());
        let mut said = String::new();
        let mut stderr = running.0.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
        assert_eq!(said.matches("goes on through the file").count(), 1, "{said}");
        let words = ["run", "--volume", &volume, "--", "sh", "-c", "cat /lane/a /lane/b | cksum"];
        assert_eq!(good(&host.polylane(&words)).trim(), sum);
        good(&host.polylane(&["volume", "check", &volume]));
    }
}

#[test]
fn what_is_killed_leaves_a_pin_that_the_next_one_takes_over() {
    let test = "what_is_killed_leaves_a_pin_that_the_next_one_takes_over";
    if may_not_pin(test) {
        return;
    }
    let Some(host) = Host::new(test, "ext4", "") else { return };
    let volume = host.create("v", "32M", "none");
    let socket = host.dir.path().join("nbd");
    let socket = socket.to_str().expect("a name");
    good(&host.polylane(&["attach", &volume, "--via", "nbd", "--socket", socket]));
    let refused = host.polylane(&["volume", "rm", &volume]);
    assert!(!refused.status.success() && said(&refused).contains("in use by"), "{refused:?}");
    host.processes("polylane-attach").into_iter().for_each(kill);
    host.processes("polylane-engine[").into_iter().for_each(kill);
    until("they are gone", || host.processes("polylane-").is_empty());
    assert_eq!(host.pinned(), [host.path("polylane.pool")], "nobody was there to take it off");
    good(&host.polylane(&["attach", &volume, "--via", "nbd", "--socket", socket]));
    assert_eq!(host.attached()["stats"]["engine"]["bypass"], true);
    good(&host.polylane(&["detach", &volume]));
    assert_eq!(host.pinned(), Vec::<String>::new());
    good(&host.polylane(&["volume", "rm", &volume]));
}

#[test]
fn a_bypass_volume_is_resized_copied_and_repaired_when_not_in_use() {
    let test = "a_bypass_volume_is_resized_copied_and_repaired_when_not_in_use";
    if may_not_pin(test) || lacks(test, &["mke2fs", "e2fsck", "resize2fs"]) {
        return;
    }
    let Some(host) = Host::new(test, "ext4", "") else { return };
    let volume = host.create("v", "32M", "ext4");
    let sum = |path: &str| {
        let words = ["run", "--volume", path, "--", "sh", "-c", "cksum < /lane/f"];
        good(&host.polylane(&words))
    };
    let script = "head -c 5000000 /dev/urandom > /lane/f";
    good(&host.polylane(&["run", "--volume", &volume, "--", "sh", "-c", script]));
    let wanted = sum(&volume);
    good(&host.polylane(&["volume", "resize", &volume, "48M"]));
    assert_eq!(host.info(&volume)["size_bytes"], 48 << 20);
    let smaller = host.polylane(&["volume", "resize", &volume, "8M"]);
    assert!(said(&smaller).contains("not below 16 MiB"), "{smaller:?}");
    let (snapshot, clone) = (host.path("s"), host.path("c"));
    good(&host.polylane(&["volume", "snapshot", &volume, &snapshot]));
    good(&host.polylane(&["volume", "clone", &snapshot, &clone]));
    good(&host.polylane(&["volume", "check", "--repair", &volume]));
    for path in [&volume, &clone] {
        assert_eq!(sum(path), wanted, "{path}");
        good(&host.polylane(&["volume", "check", path]));
    }
    // What was exchanged has left nothing behind: the pool file's room serves another one.
    let before = fs::metadata(host.path("polylane.pool")).expect("pool file").len();
    host.create("w", "32M", "none");
    assert_eq!(fs::metadata(host.path("polylane.pool")).expect("pool file").len(), before);
}

#[test]
fn hosts_that_are_not_fit_are_refused_with_the_reason() {
    let test = "hosts_that_are_not_fit_are_refused_with_the_reason";
    if may_not_pin(test) {
        return;
    }
    let refused = |host: &Host, why: &str| {
        let path = host.path("v");
        let words = ["volume", "create", &path, "--medium", "bypass", "--size", "16M"];
        let output = host.polylane(&words);
        let said = said(&output);
        assert!(!output.status.success() && said.contains(why), "{why}: {said}");
        assert!(said.contains("polylane.pool"), "names the file: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let left = fs::read_dir(&host.mount).expect("list").flatten();
        let left: Vec<_> = left.map(|e| e.file_name()).filter(|e| e != "lost+found").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    };
    if let Some(host) = Host::new(test, "btrfs", "") {
        refused(&host, "btrfs is neither ext4 nor XFS");
    }
    if let Some(host) = Host::new(test, "ext4", ",data=journal") {
        refused(&host, "data=journal");
    }
    if let Some(host) = Host::overlay(test) {
        refused(&host, "overlay is neither ext4 nor XFS");
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("tempdir");
    let path = dir.path().join("v");
    let path = path.to_str().expect("a name");
    let create = ["volume", "create", path, "--medium", "bypass", "--size", "16M"];
    let output = Command::new(binary()).args(create).output().expect("polylane runs");
    assert!(said(&output).contains("tmpfs is neither ext4 nor XFS"), "{output:?}");
    // FUSE stands for all whose files are somewhere else: network file systems are told apart by
    // name alone, as it is.
    let binary = binary();
    let lane = ["run", "--mem", "--no-preload", "--", binary.to_str().expect("a name")];
    let create = ["volume", "create", "/lane/v", "--medium", "bypass", "--size", "16M"];
    let mut command = Command::new(&binary);
    command.args(lane).args(create).env("XDG_STATE_HOME", dir.path());
    let output = command.output().expect("polylane runs");
    let said = said(&output);
    assert!(said.contains("/lane/polylane.pool: not fit for bypass: fuse"), "{output:?}");
    assert!(said.contains("is neither ext4 nor XFS") && said.contains("--medium file"), "{said}");
    assert!(!said.contains("os error"), "{said}");
}

#[test]
fn a_damaged_pool_file_is_named() {
    let test = "a_damaged_pool_file_is_named";
    if may_not_pin(test) {
        return;
    }
    let Some(host) = Host::new(test, "ext4", "") else { return };
    let volume = host.create("v", "16M", "none");
    let pool = host.path("polylane.pool");
    let damage = |at: u64| {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().read(true).write(true).open(&pool).expect("open");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[!byte[0]], at).expect("write");
        file.sync_all().expect("sync");
    };
    let refused = |why: &str| {
        let output = host.polylane(&["volume", "export", &volume, &host.path("copy")]);
        let said = said(&output);
        let right = said.contains(why) && said.lines().count() == 1;
        assert!(!output.status.success() && right, "{why}: {said}");
    };
    // Both copies of page 17, the first of the chunks' entries.
    damage((1 << 20) + 17 * 4096 + 40);
    damage((3 << 20) + 17 * 4096 + 40);
    refused("directory page 17 is damaged");
    damage((1 << 20) - 8192 + 20);
    refused("not a pool file, or its head is damaged");
    damage((1 << 20) - 8192 + 20);
    damage((3 << 20) + 17 * 4096 + 40);
    good(&host.polylane(&["volume", "export", &volume, &host.path("copy")]));
}
