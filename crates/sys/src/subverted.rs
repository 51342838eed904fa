//! What somebody does who took a service over, for the test that he gets nowhere. Only in builds
//! with the feature `subverted`, which tests alone ask for.
#![expect(unsafe_code, reason = "UNSAFETY: raw calls, and an io_uring without restrictions")]

use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::BorrowedFd;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

/// Descriptors by all small numbers, whichever of them are open.
pub fn descriptors() -> impl Iterator<Item = BorrowedFd<'static>> {
    // SAFETY: what is done by them is system calls, which say EBADF of a number that is not open or
    // is closed meanwhile; whose file the number is does not matter to an attack.
    (3..256).map(|number| unsafe { BorrowedFd::borrow_raw(number) })
}

/// Becomes the tracer of process `pid`.
///
/// # Errors
/// What ptrace(2) says.
pub fn trace(pid: u32) -> Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: seizing a process touches no memory of this one.
    match unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid as libc::pid_t, none, none) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets process `pid` leave no core dump any more.
///
/// # Errors
/// What prlimit(2) says.
pub fn limit(pid: u32) -> Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let old = std::ptr::null_mut();
    // SAFETY: the kernel reads `none`, and writes nothing.
    match unsafe { libc::prlimit(pid as libc::pid_t, libc::RLIMIT_CORE, &raw const none, old) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Gives process `pid` the CPU when nobody else wants it (`SCHED_IDLE`).
///
/// # Errors
/// What sched_setscheduler(2) says.
pub fn idle(pid: u32) -> Result<()> {
    let attributes: [u32; 12] = [48, libc::SCHED_IDLE as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads the 48 bytes that the first word says.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, pid, attributes.as_ptr(), 0) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Keeps process `pid` to the first CPU.
///
/// # Errors
/// What sched_setaffinity(2) says.
pub fn pin(pid: u32) -> Result<()> {
    let first = 1u64;
    // SAFETY: the kernel reads eight bytes.
    match unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, 8, &raw const first) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has process `pid` get the signals of a descriptor of this one.
///
/// # Errors
/// What fcntl(2) says.
pub fn own_signals(pid: u32) -> Result<()> {
    // SAFETY: no memory is involved.
    match unsafe { libc::fcntl(0, libc::F_SETOWN, pid as libc::pid_t) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Types a letter into the terminal on standard error.
///
/// # Errors
/// What ioctl(2) says.
pub fn types() -> Result<()> {
    // SAFETY: the kernel reads one byte.
    match unsafe { libc::ioctl(2, libc::TIOCSTI, c"x".as_ptr()) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Opens a file through a ring made for it: no filter of system calls sees that.
///
/// # Errors
/// What openat(2) or io_uring_setup(2) says.
pub fn ring_opens(path: &CStr) -> Result<()> {
    let mut ring = IoUring::new(4)?;
    let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build();
    perform(&mut ring, &open).map(drop)
}

/// Connects to a TCP port of this host through a ring made for it.
///
/// # Errors
/// What socket(2), connect(2) or io_uring_setup(2) says.
pub fn ring_connects(port: u16) -> Result<()> {
    let mut ring = IoUring::new(4)?;
    let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
    let socket = perform(&mut ring, &socket)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let connect = opcode::Connect::new(types::Fd(socket), (&raw const address).cast(), length);
    perform(&mut ring, &connect.build()).map(drop)
}

fn perform(ring: &mut IoUring, entry: &Entry) -> Result<i32> {
    // SAFETY: what the entry points to lives in the callers until the completion below.
    unsafe { ring.submission().push(entry) }.map_err(Error::other)?;
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().map_or(-libc::EIO, |done| done.result());
    if done < 0 { Err(Error::from_raw_os_error(-done)) } else { Ok(done) }
}
