//! Locks that the next service must know, and whose they are.
//!
//! | word of a record | kernel's | process's | open file's |
//! |---|---|---|---|
//! | 0 | id of the node | number of the inode | 0 |
//! | 1 | the handle | its generation | 0 |
//! | 2 | the owner, as the kernel scrambled it | the process | 0 |
//! | 3, 4 | first and last byte | the same | the same |
//! | 5 | 1: to read, 2: to write; bit 8: of flock(2); bits 9, 10: 0, 1, 2; pid from bit 32 | | |
//! | 6 | 0 | tag of the open file | the same |
//!
//! Those of the second and third kind came through the library. A process has a record of its own:
//! its number, its pid, and the inode number of its pidfd, which no other process of that pid has
//! (before Linux 6.9 all have one).
//!
//! # Locking
//!
//! `state` is a leaf.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_vfs::handover::{self, Kind, Store};
use polylane_vfs::{LockKind, LockOwner, OpenFile};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::record::Record;

/// Of flock(2), in the word of kinds.
const FLOCK: u64 = 1 << 8;
/// Whose it is, in the word of kinds.
const WHOSE_SHIFT: u32 = 9;

/// High bits of the lock owners that processes with the library are: no owner of another kind looks
/// like it.
const PROCESS_OWNER: u128 = 0x5348_4d50 << 96;

/// The owner of a process's POSIX locks.
pub(crate) fn process_owner(number: u64) -> LockOwner {
    LockOwner(PROCESS_OWNER | u128::from(number))
}

/// High bits of the owners that the kernel names.
const KERNELS: u128 = 0xF05E << 112;

/// The owner of the POSIX locks of a process, as the kernel scrambled the process.
pub(crate) fn kernels_owner(owner: u64) -> LockOwner {
    LockOwner(KERNELS | u128::from(owner))
}

/// Whether a lock came through the kernel.
pub(crate) fn is_kernels(owner: LockOwner) -> bool {
    owner.0 & KERNELS == KERNELS
}

/// Whose a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Whose {
    /// An owner's, on a node: POSIX locks by FUSE.
    Posix { node_id: u64, owner: u64 },
    /// An open file's of the kernel's: flock(2) by FUSE.
    Flock { fh: u64 },
    /// A process's, on an inode: POSIX locks by the library.
    Process { ino: u64, generation: u64, process: u64 },
    /// An open file's, by its tag: open-file and flock(2) locks by the library.
    File { tag: u64, flock: bool },
}

/// A lock as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    pub(crate) whose: Whose,
    /// By which open file: its handle with the kernel, or its tag.
    pub(crate) by: u64,
    pub(crate) start: u64,
    /// Inclusive.
    pub(crate) end: u64,
    pub(crate) kind: LockKind,
    pub(crate) pid: u32,
}

impl Given {
    fn words(&self) -> [u64; 7] {
        let kind = if self.kind == LockKind::Read { 1 } else { 2 };
        let what = kind | u64::from(self.pid) << 32;
        let (start, end) = (self.start, self.end);
        match self.whose {
            Whose::Posix { node_id, owner } => [node_id, self.by, owner, start, end, what, 0],
            Whose::Flock { fh } => [0, fh, 0, start, end, what | FLOCK, 0],
            Whose::Process { ino, generation, process } => {
                [ino, generation, process, start, end, what | 1 << WHOSE_SHIFT, self.by]
            }
            Whose::File { tag, flock } => {
                let flock = if flock { FLOCK } else { 0 };
                [0, 0, 0, start, end, what | flock | 2 << WHOSE_SHIFT, tag]
            }
        }
    }

    fn from_record(record: &handover::Record) -> Given {
        let [a, b, c, start, end, what, tag] = record.words;
        let kind = if what & 0xff == 1 { LockKind::Read } else { LockKind::Write };
        let (flock, pid) = (what & FLOCK != 0, (what >> 32) as u32);
        let (whose, by) = match (what >> WHOSE_SHIFT & 3, flock) {
            (0, false) => (Whose::Posix { node_id: a, owner: c }, b),
            (0, true) => (Whose::Flock { fh: b }, b),
            (1, _) => (Whose::Process { ino: a, generation: b, process: c }, tag),
            _ => (Whose::File { tag, flock }, tag),
        };
        Given { whose, by, start, end, kind, pid }
    }
}

struct Held {
    given: Given,
    _record: Option<Record>,
}

#[derive(Default)]
struct State {
    held: HashMap<Whose, Vec<Held>>,
    /// Processes that took POSIX locks through the library.
    processes: HashMap<u64, Option<Record>>,
}

/// The locks of one lane, recorded. Thread-safe.
#[derive(Default)]
pub(crate) struct Kept {
    store: Option<Arc<Store>>,
    state: Mutex<State>,
    /// What ends from now on ends with this service alone.
    left: AtomicBool,
}

/// Goes with an open file: with it go the locks that the library took for it.
struct Goes {
    kept: Arc<Kept>,
    tag: u64,
}

impl Drop for Goes {
    fn drop(&mut self) {
        for flock in [false, true] {
            self.kept.drop_all(Whose::File { tag: self.tag, flock });
        }
    }
}

impl Kept {
    /// Without a store nothing is kept.
    pub(crate) fn new(store: Option<Arc<Store>>) -> Arc<Kept> {
        Arc::new(Kept { store, ..Kept::default() })
    }

    /// A lock was given, or given up.
    pub(crate) fn set(&self, new: Given) {
        let Some(store) = self.store() else { return };
        let put = |given: Given| Held {
            given,
            _record: Record::put(store, Kind::Lock, given.words(), b""),
        };
        let mut state = self.state.lock();
        let held = state.held.entry(new.whose).or_default();
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
            true => drop(state.held.remove(&new.whose)),
            false => *held = kept,
        }
    }

    /// All locks of that owner are gone.
    pub(crate) fn drop_all(&self, whose: Whose) {
        if self.store().is_some() {
            let gone = self.state.lock().held.remove(&whose);
            drop(gone);
        }
    }

    /// A process is about to have POSIX locks.
    pub(crate) fn note(&self, process: u64, pid: u32, pidfd: &OwnedFd) {
        let Some(store) = self.store() else { return };
        let mut state = self.state.lock();
        state.processes.entry(process).or_insert_with(|| {
            let words = [process, pid.into(), born(pidfd), 0, 0, 0, 0];
            Record::put(store, Kind::Process, words, b"")
        });
    }

    /// A process is gone, and with it its POSIX locks.
    pub(crate) fn drop_process(&self, gone: u64) {
        if self.store().is_none() {
            return;
        }
        let mut state = self.state.lock();
        let Some(record) = state.processes.remove(&gone) else { return };
        let its =
            |whose: &Whose| matches!(whose, Whose::Process { process, .. } if *process == gone);
        let locks: Vec<_> = state.held.extract_if(|whose, _| its(whose)).collect();
        drop(state);
        drop((locks, record));
    }

    /// With the open file go the locks that the library takes for it. `None`: the next service
    /// could not tell which one it is.
    pub(crate) fn follow(self: &Arc<Self>, file: &OpenFile) -> Option<u64> {
        let tag = file.tag().load(Ordering::Relaxed);
        if tag == 0 || self.store().is_none() {
            return None;
        }
        file.attach(|| Box::new(Goes { kept: self.clone(), tag }));
        Some(tag)
    }

    /// What is held now is the next service's, whatever ends here.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Whether what ends now ends for the next service, too.
    pub(crate) fn is_open(&self) -> bool {
        !self.left.load(Ordering::SeqCst)
    }

    fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref().filter(|_| !self.left.load(Ordering::Relaxed))
    }

    /// Takes in a lock of a former service, which `lock` sets again; what it cannot is forgotten.
    pub(crate) fn restore(&self, record: &handover::Record, lock: impl FnOnce(&Given) -> bool) {
        let Some(store) = &self.store else { return };
        let given = Given::from_record(record);
        let held = Held { given, _record: Some(Record::adopt(store, record)) };
        if lock(&given) {
            self.state.lock().held.entry(given.whose).or_default().push(held);
        }
    }

    /// Takes in a process of a former service.
    pub(crate) fn restore_process(&self, number: u64, record: Record) {
        self.state.lock().processes.insert(number, Some(record));
    }
}

/// A process that had POSIX locks of a former service, and lives.
#[derive(Debug)]
pub struct FormerProcess {
    pub(crate) number: u64,
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) record: handover::Slot,
}

/// The processes among the records that a former service left which live. To be called while
/// processes can still be named.
pub fn former_processes(records: &[handover::Record]) -> Vec<FormerProcess> {
    let processes = records.iter().filter(|record| record.kind == Kind::Process);
    let find = |record: &handover::Record| {
        let [number, pid, was_born, ..] = record.words;
        let pid = u32::try_from(pid).ok()?;
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let same = born(&pidfd) == was_born;
        same.then_some(FormerProcess { number, pid, pidfd, record: record.slot })
    };
    processes.filter_map(find).collect()
}

/// What tells a process from others of its pid.
fn born(pidfd: impl AsFd) -> u64 {
    rustix::fs::fstat(pidfd).map_or(0, |stat| stat.st_ino)
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
            let whose = Whose::Posix { node_id: 20, owner: 77 };
            Given { whose, by: 3, start, end, kind, pid: 9 }
        };
        let flock = Given { whose: Whose::Flock { fh: 3 }, ..given(0, u64::MAX, LockKind::Write) };
        kept.set(given(0, 99, LockKind::Read));
        kept.set(given(40, 59, LockKind::Write));
        kept.set(given(90, u64::MAX, LockKind::Unlock));
        kept.set(flock);
        let records = Store::attach(&fd).expect("attach").1;
        let mut seen: Vec<Given> = records.iter().map(Given::from_record).collect();
        seen.sort_by_key(|given| (matches!(given.whose, Whose::Flock { .. }), given.start));
        let expected = [
            given(0, 39, LockKind::Read),
            given(40, 59, LockKind::Write),
            given(60, 89, LockKind::Read),
            flock,
        ];
        assert_eq!(seen, expected);
        kept.drop_all(Whose::Flock { fh: 3 });
        kept.drop_all(Whose::Posix { node_id: 20, owner: 77 });
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
    }

    #[test]
    fn what_the_library_took_is_found_again_with_its_process() {
        let fd = Store::create().expect("memfd");
        let (store, _) = Store::attach(&fd).expect("attach");
        let kept = Kept::new(Some(Arc::new(store)));
        let me = rustix::process::getpid();
        let pidfd = pidfd_open(me, PidfdFlags::empty()).expect("pidfd");
        let pid = me.as_raw_nonzero().get().cast_unsigned();
        kept.note(5, pid, &pidfd);
        let whose = Whose::Process { ino: 7, generation: 1, process: 5 };
        let posix = Given { whose, by: 11, start: 3, end: 8, kind: LockKind::Read, pid: 9 };
        let whose = Whose::File { tag: 11, flock: true };
        let flock = Given { whose, start: 0, end: u64::MAX, kind: LockKind::Write, ..posix };
        kept.set(posix);
        kept.set(flock);
        let records = Store::attach(&fd).expect("attach").1;
        let locks = records.iter().filter(|record| record.kind == Kind::Lock);
        assert_eq!(locks.map(Given::from_record).collect::<Vec<_>>(), [posix, flock]);
        let found = former_processes(&records);
        assert_eq!(found.iter().map(|one| (one.number, one.pid)).collect::<Vec<_>>(), [(5, pid)]);
        kept.drop_all(Whose::File { tag: 11, flock: true });
        kept.drop_process(5);
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
        kept.set(posix);
        kept.leave();
        kept.drop_all(posix.whose);
        assert_eq!(Store::attach(&fd).expect("attach").1.len(), 1, "the next service's");
    }
}
