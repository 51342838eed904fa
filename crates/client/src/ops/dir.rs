//! Directory streams: opendir, readdir and their kin.
//!
//! A stream that was opened by its path has no descriptor at first: the service keeps the directory
//! open, and the answer that opens it brings its first entries. Where a descriptor is asked for
//! (dirfd), where another process or another identity is about to go on with the stream, and where
//! its session is over, the stream *settles*: the kernel opens the directory, by the path that it
//! has by now, and is told how far the stream has come. A stream of a descriptor (fdopendir) is
//! settled from the begin. Its position is the kernel's, whoever reads the entries.
//!
//! # Invariants
//!
//! - Positions are the service's, by either door the same, and stable.
//! - What is buffered here are entries right after those that the program has seen.
//! - A stream that settled means the same directory as before: the inode numbers agree, and the
//!   service keeps the directory's until then.
//!
//! # Locking
//!
//! One lock for each stream, held while the service is asked. As in libc, memory is allocated in
//! opendir, and no function here is async-signal-safe.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::sync::{Mutex, MutexGuard};
use polylane_base::{Errno, record};
use polylane_ipc::message::{
    DIR_ROOT, ENTRY_HEAD_BYTES, EntryHead, LISTED, Message, Op, PATH_BYTES_MAX,
};
use rustix::fs::{SeekFrom, seek};

use super::state::State;
use super::{file, path};
use crate::fd::at::At;
use crate::fd::record::FileBits;
use crate::fd::rings;
use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome, copied, make_room};
use crate::kernel::real;
use crate::session;
use crate::session::Session;
use crate::session::call;

/// Streams at a time; more are libc's.
pub(crate) const STREAMS: usize = 64;
/// Entries that are asked for at a time: what libc asks for.
const BYTES: usize = 32 << 10;
/// Deepest directory whose path is looked for name by name.
const DEPTH_MAX: usize = 256;
/// Turns of looking for the path of a directory that is being moved.
const LOOKS_MAX: u32 = 8;
/// Turns of waiting for a stream in another thread's hands.
const TURNS_MAX: u32 = 10_000;

static TAKEN: [AtomicBool; STREAMS] = [const { AtomicBool::new(false) }; STREAMS];
static LISTINGS: [Mutex<Listing>; STREAMS] = [const { Mutex::new(Listing::NOTHING) }; STREAMS];

/// One stream.
struct Listing {
    /// Its descriptor, once it has settled; -1: none.
    fd: RawFd,
    /// The session that the handle belongs to; 0: none.
    session: u32,
    lane: LaneNumber,
    handle: u64,
    ino: u64,
    /// The directory's path from the root of the lane when it was opened.
    path: Vec<u8>,
    /// The position after the last entry that the program has seen.
    position: u64,
    entries: Vec<u8>,
    /// Where the next one starts.
    at: usize,
    /// None come after these.
    ended: bool,
}

/// An entry.
pub(crate) struct Entry<'a> {
    pub(crate) ino: u64,
    pub(crate) next: i64,
    pub(crate) len: u16,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The record at the start of `bytes`; `None`: it is none.
    fn parse(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let head = record::get::<EntryHead>(bytes, 0)?;
        let (ino, next, len) = (head.ino.get(), head.next.get().cast_signed(), head.len.get());
        let name = bytes.get(ENTRY_HEAD_BYTES..usize::from(len))?;
        let end = name.iter().position(|&byte| byte == 0)?;
        Some(Entry { ino, next, len, kind: head.kind, name: &name[..end] })
    }

    /// All from the start of `bytes` on.
    fn each(mut bytes: &'a [u8]) -> impl Iterator<Item = Entry<'a>> {
        std::iter::from_fn(move || {
            let entry = Entry::parse(bytes)?;
            bytes = bytes.get(usize::from(entry.len)..).unwrap_or_default();
            Some(entry)
        })
    }
}

/// Gives a handle back. The message reaches no service only where the session is over.
fn give_back(session: &'static Session, handle: u64) {
    let _ = session.post(&Message { handle, ..Message::new(Op::Close) });
}

/// A stream that is being made; dropped, it is nobody's again.
struct New(usize);

impl New {
    fn claim() -> Outcome<New> {
        let free = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
        TAKEN.iter().position(free).map(New).ok_or(Detour::Kernel)
    }

    fn keep(self) -> usize {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for New {
    fn drop(&mut self) {
        TAKEN[self.0].store(false, Ordering::Release);
    }
}

/// `opendir`, as seen from the directory `dir`: the stream's number.
pub(crate) fn open(state: &'static State, dir: RawFd, path: &[u8]) -> Outcome<usize> {
    let (session, at) = path::at(state, dir, path)?;
    if rings::any() {
        return Err(Detour::Kernel);
    }
    let new = New::claim()?;
    LISTINGS[new.0].lock().open(state, session, &at, (dir, path))?;
    Ok(new.keep())
}

/// `fdopendir`
pub(crate) fn open_fd(state: &'static State, fd: RawFd) -> Outcome<usize> {
    if is_listed_by_kernel(state, fd) {
        return Err(Detour::Kernel);
    }
    let directory = file::find(state, fd)?;
    if !directory.is(FileBits::DIRECTORY) || rings::any() {
        return Err(Detour::Kernel);
    }
    let new = New::claim()?;
    let position = seek(real::borrow(fd), SeekFrom::Current(0))?;
    LISTINGS[new.0].lock().begin(fd, position);
    Ok(new.keep())
}

/// `readdir`: `put` is given the next entry. False: there are no more.
pub(crate) fn next(
    state: &'static State,
    stream: usize,
    mut put: impl FnMut(&Entry<'_>),
) -> Outcome<bool> {
    let mut listing = LISTINGS[stream].lock();
    if listing.at == listing.entries.len() && (listing.ended || !listing.fill(state)?) {
        return Ok(false);
    }
    let Listing { entries, at, position, .. } = &mut *listing;
    let entry = Entry::parse(&entries[*at..]).ok_or(Errno::EIO)?;
    put(&entry);
    (*at, *position) = (*at + usize::from(entry.len), entry.next as u64);
    Ok(true)
}

/// `getdents64`: as many entries of a directory as fit.
pub(crate) fn entries(state: &'static State, fd: RawFd, into: &mut [u8]) -> Outcome<usize> {
    if is_listed_by_kernel(state, fd) {
        return Err(Detour::Kernel);
    }
    take(state, fd, into).map(|(count, _)| count)
}

/// `telldir`
pub(crate) fn tell(stream: usize) -> i64 {
    LISTINGS[stream].lock().position as i64
}

/// `seekdir` and `rewinddir`
pub(crate) fn go_to(stream: usize, position: i64) -> Outcome<()> {
    let mut listing = LISTINGS[stream].lock();
    let (fd, position) = (listing.fd, position as u64);
    listing.forget_entries();
    listing.position = position;
    if fd >= 0 {
        seek(real::borrow(fd), SeekFrom::Start(position))?;
    }
    Ok(())
}

/// `dirfd`
pub(crate) fn descriptor(state: &'static State, stream: usize) -> Outcome<RawFd> {
    let mut listing = LISTINGS[stream].lock();
    listing.settle(state)?;
    Ok(listing.fd)
}

/// `closedir`: the descriptor that is to be closed, if it has one.
pub(crate) fn close(state: &'static State, stream: usize) -> Option<RawFd> {
    let mut listing = LISTINGS[stream].lock();
    listing.let_go(state);
    let fd = listing.fd;
    drop(listing);
    drop(New(stream));
    (fd >= 0).then_some(fd)
}

/// Before another process, or this one as somebody else, may go on with the streams of this one.
pub(crate) fn settle_all(state: &'static State) {
    for (taken, listing) in TAKEN.iter().zip(&LISTINGS) {
        if !taken.load(Ordering::Acquire) {
            continue;
        }
        let mut turns = 0..TURNS_MAX;
        let listing = turns.find_map(|_| listing.try_lock().or_else(give_way));
        if let Some(mut listing) = listing.filter(|listing| listing.session != 0) {
            // What cannot be opened by the kernel now is told to who reads on.
            let _ = listing.settle(state);
        }
    }
}

/// Whether the kernel is to list a directory: one that the service need not know of.
fn is_listed_by_kernel(state: &'static State, fd: RawFd) -> bool {
    file::unlearned(state, fd).is_some_and(|lane| lane.kernel.lists())
}

/// The request for entries of a directory from a position on.
fn from(handle: u64, offset: u64, len: usize) -> Message {
    Message { handle, offset, length: len as u64, ..Message::new(Op::Readdir) }
}

/// Takes entries of the directory that `fd` means from where the kernel's position is, which is
/// moved behind them; whether they were the last ones.
fn take(state: &'static State, fd: RawFd, into: &mut [u8]) -> Outcome<(usize, bool)> {
    let directory = file::find(state, fd)?;
    // A process that shares the position may be about to do the same: the kernel gives each entry
    // out once.
    if !directory.is(FileBits::DIRECTORY) || directory.is(FileBits::COMMON) {
        return Err(Detour::Kernel);
    }
    let (session, handle) = file::usable(state, &directory, fd)?;
    let _guard = directory.offset_lock.lock();
    let position = seek(real::borrow(fd), SeekFrom::Current(0))?;
    if position == 0 {
        state.get().lane(session.lane).leases.listed_dir(&At::below(handle));
    }
    let room = into.len().min(BYTES);
    let message = from(handle, position, room);
    let nowhere = (DIR_ROOT, &b""[..]);
    let reply = call::paths_read(session, message, nowhere, nowhere, &mut into[..room])?;
    let count = call::count(&reply).min(room);
    if let Some(last) = Entry::each(&into[..count]).last() {
        seek(real::borrow(fd), SeekFrom::Start(last.next as u64))?;
    }
    Ok((count, reply.value[0] == LISTED))
}

fn give_way<'a>() -> Option<MutexGuard<'a, Listing>> {
    std::thread::yield_now();
    None
}

impl Listing {
    const NOTHING: Listing = Listing {
        fd: -1,
        session: 0,
        lane: LaneNumber::FIRST,
        handle: 0,
        ino: 0,
        path: Vec::new(),
        position: 0,
        entries: Vec::new(),
        at: 0,
        ended: false,
    };

    fn begin(&mut self, fd: RawFd, position: u64) {
        (self.fd, self.session, self.position) = (fd, 0, position);
        self.path.clear();
        self.forget_entries();
    }

    fn forget_entries(&mut self) {
        self.entries.clear();
        (self.at, self.ended) = (0, false);
    }

    fn open(
        &mut self,
        state: &'static State,
        session: &'static Session,
        at: &At<'_>,
        (dir, path): (RawFd, &[u8]),
    ) -> Outcome<()> {
        self.begin(-1, 0);
        // Below another directory it is found when it is wanted.
        if dir == libc::AT_FDCWD || path.starts_with(b"/") {
            session::path::from_root(session.lane, path, &mut self.path)?;
        }
        let message = Message { length: BYTES as u64, ..Message::new(Op::OpenDir) };
        let reply = call::list(session, message, (at.dir, at.path), &mut self.entries)?;
        self.ino = reply.attr.map_or(0, |attr| attr.ino);
        (self.session, self.lane, self.handle) = (session.number, session.lane, reply.handle);
        self.ended = reply.value[0] == LISTED;
        state.get().lane(session.lane).leases.listed_dir(at);
        Ok(())
    }

    /// Asks for more entries; false when there are none.
    fn fill(&mut self, state: &'static State) -> Outcome<bool> {
        self.forget_entries();
        let filled = match self.fd {
            -1 => self.ask(state),
            _ => Err(Detour::Kernel),
        };
        let filled = match filled {
            Err(Detour::Kernel | Detour::Lost(_)) => {
                self.settle(state)?;
                self.fill_settled(state)
            }
            filled => filled,
        };
        match filled {
            // A directory that was removed has no entries.
            Err(Detour::Errno(Errno::ENOENT)) => self.ended = true,
            filled => filled?,
        }
        self.ended |= self.entries.is_empty();
        Ok(!self.entries.is_empty())
    }

    /// Entries by the service, from the position on.
    fn ask(&mut self, state: &'static State) -> Outcome<()> {
        let session = self.own_session(state)?;
        let message = from(self.handle, self.position, BYTES);
        let reply = call::list(session, message, (DIR_ROOT, b""), &mut self.entries)?;
        self.ended = reply.value[0] == LISTED;
        Ok(())
    }

    /// Entries from where the kernel's position is, which is moved behind them.
    fn fill_settled(&mut self, state: &'static State) -> Outcome<()> {
        self.position = seek(real::borrow(self.fd), SeekFrom::Current(0))?;
        self.forget_entries();
        make_room(&mut self.entries, BYTES)?;
        self.entries.resize(BYTES, 0);
        let taken = match take(state, self.fd, &mut self.entries) {
            Err(Detour::Kernel | Detour::Lost(_)) => real::list(self.fd, &mut self.entries)
                .map(|count| (count, false))
                .map_err(Into::into),
            taken => taken,
        };
        self.entries.truncate(taken.map_or(0, |(count, _)| count));
        self.ended = taken?.1;
        Ok(())
    }

    /// The session that keeps the directory open, if it is still the present one.
    fn own_session(&self, state: &'static State) -> Outcome<&'static Session> {
        let session = state.get().lane(self.lane).sessions.present();
        session.filter(|session| session.number == self.session).ok_or(Detour::Kernel)
    }

    /// Gives the handle back.
    fn let_go(&mut self, state: &'static State) {
        if let Ok(session) = self.own_session(state) {
            give_back(session, self.handle);
        }
        self.session = 0;
    }

    /// Has the kernel open the directory, if it has not.
    fn settle(&mut self, state: &'static State) -> Outcome<()> {
        if self.fd >= 0 {
            return Ok(());
        }
        let mut opened = self.open_by_kernel(state);
        for _ in 0..LOOKS_MAX {
            if opened.is_ok() || self.look_for_path(state).is_err() {
                break;
            }
            opened = self.open_by_kernel(state);
        }
        self.fd = opened?;
        let _ = seek(real::borrow(self.fd), SeekFrom::Start(self.position));
        // What is buffered comes again, so that the kernel's position is that after it.
        self.forget_entries();
        self.let_go(state);
        Ok(())
    }

    fn open_by_kernel(&self, state: &'static State) -> Outcome<RawFd> {
        let mut path = [0; PATH_BYTES_MAX + 1];
        let path = config::under_mount(self.lane, &mut path, &self.path)
            .ok_or(Detour::Errno(Errno::EIO))?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let mut opened = Err(Errno::EIO.into());
        let fd = file::opened_by(state, || match real::open_file(path, flags) {
            Ok(fd) => fd,
            Err(error) => {
                opened = Err(Detour::from(error));
                -1
            }
        });
        if fd < 0 {
            return opened;
        }
        match (real::kind_cached(fd), state.get().lane(self.lane).device()) {
            (Ok((device, _, ino)), Ok(mount)) if device == mount && ino == self.ino => Ok(fd),
            _ => {
                file::forget(state, fd);
                real::close_quietly(fd);
                Err(Errno::ENOENT.into())
            }
        }
    }

    /// Finds out where the directory is by now, from itself upwards.
    fn look_for_path(&mut self, state: &'static State) -> Outcome<()> {
        let session = self.own_session(state)?;
        let root = state.get().lane(self.lane).root_ino()?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut here = Step { session, handle: self.handle, ino: self.ino, is_own: false };
        while here.ino != root {
            if names.len() == DEPTH_MAX {
                return Err(Errno::ENAMETOOLONG.into());
            }
            let above = here.parent()?;
            make_room(&mut names, 1)?;
            names.push(above.name_of(here.ino)?);
            here = above;
        }
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        self.path.clear();
        make_room(&mut self.path, bytes + 1)?;
        for name in names.iter().rev() {
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
        }
        if self.path.is_empty() {
            self.path.push(b'.');
        }
        Ok(())
    }
}

/// A directory on the way to the root; its handle is given back with it, if it is its own.
struct Step {
    session: &'static Session,
    handle: u64,
    ino: u64,
    is_own: bool,
}

impl Step {
    fn parent(&self) -> Outcome<Step> {
        let message = Message::new(Op::OpenDir);
        let place = (self.handle, &b".."[..]);
        let reply = call::paths(self.session, message, place, (DIR_ROOT, b""))?;
        let ino = reply.attr.map_or(0, |attr| attr.ino);
        Ok(Step { session: self.session, handle: reply.handle, ino, is_own: true })
    }

    /// The name of a directory in this one.
    fn name_of(&self, ino: u64) -> Outcome<Vec<u8>> {
        let mut message = Message::new(Op::Readdir);
        (message.handle, message.length) = (self.handle, BYTES as u64);
        let mut entries = Vec::new();
        loop {
            call::list(self.session, message, (DIR_ROOT, b""), &mut entries)?;
            let mut last = None;
            for entry in Entry::each(&entries) {
                if entry.ino == ino && !matches!(entry.name, b"." | b"..") {
                    return copied(entry.name);
                }
                last = Some(entry.next as u64);
            }
            message.offset = last.ok_or(Errno::ENOENT)?;
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.is_own {
            give_back(self.session, self.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &[u8], next: i64) -> Vec<u8> {
        let len = (ENTRY_HEAD_BYTES + name.len() + 1).next_multiple_of(8);
        let mut bytes = Vec::new();
        bytes.extend(7_u64.to_ne_bytes());
        bytes.extend(next.to_ne_bytes());
        bytes.extend((len as u16).to_ne_bytes());
        bytes.push(8);
        bytes.extend(name);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn records_are_read_and_what_is_none_is_not() {
        let bytes = [record(b"one", 3), record(b"", -4)].concat();
        let entry = Entry::parse(&bytes).unwrap();
        assert_eq!((entry.ino, entry.next, entry.len, entry.kind), (7, 3, 24, 8));
        assert_eq!(entry.name, b"one");
        let entry = Entry::parse(&bytes[24..]).unwrap();
        assert_eq!((entry.next, entry.name), (-4, &b""[..]));
        for len in 0..24 {
            assert!(Entry::parse(&bytes[..len]).is_none(), "{len}");
        }
        for len in [0, 1, 18, 19, 25, 5000] {
            let mut bytes = record(b"one", 3);
            bytes[16..18].copy_from_slice(&u16::to_ne_bytes(len));
            assert!(Entry::parse(&bytes).is_none(), "{len}");
        }
    }
}
