//! `polylane oci` with engines that stop a container and start it again: its own volume stays while
//! the engine has the container, and never comes to another one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use polylane_tests::host::{Host, child, text, until};
use polylane_tests::oci::{Bundle, files, podman, said};
use polylane_tests::pool::signal_to;
use polylane_tests::{lacks, skip};
use serde_json::{Value, json};

/// What a container does: it adds a line to what it has, and says all.
const ADD: &str = "echo x >>/kept; cat /kept";

/// An engine that keeps its containers' bundles as podman does.
struct Engine {
    bundle: Bundle,
}

impl Engine {
    fn new(name: &str) -> Option<Engine> {
        let bundle = Bundle::new(name)?;
        bundle.host.dir("engine");
        bundle.write(ADD, json!({ "polylane.root": "own", "io.container.manager": "libpod" }));
        Some(Engine { bundle })
    }

    /// The directory of a container's bundle; where there is none, it is made.
    fn dir(&self, id: &str) -> PathBuf {
        let dir = self.bundle.host.path("engine").join(id).join("userdata");
        fs::create_dir_all(&dir).expect("mkdir");
        let mut config = self.config();
        config["root"]["path"] = json!(self.bundle.root);
        fs::write(dir.join("config.json"), config.to_string()).expect("written");
        dir
    }

    fn config(&self) -> Value {
        let text = fs::read(self.bundle.dir().join("config.json")).expect("read");
        serde_json::from_slice(&text).expect("JSON")
    }

    fn command(&self, id: &str, words: &[&str]) -> Command {
        self.bundle.command_in(&self.dir(id), "runtime", words)
    }

    fn run(&self, id: &str) -> Output {
        self.command(id, &["run", id]).output().expect("polylane")
    }

    /// Makes a container that runs until it is deleted, and starts it.
    fn start(&self, id: &str) {
        let mut create = self.command(id, &["create", id]);
        let made = create.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(made.expect("polylane").success());
        self.bundle.succeeds(&["start", id]);
    }

    /// The directory of a container's files.
    fn place(&self, id: &str) -> PathBuf {
        let all = files(&self.bundle.host.path("state/polylane/oci"));
        let own = all.iter().find_map(|path| path.parent().filter(|dir| dir.ends_with(id)));
        own.expect("its files").to_path_buf()
    }

    /// The engine removes a container; another command is then told nothing of it.
    fn remove(&self, id: &str) {
        fs::remove_dir_all(self.bundle.host.path("engine").join(id)).expect("rm");
    }

    /// A command for another container, as each looks after those that are gone.
    fn pass(&self) {
        self.bundle.call(&["delete", "--force", "nobody"]);
    }

    /// The files of a container.
    fn kept(&self, id: &str) -> Vec<String> {
        let all = files(&self.bundle.host.path("state/polylane/oci"));
        let of = |path: &PathBuf| path.parent().is_some_and(|dir| dir.ends_with(id));
        let all = all.iter().filter(|path| of(path));
        let mut names: Vec<String> =
            all.filter_map(|path| Some(path.file_name()?.to_str()?.to_string())).collect();
        names.sort();
        names
    }
}

/// A script that ends with its container.
const FOREVER: &str = "while :; do sleep 0.1; done";

const KEPT: [&str; 4] = ["holder.json", "lock", "upper.img", "upper.img.polylane"];

#[test]
fn a_volume_stays_while_the_engine_has_the_container() {
    let name = "a_volume_stays_while_the_engine_has_the_container";
    let Some(engine) = Engine::new(name) else { return };
    assert_eq!(said(&engine.run("one")), "x\n");
    assert_eq!(engine.kept("one"), KEPT);
    assert_eq!(said(&engine.run("one")), "x\nx\n");
    assert_eq!(said(&engine.run("other")), "x\n");
    // By the commands of an engine, and `delete` again, as of one that was stopped.
    engine.bundle.write(
        "echo y >>/kept; while :; do sleep 0.1; done",
        engine.config()["annotations"].clone(),
    );
    engine.start("one");
    let has = || engine.bundle.call(&["exec", "one", "cat", "/kept"]).stdout == b"x\nx\ny\n";
    until("it has written", has);
    engine.pass();
    // One of this name is there: it goes on as it was.
    let second = engine.run("one");
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && words.contains("delete it first"), "{words}");
    assert!(has());
    for _ in 0..2 {
        engine.bundle.succeeds(&["delete", "--force", "one"]);
        assert_eq!(engine.kept("one"), KEPT);
    }
    // A container that cannot be made keeps what it had.
    engine.bundle.write(ADD, engine.config()["annotations"].clone());
    let dir = engine.dir("one");
    let mut config = engine.config();
    config["root"]["path"] = json!(engine.bundle.root);
    config["process"]["args"] = json!(["/nope"]);
    fs::write(dir.join("config.json"), config.to_string()).expect("written");
    let mut nope = engine.bundle.command_in(&dir, "runtime", &["run", "one"]);
    assert!(!nope.output().expect("polylane").status.success());
    assert_eq!(said(&engine.run("one")), "x\nx\ny\nx\n");
    engine.remove("one");
    engine.pass();
    assert_eq!((engine.kept("one"), engine.kept("other").len()), (Vec::new(), KEPT.len()));
    assert_eq!(said(&engine.run("one")), "x\n");
    // Another container of the same name, before any command saw that the first one is gone.
    engine.remove("one");
    assert_eq!(said(&engine.run("one")), "x\n");
    engine.remove("one");
    engine.remove("other");
    let listed = engine.bundle.host.command(&["container", "ps"]).output().expect("polylane");
    said(&listed);
    assert_eq!((engine.kept("one"), engine.kept("other")), (Vec::new(), Vec::new()));
    engine.bundle.assert_nothing_is_left();
}

/// As on a disk that is not mounted: nothing is known of the containers that it has.
#[test]
fn a_volume_stays_while_the_engines_directory_is_away() {
    let name = "a_volume_stays_while_the_engines_directory_is_away";
    let Some(engine) = Engine::new(name) else { return };
    let host = &engine.bundle.host;
    assert_eq!(said(&engine.run("one")), "x\n");
    let away = || fs::rename(host.path("engine"), host.path("away")).expect("moved");
    away();
    engine.pass();
    assert_eq!(engine.kept("one"), KEPT);
    // Another one is at its place.
    let refused = engine.run("one");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), words.lines().count()), (Some(1), 1), "{words}");
    assert!(words.contains("remove it to begin without"), "{words}");
    engine.pass();
    assert_eq!(engine.kept("one"), KEPT);
    fs::remove_dir_all(host.path("engine")).expect("rm");
    fs::rename(host.path("away"), host.path("engine")).expect("moved");
    assert_eq!(said(&engine.run("one")), "x\nx\n");
    // What is wrong with the record keeps the volume as well.
    let all = files(&host.path("state/polylane/oci"));
    let holder = all.iter().find(|path| path.ends_with("holder.json")).expect("there");
    let right = fs::read(holder).expect("read");
    fs::write(holder, "{}").expect("written");
    engine.pass();
    assert!(!engine.run("one").status.success());
    assert_eq!(engine.kept("one"), KEPT);
    fs::write(holder, right).expect("written");
    assert_eq!(said(&engine.run("one")), "x\nx\nx\n");
    engine.remove("one");
    engine.bundle.assert_nothing_is_left();
}

/// As a runtime that takes two containers for one, or a directory that is not the right one now.
#[test]
fn a_volume_stays_whose_container_another_one_is_taken_for() {
    let name = "a_volume_stays_whose_container_another_one_is_taken_for";
    let Some(engine) = Engine::new(name) else { return };
    assert_eq!(said(&engine.run("one")), "x\n");
    let refused = engine.bundle.command_in(&engine.dir("two"), "runtime", &["run", "one"]).output();
    let refused = refused.expect("polylane");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), words.lines().count()), (Some(1), 1), "{words}");
    assert!(words.contains("which its engine still has"), "{words}");
    assert_eq!(said(&engine.run("one")), "x\nx\n");
    engine.remove("one");
    engine.bundle.assert_nothing_is_left();
}

/// The host went down under a container, and the engine removed it without the runtime.
#[test]
fn a_container_that_ran_when_the_host_went_down_leaves_nothing() {
    let name = "a_container_that_ran_when_the_host_went_down_leaves_nothing";
    let Some(engine) = Engine::new(name) else { return };
    assert_eq!(said(&engine.run("one")), "x\n");
    fs::write(engine.place("one").join("config.json"), "{}").expect("written");
    engine.pass();
    assert_eq!(engine.kept("one").len(), KEPT.len() + 1);
    engine.remove("one");
    engine.pass();
    assert_eq!(engine.kept("one"), Vec::<String>::new());
    // One that runs still, whatever became of the engine's directory.
    engine.bundle.write(FOREVER, engine.config()["annotations"].clone());
    engine.start("two");
    engine.remove("two");
    engine.pass();
    let found = engine.bundle.call(&["exec", "two", "cat", "/etc/old"]);
    assert_eq!(said(&found), "old\n");
    assert_eq!(engine.kept("two").len(), KEPT.len() + 1);
    engine.bundle.succeeds(&["delete", "--force", "two"]);
    engine.bundle.assert_nothing_is_left();
}

/// Killed when the runtime has its configuration, and removed without the runtime, as engines do
/// with a container that they take for one that was never made.
#[test]
fn a_creation_that_was_killed_leaves_nothing_to_the_next_command() {
    let name = "a_creation_that_was_killed_leaves_nothing_to_the_next_command";
    let Some(engine) = Engine::new(name) else { return };
    let host = &engine.bundle.host;
    let script = "case \" $* \" in
        *\" create \"*) : >$BEGUN; exec sleep 100;;
        *\" list \"*) echo $$ >>$ASKED; echo $SAYS >&2; eval \"$HANG\"; exec runc $LIST \"$@\";;
        *) exec runc \"$@\";; esac";
    let slow = host.program("slow-runtime", &format!("#!/bin/sh\n{script}\n"));
    let (begun, asked) = (host.path("begun"), host.path("asked"));
    let pass_with = |name: &str, value: &str| {
        let mut pass = engine.bundle.command(&["delete", "--force", "nobody"]);
        let own = [("LIST", ""), ("SAYS", ""), ("HANG", ""), (name, value)];
        pass.envs(own).env("ASKED", &asked).output().expect("polylane");
    };
    let kill = |id: &str| {
        let _ = fs::remove_file(&begun);
        let mut create = engine.command(id, &["create", id]);
        create.env("POLYLANE_OCI_RUNTIME", &slow).env("BEGUN", &begun).env("LIST", "");
        let mut child = create.stderr(Stdio::null()).spawn().expect("polylane");
        until("the runtime makes it", || begun.exists());
        child.kill().expect("kill");
        child.wait().expect("wait");
    };
    let mounts = |id: &str| {
        let own = format!("/{id}/root ");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        table.lines().filter(|line| line.contains(&own)).count()
    };
    let gone = |id: &str| {
        until("all of it is gone", || {
            pass_with("LIST", "");
            mounts(id) == 0 && engine.kept(id).is_empty()
        });
    };
    kill("one");
    engine.remove("one");
    assert_eq!(mounts("one"), 1);
    // A runtime that says nothing of it, that cannot load it, or that hangs.
    let damaged = ("SAYS", "load container one: invalid");
    for (name, value) in [("LIST", "--no-such-option"), damaged, ("HANG", "exec sleep 100")] {
        let _ = fs::remove_file(&asked);
        pass_with(name, value);
        assert_eq!((mounts("one"), engine.kept("one").len()), (1, KEPT.len() + 2), "{value}");
        let pids = fs::read_to_string(&asked).expect("it was asked");
        let lives = |pid: &str| Path::new("/proc").join(pid).exists();
        until("none is left", || !pids.lines().any(lives));
    }
    gone("one");
    // One that no directory tells of.
    engine.bundle.write(ADD, json!({ "polylane.root": "own" }));
    kill("two");
    gone("two");
    // One that the engine still has: what it changed before is there.
    engine.bundle.write(ADD, json!({ "polylane.root": "own", "io.container.manager": "libpod" }));
    assert_eq!(said(&engine.run("three")), "x\n");
    kill("three");
    until("its lane is gone", || {
        pass_with("LIST", "");
        mounts("three") == 0
    });
    assert_eq!(engine.kept("three"), KEPT);
    assert_eq!(said(&engine.run("three")), "x\nx\n");
    engine.remove("three");
    engine.bundle.assert_nothing_is_left();
}

/// A configuration of another run of this host is of no container; one of another host may be.
#[test]
fn a_container_of_a_former_run_of_the_host_leaves_nothing() {
    let name = "a_container_of_a_former_run_of_the_host_leaves_nothing";
    let Some(engine) = Engine::new(name) else { return };
    engine.bundle.write(FOREVER, json!({ "polylane.root": "own" }));
    let mut create = engine.command("one", &["create", "one"]);
    create.env("POLYLANE_OCI_RUNTIME", "/bin/true").stderr(Stdio::null());
    assert!(create.status().expect("polylane").success());
    let path = engine.place("one").join("config.json");
    let right: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    let write = |host: &str, boot: &str| {
        let mut config = right.clone();
        let all = [("io.polylane.host", host), ("io.polylane.boot", boot)];
        for (name, value) in all.into_iter().filter(|(_, value)| !value.is_empty()) {
            assert!(config["annotations"][name].is_string());
            config["annotations"][name] = json!(value);
        }
        fs::write(&path, config.to_string()).expect("written");
    };
    let own = right["annotations"]["io.polylane.host"].as_str().expect("a text");
    let (number, _) = own.split_once(' ').expect("a number and a name");
    // A copy of this host has its number.
    let copy = format!("{number} another");
    for (host, boot) in [("", ""), ("another", "former"), ("another", ""), (&copy, "former")] {
        write(host, boot);
        engine.pass();
        assert!(path.exists(), "{host} {boot}");
    }
    write("", "former");
    engine.remove("one");
    engine.bundle.assert_nothing_is_left();
}

/// A lane goes while something is in it; for any other reason that it cannot be unmounted it stays.
#[test]
fn a_lane_that_cannot_be_unmounted_is_said() {
    let Some(engine) = Engine::new("a_lane_that_cannot_be_unmounted_is_said") else { return };
    let host = &engine.bundle.host;
    let data = host.dir("data");
    let source = format!("dir:{}", text(&data));
    engine.bundle.list(&[&source]);
    let annotations = json!({
        "polylane.root": "own", "polylane.mount.data": format!("{source}:/tmp"),
        "io.container.manager": "libpod"
    });
    engine.bundle.write(FOREVER, annotations);
    engine.start("s");
    let other = host.dir("other");
    said(&host.command(&["mount", "--share", &source, text(&other)]).output().expect("polylane"));
    let delete = || {
        let output = engine.bundle.call(&["delete", "--force", "s"]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (done, words) = delete();
    assert!(!done && words.contains(&format!("shared at {}", text(&other))), "{words}");
    fs::write(other.join("file"), "shared\n").expect("the lane is there");
    said(&host.command(&["umount", text(&other)]).output().expect("polylane"));
    // What runs no more is not there for the runtime either.
    let (done, words) = delete();
    assert!(done, "{words}");
    assert_eq!(engine.kept("s"), KEPT);
    engine.start("s");
    let used = fs::File::open(engine.place("s").join("root/etc/old")).expect("open");
    let (done, words) = delete();
    assert!(done && words.contains("root: cannot unmount it: Device or resource busy"), "{words}");
    drop(used);
    engine.remove("s");
    engine.bundle.assert_nothing_is_left();
}

/// An engine's directory that does not answer holds up no command of other containers.
#[test]
fn a_directory_that_hangs_holds_up_nobody() {
    let Some(engine) = Engine::new("a_directory_that_hangs_holds_up_nobody") else { return };
    assert_eq!(said(&engine.run("h")), "x\n");
    let lane = Host::new();
    let at = lane.dir("lane");
    said(&lane.command(&["mount", "mem:16M", text(&at)]).output().expect("polylane"));
    let holder = engine.place("h").join("holder.json");
    let right = fs::read(&holder).expect("read");
    let mut record: Value = serde_json::from_slice(&right).expect("JSON");
    // A name that the kernel has to ask for.
    record["own"]["path"] = json!(at.join("h/userdata"));
    fs::write(&holder, record.to_string()).expect("written");
    let service = child(lane.supervisor(), "polylane-svc");
    signal_to(service, "STOP");
    let begin = Instant::now();
    let mut pass = engine.bundle.command(&["delete", "--force", "nobody"]);
    let mut pass = pass.stderr(Stdio::null()).spawn().expect("polylane");
    while begin.elapsed() < Duration::from_secs(15) && pass.try_wait().expect("wait").is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = pass.try_wait().expect("wait").is_some();
    signal_to(service, "CONT");
    pass.wait().expect("wait");
    assert!(ended, "it waited for the lane");
    assert_eq!(engine.kept("h"), KEPT);
    said(&lane.command(&["umount", text(&at)]).output().expect("polylane"));
    fs::write(&holder, right).expect("written");
    assert_eq!(said(&engine.run("h")), "x\nx\n");
    engine.remove("h");
    engine.bundle.assert_nothing_is_left();
}

/// Killed at any moment: what the container had is there at its next start, or nothing stays.
#[test]
fn a_deletion_that_was_killed_loses_nothing() {
    let Some(engine) = Engine::new("a_deletion_that_was_killed_loses_nothing") else { return };
    let annotations = engine.config()["annotations"].clone();
    assert_eq!(said(&engine.run("k")), "x\n");
    for step in 0..8_u32 {
        engine.bundle.write(FOREVER, annotations.clone());
        let mut create = engine.command("k", &["create", "k"]);
        let made = create.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(made.expect("polylane").success(), "step {step}");
        let mut delete = engine.bundle.command(&["delete", "--force", "k"]);
        let mut child = delete.stderr(Stdio::null()).spawn().expect("polylane");
        std::thread::sleep(Duration::from_millis(30) * step);
        let _ = child.kill();
        let _ = child.wait();
        engine.pass();
        // The next one of an engine, or its start at once where the runtime has none any more.
        if step % 2 == 0 {
            engine.bundle.succeeds(&["delete", "--force", "k"]);
        } else {
            let ended = || engine.bundle.call(&["state", "k"]).status.code() != Some(0);
            until("the runtime has none", || {
                let _ = Command::new("runc")
                    .arg("--root")
                    .arg(engine.bundle.host.path("runtime"))
                    .args(["delete", "--force", "k"])
                    .output();
                ended()
            });
        }
        engine.bundle.write(ADD, annotations.clone());
        assert_eq!(said(&engine.run("k")).lines().count(), step as usize + 2, "step {step}");
    }
    engine.remove("k");
    engine.bundle.assert_nothing_is_left();
}

#[test]
fn commands_for_one_container_at_once_take_turns() {
    let Some(engine) = Engine::new("commands_for_one_container_at_once_take_turns") else { return };
    let engine_keeps = engine.config()["annotations"].clone();
    for (is_kept, annotations) in [(true, engine_keeps), (false, json!({ "polylane.root": "own" }))]
    {
        engine.bundle.write(ADD, annotations);
        for round in 1..=5 {
            let others = ["t", "t", "nobody", "t"];
            let others = others.map(|id| {
                let mut delete = engine.bundle.command(&["delete", "--force", id]);
                delete.stderr(Stdio::null()).spawn().expect("polylane")
            });
            let output = engine.run("t");
            for mut other in others {
                assert!(other.wait().expect("ended").success(), "round {round}");
            }
            let lines = if is_kept { round } else { 1 };
            assert_eq!(said(&output).lines().count(), lines, "round {round}, kept: {is_kept}");
        }
        engine.remove("t");
        engine.pass();
    }
    engine.bundle.assert_nothing_is_left();
}

/// containerd and docker: the bundle goes at each stop, the directory of what was changed does not.
#[test]
fn a_volume_stays_while_an_engines_layer_is_there() {
    let name = "a_volume_stays_while_an_engines_layer_is_there";
    let Some(engine) = Engine::new(name) else { return };
    let host = &engine.bundle.host;
    engine.bundle.write(ADD, json!({ "polylane.root": "own" }));
    // The root and the runtime's state of a container; a bundle for this time alone.
    let run = |root: &Path, runtime: &str| {
        let dir = engine.dir("c");
        let mut config = engine.config();
        config["root"]["path"] = json!(root);
        fs::write(dir.join("config.json"), config.to_string()).expect("written");
        let mut run = engine.bundle.command_in(&dir, runtime, &["run", "c"]);
        let output = said(&run.output().expect("polylane"));
        engine.remove("c");
        engine.pass();
        output
    };
    let merged = host.dir("merged");
    let layer = host.path("snapshots/1");
    for dir in [&layer.join("fs"), &layer.join("work")] {
        fs::create_dir_all(dir).expect("mkdir");
    }
    let overlay = format!(
        "lowerdir={},upperdir={1}/fs,workdir={1}/work",
        text(&engine.bundle.root),
        text(&layer)
    );
    for expected in ["x\n", "x\nx\n"] {
        let words = ["-t", "overlay", "overlay", "-o", &overlay, text(&merged)];
        let mounted = Command::new("mount").args(words).status().expect("mount");
        assert!(mounted.success(), "an overlay");
        let found = run(&merged, "runtime");
        assert!(Command::new("umount").arg(&merged).status().expect("umount").success());
        assert_eq!(found, expected);
        assert_eq!(engine.kept("c"), KEPT);
    }
    fs::remove_dir_all(&layer).expect("rm");
    engine.pass();
    assert_eq!(engine.kept("c"), Vec::<String>::new());
    // A directory that engines make for a container and one that they do not.
    fs::create_dir_all(host.path("docker/moby")).expect("mkdir");
    let own = host.path("layers/c");
    fs::create_dir_all(host.path("layers")).expect("mkdir");
    fs::rename(&engine.bundle.root, &own).expect("moved");
    assert_eq!(
        (run(&own, "docker/moby"), run(&own, "docker/moby")),
        ("x\n".into(), "x\nx\n".into())
    );
    assert_eq!((run(&own, "runtime"), run(&own, "runtime")), ("x\n".into(), "x\n".into()));
    fs::rename(&own, &engine.bundle.root).expect("moved");
    engine.bundle.assert_nothing_is_left();
}

/// A container whose root is another user of the host, by each runtime.
#[test]
fn a_container_with_users_of_its_own_runs_on_a_lane() {
    let name = "a_container_with_users_of_its_own_runs_on_a_lane";
    let Some(engine) = Engine::new(name) else { return };
    let host = &engine.bundle.host;
    let dir = engine.dir("u");
    let mut config = engine.config();
    config["root"]["path"] = json!(engine.bundle.root);
    config["process"]["args"] = json!(["sh", "-c", "cat /etc/old"]);
    let mapping = |id: u32| json!([{ "containerID": 0, "hostID": id, "size": 65536 }]);
    config["linux"]["uidMappings"] = mapping(100_000);
    config["linux"]["gidMappings"] = mapping(200_000);
    config["linux"]["namespaces"].as_array_mut().expect("all").push(json!({ "type": "user" }));
    let plain = |annotations: Value| {
        config["annotations"] = annotations;
        fs::write(dir.join("config.json"), config.to_string()).expect("written");
    };
    let mut plain = plain;
    let run = |runtime: &str| {
        let mut run = engine.bundle.command_in(&dir, "runtime", &["run", "u"]);
        // crun gives standard input to the container's root: a pipe, not the host's /dev/null.
        run.env("POLYLANE_OCI_RUNTIME", runtime).stdin(Stdio::piped()).output().expect("polylane")
    };
    let pass = |mode| fs::set_permissions(host.path(""), PermissionsExt::from_mode(mode));
    plain(json!({}));
    pass(0o711).expect("chmod");
    fs::set_permissions(host.path("bundle"), PermissionsExt::from_mode(0o711)).expect("chmod");
    let runtimes: Vec<&str> =
        ["runc", "crun"].into_iter().filter(|runtime| run(runtime).status.success()).collect();
    if runtimes.is_empty() {
        return skip(name, "no runtime makes users of a container's own here");
    }
    let data = host.dir("data");
    fs::write(data.join("file"), "data\n").expect("written");
    engine.bundle.list(&[&format!("dir:{}", text(&data))]);
    let mount = format!("dir:{}:/tmp", text(&data));
    plain(json!({
        "polylane.root": "own", "polylane.mount.data": mount, "io.container.manager": "libpod"
    }));
    fs::set_permissions(host.path("state"), PermissionsExt::from_mode(0o700)).expect("chmod");
    let refused = run(runtimes[0]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    let line = format!("{}: the container's root is user 100000 here", text(&host.path("state")));
    assert!(!refused.status.success() && words.contains(&line), "{words}");
    fs::set_permissions(host.path("state"), PermissionsExt::from_mode(0o711)).expect("chmod");
    for runtime in &runtimes {
        assert_eq!(said(&run(runtime)), "old\n", "{runtime}");
    }
    let all = files(&host.path("state/polylane/oci"));
    let upper = all.iter().find(|path| path.ends_with("upper.img")).expect("kept");
    let mode = |path: &Path| {
        let found = path.metadata().expect("there");
        (found.mode() & 0o777, found.gid())
    };
    let own = upper.parent().expect("its directory");
    assert_eq!((mode(upper).0, mode(own)), (0o600, (0o710, 200_000)));
    for above in own.ancestors().skip(1).take(3) {
        assert_eq!(mode(above), (0o711, 0), "{}", above.display());
    }
    engine.remove("u");
    engine.bundle.assert_nothing_is_left();
}

#[test]
fn podman_stops_containers_and_starts_them_again() {
    let name = "podman_stops_containers_and_starts_them_again";
    if lacks(name, &["podman"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let bundle = &engine.bundle;
    let root = text(&bundle.root).to_string();
    let podman = |words: &[&str]| podman(bundle, words).output().expect("podman");
    let run = |name: &str| {
        let limits = ["--ulimit", "nofile=99:99", "--ulimit", "nproc=99:99"];
        let first = ["run", "-d", "--name", name, "--network", "none"];
        let own = ["--annotation", "polylane.root=own", "--rootfs", &root];
        let program = ["sh", "-c", "while :; do sleep 0.1; done"];
        podman(&[&first[..], &limits, &own, &program].concat())
    };
    let made = run("one");
    if !made.status.success() {
        return skip(name, &String::from_utf8_lossy(&made.stderr));
    }
    let add = |name: &str| said(&podman(&["exec", name, "sh", "-c", ADD]));
    assert_eq!(add("one"), "x\n");
    said(&podman(&["stop", "-t", "0", "one"]));
    said(&podman(&["start", "one"]));
    assert_eq!(add("one"), "x\nx\n");
    said(&podman(&["restart", "-t", "0", "one"]));
    assert_eq!(add("one"), "x\nx\nx\n");
    said(&run("two"));
    assert_eq!(add("two"), "x\n");
    said(&podman(&["stop", "-t", "0", "two"]));
    said(&podman(&["rm", "-f", "-t", "0", "one"]));
    said(&podman(&["start", "two"]));
    assert_eq!(add("two"), "x\nx\n");
    let uppers = || {
        let all = files(&bundle.host.path("state/polylane/oci"));
        all.iter().filter(|path| path.ends_with("upper.img")).count()
    };
    assert_eq!(uppers(), 1);
    said(&podman(&["rm", "-f", "-t", "0", "two"]));
    bundle.assert_nothing_is_left();
}
