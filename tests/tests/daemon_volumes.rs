//! The volume plugin of Docker and podman, by HTTP as they speak it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use polylane_tests::daemon::Daemon;
use polylane_tests::host::{Host, child, text};
use polylane_tests::http::Answer;
use polylane_tests::pool::signal_to;
use polylane_tests::unavailable;
use serde_json::{Value, json};

/// Starts a daemon whose volumes are the test's own.
fn start(host: &Host) -> Daemon {
    let config = host.path("absent");
    Daemon::start_with(host, &config, &[("XDG_STATE_HOME", &host.path("state"))])
}

fn ask(daemon: &Daemon, verb: &str, body: &Value) -> Answer {
    daemon.request("POST", &format!("/VolumeDriver.{verb}"), &body.to_string())
}

/// The answer to what is done.
fn done(daemon: &Daemon, verb: &str, body: &Value) -> Value {
    let answer = ask(daemon, verb, body);
    assert_eq!(
        (answer.status, &answer.body["Err"]),
        (200, &json!("")),
        "{verb} {body}: {answer:?}"
    );
    answer.body
}

/// The line of what is not.
fn fails(daemon: &Daemon, verb: &str, body: &Value) -> String {
    let answer = ask(daemon, verb, body);
    assert!(answer.status >= 400, "{verb} {body}: {answer:?}");
    answer.body["Err"].as_str().expect("a line").to_string()
}

#[test]
fn volumes_are_made_mounted_and_removed_as_docker_asks() {
    if unavailable("volumes_are_made_mounted_and_removed_as_docker_asks") {
        return;
    }
    let host = Host::new();
    let mut daemon = start(&host);
    // As Docker does it: no body.
    let activated = daemon.request("POST", "/Plugin.Activate", "");
    assert_eq!(activated.body, json!({ "Implements": ["VolumeDriver"] }));
    let scope = daemon.request("POST", "/VolumeDriver.Capabilities", "null");
    assert_eq!(scope.body["Capabilities"]["Scope"], "local");
    let name = json!({ "Name": "web" });
    assert!(fails(&daemon, "Get", &name).contains("no such volume"));
    let make = json!({ "Name": "web", "Opts": { "size": "64M", "weight": "300" } });
    for _ in 0..2 {
        done(&daemon, "Create", &make);
    }
    let other = json!({ "Name": "web", "Opts": { "size": "32M" } });
    assert!(fails(&daemon, "Create", &other).contains("other options"));
    assert_eq!(done(&daemon, "Path", &name)["Mountpoint"], "");

    // Two containers, each of whose requests comes twice.
    let user = |id: &str| json!({ "Name": "web", "ID": id });
    let mut place = String::new();
    for id in ["one", "one", "two", "two"] {
        let mounted = done(&daemon, "Mount", &user(id));
        place = mounted["Mountpoint"].as_str().expect("a path").to_string();
    }
    fs::write(Path::new(&place).join("file"), "kept").expect("written");
    assert_eq!(done(&daemon, "Get", &name)["Volume"]["Mountpoint"], json!(place));
    let listed = done(&daemon, "List", &json!({}));
    assert_eq!(listed["Volumes"][0]["Name"], "web");
    assert_eq!(host.mounts().len(), 1);
    assert_eq!(host.mounts()[0]["count"], 1);
    assert!(fails(&daemon, "Remove", &name).contains("in use"));
    // A daemon that is killed knows who has it when it is there again.
    daemon.kill();
    drop(daemon);
    let daemon = start(&host);
    for _ in 0..2 {
        done(&daemon, "Unmount", &user("one"));
        assert_eq!(fs::read_to_string(Path::new(&place).join("file")).expect("there"), "kept");
    }
    for _ in 0..2 {
        done(&daemon, "Unmount", &user("two"));
        host.assert_nothing_is_left();
    }
    done(&daemon, "Mount", &user("three"));
    assert_eq!(fs::read_to_string(Path::new(&place).join("file")).expect("there"), "kept");
    done(&daemon, "Unmount", &user("three"));
    done(&daemon, "Remove", &name);
    assert!(fails(&daemon, "Remove", &name).contains("no such volume"));
    let left = fs::read_dir(host.path("state/polylane/plugin-volumes")).expect("a directory");
    assert_eq!(left.count(), 0);
}

/// What belongs to others stays when the volume is removed.
#[test]
fn images_and_directories_are_mounted_and_kept() {
    if unavailable("images_and_directories_are_mounted_and_kept") {
        return;
    }
    let host = Host::new();
    let daemon = start(&host);
    let (dir, image) = (host.dir("files"), host.path("v.img"));
    for (name, options, kept) in [
        ("of-dir", json!({ "dir": dir }), &dir),
        ("of-image", json!({ "image": image, "size": "64M" }), &image),
    ] {
        let of = json!({ "Name": name, "ID": "7", "Opts": options });
        done(&daemon, "Create", &of);
        let place = done(&daemon, "Mount", &of)["Mountpoint"].as_str().expect("a path").to_string();
        fs::write(Path::new(&place).join("file"), name).expect("written");
        done(&daemon, "Unmount", &of);
        done(&daemon, "Remove", &of);
        assert!(kept.exists(), "{name}");
    }
    assert_eq!(fs::read_to_string(dir.join("file")).expect("there"), "of-dir");
    host.assert_nothing_is_left();
}

#[test]
fn bad_requests_of_the_plugin_are_answered_with_a_line() {
    if unavailable("bad_requests_of_the_plugin_are_answered_with_a_line") {
        return;
    }
    let host = Host::new();
    let daemon = start(&host);
    for name in ["", ".", "..", "a/b", "a\nb", "-x"] {
        for verb in ["Create", "Mount", "Remove"] {
            fails(&daemon, verb, &json!({ "Name": name, "ID": "7" }));
        }
    }
    for options in [
        json!({ "siz": "1G" }),
        json!({ "size": "lots" }),
        json!({ "image": "v.img" }),
        json!({ "dir": "/srv", "size": "1G" }),
        json!({ "weight": "0" }),
    ] {
        let line = fails(&daemon, "Create", &json!({ "Name": "bad", "Opts": options }));
        assert_eq!(line.matches('\n').count(), 0, "{line}");
        assert!(fails(&daemon, "Get", &json!({ "Name": "bad" })).contains("no such volume"));
    }
    let gone = json!({ "Name": "gone", "ID": "7", "Opts": { "dir": host.path("no") } });
    done(&daemon, "Create", &gone);
    assert!(fails(&daemon, "Mount", &gone).contains(text(&host.path("no"))));
    done(&daemon, "Remove", &gone);
    assert_eq!(daemon.request("POST", "/VolumeDriver.Nothing", "").status, 404);
    assert_eq!(daemon.request("POST", "/VolumeDriver.Create", "{").status, 400);
    assert_eq!(daemon.request("GET", "/VolumeDriver.List", "").status, 404);
    host.assert_nothing_is_left();
}

/// The real client, where it is there: volumes, not containers, which need an image.
#[test]
fn podman_makes_and_removes_volumes() {
    let name = "podman_makes_and_removes_volumes";
    if unavailable(name) {
        return;
    }
    let found = Command::new("podman").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return polylane_tests::skip(name, "no podman");
    }
    let host = Host::new();
    let daemon = start(&host);
    let conf = host.path("containers.conf");
    let plugins = format!("[engine.volume_plugins]\npolylane = '{}'\n", text(&daemon.socket));
    fs::write(&conf, plugins).expect("written");
    let podman = |arguments: &[&str]| {
        let mut command = Command::new("podman");
        command.args([
            "--root",
            text(&host.path("root")),
            "--runroot",
            text(&host.path("runroot")),
        ]);
        command.args(["--storage-driver", "vfs"]).args(arguments).env("CONTAINERS_CONF", &conf);
        let output = command.output().expect("podman");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    let volume = ["volume", "create", "--driver", "polylane", "--opt", "size=64M", "web"];
    assert_eq!(podman(&volume), "web");
    assert_eq!(done(&daemon, "List", &json!({}))["Volumes"][0]["Name"], "web");
    podman(&["volume", "inspect", "web"]);
    podman(&["volume", "rm", "web"]);
    assert_eq!(done(&daemon, "List", &json!({}))["Volumes"], json!([]));
}

/// A lane whose service does not answer keeps the daemon from no other request, whatever is asked
/// of its volume.
#[test]
fn a_volume_that_hangs_holds_up_no_other_request() {
    if unavailable("a_volume_that_hangs_holds_up_no_other_request") {
        return;
    }
    let host = Host::new();
    let daemon = start(&host);
    let options = json!({ "dir": host.dir("files") });
    let of = |id: &str| json!({ "Name": "hangs", "ID": id, "Opts": options });
    done(&daemon, "Create", &of("one"));
    done(&daemon, "Mount", &of("one"));
    let service = child(host.supervisor(), "polylane-svc");
    signal_to(service, "STOP");
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let again = scope.spawn(|| ask(&daemon, "Mount", &of("two")).status);
        for _ in 0..20 {
            let begin = Instant::now();
            assert_eq!(daemon.request("GET", "/v1/tasks", "").status, 200);
            longest = longest.max(begin.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
        signal_to(service, "CONT");
        again.join().expect("no panic");
    });
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    for id in ["one", "two"] {
        let _ = ask(&daemon, "Unmount", &of(id));
    }
    done(&daemon, "Remove", &of("one"));
    host.assert_nothing_is_left();
}
