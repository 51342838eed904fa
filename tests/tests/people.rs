//! What people at a terminal see: stopped pools, names of others' making, a terminal that is as it
//! was, a directory that is made.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::host::{Host, is_obeyed, refused, succeeds, text};
use polylane_tests::pool::{Run, signal_to};
use polylane_tests::step::good;
use polylane_tests::{binary, lacks, unavailable};

fn polylane(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("polylane")
}

#[test]
fn pools_that_are_stopped_are_said_to_be_and_keep_nobody_waiting() {
    let name = "pools_that_are_stopped_are_said_to_be_and_keep_nobody_waiting";
    if unavailable(name) || lacks(name, &["mke2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = format!("--size 64M --volume {}/volume", dir.path().display());
    let mut running = ["--mem", "--mem", &volume].map(|source| {
        let run = Run::new(&format!("--no-preload --at /srv {source}"));
        run.script("echo up; sleep 60").start()
    });
    for run in &mut running {
        assert_eq!(run.line(), "up");
        run.signal("STOP");
    }
    let pool = running[0].pool.clone();
    // More often than the stopped pool lets connections wait.
    for _ in 0..4 {
        for words in
            [&["stats", "--pool", &pool][..], &["stats"], &["pool", "ls"], &["top", "--once"]]
        {
            let start = Instant::now();
            let shown = good(&polylane(words));
            assert!(start.elapsed() < Duration::from_secs(3), "{words:?}: {:?}", start.elapsed());
            let own: Vec<&str> = shown.lines().filter(|line| line.contains(&pool)).collect();
            assert_eq!(own.len(), 1, "{words:?}: {shown}");
            assert!(shown.contains("stopped") || shown.contains("no answer"), "{words:?}: {shown}");
        }
    }
    let json = good(&polylane(&["pool", "ls", "--json"]));
    assert!(json.contains("\"state\""), "{json}");
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    for (words, why) in [
        (&["pool", "upgrade", &pool][..], "is stopped"),
        (&["volume", "snapshot", text(&volume), text(&copy)], "in use"),
    ] {
        let start = Instant::now();
        let (_, line) = refused(words);
        assert!(start.elapsed() < Duration::from_secs(5), "{words:?}: {:?}", start.elapsed());
        assert!(line.contains(why), "{words:?}: {line}");
    }
    for run in running {
        run.signal("CONT");
        run.signal("TERM");
        run.end();
    }
}

#[test]
fn a_volume_of_a_stopped_pool_is_said_to_keep_its_former_files() {
    let name = "a_volume_of_a_stopped_pool_is_said_to_keep_its_former_files";
    if unavailable(name) || lacks(name, &["mke2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let [volume, one, two] = ["volume", "one", "two"].map(|name| dir.path().join(name));
    succeeds(&["volume", "create", text(&volume), "--size", "64M"]);
    for snapshot in [&one, &two] {
        succeeds(&["volume", "snapshot", text(&volume), text(snapshot)]);
    }
    let run = Run::new("--no-preload --at /srv --volume").arg(&volume);
    let mut running = run.script("echo up; sleep 60").start();
    assert_eq!(running.line(), "up");
    running.signal("STOP");
    let start = Instant::now();
    let removed = polylane(&["volume", "rm", text(&one)]);
    let said = String::from_utf8_lossy(&removed.stderr);
    assert!(removed.status.success(), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(said.contains("is stopped") && said.contains("over the former files"), "{said}");
    running.signal("CONT");
    running.signal("TERM");
    running.end();
    // No process has it: there is none to be asked, whoever is stopped.
    let mut other = Run::new("--mem --no-preload --at /srv").script("echo up; sleep 60").start();
    assert_eq!(other.line(), "up");
    other.signal("STOP");
    succeeds(&["volume", "snapshot", text(&volume), text(&one)]);
    let removed = polylane(&["volume", "rm", text(&two)]);
    assert!(removed.status.success() && removed.stderr.is_empty(), "{removed:?}");
    other.signal("CONT");
    other.signal("TERM");
    other.end();
}

#[test]
fn statistics_are_a_dozen_lines_and_all_of_them_when_asked() {
    if unavailable("statistics_are_a_dozen_lines_and_all_of_them_when_asked") {
        return;
    }
    let mut running = Run::new("--mem --no-preload --at /srv").script("echo up; sleep 60").start();
    assert_eq!(running.line(), "up");
    let shown = good(&polylane(&["stats", "--pool", &running.pool]));
    let lines = shown.trim_end().lines().count();
    assert!((6..=13).contains(&lines), "{shown}");
    assert!(shown.contains(&format!("service {}", running.service())), "{shown}");
    let all = good(&polylane(&["stats", "--all", "--pool", &running.pool]));
    assert!(all.contains("service.fuse.requests: "), "{all}");
    running.signal("TERM");
    running.end();
}

#[test]
fn names_of_others_making_are_shown_and_not_obeyed() {
    if lacks("names_of_others_making_are_shown_and_not_obeyed", &["mke2fs", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "ev\u{1b}]0;x\u{7}\u{1b}[31mil\nfake line \"q\" 'v.img";
    let at = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.current_dir(dir.path()).args(words).env("XDG_STATE_HOME", dir.path());
        command.output().expect("polylane")
    };
    assert!(at(&["volume", "create", name, "--size", "64M"]).status.success());
    for words in [&["volume", "ls", "."][..], &["volume", "info", name], &["volume", "map", name]] {
        let shown = good(&at(words));
        assert!(!is_obeyed(&shown) && !shown.contains("\nfake"), "{words:?}: {shown:?}");
        assert!(shown.contains("v.img") || words[1] == "map", "{words:?}: {shown:?}");
    }
    let none = format!("{name}.none");
    let failing: [&[&str]; 5] = [
        &["volume", "info", &none],
        &["volume", "check", &none],
        &["detach", &none],
        &["run", "--mem", "--pool", &none, "--", "true"],
        &["run", "--mem", "--at", &none, "--", "true"],
    ];
    for words in failing {
        let output = at(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert_eq!(said.lines().count(), 1, "{words:?}: {said:?}");
        assert!(!is_obeyed(&said), "{words:?}: {said:?}");
    }
    let json = good(&at(&["volume", "info", "--json", name]));
    assert!(!is_obeyed(&json), "{json:?}");
    let read = "import json, sys; sys.stdout.write(json.load(sys.stdin)['path'])";
    let mut python = Command::new("python3")
        .args(["-c", read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    std::io::Write::write_all(&mut python.stdin.take().expect("piped"), json.as_bytes())
        .expect("write");
    let output = python.wait_with_output().expect("python3");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(name), "{output:?}");
}

/// A lane whose path, and a file that is open there, have names that a terminal would obey.
#[test]
fn names_in_a_pool_are_shown_and_not_obeyed() {
    if unavailable("names_in_a_pool_are_shown_and_not_obeyed") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("shown");
    let at = host.dir("ev\u{1b}]0;x\u{7}\u{1b}[31mil\nfake line");
    let source = format!("dir:{}", text(&host.dir("source\u{1b}[31m\nfake line")));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, &source, text(&at)]);
    let open = fs::File::create(at.join("open\u{1b}[31m\nfake line")).expect("create");
    for words in [
        &["mount"][..],
        &["mount", "--json"],
        &["pool", "ls"],
        &["pool", "info", &pool],
        &["pool", "info", "--json", &pool],
        &["stats", "--all", "--pool", &pool],
        &["stats", "--json", "--pool", &pool],
    ] {
        let shown = succeeds(words);
        assert!(!is_obeyed(&shown) && !shown.contains("\nfake"), "{words:?}: {shown:?}");
    }
    for words in [&["mount", "mem:32M", text(&at)][..], &["pool", "rm", &pool]] {
        let (_, said) = refused(words);
        assert!(!is_obeyed(&said), "{words:?}: {said:?}");
    }
    drop(open);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
    succeeds(&["pool", "rm", &pool]);
}

fn is_top(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0top\0"))
}

/// A shell's line in a terminal of its own, whose keys and screen are pipes.
fn in_terminal(line: &str, state: &Path) -> Child {
    Command::new("script")
        .args(["--quiet", "--command", line, "/dev/null"])
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", state)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1)")
}

#[test]
fn a_signal_that_ends_top_leaves_the_terminal_as_it_was() {
    let name = "a_signal_that_ends_top_leaves_the_terminal_as_it_was";
    if lacks(name, &["script", "stty"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    for (signal, status) in
        [("TERM", 143), ("HUP", 129), ("INT", 130), ("USR1", 138), ("ALRM", 142), ("", 0)]
    {
        let number = dir.path().join(format!("pid{signal}"));
        let line = format!(
            "stty cols 100 rows 30; stty -g >{0}.was; \
             (sh -c 'echo $$ >{0}; exec {1} top'); echo status $?; \
             stty -g | cmp - {0}.was && echo restored",
            number.display(),
            binary().display()
        );
        let mut terminal = in_terminal(&line, dir.path());
        let mut output = terminal.stdout.take().expect("piped");
        let (mut shown, mut buffer, mut sent) = (Vec::new(), [0; 256], false);
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..count]);
            if !sent && String::from_utf8_lossy(&shown).contains("\u{1b}[?1049h") {
                std::thread::sleep(Duration::from_millis(300));
                let pid = fs::read_to_string(&number).expect("a number");
                let pid = pid.trim().parse().expect("a number");
                if signal.is_empty() {
                    // The terminal itself goes, as when its window is closed.
                    terminal.kill().expect("kill");
                    let start = Instant::now();
                    while is_top(pid) {
                        assert!(start.elapsed() < Duration::from_secs(10), "it goes on");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                } else {
                    signal_to(pid, signal);
                }
                sent = true;
            }
        }
        terminal.wait().expect("wait");
        if signal.is_empty() {
            continue;
        }
        let shown = String::from_utf8_lossy(&shown).replace('\r', "");
        assert!(shown.contains("\u{1b}[?1049l"), "{signal}: {shown:?}");
        assert!(shown.contains(&format!("status {status}\nrestored\n")), "{signal}: {shown:?}");
    }
}

#[test]
fn top_that_is_stopped_leaves_the_terminal_and_comes_back() {
    if lacks("top_that_is_stopped_leaves_the_terminal_and_comes_back", &["script", "stty"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let number = dir.path().join("pid");
    let line = format!(
        "stty cols 100 rows 30; sh -c 'echo $$ >{}; exec {} top'; echo status $?",
        number.display(),
        binary().display()
    );
    let mut terminal = in_terminal(&line, dir.path());
    let (mut keys, mut output) =
        (terminal.stdin.take().expect("piped"), terminal.stdout.take().expect("piped"));
    let (mut shown, mut buffer, mut step) = (Vec::new(), [0; 256], 0);
    // What is to be seen, how often, and what is done then.
    let (begins, leaves) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
    let steps = [
        (begins, 1, "TSTP"),
        (leaves, 1, "CONT"),
        (begins, 2, "^Z"),
        (leaves, 2, "CONT"),
        (begins, 3, "q"),
    ];
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..count]);
        let Some((what, times, then)) = steps.get(step) else { continue };
        if String::from_utf8_lossy(&shown).matches(what).count() < *times {
            continue;
        }
        step += 1;
        let pid = fs::read_to_string(&number).expect("a number").trim().parse().expect("a number");
        match *then {
            "^Z" => keys.write_all(b"\x1a").expect("a key"),
            "q" => keys.write_all(b"q").expect("a key"),
            "CONT" => {
                await_stop(pid);
                signal_to(pid, "CONT");
            }
            signal => signal_to(pid, signal),
        }
    }
    terminal.wait().expect("wait");
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(step, steps.len(), "{shown:?}");
    assert!(shown.contains("status 0"), "{shown:?}");
}

fn await_stop(pid: u32) {
    let start = Instant::now();
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    };
    while !is_stopped() {
        assert!(start.elapsed() < Duration::from_secs(10), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_directory_is_made_and_the_kernels_are_refused() {
    if unavailable("a_directory_is_made_and_the_kernels_are_refused") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let lane = dir.path().join("a/new one");
    let run = Run::new("--no-preload --at /srv --dir").arg(&lane).script("echo x >/srv/file");
    assert!(run.output().status.success());
    assert_eq!(fs::read_to_string(lane.join("file")).expect("kept"), "x\n");
    for path in ["/proc", "/sys/kernel", "/dev", "/dev/x/y"] {
        let (status, line) = Run::new("--mem --at").arg(path).script("true").refusal();
        assert_eq!(status, 2, "{line}");
    }
    assert!(Path::new("/proc/self/status").exists());
}

#[test]
fn names_that_are_polylanes_own_on_an_image_are_no_way_in() {
    let name = "names_that_are_polylanes_own_on_an_image_are_no_way_in";
    if unavailable(name) || lacks(name, &["mke2fs", "debugfs"]) {
        return;
    }
    for kind in ["file", "directory", "link"] {
        let dir = tempfile::tempdir().expect("tempdir");
        let volume = dir.path().join("v.img");
        fs::write(dir.path().join("text"), "the image's\n").expect("write");
        let made =
            Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&volume).arg("64M").status();
        assert!(made.expect("mke2fs").success());
        let names = [".polylane", ".polylane-slots", ".polylane-other"];
        for name in names {
            let request = match kind {
                "file" => format!("write {} {name}", dir.path().join("text").display()),
                "directory" => format!("mkdir {name}"),
                _ => format!("symlink {name} /etc"),
            };
            let debugfs =
                Command::new("debugfs").args(["-w", "-R", &request]).arg(&volume).output();
            assert!(debugfs.expect("debugfs").status.success(), "{request}");
        }
        for door in ["--no-preload", ""] {
            let script = "cd /srv && echo x >mine && cat mine && ls -A | grep -c other && \
                          test -S .polylane/socket && test ! -e .polylane/passwd && \
                          find . -name mine && ls -A | grep -c other";
            let run = Run::new(&format!("--at /srv {door} --volume")).arg(&volume).script(script);
            let shown = good(&run.output());
            assert_eq!(shown, "x\n1\n./mine\n1\n", "{kind} {door}");
        }
    }
}
