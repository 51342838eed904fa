//! A session: the threads that serve one /dev/fuse descriptor.
//!
//! | thread    | does                                     | may wait for                     |
//! |-----------|------------------------------------------|----------------------------------|
//! | readers   | read a request, do it, reply             | the file door (a page read)      |
//! | deferred  | requests that must wait for the kernel   | the notifiers, the file door     |
//! | filler    | fills of slots' pages that must wait     | the notifier of own nodes        |
//! | notifiers | have the kernel drop pages, names, states | through the kernel: see below   |
//!
//! The thread that waits for the end starts them: the readers (`Firsts`), then those beside them
//! (`Aside`): what the kernel's requests may wait for at once, the others with their first work.
//! One that cannot be started is tried again, and its work waits.
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

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_vfs::handover::{Answered, InFlight, RequestId, Turn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::bell::{self, AGAIN, Aside, Bell, Helper, Thread, Told};
use super::call::{Call, Exit, Outcome};
use super::deferred::{Deferred, Job, Reply};
use super::first::{self, First, Firsts};
use super::init::{MESSAGE_BYTES_MAX, Params};
use super::protocol::{UNIQUE_RESEND, opcode};
use super::reply::{Body, Device};
use super::request::{Header, Request, changes, wants_reply};
use super::session::Session;
use super::stats::Stats;
use super::{ops, restore, unanswered};
use crate::lane::Lane;
use crate::lane::nodes::{Target, VirtualDir};
use crate::lane::notifier::{Action, Level};
use crate::lane::progress::{Mark, Marks};

/// The name of threads that wait for the kernel, and with it perhaps for this session itself.
pub const NOTIFIER_NAME: &str = "fuse-notify";
const DEFERRED_NAME: &str = "fuse-deferred";

/// How long the other readers sleep while one looks out: one request of those that are awaited may
/// wait for as long beside one that is slow.
const LOOKOUT_PAUSE: Duration = Duration::from_micros(500);

/// How long names to drop let a client open its tickets' files.
const OPENS_TIME_MAX: Duration = Duration::from_millis(20);

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

/// A session that has begun: what a former service had open and locked is so again.
pub struct Door {
    serving: Serving,
    options: ServeOptions,
}

/// What the threads of a session share.
struct Serving {
    session: Arc<Session>,
    /// What has been done.
    stats: Arc<Stats>,
    deferred: Deferred,
    fills: Deferred,
    /// Rung for either before there is work for it.
    bell: Arc<Bell>,
    quit: AtomicBool,
    /// Held by the reader that looks out for opens by tickets.
    lookout: Mutex<()>,
    /// For the next service; `None` where the kernel sends again what this one leaves.
    in_flight: Option<Arc<InFlight>>,
}

impl Door {
    /// Begins a session on the mount behind `fd`.
    ///
    /// # Errors
    /// What fcntl(2) says to the descriptor.
    pub fn open(fd: OwnedFd, lane: Arc<Lane>, options: ServeOptions) -> io::Result<Door> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let in_flight = options.in_flight.clone().filter(|_| !options.resends());
        let began = (options.incarnation, options.params);
        let session = Session::new(Device::new(fd), lane, began, in_flight.clone());
        restore::restore(&session);
        let serving = Serving {
            session,
            stats: Arc::default(),
            deferred: Deferred::default(),
            fills: Deferred::default(),
            bell: Arc::new(Bell::new()?),
            quit: AtomicBool::new(false),
            lookout: Mutex::default(),
            in_flight,
        };
        Ok(Door { serving, options })
    }

    /// What the session does, counted.
    pub fn stats(&self) -> Arc<Stats> {
        self.serving.stats.clone()
    }

    /// Serves the mount until it is unmounted or `stop` is asked for. `tell` is called the first
    /// time that a thread cannot be started, which is tried again and again.
    ///
    /// # Errors
    /// What the device says; or that a thread panicked.
    pub fn serve(self, stop: &Stop, tell: impl Fn(io::Error)) -> io::Result<Ended> {
        run(&self.serving, &self.options, stop, &tell)
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
    Door::open(fd, lane, options)?.serve(stop, |_| ())
}

fn run(
    serving: &Serving,
    options: &ServeOptions,
    stop: &Stop,
    tell: &dyn Fn(io::Error),
) -> io::Result<Ended> {
    let session = &serving.session;
    let (wake, ended) = (Stop::new()?, Stop::new()?);
    let old = serving.take_over(options);
    let marks = Marks::new(options.threads.max(1));
    session.lane.progress.begin(session.device.descriptor(), marks.clone());
    let result = thread::scope(|scope| {
        let told = Told::new(session.device.clone(), serving.bell.clone());
        session.lane.notifier.start(Arc::new(told));
        if options.incarnation > 0 {
            // Before anything is served: it only queues.
            session.lane.drop_former();
        }
        let all = First::all(marks.len(), options.incarnation > 0, old.is_some());
        let begun = (&*marks, old.as_ref(), &wake, &ended);
        let mut firsts = Firsts::new(all, |first| serving.begin_first(scope, first, begun));
        let told = Cell::new(false);
        let tell = |error| {
            if !told.replace(true) {
                tell(error);
            }
        };
        let mut aside = Aside::new(&serving.bell, |helper| serving.begin(scope, helper), &tell);
        Helper::FIRST.into_iter().for_each(|helper| serving.bell.ring(helper));
        let result = wait_for_end((stop, &ended), &serving.bell, || {
            let reads = firsts.begin_left().map_err(&tell).is_ok();
            aside.begin_wanted(&Helper::ALL) && reads
        });
        // The notifiers may wait for what a reader alone answers.
        while !firsts.any_reader() && firsts.begin_left().is_err() {
            thread::sleep(AGAIN);
        }
        // Readers go last: the notifiers wait for them through the kernel, and the deferred thread
        // for the notifiers. From here on nobody waits for a notification any more but for those of
        // states, which the deferred thread's last replies come after.
        session.lane.notifier.stop();
        aside.join([Helper::Slots, Helper::Own, Helper::Names]);
        serving.fills.stop();
        serving.deferred.stop();
        while !aside.begin_wanted(&[Helper::States]) {
            thread::sleep(AGAIN);
        }
        aside.join([Helper::Deferred, Helper::Fills]);
        // What was handed over to threads that were not there, or not yet.
        serving.run_deferred(&serving.deferred);
        serving.run_deferred(&serving.fills);
        session.lane.notifier.finish_states();
        aside.join([Helper::States]);
        // Those that a reader owes since.
        serving.drop_states();
        serving.quit.store(true, Ordering::Release);
        wake.request();
        firsts.join().and(result)
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

/// Waits for the end, and begins what the bell asks for whenever it rings, or again until all of it
/// is there.
fn wait_for_end(
    (stop, ended): (&Stop, &Stop),
    bell: &Bell,
    mut begin: impl FnMut() -> bool,
) -> io::Result<Ended> {
    let again = Timespec { tv_sec: 0, tv_nsec: AGAIN.subsec_nanos().into() };
    let mut all = begin();
    loop {
        let events = [&*stop.0, &*ended.0, bell.event()];
        let mut fds = events.map(|event| PollFd::new(event, PollFlags::IN));
        match poll(&mut fds, (!all).then_some(&again)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) if !fds[1].revents().is_empty() => return Ok(Ended::Unmounted),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(Ended::Stopped),
            Ok(_) => all = begin(),
        }
    }
}

/// The reply in the body, to be sent once the kernel did something.
fn reply_later(header: Header, body: &Body, turn: Option<Turn>) -> Reply {
    let _until_sent = turn.map(|turn| turn.done(&body.0));
    Reply { unique: header.unique, body: body.0.clone(), _until_sent }
}

impl Serving {
    /// Asks for what a former service had read and not answered, or ends it.
    fn take_over(&self, options: &ServeOptions) -> Option<unanswered::Old> {
        if options.incarnation == 0 {
            return None;
        }
        if options.resends() {
            self.session.device.resend();
        }
        self.in_flight.as_ref().and_then(|left| unanswered::end_recent(&self.session.device, left))
    }

    /// Starts a thread that the session begins with.
    fn begin_first<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        first: First,
        (marks, old, wake, ended): (
            &'scope Marks,
            Option<&'scope unanswered::Old>,
            &'scope Stop,
            &'scope Stop,
        ),
    ) -> io::Result<first::Thread<'scope>> {
        thread::Builder::new().spawn_scoped(scope, move || {
            match (first, old) {
                (First::Reader(reader), _) => {
                    return self.read_until(&marks.begin(reader), wake, ended);
                }
                (First::Stale, _) => self.session.lane.drop_stale(),
                (First::Old, Some(old)) => {
                    let ends = || self.quit.load(Ordering::Acquire);
                    unanswered::end_old(&self.session.device, old, ends);
                }
                (First::Old, None) => {}
            }
            Ok(())
        })
    }

    /// Starts a thread beside the readers.
    fn begin<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        helper: Helper,
    ) -> io::Result<Thread<'scope>> {
        let (name, run): (_, Box<dyn FnOnce() + Send + 'scope>) = match helper {
            Helper::Slots => (NOTIFIER_NAME, Box::new(|| self.drop_pages(Level::Slots))),
            Helper::Own => (NOTIFIER_NAME, Box::new(|| self.drop_pages(Level::Own))),
            Helper::Names => (NOTIFIER_NAME, Box::new(|| self.drop_names())),
            Helper::States => (NOTIFIER_NAME, Box::new(|| self.drop_states())),
            Helper::Deferred => (DEFERRED_NAME, Box::new(|| self.run_deferred(&self.deferred))),
            Helper::Fills => (DEFERRED_NAME, Box::new(|| self.run_deferred(&self.fills))),
        };
        thread::Builder::new().name(name.to_string()).spawn_scoped(scope, run)
    }

    /// A reader: until the mount is gone or everybody is to quit.
    fn read_until(&self, mark: &Mark<'_>, wake: &Stop, ended: &Stop) -> io::Result<()> {
        /// Tells the others also when this thread panics.
        struct Tell<'a>(&'a Stop);
        impl Drop for Tell<'_> {
            fn drop(&mut self) {
                self.0.request();
            }
        }
        let _tell = Tell(ended);
        let doorbell = bell::doorbell(&self.session.device, &wake.0)?;
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let mut body = Body::default();
        while !self.quit.load(Ordering::Acquire) {
            match rustix::io::read(&self.session.device, &mut message) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.serve_one(&message[..count], &mut body, false);
                    mark.step();
                }
                Err(rustix::io::Errno::AGAIN) => self.await_request(mark, &doorbell)?,
                // ENOENT: the request was taken back while we read it.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the next request: awake while a client opens its tickets' files one by one, since
    /// to be woken takes longer than to serve such a request. The other readers are not rung
    /// meanwhile.
    fn await_request(&self, mark: &Mark<'_>, doorbell: &OwnedFd) -> io::Result<()> {
        let tickets = &self.session.lane.tickets;
        if !tickets.are_awaited() {
            return mark.asleep(|| bell::wait(doorbell));
        }
        let Some(_lookout) = self.lookout.try_lock() else {
            mark.asleep(|| thread::sleep(LOOKOUT_PAUSE));
            return Ok(());
        };
        while tickets.are_awaited() {
            let mut device = [PollFd::new(&self.session.device, PollFlags::IN)];
            if poll(&mut device, Some(&Timespec::default()))? > 0 {
                break;
            }
            mark.step();
            thread::yield_now();
        }
        Ok(())
    }

    fn serve_one(&self, message: &[u8], body: &mut Body, deferred: bool) {
        // What has no header has no address for a reply either.
        let Some(request) = Request::parse(message) else { return };
        body.0.clear();
        let header = request.header;
        if let Some(in_flight) = &self.in_flight {
            in_flight.read(header.unique);
        }
        let turn = match self.turn(header) {
            Ok(turn) => turn,
            Err((answer, _until_sent)) => return self.session.device.reply(header.unique, &answer),
        };
        let mut call = Call {
            session: &self.session,
            header,
            args: request.args,
            request: &request,
            out: body,
            deferred,
            turn: turn.as_ref(),
        };
        let end = ops::dispatch(&mut call);
        if !matches!(end, Err(Exit::Defer | Exit::DeferFill)) {
            self.stats.request(header.opcode);
        }
        match end {
            Ok(Outcome::Reply) if self.must_settle(header) => {
                let reply = reply_later(header, body, turn);
                self.run_or_defer(Job::Settled { reply }, deferred);
            }
            Ok(Outcome::Reply) => self.reply_now(header, body, turn),
            Ok(Outcome::ReplyAfter(node, range, except)) => {
                let reply = reply_later(header, body, turn);
                self.run_or_defer(Job::Reply { reply, node, range, except }, deferred);
            }
            Ok(Outcome::ReplyWritten(again, range)) => {
                let reply = reply_later(header, body, turn);
                self.run_or_defer(Job::ReplyWritten { reply, again, range }, deferred);
            }
            Ok(Outcome::ReplyBefore(node, range, except)) => {
                self.reply_now(header, body, turn);
                self.defer(Helper::Deferred, Job::Drop { node, range, except });
            }
            Ok(Outcome::ReplyThenTell(node, size)) => {
                self.reply_now(header, body, turn);
                self.defer(Helper::Deferred, Job::TellSize(node, size));
            }
            Err(exit @ (Exit::Defer | Exit::DeferFill)) => {
                turn.into_iter().for_each(Turn::postpone);
                self.stats.deferred();
                let fill = matches!(exit, Exit::DeferFill);
                let helper = if fill { Helper::Fills } else { Helper::Deferred };
                self.defer(helper, Job::Request(message.to_vec()));
            }
            // Room that was just given up may come back with what the kernel has sent already.
            Err(Exit::Failed(Errno::ENOSPC)) if !deferred => {
                turn.into_iter().for_each(Turn::postpone);
                self.stats.deferred();
                self.defer(Helper::Deferred, Job::Again(message.to_vec()));
            }
            Err(Exit::Late(errno)) => self.fail(header, errno),
            Err(Exit::Refused(errno, node, range)) => {
                self.fail(header, errno);
                self.defer(Helper::Deferred, Job::Drop { node, range, except: None });
            }
            Err(Exit::Failed(errno)) if wants_reply(header.opcode) => self.fail(header, errno),
            Ok(Outcome::Silent) | Err(Exit::Failed(_)) => {}
        }
    }

    /// Whether states of inodes changed of which the kernel does not know that it changed them
    /// itself: by a slot, which stands for another node, by an ioctl, by the access time of a
    /// directory, with which a host's directory moves its change time.
    fn must_settle(&self, header: Header) -> bool {
        let is_slot = || matches!(self.session.lane.nodes.get(header.node_id), Ok(Target::Slot(_)));
        self.session.lane.notifier.owes()
            && (matches!(header.opcode, opcode::IOCTL | opcode::READDIR)
                || changes(header.opcode) && is_slot())
    }

    fn reply_now(&self, header: Header, body: &Body, turn: Option<Turn>) {
        let _until_sent = turn.map(|turn| turn.done(&body.0));
        self.session.device.reply(header.unique, &body.0);
    }

    fn fail(&self, header: Header, errno: Errno) {
        self.stats.failed();
        self.session.device.fail(header.unique, errno);
    }

    /// This thread's turn with a request that changes something; or what a former service was about
    /// to answer it.
    fn turn(&self, header: Header) -> Result<Option<Turn>, (Vec<u8>, Answered)> {
        let turns = self.session.lane.handover.as_ref().map(|handover| &handover.turns);
        let Some(turns) = turns.filter(|_| changes(header.opcode)) else { return Ok(None) };
        let request = RequestId(0, header.unique & !UNIQUE_RESEND);
        match header.unique & UNIQUE_RESEND != 0 {
            true => turns.recall(request).map_or_else(|| Ok(Some(turns.begin(request))), Err),
            false => Ok(Some(turns.begin(request))),
        }
    }

    /// Hands a job to the thread that may wait. Once that thread has ended nobody waits for
    /// notifications any more, and the job is done here.
    fn defer(&self, helper: Helper, job: Job) {
        self.bell.ring(helper);
        let queue = if helper == Helper::Fills { &self.fills } else { &self.deferred };
        if let Some(job) = queue.push(job) {
            self.run_job(job);
        }
    }

    /// Does what may wait for the kernel: here, where this is the thread that may.
    fn run_or_defer(&self, job: Job, is_deferred: bool) {
        if is_deferred { self.run_job(job) } else { self.defer(Helper::Deferred, job) }
    }

    fn run_deferred(&self, queue: &Deferred) {
        while let Some(job) = queue.next() {
            self.run_job(job);
        }
    }

    fn run_job(&self, job: Job) {
        match job {
            Job::Request(message) => self.serve_one(&message, &mut Body::default(), true),
            Job::Again(message) => {
                self.session.lane.reclaim();
                self.serve_one(&message, &mut Body::default(), true);
            }
            Job::Reply { reply, node, range, except } => {
                self.session.lane.invalidate(&node, except, range);
                self.session.lane.tell_growth(&node);
                self.session.lane.notifier.settle_states();
                self.session.device.reply(reply.unique, &reply.body);
            }
            Job::ReplyWritten { reply, again, range } => {
                let kept = again.keep(&self.session.lane, range);
                self.session.lane.notifier.settle_states();
                match kept {
                    Ok(()) => self.session.device.reply(reply.unique, &reply.body),
                    Err(errno) => self.session.device.fail(reply.unique, errno),
                }
            }
            Job::Settled { reply } => {
                self.session.lane.notifier.settle_states();
                self.session.device.reply(reply.unique, &reply.body);
            }
            Job::Drop { node, range, except } => {
                self.session.lane.invalidate(&node, except, range);
            }
            Job::TellSize(node, size) => self.session.lane.tell_size(&node, size),
        }
    }

    fn drop_pages(&self, level: Level) {
        while let Some(job) = self.session.lane.notifier.next_pages(level) {
            self.stats.page_notice();
            match job.action {
                Action::Drop(range) => self.session.device.invalidate(job.node_id, range),
                Action::Grow(size) => self.session.device.grow(job.node_id, size),
            }
        }
    }

    fn drop_states(&self) {
        while let Some(job) = self.session.lane.notifier.next_state() {
            self.stats.state_notice();
            self.session.device.forget_state(job.node_id);
        }
    }

    /// The kernel holds the directory of slots for the opens by tickets that are under way, and a
    /// name that waits to be dropped there would hold up each that follows.
    fn let_opens_pass(&self) {
        let end = Instant::now() + OPENS_TIME_MAX;
        while self.session.lane.tickets.are_awaited() && Instant::now() < end {
            thread::sleep(LOOKOUT_PAUSE);
        }
    }

    fn drop_names(&self) {
        let mut waited: Option<Instant> = None;
        while let Some(gone) = self.session.lane.notifier.next_name() {
            // Opens that go on and on hold up names of slots for half of the time at most, and no
            // others.
            let may_wait = waited.is_none_or(|end| end.elapsed() > OPENS_TIME_MAX);
            let of_slots = gone.dir_id == VirtualDir::Slots.id();
            if of_slots && may_wait && self.session.lane.tickets.are_awaited() {
                self.let_opens_pass();
                waited = Some(Instant::now());
            }
            if gone.expires || !self.session.lane.is_known_anew(gone.dir_id, &gone.name) {
                self.stats.name_notice();
                self.session.device.forget_name(gone.dir_id, &gone.name, gone.expires);
            }
            self.session.lane.notifier.name_dropped();
        }
    }
}

#[cfg(test)]
mod tests;
