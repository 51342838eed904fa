//! mmap.

use std::ffi::c_void;

use libc::{c_int, off_t, size_t};
use polylane_base::Errno;

use super::hooks;
use crate::kernel::outcome::Unanswered;
use crate::kernel::real;
use crate::ops;
use crate::ops::state::STATE;

hooks! {
    /// `mmap`: what is mapped is the file's own node.
    ["mmap", "mmap64"]
    fn mmap(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t
    ) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        map_file(fd, flags, || unsafe { real::mmap(address, len, protection, flags, fd, offset) })
    }
}

/// Calls `map`, which maps `fd`, once that is of the own node of its file.
pub(super) fn map_file(fd: c_int, flags: c_int, map: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
        // MAP_SHARED_VALIDATE holds the bit too.
        let shared = flags & libc::MAP_SHARED != 0;
        let ready = super::attempt(|| ops::map::before_mapping(&STATE, fd, shared));
        if matches!(ready, Err(Unanswered::Errno(Errno::EACCES))) {
            real::set_errno(libc::EACCES);
            return libc::MAP_FAILED;
        }
    }
    map()
}
