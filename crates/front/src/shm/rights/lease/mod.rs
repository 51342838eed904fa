//! A session's leases: what its client may change unasked, and the stream by which it tells.
//!
//! ```text
//!  client: Op::Lease ─► grant ─► gate open ··· entries ··· Op::… or anybody else comes near
//!                                                             │
//!                                        settle / revoke ◄────┘  claim, apply in order
//! ```
//!
//! # Invariants
//!
//! - Before a request of this session is served, and before anybody else sees a leased directory or
//!   a file of the session's slots, all that the client streamed before has been applied.
//! - The gate is open only while there is a lease, or while files may be on loan whose client
//!   writes by the stream what it was not lent (`docs/design/client-cache.md`). When
//!   [`Holder::revoke`] returns it is shut.
//! - Room for as many new names as entries fit into the stream, and for all the data that fits, is
//!   set aside while the gate is open: what the client was allowed to stream does not fail for want
//!   of room. While more is dirty than may be, there are no leases: who writes must wait.
//! - An entry is a claim: it is applied with the client's own rights, in a directory that is leased
//!   to it, or not at all. One that fails is counted and harms nobody but its client. Unless the
//!   client knows to ask for it, the next fsync tells, and its file's handle is `EIO` from then on.
//!
//! # Locking
//!
//! `state` is held over VFS calls, which take locks of the leased directory and of what is below.
//! So nobody may come here with a lock of the VFS held, and streamed calls never end a lease or a
//! loan.

mod apply;
mod deferred_errors;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polylane_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use polylane_base::sync::thread::{self, ThreadId};
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Errno, Result, Time};
use polylane_ipc::message::SOLE;
use polylane_ipc::stream::{
    Change, DATA_BYTES, ENTRIES, Entry, LEASES_MAX, NAME_BYTES_MAX, position_after,
};
use polylane_vfs::{Holder, Leased, Look, Node, OpCtx, PathError};

use self::apply::Moment;
use self::deferred_errors::DeferredErrors;
use super::locks::LockLoans;
use super::shown::Shown;
use super::view::{Stream, Viewing, Views};
use crate::shm::connection::Connection;
use crate::shm::files::OpenFiles;

/// Longest list of names that goes with a lease: a client's table has no room for more.
const NAMES_MAX: usize = 1024;

/// Entries applied until the client may use their places again.
const STRIDE: usize = 32;

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

/// The leases of one session. Thread-safe.
pub(super) struct Leases {
    state: Mutex<State>,
    /// Entries applied so far, for a look without the lock.
    applied: AtomicU32,
    /// Whether the gate is open.
    open: AtomicBool,
    /// Counts ends of leases: a grant that overlapped one is void.
    ends: AtomicU64,
    /// What kept entries from being applied.
    errors: DeferredErrors,
    /// The thread that applies the stream just now. A leaf.
    applier: Mutex<Option<ThreadId>>,
    /// What ends them when others come near.
    holder: Weak<dyn Holder>,
}

impl Leases {
    /// None yet; `holder` is asked to give those up that are granted.
    pub(super) fn new(holder: Weak<dyn Holder>) -> Leases {
        Leases {
            state: Mutex::default(),
            applied: AtomicU32::new(0),
            open: AtomicBool::new(false),
            ends: AtomicU64::new(0),
            errors: DeferredErrors::default(),
            applier: Mutex::default(),
            holder,
        }
    }
}

/// The leases of a session with what a call works on: entries of the stream change names, open
/// files and files on loan.
#[derive(Clone, Copy)]
pub(super) struct Holding<'a> {
    pub(super) leases: &'a Leases,
    pub(super) views: &'a Views,
    pub(super) shown: &'a Shown,
    pub(super) locks: &'a LockLoans,
    pub(super) connection: &'a Connection,
    pub(super) files: &'a OpenFiles,
}

impl Holding<'_> {
    /// The views of the session, which have its stream from here.
    pub(super) fn viewing(&self) -> Viewing<'_> {
        let Holding { views, shown, locks, connection, files, .. } = *self;
        Viewing { views, shown, locks, connection, files, stream: self }
    }
}

impl Stream for Holding<'_> {
    fn settle_loans(&self) {
        Holding::settle_loans(self);
    }

    fn open(&self) -> bool {
        self.open_stream()
    }
}

#[derive(Default)]
struct State {
    dirs: [Option<Leased>; LEASES_MAX as usize],
    /// Entries claimed so far.
    claimed: u32,
    /// Room that is set aside.
    room: u32,
    /// Blocks that are set aside for data.
    blocks: u64,
    /// The gate is open for writes to files on loan, whether or not there are leases.
    streams: bool,
    /// Positions of the last entries that were refused, because somebody had met their file by
    /// then. Each thread of the client asks that has a part in one.
    refused: VecDeque<u32>,
    /// The session ended.
    closed: bool,
    /// Time of the last applied entry.
    last: i64,
    entries: Vec<Entry>,
}

/// A lease as the client is told of it.
pub(in crate::shm) struct Granted {
    /// Its number.
    pub(in crate::shm) lease: u8,
    /// All leases that the client had before are over.
    pub(in crate::shm) afresh: bool,
    /// What is written to new files may be streamed.
    pub(in crate::shm) data: bool,
    /// Every name of the directory that fits into an entry, each after its length in one byte, and
    /// [`SOLE`] there.
    pub(in crate::shm) names: Vec<u8>,
    /// How many.
    pub(in crate::shm) count: usize,
}

/// An entry that was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Undone {
    /// Its file had been met, or was on loan no more: who posted it knows, asks for it, and has it
    /// done by a request. Or there was nothing to do.
    Refused,
    /// Nothing was done, for there is no such file. A client that does not ask is told by the next
    /// sync.
    Nowhere,
    /// Perhaps a part was done. Nobody asks: the next sync tells this.
    Failed(Errno),
}

impl Undone {
    /// Why a change was not made.
    fn of(change: Change, error: PathError) -> Undone {
        let errno = match error {
            PathError::Errno(errno) => errno,
            PathError::Leaves => Errno::EIO,
        };
        match (change, errno) {
            (Change::Write | Change::Set, Errno::EPERM | Errno::EBUSY) => Undone::Refused,
            (Change::Write | Change::Set, Errno::EBADF) => Undone::Nowhere,
            (Change::Close, Errno::EPERM | Errno::EBADF) => Undone::Refused,
            (_, Errno::EROFS | Errno::ENOSPC | Errno(libc::EUCLEAN)) => Undone::Failed(errno),
            _ => Undone::Failed(Errno::EIO),
        }
    }
}

impl Holding<'_> {
    /// What was streamed and could not be done is told to who asks for durability, once.
    pub(super) fn streamed_well(&self) -> Result<()> {
        self.leases.errors.take()
    }

    /// Applies what the client streamed so far. Two loads when that is nothing.
    #[inline]
    pub(super) fn settle(&self) {
        if self.leases.open.load(Ordering::Acquire)
            && self
                .connection
                .channel
                .stream()
                .is_waiting(self.leases.applied.load(Ordering::Acquire))
        {
            self.with_leases(|state| self.apply_all(state));
        }
    }

    /// Does `work` with the state locked. What lost its last name by it gives up what nobody uses
    /// afterwards: that may lead to other sessions, and back.
    fn with_leases<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = work(&mut self.leases.state.lock());
        self.connection.lane.vfs.tell_nameless();
        done
    }

    /// Grants a lease on the directory of a path below a node, and says of its names whether they
    /// are sole where that is wanted. `None`, `EAGAIN`: not now; these and the other errors are
    /// those of [`Vfs::lease`](polylane_vfs::Vfs::lease).
    pub(super) fn grant(
        &self,
        path: (&Node, &[u8]),
        look: Look,
    ) -> Result<Option<Granted>, PathError> {
        let ends = self.leases.ends.load(Ordering::SeqCst);
        let mut names = Vec::new();
        let (mut count, mut all) = (0, 0);
        let holder = self.leases.holder.clone();
        let vfs = &self.connection.lane.vfs;
        let leased = vfs.lease(&self.connection.ctx(), path, holder, look, &mut |name, sole| {
            all += 1;
            if name.len() <= NAME_BYTES_MAX {
                names.push(name.len() as u8 | if sole { SOLE } else { 0 });
                names.extend_from_slice(name);
                count += 1;
            }
            all < NAMES_MAX
        })?;
        let Some(leased) = leased else { return Ok(None) };
        // A grant that somebody ended meanwhile is void: the list may be old.
        self.with_leases(|state| {
            let current = self.leases.ends.load(Ordering::SeqCst) == ends;
            if current && state.dirs.iter().all(Option::is_some) {
                self.end_all(state);
            }
            let afresh = !state.has_leases();
            let place = state.dirs.iter().position(Option::is_none);
            match place.filter(|_| current && !state.closed && self.make_room(state)) {
                Some(place) => {
                    state.dirs[place] = Some(leased);
                    self.open_gate(state);
                    let (lease, data) = (place as u8, state.blocks > 0);
                    Ok(Some(Granted { lease, afresh, data, names, count }))
                }
                None => {
                    vfs.end_lease(&leased);
                    self.give_room_back(state);
                    Err(Errno::EAGAIN.into())
                }
            }
        })
    }

    /// Does `work` as the holder of a lease on `dir`, who keeps account of its names, or as anybody
    /// where there is no such lease. What would end leases, such as the rename of a directory, a
    /// holder cannot do as such (`EISDIR`). [`Vfs::lost_a_name`](polylane_vfs::Vfs::lost_a_name) is
    /// to be told of what lost a name, as after any streamed call.
    pub(super) fn as_holder<T>(
        &self,
        ctx: &OpCtx<'_>,
        dir: Option<&Node>,
        work: impl Fn(&OpCtx<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(dir) = dir else { return work(ctx) };
        let mut state = self.leases.state.lock();
        if state.dirs.iter().flatten().any(|leased| Arc::ptr_eq(leased.dir(), dir)) {
            // Times of a directory do not go back.
            state.last = state.last.max(self.now());
            match work(&OpCtx { streamed: true, ..*ctx }) {
                Err(Errno::EISDIR) => {}
                done => return done,
            }
        }
        drop(state);
        work(ctx)
    }

    /// Whether there is a lease just now.
    pub(super) fn has_leases(&self) -> bool {
        self.leases.state.lock().has_leases()
    }

    /// Lets the client stream writes to files on loan, if it does not yet. Not while it may believe
    /// in leases that it has no more, and not while writes must wait.
    pub(super) fn open_stream(&self) -> bool {
        let mut state = self.leases.state.lock();
        if !state.streams {
            let vfs = &self.connection.lane.vfs;
            let misled = !state.has_leases() && self.connection.channel.stream().believes();
            if state.closed || misled || vfs.write_may_wait(DATA_BYTES) {
                return false;
            }
            if !self.make_room(&mut state) || state.blocks == 0 {
                self.give_room_back(&mut state);
                return false;
            }
            vfs.begin_streaming(self.connection.id, self.leases.holder.clone());
            state.streams = true;
            self.open_gate(&mut state);
        }
        true
    }

    /// Whether an entry was refused: what it was to do was not done.
    pub(super) fn was_refused(&self, position: u32) -> bool {
        self.leases.state.lock().refused.contains(&position)
    }

    /// Applies what the client wrote to a file on loan, before another client sees it. The thread
    /// that applies the stream already comes here by the file's last close, which is the last entry
    /// that names the file.
    pub(super) fn settle_loans(&self) {
        if *self.leases.applier.lock() != Some(thread::current().id()) {
            self.settle();
        }
    }

    /// No lease from now on: the session is over.
    pub(super) fn end(&self) {
        self.leases.state.lock().closed = true;
        self.revoke();
    }

    /// Ends all leases, and the stream.
    pub(super) fn revoke(&self) {
        self.leases.ends.fetch_add(1, Ordering::SeqCst);
        self.with_leases(|state| {
            if state.streams || state.has_leases() {
                self.end_all(state);
            }
        });
    }

    /// Opens the gate, unless it is.
    fn open_gate(&self, state: &mut State) {
        if !self.leases.open.load(Ordering::Acquire) {
            state.last = self.now();
            // First: who is told of a file as soon as something can be posted looks at the stream.
            self.leases.open.store(true, Ordering::SeqCst);
            self.connection.channel.stream().open(state.claimed);
        }
    }

    /// Sets room aside for a whole stream.
    fn make_room(&self, state: &mut State) -> bool {
        let vfs = &self.connection.lane.vfs;
        let missing = ENTRIES - state.room;
        if missing > 0 && vfs.reserve_names(missing).is_err() {
            return false;
        }
        state.room = ENTRIES;
        let blocks = vfs.blocks_for(DATA_BYTES as u64, ENTRIES.into()).unwrap_or(0);
        let missing = blocks - state.blocks;
        let made = missing == 0 || vfs.reserve_blocks(missing).is_ok();
        if made {
            state.blocks = blocks;
        }
        made
    }

    /// Gives the room back unless it is needed.
    fn give_room_back(&self, state: &mut State) {
        if !state.streams && !state.has_leases() {
            self.connection.lane.vfs.release_names(std::mem::take(&mut state.room));
            self.connection.lane.vfs.release_blocks(std::mem::take(&mut state.blocks));
        }
    }

    /// Applies all that waits. Where room cannot be made anew, or too much is dirty, leases end.
    fn apply_all(&self, state: &mut State) {
        let honest = self.apply_waiting(state);
        if !state.streams && !state.has_leases() {
            // A thread that waited for the state finds that they ended meanwhile.
            self.finish(state);
            return self.give_room_back(state);
        }
        let more = honest && !self.connection.lane.vfs.write_may_wait(DATA_BYTES);
        if more && self.make_room(state) {
            self.finish(state);
        } else {
            self.end_all(state);
        }
    }

    fn finish(&self, state: &State) {
        self.leases.applied.store(state.claimed, Ordering::Release);
        self.connection.channel.stream().finish(state.claimed);
    }

    /// Claims and applies. False for a client that broke the rules: its gate is shut.
    fn apply_waiting(&self, state: &mut State) -> bool {
        let mut entries = std::mem::take(&mut state.entries);
        let former = state.claimed;
        let claimed = self.connection.channel.stream().claim(state.claimed, &mut entries);
        let _applier = Applier::is_this(&self.leases.applier);
        let count = entries.len();
        state.claimed = claimed.unwrap_or(state.claimed);
        for (left, entry) in (0..entries.len()).rev().zip(entries.drain(..)) {
            let time = entry.time.clamp(state.last, self.now().max(state.last));
            state.last = time;
            if left > 0 && left.is_multiple_of(STRIDE) && self.make_room(state) {
                self.connection
                    .channel
                    .stream()
                    .finish(state.claimed.wrapping_sub(left as u32 + 1));
            }
            let moment = Moment(time);
            let ctx = OpCtx { streamed: true, clock: Some(&moment), ..self.connection.ctx() };
            // A panic is a bug of ours; it costs this entry.
            let apply = AssertUnwindSafe(|| self.apply(state, &ctx, &entry, time));
            let done = catch_unwind(apply).unwrap_or(Err(PathError::Errno(Errno::EIO)));
            self.connection.stats.streamed(done.is_ok());
            match done.map_err(|error| Undone::of(entry.change, error)) {
                Ok(()) => {}
                Err(Undone::Refused) => state.refuse(position_after(former, count - 1 - left)),
                Err(Undone::Nowhere) => {
                    self.leases.errors.note(self.files, Errno::EIO);
                    state.refuse(position_after(former, count - 1 - left));
                }
                Err(Undone::Failed(errno)) => self.leases.errors.note(self.files, errno),
            }
        }
        state.entries = entries;
        claimed.is_ok()
    }

    fn end_all(&self, state: &mut State) {
        let stream = self.connection.channel.stream();
        stream.shut();
        self.apply_waiting(state);
        self.finish(state);
        self.leases.open.store(false, Ordering::Release);
        for leased in state.dirs.iter_mut().filter_map(Option::take) {
            self.connection.lane.vfs.end_lease(&leased);
        }
        if std::mem::take(&mut state.streams) {
            self.connection.lane.vfs.end_streaming(self.connection.id);
        }
        self.give_room_back(state);
    }

    fn now(&self) -> i64 {
        let Time { sec, nsec } = self.connection.lane.vfs.now();
        sec.saturating_mul(SECOND).saturating_add(nsec.into())
    }
}

/// The calling thread applies the stream, as long as this lives.
struct Applier<'a>(&'a Mutex<Option<ThreadId>>);

impl Applier<'_> {
    fn is_this(place: &Mutex<Option<ThreadId>>) -> Applier<'_> {
        *place.lock() = Some(thread::current().id());
        Applier(place)
    }
}

impl Drop for Applier<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl State {
    fn refuse(&mut self, position: u32) {
        self.refused.truncate(ENTRIES as usize - 1);
        self.refused.push_front(position);
    }

    fn has_leases(&self) -> bool {
        self.dirs.iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_is_told() {
        use Change::{Close, Make, Rename, Set, Unlink, Write};
        let of = |change, errno: Errno| Undone::of(change, errno.into());
        for errno in [Errno::ENOENT, Errno::EEXIST, Errno::EPERM, Errno::EBUSY, Errno::ENOMEM] {
            for change in [Make, Rename, Unlink] {
                assert_eq!(of(change, errno), Undone::Failed(Errno::EIO));
            }
        }
        for change in [Write, Set] {
            assert_eq!(of(change, Errno::EPERM), Undone::Refused);
            assert_eq!(of(change, Errno::EBUSY), Undone::Refused);
            assert_eq!(of(change, Errno::EBADF), Undone::Nowhere);
            assert_eq!(of(change, Errno::ENOSPC), Undone::Failed(Errno::ENOSPC));
        }
        assert_eq!(of(Close, Errno::EBADF), Undone::Refused);
    }
}
