//! Locks that the next service must know: those that were given by FUSE.
//!
//! | word of a record | what |
//! |---|---|
//! | 0 | id of the node |
//! | 1 | the handle |
//! | 2 | the owner, as the kernel scrambled it |
//! | 3, 4 | first and last byte |
//! | 5 | 1: for reading, 2: for writing; bit 8: of flock(2); the process above bit 32 |
//!
//! # Locking
//!
//! `held` is a leaf.

use std::collections::HashMap;

use polylane_base::sync::{Arc, Mutex};
use polylane_vfs::LockKind;
use polylane_vfs::handover::{self, Kind, Store};

use crate::restore::Record;

/// Of flock(2), in the word of kinds.
const FLOCK: u64 = 1 << 8;

/// Whose locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Whose {
    /// An owner's, on a node.
    Posix(u64, u64),
    /// An open file's.
    Flock(u64),
}

/// A lock as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Given {
    pub(super) node_id: u64,
    pub(super) fh: u64,
    pub(super) owner: u64,
    pub(super) start: u64,
    /// Inclusive.
    pub(super) end: u64,
    pub(super) kind: LockKind,
    pub(super) flock: bool,
    pub(super) pid: u32,
}

impl Given {
    fn whose(&self) -> Whose {
        match self.flock {
            true => Whose::Flock(self.fh),
            false => Whose::Posix(self.node_id, self.owner),
        }
    }

    fn words(&self) -> [u64; 7] {
        let kind = if self.kind == LockKind::Read { 1 } else { 2 };
        let flock = if self.flock { FLOCK } else { 0 };
        let what = kind | flock | u64::from(self.pid) << 32;
        [self.node_id, self.fh, self.owner, self.start, self.end, what, 0]
    }

    fn from_record(record: &handover::Record) -> Given {
        let [node_id, fh, owner, start, end, what, _] = record.words;
        let kind = if what & 0xff == 1 { LockKind::Read } else { LockKind::Write };
        let (flock, pid) = (what & FLOCK != 0, (what >> 32) as u32);
        Given { node_id, fh, owner, start, end, kind, flock, pid }
    }
}

struct Held {
    given: Given,
    _record: Option<Record>,
}

/// The locks of one session, recorded. Thread-safe.
#[derive(Default)]
pub(super) struct Kept {
    store: Option<Arc<Store>>,
    held: Mutex<HashMap<Whose, Vec<Held>>>,
}

impl Kept {
    /// Without a store nothing is kept.
    pub(super) fn new(store: Option<Arc<Store>>) -> Arc<Kept> {
        Arc::new(Kept { store, held: Mutex::default() })
    }

    /// A lock was given, or given up.
    pub(super) fn set(&self, new: Given) {
        let Some(store) = &self.store else { return };
        let put = |given: Given| Held {
            given,
            _record: Record::put(store, Kind::Lock, given.words(), b""),
        };
        let mut all = self.held.lock();
        let held = all.entry(new.whose()).or_default();
        let (over, mut kept): (Vec<Held>, Vec<Held>) = std::mem::take(held)
            .into_iter()
            .partition(|old| old.given.start <= new.end && new.start <= old.given.end);
        if new.kind != LockKind::Unlock {
            kept.push(put(new));
        }
        // What is left of the old ones on both sides; their records go after these were put.
        for Held { given, .. } in &over {
            if given.start < new.start {
                kept.push(put(Given { end: new.start - 1, ..*given }));
            }
            if given.end > new.end {
                kept.push(put(Given { start: new.end + 1, ..*given }));
            }
        }
        drop(over);
        match kept.is_empty() {
            true => drop(all.remove(&new.whose())),
            false => *held = kept,
        }
    }

    /// An owner gave up all its locks on a node.
    pub(super) fn drop_posix(&self, node_id: u64, owner: u64) {
        if self.store.is_some() {
            let gone = self.held.lock().remove(&Whose::Posix(node_id, owner));
            drop(gone);
        }
    }

    /// An open file is closed.
    pub(super) fn drop_flock(&self, fh: u64) {
        if self.store.is_some() {
            let gone = self.held.lock().remove(&Whose::Flock(fh));
            drop(gone);
        }
    }

    /// Takes in a lock of a former service, which `lock` sets again; what it cannot is forgotten.
    pub(super) fn restore(&self, record: &handover::Record, lock: impl FnOnce(&Given) -> bool) {
        let Some(store) = &self.store else { return };
        let given = Given::from_record(record);
        let held = Held { given, _record: Some(Record::adopt(store, record)) };
        if lock(&given) {
            self.held.lock().entry(given.whose()).or_default().push(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept_as_they_are_split_and_given_up() {
        let fd = Store::create().expect("memfd");
        let (store, _) = Store::attach(&fd).expect("attach");
        let kept = Kept::new(Some(Arc::new(store)));
        let given = |start, end, kind| {
            let (node_id, fh, owner, flock, pid) = (20, 3, 77, false, 9);
            Given { node_id, fh, owner, start, end, kind, flock, pid }
        };
        kept.set(given(0, 99, LockKind::Read));
        kept.set(given(40, 59, LockKind::Write));
        kept.set(given(90, u64::MAX, LockKind::Unlock));
        kept.set(Given { flock: true, ..given(0, u64::MAX, LockKind::Write) });
        let records = Store::attach(&fd).expect("attach").1;
        let mut seen: Vec<Given> = records.iter().map(Given::from_record).collect();
        seen.sort_by_key(|given| (given.flock, given.start));
        let expected = [
            given(0, 39, LockKind::Read),
            given(40, 59, LockKind::Write),
            given(60, 89, LockKind::Read),
            Given { flock: true, ..given(0, u64::MAX, LockKind::Write) },
        ];
        assert_eq!(seen, expected);
        kept.drop_flock(3);
        kept.drop_posix(20, 77);
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
    }
}
