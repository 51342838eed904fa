//! Every operation's checks: what passes, what is refused with which errno, and random words.

use polylane_base::rng::Rng;
use polylane_ipc::message::{DIR_ROOT, LockFlags, NO_SLOT, TransferFlags, WORDS};

use super::*;

const BUFFER: usize = 64 * 1024;

fn check<'a>(message: &'a Message, paths: &'a [u8]) -> Result<FileRequest<'a>> {
    assert_eq!(path_bytes(message, BUFFER)?, paths.len());
    FileRequest::check(message, paths, BUFFER)
}

fn with_path(op: Op, path: &[u8], second: &[u8]) -> (Message, Vec<u8>) {
    let mut message = Message::new(op);
    message.path_len = path.len() as u32;
    message.path2_len = second.len() as u32;
    (message, [path, second].concat())
}

#[test]
fn handles_survive_the_wire() {
    let handle = Handle { index: 7, generation: 0xdead_beef };
    assert_eq!(Handle::from_wire(handle.to_wire()), handle);
}

#[test]
fn paths_are_bounded() {
    let mut message = Message::new(Op::Stat);
    message.path_len = PATH_BYTES_MAX as u32 + 1;
    assert_eq!(path_bytes(&message, BUFFER), Err(Errno::ENAMETOOLONG));
    message.path_len = u32::MAX;
    message.path2_len = u32::MAX;
    assert_eq!(path_bytes(&message, BUFFER), Err(Errno::ENAMETOOLONG));
    message.path_len = 4000;
    message.path2_len = 4000;
    assert_eq!(path_bytes(&message, 4096), Err(Errno::ENAMETOOLONG));
    assert_eq!(path_bytes(&message, 8000), Ok(8000));
}

#[test]
fn a_nul_in_a_path_is_refused() {
    let (message, paths) = with_path(Op::Stat, b"a\0b", b"");
    assert_eq!(check(&message, &paths), Err(Errno::EINVAL));
}

#[test]
fn an_empty_path_needs_leave() {
    let (mut message, paths) = with_path(Op::Stat, b"", b"");
    assert_eq!(check(&message, &paths), Err(Errno::ENOENT));
    message.flags = libc::AT_EMPTY_PATH as u32;
    message.dir = 5;
    let start = Start::Dir(Handle { index: 5, generation: 0 });
    let request = check(&message, &paths);
    assert_eq!(request, Ok(FileRequest::Stat { object: Object::Start(start), mark: false }));
}

#[test]
fn open_takes_slot_and_mode() {
    let (mut message, paths) = with_path(Op::Open, b"f", b"");
    message.flags = (libc::O_CREAT | libc::O_RDWR) as u32;
    message.mode = 0o177_777;
    message.umask = 0o7022;
    message.arg[0] = NO_SLOT;
    let at = At { start: Start::Root, path: b"f" };
    let flags = libc::O_CREAT | libc::O_RDWR;
    let brings = Brings::default();
    let want = FileRequest::Open { at, flags, perm: 0o7777, umask: 0o22, slot: None, brings };
    assert_eq!(check(&message, &paths), Ok(want));
    message.arg[0] = 1 << 32;
    assert_eq!(check(&message, &paths), Err(Errno::EINVAL));
    message.arg[0] = 3;
    message.flags |= libc::O_DIRECTORY as u32;
    assert_eq!(check(&message, &paths), Err(Errno::EINVAL));
}

#[test]
fn io_stays_in_range() {
    let mut message = Message::new(Op::Read);
    message.length = u64::MAX;
    message.offset = OFFSET_MAX - 5;
    let handle = Handle::from_wire(0);
    let want =
        FileRequest::Read { handle, offset: OFFSET_MAX - 5, len: 5, show: ShowRead::Nothing };
    assert_eq!(check(&message, b""), Ok(want));
    message.offset = OFFSET_MAX + 1;
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
    message.op = Op::Write;
    message.offset = OFFSET_MAX;
    assert_eq!(check(&message, b""), Err(Errno::EFBIG));
    message.offset = 0;
    let want = FileRequest::Write { handle, offset: 0, len: BUFFER, how: HowToWrite::default() };
    assert_eq!(check(&message, b""), Ok(want));
    for (bits, appends) in [
        (TransferFlags::SAYS_APPENDS, Some(false)),
        (TransferFlags::SAYS_APPENDS | TransferFlags::APPENDS, Some(true)),
    ] {
        message.flags = (TransferFlags::SHOW | bits).bits();
        let how = HowToWrite { show: true, appends, at_end: None };
        let want = FileRequest::Write { handle, offset: 0, len: BUFFER, how };
        assert_eq!(check(&message, b""), Ok(want));
    }
}

#[test]
fn mknod_checks_the_kind() {
    let (mut message, paths) = with_path(Op::Mknod, b"n", b"");
    for (mode, want) in [
        (0o644, Ok(libc::S_IFREG | 0o644)),
        (libc::S_IFIFO | 0o600, Ok(libc::S_IFIFO | 0o600)),
        (libc::S_IFDIR | 0o700, Err(Errno::EPERM)),
        (libc::S_IFLNK | 0o700, Err(Errno::EINVAL)),
        (0o010_000 | 0o060_000, Err(Errno::EINVAL)),
    ] {
        message.mode = mode;
        let got = check(&message, &paths).map(|request| match request {
            FileRequest::Mknod { mode, .. } => mode,
            other => panic!("{other:?}"),
        });
        assert_eq!(got, want, "mode {mode:o}");
    }
}

#[test]
fn rename_flags() {
    let (mut message, paths) = with_path(Op::Rename, b"a", b"b");
    for (flags, ok) in
        [(0, true), (1, true), (2, true), (4, true), (5, true), (3, false), (8, false)]
    {
        message.flags = flags;
        assert_eq!(check(&message, &paths).is_ok(), ok, "flags {flags}");
    }
}

#[test]
fn setattr_takes_only_what_the_mask_names() {
    let mut message = Message::new(Op::SetattrHandle);
    message.arg = [(SetWhat::PERM | SetWhat::MTIME | SetWhat::ATIME_NOW).bits(), 1, 2, 0];
    message.mode = 0o107_777;
    message.time = [1, 2, 3, 4];
    let set = SetAttr {
        perm: Some(0o7777),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Time { sec: 3, nsec: 4 })),
        ..SetAttr::default()
    };
    let object = Object::Handle(Handle::from_wire(0));
    assert_eq!(check(&message, b""), Ok(FileRequest::Setattr { object, set }));
    message.time[3] = 1_000_000_000;
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
    message.arg = [SetWhat::SIZE.bits(), 0, 0, 0];
    message.length = OFFSET_MAX + 1;
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
}

#[test]
fn fallocate_ranges() {
    let mut message = Message::new(Op::Fallocate);
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
    message.length = 1;
    message.offset = OFFSET_MAX;
    assert_eq!(check(&message, b""), Err(Errno::EFBIG));
    message.offset = OFFSET_MAX - 1;
    assert!(check(&message, b"").is_ok());
    message.length = u64::MAX;
    message.offset = u64::MAX;
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
}

#[test]
fn xattr_names_and_values() {
    let long = vec![b'x'; 256];
    let (mut message, paths) = with_path(Op::Setxattr, b"f", &long);
    assert_eq!(check(&message, &paths), Err(Errno::ERANGE));
    message.path2_len = 0;
    assert_eq!(check(&message, b"f"), Err(Errno::ERANGE));
    message.path2_len = 6;
    message.length = 65537;
    assert_eq!(check(&message, b"fuser.a"), Err(Errno::E2BIG));
    message.length = 10;
    message.arg[0] = libc::XATTR_CREATE as u64;
    let Ok(FileRequest::Setxattr { value_at: 7, len: 10, mode, .. }) = check(&message, b"fuser.a")
    else {
        panic!("refused")
    };
    assert_eq!(mode, XattrMode::Create);
    message.arg[0] = 3;
    assert_eq!(check(&message, b"fuser.a"), Err(Errno::EINVAL));
}

#[test]
fn an_xattr_value_may_not_reach_past_the_buffer() {
    let (mut message, paths) = with_path(Op::Setxattr, b"f", b"user.a");
    message.length = (BUFFER - 7) as u64;
    assert!(check(&message, &paths).is_ok());
    message.length += 1;
    assert_eq!(check(&message, &paths), Err(Errno::E2BIG));
}

#[test]
fn lock_ranges() {
    let mut message = Message::new(Op::Lock);
    message.mode = libc::F_WRLCK as u32;
    let range = |message: &Message| match check(message, b"") {
        Ok(FileRequest::Lock(lock)) => Ok((lock.family, lock.start, lock.end, lock.wait)),
        Ok(other) => panic!("{other:?}"),
        Err(errno) => Err(errno),
    };
    assert_eq!(range(&message), Ok((LockFamily::Posix, 0, TO_THE_END, false)));
    (message.offset, message.length) = (10, 5);
    message.flags = (LockFlags::WAIT | LockFlags::OFD).bits();
    assert_eq!(range(&message), Ok((LockFamily::Ofd, 10, 14, true)));
    (message.offset, message.length) = (OFFSET_MAX, 1);
    assert_eq!(range(&message), Ok((LockFamily::Ofd, OFFSET_MAX, OFFSET_MAX, true)));
    message.length = 2;
    assert_eq!(range(&message), Err(Errno::EOVERFLOW));
    message.length = u64::MAX;
    assert_eq!(range(&message), Err(Errno::EOVERFLOW));
    message.flags = LockFlags::FLOCK.bits();
    assert_eq!(range(&message), Ok((LockFamily::Flock, 0, TO_THE_END, false)));
    message.flags = (LockFlags::FLOCK | LockFlags::OFD).bits();
    assert_eq!(range(&message), Err(Errno::EINVAL));
    message.flags = 0;
    message.mode = 3;
    assert_eq!(range(&message), Err(Errno::EINVAL));
}

#[test]
fn copy_range_never_overflows() {
    let mut message = Message::new(Op::CopyRange);
    message.length = u64::MAX;
    message.offset = OFFSET_MAX;
    message.arg[0] = 1;
    let Ok(FileRequest::CopyRange { len: 0, .. }) = check(&message, b"") else { panic!("len") };
    message.arg[0] = u64::MAX;
    assert_eq!(check(&message, b""), Err(Errno::EINVAL));
    message.arg[0] = OFFSET_MAX;
    assert_eq!(check(&message, b""), Err(Errno::EFBIG));
}

/// Random words, skewed towards edges: the check never panics, and what it lets through is in
/// range.
#[test]
fn random_messages_never_panic() {
    let mut rng = Rng::new(1);
    let edges = [0, 1, DIR_ROOT, OFFSET_MAX, OFFSET_MAX - 1, OFFSET_MAX + 1, 1 << 32, 4095, 4096];
    let bytes: Vec<u8> = (0..PATHS_BYTES_MAX).map(|_| rng.next_u64() as u8 | 1).collect();
    let mut passed = 0;
    for _ in 0..200_000 {
        let mut words = [0u64; WORDS];
        for word in &mut words {
            *word = if rng.percent(60) { *rng.pick(&edges) } else { rng.next_u64() };
        }
        words[0] = words[0] & !0xffff_ffff | 16 << 16 | rng.below(40);
        if rng.percent(80) {
            words[5] = rng.below(5000) | rng.below(300) << 32;
        }
        let Some(message) = Message::from_words(&words) else { continue };
        let Ok(len) = path_bytes(&message, BUFFER) else { continue };
        let Ok(request) = FileRequest::check(&message, &bytes[..len], BUFFER) else { continue };
        passed += 1;
        match request {
            FileRequest::Read { offset, len, .. } | FileRequest::Write { offset, len, .. } => {
                assert!(len <= BUFFER && offset + len as u64 <= OFFSET_MAX);
            }
            FileRequest::Setxattr { value_at, len, .. } => assert!(value_at + len <= BUFFER),
            FileRequest::Lock(lock) | FileRequest::GetLock(lock) => assert!(lock.start <= lock.end),
            _ => {}
        }
    }
    assert!(passed > 10_000, "only {passed} messages got past the checks");
}
