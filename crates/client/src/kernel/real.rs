//! The libc functions that ours stand in front of.
//!
//! Each is looked up with `dlsym(RTLD_NEXT)` in the constructor, or at its first call when a hook
//! runs before that. Nothing else in this library calls a libc function that it also hooks: system
//! calls of our own go through rustix, which does not pass libc.
//!
//! # Numbers of descriptors
//!
//! C passes numbers about, not owners: a program may close any number in any thread at any time, so
//! no type here can say that one is open. Two rules stand in place of ownership:
//!
//! - A number is closed or replaced ([`close_quietly`], [`close_run`], [`replace`]) only if the
//!   program has just asked for that by a hooked call, if it is in the list of `reserved`, or if
//!   the caller has just made it and told nobody. What the program closes past our hooks is its own
//!   affair, as with libc.
//! - A number that is used otherwise ([`borrow`]) is given to one system call, which fails with
//!   `EBADF` on a closed one, and does to another file what C's own function would do. No memory is
//!   read or written on the strength of a number being open.
#![expect(unsafe_code, reason = "UNSAFETY: looks functions up by name and calls them")]

#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod apart;
#[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
mod objects;
mod table;
#[cfg(all(target_env = "gnu", target_pointer_width = "64", not(test)))]
mod unwind;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use polylane_ipc::ioctl::{PiecesAnswer, PiecesQuestion};
use zerocopy::IntoBytes;

pub(crate) use table::*;

/// The argument of `ioctl` and the rest of what C leaves open.
type Word = c_long;
/// `char *const []`
pub(crate) type Strings = *const *const c_char;

/// Stands for the address of a function that this libc does not have.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

/// One function, by name.
pub(crate) struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static str) -> Self {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name without NUL"),
        };
        Symbol { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The next definition after ours; null when this libc has none.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.addr() <= MISSING.addr() { self.look_up(known) } else { known }
    }

    /// Asks the loader once: for a name that it does not find it allocates memory for an error.
    #[cold]
    fn look_up(&self, known: *mut c_void) -> *mut c_void {
        if known == MISSING {
            return std::ptr::null_mut();
        }
        // SAFETY: the name is a C string; RTLD_NEXT is valid in a loaded object.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let noted = if found.is_null() { MISSING } else { found };
        self.address.store(noted, Ordering::Relaxed);
        found
    }
}

/// Looks all of them up. Called once, from the constructor.
pub(crate) fn resolve() {
    #[cfg(all(
        target_env = "gnu",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(test)
    ))]
    apart::resolve();
    for symbol in table::ALL {
        symbol.get();
    }
}

/// How a C function of this result type says that it failed.
pub(crate) trait Failure {
    /// The value.
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}
impl Failure for i64 {
    const FAILED: Self = -1;
}
impl Failure for isize {
    const FAILED: Self = -1;
}
impl Failure for usize {
    /// `SIG_ERR`
    const FAILED: Self = usize::MAX;
}
impl Failure for () {
    const FAILED: Self = ();
}
impl<T> Failure for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

/// Fails a call whose function this libc does not have.
fn missing<T: Failure>() -> T {
    set_errno(libc::ENOSYS);
    T::FAILED
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is valid for the life of the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = errno }
}

/// A descriptor number as rustix takes it, for one system call. That it is open is checked by the
/// kernel at each.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the second rule of this module's head: whether the number stays open matters to no
    // memory. -1 is the one value that the type forbids; a number that is never open stands for it.
    unsafe { BorrowedFd::borrow_raw(if fd < 0 { RawFd::MAX } else { fd }) }
}

/// `close` of a number that the first rule of this module's head allows, whatever it says, past our
/// own hook and libc, in which a thread could be cancelled.
pub(crate) fn close_quietly(fd: RawFd) {
    if fd >= 0 {
        let errno = errno();
        // SAFETY: closing a number harms no memory. One that is closed already, as in a child
        // forked just then, fails and nothing more.
        unsafe { syscall(libc::SYS_close, fd.into(), 0, 0, 0, 0, 0) };
        set_errno(errno);
    }
}

/// A close-on-exec copy at the lowest free number from `min` on.
pub(crate) fn dup_from(fd: RawFd, min: RawFd) -> rustix::io::Result<RawFd> {
    rustix::io::fcntl_dupfd_cloexec(borrow(fd), min).map(IntoRawFd::into_raw_fd)
}

/// Blocks all signals for this thread; returns the former mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are valid for the calls; a sigset_t is plain data.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

/// Undoes [`block_signals`].
pub(crate) fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: a mask that block_signals returned.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// What the paths take that connect to a service and look for the working directory, with a
/// signal's frame on a CPU with AVX-512: the largest seen is 14 KiB.
const DEEP_BYTES: usize = 32 << 10;

/// Whether the calling thread runs on a signal stack that such a path may not fit on. Below one
/// there is no guard page.
#[cold]
pub(crate) fn is_on_small_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: nothing is set, and the place is valid.
    let rc = unsafe { libc::sigaltstack(std::ptr::null(), &mut stack) };
    rc == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 && stack.ss_size < DEEP_BYTES
}

/// Has a cancellation of this thread wait until [`restore_cancel`] has the state that is returned;
/// `None`: this C library knows none.
#[inline]
pub(crate) fn defer_cancel() -> Option<i32> {
    /// glibc's, and musl's.
    const PTHREAD_CANCEL_DISABLE: i32 = 1;
    let mut former = 0;
    // SAFETY: the place is valid.
    let rc = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut former) };
    (rc == 0).then_some(former)
}

/// Undoes [`defer_cancel`]; may be where a thread ends that can be cancelled at any instruction.
#[inline]
pub(crate) fn restore_cancel(former: Option<i32>) {
    if let Some(former) = former {
        // SAFETY: a place is not needed; unwinding finds only hooks.
        unsafe { pthread_setcancelstate(former, std::ptr::null_mut()) };
    }
}

/// Has the kernel zero `memory` in every forked child. Its pages hold nothing else.
pub(crate) fn wipe_on_fork<T>(memory: &'static T) {
    let start = std::ptr::from_ref(memory).cast_mut().cast();
    // SAFETY: the range is its own, for as long as the process lasts; only a child sees an effect,
    // before it uses it.
    unsafe { libc::madvise(start, size_of::<T>(), libc::MADV_WIPEONFORK) };
}

/// Asks the service, through the kernel, for a ticket for an open file of the lane.
pub(crate) fn identify(fd: RawFd) -> Option<[u8; 16]> {
    let mut ticket = [0u8; 16];
    let request = libc::c_ulong::from(polylane_ipc::ioctl::IOCTL_IDENTIFY);
    let buffer = ticket.as_mut_ptr() as Word;
    // SAFETY: the request writes 16 bytes, as its number says.
    let rc = unsafe { ioctl(fd, request, buffer) };
    (rc == 0).then_some(ticket)
}

/// Asks the service, through the kernel, where the file of a descriptor of the lane lies.
pub(crate) fn pieces(
    fd: RawFd,
    question: PiecesQuestion,
    answer: &mut PiecesAnswer,
) -> rustix::io::Result<()> {
    let request = libc::c_ulong::from(polylane_ipc::ioctl::IOCTL_PIECES);
    let argument = answer.as_mut_bytes();
    argument[..size_of::<PiecesQuestion>()].copy_from_slice(question.as_bytes());
    let buffer = argument.as_mut_ptr() as Word;
    // SAFETY: the request reads and writes as many bytes as its number says, which the answer has;
    // any bytes are one.
    match unsafe { ioctl(fd, request, buffer) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_raw_os_error(errno())),
    }
}

/// The working directory's path; `None` when it has none. Not async-signal-safe in glibc's corner
/// cases.
pub(crate) fn working_directory(into: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the buffer is as long as said.
    let path = unsafe { getcwd(into.as_mut_ptr().cast(), into.len()) };
    let end = into.iter().position(|&byte| byte == 0)?;
    (!path.is_null()).then(|| &into[..end])
}

/// Has the kernel look a path up, whatever there is.
pub(crate) fn look(dir: RawFd, path: &[u8]) {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let mut text = [0; polylane_ipc::message::PATH_BYTES_MAX + 1];
    let Some(place) = text.get_mut(..path.len()) else { return };
    place.copy_from_slice(path);
    let Ok(text) = CStr::from_bytes_until_nul(&text) else { return };
    let dir = if dir == libc::AT_FDCWD { CWD } else { borrow(dir) };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let _ = statx(dir, text, flags, StatxFlags::TYPE);
}

/// Device and inode number of a path as the kernel remembers them, without asking the file system.
pub(crate) fn stat_cached(path: &[u8]) -> rustix::io::Result<(u64, u64)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::INO)?;
    Ok((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

/// Device, kind (`S_IFMT` bits) and inode number of an open file, without asking the file system.
pub(crate) fn kind_cached(fd: RawFd) -> rustix::io::Result<(u64, u32, u64)> {
    let stat = state_cached(fd)?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok((device, u32::from(stat.stx_mode) & libc::S_IFMT, stat.stx_ino))
}

/// What `F_GETFL` says.
pub(crate) fn status_flags(fd: RawFd) -> rustix::io::Result<c_int> {
    rustix::fs::fcntl_getfl(borrow(fd)).map(|flags| flags.bits().cast_signed())
}

/// Inode number of an open file, without asking the file system.
pub(crate) fn node_cached(fd: RawFd) -> rustix::io::Result<u64> {
    state_cached(fd).map(|stat| stat.stx_ino)
}

/// The size of an open file that the kernel knows of.
pub(crate) fn size_cached(fd: RawFd) -> rustix::io::Result<u64> {
    state_cached(fd).map(|stat| stat.stx_size)
}

fn state_cached(fd: RawFd) -> rustix::io::Result<rustix::fs::Statx> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(borrow(fd), c"", flags, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE)
}

/// Seconds of the monotonic clock; no system call.
pub(crate) fn seconds() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse).tv_sec
}

/// The calling thread's effective capabilities, the kernel's 64 bits.
pub(crate) fn capabilities() -> Option<u64> {
    let sets = rustix::thread::capabilities(None).ok()?;
    Some(sets.effective.bits())
}

/// Whether the calling thread's user for files owns an open file.
pub(crate) fn owns(fd: RawFd) -> bool {
    // SAFETY: the call has no memory; it refuses a user that is none, and tells the one there is.
    let user = unsafe { setfsuid(libc::uid_t::MAX) };
    rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| stat.st_uid == user as libc::uid_t)
}

/// Whether the calling thread is in the user namespace that the host began with; `None`: there is
/// no /proc to tell.
pub(crate) fn is_in_first_user_namespace() -> Option<bool> {
    /// `PROC_USER_INIT_INO`.
    const FIRST: u64 = 0xefff_fffd;
    let stat = rustix::fs::stat(c"/proc/thread-self/ns/user").ok()?;
    Some(stat.st_ino == FIRST)
}

/// Opens a path, past our own hook, with mode 0600 if it is to be created.
pub(crate) fn open_file(path: &[u8], flags: c_int) -> rustix::io::Result<RawFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::from_bits_retain(flags as c_uint);
    openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map(IntoRawFd::into_raw_fd)
}

/// `getdents64`: as many entries of a directory as fit; returns their bytes.
pub(crate) fn list(fd: RawFd, into: &mut [u8]) -> rustix::io::Result<usize> {
    let errno = errno();
    let (number, at, len) = (libc::SYS_getdents64, into.as_mut_ptr() as Word, into.len() as Word);
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let rc = unsafe { syscall(number, fd.into(), at, len, 0, 0, 0) };
    let failed = self::errno();
    set_errno(errno);
    usize::try_from(rc).map_err(|_| rustix::io::Errno::from_raw_os_error(failed))
}

/// Reads the start of a file, past our own hooks.
pub(crate) fn read_file<'a>(path: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let fd = open_file(path, libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let count = rustix::io::read(borrow(fd), &mut *into);
    close_quietly(fd);
    into.get(..count.ok()?)
}

/// Has `number`, which is open, be a copy of `fd` from now on; whether exec closes it stays.
pub(crate) fn replace(number: RawFd, fd: RawFd) -> rustix::io::Result<()> {
    use rustix::io::{DupFlags, FdFlags, dup3, fcntl_getfd};
    let closes = fcntl_getfd(borrow(number))?.contains(FdFlags::CLOEXEC);
    let flags = if closes { DupFlags::CLOEXEC } else { DupFlags::empty() };
    // SAFETY: whoever has the number keeps it: it is open before and after, and never closed here.
    let mut place = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    dup3(borrow(fd), &mut place, flags)
}

/// Whether exec closes a descriptor.
pub(crate) fn closes_on_exec(fd: RawFd) -> bool {
    use rustix::io::{FdFlags, fcntl_getfd};
    fcntl_getfd(borrow(fd)).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// Has `to` send the signals that `from` sends (`F_SETSIG`), to whom it does (`F_SETOWN_EX`).
pub(crate) fn copy_signals(from: RawFd, to: RawFd) {
    const F_SETSIG: c_int = 10;
    const F_GETSIG: c_int = 11;
    const F_SETOWN_EX: c_int = 15;
    const F_GETOWN_EX: c_int = 16;
    let errno = errno();
    // `struct f_owner_ex`: what it is, and its number.
    let mut owner: [c_int; 2] = [0; 2];
    let place = owner.as_mut_ptr() as Word;
    // SAFETY: the kernel reads or writes the two numbers.
    unsafe {
        if fcntl(from, F_GETOWN_EX, place) == 0 && owner[1] != 0 {
            fcntl(to, F_SETOWN_EX, place);
        }
        let signal = fcntl(from, F_GETSIG, 0);
        if signal > 0 {
            fcntl(to, F_SETSIG, signal.into());
        }
    }
    set_errno(errno);
}

/// `close_range` without flags, past our own hook.
pub(crate) fn close_run(first: u32, last: u32) -> rustix::io::Result<()> {
    let errno = errno();
    // SAFETY: closing numbers harms no memory; the caller of the hook owns them.
    let rc = unsafe { close_range(first, last, 0) };
    let failed = if rc == 0 { None } else { Some(self::errno()) };
    set_errno(errno);
    failed.map_or(Ok(()), |errno| Err(rustix::io::Errno::from_raw_os_error(errno)))
}

/// A close-on-exec pipe: reading and writing end.
pub(crate) fn private_pipe() -> rustix::io::Result<(RawFd, RawFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((reader.into_raw_fd(), writer.into_raw_fd()))
}

/// Waits until nobody holds the writing end of a pipe any more.
pub(crate) fn wait_for_end(reader: RawFd) {
    while let Err(rustix::io::Errno::INTR) = rustix::io::read(borrow(reader), &mut [0; 1]) {}
}

/// Zeroed memory of no allocator: exec may be called in a signal handler. Dropped, it is given
/// back; a call that replaces the program never comes to that.
pub(crate) struct Scratch {
    memory: NonNull<c_void>,
    len: usize,
}

impl Scratch {
    /// So many bytes, in whole pages; `None`: there is no memory, or nothing is asked for.
    pub(crate) fn new(len: usize) -> Option<Scratch> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }.ok()?;
        NonNull::new(memory).map(|memory| Scratch { memory, len })
    }

    /// Where it starts, at a page.
    pub(crate) fn start(&self) -> *mut c_void {
        self.memory.as_ptr()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and goes with it.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr(), self.len) };
    }
}

/// Sends a signal to the calling thread.
pub(crate) fn raise(signal: c_int) {
    // SAFETY: no memory is involved; what a handler does is the program's.
    unsafe { libc::raise(signal) };
}

/// Whether any signal handler is installed that interrupts a call rather than have it go on
/// (`SA_RESTART`). Which one ran cannot be known here.
pub(crate) fn handlers_interrupt() -> bool {
    let interrupts = |signal| {
        // SAFETY: a sigaction is plain data; with a null new action the call only reads.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            sigaction(signal, std::ptr::null(), &mut action);
            action
        };
        let handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        handled && action.sa_flags & libc::SA_RESTART == 0
    };
    let errno = errno();
    let any = (1..=libc::SIGRTMAX()).any(interrupts);
    set_errno(errno);
    any
}

/// Whether the handler of a signal lets the interrupted call go on (`SA_RESTART`).
pub(crate) fn handler_restarts(signal: c_int) -> bool {
    let errno = errno();
    // SAFETY: as in `handlers_interrupt`.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        sigaction(signal, std::ptr::null(), &mut action);
        action
    };
    set_errno(errno);
    action.sa_flags & libc::SA_RESTART != 0
}

/// Whether a filter answers a request to type into a terminal in the kernel's place: of a number
/// that is no descriptor.
pub(crate) fn refuses_to_type() -> bool {
    let errno = errno();
    // SAFETY: the kernel looks at the descriptor first, and there is none.
    let rc = unsafe { ioctl(-1, libc::TIOCSTI as _, 0) };
    let refused = rc == -1 && self::errno() == libc::EPERM;
    set_errno(errno);
    refused
}

/// Has `handler` run where a filter raises `SIGSYS` in this thread.
pub(crate) fn catch_refused_calls(handler: extern "C" fn(c_int)) {
    let bit = 1u64 << (libc::SIGSYS - 1);
    let (how, mask) = (libc::SIG_UNBLOCK.into(), (&raw const bit) as Word);
    // SAFETY: a sigaction is plain data; the kernel reads it and the mask, of 8 bytes, during the
    // calls. What the handler does is its own affair.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
        syscall(libc::SYS_rt_sigprocmask, how, mask, 0, 8, 0, 0);
    }
}

/// The key by which threads are told from others at their end, plus one; 0: there is none.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);

/// Makes the library's unwinder ready for threads that are cancelled. Called once, from the
/// constructor.
pub(crate) fn prepare_unwinder() {
    #[cfg(all(target_env = "gnu", target_pointer_width = "64", not(test)))]
    unwind::prepare();
}

/// Makes [`call_at_thread_exit`] work. Called once, from the constructor: the program has made few
/// keys by then, and libc allocates memory for the values of later ones. `at_exit` is handed in
/// because libc calls upward: it gives back what the ending thread has of a session.
pub(crate) fn prepare_thread_exit(at_exit: extern "C" fn(*mut c_void)) {
    let mut key = 0;
    // SAFETY: the key is written before use; the destructor has the type that libc wants.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_exit)) } == 0 {
        EXIT_KEY.store(key + 1, Ordering::Release);
    }
}

/// Has the function that [`prepare_thread_exit`] was given called when this thread ends.
pub(crate) fn call_at_thread_exit() {
    if let Some(key) = EXIT_KEY.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: the key exists; any non-null value has the destructor called.
        unsafe { libc::pthread_setspecific(key, std::ptr::dangling()) };
    }
}
