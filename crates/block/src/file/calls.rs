//! The channel on plain system calls, for hosts that switch io_uring off and for single requests
//! that somebody waits for: each request is done when it is submitted. And what a read finds in the
//! host's page cache, for both kinds of channel.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use polylane_base::{Errno, Result};
use polylane_sys::uring::{Action, Finished, Operation};
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;

use super::counters::Counters;
use super::task::{Next, Task};
use super::{FileDevice, errno};
use crate::device::{Channel, Completion, Request, Submitted};

/// Most bytes in a call that copies them to or from the host's page cache. A kernel that is not
/// preemptible gives the CPU to nobody else meanwhile: this is some 10 µs.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// Most pieces of memory in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

pub(super) struct CallChannel {
    device: Arc<FileDevice>,
    counters: Arc<Counters>,
}

impl CallChannel {
    pub(super) fn new(device: Arc<FileDevice>) -> CallChannel {
        CallChannel { counters: device.new_counters(), device }
    }

    fn execute(&self, request: Request) -> Completion {
        let mut task = match Task::new(&self.device, request) {
            Ok(task) => task,
            Err(completion) => return completion,
        };
        if look(&self.device, &self.counters, &mut task) {
            return task.complete(Ok(()));
        }
        loop {
            let mut operation = task.operation(&self.device, 0);
            let result = call(&self.device, &mut operation, ReadWriteFlags::empty());
            if let Next::Over(result) = task.step(&self.device, Finished { operation, result }) {
                return task.complete(result);
            }
        }
    }
}

impl Channel for CallChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let completion = self.execute(request);
        self.counters.note(&completion);
        Submitted::Done(completion)
    }

    fn poll(&mut self, _done: &mut Vec<Completion>) {}

    fn park(&mut self) {}
}

/// Reads what lies in the host's page cache, from the start on, and counts what does not. True: all
/// of it was there. Only where reads go through that cache and its host can tell.
pub(super) fn look(device: &FileDevice, counters: &Counters, task: &mut Task) -> bool {
    if !device.tells_hits() || !task.is_read() {
        return false;
    }
    let (mut found, mut over) = (0, false);
    while !over {
        let mut operation = task.operation(device, 0);
        let result = match call(device, &mut operation, ReadWriteFlags::NOWAIT) {
            Ok(0) => Err(Errno::EAGAIN),
            Err(Errno::EOPNOTSUPP) => {
                device.cannot_tell_hits();
                Err(Errno::EAGAIN)
            }
            result => result,
        };
        found += result.unwrap_or(0) as u64;
        let missed = result.is_err();
        // Any other error comes again, from a read that waits.
        let result = result.map_err(|_| Errno::EAGAIN);
        over = matches!(task.step(device, Finished { operation, result }), Next::Over(_));
        if missed {
            break;
        }
    }
    counters.note_look(found, task.bytes() - found);
    over
}

fn call(
    device: &FileDevice,
    operation: &mut Operation,
    read_flags: ReadWriteFlags,
) -> Result<usize> {
    let file = device.file(operation.file);
    let (offset, skip) = (operation.offset, operation.skip);
    let durable = matches!(operation.action, Action::Write { durable: true });
    // A durable one waits for the medium, and would do so in each part.
    let most = match device.copies(operation.file) && !durable {
        true => COPIED_BYTES_MAX,
        false => usize::MAX,
    };
    let done = match operation.action {
        Action::Sync => rustix::fs::fdatasync(file).map(|()| 0),
        Action::Fallocate { mode, length } => {
            let mode = FallocateFlags::from_bits_retain(mode as u32);
            rustix::fs::fallocate(file, mode, offset, length).map(|()| 0)
        }
        // Most have one buffer: no list of pieces is made for it.
        Action::Read if operation.buffers.len() == 1 => {
            let buffer = &mut operation.buffers[0];
            let part = part(buffer.len(), &mut (skip, most));
            let mut piece = [IoSliceMut::new(&mut buffer[part])];
            rustix::io::preadv2(file, &mut piece, offset, read_flags)
        }
        Action::Read => {
            let mut left = (skip, most);
            let buffers = operation.buffers.iter_mut().filter_map(|buffer| {
                let part = part(buffer.len(), &mut left);
                (!part.is_empty()).then(|| IoSliceMut::new(&mut buffer[part]))
            });
            let mut pieces: Vec<_> = buffers.take(PIECES_MAX).collect();
            rustix::io::preadv2(file, &mut pieces, offset, read_flags)
        }
        Action::Write { durable } if operation.buffers.len() == 1 => {
            let buffer = &operation.buffers[0];
            let piece = [IoSlice::new(&buffer[part(buffer.len(), &mut (skip, most))])];
            rustix::io::pwritev2(file, &piece, offset, durably(durable))
        }
        Action::Write { durable } => {
            let mut left = (skip, most);
            let buffers = operation.buffers.iter().filter_map(|buffer| {
                let part = part(buffer.len(), &mut left);
                (!part.is_empty()).then(|| IoSlice::new(&buffer[part]))
            });
            let pieces: Vec<_> = buffers.take(PIECES_MAX).collect();
            rustix::io::pwritev2(file, &pieces, offset, durably(durable))
        }
    };
    done.map_err(errno)
}

/// The part of the next buffer, of `bytes` bytes, that a transfer takes which still has `skip`
/// bytes to leave out and then `most` to move; counts both down.
fn part(bytes: usize, (skip, most): &mut (usize, usize)) -> Range<usize> {
    let start = (*skip).min(bytes);
    let end = start + (bytes - start).min(*most);
    *skip -= start;
    *most -= end - start;
    start..end
}

fn durably(durable: bool) -> ReadWriteFlags {
    if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() }
}
