//! Why there is no lane on a cluster.

use std::fmt;

use polylane_base::Errno;

use crate::ffi::Missing;

/// Why there is no lane on a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The library of this name is not there; the loader's words.
    Library(&'static str, String),
    /// The library of this name lacks this function.
    TooOld(&'static str, &'static str),
    /// The configuration cannot be read.
    Conf(Errno),
    /// An option is refused.
    Option(&'static str, Errno),
    /// The file system cannot be mounted.
    Mount(Errno),
    /// A directory of what was mounted cannot be used.
    Directory(String, Errno),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Library(name, words) => {
                let package = if name.contains("cephfs") { "libcephfs2" } else { "librbd1" };
                write!(f, "{name} cannot be loaded ({words}): install it ('apt install {package}')")
            }
            Failure::TooOld(name, call) => {
                write!(f, "{name} has no {call}: install Ceph 16 or later")
            }
            Failure::Conf(errno) => write!(f, "read its configuration: {errno}"),
            Failure::Option(name, errno) => write!(f, "set its option '{name}': {errno}"),
            Failure::Mount(Errno::ETIMEDOUT) => write!(
                f,
                "mount it: no monitor or MDS answered in time: check 'mon host' in the \
                 configuration, and the cluster's health"
            ),
            Failure::Mount(Errno::ENOENT) => write!(
                f,
                "mount it: there is no such file system, or no such directory in it: see 'ceph fs \
                 ls'"
            ),
            Failure::Mount(Errno::EPERM | Errno::EACCES) => write!(
                f,
                "mount it: the cluster refuses this user, its key, or this directory to it: see \
                 'ceph auth get'"
            ),
            Failure::Mount(errno) => write!(f, "mount it: {errno}"),
            Failure::Directory(path, Errno::ENOENT) => {
                write!(f, "{path}: there is no such directory: make it first")
            }
            Failure::Directory(path, errno) => write!(f, "{path}: use it: {errno}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Failure {
        match missing {
            Missing::Library(name, words) => Failure::Library(name, words),
            Missing::Call(name, call) => Failure::TooOld(name, call),
        }
    }
}
