//! The table of libc's functions: their names and C types.
#![expect(unsafe_code, reason = "UNSAFETY: calls functions by the types that C gives them")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{FILE, c_ulong, dev_t, gid_t, mode_t, off_t, pid_t, size_t, ssize_t, uid_t};
use libc::{iovec, msghdr, rlimit, timespec, timeval, utimbuf};

use super::{Strings, Symbol, Word, missing};

/// Every function: `name(fixed arguments)`; one with `...` is variadic in C and called as such.
macro_rules! real {
    (
        jumps { $($jump:ident)* }
        $(
            fn $name:ident($($arg:ident: $type:ty),* $(; $rest:ident: $rest_type:ty)?)
                -> $ret:ty;
        )*
    ) => {
        /// The addresses, under the names of the functions.
        #[allow(non_upper_case_globals, reason = "named as in C")]
        pub(crate) mod symbol {
            use super::Symbol;
            $( pub(crate) static $jump: Symbol = Symbol::new(concat!(stringify!($jump), "\0")); )*
            $( pub(crate) static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0")); )*
        }
        pub(super) static ALL: &[&Symbol] = &[$(&symbol::$jump,)* $(&symbol::$name),*];
        $(
            /// The libc function of this name.
            ///
            /// # Safety
            ///
            /// As the C function.
            #[inline]
            #[allow(non_snake_case, reason = "named as in C")]
            pub(crate) unsafe fn $name($($arg: $type,)* $($rest: $rest_type)?) -> $ret {
                let address = symbol::$name.get();
                if address.is_null() {
                    return missing();
                }
                // SAFETY: the address is that of the function of this name, whose C type this is.
                let call = unsafe {
                    std::mem::transmute::<
                        *mut c_void,
                        real!(@type ($($type),*) $(; $rest_type)? => $ret),
                    >(address)
                };
                // SAFETY: the caller keeps the C function's contract.
                unsafe { call($($arg,)* $($rest)?) }
            }
        )*
    };
    (@type ($($type:ty),*) => $ret:ty) => { unsafe extern "C-unwind" fn($($type),*) -> $ret };
    (@type ($($type:ty),*); $rest:ty => $ret:ty) => {
        unsafe extern "C-unwind" fn($($type,)* ...) -> $ret
    };
}

real! {
    jumps {
        dprintf __dprintf_chk clone __clone system wordexp dlopen dlmopen forkpty
        __getcwd_chk getwd get_current_dir_name realpath __realpath_chk canonicalize_file_name
        io_setup io_queue_init io_uring_setup io_uring_queue_init io_uring_queue_init_params
        io_uring_queue_init_mem io_uring_submit io_uring_submit_and_wait
        io_uring_submit_and_wait_timeout io_uring_enter io_uring_enter2
    }

    fn open(path: *const c_char, flags: c_int; mode: c_uint) -> c_int;
    fn openat(dir: c_int, path: *const c_char, flags: c_int; mode: c_uint) -> c_int;
    fn name_to_handle_at(dir: c_int, path: *const c_char, handle: *mut c_void,
        mount: *mut c_int, flags: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int; arg: Word) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int;

    fn read(fd: c_int, into: *mut c_void, count: size_t) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t;
    fn pread(fd: c_int, into: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    fn pwrite(fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn syncfs(fd: c_int) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int;
    fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int;
    fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t;
    fn ftruncate(fd: c_int, len: off_t) -> c_int;
    fn truncate(path: *const c_char, len: off_t) -> c_int;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t,
        flags: c_uint) -> ssize_t;
    fn copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t,
        len: size_t, flags: c_uint) -> ssize_t;

    fn stat(path: *const c_char, into: *mut libc::stat) -> c_int;
    fn lstat(path: *const c_char, into: *mut libc::stat) -> c_int;
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int;
    fn fstatat(dir: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int;
    fn __xstat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int;
    fn __lxstat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, into: *mut libc::stat,
        flags: c_int)
        -> c_int;
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx)
        -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn eaccess(path: *const c_char, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;

    fn mkdir(path: *const c_char, mode: mode_t) -> c_int;
    fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    fn mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int;
    fn __xmknodat(version: c_int, dir: c_int, path: *const c_char, mode: mode_t,
        device: *mut dev_t) -> c_int;
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int;
    fn mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int;
    fn rmdir(path: *const c_char) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn remove(path: *const c_char) -> c_int;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int;
    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char,
        flags: c_uint) -> c_int;
    fn link(from: *const c_char, to: *const c_char) -> c_int;
    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char,
        flags: c_int) -> c_int;
    fn symlink(target: *const c_char, path: *const c_char) -> c_int;
    fn symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int;
    fn readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t;
    fn readlinkat(dir: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t;
    fn chdir(path: *const c_char) -> c_int;
    fn fchdir(fd: c_int) -> c_int;
    fn getcwd(into: *mut c_char, size: size_t) -> *mut c_char;

    fn chmod(path: *const c_char, mode: mode_t) -> c_int;
    fn fchmod(fd: c_int, mode: mode_t) -> c_int;
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int;
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int;
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int;
    fn fchownat(dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int)
        -> c_int;
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int;
    fn utimes(path: *const c_char, times: *const timeval) -> c_int;
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int;
    fn futimes(fd: c_int, times: *const timeval) -> c_int;
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int;
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    fn futimens(fd: c_int, times: *const timespec) -> c_int;
    fn getxattr(path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t)
        -> ssize_t;
    fn lgetxattr(path: *const c_char, name: *const c_char, into: *mut c_void, size: size_t)
        -> ssize_t;
    fn fgetxattr(fd: c_int, name: *const c_char, into: *mut c_void, size: size_t) -> ssize_t;
    fn setxattr(path: *const c_char, name: *const c_char, from: *const c_void, size: size_t,
        flags: c_int) -> c_int;
    fn lsetxattr(path: *const c_char, name: *const c_char, from: *const c_void, size: size_t,
        flags: c_int) -> c_int;
    fn fsetxattr(fd: c_int, name: *const c_char, from: *const c_void, size: size_t,
        flags: c_int) -> c_int;
    fn listxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t;
    fn llistxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t;
    fn flistxattr(fd: c_int, into: *mut c_char, size: size_t) -> ssize_t;
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int;
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int;

    fn fork() -> pid_t;
    fn _Fork() -> pid_t;
    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int;
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int;
    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int;
    fn execveat(dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int)
        -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int;
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn sysv_signal(signal: c_int, handler: usize) -> usize;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel() -> ();
    fn io_submit(context: c_long, count: c_long, requests: *mut *mut c_void) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    fn login_tty(fd: c_int) -> c_int;
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn pivot_root(new: *const c_char, old: *const c_char) -> c_int;
    fn mount(source: *const c_char, target: *const c_char, kind: *const c_char,
        flags: libc::c_ulong, data: *const c_void) -> c_int;
    fn umount(target: *const c_char) -> c_int;
    fn umount2(target: *const c_char, flags: c_int) -> c_int;
    fn move_mount(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char,
        flags: c_uint) -> c_int;
    fn mount_setattr(dir: c_int, path: *const c_char, flags: c_uint, attributes: *mut c_void,
        size: size_t) -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn setuid(user: uid_t) -> c_int;
    fn seteuid(user: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn setgid(group: gid_t) -> c_int;
    fn setegid(group: gid_t) -> c_int;
    fn setregid(real: gid_t, effective: gid_t) -> c_int;
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    fn setfsuid(user: uid_t) -> c_int;
    fn setfsgid(group: gid_t) -> c_int;
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int;
    fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int;
    fn prlimit(pid: pid_t, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int)
        -> c_int;
    fn syscall(number: c_long, a: Word, b: Word, c: Word, d: Word, e: Word, f: Word) -> c_long;
    fn fclose(stream: *mut FILE) -> c_int;
    fn closedir(dir: *mut libc::DIR) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn mmap(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t) -> *mut c_void;
    fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int;
    fn ioctl(fd: c_int, request: libc::c_ulong; arg: Word) -> c_int;
    fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, into: *mut c_int) -> c_int;
    fn accept(socket: c_int, address: *mut c_void, len: *mut c_uint) -> c_int;
    fn accept4(socket: c_int, address: *mut c_void, len: *mut c_uint, flags: c_int) -> c_int;
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut timespec) -> c_int;
    fn pipe(into: *mut c_int) -> c_int;
    fn pipe2(into: *mut c_int, flags: c_int) -> c_int;
    fn eventfd(count: c_uint, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn signalfd(fd: c_int, signals: *const libc::sigset_t, flags: c_int) -> c_int;
    fn inotify_init() -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn fanotify_init(flags: c_uint, events: c_uint) -> c_int;
    fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int;
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn pidfd_spawn(process: *mut c_int, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int;
    fn pidfd_spawnp(process: *mut c_int, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: Strings, envp: Strings) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn open_tree(dir: c_int, path: *const c_char, flags: c_uint) -> c_int;
    fn fsopen(name: *const c_char, flags: c_uint) -> c_int;
    fn fsmount(fd: c_int, flags: c_uint, attributes: c_uint) -> c_int;
    fn fspick(dir: c_int, path: *const c_char, flags: c_uint) -> c_int;
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void) -> c_int;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn openpty(master: *mut c_int, slave: *mut c_int, name: *mut c_char, mode: *const c_void,
        size: *const c_void) -> c_int;
    fn mkstemp(name: *mut c_char) -> c_int;
    fn mkostemp(name: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps(name: *mut c_char, suffix: c_int) -> c_int;
    fn mkostemps(name: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    fn tmpfile() -> *mut FILE;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn opendir(path: *const c_char) -> *mut libc::DIR;
    fn fdopendir(fd: c_int) -> *mut libc::DIR;
    fn dirfd(dir: *mut libc::DIR) -> c_int;
    fn readdir(dir: *mut libc::DIR) -> *mut libc::dirent64;
    fn readdir_r(dir: *mut libc::DIR, into: *mut libc::dirent64,
        result: *mut *mut libc::dirent64) -> c_int;
    fn scandir(path: *const c_char, list: *mut *mut *mut libc::dirent64,
        filter: Option<unsafe extern "C-unwind" fn(*const libc::dirent64) -> c_int>,
        compare: Option<unsafe extern "C-unwind" fn(*const *const libc::dirent64,
            *const *const libc::dirent64) -> c_int>) -> c_int;
    fn scandirat(dir: c_int, path: *const c_char, list: *mut *mut *mut libc::dirent64,
        filter: Option<unsafe extern "C-unwind" fn(*const libc::dirent64) -> c_int>,
        compare: Option<unsafe extern "C-unwind" fn(*const *const libc::dirent64,
            *const *const libc::dirent64) -> c_int>) -> c_int;
    fn telldir(dir: *mut libc::DIR) -> c_long;
    fn seekdir(dir: *mut libc::DIR, position: c_long) -> ();
    fn rewinddir(dir: *mut libc::DIR) -> ();
}
