//! Attributes and extended attributes of nodes.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::fs::{AclKind, Attr, Kind, SetAttr, XattrMode};

use crate::Act;
use crate::layer::Held;
use crate::node::Node;

impl Act<'_> {
    /// The inode whose state a node shows.
    pub(crate) fn top(&self, node: &Node) -> Result<Held> {
        let lower = || node.lowers.first().map(|lower| lower.held.clone());
        node.upper().or_else(lower).ok_or(Errno::ESTALE)
    }

    /// A node's state.
    pub(crate) fn attr(&self, node: &Node) -> Result<Attr> {
        let own = self.top(node)?.shown(self.ctx, self.character.acls)?;
        let (is_removed, has_upper, below, uncovered) = {
            let state = node.state();
            (state.is_removed, state.upper.is_some(), state.below, state.uncovered)
        };
        let nlink = match node.kind {
            _ if is_removed => 0,
            // As overlayfs: its subdirectories were not counted.
            Kind::Dir if !node.lowers.is_empty() && own.nlink > 0 => 1,
            Kind::Dir => own.nlink,
            _ => match uncovered {
                // One of its links is the index'.
                Some(uncovered) => (own.nlink + uncovered).saturating_sub(1),
                None => own.nlink,
            },
        };
        let mut blocks = own.blocks;
        if let (Some(_), Some(lower), true) = (below, node.data(), has_upper) {
            blocks = blocks.max(lower.attr(self.ctx)?.blocks.min(own.size.div_ceil(512)));
        }
        Ok(Attr { ino: node.ino, generation: node.generation, nlink, blocks, ..own })
    }

    /// `FileSystem::setattr`.
    pub(crate) fn set(&self, node: &Arc<Node>, set: &SetAttr) -> Result<Attr> {
        // As overlayfs: to have been read is no reason to copy something up.
        let is_kept_atime = set.ctime.is_some()
            && *set == SetAttr { atime: set.atime, ctime: set.ctime, ..SetAttr::default() };
        if is_kept_atime && node.upper().is_none() {
            return self.attr(node);
        }
        match set.size {
            Some(size) => self.truncate(node, size, set)?,
            None => {
                let upper = self.copied_up(node)?;
                // Its times may be about to be given back.
                let _filling = node.filling_if_partial();
                upper.fs().setattr(self.ctx, upper.ino(), set)?;
            }
        }
        self.attr(node)
    }

    /// `FileSystem::getxattr`.
    pub(crate) fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let top = self.top(node)?;
        let is_list = AclKind::from_name(name).is_some();
        // A list that does not count is not shown.
        if is_list && !self.character.acls {
            return Err(Errno::EOPNOTSUPP);
        }
        match top.fs().getxattr(self.ctx, top.ino(), &top.layer().space().kept(name)) {
            // A layer that keeps no access lists, under an upper that does: the file has none.
            Err(Errno::EOPNOTSUPP) if is_list => Err(Errno::ENODATA),
            value => value,
        }
    }

    /// `FileSystem::listxattr`.
    pub(crate) fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let top = self.top(node)?;
        let names = top.fs().listxattr(self.ctx, top.ino())?;
        let shown = names.iter().filter_map(|name| top.layer().space().shown(name));
        let counts = |name: &Vec<u8>| self.character.acls || AclKind::from_name(name).is_none();
        Ok(shown.filter(counts).collect())
    }

    /// `FileSystem::setxattr`.
    pub(crate) fn setxattr(
        &self,
        node: &Arc<Node>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        // What is refused anyway copies nothing up.
        if node.upper().is_none() && mode != XattrMode::Any {
            match (self.getxattr(node, name), mode) {
                (Ok(_), XattrMode::Create) => return Err(Errno::EEXIST),
                (Err(errno), XattrMode::Replace) => return Err(errno),
                _ => {}
            }
        }
        let upper = self.copied_up(node)?;
        let kept = upper.layer().space().kept(name);
        upper.fs().setxattr(self.ctx, upper.ino(), &kept, value, mode)?;
        self.attr(node)
    }

    /// `FileSystem::removexattr`.
    pub(crate) fn removexattr(&self, node: &Arc<Node>, name: &[u8]) -> Result<Attr> {
        if node.upper().is_none() {
            self.getxattr(node, name)?;
        }
        let upper = self.copied_up(node)?;
        upper.fs().removexattr(self.ctx, upper.ino(), &upper.layer().space().kept(name))?;
        self.attr(node)
    }
}
