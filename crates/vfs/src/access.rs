//! Who may do what: pure decisions over owner, group and permission bits.

use polylane_base::{Errno, Gid, Result};

use crate::cred::Cred;
use crate::fs::Kind;
use crate::inode::Inode;

/// `R_OK`: to read, or to list a directory.
pub(crate) const READ: u32 = 4;
/// `W_OK`: to write, or to change a directory's entries.
pub(crate) const WRITE: u32 = 2;
/// `X_OK`: to execute, or to search a directory.
pub(crate) const EXEC: u32 = 1;

pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;
pub(crate) const GROUP_EXEC: u32 = 0o010;

/// `EACCES` unless `cred` has every right in `mask` on `inode`.
pub(crate) fn check(cred: &Cred, inode: &Inode, mask: u32) -> Result<()> {
    if cred.kernel_checked || granted(cred, inode) & mask == mask {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// The rights that `cred` has on `inode`.
fn granted(cred: &Cred, inode: &Inode) -> u32 {
    let perm = inode.perm();
    if cred.is_root() {
        // CAP_DAC_OVERRIDE: everything, but a file that nobody may execute is not executable.
        let exec = inode.is_dir() || perm & 0o111 != 0;
        return READ | WRITE | if exec { EXEC } else { 0 };
    }
    // Exactly one class counts, also where a wider one would grant more.
    if inode.uid() == cred.uid {
        perm >> 6 & 7
    } else if cred.in_group(inode.gid()) {
        perm >> 3 & 7
    } else {
        perm & 7
    }
}

/// `EPERM` unless `cred` owns `inode`.
pub(crate) fn check_owner(cred: &Cred, inode: &Inode) -> Result<()> {
    if cred.kernel_checked || cred.is_root() || cred.uid == inode.uid() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Whether `cred` may add names to `dir`.
pub(crate) fn check_add(cred: &Cred, dir: &Inode) -> Result<()> {
    check(cred, dir, WRITE | EXEC)
}

/// Whether `cred` may remove the name of `victim` from `dir`, sticky directories included.
pub(crate) fn check_remove(cred: &Cred, dir: &Inode, victim: &Inode) -> Result<()> {
    check(cred, dir, WRITE | EXEC)?;
    let owns = || cred.uid == dir.uid() || cred.uid == victim.uid();
    if dir.perm() & STICKY == 0 || cred.kernel_checked || cred.is_root() || owns() {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Group and permission bits of a new inode in `dir`: group and set-gid bit come from a set-gid
/// directory, a set-gid program only from members of its group.
pub(crate) fn inherit(cred: &Cred, dir: &Inode, kind: Kind, perm: u32) -> (Gid, u32) {
    if dir.perm() & SET_GID == 0 {
        return (cred.gid, perm);
    }
    let gid = dir.gid();
    if kind == Kind::Dir {
        return (gid, perm | SET_GID);
    }
    let program = SET_GID | GROUP_EXEC;
    if perm & program == program && !cred.is_root() && !cred.in_group(gid) {
        return (gid, perm & !SET_GID);
    }
    (gid, perm)
}

/// `perm` of `inode` after a change by `cred` (`None`: by nobody in particular) that takes set-id
/// bits away: set-uid always, set-gid where it means "run as the group", and for who is not a
/// known as a member of the group also where it does not (`setattr_should_drop_sgid` of Linux). The
/// kernel's checks say nothing of that: with HANDLE_KILLPRIV_V2 it leaves all of this to us.
pub(crate) fn without_set_id(cred: Option<&Cred>, inode: &Inode, perm: u32) -> u32 {
    let member = |cred: &Cred| cred.is_root() || cred.in_group(inode.gid());
    let keeps = perm & GROUP_EXEC == 0 && cred.is_some_and(member);
    perm & !(SET_UID | if keeps { 0 } else { SET_GID })
}
