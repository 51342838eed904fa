//! Limits of a pool: CPUs, memory, the size of a lane in RAM.

use polylane_tests::pool::{Run, assert_nothing_remains, service_of, signal_to};
use polylane_tests::{skip, unavailable};

fn printed(run: Run) -> String {
    let output = run.output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "status {:?}: {said}", output.status.code());
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

#[test]
fn cpus_hold_for_command_and_service() {
    if unavailable("cpus_hold_for_command_and_service") {
        return;
    }
    let script = "nproc; grep Cpus_allowed_list /proc/self/status; echo up; exec sleep 1000";
    let mut run = Run::new("--mem --no-preload --cpus 0").script(script).start();
    assert_eq!(run.line(), "1");
    assert_eq!(run.line(), "Cpus_allowed_list:\t0");
    assert_eq!(run.line(), "up");
    let service = run.service();
    let tasks = std::fs::read_dir(format!("/proc/{service}/task")).expect("threads");
    for task in tasks.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).expect("status");
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }
    run.signal("TERM");
    run.end();
}

/// What a tenant costs that does nothing: a few threads, their tables, and the program itself.
#[test]
fn an_idle_lane_takes_little_memory() {
    const KIB_MAX: u64 = 8 << 10;
    let name = "an_idle_lane_takes_little_memory";
    if unavailable(name) || polylane_tests::lacks(name, &["mke2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = format!("--volume {}", dir.path().join("volume").display());
    for kind in ["--mem", &format!("--size 1G {volume}")] {
        let mut run = Run::new(kind).script("echo x > /lane/f; echo up; exec sleep 1000").start();
        assert_eq!(run.line(), "up");
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.service()));
        let status = status.expect("status");
        let of = |name: &str| {
            let text = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = text.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        // What one more lane takes: the pages of the program's file are the same for all of them.
        let kib = of("RssAnon:") + of("RssShmem:");
        assert!(kib <= KIB_MAX, "{kind}: {kib} KiB of {} KiB", of("VmRSS:"));
        run.signal("TERM");
        run.end();
    }
}

/// The kernel remembers a removed file for a moment; the next one must not suffer from that.
#[test]
fn room_is_there_as_soon_as_a_file_is_gone() {
    if unavailable("room_is_there_as_soon_as_a_file_is_gone") {
        return;
    }
    let script = "cd /lane; for turn in $(seq 30); do \
                  dd if=/dev/zero of=big bs=1M count=14 status=none || exit 1; \
                  cat big > /dev/null && rm big && echo x > f || exit 1; done";
    for options in ["--mem --size 16M", "--mem --size 16M --no-preload"] {
        assert_eq!(printed(Run::new(options).script(script)), "", "{options}");
    }
}

#[test]
fn a_lane_in_ram_is_as_large_as_asked_for() {
    if unavailable("a_lane_in_ram_is_as_large_as_asked_for") {
        return;
    }
    let size = "df -B1 --output=size /lane | tail -1 | tr -d ' '";
    let of = |options| printed(Run::new(options).script(size));
    assert_eq!(of("--mem --no-preload --size 20M"), (20 << 20).to_string());
    assert_eq!(of("--mem --no-preload --memory 64M"), (32 << 20).to_string());
    // The kernel lets go of a removed file a moment after rm(1) has ended; only then is its space
    // free.
    let full = "dd if=/dev/zero of=/lane/f bs=1M count=40 2>&1 | \
                grep -o 'No space left on device'; \
                rm /lane/f && sleep 0.3 && echo x > /lane/g && cat /lane/g";
    let said = printed(Run::new("--mem --no-preload --size 20M").script(full));
    assert_eq!(said, "No space left on device\nx");
}

#[test]
fn memory_is_limited_by_a_control_group_where_there_is_one() {
    let name = "memory_is_limited_by_a_control_group_where_there_is_one";
    if unavailable(name) {
        return;
    }
    // What does not fit is killed. It is not the service, although that holds more than the shell.
    let script = "grep -c polylane-test- /proc/self/cgroup; head -c 25M /dev/urandom > /lane/data; \
                  sum=$(md5sum < /lane/data); head -c 200M /dev/zero | tail > /dev/null; echo $?; \
                  test \"$sum\" = \"$(md5sum < /lane/data)\" && echo whole";
    let output = Run::new("--mem --no-preload --memory 64M").script(script).output();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("--memory: no usable control group") {
        return skip(name, "no memory control group can be made here");
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n137\nwhole\n", "{said}");
    assert!(!said.contains("polylane:"), "the service was not replaced: {said}");
}

#[test]
fn the_service_holds_nothing_of_the_callers() {
    if unavailable("the_service_holds_nothing_of_the_callers") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let file = dir.path().join("callers-file");
    let pool = "test-callers-file";
    let line = format!(
        "exec 7>{}; exec {} run --pool {pool} --mem --no-preload -- \
         sh -c 'echo seen >&7; exec sleep 1000'",
        file.display(),
        polylane_tests::binary().display()
    );
    let mut shell = std::process::Command::new("sh").args(["-c", &line]).spawn().expect("sh");
    while !std::fs::read_to_string(&file).is_ok_and(|text| text == "seen\n") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let service = service_of(pool).expect("a service");
    let fds = std::fs::read_dir(format!("/proc/{service}/fd")).expect("descriptors");
    let held: Vec<_> = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let cwd = std::fs::read_link(format!("/proc/{service}/cwd")).expect("cwd");
    signal_to(shell.id(), "TERM");
    shell.wait().expect("wait");
    assert!(!held.contains(&file), "{held:?}");
    assert_eq!(cwd, std::path::Path::new("/"));
    assert_nothing_remains(pool);
}

#[test]
fn a_running_pool_tells_what_it_does() {
    if unavailable("a_running_pool_tells_what_it_does") {
        return;
    }
    let stats = |words: &[&str]| {
        let output = std::process::Command::new(polylane_tests::binary())
            .arg("stats")
            .args(words)
            .output()
            .expect("polylane stats");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let script = "echo x > /lane/file; cat /lane/file; exec sleep 1000";
    let mut run = Run::new("--mem --no-preload --size 20M --weight 50").script(script).start();
    assert_eq!(run.line(), "x");
    let (status, said) = stats(&["--all", "--pool", &run.pool]);
    assert_eq!(status, Some(0));
    for line in ["weight: 50", "mount: /lane", "service.files.size_bytes: 20971520"] {
        assert!(said.lines().any(|said| said == line), "{line} is missing: {said}");
    }
    let (status, said) = stats(&["--json"]);
    assert_eq!(status, Some(0));
    assert!(said.contains(&format!("\"pool\": \"{}\"", run.pool)), "{said}");
    run.signal("TERM");
    let pool = run.pool.clone();
    run.end();
    assert_eq!(stats(&["--pool", &pool]).0, Some(1), "it has ended");
}

/// Limits of the caller's shell on the stack are COMMAND's alone.
#[test]
fn a_small_stack_is_enough() {
    let name = "a_small_stack_is_enough";
    if unavailable(name) {
        return;
    }
    let program = polylane_tests::binary().display().to_string();
    let words = ["--help", "pool ls", "run --mem -- sh -c 'echo fine >/lane/f; cat /lane/f'"];
    for (kib, words) in [64, 128].into_iter().flat_map(|kib| words.map(|words| (kib, words))) {
        let script = format!("ulimit -Ss {kib} && exec {program} {words}");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kib} KiB, {words}: {:?} {said}", output.status);
    }
}
