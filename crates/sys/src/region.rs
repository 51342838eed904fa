//! Shared memory regions: sealed memfds mapped into two processes that do not trust each other.
//!
//! # Invariants
//!
//! - A mapped region cannot shrink under us: it carries `F_SEAL_SHRINK`, checked when a foreign one
//!   is attached, so no access can raise `SIGBUS`.
//! - Memory that a peer may write is reached through atomics and copies only. No `&[u8]` into a
//!   region is ever made, and each copy reads a shared byte once.
//! - Every access is bounds-checked here. An offset out of range is a bug of the caller, who
//!   derives offsets from validated geometry, hence a panic; a peer cannot cause it.
#![expect(unsafe_code, reason = "UNSAFETY: maps memory and copies to and from it")]

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use polylane_base::{Errno, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy::{self, Method};
use crate::room::Room;

/// Protection of a mapping to read and write.
const WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A shared mapping of a sealed memfd. Unmapped when dropped. Thread-safe.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: all access goes through atomics and through copies of racing bytes (see `copy`).
unsafe impl Sync for Region {}

impl Region {
    /// Makes a zeroed region of `len` bytes and maps it. The descriptor is for the peer; the size
    /// is sealed. Fails with what memfd_create(2), ftruncate(2) or mmap(2) say.
    pub fn create(name: &str, len: usize) -> Result<(Region, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(errno)?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(errno)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(errno)?;
        Ok((Self::map(&fd, len, WRITE)?, fd))
    }

    /// Makes a zeroed region of `len` bytes that nobody but this process will ever write to,
    /// whatever it does with the descriptor. Fails as [`Region::create`].
    pub fn create_to_show(name: &str, len: usize) -> Result<(Region, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(errno)?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(errno)?;
        let region = Self::map(&fd, len, WRITE)?;
        let size = SealFlags::SHRINK | SealFlags::GROW;
        let seals = size | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(errno)?;
        Ok((region, fd))
    }

    /// Maps the first `len` bytes of a region that a peer shows: to be loaded from only, by
    /// [`Region::word32`] and the like; a store would be a fault. `EPROTO` as
    /// [`Region::attach`].
    pub(crate) fn attach_to_see(fd: impl AsFd, len: usize) -> Result<Region> {
        Self::check(&fd, len)?;
        Self::map(&fd, len, ProtFlags::READ)
    }

    /// Maps the first `len` bytes of a region that a peer made. `EPROTO` when it could still shrink
    /// or is smaller than `len`.
    pub fn attach(fd: impl AsFd, len: usize) -> Result<Region> {
        Self::check(&fd, len)?;
        Self::map(&fd, len, WRITE)
    }

    fn check(fd: impl AsFd, len: usize) -> Result<()> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(errno)?;
        let size = rustix::fs::fstat(&fd).map_err(errno)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).unwrap_or(0) < len as u64 {
            return Err(Errno::EPROTO);
        }
        Ok(())
    }

    pub(crate) fn map(fd: impl AsFd, len: usize, prot: ProtFlags) -> Result<Region> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) };
        let base = NonNull::new(base.map_err(errno)?.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Region { base, len })
    }

    /// Has the kernel leave the mapping out of every child with memory of its own, however it is
    /// made, and out of core dumps. Fails with what madvise(2) says.
    pub fn keep_from_children(self) -> Result<Region> {
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the mapping is ours; only children and dumps see an effect.
            unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
                .map_err(errno)?;
        }
        Ok(self)
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped; never true for a region in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the byte at `offset`, for `process_vm_readv` by a peer. Not dereferenced
    /// here.
    pub fn address(&self, offset: usize) -> u64 {
        self.at(offset, 0) as u64
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    #[inline]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "unaligned word");
        // SAFETY: in range, aligned, mapped as long as `self`; only ever accessed as this type.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The 64-bit word at `offset`, a multiple of 8.
    #[inline]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "unaligned word");
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Copies `from` to `offset`.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.copy_in_with(Method::Smc, offset, from);
    }

    /// Copies the `into.len()` bytes at `offset` out.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.copy_out_with(Method::Smc, offset, into);
    }

    /// [`Region::copy_in`] by a chosen method.
    #[inline]
    pub fn copy_in_with(&self, method: Method, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: both ranges are valid for their length; private and mapped memory do not overlap.
        unsafe { copy::raw(method, to, from.as_ptr(), from.len()) }
    }

    /// [`Region::copy_out`] by a chosen method.
    #[inline]
    pub fn copy_out_with(&self, method: Method, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: as in `copy_in_with`.
        unsafe { copy::raw(method, into.as_mut_ptr(), from, into.len()) }
    }

    /// The `len` bytes at `offset`, for a call of a C library that stores there.
    pub fn room(&self, offset: usize, len: usize) -> Room<'_> {
        // SAFETY: an address within the mapping is not null.
        let at = unsafe { NonNull::new_unchecked(self.at(offset, len)) };
        Room::at(at, len)
    }

    /// Copies `len` bytes at `from` to `to`, both within the region. The ranges may overlap.
    #[inline]
    pub fn copy_within(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (self.at(from, len), self.at(to, len));
        // SAFETY: both are in range; racing writers yield a mix of old and new bytes.
        unsafe { copy::raw_within(to, from, len) }
    }

    /// Stores `len` zeros at `offset`.
    pub fn zero(&self, offset: usize, len: usize) {
        let to = self.at(offset, len);
        // SAFETY: in range; racing readers see old bytes or zeros.
        unsafe { copy::raw_zero(to, len) }
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "offset outside the region");
        // SAFETY: `offset` is within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it outlives `self`. Failure leaks it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let (mine, fd) = Region::create("test", 8192).unwrap();
        let theirs = Region::attach(&fd, 8192).unwrap();
        mine.copy_in(4090, b"across a page");
        mine.word64(8).store(7, Ordering::Release);
        let mut seen = [0; 13];
        theirs.copy_out(4090, &mut seen);
        assert_eq!(&seen, b"across a page");
        assert_eq!(theirs.word64(8).load(Ordering::Acquire), 7);
        theirs.zero(4090, 6);
        mine.copy_out(4090, &mut seen);
        assert_eq!(&seen, b"\0\0\0\0\0\0 a page");
    }

    #[test]
    #[cfg(not(miri))]
    fn children_and_dumps_are_without_it() {
        let (_mine, fd) = Region::create("test-kept", 8192).unwrap();
        let kept = Region::attach(&fd, 8192).unwrap().keep_from_children().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", kept.address(0));
        let part = maps.split(start.as_str()).nth(1).unwrap();
        let flags = part.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let has = |flag| flags.split_whitespace().any(|one| one == flag);
        assert!(has("dc") && has("dd"), "neither fork nor dump: {flags}");
    }

    #[test]
    fn the_size_is_sealed_and_checked() {
        let (_region, fd) = Region::create("test", 4096).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert_eq!(Region::attach(&fd, 8192).unwrap_err(), Errno::EPROTO);
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert_eq!(Region::attach(&loose, 4096).unwrap_err(), Errno::EPROTO);
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn out_of_range_is_caught() {
        let (region, _fd) = Region::create("test", 4096).unwrap();
        region.copy_in(4090, &[0; 7]);
    }
}
