//! A session: one connection of one client process, and everything it holds.
//!
//! | part | owns |
//! |---|---|
//! | [`Connection`] | who the client is, its shared memory |
//! | [`OpenFiles`] | what it has open |
//! | [`Rights`] | what it may do unasked |
//! | [`LockRequests`] | its requests that wait for a lock |
//!
//! # Invariants
//!
//! - Every request that was taken gets exactly one reply: from the worker, or from the [`Pending`]
//!   that was handed to someone else, at the latest when that is dropped.
//! - After [`Session::end`] nothing is open, parked or bound any more, and nothing can be again.
//!
//! # Locking
//!
//! The lock of the leases comes first: see `rights::lease`. Those of files and of lock requests are
//! leaves: no VFS call is made, no file is dropped and no reply is sent under any of them.

mod parked;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Weak};
use polylane_vfs::{Holder, LockLender, Node, Viewer};

use super::connection::Connection;
use super::files::OpenFiles;
use super::rights::{FramesLeft, Rights, RightsOf};
use super::users::User;

use self::parked::LockRequests;
pub(super) use self::parked::Pending;

/// One connection with what it holds. Thread-safe.
pub(super) struct Session {
    /// Who is served, and by what.
    pub(super) connection: Connection,
    /// What it has open.
    pub(super) files: OpenFiles,
    rights: Rights,
    lock_requests: LockRequests,
    ended: AtomicBool,
}

impl Session {
    /// A session of that user, with nothing open.
    pub(super) fn new(
        connection: Connection,
        user: Arc<User>,
        frames_left: Arc<FramesLeft>,
    ) -> Arc<Session> {
        let session = Arc::new_cyclic(|weak: &Weak<Session>| Session {
            connection,
            files: OpenFiles::new(user),
            rights: Rights::new(weak.clone(), weak.clone(), weak.clone(), frames_left),
            lock_requests: LockRequests::default(),
            ended: AtomicBool::new(false),
        });
        let weak: Weak<Session> = Arc::downgrade(&session);
        session.connection.slots.set_holder(weak);
        session
    }

    /// What its client may do unasked.
    #[inline]
    pub(super) fn rights(&self) -> RightsOf<'_> {
        self.rights.of(&self.connection, &self.files)
    }

    /// Ends the session: closes everything, takes back what waits, gives its slots to their kernel
    /// descriptors. Once; later calls do nothing.
    pub(super) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        // First what the client did: it counts as done.
        self.rights().end();
        self.connection.lane.slots.drop_session(&self.connection.slots);
        self.lock_requests.withdraw_all(&self.connection.lane);
        self.files.end();
    }
}

/// What the VFS asks of a session whose client has rights in the way.
impl Holder for Session {
    fn settle(&self) {
        self.rights().settle();
    }

    fn revoke(&self) {
        self.rights().revoke();
    }
}

impl Viewer for Session {
    fn data_changes(&self, number: u32, start: u64, end: u64) {
        self.rights().data_changes(number, start, end);
    }

    fn attr_changed(&self, number: u32) {
        self.rights().attr_changed(number);
    }

    fn end_loan(&self, number: u32, node: &Node) {
        self.rights().end_loan(number, node);
    }

    fn is_unwritten(&self, number: u32, node: &Node) -> bool {
        self.rights().is_unwritten(number, node)
    }

    fn let_go(&self, number: u32) {
        self.rights().let_go(number);
    }
}

impl LockLender for Session {
    fn end_lock_loan(&self, number: u32) {
        self.rights().end_lock_loan(number);
    }
}
