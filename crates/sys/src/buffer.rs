//! Page-aligned memory for device I/O.
#![expect(unsafe_code, reason = "UNSAFETY: allocates with an alignment and makes slices of it")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer: what O_DIRECT asks for on any device.
pub const ALIGNMENT: usize = 4096;

/// Zeroed memory aligned to [`ALIGNMENT`], owned like a `Box<[u8]>`.
pub struct Buffer {
    base: NonNull<u8>,
    /// Bytes in use.
    len: usize,
    /// Bytes allocated, all initialised.
    capacity: usize,
}

// SAFETY: the memory is owned exclusively, like a Box's.
unsafe impl Send for Buffer {}
// SAFETY: shared access is read-only, like a Box's.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// `len` is 0 or over `isize::MAX`: sizes come from validated geometry, never from a peer.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size, asserted in `layout`.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        Buffer { base: base.unwrap_or_else(|| handle_alloc_error(layout)), len, capacity: len }
    }

    /// A copy of `bytes`.
    ///
    /// # Panics
    /// As [`zeroed`](Buffer::zeroed).
    pub fn copy_of(bytes: &[u8]) -> Self {
        let (len, layout) = (bytes.len(), Self::layout(bytes.len()));
        // SAFETY: the layout has a non-zero size, asserted in `layout`.
        let base = NonNull::new(unsafe { alloc(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: `len` bytes are readable in `bytes` and writable at `base`, which is new. All of
        // the allocation is initialised by this.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.as_ptr(), len) };
        Buffer { base, len, capacity: len }
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Uses `len` of its bytes from now on. Those that come back hold what they held.
    ///
    /// # Panics
    /// `len` is 0 or more than the capacity, as in [`zeroed`](Buffer::zeroed).
    pub fn set_len(&mut self, len: usize) {
        assert!(len > 0 && len <= self.capacity, "length outside the buffer");
        self.len = len;
    }

    fn layout(len: usize) -> Layout {
        assert!(len > 0, "empty buffer");
        Layout::from_size_align(len, ALIGNMENT).expect("a buffer fits in memory")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` or `copy_of` with this very layout.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` of `capacity` initialised bytes, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_their_own() {
        let most = if cfg!(miri) { 4 } else { 20 };
        let mut buffers: Vec<Buffer> = (1..most).map(|n| Buffer::zeroed(n * 512)).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(index as u8);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == index as u8));
        }
    }

    #[test]
    fn a_buffer_can_be_used_in_part() {
        let mut buffer = Buffer::copy_of(&[7; 4096]);
        buffer.set_len(512);
        assert_eq!((buffer.len(), buffer.capacity()), (512, 4096));
        buffer.fill(8);
        buffer.set_len(4096);
        assert!(buffer[..512].iter().all(|b| *b == 8) && buffer[512..].iter().all(|b| *b == 7));
    }
}
