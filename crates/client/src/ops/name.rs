//! Calls that make, remove, move or read names.

use std::os::fd::RawFd;

use polylane_ipc::message::{Message, NameEffects, Op, Reply};

use super::path;
use super::process::umask_now;
use super::state::State;
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
        // Whoever works in a directory has its name from the kernel, which keeps the former one
        // until somebody looks at the new one through it.
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
    if flags & !libc::AT_SYMLINK_FOLLOW != 0 {
        return Err(Detour::Kernel);
    }
    two(state, from, to, Message { flags: flags as u32, ..Message::new(Op::Link) })
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
