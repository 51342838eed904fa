//! Rename: the one change that needs two directories at once.
//!
//! Order: look at both names → bury a directory that will be replaced → make the whiteout → change
//! both directories under both locks → settle the moved and the replaced inode. Nothing after the
//! look can fail as long as the VFS keeps its promise that both directories are ours alone.

use super::MemFs;
use super::dir::Target;
use super::inode::Inode;
use super::table::Slot;
use crate::ctx::OpCtx;
use crate::fs::{Attr, Kind, NewNode, RenameMode, Renamed};
use polylane_base::sync::RwLockWriteGuard;
use polylane_base::{Errno, Ino, Result, Time};

/// Where a name moves from and to.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) from_dir: Ino,
    pub(super) from: &'a [u8],
    pub(super) to_dir: Ino,
    pub(super) to: &'a [u8],
}

/// One or two directories under their locks.
struct Locked<'a> {
    low: (Ino, RwLockWriteGuard<'a, Slot>),
    high: Option<(Ino, RwLockWriteGuard<'a, Slot>)>,
}

impl Locked<'_> {
    fn dir(&mut self, ino: Ino) -> Result<&mut Inode> {
        match &mut self.high {
            Some((high, slot)) if *high == ino => slot.get_mut(),
            _ => self.low.1.get_mut(),
        }
    }
}

impl MemFs {
    /// `FileSystem::rename`.
    pub(super) fn move_name(
        &self,
        ctx: &OpCtx<'_>,
        ends: Ends<'_>,
        mode: RenameMode,
    ) -> Result<Renamed> {
        let now = ctx.now(&*self.clock);
        let moved = self.target(ends.from_dir, ends.from)?;
        let other = match self.target(ends.to_dir, ends.to) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        match (mode, other) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (_, Some(other)) if other.ino == moved.ino => return self.unmoved(ends, moved.ino),
            (RenameMode::Exchange, Some(other)) => return self.exchange(ends, moved, other, now),
            _ => {}
        }
        let whiteout = match mode {
            RenameMode::Whiteout => Some(NewNode::whiteout(ctx, &self.attr_of(ends.from_dir)?)),
            _ => None,
        };
        self.replace(ends, moved, other, whiteout, now)
    }

    fn replace(
        &self,
        ends: Ends<'_>,
        moved: Target,
        other: Option<Target>,
        whiteout: Option<NewNode<'_>>,
        now: Time,
    ) -> Result<Renamed> {
        match other.map(|other| (moved.kind == Kind::Dir, other.kind == Kind::Dir)) {
            Some((true, false)) => return Err(Errno::ENOTDIR),
            Some((false, true)) => return Err(Errno::EISDIR),
            _ => {}
        }
        let whiteout = whiteout.map(|new| self.place(&new, 1, now)).transpose()?;
        let buried = self.bury_replaced(other, now);
        let mut other_attr = buried.inspect_err(|_| {
            if let Some(attr) = whiteout {
                self.free(attr.ino, |_| true);
            }
        })?;
        let mut dirs = self.lock_dirs(ends.from_dir, ends.to_dir)?;
        let to_dir = dirs.dir(ends.to_dir)?;
        match other {
            Some(_) => to_dir.replace_name(ends.to, moved, now)?,
            None => to_dir.add_name(ends.to, moved, now)?,
        }
        let from_dir = dirs.dir(ends.from_dir)?;
        match whiteout {
            Some(attr) => {
                let target = Target { ino: attr.ino, kind: attr.kind };
                from_dir.replace_name(ends.from, target, now)?;
            }
            None => drop(from_dir.remove_name(ends.from, now)?),
        }
        let attrs = (dirs.dir(ends.from_dir)?.attr, dirs.dir(ends.to_dir)?.attr);
        drop(dirs);
        if let Some(other) = other.filter(|other| other.kind != Kind::Dir) {
            other_attr = Some(self.drop_link(other.ino, now)?);
        }
        let node = self.touch(moved.ino, now)?;
        Ok(Renamed { from_dir: attrs.0, to_dir: attrs.1, node, other: other_attr })
    }

    fn exchange(&self, ends: Ends<'_>, moved: Target, other: Target, now: Time) -> Result<Renamed> {
        let mut dirs = self.lock_dirs(ends.from_dir, ends.to_dir)?;
        dirs.dir(ends.to_dir)?.replace_name(ends.to, moved, now)?;
        dirs.dir(ends.from_dir)?.replace_name(ends.from, other, now)?;
        let attrs = (dirs.dir(ends.from_dir)?.attr, dirs.dir(ends.to_dir)?.attr);
        drop(dirs);
        let node = self.touch(moved.ino, now)?;
        let other = Some(self.touch(other.ino, now)?);
        Ok(Renamed { from_dir: attrs.0, to_dir: attrs.1, node, other })
    }

    /// Two names of one inode: nothing to do.
    fn unmoved(&self, ends: Ends<'_>, ino: Ino) -> Result<Renamed> {
        let (from_dir, to_dir) = (self.attr_of(ends.from_dir)?, self.attr_of(ends.to_dir)?);
        Ok(Renamed { from_dir, to_dir, node: self.attr_of(ino)?, other: None })
    }

    /// Marks a directory that is about to be replaced dead; `ENOTEMPTY` when it is not empty.
    fn bury_replaced(&self, other: Option<Target>, now: Time) -> Result<Option<Attr>> {
        match other {
            Some(target) if target.kind == Kind::Dir => {
                self.change(target.ino, |inode| inode.bury_dir(now)).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn lock_dirs(&self, a: Ino, b: Ino) -> Result<Locked<'_>> {
        let (low, high) = (a.min(b), a.max(b));
        let first = self.table.write(low)?;
        let second = match low == high {
            true => None,
            false => Some((high, self.table.write(high)?)),
        };
        Ok(Locked { low: (low, first), high: second })
    }

    fn attr_of(&self, ino: Ino) -> Result<Attr> {
        self.inspect(ino, |inode| Ok(inode.attr))
    }

    fn touch(&self, ino: Ino, now: Time) -> Result<Attr> {
        self.change(ino, |inode| {
            inode.attr.ctime = now;
            Ok(inode.attr)
        })
    }
}
