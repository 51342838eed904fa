//! The other side, for benches and tests: a virtio-blk driver that speaks to any vhost-user-blk
//! server through the `vhost` crate's frontend, without a guest.
//!
//! One memfd holds everything that is shared:
//!
//! | per queue | |
//! |---|---|
//! | descriptors, available ring, used ring | 16, 2 and 8 bytes per entry |
//! | slots: header (16), status (1), …, data | one per request at a time; 512 bytes and the data |
//!
//! A request is three descriptors, or two without data; slot n has descriptors 3n to 3n + 2.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use polylane_base::sync::Arc;
use polylane_sys::region::Region;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures as Protocol};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use zerocopy::IntoBytes;

use super::chain::Descriptor;
use super::config::Features;
use super::request::{Header, Range};

const EVENT_IDX: u64 = Features::EVENT_IDX.bits();
/// Without these there is no talking.
const NEEDED: u64 = Features::VERSION_1.union(Features::PROTOCOL_FEATURES).bits();
/// Everything that a block driver takes.
const WANTED: u64 = NEEDED
    | EVENT_IDX
    | Features::FLUSH
        .union(Features::CONFIG_WCE)
        .union(Features::MULTI_QUEUE)
        .union(Features::DISCARD)
        .union(Features::WRITE_ZEROES)
        .bits();

const SLOT_HEADER_BYTES: usize = 512;
const STATUS_OFFSET: usize = 16;

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Queues.
    pub queues: usize,
    /// Requests at a time per queue; a power of two.
    pub depth: usize,
    /// Bytes of data per request, a multiple of 512.
    pub data_bytes: usize,
}

impl Shape {
    fn ring_size(&self) -> usize {
        (self.depth * 4).max(8)
    }

    fn available(&self) -> usize {
        self.ring_size() * 16
    }

    fn used(&self) -> usize {
        (self.available() + 6 + 2 * self.ring_size()).next_multiple_of(64)
    }

    fn slots(&self) -> usize {
        (self.used() + 6 + 8 * self.ring_size()).next_multiple_of(4096)
    }

    fn slot_bytes(&self) -> usize {
        SLOT_HEADER_BYTES + self.data_bytes
    }

    fn queue_bytes(&self) -> usize {
        (self.slots() + self.depth * self.slot_bytes()).next_multiple_of(4096)
    }
}

/// A connected device.
pub struct Driver {
    frontend: Frontend,
    memory: Arc<Region>,
    fd: OwnedFd,
    shape: Shape,
    /// Features to ask for, and those that the server has of them.
    wanted: u64,
    features: u64,
    queues: Vec<DriverQueue>,
    inflight: Option<(VhostUserInflight, File)>,
}

fn frontend(path: &Path, shape: Shape) -> io::Result<Frontend> {
    Ok(Frontend::from_stream(UnixStream::connect(path)?, shape.queues as u64))
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

impl Driver {
    /// Connects to the server at a socket and starts its queues.
    ///
    /// # Errors
    /// Nobody listens, or the server refuses.
    pub fn connect(path: &Path, shape: Shape) -> io::Result<Driver> {
        Driver::connect_without(path, shape, 0)
    }

    /// As [`Driver::connect`], as a driver that does not know some features (virtio's bits).
    ///
    /// # Errors
    /// As [`Driver::connect`].
    pub fn connect_without(path: &Path, shape: Shape, unknown: u64) -> io::Result<Driver> {
        let bytes = shape.queue_bytes() * shape.queues;
        let (memory, fd) = Region::create("virtio-driver", bytes)?;
        let memory = Arc::new(memory);
        let queues = (0..shape.queues).map(|index| DriverQueue::new(&memory, shape, index));
        let queues = queues.collect::<io::Result<Vec<_>>>()?;
        let frontend = frontend(path, shape)?;
        let wanted = WANTED & !unknown | NEEDED;
        let (features, inflight) = (0, None);
        let mut driver = Driver { frontend, memory, fd, shape, wanted, features, queues, inflight };
        driver.start()?;
        Ok(driver)
    }

    /// Connects again after the server went away: what was under way is answered by the next one.
    ///
    /// # Errors
    /// As [`Driver::connect`].
    pub fn reconnect(&mut self, path: &Path) -> io::Result<()> {
        self.frontend = frontend(path, self.shape)?;
        self.start()
    }

    fn start(&mut self) -> io::Result<()> {
        let frontend = &mut self.frontend;
        frontend.set_owner().map_err(other)?;
        self.features = frontend.get_features().map_err(other)? & self.wanted;
        if self.features & NEEDED != NEEDED {
            return Err(other("the server lacks VERSION_1 or protocol features"));
        }
        let offered = frontend.get_protocol_features().map_err(other)?;
        let wanted = Protocol::MQ | Protocol::CONFIG | Protocol::INFLIGHT_SHMFD;
        let wanted = wanted & offered;
        frontend.set_protocol_features(wanted).map_err(other)?;
        if wanted.contains(Protocol::MQ) {
            frontend.get_queue_num().map_err(other)?;
        }
        frontend.set_features(self.features).map_err(other)?;
        if wanted.contains(Protocol::INFLIGHT_SHMFD) {
            self.share_inflight()?;
        }
        let region = self.region();
        self.frontend.set_mem_table(&[region]).map_err(other)?;
        for index in 0..self.queues.len() {
            self.start_queue(index)?;
        }
        Ok(())
    }

    /// The guest's memory as the server is told of it: it begins at address 0.
    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.memory.len() as u64,
            userspace_addr: self.memory.address(0),
            mmap_offset: 0,
            mmap_handle: self.fd.as_raw_fd(),
        }
    }

    /// The memory for requests under way, if the server gave one.
    pub fn inflight(&self) -> Option<&File> {
        self.inflight.as_ref().map(|(_, file)| file)
    }

    fn share_inflight(&mut self) -> io::Result<()> {
        if self.inflight.is_none() {
            let (queues, size) = (self.shape.queues as u16, self.shape.ring_size() as u16);
            let asked = VhostUserInflight::new(0, 0, queues, size);
            self.inflight = Some(self.frontend.get_inflight_fd(&asked).map_err(other)?);
        }
        match &self.inflight {
            Some((told, file)) => {
                self.frontend.set_inflight_fd(told, file.as_raw_fd()).map_err(other)
            }
            None => Ok(()),
        }
    }

    fn start_queue(&mut self, index: usize) -> io::Result<()> {
        let (frontend, queue) = (&mut self.frontend, &self.queues[index]);
        let (shape, base) = (self.shape, self.memory.address(queue.base));
        frontend.set_vring_num(index, shape.ring_size() as u16).map_err(other)?;
        frontend.set_vring_base(index, queue.seen).map_err(other)?;
        let addresses = VringConfigData {
            queue_max_size: shape.ring_size() as u16,
            queue_size: shape.ring_size() as u16,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + shape.used() as u64,
            avail_ring_addr: base + shape.available() as u64,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &addresses).map_err(other)?;
        frontend.set_vring_call(index, &queue.call).map_err(other)?;
        frontend.set_vring_kick(index, &queue.kick).map_err(other)?;
        frontend.set_vring_enable(index, true).map_err(other)?;
        let event_idx = self.features & EVENT_IDX != 0;
        self.queues[index].event_idx = event_idx;
        self.queues[index].kick()
    }

    /// The queues, each for a thread of its own.
    pub fn queues(&mut self) -> &mut [DriverQueue] {
        &mut self.queues
    }

    /// `size` bytes of the configuration space from `offset` on.
    ///
    /// # Errors
    /// The server refuses.
    pub fn config(&mut self, offset: u32, size: u32) -> io::Result<Vec<u8>> {
        let space = vec![0; size as usize];
        let flags = VhostUserConfigFlags::empty();
        self.frontend.get_config(offset, size, flags, &space).map(|read| read.1).map_err(other)
    }

    /// Changes the configuration space.
    ///
    /// # Errors
    /// The server refuses.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend.set_config(offset, flags, bytes).map_err(other)
    }

    /// Stops a queue once what is under way is answered; its position.
    ///
    /// # Errors
    /// The server refuses.
    pub fn stop(&mut self, index: usize) -> io::Result<u32> {
        self.frontend.get_vring_base(index).map_err(other)
    }

    /// The frontend itself, for messages that a well-behaved driver does not send.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Fill the slot's data.
    Read,
    /// Store the slot's data.
    Write,
    /// Make completed writes durable.
    Flush,
    /// Give the range in the slot's data up.
    Discard,
    /// Zero the range in the slot's data.
    WriteZeroes,
    /// Tell the serial number.
    Serial,
}

/// One queue. Belongs to one thread.
pub struct DriverQueue {
    memory: Arc<Region>,
    shape: Shape,
    /// Where its part of the memory begins.
    base: usize,
    /// Next position in the available ring.
    next: u16,
    /// Position in the used ring up to which answers were seen.
    seen: u16,
    /// Position in the available ring at the last kick.
    kicked: u16,
    event_idx: bool,
    kick: EventFd,
    call: EventFd,
    /// Watches `call`.
    called: Epoll,
}

impl DriverQueue {
    fn new(memory: &Arc<Region>, shape: Shape, index: usize) -> io::Result<DriverQueue> {
        let call = EventFd::new(EFD_NONBLOCK)?;
        let called = Epoll::new()?;
        let event = EpollEvent::new(EventSet::IN, 0);
        called.ctl(ControlOperation::Add, call.as_raw_fd(), event)?;
        Ok(DriverQueue {
            memory: memory.clone(),
            shape,
            base: index * shape.queue_bytes(),
            next: 0,
            seen: 0,
            kicked: 0,
            event_idx: false,
            kick: EventFd::new(EFD_NONBLOCK)?,
            call,
            called,
        })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.word32(self.base + offset)
    }

    /// Where slot `slot`'s data lies in the memory.
    fn data_at(&self, slot: usize) -> usize {
        self.base + self.shape.slots() + slot * self.shape.slot_bytes() + SLOT_HEADER_BYTES
    }

    /// The guest's addresses of a slot's header, data and status.
    pub fn places(&self, slot: usize) -> (u64, u64, u64) {
        let data = self.data_at(slot) as u64;
        let header = data - SLOT_HEADER_BYTES as u64;
        (header, data, header + STATUS_OFFSET as u64)
    }

    /// Fills a slot's data.
    pub fn set_data(&mut self, slot: usize, bytes: &[u8]) {
        let count = bytes.len().min(self.shape.data_bytes);
        self.memory.copy_in(self.data_at(slot), &bytes[..count]);
    }

    /// A slot's data.
    pub fn data(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.shape.data_bytes];
        self.memory.copy_out(self.data_at(slot), &mut bytes);
        bytes
    }

    /// A slot's status byte.
    pub fn status(&self, slot: usize) -> u8 {
        let mut status = [0];
        let header = self.data_at(slot) - SLOT_HEADER_BYTES;
        self.memory.copy_out(header + STATUS_OFFSET, &mut status);
        status[0]
    }

    fn set_half(&self, offset: usize, value: u16) {
        let (word, shift) = (self.word(offset & !3), (offset & 2) * 8);
        let rest = word.load(Ordering::Relaxed) & !(0xffff << shift);
        word.store(rest | u32::from(value) << shift, Ordering::Relaxed);
    }

    fn half(&self, offset: usize) -> u16 {
        (self.word(offset & !3).load(Ordering::Relaxed) >> ((offset & 2) * 8)) as u16
    }

    /// Writes descriptor `index`.
    pub fn set_descriptor(&mut self, index: usize, address: u64, len: u32, flags: u16, next: u16) {
        let descriptor = Descriptor {
            address: address.into(),
            len: len.into(),
            flags: flags.into(),
            next: next.into(),
        };
        self.memory.copy_in(self.base + index * 16, descriptor.as_bytes());
    }

    /// Builds a request of `bytes` bytes of data in a slot; of a range, `bytes` is its length and
    /// its description takes the data's place.
    pub fn build(&mut self, slot: usize, kind: Kind, sector: u64, bytes: u32) {
        let (code, written, data) = match kind {
            Kind::Read => (0u32, true, bytes),
            Kind::Write => (1, false, bytes),
            Kind::Flush => (4, false, 0),
            Kind::Serial => (8, true, 20),
            Kind::Discard => (11, false, 16),
            Kind::WriteZeroes => (13, false, 16),
        };
        let header = Header { kind: code.into(), sector: sector.into(), ..Header::default() };
        if matches!(kind, Kind::Discard | Kind::WriteZeroes) {
            let count = (bytes / 512).into();
            let range = Range { sector: sector.into(), count, ..Range::default() };
            self.set_data(slot, range.as_bytes());
        }
        let at = self.data_at(slot);
        let start_at = at - SLOT_HEADER_BYTES;
        self.memory.copy_in(start_at, header.as_bytes());
        self.memory.copy_in(start_at + STATUS_OFFSET, &[0xff]);
        let (head, start) = (slot * 3, start_at as u64);
        let after = if data == 0 { head + 2 } else { head + 1 };
        self.set_descriptor(head, start, STATUS_OFFSET as u32, 1, after as u16);
        let flags = if written { 1 | 2 } else { 1 };
        self.set_descriptor(head + 1, at as u64, data, flags, (head + 2) as u16);
        self.set_descriptor(head + 2, start + STATUS_OFFSET as u64, 1, 2, 0);
    }

    /// Makes the chain at descriptor `head` available; a slot's is three times its number.
    pub fn push(&mut self, head: u16) {
        let entry = usize::from(self.next) % self.shape.ring_size();
        let available = self.shape.available();
        self.set_half(available + 4 + 2 * entry, head);
        self.next = self.next.wrapping_add(1);
        let flags = self.word(available).load(Ordering::Relaxed) & 0xffff;
        self.word(available).store(flags | u32::from(self.next) << 16, Ordering::Release);
    }

    /// Puts anything at the available ring's index, as a broken driver would.
    pub fn set_available(&mut self, index: u16) {
        self.next = index;
        self.word(self.shape.available()).store(u32::from(index) << 16, Ordering::Release);
    }

    /// Builds a request and makes it available.
    pub fn submit(&mut self, slot: usize, kind: Kind, sector: u64, bytes: u32) {
        self.build(slot, kind, sector, bytes);
        self.push((slot * 3) as u16);
    }

    /// Tells the device, if it wants to be told.
    ///
    /// # Errors
    /// The host's.
    pub fn notify(&mut self) -> io::Result<()> {
        fence(Ordering::SeqCst);
        let used = self.shape.used();
        let wanted = match self.event_idx {
            true => {
                let event = self.half(used + 4 + 8 * self.shape.ring_size());
                let since = self.next.wrapping_sub(event).wrapping_sub(1);
                since < self.next.wrapping_sub(self.kicked)
            }
            false => self.half(used) & 1 == 0,
        };
        self.kicked = self.next;
        if wanted { self.kick() } else { Ok(()) }
    }

    /// Tells the device.
    ///
    /// # Errors
    /// The host's.
    pub fn kick(&mut self) -> io::Result<()> {
        self.kick.write(1)
    }

    /// The slot of an answered request and the bytes that the device says it wrote, if there is
    /// one.
    pub fn take(&mut self) -> Option<(usize, u32)> {
        let used = self.shape.used();
        let index = (self.word(used).load(Ordering::Acquire) >> 16) as u16;
        if index == self.seen {
            return None;
        }
        let entry = used + 4 + 8 * (usize::from(self.seen) % self.shape.ring_size());
        let head = self.word(entry).load(Ordering::Relaxed) as usize;
        let written = self.word(entry + 4).load(Ordering::Relaxed);
        self.seen = self.seen.wrapping_add(1);
        Some((head / 3, written))
    }

    /// Sleeps until the device answers, at most `timeout_ms`. Returns at once when it has.
    pub fn wait(&mut self, timeout_ms: u32) {
        let available = self.shape.available();
        self.set_half(available + 4 + 2 * self.shape.ring_size(), self.seen);
        fence(Ordering::SeqCst);
        let index = (self.word(self.shape.used()).load(Ordering::Acquire) >> 16) as u16;
        if index != self.seen {
            return;
        }
        let mut events = [EpollEvent::default()];
        let _ = self.called.wait(timeout_ms.try_into().unwrap_or(-1), &mut events);
        let _ = self.call.read();
    }

    /// Interrupts since this was asked last, or since [`DriverQueue::wait`] returned.
    pub fn interrupts(&mut self) -> u64 {
        self.call.read().unwrap_or(0)
    }

    /// Asks to be interrupted once `more` requests beyond those seen are answered; without the
    /// event index, whether at all: with 0 it is not.
    pub fn ask_interrupt(&mut self, more: u16) {
        let available = self.shape.available();
        match self.event_idx {
            true => {
                let event = self.seen.wrapping_add(more).wrapping_sub(1);
                self.set_half(available + 4 + 2 * self.shape.ring_size(), event);
            }
            false => self.set_half(available, u16::from(more == 0)),
        }
        fence(Ordering::SeqCst);
    }

    /// One request from beginning to end; its status.
    ///
    /// # Errors
    /// No answer within ten seconds.
    pub fn execute(&mut self, kind: Kind, sector: u64, bytes: u32) -> io::Result<u8> {
        self.submit(0, kind, sector, bytes);
        self.notify()?;
        for _ in 0..100 {
            if self.take().is_some() {
                return Ok(self.status(0));
            }
            self.wait(100);
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
