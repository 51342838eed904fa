//! Lanes that last while what is around them changes: mount namespaces come and go and pin the
//! mount, services are replaced, state and run-time directories are full or read-only.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::host::{Host, children, succeeds, text, until};
use polylane_tests::namespace::Namespace;
use polylane_tests::{binary, lacks, unavailable};

/// A volume's lane on this host.
fn lane(host: &Host) -> (PathBuf, PathBuf) {
    let (at, volume) = (host.dir("m"), host.path("v.img"));
    succeeds(&["mount", "--size", "64M", text(&volume), text(&at)]);
    (at, volume)
}

/// What gives a program the fast way into a lane.
fn fast_way(at: &Path) -> Vec<(String, String)> {
    let env = succeeds(&["env", "--json", text(at)]);
    let env: serde_json::Value = serde_json::from_str(&env).expect("JSON");
    let all = env["environment"].as_object().expect("variables").iter();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_string()))).collect()
}

/// The process of the only lane's service, and how many it had before.
fn service_of(host: &Host) -> (Option<u64>, Option<u64>) {
    let lane = format!("default@{}", host.mounts()[0]["service"]);
    let stats = succeeds(&["stats", "--json", "--pool", &lane]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    (stats[0]["service_pid"].as_u64(), stats[0]["service_restarts"].as_u64())
}

/// A control group whose processes can be made to stand still, of either version.
#[derive(Debug)]
struct Freezer {
    dir: PathBuf,
    /// A file, what freezes by it and what thaws.
    by: [&'static str; 3],
}

impl Freezer {
    /// `None`: this host has none.
    fn new(of: &str) -> Option<Freezer> {
        let of_v1 = ["freezer.state", "FROZEN", "THAWED"];
        let of_v2 = ["cgroup.freeze", "1", "0"];
        let all = [("freezer", of_v1), ("unified", of_v2), ("", of_v2)];
        all.into_iter().find_map(|(root, by)| {
            let name = format!("polylane-test-{}-{of}", std::process::id());
            let dir = Path::new("/sys/fs/cgroup").join(root).join(name);
            fs::create_dir(&dir).ok()?;
            let freezer = Freezer { dir, by };
            freezer.dir.join(by[0]).exists().then_some(freezer)
        })
    }

    /// Takes a process in, and all below it.
    fn take(&self, pid: u32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("moved");
        children(pid).into_iter().flatten().for_each(|child| self.take(child));
    }

    fn set(&self, stands_still: bool) {
        let [file, freezes, thaws] = self.by;
        let word = if stands_still { freezes } else { thaws };
        fs::write(self.dir.join(file), word).expect("written");
        let is_so = || match file {
            "cgroup.freeze" => {
                let events = fs::read_to_string(self.dir.join("cgroup.events")).expect("read");
                events.lines().any(|line| line == format!("frozen {word}"))
            }
            _ => fs::read_to_string(self.dir.join(file)).is_ok_and(|now| now.trim() == word),
        };
        until("they stand still, or go on", is_so);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join(self.by[0]), self.by[2]);
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How long nobody works: longer than a service may give no sign of life.
const STANDSTILL: Duration = Duration::from_secs(18);

/// All processes of a lane and its programs stand still and go on, as by a suspend of the host.
/// The monotonic clock goes on meanwhile, which it does not then.
#[test]
fn a_lane_that_stood_still_with_its_programs_goes_on() {
    let name = "a_lane_that_stood_still_with_its_programs_goes_on";
    if unavailable(name) {
        return;
    }
    let host = Host::new();
    // A program that waits for a lane by FUSE does so until its service has answered, and stands
    // still then: programs come first.
    let (Some(of_programs), Some(of_lane)) = (Freezer::new("programs"), Freezer::new("lane"))
    else {
        return polylane_tests::skip(name, "no control group can be made that freezes");
    };
    let (at, volume) = lane(&host);
    let script = "i=0; until [ -e enough ]; do i=$((i + 1)); echo $i >>$0 || exit 1; done; echo $i";
    let fast_way = fast_way(&at);
    let writers = [("library", true), ("fuse", false)].map(|(log, fast)| {
        let mut writer = Command::new("sh");
        writer.args(["-c", script, log]).current_dir(&at).stdout(Stdio::piped());
        if fast {
            writer.envs(fast_way.iter().map(|(name, value)| (name, value)));
        }
        (log, writer.spawn().expect("sh"))
    });
    let lines = |log: &str| fs::read_to_string(at.join(log)).unwrap_or_default().lines().count();
    let go_on = || {
        let before = writers.each_ref().map(|(log, _)| lines(log));
        until("both write", || {
            writers.iter().zip(before).all(|((log, _), before)| lines(log) > before + 20)
        });
    };
    go_on();
    let first = service_of(&host);
    of_lane.take(host.supervisor());
    writers.iter().for_each(|(_, writer)| of_programs.take(writer.id()));
    for stands_still in [STANDSTILL, Duration::ZERO, Duration::from_millis(50)] {
        of_programs.set(true);
        of_lane.set(true);
        std::thread::sleep(stands_still);
        of_programs.set(false);
        of_lane.set(false);
        go_on();
    }
    assert_eq!(service_of(&host), first, "the same service");
    fs::write(at.join("enough"), "").expect("written");
    for (log, writer) in writers {
        let output = writer.wait_with_output().expect("sh");
        let last: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a count");
        assert_eq!((output.status.code(), lines(log)), (Some(0), last), "{log}");
    }
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// Root of a user namespace, as in an unprivileged container, whose `/run` is as some are: a lane
/// is mounted and serves the library, or one line says why not and nothing is left.
#[test]
fn lanes_of_a_container_without_rights_are_there_or_one_line_says_why_not() {
    let name = "lanes_of_a_container_without_rights_are_there_or_one_line_says_why_not";
    if unavailable(name) || polylane_tests::pool::no_library(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let script = r#"
        run=$1; at=$2; polylane=$3
        [ -z "$run" ] || mount -t tmpfs -o "$run" none /run
        if ! "$polylane" mount mem:16M "$at" 2>/tmp/said; then
            [ "$(wc -l </tmp/said)" = 1 ] && grep -q '^polylane: /run' /tmp/said || exit 7
            ! grep -q "$at" /proc/self/mountinfo
            echo refused; exit 0
        fi
        [ ! -s /tmp/said ]
        LD_PRELOAD="$at/.polylane/\$LIB/libpolylane.so" POLYLANE_MOUNT="$at" \
            sh -c 'cd "$0"; echo x >file; cat file' "$at" 2>&1
        "$polylane" umount "$at"
    "#;
    let of = |run: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--propagation", "private"]);
        let own_tmp = format!("mount -t tmpfs none /tmp; mkdir -p \"$2\"; {script}");
        command.args(["sh", "-euc", &own_tmp, "sh", run, "/tmp/m"]).arg(binary());
        command.env("XDG_STATE_HOME", "/tmp/state").env_remove("XDG_RUNTIME_DIR");
        command.current_dir("/").output().expect("unshare")
    };
    let probe = of("mode=755");
    if String::from_utf8_lossy(&probe.stderr).contains("unshare") {
        return polylane_tests::skip(name, "no user namespaces");
    }
    for (run, expected) in [
        ("mode=755", "x\n"),
        ("mode=755,noexec,nosuid,nodev", "x\n"),
        ("mode=555", "x\n"),
        ("mode=755,size=64k", "x\n"),
        ("mode=755,nr_inodes=8", "refused\n"),
        ("mode=755,ro", "refused\n"),
    ] {
        let output = of(run);
        let said = (String::from_utf8_lossy(&output.stdout), output.status.code());
        assert_eq!(said, (expected.into(), Some(0)), "{run}: {output:?}");
    }
    host.assert_nothing_is_left();
}

#[test]
fn namespaces_come_and_go_and_one_that_pins_the_mount_keeps_nothing_else() {
    let name = "namespaces_come_and_go_and_one_that_pins_the_mount_keeps_nothing_else";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let (at, volume) = lane(&host);
    for number in 0..6 {
        let mut passing = Namespace::new(["private", "slave"][number % 2]);
        let file = at.join(format!("file-{number}"));
        assert_eq!(passing.says(&format!("echo x >{0}; cat {0}", text(&file))), "x");
    }
    let mut pins = Namespace::new("private");
    let file = at.join("kept");
    pins.says(&format!("exec 5>{}; echo before >&5", text(&file)));
    let start = Instant::now();
    succeeds(&["umount", text(&at)]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
    // Its lane has ended: an error, and no wait.
    let said = pins
        .says(&format!("if cat {} 2>/dev/null; then echo no; else echo error; fi", text(&file)));
    assert_eq!(said, "error");
    succeeds(&["mount", text(&volume), text(&at)]);
    assert_eq!(fs::read_to_string(&file).expect("read"), "before\n");
    assert_eq!(fs::read_dir(&at).expect("list").flatten().count(), 7, "files of all namespaces");
    drop(pins);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

#[test]
fn what_a_pinning_namespace_has_open_outlives_upgrades() {
    let name = "what_a_pinning_namespace_has_open_outlives_upgrades";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let (pool, at, volume) = (host.pool("up"), host.dir("m"), host.path("v.img"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "--size", "64M", text(&volume), text(&at)]);
    let mut pins = Namespace::new("private");
    let file = at.join("log");
    pins.says(&format!("exec 5>>{}; cd {}", text(&file), text(&at)));
    for round in 0..3 {
        assert_eq!(pins.says(&format!("echo {round} >&5 && cat log | tail -1")), round.to_string());
        succeeds(&["pool", "upgrade", &pool]);
    }
    assert_eq!(pins.says("echo end >&5 && wc -l <log"), "4");
    drop(pins);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// A command whose monotonic clock is 46 days ahead of the host's.
const AHEAD: [&str; 6] = ["-T", "--fork", "--monotonic", "4000000", "--boottime", "4000000"];

/// Clocks of a lane, of programs with the library and of commands differ, as in containers with a
/// time namespace, or after a host was suspended: nothing is late or early by it.
#[test]
fn lanes_go_on_where_clocks_differ() {
    let name = "lanes_go_on_where_clocks_differ";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let ahead = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(AHEAD).args(words).stdin(Stdio::null());
        command
    };
    if !ahead(&["true"]).output().is_ok_and(|output| output.status.success()) {
        return polylane_tests::skip(name, "no time namespaces");
    }
    let host = Host::new();
    let (at, volume, program) = (host.dir("m"), host.path("v.img"), binary());
    let mount = [text(&program), "mount", "--size", "64M", text(&volume), text(&at)];
    let mounted = ahead(&mount).output().expect("unshare");
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let variables = fast_way(&at);
    let script = "for n in 1 2 3 4 5; do echo $n >>log; cat log >copy; mv copy other; done; \
                  wc -l <other; flock log true && echo locked";
    let service = || service_of(&host);
    let first = service();
    // The host's clock, and the lane's own, with the library and without.
    let mut lines = 5;
    for (clock, fast) in [(true, true), (false, true), (true, false), (false, false)] {
        let shell = ["sh", "-euc", script];
        let mut command = match clock {
            true => ahead(&shell),
            false => Command::new(shell[0]),
        };
        if !clock {
            command.args(&shell[1..]);
        }
        if fast {
            command.envs(variables.iter().map(|(name, value)| (name, value)));
        }
        let output = command.current_dir(&at).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("{lines}\nlocked\n"), "{clock} {fast} {output:?}");
        lines += 5;
    }
    assert_eq!(service(), first, "a watchdog of the lane's own clock killed nothing");
    let synced = Command::new("sync").arg(at.join("log")).status().expect("sync");
    assert!(synced.success());
    // Killed, it is started again within that clock; `umount` of the host's is durable.
    polylane_tests::pool::signal_to(first.0.expect("a process") as u32, "KILL");
    assert_eq!(fs::read_to_string(at.join("log")).expect("read").lines().count(), 20);
    assert!(service().1 > first.1);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// A command with a state directory of its own.
fn with_state(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).env("XDG_STATE_HOME", dir).stdin(Stdio::null());
    command.output().expect("polylane")
}

fn one_line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.lines().count() == 1, "{output:?}");
    said
}

/// A small tmpfs, taken away at the end.
struct Small(PathBuf);

impl Small {
    fn new(host: &Host) -> Small {
        let dir = host.dir("small");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=64k", "t"]).arg(&dir);
        assert!(command.status().expect("mount").success());
        Small(dir)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("create");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn remount(&self, how: &str) {
        let mut command = Command::new("mount");
        command.args(["-o", &format!("remount,{how}")]).arg(&self.0);
        assert!(command.status().expect("mount").success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_or_read_only_state_directory_ends_no_lane() {
    let name = "a_full_or_read_only_state_directory_ends_no_lane";
    if unavailable(name) || lacks(name, &["mount", "umount"]) {
        return;
    }
    let host = Host::new();
    let small = Small::new(&host);
    let (pool, at, volume) = (host.pool("state"), host.dir("m"), host.path("v.img"));
    let other = host.dir("other");
    let state = small.0.clone();
    let done = |words: &[&str]| {
        let output = with_state(&state, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    };
    done(&["pool", "create", &pool]);
    done(&["mount", "--pool", &pool, "--size", "64M", text(&volume), text(&at)]);
    for how in ["full", "read-only"] {
        match how {
            "full" => small.fill(),
            _ => small.remount("ro"),
        }
        fs::write(at.join(how), how).expect("the lane serves");
        let refused = format!("{pool}-more");
        let line = one_line(&with_state(&state, &["pool", "create", &refused]));
        assert!(line.contains(text(&state)) || line.contains(&refused), "{how}: {line}");
        done(&["pool", "info", &pool]);
        one_line(&with_state(&state, &["pool", "set", "--weight", "300", &pool]));
        done(&["pool", "info", &pool]);
        // What needs nothing new of it works.
        done(&["pool", "upgrade", &pool]);
        assert_eq!(fs::read_to_string(at.join(how)).expect("read"), how);
        done(&["mount", "--pool", &pool, "mem:16M", text(&other)]);
        done(&["umount", text(&other)]);
        done(&["umount", text(&at)]);
        done(&["mount", "--pool", &pool, text(&volume), text(&at)]);
        assert_eq!(fs::read_to_string(at.join(how)).expect("read"), how, "after {how}");
    }
    small.remount("rw");
    fs::remove_file(state.join("filler")).expect("remove");
    done(&["pool", "set", "--weight", "300", &pool]);
    done(&["umount", text(&at)]);
    done(&["pool", "rm", &pool]);
    drop(small);
    host.assert_nothing_is_left();
}

#[test]
fn a_full_run_time_directory_ends_no_lane() {
    let name = "a_full_run_time_directory_ends_no_lane";
    if unavailable(name) || lacks(name, &["mount", "umount", "unshare"]) {
        return;
    }
    let host = Host::new();
    // In a namespace where the run-time directory is small and no other test's.
    let script = r#"
        set -e
        mkdir -p /run/polylane
        mount -t tmpfs -o size=256k,mode=711 t /run/polylane
        "$P" mount --size 64M "$D/v.img" "$D/m"
        echo x >"$D/m/before"
        dd if=/dev/zero of=/run/polylane/filler bs=4k 2>/dev/null || true
        echo x >"$D/m/full"
        "$P" mount mem:16M "$D/other" && { echo mounted; "$P" umount "$D/other"; } || echo refused
        "$P" mount | grep -q "$D/m"
        "$P" umount "$D/m"
        rm /run/polylane/filler
        "$P" mount "$D/v.img" "$D/m"
        cat "$D/m/before" "$D/m/full"
        "$P" mount mem:16M "$D/other"
        "$P" umount "$D/other"
        "$P" umount "$D/m"
        ls -A /run/polylane
        grep -c "$D/" /proc/self/mountinfo || true
    "#;
    for dir in ["m", "other"] {
        host.dir(dir);
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script]);
    command
        .env("P", binary())
        .env("D", host.path("m").parent().expect("a directory"))
        .stdin(Stdio::null());
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let ends = said.trim_start_matches("mounted\n").trim_start_matches("refused\n");
    assert_eq!(ends, "x\nx\n0\n", "nothing is left: {said} {output:?}");
    let lines = String::from_utf8_lossy(&output.stderr).lines().count();
    assert!(lines <= 1, "{output:?}");
}
