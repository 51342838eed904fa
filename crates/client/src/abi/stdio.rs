//! Where libc's own streams meet our descriptors: from then on the kernel's offset counts, because
//! libc reads and writes past the hooks.

use std::ffi::{c_char, c_void};

use libc::{FILE, c_int};

use super::{fd, hooks};
use crate::kernel::real;
use crate::ops;
use crate::ops::file;
use crate::ops::state::STATE;

hooks! {
    /// `fdopen`, which may set `O_APPEND`.
    ["fdopen"]
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        file::lend_to_libc(&STATE, fd);
        // SAFETY: the caller's own arguments.
        unsafe { real::fdopen(fd, mode) }
    }

    /// `freopen` closes the stream's descriptor and may give it out again.
    ["freopen", "freopen64"]
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        // SAFETY: an open stream, by contract.
        let number = unsafe { libc::fileno(stream) };
        // POSIX: freopen ignores an error of this flush. SAFETY: as above.
        let _ = unsafe { fd::flush_under_locks(stream) };
        let known = super::attempt(|| ops::fd::closing(&STATE, number)).ok();
        // SAFETY: the caller's own arguments.
        let stream = unsafe { real::freopen(path, mode, stream) };
        if let Some(known) = known {
            fd::closed(known);
        }
        stream
    }

    /// `vdprintf`
    ["vdprintf"]
    fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        file::publish_fd(&STATE, fd);
        // SAFETY: the caller's own arguments; a va_list is passed as a pointer.
        unsafe { real::vdprintf(fd, format, args) }
    }

    /// `vdprintf` under `_FORTIFY_SOURCE`.
    ["__vdprintf_chk"]
    fn vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        file::publish_fd(&STATE, fd);
        // SAFETY: as above.
        unsafe { real::__vdprintf_chk(fd, flag, format, args) }
    }
}
