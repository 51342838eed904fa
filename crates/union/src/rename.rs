//! Rename. A directory that lowers have takes a redirect with it, so that it is never copied and
//! never `EXDEV`; a file whose data is a lower's does the same.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Kind, RenameMode, Renamed};

use crate::Act;
use crate::find::{self, Entry};
use crate::intent::is_incapable;
use crate::layer::{Above, Held};
use crate::marks::Mark;
use crate::node::{Node, Place};
use crate::upper::Upper;

/// A name in a directory.
type End<'a> = (&'a Arc<Node>, &'a [u8]);

impl Act<'_> {
    /// `FileSystem::rename`. `EINVAL` for [`RenameMode::Whiteout`], as from overlayfs.
    pub(crate) fn rename(&self, from: End<'_>, to: End<'_>, mode: RenameMode) -> Result<Renamed> {
        if mode == RenameMode::Whiteout {
            return Err(Errno::EINVAL);
        }
        if self.is_canary(to.0, to.1) {
            return Err(Errno::EPERM);
        }
        let moved = self.find(from.0, from.1)?.ok_or(Errno::ENOENT)?;
        let moved = self.node(from.0, from.1, moved)?;
        let other = self.find(to.0, to.1)?.map(|other| self.node(to.0, to.1, other)).transpose()?;
        match (mode, &other) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (_, Some(other)) if Arc::ptr_eq(other, &moved) => {}
            (RenameMode::Exchange, Some(other)) => self.exchange(from, to, &moved, other)?,
            _ => self.replace(from, to, &moved, other.as_ref())?,
        }
        let other = other.filter(|other| !Arc::ptr_eq(other, &moved));
        Ok(Renamed {
            from_dir: self.attr(from.0)?,
            to_dir: self.attr(to.0)?,
            node: self.attr(&moved)?,
            other: other.map(|other| self.attr(&other)).transpose()?,
        })
    }

    fn replace(
        &self,
        from: End<'_>,
        to: End<'_>,
        moved: &Arc<Node>,
        other: Option<&Arc<Node>>,
    ) -> Result<()> {
        let upper = self.upper()?;
        let is_dir = moved.kind == Kind::Dir;
        match other.map(|other| other.kind == Kind::Dir) {
            Some(false) if is_dir => return Err(Errno::ENOTDIR),
            Some(true) if !is_dir => return Err(Errno::EISDIR),
            _ => {}
        }
        if let Some(other) = other.filter(|_| is_dir)
            && !self.is_empty(other)?
        {
            return Err(Errno::ENOTEMPTY);
        }
        let (from_held, to_held) = (self.open_dir(from.0)?, self.open_dir(to.0)?);
        self.prepare(moved, from, (to, &to_held))?;
        if let Some(other) = other {
            self.before_removal(other, to)?;
        }
        let above = find::entry(self.ctx, &to_held, to.1)?;
        if let (Entry::Node(own, _), Some(other), true) = (&above, other, is_dir) {
            self.clear(other, (&to_held, to.1), own)?;
        }
        let leaves_whiteout = self.is_in_lowers(from.0, from.1)?;
        let (from_above, to_above) =
            (Above { dir: &from_held, name: from.1 }, Above { dir: &to_held, name: to.1 });
        match (&above, leaves_whiteout) {
            (Entry::Whiteout, _) if is_dir => {
                swap(self.ctx, upper, from_above, to_above, leaves_whiteout)?;
            }
            (_, true) => move_and_white_out(self.ctx, upper, from_above, to_above, is_dir)?,
            (_, false) => {
                let mode = RenameMode::Replace;
                upper.fs().rename(self.ctx, from_held.ino(), from.1, to_held.ino(), to.1, mode)?;
            }
        }
        if let Some(other) = other {
            self.after_removal(other, to)?;
        }
        put(moved, to);
        Ok(())
    }

    fn exchange(
        &self,
        from: End<'_>,
        to: End<'_>,
        moved: &Arc<Node>,
        other: &Arc<Node>,
    ) -> Result<()> {
        let upper = self.upper()?;
        let (from_held, to_held) = (self.open_dir(from.0)?, self.open_dir(to.0)?);
        self.prepare(moved, from, (to, &to_held))?;
        self.prepare(other, to, (from, &from_held))?;
        let mode = RenameMode::Exchange;
        upper.fs().rename(self.ctx, from_held.ino(), from.1, to_held.ino(), to.1, mode)?;
        put(moved, to);
        put(other, from);
        Ok(())
    }

    /// Brings what is about to move into the upper, with the marks that it needs where it goes.
    fn prepare(
        &self,
        moved: &Arc<Node>,
        from: End<'_>,
        (to, to_held): (End<'_>, &Held),
    ) -> Result<()> {
        self.check_data(moved)?;
        let held = self.copy_up(moved, None)?;
        self.cover(moved, from.0, from.1)?;
        self.redirect(moved, &held)?;
        self.count_from_links(moved, &held)?;
        let is_pure_dir = moved.kind == Kind::Dir && moved.lowers.is_empty();
        if is_pure_dir && self.is_in_lowers(to.0, to.1)? {
            self.upper()?.set_mark(self.ctx, held.ino(), Mark::Opaque, b"y")?;
        }
        let from_mixed = !from.0.lowers.is_empty() || from.0.state().is_impure;
        match from_mixed && !Arc::ptr_eq(from.0, to.0) {
            true => self.make_impure(to.0, to_held),
            false => Ok(()),
        }
    }
}

/// The node has this name now.
fn put(node: &Node, (dir, name): End<'_>) {
    let place = Place { dir: dir.clone(), name: name.into() };
    let former = node.state().place.replace(place);
    drop(former);
}

/// Moves a directory to the place of a whiteout, which takes its place or goes.
fn swap(ctx: &OpCtx<'_>, upper: &Upper, from: Above<'_>, to: Above<'_>, keep: bool) -> Result<()> {
    let mode = RenameMode::Exchange;
    match upper.fs().rename(ctx, from.dir.ino(), from.name, to.dir.ino(), to.name, mode) {
        Err(errno) if is_incapable(errno) => return upper.relocate(ctx, from, to, keep),
        swapped => swapped?,
    };
    match keep {
        true => Ok(()),
        false => upper.fs().unlink(ctx, from.dir.ino(), from.name).map(|_| ()),
    }
}

/// Moves something and leaves a whiteout.
fn move_and_white_out(
    ctx: &OpCtx<'_>,
    upper: &Upper,
    from: Above<'_>,
    to: Above<'_>,
    is_dir: bool,
) -> Result<()> {
    let mode = RenameMode::Whiteout;
    // A whiteout of a layer is root's, whoever the caller is: as overlayfs, and as `white_out`.
    let own = OpCtx { cred: None, ..*ctx };
    let moved = upper.fs().rename(&own, from.dir.ino(), from.name, to.dir.ino(), to.name, mode);
    match moved {
        // Where the upper cannot do both in one: the whiteout goes ahead to the new name.
        Err(errno) if is_incapable(errno) && !upper.exchanges(ctx)? => {
            upper.relocate(ctx, from, to, true)
        }
        Err(errno) if is_incapable(errno) => {
            let above = to.dir.lookup(ctx, to.name)?;
            match above.is_some() && is_dir {
                true => upper.white_out_dir(ctx, to.dir, to.name)?,
                false => upper.white_out(ctx, to.dir, to.name)?,
            }
            swap(ctx, upper, from, to, true)
        }
        moved => moved.map(|_| ()),
    }
}
