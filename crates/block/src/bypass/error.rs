//! Why a pool file cannot be made, opened or used.

use std::fmt;

use polylane_base::Errno;

use super::directory::DirectoryError;
use super::extents::Doubt;

/// Why a host is not fit for pool files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The file system is neither ext4 nor XFS: its name, or its magic number.
    FileSystem(String),
    /// ext4 that writes data to its journal: a replay would undo what went past it.
    JournalledData,
    /// The file lies in the realtime section of XFS.
    Realtime,
    /// The file is encrypted, compressed, verified or in persistent memory.
    Attributes,
    /// Its file system is on no block device, or on one that cannot be found.
    NoDevice(u32, u32),
    /// The device's blocks are larger than a sector: bytes.
    BlockBytes(u32),
    /// The device cannot be opened for writing: `EBUSY` where the kernel refuses that while its
    /// file system is mounted, others where this process may not.
    DeviceOpen(Errno),
    /// The kernel does not let this process make swap areas, which pin the file.
    NoRightToPin,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::FileSystem(name) => write!(f, "{name} is neither ext4 nor XFS"),
            Refused::JournalledData => f.write_str("its ext4 is mounted with data=journal"),
            Refused::Realtime => f.write_str("it lies in the realtime section of its XFS"),
            Refused::Attributes => {
                f.write_str("files there are encrypted, compressed, verified or DAX")
            }
            Refused::NoDevice(major, minor) => {
                write!(f, "no block device {major}:{minor} is found under it")
            }
            Refused::BlockBytes(bytes) => {
                write!(f, "its disk has blocks of {bytes} bytes, and only 512 will do")
            }
            Refused::DeviceOpen(Errno::EBUSY) => f.write_str(
                "this kernel lets nobody write to the disk of a mounted file system \
                 (CONFIG_BLK_DEV_WRITE_MOUNTED is off)",
            ),
            Refused::DeviceOpen(errno) => {
                write!(f, "its disk cannot be opened for writing ({errno})")
            }
            Refused::NoRightToPin => f.write_str(
                "not allowed to pin its pool file (swapon needs CAP_SYS_ADMIN, and a free swap \
                 area): run as root outside of a container",
            ),
        }
    }
}

/// What went wrong with a pool file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// The host is not fit.
    Refused(Refused),
    /// The host refused to do this.
    Host(&'static str, Errno),
    /// Its head does not say that it is a pool file.
    Head,
    /// The host's map of it cannot be used.
    Doubt(Doubt),
    /// Its directory.
    Directory(DirectoryError),
    /// Another process uses it.
    InUse,
    /// A killed process' requests do not end.
    Unfinished,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Refused(why) => write!(f, "not fit for bypass: {why}"),
            PoolError::Host(what, errno) => write!(f, "cannot {what}: {errno}"),
            PoolError::Head => f.write_str("not a pool file, or its head is damaged"),
            PoolError::Doubt(doubt) => write!(f, "not fit for bypass: {doubt}"),
            PoolError::Directory(error) => write!(f, "{error}"),
            PoolError::InUse => f.write_str("another process uses it: end that first"),
            PoolError::Unfinished => f.write_str("requests of a killed process do not end"),
        }
    }
}

impl From<DirectoryError> for PoolError {
    fn from(error: DirectoryError) -> Self {
        PoolError::Directory(error)
    }
}

impl From<Refused> for PoolError {
    fn from(why: Refused) -> Self {
        PoolError::Refused(why)
    }
}

pub(super) type Result<T, E = PoolError> = std::result::Result<T, E>;

pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

pub(super) fn failed(what: &'static str) -> impl Fn(rustix::io::Errno) -> PoolError {
    move |error| PoolError::Host(what, errno(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_cannot_be_opened_is_told_apart_from_a_kernel_that_forbids_it() {
        let said = |errno| Refused::DeviceOpen(errno).to_string();
        assert!(said(Errno::EBUSY).contains("CONFIG_BLK_DEV_WRITE_MOUNTED"));
        assert_eq!(
            said(Errno::EPERM),
            "its disk cannot be opened for writing (Operation not permitted)"
        );
    }
}
