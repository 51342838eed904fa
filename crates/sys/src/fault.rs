//! A write that the kernel begins to act on, and cannot read to its end.
#![expect(unsafe_code, reason = "UNSAFETY: a vectored write with an address that is none")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Writes `bytes` and one byte more that lies at no address, as one message: for kernel interfaces
/// that act on the first part before they read the rest.
///
/// # Errors
/// `EFAULT` once the kernel came to that byte; what it says of the first part.
pub fn write_and_fault(fd: impl AsFd, bytes: &[u8]) -> io::Error {
    let parts = [
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 },
    ];
    // SAFETY: the kernel only reads by these, the first part is a slice that lives, and where it
    // cannot read it says so.
    let written = unsafe { libc::writev(fd.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
    match written {
        -1 => io::Error::last_os_error(),
        // It did not want the byte.
        _ => io::Error::from_raw_os_error(libc::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_faults_is_none() {
        let (left, right) = crate::scm::pair().unwrap();
        assert_eq!(write_and_fault(&left, b"begun").raw_os_error(), Some(libc::EFAULT));
        let peeked = crate::scm::peek(&right, &mut [0; 8]);
        assert_eq!(peeked, Err(polylane_base::Errno::EAGAIN));
    }
}
