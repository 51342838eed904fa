//! `ioctl`, for what the kernel does not bring to the service as it is: FIEMAP, which it answers
//! for a FUSE mount without asking, and inode flags, for which it opens another handle.

use std::os::fd::RawFd;

use libc::{c_int, c_long, c_ulong};
use polylane_base::Errno;
use polylane_ipc::ioctl::{FS_IOC_FLAGS, IOCTL_FLAGS};

use super::{answer, hooks};
use crate::ops::{flags, pieces};
use crate::outcome::{Detour, Outcome};
use crate::real;

/// `FS_IOC_FIEMAP`, with a `struct fiemap`.
const FIEMAP: u32 = 0xc020_660b;

/// `struct fiemap` without its extents.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    _reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    _reserved: [u64; 2],
    flags: u32,
    _reserved_too: [u32; 3],
}

/// `FIEMAP_FLAG_SYNC`: always done.
const SYNC: u32 = 1;
/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 1;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x800;

/// # Safety
///
/// `head` is followed by as many extents as it says there is room for.
unsafe fn fiemap(fd: RawFd, head: *mut Head) -> Outcome<c_int> {
    // SAFETY: by contract.
    let (start, length, flags, room) =
        unsafe { ((*head).start, (*head).length, (*head).flags, (*head).room as usize) };
    if flags & !SYNC != 0 {
        // SAFETY: by contract.
        unsafe { (*head).flags = flags & !SYNC };
        return Err(Errno(libc::EBADR).into());
    }
    let wanted = if room == 0 { usize::MAX } else { room };
    let mut count = 0;
    pieces::each(fd, start, length, &mut |piece, is_last| {
        if room > 0 {
            let last = if is_last { LAST } else { 0 };
            let unwritten = if piece.unwritten { UNWRITTEN } else { 0 };
            let extent = Extent {
                logical: piece.offset,
                physical: piece.place,
                length: piece.len,
                _reserved: [0; 2],
                flags: last | unwritten,
                _reserved_too: [0; 3],
            };
            // SAFETY: by contract; `count` is below `room`.
            unsafe { head.add(1).cast::<Extent>().add(count).write_unaligned(extent) };
        }
        count += 1;
        count < wanted
    })?;
    // SAFETY: by contract.
    unsafe { (*head).mapped = count as u32 };
    Ok(0)
}

/// # Safety
///
/// `argument` is as the request wants it.
unsafe fn inode_flags(fd: RawFd, request: u32, argument: c_long) -> Outcome<c_int> {
    flags::announce(fd)?;
    let ours = FS_IOC_FLAGS.iter().zip(IOCTL_FLAGS).find(|(theirs, _)| **theirs == request);
    let (_, ours) = ours.ok_or(Detour::Kernel)?;
    // SAFETY: by contract; our request reads or writes what the kernel's does.
    match unsafe { real::ioctl(fd, ours.into(), argument) } {
        0 => Ok(0),
        // Another FUSE mount, or nothing that has flags: the kernel's answer stands.
        _ if matches!(real::errno(), libc::ENOTTY | libc::ENOSYS) => Err(Detour::Kernel),
        _ => Err(Errno(real::errno()).into()),
    }
}

hooks! {
    /// `ioctl(fd, request, ...)`.
    ["ioctl"]
    fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
        match request as u32 {
            FIEMAP if argument != 0 => answer!(
                // SAFETY: a struct fiemap, by the contract of the request.
                unsafe { fiemap(fd, argument as *mut Head) },
                real::ioctl(fd, request, argument)
            ),
            request_32 if FS_IOC_FLAGS.contains(&request_32) => answer!(
                // SAFETY: the caller's own argument, by the contract of the request.
                unsafe { inode_flags(fd, request_32, argument) },
                real::ioctl(fd, request, argument)
            ),
            // SAFETY: the caller's own arguments.
            _ => unsafe { real::ioctl(fd, request, argument) },
        }
    }
}
