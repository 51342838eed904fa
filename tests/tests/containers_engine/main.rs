//! `polylane container`: containers of images, by the host's OCI runtime, their files on lanes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, MutexGuard, PoisonError};

use polylane_tests::host::{Host, names, refusal, succeeded, text, until};
use polylane_tests::{lacks, unavailable};
use serde_json::Value;

mod fast_way;
mod given;
mod images;
mod killed;
mod pools;

/// What runtimes keep is in one place for all: tests that look there go one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Users of the image.
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n";

/// A state directory with images of its own; dropped, its containers are removed.
struct Engine {
    host: Host,
    _alone: MutexGuard<'static, ()>,
}

impl Engine {
    /// `None`: said why.
    fn new(name: &str) -> Option<Engine> {
        if unavailable(name) || lacks(name, &["runc", "busybox"]) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = Engine { host: Host::new(), _alone: alone };
        engine.host.dir("state");
        engine.make_busybox();
        let made = engine.run(&["container", "run", "--rm", "busybox", "true"]);
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            // What a runtime cannot do on a host it says itself.
            assert!(why.contains("the runtime refuses"), "{why}");
            polylane_tests::skip(name, &why);
            return None;
        }
        Some(engine)
    }

    fn run(&self, words: &[&str]) -> Output {
        self.host.command(words).output().expect("polylane")
    }

    /// Its standard output.
    fn succeeds(&self, words: &[&str]) -> String {
        succeeded(words, &self.run(words))
    }

    /// Its exit status and the one line that it said.
    fn refused(&self, words: &[&str]) -> (i32, String) {
        refusal(words, &self.run(words))
    }

    fn containers(&self) -> Vec<Value> {
        let listed = self.succeeds(&["container", "ps", "--all", "--json"]);
        serde_json::from_str(&listed).expect("JSON")
    }

    fn one(&self, name: &str) -> Value {
        let all = self.containers();
        all.into_iter().find(|one| one["name"] == name).unwrap_or(Value::Null)
    }

    fn pid(&self, name: &str) -> u32 {
        self.one(name)["pid"].as_u64().expect("it runs") as u32
    }

    /// An image of a static busybox.
    fn make_busybox(&self) {
        let root = self.host.dir("busybox");
        for place in ["bin", "etc", "tmp", "srv"] {
            fs::create_dir(root.join(place)).expect("mkdir");
        }
        fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("copy");
        for name in [
            "sh", "true", "cat", "ls", "id", "sleep", "env", "pwd", "rm", "hostname", "tty", "stty",
        ] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("link");
        }
        fs::write(root.join("etc/passwd"), PASSWD).expect("write");
        fs::write(root.join("etc/group"), "root:x:0:\nwww:x:34:\nmore:x:50:web\n").expect("write");
        self.succeeds(&["image", "import", text(&root), "busybox"]);
    }

    /// Directories of containers, references of images, mounts, control groups, and what runtimes
    /// keep: nothing is to be left of them.
    fn left(&self) -> Vec<String> {
        let mut left = self.host.left_of_containers();
        left.extend(names(Path::new("/run/polylane/containers")));
        left
    }

    fn assert_nothing_is_left(&self, ids: &[String]) {
        until("the container is gone", || self.left().is_empty());
        for id in ids {
            let groups = groups_of(id);
            assert_eq!(groups, Vec::<PathBuf>::new(), "control groups");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for one in self.containers() {
            let _ = self.run(&["container", "rm", "-f", one["id"].as_str().unwrap_or_default()]);
        }
    }
}

/// Control groups of a container, wherever they are.
fn groups_of(id: &str) -> Vec<PathBuf> {
    fn look(dir: &Path, depth: u32, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path());
                } else if depth > 0 {
                    look(&entry.path(), depth - 1, name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    look(Path::new("/sys/fs/cgroup"), 3, id, &mut found);
    found
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    line.trim().parse().expect("a number")
}
