//! The known inodes of one instance: by our number, for the VFS, and by the host's identity.
//!
//! Our number is the host's, unless the inode lies on another device (a btrfs subvolume, some
//! overlays) or the number still belongs to a former inode: then it is one of our own with the
//! top bit set. So a number never changes its meaning while somebody holds it.
//!
//! A forgotten directory lives on while a node below needs it as its place.

use super::former;
use super::host::{HostStat, Key};
use super::node::Node;
use super::saved::Saved;
use crate::handover::{Record, Store};
use polylane_base::sync::RwLock;
use polylane_base::{Errno, Ino, Result};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};

/// Set in numbers that are not the host's.
const OWN_NUMBER: u64 = 1 << 63;

/// Whether a number is one of our own: another service gives the inode another one.
pub fn is_own_number(ino: Ino) -> bool {
    ino.0 & OWN_NUMBER != 0
}

/// Dead identities that are not worth sweeping out.
const DEAD_MIN: usize = 1024;

/// See the module header. Thread-safe.
pub(super) struct Table {
    device: (u32, u32),
    inner: RwLock<Inner>,
    /// Where the next service finds what this one knows.
    store: Option<Arc<Store>>,
}

#[derive(Default)]
struct Inner {
    nodes: FxHashMap<Ino, Arc<Node>>,
    known: FxHashMap<Key, Weak<Node>>,
    sweep_at: usize,
    last_own: u64,
    /// What a former service knew and nobody asked for yet.
    former: FxHashMap<Ino, Arc<Node>>,
}

impl Table {
    /// A table with the root in it, for ever.
    pub(super) fn new(
        root: &HostStat,
        store: Option<(Arc<Store>, &[Record])>,
    ) -> (Table, Arc<Node>) {
        let mut inner = Inner::default();
        let mut former = Vec::new();
        if let Some((store, records)) = &store {
            former = former::nodes(store, records);
            // Of another directory, or of one that was replaced: nothing of it counts.
            if !former.first().is_some_and(|node| node.key == root.key) {
                former.clear();
            }
        }
        let store = store.map(|(store, _)| store);
        let own = former.iter().map(|node| node.ino).filter(|ino| is_own_number(*ino));
        inner.last_own = own.max().map_or(0, |last| last.0 & !OWN_NUMBER);
        let mut nodes = former.into_iter();
        let node = match nodes.next() {
            Some(node) => {
                inner.nodes.insert(node.ino, node.clone());
                inner.known.insert(node.key, Arc::downgrade(&node));
                node
            }
            None => {
                let node = inner.add(root, root.key.dev, store.as_ref());
                node.saved().inspect(|saved| saved.mark_root());
                node
            }
        };
        inner.former = nodes.map(|node| (node.ino, node)).collect();
        (Table { device: root.key.dev, inner: RwLock::new(inner), store }, node)
    }

    /// Takes in again what a former service knew; from here on the VFS holds it.
    pub(super) fn revive(&self, ino: Ino) -> Result<Arc<Node>> {
        let mut inner = self.inner.write();
        if let Some(node) = inner.nodes.get(&ino) {
            return Ok(node.clone());
        }
        let node = inner.former.get(&ino).cloned().ok_or(Errno::ESTALE)?;
        inner.nodes.insert(ino, node.clone());
        inner.known.insert(node.key, Arc::downgrade(&node));
        Ok(node)
    }

    /// Nobody will ask for more of what a former service knew.
    pub(super) fn end_revival(&self) {
        let former = std::mem::take(&mut self.inner.write().former);
        drop(former);
    }

    /// A node that the VFS holds.
    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Node>> {
        self.inner.read().nodes.get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    /// The node that the VFS holds for a host inode, if it does.
    pub(super) fn known(&self, key: &Key) -> Option<Arc<Node>> {
        self.inner.read().held(key)
    }

    /// The node of the inode found as `name` in `dir`; from here on the VFS holds it.
    pub(super) fn intern(&self, found: &HostStat, place: Option<(&Arc<Node>, &[u8])>) -> Arc<Node> {
        let held = self.inner.read().held(&found.key);
        let add = || self.inner.write().add(found, self.device, self.store.as_ref());
        let node = held.unwrap_or_else(add);
        if let Some((dir, name)) = place {
            node.put(dir, name);
        }
        node
    }

    /// The VFS holds `ino` no more.
    pub(super) fn forget(&self, ino: Ino) {
        // The node may be the last of a chain: dropped after the lock.
        let node = self.inner.write().nodes.remove(&ino);
        drop(node);
    }
}

impl Inner {
    fn held(&self, key: &Key) -> Option<Arc<Node>> {
        let node = self.known.get(key)?.upgrade()?;
        self.nodes.get(&node.ino).filter(|held| Arc::ptr_eq(held, &node))?;
        Some(node)
    }

    fn add(
        &mut self,
        found: &HostStat,
        device: (u32, u32),
        store: Option<&Arc<Store>>,
    ) -> Arc<Node> {
        if let Some(node) = self.held(&found.key) {
            return node;
        }
        let forgotten = self.known.get(&found.key).and_then(Weak::upgrade);
        let node = match forgotten.filter(|node| !self.nodes.contains_key(&node.ino)) {
            Some(node) => node,
            None => {
                let (ino, kind) = (self.number(found.key, device), found.attr.kind);
                let saved = store.and_then(|store| Saved::new(store, ino, found.key, kind));
                Node::new(ino, found.key, kind, saved)
            }
        };
        self.nodes.insert(node.ino, node.clone());
        self.known.insert(found.key, Arc::downgrade(&node));
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, node| node.strong_count() > 0);
            self.sweep_at = 2 * self.known.len() + DEAD_MIN;
        }
        node
    }

    fn number(&mut self, key: Key, device: (u32, u32)) -> Ino {
        let host = Ino(key.ino);
        if key.dev == device && !self.nodes.contains_key(&host) {
            return host;
        }
        loop {
            self.last_own += 1;
            let own = Ino(OWN_NUMBER | self.last_own);
            if !self.nodes.contains_key(&own) {
                return own;
            }
        }
    }
}
