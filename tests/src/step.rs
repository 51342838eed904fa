//! Steps of tests that never wait for ever: what takes too long is a panic that says what it was.

use std::fs;
use std::io::{Read, Seek};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long one step of a test may take.
pub const STEP_TIME_MAX: Duration = Duration::from_secs(60);

/// What a command printed, which ended well.
///
/// # Panics
/// It did not.
pub fn good(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}: {printed}{said}", output.status);
    printed
}

/// Runs a command to its end.
///
/// # Panics
/// It has none in time; `what` is said.
pub fn output(mut command: Command, limit: Duration, what: &str) -> Output {
    let mut files = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
    let [stdout, stderr] = [0, 1].map(|index: usize| files[index].try_clone().expect("a copy"));
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let status = ended(&mut command, limit);
    let status = status.unwrap_or_else(|| panic!("no end in {limit:?}: {what}"));
    let [stdout, stderr] = files.each_mut().map(|file| {
        let mut bytes = Vec::new();
        file.rewind().expect("a start");
        file.read_to_end(&mut bytes).expect("its content");
        bytes
    });
    Output { status, stdout, stderr }
}

/// The end of a command, `None` when it has not come in time. One that the kernel does not let end
/// is not waited for.
///
/// # Panics
/// It cannot be started.
pub fn ended(command: &mut Command, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    let mut child = command.spawn().expect("it runs");
    loop {
        match child.try_wait().expect("its status") {
            None if start.elapsed() < limit => thread::sleep(Duration::from_millis(10)),
            None => {
                let _ = child.kill();
                return None;
            }
            status => return status,
        }
    }
}

/// What a script of `sh` printed, which ended well, and in time.
///
/// # Panics
/// It did not.
pub fn sh(script: &str) -> String {
    sh_within(STEP_TIME_MAX, script)
}

/// [`sh`] with a limit of its own.
///
/// # Panics
/// As [`sh`].
pub fn sh_within(limit: Duration, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]);
    good(&output(command, limit, script))
}

/// Whether loop devices cannot be had here; says so.
pub fn no_loop(test: &str) -> bool {
    let lacks = ["/dev/loop-control", "/dev/fuse"]
        .into_iter()
        .find(|path| fs::OpenOptions::new().read(true).write(true).open(path).is_err());
    if let Some(path) = lacks {
        crate::skip(test, &format!("{path} does not open"));
    }
    lacks.is_some()
}
