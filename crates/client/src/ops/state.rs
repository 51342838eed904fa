//! Everything a process knows about its lanes, in memory that a forked child finds zeroed.
//!
//! The kernel wipes these pages at fork (`MADV_WIPEONFORK`), so a child, however it was made,
//! starts with "nothing known": it cannot use its parent's channel by mistake, and every inherited
//! descriptor is looked at anew when it is first used. Zero is therefore a valid first value of
//! every field.
//!
//! # Invariants
//!
//! - `life` is [`READY`] before any other field is used; see [`State::get`].
//! - What must outlive the wipe (which descriptors are the library's own) is in `kernel::reserved`.
//! - No floor below this one comes here: what it needs of the state is handed to it.
//!
//! # Locking
//!
//! No locks here; parts say their own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use polylane_ipc::handshake::LANES_MAX;
use zerocopy::FromZeros;

use crate::fd::cwd::Cwd;
use crate::fd::directories::Directories;
use crate::fd::preopened::SlotPool;
use crate::fd::record::{FileBits, Record};
use crate::fd::table::{FdTable, RecordPool, Records};
use crate::fd::{abandon, rings};
use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::{real, reserved, thread};
use crate::rights::closing;
use crate::rights::handles::{CachedHandles, HandleCache};
use crate::rights::lease::Leases;
use crate::rights::lookup::{KernelMemory, Paths};
use crate::session::namespace::{self, Mount};
use crate::session::{NoSession, Session, Sessions};

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
    /// What they mean: see [`Fields::records`].
    pool: RecordPool,
    /// The first lane: see [`Fields::lane`].
    first: Lane,
    /// The working directory.
    pub(crate) cwd: Cwd,
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
}

/// What a process knows about one lane.
#[derive(FromZeros)]
pub(crate) struct Lane {
    /// The channel to the service.
    pub(crate) sessions: Sessions,
    /// The mount.
    mount: Mount,
    /// Kernel descriptors opened ahead.
    pub(crate) slots: SlotPool,
    /// Kernel descriptors of directories, kept open.
    pub(crate) directories: Directories,
    /// Directories whose names this process may change without asking.
    pub(crate) leases: Leases,
    /// What is known of paths.
    pub(crate) paths: Paths,
    /// How often the kernel knows what is asked of paths.
    pub(crate) kernel: KernelMemory,
    /// Files that were closed and may be opened again without a request.
    handles: CachedHandles,
}

const WIPED: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

/// This process's state. The C surface hands it to every call; nothing else reaches for it but
/// what libc and [`Records`] call back.
pub(crate) static STATE: State = State(Fields {
    life: AtomicU32::new(WIPED),
    table: FdTable::new(),
    pool: RecordPool::new(),
    first: Lane::new(),
    cwd: Cwd::new(),
    umask: AtomicU32::new(0),
    file_limit: AtomicU64::new(0),
    shares: AtomicU32::new(0),
    sharing: AtomicU32::new(0),
    has_locked: AtomicU32::new(0),
});

/// Lanes beyond the first, in mappings of their own, which are wiped as well: most processes have
/// none, and the library's own data is locked into memory by programs that lock all of theirs.
static FURTHER: [OnceLock<&'static Lane>; LANES_MAX - 1] =
    [const { OnceLock::new() }; LANES_MAX - 1];

/// Makes what is kept of lanes beyond the first. Called in the constructor. One for which there is
/// no memory, and those after it, are the kernel's.
pub(crate) fn make_lanes() {
    for number in config::lanes() {
        let Some(place) = number.index().checked_sub(1) else { continue };
        match Lane::new_box_zeroed() {
            Ok(lane) => drop(FURTHER[place].set(Box::leak(lane))),
            Err(_) => return config::leave_out_from(number),
        }
    }
}

/// The open files, and what becomes of one that is closed.
static RECORDS: Records = Records::new(&STATE.0.pool, finish);

/// How many memories there were, from the last exec on: those of this process and its ancestors.
static MEMORIES: AtomicU32 = AtomicU32::new(0);

impl State {
    /// The parts, from the first use on.
    #[inline]
    pub(crate) fn get(&'static self) -> &'static Fields {
        let fields = &self.0;
        if fields.life.load(Ordering::Acquire) != READY {
            start(self);
        }
        fields
    }

    /// The parts, if this process used them already.
    #[inline]
    pub(crate) fn started(&'static self) -> Option<&'static Fields> {
        (self.0.life.load(Ordering::Acquire) == READY).then_some(&self.0)
    }
}

/// The first use in a process: closes what belonged to the parent.
#[cold]
fn start(state: &'static State) {
    let fields = &state.0;
    // No handler may come while this thread is the one that others wait for.
    thread::slow(|| {
        let (first, then) = (Ordering::Acquire, Ordering::Acquire);
        if fields.life.compare_exchange(WIPED, STARTING, first, then).is_ok() {
            reserved::close_all();
            real::wipe_on_fork(state);
            let memory = MEMORIES.fetch_add(1, Ordering::Relaxed) + 1;
            for number in config::lanes() {
                let lane = fields.lane(number);
                if number != LaneNumber::FIRST {
                    real::wipe_on_fork(lane);
                }
                lane.sessions.begin(number, memory);
            }
            fields.life.store(READY, Ordering::Release);
        }
    });
    while fields.life.load(Ordering::Acquire) != READY {
        std::hint::spin_loop();
    }
}

/// What keeps the kernel's descriptor of a directory from being parked: others may have a copy, or
/// locks may be on it.
const BARRED: FileBits = FileBits::COMMON.union(FileBits::SHARED).union(FileBits::LOCKED);

/// The last reference to an open file is gone.
fn finish(file: &Record) {
    let state = STATE.get();
    let lane = state.lane(file.lane());
    let present = lane.sessions.present();
    if file.is(FileBits::DIRECTORY) {
        let may = !file.is(BARRED) && !rings::any();
        let own = || present.filter(|session| session.is_own());
        lane.directories.finish(file, if may { own() } else { None });
    }
    let locks = state.has_locked.load(Ordering::Relaxed) != 0;
    let parked = !locks && !rings::any() && lane.handles().park_last(present, file);
    if !parked {
        closing::finish(&lane.leases, present, &lane.slots, file);
    }
}

impl Fields {
    /// The open files.
    #[inline]
    pub(crate) fn records(&self) -> &'static Records {
        &RECORDS
    }

    /// The lane of that number.
    #[inline]
    pub(crate) fn lane(&'static self, number: LaneNumber) -> &'static Lane {
        match number.index() {
            0 => &self.first,
            further => FURTHER[further - 1].get().unwrap_or(&&self.first),
        }
    }

    /// The session of an open file's lane.
    #[inline]
    pub(crate) fn session_of(&'static self, file: &Record) -> Option<&'static Session> {
        self.lane(file.lane()).ready().ok()
    }

    /// The lanes of this process.
    pub(crate) fn lanes(&'static self) -> impl Iterator<Item = &'static Lane> {
        config::lanes().map(|number| self.lane(number))
    }

    /// The lane whose mount has that `st_dev`; `None`: it is no lane's, or that of several mounts
    /// of one service, which do not show and allow the same. `Kernel`: that of a lane cannot be
    /// found out now, and it is no other lane's.
    pub(crate) fn lane_on(&'static self, device: u64) -> Outcome<Option<&'static Lane>> {
        let (mut known, mut failed) = (None, None);
        for lane in self.lanes() {
            match lane.device() {
                Ok(of) if of == device && known.is_some() => return Ok(None),
                Ok(of) if of == device => known = Some(lane),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        match (known, failed) {
            (None, Some(error)) => Err(error),
            (known, _) => Ok(known),
        }
    }

    /// Closes the library's descriptors that nothing open needs: the program ran out of them.
    /// Whether there were any.
    pub(crate) fn shed(&'static self) -> bool {
        self.lanes().filter(|lane| lane.shed()).count() > 0
    }

    /// Readies what is open in lanes of which there will be no session any more.
    #[cold]
    fn leave_to_kernel(&'static self) {
        self.shares.fetch_add(1, Ordering::SeqCst);
        for lane in self.lanes().filter(|lane| !namespace::is_at_home(lane.number())) {
            abandon::leave_all_to_kernel(&self.table, &RECORDS, (lane.number(), &lane.slots));
            lane.sessions.leave();
        }
        self.cwd.changed(&RECORDS);
    }
}

impl Lane {
    const fn new() -> Self {
        Lane {
            sessions: Sessions::new(),
            mount: Mount::new(),
            slots: SlotPool::new(),
            directories: Directories::new(),
            leases: Leases::new(),
            paths: Paths::new(),
            kernel: KernelMemory::new(),
            handles: CachedHandles::new(),
        }
    }

    /// Which one it is.
    #[inline]
    pub(crate) fn number(&self) -> LaneNumber {
        self.sessions.lane()
    }

    /// `st_dev` of the mount.
    #[inline]
    pub(crate) fn device(&self) -> Outcome<u64> {
        self.mount.device(self.number())
    }

    /// The inode number of the mount's root.
    pub(crate) fn root_ino(&self) -> Outcome<u64> {
        self.mount.root_ino(self.number())
    }

    /// Files that were closed and may be opened again without a request.
    #[inline]
    pub(crate) fn handles(&'static self) -> HandleCache {
        HandleCache { cached: &self.handles, slots: &self.slots, records: &RECORDS }
    }

    /// As [`Fields::shed`].
    pub(crate) fn shed(&'static self) -> bool {
        let directories = self.directories.shed();
        self.handles().shed(self.sessions.present()) || directories
    }

    /// The session, unless paths mean something else in this process; connects when there is none.
    #[inline]
    pub(crate) fn ready(&'static self) -> Outcome<&'static Session> {
        if !namespace::is_at_home(self.number()) {
            return Err(Detour::Kernel);
        }
        match self.sessions.present() {
            Some(session) => Ok(session),
            None => self.connect(),
        }
    }

    /// As [`ready`](Self::ready), but where another thread is connecting that is waited for.
    pub(crate) fn ready_together(&'static self) -> Outcome<&'static Session> {
        self.sessions.get_together(|| self.ready())
    }

    /// Waits until the next service has let this process in. False: it does not.
    #[cold]
    pub(crate) fn await_next(&'static self) -> bool {
        self.sessions.await_next(|| self.ready().is_ok())
    }

    #[cold]
    fn connect(&'static self) -> Outcome<&'static Session> {
        match self.sessions.connect() {
            Ok(session) => {
                thread::slow(|| self.slots.drop_former(session.number));
                self.directories.shed();
                Ok(session)
            }
            Err(NoSession::Later) => Err(Detour::Kernel),
            Err(NoSession::Never) => {
                STATE.get().leave_to_kernel();
                Err(Detour::Kernel)
            }
        }
    }
}
