//! The sessions of a process and its ancestors back to the last exec, by their numbers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Session;
use crate::kernel::config::LaneNumber;

/// How many there may be.
const SESSIONS_MAX: usize = 64;

static SESSIONS: [OnceLock<Session>; SESSIONS_MAX] = [const { OnceLock::new() }; SESSIONS_MAX];
/// How many there are.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The session of that number, present or former; its channel is there if it is this process's own:
/// see [`Session::is_own`].
pub(crate) fn of(number: u32) -> Option<&'static Session> {
    SESSIONS.get(number.checked_sub(1)? as usize)?.get()
}

/// The sessions of a lane from that number on, present and former, the last one last.
pub(crate) fn made_from(
    first: u32,
    lane: LaneNumber,
) -> impl DoubleEndedIterator<Item = &'static Session> {
    let made = (first..=MADE.load(Ordering::Acquire)).filter_map(of);
    made.filter(move |session| session.lane == lane)
}

/// Whether there can be no more.
pub(super) fn are_used_up() -> bool {
    MADE.load(Ordering::Relaxed) as usize >= SESSIONS_MAX
}

/// Gives a session a number and a place for as long as the process lasts; the session itself where
/// there are no more. Threads may connect to several lanes at once.
pub(super) fn keep(session: Session) -> Result<&'static Session, Box<Session>> {
    let more = |made: u32| (made as usize).lt(&SESSIONS_MAX).then_some(made + 1);
    match MADE.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more) {
        Ok(before) => {
            let numbered = Session { number: before + 1, ..session };
            Ok(SESSIONS[before as usize].get_or_init(|| numbered))
        }
        Err(_) => Err(Box::new(session)),
    }
}
