//! What processes of a run may do to others on the host, seen from outside: the service, COMMAND at
//! a path, COMMAND in a root file system, the caller's terminal.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use polylane_tests::pool::{Run, TRIES_THE_RUN_DIRECTORY, no_library};
use polylane_tests::step::good;
use polylane_tests::{lacks, skip, tool, unavailable};

/// The value of a line of /proc/PID/status.
fn status_of(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name}")).to_string()
}

/// Whether mounts of a directory's file system can be id-mapped.
fn maps_ids(dir: &Path) -> bool {
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(dir).output().expect("stat");
    let known = ["ext2/ext3", "xfs", "btrfs", "tmpfs"];
    known.contains(&String::from_utf8_lossy(&kind.stdout).trim())
}

/// What `doctor` says of mounts that map users is what services get.
#[test]
fn doctor_says_whether_mounts_are_id_mapped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut doctor = Command::new(polylane_tests::binary());
    let said = doctor.args(["doctor", "--json"]).current_dir(dir.path()).output().expect("doctor");
    let findings: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let named = |one: &&serde_json::Value| one["name"] == "id-mapped-mounts";
    let Some(found) = findings.as_array().and_then(|all| all.iter().find(named)) else {
        return skip(
            "doctor_says_whether_mounts_are_id_mapped",
            "services have their caller's user",
        );
    };
    let (state, words) = match maps_ids(dir.path()) {
        true => ("good", "have rights over their directories alone"),
        false => ("degraded", "keep capabilities to make files for others"),
    };
    assert_eq!(found["state"], state, "{found}");
    assert!(found["note"].as_str().is_some_and(|note| note.contains(words)), "{found}");
}

#[test]
fn services_of_two_pools_are_two_users_without_a_terminal() {
    if unavailable("services_of_two_pools_are_two_users_without_a_terminal") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let mut users = BTreeSet::new();
    for options in ["--mem".to_string(), format!("--dir {}", dir.path().display())] {
        let mut running = [(); 2].map(|()| {
            Run::new(&format!("--no-preload --at /srv {options}"))
                .script("echo up; sleep 60")
                .start()
        });
        for running in &mut running {
            assert_eq!(running.line(), "up");
            let service = running.service();
            let ids: BTreeSet<_> =
                status_of(service, "Uid").split_whitespace().map(str::to_string).collect();
            assert_eq!(ids.len(), 1, "real, effective, saved and file system's: {ids:?}");
            assert_eq!(status_of(service, "Groups").trim(), "");
            let namespace = fs::read_link(format!("/proc/{service}/ns/user"));
            let apart = namespace.ok() != fs::read_link("/proc/self/ns/user").ok();
            assert_eq!(
                apart,
                options.contains("--dir") && maps_ids(dir.path()),
                "its user namespace"
            );
            // CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_SYS_RESOURCE.
            let kept = u64::from_str_radix(&status_of(service, "CapEff"), 16).expect("a number");
            assert_eq!(kept & (1 << 5 | 1 << 19 | 1 << 21 | 1 << 23 | 1 << 24), 0, "{kept:x}");
            let stat = fs::read_to_string(format!("/proc/{service}/stat")).expect("stat");
            let words: Vec<&str> =
                stat.rsplit_once(") ").expect("a name").1.split_whitespace().collect();
            assert_eq!(words[3], service.to_string(), "its session is its own");
            assert_eq!(words[4], "0", "no terminal");
            let said = fs::read_link(format!("/proc/{service}/fd/2")).expect("standard error");
            assert!(said.to_string_lossy().starts_with("pipe:"), "{said:?}");
            users.extend(ids);
        }
        for running in running {
            running.signal("TERM");
            running.end();
        }
    }
    assert_eq!(users.len(), 4, "each has its own: {users:?}");
    assert!(!users.contains("0"), "{users:?}");
}

/// Run in a directory: owners, groups, modes and set-id bits, by several users.
const OWNERS: &str = r#"
as() { user=$1; shift; setpriv --reuid "$user" --regid "$1" --groups "$2" sh -c "$3" 2>&1; }
tell() { stat -c '%n %F %a %u:%g %h' "$@"; }
umask 022
: >a; chown 1000:1001 a; chmod 6755 a; echo root >>a; tell a; truncate -s 2 a; tell a
as 1000 1001 1001 'id -u; id -G; echo own >>a; stat -c %a a; : >new || echo refused'
mkdir -m 1777 w; chmod 6755 a; fallocate -l 9000 a; tell a
as 1002 1003 2000,3000 'cd w; : >f; chmod 2755 f; chgrp 3000 f; mkdir g; chgrp 2000 g; chmod 2775 g
  : >g/in; mkdir g/deep; ln -s f l; mkfifo p; ln f h
  chgrp 4000 f || echo not a member; chown 5 f || echo not root
  echo secret >k; chmod 600 k; chmod 4711 h'
as 1004 1005 2000 'cd w; cat k || echo none of yours
  rm f || echo sticky; : >g/other; chmod 777 g || echo not the owner'
as 65534 65534 65534 'cd w; cat k || echo none of yours'
echo cut >>w/h; tell w w/f w/g w/g/in w/g/deep w/g/other w/l w/p w/k w/h
chown 2147483646:2147483646 w/k; chown -h 7:8 w/l; tell w/k w/l
cp -a w copy; mv copy/g copy/m; tell copy/m copy/m/in copy/f
"#;

/// Run after it: nodes of devices, of none, and a user without a number.
const NODES: &str = "cd /srv; mknod n c 1 3 || mknod n b 8 0 || mknod n c 0 0 && ls; \
     chown 2147483647 n || echo none";

#[test]
fn owners_of_a_dir_lane_are_the_hosts_by_both_doors() {
    let name = "owners_of_a_dir_lane_are_the_hosts_by_both_doors";
    if unavailable(name) || lacks(name, &["setpriv", "mkfifo", "fallocate"]) {
        return;
    }
    let plain = tempfile::tempdir().expect("tempdir");
    let open = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
    open(plain.path()).expect("chmod");
    let owners = format!("cd \"$0\" && {OWNERS}");
    let on_host =
        Command::new("sh").args(["-c", &owners]).arg(plain.path()).output().expect("runs");
    let listing = |dir: &Path| {
        let mut find = Command::new("find");
        find.args([".", "-mindepth", "1", "-printf", "%p %y %m %U:%G %n\n"]).current_dir(dir);
        let found = good(&find.output().expect("find"));
        let mut lines: Vec<String> = found.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    for door in ["--no-preload", ""] {
        let dir = tempfile::tempdir().expect("tempdir");
        open(dir.path()).expect("chmod");
        let run = Run::new(&format!("{door} --at /srv --dir")).arg(dir.path());
        let inside = run.script(&format!("cd /srv && {OWNERS}")).output();
        assert_eq!(good(&inside), good(&on_host), "{door}");
        assert_eq!(listing(dir.path()), listing(plain.path()), "{door}: as the host sees it");
        let made = Run::new(&format!("{door} --at /srv --dir")).arg(dir.path());
        let made = made.script(NODES);
        assert_eq!(good(&made.output()), "a\ncopy\nn\nw\nnone\n", "{door}");
    }
}

#[test]
fn the_library_and_the_socket_of_a_lane_are_the_tenants_to_use_and_not_to_change() {
    let name = "the_library_and_the_socket_of_a_lane_are_the_tenants_to_use_and_not_to_change";
    if unavailable(name) || no_library(name) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let library = polylane_tests::binary().with_file_name("libpolylane.so");
    let before = fs::read(&library).expect("the library");
    for options in ["--mem".to_string(), format!("--dir {}", dir.path().display())] {
        let run = Run::new(&format!("--at /srv {options}"))
            .env("MOUNT", "/srv")
            .script(TRIES_THE_RUN_DIRECTORY);
        assert_eq!(good(&run.output()), "done\n", "{options}");
    }
    if !lacks(name, &["busybox"]) {
        let root = tempfile::tempdir().expect("tempdir");
        busybox_root(root.path());
        for privileged in ["", "--privileged"] {
            let run = Run::new(&format!("--root {privileged}")).env("PATH", "/bin");
            let run =
                run.env("MOUNT", "").arg("--dir").arg(root.path()).script(TRIES_THE_RUN_DIRECTORY);
            assert_eq!(good(&run.output()), "done\n", "--root {privileged}");
        }
    }
    assert!(before == fs::read(&library).expect("the library"), "the host's file is as it was");
}

#[test]
fn what_the_library_made_unfit_to_run_the_kernel_does_not_run() {
    let name = "what_the_library_made_unfit_to_run_the_kernel_does_not_run";
    if unavailable(name) || no_library(name) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(at("lower")).expect("mkdir");
    fs::copy("/bin/true", at("lower/t")).expect("copied");
    let sources = [
        "--mem".to_string(),
        format!("--dir {}", at("dir")),
        format!("--volume {} --size 64M", at("volume")),
        format!("--lower {} --mem", at("lower")),
    ];
    // The kernel has run it, and remembers what it may.
    let script = "test -e /srv/t || cp /bin/true /srv/t; chmod 755 /srv/t; /srv/t; echo $?; \
                  chmod 644 /srv/t; /srv/t 2>/dev/null; echo $?; chmod 100 /srv/t; /srv/t; echo $?";
    for source in sources {
        let run = Run::new(&format!("--at /srv {source}")).script(script);
        assert_eq!(good(&run.output()), "0\n126\n0\n", "{source}");
    }
}

/// Makes a set-user-id program of root's, if there is none; runs it as somebody else.
const RUNS_SET_ID: &str = "test -e /srv/id || cp \"$(command -v id)\" /srv/id && \
     chmod 4755 /srv/id && chmod 755 /srv && env -u LD_PRELOAD \
     setpriv --reuid 65534 --regid 65534 --clear-groups /srv/id -u && \
     grep ' /srv ' /proc/self/mounts | grep -o nodev";

/// What lies in a lane that began empty COMMAND made itself; what was there before, others may have
/// put there.
#[test]
fn set_id_programs_work_in_lanes_that_began_empty_and_where_that_was_asked_for() {
    let name = "set_id_programs_work_in_lanes_that_began_empty_and_where_that_was_asked_for";
    if unavailable(name) || lacks(name, &["setpriv"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    let source = |path: &Path| format!("--volume {} --size 64M", path.display());
    let runs = |options: &str, euid: &str| {
        let run = Run::new(&format!("--at /srv {options}")).script(RUNS_SET_ID);
        assert_eq!(good(&run.output()), format!("{euid}\nnodev\n"), "{options}");
    };
    for door in ["--no-preload", ""] {
        runs(&format!("--mem {door}"), "0");
        runs(&format!("{} {door}", source(&volume)), "0");
        fs::copy(&volume, &copy).expect("copied");
        for there in [&volume, &copy] {
            runs(&format!("{} {door}", source(there)), "65534");
            runs(&format!("{} {door} --suid", source(there)), "0");
        }
        runs(&format!("--dir {} {door}", dir.path().join("dir").display()), "65534");
        fs::remove_file(&volume).expect("removed");
    }
}

/// Runs a command by a terminal of its own, and shows what comes to it.
const BY_TERMINAL: &str = "import pty, sys\npty.spawn(sys.argv[1:])\n";

/// Types into a terminal of one's own, and confines itself; what came of it.
const TYPES: &str = "import ctypes, fcntl, os, sys, termios\n\
     def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n\
     _, end = os.openpty()\n\
     for name, request in (('TIOCSTI', termios.TIOCSTI), ('TIOCLINUX', 0x541c)):\n\
     \x20   try: fcntl.ioctl(end, request, b'x'); say(name, 'done')\n\
     \x20   except OSError as error: say(name, os.strerror(error.errno))\n\
     libc = ctypes.CDLL(None, use_errno=True)\n\
     SET, GET, STRICT, FILTER = 22, 21, 1, 2\n\
     def child(confine, call):\n\
     \x20   pid = os.fork()\n\
     \x20   if pid == 0: confine(); os.write(1, b'writes '); call(); libc.syscall(60, 9)\n\
     \x20   say('ended by', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n\
     say('mode', libc.prctl(GET, 0, 0, 0, 0), libc.syscall(157, GET, 0, 0, 0, 0))\n\
     exits = lambda: libc.syscall(60, 7)\n\
     child(lambda: libc.prctl(SET, STRICT, 0, 0, 0), exits)\n\
     child(lambda: libc.syscall(317, 0, 0, None), os.getppid)\n\
     child(lambda: libc.syscall(157, SET, STRICT, 0, 0, 0), os.getppid)\n";

/// What [`TYPES`] says where nothing types, and the strict mode of seccomp can be had.
const TYPES_NOTHING: &str = "TIOCSTI Operation not permitted\nTIOCLINUX Operation not permitted\n";
const CONFINES: &str = "mode 0 0\nwrites ended by 7\nwrites ended by -9\nwrites ended by -9\n";

/// By a terminal nothing types; without one there is nothing to keep from it. Either way a program
/// with the library has the strict mode of seccomp, beside which the kernel has no filter.
#[cfg(target_arch = "x86_64")]
#[test]
fn nothing_in_a_run_types_into_a_terminal() {
    let name = "nothing_in_a_run_types_into_a_terminal";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let outside = Command::new("python3").args(["-c", TYPES]).output().expect("python3");
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    if !outside.contains("TIOCSTI done") {
        return skip(name, "this kernel lets nobody type (dev.tty.legacy_tiocsti)");
    }
    assert!(outside.ends_with(CONFINES), "{outside}");
    for door in ["--no-preload", ""] {
        let run = Run::new(&format!("--mem --at /srv {door}"));
        let run = run.arg("--").arg("python3").arg("-c").arg(TYPES);
        let output = run.by(&["python3", "-c", BY_TERMINAL]).output();
        let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        assert!(shown.starts_with(TYPES_NOTHING), "{door}: {shown}");
        assert!(!door.is_empty() || shown.ends_with(CONFINES), "{shown}");
    }
    for door in ["--no-preload", ""] {
        let run = Run::new(&format!("--mem --at /srv {door}"));
        let run = run.arg("--").arg("python3").arg("-c").arg(TYPES);
        let output = run.by(&["setsid", "--wait"]).output();
        assert!(good(&output).ends_with(CONFINES), "{door}");
    }
}

/// A root file system with busybox.
fn busybox_root(dir: &Path) {
    fs::create_dir(dir.join("bin")).expect("mkdir");
    let busybox = tool("busybox").expect("busybox");
    fs::copy(busybox, dir.join("bin/busybox")).expect("copy");
    for name in
        ["sh", "cat", "ls", "grep", "mount", "mkdir", "wc", "stat", "id", "touch", "rm", "chmod"]
    {
        std::os::unix::fs::symlink("busybox", dir.join("bin").join(name)).expect("link");
    }
}

fn in_root(options: &str, script: &str) -> Output {
    let dir = tempfile::tempdir().expect("tempdir");
    busybox_root(dir.path());
    let run = Run::new(&format!("--root --no-preload {options}")).env("PATH", "/bin");
    run.arg("--dir").arg(dir.path()).script(script).output()
}

/// What OCI runtimes leave root of a container by default.
const CONTAINER: u64 = 0xa804_25fb;

#[test]
fn command_in_a_root_file_system_may_do_what_a_containers_may() {
    let name = "command_in_a_root_file_system_may_do_what_a_containers_may";
    if unavailable(name) || lacks(name, &["busybox"]) {
        return;
    }
    let own = u64::from_str_radix(&status_of(std::process::id(), "CapEff"), 16).expect("a number");
    let may = "grep -E '^Cap(Eff|Bnd|Amb)|NoNewPrivs' /proc/self/status";
    let told =
        |caps: u64| format!("CapEff:\t{caps:016x}\nCapBnd:\t{caps:016x}\nCapAmb:\t{:016x}\n", 0);
    let contained = good(&in_root("", may));
    assert_eq!(contained, told(own & CONTAINER) + "NoNewPrivs:\t0\n");
    let privileged = good(&in_root("--privileged", may));
    assert!(privileged.starts_with(&format!("CapEff:\t{own:016x}\n")), "{privileged}");
    let changes = "files='/proc/sys/kernel/hostname /proc/sysrq-trigger /sys/kernel/mm/ksm/run'; \
                   for file in $files; do \
                       ! test -e $file || ! (: >$file) 2>/dev/null || echo \"$file opens\"; \
                   done; \
                   for dir in /sys/fs/cgroup/made /sys/kernel/made; do \
                       ! mkdir $dir 2>/dev/null || echo \"$dir is made\"; \
                   done; \
                   mkdir /m; for kind in cgroup cgroup2 proc tmpfs; do \
                       ! mount -t $kind none /m 2>/dev/null || echo \"$kind is mounted\"; \
                   done; \
                   test ! -e /proc/kcore || test -c /proc/kcore || echo kcore; \
                   for dir in /sys/firmware /proc/scsi; do \
                       ! test -d $dir || test -z \"$(ls $dir)\" || echo \"$dir is shown\"; \
                   done; \
                   cat /proc/1/comm; id -u; echo x >/dev/null && echo end";
    assert_eq!(good(&in_root("", changes)), "polylane-init\n0\nend\n");
}

/// Everything that a caller may do, COMMAND at a path may, and no more.
#[test]
fn command_at_a_path_has_its_callers_rights() {
    let name = "command_at_a_path_has_its_callers_rights";
    if unavailable(name) || lacks(name, &["setpriv"]) {
        return;
    }
    let may = "grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status";
    let fewer = ["setpriv", "--inh-caps=-sys_boot", "--bounding-set=-sys_boot"];
    for starter in [&["nice"][..], &fewer] {
        let callers = Command::new("env").args(starter).args(["sh", "-c", may]).output();
        let callers = good(&callers.expect("env"));
        for door in ["", "--no-preload"] {
            let run = Run::new(&format!("--mem --at /srv {door}")).script(may).by(starter);
            assert_eq!(good(&run.output()), callers, "{starter:?} {door}");
        }
    }
}

/// Tells who it runs as, and what it may do.
const TELLS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
	char line[200];
	FILE *status = fopen("/proc/self/status", "r");
	printf("%d %d\n", (int)getuid(), (int)geteuid());
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "CapEff", 6))
			fputs(line, stdout);
	return 0;
}
"#;

/// Set-id programs of a root file system run as who owns them, and may do what a container's may.
#[test]
fn set_id_programs_work_in_a_root_file_system() {
    let name = "set_id_programs_work_in_a_root_file_system";
    if unavailable(name) || lacks(name, &["busybox", "gcc"]) {
        return;
    }
    let own = u64::from_str_radix(&status_of(std::process::id(), "CapEff"), 16).expect("a number");
    for (options, caps) in [("", own & CONTAINER), ("--privileged", own)] {
        let dir = tempfile::tempdir().expect("tempdir");
        busybox_root(dir.path());
        fs::write(dir.path().join("tells.c"), TELLS).expect("written");
        let mut gcc = Command::new("gcc");
        gcc.current_dir(dir.path()).args(["-static", "-o", "bin/tells", "tells.c"]);
        assert!(gcc.status().expect("gcc").success());
        fs::create_dir(dir.path().join("etc")).expect("mkdir");
        let user = "other:x:65534:65534::/:/bin/sh\n";
        fs::write(dir.path().join("etc/passwd"), user).expect("written");
        let script = "chmod 755 / /bin; chmod 4755 /bin/tells; \
                      exec /bin/busybox su other -c /bin/tells";
        let run = Run::new(&format!("--root --no-preload {options}")).env("PATH", "/bin");
        let said = good(&run.arg("--dir").arg(dir.path()).script(script).output());
        assert_eq!(said, format!("65534 0\nCapEff:\t{caps:016x}\n"), "{options}");
    }
}

#[test]
fn limits_of_the_callers_shell_are_commands() {
    let name = "limits_of_the_callers_shell_are_commands";
    if unavailable(name) || lacks(name, &["bash"]) {
        return;
    }
    let pool = format!("test-limits-{}", std::process::id());
    let shell = "ulimit -S -n 64; ulimit -S -f 8; ulimit -S -v 4000000; exec \"$@\"";
    let command = "echo $(ulimit -S -n) $(ulimit -S -f) $(ulimit -S -v); sleep 60";
    let mut child = Command::new("bash")
        .args(["-c", shell, "bash"])
        .arg(polylane_tests::binary())
        .args(["run", "--mem", "--no-preload", "--at", "/srv", "--pool", &pool, "--"])
        .args(["bash", "-c", command])
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "64 8 4000000");
    let service = polylane_tests::pool::service_of(&pool).expect("a service");
    for process in [service, child.id()] {
        let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("limits");
        let soft = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name));
            line.expect(name).split_whitespace().next().expect("a value").to_string()
        };
        assert_ne!(soft("Max open files"), "64");
        assert_ne!(soft("Max file size"), "8192");
        assert_eq!(soft("Max address space"), "unlimited");
    }
    polylane_tests::pool::signal_to(child.id(), "TERM");
    child.wait().expect("ends");
    polylane_tests::pool::assert_nothing_remains(&pool);
}

/// What a hard limit keeps a lane from is said, and no process of it is killed by a signal; COMMAND
/// is.
#[test]
fn a_largest_size_of_files_that_stays_is_said_and_kills_nobody() {
    let name = "a_largest_size_of_files_that_stays_is_said_and_kills_nobody";
    if unavailable(name) || lacks(name, &["setpriv"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |shell: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_resource", "bash", "-c", shell, "bash"]);
        command.arg(polylane_tests::binary()).args(words).current_dir(dir.path());
        command.env("XDG_STATE_HOME", dir.path()).output().expect("setpriv")
    };
    let one_line = |output: &Output, status: i32| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{:?}: {said}", output.status);
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    fs::create_dir(dir.path().join("m")).expect("mkdir");
    let hard = "ulimit -f 100; exec \"$@\"";
    for lane in [&["run", "--mem", "--", "true"][..], &["mount", "mem:64M", "m"]] {
        let said = one_line(&at(hard, lane), 1);
        assert!(said.contains("file size limit: 102400 bytes"), "{said}");
    }
    one_line(&at(hard, &["volume", "create", "large", "--size", "64M"]), 1);
    let soft = "ulimit -S -f 100; exec \"$@\"";
    for words in [
        &["volume", "create", "v", "--size", "64M"][..],
        &["volume", "snapshot", "v", "s"],
        &["volume", "export", "v", "raw"],
    ] {
        let output = at(soft, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    let killed = "trap \"\" USR1; head -c 1M /dev/zero >/srv/x; echo $?";
    let output =
        at(soft, &["run", "--mem", "--no-preload", "--at", "/srv", "--", "sh", "-c", killed]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "153\n", "{output:?}");
}

#[test]
fn the_memory_killer_takes_command_before_the_service() {
    if unavailable("the_memory_killer_takes_command_before_the_service") {
        return;
    }
    let mut running = Run::new("--mem --no-preload --at /srv")
        .script("cat /proc/self/oom_score_adj; sleep 60")
        .start();
    let command: i32 = running.line().parse().expect("a number");
    let of_service = fs::read_to_string(format!("/proc/{}/oom_score_adj", running.service()));
    let service: i32 = of_service.expect("a score").trim().parse().expect("a number");
    assert_eq!(command - service, 900, "COMMAND {command}, service {service}");
    running.signal("TERM");
    running.end();
}

/// Programs that take memory until they are killed, then COMMAND itself.
const EATS: &str = "echo kept >/srv/kept; head -c 16M /dev/zero >/srv/file; echo up; read word; \
     for turn in 1 2 3; do tail /dev/zero >/dev/null 2>&1; echo $?; done; \
     cat /srv/kept; wc -c </srv/file; read word; exec tail /dev/zero >/dev/null";

/// Of a pool that runs out of memory COMMAND's processes are killed, also where scores may only be
/// raised.
#[test]
fn a_pool_without_memory_loses_command_and_keeps_its_service() {
    let name = "a_pool_without_memory_loses_command_and_keeps_its_service";
    if unavailable(name) || lacks(name, &["setpriv", "tail"]) {
        return;
    }
    let doctor = Command::new(polylane_tests::binary()).arg("doctor").output().expect("doctor");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let limited = |line: &str| line.contains("cgroup-memory") && line.contains("version");
    if !said.lines().any(limited) {
        return skip(name, "no control group limits memory here");
    }
    let fewer = ["setpriv", "--inh-caps=-sys_resource", "--bounding-set=-sys_resource"];
    for starter in [&["nice"][..], &fewer] {
        let run = Run::new("--mem --no-preload --at /srv --memory 64M").script(EATS).by(starter);
        let (mut running, mut input) = run.start_with_input();
        assert_eq!(running.line(), "up");
        let service = running.service();
        writeln!(input, "eat").expect("COMMAND listens");
        assert_eq!([(); 3].map(|()| running.line()), ["137"; 3], "{starter:?}");
        assert_eq!([running.line(), running.line()], ["kept", "16777216"], "{starter:?}");
        assert_eq!(running.service(), service, "{starter:?}");
        writeln!(input, "eat").expect("COMMAND listens");
        assert_eq!(running.end().code(), Some(137), "{starter:?}");
    }
}

#[test]
fn a_lane_in_ram_that_is_lost_says_so() {
    if unavailable("a_lane_in_ram_that_is_lost_says_so") {
        return;
    }
    let script = "echo kept >/srv/file; echo up; sleep 1; ls /srv";
    let mut child = Command::new(polylane_tests::binary())
        .args(["run", "--mem", "--no-preload", "--at", "/srv", "--pool", "test-lost", "--"])
        .args(["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "up");
    let service = polylane_tests::pool::service_of("test-lost").expect("a service");
    polylane_tests::pool::signal_to(service, "KILL");
    assert!(lines.next().is_none(), "the file is gone");
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("its files were in its service's memory: they are lost"), "{said}");
    polylane_tests::pool::assert_nothing_remains("test-lost");
}

/// Takes and gives the right to execute and to search, by this process (the library) and by
/// others (the kernel), and lets two users execute the file, which is always the kernel's work.
const EXECUTES: &str = r#"
import os, random, shutil, subprocess, sys
seed = int(sys.argv[1])
random.seed(seed)
os.umask(0)
os.makedirs("/lane/d")
shutil.copy("/bin/true", "/lane/d/p")
bits = {"/lane/d": 0o755, "/lane/d/p": 0o755}
done = []
def chmod(path, mode):
    bits[path] = mode
    door = random.choice(["library", "descriptor", "kernel"])
    done.append((door, path, oct(mode)))
    if door == "library":
        os.chmod(path, mode)
    elif door == "descriptor":
        fd = os.open(path, os.O_RDONLY)
        os.fchmod(fd, mode)
        os.close(fd)
    else:
        subprocess.run(["/bin/chmod", "%o" % mode, path], env={}, check=True)
def renew():
    done.append(("renew",))
    shutil.copy("/bin/true", "/lane/d/new")
    os.chmod("/lane/d/new", bits["/lane/d/p"])
    os.rename("/lane/d/new", "/lane/d/p")
def may(user):
    if user == 0:
        return bits["/lane/d/p"] & 0o111 != 0
    return bits["/lane/d"] & 1 and bits["/lane/d/p"] & 1
for _ in range(60):
    if random.random() < 0.2:
        renew()
    else:
        chmod(random.choice(sorted(bits)), random.choice([0o755, 0o700, 0o644, 0o711, 0o705]))
    user, door = random.choice([0, 65534]), random.choice([{}, os.environ])
    child = os.fork()
    if child == 0:
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        try:
            os.execve("/lane/d/p", ["p"], door)
        except PermissionError:
            os._exit(13)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (0 if may(user) else 13), (seed, user, status, done)
"#;

#[test]
fn the_right_to_execute_is_checked_by_the_kernel_as_it_is_now() {
    let test = "the_right_to_execute_is_checked_by_the_kernel_as_it_is_now";
    if unavailable(test) || no_library(test) || lacks(test, &["python3"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "it becomes another user");
    }
    for (options, seed) in [("--mem", 1), ("--mem", 2), ("--size 64M", 3), ("--size 64M", 4)] {
        let run = Run::new(&format!("{options} "));
        let output = run.script(&format!("exec /usr/bin/python3 -c '{EXECUTES}' {seed}")).output();
        good(&output);
    }
}

/// A program that has used the file before: the kernel and `access` say the same.
const BECOMES_NOEXEC: &str = r#"
import os, shutil, subprocess
shutil.copy("/bin/true", "/lane/p")
os.chmod("/lane/p", 0o755)
for _ in range(40):
    os.stat("/lane/p")
    assert os.access("/lane/p", os.X_OK)
for option, may in ("noexec", False), ("exec", True), ("noexec", False):
    subprocess.run(["mount", "-o", "remount,bind," + option, "/lane"], check=True)
    for effective in False, True:
        assert os.access("/lane/p", os.X_OK, effective_ids=effective) == may, (option, effective)
    assert os.access("/lane/p", os.R_OK | os.W_OK) and os.access("/lane", os.X_OK)
    try:
        assert subprocess.run(["/lane/p"]).returncode == 0 and may
    except PermissionError:
        assert not may
"#;

#[test]
fn who_may_execute_is_as_the_mount_says() {
    let test = "who_may_execute_is_as_the_mount_says";
    if unavailable(test) || lacks(test, &["python3", "mount"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "it mounts");
    }
    for options in ["--mem", "--mem --no-preload", "--size 64M"] {
        let run = Run::new(&format!("{options} "));
        good(&run.script(&format!("exec /usr/bin/python3 -c '{BECOMES_NOEXEC}'")).output());
    }
}
