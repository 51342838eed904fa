//! Open files and streams of directories of a mounted client.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use libc::{c_int, dirent64, flock64, off_t};
use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_base::{Errno, Result};
use polylane_sys::room::Room;

use super::calls::{NO_FLAGS, RawDir, RawFile, RawMount, Stat, WANT, said};
use super::mount::{Counted, Mount};
use crate::counters::Kind;

/// Most bytes of one call: its result is an `int`.
const CALL_BYTES_MAX: usize = 1 << 30;

/// A handle of a regular file.
pub(crate) struct OpenFile {
    mount: Arc<Mount>,
    raw: NonNull<RawFile>,
    closed: Arc<Closed>,
}

/// How closing a handle ended.
#[derive(Default)]
pub(crate) struct Closed {
    result: Mutex<Option<Result<()>>>,
    told: Condvar,
}

impl Closed {
    /// Waits until the handle is closed. An error is that of a write which failed behind its
    /// caller's back while the handle was open.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut result = self.result.lock();
        loop {
            match *result {
                Some(result) => return result,
                None => result = self.told.wait(result),
            }
        }
    }
}

// SAFETY: calls with a handle take the client's lock.
unsafe impl Send for OpenFile {}
// SAFETY: as above.
unsafe impl Sync for OpenFile {}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let (calls, mount, file) = self.call();
        // SAFETY: this object's own handle.
        let closed = said(unsafe { (calls.ceph_ll_close)(mount, file) }).map(drop);
        self.mount.counters.handles.fetch_sub(1, Ordering::Relaxed);
        *self.closed.result.lock() = Some(closed);
        self.closed.told.notify_all();
    }
}

impl OpenFile {
    /// Takes a handle over. `EIO`: null.
    ///
    /// # Safety
    ///
    /// `raw` is null, or a handle that the client of `mount` gave the caller, who gives it up.
    pub(super) unsafe fn adopt(mount: &Arc<Mount>, raw: *mut RawFile) -> Result<OpenFile> {
        let raw = NonNull::new(raw).ok_or(Errno::EIO)?;
        mount.counters.handles.fetch_add(1, Ordering::Relaxed);
        Ok(OpenFile { mount: mount.clone(), raw, closed: Arc::default() })
    }

    /// What every call with it takes; counted until its first part is dropped.
    fn call(&self) -> (Counted<'_>, *mut RawMount, *mut RawFile) {
        (self.mount.calls(), self.mount.raw.as_ptr(), self.raw.as_ptr())
    }

    /// Reads at `offset`; how much, 0 at the end.
    pub(crate) fn read(&self, offset: u64, mut into: Room<'_>) -> Result<usize> {
        let (calls, mount, file) = self.call();
        let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let (at, len) = (into.address().cast(), into.len().min(CALL_BYTES_MAX) as u64);
        // SAFETY: live objects; `len` bytes may be stored at `at`, which the library does not read.
        let read = || said(unsafe { (calls.ceph_ll_read)(mount, file, offset, len, at) });
        self.mount.counters.timed(Kind::Read, read)
    }

    /// Writes at `offset`; how much.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        let (calls, mount, file) = self.call();
        let offset = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let (at, len) = (from.as_ptr().cast(), from.len().min(CALL_BYTES_MAX) as u64);
        // SAFETY: live objects; `len` bytes may be read at `at`.
        let write = || said(unsafe { (calls.ceph_ll_write)(mount, file, offset, len, at) });
        let written = self.mount.counters.timed(Kind::Write, write)?;
        self.mount.counters.wrote(written);
        Ok(written)
    }

    /// fallocate(2) with `mode`.
    pub(crate) fn fallocate(&self, mode: c_int, offset: u64, len: u64) -> Result<()> {
        let (calls, mount, file) = self.call();
        let signed = |value| i64::try_from(value).map_err(|_| Errno::EFBIG);
        let (offset, len) = (signed(offset)?, signed(len)?);
        // SAFETY: live objects.
        said(unsafe { (calls.ceph_ll_fallocate)(mount, file, mode, offset, len) }).map(drop)
    }

    /// fcntl(2) `F_SETLK` for an owner, without waiting. The lock goes with this handle.
    pub(crate) fn lock(&self, mut lock: flock64, owner: u64) -> Result<()> {
        let (calls, mount, file) = self.call();
        // SAFETY: live objects; the lock lives until the call returns.
        said(unsafe { (calls.ceph_ll_setlk)(mount, file, &raw mut lock, owner, 0) }).map(drop)
    }

    /// fcntl(2) `F_GETLK`: what stands in the way, or `F_UNLCK`.
    pub(crate) fn lock_in_the_way(&self, mut lock: flock64, owner: u64) -> Result<flock64> {
        let (calls, mount, file) = self.call();
        // SAFETY: live objects; the lock lives until the call returns.
        said(unsafe { (calls.ceph_ll_getlk)(mount, file, &raw mut lock, owner) })?;
        Ok(lock)
    }

    /// How closing it will end.
    pub(crate) fn closed(&self) -> Arc<Closed> {
        self.closed.clone()
    }

    /// Makes data, and the state unless `data_only`, durable. It does not tell of writes
    /// that failed before: closing does.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        let (calls, mount, file) = self.call();
        // SAFETY: live objects.
        let sync = || said(unsafe { (calls.ceph_ll_fsync)(mount, file, data_only.into()) });
        let synced = self.mount.counters.timed(Kind::Sync, sync);
        self.mount.synced(synced.map(drop))
    }
}

/// A stream of a directory.
pub(crate) struct DirStream {
    mount: Arc<Mount>,
    raw: NonNull<RawDir>,
}

// SAFETY: calls with a stream take the client's lock.
unsafe impl Send for DirStream {}

impl Drop for DirStream {
    fn drop(&mut self) {
        // SAFETY: this object's own stream.
        let _ = unsafe {
            (self.mount.calls().ceph_ll_releasedir)(self.mount.raw.as_ptr(), self.raw.as_ptr())
        };
    }
}

/// An entry of a directory.
pub(crate) struct Listed {
    entry: dirent64,
    /// The inode's state, as the client knows it.
    pub(crate) stat: Stat,
}

impl Listed {
    /// Its name.
    pub(crate) fn name(&self) -> &[u8] {
        // The library ends names with a NUL; one that it did not end would be cut at the end.
        let name = &self.entry.d_name;
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        // SAFETY: `len` bytes of the array are read, as the same bytes without a sign.
        unsafe { std::slice::from_raw_parts(self.entry.d_name.as_ptr().cast(), len) }
    }

    /// The position behind it.
    pub(crate) fn next(&self) -> u64 {
        self.entry.d_off.cast_unsigned()
    }
}

impl DirStream {
    /// Takes a stream over.
    ///
    /// # Safety
    ///
    /// `raw` is a stream that the client of `mount` gave the caller, who gives it up.
    pub(super) unsafe fn new(mount: Arc<Mount>, raw: NonNull<RawDir>) -> DirStream {
        DirStream { mount, raw }
    }

    /// Goes on from a position that an entry had behind it.
    pub(crate) fn seek(&mut self, position: u64) -> Result<()> {
        let (mount, dir) = (self.mount.raw.as_ptr(), self.raw.as_ptr());
        let position = off_t::try_from(position).map_err(|_| Errno::EINVAL)?;
        // SAFETY: live objects.
        unsafe { (self.mount.calls().ceph_seekdir)(mount, dir, position) };
        Ok(())
    }

    /// The next entry; `None` at the end.
    pub(crate) fn read(&mut self) -> Result<Option<Listed>> {
        let (mount, dir) = (self.mount.raw.as_ptr(), self.raw.as_ptr());
        // SAFETY: integers; zeros are values of them.
        let entry = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut listed = Listed { entry, stat: Stat::empty() };
        let (entry, stat) = (&raw mut listed.entry, &raw mut listed.stat);
        let no_node = ptr::null_mut();
        // SAFETY: live objects; no reference is asked for.
        let found = said(unsafe {
            let calls = self.mount.calls();
            (calls.ceph_readdirplus_r)(mount, dir, entry, stat, WANT, NO_FLAGS, no_node)
        })?;
        Ok((found > 0).then_some(listed))
    }
}
