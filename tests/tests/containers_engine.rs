//! `polylane container`: containers of images, by the host's OCI runtime, their files on lanes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polylane_tests::host::{
    Host, children, is_obeyed, refusal, service_below, succeeded, text, until,
};
use polylane_tests::killed::{self, STEPS};
use polylane_tests::pool::TRIES_THE_RUN_DIRECTORY;
use polylane_tests::{binary, lacks, unavailable};
use serde_json::{Value, json};

/// What runtimes keep is in one place for all: tests that look there go one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Users of the image.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n";

/// A state directory with images of its own; dropped, its containers are removed.
struct Engine {
    host: Host,
    _alone: MutexGuard<'static, ()>,
}

impl Engine {
    /// `None`: said why.
    fn new(name: &str) -> Option<Engine> {
        if unavailable(name) || lacks(name, &["runc", "busybox"]) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = Engine { host: Host::new(), _alone: alone };
        engine.host.dir("state");
        engine.make_busybox();
        let made = engine.run(&["container", "run", "--rm", "busybox", "true"]);
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            // What a runtime cannot do on a host it says itself.
            assert!(why.contains("the runtime refuses"), "{why}");
            polylane_tests::skip(name, &why);
            return None;
        }
        Some(engine)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.host.command(words).output().expect("polylane")
    }

    /// Its standard output.
    fn succeeds(&self, words: &[&str]) -> String {
        succeeded(words, &self.run(words))
    }

    /// Its exit status and the one line that it said.
    fn refused(&self, words: &[&str]) -> (i32, String) {
        refusal(words, &self.run(words))
    }

    fn containers(&self) -> Vec<Value> {
        let listed = self.succeeds(&["container", "ps", "--all", "--json"]);
        serde_json::from_str(&listed).expect("JSON")
    }

    fn one(&self, name: &str) -> Value {
        let all = self.containers();
        all.into_iter().find(|one| one["name"] == name).unwrap_or(Value::Null)
    }

    fn pid(&self, name: &str) -> u32 {
        self.one(name)["pid"].as_u64().expect("it runs") as u32
    }

    /// An image of a static busybox.
    fn make_busybox(&self) {
        let root = self.host.dir("busybox");
        for place in ["bin", "etc", "tmp", "srv"] {
            fs::create_dir(root.join(place)).expect("mkdir");
        }
        fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("copy");
        for name in [
            "sh", "true", "cat", "ls", "id", "sleep", "env", "pwd", "rm", "hostname", "tty", "stty",
        ] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("link");
        }
        fs::write(root.join("etc/passwd"), PASSWD).expect("write");
        fs::write(root.join("etc/group"), "root:x:0:\nwww:x:34:\nmore:x:50:web\n").expect("write");
        self.succeeds(&["image", "import", text(&root), "busybox"]);
    }

    /// Directories of containers, references of images, mounts, control groups, and what runtimes
    /// keep: nothing is to be left of them.
    fn left(&self) -> Vec<String> {
        let state = self.host.path("state/polylane");
        let mut left = names(&state.join("containers"));
        left.retain(|name| name != "lock");
        left.extend(names(&state.join("images/used")));
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let own = text(&state).to_string();
        left.extend(table.lines().filter(|line| line.contains(&own)).map(str::to_string));
        left.extend(names(Path::new("/run/polylane/containers")));
        left
    }

    fn assert_nothing_is_left(&self, ids: &[String]) {
        until("the container is gone", || self.left().is_empty());
        for id in ids {
            let groups = groups_of(id);
            assert_eq!(groups, Vec::<PathBuf>::new(), "control groups");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for one in self.containers() {
            let _ = self.run(&["container", "rm", "-f", one["id"].as_str().unwrap_or_default()]);
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Control groups of a container, wherever they are.
fn groups_of(id: &str) -> Vec<PathBuf> {
    fn look(dir: &Path, depth: u32, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path());
                } else if depth > 0 {
                    look(&entry.path(), depth - 1, name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    look(Path::new("/sys/fs/cgroup"), 3, id, &mut found);
    found
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

#[test]
fn a_run_has_its_image_its_status_and_leaves_nothing() {
    let Some(engine) = Engine::new("a_run_has_its_image_its_status_and_leaves_nothing") else {
        return;
    };
    let script = "id -u; pwd; cat /etc/hostname; echo x >/new; cat /new; ls -d /proc/1; exit 5";
    let words = ["container", "run", "--rm", "--name", "one", "busybox", "sh", "-c", script];
    let output = engine.run(&words);
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(5), ""), "{said}");
    assert_eq!(said, "0\n/\none\nx\n/proc/1\n");
    engine.assert_nothing_is_left(&[]);
    // What one has changed, the next one does not have.
    let words =
        ["container", "run", "--rm", "busybox", "sh", "-c", "ls /new 2>/dev/null || echo no"];
    assert_eq!(engine.succeeds(&words), "no\n");
    let said = engine.succeeds(&[
        "container",
        "run",
        "--rm",
        "-e",
        "A=b",
        "-u",
        "web",
        "-w",
        "/srv/new",
        "busybox",
        "sh",
        "-c",
        "echo $A $HOME; id; pwd",
    ]);
    assert_eq!(said, "b /srv\nuid=33(web) gid=34(www) groups=50(more)\n/srv/new\n");
    engine.assert_nothing_is_left(&[]);
}

#[test]
fn a_container_is_stopped_and_goes_on_with_its_files() {
    let Some(engine) = Engine::new("a_container_is_stopped_and_goes_on_with_its_files") else {
        return;
    };
    let script = "echo begin; cat /kept 2>/dev/null; echo $$ >/kept; trap 'echo end; exit 7' TERM; \
                  while :; do sleep 0.1; done";
    let words = ["container", "create", "--name", "two", "busybox", "sh", "-c", script];
    assert_eq!(engine.succeeds(&words), "two\n");
    assert_eq!(engine.one("two")["state"], "created");
    engine.succeeds(&["container", "start", "two"]);
    assert_eq!(engine.one("two")["state"], "running");
    let has = |what: &str| engine.succeeds(&["container", "logs", "two"]).contains(what);
    until("it has begun", || has("begin\n"));
    let said =
        engine.run(&["container", "exec", "-e", "A=b", "two", "sh", "-c", "echo $A; exit 3"]);
    assert_eq!((said.status.code(), &*said.stdout), (Some(3), &b"b\n"[..]));
    assert_eq!(engine.refused(&["container", "exec", "two", "nope"]).0, 127);
    assert_eq!(engine.refused(&["container", "exec", "two", "/etc/passwd"]).0, 126);
    assert_eq!(engine.refused(&["container", "rm", "two"]).0, 1);
    assert_eq!(engine.refused(&["container", "start", "two"]).0, 1);
    assert_eq!(engine.refused(&["image", "rm", "busybox"]).0, 1);
    engine.succeeds(&["container", "stop", "two"]);
    let now = engine.one("two");
    assert_eq!((&now["state"], &now["exit_status"]), (&json!("exited"), &json!(7)));
    assert_eq!(engine.succeeds(&["container", "logs", "two"]), "begin\nend\n");
    engine.succeeds(&["container", "start", "two"]);
    until("it has its file", || has("begin\nend\nbegin\n1\n"));
    engine.succeeds(&["container", "kill", "two"]);
    until("it has ended", || engine.one("two")["exit_status"] == 137);
    let all: Value =
        serde_json::from_str(&engine.succeeds(&["container", "inspect", "two"])).unwrap();
    assert_eq!(all[0]["image"], "busybox");
    let id = all[0]["id"].as_str().expect("an identity").to_string();
    engine.succeeds(&["container", "rm", &id[..6]]);
    engine.assert_nothing_is_left(&[id]);
    engine.succeeds(&["image", "rm", "busybox"]);
}

#[test]
fn what_cannot_be_is_one_line_and_leaves_nothing() {
    let Some(engine) = Engine::new("what_cannot_be_is_one_line_and_leaves_nothing") else { return };
    let file = engine.host.path("file");
    fs::write(&file, "").expect("write");
    for (status, words) in [
        (1, "run nope true"),
        (1, "run --runtime nope busybox true"),
        (1, "run --pool nope busybox true"),
        (127, "run busybox nope"),
        (126, "run busybox /etc/passwd"),
        (126, "run busybox /etc"),
        (1, "run -v /nope:/x busybox true"),
        (2, "run -v /tmp:/proc busybox true"),
        (2, "run -v /tmp:/a -v /tmp:/a busybox true"),
        (2, "run -v /tmp:/a/../.. busybox true"),
        (1, "run -v dir:/nope:/x busybox true"),
        (1, "run -u nobody busybox true"),
        (2, "run -w here busybox true"),
        (2, "run --memory 1 busybox true"),
        (2, "run --cpus 0 busybox true"),
        (2, "run --network bridge busybox true"),
        (2, "run --hostname= busybox true"),
        (2, "run --name a/b busybox true"),
        (2, "run -d -t busybox true"),
        (1, "run --runtime /bin/false busybox true"),
        (1, "start nope"),
        (1, "exec nope true"),
        (1, "rm nope"),
        (1, "stop nope"),
        (1, "kill nope"),
        (1, "logs nope"),
        (1, "inspect nope"),
    ] {
        let mut all = vec!["container"];
        all.extend(words.split(' '));
        assert_eq!(engine.refused(&all).0, status, "{words}");
        assert_eq!(engine.left(), Vec::<String>::new(), "{words}");
    }
    for (runtime, words) in [
        ("nope", "nope: no such runtime: install it, or name another with --runtime"),
        ("a\nb", "$'a\\nb': no such runtime: install it"),
        ("/etc/passwd", "/etc/passwd: no such runtime: install it"),
        ("/bin/false", "the runtime refuses, and does not say why"),
    ] {
        let (status, line) =
            engine.refused(&["container", "run", "--runtime", runtime, "busybox", "true"]);
        assert!(status == 1 && line.contains(words), "{runtime}: {status} {line}");
        assert_eq!(engine.left(), Vec::<String>::new(), "{runtime}");
    }
    let (status, line) = engine.refused(&["container", "run", "--pool", "../x", "busybox", "true"]);
    assert!(status == 2 && line.contains("no name of a pool"), "{line}");
    engine.succeeds(&["container", "create", "--name", "a", "busybox", "true"]);
    let (status, line) = engine.refused(&["container", "run", "--name", "a", "busybox", "true"]);
    assert!(status == 1 && line.contains("has that name"), "{line}");
    assert_eq!(engine.refused(&["container", "exec", "a", "true"]).0, 1);
    assert_eq!(engine.refused(&["container", "kill", "a"]).0, 1);
    assert_eq!(engine.containers().len(), 1);
    engine.succeeds(&["container", "rm", "a"]);
    engine.assert_nothing_is_left(&[]);
}

#[test]
fn mounts_limits_and_networks_are_what_was_asked_for() {
    let Some(engine) = Engine::new("mounts_limits_and_networks_are_what_was_asked_for") else {
        return;
    };
    let (own, other) = (engine.host.dir("own"), engine.host.dir("other"));
    fs::write(own.join("there"), "there\n").expect("write");
    let first = format!("{}:/srv/own:ro", text(&own));
    let second = format!("type=bind,source={},target=/other", text(&other));
    let lane = format!("volume:{}:/lane", text(&engine.host.path("lane.img")));
    let script = "cat /srv/own/there; echo x >/srv/own/x 2>/dev/null || echo read-only; \
                  echo new >/other/new; echo lane >>/lane/file; cat /lane/file; \
                  ls /sys/class/net; cd /sys/fs/cgroup; \
                  both() { echo $(cat \"$@\" 2>/dev/null); }; both pids.max pids/pids.max; \
                  both memory.max memory/memory.limit_in_bytes; \
                  both cpu.max cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us";
    let run = || {
        engine.succeeds(&[
            "container",
            "run",
            "--rm",
            "-v",
            &first,
            "--mount",
            &second,
            "-v",
            &lane,
            "--pids",
            "50",
            "--memory",
            "64M",
            "--cpus",
            "0.5",
            "busybox",
            "sh",
            "-c",
            script,
        ])
    };
    assert_eq!(run(), "there\nread-only\nlane\nlo\n50\n67108864\n50000 100000\n");
    assert_eq!(fs::read_to_string(other.join("new")).expect("read"), "new\n");
    // The lane's volume is there for the next one.
    assert!(run().contains("lane\nlane\n"));
    let host = names(Path::new("/sys/class/net"));
    let words =
        ["container", "run", "--rm", "--network", "host", "busybox", "ls", "/sys/class/net"];
    let seen = engine.succeeds(&words);
    assert!(host.iter().all(|name| seen.contains(name)), "{seen}");
    engine.assert_nothing_is_left(&[]);
}

/// No file and no terminal of the host: a mode that is changed there, or a program that is written
/// there, would count on the host. No mount of the host below /sys, or below what is read-only.
#[test]
fn a_container_holds_nothing_of_the_host() {
    let Some(engine) = Engine::new("a_container_holds_nothing_of_the_host") else { return };
    let kinds = "busybox stat -L -c %F /proc/self/fd/1; busybox stat -L -c %F /proc/self/fd/2 1>&2";
    let file = fs::File::create(engine.host.path("out")).expect("create");
    let mut run = engine.host.command(&["container", "run", "--rm", "busybox", "sh", "-c", kinds]);
    run.stdout(file.try_clone().expect("clone")).stderr(file);
    assert!(run.status().expect("run").success());
    let said = fs::read_to_string(engine.host.path("out")).expect("read");
    assert_eq!(said, "fifo\nfifo\n");
    let script = format!("{kinds}; exec sleep 1000");
    engine.succeeds(&["container", "run", "-d", "--name", "log", "busybox", "sh", "-c", &script]);
    let logs = || engine.succeeds(&["container", "logs", "log"]);
    until("both lines are in the log", || logs() == "fifo\nfifo\n");
    assert_eq!(engine.succeeds(&["container", "exec", "log", "sh", "-c", kinds]), "fifo\n");
    engine.succeeds(&["container", "rm", "-f", "log"]);

    let table = ["run", "--rm", "--network", "host", "busybox", "cat", "/proc/self/mountinfo"];
    let table = engine.succeeds(&[&["container"], &table[..]].concat());
    let options = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let (at, options) = (fields.next()?.to_string(), fields.next()?.to_string());
        // Directories of control groups of version 1 lie in a tmpfs of the container's own.
        let is_own = line.contains(" - tmpfs ");
        (!is_own && (at == "/sys" || at.starts_with("/sys/"))).then_some(options)
    };
    let below: Vec<String> = table.lines().filter_map(options).collect();
    assert!(!below.is_empty() && below.iter().all(|one| one.starts_with("ro")), "{table}");

    let dir = engine.host.dir("dir");
    let sub = dir.join("sub");
    fs::create_dir(&sub).expect("mkdir");
    let mount = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&sub).status();
    assert!(mount.expect("mount").success());
    let volume = format!("{}:/data:ro", text(&dir));
    let script = "echo x 2>/dev/null >/data/sub/x || echo read-only";
    let said =
        engine.run(&["container", "run", "--rm", "-v", &volume, "busybox", "sh", "-c", script]);
    let written = sub.join("x").exists();
    assert!(Command::new("umount").arg(&sub).status().expect("umount").success());
    assert_eq!(String::from_utf8_lossy(&said.stdout), "read-only\n");
    assert!(!written, "below a read-only mount");
    engine.assert_nothing_is_left(&[]);
}

/// The kernel shows such a process as a zombie, though it lives and acts.
#[test]
fn a_process_whose_first_thread_has_ended_is_ended() {
    let name = "a_process_whose_first_thread_has_ended_is_ended";
    if lacks(name, &["musl-gcc"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let source = "#include <pthread.h>\n#include <unistd.h>\n\
                  static void *on(void *it) { for (;;) pause(); }\n\
                  int main(void) { pthread_t it;\n\
                  pthread_create(&it, 0, on, 0); pthread_exit(0); }\n";
    fs::write(engine.host.path("first.c"), source).expect("write");
    let dir = engine.host.dir("program");
    let mut build = Command::new("musl-gcc");
    build.args(["-static", "-o"]).arg(dir.join("first")).arg(engine.host.path("first.c"));
    assert!(build.status().expect("musl-gcc").success());
    let volume = format!("{}:/program", text(&dir));
    for ends in [&["stop", "-t", "0"][..], &["rm", "-f"][..]] {
        let run = ["run", "-d", "--name", "first", "-v", &volume, "busybox", "/program/first"];
        engine.succeeds(&[&["container"], &run[..]].concat());
        let pid = engine.pid("first");
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        until("its first thread has ended", || stat().contains(") Z "));
        assert_eq!(engine.one("first")["state"], "running");
        engine.succeeds(&[&["container"], ends, &["first"]].concat());
        until("it has ended", || !Path::new(&format!("/proc/{pid}/task")).exists());
        let _ = engine.run(&["container", "rm", "-f", "first"]);
    }
    engine.assert_nothing_is_left(&[]);
}

#[test]
fn what_cannot_be_read_or_executed_keeps_nobody_from_other_containers() {
    let name = "what_cannot_be_read_or_executed_keeps_nobody_from_other_containers";
    let Some(engine) = Engine::new(name) else { return };
    let variables: Vec<String> = (0..5000).map(|number| format!("V{number}=")).collect();
    let mut words = vec!["container", "create"];
    words.extend(variables.iter().flat_map(|text| ["-e", text]));
    words.extend(["busybox", "true"]);
    let (status, said) = engine.refused(&words);
    assert!(status == 1 && said.contains("4096"), "{status} {said}");
    let broken = engine.host.path("state/polylane/containers/0123456789abcdef");
    fs::create_dir(&broken).expect("mkdir");
    fs::write(broken.join("record.json"), "no record").expect("write");
    assert_eq!(engine.succeeds(&["container", "run", "--rm", "busybox", "hostname"]).len(), 11);
    fs::remove_dir_all(&broken).expect("rm");
    engine.assert_nothing_is_left(&[]);
}

/// Making one may take long, as where an image is copied to a cluster.
#[test]
fn a_name_is_taken_as_long_as_a_command_makes_its_container() {
    let Some(engine) = Engine::new("a_name_is_taken_as_long_as_a_command_makes_its_container")
    else {
        return;
    };
    let create = ["container", "create", "--name", "new", "busybox", "true"];
    engine.succeeds(&create);
    let id = engine.one("new")["id"].as_str().expect("an identity").to_string();
    let place = engine.host.path("state/polylane/containers").join(&id);
    // As if its command had come only so far.
    let lock = fs::File::open(place.join("lock")).expect("its lock");
    lock.lock().expect("free");
    let record = fs::read_to_string(place.join("record.json")).expect("its record");
    let making = record.replace("\"ready\"", "\"making\"");
    assert_ne!(making, record);
    fs::write(place.join("record.json"), making).expect("write");
    let (status, said) = engine.refused(&create);
    assert!(status == 1 && said.contains("new: a container has that name"), "{status} {said}");
    assert!(engine.containers().is_empty(), "it is not there yet");
    drop(lock);
    engine.succeeds(&create);
    assert_ne!(engine.one("new")["id"], id.as_str(), "what was killed is removed");
    engine.succeeds(&["container", "rm", "new"]);
    engine.assert_nothing_is_left(&[id]);
}

#[test]
fn what_a_kill_leaves_the_next_command_uses_or_removes() {
    let Some(engine) = Engine::new("what_a_kill_leaves_the_next_command_uses_or_removes") else {
        return;
    };
    let run = [
        "container",
        "run",
        "-d",
        "--name",
        "k",
        "busybox",
        "sh",
        "-c",
        "while :; do sleep 0.1; done",
    ];
    // The engine, at any moment of its work.
    let mut ids = Vec::new();
    for step in 0..16_u64 {
        let mut child = engine
            .host
            .command(&run)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        std::thread::sleep(std::time::Duration::from_millis(step * 25));
        let _ = child.kill();
        let _ = child.wait();
        // Who waits for it goes on, and is another process.
        let listed = engine.containers();
        ids.extend(listed.iter().filter_map(|one| one["id"].as_str().map(str::to_string)));
        if !listed.is_empty() {
            engine.succeeds(&["container", "rm", "-f", "k"]);
        }
        let left = || {
            engine.containers();
            engine.left()
        };
        until(&format!("step {step}: nothing is left: {:?}", left()), || left().is_empty());
    }
    assert!(!ids.is_empty(), "none of them came far enough");
    // Who waits for a container: it runs on, and what it says is kept.
    engine.succeeds(&run);
    let pid = engine.pid("k");
    let watcher = parent_of(pid);
    kill(watcher);
    assert_eq!(engine.pid("k"), pid);
    engine.succeeds(&["container", "exec", "k", "true"]);
    engine.succeeds(&["container", "stop", "-t", "0", "k"]);
    assert_eq!(engine.one("k")["state"], "exited");
    engine.succeeds(&["container", "start", "k"]);
    // Its service: the container goes on.
    let pid = engine.pid("k");
    kill(service_of(&engine));
    let words = ["container", "exec", "k", "sh", "-c", "echo x >/after && cat /after"];
    assert_eq!(engine.succeeds(&words), "x\n");
    assert_eq!(engine.pid("k"), pid);
    // Its first process.
    kill(engine.pid("k"));
    until("it has ended", || engine.one("k")["exit_status"] == 137);
    ids.extend(engine.one("k")["id"].as_str().map(str::to_string));
    engine.succeeds(&["container", "rm", "k"]);
    engine.assert_nothing_is_left(&ids);
}

fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    line.trim().parse().expect("a number")
}

fn service_of(engine: &Engine) -> u32 {
    service_now(engine).expect("a service")
}

fn service_now(engine: &Engine) -> Option<u32> {
    let lanes = engine.host.mounts();
    let supervisor = lanes[0]["supervisor"].as_u64().expect("a number") as u32;
    service_below(supervisor)
}

#[test]
fn sixty_four_containers_of_an_image_run_at_once() {
    const COUNT: usize = 64;
    let test = "sixty_four_containers_of_an_image_run_at_once";
    let Some(engine) = Engine::new(test) else { return };
    // A service, a supervisor, a runtime's monitor and the container's own processes.
    if available_memory_kib() < COUNT as u64 * (64 << 10) {
        return polylane_tests::skip(test, "less than 4 GiB of memory are available");
    }
    let started: Vec<_> = (0..COUNT)
        .map(|number| {
            let name = format!("n{number}");
            let script = format!("echo {number} >/own; cat /own; while :; do sleep 60; done");
            let words = ["container", "run", "-d", "--name", &name, "busybox", "sh", "-c", &script];
            engine
                .host
                .command(&words)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("spawn")
        })
        .collect();
    for child in started {
        let output = child.wait_with_output().expect("wait");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let all = engine.containers();
    assert_eq!(all.iter().filter(|one| one["state"] == "running").count(), COUNT, "{all:?}");
    for number in 0..COUNT {
        let logs = || engine.succeeds(&["container", "logs", &format!("n{number}")]);
        until("it has said its number", || logs() == format!("{number}\n"));
    }
    let ids: Vec<String> =
        all.iter().filter_map(|one| one["id"].as_str().map(str::to_string)).collect();
    let mut words = vec!["container", "rm", "-f"];
    words.extend(ids.iter().map(String::as_str));
    engine.succeeds(&words);
    engine.assert_nothing_is_left(&ids);
}

/// What programs that start can have, as the kernel estimates it.
fn available_memory_kib() -> u64 {
    let all = fs::read_to_string("/proc/meminfo").expect("/proc");
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("said");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn programs_of_a_container_have_the_fast_way() {
    let name = "programs_of_a_container_have_the_fast_way";
    if polylane_tests::pool::no_library(name) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    // The host's own C library and two of its programs.
    for program in ["cat", "dd"] {
        let path = format!("/bin/{program}");
        fs::remove_file(root.join(&path[1..])).ok();
        fs::copy(&path, root.join(&path[1..])).expect("copy");
        copy_libraries(Path::new(&path), &root);
    }
    copy_libraries(&binary().with_file_name("libpolylane.so"), &root);
    engine.succeeds(&["image", "import", text(&root), "glibc"]);
    let script = "for i in 1 2 3 4 5 6 7 8; do /bin/dd if=/bin/busybox of=/x$i bs=4k count=8 \
                  2>/dev/null; /bin/cat /x$i >/dev/null; done; \
                  /bin/cat /etc/hostname /proc/self/comm";
    let words = |name: &'static str, more: &'static str| {
        vec!["container", "run", "-d", "--name", name, "-e", more, "glibc", "sh", "-c"]
    };
    let long = format!("{script}; while :; do sleep 0.1; done");
    let mut fast = words("fast", "POLYLANE_PATIENCE=0");
    fast.push(&long);
    engine.succeeds(&fast);
    until("it is through", || {
        engine.succeeds(&["container", "logs", "fast"]).ends_with("fast\ncat\n")
    });
    let mount = &engine.host.mounts()[0];
    let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
    let stats = engine.succeeds(&["stats", "--json", "--pool", &lane]);
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    let seen = &stats[0]["service"]["shared_memory"];
    // A part of what is written goes by pages that the library may write to.
    assert!(seen["written_bytes"].as_u64() > Some(0), "{seen}");
    assert!(seen["read_bytes"].as_u64() > Some(0), "{seen}");
    engine.succeeds(&["container", "rm", "-f", "fast"]);
    let slow = engine.succeeds(&[
        "container",
        "run",
        "--rm",
        "--name",
        "fast",
        "--no-preload",
        "glibc",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(slow, "fast\ncat\n");
    engine.assert_nothing_is_left(&[]);
}

/// Tells who it runs as.
const TELLS: &str = "#include <stdio.h>\n#include <unistd.h>\n\
     int main(void) { return printf(\"%d %d\\n\", (int)getuid(), (int)geteuid()) < 0; }\n";

/// Set-id programs of an image, and those that a container makes, run as who owns them.
#[test]
fn set_id_programs_work_in_a_container() {
    let name = "set_id_programs_work_in_a_container";
    if lacks(name, &["gcc"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    fs::write(engine.host.path("tells.c"), TELLS).expect("write");
    let program = root.join("bin/tells");
    let mut gcc = Command::new("gcc");
    gcc.args(["-static", "-o"]).arg(&program).arg(engine.host.path("tells.c"));
    assert!(gcc.status().expect("gcc").success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    engine.succeeds(&["image", "import", text(&root), "set-id"]);
    let run = ["container", "run", "--rm"];
    let told = engine.succeeds(&[&run[..], &["-u", "web", "set-id", "/bin/tells"]].concat());
    assert_eq!(told, "33 0\n");
    let makes = "cat /bin/tells >/srv/own; /bin/busybox chmod 4755 /srv/own; \
                 exec /bin/busybox su web -c /srv/own";
    let told = engine.succeeds(&[&run[..], &["set-id", "sh", "-c", makes]].concat());
    assert_eq!(told, "33 0\n");
    engine.assert_nothing_is_left(&[]);
}

#[test]
fn the_library_and_the_socket_are_a_containers_to_use_and_not_to_change() {
    let name = "the_library_and_the_socket_are_a_containers_to_use_and_not_to_change";
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    engine.succeeds(&["image", "import", text(&root), "tries"]);
    let run = ["container", "run", "--rm", "-e", "MOUNT=", "tries", "sh", "-c"];
    let told = engine.succeeds(&[&run[..], &[TRIES_THE_RUN_DIRECTORY]].concat());
    assert_eq!(told, "done\n");
    engine.assert_nothing_is_left(&[]);
}

/// The libraries of a program, with the linker, where it looks for them.
fn copy_libraries(program: &Path, root: &Path) {
    let output = Command::new("ldd").arg(program).output().expect("ldd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for path in text.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(&path[1..]);
        fs::create_dir_all(to.parent().expect("a directory")).expect("mkdir");
        fs::copy(path, &to).expect("copy");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
}

/// A container's programs, by FUSE and with the library: one that does exactly what it should while
/// its service is killed at random moments. What it has synced is there afterwards.
const EXACT: &str = r#"
exec 3</etc/passwd 4>>/log
n=0
until [ -e /stop ]; do
    n=$((n + 1))
    echo $n >/f$n && sync /f$n && cat /f$n >/dev/null || echo bad $n >>/bad
    mv /f$n /g$n && rm /g$n || echo moved $n >>/bad
    echo $n >&4 && sync /log || { echo appended $n >>/bad; exec 4>>/log; }
    read line <&3 || { echo closed $n >>/bad; }
    exec 3</etc/passwd
    ls /bin >/dev/null || echo listed $n >>/bad
done
echo n $n; cat /bad 2>/dev/null; exit 9
"#;

#[test]
fn a_container_goes_on_when_its_service_is_killed() {
    let name = "a_container_goes_on_when_its_service_is_killed";
    let Some(engine) = Engine::new(name) else { return };
    for applet in ["mv", "sync", "touch"] {
        let link = engine.host.path("busybox/bin").join(applet);
        std::os::unix::fs::symlink("busybox", link).expect("link");
    }
    engine.succeeds(&["image", "import", text(&engine.host.path("busybox")), "exact"]);
    engine.succeeds(&["container", "run", "-d", "--name", "e", "exact", "sh", "-c", EXACT]);
    let pid = engine.pid("e");
    let mut rng = polylane_base::rng::Rng::new(u64::from(std::process::id()));
    for round in 0..8 {
        std::thread::sleep(std::time::Duration::from_millis(100 + rng.below(600)));
        let before = service_of(&engine);
        kill(before);
        until("there is another service", || service_now(&engine).is_some_and(|it| it != before));
        assert_eq!(engine.pid("e"), pid, "round {round}");
    }
    engine.succeeds(&["container", "exec", "e", "touch", "/stop"]);
    until("it ends", || engine.one("e")["state"] == "exited");
    let said = engine.succeeds(&["container", "logs", "e"]);
    // Before it: what programs said of names and bytes that went with a service.
    let (before, rest) = said.split_once("\nn ").unwrap_or(("", said.trim_start_matches("n ")));
    let (first, rest) = rest.split_once('\n').expect("a line");
    let count: u64 = first.parse().unwrap_or_else(|_| panic!("a number: {said}"));
    assert!(before.lines().count() < 100, "{before}");
    // The shell's own open log lost bytes when the kill came between its write and its sync.
    let lost = |line: &str| ["bad", "appended", "moved"].iter().any(|what| line.starts_with(what));
    assert!(rest.lines().all(lost) && rest.lines().count() < 40, "{rest}");
    assert!(count > 20, "{count} rounds only");
    assert_eq!(engine.one("e")["exit_status"], 9);
    engine.succeeds(&["container", "rm", "e"]);
    engine.assert_nothing_is_left(&[]);
}

/// Runs its words on a terminal of 33 lines, says to them what comes after `--`, and prints what
/// they say.
const TERMINAL: &str = r##"
import fcntl, os, pty, struct, sys, termios
words, text = sys.argv[1:sys.argv.index("--")], sys.argv[-1]
pid, fd = pty.fork()
if pid == 0:
    # Until the size is set.
    sys.stdin.readline()
    os.execvp(words[0], words)
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("hhhh", 33, 77, 0, 0))
os.write(fd, b"\n")
said = b""
def until(end):
    global said
    while end not in said:
        try:
            more = os.read(fd, 4096)
        except OSError:
            return
        if not more:
            return
        said += more
until(b"# ")
os.write(fd, text.encode() + b"\n")
until(b"nothing that ever comes")
print(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"##;

#[test]
fn terminals_work_by_each_runtime() {
    let name = "terminals_work_by_each_runtime";
    if lacks(name, &["python3"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let on_terminal = |words: &[&str], text: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", TERMINAL]).arg(binary()).args(words).args(["--", text]);
        command.env("XDG_STATE_HOME", engine.host.path("state")).stdin(Stdio::null());
        let output = command.output().expect("python3");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said, errors)
    };
    let text = "tty; stty size; echo sum $((40 + 2)); exit 7";
    for runtime in ["runc", "crun"] {
        if lacks(&format!("{name}, {runtime}"), &[runtime]) {
            continue;
        }
        let words = ["container", "run", "--rm", "--runtime", runtime, "busybox", "true"];
        let plain = engine.run(&words);
        if !plain.status.success() {
            let why = String::from_utf8_lossy(&plain.stderr).into_owned();
            // crun has words for what it cannot do on a host.
            assert!(runtime == "crun" && why.contains("not supported"), "{why}");
            polylane_tests::skip(&format!("{name}, {runtime}"), &why);
            continue;
        }
        let words = ["container", "run", "-it", "--rm", "--runtime", runtime, "busybox", "sh"];
        let (status, said, errors) = on_terminal(&words, text);
        assert_eq!(status, Some(7), "{runtime}: {said} {errors}");
        for part in ["/dev/pts/0", "33 77", "sum 42"] {
            assert!(said.contains(part), "{runtime}, {part}: {said}");
        }
        engine.assert_nothing_is_left(&[]);
        let words =
            ["container", "run", "-d", "--name", "t", "--runtime", runtime, "busybox", "sleep"];
        engine.succeeds(&[&words[..], &["1000"]].concat());
        let (status, said, errors) = on_terminal(&["container", "exec", "-it", "t", "sh"], text);
        assert_eq!(status, Some(7), "{runtime}, exec: {said} {errors}");
        for part in ["/dev/pts/0", "sum 42"] {
            assert!(said.contains(part), "{runtime}, exec, {part}: {said}");
        }
        // Without a terminal, what is told to it comes through.
        let mut piped = engine.host.command(&["container", "exec", "-i", "t", "cat"]);
        let mut child =
            piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("polylane");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"word").expect("said");
        assert_eq!(child.wait_with_output().expect("ends").stdout, b"word", "{runtime}");
        engine.succeeds(&["container", "rm", "-f", "t"]);
        engine.assert_nothing_is_left(&[]);
    }
}

/// Changes what its image has, then counts as long as it runs.
const COUNTS: &str = "rm /etc/group; echo more >>/etc/passwd; mkdir /new; echo there >/new/file; \
     busybox dd if=/dev/urandom of=/new/large bs=64k count=40 2>/dev/null; echo through; n=0; \
     while :; do n=$((n + 1)); echo $n; sleep 0.02; done";

impl Engine {
    /// The last number that a container which counts has said.
    fn counted(&self, name: &str) -> u64 {
        let said = self.succeeds(&["container", "logs", name]);
        said.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
    }

    /// Waits until it has counted on.
    fn counts_on(&self, name: &str) {
        let before = self.counted(name);
        until("it counts on", || self.counted(name) > before);
    }

    /// An image has what the container that counts has changed.
    fn assert_changed(&self, image: &str) {
        let script = "ls /etc; cat /etc/passwd /new/file; busybox stat -c %s /new/large";
        let said = self.succeeds(&["container", "run", "--rm", image, "sh", "-c", script]);
        assert_eq!(said, format!("hostname\nhosts\npasswd\n{PASSWD}more\nthere\n2621440\n"));
    }
}

/// `podman`, with a store of its own.
fn podman(engine: &Engine, words: &[&str]) -> Command {
    let mut command = Command::new("podman");
    for (option, dir) in [("--root", "podman"), ("--runroot", "podman-run")] {
        command.arg(option).arg(engine.host.path(dir));
    }
    command
        .args(["--cgroup-manager", "cgroupfs", "--runtime", "runc"])
        .args(words)
        .stdin(Stdio::null());
    command
}

/// What a container has changed becomes a layer, and an image that other engines load, while it
/// runs: it is paused meanwhile, and goes on also where the command is killed.
#[test]
fn what_a_running_container_changed_becomes_an_image() {
    let name = "what_a_running_container_changed_becomes_an_image";
    let Some(engine) = Engine::new(name) else { return };
    let archive = |name: &str| engine.host.path(name).to_str().expect("UTF-8").to_string();
    engine.succeeds(&["container", "create", "--name", "never", "busybox", "true"]);
    let layer = archive("layer.tar");
    let refused = engine.refused(&["image", "diff", "never", "-o", &layer]).1;
    assert!(refused.contains("never started"), "{refused}");
    engine.succeeds(&["container", "rm", "never"]);
    engine.succeeds(&["container", "run", "-d", "--name", "live", "busybox", "sh", "-c", COUNTS]);
    until("it is through", || engine.counted("live") > 0);

    engine.succeeds(&["image", "diff", "live", "-o", &layer]);
    engine.counts_on("live");
    let listed = Command::new("tar").args(["-tf", &layer]).output().expect("tar").stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    for member in ["etc/.wh.group", "etc/passwd", "new/file", "new/large"] {
        assert!(listed.lines().any(|line| line == member), "{member}: {listed}");
    }
    assert!(!listed.contains("bin/"), "only what was changed: {listed}");
    for (how, image) in [("none", "changed:plain"), ("gzip", "changed:gz"), ("zstd", "c/d:zst")] {
        let file = archive(how);
        engine.succeeds(&["image", "diff", "live", "--as", image, "--compress", how, "-o", &file]);
        engine.counts_on("live");
        assert_eq!(engine.succeeds(&["image", "import", &file]), format!("{image}\n"));
        engine.assert_changed(image);
    }
    assert_eq!(engine.refused(&["image", "diff", "live", "--as", "-", "-o", "x"]).0, 1);

    // Killed while it writes to what nobody reads: the container goes on.
    let mut diff = engine.host.command(&["image", "diff", "live", "-o", "-"]);
    let mut diff = diff.stdout(Stdio::piped()).spawn().expect("polylane");
    let mut byte = [0];
    let out = diff.stdout.as_mut().expect("piped");
    std::io::Read::read_exact(out, &mut byte).expect("the first byte");
    // What it said before may be on its way to the log.
    until("it is paused", || {
        let counted = engine.counted("live");
        std::thread::sleep(std::time::Duration::from_millis(200));
        engine.counted("live") == counted
    });
    diff.kill().expect("kill");
    diff.wait().expect("wait");
    engine.counts_on("live");

    // One that has ended: the same bytes whenever they are asked for.
    engine.succeeds(&["container", "stop", "-t", "0", "live"]);
    let [one, other] = ["one", "other"].map(archive);
    for file in [&one, &other] {
        engine.succeeds(&["image", "diff", "live", "--as", "end", "-o", file]);
    }
    assert!(fs::read(&one).expect("read") == fs::read(&other).expect("read"), "other bytes");
    engine.succeeds(&["container", "rm", "live"]);
    engine.assert_nothing_is_left(&[]);
}

/// A runtime that takes its time to pause a container, and notes when it has paused or resumed one.
const SLOW: &str = r#"#!/bin/sh
case " $* " in
*" pause "*) word=pause; echo begins >>"$0.log"; until [ -e "$0.goes" ]; do sleep 0.05; done ;;
*" resume "*) word=resume ;;
*) exec runc "$@" ;;
esac
runc "$@"
status=$?
echo "$word" >>"$0.log"
exit $status
"#;

/// A diff that is killed while the runtime pauses the container leaves none paused.
#[test]
fn a_diff_that_is_killed_as_it_pauses_a_container_leaves_none_paused() {
    let name = "a_diff_that_is_killed_as_it_pauses_a_container_leaves_none_paused";
    let Some(engine) = Engine::new(name) else { return };
    let program = engine.host.program("slow", SLOW);
    let noted = |word: &str| {
        let log = fs::read_to_string(engine.host.path("slow.log")).unwrap_or_default();
        log.lines().any(|line| line == word)
    };
    let words = ["container", "run", "-d", "--name", "live", "--runtime", text(&program)];
    engine.succeeds(&[&words[..], &["busybox", "sh", "-c", COUNTS]].concat());
    until("it is through", || engine.counted("live") > 0);
    let layer = engine.host.path("layer");
    let mut diff = engine.host.command(&["image", "diff", "live", "-o", text(&layer)]);
    let mut diff = diff.spawn().expect("polylane");
    until("the runtime begins to pause it", || noted("begins"));
    diff.kill().expect("kill");
    diff.wait().expect("wait");
    fs::write(engine.host.path("slow.goes"), "").expect("write");
    until("it was paused and resumed", || noted("pause") && noted("resume"));
    engine.counts_on("live");
    engine.succeeds(&["container", "rm", "-f", "live"]);
    engine.assert_nothing_is_left(&[]);
}

/// An image with what a container changed is podman's as well, by each of the two forms that an
/// archive has; what podman saves is the same image.
#[test]
fn an_image_of_a_container_goes_to_podman_and_comes_back() {
    let name = "an_image_of_a_container_goes_to_podman_and_comes_back";
    if lacks(name, &["podman"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let path = |name: &str| engine.host.path(name).to_str().expect("UTF-8").to_string();
    let words = ["container", "run", "--name", "c", "busybox", "sh", "-c"];
    engine.succeeds(&[&words[..], &["echo there >/new; rm /etc/group"]].concat());
    let archive = path("changed.tar");
    let diff = ["image", "diff", "c", "--as", "changed:1", "--compress", "gzip", "-o", &archive];
    engine.succeeds(&diff);
    engine.succeeds(&["container", "rm", "c"]);
    engine.succeeds(&["image", "import", &archive]);
    let identity = |name: &str| {
        let all = engine.succeeds(&["image", "ls", "--json"]);
        let all: Vec<Value> = serde_json::from_str(&all).expect("JSON");
        let found = all.into_iter().find(|one| one["name"] == name).expect("an image");
        found["id"].as_str().expect("text").to_string()
    };
    let id = identity("changed:1");
    // As `docker load` reads it.
    let (docker, files) = (path("docker.tar"), path("docker"));
    fs::create_dir(&files).expect("mkdir");
    for words in [&["-xf", &archive][..], &["-cf", &docker, "manifest.json", "blobs"]] {
        assert!(
            Command::new("tar").args(["-C", &files]).args(words).status().expect("tar").success()
        );
    }
    engine.succeeds(&["image", "import", &docker, "docker:1"]);
    assert_eq!(identity("docker:1"), id);
    for (form, source) in [("as-oci", &archive), ("as-docker", &docker)] {
        let loaded = podman(&engine, &["load", "-i", source]).output().expect("podman");
        let said = String::from_utf8_lossy(&loaded.stderr).into_owned();
        assert!(loaded.status.success(), "{form}: {said}");
        let run = ["run", "--rm", "--network", "none", "--ulimit", "nofile=99:99", "--ulimit"];
        let run = [&run[..], &["nproc=99:99", "changed:1", "sh", "-c"]].concat();
        let script = "cat /new; ls /etc/group 2>/dev/null || echo none";
        let run = podman(&engine, &[&run[..], &[script]].concat()).output().expect("podman");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&run.stdout), "there\nnone\n", "{form}: {said}");
        let saved = path(form);
        let save = ["save", "--format", "oci-archive", "-o", &saved, "changed:1"];
        assert!(podman(&engine, &save).status().expect("podman").success());
        engine.succeeds(&["image", "import", &saved, form]);
        // podman writes its own configuration for what came in docker's form.
        assert!(form == "as-docker" || identity(form) == id, "{form}");
        assert!(podman(&engine, &["rmi", "changed:1"]).status().expect("podman").success());
    }
    engine.assert_nothing_is_left(&[]);
}

/// A runtime that is killed as long after its start as the first line of a file says, in seconds.
const KILLED: &str = r#"#!/bin/sh
case " $* " in *" run "*) ;; *) exec runc "$@" ;; esac
runc "$@" &
pid=$!
sleep "$(cat "$0.after")"
kill -9 "$pid" 2>/dev/null
wait "$pid"
"#;

/// The runtime, killed at any moment of a start: one line or a container that runs, and nothing is
/// left once it is removed.
#[test]
fn a_runtime_that_is_killed_leaves_nothing_behind() {
    let name = "a_runtime_that_is_killed_leaves_nothing_behind";
    let Some(engine) = Engine::new(name) else { return };
    let program = engine.host.program("killed", KILLED);
    let (mut refused, mut ran) = (0, 0);
    let mut ids = Vec::new();
    for step in 0..14_u64 {
        let after = format!("{:.3}\n", (step * step) as f64 / 400.0);
        fs::write(engine.host.path("killed.after"), &after).expect("write");
        let words = ["container", "create", "--name", "k", "--runtime", text(&program)];
        engine.succeeds(&[&words[..], &["busybox", "sleep", "1000"]].concat());
        ids.extend(engine.one("k")["id"].as_str().map(str::to_string));
        let output = engine.run(&["container", "start", "k"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.success() {
            true => ran += 1,
            false => {
                refused += 1;
                assert_eq!(said.matches('\n').count(), 1, "{after}: {said}");
            }
        }
        engine.succeeds(&["container", "rm", "-f", "k"]);
        engine.assert_nothing_is_left(&ids);
    }
    assert!(refused > 1, "{refused} starts were cut off, {ran} were not");
}

/// A pool's limits are its tenant's: who waits for a container is in its caller's groups.
#[test]
fn who_waits_for_a_container_is_not_in_its_pool() {
    let name = "who_waits_for_a_container_is_not_in_its_pool";
    let Some(engine) = Engine::new(name) else { return };
    let pool = engine.host.pool("waits");
    engine.succeeds(&["pool", "create", &pool, "--memory", "200M"]);
    let words = ["container", "run", "-d", "--name", "w", "--pool", &pool, "busybox"];
    engine.succeeds(&[&words[..], &["sleep", "1000"]].concat());
    let pid = engine.pid("w");
    let groups = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("groups");
    let own = groups(pid);
    assert!(own.lines().any(|line| line.contains(&pool)), "{own}");
    assert_eq!(groups(parent_of(pid)), groups(std::process::id()));
    engine.succeeds(&["container", "rm", "-f", "w"]);
    engine.assert_nothing_is_left(&[]);
    engine.succeeds(&["pool", "rm", &pool]);
}

/// Roots of a pool's containers over one image are instances of one service, which all of them
/// survive; those of no pool have services of their own.
#[test]
fn containers_of_a_pool_have_one_service() {
    let name = "containers_of_a_pool_have_one_service";
    let Some(engine) = Engine::new(name) else { return };
    let pool = engine.host.pool("instances");
    engine.succeeds(&["pool", "create", &pool]);
    let services = |pool: &str| {
        let listed = engine.succeeds(&["stats", "--json"]);
        let all: Vec<Value> = serde_json::from_str(&listed).expect("JSON");
        let own = format!("{pool}@");
        let is_own = |one: &&Value| one["pool"].as_str().is_some_and(|name| name.starts_with(&own));
        all.iter().filter(is_own).map(|one| one["service_pid"].clone()).collect::<Vec<_>>()
    };
    let mounted = engine.host.dir("mounted");
    fs::write(mounted.join("file"), "of the host\n").expect("write");
    let mounted = format!("{}:/new/dir", text(&mounted));
    for container in ["one", "two", "three"] {
        let into = ["--name", container, "--pool", &pool, "-v", &mounted, "busybox"];
        let words = [&["container", "run", "-d"][..], &into].concat();
        engine.succeeds(&[&words[..], &["sh", "-c", "echo $HOSTNAME >/own; sleep 1000"]].concat());
    }
    let service = services(&pool);
    assert_eq!(service.len(), 1, "{service:?}");
    engine.succeeds(&["container", "run", "-d", "--name", "beside", "busybox", "sleep", "1000"]);
    assert_eq!(services(&pool), service, "one of no pool is not in it");
    let read = |container: &str, file: &str| {
        engine.succeeds(&["container", "exec", container, "cat", file])
    };
    let said = ["one", "two", "three"].map(|container| read(container, "/own"));
    assert!(said[0] != said[1] && said[1] != said[2], "{said:?}");
    // The image has no /proc: what the runtime mounts on is durable once a container runs.
    kill(service[0].as_u64().expect("a process") as u32);
    until("the next service", || services(&pool).iter().all(|pid| *pid != service[0]));
    for container in ["one", "two", "three"] {
        assert_eq!(read(container, "/etc/passwd"), PASSWD);
        assert_eq!(read(container, "/proc/1/comm"), "sleep\n");
        assert_eq!(read(container, "/new/dir/file"), "of the host\n");
    }
    // One that goes leaves the others, the first among them.
    engine.succeeds(&["container", "rm", "-f", "one"]);
    assert_eq!(read("two", "/etc/passwd"), PASSWD);
    engine.succeeds(&["container", "rm", "-f", "two", "three", "beside"]);
    engine.assert_nothing_is_left(&[]);
    engine.succeeds(&["pool", "rm", &pool]);
}

/// Records in a state directory say which programs are executed: it is the caller's own.
#[test]
fn a_state_directory_of_another_user_is_refused() {
    let name = "a_state_directory_of_another_user_is_refused";
    if unavailable(name) {
        return;
    }
    let host = Host::new();
    let theirs = host.dir("theirs");
    std::os::unix::fs::chown(&theirs, Some(1001), Some(1001)).expect("chown");
    for words in [&["container", "ps"][..], &["image", "ls"], &["pool", "create", "x"]] {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", theirs.join("state")).stdin(Stdio::null());
        let output = command.output().expect("polylane");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {said}");
        assert!(said.contains("user 1001") && said.matches('\n').count() == 1, "{words:?}: {said}");
    }
    assert!(names(&theirs).is_empty(), "nothing is made there");
}

#[test]
fn what_a_container_was_told_is_shown_and_not_obeyed() {
    let Some(engine) = Engine::new("what_a_container_was_told_is_shown_and_not_obeyed") else {
        return;
    };
    let word = "\u{1b}[31mred\u{7}\nfake line";
    engine.succeeds(&["container", "run", "-d", "--name", "told", "busybox", "sleep", "60", word]);
    for words in [&["ps", "-a"][..], &["ps", "-a", "--json"], &["inspect", "told"]] {
        let shown = engine.succeeds(&[&["container"], words].concat());
        assert!(!is_obeyed(&shown) && !shown.contains("\nfake"), "{words:?}: {shown:?}");
    }
    for name in [word, "no\u{1b}]0;x\u{7}ne"] {
        let (_, said) = engine.refused(&["container", "inspect", name]);
        assert!(!is_obeyed(&said), "{said:?}");
    }
    engine.succeeds(&["container", "rm", "-f", "told"]);
}

/// A container that is run, and removed, while any of its processes is killed before any of its
/// steps: engine, watcher, runtime, the commands that mount its lane, and what serves it.
struct Steps<'a> {
    engine: &'a Engine,
    log: PathBuf,
    ids: Vec<String>,
    rounds: usize,
    hits: usize,
}

const RUN_K: [&str; 8] = ["container", "run", "-d", "--name", "k", "busybox", "sleep", "1000"];
const REMOVE_K: [&str; 4] = ["container", "rm", "-f", "k"];

impl Steps<'_> {
    /// Traces what the words start, and these processes, until that has ended or `done`.
    fn trace(&self, mut tracer: Command, pids: &[u32], words: &[&str], done: impl Fn() -> bool) {
        for pid in pids {
            tracer.args(["-p", &pid.to_string()]);
        }
        tracer.arg(binary()).args(words).env("XDG_STATE_HOME", self.engine.host.path("state"));
        let mut tracer = tracer.spawn().expect("strace");
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && !done() && !killed::ends_within(&mut tracer, TICK) {}
        killed::end_tracer(tracer);
    }

    /// The process that runs when this is asked for.
    fn processes(&self) -> Vec<u32> {
        let lanes = self.engine.host.mounts();
        let lane = lanes.iter().filter_map(|lane| lane["supervisor"].as_u64());
        let supervisors: Vec<u32> = lane.map(|pid| pid as u32).collect();
        let below = supervisors.iter().filter_map(|pid| children(*pid)).flatten();
        let below: Vec<u32> = below.collect();
        let watcher = parent_of(self.engine.pid("k"));
        supervisors.into_iter().chain(below).chain([watcher]).collect()
    }

    fn run_whole(&self) {
        self.engine.succeeds(&RUN_K);
    }

    /// The next commands make something of whatever was left, and it can be removed.
    fn is_usable(&mut self, shown: &str) {
        let hits = killed::killed_in(&self.log);
        let shown = format!("round {}, {hits} killed: {shown}", self.rounds);
        let listed = self.engine.containers();
        self.ids.extend(listed.iter().filter_map(|one| one["id"].as_str().map(str::to_string)));
        if self.engine.one("k")["state"] == "running" {
            let output = self.engine.run(&["container", "exec", "k", "true"]);
            // One that has just been removed is not there, or its first process has ended.
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.lines().count() <= 1, "{shown}: {said}");
        }
        if !self.engine.containers().is_empty() {
            self.engine.succeeds(&REMOVE_K);
        }
        let left = || {
            self.engine.containers();
            self.engine.left()
        };
        until(&format!("{shown}: nothing is left: {:?}", left()), || left().is_empty());
        self.engine.succeeds(&["container", "run", "--rm", "--name", "k", "busybox", "true"]);
        self.rounds += 1;
        self.hits += usize::from(hits > 0);
    }
}

const TICK: Duration = Duration::from_millis(50);

#[test]
fn a_container_of_which_any_process_was_killed_at_a_step_is_run_or_removed() {
    let name = "a_container_of_which_any_process_was_killed_at_a_step_is_run_or_removed";
    if killed::cannot_trace(name) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let log = engine.host.path("log");
    let mut steps = Steps { engine: &engine, log, ids: Vec::new(), rounds: 0, hits: 0 };
    let seed = killed::seed();
    let random = &mut polylane_base::rng::Rng::new(seed);
    let runs = || engine.one("k")["state"] == "running";
    steps.trace(killed::tracer(&steps.log, STEPS), &[], &RUN_K, runs);
    let all = killed::steps_in(&steps.log);
    assert!(all.len() >= 60, "{all:?}");
    steps.is_usable("nothing");
    for kill in killed::chosen(all, 12, random) {
        steps.trace(kill.tracer(&steps.log), &[], &RUN_K, runs);
        steps.is_usable(&format!("seed {seed}: run, {kill:?}"));
    }
    steps.run_whole();
    steps.trace(killed::tracer(&steps.log, STEPS), &steps.processes(), &REMOVE_K, || false);
    let all = killed::steps_in(&steps.log);
    assert!(all.len() >= 20, "{all:?}");
    steps.is_usable("nothing, rm");
    for kill in killed::chosen(all, 6, random) {
        steps.run_whole();
        steps.trace(kill.tracer(&steps.log), &steps.processes(), &REMOVE_K, || false);
        steps.is_usable(&format!("seed {seed}: rm, {kill:?}"));
    }
    let Steps { ids, rounds, hits, .. } = steps;
    println!("seed {seed}: in {hits} of {rounds} rounds a process was killed");
    assert!(4 * hits >= rounds, "seed {seed}: {hits} of {rounds}");
    engine.assert_nothing_is_left(&ids);
}

/// Containers of a pool that has namespaces for them are in these, and others in their own: by each
/// runtime that is here. The pool's go with the pool.
#[test]
fn containers_of_a_pool_have_its_namespaces() {
    let name = "containers_of_a_pool_have_its_namespaces";
    let Some(engine) = Engine::new(name) else { return };
    let pool = engine.host.pool("ns");
    engine.succeeds(&["pool", "create", "--ns", "net,ipc,uts,ipc", &pool]);
    let info: Value =
        serde_json::from_str(&engine.succeeds(&["pool", "info", "--json", &pool])).expect("JSON");
    assert_eq!(info["namespaces"], json!(["ipc", "uts", "net"]));
    for runtime in ["runc", "crun"] {
        if polylane_tests::lacks(name, &[runtime]) {
            continue;
        }
        let tried = ["container", "run", "--rm", "--runtime", runtime, "busybox", "true"];
        let tried = engine.run(&tried);
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            // crun has words for what it cannot do on a host.
            assert!(runtime == "crun" && why.contains("not supported"), "{why}");
            polylane_tests::skip(name, why.trim());
            continue;
        }
        let run = |name: &str, more: &[&str]| {
            let words = ["container", "run", "-d", "--runtime", runtime, "--pool", &pool];
            let command = ["busybox", "sh", "-c", "while :; do sleep 60; done"];
            engine.succeeds(&[&words[..], &["--name", name], more, &command].concat());
            engine.pid(name)
        };
        let (one, two) = (run("one", &[]), run("two", &["--ns", "pool"]));
        let (own, host) = (run("own", &["--ns", "own"]), run("host", &["--network", "host"]));
        let of = |pid: u32, kind: &str| {
            fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace")
        };
        let here = std::process::id();
        for kind in ["ipc", "uts", "net"] {
            assert_eq!(of(one, kind), of(two, kind), "{runtime} {kind}");
            assert_ne!(of(one, kind), of(here, kind), "{runtime} {kind}");
            assert_ne!(of(one, kind), of(own, kind), "{runtime} {kind}");
        }
        assert_eq!((of(host, "net"), of(host, "ipc")), (of(here, "net"), of(one, "ipc")));
        for kind in ["pid", "mnt", "cgroup"] {
            assert_ne!(of(one, kind), of(two, kind), "{runtime} {kind}");
        }
        let exec = |name: &str, script: &str| {
            engine.succeeds(&["container", "exec", name, "sh", "-c", script])
        };
        let named = "hostname; cat /etc/hostname; echo $HOSTNAME";
        assert_eq!(exec("one", named), format!("{pool}\n{pool}\n{pool}\n"), "{runtime}");
        assert_eq!(exec("own", named), "own\nown\nown\n", "{runtime}");
        they_talk(&engine);
        for name in ["one", "two", "own", "host"] {
            engine.succeeds(&["container", "rm", "-f", name]);
        }
    }
    refuses_namespaces(&engine, &pool);
    let kept = Path::new("/run/polylane").join(format!("{pool}.ns"));
    assert_eq!(names(&kept).len(), 3);
    // What a killed command left in part is made whole, and removed.
    rustix::mount::unmount(kept.join("uts"), rustix::mount::UnmountFlags::DETACH)
        .expect("unmounts");
    fs::remove_file(kept.join("uts")).expect("is a file");
    let words = ["container", "run", "--rm", "--pool", &pool, "busybox", "hostname"];
    assert_eq!(engine.succeeds(&words), format!("{pool}\n"));
    engine.assert_nothing_is_left(&[]);
    engine.succeeds(&["pool", "rm", &pool]);
    assert!(!kept.exists());
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!table.contains(&*kept.to_string_lossy()));
}

fn refuses_namespaces(engine: &Engine, pool: &str) {
    let (status, line) =
        engine.refused(&["container", "create", "--pool", pool, "--hostname", "x", "busybox"]);
    assert!(status == 2 && line.contains("--ns own"), "{status} {line}");
    let (status, line) = engine.refused(&["container", "create", "--ns", "pool", "busybox"]);
    assert!(status == 2 && line.contains("has none"), "{status} {line}");
}

/// One hears what the other says, by the loopback device that is up.
fn they_talk(engine: &Engine) {
    let hear = "busybox nc -l -p 4711 >/heard";
    engine.succeeds(&["container", "exec", "-d", "one", "sh", "-c", hear]);
    let say = "until echo hello | busybox nc -w 2 127.0.0.1 4711; do sleep 0.1; done";
    engine.succeeds(&["container", "exec", "two", "sh", "-c", say]);
    let heard = || engine.succeeds(&["container", "exec", "one", "cat", "/heard"]);
    until("it was heard", || heard() == "hello\n");
}
