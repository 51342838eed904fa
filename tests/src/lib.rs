//! Whole-system tests of polylane: the binary, the preload library and real programs.
//!
//! Every test runs a shell script in a lane and looks at what it printed and how it ended; where
//! the kernel is the judge, the same script runs on a fresh tmpfs at the same path, in a mount
//! namespace of its own. A test that cannot run here says why, on standard error and in the file
//! that `POLYLANE_TEST_SKIPS` names.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub mod attached;
pub mod ceph;
pub mod cut;
pub mod daemon;
pub mod guest;
pub mod host;
pub mod http;
pub mod killed;
pub mod namespace;
pub mod nbd;
pub mod oci;
pub mod oracle;
pub mod pool;
pub mod silent;
pub mod step;
pub mod volume;

/// Where scripts see the lane or the tmpfs. Every Debian has it, and a mount namespace hides it.
pub const MOUNT: &str = "/srv";

/// What a script runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// A fresh tmpfs of the kernel's: the judge.
    Tmpfs,
    /// A lane in memory, through FUSE alone.
    Fuse,
    /// A lane in memory, through the preload library.
    Preload,
    /// A lane on a host directory, through FUSE alone.
    FuseDir,
    /// A lane on a host directory, through the preload library.
    PreloadDir,
    /// A lane on a volume's ext4, through FUSE alone.
    FuseVolume,
    /// A lane on a volume's ext4, through the preload library.
    PreloadVolume,
    /// The same over a lower, through FUSE alone.
    FuseUnion,
    /// The same over a lower, through the preload library.
    PreloadUnion,
    /// A lane in memory with `--kernel-cache`, through FUSE alone.
    FuseCached,
    /// A lane in memory with `--kernel-cache`, through the preload library.
    PreloadCached,
}

impl Lane {
    /// Whether programs in it do without the library.
    pub fn is_fuse_only(self) -> bool {
        use Lane::{Fuse, FuseCached, FuseDir, FuseUnion, FuseVolume};
        matches!(self, Fuse | FuseDir | FuseVolume | FuseUnion | FuseCached)
    }
}

/// Both ways into a lane in memory.
pub const MEMORY: [Lane; 2] = [Lane::Fuse, Lane::Preload];

/// Both ways into every kind of lane.
pub const LANES: [Lane; 6] = [
    Lane::Fuse,
    Lane::Preload,
    Lane::FuseDir,
    Lane::PreloadDir,
    Lane::FuseVolume,
    Lane::PreloadVolume,
];

/// Both ways into a lane over a lower.
pub const UNIONS: [Lane; 2] = [Lane::FuseUnion, Lane::PreloadUnion];

/// Both ways into a lane that the kernel caches.
pub const CACHED: [Lane; 2] = [Lane::FuseCached, Lane::PreloadCached];

/// A directory that the lower of lanes over a lower has: what a script does in it is done in one
/// that is merged.
pub const LOWER_DIR: &str = "w";

/// Size of the volumes that scripts run on.
const VOLUME_SIZE: &str = "4G";

/// How a script ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Exit status of the shell, `128 + n` for signal n, 124 when the time was up.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error: the script's own, and that of `polylane run`.
    pub stderr: String,
}

/// A shell script (`sh -eu`) that starts in the lane's root.
pub struct Script {
    text: String,
    limit: Duration,
    env: Vec<(String, String)>,
    options: Vec<String>,
    counted: bool,
}

impl Script {
    /// A script with a minute to run.
    pub fn new(text: impl Into<String>) -> Self {
        let limit = Duration::from_secs(60);
        let (env, options) = (Vec::new(), Vec::new());
        Script { text: text.into(), limit, env, options, counted: false }
    }

    /// A script of `tests/scripts`.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn file(name: &str) -> Self {
        let path = scripts().join(name);
        let text = std::fs::read_to_string(&path);
        Script::new(text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Gives it another time limit; one that runs longer is killed and ends with 124.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Adds a variable to its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.env.push((name.into(), value.as_ref().display().to_string()));
        self
    }

    /// Adds an option of `polylane run`; the tmpfs ignores it.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    /// Has the free blocks and inodes of a lane in memory or on a volume counted before it, and
    /// after it once all that it made is removed. Where they differ, it ends with 98, and standard
    /// error says by how much.
    #[must_use]
    pub fn counted(self) -> Self {
        Script { counted: true, ..self }
    }

    /// Runs it.
    ///
    /// # Panics
    /// The directory for a lane, `unshare` or the binary is missing; e2fsck finds something on the
    /// volume that a lane leaves.
    pub fn run(&self, lane: Lane) -> Outcome {
        let dir = tempfile::tempdir().expect("directory for a lane");
        let volume = dir.path().join("volume");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=20", &self.limit.as_secs().to_string()]);
        match lane {
            Lane::Tmpfs => {
                command.args(["unshare", "--mount", "--propagation=private", "--pid", "--fork"]);
                command.args(["--kill-child", "--mount-proc", "sh", "-c", TMPFS, "sh", MOUNT]);
            }
            Lane::Fuse | Lane::Preload => {
                command.arg(binary()).args(["run", "--mem"]);
            }
            Lane::FuseCached | Lane::PreloadCached => {
                command.arg(binary()).args(["run", "--mem", "--kernel-cache"]);
            }
            Lane::FuseDir | Lane::PreloadDir => {
                command.arg(binary()).args(["run", "--dir"]).arg(dir.path());
            }
            Lane::FuseVolume | Lane::PreloadVolume => {
                command.arg(binary()).args(["run", "--size", VOLUME_SIZE, "--volume"]).arg(&volume);
            }
            Lane::FuseUnion | Lane::PreloadUnion => {
                let lower = dir.path().join("lower");
                std::fs::create_dir_all(lower.join(LOWER_DIR)).expect("directory for a lower");
                command.arg(binary()).args(["run", "--size", VOLUME_SIZE, "--volume"]).arg(&volume);
                command.arg("--lower").arg(lower);
            }
        }
        if lane != Lane::Tmpfs {
            command.args(["--at", MOUNT]).args(&self.options);
            command.args(lane.is_fuse_only().then_some("--no-preload")).arg("--");
        }
        // A host directory shares its room with others.
        let own_room = !matches!(lane, Lane::Tmpfs | Lane::FuseDir | Lane::PreloadDir);
        if self.counted && own_room {
            command.args(["sh", "-euc", COUNTED, "sh"]);
        }
        command.args(["sh", "-euc", &format!("cd {MOUNT}\n{}", self.text)]);
        environment(&mut command);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let output = command.stdin(Stdio::null()).output().expect("run timeout(1)");
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        if volume.exists() {
            volume::assert_clean(&volume);
        }
        Outcome {
            status: output.status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs it and insists on exit status 0; returns standard output.
    ///
    /// # Panics
    /// It ended otherwise.
    pub fn succeeds(&self, lane: Lane) -> String {
        let outcome = self.run(lane);
        assert!(outcome.status == 0, "{}", outcome.tell(lane, &self.text));
        outcome.stdout
    }
}

/// Mounts the judge at `$1` and goes on with the rest.
const TMPFS: &str = r#"mount -t tmpfs -o mode=755 tmpfs "$1" && cd "$1" && shift && exec "$@""#;

/// Runs a program, removes what it made, and waits until there is as much room as before. The root
/// directory may have become longer.
const COUNTED: &str = r#"
room() {
    set -- $(stat -f -c '%f %S %d' "$MOUNT") $(stat -c %b "$MOUNT")
    echo "$(($1 * $2 / 1024 + $4 / 2)) KiB and $3 inodes"
}
before=$(room)
status=0
"$@" || status=$?
find "$MOUNT" -mindepth 1 -maxdepth 1 ! -name lost+found ! -name '.polylane*' -exec rm -rf {} +
for turn in $(seq 100); do
    after=$(room)
    if test "$after" = "$before"; then exit $status; fi
    sleep 0.05
done
echo "free before it: $before; after it: $after" >&2
exit 98
"#;

/// The same few variables everywhere: no locale, time zone or git configuration of the caller's.
fn environment(command: &mut Command) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    command.envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("HOME", MOUNT), ("MOUNT", MOUNT)]);
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
    for name in ["CARGO_TARGET_DIR", "POLYLANE_LIB"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
}

impl Outcome {
    /// Everything about it, for a failed assertion.
    pub fn tell(&self, lane: Lane, script: &str) -> String {
        let mut text = String::new();
        let _ = write!(text, "{lane:?}: status {}\n--- script\n{script}\n", self.status);
        let _ = write!(text, "--- stdout\n{}\n", tail(&self.stdout));
        let _ = write!(text, "--- stderr\n{}\n", tail(&self.stderr));
        text
    }
}

/// The last lines of a long output.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Why lanes cannot be used on this host, if so; the test is then noted as skipped.
pub fn unavailable(test: &str) -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        skip(test, &format!("/dev/fuse: {error}"));
        return true;
    }
    let unshared = Command::new("unshare").args(["--mount", "true"]).output();
    if !unshared.is_ok_and(|output| output.status.success()) {
        skip(test, "a mount namespace needs root");
        return true;
    }
    false
}

/// Those of `lanes` that `POLYLANE_TEST_LANES` names (`Fuse,PreloadDir`); all when it is not set.
pub fn chosen(lanes: &[Lane]) -> Vec<Lane> {
    let names = std::env::var("POLYLANE_TEST_LANES").unwrap_or_default();
    let named = |lane: &&Lane| names.split(',').any(|name| name == format!("{lane:?}"));
    match names.is_empty() {
        true => lanes.to_vec(),
        false => lanes.iter().filter(named).copied().collect(),
    }
}

/// Notes a test, or part of one, as skipped.
pub fn skip(test: &str, reason: &str) {
    let line = format!("skipped: {test}: {reason}\n");
    // Straight to the descriptor: the test harness captures what the print macros write.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("POLYLANE_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Where a program is, if it is installed.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/bin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|dir| dir.join(name));
    found.chain([tools().join(name)]).find(|path| path.is_file())
}

/// Whether a program is missing; the test is then noted as skipped.
pub fn lacks(test: &str, names: &[&str]) -> bool {
    let missing = names.iter().find(|name| tool(name).is_none());
    if let Some(name) = missing {
        skip(test, &format!("{name} is not installed"));
    }
    missing.is_some()
}

/// The seed that was asked for (`POLYLANE_SEED`), else another each time.
///
/// # Panics
/// What was asked for is no number.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = u64::try_from(now.expect("after 1970").as_millis()).expect("of this age");
    std::env::var("POLYLANE_SEED").map_or(now, |seed| seed.parse().expect("a number"))
}

/// The release build of `polylane`: `POLYLANE_BIN`, or beside this test's own build.
///
/// # Panics
/// It was not built.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("POLYLANE_BIN")
        .map_or_else(|| target().join("release/polylane"), PathBuf::from);
    assert!(path.is_file(), "{} is not there: run `make build` first", path.display());
    path
}

/// The scripts that tests run in lanes.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

/// Programs that `make tools` installs.
pub fn tools() -> PathBuf {
    target().join("tools/bin")
}

/// The target directory: a test runs as `TARGET/PROFILE/deps/NAME`.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.ancestors().nth(3).expect("tests run from the target directory").to_path_buf()
}
