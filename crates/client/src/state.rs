//! Everything a process knows about its lane, in memory that a forked child finds zeroed.
//!
//! The kernel wipes these pages at fork (`MADV_WIPEONFORK`), so a child, however it was made,
//! starts with "nothing known": it cannot use its parent's channel by mistake, and every inherited
//! descriptor is looked at anew when it is first used. Zero is therefore a valid first value of
//! every field.
//!
//! # Invariants
//!
//! - `life` is [`READY`] before any other field is used; see [`get`].
//! - What must outlive the wipe (which descriptors are the library's own) is in `private`.
//!
//! # Locking
//!
//! No locks here; parts say their own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fd::cwd::Cwd;
use crate::fd::preopened::SlotPool;
use crate::fd::table::{FdTable, RecordPool};
use crate::rights::handles::Rests;
use crate::rights::lease::Leases;
use crate::rights::lookup::Paths;
use crate::session::Sessions;

/// Alignment at which `madvise` can tell these pages from their neighbours: the largest page size
/// of the architecture.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(4096))]
pub(crate) struct State(Fields);

/// As above.
#[cfg(not(target_arch = "x86_64"))]
#[repr(C, align(65536))]
pub(crate) struct State(Fields);

/// The parts.
pub(crate) struct Fields {
    life: AtomicU32,
    /// Descriptors.
    pub(crate) table: FdTable,
    /// What they mean.
    pub(crate) records: RecordPool,
    /// Kernel descriptors opened ahead.
    pub(crate) slots: SlotPool,
    /// The channel to the service.
    pub(crate) sessions: Sessions,
    /// Directories whose names this process may change without asking.
    pub(crate) leases: Leases,
    /// What is known of paths.
    pub(crate) paths: Paths,
    /// Files that were closed and may be opened again without a request.
    pub(crate) rests: Rests,
    /// The working directory.
    pub(crate) cwd: Cwd,
    /// `st_dev` of the mount plus one; 0: not known yet.
    pub(crate) device: AtomicU64,
    /// Inode number of the mount's root; 0: not known yet.
    pub(crate) root_ino: AtomicU64,
    /// The umask plus one; 0: not known yet.
    pub(crate) umask: AtomicU32,
    /// `RLIMIT_FSIZE` plus one; 0: not known yet.
    pub(crate) file_limit: AtomicU64,
    /// How often other processes may have got copies of descriptors.
    pub(crate) shares: AtomicU32,
    /// How many threads are just making another process.
    pub(crate) sharing: AtomicU32,
    /// This process took POSIX locks, which any close of the file gives up.
    pub(crate) has_locked: AtomicU32,
    /// Tells this process's memory from that of its ancestors back to the last exec.
    pub(crate) memory: AtomicU32,
}

const WIPED: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

static STATE: State = State(Fields {
    life: AtomicU32::new(WIPED),
    table: FdTable::new(),
    records: RecordPool::new(),
    slots: SlotPool::new(),
    sessions: Sessions::new(),
    leases: Leases::new(),
    paths: Paths::new(),
    rests: Rests::new(),
    cwd: Cwd::new(),
    device: AtomicU64::new(0),
    root_ino: AtomicU64::new(0),
    umask: AtomicU32::new(0),
    file_limit: AtomicU64::new(0),
    shares: AtomicU32::new(0),
    sharing: AtomicU32::new(0),
    has_locked: AtomicU32::new(0),
    memory: AtomicU32::new(0),
});

/// How many memories there were, from the last exec on: those of this process and its ancestors.
static MEMORIES: AtomicU32 = AtomicU32::new(0);

/// This process's state.
#[inline]
pub(crate) fn get() -> &'static Fields {
    let fields = &STATE.0;
    if fields.life.load(Ordering::Acquire) != READY {
        start(fields);
    }
    fields
}

/// The state, if this process used it already.
#[inline]
pub(crate) fn started() -> Option<&'static Fields> {
    (STATE.0.life.load(Ordering::Acquire) == READY).then_some(&STATE.0)
}

/// The first use in a process: closes what belonged to the parent.
#[cold]
fn start(fields: &'static Fields) {
    // No handler may come while this thread is the one that others wait for.
    crate::kernel::thread::slow(|| {
        let (first, then) = (Ordering::Acquire, Ordering::Acquire);
        if fields.life.compare_exchange(WIPED, STARTING, first, then).is_ok() {
            crate::kernel::reserved::close_all();
            crate::kernel::real::wipe_on_fork(&STATE);
            let memory = MEMORIES.fetch_add(1, Ordering::Relaxed) + 1;
            fields.memory.store(memory, Ordering::Relaxed);
            fields.life.store(READY, Ordering::Release);
        }
    });
    while fields.life.load(Ordering::Acquire) != READY {
        std::hint::spin_loop();
    }
}
