//! POSIX locks that were delegated to this process by a service that died.

use polylane_ipc::lent::{self, Locks};
use polylane_ipc::message::{Message, Op};

use crate::session::{Session, call};

/// Sets what this process had of a file that was lent to it by the service of a former session,
/// which died: the present one lets nobody else in until what is not held is given back.
pub(crate) fn reclaim(session: &'static Session, handle: u64, held: &Locks) {
    let set = |kind: i32, start: u64, end: Option<u64>| {
        let length = end.map_or(0, |end| end - start + 1);
        let (offset, mode) = (start, kind as u32);
        let message = Message { handle, offset, length, mode, ..Message::new(Op::Lock) };
        // What is held is this process's alone; should the service go too, its next one asks again.
        let _ = call::plain(session, message);
    };
    let to_the_end = |end: u64| Some(end).filter(|&end| end != u64::MAX);
    let mut gaps = Locks::default();
    let all = lent::Range { start: 0, end: u64::MAX, write: true };
    let mut known = gaps.lock(all);
    for range in held.ranges() {
        let kind = if range.write { libc::F_WRLCK } else { libc::F_RDLCK };
        set(kind, range.start, to_the_end(range.end));
        known &= gaps.unlock(range.start, range.end);
    }
    if known {
        gaps.ranges().for_each(|gap| set(libc::F_UNLCK, gap.start, to_the_end(gap.end)));
    }
}
