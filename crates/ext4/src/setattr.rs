//! Changes of an inode's state.

use polylane_base::{Errno, Time};
use polylane_vfs::OpCtx;
use polylane_vfs::flags;
use polylane_vfs::fs::{Attr, SetAttr, SetTime};

use crate::data::{INODE_CREDITS, regular};
use crate::error::Result;
use crate::format::inode::{InodeFlags, RawInode, Stamp};
use crate::inode::Core;
use crate::ops::name_refused;
use crate::space;
use crate::volume::Volume;

/// Changes an inode's state, its size first.
///
/// # Errors
/// `EISDIR` and `EINVAL` for the size of what has no contents, `EOPNOTSUPP` for a project where the
/// inode has no room for one, `EDQUOT`, `ENOSPC`, the device's.
pub(crate) fn set(ctx: &OpCtx<'_>, volume: &Volume, ino: u32, set: &SetAttr) -> Result<Attr> {
    let cell = volume.cell(ino)?;
    let mut core = cell.core.write();
    if let Some(size) = set.size {
        regular(&core)?;
        space::truncate(ctx, volume, &cell, &mut core, size)?;
    }
    let owner = |new: Option<u32>, old: u32| new.unwrap_or(old);
    let (uid, gid) = (set.uid.map(|uid| uid.0), set.gid.map(|gid| gid.0));
    let project = owner(set.project, core.raw.project());
    if project != core.raw.project() && !(volume.traits.projects && core.raw.has_project()) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let ids = [owner(uid, core.raw.uid()), owner(gid, core.raw.gid()), project];
    volume.enter(ctx, ids)?;
    let handle = volume.start(ctx, INODE_CREDITS)?;
    // In the handle: what is promised goes along at once, and nothing fails after it.
    match volume.book_given(ctx, (&cell, &core), ids) {
        Ok(booked) => core.booked = booked,
        Err(refused) => return Err(name_refused(handle, refused)),
    }
    apply(&mut core, set, volume.now(ctx));
    volume.store(&handle, &cell, &mut core, false)?;
    handle.complete();
    Ok(volume.attr(&cell, &core))
}

fn apply(core: &mut Core, set: &SetAttr, now: Time) {
    let raw = &mut core.raw;
    if let Some(perm) = set.perm {
        raw.set_perm(perm);
    }
    if let Some(uid) = set.uid {
        raw.set_uid(uid.0);
    }
    if let Some(gid) = set.gid {
        raw.set_gid(gid.0);
    }
    if let Some(project) = set.project {
        raw.set_project(project);
    }
    let stamp = |raw: &mut RawInode, which, time: Option<SetTime>| match time {
        Some(SetTime::Now) => raw.set_time(which, now),
        Some(SetTime::At(time)) => raw.set_time(which, time),
        None => {}
    };
    if let Some(flags) = set.flags {
        let settable = InodeFlags::from_bits_retain(flags::SETTABLE | flags::PROJECT_INHERIT);
        let flags = InodeFlags::from_bits_retain(flags);
        raw.set_flags(raw.flags() & !settable | flags & settable);
    }
    stamp(raw, Stamp::Access, set.atime);
    stamp(raw, Stamp::Modify, set.mtime);
    raw.set_time(Stamp::Change, set.ctime.unwrap_or(now));
}
