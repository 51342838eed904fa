//! What a process is: its umask, its identity, where its paths start; and what must happen before
//! another process comes into being.

use std::sync::atomic::{Ordering, fence};

use rustix::fs::Mode;

use super::share::Heir;
use super::state::{self, Lane, State};
use super::{dir, ring, share};
use crate::kernel::config;
use crate::kernel::reserved;
use crate::kernel::thread;
use crate::session::namespace;
use crate::session::{Session, identity};

/// The umask, for requests that create.
pub(crate) fn umask_now(state: &'static State) -> u32 {
    let known = &state.get().umask;
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
pub(crate) fn umask(state: &'static State, mask: u32) -> u32 {
    let mask = mask & 0o777;
    let old = rustix::process::umask(Mode::from_bits_retain(mask)).as_raw_mode();
    if let Some(fields) = state.started() {
        fields.umask.store(mask + 1, Ordering::Relaxed);
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
    /// Of the process that shares; `None`: it does not count.
    counts: Option<&'static State>,
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if let Some(fields) = self.counts.and_then(State::started) {
            let (done, again) = (Ordering::Release, Ordering::Relaxed);
            // A forked child finds that nobody shares anything.
            let _ = fields.sharing.fetch_update(done, again, |now| now.checked_sub(1));
        }
    }
}

/// Before fork and spawn: everything that another process may inherit is made fit for it.
pub(crate) fn before_sharing(state: &'static State) -> Sharing {
    before_sharing_with(state, Heir::Process)
}

/// As [`before_sharing`], of what an heir gets.
pub(crate) fn before_sharing_with(state: &'static State, heir: Heir) -> Sharing {
    // A process that has its memory in common with this one ends by exec and takes nothing back.
    let has = |lane: &'static Lane| lane.sessions.present().is_some_and(Session::is_own);
    let own = |fields: &&'static state::Fields| fields.lanes().any(has);
    let counts = state.started().filter(own).map(|fields| {
        fields.sharing.fetch_add(1, Ordering::Relaxed);
        // A thread that takes a slot does so first, and looks then.
        fence(Ordering::SeqCst);
    });
    before_change(state);
    share::share_with(state, heir);
    Sharing { counts: counts.map(|()| state) }
}

/// Before a change of who this process is, or of what paths mean in it: what it has open is what it
/// was allowed to open.
pub(crate) fn before_change(state: &'static State) {
    if namespace::any_lane().is_ok() && state.started().is_some() {
        dir::settle_all(state);
    }
}

/// As [`before_sharing`], for `clone` with these flags.
pub(crate) fn before_clone(state: &'static State, flags: i32) -> Sharing {
    let sharing = before_sharing(state);
    if flags & (libc::CLONE_FILES | libc::CLONE_VM) == libc::CLONE_FILES {
        ring::numbers_are_shared(state);
    }
    let is_process = flags & libc::CLONE_THREAD == 0;
    // One with the caller's memory would use the session as who it is by then, or connect for both.
    // One with its umask and directory changes them for both, and each would know its own changes.
    if is_process && flags & libc::CLONE_FS != 0 {
        config::share_place(true);
    }
    if is_process && flags & (libc::CLONE_VM | libc::CLONE_FS) != 0 {
        estranged(state);
    }
    sharing
}

/// After a change of user or group: the service must see the new one, so a new session is made at
/// the next call.
pub(crate) fn identity_changed(state: &'static State) {
    if namespace::any_lane().is_ok() && state.started().is_some() {
        share::leave_sessions(state);
    }
}

/// After a change of user or group of the calling thread alone.
pub(crate) fn thread_identity_changed(state: &'static State) {
    match is_alone() {
        true => identity_changed(state),
        false => estranged(state),
    }
}

/// Whether this process has one thread. False too where that cannot be found out.
pub(crate) fn is_alone() -> bool {
    // Two links beside those to the threads' directories.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|threads| threads.st_nlink == 3)
}

/// After chroot, unshare of the mount namespace and setns: paths do not mean what the service takes
/// them for; or threads differ in who they are. The session ends and there is none from here on.
pub(crate) fn estranged(state: &'static State) {
    if namespace::any_lane().is_ok() {
        // First, so that no other thread connects again.
        namespace::leave_home();
        share::leave_sessions(state);
    }
}

/// Before this process, or a thread of it, confines itself (Landlock, seccomp): what the service
/// would do for it the kernel may refuse from here on, and system calls of the library's own may
/// end it. The session ends with all that waits in it applied, and every hook is from here on the
/// call that it stands for, and no other; in what is forked as well.
pub(crate) fn confined(state: &'static State) {
    if namespace::any_lane().is_err() {
        return;
    }
    before_change(state);
    estranged(state);
    // Masters of slots would be closed with the files.
    share::leave_to_numbers(state);
    if let Some(fields) = state.started() {
        fields.lanes().for_each(|lane| lane.directories.leave());
    }
    // Closed in children otherwise.
    reserved::close_all();
    config::switch_off();
}

/// Capabilities were changed, of one thread. Where they differ from those of the user, the kernel
/// judges from here on.
pub(crate) fn capabilities_changed(state: &'static State) {
    if !identity::is_what_it_seems() {
        estranged(state);
    }
}

/// The kernel is about to be asked for the path of the working directory.
pub(crate) fn look_for_directory(state: &'static State) {
    if namespace::any_lane().is_ok()
        && let Some(fields) = state.started()
    {
        fields.cwd.look_again();
    }
}

/// The working directory was changed.
pub(crate) fn directory_changed(state: &'static State) {
    if let Some(fields) = state.started() {
        fields.cwd.changed(fields.records());
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
