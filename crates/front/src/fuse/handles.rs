//! File handles: what the kernel calls the files it has open.
//!
//! A handle is `incarnation << 48 | counter`; one of a former incarnation is unknown and answered
//! `EIO`. With a handover there is one incarnation, and each handle has a record:
//!
//! | word | what |
//! |---|---|
//! | 0 | the handle |
//! | 1 | id of the node it was opened on |
//! | 2 | flags of open(2); bit 33: it has lost bytes |
//! | 3 | 0: a file or directory; 1: a virtual directory; 2: a slot; 3: a second open of a slot |
//! | 4, 5 | number and generation of the inode that is open |
//! | 6 | tag of the open file |
//!
//! # Locking
//!
//! One lock per shard, a leaf.

use std::collections::HashMap;

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Result};
use polylane_vfs::OpenFile;
use polylane_vfs::handover::{Kind, Store};

use crate::lane::record::{self, Record};
use crate::lane::slots::Slot;

/// What a handle's record says that it is.
pub(crate) const HANDLE_FILE: u64 = 0;
pub(crate) const HANDLE_VIRTUAL: u64 = 1;
pub(crate) const HANDLE_SLOT: u64 = 2;
pub(crate) const HANDLE_SECOND: u64 = 3;

/// The word of the open file's flags.
const HANDLE_FLAGS: usize = 2;
/// The word of the open file's tag.
pub(crate) const HANDLE_TAG: usize = 6;

const SHARDS: usize = 16;
const COUNTER_BITS: u32 = 48;

/// One open file of the kernel.
#[derive(Default)]
pub struct Handle {
    /// The node it was opened on.
    pub node_id: u64,
    /// The open file; `None` for a slot's own handle, which acts on what is bound, and for virtual
    /// directories.
    pub opened: Option<Arc<OpenFile>>,
    /// The slot, when the node is one.
    pub slot: Option<Arc<Slot>>,
    /// What the next service is to know; with the handle it goes.
    pub(crate) record: Option<Record>,
}

impl Handle {
    /// The open file. `EBADF` for an unbound slot, `EISDIR` for a virtual directory.
    pub fn file(&self) -> Result<Arc<OpenFile>> {
        match (&self.opened, &self.slot) {
            (Some(file), _) => Ok(file.clone()),
            (None, Some(slot)) => slot.file(),
            (None, None) => Err(Errno::EISDIR),
        }
    }

    /// One of a former service, with its record.
    pub(crate) fn again(
        node_id: u64,
        opened: Option<Arc<OpenFile>>,
        slot: Option<Arc<Slot>>,
        record: Record,
    ) -> Handle {
        if let Some(file) = &opened {
            record.set(HANDLE_FLAGS, record::flags_word(file));
        }
        Handle { node_id, opened, slot, record: Some(record) }
    }

    fn to_record(&self, store: &Arc<Store>, fh: u64) -> Option<Record> {
        let which = match (&self.opened, &self.slot) {
            (Some(_), None) => HANDLE_FILE,
            (None, None) => HANDLE_VIRTUAL,
            (None, Some(_)) => HANDLE_SLOT,
            (Some(_), Some(_)) => HANDLE_SECOND,
        };
        let (flags, ino, generation, tag) = match &self.opened {
            Some(file) => {
                let (node, tag) = (file.node(), file.tag().load(Ordering::Relaxed));
                (record::flags_word(file), node.ino().0, node.generation(), tag)
            }
            None => (0, 0, 0, 0),
        };
        let words = [fh, self.node_id, flags, which, ino, generation, tag];
        Record::put(store, Kind::Handle, words, b"")
    }

    /// Whether this is the handle that came with the slot, not a second open.
    pub fn is_slot(&self) -> bool {
        self.opened.is_none() && self.slot.is_some()
    }

    /// Whether the kernel's descriptor has the file's status flags: that of a slot has them since
    /// its client shared it.
    pub fn has_kernel_flags(&self) -> bool {
        !self.is_slot() || self.slot.as_ref().is_some_and(|slot| slot.is_shared())
    }
}

/// The open files of one session. Thread-safe.
pub struct HandleTable {
    shards: [Mutex<HashMap<u64, Arc<Handle>>>; SHARDS],
    next: AtomicU64,
    incarnation: u64,
    store: Option<Arc<Store>>,
}

impl HandleTable {
    /// A table without entries; with a store it is handed over, and the incarnation counts not.
    pub fn new(incarnation: u16, store: Option<Arc<Store>>) -> Self {
        let incarnation = if store.is_some() { 0 } else { incarnation };
        HandleTable {
            shards: Default::default(),
            next: AtomicU64::new(1),
            incarnation: u64::from(incarnation) << COUNTER_BITS,
            store,
        }
    }

    /// Adds an open file.
    pub fn insert(&self, mut handle: Handle) -> u64 {
        let fh = match &self.store {
            Some(store) => {
                let fh = store.next_handle();
                if let Some(file) = &handle.opened {
                    // What took a slot's place has its tag, and its locks by that.
                    let (done, else_) = (Ordering::Relaxed, Ordering::Relaxed);
                    let _has_one = file.tag().compare_exchange(0, fh, done, else_);
                }
                handle.record = handle.to_record(store, fh);
                fh
            }
            None => self.incarnation | self.next.fetch_add(1, Ordering::Relaxed),
        };
        self.restore(fh, handle);
        fh
    }

    /// Adds an open file of a former service.
    pub(crate) fn restore(&self, fh: u64, handle: Handle) {
        if let Some(file) = &handle.opened {
            file.leave_to_kernel();
        }
        self.shard(fh).lock().insert(fh, Arc::new(handle));
    }

    /// The open file of that number. `EIO` when there is none.
    pub fn get(&self, fh: u64) -> Result<Arc<Handle>> {
        self.shard(fh).lock().get(&fh).cloned().ok_or(Errno::EIO)
    }

    /// Takes an open file out.
    pub fn remove(&self, fh: u64) -> Option<Arc<Handle>> {
        self.shard(fh).lock().remove(&fh)
    }

    /// Takes all out: the session is over.
    pub fn drain(&self) -> Vec<Arc<Handle>> {
        self.shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *shard.lock()).into_values())
            .collect()
    }

    fn shard(&self, fh: u64) -> &Mutex<HashMap<u64, Arc<Handle>>> {
        &self.shards[fh as usize % SHARDS]
    }
}
