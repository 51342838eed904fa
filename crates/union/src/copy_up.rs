//! Copy-up: an inode of a lower gets one in the upper, with its state and without its data.
//!
//! It is made aside, with everything that it is to have, and then moved to its name. So a cut
//! leaves no inode there or all of it. Of a regular file only the size is copied: its data stays
//! the lower's (`data.rs`).
//!
//! A file with several names in the lowers gets a second name, in the index (`links.rs`), by which
//! lookups of its other names find it.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Acl, AclKind, Attr, Kind, NewNode, SetAttr, SetTime, XattrMode};

use crate::Act;
use crate::data::{SMALL, copy_data};
use crate::layer::Held;
use crate::marks::{self, BLOCKS, Mark, Record};
use crate::node::{Below, Lower, Node, Place};

impl Act<'_> {
    /// The node's inode in the upper, copied up if need be. To be called without `changing`.
    pub(crate) fn copied_up(&self, node: &Arc<Node>) -> Result<Held> {
        match node.upper() {
            Some(upper) => Ok(upper),
            None => {
                let _alone = self.alone();
                self.copy_up(node, None)
            }
        }
    }

    /// The same with `changing` held alone. `cut`: data from that size on is not wanted, and where
    /// the file is not shorter, all of it is set before the inode gets its name.
    pub(crate) fn copy_up(&self, node: &Arc<Node>, cut: Option<&SetAttr>) -> Result<Held> {
        if let Some(held) = node.upper() {
            return Ok(held);
        }
        let upper = self.upper()?;
        let lower = node.lowers.first().ok_or(Errno::ESTALE)?;
        let attr = lower.held.shown(self.ctx, self.character.acls)?;
        let place = node.state().place.clone();
        let dir = match &place {
            Some(place) => Some(self.copy_up(&place.dir, None)?),
            None => None,
        };
        let target = match node.kind {
            Kind::Symlink => lower.held.fs().readlink(self.ctx, lower.held.ino())?,
            _ => Vec::new(),
        };
        let new = NewNode {
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            target: &target,
            ..NewNode::new(node.kind, attr.perm)
        };
        let (made, held, made_attr) = upper.make(self.ctx, &new)?;
        let below = self.furnish(node, lower, (&held, &attr), cut);
        let below = below.inspect_err(|_| upper.discard(self.ctx, &made))?;
        let placed = self.settle(node, (&held, &attr), &made, place.as_ref().zip(dir.as_ref()));
        let uncovered = placed.inspect_err(|_| upper.discard(self.ctx, &made))?;
        node.copied_up((held.clone(), made_attr.generation), below, uncovered);
        self.table.copied_up(node, held.ino());
        Ok(held)
    }

    /// Gives a new inode what the lower's has, and marks.
    fn furnish(
        &self,
        node: &Node,
        lower: &Lower,
        (held, attr): (&Held, &Attr),
        cut: Option<&SetAttr>,
    ) -> Result<Option<Below>> {
        let upper = self.upper()?;
        copy_attributes(self.ctx, &lower.held, held)?;
        let size = cut.and_then(|set| set.size).unwrap_or(u64::MAX);
        let bound = attr.size.min(size);
        let has_data = node.kind == Kind::File && bound > 0;
        if has_data && cut.is_some() && bound <= SMALL {
            let data = node.data().unwrap_or(&lower.held);
            copy_data(self.ctx, data, held, 0, bound)?;
        }
        let has_data = has_data && !(cut.is_some() && bound <= SMALL);
        let below =
            has_data.then_some(Below { bound, mark_is_wide: false, whole: bound == attr.size });
        let mut set = SetAttr {
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        if has_data {
            upper.expect_marks(self.ctx)?;
            upper.fs().setattr(
                self.ctx,
                held.ino(),
                &SetAttr { size: Some(bound), ..SetAttr::default() },
            )?;
        }
        self.mark(node, held, below, has_data)?;
        // Access lists may have changed them; symbolic links have none of either.
        set.perm = (node.kind != Kind::Symlink).then_some(attr.perm);
        let settable = upper.fs().character().flags;
        if attr.flags & settable != 0 {
            set.flags = Some(attr.flags & settable);
        }
        upper.fs().setattr(self.ctx, held.ino(), &set)?;
        if let Some(set) = cut.filter(|_| size <= attr.size) {
            upper.fs().setattr(self.ctx, held.ino(), set)?;
        }
        Ok(below)
    }

    /// Writes what is recorded of a copied-up inode. Where a layer can keep no marks on it, as on
    /// symbolic links in the `user.` name space, its number is what is lost, but for one that has
    /// a stand-in (`stand_in.rs`).
    fn mark(&self, node: &Node, held: &Held, below: Option<Below>, must: bool) -> Result<()> {
        let upper = self.upper()?;
        let marked = upper.set_mark(self.ctx, held.ino(), Mark::Origin, b"").and_then(|()| {
            match node.kind {
                Kind::Dir => Ok(()),
                _ => self.write_below(node, held, below),
            }
        });
        match marked {
            Err(Errno::EPERM | Errno::EOPNOTSUPP) if !must => Ok(()),
            marked => marked,
        }
    }

    /// Records what a file in the upper still has in the lower.
    pub(crate) fn write_below(&self, node: &Node, held: &Held, below: Option<Below>) -> Result<()> {
        let upper = self.upper()?;
        let Some(lower) = node.lowers.first() else { return Ok(()) };
        let data = node.data().unwrap_or(&lower.held).attr(self.ctx)?;
        let in_parts = below.is_some_and(|below| !below.whole);
        let own = in_parts.then(|| held.attr(self.ctx)).transpose()?;
        let record = Record {
            layer: u16::try_from(self.rank(lower.index)).map_err(|_| Errno::EOVERFLOW)?,
            ino: lower.held.ino(),
            generation: node.generation,
            bound: Some(below.map_or(0, |below| below.bound)),
            in_parts: own.as_ref().and_then(marks::identity),
            size: data.size,
            mtime: data.mtime,
        };
        upper.set_mark(self.ctx, held.ino(), Mark::Polylane, &record.to_value())?;
        match below {
            Some(below) => {
                let value = if below.whole { b"".as_slice() } else { BLOCKS };
                upper.set_mark(self.ctx, held.ino(), Mark::Metacopy, value)
            }
            // Until it is gone, the record says that nothing is the lower's.
            None => upper.remove_mark(self.ctx, held.ino(), Mark::Metacopy),
        }
    }

    /// Gives what was made aside its names.
    fn settle(
        &self,
        node: &Node,
        (held, attr): (&Held, &Attr),
        made: &[u8],
        place: Option<(&Place, &Held)>,
    ) -> Result<Option<u32>> {
        let upper = self.upper()?;
        let Some((place, dir)) = place else {
            // It has no name any more: an open file is written.
            upper.fs().unlink(self.ctx, upper.tmp(), made)?;
            return Ok(None);
        };
        let names = (node.kind != Kind::Dir && attr.nlink > 1).then_some(attr.nlink);
        if let Some(names) = names {
            let entered = self.enter_in_index(node, held, names);
            entered.inspect_err(|_| {
                let _ = upper.remove_from_index(self.ctx, (node.ino, held));
            })?;
        }
        let before = dir.attr(self.ctx)?;
        self.make_impure(&place.dir, dir)?;
        let placed = upper.move_new(self.ctx, (upper.tmp(), made), dir, &place.name);
        if let Err(errno) = placed {
            if names.is_some() {
                let _ = upper.remove_from_index(self.ctx, (node.ino, held));
            }
            return Err(errno);
        }
        // It is there, whatever becomes of the directory's times.
        let _ = upper.restore_times(self.ctx, dir, &before);
        Ok(names.map(|names| names - 1))
    }

    /// Enters what was copied up by one of its names in the index.
    fn enter_in_index(&self, node: &Node, held: &Held, names: u32) -> Result<()> {
        let upper = self.upper()?;
        if upper.has_no_marks(node.kind) {
            let marks = upper.make_stand_in(self.ctx, node.ino, held)?;
            self.write_below(node, &marks, None)?;
        }
        upper.add_to_index(self.ctx, (node.ino, held), names)
    }

    /// Marks a directory of the upper that gets an entry which was copied up.
    pub(crate) fn make_impure(&self, node: &Node, held: &Held) -> Result<()> {
        if node.lowers.is_empty() && node.state().is_impure {
            return Ok(());
        }
        if held.mark(self.ctx, Mark::Impure)?.is_none() {
            self.upper()?.set_mark(self.ctx, held.ino(), Mark::Impure, b"y")?;
        }
        node.state().is_impure = true;
        Ok(())
    }

    /// Gives a file that was copied up by one of its names in the lowers another of them, if the
    /// upper does not have it yet.
    pub(crate) fn cover(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &[u8]) -> Result<()> {
        let held = self.copy_up(node, None)?;
        let dir_held = self.copy_up(dir, None)?;
        let Some(uncovered) = node.state().uncovered.filter(|&left| left > 0) else {
            return Ok(());
        };
        if dir_held.lookup(self.ctx, name)?.is_some() {
            return Ok(());
        }
        let upper = self.upper()?;
        self.redirect(node, &held)?;
        let before = dir_held.attr(self.ctx)?;
        self.make_impure(dir, &dir_held)?;
        let names = (held.attr(self.ctx)?.nlink + uncovered).saturating_sub(1);
        upper.count_names(self.ctx, &held, names)?;
        upper.fs().link(self.ctx, held.ino(), dir_held.ino(), name)?;
        node.state().uncovered = Some(uncovered - 1);
        // The name is there, whatever becomes of the directory's times.
        let _ = upper.restore_times(self.ctx, &dir_held, &before);
        Ok(())
    }

    /// Before a copied-up node gets another name: where its lowers are. Of what has none that
    /// count, nothing.
    pub(crate) fn redirect(&self, node: &Node, held: &Held) -> Result<()> {
        let needs = match node.kind {
            Kind::Dir => !node.lowers.is_empty(),
            _ => node.state().below.is_some(),
        };
        if !needs {
            return Ok(());
        }
        self.upper()?.set_mark(self.ctx, held.ino(), Mark::Redirect, &node.lower_path)
    }
}

/// Copies extended attributes and access lists, but no marks.
fn copy_attributes(ctx: &OpCtx<'_>, from: &Held, to: &Held) -> Result<()> {
    let names = match from.fs().listxattr(ctx, from.ino()) {
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        names => names?,
    };
    for name in names {
        let Some(shown) = from.layer().space().shown(&name) else { continue };
        let value = from.fs().getxattr(ctx, from.ino(), &name)?;
        if let Some(kind) = AclKind::from_name(&shown) {
            let acl = Acl::parse(&value)?;
            match to.fs().set_acl(ctx, to.ino(), kind, acl.as_ref(), None) {
                Ok(_) | Err(Errno::EOPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
            continue;
        }
        let kept = to.layer().space().kept(&shown);
        match to.fs().setxattr(ctx, to.ino(), &kept, &value, XattrMode::Any) {
            Ok(_) | Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
