//! What a process is: its umask, its identity, where its paths start; and what must happen before
//! another process comes into being.

use std::sync::atomic::{Ordering, fence};

use rustix::fs::Mode;

use super::share::Heir;
use super::{dir, ring, share, state};
use crate::kernel::config;
use crate::kernel::reserved;
use crate::kernel::thread;
use crate::session::namespace;
use crate::session::{Session, identity};

/// The umask, for requests that create.
pub(crate) fn umask_now() -> u32 {
    let known = &state::get().umask;
    match known.load(Ordering::Relaxed).checked_sub(1) {
        Some(mask) => mask,
        None => {
            let mask = thread::slow(umask_of_kernel);
            known.store(mask + 1, Ordering::Relaxed);
            mask
        }
    }
}

/// `umask(2)`.
pub(crate) fn umask(mask: u32) -> u32 {
    let mask = mask & 0o777;
    let old = rustix::process::umask(Mode::from_bits_retain(mask)).as_raw_mode();
    if let Some(state) = state::started() {
        state.umask.store(mask + 1, Ordering::Relaxed);
    }
    old
}

/// Reads the umask without changing it, where /proc says it; else by setting it twice, between
/// which another thread could create a file with the wrong one.
fn umask_of_kernel() -> u32 {
    let mut text = [0; 2048];
    let read = crate::kernel::real::read_file(b"/proc/self/status", &mut text);
    if let Some(mask) = read.and_then(find_umask) {
        return mask;
    }
    let strict = Mode::from_bits_retain(0o077);
    let mask = rustix::process::umask(strict);
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

fn find_umask(status: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    let digits = line.trim_ascii();
    let valid = !digits.is_empty() && digits.iter().all(|digit| (b'0'..=b'7').contains(digit));
    valid.then(|| digits.iter().fold(0, |mask, digit| mask * 8 + u32::from(digit - b'0')))
}

/// Another process is coming into being. As long as this lives, other threads' opens, which it may
/// inherit, are the kernel's.
#[must_use]
pub(crate) struct Sharing {
    counts: bool,
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if let Some(state) = state::started().filter(|_| self.counts) {
            let (done, again) = (Ordering::Release, Ordering::Relaxed);
            // A forked child finds that nobody shares anything.
            let _ = state.sharing.fetch_update(done, again, |now| now.checked_sub(1));
        }
    }
}

/// Before fork and spawn: everything that another process may inherit is made fit for it.
pub(crate) fn before_sharing() -> Sharing {
    before_sharing_with(Heir::Process)
}

/// As [`before_sharing`], of what an heir gets.
pub(crate) fn before_sharing_with(heir: Heir) -> Sharing {
    // A process that has its memory in common with this one ends by exec and takes nothing back.
    let own = |state: &&state::Fields| state.sessions.present().is_some_and(Session::is_own);
    let counts = state::started().filter(own).map(|state| {
        state.sharing.fetch_add(1, Ordering::Relaxed);
        // Who takes a slot does so first, and then looks.
        fence(Ordering::SeqCst);
    });
    before_change();
    share::share_with(heir);
    Sharing { counts: counts.is_some() }
}

/// Before a change of who this process is, or of what paths mean in it: what it has open is what it
/// was allowed to open.
pub(crate) fn before_change() {
    if namespace::mount().is_ok() && state::started().is_some() {
        dir::settle_all();
    }
}

/// As [`before_sharing`], for `clone` with these flags.
pub(crate) fn before_clone(flags: i32) -> Sharing {
    let sharing = before_sharing();
    if flags & (libc::CLONE_FILES | libc::CLONE_VM) == libc::CLONE_FILES {
        ring::numbers_are_shared();
    }
    if flags & (libc::CLONE_VM | libc::CLONE_THREAD) == libc::CLONE_VM {
        // It would use the session as who it is by then, or connect for both.
        estranged();
    }
    sharing
}

/// After a change of user or group: the service must see the new one, so a new session is made at
/// the next call.
pub(crate) fn identity_changed() {
    if namespace::mount().is_ok() && state::started().is_some() {
        share::leave_session();
    }
}

/// After a change of user or group of the calling thread alone.
pub(crate) fn thread_identity_changed() {
    match is_alone() {
        true => identity_changed(),
        false => estranged(),
    }
}

/// Whether this process has one thread. False too where that cannot be found out.
pub(crate) fn is_alone() -> bool {
    // Two links beside those to the threads' directories.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|threads| threads.st_nlink == 3)
}

/// After chroot, unshare of the mount namespace and setns: paths do not mean what the service takes
/// them for; or threads differ in who they are. The session ends and there is none from here on.
pub(crate) fn estranged() {
    if namespace::mount().is_ok() {
        // First, so that no other thread connects again.
        namespace::leave_home();
        share::leave_session();
    }
}

/// Before this process, or a thread of it, confines itself (Landlock, seccomp): what the service
/// would do for it the kernel may refuse from here on, and system calls of the library's own may
/// end it. The session ends with all that waits in it applied, and every hook is from here on the
/// call that it stands for, and no other; in what is forked as well.
pub(crate) fn confined() {
    if namespace::mount().is_err() {
        return;
    }
    before_change();
    estranged();
    // Masters of slots would be closed with the files.
    share::leave_to_numbers();
    // Closed in children otherwise.
    reserved::close_all();
    config::switch_off();
}

/// Capabilities were changed, of one thread. Where they differ from those of the user, the kernel
/// judges from here on.
pub(crate) fn capabilities_changed() {
    if !identity::is_what_it_seems() {
        estranged();
    }
}

/// The kernel is about to be asked for the path of the working directory.
pub(crate) fn look_for_directory() {
    if namespace::mount().is_ok()
        && let Some(state) = state::started()
    {
        state.cwd.look_again();
    }
}

/// The working directory was changed.
pub(crate) fn directory_changed() {
    if let Some(state) = state::started() {
        state.cwd.changed(state.records());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_found_in_status() {
        assert_eq!(find_umask(b"Name:\tx\nUmask:\t0022\nState:\tR\n"), Some(0o22));
        assert_eq!(find_umask(b"Name:\tx\n"), None);
        assert_eq!(find_umask(b"Umask:\t9\n"), None);
        assert_eq!(find_umask(b"Umask:\t\n"), None);
    }
}
