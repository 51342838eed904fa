//! Calls that give out a descriptor which the library knows nothing of: what it knew of the number
//! is stale. It knows something only where the number was closed past the hooks, by a system call
//! made inline or by libc's own functions; then a write to the new socket would go into the old
//! file.

use std::ffi::{c_char, c_long, c_uint, c_void};

use libc::{FILE, c_int, mode_t, msghdr, pid_t, sigset_t, ssize_t, timespec};

use super::{arg, cancel, hooks};
use crate::kernel::real;
use crate::ops::file;
use crate::ops::process;
use crate::ops::share::Heir;
use crate::ops::state::STATE;

/// A number that the kernel gave out.
#[inline]
pub(super) fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        file::forget(&STATE, fd);
    }
    fd
}

/// Two of them, if the call that wrote them succeeded.
///
/// # Safety
///
/// Null or two numbers, if `rc` is 0.
unsafe fn made_two(rc: c_int, two: *const c_int) -> c_int {
    if rc == 0 && !two.is_null() {
        // SAFETY: the call wrote both.
        unsafe {
            made(*two);
            made(*two.add(1));
        }
    }
    rc
}

/// The number behind a stream that libc opened.
fn made_stream(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() {
        // SAFETY: an open stream.
        made(unsafe { libc::fileno(stream) });
    }
    stream
}

/// The numbers that came with a message.
///
/// # Safety
///
/// A message that recvmsg filled in.
unsafe fn received(message: *const msghdr) {
    // SAFETY: by contract.
    unsafe {
        each_sent(message, |fd| {
            made(fd);
        });
    }
}

/// The numbers that go, or came, with a message.
///
/// # Safety
///
/// A message that recvmsg filled in, or that sendmsg is about to send.
pub(super) unsafe fn each_sent(message: *const msghdr, mut with: impl FnMut(c_int)) {
    // SAFETY: by contract; the macros stay within the control bytes.
    unsafe {
        if (*message).msg_controllen == 0 || arg::is_nowhere((*message).msg_control) {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = header.as_ref() {
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let numbers = libc::CMSG_DATA(header).cast::<c_int>();
                // Its type differs between libcs.
                let bytes = (head.cmsg_len as u64).saturating_sub(libc::CMSG_LEN(0).into());
                for n in 0..bytes as usize / size_of::<c_int>() {
                    with(numbers.add(n).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// A descriptor taken out of another process, which does not know of it: if it is one of the lane,
/// the service is told at once, so that the other's slot serves no other file.
fn taken(fd: c_int) -> c_int {
    if made(fd) >= 0 {
        let errno = real::errno();
        // Where there is no session to be had, it is as with programs without the library.
        let _ = super::attempt(|| file::take_over(&STATE, fd));
        real::set_errno(errno);
    }
    fd
}

/// `["names"] fn name(arguments);`: hooks that return the number that the real function made.
macro_rules! makers {
    ($(
        [$($export:literal),+] fn $name:ident($($arg:ident: $type:ty),*) $(cancelled $at:block)?;
    )*) => {
        hooks! {
            $(
                /// The C function of this name.
                [$($export),+]
                fn $name($($arg: $type),*) -> c_int {
                    $($at)?
                    // SAFETY: the caller's own arguments.
                    made(unsafe { real::$name($($arg),*) })
                }
            )*
        }
    };
}

makers! {
    ["socket", "__socket"] fn socket(domain: c_int, kind: c_int, protocol: c_int);
    ["accept"] fn accept(socket: c_int, address: *mut c_void, len: *mut c_uint)
        cancelled { cancel::point() };
    ["accept4"] fn accept4(socket: c_int, address: *mut c_void, len: *mut c_uint, flags: c_int)
        cancelled { cancel::point() };
    ["eventfd"] fn eventfd(count: c_uint, flags: c_int);
    ["epoll_create"] fn epoll_create(size: c_int);
    ["epoll_create1"] fn epoll_create1(flags: c_int);
    ["memfd_create"] fn memfd_create(name: *const c_char, flags: c_uint);
    ["timerfd_create"] fn timerfd_create(clock: c_int, flags: c_int);
    ["signalfd"] fn signalfd(fd: c_int, signals: *const sigset_t, flags: c_int);
    ["inotify_init"] fn inotify_init();
    ["inotify_init1"] fn inotify_init1(flags: c_int);
    ["fanotify_init"] fn fanotify_init(flags: c_uint, events: c_uint);
    ["pidfd_open"] fn pidfd_open(pid: pid_t, flags: c_uint);
    ["open_by_handle_at"]
        fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
    ["open_tree"] fn open_tree(dir: c_int, path: *const c_char, flags: c_uint);
    ["fsopen"] fn fsopen(name: *const c_char, flags: c_uint);
    ["fsmount"] fn fsmount(fd: c_int, flags: c_uint, attributes: c_uint);
    ["fspick"] fn fspick(dir: c_int, path: *const c_char, flags: c_uint);
    ["mq_open"]
        fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void);
    ["shm_open"] fn shm_open(name: *const c_char, flags: c_int, mode: mode_t);
    ["posix_openpt"] fn posix_openpt(flags: c_int);
    ["getpt"] fn getpt();
    ["mkstemp", "mkstemp64"] fn mkstemp(name: *mut c_char);
    ["mkostemp", "mkostemp64"] fn mkostemp(name: *mut c_char, flags: c_int);
    ["mkstemps", "mkstemps64"] fn mkstemps(name: *mut c_char, suffix: c_int);
    ["mkostemps", "mkostemps64"]
        fn mkostemps(name: *mut c_char, suffix: c_int, flags: c_int);
}

hooks! {
    /// `pidfd_getfd`
    ["pidfd_getfd"]
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        // SAFETY: the caller's own arguments; so below.
        taken(unsafe { real::pidfd_getfd(process, fd, flags) })
    }

    /// `socketpair`
    ["socketpair"]
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, into: *mut c_int) -> c_int {
        // SAFETY: as above; the call wrote both numbers. So below.
        unsafe { made_two(real::socketpair(domain, kind, protocol, into), into) }
    }

    /// `pipe`
    ["pipe", "__pipe"]
    fn pipe(into: *mut c_int) -> c_int {
        // SAFETY: as above.
        unsafe { made_two(real::pipe(into), into) }
    }

    /// `pipe2`
    ["pipe2"]
    fn pipe2(into: *mut c_int, flags: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { made_two(real::pipe2(into, flags), into) }
    }

    /// `openpty`
    ["openpty"]
    fn openpty(
        master: *mut c_int, slave: *mut c_int, name: *mut c_char, mode: *const c_void,
        size: *const c_void
    ) -> c_int {
        // SAFETY: as above.
        unsafe {
            let rc = real::openpty(master, slave, name, mode, size);
            if rc == 0 {
                made(*master);
                made(*slave);
            }
            rc
        }
    }

    /// `recvmsg`
    ["recvmsg"]
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        cancel::point();
        // SAFETY: the caller's own arguments, which the call filled in.
        unsafe {
            let rc = real::recvmsg(socket, message, flags);
            if rc >= 0 {
                received(message);
            }
            rc
        }
    }

    /// `recvmmsg`
    ["recvmmsg"]
    fn recvmmsg(
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec
    ) -> c_int {
        cancel::point();
        // SAFETY: the caller's own arguments; as many messages as it says are filled in.
        unsafe {
            let rc = real::recvmmsg(socket, messages, count, flags, timeout);
            for n in 0..rc.max(0) as usize {
                received(&raw const (*messages.add(n)).msg_hdr);
            }
            rc
        }
    }

    /// `fopen`
    ["fopen", "fopen64"]
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's own arguments; so below.
        made_stream(unsafe { real::fopen(path, mode) })
    }

    /// `tmpfile`
    ["tmpfile", "tmpfile64"]
    fn tmpfile() -> *mut FILE {
        // SAFETY: as above.
        made_stream(unsafe { real::tmpfile() })
    }

    /// `popen`, which makes another process, too.
    ["popen"]
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        let _sharing = process::before_sharing_with(&STATE, Heir::Program);
        // SAFETY: as above.
        made_stream(unsafe { real::popen(command, mode) })
    }
}

/// A system call by number that the kernel did: forgets the numbers that it gave out. What does
/// different things by an argument, of which few give out a number (bpf, keyctl, seccomp), is not
/// here: to forget a file that is open is worse.
///
/// # Safety
///
/// Its arguments and its result, which is no error.
pub(super) unsafe fn after(number: c_long, (a, b, d): (c_long, c_long, c_long), rc: c_long) {
    // SAFETY: the kernel read and wrote what the arguments point to.
    unsafe {
        match number {
            libc::SYS_pidfd_getfd => {
                taken(rc as c_int);
            }
            libc::SYS_pipe2 => {
                made_two(0, a as *const c_int);
            }
            libc::SYS_socketpair => {
                made_two(0, d as *const c_int);
            }
            libc::SYS_recvmsg => received(b as *const msghdr),
            number if makes(number) => {
                made(rc as c_int);
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_pipe => {
                made_two(0, a as *const c_int);
            }
            _ => {}
        }
    }
}

/// Whether a system call gives out a number whenever it succeeds.
fn makes(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(
        number,
        libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_eventfd
            | libc::SYS_signalfd
            | libc::SYS_epoll_create
            | libc::SYS_inotify_init
    ) {
        return true;
    }
    matches!(
        number,
        libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_open_by_handle_at
            | libc::SYS_open_tree
            | libc::SYS_fsopen
            | libc::SYS_fsmount
            | libc::SYS_fspick
            | libc::SYS_socket
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_eventfd2
            | libc::SYS_epoll_create1
            | libc::SYS_memfd_create
            | libc::SYS_memfd_secret
            | libc::SYS_timerfd_create
            | libc::SYS_signalfd4
            | libc::SYS_inotify_init1
            | libc::SYS_fanotify_init
            | libc::SYS_pidfd_open
            | libc::SYS_perf_event_open
            | libc::SYS_userfaultfd
            | libc::SYS_mq_open
    )
}
