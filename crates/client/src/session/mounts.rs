//! Whether paths below the mount still lead into the lane.
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
use polylane_sys::notice::Notice;

use crate::kernel::config;
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{self, Session, Sessions, namespace};

/// How often a mount or an unmount of this process looks whether it was seen, at most.
const LOOKS_MAX: u32 = 500;
/// Pause between two.
const PAUSE: Duration = Duration::from_millis(1);

static NOTICE: OnceLock<Notice> = OnceLock::new();

/// Finds the page, on a slow path. False: this process has mounts of its own, of which that page
/// tells nothing.
pub(crate) fn find() -> bool {
    if NOTICE.get().is_none() {
        let mut path = [0; config::MOUNT_BYTES_MAX + 32];
        let path = config::in_run_dir(&mut path, b"mounts");
        let found = path.map(|path| Notice::open(Path::new(OsStr::from_bytes(path))));
        if let Some(Ok(notice)) = found {
            // Another thread may have been faster.
            let _ = NOTICE.set(notice);
        }
    }
    NOTICE.get().is_none_or(Notice::is_of_this_process)
}

/// Connects as who sees the lane as its tenant does, or else by the lane's root as this process
/// opens it, and by a file that it makes there where the service does not know what this process
/// may write.
///
/// # Errors
/// What `connect` says; `EACCES` where the root cannot be opened.
pub(crate) fn at_home_or_by_root<T>(connect: impl Fn(&[RawFd]) -> Result<T>) -> Result<T> {
    let at_home = if find() { connect(&[]) } else { Err(Errno::EXDEV) };
    if !matches!(at_home, Err(Errno::EXDEV)) {
        return at_home;
    }
    let mut path = [0; config::MOUNT_BYTES_MAX + 1];
    let path = config::under_mount(&mut path, b"").ok_or(Errno::ENOENT)?;
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
    let notice = session.notice.as_ref().or_else(|| NOTICE.get());
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
        let own = session::last().and_then(|session| session.notice.as_ref());
        let known = own.or_else(|| if find() { NOTICE.get() } else { None });
        match known {
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
/// program does next finds what it mounted. `seen`: such a call changes the table of mounts.
///
/// A process without a session is admitted for this call: others that see the same mounts may have
/// sessions. A look that was under way for another reason may end the wait a moment too early.
pub(crate) fn change<T: PartialEq + From<i8>>(
    sessions: impl FnOnce() -> &'static Sessions,
    seen: bool,
    call: impl FnOnce() -> T,
) -> T {
    let watched = seen && namespace::mount().is_ok();
    let page = if watched { thread::slow(|| Page::find(sessions())) } else { None };
    let before = page.as_ref().map(Page::looks);
    let done = call();
    let Some(page) = page else { return done };
    let errno = real::errno();
    let mut left = if done == T::from(0) { LOOKS_MAX } else { 0 };
    while Some(page.looks()) == before && left > 0 {
        std::thread::sleep(PAUSE);
        left -= 1;
    }
    if let Page::Aside(session) = page {
        thread::slow(|| session.finish());
    }
    real::set_errno(errno);
    done
}
