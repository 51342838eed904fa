//! What the kernel may have of a file, in the tag of its inode.
//!
//! | bits  | meaning                                                                       |
//! |-------|-------------------------------------------------------------------------------|
//! | 0     | [`TAG_PAGES`]: the kernel may have pages of the own node that programs change |
//! | 1     | [`TAG_SLOT_PAGES`]: the kernel filled a page of a slot's node bound to it     |
//! | 2     | [`TAG_OPEN`]: the kernel has the file's own node open                         |
//! | 3     | [`TAG_KEPT`]: the kernel may have pages of the own node                       |
//! | 4–9   | how often the kernel began to fill a page of it: see `Moment`                 |
//! | 10–15 | how often it brought back what a program stored through a mapping             |
//! | 16–63 | counter of the FUSE node id; 0 when the kernel does not know the inode        |
//!
//! Pages that programs only read and execute are as the service has them: who reads need not ask
//! for them, and who changes the file has them dropped before the change is answered. So the kernel
//! may keep them from one open to the next. Of pages that programs may change, through a mapping
//! that is shared and can be written, the newest bytes may be the kernel's: who reads has them
//! dropped, too.

use polylane_base::sync::atomic::Ordering;
use polylane_vfs::Node;

/// Bit of the inode's tag: the kernel may have pages of it under its own node, and a handle by
/// which they can be mapped to be changed. [`TAG_KEPT`] is set, too.
pub const TAG_PAGES: u64 = 1;
/// Bit of the inode's tag: the kernel may have pages of it under the node of a slot.
pub const TAG_SLOT_PAGES: u64 = 2;
/// Bit of the inode's tag: the kernel has handles open on its own node.
pub const TAG_OPEN: u64 = 4;
/// Bit of the inode's tag: the kernel may have pages of it under its own node, also such as it
/// keeps while nobody has the file open.
pub const TAG_KEPT: u64 = 8;
/// Where the counts of fills and of stores start in the tag.
const TAG_FILLS_SHIFT: u32 = 4;
const TAG_STORES_SHIFT: u32 = 10;
/// Where the node-id counter starts in the tag.
pub(crate) const TAG_ID_SHIFT: u32 = 16;
const TAG_FILLS: u64 = (1 << TAG_STORES_SHIFT) - (1 << TAG_FILLS_SHIFT);
const TAG_STORES: u64 = (1 << TAG_ID_SHIFT) - (1 << TAG_STORES_SHIFT);

/// A moment in the life of a file's pages in the kernel: how many fills had begun, and how many
/// stores had come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Now.
    pub(crate) fn of(node: &Node) -> Moment {
        Moment(tag(node) & (TAG_FILLS | TAG_STORES))
    }

    /// What happened between then and now.
    pub(crate) fn until_now(self, node: &Node) -> Beside {
        let filled = (tag(node) ^ self.0) & TAG_FILLS != 0;
        Beside { filled, stores: self.0 & TAG_STORES }
    }

    /// The kernel begins to fill a page: to be called before it is read.
    pub(crate) fn fill(node: &Node) {
        count(node, TAG_FILLS, TAG_FILLS_SHIFT);
    }

    /// What a program stored through a mapping came back: to be called once it is stored.
    pub(crate) fn store(node: &Node) {
        count(node, TAG_STORES, TAG_STORES_SHIFT);
    }
}

/// What happened beside a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    filled: bool,
    /// Stores that had come back before it.
    stores: u64,
}

impl Beside {
    /// Whether pages were filled, perhaps with what was there before.
    pub(crate) fn filled(self) -> bool {
        self.filled
    }

    /// Whether such a page may have come back.
    pub(crate) fn came_back(self, node: &Node) -> bool {
        self.filled && tag(node) & TAG_STORES != self.stores
    }
}

/// Counts up in a part of the tag.
fn count(node: &Node, part: u64, shift: u32) {
    let next = |tag: u64| Some(tag & !part | (tag + (1 << shift)) & part);
    let _always = node.tag().fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
}

/// The inode's tag, ordered after every earlier change of its data by this thread.
pub(crate) fn tag(node: &Node) -> u64 {
    node.tag().load(Ordering::SeqCst)
}

/// Whether the kernel may have pages of the file: they are dropped before a change is answered.
pub(crate) fn kernel_has_pages(node: &Node) -> bool {
    tag(node) & (TAG_PAGES | TAG_SLOT_PAGES | TAG_KEPT) != 0
}

/// Whether the kernel may have pages of the file that programs change: they are dropped before it
/// is read, too.
pub(crate) fn kernel_changes_pages(node: &Node) -> bool {
    tag(node) & (TAG_PAGES | TAG_SLOT_PAGES) != 0
}

/// Whether the kernel has a file's own node open, and is to know how long it is.
pub(crate) fn kernel_has_open(node: &Node) -> bool {
    tag(node) & TAG_OPEN != 0
}

pub(crate) fn set_tag(node: &Node, bit: u64) {
    node.tag().fetch_or(bit, Ordering::SeqCst);
}

pub(crate) fn clear_tag(node: &Node, bit: u64) {
    node.tag().fetch_and(!bit, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::empty::lane;

    #[test]
    fn fills_and_stores_are_counted_beside_the_rest_of_the_tag() {
        let node = lane().vfs.root();
        let others = TAG_PAGES | 77 << TAG_ID_SHIFT;
        node.tag().store(others, Ordering::SeqCst);
        let first = Moment::of(&node);
        for _ in 0..TAG_FILLS >> TAG_FILLS_SHIFT {
            Moment::fill(&node);
            assert!(first.until_now(&node).filled());
        }
        Moment::fill(&node);
        assert_eq!((Moment::of(&node), tag(&node)), (first, others));
        let beside = Beside { filled: true, ..first.until_now(&node) };
        for _ in 0..TAG_STORES >> TAG_STORES_SHIFT {
            Moment::store(&node);
            assert!(beside.came_back(&node));
        }
        Moment::store(&node);
        assert_eq!(tag(&node), others);
    }
}
