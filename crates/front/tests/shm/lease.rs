//! Leases through the fast lane: what a client streams is seen by everybody in time, by either
//! door; nothing that it was told exists is lost; and one that streams nonsense harms itself alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, Ordering::SeqCst};
use polylane_base::{Errno, SystemClock};
use polylane_front::Lane;
use polylane_front::lane::slots::Token;
use polylane_front::shm::Config;
use polylane_ipc::message::{LEASED, Message, Op};
use polylane_ipc::stream::{
    Change, DATA_BYTES, Entry, LEASES_MAX, Posted, STREAM_BYTES, SetState, ShortName,
    WRITE_BYTES_MAX, streamed_handle,
};
use polylane_sys::Region;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{OpCtx, RENAME_EXCHANGE};

use crate::kernel::{Answer, Bytes, Fields, Kernel, ROOT};
use crate::shm_kit::{
    Client, House, connect_raw, count, count_panics, lane_on, make_slot, outcome, panics, wait_for,
};

/// What a lease came with.
struct Granted {
    lease: u8,
    afresh: bool,
    names: BTreeSet<String>,
}

fn lease(client: &Client, path: &str) -> Result<Granted, Errno> {
    let reply = client.op_at(Op::Lease, path)?;
    let (count, mut at, mut names) = (count(&reply), 0, BTreeSet::new());
    let bytes = client.payload(64 << 10);
    for _ in 0..count {
        let len = usize::from(bytes[at]);
        names.insert(String::from_utf8(bytes[at + 1..at + 1 + len].to_vec()).unwrap());
        at += 1 + len;
    }
    Ok(Granted { lease: reply.value[0] as u8, afresh: reply.value[1] != 0, names })
}

/// A lease on a directory that the client may have one on: the first call ends that.
fn again(client: &Client, path: &str) -> Granted {
    lease(client, path).or_else(|_| lease(client, path)).unwrap()
}

fn entry(change: Change, lease: u8, name: &str) -> Entry {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64;
    let name = ShortName::new(name.as_bytes()).unwrap_or_default();
    Entry { change, lease, name, perm: 0o644, time: now, born: now, ..Entry::default() }
}

fn make(lease: u8, name: &str) -> Entry {
    entry(Change::Make, lease, name)
}

fn post(client: &Client, entry: &Entry) {
    assert!(matches!(client.channel.stream().post(entry), Posted::Waiting(_)), "{entry:?}");
}

/// A lane with `d`, in it `old`; a client with a lease on it that has made `new` and renamed it.
struct Scene {
    house: House,
    holder: Client,
    other: Client,
    lease: u8,
}

fn scene() -> Scene {
    let house = House::with(Config { workers: vec![None, None], ..Config::default() });
    let (holder, other) = (house.client(), house.client());
    holder.op_at(Op::Mkdir, "d").unwrap();
    other.create("d/old");
    let granted = lease(&holder, "d").unwrap();
    assert_eq!(granted.names, ["old".to_string()].into());
    assert!(granted.afresh);
    post(&holder, &make(granted.lease, "made"));
    let name2 = ShortName::new(b"new").unwrap();
    post(&holder, &Entry { name2, ..entry(Change::Rename, granted.lease, "made") });
    Scene { house, holder, other, lease: granted.lease }
}

impl Scene {
    fn is_over(&self) -> bool {
        self.holder.channel.stream().is_shut()
    }

    fn stream_failed(&self) -> u64 {
        self.house.server.totals().stream_failed
    }
}

/// Names in a directory.
fn list(client: &Client, path: &str) -> BTreeSet<String> {
    let reply = client.op_at(Op::OpenDir, path).unwrap();
    let (handle, mut names, mut offset) = (reply.handle, BTreeSet::new(), 0);
    loop {
        let message = Message { handle, offset, length: 32 << 10, ..Message::new(Op::Readdir) };
        let bytes = client.call(&message).map(|reply| client.payload(count(&reply))).unwrap();
        if bytes.is_empty() {
            break;
        }
        let mut at = 0;
        while at < bytes.len() {
            let word = |from: usize| u64::from_ne_bytes(bytes[from..from + 8].try_into().unwrap());
            let len = usize::from(u16::from_ne_bytes(bytes[at + 16..at + 18].try_into().unwrap()));
            offset = word(at + 8);
            let name = bytes[at + 19..at + len].split(|byte| *byte == 0).next().unwrap();
            names.insert(String::from_utf8_lossy(name).into_owned());
            at += len;
        }
    }
    client.close(handle).unwrap();
    names.retain(|name| name != "." && name != "..");
    names
}

#[test]
fn another_session_ends_it_whatever_it_does() {
    type Work = fn(&Client);
    let works: [(&str, Work); 9] = [
        ("stat", |c| _ = c.stat("d/new").unwrap()),
        ("stat of nothing", |c| assert_eq!(c.stat("d/made").err(), Some(Errno::ENOENT))),
        ("open", |c| _ = c.open("d/new", libc::O_RDWR).unwrap()),
        ("exclusive open", |c| {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
            assert_eq!(c.open("d/new", flags).err(), Some(Errno::EEXIST));
        }),
        ("unlink", |c| _ = c.op_at(Op::Unlink, "d/new").unwrap()),
        ("mkdir", |c| assert_eq!(c.op_at(Op::Mkdir, "d/new").err(), Some(Errno::EEXIST))),
        ("rename", |c| {
            c.call_at(Message::new(Op::Rename), b"d/new", b"d/newer").unwrap();
        }),
        ("listing", |c| assert_eq!(list(c, "d"), ["new", "old"].map(String::from).into())),
        ("lease", |c| assert!(lease(c, "d").unwrap().names.contains("new"))),
    ];
    for (what, work) in works {
        let scene = scene();
        work(&scene.other);
        assert!(scene.is_over(), "{what}");
        assert_eq!(scene.holder.channel.stream().post(&make(scene.lease, "x")), Posted::Shut);
        assert_eq!(scene.stream_failed(), 0, "{what}");
    }
}

#[test]
fn attributes_of_the_directory_leave_it() {
    let scene = scene();
    let before = scene.other.stat("d").unwrap();
    assert!(!scene.is_over());
    post(&scene.holder, &make(scene.lease, "more"));
    let after = scene.other.stat("d").unwrap();
    let mtime = |attr: &polylane_ipc::message::WireAttr| (attr.sec[1], attr.nsec[1]);
    assert!(mtime(&after) >= mtime(&before));
    assert!(!scene.is_over());
    assert_eq!(scene.house.server.totals().streamed, 3);
}

pub(crate) fn look_up(kernel: &mut Kernel, dir: u64, name: &str) -> Answer {
    const LOOKUP: u32 = 1;
    let mut args = Bytes::new();
    args.name(name);
    kernel.ask(LOOKUP, dir, &args.0)
}

#[test]
fn the_kernels_door_ends_it() {
    const UNLINK: u32 = 10;
    let scene = scene();
    let mut kernel = Kernel::on(scene.house.lane.clone(), 0);
    let dir = Fields(&look_up(&mut kernel, ROOT, "d").expect("d")).u64();
    assert!(!scene.is_over());
    assert_eq!(look_up(&mut kernel, dir, "made"), Err(Errno::ENOENT));
    assert!(scene.is_over());
    assert!(look_up(&mut kernel, dir, "new").is_ok());
    let lease = lease(&scene.holder, "d").unwrap().lease;
    post(&scene.holder, &make(lease, "again"));
    let mut args = Bytes::new();
    args.name("again");
    assert!(kernel.ask(UNLINK, dir, &args.0).is_ok());
    assert!(scene.is_over());
    assert_eq!(list(&scene.other, "d"), ["new", "old"].map(String::from).into());
}

/// A file that was made and opened by the stream, with slot 0.
fn open_streamed(scene: &Scene, name: &str, use_count: u32) -> u64 {
    let handle = streamed_handle(0, use_count);
    let (slot, flags) = (1, libc::O_RDWR as u32);
    post(&scene.holder, &Entry { slot, flags, handle, ..make(scene.lease, name) });
    handle
}

#[test]
fn a_streamed_file_is_used_by_its_handle_and_by_its_slot() {
    let scene = scene();
    let slot = make_slot(&scene.house, Token(scene.holder.welcome.token), 0).unwrap();
    assert!(slot.file().is_err_and(|errno| errno == Errno::EBADF));
    assert!(scene.is_over(), "the kernel at a slot ends the lease");
    let scene = Scene { lease: lease(&scene.holder, "d").unwrap().lease, ..scene };
    let handle = open_streamed(&scene, "file", 1);
    assert_eq!(scene.holder.write(handle, 0, b"by the handle"), Ok(13));
    assert!(!scene.is_over());
    assert_eq!(
        slot.file().unwrap().write(&OpCtx::service(), Some(0), &mut &b"BY"[..]).unwrap().count,
        2
    );
    assert!(scene.is_over());
    assert_eq!(scene.holder.read(handle, 0, 100).unwrap(), b"BY the handle");
    scene.holder.close(handle).unwrap();
    assert_eq!(scene.holder.read(handle, 0, 1), Err(Errno::EBADF));
    // The slot is free again, and the place too.
    let scene = Scene { lease: lease(&scene.holder, "d").unwrap().lease, ..scene };
    let again = open_streamed(&scene, "file2", 2);
    assert_eq!(scene.holder.write(again, 0, b"x"), Ok(1));
    assert_eq!(scene.holder.read(handle, 0, 1), Err(Errno::EBADF));
    assert_eq!(scene.stream_failed(), 0);
}

#[test]
fn rights_and_times_are_set_by_the_stream_as_by_a_request() {
    let scene = scene();
    make_slot(&scene.house, Token(scene.holder.welcome.token), 0).unwrap();
    let handle = open_streamed(&scene, "file", 1);
    let change = |umask, perm| Entry {
        handle,
        umask,
        perm,
        born: 3_000_000_007,
        atime: -1,
        ..entry(Change::Set, scene.lease, "")
    };
    post(
        &scene.holder,
        &change((SetState::PERM | SetState::MTIME | SetState::ATIME).bits(), 0o4750),
    );
    let attr = scene.other.stat("d/file").unwrap();
    assert!(scene.is_over(), "who looks ends the lease, and sees it");
    assert_eq!(attr.mode & 0o7777, 0o4750);
    assert_eq!((attr.sec[1], attr.nsec[1]), (3, 7), "modification time");
    assert_eq!((attr.sec[0], attr.nsec[0]), (-1, 999_999_999), "access time");
    assert!(attr.sec[2] > 1_000_000_000, "change time: the call's");
    // What the client has no streamed handle for it cannot name, and a shut gate lets nothing in.
    let scene = Scene { lease: lease(&scene.holder, "d").unwrap().lease, ..scene };
    let strange = Entry { handle: streamed_handle(0, 99), ..change(SetState::PERM.bits(), 0) };
    let (other, _) = scene.holder.open("d/old", libc::O_RDWR).unwrap();
    for hostile in [strange, Entry { handle: other, ..change(SetState::PERM.bits(), 0) }] {
        post(&scene.holder, &hostile);
    }
    post(&scene.holder, &change(SetState::MTIME_NOW.bits() | u16::MAX << 5, 0));
    let attr = scene.other.stat("d/file").unwrap();
    assert_eq!(scene.stream_failed(), 2);
    assert_eq!(attr.mode & 0o7777, 0o4750, "unknown bits set nothing");
    assert_eq!((attr.sec[1], attr.nsec[1]), (attr.sec[2], attr.nsec[2]), "now");
    assert!(attr.sec[1] > 1_000_000_000);
    assert_eq!(scene.other.stat("d/old").unwrap().mode & 0o7777, 0o644);
}

/// A file system that sets no blocks aside is written by requests, whatever a client claims; places
/// outside the ring and handles that are none do nothing.
#[test]
fn strange_writes_and_closes_do_nothing() {
    let scene = scene();
    make_slot(&scene.house, Token(scene.holder.welcome.token), 0).unwrap();
    let handle = open_streamed(&scene, "file", 1);
    let write = |at, len, offset| Entry {
        handle,
        at,
        len,
        offset,
        ..entry(Change::Write, scene.lease, "")
    };
    let (other, _) = scene.holder.open("d/old", libc::O_RDWR).unwrap();
    let strange = [
        write(0, 10, 0),
        write(DATA_BYTES as u32, 1, 0),
        write(u32::MAX, u32::MAX, u64::MAX),
        write(0, WRITE_BYTES_MAX as u32 + 1, 0),
        Entry { handle: other, ..write(0, 10, 0) },
        Entry { handle: other, ..entry(Change::Close, scene.lease, "") },
        Entry { handle: streamed_handle(3, 9), ..entry(Change::Close, scene.lease, "") },
    ];
    strange.iter().for_each(|entry| post(&scene.holder, entry));
    assert_eq!(scene.holder.write(other, 0, b"open"), Ok(4));
    assert_eq!(scene.stream_failed(), strange.len() as u64);
    post(&scene.holder, &Entry { handle, ..entry(Change::Close, scene.lease, "") });
    assert_eq!(scene.holder.read(handle, 0, 1), Err(Errno::EBADF));
    assert_eq!(scene.other.stat("d/file").unwrap().size, 0);
}

#[test]
fn an_escaped_slot_keeps_its_file() {
    let scene = scene();
    let slot = make_slot(&scene.house, Token(scene.holder.welcome.token), 0).unwrap();
    let handle = open_streamed(&scene, "file", 1);
    // As before a fork.
    scene.holder.call(&Message::new(Op::ShareAll)).unwrap();
    assert!(slot.escaped());
    post(&scene.holder, &entry(Change::Unlink, scene.lease, "file"));
    scene.holder.close(handle).unwrap();
    let file = slot.file().unwrap();
    assert_eq!(scene.house.lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().nlink, 0);
    // It is never bound again: the name is made, the handle is none, and the next sync says so.
    let lease = lease(&scene.holder, "d").unwrap().lease;
    let scene = Scene { lease, ..scene };
    let refused = open_streamed(&scene, "second", 2);
    assert_eq!(scene.holder.read(refused, 0, 1), Err(Errno::EIO));
    assert_eq!(scene.stream_failed(), 1);
    let sync = || scene.holder.call(&Message::new(Op::Sync)).map(drop);
    assert_eq!((sync(), sync()), (Err(Errno::EIO), Ok(())));
    assert!(scene.other.stat("d/second").is_ok());
}

#[test]
fn a_session_that_ends_leaves_what_it_did() {
    let Scene { house, holder, other, lease } = scene();
    make_slot(&house, Token(holder.welcome.token), 0).unwrap();
    let handle = streamed_handle(0, 1);
    post(&holder, &Entry { slot: 1, flags: libc::O_RDWR as u32, handle, ..make(lease, "open") });
    let free = house.lane.vfs.statfs(&OpCtx::service()).unwrap().ffree;
    post(&holder, &make(lease, "last"));
    drop(holder);
    wait_for("the holder to leave", || house.server.session_count() == 1);
    assert_eq!(
        house.lane.vfs.statfs(&OpCtx::service()).unwrap().ffree,
        free - 1,
        "what was set aside is back"
    );
    let expected = ["last", "new", "old", "open"].map(String::from);
    assert_eq!(list(&other, "d"), expected.into());
}

#[test]
fn a_lease_too_many_ends_the_others() {
    let house = House::new();
    let client = house.client();
    for number in 0..=LEASES_MAX {
        let path = format!("d{number}");
        client.op_at(Op::Mkdir, &path).unwrap();
        let granted = lease(&client, &path).unwrap();
        assert_eq!(granted.afresh, number == 0 || number == LEASES_MAX);
        post(&client, &make(granted.lease, "a"));
    }
    let other = house.client();
    for number in 0..=LEASES_MAX {
        assert!(other.stat(&format!("d{number}/a")).is_ok(), "{number}");
    }
    assert_eq!(house.server.totals().stream_failed, 0);
}

#[test]
fn directories_that_are_too_large_or_not_ours_are_refused() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    assert_eq!(lease(&client, "d/none").err(), Some(Errno::ENOENT));
    assert_eq!(lease(&client, "../d").err(), Some(Errno::EOPNOTSUPP));
    client.create("d/file");
    assert_eq!(lease(&client, "d/file").err(), Some(Errno::ENOTDIR));
    let long = "n".repeat(41);
    client.create(&format!("d/{long}"));
    let granted = lease(&client, "d").unwrap();
    assert_eq!(granted.names, ["file".to_string()].into(), "long names do not travel");
    for n in 0..1100 {
        let handle = client.create(&format!("d/f{n}"));
        client.close(handle).unwrap();
    }
    assert_eq!(lease(&client, "d").err(), Some(Errno::EAGAIN));
}

/// A lane with so many inodes.
fn small_lane(inodes: u64) -> Arc<Lane> {
    lane_on(MemFs::new(1 << 30, inodes, Arc::new(SystemClock)))
}

/// Makes a file by the stream where it can, else the ordinary way: like the library.
fn make_somehow(
    client: &Client,
    dir: &str,
    lease: &mut Option<u8>,
    name: &str,
) -> Result<(), Errno> {
    for _ in 0..2 {
        let Some(number) = *lease else { break };
        match client.channel.stream().post(&make(number, name)) {
            Posted::Waiting(_) => return Ok(()),
            Posted::Full => drop(client.call(&Message::new(Op::Ping))?),
            Posted::Shut => *lease = None,
        }
    }
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    let (handle, _) = client.open(&format!("{dir}/{name}"), flags)?;
    client.close(handle).map(drop)
}

/// No file that a client was told it made is lost, however full the lane is and whoever competes
/// for the rest.
#[test]
fn no_file_is_lost_for_want_of_room() {
    let config = Config { workers: vec![None, None], ..Config::default() };
    let house = House::over(small_lane(1000), config);
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    client.op_at(Op::Mkdir, "e").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rival = house.client();
            // Never all there is: the others are to be told of some files in each round.
            for number in (0..600).cycle() {
                let name = format!("e/{number}");
                match rival.open(&name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) {
                    Ok((handle, _)) => drop(rival.close(handle).unwrap()),
                    Err(Errno::EEXIST) => drop(rival.op_at(Op::Unlink, &name).unwrap()),
                    Err(errno) => assert_eq!(errno, Errno::ENOSPC),
                }
                if stop.load(SeqCst) {
                    break;
                }
            }
        });
        for round in 0..6 {
            let (mut told, mut held) = (BTreeSet::new(), None);
            for n in 0.. {
                if held.is_none() {
                    held = lease(&client, "d").ok().map(|granted| granted.lease);
                }
                let name = format!("{round}-{n}");
                match make_somehow(&client, "d", &mut held, &name) {
                    Ok(()) => drop(told.insert(name)),
                    Err(errno) => {
                        assert_eq!(errno, Errno::ENOSPC);
                        break;
                    }
                }
            }
            assert_eq!(list(&client, "d"), told, "round {round}");
            for name in told {
                client.op_at(Op::Unlink, &format!("d/{name}")).unwrap();
            }
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(house.server.totals().stream_failed, 0);
    assert!(house.server.totals().streamed > 100, "leases did not matter");
}

#[test]
fn the_leased_flag_without_a_lease_means_nothing() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    client.op_at(Op::Mkdir, "d/sub").unwrap();
    let rename = |from: &[u8], to: &[u8], flags| {
        let message = Message { flags: flags | LEASED, ..Message::new(Op::Rename) };
        client.call_at(message, from, to).map(drop)
    };
    let unlink = |path: &[u8]| {
        let message = Message { flags: LEASED, ..Message::new(Op::Unlink) };
        client.call_at(message, path, b"").map(drop)
    };
    client.create("d/a");
    assert_eq!(rename(b"d/a", b"d/b", 0), Ok(()));
    assert_eq!(unlink(b"d/b"), Ok(()));
    // With a lease, what would end leases is done as anybody's call: nobody waits for himself.
    for flags in [0, RENAME_EXCHANGE] {
        client.create("d/a");
        client.op_at(Op::Mkdir, "d/dir").unwrap();
        lease(&client, "d").unwrap();
        let expected = if flags == 0 { Err(Errno::EISDIR) } else { Ok(()) };
        assert_eq!(rename(b"d/a", b"d/dir", flags), expected);
        lease(&client, "d/sub").unwrap();
        lease(&client, "d").unwrap();
        assert_eq!(rename(b"d/sub", b"d/moved", 0), Ok(()));
        rename(b"d/moved", b"d/sub", 0).unwrap();
        for name in ["d/a", "d/dir"] {
            let _ = client.op_at(Op::Unlink, name);
            let remove = Message { flags: libc::AT_REMOVEDIR as u32, ..Message::new(Op::Unlink) };
            let _ = client.call_at(remove, name.as_bytes(), b"");
        }
    }
}

/// Entries that mean something else than one name in the leased directory are not applied, and two
/// clients that aim at each other's leases do not stop each other's workers.
#[test]
fn names_that_lead_elsewhere_are_refused() {
    let house = House::with(Config { workers: vec![None, None], ..Config::default() });
    let clients = [house.client(), house.client()];
    for dir in ["d0", "d1", "d0/sub", "d1/sub"] {
        clients[0].op_at(Op::Mkdir, dir).unwrap();
    }
    for round in 0..50 {
        let leases = [0, 1].map(|n| again(&clients[n], &format!("d{n}")).lease);
        for n in 0..2 {
            let other = 1 - n;
            let aims = [
                format!("../d{other}/x{round}"),
                format!("/d{other}/y{round}"),
                format!("sub/z{round}"),
                "..".into(),
                ".".into(),
                "sub/".into(),
                String::new(),
                "a\0b".into(),
            ];
            for aim in &aims {
                let slot = Entry { slot: 1, handle: streamed_handle(0, 0), ..make(leases[n], aim) };
                let name2 = ShortName::new(aim.as_bytes()).unwrap_or_default();
                for hostile in [
                    make(leases[n], aim),
                    slot,
                    entry(Change::Unlink, leases[n], aim),
                    Entry { name2, ..entry(Change::Rename, leases[n], "sub") },
                    make(LEASES_MAX, "lease"),
                    make(255, "lease"),
                    make(1 - leases[n].min(1), "lease"),
                ] {
                    if clients[n].channel.stream().post(&hostile) == Posted::Full {
                        clients[n].call(&Message::new(Op::Ping)).unwrap();
                    }
                }
            }
        }
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| client.call(&Message::new(Op::Ping)).unwrap());
            }
        });
    }
    let judge = house.client();
    for n in 0..2 {
        assert_eq!(list(&judge, &format!("d{n}")), ["sub".to_string()].into());
        assert!(list(&judge, &format!("d{n}/sub")).is_empty());
    }
}

/// Random words in the whole stream, while requests have it applied and while a good client has a
/// lease in the same lane.
#[test]
fn a_stream_of_garbage_harms_nobody() {
    count_panics();
    let house = House::with(Config { workers: vec![None, None], ..Config::default() });
    let good = house.client();
    for dir in ["bad0", "bad1", "good", "far"] {
        good.op_at(Op::Mkdir, dir).unwrap();
    }
    good.create("far/file");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (house, stop) = (&house, &stop);
            scope.spawn(move || abuse(house, &mut Rng::new(seed), stop));
        }
        // Longer where the CPUs are busy elsewhere: until some of the garbage was refused.
        let (start, mut round, mut held) = (Instant::now(), 0, None);
        let goes_on = || {
            let seconds = if house.server.totals().stream_failed > 0 { 3 } else { 60 };
            start.elapsed() < Duration::from_secs(seconds)
        };
        while goes_on() {
            if held.is_none() {
                held = lease(&good, "good").ok().map(|granted| granted.lease);
            }
            let name = format!("{round}");
            make_somehow(&good, "good", &mut held, &name).unwrap();
            if round % 8 == 7 {
                for n in round - 7..=round {
                    good.op_at(Op::Unlink, &format!("good/{n}")).unwrap();
                }
            }
            round += 1;
        }
        stop.store(true, SeqCst);
        assert!(round > 1000, "the good client came to {round} rounds");
    });
    assert_eq!(panics(), 0, "the service panicked");
    let judge = house.client();
    assert_eq!(list(&judge, "far"), ["file".to_string()].into());
    assert!(list(&judge, "good").len() < 8);
    let totals = house.server.totals();
    assert!(totals.stream_failed > 0, "too tame");
}

fn abuse(house: &House, rng: &mut Rng, stop: &AtomicBool) {
    let dir = format!("bad{}", rng.below(2));
    while !stop.load(SeqCst) {
        let (_socket, welcome, mut fds) = connect_raw(&house.socket).unwrap();
        let layout = welcome.geometry.layout().unwrap();
        let memfd = fds.remove(0);
        let region = Region::attach(&memfd, layout.total_bytes()).unwrap();
        let channel =
            polylane_ipc::ClientChannel::attach(memfd, fds, welcome.geometry, welcome.plan)
                .unwrap();
        let mailbox = channel.claim().unwrap();
        let call = |message: &Message| {
            outcome(
                channel.call(mailbox, message, &polylane_ipc::channel::client::Trusting).unwrap(),
            )
        };
        for _ in 0..200 {
            let mut ask = Message::new(Op::Lease);
            ask.path_len = dir.len() as u32;
            channel.payload_put(mailbox, 0, dir.as_bytes());
            let _ = call(&ask);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let _ = call(&Message::new(Op::Ping));
                    }
                });
                for _ in 0..rng.below(2000) {
                    scribble(rng, &region, layout.stream());
                }
            });
            if stop.load(SeqCst) {
                break;
            }
        }
    }
}

/// Changes a word of the stream: often the gate, by a little; else anything.
fn scribble(rng: &mut Rng, region: &Region, stream: usize) {
    let gate = region.word64(stream);
    match rng.below(10) {
        0..3 => drop(gate.fetch_add(1 + rng.below(3), SeqCst)),
        3 => drop(gate.fetch_xor(1 << rng.below(64), SeqCst)),
        4 => gate.store(rng.next_u64(), SeqCst),
        _ => {
            let word = rng.below(STREAM_BYTES as u64 / 8);
            let names = [u64::from_le_bytes(*b"../far/f"), u64::from(b'a'), rng.next_u64()];
            // The head of an entry: any change, few leases, lengths that fit.
            let head = rng.below(8) | rng.below(2) << 8 | rng.below(45) << 16 | rng.below(9) << 24;
            let value = if word.is_multiple_of(16) { head } else { *rng.pick(&names) };
            region.word64(stream + 8 * word as usize).store(value, SeqCst);
        }
    }
}
