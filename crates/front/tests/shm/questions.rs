//! Questions for the state of a file that a client has on loan: what anybody is told is one state,
//! and a loan on which nothing was written goes on.

use polylane_base::rng::Rng;
use polylane_base::{Clock, SystemClock};
use polylane_front::shm::Config;
use polylane_ipc::Geometry;
use polylane_ipc::message::{IS_MARK, MARK, MARK_PLACES, Message, Op, WireAttr};
use polylane_ipc::view::FRAME_BYTES;

use super::lease::look_up;
use crate::kernel::{Fields, Kernel, ROOT};
use crate::shm_kit::{
    Client, House, cached_lane,
    file::{File, PAGE, beside, now, read_beside, write_beside},
    requests_of, roomy_lane, unhurried_lane,
};

/// Access, modification and change time, nanoseconds since 1970; size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    times: [i64; 3],
    size: u64,
}

impl State {
    fn of(attr: &WireAttr) -> State {
        let time = |n: usize| attr.sec[n] * 1_000_000_000 + i64::from(attr.nsec[n]);
        State { times: [0, 1, 2].map(time), size: attr.size }
    }
}

/// A process that asks for the state of `f` as the library does: it tells what it was told for
/// as long as the mark holds that came with it.
struct Asker<'a> {
    client: &'a Client,
    told: Option<(u64, u64, State)>,
    remembered: u32,
}

impl<'a> Asker<'a> {
    fn new(client: &'a Client) -> Asker<'a> {
        Asker { client, told: None, remembered: 0 }
    }

    fn state(&mut self) -> State {
        let marks = self.client.channel.marks().unwrap();
        let holds = |&(places, sum, _): &(u64, u64, State)| {
            let (name, state) = (places as u32, (places & !IS_MARK) >> 32);
            let counts = [0, name as usize % MARK_PLACES, state as usize % MARK_PLACES];
            counts.into_iter().map(|at| marks.count(at)).fold(0, u64::wrapping_add) == sum
        };
        if let Some((.., state)) = self.told.filter(holds) {
            self.remembered += 1;
            return state;
        }
        let message = Message { flags: MARK, ..Message::new(Op::Stat) };
        let reply = self.client.call_at(message, b"f", b"").unwrap();
        let [places, sum, ..] = reply.value;
        let state = State::of(&reply.attr.unwrap());
        self.told = (places & IS_MARK != 0).then_some((places, sum, state));
        state
    }
}

/// The state as a process without the library is told it.
fn kernel_state(kernel: &mut Kernel, node: u64) -> State {
    const GETATTR: u32 = 3;
    let unique = kernel.send(GETATTR, node, &[0; 16]);
    // The kernel may be told what to forget first.
    let answer = loop {
        let message = kernel.receive(5000).expect("an answer");
        if message.unique == unique {
            break message;
        }
    };
    assert_eq!(answer.error, 0);
    let mut fields = Fields(&answer.body);
    let size = fields.skip(24).u64();
    let seconds = { fields.skip(8) }.u64();
    let seconds = [seconds, fields.u64(), fields.u64()];
    let times = seconds.map(|sec| sec as i64 * 1_000_000_000 + i64::from(fields.u32()));
    State { times, size }
}

/// Waits until the next stamp is another one than the last.
fn tick() {
    let (clock, before) = (SystemClock, SystemClock.now());
    while clock.now() == before {
        std::thread::yield_now();
    }
}

/// What a state may be: when it was written last is between two times, and so is when it was read.
struct Model {
    size: u64,
    written: (i64, i64),
    read: (i64, i64),
    /// What was told since the last change or read.
    known: Option<State>,
}

impl Model {
    fn new(size: u64) -> Model {
        Model { size, written: (0, now()), read: (0, now()), known: None }
    }

    fn write(&mut self, end: u64, begun: i64) {
        self.size = self.size.max(end);
        (self.written, self.known) = ((begun, now()), None);
    }

    fn read(&mut self) {
        (self.read.1, self.known) = (now(), None);
    }

    fn check(&mut self, told: State, at: &str) {
        let [read, written, changed] = told.times;
        assert_eq!((told.size, changed), (self.size, written), "{at}");
        assert!((self.written.0..=self.written.1).contains(&written), "{at} {:?}", self.written);
        assert!((self.read.0..=self.read.1).contains(&read), "{at} {:?}", self.read);
        assert_eq!(*self.known.get_or_insert(told), told, "{at}");
        self.read.0 = read;
    }
}

/// As a database's transactions: it reads, asks for the state by the file and by its path, then
/// writes two pages and syncs. It asks for the questions by path and the sync alone.
#[test]
fn a_loan_on_which_nothing_was_written_outlives_questions() {
    let house = House::over(unhurried_lane(), Config::default());
    let (client, other) = (house.client(), house.client());
    let mut file = File::open(&client, "f");
    file.write(0, &[0; 2 * FRAME_BYTES]);
    file.sync();
    for round in 1..100_u8 {
        tick();
        let asked = [Op::Read, Op::Fstat, Op::Write].map(|op| requests_of(&house, op));
        assert_eq!(file.read(0, 16), [round - 1; 16]);
        let told = State::of(&file.state());
        assert!(told.times[0] > told.times[1], "it was read after it was written: {told:?}");
        assert_eq!(State::of(&client.stat("f").unwrap()), told);
        assert_eq!(State::of(&other.stat("f").unwrap()), told);
        tick();
        file.write(0, &[round; FRAME_BYTES]);
        file.write(PAGE, &[round; FRAME_BYTES]);
        let after = [Op::Read, Op::Fstat, Op::Write].map(|op| requests_of(&house, op));
        assert_eq!(asked, after, "round {round}");
        if round % 3 == 0 {
            let seen = State::of(&other.stat("f").unwrap());
            assert!(seen.times[1] > told.times[0] && seen.times[0] == told.times[0], "{seen:?}");
            file.write(0, &[round; FRAME_BYTES]);
        }
        file.sync();
    }
    assert_eq!(read_beside(&beside(&house, "f"), 0, 20_000), [99; 2 * FRAME_BYTES]);
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// Who asks for the state again and again is shown it.
#[test]
fn who_asks_twice_is_shown_the_state() {
    let house = House::over(cached_lane(), Config::default());
    let (client, other) = (house.client(), house.client());
    let mut file = File::open(&client, "f");
    file.write(0, &[1; FRAME_BYTES]);
    file.sync();
    // The read is taken by another's question: from then on the state is asked for.
    file.read(0, 1);
    let told = State::of(&other.stat("f").unwrap());
    let before = requests_of(&house, Op::Fstat);
    (0..50).for_each(|_| assert_eq!(State::of(&file.state()), told));
    assert_eq!(requests_of(&house, Op::Fstat), before + 2);
}

/// What was written by the stream on a loan on which nothing else was written is seen by who asks:
/// the client itself, others, and, where the loan under way is a later one than that for which the
/// client announced it, after it was applied.
#[test]
fn who_writes_by_the_stream_changes_the_state() {
    let geometry = Geometry { frames: 64, ..Geometry::default() };
    let house = House::over(roomy_lane(), Config { geometry, ..Config::default() });
    let (client, other) = (house.client(), house.client());
    let mut file = File::open(&client, "f");
    (0..128).for_each(|page| file.write(page * PAGE, &[1; FRAME_BYTES]));
    let (mut rounds, mut page) = ([0; 3], 0);
    while rounds.iter().any(|&count| count < 10) {
        file.write(page * PAGE, &[2; FRAME_BYTES]);
        file.sync();
        let Some(away) = (0..128).find(|page| file.stream_for(page * PAGE) != 0) else { continue };
        page = (page + 1) % 128;
        tick();
        let (before, which) = (now(), page as usize % 3);
        if which == 2 {
            file.post(away * PAGE, &[3; FRAME_BYTES]).unwrap();
            client.call(&Message::new(Op::Ping)).unwrap();
        } else {
            // Not through the gate first.
            assert!(file.write_streamed(away * PAGE, &[3; FRAME_BYTES]));
        }
        let told = match which {
            0 => State::of(&other.stat("f").unwrap()),
            _ => State::of(&file.state()),
        };
        assert!(told.times[1] >= before, "way {which}: {told:?} after {before}");
        rounds[which] += 1;
    }
}

/// Whoever asks, by whatever way, and whoever wrote, read and synced before, in whatever order: all
/// are told the same, and what is told is what was done.
#[test]
fn all_are_told_one_state() {
    const PAGES: u64 = 128;
    let (mut told_again, mut streamed) = (0, 0);
    for seed in 0..40 {
        // Not all pages have a place in the view: others are written by the stream.
        let geometry = Geometry { frames: 64, ..Geometry::default() };
        let house = House::over(roomy_lane(), Config { geometry, ..Config::default() });
        let clients = [house.client(), house.client()];
        let mut rng = Rng::new(seed);
        let mut file = File::open(&clients[0], "f");
        let direct = beside(&house, "f");
        let mut kernel = Kernel::on(house.lane.clone(), 0);
        let node = Fields(&look_up(&mut kernel, ROOT, "f").unwrap()).u64();
        let mut askers = [&clients[0], &clients[1]].map(Asker::new);
        let frame = [7; FRAME_BYTES];
        (0..PAGES).for_each(|page| file.write(page * PAGE, &frame));
        let mut model = Model::new(PAGES * PAGE);
        for step in 0..600 {
            // One client has it to itself for long, or none would be lent anything.
            let mut guest = match seed % 2 == 1 && rng.below(20) == 0 {
                true => Some(File::open(&clients[1], "f")),
                false => None,
            };
            let file = guest.as_mut().unwrap_or(&mut file);
            let (page, op) = (rng.below(PAGES), rng.below(24));
            let begun = now();
            match op {
                0..=7 => {
                    let (at, len) = match op {
                        0 => (model.size, 300),
                        1..=3 => (page * PAGE, FRAME_BYTES),
                        _ => (page * PAGE + 100, 1000),
                    };
                    match rng.below(12) {
                        0 => write_beside(&direct, at, &frame[..len]),
                        _ => file.write(at, &frame[..len]),
                    }
                    model.write(at + len as u64, begun);
                }
                8..=11 => {
                    match rng.below(8) {
                        0 => _ = read_beside(&direct, page * PAGE, 10),
                        _ => _ = file.read(page * PAGE, 10),
                    }
                    model.read();
                }
                12..=15 => file.sync(),
                16 => tick(),
                _ => {
                    let told = match op {
                        17..=18 => State::of(&file.state()),
                        19..=22 => askers[usize::from(rng.below(3) == 0)].state(),
                        _ => kernel_state(&mut kernel, node),
                    };
                    let at = format!("seed {seed}, step {step}, question {op}: {told:?}");
                    model.check(told, &at);
                }
            }
            if let Some(guest) = guest {
                clients[1].close(guest.handle).unwrap();
            }
        }
        let remembered: u32 = askers.iter().map(|asker| asker.remembered).sum();
        assert!(file.unasked > 100, "seed {seed}: {} {remembered}", file.unasked);
        (told_again, streamed) = (told_again + remembered, streamed + file.streamed);
        assert_eq!(house.server.totals().loans_failed, 0);
    }
    assert!(told_again > 100 && streamed > 100, "{told_again} {streamed}");
}
