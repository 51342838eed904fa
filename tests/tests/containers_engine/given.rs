//! What a container is given, what it cannot reach, and what commands say of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_tests::host::{Host, is_obeyed, text, until};
use polylane_tests::{binary, lacks, unavailable};
use serde_json::{Value, json};

use super::{Engine, names};

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
