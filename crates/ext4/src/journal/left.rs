//! Syncs that are left to the thread that commits their transaction.
//!
//! ```text
//!  a thread leads N   others leave theirs of N to it ─► it commits N ─► and has all of them told
//!                                                    └► or gives N up ─► told that it failed
//! ```
//!
//! A thread that leaves a sync to another one waits for nothing: it gives what is to be done when
//! the sync has ended, and goes on with other work.
//!
//! # Invariants
//!
//! - What is left is of a transaction that a thread leads, that lies before one which a thread
//!   leads, or that has committed; a lead ends when its transaction has committed, or is given up
//!   (`turns`). So that thread, or one before it, finds whatever is due.
//! - Each is told once, without locks of the journal, by a thread without locks of anybody: by the
//!   one that commits, if it says that it has none, else by a thread that does nothing else.
//! - That thread is there before anything is left: what has committed is never told to have failed
//!   because no thread could be started by then.
//!
//! # Locking
//!
//! They lie under `progress`, and are taken out of it to be told. `teller` lies under it, too.

use std::sync::mpsc;

use polylane_base::sync::thread;
use polylane_block::Error as DeviceError;
use polylane_vfs::fs::OnSynced;

use super::{Journal, Progress, Tid};
use crate::error::Error;

/// A sync that another thread commits.
pub(super) struct Left {
    tid: Tid,
    told: OnSynced,
}

/// What is told, and to whom.
type Due = (OnSynced, polylane_base::Result<()>);

/// The way to the thread that tells; it ends when this is dropped.
pub(super) type ToTeller = mpsc::Sender<Vec<Due>>;

fn start_teller() -> Option<ToTeller> {
    let (sender, due) = mpsc::channel::<Vec<Due>>();
    let tell = move || due.into_iter().flatten().for_each(|(told, synced)| told(synced));
    let started = thread::Builder::new().name("polylane-tell".into()).spawn(tell);
    started.is_ok().then_some(sender)
}

/// The thread that tells those that left their syncs to a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Teller {
    /// The thread that commits, which has no locks.
    Here,
    /// Another one.
    Elsewhere,
}

impl Progress {
    /// Whether a thread leads `tid`, which has not committed.
    fn is_led(&self, tid: Tid) -> bool {
        self.led.reached(tid) && !self.committed.reached(tid)
    }
}

impl Journal {
    /// Whether a thread leads the running transaction, which has room for more.
    pub fn takes_syncs(&self) -> bool {
        let is_led = self.progress.lock().is_led(self.current());
        is_led && self.has_room_for_syncs()
    }

    /// Whether the running transaction takes what a small sync logs, so that it is not waited for.
    pub fn has_room_for_syncs(&self) -> bool {
        self.load() < self.blocks_max / 2
    }

    /// Leaves the commit of `tid` to the thread that leads it, if one does: then what `told` gives
    /// is called when it has ended. Whether that is so.
    pub fn leave(&self, tid: Tid, told: &mut dyn FnMut() -> OnSynced) -> bool {
        let mut progress = self.progress.lock();
        let takes = progress.is_led(tid) && !self.is_stopped() && self.has_teller();
        if takes {
            progress.left.push(Left { tid, told: told() });
        }
        takes
    }

    /// Whether there is a thread that tells, from now on. Without one nothing is left.
    fn has_teller(&self) -> bool {
        let mut teller = self.teller.lock();
        if teller.is_none() {
            *teller = start_teller();
        }
        teller.is_some()
    }

    /// Tells those whose syncs have ended. Call without locks.
    pub(super) fn tell_due(&self) {
        self.take_due().into_iter().for_each(|(told, synced)| told(synced));
    }

    /// Has another thread do so.
    pub(super) fn tell_elsewhere(&self) {
        let due = self.take_due();
        if let Some(teller) = self.teller.lock().as_ref().filter(|_| !due.is_empty()) {
            // A teller that has panicked drops them, which says that they failed.
            let _ = teller.send(due);
        }
    }

    /// Those whose transaction has committed, and those whose lead was given up, with what is to be
    /// told.
    fn take_due(&self) -> Vec<Due> {
        let mut progress = self.progress.lock();
        if progress.left.is_empty() {
            return Vec::new();
        }
        let (committed, led) = (progress.committed, progress.led);
        let due = |left: &mut Left| committed.reached(left.tid) || !led.reached(left.tid);
        let due: Vec<Left> = progress.left.extract_if(.., due).collect();
        drop(progress);
        due.into_iter().map(|left| (left.told, self.outcome(left.tid, committed))).collect()
    }

    /// What became of a transaction that no thread leads.
    fn outcome(&self, tid: Tid, committed: Tid) -> polylane_base::Result<()> {
        match () {
            () if committed.reached(tid) => Ok(()),
            () if self.is_stopped() => Err(self.cause(Error::Stopped).into()),
            () => Err(Error::from(DeviceError::NoSpace).into()),
        }
    }
}
