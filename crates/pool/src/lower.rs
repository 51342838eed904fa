//! Directories of the host in a lane, as descriptors: its own, and the lowers of a union.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Failure, Result};

/// Most lowers of a lane, as many as overlayfs takes.
const LOWERS_MAX: usize = 500;

/// The bits of a file's mode by which others write it.
pub(crate) const WRITERS: u32 = 0o022;

/// The bits of a directory's mode by which others reach what is in it, their own files among it.
pub(crate) const REACHERS: u32 = 0o077;

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

/// Opens the lane's own directory as a path, made if it is not there. `is_upper`: it is to be over
/// lowers, so one that is made is its user's alone; see [`check_upper`].
pub(crate) fn open_own(path: &Path, is_upper: bool) -> Result<OwnedFd> {
    let mut builder = std::fs::DirBuilder::new();
    let mode = if is_upper { 0o700 } else { 0o777 };
    let made = match path.parent() {
        Some(parent) if !path.exists() => {
            std::fs::create_dir_all(parent).and_then(|()| builder.mode(mode).create(path))
        }
        _ => std::fs::create_dir_all(path),
    };
    made.map_err(|error| Failure::path(path, "make the lane's directory", error))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::path(path, "use it as the lane's directory", error))
}

/// Refuses an upper whose marks another user could have written: a redirect of his would show him
/// files of the lowers that he may not read. `reach`: the bits of the mode that let others write
/// marks, which are on files in a directory and in the bytes of a volume.
pub(crate) fn check_upper(upper: &OwnedFd, path: &Path, reach: u32) -> Result<()> {
    let stat = rustix::fs::fstat(upper)
        .map_err(|error| Failure::path(path, "use it over lowers", error))?;
    let shown = Shown::new(path);
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        let owner = stat.st_uid;
        return Err(Failure::failed(format!(
            "{shown}: user {owner} owns it and could show himself any file of the lowers: not used \
             over --lower; use one of your own"
        )));
    }
    // A device's group are the host's administrators.
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    match stat.st_mode & if is_device { 0o002 } else { reach } {
        0 => Ok(()),
        bits => Err(Failure::failed(format!(
            "{shown}: other users could show themselves any file of the lowers (mode bits \
             {bits:03o}): not used over --lower before 'chmod go-rwx {shown}'"
        ))),
    }
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
