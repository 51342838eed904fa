//! Tickets: how an open file found through a kernel descriptor becomes a handle of a channel.
//!
//! A descriptor that was inherited over fork or exec, or received over a socket, is asked with
//! `ioctl(fd, IOCTL_IDENTIFY)`; the kernel brings the question to us together with *our* file
//! handle, so the answer needs no trust in the asker. The answer is a random 16-byte ticket that
//! `Op::Redeem` turns into a handle. Whoever holds the descriptor may ask, whoever holds the ticket
//! may redeem it: both already mean access to the open file.
//!
//! # Invariants
//!
//! - A ticket is good once and for [`LIFETIME`].
//! - The table holds at most [`CAPACITY`] tickets; the oldest gives way.
//! - A ticket keeps nothing open: it is void when the last descriptor or handle is closed.
//!
//! # Locking
//!
//! `entries` is a leaf.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polylane_base::Result;
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_vfs::OpenFile;

use super::slots::{Token, random_bytes};

/// How long a ticket is good: a client redeems it in its next request.
pub const LIFETIME: Duration = Duration::from_secs(10);

/// Tickets outstanding in one lane: every thread of a large tenant may have one in hand.
pub const CAPACITY: usize = 4096;

/// What a ticket stands for.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The open file.
    pub file: Arc<OpenFile>,
    /// The slot the descriptor is, if it is one.
    pub slot: Option<TicketSlot>,
}

/// The slot of a ticket's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketSlot {
    /// The session that made it.
    pub session: Token,
    /// Its number there.
    pub number: u32,
    /// Whether the kernel's descriptor has the file's status flags.
    pub has_flags: bool,
}

struct Entry {
    key: [u8; 16],
    issued: Instant,
    file: Weak<OpenFile>,
    slot: Option<TicketSlot>,
}

/// The tickets of one lane. Thread-safe.
#[derive(Default)]
pub struct TicketTable {
    entries: Mutex<VecDeque<Entry>>,
}

impl TicketTable {
    /// Makes a ticket. `EIO` when the kernel has no random bytes.
    pub fn issue(&self, ticket: &Ticket) -> Result<[u8; 16]> {
        self.issue_at(ticket, Instant::now())
    }

    /// Takes a ticket back; `None` when it is unknown, used, too old, or its file is closed.
    pub fn redeem(&self, key: &[u8; 16]) -> Option<Ticket> {
        self.redeem_at(key, Instant::now())
    }

    fn issue_at(&self, ticket: &Ticket, now: Instant) -> Result<[u8; 16]> {
        let key = random_bytes()?;
        let file = Arc::downgrade(&ticket.file);
        let mut entries = self.entries.lock();
        expire(&mut entries, now);
        if entries.len() == CAPACITY {
            entries.pop_front();
        }
        entries.push_back(Entry { key, issued: now, file, slot: ticket.slot });
        Ok(key)
    }

    fn redeem_at(&self, key: &[u8; 16], now: Instant) -> Option<Ticket> {
        let mut entries = self.entries.lock();
        expire(&mut entries, now);
        let index = entries.iter().position(|entry| entry.key == *key)?;
        let entry = entries.remove(index)?;
        drop(entries);
        Some(Ticket { file: entry.file.upgrade()?, slot: entry.slot })
    }
}

/// Entries are in the order of their issue, so the old ones are in front.
fn expire(entries: &mut VecDeque<Entry>, now: Instant) {
    while entries.front().is_some_and(|entry| now.duration_since(entry.issued) >= LIFETIME) {
        entries.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polylane_vfs::{OpCtx, Vfs};

    use super::*;
    use crate::lane::empty;

    fn ticket() -> (Arc<Vfs>, Ticket) {
        let vfs = empty::vfs();
        let file = vfs.open(&OpCtx::service(), &vfs.root(), libc::O_DIRECTORY).unwrap();
        (vfs, Ticket { file, slot: None })
    }

    #[test]
    fn a_ticket_is_good_once_and_not_for_long() {
        let (_vfs, ticket) = ticket();
        let (table, now) = (TicketTable::default(), Instant::now());
        let (first, second) = (table.issue_at(&ticket, now), table.issue_at(&ticket, now));
        let (first, second) = (first.unwrap(), second.unwrap());
        let late = now + LIFETIME - Duration::from_nanos(1);
        assert!(table.redeem_at(&first, late).is_some());
        assert!(table.redeem_at(&first, late).is_none());
        assert!(table.redeem_at(&second, now + LIFETIME).is_none());
    }

    #[test]
    fn a_ticket_is_void_when_the_file_is_closed() {
        let (_vfs, ticket) = ticket();
        let table = TicketTable::default();
        let key = table.issue(&ticket).unwrap();
        drop(ticket);
        assert!(table.redeem(&key).is_none());
    }

    #[test]
    fn the_oldest_ticket_gives_way() {
        let (_vfs, ticket) = ticket();
        let table = TicketTable::default();
        let keys: Vec<_> = (0..=CAPACITY).map(|_| table.issue(&ticket).unwrap()).collect();
        assert_eq!(table.entries.lock().len(), CAPACITY);
        assert!(table.redeem(&keys[0]).is_none());
        assert!(table.redeem(&keys[1]).is_some());
    }
}
