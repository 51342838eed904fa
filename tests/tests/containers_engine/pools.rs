//! Containers of a pool: one service, its namespaces, many at once.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use polylane_tests::host::{text, until};
use serde_json::{Value, json};

use super::{Engine, PASSWD, kill, names, parent_of};

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
