//! A device whose content never changes and that is exchanged under its users for another with the
//! same content: the bases of a volume, when two of them become one.
//!
//! ```text
//!  replace(new) ─► each channel: nothing under way ─► goes over at once
//!                                else ─► takes nothing new until that is answered, then goes over
//! ```
//!
//! A request may be answered by either device, so nothing has to stand still.
//!
//! # Invariants
//!
//! - A channel that exists when [`Replaceable::replace`] returns holds the old device only as long
//!   as requests are under way on it.
//!
//! # Locking
//!
//! `state → slot`. A channel takes the lock of its own slot alone, for which only
//! [`Replaceable::replace`] contends.

use std::sync::{Arc, Weak};

use polylane_base::sync::Mutex;

use crate::device::{BlockDevice, Channel, Completion, Error, Request, Submitted};

/// The road of one channel.
struct Slot {
    /// `None`: it is being exchanged.
    road: Option<Box<dyn Channel>>,
    /// Requests on `road`.
    inside: usize,
    /// What `road` is to lead to once nothing is under way.
    next: Option<Arc<dyn BlockDevice>>,
}

impl Slot {
    /// Goes over, if there is a device to go over to and nothing is under way; whether requests may
    /// go on.
    fn is_ready(&mut self) -> bool {
        if self.inside == 0
            && let Some(device) = self.next.take()
        {
            // The old one first: what it gives back may be what the new one needs.
            self.road = None;
            self.road = Some(device.channel());
        }
        self.next.is_none()
    }
}

struct State {
    below: Arc<dyn BlockDevice>,
    slots: Vec<Weak<Mutex<Slot>>>,
}

/// A read-only device that can be replaced. See the [module](self).
pub struct Replaceable {
    sectors: u64,
    state: Mutex<State>,
}

impl Replaceable {
    /// Makes `below`, which never changes, replaceable.
    pub fn new(below: Arc<dyn BlockDevice>) -> Arc<Replaceable> {
        let sectors = below.sector_count();
        Arc::new(Replaceable { sectors, state: Mutex::new(State { below, slots: Vec::new() }) })
    }

    /// Puts a device with the same content in the place of the one below.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for one of another size.
    pub fn replace(&self, below: Arc<dyn BlockDevice>) -> Result<(), Error> {
        if below.sector_count() != self.sectors {
            return Err(Error::OutOfRange);
        }
        let mut state = self.state.lock();
        state.slots.retain(|slot| match slot.upgrade() {
            Some(slot) => {
                let mut slot = slot.lock();
                slot.next = Some(below.clone());
                slot.is_ready();
                true
            }
            None => false,
        });
        state.below = below;
        Ok(())
    }
}

impl BlockDevice for Replaceable {
    fn sector_count(&self) -> u64 {
        self.sectors
    }

    fn read_only(&self) -> bool {
        true
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let mut state = self.state.lock();
        let road = Some(state.below.clone().channel());
        let slot = Arc::new(Mutex::new(Slot { road, inside: 0, next: None }));
        state.slots.retain(|slot| slot.strong_count() > 0);
        state.slots.push(Arc::downgrade(&slot));
        Box::new(ReplaceChannel { slot })
    }
}

struct ReplaceChannel {
    slot: Arc<Mutex<Slot>>,
}

impl Channel for ReplaceChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        if request.is_change() {
            return Submitted::Done(request.complete(Err(Error::ReadOnly)));
        }
        let mut slot = self.slot.lock();
        if !slot.is_ready() {
            return Submitted::Busy(request);
        }
        let Some(road) = &mut slot.road else { return Submitted::Busy(request) };
        let submitted = road.submit(request);
        slot.inside += usize::from(matches!(submitted, Submitted::Pending));
        submitted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut slot = self.slot.lock();
        let before = done.len();
        if let Some(road) = &mut slot.road {
            road.poll(done);
        }
        slot.inside = slot.inside.saturating_sub(done.len() - before);
        slot.is_ready();
    }

    fn park(&mut self) {
        let mut slot = self.slot.lock();
        if slot.inside > 0
            && let Some(road) = &mut slot.road
        {
            road.park();
        }
    }
}
