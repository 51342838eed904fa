//! Bytes to and from the buffers of a request, which are one after the other.

use polylane_sys::buffer::Buffer;

/// Copies bytes into a request's buffers, `at` bytes from their beginning.
pub(crate) fn scatter(data: &mut [Buffer], mut at: usize, mut from: &[u8]) {
    for buffer in data {
        if at >= buffer.len() {
            at -= buffer.len();
            continue;
        }
        let count = from.len().min(buffer.len() - at);
        buffer[at..at + count].copy_from_slice(&from[..count]);
        (at, from) = (0, &from[count..]);
        if from.is_empty() {
            return;
        }
    }
}

/// Copies bytes out of a request's buffers.
pub(crate) fn gather(data: &[Buffer], mut at: usize, mut into: &mut [u8]) {
    for buffer in data {
        if at >= buffer.len() {
            at -= buffer.len();
            continue;
        }
        let count = into.len().min(buffer.len() - at);
        let (head, rest) = into.split_at_mut(count);
        head.copy_from_slice(&buffer[at..at + count]);
        (at, into) = (0, rest);
        if into.is_empty() {
            return;
        }
    }
}
