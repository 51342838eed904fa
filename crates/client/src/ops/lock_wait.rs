//! Waits for locks, which signals and cancellation end.

use std::cell::Cell;
use std::time::Duration;

use polylane_base::Errno;
use polylane_ipc::Watch;
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};

use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{Alive, Session};

/// A wait for a lock that is to begin again, after the handlers of signals ran.
pub(crate) const AGAIN: Errno = Errno(libc::ERESTART);

/// Pauses between questions for a lock that cannot be waited for otherwise.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Waits for a lock without a mailbox of the thread's own, by asking for it until it is free. So
/// nobody knows that this thread waits, and a deadlock is not found out.
pub(super) fn wait_by_asking(session: &Session, ask: impl Fn() -> Outcome<()>) -> Outcome<()> {
    let watch = Interruptible::new(session);
    let mut pause = FIRST_PAUSE;
    loop {
        match ask() {
            Err(Detour::Errno(Errno::EAGAIN)) => {}
            done => return done,
        }
        if watch.interrupted() {
            return Err(watch.reason().into());
        }
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        // Whether the service lives shows when it is next asked.
        if matches!(nanosleep(&time), NanosleepRelativeResult::Ok) {
            watch.woken.set(Woken::InTime);
        }
        pause = (2 * pause).min(LAST_PAUSE);
    }
}

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// Its time was up.
    InTime,
    /// Nothing that was told.
    Otherwise,
    /// The question "interrupted?" was asked and nothing has explained a wake-up since.
    Asked,
}

/// Tells a wait that a signal ended from one whose time was up: only the latter is followed by the
/// question whether the service lives.
pub(super) struct Interruptible<'a> {
    alive: Alive<'a>,
    woken: Cell<Woken>,
}

impl<'a> Interruptible<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Interruptible { alive: Alive(session), woken: Cell::new(Woken::Otherwise) }
    }

    /// Why the wait was given up.
    pub(super) fn reason(&self) -> Errno {
        match thread::has_come() {
            Some(signal) if !real::handler_restarts(signal) => Errno::EINTR,
            None if self.woken.get() == Woken::Asked => Errno::EINTR,
            _ => AGAIN,
        }
    }
}

impl Watch for Interruptible<'_> {
    fn alive(&self) -> bool {
        self.woken.set(Woken::InTime);
        self.alive.alive()
    }

    fn interrupted(&self) -> bool {
        if thread::has_come().is_some() {
            return true;
        }
        match self.woken.get() {
            // Whether this thread is to end can only be found out by ending it.
            Woken::InTime if thread::cancels() => true,
            Woken::Asked if real::handlers_interrupt() => true,
            _ => {
                self.woken.set(Woken::Asked);
                false
            }
        }
    }
}
