//! open, openat, creat.

use std::ffi::{c_char, c_uint, c_void};

use libc::{AT_FDCWD, c_int};

use super::{answer, arg, cancel, hooks};
use crate::kernel::real;
use crate::ops;
use crate::ops::file;
use crate::ops::own;
use crate::ops::state::STATE;

hooks! {
    /// `open(path, flags, ...)`: the mode travels as a variadic integer does, in the third
    /// register.
    ["open", "open64", "__open", "__open64"]
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        cancel::point();
        answer!(
            {
                // SAFETY: a C string, by contract.
                let path_text = unsafe { arg::text(path)? };
                // SAFETY: the caller's own arguments.
                let by_kernel = || unsafe { real::open(path, flags, mode) };
                ops::open::open(&STATE, (AT_FDCWD, path_text), flags, mode, by_kernel)
            },
            file::opened_by(&STATE, || real::open(path, flags, mode))
        )
    }

    /// As above.
    ["openat", "openat64"]
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        cancel::point();
        answer!(
            {
                // SAFETY: a C string, by contract.
                let path_text = unsafe { arg::text(path)? };
                // SAFETY: the caller's own arguments.
                let by_kernel = || unsafe { real::openat(dir, path, flags, mode) };
                ops::open::open(&STATE, (dir, path_text), flags, mode, by_kernel)
            },
            file::opened_by(&STATE, || real::openat(dir, path, flags, mode))
        )
    }

    /// `name_to_handle_at`: the kernel tells the node of `dir`, which is to be the file's own.
    ["name_to_handle_at"]
    fn name_to_handle_at(
        dir: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int
    ) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 {
            own::settle_fd(&STATE, dir);
        }
        // SAFETY: the caller's own arguments.
        unsafe { real::name_to_handle_at(dir, path, handle, mount, flags) }
    }

    /// What `open` without a mode becomes under `_FORTIFY_SOURCE`.
    ["__open_2", "__open64_2"]
    fn open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as this function; flags that need a mode are refused by the real one alike.
        unsafe { open(path, flags, 0) }
    }

    /// As above.
    ["__openat_2", "__openat64_2"]
    fn openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { openat(dir, path, flags, 0) }
    }

    /// `creat`
    ["creat", "creat64"]
    fn creat(path: *const c_char, mode: c_uint) -> c_int {
        // SAFETY: as this function.
        unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
    }
}
