//! The channel to a lane's service: made at the first path under its mount, dropped if it fails.
//!
//! # Invariants
//!
//! - At most one thread connects at a time; the others use the kernel path meanwhile.
//! - A session that was lost is never used again. The next one is tried a second later at the
//!   earliest.
//! - Sessions are never freed: a call may be under way in any thread. A process family that went
//!   through all that there are in `made` (forks of forks, changes of user, service restarts) stays
//!   on the kernel path, but for its locks (see `ops::one_shot`).
//!
//! # Locking
//!
//! None; see `boxes` for how a thread owns its mailboxes.

mod alive;
pub(crate) mod boxes;
pub(crate) mod call;
pub(crate) mod emergency;
mod handshake;
pub(crate) mod identity;
mod made;
mod mailbox;
mod mark;
pub(crate) mod mounts;
pub(crate) mod namespace;
pub(crate) mod owners;
pub(crate) mod path;

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use polylane_base::{Errno, Result};
use polylane_ipc::layout::MAILBOXES_MAX;
use polylane_ipc::message::{Message, Op};
use polylane_ipc::{ClientChannel, MailboxIndex};
use polylane_sys::notice::Notice;
use polylane_sys::scm;
use zerocopy::{FromZeros, IntoBytes};

pub(crate) use self::alive::Alive;
pub(crate) use self::made::{made_from, of};
pub(crate) use self::mailbox::Mailbox;
use self::mailbox::{Holds, Own};
pub(crate) use self::mark::Mark;
use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::reserved;
use crate::kernel::thread;
use crate::session::boxes::{AWAITED, BOXES, Boxes, UNAWAITED};
use crate::session::emergency::{Reserve, is_owed};
use crate::session::handshake::Welcomed;

/// How long the next service may take to come up after one that died, in seconds: as long as a
/// volume's journal may take to be replayed.
const NEXT_SECONDS: i64 = 30;
/// Pause between looks for it.
const NEXT_PAUSE: Duration = Duration::from_millis(5);
/// Looks for answers that are awaited before a session is left, and the pause between them.
const ANSWER_LOOKS: u32 = 1000;
const ANSWER_PAUSE: Duration = Duration::from_micros(100);
/// Pause between looks whether another thread has connected.
const CONNECTION_PAUSE: Duration = Duration::from_micros(100);
/// Seconds between attempts to connect.
const RETRY_SECONDS: i64 = 1;

/// One connection to the service of a lane.
pub(crate) struct Session {
    /// Its place in `SESSIONS` plus one; 0: it has none.
    pub(crate) number: u32,
    pub(crate) lane: LaneNumber,
    pub(crate) channel: ClientChannel,
    /// Names this session's slots.
    pub(crate) token: [u8; 16],
    /// Attributes of statx that files of the lane are known to have, or not to have.
    pub(crate) attributes: u32,
    /// Directories with something else mounted on them, without leading slash.
    pub(crate) covered: Vec<Vec<u8>>,
    /// Tells of mounts at the lane, where this process has an attachment of its own.
    notice: Option<Notice>,
    socket: RawFd,
    /// Those of the process that made it.
    sessions: &'static Sessions,
    /// The process that made it: one that was forked from it has sessions of its own, and not this
    /// one's channel in its memory.
    pid: i32,
    /// The memory that the channel is mapped in.
    memory: u32,
    lost: AtomicBool,
    reserve: Reserve,
    /// Requests posted so far, by mailbox.
    posts: Box<[AtomicU32]>,
}

/// The session of a lane that was made last, if this process made it and uses it.
fn last(lane: LaneNumber) -> Option<&'static Session> {
    let last = made_from(1, lane).next_back();
    last.filter(|session| session.is_own() && !session.is_lost())
}

/// Which session of a lane is the present one. Zero is "none".
#[derive(FromZeros)]
pub(crate) struct Sessions {
    /// The lane's place.
    lane: AtomicU32,
    current: AtomicU32,
    connecting: AtomicBool,
    /// How often a session was wanted and there was none.
    wanted: AtomicU32,
    /// Second of the monotonic clock before which nothing is tried.
    retry_at: AtomicI64,
    /// This process's secret; 0: none yet.
    key: AtomicU64,
    /// Requests so far that must be done once.
    turns: AtomicU32,
    /// How often a session was left.
    leaves: AtomicU32,
    /// Tells this process's memory from that of its ancestors back to the last exec.
    memory: AtomicU32,
}

/// Why there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoSession {
    /// There may be one later.
    Later,
    /// This process has just found out that it gets none any more: see [`leave`](namespace::leave)
    /// and [`leave_home`](namespace::leave_home).
    Never,
}

impl Sessions {
    pub(crate) const fn new() -> Self {
        Sessions {
            lane: AtomicU32::new(0),
            current: AtomicU32::new(0),
            connecting: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            retry_at: AtomicI64::new(0),
            key: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            leaves: AtomicU32::new(0),
            memory: AtomicU32::new(0),
        }
    }

    /// The session, if there is one now.
    #[inline]
    pub(crate) fn present(&self) -> Option<&'static Session> {
        let number = self.current.load(Ordering::Acquire).checked_sub(1)?;
        of(number + 1).filter(|session| !session.is_lost())
    }

    /// This process begins, in a memory of that number; these are its sessions of that lane.
    pub(crate) fn begin(&self, lane: LaneNumber, memory: u32) {
        self.lane.store(lane.index() as u32, Ordering::Relaxed);
        self.memory.store(memory, Ordering::Relaxed);
    }

    /// The lane that they are of.
    #[inline]
    pub(crate) fn lane(&self) -> LaneNumber {
        LaneNumber::at(self.lane.load(Ordering::Relaxed) as usize)
    }

    /// Calls `get` until it gives a session, as long as another thread is connecting.
    pub(crate) fn get_together(
        &self,
        get: impl Fn() -> Outcome<&'static Session>,
    ) -> Outcome<&'static Session> {
        loop {
            let done = get();
            let meanwhile = self.connecting.load(Ordering::Acquire) || self.present().is_some();
            if done.is_ok() || !meanwhile || thread::is_inside() {
                return done;
            }
            polylane_sys::sched::pause(CONNECTION_PAUSE);
        }
    }

    /// The next call connects: it must not be the kernel's, or its successors must not differ from
    /// it.
    pub(crate) fn hurry(&self) {
        if self.wanted.load(Ordering::Relaxed) < config::patience() {
            self.wanted.store(config::patience(), Ordering::Relaxed);
        }
    }

    /// Whether there was a session, whose service is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.current.load(Ordering::Relaxed) != 0 && self.present().is_none()
    }

    /// Whether there is no session, nor will be one.
    pub(crate) fn are_used_up(&self) -> bool {
        made::are_used_up() && self.present().is_none()
    }

    /// A session beside those of the process, for one call. `EAGAIN`: not on this stack.
    pub(crate) fn aside(&'static self) -> Result<Session> {
        if real::is_on_small_stack() {
            return Err(Errno::EAGAIN);
        }
        Session::connect(self, self.key()?)
    }

    /// Waits until the next service has let this process in, as `is_ready` says. False: it does
    /// not.
    #[cold]
    pub(crate) fn await_next(&self, is_ready: impl Fn() -> bool) -> bool {
        let end = seconds() + NEXT_SECONDS;
        loop {
            self.hurry();
            self.retry_at.store(0, Ordering::Relaxed);
            if is_ready() {
                return true;
            }
            let ends = self.are_used_up() || !namespace::is_at_home(self.lane());
            if ends || thread::is_inside() || seconds() >= end {
                return false;
            }
            polylane_sys::sched::pause(NEXT_PAUSE);
        }
    }

    /// A number for a request that must be done once: a new one, or that of the request that this
    /// thread asks this lane again.
    pub(crate) fn turn(&self) -> u32 {
        match boxes::take_again(self.lane()) {
            0 => (self.turns.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1)) + 1,
            again => again,
        }
    }

    /// This process's secret, by which every service knows its requests.
    fn key(&self) -> Result<u64> {
        let known = self.key.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let (mut new, flags) = (0_u64, rustix::rand::GetRandomFlags::empty());
        if rustix::rand::getrandom(new.as_mut_bytes(), flags) != Ok(size_of::<u64>()) {
            return Err(Errno::EIO);
        }
        let (new, order) = (new.max(1), Ordering::Relaxed);
        Ok(self.key.compare_exchange(0, new, order, order).map_or_else(|first| first, |_| new))
    }

    /// Makes a session, where it is time for one.
    ///
    /// # Errors
    ///
    /// [`NoSession::Never`]: for good. Then paths of the lane are the kernel's from here on, those
    /// of all lanes where this process is not what it seems, and the caller readies what is open
    /// for that.
    #[cold]
    pub(crate) fn connect(&'static self) -> std::result::Result<&'static Session, NoSession> {
        if self.wanted.fetch_add(1, Ordering::Relaxed) < config::patience() {
            return Err(NoSession::Later);
        }
        if thread::is_inside() || seconds() < self.retry_at.load(Ordering::Relaxed) {
            return Err(NoSession::Later);
        }
        if real::is_on_small_stack() {
            return Err(NoSession::Later);
        }
        if !identity::is_what_it_seems() {
            // For good: whoever makes a thread less than its user hardly makes it more again.
            namespace::leave_home();
            return Err(NoSession::Never);
        }
        if self.connecting.swap(true, Ordering::Acquire) {
            return Err(NoSession::Later);
        }
        let made = self.make_at_home();
        if matches!(made, Err(NoSession::Never)) {
            // First, so that no other thread connects again.
            namespace::leave(self.lane());
            namespace::say_refused(self.lane());
        }
        self.connecting.store(false, Ordering::Release);
        made
    }

    /// As [`connect`](Self::connect), for the one thread that may.
    #[inline(never)]
    fn make_at_home(&'static self) -> std::result::Result<&'static Session, NoSession> {
        let made = thread::slow(|| self.make());
        if made.is_err() {
            self.retry_at.store(seconds() + RETRY_SECONDS, Ordering::Relaxed);
        }
        made.map_err(|error| match error {
            // It is for the kernel to say what this process may do, for good.
            Detour::Errno(Errno::EACCES) => NoSession::Never,
            _ => NoSession::Later,
        })
    }

    fn make(&'static self) -> Outcome<&'static Session> {
        let (key, leaves) = (self.key()?, self.leaves.load(Ordering::SeqCst));
        if made::are_used_up() {
            return Err(Detour::Kernel);
        }
        let session = Session::connect(self, key)?;
        let session = made::keep(session).map_err(|session| {
            session.finish();
            Detour::Kernel
        })?;
        self.current.store(session.number, Ordering::SeqCst);
        if self.leaves.load(Ordering::SeqCst) != leaves {
            // This process may be somebody else by now.
            self.is_not_present(session.number);
            session.leave();
            return Err(Detour::Kernel);
        }
        Ok(session)
    }

    /// Gives the calling thread's mailboxes back. To be called when the thread ends.
    pub(crate) fn release_thread(&self) {
        let Some(session) = self.present() else { return };
        boxes::with(session.lane, |own| {
            if own.session.replace(0) == session.number {
                let release = |number: &Cell<u32>| {
                    session.channel.release(MailboxIndex(number.get()));
                };
                own.numbers.iter().for_each(release);
            }
        });
    }

    /// That session is the present one no more. One by which another thread has connected meanwhile
    /// stays.
    fn is_not_present(&self, number: u32) {
        let (left, as_it_was) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.current.compare_exchange(number, 0, left, as_it_was);
    }

    /// Leaves the present session for good; the service lets go of all that was not shared. No
    /// number that a session has is used from here on.
    pub(crate) fn leave(&self) {
        // A thread that is connecting with the former identity finds out by this, or is found here.
        self.leaves.fetch_add(1, Ordering::SeqCst);
        let number = self.current.load(Ordering::SeqCst);
        self.is_not_present(number);
        if let Some(session) = of(number).filter(|session| !session.is_lost()) {
            session.await_answers();
            session.leave();
        }
        let over = |session: &&Session| session.is_own() && session.is_lost();
        made_from(1, self.lane()).filter(over).for_each(|session| session.channel.silence());
    }
}

fn pid_now() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Seconds of the monotonic clock; no system call.
fn seconds() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec
}

impl Session {
    /// A session that has no number yet.
    #[inline(never)]
    fn connect(sessions: &'static Sessions, key: u64) -> Result<Session> {
        mounts::at_home_or_by_root(sessions.lane(), |shown| {
            Session::connect_by(sessions, key, shown)
        })
    }

    fn connect_by(sessions: &'static Sessions, key: u64, shown: &[RawFd]) -> Result<Session> {
        let mut path = [0; config::MOUNT_BYTES_MAX + 32];
        let path =
            config::in_run_dir(sessions.lane(), &mut path, b"socket").ok_or(Errno::ENOENT)?;
        let socket = handshake::high(scm::connect(Path::new(OsStr::from_bytes(path)))?)?;
        let socket = socket.into_raw_fd();
        let made = handshake::greet(sessions.lane(), key, socket, shown)
            .and_then(|welcomed| Self::welcomed(sessions, socket, welcomed));
        if made.is_err() {
            reserved::close(socket);
        }
        made
    }

    fn welcomed(sessions: &'static Sessions, socket: RawFd, welcomed: Welcomed) -> Result<Session> {
        let Welcomed { channel, token, attributes, covered, notice } = welcomed;
        let reserve = Reserve::of(&channel).ok_or(Errno::EPROTO)?;
        let posts = (0..MAILBOXES_MAX).map(|_| AtomicU32::new(0)).collect();
        let lost = AtomicBool::new(false);
        let (pid, memory) = (pid_now(), sessions.memory.load(Ordering::Relaxed));
        Ok(Session {
            number: 0,
            lane: sessions.lane(),
            channel,
            token,
            attributes,
            covered,
            notice,
            socket,
            sessions,
            pid,
            memory,
            lost,
            reserve,
            posts,
        })
    }

    /// Whether this process made it. The channel of another is not to be touched: it is not mapped
    /// here. The number of a process alone does not tell: it may be an ancestor's.
    pub(crate) fn is_own(&self) -> bool {
        self.memory == self.sessions.memory.load(Ordering::Relaxed) && self.pid == pid_now()
    }

    /// Those of the process that made it.
    pub(crate) fn sessions(&self) -> &'static Sessions {
        self.sessions
    }

    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// No use of this session from now on.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether its service is gone, or about to be: then it is lost.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        let dead = self.channel.is_dead();
        if dead {
            self.lose();
        }
        dead
    }

    /// Ends it and takes its numbers back, for the only one who uses it.
    pub(crate) fn finish(self) {
        self.leave();
        for bell in self.channel.doorbells() {
            reserved::forget(bell.as_raw_fd());
        }
    }

    /// Waits a moment for the requests of other threads that are under way: who is not answered
    /// asks once more, in another session, and the service does not know it for the same request.
    /// One that waits for a lock is not waited for.
    fn await_answers(&self) {
        let boxes = 0..self.channel.geometry().mailbox_count;
        let free = |index| self.channel.is_free(MailboxIndex(index));
        let is_over = || self.channel.is_dead() || boxes.clone().all(free);
        for _ in 0..ANSWER_LOOKS {
            if is_over() {
                return;
            }
            polylane_sys::sched::pause(ANSWER_PAUSE);
        }
    }

    /// Ends it, once: the first of several threads closes the socket. A thread that waits for an
    /// answer finds out when it next looks, and must not use the socket's number then.
    fn leave(&self) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            reserved::close(self.socket);
        }
    }

    /// A mailbox of the calling thread that no interrupted call is using, ready for a request.
    #[inline]
    pub(crate) fn mailbox(&'static self) -> Outcome<Mailbox> {
        self.free_mailbox([AWAITED, UNAWAITED])?.ready()
    }

    /// As [`Session::mailbox`], that one of the two if it is free.
    pub(crate) fn mailbox_at(&'static self, place: usize) -> Outcome<Mailbox> {
        self.free_mailbox([place, BOXES - 1 - place])?.ready()
    }

    fn free_mailbox(&'static self, order: [usize; BOXES]) -> Outcome<Mailbox> {
        boxes::with(self.lane, |own| {
            if own.session.get() != self.number {
                self.claim(own)?;
            }
            let place = order.into_iter().find(|&n| !own.busy[n].get());
            let place = place.ok_or(Detour::Kernel)?;
            own.busy[place].set(true);
            let index = MailboxIndex(own.numbers[place].get());
            Ok(Mailbox { session: self, index, _holds: Holds::Own(Own(self.lane, place)) })
        })
    }

    /// Whether the calling thread could send a request now. It can until it returns, for signal
    /// handlers give back what they take, unless the session is lost meanwhile.
    pub(crate) fn can_ask(&'static self) -> bool {
        self.free_mailbox([AWAITED, UNAWAITED]).is_ok()
    }

    /// As [`Session::mailbox`]; what is owed to the service is sent by a thread that has none too.
    #[inline]
    pub(crate) fn mailbox_for(&'static self, message: &Message) -> Outcome<Mailbox> {
        self.own_or_borrowed([AWAITED, UNAWAITED], message)?.ready()
    }

    #[inline]
    fn own_or_borrowed(
        &'static self,
        order: [usize; BOXES],
        message: &Message,
    ) -> Outcome<Mailbox> {
        match self.free_mailbox(order) {
            Err(_) if is_owed(message) => self.borrow(order),
            own => own,
        }
    }

    #[cold]
    fn borrow(&'static self, order: [usize; BOXES]) -> Outcome<Mailbox> {
        let borrowed = self.reserve.borrow(order).ok_or(Detour::Kernel)?;
        Ok(Mailbox { session: self, index: borrowed.index, _holds: Holds::Borrowed(borrowed) })
    }

    /// Posts a request that nobody waits for.
    pub(crate) fn post(&'static self, message: &Message) -> Outcome<Mark> {
        let mailbox = self.own_or_borrowed([UNAWAITED, AWAITED], message)?.ready()?;
        if self.channel.post(mailbox.index, message, &Alive(self)).is_err() {
            self.lose();
            return Err(Detour::Kernel);
        }
        Ok(self.mark(mailbox.index))
    }

    /// As [`Session::post`], unless that would have to wait.
    pub(crate) fn post_if_free(&'static self, message: &Message) -> Option<Mark> {
        let mailbox = self.free_mailbox([UNAWAITED, AWAITED]).ok()?;
        if !self.channel.is_free(mailbox.index) {
            return None;
        }
        drop(mailbox);
        self.post(message).ok()
    }

    /// Tells the service that there is work in the stream, unless it is about to look there anyway.
    pub(crate) fn nudge(&'static self) {
        // If it cannot be told now, it will be later.
        let _ = self.post_if_free(&Message::new(Op::Ping));
    }

    /// Claims the thread's mailboxes in this session; those of a former one are of no use.
    #[cold]
    fn claim(&self, own: &Boxes) -> Outcome<()> {
        let first = self.channel.claim().ok_or(Detour::Kernel)?;
        let Some(second) = self.channel.claim() else {
            self.channel.release(first);
            return Err(Detour::Kernel);
        };
        own.numbers[0].set(first.0);
        own.numbers[1].set(second.0);
        own.busy.iter().for_each(|busy| busy.set(false));
        own.session.set(self.number);
        real::call_at_thread_exit();
        Ok(())
    }
}
