//! The data of two snapshots becomes that of one.
//!
//! The blocks of one file are copied to the other, piece by piece. While a volume above them is in
//! use, the copying keeps to a rate, in small pieces: the volume's own requests find the disk free.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, thread};
use polylane_block::device::SECTOR_BYTES;
use polylane_block::file::FileDevice;
use polylane_block::overlay::Overlay;
use polylane_block::wait::Waiter;
use polylane_block::{Allocation, BlockDevice, Channel, Completion, Error, Op, Request, Sector};
use polylane_sys::buffer::Buffer;

use super::progress::Progress;

/// Bytes per second at least, while a volume above is in use.
const RATE_MIN: u64 = 32 << 20;

/// How long all of it may take, where the disk is fast enough.
const TIME_MAX: Duration = Duration::from_secs(40);

/// Sectors that are copied at once: while a volume above is in use, and else.
const PIECE_SECTORS: u64 = 256;
const PIECE_SECTORS_ALONE: u64 = 2048;

/// Runs of sectors that are copied at once, at most.
const RUNS_MAX: usize = 32;

/// Sectors that are zeroed at once, at most.
const ZERO_SECTORS: u64 = (64 << 20) / SECTOR_BYTES as u64;

/// What the blocks of one snapshot are copied to.
pub(crate) enum Onto {
    /// The one below, which is raw.
    Raw(Arc<FileDevice>),
    /// The one below, which is on others itself.
    Below(Arc<Overlay>),
    /// The one above. Blocks that it has stay as they are.
    Above(Arc<Overlay>),
}

/// A copy of all blocks that one of two snapshots has in its own file.
pub(crate) struct Fold {
    pub(crate) from: Arc<Overlay>,
    pub(crate) onto: Onto,
}

/// What a [`Fold`] has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Effort {
    /// Bytes to be copied.
    pub(crate) bytes: u64,
    /// Bytes of these that the host has to find room for.
    pub(crate) room: u64,
}

impl Fold {
    fn device(&self) -> Arc<dyn BlockDevice> {
        match &self.onto {
            Onto::Raw(file) => file.clone(),
            Onto::Below(overlay) | Onto::Above(overlay) => overlay.clone(),
        }
    }

    /// The first run of sectors at or after `at` that is to be copied.
    fn next(&self, mut at: u64) -> Option<(Range<u64>, Allocation)> {
        loop {
            let (run, allocation) = self.from.own_run(Sector(at))?;
            let Onto::Above(above) = &self.onto else { return Some((run, allocation)) };
            match above.absent_run(&run) {
                Some(absent) => return Some((absent, allocation)),
                None => at = run.end,
            }
        }
    }

    /// Bytes of a run for which there is no room yet.
    fn lacking(&self, run: &Range<u64>) -> u64 {
        let (mut at, mut sectors) = (run.start, 0);
        while at < run.end {
            let left = at..run.end;
            let (count, lacks) = match &self.onto {
                Onto::Raw(file) => {
                    let (allocation, count) = file.allocation(Sector(at), left.end - left.start);
                    (count, allocation == Allocation::Hole)
                }
                Onto::Below(overlay) => match overlay.absent_run(&left) {
                    Some(absent) if absent.start == at => (absent.end - at, true),
                    Some(absent) => (absent.start - at, false),
                    None => (left.end - at, false),
                },
                Onto::Above(_) => (left.end - at, true),
            };
            sectors += if lacks { count } else { 0 };
            at += count.max(1);
        }
        sectors * SECTOR_BYTES as u64
    }

    /// Adds up what there is to do.
    pub(crate) fn effort(&self) -> Effort {
        let (mut at, mut effort) = (0, Effort::default());
        while let Some((run, allocation)) = self.next(at) {
            at = run.end;
            if allocation == Allocation::Data {
                effort.bytes += (run.end - run.start) * SECTOR_BYTES as u64;
                effort.room += self.lacking(&run);
            }
        }
        effort
    }

    /// Copies all of it, durably. `effort`: what there is to do; `in_use`: a volume above is.
    ///
    /// # Errors
    /// Those of both files; it can be done again.
    pub(crate) fn run(
        &self,
        effort: Effort,
        in_use: bool,
        progress: &Progress,
    ) -> Result<(), Error> {
        let mut pace = Pace::new(effort.bytes, in_use);
        let most = if in_use { PIECE_SECTORS } else { PIECE_SECTORS_ALONE };
        let device = self.device();
        let waiter = Waiter::new(device.clone());
        let (mut from, mut onto) = (self.from.clone().channel(), device.channel());
        let (mut piece, mut at) = (Piece::default(), 0);
        while let Some((run, allocation)) = self.next(at) {
            if allocation == Allocation::Hole {
                let count = (run.end - run.start).min(ZERO_SECTORS);
                waiter.write_zeroes(Sector(run.start), count, true)?;
                at = run.start + count;
                continue;
            }
            let count = (run.end - run.start).min(most - piece.sectors);
            at = run.start + count;
            piece.add(run.start..at);
            if piece.sectors == most || piece.runs.len() == RUNS_MAX {
                let bytes = std::mem::take(&mut piece).copy(&mut *from, &mut *onto)?;
                progress.add(bytes);
                pace.wait(bytes);
            }
        }
        progress.add(piece.copy(&mut *from, &mut *onto)?);
        waiter.flush()
    }
}

/// Runs of sectors that are copied together.
#[derive(Default)]
struct Piece {
    runs: Vec<Range<u64>>,
    sectors: u64,
}

impl Piece {
    fn add(&mut self, run: Range<u64>) {
        self.sectors += run.end - run.start;
        self.runs.push(run);
    }

    /// Copies it; its bytes.
    fn copy(self, from: &mut dyn Channel, onto: &mut dyn Channel) -> Result<u64, Error> {
        let reads = self.runs.iter().zip(0..).map(|(run, tag)| {
            let data = Buffer::zeroed((run.end - run.start) as usize * SECTOR_BYTES);
            Request::with_data(Op::Read, Sector(run.start), vec![data], tag)
        });
        let read = all(from, reads.collect())?;
        let writes = read.into_iter().filter_map(|Completion { data, tag, .. }| {
            let run = self.runs.get(tag as usize)?;
            Some(Request::with_data(Op::Write { fua: false }, Sector(run.start), data, tag))
        });
        all(onto, writes.collect())?;
        Ok(self.sectors * SECTOR_BYTES as u64)
    }
}

/// Sends requests, and waits until all are answered.
fn all(channel: &mut dyn Channel, requests: VecDeque<Request>) -> Result<Vec<Completion>, Error> {
    let (count, mut left, mut done) = (requests.len(), requests, Vec::new());
    while done.len() < count {
        while let Some(request) = left.pop_front() {
            match channel.submit(request) {
                polylane_block::Submitted::Done(completion) => done.push(completion),
                polylane_block::Submitted::Pending => {}
                polylane_block::Submitted::Busy(request) => {
                    left.push_front(request);
                    break;
                }
            }
        }
        channel.poll(&mut done);
        if done.len() < count {
            channel.park();
        }
    }
    done.iter().try_for_each(|completion| completion.result)?;
    Ok(done)
}

/// A rate that is kept.
struct Pace {
    /// Bytes per second; `None`: as fast as it goes.
    rate: Option<u64>,
    began: Instant,
    done: u64,
}

impl Pace {
    fn new(bytes: u64, in_use: bool) -> Pace {
        let rate = in_use.then(|| RATE_MIN.max(bytes / TIME_MAX.as_secs()));
        Pace { rate, began: Instant::now(), done: 0 }
    }

    /// So many bytes are copied: sleeps until more may be.
    fn wait(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        self.done += bytes;
        let due = Duration::from_secs_f64(self.done as f64 / rate as f64);
        thread::sleep(due.saturating_sub(self.began.elapsed()));
    }
}
