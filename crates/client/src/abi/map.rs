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
        // SAFETY: the caller's own arguments, perhaps with another descriptor of the same file.
        map_file(fd, flags, |fd| unsafe {
            real::mmap(address, len, protection, flags, fd, offset)
        })
    }
}

/// Calls `map` with `fd`, or, if that is a slot, with a descriptor of the node of its file.
pub(super) fn map_file(
    fd: c_int,
    flags: c_int,
    map: impl FnOnce(c_int) -> *mut c_void,
) -> *mut c_void {
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return map(fd);
    }
    // MAP_SHARED_VALIDATE holds the bit too.
    let shared = flags & libc::MAP_SHARED != 0;
    match super::attempt(|| ops::map::true_node(fd, shared)) {
        Ok(node) => {
            let mapped = map(node);
            let errno = real::errno();
            real::close_quietly(node);
            real::set_errno(errno);
            mapped
        }
        Err(Unanswered::Errno(Errno::EACCES)) => {
            real::set_errno(libc::EACCES);
            libc::MAP_FAILED
        }
        Err(_) => {
            file::ready_to_map(fd);
            map(fd)
        }
    }
}
