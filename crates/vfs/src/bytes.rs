//! Bytes of files on their way between a libservice and whoever asks for them.

/// Where read bytes go. Implemented over plain memory and over a client's request buffer.
pub trait Sink {
    /// Stores `bytes` at `at` bytes from the start of the request. In range by contract: the reader
    /// never yields more than it was asked for.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Stores `len` zeros at `at`.
    fn zero(&mut self, at: usize, len: usize);
}

/// Where written bytes come from. `get` may be called once per byte range only: the bytes may lie
/// in memory that a hostile peer changes between two looks.
pub trait Source {
    /// Bytes offered.
    fn len(&self) -> usize;

    /// Whether nothing is offered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the `into.len()` bytes at `at` out. In range by contract.
    fn get(&mut self, at: usize, into: &mut [u8]);
}

impl Sink for &mut [u8] {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self[at..at + len].fill(0);
    }
}

impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}
