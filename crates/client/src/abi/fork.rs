//! fork, vfork and what forks inside libc.

use libc::{c_int, pid_t};

use super::hooks;
use crate::kernel::config;
use crate::kernel::real;
use crate::kernel::reserved;
use crate::ops::file;
use crate::ops::process;
use crate::ops::state::STATE;

/// In a new child: what belonged to the parent's session is closed now, not at the first call, or
/// the parent's files would stay open as long as the child lives.
pub(super) fn born() {
    if config::has_lane() && STATE.started().is_none() && reserved::any() {
        STATE.get();
    }
}

/// Forks with `fork` after everything the child inherits was made fit for it.
fn forking(fork: impl FnOnce() -> pid_t) -> pid_t {
    let sharing = process::before_sharing(&STATE);
    let pid = fork();
    drop(sharing);
    if pid == 0 {
        config::share_place(false);
        born();
    }
    pid
}

hooks! {
    /// `fork`
    ["fork", "__fork"]
    fn fork() -> pid_t {
        // SAFETY: the caller's own call.
        forking(|| unsafe { real::fork() })
    }

    /// `_Fork`
    ["_Fork"]
    fn fork_bare() -> pid_t {
        // SAFETY: the caller's own call.
        forking(|| unsafe { real::_Fork() })
    }

    /// `vfork`: a fork whose parent waits until the child has executed something or ended. A true
    /// one shares its memory with the parent, where hooked calls of the child would leave their
    /// traces.
    ["vfork", "__vfork"]
    fn vfork() -> pid_t {
        let Ok((reader, writer)) = real::private_pipe() else {
            // SAFETY: as this function; only the waiting is lost.
            return unsafe { fork() };
        };
        // SAFETY: as this function.
        let pid = unsafe { fork() };
        let errno = real::errno();
        real::close_quietly(if pid == 0 { reader } else { writer });
        if pid == 0 {
            // Its end is the signal: exec closes it, and so does exit.
            if let Ok(high) = reserved::adopt(writer) {
                reserved::keep(high);
            }
        } else {
            if pid > 0 {
                real::wait_for_end(reader);
            }
            real::close_quietly(reader);
        }
        real::set_errno(errno);
        pid
    }

    /// `login_tty` replaces descriptors 0 to 2 and closes its argument past our hooks.
    ["login_tty"]
    fn login_tty(fd: c_int) -> c_int {
        for number in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO, fd] {
            file::forget(&STATE, number);
        }
        // SAFETY: the caller's own argument.
        unsafe { real::login_tty(fd) }
    }

    /// `daemon` forks and replaces descriptors 0 to 2 past our hooks. The parent does not return.
    ["daemon"]
    fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
        let _sharing = process::before_sharing(&STATE);
        // SAFETY: the caller's own arguments.
        unsafe { real::daemon(no_chdir, no_close) }
    }
}
