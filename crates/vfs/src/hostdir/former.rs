//! What a former service left: its records (`saved.rs`), as nodes.

use super::host::Key;
use super::node::Node;
use super::saved::{PLACE, ROOT, Saved, slot};
use crate::fs::Kind;
use crate::handover::{Kind as What, Record, Slot, Store};
use polylane_base::{Ino, Time};
use std::collections::HashMap;
use std::sync::Arc;

/// The nodes that a former service recorded, with their places, the root first.
pub(super) fn nodes(store: &Arc<Store>, records: &[Record]) -> Vec<Arc<Node>> {
    let mut nodes = HashMap::new();
    let mut all = Vec::new();
    for record in records.iter().filter(|record| record.kind == What::HostNode) {
        let [ino, device, host, sec, born, ..] = record.words;
        let Some(kind) = Kind::from_dtype((born >> 32) as u8) else { continue };
        let dev = ((device >> 32) as u32, device as u32);
        let born = Time { sec: sec as i64, nsec: born as u32 };
        let saved = Saved::former(store, record.slot);
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
