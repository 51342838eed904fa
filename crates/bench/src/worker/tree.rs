//! Many small files: made as tar makes them, removed as `rm -r` removes them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::Step;

/// Files in a directory of the tree.
const FILES_PER_DIRECTORY: u64 = 100;

/// Most files that `remove` finds.
const FILES_MAX: u64 = 100_000;

/// Sizes go round from 0 to this, prime to everything: half of a source tree's files are smaller
/// than 4 KiB.
const SIZES: u64 = 8191;

/// One file: create it, write it, set its mode and time; a new directory for every hundred.
pub(super) fn unpack(dir: &Path, _: u64) -> io::Result<Step> {
    let (dir, content) = (dir.to_path_buf(), content());
    Ok(Box::new(move |index| make(&dir, index, &content)))
}

/// One file of a tree that is there: look at what the directory has, remove it, and the directory
/// with its last file.
pub(super) fn remove(dir: &Path, ops: u64) -> io::Result<Step> {
    let (dir, content) = (dir.to_path_buf(), content());
    (0..ops.min(FILES_MAX)).try_for_each(|index| make(&dir, index, &content))?;
    let mut names = Vec::new();
    Ok(Box::new(move |index| {
        let parent = directory(&dir, index);
        if index.is_multiple_of(FILES_PER_DIRECTORY) {
            names = list(&parent)?;
        }
        let name = names.pop().ok_or(io::ErrorKind::NotFound)?;
        fs::remove_file(name)?;
        match names.is_empty() {
            true => fs::remove_dir(&parent),
            false => Ok(()),
        }
    }))
}

fn content() -> Vec<u8> {
    (0..SIZES).map(|byte| byte as u8).collect()
}

fn directory(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("directory-{}", index / FILES_PER_DIRECTORY))
}

fn make(dir: &Path, index: u64, content: &[u8]) -> io::Result<()> {
    let parent = directory(dir, index);
    if index.is_multiple_of(FILES_PER_DIRECTORY) {
        fs::create_dir(&parent)?;
    }
    let path = parent.join(format!("file-{index}.c"));
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(&content[..(index * 607 % SIZES) as usize])?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000 + index))
}

fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_can_be_removed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let content = content();
        (0..250).for_each(|index| make(dir.path(), index, &content).expect("made"));
        assert_eq!(list(dir.path()).expect("listed").len(), 3);
        assert_eq!(list(&directory(dir.path(), 0)).expect("listed").len(), 100);
    }
}
