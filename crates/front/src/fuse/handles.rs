//! File handles: what the kernel calls the files it has open.
//!
//! A handle is `incarnation << 48 | counter`; one of a former incarnation is unknown and answered
//! `EIO`.
//!
//! # Locking
//!
//! One lock per shard, and `Handle::owners`; leaves both.

use std::collections::HashMap;

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Result};
use polylane_vfs::{LockOwner, OpenFile};

use crate::slots::Slot;

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
    /// Who took locks through this handle: what is left of them goes with it. For POSIX locks that
    /// is nothing (FLUSH took them), for open-file locks there is no other sign.
    pub owners: Mutex<Vec<LockOwner>>,
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

    /// Whether this is the handle that came with the slot, not a second open.
    pub fn is_slot(&self) -> bool {
        self.opened.is_none() && self.slot.is_some()
    }
}

/// The open files of one session. Thread-safe.
pub struct HandleTable {
    shards: [Mutex<HashMap<u64, Arc<Handle>>>; SHARDS],
    next: AtomicU64,
    incarnation: u64,
}

impl HandleTable {
    /// A table without entries.
    pub fn new(incarnation: u16) -> Self {
        HandleTable {
            shards: Default::default(),
            next: AtomicU64::new(1),
            incarnation: u64::from(incarnation) << COUNTER_BITS,
        }
    }

    /// Adds an open file.
    pub fn insert(&self, handle: Handle) -> u64 {
        let fh = self.incarnation | self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(fh).lock().insert(fh, Arc::new(handle));
        fh
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
