//! The service's end of a channel: take requests, read them once, reply.
//!
//! # Invariants
//!
//! - Everything in the region may be rewritten by the client at any moment. What is read from it is
//!   copied to private memory and checked there; offsets are computed from private numbers only.
//! - `claims` is private and says which mailboxes are out to workers. A mailbox is taken at most
//!   once until it is replied to, whatever the client pushes.
//! - Nothing here waits for the client: the one wait, for the next piece of an overlapped write, is
//!   a bounded spin.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use polylane_base::Result;
use polylane_base::sync::{Mutex, thread};
use polylane_sys::room::Room;
use polylane_sys::{Region, event};

use super::claim::Claim;
use super::mailbox::Mailbox;
use super::{CopyPlan, MailboxIndex, with_queue};
use crate::layout::{Geometry, Layout, MAGIC, MAILBOX_HEAD, QueueKind, header};
use crate::memory::Mapped;
use crate::message::{MESSAGE_HEAD_WORDS, Message, REPLY_HEAD_WORDS, Reply, VERSION, WORDS};
use crate::queue::Ticket;
use crate::queue::bell::{Bell, NO_CPU};
use crate::stream::{DATA_AT, DATA_BYTES, Stream};
use crate::view::{FRAME_BYTES, Views};

/// Looks at an overlapped write's progress before it is served as short: some 20 to 50 µs. Half as
/// many after each write of a client whose bytes did not come, so that one who keeps the service
/// waiting does so for less time each time.
const WRITE_SPINS: u32 = 1000;
/// Looks that each page of progress buys: several times what copying it takes.
const PAGE_SPINS: u32 = 200;
/// From so many writes whose bytes did not come on, the service looks once.
const SHORT_WRITES_MAX: u32 = 10;

/// By how many requests a mailbox must lead all others before the worker watches it.
const WATCH_AFTER: u32 = 8;
/// A longer lead counts no more: who was busy once is forgotten after so many requests of others.
const VOTES_MAX: u32 = 32;

/// Values that one `take` throws away because no request is behind them.
const SPURIOUS_MAX: usize = 16;

/// One core group's requests.
#[derive(Debug, Default)]
struct Group {
    lock: Mutex<Taker>,
    /// Copies of what the taker knows, for a look without the lock: the watched mailbox plus one,
    /// and whether it has values in hand.
    watched: AtomicU32,
    in_hand: AtomicBool,
}

/// What a core group's taker remembers between two calls.
#[derive(Debug, Default)]
struct Taker {
    ticket: Ticket,
    /// The mailbox that is watched instead of waiting for its bit; see `queue::bell`.
    watched: Option<MailboxIndex>,
    /// The mailbox that most requests came from of late (Boyer and Moore's majority vote), and by
    /// how many it leads.
    favourite: Option<MailboxIndex>,
    votes: u32,
}

impl Taker {
    /// Counts a request of `index`.
    fn vote(&mut self, index: MailboxIndex) {
        if self.favourite == Some(index) {
            self.votes = (self.votes + 1).min(VOTES_MAX);
        } else if self.votes == 0 {
            (self.favourite, self.votes) = (Some(index), 1);
        } else {
            self.votes -= 1;
        }
    }

    /// Which mailbox deserves to be watched. A watch outlasts a few requests of others: a thread's
    /// unawaited requests come from its second mailbox.
    fn verdict(&self) -> Option<MailboxIndex> {
        let kept = self.watched == self.favourite && self.votes > 0;
        self.favourite.filter(|_| kept || self.votes >= WATCH_AFTER)
    }
}

/// The service's end. Thread-safe: any worker may take, any thread may reply.
#[derive(Debug)]
pub struct ServiceChannel {
    region: Region,
    memfd: OwnedFd,
    doorbells: Vec<OwnedFd>,
    layout: Layout,
    geometry: Geometry,
    plan: CopyPlan,
    takers: Vec<Group>,
    claims: Box<[AtomicU32]>,
    /// Writes of late whose bytes did not come in time, less those whose bytes did.
    short_writes: AtomicU32,
}

impl ServiceChannel {
    /// Makes a channel with its memory and one eventfd per core group. `EINVAL` for numbers out of
    /// bounds, else what the kernel says.
    pub fn create(geometry: Geometry, plan: CopyPlan) -> Result<ServiceChannel> {
        let layout = geometry.layout()?;
        let (region, memfd) = Region::create("polylane-channel", layout.total_bytes())?;
        let store = |offset, value| region.word32(offset).store(value, Ordering::Relaxed);
        store(header::VERSION, VERSION);
        store(header::MAILBOXES, geometry.mailbox_count);
        store(header::BUFFER, geometry.buffer_bytes);
        store(header::QUEUE, geometry.queue as u32);
        store(header::GROUPS, geometry.groups);
        store(header::FRAMES, geometry.frames);
        Stream(Mapped::new(&region, layout.stream())).shut();
        region.word64(header::MAGIC).store(MAGIC, Ordering::Release);
        let groups = 0..geometry.groups as usize;
        for group in groups.clone() {
            Bell(Mapped::new(&region, layout.control(group))).set_cpu(NO_CPU);
        }
        let doorbells = groups.clone().map(|_| event::eventfd()).collect::<Result<_>>()?;
        let takers = groups.map(|_| Group::default()).collect();
        let claims = (0..geometry.mailbox_count).map(|_| AtomicU32::new(0)).collect();
        let short_writes = AtomicU32::new(0);
        Ok(ServiceChannel {
            region,
            memfd,
            doorbells,
            layout,
            geometry,
            plan,
            takers,
            claims,
            short_writes,
        })
    }

    /// The memory, for the client.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// The eventfd of a core group, for the client and for the worker's epoll set: edge-triggered,
    /// and never read, since the client holds it too.
    pub fn doorbell(&self, group: usize) -> BorrowedFd<'_> {
        self.doorbells[group].as_fd()
    }

    /// What goes along with the welcome: the memory, then the doorbells in order.
    pub fn client_fds(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.memfd()).chain(self.doorbells.iter().map(|fd| fd.as_fd())).collect()
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How it moves large payloads.
    pub fn plan(&self) -> CopyPlan {
        self.plan
    }

    /// Payload bytes of a mailbox.
    pub fn buffer_bytes(&self) -> usize {
        self.geometry.buffer_bytes as usize
    }

    /// The next request of a core group; the mailbox is the caller's until
    /// [`ServiceChannel::reply`]. `None` when there is none, or when another thread is just taking
    /// from this group.
    pub fn take(&self, group: usize) -> Option<MailboxIndex> {
        if !self.seems_ready(group) {
            return None;
        }
        let mut taker = self.takers[group].lock.try_lock()?;
        for _ in 0..SPURIOUS_MAX {
            let Some(value) = self.queue(group, |queue| queue.pop(&mut taker.ticket)) else {
                let watched = taker.watched.filter(|&index| self.accept(index.0))?;
                taker.vote(watched);
                return Some(watched);
            };
            self.takers[group].in_hand.store(taker.ticket.in_hand(), Ordering::Relaxed);
            if self.accept(value) {
                self.remember(group, &mut taker, MailboxIndex(value));
                return Some(MailboxIndex(value));
            }
        }
        None
    }

    /// Whether [`ServiceChannel::take`] would find something. A hint that a hostile client can keep
    /// up for ever: bound what you do upon it.
    pub fn has_requests(&self, group: usize) -> bool {
        match self.takers[group].lock.try_lock() {
            Some(taker) => {
                self.queue(group, |queue| queue.ready(&taker.ticket))
                    || taker.watched.is_some_and(|index| self.is_waiting(index))
            }
            None => true,
        }
    }

    /// Tells the clients that the worker of `group` is about to sleep, or is back. After `true`,
    /// look at [`ServiceChannel::has_requests`] once more before sleeping.
    pub fn set_asleep(&self, group: usize, asleep: bool) {
        self.bell(group).set_asleep(asleep);
    }

    /// Tells the clients where the worker of `group` runs.
    pub fn set_cpu(&self, group: usize, cpu: u32) {
        self.bell(group).set_cpu(cpu);
    }

    /// The CPU that the request in a taken mailbox was posted from, by the client's own account.
    pub fn client_cpu(&self, index: MailboxIndex) -> u32 {
        self.mailbox(index).client_cpu()
    }

    /// The request in a taken mailbox, copied out; `None` when it is none that exists. Call once.
    pub fn message(&self, index: MailboxIndex) -> Option<Message> {
        let (mailbox, mut words) = (self.mailbox(index), [0; WORDS]);
        mailbox.get_words(0, &mut words[..MESSAGE_HEAD_WORDS]);
        let used = Message::words_used(words[0])?;
        mailbox.get_words(MESSAGE_HEAD_WORDS, &mut words[MESSAGE_HEAD_WORDS..used]);
        Message::from_words(&words)
    }

    /// Answers a taken mailbox; from now on it is the client's. Any thread, once per take.
    pub fn reply(&self, index: MailboxIndex, reply: &Reply) {
        let mailbox = self.mailbox(index);
        let head = reply.head();
        let used = Reply::words_used(head[0]);
        if used == REPLY_HEAD_WORDS {
            mailbox.put_words(0, &head);
        } else {
            mailbox.put_words(0, &reply.to_words()[..used]);
        }
        Claim(&self.claims[index.0 as usize]).finish(|| mailbox.reply());
        mailbox.wake();
    }

    /// The session's stream. Its service side is for one thread at a time.
    #[inline]
    pub fn stream(&self) -> Stream<Mapped<'_>> {
        Stream(Mapped::new(&self.region, self.layout.stream()))
    }

    /// Copies bytes out of the stream's ring. False: they do not lie in it.
    pub fn stream_get(&self, at: usize, into: &mut [u8]) -> bool {
        let fits = at <= DATA_BYTES && into.len() <= DATA_BYTES - at;
        if fits {
            let method = self.plan.method_for(into.len());
            self.region.copy_out_with(method, self.layout.stream() + DATA_AT + at, into);
        }
        fits
    }

    /// What the client sees of its files. Use them only if there are frames.
    #[inline]
    pub fn views(&self) -> Views<Mapped<'_>> {
        let memory = Mapped::new(&self.region, self.layout.views());
        Views { memory, frames: self.geometry.frames as usize }
    }

    /// Stores bytes in a frame, at an offset that [`Views`] gave.
    pub fn frame_put(&self, at: usize, from: &[u8]) {
        self.region.copy_in(self.layout.views() + at, from);
    }

    /// Copies bytes of a frame out.
    pub fn frame_get(&self, at: usize, into: &mut [u8]) {
        self.region.copy_out(self.layout.views() + at, into);
    }

    /// Copies payload bytes of a taken mailbox out. In range, or it panics: check lengths from the
    /// message against [`ServiceChannel::buffer_bytes`].
    pub fn payload_get(&self, index: MailboxIndex, at: usize, into: &mut [u8]) {
        let offset = self.payload(index, at, into.len());
        self.region.copy_out_with(self.plan.method_for(into.len()), offset, into);
    }

    /// Copies bytes into the payload of a taken mailbox. In range, or it panics.
    pub fn payload_put(&self, index: MailboxIndex, at: usize, from: &[u8]) {
        let offset = self.payload(index, at, from.len());
        self.region.copy_in_with(self.plan.method_for(from.len()), offset, from);
    }

    /// The payload of a taken mailbox as the place where read data goes. `total` is what was asked
    /// for.
    pub fn read_pipe(&self, index: MailboxIndex, total: usize) -> ReadPipe<'_> {
        let method = self.plan.method_for(total);
        ReadPipe { channel: self, index, method, ready: 0, published: 0 }
    }

    /// The payload of a taken mailbox from `start` on as the place where `len` bytes to write come
    /// from. The range must lie in the buffer. Waits, boundedly, for the bytes that are still being
    /// copied in.
    pub fn write_pipe(&self, index: MailboxIndex, start: usize, len: usize) -> WritePipe<'_> {
        let mailbox = self.mailbox(index);
        let end = start + len;
        let short_writes = self.short_writes.load(Ordering::Relaxed);
        await_bytes(end, short_writes, || mailbox.progress() as usize);
        let now = mailbox.progress() as usize;
        let noted = match now >= end {
            true => short_writes.saturating_sub(1),
            false => (short_writes + 1).min(SHORT_WRITES_MAX),
        };
        if noted != short_writes {
            self.short_writes.store(noted, Ordering::Relaxed);
        }
        let len = now.clamp(start, end) - start;
        WritePipe { channel: self, index, method: self.plan.method_for(len), start, len }
    }

    /// A request came by the queue: the mailbox that the worker watches may not be the busiest.
    fn remember(&self, group: usize, taker: &mut Taker, index: MailboxIndex) {
        taker.vote(index);
        let next = taker.verdict().filter(|_| self.geometry.queue == QueueKind::Mailbox);
        let former = std::mem::replace(&mut taker.watched, next);
        if former == next {
            return;
        }
        let word = next.map_or(0, |index| index.0 + 1);
        self.takers[group].watched.store(word, Ordering::Relaxed);
        self.bell(group).watch(next.map(|index| index.0));
        if let Some(former) = former.filter(|&former| self.is_waiting(former)) {
            // Its client saw the watch and did not push.
            self.queue(group, |queue| queue.push(former.0));
        }
    }

    /// Whether it is worth the lock: an idle worker comes here with nothing but loads of lines that
    /// it has already. RCQB's consumers must draw their place first.
    #[inline]
    fn seems_ready(&self, group: usize) -> bool {
        let known = &self.takers[group];
        self.geometry.queue == QueueKind::Rcqb
            || known.in_hand.load(Ordering::Relaxed)
            || self.queue(group, |queue| queue.ready(&Ticket::default()))
            || match known.watched.load(Ordering::Relaxed) {
                0 => false,
                word => self.is_waiting(MailboxIndex(word - 1)),
            }
    }

    /// Whether a mailbox holds a request that nobody serves.
    fn is_waiting(&self, index: MailboxIndex) -> bool {
        Claim(&self.claims[index.0 as usize]).is_open() && self.mailbox(index).is_posted()
    }

    /// A request was announced: whether there is one, and nobody else serves it.
    #[inline]
    fn accept(&self, value: u32) -> bool {
        let Some(claim) = self.claims.get(value as usize) else {
            return false;
        };
        let mailbox = self.mailbox(MailboxIndex(value));
        Claim(claim).accept(|| mailbox.is_posted(), thread::yield_now)
    }

    #[inline]
    fn queue<R>(&self, group: usize, with: impl FnOnce(&dyn crate::queue::RequestQueue) -> R) -> R {
        with_queue(&self.region, &self.layout, &self.geometry, group, with)
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
}

/// Looks at the `progress` of a write until all its bytes up to `end` have come, or they take too
/// long for a client of so many `short_writes`.
fn await_bytes(end: usize, short_writes: u32, mut progress: impl FnMut() -> usize) {
    let (mut left, bought) = (WRITE_SPINS >> short_writes, PAGE_SPINS >> short_writes);
    let mut ready = 0;
    loop {
        let now = progress();
        if now >= end || left == 0 {
            break;
        }
        // Progress buys time, but only while it is real: at most a page's worth of turns each.
        if now >= ready + 4096 {
            (left, ready) = (left + bought, now);
        }
        left -= 1;
        std::hint::spin_loop();
    }
}

/// Where the data of a read goes: bytes become visible to the client, in steps of the plan's chunk,
/// while later ones are still being copied. Bytes may come in any order, each once; only what is
/// contiguous from the start is shown early.
#[derive(Debug)]
pub struct ReadPipe<'a> {
    channel: &'a ServiceChannel,
    index: MailboxIndex,
    method: polylane_sys::copy::Method,
    ready: usize,
    published: usize,
}

impl ReadPipe<'_> {
    /// Stores `bytes` at `at`. In range of the buffer, or it panics.
    pub fn put(&mut self, mut at: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.chunk_bytes()) {
            let offset = self.channel.payload(self.index, at, piece.len());
            self.channel.region.copy_in_with(self.method, offset, piece);
            self.stored(at, piece.len());
            at += piece.len();
        }
    }

    /// Stores `len` zeros at `at`. In range of the buffer, or it panics.
    pub fn zero(&mut self, at: usize, len: usize) {
        let offset = self.channel.payload(self.index, at, len);
        self.channel.region.zero(offset, len);
        self.stored(at, len);
    }

    /// Has `fill` store up to `len` bytes at `at`, which tells how many it has stored, from the
    /// start on. In range of the buffer, or it panics.
    pub fn fill(
        &mut self,
        at: usize,
        len: usize,
        fill: impl FnOnce(Room<'_>) -> Result<usize>,
    ) -> Result<usize> {
        let offset = self.channel.payload(self.index, at, len);
        let count = fill(self.channel.region.room(offset, len))?.min(len);
        self.stored(at, count);
        Ok(count)
    }

    fn chunk_bytes(&self) -> usize {
        self.channel.plan.chunk_bytes.max(1) as usize
    }

    fn stored(&mut self, at: usize, len: usize) {
        if at > self.ready {
            return;
        }
        self.ready = self.ready.max(at + len);
        if self.ready - self.published >= self.chunk_bytes() {
            self.published = self.ready;
            self.channel.mailbox(self.index).set_progress(self.ready as u32);
        }
    }
}

/// Where the data of a write comes from.
#[derive(Debug)]
pub struct WritePipe<'a> {
    channel: &'a ServiceChannel,
    index: MailboxIndex,
    method: polylane_sys::copy::Method,
    start: usize,
    len: usize,
}

impl WritePipe<'_> {
    /// Bytes that are there: all, unless the client stopped in the middle of copying them in.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Of `len` bytes that are to be written at `offset` of a file: where some are missing, those
    /// that are there end with a page of the file.
    pub fn end_with_page(&mut self, offset: u64, len: usize) {
        let beyond = (offset.wrapping_add(self.len as u64) % FRAME_BYTES as u64) as usize;
        if self.len < len && beyond < self.len {
            self.len -= beyond;
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the `into.len()` bytes at `at` out. Within [`WritePipe::len`], or it panics.
    pub fn get(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len, "outside the bytes to write");
        let offset = self.channel.payload(self.index, self.start + at, into.len());
        self.channel.region.copy_out_with(self.method, offset, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> ServiceChannel {
        let (queue, buffer_bytes) = (QueueKind::Mailbox, 128 << 10);
        let geometry = Geometry { queue, mailbox_count: 2, buffer_bytes, groups: 1, frames: 0 };
        ServiceChannel::create(geometry, CopyPlan::default()).expect("memory")
    }

    /// How often a write is looked at whose bytes do not come, or come as `progress` says.
    fn looks(short_writes: u32, mut progress: impl FnMut(u32) -> usize) -> u32 {
        let mut looks = 0;
        await_bytes(100_000, short_writes, || {
            looks += 1;
            progress(looks)
        });
        looks
    }

    #[test]
    fn a_write_whose_bytes_do_not_come_is_waited_for_half_as_long_each_time() {
        let waits: Vec<u32> = (0..=SHORT_WRITES_MAX).map(|short| looks(short, |_| 0) - 1).collect();
        assert_eq!(waits[0], WRITE_SPINS);
        assert!(waits.windows(2).all(|pair| pair[1] == pair[0] / 2), "{waits:?}");
        assert_eq!(waits.last(), Some(&0), "it is looked at once");
        // Bytes that come in small pieces buy no time, and pages only so much.
        assert_eq!(looks(3, |look| look as usize), waits[3] + 1);
        assert!(looks(0, |look| 4096 * look as usize) <= 100_000_u32.div_ceil(4096));
        assert!(looks(0, |look| look as usize * 40) <= WRITE_SPINS + 25 * PAGE_SPINS + 1);
    }

    #[test]
    fn a_client_is_waited_for_less_until_its_bytes_come() {
        let (channel, index) = (channel(), MailboxIndex(0));
        let short = || channel.short_writes.load(Ordering::Relaxed);
        for turn in 1..SHORT_WRITES_MAX + 5 {
            assert_eq!(channel.write_pipe(index, 0, 60_000).len(), 0, "nothing came");
            assert_eq!(short(), turn.min(SHORT_WRITES_MAX));
        }
        // One of no bytes is whole.
        for turn in (0..SHORT_WRITES_MAX).rev() {
            channel.write_pipe(index, 0, 0);
            assert_eq!(short(), turn);
        }
        channel.write_pipe(index, 0, 0);
        assert_eq!(short(), 0);
    }
}
