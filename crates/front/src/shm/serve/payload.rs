//! The mailbox's buffer as where file data comes from and goes to, without a copy in between.

use polylane_base::Result;
use polylane_ipc::{ReadPipe, WritePipe};
use polylane_vfs::fs::{Fill, Sink, Source};

/// Read data goes straight into the buffer, in pieces that the client sees at once.
pub(super) struct Out<'a>(pub(super) ReadPipe<'a>);

impl Sink for Out<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0.put(at, bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.0.zero(at, len);
    }

    fn fill(&mut self, at: usize, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        Some(self.0.fill(at, len, fill))
    }
}

/// Data to write comes straight out of the buffer; each byte is read once.
pub(super) struct In<'a>(pub(super) WritePipe<'a>);

impl Source for In<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        self.0.get(at, into);
    }
}
