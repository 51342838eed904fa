//! `polylane daemon`: desired state, the HTTP interface, and a daemon that dies.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::daemon::{Daemon, code, mounts};
use polylane_tests::host::{Host, refused, succeeds, text, until};
use polylane_tests::pool::signal_to;
use polylane_tests::silent::{self, Silent};
use polylane_tests::unavailable;
use serde_json::json;

#[test]
fn pools_and_mounts_are_made_changed_and_removed_by_http() {
    if unavailable("pools_and_mounts_are_made_changed_and_removed_by_http") {
        return;
    }
    let host = Host::new();
    let (pool, at) = (host.pool("http"), host.dir("m"));
    let daemon = Daemon::start(&host, &host.path("absent"));
    let of_pool = format!("/v1/pools/{pool}");
    assert_eq!(code(&daemon.request("GET", &of_pool, "")), "not-found");
    // Each twice: the second time changes nothing.
    for weight in [300, 300, 400] {
        let body = json!({ "weight": weight, "memory": "256M" }).to_string();
        assert_eq!(daemon.done("PUT", &of_pool, &body).status, 200);
        let found = daemon.request("GET", &of_pool, "");
        assert_eq!((found.status, &found.body["weight"]), (200, &json!(weight)));
    }
    let of_mount = mounts(&at);
    assert_eq!(daemon.request("GET", &of_mount, "").status, 404);
    // However the source is written.
    for source in ["mem:64M", "mem:64M", "mem:65536K"] {
        let body = json!({ "source": source, "pool": pool }).to_string();
        let answer = daemon.done("PUT", &of_mount, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let found = daemon.request("GET", &of_mount, "").body;
        assert_eq!((&found["count"], &found["pool"]), (&json!(1), &json!(pool)));
    }
    fs::write(at.join("file"), "kept").expect("write");
    let other = daemon.done("PUT", &of_mount, r#"{"source":"mem:32M"}"#);
    assert_eq!(other.status, 409, "{other:?}");
    let listed = daemon.request("GET", "/v1/mounts", "").body;
    let listed = listed.as_array().expect("a list").iter().any(|mount| mount["path"] == text(&at));
    assert!(listed);
    let used = daemon.done("DELETE", &of_pool, "");
    assert!(used.status == 409 && used.body.to_string().contains(text(&at)), "{used:?}");
    // The command line counts its own, and what is deleted is gone all the same.
    succeeds(&["mount", "--pool", &pool, "mem:64M", text(&at)]);
    assert_eq!(host.mounts()[0]["count"], 2);
    for _ in 0..2 {
        assert_eq!(daemon.done("DELETE", &of_mount, "").status, 200);
        host.assert_nothing_is_left();
    }
    for _ in 0..2 {
        assert_eq!(daemon.done("DELETE", &of_pool, "").status, 200);
    }
    assert!(refused(&["pool", "info", &pool]).1.contains("no such pool"));
    assert_eq!(daemon.done("DELETE", &mounts(&host.path("absent/m")), "").status, 200);
}

/// A program that writes while the daemon is killed writes on, and the next daemon finds all.
#[test]
fn a_killed_daemon_is_not_noticed_by_lanes() {
    if unavailable("a_killed_daemon_is_not_noticed_by_lanes") {
        return;
    }
    let host = Host::new();
    let (config, pool) = (host.dir("config"), host.pool("dies"));
    let (one, two) = (host.dir("one"), host.dir("two"));
    let desired = format!(
        "[[pool]]\nname = '{pool}'\nweight = 200\n\
         [[mount]]\nsource = 'mem:64M'\npath = '{}'\npool = '{pool}'\n",
        text(&one)
    );
    fs::write(config.join("a.toml"), desired).expect("written");
    let mut daemon = Daemon::start(&host, &config);
    // An entry that starts is listed before anything is at its path.
    until("the desired mount serves", || {
        host.mounts().first().is_some_and(|mount| mount["state"] == "serving")
    });
    let body = json!({ "source": "mem:64M", "pool": pool }).to_string();
    assert_eq!(daemon.done("PUT", &mounts(&two), &body).status, 200);

    let script = "i=0; while [ $i -lt 2000 ]; do echo $i >>one/log && echo $i >>two/log || exit 1; \
                  i=$((i + 1)); [ $i -ne 50 ] || echo begun; done; exit 7";
    let mut writer = Command::new("sh");
    writer.args(["-c", script]).current_dir(host.path("")).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("sh");
    let mut begun = [0; 6];
    writer.stdout.as_mut().expect("a pipe").read_exact(&mut begun).expect("begun");
    daemon.kill();
    let before = host.mounts();
    let mut daemon = Daemon::start(&host, &config);
    assert_eq!(writer.wait().expect("ended").code(), Some(7));
    for at in [&one, &two] {
        let log = fs::read_to_string(at.join("log")).expect("read");
        let numbers: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
        assert_eq!(log.lines().collect::<Vec<_>>(), numbers, "{}", text(at));
        let found = daemon.request("GET", &mounts(at), "");
        assert_eq!((found.status, &found.body["count"]), (200, &json!(1)));
    }
    assert_eq!(host.mounts(), before, "the same lanes, counted once");
    assert_eq!(daemon.request("GET", &format!("/v1/pools/{pool}"), "").body["weight"], 200);
    signal_to(daemon.child.id(), "TERM");
    assert_eq!(daemon.child.wait().expect("ended").code(), Some(0), "{}", daemon.said());
    assert_eq!(host.mounts(), before, "also when it ends in order");
}

/// What cannot be is reported and blocks nothing; a mount in another lane comes after that.
#[test]
fn the_desired_state_is_brought_about_as_far_as_it_can_be() {
    if unavailable("the_desired_state_is_brought_about_as_far_as_it_can_be") {
        return;
    }
    let host = Host::new();
    let (config, pool) = (host.dir("config"), host.pool("boot"));
    let (outer, full) = (host.dir("z"), host.dir("full"));
    fs::write(full.join("file"), "").expect("written");
    let mount = |source: &str, path: &Path, more: &str| {
        format!("[[mount]]\nsource = '{source}'\npath = '{}'\n{more}\n", text(path))
    };
    fs::write(config.join("1.toml"), "[[pool]]\nmemroy = 1\n").expect("written");
    fs::write(config.join("2.toml"), format!("[[pool]]\nname = '{pool}'\n")).expect("written");
    let source = host.path("none/v.img");
    let tables = [
        mount("mem:64M", &outer.join("inner"), ""),
        mount("mem:64M", &full, ""),
        mount(text(&source), &host.dir("m"), ""),
        mount("mem:64M", &host.dir("n"), "pool = 'no-such-pool'"),
    ];
    fs::write(config.join("3.toml"), tables.concat()).expect("written");
    // Its directory is on the volume: made by the first mount.
    let volume = host.path("v.img");
    succeeds(&["mount", "--size", "64M", text(&volume), text(&outer)]);
    fs::create_dir(outer.join("inner")).expect("mkdir");
    succeeds(&["umount", text(&outer)]);
    fs::write(config.join("4.toml"), mount(text(&volume), &outer, &format!("pool = '{pool}'")))
        .expect("written");
    let daemon = Daemon::start(&host, &config);
    until("both are mounted", || {
        let served = host.mounts();
        served.iter().filter(|mount| mount["state"] == "serving").count() == 2
    });
    fs::write(outer.join("inner/file"), "x").expect("write");
    until("all is tried", || daemon.said().lines().count() >= 4);
    let said = daemon.said();
    for word in ["line 2: unknown field `memroy`", "not empty", text(&source), "no-such-pool"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
    // What is mended is brought about when the daemon is told to.
    fs::remove_file(full.join("file")).expect("removed");
    signal_to(daemon.child.id(), "HUP");
    // A pool and five mounts, twice: a mount that is still to be tried would be made again.
    until("all is tried again", || {
        let tasks = daemon.request("GET", "/v1/tasks", "").body;
        let ended = |task: &serde_json::Value| task["state"] != "running";
        tasks.as_array().is_some_and(|tasks| tasks.len() == 12 && tasks.iter().all(ended))
    });
    assert!(host.mounts().iter().any(|mount| mount["path"] == text(&full)));
    succeeds(&["umount", text(&outer.join("inner")), text(&outer), text(&full)]);
    host.assert_nothing_is_left();
}

/// Sources that never answer, more than are mounted side by side, hold up what lies in their mounts
/// and nothing else: others are mounted meanwhile, and the daemon is ready when their time is over.
#[test]
fn sources_that_do_not_answer_hold_up_nothing_else_at_the_start() {
    if unavailable("sources_that_do_not_answer_hold_up_nothing_else_at_the_start") {
        return;
    }
    let host = Host::new();
    let (config, fine) = (host.dir("config"), host.dir("fine"));
    let silent = Silent::mount(&host.dir("silent"));
    let mut tables = String::from("[daemon]\ntime-limit = 8\n");
    let mut mount = |source: &str, path: &Path| {
        tables += &format!("[[mount]]\nsource = '{source}'\npath = '{}'\n", text(path));
    };
    // The command hangs in half of them, the lane's supervisor in the others.
    let hung: Vec<_> = (0..20).map(|number| host.dir(&format!("hung{number}"))).collect();
    for (number, path) in hung.iter().enumerate() {
        let name = ["other", silent::FILE][number % 2];
        mount(text(&host.path(&format!("silent/{name}"))), path);
    }
    mount("mem:64M", &host.path("hung7/inner"));
    mount("mem:64M", &fine);
    fs::write(config.join("a.toml"), tables).expect("written");
    let notify = UnixDatagram::bind(host.path("notify")).expect("bound");
    notify.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
    let (start, notified) = (Instant::now(), host.path("notify"));
    let daemon = Daemon::start_with(&host, &config, &[("NOTIFY_SOCKET", &notified)]);
    until("what answers is mounted", || {
        let is_it = |mount: &serde_json::Value| mount["path"] == text(&fine);
        host.mounts().iter().any(|mount| is_it(mount) && mount["state"] == "serving")
    });
    let tasks = daemon.request("GET", "/v1/tasks", "").body;
    let running = tasks.as_array().expect("a list").iter();
    let running = running.filter(|task| task["state"] == "running").count();
    assert_eq!(running, 20, "{tasks}");
    let mut told = [0; 400];
    while !told.starts_with(b"READY=1") {
        told.fill(0);
        notify.recv(&mut told).expect("it gets ready");
    }
    // The limit, and the time after which one gives its place to the next.
    assert!(start.elapsed() < Duration::from_secs(8 + 5 + 10), "{:?}", start.elapsed());
    let said = daemon.said();
    for path in &hung {
        let line = format!("{}: not done within 8 s\n", text(path));
        assert!(said.contains(&line), "{line}{said}");
    }
    let (inner, outer) = (host.path("hung7/inner"), &hung[7]);
    let line = format!("{}: not tried, since {} is not mounted\n", text(&inner), text(outer));
    assert!(said.contains(&line), "{said}");
    assert_eq!(said.lines().count(), hung.len() + 1, "{said}");
    drop(silent);
    succeeds(&["umount", text(&fine)]);
    until("the hung ones have ended", || host.mounts().is_empty());
    host.assert_nothing_is_left();
}

/// Root and one group are served, by the kernel's word; a member of the group mounts nothing.
#[test]
fn only_root_and_the_group_are_served() {
    if unavailable("only_root_and_the_group_are_served") {
        return;
    }
    let host = Host::new();
    let (config, pool, at) = (host.dir("config"), host.pool("group"), host.dir("m"));
    fs::write(config.join("a.toml"), "[daemon]\ngroup = '4343'\n").expect("written");
    let daemon = Daemon::start(&host, &config);
    for path in [host.path(""), daemon.socket.clone()] {
        // The socket's own mode would refuse others before the daemon does.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(path, mode).expect("chmod");
    }
    let ask = |(user, group): (u32, u32), method: &str, path: &str, body: &str| {
        let line = format!(
            "{method} {path} HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\
             Content-Length: {}\\r\\n\\r\\n{body}",
            body.len()
        );
        let program = format!(
            "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
             s.sendall(b'{line}')\nprint(s.recv(99999).split(b' ')[1].decode())"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &program, text(&daemon.socket)]).uid(user).gid(group);
        let output = command.output().expect("python3");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    let (member, stranger) = ((4444, 4343), (4444, 4444));
    for (method, path) in [("GET", "/v1/pools"), ("PUT", "/v1/pools/x"), ("GET", "/nothing")] {
        assert_eq!(ask(stranger, method, path, ""), "403", "{method} {path}");
    }
    let of_pool = format!("/v1/pools/{pool}");
    assert_eq!(ask(member, "GET", "/v1/mounts", ""), "200");
    assert!(["200", "202"].contains(&&*ask(member, "PUT", &of_pool, "")));
    until("the pool is made", || daemon.request("GET", &of_pool, "").status == 200);
    let of_mount = mounts(&at);
    assert_eq!(ask(member, "PUT", &of_mount, r#"{"source":"mem:64M"}"#), "403");
    assert_eq!(daemon.done("PUT", &of_mount, r#"{"source":"mem:64M"}"#).status, 200);
    assert_eq!(ask(member, "DELETE", &of_mount, ""), "403");
    assert_eq!(host.mounts().len(), 1);
    assert_eq!(ask((0, 0), "GET", "/v1/mounts", ""), "200");
}
