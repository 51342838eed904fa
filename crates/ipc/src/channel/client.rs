//! The client's end of a channel: claim mailboxes, post requests, wait for replies.
//!
//! Nothing here allocates after [`ClientChannel::attach`], takes a lock or touches thread-local
//! state: all of it may run in a signal handler, on a mailbox that the interrupted code does not
//! use. A mailbox belongs to who claimed it; two threads must not use one at a time.
//!
//! # Waiting
//!
//! The worker sleeps, or runs on the CPU that this thread needs: sleep at once, after waking it.
//! Otherwise spin a budget of pauses, then sleep; sooner where others wait for this CPU. The budget
//! of a mailbox grows while spinning pays off and shrinks when it was in vain; no clock is read.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::{Errno, Result};
use polylane_sys::board::Seen;
use polylane_sys::futex::Woken;
use polylane_sys::pulse::Felt;
use polylane_sys::{Region, cpu, sched};

use super::doorbells::Doorbells;
use super::mailbox::Mailbox;
use super::{CopyPlan, MailboxIndex, with_queue};
use crate::budget::{self, BUDGET_MAX, CLIENT_PATIENCE, Sleep};
use crate::layout::{Geometry, Layout, MAGIC, MAILBOX_HEAD, MAILBOXES_MAX, QueueKind, header};
use crate::memory::Mapped;
use crate::message::{
    MARK_PLACES, MESSAGE_HEAD_WORDS, Message, REPLY_HEAD_WORDS, Reply, Status, VERSION, WORDS,
};
use crate::queue::bell::Bell;
use crate::stream::{DATA_AT, DATA_BYTES, Stream};
use crate::view::Views;

/// How long a sleeper goes without asking whether the service lives.
const LIVENESS_PERIOD: Duration = Duration::from_millis(100);

/// Why a call has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// [`Watch::interrupted`] said so. The request is still with the service:
    /// [`ClientChannel::wait`] for its reply, after an `Op::Cancel` through another mailbox.
    Interrupted,
    /// The service is gone, or the request queue is broken. The channel is of no use any more.
    Lost,
}

/// What a waiting client asks its surroundings.
pub trait Watch {
    /// Whether the service is alive. Asked every 100 ms of sleep.
    fn alive(&self) -> bool;

    /// Whether to give up because of a signal. Asked before each sleep and after one that a signal
    /// ended. Only calls that POSIX lets a signal interrupt say yes.
    fn interrupted(&self) -> bool {
        false
    }
}

/// A [`Watch`] that trusts the service to live.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trusting;

impl Watch for Trusting {
    fn alive(&self) -> bool {
        true
    }
}

/// What the client keeps per mailbox, in its own memory.
#[derive(Debug, Default)]
struct Own {
    /// Pauses before sleeping.
    budget: AtomicU32,
    /// Sleeps since the last probe.
    sleeps: AtomicU32,
}

/// The client's end. Thread-safe.
#[derive(Debug)]
pub struct ClientChannel {
    region: Region,
    layout: Layout,
    geometry: Geometry,
    plan: CopyPlan,
    doorbells: Doorbells,
    pulse: Option<Felt>,
    marks: Option<Seen>,
    claimed: [AtomicU64; MAILBOXES_MAX as usize / 64],
    own: Box<[Own]>,
}

/// Whether and where a request was posted.
struct Posted {
    /// Spinning could help: the worker is awake on another CPU.
    spin: bool,
}

impl ClientChannel {
    /// Maps a channel that the service made, for the calling process: its children, but for those
    /// that have its memory in common, are without it. Given are its memfd, one eventfd per core
    /// group and perhaps the service's pulse and its marks after them, and what the welcome said.
    /// `EPROTO` when they do not fit each other.
    pub fn attach(
        memfd: OwnedFd,
        mut doorbells: Vec<OwnedFd>,
        geometry: Geometry,
        plan: CopyPlan,
    ) -> Result<ClientChannel> {
        let more = doorbells.split_off(doorbells.len().min(geometry.groups as usize));
        let mut more = more.into_iter();
        let pulse = more.next().map(Felt::attach).transpose()?;
        let marks = more.next().map(|fd| Seen::attach(fd, MARK_PLACES)).transpose()?;
        let layout = geometry.layout().map_err(|_| Errno::EPROTO)?;
        let region = Region::attach(&memfd, layout.total_bytes())?.keep_from_children()?;
        let word = |offset| region.word32(offset).load(Ordering::Relaxed);
        let fits = region.word64(header::MAGIC).load(Ordering::Relaxed) == MAGIC
            && word(header::VERSION) == VERSION
            && word(header::MAILBOXES) == geometry.mailbox_count
            && word(header::BUFFER) == geometry.buffer_bytes
            && word(header::QUEUE) == geometry.queue as u32
            && word(header::GROUPS) == geometry.groups
            && word(header::FRAMES) == geometry.frames
            && doorbells.len() == geometry.groups as usize;
        if !fits {
            return Err(Errno::EPROTO);
        }
        cpu::prepare();
        let budget = || Own { budget: AtomicU32::new(BUDGET_MAX), sleeps: AtomicU32::new(0) };
        let own = (0..geometry.mailbox_count).map(|_| budget()).collect();
        let claimed = std::array::from_fn(|_| AtomicU64::new(0));
        let doorbells = Doorbells::new(doorbells);
        Ok(ClientChannel { region, layout, geometry, plan, doorbells, pulse, marks, claimed, own })
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The eventfds, one per core group: numbers that the program must not close before
    /// [`ClientChannel::silence`].
    pub fn doorbells(&self) -> &[OwnedFd] {
        self.doorbells.all()
    }

    /// Wakes no worker from here on: the channel is given up, and what its doorbells' numbers mean
    /// is not known any more. [`Watch::alive`] is to tell a thread that waits so.
    pub fn silence(&self) {
        self.doorbells.silence();
    }

    /// Payload bytes of a mailbox.
    pub fn buffer_bytes(&self) -> usize {
        self.geometry.buffer_bytes as usize
    }

    /// A mailbox for the caller alone; `None` when all are taken.
    pub fn claim(&self) -> Option<MailboxIndex> {
        for index in 0..self.geometry.mailbox_count {
            let (word, bit) = (&self.claimed[index as usize / 64], 1 << (index % 64));
            if word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Acquire) & bit == 0
            {
                return Some(MailboxIndex(index));
            }
        }
        None
    }

    /// Gives a mailbox back. An unawaited request may still be under way in it.
    pub fn release(&self, index: MailboxIndex) {
        let bit = 1 << (index.0 % 64);
        self.claimed[index.0 as usize / 64].fetch_and(!bit, Ordering::Release);
    }

    /// Copies bytes into a mailbox's payload at `at`. The mailbox must be free: see
    /// [`ClientChannel::settle`].
    pub fn payload_put(&self, index: MailboxIndex, at: usize, from: &[u8]) {
        let offset = self.payload(index, at, from.len());
        self.region.copy_in_with(self.plan.method_for(from.len()), offset, from);
    }

    /// Copies bytes out of a mailbox's payload.
    pub fn payload_get(&self, index: MailboxIndex, at: usize, into: &mut [u8]) {
        let offset = self.payload(index, at, into.len());
        self.region.copy_out_with(self.plan.method_for(into.len()), offset, into);
    }

    /// The session's stream. Its client side is for one thread at a time.
    #[inline]
    pub fn stream(&self) -> Stream<Mapped<'_>> {
        Stream(Mapped::new(&self.region, self.layout.stream()))
    }

    /// Copies bytes into the stream's ring, where no entry refers to any more.
    #[inline]
    pub fn stream_put(&self, at: usize, from: &[u8]) {
        let fits = at <= DATA_BYTES && from.len() <= DATA_BYTES - at;
        assert!(fits, "outside the stream's ring");
        let method = self.plan.method_for(from.len());
        self.region.copy_in_with(method, self.layout.stream() + DATA_AT + at, from);
    }

    /// Whether the service is known to be dead. False where it cannot be known without asking.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.pulse.as_ref().is_some_and(|pulse| !pulse.beats())
    }

    /// The counts by which answers are known to hold still; `None`: the service shows none.
    #[inline]
    pub fn marks(&self) -> Option<&Seen> {
        self.marks.as_ref()
    }

    /// What the service shows of open files; `None`: it shows nothing, or it would not be known
    /// when it dies, and what it shows with it.
    #[inline]
    pub fn views(&self) -> Option<Views<Mapped<'_>>> {
        let memory = Mapped::new(&self.region, self.layout.views());
        let frames = self.geometry.frames as usize;
        (frames > 0 && self.pulse.is_some()).then_some(Views { memory, frames })
    }

    /// Stores bytes in a frame, at an offset that [`Views`] gave, and within that frame.
    #[inline]
    pub fn frame_put(&self, at: usize, from: &[u8]) {
        self.region.copy_in(self.layout.views() + at, from);
    }

    /// Copies bytes of a frame into another, at offsets that [`Views`] gave.
    #[inline]
    pub fn frame_copy(&self, from: usize, to: usize, len: usize) {
        let views = self.layout.views();
        self.region.copy_within(views + from, views + to, len);
    }

    /// Copies bytes of a frame out.
    #[inline]
    pub fn frame_get(&self, at: usize, into: &mut [u8]) {
        self.region.copy_out(self.layout.views() + at, into);
    }

    /// Whether the last request of a mailbox is answered.
    #[inline]
    pub fn is_free(&self, index: MailboxIndex) -> bool {
        self.mailbox(index).is_free()
    }

    /// Waits until the last request of a mailbox is answered, so that its payload may be written.
    #[inline]
    pub fn settle(&self, index: MailboxIndex, watch: &impl Watch) -> Result<(), CallError> {
        if self.mailbox(index).is_free() {
            return Ok(());
        }
        self.wait_free(index, true, watch, |_| ())
    }

    /// Sends a request whose payload is already in place and waits for the reply.
    pub fn call(
        &self,
        index: MailboxIndex,
        message: &Message,
        watch: &impl Watch,
    ) -> Result<Reply, CallError> {
        self.settle(index, watch)?;
        let posted = self.send(index, message, 0)?;
        self.wait_free(index, posted.spin, watch, |_| ())?;
        self.reply(index)
    }

    /// Sends a request and does not wait: its reply is dropped. The mailbox is free again when the
    /// service has answered; the next use waits for that.
    pub fn post(
        &self,
        index: MailboxIndex,
        message: &Message,
        watch: &impl Watch,
    ) -> Result<(), CallError> {
        self.settle(index, watch)?;
        self.send(index, message, 0).map(|_| ())
    }

    /// Waits (again) for the reply of a request that was interrupted or posted.
    pub fn wait(&self, index: MailboxIndex, watch: &impl Watch) -> Result<Reply, CallError> {
        self.settle(index, watch)?;
        self.reply(index)
    }

    /// As [`ClientChannel::call`], for a request that answers with data: the payload's first bytes
    /// go into `into`, as many as the reply counts. Large ones are copied out while the service
    /// still copies in. After an error `into` may have changed. `into` is at most one payload
    /// buffer long.
    pub fn call_read(
        &self,
        index: MailboxIndex,
        message: &Message,
        into: &mut [u8],
        watch: &impl Watch,
    ) -> Result<Reply, CallError> {
        self.settle(index, watch)?;
        let method = self.plan.method_for(into.len());
        let posted = self.send(index, message, 0)?;
        let mut done = 0;
        let mut drain = |ready: usize, into: &mut [u8]| {
            let ready = ready.min(into.len());
            if ready > done {
                let offset = self.payload(index, done, ready - done);
                self.region.copy_out_with(method, offset, &mut into[done..ready]);
                done = ready;
            }
        };
        if into.len() >= CopyPlan::PIPELINE_BYTES_MIN {
            self.wait_free(index, posted.spin, watch, |ready| drain(ready, into))?;
        } else {
            self.wait_free(index, posted.spin, watch, |_| ())?;
        }
        let reply = self.reply(index)?;
        if let Status::Done(count) = reply.status {
            drain(usize::try_from(count).unwrap_or(usize::MAX), into);
        }
        Ok(reply)
    }

    /// As [`ClientChannel::call`], with `from` as the payload from byte `at` on. With `overlap`, a
    /// large payload is still being copied in while the service starts on it; a service that finds
    /// this thread stopped half-way serves what has come, so the count may fall short, and the
    /// caller goes on from there: not for appends, which must stay in one piece.
    pub fn call_write(
        &self,
        index: MailboxIndex,
        message: &Message,
        (at, from): (usize, &[u8]),
        overlap: bool,
        watch: &impl Watch,
    ) -> Result<Reply, CallError> {
        self.settle(index, watch)?;
        let (method, end) = (self.plan.method_for(from.len()), at + from.len());
        let overlap = overlap && from.len() >= CopyPlan::PIPELINE_BYTES_MIN;
        let chunk = if overlap { self.plan.chunk_bytes.max(1) as usize } else { from.len().max(1) };
        let mut pieces = from.chunks(chunk);
        let mut ready = at;
        let mut fill = |piece: &[u8]| {
            self.region.copy_in_with(method, self.payload(index, ready, piece.len()), piece);
            ready += piece.len();
            ready as u32
        };
        let first = fill(pieces.next().unwrap_or(&[]));
        let posted = self.send(index, message, if overlap { first } else { end as u32 })?;
        for piece in pieces {
            let ready = fill(piece);
            self.mailbox(index).set_progress(ready);
        }
        self.wait_free(index, posted.spin, watch, |_| ())?;
        self.reply(index)
    }

    #[inline]
    fn mailbox(&self, index: MailboxIndex) -> Mailbox<Mapped<'_>> {
        Mailbox(Mapped::new(&self.region, self.layout.mailbox(index.0 as usize)))
    }

    #[inline]
    fn bell(&self, group: usize) -> Bell<Mapped<'_>> {
        Bell(Mapped::new(&self.region, self.layout.control(group)))
    }

    #[inline]
    fn payload(&self, index: MailboxIndex, at: usize, len: usize) -> usize {
        let fits = at <= self.buffer_bytes() && len <= self.buffer_bytes() - at;
        assert!(fits, "outside the payload buffer");
        self.layout.mailbox(index.0 as usize) + MAILBOX_HEAD + at
    }

    /// Writes the message, hands the mailbox over and tells a worker. The mailbox is free.
    fn send(
        &self,
        index: MailboxIndex,
        message: &Message,
        ready: u32,
    ) -> Result<Posted, CallError> {
        let mailbox = self.mailbox(index);
        mailbox.put_words(0, &message.head());
        if message.has_tail() {
            mailbox.put_words(MESSAGE_HEAD_WORDS, &message.tail());
        }
        mailbox.set_progress(ready);
        let here = cpu::current();
        let (group, spin) = self.choose_group(index, here);
        let bell = self.bell(group);
        mailbox.post(here);
        let watched = bell.seems_to_watch(index.0) && bell.watches(index.0);
        if !watched && !self.push(group, index) {
            return Err(CallError::Lost);
        }
        if bell.must_ring() {
            self.doorbells.ring(group);
            return Ok(Posted { spin: false });
        }
        Ok(Posted { spin })
    }

    #[inline]
    fn push(&self, group: usize, index: MailboxIndex) -> bool {
        with_queue(&self.region, &self.layout, &self.geometry, group, |queue| queue.push(index.0))
    }

    /// The core group to ask, and whether spinning for its reply makes sense. An awake worker on
    /// another CPU is best; next, one on this CPU, woken for 4 µs instead of the 30 of a cross-CPU
    /// wake-up.
    fn choose_group(&self, index: MailboxIndex, here: u32) -> (usize, bool) {
        let groups = self.geometry.groups;
        let mut near = None;
        for step in 0..groups {
            let group = ((index.0 + step) % groups) as usize;
            let bell = self.bell(group);
            let same = bell.cpu() == here;
            if !same && !bell.is_asleep() {
                return (group, true);
            }
            if same {
                near = Some(group);
            }
        }
        (near.unwrap_or((index.0 % groups) as usize), false)
    }

    /// Waits until the mailbox is free, calling `progress` with the payload bytes that are ready.
    fn wait_free(
        &self,
        index: MailboxIndex,
        spin: bool,
        watch: &impl Watch,
        mut progress: impl FnMut(usize),
    ) -> Result<(), CallError> {
        let mailbox = self.mailbox(index);
        let own = &self.own[index.0 as usize];
        if spin {
            let budget = own.budget.load(Ordering::Relaxed);
            let (mut left, mut looks) = (budget, 0_u32);
            let (mut seen, mut crowded) = (0, false);
            while left > 0 && !crowded {
                if mailbox.is_free() {
                    own.budget.store(budget::after_find(budget), Ordering::Relaxed);
                    return Ok(());
                }
                let ready = mailbox.progress();
                if ready > seen {
                    (seen, left) = (ready, budget);
                    progress(ready as usize);
                }
                left -= 1;
                looks += 1;
                crowded = left > 0 && looks.is_multiple_of(CLIENT_PATIENCE) && sched::give_way();
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let slept = self.sleep_until_free(index, watch);
            own.slept(budget, Sleep::new(start.elapsed(), crowded));
            return slept;
        }
        self.sleep_until_free(index, watch)
    }

    fn sleep_until_free(&self, index: MailboxIndex, watch: &impl Watch) -> Result<(), CallError> {
        let mailbox = self.mailbox(index);
        while mailbox.announce_sleep() {
            if watch.interrupted() {
                return Err(CallError::Interrupted);
            }
            if mailbox.sleep(LIVENESS_PERIOD) == Woken::TimedOut {
                if !watch.alive() {
                    return if mailbox.is_free() { Ok(()) } else { Err(CallError::Lost) };
                }
                self.ring_again(index);
            }
        }
        Ok(())
    }

    /// Says once more that a mailbox holds a request and that there is work: who said it before may
    /// have been killed half-way. "Look at mailbox n" may be said any number of times.
    fn ring_again(&self, index: MailboxIndex) {
        if self.geometry.queue != QueueKind::Rcqb {
            let (group, _) = self.choose_group(index, cpu::current());
            self.push(group, index);
        }
        for group in 0..self.geometry.groups as usize {
            if self.bell(group).is_asleep() {
                self.doorbells.ring(group);
            }
        }
    }

    fn reply(&self, index: MailboxIndex) -> Result<Reply, CallError> {
        let mailbox = self.mailbox(index);
        let mut head = [0; REPLY_HEAD_WORDS];
        mailbox.get_words(0, &mut head);
        let used = Reply::words_used(head[0]);
        if used == REPLY_HEAD_WORDS {
            return Reply::from_head(head).ok_or(CallError::Lost);
        }
        let mut words = [0; WORDS];
        mailbox.get_words(0, &mut words[..used]);
        Reply::from_words(&words).ok_or(CallError::Lost)
    }
}

impl Own {
    /// Spinning was in vain, and ended so.
    fn slept(&self, budget: u32, sleep: Sleep) {
        let sleeps = self.sleeps.load(Ordering::Relaxed).wrapping_add(1);
        self.sleeps.store(sleeps, Ordering::Relaxed);
        self.budget.store(budget::after_sleep(budget, sleeps, sleep), Ordering::Relaxed);
    }
}
