//! A request on its way through the file: which operation is next, and when it is answered.
//!
//! A request may take several operations: short transfers are continued, a zeroing that the host
//! lacks is done another way, a durable zeroing is followed by a sync.

use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_sys::buffer::Buffer;
use polylane_sys::uring::{Action, Finished, Operation};
use rustix::fs::FallocateFlags;

use super::{FileDevice, PLAIN};
use crate::device::{BlockDevice, Completion, Error, Op, Request};

/// Most zeros in one write, where the host cannot zero a range itself.
const ZEROS_BYTES_MAX: u64 = 1 << 20;

/// What a request is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Moving data.
    Move,
    /// Zeroing, by the host where it can: first choice, second choice, by hand.
    ZeroRange,
    Punch,
    WriteZeros,
    /// Making completed writes durable.
    Sync,
}

/// A request and how far it is.
#[derive(Debug)]
pub(super) struct Task {
    request: Request,
    stage: Stage,
    /// Bytes of the range that are done.
    done: u64,
    /// Some of its data went through the open file that syncs go through: it is durable after one.
    needs_sync: bool,
    /// The host refused it as a durable write: it is tried as a plain one.
    was_refused: bool,
}

/// What comes after an operation.
pub(super) enum Next {
    /// The request is answered.
    Over(Result<(), Error>),
    /// It takes one more operation.
    Go,
}

impl Task {
    /// A task for a request, or the answer that needs no operation at all.
    pub(super) fn new(device: &FileDevice, request: Request) -> Result<Task, Completion> {
        let check = match request.validate(device.sector_count()) {
            _ if device.is_stopped() => Err(Error::Stopped),
            Ok(()) if request.is_change() && device.read_only => Err(Error::ReadOnly),
            other => other,
        };
        if let Err(error) = check {
            return Err(request.complete(Err(error)));
        }
        let stage = match request.op {
            Op::Read | Op::Write { .. } => Stage::Move,
            Op::Flush => Stage::Sync,
            Op::Discard | Op::WriteZeroes { .. } if !device.host_zeroes() => Stage::WriteZeros,
            Op::Discard | Op::WriteZeroes { unmap: true, .. } => Stage::Punch,
            Op::WriteZeroes { unmap: false, .. } => Stage::ZeroRange,
        };
        Ok(Task { request, stage, done: 0, needs_sync: false, was_refused: false })
    }

    /// Ends it.
    pub(super) fn complete(self, result: Result<(), Error>) -> Completion {
        self.request.complete(result)
    }

    fn is_durable(&self) -> bool {
        matches!(self.request.op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. })
    }

    /// Whether it moves data out of the file.
    pub(super) fn is_read(&self) -> bool {
        self.request.op == Op::Read
    }

    /// Bytes of its range.
    pub(super) fn bytes(&self) -> u64 {
        self.request.count * crate::device::SECTOR_BYTES as u64
    }

    /// The next operation. It holds the request's buffers until [`step`](Task::step).
    pub(super) fn operation(&mut self, device: &FileDevice, token: u64) -> Operation {
        // Validated: the range ends within the device, so it is a number of bytes.
        let start = self.request.sector.byte().unwrap_or(u64::MAX);
        let (offset, left) = (start.saturating_add(self.done), self.bytes() - self.done);
        let mut operation = Operation {
            file: PLAIN,
            action: Action::Sync,
            offset,
            buffers: Vec::new(),
            skip: 0,
            token,
        };
        match self.stage {
            Stage::Sync => {}
            Stage::Move => {
                operation.buffers = std::mem::take(&mut self.request.data);
                operation.skip = self.done as usize;
                let granule = operation.buffers.iter().fold(left, |bits, b| bits | b.len() as u64);
                operation.file = device.file_for(offset, granule);
                // A durable write takes the report of a lost page with it, so the next flush must
                // have another open file to learn of that from.
                let refused = self.was_refused || device.refuses_durable.load(Ordering::Relaxed);
                let apart = operation.file != PLAIN && !refused;
                self.needs_sync |= self.is_durable() && !apart;
                operation.action = match self.request.op {
                    Op::Read => Action::Read,
                    _ => Action::Write { durable: self.is_durable() && apart },
                };
            }
            Stage::WriteZeros => {
                let bytes = left.min(ZEROS_BYTES_MAX);
                operation.buffers = vec![Buffer::zeroed(bytes as usize)];
                operation.file = device.file_for(offset, bytes);
                operation.action = Action::Write { durable: false };
            }
            Stage::ZeroRange => operation.action = fallocate(FallocateFlags::ZERO_RANGE, left),
            Stage::Punch => operation.action = fallocate(FallocateFlags::PUNCH_HOLE, left),
        }
        operation
    }

    /// Takes the end of an operation in.
    pub(super) fn step(&mut self, device: &FileDevice, finished: Finished) -> Next {
        let asked_durable = finished.operation.action == Action::Write { durable: true };
        if self.stage == Stage::Move {
            self.request.data = finished.operation.buffers;
        }
        match finished.result {
            // As the kernel does for a disk without FUA: written plainly, and a flush behind it.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) if asked_durable => {
                self.was_refused = true;
                Next::Go
            }
            Ok(moved) => self.advance(device, moved as u64),
            Err(Errno::EAGAIN | Errno::EINTR) => Next::Go,
            Err(Errno::EOPNOTSUPP | Errno::ENODEV) if self.stage == Stage::ZeroRange => {
                device.lacks_zero_range.store(true, Ordering::Relaxed);
                self.go(Stage::WriteZeros)
            }
            Err(Errno::EOPNOTSUPP | Errno::ENODEV) if self.stage == Stage::Punch => {
                device.lacks_holes.store(true, Ordering::Relaxed);
                match self.request.op {
                    Op::Discard => Next::Over(Err(Error::Unsupported)),
                    _ => self.go(Stage::WriteZeros),
                }
            }
            Err(errno) => Next::Over(Err(self.fail(device, errno))),
        }
    }

    fn go(&mut self, stage: Stage) -> Next {
        self.stage = stage;
        Next::Go
    }

    fn advance(&mut self, device: &FileDevice, moved: u64) -> Next {
        match self.stage {
            // The host tells a lost page once: another flush may have learned of it, not this one.
            Stage::Sync if device.is_stopped() => return Next::Over(Err(Error::Stopped)),
            Stage::Sync => return Next::Over(Ok(())),
            Stage::ZeroRange | Stage::Punch => self.done = self.bytes(),
            // The file ends before the device does: somebody cut it.
            Stage::Move | Stage::WriteZeros if moved == 0 => {
                return Next::Over(Err(self.fail(device, Errno::EIO)));
            }
            Stage::Move | Stage::WriteZeros => self.done += moved,
        }
        // It was for being durable that it was refused.
        if self.was_refused {
            device.refuses_durable.store(true, Ordering::Relaxed);
        }
        match (self.done < self.bytes(), self.stage) {
            (true, _) => Next::Go,
            (false, Stage::Move) if !self.needs_sync => Next::Over(Ok(())),
            (false, _) if self.is_durable() => self.go(Stage::Sync),
            (false, _) => Next::Over(Ok(())),
        }
    }

    /// What an error means to the maker of the request, and whether the device can go on.
    fn fail(&self, device: &FileDevice, errno: Errno) -> Error {
        let full = matches!(errno, Errno::ENOSPC | Errno::EDQUOT);
        let synced = match self.stage {
            Stage::Sync => true,
            // Without room the write failed alone. If it was a page of an earlier write, the next
            // flush learns of it, too.
            Stage::Move => self.is_durable() && !self.needs_sync && !full,
            _ => false,
        };
        if synced {
            device.stop();
        }
        if full { Error::NoSpace } else { Error::Medium(errno) }
    }
}

fn fallocate(flags: FallocateFlags, length: u64) -> Action {
    let mode = (flags | FallocateFlags::KEEP_SIZE).bits() as i32;
    Action::Fallocate { mode, length }
}
