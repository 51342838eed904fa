//! Which mailboxes are out to workers: the service's own record, in its own memory.
//!
//! A number may reach several workers, several times: clients repeat themselves, workers watch,
//! hostile clients lie. A request must be served once, and none may be turned away by all.
//!
//! ```text
//!  FREE ── accept ──► SERVING ── finish ──► FINISHING ─ state ← REPLIED ─► FREE
//!    ▲                   │ it was not posted after all
//!    └───────────────────┘ and look again
//! ```
//!
//! - The state of the mailbox becomes REPLIED while the claim is FINISHING. So who finds POSTED and
//!   SERVING has found the request that is being served; POSTED and FREE is a new one; with
//!   FINISHING it could be either, and one of the two stores is yet to come from another thread of
//!   the service.
//! - Who claims a mailbox without a request gives it back and looks again: a new request may have
//!   been turned away by another worker meanwhile.

use std::sync::atomic::Ordering;

use crate::memory::Word32;

const FREE: u32 = 0;
const SERVING: u32 = 1;
const FINISHING: u32 = 2;

/// Rounds before an offer is turned down; an honest client causes two at most.
const ROUNDS: u32 = 8;

/// A view of one mailbox's claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a, W>(pub &'a W);

impl<W: Word32> Claim<'_, W> {
    /// Takes the mailbox on when it holds a request that nobody serves. `posted` looks at its
    /// state, in sequentially consistent order; `pause` lets another thread of the service go on.
    #[inline]
    pub fn accept(&self, posted: impl Fn() -> bool, pause: impl Fn()) -> bool {
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        for _ in 0..ROUNDS {
            if !posted() {
                return false;
            }
            match self.0.compare_exchange(FREE, SERVING, order.0, order.1) {
                Ok(_) if posted() => return true,
                Ok(_) => _ = self.0.swap(FREE, Ordering::SeqCst),
                Err(SERVING) => return false,
                Err(_) => {
                    while self.0.load(Ordering::SeqCst) == FINISHING {
                        pause();
                    }
                }
            }
        }
        false
    }

    /// Whether nobody serves the mailbox. A hint.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) != SERVING
    }

    /// Gives the mailbox back to the client: `replied` stores its state.
    #[inline]
    pub fn finish(&self, replied: impl FnOnce()) {
        self.0.store(FINISHING, Ordering::Relaxed);
        replied();
        self.0.store(FREE, Ordering::Release);
    }
}
