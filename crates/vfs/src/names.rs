//! Names: lookup, create, link, unlink, rmdir, readlink. Rename has its own file.
//!
//! Every change follows one pattern: check, lock the directory's entries, look at what is there,
//! ask the libservice, keep the states it returned, bring the dentry table up to date, unlock.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};

use crate::access::{self, EXEC};
use crate::acls::Inherited;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::flags;
use crate::fs::{Kind, NewNode, SetAttr};
use crate::handover::Op;
use crate::inode::{ATIME_DUE, FROZEN, Inode, LEASED, LINKABLE, Node, ONLY_GROWS, STALE};
use crate::vfs::{Create, Vfs};
use crate::walk::{NAME_MAX, PATH_MAX};

/// Refuses what can never be a name that is made or removed.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// `ENOTDIR` unless `dir` is a directory.
pub(crate) fn check_dir(dir: &Inode) -> Result<()> {
    if dir.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR) }
}

/// `ENOENT` when `dir` was removed. Call with its entries locked.
pub(crate) fn check_alive(dir: &Inode) -> Result<()> {
    if dir.nlink() == 0 { Err(Errno::ENOENT) } else { Ok(()) }
}

/// `EEXIST` when `name` exists, else `denied`: an existing name is reported before a missing right.
fn exists_or(ctx: &OpCtx<'_>, core: &Arc<Core>, dir: &Node, name: &[u8], denied: Errno) -> Errno {
    match core.child_locked(ctx, dir, name) {
        Ok(_) => Errno::EEXIST,
        Err(_) => denied,
    }
}

/// The permission bits that each way of creating can set.
fn new_perm(new: &Create<'_>) -> u32 {
    match new.kind {
        Kind::Symlink => 0o777,
        Kind::Dir => new.perm & 0o1777,
        _ => new.perm & 0o7777,
    }
}

/// Refuses what `ctx` must not create, whatever the directory says.
fn check_create(ctx: &OpCtx<'_>, new: &Create<'_>) -> Result<()> {
    let is_whiteout = new.kind == Kind::Char && new.rdev == 0;
    match new.kind {
        // CAP_MKNOD; a whiteout is free for all.
        Kind::Char | Kind::Block if !is_whiteout && !ctx.is_root() && !ctx.kernel_checked => {
            Err(Errno::EPERM)
        }
        Kind::Symlink if new.target.is_empty() => Err(Errno::ENOENT),
        Kind::Symlink if new.target.len() > PATH_MAX => Err(Errno::ENAMETOOLONG),
        Kind::Symlink if new.target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// `EPERM` for directories, and what is held by inode flags.
fn check_may_be_linked(node: &Inode) -> Result<()> {
    if access::is_nobodys(node) {
        return Err(Errno::EOVERFLOW);
    }
    let held = node.is_dir() || node.has(FROZEN | ONLY_GROWS);
    if held { Err(Errno::EPERM) } else { Ok(()) }
}

/// Whether `node` may be given one more name. Call with its state locked.
fn check_linkable(core: &Core, node: &Inode) -> Result<()> {
    match node.nlink() {
        0 if !node.has(LINKABLE) => Err(Errno::ENOENT),
        count if count >= core.character.max_links => Err(Errno::EMLINK),
        _ => Ok(()),
    }
}

impl Core {
    /// What a former service made of this very request, brought to its end; else, where there is
    /// nothing of that name, notes that it is about to be made.
    fn made_before(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Option<Node>> {
        match self.child_locked(ctx, dir, name) {
            Err(Errno::ENOENT) => ctx.intend(Op::Make, [0; 4]),
            // It was not there when the former service began.
            Ok(node) if ctx.former(Op::Make).is_some() && node.kind() == new.kind => {
                let (uid, gid) = (Some(new.uid), Some(new.gid));
                let perm = (new.kind != Kind::Symlink).then_some(new.perm);
                let set = SetAttr { perm, uid, gid, ..SetAttr::default() };
                node.keep_now(self.fs.setattr(ctx, node.ino(), &set)?);
                return Ok(Some(node));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Whether a former service removed a name on behalf of this very request; `found` is what it
    /// names now.
    fn removed_before(&self, ctx: &OpCtx<'_>, found: &Result<Node>) -> bool {
        match (ctx.former(Op::Remove), found) {
            (Some(_), Err(errno)) => *errno == Errno::ENOENT,
            (Some([ino, generation, ..]), Ok(node)) => !is(node, ino, generation),
            (None, _) => false,
        }
    }

    /// Notes that an inode is about to lose a name.
    fn removes(&self, ctx: &OpCtx<'_>, victim: &Node) {
        ctx.intend(Op::Remove, [victim.ino().0, victim.generation(), 0, 0]);
    }

    /// Removes the last name of an inode that nobody else holds, and ends it with it: it is put
    /// into `over`, to be dropped without locks.
    fn unlink_last(
        &self,
        ctx: &OpCtx<'_>,
        (dir, name): (&Inode, &[u8]),
        victim: Node,
        over: &mut Option<Inode>,
    ) -> Result<Unlinked> {
        // The table of names has it, and we.
        if victim.nlink() != 1 || self.cache.holders(&victim) != 2 {
            return Ok(Unlinked::NotYet(victim));
        }
        let mut held = Some(victim);
        let mut is_over = || {
            match held.take().map(|node| self.take_alone(dir, name, node)) {
                Some(Ok(inode)) => *over = Some(inode),
                Some(Err(node)) => held = Some(node),
                None => {}
            }
            over.is_some()
        };
        let last = self.fs.unlink_last(ctx, dir.ino(), name, &mut is_over)?;
        if let Some(last) = &last {
            dir.keep_now(last.dir);
        }
        match (last, over, held) {
            (Some(last), Some(inode), _) => {
                inode.ended(last.is_freed);
                Ok(Unlinked::Over)
            }
            (Some(_), None, Some(node)) => {
                // Somebody came to it meanwhile, and may change it: its state is asked for in turn.
                node.raise(STALE);
                drop(node.fresh_attr(ctx)?);
                self.cache.unlinked(&node);
                Ok(Unlinked::Held(node))
            }
            (None, None, Some(node)) => Ok(Unlinked::NotYet(node)),
            // Asked and not done, which no libservice does.
            _ => Err(Errno::EIO),
        }
    }

    /// Takes an inode from all who hold it for its name alone; gives it back where others do. From
    /// then on nobody comes to it by its number, or by what refers to it weakly.
    fn take_alone(&self, dir: &Inode, name: &[u8], node: Node) -> Result<Inode, Node> {
        self.dentries.remove(dir.id, name);
        self.cache.let_go(&node);
        Arc::try_unwrap(node)
    }

    /// Whether a former service gave `node` this name on behalf of this very request; else notes
    /// that it is about to get it.
    fn linked_before(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        node: &Node,
        dir: &Node,
        name: &[u8],
    ) -> bool {
        match self.child_locked(ctx, dir, name) {
            Err(Errno::ENOENT) => {
                ctx.intend(Op::Link, [0; 4]);
                false
            }
            Ok(found) => ctx.former(Op::Link).is_some() && found.id == node.id,
            Err(_) => false,
        }
    }
}

/// What became of an inode whose last name was to be removed with it.
enum Unlinked {
    /// It is over.
    Over,
    /// It lost its name, and lives on while it is held.
    Held(Node),
    /// It has its name still.
    NotYet(Node),
}

/// Whether this is the inode of that number and generation.
pub(crate) fn is(node: &Inode, ino: u64, generation: u64) -> bool {
    node.ino().0 == ino && node.generation() == generation
}

impl Vfs {
    /// Finds `name` in `dir`; `.` and `..` too. `ENOENT`, `ENOTDIR`, `EACCES`, `ENAMETOOLONG`.
    pub fn lookup(&self, ctx: &OpCtx<'_>, dir: &Node, name: &[u8]) -> Result<Node> {
        self.begin();
        check_dir(dir)?;
        access::check(ctx, dir, EXEC)?;
        match name {
            b"." => return Ok(dir.clone()),
            b".." => return Ok(dir.parent()),
            _ => check_name(name)?,
        }
        self.core.look(ctx, dir, || self.core.child(ctx, dir, name))
    }

    /// What `name` in `dir` names, as far as the dentry table has it. No permission is asked for,
    /// and nothing is looked up: for a front end that keeps the kernel's names in step.
    pub fn known_child(&self, dir: &Node, name: &[u8]) -> Option<Node> {
        self.core.known_child(dir, name).and_then(Result::ok)
    }

    /// Whether the dentry table is asked at all: not where files change behind our back.
    pub fn keeps_names(&self) -> bool {
        !self.core.character.volatile
    }

    /// Creates `name` in `dir`. The owner is `ctx`, the group `ctx`'s or, in a set-gid directory,
    /// the directory's. `EEXIST` when the name exists.
    pub fn create(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        new: &Create<'_>,
    ) -> Result<Node> {
        self.begin();
        check_dir(dir)?;
        match name {
            b"." | b".." => return Err(Errno::EEXIST),
            _ => check_name(name)?,
        }
        self.core.with_room(ctx, || {
            let _entries = self.core.lock_entries(ctx, dir);
            self.create_locked(ctx, dir, name, new)
        })
    }

    /// [`create`](Self::create) with the entries of `dir` locked for change.
    pub(crate) fn create_locked(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        new: &Create<'_>,
    ) -> Result<Node> {
        let core = &self.core;
        let allowed = core
            .writable()
            .and_then(|()| access::check_add(ctx, dir))
            .and_then(|()| check_create(ctx, new));
        if let Err(denied) = allowed {
            return Err(exists_or(ctx, core, dir, name, denied));
        }
        check_alive(dir)?;
        if new.kind == Kind::Dir && dir.nlink() >= core.character.max_dir_links {
            return Err(exists_or(ctx, core, dir, name, Errno::EMLINK));
        }
        let inherited = Inherited::new(ctx, dir, new.kind, new_perm(new), new.umask)?;
        let (gid, perm) = access::inherit(ctx, dir, new.kind, (new_perm(new), inherited.perm));
        let node = NewNode {
            kind: new.kind,
            perm,
            uid: ctx.uid(),
            gid,
            rdev: if matches!(new.kind, Kind::Char | Kind::Block) { new.rdev } else { 0 },
            target: if new.kind == Kind::Symlink { new.target } else { b"" },
            acls: inherited.acls(),
            flags: flags::inherited(dir, new.kind),
        };
        if ctx.is_once()
            && let Some(made) = core.made_before(ctx, dir, name, &node)?
        {
            return Ok(made);
        }
        core.name_changes(dir, name);
        let changed = core.create(ctx, dir, name, &node)?;
        dir.keep_now(changed.dir);
        let node = core.adopt_new(changed.node, Some(dir), inherited);
        core.dentries.put(dir.id, name, Some(&node));
        Ok(node)
    }

    /// Creates a regular file without a name (`O_TMPFILE`), on the file system of `dir`. It lives
    /// while it is held, or until `link` gives it a name.
    pub fn create_unlinked(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        perm: u32,
        umask: u32,
    ) -> Result<Node> {
        self.begin();
        check_dir(dir)?;
        self.core.writable()?;
        access::check_add(ctx, dir)?;
        self.core.with_room(ctx, || {
            let _entries = self.core.lock_entries(ctx, dir);
            check_alive(dir)?;
            let inherited = Inherited::new(ctx, dir, Kind::File, perm & 0o7777, umask)?;
            let (gid, perm) = access::inherit(ctx, dir, Kind::File, (perm, inherited.perm));
            let (kind, uid, rdev, acls) = (Kind::File, ctx.uid(), 0, inherited.acls());
            let flags = flags::inherited(dir, kind);
            let new = NewNode { kind, perm, uid, gid, rdev, target: b"", acls, flags };
            let attr = self.core.fs.create_unlinked(ctx, dir.ino(), &new)?;
            let node = self.core.adopt_new(attr, None, inherited);
            node.raise(LINKABLE);
            Ok(node)
        })
    }

    /// Gives `node` one more name. `EPERM` for directories, `EEXIST`, `EMLINK`, `ENOENT` for an
    /// inode whose last name is gone.
    pub fn link(&self, ctx: &OpCtx<'_>, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.begin();
        check_dir(dir)?;
        match name {
            b"." | b".." => return Err(Errno::EEXIST),
            _ => check_name(name)?,
        }
        // Others may see the file by its new name from now on.
        self.core.end_leases_of(ctx);
        self.core.with_room(ctx, || self.link_once(ctx, node, dir, name))
    }

    fn link_once(&self, ctx: &OpCtx<'_>, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let core = &self.core;
        let _entries = core.lock_entries(ctx, dir);
        let allowed = core
            .writable()
            .and_then(|()| access::check_add(ctx, dir))
            .and_then(|()| check_may_be_linked(node));
        if let Err(denied) = allowed {
            return Err(exists_or(ctx, core, dir, name, denied));
        }
        check_alive(dir)?;
        if ctx.is_once() && core.linked_before(ctx, node, dir, name) {
            return Ok(());
        }
        let mut attr = node.attr();
        if let Err(refused) = check_linkable(core, node) {
            drop(attr);
            return Err(exists_or(ctx, core, dir, name, refused));
        }
        core.name_changes(dir, name);
        let changed = core.fs.link(ctx, node.ino(), dir.ino(), name)?;
        node.lower(LINKABLE);
        node.keep(&mut attr, changed.node);
        drop(attr);
        dir.keep_now(changed.dir);
        core.cache.linked(node);
        core.dentries.put(dir.id, name, Some(node));
        Ok(())
    }

    /// Removes a name that is not a directory's. The inode lives on while it is held. `EISDIR`.
    pub fn unlink(&self, ctx: &OpCtx<'_>, dir: &Node, name: &[u8]) -> Result<()> {
        self.take_unlinked(ctx, dir, name).map(drop)
    }

    /// [`unlink`](Self::unlink), and the inode that lost its name; `None` when that is over, or a
    /// former service removed it. After a streamed call [`Vfs::lost_a_name`] is to be told.
    pub fn take_unlinked(&self, ctx: &OpCtx<'_>, dir: &Node, name: &[u8]) -> Result<Option<Node>> {
        let victim = self.unlink_once(ctx, dir, name)?;
        if let Some(victim) = victim.as_ref().filter(|_| !ctx.streamed) {
            self.core.lost_a_name(victim);
        }
        Ok(victim)
    }

    fn unlink_once(&self, ctx: &OpCtx<'_>, dir: &Node, name: &[u8]) -> Result<Option<Node>> {
        self.begin();
        check_dir(dir)?;
        check_name(name)?;
        // Declared before the lock, dropped after it: this may be the last reference.
        let victim;
        let mut over = None;
        let core = &self.core;
        let _entries = core.lock_entries(ctx, dir);
        victim = core.child_locked(ctx, dir, name);
        if core.removed_before(ctx, &victim) {
            return Ok(None);
        }
        let victim = victim?;
        core.writable()?;
        access::check_remove(ctx, dir, &victim)?;
        if victim.is_dir() {
            return Err(Errno::EISDIR);
        }
        core.removes(ctx, &victim);
        // Paths may lead through a link.
        let _moving = (victim.kind() == Kind::Symlink).then(|| core.marks.moving());
        core.name_changes(dir, name);
        let victim = match core.unlink_last(ctx, (dir, name), victim, &mut over)? {
            Unlinked::NotYet(victim) => victim,
            Unlinked::Held(victim) => return Ok(Some(victim)),
            Unlinked::Over => return Ok(None),
        };
        let mut attr = victim.attr();
        let changed = core.fs.unlink(ctx, dir.ino(), name)?;
        victim.keep(&mut attr, changed.node);
        drop(attr);
        dir.keep_now(changed.dir);
        core.cache.unlinked(&victim);
        core.dentries.remove(dir.id, name);
        Ok(Some(victim))
    }

    /// Removes an empty directory. `ENOTEMPTY`, `ENOTDIR`, `EINVAL` for `.`, `ENOTEMPTY` for `..`.
    pub fn rmdir(&self, ctx: &OpCtx<'_>, dir: &Node, name: &[u8]) -> Result<()> {
        self.take_removed_dir(ctx, dir, name).map(drop)
    }

    /// [`rmdir`](Self::rmdir), and the directory that lost its name; `None` as
    /// [`take_unlinked`](Self::take_unlinked).
    pub fn take_removed_dir(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<Node>> {
        self.begin();
        check_dir(dir)?;
        match name {
            b".." => return Err(Errno::ENOTEMPTY),
            _ => check_name(name)?,
        }
        let core = &self.core;
        loop {
            let victim;
            let entries = core.lock_entries(ctx, dir);
            victim = core.child_locked(ctx, dir, name);
            if core.removed_before(ctx, &victim) {
                return Ok(None);
            }
            let victim = victim?;
            core.writable()?;
            access::check_remove(ctx, dir, &victim)?;
            check_dir(&victim)?;
            // Nothing may be created in it between the libservice's look and its end.
            let inside = victim.lock.write();
            if victim.has(LEASED) {
                drop((inside, entries));
                core.end_lease_on(&victim);
                continue;
            }
            core.removes(ctx, &victim);
            let _moving = core.marks.moving();
            core.name_changes(dir, name);
            let mut changed = core.fs.rmdir(ctx, dir.ino(), name)?;
            changed.node.nlink = 0;
            victim.keep_now(changed.node);
            drop(inside);
            dir.keep_now(changed.dir);
            core.dentries.remove(dir.id, name);
            return Ok(Some(victim));
        }
    }

    /// The target of a symbolic link. `EINVAL` for anything else.
    pub fn readlink(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<Vec<u8>> {
        self.begin();
        let target = node.target(ctx)?.to_vec();
        if node.has(ATIME_DUE) {
            self.core.touch(ctx, node);
        }
        Ok(target)
    }
}
