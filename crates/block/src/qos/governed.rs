//! A device whose requests go when their lane's page allows it.
//!
//! Everything that passes is charged to the lane: reads, writes, discards and flushes, whoever in
//! the service sends them, so journal and writeback are their tenant's. A request that may not go
//! yet is kept in its channel, in order, and is [`Submitted::Pending`]; no thread is held.
//!
//! # Locking
//!
//! None on the way of a request that may go. `current` is taken to read when the lane changes its
//! page, which happens when a coordinator dies and another one takes over.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polylane_base::sync::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::lane::{Cost, Lane};
use super::page::{Mapped, SAMPLE, Words, counters};
use super::{Admission, Io, Kind, Nanos, Verdict};
use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector,
    Submitted,
};

/// Requests that a channel keeps; more are refused as [`Submitted::Busy`].
const KEPT_MAX: usize = 64;

/// Longest sleep of a channel that has requests to send.
const PARK_NS_MAX: Nanos = 20_000_000;

/// Nanoseconds of the clock that lanes and coordinator share.
pub fn monotonic_ns() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// A lane between processes.
pub type SharedLane = Lane<Mapped>;

/// The lane that a tenant's devices are charged to. It may change its page while I/O goes on.
#[derive(Debug, Default)]
pub struct Governor {
    current: RwLock<Option<Arc<SharedLane>>>,
    /// Changes with `current`.
    version: AtomicU64,
    /// What former pages counted, by word.
    carried: Mutex<Vec<u64>>,
    /// Reasons for which nothing is held back; changes with `version`.
    hurries: AtomicU64,
}

/// While this lives no request waits for its lane's share: see [`Governor::hurry`].
#[derive(Debug)]
pub struct Hurry(Arc<Governor>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.hurries.fetch_sub(1, Ordering::AcqRel);
        self.0.version.fetch_add(1, Ordering::Release);
    }
}

/// Words of a page that count for people and go on counting on the next page.
const COUNTING: std::ops::Range<usize> = 0..counters::HOLDING + counters::BUCKETS;

impl Governor {
    /// A governor without a lane: everything goes.
    pub fn new() -> Arc<Self> {
        Arc::new(Governor::default())
    }

    /// Goes on with another lane. Requests in flight are completed on the one that they went by.
    pub fn set(&self, lane: Option<SharedLane>) {
        let old = std::mem::replace(&mut *self.current.write(), lane.map(Arc::new));
        self.version.fetch_add(1, Ordering::Release);
        let Some(old) = old else { return };
        // Sleepers look again and find the new one.
        old.wake();
        let mut carried = self.carried.lock();
        carried.resize(COUNTING.end, 0);
        for word in COUNTING {
            let count = old.words().load(word, Ordering::Relaxed);
            carried[word] = carried[word].wrapping_add(count);
        }
    }

    /// Lets every request go, charged as ever, until the result is dropped: the caller that makes
    /// the volume stand still or ends its use waits for the device alone, not for a share or a
    /// limit.
    pub fn hurry(self: &Arc<Self>) -> Hurry {
        self.hurries.fetch_add(1, Ordering::AcqRel);
        self.version.fetch_add(1, Ordering::Release);
        if let Some(lane) = self.lane() {
            lane.wake();
        }
        Hurry(self.clone())
    }

    fn hurries(&self) -> bool {
        self.hurries.load(Ordering::Acquire) > 0
    }

    /// What a word of the lane's page counted, on this page and those before it.
    pub fn total(&self, word: usize) -> u64 {
        let now = self.lane().map_or(0, |lane| lane.words().load(word, Ordering::Relaxed));
        now.wrapping_add(self.carried.lock().get(word).copied().unwrap_or(0))
    }

    /// The lane, if there is one.
    pub fn lane(&self) -> Option<Arc<SharedLane>> {
        self.current.read().clone()
    }
}

/// For a device that has an engine, which keeps what may not go itself.
impl Admission for Governor {
    fn admit(&self, now: Nanos, io: &Io) -> Verdict {
        let Some(lane) = self.lane() else { return Verdict::Go };
        let verdict = if self.hurries() { lane.let_go(io) } else { lane.admit(io, || now) };
        if verdict == Verdict::Go {
            lane.note(io.kind);
        }
        verdict
    }

    fn complete(&self, _now: Nanos, io: &Io) {
        if let Some(lane) = self.lane() {
            lane.complete(lane.cost(io));
        }
    }
}

/// A device under a governor.
pub struct Governed {
    device: Arc<dyn BlockDevice>,
    governor: Arc<Governor>,
}

impl Governed {
    /// Puts `device` under `governor`.
    pub fn new(device: Arc<dyn BlockDevice>, governor: Arc<Governor>) -> Arc<Self> {
        Arc::new(Governed { device, governor })
    }

    fn channel_on(&self, inner: Box<dyn Channel>) -> Box<dyn Channel> {
        Box::new(GovernedChannel {
            inner,
            device: self.device.clone(),
            governor: self.governor.clone(),
            version: u64::MAX,
            lane: None,
            hurries: false,
            went: Vec::new(),
            free: Vec::new(),
            kept: VecDeque::new(),
            ends: [Sector(u64::MAX); 2],
            count: 0,
            inflight: 0,
            arrived: Vec::new(),
            ready: Vec::new(),
        })
    }
}

impl BlockDevice for Governed {
    fn sector_count(&self) -> u64 {
        self.device.sector_count()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        self.channel_on(self.device.clone().channel())
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        self.channel_on(self.device.clone().waiting_channel())
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.device.allocation(sector, count)
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.device.reserve(sector, count)
    }

    fn keeps_writes(&self) -> bool {
        self.device.keeps_writes()
    }

    fn writes_zeros(&self, op: Op) -> bool {
        self.device.writes_zeros(op)
    }

    fn forget(&self, sector: Sector, count: u64) {
        self.device.forget(sector, count);
    }

    fn mark_journal(&self, sector: Sector, count: u64) {
        self.device.mark_journal(sector, count);
    }
}

/// A request that went, until it is answered.
struct Went {
    lane: Option<Arc<SharedLane>>,
    cost: Cost,
    /// The maker's number.
    tag: u64,
    /// When it was submitted and when it went, if its latency is taken.
    since: Option<(Nanos, Nanos)>,
}

/// A request that has to wait.
struct Kept {
    request: Request,
    io: Io,
    since: Nanos,
    /// When it may go at the earliest; `None`: it is charged, and the device below had no room.
    until: Option<Nanos>,
}

struct GovernedChannel {
    inner: Box<dyn Channel>,
    device: Arc<dyn BlockDevice>,
    governor: Arc<Governor>,
    version: u64,
    lane: Option<Arc<SharedLane>>,
    /// Nothing is held back.
    hurries: bool,
    /// By the number under which the inner channel knows a request.
    went: Vec<Option<Went>>,
    free: Vec<usize>,
    kept: VecDeque<Kept>,
    /// Where the last read and the last write ended.
    ends: [Sector; 2],
    count: u64,
    inflight: usize,
    arrived: Vec<Completion>,
    /// Answered, not yet fetched.
    ready: Vec<Completion>,
}

impl GovernedChannel {
    /// Notices a change of the lane, and whether requests are in a hurry.
    #[inline]
    fn refresh(&mut self) {
        let version = self.governor.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.lane = self.governor.lane();
            self.hurries = self.governor.hurries();
        }
    }

    fn describe(&mut self, request: &Request) -> Io {
        let kind = Kind::of(request.op, &*self.device);
        let bytes = request.count.saturating_mul(SECTOR_BYTES as u64);
        let sequential = match kind {
            Kind::Read | Kind::Write => {
                let end = Sector(request.sector.0.saturating_add(request.count));
                let last = &mut self.ends[usize::from(kind == Kind::Write)];
                std::mem::replace(last, end) == request.sector
            }
            Kind::Discard | Kind::Flush => false,
        };
        Io { kind, bytes, sequential }
    }

    /// Sends a request that may go and is charged; gives it back when the device has no room.
    fn send(&mut self, mut request: Request, io: &Io, since: Option<(Nanos, Nanos)>) -> Submitted {
        let lane = self.lane.clone();
        let cost = lane.as_ref().map_or(0, |lane| lane.cost(io));
        let index = self.free.pop().unwrap_or_else(|| {
            self.went.push(None);
            self.went.len() - 1
        });
        let tag = std::mem::replace(&mut request.tag, index as u64);
        self.went[index] = Some(Went { lane, cost, tag, since });
        self.inflight += 1;
        match self.inner.submit(request) {
            Submitted::Pending => Submitted::Pending,
            Submitted::Done(completion) => Submitted::Done(self.answer(completion)),
            Submitted::Busy(mut same) => {
                self.inflight -= 1;
                same.tag = tag;
                self.went[index] = None;
                self.free.push(index);
                Submitted::Busy(same)
            }
        }
    }

    /// Books an answer and gives it its maker's number.
    fn answer(&mut self, mut completion: Completion) -> Completion {
        let index = completion.tag as usize;
        self.inflight = self.inflight.saturating_sub(1);
        if let Some(went) = self.went.get_mut(index).and_then(Option::take) {
            self.free.push(index);
            completion.tag = went.tag;
            if let Some(lane) = went.lane {
                lane.complete(went.cost);
                if let Some((since, sent)) = went.since {
                    let now = monotonic_ns();
                    lane.note_latency(now.saturating_sub(since));
                    lane.note_stay(now.saturating_sub(sent));
                }
            }
        }
        completion
    }

    /// Sends what was kept and may go now; when to look again if something may not.
    fn pump(&mut self) -> Option<Nanos> {
        self.refresh();
        while let Some(mut kept) = self.kept.pop_front() {
            let now = monotonic_ns();
            if let (Some(lane), Some(_)) = (self.lane.clone(), kept.until) {
                let verdict = match self.hurries {
                    true => lane.let_go(&kept.io),
                    false => lane.admit(&kept.io, || now),
                };
                if let Verdict::Wait(until) = verdict {
                    kept.until = Some(until);
                    self.kept.push_front(kept);
                    return Some(until);
                }
                lane.note_held(now.saturating_sub(kept.since));
            }
            let Kept { request, io, since, .. } = kept;
            match self.send(request, &io, Some((since, now))) {
                Submitted::Pending => {}
                Submitted::Done(completion) => self.ready.push(completion),
                Submitted::Busy(request) => {
                    self.kept.push_front(Kept { request, io, since, until: None });
                    return None;
                }
            }
        }
        None
    }

    /// Sleeps until the device has answered something, or what is kept may go.
    fn park_below(&mut self) {
        let until = self.kept.front().and_then(|kept| kept.until);
        let (Some(until), Some(event)) = (until, self.inner.event()) else {
            return self.inner.park();
        };
        let left = until.saturating_sub(monotonic_ns()).min(PARK_NS_MAX);
        let time = Timespec { tv_sec: 0, tv_nsec: left as _ };
        // An interruption is as good as an event: whoever parks looks again.
        let _ = poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], Some(&time));
    }

    /// Takes in what the device has done, and lets it start what it was sent.
    fn collect(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.poll(&mut arrived);
        for completion in arrived.drain(..) {
            let answered = self.answer(completion);
            self.ready.push(answered);
        }
        self.arrived = arrived;
    }
}

impl Channel for GovernedChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        self.refresh();
        if self.kept.len() >= KEPT_MAX {
            return Submitted::Busy(request);
        }
        let io = self.describe(&request);
        self.count += 1;
        let mut since = None;
        if let Some(lane) = &self.lane {
            lane.note(io.kind);
            since = self.count.is_multiple_of(SAMPLE).then(monotonic_ns);
            // Behind those that wait, or they would starve.
            let verdict = match (self.kept.is_empty(), self.hurries) {
                (true, false) => lane.admit(&io, monotonic_ns),
                (true, true) => lane.let_go(&io),
                (false, _) => Verdict::Wait(0),
            };
            if let Verdict::Wait(until) = verdict {
                let since = since.unwrap_or_else(monotonic_ns);
                self.kept.push_back(Kept { request, io, since, until: Some(until) });
                return Submitted::Pending;
            }
        }
        match self.send(request, &io, since.map(|since| (since, since))) {
            Submitted::Busy(request) => {
                let since = since.unwrap_or_else(monotonic_ns);
                self.kept.push_back(Kept { request, io, since, until: None });
                Submitted::Pending
            }
            other => other,
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.collect();
        if !self.kept.is_empty() {
            // What was answered may have made room.
            self.pump();
            self.collect();
        }
        done.append(&mut self.ready);
    }

    fn park(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        if self.inflight > 0 {
            return self.park_below();
        }
        if self.kept.is_empty() {
            return;
        }
        // With nothing in flight here, only credit helps, or another channel's completion.
        match self.lane.clone() {
            Some(lane) => {
                let _ = lane.wait(monotonic_ns, || self.pump().map_or(Ok(()), Err));
            }
            None => {
                self.pump();
            }
        }
    }

    /// While requests wait for credit there is no descriptor that tells: [`Channel::park`] does,
    /// and comes back every few milliseconds.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        if self.kept.is_empty() && self.ready.is_empty() { self.inner.event() } else { None }
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.inner.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        self.kept.is_empty() && self.ready.is_empty() && self.inner.rest()
    }
}

impl Drop for GovernedChannel {
    /// What is kept is answered to nobody; what is in flight is waited for, and booked.
    fn drop(&mut self) {
        for kept in self.kept.drain(..) {
            drop(kept.request.complete(Err(Error::Stopped)));
        }
        while self.inflight > 0 {
            self.inner.park();
            self.collect();
        }
    }
}
