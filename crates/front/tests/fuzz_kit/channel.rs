//! The wire protocol of shared memory: a client writes anything anywhere in its channel.
//!
//! The input is a list of commands. Each: a byte for what (a request with fields near the edges, a
//! word anywhere, a word of a control line, queue, state or stream, a bell, a number pushed), then
//! what it needs.
//!
//! # Oracle
//!
//! - No panic in any thread of the service.
//! - A good client beside it is answered, and its file holds what it wrote.
//! - Bytes that only the good client wrote never show in the hostile one's memory.
//! - The next hostile client is let in: nothing of the last one stays.

use memchr::memmem;
use polylane_base::Errno;
use polylane_base::sync::atomic::Ordering::Relaxed;
use polylane_front::shm::Config;
use polylane_ipc::QueueKind;
use polylane_ipc::handshake::{Hello, WELCOME_BYTES_MAX, Welcome};
use polylane_ipc::layout::{MAILBOX_HEAD, control, mailbox};
use polylane_ipc::message::{Message, Op};
use polylane_sys::{Region, event, scm};

use super::{Input, NAMES};
use crate::shm_kit::{Client, House, count_panics, panics};

/// Eight bytes that only the good client writes.
const SECRET: u64 = 0x5ec2_e7be_ef5e_c2e7;
/// A name that nobody guesses.
const KEPT: &str = "kept-d41d8cd98f00b204e9800998ecf8427e";

/// A service, and the good client in it.
pub struct Ground {
    house: House,
    good: Client,
    kept: u64,
}

impl Ground {
    /// A fresh one.
    pub fn new() -> Ground {
        count_panics();
        let house = House::with(Config { workers: vec![None], ..Config::default() });
        let good = house.client();
        let kept = good.create(KEPT);
        let bytes = SECRET.to_le_bytes().repeat(1024);
        assert_eq!(good.write(kept, 0, &bytes), Ok(8192));
        Ground { house, good, kept }
    }

    /// Requests that the service took so far, but for the good client's.
    pub fn requests(&self) -> u64 {
        let ours = |op: &Op| matches!(op, Op::Ping | Op::Read | Op::Open | Op::Write);
        let totals = self.house.server.totals();
        totals.by_op.iter().filter(|(op, _)| !ours(op)).map(|(_, count)| *count).sum()
    }
}

/// Plays an input.
///
/// # Panics
/// The oracle finds something.
pub fn play(ground: &Ground, input: &[u8]) {
    let mut input = Input(input);
    let queue = QueueKind::ALL.get(usize::from(input.u8() % 4)).copied();
    let socket = scm::connect(&ground.house.socket).expect("the socket is there");
    scm::send(&socket, &Hello { queue, key: 0 }.at(b"/lane"), &[]).expect("sent");
    let mut bytes = vec![0; WELCOME_BYTES_MAX];
    let received = loop {
        match scm::receive(&socket, &mut bytes) {
            // libFuzzer's alarm.
            Err(Errno::EINTR) => {}
            answer => break answer.expect("answered"),
        }
    };
    let welcome = Welcome::from_bytes(&bytes[..received.count]).expect("a welcome");
    assert_eq!(welcome.status, 0, "let in");
    let layout = welcome.geometry.layout().expect("a layout");
    let region = Region::attach(&received.fds[0], layout.total_bytes()).expect("mapped");
    let bell = &received.fds[1];
    let head = layout.mailbox(0) + MAILBOX_HEAD;
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        let index = usize::from(input.u8() % 3);
        let at = layout.mailbox(index);
        match input.u8() % 16 {
            0..9 => {
                let words = request(&mut input);
                let names = [input.pick(&NAMES), input.pick(&NAMES)].concat();
                region.copy_in(at + MAILBOX_HEAD, &names);
                for (n, word) in words.iter().enumerate() {
                    region.word64(at + mailbox::WORDS + 8 * n).store(*word, Relaxed);
                }
                region.word32(at + mailbox::STATE).store(1, Relaxed);
                push(&region, (layout.queue(0), welcome.geometry.queue), index as u64);
                event::notify(bell);
            }
            9 => {
                let word = input.number() as usize % (head / 8) * 8;
                region.word64(word).store(input.number(), Relaxed);
            }
            10 => {
                let word = layout.control(0) + input.pick(&[control::ASLEEP, control::WATCHED]);
                region.word32(word).store(input.number() as u32, Relaxed);
            }
            11 => {
                let word = layout.stream() + usize::from(input.u16()) % 4608 * 8;
                region.word64(word).store(input.number(), Relaxed);
            }
            12 => region.word32(at + mailbox::STATE).store(input.number() as u32, Relaxed),
            13 => region.word32(at + mailbox::PROGRESS).store(input.number() as u32, Relaxed),
            14 => push(&region, (layout.queue(0), welcome.geometry.queue), input.number()),
            _ => event::notify(bell),
        }
    }
    event::notify(bell);
    ground.good.call(&Message::new(Op::Ping)).expect("the good client is served");
    let kept = ground.good.read(ground.kept, 0, 8192).expect("its file is there");
    assert!(kept == SECRET.to_le_bytes().repeat(1024), "its file is as it was");
    let mut shared = vec![0; layout.mailbox(3)];
    region.copy_out(0, &mut shared);
    let found = memmem::find(&shared, &SECRET.to_le_bytes());
    assert_eq!(found, None, "the good client's bytes are in the hostile one's memory");
    drop(socket);
    assert_eq!(panics(), 0, "the service panicked");
}

/// Half a real request.
fn request(input: &mut Input<'_>) -> [u64; 16] {
    let op = input.pick(Op::ALL);
    let mut words = [0; 16];
    for word in &mut words {
        *word = match input.u8() % 3 {
            0 => input.number(),
            1 => u64::from(input.u8() % 4) | 1 << 32,
            _ => 0,
        };
    }
    words[0] = op as u64 | 16 << 16 | words[0] << 32;
    words[5] = u64::from(input.u8() % 8) | u64::from(input.u8() % 8) << 32;
    if input.u8() == 0 {
        words[usize::from(input.u8() % 16)] = input.number();
    }
    words
}

/// Says that there is work in this mailbox, without the care that a good client takes.
fn push(region: &Region, (queue, kind): (usize, QueueKind), value: u64) {
    match kind {
        QueueKind::Mailbox => {
            region.word64(queue).fetch_or(1 << (value % 64), Relaxed);
        }
        QueueKind::Rcqb => {
            let at = region.word64(queue + 64).fetch_add(1, Relaxed) % 64;
            let slot = queue + 128 + 64 * at as usize;
            region.word32(slot + 8).store(value as u32, Relaxed);
            region.word32(slot).store(2, Relaxed);
        }
        QueueKind::LapRing => {
            let tail = region.word64(queue + 64).fetch_add(1, Relaxed);
            let slot = queue + 128 + 64 * (tail % 64) as usize;
            let lap = (tail / 64) & 0x7fff_ffff;
            region.word64(slot).store(lap | 1 << 31 | value << 32, Relaxed);
        }
    }
}
