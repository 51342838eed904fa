//! Loans on which nothing was written yet: the state of their file counts, for the client as for
//! the service.
//!
//! Whoever goes through the gate changes its count, whatever it does inside. So as long as the gate
//! says what it said when the loan began, nobody has written, or is inside. Writes by the stream do
//! not go through it: before one the client takes its own copy of that number away, and the service
//! has the stream applied before it looks.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{GATE, Look, OPENED, READ, UNTIL_WRITTEN, Views};
use crate::memory::{Memory, Word64};
use crate::message::WireAttr;

const SECOND: i64 = 1_000_000_000;

/// A state with that access time, nanoseconds since 1970.
pub(super) fn accessed(mut attr: WireAttr, time: i64) -> WireAttr {
    (attr.sec[0], attr.nsec[0]) = (time.div_euclid(SECOND), time.rem_euclid(SECOND) as u32);
    attr
}

/// The client's side.
impl<M: Memory> Views<M> {
    /// When a file whose reads are noted was read first, 0 if it was not. `None`: its state counts
    /// no more.
    #[inline]
    pub(super) fn read_of(&self, view: u32, look: Look) -> Option<i64> {
        let on_loan = look.has(UNTIL_WRITTEN);
        // First: a read of a former loan is forgotten before the gate opens.
        let counts = !on_loan || self.is_unwritten(view);
        let read = self.memory.word64(self.view(view, READ)).load(Acquire).cast_signed();
        (counts && (on_loan || read == 0)).then_some(read)
    }

    fn is_unwritten(&self, view: u32) -> bool {
        let seen = self.memory.word64(self.view(view, GATE)).load(Acquire);
        seen == self.memory.word64(self.view(view, OPENED)).load(Relaxed)
    }

    /// Something is about to be written on loan by the stream.
    #[inline]
    pub fn will_stream(&self, view: u32) {
        self.memory.word64(self.view(view, OPENED)).store(u64::MAX, Relaxed);
    }
}

/// The service's side.
impl<M: Memory> Views<M> {
    /// Whether nobody went in since the gate was opened, as [`Views::open_gate`] said.
    pub fn is_as_opened(&self, view: u32, opened: u64) -> bool {
        self.memory.word64(self.view(view, GATE)).load(Acquire) == opened
    }

    /// As [`Views::read`] while the gate is open: the next read is noted anew. A client that is
    /// shown the state must have been told before that the note counts no more.
    pub fn take_read(&self, view: u32) -> Option<i64> {
        let time = self.memory.word64(self.view(view, READ)).swap(0, AcqRel).cast_signed();
        (time != 0).then_some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HAS_ATTR, HAS_DATA, NOTES_READS};
    use super::*;
    use crate::memory::Mapped;
    use polylane_sys::Region;

    #[test]
    fn the_state_of_a_file_on_loan_counts_until_something_is_written() {
        let (region, _fd) = Region::create("views", super::super::bytes(64)).unwrap();
        let views = Views { memory: Mapped::new(&region, 0), frames: 64 };
        let told = WireAttr { size: 70, nlink: 2, ..WireAttr::default() };
        let on_loan = HAS_DATA | HAS_ATTR | NOTES_READS | UNTIL_WRITTEN;
        let lend = || {
            views.shut_gate(1);
            views.put(1, (5, HAS_DATA | HAS_ATTR), 70, &told);
            views.put_has(1, (5, on_loan));
            assert_eq!(views.attr(1), None, "before the gate is open");
            views.open_gate(1, 70, (0, 0))
        };
        let opened = lend();
        assert!(views.is_as_opened(1, opened) && views.attr(1) == Some(told));
        views.note_read(1, || 3 * SECOND + 9);
        views.note_read(1, || 4 * SECOND);
        let read = WireAttr { sec: [3, 0, 0, 0], nsec: [9, 0, 0, 0], ..told };
        assert_eq!(views.attr(1), Some(read));
        assert!(views.is_as_opened(1, opened), "a read is none");
        views.put_has(1, (5, HAS_DATA | NOTES_READS));
        assert_eq!((views.take_read(1), views.take_read(1)), (Some(3 * SECOND + 9), None));
        assert_eq!((views.attr(1), views.size(1)), (None, Some(70)));
        let opened = lend();
        let inside = views.enter(1).unwrap();
        assert!(!views.is_as_opened(1, opened) && views.attr(1).is_none(), "somebody is inside");
        assert!(views.leave(1, inside, Some(1), 70));
        assert!(!views.is_as_opened(1, opened) && views.attr(1).is_none());
        let opened = lend();
        views.will_stream(1);
        assert!(views.is_as_opened(1, opened) && views.attr(1).is_none());
        lend();
        assert_eq!(views.attr(1), Some(told), "of the loan before");
        views.shut_gate(1);
        assert_eq!(views.attr(1), None);
    }
}
