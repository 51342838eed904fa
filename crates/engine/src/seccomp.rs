//! The system calls that a container may make, as its runtime is told.
//!
//! What is not listed fails with `EPERM`. Left out are the calls that change the host and not the
//! container, or that show it: mounts, modules, clocks, key rings, swap, accounting, NUMA policy,
//! kernel tracing, io_uring (whose operations no filter sees), handles of files, new namespaces.

use serde_json::{Value, json};

/// Calls that are allowed whatever their arguments. Which of them an architecture has the runtime
/// knows.
const ALLOWED: &str = "\
    _llseek _newselect accept accept4 access adjtimex alarm arch_prctl bind brk capget capset \
    chdir chmod chown chown32 chroot clock_adjtime clock_adjtime64 clock_getres \
    clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 \
    close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 \
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 \
    execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate \
    fanotify_mark fchdir fchmod fchmodat fchown fchown32 fchownat fcntl fcntl64 fdatasync \
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs \
    fstatfs64 fsync ftruncate ftruncate64 futex futex_time64 futex_waitv futimesat \
    get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid \
    geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid \
    getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit \
    getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr \
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy \
    io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get \
    ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown \
    lchown32 lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr \
    lstat lstat64 madvise membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod \
    mknodat mlock mlock2 mlockall mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify mq_open \
    mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap \
    msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep \
    newfstatat nice oldfstat oldlstat oldstat olduname open openat openat2 pause pidfd_open \
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 \
    prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev \
    pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead readdir readlink \
    readlinkat readv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr \
    rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending \
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
    rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min \
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam \
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop \
    semtimedop_time64 sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list \
    set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 \
    setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid \
    setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid \
    setuid32 setxattr sgetmask shmat shmctl shmdt shmget shutdown sigaction sigaltstack signal \
    signalfd signalfd4 sigpending sigprocmask sigreturn sigsuspend socketpair splice \
    ssetmask stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs \
    sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime \
    timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime \
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 \
    ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork \
    vmsplice wait4 waitid waitpid write writev";

/// Flags of clone(2) that make namespaces: of mounts, control groups, names, IPC, users, processes
/// and networks.
const NEW_NAMESPACES: u64 = 0x7e02_0000;

/// Personalities that change nothing but what a program is told: Linux, and Linux of 32 bits, each
/// with a version below 2.6.40 or not; and the question for the present one.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The address family of sockets between virtual machines and their host.
const AF_VSOCK: u64 = 40;

/// `linux.seccomp` of a container's configuration.
pub(crate) fn profile() -> Value {
    let allow = |names: Vec<&str>| json!({ "names": names, "action": "SCMP_ACT_ALLOW" });
    let when = |name: &str, argument: Value| {
        let names = [name];
        json!({ "names": names, "action": "SCMP_ACT_ALLOW", "args": [argument] })
    };
    let mut rules = vec![
        allow(ALLOWED.split_whitespace().collect()),
        // The second value is what the masked argument is to be.
        when(
            "clone",
            json!({ "index": 0, "value": NEW_NAMESPACES, "valueTwo": 0,
                              "op": "SCMP_CMP_MASKED_EQ" }),
        ),
        // Its flags are in memory, where no filter sees them: C libraries go back to clone.
        json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS }),
        when("socket", json!({ "index": 0, "value": AF_VSOCK, "op": "SCMP_CMP_NE" })),
    ];
    let personality =
        |&value| when("personality", json!({ "index": 0, "value": value, "op": "SCMP_CMP_EQ" }));
    rules.extend(PERSONALITIES.iter().map(personality));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::EPERM,
        "architectures": architectures(),
        "syscalls": rules,
    })
}

fn architectures() -> &'static [&'static str] {
    match std::env::consts::ARCH {
        "aarch64" => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        _ => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_the_host_are_not_listed() {
        let listed: Vec<&str> = ALLOWED.split_whitespace().collect();
        for name in [
            "mount",
            "umount2",
            "init_module",
            "kexec_load",
            "bpf",
            "setns",
            "unshare",
            "io_uring_setup",
            "open_by_handle_at",
            "clone",
            "socket",
            "keyctl",
            "reboot",
        ] {
            assert!(!listed.contains(&name), "{name}");
        }
        for name in ["read", "openat2", "execve", "futex", "getxattr", "mknodat", "chroot"] {
            assert!(listed.contains(&name), "{name}");
        }
    }
}
