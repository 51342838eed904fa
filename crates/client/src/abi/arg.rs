//! C arguments as Rust values.

use std::ffi::{CStr, c_char, c_void};

use libc::{c_int, iovec};

use polylane_ipc::message::PATH_BYTES_MAX;

use crate::kernel::outcome::{Detour, Outcome};
use crate::ops::io::PLACES_MAX;

/// Whether no memory of a program can be there: near null, or in the kernel's half. Such a pointer
/// is for the kernel to refuse with `EFAULT`; any other bad one is a fault in the caller, as in
/// libc.
#[inline]
fn is_nowhere<T>(pointer: *const T) -> bool {
    (pointer.addr() as isize) < 4096
}

/// Whether a pointer is in the kernel's half, where it refuses even a buffer of no bytes.
#[inline]
fn is_kernels<T>(pointer: *const T) -> bool {
    (pointer.addr() as isize) < 0
}

/// What a pointer leads to that may be null. The kernel asks for no alignment, so nothing of a
/// caller's is referred to in place.
///
/// # Safety
///
/// Null, or as many bytes as the value has.
#[inline]
pub(super) unsafe fn value<T: Copy>(pointer: *const T) -> Outcome<Option<T>> {
    if pointer.is_null() {
        return Ok(None);
    }
    if is_nowhere(pointer) {
        return Err(Detour::Kernel);
    }
    // SAFETY: the caller vouches for a pointer that can be one.
    Ok(Some(unsafe { pointer.read_unaligned() }))
}

/// A path or name.
///
/// # Safety
///
/// Null, or a C string that lives through the call.
#[inline]
pub(super) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a [u8]> {
    if is_nowhere(text) {
        return Err(Detour::Kernel);
    }
    // SAFETY: the caller vouches for a pointer that can be one.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    match text.len() > PATH_BYTES_MAX {
        // The whole path counts, with what of it lies outside of the lane.
        true => Err(Detour::Kernel),
        false => Ok(text),
    }
}

/// A buffer to be written.
///
/// # Safety
///
/// Null, or `len` bytes that nobody else uses during the call. They may be uninitialised: `ops`
/// only writes to them.
#[inline]
pub(super) unsafe fn sink<'a>(bytes: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    match is_nowhere(bytes) || len > isize::MAX as usize {
        true if len == 0 && !is_kernels(bytes) => Ok(&mut []),
        true => Err(Detour::Kernel),
        // SAFETY: not null; the caller vouches for the rest.
        false => Ok(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len) }),
    }
}

/// A buffer to be read.
///
/// Other threads of the program may write to it meanwhile, as C lets them during a write(2). Rust
/// has no such slice: formally that is a race. What is read is copied once into memory that the
/// service shares and looked at only there, so that a race has no other effect than in the kernel:
/// the bytes are some mixture of old and new ones.
///
/// # Safety
///
/// Null, or `len` bytes that live through the call.
#[inline]
pub(super) unsafe fn source<'a>(bytes: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    match is_nowhere(bytes) || len > isize::MAX as usize {
        true if len == 0 && !is_kernels(bytes) => Ok(&[]),
        true => Err(Detour::Kernel),
        // SAFETY: as above.
        false => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// The parts of a vector call: all, or those before the first that can be nowhere, where they have
/// bytes. As by the kernel, what came before counts.
///
/// # Safety
///
/// `count` valid iovecs.
unsafe fn parts<'a>(parts: *const iovec, count: c_int) -> Outcome<&'a [iovec]> {
    let count = usize::try_from(count).map_err(|_| Detour::Kernel)?;
    if is_nowhere(parts) || !parts.is_aligned() || count > PLACES_MAX {
        return Err(Detour::Kernel);
    }
    // SAFETY: aligned, and not null; the caller vouches for the rest.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let (mut total, mut usable) = (0usize, None);
    for (n, part) in parts.iter().enumerate() {
        if is_kernels(part.iov_base) {
            return Err(Detour::Kernel);
        }
        if usable.is_none() && part.iov_len > 0 && is_nowhere(part.iov_base) {
            usable = Some(n).filter(|_| total > 0);
            usable.ok_or(Detour::Kernel)?;
        }
        total = total.checked_add(part.iov_len).ok_or(Detour::Kernel)?;
    }
    match total <= isize::MAX as usize {
        true => Ok(&parts[..usable.unwrap_or(count)]),
        false => Err(Detour::Kernel),
    }
}

/// Calls `with` with the places that a vector call fills.
///
/// # Safety
///
/// `count` valid iovecs over memory that nobody else uses during the call.
pub(super) unsafe fn with_sinks<R>(
    iovecs: *const iovec,
    count: c_int,
    with: impl FnOnce(&mut [&mut [u8]]) -> Outcome<R>,
) -> Outcome<R> {
    // SAFETY: the caller's contract.
    let iovecs = unsafe { parts(iovecs, count)? };
    let mut sinks: [&mut [u8]; PLACES_MAX] = std::array::from_fn(|_| &mut [][..]);
    for (place, part) in sinks.iter_mut().zip(iovecs) {
        // SAFETY: the caller's contract.
        *place = unsafe { sink(part.iov_base, part.iov_len)? };
    }
    with(&mut sinks[..iovecs.len()])
}

/// Calls `with` with the places that a vector call takes from.
///
/// # Safety
///
/// `count` valid iovecs.
pub(super) unsafe fn with_sources<R>(
    iovecs: *const iovec,
    count: c_int,
    with: impl FnOnce(&[&[u8]]) -> Outcome<R>,
) -> Outcome<R> {
    // SAFETY: the caller's contract.
    let iovecs = unsafe { parts(iovecs, count)? };
    let mut sources: [&[u8]; PLACES_MAX] = [&[]; PLACES_MAX];
    for (place, part) in sources.iter_mut().zip(iovecs) {
        // SAFETY: the caller's contract.
        *place = unsafe { source(part.iov_base, part.iov_len)? };
    }
    with(&sources[..iovecs.len()])
}
