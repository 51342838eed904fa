//! Sequenced-packet UNIX sockets: messages with descriptors, and who the peer is.
//!
//! Identity is the kernel's word (`SO_PEERCRED`, `SO_PEERGROUPS`, a pidfd), taken when the peer
//! connected; nothing that the peer says about itself counts.
#![expect(unsafe_code, reason = "UNSAFETY: getsockopt calls that rustix lacks")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::{Errno, Result};
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::region::errno;

/// Most descriptors in one message (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 253;

/// Bytes of `sockaddr_un::sun_path` that a name may take.
const SUN_PATH_BYTES: usize = 107;

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Its process id, as this process sees it; 0 when it lies in a foreign pid namespace.
    pub pid: u32,
    /// Its user and groups, by the numbers that they have in this process's user namespace.
    pub identity: Identity,
    /// Becomes readable when the process is gone; `None` when it already was, or cannot be had.
    pub pidfd: Option<OwnedFd>,
}

/// A socket that listens at `path`. Anything that lies there already is an error (`EADDRINUSE`).
pub fn listen(path: &Path, backlog: i32) -> Result<OwnedFd> {
    let socket = seqpacket(SocketFlags::CLOEXEC)?;
    // The file that bind(2) makes has these rights, whatever the caller's mask.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(errno)?;
    with_address(path, |address| rustix::net::bind(&socket, address).map_err(errno))?;
    rustix::net::listen(&socket, backlog).map_err(errno)?;
    Ok(socket)
}

/// The next connection. `EAGAIN` on a non-blocking listener without one.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC).map_err(errno)
}

/// Connects to the socket at `path`, however long the path.
pub fn connect(path: &Path) -> Result<OwnedFd> {
    let socket = seqpacket(SocketFlags::CLOEXEC)?;
    with_address(path, |address| rustix::net::connect(&socket, address).map_err(errno))?;
    Ok(socket)
}

/// [`connect`], which waits no longer than `limit` where as many wait already as the listener lets:
/// `EAGAIN` then. A signal does not end the waiting.
pub fn connect_within(path: &Path, limit: Duration) -> Result<OwnedFd> {
    let (begin, socket) = (Instant::now(), seqpacket(SocketFlags::CLOEXEC)?);
    with_address(path, |address| {
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Errno::EAGAIN);
            }
            set_socket_timeout(&socket, Timeout::Send, Some(left)).map_err(errno)?;
            match rustix::net::connect(&socket, address) {
                // With a time to wait, the kernel does not go on by itself (signal(7)).
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map_err(errno),
            }
        }
    })?;
    set_socket_timeout(&socket, Timeout::Send, None).map_err(errno)?;
    Ok(socket)
}

/// [`connect`], unless that would wait: `EAGAIN` when as many wait already as the listener lets.
pub fn connect_now(path: &Path) -> Result<OwnedFd> {
    let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    with_address(path, |address| rustix::net::connect(&socket, address).map_err(errno))?;
    rustix::io::ioctl_fionbio(&socket, false).map_err(errno)?;
    Ok(socket)
}

/// The process that listens at the other end of a connection, by its number here; `ESRCH`: it has
/// none here.
pub fn listener_pid(socket: impl AsFd) -> Result<u32> {
    let pid = credentials(socket.as_fd())?.pid;
    u32::try_from(pid).ok().filter(|&pid| pid > 0).ok_or(Errno::ESRCH)
}

/// Two connected sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(errno)
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(errno)
}

/// Calls `with` with the address of `path`. A path too long for a socket address is reached through
/// an open directory.
fn with_address(path: &Path, with: impl FnOnce(&SocketAddrUnix) -> Result<()>) -> Result<()> {
    if path.as_os_str().len() <= SUN_PATH_BYTES {
        return with(&SocketAddrUnix::new(path).map_err(errno)?);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::EINVAL);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty()).map_err(errno)?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    with(&SocketAddrUnix::new(&short).map_err(errno)?)
}

/// Sends one message with descriptors. Never raises `SIGPIPE`.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    if fds.len() > FDS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut space = vec![MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::EINVAL);
    }
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL).map_err(errno)?;
    Ok(())
}

/// One received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message, at the start of the buffer; 0 when the peer closed.
    pub count: usize,
    /// Whether the message was longer than the buffer, or carried descriptors that were dropped.
    pub truncated: bool,
    /// Descriptors that came along, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message. `EAGAIN` on a non-blocking socket without one.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> Result<Received> {
    receive_with(socket, into, RecvFlags::CMSG_CLOEXEC)
}

/// Receives one message if there is one now, else `EAGAIN`.
pub fn try_receive(socket: impl AsFd, into: &mut [u8]) -> Result<Received> {
    receive_with(socket, into, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
}

/// A message that is there, and stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peeked {
    /// Bytes of it at the start of the buffer; 0 when the peer closed, too.
    pub count: usize,
    /// It is longer than the buffer.
    pub truncated: bool,
    /// It carries descriptors, of which none was touched: they can be such as whose close never
    /// returns.
    pub carries: bool,
}

/// Looks at the next message, which stays there. `EAGAIN` without one.
pub fn peek(socket: impl AsFd, into: &mut [u8]) -> Result<Peeked> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut parts = [IoSliceMut::new(into)];
    let mut none = RecvAncillaryBuffer::default();
    let got = rustix::net::recvmsg(socket, &mut parts, &mut none, flags).map_err(errno)?;
    let truncated = got.flags.contains(rustix::net::ReturnFlags::TRUNC);
    let carries = got.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    Ok(Peeked { count: got.bytes, truncated, carries })
}

/// Most messages that [`settle`] takes.
const SETTLED_MAX: usize = 64;

/// Lets the peer send no more, and takes messages without descriptors. `true`: none is left, so
/// that the connection's close waits for nothing of the peer's. The socket can send still, and is
/// not to be received from any more.
pub fn settle(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    // With the senders asked for, a message is not taken for the end, however short it is.
    let asked = rustix::net::sockopt::set_socket_passcred(socket, true);
    if asked.is_err() || rustix::net::shutdown(socket, rustix::net::Shutdown::Read).is_err() {
        return false;
    }
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    for _ in 0..SETTLED_MAX {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let (mut control, mut byte) = (RecvAncillaryBuffer::new(&mut space), [0; 1]);
        let mut parts = [IoSliceMut::new(&mut byte)];
        let Ok(got) = rustix::net::recvmsg(socket, &mut parts, &mut control, flags) else {
            return false;
        };
        // There is no room for descriptors, so that none is touched.
        if got.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
            return false;
        }
        if control.drain().next().is_none() {
            return got.bytes == 0;
        }
        if try_receive(socket, &mut []).is_err() {
            return false;
        }
    }
    false
}

fn receive_with(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> Result<Received> {
    let mut space = vec![MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, flags).map_err(errno)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let cut = rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC;
    Ok(Received { count: got.bytes, truncated: got.flags.intersects(cut), fds })
}

/// The user and the groups of a process, when it connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Who is connected to `socket`.
pub fn peer(socket: impl AsFd) -> Result<Peer> {
    let socket = socket.as_fd();
    let cred = credentials(socket)?;
    let identity = identity_of(socket, cred)?;
    let pid = u32::try_from(cred.pid).unwrap_or(0);
    Ok(Peer { pid, identity, pidfd: peer_pidfd(socket, cred.pid) })
}

/// The user and the groups of who is connected to `socket`, by the numbers that they have in the
/// user namespace of the calling process.
pub fn identity(socket: impl AsFd) -> Result<Identity> {
    identity_of(socket.as_fd(), credentials(socket.as_fd())?)
}

fn identity_of(socket: BorrowedFd<'_>, cred: libc::ucred) -> Result<Identity> {
    Ok(Identity { uid: cred.uid, gid: cred.gid, groups: peer_groups(socket)? })
}

fn credentials(socket: BorrowedFd<'_>) -> Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: a ucred is plain old data and exactly what SO_PEERCRED fills.
    unsafe { getsockopt(socket, libc::SO_PEERCRED, std::slice::from_mut(&mut cred))? };
    Ok(cred)
}

fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        // SAFETY: SO_PEERGROUPS fills an array of gid_t.
        match unsafe { getsockopt(socket, libc::SO_PEERGROUPS, &mut groups) } {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // NGROUPS_MAX is 65536.
            Err(Errno::ERANGE) if groups.len() < 65536 => groups.resize(65536, 0),
            Err(error) => return Err(error),
        }
    }
}

/// `SO_PEERPIDFD` (Linux 6.5), which is not in every libc crate's tables.
const SO_PEERPIDFD: libc::c_int = 77;

/// Before Linux 6.5 the pidfd is opened by number, which races with the reuse of the number;
/// callers that need certainty compare the start time. A kernel that knows the option and has no
/// pidfd says that the process is gone (`ESRCH`, `EINVAL`): its number may be another's by then.
fn peer_pidfd(socket: BorrowedFd<'_>, pid: libc::pid_t) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    // SAFETY: SO_PEERPIDFD fills one int with a new descriptor, close-on-exec.
    let asked = unsafe { getsockopt(socket, SO_PEERPIDFD, std::slice::from_mut(&mut fd)) };
    match asked {
        // SAFETY: the kernel just gave us this descriptor.
        Ok(_) if fd >= 0 => Some(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(why) => by_number(why, pid),
        Ok(_) => None,
    }
}

/// The pidfd of a number, where the kernel gives none for a connection: `why` not.
fn by_number(why: Errno, pid: libc::pid_t) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).filter(|_| why == Errno(libc::ENOPROTOOPT))?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Fills `into` with a `SOL_SOCKET` option; returns how many whole elements came.
///
/// # Safety
///
/// `T` is plain old data, valid for any bytes the kernel stores for this option.
unsafe fn getsockopt<T>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    into: &mut [T],
) -> Result<usize> {
    let mut len = size_of_val(into) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the slice; the caller vouches for `T`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            into.as_mut_ptr().cast(),
            &mut len,
        )
    };
    match rc {
        0 => Ok(len as usize / size_of::<T>()),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn messages_carry_descriptors_and_keep_their_bounds() {
        let (left, right) = pair().unwrap();
        let event = crate::event::eventfd().unwrap();
        send(&left, b"one", &[event.as_fd(), event.as_fd()]).unwrap();
        send(&left, b"second message", &[]).unwrap();
        let mut buffer = [0; 6];
        let first = receive(&right, &mut buffer).unwrap();
        assert_eq!((first.count, first.truncated, first.fds.len()), (3, false, 2));
        crate::event::notify(&first.fds[1]);
        assert_eq!(crate::event::drain(&event), 1);
        let second = receive(&right, &mut buffer).unwrap();
        assert_eq!((second.count, second.truncated), (6, true));
        assert_eq!(try_receive(&right, &mut buffer).unwrap_err(), Errno::EAGAIN);
        drop(left);
        assert_eq!(receive(&right, &mut buffer).unwrap().count, 0);
        assert_eq!(send(&right, b"x", &[]).unwrap_err(), Errno::EPIPE);
    }

    #[test]
    fn a_look_at_a_message_takes_nothing() {
        let (left, right) = pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(peek(&right, &mut buffer).unwrap_err(), Errno::EAGAIN);
        let (told, other) = pair().unwrap();
        send(&left, b"with", &[other.as_fd()]).unwrap();
        send(&left, b"and without", &[]).unwrap();
        drop(other);
        let peeked = |truncated, carries, count| Peeked { count, truncated, carries };
        for _ in 0..2 {
            assert_eq!(peek(&right, &mut buffer).unwrap(), peeked(false, true, 4));
        }
        assert_eq!(peek(&told, &mut buffer).unwrap_err(), Errno::EAGAIN, "it is open still");
        assert_eq!(try_receive(&right, &mut buffer).unwrap().fds.len(), 1);
        assert_eq!(peek(&right, &mut buffer).unwrap(), peeked(true, false, 8));
        assert!(try_receive(&right, &mut buffer).is_ok());
        drop(left);
        assert_eq!(peek(&right, &mut buffer).unwrap(), peeked(false, false, 0));
    }

    #[test]
    fn a_connection_is_settled_when_nothing_with_descriptors_is_left() {
        let (left, right) = pair().unwrap();
        let (told, other) = pair().unwrap();
        for bytes in [&b"one"[..], b"", b"another", b""] {
            send(&left, bytes, &[]).unwrap();
        }
        assert!(settle(&right) && settle(&right));
        assert_eq!(send(&left, b"late", &[other.as_fd()]).unwrap_err(), Errno::EPIPE);
        send(&right, b"answer", &[]).unwrap();
        assert_eq!(receive(&left, &mut [0; 8]).unwrap().count, 6);
        drop(right);
        for bytes in [&b""[..], b"with"] {
            let (left, right) = pair().unwrap();
            send(&left, b"", &[]).unwrap();
            send(&left, bytes, &[other.as_fd()]).unwrap();
            assert!(!settle(&right) && !settle(&right), "{bytes:?}");
            drop(left);
            assert!(!settle(&right), "its peer has gone");
        }
        let (left, right) = pair().unwrap();
        (0..=SETTLED_MAX).for_each(|_| send(&left, b"x", &[]).unwrap());
        assert!(!settle(&right), "too many");
        drop(left);
        assert!(settle(&right), "the rest of them");
        drop(other);
        assert_eq!(receive(&told, &mut [0; 1]).unwrap().count, 0, "no descriptor was taken");
        let (file, _) = std::io::pipe().unwrap();
        assert!(!settle(&file), "no connection");
    }

    #[test]
    fn a_number_stands_for_a_peer_only_where_the_kernel_knows_no_pidfds_of_peers() {
        let me = std::process::id().cast_signed();
        assert!(by_number(Errno(libc::ENOPROTOOPT), me).is_some());
        for why in [Errno::ESRCH, Errno::EINVAL, Errno::ENODATA, Errno::EMFILE] {
            assert!(by_number(why, me).is_none(), "{why}");
        }
    }

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn note(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_signal_does_not_end_the_waiting_for_a_connection() {
        let path = std::env::temp_dir().join(format!("polylane-scm-full-{}", std::process::id()));
        let listener = listen(&path, 0).unwrap();
        let waiting = connect_now(&path).unwrap();
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: the handler adds to an atomic alone.
        unsafe { libc::signal(libc::SIGURG, handler as libc::sighandler_t) };
        let (told, tid) = std::sync::mpsc::channel();
        let asks = std::thread::spawn({
            let path = path.clone();
            move || {
                // SAFETY: no arguments, no memory.
                told.send(unsafe { libc::gettid() }).unwrap();
                connect_within(&path, Duration::from_secs(600))
            }
        });
        let tid = tid.recv().unwrap();
        let stat = format!("/proc/self/task/{tid}/stat");
        let until = Instant::now() + Duration::from_secs(60);
        for round in 0..20 {
            let sleeps = || crate::procstat::ProcessStat::read(&stat).unwrap().state == b'S';
            while HANDLED.load(Ordering::SeqCst) < round || !sleeps() {
                assert!(Instant::now() < until && !asks.is_finished(), "round {round}");
                std::thread::yield_now();
            }
            // SAFETY: the thread runs until a connection is taken below.
            unsafe { libc::tgkill(libc::getpid(), tid, libc::SIGURG) };
        }
        drop((accept(&listener).unwrap(), waiting));
        asks.join().unwrap().unwrap();
        assert_eq!(connect_within(&path, Duration::from_millis(1)).unwrap_err(), Errno::EAGAIN);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn long_paths_connect_and_the_peer_is_known() {
        let deep = "d".repeat(120);
        let dir = std::env::temp_dir().join(format!("polylane-scm-{}", std::process::id()));
        let path = dir.join(deep);
        std::fs::create_dir_all(&path).unwrap();
        let path = path.join("socket");
        let listener = listen(&path, 4).unwrap();
        let _client = connect(&path).unwrap();
        let peer = peer(accept(&listener).unwrap()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.identity.uid, rustix::process::geteuid().as_raw());
        assert!(peer.pidfd.is_some());
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut seen = peer.identity.groups;
        own.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, own);
    }
}
