//! Open files.
#![expect(unused_variables, reason = "signatures first")]

use polylane_base::{Errno, Result};

use crate::cred::Cred;
use crate::fs::{DirEntry, SeekFor, Sink, Source};
use crate::inode::Node;

/// How far a write came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes written.
    pub count: usize,
    /// Offset after the last byte written.
    pub end: u64,
}

/// An open file description. Dropping the last `Arc` closes it. Thread-safe.
pub struct OpenFile {
    node: Node,
    flags: i32,
}

impl OpenFile {
    /// The inode that is open.
    pub fn node(&self) -> &Node {
        &self.node
    }
    /// open(2) flags, without creation flags.
    pub fn flags(&self) -> i32 {
        self.flags
    }
    /// F_SETFL.
    pub fn set_flags(&self, flags: i32) {}
    /// Reads at most `len` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        Err(Errno::ENOSYS)
    }
    /// Writes at `at`, or at the end with `None` or `O_APPEND`.
    pub fn write(&self, cred: &Cred, at: Option<u64>, from: &mut dyn Source) -> Result<Written> {
        Err(Errno::ENOSYS)
    }
    /// fsync(2), fdatasync(2).
    pub fn fsync(&self, data_only: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// fallocate(2) with `FALLOC_FL_*` flags.
    pub fn fallocate(&self, cred: &Cred, flags: i32, offset: u64, len: u64) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// SEEK_DATA, SEEK_HOLE.
    pub fn seek(&self, offset: u64, target: SeekFor) -> Result<u64> {
        Err(Errno::ENOSYS)
    }
    /// Lists the directory from position `from`, with `.` and `..`.
    pub fn readdir(&self, from: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// copy_file_range(2): `len` bytes at `from` of this file to `at` of `to`.
    pub fn copy_range(&self, from: u64, to: &OpenFile, at: u64, len: u64) -> Result<u64> {
        Err(Errno::ENOSYS)
    }
}
