//! Leases: names that this process changes without asking.
//!
//! A process that keeps making, renaming and removing files in one directory asks for a lease on
//! it. From then on it knows every name there, answers such calls itself and streams what it did;
//! see `polylane_ipc::stream`. Everything else - other calls, other names, other files - goes the
//! ordinary way, before which the service applies the stream.
//!
//! Changes that cancel each other out while the last of them still waits become one: a file made,
//! renamed and removed at once is a touch of its directory.
//!
//! # Invariants
//!
//! - A lease is believed only as long as the stream's gate is open: an answer that needs no entry
//!   ("there is none") looks at the gate, all others are an entry that passed it.
//! - `names` holds every name of a leased directory that an entry can hold: files that this process
//!   made there since the lease began, *sole* ones, and everything else, which is known to exist.
//! - A sole file had one name and no user when the lease was granted. Others come to it by the
//!   directory alone, which ends the lease; this process might by opening something, after which
//!   none counts as sole.
//! - A streamed handle has a place of its own until its close was streamed or answered: see
//!   `deferred_errors`.
//!
//! # Locking
//!
//! One lock, never waited for beyond a moment: who does not get it goes the ordinary way, so a
//! signal handler that interrupted the holder does not wait for itself. Only who leaves a session
//! waits, and not for ever.

mod benefit;
pub(crate) mod deferred_errors;
mod files;
mod held;
mod names;
mod stream;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use polylane_base::Errno;
use polylane_ipc::message::{LEASED, Message, NameEffects, Op};
use polylane_ipc::stream::{Change, ENTRIES, Entry, LEASES_MAX, ShortName};
use zerocopy::FromZeros;

use self::benefit::{Benefit, CHANGES};
use self::deferred_errors::DeferredErrors;
pub(crate) use self::files::NewState;
use self::held::Held;
use self::names::{Known, Names};
use self::stream::Ordinary;
use crate::fd::at::At;
use crate::fd::preopened;
use crate::fd::record::{FileBits, Record, is_streamed};
use crate::kernel::config;
use crate::kernel::outcome::{Detour, Outcome};
use crate::session::Session;
use crate::session::call;

/// Turns that a call waits for another thread's.
const LOCK_TURNS: u32 = 200;
/// Entries that make a lease worth its while.
const WORTH: u32 = 1024;
/// How names of the mount itself begin.
const RESERVED: &[u8] = b".polylane";

/// Everything about leases. Zero is "none".
#[derive(FromZeros)]
pub(crate) struct Leases {
    locked: AtomicU32,
    /// The session that granted them.
    session: AtomicU32,
    /// The session whose stream `head` and `heads` are of.
    of_stream: AtomicU32,
    held: [Held; LEASES_MAX as usize],
    names: Names,
    benefit: Benefit,
    /// Entries streamed under the present leases.
    streamed: AtomicU32,
    /// Streamed handles so far.
    handles: AtomicU32,
    /// The first of those whose files nobody can have met: they were made under the present leases,
    /// and this process has opened none of its files by another way since.
    alone_from: AtomicU32,
    /// This process has opened no file by a request since the present leases began.
    none_opened: AtomicBool,
    /// Writes may be streamed.
    data: AtomicBool,
    /// Bytes of the stream's ring used so far; for each entry, how many there were with it.
    head: AtomicU64,
    heads: [AtomicU64; ENTRIES as usize],
    deferred: DeferredErrors,
}

impl Leases {
    pub(crate) const fn new() -> Self {
        Leases {
            locked: AtomicU32::new(0),
            session: AtomicU32::new(0),
            of_stream: AtomicU32::new(0),
            held: [const { Held::new() }; LEASES_MAX as usize],
            names: Names::new(),
            benefit: Benefit::new(),
            streamed: AtomicU32::new(0),
            handles: AtomicU32::new(0),
            alone_from: AtomicU32::new(0),
            none_opened: AtomicBool::new(false),
            data: AtomicBool::new(false),
            head: AtomicU64::new(0),
            heads: [const { AtomicU64::new(0) }; ENTRIES as usize],
            deferred: DeferredErrors::new(),
        }
    }

    /// From now on no file made so far counts as one that nobody has met.
    fn meet(&self) {
        let next = self.handles.load(Relaxed).wrapping_add(1);
        self.alone_from.store(next, SeqCst);
        self.none_opened.store(false, SeqCst);
    }

    /// Whether nobody has met the file of a streamed handle.
    fn is_alone(&self, handle: u64) -> bool {
        let count = (handle >> 32) as u32;
        let since = count.wrapping_sub(self.alone_from.load(SeqCst));
        is_streamed(handle) && since.cast_signed() >= 0
    }

    /// Whether nobody has met the file of a record, in this process neither.
    #[inline]
    fn is_alone_with(&self, file: &Record) -> bool {
        self.is_alone(file.handle.load(Relaxed))
            && file.view.load(Relaxed) == 0
            && !file.is(FileBits::SHARED | FileBits::ESCAPED | FileBits::MET)
    }

    /// The leases of this session, if there are any.
    #[inline]
    fn enter(&'static self, session: &'static Session) -> Option<Inside> {
        if self.session.load(Relaxed) != session.number {
            return None;
        }
        let inside = self.lock(session)?;
        if session.channel.stream().is_shut() {
            inside.ended();
            return None;
        }
        Some(inside)
    }

    /// The stream of this session, with leases or without.
    fn enter_stream(&'static self, session: &'static Session) -> Option<Inside> {
        let inside = self.lock(session)?;
        let stream = session.channel.stream();
        if stream.is_shut() {
            if self.session.load(Relaxed) == session.number {
                inside.ended();
            }
            return None;
        }
        if self.of_stream.load(Relaxed) != session.number {
            // The first time all of the ring is free; a thread that is late has a former session.
            if !stream.is_all_done() {
                return None;
            }
            self.of_stream.store(session.number, Relaxed);
            inside.clear_ring();
        }
        Some(inside)
    }

    /// The lock, unless the session is over.
    fn lock(&'static self, session: &'static Session) -> Option<Inside> {
        self.hold(session).filter(|_| !self.deferred.is_over(session))
    }

    fn hold(&'static self, session: &'static Session) -> Option<Inside> {
        for _ in 0..LOCK_TURNS {
            if self.locked.load(Relaxed) == 0 && self.locked.swap(1, Acquire) == 0 {
                return Some(Inside { leases: self, session });
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// The lock on the leases of a session.
struct Inside {
    leases: &'static Leases,
    session: &'static Session,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.leases.locked.store(0, Release);
    }
}

impl Inside {
    /// The lease and the name that a path means; `None` when no lease says anything about it.
    fn find(&self, at: &At<'_>) -> Option<(u8, ShortName)> {
        let (dir, name) = split(at.path);
        let place = self.leases.held.iter().position(|held| held.is(at.dir, dir))?;
        match name {
            b"." | b".." => None,
            // What the mount itself shows in its root is in no list of names.
            name if name.starts_with(RESERVED) => None,
            name => ShortName::new(name).map(|name| (place as u8, name)),
        }
    }

    fn stamped(&self, change: Change, lease: u8, name: ShortName) -> Entry {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let time = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
        Entry { change, lease, name, time, born: time, ..Entry::default() }
    }

    /// What is known of a name.
    fn known(&self, lease: u8, name: &ShortName) -> Option<Known> {
        match self.leases.names.get(lease, name) {
            Some(Known::Sole) if !self.leases.none_opened.load(SeqCst) => Some(Known::Other),
            known => known,
        }
    }

    /// The last entry, as long as the service has not taken it and it is of this lease.
    fn last(&self, lease: u8) -> Option<Entry> {
        self.session.channel.stream().last().filter(|entry| entry.lease == lease)
    }

    /// Another caller ended the leases. Those that ended early make the next ones dearer.
    #[cold]
    fn ended(&self) {
        self.over(WORTH);
    }

    /// The leases are over; so many entries made them worth their while.
    fn over(&self, worth: u32) {
        let leases = self.leases;
        let worth = leases.streamed.swap(0, Relaxed) >= worth;
        leases.benefit.judge(worth);
        leases.held.iter().for_each(Held::clear);
        leases.names.clear();
        leases.meet();
        leases.session.store(0, Relaxed);
        self.session.channel.stream().believe(false);
    }
}

/// The directory part of a path and the last name; the name is empty where there is none.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// What a new file is opened as, once its name is known to be free.
pub(crate) struct NewFile<'a> {
    pub(crate) flags: i32,
    pub(crate) perm: u32,
    pub(crate) umask: u32,
    /// Its record, which owns a slot with this number.
    pub(crate) file: &'a Record,
    pub(crate) slot: u32,
}

/// What a lease says about a name that is to be opened.
pub(crate) enum Says {
    /// Nothing.
    Nothing,
    /// There is no such file; it can be made by [`Claim::make`].
    Absent(Claim),
    /// Something of that name exists.
    Exists,
}

/// A name that is known to be free, as long as this is held.
pub(crate) struct Claim {
    inside: Inside,
    lease: u8,
    name: ShortName,
}

impl Claim {
    /// Makes and opens the file. `Kernel`: it must be done the ordinary way; nothing was done.
    pub(crate) fn make(self, new: &NewFile<'_>) -> Outcome<()> {
        let Claim { inside, lease, name } = self;
        let leases = inside.leases;
        if leases.names.is_full() {
            return Err(Detour::Kernel);
        }
        let count = leases.handles.load(Relaxed).wrapping_add(1);
        let slot = new.file.slot.load(Relaxed).saturating_sub(1);
        let handle = leases.deferred.new_handle(inside.session, preopened::rank(slot), count);
        let handle = handle.ok_or(Detour::Kernel)?;
        leases.handles.store(count, Relaxed);
        let entry = Entry {
            perm: new.perm as u16,
            umask: new.umask as u16,
            slot: new.slot + 1,
            flags: new.flags as u32,
            handle,
            ..inside.stamped(Change::Make, lease, name)
        };
        let touch = inside.last(lease).filter(|last| last.change == Change::Touch);
        if touch.is_none() || !inside.replace(&entry) {
            inside.post(&entry).map_err(|Ordinary| Detour::Kernel)?;
        }
        leases.names.insert(lease, &name, Known::Own);
        leases.deferred.opens(inside.session, handle);
        if new.flags & libc::O_APPEND != 0 {
            new.file.set(FileBits::AT_END);
        }
        new.file.handle.store(handle, Relaxed);
        new.file.session.store(inside.session.number, Release);
        Ok(())
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Leases {
    /// What is known about a name.
    pub(crate) fn ask(&'static self, session: &'static Session, at: &At<'_>) -> Says {
        let Some(inside) = self.enter(session) else { return Says::Nothing };
        let Some((lease, name)) = inside.find(at) else { return Says::Nothing };
        match inside.leases.names.get(lease, &name) {
            None => Says::Absent(Claim { inside, lease, name }),
            Some(_) => Says::Exists,
        }
    }

    /// Whether a lease says that a path leads to nothing.
    #[inline]
    pub(crate) fn is_absent(&'static self, session: &'static Session, at: &At<'_>) -> bool {
        matches!(self.ask(session, at), Says::Absent(_))
    }

    /// A file is about to be opened or made longer or shorter by its path: it may be one that was
    /// made under a lease, and what the service shows of it would miss what is streamed about it.
    #[inline]
    pub(crate) fn meets(&'static self, session: &'static Session) {
        if self.session.load(Relaxed) == session.number {
            self.meet();
        }
    }

    /// `unlink`. `None`: the ordinary way.
    pub(crate) fn unlink(
        &'static self,
        session: &'static Session,
        at: &At<'_>,
    ) -> Option<Outcome<()>> {
        let inside = self.enter(session)?;
        let (lease, name) = inside.find(at)?;
        match inside.known(lease, &name) {
            None => return Some(Err(Errno::ENOENT.into())),
            Some(Known::Other) => {
                let message = Message { flags: LEASED, ..Message::new(Op::Unlink) };
                let done = call::paths(session, message, (at.dir, at.path), (at.dir, b""));
                return Some(done.map(|_| inside.leases.names.remove(lease, &name)));
            }
            Some(Known::Own | Known::Sole) => {}
        }
        let made =
            |last: &Entry| last.change == Change::Make && last.slot == 0 && last.name == name;
        let vain = inside.last(lease).filter(made);
        let touch = inside.stamped(Change::Touch, lease, ShortName::default());
        if vain.is_none() || !inside.replace(&touch) {
            inside.post(&Entry { change: Change::Unlink, name, ..touch }).ok()?;
        }
        inside.leases.names.remove(lease, &name);
        Some(Ok(()))
    }

    /// `rename` with `RENAME_NOREPLACE` or no flags: what the reply says of directories. `None`:
    /// the ordinary way.
    pub(crate) fn rename(
        &'static self,
        session: &'static Session,
        from: &At<'_>,
        to: &At<'_>,
        replace: bool,
    ) -> Option<Outcome<NameEffects>> {
        let inside = self.enter(session)?;
        let ((lease, name), (lease2, name2)) = (inside.find(from)?, inside.find(to)?);
        if lease != lease2 || name == name2 {
            return None;
        }
        let names = &inside.leases.names;
        let target = inside.known(lease, &name2);
        match (inside.known(lease, &name), target) {
            (None, _) => return Some(Err(Errno::ENOENT.into())),
            (Some(_), Some(_)) if !replace => return Some(Err(Errno::EEXIST.into())),
            // Perhaps names of one file: then nothing happens.
            (Some(Known::Other), Some(Known::Other)) => return None,
            (known, target)
                if known.into_iter().chain(target).any(|known| known == Known::Other) =>
            {
                let flags = LEASED | if replace { 0 } else { libc::RENAME_NOREPLACE };
                let message = Message { flags, ..Message::new(Op::Rename) };
                let done = call::paths(session, message, (from.dir, from.path), (to.dir, to.path));
                return Some(done.map(|reply| {
                    names.rename(lease, &name, &name2);
                    NameEffects::from_bits_retain(reply.value[0])
                }));
            }
            (Some(_), _) => {}
        }
        let made = |last: &Entry| last.change == Change::Make && last.name == name;
        let fresh = inside.last(lease).filter(|last| target.is_none() && made(last));
        let moved = Entry { name2, ..inside.stamped(Change::Rename, lease, name) };
        let renamed =
            |last: Entry| inside.replace(&Entry { name: name2, time: moved.time, ..last });
        if !fresh.is_some_and(renamed) {
            inside.post(&moved).ok()?;
        }
        names.rename(lease, &name, &name2);
        Some(Ok(NameEffects::empty()))
    }

    /// A name in the directory of `at` was changed the ordinary way. A process that keeps doing so
    /// asks for a lease; where the name was `removed`, others may be next.
    #[inline]
    pub(crate) fn changed(&'static self, session: &'static Session, at: &At<'_>, removed: bool) {
        let (dir, _) = split(at.path);
        if self.benefit.count(at.dir, hash(dir)) && config::leases() {
            self.ask_for(session, (at.dir, dir), removed);
        }
    }

    /// A call of this process ended the leases: it removed a leased directory. They were worth
    /// their while if more was streamed than it takes to ask for one.
    pub(crate) fn gave_up(&'static self, session: &'static Session) {
        let Some(inside) = self.lock(session) else { return };
        if self.session.load(Relaxed) == session.number && session.channel.stream().is_shut() {
            inside.over(CHANGES);
        }
    }

    /// A directory was made. A program that unpacks a tree fills it at once: a process whose leases
    /// paid off asks for the next one before the directory's first file.
    pub(crate) fn made_dir(&self, at: &At<'_>) {
        let path = at.path.strip_suffix(b"/").unwrap_or(at.path);
        self.benefit.made(at.dir, hash(path));
    }

    /// A directory was listed, whose handle or path `at` is. Who removes a tree empties it next: a
    /// process whose leases were worth their while asks for one before the directory's first file.
    pub(crate) fn listed_dir(&self, at: &At<'_>) {
        let path = at.path.strip_suffix(b"/").unwrap_or(at.path);
        self.benefit.listed(at.dir, hash(path));
    }

    /// A file is about to be made in the directory of `at`: where that is new, under a lease if
    /// there is one to be had. Whether there is.
    pub(crate) fn enters_new(&'static self, session: &'static Session, at: &At<'_>) -> bool {
        self.benefit.has_made() && self.begins(session, at, Benefit::enters, false)
    }

    /// A name in the directory of `at` is about to be removed: as above, where that was just
    /// listed.
    pub(crate) fn empties_listed(&'static self, session: &'static Session, at: &At<'_>) -> bool {
        self.benefit.has_listed() && self.begins(session, at, Benefit::empties, true)
    }

    /// Asks for a lease on the directory of `at` if that was expected; whether there is one.
    fn begins(
        &'static self,
        session: &'static Session,
        at: &At<'_>,
        is_expected: impl FnOnce(&Benefit, u64, u64) -> bool,
        tell_sole: bool,
    ) -> bool {
        let (dir, _) = split(at.path);
        let expected = config::leases() && is_expected(&self.benefit, at.dir, hash(dir));
        if expected {
            self.ask_for(session, (at.dir, dir), tell_sole);
        }
        expected && self.session.load(Relaxed) == session.number
    }

    #[cold]
    fn ask_for(
        &'static self,
        session: &'static Session,
        (start, path): (u64, &[u8]),
        tell_sole: bool,
    ) {
        let Some(inside) = self.lock(session) else { return };
        let had = self.session.load(Relaxed);
        if had != 0 && (had != session.number || session.channel.stream().is_shut()) {
            inside.ended();
        }
        let place = |afresh: bool, data: bool, lease: u8| {
            if afresh {
                self.of_stream.store(session.number, Relaxed);
                inside.clear_ring();
                self.data.store(data, Relaxed);
                // One too many: we ended the others ourselves, nobody was in the way.
                let own = self.session.load(Relaxed) != 0;
                own.then(|| self.benefit.judge(true));
                self.streamed.store(0, Relaxed);
                self.held.iter().for_each(Held::clear);
                self.names.clear();
                self.meet();
                self.none_opened.store(true, SeqCst);
            }
            self.held.get(lease as usize)
        };
        session.channel.stream().believe(true);
        let fits = path.len() <= held::PATH_BYTES_MAX;
        let granted = fits
            && call::lease(session, (start, path), tell_sole, |granted| match granted {
                call::Granted::Lease { lease, afresh, data } => {
                    place(afresh, data, lease).is_some_and(|held| held.set(start, path))
                }
                call::Granted::Name { lease, name, sole } => {
                    let known = if sole { Known::Sole } else { Known::Other };
                    ShortName::new(name).is_some_and(|name| self.names.insert(lease, &name, known))
                }
            });
        match granted {
            true => self.session.store(session.number, Relaxed),
            // What is half known is not known.
            false => inside.ended(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
        assert_eq!(split(b"a/"), (&b"a"[..], &b""[..]));
    }
}
