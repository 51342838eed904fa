//! The channel on a ring of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use polylane_sys::uring::Ring;

use super::FileDevice;
use super::calls;
use super::counters::Counters;
use super::task::{Next, Task};
use crate::device::{Channel, Completion, Request, Submitted};

pub(super) struct RingChannel {
    /// Before `device`: its drop waits for operations on the device's files.
    ring: Ring,
    device: Arc<FileDevice>,
    counters: Arc<Counters>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
}

impl RingChannel {
    pub(super) fn new(device: Arc<FileDevice>, ring: Ring) -> RingChannel {
        let count = super::DEPTH as usize;
        RingChannel {
            ring,
            counters: device.new_counters(),
            device,
            tasks: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
        }
    }

    fn end(&self, task: Task, result: Result<(), crate::device::Error>) -> Completion {
        let completion = task.complete(result);
        self.counters.note(&completion);
        completion
    }

    /// Starts the next operation of the task in slot `index`. The ring has room: it has as many
    /// slots as there are tasks.
    fn start(&mut self, index: usize, mut task: Task) {
        let operation = task.operation(&self.device, index as u64);
        let pushed = self.ring.push(operation);
        assert!(pushed.is_ok(), "as many operations as tasks");
        self.tasks[index] = Some(task);
    }
}

impl Channel for RingChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        match Task::new(&self.device, request) {
            Ok(mut task) => {
                if calls::look(&self.device, &self.counters, &mut task) {
                    self.free.push(index);
                    return Submitted::Done(self.end(task, Ok(())));
                }
                self.start(index, task);
                Submitted::Pending
            }
            Err(completion) => {
                self.free.push(index);
                self.counters.note(&completion);
                Submitted::Done(completion)
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some(finished) = self.ring.reap() {
            let index = finished.operation.token as usize;
            let Some(mut task) = self.tasks[index].take() else { continue };
            match task.step(&self.device, finished) {
                Next::Go => self.start(index, task),
                Next::Over(result) => {
                    self.free.push(index);
                    done.push(self.end(task, result));
                }
            }
        }
        self.ring.submit();
    }

    fn park(&mut self) {
        self.ring.wait();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.ring.watch(inputs).is_ok()
    }

    fn rest(&mut self) -> bool {
        self.ring.rest()
    }
}
