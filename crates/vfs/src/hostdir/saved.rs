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
use crate::fs::Kind;
use crate::handover::{Kind as What, Slot, Store};
use polylane_base::Ino;
use std::sync::Arc;

/// The word that refers to the place.
pub(super) const PLACE: usize = 5;
/// The word that marks the root.
pub(super) const ROOT: usize = 6;

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

    /// The records of a node that a former service recorded in `slot`.
    pub(super) fn former(store: &Arc<Store>, slot: Slot) -> Saved {
        Saved { store: store.clone(), slot }
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
pub(super) fn slot(word: u64) -> Option<Slot> {
    u32::try_from(word.checked_sub(1)?).ok().map(Slot)
}
