//! Mailboxes for threads that have none.
//!
//! A channel has mailboxes for so many threads. Those beyond ask the kernel, which is as right for
//! most requests. It is not for a close, for a lock or for the word that descriptors are shared:
//! these are nobody's but the service's. For them each session keeps mailboxes apart, which one
//! thread at a time borrows.
//!
//! What is asked by them is answered soon, whatever other threads of the process do: or one that
//! waits could be in the way of the one it waits for.

use std::sync::atomic::{AtomicBool, Ordering};

use polylane_ipc::message::{LockFlags, Message, Op};
use polylane_ipc::{ClientChannel, MailboxIndex};

use crate::kernel::lock::{Guard, OffsetLock};
use crate::session::boxes::BOXES;

/// The mailboxes that a session keeps apart: as many as a thread has of its own, and for the same
/// reasons (see `boxes`).
pub(crate) struct Reserve {
    boxes: [MailboxIndex; BOXES],
    /// Written by the holder of `turn` only.
    busy: [AtomicBool; BOXES],
    turn: OffsetLock,
}

/// One of them, borrowed.
pub(crate) struct Borrowed {
    pub(crate) index: MailboxIndex,
    busy: &'static AtomicBool,
    /// Nothing in a signal handler that interrupted a borrower.
    _turn: Guard<'static>,
}

impl Reserve {
    /// Takes them out of a new channel. `None`: it has too few.
    pub(crate) fn of(channel: &ClientChannel) -> Option<Reserve> {
        let boxes = [channel.claim()?, channel.claim()?];
        let busy = [const { AtomicBool::new(false) }; BOXES];
        Some(Reserve { boxes, busy, turn: OffsetLock::new() })
    }

    /// Waits for a thread's turn. `None`: the borrower itself was interrupted, twice.
    pub(crate) fn borrow(&'static self, order: [usize; BOXES]) -> Option<Borrowed> {
        let turn = self.turn.lock();
        let free = |&place: &usize| !self.busy[place].swap(true, Ordering::Relaxed);
        let place = order.into_iter().find(free)?;
        Some(Borrowed { index: self.boxes[place], busy: &self.busy[place], _turn: turn })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Relaxed);
    }
}

/// Whether only the service can do what is asked, and does it soon.
pub(crate) fn is_owed(message: &Message) -> bool {
    match message.op {
        Op::Lock => !LockFlags::from_bits_retain(message.flags).contains(LockFlags::WAIT),
        // A ping has the stream applied.
        Op::Close | Op::GetLock | Op::Cancel | Op::ShareAll | Op::Ping => true,
        // Without them a file would be taken for one of the kernel's.
        Op::Redeem | Op::SetFlags | Op::Oplock => true,
        _ => false,
    }
}
