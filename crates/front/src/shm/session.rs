//! A session: one connection of one client process, and everything it holds.
//!
//! # Invariants
//!
//! - Who the client is was fixed when it connected; nothing it says later changes it.
//! - Every request that was taken gets exactly one reply: from the worker, or from the [`Pending`]
//!   that was handed to someone else, at the latest when that is dropped.
//! - After [`Session::end`] nothing is open, parked or bound any more, and nothing can be again.
//!
//! # Locking
//!
//! `leases` comes first; see there. `open`, `streamed`, `parked` and `Parked`'s own are leaves: no
//! VFS call is made, no file is dropped and no reply is sent under any of them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Errno, Result};
use polylane_ipc::message::{Reply, Status};
use polylane_ipc::stream::STREAMED_HANDLE;
use polylane_ipc::{MailboxIndex, ServiceChannel};
use polylane_vfs::handover::{Answered, RequestId, Turn};
use polylane_vfs::{Cred, LockOwner, Node, OpCtx, OpenFile, Origin, Ticket};

use super::holders::Holders;
use super::leases::Leases;
use super::request::{Handle, Start};
use super::stats::Stats;
use super::table::{Chosen, Table};
use super::users::{HANDLES_PER_USER_MAX, HandleCharge, User};
use super::views::{FramesLeft, Views};
use crate::lane::Lane;
use crate::slots::SessionSlots;

/// In the first word of an request: no request of the kernel's has it.
const OF_CLIENT: u64 = 1 << 63;

/// A reply as it is recorded: its count, and its first value.
pub(super) fn to_answer(reply: &Reply) -> [u8; 16] {
    let count = if let Status::Done(count) = reply.status { count } else { 0 };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&reply.value[0].to_le_bytes());
    bytes
}

/// What [`to_answer`] recorded.
pub(super) fn from_answer(bytes: &[u8]) -> Reply {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        word.map_or(0, u64::from_le_bytes)
    };
    let mut reply = Reply::new(Status::Done(word(0)));
    reply.value[0] = word(8);
    reply
}

/// A client process. Outlives its sessions, so that POSIX locks survive exec.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number as we see it.
    pub(super) pid: u32,
    /// Readable once the process is gone.
    pub(super) pidfd: OwnedFd,
    /// Its own, unlike that of any other process that ever was.
    pub(super) number: u64,
    /// Owner of its POSIX locks.
    pub(super) owner: LockOwner,
    /// It is gone: set before its locks are dropped, looked at after one was set.
    pub(super) gone: AtomicBool,
    /// It has asked for a POSIX lock.
    pub(super) locks: AtomicBool,
    /// It and the others.
    pub(super) holders: Arc<Holders>,
}

impl Process {
    /// The process is gone, and with it every lock it has or will still be given.
    pub(super) fn bury(&self, lane: &Lane) {
        self.gone.store(true, Ordering::SeqCst);
        self.drop_locks(lane);
        self.holders.remove(self.owner);
    }

    fn drop_locks(&self, lane: &Lane) {
        lane.kept.drop_process(self.number);
        lane.vfs.drop_owner(self.owner);
    }

    /// After a lock was set for it: if it was buried in between, the lock goes too.
    pub(super) fn check_alive(&self, lane: &Lane) {
        if self.gone.load(Ordering::SeqCst) {
            self.drop_locks(lane);
        }
    }
}

/// Something a session has open. Cheap to clone.
#[derive(Clone)]
pub(super) enum Open {
    /// A regular file, and the slot that goes with the handle.
    File {
        /// The open file.
        file: Arc<OpenFile>,
        /// Number of the bound slot.
        slot: Option<u32>,
        /// Number of the view that shows it.
        view: Option<u32>,
    },
    /// A directory to start paths from, and the open directory once it was listed.
    Dir {
        /// The directory.
        node: Node,
        /// Opened for listing.
        listing: Option<Arc<OpenFile>>,
    },
}

impl Open {
    /// The open file, if it is one of this inode.
    fn file_of(&self, node: &Node) -> Option<&Arc<OpenFile>> {
        match self {
            Open::File { file, .. } if Arc::ptr_eq(file.node(), node) => Some(file),
            _ => None,
        }
    }

    /// The inode that is open.
    pub(super) fn node(&self) -> &Node {
        match self {
            Open::File { file, .. } => file.node(),
            Open::Dir { node, .. } => node,
        }
    }
}

/// Something open, and its part of what its user may have open.
type Charged = (Open, HandleCharge);

/// One connection. Thread-safe.
pub(super) struct Session {
    /// Unique in this service process.
    pub(super) id: u64,
    /// The client process's own secret: with it go the turns of its requests.
    pub(super) key: u64,
    /// Who the client is.
    pub(super) cred: Cred,
    /// Its process.
    pub(super) process: Arc<Process>,
    /// Its process's number as the lane's tenant sees it: F_GETLK of others tells it.
    pub(super) shown: u32,
    /// The shared memory.
    pub(super) channel: ServiceChannel,
    /// The kernel descriptors it opened ahead.
    pub(super) slots: Arc<SessionSlots>,
    /// What it is a session of.
    pub(super) lane: Arc<Lane>,
    /// Where requests are counted that a worker did not finish.
    pub(super) stats: Arc<Stats>,
    /// What its client may change unasked.
    pub(super) leases: Leases,
    /// What its client sees, and may write, unasked.
    pub(super) views: Views,
    /// What all sessions of its user have open counts together.
    user: Arc<User>,
    open: Mutex<Table<Charged>>,
    /// Files that the client opened by its stream, under handles that it chose.
    streamed: Mutex<Chosen<Charged>>,
    parked: Mutex<BTreeMap<u32, Arc<Parked>>>,
    ended: AtomicBool,
}

/// What a new session is made of.
pub(super) struct Parts {
    pub(super) id: u64,
    pub(super) key: u64,
    pub(super) cred: Cred,
    pub(super) process: Arc<Process>,
    pub(super) shown: u32,
    pub(super) channel: ServiceChannel,
    pub(super) slots: Arc<SessionSlots>,
    pub(super) lane: Arc<Lane>,
    pub(super) stats: Arc<Stats>,
    pub(super) frames_left: Arc<FramesLeft>,
    pub(super) user: Arc<User>,
}

impl Session {
    /// A session with nothing open.
    pub(super) fn new(parts: Parts) -> Arc<Session> {
        let Parts { id, key, cred, process, shown, channel, slots, lane, .. } = parts;
        let Parts { stats, frames_left, user, .. } = parts;
        let session = Arc::new(Session {
            id,
            key,
            cred,
            process,
            shown,
            channel,
            slots,
            lane,
            stats,
            leases: Leases::default(),
            views: Views::new(frames_left),
            user,
            open: Mutex::new(Table::new(HANDLES_PER_USER_MAX)),
            streamed: Mutex::default(),
            parked: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let weak: Weak<Session> = Arc::downgrade(&session);
        session.slots.set_holder(weak);
        session
    }

    /// What is done for the client is done with this, and the turn of its request.
    pub(super) fn ctx(&self) -> OpCtx<'_> {
        OpCtx::new(Origin::Library { session: self.id }, &self.cred)
    }

    /// The turn of a request that is to be done once; or what a former service was
    /// about to answer it, and what to drop when that is sent.
    pub(super) fn turn(&self, turn: u32) -> std::result::Result<Option<Turn>, (Vec<u8>, Answered)> {
        let Some(handover) = self.lane.handover.as_ref().filter(|_| turn != 0) else {
            return Ok(None);
        };
        let request = RequestId(self.key | OF_CLIENT, turn.into());
        handover.turns.recall(request).map_or_else(|| Ok(Some(handover.turns.begin(request))), Err)
    }

    /// Adds an open file or directory. `EMFILE` at the limit of its user, or after the end.
    pub(super) fn add(&self, open: Open) -> Result<Handle> {
        let charge = User::open_handle(&self.user)?;
        self.open.lock().insert((open, charge))
    }

    /// Adds an open file under a handle that the client chose. `EBADF`: not one to choose; `EBUSY`:
    /// in use. It counts for its user, and is refused to none: its client believes it open already.
    pub(super) fn add_streamed(&self, handle: Handle, open: Open) -> Result<()> {
        let charge = User::opened_handle(&self.user);
        self.streamed.lock().insert(handle, (open, charge))
    }

    /// The view that a handle refers to.
    pub(super) fn view_in(&self, handle: Handle) -> Option<u32> {
        let view = |open: &Open| match open {
            Open::File { view, .. } => *view,
            Open::Dir { .. } => None,
        };
        self.with(handle, view).ok().flatten()
    }

    /// Has a handle refer to a view. False: it refers to one already, or is closed.
    pub(super) fn set_view(&self, handle: Handle, number: u32) -> bool {
        let set = |open: Result<&mut Charged>| match open {
            Ok((Open::File { view: view @ None, .. }, _)) => view.replace(number).is_none(),
            _ => false,
        };
        match handle.index & STREAMED_HANDLE {
            0 => set(self.open.lock().get_mut(handle)),
            _ => set(self.streamed.lock().get_mut(handle)),
        }
    }

    fn with<T>(&self, handle: Handle, look: impl FnOnce(&Open) -> T) -> Result<T> {
        match handle.index & STREAMED_HANDLE {
            0 => self.open.lock().get(handle).map(|(open, _)| look(open)),
            _ => self
                .streamed
                .lock()
                .get(handle)
                .map(|(open, _)| look(open))
                .map_err(|_| self.unknown_handle()),
        }
    }

    /// What a handle means. `EBADF` when nothing.
    pub(super) fn get(&self, handle: Handle) -> Result<Open> {
        self.with(handle, Open::clone)
    }

    /// Takes an open file or directory out.
    pub(super) fn remove(&self, handle: Handle) -> Result<Open> {
        match handle.index & STREAMED_HANDLE {
            0 => self.open.lock().remove(handle),
            _ => self.streamed.lock().remove(handle),
        }
        .map(|(open, _)| open)
    }

    /// The open regular file of a handle. `EISDIR` for a directory.
    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.lockable(handle)?.whole()
    }

    /// As [`Session::file`], to be locked: whether or not it has lost bytes.
    pub(super) fn lockable(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.with(handle, |open| match open {
            Open::File { file, .. } => Ok(file.clone()),
            Open::Dir { .. } => Err(Errno::EISDIR),
        })?
    }

    /// The inode of a handle.
    pub(super) fn node(&self, handle: Handle) -> Result<Node> {
        self.with(handle, |open| open.node().clone())
    }

    /// Whether the client has a file open that it made by its stream.
    pub(super) fn has_streamed(&self, node: &Node) -> bool {
        self.streamed.lock().values().any(|(open, _)| open.file_of(node).is_some())
    }

    /// The open file of an inode, if there is one and no more.
    pub(super) fn sole_file(&self, node: &Node) -> Option<Arc<OpenFile>> {
        let file = |(open, _): &Charged| open.file_of(node).cloned();
        let mut files: Vec<_> = self.open.lock().values().filter_map(file).collect();
        files.extend(self.streamed.lock().values().filter_map(file));
        files.pop().filter(|_| files.is_empty())
    }

    /// The inode that a path starts from.
    pub(super) fn start(&self, start: Start) -> Result<Node> {
        match start {
            Start::Root => Ok(self.lane.vfs.root()),
            Start::Dir(handle) => self.node(handle),
        }
    }

    /// The directory of a handle opened for listing, opened now if it was not yet.
    pub(super) fn listing(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let node = match self.get(handle)? {
            Open::Dir { listing: Some(file), .. } => return Ok(file),
            Open::Dir { node, .. } => node,
            Open::File { .. } => return Err(Errno::ENOTDIR),
        };
        let file = self.lane.vfs.open(&self.ctx(), &node, libc::O_RDONLY | libc::O_DIRECTORY)?;
        if let Ok((Open::Dir { listing, .. }, _)) = self.open.lock().get_mut(handle) {
            *listing = Some(file.clone());
        }
        Ok(file)
    }

    /// Ends the session: closes everything, takes back what waits, gives its slots to their kernel
    /// descriptors. Once; later calls do nothing.
    pub(super) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        // First what the client did: it counts as done.
        self.close_leases();
        self.end_views();
        self.lane.slots.drop_session(&self.slots);
        let parked = std::mem::take(&mut *self.parked.lock());
        for parked in parked.into_values() {
            parked.withdraw(&self.lane);
        }
        let (open, streamed) = (self.open.lock().close(), self.streamed.lock().close());
        drop((open, streamed));
    }

    /// Records a lock request that is about to be parked, before the VFS is told.
    pub(super) fn park(self: &Arc<Self>, mailbox: MailboxIndex) -> Arc<Parked> {
        let pending = Pending::new(self.clone(), mailbox);
        let (pending, ticket) = (Mutex::new(Some(pending)), Mutex::default());
        let parked = Arc::new(Parked { pending, ticket });
        self.parked.lock().insert(mailbox.0, parked.clone());
        parked
    }

    /// After the VFS parked the request: it can be cancelled from now on.
    pub(super) fn parked(&self, parked: &Parked, ticket: Ticket) {
        *parked.ticket.lock() = Some(ticket);
        if self.ended.load(Ordering::SeqCst) {
            parked.withdraw(&self.lane);
        }
    }

    /// Takes back a waiting request; its reply is `EINTR`. False when none waits there.
    pub(super) fn cancel(&self, mailbox: MailboxIndex) -> bool {
        let parked = self.parked.lock().get(&mailbox.0).cloned();
        parked.is_some_and(|parked| parked.cancel(&self.lane))
    }

    /// Nothing waits in this mailbox any more: serving it ended in a way nobody planned.
    pub(super) fn abandon(&self, mailbox: MailboxIndex) {
        let parked = self.parked.lock().get(&mailbox.0).cloned();
        if let Some(pending) = parked.and_then(|parked| parked.take()) {
            pending.release();
        }
    }

    /// Forgets a request that waits no longer.
    fn unpark(&self, mailbox: MailboxIndex, which: &Parked) {
        let mut parked = self.parked.lock();
        let found = parked.get(&mailbox.0).is_some_and(|found| std::ptr::eq(&**found, which));
        let gone = if found { parked.remove(&mailbox.0) } else { None };
        drop(parked);
        drop(gone);
    }
}

/// A lock request that waits. Whoever takes `pending` out replies.
pub(super) struct Parked {
    pending: Mutex<Option<Pending>>,
    ticket: Mutex<Option<Ticket>>,
}

impl Parked {
    /// Ends the wait; the first call wins, and gets what is owed.
    pub(super) fn take(&self) -> Option<Pending> {
        let pending = self.pending.lock().take()?;
        pending.session.unpark(pending.mailbox, self);
        Some(pending)
    }

    /// Takes the request back, if it still waits: the reply is `EINTR`.
    fn cancel(&self, lane: &Lane) -> bool {
        let withdrawn = self.withdrawn(lane);
        let cancelled = withdrawn.is_some();
        if let Some(Some(pending)) = withdrawn {
            pending.reply(&Reply::new(Status::Failed(Errno::EINTR.0)));
        }
        cancelled
    }

    /// Takes the request back with its session: a client that lives asks the next service.
    fn withdraw(&self, lane: &Lane) {
        if let Some(Some(pending)) = self.withdrawn(lane) {
            pending.release();
        }
    }

    fn withdrawn(&self, lane: &Lane) -> Option<Option<Pending>> {
        let ticket = (*self.ticket.lock())?;
        lane.vfs.cancel_lock(ticket).then(|| self.take())
    }
}

/// The duty to reply to a request. Dropped without a reply it says `EIO`, so that no client waits
/// for ever on a job that was thrown away or panicked.
pub(super) struct Pending {
    session: Arc<Session>,
    mailbox: MailboxIndex,
    owed: bool,
}

impl Pending {
    pub(super) fn new(session: Arc<Session>, mailbox: MailboxIndex) -> Pending {
        Pending { session, mailbox, owed: true }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(super) fn mailbox(&self) -> MailboxIndex {
        self.mailbox
    }

    /// Replies.
    pub(super) fn reply(mut self, reply: &Reply) {
        self.owed = false;
        self.post(reply);
    }

    fn post(&self, reply: &Reply) {
        self.session.stats.ended(reply.status);
        self.session.channel.reply(self.mailbox, reply);
    }

    /// Somebody else replies after all.
    pub(super) fn release(mut self) {
        self.owed = false;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.owed {
            self.post(&Reply::new(Status::Failed(Errno::EIO.0)));
        }
    }
}
