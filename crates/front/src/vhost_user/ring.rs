//! One queue: its thread takes chains from the available ring, starts them on a channel of its own
//! and puts them into the used ring.
//!
//! # Waiting
//!
//! While there is something to do, the guest is told not to kick. Then the thread looks on for a
//! moment, longer when looking paid last time; then it asks to be kicked, looks once more, and
//! sleeps on kick, channel and stop together.
//!
//! With many under way a round is two trips to the kernel: what the disk has done is answered, and
//! the guest told of it, before what the guest wants next is started: that takes a while, in which
//! the guest works. Starting it and sleeping until the disk, the guest or the owner has something
//! are then one call, where the channel can do that.
//!
//! A guest that has one request at a time, again and again, is served by calls that wait: whoever
//! waits for one request pays for a trip through a ring and two more switches otherwise.
//!
//! # Invariants
//!
//! - Every head that was taken is put into the used ring once, or the ring is broken.
//! - A stopped ring has nothing under way.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::{Channel, Completion, Op, Request, Sector, Submitted};
use polylane_sys::buffer::Buffer;
use polylane_sys::event;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::Export;
use super::chain::{Chain, Segment, bytes, copy_in, copy_out};
use super::config;
use super::inflight::Area;
use super::memory::Mapped;
use super::request::{IO_ERROR, OK, Parsed, Want, status};
use crate::export::Bell;
use crate::export::work::{Job, Work};

/// Looks before a sleep, at least and at most: about 2 to 30 µs.
const LOOKS_MIN: u32 = 16;
const LOOKS_MAX: u32 = 256;

/// With more requests under way than this the thread does not look on: what comes together while it
/// sleeps goes to the disk together, with one knock at its door.
const FEW: usize = 4;

/// After so many requests that came alone, the next ones are executed by calls that wait.
const ALONE: u32 = 8;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const NO_INTERRUPT: u16 = 1;

/// A descriptor that the guest is interrupted by; the frontend may replace it at any time.
pub(super) type Call = Arc<Mutex<Option<File>>>;

/// What a ring is started with.
pub(super) struct Setup {
    pub(super) memory: Mapped,
    /// With addresses and position set, and found valid.
    pub(super) queue: Queue,
    pub(super) kick: File,
    pub(super) call: Call,
    /// The guest's write cache is off.
    pub(super) durable: Arc<AtomicBool>,
    pub(super) area: Option<Area>,
    /// Heads that an earlier process took and did not answer.
    pub(super) left_over: Vec<u16>,
}

/// A ring at work.
pub(super) struct Worker {
    stop: Bell,
    thread: thread::JoinHandle<u16>,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// The host has no more descriptors or threads.
    pub(super) fn start(setup: Setup, export: &Export, index: usize) -> io::Result<Worker> {
        let stop = Bell::new()?;
        let mut work = Work::new(&export.device);
        work.watch(setup.kick.as_fd(), stop.as_fd());
        let ring = Ring {
            memory: setup.memory,
            table: GuestAddress(setup.queue.desc_table()),
            queue: setup.queue,
            kick: setup.kick,
            call: setup.call,
            durable: setup.durable,
            area: setup.area,
            left_over: setup.left_over.into(),
            work,
            under_way: 0,
            single: export.device.clone().waiting_channel(),
            alone: 0,
            kicked: true,
            serial: config::serial(&export.serial),
            stop: stop.clone(),
            replied: false,
            broken: false,
        };
        let thread =
            thread::Builder::new().name(format!("vhost-user-{index}")).spawn(move || ring.run())?;
        Ok(Worker { stop, thread })
    }

    /// Ends it, once everything taken is answered; the position in the available ring.
    pub(super) fn stop(self) -> u16 {
        self.stop.ring();
        self.thread.join().unwrap_or_default()
    }
}

/// A request under way.
struct Taken {
    head: u16,
    status: Segment,
    /// Where the data of a read goes.
    into: Vec<Segment>,
}

struct Ring {
    memory: Mapped,
    table: GuestAddress,
    queue: Queue,
    kick: File,
    call: Call,
    durable: Arc<AtomicBool>,
    area: Option<Area>,
    left_over: VecDeque<u16>,
    work: Work<Taken>,
    /// Requests in `work`.
    under_way: usize,
    /// For a request that comes alone.
    single: Box<dyn Channel>,
    /// Requests in a row that came when nothing was under way, and nothing came with.
    alone: u32,
    /// The kick descriptor may be readable.
    kicked: bool,
    serial: [u8; 20],
    stop: Bell,
    /// Something was put into the used ring since the guest was told.
    replied: bool,
    /// The rings are not what they should be; only a new start helps.
    broken: bool,
}

impl Ring {
    fn run(mut self) -> u16 {
        let (mut looks, mut looked) = (LOOKS_MIN, 0);
        self.quiet();
        loop {
            let ended = self.finish();
            self.interrupt();
            let took = self.take();
            if self.kicked && (took || !ended) {
                self.kicked = false;
                event::drain(&self.kick);
            }
            self.interrupt();
            if took || ended {
                if looked > 0 {
                    looks = (looks * 2).min(LOOKS_MAX);
                }
                looked = 0;
                if self.under_way > FEW && self.work.watches() {
                    self.rest();
                }
                continue;
            }
            if self.stop.is_rung() && self.work.is_idle() {
                return self.queue.next_avail();
            }
            if looked < looks && self.under_way <= FEW {
                looked += 1;
                std::hint::spin_loop();
                continue;
            }
            (looks, looked) = ((looks / 2).max(LOOKS_MIN), 0);
            self.sleep();
        }
    }

    /// Takes what is available, as much as there is room for.
    fn take(&mut self) -> bool {
        let (mut took, idle) = (0, self.work.is_idle());
        while !self.broken && !self.work.is_full() {
            let known = self.left_over.pop_front();
            let Some(head) = known.or_else(|| self.next_head()) else { break };
            if let (Some(area), None) = (&mut self.area, known) {
                area.taken(head);
            }
            took += 1;
            self.begin(head);
        }
        match took {
            0 => {}
            1 if idle => self.alone = self.alone.saturating_add(1),
            _ => self.alone = 0,
        }
        took > 0
    }

    fn next_head(&mut self) -> Option<u16> {
        if self.stop.is_rung() {
            return None;
        }
        match self.queue.iter(&self.memory) {
            Ok(mut chains) => chains.next().map(|chain| chain.head_index()),
            Err(_) => {
                self.broken = true;
                None
            }
        }
    }

    /// Starts one request, or answers it at once.
    fn begin(&mut self, head: u16) {
        let durable = self.durable.load(Ordering::Relaxed);
        let parsed = Chain::walk(&self.memory, self.table, self.queue.size(), head)
            .and_then(|chain| Parsed::read(&self.memory, chain, durable));
        let Ok(Parsed { want, status }) = parsed else {
            // Nobody to tell what was wrong: there is no place for a status.
            return self.put(head, 0);
        };
        let mut job = Job { op: Op::Flush, sector: Sector(0), count: 0, data: None };
        let mut target = Vec::new();
        match want {
            Want::Answer(code) => return self.reply(head, status, code, 0),
            Want::Serial(into) => {
                let count = bytes(&into).min(self.serial.len() as u64) as usize;
                let fine = copy_in(&self.memory, &into, &self.serial[..count]);
                return self.reply(head, status, if fine { OK } else { IO_ERROR }, count as u32);
            }
            Want::Flush => {}
            Want::Range { op, sector, count } => {
                (job.op, job.sector, job.count) = (op, sector, count)
            }
            Want::Read { sector, into, bytes } => {
                let data = Some(self.work.buffer(bytes as usize));
                (job.op, job.sector, job.data) = (Op::Read, sector, data);
                target = into;
            }
            Want::Write { sector, from, bytes } => {
                let mut data = self.work.buffer(bytes as usize);
                if !copy_out(&self.memory, &from, &mut data) {
                    self.work.recycle(data);
                    return self.reply(head, status, IO_ERROR, 0);
                }
                let op = Op::Write { fua: durable };
                (job.op, job.sector, job.data) = (op, sector, Some(data));
            }
        }
        let taken = Taken { head, status, into: target };
        if self.alone >= ALONE && self.work.is_idle() {
            let completion = self.execute(job);
            if self.has_more() {
                self.alone = 0;
            }
            return self.answer(taken, completion);
        }
        self.under_way += 1;
        self.work.start(job, taken);
    }

    /// Whether something was made available that was not taken yet.
    fn has_more(&self) -> bool {
        let index = self.queue.avail_idx(&self.memory, Ordering::Acquire);
        index.is_ok_and(|index| index.0 != self.queue.next_avail())
    }

    /// Does a job, and waits for it.
    fn execute(&mut self, job: Job) -> Completion {
        let mut request = match job.data {
            Some(data) => Request::with_data(job.op, job.sector, vec![data], 0),
            None => Request::without_data(job.op, job.sector, job.count, 0),
        };
        let mut done = Vec::new();
        loop {
            match self.single.submit(request) {
                Submitted::Done(completion) => return completion,
                Submitted::Pending => break,
                Submitted::Busy(same) => request = same,
            }
            self.single.park();
            self.single.poll(&mut done);
        }
        loop {
            self.single.poll(&mut done);
            if let Some(completion) = done.pop() {
                return completion;
            }
            self.single.park();
        }
    }

    /// Answers what the device has finished.
    fn finish(&mut self) -> bool {
        let mut ended = false;
        while let Some((taken, completion)) = self.work.next() {
            ended = true;
            self.under_way -= 1;
            self.answer(taken, completion);
        }
        ended
    }

    fn answer(&mut self, taken: Taken, completion: Completion) {
        let Completion { data, result, .. } = completion;
        let (code, written) = match (status(result), data.first()) {
            (OK, Some(data)) if !taken.into.is_empty() => self.fill(&taken.into, data),
            (code, _) => (code, 0),
        };
        data.into_iter().for_each(|buffer| self.work.recycle(buffer));
        self.reply(taken.head, taken.status, code, written);
    }

    fn fill(&self, into: &[Segment], data: &Buffer) -> (u8, u32) {
        match copy_in(&self.memory, into, data) {
            true => (OK, data.len() as u32),
            false => (IO_ERROR, 0),
        }
    }

    /// Stores the status and puts the head into the used ring.
    fn reply(&mut self, head: u16, status: Segment, code: u8, written: u32) {
        match copy_in(&self.memory, &[status], &[code]) {
            true => self.put(head, written + 1),
            false => self.put(head, 0),
        }
    }

    fn put(&mut self, head: u16, written: u32) {
        if let Some(area) = &self.area {
            area.answering(head);
        }
        if self.broken || self.queue.add_used(&self.memory, head, written).is_err() {
            self.broken = true;
            return;
        }
        if let Some(area) = &self.area {
            area.answered(head, self.queue.next_used());
        }
        self.replied = true;
    }

    /// Tells the guest, if it wants to be told.
    fn interrupt(&mut self) {
        if !std::mem::take(&mut self.replied) {
            return;
        }
        match self.wants_interrupt() {
            Ok(true) => {
                if let Some(call) = &*self.call.lock() {
                    event::notify(call);
                }
            }
            Ok(false) => {}
            Err(_) => self.broken = true,
        }
    }

    /// Whether the guest asked for it: by the event index or, where it has none, by the available
    /// ring's flag, which `virtio-queue` does not look at.
    fn wants_interrupt(&mut self) -> Result<bool, virtio_queue::Error> {
        let wanted = self.queue.needs_notification(&self.memory)?;
        if !wanted || self.queue.event_idx_enabled() {
            return Ok(wanted);
        }
        // The used ring's index was stored before this is read.
        fence(Ordering::SeqCst);
        let flags = GuestAddress(self.queue.avail_ring());
        let flags: u16 =
            self.memory.load(flags, Ordering::Relaxed).map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u16::from_le(flags) & NO_INTERRUPT == 0)
    }

    /// No kicks from now on.
    fn quiet(&mut self) {
        self.broken |= self.queue.disable_notification(&self.memory).is_err();
    }

    /// Asks to be kicked, where that helps. `None`: more has come in between.
    fn listen(&mut self) -> Option<bool> {
        let listens = !self.stop.is_rung() && !self.broken && !self.work.is_full();
        if listens {
            match self.queue.enable_notification(&self.memory) {
                Ok(true) => {
                    self.quiet();
                    return None;
                }
                Ok(false) => {}
                Err(_) => self.broken = true,
            }
        }
        Some(listens)
    }

    /// Starts what was taken and sleeps, where the channel does both in one.
    fn rest(&mut self) {
        if let Some(listens) = self.listen() {
            self.work.rest();
            if listens {
                self.quiet();
            }
        }
    }

    fn sleep(&mut self) {
        let Some(listens) = self.listen() else { return };
        let stopping = self.stop.is_rung();
        // A thread that is asked to stop and has nothing under way is not to sleep any more:
        // nothing that is still watched would wake it.
        if (stopping && self.work.is_idle()) || self.work.rest() {
            if listens {
                self.quiet();
            }
            return;
        }
        let kick = listens.then(|| self.kick.as_fd());
        let stop = (!stopping).then(|| self.stop.as_fd());
        if self.work.wait(kick, stop).is_err() {
            self.broken = true;
        }
        if listens {
            // Read later, unless it was the channel that it woke up for.
            self.kicked = true;
            self.quiet();
        }
    }
}
