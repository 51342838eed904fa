//! A disk with one arm, emulated: data in memory, and each request takes the time that a model of
//! 7200 revolutions a minute says.
//!
//! ```text
//! begin = when it came, or the end of the one before it        one arm, first come first served
//! seek  = 0 on the same track, else 1 ms + 15 ms · √(distance / disk)
//! wait  = until its first sector comes by; 0 for what goes on where the last one ended, in time
//! end   = begin + seek + wait + 4.069 µs per sector (2048 on a track: 126 MB/s, 8.33 ms a round)
//! ```
//!
//! There is no write cache in it (`hdparm -W0`): a write is durable at its end, a flush waits for
//! what its own volume wrote before it. No reordering (NCQ) either. The numbers are those of data
//! sheets in round figures; the formula has no chance in it, only the times at which requests come
//! differ.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::Mutex;
use polylane_block::ram::RamDevice;
use polylane_block::{BlockDevice, Channel, Completion, Op, Request, Submitted};

/// Sectors of the emulated disk: 1 TB.
pub const DISK_SECTORS: u64 = 1_953_525_168;
const TRACK_SECTORS: u64 = 2048;
const SECTOR_NS: u64 = 4069;
const ROUND_NS: u64 = TRACK_SECTORS * SECTOR_NS;
const SETTLE_NS: u64 = 1_000_000;
const STROKE_NS: f64 = 15e6;

/// Where the arm is and what it has done. Times are nanoseconds since the disk was made.
#[derive(Clone, Copy, Default)]
struct Arm {
    /// The sector behind the last one that it read or wrote.
    sector: u64,
    free_at: u64,
    requests: u64,
    busy_ns: u64,
}

impl Arm {
    /// The time at which a request that comes at `now` ends.
    fn serve(&mut self, now: u64, sector: u64, count: u64) -> u64 {
        let begin = now.max(self.free_at);
        let there = begin + seek_ns(self.sector, sector);
        let goes_on = sector == self.sector && begin == self.free_at;
        let wait = if goes_on { 0 } else { rotation_ns(there, sector) };
        let end = there + wait + count * SECTOR_NS;
        self.requests += 1;
        self.busy_ns += end - begin;
        (self.sector, self.free_at) = (sector + count, end);
        end
    }
}

fn seek_ns(from: u64, to: u64) -> u64 {
    match from / TRACK_SECTORS == to / TRACK_SECTORS {
        true => 0,
        false => {
            let share = from.abs_diff(to) as f64 / DISK_SECTORS as f64;
            SETTLE_NS + (STROKE_NS * share.sqrt()) as u64
        }
    }
}

/// From `now` until `sector` comes by.
fn rotation_ns(now: u64, sector: u64) -> u64 {
    let angle = sector % TRACK_SECTORS * SECTOR_NS;
    (angle + ROUND_NS - now % ROUND_NS) % ROUND_NS
}

/// The mechanics, which several volumes may share. One lock, held to reckon and never to wait.
pub struct Mechanics {
    made: Instant,
    arm: Mutex<Arm>,
    /// Requests take no time any more.
    ended: AtomicBool,
}

impl Mechanics {
    /// A disk at rest at its first sector.
    pub fn new() -> Arc<Mechanics> {
        Arc::new(Mechanics {
            made: Instant::now(),
            arm: Mutex::new(Arm::default()),
            ended: AtomicBool::new(false),
        })
    }

    /// Requests that moved data, and how long the arm was at work for them.
    pub fn work(&self) -> (u64, Duration) {
        let arm = self.arm.lock();
        (arm.requests, Duration::from_nanos(arm.busy_ns))
    }

    /// From now on nothing takes time: for taking volumes down after the measurement.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.made.elapsed().as_nanos() as u64
    }

    /// When `request` ends, on a volume that begins at `first` on the disk and whose earlier
    /// requests end at `before`.
    fn due(&self, first: u64, before: u64, request: &Request) -> u64 {
        let now = self.now();
        if self.ended.load(Ordering::Relaxed) {
            return now;
        }
        let mut arm = self.arm.lock();
        match request.op {
            Op::Discard => now,
            Op::Flush => now.max(before),
            _ => arm.serve(now, first + request.sector.0, request.count),
        }
    }
}

/// A volume on such a disk.
pub struct SlowDisk {
    mechanics: Arc<Mechanics>,
    /// Its first sector on the disk.
    first: u64,
    data: Arc<RamDevice>,
    /// When the last of its requests ends.
    last_due: AtomicU64,
}

impl SlowDisk {
    /// `data` as the sectors from `first` on.
    pub fn new(mechanics: Arc<Mechanics>, first: u64, data: Arc<RamDevice>) -> Arc<SlowDisk> {
        Arc::new(SlowDisk { mechanics, first, data, last_due: AtomicU64::new(0) })
    }
}

impl BlockDevice for SlowDisk {
    fn sector_count(&self) -> u64 {
        self.data.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let data = self.data.clone().channel();
        Box::new(SlowChannel { disk: self, data, waiting: VecDeque::new() })
    }
}

/// What was done in memory waits here for its time; in order, since the arm keeps it.
struct SlowChannel {
    disk: Arc<SlowDisk>,
    data: Box<dyn Channel>,
    waiting: VecDeque<(u64, Completion)>,
}

impl Channel for SlowChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        if request.validate(self.disk.sector_count()).is_err() {
            return self.data.submit(request);
        }
        let disk = &self.disk;
        let before = disk.last_due.load(Ordering::Relaxed);
        let due = disk.mechanics.due(disk.first, before, &request);
        disk.last_due.fetch_max(due, Ordering::Relaxed);
        match self.data.submit(request) {
            Submitted::Done(completion) => {
                self.waiting.push_back((due, completion));
                Submitted::Pending
            }
            other => other,
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let now = self.disk.mechanics.now();
        while self.waiting.front().is_some_and(|(due, _)| *due <= now) {
            done.extend(self.waiting.pop_front().map(|(_, completion)| completion));
        }
    }

    fn park(&mut self) {
        if let Some((due, _)) = self.waiting.front() {
            let now = self.disk.mechanics.now();
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use polylane_block::Sector;
    use polylane_block::wait::Waiter;
    use polylane_sys::buffer::Buffer;

    use super::*;

    #[test]
    fn what_goes_on_in_time_takes_its_transfer_and_what_is_late_a_round() {
        let mut arm = Arm::default();
        assert_eq!(arm.serve(0, 0, 8), 8 * SECTOR_NS);
        assert_eq!(arm.serve(0, 8, 8), 16 * SECTOR_NS, "queued behind the first");
        let late = 16 * SECTOR_NS + 1;
        assert_eq!(arm.serve(late, 16, 8), 24 * SECTOR_NS + ROUND_NS);
        assert_eq!((arm.requests, arm.busy_ns), (3, 24 * SECTOR_NS + ROUND_NS - 1));
    }

    #[test]
    fn the_farther_the_longer_and_never_more_than_a_stroke_and_a_round() {
        let seeks = [TRACK_SECTORS, 1 << 20, DISK_SECTORS].map(|to| seek_ns(0, to));
        assert!(seeks.is_sorted() && seeks[0] >= SETTLE_NS);
        assert_eq!(seeks[2], SETTLE_NS + STROKE_NS as u64);
        assert!((0..5000).all(|sector| rotation_ns(sector * 777, sector) < ROUND_NS));
    }

    #[test]
    fn a_volume_answers_when_the_model_says_and_at_once_after_the_end() {
        let mechanics = Mechanics::new();
        let disk = SlowDisk::new(mechanics.clone(), 1 << 30, Arc::new(RamDevice::new(4096)));
        let waiter = Waiter::new(disk);
        let start = Instant::now();
        waiter.write(Sector(8), Buffer::copy_of(&[7; 4096]), false).unwrap();
        waiter.flush().unwrap();
        assert!(start.elapsed().as_nanos() as u64 >= SETTLE_NS + 8 * SECTOR_NS);
        assert!(waiter.read(Sector(8), 4096).unwrap().iter().all(|byte| *byte == 7));
        let (requests, busy) = mechanics.work();
        assert!(requests == 2 && busy.as_nanos() as u64 > SETTLE_NS);
        mechanics.end();
        waiter.read(Sector(4000), 4096).unwrap();
        assert_eq!(mechanics.work(), (requests, busy), "nothing is reckoned any more");
        assert!(waiter.read(Sector(4096), 512).is_err());
    }
}
