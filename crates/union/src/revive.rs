//! Inodes that a former service held, found again by what it recorded (`saved.rs`).
//!
//! ```text
//!  record ── inode in the upper, there still ──► it; its marks say what is the lowers', and the
//!    │                                           recorded path where
//!    ├────── its name in its directory is it ──► what a lookup finds: also a copy-up that was not
//!    │                                           recorded, or one that was lost
//!    └────── neither ──────────────────────────► a file: the lower's, without a name
//!  no record ──────────────────────────────────► an inode of the upper by that number
//! ```
//!
//! A directory whose name is gone is `ESTALE`, as on every volume.

use std::collections::HashMap;

use polylane_base::sync::Arc;
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::fs::{Attr, Kind, Revived};

use crate::Act;
use crate::find::{self, Found, Way};
use crate::layer::Held;
use crate::marks::Mark;
use crate::node::{By, Node, Parts, Place};
use crate::saved::Former;

/// What a former service recorded and nobody asked for yet.
#[derive(Default)]
pub(crate) struct Formers {
    by_number: HashMap<Ino, Former>,
    /// Numbers of those that have an inode in the upper, by that.
    by_upper: HashMap<Ino, Ino>,
    /// Nodes that were found again: others are found in them, whose records are theirs now.
    raised: Vec<Arc<Node>>,
}

impl Formers {
    pub(crate) fn new(by_number: HashMap<Ino, Former>) -> Formers {
        let upper = |former: &Former| former.upper.map(|(upper, _)| (upper, former.ino));
        let by_upper = by_number.values().filter_map(upper).collect();
        Formers { by_number, by_upper, raised: Vec::new() }
    }

    /// Their numbers in the union.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Ino> + '_ {
        self.by_number.keys().copied()
    }
}

impl Act<'_> {
    /// `FileSystem::revive`.
    pub(crate) fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let node = self.raised(ino, generation)?;
        if generation.is_some_and(|generation| generation != node.generation) {
            return Err(Errno::ESTALE);
        }
        let attr = self.attr(&node)?;
        let dir = match node.kind {
            Kind::Dir => self.dir_of(&node)?,
            _ => None,
        };
        self.table.hold(&node);
        Ok(Revived { attr, dir })
    }

    /// The directory that a directory is in.
    fn dir_of(&self, node: &Node) -> Result<Option<Ino>> {
        if let Some(place) = &node.state().place {
            return Ok(Some(place.dir.ino));
        }
        let (Some(upper), Some(held)) = (&self.upper, node.upper()) else { return Ok(None) };
        let (_, revived) = upper.layer.revive(held.ino(), None)?;
        Ok(revived.dir.map(|dir| self.number_of_upper(dir)))
    }

    /// The number in the union of a directory of the upper.
    fn number_of_upper(&self, dir: Ino) -> Ino {
        if self.upper.as_ref().is_some_and(|upper| upper.root.ino() == dir) {
            return self.root.ino;
        }
        let live = self.table.of_upper(dir, By::Walk).map(|node| node.ino);
        live.or_else(|| self.formers.lock().by_upper.get(&dir).copied()).unwrap_or(dir)
    }

    /// The node of that number.
    fn raised(&self, ino: Ino, generation: Option<u64>) -> Result<Arc<Node>> {
        // Nodes that are found by their names, each in the directory that comes next.
        let mut named: Vec<Former> = Vec::new();
        let mut next = Some(ino);
        let mut found = Err(Errno::ESTALE);
        while let Some(number) = next.take() {
            if let Some(live) = self.table.live(number) {
                found = Ok(live);
                break;
            }
            let former = self.formers.lock().by_number.remove(&number);
            let Some(former) = former else {
                let generation = generation.filter(|_| named.is_empty());
                found = self.in_upper_alone(number, generation);
                break;
            };
            if let Some((held, attr)) = self.upper_of(&former) {
                found = self.above_again(former, held, attr);
                break;
            }
            next = former.dir;
            named.push(former);
        }
        while let Some(former) = named.pop() {
            found = self.named_again(former, found.ok().as_ref());
        }
        found
    }

    /// The inode in the upper that was recorded, if it is there.
    fn upper_of(&self, former: &Former) -> Option<(Held, Attr)> {
        let (upper, generation) = former.upper?;
        let (held, revived) = self.upper.as_ref()?.layer.revive(upper, Some(generation)).ok()?;
        (revived.attr.kind == former.kind).then_some((held, revived.attr))
    }

    /// What has nothing in the lowers, and its number from the upper.
    fn in_upper_alone(&self, ino: Ino, generation: Option<u64>) -> Result<Arc<Node>> {
        let upper = self.upper.as_ref().ok_or(Errno::ESTALE)?;
        let (held, revived) = upper.layer.revive(ino, generation)?;
        let identity = (ino, revived.attr.generation);
        let parts = self.parts(&find::in_upper(held, revived.attr), identity, None)?;
        self.keep(parts)
    }

    /// Enters a node that was found again, which lives until all of them are.
    fn keep(&self, parts: Parts) -> Result<Arc<Node>> {
        let node = self.table.enter(parts, By::Walk).ok_or(Errno::ESTALE)?;
        self.formers.lock().raised.push(node.clone());
        Ok(node)
    }

    /// What has an inode in the upper, by which it is found whatever its name is.
    fn above_again(&self, former: Former, held: Held, attr: Attr) -> Result<Arc<Node>> {
        let is_dir = attr.kind == Kind::Dir;
        let is_opaque =
            is_dir && held.mark(self.ctx, Mark::Opaque)?.is_some_and(|value| value == b"y");
        let mut lower = Default::default();
        if !former.lower_path.is_empty() && !is_opaque {
            let way = Way::Path(former.lower_path.to_vec());
            lower = self.search(&self.root, way, Some(is_dir))?;
        }
        let found = match is_dir {
            true => find::found(Some((held, attr)), lower),
            false => {
                let record = self.record(&held)?;
                let metacopy = match attr.kind {
                    Kind::File => held.mark(self.ctx, Mark::Metacopy)?,
                    _ => None,
                };
                self.above(held, attr, lower, (record, metacopy))?
            }
        };
        self.enter_again(former, &found, None)
    }

    /// What had no inode in the upper, or lost it: by its name in `dir`, which is that in the
    /// lowers. A file that is not there any more has no name.
    fn named_again(&self, former: Former, dir: Option<&Arc<Node>>) -> Result<Arc<Node>> {
        let way = Way::Path(former.lower_path.to_vec());
        let lower = self.search(&self.root, way, Some(former.kind == Kind::Dir))?;
        let (Some(first), Some(attr)) = (lower.lowers.first(), lower.attr) else {
            return Err(Errno::ESTALE);
        };
        if (attr.kind, attr.generation) != (former.kind, former.generation) {
            return Err(Errno::ESTALE);
        }
        self.table.renumber(self.rank(first.index), first.held.ino(), former.ino);
        if self.number(first) != former.ino {
            return Err(Errno::ESTALE);
        }
        let name = former.lower_path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let name: Box<[u8]> = name.into();
        let identity = (former.ino, former.generation);
        if let Some(dir) = dir.filter(|dir| dir.kind == Kind::Dir)
            && let Some(found) = self.find(dir, &name)?
            && self.identity(&found) == identity
        {
            return self.enter_again(former, &found, Some(Place { dir: dir.clone(), name }));
        }
        match former.kind {
            Kind::Dir => Err(Errno::ESTALE),
            _ => self.enter_again(former, &find::found(None, lower), None),
        }
    }

    /// Enters what was found again, under its former number.
    fn enter_again(
        &self,
        mut former: Former,
        found: &Found,
        place: Option<Place>,
    ) -> Result<Arc<Node>> {
        let mut parts = self.parts(found, (former.ino, former.generation), place)?;
        let upper = found.upper.as_ref().map(|(held, attr)| (held.ino(), attr.generation));
        parts.state.is_removed = upper.is_none() && parts.state.place.is_none();
        if let Some(saved) = &former.saved
            && upper != former.upper
        {
            let (upper, generation) = upper.unwrap_or_default();
            saved.copied_up(upper, generation);
        }
        parts.state.saved = former.saved.take();
        self.keep(parts)
    }
}
