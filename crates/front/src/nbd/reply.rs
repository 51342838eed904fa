//! Replies: results to bytes, sent together as far as there are several.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use polylane_block::Error;
use polylane_sys::buffer::Buffer;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::protocol::{
    BASE_ALLOCATION_ID, REPLY_FLAG_DONE, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, error,
    reply_type,
};

/// Pieces of one message to the kernel.
const PIECES_MAX: usize = 64;

/// What is still to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: Vec<Piece>,
}

enum Piece {
    Bytes(Vec<u8>),
    Data(Buffer),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Data(buffer) => buffer,
        }
    }
}

impl Outbox {
    /// A request succeeded that has nothing to show.
    pub(super) fn done(&mut self, structured: bool, cookie: u64) {
        match structured {
            true => self.chunk(reply_type::NONE, cookie, &[], 0),
            false => self.simple(0, cookie),
        }
    }

    /// A request failed.
    pub(super) fn failed(&mut self, structured: bool, cookie: u64, error: u32) {
        if !structured {
            return self.simple(error, cookie);
        }
        let mut payload = [0; 6];
        payload[..4].copy_from_slice(&error.to_be_bytes());
        self.chunk(reply_type::ERROR, cookie, &payload, 0);
    }

    /// What was read.
    pub(super) fn data(&mut self, structured: bool, cookie: u64, offset: u64, data: Buffer) {
        match structured {
            true => {
                let offset = offset.to_be_bytes();
                self.chunk(reply_type::OFFSET_DATA, cookie, &offset, data.len());
            }
            false => self.simple(0, cookie),
        }
        self.pieces.push(Piece::Data(data));
    }

    /// Lengths and states of a range.
    pub(super) fn status(&mut self, cookie: u64, extents: &[(u32, u32)]) {
        let mut payload = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
        for (length, state) in extents {
            payload.extend_from_slice(&length.to_be_bytes());
            payload.extend_from_slice(&state.to_be_bytes());
        }
        self.chunk(reply_type::BLOCK_STATUS, cookie, &payload, 0);
    }

    fn simple(&mut self, error: u32, cookie: u64) {
        let bytes = self.small();
        bytes.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&error.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
    }

    /// The only chunk of a structured reply; `more` bytes of its payload follow.
    fn chunk(&mut self, kind: u16, cookie: u64, payload: &[u8], more: usize) {
        let length = (payload.len() + more) as u32;
        let bytes = self.small();
        bytes.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(payload);
    }

    /// Bytes at the end, to add to.
    fn small(&mut self) -> &mut Vec<u8> {
        if !matches!(self.pieces.last(), Some(Piece::Bytes(_))) {
            self.pieces.push(Piece::Bytes(Vec::with_capacity(64)));
        }
        match self.pieces.last_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("pushed above"),
        }
    }

    /// Sends everything, and gives the buffers back. Waits as long as the client takes.
    pub(super) fn send(
        &mut self,
        stream: &UnixStream,
        mut recycle: impl FnMut(Buffer),
    ) -> io::Result<()> {
        let (mut first, mut skip) = (0, 0);
        while first < self.pieces.len() {
            let pieces = self.pieces[first..].iter().take(PIECES_MAX).enumerate();
            let slices: Vec<IoSlice<'_>> = pieces
                .map(|(index, piece)| {
                    IoSlice::new(&piece.bytes()[if index == 0 { skip } else { 0 }..])
                })
                .collect();
            let mut none: [MaybeUninit<u8>; 0] = [];
            let mut control = SendAncillaryBuffer::new(&mut none);
            let sent = match sendmsg(stream, &slices, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => continue,
                sent => sent?,
            };
            skip += sent;
            while let Some(piece) = self.pieces.get(first)
                && skip >= piece.bytes().len()
            {
                skip -= piece.bytes().len();
                first += 1;
            }
        }
        for piece in self.pieces.drain(..) {
            if let Piece::Data(buffer) = piece {
                recycle(buffer);
            }
        }
        Ok(())
    }
}

/// The protocol's number for an error of the device.
pub(super) fn number(error: Error) -> u32 {
    match error {
        Error::OutOfRange => error::INVAL,
        Error::ReadOnly => error::PERM,
        Error::Unsupported => error::NOTSUP,
        Error::NoSpace => error::NOSPC,
        _ => error::IO,
    }
}
