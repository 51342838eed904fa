//! The thread that writes dirty blocks back: when many are dirty, and those that have been for a
//! second or two. Its writes are not flushed; a flush then has less to do.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use polylane_base::sync::{Condvar, Mutex};

use super::state::{BatchEnd, State};
use crate::device::{BlockDevice, Op, Request, Sector};
use crate::wait::Waiter;

/// Time between two looks at what is old.
const TICK: Duration = Duration::from_secs(1);
/// Batches written together.
const BATCHES: usize = 8;

/// A handle to the thread.
pub(super) struct Sweeper {
    inner: Arc<dyn BlockDevice>,
    state: Arc<Mutex<State>>,
    wake: Arc<Condvar>,
    /// `None`: the host had none left, or it has ended. Writes then find no room sooner.
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    pub(super) fn start(inner: Arc<dyn BlockDevice>, state: Arc<Mutex<State>>) -> Sweeper {
        let wake = Arc::new(Condvar::new());
        let thread = {
            let (inner, state, wake) = (inner.clone(), state.clone(), wake.clone());
            std::thread::Builder::new()
                .name("cache-sweep".into())
                .spawn(move || run(&Waiter::new(inner), &state, &wake))
        };
        Sweeper { inner, state, wake, thread: thread.ok() }
    }

    /// Much is dirty.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the thread and writes everything back, if the medium takes it.
    pub(super) fn finish(&mut self) {
        self.state.lock().closing = true;
        self.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let waiter = Waiter::new(self.inner.clone());
        while write(&waiter, &self.state, u64::MAX) == Some(true) {}
    }
}

fn run(waiter: &Waiter, state: &Mutex<State>, wake: &Condvar) {
    let mut old = 0;
    loop {
        let guard = state.lock();
        if guard.closing {
            return;
        }
        let idle = |state: &mut State| !state.closing && !state.wants_sweep();
        let (mut guard, is_tick) = wake.wait_timeout_while(guard, TICK, idle);
        // What is older than the last tick; everything, when it is much.
        let before = if is_tick { old } else { u64::MAX };
        if is_tick {
            old = guard.now();
        }
        drop(guard);
        let mut state_is_fine = true;
        while state_is_fine {
            match write(waiter, state, before) {
                Some(true) => {
                    let state = state.lock();
                    if state.closing || (before == u64::MAX && state.is_swept()) {
                        break;
                    }
                }
                Some(false) => {
                    // The medium refuses: not again at once.
                    std::thread::sleep(TICK);
                    state_is_fine = false;
                }
                None => break,
            }
        }
    }
}

/// Writes some batches of changes from before `number`; whether that went well. `None`: there was
/// nothing that may be written now.
fn write(waiter: &Waiter, state: &Mutex<State>, number: u64) -> Option<bool> {
    let mut ends: Vec<BatchEnd> = Vec::new();
    let mut requests = Vec::new();
    {
        let mut state = state.lock();
        while requests.len() < BATCHES {
            let Some(batch) = state.next_batch(number) else { break };
            let (sector, data, end) = batch.split();
            let op = Op::Write { fua: false };
            requests.push(Request::with_data(op, Sector(sector), vec![data], ends.len() as u64));
            ends.push(end);
        }
    }
    if requests.is_empty() {
        return None;
    }
    let mut fine = true;
    for completion in waiter.all(requests) {
        fine &= completion.result.is_ok();
        if let Some(end) = ends.get(completion.tag as usize) {
            state.lock().end_batch(end, completion.result.is_ok());
        }
    }
    Some(fine)
}
