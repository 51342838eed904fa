//! `ioctl`, for what the kernel does not bring to the service as it is: FIEMAP, which it answers
//! for a FUSE mount without asking, and inode flags, for which it opens another handle.

use std::os::fd::RawFd;

use libc::{c_int, c_long, c_ulong};
use polylane_base::Errno;
use polylane_ipc::ioctl::{FS_IOC_FLAGS, FS_IOC_VERSION, FsXattr, IOCTL_FLAGS};
use rustix::thread::CapabilitySet;

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::state::STATE;
use crate::ops::{flags, own, pieces};

/// `FS_IOC_FIEMAP`, with a `struct fiemap`.
const FIEMAP: u32 = 0xc020_660b;

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Clone, Copy)]
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
    let mut told = unsafe { arg::value(head)? }.ok_or(Detour::Kernel)?;
    let Head { start, length, flags, room, .. } = told;
    let room = room as usize;
    if flags & !SYNC != 0 {
        told.flags = flags & !SYNC;
        // SAFETY: by contract.
        unsafe { head.write_unaligned(told) };
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
    told.mapped = count as u32;
    // SAFETY: by contract.
    unsafe { head.write_unaligned(told) };
    Ok(0)
}

/// What the kernel refuses by itself of its own requests, before it asks a file system: anything,
/// to a thread that neither owns the file nor has `CAP_FOWNER`; to change whether a file is
/// immutable, or can be appended to only, to a thread without a capability of the host's; to change
/// what belongs to projects, to processes in a user namespace.
///
/// # Safety
///
/// `argument` is as the request wants it.
unsafe fn refusal(fd: RawFd, request: u32, argument: c_long) -> Option<Errno> {
    let [_, set, _, set_more] = FS_IOC_FLAGS;
    // No memory of a program: the kernel says so.
    if argument < 4096 {
        return None;
    }
    let (get, privileged, of_projects) = match request {
        _ if request == set => (IOCTL_FLAGS[0], 0x30, 0x2000_0000),
        _ if request == set_more => (IOCTL_FLAGS[2], 0x18, 0x200),
        _ => return None,
    };
    let all = real::capabilities();
    let has = |one: CapabilitySet| all.is_none_or(|all| all & one.bits() != 0);
    if !has(CapabilitySet::FOWNER) && !real::owns(fd) {
        return Some(Errno::EPERM);
    }
    let is_first = real::is_in_first_user_namespace();
    let has_projects = is_first == Some(true);
    // Without /proc, as in a chroot, the capability decides alone.
    let may_freeze = is_first != Some(false) && has(CapabilitySet::LINUX_IMMUTABLE);
    if may_freeze && has_projects {
        return None;
    }
    let (mut now, mut new) = (FsXattr::default(), FsXattr::default());
    // SAFETY: the request writes as many bytes as there are, or an int; both begin with flags, as
    // does the argument.
    unsafe {
        if real::ioctl(fd, get.into(), (&raw mut now) as c_long) != 0 {
            return None;
        }
        match request == set {
            true => new.xflags = (argument as *const u32).read_unaligned(),
            false => new = (argument as *const FsXattr).read_unaligned(),
        }
    }
    let changed = now.xflags ^ new.xflags;
    if changed & privileged != 0 && !may_freeze {
        return Some(Errno::EPERM);
    }
    let moves = changed & of_projects != 0 || now.project != new.project;
    (moves && !has_projects).then_some(Errno::EINVAL)
}

/// # Safety
///
/// `argument` is as the request wants it.
unsafe fn inode_flags(fd: RawFd, request: u32, argument: c_long) -> Outcome<c_int> {
    let is_own = flags::announce(&STATE, fd)?;
    let ours = FS_IOC_FLAGS.iter().zip(IOCTL_FLAGS).find(|(theirs, _)| **theirs == request);
    let (_, ours) = ours.ok_or(Detour::Kernel)?;
    // SAFETY: by contract.
    if let Some(refused) = unsafe { refusal(fd, request, argument) } {
        return Err(refused.into());
    }
    // SAFETY: by contract; our request reads or writes what the kernel's does.
    match unsafe { real::ioctl(fd, ours.into(), argument) } {
        0 => Ok(0),
        // The kernel would open the slot once more to ask, and no slot can be.
        _ if is_own && real::errno() == libc::ENOTTY => Err(Errno(libc::ENOTTY).into()),
        // Another FUSE mount, or nothing that has flags: the kernel's answer stands.
        _ if matches!(real::errno(), libc::ENOTTY | libc::ENOSYS) => Err(Detour::Kernel),
        _ => Err(Errno(real::errno()).into()),
    }
}

/// `LOOP_SET_FD`, `LOOP_CHANGE_FD`, whose argument is a descriptor that the kernel keeps.
const LOOP_FD: [u32; 2] = [0x4c00, 0x4c06];
/// `LOOP_CONFIGURE`, whose argument points to one.
const LOOP_CONFIGURE: u32 = 0x4c0a;

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
            request_32 => {
                match request_32 {
                    // Another's descriptor is the kernel's affair.
                    _ if FS_IOC_VERSION.contains(&request_32) => {
                        let _ = flags::announce(&STATE, fd);
                    }
                    _ if LOOP_FD.contains(&request_32) => own::settle_fd(&STATE, argument as c_int),
                    // SAFETY: it begins with a descriptor, by the contract of the request.
                    LOOP_CONFIGURE if !arg::is_nowhere(argument as *const c_int) => unsafe {
                        own::settle_fd(&STATE, (argument as *const c_int).read_unaligned());
                    },
                    _ => {}
                }
                // SAFETY: the caller's own arguments.
                unsafe { real::ioctl(fd, request, argument) }
            }
        }
    }
}
