//! What becomes of what was streamed: handles until they are closed, entries until they are synced
//! or their session is over.
//!
//! # Invariants
//!
//! - A streamed handle's place is given to another only when the service has closed the former, or
//!   will before it makes the other.
//! - Sessions that are over are looked at once: entries that one's service never took are told by
//!   the next sync.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use polylane_ipc::message::{Message, Op};
use polylane_ipc::stream::{STREAMED_HANDLE, STREAMED_PLACES, streamed_handle};
use zerocopy::FromZeros;

use super::Leases;
use crate::fd::preopened::SLOTS;
use crate::fd::record::Record;
use crate::kernel::outcome::{Detour, Outcome};
use crate::session::call;
use crate::session::{self, Mark, Session, Sessions};

/// Looks for the lock before a session is left without it, and the pause between them: as long as
/// whoever has it may have to wait for the service.
const LOOKS_MAX: u32 = 10_000;
const PAUSE: Duration = Duration::from_micros(100);

/// Zero is "nothing was streamed".
#[derive(FromZeros)]
pub(super) struct DeferredErrors {
    /// Sessions up to this one were left.
    left: AtomicU32,
    /// Sessions up to this one were looked at.
    judged: AtomicU32,
    /// Entries were lost.
    lost: AtomicBool,
    /// Something was streamed since the last sync.
    unsynced: AtomicBool,
    /// The session of a handle, by its place; 0: none.
    sessions: [AtomicU32; STREAMED_PLACES as usize],
    /// The posted close of the handle, a [`Mark`]; 0: it is open.
    closes: [AtomicU64; STREAMED_PLACES as usize],
}

impl DeferredErrors {
    pub(super) const fn new() -> Self {
        DeferredErrors {
            left: AtomicU32::new(0),
            judged: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            unsynced: AtomicBool::new(false),
            sessions: [const { AtomicU32::new(0) }; STREAMED_PLACES as usize],
            closes: [const { AtomicU64::new(0) }; STREAMED_PLACES as usize],
        }
    }

    /// Whether nothing may be streamed to a session any more.
    #[inline]
    pub(super) fn is_over(&self, session: &Session) -> bool {
        session.number <= self.left.load(SeqCst) || session.is_lost() || session.is_dead()
    }

    /// Something was streamed.
    #[inline]
    pub(super) fn streams(&self) {
        self.unsynced.store(true, Relaxed);
    }

    /// A handle for a new file, at a place that no other has; the slot's own if it can be.
    pub(super) fn new_handle(&self, session: &Session, rank: u32, count: u32) -> Option<u64> {
        let mut places = std::iter::once(rank).chain(SLOTS as u32..STREAMED_PLACES);
        let place = places.find(|&place| self.is_free(session, place as usize))?;
        Some(streamed_handle(place, count))
    }

    fn is_free(&self, session: &Session, place: usize) -> bool {
        let close = self.closes[place].load(Relaxed);
        self.sessions[place].load(Relaxed) != session.number
            || close != 0 && session.is_answered(Mark::from_word(close))
    }

    /// The handle means a file from now on.
    pub(super) fn opens(&self, session: &Session, handle: u64) {
        let place = place_of(handle);
        self.closes[place].store(0, Relaxed);
        self.sessions[place].store(session.number, Relaxed);
    }

    /// Looks what became of the streams of sessions that are over.
    fn judge(&self, sessions: &Sessions, await_next: impl Fn()) {
        let first = self.judged.load(Relaxed) + 1;
        for session in session::made_from(first, sessions.lane()) {
            // Others are those of the process that this one was forked from.
            if session.is_own() {
                // One that is being left has its stream applied first.
                if !session.is_lost() && !session.is_dead() {
                    return;
                }
                if has_lost_entries(session, sessions, &await_next) {
                    self.lost.store(true, SeqCst);
                }
            }
            self.judged.fetch_max(session.number, Relaxed);
        }
    }
}

/// Whether a session that is over had entries that nobody will apply. A service that was asked to
/// end applies them before the next one lets anybody in.
fn has_lost_entries(session: &Session, sessions: &Sessions, await_next: &impl Fn()) -> bool {
    let stream = session.channel.stream();
    if !stream.is_all_done() && sessions.present().is_none() {
        await_next();
    }
    !stream.is_all_done()
}

fn place_of(handle: u64) -> usize {
    (handle as u32 & !STREAMED_HANDLE) as usize % STREAMED_PLACES as usize
}

impl Leases {
    /// The close of a streamed handle was streamed (`None`), or asked for with that result.
    pub(crate) fn note_close(&self, handle: u64, asked: Option<&Outcome<Mark>>) {
        let place = place_of(handle);
        match asked {
            None | Some(Ok(Mark::NONE) | Err(Detour::Errno(_))) => {
                self.deferred.sessions[place].store(0, Relaxed);
            }
            Some(Ok(mark)) => self.deferred.closes[place].store(mark.to_word(), Relaxed),
            // Open as long as the session lasts, for all we know.
            Some(Err(_)) => {}
        }
    }

    /// Whether something was streamed that no sync came after yet.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.deferred.unsynced.load(Relaxed)
    }

    /// The service is about to be asked to make all durable that was streamed so far.
    pub(crate) fn syncs(&self) {
        self.deferred.unsynced.store(false, Relaxed);
    }

    /// A sync failed whose caller cannot be told: the next one reports it.
    pub(crate) fn loses(&self) {
        self.deferred.lost.store(true, SeqCst);
    }

    /// Whether something was lost that was streamed, which no call has reported yet: the caller
    /// reports it. `await_next` waits for the next service.
    pub(crate) fn take_lost(&self, sessions: &Sessions, await_next: impl Fn()) -> bool {
        self.deferred.judge(sessions, await_next);
        self.deferred.lost.swap(false, SeqCst)
    }

    /// The session is about to be left: nothing is streamed to it from now on, and what was is
    /// applied.
    pub(crate) fn leave(&'static self, session: &'static Session) {
        self.deferred.left.fetch_max(session.number, SeqCst);
        for _ in 0..LOOKS_MAX {
            // The thread that had the lock before has posted.
            if let Some(_inside) = self.hold(session) {
                // Where there is no answer, the session's end does it.
                let _ = call::plain(session, Message::new(Op::Ping));
                return;
            }
            polylane_sys::sched::pause(PAUSE);
        }
    }
}

/// Whether changes of the file may have been in the stream of a service that died: they are lost.
pub(crate) fn has_lost_bytes(file: &Record) -> bool {
    file.is_streamed()
        && session::of(file.session.load(Relaxed))
            .filter(|former| former.is_own())
            .is_some_and(|former| !former.channel.stream().is_all_done())
}
