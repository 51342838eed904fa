//! State of files: stat in all forms, statx, access.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{KERNEL_KNOWS, MARK, Message, Op, Reply, WireAttr};

use super::state::{Lane, State};
use super::{file, path};
use crate::fd::at::At;
use crate::fd::record::Record;
use crate::kernel::outcome::{Detour, Outcome};
use crate::rights::lookup::{Asked, Known, Question};
use crate::rights::view;
use crate::session::Session;
use crate::session::call;

/// An inode's state and the device number that it is reported with.
pub(crate) struct Stat {
    /// As the service gave it.
    pub(crate) attr: WireAttr,
    /// `st_dev` of the mount.
    pub(crate) device: u64,
    lane: &'static Lane,
}

impl Stat {
    /// `Kernel`: the service gave none.
    fn new(lane: &'static Lane, attr: Option<WireAttr>) -> Outcome<Stat> {
        Ok(Stat { attr: attr.ok_or(Detour::Kernel)?, device: lane.device()?, lane })
    }

    /// Whether it is that of a lane's root.
    pub(crate) fn is_of_root(&self) -> Outcome<bool> {
        Ok(self.attr.ino == self.lane.root_ino()?)
    }

    /// Attributes of statx that are known of every file of the lane.
    pub(crate) fn attributes(&self) -> Outcome<u32> {
        self.lane.ready().map(|session| session.attributes)
    }
}

/// Flags of `fstatat` and `statx` that change nothing here, or what the service knows.
const STAT_FLAGS: i32 = libc::AT_SYMLINK_NOFOLLOW
    | libc::AT_EMPTY_PATH
    | libc::AT_NO_AUTOMOUNT
    | libc::AT_STATX_SYNC_TYPE;

/// `stat`, `lstat`, `fstatat`, `statx`.
#[inline]
pub(crate) fn stat(state: &'static State, dir: RawFd, path: &[u8], flags: i32) -> Outcome<Stat> {
    let contradicts = flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE;
    if flags & !STAT_FLAGS != 0 || contradicts {
        return Err(Detour::Kernel);
    }
    if path.is_empty() {
        return match flags & libc::AT_EMPTY_PATH {
            0 => Err(Detour::Kernel),
            _ => fstat(state, dir),
        };
    }
    if path::is_relative(dir, path)
        && file::unlearned(state, dir).is_some_and(|lane| lane.kernel.takes_one())
    {
        return Err(Detour::Kernel);
    }
    let (session, at) = path::at(state, dir, path)?;
    let lane = state.get().lane(session.lane);
    let flags = (flags & libc::AT_SYMLINK_NOFOLLOW) as u32;
    let asked = Asked::new(&at, Question::Stat { follow: flags == 0 });
    match known(state, session, asked.as_ref()) {
        Some(Known::Attr(attr)) => Stat::new(lane, Some(attr)),
        Some(Known::Absent) => Err(Errno::ENOENT.into()),
        _ if lane.leases.is_absent(session, &at) => Err(Errno::ENOENT.into()),
        _ => {
            let again = asked.as_ref().filter(|asked| lane.paths.came_before(asked));
            if again.is_none() && lane.kernel.takes_one() {
                return Err(Detour::Kernel);
            }
            let message = Message { flags, ..Message::new(Op::Stat) };
            let reply = question(state, session, &at, message, again)?;
            if again.is_none() {
                lane.kernel.heard(reply.value[0] & KERNEL_KNOWS != 0);
            }
            Stat::new(lane, reply.attr)
        }
    }
}

/// Whether a path is known to lead to nothing, in a process whose opens ever did.
#[inline]
pub(crate) fn is_absent(state: &'static State, session: &'static Session, at: &At<'_>) -> bool {
    let asked = || Asked::new(at, Question::Stat { follow: true });
    state.get().lane(session.lane).paths.has_missed()
        && known(state, session, asked().as_ref()) == Some(Known::Absent)
}

/// An open found nothing at a path: the third is to know.
#[cold]
pub(crate) fn note_absent(state: &'static State, session: &'static Session, at: &At<'_>) {
    let paths = &state.get().lane(session.lane).paths;
    paths.miss();
    if let Some(asked) = Asked::new(at, Question::Stat { follow: true })
        && paths.came_before(&asked)
    {
        // Whatever comes of it: the open was answered.
        let _ = question(state, session, at, Message::new(Op::Stat), Some(&asked));
    }
}

/// What is known of a path.
#[inline(always)]
fn known(
    state: &'static State,
    session: &'static Session,
    asked: Option<&Asked<'_>>,
) -> Option<Known> {
    state.get().lane(session.lane).paths.find(session, asked?)
}

/// Asks, and keeps the answer of a question that has come before: `again`.
fn question(
    state: &'static State,
    session: &'static Session,
    at: &At<'_>,
    message: Message,
    again: Option<&Asked<'_>>,
) -> Outcome<Reply> {
    let Some(asked) = again else {
        return call::paths(session, message, (at.dir, at.path), (at.dir, b""));
    };
    let message = Message { flags: message.flags | MARK, ..message };
    let reply = call::question(session, message, (at.dir, at.path))?;
    state.get().lane(session.lane).paths.learn(session, asked, &reply);
    call::accept(reply)
}

/// `fstat`.
#[inline(always)]
pub(crate) fn fstat(state: &'static State, fd: RawFd) -> Outcome<Stat> {
    match shown(state, fd) {
        Some(stat) => Ok(stat),
        None => asked(state, fd),
    }
}

/// The state of an open file, where it is shown. Inlined, so that each field goes from the view to
/// where the caller wants it.
#[inline(always)]
fn shown(state: &'static State, fd: RawFd) -> Option<Stat> {
    let file = file::glance(state, fd)?;
    let lane = state.get().lane(file.lane());
    let device = lane.device().ok()?;
    let attr = view::attr(lane.ready().ok()?, &file)?;
    file.is_still().then_some(Stat { attr, device, lane })
}

#[inline(never)]
fn asked(state: &'static State, fd: RawFd) -> Outcome<Stat> {
    let file = file::find(state, fd)?;
    let (session, handle) = file::usable(state, &file, fd)?;
    let lane = state.get().lane(session.lane);
    match view::attr(session, &file) {
        Some(attr) => Stat::new(lane, Some(attr)),
        None => Stat::new(lane, ask(session, &file, handle)?),
    }
}

/// Asks for the state of an open file.
pub(super) fn ask(
    session: &'static Session,
    file: &Record,
    handle: u64,
) -> Outcome<Option<WireAttr>> {
    let wish = view::wish(file, 0);
    let flags = wish.bits();
    let reply = call::plain(session, Message { handle, flags, ..Message::new(Op::Fstat) })?;
    view::learn(session, file, wish, reply.handle);
    Ok(reply.attr)
}

/// `access`, `eaccess`, `faccessat`. The service knows the effective identity; where the real one
/// is asked for and differs, the kernel answers. So it does whether a file may be executed: that is
/// as its mount says, too, and no notice tells of `noexec`.
pub(crate) fn access(
    state: &'static State,
    dir: RawFd,
    path: &[u8],
    mode: i32,
    flags: i32,
) -> Outcome<()> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if mode & !(libc::R_OK | libc::W_OK) != 0
        || flags & !(libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW) != 0
    {
        return Err(Detour::Kernel);
    }
    let (session, at) = path::at(state, dir, path)?;
    let lane = state.get().lane(session.lane);
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let asked = Asked::new(&at, Question::Access { follow, mask: mode as u32 });
    // Found in this session with the real identity that the effective one still is: a change of
    // either ends the session.
    let asked = asked.filter(|_| flags & libc::AT_EACCESS == 0);
    match known(state, session, asked.as_ref()) {
        Some(Known::Done) => return Ok(()),
        Some(Known::Absent) => return Err(Errno::ENOENT.into()),
        _ if asked.is_some() && lane.leases.is_absent(session, &at) => {
            return Err(Errno::ENOENT.into());
        }
        _ => {}
    }
    if flags & libc::AT_EACCESS == 0 && (getuid() != geteuid() || getgid() != getegid()) {
        return Err(Detour::Kernel);
    }
    let flags = (flags & libc::AT_SYMLINK_NOFOLLOW) as u32;
    let message = Message { mode: mode as u32, flags, ..Message::new(Op::Access) };
    let again = asked.as_ref().filter(|asked| lane.paths.came_before(asked));
    question(state, session, &at, message, again).map(|_| ())
}
