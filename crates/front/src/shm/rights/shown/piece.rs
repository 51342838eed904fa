//! What a client wrote to frames, as where data comes from.

use polylane_ipc::ServiceChannel;
use polylane_ipc::view::FRAME_BYTES;
use polylane_vfs::fs::Source;

/// Pages side by side that a client wrote.
pub(in crate::shm::rights) struct Piece {
    pub(in crate::shm::rights) offset: u64,
    pub(in crate::shm::rights) frames: Vec<u32>,
}

impl Piece {
    pub(in crate::shm::rights) fn len(&self) -> usize {
        self.frames.len() * FRAME_BYTES
    }
}

/// The bytes of a piece, straight out of the frames.
pub(in crate::shm::rights) struct PieceSource<'a> {
    pub(in crate::shm::rights) channel: &'a ServiceChannel,
    pub(in crate::shm::rights) piece: &'a Piece,
}

impl Source for PieceSource<'_> {
    fn len(&self) -> usize {
        self.piece.len()
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (page, from) = ((at + done) / FRAME_BYTES, (at + done) % FRAME_BYTES);
            let count = (FRAME_BYTES - from).min(into.len() - done);
            let offset = self.channel.views().frame_offset(self.piece.frames[page]);
            self.channel.frame_get(offset + from, &mut into[done..done + count]);
            done += count;
        }
    }
}
