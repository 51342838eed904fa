//! The system calls of a service.
//!
//! Two filters: the first lets through what a service is known to call; the second answers some of
//! these with an error, because the C library asks and can do without. A call that is in neither
//! list fails with EPERM; in a debug build it kills the service with SIGSYS, so that tests find
//! what the list lacks.
//!
//! Calls that reach other processes by an argument are allowed with arguments that name the caller:
//! limits and scheduling of itself, no owner of a descriptor's signals. Requests of ioctl and fcntl
//! are listed one by one.
//!
//! A filter does not see what an io_uring does: rings are made, with their restrictions, before the
//! filter (`polylane_sys::uring`), and none after it.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule, TargetArch,
};

/// Memory, threads, time, and what a process is.
const PROCESS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
];

/// What prctl may be asked: names of threads and of memory, and `PR_GET_AUXV` (the page size and
/// such, for libraries that would otherwise read /proc).
const PROCESS_SETTINGS: [i32; 4] =
    [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, 0x4155_5856];

/// What a thread may do to itself: its first argument is 0.
const OWN_THREAD: &[i64] =
    &[libc::SYS_sched_getattr, libc::SYS_sched_setaffinity, libc::SYS_sched_setattr];

/// What ioctl may be asked: how a file lies on its disk, and what the standard library asks of
/// descriptors (is it a terminal, do not inherit it, do not wait for it).
const IOCTLS: &[u32] = &[
    0xc020_660b, // FS_IOC_FIEMAP
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x5401,      // TCGETS
    0x5421,      // FIONBIO
    0x5451,      // FIOCLEX
];

/// What fcntl may be asked. `F_SETFL` is beside them: `O_ASYNC` would send signals.
const FCNTLS: [i32; 9] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// What a ring may be told: which files it has (`IORING_REGISTER_FILES`, `IORING_UNREGISTER_FILES`,
/// `IORING_REGISTER_FILES_UPDATE`).
const RING_SETTINGS: &[u32] = &[2, 3, 6];

/// Descriptors that the service holds: to wait for them, to move bytes, to talk to the supervisor
/// and to clients.
const DESCRIPTORS: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getsockopt,
    libc::SYS_io_uring_enter,
    libc::SYS_lseek,
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_pipe2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_splice,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Names and attributes in a host directory.
const HOST_FILES: &[i64] = &[
    libc::SYS_copy_file_range,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchownat,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_removexattr,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// Connections to a cluster. Sockets of other families than [`FAMILIES`] are refused.
const NETWORK: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_epoll_create,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_socketpair,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Families of sockets to a cluster: `AF_INET`, `AF_INET6`, and `AF_NETLINK`, by which the C
/// library lists the addresses of this host.
const FAMILIES: [u32; 3] = [2, 10, 16];

/// Asked for by the C library, which can do without: it counts CPUs in /sys, and falls back to
/// clone, whose flags a filter can see.
const DECLINED: &[(i64, i32)] = &[
    (libc::SYS_clone3, libc::ENOSYS),
    (libc::SYS_open, libc::EACCES),
    (libc::SYS_openat, libc::EACCES),
    (libc::SYS_readlink, libc::EACCES),
    (libc::SYS_access, libc::EACCES),
];

/// From now on the process makes no other calls; `host`: it serves host directories; `network`: it
/// talks to a cluster.
pub(super) fn allow_only(host: bool, network: bool) -> Result<(), Error> {
    let answered: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = DECLINED
        .iter()
        .filter(|(call, _)| !(host && HOST_FILES.contains(call)))
        .fold(BTreeMap::new(), |mut all, (call, errno)| {
            all.entry(*errno).or_insert_with(BTreeMap::new).insert(*call, Vec::new());
            all
        });
    for (errno, calls) in answered {
        apply(calls, SeccompAction::Allow, SeccompAction::Errno(errno.unsigned_abs()))?;
    }
    let other = match cfg!(debug_assertions) {
        true => SeccompAction::Trap,
        false => SeccompAction::Errno(libc::EPERM.unsigned_abs()),
    };
    apply(allowed(host, network)?, other, SeccompAction::Allow)
}

fn apply(
    calls: BTreeMap<i64, Vec<SeccompRule>>,
    other: SeccompAction,
    these: SeccompAction,
) -> Result<(), Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let program: BpfProgram = SeccompFilter::new(calls, other, these, arch)?.try_into()?;
    seccompiler::apply_filter(&program)
}

/// Alternatives, one of which must hold for the call to pass.
type Rules = Vec<SeccompRule>;

/// The argument `index`, of 32 bits, compares so.
fn argument(index: u8, op: Op, value: u32) -> Result<Condition, BackendError> {
    Condition::new(index, ArgLen::Dword, op, value.into())
}

/// One rule of conditions that must hold together.
fn all_of(conditions: Vec<Condition>) -> Result<Rules, BackendError> {
    Ok(vec![SeccompRule::new(conditions)?])
}

/// The argument `index` is one of these.
fn one_of(index: u8, values: &[u32]) -> Result<Rules, BackendError> {
    let rule = |value: &u32| SeccompRule::new(vec![argument(index, Op::Eq, *value)?]);
    values.iter().map(rule).collect()
}

/// The calls, with conditions on arguments where a call as such would be too much.
fn allowed(host: bool, network: bool) -> Result<BTreeMap<i64, Rules>, BackendError> {
    let host_files = if host { HOST_FILES } else { &[] };
    let declined = DECLINED.iter().map(|(call, _)| call);
    let connections = if network { NETWORK } else { &[] };
    let plain = PROCESS.iter().chain(DESCRIPTORS).chain(host_files).chain(connections);
    let plain = plain.chain(declined);
    let mut calls: BTreeMap<i64, Rules> = plain.map(|call| (*call, vec![])).collect();
    let never_executable = Op::MaskedEq(i64::from(libc::PROT_EXEC).cast_unsigned());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        calls.insert(call, all_of(vec![argument(2, never_executable.clone(), 0)?])?);
    }
    let thread = i64::from(libc::CLONE_THREAD).cast_unsigned();
    let of_a_thread = Condition::new(0, ArgLen::Qword, Op::MaskedEq(thread), thread)?;
    calls.insert(libc::SYS_clone, all_of(vec![of_a_thread])?);
    // A panic that aborts signals its own process.
    calls.insert(libc::SYS_tgkill, one_of(0, &[std::process::id()])?);
    for call in OWN_THREAD {
        calls.insert(*call, one_of(0, &[0])?);
    }
    // The C library asks for the size of stacks; nothing is set.
    let no_new_limit = Condition::new(2, ArgLen::Qword, Op::Eq, 0)?;
    calls.insert(libc::SYS_prlimit64, all_of(vec![argument(0, Op::Eq, 0)?, no_new_limit])?);
    calls.insert(libc::SYS_prctl, one_of(0, &PROCESS_SETTINGS.map(i32::cast_unsigned))?);
    calls.insert(libc::SYS_ioctl, one_of(1, IOCTLS)?);
    calls.insert(libc::SYS_io_uring_register, one_of(1, RING_SETTINGS)?);
    let mut settings = one_of(1, &FCNTLS.map(i32::cast_unsigned))?;
    let no_signals = Op::MaskedEq(i64::from(libc::O_ASYNC).cast_unsigned());
    let set_flags = argument(1, Op::Eq, libc::F_SETFL.cast_unsigned())?;
    settings.extend(all_of(vec![set_flags, argument(2, no_signals, 0)?])?);
    calls.insert(libc::SYS_fcntl, settings);
    match network {
        true => drop(calls.insert(libc::SYS_socket, one_of(0, &FAMILIES)?)),
        // `scm::settle` asks who sends.
        false => {
            let of_sockets = argument(1, Op::Eq, libc::SOL_SOCKET.cast_unsigned())?;
            let senders = argument(2, Op::Eq, libc::SO_PASSCRED.cast_unsigned())?;
            calls.insert(libc::SYS_setsockopt, all_of(vec![of_sockets, senders])?);
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_do_not_overlap() {
        let mut all: Vec<i64> = [PROCESS, DESCRIPTORS, HOST_FILES, NETWORK].concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn what_opens_connects_or_traces_is_not_allowed() {
        let calls = allowed(true, false).expect("rules");
        let never = [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_kill,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_pidfd_getfd,
            libc::SYS_pidfd_send_signal,
            libc::SYS_setpriority,
            libc::SYS_ioprio_set,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_io_uring_setup,
        ];
        for call in never {
            assert!(!calls.contains_key(&call), "{call}");
        }
    }

    #[test]
    fn what_can_reach_other_processes_by_an_argument_has_a_condition() {
        let without_network = allowed(true, false).expect("rules");
        let setting = without_network.get(&libc::SYS_setsockopt);
        assert!(setting.is_some_and(|rules| !rules.is_empty()));
        let calls = allowed(true, true).expect("rules");
        let conditional = [
            libc::SYS_prlimit64,
            libc::SYS_sched_setattr,
            libc::SYS_sched_setaffinity,
            libc::SYS_tgkill,
            libc::SYS_fcntl,
            libc::SYS_ioctl,
            libc::SYS_prctl,
            libc::SYS_clone,
            libc::SYS_io_uring_register,
            libc::SYS_socket,
        ];
        for call in conditional {
            assert!(calls.get(&call).is_some_and(|rules| !rules.is_empty()), "{call}");
        }
    }
}
