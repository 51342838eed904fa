//! What a device's requests cost, measured: for each kind the rate of random pages, of large
//! random requests and of pages one after the other, with many in flight.
//!
//! ```text
//! page_ns       = (time of 128 KiB − time of 4 KiB) / 31
//! random_ns     = time of a random 4 KiB − page_ns
//! sequential_ns = time of a 4 KiB that continues the last − page_ns, at most random_ns
//! ```
//!
//! The time of a request is the inverse of the rate, so a device that serves many at a time has a
//! capacity of 1 by these costs. A discard and a flush cost what a random page written does: how
//! long they keep others waiting differs too much from one to the next to be measured in a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_sys::buffer::Buffer;

use super::cost::{CostModel, Line, PAGE_BYTES};
use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};

/// Pages of a large request.
const LARGE_PAGES: u64 = 32;

/// Requests in flight.
const DEPTH: usize = 32;

/// Bytes that the device must have.
pub const BYTES_MIN: u64 = 16 << 20;

/// Measures the costs on a device whose content does not matter: it is read **and written**. Takes
/// six times `each`.
///
/// # Errors
/// A request fails; [`Error::OutOfRange`] for a device that is smaller than [`BYTES_MIN`].
pub fn measure(device: &Arc<dyn BlockDevice>, each: Duration) -> Result<CostModel, Error> {
    if device.sector_count() * (SECTOR_BYTES as u64) < BYTES_MIN {
        return Err(Error::OutOfRange);
    }
    let line = |op| {
        let small = Probe { op, pages: 1, random: true }.time_ns(device, each)?;
        let large = Probe { op, pages: LARGE_PAGES, random: true }.time_ns(device, each)?;
        let next = Probe { op, pages: 1, random: false }.time_ns(device, each)?;
        Ok::<_, Error>(solve(small, large, next))
    };
    let (read, write) = (line(Op::Read)?, line(Op::Write { fua: false })?);
    let page = write.random_ns + write.page_ns;
    Ok(CostModel { read, write, discard_ns: page, flush_ns: page })
}

/// The coefficients that give these times of a random page, a large request and a page that
/// continues another.
fn solve(small_ns: f64, large_ns: f64, next_ns: f64) -> Line {
    let page = ((large_ns - small_ns) / (LARGE_PAGES - 1) as f64).clamp(0.0, small_ns);
    let random = small_ns - page;
    let sequential = (next_ns - page).clamp(0.0, random);
    let [sequential_ns, random_ns, page_ns] =
        [sequential, random, page].map(|ns| ns.round().max(1.0) as u64);
    Line { sequential_ns, random_ns, page_ns }
}

/// Requests of one shape.
struct Probe {
    op: Op,
    pages: u64,
    random: bool,
}

impl Probe {
    /// Device time of a request, in nanoseconds.
    fn time_ns(&self, device: &Arc<dyn BlockDevice>, each: Duration) -> Result<f64, Error> {
        let mut channel = device.clone().channel();
        let pieces = device.sector_count() * SECTOR_BYTES as u64 / self.bytes();
        let mut rng = Rng::new(pieces);
        let mut spare: Vec<Buffer> =
            (0..DEPTH).map(|_| Buffer::copy_of(&vec![0x5a; self.bytes() as usize])).collect();
        let (begin, mut sent, mut done) = (Instant::now(), 0, Vec::new());
        let mut answered = 0;
        while begin.elapsed() < each {
            while let Some(buffer) = spare.pop() {
                let piece = if self.random { rng.below(pieces) } else { sent % pieces };
                done.extend(self.send(&mut *channel, piece, buffer)?);
                sent += 1;
            }
            answered += collect(&mut *channel, &mut done, &mut spare)?;
        }
        let ns = begin.elapsed().as_nanos() as f64;
        let counted = answered.max(1);
        while answered < sent {
            answered += collect(&mut *channel, &mut done, &mut spare)?;
        }
        Ok(ns / counted as f64)
    }

    fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    fn send(
        &self,
        channel: &mut dyn Channel,
        piece: u64,
        buffer: Buffer,
    ) -> Result<Option<Completion>, Error> {
        let sector = Sector(piece * self.bytes() / SECTOR_BYTES as u64);
        match channel.submit(Request::with_data(self.op, sector, vec![buffer], 0)) {
            Submitted::Done(completion) => Ok(Some(completion)),
            Submitted::Pending => Ok(None),
            Submitted::Busy(request) => {
                drop(request.complete(Err(Error::Unsupported)));
                Err(Error::Unsupported)
            }
        }
    }
}

/// Takes answers in; how many.
fn collect(
    channel: &mut dyn Channel,
    done: &mut Vec<Completion>,
    spare: &mut Vec<Buffer>,
) -> Result<u64, Error> {
    channel.poll(done);
    if done.is_empty() {
        channel.park();
        channel.poll(done);
    }
    let count = done.len() as u64;
    for completion in done.drain(..) {
        completion.result?;
        spare.extend(completion.data);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{Io, Kind};

    #[test]
    fn what_is_solved_gives_the_times_back() {
        let truth = CostModel::default();
        for (line, kind) in [(truth.read, Kind::Read), (truth.write, Kind::Write)] {
            let time = |pages: u64, sequential| {
                truth.cost_ns(&Io { kind, bytes: pages * PAGE_BYTES, sequential }) as f64
            };
            let found = solve(time(1, false), time(LARGE_PAGES, false), time(1, true));
            assert_eq!(found, line);
        }
    }

    #[test]
    fn nonsense_is_solved_to_something_that_can_be_charged() {
        // Large requests faster than small ones; sequential ones slower than random ones.
        for times in [(100.0, 10.0, 1e9), (0.0, 0.0, 0.0), (10.0, 1e12, 5.0)] {
            let line = solve(times.0, times.1, times.2);
            assert!(line.page_ns >= 1 && line.random_ns >= line.sequential_ns, "{line:?}");
        }
    }
}
