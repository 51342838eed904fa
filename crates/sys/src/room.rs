//! Where a call of a C library stores bytes: memory of this process, or of a region that a peer
//! may look at and change meanwhile.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes that may be stored into for `'a`. Nobody refers to them as bytes meanwhile.
#[derive(Debug)]
pub struct Room<'a> {
    at: NonNull<u8>,
    len: usize,
    _borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Room<'a> {
    /// The memory of `bytes`.
    pub fn of(bytes: &'a mut [u8]) -> Room<'a> {
        let len = bytes.len();
        Room { at: NonNull::from(bytes).cast(), len, _borrowed: PhantomData }
    }

    /// `len` bytes at `at`, which may be stored into for `'a`.
    pub(crate) fn at(at: NonNull<u8>, len: usize) -> Room<'a> {
        Room { at, len, _borrowed: PhantomData }
    }

    /// How many bytes may be stored.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none may be.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are to be stored: as many as [`Room::len`] says, as long as this lives. What is
    /// read there may be anything.
    pub fn address(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }
}
