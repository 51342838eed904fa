//! New names and names that go.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::fs::{Attr, Changed, Kind, NewNode};

use crate::Act;
use crate::find::{self, Entry};
use crate::layer::Held;
use crate::marks::Mark;
use crate::node::{By, Node, Parts, Place, State};

/// What the upper has where a new name is wanted.
pub(crate) enum Gap {
    /// Nothing, and the lowers neither.
    Free,
    /// A whiteout; whether the lowers have something under it.
    Whiteout(bool),
}

impl Act<'_> {
    /// A directory's inode in the upper, to be changed. `ENOENT` for one that was removed.
    pub(crate) fn open_dir(&self, dir: &Arc<Node>) -> Result<Held> {
        dir.dir()?;
        if dir.state().is_removed {
            return Err(Errno::ENOENT);
        }
        self.copy_up(dir, None)
    }

    /// Looks where a new name is wanted. `EEXIST`; `EPERM` for the name that is ours.
    fn gap(&self, dir: &Node, held: &Held, name: &[u8]) -> Result<Gap> {
        if self.is_canary(dir, name) {
            return Err(Errno::EPERM);
        }
        let in_lowers = self.is_in_lowers(dir, name)?;
        match find::entry(self.ctx, held, name)? {
            Entry::Node(..) => Err(Errno::EEXIST),
            Entry::Whiteout => Ok(Gap::Whiteout(in_lowers)),
            Entry::Absent if in_lowers => Err(Errno::EEXIST),
            Entry::Absent => Ok(Gap::Free),
        }
    }

    /// `FileSystem::create`.
    pub(crate) fn create(
        &self,
        dir: &Arc<Node>,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Changed> {
        // What would be a whiteout.
        if new.kind == Kind::Char && new.rdev == 0 {
            return Err(Errno::EPERM);
        }
        let upper = self.upper()?;
        let held = self.open_dir(dir)?;
        let made = match self.gap(dir, &held, name)? {
            Gap::Free => {
                let made = upper.fs().create(self.ctx, held.ino(), name, new)?;
                upper.layer.adopt(made.node.ino)
            }
            Gap::Whiteout(in_lowers) => {
                let (aside, made, _) = upper.make(self.ctx, new)?;
                if new.kind == Kind::Dir && in_lowers {
                    let marked = upper.set_mark(self.ctx, made.ino(), Mark::Opaque, b"y");
                    marked.inspect_err(|_| upper.discard(self.ctx, &aside))?;
                }
                upper.place_over(self.ctx, (&aside, new.kind), &held, name)?;
                made
            }
        };
        let attr = made.attr(self.ctx)?;
        let node = self.node(dir, name, find::in_upper(made, attr))?;
        Ok(Changed { dir: self.attr(dir)?, node: self.attr(&node)? })
    }

    /// `FileSystem::create_unlinked`.
    pub(crate) fn create_unlinked(&self, new: &NewNode<'_>) -> Result<Attr> {
        let upper = self.upper()?;
        let attr = upper.fs().create_unlinked(self.ctx, upper.root.ino(), new)?;
        let held = upper.layer.adopt(attr.ino);
        let parts = Parts {
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            lowers: Vec::new(),
            data: None,
            lower_path: Box::default(),
            upper_generation: attr.generation,
            state: State { upper: Some(held), ..State::default() },
        };
        let node = self.table.enter(parts, By::Vfs).ok_or(Errno::ESTALE)?;
        self.attr(&node)
    }

    /// `FileSystem::link`.
    pub(crate) fn link(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &[u8]) -> Result<Changed> {
        if node.kind == Kind::Dir {
            return Err(Errno::EPERM);
        }
        self.check_data(node)?;
        let upper = self.upper()?;
        let dir_held = self.open_dir(dir)?;
        let gap = self.gap(dir, &dir_held, name)?;
        let held = self.copy_up(node, None)?;
        self.redirect(node, &held)?;
        self.make_impure(dir, &dir_held)?;
        self.count_from_links(node, &held)?;
        match gap {
            Gap::Free => drop(upper.fs().link(self.ctx, held.ino(), dir_held.ino(), name)?),
            Gap::Whiteout(_) => {
                let aside = upper.fresh_name();
                upper.fs().link(self.ctx, held.ino(), upper.tmp(), &aside)?;
                upper.place_over(self.ctx, (&aside, node.kind), &dir_held, name)?;
            }
        }
        node.state().place.get_or_insert_with(|| Place { dir: dir.clone(), name: name.into() });
        Ok(Changed { dir: self.attr(dir)?, node: self.attr(node)? })
    }

    /// `FileSystem::unlink`.
    pub(crate) fn unlink(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Changed> {
        let upper = self.upper()?;
        let held = self.open_dir(dir)?;
        let found = self.find(dir, name)?.ok_or(Errno::ENOENT)?;
        if found.kind() == Kind::Dir {
            return Err(Errno::EISDIR);
        }
        let node = self.node(dir, name, found)?;
        self.before_removal(&node, (dir, name))?;
        match self.is_in_lowers(dir, name)? {
            true => upper.white_out(self.ctx, &held, name)?,
            false => drop(upper.fs().unlink(self.ctx, held.ino(), name)?),
        }
        self.after_removal(&node, (dir, name))?;
        Ok(Changed { dir: self.attr(dir)?, node: self.attr(&node)? })
    }

    /// Before a name of a file goes: one of several names in the lowers is in the upper first, so
    /// that it goes in one with its link, by which the file's names are counted.
    pub(crate) fn before_removal(
        &self,
        node: &Arc<Node>,
        (dir, name): (&Arc<Node>, &[u8]),
    ) -> Result<()> {
        if node.kind == Kind::Dir {
            return Ok(());
        }
        if node.upper().is_none() {
            let lower = node.lowers.first().ok_or(Errno::ESTALE)?;
            if lower.held.attr(self.ctx)?.nlink <= 1 {
                return Ok(());
            }
        }
        self.cover(node, dir, name)?;
        let held = node.upper().ok_or(Errno::ESTALE)?;
        self.count_from_links(node, &held)
    }

    /// After a name of a node went.
    pub(crate) fn after_removal(
        &self,
        node: &Arc<Node>,
        (dir, name): (&Arc<Node>, &[u8]),
    ) -> Result<()> {
        let place = {
            let mut state = node.state();
            let is_here = |place: &Place| Arc::ptr_eq(&place.dir, dir) && *place.name == *name;
            state.is_removed |= state.upper.is_none() || node.kind == Kind::Dir;
            if state.place.as_ref().is_some_and(is_here) { state.place.take() } else { None }
        };
        drop(place);
        let Some(held) = node.upper() else { return Ok(()) };
        let uncovered = node.state().uncovered;
        if uncovered == Some(0) && held.attr(self.ctx)?.nlink == 1 {
            self.upper()?.remove_from_index(self.ctx, (node.ino, &held))?;
            node.state().uncovered = None;
        }
        Ok(())
    }

    /// `FileSystem::rmdir`.
    pub(crate) fn rmdir(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Changed> {
        let upper = self.upper()?;
        let held = self.open_dir(dir)?;
        let found = self.find(dir, name)?.ok_or(Errno::ENOENT)?;
        if found.kind() != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let node = self.node(dir, name, found)?;
        if !self.is_empty(&node)? {
            return Err(Errno::ENOTEMPTY);
        }
        let in_lowers = self.is_in_lowers(dir, name)?;
        match node.upper() {
            None => upper.white_out(self.ctx, &held, name)?,
            Some(_) if in_lowers => upper.white_out_dir(self.ctx, &held, name)?,
            Some(own) => {
                self.clear(&node, (&held, name), &own)?;
                upper.fs().rmdir(self.ctx, held.ino(), name)?;
            }
        }
        self.after_removal(&node, (dir, name))?;
        Ok(Changed { dir: self.attr(dir)?, node: self.attr(&node)? })
    }

    /// Puts an empty directory in the place of one of the upper that holds nothing but whiteouts.
    pub(crate) fn clear(&self, node: &Node, (dir, name): (&Held, &[u8]), own: &Held) -> Result<()> {
        let upper = self.upper()?;
        let mut has_entries = false;
        upper.fs().readdir(self.ctx, own.ino(), 0, &mut |_| {
            has_entries = true;
            false
        })?;
        if !has_entries {
            return Ok(());
        }
        if node.lowers.is_empty() {
            return upper.empty(self.ctx, own);
        }
        let attr = own.attr(self.ctx)?;
        let new = NewNode { uid: attr.uid, gid: attr.gid, ..NewNode::new(Kind::Dir, attr.perm) };
        let (aside, made, _) = upper.make(self.ctx, &new)?;
        let marked = upper.set_mark(self.ctx, made.ino(), Mark::Opaque, b"y");
        marked.inspect_err(|_| upper.discard(self.ctx, &aside))?;
        upper.place_over(self.ctx, (&aside, Kind::Dir), dir, name)
    }
}
