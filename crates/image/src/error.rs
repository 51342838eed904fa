//! What can go wrong with images.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use polylane_base::errno::plain;
use polylane_base::shown::Shown;

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
            Error::Bad { object, why } => write!(f, "{object}: {why}"),
        }
    }
}

impl std::error::Error for Error {}
