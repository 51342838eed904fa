//! Processes and namespaces: fork by clone3, signals as a descriptor, descriptors by number.
//!
//! What this module promises above: a forked child runs ordinary Rust, because [`fork`] refuses to
//! run in a process with more than one thread; a descriptor number becomes an [`OwnedFd`] at most
//! once.
#![expect(unsafe_code, reason = "UNSAFETY: clone3, sigprocmask, signalfd and fds given by number")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use polylane_base::sync::{Mutex, thread};

/// Namespaces that a forked child gets for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Namespaces {
    /// A user namespace. The child has no mapping yet: it writes `/proc/self/uid_map` itself.
    pub user: bool,
    /// A copy of the mount table.
    pub mount: bool,
    /// A pid namespace with the child as its pid 1: when it dies, the kernel kills the rest.
    pub pid: bool,
}

impl Namespaces {
    fn flags(self) -> u64 {
        let bit = |on: bool, flag: i32| if on { flag as u64 } else { 0 };
        bit(self.user, libc::CLONE_NEWUSER)
            | bit(self.mount, libc::CLONE_NEWNS)
            | bit(self.pid, libc::CLONE_NEWPID)
    }
}

/// Gives the calling process, which must have one thread, a mount table, System V IPC and a host
/// name of its own; with `network` also a network; with `user` in a user namespace of its own,
/// where it has every capability and no user is mapped yet.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN, with `user` where ordinary users may make none; `ENOSPC`
/// (namespace limit).
pub fn unshare_private(user: bool, network: bool) -> rustix::io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    flags.set(UnshareFlags::NEWNET, network);
    flags.set(UnshareFlags::NEWUSER, user);
    // SAFETY: only unsharing the table of descriptors can break ownership rules, and it is not
    // among the flags.
    unsafe { unshare_unsafe(flags) }
}

/// Gives this process a mount namespace of its own, a copy of the former.
///
/// # Errors
/// See unshare(2).
pub fn unshare_mounts() -> rustix::io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the flag parts no file descriptor table, and no memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}

/// Gives the calling thread a root and a working directory of its own: by that it may enter another
/// mount namespace alone.
///
/// # Errors
/// See unshare(2).
pub fn unshare_directories() -> rustix::io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: as above.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// Makes the control groups that the calling process is in the roots of what it sees of control
/// groups from now on.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN, `EINVAL` in a kernel without control groups.
pub fn unshare_groups() -> rustix::io::Result<()> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: as above.
    unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }
}

/// The namespace that a namespace of process numbers or of users lies in.
///
/// # Errors
/// `EPERM` where that is out of the caller's sight; `ENOTTY` for what is no namespace.
pub fn parent_namespace(namespace: impl AsFd) -> io::Result<OwnedFd> {
    /// `NS_GET_PARENT`
    const GET_PARENT: u64 = 0xb702;
    // SAFETY: it has no argument, and gives a new descriptor, which is ours alone.
    unsafe {
        let fd = libc::ioctl(namespace.as_fd().as_raw_fd(), GET_PARENT as _);
        match fd {
            0.. => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The user who made a user namespace, by the number in the caller's.
///
/// # Errors
/// `EINVAL` for what is no user namespace; `ENOTTY` for what is no namespace.
pub fn owner(namespace: impl AsFd) -> io::Result<u32> {
    /// `NS_GET_OWNER_UID`
    const GET_OWNER: u64 = 0xb704;
    let mut owner: libc::uid_t = 0;
    // SAFETY: it stores one number, which outlives the call.
    let done =
        unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), GET_OWNER as _, &raw mut owner) };
    match done {
        0 => Ok(owner),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process that a thread is of, which has that number in a namespace of process numbers; by
/// its number in the caller's.
///
/// # Errors
/// `ESRCH`: there is no such thread, or it has no number here; `ENOTTY` before Linux 6.11.
pub fn process_of(namespace: impl AsFd, thread: u32) -> io::Result<u32> {
    /// `NS_GET_TGID_FROM_PIDNS`
    const GET_PROCESS: u64 = 0x8004_b707;
    // SAFETY: its argument is a number, and it writes nothing.
    let found =
        unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), GET_PROCESS as _, u64::from(thread)) };
    match found {
        1.. => Ok(found.cast_unsigned()),
        0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The child.
    Child,
    /// The parent, with the child.
    Parent(Child),
}

/// A child process. Dropping it neither kills nor reaps.
#[derive(Debug)]
pub struct Child {
    /// Its number in the caller's pid namespace.
    pub pid: u32,
    /// A descriptor of it, readable (poll) once it has ended. Close-on-exec.
    pub pidfd: OwnedFd,
}

/// Whether this process has one thread of its own. A worker of io_uring's, which stays with the
/// thread that it works for, shows as one too.
fn is_alone() -> io::Result<bool> {
    let mut own = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let name = std::fs::read(task?.path().join("comm")).unwrap_or_default();
        own += usize::from(!name.starts_with(b"iou-wrk-"));
    }
    Ok(own == 1)
}

/// Does `work` in a thread of its own, which the kernel has taken off its list afterwards: joining
/// alone does not wait for that, and [`fork`] counts it until then. `Err` within: it panicked.
///
/// # Errors
/// `EAGAIN`: no thread can be made.
pub fn in_a_thread<T: Send>(
    thread: thread::Builder,
    work: impl FnOnce() -> T + Send,
) -> io::Result<thread::Result<T>> {
    let task = OnceLock::new();
    let noted = || {
        let _ = task.set(rustix::thread::gettid());
        work()
    };
    let done = thread::scope(|scope| thread.spawn_scoped(scope, noted).map(|made| made.join()))?;
    if let Some(task) = task.get() {
        let entry = format!("/proc/self/task/{task}");
        while std::fs::exists(&entry).is_ok_and(|listed| listed) {
            thread::yield_now();
        }
    }
    Ok(done)
}

/// Forks with the given new namespaces. The parent gets SIGCHLD at the child's end.
///
/// # Errors
/// `EBUSY` when this process has more than one thread (a lock held by another thread would stay
/// locked for ever in the child; io_uring's workers are the kernel's and hold none), else what
/// clone3(2) says: `EPERM`, `ENOSPC` (namespace limit).
pub fn fork(namespaces: Namespaces) -> io::Result<Fork> {
    if !is_alone()? {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain numbers; all zeros is its documented default.
    let mut args: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    args.flags = namespaces.flags() | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    let size = size_of::<libc::clone_args>();
    // SAFETY: without CLONE_VM and with no stack given this is fork(2): the child gets a copy of
    // the address space and returns here on a copy of this stack. There is one thread, so no lock
    // of the allocator or of libc can be held by a thread that the child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            // SAFETY: the kernel stored a new descriptor here, and nobody else knows its number.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent(Child { pid: pid as u32, pidfd }))
        }
    }
}

/// Has `prepare` run in the child of a command, before the program is executed; what it fails with
/// is what starting the command fails with. It is meant to make system calls and little else: it
/// runs in a fork of a process that may have more threads.
pub fn before_exec(
    command: &mut std::process::Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the child is a fork by the C library, which leaves its allocator usable there, so
    // that the few bytes that an error takes are no danger; `prepare` is safe code without locks
    // of ours, and memory that it changes is a copy that ends with exec.
    unsafe { command.pre_exec(prepare) };
}

/// Ends this process now: no destructors, no exit handlers, no flush of copied buffers. For forked
/// children.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Kills every process that this one may signal, except itself (and pid 1). Meant for the pid 1 of
/// a pid namespace.
///
/// # Errors
/// `ESRCH` when there is none left. `EPERM` when the caller is not pid 1: anywhere else this call
/// would reach far beyond the tenant.
pub fn kill_namespace() -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: `kill` has no memory preconditions.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets an executed program inherit no descriptors but the standard three. Those it is to have are
/// marked again after this.
///
/// # Errors
/// What close_range(2) says: `ENOSYS` or `EINVAL` before Linux 5.11.
pub fn close_all_on_exec() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: this closes nothing; it only marks what is open.
    match unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every close-on-exec descriptor of this process but `kept`. For a forked child that is not
/// going to execute anything: it would otherwise hold its parent's files open, and be in the way of
/// whoever waits for their end. The child must own nothing but `kept`: what its parent had opened
/// in outer stack frames is gone.
///
/// # Errors
/// When /proc is not there.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut own = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        own.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    own.retain(|fd| *fd > 2 && !kept.iter().any(|kept| kept.as_raw_fd() == *fd));
    for fd in own {
        // SAFETY: `fcntl(F_GETFD)` is harmless for any number, as the one of the directory that was
        // just read and closed.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags != -1 && flags & libc::FD_CLOEXEC != 0 {
            // SAFETY: closing a number harms no memory. An owner in an outer stack frame, which the
            // documentation rules out, would find its number closed or another file's: its calls
            // would fail with EBADF or reach that file, as after close(2) in C.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

/// Closes what this process was started with beyond the standard three: every descriptor above them
/// that is not close-on-exec, which no code of ours opens.
///
/// # Errors
/// When /proc is not there.
pub fn close_inherited() -> io::Result<()> {
    let mut own = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        own.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for fd in own.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: `fcntl(F_GETFD)` is harmless for any number.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags != -1 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: it came with the start of this process: nothing in it owns it.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

/// The descriptor with this number, handed down by the parent process. Close-on-exec from now on.
///
/// # Errors
/// `EBADF` when it is not open, is one of the standard three, or was taken before.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    let mut taken = TAKEN.lock();
    if number < 3 || taken.contains(&number) {
        return Err(bad());
    }
    // SAFETY: `fcntl(F_SETFD)` is harmless for any number; it fails for one that is not open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(bad());
    }
    taken.push(number);
    // SAFETY: the number is open, and the list above hands each number out once. The contract of
    // the caller's command line is that nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether this process ignores the signal, as a program under nohup(1) ignores SIGHUP.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid `sigaction`; with no new action the call only fills `old`.
    unsafe {
        let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0
            && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Has this process, and what it executes, ignore a signal, or do what the kernel does by default.
pub fn set_ignored(signal: i32, ignored: bool) {
    // SAFETY: all-zero is a valid `sigaction` with no flags and an empty mask; the two actions are
    // no functions. The kernel refuses a bad number.
    unsafe {
        let mut new: libc::sigaction = MaybeUninit::zeroed().assume_init();
        new.sa_sigaction = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        libc::sigaction(signal, &raw const new, std::ptr::null_mut());
    }
}

/// Signals of this process, read as data. They are blocked for the calling thread and the threads
/// and children it makes, until [`unblock_signals`].
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

/// One signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// The kernel itself sent it: Ctrl-C, Ctrl-\ or a hang-up of the terminal, which the whole
    /// foreground process group gets.
    pub from_kernel: bool,
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: `sigemptyset` initialises the whole set; a bad signal number is refused, not stored.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

impl SignalFd {
    /// Blocks `signals` and opens a non-blocking, close-on-exec descriptor for them.
    ///
    /// # Errors
    /// What signalfd(2) says.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = signal_set(signals);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: `set` is initialised and outlives both calls; the old mask is not asked for.
        let fd = unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, flags)
        };
        match fd {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: a new descriptor that nobody else knows.
            fd => Ok(SignalFd(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// The next pending signal; `None` when there is none.
    ///
    /// # Errors
    /// What read(2) says, except `EAGAIN`.
    pub fn next(&self) -> io::Result<Option<Received>> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut info: libc::signalfd_siginfo = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the buffer is a whole `signalfd_siginfo`, which is what the kernel writes.
        let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), SIZE) };
        if got == SIZE as isize {
            let from_kernel = info.ssi_code == libc::SI_KERNEL;
            return Ok(Some(Received { signal: info.ssi_signo as i32, from_kernel }));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Unblocks all signals of the calling thread, as a fresh program expects them.
pub fn unblock_signals() {
    let empty = signal_set(&[]);
    // SAFETY: `empty` is initialised; the old mask is not asked for. Cannot fail with SIG_SETMASK.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        // The test harness runs this on a thread of its own, beside the main one.
        let error = fork(Namespaces::default()).map(|_| ()).expect_err("two threads at least");
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }

    #[test]
    fn a_thread_that_did_its_work_is_gone_and_one_that_cannot_be_made_is_an_error() {
        for round in 0..1000 {
            let work = || (round, rustix::thread::gettid());
            let done = in_a_thread(thread::Builder::new(), work).expect("a thread");
            let (said, task) = done.expect("no panic");
            assert_eq!(said, round);
            assert!(!std::path::Path::new(&format!("/proc/self/task/{task}")).exists(), "{round}");
        }
        in_a_thread(thread::Builder::new(), || panic!("its own")).expect("made").expect_err("it");
        let larger_than_memory = thread::Builder::new().stack_size(1 << 50);
        in_a_thread(larger_than_memory, || ()).expect_err("no room for its stack");
    }

    #[test]
    fn a_descriptor_number_is_taken_once() {
        use std::os::fd::IntoRawFd;
        let number = std::fs::File::open("/dev/null").expect("/dev/null").into_raw_fd();
        let taken = inherited_fd(number).expect("first time");
        assert!(inherited_fd(number).is_err());
        assert!(inherited_fd(0).is_err());
        assert_eq!(taken.as_raw_fd(), number);
    }

    #[test]
    fn only_a_pid_1_may_kill_its_namespace() {
        assert_eq!(kill_namespace().expect_err("not pid 1").raw_os_error(), Some(libc::EPERM));
    }
}
