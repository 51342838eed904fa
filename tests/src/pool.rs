//! One `polylane run` under test: what it says, how it ends, and that nothing of it stays.
//!
//! Every run has a pool name of its own, carried in an environment variable by all that COMMAND
//! starts, so that runs beside it on the same host are told apart.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the remains of a run may take to go.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a run may take. One that takes longer is killed, and its test fails.
const LIMIT: Duration = Duration::from_secs(180);

/// Variable that marks every process of a run.
const MARK: &str = "POLYLANE_TEST_POOL";

/// A script for root of a tenant: uses what lies in the run directory of the lane at `$MOUNT`, and
/// tries to change it. It prints what it could change, and `done`.
pub const TRIES_THE_RUN_DIRECTORY: &str = "cd \"$MOUNT/.polylane\" && test -S socket && \
     cat mounts >/dev/null && \
     for name in *; do ! (: >>\"$name\") 2>/dev/null || test -L \"$name\" -o -d \"$name\" || \
     test -S \"$name\" || echo \"changed $name\"; \
     ! rm \"$name\" 2>/dev/null || echo \"gone $name\"; done; \
     ! mkdir new 2>/dev/null || echo made; ! chmod 777 . 2>/dev/null || echo opened; echo done";

/// A run to be.
pub struct Run {
    command: Command,
    pool: String,
    limit: Duration,
}

/// A run that has begun, its standard output piped.
pub struct Running {
    /// The supervisor.
    pub child: Child,
    /// The pool's name.
    pub pool: String,
    lines: BufReader<std::process::ChildStdout>,
    _limit: TimeLimit,
}

/// Kills a process that is not done when its time is over; dropped when it is done.
struct TimeLimit {
    _done: mpsc::Sender<()>,
}

impl TimeLimit {
    fn on(child: &Child, limit: Duration) -> TimeLimit {
        let (done, end) = mpsc::channel::<()>();
        let pid = child.id();
        std::thread::spawn(move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("polylane run ({pid}) had not ended after {} s", limit.as_secs());
                signal_to(pid, "KILL");
            }
        });
        TimeLimit { _done: done }
    }
}

impl Run {
    /// `polylane run --pool NAME OPTIONS… -- COMMAND…`, the whole of `words` split at blanks.
    pub fn new(options: &str) -> Run {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Run::named(&format!("test-{}-{count}", std::process::id()), options)
    }

    /// As [`Run::new`], with a given pool name.
    pub fn named(pool: &str, options: &str) -> Run {
        let mut command = Command::new(crate::binary());
        command.args(["run", "--pool", pool]).args(options.split_whitespace());
        Run { command, pool: pool.to_string(), limit: LIMIT }.env(MARK, pool)
    }

    /// Lets it run for so much longer than any other.
    #[must_use]
    pub fn longer(self, time: Duration) -> Run {
        Run { limit: LIMIT + time, ..self }
    }

    /// Adds an argument of any shape.
    #[must_use]
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Run {
        self.command.arg(word);
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    /// Has another program start it, given it as the last of its own arguments.
    #[must_use]
    pub fn by(self, starter: &[&str]) -> Run {
        let mut command = Command::new("env");
        command.args(starter).arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Run { command, ..self }
    }

    /// Makes COMMAND a shell script.
    #[must_use]
    pub fn script(self, text: &str) -> Run {
        self.arg("--").arg("sh").arg("-c").arg(text)
    }

    /// Runs it to its end and insists that nothing remains.
    ///
    /// # Panics
    /// It cannot be started, or something remains.
    pub fn output(mut self) -> Output {
        let piped = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().expect("start polylane");
        let limit = TimeLimit::on(&child, self.limit);
        let output = child.wait_with_output().expect("wait for polylane");
        drop(limit);
        assert_nothing_remains(&self.pool);
        output
    }

    /// The exit status and the one line on standard error; insists that nothing remains.
    ///
    /// # Panics
    /// As [`Run::output`]; or standard error is not exactly one line.
    pub fn refusal(self) -> (i32, String) {
        let output = self.output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.lines().count(), 1, "one line expected, got: {said}");
        assert!(said.starts_with("polylane: "), "{said}");
        (output.status.code().unwrap_or(-1), said.trim().to_string())
    }

    /// Starts it. Standard error goes to the test's own.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(mut self) -> Running {
        self.command.stdin(Stdio::null());
        self.spawn()
    }

    /// [`start`](Run::start) with a pipe to COMMAND's standard input.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start_with_input(mut self) -> (Running, ChildStdin) {
        self.command.stdin(Stdio::piped());
        let mut running = self.spawn();
        let input = running.child.stdin.take().expect("piped");
        (running, input)
    }

    fn spawn(mut self) -> Running {
        let mut child = self.command.stdout(Stdio::piped()).spawn().expect("start polylane");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let limit = TimeLimit::on(&child, self.limit);
        Running { child, pool: self.pool, lines, _limit: limit }
    }
}

impl Running {
    /// The next line that COMMAND prints; empty at the end.
    ///
    /// # Panics
    /// Reading fails.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("read COMMAND's output");
        line.trim_end().to_string()
    }

    /// Sends a signal to the supervisor.
    pub fn signal(&self, signal: &str) {
        signal_to(self.child.id(), signal);
    }

    /// The pool's service process now.
    ///
    /// # Panics
    /// There is none for long.
    pub fn service(&self) -> u32 {
        let start = Instant::now();
        loop {
            if let Some(pid) = self.service_now() {
                return pid;
            }
            assert!(start.elapsed() < PATIENCE, "no service of {}", self.pool);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The pool's service process, if there is one at this moment.
    pub fn service_now(&self) -> Option<u32> {
        service_of(&self.pool)
    }

    /// Ends everything of the run in one moment, as a power cut does: the service's caches are
    /// lost. Nobody is asked, and nobody sees another one die.
    ///
    /// # Panics
    /// Something remains.
    pub fn cut_power(mut self) {
        let all: Vec<u32> = processes_of(&self.pool).map(|(pid, _)| pid).collect();
        for signal in ["STOP", "KILL"] {
            all.iter().for_each(|pid| signal_to(*pid, signal));
        }
        self.child.wait().expect("wait for polylane");
        // What is under /run does not outlive a power cut.
        for file in run_files(&self.pool) {
            drop(fs::remove_file(file));
        }
        assert_nothing_remains(&self.pool);
    }

    /// Waits for the end and insists that nothing remains.
    ///
    /// # Panics
    /// Something remains.
    pub fn end(mut self) -> ExitStatus {
        let status = self.child.wait().expect("wait for polylane");
        assert_nothing_remains(&self.pool);
        status
    }
}

/// Whether the preload library is not beside the binary; the test is then noted as skipped.
pub fn no_library(test: &str) -> bool {
    let missing = !crate::binary().with_file_name("libpolylane.so").is_file();
    if missing {
        crate::skip(test, "libpolylane.so is not built");
    }
    missing
}

/// The service process of a pool, if there is one at this moment.
pub fn service_of(pool: &str) -> Option<u32> {
    let name = format!("polylane-service[{pool}]");
    processes().find(|(_, said)| said.starts_with(name.as_bytes())).map(|(pid, _)| pid)
}

/// Sends a signal by name, as kill(1) does.
pub fn signal_to(pid: u32, signal: &str) {
    let _ = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
}

/// Whether all of a run's processes, groups and files are gone; waits for the last ones.
///
/// # Panics
/// Something remains; says what.
pub fn assert_nothing_remains(pool: &str) {
    let start = Instant::now();
    loop {
        let remains = remains_of(pool);
        if remains.is_empty() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "left behind by pool {pool}: {remains:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes (and with them their memfds and mount namespaces), host mounts, control groups and
/// run-time files of a pool.
fn remains_of(pool: &str) -> Vec<String> {
    let mut remains: Vec<String> = processes_of(pool)
        .map(|(pid, said)| format!("process {pid}: {}", String::from_utf8_lossy(&said)))
        .collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Lanes that last are called as their source: they are other tests' to look after.
    let is_of_run = |line: &&str| line.contains("- fuse.polylane polylane ");
    remains.extend(mounts.lines().filter(is_of_run).map(String::from));
    let group = format!("polylane-{pool}");
    find_dirs(Path::new("/sys/fs/cgroup"), &group, 6, &mut remains);
    remains.extend(
        run_files(pool).filter(|file| file.exists()).map(|file| file.display().to_string()),
    );
    remains
}

fn run_files(pool: &str) -> impl Iterator<Item = PathBuf> {
    ["lock", "sock", "control"]
        .into_iter()
        .map(move |end| format!("/run/polylane/{pool}.{end}").into())
}

/// The processes of a pool, its supervisor among them.
fn processes_of(pool: &str) -> impl Iterator<Item = (u32, Vec<u8>)> {
    processes().filter(move |(pid, said)| contains(said, pool) && *pid != std::process::id())
}

/// Every process with its command line and the environment it was started with, as one string.
fn processes() -> impl Iterator<Item = (u32, Vec<u8>)> {
    fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let mut said = fs::read(entry.path().join("cmdline")).ok()?;
        if !contains(&fs::read(entry.path().join("stat")).ok()?, ") Z ") {
            said.extend(fs::read(entry.path().join("environ")).unwrap_or_default());
        }
        Some((pid, said))
    })
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

fn find_dirs(dir: &Path, name: &str, depth: usize, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        if entry.file_name() == OsStr::new(name) {
            found.push(entry.path().display().to_string());
        } else if depth > 0 {
            find_dirs(&entry.path(), name, depth - 1, found);
        }
    }
}
