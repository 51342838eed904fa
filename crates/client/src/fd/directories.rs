//! Directories that are kept open: a program that opens one again and again, to sync what it did
//! there, gets the kernel's descriptor of the former open again.
//!
//! ```text
//!   second open of a path ──► in use ── last close ──► parked ── open that finds it ──► in use
//!                               └─ others may have a copy ─► closed ◄─ room, age, removal ─┘
//! ```
//!
//! A *master* is the library's own copy of a descriptor that the kernel opened for the program. The
//! program closes its numbers; the open directory stays with the master. An open takes it again
//! only after the service has resolved the path for it, checked that the caller may read what it
//! leads to, and said which inode that is: a parked master is a descriptor and no right.
//!
//! # Invariants
//!
//! - At most one record owns a master. The record that uses it is the only one with its open
//!   directory, or the master is closed with the record.
//! - A parked master keeps its inode: a number that the service tells is that of the same inode.
//! - A master is handed out with the position and the status flags of a new open.
//!
//! # Locking
//!
//! None: a place changes hands by compare-and-swap of its state.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{SeekFrom, seek};
use zerocopy::FromZeros;

use crate::fd::record::Record;
use crate::kernel::outcome::Outcome;
use crate::kernel::real;
use crate::kernel::reserved;
use crate::session::Session;

/// Directories kept open at a time: each keeps a descriptor of the program's, and the inode of a
/// directory that others remove.
const PLACES: usize = 4;
/// Seconds that one stays parked at most, seen at the next open of a directory.
const AGE_MAX: i64 = 60;
/// Flags that are of a number, or of the opening alone.
const NOT_KEPT: i32 = libc::O_CLOEXEC | libc::O_NOCTTY;

const EMPTY: u32 = 0;
/// Being made, looked at or unmade by one thread.
const CHANGING: u32 = 1;
const TAKEN: u32 = 2;
const PARKED: u32 = 3;

/// One place. Zero is empty.
#[derive(FromZeros)]
struct Place {
    state: AtomicU32,
    /// The master.
    fd: AtomicI32,
    /// Session in which its opens are confirmed.
    session: AtomicU32,
    /// Flags of the program's opens.
    flags: AtomicI32,
    /// Status flags of the master when it was new.
    status: AtomicI32,
    ino: AtomicU64,
    /// Hash of the open that led to it last.
    hash: AtomicU64,
    /// Address of the record that owns it.
    owner: AtomicUsize,
    /// Seconds of the monotonic clock when it was parked.
    since: AtomicI64,
}

/// Which directory an open has to give.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The session that said so.
    pub(crate) session: u32,
    /// Its inode number.
    pub(crate) ino: u64,
    /// Flags of the open.
    pub(crate) flags: i32,
    /// Hash of the question.
    pub(crate) hash: u64,
}

/// All of a lane. Zero is "none".
#[derive(FromZeros)]
pub(crate) struct Directories {
    places: [Place; PLACES],
}

impl Place {
    const fn new() -> Self {
        Place {
            state: AtomicU32::new(EMPTY),
            fd: AtomicI32::new(0),
            session: AtomicU32::new(0),
            flags: AtomicI32::new(0),
            status: AtomicI32::new(0),
            ino: AtomicU64::new(0),
            hash: AtomicU64::new(0),
            owner: AtomicUsize::new(0),
            since: AtomicI64::new(0),
        }
    }

    fn turn(&self, from: u32, to: u32) -> bool {
        let (done, else_) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.load(Ordering::Relaxed) == from
            && self.state.compare_exchange(from, to, done, else_).is_ok()
    }

    fn is(&self, wanted: &Wanted) -> bool {
        self.session.load(Ordering::Relaxed) == wanted.session
            && self.ino.load(Ordering::Relaxed) == wanted.ino
            && self.flags.load(Ordering::Relaxed) == wanted.flags & !NOT_KEPT
    }

    fn master(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Closes the master of a place that is changing.
    fn unmake(&self) {
        reserved::close(self.master());
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Readies the master of a place that is changing for another open. False: somebody changed it
    /// past the hooks.
    fn renew(&self) -> bool {
        let status = real::status_flags(self.master());
        status.is_ok_and(|status| status == self.status.load(Ordering::Relaxed))
            && seek(real::borrow(self.master()), SeekFrom::Start(0)).is_ok()
    }

    fn give(&self, owner: &Record, wanted: &Wanted) {
        self.owner.store(address(owner), Ordering::Relaxed);
        self.hash.store(wanted.hash, Ordering::Relaxed);
        self.state.store(TAKEN, Ordering::Release);
    }
}

fn address(record: &Record) -> usize {
    std::ptr::from_ref(record).addr()
}

impl Directories {
    pub(crate) const fn new() -> Self {
        Directories { places: [const { Place::new() }; PLACES] }
    }

    /// Whether such an open led to a directory that is kept, in this session.
    pub(crate) fn expects(&self, session: &Session, hash: u64) -> bool {
        self.places.iter().any(|place| {
            place.state.load(Ordering::Acquire) >= TAKEN
                && place.hash.load(Ordering::Relaxed) == hash
                && place.session.load(Ordering::Relaxed) == session.number
        })
    }

    /// The master of a directory, `owner`'s from now on; `None`: none is parked. Closes those that
    /// have been parked for long.
    pub(crate) fn take(&self, wanted: &Wanted, owner: &Record) -> Option<RawFd> {
        let now = real::seconds();
        self.places.iter().find_map(|place| {
            if !place.turn(PARKED, CHANGING) {
                return None;
            }
            let old = now - place.since.load(Ordering::Relaxed) > AGE_MAX;
            let found = place.is(wanted);
            if old || found && !place.renew() {
                place.unmake();
                return None;
            }
            match found {
                true => place.give(owner, wanted),
                false => place.state.store(PARKED, Ordering::Release),
            }
            found.then(|| place.master())
        })
    }

    /// A place for one more, changing: an empty one, or that of the one which was parked first.
    fn place(&self) -> Option<&Place> {
        let since = |place: &&Place| place.since.load(Ordering::Relaxed);
        let is_parked = |place: &&Place| place.state.load(Ordering::Relaxed) == PARKED;
        let empty = self.places.iter().find(|place| place.turn(EMPTY, CHANGING));
        empty.or_else(|| {
            let oldest = self.places.iter().filter(is_parked).min_by_key(since)?;
            oldest.turn(PARKED, CHANGING).then(|| reserved::close(oldest.master()))?;
            Some(oldest)
        })
    }

    /// Keeps a copy of a descriptor that the kernel has just opened, in use by `owner`. Where all
    /// are in use, or no number is left, it is not kept.
    pub(crate) fn keep(&self, fd: RawFd, wanted: &Wanted, owner: &Record) {
        let Some(place) = self.place() else { return };
        let copy = || -> Outcome<_> { Ok((real::status_flags(fd)?, reserved::copy(fd)?)) };
        match copy() {
            Ok((status, master)) => {
                place.fd.store(master, Ordering::Relaxed);
                place.status.store(status, Ordering::Relaxed);
                place.session.store(wanted.session, Ordering::Relaxed);
                place.flags.store(wanted.flags & !NOT_KEPT, Ordering::Relaxed);
                place.ino.store(wanted.ino, Ordering::Relaxed);
                place.give(owner, wanted);
            }
            Err(_) => place.state.store(EMPTY, Ordering::Release),
        }
    }

    /// The last number that meant `owner` is closed, or about to be: its master, if it has one, is
    /// parked if that session may use it again, else closed.
    pub(crate) fn finish(&self, owner: &Record, again_in: Option<&Session>) {
        let is_it = |place: &&Place| {
            place.state.load(Ordering::Acquire) == TAKEN
                && place.owner.load(Ordering::Relaxed) == address(owner)
        };
        let Some(place) = self.places.iter().find(is_it) else { return };
        place.owner.store(0, Ordering::Relaxed);
        let session = place.session.load(Ordering::Relaxed);
        if again_in.is_some_and(|present| present.number == session) {
            place.since.store(real::seconds(), Ordering::Relaxed);
            return place.state.store(PARKED, Ordering::Release);
        }
        if place.turn(TAKEN, CHANGING) {
            place.unmake();
        }
    }

    /// Closes all that are parked, and whether there were any: a directory was removed, the program
    /// ran out of descriptors, or the session is over.
    pub(crate) fn shed(&self) -> bool {
        let parked = self.places.iter().filter(|place| place.turn(PARKED, CHANGING));
        parked.map(Place::unmake).count() > 0
    }

    /// Moves the master on `fd` to another number: the program wants this one. False: none is
    /// there.
    pub(crate) fn move_master(&self, fd: RawFd) -> bool {
        let is_it =
            |place: &&Place| place.state.load(Ordering::Acquire) >= TAKEN && place.master() == fd;
        let Some(place) = self.places.iter().find(is_it) else { return false };
        // Where no number is left the place loses its master: -1 is never open.
        place.fd.store(reserved::copy(fd).unwrap_or(-1), Ordering::Relaxed);
        reserved::forget(fd);
        true
    }

    /// All masters are about to be closed as the library's other descriptors are.
    pub(crate) fn leave(&self) {
        self.places.iter().for_each(|place| place.state.store(EMPTY, Ordering::Release));
    }
}
