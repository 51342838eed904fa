//! Attributes: getattr, setattr and its rules, access(2), access times.

use polylane_base::{Errno, Gid, Result, Time, Uid};

use crate::access::{self, SET_UID, WRITE};
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::flags;
use crate::fs::{Attr, Kind, SET_GID, SetAttr, SetTime};
use crate::inode::{ATIME_DUE, ATIME_STAYS, Inode, LENT, Node};
use crate::mapped::NOBODY;
use crate::vfs::Vfs;

/// `relatime` moves an access time at least once in this many seconds.
const ATIME_AGE_MAX_SECONDS: i64 = 24 * 60 * 60;

impl Vfs {
    /// The state of an inode.
    pub fn getattr(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<Attr> {
        self.begin();
        self.core.settle(node);
        self.core.end_loan_on(node);
        Vfs::attr_of(ctx, node)
    }

    /// As [`Vfs::getattr`], but a loan on which nothing was written goes on. What its client writes
    /// next changes the state, and no mark: who is told must not remember it.
    pub fn getattr_beside_loan(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<Attr> {
        self.begin();
        self.core.settle(node);
        if node.has(LENT) && !self.core.is_unwritten(node) {
            self.core.end_loan_on(node);
        }
        Vfs::attr_of(ctx, node)
    }

    fn attr_of(ctx: &OpCtx<'_>, node: &Node) -> Result<Attr> {
        let attr = *node.fresh_attr(ctx)?;
        Ok(Vfs::with_blocks_to_come(node, attr))
    }

    /// A state with the space that delayed writes are going to take.
    pub(crate) fn with_blocks_to_come(node: &Node, mut attr: Attr) -> Attr {
        if let Some(pages) = node.pages_used() {
            // Space of delayed writes is not allocated yet, but programs take a file with fewer
            // blocks than bytes for a sparse one.
            attr.blocks += pages.blocks_to_come(&attr);
        }
        attr
    }

    /// Changes the state of an inode as chmod(2), chown(2), truncate(2) and utimensat(2) may;
    /// returns the new state. A change without a field is chown(-1, -1): the change time moves, and
    /// set-id bits and capabilities go. `EPERM` for other owners' inodes and where [`flags`] forbid
    /// it, `EACCES`, `EISDIR` and `EINVAL` for the size of what is not a regular file, `EINVAL` for
    /// an owner or group that is [`NOBODY`], `EFBIG`.
    ///
    /// ftruncate(2) needs no right on the inode, only a file that is open for writing: a front end
    /// that checked that says `kernel_checked`.
    pub fn setattr(&self, ctx: &OpCtx<'_>, node: &Node, set: &SetAttr) -> Result<Attr> {
        self.begin();
        self.core.writable()?;
        let mut set = *set;
        if set.size.is_some() {
            check_sizable(node)?;
        }
        if set == SetAttr::default() && self.core.character.volatile {
            // What needs a right depends on the mode, which others of the host may have changed.
            drop(node.fresh_attr(ctx)?);
        }
        check_set(ctx, node, &set)?;
        flags::check_set(node, &set)?;
        match set.size {
            Some(size) if size > self.core.character.max_file_size => Err(Errno::EFBIG),
            Some(_) => {
                let _data = self.core.lock_exclusive(node);
                self.core.begins_to_change(node);
                node.data_changes(0, u64::MAX);
                self.core.kill_caps(ctx, node)?;
                apply_rules(ctx, node, &mut set);
                self.core.follow_mode(ctx, node, &set)?;
                self.core.resize(ctx, node, &set)
            }
            None => {
                // Times that are set now come after those of what was written before.
                let is_file = node.kind() == Kind::File;
                let _data = is_file.then(|| self.core.lock_shared_as(ctx, node)).transpose()?;
                let rights = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
                let _announced = (node.is_dir() && rights).then(|| self.core.change_paths());
                let _entries = node.is_dir().then(|| self.core.lock_entries(ctx, node));
                if is_chown(&set) {
                    self.core.kill_caps(ctx, node)?;
                }
                apply_rules(ctx, node, &mut set);
                self.core.follow_mode(ctx, node, &set)?;
                self.core.set(ctx, node, &set)
            }
        }
    }

    /// access(2) with the rights of `ctx`: `mask` of `R_OK` 4, `W_OK` 2, `X_OK` 1. `EACCES`,
    /// `EROFS`.
    pub fn access(&self, ctx: &OpCtx<'_>, node: &Node, mask: u32) -> Result<()> {
        self.begin();
        let stores = matches!(node.kind(), Kind::File | Kind::Dir | Kind::Symlink);
        if mask & WRITE != 0 && stores {
            self.core.writable()?;
        }
        access::check(ctx, node, mask & 7)
    }
}

/// Whether it has a size that can be set; asked before any right is.
fn check_sizable(node: &Inode) -> Result<()> {
    match node.kind() {
        Kind::File => Ok(()),
        Kind::Dir => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether it is a change as by chown(2), which may leave both owner and group as they are.
fn is_chown(set: &SetAttr) -> bool {
    set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default()
}

/// Who may ask for what.
fn check_set(ctx: &OpCtx<'_>, node: &Inode, set: &SetAttr) -> Result<()> {
    if set.uid == Some(Uid(NOBODY)) || set.gid == Some(Gid(NOBODY)) {
        return Err(Errno::EINVAL);
    }
    let stays = (set.uid.is_none() && node.uid().0 == NOBODY)
        || (set.gid.is_none() && node.gid().0 == NOBODY);
    if stays && !ctx.kernel_checked {
        return Err(Errno::EOVERFLOW);
    }
    if ctx.kernel_checked || ctx.is_root() {
        return Ok(());
    }
    if let Some(uid) = set.uid {
        // Giving away needs CAP_CHOWN; "to myself" is no change.
        if ctx.uid() != node.uid() || uid != node.uid() {
            return Err(Errno::EPERM);
        }
    }
    let member = |gid| gid == node.gid() || ctx.in_group(gid);
    if set.gid.is_some_and(|gid| ctx.uid() != node.uid() || !member(gid)) {
        return Err(Errno::EPERM);
    }
    // chown(-1, -1) needs a right only where it changes the mode.
    let perm = node.perm();
    let loses_bits = !node.is_dir() && access::without_set_id(Some(ctx), node, perm) != perm;
    if set.perm.is_some() || *set == SetAttr::default() && loses_bits {
        access::check_owner(ctx, node)?;
    }
    if set.size.is_some() {
        access::check(ctx, node, WRITE)?;
    }
    check_set_times(ctx, node, set)
}

/// Any time for the owner; "now" for both also for those who may write.
fn check_set_times(ctx: &OpCtx<'_>, node: &Inode, set: &SetAttr) -> Result<()> {
    if set.atime.is_none() && set.mtime.is_none() || ctx.uid() == node.uid() {
        return Ok(());
    }
    if set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now) {
        return access::check(ctx, node, WRITE);
    }
    Err(Errno::EPERM)
}

/// What a change brings with it: set-id bits go where ownership or contents change.
fn apply_rules(ctx: &OpCtx<'_>, node: &Inode, set: &mut SetAttr) {
    if let Some(perm) = set.perm.as_mut() {
        *perm &= 0o7777;
        let gid = set.gid.unwrap_or(node.gid());
        if !ctx.kernel_checked && !ctx.has_fsetid() && !ctx.in_group(gid) {
            *perm &= !SET_GID;
        }
    }
    let new_owner = is_chown(set) && !node.is_dir();
    let new_data = set.size.is_some() && !ctx.has_fsetid();
    if new_owner || new_data {
        let perm = set.perm.unwrap_or(node.perm());
        let less = access::without_set_id(Some(ctx), node, perm);
        if less != perm {
            set.perm = Some(less);
        }
    }
}

impl Core {
    /// Applies changes that leave the size alone.
    pub(crate) fn set(&self, ctx: &OpCtx<'_>, node: &Inode, set: &SetAttr) -> Result<Attr> {
        let mut held = node.attr();
        let new = self.fs.setattr(ctx, node.ino(), set)?;
        // What is set explicitly wins over what a delayed write left to be told.
        if set.size.is_some() {
            held.size = new.size;
        }
        if set.size.is_some() || set.mtime.is_some() {
            held.mtime = new.mtime;
        }
        held.ctime = new.ctime;
        node.keep(&mut held, new);
        Ok(*held)
    }

    /// Before a change of data by `ctx` (`None`: by nobody in particular): set-id bits and
    /// capabilities go.
    pub(crate) fn kill_set_id(&self, ctx: Option<&OpCtx<'_>>, node: &Inode) -> Result<()> {
        let acting = ctx.copied().unwrap_or(OpCtx::service());
        self.kill_caps(&acting, node)?;
        let perm = node.perm();
        if perm & (SET_UID | SET_GID) == 0 || ctx.is_some_and(OpCtx::has_fsetid) {
            return Ok(());
        }
        let mut held = node.attr();
        let less = access::without_set_id(ctx, node, held.perm);
        if less == held.perm {
            return Ok(());
        }
        let set = SetAttr { perm: Some(less), ..SetAttr::default() };
        let new = self.fs.setattr(&acting, node.ino(), &set)?;
        node.keep(&mut held, new);
        Ok(())
    }

    /// Moves the access time of something that was read (`relatime`). Failure is no failure of the
    /// read, so there is none. Call without the lock of the inode's entries or data.
    pub(crate) fn touch(&self, ctx: &OpCtx<'_>, node: &Inode) {
        node.lower(ATIME_DUE);
        // What a volatile file system lies on keeps access times itself.
        if self.character.read_only || self.character.volatile {
            return;
        }
        // The change time is given back as it is known, so nothing may change contents meanwhile.
        let _contents = node.lock.read();
        self.accessed(ctx, node, self.now(ctx));
    }

    /// Sets the access time. Call with the lock of the inode's entries or data.
    pub(crate) fn accessed(&self, ctx: &OpCtx<'_>, node: &Inode, time: Time) {
        let Ok(mut held) = node.fresh_attr(ctx) else { return };
        // What was fresh said that it was due.
        node.lower(ATIME_DUE);
        let atime = Some(SetTime::At(time));
        let set = SetAttr { atime, ctime: Some(held.ctime), ..SetAttr::default() };
        match self.fs.setattr(ctx, node.ino(), &set) {
            // As a union leaves that of what lies in a lower: nothing changed, also for those who
            // were told the state, and the next read is not to ask again.
            Ok(new) if new.atime == held.atime && time != held.atime => node.raise(ATIME_STAYS),
            Ok(new) => node.keep(&mut held, new),
            Err(_) => {}
        }
    }

    /// Makes the next read move an access time that is a day old. Called when a file is opened:
    /// asking the clock at every read would cost more than the read.
    pub(crate) fn age_atime(&self, ctx: &OpCtx<'_>, node: &Inode) {
        if !node.has(ATIME_DUE) && self.now(ctx).sec - node.attr().atime.sec > ATIME_AGE_MAX_SECONDS
        {
            node.atime_is_due();
        }
    }

    /// Changes the size, and what else `set` says. Call with the data lock held for change.
    pub(crate) fn resize(&self, ctx: &OpCtx<'_>, node: &Inode, set: &SetAttr) -> Result<Attr> {
        match (node.pages(), set.size) {
            (Some(pages), Some(size)) => self.cached_resize(ctx, node, pages, size, set),
            _ => self.set(ctx, node, set),
        }
    }
}
