//! What the sessions of one user hold together, up to a limit: a process can have as many sessions
//! as it likes, and a user as many processes.

use std::collections::HashMap;

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicU32, Ordering};
use polylane_base::{Errno, Result, Uid};

/// Files and directories that one user may have open by the fast way; one more is `EMFILE`.
pub(super) const HANDLES_PER_USER_MAX: u32 = 65_536;

/// The counts of one user. Thread-safe.
#[derive(Default, Debug)]
pub(super) struct User {
    handles: AtomicU32,
}

/// One open handle, counted until it is dropped.
#[derive(Debug)]
pub(super) struct HandleCharge(Arc<User>);

impl Drop for HandleCharge {
    fn drop(&mut self) {
        self.0.handles.fetch_sub(1, Ordering::Relaxed);
    }
}

impl User {
    /// Counts one handle more. `EMFILE`: the user has as many as it may.
    pub(super) fn open_handle(user: &Arc<User>) -> Result<HandleCharge> {
        let charge = Self::opened_handle(user);
        match user.handles.load(Ordering::Relaxed) > HANDLES_PER_USER_MAX {
            true => Err(Errno::EMFILE),
            false => Ok(charge),
        }
    }

    /// Counts a handle that exists already.
    pub(super) fn opened_handle(user: &Arc<User>) -> HandleCharge {
        user.handles.fetch_add(1, Ordering::Relaxed);
        HandleCharge(user.clone())
    }
}

/// The users that have sessions. For the acceptor's thread.
#[derive(Default)]
pub(super) struct Users(HashMap<Uid, Arc<User>>);

impl Users {
    /// That user's counts. Forgets users without sessions.
    pub(super) fn of(&mut self, uid: Uid) -> Arc<User> {
        self.0.retain(|other, user| *other == uid || Arc::strong_count(user) > 1);
        self.0.entry(uid).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_all_sessions_count_together_until_they_are_closed() {
        let mut users = Users::default();
        let (one, same, other) = (users.of(Uid(1)), users.of(Uid(1)), users.of(Uid(2)));
        let mut held: Vec<_> =
            (0..HANDLES_PER_USER_MAX).map(|_| User::open_handle(&one).unwrap()).collect();
        assert_eq!(User::open_handle(&same).unwrap_err(), Errno::EMFILE);
        User::open_handle(&other).unwrap();
        // One that a client made unasked counts, and is not refused.
        held.push(User::opened_handle(&same));
        held.truncate(held.len() - 2);
        held.push(User::open_handle(&same).unwrap());
        assert_eq!(User::open_handle(&one).unwrap_err(), Errno::EMFILE);
        drop(held);
        assert_eq!(one.handles.load(Ordering::Relaxed), 0);
    }
}
