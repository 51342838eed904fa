//! Data modes: whether a block becomes a file's before its data is there. The device holds that
//! data back, and others commit meanwhile.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use polylane_base::TestClock;
use polylane_block::device::{BlockDevice, Channel, Completion, Op, Request, Submitted};
use polylane_block::ram::RamDevice;
use polylane_ext4::{DataMode, Ext4, Options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};

use crate::common;

/// Longer than anything takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Nothing is held.
    Passes,
    /// The next write that is not to be durable will be held ...
    Holds,
    /// ... and is.
    Held,
}

/// A device that takes its time with one write.
struct Slow {
    below: Arc<RamDevice>,
    next: Mutex<Next>,
    changed: Condvar,
}

impl Slow {
    fn set(&self, next: Next) {
        *self.next.lock().expect("not poisoned") = next;
        self.changed.notify_all();
    }

    /// Waits until the write is held, or is not any more.
    fn wait(&self, until: Next) {
        let next = self.next.lock().expect("not poisoned");
        let wait = self.changed.wait_timeout_while(next, PATIENCE, |next| *next != until);
        assert!(!wait.expect("not poisoned").1.timed_out(), "never came: {until:?}");
    }
}

impl BlockDevice for Slow {
    fn sector_count(&self) -> u64 {
        self.below.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let below = self.below.clone().channel();
        Box::new(Road { slow: self, below, held: None })
    }
}

struct Road {
    slow: Arc<Slow>,
    below: Box<dyn Channel>,
    held: Option<Request>,
}

impl Channel for Road {
    fn submit(&mut self, request: Request) -> Submitted {
        let next = *self.slow.next.lock().expect("not poisoned");
        if next == Next::Holds && request.op == (Op::Write { fua: false }) {
            self.held = Some(request);
            self.slow.set(Next::Held);
            return Submitted::Pending;
        }
        self.below.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if *self.slow.next.lock().expect("not poisoned") == Next::Passes
            && let Some(request) = self.held.take()
        {
            match self.below.submit(request) {
                Submitted::Done(completion) => done.push(completion),
                other => panic!("memory answers at once: {other:?}"),
            }
        }
        self.below.poll(done);
    }

    fn park(&mut self) {
        if self.held.is_some() {
            self.slow.wait(Next::Passes);
        }
    }
}

/// The size of "file" after a power cut now.
fn size_after_a_cut(below: &Arc<RamDevice>) -> u64 {
    let cut = common::load(&std::fs::read(common::save(below).path()).expect("readable"));
    let fs = common::open(&cut);
    let file =
        fs.lookup(&OpCtx::service(), fs.root().expect("root").ino, b"file").expect("is there");
    fs.close().expect("closes");
    assert_eq!(common::complaints(&cut), None);
    file.size
}

/// In ordered mode no commit shows a file whose data is not there; in writeback mode it may. What
/// fsync promises is the same.
#[test]
fn a_commit_waits_for_data_where_they_are_ordered() {
    if !common::have_tools() {
        return;
    }
    for data in [DataMode::Ordered, DataMode::Writeback] {
        let below = common::make(32, common::LANE);
        let slow =
            Slow { below: below.clone(), next: Next::Passes.into(), changed: Condvar::new() };
        let slow = Arc::new(slow);
        let commit_interval = Duration::from_secs(3600);
        let options = Options { data, commit_interval, ..Options::default() };
        let clock = Arc::new(TestClock::default());
        let fs = Ext4::open(slow.clone(), clock, &options).expect("opens");
        let new = polylane_testkit::fs_suite::node(Kind::File, 0o600);
        let root = fs.root().expect("root").ino;
        let file = fs.create(&OpCtx::service(), root, b"file", &new).expect("room").node.ino;
        fs.sync(&OpCtx::service()).expect("durable");
        slow.set(Next::Holds);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| fs.write(&OpCtx::service(), file, 0, &mut &[7; 4096][..]));
            slow.wait(Next::Held);
            let (end, mut size) = (Instant::now() + PATIENCE, 0);
            while size == 0 && Instant::now() < end {
                fs.sync(&OpCtx::service()).expect("durable");
                size = size_after_a_cut(&below);
                if data == DataMode::Ordered {
                    break;
                }
            }
            assert!(!writer.is_finished(), "{data:?}");
            assert_eq!(size, if data == DataMode::Ordered { 0 } else { 4096 }, "{data:?}");
            slow.set(Next::Passes);
            assert_eq!(writer.join().expect("no panic"), Ok(4096));
        });
        fs.fsync(&OpCtx::service(), file, false).expect("durable");
        assert_eq!(size_after_a_cut(&below), 4096);
        let mut bytes = [0; 4096];
        assert_eq!(fs.read(&OpCtx::service(), file, 0, 4096, &mut &mut bytes[..]), Ok(4096));
        assert!(bytes.iter().all(|byte| *byte == 7), "{data:?}");
        fs.close().expect("closes");
        assert_eq!(common::complaints(&below), None);
    }
}
