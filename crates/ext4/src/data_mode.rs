//! What is known of a new block's data when a transaction commits, and why a write's bytes go where
//! they go.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of a new block's data when the block becomes a file's (Linux' `data=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DataMode {
    /// It is there: nobody ever sees what the block held before.
    #[default]
    Ordered,
    /// It is on its way. After a power cut the file may show what the block held before, wherever
    /// nobody waited for an fsync.
    Writeback,
    /// It is in the journal: a write is there whole or not at all, as far as one transaction holds
    /// it. Everything is written twice.
    Data,
}

impl DataMode {
    /// All of them.
    pub const ALL: [DataMode; 3] = [DataMode::Ordered, DataMode::Writeback, DataMode::Data];

    /// What Linux's `data=` calls it.
    pub fn name(self) -> &'static str {
        match self {
            DataMode::Ordered => "ordered",
            DataMode::Writeback => "writeback",
            DataMode::Data => "data",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<DataMode> {
        DataMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Why the bytes of a write go where they go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There is no log, or too small a one: in place.
    NoLog,
    /// All data goes through the journal: logged.
    DataMode,
    /// No sync follows: in place.
    Unsynced,
    /// Much is synced: deferred.
    Large,
    /// Written blocks are written over, and nothing else is to be saved: in place, durable.
    Overwrite,
    /// Little is synced: logged.
    Small,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::NoLog,
        Reason::DataMode,
        Reason::Unsynced,
        Reason::Large,
        Reason::Overwrite,
        Reason::Small,
    ];

    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoLog => "no_log",
            Reason::DataMode => "data_mode",
            Reason::Unsynced => "unsynced",
            Reason::Large => "large",
            Reason::Overwrite => "overwrite",
            Reason::Small => "small",
        }
    }
}

/// How many writes each reason decided. Thread-safe.
#[derive(Default)]
pub struct Reasons([AtomicU64; Reason::ALL.len()]);

impl Reasons {
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}
