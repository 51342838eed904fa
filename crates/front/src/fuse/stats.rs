//! What a lane's FUSE door has done: counters for people, never read by the code that counts.

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::protocol::opcode;

/// Opcodes are below this; the few above it (CUSE) never come.
const OPCODES: usize = 64;

/// Counters since start. Thread-safe.
#[derive(Debug)]
pub struct Stats {
    by_opcode: [AtomicU64; OPCODES],
    failed: AtomicU64,
    deferred: AtomicU64,
    page_notices: AtomicU64,
    name_notices: AtomicU64,
    state_notices: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            by_opcode: [const { AtomicU64::new(0) }; OPCODES],
            failed: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            page_notices: AtomicU64::new(0),
            name_notices: AtomicU64::new(0),
            state_notices: AtomicU64::new(0),
        }
    }
}

/// [`Stats`] at one moment; not a consistent cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests by the kernel's name of the operation, those that came.
    pub by_operation: Vec<(&'static str, u64)>,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests that waited for the kernel to drop pages.
    pub deferred: u64,
    /// Times that the kernel was told to drop pages.
    pub page_notices: u64,
    /// Times that the kernel was told to drop a name.
    pub name_notices: u64,
    /// Times that the kernel was told to drop a state.
    pub state_notices: u64,
}

impl Totals {
    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.by_operation.iter().map(|(_, count)| count).sum()
    }
}

impl Stats {
    /// The counters now.
    pub fn totals(&self) -> Totals {
        let count = |(code, count): (usize, &AtomicU64)| {
            let count = count.load(Relaxed);
            let name = opcode::name(code as u32).unwrap_or("other");
            (count > 0).then_some((name, count))
        };
        Totals {
            by_operation: self.by_opcode.iter().enumerate().filter_map(count).collect(),
            failed: self.failed.load(Relaxed),
            deferred: self.deferred.load(Relaxed),
            page_notices: self.page_notices.load(Relaxed),
            name_notices: self.name_notices.load(Relaxed),
            state_notices: self.state_notices.load(Relaxed),
        }
    }

    pub(super) fn request(&self, code: u32) {
        if let Some(count) = self.by_opcode.get(code as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(super) fn deferred(&self) {
        self.deferred.fetch_add(1, Relaxed);
    }

    pub(super) fn page_notice(&self) {
        self.page_notices.fetch_add(1, Relaxed);
    }

    pub(super) fn name_notice(&self) {
        self.name_notices.fetch_add(1, Relaxed);
    }

    pub(super) fn state_notice(&self) {
        self.state_notices.fetch_add(1, Relaxed);
    }
}
