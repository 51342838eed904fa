//! renameat2(2).
//!
//! # Locking
//!
//! `renaming → the upper directory's entries → the lower one's → entries of directories that move
//! or are replaced → attr`. Two directories of which neither lies above the other are taken in the
//! order of their ids; this is free of deadlock because only one rename between two directories
//! runs at a time (`renaming`), and everything else locks from a parent to its child.
//!
//! The lock of `renaming` also keeps every directory's parent as it is, so that "lies above" stays
//! true until the rename is done.

use polylane_base::sync::{Arc, RwLockWriteGuard};
use polylane_base::{Errno, Result};

use crate::access::{self, WRITE};
use crate::core::{Core, is_ancestor};
use crate::ctx::OpCtx;
use crate::fs::{Kind, RenameMode, Renamed};
use crate::handover::Op;
use crate::inode::{LEASED, Node};
use crate::names::{check_alive, check_dir, check_name, is};
use crate::vfs::Vfs;

/// `RENAME_NOREPLACE`
pub const RENAME_NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE`
pub const RENAME_EXCHANGE: u32 = 2;
/// `RENAME_WHITEOUT`
pub const RENAME_WHITEOUT: u32 = 4;

/// The inodes of a rename.
#[derive(Clone, Debug)]
pub struct Moved {
    /// What the old name named.
    pub moved: Node,
    /// What the new name named before, if anything.
    pub replaced: Option<Node>,
}

/// One side of a rename: a directory and a name in it.
#[derive(Clone, Copy)]
struct Side<'a> {
    dir: &'a Node,
    name: &'a [u8],
}

/// Why a rename was not done.
enum Stop {
    /// It fails.
    Errno(Errno),
    /// A lease on this directory must end first, which cannot be done under locks.
    Leased(Node),
    /// It moves a directory, which must be announced first, which cannot be done under locks.
    Unannounced,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

fn check_leases<'a>(dirs: impl IntoIterator<Item = &'a Node>) -> Result<(), Stop> {
    match dirs.into_iter().find(|dir| dir.has(LEASED)) {
        Some(dir) => Err(Stop::Leased(dir.clone())),
        None => Ok(()),
    }
}

/// What the flags ask for.
#[derive(Clone, Copy)]
struct Wish {
    mode: RenameMode,
    /// The new name must be free.
    fresh: bool,
    /// [`Core::change_paths`] was called: directories may be moved.
    announced: bool,
}

fn wish(flags: u32) -> Result<Wish> {
    let fresh = flags & RENAME_NOREPLACE != 0;
    let mode = match flags {
        0 => RenameMode::Replace,
        RENAME_NOREPLACE => RenameMode::NoReplace,
        RENAME_EXCHANGE => RenameMode::Exchange,
        RENAME_WHITEOUT => RenameMode::Whiteout,
        _ if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => RenameMode::Whiteout,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Wish { mode, fresh, announced: false })
}

impl Vfs {
    /// Renames `from` in `from_dir` to `to` in `to_dir`; `flags` as in renameat2(2):
    /// `RENAME_NOREPLACE` 1, `RENAME_EXCHANGE` 2, `RENAME_WHITEOUT` 4. Two names of one inode:
    /// nothing happens.
    pub fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.take_renamed(ctx, from_dir, from, to_dir, to, flags).map(drop)
    }

    /// [`rename`](Self::rename), and the inodes that changed names. After a streamed call
    /// [`Vfs::lost_a_name`] is to be told of what was replaced.
    pub fn take_renamed(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<Moved> {
        self.begin();
        let mut wish = wish(flags)?;
        check_dir(from_dir)?;
        check_dir(to_dir)?;
        let (old, new) = (check_name(from), check_name(to));
        // renameat2(2): EBUSY for `.` and `..`.
        if [old, new].contains(&Err(Errno::EINVAL)) {
            return Err(Errno::EBUSY);
        }
        old?;
        if let Err(errno) = new {
            // The kernel looks for the old name before it looks at the new one's length.
            self.lookup(ctx, from_dir, from)?;
            return Err(errno);
        }
        let from = Side { dir: from_dir, name: from };
        let to = Side { dir: to_dir, name: to };
        let mut announced = None;
        loop {
            wish.announced = announced.is_some();
            match self.rename_once(ctx, from, to, wish) {
                Ok(done) => {
                    if let Some(replaced) = done.replaced.as_ref().filter(|_| !ctx.streamed) {
                        self.core.lost_a_name(replaced);
                    }
                    return Ok(done);
                }
                Err(Stop::Errno(errno)) => return Err(errno),
                Err(Stop::Leased(dir)) => self.core.end_lease_on(&dir),
                Err(Stop::Unannounced) => announced = Some(self.core.change_paths()),
            }
        }
    }

    /// The rename under its locks, unless a lease is in the way. What was replaced is given out: it
    /// is dropped after the locks, since it may be the end of a large file.
    fn rename_once(
        &self,
        ctx: &OpCtx<'_>,
        from: Side<'_>,
        to: Side<'_>,
        wish: Wish,
    ) -> Result<Moved, Stop> {
        let core = &self.core;
        if from.dir.id == to.dir.id {
            let _entries = core.lock_entries(ctx, from.dir);
            return move_name(core, ctx, from, to, wish);
        }
        let _renaming = core.renaming.lock();
        let (first, second) =
            if lies_first(from.dir, to.dir) { (from.dir, to.dir) } else { (to.dir, from.dir) };
        let _first = first.lock.write();
        let _second = second.lock.write();
        check_leases([from.dir, to.dir])?;
        move_name(core, ctx, from, to, wish)
    }
}

/// Lock order of two directories.
fn lies_first(a: &Node, b: &Node) -> bool {
    is_ancestor(a, b) || (!is_ancestor(b, a) && a.id < b.id)
}

/// The rename itself, with the entries of both directories locked.
fn move_name(
    core: &Arc<Core>,
    ctx: &OpCtx<'_>,
    from: Side<'_>,
    to: Side<'_>,
    wish: Wish,
) -> Result<Moved, Stop> {
    if let Some(moved) = moved_before(ctx, core, from, to)? {
        return Ok(Moved { moved, replaced: None });
    }
    let moved = core.child_locked(ctx, from.dir, from.name)?;
    let target = core.target_locked(ctx, to.dir, to.name)?;
    check_target(&target, wish)?;
    if moved.is_dir() || target.as_ref().is_some_and(|target| target.is_dir()) {
        // Clients stream changes of files only; this would end leases while one is at work.
        if ctx.streamed {
            return Err(Errno::EISDIR.into());
        }
        if !wish.announced {
            return Err(Stop::Unannounced);
        }
    }
    check_loops(from, to, &moved, target.as_ref(), wish.mode)?;
    core.writable()?;
    // Before any right is asked for, as in Linux: nothing happens.
    if target.as_ref().is_some_and(|target| target.id == moved.id) {
        return Ok(Moved { moved, replaced: target });
    }
    check_rights(ctx, from, to, &moved, target.as_ref(), wish.mode)?;
    check_alive(to.dir)?;
    check_links(core, from, to, &moved, target.as_ref(), wish.mode)?;
    let moving = lock_directories(from, to, &moved, target.as_ref(), wish.mode);
    check_leases(&target)?;
    ctx.intend(Op::Rename, [moved.ino().0, moved.generation(), 0, 0]);
    let is_link = |node: &Node| node.kind() == Kind::Symlink;
    let links = is_link(&moved) || target.as_ref().is_some_and(is_link);
    let _moving = links.then(|| core.marks.moving());
    core.name_changes(from.dir, from.name);
    core.name_changes(to.dir, to.name);
    let renamed = change(core, ctx, from, to, wish.mode, target.as_ref())?;
    moved.set_ctime(&mut moved.attr(), renamed.node.ctime);
    from.dir.keep_now(renamed.from_dir);
    if from.dir.id != to.dir.id {
        to.dir.keep_now(renamed.to_dir);
    }
    keep_names(core, from, to, &moved, target.as_ref(), wish.mode);
    drop(moving);
    Ok(Moved { moved, replaced: target })
}

/// The inode that a former service moved on behalf of this very request.
fn moved_before(
    ctx: &OpCtx<'_>,
    core: &Arc<Core>,
    from: Side<'_>,
    to: Side<'_>,
) -> Result<Option<Node>> {
    let Some([ino, generation, ..]) = ctx.former(Op::Rename) else { return Ok(None) };
    let is_it = |node: &Node| is(node, ino, generation);
    let there = core.target_locked(ctx, to.dir, to.name)?.filter(is_it);
    let here = core.target_locked(ctx, from.dir, from.name)?;
    Ok(there.filter(|_| !here.is_some_and(|node| is_it(&node))))
}

fn check_target(target: &Option<Node>, wish: Wish) -> Result<()> {
    match (target, wish.mode) {
        (Some(_), _) if wish.fresh => Err(Errno::EEXIST),
        (None, RenameMode::Exchange) => Err(Errno::ENOENT),
        _ => Ok(()),
    }
}

/// Nothing may be moved below itself, and what lies above the source is not empty.
fn check_loops(
    from: Side<'_>,
    to: Side<'_>,
    moved: &Node,
    target: Option<&Node>,
    mode: RenameMode,
) -> Result<()> {
    if from.dir.id == to.dir.id {
        return Ok(());
    }
    if moved.is_dir() && is_ancestor(moved, to.dir) {
        return Err(Errno::EINVAL);
    }
    match target {
        Some(target) if target.is_dir() && is_ancestor(target, from.dir) => match mode {
            RenameMode::Exchange => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTEMPTY),
        },
        _ => Ok(()),
    }
}

fn check_rights(
    ctx: &OpCtx<'_>,
    from: Side<'_>,
    to: Side<'_>,
    moved: &Node,
    target: Option<&Node>,
    mode: RenameMode,
) -> Result<()> {
    access::check_remove(ctx, from.dir, moved)?;
    let exchange = mode == RenameMode::Exchange;
    match target {
        None => access::check_add(ctx, to.dir)?,
        Some(target) => {
            access::check_remove(ctx, to.dir, target)?;
            match (moved.is_dir(), target.is_dir()) {
                (true, false) if !exchange => return Err(Errno::ENOTDIR),
                (false, true) if !exchange => return Err(Errno::EISDIR),
                _ => (),
            }
        }
    }
    if from.dir.id == to.dir.id {
        return Ok(());
    }
    // A directory that changes its parent is itself changed: its `..` is.
    if moved.is_dir() {
        access::check(ctx, moved, WRITE)?;
    }
    match target {
        Some(target) if exchange && target.is_dir() => access::check(ctx, target, WRITE),
        _ => Ok(()),
    }
}

/// `EMLINK` when a directory would get too many subdirectories.
fn check_links(
    core: &Core,
    from: Side<'_>,
    to: Side<'_>,
    moved: &Node,
    target: Option<&Node>,
    mode: RenameMode,
) -> Result<()> {
    if from.dir.id == to.dir.id {
        return Ok(());
    }
    let target_is_dir = target.is_some_and(|target| target.is_dir());
    let max = core.character.max_dir_links;
    let to_gains = moved.is_dir() && !target_is_dir;
    let from_gains = mode == RenameMode::Exchange && target_is_dir && !moved.is_dir();
    let full = (to_gains && to.dir.nlink() >= max) || (from_gains && from.dir.nlink() >= max);
    if full { Err(Errno::EMLINK) } else { Ok(()) }
}

/// Locks the entries of a directory that gets another parent, and of one that is replaced.
fn lock_directories<'a>(
    from: Side<'_>,
    to: Side<'_>,
    moved: &'a Node,
    target: Option<&'a Node>,
    mode: RenameMode,
) -> [Option<RwLockWriteGuard<'a, ()>>; 2] {
    let across = from.dir.id != to.dir.id;
    let moves = across && moved.is_dir();
    let ends = (across || mode != RenameMode::Exchange) && target.is_some_and(|t| t.is_dir());
    let lock = |node: Option<&'a Node>| node.map(|node| node.lock.write());
    // Neither lies above the other: `check_loops` made sure.
    [lock(Some(moved).filter(|_| moves)), lock(target.filter(|_| ends))]
}

/// Asks the libservice. The state of what is replaced or exchanged is kept in order.
fn change(
    core: &Core,
    ctx: &OpCtx<'_>,
    from: Side<'_>,
    to: Side<'_>,
    mode: RenameMode,
    target: Option<&Node>,
) -> Result<Renamed> {
    let in_place = from.dir.id == to.dir.id && mode == RenameMode::Replace;
    let ask = || match ctx.streamed && in_place && core.fs.creates_reserved() {
        true => core.fs.rename_reserved(ctx, from.dir.ino(), from.name, to.name),
        false => core.fs.rename(ctx, from.dir.ino(), from.name, to.dir.ino(), to.name, mode),
    };
    let Some(target) = target else { return ask() };
    let mut attr = target.attr();
    let renamed = ask()?;
    if let Some(mut other) = renamed.other {
        if mode == RenameMode::Exchange {
            target.set_ctime(&mut attr, other.ctime);
        } else {
            if target.is_dir() {
                other.nlink = 0;
            }
            target.keep(&mut attr, other);
        }
    }
    Ok(renamed)
}

/// Brings the dentry table and the parents up to date.
fn keep_names(
    core: &Core,
    from: Side<'_>,
    to: Side<'_>,
    moved: &Node,
    target: Option<&Node>,
    mode: RenameMode,
) {
    let exchanged = target.filter(|_| mode == RenameMode::Exchange);
    core.dentries.put(to.dir.id, to.name, Some(moved));
    match exchanged {
        Some(other) => core.dentries.put(from.dir.id, from.name, Some(other)),
        // Also for a whiteout: the libservice made an inode there that we have not seen.
        None => core.dentries.remove(from.dir.id, from.name),
    }
    if from.dir.id != to.dir.id {
        if moved.is_dir() {
            drop(moved.set_parent(to.dir.clone()));
        }
        if let Some(other) = exchanged.filter(|other| other.is_dir()) {
            drop(other.set_parent(from.dir.clone()));
        }
    }
    match target {
        Some(target) if exchanged.is_none() => core.cache.unlinked(target),
        _ => (),
    }
}
