//! How the threads beside a session's readers are asked for, and started; what readers sleep on.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use polylane_base::sync::atomic::{AtomicU8, Ordering};
use polylane_base::sync::{Arc, thread};
use polylane_sys::event::{self, eventfd};
use rustix::event::epoll;

use super::reply::Device;
use crate::lane::notifier::{Kernel, Level, Work};

/// When a thread that could not be started is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// A thread beside the readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Helper {
    States,
    /// Has the kernel drop pages of files' own nodes.
    Own,
    Deferred,
    /// Has it drop pages of slots.
    Slots,
    Names,
    Fills,
}

impl Helper {
    /// In the order in which they are started: none is there without those that it waits for at a
    /// session's end.
    pub(super) const ALL: [Helper; 6] = [
        Helper::States,
        Helper::Own,
        Helper::Deferred,
        Helper::Slots,
        Helper::Names,
        Helper::Fills,
    ];

    /// Those that the kernel's requests alone may wait for.
    pub(super) const FIRST: [Helper; 3] = [Helper::States, Helper::Own, Helper::Deferred];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Rings for each of them once and for good.
pub(super) struct Bell {
    wanted: AtomicU8,
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        let event = eventfd().map_err(|error| io::Error::from_raw_os_error(error.0))?;
        Ok(Bell { wanted: AtomicU8::new(0), event })
    }

    pub(super) fn ring(&self, helper: Helper) {
        if !self.wants(helper)
            && self.wanted.fetch_or(helper.bit(), Ordering::AcqRel) & helper.bit() == 0
        {
            event::notify(&self.event);
        }
    }

    pub(super) fn wants(&self, helper: Helper) -> bool {
        self.wanted.load(Ordering::Acquire) & helper.bit() != 0
    }

    /// Readable once it rings.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// It was heard.
    pub(super) fn heard(&self) {
        event::drain(&self.event);
    }
}

/// A thread of a session.
pub(super) type Thread<'scope> = thread::ScopedJoinHandle<'scope, ()>;

/// Threads beside the readers, by [`Helper`].
pub(super) struct Aside<'scope, 'a, B> {
    bell: &'a Bell,
    /// Starts one.
    begin: B,
    /// Told the first time that one cannot be started.
    tell: &'a dyn Fn(io::Error),
    told: bool,
    threads: [Option<Thread<'scope>>; Helper::ALL.len()],
}

impl<'scope, 'a, B> Aside<'scope, 'a, B>
where
    B: FnMut(Helper) -> io::Result<Thread<'scope>>,
{
    pub(super) fn new(bell: &'a Bell, begin: B, tell: &'a dyn Fn(io::Error)) -> Self {
        Aside { bell, begin, tell, told: false, threads: Default::default() }
    }

    /// Starts those that are wanted and not there, in that order. False: one cannot be started now,
    /// and those that follow were not tried.
    pub(super) fn begin_wanted(&mut self, among: &[Helper]) -> bool {
        self.bell.heard();
        for helper in among.iter().filter(|helper| self.bell.wants(**helper)) {
            let thread = &mut self.threads[*helper as usize];
            if thread.is_some() {
                continue;
            }
            match (self.begin)(*helper) {
                Ok(begun) => *thread = Some(begun),
                Err(error) => {
                    if !std::mem::replace(&mut self.told, true) {
                        (self.tell)(error);
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Waits for threads of which a panic was printed where it happened.
    pub(super) fn join<const COUNT: usize>(&mut self, helpers: [Helper; COUNT]) {
        for helper in helpers {
            if let Some(thread) = self.threads[helper as usize].take() {
                let _end = thread.join();
            }
        }
    }
}

/// What a reader sleeps on: of those who sleep, the kernel wakes one per request. `wake` wakes all.
pub(super) fn doorbell(device: &Device, wake: &OwnedFd) -> io::Result<OwnedFd> {
    let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let exclusive = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(&bell, device.as_fd(), epoll::EventData::new_u64(0), exclusive)?;
    epoll::add(&bell, wake, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    Ok(bell)
}

/// Waits until it rings.
pub(super) fn wait(doorbell: &OwnedFd) -> io::Result<()> {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
    match epoll::wait(doorbell, rustix::buffer::spare_capacity(&mut events), None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The kernel, to the notifier.
pub(super) struct Told {
    device: Device,
    bell: Arc<Bell>,
}

impl Told {
    pub(super) fn new(device: Device, bell: Arc<Bell>) -> Told {
        Told { device, bell }
    }
}

impl Kernel for Told {
    fn grow(&self, node_id: u64, size: u64) {
        self.device.grow(node_id, size);
    }

    fn comes(&self, work: Work) {
        self.bell.ring(match work {
            Work::Pages(Level::Slots) => Helper::Slots,
            Work::Pages(Level::Own) => Helper::Own,
            Work::Names => Helper::Names,
            Work::States => Helper::States,
        });
    }
}
