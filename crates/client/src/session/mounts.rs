//! Whether paths below the mount of a lane still lead into it.
//!
//! A tenant may mount something in its lane, or take the lane away. The service cannot see that;
//! the tenant's first process can, and tells of it in a page ([`Notice`]). As long as the mounts
//! are not those of the begin, every path goes to the kernel. Open files go on as they are.

use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use polylane_base::{Errno, Result};
use polylane_ipc::handshake::LANES_MAX;
use polylane_sys::notice::Notice;

use crate::kernel::config::{self, LaneNumber};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{self, Session, Sessions, namespace};

/// How often a mount or an unmount of this process looks whether it was seen, at most.
const LOOKS_MAX: u32 = 500;
/// Pause between two.
const PAUSE: Duration = Duration::from_millis(1);

static NOTICES: [OnceLock<Notice>; LANES_MAX] = [const { OnceLock::new() }; LANES_MAX];

/// The page of a lane, once it is found.
#[inline]
fn known(lane: LaneNumber) -> Option<&'static Notice> {
    NOTICES[lane.index()].get()
}

/// Finds the page of a lane, on a slow path. False: this process has mounts of its own, of which
/// that page tells nothing.
pub(crate) fn find(lane: LaneNumber) -> bool {
    if known(lane).is_none() {
        let mut path = [0; config::MOUNT_BYTES_MAX + 32];
        let path = config::in_run_dir(lane, &mut path, b"mounts");
        let found = path.map(|path| Notice::open(Path::new(OsStr::from_bytes(path))));
        if let Some(Ok(notice)) = found {
            // Another thread may have been faster.
            let _ = NOTICES[lane.index()].set(notice);
        }
    }
    known(lane).is_none_or(Notice::is_of_this_process)
}

/// Connects as who sees the lane as its tenant does, or else by the lane's root as this process
/// opens it, and by a file that it makes there where the service does not know what this process
/// may write.
///
/// # Errors
/// What `connect` says; `EACCES` where the root cannot be opened.
pub(crate) fn at_home_or_by_root<T>(
    lane: LaneNumber,
    connect: impl Fn(&[RawFd]) -> Result<T>,
) -> Result<T> {
    let at_home = if find(lane) { connect(&[]) } else { Err(Errno::EXDEV) };
    if !matches!(at_home, Err(Errno::EXDEV)) {
        return at_home;
    }
    let mut path = [0; config::MOUNT_BYTES_MAX + 1];
    let path = config::under_mount(lane, &mut path, b"").ok_or(Errno::ENOENT)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let root = real::open_file(path, flags).map_err(|_| Errno::EACCES)?;
    let mut connected = connect(&[root]);
    if matches!(connected, Err(Errno::EROFS)) {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        let made = real::open_file(path, flags).ok();
        // Without one it may read.
        connected = connect(&[root, made.unwrap_or(root)]);
        made.into_iter().for_each(real::close_quietly);
    }
    real::close_quietly(root);
    connected
}

/// Whether paths below the mount may lead elsewhere.
#[inline]
pub(crate) fn changed(session: &Session) -> bool {
    let notice = session.notice.as_ref().or_else(|| known(session.lane));
    notice.is_some_and(Notice::is_changed)
}

/// A page that tells of this process's mounts.
enum Page {
    Known(&'static Notice),
    /// Of a session that is for this page alone.
    Aside(Box<Session>),
}

impl Page {
    /// `None`: this process gets none.
    fn find(sessions: &'static Sessions) -> Option<Page> {
        let lane = sessions.lane();
        let own = session::last(lane).and_then(|session| session.notice.as_ref());
        match own.or_else(|| if find(lane) { known(lane) } else { None }) {
            Some(notice) => Some(Page::Known(notice)),
            None => Some(Page::Aside(Box::new(sessions.aside().ok()?))),
        }
    }

    fn looks(&self) -> u32 {
        match self {
            Page::Known(notice) => notice.looks(),
            Page::Aside(session) => session.notice.as_ref().map_or(0, Notice::looks),
        }
    }
}

/// Makes a call that mounts or unmounts, and waits until all processes know of it, so that what the
/// program does next finds what it mounted. `seen`: such a call changes the table of mounts;
/// `sessions`: those of each lane.
///
/// A process without a session is admitted for this call: others that see the same mounts may have
/// sessions. A look that was under way for another reason may end the wait a moment too early.
pub(crate) fn change<T: PartialEq + From<i8>>(
    sessions: impl Fn(LaneNumber) -> &'static Sessions,
    seen: bool,
    call: impl FnOnce() -> T,
) -> T {
    let mut pages = [const { None }; LANES_MAX];
    if seen && namespace::any_lane().is_ok() {
        for (lane, page) in config::lanes().zip(&mut pages) {
            let found = thread::slow(|| Page::find(sessions(lane)));
            *page = found.map(|found| (found.looks(), found));
        }
    }
    let done = call();
    let errno = real::errno();
    let mut left = if done == T::from(0) { LOOKS_MAX } else { 0 };
    for (before, page) in pages.into_iter().flatten() {
        while page.looks() == before && left > 0 {
            polylane_sys::sched::pause(PAUSE);
            left -= 1;
        }
        if let Page::Aside(session) = page {
            thread::slow(|| session.finish());
        }
    }
    real::set_errno(errno);
    done
}
