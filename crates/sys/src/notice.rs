//! A page in which the first process of a tenant tells the others of its mounts: whether any was
//! made or taken away at the lane since COMMAND began, and in which mount namespace that holds.
//!
//! | byte | what |
//! |---|---|
//! | 0 | 1: the mounts at the lane are not those of the begin |
//! | 4 | how often they were looked at |
//! | 8 | inode number of the mount namespace |
//!
//! It is a file of the lane's run directory. Only the tenant's root may truncate it, which would
//! end the readers; root may end them anyway.
//!
//! What this module promises above: words are atomic; nothing allocates once a page is there.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use polylane_base::{Errno, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::ProtFlags;

use crate::region::{Region, errno};

const BYTES: usize = 4096;
const CHANGED: usize = 0;
const LOOKS: usize = 4;
const SPACE: usize = 8;

/// The page. Thread-safe.
#[derive(Debug)]
pub struct Notice(Region);

impl Notice {
    /// Makes the page in a directory, for everybody to read.
    ///
    /// # Errors
    /// What the kernel says to open, ftruncate and mmap.
    pub fn create(dir: impl AsFd, name: &Path, space: u64) -> Result<Notice> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let file = rustix::fs::openat(dir, name, flags, mode).map_err(errno)?;
        rustix::fs::ftruncate(&file, BYTES as u64).map_err(errno)?;
        let page = Region::map(&file, BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        page.word64(SPACE).store(space, Ordering::Relaxed);
        Ok(Notice(page))
    }

    /// Makes a page without a name, about mounts in that namespace; the descriptor is for readers,
    /// who can change nothing.
    ///
    /// # Errors
    /// What the kernel says to memfd_create, mmap and fcntl.
    pub fn unnamed(space: u64) -> Result<(Notice, OwnedFd)> {
        let (page, fd) = Region::create_to_show("polylane-mounts", BYTES)?;
        page.word64(SPACE).store(space, Ordering::Relaxed);
        Ok((Notice(page), fd))
    }

    /// The page that a peer sent.
    ///
    /// # Errors
    /// `EPROTO` when it could still shrink or is too short.
    pub fn attach(fd: impl AsFd) -> Result<Notice> {
        Region::attach_to_see(fd, BYTES).map(Notice)
    }

    /// The page of that path, to be read.
    ///
    /// # Errors
    /// `EPROTO` when it is too short; what the kernel says to open and mmap.
    pub fn open(path: &Path) -> Result<Notice> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(errno)?;
        if rustix::fs::fstat(&file).map_err(errno)?.st_size < BYTES as i64 {
            return Err(Errno::EPROTO);
        }
        Region::map(&file, BYTES, ProtFlags::READ).map(Notice)
    }

    /// Tells what a look found. For the page's maker only.
    pub fn tell(&self, changed: bool) {
        self.show(changed);
        self.count();
    }

    /// Tells what a look found, before it counts: a look at several mounts is over when all are
    /// told. For the page's maker only.
    pub fn show(&self, changed: bool) {
        self.0.word32(CHANGED).store(u32::from(changed), Ordering::Release);
    }

    /// Counts a look whose find is told. For the page's maker only.
    pub fn count(&self) {
        self.0.word32(LOOKS).fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the mounts at the lane are not those of the begin.
    #[inline]
    pub fn is_changed(&self) -> bool {
        self.0.word32(CHANGED).load(Ordering::Acquire) != 0
    }

    /// How often they were looked at; goes round.
    pub fn looks(&self) -> u32 {
        self.0.word32(LOOKS).load(Ordering::Acquire)
    }

    /// Whether the calling process sees those mounts. Where that cannot be found out, it does.
    pub fn is_of_this_process(&self) -> bool {
        mount_space().is_none_or(|space| space == self.0.word64(SPACE).load(Ordering::Relaxed))
    }
}

/// The inode number of the calling process's mount namespace; `None` without a /proc.
pub fn mount_space() -> Option<u64> {
    rustix::fs::stat(c"/proc/self/ns/mnt").ok().map(|stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let space = mount_space().unwrap();
        let mine = Notice::create(&folder, Path::new("mounts"), space).unwrap();
        let theirs = Notice::open(&dir.path().join("mounts")).unwrap();
        assert!(theirs.is_of_this_process() && !theirs.is_changed());
        mine.tell(true);
        assert!(theirs.is_changed() && theirs.looks() == 1);
        mine.tell(false);
        assert!(!theirs.is_changed() && theirs.looks() == 2);
        let other = Notice::create(&folder, Path::new("other"), space + 1).unwrap();
        assert!(!other.is_of_this_process());
    }

    #[test]
    fn a_short_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mounts"), [0; 64]).unwrap();
        assert_eq!(Notice::open(&dir.path().join("mounts")).unwrap_err(), Errno::EPROTO);
    }
}
