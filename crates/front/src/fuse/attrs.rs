//! Operations on an inode's state: attributes, extended attributes, totals.

use polylane_base::{Errno, Gid, Result, Time, Uid};
use polylane_vfs::fs::{AclKind, Attr, SetAttr, SetTime, XattrMode};
use polylane_vfs::{Cred, Fsetid, Node, OpCtx};

use super::call::{Call, End, Exit, Outcome};
use super::flags::{SetattrFields, SetxattrFlags};
use super::records::{AccessIn, GetxattrIn, SetxattrExt, SetxattrIn};
use super::request::SetattrIn;
use crate::lane::memory::FOR_GOOD;
use crate::lane::nodes::Target;
use crate::lane::notifier::Range;

impl<'a> Call<'a> {
    fn attr(&self) -> Result<Attr> {
        match self.target()? {
            Target::Virtual(dir) => self.virtual_attr(dir),
            // The kernel asks for it while it opens the slot, before anything can be bound.
            Target::Slot(slot) if slot.file().is_err() => self.free_slot_attr(&slot),
            _ => self.session.lane.vfs.getattr(&self.ctx(&self.caller()), &self.node()?),
        }
    }

    /// Who asks, for a change that the kernel allowed by what it remembers of the inode: on a slot
    /// with the groups of the session whose process must be the caller as long as the slot has not
    /// escaped.
    fn attr_cred(&self) -> Result<Cred> {
        let mut cred = self.cred()?;
        if let Target::Slot(slot) = self.target()?
            && !slot.escaped()
        {
            cred.groups = self.session.lane.slots.groups(&slot, cred.uid);
        }
        Ok(cred)
    }

    /// The context of such a change. Of a slot the kernel may remember another file's owner: there
    /// the lane decides.
    fn attr_ctx<'c>(&self, cred: &'c Cred) -> Result<OpCtx<'c>>
    where
        'a: 'c,
    {
        let kernel_checked = !matches!(self.target()?, Target::Slot(_));
        Ok(OpCtx { kernel_checked, ..self.ctx(cred) })
    }
}

pub(super) fn getattr(call: &mut Call<'_>) -> End {
    let lane = &call.session.lane;
    let (attr, lasts) = match call.target()? {
        Target::Node(node) if lane.remembers() => {
            lane.vfs.tell_attr(&call.ctx(&call.caller()), &node)?
        }
        // Only its owner changes, with the root's, and grants nothing that others are refused.
        Target::Virtual(dir) => (call.virtual_attr(dir)?, true),
        _ => (call.attr()?, false),
    };
    lane.nodes.tell_size(call.header.node_id, attr.size);
    call.out.attr_out(&attr, if lasts { FOR_GOOD } else { 0 });
    Ok(Outcome::Reply)
}

pub(super) fn statx(call: &mut Call<'_>) -> End {
    let attr = call.attr()?;
    call.session.lane.nodes.tell_size(call.header.node_id, attr.size);
    call.out.statx(&attr, call.session.lane.vfs.character().attributes);
    Ok(Outcome::Reply)
}

pub(super) fn setattr(call: &mut Call<'_>) -> End {
    let new = SetattrIn::read(&mut call.args)?;
    let (node, cred) = setattr_target(call, &new)?;
    let ctx = if new.is_ftruncate() { call.ctx(&cred) } else { call.attr_ctx(&cred)? };
    let has = |field| new.valid.contains(field);
    let set = SetAttr {
        perm: has(SetattrFields::MODE).then_some(new.mode & 0o7777),
        uid: has(SetattrFields::UID).then_some(Uid(new.uid)),
        gid: has(SetattrFields::GID).then_some(Gid(new.gid)),
        size: has(SetattrFields::SIZE).then_some(new.size),
        atime: set_time(has(SetattrFields::ATIME), has(SetattrFields::ATIME_NOW), new.atime)?,
        mtime: set_time(has(SetattrFields::MTIME), has(SetattrFields::MTIME_NOW), new.mtime)?,
        ..SetAttr::default()
    };
    if set.size.is_some() {
        call.settle(&node, Range::ALL)?;
    }
    let attr = match set == SetAttr::default() {
        true => set_nothing(call, (&ctx, &node), new.valid)?,
        false => call.session.lane.vfs.setattr(&ctx, &node, &set)?,
    };
    call.session.lane.nodes.tell_size(call.header.node_id, attr.size);
    call.out.attr_out(&attr, 0);
    match set.size {
        Some(size) => Ok(call.changed(&node, Range { offset: size, len: 0 })),
        None => Ok(Outcome::Reply),
    }
}

/// The inode to change, and on whose behalf. A truncation through an open file needs no permission
/// but the file's mode, which the kernel checked.
fn setattr_target(call: &Call<'_>, new: &SetattrIn) -> Result<(Node, Cred)> {
    let kills = new.valid.contains(SetattrFields::KILL_SUIDGID);
    if new.is_ftruncate() {
        let (_, file) = call.handle(new.fh)?;
        return Ok((file.node().clone(), call.writer(kills)));
    }
    let cred = call.attr_cred()?;
    // With an owner the flag says nothing of the caller: the kernel always sets it.
    let fsetid = match (new.valid.contains(SetattrFields::SIZE), kills) {
        (false, _) => Fsetid::OfUser,
        (true, false) => Fsetid::Held,
        (true, true) => Fsetid::Dropped,
    };
    Ok((call.node()?, Cred { fsetid, ..cred }))
}

/// A SETATTR without a field. It is chown(-1, -1), or what the kernel sends before a change of
/// contents that takes set-id bits away by a caller without `CAP_FSETID`: the bits go. A caller who
/// is neither root nor the owner gets nothing done: where there are set-id bits, the former is not
/// allowed to such a caller; the latter must not fail, and its change is judged when it comes.
fn set_nothing(
    call: &Call<'_>,
    (ctx, node): (&OpCtx<'_>, &Node),
    valid: SetattrFields,
) -> Result<Attr> {
    const OF_KERNEL: SetattrFields = SetattrFields::FH.union(SetattrFields::KILL_SUIDGID);
    let vfs = &call.session.lane.vfs;
    let attr = vfs.getattr(ctx, node)?;
    let owns = ctx.is_root() || ctx.uid() == attr.uid;
    let has_bits = attr.perm & (libc::S_ISUID | libc::S_ISGID) != 0;
    match OF_KERNEL.contains(valid) && (owns || !has_bits) {
        true => vfs.setattr(ctx, node, &SetAttr::default()),
        false => Ok(attr),
    }
}

fn set_time(given: bool, now: bool, time: (u64, u32)) -> Result<Option<SetTime>> {
    if now {
        return Ok(Some(SetTime::Now));
    }
    if !given {
        return Ok(None);
    }
    match time {
        (sec, nsec @ 0..1_000_000_000) => Ok(Some(SetTime::At(Time { sec: sec as i64, nsec }))),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn access(call: &mut Call<'_>) -> End {
    let mask = call.args.record::<AccessIn>()?.mask.get();
    // Only sent without `default_permissions`: then nobody has checked.
    let cred = call.cred()?;
    let ctx = OpCtx { kernel_checked: false, ..call.ctx(&cred) };
    if !matches!(call.target()?, Target::Virtual(_)) {
        call.session.lane.vfs.access(&ctx, &call.node()?, mask)?;
    }
    Ok(Outcome::Reply)
}

/// Access control lists are kept where the kernel minds them: it checks permissions for this door.
fn supported(call: &Call<'_>, name: &[u8]) -> Result<()> {
    match name.starts_with(b"system.") && !call.session.has_acls() {
        true => Err(Errno::EOPNOTSUPP),
        false => Ok(()),
    }
}

pub(super) fn setxattr(call: &mut Call<'_>) -> End {
    const XATTR_CREATE: u32 = 1;
    const XATTR_REPLACE: u32 = 2;
    const BOTH: u32 = XATTR_CREATE | XATTR_REPLACE;
    let asked = *call.args.record::<SetxattrIn>()?;
    let extra = match call.session.has_setxattr_ext() {
        true => call.args.record::<SetxattrExt>()?.setxattr_flags.get(),
        false => 0,
    };
    let name = call.args.string()?;
    let value = call.args.bytes(asked.size.get() as usize)?;
    supported(call, name)?;
    let mode = match asked.flags.get() {
        0 => XattrMode::Any,
        XATTR_CREATE => XattrMode::Create,
        XATTR_REPLACE => XattrMode::Replace,
        // Neither can be so: the error is that of the one that fails.
        BOTH => {
            let there = call.session.lane.vfs.getxattr(
                &call.attr_ctx(&call.attr_cred()?)?,
                &call.node()?,
                name,
            );
            return Err(there.map_or_else(|errno| errno, |_| Errno::EEXIST).into());
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    let node = call.node()?;
    let cred = match (AclKind::from_name(name), call.target()?) {
        (Some(_), Target::Node(_)) => {
            let extra = SetxattrFlags::from_bits_retain(extra);
            call.writer(extra.contains(SetxattrFlags::ACL_KILL_SGID))
        }
        _ => call.attr_cred()?,
    };
    call.session.lane.vfs.setxattr(&call.attr_ctx(&cred)?, &node, name, value, mode)?;
    Ok(Outcome::Reply)
}

pub(super) fn removexattr(call: &mut Call<'_>) -> End {
    let name = call.args.string()?;
    supported(call, name)?;
    let node = call.node()?;
    call.session.lane.vfs.removexattr(&call.attr_ctx(&call.attr_cred()?)?, &node, name)?;
    Ok(Outcome::Reply)
}

pub(super) fn getxattr(call: &mut Call<'_>) -> End {
    let size = call.args.record::<GetxattrIn>()?.size.get();
    let name = call.args.string()?;
    supported(call, name)?;
    match call.target()? {
        Target::Virtual(_) => return Err(Errno::ENODATA.into()),
        // Nobody's file yet: the kernel asks before it lets a program at it.
        Target::Slot(slot) if slot.file().is_err() => return Err(Errno::ENODATA.into()),
        // The kernel remembers a list until it drops the state.
        Target::Node(node)
            if call.session.lane.remembers() && AclKind::from_name(name).is_some() =>
        {
            call.session.lane.vfs.is_told(&node);
        }
        _ => {}
    }
    let value =
        call.session.lane.vfs.getxattr(&call.attr_ctx(&call.attr_cred()?)?, &call.node()?, name)?;
    sized_reply(call, size, &value)
}

pub(super) fn listxattr(call: &mut Call<'_>) -> End {
    let size = call.args.record::<GetxattrIn>()?.size.get();
    let mut list = Vec::new();
    if !matches!(call.target()?, Target::Virtual(_)) {
        for name in call.session.lane.vfs.listxattr(&call.ctx(&call.cred()?), &call.node()?)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
    }
    sized_reply(call, size, &list)
}

/// The bytes, or how many there are when the caller's buffer has size 0. `ERANGE`: too small.
fn sized_reply(call: &mut Call<'_>, size: u32, bytes: &[u8]) -> End {
    if size == 0 {
        call.out.count(u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?);
    } else if bytes.len() > size as usize {
        return Err(Errno::ERANGE.into());
    } else {
        call.out.0.extend_from_slice(bytes);
    }
    Ok(Outcome::Reply)
}

pub(super) fn statfs(call: &mut Call<'_>) -> End {
    if call.session.lane.vfs.tells_nameless() && !call.deferred {
        return Err(Exit::Defer);
    }
    let (vfs, caller) = (&call.session.lane.vfs, call.caller());
    let totals = match call.node() {
        Ok(node) => vfs.statfs_at(&call.ctx(&caller), &node)?,
        // A directory that the service makes up, or what is gone: the lane has totals anyway.
        Err(_) => vfs.statfs(&call.ctx(&caller))?,
    };
    call.out.statfs(&totals);
    Ok(Outcome::Reply)
}

pub(super) fn syncfs(call: &mut Call<'_>) -> End {
    call.session.lane.vfs.sync(&call.ctx(&call.caller()))?;
    Ok(Outcome::Reply)
}
