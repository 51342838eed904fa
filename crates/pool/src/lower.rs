//! Directories of the host in a lane, as descriptors: its own, and the lowers of a union.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Failure, Result};

/// Most lowers of a lane, as many as overlayfs takes.
const LOWERS_MAX: usize = 500;

/// Opens the lowers as paths. Each must be a directory, and no two of them, nor one and `own`, the
/// lane's own directory, may lie in each other.
pub(crate) fn open(lowers: &[PathBuf], own: Option<&Path>) -> Result<Vec<OwnedFd>> {
    if lowers.len() > LOWERS_MAX {
        return Err(Failure::usage(format!("--lower: at most {LOWERS_MAX} of them")));
    }
    let mut dirs = Vec::new();
    let mut opened = Vec::new();
    for path in lowers {
        let failed = |error: std::io::Error| Failure::path(path, "use it as a lower", error);
        let whole = path.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&whole, flags, Mode::empty());
        let dir = dir.map_err(|error| failed(error.into()))?;
        opened.push(dir);
        dirs.push((path.as_path(), whole));
    }
    if let Some(path) = own {
        // One that is yet to be made lies where its parent does.
        let whole = path.canonicalize().or_else(|_| std::path::absolute(path));
        let whole = whole.map_err(|error| Failure::path(path, "find it", error))?;
        dirs.push((path, whole));
    }
    refuse_overlaps(&dirs)?;
    Ok(opened)
}

/// Opens the lane's own directory as a path, made if it is not there.
pub(crate) fn open_own(path: &Path) -> Result<OwnedFd> {
    std::fs::create_dir_all(path)
        .map_err(|error| Failure::path(path, "make the lane's directory", error))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::path(path, "use it as the lane's directory", error))
}

fn refuse_overlaps(dirs: &[(&Path, PathBuf)]) -> Result<()> {
    for (at, (path, whole)) in dirs.iter().enumerate() {
        for (other_path, other) in &dirs[..at] {
            let (path, other_path) = (Shown::new(path), Shown::new(other_path));
            let what = match (whole == other, whole.starts_with(other), other.starts_with(whole)) {
                (true, ..) => "are one directory",
                (_, true, _) | (_, _, true) => "lie in each other",
                _ => continue,
            };
            return Err(Failure::usage(format!(
                "--lower {other_path}: it and {path} {what}: give each layer a directory of its own"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(paths: &[&str]) -> Option<String> {
        let dirs: Vec<_> =
            paths.iter().map(|path| (Path::new(path), PathBuf::from(path))).collect();
        refuse_overlaps(&dirs).err().map(|failure| failure.line)
    }

    #[test]
    fn layers_in_each_other_are_refused() {
        assert_eq!(refused(&["/a", "/b", "/ab"]), None);
        for paths in [["/x", "/a", "/a"], ["/x", "/a", "/a/b"], ["/a/b/c", "/x", "/a"]] {
            assert!(refused(&paths).is_some_and(|line| line.starts_with("--lower ")), "{paths:?}");
        }
    }
}
