//! A call whose service died before it answered is asked of the next one.

use super::state::State;
use crate::kernel::outcome::{Detour, Lost, Outcome, Unanswered};
use crate::session::boxes;

/// Does `part`; and once more whenever it lost its service on the way, as soon as there is the
/// next, which finds out what had been done. Without one the kernel is asked.
#[inline]
pub(crate) fn once<T>(
    state: &'static State,
    part: &mut impl FnMut() -> Outcome<T>,
) -> Result<T, Unanswered> {
    match part() {
        Ok(done) => Ok(done),
        Err(Detour::Errno(errno)) => Err(Unanswered::Errno(errno)),
        Err(Detour::Kernel) => Err(Unanswered::Kernel),
        Err(Detour::Lost(lost)) => again(state, part, lost),
    }
}

/// Services that one call may lose.
const AGAIN_MAX: u32 = 16;

#[cold]
fn again<T>(
    state: &'static State,
    part: &mut impl FnMut() -> Outcome<T>,
    mut lost: Lost,
) -> Result<T, Unanswered> {
    for _ in 0..AGAIN_MAX {
        if !state.get().lane(lost.lane).await_next() {
            break;
        }
        boxes::ask_again(lost.lane, lost.turn);
        let done = part();
        let asked = boxes::take_again(lost.lane) == 0;
        match done {
            Ok(done) => return Ok(done),
            Err(Detour::Errno(errno)) => return Err(Unanswered::Errno(errno)),
            Err(Detour::Kernel) if asked => break,
            // The next service is gone as well, or not ready: nobody was asked.
            Err(Detour::Kernel) => {}
            Err(Detour::Lost(next)) => lost = next,
        }
    }
    Err(Unanswered::Kernel)
}
