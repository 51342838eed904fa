//! Hostile clients, and good ones beside them: random words in messages, queues, control lines,
//! states and payloads, while requests are under way; drained and overfull doorbells; sockets that
//! say nonsense.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use polylane_ipc::handshake::Hello;
use polylane_ipc::layout::{Layout, MAILBOX_HEAD, control, mailbox};
use polylane_ipc::message::{Message, Op};
use polylane_ipc::{Geometry, QueueKind};
use polylane_sys::{Region, event, scm};

use super::{Client, House, connect_raw, panics};

/// Eight bytes that only the good clients write.
const SECRET: u64 = 0x5ec2_e7be_ef5e_c2e7;

/// Lets `good` good clients, two hostile ones and one that babbles work in `house` for `time`.
///
/// # Panics
/// The service panicked, a good client found what it did not write or came to no end, one of its
/// bytes showed up in a hostile client's memory, or the hostile ones were too tame.
pub fn play(house: &House, good: usize, seed: u64, time: Duration) {
    let stop = AtomicBool::new(false);
    let progress: Vec<AtomicU64> = (0..good).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (stop, socket) = (&stop, &house.socket);
            scope.spawn(move || abuse(socket, &mut Rng::new(seed + number), stop));
        }
        scope.spawn(|| babble(&house.socket, &mut Rng::new(seed + 2), &stop));
        for (number, progress) in progress.iter().enumerate() {
            let (stop, directory) = (&stop, format!("good-{number}"));
            scope.spawn(move || work(house, &directory, stop, progress));
        }
        watch(time, &stop, &progress);
    });
    assert_eq!(panics(), 0, "the service panicked");
    let totals = house.server.totals();
    assert!(totals.refused > 0, "the hostile clients were too tame: {totals:?}");
    let late = house.client();
    late.call(&Message::new(Op::Ping)).unwrap();
}

/// Lets all run for `time`; the good clients must come on all the time.
fn watch(time: Duration, stop: &AtomicBool, progress: &[AtomicU64]) {
    let start = Instant::now();
    let mut last = vec![(0, start); progress.len()];
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(50));
        for (number, (progress, (rounds, since))) in progress.iter().zip(&mut last).enumerate() {
            let now = progress.load(Relaxed);
            if now > *rounds {
                (*rounds, *since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(20) {
                // A panic here would wait for the hung thread for ever.
                eprintln!("good client {number} hangs after {rounds} rounds");
                std::process::abort();
            }
        }
    }
    stop.store(true, Relaxed);
    assert!(last.iter().all(|(rounds, _)| *rounds > 0));
}

/// A good client: all it writes is read back, in its own directory.
fn work(house: &House, directory: &str, stop: &AtomicBool, progress: &AtomicU64) {
    let client = house.client();
    client.op_at(Op::Mkdir, directory).unwrap();
    let kept = client.create(&format!("{directory}/kept"));
    let word = SECRET.to_le_bytes();
    let content: Vec<u8> = word.iter().copied().cycle().take(200_000).collect();
    assert_eq!(write_all(&client, kept, &content), content.len());
    let mut round = 0u64;
    while !stop.load(Relaxed) {
        let name = format!("{directory}/{round}");
        let handle = client.open(&name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).unwrap().0;
        let stamp = [SECRET, round].map(u64::to_le_bytes).concat();
        assert_eq!(client.write(handle, 0, &stamp), Ok(16));
        assert_eq!(client.read(handle, 0, 100).unwrap(), stamp);
        client.lock(handle, polylane_ipc::message::LockFlags::OFD, libc::F_WRLCK).unwrap();
        let moved = format!("{directory}/{round}-moved");
        client.call_at(Message::new(Op::Rename), name.as_bytes(), moved.as_bytes()).unwrap();
        assert_eq!(client.stat(&moved).unwrap().size, 16);
        client.op_at(Op::Unlink, &moved).unwrap();
        client.close(handle).unwrap();
        if round.is_multiple_of(16) {
            assert!(client.read(kept, 0, content.len()).unwrap() == content, "content changed");
        }
        round += 1;
        progress.store(round, Relaxed);
    }
}

fn write_all(client: &Client, handle: u64, data: &[u8]) -> usize {
    let mut done = 0;
    while done < data.len() {
        done += client.write(handle, done as u64, &data[done..]).unwrap();
    }
    done
}

/// A hostile client's view of its channel.
struct Foe {
    region: Region,
    layout: Layout,
    geometry: Geometry,
    doorbells: Vec<OwnedFd>,
    _socket: OwnedFd,
}

fn connect(path: &Path, rng: &mut Rng) -> Option<Foe> {
    let queue = QueueKind::ALL.get(rng.below(4) as usize).copied();
    let socket = scm::connect(path).ok()?;
    scm::send(&socket, &Hello { queue, key: 0 }.at(b"/lane"), &[]).ok()?;
    let mut bytes = vec![0; polylane_ipc::handshake::WELCOME_BYTES_MAX];
    let received = scm::receive(&socket, &mut bytes).ok()?;
    let welcome = polylane_ipc::handshake::Welcome::from_bytes(&bytes[..received.count]).ok()?;
    let mut fds = received.fds;
    if welcome.status != 0 {
        return None;
    }
    let (geometry, memfd) = (welcome.geometry, fds.remove(0));
    let layout = geometry.layout().unwrap();
    let region = Region::attach(&memfd, layout.total_bytes()).unwrap();
    Some(Foe { region, layout, geometry, doorbells: fds, _socket: socket })
}

/// Connects, misbehaves for a while, vanishes; again and again.
fn abuse(path: &Path, rng: &mut Rng, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let Some(foe) = connect(path, rng) else { continue };
        for step in 0..rng.below(20_000) {
            foe.step(rng);
            if step % 4096 == 0 {
                foe.search();
                if stop.load(Relaxed) {
                    return;
                }
            }
        }
    }
}

const EDGES: [u64; 12] = [
    0,
    1,
    2,
    u64::MAX,
    u64::MAX - 1,
    1 << 32,
    (1 << 32) + 1,
    i64::MAX as u64,
    i64::MAX as u64 - 1,
    0xffff_ffff,
    4096,
    256 << 10,
];

/// Names the hostile clients play with; never the good one's.
const NAMES: [&[u8]; 10] =
    [b"a", b"b", b"d", b"d/a", b"d/b", b".", b"/", b"d/../a", b"link/x", b"\xff\x01/\0"];

impl Foe {
    fn step(&self, rng: &mut Rng) {
        match rng.below(100) {
            0..80 => self.request(rng),
            80..88 => self.scribble(rng),
            88..92 => self.doorbell(rng),
            92..95 => self.state(rng),
            95..98 => self.control(rng),
            _ => self.push(rng, rng.clone().next_u64() as u32),
        }
    }

    fn any_mailbox(&self, rng: &mut Rng) -> usize {
        self.layout.mailbox(rng.below(6.min(self.geometry.mailbox_count.into())) as usize)
    }

    /// Half a real request: an operation that exists, arguments near the edges.
    fn request(&self, rng: &mut Rng) {
        let index = rng.below(6) as usize;
        let at = self.layout.mailbox(index);
        let op = *rng.pick(Op::ALL);
        let mut words = Message::new(op).to_words();
        for word in &mut words[1..16] {
            match rng.below(10) {
                0..3 => *word = rng.below(4) | 1 << 32,
                3..6 => *word = *rng.pick(&EDGES),
                6 => *word = rng.next_u64(),
                _ => {}
            }
        }
        let (first, second) = (*rng.pick(&NAMES), *rng.pick(&NAMES));
        words[0] = op as u64 | 16 << 16 | u64::from(flags(op, rng)) << 32;
        words[4] = rng.pick(&[0o644, 0, 1, 2, 0o10_644, u64::MAX]) & 0xffff_ffff;
        words[5] = first.len() as u64 | (second.len() as u64) << 32;
        if rng.percent(10) {
            let word = rng.below(16) as usize;
            words[word] = rng.next_u64();
        }
        self.region.copy_in(at + MAILBOX_HEAD, &[first, second].concat());
        for (n, word) in words.iter().enumerate() {
            self.region.word64(at + mailbox::WORDS + 8 * n).store(*word, Relaxed);
        }
        let progress = *rng.pick(&EDGES) as u32;
        self.region.word32(at + mailbox::PROGRESS).store(progress, Relaxed);
        self.region.word32(at + mailbox::STATE).store(1, Relaxed);
        self.push(rng, index as u32);
        // Change it under the service's eyes.
        if rng.percent(30) {
            let word = rng.below(16) as usize;
            self.region.word64(at + mailbox::WORDS + 8 * word).store(rng.next_u64(), Relaxed);
        }
    }

    fn push(&self, rng: &mut Rng, value: u32) {
        let group = rng.below(self.geometry.groups.into()) as usize;
        let memory = polylane_ipc::memory::Mapped::new(&self.region, self.layout.queue(group));
        let count = self.geometry.mailbox_count as usize;
        use polylane_ipc::queue::RequestQueue;
        let slots = self.layout.ring_slots;
        match self.geometry.queue {
            QueueKind::Mailbox => {
                let doorbell = polylane_ipc::queue::doorbell::Doorbell::new(memory, count);
                doorbell.push(value % count as u32);
            }
            QueueKind::Rcqb => {
                let ring = polylane_ipc::queue::rcqb::Rcqb::new(memory, slots);
                ring.with_push_spins(100).push(value);
            }
            QueueKind::LapRing => {
                polylane_ipc::queue::lap_ring::LapRing::new(memory, slots).push(value);
            }
        }
        event::notify(&self.doorbells[group]);
    }

    /// Random words anywhere before the payloads, random bytes anywhere.
    fn scribble(&self, rng: &mut Rng) {
        let head = self.layout.mailbox(0) as u64;
        let offset = 8 * (rng.below(head) / 8) as usize;
        self.region.word64(offset).store(rng.next_u64(), Relaxed);
        let bytes = rng.next_u64().to_le_bytes();
        let at = rng.below((self.layout.total_bytes() - 8) as u64) as usize;
        self.region.copy_in(at, &bytes);
    }

    fn doorbell(&self, rng: &mut Rng) {
        let fd = rng.pick(&self.doorbells);
        match rng.below(3) {
            0 => drop(event::drain(fd)),
            1 => drop(rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes())),
            _ => drop(rustix::io::ioctl_fionbio(fd, rng.percent(50))),
        }
        // Never leave it blocking: this thread would hang itself.
        let _ = rustix::io::ioctl_fionbio(fd, true);
    }

    fn state(&self, rng: &mut Rng) {
        let state = self.region.word32(self.any_mailbox(rng) + mailbox::STATE);
        state.store(*rng.pick(&[0, 1, 2, 0x101, 0x102, u32::MAX]), Relaxed);
    }

    fn control(&self, rng: &mut Rng) {
        let line = self.layout.control(rng.below(self.geometry.groups.into()) as usize);
        let offset = line + *rng.pick(&[control::ASLEEP, control::CPU]);
        self.region.word32(offset).store(rng.below(4) as u32, Relaxed);
    }

    /// Looks for the good client's bytes.
    fn search(&self) {
        for index in 0..6 {
            let at = self.layout.mailbox(index) + MAILBOX_HEAD;
            let mut bytes = vec![0; 64 << 10];
            self.region.copy_out(at, &mut bytes);
            let secret = SECRET.to_le_bytes();
            assert!(!bytes.windows(8).any(|window| window == secret), "another client's data");
        }
    }
}

/// Flags that make sense of an operation half of the time.
fn flags(op: Op, rng: &mut Rng) -> u32 {
    let open = [libc::O_CREAT | libc::O_RDWR, libc::O_TRUNC | libc::O_WRONLY, libc::O_TMPFILE | 2];
    match op {
        Op::Open if rng.percent(80) => *rng.pick(&open) as u32,
        Op::Lock | Op::GetLock => rng.below(16) as u32,
        Op::Seek => 3 + rng.below(2) as u32,
        _ if rng.percent(60) => 0,
        _ => rng.next_u64() as u32,
    }
}

/// Connections that say nothing, nonsense, too much, or bring descriptors.
fn babble(path: &Path, rng: &mut Rng, stop: &AtomicBool) {
    let mut silent = Vec::new();
    while !stop.load(Relaxed) {
        let Ok(socket) = scm::connect(path) else { continue };
        let bytes: Vec<u8> = (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect();
        let event = event::eventfd().unwrap();
        let _ = match rng.below(5) {
            0 => Ok(()),
            1 => scm::send(&socket, &bytes, &[]),
            2 => scm::send(&socket, &Hello { queue: None, key: 0 }.at(b"/lane")[..8], &[]),
            3 => {
                use std::os::fd::AsFd;
                scm::send(&socket, &Hello { queue: None, key: 0 }.at(b"/lane"), &[event.as_fd()])
            }
            _ => connect_raw(path).map(|(socket, _, _)| silent.push(socket)),
        };
        silent.push(socket);
        if silent.len() > 20 {
            let index = rng.below(silent.len() as u64) as usize;
            silent.swap_remove(index);
        }
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
    }
}
