//! Who may do what: decisions over owner, group, permission bits and access control lists.

use polylane_base::{Errno, Gid, Result};

use crate::ctx::OpCtx;
use crate::fs::{Kind, SET_GID};
use crate::inode::{FROZEN, Inode, ONLY_GROWS};
use crate::mapped;

/// `R_OK`: to read, or to list a directory.
pub(crate) const READ: u32 = 4;
/// `W_OK`: to write, or to change a directory's entries.
pub(crate) const WRITE: u32 = 2;
/// `X_OK`: to execute, or to search a directory.
pub(crate) const EXEC: u32 = 1;

pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const STICKY: u32 = 0o1000;
pub(crate) const GROUP_EXEC: u32 = 0o010;
/// The rights of the group, or of the mask of an access control list.
pub(crate) const GROUP_CLASS: u32 = 0o070;

/// `EACCES` unless `ctx` has every right in `mask` on `inode`, `EPERM` for writing what is
/// immutable; the errors of reading its list.
pub(crate) fn check(ctx: &OpCtx<'_>, inode: &Inode, mask: u32) -> Result<()> {
    if mask & WRITE != 0 && inode.has(FROZEN) {
        return Err(Errno::EPERM);
    }
    if mask & WRITE != 0 && is_nobodys(inode) {
        return Err(Errno::EACCES);
    }
    if ctx.kernel_checked || grants(ctx, inode, mask)? { Ok(()) } else { Err(Errno::EACCES) }
}

/// Whether its owner or group has no number here: nobody changes it, and root's capabilities do not
/// count, as in the kernel.
pub(crate) fn is_nobodys(inode: &Inode) -> bool {
    mapped::is_nobodys(inode.uid(), inode.gid())
}

/// Whether `ctx` has every right in `mask` on `inode`.
fn grants(ctx: &OpCtx<'_>, inode: &Inode, mask: u32) -> Result<bool> {
    let perm = inode.perm();
    if ctx.is_root() && !is_nobodys(inode) {
        // CAP_DAC_OVERRIDE: everything, but a file that nobody may execute is not executable.
        return Ok(mask & EXEC == 0 || inode.is_dir() || perm & 0o111 != 0);
    }
    // Exactly one class counts, also where a wider one would grant more.
    if inode.uid() == ctx.uid() {
        return Ok(perm >> 6 & mask == mask);
    }
    let (perm, acl) = inode.rights(ctx)?;
    if let Some(acl) = acl {
        return Ok(acl.permits(ctx, inode.gid(), mask));
    }
    let class = if ctx.in_group(inode.gid()) { perm >> 3 } else { perm };
    Ok(class & mask == mask)
}

/// `EPERM` unless `ctx` owns `inode`.
pub(crate) fn check_owner(ctx: &OpCtx<'_>, inode: &Inode) -> Result<()> {
    let is_root = ctx.is_root() && !is_nobodys(inode);
    if ctx.kernel_checked || is_root || ctx.uid() == inode.uid() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Whether `ctx` may add names to `dir`.
pub(crate) fn check_add(ctx: &OpCtx<'_>, dir: &Inode) -> Result<()> {
    check(ctx, dir, WRITE | EXEC)
}

/// Whether `ctx` may remove the name of `victim` from `dir`, sticky directories and inode flags
/// included.
pub(crate) fn check_remove(ctx: &OpCtx<'_>, dir: &Inode, victim: &Inode) -> Result<()> {
    check(ctx, dir, WRITE | EXEC)?;
    if is_nobodys(victim) {
        return Err(Errno::EOVERFLOW);
    }
    if dir.has(ONLY_GROWS) || victim.has(FROZEN | ONLY_GROWS) {
        return Err(Errno::EPERM);
    }
    let owns = || ctx.uid() == dir.uid() || ctx.uid() == victim.uid();
    if dir.perm() & STICKY == 0 || ctx.kernel_checked || ctx.is_root() || owns() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Group and permission bits of a new inode in `dir`: group and set-gid bit come from a set-gid
/// directory, a set-gid program only from members of its group. It is one by the bits that were
/// `asked` for, before the umask or a default list left `perm` of them.
pub(crate) fn inherit(
    ctx: &OpCtx<'_>,
    dir: &Inode,
    kind: Kind,
    (asked, perm): (u32, u32),
) -> (Gid, u32) {
    if dir.perm() & SET_GID == 0 {
        return (ctx.gid(), perm);
    }
    let gid = dir.gid();
    if kind == Kind::Dir {
        return (gid, perm | SET_GID);
    }
    let program = SET_GID | GROUP_EXEC;
    if asked & program == program && !ctx.has_fsetid() && !ctx.in_group(gid) {
        return (gid, perm & !SET_GID);
    }
    (gid, perm)
}

/// `perm` of `inode` after a change by `ctx` (`None`: by nobody in particular) that takes set-id
/// bits away: set-uid always, set-gid where it means "run as the group", and for who is not a
/// known as a member of the group also where it does not (`setattr_should_drop_sgid` of Linux). The
/// kernel's checks say nothing of that: with HANDLE_KILLPRIV_V2 it leaves all of this to us.
pub(crate) fn without_set_id(ctx: Option<&OpCtx<'_>>, inode: &Inode, perm: u32) -> u32 {
    let keeps = perm & GROUP_EXEC == 0 && ctx.is_some_and(|ctx| keeps_set_gid(ctx, inode));
    perm & !(SET_UID | if keeps { 0 } else { SET_GID })
}

/// Whether the set-gid bit of `inode` may stay in a mode that `ctx` sets.
pub(crate) fn keeps_set_gid(ctx: &OpCtx<'_>, inode: &Inode) -> bool {
    ctx.has_fsetid() || ctx.in_group(inode.gid())
}
