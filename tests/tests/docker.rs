//! Docker itself, a daemon of the test's own: volumes by the plugin, lanes by `polylane env`, and
//! containers by `polylane oci`. It has no bridge and no rules for packets, so that it leaves the
//! host's alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use polylane_tests::daemon::Daemon;
use polylane_tests::host::{Host, succeeded, succeeds, text, until};
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks, skip, unavailable};
use serde_json::{Value, json};

/// Each daemon takes seconds to start and to end: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The first version of the interface by which containers have annotations (Docker 24).
const ANNOTATIONS: &str = "1.43";

/// Docker and polylane's daemon. Dropped, both have ended.
struct Docker {
    docker: Child,
    /// Where Docker looks for the plugin of this name.
    plugin: PathBuf,
    polylane: Daemon,
    host: Host,
    _alone: MutexGuard<'static, ()>,
}

impl Docker {
    /// `None`: said why.
    fn new(name: &str) -> Option<Docker> {
        if unavailable(name) || lacks(name, &["dockerd", "docker", "runc", "busybox", "tar"]) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let host = Host::new();
        let state = [("XDG_STATE_HOME", &*host.dir("state"))];
        let polylane = Daemon::start_with(&host, &host.path("absent"), &state);
        fs::create_dir_all("/run/docker/plugins").expect("mkdir");
        let plugin = format!("/run/docker/plugins/polylane-{}.sock", std::process::id());
        let plugin = PathBuf::from(plugin);
        let _ = fs::remove_file(&plugin);
        symlink(&polylane.socket, &plugin).expect("link");
        let listed = format!("sources = [\"volume:{}\"]\n", text(&host.path("")));
        fs::write(host.path("oci.toml"), listed).expect("written");
        let (binary, listed) = (binary().display().to_string(), host.path("oci.toml"));
        let listed = listed.display();
        let script = format!("#!/bin/sh\nPOLYLANE_OCI_CONFIG='{listed}' exec '{binary}' \"$@\"\n");
        let program = host.program("runtime", &script);
        let runtime = json!({ "path": program, "runtimeArgs": ["oci"] });
        let config = json!({ "runtimes": { "polylane": runtime } }).to_string();
        fs::write(host.path("docker.json"), config).expect("written");
        let option = |name: &str, file: &str| format!("--{name}={}", text(&host.path(file)));
        let mut command = Command::new("dockerd");
        command.args([option("config-file", "docker.json"), option("data-root", "data")]);
        command.args([option("exec-root", "exec"), option("pidfile", "pid")]);
        command.arg(format!("--host=unix://{}", text(&host.path("docker.sock"))));
        command.args(["--storage-driver=vfs", "--bridge=none", "--iptables=false"]);
        command.args(["--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]);
        command.env("XDG_STATE_HOME", host.path("state")).stdin(Stdio::null());
        let log = fs::File::create(host.path("docker.log")).expect("a log");
        command.stdout(log.try_clone().expect("a copy")).stderr(log);
        let child = command.spawn().expect("dockerd");
        let mut docker = Docker { docker: child, plugin, polylane, host, _alone: alone };
        let ended = docker.begin();
        if ended {
            let said = fs::read_to_string(docker.host.path("docker.log")).unwrap_or_default();
            skip(name, said.lines().last().unwrap_or("dockerd ends at once"));
            return None;
        }
        docker.import();
        Some(docker)
    }

    /// Waits until Docker answers; whether it ended instead.
    fn begin(&mut self) -> bool {
        let ended = std::cell::Cell::new(false);
        let child = std::cell::RefCell::new(&mut self.docker);
        let (socket, log) = (self.host.path("docker.sock"), self.host.path("docker.log"));
        until("Docker answers", || {
            ended.set(!matches!(child.borrow_mut().try_wait(), Ok(None)));
            let said = fs::read_to_string(&log).unwrap_or_default();
            ended.get() || socket.exists() && said.contains("API listen on")
        });
        ended.get()
    }

    /// An image of a static busybox.
    fn import(&self) {
        let root = self.host.dir("root");
        for place in ["bin", "tmp", "data"] {
            fs::create_dir(root.join(place)).expect("mkdir");
        }
        fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("copy");
        for name in ["sh", "cat", "true"] {
            symlink("busybox", root.join("bin").join(name)).expect("link");
        }
        let tar = self.host.path("root.tar");
        let packed = Command::new("tar").args(["-cf", text(&tar), "-C", text(&root), "."]).status();
        assert!(packed.expect("tar").success());
        self.succeeds(&["import", text(&tar), "busybox"]);
    }

    fn call(&self, words: &[&str]) -> Output {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", format!("unix://{}", text(&self.host.path("docker.sock"))));
        command.env_remove("DOCKER_CONTEXT").env("HOME", self.host.path("state"));
        command.args(words).stdin(Stdio::null()).output().expect("docker")
    }

    fn succeeds(&self, words: &[&str]) -> String {
        succeeded(words, &self.call(words))
    }

    /// What a script says in a container.
    fn run(&self, options: &[&str], script: &str) -> String {
        let first = ["run", "--rm", "--network", "none"];
        self.succeeds(&[&first, options, &["busybox", "sh", "-euc", script]].concat())
    }

    /// No lane is. (Docker's own directory is one of its mounts.)
    fn assert_nothing_is_mounted(&self) {
        assert_eq!(self.host.mounts(), Vec::<Value>::new());
    }

    /// The name of the plugin.
    fn driver(&self) -> String {
        self.plugin.file_stem().and_then(|name| name.to_str()).expect("a name").to_string()
    }

    /// Whether both ends speak a version that has annotations.
    fn has_annotations(&self) -> bool {
        let version = |format: &str| {
            let said = self.succeeds(&["version", "--format", format]);
            let parts = said.trim().split('.').map(|part| part.parse::<u32>().unwrap_or(0));
            parts.collect::<Vec<_>>()
        };
        let first: Vec<u32> =
            ANNOTATIONS.split('.').map(|part| part.parse().expect("a number")).collect();
        let both = ["{{.Client.APIVersion}}", "{{.Server.APIVersion}}"];
        both.iter().all(|format| version(format) >= first)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        signal_to(self.docker.id(), "TERM");
        let _ = self.docker.wait();
        let _ = fs::remove_file(&self.plugin);
    }
}

/// A volume is there for one container after the other, and goes when it is removed.
#[test]
fn docker_has_its_volumes_by_the_plugin() {
    let Some(docker) = Docker::new("docker_has_its_volumes_by_the_plugin") else { return };
    let driver = docker.driver();
    let make = ["volume", "create", "--driver", &driver, "--opt", "size=64M", "web"];
    assert_eq!(docker.succeeds(&make), "web\n");
    let kind = "while read a b c d; do [ $b != /data ] || echo $c; done </proc/mounts";
    let said = docker.run(&["-v", "web:/data"], &format!("echo kept >/data/f; {kind}"));
    assert_eq!(said, "fuse.polylane\n");
    docker.assert_nothing_is_mounted();
    assert_eq!(docker.run(&["-v", "web:/data"], "cat /data/f"), "kept\n");
    let bad = ["volume", "create", "--driver", &driver, "--opt", "siz=64M", "bad"];
    let refused = docker.call(&bad);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("siz"), "{said}");
    assert!(docker.succeeds(&["volume", "ls", "-q"]).lines().eq(["web"]));
    docker.succeeds(&["volume", "rm", "web"]);
    let left = docker.polylane.request("POST", "/VolumeDriver.List", "{}").body;
    assert_eq!(left["Volumes"], json!([]));
    docker.assert_nothing_is_mounted();
}

/// What `polylane env --docker` prints gives a container the lane and the library.
#[test]
fn a_container_of_docker_has_the_fast_way() {
    let Some(docker) = Docker::new("a_container_of_docker_has_the_fast_way") else { return };
    let at = docker.host.dir("m");
    succeeds(&["mount", "mem:64M", text(&at)]);
    fs::write(at.join("file"), "of the host\n").expect("written");
    let words = succeeds(&["env", "--docker", text(&at)]);
    let split = format!("for word in {}; do printf '%s\\n' \"$word\"; done", words.trim());
    let split = Command::new("sh").args(["-c", &split]).output().expect("sh");
    let words = String::from_utf8(split.stdout).expect("UTF-8");
    let mut words: Vec<&str> = words.lines().collect();
    // The host's programs, which are not static.
    let binds: Vec<String> = ["/usr", "/lib", "/lib64"].map(|dir| format!("{dir}:{dir}:ro")).into();
    binds.iter().for_each(|bind| words.extend(["-v", bind]));
    let requests = || {
        let mount = &docker.host.mounts()[0];
        let name = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
        let stats = succeeds(&["stats", "--json", "--pool", &name]);
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        stats[0]["service"]["shared_memory"]["requests"].as_u64().expect("a number")
    };
    let (before, file) = (requests(), at.join("file"));
    let said = docker.run(
        &words,
        &format!("/usr/bin/ls -la {} >/tmp/list; /usr/bin/cat {}", text(&at), text(&file)),
    );
    assert_eq!(said, "of the host\n");
    assert!(requests() > before, "by FUSE alone");
    succeeds(&["umount", text(&at)]);
    docker.assert_nothing_is_mounted();
}

/// The runtime of containers without annotations too, and of those that have lanes by them.
#[test]
fn docker_runs_containers_by_our_runtime() {
    let name = "docker_runs_containers_by_our_runtime";
    let Some(docker) = Docker::new(name) else { return };
    let said = docker.run(&["--runtime", "polylane"], "echo plain");
    assert_eq!(said, "plain\n");
    if !docker.has_annotations() {
        return skip(name, &format!("annotations: Docker's interface is older than {ANNOTATIONS}"));
    }
    let kept = format!("polylane.mount.data=volume:{}:/data", text(&docker.host.path("v.img")));
    let options =
        ["--runtime", "polylane", "--annotation", "polylane.root=own", "--annotation", &kept];
    let script = "echo x >>/data/x; cat /data/x; echo own >/bin/new; \
        while read a b c d; do case $b in /|/data) echo $b $c;; esac; done </proc/mounts";
    for turn in ["x\n", "x\nx\n"] {
        let lanes = "/ fuse.polylane\n/data fuse.polylane\n";
        assert_eq!(docker.run(&options, script), format!("{turn}{lanes}"));
        docker.assert_nothing_is_mounted();
    }
    let bad = ["--runtime", "polylane", "--annotation", "polylane.root=nope"];
    let refused = docker.call(&[&["run", "--rm"], &bad[..], &["busybox", "true"]].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("nope"), "{said}");
    docker.assert_nothing_is_mounted();
}
