//! Shells in mount namespaces of their own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::binary;

/// A shell in a mount namespace of its own, which takes lines and answers each.
#[derive(Debug)]
pub struct Namespace {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Namespace {
    /// With the host's mounts as they are now; `propagation` as unshare(1) has it.
    ///
    /// # Panics
    /// There is no unshare(1).
    pub fn new(propagation: &str) -> Namespace {
        Namespace::begin(&["unshare", "-m", "--propagation", propagation, "sh"])
    }

    /// With the mounts of another one as they are now.
    ///
    /// # Panics
    /// As [`new`](Namespace::new).
    pub fn copy(&self) -> Namespace {
        let other = format!("--mount=/proc/{}/ns/mnt", self.child.id());
        Namespace::begin(&["nsenter", &other, "unshare", "-m", "--propagation", "private", "sh"])
    }

    /// In a lane of its own.
    ///
    /// # Panics
    /// The run does not start.
    pub fn of_run() -> Namespace {
        let program = binary();
        let program = program.to_str().expect("UTF-8");
        Namespace::begin(&[program, "run", "--mem", "--", "sh"])
    }

    /// Ends the shell, and the run that it is the command of.
    ///
    /// # Panics
    /// It has ended.
    pub fn end(mut self) {
        writeln!(self.lines, "exit").expect("a line");
        self.child.wait().expect("its end");
    }

    fn begin(words: &[&str]) -> Namespace {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.current_dir("/").spawn().expect("unshare");
        let (lines, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.expect("a pipe"));
        let mut namespace = Namespace { child, lines: lines.expect("a pipe"), answers };
        assert_eq!(namespace.says("echo up"), "up");
        namespace
    }

    /// The last line that a line of script says.
    ///
    /// # Panics
    /// The shell has ended.
    pub fn says(&mut self, script: &str) -> String {
        writeln!(self.lines, "{script}; echo ::$?").expect("a line");
        let mut last = String::new();
        loop {
            let mut line = String::new();
            let count = self.answers.read_line(&mut line).expect("an answer");
            match line.trim() {
                line if count == 0 || line.starts_with("::") => return last,
                line => last = line.to_string(),
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
