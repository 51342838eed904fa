//! Lanes that are mounted on this host: directories for them, commands, and the processes behind.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::binary;

/// How long what is killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// Directories of a test on this host; dropped, no lane is left in them.
#[derive(Debug)]
pub struct Host {
    dir: tempfile::TempDir,
    pools: RefCell<Vec<String>>,
}

impl Host {
    /// An empty directory.
    pub fn new() -> Host {
        let dir = tempfile::tempdir().expect("tempdir");
        Host { dir, pools: RefCell::default() }
    }

    /// A path in it, without links.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("canonical").join(name)
    }

    /// An empty directory in it.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("mkdir");
        path
    }

    /// A program in it with this text.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod");
        path
    }

    /// `polylane WORDS`, with its directory `state` for what is kept.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.path("state")).stdin(Stdio::null());
        command
    }

    /// A name for a pool that no other test has. At the end the pool of that name is removed.
    pub fn pool(&self, word: &str) -> String {
        let name = format!("test-{}-{word}", std::process::id());
        self.pools.borrow_mut().push(name.clone());
        name
    }

    /// What is mounted in it, as `polylane mount --json` says.
    pub fn mounts(&self) -> Vec<serde_json::Value> {
        let listed = succeeds(&["mount", "--json"]);
        let all: Vec<serde_json::Value> = serde_json::from_str(&listed).expect("JSON");
        let own = self.path("");
        let is_own = |mount: &serde_json::Value| {
            mount["path"].as_str().is_some_and(|path| Path::new(path).starts_with(&own))
        };
        all.into_iter().filter(is_own).collect()
    }

    /// A pool of its own with one lane at two paths, which share its service.
    pub fn shared(&self, word: &str, source: &str) -> (String, PathBuf, PathBuf) {
        let (pool, at, shared) = (self.pool(word), self.dir("m"), self.dir("s"));
        succeeds(&["pool", "create", &pool]);
        succeeds(&["mount", "--pool", &pool, source, text(&at)]);
        succeeds(&["mount", "--pool", &pool, "--share", source, text(&shared)]);
        (pool, at, shared)
    }

    /// The only lane's supervisor.
    pub fn supervisor(&self) -> u32 {
        let mounts = self.mounts();
        assert_eq!(mounts.len(), 1, "{mounts:?}");
        supervisor_of(&mounts[0])
    }

    /// The supervisor of the lane at a path.
    pub fn supervisor_at(&self, path: &Path) -> u32 {
        let mounts = self.mounts();
        supervisor_of(mounts.iter().find(|mount| mount["path"] == text(path)).expect("mounted"))
    }

    /// Directories of containers, references of images and mounts of the state directory in it.
    pub fn left_of_containers(&self) -> Vec<String> {
        let state = self.path("state/polylane");
        let mut left = names(&state.join("containers"));
        left.retain(|name| name != "lock");
        left.extend(names(&state.join("images/used")));
        left.extend(mounts_with(text(&state)));
        left
    }

    /// Nothing is mounted in it, by the kernel's word and polylane's.
    pub fn assert_nothing_is_left(&self) {
        assert_eq!(self.mounts(), Vec::<serde_json::Value>::new());
        let own = self.path("").display().to_string();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = mounts_with(&own);
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "still mounted: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lines of the table of mounts that name a path.
fn mounts_with(path: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    table.lines().filter(|line| line.contains(path)).map(str::to_string).collect()
}

/// The names in a directory; none where there is no such directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn supervisor_of(mount: &serde_json::Value) -> u32 {
    mount["supervisor"].as_u64().expect("a number") as u32
}

impl Default for Host {
    fn default() -> Self {
        Host::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for mount in self.mounts().iter().rev() {
            let _ = polylane(&["umount", "-l", mount["path"].as_str().unwrap_or_default()]);
        }
        for pool in self.pools.borrow().iter() {
            let _ = polylane(&["pool", "rm", pool]);
        }
    }
}

/// Runs polylane to its end.
pub fn polylane(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).output().expect("polylane")
}

/// Its standard output.
pub fn succeeds(arguments: &[&str]) -> String {
    succeeded(arguments, &polylane(arguments))
}

/// Its exit status and the one line that it said.
pub fn refused(arguments: &[&str]) -> (i32, String) {
    refusal(arguments, &polylane(arguments))
}

/// The standard output of a command of these words, which succeeded.
pub fn succeeded(words: &[&str], output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {:?} {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exit status of a command of these words, which failed, and the one line that it said.
pub fn refusal(words: &[&str], output: &Output) -> (i32, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{words:?} succeeded");
    assert_eq!(said.matches('\n').count(), 1, "{words:?}: one line: {said}");
    (output.status.code().unwrap_or(-1), said)
}

/// Whether a terminal would obey something of it.
pub fn is_obeyed(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n')
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The children of a process; `None`: it is not there.
pub fn children(parent: u32) -> Option<Vec<u32>> {
    let all = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Some(all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// The service that a supervisor has at this moment.
pub fn service_below(supervisor: u32) -> Option<u32> {
    children(supervisor)?.into_iter().find(|pid| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|said| said.starts_with(b"polylane-service["))
    })
}

/// The child of this name that a process has, or is going to have.
pub fn child(parent: u32, name: &str) -> u32 {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let pids = children(parent).expect("children");
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        };
        if let Some(pid) = pids.into_iter().find(is_it) {
            return pid;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{parent} has no child {name}");
}

/// Waits until something holds, for as long as what is killed may take to be gone.
pub fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The lock of all mount tables, as a command has it.
pub fn lock_tables() -> fs::File {
    let path = Path::new("/run/polylane/.tables");
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let file = fs::File::options().write(true).create(true).truncate(false).open(path);
        let file = file.expect("open");
        let own = file.metadata().expect("stat").ino();
        let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // The command that had it removed the file.
        if is_locked && path.metadata().is_ok_and(|now| now.ino() == own) {
            return file;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the tables stay locked");
}
