//! The fast lane's service end: sessions over a UNIX socket, requests over shared memory.
//!
//! ```text
//!  socket ─► accept ─► Session ──────────────┐ handles, slots, locks, identity
//!                         │ channel          │
//!  mailboxes ─► worker ─► dispatch ─► request (check) ─► serve ─► vfs ─► reply
//!                         └─► helpers: the same, for what may take long
//! ```
//!
//! Every client is hostile until its bytes were copied out and checked (`request`); nothing past
//! that sees shared memory except file data, which passes straight between mailbox and VFS.
//!
//! # Floors
//!
//! Each uses those below alone: `accept` and `worker` › `dispatch` › `serve` (an operation each) ›
//! `session` (one connection with what it holds) › `rights` (what its client may do unasked; beside
//! `rights` of the client crate, by the same names) › `files` (what it has open) › `connection`
//! (who it is) › `process`.
//!
//! # Threads
//!
//! One acceptor, one worker per core group, a few helpers. A worker waits for quick small syncs
//! alone: the thread that waits for a device gives the worker's role to a follower, of which each
//! group has a few. The acceptor waits for clients only; helpers wait for devices and for the
//! kernel. The first client has all but the acceptor started (`crew`).
//!
//! # Locking
//!
//! Every lock in here is a leaf, held for a few instructions; none while the VFS is called.

mod accept;
mod attr;
mod connection;
mod crew;
mod dispatch;
mod files;
mod helpers;
mod post;
mod process;
mod request;
mod rights;
mod role;
mod roster;
mod serve;
mod session;
mod slices;
mod stats;
mod table;
mod users;
mod views;
mod work;
mod worker;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use polylane_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_base::{Errno, Result};
use polylane_ipc::layout::GROUPS_MAX;
use polylane_ipc::message::MARK_PLACES;
use polylane_ipc::view::FRAME_BYTES;
use polylane_ipc::{CopyPlan, Geometry};
use polylane_sys::board::Board;
use polylane_sys::event::{self, eventfd};
use polylane_sys::pulse::Pulse;
use polylane_vfs::handover::Heart;

use self::accept::{Acceptor, Around};
use self::crew::Crew;
use self::helpers::Helpers;
use self::rights::FramesLeft;
use self::rights::lookup::Marks;
use self::stats::Stats;
use self::views::Views;
use self::worker::Inbox;
use crate::lane::Lane;

pub use self::stats::Totals;
pub use self::views::ViewTotals;

/// How a [`Server`] is to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// One worker each, 1 to `GROUPS_MAX`: pinned to this CPU, or left to the scheduler.
    pub workers: Vec<Option<u32>>,
    /// Threads for what may take long.
    pub helpers: usize,
    /// Threads of each worker beside the first: so many requests wait for a device on the thread
    /// that took them.
    pub followers: usize,
    /// Shape of each client's channel; its `groups` is the number of workers.
    pub geometry: Geometry,
    /// How large payloads are moved. Looked at when the first client comes: measuring it takes
    /// some milliseconds of two CPUs.
    pub plan: Arc<LazyLock<CopyPlan>>,
    /// Connections in all; one more is refused with `EAGAIN`, and its program uses the kernel's
    /// way.
    pub sessions_max: usize,
    /// Connections of one user.
    pub sessions_per_uid_max: usize,
    /// Processes that are known: with a session, or with locks that they asked for, as long as they
    /// live; others until there are too many.
    pub processes_max: usize,
    /// Those of one user.
    pub processes_per_uid_max: usize,
    /// Most bytes of file data shown to all clients together.
    pub view_bytes_max: u64,
    /// Directories of the lane that the kernel has covered with something else, from the root.
    pub covered: Vec<Vec<u8>>,
    /// Where the workers show that they live.
    pub heart: Option<Arc<Heart>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            workers: vec![None],
            helpers: 4,
            followers: 4,
            geometry: Geometry::default(),
            plan: Arc::new(LazyLock::new(CopyPlan::default)),
            sessions_max: 1024,
            sessions_per_uid_max: 256,
            processes_max: 4096,
            processes_per_uid_max: 1024,
            view_bytes_max: 256 << 20,
            covered: vec![polylane_ipc::message::RESERVED_DIR.into()],
            heart: None,
        }
    }
}

/// The service end of one lane's fast way in. Thread-safe. Dropped without [`Server::stop`], it
/// stops.
pub struct Server {
    around: Arc<Around>,
    acceptor: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Server {
    /// Starts serving `lane` to whoever connects to `listener`, a listening `SOCK_SEQPACKET`
    /// socket.
    ///
    /// # Errors
    /// `EINVAL` for a config out of bounds, else what the kernel says to new threads and
    /// descriptors.
    pub fn start(lane: Arc<Lane>, listener: OwnedFd, config: Config) -> Result<Server> {
        let workers = config.workers.len();
        let fits = (1..=GROUPS_MAX as usize).contains(&workers) && config.helpers > 0;
        if !fits || config.geometry.layout().is_err() {
            return Err(Errno::EINVAL);
        }
        let inboxes = (0..workers).map(Inbox::new).collect::<Result<Vec<_>>>()?;
        let frames = config.view_bytes_max / FRAME_BYTES as u64;
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        let frames_left = Arc::new(FramesLeft::new(frames));
        let marks = Arc::new(Marks(Board::new(MARK_PLACES)?));
        let marks = lane.vfs.mark_with(marks.clone()).then_some(marks);
        let around = Arc::new(Around {
            lane,
            config,
            inboxes,
            helpers: Arc::new(Helpers::new()),
            crew: Crew::of(workers, spawn),
            stats: Arc::default(),
            stop: eventfd()?,
            stopping: AtomicBool::new(false),
            session_count: AtomicUsize::new(0),
            views: Views::default(),
            frames_left,
            pulse: Arc::new(Pulse::new()?),
            marks,
        });
        // From here on a failure drops the server, which stops what was started.
        let server = Server { around, acceptor: Mutex::default() };
        let acceptor = Acceptor::new(server.around.clone(), listener)?;
        *server.acceptor.lock() = Some(spawn("shm-accept".into(), Box::new(|| acceptor.run()))?);
        Ok(server)
    }

    /// Lets nobody in any more, serves what was posted, ends every session and waits for all
    /// threads. Later calls do nothing.
    pub fn stop(&self) {
        let acceptor = self.acceptor.lock().take();
        self.around.crew.stop(&self.around.inboxes);
        self.around.lane.kept.leave();
        self.around.stopping.store(true, Ordering::Release);
        event::notify(&self.around.stop);
        join(acceptor);
        self.around.helpers.stop();
    }

    /// Sessions just now.
    pub fn session_count(&self) -> usize {
        self.around.session_count.load(Ordering::Relaxed)
    }

    /// What sessions see, and why processes have none.
    pub fn views(&self) -> ViewTotals {
        self.around.views.totals()
    }

    /// What has been done since the start.
    pub fn totals(&self) -> Totals {
        let workers = self.around.crew.stats();
        Stats::totals(workers.chain(std::iter::once(&*self.around.stats)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a thread.
type Spawn = fn(String, Box<dyn FnOnce() + Send>) -> Result<thread::JoinHandle<()>>;

fn spawn(name: String, run: Box<dyn FnOnce() + Send>) -> Result<thread::JoinHandle<()>> {
    Ok(thread::Builder::new().name(name).spawn(run)?)
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        // A panic was caught where it happened; one that was not has been printed.
        let _ = thread.join();
    }
}

/// Runs `work`; a panic in it is a bug of ours that must cost one request or one connection, not
/// the service. The panic hook has printed it.
fn guarded(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}
