//! The known inodes of one instance: by our number, for the VFS, and by the host's identity.
//!
//! Our number is the host's, unless the inode lies on another device (a btrfs subvolume, some
//! overlays) or the number still belongs to a former inode: then it is one of our own with the
//! top bit set. So a number never changes its meaning while somebody holds it.
//!
//! A forgotten directory lives on while a node below needs it as its place.

use super::host::{HostStat, Key};
use super::node::{Node, Place};
use polylane_base::sync::RwLock;
use polylane_base::{Errno, Ino, Result};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};

/// Set in numbers that are not the host's.
const OWN_NUMBER: u64 = 1 << 63;
/// Dead identities that are not worth sweeping out.
const DEAD_MIN: usize = 1024;

/// See the module header. Thread-safe.
pub(super) struct Table {
    device: (u32, u32),
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    nodes: FxHashMap<Ino, Arc<Node>>,
    known: FxHashMap<Key, Weak<Node>>,
    sweep_at: usize,
    last_own: u64,
}

impl Table {
    /// A table with the root in it, for ever.
    pub(super) fn new(root: &HostStat) -> (Table, Arc<Node>) {
        let table = Table { device: root.key.dev, inner: RwLock::default() };
        let node = table.inner.write().add(root, table.device, None);
        (table, node)
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
        let node = held.unwrap_or_else(|| {
            let place = place.map(|(dir, name)| Place { dir: dir.clone(), name: name.into() });
            self.inner.write().add(found, self.device, place)
        });
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

    fn add(&mut self, found: &HostStat, device: (u32, u32), place: Option<Place>) -> Arc<Node> {
        if let Some(node) = self.held(&found.key) {
            return node;
        }
        let forgotten = self.known.get(&found.key).and_then(Weak::upgrade);
        let node = match forgotten.filter(|node| !self.nodes.contains_key(&node.ino)) {
            Some(node) => node,
            None => Node::new(self.number(found.key, device), found.key, found.attr.kind, place),
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
