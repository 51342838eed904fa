//! From the records of a former service to the tables of this one.
//!
//! What cannot be found again (in a host directory an open file whose last name was gone, or a name
//! that moved behind our back) is left out: its node id is `ESTALE`, its handle `EIO`, as after any
//! loss.

use std::collections::HashMap;

use polylane_base::Ino;
use polylane_base::sync::Arc;
use polylane_vfs::handover::{self, Kind};
use polylane_vfs::{Node, OpenFile, Vfs};

use super::handover::Handover;
use super::nodes::{MOVED_NAME, NodeTable, Target};
use super::record::{LOST, Record};
use super::slots::{Slot, SlotTable};

/// Opens a file of a former service again: for its locks alone, if it lost bytes. `None`: it cannot
/// be found.
pub(crate) fn open(
    vfs: &Vfs,
    handover: &Handover,
    flags: u64,
    (ino, generation): (u64, u64),
) -> Option<Arc<OpenFile>> {
    let node = vfs.revive(Ino(ino), generation).ok()?;
    let file = vfs.reopen(&node, (flags as u32).cast_signed());
    if flags & LOST != 0 || handover.is_lost(ino, generation) {
        file.lose();
    }
    Some(file)
}

/// What the kernel knows under which node id, and the slots among it.
pub(crate) fn nodes(vfs: &Vfs, handover: &Handover) -> (NodeTable, SlotTable) {
    let store = &handover.store;
    let nodes = NodeTable::handed_over(vfs.root(), store.clone());
    vfs.is_told(&vfs.root());
    let slots = SlotTable::handed_over(store.clone());
    let mut by_id: HashMap<u64, handover::Record> = HashMap::new();
    for record in handover.take(Kind::Slot) {
        by_id.insert(record.words[0], record);
    }
    let (moved, known): (Vec<_>, Vec<_>) =
        handover.take(Kind::Node).into_iter().partition(|record| record.words[4] == MOVED_NAME);
    for record in known {
        let [id, ino, generation, lookups, is_slot, linkable, _] = record.words;
        let target = match is_slot {
            0 => node(vfs, (ino, generation), linkable == 1).map(Target::Node),
            _ => by_id.remove(&id).and_then(|of| slot(vfs, handover, &of)).map(Target::Slot),
        };
        let told = &record.bytes;
        let record = Record::adopt(store, &record);
        if target.is_some() || nodes.ino_of(id).is_some() {
            nodes.restore(id, target, lookups, record);
        }
        nodes.was_told(id, told);
    }
    for record in moved {
        let id = record.words[6];
        nodes.was_told(id, &record.bytes);
        nodes.keep_moved(id, Record::adopt(store, &record));
    }
    by_id.values().for_each(|record| store.free(record.slot));
    (nodes, slots)
}

fn node(vfs: &Vfs, (ino, generation): (u64, u64), linkable: bool) -> Option<Node> {
    let node = vfs.revive(Ino(ino), generation).ok()?;
    if linkable {
        node.make_linkable();
    }
    // The kernel may remember what the former service told of it.
    vfs.is_told(&node);
    Some(node)
}

fn slot(vfs: &Vfs, handover: &Handover, record: &handover::Record) -> Option<Arc<Slot>> {
    let [_, _, _, flags, ino, generation, tag] = record.words;
    let bound = Slot::bound_flags(flags);
    let file = bound.and_then(|flags| open(vfs, handover, flags, (ino, generation)));
    if let Some(file) = &file {
        handover.reopen(tag, file);
    }
    Slot::restore(record, file, Record::adopt(&handover.store, record)).map(Arc::new)
}
