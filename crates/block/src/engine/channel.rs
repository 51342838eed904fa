//! One thread's road through the engine.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Engine;
use super::ahead::{Cost, Streams};
use super::events::Events;
use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Submitted,
};
use crate::map::{State, Work};
use crate::qos::{Io, Kind, Nanos, Verdict};

/// Requests per channel: in flight below, and held.
const DEPTH: usize = 64;

/// What becomes of a request now.
enum Way {
    /// It is answered by what the map knows.
    Known,
    /// It goes to the medium.
    Medium,
    /// Not yet: a job is about its chunks.
    Held,
}

/// A request on its way.
#[derive(Default)]
struct Slot {
    /// Its maker's number.
    tag: u64,
    /// The chunks that it entered.
    entered: Option<Range<u64>>,
    /// Of these, which it gives all space back of, alone in there since a generation.
    empties: Vec<(u64, u32)>,
    /// What was charged for it.
    charged: Option<Io>,
    /// It has waited for the map once.
    waited: bool,
}

/// What came of a try.
enum Tried {
    Done(Completion),
    Pending,
    /// The medium's channel is full.
    Busy(Request),
    /// Not its turn before this time, or before the gate opens.
    Held(Request, Option<Nanos>),
}

pub(super) struct EngineChannel {
    below: Box<dyn Channel>,
    engine: Arc<Engine>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Requests that are not with the medium yet, and until when none of them can be.
    held: VecDeque<(usize, Request)>,
    held_until: Option<Nanos>,
    /// How often the gate had opened before they were tried.
    opened: u64,
    in_flight: usize,
    streams: Streams,
    /// Where the last read and write ended.
    ends: [u64; 2],
    arrived: Vec<Completion>,
    events: OnceCell<Option<Events>>,
    /// How often the gate had opened when its events were taken.
    drained: u64,
}

impl EngineChannel {
    pub(super) fn new(engine: Arc<Engine>, below: Box<dyn Channel>) -> EngineChannel {
        EngineChannel {
            below,
            engine,
            slots: (0..DEPTH).map(|_| Slot::default()).collect(),
            free: (0..DEPTH).rev().collect(),
            held: VecDeque::with_capacity(DEPTH),
            held_until: None,
            opened: 0,
            in_flight: 0,
            streams: Streams::default(),
            ends: [u64::MAX; 2],
            arrived: Vec::with_capacity(DEPTH),
            events: OnceCell::new(),
            drained: 0,
        }
    }

    /// The one way that a request goes. What was done for it is undone by [`end`](Self::end).
    fn go(&mut self, index: usize, mut request: Request) -> Tried {
        if let Some(until) = self.turn(index, &request) {
            return Tried::Held(request, Some(until));
        }
        let slot = &mut self.slots[index];
        match resolve(&self.engine, slot, &mut self.streams, &request) {
            Way::Known => {
                request.data.iter_mut().for_each(|buffer| buffer.fill(0));
                Tried::Done(self.end(index, request.complete(Ok(()))))
            }
            Way::Held => Tried::Held(request, None),
            Way::Medium => {
                request.tag = index as u64;
                match self.below.submit(request) {
                    Submitted::Done(completion) => Tried::Done(self.end(index, completion)),
                    Submitted::Pending => {
                        self.in_flight += 1;
                        Tried::Pending
                    }
                    Submitted::Busy(mut request) => {
                        request.tag = self.slots[index].tag;
                        self.leave(index, false);
                        Tried::Busy(request)
                    }
                }
            }
        }
    }

    /// Whether it is the request's turn; if not, when to ask again.
    fn turn(&mut self, index: usize, request: &Request) -> Option<Nanos> {
        let admission = self.engine.admission.as_ref()?;
        if self.slots[index].charged.is_some() {
            return None;
        }
        let io = io_of(request, &*self.engine.lane.medium, &mut self.ends);
        match admission.admit(now(), &io) {
            Verdict::Wait(until) => Some(until),
            Verdict::Go => {
                self.slots[index].charged = Some(io);
                None
            }
        }
    }

    /// Undoes what was done for a request that is over, or that the medium had no room for.
    #[inline]
    fn leave(&mut self, index: usize, done: bool) {
        let slot = &mut self.slots[index];
        let map = &self.engine.lane.map;
        if let Some(chunks) = slot.entered.take() {
            match slot.empties.is_empty() || !done {
                true => map.leave(chunks),
                false => map.leave_empty(chunks, &slot.empties),
            }
        }
        if let Some(io) = slot.charged.take()
            && let Some(admission) = &self.engine.admission
        {
            admission.complete(now(), &io);
        }
    }

    /// Ends a request.
    #[inline]
    fn end(&mut self, index: usize, mut completion: Completion) -> Completion {
        self.leave(index, completion.result.is_ok());
        completion.tag = self.slots[index].tag;
        self.free.push(index);
        completion
    }

    /// Takes in what the medium has done.
    fn collect(&mut self, done: &mut Vec<Completion>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.below.poll(&mut arrived);
        self.in_flight -= arrived.len();
        for completion in arrived.drain(..) {
            let index = completion.tag as usize;
            done.push(self.end(index, completion));
        }
        self.arrived = arrived;
    }

    /// Tries again what was held, oldest first.
    fn retry(&mut self, done: &mut Vec<Completion>) {
        self.opened = self.engine.lane.gate.opened();
        self.held_until = None;
        for _ in 0..self.held.len() {
            let Some((index, request)) = self.held.pop_front() else { return };
            match self.go(index, request) {
                Tried::Done(completion) => done.push(completion),
                Tried::Pending => {}
                Tried::Busy(request) => self.held.push_back((index, request)),
                Tried::Held(request, until) => self.hold(index, request, until),
            }
        }
        if let (None, Some(Some(events))) = (self.held_until, self.events.get()) {
            events.alarm(None);
        }
    }

    /// Before what is held is tried again: what happens after that is an event of its own.
    fn drain_gate(&mut self) {
        let Some(Some(events)) = self.events.get() else { return };
        let opened = self.engine.lane.gate.opened();
        if opened != self.drained {
            events.drain();
            self.drained = opened;
        }
    }

    fn hold(&mut self, index: usize, request: Request, until: Option<Nanos>) {
        if let Some(until) = until {
            let until = self.held_until.map_or(until, |other| other.min(until));
            self.held_until = Some(until);
            if let Some(Some(events)) = self.events.get() {
                events.alarm(Some(until));
            }
        }
        self.held.push_back((index, request));
    }

    fn new_events(&self) -> Option<Events> {
        let (below, gate) = (self.below.event()?, self.engine.lane.gate.event()?);
        let events = Events::new(below, gate).ok()?;
        events.alarm(self.held_until);
        Some(events)
    }
}

/// What the map says of a request. A change that goes on has entered its chunks.
#[inline]
fn resolve(engine: &Engine, slot: &mut Slot, streams: &mut Streams, request: &Request) -> Way {
    let map = &engine.lane.map;
    if request.op == Op::Flush {
        return Way::Medium;
    }
    let sectors = request.sector.0..request.sector.0 + request.count;
    let chunks = map.chunks(&sectors);
    if engine.must_translate && !slot.waited && asks(engine, chunks.clone()) {
        slot.waited = true;
        return Way::Held;
    }
    // Whether writes of what is written move nothing; whether what is empty is done already.
    let (keeps, known) = match request.op {
        Op::Read => (true, true),
        Op::Write { .. } => (true, false),
        // Zeros that may not be a hole want space, which an empty chunk has not.
        Op::WriteZeroes { unmap, fua } => (false, unmap && !fua),
        Op::Discard | Op::Flush => (false, true),
    };
    if known && map.is_empty(chunks.clone()) {
        return Way::Known;
    }
    if request.op == Op::Read {
        return Way::Medium;
    }
    if !map.enter(chunks.clone(), keeps) {
        return Way::Held;
    }
    if gives_back(request.op) {
        slot.empties = emptied(engine, &sectors, chunks.clone());
    } else if keeps
        && engine.ahead_sectors > 0
        && let Some(ahead) = streams.note(&sectors, engine.ahead_sectors, &cost(engine))
    {
        engine.make(&ahead);
    }
    slot.entered = Some(chunks);
    Way::Medium
}

/// What space ahead of a stream takes.
fn cost(engine: &Engine) -> Cost<'static> {
    Cost { per_sector: engine.lane.counts.cost(), any: engine.ahead_always, clock: &now }
}

fn gives_back(op: Op) -> bool {
    matches!(op, Op::Discard | Op::WriteZeroes { unmap: true, .. })
}

/// The chunks that a discard of `sectors`, which entered them, leaves without space if it stays
/// alone.
fn emptied(engine: &Engine, sectors: &Range<u64>, chunks: Range<u64>) -> Vec<(u64, u32)> {
    let map = &engine.lane.map;
    let device_end = engine.sector_count();
    let whole = |chunk: &u64| {
        let all = map.sectors(*chunk);
        sectors.start <= all.start && all.end.min(device_end) <= sectors.end
    };
    chunks.filter(whole).filter_map(|chunk| Some((chunk, map.alone(chunk)?))).collect()
}

/// Whether something has to be found out about these chunks first; it is asked for.
fn asks(engine: &Engine, chunks: Range<u64>) -> bool {
    let Some(unit) = &engine.unit else { return false };
    let lane = &engine.lane;
    let unknown = chunks.filter(|chunk| lane.map.state(*chunk) == State::Unknown);
    unknown.map(|chunk| lane.ask(unit, Work::Translate, chunk, true)).count() > 0
}

fn io_of(request: &Request, medium: &dyn BlockDevice, ends: &mut [u64; 2]) -> Io {
    let kind = Kind::of(request.op, medium);
    let bytes = request.count * SECTOR_BYTES as u64;
    let sequential = match kind {
        Kind::Read | Kind::Write => {
            let end = request.sector.0 + request.count;
            std::mem::replace(&mut ends[usize::from(kind == Kind::Write)], end) == request.sector.0
        }
        Kind::Discard | Kind::Flush => false,
    };
    Io { kind, bytes, sequential }
}

fn now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Channel for EngineChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        let check = match request.validate(self.engine.sector_count()) {
            Ok(()) if request.is_change() && self.engine.read_only() => Err(Error::ReadOnly),
            other => other,
        };
        if let Err(error) = check {
            self.free.push(index);
            return Submitted::Done(request.complete(Err(error)));
        }
        self.slots[index] = Slot { tag: request.tag, ..Slot::default() };
        if self.held.is_empty() {
            self.opened = self.engine.lane.gate.opened();
        }
        match self.go(index, request) {
            Tried::Done(completion) => Submitted::Done(completion),
            Tried::Pending => Submitted::Pending,
            Tried::Busy(request) => {
                self.free.push(index);
                Submitted::Busy(request)
            }
            Tried::Held(request, until) => {
                self.hold(index, request, until);
                Submitted::Pending
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.collect(done);
        self.drain_gate();
        if !self.held.is_empty() {
            self.retry(done);
            // What went now is started now: whoever waits for the event waits for it.
            self.collect(done);
        }
    }

    fn park(&mut self) {
        if self.in_flight > 0 {
            return self.below.park();
        }
        if !self.held.is_empty() {
            let left = self.held_until.map(|until| until.saturating_sub(now()));
            self.engine.lane.gate.wait(self.opened, left.map(Duration::from_nanos));
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        let events = self.events.get_or_init(|| self.new_events());
        Some(events.as_ref()?.as_fd())
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.below.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        // What is held waits for more than the medium.
        self.held.is_empty() && self.below.rest()
    }
}

impl Drop for EngineChannel {
    /// What was held is answered to nobody; what is in flight, the channel below waits for, and its
    /// chunks are left after that.
    fn drop(&mut self) {
        for (_, request) in self.held.drain(..) {
            drop(request.complete(Err(Error::Stopped)));
        }
        let mut done = Vec::new();
        while self.in_flight > 0 {
            self.below.park();
            self.collect(&mut done);
        }
    }
}
