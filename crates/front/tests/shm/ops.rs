//! Every operation of the fast lane against a memory file system, through a real socket and
//! channel.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_base::{Errno, TestClock};
use polylane_front::lane::slots::Token;
use polylane_front::lane::tickets::Ticket;
use polylane_front::shm::Config;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{
    EXPOSED_MAX, LISTED, LockFlags, MAY_BE_DIR, MAY_REST, Message, NO_SLOT, Op, SetWhat,
};
use polylane_testkit::fault::{Call as FsCall, Faulty};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Character, FileSystem};
use polylane_vfs::memfs::MemFs;

use crate::shm_kit::{
    Client, House, USE_KERNEL, count, lane_of, lock_message, make_slot, wait_for,
};

#[test]
fn ping() {
    let house = House::new();
    let client = house.client();
    for _ in 0..1000 {
        client.call(&Message::new(Op::Ping)).unwrap();
    }
    assert_eq!(house.server.totals().requests(), 1000);
}

#[test]
fn open_write_read_close() {
    let house = House::new();
    let client = house.client();
    let (handle, attr) = client.open("/file", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).unwrap();
    assert_eq!((attr.size, attr.mode), (0, libc::S_IFREG | 0o644));
    assert_eq!(client.open("/file", libc::O_CREAT | libc::O_EXCL), Err(Errno::EEXIST));
    assert_eq!(client.write(handle, 3, b"hello"), Ok(5));
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"\0\0\0hello");
    assert_eq!(client.read(handle, 4, 2).unwrap(), b"el");
    assert_eq!(client.read(handle, 8, 10).unwrap(), b"");
    let fstat = client.call(&Message { handle, ..Message::new(Op::Fstat) }).unwrap();
    assert_eq!(fstat.attr.unwrap().size, 8);
    client.close(handle).unwrap();
    assert_eq!(client.close(handle), Err(Errno::EBADF));
    assert_eq!(client.read(handle, 0, 1), Err(Errno::EBADF));
    let (_, attr) = client.open("/file", libc::O_TRUNC | libc::O_WRONLY).unwrap();
    assert_eq!(attr.size, 0);
}

#[test]
fn large_transfers_are_right_in_every_byte() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("big");
    let buffer = client.channel.buffer_bytes();
    let data: Vec<u8> = (0..3 * buffer).map(|at| (at * 31 % 251) as u8).collect();
    for size in [1, 4095, 4096, 65_536, buffer - 1, buffer] {
        let mut done = 0;
        while done < data.len() {
            let piece = &data[done..(done + size.max(65_536).min(buffer)).min(data.len())];
            let wrote = client.write(handle, done as u64, piece).unwrap();
            assert!(wrote > 0);
            done += wrote;
        }
        for start in [0, 1, 4097, buffer] {
            let seen = client.read(handle, start as u64, size).unwrap();
            assert_eq!(seen, data[start..start + size], "{size} at {start}");
        }
    }
}

#[test]
fn access_modes_and_append() {
    let house = House::new();
    let client = house.client();
    let writer = client.open("f", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND).unwrap().0;
    assert_eq!(client.write(writer, 0, b"one"), Ok(3));
    let mut message = Message { handle: writer, length: 3, ..Message::new(Op::Write) };
    message.offset = 1;
    client.channel.payload_put(client.mailbox, 0, b"two");
    let reply = client.channel.call_write(client.mailbox, &message, (0, b"two"), false, &Trusting);
    assert_eq!(reply.unwrap().value[0], 6, "an append ends at the end");
    assert_eq!(client.read(writer, 0, 3), Err(Errno::EBADF));
    let reader = client.open("f", libc::O_RDONLY).unwrap().0;
    assert_eq!(client.read(reader, 0, 9).unwrap(), b"onetwo");
    assert_eq!(client.write(reader, 0, b"x"), Err(Errno::EBADF));
    client.call(&Message { handle: writer, flags: 0, ..Message::new(Op::SetFlags) }).unwrap();
    assert_eq!(client.write(writer, 0, b"X"), Ok(1));
    assert_eq!(client.read(reader, 0, 9).unwrap(), b"Xnetwo");
}

#[test]
fn an_append_whose_sync_finds_no_room_is_done_once() {
    let fs = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
    let fs = Faulty::with_character(fs.clone(), Character { cache_data: true, ..fs.character() });
    let house = House::over(lane_of(fs.clone()), Config::default());
    let client = house.client();
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC;
    let handle = client.open("log", flags).unwrap().0;
    // So many that a worker syncs what it wrote itself.
    for _ in 0..200 {
        assert_eq!(client.write(handle, 0, b"x"), Ok(1));
    }
    fs.fail_once(FsCall::Sync, 0, Errno::ENOSPC);
    assert_eq!(client.write(handle, 0, b"x"), Err(Errno::ENOSPC));
    assert_eq!(client.stat("log").unwrap().size, 201);
}

#[test]
fn what_the_kernel_must_open() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "dir").unwrap();
    assert_eq!(client.open("dir", libc::O_RDONLY), Err(USE_KERNEL));
    assert_eq!(client.open("dir", libc::O_RDONLY | libc::O_DIRECTORY), Err(USE_KERNEL));
    let mut fifo = Message { mode: libc::S_IFIFO | 0o600, ..Message::new(Op::Mknod) };
    client.call_at(fifo, b"fifo", b"").unwrap();
    assert_eq!(client.open("fifo", libc::O_RDONLY), Err(USE_KERNEL));
    fifo.mode = libc::S_IFDIR;
    assert_eq!(client.call_at(fifo, b"no", b""), Err(Errno::EPERM));
    client.create("file");
    assert_eq!(client.open("file", libc::O_PATH), Err(USE_KERNEL));
    client.call_at(Message::new(Op::Symlink), b"/etc/passwd", b"out").unwrap();
    assert_eq!(client.open("out", libc::O_RDONLY), Err(USE_KERNEL));
    assert_eq!(client.open("out", libc::O_RDONLY | libc::O_NOFOLLOW), Err(Errno::ELOOP));
    client.call_at(Message::new(Op::Symlink), b"/lane/file", b"in").unwrap();
    assert!(client.open("in", libc::O_RDONLY).is_ok());
    assert_eq!(client.stat("../x"), Err(USE_KERNEL));
    assert_eq!(client.stat(".polylane/socket"), Err(USE_KERNEL));
    assert_eq!(client.op_at(Op::Mkdir, ".polylane-slots"), Err(USE_KERNEL));
    assert!(client.op_at(Op::Mkdir, "dir/.polylane-slots").is_ok());
}

#[test]
fn a_directory_is_opened_for_who_has_the_kernels_descriptor() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "dir").unwrap();
    client.create("dir/file");
    let open = |path: &str, flags: i32, wish: u64| {
        let arg = [NO_SLOT, 0, wish, 0];
        let message = Message { flags: flags as u32, arg, ..Message::new(Op::Open) };
        client.call_at(message, path.as_bytes(), b"")
    };
    for flags in [libc::O_RDONLY, libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK] {
        let reply = open("dir", flags, MAY_REST | MAY_BE_DIR).unwrap();
        assert_eq!(reply.attr, Some(client.stat("dir").unwrap()), "{flags:o}");
        let handle = reply.handle;
        client.call(&Message { handle, ..Message::new(Op::Fsync) }).unwrap();
        let list = Message { handle, length: 1000, ..Message::new(Op::Readdir) };
        assert!(count(&client.call(&list).unwrap()) > 0);
        let at = Message { dir: handle, ..Message::new(Op::Stat) };
        assert!(client.call_at(at, b"file", b"").is_ok());
        client.close(handle).unwrap();
        assert_eq!(client.close(handle), Err(Errno::EBADF));
    }
    // A file is what it was.
    let file = open("dir/file", libc::O_RDONLY, MAY_BE_DIR).unwrap();
    assert_eq!(file.attr, None);
    client.close(file.handle).unwrap();
    assert_eq!(open("dir/file", libc::O_DIRECTORY, MAY_BE_DIR), Err(Errno::ENOTDIR));
    assert_eq!(open("none", libc::O_DIRECTORY, MAY_BE_DIR), Err(Errno::ENOENT));
    assert_eq!(open("dir", libc::O_RDWR, MAY_BE_DIR), Err(Errno::EISDIR));
    for flags in [libc::O_PATH, libc::O_TMPFILE | libc::O_RDONLY, libc::O_APPEND] {
        assert!(open("dir", flags | libc::O_DIRECTORY, MAY_BE_DIR).is_err(), "{flags:o}");
    }
    assert_eq!(open(".polylane", libc::O_DIRECTORY, MAY_BE_DIR), Err(USE_KERNEL));
}

#[test]
fn an_unnamed_file_gets_a_name() {
    let house = House::new();
    let client = house.client();
    let (handle, attr) = client.open(".", libc::O_TMPFILE | libc::O_RDWR).unwrap();
    assert_eq!(attr.nlink, 0);
    client.write(handle, 0, b"late").unwrap();
    let mut link = Message { flags: libc::AT_EMPTY_PATH as u32, ..Message::new(Op::Link) };
    link.dir = handle;
    let linked = client.call_at(link, b"", b"named");
    if rustix::process::geteuid().is_root() {
        linked.unwrap();
        assert_eq!(client.stat("named").unwrap().size, 4);
    } else {
        assert_eq!(linked, Err(Errno::ENOENT));
    }
}

#[test]
fn names_come_and_go() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    assert_eq!(client.op_at(Op::Mkdir, "d"), Err(Errno::EEXIST));
    client.create("d/a");
    client.call_at(Message::new(Op::Link), b"d/a", b"d/b").unwrap();
    assert_eq!(client.stat("d/a").unwrap().nlink, 2);
    client.call_at(Message::new(Op::Rename), b"d/b", b"c").unwrap();
    assert_eq!(client.stat("d/b"), Err(Errno::ENOENT));
    let no_replace = Message { flags: libc::RENAME_NOREPLACE, ..Message::new(Op::Rename) };
    assert_eq!(client.call_at(no_replace, b"d/a", b"c"), Err(Errno::EEXIST));
    assert_eq!(client.call_at(Message::new(Op::Rename), b"c/", b"e"), Err(Errno::ENOTDIR));
    assert_eq!(client.op_at(Op::Unlink, "c/"), Err(Errno::ENOTDIR));
    assert_eq!(client.op_at(Op::Unlink, "d/"), Err(Errno::EISDIR));
    assert_eq!(client.op_at(Op::Unlink, "d"), Err(Errno::EISDIR));
    let rmdir = Message { flags: libc::AT_REMOVEDIR as u32, ..Message::new(Op::Unlink) };
    assert_eq!(client.call_at(rmdir, b"d", b""), Err(Errno::ENOTEMPTY));
    client.op_at(Op::Unlink, "d/a").unwrap();
    client.call_at(rmdir, b"d/", b"").unwrap();
    client.call_at(Message::new(Op::Symlink), b"c", b"link").unwrap();
    let target = count(&client.op_at(Op::Readlink, "link").unwrap());
    assert_eq!(client.payload(target), b"c");
    assert_eq!(client.op_at(Op::Readlink, "c"), Err(Errno::EINVAL));
    let nofollow = Message { flags: libc::AT_SYMLINK_NOFOLLOW as u32, ..Message::new(Op::Stat) };
    let mode = client.call_at(nofollow, b"link", b"").unwrap().attr.unwrap().mode;
    assert_eq!(mode & libc::S_IFMT, libc::S_IFLNK);
    let new_name = Message { mode: 0o644, ..Message::new(Op::Mknod) };
    assert_eq!(client.call_at(new_name, b"new/", b""), Err(Errno::ENOENT));
}

#[test]
fn attributes_change() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    let mut change = Message { mode: 0o600, ..Message::new(Op::SetattrPath) };
    change.arg[0] = (SetWhat::PERM | SetWhat::MTIME).bits();
    change.time = [0, 0, 1234, 5678];
    let attr = client.call_at(change, b"f", b"").unwrap().attr.unwrap();
    assert_eq!((attr.mode & 0o7777, attr.sec[1], attr.nsec[1]), (0o600, 1234, 5678));
    let mut truncate = Message { handle, length: 77, ..Message::new(Op::SetattrHandle) };
    truncate.arg[0] = SetWhat::SIZE.bits();
    assert_eq!(client.call(&truncate).unwrap().attr.unwrap().size, 77);
    truncate.handle = client.open("f", libc::O_RDONLY).unwrap().0;
    assert_eq!(client.call(&truncate), Err(Errno::EINVAL));
    let access =
        |mask| client.call_at(Message { mode: mask, ..Message::new(Op::Access) }, b"f", b"");
    assert!(access(0).is_ok() && access(6).is_ok());
    assert_eq!(access(8), Err(Errno::EINVAL));
    assert_eq!(access(1), Err(Errno::EACCES));
    let statfs = client.call(&Message::new(Op::Statfs)).unwrap();
    assert!(statfs.value[1] > 0 && statfs.value[6] == 255);
}

#[test]
fn space_and_holes() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    client.write(handle, 1 << 20, b"end").unwrap();
    let seek = |flags: i32, offset| {
        let message = Message { handle, flags: flags as u32, offset, ..Message::new(Op::Seek) };
        client.call(&message).map(|reply| reply.value[0])
    };
    assert_eq!(seek(libc::SEEK_DATA, 0), Ok(1 << 20));
    assert_eq!(seek(libc::SEEK_HOLE, 0), Ok(0));
    assert_eq!(seek(libc::SEEK_DATA, 2 << 20), Err(Errno::ENXIO));
    assert_eq!(seek(libc::SEEK_SET, 0), Err(Errno::EINVAL));
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let mut message = Message { handle, flags: punch as u32, ..Message::new(Op::Fallocate) };
    (message.offset, message.length) = (1 << 20, 2);
    client.call(&message).unwrap();
    assert_eq!(client.read(handle, 1 << 20, 9).unwrap(), b"\0\0d");
    for op in [Op::Fsync, Op::Sync] {
        client.call(&Message { handle, ..Message::new(op) }).unwrap();
    }
    let to = client.create("copy");
    let mut copy =
        Message { handle, offset: (1 << 20) - 1, dir: to, ..Message::new(Op::CopyRange) };
    copy.length = u64::MAX;
    copy.arg[0] = 1;
    assert_eq!(count(&client.call(&copy).unwrap()), 4);
    assert_eq!(client.read(to, 0, 9).unwrap(), b"\0\0\0\0d");
}

#[test]
fn directories_list_and_start_paths() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    for number in 0..300 {
        client.create(&format!("d/file-{number}"));
    }
    let dir = client.op_at(Op::OpenDir, "d").unwrap().handle;
    let at_dir = Message { dir, ..Message::new(Op::Stat) };
    assert!(client.call_at(at_dir, b"file-7", b"").is_ok());
    let mut names = Vec::new();
    let mut list = Message { handle: dir, length: 1000, ..Message::new(Op::Readdir) };
    loop {
        let bytes = count(&client.call(&list).unwrap());
        if bytes == 0 {
            break;
        }
        list.offset = unpack(&client.payload(bytes), &mut names);
    }
    assert_eq!(names.len(), 302);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 302, "an entry came twice");
    list.length = 10;
    list.offset = 0;
    assert_eq!(client.call(&list), Err(Errno::EINVAL));
    let file = client.create("file");
    assert_eq!(client.call(&Message { handle: file, ..list }), Err(Errno::ENOTDIR));
    assert_eq!(client.call_at(Message { dir: file, ..at_dir }, b"x", b""), Err(Errno::ENOTDIR));
    assert_eq!(client.op_at(Op::OpenDir, "file"), Err(Errno::ENOTDIR));
    assert_eq!(client.read(dir, 0, 1), Err(Errno::EISDIR));
}

#[test]
fn a_directory_is_opened_with_its_first_entries() {
    let house = House::new();
    let client = house.client();
    client.op_at(Op::Mkdir, "d").unwrap();
    (0..300).for_each(|number| _ = client.create(&format!("d/file-{number}")));
    let all = Message { length: 1 << 15, ..Message::new(Op::OpenDir) };
    let whole = client.call_at(all, b"d", b"").unwrap();
    let mut names = Vec::new();
    let end = unpack(&client.payload(count(&whole)), &mut names);
    assert_eq!((names.len(), whole.value[0]), (302, LISTED));
    assert_eq!(whole.attr.unwrap().ino, client.op_at(Op::Stat, "d").unwrap().attr.unwrap().ino);
    // By parts, to the same end.
    let some = client.call_at(Message { length: 1000, ..all }, b"d", b"").unwrap();
    let mut again = Vec::new();
    let mut list = Message { handle: some.handle, length: 1000, ..Message::new(Op::Readdir) };
    list.offset = unpack(&client.payload(count(&some)), &mut again);
    assert_eq!(some.value[0], 0);
    loop {
        let reply = client.call(&list).unwrap();
        list.offset = unpack(&client.payload(count(&reply)), &mut again);
        if reply.value[0] == LISTED {
            break;
        }
    }
    assert_eq!((again, list.offset), (names, end));
    let beyond = client.call(&list).unwrap();
    assert_eq!((count(&beyond), beyond.value[0]), (0, LISTED));
    assert_eq!(client.call_at(Message { length: 10, ..all }, b"d", b""), Err(Errno::EINVAL));
}

#[test]
fn names_of_the_mount_itself_are_not_listed() {
    let house = House::new();
    let client = house.client();
    client.create("file");
    let all = Message { length: 1 << 15, ..Message::new(Op::OpenDir) };
    let root = client.call_at(all, b".", b"").unwrap();
    let mut names = Vec::new();
    unpack(&client.payload(count(&root)), &mut names);
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"file"]);
}

/// Appends the names in `bytes`; returns the position to go on from.
fn unpack(mut bytes: &[u8], names: &mut Vec<Vec<u8>>) -> u64 {
    let mut next = 0;
    while !bytes.is_empty() {
        next = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let len = usize::from(u16::from_ne_bytes(bytes[16..18].try_into().unwrap()));
        let name = bytes[19..len].split(|byte| *byte == 0).next().unwrap();
        names.push(name.to_vec());
        bytes = &bytes[len..];
    }
    next
}

#[test]
fn extended_attributes() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    let mut setxattr = Message { length: 5, ..Message::new(Op::Setxattr) };
    client.channel.payload_put(client.mailbox, 7, b"value");
    client.call_at(setxattr, b"f", b"user.a").unwrap();
    setxattr.arg[0] = libc::XATTR_CREATE as u64;
    assert_eq!(client.call_at(setxattr, b"f", b"user.a"), Err(Errno::EEXIST));
    let get = |length| {
        let message = Message { handle, length, ..Message::new(Op::Getxattr) };
        client.call_at(message, b"", b"user.a").map(|reply| count(&reply))
    };
    assert_eq!((get(0), get(4), get(5)), (Ok(5), Err(Errno::ERANGE), Ok(5)));
    assert_eq!(client.payload(5), b"value");
    let list = Message { length: 100, ..Message::new(Op::Listxattr) };
    let bytes = count(&client.call_at(list, b"f", b"").unwrap());
    assert_eq!(client.payload(bytes), b"user.a\0");
    client.call_at(Message::new(Op::Removexattr), b"f", b"user.a").unwrap();
    assert_eq!(get(5), Err(Errno::ENODATA));
}

#[test]
fn locks_of_open_files() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (fa, fb) = (a.create("f"), b.create("f"));
    for family in [LockFlags::OFD, LockFlags::FLOCK] {
        a.lock(fa, family, libc::F_WRLCK).unwrap();
        assert_eq!(b.lock(fb, family, libc::F_RDLCK), Err(Errno::EAGAIN));
        a.lock(fa, family, libc::F_UNLCK).unwrap();
        b.lock(fb, family, libc::F_RDLCK).unwrap();
        b.lock(fb, family, libc::F_UNLCK).unwrap();
    }
    // The same process: POSIX locks of one session are those of the other.
    a.lock(fa, LockFlags::empty(), libc::F_WRLCK).unwrap();
    b.lock(fb, LockFlags::empty(), libc::F_WRLCK).unwrap();
    let ask = Message { op: Op::GetLock, ..lock_message(fb, LockFlags::OFD, libc::F_WRLCK) };
    let found = b.call(&ask).unwrap().value;
    assert_eq!(found[..4], [libc::F_WRLCK as u64, 0, 0, u64::from(std::process::id())]);
    // close(2) of any descriptor drops them.
    b.close(fb).unwrap();
    let fb = b.create("f");
    assert_eq!(b.call(&Message { handle: fb, ..ask }).unwrap().value[0], libc::F_UNLCK as u64);
    let reader = b.open("f", libc::O_RDONLY).unwrap().0;
    assert_eq!(b.lock(reader, LockFlags::OFD, libc::F_WRLCK), Err(Errno::EBADF));
    b.lock(reader, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
}

#[test]
fn a_closed_file_drops_its_locks() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    for family in [LockFlags::OFD, LockFlags::FLOCK] {
        let (fa, fb) = (a.create("f"), b.create("f"));
        a.lock(fa, family, libc::F_WRLCK).unwrap();
        assert_eq!(b.lock(fb, family, libc::F_WRLCK), Err(Errno::EAGAIN));
        a.close(fa).unwrap();
        b.lock(fb, family, libc::F_WRLCK).unwrap();
        b.close(fb).unwrap();
    }
}

#[test]
fn a_waiting_lock_holds_no_worker() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (fa, fb) = (a.create("f"), b.create("f"));
    a.lock(fa, LockFlags::OFD, libc::F_WRLCK).unwrap();
    let waiter = b.thread();
    let waiting = std::thread::spawn(move || {
        waiter.call(&lock_message(fb, LockFlags::OFD | LockFlags::WAIT, libc::F_WRLCK))
    });
    for _ in 0..100 {
        b.call(&Message::new(Op::Ping)).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waiting.is_finished());
    a.lock(fa, LockFlags::OFD, libc::F_UNLCK).unwrap();
    waiting.join().unwrap().unwrap();
    assert_eq!(a.lock(fa, LockFlags::OFD, libc::F_WRLCK), Err(Errno::EAGAIN));
}

#[test]
fn a_waiting_lock_can_be_cancelled() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (fa, fb) = (a.create("f"), b.create("f"));
    a.lock(fa, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
    let waiter = b.thread();
    let mut cancel = Message::new(Op::Cancel);
    cancel.arg[0] = waiter.mailbox.0.into();
    assert_eq!(count(&b.call(&cancel).unwrap()), 0, "nothing waits yet");
    let waiting = std::thread::spawn(move || {
        waiter.call(&lock_message(fb, LockFlags::FLOCK | LockFlags::WAIT, libc::F_WRLCK))
    });
    wait_for("a parked lock", || count(&b.call(&cancel).unwrap()) == 1);
    assert_eq!(waiting.join().unwrap(), Err(Errno::EINTR));
    a.lock(fa, LockFlags::FLOCK, libc::F_UNLCK).unwrap();
    b.lock(fb, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
}

#[test]
fn a_session_that_ends_lets_go_of_everything() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (fa, fb) = (a.create("f"), b.create("f"));
    a.lock(fa, LockFlags::OFD, libc::F_WRLCK).unwrap();
    let waiter = b.thread();
    let waiting = std::thread::spawn(move || {
        waiter.call(&lock_message(fb, LockFlags::OFD | LockFlags::WAIT, libc::F_WRLCK))
    });
    // Parked in a session that ends, for a lock that is never given back.
    b.lock(b.create("g"), LockFlags::OFD, libc::F_WRLCK).unwrap();
    let own = lock_message(a.create("g"), LockFlags::OFD | LockFlags::WAIT, libc::F_WRLCK);
    a.channel.post(a.mailbox, &own, &Trusting).unwrap();
    drop(a);
    waiting.join().unwrap().unwrap();
    wait_for("one session", || house.server.session_count() == 1);
    b.call(&Message::new(Op::Ping)).unwrap();
}

fn open_file(house: &House, path: &str) -> std::sync::Arc<polylane_vfs::OpenFile> {
    let (vfs, root) = (&house.lane.vfs, house.lane.vfs.root());
    vfs.open_path(&OpCtx::service(), &root, path.as_bytes(), libc::O_RDWR, 0, 0).unwrap()
}

fn token(client: &Client) -> Token {
    Token(client.welcome.token)
}

#[test]
fn slots_bind_and_escape() {
    let house = House::new();
    let client = house.client();
    client.create("f");
    let slot = make_slot(&house, token(&client), 5).unwrap();
    assert_eq!(slot.file().err(), Some(Errno::EBADF));
    assert_eq!(client.open_slot("f", libc::O_RDWR, 6), Err(Errno::EBUSY));
    assert_eq!(client.open_slot("f", libc::O_RDONLY, 5), Err(Errno::EINVAL));
    let (handle, _) = client.open_slot("f", libc::O_RDWR, 5).unwrap();
    assert!(slot.file().is_ok());
    assert_eq!(client.open_slot("f", libc::O_RDWR, 5), Err(Errno::EBUSY));
    assert_eq!(client.close(handle).unwrap().value[0], 0);
    assert_eq!(slot.file().err(), Some(Errno::EBADF));
    let (handle, _) = client.open_slot("f", libc::O_RDWR, 5).unwrap();
    client.call(&Message::new(Op::ShareAll)).unwrap();
    assert_eq!(client.close(handle).unwrap().value[0], 1, "escaped");
    assert!(slot.file().is_ok(), "an escaped slot keeps its file");
}

#[test]
fn tickets_become_handles() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    client.write(handle, 0, b"shared").unwrap();
    let file = open_file(&house, "f");
    let key = house.lane.tickets.issue(&Ticket { file: file.clone(), slot: None }).unwrap();
    let key = u128::from_le_bytes(key);
    let mut redeem = Message::new(Op::Redeem);
    redeem.arg[..2].copy_from_slice(&[key as u64, (key >> 64) as u64]);
    let reply = client.call(&redeem).unwrap();
    assert_eq!(reply.value[..2], [libc::O_RDWR as u64, NO_SLOT]);
    assert_eq!(reply.attr.unwrap().size, 6);
    assert_eq!(client.read(reply.handle, 0, 9).unwrap(), b"shared");
    assert_eq!(client.call(&redeem), Err(Errno::ENOENT), "good once");
    // Locks of one open file do not conflict, through whichever handle.
    client.lock(reply.handle, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
    assert_eq!(client.lock(handle, LockFlags::FLOCK, libc::F_WRLCK), Err(Errno::EAGAIN));
    client.close(reply.handle).unwrap();
    assert_eq!(
        client.lock(handle, LockFlags::FLOCK, libc::F_WRLCK),
        Err(Errno::EAGAIN),
        "still open"
    );
    drop(file);
    client.lock(handle, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
}

#[test]
fn expose_names_the_file_once() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    let value = client.call(&Message { handle, ..Message::new(Op::Expose) }).unwrap().value;
    let key = u128::from(value[0]) | u128::from(value[1]) << 64;
    let ticket = house.lane.tickets.redeem(&key.to_le_bytes()).unwrap();
    let node = house.lane.vfs.lookup(&OpCtx::service(), &house.lane.vfs.root(), b"f").unwrap();
    assert!(std::sync::Arc::ptr_eq(ticket.file.node(), &node));
    assert!(house.lane.tickets.redeem(&key.to_le_bytes()).is_none());
}

#[test]
fn many_files_are_exposed_by_one_request() {
    let house = House::new();
    let client = house.client();
    let names: Vec<String> = (0..EXPOSED_MAX).map(|n| format!("f{n}")).collect();
    let mut handles: Vec<u64> = names.iter().map(|name| client.create(name)).collect();
    client.close(handles[3]).unwrap();
    handles[5] = 0;
    let payload: Vec<u8> = handles.iter().flat_map(|handle| handle.to_le_bytes()).collect();
    let expose = |length: usize| {
        client.channel.payload_put(client.mailbox, 0, &payload);
        let length = length as u64;
        client.call(&Message { length, ..Message::new(Op::ExposeAll) }).map(|reply| count(&reply))
    };
    assert_eq!(expose(payload.len()), Ok(16 * EXPOSED_MAX));
    let tickets = client.payload(16 * EXPOSED_MAX);
    for (n, (ticket, name)) in tickets.chunks_exact(16).zip(&names).enumerate() {
        let found = house.lane.tickets.redeem(ticket.try_into().unwrap());
        assert_eq!(ticket == [0; 16], n == 3 || n == 5);
        assert_eq!(found.is_some(), n != 3 && n != 5, "{n}");
        if let Some(found) = found {
            let root = house.lane.vfs.root();
            let node = house.lane.vfs.lookup(&OpCtx::service(), &root, name.as_bytes()).unwrap();
            assert!(std::sync::Arc::ptr_eq(found.file.node(), &node));
        }
    }
    assert_eq!(expose(16), Ok(32));
    for wrong in [0, 7, 12, 8 * EXPOSED_MAX + 8, usize::MAX - 7] {
        assert_eq!(expose(wrong), Err(Errno::EINVAL), "{wrong}");
    }
}

/// The kernel opens the own node of what a client has open.
fn open_by_kernel(house: &House, client: &Client, handle: u64) {
    let value = client.call(&Message { handle, ..Message::new(Op::Expose) }).unwrap().value;
    let key = u128::from(value[0]) | u128::from(value[1]) << 64;
    house.lane.tickets.redeem(&key.to_le_bytes()).unwrap().file.leave_to_kernel();
}

#[test]
fn opens_of_a_file_that_may_have_a_lease_are_left_to_the_kernel() {
    let house = House::new();
    let (client, other) = (house.client(), house.client());
    let (handle, _) = (client.create("f"), client.create("g"));
    client.write(handle, 0, b"text").unwrap();
    let lease = |kind: i32| Message { handle, mode: kind as u32, ..Message::new(Op::Oplock) };
    let reader = client.open("f", libc::O_RDONLY).unwrap().0;
    let of_reader = Message { handle: reader, ..lease(libc::F_RDLCK) };
    client.close(handle).unwrap();
    assert_eq!(client.call(&of_reader), Err(Errno::EAGAIN), "the kernel has it not");
    let handle = client.open("f", libc::O_RDWR).unwrap().0;
    open_by_kernel(&house, &client, handle);
    let lease = |kind: i32| Message { handle, ..lease(kind) };
    assert_eq!(client.read(handle, 0, 9).unwrap(), b"text");

    assert_eq!(client.call(&lease(libc::F_WRLCK)), Err(Errno::EAGAIN), "it is open");
    client.call(&lease(libc::F_RDLCK)).unwrap();
    client.close(reader).unwrap();
    client.call(&lease(libc::F_WRLCK)).unwrap();
    for flags in [libc::O_RDONLY, libc::O_RDWR | libc::O_CREAT, libc::O_WRONLY | libc::O_TRUNC] {
        assert_eq!(other.open("f", flags), Err(USE_KERNEL), "{flags:o}");
    }
    let cut = |path: &str| {
        let mut cut = Message::new(Op::SetattrPath);
        cut.arg[0] = SetWhat::SIZE.bits();
        other.call_at(cut, path.as_bytes(), b"")
    };
    assert_eq!(cut("f"), Err(USE_KERNEL));
    assert_eq!(other.stat("f").unwrap().size, 4);
    other.open("g", libc::O_RDWR).unwrap();
    cut("g").unwrap();
    client.close(handle).unwrap();
    other.open("f", libc::O_RDWR).unwrap();
    cut("f").unwrap();
}

#[test]
fn what_the_kernel_has_mapped_is_served_by_a_helper() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    client.write(handle, 0, b"mapped").unwrap();
    assert_eq!(house.server.totals().handed_off, 0);
    let node = house.lane.vfs.lookup(&OpCtx::service(), &house.lane.vfs.root(), b"f").unwrap();
    node.tag().fetch_or(polylane_front::lane::tag::TAG_PAGES, Ordering::SeqCst);
    let handed_off = |what: &str, expected: u64| {
        assert_eq!(house.server.totals().handed_off, expected, "{what}");
    };
    assert_eq!(client.read(handle, 0, 9).unwrap(), b"mapped");
    handed_off("read", 1);
    client.write(handle, 6, b" twice").unwrap();
    handed_off("write", 2);
    let mut truncate = Message { handle, length: 3, ..Message::new(Op::SetattrHandle) };
    truncate.arg[0] = SetWhat::SIZE.bits();
    assert_eq!(client.call(&truncate).unwrap().attr.unwrap().size, 3);
    handed_off("truncate", 3);
    client.open("f", libc::O_TRUNC | libc::O_RDWR).unwrap();
    handed_off("open", 4);
    client.stat("f").unwrap();
    handed_off("stat", 4);
}

#[test]
fn the_holder_of_a_lock_is_the_sessions_process() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (fa, fb) = (a.create("f"), b.create("f"));
    let mut message = lock_message(fa, LockFlags::empty(), libc::F_RDLCK);
    // Whatever a client of one's own says here, it names no process.
    message.arg = [42; 4];
    a.call(&message).unwrap();
    let ask = Message { op: Op::GetLock, ..lock_message(fb, LockFlags::OFD, libc::F_WRLCK) };
    assert_eq!(b.call(&ask).unwrap().value[3], u64::from(std::process::id()));
    a.lock(fa, LockFlags::empty(), libc::F_UNLCK).unwrap();
    a.lock(fa, LockFlags::OFD, libc::F_WRLCK).unwrap();
    assert_eq!(b.call(&ask).unwrap().value[3] as i32, -1);
}
