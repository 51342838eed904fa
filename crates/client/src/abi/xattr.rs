//! Extended attributes.

use std::ffi::{c_char, c_void};

use libc::{c_int, size_t, ssize_t};

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::state::STATE;
use crate::ops::xattr::{self as ops, Object};

/// # Safety
///
/// C strings and `size` bytes.
unsafe fn get(
    object: Outcome<Object<'_>>,
    name: *const c_char,
    into: *mut c_void,
    size: size_t,
) -> Outcome<ssize_t> {
    // SAFETY: by contract.
    let (object, name) = (object?, unsafe { arg::text(name)? });
    // SAFETY: by contract.
    let into = unsafe { arg::sink_beside(&[path_of(object), name], into, size)? };
    ops::get(&STATE, object, name, into).map(|count| count as ssize_t)
}

/// # Safety
///
/// C strings and `size` bytes.
unsafe fn set(
    object: Outcome<Object<'_>>,
    name: *const c_char,
    from: *const c_void,
    size: size_t,
    flags: c_int,
) -> Outcome<c_int> {
    if flags == libc::XATTR_CREATE | libc::XATTR_REPLACE {
        // Neither can be so: what the kernel's way says of it.
        return Err(Detour::Kernel);
    }
    // SAFETY: by contract.
    let (name, from) = unsafe { (arg::text(name)?, arg::source(from, size)?) };
    ops::set(&STATE, object?, name, from, flags).map(|()| 0)
}

/// # Safety
///
/// `size` bytes.
unsafe fn list(object: Outcome<Object<'_>>, into: *mut c_char, size: size_t) -> Outcome<ssize_t> {
    let object = object?;
    // SAFETY: by contract.
    let into = unsafe { arg::sink_beside(&[path_of(object)], into.cast(), size)? };
    ops::list(&STATE, object, into).map(|count| count as ssize_t)
}

/// # Safety
///
/// A C string.
unsafe fn remove(object: Outcome<Object<'_>>, name: *const c_char) -> Outcome<c_int> {
    // SAFETY: by contract.
    ops::remove(&STATE, object?, unsafe { arg::text(name)? }).map(|()| 0)
}

/// # Safety
///
/// A C string.
unsafe fn path<'a>(path: *const c_char, follow: bool) -> Outcome<Object<'a>> {
    // SAFETY: by contract.
    Ok(Object::Path(unsafe { arg::text(path)? }, follow))
}

/// The path of an object that is named by one.
fn path_of(object: Object<'_>) -> &[u8] {
    match object {
        Object::Path(path, _) => path,
        Object::Open(_) => b"",
    }
}

hooks! {
    /// `getxattr`
    ["getxattr"]
    fn getxattr(p: *const c_char, name: *const c_char, into: *mut c_void, n: size_t) -> ssize_t {
        // SAFETY: as the C function; so below.
        answer!(unsafe { get(path(p, true), name, into, n) }, real::getxattr(p, name, into, n))
    }

    /// `lgetxattr`
    ["lgetxattr"]
    fn lgetxattr(p: *const c_char, name: *const c_char, into: *mut c_void, n: size_t) -> ssize_t {
        // SAFETY: as above.
        answer!(unsafe { get(path(p, false), name, into, n) }, real::lgetxattr(p, name, into, n))
    }

    /// `fgetxattr`
    ["fgetxattr"]
    fn fgetxattr(fd: c_int, name: *const c_char, into: *mut c_void, n: size_t) -> ssize_t {
        answer!(
            // SAFETY: as above.
            unsafe { get(Ok(Object::Open(fd)), name, into, n) },
            real::fgetxattr(fd, name, into, n)
        )
    }

    /// `setxattr`
    ["setxattr"]
    fn setxattr(
        p: *const c_char, name: *const c_char, from: *const c_void, n: size_t, flags: c_int
    ) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { set(path(p, true), name, from, n, flags) },
            real::setxattr(p, name, from, n, flags)
        )
    }

    /// `lsetxattr`
    ["lsetxattr"]
    fn lsetxattr(
        p: *const c_char, name: *const c_char, from: *const c_void, n: size_t, flags: c_int
    ) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { set(path(p, false), name, from, n, flags) },
            real::lsetxattr(p, name, from, n, flags)
        )
    }

    /// `fsetxattr`
    ["fsetxattr"]
    fn fsetxattr(
        fd: c_int, name: *const c_char, from: *const c_void, n: size_t, flags: c_int
    ) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { set(Ok(Object::Open(fd)), name, from, n, flags) },
            real::fsetxattr(fd, name, from, n, flags)
        )
    }

    /// `listxattr`
    ["listxattr"]
    fn listxattr(p: *const c_char, into: *mut c_char, n: size_t) -> ssize_t {
        // SAFETY: as above.
        answer!(unsafe { list(path(p, true), into, n) }, real::listxattr(p, into, n))
    }

    /// `llistxattr`
    ["llistxattr"]
    fn llistxattr(p: *const c_char, into: *mut c_char, n: size_t) -> ssize_t {
        // SAFETY: as above.
        answer!(unsafe { list(path(p, false), into, n) }, real::llistxattr(p, into, n))
    }

    /// `flistxattr`
    ["flistxattr"]
    fn flistxattr(fd: c_int, into: *mut c_char, n: size_t) -> ssize_t {
        // SAFETY: as above.
        answer!(unsafe { list(Ok(Object::Open(fd)), into, n) }, real::flistxattr(fd, into, n))
    }

    /// `removexattr`
    ["removexattr"]
    fn removexattr(p: *const c_char, name: *const c_char) -> c_int {
        // SAFETY: as above.
        answer!(unsafe { remove(path(p, true), name) }, real::removexattr(p, name))
    }

    /// `lremovexattr`
    ["lremovexattr"]
    fn lremovexattr(p: *const c_char, name: *const c_char) -> c_int {
        // SAFETY: as above.
        answer!(unsafe { remove(path(p, false), name) }, real::lremovexattr(p, name))
    }

    /// `fremovexattr`
    ["fremovexattr"]
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        // SAFETY: as above.
        answer!(unsafe { remove(Ok(Object::Open(fd)), name) }, real::fremovexattr(fd, name))
    }
}
