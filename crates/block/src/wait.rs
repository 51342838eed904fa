//! The one place that turns submit and poll into waiting, for the blocking code above the seam.
//!
//! Channels are kept and used again: a caller takes a free one, or makes one, and puts it back. The
//! lock is held for that push or pop only.

use std::sync::Arc;

use polylane_base::sync::Mutex;
use polylane_sys::buffer::Buffer;

use crate::device::{BlockDevice, Channel, Completion, Error, Op, Request, Sector, Submitted};

/// Blocking access to a device, for any number of threads.
pub struct Waiter {
    device: Arc<dyn BlockDevice>,
    /// For several requests at a time.
    idle: Mutex<Vec<Box<dyn Channel>>>,
    /// For one.
    idle_single: Mutex<Vec<Box<dyn Channel>>>,
}

impl Waiter {
    /// Access to `device`.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Waiter { device, idle: Mutex::default(), idle_single: Mutex::default() }
    }

    /// The device itself.
    pub fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// Reads `bytes` bytes, a multiple of the sector size, from `sector` on.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read(&self, sector: Sector, bytes: usize) -> Result<Buffer, Error> {
        self.read_into(sector, Buffer::zeroed(bytes))
    }

    /// Fills `buffer` from `sector` on and gives it back.
    ///
    /// # Errors
    /// See [`Error`]; the buffer is lost.
    pub fn read_into(&self, sector: Sector, buffer: Buffer) -> Result<Buffer, Error> {
        let mut done = self.one(Request::with_data(Op::Read, sector, vec![buffer], 0));
        done.result?;
        done.data.pop().ok_or(Error::OutOfRange)
    }

    /// Writes `buffer` at `sector` and gives it back; durable on return with `fua`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write(&self, sector: Sector, buffer: Buffer, fua: bool) -> Result<Buffer, Error> {
        let mut done = self.one(Request::with_data(Op::Write { fua }, sector, vec![buffer], 0));
        done.result?;
        done.data.pop().ok_or(Error::OutOfRange)
    }

    /// Sends a write of `buffer` at `sector` and does not wait for it, not durable: the answer is
    /// [`UnderWay::wait`]'s.
    pub fn begin_write(&self, sector: Sector, buffer: Buffer) -> UnderWay<'_> {
        let request = Request::with_data(Op::Write { fua: false }, sector, vec![buffer], 0);
        let idle = self.idle.lock().pop();
        let mut channel = idle.unwrap_or_else(|| self.device.clone().channel());
        let mut done = Vec::new();
        push(&mut *channel, request, &mut done);
        // A channel may start what was submitted when it is asked for what is done.
        channel.poll(&mut done);
        UnderWay { waiter: self, channel: Some(channel), done }
    }

    /// Makes `count` sectors read as zeros.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write_zeroes(&self, sector: Sector, count: u64, unmap: bool) -> Result<(), Error> {
        let op = Op::WriteZeroes { unmap, fua: false };
        self.one(Request::without_data(op, sector, count, 0)).result
    }

    /// Gives `count` sectors up.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn discard(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.one(Request::without_data(Op::Discard, sector, count, 0)).result
    }

    /// Makes every write that completed before this call durable.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn flush(&self) -> Result<(), Error> {
        self.one(Request::without_data(Op::Flush, Sector(0), 0, 0)).result
    }

    /// Runs requests together and waits for all; completions come in no particular order, told
    /// apart by their tags.
    pub fn all(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Completion> {
        let mut requests = requests.into_iter();
        let Some(first) = requests.next() else { return Vec::new() };
        let Some(second) = requests.next() else { return vec![self.one(first)] };
        let idle = self.idle.lock().pop();
        let mut channel = idle.unwrap_or_else(|| self.device.clone().channel());
        let done = run(&mut *channel, [first, second].into_iter().chain(requests));
        self.idle.lock().push(channel);
        done
    }

    fn one(&self, request: Request) -> Completion {
        let idle = self.idle_single.lock().pop();
        let mut channel = idle.unwrap_or_else(|| self.device.clone().waiting_channel());
        let done = run(&mut *channel, [request]).pop();
        self.idle_single.lock().push(channel);
        done.expect("a channel answers every request once")
    }
}

/// A write that was sent. Dropping it waits, too.
#[must_use]
pub struct UnderWay<'a> {
    waiter: &'a Waiter,
    /// Until the answer was taken.
    channel: Option<Box<dyn Channel>>,
    done: Vec<Completion>,
}

impl UnderWay<'_> {
    /// Waits for the write and gives its buffer back.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn wait(mut self) -> Result<Buffer, Error> {
        let mut done = self.take().expect("nobody took it");
        done.result?;
        done.data.pop().ok_or(Error::OutOfRange)
    }

    fn take(&mut self) -> Option<Completion> {
        let mut channel = self.channel.take()?;
        while self.done.is_empty() {
            channel.park();
            channel.poll(&mut self.done);
        }
        self.waiter.idle.lock().push(channel);
        self.done.pop()
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.take();
    }
}

/// Sends requests and waits for all.
fn run(channel: &mut dyn Channel, requests: impl IntoIterator<Item = Request>) -> Vec<Completion> {
    let (mut done, mut sent) = (Vec::new(), 0);
    for request in requests {
        push(channel, request, &mut done);
        sent += 1;
    }
    while done.len() < sent {
        channel.park();
        channel.poll(&mut done);
    }
    done
}

/// Submits, making room by collecting completions as long as the channel is full.
fn push(channel: &mut dyn Channel, mut request: Request, done: &mut Vec<Completion>) {
    loop {
        match channel.submit(request) {
            Submitted::Done(completion) => return done.push(completion),
            Submitted::Pending => return,
            Submitted::Busy(same) => request = same,
        }
        channel.park();
        channel.poll(done);
    }
}
