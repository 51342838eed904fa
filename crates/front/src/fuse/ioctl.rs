//! Requests of ioctl(2). The kernel answers FIEMAP, FIFREEZE and the like by itself, for every FUSE
//! mount alike; what gets here is what it does not know.
//!
//! | request | who | what |
//! |---|---|---|
//! | `IDENTIFY` | the client library | a ticket for the open file |
//! | `PIECES` | the client library, for FIEMAP | where the file lies on the medium |
//! | `FITRIM` | the tenant's root (fstrim(8)) | gives free space back to the host |
//! | `FLAGS` | the client library | inode flags, in four ways |
//! | `FS_IOC_GETFLAGS`, `_SETFLAGS` | anybody (chattr(1)), by the kernel | the same |
//! | `FS_IOC_FSGETXATTR`, `_FSSETXATTR` | anybody, by the kernel | the same, in other words |
//! | `FS_IOC_GETVERSION` | anybody (lsattr(1)) | the inode's generation |
//!
//! The kernel asks about inode flags through a handle that it opens for this one request.

use polylane_base::{Errno, Result};
use polylane_ipc::ioctl::{
    FS_IOC_FLAGS, FS_IOC_VERSION, FSXATTR_BYTES, FsXattr, IOCTL_FLAGS, IOCTL_IDENTIFY,
    IOCTL_PIECES, PIECES_BYTES, PiecesAnswer, PiecesQuestion, WirePiece,
};
use polylane_vfs::{Cred, Node, flags};
use zerocopy::native_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::call::{Call, End, Outcome};
use super::records::{FstrimRange, IoctlIn, IoctlOut};
use crate::lane::nodes::Target;
use crate::lane::tickets::{Ticket, TicketSlot};

/// `FITRIM`, with a `struct fstrim_range`: start, length, shortest run.
const FITRIM: u32 = 0xc018_5879;

/// The kernel's requests for inode flags.
const GETFLAGS: u32 = FS_IOC_FLAGS[0];
const SETFLAGS: u32 = FS_IOC_FLAGS[1];
const FSGETXATTR: u32 = FS_IOC_FLAGS[2];
const FSSETXATTR: u32 = FS_IOC_FLAGS[3];

/// The client's requests for inode flags, in the same order.
const ITS_GETFLAGS: u32 = IOCTL_FLAGS[0];
const ITS_SETFLAGS: u32 = IOCTL_FLAGS[1];
const ITS_FSGETXATTR: u32 = IOCTL_FLAGS[2];
const ITS_FSSETXATTR: u32 = IOCTL_FLAGS[3];

/// `fsx_xflags` and the inode flags that they mean.
const XFLAGS: [(u32, u32); 6] = [
    (0x08, flags::IMMUTABLE),
    (0x10, flags::APPEND),
    (0x20, flags::SYNC),
    (0x40, flags::NOATIME),
    (0x80, flags::NODUMP),
    (0x200, flags::PROJECT_INHERIT),
];

pub(super) fn ioctl(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<IoctlIn>()?;
    // Of the kernel's own requests it has looked who may make them; these it passes on from all.
    if call.names_no_user() && matches!(asked.cmd.get(), ITS_SETFLAGS | ITS_FSSETXATTR) {
        return Err(Errno::ENOTTY.into());
    }
    let fh = asked.fh.get();
    match (asked.cmd.get(), asked.in_size.get().max(asked.out_size.get()) as usize) {
        (IOCTL_IDENTIFY, 16..) => identify(call, fh)?,
        (IOCTL_PIECES, PIECES_BYTES..) => pieces(call, fh)?,
        (FITRIM, 24..) => trim(call)?,
        (ITS_GETFLAGS | GETFLAGS, 4) => tell_flags(call)?,
        (ITS_SETFLAGS | SETFLAGS, 4) => set_flags(call)?,
        (ITS_FSGETXATTR | FSGETXATTR, FSXATTR_BYTES) => tell_xflags(call)?,
        (ITS_FSSETXATTR | FSSETXATTR, FSXATTR_BYTES) => set_xflags(call)?,
        (request, 4..) if FS_IOC_VERSION.contains(&request) => tell_generation(call)?,
        (IOCTL_IDENTIFY | IOCTL_PIECES | FITRIM, _) => return Err(Errno::EINVAL.into()),
        _ => return Err(Errno::ENOTTY.into()),
    }
    Ok(Outcome::Reply)
}

fn identify(call: &mut Call<'_>, fh: u64) -> Result<()> {
    let (handle, file) = call.lockable(fh)?;
    let own_slot = handle.slot.as_ref().filter(|_| handle.is_slot());
    let has_flags = handle.has_kernel_flags();
    let slot =
        own_slot.map(|slot| TicketSlot { session: slot.session, number: slot.number, has_flags });
    let key = call.session.lane.tickets.issue(&Ticket { file, slot })?;
    answer(call, &key);
    Ok(())
}

/// In: a [`PiecesQuestion`]. Out: a [`PiecesAnswer`].
fn pieces(call: &mut Call<'_>, fh: u64) -> Result<()> {
    let asked = PiecesQuestion::read_from_bytes(call.args.bytes(size_of::<PiecesQuestion>())?);
    let PiecesQuestion { offset, len } = asked.map_err(|_| Errno::EIO)?;
    let (_, file) = call.handle(fh)?;
    let mut told = PiecesAnswer::new_zeroed();
    let (mut count, mut more) = (0, false);
    file.pieces(&call.ctx(&call.caller()), offset, len, &mut |piece| {
        let (offset, place, len) = (piece.offset, piece.place, piece.len);
        match told.pieces.get_mut(count) {
            Some(room) => {
                *room = WirePiece { offset, place, len, unwritten: piece.unwritten.into() };
                count += 1;
            }
            None => more = true,
        }
        !more
    })?;
    (told.count, told.more) = (count as u32, more.into());
    answer(call, &told);
    Ok(())
}

/// All of the file system, whatever part is named: a lane's free space is one thing.
fn trim(call: &mut Call<'_>) -> Result<()> {
    if call.header.uid != 0 {
        return Err(Errno::EPERM);
    }
    let asked = *call.args.record::<FstrimRange>()?;
    let vfs = &call.session.lane.vfs;
    let totals = vfs.statfs(&call.ctx(&call.caller()))?;
    let block_bytes = u64::from(totals.bsize);
    if asked.start.get() / block_bytes >= totals.blocks || asked.len.get() < block_bytes {
        return Err(Errno::EINVAL);
    }
    let given = vfs.trim(&call.ctx(&call.caller()), asked.minlen.get())?;
    answer(call, &FstrimRange { len: given.into(), ..asked });
    Ok(())
}

/// A `struct fuse_ioctl_out` that says that all went well, and the bytes for the caller.
fn answer(call: &mut Call<'_>, told: &(impl IntoBytes + Immutable)) {
    call.out.record(&IoctlOut::new_zeroed()).0.extend_from_slice(told.as_bytes());
}

/// The inode whose flags are asked for. `ENOTTY` for what has none.
fn flagged(call: &Call<'_>) -> Result<Node> {
    match call.target()? {
        Target::Virtual(_) => Err(Errno::ENOTTY),
        _ => call.node(),
    }
}

fn tell_flags(call: &mut Call<'_>) -> Result<()> {
    let flags = call.session.lane.vfs.flags(&call.ctx(&call.caller()), &flagged(call)?)?;
    answer(call, &U32::new(flags));
    Ok(())
}

/// An `int`, as ext4 writes, whatever the request's number says.
fn tell_generation(call: &mut Call<'_>) -> Result<()> {
    let generation = call.session.lane.vfs.generation(&flagged(call)?)?;
    answer(call, &U32::new(generation));
    Ok(())
}

/// Out: `fsx_xflags` and `fsx_projid`; the rest, of file systems with extents of a given size, is
/// 0.
fn tell_xflags(call: &mut Call<'_>) -> Result<()> {
    let (vfs, node) = (&call.session.lane.vfs, flagged(call)?);
    let flags = vfs.flags(&call.ctx(&call.caller()), &node)?;
    let of = |&(xflag, flag)| if flags & flag != 0 { xflag } else { 0 };
    let xflags: u32 = XFLAGS.iter().map(of).sum();
    let told = FsXattr { xflags, project: vfs.project(&node)?, ..FsXattr::default() };
    answer(call, &told);
    Ok(())
}

fn set_flags(call: &mut Call<'_>) -> Result<()> {
    let flags = call.args.record::<U32>()?.get();
    store_flags(call, &flagged(call)?, flags, None)
}

/// Flags that have no `fsx_xflags` stay as they are. `EOPNOTSUPP` for what none of ours mean.
fn set_xflags(call: &mut Call<'_>) -> Result<()> {
    let asked = FsXattr::read_from_bytes(call.args.bytes(FSXATTR_BYTES)?);
    let FsXattr { xflags, extent_bytes, project, shared_extent_bytes, .. } =
        asked.map_err(|_| Errno::EIO)?;
    let known: u32 = XFLAGS.iter().map(|(xflag, _)| xflag).sum();
    if xflags & !known != 0 || (extent_bytes, shared_extent_bytes) != (0, 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    let node = flagged(call)?;
    let mut flags = call.session.lane.vfs.flags(&call.ctx(&call.caller()), &node)?;
    for (xflag, flag) in XFLAGS {
        flags = if xflags & xflag != 0 { flags | flag } else { flags & !flag };
    }
    store_flags(call, &node, flags, Some(project))
}

fn store_flags(call: &mut Call<'_>, node: &Node, flags: u32, project: Option<u32>) -> Result<()> {
    // The kernel has looked who owns the file and may make it immutable; elsewhere it is looked at
    // once more, since the kernel may remember another owner.
    let cred = if call.names_no_user() { Cred::root() } else { call.cred()? };
    let vfs = &call.session.lane.vfs;
    vfs.set_flags_and_project(&call.ctx(&cred), node, flags, project)?;
    answer(call, &());
    Ok(())
}
