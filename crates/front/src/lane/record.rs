//! Records of what a lane has open, for the next service: each goes with what it is about.

use polylane_base::sync::Arc;
use polylane_vfs::OpenFile;
use polylane_vfs::handover::{self, Kind, Store};

/// A record that goes with what it is about.
pub struct Record {
    store: Arc<Store>,
    slot: handover::Slot,
}

impl Record {
    /// Puts a record. `None`: there is no room, and what it is about is not handed over.
    pub(crate) fn put(
        store: &Arc<Store>,
        kind: Kind,
        words: [u64; 7],
        bytes: &[u8],
    ) -> Option<Record> {
        let slot = store.put(kind, words, bytes)?;
        Some(Record { store: store.clone(), slot })
    }

    /// One that a former service put.
    pub(crate) fn adopt(store: &Arc<Store>, record: &handover::Record) -> Record {
        Record::of(store, record.slot)
    }

    /// That of a place.
    pub(crate) fn of(store: &Arc<Store>, slot: handover::Slot) -> Record {
        Record { store: store.clone(), slot }
    }

    /// Changes a word.
    pub(crate) fn set(&self, index: usize, value: u64) {
        self.store.set(self.slot, index, value);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.store.free(self.slot);
    }
}

/// Beside the flags of an open file in its record: it has lost bytes.
pub(super) const LOST: u64 = 1 << 33;

/// The flags of an open file as its record has them.
pub(crate) fn flags_word(file: &OpenFile) -> u64 {
    let lost = if file.is_lost() { LOST } else { 0 };
    u64::from(file.flags().cast_unsigned()) | lost
}
