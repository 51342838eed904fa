//! How an action of this crate fails: one line for a person and an exit status.

use std::fmt;
use std::path::Path;

pub use polylane_base::errno::plain;
use polylane_base::shown::Shown;

/// Exit status for wrong usage.
pub const USAGE: u8 = 2;

/// Exit status for everything else that goes wrong before or beside COMMAND.
pub const FAILED: u8 = 1;

/// A failure as the user sees it: what, which object, and where possible what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The exit status of the process.
    pub status: u8,
    /// One line without the program's name and without a newline.
    pub line: String,
}

/// The result of an action.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Wrong usage: exit status 2.
    pub fn usage(line: impl Into<String>) -> Self {
        Failure { status: USAGE, line: line.into() }
    }

    /// Anything else: exit status 1.
    pub fn failed(line: impl Into<String>) -> Self {
        Failure { status: FAILED, line: line.into() }
    }

    /// `OBJECT: cannot WHAT: why`, exit status 1.
    pub fn because(object: impl fmt::Display, what: &str, why: impl Into<std::io::Error>) -> Self {
        Self::failed(format!("{object}: cannot {what}: {}", plain(&why.into())))
    }

    /// [`because`](Self::because) for a path.
    pub fn path(path: &Path, what: &str, why: impl Into<std::io::Error>) -> Self {
        Self::because(Shown::new(path), what, why)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failure {}

/// Says one line on standard error, as every message of polylane looks.
pub fn say(line: impl fmt::Display) {
    crate::log::message(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_plain_line() {
        let error = std::io::Error::from_raw_os_error(libc::EACCES);
        let failure = Failure::path(Path::new("/dev/fuse"), "open it", error);
        assert_eq!(failure.to_string(), "/dev/fuse: cannot open it: Permission denied");
        assert_eq!(failure.status, FAILED);
    }
}
