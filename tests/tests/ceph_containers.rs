//! Containers whose images and changes are on one Ceph file system (`container run --store`).
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use polylane_tests::ceph::Cluster;
use polylane_tests::host::{Host, service_below, succeeded, text, until};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks};
use serde_json::Value;

/// A host with a state directory and an image of its own.
struct Engine {
    cluster: Cluster,
    host: Host,
    /// The directory of the cluster, as `ceph:USER@FS:PATH`.
    store: String,
}

/// Programs of the image.
const PROGRAMS: [&str; 12] =
    ["sh", "true", "cat", "rm", "ls", "mkdir", "mv", "ln", "sync", "touch", "setfattr", "grep"];

const WAYS: [&[&str]; 3] =
    [&[], &["--no-preload"], &["--file-cache", "writeback", "--file-cache-size", "8M"]];

impl Engine {
    /// `None`: said why.
    fn new(test: &str) -> Option<Engine> {
        let cluster = Cluster::for_test(test)?;
        if lacks(test, &["runc", "setfattr"]) {
            return None;
        }
        let store = format!("ceph:lane@cephfs:{}", cluster.directory("store"));
        let engine = Engine { cluster, host: Host::new(), store };
        engine.host.dir("state");
        engine.import();
        Some(engine)
    }

    /// Imports an image of the host's programs, which have the library, and two files.
    fn import(&self) {
        let root = self.host.path("root");
        for place in ["bin", "etc", "srv"] {
            fs::create_dir_all(root.join(place)).expect("mkdir");
        }
        let mut files: BTreeSet<String> = BTreeSet::new();
        for program in PROGRAMS {
            let path = format!("/usr/bin/{program}");
            fs::copy(&path, root.join("bin").join(program)).expect("copy");
            let listed = Command::new("ldd").arg(&path).output().expect("ldd");
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
            files.extend(words.map(str::to_string));
        }
        for file in files {
            let to = root.join(&file[1..]);
            fs::create_dir_all(to.parent().expect("a directory")).expect("mkdir");
            fs::copy(&file, &to).expect("copy");
        }
        fs::write(root.join("srv/word"), "one\n").expect("write");
        fs::write(root.join("srv/gone"), "gone").expect("write");
        self.succeeds(&["image", "import", text(&root), "web"]);
    }

    fn run(&self, words: &[&str]) -> Output {
        self.host.command(words).output().expect("polylane")
    }

    /// Its standard output.
    fn succeeds(&self, words: &[&str]) -> String {
        succeeded(words, &self.run(words))
    }

    /// `polylane container WORD` with a store.
    fn words<'a>(&'a self, word: &'a str, conf: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let words = ["container", word, "--store", &self.store, "--ceph-conf", conf];
        [&words[..], more].concat()
    }

    fn conf(&self) -> String {
        text(&self.cluster.conf()).to_string()
    }

    /// What is at a place below the store's directory.
    fn names(&self, path: &str) -> Vec<String> {
        let place = self.store.trim_start_matches("ceph:lane@");
        let listed =
            self.cluster.run(&format!("admin@{place}"), &[], &format!("ls -A /lane/{path}"));
        String::from_utf8_lossy(&listed.stdout).lines().map(str::to_string).collect()
    }

    fn assert_nothing_is_left(&self) {
        assert_eq!(self.succeeds(&["container", "ps", "--all", "--json"]).trim(), "[]");
        assert_eq!(self.names("containers"), Vec::<String>::new());
        assert_eq!(self.names("images/used"), Vec::<String>::new());
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let own = text(&self.host.path("state")).to_string();
        assert_eq!(table.lines().filter(|line| line.contains(&own)).count(), 0, "{table}");
        let root = self.store.trim_start_matches("ceph:lane@cephfs:");
        until("no session is left", || self.cluster.sessions(root).is_empty());
    }
}

/// The image is copied once; what a container changes is its own, by both ways in, and is there
/// when it starts again and after its service was killed.
#[test]
fn a_container_has_its_image_and_its_changes_on_one_cluster() {
    let Some(engine) = Engine::new("a_container_has_its_image_and_its_changes_on_one_cluster")
    else {
        return;
    };
    let conf = engine.conf();
    let script = "cat /srv/word; cat /etc/hostname; rm /srv/gone; ls /srv; echo two >> /srv/word; \
                  mkdir /srv/d && mv /srv/word /srv/d/w && ln /srv/d/w /w; cat /w; \
                  ls -A / | grep -v lib; grep -c libpolylane /proc/self/maps || :";
    for more in WAYS {
        let new = [more, &["--name", "c", "web", "/bin/sh", "-ec", script]].concat();
        let said = engine.succeeds(&engine.words("run", &conf, &new));
        let wanted = "one\nc\nword\none\ntwo\nbin\ndev\netc\nproc\nsrv\nsys\nw\n";
        let (said, maps) = said.trim_end().rsplit_once('\n').expect("lines");
        assert_eq!(maps == "0", more.contains(&"--no-preload"), "{more:?}: the library");
        let said = format!("{said}\n");
        assert_eq!(said, wanted, "{more:?}");
        assert_eq!(engine.names("images/layers").len(), 1);
        let client = format!("ceph:lane@cephfs:{}", &engine.store["ceph:lane@cephfs:".len()..]);
        let inspected = engine.succeeds(&["container", "inspect", "c"]);
        let one: Value = serde_json::from_str(&inspected).expect("JSON");
        assert_eq!(one[0]["store"], client);
        assert!(one[0]["layers"][0].as_str().is_some_and(|layer| layer.starts_with(&client)));
        // What it changed, as a layer.
        let layer = engine.host.path("layer.tar");
        engine.succeeds(&["image", "diff", "c", "-o", text(&layer)]);
        let list = Command::new("tar").arg("tf").arg(&layer).output().expect("tar");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(list.contains("srv/.wh..wh..opq\n") && list.contains("srv/d/w\n"), "{list}");
        fs::remove_file(&layer).expect("rm");
        engine.succeeds(&["container", "rm", "c"]);
        engine.assert_nothing_is_left();
    }
}

/// Programs of a container go on when its service is killed; a second container of the image has
/// the image's files.
#[test]
fn containers_of_a_cluster_go_on_when_a_service_is_killed() {
    let Some(engine) = Engine::new("containers_of_a_cluster_go_on_when_a_service_is_killed") else {
        return;
    };
    let conf = engine.conf();
    let script = "exec 3</srv/word; n=0; while [ ! -e /stop ]; do n=$((n + 1)); \
                  echo $n > /srv/n.new && sync /srv/n.new && mv /srv/n.new /srv/n; \
                  done 2>/dev/null; cat <&3";
    for (name, more) in [("a", &["-d"][..]), ("b", &["-d", "--no-preload"])] {
        let new = [more, &["--name", name, "web", "/bin/sh", "-c", script]].concat();
        engine.succeeds(&engine.words("run", &conf, &new));
    }
    for name in ["a", "b"] {
        let cat = ["container", "exec", name, "/bin/cat", "/srv/n"];
        let count = || String::from_utf8_lossy(&engine.run(&cat).stdout).trim().parse::<u64>();
        until("it counts", || count().is_ok_and(|count| count > 2));
        let root = root_of(&engine, name);
        let before = service_of(&root).expect("a service");
        signal_to(before, "KILL");
        until("there is another service", || service_of(&root).is_some_and(|it| it != before));
        let seen = count().unwrap_or(0);
        until("it goes on", || count().is_ok_and(|count| count > seen + 2));
        engine.succeeds(&["container", "exec", name, "/bin/touch", "/stop"]);
        let ended = || engine.succeeds(&["container", "ps", "--json"]);
        until("it has ended", || !ended().contains(&format!("\"name\": \"{name}\"")));
        let logs = engine.succeeds(&["container", "logs", name]);
        assert!(logs.ends_with("one\n"), "{name}: {logs}");
        engine.succeeds(&["container", "rm", name]);
    }
    engine.assert_nothing_is_left();
}

/// Where the root of a container is mounted.
fn root_of(engine: &Engine, name: &str) -> String {
    let inspected = engine.succeeds(&["container", "inspect", name]);
    let one: Value = serde_json::from_str(&inspected).expect("JSON");
    one[0]["root"].as_str().expect("a root").to_string()
}

/// The service of the lane that is mounted there.
fn service_of(root: &str) -> Option<u32> {
    let listed = Command::new(binary()).args(["mount", "--json"]).output().expect("polylane");
    let mounts: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let mount = mounts.as_array()?.iter().find(|mount| mount["path"] == root)?;
    let supervisor = mount["supervisor"].as_u64()?;
    service_below(supervisor as u32)
}

#[test]
fn a_store_that_cannot_be_used_is_one_line_and_leaves_nothing() {
    let Some(engine) = Engine::new("a_store_that_cannot_be_used_is_one_line_and_leaves_nothing")
    else {
        return;
    };
    let conf = engine.conf();
    let refused = |words: &[&str], status: i32, part: &str| {
        let output = engine.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(status == 2 || said.lines().count() == 1, "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    };
    let base = ["container", "run", "--ceph-conf", &conf];
    let run = |more: &[&str], status, part: &str| {
        let end = ["web", "/bin/true"];
        refused(&[&base, more, &end[..]].concat(), status, part);
    };
    run(&["--store", "ceph:lane@nope"], 1, "no such file system");
    run(&["--store", "ceph:lane@cephfs:/nope"], 1, "no such");
    run(&["--store", "ceph:nobody@cephfs"], 1, "no key of client.nobody");
    run(&["--store", "dir:/tmp"], 2, "ceph:[USER@]FSNAME");
    run(&["--store", &engine.store, "--size", "1G"], 2, "--size");
    run(&[], 2, "--ceph-conf");
    engine.assert_nothing_is_left();
    // A container that was made and never started has a branch, which goes with it.
    let new = ["--name", "made", "web", "/bin/true"];
    engine.succeeds(&engine.words("create", &conf, &new));
    assert_eq!(engine.names("containers").len(), 1);
    refused(&engine.words("create", &conf, &new), 1, "a container has that name");
    engine.succeeds(&["container", "rm", "made"]);
    engine.assert_nothing_is_left();
}

/// A command that is killed as it makes a container leaves what the next one removes, or `rm`.
#[test]
fn what_a_killed_command_has_in_a_store_is_removed() {
    let Some(engine) = Engine::new("what_a_killed_command_has_in_a_store_is_removed") else {
        return;
    };
    let conf = engine.conf();
    let new = ["--name", "killed", "web", "/bin/true"];
    for round in 1..=6 {
        let mut command = engine.host.command(&engine.words("create", &conf, &new));
        let mut command = command.stdout(Stdio::null()).spawn().expect("polylane");
        std::thread::sleep(Duration::from_millis(60 * round));
        let _ = command.kill();
        let made = command.wait().expect("it ends").success();
        // What it started, a mount among it, ends or is known.
        let listed = || engine.succeeds(&["container", "ps", "--all", "--json"]);
        until("it is there, or gone", || made == listed().contains("killed"));
        // One that had come to its store is removed by `rm` alone, or is gone already.
        let removed = engine.run(&["container", "rm", "killed"]);
        let said = String::from_utf8_lossy(&removed.stderr).into_owned();
        let is_none = !made && said.contains("no such container");
        assert!(removed.status.success() || is_none, "{said}");
        until("its directory is gone", || {
            let _ = listed();
            let left = fs::read_dir(engine.host.path("state/polylane/containers"));
            left.into_iter().flatten().flatten().all(|entry| entry.file_name() == "lock")
        });
        engine.assert_nothing_is_left();
    }
}

/// A container whose cluster is gone cannot be removed; no other command waits for the cluster, and
/// the removal goes on when it is there again.
#[test]
fn a_removal_that_waits_for_its_cluster_holds_up_no_other_command() {
    let test = "a_removal_that_waits_for_its_cluster_holds_up_no_other_command";
    let Some(engine) = Engine::new(test) else { return };
    let conf = engine.host.path("ceph.conf");
    let whole = fs::read_to_string(engine.cluster.conf()).expect("ceph.conf");
    // Nothing listens there.
    let gone: String = whole
        .lines()
        .filter(|line| !line.trim().starts_with("mon host"))
        .map(|line| {
            format!("{}\n", line.replace("[global]", "[global]\nmon host = v1:127.0.0.1:1"))
        })
        .collect();
    assert!(gone.contains("mon host = v1:127.0.0.1:1"), "{gone}");
    let fails = |words: &[&str]| {
        let output = engine.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let stored = engine.words("create", text(&conf), &["--timeout", "3s"]);
    let make = |name| [&stored[..], &["--name", name, "web", "/bin/true"]].concat();
    fs::write(&conf, &whole).expect("write");
    for name in ["one", "two"] {
        engine.succeeds(&make(name));
    }
    fs::write(&conf, &gone).expect("write");
    for name in ["one", "two"] {
        let said = fails(&["container", "rm", name]);
        assert!(said.lines().count() == 1 && !said.contains("is not removed yet"), "{said}");
        // It was begun, and goes on with as little.
        assert_eq!(fails(&["container", "rm", name]), said);
    }
    // What is said would be that the cluster does not answer, had a command waited for it.
    let left = |name: &str| {
        format!(
            "polylane: {name}: has files in {} and is not removed yet: 'polylane container rm \
             {name}' goes on with that\n",
            engine.store
        )
    };
    let list = engine.run(&["container", "ps", "--all", "--json"]);
    let said = String::from_utf8_lossy(&list.stderr).into_owned();
    assert_eq!(
        said.lines().collect::<BTreeSet<_>>(),
        [left("one"), left("two")].iter().map(|it| it.trim_end()).collect()
    );
    assert_eq!(String::from_utf8_lossy(&list.stdout).trim(), "[]");
    let run = ["container", "run", "--rm", "--name", "other", "web", "/bin/cat", "/srv/word"];
    let other = engine.run(&run);
    assert_eq!(String::from_utf8_lossy(&other.stdout), "one\n");
    assert_eq!(String::from_utf8_lossy(&other.stderr), "");
    let named = ["container", "create", "--name", "one", "web", "/bin/true"];
    assert!(fails(&named).contains("one: a container has that name"), "its name is taken");
    assert!(fails(&["container", "start", "one"]).contains("no such container"));
    fs::write(&conf, &whole).expect("write");
    engine.succeeds(&["container", "rm", "one"]);
    // Who makes one in the same store waits for its cluster, and removes the others' files.
    engine.succeeds(&make("three"));
    assert_eq!(engine.names("containers").len(), 1);
    engine.succeeds(&["container", "rm", "three"]);
    engine.assert_nothing_is_left();
}
