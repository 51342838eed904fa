//! Where a file lies on its medium.

use std::os::fd::RawFd;

use polylane_ipc::ioctl::{PiecesAnswer, PiecesQuestion, WirePiece};
use zerocopy::FromZeros;

use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::session::namespace;

/// One piece of a file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) place: u64,
    pub(crate) len: u64,
    pub(crate) unwritten: bool,
}

/// Tells `each` the pieces of a file that overlap `len` bytes at `offset`, and whether a piece is
/// the file's last, until it says false.
pub(crate) fn each(
    fd: RawFd,
    mut offset: u64,
    len: u64,
    each: &mut dyn FnMut(Piece, bool) -> bool,
) -> Outcome<()> {
    if !on_fuse(fd) {
        return Err(Detour::Kernel);
    }
    let end = offset.saturating_add(len);
    // One piece is held back until it is known whether another follows it.
    let mut held: Option<Piece> = None;
    loop {
        let mut answer = PiecesAnswer::new_zeroed();
        // Another FUSE mount does not know the request: then the kernel's answer stands.
        let question = PiecesQuestion { offset, len: u64::MAX - offset };
        real::pieces(fd, question, &mut answer).map_err(|errno| match errno {
            rustix::io::Errno::NOTTY | rustix::io::Errno::NOSYS => Detour::Kernel,
            other => other.into(),
        })?;
        for piece in answer.pieces.iter().take(answer.count as usize) {
            let WirePiece { offset: start, place, len, unwritten } = *piece;
            let piece = Piece { offset: start, place, len, unwritten: unwritten != 0 };
            offset = piece.offset.saturating_add(piece.len);
            if let Some(before) = held.replace(piece)
                && !each(before, false)
            {
                return Ok(());
            }
            if piece.offset >= end {
                return Ok(());
            }
        }
        if answer.more == 0 || answer.count == 0 {
            break;
        }
    }
    if let Some(last) = held {
        each(last, true);
    }
    Ok(())
}

/// Whether a descriptor is on a FUSE mount, where there is a lane. Needs no session, so that a
/// program's first calls are answered as well.
pub(crate) fn on_fuse(fd: RawFd) -> bool {
    const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;
    let kind = || rustix::fs::fstatfs(real::borrow(fd)).map(|totals| totals.f_type as u32);
    namespace::any_lane().is_ok() && kind() == Ok(FUSE_SUPER_MAGIC)
}
