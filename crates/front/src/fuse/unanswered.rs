//! Requests that a former service had read and did not answer.
//!
//! Linux 6.9 sends them again to whoever asks. Before, their callers would wait for ever: only an
//! answer ends that, and so each of them that may be left is answered EIO. What is no such request
//! is not harmed: the kernel refuses an answer to what nobody has read, or what has its answer.
//!
//! Numbers of requests are even, each two more than the one before, and are read in this order. A
//! service writes down the last one that it read, and the oldest that waits for a lock
//! ([`InFlight`]).

use polylane_base::Errno;
use polylane_vfs::handover::InFlight;

use super::reply::Device;

/// Between two requests.
const STEP: usize = 2;
/// Before the last that was read, at once: more than are served while one waits for the kernel.
const RECENT_MAX: u64 = 1 << 17;
/// Before the last that was read, beside the new service's work: more than are served until a
/// service that hangs is ended.
const FAR_MAX: u64 = 1 << 24;
/// After the last that was written down: threads were killed between reading and writing.
const AHEAD_MAX: u64 = 1 << 11;
/// Old requests that are tried between two looks whether this service ends.
const LOOK_EVERY: usize = 1 << 10;

/// Old requests that may wait, for [`end_old`].
#[derive(Debug)]
pub(crate) struct Old {
    from: u64,
    below: u64,
}

/// Ends what was in flight a moment ago; tells what may be older. For a service that has not read
/// anything yet.
pub(crate) fn end_recent(device: &Device, in_flight: &InFlight) -> Option<Old> {
    let (last, oldest_wait) = in_flight.left()?;
    in_flight.waits_since(None);
    let from = even(last).saturating_sub(RECENT_MAX).max(STEP as u64);
    let numbers = (from..=even(last).saturating_add(AHEAD_MAX)).step_by(STEP);
    numbers.for_each(|number| device.fail(number, Errno::EIO));
    let far = even(last).saturating_sub(FAR_MAX).max(STEP as u64);
    Some(Old { from: oldest_wait.map_or(far, |oldest| even(oldest).min(far)), below: from })
}

/// Ends what may have waited for long, beside the service's work, until that `ends`: there may be
/// millions.
pub(crate) fn end_old(device: &Device, old: &Old, ends: impl Fn() -> bool) {
    for (at, number) in (old.from..old.below).step_by(STEP).enumerate() {
        if at % LOOK_EVERY == 0 && ends() {
            return;
        }
        device.fail(number, Errno::EIO);
    }
}

/// The request that an INTERRUPT, whose number is odd, is about.
fn even(number: u64) -> u64 {
    number & !1
}
