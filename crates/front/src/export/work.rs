//! The requests that one thread of a front end has under way, who asked for each, and the buffers
//! that it uses again.
//!
//! # Invariants
//!
//! - Every request that was started comes out of [`Work::next`] once, with its owner.
//! - Nothing here blocks but [`Work::wait`].
//! - Memory is bounded: once so many requests or bytes are under way, [`Work::is_full`] says so and
//!   the owner takes nothing in until something is over.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_block::{BlockDevice, Channel, Completion, Op, Request, Sector, Submitted};
use polylane_sys::buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// Requests under way.
const DEPTH: usize = 128;

/// Bytes of their buffers; one request may reach past it.
const BYTES_MAX: usize = 32 << 20;

/// Buffers come in two sizes, of which this many are kept.
const SMALL_BYTES: usize = 64 << 10;
const SMALL_KEPT: usize = DEPTH;
/// Size of the larger ones.
pub(crate) const LARGE_BYTES: usize = 1 << 20;
const LARGE_KEPT: usize = 16;

/// What a device is to do.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) op: Op,
    pub(crate) sector: Sector,
    /// Of an operation without data.
    pub(crate) count: u64,
    /// Memory to fill or store.
    pub(crate) data: Option<Buffer>,
}

impl Job {
    /// Makes all completed writes durable.
    pub(crate) const FLUSH: Job = Job { op: Op::Flush, sector: Sector(0), count: 0, data: None };
}

/// See the [module](self). `T` is who asked, and for what.
pub(crate) struct Work<T> {
    channel: Box<dyn Channel>,
    owners: Vec<Option<T>>,
    free: Vec<usize>,
    /// What the channel had no room for.
    refused: VecDeque<Request>,
    done: Vec<Completion>,
    bytes: usize,
    small: Vec<Buffer>,
    large: Vec<Buffer>,
    /// The channel was told of descriptors that end its rest.
    watches: bool,
}

impl<T> Work<T> {
    /// Nothing under way yet, on a channel of its own.
    pub(crate) fn new(device: &Arc<dyn BlockDevice>) -> Work<T> {
        Work {
            channel: device.clone().channel(),
            owners: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            refused: VecDeque::new(),
            done: Vec::new(),
            bytes: 0,
            small: Vec::new(),
            large: Vec::new(),
            watches: false,
        }
    }

    /// Has [`rest`](Work::rest) end for these two as well. To be called once.
    pub(crate) fn watch(&mut self, input: BorrowedFd<'_>, stop: BorrowedFd<'_>) {
        self.watches = self.channel.watch(&[input, stop]);
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == DEPTH
    }

    /// Whether no more may be started.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() || !self.refused.is_empty() || self.bytes >= BYTES_MAX
    }

    /// A buffer of `len` bytes, not 0, with any content.
    pub(crate) fn buffer(&mut self, len: usize) -> Buffer {
        let (kept, capacity) = if len <= SMALL_BYTES {
            (self.small.pop(), SMALL_BYTES)
        } else if len <= LARGE_BYTES {
            (self.large.pop(), LARGE_BYTES)
        } else {
            (None, len)
        };
        let mut buffer = kept.unwrap_or_else(|| Buffer::zeroed(capacity));
        buffer.set_len(len);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        match buffer.capacity() {
            SMALL_BYTES if self.small.len() < SMALL_KEPT => self.small.push(buffer),
            LARGE_BYTES if self.large.len() < LARGE_KEPT => self.large.push(buffer),
            _ => {}
        }
    }

    /// Starts a job. To be called when it [is not full](Work::is_full).
    pub(crate) fn start(&mut self, job: Job, owner: T) {
        let Some(index) = self.free.pop() else {
            unreachable!("the caller asks is_full first");
        };
        self.owners[index] = Some(owner);
        let tag = index as u64;
        let request = match job.data {
            Some(data) => {
                self.bytes += data.len();
                Request::with_data(job.op, job.sector, vec![data], tag)
            }
            None => Request::without_data(job.op, job.sector, job.count, tag),
        };
        self.submit(request);
    }

    fn submit(&mut self, request: Request) {
        match self.channel.submit(request) {
            Submitted::Done(completion) => self.done.push(completion),
            Submitted::Pending => {}
            Submitted::Busy(request) => self.refused.push_back(request),
        }
    }

    /// Something that is over, and who asked for it. `None` starts what waits to be started.
    pub(crate) fn next(&mut self) -> Option<(T, Completion)> {
        if self.done.is_empty() {
            for _ in 0..self.refused.len() {
                if let Some(request) = self.refused.pop_front() {
                    self.submit(request);
                }
            }
            self.channel.poll(&mut self.done);
        }
        self.over()
    }

    /// The same of what was over when it was started, or is known to be over: the device isn't
    /// asked, and goes on collecting what it will start in one go.
    pub(crate) fn over(&mut self) -> Option<(T, Completion)> {
        let completion = self.done.pop()?;
        self.bytes -= completion.data.iter().map(|buffer| buffer.len()).sum::<usize>();
        let index = completion.tag as usize;
        let owner = self.owners[index].take();
        self.free.push(index);
        owner.map(|owner| (owner, completion))
    }

    /// Whether [`rest`](Work::rest) is worth trying.
    pub(crate) fn watches(&self) -> bool {
        self.watches
    }

    /// Starts what the device was given and sleeps, all in one: until something is over or what is
    /// [watched](Work::watch) changes; may come back early. False, at once: it cannot just now;
    /// [`next`](Work::next) and then [`wait`](Work::wait) do it.
    pub(crate) fn rest(&mut self) -> bool {
        self.watches && (!self.done.is_empty() || self.channel.rest())
    }

    /// Sleeps until something is over, `input`, this thread's alone, is readable or `stop` is. To
    /// be called when [`next`](Work::next) has nothing.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn wait(
        &mut self,
        input: Option<BorrowedFd<'_>>,
        stop: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let line = input.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        self.wait_for(line, stop, None)
    }

    /// The same with what a `line` is waited for left to the caller, and for `limit` at most;
    /// longer where the device has no descriptor that tells of completions and something is under
    /// way.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn wait_for(
        &mut self,
        line: Option<PollFd<'_>>,
        stop: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        let busy = !self.is_idle();
        let event = self.channel.event().filter(|_| busy);
        if busy && event.is_none() {
            self.channel.park();
            return Ok(());
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref();
        let [event, stop] =
            [event, stop].map(|fd| fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // The kernel is handed those that there are, from the front.
        let result = match [event, stop, line] {
            [Some(event), Some(stop), Some(line)] => poll(&mut [event, stop, line], limit),
            [Some(one), Some(other), None]
            | [Some(one), None, Some(other)]
            | [None, Some(one), Some(other)] => poll(&mut [one, other], limit),
            [Some(one), None, None] | [None, Some(one), None] | [None, None, Some(one)] => {
                poll(&mut [one], limit)
            }
            [None, None, None] => Ok(0),
        };
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl<T> Work<T> {
    /// [`wait`](Work::wait) for an input that several threads share: each watches it by a
    /// `doorbell` of its own, an epoll, as exclusive, together with what stops it. Of threads that
    /// sleep in epoll_wait(2) on theirs the kernel wakes one per event; one that poll(2)s the epoll
    /// counts as nobody, so all would be woken.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn wait_at(&mut self, doorbell: &OwnedFd) -> io::Result<()> {
        if !self.is_idle() {
            let Some(event) = self.channel.event() else {
                self.channel.park();
                return Ok(());
            };
            arm(doorbell, event)?;
        }
        let none = epoll::EventData::new_u64(0);
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: none }; 4];
        match epoll::wait(doorbell, &mut events[..], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The device's buffers and requests are its own until they are over.
impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.next().is_none() {
                self.channel.park();
            }
        }
    }
}

/// Has `event` reported once by `doorbell`. A channel may have had another descriptor before, which
/// is closed and with that forgotten.
fn arm(doorbell: &OwnedFd, event: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    let data = epoll::EventData::new_u64(0);
    match epoll::modify(doorbell, event, data, flags) {
        Err(rustix::io::Errno::NOENT) => epoll::add(doorbell, event, data, flags),
        armed => armed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_block::ram::RamDevice;

    #[test]
    fn what_is_started_comes_out_once_with_its_owner() {
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(8192));
        let mut work = Work::new(&device);
        for round in 0..3u64 {
            let mut started = 0;
            while !work.is_full() {
                let mut data = work.buffer(4096);
                data.fill(started as u8);
                let (op, sector) = (Op::Write { fua: false }, Sector(started * 8));
                work.start(Job { op, sector, count: 0, data: Some(data) }, started);
                started += 1;
            }
            assert_eq!(started, DEPTH as u64, "{round}");
            let mut seen: Vec<u64> = std::iter::from_fn(|| {
                let (owner, completion) = work.next()?;
                completion.result.expect("written");
                completion.data.into_iter().for_each(|buffer| work.recycle(buffer));
                Some(owner)
            })
            .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..started).collect::<Vec<_>>());
            assert!(work.is_idle());
            assert_eq!(work.bytes, 0);
        }
        assert_eq!(work.small.len(), DEPTH);
    }

    #[test]
    fn bytes_are_bounded() {
        let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(BYTES_MAX as u64 / 512));
        let mut work = Work::new(&device);
        let data = work.buffer(BYTES_MAX);
        work.start(Job { op: Op::Read, sector: Sector(0), count: 0, data: Some(data) }, ());
        assert!(work.is_full());
        assert!(work.next().is_some());
        assert!(!work.is_full());
    }

    #[test]
    fn of_those_who_wait_for_shared_input_one_wakes_up() {
        use super::super::Bell;
        use polylane_base::sync::atomic::{AtomicUsize, Ordering};
        use polylane_base::sync::thread;
        use polylane_sys::event;
        use std::os::fd::AsFd;
        use std::time::{Duration, Instant};

        const EVENTS: usize = 20;
        let (input, stop) = (event::eventfd().expect("an event"), Bell::new().expect("a bell"));
        let input = Arc::new(input);
        let woken = Arc::new(AtomicUsize::new(0));
        let waits = |_| {
            let (input, stop, woken) = (input.clone(), stop.clone(), woken.clone());
            thread::spawn(move || {
                let device: Arc<dyn BlockDevice> = Arc::new(RamDevice::new(8));
                let mut work: Work<()> = Work::new(&device);
                let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
                let none = epoll::EventData::new_u64(0);
                let readable = epoll::EventFlags::IN;
                let exclusive = readable | epoll::EventFlags::EXCLUSIVE;
                epoll::add(&doorbell, input.as_fd(), none, exclusive).expect("watched");
                epoll::add(&doorbell, &stop, none, readable).expect("watched");
                while !stop.is_rung() {
                    work.wait_at(&doorbell).expect("waited");
                    event::drain(input.as_fd());
                    woken.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads: Vec<_> = (0..4).map(waits).collect();
        let begin = Instant::now();
        for event in 0..EVENTS {
            thread::sleep(Duration::from_millis(5));
            event::notify(input.as_fd());
            while woken.load(Ordering::Relaxed) <= event {
                assert!(begin.elapsed() < Duration::from_secs(30), "nobody woke up");
                thread::sleep(Duration::from_millis(1));
            }
        }
        thread::sleep(Duration::from_millis(5));
        let woken = woken.load(Ordering::Relaxed);
        // One who was not asleep yet may see an event that another takes.
        assert!(woken < EVENTS * 2, "{woken} woke up for {EVENTS} events");
        stop.ring();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
    }
}
