//! What the next service is to know of an inode: its identity, our number for it, its place.
//!
//! | record | word | what |
//! |---|---|---|
//! | node | 0 | our number |
//! | | 1 | device: major, minor |
//! | | 2 | the host's number |
//! | | 3, 4 | birth: seconds; nanoseconds, kind above bit 32 |
//! | | 5 | record of the place + 1; 0: it has none |
//! | | 6 | 1: the root |
//! | place | 0 | record of the directory's node |
//! | | bytes | the name |
//!
//! A node without a record (there was no room) is not known to the next service, nor is what lies
//! below it.

use super::host::Key;
use super::node::Node;
use crate::fs::Kind;
use crate::handover::{Kind as What, Record, Slot, Store};
use polylane_base::{Ino, Time};
use std::collections::HashMap;
use std::sync::Arc;

/// The word that refers to the place.
const PLACE: usize = 5;
/// The word that marks the root.
const ROOT: usize = 6;

/// The records of one node. Dropped, they are freed: the node is known no longer.
pub(super) struct Saved {
    store: Arc<Store>,
    slot: Slot,
}

impl Saved {
    /// Records a node without a place.
    pub(super) fn new(store: &Arc<Store>, ino: Ino, key: Key, kind: Kind) -> Option<Saved> {
        let device = u64::from(key.dev.0) << 32 | u64::from(key.dev.1);
        let born = u64::from(key.born.nsec) | (kind as u64) << 32;
        let words = [ino.0, device, key.ino, key.born.sec as u64, born, 0, 0];
        let slot = store.put(What::HostNode, words, b"")?;
        Some(Saved { store: store.clone(), slot })
    }

    /// This is the root.
    pub(super) fn mark_root(&self) {
        self.store.set(self.slot, ROOT, 1);
    }

    /// The node is now here. Calls for one node come one at a time.
    pub(super) fn put(&self, dir: Option<&Saved>, name: &[u8]) {
        let words = dir.map(|dir| [u64::from(dir.slot.0), 0, 0, 0, 0, 0, 0]);
        let place = words.and_then(|words| self.store.put(What::HostPlace, words, name));
        self.replace(place);
    }

    /// The node has no place any more. As [`put`](Self::put).
    pub(super) fn leave(&self) {
        self.replace(None);
    }

    fn replace(&self, place: Option<Slot>) {
        let old = self.store.word(self.slot, PLACE);
        self.store.set(self.slot, PLACE, place.map_or(0, |place| u64::from(place.0) + 1));
        if let Some(old) = slot(old) {
            self.store.free(old);
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let place = self.store.word(self.slot, PLACE);
        self.store.free(self.slot);
        if let Some(place) = slot(place) {
            self.store.free(place);
        }
    }
}

/// A reference to a record, as a word.
fn slot(word: u64) -> Option<Slot> {
    u32::try_from(word.checked_sub(1)?).ok().map(Slot)
}

/// The nodes that a former service recorded, with their places, the root first.
pub(super) fn nodes(store: &Arc<Store>, records: &[Record]) -> Vec<Arc<Node>> {
    let mut nodes = HashMap::new();
    let mut all = Vec::new();
    for record in records.iter().filter(|record| record.kind == What::HostNode) {
        let [ino, device, host, sec, born, ..] = record.words;
        let Some(kind) = Kind::from_dtype((born >> 32) as u8) else { continue };
        let dev = ((device >> 32) as u32, device as u32);
        let born = Time { sec: sec as i64, nsec: born as u32 };
        let saved = Saved { store: store.clone(), slot: record.slot };
        let node = Node::new(Ino(ino), Key { dev, ino: host, born }, kind, Some(saved));
        nodes.insert(record.slot, node.clone());
        all.push((record, node));
    }
    let places: HashMap<Slot, &Record> = records
        .iter()
        .filter(|record| record.kind == What::HostPlace)
        .map(|record| (record.slot, record))
        .collect();
    let mut used = Vec::new();
    for (record, node) in &all {
        let Some(place) = slot(record.words[PLACE]) else { continue };
        let Some(found) = places.get(&place) else { continue };
        used.push(place);
        if let Some(dir) = u32::try_from(found.words[0]).ok().and_then(|dir| nodes.get(&Slot(dir)))
        {
            node.found_at(dir, &found.bytes);
        }
    }
    // A place that no node refers to: its node was about to move there, or had just left.
    places.keys().filter(|slot| !used.contains(slot)).for_each(|slot| store.free(*slot));
    let (root, rest): (Vec<_>, _) =
        all.into_iter().partition(|(record, _)| record.words[ROOT] == 1);
    match root.is_empty() {
        true => Vec::new(),
        false => root.into_iter().chain(rest).map(|(_, node)| node).collect(),
    }
}
