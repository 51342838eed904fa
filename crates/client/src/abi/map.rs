//! mmap.

use std::ffi::c_void;

use libc::{c_int, off_t, size_t};
use polylane_base::Errno;

use super::hooks;
use crate::outcome::Unanswered;
use crate::{file, ops, real};

hooks! {
    /// `mmap`: of a file that a slot stands for, the file's own node is mapped.
    ["mmap", "mmap64"]
    fn mmap(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t
    ) -> *mut c_void {
        let node = match fd {
            fd if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 => None,
            fd => {
                // MAP_SHARED_VALIDATE holds the bit too.
                let shared = flags & libc::MAP_SHARED != 0;
                match super::attempt(|| ops::map::true_node(fd, shared)) {
                    Ok(node) => Some(node),
                    Err(Unanswered::Errno(Errno::EACCES)) => {
                        real::set_errno(libc::EACCES);
                        return libc::MAP_FAILED;
                    }
                    Err(_) => {
                        file::ready_to_map(fd);
                        None
                    }
                }
            }
        };
        let Some(node) = node else {
            // SAFETY: the caller's own arguments.
            return unsafe { real::mmap(address, len, protection, flags, fd, offset) };
        };
        // SAFETY: the caller's own arguments, with another descriptor of the same file.
        let mapped = unsafe { real::mmap(address, len, protection, flags, node, offset) };
        let errno = real::errno();
        real::close_quietly(node);
        real::set_errno(errno);
        mapped
    }
}
