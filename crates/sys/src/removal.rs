//! Removal of trees that others made, however deep they are.
//!
//! A directory in a directory is moved up to the tree's root before it is emptied, so a tree costs
//! no stack, and no more than two descriptors.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a file, or a directory with everything in it; nothing where there is none. Links are
/// removed, not followed. A call that is cut off leaves a tree that can be removed.
///
/// Nobody else may change the tree meanwhile.
///
/// # Errors
/// The kernel's; then a part of the tree is left.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let root = open(rustix::fs::CWD, &CString::new(path.as_os_str().as_bytes())?)?;
    empty(&root)?;
    rustix::fs::rmdir(path)?;
    Ok(())
}

/// Removes everything in the directory `root`.
fn empty(root: &OwnedFd) -> Result<(), Errno> {
    let mut fresh = 0_u64;
    let mut left = remove_files(root, root)?;
    while let Some(name) = left.pop() {
        let dir = open(root, &name)?;
        for inner in remove_files(&dir, &dir)? {
            left.push(move_up(&dir, &inner, root, &mut fresh)?);
        }
        rustix::fs::unlinkat(root, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes what is in a directory, but directories that have something in them: their names.
fn remove_files(list: &OwnedFd, dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut dirs = Vec::new();
    for entry in Dir::read_from(list)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => dirs.push(name.to_owned()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(dirs)
}

/// Moves a directory into the tree's root, under a name that is free there.
fn move_up(dir: &OwnedFd, name: &CStr, root: &OwnedFd, fresh: &mut u64) -> Result<CString, Errno> {
    loop {
        let to = CString::new(format!("{fresh:x}")).map_err(|_| Errno::INVAL)?;
        *fresh += 1;
        match rustix::fs::renameat_with(dir, name, root, &to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(to),
            Err(Errno::EXIST) => {}
            // A file system that has no such move: no other process gives a name meanwhile.
            Err(Errno::INVAL) if is_free(root, &to)? => {
                rustix::fs::renameat(dir, name, root, &to)?;
                return Ok(to);
            }
            Err(Errno::INVAL) => {}
            // Its owner may not write to it, which a move of a directory has to.
            Err(Errno::ACCESS) => make_usable(dir, name)?,
            Err(errno) => return Err(errno),
        }
    }
}

fn is_free(dir: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(false),
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory to list it and to remove names in it.
fn open(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let dir = dir.as_fd();
    let opened = match rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            make_usable(dir, name)?;
            rustix::fs::openat(dir, name, DIRECTORY, Mode::empty())?
        }
        opened => opened?,
    };
    let owned = rustix::fs::fstat(&opened)?;
    if owned.st_mode & 0o700 != 0o700 {
        // Fails for who may not, and then does not matter or is told by what comes next.
        let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
    }
    Ok(opened)
}

fn make_usable(dir: impl AsFd, name: &CStr) -> Result<(), Errno> {
    rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A tree that no path reaches the end of, with names that removal uses itself.
    fn deep(path: &Path, depth: usize) {
        fs::create_dir(path).expect("mkdir");
        let mut dir = open(rustix::fs::CWD, &CString::new(path.as_os_str().as_bytes()).expect("c"))
            .expect("open");
        for level in 0..depth {
            for name in ["0", "1", "a"] {
                rustix::fs::mkdirat(&dir, name, Mode::RWXU).expect("mkdir");
            }
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(rustix::fs::openat(&dir, "file", flags, Mode::RUSR).expect("create"));
            let next = if level % 2 == 0 { c"0" } else { c"a" };
            dir = open(&dir, next).expect("open");
        }
    }

    #[test]
    fn trees_of_any_depth_go_and_links_are_not_followed() {
        let place = tempfile::tempdir().expect("tempdir");
        let kept = place.path().join("kept");
        fs::create_dir(&kept).expect("mkdir");
        fs::write(kept.join("file"), "x").expect("write");
        let tree = place.path().join("tree");
        deep(&tree, 5000);
        symlink(&kept, tree.join("link")).expect("symlink");
        fs::create_dir_all(tree.join("closed/b/c")).expect("mkdir");
        for path in ["closed/b/c", "closed/b", "closed"] {
            let mode = fs::Permissions::from_mode(0o000);
            fs::set_permissions(tree.join(path), mode).expect("chmod");
        }
        let path = tree.clone();
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        let removed = thread.spawn(move || remove_tree(&path)).expect("thread");
        removed.join().expect("no panic").expect("removed");
        assert!(!tree.exists());
        assert_eq!(fs::read(kept.join("file")).expect("there"), b"x");
        remove_tree(&tree).expect("nothing there");
        symlink(&kept, &tree).expect("symlink");
        remove_tree(&tree).expect("a link");
        assert!(kept.join("file").exists());
    }
}
