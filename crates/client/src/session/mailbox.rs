//! A mailbox while a call uses it.

use std::sync::atomic::Ordering;

use polylane_ipc::MailboxIndex;

use super::{Alive, Session, boxes};
use crate::kernel::config::LaneNumber;
use crate::kernel::outcome::{Detour, Outcome};
use crate::session::emergency::Borrowed;

/// A mailbox in use by one call of this thread.
pub(crate) struct Mailbox {
    pub(crate) session: &'static Session,
    pub(crate) index: MailboxIndex,
    pub(super) _holds: Holds,
}

/// Whose it is; given back when dropped.
pub(super) enum Holds {
    Own(#[expect(dead_code, reason = "dropped")] Own),
    Borrowed(#[expect(dead_code, reason = "dropped")] Borrowed),
}

/// The lane and the place of one of the thread's own.
pub(super) struct Own(pub(super) LaneNumber, pub(super) usize);

impl Mailbox {
    /// Waits until the mailbox's last request is answered, and counts one more. In this order: who
    /// waits for the former request takes a new count for its answer.
    #[inline]
    pub(super) fn ready(self) -> Outcome<Mailbox> {
        let session = self.session;
        if session.channel.settle(self.index, &Alive(session)).is_err() {
            session.lose();
            return Err(Detour::Kernel);
        }
        session.posts[self.index.0 as usize].fetch_add(1, Ordering::Relaxed);
        Ok(self)
    }
}

impl Drop for Own {
    #[inline]
    fn drop(&mut self) {
        boxes::with(self.0, |own| own.busy[self.1].set(false));
    }
}
