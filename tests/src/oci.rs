//! Bundles for `polylane oci`, and podman with that as its runtime.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::host::{Host, text, until};
use crate::{binary, lacks, skip, unavailable};

/// Control groups are in one place for all: tests go one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// The variable that names the file of what annotations may name.
pub const LISTED: &str = "POLYLANE_OCI_CONFIG";

/// A bundle of busybox, and places of their own for the runtime and our state.
#[derive(Debug)]
pub struct Bundle {
    /// Its directories.
    pub host: Host,
    /// The root file system.
    pub root: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Standard output of what succeeded.
pub fn said(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {words}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Bundle {
    /// `None`: said why.
    pub fn new(name: &str) -> Option<Bundle> {
        if unavailable(name) || lacks(name, &["runc", "busybox"]) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let host = Host::new();
        for dir in ["state", "runtime", "bundle"] {
            host.dir(dir);
        }
        let root = host.path("bundle/rootfs");
        for place in ["bin", "etc", "tmp"] {
            fs::create_dir_all(root.join(place)).expect("mkdir");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("copy");
        for name in ["sh", "cat", "ls", "sleep", "df", "true"] {
            symlink("busybox", root.join("bin").join(name)).expect("link");
        }
        fs::write(root.join("etc/old"), "old\n").expect("write");
        let bundle = Bundle { host, root, _alone: alone };
        bundle.list(&[&format!("volume:{}", text(&bundle.host.path("")))]);
        let spec = Command::new("runc").args(["spec", "-b"]).arg(bundle.dir()).output();
        said(&spec.expect("runc"));
        bundle.write("true", json!({}));
        let made = bundle.call(&["run", "probe"]);
        if !made.status.success() {
            skip(name, &String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(bundle)
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.host.path("bundle")
    }

    /// Has root's file list what annotations may name, and pool `listed`.
    pub fn list(&self, sources: &[&str]) {
        let text = format!("sources = {sources:?}\npools = [\"listed\"]\n");
        fs::write(self.listed(), text).expect("write");
    }

    /// That file.
    pub fn listed(&self) -> PathBuf {
        self.host.path("oci.toml")
    }

    /// A configuration that runs a script.
    pub fn write(&self, script: &str, annotations: Value) {
        let path = self.dir().join("config.json");
        let mut config: Value =
            serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(["sh", "-c", script]);
        config["root"]["readonly"] = json!(false);
        config["annotations"] = annotations;
        fs::write(path, config.to_string()).expect("write");
    }

    /// A command for this bundle.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_in(&self.dir(), "runtime", words)
    }

    /// A command for the bundle in `dir`; the runtime keeps its state in `runtime`.
    pub fn command_in(&self, dir: &Path, runtime: &str, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("oci").arg("--root").arg(self.host.path(runtime));
        let (verb, rest) = words.split_first().expect("a verb");
        command.arg(verb);
        if matches!(*verb, "create" | "run") {
            command.arg("--bundle").arg(dir);
        }
        command.args(rest).env("XDG_STATE_HOME", self.host.path("state"));
        command.env(LISTED, self.listed());
        command.stdin(Stdio::null());
        command
    }

    /// What a command for this bundle says.
    pub fn call(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("polylane")
    }

    /// Standard output of a command that has to succeed.
    pub fn succeeds(&self, words: &[&str]) -> String {
        said(&self.call(words))
    }

    /// No lane is mounted, and no container has files once another command was there.
    pub fn assert_nothing_is_left(&self) {
        self.call(&["delete", "--force", "nobody"]);
        // Its lower, wherever an engine's environment puts our state.
        let own = text(&self.root).to_string();
        let mounts = || {
            let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
            table.lines().filter(|line| line.contains(&own)).map(str::to_string).collect::<Vec<_>>()
        };
        until("no lane is mounted", || mounts().is_empty());
        let left = || files(&self.host.path("state/polylane/oci"));
        // A command does what it can in a limited time.
        until(&format!("these files are removed: {:?}", left()), || {
            self.call(&["delete", "--force", "nobody"]);
            left().is_empty()
        });
    }
}

/// Everything below a directory but directories.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => all.extend(files(&entry.path())),
            false => all.push(entry.path()),
        }
    }
    all
}

/// By the name of the link it is a runtime without further words. Engines hand no variables on, so
/// where its files are is said on the way there.
pub fn runtime(bundle: &Bundle) -> PathBuf {
    let program = bundle.host.path("polylane-oci");
    if program.exists() {
        return program;
    }
    let link = bundle.host.dir("link").join("polylane-oci");
    symlink(binary(), &link).expect("link");
    let state = format!("XDG_STATE_HOME='{}'", text(&bundle.host.path("state")));
    let listed = format!("{LISTED}='{}'", text(&bundle.listed()));
    let text = format!("#!/bin/sh\n{state} {listed} exec '{}' \"$@\"\n", link.display());
    bundle.host.program("polylane-oci", &text)
}

/// podman, its own store of images and containers below `host`.
pub fn podman(bundle: &Bundle, words: &[&str]) -> Command {
    let mut command = Command::new("podman");
    for (option, dir) in [("--root", "podman"), ("--runroot", "podman-run")] {
        command.arg(option).arg(bundle.host.path(dir));
    }
    command
        .arg("--runtime")
        .arg(runtime(bundle))
        .args(["--cgroup-manager", "cgroupfs"])
        .args(words);
    command.env("XDG_STATE_HOME", bundle.host.path("state")).stdin(Stdio::null());
    command
}
