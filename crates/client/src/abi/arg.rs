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
pub(super) fn is_nowhere<T>(pointer: *const T) -> bool {
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
/// A program may hand over memory that it never wrote to: C lets it. `from_raw_parts_mut` asks for
/// initialised bytes. The slice is right all the same: the program is another object, compiled
/// apart and met at run time, so that to this library what lies there are bytes with some value.
/// Nor is a byte read before it was written: everything below `ops` only copies into a sink, from
/// memory of the service or by a system call (`Region::copy_out`, `pread`).
///
/// Other threads of the program may look at the buffer meanwhile, or have it filled by a second
/// call, as C lets them. Formally that is a race, as for [`source`]. This library takes no decision
/// by a sink's bytes, so that a race has no other effect than in the kernel.
///
/// # Safety
///
/// Null, or `len` bytes that no other reference of this thread leads to while the slice lives.
#[inline]
pub(super) unsafe fn sink<'a>(bytes: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    match is_nowhere(bytes) || len > isize::MAX as usize {
        true if len == 0 && !is_kernels(bytes) => Ok(&mut []),
        true => Err(Detour::Kernel),
        // SAFETY: not null; the caller vouches for the rest.
        false => Ok(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len) }),
    }
}

/// Whether two ranges of memory, each an address and a length, share a byte.
#[inline]
fn meet((one, ones): (usize, usize), (other, others): (usize, usize)) -> bool {
    let shared = one.max(other)..one.saturating_add(ones).min(other.saturating_add(others));
    !shared.is_empty()
}

/// [`sink`] of a call that takes paths or names too. C lets them lie in the buffer, and Rust lets
/// no reference to them live beside a `&mut [u8]` of it: such a call is the kernel's.
///
/// # Safety
///
/// As [`sink`], `texts` apart.
#[inline]
pub(super) unsafe fn sink_beside<'a>(
    texts: &[&[u8]],
    bytes: *mut c_void,
    len: usize,
) -> Outcome<&'a mut [u8]> {
    if texts.iter().any(|text| meet((text.as_ptr().addr(), text.len()), (bytes.addr(), len))) {
        return Err(Detour::Kernel);
    }
    // SAFETY: the caller's contract, and no text lies there.
    unsafe { sink(bytes, len) }
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

/// Whether the parts of a vector call share a byte, or one of them lies in the vector itself. A
/// call may read into one place twice, and Rust has no two slices to write to for that: such calls
/// are the kernel's.
fn overlap(parts: &[iovec]) -> bool {
    let range = |part: &iovec| (part.iov_base.addr(), part.iov_len);
    let vector = (parts.as_ptr().addr(), size_of_val(parts));
    let with_earlier = |(n, part): (usize, &iovec)| {
        meet(range(part), vector) || parts[..n].iter().any(|other| meet(range(part), range(other)))
    };
    parts.iter().enumerate().any(with_earlier)
}

/// Calls `with` with the places that a vector call fills.
///
/// # Safety
///
/// `count` valid iovecs over memory that no other reference of this thread leads to.
pub(super) unsafe fn with_sinks<R>(
    iovecs: *const iovec,
    count: c_int,
    with: impl FnOnce(&mut [&mut [u8]]) -> Outcome<R>,
) -> Outcome<R> {
    // SAFETY: the caller's contract.
    let iovecs = unsafe { parts(iovecs, count)? };
    if overlap(iovecs) {
        return Err(Detour::Kernel);
    }
    let mut sinks: [&mut [u8]; PLACES_MAX] = std::array::from_fn(|_| &mut [][..]);
    for (place, part) in sinks.iter_mut().zip(iovecs) {
        // SAFETY: the caller's contract, and no other part or the vector lies there.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether parts at these offsets and of these lengths overlap, in either order.
    fn overlaps(ranges: &[(usize, usize)]) -> bool {
        let mut buffer = [0u8; 64];
        let base: *mut u8 = buffer.as_mut_ptr();
        let part = |&(at, len): &(usize, usize)| {
            assert!(at + len <= 64);
            iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len }
        };
        let mut parts: Vec<iovec> = ranges.iter().map(part).collect();
        let forth = overlap(&parts);
        parts.reverse();
        assert_eq!(forth, overlap(&parts), "{ranges:?}");
        forth
    }

    #[test]
    fn parts_that_share_a_byte_are_found() {
        for apart in [&[][..], &[(0, 8)], &[(0, 8), (8, 8)], &[(40, 8), (0, 8), (9, 8)]] {
            assert!(!overlaps(apart), "{apart:?}");
        }
        // Parts without bytes share none.
        assert!(!overlaps(&[(0, 8), (4, 0), (8, 0), (8, 1)]));
        for shared in [&[(0, 8), (7, 8)][..], &[(0, 8), (0, 8)], &[(0, 64), (9, 9)]] {
            assert!(overlaps(shared), "{shared:?}");
        }
        assert!(overlaps(&[(40, 4), (9, 9), (20, 1), (0, 10)]));
    }

    #[test]
    fn a_part_in_the_vector_itself_is_found() {
        let mut parts = [const { iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; 2];
        let end = parts.as_mut_ptr_range().end;
        parts[0] = iovec { iov_base: end.cast(), iov_len: 1 };
        assert!(!overlap(&parts));
        parts[1] = iovec { iov_base: end.wrapping_byte_sub(1).cast(), iov_len: 1 };
        assert!(overlap(&parts));
    }

    #[test]
    fn a_buffer_that_a_name_lies_in_is_the_kernels() {
        let mut buffer = *b"xx/name/xx";
        let base = buffer.as_mut_ptr();
        // SAFETY: bytes of the buffer, which is only looked at.
        let name = unsafe { std::slice::from_raw_parts(base.wrapping_add(2), 6) };
        for (at, len, shares) in [(0, 2, false), (0, 3, true), (7, 3, true), (8, 2, false)] {
            // SAFETY: no slice is made where the name lies, and none is written to.
            let sink = unsafe { sink_beside(&[b"other", name], base.wrapping_add(at).cast(), len) };
            assert_eq!(matches!(sink, Err(Detour::Kernel)), shares, "{at} {len}");
        }
    }
}
