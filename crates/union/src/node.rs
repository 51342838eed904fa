//! The inodes of a union that the VFS holds, and those above them.
//!
//! A node is found by its number, which it keeps when it is copied up: that of its inode in the
//! uppermost lower that has it, with the layer in its upper bits; else that of its inode in the
//! upper. A node that the VFS forgot lives on while a node below needs it as its place.
//!
//! # Invariants
//!
//! - Two live nodes have no number and no inode of the upper in common.
//! - Whatever lies in a lower stays there, so a node's lowers never change.
//! - A node that has anything in the lowers, or another number than its inode in the upper, has a
//!   record for the next service (`saved.rs`), unless there is no room for it.
//!
//! # Locking
//!
//! A node's state and the table are leaves but for the records; neither is held while a layer is
//! asked.

use polylane_base::sync::{Arc, Mutex, MutexGuard, Weak};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::fs::Kind;
use polylane_vfs::handover::Store;
use rustc_hash::FxHashMap;

use crate::layer::Held;
use crate::numbers::{LARGE, Slots};
use crate::saved::{Facts, Saved};
use crate::stream::Stream;

/// An inode in one lower.
#[derive(Clone, Debug)]
pub(crate) struct Lower {
    /// Its layer's place among the lowers, 0 for the uppermost; the data-only ones come last.
    pub(crate) index: usize,
    /// The inode.
    pub(crate) held: Held,
}

/// Data of a copied-up file that is still the lower's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Below {
    /// Bytes from here on are not the lower's.
    pub(crate) bound: u64,
    /// The bound that the upper's mark says is larger: it is written before the file grows.
    pub(crate) mark_is_wide: bool,
    /// All of the lower's data, and nothing else: marked as overlayfs does.
    pub(crate) whole: bool,
}

/// Why the data of a file that is not whole cannot be read. Its names can go nevertheless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spoiled {
    /// The lower is not as it was recorded. It may be again.
    Changed,
    /// No lower has it.
    Lost,
}

/// Where a node is in the union.
#[derive(Clone)]
pub(crate) struct Place {
    /// The directory.
    pub(crate) dir: Arc<Node>,
    /// The name there.
    pub(crate) name: Box<[u8]>,
}

/// What of a node may change.
#[derive(Default)]
pub(crate) struct State {
    /// Its inode in the upper.
    pub(crate) upper: Option<Held>,
    /// One of its names, of a node that has one.
    pub(crate) place: Option<Place>,
    /// Of a file in the upper: what the lower still has.
    pub(crate) below: Option<Below>,
    /// Of a file: its data cannot be read.
    pub(crate) spoiled: Option<Spoiled>,
    /// Of a file with an entry in the index: names in the lowers that are not in the upper.
    pub(crate) uncovered: Option<u32>,
    /// A directory, or an inode of a lower, whose last name was removed.
    pub(crate) is_removed: bool,
    /// Of a directory in the upper: its entries may have been copied up.
    pub(crate) is_impure: bool,
    /// Positions of streams of a directory that has lowers.
    pub(crate) stream: Option<Arc<Stream>>,
    /// What the next service is to know.
    pub(crate) saved: Option<Saved>,
}

/// An inode of the union. Thread-safe.
pub(crate) struct Node {
    /// Its number in the union.
    pub(crate) ino: Ino,
    /// Its generation, that of the inode it has its number from.
    pub(crate) generation: u64,
    /// What it is.
    pub(crate) kind: Kind,
    /// Of a directory: what is merged, the uppermost first. Else where it was copied up from, or
    /// where it is.
    pub(crate) lowers: Vec<Lower>,
    /// Of a file: where its data is, if not in the first of `lowers`.
    pub(crate) data: Option<Lower>,
    /// The path in the lowers from the root, with `/` before each name, that leads to `lowers`.
    pub(crate) lower_path: Box<[u8]>,
    state: Mutex<State>,
    filling: Mutex<()>,
    table: Arc<Table>,
}

/// On whose behalf a node is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The VFS, which holds it from then on.
    Vfs,
    /// A walk through the upper, which holds it no longer than the walk needs it.
    Walk,
}

/// What a new node is made of.
pub(crate) struct Parts {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
    pub(crate) kind: Kind,
    pub(crate) lowers: Vec<Lower>,
    pub(crate) data: Option<Lower>,
    pub(crate) lower_path: Box<[u8]>,
    /// The generation of its inode in the upper.
    pub(crate) upper_generation: u64,
    pub(crate) state: State,
}

impl Node {
    /// Its state, locked: a leaf.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Held by what changes the data, or the times, of a file that is not whole.
    pub(crate) fn filling(&self) -> MutexGuard<'_, ()> {
        self.filling.lock()
    }

    /// [`Node::filling`] of a file that is not whole. A whole one stays whole.
    pub(crate) fn filling_if_partial(&self) -> Option<MutexGuard<'_, ()>> {
        let is_partial = self.state().below.is_some();
        is_partial.then(|| self.filling())
    }

    /// Its inode in the upper.
    pub(crate) fn upper(&self) -> Option<Held> {
        self.state().upper.clone()
    }

    /// It has an inode in the upper now, of that generation, and data as `below` says.
    pub(crate) fn copied_up(
        &self,
        (held, generation): (Held, u64),
        below: Option<Below>,
        uncovered: Option<u32>,
    ) {
        let mut state = self.state();
        if let Some(saved) = &state.saved {
            saved.copied_up(held.ino(), generation);
        }
        state.upper = Some(held);
        (state.below, state.uncovered) = (below, uncovered);
        state.is_impure = self.kind == Kind::Dir;
    }

    /// Records a node that is new to the table, and whose inode in the upper has this generation.
    fn save(&self, store: &Arc<Store>, upper_generation: u64) {
        let mut state = self.state();
        let upper = state.upper.as_ref().map(Held::ino);
        if self.lowers.is_empty() && upper == Some(self.ino) || state.saved.is_some() {
            return;
        }
        let facts = Facts {
            ino: self.ino,
            generation: self.generation,
            upper: upper.map(|ino| (ino, upper_generation)),
            dir: state.place.as_ref().map(|place| place.dir.ino),
            kind: self.kind,
            lower_path: &self.lower_path,
        };
        let saved = Saved::put(store, &facts);
        state.saved = saved;
    }

    /// `ENOTDIR` for what is no directory.
    pub(crate) fn dir(&self) -> Result<()> {
        if self.kind == Kind::Dir { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    /// The inode whose data a lower has.
    pub(crate) fn data(&self) -> Option<&Held> {
        self.data.as_ref().or(self.lowers.first()).map(|lower| &lower.held)
    }

    /// Whether its data is all a lower's, and lies in a cache below that.
    pub(crate) fn is_cached_below(&self) -> bool {
        let is_lowers = self.state().upper.is_none();
        is_lowers && self.data().is_some_and(|data| data.fs().is_cached_below(data.ino()))
    }
}

impl Parts {
    fn into_node(self, table: Arc<Table>) -> Arc<Node> {
        let Parts { ino, generation, kind, lowers, data, lower_path, state, .. } = self;
        let state = Mutex::new(state);
        let filling = Mutex::new(());
        Arc::new(Node { ino, generation, kind, lowers, data, lower_path, state, filling, table })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.table.sweep(self.ino, state.upper.as_ref().map(Held::ino));
        // One after the other: a chain of directories may be deeper than a stack.
        let mut next = state.place.take().map(|place| place.dir);
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.state.get_mut().place.take().map(|place| place.dir);
        }
    }
}

#[derive(Default)]
struct Entry {
    node: Weak<Node>,
    /// While the VFS holds it.
    held: Option<Arc<Node>>,
}

#[derive(Default)]
struct Maps {
    nodes: FxHashMap<Ino, Entry>,
    uppers: FxHashMap<Ino, Weak<Node>>,
    /// Numbers of lowers' inodes that do not fit beside their layer's.
    large: FxHashMap<(usize, Ino), Ino>,
    /// The last of them.
    large_last: u64,
}

impl Maps {
    fn large(&mut self, of: (usize, Ino)) -> Ino {
        let last = &mut self.large_last;
        *self.large.entry(of).or_insert_with(|| {
            *last += 1;
            Ino(LARGE | *last)
        })
    }
}

/// The nodes of one union. Thread-safe.
pub(crate) struct Table {
    maps: Mutex<Maps>,
    slots: Slots,
    /// Where the next service finds what this one knows.
    store: Option<Arc<Store>>,
}

impl Table {
    /// A table of nodes over layers with these numbers; with `store` the next service is to know
    /// the nodes.
    pub(crate) fn new(slots: Slots, store: Option<Arc<Store>>) -> Table {
        Table { maps: Mutex::default(), slots, store }
    }

    /// The numbers of its layers.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Numbers of a former service that no node is to have but the one that had it.
    pub(crate) fn keep_numbers(&self, former: impl Iterator<Item = Ino>) {
        let large = former.filter(|ino| ino.0 >= LARGE).map(|ino| ino.0 & !LARGE);
        let mut maps = self.maps.lock();
        maps.large_last = large.fold(maps.large_last, u64::max);
    }

    /// An inode of a lower had this number in a former service.
    pub(crate) fn renumber(&self, from_lowest: usize, ino: Ino, number: Ino) {
        if number.0 >= LARGE {
            self.maps.lock().large.insert((from_lowest, ino), number);
        }
    }

    /// A node that lives, whoever holds it.
    pub(crate) fn live(&self, ino: Ino) -> Option<Arc<Node>> {
        self.maps.lock().nodes.get(&ino)?.node.upgrade()
    }

    /// The VFS holds a node of this table from here on.
    pub(crate) fn hold(&self, node: &Arc<Node>) {
        let mut maps = self.maps.lock();
        let former = match maps.nodes.get_mut(&node.ino) {
            Some(entry) => entry.held.replace(node.clone()),
            None => None,
        };
        drop(maps);
        drop(former);
    }

    /// A node that the VFS holds; `ESTALE`.
    pub(crate) fn get(&self, ino: Ino) -> Result<Arc<Node>> {
        let maps = self.maps.lock();
        maps.nodes.get(&ino).and_then(|entry| entry.held.clone()).ok_or(Errno::ESTALE)
    }

    /// The live node of an inode of the upper.
    pub(crate) fn of_upper(&self, upper: Ino, by: By) -> Option<Arc<Node>> {
        let mut maps = self.maps.lock();
        let node = maps.uppers.get(&upper)?.upgrade()?;
        if by == By::Vfs {
            maps.nodes.entry(node.ino).or_default().held = Some(node.clone());
        }
        Some(node)
    }

    /// The number of an inode of the lower that is the `from_lowest`th from below.
    pub(crate) fn number(&self, from_lowest: usize, ino: Ino) -> Ino {
        let large = || self.maps.lock().large((from_lowest, ino));
        self.slots.number(from_lowest, ino).unwrap_or_else(large)
    }

    /// A number for an inode of a lower whose own is that of another node.
    pub(crate) fn other_number(&self, from_lowest: usize, ino: Ino) -> Ino {
        self.maps.lock().large((from_lowest, ino))
    }

    /// The node of what was found, entered if it is new. `None`: another node has its number.
    pub(crate) fn enter(self: &Arc<Self>, parts: Parts, by: By) -> Option<Arc<Node>> {
        let upper = parts.state.upper.as_ref().map(Held::ino);
        let (ino, upper_generation) = (parts.ino, parts.upper_generation);
        let node = parts.into_node(self.clone());
        // To be dropped after the lock.
        let (mut former, mut other) = (None, None);
        let mut maps = self.maps.lock();
        let live = maps.nodes.get(&ino).and_then(|entry| entry.node.upgrade());
        let live = match live {
            Some(live) if live.state().upper.as_ref().map(Held::ino) == upper => Some(live),
            live => {
                other = live;
                None
            }
        };
        let same = upper.and_then(|upper| maps.uppers.get(&upper)?.upgrade()).or(live);
        let entered = match (same, &other) {
            (Some(same), _) => Some(same),
            (None, Some(_)) => None,
            (None, None) => {
                if let Some(upper) = upper {
                    maps.uppers.insert(upper, Arc::downgrade(&node));
                }
                if let Some(store) = &self.store {
                    node.save(store, upper_generation);
                }
                Some(node.clone())
            }
        };
        if let Some(node) = &entered {
            let was_held = maps.nodes.get(&node.ino).and_then(|entry| entry.held.clone());
            let held = if by == By::Vfs { Some(node.clone()) } else { was_held };
            let entry = Entry { node: Arc::downgrade(node), held };
            former = maps.nodes.insert(node.ino, entry);
        }
        drop(maps);
        drop((former, other));
        entered
    }

    /// A node was copied up.
    pub(crate) fn copied_up(&self, node: &Arc<Node>, upper: Ino) {
        self.maps.lock().uppers.insert(upper, Arc::downgrade(node));
    }

    /// The VFS holds none any more, and what the next service is to know of them stays.
    pub(crate) fn forget_all(&self) {
        let mut maps = self.maps.lock();
        let held: Vec<_> = maps.nodes.values_mut().filter_map(|entry| entry.held.take()).collect();
        drop(maps);
        for node in held {
            let saved = node.state().saved.take();
            saved.into_iter().for_each(Saved::leave);
        }
    }

    /// The VFS holds it no more.
    pub(crate) fn forget(&self, ino: Ino) {
        let mut maps = self.maps.lock();
        let node = maps.nodes.get_mut(&ino).and_then(|entry| entry.held.take());
        drop(maps);
        drop(node);
    }

    /// Takes out what leads to a node that is gone.
    fn sweep(&self, ino: Ino, upper: Option<Ino>) {
        let mut maps = self.maps.lock();
        if maps.nodes.get(&ino).is_some_and(|entry| entry.node.strong_count() == 0) {
            maps.nodes.remove(&ino);
        }
        if let Some(upper) = upper
            && maps.uppers.get(&upper).is_some_and(|node| node.strong_count() == 0)
        {
            maps.uppers.remove(&upper);
        }
    }
}
