//! Operations on open files and their data.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::fs::SeekFor;
use polylane_vfs::{Node, OpenFile};

use super::call::{Call, End, Exit, Outcome};
use super::deferred::Again;
use super::flags::{FsyncFlags, OpenFlags, OpenedFlags, ReadFlags, WriteFlags};
use super::handles::Handle;
use super::init::TRANSFER_BYTES_MAX;
use super::names::open_flags;
use super::protocol::opcode;
use super::records::{CopyFileRangeIn, FallocateIn, FlushIn, FsyncIn, LseekIn, OpenIn, ReleaseIn};
use super::request::TransferIn;
use crate::lane::locks::Whose;
use crate::lane::nodes::Target;
use crate::lane::notifier::Range;
use crate::lane::slots::Slot;
use crate::lane::tag::Moment;

pub(super) fn open(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<OpenIn>()?;
    let flags = asked.flags.get() as i32;
    let how = OpenFlags::from_bits_retain(asked.open_flags.get());
    match call.target()? {
        Target::Node(node) => {
            let file = open_node(call, &node, flags, how)?;
            let door = call.header.node_id;
            let grown = call.session.opened(door, flags);
            if flags & libc::O_TRUNC != 0 {
                // With the reply the kernel takes the file to be empty.
                call.session.lane.nodes.tell_size(door, 0);
            }
            let done = match flags & libc::O_TRUNC {
                0 if grown => Outcome::ReplyAfter(node, Range { offset: 0, len: 1 }, Some(door)),
                0 => Outcome::Reply,
                _ => call.changed(&node, Range::ALL),
            };
            reply_open(call, flags, file, None);
            Ok(done)
        }
        Target::Slot(slot) => open_slot(call, slot, flags, how),
        Target::Virtual(_) => Err(Errno::EISDIR.into()),
    }
}

fn open_node(
    call: &Call<'_>,
    node: &Node,
    flags: i32,
    how: OpenFlags,
) -> Result<Arc<OpenFile>, Exit> {
    if flags & libc::O_TRUNC == 0 {
        return Ok(call.session.lane.vfs.open(
            &call.ctx(&call.cred()?),
            node,
            open_flags(flags),
        )?);
    }
    call.settle(node, Range::ALL)?;
    let kills = how.contains(OpenFlags::KILL_SUIDGID);
    let flags = open_flags(flags) | libc::O_TRUNC;
    Ok(call.session.lane.vfs.open(&call.ctx(&call.writer(kills)), node, flags)?)
}

/// A second open of a slot's node, through /proc/self/fd: opens the bound file anew. The kernel may
/// have checked the permissions of what was bound a moment ago: so the binding is made final first,
/// and the first open after that is told to check again.
fn open_slot(call: &mut Call<'_>, slot: Arc<Slot>, flags: i32, how: OpenFlags) -> End {
    if !slot.escaped() {
        call.session.lane.slots.escape(&slot)?;
        return Err(Errno::ESTALE.into());
    }
    let bound = slot.file()?;
    let file = open_node(call, bound.node(), flags, how)?;
    call.session.lane.slots.opened(&slot);
    reply_open(call, flags, file, Some(slot));
    match flags & libc::O_TRUNC {
        0 => Ok(Outcome::Reply),
        _ => Ok(call.changed(bound.node(), Range::ALL)),
    }
}

fn reply_open(call: &mut Call<'_>, flags: i32, file: Arc<OpenFile>, slot: Option<Arc<Slot>>) {
    let door = call.header.node_id;
    let how = match &slot {
        // Pages of what was bound before must never be seen.
        Some(_) => OpenedFlags::DIRECT_IO,
        None => call.session.open_flags((file.node(), door), flags),
    };
    let handle = Handle { node_id: door, opened: Some(file), slot, ..Handle::default() };
    let fh = call.session.handles.insert(handle);
    call.out.open(fh, how);
}

pub(super) fn read(call: &mut Call<'_>) -> End {
    let transfer = TransferIn::read(&mut call.args)?;
    let (handle, file) = call.handle(transfer.fh)?;
    let size = transfer.size.min(TRANSFER_BYTES_MAX);
    let range = Range { offset: transfer.offset, len: u64::from(size) };
    if !transfer.read_flags().contains(ReadFlags::LOCKOWNER) {
        call.session.has_pages(&handle);
        call.session.lane.has_pages(file.node());
        call.settle_fill(file.node(), range)?;
        Moment::fill(file.node());
    } else {
        call.settle(file.node(), range)?;
    }
    let caller = call.caller();
    let ctx = call.ctx(&caller);
    let count = file.read_to_keep(&ctx, transfer.offset, size as usize, call.out)?;
    call.out.0.truncate(count);
    Ok(Outcome::Reply)
}

pub(super) fn write(call: &mut Call<'_>) -> End {
    let transfer = TransferIn::read(&mut call.args)?;
    let mut data = call.args.bytes(transfer.size as usize)?;
    let how = transfer.write_flags();
    let (handle, file) = call.handle(transfer.fh)?;
    let range = Range { offset: transfer.offset, len: u64::from(transfer.size).max(1) };
    if how.contains(WriteFlags::CACHE) {
        let written = write_pages(call, &file, transfer.offset, data);
        Moment::store(file.node());
        // The kernel, and who waits for it, waits for this page: it waits for nobody.
        written.map_err(|errno| match errno {
            Errno::EPERM => Exit::Refused(errno, file.node().clone(), range),
            errno => Exit::Late(errno),
        })?;
        call.out.count(transfer.size);
        return Ok(call.wrote_page(file.node(), range));
    }
    let before = Moment::of(file.node());
    // Where an append comes to lie is not known yet.
    let settled = if transfer.flags & libc::O_APPEND != 0 { Range::ALL } else { range };
    call.before_write(file.node(), settled)?;
    let kills = how.contains(WriteFlags::KILL_SUIDGID);
    if handle.has_kernel_flags() {
        // fcntl(F_SETFL) comes to us with the next write.
        file.set_appends(transfer.flags & libc::O_APPEND != 0);
    }
    // Of a slot the kernel knows no end: one that another process opened to append begins at 0.
    let placed = transfer.flags & libc::O_APPEND != 0
        && !handle.is_slot()
        && is_placed(call, &file, transfer.offset);
    let (writer, bytes) = (call.writer(kills), data);
    // One that has a page locked until its reply waits for nobody who may wait for that page, to
    // drop it for the append before.
    let buffered = !call.session.is_direct() && !how.contains(WriteFlags::LOCKOWNER);
    let holds_page = buffered && transfer.flags & libc::O_APPEND != 0;
    let failed = if holds_page { Exit::Late } else { Exit::Failed };
    let at = Some(transfer.offset);
    let written = match placed {
        true => file.write_placed(&call.ctx(&writer), at, &mut data).map_err(failed)?,
        false => file.write(&call.ctx(&writer), at, &mut data).map_err(failed)?,
    };
    let beside = before.until_now(file.node());
    let start = written.end.saturating_sub(written.count as u64);
    let range = Range { offset: start, len: range.len };
    // RWF_SYNC and RWF_DSYNC come as flags of the one write.
    file.sync_written(&call.ctx(&call.caller()), transfer.flags).map_err(Exit::Late)?;
    call.out.count(written.count as u32);
    call.session.wrote(&handle, written.end);
    if transfer.flags & libc::O_APPEND != 0 && !call.session.is_direct() {
        // The kernel may have other handles' pages of the old end, and writes past them.
        let node = file.node().clone();
        if how.contains(WriteFlags::LOCKOWNER) {
            return Ok(Outcome::ReplyAfter(node, range, None));
        }
        // Or through one of them, where F_SETFL made it append; it may have that page locked until
        // the reply, and takes it for the one at the end that it knows.
        let offset = start.min(transfer.offset);
        return Ok(Outcome::ReplyBefore(node, Range { offset, len: 0 }, None));
    }
    if !beside.filled() || !call.session.is_direct() {
        return Ok(call.changed(file.node(), range));
    }
    let (data, flags) = (bytes[..written.count].to_vec(), transfer.flags);
    let again = Again { file, writer, data, flags, beside };
    Ok(Outcome::ReplyWritten(again, range))
}

/// Whether a write by an open file that appends is one at its offset after all (`RWF_NOAPPEND`),
/// of which the kernel says nothing else. It sends appends with the end as it knows it: not so an
/// offset that is neither that nor the end, where nobody but the kernel moved the end lately.
fn is_placed(call: &Call<'_>, file: &OpenFile, offset: u64) -> bool {
    let nodes = &call.session.lane.nodes;
    call.session.is_direct() && offset < file.size() && nodes.is_no_end(call.header.node_id, offset)
}

/// Pages of a mapping. Stores through a mapping never grow a file, so what lies past the end now
/// (the file was truncated meanwhile) is dropped, as the page cache of any file system does.
fn write_pages(call: &Call<'_>, file: &OpenFile, offset: u64, data: &[u8]) -> Result<()> {
    let size = call.session.lane.vfs.getattr(&call.ctx(&call.caller()), file.node())?.size;
    let keep = size.saturating_sub(offset).min(data.len() as u64) as usize;
    if keep == 0 {
        return Ok(());
    }
    let writer = call.writer(false);
    let ctx = call.ctx(&writer);
    let store = || file.write_mapped(&ctx, offset, &mut &data[..keep]);
    let stored = match store() {
        Err(Errno::ENOSPC) => {
            call.session.lane.vfs.give_room_back();
            store()?
        }
        stored => stored?,
    };
    if stored.count < keep { Err(Errno::ENOSPC) } else { Ok(()) }
}

/// close(2) of one of a file's descriptors: the process's POSIX locks on the file go.
pub(super) fn flush(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<FlushIn>()?;
    let (fh, owner) = (asked.fh.get(), asked.lock_owner.get());
    let (_, file) = call.lockable(fh)?;
    let whose = Whose::Posix { node_id: call.header.node_id, owner };
    call.session.lane.kept.drop_all(whose);
    let owner = call.posix_owner(owner);
    call.session.lane.vfs.drop_locks(file.node(), owner);
    file.whole()?;
    Ok(Outcome::Reply)
}

pub(super) fn release(call: &mut Call<'_>) -> End {
    let fh = call.args.record::<ReleaseIn>()?.fh.get();
    // A handle of a former incarnation is as gone as it can be.
    let Some(handle) = call.session.handles.remove(fh) else { return Ok(Outcome::Reply) };
    call.session.lane.kept.drop_all(Whose::Flock { fh });
    call.session.close(&handle);
    Ok(Outcome::Reply)
}

pub(super) fn fsync(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<FsyncIn>()?;
    let (_, file) = call.handle(asked.fh.get())?;
    call.settle(file.node(), Range::ALL)?;
    let how = FsyncFlags::from_bits_retain(asked.fsync_flags.get());
    file.fsync(&call.ctx(&call.caller()), how.contains(FsyncFlags::FDATASYNC))?;
    Ok(Outcome::Reply)
}

pub(super) fn fallocate(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<FallocateIn>()?;
    let (offset, len, mode) = (asked.offset.get(), asked.length.get(), asked.mode.get() as i32);
    let (handle, file) = call.handle(asked.fh.get())?;
    call.settle(file.node(), Range::ALL)?;
    file.fallocate(&call.ctx(&call.changer()), mode, offset, len)?;
    if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
        call.session.wrote(&handle, offset.saturating_add(len));
    }
    // Collapse and insert move everything behind.
    Ok(call.changed(file.node(), Range { offset, len: 0 }))
}

pub(super) fn lseek(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<LseekIn>()?;
    let (offset, whence) = (asked.offset.get(), asked.whence.get() as i32);
    let (_, file) = call.handle(asked.fh.get())?;
    let target = match whence {
        libc::SEEK_DATA => SeekFor::Data,
        libc::SEEK_HOLE => SeekFor::Hole,
        _ => return Err(Errno::EINVAL.into()),
    };
    call.settle(file.node(), Range { offset, len: 0 })?;
    let found = file.seek(&call.ctx(&call.caller()), offset, target)?;
    call.out.long(found);
    Ok(Outcome::Reply)
}

pub(super) fn copy_file_range(call: &mut Call<'_>) -> End {
    let asked = *call.args.record::<CopyFileRangeIn>()?;
    let (from, at, len) = (asked.off_in.get(), asked.off_out.get(), asked.len.get());
    if asked.flags.get() != 0 {
        return Err(Errno::EINVAL.into());
    }
    let ((_, source), (to, target)) =
        (call.handle(asked.fh_in.get())?, call.handle(asked.fh_out.get())?);
    call.settle(source.node(), Range { offset: from, len })?;
    call.settle(target.node(), Range { offset: at, len })?;
    // The older form has 32 bits to say how far it came.
    let wide = call.header.opcode == opcode::COPY_FILE_RANGE_64;
    let len = if wide { len } else { len.min(u64::from(u32::MAX) & !4095) };
    let copied = source.copy_range(&call.ctx(&call.changer()), from, (&target, at), len)?;
    if copied > 0 {
        call.session.wrote(&to, at.saturating_add(copied));
    }
    match wide {
        true => call.out.long(copied),
        false => call.out.count(copied as u32),
    };
    Ok(call.changed(target.node(), Range { offset: at, len: copied.max(1) }))
}
