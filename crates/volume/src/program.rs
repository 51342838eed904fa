//! Programs of the host, found on the path or where system programs are.

use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// Where system programs are, also for users whose path lacks it.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The path of a program.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(SYSTEM_DIRS.map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// The path of a program that is needed.
///
/// # Errors
/// It is not installed.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        Failure::failed(format!("{name}: not found: install {package} to make and check volumes"))
    })
}
