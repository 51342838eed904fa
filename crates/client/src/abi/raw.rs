//! `syscall(2)`, the function: programs (libuv among them) call the kernel through it.
//!
//! What touches descriptors or the process goes to the hook of that name, and statx, of whose
//! answer the kernel's FUSE drops a part; other paths are left to the kernel.
//!
//! A hook ends at the next library's function of its name. That library may call the kernel by
//! `syscall` itself (tcmalloc's `mmap` does). A call within a call therefore goes to the kernel.

use std::ffi::{c_int, c_long, c_void};

use super::{arg, attr, dir, epoll, fd, fork, hooks, io, number, process as identity, ring, stat};
use crate::fd::rings;
use crate::kernel::real;
use crate::kernel::thread;
use crate::ops::own;
use crate::ops::process::{self, Sharing};
use crate::ops::share::Heir;
use crate::ops::state::STATE;
use crate::ops::strict;

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
                libc::SYS_pwritev => io::pwritev(a as _, b as _, c as _, d) as c_long,
                libc::SYS_preadv2 => io::preadv2(a as _, b as _, c as _, d, f as _) as c_long,
                libc::SYS_pwritev2 => io::pwritev2(a as _, b as _, c as _, d, f as _) as c_long,
                libc::SYS_ftruncate => attr::ftruncate(a as _, b).into(),
                libc::SYS_lseek => io::lseek(a as _, b, c as _),
                libc::SYS_sendfile => io::sendfile(a as _, b as _, c as _, d as _) as c_long,
                libc::SYS_splice => {
                    io::splice(a as _, b as _, c as _, d as _, e as _, f as _) as c_long
                }
                libc::SYS_copy_file_range => {
                    io::copy_file_range(a as _, b as _, c as _, d as _, e as _, f as _) as c_long
                }
                libc::SYS_statx => stat::statx(a as _, b as _, c as _, d as _, e as _).into(),
                // The kernel's word for a size is 32 bits long, and it counts the rest in an int.
                libc::SYS_getdents64 if c as u32 <= c_int::MAX as u32 => {
                    dir::getdents64(a as _, b as _, c as u32 as _) as c_long
                }
                libc::SYS_readahead => attr::readahead(a as _, b, c as _) as c_long,
                libc::SYS_fadvise64 => fadvise(attr::posix_fadvise(a as _, b, c, d as _)),
                libc::SYS_epoll_ctl => epoll::epoll_ctl(a as _, b as _, c as _, d as _).into(),
                libc::SYS_close => fd::close(a as _).into(),
                libc::SYS_close_range => fd::close_range(a as _, b as _, c as _).into(),
                libc::SYS_dup => fd::dup(a as _).into(),
                libc::SYS_dup3 => fd::dup3(a as _, b as _, c as _).into(),
                libc::SYS_fcntl => fd::fcntl(a as _, b as _, c).into(),
                libc::SYS_flock => fd::flock(a as _, b as _).into(),
                libc::SYS_sendmsg => identity::sendmsg(a as _, b as _, c as _) as c_long,
                libc::SYS_sendmmsg => {
                    identity::sendmmsg(a as _, b as _, c as _, d as _).into()
                }
                libc::SYS_umask => process::umask(&STATE, a as u32).into(),
                libc::SYS_mount => identity::changing(identity::moves(d as _), || {
                    real::syscall(number, a, b, c, d, e, f)
                }),
                libc::SYS_umount2 | libc::SYS_move_mount | libc::SYS_mount_setattr => {
                    identity::changing(true, || real::syscall(number, a, b, c, d, e, f))
                }
                libc::SYS_mmap => super::map::map_file(e as _, d as _, || {
                    real::syscall(number, a, b, c, d, e, f) as *mut c_void
                }) as c_long,
                libc::SYS_clone if b == 0 && is_vm_alone(a) => {
                    cloning(|| real::syscall(number, a & !VM, b, c, d, e, f))
                }
                libc::SYS_clone3 => clone3(a as _, b as _),
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

const VM: c_long = libc::CLONE_VM as c_long;

/// Whether these flags make a process, no thread, that has its memory in common with this one.
fn is_vm_alone(flags: c_long) -> bool {
    flags & (VM | c_long::from(libc::CLONE_THREAD)) == VM
}

/// Makes a process with memory of its own by `clone`, whatever it was to have: one that has the
/// caller's stack as well would leave our frame before the caller does. See `fork::vfork`.
fn cloning(clone: impl FnOnce() -> c_long) -> c_long {
    let sharing = process::before_sharing(&STATE);
    let pid = clone();
    drop(sharing);
    if pid == 0 {
        fork::born();
    }
    pid
}

/// `clone3`: as `clone`, which see.
///
/// # Safety
///
/// The arguments of that system call.
unsafe fn clone3(given: *const u64, size: usize) -> c_long {
    /// Words of its argument: flags first, the stack sixth.
    const WORDS: usize = 16;
    const STACK: usize = 5;
    let mut words = [0u64; WORDS];
    let whole = !arg::is_nowhere(given) && (8 * (STACK + 1)..=8 * WORDS).contains(&size);
    if whole {
        // SAFETY: by contract; no longer than `words`.
        unsafe { words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(given.cast(), size) };
    }
    // The flags that matter are in the lower half.
    let flags = words[0] as u32;
    // SAFETY: by contract.
    let call = |at: *const u64| unsafe {
        real::syscall(libc::SYS_clone3, at as c_long, size as c_long, 0, 0, 0, 0)
    };
    match whole {
        true if words[STACK] == 0 && is_vm_alone(flags.into()) => {
            words[0] &= !(VM as u64);
            cloning(|| call(words.as_ptr()))
        }
        true => {
            let sharing = process::before_clone(&STATE, flags.cast_signed());
            let pid = call(given);
            drop(sharing);
            if pid == 0 {
                fork::born();
            }
            pid
        }
        false => call(given),
    }
}

/// What `fadvise64` returns where `posix_fadvise` returns an errno.
fn fadvise(errno: c_int) -> c_long {
    if errno == 0 { 0 } else { super::failed(errno) }
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

/// Whether a call of `seccomp` puts a filter, or the strict mode, in force, and does not only ask.
fn seccomp_confines(operation: c_long, filter: c_long) -> bool {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => true,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// What is to be done before the kernel does a call.
///
/// # Safety
///
/// The first arguments of that system call.
unsafe fn before(number: c_long, (a, b, c): (c_long, c_long, c_long)) -> Option<Sharing> {
    if change(number).is_some() {
        process::before_change(&STATE);
    }
    match number {
        libc::SYS_execve => return Some(process::before_sharing_with(&STATE, Heir::Program)),
        libc::SYS_execveat => {
            own::settle_fd(&STATE, a as c_int);
            return Some(process::before_sharing_with(&STATE, Heir::Program));
        }
        libc::SYS_name_to_handle_at => own::settle_fd(&STATE, a as c_int),
        libc::SYS_clone => return Some(process::before_clone(&STATE, a as c_int)),
        libc::SYS_landlock_restrict_self => process::confined(&STATE),
        libc::SYS_seccomp if seccomp_confines(a, c) => process::confined(&STATE),
        libc::SYS_prctl
            if a == libc::PR_SET_SECCOMP.into() && identity::confines(b as _, c as _) =>
        {
            process::confined(&STATE);
        }
        libc::SYS_getcwd => process::look_for_directory(&STATE),
        libc::SYS_io_uring_setup => crate::ops::ring::ring_begins(&STATE),
        libc::SYS_io_uring_enter => rings::settle(),
        libc::SYS_io_setup => crate::ops::ring::aio_begins(&STATE),
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
        let is_strict = strict::is_asked_for(number, given.0, given.1);
        return if is_strict { identity::strict_mode(rc) } else { rc };
    }
    // SAFETY: by contract.
    unsafe { number::after(number, given, rc) };
    match change(number) {
        Some(Change::Identity) => process::thread_identity_changed(&STATE),
        Some(Change::Capabilities) => process::capabilities_changed(&STATE),
        Some(Change::Place) => process::estranged(&STATE),
        None => {}
    }
    match number {
        libc::SYS_clone if rc == 0 => fork::born(),
        libc::SYS_chdir | libc::SYS_fchdir => process::directory_changed(&STATE),
        libc::SYS_prctl if given.0 == libc::PR_GET_SECCOMP.into() => {
            return strict::mode_to_tell(rc as c_int).into();
        }
        libc::SYS_prlimit64 | libc::SYS_setrlimit => crate::ops::limit::changed(&STATE),
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
