//! A door in front of the simulated disk at which flushes, writes with FUA and discards wait until
//! the test lets them go, in the order that it likes. So the moments in between can be looked at,
//! without any sleep.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use polylane_block::device::{BlockDevice, Channel, Completion, Error, Op, Request, Submitted};

use super::disk::SimDisk;

/// Longer than anything takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition outside of the gate is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// A request that waits at the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its number, in the order of arrival.
    pub number: u64,
    /// A flush; otherwise a write with FUA, or a discard.
    pub is_flush: bool,
}

#[derive(Default)]
struct State {
    shut: bool,
    arrived: u64,
    held: Vec<Held>,
    /// What is to become of requests that were let go and have not noticed it.
    let_go: Vec<(u64, Result<(), Error>)>,
}

/// The gate, a device itself. Thread-safe.
pub struct Gate {
    disk: Arc<SimDisk>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    /// An open gate in front of `disk`.
    pub fn new(disk: Arc<SimDisk>) -> Arc<Gate> {
        Arc::new(Gate { disk, state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics in here")
    }

    /// From now on flushes, writes with FUA and discards wait.
    pub fn shut(&self) {
        self.state().shut = true;
    }

    /// Nothing waits any more.
    pub fn open(&self) {
        let mut state = self.state();
        state.shut = false;
        let held = std::mem::take(&mut state.held);
        state.let_go.extend(held.into_iter().map(|held| (held.number, Ok(()))));
        self.changed.notify_all();
    }

    /// Lets a request go to the disk.
    pub fn let_go(&self, held: Held) {
        self.answer(held, Ok(()));
    }

    /// Has a request fail; the disk never sees it.
    pub fn fail(&self, held: Held, error: Error) {
        self.answer(held, Err(error));
    }

    fn answer(&self, held: Held, result: Result<(), Error>) {
        let mut state = self.state();
        state.held.retain(|other| *other != held);
        state.let_go.push((held.number, result));
        self.changed.notify_all();
    }

    /// Requests that wait here now.
    pub fn held(&self) -> Vec<Held> {
        self.state().held.clone()
    }

    /// Waits until `look`, which is shown what waits here, finds what it looks for. It is asked
    /// again and again and may look at other things too.
    ///
    /// # Panics
    /// When that never comes, in half a minute; `what` says what it was.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&[Held]) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(found) = look(&self.held()) {
                return found;
            }
            drop(self.changed.wait_timeout(self.state(), LOOK));
        }
        panic!("never came: {what}; waiting: {:?}", self.held());
    }

    /// Waits until a flush waits here that is not one of `known`.
    ///
    /// # Panics
    /// As [`wait`](Gate::wait).
    pub fn flush(&self, known: &[Held]) -> Held {
        let new = |held: &&Held| held.is_flush && !known.contains(held);
        self.wait("a flush", |held| held.iter().find(new).copied())
    }

    /// Waits until a write with FUA, or a discard, waits here.
    ///
    /// # Panics
    /// As [`wait`](Gate::wait).
    pub fn durable_write(&self) -> Held {
        self.wait("a durable write", |held| held.iter().find(|held| !held.is_flush).copied())
    }

    /// Holds a request as long as the gate says. What the gate answers.
    fn pass(&self, is_flush: bool) -> Result<(), Error> {
        let mut state = self.state();
        if !state.shut {
            return Ok(());
        }
        let number = state.arrived;
        state.arrived += 1;
        state.held.push(Held { number, is_flush });
        self.changed.notify_all();
        loop {
            if let Some(at) = state.let_go.iter().position(|(other, _)| *other == number) {
                return state.let_go.swap_remove(at).1;
            }
            state = self.changed.wait(state).expect("no thread panics in here");
        }
    }
}

impl BlockDevice for Gate {
    fn sector_count(&self) -> u64 {
        self.disk.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = self.disk.clone().channel();
        Box::new(Passage { gate: self, inner })
    }
}

struct Passage {
    gate: Arc<Gate>,
    inner: Box<dyn Channel>,
}

impl Channel for Passage {
    fn submit(&mut self, request: Request) -> Submitted {
        let passed = match request.op {
            Op::Flush => self.gate.pass(true),
            Op::Write { fua: true } | Op::Discard => self.gate.pass(false),
            _ => Ok(()),
        };
        match passed {
            Ok(()) => self.inner.submit(request),
            Err(error) => Submitted::Done(request.complete(Err(error))),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }
}
