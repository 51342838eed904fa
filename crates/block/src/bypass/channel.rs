//! One thread's road to a volume: chunks entered, sectors translated, slices put together again.
//!
//! A request that lies in one piece on the medium goes there as it is. One that does not is split:
//! each slice has memory of its own, all are in flight together, and the last one ends the request,
//! with the first error that there was. What waits (flushes, discards, a hole that gets its chunk)
//! the clerk does, who answers by the bell.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;
use polylane_sys::event::{Epoll, Interest};

use super::BypassVolume;
use super::chunks::Found;
use super::desk::{Answer, Bell, Job, Work};
use super::volume::Shared;
use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};

const UNIT: u64 = SECTOR_BYTES as u64;

/// Requests at a time.
const DEPTH: usize = 64;

/// Where a slice's number is in a tag; below it is the request's slot. 0: not split.
const SLICE_SHIFT: u32 = 32;

/// Sectors in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slice {
    /// Their place on the medium; `None`: a hole.
    at: Option<u64>,
    /// First one, in the request.
    from: u64,
    count: u64,
}

/// A request on its way.
#[derive(Default)]
struct Slot {
    tag: u64,
    sector: Sector,
    /// The chunks that it is in ...
    entered: Range<u32>,
    /// ... but for these, which are holes.
    holes: Vec<u32>,
    /// The request itself, while it is split or waits for the clerk.
    request: Option<Request>,
    slices: Vec<Slice>,
    /// Slices in flight.
    left: usize,
    error: Option<Error>,
}

/// What came of a try.
enum Tried {
    Done(Completion),
    Pending,
    Busy(Request),
}

pub(super) struct BypassChannel {
    below: Box<dyn Channel>,
    /// Which road `below` is of.
    road: usize,
    /// One request at a time, whose sender waits.
    waiting: bool,
    volume: Arc<BypassVolume>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slices that the medium had no room for.
    outbox: VecDeque<Request>,
    bell: Arc<Bell>,
    /// Requests with the clerk.
    jobs: usize,
    in_flight: usize,
    arrived: Vec<Completion>,
    events: OnceCell<Option<Epoll>>,
}

impl BypassChannel {
    pub(super) fn new(volume: Arc<BypassVolume>, waiting: bool) -> BypassChannel {
        let road = volume.shared.road_number();
        BypassChannel {
            below: open_road(&volume.shared, road, waiting),
            road,
            waiting,
            volume,
            slots: (0..DEPTH).map(|_| Slot::default()).collect(),
            free: (0..DEPTH).rev().collect(),
            outbox: VecDeque::new(),
            bell: Arc::new(Bell::new()),
            jobs: 0,
            in_flight: 0,
            arrived: Vec::with_capacity(DEPTH),
            events: OnceCell::new(),
        }
    }

    /// Sends a read or write on its way, for the first time or again.
    fn go(&mut self, index: usize, request: Request) -> Tried {
        let shared = &*self.volume.shared;
        if shared.is_stopped() {
            return Tried::Done(self.end(index, request, Err(Error::Stopped)));
        }
        let slot = &mut self.slots[index];
        if let Err(work) = resolve(shared, slot, &request) {
            self.ask(index, request, work);
            return Tried::Pending;
        }
        // No chunk could be entered while the road was changed.
        let road = shared.road_number();
        if road != self.road {
            self.take_road(road);
        }
        match self.slots[index].slices[..] {
            [Slice { at: Some(at), .. }] => self.send_whole(index, request, at),
            [Slice { at: None, .. }] => {
                let mut request = request;
                request.data.iter_mut().for_each(|buffer| buffer.fill(0));
                Tried::Done(self.end(index, request, Ok(())))
            }
            _ => {
                self.send_slices(index, request);
                Tried::Pending
            }
        }
    }

    fn send_whole(&mut self, index: usize, mut request: Request, at: u64) -> Tried {
        (request.tag, request.sector) = (index as u64, Sector(at));
        match self.below.submit(request) {
            Submitted::Done(completion) => Tried::Done(self.end_completion(index, completion)),
            Submitted::Pending => {
                self.in_flight += 1;
                Tried::Pending
            }
            Submitted::Busy(mut request) => {
                let slot = &mut self.slots[index];
                (request.tag, request.sector) = (slot.tag, slot.sector);
                leave(&self.volume.shared, slot);
                Tried::Busy(request)
            }
        }
    }

    fn send_slices(&mut self, index: usize, mut request: Request) {
        let slot = &mut self.slots[index];
        slot.error = None;
        slot.left = 0;
        for (number, slice) in slot.slices.iter().enumerate() {
            let Some(at) = slice.at else {
                each_part(&mut request.data, slice, |buffer, _| buffer.fill(0));
                continue;
            };
            let mut buffer = Buffer::zeroed((slice.count * UNIT) as usize);
            if request.op != Op::Read {
                each_part(&mut request.data, slice, |part, done| {
                    buffer[done..done + part.len()].copy_from_slice(part);
                });
            }
            let tag = index as u64 | (number as u64 + 1) << SLICE_SHIFT;
            let slice = Request::with_data(request.op, Sector(at), vec![buffer], tag);
            self.outbox.push_back(slice);
            slot.left += 1;
        }
        slot.request = Some(request);
        self.empty_outbox();
    }

    /// Sends what the medium had no room for, as far as it has now.
    fn empty_outbox(&mut self) {
        while let Some(request) = self.outbox.pop_front() {
            match self.below.submit(request) {
                Submitted::Done(completion) => {
                    // As if it had come by itself, so that it is answered by poll.
                    self.in_flight += 1;
                    self.arrived.push(completion);
                }
                Submitted::Pending => self.in_flight += 1,
                Submitted::Busy(request) => return self.outbox.push_front(request),
            }
        }
    }

    /// Takes in one request or slice that the medium is done with.
    fn arrive(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        self.in_flight -= 1;
        let index = (completion.tag & ((1 << SLICE_SHIFT) - 1)) as usize;
        let Some(number) = (completion.tag >> SLICE_SHIFT).checked_sub(1) else {
            let completion = self.end_completion(index, completion);
            return done.push(completion);
        };
        let slot = &mut self.slots[index];
        let Some(request) = slot.request.as_mut() else { return };
        match (completion.result, completion.data.first()) {
            (Err(error), _) => slot.error = slot.error.or(Some(error)),
            (Ok(()), Some(buffer)) if request.op == Op::Read => {
                each_part(&mut request.data, &slot.slices[number as usize], |part, done| {
                    part.copy_from_slice(&buffer[done..done + part.len()]);
                });
            }
            _ => {}
        }
        slot.left -= 1;
        if slot.left == 0
            && let Some(request) = slot.request.take()
        {
            let result = slot.error.take().map_or(Ok(()), Err);
            done.push(self.end(index, request, result));
        }
    }

    /// Has the clerk do something for a request, which waits here.
    fn ask(&mut self, index: usize, request: Request, work: Work) {
        self.slots[index].request = Some(request);
        self.jobs += 1;
        self.volume.shared.desk.push(Job { work, bell: self.bell.clone(), slot: index });
    }

    /// Takes in what the clerk has done.
    fn hear(&mut self, done: &mut Vec<Completion>) {
        for (index, answer) in self.bell.take() {
            self.jobs -= 1;
            let Some(request) = self.slots[index].request.take() else { continue };
            let tried = match answer {
                Answer::Done(result) => Tried::Done(self.end(index, request, result)),
                Answer::Again => self.go(index, request),
            };
            match tried {
                Tried::Done(completion) => done.push(completion),
                Tried::Pending => {}
                // There is room again when something has come back.
                Tried::Busy(request) => self.ask(index, request, Work::Again),
            }
        }
    }

    fn end(&mut self, index: usize, request: Request, result: Result<(), Error>) -> Completion {
        self.end_completion(index, request.complete(result))
    }

    #[inline]
    fn end_completion(&mut self, index: usize, mut completion: Completion) -> Completion {
        let slot = &mut self.slots[index];
        leave(&self.volume.shared, slot);
        completion.tag = slot.tag;
        self.free.push(index);
        completion
    }

    /// Nothing is in flight on the old one: it was closed when all had left.
    #[cold]
    fn take_road(&mut self, road: usize) {
        self.below = open_road(&self.volume.shared, road, self.waiting);
        self.road = road;
        if let (Some(Some(events)), Some(below)) = (self.events.get(), self.below.event()) {
            // What cannot be watched is found when the bell rings or somebody polls.
            let _ = events.add(below, 0, Interest::Level);
        }
    }

    fn new_events(&self) -> Option<Epoll> {
        let (below, bell) = (self.below.event()?, self.bell.event()?);
        let events = Epoll::new().ok()?;
        events.add(below, 0, Interest::Level).ok()?;
        events.add(bell, 1, Interest::Level).ok()?;
        Some(events)
    }

    /// The request as its maker made it, or what has to be done for it first.
    fn start(&mut self, index: usize, request: Request) -> Tried {
        match request.op {
            Op::Read | Op::Write { .. } => self.go(index, request),
            Op::Flush if self.waiting => {
                let result = self.volume.shared.flush();
                Tried::Done(self.end(index, request, result))
            }
            Op::Flush => {
                self.ask(index, request, Work::Flush);
                Tried::Pending
            }
            op @ (Op::Discard | Op::WriteZeroes { .. }) => {
                let work = Work::Zero(op, request.sector, request.count);
                self.ask(index, request, work);
                Tried::Pending
            }
        }
    }
}

fn open_road(shared: &Shared, road: usize, waiting: bool) -> Box<dyn Channel> {
    let device = shared.road(road).device();
    if waiting { device.waiting_channel() } else { device.channel() }
}

/// Leaves the chunks that a request is in.
#[inline]
fn leave(shared: &Shared, slot: &mut Slot) {
    for index in std::mem::take(&mut slot.entered) {
        if !slot.holes.contains(&index) {
            shared.chunks.leave(index);
        }
    }
}

/// Enters a request's chunks and finds its slices; else what has to be done first.
#[inline]
fn resolve(shared: &Shared, slot: &mut Slot, request: &Request) -> Result<(), Work> {
    let chunk_sectors = shared.layout.chunk_bytes / UNIT;
    let (start, end) = (request.sector.0, request.sector.0 + request.count);
    let indices = (start / chunk_sectors) as u32..end.div_ceil(chunk_sectors) as u32;
    slot.slices.clear();
    slot.holes.clear();
    slot.entered = indices.start..indices.start;
    for index in indices {
        let first = u64::from(index) * chunk_sectors;
        let part = start.max(first)..end.min(first + chunk_sectors);
        let from = part.start - start;
        match shared.chunks.enter(index) {
            Found::Chunk(chunk) => {
                slot.entered.end = index + 1;
                // The road stays what it is as long as somebody is in a chunk.
                let extents = shared.road(shared.road_number()).extents();
                let at = shared.layout.chunk_at(chunk) / UNIT + (part.start - first);
                let mut from = from;
                for piece in extents.pieces(at..at + (part.end - part.start)) {
                    let count = piece.end - piece.start;
                    add(&mut slot.slices, Slice { at: Some(piece.start), from, count });
                    from += count;
                }
            }
            Found::Hole if request.op == Op::Read => {
                add(&mut slot.slices, Slice { at: None, from, count: part.end - part.start });
                slot.holes.push(index);
                slot.entered.end = index + 1;
            }
            found => {
                leave(shared, slot);
                let hole = found == Found::Hole;
                return Err(if hole { Work::Fill(index) } else { Work::Again });
            }
        }
    }
    Ok(())
}

/// Appends a slice, or makes the last one longer where it goes on.
fn add(slices: &mut Vec<Slice>, slice: Slice) {
    let follows = |last: &&mut Slice| match (last.at, slice.at) {
        (Some(one), Some(other)) => one + last.count == other,
        (None, None) => true,
        _ => false,
    };
    match slices.last_mut().filter(follows) {
        Some(last) => last.count += slice.count,
        None => slices.push(slice),
    }
}

/// Calls `each` with every part of the buffers that a slice is about, and how many bytes of the
/// slice came before.
fn each_part(data: &mut [Buffer], slice: &Slice, mut each: impl FnMut(&mut [u8], usize)) {
    let (start, end) = ((slice.from * UNIT) as usize, ((slice.from + slice.count) * UNIT) as usize);
    let mut at = 0;
    for buffer in data {
        let here = at..at + buffer.len();
        at = here.end;
        let part = here.start.max(start)..here.end.min(end);
        if part.start < part.end {
            let bytes = &mut buffer[part.start - here.start..part.end - here.start];
            each(bytes, part.start - start);
        }
    }
}

impl Channel for BypassChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        if let Err(error) = request.validate(self.volume.sector_count()) {
            self.free.push(index);
            return Submitted::Done(request.complete(Err(error)));
        }
        let slot = &mut self.slots[index];
        (slot.tag, slot.sector, slot.entered) = (request.tag, request.sector, 0..0);
        match self.start(index, request) {
            Tried::Done(completion) => Submitted::Done(completion),
            Tried::Pending => Submitted::Pending,
            Tried::Busy(request) => {
                self.free.push(index);
                Submitted::Busy(request)
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.jobs > 0 {
            self.hear(done);
        }
        loop {
            let mut arrived = std::mem::take(&mut self.arrived);
            self.below.poll(&mut arrived);
            for completion in arrived.drain(..) {
                self.arrive(completion, done);
            }
            self.arrived = arrived;
            let left = self.outbox.len();
            self.empty_outbox();
            // What went now is started by one more round: whoever waits for the event waits for it.
            if self.outbox.len() == left {
                return;
            }
        }
    }

    fn park(&mut self) {
        if !self.arrived.is_empty() {
            return;
        }
        if self.jobs == 0 {
            return self.below.park();
        }
        if self.in_flight > 0 {
            // Starts what was submitted.
            self.below.poll(&mut self.arrived);
            if !self.arrived.is_empty() {
                return;
            }
        }
        self.bell.wait(self.below.event().filter(|_| self.in_flight > 0));
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        let events = self.events.get_or_init(|| self.new_events());
        Some(events.as_ref()?.as_fd())
    }
}

impl Drop for BypassChannel {
    /// What is in flight, the medium is waited for; what is with the clerk is answered to nobody.
    fn drop(&mut self) {
        let mut done = Vec::new();
        for slice in self.outbox.drain(..) {
            self.in_flight += 1;
            self.arrived.push(slice.complete(Err(Error::Stopped)));
        }
        while self.in_flight > 0 {
            let mut arrived = std::mem::take(&mut self.arrived);
            if arrived.is_empty() {
                self.below.park();
                self.below.poll(&mut arrived);
            }
            for completion in arrived.drain(..) {
                self.arrive(completion, &mut done);
            }
        }
        for slot in &mut self.slots {
            if let Some(request) = slot.request.take() {
                drop(request.complete(Err(Error::Stopped)));
            }
        }
    }
}
