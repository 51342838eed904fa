//! Paths whose state clients know: the counts of the VFS by which an answer holds, in memory that
//! every client may look at. Two of them, added up, are an answer's *mark*.

use polylane_ipc::message;
use polylane_sys::board::Board;
use polylane_vfs::{MARK_PLACES, Mark, Marker};

const _: () = assert!(MARK_PLACES as usize == message::MARK_PLACES);

/// The counts of one lane.
pub(in crate::shm) struct Marks(pub(in crate::shm) Board);

impl Marker for Marks {
    fn raise(&self, place: u32) {
        self.0.raise(place as usize);
    }

    fn count(&self, place: u32) -> u64 {
        self.0.count(place as usize)
    }
}

/// A mark as the first two values of a reply; `None`: zeros.
pub(in crate::shm) fn values(mark: Option<Mark>) -> [u64; 8] {
    let Some(mark) = mark else { return [0; 8] };
    let places = u64::from(mark.name) | u64::from(mark.state) << 32 | message::IS_MARK;
    [places, mark.sum, 0, 0, 0, 0, 0, 0]
}
