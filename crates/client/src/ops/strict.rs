//! The strict mode of seccomp in a run whose filter keeps programs from typing into a terminal:
//! the kernel has no strict mode for who is under a filter. A program that is under that one alone
//! gets a filter that leaves what the strict mode does, and is told before that it is under none.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, c_long};
use polylane_base::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::kernel::real;

/// The process in which a thread is in the strict mode; 0: none.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Ends the process as the strict mode does, by `SIGKILL`.
extern "C" fn end(_signal: c_int) {
    // It cannot fail: this process lets itself be ended, and so does the filter.
    let _ = Pid::from_raw(PROCESS.load(Ordering::Relaxed))
        .map(|process| kill_process(process, Signal::KILL));
}

/// Puts the strict mode in force where the kernel has just refused it because of the run's filter.
/// `EINVAL`: not because of that.
pub(crate) fn enter() -> Result<(), Errno> {
    if !is_under_the_runs_filter_alone() {
        return Err(Errno::EINVAL);
    }
    let process = getpid().as_raw_nonzero().get();
    PROCESS.store(process, Ordering::Relaxed);
    real::catch_refused_calls(end);
    polylane_sys::seccomp::allow_strict_calls(process.unsigned_abs())
}

/// What a program is told of the mode that the kernel says it is in.
pub(crate) fn mode_to_tell(mode: c_int) -> c_int {
    match mode as u32 == libc::SECCOMP_MODE_FILTER && is_under_the_runs_filter_alone() {
        true => 0,
        false => mode,
    }
}

/// Whether `number`, with these first arguments, asks for the strict mode.
pub(crate) fn is_asked_for(number: c_long, a: c_long, b: c_long) -> bool {
    match number {
        libc::SYS_seccomp => a == c_long::from(libc::SECCOMP_SET_MODE_STRICT),
        libc::SYS_prctl => {
            a == libc::PR_SET_SECCOMP.into() && b == c_long::from(libc::SECCOMP_MODE_STRICT)
        }
        _ => false,
    }
}

/// There is one filter, and it is the one that refuses to type: of a descriptor that is none it
/// says something else than the kernel. Before Linux 5.9 the kernel does not tell how many filters
/// there are.
fn is_under_the_runs_filter_alone() -> bool {
    let mut text = [0; 4096];
    let status = real::read_file(b"/proc/thread-self/status", &mut text);
    status.and_then(count_filters) == Some(1) && real::refuses_to_type()
}

fn count_filters(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let count = lines.find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    std::str::from_utf8(count).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted_by_the_status() {
        let status = |tail: &str| format!("Name:\tx\nSeccomp:\t2\n{tail}Speculation:\tno\n");
        assert_eq!(count_filters(status("Seccomp_filters:\t1\n").as_bytes()), Some(1));
        assert_eq!(count_filters(status("Seccomp_filters:\t12\n").as_bytes()), Some(12));
        assert_eq!(count_filters(status("").as_bytes()), None);
    }
}
