//! What a directory of the host can do: kernels and file systems differ, tests must not.

use crate::fs_suite::Can;
use crate::ops::Limits;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Tries it out in `dir`, which must be ours and empty; leaves nothing behind. Times are taken for
/// coarse and holes for inexact.
///
/// # Panics
///
/// When `dir` cannot even hold files.
pub fn host(dir: &Path) -> Can {
    let root = rustix::process::geteuid().is_root() && own(dir);
    let (file, moved) = (dir.join("probe"), dir.join("probe-moved"));
    std::fs::write(&file, vec![1; 5 * 4096]).expect("a directory to write to");
    let can = Can {
        own: root,
        unnamed: unnamed(dir),
        fallocate: fallocate(&file),
        xattrs: rustix::fs::setxattr(&file, "user.probe", b"x", XattrFlags::empty()).is_ok(),
        whiteout: root
            && rustix::fs::renameat_with(CWD, &file, CWD, &moved, RenameFlags::WHITEOUT).is_ok(),
        rename_flags: true,
        exact_holes: false,
        fine_times: false,
    };
    for leftover in [file, moved] {
        // One of the two is not there.
        let _ = std::fs::remove_file(leftover);
    }
    can
}

/// Whether directories count their subdirectories (btrfs and some overlays do not).
///
/// # Panics
///
/// When `dir` cannot hold a directory.
pub fn counts_directories(dir: &Path) -> bool {
    let sub = dir.join("probe");
    std::fs::create_dir(&sub).expect("a directory to write to");
    let count = std::fs::metadata(&sub).map(|found| found.nlink());
    std::fs::remove_dir(&sub).expect("our own empty directory");
    count.is_ok_and(|count| count == 2)
}

/// What a generator must leave out for a file system that can do no more than `can`.
pub fn limits(can: Can) -> Limits {
    Limits {
        root_only: !can.own,
        no_whiteouts: !can.whiteout,
        no_xattrs: !can.xattrs,
        no_fallocate: !can.fallocate,
        no_unnamed: !can.unnamed,
        ..Limits::default()
    }
}

/// All modes, in units of 4 KiB.
fn fallocate(file: &Path) -> bool {
    let fd = rustix::fs::openat(CWD, file, OFlags::RDWR, Mode::empty());
    let keep = FallocateFlags::KEEP_SIZE;
    let modes = [
        FallocateFlags::empty(),
        FallocateFlags::PUNCH_HOLE | keep,
        FallocateFlags::ZERO_RANGE | keep,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::COLLAPSE_RANGE,
    ];
    fd.is_ok_and(|fd| {
        modes.iter().all(|&mode| rustix::fs::fallocate(&fd, mode, 4096, 4096).is_ok())
    })
}

/// `O_TMPFILE`, and giving the file a name.
fn unnamed(dir: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let Ok(fd) = rustix::fs::openat(CWD, dir, flags, Mode::RUSR) else { return false };
    let name = dir.join("probe-named");
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let linked = rustix::fs::linkat(CWD, link, CWD, &name, AtFlags::SYMLINK_FOLLOW).is_ok();
    linked && rustix::fs::unlinkat(CWD, &name, AtFlags::empty()).is_ok()
}

/// Giving files away and making devices: a user namespace refuses the latter to its root.
fn own(dir: &Path) -> bool {
    let path = dir.join("probe-device");
    let null = rustix::fs::makedev(1, 3);
    let made = rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, null);
    made.is_ok() && std::fs::remove_file(path).is_ok()
}
