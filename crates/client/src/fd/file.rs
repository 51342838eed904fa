//! The position and the status flags of an open file: whether the library's count, or the kernel's.
//!
//! # Offsets
//!
//! A file that this process alone can reach keeps its offset here ("private"). As soon as anybody
//! else may use the kernel's descriptor - another process, stdio inside libc, a system call that is
//! not hooked - the offset is *published*: stored in the kernel's file position, which counts from
//! then on (`KERNEL_OFFSET`), for good. Descriptors 0 to 2 are stdio's and start published; so does
//! every descriptor that was inherited.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use polylane_ipc::message::TransferFlags;
use rustix::fs::{SeekFrom, seek};

use crate::fd::preopened::{Slot, SlotPool};
use crate::fd::record::{FileBits, Record};
use crate::kernel::outcome::Outcome;
use crate::kernel::real;

/// `O_LARGEFILE` as the kernel reports it; libc's own constant is 0 on 64-bit machines.
pub(crate) const LARGEFILE: u32 = 0o100000;

/// The slot of a file.
pub(crate) fn slot(slots: &'static SlotPool, file: &Record) -> Option<&'static Slot> {
    let index = file.slot.load(Ordering::Relaxed).checked_sub(1)?;
    slots.get(index)
}

/// Before a write: takes the status flags over from the kernel where others may have changed them.
/// What the service is to be told of them with the write.
#[inline]
pub(crate) fn status_now(file: &Record, fd: RawFd) -> Outcome<TransferFlags> {
    if file.is(FileBits::COMMON) { take_status(file, fd) } else { Ok(TransferFlags::empty()) }
}

fn take_status(file: &Record, fd: RawFd) -> Outcome<TransferFlags> {
    let (known, now) = (file.flags.load(Ordering::Relaxed) as i32, real::status_flags(fd)?);
    if (known ^ now) & STATUS_FLAGS != 0 {
        let flags = known & !STATUS_FLAGS | now & STATUS_FLAGS;
        file.flags.store(flags as u32, Ordering::Relaxed);
    }
    let mut told = TransferFlags::SAYS_APPENDS;
    told.set(TransferFlags::APPENDS, now & libc::O_APPEND != 0);
    Ok(told)
}

/// Makes the kernel's file position count. Whether it did not before: then the kernel has heard of
/// the file's size just now.
pub(crate) fn publish(slots: &'static SlotPool, file: &Record) -> bool {
    if file.is(FileBits::KERNEL_OFFSET) {
        return false;
    }
    let _guard = file.offset_lock.lock();
    let Some(slot) = slot(slots, file).filter(|_| !file.is(FileBits::KERNEL_OFFSET)) else {
        return false;
    };
    let fd = real::borrow(slot.master());
    // A private offset was checked when it was set: the kernel takes it.
    let _ = seek(fd, SeekFrom::Start(file.offset.load(Ordering::Relaxed)));
    let flags = file.flags.load(Ordering::Relaxed) as i32 & STATUS_FLAGS;
    if flags != 0 {
        let _ = rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::from_bits_retain(flags as u32));
        file.set(FileBits::FLAGGED);
    }
    tell_size(fd);
    file.leaves_end();
    file.set(FileBits::KERNEL_OFFSET);
    true
}

/// Lets the kernel ask for the size of a file: sendfile, splice and access to mapped pages stop at
/// the size that the kernel last heard of, which is 0 for a slot that only the library has used.
pub(crate) fn tell_size(fd: BorrowedFd<'_>) {
    let _ = rustix::fs::fstat(fd);
}

/// What `F_SETFL` can set and a file of the lane honours or reports.
pub(crate) const STATUS_FLAGS: i32 = libc::O_APPEND | libc::O_NONBLOCK;
