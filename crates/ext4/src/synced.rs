//! Where the bytes of a write go: the one place that decides.
//!
//! | way | the bytes | a sync then takes |
//! |---|---|---|
//! | in place | to their blocks | a flush, and two writes if it commits |
//! | in place, durable | to their blocks, durable at once | nothing more |
//! | logged | with the transaction that shows them | one write, which commits |
//! | deferred | to their blocks, with the body of the log | that, a flush, and the commit block |
//!
//! Which it is, and why, is counted ([`Reason`]), and told of each of the last syncs (`trace`).
//!
//! Few bytes that a sync follows are logged; where they go over a file's written blocks and nothing
//! else is to be saved, they are written in place, durable. Many that a sync follows are deferred,
//! where the medium has room for them; what nobody syncs is written in place. Which form the commit
//! then takes is `Journal::form`'s to say, and counted. Whatever is chosen, a block whose newest
//! version is in the log is logged again (`journal/logged.rs`).

use std::time::Instant;

use polylane_base::sync::Arc;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{OnSynced, Source, SyncLead, SyncLeft, Syncing};

use crate::data::{self, RUN_BLOCKS_MAX, Way, regular};
use crate::data_mode::DataMode;
use crate::error::Result;
use crate::extents::{self, Mapping};
use crate::format::FileBlock;
use crate::inode::{Cell, Core};
use crate::journal::{Journal, Teller};
use crate::reason::Reason;
use crate::trace::Part;
use crate::volume::Volume;

/// Most bytes of a sync that are logged: more take longer to write twice than to wait twice.
const LOGGED_BYTES_MAX: u64 = 64 << 10;

/// Writes all of `source` to a regular file; `syncing`: the sync that follows, if one does.
///
/// # Errors
/// Those of [`data::write()`].
pub fn write(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    ino: u32,
    offset: u64,
    source: &mut dyn Source,
    syncing: Option<Syncing>,
) -> Result<usize> {
    let cell = volume.cell(ino)?;
    let mut core = cell.core.write();
    regular(&core)?;
    let reason = reason(volume, &cell, &core, (offset, source.len()), syncing)?;
    volume.reasons.count(reason);
    let began = syncing.map(|_| Instant::now());
    let written = data::write(ctx, volume, &cell, &mut core, offset, source, way(reason));
    if let (Ok(bytes), Some(began), Some(journal)) = (&written, began, &volume.journal) {
        journal.trace.note((Part::Write, reason.name()), *bytes as u64, began);
    }
    written.inspect(|_| volume.note_room())
}

/// Makes a file's data, and its state unless `data_only`, durable.
///
/// # Errors
/// The device's, or those of a stopped journal.
pub fn sync(volume: &Volume, ino: u32, data_only: bool, teller: Teller) -> Result<()> {
    let cell = volume.cell(ino)?;
    match (&volume.journal, cell.changed_in(data_only)) {
        (Some(journal), Some(tid)) if !journal.has_committed(tid) => {
            // A commit that is under way may have flushed before the file's last write in place,
            // which fdatasync does not count as a change.
            let covered = !data_only || journal.current() == tid;
            journal.commit_up_to(tid, volume, teller)?;
            if covered { Ok(()) } else { flush(volume) }
        }
        _ => flush(volume),
    }
}

/// Makes all that was done durable.
///
/// # Errors
/// As above.
pub fn sync_all(volume: &Volume) -> Result<()> {
    let Some(journal) = &volume.journal else { return Ok(()) };
    journal.commit(volume)?;
    flush(volume)
}

/// Makes what was written in place durable, where it may not be.
fn flush(volume: &Volume) -> Result<()> {
    if volume.io.is_flushed() {
        return Ok(());
    }
    let began = Instant::now();
    volume.io.flush()?;
    if let Some(journal) = &volume.journal {
        journal.trace.note((Part::Flush, "in_place"), 0, began);
    }
    Ok(())
}

/// Leaves a file's sync to the thread that commits the file's last change, if one does, and all
/// that was written in place is covered by it.
///
/// # Errors
/// As above.
pub fn leave(
    volume: &Volume,
    ino: u32,
    data_only: bool,
    told: &mut dyn FnMut() -> OnSynced,
) -> Result<SyncLeft> {
    let cell = volume.cell(ino)?;
    let left = match (&volume.journal, cell.changed_in(data_only)) {
        (Some(journal), Some(tid)) if !journal.has_committed(tid) => {
            // Looked at in this order: what is written from now on is not this sync's.
            let covered = !data_only || journal.current() == tid || volume.io.is_flushed();
            match covered && journal.leave(tid, told) {
                true => SyncLeft::ToAnother,
                false => SyncLeft::ToCaller,
            }
        }
        _ if volume.io.is_flushed() => SyncLeft::Done,
        _ => SyncLeft::ToCaller,
    };
    Ok(left)
}

/// Whether the sync of a file that has bytes to write, and is `size` bytes by now, commits: a
/// thread is about to, or the file has changed in what such a sync saves. False where the running
/// transaction has no room for its bytes.
///
/// # Errors
/// As above.
pub fn commits(volume: &Volume, ino: u32, data_only: bool, size: u64) -> Result<bool> {
    let logs = |it: &&Journal| it.data_blocks_max() > 0 && it.has_room_for_syncs();
    let Some(journal) = volume.journal.as_ref().filter(logs) else { return Ok(false) };
    if !data_only || journal.takes_syncs() {
        return Ok(true);
    }
    let cell = volume.cell(ino)?;
    let pending = cell.changed_in(data_only).is_some_and(|tid| !journal.has_committed(tid));
    // Where a write is at it, nobody waits for that here.
    let grows = || cell.core.try_read().is_some_and(|core| core.raw.size() < size);
    Ok(pending || grows())
}

/// Takes the lead of the transaction that the sync of a file commits, if no thread has it.
///
/// # Errors
/// As above.
pub fn lead(volume: &Arc<Volume>, ino: u32, data_only: bool) -> Result<Option<SyncLead>> {
    let cell = volume.cell(ino)?;
    let (Some(journal), Some(tid)) = (&volume.journal, cell.changed_in(data_only)) else {
        return Ok(None);
    };
    let Some(promise) = journal.promise(tid) else { return Ok(None) };
    let volume = volume.clone();
    Ok(Some(SyncLead::new(move || match &volume.journal {
        Some(journal) => Ok(volume.stop_on(journal.keep(promise, &*volume))?),
        None => Ok(()),
    })))
}

/// Where the bytes go for that reason.
fn way(reason: Reason) -> Way {
    match reason {
        Reason::NoLog | Reason::Unsynced => Way::Place,
        Reason::DataMode | Reason::Small => Way::Log,
        Reason::Large => Way::Deferred,
        Reason::Overwrite => Way::PlaceDurably,
    }
}

/// Decides for `len` bytes at `offset` of a file; `syncing`: the sync that follows, if one does.
///
/// # Errors
/// The device's, or a corrupt tree.
fn reason(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    (offset, len): (u64, usize),
    syncing: Option<Syncing>,
) -> Result<Reason> {
    let Some(journal) = &volume.journal else { return Ok(Reason::NoLog) };
    let log_max = journal.data_blocks_max().min(RUN_BLOCKS_MAX as usize);
    if log_max == 0 {
        return Ok(Reason::NoLog);
    }
    if volume.data == DataMode::Data {
        return Ok(Reason::DataMode);
    }
    let Some(Syncing { bytes, data_only }) = syncing else { return Ok(Reason::Unsynced) };
    let block_bytes = volume.io.block_bytes() as u64;
    // Each of several pieces may take a block more.
    if bytes > LOGGED_BYTES_MAX || (2 * bytes / block_bytes + 2) as usize > log_max {
        return Ok(Reason::Large);
    }
    let pending = cell.changed_in(true).is_some_and(|tid| !journal.has_committed(tid));
    if data_only && !pending && is_all(len, bytes) {
        let first = FileBlock((offset / block_bytes) as u32);
        let blocks = (offset % block_bytes + len as u64).div_ceil(block_bytes);
        let inside = offset + len as u64 <= core.raw.size();
        if let Mapping::Data(extent) = extents::map(volume, cell, core, first)?
            && inside
            && !extent.unwritten
            && u64::from(extent.count) >= blocks
            && journal.logged.run(extent.start, blocks as u32) == (false, blocks as u32)
        {
            return Ok(Reason::Overwrite);
        }
    }
    Ok(Reason::Small)
}

/// Whether a write of `len` bytes is all that the sync saves, which counts in whole pages.
fn is_all(len: usize, bytes: u64) -> bool {
    const PAGE: u64 = 4096;
    len as u64 + PAGE > bytes
}
