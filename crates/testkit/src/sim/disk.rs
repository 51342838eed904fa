//! The simulated device: RAM, a record of all that happened, seeded delays, faults on demand.
//!
//! # Locking
//!
//! One lock for everything, held for one request at a time: this device is for being right, not for
//! being fast.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_block::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};

use polylane_block::medium::{Medium, Run};

use super::image::{CHUNK_BYTES, Image};
use super::space::Blocks;

/// Something that happened on a disk. Positions are bytes.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was submitted.
    Write {
        /// Its number.
        id: u64,
        /// First byte.
        at: usize,
        /// What is written.
        data: Arc<[u8]>,
        /// Durable at completion.
        fua: bool,
    },
    /// A discard or a write of zeros was submitted.
    Zero {
        /// Its number.
        id: u64,
        /// First byte.
        at: usize,
        /// Bytes.
        len: usize,
        /// Durable at completion.
        fua: bool,
    },
    /// A flush was submitted.
    Flush {
        /// Its number.
        id: u64,
    },
    /// A request completed well. One that failed never gets here.
    Done {
        /// The number of the request.
        id: u64,
    },
}

/// The requests that a fault counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultOn {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes with FUA alone.
    Durable,
    /// Flushes.
    Flush,
    /// Discards and writes of zeros.
    Zero,
    /// All of them.
    Any,
}

/// The `nth` request of a kind (from 0) fails, and with `lasting` every later one too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which requests are counted.
    pub on: FaultOn,
    /// How many of them go well.
    pub nth: u64,
    /// What the request answers.
    pub error: Error,
    /// Whether the medium stays broken.
    pub lasting: bool,
}

impl Fault {
    /// `EIO` once, at request `nth` of a kind.
    pub fn eio(on: FaultOn, nth: u64) -> Fault {
        Fault { on, nth, error: Error::Medium(Errno::EIO), lasting: false }
    }
}

/// How the disk behaves.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Keep a record.
    pub record: bool,
    /// Answer late and in any order, as this seed decides; `None`: at once.
    pub delay: Option<u64>,
    /// Requests in flight per channel before it is busy; 0: no limit. Counts with `delay` only.
    pub depth: usize,
    /// Each request waits up to this long before it is submitted, so that other threads get between
    /// what its maker did before and the request itself.
    pub pause: Duration,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// Blocks of 4 KiB that it has room for; 0: as many as it is large.
    pub blocks: u64,
}

struct State {
    image: Image,
    space: Blocks,
    events: Vec<Event>,
    options: SimOptions,
    next_id: u64,
    counted: u64,
    requests: u64,
    failures: u64,
    stopped: bool,
    rng: Rng,
}

/// The simulated disk.
pub struct SimDisk {
    state: Mutex<State>,
    sectors: u64,
}

impl SimDisk {
    /// A disk that holds `image`.
    pub fn new(image: Image, options: SimOptions) -> Arc<SimDisk> {
        let sectors = (image.len() / SECTOR_BYTES) as u64;
        let rng = Rng::new(options.delay.unwrap_or(0) ^ 0x0d15_c0de);
        let state = State {
            space: Blocks::of(&image, options.blocks),
            image,
            events: Vec::new(),
            options,
            next_id: 0,
            counted: 0,
            requests: 0,
            failures: 0,
            stopped: false,
            rng,
        };
        Arc::new(SimDisk { state: Mutex::new(state), sectors })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics in here")
    }

    fn pause(&self) {
        let pause = {
            let mut state = self.state();
            let limit_us = state.options.pause.as_micros() as u64;
            Duration::from_micros(state.rng.below(limit_us + 1))
        };
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    /// What the disk holds now, as its users see it.
    pub fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Events recorded so far.
    pub fn position(&self) -> usize {
        self.state().events.len()
    }

    /// The record.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// Requests seen so far, whatever became of them.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Requests that failed.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Changes how many blocks it has room for.
    pub fn set_blocks(&self, blocks: u64) {
        self.state().space.set_limit(blocks);
    }

    /// Blocks that it has room for still.
    pub fn free_blocks(&self) -> u64 {
        self.state().space.free()
    }

    /// Sets or lifts a fault; requests are counted from here on.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = self.state();
        state.options.fault = fault;
        state.counted = 0;
    }
}

impl State {
    fn note(&mut self, event: Event) {
        if self.options.record {
            self.events.push(event);
        }
    }

    /// Records a submission and numbers it.
    fn begin(&mut self, request: &Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.requests += 1;
        if !self.options.record {
            return id;
        }
        let at = request.sector.0 as usize * SECTOR_BYTES;
        let len = request.count as usize * SECTOR_BYTES;
        match request.op {
            Op::Read => {}
            Op::Flush => self.note(Event::Flush { id }),
            Op::Discard => self.note(Event::Zero { id, at, len, fua: false }),
            Op::WriteZeroes { fua, .. } => self.note(Event::Zero { id, at, len, fua }),
            Op::Write { fua } => {
                let data: Vec<u8> = request.data.iter().flat_map(|b| b.iter().copied()).collect();
                self.note(Event::Write { id, at, data: data.into(), fua });
            }
        }
        id
    }

    fn fails(&mut self, op: Op) -> Option<Error> {
        if self.stopped && op != Op::Read {
            return Some(Error::Stopped);
        }
        let fault = self.options.fault?;
        let counts = match fault.on {
            FaultOn::Any => true,
            FaultOn::Read => op == Op::Read,
            FaultOn::Write => matches!(op, Op::Write { .. }),
            FaultOn::Durable => {
                matches!(op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. })
            }
            FaultOn::Flush => op == Op::Flush,
            FaultOn::Zero => matches!(op, Op::Discard | Op::WriteZeroes { .. }),
        };
        if !counts {
            return None;
        }
        self.counted += 1;
        let now = self.counted - 1 == fault.nth || (fault.lasting && self.counted > fault.nth);
        now.then_some(fault.error)
    }

    fn execute(&mut self, request: &mut Request, id: u64) -> Result<(), Error> {
        if let Some(error) = self.fails(request.op) {
            self.failures += 1;
            self.fail(request);
            return Err(error);
        }
        let at = request.sector.0 as usize * SECTOR_BYTES;
        let mut next = at;
        let sectors = request.sector.0..request.sector.0 + request.count;
        if let Err(full) = self.take_space(request, &sectors) {
            self.failures += 1;
            return Err(full);
        }
        match request.op {
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes { .. } => {
                self.image.zero(at, request.count as usize * SECTOR_BYTES);
                self.space.unmap(sectors);
            }
            Op::Read => {
                for buffer in &mut request.data {
                    self.image.read(next, buffer);
                    next += buffer.len();
                }
                return Ok(());
            }
            Op::Write { .. } => {
                for buffer in &request.data {
                    self.image.write(next, buffer);
                    next += buffer.len();
                }
            }
        }
        self.note(Event::Done { id });
        Ok(())
    }

    fn take_space(&mut self, request: &Request, sectors: &Range<u64>) -> Result<(), Error> {
        match request.op {
            Op::Write { .. } => self.space.map(sectors.clone()),
            _ => Ok(()),
        }
    }

    /// A write that fails leaves each of its 4 KiB old or new; a flush that fails stops the device.
    fn fail(&mut self, request: &Request) {
        self.stopped |= request.op == Op::Flush;
        if self.stopped || !matches!(request.op, Op::Write { .. }) {
            return;
        }
        let mut at = request.sector.0 as usize * SECTOR_BYTES;
        for chunk in request.data.iter().flat_map(|buffer| buffer.chunks(CHUNK_BYTES)) {
            if self.rng.percent(50) {
                self.image.write(at, chunk);
            }
            at += chunk.len();
        }
    }
}

impl BlockDevice for SimDisk {
    fn sector_count(&self) -> u64 {
        self.sectors
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(SimChannel { disk: self, flying: Vec::new() })
    }
}

impl Medium for SimDisk {
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error> {
        self.pause();
        let runs = self.state().space.runs(range);
        self.pause();
        Ok(runs)
    }

    /// Zeros are written like any other data: they are in doubt until a flush.
    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        self.pause();
        self.state().space.map(range.clone())?;
        self.pause();
        let mut state = self.state();
        let zeros = Op::WriteZeroes { unmap: false, fua: false };
        let request = Request::without_data(zeros, Sector(range.start), range.end - range.start, 0);
        let id = state.begin(&request);
        let at = range.start as usize * SECTOR_BYTES;
        state.image.zero(at, (range.end - range.start) as usize * SECTOR_BYTES);
        state.note(Event::Done { id });
        drop(request.complete(Ok(())));
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.free_blocks() * CHUNK_BYTES as u64)
    }
}

struct SimChannel {
    disk: Arc<SimDisk>,
    flying: Vec<(u64, Request)>,
}

impl SimChannel {
    /// Lands one request in flight, any of them.
    fn land(&mut self, state: &mut State) -> Completion {
        let which = state.rng.below(self.flying.len() as u64) as usize;
        let (id, mut request) = self.flying.swap_remove(which);
        let result = state.execute(&mut request, id);
        request.complete(result)
    }
}

impl Channel for SimChannel {
    fn submit(&mut self, mut request: Request) -> Submitted {
        if let Err(error) = request.validate(self.disk.sectors) {
            return Submitted::Done(request.complete(Err(error)));
        }
        let disk = self.disk.clone();
        disk.pause();
        let mut state = disk.state();
        let depth = state.options.depth;
        if depth > 0 && self.flying.len() >= depth {
            return Submitted::Busy(request);
        }
        let id = state.begin(&request);
        if state.options.delay.is_some() {
            self.flying.push((id, request));
            return Submitted::Pending;
        }
        let result = state.execute(&mut request, id);
        Submitted::Done(request.complete(result))
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let disk = self.disk.clone();
        let mut state = disk.state();
        // At least one lands, so that whoever parked and polls gets on.
        while !self.flying.is_empty() {
            done.push(self.land(&mut state));
            if state.rng.percent(40) {
                break;
            }
        }
    }

    fn park(&mut self) {}
}

impl Drop for SimChannel {
    /// What is in flight lands, unseen.
    fn drop(&mut self) {
        let disk = self.disk.clone();
        while !self.flying.is_empty() {
            drop(self.land(&mut disk.state()));
        }
    }
}
