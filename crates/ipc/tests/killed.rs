//! Processes that share a queue or a channel are killed with SIGKILL at random instants; the others
//! get on, and lose and repeat nothing.
//!
//! The processes are this test binary again, running one of the ignored tests below; they get their
//! descriptors over a socket whose path is in the environment.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::memory::Mapped;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_ipc::queue::lap_ring::LapRing;
use polylane_ipc::queue::{RequestQueue, Ticket};
use polylane_ipc::{ClientChannel, CopyPlan, Geometry, MailboxIndex, QueueKind, ServiceChannel};
use polylane_sys::event::{Epoll, Interest};
use polylane_sys::{Region, scm};

const SOCKET: &str = "POLYLANE_TEST_SOCKET";
const ROLE: &str = "POLYLANE_TEST_ROLE";

/// A socket that hands the same descriptors to every process that connects.
struct Giver {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Giver {
    fn start(fds: Vec<OwnedFd>) -> Giver {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = scm::listen(&path, 16).unwrap();
        std::thread::spawn(move || {
            while let Ok(peer) = scm::accept(&listener) {
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
                // A peer that was killed meanwhile is what this test is about.
                let _ = scm::send(&peer, b"fds", &fds);
            }
        });
        Giver { path, _dir: dir }
    }

    fn spawn(&self, test: &str, role: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", test])
            .env(SOCKET, &self.path)
            .env(ROLE, role)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// In a child: its descriptors and its role; `None` when the test is run by hand.
fn gift() -> Option<(Vec<OwnedFd>, Vec<u32>)> {
    let path = std::env::var_os(SOCKET)?;
    let with_parent = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(with_parent).unwrap();
    let socket = scm::connect(Path::new(&path)).unwrap();
    let fds = scm::receive(&socket, &mut [0; 8]).unwrap().fds;
    let role = std::env::var(ROLE).unwrap();
    Some((fds, role.split(' ').map(|number| number.parse().unwrap()).collect()))
}

// ---- lap ring --------------------------------------------------------------------------------

const SLOTS: usize = 16;
const PRODUCERS: usize = 256;
/// Values per producer; a producer that is through starts nothing new.
const VALUES: usize = 40_000;

/// What lies in the shared region: the ring, then words for the test's own bookkeeping.
mod place {
    use super::{PRODUCERS, VALUES};

    pub const STOP: usize = 4096;
    /// Values taken by anybody.
    pub const TAKEN: usize = 4104;
    /// Per producer: values pushed for sure.
    pub const PUSHED: usize = 8192;
    /// Per value: how often it was taken.
    pub const SEEN: usize = PUSHED + 4 * PRODUCERS;
    pub const TOTAL: usize = (SEEN + 4 * PRODUCERS * VALUES).next_multiple_of(4096);
}

fn seen_at(producer: usize, value: usize) -> usize {
    place::SEEN + 4 * (producer * VALUES + value)
}

#[test]
#[ignore = "a process of lap_ring_outlives_its_users"]
fn lap_ring_process() {
    let Some((fds, role)) = gift() else { return };
    let region = Region::attach(&fds[0], place::TOTAL).unwrap();
    let ring = LapRing::new(Mapped::new(&region, 0), SLOTS);
    match role[..] {
        [0, id] => produce(&region, &ring, id),
        _ => consume(&region, &ring),
    }
}

fn stopped(region: &Region) -> bool {
    region.word32(place::STOP).load(Ordering::Acquire) != 0
}

fn produce(region: &Region, ring: &LapRing<Mapped<'_>>, id: u32) {
    for value in 0..VALUES as u32 {
        while !ring.push(id << 16 | value) {
            std::thread::yield_now();
            if stopped(region) {
                return;
            }
        }
        region.word32(place::PUSHED + 4 * id as usize).store(value + 1, Ordering::Release);
        if stopped(region) {
            return;
        }
    }
}

/// Until stopped and empty. Values of one producer come to one consumer in their order.
fn consume(region: &Region, ring: &LapRing<Mapped<'_>>) {
    let (mut ticket, mut last) = (Ticket::default(), HashMap::new());
    loop {
        let stopping = stopped(region);
        match ring.pop_wait(&mut ticket, 50, Duration::from_millis(5)) {
            Some(value) => {
                let (id, number) = ((value >> 16) as usize, (value & 0xffff) as usize);
                region.word32(seen_at(id, number)).fetch_add(1, Ordering::Relaxed);
                region.word64(place::TAKEN).fetch_add(1, Ordering::Release);
                let before = last.insert(id, number);
                assert!(before.is_none_or(|before| before < number), "overtaken");
            }
            None if stopping => return,
            None => {}
        }
    }
}

/// Waits until `done`, at most half a minute.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn lap_ring_outlives_its_users() {
    let (region, memfd) = Region::create("lap-ring-test", place::TOTAL).unwrap();
    let giver = Giver::start(vec![memfd]);
    let (mut rng, mut next_id) = (Rng::new(3), 0);
    let mut producer = || {
        next_id += 1;
        giver.spawn("lap_ring_process", &format!("0 {}", next_id - 1))
    };
    let consumer = || giver.spawn("lap_ring_process", "1");
    let mut producers: Vec<Child> = (0..3).map(|_| producer()).collect();
    let mut consumers: Vec<Child> = (0..3).map(|_| consumer()).collect();
    let (mut kills, mut killed_consumers) = (0, 0);
    while kills < 60 {
        let before = region.word64(place::TAKEN).load(Ordering::Acquire);
        std::thread::sleep(Duration::from_micros(500 + rng.below(20_000)));
        let kill_consumer = rng.percent(50);
        let from = if kill_consumer { &mut consumers } else { &mut producers };
        let which = rng.below(from.len() as u64) as usize;
        let mut victim = std::mem::replace(
            &mut from[which],
            if kill_consumer { consumer() } else { producer() },
        );
        victim.kill().unwrap();
        // A producer may have been through with its values: then nobody was killed.
        killed_consumers += u32::from(victim.wait().unwrap().code().is_none() && kill_consumer);
        kills += 1;
        let taken = || region.word64(place::TAKEN).load(Ordering::Acquire);
        until("the survivors are stuck", || {
            for child in &mut producers {
                if child.try_wait().unwrap().is_some() {
                    *child = producer();
                }
            }
            taken() > before
        });
    }
    region.word32(place::STOP).store(1, Ordering::Release);
    for mut child in producers.into_iter().chain(consumers) {
        assert!(child.wait().unwrap().success(), "a survivor failed");
    }
    check_ledger(&region, killed_consumers);
}

/// Nothing twice; nothing missing but what killed consumers had in hand, one value each.
fn check_ledger(region: &Region, killed_consumers: u32) {
    let (mut missing, mut pushed) = (0, 0);
    for id in 0..PRODUCERS {
        let count = region.word32(place::PUSHED + 4 * id).load(Ordering::Acquire) as usize;
        pushed += count;
        for value in 0..VALUES {
            let seen = region.word32(seen_at(id, value)).load(Ordering::Acquire);
            // The value after the last certain one may have been pushed by a killed producer.
            assert!(seen <= u32::from(value <= count), "value {value} of {id}: {seen} times");
            missing += u32::from(value < count && seen == 0);
        }
    }
    assert!(pushed > 1000, "only {pushed} values went through");
    assert!(missing <= killed_consumers, "{missing} values lost, {killed_consumers} killed");
}

// ---- mailboxes -------------------------------------------------------------------------------

fn geometry(queue: QueueKind) -> Geometry {
    Geometry { queue, mailbox_count: 8, ..Geometry::default() }
}

#[test]
#[ignore = "a process of a_channel_outlives_its_clients"]
fn client_process() {
    let Some((mut fds, role)) = gift() else { return };
    let (index, queue) = (MailboxIndex(role[0]), QueueKind::from_number(role[1]).unwrap());
    let memfd = fds.remove(0);
    let client = ClientChannel::attach(memfd, fds, geometry(queue), CopyPlan::default()).unwrap();
    let seed = std::process::id();
    for n in 0.. {
        let mut message = Message::new(Op::Ping);
        message.arg = [u64::from(seed), n, u64::from(index.0), 0];
        let reply = client.call(index, &message, &Trusting).unwrap();
        assert_eq!(reply.value[..3], [u64::from(seed) + 1, n, u64::from(index.0)]);
    }
}

struct Serving<'a> {
    channel: &'a ServiceChannel,
    stop: AtomicBool,
    /// Requests served per mailbox.
    served: [AtomicU64; 8],
}

impl Serving<'_> {
    /// A worker that sleeps as soon as there is nothing to do, so that the bell is in play.
    fn run(&self) {
        let epoll = Epoll::new().unwrap();
        epoll.add(self.channel.doorbell(0), 0, Interest::Edge).unwrap();
        while !self.stop.load(Ordering::Relaxed) {
            while let Some(index) = self.channel.take(0) {
                let message = self.channel.message(index).expect("a client's words were torn");
                assert_eq!(message.arg[2], u64::from(index.0));
                let mut reply = Reply::new(Status::Done(0));
                reply.value[..3].copy_from_slice(&message.arg[..3]);
                reply.value[0] += 1;
                self.channel.reply(index, &reply);
                self.served[index.0 as usize].fetch_add(1, Ordering::Relaxed);
            }
            self.channel.set_asleep(0, true);
            if !self.channel.has_requests(0) {
                epoll.wait(&mut Vec::new(), Some(Duration::from_millis(50))).unwrap();
            }
            self.channel.set_asleep(0, false);
        }
    }

    fn count(&self, mailbox: usize) -> u64 {
        self.served[mailbox].load(Ordering::Relaxed)
    }
}

/// Ends the worker also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills clients and puts new ones on their mailboxes. A mailbox in any state must serve its next
/// user.
fn kill_clients(queue: QueueKind, kills: usize) {
    let channel = ServiceChannel::create(geometry(queue), CopyPlan::default()).unwrap();
    let fds = channel.client_fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let giver = Giver::start(fds);
    let spawn = |index| giver.spawn("client_process", &format!("{index} {}", queue as u32));
    let serving =
        Serving { channel: &channel, stop: AtomicBool::new(false), served: Default::default() };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| serving.run());
        let _stop = StopOnDrop(&serving.stop);
        let mut clients: Vec<Child> = (0..4).map(spawn).collect();
        let mut rng = Rng::new(5);
        for _ in 0..kills {
            let which = rng.below(4) as usize;
            std::thread::sleep(Duration::from_micros(rng.below(8000)));
            clients[which].kill().unwrap();
            clients[which].wait().unwrap();
            let before = std::array::from_fn::<u64, 4, _>(|n| serving.count(n));
            clients[which] = spawn(which);
            until("a client is stuck", || {
                worker.is_finished() || (0..4).all(|n| serving.count(n) > before[n] + 1)
            });
        }
        for client in &mut clients {
            assert!(client.try_wait().unwrap().is_none(), "a survivor failed");
            client.kill().unwrap();
            client.wait().unwrap();
        }
    });
}

#[test]
fn a_channel_outlives_its_clients() {
    kill_clients(QueueKind::Mailbox, 60);
    kill_clients(QueueKind::LapRing, 60);
}
