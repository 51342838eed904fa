//! What somebody does who took a service over, for the test that he gets nowhere. Only in builds
//! with the feature `subverted`, which tests alone ask for.
#![expect(unsafe_code, reason = "UNSAFETY: ptrace, and an io_uring without restrictions")]

use std::ffi::CStr;
use std::io::{Error, Result};

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

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
