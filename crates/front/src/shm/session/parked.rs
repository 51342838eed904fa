//! Replies that are owed: by a helper, or, to lock requests that wait, by the thread that makes
//! room.
//!
//! # Locking
//!
//! `LockRequests::parked` and those of a [`Parked`] are leaves.

use std::collections::BTreeMap;

use polylane_base::Errno;
use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Arc, Mutex};
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Reply, Status};
use polylane_vfs::Ticket;

use super::Session;
use crate::lane::Lane;

/// The lock requests of one session that wait, by mailbox. Thread-safe.
#[derive(Default)]
pub(super) struct LockRequests {
    parked: Mutex<BTreeMap<u32, Arc<Parked>>>,
}

impl LockRequests {
    fn get(&self, mailbox: MailboxIndex) -> Option<Arc<Parked>> {
        self.parked.lock().get(&mailbox.0).cloned()
    }

    /// Forgets a request that waits no longer.
    fn unpark(&self, mailbox: MailboxIndex, which: &Parked) {
        let mut parked = self.parked.lock();
        let found = parked.get(&mailbox.0).is_some_and(|found| std::ptr::eq(&**found, which));
        let gone = if found { parked.remove(&mailbox.0) } else { None };
        drop(parked);
        drop(gone);
    }

    /// Takes all back with their session.
    pub(super) fn withdraw_all(&self, lane: &Lane) {
        let parked = std::mem::take(&mut *self.parked.lock());
        for parked in parked.into_values() {
            parked.withdraw(lane);
        }
    }
}

impl Session {
    /// Records a lock request that is about to be parked, before the VFS is told.
    pub(in crate::shm) fn park(self: &Arc<Self>, mailbox: MailboxIndex) -> Arc<Parked> {
        let pending = Pending::new(self.clone(), mailbox);
        let (pending, ticket) = (Mutex::new(Some(pending)), Mutex::default());
        let parked = Arc::new(Parked { pending, ticket });
        self.lock_requests.parked.lock().insert(mailbox.0, parked.clone());
        parked
    }

    /// After the VFS parked the request: it can be cancelled from now on.
    pub(in crate::shm) fn parked(&self, parked: &Parked, ticket: Ticket) {
        *parked.ticket.lock() = Some(ticket);
        if self.ended.load(Ordering::SeqCst) {
            parked.withdraw(&self.connection.lane);
        }
    }

    /// Takes back a waiting request; its reply is `EINTR`. False when none waits there.
    pub(in crate::shm) fn cancel(&self, mailbox: MailboxIndex) -> bool {
        let parked = self.lock_requests.get(mailbox);
        parked.is_some_and(|parked| parked.cancel(&self.connection.lane))
    }

    /// Nothing waits in this mailbox any more: serving it ended in a way nobody planned.
    pub(in crate::shm) fn abandon(&self, mailbox: MailboxIndex) {
        let parked = self.lock_requests.get(mailbox);
        if let Some(pending) = parked.and_then(|parked| parked.take()) {
            pending.release();
        }
    }
}

/// A lock request that waits. The thread that takes `pending` out replies.
pub(in crate::shm) struct Parked {
    pending: Mutex<Option<Pending>>,
    ticket: Mutex<Option<Ticket>>,
}

impl Parked {
    /// Ends the wait; the first call wins, and gets what is owed.
    pub(in crate::shm) fn take(&self) -> Option<Pending> {
        let pending = self.pending.lock().take()?;
        pending.session.lock_requests.unpark(pending.mailbox, self);
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
pub(in crate::shm) struct Pending {
    session: Arc<Session>,
    mailbox: MailboxIndex,
    owed: bool,
}

impl Pending {
    pub(in crate::shm) fn new(session: Arc<Session>, mailbox: MailboxIndex) -> Pending {
        Pending { session, mailbox, owed: true }
    }

    pub(in crate::shm) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(in crate::shm) fn mailbox(&self) -> MailboxIndex {
        self.mailbox
    }

    /// Replies.
    pub(in crate::shm) fn reply(mut self, reply: &Reply) {
        self.owed = false;
        self.post(reply);
    }

    fn post(&self, reply: &Reply) {
        let connection = &self.session.connection;
        connection.stats.ended(reply.status);
        connection.channel.reply(self.mailbox, reply);
    }

    /// Another thread replies after all.
    pub(in crate::shm) fn release(mut self) {
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
