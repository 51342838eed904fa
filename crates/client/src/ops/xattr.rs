//! Extended attributes.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op};

use super::state::State;
use super::{file, path};
use crate::fd::at::At;
use crate::fd::table::Pin;
use crate::kernel::outcome::{Detour, Outcome};
use crate::session::Session;
use crate::session::call;

/// Largest value and largest list (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const BYTES_MAX: usize = 65536;

/// Whose attributes.
#[derive(Clone, Copy)]
pub(crate) enum Object<'a> {
    /// Of what the path names; whether a last symbolic link is followed.
    Path(&'a [u8], bool),
    /// Of an open file.
    Open(RawFd),
}

/// An object that the service can find.
struct Found<'a> {
    session: &'static Session,
    message: Message,
    at: At<'a>,
    _file: Option<Pin>,
}

impl<'a> Found<'a> {
    fn new(state: &'static State, object: Object<'a>, op: Op) -> Outcome<Found<'a>> {
        match object {
            Object::Path(path, follow) => {
                let (session, at) = path::at(state, libc::AT_FDCWD, path)?;
                let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW as u32 };
                let message = Message { flags, ..Message::new(op) };
                Ok(Found { session, message, at, _file: None })
            }
            Object::Open(fd) => {
                let file = file::find(state, fd)?;
                let (session, handle) = file::usable(state, &file, fd)?;
                let message = Message { handle, ..Message::new(op) };
                Ok(Found { session, message, at: At::nowhere(), _file: Some(file) })
            }
        }
    }

    fn first(&self) -> call::Place<'a> {
        (self.at.dir, self.at.path)
    }
}

/// Which attributes take a capability that the service does not know of: who is root it takes for
/// one who has all. The kernel judges.
fn left_to_kernel(name: &[u8], spaces: &[&[u8]]) -> Outcome<()> {
    match spaces.iter().any(|space| name.starts_with(space)) {
        true => Err(Detour::Kernel),
        false => Ok(()),
    }
}

/// To be read, and to be changed.
const TO_READ: &[&[u8]] = &[b"trusted."];
const TO_CHANGE: &[&[u8]] = &[b"trusted.", b"security."];

/// `getxattr`: bytes of the value; with no room, its size.
pub(crate) fn get(
    state: &'static State,
    object: Object<'_>,
    name: &[u8],
    into: &mut [u8],
) -> Outcome<usize> {
    left_to_kernel(name, TO_READ)?;
    read(state, object, Op::Getxattr, name, into)
}

/// `listxattr`: bytes of all names with their NULs; with no room, their size.
pub(crate) fn list(state: &'static State, object: Object<'_>, into: &mut [u8]) -> Outcome<usize> {
    read(state, object, Op::Listxattr, b"", into)
}

fn read(
    state: &'static State,
    object: Object<'_>,
    op: Op,
    name: &[u8],
    into: &mut [u8],
) -> Outcome<usize> {
    let found = Found::new(state, object, op)?;
    let room = into.len().min(BYTES_MAX);
    let into = &mut into[..room];
    let message = Message { length: room as u64, ..found.message };
    let second = (found.at.dir, name);
    // With no room the count is a size, and nothing is copied.
    let reply = call::paths_read(found.session, message, found.first(), second, into)?;
    Ok(call::count(&reply))
}

/// `setxattr`; `how`: `XATTR_CREATE`, `XATTR_REPLACE` or 0.
pub(crate) fn set(
    state: &'static State,
    object: Object<'_>,
    name: &[u8],
    value: &[u8],
    how: i32,
) -> Outcome<()> {
    left_to_kernel(name, TO_CHANGE)?;
    let found = Found::new(state, object, Op::Setxattr)?;
    if value.len() > BYTES_MAX {
        return Err(Errno::E2BIG.into());
    }
    let mut message = Message { length: value.len() as u64, ..found.message };
    message.arg[0] = how as u32 as u64;
    let second = (found.at.dir, name);
    call::paths_write(found.session, message, found.first(), second, value)?;
    Ok(())
}

/// `removexattr`.
pub(crate) fn remove(state: &'static State, object: Object<'_>, name: &[u8]) -> Outcome<()> {
    left_to_kernel(name, TO_CHANGE)?;
    let found = Found::new(state, object, Op::Removexattr)?;
    let second = (found.at.dir, name);
    call::paths(found.session, found.message, found.first(), second)?;
    Ok(())
}
