//! A session: the threads that serve one /dev/fuse descriptor.
//!
//! | thread    | does                                     | may wait for                     |
//! |-----------|------------------------------------------|----------------------------------|
//! | readers   | read a request, do it, reply             | the file door (a page read)      |
//! | deferred  | requests that must wait for the kernel   | the notifiers, the file door     |
//! | filler    | fills of slots' pages that must wait     | the notifier of own nodes        |
//! | notifiers | tell the kernel to drop pages, and names | through the kernel: see below    |
//!
//! Waiting never makes a ring. Readers wait for none of the others. The kernel makes the notifier
//! of own nodes wait for pages that readers fill or write; the notifier of slots for those and for
//! pages that the filler fills; and the filler waits for the notifier of own nodes alone.
//!
//! # Invariants
//!
//! - Every request that wants a reply gets exactly one.
//! - When [`serve`] returns, no thread of the session lives and every file it had open is closed.
//!
//! # Locking
//!
//! `Deferred::state` (`deferred.rs`) is a leaf.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, Gid};
use polylane_vfs::OpenFile;
use polylane_vfs::handover::{self, Answered, InFlight, Kind, RequestId, Store, Turn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::deferred::{Deferred, Job, Reply};
use super::handles::{HANDLE_FILE, HANDLE_SECOND, HANDLE_SLOT, HANDLE_TAG, Handle, HandleTable};
use super::init::{self, MESSAGE_BYTES_MAX, Params};
use super::locks::Waits;
use super::names::name_of_slot;
use super::nodes::{Target, VirtualDir};
use super::ops::{self, Call, End, Exit, Outcome};
use super::progress::{Mark, Marks};
use super::protocol::{UNIQUE_RESEND, fopen, init as init_flags};
use super::reply::{Body, Device};
use super::request::{Header, Reader, Request, changes, wants_reply};
use super::unanswered;
use crate::kept::Whose;
use crate::lane::Lane;
use crate::notifier::{Action, Level};
use crate::restore::{self, Record};

/// The name of threads that wait for the kernel, and with it perhaps for this session itself.
pub const NOTIFIER_NAME: &str = "fuse-notify";
const NOTIFIER_NAME_C: &std::ffi::CStr = c"fuse-notify";

/// Ends a session from another thread; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// A stop that was not asked for yet.
    pub fn new() -> io::Result<Stop> {
        Ok(Stop(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Asks for it. The session answers what it has read and returns; the mount stays.
    pub fn request(&self) {
        // It can only fail when it was asked for 2^64 times before.
        let _full = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Why a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The file system was unmounted, or the connection aborted.
    Unmounted,
    /// [`Stop`] was asked for.
    Stopped,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// What was negotiated; `None` when the mount's INIT is still to come.
    pub params: Option<Params>,
    /// Which service process of this mount this is, from 0.
    pub incarnation: u16,
    /// Threads that read requests; at least 1. With two, one may wait for a page.
    pub threads: usize,
    /// Where the next service finds what this one left unanswered, on kernels that do not send it
    /// again; without it such callers wait until the mount ends.
    pub in_flight: Option<Arc<InFlight>>,
}

impl ServeOptions {
    /// Whether the kernel sends requests again.
    fn resends(&self) -> bool {
        self.params.is_some_and(|params| params.resend())
    }
}

/// What one session knows.
pub(super) struct Session {
    pub(super) lane: Arc<Lane>,
    pub(super) device: Device,
    pub(super) handles: HandleTable,
    pub(super) waits: Arc<Waits>,
    pub(super) no_groups: Arc<[Gid]>,
    /// INIT flags agreed on.
    flags: AtomicU64,
    deferred: Deferred,
    fills: Deferred,
    quit: AtomicBool,
    /// For the next service; `None` where the kernel sends again what this one leaves.
    in_flight: Option<Arc<InFlight>>,
}

/// A session that has begun: what a former service had open and locked is so again.
pub struct Door {
    session: Arc<Session>,
    options: ServeOptions,
}

impl Door {
    /// Begins a session on the mount behind `fd`.
    ///
    /// # Errors
    /// What fcntl(2) says to the descriptor.
    pub fn open(fd: OwnedFd, lane: Arc<Lane>, options: ServeOptions) -> io::Result<Door> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let session = Session::new(Device::new(fd), lane, &options);
        session.restore();
        Ok(Door { session, options })
    }

    /// Serves the mount until it is unmounted or `stop` is asked for.
    ///
    /// # Errors
    /// What the device says; or that a thread panicked.
    pub fn serve(self, stop: &Stop) -> io::Result<Ended> {
        run(&self.session, &self.options, stop)
    }
}

/// Serves the mount behind `fd` until it is unmounted or `stop` is asked for.
///
/// # Errors
/// As those of [`Door`].
pub fn serve(
    fd: OwnedFd,
    lane: Arc<Lane>,
    options: ServeOptions,
    stop: &Stop,
) -> io::Result<Ended> {
    Door::open(fd, lane, options)?.serve(stop)
}

fn run(session: &Arc<Session>, options: &ServeOptions, stop: &Stop) -> io::Result<Ended> {
    let (wake, ended) = (Stop::new()?, Stop::new()?);
    let old = session.take_over(options);
    let marks = Marks::new(options.threads.max(1));
    session.lane.progress.begin(session.device.clone(), marks.clone());
    let result = thread::scope(|scope| {
        session.lane.notifier.start(session.device.clone());
        let notifiers = [
            scope.spawn(|| session.drop_pages(Level::Slots)),
            scope.spawn(|| session.drop_pages(Level::Own)),
            scope.spawn(|| session.drop_names()),
        ];
        let deferred = [&session.deferred, &session.fills]
            .map(|queue| scope.spawn(|| session.run_deferred(queue)));
        if let Some(old) = &old {
            let ends = || session.quit.load(Ordering::Acquire);
            scope.spawn(move || unanswered::end_old(&session.device, old, ends));
        }
        let (wake, ended) = (&wake, &ended);
        let read = |mark| scope.spawn(|| session.read_until(mark, wake, ended));
        let readers: Vec<_> = marks.each().map(read).collect();
        let result = wait_for_end(stop, ended);
        // Readers go last: the notifiers wait for them through the kernel, and the deferred thread
        // for the notifiers. From here on nobody waits for a notification any more.
        session.lane.notifier.stop();
        notifiers.into_iter().for_each(|notifier| {
            let _end = notifier.join();
        });
        session.fills.stop();
        session.deferred.stop();
        deferred.into_iter().for_each(|thread| {
            let _end = thread.join();
        });
        session.quit.store(true, Ordering::Release);
        wake.request();
        let errors = readers.into_iter().filter_map(|reader| match reader.join() {
            Ok(result) => result.err(),
            Err(_panic) => Some(io::Error::other("a FUSE reader panicked")),
        });
        errors.last().map_or(result, Err)
    });
    session.lane.progress.end();
    // What is open is the next service's, where there is one.
    if let (Ok(Ended::Stopped), Some(handover)) = (&result, &session.lane.handover) {
        handover.store.leave();
        session.waits.leave_all();
    }
    for handle in session.handles.drain() {
        session.close(&handle);
    }
    result
}

fn wait_for_end(stop: &Stop, ended: &Stop) -> io::Result<Ended> {
    loop {
        let mut fds = [&stop.0, &ended.0].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) if !fds[1].revents().is_empty() => return Ok(Ended::Unmounted),
            Ok(_) => return Ok(Ended::Stopped),
        }
    }
}

/// The reply in the body, to be sent once the kernel did something.
fn reply_later(header: Header, body: &Body, turn: Option<Turn>) -> Reply {
    let _until_sent = turn.map(|turn| turn.done(&body.0));
    Reply { unique: header.unique, body: body.0.clone(), _until_sent }
}

/// Names the calling thread; one without a name is harder to tell from others.
fn be_notifier() {
    let _ = rustix::thread::set_name(NOTIFIER_NAME_C);
}

fn store(lane: &Lane) -> Option<Arc<Store>> {
    lane.handover.as_ref().map(|handover| handover.store.clone())
}

impl Session {
    fn new(device: Device, lane: Arc<Lane>, options: &ServeOptions) -> Arc<Session> {
        let in_flight = options.in_flight.clone().filter(|_| !options.resends());
        Arc::new(Session {
            handles: HandleTable::new(options.incarnation, store(&lane)),
            lane,
            device,
            waits: Arc::new(Waits::new(in_flight.clone())),
            no_groups: Arc::new([]),
            flags: AtomicU64::new(options.params.map_or(0, |params| params.flags)),
            deferred: Deferred::default(),
            fills: Deferred::default(),
            quit: AtomicBool::new(false),
            in_flight,
        })
    }

    /// Asks for what a former service had read and not answered, or ends it.
    fn take_over(&self, options: &ServeOptions) -> Option<unanswered::Old> {
        if options.incarnation == 0 {
            return None;
        }
        if options.resends() {
            self.device.resend();
        }
        self.in_flight.as_ref().and_then(|left| unanswered::end_recent(&self.device, left))
    }

    /// Goes on with the open files and the locks of a former service.
    fn restore(&self) {
        let Some(handover) = &self.lane.handover else { return };
        for record in handover.take(Kind::Handle) {
            let kept = Record::adopt(&handover.store, &record);
            if let Some(handle) = self.open_again(&record, kept) {
                if let Some(file) = &handle.opened {
                    handover.reopen(record.words[HANDLE_TAG], file);
                }
                self.handles.restore(record.words[0], handle);
            }
        }
        for record in handover.take(Kind::Lock) {
            self.lane.kept.restore(&record, |given| self.lock_again(given));
        }
        handover.end_reopening();
        self.lane.vfs.end_revival();
    }

    /// A handle of a former service; `None`: its file cannot be found again.
    fn open_again(&self, from: &handover::Record, record: Record) -> Option<Handle> {
        let [_, node_id, flags, which, ino, generation, _] = from.words;
        let slot = match which {
            HANDLE_SLOT | HANDLE_SECOND => match self.lane.nodes.get(node_id) {
                Ok(Target::Slot(slot)) => Some(slot),
                _ => return None,
            },
            _ => None,
        };
        let opened = match which {
            HANDLE_FILE | HANDLE_SECOND => {
                let handover = self.lane.handover.as_ref()?;
                Some(restore::open(&self.lane.vfs, handover, flags, (ino, generation))?)
            }
            _ => None,
        };
        // The kernel may have pages of whatever is open: nobody knows any more.
        match &slot {
            Some(slot) => {
                self.lane.slots.opened(slot);
                self.lane.slots.has_pages(slot);
            }
            None if which == HANDLE_FILE => {
                self.lane.nodes.opened(node_id);
                self.lane.nodes.has_pages(node_id);
                if let Some(file) = &opened {
                    self.lane.nodes.tell_size(node_id, file.size());
                }
            }
            None => {}
        }
        Some(Handle::again(node_id, opened, slot, record))
    }

    /// A reader: until the mount is gone or everybody is to quit.
    fn read_until(self: &Arc<Self>, mark: Mark<'_>, wake: &Stop, ended: &Stop) -> io::Result<()> {
        /// Tells the others also when this thread panics.
        struct Tell<'a>(&'a Stop);
        impl Drop for Tell<'_> {
            fn drop(&mut self) {
                self.0.request();
            }
        }
        let _tell = Tell(ended);
        let doorbell = self.doorbell(wake)?;
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let mut body = Body::default();
        while !self.quit.load(Ordering::Acquire) {
            match rustix::io::read(&self.device, &mut message) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.serve_one(&message[..count], &mut body, false);
                    mark.step();
                }
                Err(rustix::io::Errno::AGAIN) => mark.asleep(|| wait(&doorbell))?,
                // ENOENT: the request was taken back while we read it.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Readers sleep on one descriptor each: of those who sleep, the kernel wakes one per request.
    fn doorbell(&self, wake: &Stop) -> io::Result<OwnedFd> {
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let exclusive = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&bell, self.device.as_fd(), epoll::EventData::new_u64(0), exclusive)?;
        epoll::add(&bell, &wake.0, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(bell)
    }

    fn serve_one(self: &Arc<Self>, message: &[u8], body: &mut Body, deferred: bool) {
        // What has no header has no address for a reply either.
        let Some(request) = Request::parse(message) else { return };
        body.0.clear();
        let header = request.header;
        if let Some(in_flight) = &self.in_flight {
            in_flight.read(header.unique);
        }
        let turn = match self.turn(header) {
            Ok(turn) => turn,
            Err((answer, _until_sent)) => return self.device.reply(header.unique, &answer),
        };
        let mut call = Call {
            session: self,
            header,
            args: request.args,
            request: &request,
            out: body,
            deferred,
            turn: turn.as_ref(),
        };
        let end = ops::dispatch(&mut call);
        if !matches!(end, Err(Exit::Defer | Exit::DeferFill)) {
            self.lane.fuse.request(header.opcode);
        }
        match end {
            Ok(Outcome::Reply) => {
                let _until_sent = turn.map(|turn| turn.done(&body.0));
                self.device.reply(header.unique, &body.0);
            }
            Ok(Outcome::Silent) => {}
            Ok(Outcome::ReplyAfter(node, range, except)) => {
                let reply = reply_later(header, body, turn);
                self.run_or_defer(Job::Reply { reply, node, range, except }, deferred);
            }
            Ok(Outcome::ReplyWritten(again, range)) => {
                let reply = reply_later(header, body, turn);
                self.run_or_defer(Job::ReplyWritten { reply, again, range }, deferred);
            }
            Ok(Outcome::ReplyBefore(node, range, except)) => {
                let _until_sent = turn.map(|turn| turn.done(&body.0));
                self.device.reply(header.unique, &body.0);
                self.defer(&self.deferred, Job::Drop { node, range, except });
            }
            Ok(Outcome::ReplyThenTell(node)) => {
                let _until_sent = turn.map(|turn| turn.done(&body.0));
                self.device.reply(header.unique, &body.0);
                self.defer(&self.deferred, Job::TellSize(node));
            }
            Err(exit @ (Exit::Defer | Exit::DeferFill)) => {
                turn.into_iter().for_each(Turn::postpone);
                self.lane.fuse.deferred();
                let fill = matches!(exit, Exit::DeferFill);
                let queue = if fill { &self.fills } else { &self.deferred };
                self.defer(queue, Job::Request(message.to_vec()));
            }
            // Room that was just given up may come back with what the kernel has sent already.
            Err(Exit::Failed(Errno::ENOSPC)) if !deferred => {
                turn.into_iter().for_each(Turn::postpone);
                self.lane.fuse.deferred();
                self.defer(&self.deferred, Job::Again(message.to_vec()));
            }
            Err(Exit::Late(errno)) => self.fail(header, errno),
            Err(Exit::Failed(errno)) if wants_reply(header.opcode) => self.fail(header, errno),
            Err(Exit::Failed(_)) => {}
        }
    }

    fn fail(&self, header: Header, errno: Errno) {
        self.lane.fuse.failed();
        self.device.fail(header.unique, errno);
    }

    /// This thread's turn with a request that changes something; or what a former service was about
    /// to answer it.
    fn turn(&self, header: Header) -> Result<Option<Turn>, (Vec<u8>, Answered)> {
        let turns = self.lane.handover.as_ref().map(|handover| &handover.turns);
        let Some(turns) = turns.filter(|_| changes(header.opcode)) else { return Ok(None) };
        let request = RequestId(0, header.unique & !UNIQUE_RESEND);
        match header.unique & UNIQUE_RESEND != 0 {
            true => turns.recall(request).map_or_else(|| Ok(Some(turns.begin(request))), Err),
            false => Ok(Some(turns.begin(request))),
        }
    }

    /// Hands a job to the thread that may wait. Once that thread has ended nobody waits for
    /// notifications any more, and the job is done here.
    fn defer(self: &Arc<Self>, queue: &Deferred, job: Job) {
        if let Some(job) = queue.push(job) {
            self.run_job(job);
        }
    }

    /// Does what may wait for the kernel: here, where this is the thread that may.
    fn run_or_defer(self: &Arc<Self>, job: Job, is_deferred: bool) {
        if is_deferred { self.run_job(job) } else { self.defer(&self.deferred, job) }
    }

    fn run_deferred(self: &Arc<Self>, queue: &Deferred) {
        while let Some(job) = queue.next() {
            self.run_job(job);
        }
    }

    fn run_job(self: &Arc<Self>, job: Job) {
        match job {
            Job::Request(message) => self.serve_one(&message, &mut Body::default(), true),
            Job::Again(message) => {
                self.lane.reclaim();
                self.serve_one(&message, &mut Body::default(), true);
            }
            Job::Reply { reply, node, range, except } => {
                self.lane.invalidate(&node, except, range);
                self.lane.tell_growth(&node);
                self.device.reply(reply.unique, &reply.body);
            }
            Job::ReplyWritten { reply, again, range } => match again.keep(&self.lane, range) {
                Ok(()) => self.device.reply(reply.unique, &reply.body),
                Err(errno) => self.device.fail(reply.unique, errno),
            },
            Job::Drop { node, range, except } => {
                self.lane.invalidate(&node, except, range);
            }
            Job::TellSize(node) => self.lane.tell_size(&node),
        }
    }

    fn drop_pages(&self, level: Level) {
        be_notifier();
        while let Some(job) = self.lane.notifier.next_pages(level) {
            self.lane.fuse.page_notice();
            match job.action {
                Action::Drop(range) => self.device.invalidate(job.node_id, range),
                Action::Grow(size, last) => self.device.grow(job.node_id, size, last),
            }
        }
    }

    fn drop_names(&self) {
        be_notifier();
        while let Some(gone) = self.lane.notifier.next_name() {
            if !self.lane.is_known_anew(gone.dir_id, &gone.name) {
                self.lane.fuse.name_notice();
                self.device.forget_name(gone.dir_id, &gone.name);
            }
            self.lane.notifier.name_dropped();
        }
    }

    /// A handle was opened on a file's own node. Whether the file is longer by now than the kernel
    /// was told.
    pub(super) fn opened(&self, node_id: u64) -> bool {
        self.lane.nodes.opened(node_id);
        if !self.is_direct() {
            self.lane.nodes.has_pages(node_id);
        }
        let Ok(Target::Node(node)) = self.lane.nodes.get(node_id) else { return false };
        self.lane.has_pages(&node);
        // To ask ends a loan on which the file grows unseen; from now on there is none.
        self.lane.growth(&node).is_some()
    }

    /// The kernel fills a page: from now on it may have some of the file, until the handles on the
    /// node are closed. A mapping keeps its handle.
    pub(super) fn has_pages(&self, handle: &Handle) {
        match &handle.slot {
            Some(slot) => self.lane.slots.has_pages(slot),
            None => self.lane.nodes.has_pages(handle.node_id),
        }
    }

    /// The kernel wrote through a handle: it knows itself how far the file now reaches at least.
    pub(super) fn wrote(&self, handle: &Handle, end: u64) {
        if handle.slot.is_none() {
            self.lane.nodes.grew_to(handle.node_id, end);
        }
    }

    /// The end of a handle: what was locked through it is free, and its node one handle poorer.
    pub(super) fn close(&self, handle: &Handle) {
        // What a slot was bound to goes on under the file's own node, where that took its place.
        let over = |file: &Arc<OpenFile>| !handle.is_slot() || !file.is_kernels();
        if let Some(file) = handle.file().ok().filter(over) {
            for owner in file.gone() {
                let (node_id, owner) = (handle.node_id, owner.0 as u64);
                self.lane.kept.drop_all(Whose::Posix { node_id, owner });
            }
        }
        match &handle.slot {
            Some(slot) if self.lane.slots.released(slot) => {
                let (name, slots) = (name_of_slot(slot), VirtualDir::Slots.id());
                let known = || self.lane.nodes.len();
                self.lane.notifier.forget_name(slots, name.as_bytes(), known);
            }
            Some(_) => {}
            None => self.lane.nodes.released(handle.node_id),
        }
    }

    /// INIT on a mount whose supervisor left it to us, or sent twice.
    pub(super) fn init(&self, args: Reader<'_>, out: &mut Body) -> End {
        let acls = self.lane.vfs.character().acls;
        if let Some(params) = init::answer(args, acls, out)? {
            self.flags.store(params.flags, Ordering::Relaxed);
        }
        Ok(Outcome::Reply)
    }

    pub(super) fn has_setxattr_ext(&self) -> bool {
        self.has(init_flags::SETXATTR_EXT)
    }

    /// Whether the kernel minds access control lists.
    pub(super) fn has_acls(&self) -> bool {
        self.has(init_flags::POSIX_ACL)
    }

    /// Whether file data goes past the kernel's page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.has(init_flags::DIRECT_IO_ALLOW_MMAP)
    }

    /// `fuse_open_out.open_flags` for a handle on a file's own node. Appending goes past the page
    /// cache in any case: the kernel would put the bytes on the page where it thinks the end is.
    pub(super) fn open_flags(&self, flags: i32) -> u32 {
        let direct = self.is_direct() || flags & libc::O_APPEND != 0;
        if direct { fopen::DIRECT_IO } else { 0 }
    }

    fn has(&self, flag: u64) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }
}

fn wait(doorbell: &OwnedFd) -> io::Result<()> {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
    match epoll::wait(doorbell, rustix::buffer::spare_capacity(&mut events), None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
