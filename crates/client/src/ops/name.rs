//! Calls that make, remove, move or read names.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{Message, NameEffects, Op, Reply};
use rustix::fs::AtFlags;

use super::process::umask_now;
use super::state::State;
use super::{file, path};
use crate::fd::record::FileBits;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::session::call;

/// A path and the directory it is relative to, as `*at` calls take them.
pub(crate) type Place<'a> = (RawFd, &'a [u8]);

fn one(state: &'static State, place: Place<'_>, message: Message) -> Outcome<()> {
    let (session, at) = path::at(state, place.0, place.1)?;
    call::paths(session, message, (at.dir, at.path), (at.dir, b""))?;
    Ok(())
}

fn two(state: &'static State, from: Place<'_>, to: Place<'_>, message: Message) -> Outcome<()> {
    let (session, from, to) = path::two(state, from, to)?;
    call::paths(session, message, (from.dir, from.path), (to.dir, to.path))?;
    Ok(())
}

/// `mkdirat`.
pub(crate) fn mkdir(state: &'static State, place: Place<'_>, mode: u32) -> Outcome<()> {
    let (session, at) = path::at(state, place.0, place.1)?;
    let message = Message { mode, umask: umask_now(state), ..Message::new(Op::Mkdir) };
    call::paths(session, message, (at.dir, at.path), (at.dir, b""))?;
    state.get().lane(session.lane).leases.made_dir(&at);
    Ok(())
}

/// `mknodat`. Devices take a capability, of which the kernel knows.
pub(crate) fn mknod(
    state: &'static State,
    place: Place<'_>,
    mode: u32,
    device: u64,
) -> Outcome<()> {
    if matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
        return Err(Detour::Kernel);
    }
    path::at(state, place.0, place.1)?;
    let mut message = Message { mode, umask: umask_now(state), ..Message::new(Op::Mknod) };
    message.arg[0] = device;
    one(state, place, message)
}

/// `unlinkat`.
pub(crate) fn unlink(state: &'static State, place: Place<'_>, flags: i32) -> Outcome<()> {
    let (session, at) = path::at(state, place.0, place.1)?;
    let lane = state.get().lane(session.lane);
    if flags == 0 {
        let unlink = || lane.leases.unlink(session, &at);
        let again = || if lane.leases.empties_listed(session, &at) { unlink() } else { None };
        if let Some(done) = unlink().or_else(again) {
            return done;
        }
    }
    let message = Message { flags: flags as u32, ..Message::new(Op::Unlink) };
    let reply = call::paths(session, message, (at.dir, at.path), (at.dir, b""))?;
    let effects = NameEffects::from_bits_retain(reply.value[0]);
    if effects.contains(NameEffects::ENDED_LEASES) {
        lane.leases.gave_up(session);
    }
    lane.leases.changed(session, &at, flags == 0);
    if flags & libc::AT_REMOVEDIR != 0 {
        lane.directories.shed();
    }
    if effects.contains(NameEffects::MOVED_DIR) {
        state.get().cwd.may_be_removed();
    }
    Ok(())
}

/// `renameat2`.
pub(crate) fn rename(
    state: &'static State,
    from: Place<'_>,
    to: Place<'_>,
    flags: u32,
) -> Outcome<()> {
    let (session, old, new) = path::two(state, from, to)?;
    let lane = state.get().lane(session.lane);
    let leased = match flags & !libc::RENAME_NOREPLACE {
        0 => lane.leases.rename(session, &old, &new, flags == 0),
        _ => None,
    };
    let effects = match leased {
        Some(done) => done?,
        None => {
            let message = Message { flags, ..Message::new(Op::Rename) };
            let reply = call::paths(session, message, (old.dir, old.path), (new.dir, new.path))?;
            lane.leases.changed(session, &new, false);
            NameEffects::from_bits_retain(reply.value[0])
        }
    };
    if effects.contains(NameEffects::REPLACED_DIR) {
        lane.directories.shed();
    }
    if !effects.is_empty() {
        // A process that works in a directory has the directory's name from the kernel, which keeps
        // the former one until a process looks the new one up through it.
        real::look(to.0, to.1);
        if effects.contains(NameEffects::REPLACED_DIR) && flags & libc::RENAME_EXCHANGE != 0 {
            real::look(from.0, from.1);
        }
    }
    Ok(())
}

/// `linkat`.
pub(crate) fn link(
    state: &'static State,
    from: Place<'_>,
    to: Place<'_>,
    flags: i32,
) -> Outcome<()> {
    if let Some(fd) = open_file(from, flags) {
        return link_open(state, (fd, from, flags), to);
    }
    if flags & !libc::AT_SYMLINK_FOLLOW != 0 {
        return Err(Detour::Kernel);
    }
    two(state, from, to, Message { flags: flags as u32, ..Message::new(Op::Link) })
}

/// The open file that `linkat` gives a name: by itself, or by its link in `/proc`.
fn open_file((dir, path): Place<'_>, flags: i32) -> Option<RawFd> {
    const LINKS: [&[u8]; 3] = [b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/"];
    match flags {
        libc::AT_EMPTY_PATH if path.is_empty() => Some(dir),
        libc::AT_SYMLINK_FOLLOW => {
            let number = LINKS.iter().find_map(|start| path.strip_prefix(*start))?;
            str::from_utf8(number).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// The kernel does it, and finds out whether this process may name the file by a link or by its
/// descriptor. What it says last is whether the directory may be written to; of a slot it knows
/// neither owner nor mode, for which it refuses others before that (`fs.protected_hardlinks`), so
/// the service says which of the two it is.
fn link_open(
    state: &'static State,
    (fd, from, flags): (RawFd, Place<'_>, i32),
    to: Place<'_>,
) -> Outcome<()> {
    /// Paths as long as that are copied without memory of the program's.
    const TEXT_MAX: usize = 250;
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) || from.1.len().max(to.1.len()) > TEXT_MAX {
        return Err(Detour::Kernel);
    }
    let how = AtFlags::from_bits_retain(flags.cast_unsigned());
    let dir = |fd| if fd == libc::AT_FDCWD { rustix::fs::CWD } else { real::borrow(fd) };
    let (from_dir, to_dir) = (dir(from.0), dir(to.0));
    let refused = match rustix::fs::linkat(from_dir, from.1, to_dir, to.1, how) {
        Ok(()) => return Ok(()),
        Err(refused) => Errno(refused.raw_os_error()),
    };
    if refused != Errno::EACCES {
        return Err(refused.into());
    }
    let asked = || -> Outcome<()> {
        let (session, handle) = file::usable(state, &file, fd)?;
        let (others, at) = path::at(state, to.0, to.1)?;
        if session.number != others.number {
            return Err(Detour::Kernel);
        }
        let flags = (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_FOLLOW) as u32;
        let message = Message { handle, flags, ..Message::new(Op::Link) };
        call::paths(session, message, (at.dir, b""), (at.dir, at.path)).map(drop)
    };
    match asked() {
        Err(Detour::Kernel) => Err(refused.into()),
        said => said,
    }
}

/// `symlinkat`. The target is any text and may lead anywhere.
pub(crate) fn symlink(state: &'static State, target: &[u8], place: Place<'_>) -> Outcome<()> {
    let (session, at) = path::at(state, place.0, place.1)?;
    if target.is_empty() || target.len() > polylane_ipc::message::PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    let message = Message::new(Op::Symlink);
    call::paths(session, message, (at.dir, target), (at.dir, at.path))?;
    Ok(())
}

/// `readlinkat`: bytes of the target that fit.
pub(crate) fn readlink(state: &'static State, place: Place<'_>, into: &mut [u8]) -> Outcome<usize> {
    if into.is_empty() {
        return Err(Detour::Kernel);
    }
    let (session, at) = path::at(state, place.0, place.1)?;
    let message = Message { length: into.len() as u64, ..Message::new(Op::Readlink) };
    let first = (at.dir, at.path);
    let reply: Reply = call::paths_read(session, message, first, (at.dir, b""), into)?;
    Ok(call::count(&reply).min(into.len()))
}
