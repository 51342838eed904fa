//! One queue: requests from the kernel in, jobs to the device out, answers back.

use std::os::fd::AsFd;

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_block::{BlockDevice, Completion, Op, Sector};
use polylane_sys::buffer::Buffer;
use polylane_sys::ublk::{self, Queue, Wanted};

use crate::export::Bell;
use crate::export::work::{Job, Work};

/// Who asked.
struct Asked {
    tag: u16,
    /// Bytes to be told.
    bytes: u32,
    /// The request's buffer, where the device does not have it.
    buffer: Option<Buffer>,
}

/// See the [module](self).
pub(super) struct Session {
    queue: Queue,
    work: Work<Asked>,
}

impl Session {
    pub(super) fn new(queue: Queue, device: &Arc<dyn BlockDevice>) -> Session {
        Session { queue, work: Work::new(device) }
    }

    /// Asks for requests, in the thread that [serves](Session::run) them.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.queue.begin()
    }

    /// Serves until the device is stopped or `stop` rings; what was taken in is answered.
    pub(super) fn run(mut self, stop: &Bell) {
        let mut open = true;
        while open || !self.work.is_idle() {
            open &= !stop.is_rung();
            while open && !self.work.is_full() {
                match self.queue.take() {
                    Some(wanted) => self.start(wanted),
                    None => break,
                }
            }
            while let Some((asked, completion)) = self.work.next() {
                self.answer(asked, completion);
            }
            self.queue.submit();
            open &= !(self.queue.is_over() && self.work.is_idle());
            let listens = open && !self.work.is_full() && !self.queue.is_over();
            let stop = open.then(|| stop.as_fd());
            let waits = open || !self.work.is_idle();
            if waits && self.work.wait(listens.then(|| self.queue.as_fd()), stop).is_err() {
                return;
            }
        }
    }

    fn start(&mut self, wanted: Wanted) {
        let Wanted { tag, op, sector, sectors, buffer } = wanted;
        let (sector, count) = (Sector(sector), u64::from(sectors));
        let bytes = buffer.len() as u32;
        let (op, data, bytes, buffer) = match op {
            ublk::Op::Read => (Op::Read, Some(buffer), bytes, None),
            ublk::Op::Write { fua } => (Op::Write { fua }, Some(buffer), bytes, None),
            ublk::Op::Flush => {
                let asked = Asked { tag, bytes: 0, buffer: Some(buffer) };
                return self.work.start(Job::FLUSH, asked);
            }
            ublk::Op::Discard => (Op::Discard, None, 0, Some(buffer)),
            ublk::Op::WriteZeroes { unmap, fua } => {
                (Op::WriteZeroes { unmap, fua }, None, 0, Some(buffer))
            }
            ublk::Op::Unknown => return self.queue.finish(tag, Err(Errno::EOPNOTSUPP), buffer),
        };
        self.work.start(Job { op, sector, count, data }, Asked { tag, bytes, buffer });
    }

    fn answer(&mut self, asked: Asked, completion: Completion) {
        let result: Result<u32> = completion.result.map(|()| asked.bytes).map_err(Errno::from);
        let buffer = asked.buffer.or_else(|| completion.data.into_iter().next());
        if let Some(buffer) = buffer {
            self.queue.finish(asked.tag, result, buffer);
        }
    }
}
