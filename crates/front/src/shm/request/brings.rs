//! What the answer to an open may bring along.

use polylane_ipc::message::{FIRST, MAY_BE_DIR, MAY_REST, Message, Op};

use super::Handle;

/// See the head of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Brings {
    /// All bytes of a file of at most so many; 0: none.
    pub bytes: usize,
    /// These in the payload: no such open came before.
    pub first: bool,
    /// The right to close the file and open it again unasked.
    pub may_rest: bool,
    /// A handle on a directory, where the path leads to one.
    pub may_be_dir: bool,
}

impl Brings {
    /// As a message asks, through a payload of so many bytes.
    pub(super) fn new(message: &Message, buffer_bytes: usize) -> Brings {
        let [_, bytes, wish, _] = message.arg;
        Brings {
            bytes: bytes.min(buffer_bytes as u64) as usize,
            first: wish & FIRST != 0,
            may_rest: wish & MAY_REST != 0,
            may_be_dir: wish & MAY_BE_DIR != 0,
        }
    }

    /// The file at rest that an open names to be closed first, whatever becomes of the open.
    pub(in crate::shm) fn instead_of(message: &Message) -> Option<Handle> {
        let rested = message.arg[3];
        (message.op == Op::Open && rested != 0).then(|| Handle::from_wire(rested))
    }
}
