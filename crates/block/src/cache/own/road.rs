//! One thread's requests on their way through the store.
//!
//! A request is a *job*; what goes to the medium for it are *parts*, told apart by their tags.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polylane_sys::buffer::Buffer;

use super::OwnStore;
use super::state::{BatchEnd, Source};
use crate::cache::Road;
use crate::cache::bell::{Bell, nap};
use crate::cache::pdc::Admission;
use crate::device::{Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted};
use crate::pieces::{gather, scatter};

/// Requests under way per road.
const DEPTH: usize = 64;
/// Batches of dirty blocks under way per flush.
const FLUSH_BATCHES: usize = 8;
/// A journal's write below this many bytes waits for the flush that follows it, which writes it
/// together with the data: for a medium with an arm that is one way to this volume instead of two.
/// Larger ones would take too many blocks meanwhile.
const HOLD_BYTES: u64 = 128 << 10;
/// Requests of this many bytes and more are streams: past the cache, which they would only sweep.
const STREAM_BYTES: u64 = 1 << 20;

/// A request whose answer needs the medium.
struct Job {
    tag: u64,
    /// Here while parts of it are below; below itself when it went as a whole.
    request: Option<Request>,
    parts: usize,
    error: Option<Error>,
    /// Of a flush: its number.
    flush: Option<u64>,
}

/// Something below.
enum Part {
    /// A read of a missing run, as a request of its own.
    Fill { job: usize, id: u64, range: Range<u64>, keep: bool },
    /// A read of which nothing was here, as it came.
    WholeFill { job: usize, id: u64, range: Range<u64>, keep: bool },
    /// A change, as it came.
    Direct { job: usize, id: u64, range: Range<u64>, keep: bool },
    /// Dirty blocks for a flush.
    Batch { job: usize, end: BatchEnd },
    /// The medium's flush.
    Flush { job: usize, covered: Vec<u64> },
}

pub(super) struct OwnRoad {
    inner: Box<dyn Channel>,
    store: Arc<OwnStore>,
    bell: Bell,
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    parts: Vec<Option<Part>>,
    free_parts: Vec<usize>,
    /// Parts below.
    below: usize,
    /// Parts that the channel had no room for.
    backlog: VecDeque<Request>,
    /// Changes that wait for somebody's batch, with their jobs.
    waiting: VecDeque<(Request, usize, bool)>,
    arrived: Vec<Completion>,
    finished: Vec<Completion>,
    /// It waited for others once, so the bell may ring.
    listens: bool,
    /// Something went down since the channel was polled.
    pushed: bool,
}

fn range_of(request: &Request) -> Range<u64> {
    request.sector.0..request.sector.0 + request.count
}

fn bytes_from(range: &Range<u64>, sector: u64) -> usize {
    (sector - range.start) as usize * SECTOR_BYTES
}

impl OwnRoad {
    pub(super) fn new(store: Arc<OwnStore>, waits: bool) -> OwnRoad {
        let inner = match waits {
            true => store.inner.clone().waiting_channel(),
            false => store.inner.clone().channel(),
        };
        OwnRoad {
            bell: Bell::new(&[inner.event()]),
            inner,
            store,
            jobs: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            below: 0,
            backlog: VecDeque::new(),
            waiting: VecDeque::new(),
            arrived: Vec::new(),
            finished: Vec::new(),
            listens: false,
            pushed: false,
        }
    }

    fn new_job(&mut self, tag: u64, request: Option<Request>, flush: Option<u64>) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[index] = Some(Job { tag, request, parts: 0, error: None, flush });
        index
    }

    /// Sends a part down; its answer comes by `arrived`.
    fn send(&mut self, mut request: Request, part: Part) {
        let (Part::Fill { job, .. }
        | Part::WholeFill { job, .. }
        | Part::Direct { job, .. }
        | Part::Batch { job, .. }
        | Part::Flush { job, .. }) = part;
        if let Some(job) = &mut self.jobs[job] {
            job.parts += 1;
        }
        let index = self.free_parts.pop().unwrap_or_else(|| {
            self.parts.push(None);
            self.parts.len() - 1
        });
        self.parts[index] = Some(part);
        request.tag = index as u64;
        self.push(request);
    }

    fn push(&mut self, request: Request) {
        match self.inner.submit(request) {
            Submitted::Done(completion) => self.arrived.push(completion),
            Submitted::Pending => {
                self.below += 1;
                self.pushed = true;
            }
            Submitted::Busy(request) => self.backlog.push_back(request),
        }
    }

    fn read(&mut self, mut request: Request, keep: bool) -> Option<Completion> {
        let range = range_of(&request);
        let keep = keep && request.count * (SECTOR_BYTES as u64) < STREAM_BYTES;
        let mut state = self.store.state.lock();
        let data = &mut request.data;
        let mut out = |sector: u64, bytes: &[u8]| scatter(data, bytes_from(&range, sector), bytes);
        let missing = state.read(&range, &mut out);
        let ids: Vec<u64> = missing.iter().map(|run| state.begin_fill(run.clone())).collect();
        drop(state);
        if missing.is_empty() {
            return Some(request.complete(Ok(())));
        }
        if missing[0] == range {
            let job = self.new_job(request.tag, None, None);
            self.send(request, Part::WholeFill { job, id: ids[0], range, keep });
            return None;
        }
        let job = self.new_job(request.tag, Some(request), None);
        for (run, id) in missing.into_iter().zip(ids) {
            let bytes = (run.end - run.start) as usize * SECTOR_BYTES;
            let data = vec![Buffer::zeroed(bytes)];
            let part = Request::with_data(Op::Read, Sector(run.start), data, 0);
            self.send(part, Part::Fill { job, id, range: run, keep });
        }
        None
    }

    fn write(&mut self, request: Request, admission: Admission) -> Option<Completion> {
        let range = range_of(&request);
        let bytes = request.count * SECTOR_BYTES as u64;
        let keep = admission != Admission::Bypass && bytes < STREAM_BYTES;
        let hold = keep || bytes < HOLD_BYTES;
        if matches!(request.op, Op::Write { fua: false }) && hold {
            let mut state = self.store.state.lock();
            let data = &request.data;
            let from =
                |sector: u64, into: &mut [u8]| gather(data, bytes_from(&range, sector), into);
            let cold = admission != Admission::Normal;
            if !state.stopped && state.write(&range, cold, from) {
                let sweep = state.wants_sweep();
                drop(state);
                if sweep {
                    self.store.sweeper.wake();
                }
                return Some(request.complete(Ok(())));
            }
            if state.stopped {
                return Some(request.complete(Err(Error::Stopped)));
            }
        }
        let job = self.new_job(request.tag, None, None);
        let keep = keep && matches!(request.op, Op::Write { .. });
        self.direct(request, job, keep);
        None
    }

    /// Sends a change to the medium, or has it wait for batches in its range.
    fn direct(&mut self, request: Request, job: usize, keep: bool) {
        let range = range_of(&request);
        let mut state = self.store.state.lock();
        let Some(id) = state.begin_direct(range.clone()) else {
            self.bell.join(&mut state.waiting);
            drop(state);
            self.listens = true;
            self.waiting.push_back((request, job, keep));
            return;
        };
        drop(state);
        self.send(request, Part::Direct { job, id, range, keep });
    }

    /// Takes the answer of a part in.
    fn take(&mut self, completion: Completion) {
        let index = completion.tag as usize;
        let Some(part) = self.parts.get_mut(index).and_then(Option::take) else { return };
        self.free_parts.push(index);
        let result = completion.result;
        match part {
            Part::Fill { job, id, range, keep } => {
                self.keep_fill(id, keep && result.is_ok(), &range, &completion.data);
                let request = self.jobs[job].as_mut().and_then(|job| job.request.as_mut());
                if let (Some(request), Some(data)) = (request, completion.data.first()) {
                    let at = bytes_from(&range_of(request), range.start);
                    scatter(&mut request.data, at, data);
                }
                self.part_over(job, result);
            }
            Part::WholeFill { job, id, range, keep } => {
                self.keep_fill(id, keep && result.is_ok(), &range, &completion.data);
                self.whole_over(job, completion);
            }
            Part::Direct { job, id, range, keep } => {
                let data = &completion.data;
                let mut from =
                    |sector: u64, into: &mut [u8]| gather(data, bytes_from(&range, sector), into);
                let from: Option<&mut Source<'_>> = if keep { Some(&mut from) } else { None };
                self.store.state.lock().end_direct(id, result.is_ok(), from);
                self.whole_over(job, completion);
            }
            Part::Batch { job, end } => {
                self.store.state.lock().end_batch(&end, result.is_ok());
                self.part_over(job, result);
            }
            Part::Flush { job, covered } => {
                let mut state = self.store.state.lock();
                state.end_flush(&covered, result.is_ok());
                state.stopped |= result.is_err();
                drop(state);
                if let Some(job) = &mut self.jobs[job] {
                    job.flush = None;
                }
                self.part_over(job, result);
            }
        }
    }

    fn keep_fill(&self, id: u64, keep: bool, range: &Range<u64>, data: &[Buffer]) {
        let from = |sector: u64, into: &mut [u8]| gather(data, bytes_from(range, sector), into);
        self.store.state.lock().end_fill(id, keep, from);
    }

    /// The request went as a whole, and this is its answer.
    fn whole_over(&mut self, index: usize, mut completion: Completion) {
        let Some(job) = self.jobs[index].take() else { return };
        self.free.push(index);
        completion.tag = job.tag;
        self.finished.push(completion);
    }

    /// One of the parts is over; with the last of them the request is.
    fn part_over(&mut self, index: usize, result: Result<(), Error>) {
        let Some(job) = &mut self.jobs[index] else { return };
        job.parts -= 1;
        job.error = job.error.or(result.err());
        if job.flush.is_some() {
            return self.advance(index);
        }
        if job.parts > 0 {
            return;
        }
        let error = job.error;
        if let Some(request) = self.jobs[index].take().and_then(|job| job.request) {
            self.finished.push(request.complete(error.map_or(Ok(()), Err)));
        }
        self.free.push(index);
    }

    /// Takes a flush as far as it gets.
    fn advance(&mut self, index: usize) {
        loop {
            let Some(Job { parts, error, flush: Some(number), .. }) = &self.jobs[index] else {
                return;
            };
            let (parts, failed, number) = (*parts, error.is_some(), *number);
            if failed && parts == 0 {
                self.give_up(index);
                return;
            }
            if failed || parts >= FLUSH_BATCHES {
                return;
            }
            let mut state = self.store.state.lock();
            if let Some(batch) = state.next_batch(number) {
                drop(state);
                let (sector, data, end) = batch.split();
                let op = Op::Write { fua: false };
                let request = Request::with_data(op, Sector(sector), vec![data], 0);
                self.send(request, Part::Batch { job: index, end });
                continue;
            }
            if parts > 0 {
                return;
            }
            if state.is_behind(number) {
                // Another channel has the rest under way.
                self.bell.join(&mut state.waiting);
                self.listens = true;
                return;
            }
            let covered = state.take_unflushed();
            drop(state);
            let request = Request::without_data(Op::Flush, Sector(0), 0, 0);
            self.send(request, Part::Flush { job: index, covered });
            return;
        }
    }

    /// Ends a flush whose blocks could not be written. They stay dirty.
    fn give_up(&mut self, index: usize) {
        let Some(job) = self.jobs[index].take() else { return };
        self.free.push(index);
        if let (Some(request), Some(error)) = (job.request, job.error) {
            self.finished.push(request.complete(Err(error)));
        }
    }

    /// Takes everything in that has arrived.
    fn settle(&mut self) {
        while let Some(completion) = self.arrived.pop() {
            self.take(completion);
        }
    }

    fn advance_flushes(&mut self) {
        for index in 0..self.jobs.len() {
            if self.jobs[index].as_ref().is_some_and(|job| job.flush.is_some()) {
                self.advance(index);
                self.settle();
            }
        }
    }

    /// Takes what the channel has.
    fn collect(&mut self) {
        let before = self.arrived.len();
        self.inner.poll(&mut self.arrived);
        self.below -= self.arrived.len() - before;
    }

    fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }
}

impl Road for OwnRoad {
    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, request: Request, admission: Admission) -> Submitted {
        if request.is_change() && self.store.inner.read_only() {
            return Submitted::Done(request.complete(Err(Error::ReadOnly)));
        }
        let done = match request.op {
            Op::Read => self.read(request, admission != Admission::Bypass),
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard => {
                self.write(request, admission)
            }
            Op::Flush => {
                let number = self.store.state.lock().now();
                let job = self.new_job(request.tag, Some(request), Some(number));
                self.advance(job);
                None
            }
        };
        done.map_or(Submitted::Pending, Submitted::Done)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.listens {
            self.bell.silence();
        }
        for _ in 0..self.waiting.len() {
            let Some((request, job, keep)) = self.waiting.pop_front() else { break };
            self.direct(request, job, keep);
        }
        // Parts start with the channel's next poll, so after the last of them comes one more.
        loop {
            self.pushed = false;
            self.collect();
            for _ in 0..self.backlog.len() {
                let Some(request) = self.backlog.pop_front() else { break };
                self.push(request);
            }
            self.settle();
            self.advance_flushes();
            if !self.pushed {
                break;
            }
        }
        done.append(&mut self.finished);
    }

    fn park(&mut self) {
        if self.is_idle() || !self.arrived.is_empty() || !self.finished.is_empty() {
            return;
        }
        self.collect();
        if !self.arrived.is_empty() || self.bell.wait() {
            return;
        }
        match self.below {
            0 => nap(),
            _ => self.inner.park(),
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.bell.fd()
    }
}

impl Drop for OwnRoad {
    /// Parts below are waited for: others may wait for what they hold.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while !self.is_idle() {
            self.park();
            self.poll(&mut done);
        }
    }
}
