//! Is this path ours, and where does it start?
//!
//! A path belongs to a lane when it is absolute and starts with its mount path, component by
//! component, or is relative to a directory of that lane. Nothing else is looked at: `..`, symbolic
//! links and mounts in the way are the service's to notice (`UseKernel`), and a path that reaches
//! the lane by a detour from outside goes through the kernel, which is right too.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{DIR_ROOT, Message, Op, PATH_BYTES_MAX};

use super::file;
use super::state::{self, State};
use crate::fd::at::At;
use crate::fd::record::FileBits;
use crate::fd::table::Pin;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::Session;
use crate::session::call;
use crate::session::mounts;
use crate::session::namespace;
use crate::session::path::{is_covered, lane_of};

/// `path` as seen from `dir`, or `Kernel` when it is no lane's.
#[inline]
pub(crate) fn at<'a>(
    state: &'static State,
    dir: RawFd,
    path: &'a [u8],
) -> Outcome<(&'static Session, At<'a>)> {
    namespace::any_lane()?;
    if path.first() == Some(&b'/') {
        return absolute(state, path);
    }
    relative(state, dir, path)
}

/// Whether a path starts from a directory that a descriptor means.
pub(crate) fn is_relative(dir: RawFd, path: &[u8]) -> bool {
    dir != libc::AT_FDCWD && path.first() != Some(&b'/')
}

/// Two paths of one call; both are of one lane, or the kernel does it.
pub(crate) fn two<'a>(
    state: &'static State,
    first: (RawFd, &'a [u8]),
    second: (RawFd, &'a [u8]),
) -> Outcome<(&'static Session, At<'a>, At<'a>)> {
    let (session, one) = at(state, first.0, first.1)?;
    let (again, two) = at(state, second.0, second.1)?;
    // They are of two lanes, or a session that ended between the two has taken its handles along.
    if session.number != again.number {
        return Err(Detour::Kernel);
    }
    Ok((session, one, two))
}

fn absolute<'a>(state: &'static State, path: &'a [u8]) -> Outcome<(&'static Session, At<'a>)> {
    let (lane, rest) = lane_of(path).ok_or(Detour::Kernel)?;
    let session = state.get().lane(lane).ready()?;
    if mounts::changed(session) || is_covered(session, rest) || rest.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    Ok((session, At::from_root(rest)))
}

#[cold]
fn relative<'a>(
    state: &'static State,
    dir: RawFd,
    path: &'a [u8],
) -> Outcome<(&'static Session, At<'a>)> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    let fields = state.get();
    let start = match dir {
        libc::AT_FDCWD => fields.cwd.get(fields.records(), || find_cwd(fields))?,
        fd => file::find(state, fd)?,
    };
    if !start.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let session = fields.lane(start.lane()).ready()?;
    if mounts::changed(session) {
        return Err(Detour::Kernel);
    }
    if start.session.load(Ordering::Relaxed) != session.number {
        if dir == libc::AT_FDCWD {
            fields.cwd.changed(fields.records());
        }
        return Err(Detour::Kernel);
    }
    Ok((session, At::from_directory(start, path)))
}

/// Opens the kernel's working directory at the service. `Kernel`: it is no lane's; an errno: it
/// cannot be opened now.
#[cold]
fn find_cwd(state: &'static state::Fields) -> Outcome<Pin> {
    match real::is_on_small_stack() {
        true => Err(Errno::EAGAIN.into()),
        false => open_cwd(state),
    }
}

/// As [`find_cwd`], with room for a path.
#[inline(never)]
fn open_cwd(state: &'static state::Fields) -> Outcome<Pin> {
    namespace::any_lane()?;
    let mut path = [0; PATH_BYTES_MAX + 1];
    let path = thread::slow(|| real::working_directory(&mut path)).ok_or(Detour::Kernel)?;
    let (number, rest) = lane_of(path).ok_or(Detour::Kernel)?;
    let lane = state.lane(number);
    // There may be a session later.
    let session = lane.ready().map_err(|_| Errno::EAGAIN)?;
    let (device, ino) = real::stat_cached(b".")?;
    if is_covered(session, rest) || device != lane.device()? {
        return Err(Detour::Kernel);
    }
    let record = state.records().allocate(number).ok_or(Detour::Kernel)?;
    let reply = call::paths(session, Message::new(Op::OpenDir), (DIR_ROOT, rest), (DIR_ROOT, b""))?;
    record.handle.store(reply.handle, Ordering::Relaxed);
    record.session.store(session.number, Ordering::Relaxed);
    record.set(FileBits::DIRECTORY | FileBits::KERNEL_OFFSET);
    // From here on dropping the record closes the handle.
    let attr = call::on_handle(session, Op::Fstat, reply.handle)?.attr.ok_or(Detour::Kernel)?;
    if attr.ino != ino {
        return Err(Detour::Kernel);
    }
    Ok(record)
}
