//! Is this path ours, and where does it start?
//!
//! A path belongs to the lane when it is absolute and starts with the mount path, component by
//! component, or is relative to a directory of the lane. Nothing else is looked at: `..`, symbolic
//! links and mounts in the way are the service's to notice (`UseKernel`), and a path that reaches
//! the lane by a detour from outside goes through the kernel, which is right too.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::Errno;
use polylane_ipc::message::{DIR_ROOT, Message, Op, PATH_BYTES_MAX, RESERVED_DIR, SLOT_DIR};

use crate::fd::file;
use crate::fd::table::{Pin, bit};
use crate::kernel::config;
use crate::kernel::outcome::{Detour, Outcome, make_room};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::Session;
use crate::session::call;
use crate::session::mounts;
use crate::state;

/// A path as the service takes it.
pub(crate) struct At<'a> {
    /// Where it starts: a handle or `DIR_ROOT`.
    pub(crate) dir: u64,
    /// Not empty; relative.
    pub(crate) path: &'a [u8],
    /// Keeps the handle while the path is in use.
    _start: Option<Pin>,
}

impl At<'_> {
    /// No path at all: the message names a handle.
    pub(crate) fn nowhere() -> At<'static> {
        At::below(DIR_ROOT)
    }

    /// A directory itself, by its handle.
    pub(crate) fn below(dir: u64) -> At<'static> {
        At { dir, path: b"", _start: None }
    }
}

/// Whether this library has anything to do with calls of this thread just now.
#[inline]
pub(crate) fn mount() -> Outcome<&'static [u8]> {
    match config::mount() {
        Some(mount) if !thread::is_inside() => Ok(mount),
        _ => Err(Detour::Kernel),
    }
}

/// `path` as seen from `dir`, or `Kernel` when it is not the lane's.
#[inline]
pub(crate) fn at<'a>(dir: RawFd, path: &'a [u8]) -> Outcome<(&'static Session, At<'a>)> {
    let mount = mount()?;
    if path.first() == Some(&b'/') {
        return absolute(mount, path);
    }
    relative(dir, path)
}

/// Two paths of one call; both are the lane's, or the kernel does it.
pub(crate) fn two<'a>(
    first: (RawFd, &'a [u8]),
    second: (RawFd, &'a [u8]),
) -> Outcome<(&'static Session, At<'a>, At<'a>)> {
    let (session, one) = at(first.0, first.1)?;
    let (again, two) = at(second.0, second.1)?;
    // A session that ended between the two has taken its handles along.
    if session.number != again.number {
        return Err(Detour::Kernel);
    }
    Ok((session, one, two))
}

/// What a path of the lane is from its root, relative ones as seen from the working directory.
pub(crate) fn from_root(path: &[u8], into: &mut Vec<u8>) -> Outcome<()> {
    let mount = mount()?;
    into.clear();
    if path.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    make_room(into, 2 * PATH_BYTES_MAX + 2)?;
    if path.first() == Some(&b'/') {
        into.extend(inside(mount, path).ok_or(Detour::Kernel)?);
    } else {
        let mut cwd = [0; PATH_BYTES_MAX + 1];
        let cwd = thread::slow(|| real::working_directory(&mut cwd)).ok_or(Detour::Kernel)?;
        into.extend(inside(mount, cwd).ok_or(Detour::Kernel)?);
        into.push(b'/');
        into.extend(path);
    }
    match mount.len() + 1 + into.len() > PATH_BYTES_MAX {
        true => Err(Detour::Kernel),
        false => Ok(()),
    }
}

fn absolute<'a>(mount: &[u8], path: &'a [u8]) -> Outcome<(&'static Session, At<'a>)> {
    let rest = inside(mount, path).ok_or(Detour::Kernel)?;
    let session = ready()?;
    if mounts::changed() || is_covered(session, rest) || rest.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    Ok((session, At { dir: DIR_ROOT, path: rest, _start: None }))
}

#[cold]
fn relative(dir: RawFd, path: &[u8]) -> Outcome<(&'static Session, At<'_>)> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    let state = state::get();
    let start = match dir {
        libc::AT_FDCWD => state.cwd.get()?,
        fd => file::find(fd)?,
    };
    if !start.is(bit::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let session = ready()?;
    if mounts::changed() {
        return Err(Detour::Kernel);
    }
    if start.session.load(Ordering::Relaxed) != session.number {
        if dir == libc::AT_FDCWD {
            state.cwd.changed();
        }
        return Err(Detour::Kernel);
    }
    let handle = start.handle.load(Ordering::Relaxed);
    Ok((session, At { dir: handle, path, _start: Some(start) }))
}

/// Paths mean something else here than in the service (chroot, another mount namespace), or the
/// service would take this process for more than it is. What a child inherits with memory of its
/// own, so that it stays until the next exec.
static ESTRANGED: AtomicBool = AtomicBool::new(false);

/// Whether paths mean the same in this process as in the service.
pub(crate) fn is_at_home() -> bool {
    !ESTRANGED.load(Ordering::SeqCst)
}

/// From now on this process, and what is forked from it, has no session.
pub(crate) fn leave_home() {
    ESTRANGED.store(true, Ordering::SeqCst);
}

/// The session, unless paths mean something else in this process.
pub(crate) fn ready() -> Outcome<&'static Session> {
    match ESTRANGED.load(Ordering::Relaxed) {
        false => state::get().sessions.get(),
        true => Err(Detour::Kernel),
    }
}

/// The part of an absolute path below the mount: relative, `.` for the root itself.
fn inside<'a>(mount: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(mount)?;
    let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
    match (rest, &rest[start..]) {
        ([], _) => Some(b"."),
        (rest, _) if rest[0] != b'/' => None,
        (_, []) => Some(b"."),
        (_, below) => Some(below),
    }
}

/// Whether the path plainly leads to where something else is mounted. The service knows the other
/// ways.
fn is_covered(session: &Session, path: &[u8]) -> bool {
    let covers =
        |dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    covers(RESERVED_DIR.as_bytes())
        || covers(SLOT_DIR.as_bytes())
        || session.covered.iter().any(|dir| covers(dir))
}

/// `st_dev` of the mount.
pub(crate) fn device() -> Outcome<u64> {
    let known = &state::get().device;
    match known.load(Ordering::Relaxed).checked_sub(1) {
        Some(device) => Ok(device),
        None => find_mount().map(|(device, _)| device),
    }
}

/// The inode number of the mount's root.
pub(crate) fn root_ino() -> Outcome<u64> {
    match state::get().root_ino.load(Ordering::Relaxed) {
        0 => find_mount().map(|(_, root)| root),
        root => Ok(root),
    }
}

/// Device and inode number of the mount's root.
#[cold]
fn find_mount() -> Outcome<(u64, u64)> {
    let mut path = [0; config::MOUNT_BYTES_MAX + 1];
    let path = config::under_mount(&mut path, b"").ok_or(Detour::Kernel)?;
    // After chroot there may be nothing of that name.
    let (device, root) = real::stat_cached(path).map_err(|_| Detour::Kernel)?;
    let state = state::get();
    state.root_ino.store(root, Ordering::Relaxed);
    state.device.store(device + 1, Ordering::Relaxed);
    Ok((device, root))
}

/// Opens the kernel's working directory at the service. `Kernel`: it is not the lane's; an errno:
/// it cannot be opened now.
#[cold]
pub(crate) fn open_cwd() -> Outcome<Pin> {
    let mount = mount()?;
    let mut path = [0; PATH_BYTES_MAX + 1];
    let path = thread::slow(|| real::working_directory(&mut path)).ok_or(Detour::Kernel)?;
    let rest = inside(mount, path).ok_or(Detour::Kernel)?;
    // There may be a session later.
    let session = ready().map_err(|_| Errno::EAGAIN)?;
    let (device, ino) = real::stat_cached(b".")?;
    if is_covered(session, rest) || device != self::device()? {
        return Err(Detour::Kernel);
    }
    let record = state::get().records.allocate().ok_or(Detour::Kernel)?;
    let reply = call::paths(session, Message::new(Op::OpenDir), (DIR_ROOT, rest), (DIR_ROOT, b""))?;
    record.handle.store(reply.handle, Ordering::Relaxed);
    record.session.store(session.number, Ordering::Relaxed);
    record.set(bit::DIRECTORY | bit::KERNEL_OFFSET);
    // From here on dropping the record closes the handle.
    let attr = call::on_handle(session, Op::Fstat, reply.handle)?.attr.ok_or(Detour::Kernel)?;
    if attr.ino != ino {
        return Err(Detour::Kernel);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_path_ends_at_a_component() {
        let lane = |path: &'static str| inside(b"/lane", path.as_bytes());
        assert_eq!(lane("/lane"), Some(&b"."[..]));
        assert_eq!(lane("/lane/"), Some(&b"."[..]));
        assert_eq!(lane("/lane///"), Some(&b"."[..]));
        assert_eq!(lane("/lane/a/b/"), Some(&b"a/b/"[..]));
        assert_eq!(lane("/lane//a"), Some(&b"a"[..]));
        assert_eq!(lane("/lane/../etc"), Some(&b"../etc"[..]));
        assert_eq!(lane("/lanes/a"), None);
        assert_eq!(lane("/lan"), None);
        assert_eq!(lane("/"), None);
    }

    #[test]
    fn a_root_lane_takes_every_absolute_path() {
        assert_eq!(inside(b"", b"/"), Some(&b"."[..]));
        assert_eq!(inside(b"", b"/etc/passwd"), Some(&b"etc/passwd"[..]));
        assert_eq!(inside(b"", b"//etc"), Some(&b"etc"[..]));
    }
}
