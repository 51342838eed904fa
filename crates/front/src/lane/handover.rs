//! What passes from one service of a lane to the next.

use std::collections::{HashMap, HashSet};

use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_vfs::OpenFile;
use polylane_vfs::handover::{self, Record, Store, Turns};

use super::locks::FormerProcess;

/// What is there of all that a former service had answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survived {
    /// All of it.
    All,
    /// All but bytes of files that were not synced.
    Names,
    /// What was synced.
    Synced,
}

/// What passes from one service of a lane to the next.
pub struct Handover {
    /// The records.
    pub store: Arc<Store>,
    /// Operations in flight.
    pub turns: Arc<Turns>,
    /// What the former service left, until it was taken in.
    pub(crate) former: Mutex<Vec<Record>>,
    processes: Mutex<Vec<FormerProcess>>,
    /// Files that lost bytes with the former service.
    lost: HashSet<(u64, u64)>,
    /// Directories that lost names with it.
    pub(super) lost_names: Vec<(u64, u64)>,
    /// Files of a former service that are open again, by tag.
    reopened: Mutex<HashMap<u64, Weak<OpenFile>>>,
}

impl Handover {
    /// Goes on from the records that a former service left, and for the `processes` among them
    /// that live.
    pub fn new(
        store: Arc<Store>,
        records: Vec<Record>,
        processes: Vec<FormerProcess>,
        survived: Survived,
    ) -> Handover {
        let turns = Turns::new(store.clone(), &records, survived == Survived::All);
        for record in records.iter().filter(|record| record.kind == handover::Kind::Process) {
            if !processes.iter().any(|process| process.record == record.slot) {
                store.free(record.slot);
            }
        }
        let unsynced = records.iter().filter(|record| record.kind == handover::Kind::Unsynced);
        let unsynced = unsynced.map(|record| record.words);
        let (dirs, files): (Vec<_>, Vec<_>) = unsynced.partition(|words| words[2] == 1);
        let numbers = |of: &[u64; 7]| (of[0], of[1]);
        let lost = files.iter().filter(|_| survived != Survived::All).map(numbers).collect();
        let lost_names = dirs.iter().filter(|_| survived == Survived::Synced);
        let lost_names = lost_names.map(numbers).collect();
        let (former, processes) = (Mutex::new(records), Mutex::new(processes));
        Handover { store, turns, former, processes, lost, lost_names, reopened: Mutex::default() }
    }

    /// Whether a file lost bytes with the former service.
    pub(crate) fn is_lost(&self, ino: u64, generation: u64) -> bool {
        self.lost.contains(&(ino, generation))
    }

    /// A file that a former service had open under that tag is open again.
    pub(crate) fn reopen(&self, tag: u64, file: &Arc<OpenFile>) {
        file.tag().store(tag, Ordering::Relaxed);
        self.reopened.lock().insert(tag, Arc::downgrade(file));
    }

    /// The file that is open again under that tag.
    pub(crate) fn reopened(&self, tag: u64) -> Option<Arc<OpenFile>> {
        self.reopened.lock().get(&tag).and_then(Weak::upgrade)
    }

    /// All open files and locks are taken in.
    pub(crate) fn end_reopening(&self) {
        self.reopened.lock().clear();
        for record in self.take(handover::Kind::Unsynced) {
            self.store.free(record.slot);
        }
    }

    /// Whether a process of a former service lives.
    pub(crate) fn lives(&self, number: u64) -> bool {
        self.processes.lock().iter().any(|process| process.number == number)
    }

    /// The processes of the former service, once.
    pub(crate) fn take_processes(&self) -> Vec<FormerProcess> {
        std::mem::take(&mut *self.processes.lock())
    }

    /// The records of a union's inodes, once.
    pub fn take_union(&self) -> Vec<Record> {
        use handover::Kind::{UnionNode, UnionRest, UnionRoot};
        [UnionNode, UnionRest, UnionRoot].into_iter().flat_map(|kind| self.take(kind)).collect()
    }

    /// The records of one kind, each once.
    pub(crate) fn take(&self, kind: handover::Kind) -> Vec<Record> {
        let mut former = self.former.lock();
        former.extract_if(.., |record| record.kind == kind).collect()
    }
}
