//! Why a union cannot be opened.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use polylane_base::Errno;
use polylane_base::shown::Shown;

/// Why a union cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The upper cannot be read or prepared.
    Upper(Errno),
    /// The upper's root holds something that belongs to no upper: this name.
    NotAnUpper(Vec<u8>),
    /// A layer was copied file by file: files that are partly in the lowers would be read as zeros,
    /// or zeros as what the lowers have.
    Copied,
    /// overlayfs' index of an upper holds files, and it cannot be told which of the lowers' they
    /// are.
    KernelsIndex,
    /// A union whose syncs did not wait has not ended.
    Volatile,
    /// A lower cannot be read: its place, 0 for the uppermost.
    Lower(usize, Errno),
    /// Neither an upper nor a lower.
    NoLayers,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Upper(errno) => write!(f, "cannot prepare the upper: {errno}"),
            OpenError::NotAnUpper(name) => write!(
                f,
                "the upper holds {} beside the directories 'upper' and 'work': use an empty one",
                Shown::new(OsStr::from_bytes(name))
            ),
            OpenError::Copied => write!(
                f,
                "a layer was copied file by file, so which parts of its files are the lowers' is \
                 not known: make the original whole first (polylane volume solidify), or copy its \
                 volume as one file"
            ),
            OpenError::KernelsIndex => write!(
                f,
                "overlayfs' index (work/index) of the upper holds files of several names, and of \
                 which lower they are cannot be told: mount it with overlayfs and copy them"
            ),
            OpenError::Volatile => write!(
                f,
                "the upper was in use where syncs were not waited for (--volatile), and that did \
                 not end in order: files in it may be old or torn; remove its directory \
                 work/work/incompat/volatile to use it all the same"
            ),
            OpenError::Lower(index, errno) => {
                write!(f, "cannot read lower {}: {errno}", index + 1)
            }
            OpenError::NoLayers => write!(f, "a union needs at least one lower"),
        }
    }
}

impl std::error::Error for OpenError {}
