//! Names that the kernel was told for good: changes of these are the kernel's to make, and the next
//! service is to know them.

use polylane_vfs::Node;
use polylane_vfs::handover::Kind;
use zerocopy::little_endian::U64;

use super::{NodeTable, Place};
use crate::lane::record::Record;

/// In word 4: the record is of a name that the kernel moved.
pub(crate) const MOVED_NAME: u64 = 2;

impl NodeTable {
    /// The kernel may be told a name of an inode for good, or have been: changes of its names are
    /// the kernel's to make.
    pub(crate) fn is_told(&self, node: &Node) -> bool {
        let told = |id| self.shard(id).lock().get(&id).is_some_and(|entry| entry.told_at.is_some());
        self.id_of(node).is_some_and(told)
    }

    /// The kernel is about to move the name at `from`. If it was told that for good, the next
    /// service is to know the new one, `told` (as records have it), whether this service comes to
    /// an end before or after. `Some(false)`: there is no room for that; `None`: it was not.
    pub(crate) fn will_move(&self, node: &Node, from: Place, told: &[u8]) -> Option<bool> {
        let id = self.id_of(node)?;
        let told_at = self.shard(id).lock().get(&id)?.told_at?;
        if told_at != from && told_at != Place::NONE {
            return None;
        }
        let record = |store| Record::put(store, Kind::Node, [0, 0, 0, 0, MOVED_NAME, 0, id], told);
        let record = self.store.as_ref().and_then(record);
        let is_recorded = record.is_some();
        record.into_iter().for_each(|record| self.keep_moved(id, record));
        Some(is_recorded)
    }

    /// Such a record, which goes with the inode's id.
    pub(crate) fn keep_moved(&self, id: u64, record: Record) {
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.get_mut(&id) else { return };
        entry.moved.push(record);
    }

    /// The move of a name that was told for good is done, or failed (`to` is `None`): the kernel
    /// lets no other begin meanwhile.
    pub(crate) fn has_moved(&self, node: &Node, to: Option<Place>) {
        let Some(id) = self.id_of(node) else { return };
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.get_mut(&id) else { return };
        let over = match to {
            Some(to) => {
                entry.told_at = Some(to);
                (entry.moved.len() > 2).then(|| entry.moved.remove(0))
            }
            None => entry.moved.pop(),
        };
        drop(shard);
        drop(over);
    }

    /// A former service told a name of the inode `id` for good, as its record has it.
    pub(crate) fn was_told(&self, id: u64, told: &[u8]) {
        let Some((dir_id, name)) = told.split_first_chunk() else { return };
        self.former_names.lock().push((U64::from_bytes(*dir_id).get(), name.to_vec()));
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.told_at = Some(Place::NONE);
        }
    }

    /// Whether there are such names that were not taken yet.
    pub(crate) fn has_former_names(&self) -> bool {
        !self.former_names.lock().is_empty()
    }

    /// Those names, once.
    pub(crate) fn take_former_names(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut *self.former_names.lock())
    }
}
