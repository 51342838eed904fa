//! Tickets: how an open file found through a kernel descriptor becomes a handle of a channel.
//!
//! A descriptor that was inherited over fork or exec, or received over a socket, is asked with
//! `ioctl(fd, IOCTL_IDENTIFY)`; the kernel brings the question to us together with *our* file
//! handle, so the answer needs no trust in the asker. The answer is a random 16-byte ticket that
//! `Op::Redeem` turns into a handle. A process that holds the descriptor may ask, and one that
//! holds the ticket may redeem it: both already mean access to the open file.
//!
//! # Invariants
//!
//! - A ticket is good once and for [`LIFETIME`].
//! - The table holds at most [`CAPACITY`] tickets; the oldest gives way.
//! - A ticket keeps nothing open: it is void when the last descriptor or handle is closed.
//!
//! A client that replaces slots by own nodes opens one ticket's file after the other by the kernel.
//! The table counts those to come, so that a reader of the kernel's requests looks out for the next
//! one in place of sleeping (`TicketTable::are_awaited`).
//!
//! # Locking
//!
//! `entries` and `opens` are leaves.

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

/// How long after the last open by a ticket the next one is looked out for: a few times what a
/// client takes between two that it does not wait for its CPU.
const OPENS_PATIENCE: Duration = Duration::from_micros(300);

/// Fewer are over before a reader that looks out has gained what it costs those beside it.
const OPENS_MIN: usize = 4;

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

/// Tickets that were asked and whose files were not opened are held against those who ask for so
/// long: only an open has the next one looked out for meanwhile.
const OPENS_MISSED: Duration = Duration::from_secs(1);

/// Opens by tickets that are to come.
struct Opens {
    /// At least one.
    count: usize,
    /// The last open, or when the first of the tickets was asked.
    since: Instant,
}

impl Opens {
    /// Those that have not come by then are not waited for.
    fn left(&self, now: Instant) -> usize {
        if now.duration_since(self.since) < OPENS_PATIENCE { self.count } else { 0 }
    }

    fn are_awaited(&self, now: Instant) -> bool {
        self.left(now) >= OPENS_MIN
    }
}

/// The tickets of one lane. Thread-safe.
#[derive(Default)]
pub struct TicketTable {
    entries: Mutex<VecDeque<Entry>>,
    opens: Mutex<Option<Opens>>,
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

    /// A client that has tickets of `count` files opens them next.
    pub(crate) fn expect_opens(&self, count: usize) {
        self.expect_at(count, Instant::now());
    }

    fn expect_at(&self, count: usize, now: Instant) {
        let mut opens = self.opens.lock();
        match opens.as_mut().filter(|opens| now.duration_since(opens.since) < OPENS_MISSED) {
            Some(opens) => opens.count = (opens.count + count).min(CAPACITY),
            None => *opens = (count > 0).then_some(Opens { count, since: now }),
        }
    }

    /// One of them was opened.
    pub(crate) fn has_opened(&self) {
        let mut opens = self.opens.lock();
        let left = opens.take().map_or(0, |opens| opens.count - 1);
        *opens = (left > 0).then(|| Opens { count: left, since: Instant::now() });
    }

    /// Whether a client is about to open a ticket's file.
    pub(crate) fn are_awaited(&self) -> bool {
        self.opens.lock().as_ref().is_some_and(|opens| opens.are_awaited(Instant::now()))
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
    fn opens_are_awaited_until_the_last_few_and_not_for_long() {
        let (table, now) = (TicketTable::default(), Instant::now());
        let awaits = |at| table.opens.lock().as_ref().is_some_and(|o: &Opens| o.are_awaited(at));
        table.expect_at(OPENS_MIN - 1, now);
        assert!(!awaits(now));
        table.expect_at(2, now);
        assert!(awaits(now));
        table.has_opened();
        assert!(awaits(now));
        let since = table.opens.lock().as_ref().map(|opens| opens.since).unwrap();
        assert!(!awaits(since + OPENS_PATIENCE), "a client that stops is not looked out for");
        (0..2).for_each(|_| table.has_opened());
        assert!(!awaits(now));
        // More than were expected: those of before, or of a client that lies.
        (0..9).for_each(|_| table.has_opened());
        assert!(!awaits(now));
    }

    #[test]
    fn who_asks_for_tickets_and_opens_none_is_looked_out_for_once_a_second() {
        let (table, begin) = (TicketTable::default(), Instant::now());
        let awaits = |at| table.opens.lock().as_ref().is_some_and(|o: &Opens| o.are_awaited(at));
        let step = Duration::from_micros(100);
        let times = (0..20_000).map(|n| begin + n * step);
        let awaited = times.filter(|at| {
            table.expect_at(2 * OPENS_MIN, *at);
            awaits(*at)
        });
        assert_eq!(awaited.count(), 2 * 3, "three looks of 100 us in each second");
        table.has_opened();
        assert!(table.are_awaited(), "an open is followed by others");
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
