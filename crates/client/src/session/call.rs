//! One request and its reply.
//!
//! The only module that talks to a mailbox. Every failure of the channel itself becomes "ask the
//! kernel", and the session is given up; what the service answers is handed on.

use polylane_base::Errno;
use polylane_ipc::CallError;
use polylane_ipc::message::{Message, Op, Reply, SOLE, Status, TELL_SOLE};
use polylane_ipc::stream::NAME_BYTES_MAX;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::kernel::outcome::{Detour, Lost, Outcome, make_room};
use crate::session::{Alive, Mailbox, Mark, Session};

/// Paths start at the payload's first byte; what follows them is data.
pub(crate) type Place<'a> = (u64, &'a [u8]);

/// Sends a request with up to two paths.
pub(crate) fn paths(
    session: &'static Session,
    message: Message,
    first: Place<'_>,
    second: Place<'_>,
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let message = counted(session, put_paths(&mailbox, message, first, second));
    let reply = mailbox.session.channel.call(mailbox.index, &message, &Alive(session));
    finish(&mailbox, &message, reply)
}

/// Sends a question about a path to which the answer may be kept. What the service answers is the
/// caller's, a failure too.
pub(crate) fn question(
    session: &'static Session,
    message: Message,
    place: Place<'_>,
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let message = put_paths(&mailbox, message, place, (place.0, b""));
    let reply = mailbox.session.channel.call(mailbox.index, &message, &Alive(session));
    let reply = reply.map_err(|_| lost(session, &message))?;
    match reply.status {
        Status::Failed(libc::EBADF) if session.is_lost() => Err(lost(session, &message)),
        _ => Ok(reply),
    }
}

/// Opens a file by that mailbox of the thread, if it is free; with the reply comes the mark by
/// which the bytes that it brought are found. `rested` gives the handle of what is closed first, 0
/// for none: called once there is a mailbox, and dropped where there is none.
pub(crate) fn open(
    session: &'static Session,
    place: usize,
    mut message: Message,
    at: Place<'_>,
    rested: impl FnOnce() -> u64,
) -> Outcome<(Reply, Mark)> {
    let mailbox = session.mailbox_at(place)?;
    message.arg[3] = rested();
    let message = counted(session, put_paths(&mailbox, message, at, (at.0, b"")));
    let reply = session.channel.call(mailbox.index, &message, &Alive(session));
    Ok((finish(&mailbox, &message, reply)?, session.mark(mailbox.index)))
}

/// Sends a request with up to two paths that is answered with data; returns the count of the reply.
pub(crate) fn paths_read(
    session: &'static Session,
    message: Message,
    first: Place<'_>,
    second: Place<'_>,
    into: &mut [u8],
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let message = put_paths(&mailbox, message, first, second);
    let room = into.len().min(session.channel.buffer_bytes());
    let watch = Alive(session);
    let into = &mut into[..room];
    finish(&mailbox, &message, session.channel.call_read(mailbox.index, &message, into, &watch))
}

/// Sends a request that is answered with entries of a directory, which replace what `into` holds.
pub(crate) fn list(
    session: &'static Session,
    message: Message,
    place: Place<'_>,
    into: &mut Vec<u8>,
) -> Outcome<Reply> {
    into.clear();
    make_room(into, session.channel.buffer_bytes())?;
    let mailbox = session.mailbox()?;
    let message = put_paths(&mailbox, message, place, (place.0, b""));
    let reply = session.channel.call(mailbox.index, &message, &Alive(session));
    let reply = finish(&mailbox, &message, reply)?;
    into.resize(count(&reply).min(session.channel.buffer_bytes()), 0);
    session.channel.payload_get(mailbox.index, 0, into);
    Ok(reply)
}

/// What comes with a lease.
pub(crate) enum Granted<'a> {
    /// Its number; `afresh`: all leases before it are over; `data`: writes may be streamed. Comes
    /// first.
    Lease { lease: u8, afresh: bool, data: bool },
    /// A name that is in the directory; `sole`: see [`SOLE`].
    Name { lease: u8, name: &'a [u8], sole: bool },
}

/// Asks for a lease on a directory, and for which names in it are sole. False when there is none,
/// or `each` said false.
pub(crate) fn lease(
    session: &'static Session,
    (dir, path): Place<'_>,
    tell_sole: bool,
    mut each: impl FnMut(Granted<'_>) -> bool,
) -> bool {
    let Ok(mailbox) = session.mailbox() else { return false };
    let (channel, index) = (&session.channel, mailbox.index);
    let flags = if tell_sole { TELL_SOLE } else { 0 };
    let message = Message { flags, ..Message::new(Op::Lease) };
    let message = put_paths(&mailbox, message, (dir, path), (dir, b""));
    let reply = channel.call(index, &message, &Alive(session));
    let Ok(reply) = finish(&mailbox, &message, reply) else { return false };
    let (lease, afresh) = (reply.value[0] as u8, reply.value[1] != 0);
    if !each(Granted::Lease { lease, afresh, data: reply.value[2] != 0 }) {
        return false;
    }
    let mut at = 0;
    (0..count(&reply)).all(|_| {
        let (mut len, mut name) = ([0], [0; NAME_BYTES_MAX]);
        channel.payload_get(index, at, &mut len);
        let Some(name) = name.get_mut(..usize::from(len[0] & !SOLE)) else { return false };
        channel.payload_get(index, at + 1, name);
        at += 1 + name.len();
        each(Granted::Name { lease, name, sole: len[0] & SOLE != 0 })
    })
}

/// Sends a request with two paths and data after them.
pub(crate) fn paths_write(
    session: &'static Session,
    message: Message,
    first: Place<'_>,
    second: Place<'_>,
    data: &[u8],
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let message = counted(session, put_paths(&mailbox, message, first, second));
    let at = first.1.len() + second.1.len();
    if data.len() > session.channel.buffer_bytes() - at {
        return Err(Detour::Kernel);
    }
    let watch = Alive(session);
    let reply = session.channel.call_write(mailbox.index, &message, (at, data), false, &watch);
    finish(&mailbox, &message, reply)
}

/// Sends a request about an open file, without payload.
#[inline]
pub(crate) fn on_handle(session: &'static Session, op: Op, handle: u64) -> Outcome<Reply> {
    plain(session, Message { handle, ..Message::new(op) })
}

/// Asks for the tickets of open files, of which there are at most
/// [`EXPOSED_MAX`](polylane_ipc::message::EXPOSED_MAX); zeros for one
/// that has none.
pub(crate) fn expose_all(
    session: &'static Session,
    handles: &[U64],
    tickets: &mut [[u8; 16]],
) -> Outcome<()> {
    let mailbox = session.mailbox()?;
    let handles = handles.as_bytes();
    session.channel.payload_put(mailbox.index, 0, handles);
    let message = Message { length: handles.len() as u64, ..Message::new(Op::ExposeAll) };
    let watch = Alive(session);
    let into = tickets.as_flattened_mut();
    let reply = session.channel.call_read(mailbox.index, &message, into, &watch);
    finish(&mailbox, &message, reply).map(drop)
}

/// Sends a request without payload.
#[inline]
pub(crate) fn plain(session: &'static Session, message: Message) -> Outcome<Reply> {
    let mailbox = session.mailbox_for(&message)?;
    let message = counted(session, message);
    finish(&mailbox, &message, session.channel.call(mailbox.index, &message, &Alive(session)))
}

/// Reads into `into`, at most one payload buffer of it.
#[inline]
pub(crate) fn read(
    session: &'static Session,
    message: &Message,
    into: &mut [u8],
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let watch = Alive(session);
    finish(&mailbox, message, session.channel.call_read(mailbox.index, message, into, &watch))
}

/// Writes `from`, at most one payload buffer of it.
#[inline]
pub(crate) fn write(
    session: &'static Session,
    message: &Message,
    from: &[u8],
    overlap: bool,
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let watch = Alive(session);
    let reply = session.channel.call_write(mailbox.index, message, (0, from), overlap, &watch);
    finish(&mailbox, message, reply)
}

/// Writes what lies in several places; together at most one payload buffer.
pub(crate) fn gather(
    session: &'static Session,
    message: &Message,
    parts: &[&[u8]],
) -> Outcome<Reply> {
    let mailbox = session.mailbox()?;
    let (last, first) = parts.split_last().ok_or(Detour::Kernel)?;
    let mut at = 0;
    for part in first {
        session.channel.payload_put(mailbox.index, at, part);
        at += part.len();
    }
    // The last piece goes with the call, which says how much there is.
    let watch = Alive(session);
    let reply = session.channel.call_write(mailbox.index, message, (at, last), false, &watch);
    finish(&mailbox, message, reply)
}

/// Reads into several places, together at most one payload buffer; returns how many bytes came.
pub(crate) fn scatter(
    session: &'static Session,
    message: &Message,
    into: &mut [&mut [u8]],
) -> Outcome<usize> {
    let mailbox = session.mailbox()?;
    let reply = session.channel.call(mailbox.index, message, &Alive(session));
    let count = count(&finish(&mailbox, message, reply)?);
    let mut at = 0;
    for sink in into.iter_mut() {
        let part = sink.len().min(count.saturating_sub(at));
        session.channel.payload_get(mailbox.index, at, &mut sink[..part]);
        at += part;
    }
    Ok(at)
}

fn put_paths(mailbox: &Mailbox, message: Message, first: Place<'_>, second: Place<'_>) -> Message {
    let channel = &mailbox.session.channel;
    channel.payload_put(mailbox.index, 0, first.1);
    if !second.1.is_empty() {
        channel.payload_put(mailbox.index, first.1.len(), second.1);
    }
    Message {
        dir: first.0,
        dir2: second.0,
        path_len: first.1.len() as u32,
        path2_len: second.1.len() as u32,
        ..message
    }
}

/// What became of a request.
#[inline]
pub(crate) fn finish(
    mailbox: &Mailbox,
    message: &Message,
    reply: Result<Reply, CallError>,
) -> Outcome<Reply> {
    match accept(reply.map_err(|_| lost(mailbox.session, message))?) {
        // Another thread left the session, and its handles went with it: nothing was done.
        Err(Detour::Errno(Errno::EBADF)) if mailbox.session.is_lost() => {
            Err(lost(mailbox.session, message))
        }
        done => done,
    }
}

/// What the service said.
#[inline]
pub(crate) fn accept(reply: Reply) -> Outcome<Reply> {
    match reply.status {
        Status::Done(_) => Ok(reply),
        Status::Failed(errno) => Err(Detour::Errno(polylane_base::Errno(errno))),
        Status::UseKernel => Err(Detour::Kernel),
    }
}

/// What can be done twice is done again by the kernel's way; locks are the process's own with the
/// service alone.
#[cold]
fn lost(session: &Session, message: &Message) -> Detour {
    session.lose();
    match message.op {
        Op::Lock | Op::GetLock => Detour::Lost(Lost { lane: session.lane, turn: 0 }),
        _ if message.turn != 0 => Detour::Lost(Lost { lane: session.lane, turn: message.turn }),
        _ => Detour::Kernel,
    }
}

/// A number for a request that must be done once, by which the next service knows it should this
/// one die.
fn counted(session: &Session, message: Message) -> Message {
    let flags = message.flags.cast_signed();
    let once = match message.op {
        Op::Mkdir | Op::Mknod | Op::Symlink | Op::Link | Op::Unlink | Op::Rename => true,
        Op::Removexattr => true,
        Op::Open => flags & libc::O_EXCL != 0,
        Op::Setxattr => message.arg[0] & libc::XATTR_CREATE as u64 != 0,
        Op::Fallocate => {
            flags & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0
        }
        _ => false,
    };
    match once && message.turn == 0 {
        true => Message { turn: session.sessions().turn(), ..message },
        false => message,
    }
}

/// The count of a reply that [`finish`] let through.
#[inline]
pub(crate) fn count(reply: &Reply) -> usize {
    match reply.status {
        Status::Done(count) => usize::try_from(count).unwrap_or(usize::MAX),
        _ => 0,
    }
}
