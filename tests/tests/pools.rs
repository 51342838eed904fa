//! Pools that last: `polylane pool create`, `set`, `info`, `rm`, lanes and commands in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_tests::host::{Host, polylane, refused, succeeds, text, until};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks, skip, unavailable};

fn info(pool: &str) -> serde_json::Value {
    serde_json::from_str(&succeeds(&["pool", "info", "--json", pool])).expect("JSON")
}

/// The pool's line in `pool ls`, where it has no lane.
fn idle(pool: &str) -> Option<serde_json::Value> {
    let all: Vec<serde_json::Value> =
        serde_json::from_str(&succeeds(&["pool", "ls", "--json"])).expect("JSON");
    all.into_iter().find(|one| one["pool"] == pool && one["state"] == "idle")
}

/// The pool's groups on this host, wherever they are mounted.
fn groups(pool: &str) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let hierarchies = table.lines().filter(|line| line.contains(" - cgroup"));
    let places = hierarchies.filter_map(|line| line.split(' ').nth(4));
    let groups = places.map(|place| Path::new(place).join(format!("polylane-{pool}")));
    groups.filter(|group| group.is_dir()).collect()
}

/// What a limit's file says, in whichever version.
fn limit(pool: &str, files: &[&str]) -> Option<String> {
    let groups = groups(pool);
    let paths = groups.iter().flat_map(|group| files.iter().map(|file| group.join(file)));
    paths.filter_map(|path| fs::read_to_string(path).ok()).next().map(|text| text.trim().into())
}

const MEMORY: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];

fn user(pid: u64) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find(|line| line.starts_with("Uid:")).expect("users");
    line.split_whitespace().nth(1).expect("a number").to_string()
}

#[test]
fn a_pool_lasts_with_its_limits_until_it_is_removed() {
    if unavailable("a_pool_lasts_with_its_limits_until_it_is_removed") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("lasts");
    succeeds(&["pool", "create", &pool, "--memory", "256M", "--weight", "300", "--cpus", "0"]);
    let found = idle(&pool).expect("listed");
    assert_eq!((&found["weight"], &found["cpus"]), (&300.into(), &"0".into()));
    let (status, line) = refused(&["pool", "create", &pool]);
    assert!(status == 1 && line.contains("exists"), "{line}");
    let limited = limit(&pool, &MEMORY).is_some();
    if limited {
        assert_eq!(limit(&pool, &MEMORY), Some((256 << 20).to_string()));
    }
    // Each option alone; the others stay.
    succeeds(&["pool", "set", &pool, "--memory", "512M"]);
    let found = info(&pool);
    assert_eq!((&found["memory"], &found["weight"]), (&(512 << 20).into(), &300.into()));
    if limited {
        assert_eq!(limit(&pool, &MEMORY), Some((512 << 20).to_string()));
        succeeds(&["pool", "set", &pool, "--memory", "0"]);
        assert_ne!(limit(&pool, &MEMORY), Some((512 << 20).to_string()), "lifted");
    }
    let allowed = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("Cpus_allowed_list"));
        line.expect("a line").to_string()
    };
    let own = fs::read_to_string("/proc/thread-self/status").expect("status");
    let exec = || allowed(&succeeds(&["exec", "--pool", &pool, "--", "cat", "/proc/self/status"]));
    assert!(exec().ends_with("\t0"));
    succeeds(&["pool", "set", &pool, "--cpus", "all"]);
    assert_eq!((&info(&pool)["cpus"], exec()), (&serde_json::Value::Null, allowed(&own)));
    // Once more is no failure, and sets what is said.
    succeeds(&["pool", "create", "--once", &pool]);
    succeeds(&["pool", "create", "--once", &pool, "--weight", "200"]);
    let other = ["pool", "create", "--once", &pool, "--ns", "net", "--weight", "100"];
    let (status, line) = refused(&other);
    assert!(status == 1 && line.contains("has no namespaces, not net"), "{line}");
    assert_eq!(idle(&pool).expect("listed")["weight"], 200);
    succeeds(&["pool", "rm", &pool]);
    succeeds(&["pool", "create", "--once", &pool, "--ns", "uts,ipc"]);
    // Without a word about them, and with the same.
    succeeds(&["pool", "create", "--once", &pool]);
    succeeds(&["pool", "create", "--once", &pool, "--ns", "ipc,uts,ipc"]);
    assert!(refused(&other).1.contains("has ipc,uts, not net"));
    succeeds(&["pool", "rm", &pool]);
    assert_eq!(idle(&pool), None);
    assert_eq!(groups(&pool), Vec::<PathBuf>::new());
    assert!(refused(&["pool", "rm", &pool]).1.contains("no such pool"));
}

#[test]
fn limits_that_two_commands_set_at_a_time_both_hold() {
    if unavailable("limits_that_two_commands_set_at_a_time_both_hold") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("two");
    succeeds(&["pool", "create", &pool]);
    for turn in 1..=20 {
        let (memory, pids) = ((turn * 64).to_string() + "M", (turn * 100).to_string());
        let (pool, memory, pids) = (&pool, &memory, &pids);
        std::thread::scope(|scope| {
            scope.spawn(move || succeeds(&["pool", "set", pool, "--memory", memory]));
            scope.spawn(move || succeeds(&["pool", "set", pool, "--pids", pids]));
        });
        let found = info(pool);
        assert_eq!(
            (&found["memory"], &found["pids"]),
            (&((turn * 64) << 20).into(), &(turn * 100).into())
        );
    }
    succeeds(&["pool", "rm", &pool]);
}

#[test]
fn lanes_runs_and_commands_are_in_one_pool() {
    if unavailable("lanes_runs_and_commands_are_in_one_pool") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("one");
    succeeds(&["pool", "create", &pool, "--cpus", "0"]);
    let (one, two) = (host.dir("1"), host.dir("2"));
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&one)]);
    succeeds(&["mount", "--pool", &pool, "--size", "64M", text(&host.path("v.img")), text(&two)]);
    let services = info(&pool)["services"].clone();
    let services = services.as_array().expect("services");
    assert_eq!(services.len(), 2, "a service for each that shares nothing");
    let own = info(&pool)["user"].to_string();
    for service in services {
        let pid = service["service_pid"].as_u64().expect("a process");
        assert_eq!(user(pid), own, "the pool's user");
    }
    // A run is one more lane, with the pool's limits; COMMAND is in the pool's groups.
    let script = "cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status; echo x >/lane/f";
    let ways: [&[&str]; 2] = [
        &["run", "--pool", &pool, "--mem", "--", "sh", "-c", script],
        &["exec", "--pool", &pool, "--", "sh", "-c", "cat /proc/self/cgroup /proc/self/status"],
    ];
    for words in ways {
        let said = succeeds(words);
        let cpus = said.lines().find(|line| line.starts_with("Cpus_allowed_list"));
        assert!(cpus.is_some_and(|line| line.ends_with("\t0")), "{said}");
        if !groups(&pool).is_empty() {
            assert!(said.contains(&format!("/polylane-{pool}")), "{said}");
        }
    }
    for (option, value) in [("--memory", "64M"), ("--cpus", "0")] {
        let (status, line) =
            refused(&["run", "--pool", &pool, option, value, "--mem", "--", "true"]);
        assert!(status == 2 && line.contains("pool set"), "{line}");
    }
    let (status, line) = refused(&["pool", "rm", &pool]);
    assert!(status == 1 && line.contains(text(&one)), "{line}");
    succeeds(&["umount", text(&one), text(&two)]);
    host.assert_nothing_is_left();
    succeeds(&["pool", "rm", &pool]);
}

/// The status of COMMAND is that of `exec`, and a pool with a process in it stays.
#[test]
fn a_command_is_executed_in_a_pool() {
    if unavailable("a_command_is_executed_in_a_pool") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("exec");
    let exec = |words: &[&str]| {
        polylane(&[&["exec", "--pool", &pool, "--"], words].concat()).status.code()
    };
    assert_eq!(exec(&["true"]), Some(1), "no such pool");
    succeeds(&["pool", "create", &pool]);
    assert_eq!(exec(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(exec(&["/no/such"]), Some(127));
    assert_eq!(exec(&["/etc/passwd"]), Some(126));
    let at = host.dir("m");
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&at)]);
    let said = succeeds(&["exec", "--pool", &pool, "--", "sh", "-c", "echo $POLYLANE_MOUNT"]);
    assert_eq!(said.trim(), text(&at), "the only lane's fast way");
    succeeds(&["umount", text(&at)]);
    if !groups(&pool).is_empty() {
        let mut command = Command::new(binary());
        command.args(["exec", "--pool", &pool, "--", "sleep", "60"]);
        let mut sleeping = command.spawn().expect("polylane");
        until("it sleeps", || {
            fs::read_to_string(format!("/proc/{}/comm", sleeping.id()))
                .is_ok_and(|comm| comm.trim() == "sleep")
        });
        let (_, line) = refused(&["pool", "rm", &pool]);
        assert!(line.contains(&sleeping.id().to_string()), "{line}");
        sleeping.kill().expect("kill");
        sleeping.wait().expect("wait");
    }
    succeeds(&["pool", "rm", &pool]);
}

/// The file-system table: instances with their open files and flags.
#[test]
fn the_table_of_a_service_lists_what_is_open() {
    if unavailable("the_table_of_a_service_lists_what_is_open") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("table");
    succeeds(&["pool", "create", &pool]);
    let (one, two) = (host.dir("1"), host.dir("2"));
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&one)]);
    fs::write(one.join("file"), "x").expect("write");
    succeeds(&["mount", "--pool", &pool, "--share", "--ro", "mem:64M", text(&two)]);
    let open: Vec<fs::File> = [&one, &two, &two]
        .iter()
        .map(|at| fs::File::open(at.join("file")).expect("open"))
        .collect();
    let instances = |pool: &str| info(pool)["services"][0]["instances"].clone();
    let found = instances(&pool);
    assert_eq!(found.as_array().map(Vec::len), Some(2));
    for (index, at, files) in [(0, &one, 1), (1, &two, 2)] {
        let instance = &found[index];
        assert_eq!((&instance["path"], &instance["open_files"]), (&text(at).into(), &files.into()));
        assert_eq!(instance["users"][0]["pid"], std::process::id());
        let flags = instance["flags"].as_array().expect("flags");
        assert_eq!(flags.contains(&"ro".into()), index == 1, "{flags:?}");
        assert!(flags.contains(&"nosuid".into()), "{flags:?}");
    }
    drop(open);
    assert_eq!(instances(&pool)[0]["open_files"], 0);
    succeeds(&["umount", text(&two), text(&one)]);
    host.assert_nothing_is_left();
    succeeds(&["pool", "rm", &pool]);
}

#[test]
fn bad_pools_are_one_line_and_leave_nothing() {
    if unavailable("bad_pools_are_one_line_and_leave_nothing") {
        return;
    }
    let host = Host::new();
    let (pool, at) = (host.pool("bad"), host.dir("m"));
    for (words, status, word) in [
        (vec!["pool", "create", "../x"], 2, "letters"),
        (vec!["pool", "create", "a\nb\u{1b}"], 2, "letters"),
        (vec!["pool", "create", &pool, "--weight", "0"], 2, "1 to 10000"),
        (vec!["pool", "create", &pool, "--memory", "1M"], 2, "16M"),
        (vec!["pool", "create", &pool, "--pids", "1"], 2, "32"),
        (vec!["pool", "create", &pool, "--cpus", "1000"], 2, "CPU 1000"),
        (vec!["pool", "create", &pool, "--dirty-limit", "1K"], 2, "1M"),
        (vec!["pool", "create", &pool, "--memory", "16M", "--dirty-limit", "8M"], 2, "quarter"),
        (vec!["pool", "info", "a/b"], 2, "letters"),
        (vec!["pool", "info", ""], 2, "letters"),
        (vec!["pool", "rm", "../x\n\u{1b}"], 2, "letters"),
        (vec!["pool", "rm", "--if-exists", ".x"], 2, "letters"),
        (vec!["pool", "set", "a b", "--memory", "64M"], 2, "letters"),
        (vec!["exec", "--pool", "..", "--", "true"], 2, "letters"),
        (vec!["pool", "info", &pool], 1, "no such pool"),
        (vec!["pool", "set", &pool, "--memory", "64M"], 1, "no such pool"),
        (vec!["pool", "upgrade", &pool], 1, "not running"),
        (vec!["mount", "--pool", &pool, "mem:64M", text(&at)], 1, "pool create"),
        (vec!["exec", "--pool", &pool, "--", "true"], 1, "no such pool"),
        (vec!["exec", "--pool", &pool], 2, "COMMAND"),
    ] {
        let (found, line) = refused(&words);
        assert!(found == status && line.contains(word), "{words:?}: {found} {line}");
    }
    assert_eq!((idle(&pool), groups(&pool)), (None, Vec::new()));
    host.assert_nothing_is_left();
    // A run that has a pool of that name for itself.
    let mut command = Command::new(binary());
    command.args(["run", "--mem", "--pool", &pool, "--", "sleep", "60"]).stdin(Stdio::null());
    let mut running = command.spawn().expect("polylane");
    until("it runs", || polylane(&["stats", "--pool", &pool]).status.success());
    assert!(refused(&["pool", "create", &pool]).1.contains("in use"));
    signal_to(running.id(), "TERM");
    running.wait().expect("wait");
    succeeds(&["pool", "create", &pool]);
    assert!(refused(&["pool", "set", &pool]).1.contains("what to change"));
}

/// A command that is killed at any moment leaves a pool that the next one uses, or none.
#[test]
fn a_pool_command_killed_at_any_moment_leaves_nothing_in_the_way() {
    if unavailable("a_pool_command_killed_at_any_moment_leaves_nothing_in_the_way") {
        return;
    }
    let host = Host::new();
    let (pool, at) = (host.pool("killed"), host.dir("m"));
    for step in 0..30u64 {
        let verb: &[&str] = match step % 3 {
            0 => &["create", "--memory", "64M"],
            1 => &["set", "--weight", "77"],
            _ => &["rm"],
        };
        let mut command = Command::new(binary());
        command.args(["pool", verb[0], &pool]).args(&verb[1..]);
        let mut running = command.stderr(Stdio::null()).spawn().expect("polylane");
        std::thread::sleep(Duration::from_millis(step / 3));
        let _ = running.kill();
        running.wait().expect("wait");
        if step % 3 == 0 {
            // There or not: either way the next command goes on.
            let _ = polylane(&["pool", "create", &pool, "--memory", "64M"]);
        }
        if polylane(&["pool", "info", &pool]).status.success() {
            succeeds(&["mount", "--pool", &pool, "mem:64M", text(&at)]);
            succeeds(&["umount", text(&at)]);
        }
    }
    if idle(&pool).is_some() {
        succeeds(&["pool", "rm", &pool]);
    }
    assert_eq!(groups(&pool), Vec::<PathBuf>::new());
    host.assert_nothing_is_left();
}

/// What `env` prints gives a program the fast way; a path in no lane is refused.
#[test]
fn the_environment_gives_the_fast_way() {
    if unavailable("the_environment_gives_the_fast_way") {
        return;
    }
    let host = Host::new();
    let (at, shared) = (host.dir("it's"), host.dir("s"));
    succeeds(&["mount", "mem:64M", text(&at)]);
    succeeds(&["mount", "--share", "mem:64M", text(&shared)]);
    fs::create_dir(at.join("dir")).expect("mkdir");
    let script = "eval \"$(\"$1\" env \"$2\")\"; sh -c 'grep -c libpolylane /proc/$$/maps'";
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(binary()).arg(at.join("dir"));
    let output = command.output().expect("sh");
    let mapped: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0);
    assert!(mapped > 0, "{}", String::from_utf8_lossy(&output.stderr));
    let json = |form: &str| -> serde_json::Value {
        serde_json::from_str(&succeeds(&["env", text(&at), form])).expect("JSON")
    };
    assert!(Path::new(json("--json")["socket"].as_str().expect("a path")).exists());
    assert_eq!(json("--oci")["mounts"][0]["source"], text(&at));
    let edits = json("--cdi")["devices"][0]["containerEdits"].clone();
    assert_eq!(edits["mounts"][0]["containerPath"], text(&at));
    for form in ["--docker", "--podman"] {
        // As a shell splits it.
        let words = succeeds(&["env", text(&at), form]);
        let count = format!("for word in {}; do echo \"$word\"; done", words.trim());
        let output = Command::new("sh").args(["-c", &count]).output().expect("sh");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(lines.contains(&format!("POLYLANE_MOUNT={}\n", text(&at))), "{lines}");
    }
    let of_shared: serde_json::Value =
        serde_json::from_str(&succeeds(&["env", "--json", text(&shared)])).expect("JSON");
    assert_eq!(of_shared["mount"], text(&shared));
    assert_eq!(of_shared["socket"], json("--json")["socket"], "one service");
    let both: serde_json::Value =
        serde_json::from_str(&succeeds(&["env", "--json", text(&at), text(&shared)]))
            .expect("JSON");
    assert_eq!(both["lanes"][1], of_shared["lanes"][0]);
    assert!(both["environment"]["POLYLANE_RUN_2"].is_string(), "{both}");
    assert!(refused(&["env", text(&host.path(""))]).1.contains("in no lane"));
    assert_eq!(refused(&["env", text(&at), "--oci", "--cdi"]).0, 2);
    succeeds(&["umount", text(&shared), text(&at)]);
    host.assert_nothing_is_left();
}

/// Hierarchies of control groups side by side in a plain directory that has a file like a group's.
const BESIDE_A_FILE: &str = r#"
set -eu
for there in /sys/fs/cgroup/*/; do
    mountpoint -q "$there" || continue
    mkdir "$1/${there#/sys/fs/cgroup/}"
    mount --bind "$there" "$1/${there#/sys/fs/cgroup/}"
done
echo 1 >"$1/cgroup.procs"
mount --rbind "$1" /sys/fs/cgroup
"$0" pool create --memory 64M "$2"
"$0" exec --pool "$2" -- true
cd /sys/fs/cgroup && echo *
"#;

#[test]
fn a_directory_in_which_hierarchies_are_mounted_is_no_group() {
    let name = "a_directory_in_which_hierarchies_are_mounted_is_no_group";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let mut there = table.lines().filter(|line| line.contains(" /sys/fs/cgroup "));
    if there.next_back().is_none_or(|line| !line.contains(" - tmpfs ")) {
        return skip(name, "control groups are of version 2 alone");
    }
    let host = Host::new();
    let (pool, dir) = (host.pool("beside"), host.dir("groups"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", BESIDE_A_FILE]).arg(binary());
    let output = command.arg(&dir).arg(&pool).output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("cgroup.procs") && !said.contains("polylane-"), "{said}");
    assert_eq!(fs::read_to_string(dir.join("cgroup.procs")).expect("read"), "1\n");
    succeeds(&["pool", "rm", &pool]);
}

/// In a mount namespace of the test's, in which the hierarchy of classes is mounted.
#[test]
fn a_pool_has_a_network_class_where_they_are_mounted() {
    let name = "a_pool_has_a_network_class_where_they_are_mounted";
    if unavailable(name) || lacks(name, &["unshare", "mount"]) {
        return;
    }
    let host = Host::new();
    let (pool, at) = (host.pool("class"), host.dir("net_cls"));
    let script = r#"mount -t cgroup -o net_cls none "$AT" || exit 9
        "$P" pool create "$POOL"; "$P" pool info "$POOL"; cat "$AT/polylane-$POOL/net_cls.classid"
        "$P" exec --pool "$POOL" -- grep net_cls /proc/self/cgroup
        "$P" doctor | grep cgroup-network
        "$P" pool rm "$POOL"; ls "$AT" | grep -c "$POOL" || true; umount "$AT"
        # The kernel lets go of a hierarchy at an unmount that finds no group about to go.
        i=0; while [ $i -lt 50 ] && ! grep -q '^net_cls[[:space:]]*0' /proc/cgroups; do
            mount -t cgroup -o net_cls none "$AT"; umount "$AT"; i=$((i + 1)); done"#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", script]).env("P", binary()).env("POOL", &pool);
    let output = command.env("AT", &at).output().expect("unshare");
    if output.status.code() == Some(9) {
        return skip(name, "this kernel has no network classes");
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = |word: &str| said.lines().find_map(|line| line.strip_prefix(word));
    let user: u32 = line("user: ").and_then(|user| user.parse().ok()).expect("a user");
    let class = format!("{:x}:{:x}", user >> 16, user & 0xffff);
    assert_eq!(line("network_class: "), Some(&*class), "{said}");
    let user = user.to_string();
    assert!(said.lines().any(|line| line == user), "the group's class: {said}");
    assert!(said.contains(&format!("net_cls:/polylane-{pool}\n")), "what is in the pool: {said}");
    assert!(said.lines().any(|line| line.contains("version 1")), "doctor: {said}");
    assert_eq!(said.lines().last(), Some("0"), "its group goes with it: {said}");
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_hinders_no_other_pool() {
    if unavailable("a_record_that_cannot_be_read_is_named_and_hinders_no_other_pool") {
        return;
    }
    let host = Host::new();
    let (bad, good) = (host.pool("bad"), host.pool("good"));
    let state = host.dir("state");
    let call = |words: &[&str]| {
        let mut command = Command::new(binary());
        let output = command.args(words).env("XDG_STATE_HOME", &state).output().expect("polylane");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(call(&["pool", "create", &bad]), (true, String::new(), String::new()));
    let record = state.join(format!("polylane/pools/{bad}.json"));
    fs::write(&record, "{").expect("written");
    let named = |said: &str| said.lines().count() == 1 && said.contains(text(&record));
    let (made, _, said) = call(&["pool", "create", &good]);
    assert!(made && named(&said), "{said}");
    let (listed, all, said) = call(&["pool", "ls", "--json"]);
    assert!(listed && named(&said) && all.contains(&good) && !all.contains(&bad), "{all}{said}");
    assert!(call(&["pool", "info", &good]).0);
    for words in [["pool", "info", &bad], ["pool", "create", &bad], ["pool", "rm", &bad]] {
        let (done, _, said) = call(&words);
        assert!(!done && named(&said), "{words:?}: {said}");
    }
    assert_eq!(call(&["pool", "rm", &good]), (true, String::new(), String::new()));
    // As the line says.
    fs::remove_file(&record).expect("removed");
    assert!(call(&["pool", "create", &bad]).0 && call(&["pool", "rm", &bad]).0);
}

#[test]
fn limits_of_the_callers_shell_bind_no_pool() {
    let name = "limits_of_the_callers_shell_bind_no_pool";
    if unavailable(name) || lacks(name, &["bash"]) {
        return;
    }
    let pool = format!("test-shell-{}", std::process::id());
    for words in [&["create", &pool][..], &["set", &pool, "--weight", "50"], &["rm", &pool]] {
        let mut limited = Command::new("bash");
        limited.args(["-c", "ulimit -S -f 0; exec \"$@\"", "bash"]).arg(polylane_tests::binary());
        let output = limited.arg("pool").args(words).output().expect("bash");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}
