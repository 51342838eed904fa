//! Replies: results to bytes, sent together as far as there are several.
//!
//! Sending never waits. What the client does not take stays here; its bytes are bounded, since the
//! session takes no requests in while a reply waits.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use polylane_block::Error;
use polylane_sys::buffer::Buffer;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U32, U64};

use super::protocol::{
    BASE_ALLOCATION_ID, Chunk, ChunkError, ChunkFlags, Extent, ExtentState, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReply, error, reply_type,
};

/// Pieces of one message to the kernel.
const PIECES_MAX: usize = 64;

/// What is still to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    /// When the client last took nothing, if it has taken nothing since.
    stalled: Option<Instant>,
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
        let payload = ChunkError { error: error.into(), message_length: 0.into() };
        self.chunk(reply_type::ERROR, cookie, payload.as_bytes(), 0);
    }

    /// What was read.
    pub(super) fn data(&mut self, structured: bool, cookie: u64, offset: u64, data: Buffer) {
        match structured {
            true => {
                let offset = U64::new(offset);
                self.chunk(reply_type::OFFSET_DATA, cookie, offset.as_bytes(), data.len());
            }
            false => self.simple(0, cookie),
        }
        self.pieces.push_back(Piece::Data(data));
    }

    /// Lengths and states of a range.
    pub(super) fn status(&mut self, cookie: u64, extents: &[(u32, ExtentState)]) {
        let mut payload = U32::new(BASE_ALLOCATION_ID).as_bytes().to_vec();
        for (length, state) in extents {
            let extent = Extent { length: (*length).into(), state: state.bits().into() };
            payload.extend_from_slice(extent.as_bytes());
        }
        self.chunk(reply_type::BLOCK_STATUS, cookie, &payload, 0);
    }

    fn simple(&mut self, error: u32, cookie: u64) {
        let magic = SIMPLE_REPLY_MAGIC.into();
        let reply = SimpleReply { magic, error: error.into(), cookie: cookie.into() };
        self.small().extend_from_slice(reply.as_bytes());
    }

    /// The only chunk of a structured reply; `more` bytes of its payload follow.
    fn chunk(&mut self, kind: u16, cookie: u64, payload: &[u8], more: usize) {
        let chunk = Chunk {
            magic: STRUCTURED_REPLY_MAGIC.into(),
            flags: ChunkFlags::DONE.bits().into(),
            kind: kind.into(),
            cookie: cookie.into(),
            length: ((payload.len() + more) as u32).into(),
        };
        let bytes = self.small();
        bytes.extend_from_slice(chunk.as_bytes());
        bytes.extend_from_slice(payload);
    }

    /// Bytes at the end, to add to.
    fn small(&mut self) -> &mut Vec<u8> {
        if !matches!(self.pieces.back(), Some(Piece::Bytes(_))) {
            self.pieces.push_back(Piece::Bytes(Vec::with_capacity(64)));
        }
        match self.pieces.back_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("pushed above"),
        }
    }

    /// Whether replies wait for the client.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Since when the client has taken nothing, while replies wait for it.
    pub(super) fn stalled_since(&self) -> Option<Instant> {
        self.stalled
    }

    /// Sends what the client takes, and gives the buffers of that back. Does not wait.
    pub(super) fn send(
        &mut self,
        stream: &UnixStream,
        mut recycle: impl FnMut(Buffer),
    ) -> io::Result<()> {
        while !self.pieces.is_empty() {
            let pieces = self.pieces.iter().take(PIECES_MAX).enumerate();
            let slices: Vec<IoSlice<'_>> = pieces
                .map(|(index, piece)| {
                    IoSlice::new(&piece.bytes()[if index == 0 { self.sent } else { 0 }..])
                })
                .collect();
            let mut none: [MaybeUninit<u8>; 0] = [];
            let mut control = SendAncillaryBuffer::new(&mut none);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(stream, &slices, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.stalled.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                taken => self.taken(taken?, &mut recycle),
            }
        }
        Ok(())
    }

    /// The client took so many bytes.
    fn taken(&mut self, bytes: usize, recycle: &mut impl FnMut(Buffer)) {
        self.stalled = None;
        self.sent += bytes;
        while let Some(piece) = self.pieces.front()
            && self.sent >= piece.bytes().len()
        {
            self.sent -= piece.bytes().len();
            if let Some(Piece::Data(buffer)) = self.pieces.pop_front() {
                recycle(buffer);
            }
        }
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
