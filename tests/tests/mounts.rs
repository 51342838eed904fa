//! Lanes that outlive the command that mounted them: `polylane mount` and `umount` on this host.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_sys::procstat::ProcessStat;
use polylane_tests::host::{
    Host, child, children, lock_tables, polylane, refused, service_below, succeeds, text, until,
};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks, step, unavailable};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

#[test]
fn a_lane_outlives_its_command_and_is_counted() {
    if unavailable("a_lane_outlives_its_command_and_is_counted") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    // `output` waits until no process has the pipes any more: no process of the lane keeps them.
    succeeds(&["mount", "mem:64M", text(&at)]);
    fs::write(at.join("file"), "kept").expect("write");
    let mounts = host.mounts();
    assert_eq!(mounts.len(), 1);
    assert_eq!(mounts[0]["source"], "mem:64M");
    assert_eq!(mounts[0]["path"], text(&at));
    let session = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let after_name = stat.rsplit(')').next().unwrap_or_default().to_string();
        after_name.split_whitespace().nth(3).map(str::to_string)
    };
    let supervisor = host.supervisor();
    assert_eq!(session(supervisor), Some(supervisor.to_string()), "a session of its own");

    // The same again is counted, however it is written; something else is refused.
    succeeds(&["mount", "mem:65536K", &format!("{}/", text(&at))]);
    assert_eq!(host.mounts()[0]["count"], 2);
    let (status, line) = refused(&["mount", "mem:32M", text(&at)]);
    assert_eq!(status, 1);
    for word in ["busy", "mem:64M", "mem:32M"] {
        assert!(line.contains(word), "{line}");
    }
    let (_, line) = refused(&["mount", "--ro", "mem:64M", text(&at)]);
    assert!(line.contains("busy"), "{line}");
    succeeds(&["umount", text(&at)]);
    assert_eq!(fs::read_to_string(at.join("file")).expect("read"), "kept");
    succeeds(&["umount", text(&at)]);
    assert!(!at.join("file").exists());
    host.assert_nothing_is_left();
    assert!(refused(&["umount", text(&at)]).1.contains("no lane"));
}

#[test]
fn what_is_on_a_volume_is_durable_after_umount() {
    if unavailable("what_is_on_a_volume_is_durable_after_umount") {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["mount", "--size", "256M", text(&volume), text(&at)]);
    let script = "cd \"$1\" && mkdir -p a/b && seq 100000 >a/numbers && ln a/numbers a/b/link &&
        mv a/b a/c && seq 10 >gone && rm gone";
    let made = Command::new("sh").args(["-c", script, "sh", text(&at)]).status().expect("sh");
    assert!(made.success());
    let expected = fs::read(at.join("a/numbers")).expect("read");
    succeeds(&["umount", text(&at)]);
    polylane_tests::volume::assert_clean(&volume);
    succeeds(&["mount", &format!("volume:{}", text(&volume)), text(&at)]);
    assert!(fs::read(at.join("a/c/link")).expect("read") == expected);
    // A volume has one opener.
    let other = host.dir("n");
    let (status, line) = refused(&["mount", text(&volume), text(&other)]);
    assert!(status == 1 && line.contains("v.img"), "{line}");
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

#[test]
fn a_lane_in_use_stays_and_lazily_it_goes() {
    if unavailable("a_lane_in_use_stays_and_lazily_it_goes") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    let open = fs::File::create(at.join("open")).expect("create");
    let (status, line) = refused(&["umount", text(&at)]);
    assert!(status == 1 && line.contains("busy"), "{line}");
    assert!(line.contains(&std::process::id().to_string()), "by whom: {line}");
    assert!(at.join(".polylane/socket").exists(), "all is as it was");
    fs::write(at.join("more"), "x").expect("it goes on");
    drop(open);
    succeeds(&["umount", text(&at)]);
    succeeds(&["mount", "mem:64M", text(&at)]);
    let open = fs::File::create(at.join("open")).expect("create");
    succeeds(&["umount", "-l", text(&at)]);
    host.assert_nothing_is_left();
    drop(open);
}

/// By the library and by FUSE, a program on the host sees the same tree.
#[test]
fn programs_of_the_host_have_the_fast_way() {
    if unavailable("programs_of_the_host_have_the_fast_way") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    let lane = |host: &Host| {
        let (pool, service) = (&host.mounts()[0]["pool"], &host.mounts()[0]["service"]);
        format!("{}@{service}", pool.as_str().expect("a name"))
    };
    let fast = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir("/").env("MOUNT", &at);
        command.env("LD_PRELOAD", at.join(".polylane/$LIB/libpolylane.so"));
        command.env("POLYLANE_MOUNT", &at);
        command.output().expect("sh")
    };
    let script = "cd $MOUNT; i=0; while [ $i -lt 50 ]; do echo $i >f$i; i=$((i+1)); done; cat f*";
    let output = fast(script);
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(lines, 50, "{}", String::from_utf8_lossy(&output.stderr));
    let stats = succeeds(&["stats", "--json", "--pool", &lane(&host)]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let requests = stats[0]["service"]["shared_memory"]["requests"].as_u64().expect("a number");
    assert!(requests >= 50, "by shared memory: {requests}");
    assert_eq!(fs::read_dir(&at).expect("list").count(), 50);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// A service that was taken over can have the kernel detach `.polylane` and show what it likes
/// there. Nothing that root's programs load is taken from it.
#[test]
fn the_library_is_not_taken_from_within_the_lane() {
    let name = "the_library_is_not_taken_from_within_the_lane";
    if unavailable(name) || lacks(name, &["umount", "mount"]) {
        return;
    }
    let host = Host::new();
    let (pool, at) = (host.pool("apart"), host.dir("m"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&at)]);
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().expect(program);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let within = at.join(".polylane");
    run("umount", &["-l", text(&within)]);
    run("mount", &["-t", "tmpfs", "planted", text(&within)]);
    fs::write(within.join("libpolylane.so"), "planted").expect("write");
    let script = "printf '%s\\n' \"$LD_PRELOAD\" \"$POLYLANE_RUN\"; \
        i=0; while [ $i -lt 50 ]; do echo $i >\"$POLYLANE_MOUNT/f$i\"; i=$((i+1)); done; \
        grep -o '/.*libpolylane.so' /proc/self/maps | sort -u";
    let said = succeeds(&["exec", "--pool", &pool, "--", "sh", "-euc", script]);
    let lane = format!("/{pool}@1.lane/libpolylane.so");
    assert!(said.lines().any(|line| line.ends_with(&lane)), "the fast way: {said}");
    assert!(!said.contains("/.polylane"), "{said}");
    let requests = || {
        let stats = succeeds(&["stats", "--json", "--pool", &format!("{pool}@1")]);
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        stats[0]["service"]["shared_memory"]["requests"].as_u64().expect("a number")
    };
    assert!(requests() >= 50, "by shared memory: {}", requests());
    let lines = succeeds(&["env", text(&at)]);
    assert!(lines.contains(&lane.replace("lib", "$LIB/lib")), "{lines}");
    assert!(!lines.contains("/.polylane"), "{lines}");
    let other = host.dir("run");
    let said = succeeds(&["run", "--mem", "--at", text(&other), "--", "sh", "-c", script]);
    assert!(said.contains(".lane/libpolylane.so") && !said.contains("/.polylane"), "{said}");
    run("umount", &[text(&within)]);
    // Every user of the host reaches it: one that stays there keeps no lane mounted.
    let run_dir = Path::new("/run/polylane").join(format!("{pool}@1.lane"));
    let mut stays = Command::new("sleep").arg("60").current_dir(&run_dir).spawn().expect("sleep");
    let said = polylane(&["umount", text(&at)]);
    let _ = stays.kill();
    stays.wait().expect("wait");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(!run_dir.exists(), "it goes with the lane");
    succeeds(&["pool", "rm", &pool]);
    host.assert_nothing_is_left();
}

/// A lane that covers the run-time directory has its run directory beside it; a second path of a
/// lane has none.
#[test]
fn each_lane_has_one_run_directory_outside_of_it() {
    let name = "each_lane_has_one_run_directory_outside_of_it";
    if unavailable(name) {
        return;
    }
    let script = "grep -o '/.*libpolylane.so' /proc/self/maps | sort -u";
    let said = succeeds(&["run", "--mem", "--at", "/run", "--", "sh", "-euc", script]);
    assert!(said.starts_with("/dev/shm/polylane-"), "{said}");
    let host = Host::new();
    let (at, other) = (host.dir("m"), host.dir("other"));
    succeeds(&["mount", "mem:64M", text(&at)]);
    let bind = Command::new("mount").args(["--bind", text(&at), text(&other)]).status();
    assert!(bind.expect("mount").success());
    let output = polylane(&["env", text(&other)]);
    assert!(Command::new("umount").arg(&other).status().expect("umount").success());
    assert!(output.status.success(), "another path of it: {output:?}");
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// The directories above a lane get other names: its mount is found by its number, and nothing else
/// is unmounted.
#[test]
fn a_lane_whose_parents_were_renamed_is_unmounted_and_nothing_else_is() {
    if unavailable("a_lane_whose_parents_were_renamed_is_unmounted_and_nothing_else_is") {
        return;
    }
    let host = Host::new();
    let up = host.dir("up");
    fs::create_dir(up.join("m")).expect("mkdir");
    let at = up.join("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    fs::write(at.join("file"), "kept").expect("write");
    let moved = host.path("moved");
    fs::rename(&up, &moved).expect("rename");
    assert_eq!(host.mounts()[0]["path"], text(&moved.join("m")));
    // Another lane where it was, in the way of the old path.
    fs::create_dir_all(&at).expect("mkdir");
    let (_, line) = refused(&["mount", "mem:64M", text(&at)]);
    assert!(line.contains(text(&moved)), "says where it is: {line}");
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "other", text(&at)]).status();
    assert!(tmpfs.expect("mount").success());
    fs::write(at.join("other"), "stays").expect("write");
    succeeds(&["umount", text(&moved.join("m"))]);
    assert_eq!(fs::read_to_string(at.join("other")).expect("read"), "stays");
    assert!(!moved.join("m/file").exists(), "the lane is gone");
    assert!(Command::new("umount").arg(&at).status().expect("umount").success());
    host.assert_nothing_is_left();
}

/// One service that does not answer keeps no command for other lanes waiting.
#[test]
fn a_stopped_service_holds_up_no_other_lane() {
    if unavailable("a_stopped_service_holds_up_no_other_lane") {
        return;
    }
    let host = Host::new();
    let (_, at, shared) = host.shared("stopped", "mem:64M");
    let other = host.dir("other");
    let service = child(host.supervisor_at(&at), "polylane-svc");
    signal_to(service, "STOP");
    // Each of these waits for the service.
    let mut stuck: Vec<_> = [["umount", text(&shared)], ["umount", text(&at)]]
        .iter()
        .map(|words| {
            let mut command = Command::new(binary());
            command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("polylane")
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let start = std::time::Instant::now();
    succeeds(&["mount", "mem:32M", text(&other)]);
    succeeds(&["umount", text(&other)]);
    let took = start.elapsed();
    signal_to(service, "CONT");
    assert!(took < Duration::from_secs(5), "{took:?}");
    stuck.iter_mut().for_each(|child| drop(child.wait()));
    for path in [&shared, &at] {
        let _ = polylane(&["umount", text(path)]);
    }
    host.assert_nothing_is_left();
}

/// Pages of a mapping that have no room: nobody is told of them but by the next sync of the lane,
/// once.
const MAPS: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 64 << 20)
mapping = mmap.mmap(fd, 64 << 20)
for at in range(0, 64 << 20, 4096):
    mapping[at] = 1
mapping.close()
try:
    os.close(fd)
except OSError:
    pass
"#;

/// `umount` tries again where others used the lane for a moment. What could not be written it says.
#[test]
fn umount_says_what_could_not_be_written() {
    let name = "umount_says_what_could_not_be_written";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let host = Host::new();
    let (_, at, shared) = host.shared("unwritten", "mem:16M");
    for path in [&shared, &at] {
        let mut program = Command::new("python3");
        let done = program.args(["-c", MAPS]).arg(path.join("mapped")).status().expect("python3");
        assert!(done.success());
        let (_, line) = refused(&["umount", "--all", text(path)]);
        assert!(line.contains("No space left"), "{line}");
        assert!(path.join("mapped").exists(), "it is still there");
        succeeds(&["umount", text(path)]);
    }
    host.assert_nothing_is_left();
}

/// A command shares a lane while another one unmounts it, and waits for its service.
#[test]
fn a_lane_that_is_shared_while_it_is_synced_stays() {
    if unavailable("a_lane_that_is_shared_while_it_is_synced_stays") {
        return;
    }
    let host = Host::new();
    let (pool, at, shared) = (host.pool("synced"), host.dir("m"), host.dir("s"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&at)]);
    let supervisor = host.supervisor();
    let (service, holder) = (child(supervisor, "polylane-svc"), child(supervisor, "polylane-hold"));
    signal_to(service, "STOP");
    let mut command = Command::new(binary());
    let command = command.args(["umount", text(&at)]).stdin(Stdio::null()).stderr(Stdio::piped());
    let umount = command.spawn().expect("polylane");
    until("the lane is synced", || children(holder).is_some_and(|all| !all.is_empty()));
    let mount = polylane(&["mount", "--pool", &pool, "--share", "mem:64M", text(&shared)]);
    signal_to(service, "CONT");
    let umount = umount.wait_with_output().expect("polylane");
    assert!(mount.status.success(), "{mount:?}");
    let said = String::from_utf8_lossy(&umount.stderr);
    assert!(!umount.status.success() && said.contains("shared at"), "{said}");
    fs::write(shared.join("file"), "kept").expect("it is served");
    assert_eq!(fs::read_to_string(at.join("file")).expect("read"), "kept");
    succeeds(&["umount", text(&shared), text(&at)]);
    host.assert_nothing_is_left();
}

/// A directory has no lock: the next lane on it, or on a part of it, begins when the service of a
/// killed one has ended, although another command has cleared that lane.
#[test]
fn the_next_lane_of_a_directory_waits_for_the_service_of_a_killed_one() {
    if unavailable("the_next_lane_of_a_directory_waits_for_the_service_of_a_killed_one") {
        return;
    }
    let host = Host::new();
    let (tree, first, second) = (host.dir("tree"), host.dir("first"), host.dir("second"));
    let inner = host.dir("tree/inner");
    succeeds(&["mount", &format!("dir:{}", text(&tree)), text(&first)]);
    let supervisor = host.supervisor();
    let service = child(supervisor, "polylane-svc");
    signal_to(service, "STOP");
    signal_to(supervisor, "KILL");
    until("the lane is cleared", || host.mounts().is_empty());
    let mut mount = Command::new(binary());
    mount.args(["mount", &format!("dir:{}", text(&inner)), text(&second)]);
    let mut mount = mount.stdin(Stdio::null()).spawn().expect("polylane");
    until("the next lane begins", || !host.mounts().is_empty());
    // Without the wait it would serve at one of these.
    let states: Vec<_> = (0..20).map(|_| host.mounts()[0]["state"].clone()).collect();
    signal_to(service, "CONT");
    let mounted = mount.wait().expect("wait");
    let left = fs::read(format!("/proc/{service}/cmdline")).unwrap_or_default();
    assert!(states.iter().all(|state| state == "starting"), "{states:?}");
    assert!(mounted.success() && left.is_empty(), "{mounted} {left:?}");
    succeeds(&["umount", text(&second)]);
    host.assert_nothing_is_left();
}

/// Which process of a lane is stopped, and how that ends.
const STOPPED: [(&str, &str); 6] = [
    ("supervisor", "CONT"),
    ("polylane-svc", "CONT"),
    ("polylane-hold", "CONT"),
    ("supervisor", "KILL"),
    ("polylane-svc", "KILL"),
    ("polylane-hold", "KILL"),
];

/// A process of a lane is stopped while a program writes there: other lanes of the pool are served,
/// mounted and unmounted, and in the end that lane goes as well.
#[test]
fn a_lane_that_is_stopped_amid_work_holds_up_no_other_of_its_pool() {
    if unavailable("a_lane_that_is_stopped_amid_work_holds_up_no_other_of_its_pool") {
        return;
    }
    let host = Host::new();
    let (pool, stays) = (host.pool("amid"), host.dir("stays"));
    let (shared, volume) = (host.dir("shared"), host.path("v.img"));
    let (passing, going) = (host.dir("passing"), host.dir("going"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&stays)]);
    for (victim, signal) in STOPPED {
        let shown = format!("{victim}, {signal}");
        succeeds(&["mount", "--pool", &pool, "--size", "64M", text(&volume), text(&going)]);
        succeeds(&["mount", "--pool", &pool, "--share", text(&volume), text(&shared)]);
        let supervisor = host.supervisor_at(&going);
        let victim = match victim {
            "supervisor" => supervisor,
            name => child(supervisor, name),
        };
        let mut writer = Command::new("sh");
        writer.args(["-c", "while echo x >>log; do :; done"]).current_dir(&going);
        let mut writer = writer.stderr(Stdio::null()).spawn().expect("sh");
        until("the program writes", || going.join("log").exists());
        signal_to(victim, "STOP");
        fs::write(stays.join("file"), &shown).expect("the other lane serves");
        succeeds(&["mount", "--pool", &pool, "mem:16M", text(&passing)]);
        fs::write(passing.join("file"), &shown).expect("a new lane serves");
        succeeds(&["umount", text(&passing)]);
        assert_eq!(host.mounts().len(), 3, "{shown}: {:?}", host.mounts());
        signal_to(victim, signal);
        writer.kill().expect("kill");
        writer.wait().expect("wait");
        // A lane whose process was killed may have gone by itself.
        for path in [&shared, &going] {
            succeeds(&["umount", "--all", text(path)]);
        }
        until("the lane is gone", || host.mounts().len() == 1);
        assert_eq!(fs::read_to_string(stays.join("file")).expect("read"), shown);
        for path in [&shared, &going] {
            until("nothing is mounted there", || is_plain_directory(path));
        }
    }
    succeeds(&["umount", text(&stays)]);
    succeeds(&["pool", "rm", &pool]);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// Nothing is mounted at a path.
fn is_plain_directory(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    !table.lines().any(|line| line.contains(&format!(" {} ", text(path))))
}

#[test]
fn a_read_only_mount_is_so_by_both_doors() {
    if unavailable("a_read_only_mount_is_so_by_both_doors") {
        return;
    }
    let host = Host::new();
    let (at, dir) = (host.dir("m"), host.dir("d"));
    fs::write(dir.join("file"), "as it was").expect("write");
    succeeds(&["mount", "--ro", &format!("dir:{}", text(&dir)), text(&at)]);
    let tries = "cd $MOUNT; n=0; for c in 'mkdir x' 'rm file' 'chmod 600 file' 'mv file g' \
        'ln file l' 'ln -s a b' 'touch file' 'truncate -s 0 file' 'sh -c \"echo x >>file\"'; do
        eval \"$c\" 2>/dev/null && echo \"did: $c\"; done; cat file";
    for preloaded in [false, true] {
        let mut command = Command::new("sh");
        command.args(["-c", tries]).env("MOUNT", &at);
        if preloaded {
            command.env("LD_PRELOAD", at.join(".polylane/$LIB/libpolylane.so"));
            command.env("POLYLANE_MOUNT", &at);
        }
        let output = command.output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "as it was", "{preloaded}");
    }
    succeeds(&["umount", text(&at)]);
    assert_eq!(fs::read_to_string(dir.join("file")).expect("read"), "as it was");
    host.assert_nothing_is_left();
}

#[test]
fn one_service_serves_several_paths() {
    if unavailable("one_service_serves_several_paths") {
        return;
    }
    let host = Host::new();
    let (one, two, three) = (host.dir("1"), host.dir("2"), host.dir("3"));
    let volume = host.path("v.img");
    succeeds(&["mount", "--size", "64M", text(&volume), text(&one)]);
    succeeds(&["mount", "--share", text(&volume), text(&two)]);
    succeeds(&["mount", "--share", "--ro", text(&volume), text(&three)]);
    let services: Vec<_> = host.mounts().iter().map(|mount| mount["service"].clone()).collect();
    assert!(services.iter().all(|service| *service == services[0]), "{services:?}");
    fs::write(two.join("file"), "shared").expect("write");
    for at in [&one, &three] {
        assert_eq!(fs::read_to_string(at.join("file")).expect("read"), "shared");
    }
    let error = fs::write(three.join("file"), "x").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let (_, line) = refused(&["umount", text(&one)]);
    assert!(line.contains("shared at"), "{line}");
    // Counted like any other mount.
    succeeds(&["mount", text(&volume), text(&two)]);
    succeeds(&["umount", text(&two)]);
    assert!(two.join("file").exists());
    let open = fs::File::open(two.join("file")).expect("open");
    assert!(refused(&["umount", text(&two)]).1.contains("busy"));
    drop(open);
    succeeds(&["umount", text(&two), text(&three), text(&one)]);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

#[test]
fn bad_paths_and_sources_are_one_line_and_leave_nothing() {
    if unavailable("bad_paths_and_sources_are_one_line_and_leave_nothing") {
        return;
    }
    let host = Host::new();
    let (empty, full) = (host.dir("empty"), host.dir("full"));
    fs::write(full.join("file"), "").expect("write");
    symlink(&empty, host.path("link")).expect("symlink");
    let newline = host.dir("new\nline\u{1b}[m");
    let (absent, link, file) = (host.path("absent"), host.path("link"), full.join("file"));
    let long = host.path(&"x".repeat(200)).join("y".repeat(200));
    for (source, path, status, word) in [
        ("mem:64M", &full, 1, "not empty"),
        ("mem:64M", &absent, 1, "absent"),
        ("mem:64M", &link, 1, "symbolic link"),
        ("mem:64M", &file, 1, "not a directory"),
        ("mem:64M", &long, 1, "No such file"),
        ("mem:64M", &PathBuf::from("/"), 2, "root"),
        ("mem:64M", &PathBuf::from("/proc"), 2, "kernel"),
        ("mem:64M", &newline.join("no"), 1, "No such file"),
        ("mem:1K", &empty, 2, "--size"),
        ("mem:", &empty, 2, "mem:"),
        ("floppy:a", &empty, 2, "unknown kind"),
        ("rbd:pool", &empty, 2, "IMAGE"),
        ("ceph:@:x", &empty, 2, "FSNAME"),
        ("dir:/no/such", &empty, 1, "/no/such"),
        ("/no/such/v.img", &empty, 1, "/no/such"),
    ] {
        let (found, line) = refused(&["mount", source, text(path)]);
        assert!(found == status && line.contains(word), "{source} {path:?}: {found} {line}");
    }
    assert_eq!(refused(&["mount", "mem:64M"]).0, 2);
    assert_eq!(refused(&["umount"]).0, 2);
    assert!(refused(&["umount", text(&full)]).1.contains("no lane"));
    // What can be a path is one, whatever is in its name.
    succeeds(&["mount", "mem:64M", text(&newline)]);
    fs::write(newline.join("file"), "x").expect("write");
    assert!(!succeeds(&["mount"]).contains('\u{1b}'));
    succeeds(&["umount", text(&newline)]);
    host.assert_nothing_is_left();
}

/// What is in the way of a mount, an unmount or a run is named, and stays as it was.
#[test]
fn what_is_in_the_way_is_named_and_stays() {
    if unavailable("what_is_in_the_way_is_named_and_stays") {
        return;
    }
    let host = Host::new();
    let (pool, absent) = (host.pool("way"), host.pool("none"));
    let (one, two, volume) = (host.dir("one"), host.dir("two"), host.path("v.img"));
    let (lane, free) = (host.dir("lane"), host.dir("free"));
    let inner = lane.join("in\nner");
    let [one, two, volume] = [&one, &two, &volume].map(|path| text(path));
    let [lane, free, inner] = [&lane, &free, &inner].map(|path| text(path));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "--size", "64M", volume, one]);
    succeeds(&["mount", "mem:64M", lane]);
    // Lanes nest.
    fs::create_dir(inner).expect("mkdir");
    succeeds(&["mount", "mem:64M", inner]);
    let user = format!("in use by pool '{pool}@1' (process ");
    let end = format!("): polylane umount {one} ends it");
    let map = "--map-users";
    let rows: &[(&[&str], i32, &str)] = &[
        (&["mount", "mem:32M", lane], 1, "busy: mem:64M is mounted there, and mem:32M cannot be"),
        (&["mount", "--ro", "mem:64M", lane], 1, "busy: mounted to be written to"),
        (&["mount", "--pool", &pool, "mem:64M", lane], 1, "busy: mounted in pool 'default'"),
        (&["mount", map, "0:9:1", "mem:64M", lane], 1, "busy: mounted with its files' own users"),
        (&["umount", lane], 1, "in\\nner' is mounted in it: umount that first"),
        (&["umount", free], 1, "no lane is mounted there"),
        (&["umount", "/no\nsuch\u{1b}[m"], 1, "$'/no\\nsuch\\e[m': no lane is mounted there"),
        (&["mount", volume, two], 1, &user),
        (&["mount", volume, two], 1, &end),
        (&["run", "--volume", volume, "--", "true"], 1, &user),
        (&["volume", "check", volume], 1, &end),
        (&["pool", "rm", &pool], 1, "is mounted in it: umount that first"),
        (&["mount", map, "0:100:9", map, "8:200:9", "mem:64M", two], 2, "overlaps 0:100:9"),
        (&["mount", map, "0:100:9", map, "9:108:9", "mem:64M", two], 2, "overlaps 0:100:9"),
        (&["mount", map, "0:100:0", "mem:64M", two], 2, "U:H:N"),
        (&["mount", map, "0:4294967295:1", "mem:64M", two], 2, "U:H:N"),
        (&["mount", "dir:", two], 2, "dir:DIR"),
        (&["mount", "dir:/no\nsuch", two], 1, "$'/no\\nsuch': cannot find"),
        (&["mount", "--pool", &absent, "mem:64M", two], 1, "'polylane pool create "),
        (&["mount", "--pool", "../a", "mem:64M", two], 2, "../a: no name of a pool"),
        (&["mount", "--pool", "a\n\u{1b}", "mem:64M", two], 2, "no name of a pool"),
        (&["mount", "--pool", "", "mem:64M", two], 2, "no name of a pool"),
    ];
    for (words, status, word) in rows {
        let (found, line) = refused(words);
        assert!(found == *status && line.contains(word), "{words:?}: {found} {line}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
        assert_eq!(host.mounts().len(), 3, "{words:?}");
    }
    // A mount that is no lane.
    let script = "mount -t tmpfs none \"$2\" && exec \"$1\" mount mem:64M \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    let output = command.arg(binary()).arg(two).output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("mount point already"), "{said}");
    for path in [one, lane, inner] {
        fs::write(Path::new(path).join("file"), path).expect("it serves as before");
    }
    succeeds(&["umount", inner, lane, one]);
    host.assert_nothing_is_left();
    assert!(is_empty(Path::new(two)) && is_empty(Path::new(free)));
    succeeds(&["pool", "rm", &pool]);
    polylane_tests::volume::assert_clean(Path::new(volume));
}

/// Nothing is in a directory.
fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).expect("list").next().is_none()
}

/// A lane is its own lower, or the lower of its lower: each sees what was there before it.
#[test]
fn lanes_under_each_other_are_no_loop() {
    if unavailable("lanes_under_each_other_are_no_loop") {
        return;
    }
    let host = Host::new();
    let (one, two) = (host.dir("one"), host.dir("two"));
    let over = |lower: &Path, at: &Path| {
        succeeds(&["mount", "--lower", text(lower), "mem:64M", text(at)]);
        fs::write(at.join(format!("of-{}", host.mounts().len())), "x").expect("it serves");
    };
    let names = |at: &Path| {
        let mut command = Command::new("find");
        command.args([".", "-name", "of-*"]).current_dir(at);
        let output = step::output(command, Duration::from_secs(20), "find");
        step::good(&output).lines().count()
    };
    over(&two, &one);
    over(&one, &two);
    assert_eq!((names(&one), names(&two)), (1, 2));
    succeeds(&["umount", text(&two), text(&one)]);
    over(&one, &one);
    assert_eq!(names(&one), 1);
    succeeds(&["umount", text(&one)]);
    host.assert_nothing_is_left();
    assert!(is_empty(&one) && is_empty(&two));
}

/// A lane whose supervisor was killed while its service hangs: `first` is the first command after
/// that.
fn beside_a_dead_lane(host: &Host, volume: &Path, at: &Path, first: impl Fn()) {
    succeeds(&["mount", text(volume), text(at)]);
    fs::write(at.join("file"), "kept").expect("write");
    let supervisor = host.supervisor_at(at);
    let service = child(supervisor, "polylane-svc");
    signal_to(service, "STOP");
    signal_to(supervisor, "KILL");
    until("the supervisor is dead", || has_ended(supervisor));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(first));
    signal_to(service, "CONT");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// A process is gone, or nothing of it but its status is left.
fn has_ended(pid: u32) -> bool {
    ProcessStat::of(pid).is_none_or(|stat| stat.has_ended())
}

/// A dead lane's service that hangs holds up the next lane of its own source alone; `umount` of
/// another path says that no lane is there, and of a lane that starts it waits for the start.
#[test]
fn a_dead_lane_holds_up_its_own_source_alone() {
    if unavailable("a_dead_lane_holds_up_its_own_source_alone") {
        return;
    }
    let host = Host::new();
    let (at, other, volume) = (host.dir("m"), host.dir("other"), host.path("v.img"));
    succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
    let begin = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("polylane")
    };
    beside_a_dead_lane(&host, &volume, &at, || {
        let start = Instant::now();
        succeeds(&["mount", "mem:64M", text(&other)]);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(20), "as long as for its own source: {took:?}");
        succeeds(&["umount", text(&other)]);
    });
    beside_a_dead_lane(&host, &volume, &at, || {
        let (status, line) = refused(&["umount", text(&other)]);
        assert!(status == 1 && line.contains("no lane is mounted there"), "{line}");
    });
    let commands = RefCell::new(Vec::new());
    beside_a_dead_lane(&host, &volume, &at, || {
        commands.borrow_mut().push(begin(&["mount", text(&volume), text(&at)]));
        until("the next lane starts", || {
            host.mounts().first().is_some_and(|mount| mount["state"] == "starting")
        });
        let umount = begin(&["umount", text(&at)]);
        let status = format!("/proc/{}/status", umount.id());
        let pid = umount.id();
        commands.borrow_mut().push(umount);
        // It looks again and again.
        until("umount waits", || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            has_ended(pid) || sleeps.and_then(|n| n.trim().parse().ok()).unwrap_or(0) > 50
        });
        assert!(!has_ended(pid), "it waits for the start");
    });
    for mut command in commands.into_inner() {
        assert!(command.wait().expect("ended").success());
    }
    host.assert_nothing_is_left();
    succeeds(&["mount", text(&volume), text(&at)]);
    assert_eq!(fs::read_to_string(at.join("file")).expect("read"), "kept");
    succeeds(&["umount", text(&at)]);
    polylane_tests::volume::assert_clean(&volume);
}

/// When a process of a lane is killed, the next command can use its path and its volume, and what
/// was synced is there.
#[test]
fn whatever_is_killed_the_next_command_goes_on() {
    if unavailable("whatever_is_killed_the_next_command_goes_on") {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["mount", "--size", "64M", text(&volume), text(&at)]);
    for (round, victim) in
        ["supervisor", "polylane-hold", "polylane-svc", "polylane-keep", "both"].iter().enumerate()
    {
        let file = at.join(format!("file-{round}"));
        fs::write(&file, victim).expect("write");
        fs::File::open(&file).and_then(|file| file.sync_all()).expect("sync");
        let supervisor = host.supervisor();
        match *victim {
            "supervisor" => signal_to(supervisor, "KILL"),
            "both" => {
                let holder = child(supervisor, "polylane-hold");
                signal_to(holder, "STOP");
                signal_to(supervisor, "KILL");
                signal_to(holder, "KILL");
            }
            name => signal_to(child(supervisor, name), "KILL"),
        }
        let survives = matches!(*victim, "polylane-svc" | "polylane-keep");
        if !survives {
            until("the mount is gone", || host.mounts().is_empty());
        }
        succeeds(&["mount", text(&volume), text(&at)]);
        for earlier in 0..=round {
            let file = at.join(format!("file-{earlier}"));
            until("the file is there", || file.exists());
        }
        if survives {
            succeeds(&["umount", text(&at)]);
        }
    }
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// A command and its supervisor that are killed at any moment of a mount or an umount leave nothing
/// that the next command cannot use or remove.
#[test]
fn a_mount_killed_at_any_moment_leaves_nothing_in_the_way() {
    if unavailable("a_mount_killed_at_any_moment_leaves_nothing_in_the_way") {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
    for step in 0..24 {
        let verb: &[&str] = match step % 3 {
            0 | 1 => &["mount", text(&volume), text(&at)],
            _ => &["umount", text(&at)],
        };
        let mut command = Command::new(binary());
        command.args(verb).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = command.spawn().expect("polylane");
        std::thread::sleep(Duration::from_millis(4 * step));
        let supervisor = host.mounts().first().and_then(|mount| mount["supervisor"].as_u64());
        let _ = running.kill();
        if let Some(pid) = supervisor.filter(|_| step % 2 == 0) {
            signal_to(pid as u32, "KILL");
            // Until it is dead it serves: a mount that comes earlier is one more of the same lane.
            until("the supervisor is dead", || has_ended(pid as u32));
        }
        running.wait().expect("wait");
        succeeds(&["mount", text(&volume), text(&at)]);
        fs::write(at.join("file"), step.to_string()).expect("it serves");
    }
    while !host.mounts().is_empty() {
        succeeds(&["umount", text(&at)]);
    }
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// A command that finds a dead lane's mount at its path, and has the mount tables only when others
/// have cleared it, mounts there.
#[test]
fn a_lane_that_is_cleared_while_a_mount_waits_is_not_in_the_way() {
    if unavailable("a_lane_that_is_cleared_while_a_mount_waits_is_not_in_the_way") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    let supervisor = host.supervisor();
    let holder = child(supervisor, "polylane-hold");
    let tables = lock_tables();
    let mut mount = Command::new(binary());
    mount.args(["mount", "mem:64M", text(&at)]).stdin(Stdio::null());
    let mut mount = mount.spawn().expect("polylane");
    // After it has looked at the path.
    let lists_tables = |entry: fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|path| path.ends_with(".tables"))
    };
    let waits = || {
        let files = fs::read_dir(format!("/proc/{}/fd", mount.id())).into_iter().flatten();
        files.flatten().any(lists_tables)
    };
    until("the command waits for the tables", waits);
    signal_to(mount.id(), "STOP");
    signal_to(supervisor, "KILL");
    drop(tables);
    until("the lane's own process has cleared it", || has_ended(holder));
    signal_to(mount.id(), "CONT");
    assert!(mount.wait().expect("wait").success());
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// A command takes a dead lane out of the table that was mounted in another mount namespace, where
/// it can unmount nothing: the lane's own process does.
#[test]
fn a_lane_that_is_cleared_from_another_mount_namespace_is_unmounted_in_its_own() {
    let name = "a_lane_that_is_cleared_from_another_mount_namespace_is_unmounted_in_its_own";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let (at, other) = (host.dir("m"), host.dir("other"));
    let script = "$0 mount dir:$1 $2 && $0 mount --share dir:$1 $3 && echo up && read line";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation=private", "sh", "-c", script]).arg(binary());
    inside.args([&host.dir("tree"), &at, &other]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut inside = inside.spawn().expect("unshare");
    let mut said = BufReader::new(inside.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("read");
    assert_eq!(line, "up\n");
    let (table, own) = (format!("/proc/{}/mountinfo", inside.id()), host.path(""));
    let seen = || {
        let table = fs::read_to_string(&table).expect("mountinfo");
        table.lines().filter(|line| line.contains(text(&own))).map(str::to_string).collect()
    };
    let mounted: Vec<String> = seen();
    assert!(mounted.len() >= 2, "{mounted:?}");
    let supervisor = host.mounts()[0]["supervisor"].as_u64().expect("a number") as u32;
    let holder = child(supervisor, "polylane-hold");
    signal_to(holder, "STOP");
    signal_to(supervisor, "KILL");
    until("the lane is cleared", || host.mounts().is_empty());
    signal_to(holder, "CONT");
    until("its own process has ended", || has_ended(holder));
    assert_eq!(seen(), Vec::<String>::new());
    drop(inside.stdin.take());
    inside.wait().expect("wait");
    host.assert_nothing_is_left();
}

/// A lane that this mount namespace does not show is not "mounted already" here.
#[test]
fn a_lane_of_another_mount_namespace_is_in_the_way() {
    let name = "a_lane_of_another_mount_namespace_is_in_the_way";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let (at, shared) = (host.dir("m"), host.dir("shared"));
    let script = "$0 mount mem:64M $1 && echo up && read line";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation=private", "sh", "-c", script]).arg(binary()).arg(&at);
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
    let mut said = BufReader::new(inside.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("read");
    assert_eq!(line, "up\n");
    let (status, line) = refused(&["mount", "mem:64M", text(&at)]);
    assert!(status == 1 && line.contains("in another mount namespace"), "{status} {line}");
    assert_eq!(host.mounts()[0]["count"], 1);
    // Where the lane is to be seen, in a namespace that has copied the mount, it is.
    succeeds(&["mount", "mem:64M", text(&shared)]);
    let again = Command::new("unshare")
        .args(["--mount", "sh", "-c", "exec $0 mount mem:64M $1"])
        .arg(binary())
        .arg(&shared)
        .output()
        .expect("unshare");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    succeeds(&["umount", "--all", text(&shared)]);
    succeeds(&["umount", text(&at)]);
    drop(inside.stdin.take());
    inside.wait().expect("wait");
    succeeds(&["mount", "mem:64M", text(&at)]);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// A thread of a killed service may wait in the kernel for what only its service would have done,
/// and has the connection open: here the test has it.
#[test]
fn a_connection_that_outlives_its_lane_is_ended_by_the_next_command() {
    let name = "a_connection_that_outlives_its_lane_is_ended_by_the_next_command";
    if unavailable(name) {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    let supervisor = host.supervisor();
    let service = service_below(supervisor).expect("a service");
    let _connection = fuse_device_of(service);
    signal_to(service, "STOP");
    let mut program = Command::new("mkdir");
    program.arg(at.join("new")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut program = program.spawn().expect("mkdir");
    let waits = format!("/proc/{}/wchan", program.id());
    until("the program waits for an answer", || {
        fs::read_to_string(&waits)
            .is_ok_and(|place| place.contains("fuse") || place.contains("request_wait"))
    });
    // At once: none does anything about the others' end.
    let mut all = children(supervisor).expect("children");
    all.push(supervisor);
    for signal in ["STOP", "KILL"] {
        all.iter().for_each(|process| signal_to(*process, signal));
    }
    until("the lane is cleared", || host.mounts().is_empty());
    until("the program has an answer", || has_ended(program.id()));
    assert!(!program.wait().expect("ended").success());
    host.assert_nothing_is_left();
}

/// The descriptor by which a service talks to the kernel.
fn fuse_device_of(service: u32) -> OwnedFd {
    let is_device = |number: &u32| {
        let link = fs::read_link(format!("/proc/{service}/fd/{number}"));
        link.is_ok_and(|link| link == Path::new("/dev/fuse"))
    };
    let number = (0..64).find(is_device).expect("its device");
    let pid = rustix::process::Pid::from_raw(service.cast_signed()).expect("a process");
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open");
    let flags = PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(process, number.cast_signed(), flags).expect("pidfd_getfd")
}

#[test]
fn a_lane_that_somebody_else_unmounts_ends() {
    if unavailable("a_lane_that_somebody_else_unmounts_ends") || lacks("umount", &["umount"]) {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["mount", "--size", "64M", text(&volume), text(&at)]);
    fs::write(at.join("file"), "x").expect("write");
    let done = Command::new("umount").args(["-R", text(&at)]).status().expect("umount");
    assert!(done.success());
    until("its lane has ended", || host.mounts().is_empty());
    until("its volume is free", || polylane(&["volume", "check", text(&volume)]).status.success());
    host.assert_nothing_is_left();
}

/// Set-user-id programs and devices on a lane are nothing to this host, unless it is asked for.
#[test]
fn what_is_on_a_lane_gives_nobody_rights() {
    if unavailable("what_is_on_a_lane_gives_nobody_rights") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    let options = |at: &Path| {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let line = table.lines().find(|line| line.contains(&format!(" {} ", text(at))));
        line.and_then(|line| line.split(' ').nth(5)).expect("mounted").to_string()
    };
    fs::set_permissions(host.path(""), PermissionsExt::from_mode(0o755)).expect("chmod");
    for (option, suid) in [(None, false), (Some("--suid"), true)] {
        let mut words = vec!["mount"];
        words.extend(option);
        words.extend(["mem:64M", text(&at)]);
        succeeds(&words);
        assert_eq!(!options(&at).contains("nosuid"), suid);
        assert!(options(&at).contains("nodev"));
        succeeds(&["umount", text(&at)]);
    }
    host.assert_nothing_is_left();
}

/// Commands that mount and unmount one path at a time: each takes away what it has mounted.
#[test]
fn many_commands_mount_and_unmount_one_path() {
    if unavailable("many_commands_mount_and_unmount_one_path") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    let turns = || {
        for _ in 0..25 {
            succeeds(&["mount", "mem:32M", text(&at)]);
            succeeds(&["umount", text(&at)]);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(turns)));
    });
    assert!(refused(&["umount", text(&at)]).1.contains("no lane is mounted there"));
    host.assert_nothing_is_left();
}

/// As mount(8), fstab and systemd's mount units start it.
#[test]
fn mount_8_finds_its_helpers() {
    if unavailable("mount_8_finds_its_helpers") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    let helper = |name: &str, words: &[&str]| {
        let mut command = Command::new(binary());
        let output = command.arg0(name).args(words).output().expect("polylane");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mount = |options: &str| {
        helper("/sbin/mount.polylane", &["mem:64M", text(&at), "-n", "-o", options])
    };
    assert_eq!(mount("rw,nofail,x-systemd.automount"), (Some(0), String::new()));
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = table.lines().find(|line| line.contains(&format!(" {} ", text(&at))));
    assert!(line.is_some_and(|line| line.contains(" - fuse.polylane mem:64M ")), "{line:?}");
    assert_eq!(helper("umount.fuse.polylane", &[text(&at), "-n"]), (Some(0), String::new()));
    let (status, line) = mount("noexec");
    assert!(status == Some(2) && line.contains("noexec"), "{line}");
    let (status, line) = helper("mount.fuse.polylane", &["mem:64M", text(&at), "-o", "remount,rw"]);
    assert!(status == Some(2) && line.contains("umount it"), "{line}");
    assert_eq!(mount("ro").0, Some(0));
    assert!(fs::write(at.join("file"), "x").is_err());
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// Whatever is mounted on the host wakes the holders of all lanes: one in whose lane no program of
/// the host has had a session looks at many changes at once, and at each at once from then on.
#[test]
fn mounts_of_others_are_looked_at_together_until_a_session_goes_by_them() {
    let name = "mounts_of_others_are_looked_at_together_until_a_session_goes_by_them";
    if unavailable(name) {
        return;
    }
    let host = Host::new();
    let (at, other) = (host.dir("m"), host.dir("other"));
    succeeds(&["mount", "mem:64M", text(&at)]);
    let looks = || {
        let page = fs::read(at.join(".polylane/mounts")).expect("a page");
        u32::from_ne_bytes(page[4..8].try_into().expect("4 bytes"))
    };
    let change = || {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &other, "tmpfs", flags, None).expect("mount");
        rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).expect("umount");
    };
    let (before, start) = (looks(), Instant::now());
    (0..50).for_each(|_| change());
    until("it looks", || looks() != before);
    let (seen, within) = (looks() - before, start.elapsed().as_millis() / 100);
    assert!(u128::from(seen) <= within + 2, "{seen} looks in {within} tenths of a second");
    let script = "cd $MOUNT; i=0; while [ $i -lt 50 ]; do echo $i >f$i; i=$((i+1)); done; cat f*";
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir("/").env("MOUNT", &at).env("POLYLANE_MOUNT", &at);
    command.env("LD_PRELOAD", at.join(".polylane/$LIB/libpolylane.so"));
    assert!(command.output().expect("sh").status.success());
    // A host that has other work makes some of the looks late.
    let quickest = (0..20).map(|_| {
        let (before, start) = (looks(), Instant::now());
        change();
        until("it looks", || looks() != before);
        start.elapsed()
    });
    let quickest = quickest.min().expect("one");
    assert!(quickest < Duration::from_millis(80), "{quickest:?} at best");
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// A lane whose supervisor does not get on is given up by `umount -l`, and its path is free then.
#[test]
fn a_lane_that_does_not_get_to_serve_is_given_up() {
    if unavailable("a_lane_that_does_not_get_to_serve_is_given_up") {
        return;
    }
    let host = Host::new();
    let at = host.dir("m");
    let is_starting = || host.mounts().first().is_some_and(|one| one["state"] == "starting");
    let is_caught = (0..20).any(|_| {
        let mut command = Command::new(binary());
        let mut mounting = command.args(["mount", "mem:64M", text(&at)]).spawn().expect("polylane");
        let supervisor = child(mounting.id(), "polylane");
        signal_to(supervisor, "STOP");
        mounting.kill().expect("kill");
        mounting.wait().expect("wait");
        let caught = is_starting();
        if !caught {
            signal_to(supervisor, "CONT");
            let _ = polylane(&["umount", text(&at)]);
        }
        caught
    });
    assert!(is_caught, "each start was faster than its stop");
    succeeds(&["umount", "-l", text(&at)]);
    assert_eq!(host.mounts(), Vec::<serde_json::Value>::new());
    succeeds(&["mount", "mem:64M", text(&at)]);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}
