//! What a container changed becomes an image or a layer.

use std::fs;
use std::process::{Command, Stdio};

use polylane_tests::host::{text, until};
use polylane_tests::lacks;
use serde_json::Value;

use super::{Engine, PASSWD};

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

    // Killed while its output waits for a reader: the container goes on.
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
