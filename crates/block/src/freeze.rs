//! A device that can be frozen: for a copy of what it holds at one moment, while it is in use.
//!
//! ```text
//!  frozen    new requests wait in their channels ─► those under way are answered ─► flush
//!            ─► whoever froze it copies what lies under it, or puts another device there
//!  thawed    what waited goes on, in the order in which it came
//! ```
//!
//! What the device holds while it is frozen is what a power cut at that moment would have left, and
//! more: everything that was answered is in it, nothing that came later.
//!
//! # Invariants
//!
//! - While frozen and drained, no request is with the device below.
//! - [`Frozen`] thaws when it is dropped, however its owner ends.
//! - A channel changes to another device below only when it has nothing under way.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::Mutex;

use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Request, Sector, Submitted,
};
use crate::gate::{Gate, Pass};
use crate::wait::Waiter;

/// Requests that wait in a channel of a frozen device; one more is [`Submitted::Busy`].
const HELD_MAX: usize = 64;

/// Why a device could not be frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreezeError {
    /// It is frozen already.
    Frozen,
    /// Requests that were under way were not answered in time.
    NotDrained,
    /// The flush failed.
    Flush(Error),
}

impl std::fmt::Display for FreezeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FreezeError::Frozen => f.write_str("frozen already"),
            FreezeError::NotDrained => f.write_str("requests under way are not answered"),
            FreezeError::Flush(error) => write!(f, "cannot flush it: {error}"),
        }
    }
}

impl std::error::Error for FreezeError {}

/// A device that can be frozen, and exchanged meanwhile. See the [module](self).
pub struct Freezable {
    below: Mutex<Arc<dyn BlockDevice>>,
    /// Changes with `below`.
    generation: AtomicU64,
    /// The size of `below`.
    sectors: AtomicU64,
    read_only: bool,
    gate: Arc<Gate>,
    /// Journals that the user of this device has told of, for the next device below.
    journals: Mutex<Vec<(Sector, u64)>>,
}

impl Freezable {
    /// Makes `below` freezable.
    pub fn new(below: Arc<dyn BlockDevice>) -> Arc<Freezable> {
        Arc::new(Freezable {
            generation: AtomicU64::new(0),
            sectors: AtomicU64::new(below.sector_count()),
            read_only: below.read_only(),
            below: Mutex::new(below),
            gate: Arc::default(),
            journals: Mutex::default(),
        })
    }

    /// Keeps new requests back, waits `limit` at most until those under way are answered, and makes
    /// what they wrote durable. Frozen until the result is dropped.
    ///
    /// # Errors
    /// See [`FreezeError`]; then it goes on as if nothing had been.
    pub fn freeze(self: &Arc<Self>, limit: Duration) -> Result<Frozen, FreezeError> {
        let below = Waiter::new(self.below());
        // Most of what has to become durable does so while requests still pass.
        below.flush().map_err(FreezeError::Flush)?;
        if !self.gate.close() {
            return Err(FreezeError::Frozen);
        }
        let frozen = Frozen { device: self.clone(), since: Instant::now() };
        if !self.gate.drain(frozen.since + limit) {
            return Err(FreezeError::NotDrained);
        }
        below.flush().map_err(FreezeError::Flush)?;
        Ok(frozen)
    }

    /// Takes the size in of a device below that has grown.
    pub fn grown(&self) {
        self.sectors.fetch_max(self.below().sector_count(), Ordering::AcqRel);
    }

    fn below(&self) -> Arc<dyn BlockDevice> {
        self.below.lock().clone()
    }

    fn channel_of(self: Arc<Self>, waiting: bool) -> Box<dyn Channel> {
        let generation = self.generation.load(Ordering::Acquire);
        Box::new(FreezeChannel {
            inner: road(self.below(), waiting),
            pass: self.gate.pass(),
            device: self,
            generation,
            waiting,
            inside: 0,
            held: VecDeque::new(),
            watched: Vec::new(),
        })
    }
}

fn road(device: Arc<dyn BlockDevice>, waiting: bool) -> Box<dyn Channel> {
    if waiting { device.waiting_channel() } else { device.channel() }
}

/// A frozen device: it thaws when this is dropped.
pub struct Frozen {
    device: Arc<Freezable>,
    since: Instant,
}

impl Frozen {
    /// For how long it has been frozen.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Puts another device in the place of the one below, with the same content and at least its
    /// size. Channels go over to it with their next request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a smaller one.
    pub fn replace(&self, below: Arc<dyn BlockDevice>) -> Result<(), Error> {
        let device = &self.device;
        let sectors = below.sector_count();
        if sectors < device.sector_count() {
            return Err(Error::OutOfRange);
        }
        for (sector, count) in device.journals.lock().iter() {
            below.mark_journal(*sector, *count);
        }
        *device.below.lock() = below;
        device.sectors.store(sectors, Ordering::Release);
        device.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.device.gate.open();
    }
}

impl BlockDevice for Freezable {
    fn sector_count(&self) -> u64 {
        self.sectors.load(Ordering::Acquire)
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        self.channel_of(false)
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        self.channel_of(true)
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.below().allocation(sector, count)
    }

    /// While it is frozen only a write gives space, and waits.
    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        let pass = self.gate.pass();
        if !pass.enter() {
            return Err(Error::Unsupported);
        }
        let reserved = self.below().reserve(sector, count);
        pass.leave(1);
        reserved
    }

    fn keeps_writes(&self) -> bool {
        self.below().keeps_writes()
    }

    fn forget(&self, sector: Sector, count: u64) {
        self.below().forget(sector, count);
    }

    fn mark_journal(&self, sector: Sector, count: u64) {
        self.journals.lock().push((sector, count));
        self.below().mark_journal(sector, count);
    }
}

struct FreezeChannel {
    /// Before `pass`: its drop waits for what is under way.
    inner: Box<dyn Channel>,
    pass: Pass,
    device: Arc<Freezable>,
    generation: u64,
    waiting: bool,
    /// Requests with `inner`.
    inside: usize,
    /// Requests that wait for the thaw, and then for room below, oldest first.
    held: VecDeque<Request>,
    /// What `inner` watches.
    watched: Vec<OwnedFd>,
}

impl FreezeChannel {
    /// Sends a request on; gives it back at a closed gate.
    #[inline]
    fn go(&mut self, request: Request) -> Result<Submitted, Request> {
        if !self.pass.enter() {
            return Err(request);
        }
        if self.device.generation.load(Ordering::Acquire) != self.generation {
            self.change_over();
        }
        let submitted = self.inner.submit(request);
        match submitted {
            Submitted::Pending => self.inside += 1,
            Submitted::Done(_) | Submitted::Busy(_) => self.pass.leave(1),
        }
        Ok(submitted)
    }

    /// Goes over to the device that is below now. Nothing is under way: it was drained.
    #[cold]
    fn change_over(&mut self) {
        debug_assert_eq!(self.inside, 0, "exchanged before it was drained");
        self.generation = self.device.generation.load(Ordering::Acquire);
        self.inner = road(self.device.below(), self.waiting);
        let watched: Vec<_> = self.watched.iter().map(|input| input.as_fd()).collect();
        if !watched.is_empty() {
            // If it cannot, its `rest` says so.
            self.inner.watch(&watched);
        }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.inner.poll(done);
        let count = done.len() - before;
        if count > 0 {
            self.inside -= count;
            self.pass.leave(count as u64);
        }
    }
}

impl Channel for FreezeChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let request = match self.held.is_empty() {
            true => match self.go(request) {
                Ok(submitted) => return submitted,
                Err(request) => request,
            },
            // Behind those that wait.
            false => request,
        };
        if self.held.len() >= HELD_MAX {
            return Submitted::Busy(request);
        }
        self.held.push_back(request);
        Submitted::Pending
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.collect(done);
        if self.held.is_empty() {
            return;
        }
        while let Some(request) = self.held.pop_front() {
            match self.go(request) {
                Ok(Submitted::Done(completion)) => done.push(completion),
                Ok(Submitted::Pending) => {}
                Ok(Submitted::Busy(request)) | Err(request) => {
                    self.held.push_front(request);
                    break;
                }
            }
        }
        // What went now is started now: whoever waits for the event waits for it.
        self.collect(done);
    }

    fn park(&mut self) {
        if self.inside > 0 {
            self.inner.park();
        } else if !self.held.is_empty() {
            self.pass.wait();
        }
    }

    /// While requests wait there is no descriptor that tells: [`Channel::park`] does.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        if self.held.is_empty() { self.inner.event() } else { None }
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        // For the device that may come in this one's place.
        let kept = inputs.iter().map(|input| input.try_clone_to_owned());
        let Ok(kept) = kept.collect::<std::io::Result<Vec<_>>>() else { return false };
        self.watched = kept;
        self.inner.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        self.held.is_empty() && self.inner.rest()
    }
}

impl Drop for FreezeChannel {
    /// What is held is answered to nobody; what is inside is waited for.
    fn drop(&mut self) {
        for request in self.held.drain(..) {
            drop(request.complete(Err(Error::Stopped)));
        }
        let mut done = Vec::new();
        while self.inside > 0 {
            self.inner.park();
            self.collect(&mut done);
            done.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Op;
    use crate::ram::RamDevice;
    use polylane_base::sync::thread;
    use polylane_sys::buffer::Buffer;

    const LIMIT: Duration = Duration::from_secs(30);

    fn write(sector: u64, byte: u8) -> Request {
        let data = vec![Buffer::copy_of(&[byte; 512])];
        Request::with_data(Op::Write { fua: false }, Sector(sector), data, sector)
    }

    fn first_byte(device: &Arc<RamDevice>, sector: u64) -> u8 {
        Waiter::new(device.clone()).read(Sector(sector), 512).expect("read")[0]
    }

    /// Polls until `count` requests came back, for 30 s at most.
    fn finish(channel: &mut Box<dyn Channel>, count: usize) -> Vec<Completion> {
        let (end, mut done) = (Instant::now() + LIMIT, Vec::new());
        loop {
            channel.poll(&mut done);
            if done.len() >= count {
                return done;
            }
            assert!(Instant::now() < end, "{} of {count} requests answered in 30 s", done.len());
            channel.park();
        }
    }

    #[test]
    fn requests_wait_while_it_is_frozen_and_go_on_in_order() {
        let ram = Arc::new(RamDevice::new(64));
        let device = Freezable::new(ram.clone());
        let mut channel = device.clone().channel();
        let frozen = device.freeze(LIMIT).expect("freeze");
        assert_eq!(device.freeze(LIMIT).map(drop), Err(FreezeError::Frozen));
        for byte in 1..=3 {
            assert!(matches!(channel.submit(write(5, byte)), Submitted::Pending));
        }
        let mut done = Vec::new();
        channel.poll(&mut done);
        assert!(done.is_empty() && channel.event().is_none());
        channel.park();
        assert_eq!(first_byte(&ram, 5), 0);
        drop(frozen);
        assert_eq!(finish(&mut channel, 3).len(), 3);
        assert_eq!(first_byte(&ram, 5), 3);
        drop(device.freeze(LIMIT).expect("again"));
    }

    #[test]
    fn a_full_channel_says_so_and_a_dropped_one_forgets_what_it_held() {
        let device = Freezable::new(Arc::new(RamDevice::new(64)));
        let mut channel = device.clone().channel();
        let frozen = device.freeze(LIMIT).expect("freeze");
        for _ in 0..HELD_MAX {
            assert!(matches!(channel.submit(write(0, 1)), Submitted::Pending));
        }
        let Submitted::Busy(request) = channel.submit(write(0, 1)) else { panic!("no limit") };
        drop(request.complete(Err(Error::Stopped)));
        drop(channel);
        drop(frozen);
        assert_eq!(device.gate.inside(), 0);
    }

    #[test]
    fn another_device_takes_over_in_between() {
        let (old, new) = (Arc::new(RamDevice::new(64)), Arc::new(RamDevice::new(128)));
        let device = Freezable::new(old.clone());
        device.mark_journal(Sector(8), 8);
        let mut channel = device.clone().channel();
        let waiter = Waiter::new(device.clone());
        waiter.write(Sector(1), Buffer::copy_of(&[1; 512]), false).expect("write");
        let frozen = device.freeze(LIMIT).expect("freeze");
        assert!(matches!(channel.submit(write(2, 2)), Submitted::Pending));
        let small: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(8));
        assert_eq!(frozen.replace(small), Err(Error::OutOfRange));
        frozen.replace(new.clone()).expect("replace");
        drop(frozen);
        finish(&mut channel, 1)[0].result.expect("written");
        waiter.write(Sector(100), Buffer::copy_of(&[3; 512]), true).expect("write");
        assert_eq!((first_byte(&old, 1), first_byte(&old, 2)), (1, 0));
        assert_eq!((first_byte(&new, 1), first_byte(&new, 2)), (0, 2));
        assert_eq!((device.sector_count(), first_byte(&new, 100)), (128, 3));
    }

    /// Writers number what they write, in two places, the second one after the first. A frozen
    /// device never shows the second without the first.
    #[test]
    fn what_is_frozen_is_one_moment_of_all_writers() {
        let ram = Arc::new(RamDevice::new(64));
        let device = Freezable::new(ram.clone());
        let stop = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..3u64)
            .map(|lane| {
                let (waiter, stop) = (Waiter::new(device.clone()), stop.clone());
                thread::spawn(move || {
                    let mut number = 0u8;
                    while stop.load(Ordering::Relaxed) == 0 {
                        number = number.wrapping_add(1);
                        for place in [2 * lane, 2 * lane + 1] {
                            let data = Buffer::copy_of(&[number; 512]);
                            waiter.write(Sector(place), data, false).expect("write");
                        }
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            let frozen = device.freeze(LIMIT).expect("freeze");
            let seen: Vec<u8> = (0..6).map(|place| first_byte(&ram, place)).collect();
            for lane in seen.chunks(2) {
                assert!(lane[0] == lane[1] || lane[0] == lane[1].wrapping_add(1), "{seen:?}");
            }
            thread::yield_now();
            let again: Vec<u8> = (0..6).map(|place| first_byte(&ram, place)).collect();
            assert_eq!(seen, again, "changed while it was frozen");
            drop(frozen);
        }
        stop.store(1, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    }
}
