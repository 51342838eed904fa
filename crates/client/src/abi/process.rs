//! Identity, umask, limits, namespaces, and descriptors sent to other processes.

use std::ffi::{c_char, c_uint, c_void};

use libc::{c_int, c_long, c_ulong, gid_t, mode_t, msghdr, pid_t, rlimit, size_t, ssize_t, uid_t};

use polylane_base::Errno;

use super::{arg, hooks, number};
use crate::kernel::real;
use crate::ops::share;
use crate::ops::state::STATE;
use crate::ops::{limit, process, strict};
use crate::session::mounts;

/// A call that changes who this process is.
fn identity(call: impl FnOnce() -> c_int) -> c_int {
    process::before_change(&STATE);
    let rc = call();
    if rc == 0 {
        process::identity_changed(&STATE);
    }
    rc
}

/// A call that changes what paths mean.
fn elsewhere(call: impl FnOnce() -> c_int) -> c_int {
    process::before_change(&STATE);
    // From there the files' own nodes cannot be reached.
    share::share_all(&STATE);
    let rc = call();
    if rc == 0 {
        process::estranged(&STATE);
    }
    rc
}

/// Has the calling thread, or the process of one thread, share its descriptors with nobody.
pub(super) fn unshare_numbers() -> c_int {
    // SAFETY: no memory is involved.
    let unshare = || unsafe { real::unshare(libc::CLONE_FILES) };
    if process::is_alone() { unshare() } else { elsewhere(unshare) }
}

/// Whether mount(2) with these flags puts something in a place, and does not only change how it is
/// there.
pub(super) fn moves(flags: c_ulong) -> bool {
    let how = libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE | libc::MS_UNBINDABLE;
    flags & how == 0
}

/// [`mounts::change`] of this process.
pub(super) fn changing<T: PartialEq + From<i8>>(seen: bool, call: impl FnOnce() -> T) -> T {
    mounts::change(|lane| &STATE.get().lane(lane).sessions, seen, call)
}

/// Whether prctl's way to install a filter, or the strict mode, does; programs that ask what there
/// is give no filter.
pub(super) fn confines(mode: c_ulong, filter: c_ulong) -> bool {
    mode != libc::SECCOMP_MODE_FILTER.into() || filter != 0
}

/// What a call answers that asked for the strict mode of seccomp, and that the kernel refused.
pub(super) fn strict_mode(refused: c_long) -> c_long {
    if real::errno() != libc::EINVAL {
        return refused;
    }
    match strict::enter() {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            real::set_errno(errno);
            refused
        }
    }
}

/// Before a message that may carry descriptors.
///
/// # Safety
///
/// Valid, or one where no memory can be.
unsafe fn before_message(message: *const msghdr) {
    if !arg::is_nowhere(message) {
        // SAFETY: valid, by contract.
        unsafe { number::each_sent(message, |fd| share::share_one(&STATE, fd)) };
    }
}

hooks! {
    /// `umask`
    ["umask"]
    fn umask(mask: mode_t) -> mode_t {
        process::umask(&STATE, mask)
    }

    /// `setuid`
    ["setuid"]
    fn setuid(user: uid_t) -> c_int {
        // SAFETY: the caller's own arguments; so below.
        identity(|| unsafe { real::setuid(user) })
    }

    /// `seteuid`
    ["seteuid"]
    fn seteuid(user: uid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::seteuid(user) })
    }

    /// `setreuid`
    ["setreuid"]
    fn setreuid(real_user: uid_t, effective: uid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setreuid(real_user, effective) })
    }

    /// `setresuid`
    ["setresuid"]
    fn setresuid(real_user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setresuid(real_user, effective, saved) })
    }

    /// `setgid`
    ["setgid"]
    fn setgid(group: gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setgid(group) })
    }

    /// `setegid`
    ["setegid"]
    fn setegid(group: gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setegid(group) })
    }

    /// `setregid`
    ["setregid"]
    fn setregid(real_group: gid_t, effective: gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setregid(real_group, effective) })
    }

    /// `setresgid`
    ["setresgid"]
    fn setresgid(real_group: gid_t, effective: gid_t, saved: gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setresgid(real_group, effective, saved) })
    }

    /// `setgroups`
    ["setgroups"]
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::setgroups(count, groups) })
    }

    /// `initgroups`
    ["initgroups"]
    fn initgroups(user: *const c_char, group: gid_t) -> c_int {
        // SAFETY: as above.
        identity(|| unsafe { real::initgroups(user, group) })
    }

    /// `setfsuid` returns the former one and never says that it failed. The peer credentials of a
    /// socket are the effective ones: the service cannot see this change, so the kernel path is
    /// taken.
    ["setfsuid"]
    fn setfsuid(user: uid_t) -> c_int {
        process::before_change(&STATE);
        process::estranged(&STATE);
        // SAFETY: as above.
        unsafe { real::setfsuid(user) }
    }

    /// `setfsgid`
    ["setfsgid"]
    fn setfsgid(group: gid_t) -> c_int {
        process::before_change(&STATE);
        process::estranged(&STATE);
        // SAFETY: as above.
        unsafe { real::setfsgid(group) }
    }

    /// `chroot`
    ["chroot"]
    fn chroot(path: *const c_char) -> c_int {
        // SAFETY: as above.
        elsewhere(|| unsafe { real::chroot(path) })
    }

    /// `pivot_root`, which libc has though no header says so.
    ["pivot_root"]
    fn pivot_root(new: *const c_char, old: *const c_char) -> c_int {
        // SAFETY: as above.
        elsewhere(|| unsafe { real::pivot_root(new, old) })
    }

    /// `mount`
    ["mount"]
    fn mount(
        source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong,
        data: *const c_void
    ) -> c_int {
        // SAFETY: as above.
        changing(moves(flags), || unsafe { real::mount(source, target, kind, flags, data) })
    }

    /// `umount`
    ["umount"]
    fn umount(target: *const c_char) -> c_int {
        // SAFETY: as above.
        changing(true, || unsafe { real::umount(target) })
    }

    /// `umount2`
    ["umount2"]
    fn umount2(target: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        changing(true, || unsafe { real::umount2(target, flags) })
    }

    /// `move_mount`
    ["move_mount"]
    fn move_mount(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        // SAFETY: as above.
        changing(true, || unsafe { real::move_mount(from_dir, from, to_dir, to, flags) })
    }

    /// `mount_setattr`
    ["mount_setattr"]
    fn mount_setattr(
        dir: c_int, path: *const c_char, flags: c_uint, attributes: *mut c_void, size: size_t
    ) -> c_int {
        // SAFETY: as above.
        changing(true, || unsafe { real::mount_setattr(dir, path, flags, attributes, size) })
    }

    /// `unshare`
    ["unshare"]
    fn unshare(flags: c_int) -> c_int {
        // SAFETY: as above.
        elsewhere(|| unsafe { real::unshare(flags) })
    }

    /// `setns`
    ["setns"]
    fn setns(fd: c_int, kind: c_int) -> c_int {
        // SAFETY: as above.
        elsewhere(|| unsafe { real::setns(fd, kind) })
    }

    /// `capset`
    ["capset"]
    fn capset(header: *mut c_void, data: *const c_void) -> c_int {
        process::before_change(&STATE);
        // SAFETY: as above.
        let rc = unsafe { real::capset(header, data) };
        if rc == 0 {
            process::capabilities_changed(&STATE);
        }
        rc
    }

    /// `prctl`
    ["prctl"]
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP && confines(a, b) {
            process::confined(&STATE);
        }
        // SAFETY: as above.
        let rc = unsafe { real::prctl(option, a, b, c, d) };
        let strict = a == libc::SECCOMP_MODE_STRICT.into();
        match option {
            libc::PR_SET_SECCOMP if strict && rc != 0 => strict_mode(rc.into()) as c_int,
            libc::PR_GET_SECCOMP => strict::mode_to_tell(rc),
            _ => rc,
        }
    }

    /// `landlock_restrict_self`, by whatever library calls it.
    ["landlock_restrict_self"]
    fn landlock_restrict_self(ruleset: c_int, flags: c_uint) -> c_int {
        process::confined(&STATE);
        let number = libc::SYS_landlock_restrict_self;
        // SAFETY: as above.
        unsafe { real::syscall(number, ruleset.into(), flags.into(), 0, 0, 0, 0) as c_int }
    }

    /// `setrlimit`
    ["setrlimit", "setrlimit64"]
    fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
        // SAFETY: as above.
        let rc = unsafe { real::setrlimit(resource as c_int, new) };
        limit::changed(&STATE);
        rc
    }

    /// `prlimit`
    ["prlimit", "prlimit64"]
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        // SAFETY: as above.
        let rc = unsafe { real::prlimit(pid, resource as c_int, new, old) };
        limit::changed(&STATE);
        rc
    }

    /// `sendmsg`
    ["sendmsg"]
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the caller's own arguments.
        unsafe {
            before_message(message);
            real::sendmsg(socket, message, flags)
        }
    }

    /// `sendmmsg`
    ["sendmmsg", "__sendmmsg"]
    fn sendmmsg(
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int
    ) -> c_int {
        for n in 0..if arg::is_nowhere(messages) { 0 } else { count as usize } {
            // SAFETY: `count` messages, by contract.
            unsafe { before_message(&raw const (*messages.add(n)).msg_hdr) };
        }
        // SAFETY: the caller's own arguments.
        unsafe { real::sendmmsg(socket, messages, count, flags) }
    }
}
