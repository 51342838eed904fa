//! A server on memory, or on a file, and what is asked of it.

pub mod hostile;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::sync::Arc;
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Channel, Completion, Op, Request, Sector, Submitted};
use polylane_front::export::Serving;
use polylane_front::vhost_user::driver::{Driver, Shape};
use polylane_front::vhost_user::{Export, Server, serve};

pub const SHAPE: Shape = Shape { queues: 2, depth: 8, data_bytes: 8192 };
pub const SECTORS: u64 = 4096;

/// No test takes longer than this, on the slowest of machines.
const TIME_MAX: Duration = Duration::from_secs(120);

/// A device that counts durable writes.
struct Counting {
    inner: Arc<dyn BlockDevice>,
    durable: AtomicU64,
}

impl BlockDevice for Counting {
    fn sector_count(&self) -> u64 {
        self.inner.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(CountingChannel { inner: self.inner.clone().channel(), device: self })
    }
}

struct CountingChannel {
    inner: Box<dyn Channel>,
    device: Arc<Counting>,
}

impl Channel for CountingChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let durable = matches!(request.op, Op::Write { fua: true });
        self.device.durable.fetch_add(u64::from(durable), Ordering::Relaxed);
        self.inner.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event()
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.inner.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        self.inner.rest()
    }
}

/// A server at a socket, and its device.
pub struct House {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    door: OwnedFd,
    device: Arc<Counting>,
    server: Option<Box<Server>>,
    _limit: Option<Limit>,
}

impl House {
    /// For one test.
    pub fn new() -> House {
        House { _limit: Some(Limit::new("a virtio server under test")), ..House::lasting() }
    }

    /// The same on a file, past the page cache and by io_uring where the host has that: its rings
    /// wait for disk and guest in one.
    pub fn on_file() -> House {
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("volume");
        std::fs::write(&volume, vec![0; SECTORS as usize * 512]).expect("fill");
        let files = image::open(&volume).expect("open");
        let device = FileDevice::open(files, Way::Ring).expect("device");
        let limit = Some(Limit::new("a virtio server under test, on a file"));
        House { _limit: limit, ..House::at(dir, device) }
    }

    /// For a process that somebody else watches.
    pub fn lasting() -> House {
        let dir = tempfile::tempdir().expect("dir");
        House::at(dir, Arc::new(RamDevice::new(SECTORS)))
    }

    fn at(dir: tempfile::TempDir, inner: Arc<dyn BlockDevice>) -> House {
        let path = dir.path().join("socket");
        let door = OwnedFd::from(UnixListener::bind(&path).expect("bind"));
        let device = Arc::new(Counting { inner, durable: AtomicU64::default() });
        let mut house = House { _dir: dir, path, door, device, server: None, _limit: None };
        house.serve();
        house
    }

    pub fn serve(&mut self) {
        let device: Arc<dyn BlockDevice> = self.device.clone();
        let export = Export { serial: "volume-7".into(), device, queues: 4 };
        let door = self.door.try_clone().expect("dup");
        self.server = Some(Box::new(serve(door, export).expect("serve")));
    }

    pub fn durable_writes(&self) -> u64 {
        self.device.durable.load(Ordering::Relaxed)
    }

    /// All that the device holds.
    pub fn content(&self) -> Vec<u8> {
        let device: Arc<dyn BlockDevice> = self.device.clone();
        Waiter::new(device).read(Sector(0), SECTORS as usize * 512).expect("in range").to_vec()
    }

    pub fn grown(&self) {
        self.server.as_ref().expect("at work").grown();
    }

    pub fn end(&mut self) {
        self.server.take().expect("at work").end();
    }

    pub fn connect(&self) -> Driver {
        Driver::connect(&self.path, SHAPE).expect("connect")
    }
}

/// Ends the process when it is not dropped in time: an answer to a message is waited for without a
/// limit.
pub struct Limit(Option<mpsc::Sender<()>>);

impl Limit {
    pub fn new(what: &'static str) -> Limit {
        let (alive, gone) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if gone.recv_timeout(TIME_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: no end after {} s", TIME_MAX.as_secs());
                std::process::exit(101);
            }
        });
        Limit(Some(alive))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

static PANICS: AtomicU32 = AtomicU32::new(0);

/// Counts panics of the server's threads from now on.
pub fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let name = std::thread::current().name().unwrap_or("").to_string();
            PANICS.fetch_add(u32::from(name.starts_with("vhost-user")), Ordering::Relaxed);
            before(info);
        }));
    });
}

/// How many there were.
pub fn panics() -> u32 {
    PANICS.load(Ordering::Relaxed)
}
