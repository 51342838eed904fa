//! Writes by the stream to files on loan: whoever looks, by either door, sees what was written
//! before, whatever ends the loan, the client included; and what is claimed harms nobody else.

use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use polylane_front::lane::slots::Token;
use polylane_front::lane::tag::TAG_PAGES;
use polylane_front::shm::Config;
use polylane_ipc::message::{LEASED, MAY_REST, Message, NO_SLOT, Op};
use polylane_ipc::stream::{
    Change, DATA_BYTES, Entry, LENT, Posted, SetState, ShortName, WRITE_BYTES_MAX, streamed_handle,
};
use polylane_ipc::view::FRAME_BYTES;
use polylane_vfs::OpCtx;

use crate::shm_kit::{
    Client, House, count,
    file::{File, PAGE, beside, read_beside, write_beside},
    make_slot, requests_of, roomy_lane, wait_for,
};

const PAGES: u64 = 300;

fn house() -> House {
    House::over(roomy_lane(), Config { workers: vec![None, None], ..Config::default() })
}

/// A file of so many pages, of which its client has some on loan and may stream the others.
fn on_loan<'a>(client: &'a Client, name: &str, pages: u64) -> File<'a> {
    let mut file = File::open(client, name);
    borrow(&mut file, pages);
    file
}

fn borrow(file: &mut File<'_>, pages: u64) {
    file.write(0, &[0; FRAME_BYTES]);
    file.truncate(pages * PAGE);
    (0..4).for_each(|_| file.write(0, &[0; FRAME_BYTES]));
    assert!(file.client.channel.views().unwrap().streams(file.view) != 0, "no stream");
}

fn filled(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(FRAME_BYTES / 8)
}

/// The number that a page was filled with last; a reader beside may find it begun.
fn number(page: &[u8]) -> u64 {
    let count = |eight: &[u8]| u64::from_le_bytes(eight.try_into().unwrap());
    page.chunks_exact(8).map(count).max().unwrap_or(0)
}

#[test]
fn what_is_not_lent_needs_no_request_and_is_seen_by_all() {
    let house = house();
    let client = house.client();
    let mut file = on_loan(&client, "f", PAGES);
    let before = requests_of(&house, Op::Write);
    for page in (1..PAGES).rev() {
        file.write(page * PAGE, &filled(page));
    }
    assert_eq!(u64::from(file.streamed), PAGES - 1);
    assert_eq!(requests_of(&house, Op::Write), before);
    let direct = beside(&house, "f");
    for page in 1..PAGES {
        assert_eq!(number(&read_beside(&direct, page * PAGE, FRAME_BYTES)), page);
    }
    // The loan is over: the next one is asked for.
    file.write(7 * PAGE, &filled(1));
    assert_eq!(u64::from(file.streamed), PAGES - 1);
    file.write(9 * PAGE, &filled(2));
    assert_eq!(u64::from(file.streamed), PAGES);
    assert_eq!(number(&file.read(9 * PAGE, FRAME_BYTES)), 2);
}

#[test]
fn a_model_agrees_where_pages_are_streamed() {
    let house = house();
    let clients = [house.client(), house.client()];
    for seed in 0..6 {
        let (mut rng, name) = (Rng::new(seed), format!("f{seed}"));
        let mut model = vec![0; (PAGES * PAGE) as usize];
        let mut first = on_loan(&clients[0], &name, PAGES);
        let direct = beside(&house, &name);
        for step in 0..6000 {
            let offset = rng.below(PAGES) * PAGE;
            let (at, byte) = (offset as usize, rng.next_u64() as u8);
            // Nothing is lent to who is not alone with the file.
            let mut second = (rng.below(80) == 0).then(|| File::open(&clients[1], &name));
            let file = second.as_mut().unwrap_or(&mut first);
            match rng.below(200) {
                0 => {
                    let size = offset + rng.below(PAGE);
                    file.truncate(size);
                    file.truncate(PAGES * PAGE);
                    model[size as usize..].fill(0);
                }
                1 => {
                    file.punch(offset, PAGE);
                    model[at..at + FRAME_BYTES].fill(0);
                }
                2 => {
                    write_beside(&direct, offset, &[byte; FRAME_BYTES]);
                    model[at..at + FRAME_BYTES].fill(byte);
                }
                3 => assert_eq!(file.state().size, model.len() as u64),
                4 => {
                    let got = read_beside(&direct, offset, FRAME_BYTES);
                    assert!(got == model[at..at + FRAME_BYTES], "seed {seed}, step {step}");
                }
                5..=8 => {
                    let got = file.read(offset, FRAME_BYTES);
                    assert!(got == model[at..at + FRAME_BYTES], "seed {seed}, step {step}");
                }
                12..=24 => file.sync(),
                9..=11 => {
                    let (from, len) = (at + rng.below(PAGE / 2) as usize, FRAME_BYTES / 2);
                    file.write(from as u64, &vec![byte; len]);
                    model[from..from + len].fill(byte);
                }
                _ => {
                    file.write(offset, &[byte; FRAME_BYTES]);
                    model[at..at + FRAME_BYTES].fill(byte);
                }
            }
            if let Some(second) = second {
                clients[1].close(second.handle).unwrap();
            }
        }
        assert!(read_beside(&direct, 0, model.len() + 1) == model, "seed {seed}");
        assert!(first.streamed > 500, "seed {seed}: {} of 6000 steps", first.streamed);
    }
    assert_eq!(house.server.totals().loans_failed, 0);
}

#[test]
fn nobody_reads_what_is_older_than_what_was_streamed() {
    let house = house();
    let free = house.lane.vfs.statfs(&OpCtx::service()).unwrap().bfree;
    let (writing, reading) = (house.client(), house.client());
    let mut file = on_loan(&writing, "f", PAGES);
    let told: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let (told, over) = (&told, &AtomicBool::new(false));
    let mut threads = [file.on_thread(), file.on_thread()];
    let [left, own_reader] = &mut threads;
    let look = |mut read: Box<dyn FnMut(u64) -> Vec<u8> + '_>, seed: u64| {
        let (mut rng, mut last) = (Rng::new(seed), vec![0; PAGES as usize]);
        while !over.load(SeqCst) {
            let page = rng.below(PAGES) as usize;
            let before = told[page].load(SeqCst);
            let seen = number(&read(page as u64 * PAGE));
            assert!(seen >= before.max(last[page]), "page {page}: {seen} after {before}");
            last[page] = seen;
            if seed != 1 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    };
    let look = &look;
    std::thread::scope(|scope| {
        scope.spawn(move || look(Box::new(|at| own_reader.read(at, FRAME_BYTES)), 1));
        scope.spawn(|| {
            let handle = reading.open("f", libc::O_RDONLY).unwrap().0;
            look(Box::new(|at| reading.read(handle, at, FRAME_BYTES).unwrap()), 2);
        });
        scope.spawn(|| {
            let direct = beside(&house, "f");
            look(Box::new(move |at| read_beside(&direct, at, FRAME_BYTES)), 3);
        });
        // Gates are shut and opened again.
        scope.spawn(|| {
            while !over.load(SeqCst) {
                house.lane.vfs.give_room_back();
                std::thread::sleep(Duration::from_millis(1));
                house.lane.vfs.sync(&OpCtx::service()).unwrap();
            }
        });
        // Each has pages of its own, so that the last number told is the last one written.
        let write = |file: &mut File<'_>, odd: u64| {
            let (mut rng, start) = (Rng::new(odd), Instant::now());
            let mut written = 0;
            let goes_on = |streamed: u32| {
                let seconds = if streamed > 300 { 3 } else { 30 };
                start.elapsed() < Duration::from_secs(seconds)
            };
            while goes_on(file.streamed) {
                let page = rng.below(PAGES / 2) * 2 + odd;
                written += 1;
                file.write(page * PAGE, &filled(written));
                told[page as usize].store(written, SeqCst);
            }
        };
        let other = scope.spawn(move || write(left, 1));
        write(&mut file, 0);
        other.join().unwrap();
        over.store(true, SeqCst);
    });
    assert!(file.streamed > 300, "{}", file.streamed);
    // What was set aside is given back, the last loan's too.
    drop((writing, reading));
    wait_for("the room", || {
        house.lane.vfs.statfs(&OpCtx::service()).unwrap().bfree == free - PAGES
    });
}

#[test]
fn a_client_that_dies_leaves_what_it_streamed() {
    let house = house();
    let client = house.client();
    let mut file = on_loan(&client, "f", PAGES);
    (1..50).for_each(|page| file.write(page * PAGE, &filled(page)));
    assert_eq!(file.streamed, 49);
    drop(client);
    wait_for("the session's end", || house.server.session_count() == 0);
    let direct = beside(&house, "f");
    for page in 1..50 {
        assert_eq!(number(&read_beside(&direct, page * PAGE, FRAME_BYTES)), page);
    }
}

/// An entry that writes pages of `7` to a file, and its position.
fn post(client: &Client, handle: u64, offset: u64, (at, len): (usize, usize)) -> u32 {
    client.channel.stream_put(0, &[7; WRITE_BYTES_MAX]);
    let (change, at, len, flags) = (Change::Write, at as u32, len as u32, LENT);
    let entry = Entry { change, handle, at, len, offset, flags, ..Entry::default() };
    assert!(matches!(client.channel.stream().post(&entry), Posted::Waiting(_)));
    client.channel.stream().last_position()
}

/// Writes pages of `8` where the entry at a position was refused, as the library does; whether it
/// was.
fn ask(client: &Client, handle: u64, offset: u64, position: u32) -> bool {
    let refused = !client.was_done(client.mailbox, position);
    if refused {
        assert_eq!(client.write(handle, offset, &[8; FRAME_BYTES]), Ok(FRAME_BYTES));
    }
    // Another thread, whose change went into the same entry, hears the same.
    assert_eq!(client.was_done(client.mailbox, position), !refused);
    refused
}

#[test]
fn what_is_not_on_loan_by_now_is_refused_and_asked_for() {
    let house = house();
    let (client, other) = (house.client(), house.client());
    let (file, len) = (on_loan(&client, "f", PAGES), FRAME_BYTES);
    let (handle, direct) = (file.handle, beside(&house, "f"));
    // Applied, and not written once more.
    let applied = post(&client, handle, PAGE, (0, len));
    assert!(!ask(&client, handle, PAGE, applied));
    assert_eq!(read_beside(&direct, PAGE, 1), [7]);
    // The loan is over by that.
    let refused = post(&client, handle, 2 * PAGE, (0, len));
    client.call(&Message::new(Op::Ping)).unwrap();
    assert_eq!(read_beside(&direct, 2 * PAGE, 1), [0]);
    assert!(ask(&client, handle, 2 * PAGE, refused));
    assert_eq!(read_beside(&direct, 2 * PAGE, 1), [8]);
    // Another session has it.
    let plain = client.open("f", libc::O_RDWR).unwrap().0;
    client.close(handle).unwrap();
    let mut theirs = File::open(&other, "f");
    (0..3).for_each(|_| theirs.write(5 * PAGE, &[1; FRAME_BYTES]));
    let refused = post(&client, plain, 3 * PAGE, (0, len));
    client.call(&Message::new(Op::Ping)).unwrap();
    assert!(theirs.write_lent(5 * PAGE, &[2; FRAME_BYTES]), "their loan goes on");
    assert!(ask(&client, plain, 3 * PAGE, refused));
    assert_eq!(read_beside(&direct, 3 * PAGE, 1), [8]);
    assert_eq!(read_beside(&direct, 5 * PAGE, 1), [2]);
}

#[test]
fn strange_entries_do_nothing() {
    let house = house();
    let (client, other) = (house.client(), house.client());
    let file = on_loan(&client, "f", PAGES);
    let secret = other.create("secret");
    other.write(secret, 0, &[3; 2 * FRAME_BYTES]).unwrap();
    let readable = client.open("secret", libc::O_RDONLY).unwrap().0;
    let page = FRAME_BYTES;
    for (handle, offset, place) in [
        (file.handle, 100, (0, page)),
        (file.handle, PAGE, (0, 100)),
        (file.handle, PAGE, (0, 0)),
        (file.handle, PAGE, (DATA_BYTES - 1, page)),
        (file.handle, PAGE, (usize::MAX, page)),
        (file.handle, PAGE, (0, usize::MAX)),
        (file.handle, PAGES * PAGE, (0, page)),
        (file.handle, u64::MAX - PAGE + 1, (0, page)),
        (file.handle, 1 << 62, (0, page)),
        (readable, 0, (0, page)),
        (secret, 0, (0, page)),
        (u64::MAX, 0, (0, page)),
    ] {
        post(&client, handle, offset, place);
    }
    client.call(&Message::new(Op::Ping)).unwrap();
    let direct = beside(&house, "f");
    assert!(read_beside(&direct, 0, 1 << 30).iter().all(|byte| *byte == 0));
    assert_eq!(read_beside(&beside(&house, "secret"), 0, 1 << 20), [3; 2 * FRAME_BYTES]);
    // A gate that was shut stays so while the client believes in leases.
    let leaseless = house.client();
    leaseless.channel.stream().believe(true);
    let mut file = File::open(&leaseless, "g");
    (0..8).for_each(|page| file.write(page * PAGE, &[0; FRAME_BYTES]));
    (0..8).for_each(|page| file.write(page * PAGE, &[0; FRAME_BYTES]));
    assert!(leaseless.channel.stream().is_shut());
}

/// A file on loan that may rest once its program closed it, and its number there.
fn resting<'a>(client: &'a Client, path: &str) -> (File<'a>, u64) {
    let made = client.create(path);
    client.close(made).unwrap();
    let arg = [NO_SLOT, 0, MAY_REST, 0];
    let message = Message { flags: libc::O_RDWR as u32, arg, ..Message::new(Op::Open) };
    let reply = client.call_at(message, path.as_bytes(), b"").unwrap();
    let (number, view) = (reply.value[4], reply.value[5] as u32 - 1);
    let mut file = File::of(client, reply.handle, view);
    borrow(&mut file, PAGES);
    (file, number)
}

#[test]
fn a_file_that_is_taken_from_rest_keeps_what_was_streamed() {
    let house = house();
    let client = house.client();
    let (mut file, number_at_rest) = resting(&client, "f");
    let direct = beside(&house, "f");
    file.write(9 * PAGE, &filled(2));
    assert_eq!(file.streamed, 1);
    // Its program closed it; before it looks whether that holds, the last name goes.
    assert!(client.channel.views().unwrap().lie_down(file.view, number_at_rest));
    let vfs = &house.lane.vfs;
    vfs.unlink(&OpCtx::service(), &vfs.root(), b"f").unwrap();
    assert_eq!(number(&read_beside(&direct, 9 * PAGE, FRAME_BYTES)), 2);
}

#[test]
fn who_removes_a_file_at_rest_under_a_lease_waits_for_nobody() {
    let house = house();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    for round in 0..100 {
        let name = format!("d/f{round}");
        let (file, number_at_rest) = resting(&client, &name);
        client.op_at(Op::Lease, "d").or_else(|_| client.op_at(Op::Lease, "d")).unwrap();
        assert!(client.channel.views().unwrap().lie_down(file.view, number_at_rest));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    let handle = streamed_handle(3, 9);
                    let entry = Entry { change: Change::Close, handle, ..Entry::default() };
                    client.channel.stream().post(&entry);
                    std::thread::yield_now();
                }
            });
            let message = Message { flags: LEASED, ..Message::new(Op::Unlink) };
            client.call_at(message, name.as_bytes(), b"").unwrap();
            over.store(true, SeqCst);
        });
    }
}

#[test]
fn bytes_that_an_open_brought_are_old_after_a_late_entry() {
    let house = house();
    let client = house.client();
    // The gate is open for another file.
    on_loan(&client, "g", PAGES);
    let made = client.create("f");
    client.write(made, 0, &[1; 2 * FRAME_BYTES]).unwrap();
    let arg = [NO_SLOT, 64 << 10, 0, 0];
    let message = Message { flags: libc::O_RDWR as u32, arg, ..Message::new(Op::Open) };
    let reply = client.call_at(message, b"f", b"").unwrap();
    assert_eq!(count(&reply), 2 * FRAME_BYTES);
    let (view, sequence) = (reply.value[0] as u32 - 1, reply.value[1] as u32);
    let views = client.channel.views().unwrap();
    assert!(views.is_at(view, sequence));
    let position = post(&client, reply.handle, PAGE, (0, FRAME_BYTES));
    assert!(ask(&client, reply.handle, PAGE, position));
    assert!(!views.is_at(view, sequence));
    assert_eq!(read_beside(&beside(&house, "f"), PAGE, 1), [8]);
}

/// The file `d/f`, made and open by the stream.
fn made_under_a_lease(house: &House, client: &Client) -> u64 {
    client.op_at(Op::Mkdir, "d").unwrap();
    make_slot(house, Token(client.welcome.token), 0).unwrap();
    let lease = client.op_at(Op::Lease, "d").or_else(|_| client.op_at(Op::Lease, "d")).unwrap();
    let (handle, name) = (streamed_handle(0, 1), ShortName::new(b"f").unwrap());
    let (change, lease, flags) = (Change::Make, lease.value[0] as u8, libc::O_RDWR as u32);
    let made =
        Entry { change, lease, name, perm: 0o666, slot: 1, flags, handle, ..Entry::default() };
    assert!(matches!(client.channel.stream().post(&made), Posted::Waiting(_)));
    client.call(&Message::new(Op::Ping)).unwrap();
    handle
}

/// The position of an entry that writes a page of `7` to a file made by the stream.
fn post_plain(client: &Client, handle: u64, offset: u64) -> u32 {
    client.channel.stream_put(0, &[7; FRAME_BYTES]);
    let (change, len) = (Change::Write, FRAME_BYTES as u32);
    let entry = Entry { change, handle, len, offset, ..Entry::default() };
    assert!(matches!(client.channel.stream().post(&entry), Posted::Waiting(_)));
    client.channel.stream().last_position()
}

#[test]
fn whoever_met_a_file_meanwhile_hears_what_became_of_a_write() {
    let house = house();
    let client = house.client();
    let handle = made_under_a_lease(&house, &client);
    let applied = post_plain(&client, handle, 0);
    assert!(!ask(&client, handle, 0, applied));
    let direct = beside(&house, "d/f");
    assert_eq!(read_beside(&direct, 0, 1), [7]);
    // The kernel has pages of it; that ended the lease, and the gate is open for another file.
    on_loan(&client, "g", PAGES);
    direct.node().tag().fetch_or(TAG_PAGES, SeqCst);
    let refused = post_plain(&client, handle, PAGE);
    assert!(ask(&client, handle, PAGE, refused));
    assert_eq!(read_beside(&direct, PAGE, 1), [8]);
    direct.node().tag().fetch_and(!TAG_PAGES, SeqCst);
    // So it is with times, of a file that is not open.
    let (change, umask) = (Change::Set, SetState::MTIME_NOW.bits());
    let entry = Entry { change, umask, handle: streamed_handle(5, 5), ..Entry::default() };
    assert!(matches!(client.channel.stream().post(&entry), Posted::Waiting(_)));
    assert!(!client.was_done(client.mailbox, client.channel.stream().last_position()));
    // Who does not ask hears of it when he syncs, once.
    let sync = || client.call(&Message::new(Op::Sync)).map(drop);
    assert_eq!((sync(), sync()), (Err(Errno::EIO), Ok(())));
}

#[test]
fn a_streamed_change_ends_nobodys_loan() {
    let house = house();
    let (hostile, client) = (house.client(), house.client());
    let handle = made_under_a_lease(&house, &hostile);
    let mut file = on_loan(&client, "d/f", PAGES);
    file.write(9 * PAGE, &filled(2));
    assert_eq!(file.streamed, 1);
    on_loan(&hostile, "g", PAGES);
    let (change, len) = (Change::Write, FRAME_BYTES as u32);
    for entry in [
        Entry {
            change: Change::Set,
            umask: SetState::MTIME_NOW.bits(),
            handle,
            ..Entry::default()
        },
        Entry { change, len, handle, offset: 9 * PAGE, ..Entry::default() },
    ] {
        assert!(matches!(hostile.channel.stream().post(&entry), Posted::Waiting(_)));
    }
    hostile.call(&Message::new(Op::Ping)).unwrap();
    let direct = beside(&house, "d/f");
    assert_eq!(number(&read_beside(&direct, 9 * PAGE, FRAME_BYTES)), 2);
    write_beside(&direct, 9 * PAGE, &filled(5));
    client.call(&Message::new(Op::Ping)).unwrap();
    assert_eq!(number(&read_beside(&direct, 9 * PAGE, FRAME_BYTES)), 5);
}
