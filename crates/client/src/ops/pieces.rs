//! Where a file lies on its medium.

use std::os::fd::RawFd;

use polylane_ipc::ioctl::{PIECE_BYTES, PIECES_BYTES};

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
        let mut argument = [0; PIECES_BYTES];
        argument[..8].copy_from_slice(&offset.to_ne_bytes());
        argument[8..16].copy_from_slice(&(u64::MAX - offset).to_ne_bytes());
        // Another FUSE mount does not know the request: then the kernel's answer stands.
        real::pieces(fd, &mut argument).map_err(|errno| match errno {
            rustix::io::Errno::NOTTY | rustix::io::Errno::NOSYS => Detour::Kernel,
            other => other.into(),
        })?;
        let (count, more) = (half(&argument, 0), half(&argument, 4) != 0);
        let most = (PIECES_BYTES - 8) / PIECE_BYTES;
        for at in 0..(count as usize).min(most) {
            let word = |n: usize| whole(&argument, 8 + at * PIECE_BYTES + n * 8);
            let piece =
                Piece { offset: word(0), place: word(1), len: word(2), unwritten: word(3) != 0 };
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
        if !more || count == 0 {
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
    namespace::mount().is_ok() && kind() == Ok(FUSE_SUPER_MAGIC)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]))
}

fn whole(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]))
}
