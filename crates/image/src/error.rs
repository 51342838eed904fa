//! What can go wrong with images.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use polylane_base::errno::plain;
use polylane_base::shown::{Shown, escape_control};

/// A failure; its text is one line that names the object.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused something at this path.
    Io {
        /// The object.
        path: PathBuf,
        /// What was to be done, as in "cannot WHAT".
        what: &'static str,
        /// Why it was refused.
        error: io::Error,
    },
    /// A source, or what is in it, is not as it has to be.
    Bad {
        /// The object, as people read it.
        object: String,
        /// Why it is refused.
        why: String,
    },
}

/// The result of an action.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The kernel's refusal at `path`.
    pub(crate) fn io(path: &Path, what: &'static str, error: impl Into<io::Error>) -> Self {
        Error::Io { path: path.to_path_buf(), what, error: error.into() }
    }

    /// A refusal of the object `object`.
    pub(crate) fn bad(object: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Bad { object: object.into(), why: why.into() }
    }

    /// A refusal of a file.
    pub(crate) fn bad_file(path: &Path, why: impl Into<String>) -> Self {
        Error::bad(Shown::new(path).to_string(), why)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, what, error } => {
                write!(f, "{}: cannot {what}: {}", Shown::new(path), plain(error))
            }
            // Both may have words of a source's in them.
            Error::Bad { object, why } => {
                write!(f, "{}: {}", escape_control(object), escape_control(why))
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_that_no_terminal_obeys() {
        let hostile = "\x1b]0;x\x07\n\u{202e}\u{9b}31m";
        for error in [
            Error::bad(hostile, hostile),
            Error::io(Path::new(hostile), "read it", io::Error::from_raw_os_error(2)),
        ] {
            let text = error.to_string();
            assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
        }
    }
}
