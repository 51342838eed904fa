//! `syscall(2)`, the function: programs (libuv among them) call the kernel through it.
//!
//! What touches descriptors or the process goes to the hook of that name, and statx, of whose
//! answer the kernel's FUSE drops a part; other paths are left to the kernel.
//!
//! A hook ends at the next library's function of its name. That library may call the kernel by
//! `syscall` itself (tcmalloc's `mmap` does). A call within a call therefore goes to the kernel.

use std::ffi::{c_int, c_long, c_void};

use super::{attr, dir, epoll, fd, fork, hooks, io, number, process as identity, ring, stat};
use crate::ops::process::{self, Sharing};
use crate::{mounts, real, rings, thread};

hooks! {
    /// A table of numbers. Arguments are passed on as they came.
    ["syscall"]
    fn syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long {
        let Some(_entered) = thread::enter_syscall() else {
            // SAFETY: the caller's own arguments.
            return unsafe { real::syscall(number, a, b, c, d, e, f) };
        };
        // SAFETY: each arm passes the caller's arguments to the function of that number.
        unsafe {
            match number {
                libc::SYS_read => io::read(a as _, b as _, c as _) as c_long,
                libc::SYS_write => io::write(a as _, b as _, c as _) as c_long,
                libc::SYS_readv => io::readv(a as _, b as _, c as _) as c_long,
                libc::SYS_writev => io::writev(a as _, b as _, c as _) as c_long,
                libc::SYS_pread64 => io::pread(a as _, b as _, c as _, d) as c_long,
                libc::SYS_pwrite64 => io::pwrite(a as _, b as _, c as _, d) as c_long,
                libc::SYS_lseek => io::lseek(a as _, b, c as _),
                libc::SYS_sendfile => io::sendfile(a as _, b as _, c as _, d as _) as c_long,
                libc::SYS_splice => {
                    io::splice(a as _, b as _, c as _, d as _, e as _, f as _) as c_long
                }
                libc::SYS_copy_file_range => {
                    io::copy_file_range(a as _, b as _, c as _, d as _, e as _, f as _) as c_long
                }
                libc::SYS_statx => stat::statx(a as _, b as _, c as _, d as _, e as _).into(),
                libc::SYS_getdents64 => dir::getdents64(a as _, b as _, c as _) as c_long,
                libc::SYS_readahead => attr::readahead(a as _, b, c as _) as c_long,
                libc::SYS_fadvise64 => match attr::posix_fadvise(a as _, b, c, d as _) {
                    0 => 0,
                    errno => super::failed(errno),
                },
                libc::SYS_epoll_ctl => epoll::epoll_ctl(a as _, b as _, c as _, d as _).into(),
                libc::SYS_close => fd::close(a as _).into(),
                libc::SYS_close_range => fd::close_range(a as _, b as _, c as _).into(),
                libc::SYS_dup => fd::dup(a as _).into(),
                libc::SYS_dup3 => fd::dup3(a as _, b as _, c as _).into(),
                libc::SYS_fcntl => fd::fcntl(a as _, b as _, c).into(),
                libc::SYS_flock => fd::flock(a as _, b as _).into(),
                libc::SYS_sendmsg => identity::sendmsg(a as _, b as _, c as _) as c_long,
                libc::SYS_umask => process::umask(a as u32).into(),
                libc::SYS_mount => mounts::change(identity::moves(d as _), || {
                    real::syscall(number, a, b, c, d, e, f)
                }),
                libc::SYS_umount2 | libc::SYS_move_mount => {
                    mounts::change(true, || real::syscall(number, a, b, c, d, e, f))
                }
                libc::SYS_mmap => super::map::map_file(e as _, d as _, |fd| {
                    real::syscall(number, a, b, c, d, fd.into(), f) as *mut c_void
                }) as c_long,
                _ => match old(number, a, b) {
                    Some(rc) => rc,
                    None => {
                        let _sharing = before(number, (a, b, c));
                        after(number, (a, b, d), real::syscall(number, a, b, c, d, e, f))
                    }
                },
            }
        }
    }
}

/// What a system call changes of this process, or of what paths mean in it.
enum Change {
    /// The user or groups of the calling thread: libc's functions of these names, which change all
    /// threads, do so by a call for each.
    Identity,
    /// What the user may.
    Capabilities,
    /// Where paths lead; or an identity that the service cannot see.
    Place,
}

fn change(number: c_long) -> Option<Change> {
    Some(match number {
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups => Change::Identity,
        libc::SYS_capset => Change::Capabilities,
        libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_unshare
        | libc::SYS_setns => Change::Place,
        _ => return None,
    })
}

/// What is to be done before the kernel does a call.
///
/// # Safety
///
/// The first arguments of that system call.
unsafe fn before(number: c_long, (a, b, c): (c_long, c_long, c_long)) -> Option<Sharing> {
    if change(number).is_some() {
        process::before_change();
    }
    match number {
        libc::SYS_execve | libc::SYS_execveat => return Some(process::before_sharing()),
        libc::SYS_clone => return Some(process::before_clone(a as c_int)),
        libc::SYS_clone3 if a != 0 => {
            // SAFETY: by contract; the flags come first.
            let flags = unsafe { *(a as *const u64) };
            return Some(process::before_clone(flags as c_int));
        }
        libc::SYS_getcwd => process::look_for_directory(),
        libc::SYS_io_uring_setup => rings::ring_begins(),
        libc::SYS_io_uring_enter => rings::settle(),
        libc::SYS_io_setup => rings::aio_begins(),
        // SAFETY: by contract.
        libc::SYS_io_submit => unsafe { ring::before_submit(b, c as _) },
        _ => {}
    }
    None
}

/// What a call that the kernel did means for what is known here.
///
/// # Safety
///
/// The arguments of that system call.
unsafe fn after(number: c_long, given: (c_long, c_long, c_long), rc: c_long) -> c_long {
    if rc < 0 {
        return rc;
    }
    // SAFETY: by contract.
    unsafe { number::after(number, given, rc) };
    match change(number) {
        Some(Change::Identity) => process::thread_identity_changed(),
        Some(Change::Capabilities) => process::capabilities_changed(),
        Some(Change::Place) => process::estranged(),
        None => {}
    }
    match number {
        libc::SYS_chdir | libc::SYS_fchdir => process::directory_changed(),
        libc::SYS_prlimit64 | libc::SYS_setrlimit => crate::ops::limit::changed(),
        _ => {}
    }
    rc
}

/// Numbers that only old architectures have.
///
/// # Safety
///
/// The arguments of that system call.
#[cfg(target_arch = "x86_64")]
unsafe fn old(number: c_long, a: c_long, b: c_long) -> Option<c_long> {
    // SAFETY: by contract.
    Some(unsafe {
        match number {
            libc::SYS_dup2 => fd::dup2(a as _, b as _).into(),
            libc::SYS_fork => fork::fork().into(),
            libc::SYS_vfork => fork::vfork().into(),
            _ => return None,
        }
    })
}

/// As above: this architecture has none.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn old(_number: c_long, _a: c_long, _b: c_long) -> Option<c_long> {
    None
}
