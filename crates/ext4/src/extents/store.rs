//! Storing an edited path of an extent tree, as a B-tree does it.
//!
//! From the leaf upwards, a node that became empty goes; one that is too full gives entries to a
//! neighbour below the same parent, or is split in two; one that is less than half full takes
//! entries from a neighbour, or is merged with it. So every node but those on the way to the file's
//! last block is at least half full, whatever the order of the changes, and the depth that the
//! format allows is never reached by less than hundreds of millions of extents. A file that grows
//! at its end leaves full nodes behind: its last node is not halved.
//!
//! Everything is planned in memory first, with blocks claimed for new nodes. What cannot be done
//! for want of space changes nothing.

use polylane_base::Errno;
use polylane_base::sync::Arc;

use super::{Path, Step, corrupt, load};
use crate::alloc::Claim;
use crate::cache::{MetaBlock, Seal};
use crate::error::Result;
use crate::format::extent::{DEPTH_MAX, Entries, Index, Node, ROOT_BYTES, capacity};
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;

/// The first key behind all file blocks: a node with this limit is on the way to the last block.
pub(super) const END: u64 = 1 << 32;

/// Two neighbours share their entries only when a sixteenth of one stays free between them: else
/// the next insert would share again.
const SLACK_DIVISOR: usize = 16;

/// What storing an edited path changes.
struct Plan<'a> {
    volume: &'a Volume,
    cell: &'a Cell,
    /// Entries that fit into a node's block.
    fits: usize,
    /// Free entries that two neighbours keep when they share.
    slack: usize,
    writes: Vec<(Arc<MetaBlock>, Node)>,
    fresh: Vec<(Claim, Node)>,
    freed: Vec<DeviceBlock>,
}

/// A neighbour below the same parent.
struct Sibling {
    /// Its place in the parent.
    at: usize,
    block: Arc<MetaBlock>,
    node: Node,
}

/// Stores a path whose leaf was edited. Changes nothing when there is no space.
///
/// # Errors
/// `ENOSPC`, the device's, or a corrupt tree.
pub(super) fn store(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    path: Path,
) -> Result<()> {
    let fits = capacity(volume.io.block_bytes());
    let is_deepest = path.first().is_some_and(|root| root.node.depth == DEPTH_MAX);
    let slack = if is_deepest { 0 } else { fits / SLACK_DIVISOR };
    let (writes, fresh, freed) = (Vec::new(), Vec::new(), Vec::new());
    let mut plan = Plan { volume, cell, fits, slack, writes, fresh, freed };
    match plan.settle(path) {
        Ok(root) => plan.apply(handle, core, root),
        Err(error) => {
            plan.fresh.into_iter().for_each(|(claim, _)| volume.alloc.unclaim(claim));
            Err(error)
        }
    }
}

/// Writes a planned node, which fits: one that is read has no more entries than fit, an edit adds
/// two at most, and [`Plan::relieve`] spreads what is too much over two nodes.
fn write_node(handle: &Handle<'_>, block: &Arc<MetaBlock>, node: &Node) {
    node.encode(&mut handle.modify(block));
}

/// Whether a node is all there is below the root, and so small that the root can hold it.
fn fits_root(step: &Step, above: &Path) -> bool {
    step.node.len() <= capacity(ROOT_BYTES) && above.iter().all(|step| step.node.len() == 1)
}

/// The first key of a node that has entries.
fn first_key(node: &Node) -> FileBlock {
    match &node.entries {
        Entries::Leaf(extents) => extents[0].first,
        Entries::Inner(indexes) => indexes[0].first,
    }
}

/// Cuts a node in two: the first `keep` entries, and those behind them.
fn split(node: Node, keep: usize) -> (Node, Node) {
    let depth = node.depth;
    let (left, right) = match node.entries {
        Entries::Leaf(mut left) => {
            let right = left.split_off(keep);
            (Entries::Leaf(left), Entries::Leaf(right))
        }
        Entries::Inner(mut left) => {
            let right = left.split_off(keep);
            (Entries::Inner(left), Entries::Inner(right))
        }
    };
    (Node { depth, entries: left }, Node { depth, entries: right })
}

impl Plan<'_> {
    /// Least entries of a node that is not on the way to the last block.
    fn half(&self) -> usize {
        self.fits / 2
    }

    /// Plans the path's nodes, from the leaf upwards. Returns the root when it changes.
    fn settle(&mut self, mut path: Path) -> Result<Option<Node>> {
        while let Some(step) = path.pop() {
            let lifts = fits_root(&step, &path);
            let Some(parent) = path.last_mut() else {
                return self.settle_root(step.node).map(Some);
            };
            if !self.settle_node(step, parent)? && !lifts {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Plans one node below the root. Returns whether its parent changed.
    fn settle_node(&mut self, step: Step, parent: &mut Step) -> Result<bool> {
        let Step { block, node, at, limit } = step;
        let block = block.ok_or_else(|| corrupt(self.cell, "root below an inner node"))?;
        if node.is_empty() {
            let place = parent.at;
            let index = parent.indexes().remove(place);
            self.freed.push(index.child);
            return Ok(true);
        }
        if node.len() > self.fits {
            self.relieve(block, node, at, limit == END, parent)?;
            return Ok(true);
        }
        if node.len() < self.half() && limit != END && parent.node.len() > 1 {
            self.refill(block, node, parent)?;
            return Ok(true);
        }
        let (first, index) = (first_key(&node), parent.at);
        let old = std::mem::replace(&mut parent.indexes()[index].first, first);
        self.writes.push((block, node));
        Ok(old != first)
    }

    /// Makes room in a node that is too full. `at`: where its newest entry is.
    fn relieve(
        &mut self,
        block: Arc<MetaBlock>,
        node: Node,
        at: usize,
        is_last: bool,
        parent: &mut Step,
    ) -> Result<()> {
        let is_appended = at + 1 == node.len();
        if !(is_last && is_appended)
            && let Some(sibling) = self.roomy_sibling(&node, at, parent)?
        {
            self.share(sibling, block, node, at, parent);
            return Ok(());
        }
        let keep = if is_last && is_appended { self.fits } else { node.len() / 2 };
        let (left, right) = split(node, keep);
        let claim = self.volume.alloc.claim(self.volume.goal(self.cell.ino), 1)?;
        let index = Index { first: first_key(&right), child: claim.start };
        self.fresh.push((claim, right));
        let place = parent.at;
        parent.indexes()[place].first = first_key(&left);
        parent.indexes().insert(place + 1, index);
        parent.at = place + 1;
        self.writes.push((block, left));
        Ok(())
    }

    /// A neighbour that can take some of a node's entries: first the one away from the newest
    /// entry, since more are likely to come there.
    fn roomy_sibling(&self, node: &Node, at: usize, parent: &mut Step) -> Result<Option<Sibling>> {
        let (left, right) = (parent.at.checked_sub(1), Some(parent.at + 1));
        let order = if at < node.len() / 2 { [right, left] } else { [left, right] };
        for place in order.into_iter().flatten() {
            if let Some(sibling) = self.sibling(place, node.depth, parent)?
                && sibling.node.len() + node.len() + self.slack <= 2 * self.fits
            {
                return Ok(Some(sibling));
            }
        }
        Ok(None)
    }

    fn sibling(&self, at: usize, depth: u16, parent: &mut Step) -> Result<Option<Sibling>> {
        let Some(index) = parent.indexes().get(at).copied() else { return Ok(None) };
        let (block, node) = load(self.volume, self.cell, index, depth)?;
        Ok(Some(Sibling { at, block, node }))
    }

    /// Spreads the entries of a node and its neighbour over both: evenly, but for a newest entry at
    /// the node's end away from the neighbour. Then the neighbour is filled, and the node has room
    /// for more there.
    fn share(
        &mut self,
        sibling: Sibling,
        block: Arc<MetaBlock>,
        node: Node,
        at: usize,
        parent: &mut Step,
    ) {
        let (total, place) = (sibling.node.len() + node.len(), parent.at);
        let filled = self.fits.min(total - self.half());
        let is_left = sibling.at < place;
        let keep = match (is_left, at) {
            (true, at) if at + 1 == node.len() => filled,
            (false, 0) => total - filled,
            _ => total / 2,
        };
        let (low, high) = if is_left { (sibling.at, place) } else { (place, sibling.at) };
        let (low_block, high_block, nodes) = match is_left {
            true => (sibling.block, block, join(sibling.node, node)),
            false => (block, sibling.block, join(node, sibling.node)),
        };
        let (left, right) = split(nodes, keep);
        parent.indexes()[low].first = first_key(&left);
        parent.indexes()[high].first = first_key(&right);
        self.writes.push((low_block, left));
        self.writes.push((high_block, right));
    }

    /// Fills a node that is less than half full up from a neighbour, or merges both.
    fn refill(&mut self, block: Arc<MetaBlock>, node: Node, parent: &mut Step) -> Result<()> {
        let left = match parent.at.checked_sub(1) {
            Some(at) => self.sibling(at, node.depth, parent)?,
            None => None,
        };
        let merges = |sibling: &Sibling| sibling.node.len() + node.len() <= self.fits;
        let right = match left.as_ref().is_some_and(&merges) {
            true => None,
            false => self.sibling(parent.at + 1, node.depth, parent)?,
        };
        let right_merges = right.as_ref().is_some_and(&merges);
        let sibling = if right_merges { right } else { left.or(right) };
        let sibling = sibling.ok_or_else(|| corrupt(self.cell, "a node without a neighbour"))?;
        if !merges(&sibling) {
            // Its own place is of no account: nothing was added.
            let middle = node.len() / 2;
            self.share(sibling, block, node, middle, parent);
            return Ok(());
        }
        let low = sibling.at.min(parent.at);
        let (kept, gone, nodes) = match sibling.at < parent.at {
            true => (sibling.block, block, join(sibling.node, node)),
            false => (block, sibling.block, join(node, sibling.node)),
        };
        parent.indexes()[low].first = first_key(&nodes);
        parent.indexes().remove(low + 1);
        self.writes.push((kept, nodes));
        self.freed.push(gone.home);
        Ok(())
    }

    /// Plans the root. One that is too full moves into a block of its own below a new root; an
    /// inner root without entries becomes an empty leaf; an only child that fits moves into it.
    fn settle_root(&mut self, node: Node) -> Result<Node> {
        if node.is_empty() {
            return Ok(Node { depth: 0, entries: Entries::Leaf(Vec::new()) });
        }
        if node.len() <= capacity(ROOT_BYTES) {
            return self.lift(node);
        }
        if node.depth == DEPTH_MAX {
            return Err(Errno::ENOSPC.into());
        }
        let claim = self.volume.alloc.claim(self.volume.goal(self.cell.ino), 1)?;
        let index = Index { first: first_key(&node), child: claim.start };
        let depth = node.depth + 1;
        self.fresh.push((claim, node));
        Ok(Node { depth, entries: Entries::Inner(vec![index]) })
    }

    /// Takes the entries of a root's only child into the root, as long as they fit.
    fn lift(&mut self, mut root: Node) -> Result<Node> {
        while let Entries::Inner(indexes) = &root.entries
            && let [only] = indexes[..]
        {
            let planned = self.writes.iter().position(|(block, _)| block.home == only.child);
            let child = match planned {
                Some(at) => self.writes[at].1.clone(),
                None => load(self.volume, self.cell, only, root.depth - 1)?.1,
            };
            if child.len() > capacity(ROOT_BYTES) {
                break;
            }
            if let Some(at) = planned {
                self.writes.swap_remove(at);
            }
            self.freed.push(only.child);
            root = child;
        }
        Ok(root)
    }

    /// Carries the plan out.
    fn apply(self, handle: &Handle<'_>, core: &mut Core, root: Option<Node>) -> Result<()> {
        let Plan { volume, cell, writes, fresh, freed, .. } = self;
        let seal = if volume.has_sums { Seal::Extent(cell.seed) } else { Seal::None };
        let grown = fresh.len() as i64 - freed.len() as i64;
        for (claim, node) in fresh {
            let home = claim.start;
            volume.alloc.mark(handle, claim);
            write_node(handle, &volume.cache.create(&volume.io, home, seal), &node);
        }
        for (block, node) in writes {
            write_node(handle, &block, &node);
        }
        for home in freed {
            volume.alloc.free_metadata(handle, home, 1)?;
        }
        core.add_blocks(grown, volume.geometry.block_bytes);
        if let Some(root) = root {
            // [`Plan::settle_root`] leaves no more entries than the inode has room for.
            root.encode(core.raw.block_mut());
        }
        Ok(())
    }
}

/// The entries of two neighbours in one node, which may be more than fit.
fn join(mut left: Node, right: Node) -> Node {
    match (&mut left.entries, right.entries) {
        (Entries::Leaf(extents), Entries::Leaf(more)) => extents.extend(more),
        (Entries::Inner(indexes), Entries::Inner(more)) => indexes.extend(more),
        // Both were decoded for the same depth.
        _ => unreachable!("neighbours have one depth"),
    }
    left
}
