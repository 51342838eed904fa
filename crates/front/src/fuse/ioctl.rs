//! Requests of ioctl(2). The kernel answers FIEMAP, FIFREEZE and the like by itself, for every FUSE
//! mount alike; what gets here is what it does not know.
//!
//! | request | who | what |
//! |---|---|---|
//! | `IDENTIFY` | the client library | a ticket for the open file |
//! | `PIECES` | the client library, for FIEMAP | where the file lies on the medium |
//! | `FITRIM` | the tenant's root (fstrim(8)) | gives free space back to the host |

use polylane_base::{Errno, Result};
use polylane_ipc::message::{IOCTL_IDENTIFY, IOCTL_PIECES, PIECE_BYTES, PIECES_BYTES};

use super::ops::{Call, End, Outcome};
use crate::tickets::Ticket;

/// `FITRIM`, with a `struct fstrim_range`: start, length, shortest run.
const FITRIM: u32 = 0xc018_5879;

/// Bytes of `struct fuse_ioctl_out`: all zero for an answer with data.
const HEAD_BYTES: usize = 16;

pub(super) fn ioctl(call: &mut Call<'_>) -> End {
    let (fh, _flags, command) = (call.args.u64()?, call.args.u32()?, call.args.u32()?);
    let (_arg, _in_size, out_size) = (call.args.u64()?, call.args.u32()?, call.args.u32()?);
    match (command, out_size as usize) {
        (IOCTL_IDENTIFY, 16..) => identify(call, fh)?,
        (IOCTL_PIECES, PIECES_BYTES..) => pieces(call, fh)?,
        (FITRIM, 24..) => trim(call)?,
        (IOCTL_IDENTIFY | IOCTL_PIECES | FITRIM, _) => return Err(Errno::EINVAL.into()),
        _ => return Err(Errno::ENOTTY.into()),
    }
    Ok(Outcome::Reply)
}

fn identify(call: &mut Call<'_>, fh: u64) -> Result<()> {
    let (handle, file) = call.handle(fh)?;
    let own_slot = handle.slot.as_ref().filter(|_| handle.is_slot());
    let slot = own_slot.map(|slot| (slot.session, slot.number));
    let key = call.session.lane.tickets.issue(&Ticket { file, slot })?;
    call.out.zeros(HEAD_BYTES).0.extend_from_slice(&key);
    Ok(())
}

/// In: offset and length. Out: how many pieces follow, whether more follow them, then four words
/// for each.
fn pieces(call: &mut Call<'_>, fh: u64) -> Result<()> {
    let (offset, len) = (call.args.u64()?, call.args.u64()?);
    let (_, file) = call.handle(fh)?;
    let most = (PIECES_BYTES - 8) / PIECE_BYTES;
    let (mut found, mut more) = (Vec::new(), false);
    file.pieces(offset, len, &mut |piece| {
        more = found.len() == most;
        if !more {
            found.push([piece.offset, piece.place, piece.len, u64::from(piece.unwritten)]);
        }
        !more
    })?;
    let out = &mut call.out.zeros(HEAD_BYTES).0;
    out.extend_from_slice(&(found.len() as u32).to_ne_bytes());
    out.extend_from_slice(&u32::from(more).to_ne_bytes());
    found.iter().flatten().for_each(|word| out.extend_from_slice(&word.to_ne_bytes()));
    out.resize(out.len() + PIECES_BYTES - 8 - found.len() * PIECE_BYTES, 0);
    Ok(())
}

/// All of the file system, whatever part is named: a lane's free space is one thing.
fn trim(call: &mut Call<'_>) -> Result<()> {
    if call.header.uid != 0 {
        return Err(Errno::EPERM);
    }
    let (start, _len, len_min) = (call.args.u64()?, call.args.u64()?, call.args.u64()?);
    let given = call.session.lane.vfs.trim(len_min)?;
    let out = &mut call.out.zeros(HEAD_BYTES).0;
    [start, given, len_min].iter().for_each(|word| out.extend_from_slice(&word.to_ne_bytes()));
    Ok(())
}
