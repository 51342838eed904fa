//! A lane at its limit, in a hurry and out of it: whoever stops a volume waits for no share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::device::{BlockDevice, Channel, Completion, Op, Request, Sector, Submitted};
use polylane_block::qos::board::{Board, Device, Limits, Rule};
use polylane_block::qos::governed::{Governed, Governor, monotonic_ns};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Mapped, PAGE_BYTES, counters};
use polylane_block::ram::RamDevice;
use polylane_sys::buffer::Buffer;
use polylane_sys::region::Region;

const READ_BYTES: usize = 64 * 1024;

/// What a lane may do in a second: a read takes two.
const BYTES_MAX: u64 = READ_BYTES as u64 / 2;

/// A request that may go is answered by then, and one that may not is not.
const WHILE: Duration = Duration::from_millis(200);

/// A device under a governor, whose coordinator ticks until this is dropped.
struct Held {
    governor: Arc<Governor>,
    channel: Box<dyn Channel>,
    stop: Arc<AtomicBool>,
    ticks: Option<thread::JoinHandle<()>>,
}

impl Held {
    fn new(rule: Rule) -> Held {
        let governor = Governor::new();
        let (page, fd) = Region::create("test-lane", PAGE_BYTES).expect("a page");
        let mut board = Board::new(rule, Device::default(), monotonic_ns());
        let limits = Limits { bytes_max: Some(BYTES_MAX), ..Limits::default() };
        board.join(Mapped(page), limits, monotonic_ns());
        let lane = Lane::new(Mapped(Region::attach(fd, PAGE_BYTES).expect("the page")), None);
        governor.set(Some(lane));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let ticks = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
                // Never an idle device: no request is let go for that.
                board.tick(monotonic_ns(), Some(1));
            }
        });
        let device = Governed::new(Arc::new(RamDevice::new(1 << 16)), governor.clone());
        let channel = BlockDevice::channel(device);
        Held { governor, channel, stop, ticks: Some(ticks) }
    }

    /// Asks for a read; whether it was answered at once.
    fn read(&mut self) -> bool {
        let data = vec![Buffer::zeroed(READ_BYTES)];
        match self.channel.submit(Request::with_data(Op::Read, Sector(0), data, 0)) {
            Submitted::Done(done) => done.result.is_ok(),
            Submitted::Pending => false,
            Submitted::Busy(_) => panic!("there is room"),
        }
    }

    /// How many answers come in a while.
    fn answers(&mut self) -> usize {
        let mut done: Vec<Completion> = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < WHILE {
            self.channel.poll(&mut done);
            thread::sleep(Duration::from_millis(1));
        }
        done.len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ticks.take().into_iter().for_each(|ticks| drop(ticks.join()));
    }
}

#[test]
fn what_waits_for_its_lane_goes_in_a_hurry_and_waits_again_after_it() {
    for rule in [Rule::Ledger, Rule::Wdt, Rule::Static] {
        let mut held = Held::new(rule);
        while held.read() {}
        assert!(!held.read(), "it is behind the first");
        assert_eq!(held.answers(), 0, "{rule:?}: its limit is reached");
        let before = held.governor.total(counters::READS);
        let (hurry, second) = (held.governor.hurry(), held.governor.hurry());
        assert_eq!(held.answers(), 2, "{rule:?}: in a hurry");
        drop(second);
        assert!(held.read(), "{rule:?}: it is one still");
        assert!(held.governor.total(counters::READS) > before, "{rule:?}: it is charged");
        drop(hurry);
        assert!(!held.read(), "{rule:?}");
        assert_eq!(held.answers(), 0, "{rule:?}: it waits again");
    }
}
