//! Views through the fast lane: what a client is shown of open files is what anybody would read,
//! what it writes on loan is seen by everybody at once, and what it scribbles harms itself alone.

use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use polylane_front::shm::Config;
use polylane_ipc::Geometry;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::lent::{Locks, Range};
use polylane_ipc::message::{LockFlags, Message, NO_SLOT, Op, Reply, TransferFlags, WireAttr};
use polylane_ipc::view::{FRAME_BYTES, HAS_DATA, NOTES_READS};
use polylane_sys::Region;
use polylane_vfs::{
    Cred, LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, OpCtx, OpenFile, SetAttr,
};

use crate::shm_kit::{
    Client, House, cached_lane, connect_raw, count, count_panics,
    file::{File, PAGE, beside, now, read_beside, write_beside},
    lane, lock_message, outcome, panics, requests_of, wait_for,
};

fn workers() -> Config {
    Config { workers: vec![None, None], ..Config::default() }
}

fn two_workers() -> House {
    House::with(workers())
}

#[test]
fn what_is_written_behind_the_end_needs_no_request() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    let direct = beside(&house, "f");
    for n in 0..1000_u64 {
        file.write(n * 100, &[n as u8; 100]);
        if n % 64 == 63 {
            let want = [vec![n as u8 - 1; 50], vec![n as u8; 100]].concat();
            assert_eq!(file.read(n * 100 - 50, 200), want);
        }
    }
    assert!(file.unasked > 800, "{}", file.unasked);
    // Whoever looks sees all of it, and the end where it is.
    assert_eq!(house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap().size, 100_000);
    assert_eq!(read_beside(&direct, 99_900, 4096), [231; 100]);
    file.write(100_000, &[1; 10]);
    file.write(100_010, &[2; 10]);
    file.write(100_020, &[3; 10]);
    // What lies between an end and what is written far behind it is zeros.
    file.write(150_000, b"far");
    assert_eq!(file.read(100_028, 4), [3, 3, 0, 0]);
    assert_eq!(read_beside(&direct, 149_998, 10), *b"\0\0far");
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// A file that is longer than all that can be shown of it, and than what may be lent of it.
#[test]
fn a_long_file_grows_without_waiting_from_frames_that_are_used_again() {
    const PAGES: u64 = 2000;
    let geometry = Geometry { frames: 256, ..Geometry::default() };
    let house = House::over(cached_lane(), Config { geometry, ..Config::default() });
    let client = house.client();
    let mut file = File::open(&client, "f");
    for page in 0..PAGES {
        file.write(page * PAGE, &[page as u8; FRAME_BYTES]);
        if page % 61 == 60 {
            // What it just wrote, and what it wrote long ago, it reads as it is.
            assert_eq!(file.read(page * PAGE - 1, 2), [(page - 1) as u8, page as u8]);
            assert_eq!(file.read(page / 2 * PAGE, 1), [(page / 2) as u8]);
        }
    }
    let direct = beside(&house, "f");
    for page in 0..PAGES {
        assert_eq!(read_beside(&direct, page * PAGE, FRAME_BYTES), [page as u8; FRAME_BYTES]);
    }
    assert_eq!(
        house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap().size,
        PAGES * PAGE
    );
    // Reading ends a loan now and then; else it is half of the writes that need none.
    let writes = requests_of(&house, Op::Write);
    assert!(writes < PAGES / 5, "{writes} requests for {PAGES} writes");
    assert!(requests_of(&house, Op::Extend) > 0);
    assert_eq!(house.server.totals().loans_failed, 0);
}

#[test]
fn a_loan_is_extended_while_its_client_goes_on() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    // The first write has room set aside for four pages.
    file.write(0, &[1; FRAME_BYTES]);
    let views = client.channel.views().unwrap();
    let brought = || house.server.totals().brought_back;
    let room = |file: &File<'_>| {
        let inside = views.enter(file.view).expect("on loan");
        let (end, room) = views.end_and_room(file.view, &inside);
        assert!(views.leave(file.view, inside, None, end));
        (end, room)
    };
    assert_eq!(room(&file), (PAGE, 5 * PAGE));
    // Who is inside may be writing to any page: nothing is taken, and nothing is lost.
    let inside = views.enter(file.view).unwrap();
    file.put(PAGE, &[2; 2 * FRAME_BYTES + 10]).expect("room");
    file.call(Message::new(Op::Extend));
    assert_eq!(brought(), 0);
    assert!(views.leave(file.view, inside, Some(now()), 3 * PAGE + 10), "the loan goes on");
    // Whole pages are taken in, and there is more room; the last one is still lent.
    file.call(Message::new(Op::Extend));
    assert_eq!(brought(), 2);
    let (end, more) = room(&file);
    assert!(end == 3 * PAGE + 10 && more > 5 * PAGE, "{end} {more}");
    assert!(file.write_lent(end, &[3; 20]));
    assert_eq!(file.read_shown(2 * PAGE, &mut [0; 9]), Some(9), "it is shown on");
    // Pages that were taken in are changed by a request.
    assert!(!file.write_lent(PAGE, &[4; 5]));
    file.write(PAGE, &[4; 5]);
    let direct = beside(&house, "f");
    let want = [&[4; 5][..], &[2; 2 * FRAME_BYTES + 5], &[3; 20]].concat();
    assert_eq!(read_beside(&direct, PAGE, 4 * FRAME_BYTES), want);
    // Asking where nothing is lent changes nothing; no file, no room.
    file.call(Message::new(Op::Extend));
    assert_eq!(
        client.call(&Message { handle: 999, ..Message::new(Op::Extend) }),
        Err(Errno::EBADF)
    );
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// The state of a file changes while its loan goes on: nothing that was written on loan is lost.
#[test]
fn a_file_that_grows_on_loan_may_get_another_name() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.write(0, &[1; FRAME_BYTES]);
    assert!(file.write_lent(PAGE, &[2; FRAME_BYTES]));
    client.call_at(Message::new(Op::Link), b"f", b"g").unwrap();
    assert!(!file.write_lent(2 * PAGE, &[3; 10]), "what is shown is to be asked for");
    file.write(2 * PAGE, &[3; 10]);
    let want = [&[1; FRAME_BYTES][..], &[2; FRAME_BYTES], &[3; 10]].concat();
    assert!(read_beside(&beside(&house, "f"), 0, 3 * FRAME_BYTES) == want);
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// Somebody looks by the other door all the time while a client appends and asks for room.
#[test]
fn who_looks_while_a_loan_is_extended_sees_a_prefix() {
    let house = House::over(cached_lane(), workers());
    let client = house.client();
    let mut file = File::open(&client, "f");
    let direct = beside(&house, "f");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !over.load(SeqCst) {
                let size = house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap().size;
                assert!(size >= last && size.is_multiple_of(512), "{size} after {last}");
                let from = size.saturating_sub(3 * PAGE) / 512 * 512;
                let bytes = read_beside(&direct, from, (size - from) as usize);
                for (n, record) in (from / 512..).zip(bytes.chunks(512)) {
                    assert!(record.iter().all(|byte| *byte == n as u8), "record {n}");
                }
                last = size;
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        (0..40_000_u64).for_each(|n| file.write(n * 512, &[n as u8; 512]));
        over.store(true, SeqCst);
    });
    assert!(requests_of(&house, Op::Extend) > 0);
    assert_eq!(
        house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap().size,
        40_000 * 512
    );
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// Who writes and syncs by turns asks for nothing but the sync: records behind the end, in one page
/// and over several, and whole pages here and there. All sees who looks, and the syncs find nothing
/// left to be written.
#[test]
fn what_was_on_loan_before_a_sync_is_so_again() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut log = File::open(&client, "log");
    let mut want = Vec::new();
    for n in 0..300_u64 {
        let record = [n as u8; 1000];
        log.write(want.len() as u64, &record);
        want.extend(record);
        log.sync();
    }
    assert!(log.unasked > 250, "{}", log.unasked);
    let mut pages = File::open(&client, "pages");
    (0..200).for_each(|page| pages.write(page * PAGE, &[1; FRAME_BYTES]));
    pages.sync();
    let mut held = vec![1; 200 * FRAME_BYTES];
    let before = pages.unasked;
    for n in 0..150_u64 {
        let at = n * 77 % 200 * PAGE;
        pages.write(at, &[n as u8; FRAME_BYTES]);
        held[at as usize..][..FRAME_BYTES].fill(n as u8);
        pages.sync();
    }
    assert!(pages.unasked - before > 140, "{}", pages.unasked);
    for (name, want) in [("log", want), ("pages", held)] {
        assert!(read_beside(&beside(&house, name), 0, want.len() + 1) == want, "{name}");
    }
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// A loan given after a sync ends as any other: of two who write and sync by turns each sees what
/// the other wrote.
#[test]
fn who_syncs_does_not_take_from_others() {
    let house = House::over(cached_lane(), Config::default());
    let clients = [house.client(), house.client()];
    let mut files = [File::open(&clients[0], "f"), File::open(&clients[1], "f")];
    files[0].write(0, &[0; 3 * FRAME_BYTES]);
    let direct = beside(&house, "f");
    for n in 1..200_u64 {
        let (mine, at) = ((n / 2 % 2) as usize, n % 3 * PAGE);
        files[mine].write(at, &[n as u8; FRAME_BYTES]);
        if n % 4 > 0 {
            files[mine].sync();
        }
        assert_eq!(files[1 - mine].read(at, FRAME_BYTES), [n as u8; FRAME_BYTES], "{n}");
        if n % 5 == 0 {
            assert_eq!(read_beside(&direct, at, FRAME_BYTES), [n as u8; FRAME_BYTES], "{n}");
        }
    }
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// A loan after a sync on which nothing was written was in vain: the next sync gives none.
#[test]
fn who_only_syncs_has_nothing_on_loan() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.write(0, &[1; FRAME_BYTES]);
    for byte in 2..6 {
        file.sync();
        assert!(file.write_lent(0, &[byte; FRAME_BYTES]), "a loan that was used is given again");
    }
    file.sync();
    file.sync();
    assert!(!file.write_lent(0, &[6; 9]), "what was not used is given again");
    let before = requests_of(&house, Op::Write);
    file.write(0, &[7; FRAME_BYTES]);
    assert_eq!(requests_of(&house, Op::Write), before + 1);
    file.sync();
    assert!(file.write_lent(0, &[8; 9]), "after a write that was asked for it is tried again");
    assert_eq!(read_beside(&beside(&house, "f"), 0, 10), [&[8; 9][..], &[7]].concat());
}

/// A page that was taken in while its loan went on is lent again with the next one only if it is
/// that page still: another that lies in its place by then, such as one of a hole, is not.
#[test]
fn only_pages_that_were_stored_are_lent_again() {
    const HOLE: u64 = 3000;
    const PAGES: u64 = 64;
    let geometry = Geometry { frames: 1024, ..Geometry::default() };
    let house = House::over(cached_lane(), Config { geometry, ..Config::default() });
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.truncate(HOLE * PAGE);
    let append = |file: &mut File<'_>| {
        for page in HOLE..HOLE + PAGES {
            file.write(page * PAGE, &[1; FRAME_BYTES]);
        }
    };
    append(&mut file);
    assert!(requests_of(&house, Op::Extend) > 0);
    file.sync();
    let pages = HOLE..HOLE + PAGES - 1;
    let lent = pages.filter(|page| file.write_lent(page * PAGE, &[2; FRAME_BYTES])).count() as u64;
    assert!(lent > PAGES - 8, "{lent} that were stored are lent");
    file.truncate(HOLE * PAGE);
    append(&mut file);
    // Pages of the hole take the place of all that were taken in.
    for page in 0..HOLE {
        assert_eq!(file.read(page * PAGE, FRAME_BYTES), [0; FRAME_BYTES]);
    }
    file.write((HOLE + PAGES - 1) * PAGE, &[3; FRAME_BYTES]);
    file.sync();
    for page in 0..HOLE {
        assert!(!file.write_lent(page * PAGE, &[4; FRAME_BYTES]), "{page} has no room");
    }
    assert_eq!(house.server.totals().loans_failed, 0);
}

#[test]
fn what_is_written_here_and_there_on_loan_comes_back_to_its_place() {
    for house in [House::new(), House::over(cached_lane(), Config::default())] {
        let client = house.client();
        let mut file = File::open(&client, "f");
        let mut want = vec![1; 50 * FRAME_BYTES];
        file.write(0, &want);
        // Pages side by side, more of them than come back in one piece, and pages alone.
        let pages: Vec<usize> = (3..40).chain([42, 45, 46, 49]).collect();
        for &page in pages.iter().rev() {
            let at = page * FRAME_BYTES + 7;
            assert!(file.write_lent(at as u64, &[page as u8; 100]), "page {page} is not lent");
            want[at..at + 100].fill(page as u8);
        }
        let direct = beside(&house, "f");
        assert!(read_beside(&direct, 0, want.len() + 1) == want);
        let totals = house.server.totals();
        assert_eq!((totals.brought_back, totals.loans_failed), (pages.len() as u64, 0));
    }
}

#[test]
fn a_client_that_dies_while_it_appends_leaves_whole_records() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    (0..50).for_each(|n| file.write(n * 100, &[7; 100]));
    assert!(file.unasked > 0);
    // It dies inside, with bytes behind the end.
    let views = client.channel.views().unwrap();
    let inside = views.enter(file.view).expect("on loan");
    file.put(5000, &[8; 60]).expect("room");
    let direct = beside(&house, "f");
    assert_eq!(read_beside(&direct, 4990, 4096), [7; 10]);
    assert!(!views.leave(file.view, inside, None, 5060));
    assert_eq!(house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap().size, 5000);
}

#[test]
fn what_was_read_or_written_twice_needs_no_request() {
    let house = House::new();
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.write(0, &[7; 3 * FRAME_BYTES]);
    // The access time becomes later than that of the write.
    std::thread::sleep(Duration::from_millis(20));
    file.state();
    file.read(PAGE - 50, 100);
    file.unasked = 0;
    for _ in 0..10 {
        assert_eq!(file.read(PAGE - 50, 100), [7; 100]);
        assert!(file.read(3 * PAGE, 10).is_empty());
        assert_eq!(file.state().size, 3 * PAGE);
    }
    assert_eq!(file.unasked, 30);
    file.write(0, &[8; FRAME_BYTES]);
    file.unasked = 0;
    for n in 0..10 {
        file.write(10, &[n; 20]);
        assert_eq!(file.read(9, 3), [8, n, n]);
    }
    assert_eq!(file.unasked, 20);
    assert_eq!(read_beside(&beside(&house, "f"), 0, 31)[29..], [9, 8]);
    assert!(house.server.totals().brought_back > 0);
}

/// A read that shows the end: the bytes, and the view's number plus one.
fn read_to_end(client: &Client, handle: u64, offset: u64, data: &mut [u8]) -> (usize, u64) {
    let (length, flags) = (data.len() as u64, TransferFlags::SHOW_END.bits());
    let message = Message { handle, offset, length, flags, ..Message::new(Op::Read) };
    let reply = client.channel.call_read(client.mailbox, &message, data, &Trusting).unwrap();
    let reply = outcome(reply).unwrap();
    (count(&reply), reply.handle)
}

#[test]
fn who_read_to_the_end_finds_it_without_a_request_until_it_moves() {
    let house = House::new();
    let client = house.client();
    let handle = client.open("f", libc::O_CREAT | libc::O_RDWR).unwrap().0;
    let direct = beside(&house, "f");
    let mut data = vec![0; 3 * FRAME_BYTES];
    write_beside(&direct, 0, &[7; 2 * FRAME_BYTES]);
    let part = read_to_end(&client, handle, 0, &mut data[..FRAME_BYTES]);
    assert_eq!(part, (FRAME_BYTES, 0), "a read that does not reach the end shows nothing");
    // Once more than there is, once exactly to the end.
    for len in [3 * FRAME_BYTES, 2 * FRAME_BYTES] {
        let handle = client.open("f", libc::O_RDONLY).unwrap().0;
        let (count, number) = read_to_end(&client, handle, 0, &mut data[..len]);
        assert!(count == 2 * FRAME_BYTES && number > 0, "{count} bytes, view {number}");
        let file = File::of(&client, handle, number as u32 - 1);
        let end = 2 * PAGE;
        assert_eq!(file.read_shown(end, &mut [0; 9]), Some(0), "the end is shown");
        assert_eq!(file.read_shown(end - 1, &mut [0; 9]), None, "no page is");
        write_beside(&direct, end, b"more");
        assert_eq!(file.read_shown(end, &mut [0; 9]), None, "the end has moved");
        let (count, _) = read_to_end(&client, handle, end, &mut data[..9]);
        assert_eq!((count, &data[..count]), (4, &b"more"[..]));
        assert_eq!(file.read_shown(end + 4, &mut [0; 9]), Some(0), "the end is shown again");
        let cut = SetAttr { size: Some(end), ..SetAttr::default() };
        house.lane.vfs.setattr(&OpCtx::service(), direct.node(), &cut).unwrap();
        assert_eq!(file.read_shown(end + 4, &mut [0; 9]), None, "a cut hides it too");
        client.close(handle).unwrap();
    }
}

/// An open that asks for bytes: its reply, and the bytes.
fn open_bringing(client: &Client, path: &str, flags: i32, bytes: u64) -> (Reply, Vec<u8>) {
    let mut message = Message { flags: flags as u32, ..Message::new(Op::Open) };
    (message.arg[0], message.arg[1]) = (NO_SLOT, bytes);
    let reply = client.call_at(message, path.as_bytes(), b"").unwrap();
    let brought = client.payload(count(&reply));
    (reply, brought)
}

#[test]
fn an_open_brings_a_small_file_and_tells_when_its_bytes_are_old() {
    let house = House::new();
    let client = house.client();
    client.close(client.create("f")).unwrap();
    let direct = beside(&house, "f");
    let none = |flags, bytes| {
        let (reply, _) = open_bringing(&client, "f", flags, bytes);
        assert_eq!((count(&reply), reply.value[0]), (0, 0), "flags {flags}, {bytes} bytes");
        client.close(reply.handle).unwrap();
    };
    none(libc::O_RDONLY, 9000);
    write_beside(&direct, 0, &[7; 5000]);
    none(libc::O_RDONLY | libc::O_NOATIME, 9000);
    // Whoever reads it now moves the access time; later nobody does.
    read_beside(&direct, 0, 1);
    none(libc::O_RDONLY, 0);
    none(libc::O_RDONLY, 4999);
    none(libc::O_WRONLY, u64::MAX);
    let views = client.channel.views().unwrap();
    for change in 0..3 {
        let (reply, brought) = open_bringing(&client, "f", libc::O_RDWR, u64::MAX);
        let (view, sequence) = (reply.value[0] as u32 - 1, reply.value[1] as u32);
        assert!(views.is_at(view, sequence));
        let file = File::of(&client, reply.handle, view);
        assert_eq!(file.read_shown(5000, &mut [0; 9]), Some(0), "the end is shown");
        // Opened again, it lies in frames.
        let mut bytes = if change == 0 { brought } else { vec![0; 5000] };
        if change > 0 {
            assert_eq!((count(&reply), file.read_shown(0, &mut bytes)), (0, Some(5000)));
        }
        assert_eq!(bytes, [7; 5000]);
        match change {
            0 => write_beside(&direct, 10, &[7]),
            1 => _ = client.write(reply.handle, 10, &[7]).unwrap(),
            _ => {
                let cut = SetAttr { size: Some(4), ..SetAttr::default() };
                house.lane.vfs.setattr(&OpCtx::service(), direct.node(), &cut).unwrap();
            }
        }
        assert!(!views.is_at(view, sequence), "change {change} is told");
        // Shown again, it is another state.
        read_to_end(&client, reply.handle, 0, &mut [0; 9000]);
        assert!(!views.is_at(view, sequence), "change {change} is told for good");
        client.close(reply.handle).unwrap();
    }
}

#[test]
fn who_reads_what_an_open_brought_moves_the_access_time_for_all_to_see() {
    for (house, how) in (0..4).flat_map(|how| {
        [House::new(), House::over(cached_lane(), Config::default())].map(|house| (house, how))
    }) {
        let (client, other) = (house.client(), house.client());
        let views = client.channel.views().unwrap();
        let direct = made_beside(&house, "f");
        let atime = |attr: WireAttr| (attr.sec[0], attr.nsec[0]);
        let told = || atime(other.stat("f").unwrap());
        write_beside(&direct, 0, &[7; 5000]);
        std::thread::sleep(Duration::from_millis(20));
        let before = told();
        let open = || open_bringing(&client, "f", libc::O_RDWR, u64::MAX);
        client.close(open().0.handle).unwrap();
        assert_eq!(told(), before, "nobody has read it");
        let (reply, brought) = open();
        assert_eq!(brought, [7; 5000]);
        let (view, sequence) = (reply.value[0] as u32 - 1, reply.value[1] as u32);
        assert!(views.look(view).unwrap().has(HAS_DATA | NOTES_READS));
        assert_eq!(views.attr(view).map(atime), Some(before));
        views.note_read(view, now);
        assert!(views.is_at(view, sequence) && views.attr(view).is_none(), "it is to be asked for");
        match how {
            0 => {}
            1 => _ = client.close(reply.handle).unwrap(),
            2 => assert_eq!(client.write(reply.handle, 5000, b"more"), Ok(4)),
            _ => assert_eq!(client.read(reply.handle, 0, 1), Ok(vec![7])),
        }
        assert!(told() > before, "way {how}");
        if how != 1 {
            assert!(!views.is_at(view, sequence), "way {how}");
            client.close(reply.handle).unwrap();
        }
        // Where others have the file in view, nothing is brought whose reading is to be noted.
        write_beside(&direct, 0, &[8; 5000]);
        let shown = File::open(&other, "f");
        let (reply, brought) = open();
        assert_eq!((reply.value[0], brought.len()), (0, 0));
        other.close(shown.handle).unwrap();
    }
}

/// A new file, or what is there.
fn made_beside(house: &House, path: &str) -> Arc<OpenFile> {
    let (vfs, cred) = (&house.lane.vfs, Cred::root());
    let flags = libc::O_RDWR | libc::O_CREAT;
    vfs.open_path(&OpCtx::as_user(&cred), &vfs.root(), path.as_bytes(), flags, 0o666, 0).unwrap()
}

/// Makes a file of so many bytes whose reading moves no time.
fn make_quiet(house: &House, path: &str, bytes: &[u8]) -> Arc<OpenFile> {
    let direct = made_beside(house, path);
    write_beside(&direct, 0, bytes);
    read_later(house, &direct);
    direct
}

/// Whoever reads the file now moves the access time; later nobody does.
fn read_later(house: &House, direct: &OpenFile) {
    std::thread::sleep(Duration::from_millis(20));
    house.lane.vfs.getattr(&OpCtx::service(), direct.node()).unwrap();
    read_beside(direct, 0, 1);
}

#[test]
fn a_view_outlives_the_last_handle_with_what_it_shows() {
    for house in [House::new(), House::over(cached_lane(), Config::default())] {
        let client = house.client();
        let direct = make_quiet(&house, "f", &[7; 5000]);
        for round in 0..4 {
            let (reply, brought) = open_bringing(&client, "f", libc::O_RDONLY, u64::MAX);
            assert_eq!(brought.is_empty(), round > 0, "round {round}");
            client.close(reply.handle).unwrap();
        }
        // Of what changed meanwhile nothing is shown, and then the new bytes are.
        write_beside(&direct, 4990, &[8; 20]);
        read_later(&house, &direct);
        let (reply, brought) = open_bringing(&client, "f", libc::O_RDONLY, u64::MAX);
        let view = reply.value[0] as u32 - 1;
        let file = File::of(&client, reply.handle, view);
        let mut bytes = vec![0; 6000];
        let count = match brought.len() {
            0 => file.read_shown(0, &mut bytes),
            len => {
                bytes[..len].copy_from_slice(&brought);
                Some(len)
            }
        };
        assert_eq!(count, Some(5010));
        assert_eq!(bytes[4980..5010], [[7; 10], [8; 10], [8; 10]].concat());
    }
}

#[test]
fn a_file_without_a_name_is_kept_by_no_view() {
    for house in [House::new(), House::over(cached_lane(), Config::default())] {
        let client = house.client();
        let (vfs, root) = (&house.lane.vfs, house.lane.vfs.root());
        for how in 0..3 {
            let gone = Arc::downgrade(make_quiet(&house, "f", &[7; 5000]).node());
            let open = || open_bringing(&client, "f", libc::O_RDONLY, u64::MAX).0.handle;
            client.close(open()).unwrap();
            client.close(open()).unwrap();
            assert!(gone.upgrade().is_some());
            let in_use = if how == 0 { Some(open()) } else { None };
            match how {
                2 => {
                    drop(made_beside(&house, "new"));
                    vfs.rename(&OpCtx::service(), &root, b"new", &root, b"f", 0).unwrap();
                    vfs.unlink(&OpCtx::service(), &root, b"f").unwrap();
                }
                _ => vfs.unlink(&OpCtx::service(), &root, b"f").unwrap(),
            }
            if let Some(handle) = in_use {
                assert!(gone.upgrade().is_some(), "it is open");
                client.close(handle).unwrap();
            }
            assert!(gone.upgrade().is_none(), "way {how}");
        }
    }
}

#[test]
fn a_view_that_nobody_uses_is_in_no_loans_way() {
    let house = House::over(cached_lane(), Config::default());
    let (reader, writer) = (house.client(), house.client());
    drop(make_quiet(&house, "f", &[7; 5000]));
    let handle = open_bringing(&reader, "f", libc::O_RDONLY, u64::MAX).0.handle;
    reader.close(handle).unwrap();
    let mut file = File::open(&writer, "f");
    (0..20).for_each(|n| file.write(n * 10, &[n as u8; 10]));
    assert!(file.unasked > 0, "it is lent");
    assert_eq!(read_beside(&beside(&house, "f"), 195, 9), [[19; 5], [7; 5]].concat()[..9]);
}

#[test]
fn more_files_than_there_are_views_are_opened_one_after_the_other() {
    let house = House::new();
    let client = house.client();
    for n in 0..polylane_ipc::view::VIEWS_MAX + 9 {
        let name = format!("f{n}");
        let file = File::open(&client, &name);
        client.close(file.handle).unwrap();
    }
    // What was used last is kept, what was used first is not.
    File::open(&client, "f0");
}

#[test]
fn files_read_to_the_end_leave_views_to_others() {
    let house = House::new();
    let client = house.client();
    let shown = (0..polylane_ipc::view::VIEWS_MAX).filter(|n| {
        let name = format!("f{n}");
        let handle = client.open(&name, libc::O_CREAT | libc::O_RDWR).unwrap().0;
        write_beside(&beside(&house, &name), 0, &[7; 10]);
        read_to_end(&client, handle, 0, &mut [0; 20]).1 > 0
    });
    assert_eq!(shown.count() as u32, polylane_ipc::view::VIEWS_MAX / 2);
    File::open(&client, "f");
}

/// So often something was found in a view, at least, before the pages around what is read go into
/// frames that were never used.
const HITS: usize = 4;

#[test]
fn who_reads_here_and_there_is_shown_what_lies_around() {
    for house in [House::new(), House::over(cached_lane(), Config::default())] {
        let client = house.client();
        let mut file = File::open(&client, "f");
        let direct = beside(&house, "f");
        let pages: u64 = 512;
        let bytes: Vec<u8> = (0..pages).flat_map(|n| [(n % 251) as u8; FRAME_BYTES]).collect();
        direct.write(&OpCtx::service(), Some(0), &mut bytes.as_slice()).unwrap();
        // The access time becomes later than that of the write.
        std::thread::sleep(Duration::from_millis(20));
        file.read(0, 1);
        file.unasked = 0;
        // A page of memory for each frame is given to who finds something there: once alone it is
        // not worth it.
        for page in (0..pages).map(|n| n * 197 % pages).skip(1).take(100) {
            file.read(page * PAGE + 96, 4000);
        }
        assert_eq!(file.unasked, 0, "what nobody asked for was put into fresh frames");
        for n in 0..HITS as u64 {
            for page in [n, 300 + n].map(|n| n * 197 % pages) {
                file.read(page * PAGE + 96, 4000);
            }
        }
        assert!(file.unasked as usize >= HITS);
        file.unasked = 0;
        for page in (0..pages).map(|n| n * 197 % pages) {
            assert!(file.read(page * PAGE + 96, 4000) == [(page % 251) as u8; 4000], "{page}");
        }
        assert!(file.unasked > 300, "{} of {pages} reads", file.unasked);
        // Others change what was shown without being asked for, and cut it off.
        direct.write(&OpCtx::service(), Some(301 * PAGE), &mut &[255; 5000][..]).unwrap();
        assert_eq!(file.read(301 * PAGE + 4990, 20), [vec![255; 10], vec![51; 10]].concat());
        file.truncate(400 * PAGE + 7);
        assert_eq!(file.read(400 * PAGE, 4096).len(), 7);
        assert!(file.read(401 * PAGE, 4096).is_empty());
    }
}

#[test]
fn a_model_agrees_through_every_door() {
    agrees_with_a_model(&two_workers(), 0);
}

#[test]
fn a_model_agrees_where_files_grow_on_loan() {
    let house = House::over(cached_lane(), workers());
    agrees_with_a_model(&house, 0);
    agrees_with_a_model(&house, 80);
}

/// `appends`: percent of the writes that begin where the file ends.
fn agrees_with_a_model(house: &House, appends: u64) {
    let clients = [house.client(), house.client()];
    for seed in 0..12 {
        let (mut rng, mut model) = (Rng::new(seed), Vec::<u8>::new());
        let name = format!("f{seed}-{appends}");
        let mut files = clients.each_ref().map(|client| File::open(client, &name));
        let direct = beside(house, &name);
        for step in 0..3000 {
            // Mostly one client, or none would be lent anything.
            let who = usize::from(rng.below(if seed % 2 == 0 { 8 } else { 40 }) == 0);
            let file = &mut files[who];
            let offset = rng.below(6 * PAGE);
            let len = 1 + rng.below(2 * PAGE) as usize;
            let byte = rng.next_u64() as u8;
            let end = offset as usize + len;
            match rng.below(43) {
                0 => {
                    file.truncate(offset);
                    model.resize(offset as usize, 0);
                }
                1 => {
                    file.punch(offset, len as u64);
                    let (from, to) = ((offset as usize).min(model.len()), end.min(model.len()));
                    model[from..to].fill(0);
                }
                2 => {
                    direct
                        .write(&OpCtx::service(), Some(offset), &mut &vec![byte; len][..])
                        .unwrap();
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].fill(byte);
                }
                3 => {
                    let size = file.state().size;
                    assert_eq!(size, model.len() as u64, "seed {seed}, step {step}");
                }
                4..=21 => {
                    let short = rng.below(100) < appends && model.len() < 64 * FRAME_BYTES;
                    let (offset, len) = match short {
                        true => (model.len() as u64, 1 + len % 500),
                        false => (offset, len),
                    };
                    let end = offset as usize + len;
                    file.write(offset, &vec![byte; len]);
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].fill(byte);
                }
                40.. => file.sync(),
                op => {
                    let from = (offset as usize).min(model.len());
                    let want = &model[from..end.min(model.len()).max(from)];
                    let got = match op {
                        22 => read_beside(&direct, offset, len),
                        _ => file.read(offset, len),
                    };
                    assert!(got == want, "seed {seed}, step {step}, client {who}");
                }
            }
        }
        assert_eq!(read_beside(&direct, 0, 1 << 20), model, "seed {seed}");
        let unasked: u32 = files.iter().map(|file| file.unasked).sum();
        assert!(unasked > 50, "seed {seed}: {unasked} of 3000 steps");
        files.iter().for_each(|file| _ = file.client.close(file.handle).unwrap());
    }
    assert_eq!(house.server.totals().loans_failed, 0);
}

/// Reads a page of equal counters; the last one.
fn counter(page: &[u8]) -> u64 {
    let count = |eight: &[u8]| u64::from_le_bytes(eight.try_into().unwrap());
    page.chunks_exact(8).map(count).max().unwrap_or(0)
}

#[test]
fn nobody_reads_what_is_older_than_what_was_written() {
    let house = two_workers();
    let (writing, reading) = (house.client(), house.client());
    let mut writer = File::open(&writing, "f");
    writer.write(0, &[0; FRAME_BYTES]);
    let (told, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reader = File::open(&reading, "f");
            let direct = beside(&house, "f");
            let (mut last, mut rounds) = (0, 0_u64);
            while !over.load(SeqCst) {
                rounds += 1;
                let before = told.load(SeqCst);
                let page = match rounds % 3 {
                    0 => read_beside(&direct, 0, FRAME_BYTES),
                    _ => reader.read(0, FRAME_BYTES),
                };
                let seen = counter(&page);
                assert!(seen >= before.max(last), "{seen} after {before} and {last}");
                last = seen;
                if rounds.is_multiple_of(64) {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        // Longer where the CPUs are busy elsewhere: until enough was written without a request.
        let (start, mut number) = (Instant::now(), 0_u64);
        let goes_on = |unasked: u32| {
            let seconds = if unasked > 100 { 3 } else { 30 };
            start.elapsed() < Duration::from_secs(seconds)
        };
        while goes_on(writer.unasked) {
            number += 1;
            writer.write(0, &number.to_le_bytes().repeat(FRAME_BYTES / 8));
            told.store(number, SeqCst);
            let seen = counter(&writer.read(0, FRAME_BYTES));
            assert_eq!(seen, number);
        }
        over.store(true, SeqCst);
    });
    assert!(writer.unasked > 100, "{}", writer.unasked);
}

#[test]
fn state_changes_are_seen_at_once_and_times_are_those_of_the_write() {
    let house = House::new();
    let client = house.client();
    let mut file = File::open(&client, "f");
    let direct = beside(&house, "f");
    let vfs = &house.lane.vfs;
    file.write(0, &[1; FRAME_BYTES]);
    let first = file.state();
    assert_eq!(file.state(), first);
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    vfs.setattr(&OpCtx::service(), direct.node(), &set).unwrap();
    assert_eq!(file.state().mode & 0o777, 0o600);
    client.call_at(Message::new(Op::Link), b"f", b"g").unwrap();
    assert_eq!(file.state().nlink, 2);
    file.write(0, &[2; FRAME_BYTES]);
    std::thread::sleep(Duration::from_millis(20));
    let before = now();
    assert!(file.write_lent(0, &[3; 10]));
    let after = now();
    std::thread::sleep(Duration::from_millis(20));
    let seen = vfs.getattr(&OpCtx::service(), direct.node()).unwrap().mtime;
    let seen = seen.sec * 1_000_000_000 + i64::from(seen.nsec);
    assert!((before..=after).contains(&seen), "{before} {seen} {after}");
    assert!(!file.write_lent(0, &[4; 10]), "the loan is over");
}

#[test]
fn a_client_that_never_leaves_holds_nobody_up() {
    let house = House::new();
    let (stuck, other) = (house.client(), house.client());
    let mut file = File::open(&stuck, "f");
    (0..2).for_each(|_| file.write(0, &[1; 2 * FRAME_BYTES]));
    assert!(file.write_lent(0, &[2; FRAME_BYTES]));
    let views = stuck.channel.views().unwrap();
    let inside = views.enter(file.view).unwrap();
    let fill = |spare| stuck.channel.frame_put(views.frame_offset(spare), &[3; FRAME_BYTES]);
    let spare = views.spare(file.view).unwrap();
    fill(spare);
    let mut theirs = File::open(&other, "f");
    assert_eq!(theirs.read(0, 4), [2; 4]);
    assert_eq!(counter(&theirs.read(2 * PAGE - 8, 8)), u64::from_le_bytes([1; 8]));
    // What it writes now is written where nothing else was put meanwhile.
    for n in 0..200 {
        let mut more = File::open(&stuck, &format!("more{n}"));
        more.write(0, &vec![9; 64 * FRAME_BYTES]);
        (0..64).for_each(|page| _ = more.read(page * PAGE, 1));
    }
    fill(spare);
    assert!(file.put(PAGE, &[3; 10]).is_none(), "the loan is over");
    for n in 0..200 {
        let mut more = File::open(&stuck, &format!("more{n}"));
        (0..64).for_each(|page| assert_eq!(more.read(page * PAGE, 10), [9; 10]));
    }
    assert!(!views.leave(file.view, inside, None, 0));
    file.write(PAGE, &[3; 10]);
    assert_eq!(theirs.read(PAGE, 11)[9..], [3, 1]);
    file.write(0, &[4; FRAME_BYTES]);
    assert_eq!(theirs.read(0, 1), [4]);
}

#[test]
fn a_client_that_dies_leaves_what_it_wrote() {
    let house = House::new();
    let client = house.client();
    let mut file = File::open(&client, "f");
    (0..2).for_each(|_| file.write(0, &[1; 2 * FRAME_BYTES]));
    assert!(file.write_lent(100, &[2; 50]));
    let _never_left = client.channel.views().unwrap().enter(file.view).unwrap();
    drop(client);
    wait_for("the session's end", || house.server.session_count() == 0);
    let direct = beside(&house, "f");
    wait_for("what was written", || read_beside(&direct, 99, 3) == [1, 2, 2]);
    assert_eq!(read_beside(&direct, 149, 2), [2, 1]);
}

/// A client is stopped before, between and after any of the steps in which it changes three pages
/// that it has on loan. Each is old or new to whoever looks; and it goes on by a request.
#[test]
fn each_page_is_old_or_new_wherever_its_writer_is_stopped() {
    const OLD: u8 = 1;
    const NEW: u8 = 2;
    for (round, step) in (0..2).flat_map(|round| (0..=6).map(move |step| (round, step))) {
        let whole = step % 2 == 0;
        let (within, len) = if whole { (0, FRAME_BYTES) } else { (700, 512) };
        let lane = if round == 0 { lane() } else { cached_lane() };
        let house = House::over(lane, Config::default());
        let client = house.client();
        let mut file = File::open(&client, "f");
        (0..2).for_each(|_| file.write(0, &[OLD; 3 * FRAME_BYTES]));
        assert!(file.write_lent(0, &[OLD; 3 * FRAME_BYTES]), "not on loan");
        let views = client.channel.views().unwrap();
        let inside = views.enter(file.view).unwrap();
        for half in 0..step {
            let found = file.find(half / 2).filter(|found| views.may_switch(*found)).unwrap();
            let bytes = if half % 2 == 0 { len / 2 } else { len };
            let spare = file.fill_spare(found, within, &vec![NEW; bytes]).unwrap();
            assert!(half % 2 == 0 || views.switch(file.view, found, spare));
        }
        let mut page = vec![OLD; FRAME_BYTES];
        page[within..within + len].fill(NEW);
        let after = step as usize / 2;
        let want = [page.repeat(after), vec![OLD; (3 - after) * FRAME_BYTES]].concat();
        let direct = beside(&house, "f");
        assert!(read_beside(&direct, 0, want.len()) == want, "stopped at {step}");
        // It goes on, and finds that its write does not count; or its session ends.
        if round == 0 {
            assert!(
                file.put(2 * PAGE, &[NEW; 9]).is_none() && !views.leave(file.view, inside, None, 0)
            );
            file.write(0, &[NEW; 3 * FRAME_BYTES]);
            assert!(read_beside(&direct, 0, want.len()) == [NEW; 3 * FRAME_BYTES]);
        } else {
            drop(client);
            wait_for("the session's end", || house.server.session_count() == 0);
            assert!(read_beside(&direct, 0, want.len()) == want, "killed at {step}");
        }
        assert_eq!(house.server.totals().loans_failed, 0);
    }
}

/// What a client says of its frames is bytes of its own, and upsets nothing else.
#[test]
fn a_client_that_names_frames_that_are_not_its_own_harms_its_file_alone() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut other = File::open(&client, "other");
    other.write(0, &[7; 8 * FRAME_BYTES]);
    other.read(0, 8 * FRAME_BYTES);
    let mut file = File::open(&client, "f");
    (0..2).for_each(|_| file.write(0, &[1; 4 * FRAME_BYTES]));
    let views = client.channel.views().unwrap();
    let direct = beside(&house, "f");
    for frame in [0, 3, 9, u32::from(u16::MAX)] {
        assert!(file.write_lent(0, &[2; FRAME_BYTES]), "not on loan");
        let inside = views.enter(file.view).expect("on loan");
        let found = file.find(1).unwrap();
        assert!(views.switch(file.view, found, frame), "the client may write what it likes");
        assert!(views.leave(file.view, inside, None, 4 * PAGE));
        let got = read_beside(&direct, 0, 5 * FRAME_BYTES);
        assert!(got.len() == 4 * FRAME_BYTES && got[2 * FRAME_BYTES..] == [1; 2 * FRAME_BYTES]);
        for value in [5, 1] {
            (0..2).for_each(|_| file.write(0, &[value; 4 * FRAME_BYTES]));
            assert!(file.write_lent(PAGE, &[value; FRAME_BYTES]), "no loan after frame {frame}");
            assert!(read_beside(&direct, 0, 5 * FRAME_BYTES) == [value; 4 * FRAME_BYTES]);
            (0..2).for_each(|_| file.write(0, &[value; 4 * FRAME_BYTES]));
        }
    }
    assert_eq!(other.read(0, 9 * FRAME_BYTES), [7; 8 * FRAME_BYTES]);
    assert_eq!(read_beside(&beside(&house, "other"), 0, 9 * FRAME_BYTES), [7; 8 * FRAME_BYTES]);
}

#[test]
fn scribbling_on_views_harms_the_scribbler_only() {
    count_panics();
    let house = two_workers();
    let good = house.client();
    let mut kept = File::open(&good, "kept");
    kept.write(0, &[5; 8 * FRAME_BYTES]);
    let (socket, welcome, fds) = connect_raw(&house.socket).unwrap();
    let layout = welcome.geometry.layout().unwrap();
    let region = Region::attach(&fds[0], layout.total_bytes()).unwrap();
    let mut fds = fds.into_iter();
    let memfd = fds.next().unwrap();
    let channel =
        polylane_ipc::ClientChannel::attach(memfd, fds.collect(), welcome.geometry, welcome.plan)
            .unwrap();
    let mailbox = channel.claim().unwrap();
    let bad = Client { socket, welcome, channel: Arc::new(channel), mailbox };
    let mut rng = Rng::new(3);
    let end = Instant::now() + Duration::from_secs(3);
    let mut readable = File::open(&bad, "kept");
    while Instant::now() < end {
        let mut own = File::open(&bad, "own");
        own.write(0, &[1; 4 * FRAME_BYTES]);
        own.read(0, 100);
        readable.read(0, 100);
        for _ in 0..200 {
            let tables = 256 * 256 + 4096 * 16;
            let span = if rng.below(2) == 0 { 4096 } else { tables + 64 * FRAME_BYTES as u64 };
            let at = layout.views() + (rng.below(span / 8) * 8) as usize;
            region.word64(at).store(rng.next_u64(), SeqCst);
        }
        let mut message = Message { handle: own.handle, offset: 0, ..Message::new(Op::Write) };
        (message.length, message.flags) = (10, TransferFlags::SHOW.bits());
        let written =
            bad.channel.call_write(bad.mailbox, &message, (0, &[1; 10]), false, &Trusting);
        assert!(written.is_ok());
        bad.call(&Message { handle: own.handle, ..Message::new(Op::Fstat) }).unwrap();
        bad.close(own.handle).unwrap();
        assert_eq!(kept.read(0, 8 * FRAME_BYTES), [5; 8 * FRAME_BYTES]);
    }
    drop(bad);
    let direct = beside(&house, "kept");
    assert_eq!(read_beside(&direct, 0, 9 * FRAME_BYTES), [5; 8 * FRAME_BYTES]);
    assert_eq!(panics(), 0);
}

#[test]
fn a_file_that_is_only_written_shows_no_bytes() {
    let house = House::new();
    let client = house.client();
    File::open(&client, "f").write(0, b"secret");
    let handle = client.open("f", libc::O_WRONLY).unwrap().0;
    let fresh = house.client();
    let handle_2 = fresh.open("f", libc::O_WRONLY).unwrap().0;
    for (client, handle) in [(&client, handle), (&fresh, handle_2)] {
        let mut message =
            Message { handle, flags: TransferFlags::SHOW.bits(), ..Message::new(Op::Write) };
        message.length = 1;
        let channel = &client.channel;
        channel.call_write(client.mailbox, &message, (0, b"S"), false, &Trusting).unwrap();
    }
    let views = fresh.channel.views().unwrap();
    let look = views.look(0).unwrap();
    assert!(views.find(look, 0).is_none());
}

#[test]
fn room_behind_the_end_leaves_what_is_shown() {
    let house = House::over(cached_lane(), Config::default());
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.write(0, &[7; 6000]);
    // Nothing is on loan, and no read moves the access time any more.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(read_beside(&beside(&house, "f"), 0, 6000), [7; 6000]);
    assert_eq!(file.read(0, 6000), [7; 6000]);
    let unasked = |file: &mut File<'_>| {
        let before = file.unasked;
        assert_eq!(file.read(10, 5000), [7; 5000]);
        file.unasked > before
    };
    assert!(unasked(&mut file), "shown");
    let flags = libc::FALLOC_FL_KEEP_SIZE as u32;
    file.call(Message { flags, offset: 0, length: 1 << 20, ..Message::new(Op::Fallocate) });
    file.state();
    assert!(unasked(&mut file), "room");
    file.punch(4096, 1 << 20);
    assert_eq!(file.read(4000, 2000), [[7; 96].as_slice(), &[0; 1904]].concat());
}

/// Another process's lock, by the VFS.
fn lock_beside(house: &House, file: &OpenFile, kind: LockKind, (start, end): (u64, u64)) -> bool {
    let (owner, family) = (LockOwner(99), LockFamily::Posix);
    let request = LockRequest { owner, family, kind, start, end, pid: 99, user: None };
    house.lane.vfs.set_lock(file.node(), request, None) == LockOutcome::Done(Ok(()))
}

/// Asks for a lock of all of a file, to be lent; the view where it is.
fn lend(client: &Client, handle: u64, kind: i32) -> u32 {
    let message = lock_message(handle, LockFlags::LEND, kind);
    client.call(&message).unwrap().handle as u32 - 1
}

#[test]
fn lent_locks_are_the_clients_until_somebody_comes_near() {
    let house = House::new();
    let client = house.client();
    let handle = client.open("f", libc::O_CREAT | libc::O_RDWR).unwrap().0;
    let direct = beside(&house, "f");
    let view = lend(&client, handle, libc::F_WRLCK);
    let views = client.channel.views().unwrap();
    assert!(views.has_locks(view) && !lock_beside(&house, &direct, LockKind::Read, (9, 9)));
    assert!(!views.has_locks(view), "asked back");
    assert_eq!(lend(&client, handle, libc::F_WRLCK), view);
    let part = |locks: &mut Locks| {
        locks.unlock(0, u64::MAX) && locks.lock(Range { start: 10, end: 20, write: true })
    };
    assert!(views.change_locks(view, true, part));
    assert!(lock_beside(&house, &direct, LockKind::Write, (0, 9)));
    assert!(!lock_beside(&house, &direct, LockKind::Read, (20, 30)));
    assert!(!views.change_locks(view, true, part));
    // Another has one: nothing to lend.
    let message =
        Message { length: 5, offset: 30, ..lock_message(handle, LockFlags::LEND, libc::F_RDLCK) };
    client.call(&message).unwrap();
    assert!(!views.has_locks(view));
    house.lane.vfs.drop_owner(LockOwner(99));
    client.call(&message).unwrap();
    assert!(views.has_locks(view));
    client.close(handle).unwrap();
    assert!(!views.has_locks(view) && lock_beside(&house, &direct, LockKind::Write, (0, u64::MAX)));
}

#[test]
fn who_keeps_its_locks_cannot_have_what_its_files_are_not_open_for() {
    count_panics();
    let house = House::new();
    let client = house.client();
    client.create("f");
    let handle = client.open("f", libc::O_RDONLY).unwrap().0;
    let direct = beside(&house, "f");
    let view = lend(&client, handle, libc::F_RDLCK);
    let views = client.channel.views().unwrap();
    assert!(views.has_locks(view) && !views.change_locks(view, true, |_| true));
    // What it says by scribbling does not count.
    let mut claimed = Locks::default();
    assert!(claimed.lock(Range { start: 0, end: u64::MAX, write: true }));
    views.lend_locks(view, &claimed, true);
    assert!(lock_beside(&house, &direct, LockKind::Read, (0, u64::MAX)));
    house.lane.vfs.drop_owner(LockOwner(99));
    // A loan that it says goes on is over.
    views.lend_locks(view, &claimed, true);
    assert!(lock_beside(&house, &direct, LockKind::Write, (0, u64::MAX)));
    assert_eq!(panics(), 0);
}

#[test]
fn lent_locks_outlive_the_session_but_not_a_close() {
    let house = House::new();
    let client = house.client();
    let handle = client.open("f", libc::O_CREAT | libc::O_RDWR).unwrap().0;
    let direct = beside(&house, "f");
    lend(&client, handle, libc::F_WRLCK);
    drop(client);
    // As after exec: its process lives.
    assert!(!lock_beside(&house, &direct, LockKind::Read, (0, 0)));
    let client = house.client();
    let handle = client.open("f", libc::O_RDWR).unwrap().0;
    lend(&client, handle, libc::F_WRLCK);
    client.close(client.open("f", libc::O_RDONLY).unwrap().0).unwrap();
    assert!(lock_beside(&house, &direct, LockKind::Write, (0, u64::MAX)));
}
