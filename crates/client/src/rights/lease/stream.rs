//! Entries and bytes on their way into the stream.
//!
//! Whoever posts looks afterwards whether the service lives: what a dead one did not take is taken
//! back, and done by the ordinary way, which finds the next service.

use std::sync::atomic::Ordering::Relaxed;

use polylane_ipc::message::{Message, Op};
use polylane_ipc::stream::{DATA_BYTES, ENTRIES, Entry, Posted};

use super::Inside;
use crate::session::call;

/// Entries that may wait before the service is told to go on.
const WAITING_MAX: u32 = 64;
/// Bytes of file data that may wait before it is told.
const NUDGE_BYTES: u64 = DATA_BYTES as u64 / 4;

/// The leases are over, or cannot say: the ordinary way.
pub(super) struct Ordinary;

impl Inside {
    /// Puts an entry in place of the last one. False: it is to be posted, or done otherwise.
    pub(super) fn replace(&self, entry: &Entry) -> bool {
        let stream = self.session.channel.stream();
        // One that a dead service did not take is nobody's.
        stream.replace(entry) && !(self.session.is_dead() && stream.last().is_some())
    }

    /// Has the service apply what is streamed, as any request does.
    pub(super) fn drain(&self) -> Result<(), Ordinary> {
        call::plain(self.session, Message::new(Op::Ping)).map(drop).map_err(|_| Ordinary)
    }

    /// Adds an entry.
    pub(super) fn post(&self, entry: &Entry) -> Result<(), Ordinary> {
        let (leases, stream) = (self.leases, self.session.channel.stream());
        let mut posted = stream.post(entry);
        if posted == Posted::Full {
            self.drain()?;
            posted = stream.post(entry);
        }
        match posted {
            Posted::Waiting(_) if self.session.is_dead() && stream.withdraw() => Err(Ordinary),
            Posted::Waiting(count) => {
                leases.deferred.streams();
                let place = stream.next_place().wrapping_sub(1) % ENTRIES;
                let head = leases.head.load(Relaxed);
                leases.heads[place as usize].store(head, Relaxed);
                if count.is_multiple_of(WAITING_MAX) {
                    // The service may as well begin.
                    self.session.nudge();
                }
                let streamed = leases.streamed.load(Relaxed);
                leases.streamed.store(streamed.saturating_add(1), Relaxed);
                Ok(())
            }
            Posted::Full => Err(Ordinary),
            Posted::Shut => {
                if leases.session.load(Relaxed) == self.session.number {
                    self.ended();
                }
                Err(Ordinary)
            }
        }
    }

    /// Takes a place in the ring for so many bytes; returns where it begins.
    pub(super) fn take_bytes(&self, len: usize) -> Option<usize> {
        let (leases, ring, len) = (self.leases, DATA_BYTES as u64, len as u64);
        let head = leases.head.load(Relaxed);
        // No piece goes on at the ring's beginning.
        let start = if head % ring + len > ring { head.next_multiple_of(ring) } else { head };
        // Of the ring, once these bytes are in it.
        let waiting = || {
            let done = self.session.channel.stream().done();
            start + len - leases.heads[(done.wrapping_sub(1) % ENTRIES) as usize].load(Relaxed)
        };
        if waiting() > ring && (self.drain().is_err() || waiting() > ring) {
            return None;
        }
        leases.head.store(start + len, Relaxed);
        // What was applied since, as by each sync, is no reason to wake the service.
        let waits = waiting();
        if waits.saturating_sub(len) / NUDGE_BYTES != waits / NUDGE_BYTES {
            self.session.nudge();
        }
        Some((start % ring) as usize)
    }

    /// Nothing is under way: all of the ring is free.
    pub(super) fn clear_ring(&self) {
        let head = self.leases.head.load(Relaxed);
        self.leases.heads.iter().for_each(|place| place.store(head, Relaxed));
    }
}
