//! The FUSE session against a made-up kernel: every rule that a real kernel would not put to the
//! test.

#[path = "fuse/kernel.rs"]
mod kernel;

use kernel::{Answer, Bytes, Fields, Kernel, PID, ROOT};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use polylane_base::rng::Rng;
use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, Gid, Uid};
use polylane_front::Lane;
use polylane_front::lane::notifier;
use polylane_front::lane::slots::{Token, Unbound};
use polylane_front::witness::{Client, Looks, Numbers, Refusal, Seen, Standing, Witness};
use polylane_sys::notice::Notice;
use polylane_sys::scm::Identity;
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::{OpCtx, OpenFile, SetAttr};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const SETXATTR: u32 = 21;
const GETXATTR: u32 = 22;
const LISTXATTR: u32 = 23;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const SETLK: u32 = 32;
const SETLKW: u32 = 33;
const CREATE: u32 = 35;
const INTERRUPT: u32 = 36;
const IOCTL: u32 = 39;
const FALLOCATE: u32 = 43;
const COPY_FILE_RANGE: u32 = 47;
const READDIRPLUS: u32 = 44;

const SLOT_DIR: u64 = 3;
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;

/// Node id and handle of a CREATE reply.
fn created(answer: Answer) -> (u64, u64) {
    let body = answer.expect("created");
    let id = Fields(&body).u64();
    (id, Fields(&body).skip(128).u64())
}

fn create(kernel: &mut Kernel, dir: u64, name: &str) -> (u64, u64) {
    let mut args = Bytes::new();
    args.u32(libc::O_RDWR as u32 | libc::O_CREAT as u32).u32(0o100644).u32(0o022).u32(0).name(name);
    created(kernel.ask(CREATE, dir, &args.0))
}

/// As a process reads; the kernel that fills a page says nothing of a lock owner.
fn read_args(fh: u64, offset: u64, size: u32) -> Vec<u8> {
    const READ_LOCKOWNER: u32 = 2;
    let mut args = Bytes::new();
    args.u64(fh).u64(offset).u32(size).u32(READ_LOCKOWNER).u64(0).u32(0).u32(0);
    args.0
}

fn read_page(kernel: &mut Kernel, node: u64, fh: u64) -> Answer {
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u32(4096).u32(0).u64(0).u32(0).u32(0);
    kernel.ask(READ, node, &args.0)
}

fn write_args(fh: u64, offset: u64, data: &[u8], how: u32, flags: i32) -> Vec<u8> {
    let mut args = Bytes::new();
    args.u64(fh).u64(offset).u32(data.len() as u32).u32(how).u64(0).u32(flags as u32).u32(0);
    args.raw(data);
    args.0
}

fn read(kernel: &mut Kernel, node: u64, fh: u64) -> Answer {
    kernel.ask(READ, node, &read_args(fh, 0, 4096))
}

fn write(kernel: &mut Kernel, node: u64, fh: u64, data: &[u8]) -> Answer {
    kernel.ask(WRITE, node, &write_args(fh, 0, data, 0, libc::O_RDWR))
}

fn size_of(kernel: &mut Kernel, node: u64) -> u64 {
    let body = kernel.ask(GETATTR, node, &[0; 16]).expect("attributes");
    Fields(&body).skip(16 + 8).u64()
}

fn lookup(kernel: &mut Kernel, dir: u64, name: &str) -> Answer {
    let mut args = Bytes::new();
    args.name(name);
    kernel.ask(LOOKUP, dir, &args.0)
}

fn forget(kernel: &mut Kernel, node: u64, count: u64) {
    kernel.send(FORGET, node, &count.to_ne_bytes());
}

/// An INIT of 7.45 with every flag there is.
fn init_with_all() -> Vec<u8> {
    let mut args = Bytes::new();
    args.u32(7).u32(45).u32(131_072).u32(u32::MAX).u32(u32::MAX);
    args.0.resize(64, 0);
    args.0
}

#[test]
fn init_agrees_on_what_both_have() {
    let mut kernel = Kernel::new();
    let body = kernel.ask(INIT, 0, &init_with_all()).expect("agreed");
    let expected: [u32; 16] = [
        7,
        45,
        131_072,
        0x7254_8c7b, // ASYNC_READ … INIT_EXT
        64 | 48 << 16,
        1 << 20,
        1,
        256,
        0x94, // CREATE_SUPP_GROUP, DIRECT_IO_ALLOW_MMAP, HAS_RESEND
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    let expected: Vec<u8> = expected.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(body, expected);
}

#[test]
fn init_asks_a_newer_major_again_and_refuses_an_older_one() {
    let mut kernel = Kernel::new();
    let body = kernel.ask(INIT, 0, &[8u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat());
    assert_eq!(Fields(&body.expect("our version")).u32(), 7);
    let body = kernel.ask(INIT, 0, &[6u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());
    assert_eq!(body, Err(Errno::EPROTO));
}

#[test]
fn a_getattr_reply_is_these_bytes() {
    let mut kernel = Kernel::new();
    let body = kernel.ask(GETATTR, ROOT, &[0; 16]).expect("attributes");
    assert_eq!(body.len(), 16 + 88);
    assert_eq!(body[..16], [0; 16], "nothing is cached");
    let mut fields = Fields(&body[16 + 60..]);
    assert_eq!(fields.u32(), 0o40755);
    assert_eq!([fields.u32(), fields.u32(), fields.u32()], [2, 0, 0], "nlink, uid, gid");
}

#[test]
fn what_was_never_told_is_stale_and_what_was_never_opened_is_an_error() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    for unknown in [0, 4, id + 1, id | 1 << 48, u64::MAX] {
        assert_eq!(kernel.ask(GETATTR, unknown, &[0; 16]), Err(Errno::ESTALE), "{unknown}");
    }
    for unknown in [0, fh + 1, fh | 1 << 48] {
        assert_eq!(read(&mut kernel, id, unknown), Err(Errno::EIO), "{unknown}");
    }
    // Releasing what a former incarnation opened succeeds: it is gone.
    assert_eq!(kernel.ask(RELEASE, id, &[0; 24]), Ok(vec![]));
}

#[test]
fn lookups_are_counted_exactly() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    for _ in 0..9 {
        let body = lookup(&mut kernel, ROOT, "a").expect("found");
        assert_eq!(Fields(&body).u64(), id, "one inode, one id");
    }
    forget(&mut kernel, id, 9);
    assert_eq!(size_of(&mut kernel, id), 0, "one lookup is left");
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u64(0);
    assert_eq!(kernel.ask(RELEASE, id, &args.0), Ok(vec![]));
    forget(&mut kernel, id, 1);
    assert_eq!(kernel.ask(GETATTR, id, &[0; 16]), Err(Errno::ESTALE));
    assert!(kernel.lane.nodes.is_empty());
    // The next lookup starts anew, under the same id: file handles have it.
    let body = lookup(&mut kernel, ROOT, "a").expect("found");
    assert_eq!(Fields(&body).u64(), id);
    assert_eq!(kernel.lane.nodes.len(), 1);
}

#[test]
fn listings_with_attributes_count_as_lookups() {
    let mut kernel = Kernel::new();
    let (id, _) = create(&mut kernel, ROOT, "a");
    let fh = Fields(&kernel.ask(OPENDIR, ROOT, &[0; 8]).expect("opened")).u64();
    let body = kernel.ask(READDIRPLUS, ROOT, &read_args(fh, 0, 4096)).expect("listed");
    let mut fields = Fields(&body);
    let mut names = Vec::new();
    while !fields.0.is_empty() {
        let node = fields.u64();
        fields.skip(120 + 16);
        let (length, _kind) = (fields.u32() as usize, fields.u32());
        names.push((String::from_utf8_lossy(&fields.0[..length]).into_owned(), node));
        fields.skip(length.next_multiple_of(8));
    }
    let expected = [(".".to_string(), 0), ("..".to_string(), 0), ("a".to_string(), id)];
    assert_eq!(names, expected);
    forget(&mut kernel, id, 2);
    assert_eq!(kernel.ask(GETATTR, id, &[0; 16]), Err(Errno::ESTALE));
}

#[test]
fn the_reserved_names_are_there_and_cannot_be_touched() {
    let mut kernel = Kernel::new();
    let body = lookup(&mut kernel, ROOT, ".polylane").expect("there");
    assert_eq!(Fields(&body).u64(), 2);
    assert_eq!(
        Fields(&lookup(&mut kernel, ROOT, ".polylane-slots").expect("there")).u64(),
        SLOT_DIR
    );
    let mut args = Bytes::new();
    args.name(".polylane");
    assert_eq!(kernel.ask(UNLINK, ROOT, &args.0), Err(Errno::EBUSY));
    assert_eq!(kernel.ask(UNLINK, 2, b"x\0"), Err(Errno::EPERM));
    assert_eq!(lookup(&mut kernel, 2, "x"), Err(Errno::ENOENT));
    assert_eq!(lookup(&mut kernel, SLOT_DIR, "x"), Err(Errno::ENOENT));
}

#[test]
fn an_append_whose_sync_finds_no_room_is_done_once() {
    let fs = Faulty::new(kernel::memfs());
    let mut kernel = Kernel::on(Lane::new(kernel::vfs_on(fs.clone()), 0), 0);
    let (id, fh) = create(&mut kernel, ROOT, "log");
    fs.fail_once(Call::Sync, 0, Errno::ENOSPC);
    let args = write_args(fh, 0, b"x", 0, libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
    assert_eq!(kernel.ask(WRITE, id, &args), Err(Errno::ENOSPC));
    assert_eq!(size_of(&mut kernel, id), 1);
}

#[test]
fn set_id_bits_go_when_the_kernel_says_so() {
    const KILL_SUIDGID: u32 = 4;
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let mut set_id = Bytes::new();
    set_id.u32(1).raw(&[0; 64]).u32(0o6755).raw(&[0; 16]);
    let mode = |body: &[u8]| Fields(&body[16 + 60..]).u32();
    let body = kernel.ask(SETATTR, id, &set_id.0).expect("chmod");
    assert_eq!(mode(&body), 0o106_755);
    write(&mut kernel, id, fh, b"kept").expect("written");
    let body = kernel.ask(GETATTR, id, &[0; 16]).expect("attributes");
    assert_eq!(mode(&body), 0o106_755);
    let args = write_args(fh, 0, b"gone", KILL_SUIDGID, libc::O_RDWR);
    kernel.ask(WRITE, id, &args).expect("written");
    let body = kernel.ask(GETATTR, id, &[0; 16]).expect("attributes");
    assert_eq!(mode(&body), 0o100_755);
}

/// chown(-1, -1), and what the kernel sends before a change by a caller who is to lose set-id bits:
/// the owner's and root's takes them, others' takes nothing and does not fail.
#[test]
fn a_setattr_without_a_field_takes_set_id_bits() {
    const OWNER: u32 = 1000;
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let (from, from_fh) = create(&mut kernel, ROOT, "from");
    write(&mut kernel, from, from_fh, b"some bytes").expect("written");
    let set = |valid: u32, size: u64, mode: u32, owner: u32| {
        let mut set = Bytes::new();
        set.u32(valid).u32(0).u64(fh).u64(size).raw(&[0; 44]);
        set.u32(mode).u32(0).u32(owner).u32(owner).u32(0);
        set.0
    };
    let (none, owned, chmod) = (set(0, 0, 0, 0), set(6, 0, 0, OWNER), set(1, 0, 0o6777, 0));
    let (mut reserve, mut copy) = (Bytes::new(), Bytes::new());
    reserve.u64(fh).u64(0).u64(4096).u32(0).u32(0);
    copy.u64(from_fh).u64(0).u64(id).u64(fh).u64(0).u64(5).u64(0);
    // By path: the size, and with it the flag of who lacks the capability.
    let (kept, cut) = (set(1 << 3, 3, 0, 0), set(1 << 3 | 1 << 11, 3, 0, 0));
    for (line, opcode, args, uid, after) in [
        (1, SETATTR, &none, OWNER, 0o777),
        (2, SETATTR, &none, 0, 0o777),
        (3, SETATTR, &none, 1001, 0o6777),
        (4, FALLOCATE, &reserve.0, 0, 0o6777),
        (5, FALLOCATE, &reserve.0, 1001, 0o777),
        (6, COPY_FILE_RANGE, &copy.0, 0, 0o6777),
        (7, COPY_FILE_RANGE, &copy.0, 1001, 0o777),
        (8, SETATTR, &kept, 0, 0o6777),
        (9, SETATTR, &cut, 0, 0o777),
    ] {
        kernel.uid = 0;
        kernel.ask(SETATTR, id, &owned).expect("chown");
        kernel.ask(SETATTR, id, &chmod).expect("chmod");
        kernel.uid = uid;
        kernel.ask(opcode, id, args).expect("done");
        let body = kernel.ask(GETATTR, id, &[0; 16]).expect("attributes");
        assert_eq!(Fields(&body[16 + 60..]).u32(), 0o100_000 | after, "line {line}");
    }
}

/// What open_by_handle_at(2) asks for: `.` in what the kernel has forgotten, and `..`.
#[test]
fn a_forgotten_inode_is_found_by_its_node_id_until_it_is_removed() {
    let mut kernel = Kernel::new();
    let mut args = Bytes::new();
    args.u32(0o40755).u32(0o022).name("d");
    let body = kernel.ask(MKDIR, ROOT, &args.0).expect("made");
    let (dir, generation) = (Fields(&body).u64(), Fields(&body).skip(8).u64());
    let (file, fh) = create(&mut kernel, dir, "a");
    kernel.ask(RELEASE, file, &[&fh.to_ne_bytes()[..], &[0; 16][..]].concat()).expect("closed");
    for id in [file, dir] {
        forget(&mut kernel, id, 1);
    }
    assert_eq!(kernel.ask(GETATTR, file, &[0; 16]), Err(Errno::ESTALE));
    for id in [file, dir] {
        let body = lookup(&mut kernel, id, ".").expect("found");
        assert_eq!(Fields(&body).u64(), id);
        kernel.ask(GETATTR, id, &[0; 16]).expect("known again");
    }
    let body = lookup(&mut kernel, dir, ".").expect("again");
    assert_eq!((Fields(&body).u64(), Fields(&body).skip(8).u64()), (dir, generation));
    assert_eq!(Fields(&lookup(&mut kernel, dir, "..").expect("its parent")).u64(), ROOT);
    let body = lookup(&mut kernel, dir, "a").expect("by its name");
    assert_eq!(Fields(&body).u64(), file, "one inode has one id");
    forget(&mut kernel, file, 2);
    let mut args = Bytes::new();
    args.name("a");
    kernel.ask(UNLINK, dir, &args.0).expect("removed");
    assert_eq!(lookup(&mut kernel, file, "."), Err(Errno::ESTALE));
    // Numbers that were made up, of nothing and of what the front end keeps for itself.
    for id in [file + 1000, u64::MAX, 1 << 47, 77] {
        assert_eq!(lookup(&mut kernel, id, "."), Err(Errno::ESTALE), "{id}");
    }
    assert_eq!(lookup(&mut kernel, SLOT_DIR, "."), Err(Errno::ESTALE));
}

/// FALLOCATE comes without a word on set-id bits, and WRITE with no word on groups.
#[test]
fn who_is_no_member_leaves_no_set_gid_bit_behind() {
    const KILL_SUIDGID: u32 = 4;
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let mut set_id = Bytes::new();
    set_id.u32(1).raw(&[0; 64]).u32(0o6666).raw(&[0; 16]);
    let (mut reserve, mut punch) = (Bytes::new(), Bytes::new());
    reserve.u64(fh).u64(0).u64(4096).u32(0).u32(0);
    punch.u64(fh).u64(1 << 20).u64(4096).u32(3).u32(0);
    let written = write_args(fh, 0, b"x", KILL_SUIDGID, libc::O_RDWR);
    for (opcode, args) in [(FALLOCATE, &reserve.0), (FALLOCATE, &punch.0), (WRITE, &written)] {
        for (uid, after) in [(0, 0o106_666), (1000, 0o100_666)] {
            // The write says itself that it is not root's.
            if (opcode, uid) == (WRITE, 0) {
                continue;
            }
            kernel.uid = 0;
            kernel.ask(SETATTR, id, &set_id.0).expect("chmod");
            kernel.uid = uid;
            kernel.ask(opcode, id, args).expect("done");
            let body = kernel.ask(GETATTR, id, &[0; 16]).expect("attributes");
            assert_eq!(Fields(&body[16 + 60..]).u32(), after, "{opcode} by {uid}");
        }
    }
}

/// A process has sessions of several users, one after the other, and the last of them may not be
/// who writes: it made no session after it changed its user by itself.
#[test]
fn the_groups_of_a_writer_are_those_of_its_users_session() {
    const KILL_SUIDGID: u32 = 4;
    for (user, after) in [(1000, 0o102_666), (1001, 0o100_666), (0, 0o100_666)] {
        let mut kernel = Kernel::new();
        let (id, fh) = create(&mut kernel, ROOT, "a");
        let mut set_id = Bytes::new();
        set_id.u32(1).raw(&[0; 64]).u32(0o6666).raw(&[0; 16]);
        kernel.ask(SETATTR, id, &set_id.0).expect("chmod");
        let token = Token::random().expect("random bytes");
        let own = Numbers { pid: HOST_PID, thread: kernel.pid };
        let whose = (Uid(user), Arc::new([Gid(0)]) as Arc<[Gid]>);
        let _session = kernel.lane.slots.open_session(token, whose, own);
        kernel.uid = 1000;
        let written = write_args(fh, 0, b"x", KILL_SUIDGID, libc::O_RDWR);
        kernel.ask(WRITE, id, &written).expect("written");
        let body = kernel.ask(GETATTR, id, &[0; 16]).expect("attributes");
        assert_eq!(Fields(&body[16 + 60..]).u32(), after, "the session is {user}'s");
    }
}

#[test]
fn stores_through_mappings_never_grow_a_file_nor_append() {
    const WRITE_CACHE: u32 = 1;
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    write(&mut kernel, id, fh, b"0123456789").expect("written");
    let page = [b'x'; 4096];
    let args = write_args(fh, 4, &page, WRITE_CACHE, libc::O_RDWR | libc::O_APPEND);
    assert_eq!(Fields(&kernel.ask(WRITE, id, &args).expect("taken")).u32(), 4096);
    assert_eq!(read(&mut kernel, id, fh), Ok(b"0123xxxxxx".to_vec()));
    // F_SETFL(O_APPEND) shows in the flags of the next write, whose offset is the end then.
    let args = write_args(fh, 10, b"end", 0, libc::O_RDWR | libc::O_APPEND);
    kernel.ask(WRITE, id, &args).expect("appended");
    assert_eq!(read(&mut kernel, id, fh), Ok(b"0123xxxxxxend".to_vec()));
    // Another offset is meant (RWF_NOAPPEND).
    let args = write_args(fh, 0, b"START", 0, libc::O_RDWR | libc::O_APPEND);
    kernel.ask(WRITE, id, &args).expect("placed");
    assert_eq!(read(&mut kernel, id, fh), Ok(b"STARTxxxxxend".to_vec()));
    let args = write_args(fh, 0, b"start", 0, libc::O_RDWR);
    kernel.ask(WRITE, id, &args).expect("placed");
    assert_eq!(read(&mut kernel, id, fh), Ok(b"startxxxxxend".to_vec()));
    // A page placed through a handle that appends lands in its place all the same.
    let args = write_args(fh, 0, b"", 0, libc::O_RDWR | libc::O_APPEND);
    kernel.ask(WRITE, id, &args).expect("nothing written");
    kernel.ask(WRITE, id, &write_args(fh, 0, b"S", WRITE_CACHE, 0)).expect("placed");
    assert_eq!(read(&mut kernel, id, fh), Ok(b"Startxxxxxend".to_vec()));
}

fn lock_args(fh: u64, owner: u64, kind: i32) -> Vec<u8> {
    let mut args = Bytes::new();
    args.u64(fh).u64(owner).u64(0).u64(9).u32(kind as u32).u32(1).u32(0).u32(0);
    args.0
}

#[test]
fn a_waiting_lock_is_answered_by_who_makes_room() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 1, libc::F_WRLCK)), Ok(vec![]));
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 2, libc::F_RDLCK)), Err(Errno::EAGAIN));
    // More waiters than threads: none of them holds one.
    let waiting: Vec<u64> =
        (2..8).map(|owner| kernel.send(SETLKW, id, &lock_args(fh, owner, libc::F_RDLCK))).collect();
    assert!(kernel.receive(50).is_none());
    let unlock = kernel.send(SETLK, id, &lock_args(fh, 1, libc::F_UNLCK));
    let mut answered = Vec::new();
    for _ in 0..=waiting.len() {
        let message = kernel.receive(5000).expect("room was made");
        assert_eq!(message.error, 0);
        answered.push(message.unique);
    }
    answered.retain(|unique| *unique != unlock);
    answered.sort_unstable();
    assert_eq!(answered, waiting);
}

#[test]
fn a_waiting_lock_can_be_interrupted() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 1, libc::F_WRLCK)), Ok(vec![]));
    let waiting = kernel.send(SETLKW, id, &lock_args(fh, 2, libc::F_WRLCK));
    kernel.send(INTERRUPT, 0, &waiting.to_ne_bytes());
    let message = kernel.receive(5000).expect("interrupted");
    assert_eq!((message.unique, message.error), (waiting, -libc::EINTR));
    // The lock is not held by whom the interrupt struck.
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 1, libc::F_UNLCK)), Ok(vec![]));
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 3, libc::F_WRLCK)), Ok(vec![]));
}

#[test]
fn locks_go_with_the_handle() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let other = Fields(&kernel.ask(OPEN, id, &[2u8, 0, 0, 0, 0, 0, 0, 0]).expect("opened")).u64();
    // As F_OFD_SETLK does it: an owner that no FLUSH will name.
    assert_eq!(kernel.ask(SETLK, id, &lock_args(fh, 77, libc::F_WRLCK)), Ok(vec![]));
    assert_eq!(kernel.ask(SETLK, id, &lock_args(other, 78, libc::F_WRLCK)), Err(Errno::EAGAIN));
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u64(0);
    assert_eq!(kernel.ask(RELEASE, id, &args.0), Ok(vec![]));
    assert_eq!(kernel.ask(SETLK, id, &lock_args(other, 78, libc::F_WRLCK)), Ok(vec![]));
}

/// close(2) does not wait for RELEASE: who locked by the next descriptor meanwhile keeps that. A
/// process says by FLUSH that it closes one; an open file description may lie where one of before
/// lay, and then has its number.
#[test]
fn a_late_release_takes_no_lock_that_was_made_after_the_close() {
    let mut kernel = Kernel::new();
    let (id, other) = create(&mut kernel, ROOT, "a");
    let ended = |fh: u64, owner: u64| [fh, 0, owner].map(u64::to_ne_bytes).concat();
    for is_process in [true, false] {
        let [first, second] = [(); 2].map(|()| {
            Fields(&kernel.ask(OPEN, id, &[2u8, 0, 0, 0, 0, 0, 0, 0]).expect("opened")).u64()
        });
        assert_eq!(kernel.ask(SETLK, id, &lock_args(first, 77, libc::F_WRLCK)), Ok(vec![]));
        if is_process {
            assert_eq!(kernel.ask(FLUSH, id, &ended(first, 77)), Ok(vec![]));
        }
        assert_eq!(kernel.ask(SETLK, id, &lock_args(second, 77, libc::F_WRLCK)), Ok(vec![]));
        assert_eq!(kernel.ask(RELEASE, id, &ended(first, 0)), Ok(vec![]));
        let answer = kernel.ask(SETLK, id, &lock_args(other, 78, libc::F_WRLCK));
        assert_eq!(answer, Err(Errno::EAGAIN), "{is_process}");
        assert_eq!(kernel.ask(RELEASE, id, &ended(second, 0)), Ok(vec![]));
        assert_eq!(kernel.ask(SETLK, id, &lock_args(other, 78, libc::F_WRLCK)), Ok(vec![]));
        assert_eq!(kernel.ask(SETLK, id, &lock_args(other, 78, libc::F_UNLCK)), Ok(vec![]));
    }
}

fn slot_name(token: Token, number: u32) -> Vec<u8> {
    let mut args = Bytes::new();
    args.u32((libc::O_RDWR | libc::O_CREAT) as u32).u32(0o100600).u32(0).u32(0);
    args.name(&format!("{token}-{number}"));
    args.0
}

/// What is created of a name of one use: the kernel is told to drop that.
fn created_once(kernel: &mut Kernel, args: &[u8]) -> (u64, u64) {
    let unique = kernel.send(CREATE, SLOT_DIR, args);
    let messages: Vec<_> = (0..2).map(|_| kernel.receive(5000).expect("a message")).collect();
    let is_notice = |m: &&kernel::Message| (m.unique, m.error) == (0, INVAL_ENTRY);
    assert_eq!(messages.iter().filter(is_notice).count(), 1);
    let reply = messages.into_iter().find(|m| m.unique == unique).expect("a reply");
    assert_eq!(reply.error, 0);
    created(Ok(reply.body))
}

fn open_file(kernel: &Kernel, name: &str, flags: i32) -> Arc<OpenFile> {
    let vfs = &kernel.lane.vfs;
    vfs.open_path(&OpCtx::service(), &vfs.root(), name.as_bytes(), flags, 0o644, 0).expect("opened")
}

fn session(kernel: &Kernel) -> Arc<polylane_front::lane::slots::SessionSlots> {
    let groups: Arc<[Gid]> = Arc::new([]);
    let own = Numbers { pid: HOST_PID, thread: kernel.pid };
    kernel.lane.slots.open_session(Token::random().expect("random bytes"), (Uid(0), groups), own)
}

#[test]
fn a_slot_acts_on_what_is_bound() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (slot, fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 3)));
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 3)), Err(Errno::EEXIST));
    assert_eq!(read(&mut kernel, slot, fh), Err(Errno::EBADF));
    assert_eq!(size_of(&mut kernel, slot), 0);

    let a = open_file(&kernel, "a", libc::O_RDWR | libc::O_CREAT);
    let read_only = open_file(&kernel, "a", libc::O_RDONLY);
    assert_eq!(session.bind(3, read_only), Err(Errno::EINVAL), "modes differ");
    assert_eq!(session.bind(4, a.clone()), Err(Errno::EBUSY), "no such slot");
    session.bind(3, a.clone()).expect("bound");
    assert_eq!(session.bind(3, a.clone()), Err(Errno::EBUSY));
    write(&mut kernel, slot, fh, b"through the slot").expect("written");
    assert_eq!(size_of(&mut kernel, slot), 16);

    assert_eq!(session.unbind(3), Ok(Unbound::Free));
    assert_eq!(read(&mut kernel, slot, fh), Err(Errno::EBADF));
    session.bind(3, open_file(&kernel, "b", libc::O_RDWR | libc::O_CREAT)).expect("bound again");
    assert_eq!(read(&mut kernel, slot, fh), Ok(vec![]));
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Requests that tell something of what a slot is bound to, or change it.
const ABOUT_A_SLOT: [fn(&mut Kernel, u64, u64); 5] = [
    |kernel, slot, _| _ = size_of(kernel, slot),
    |kernel, slot, fh| drop(read(kernel, slot, fh)),
    |kernel, slot, fh| drop(write(kernel, slot, fh, b"by another")),
    |kernel, slot, fh| drop(kernel.ask(FSYNC, slot, &words(&[fh, 0]))),
    |kernel, slot, _| drop(kernel.ask(LISTXATTR, slot, &words(&[0]))),
];

/// The process that asks, as the service sees it.
const HOST_PID: u32 = 70_000;

/// Knows that the process has so many threads beside the first.
struct Threads(Range<u32>);

impl Witness for Threads {
    fn look(&self, client: Client<'_>) -> Result<Looks, Refusal> {
        let looks = Looks { number: PID, standing: Standing::AtHome };
        (client.pid == HOST_PID).then_some(looks).ok_or(Refusal::Unknown)
    }

    fn home(&self) -> Option<Arc<Notice>> {
        None
    }

    fn attach(&self, _: Client<'_>, _: BorrowedFd<'_>) -> Result<Seen, Refusal> {
        Err(Refusal::Unknown)
    }

    fn close(&self, _: OwnedFd) -> Result<(), OwnedFd> {
        Ok(())
    }

    fn has_thread(&self, pid: u32, thread: u32) -> bool {
        pid == HOST_PID && self.0.contains(&thread)
    }

    fn identity(&self, _: BorrowedFd<'_>) -> polylane_base::Result<Option<Identity>> {
        Ok(None)
    }
}

#[test]
fn what_another_process_was_told_of_a_slot_stays_true() {
    for (n, ask) in ABOUT_A_SLOT.into_iter().enumerate() {
        for (who, stays) in [(1, true), (0, true), (HOST_PID, true), (PID + 3, false)] {
            for bound in [true, false] {
                let mut kernel = Kernel::new();
                kernel.lane.slots.set_witness(Arc::new(Threads(PID + 1..PID + 5)));
                let session = session(&kernel);
                let made = kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0));
                let (slot, fh) = created(made);
                if bound {
                    session.bind(0, open_file(&kernel, "a", libc::O_RDWR | libc::O_CREAT)).unwrap();
                }
                kernel.pid = who;
                // Once more: what was known of a thread is remembered for a while.
                (0..2).for_each(|_| ask(&mut kernel, slot, fh));
                kernel.pid = PID;
                if bound {
                    let unbound = if stays { Unbound::Escaped } else { Unbound::Free };
                    assert_eq!(session.unbind(0), Ok(unbound), "request {n} by {who}");
                }
                let again = open_file(&kernel, "b", libc::O_RDWR | libc::O_CREAT);
                let expected = if stays { Err(Errno::EBUSY) } else { Ok(()) };
                assert_eq!(session.bind(0, again), expected, "request {n} by {who}, {bound}");
            }
        }
    }
}

#[test]
fn who_makes_a_slot_for_another_process_has_it() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    kernel.pid = 1;
    created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    let file = open_file(&kernel, "a", libc::O_RDWR | libc::O_CREAT);
    assert_eq!(session.bind(0, file), Err(Errno::EBUSY));
}

#[test]
fn slots_are_made_by_who_knows_the_token() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let stranger = Token::random().expect("random bytes");
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &slot_name(stranger, 0)), Err(Errno::EACCES));
    let many = slot_name(session.token(), 65_536);
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &many), Err(Errno::EMFILE));
    kernel.lane.slots.drop_session(&session);
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)), Err(Errno::EACCES));
}

#[test]
fn an_appending_binding_ignores_the_kernels_offset() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (slot, fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    let file = open_file(&kernel, "log", libc::O_RDWR | libc::O_CREAT | libc::O_APPEND);
    session.bind(0, file).expect("bound");
    write(&mut kernel, slot, fh, b"one ").expect("written");
    write(&mut kernel, slot, fh, b"two").expect("written");
    assert_eq!(read(&mut kernel, slot, fh), Ok(b"one two".to_vec()));
}

#[test]
fn an_escaped_slot_keeps_its_file_until_the_kernel_lets_go() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (slot, fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    let file = open_file(&kernel, "a", libc::O_RDWR | libc::O_CREAT);
    session.bind(0, file).expect("bound");
    write(&mut kernel, slot, fh, b"kept").expect("written");
    session.share_all();
    assert_eq!(session.unbind(0), Ok(Unbound::Escaped));
    kernel.lane.slots.drop_session(&session);
    drop(session);
    assert_eq!(read(&mut kernel, slot, fh), Ok(b"kept".to_vec()));
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u64(0);
    // The kernel is told to let go of the name.
    let unique = kernel.send(RELEASE, slot, &args.0);
    let mut messages = [kernel.receive(5000).expect("one"), kernel.receive(5000).expect("two")];
    messages.sort_by_key(|message| message.unique);
    assert_eq!((messages[0].error, messages[1].unique), (INVAL_ENTRY, unique));
    assert_eq!(Fields(&messages[0].body).u64(), SLOT_DIR);
    assert_eq!(size_of(&mut kernel, slot), 0);
    forget(&mut kernel, slot, 1);
    assert_eq!(kernel.ask(GETATTR, slot, &[0; 16]), Err(Errno::ESTALE));
}

#[test]
fn a_second_open_of_a_slot_opens_the_file_anew_and_makes_it_escape() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (slot, fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    session.bind(0, open_file(&kernel, "a", libc::O_RDWR | libc::O_CREAT)).expect("bound");
    write(&mut kernel, slot, fh, b"data").expect("written");
    let open = [0; 8];
    assert_eq!(kernel.ask(OPEN, slot, &open), Err(Errno::ESTALE), "check the permissions again");
    let second = Fields(&kernel.ask(OPEN, slot, &open).expect("opened")).u64();
    assert_eq!(session.unbind(0), Ok(Unbound::Escaped));
    // The first handle goes; the second one and the node still mean the file.
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u64(0);
    kernel.ask(RELEASE, slot, &args.0).expect("released");
    assert_eq!(read(&mut kernel, slot, second), Ok(b"data".to_vec()));
    assert_eq!(size_of(&mut kernel, slot), 4);
}

#[test]
fn the_owner_of_a_bound_file_decides_not_the_owner_the_kernel_remembers() {
    let mut kernel = Kernel::new();
    kernel.uid = 1000;
    let session = session(&kernel);
    let (slot, _) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    session.bind(0, open_file(&kernel, "roots", libc::O_RDWR | libc::O_CREAT)).expect("bound");
    let mut chmod = Bytes::new();
    chmod.u32(1).raw(&[0; 64]).u32(0o4777).raw(&[0; 16]);
    assert_eq!(kernel.ask(SETATTR, slot, &chmod.0), Err(Errno::EPERM));
    // A size by path, too, needs the right to write.
    let mut truncate = Bytes::new();
    truncate.u32(8).raw(&[0; 84]);
    assert_eq!(kernel.ask(SETATTR, slot, &truncate.0), Err(Errno::EACCES));
}

#[test]
fn pages_under_other_nodes_are_dropped_before_and_after() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let (slot, slot_fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    session.bind(0, open_file(&kernel, "a", libc::O_RDWR)).expect("bound");

    // As long as nobody maps the file there is nothing to drop; but the kernel has it open, and is
    // told how long it is, by a message that no socket takes.
    write(&mut kernel, slot, slot_fh, b"12345678").expect("written");
    assert_eq!(kernel.lane.nodes.size_of(id), Some(8));
    write(&mut kernel, slot, slot_fh, b"1234567").expect("no longer than it was");
    assert_eq!(read(&mut kernel, id, fh), Ok(b"12345678".to_vec()));
    assert_eq!(read_page(&mut kernel, id, fh), Ok(b"12345678".to_vec()));
    // Now there is, of the file's own node too: the kernel dropped its pages before it asked for
    // the write, and may have filled some since.
    let unique = kernel.send(WRITE, id, &write_args(fh, 0, b"12345678", 0, libc::O_RDWR));
    let messages: Vec<_> = (0..2).map(|_| kernel.receive(5000).expect("a message")).collect();
    assert_eq!(messages.iter().map(|m| m.unique).collect::<Vec<_>>(), [0, unique]);
    // So for reads through the slot's.
    let unique = kernel.send(READ, slot, &read_args(slot_fh, 2, 4));
    let first = kernel.receive(5000).expect("a notification");
    assert_eq!((first.unique, first.error), (0, INVAL_INODE));
    let mut fields = Fields(&first.body);
    assert_eq!((fields.u64(), fields.u64(), fields.u64()), (id, 2, 4));
    let reply = kernel.receive(5000).expect("the reply");
    assert_eq!((reply.unique, reply.body.as_slice()), (unique, b"3456".as_slice()));

    let unique = kernel.send(WRITE, slot, &write_args(slot_fh, 0, b"x", 0, libc::O_RDWR));
    let messages: Vec<_> = (0..3).map(|_| kernel.receive(5000).expect("a message")).collect();
    assert_eq!(messages.iter().map(|m| m.unique).collect::<Vec<_>>(), [0, 0, unique]);

    // From outside the kernel, as the fast lane does.
    let lane = kernel.lane.clone();
    let file = open_file(&kernel, "a", libc::O_RDONLY);
    let waiter = thread::spawn(move || lane.before_io(file.node(), notifier::Range::ALL));
    let message = kernel.receive(5000).expect("a notification");
    assert_eq!((message.unique, message.error), (0, INVAL_INODE));
    waiter.join().expect("waited");

    // Once nobody has it open through the kernel, nobody is told.
    let mut args = Bytes::new();
    args.u64(fh).u64(0).u64(0);
    kernel.ask(RELEASE, id, &args.0).expect("released");
    assert_eq!(kernel.ask(READ, slot, &read_args(slot_fh, 0, 2)), Ok(b"x2".to_vec()));
}

/// Before Linux 6.6.
#[test]
fn an_append_out_of_a_page_is_answered_before_that_page_is_dropped() {
    const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    const LOCKOWNER: u32 = 2;
    let flags = kernel::FLAGS & !DIRECT_IO_ALLOW_MMAP;
    let mut kernel = Kernel::with(Lane::new(kernel::vfs(), 0), 0, flags);
    let (id, fh) = create(&mut kernel, ROOT, "log");
    let append = libc::O_RDWR | libc::O_APPEND;
    let unique = kernel.send(WRITE, id, &write_args(fh, 0, b"by a page", 0, append));
    let order: Vec<_> = (0..2).map(|_| kernel.receive(5000).expect("a message").unique).collect();
    assert_eq!(order, [unique, 0]);
    // Whoever appends past the page cache has no page locked.
    let unique = kernel.send(WRITE, id, &write_args(fh, 9, b"past it", LOCKOWNER, append));
    let order: Vec<_> = (0..2).map(|_| kernel.receive(5000).expect("a message").unique).collect();
    assert_eq!(order, [0, unique]);
}

#[test]
fn a_mapped_slot_escapes_and_its_pages_count_too() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let (slot, slot_fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 0)));
    session.bind(0, open_file(&kernel, "a", libc::O_RDWR)).expect("bound");
    assert_eq!(read(&mut kernel, id, fh), Ok(vec![]));
    assert_eq!(read_page(&mut kernel, slot, slot_fh), Ok(vec![]));
    assert_eq!(session.unbind(0), Ok(Unbound::Escaped));
    assert_eq!(session.check_free(0), Err(Errno::EBUSY));
    let unique = kernel.send(READ, id, &read_args(fh, 0, 4));
    let first = kernel.receive(5000).expect("a notification");
    assert_eq!((first.unique, Fields(&first.body).u64()), (0, slot));
    assert_eq!(kernel.receive(5000).expect("the reply").unique, unique);
}

#[test]
fn a_ticket_stands_for_the_open_file() {
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let (slot, slot_fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 7)));
    let bound = open_file(&kernel, "a", libc::O_RDWR);
    session.bind(7, bound.clone()).expect("bound");
    let identify = |fh: u64, command: u32| {
        let mut args = Bytes::new();
        args.u64(fh).u32(0).u32(command).u64(0).u32(0).u32(16);
        args.0
    };
    let command = polylane_ipc::ioctl::IOCTL_IDENTIFY;
    let ticket = |body: Vec<u8>| -> [u8; 16] { body[16..].try_into().expect("sixteen bytes") };
    let plain = ticket(kernel.ask(IOCTL, id, &identify(fh, command)).expect("a ticket"));
    let slots = ticket(kernel.ask(IOCTL, slot, &identify(slot_fh, command)).expect("a ticket"));
    assert_eq!(kernel.ask(IOCTL, id, &identify(fh, command + 1)), Err(Errno::ENOTTY));

    let tickets = &kernel.lane.tickets;
    let redeemed = tickets.redeem(&plain).expect("good");
    assert_eq!((redeemed.slot, redeemed.file.node().kind() as u8), (None, 8));
    assert!(tickets.redeem(&plain).is_none(), "good once");
    let redeemed = tickets.redeem(&slots).expect("good");
    let (session, number) = (session.token(), 7);
    assert_eq!(
        redeemed.slot,
        Some(polylane_front::lane::tickets::TicketSlot { session, number, has_flags: false })
    );
    assert!(Arc::ptr_eq(&redeemed.file, &bound));
    assert!(tickets.redeem(&[0; 16]).is_none());
}

#[test]
fn an_open_file_gets_a_descriptor_of_its_own_node_once() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let file = open_file(&kernel, "a", libc::O_RDWR);
    let ticket = |kernel: &Kernel| {
        let ticket = polylane_front::lane::tickets::Ticket { file: file.clone(), slot: None };
        format!("x-{}", Token(kernel.lane.tickets.issue(&ticket).expect("a ticket")))
    };
    let open = |name: &str, flags: i32| {
        let mut args = Bytes::new();
        args.u32((flags | libc::O_CREAT) as u32).u32(0o100600).u32(0).u32(0).name(name);
        args.0
    };
    let name = ticket(&kernel);
    assert_eq!(lookup(&mut kernel, SLOT_DIR, &name), Err(Errno::ENOENT), "only opened");
    let (own, own_fh) = created_once(&mut kernel, &open(&name, libc::O_RDWR));
    assert_eq!((own, file.is_kernels()), (id, true));
    assert_ne!(own_fh, fh);
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &open(&name, libc::O_RDWR)), Err(Errno::EACCES));
    let name = ticket(&kernel);
    assert_eq!(kernel.ask(CREATE, SLOT_DIR, &open(&name, libc::O_RDONLY)), Err(Errno::EINVAL));
}

#[test]
fn the_own_node_of_a_slots_file_keeps_its_locks_when_the_slot_goes() {
    let mut kernel = Kernel::new();
    let (id, fh) = create(&mut kernel, ROOT, "a");
    let session = session(&kernel);
    let (slot, slot_fh) = created(kernel.ask(CREATE, SLOT_DIR, &slot_name(session.token(), 7)));
    let bound = open_file(&kernel, "a", libc::O_RDWR);
    session.bind(7, bound.clone()).expect("bound");
    let set = |fh: u64, owner: u64, kind: i32| {
        let mut args = Bytes::new();
        args.u64(fh).u64(owner).u64(0).u64(9).u32(kind as u32).u32(1).u32(0).u32(0);
        args.0
    };
    kernel.ask(SETLK, slot, &set(slot_fh, 5, libc::F_WRLCK)).expect("locked");
    let ticket = polylane_front::lane::tickets::Ticket { file: bound, slot: None };
    let key = kernel.lane.tickets.issue(&ticket).expect("a ticket");
    drop(ticket);
    let mut args = Bytes::new();
    args.u32((libc::O_RDWR | libc::O_CREAT) as u32).u32(0o100600).u32(0).u32(0);
    args.name(&format!("x-{}", Token(key)));
    let (_, own_fh) = created_once(&mut kernel, &args.0);
    let release = |fh: u64| {
        let mut args = Bytes::new();
        args.u64(fh).u32(0).u32(0).u64(0);
        args.0
    };
    let unique = kernel.send(RELEASE, slot, &release(slot_fh));
    // The slot's name goes, too.
    let mut messages: Vec<_> = (0..2).map(|_| kernel.receive(5000).expect("a message")).collect();
    messages.sort_by_key(|message| message.unique);
    let found: Vec<_> = messages.iter().map(|m| (m.unique, m.error)).collect();
    assert_eq!(found, [(0, INVAL_ENTRY), (unique, 0)]);
    let other = set(fh, 6, libc::F_WRLCK);
    assert_eq!(kernel.ask(SETLK, id, &other), Err(Errno::EAGAIN), "held by the open file");
    kernel.ask(RELEASE, id, &release(own_fh)).expect("released");
    kernel.ask(SETLK, id, &other).expect("free");
}

#[test]
fn extended_attributes_answer_by_size() {
    let mut kernel = Kernel::new();
    let (id, _) = create(&mut kernel, ROOT, "a");
    let mut set = Bytes::new();
    set.u32(5).u32(0).u64(0).name("user.k").raw(b"value");
    assert_eq!(kernel.ask(SETXATTR, id, &set.0), Ok(vec![]));
    let get = |size: u32, name: &str| {
        let mut args = Bytes::new();
        args.u32(size).u32(0).name(name);
        args.0
    };
    let body = kernel.ask(GETXATTR, id, &get(0, "user.k")).expect("the size");
    assert_eq!(body, [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kernel.ask(GETXATTR, id, &get(4, "user.k")), Err(Errno::ERANGE));
    assert_eq!(kernel.ask(GETXATTR, id, &get(5, "user.k")), Ok(b"value".to_vec()));
    let acl = get(64, "system.posix_acl_access");
    assert_eq!(kernel.ask(GETXATTR, id, &acl), Err(Errno::EOPNOTSUPP));
}

/// The kernel says whether the set-gid bit goes, and asks for lists of whatever it checks.
#[test]
fn lists_are_kept_where_the_kernel_minds_them() {
    let mut kernel = Kernel::new();
    kernel.ask(INIT, 0, &init_with_all()).expect("agreed");
    let (id, _) = create(&mut kernel, ROOT, "a");
    let vfs = &kernel.lane.vfs;
    let node = vfs.resolve(&OpCtx::service(), &vfs.root(), b"a", true).expect("made");
    let perm =
        |kernel: &Kernel| kernel.lane.vfs.getattr(&OpCtx::service(), &node).expect("known").perm;
    let set = |set: SetAttr| kernel.lane.vfs.setattr(&OpCtx::service(), &node, &set).expect("set");
    set(SetAttr { gid: Some(Gid(5)), ..SetAttr::default() });
    set(SetAttr { perm: Some(0o2600), ..SetAttr::default() });
    let list = polylane_testkit::acl::naming_one(6);
    let name = "system.posix_acl_access";
    let set = |how: u32| {
        let mut args = Bytes::new();
        args.u32(list.len() as u32).u32(0).u32(how).u32(0).name(name).raw(&list);
        args.0
    };
    let mut get = Bytes::new();
    get.u32(64).u32(0).name(name);
    assert_eq!(kernel.ask(GETXATTR, id, &get.0), Err(Errno::ENODATA));
    assert_eq!(kernel.ask(SETXATTR, id, &set(0)), Ok(vec![]));
    assert_eq!(perm(&kernel), 0o2666);
    assert_eq!(kernel.ask(SETXATTR, id, &set(1)), Ok(vec![]));
    assert_eq!(perm(&kernel), 0o666);
    assert_eq!(kernel.ask(GETXATTR, id, &get.0), Ok(list.clone()));
    assert_eq!(kernel.ask(GETXATTR, SLOT_DIR, &get.0), Err(Errno::ENODATA));
}

#[test]
fn the_next_incarnation_goes_on_by_path() {
    let mut kernel = Kernel::new();
    let (id, _) = create(&mut kernel, ROOT, "a");
    let vfs = kernel.lane.vfs.clone();
    assert_eq!(kernel.end(), polylane_front::fuse::Ended::Stopped);
    let mut kernel = Kernel::on(polylane_front::Lane::new(vfs, 1), 1);
    assert_eq!(kernel.ask(GETATTR, id, &[0; 16]), Err(Errno::ESTALE));
    let new = Fields(&lookup(&mut kernel, ROOT, "a").expect("found")).u64();
    assert_eq!(new >> 48, 1);
    assert_eq!(size_of(&mut kernel, new), 0);
}

/// Hostile or broken messages: the session answers each at most once, and goes on.
#[test]
fn random_messages_do_no_harm() {
    let mut rng = Rng::new(7);
    let mut kernel = Kernel::new();
    let session = session(&kernel);
    let (id, fh) = create(&mut kernel, ROOT, "a");
    for round in 0..20_000u64 {
        let mut args: Vec<u8> = (0..rng.below(120)).map(|_| rng.next_u64() as u8).collect();
        // Now and then something that gets further: numbers that mean something, a slot's name.
        if rng.percent(50) && args.len() >= 8 {
            let number = *rng.pick(&[fh, id, 0, 1, u64::MAX]);
            args[..8].copy_from_slice(&number.to_ne_bytes());
        }
        if rng.percent(5) {
            args = slot_name(session.token(), rng.below(9) as u32);
        }
        let opcode = match rng.below(60) as u32 {
            26 => continue, // a second INIT could agree on other flags; it has its own test
            opcode => opcode,
        };
        let node = *rng.pick(&[ROOT, id, 2, SLOT_DIR, id + 1, rng.clone().next_u64()]);
        let extensions = if rng.percent(5) { rng.below(20) as u32 } else { 0 };
        let length = if rng.percent(2) { 39 } else { 40 + args.len() as u32 };
        let mut message = Bytes::new();
        message.u32(length).u32(opcode).u64(round | 1 << 32).u64(node).u32(0).u32(0).u32(1);
        message.u32(extensions).raw(&args);
        if rng.percent(2) {
            message.0.truncate(1 + rng.below(39) as usize);
        }
        kernel.send_raw(&message.0);
        while kernel.receive(0).is_some() {}
    }
    while kernel.receive(200).is_some() {}
    assert_eq!(kernel.ask(GETATTR, ROOT, &[0; 16]).map(|body| body.len()), Ok(104));
    write(&mut kernel, id, fh, b"").unwrap_or_default();
}
