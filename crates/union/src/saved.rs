//! What the next service is to know of a node: its number, its inode in the upper, and where it is
//! in the lowers. Inodes that the upper alone has need no record: they are found by their number.
//!
//! | record | word | what |
//! |---|---|---|
//! | node | 0, 1 | number and generation in the union |
//! | | 2, 3 | number and generation of its inode in the upper; 0: it has none |
//! | | 4 | number in the union of the directory it is in; 0: of none |
//! | | 5 | its kind |
//! | | 6 | record of the rest of the path + 1; 0: it ends here |
//! | | bytes | the path in the lowers, with `/` before each name |
//! | rest | 6 | record of what follows + 1 |
//! | | bytes | the path goes on |
//! | root | 0, 1 | number and generation of the root |
//! | | 2 | how often the union was opened |
//!
//! What is in a lower stays there, so a path in the lowers never changes. A name in the union is
//! not recorded: a node that has no inode in the upper is called as in the lowers, since whatever
//! is moved is copied up first.
//!
//! A node without a record (there was no room) is not known to the next service.

use std::collections::HashMap;

use polylane_base::Ino;
use polylane_base::sync::Arc;
use polylane_vfs::fs::Kind;
use polylane_vfs::handover::{Kind as What, Record, Slot, Store};

/// Words of a node's record.
const UPPER: usize = 2;
const UPPER_GENERATION: usize = 3;
const REST: usize = 6;
/// The word of the root's record that counts.
const OPENINGS: usize = 2;
/// Bytes of a path in one record.
const PIECE: usize = 256;
/// Most records of a path: the longest that Linux takes, and more.
const PIECES_MAX: usize = 64;

/// What a former service recorded of a node.
#[derive(Debug)]
pub(crate) struct Former {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
    /// Number and generation of its inode in the upper.
    pub(crate) upper: Option<(Ino, u64)>,
    /// The directory that it was in.
    pub(crate) dir: Option<Ino>,
    pub(crate) kind: Kind,
    /// The path in the lowers.
    pub(crate) lower_path: Box<[u8]>,
    /// Its record, until a node has it.
    pub(crate) saved: Option<Saved>,
}

/// What is recorded of a node.
pub(crate) struct Facts<'a> {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
    pub(crate) upper: Option<(Ino, u64)>,
    pub(crate) dir: Option<Ino>,
    pub(crate) kind: Kind,
    pub(crate) lower_path: &'a [u8],
}

/// The records of one node. Dropped, they are freed: the node is known no longer.
#[derive(Debug)]
pub(crate) struct Saved {
    store: SharedStore,
    slots: Vec<Slot>,
}

/// The records of a pool.
#[derive(Clone)]
struct SharedStore(Arc<Store>);

impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

impl Saved {
    /// Records a node. `None`: there is no room.
    pub(crate) fn put(store: &Arc<Store>, facts: &Facts<'_>) -> Option<Saved> {
        let mut saved = Saved { store: SharedStore(store.clone()), slots: Vec::new() };
        let pieces: Vec<&[u8]> = facts.lower_path.chunks(PIECE).collect();
        if pieces.len() > PIECES_MAX {
            return None;
        }
        let mut rest = 0;
        // What is referred to is there first.
        for piece in pieces.iter().skip(1).rev() {
            let slot = store.put(What::UnionRest, [0, 0, 0, 0, 0, 0, rest], piece)?;
            saved.slots.push(slot);
            rest = u64::from(slot.0) + 1;
        }
        let (upper, upper_generation) = facts.upper.map_or((0, 0), |(ino, of)| (ino.0, of));
        let kind = facts.kind as u64;
        let dir = facts.dir.map_or(0, |dir| dir.0);
        let words = [facts.ino.0, facts.generation, upper, upper_generation, dir, kind, rest];
        let first = pieces.first().copied().unwrap_or_default();
        saved.slots.push(store.put(What::UnionNode, words, first)?);
        Some(saved)
    }

    /// The node was copied up. Calls for one node come one at a time.
    pub(crate) fn copied_up(&self, upper: Ino, generation: u64) {
        let Some(&slot) = self.slots.last() else { return };
        // The number makes it count.
        self.store.0.set(slot, UPPER_GENERATION, generation);
        self.store.0.set(slot, UPPER, upper.0);
    }
}

impl Saved {
    /// Leaves the records to the next service.
    pub(crate) fn leave(mut self) {
        self.slots.clear();
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        // The node's own first: it refers to the others.
        self.slots.iter().rev().for_each(|slot| self.store.0.free(*slot));
    }
}

/// What a former service of the union with this root recorded of its nodes, and how often the union
/// was opened before. Records of another union, and what none refers to, are freed.
pub(crate) fn take(
    store: &Arc<Store>,
    records: &[Record],
    root: (Ino, u64),
) -> (HashMap<Ino, Former>, u64) {
    let of_root = records.iter().find(|record| record.kind == What::UnionRoot);
    let is_ours = |record: &&Record| (record.words[0], record.words[1]) == (root.0.0, root.1);
    let ours = of_root.filter(is_ours);
    let openings = ours.map_or(0, |record| record.words[OPENINGS]);
    match ours {
        Some(record) => store.set(record.slot, OPENINGS, openings + 1),
        None => {
            of_root.into_iter().for_each(|record| store.free(record.slot));
            store.put(What::UnionRoot, [root.0.0, root.1, 1, 0, 0, 0, 0], b"");
        }
    }
    let rests: HashMap<Slot, &Record> = records
        .iter()
        .filter(|record| record.kind == What::UnionRest)
        .map(|record| (record.slot, record))
        .collect();
    let mut former: HashMap<Ino, Former> = HashMap::new();
    let mut used = Vec::new();
    for record in records.iter().filter(|record| record.kind == What::UnionNode) {
        // What is read has its records, and frees them: of another union none is.
        let read = ours.and_then(|_| read(store, record, &rests));
        let Some(read) = read else {
            store.free(record.slot);
            continue;
        };
        used.extend(read.saved.iter().flat_map(|saved| saved.slots.iter().copied()));
        match former.get(&read.ino) {
            // One was being dropped while the other was put: that which knows more counts.
            Some(other) if other.upper.is_some() => {}
            _ => drop(former.insert(read.ino, read)),
        }
    }
    // What no node refers to: its node was being put, or had just gone.
    rests.keys().filter(|slot| !used.contains(slot)).for_each(|slot| store.free(*slot));
    (former, openings)
}

fn read(store: &Arc<Store>, record: &Record, rests: &HashMap<Slot, &Record>) -> Option<Former> {
    let [ino, generation, upper, upper_generation, dir, kind, rest] = record.words;
    let mut path = record.bytes.clone();
    let mut slots = vec![record.slot];
    let mut rest = rest;
    while rest != 0 {
        let at = slot(rest)?;
        let piece = rests.get(&at).filter(|_| slots.len() < PIECES_MAX)?;
        path.extend_from_slice(&piece.bytes);
        slots.push(at);
        rest = piece.words[REST];
    }
    slots.reverse();
    Some(Former {
        ino: Ino(ino),
        generation,
        upper: (upper != 0).then_some((Ino(upper), upper_generation)),
        dir: (dir != 0).then_some(Ino(dir)),
        kind: Kind::from_dtype(u8::try_from(kind).ok()?)?,
        lower_path: path.into(),
        saved: Some(Saved { store: SharedStore(store.clone()), slots }),
    })
}

/// A reference to a record, as a word.
fn slot(word: u64) -> Option<Slot> {
    u32::try_from(word.checked_sub(1)?).ok().map(Slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (Ino, u64) = (Ino(1 << 48 | 2), 7);

    fn facts(ino: u64, path: &[u8]) -> Facts<'_> {
        Facts {
            ino: Ino(ino),
            generation: 3,
            upper: None,
            dir: Some(ROOT.0),
            kind: Kind::File,
            lower_path: path,
        }
    }

    #[test]
    fn nodes_are_found_as_they_were_recorded() {
        let fd = Store::create().expect("memfd");
        let (store, none) = Store::attach(&fd).expect("attach");
        let store = Arc::new(store);
        assert!(take(&store, &none, ROOT).0.is_empty());
        let long: Vec<u8> = (0..100u32).flat_map(|n| format!("/name{n:05}").into_bytes()).collect();
        let up = Saved::put(&store, &facts(5, b"/a/b")).expect("room");
        let deep = Saved::put(&store, &facts(6, &long)).expect("room");
        drop(Saved::put(&store, &facts(8, &long)).expect("room"));
        up.copied_up(Ino(70), 9);
        assert_eq!(Saved::put(&store, &facts(9, &[b'x'; 256 * 65])).map(|_| ()), None);
        // Killed.
        store.leave();
        drop((up, deep));
        for openings in 1..3 {
            let (store, records) = Store::attach(&fd).expect("again");
            let store = Arc::new(store);
            let (former, opened) = take(&store, &records, ROOT);
            assert_eq!((former.len(), opened), (2, openings));
            let (up, deep) = (&former[&Ino(5)], &former[&Ino(6)]);
            assert_eq!((&*up.lower_path, up.upper), (&b"/a/b"[..], Some((Ino(70), 9))));
            assert_eq!((&*deep.lower_path, deep.upper), (&*long, None));
            assert_eq!((deep.kind, deep.dir, deep.generation), (Kind::File, Some(ROOT.0), 3));
            store.leave();
            drop(former);
        }
        let (store, records) = Store::attach(&fd).expect("again");
        let store = Arc::new(store);
        assert!(take(&store, &records, (Ino(1), 1)).0.is_empty(), "of another union");
        assert_eq!(store.len(), 1, "the root");
    }

    #[test]
    fn records_that_make_no_sense_are_skipped() {
        let fd = Store::create().expect("memfd");
        let (store, none) = Store::attach(&fd).expect("attach");
        let store = Arc::new(store);
        take(&store, &none, ROOT);
        for rest in [99, 1, u64::MAX] {
            store.put(What::UnionNode, [9, 1, 0, 0, 0, Kind::File as u64, rest], b"/a");
        }
        store.put(What::UnionNode, [9, 1, 0, 0, 0, 0xee, 0], b"/a");
        let lone = store.put(What::UnionRest, [0; 7], b"/a").expect("room");
        store.set(lone, REST, u64::from(lone.0) + 1);
        store.put(What::UnionNode, [9, 1, 0, 0, 0, Kind::File as u64, u64::from(lone.0) + 1], b"");
        let (again, records) = Store::attach(&fd).expect("again");
        let again = Arc::new(again);
        assert!(take(&again, &records, ROOT).0.is_empty());
        assert_eq!(again.len(), 1, "the root");
    }
}
