//! One request on its way through: copied out, checked, served; replied to here, or by a helper, or
//! by whoever makes room for a lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_vfs::handover::Answered;
use zerocopy::IntoBytes;

use super::connection::{from_answer, to_answer};
use super::helpers::Helpers;
use super::request::{self, FileRequest, PATHS_BYTES_MAX};
use super::serve::{self, Call, Changed, Failure};
use super::session::{Pending, Session};
use super::stats::Stats;

/// What a worker sets aside for the paths of the request in its hands.
pub(super) type Scratch = Box<[u8; PATHS_BYTES_MAX]>;

/// What remains to be done after an attempt to serve.
enum Next {
    /// Reply.
    Reply,
    /// Tell the kernel what changed, then reply.
    TellKernel(Changed),
    /// Serve on a thread that may wait.
    HandOff,
    /// The same, once what gives room back is done.
    Again,
    /// Nothing: the reply comes from elsewhere.
    Parked,
}

/// Serves the request in a taken mailbox on a worker: never waits.
pub(super) fn on_worker(
    session: &Arc<Session>,
    mailbox: MailboxIndex,
    scratch: &mut Scratch,
    (helpers, stats): (&Helpers, &Stats),
) {
    let Some(message) = session.connection.channel.message(mailbox) else {
        stats.refused();
        return session.connection.channel.reply(mailbox, &failed(Errno::EINVAL));
    };
    stats.took(message.op);
    session.rights().settle();
    let Ok(paths) = copy_paths(session, mailbox, &message, scratch) else {
        return session.connection.channel.reply(mailbox, &failed(Errno::ENAMETOOLONG));
    };
    let call = Call { session, mailbox, stats, may_block: false, changed: None, turn: None };
    // What a panic would leave.
    let mut reply = failed(Errno::EIO);
    let (next, until_sent) = attempt(call, (&message, paths), &mut reply);
    match next {
        Next::Reply => {
            stats.ended(reply.status);
            session.connection.channel.reply(mailbox, &reply);
        }
        Next::TellKernel(changed) => {
            stats.handed_off();
            let pending = Pending::new(session.clone(), mailbox);
            let job = move || {
                tell_kernel(pending, &changed, &reply);
                drop(until_sent);
            };
            helpers.post(session.connection.cred.uid, session.connection.id, Box::new(job));
        }
        next @ (Next::HandOff | Next::Again) => {
            stats.handed_off();
            let pending = Pending::new(session.clone(), mailbox);
            let (paths, again) = (paths.to_vec(), matches!(next, Next::Again));
            let job = move || {
                if again {
                    pending.session().connection.lane.reclaim();
                }
                on_helper(pending, &message, &paths);
            };
            helpers.post(session.connection.cred.uid, session.connection.id, Box::new(job));
        }
        Next::Parked => {}
    }
}

/// Serves the same request on a thread that may wait.
fn on_helper(pending: Pending, message: &Message, paths: &[u8]) {
    let (session, mailbox) = (pending.session().clone(), pending.mailbox());
    let stats = &session.connection.stats;
    let call =
        Call { session: &session, mailbox, stats, may_block: true, changed: None, turn: None };
    let mut reply = failed(Errno::EIO);
    let (next, _until_sent) = attempt(call, (message, paths), &mut reply);
    match next {
        Next::Reply => pending.reply(&reply),
        Next::TellKernel(changed) => tell_kernel(pending, &changed, &reply),
        Next::Parked => pending.release(),
        // A helper may block: dropping the pending reply says EIO should this ever come.
        Next::HandOff | Next::Again => drop(pending),
    }
}

/// The kernel gives up its pages of what changed, then the client hears that it changed.
fn tell_kernel(pending: Pending, changed: &Changed, reply: &Reply) {
    match changed.tell_kernel(pending.session(), pending.mailbox()) {
        Ok(()) => pending.reply(reply),
        Err(errno) => pending.reply(&failed(errno)),
    }
}

/// Copies the paths of a message out, once.
fn copy_paths<'a>(
    session: &Session,
    mailbox: MailboxIndex,
    message: &Message,
    scratch: &'a mut Scratch,
) -> Result<&'a [u8]> {
    let len = request::path_bytes(message, session.connection.channel.buffer_bytes())?;
    let paths = &mut scratch[..len];
    if len > 0 {
        session.connection.channel.payload_get(mailbox, 0, paths);
    }
    Ok(paths)
}

/// Serves a request in its turn, where it is one to be done once. What comes with the next step is
/// to be dropped when the reply is sent.
fn attempt(
    call: Call<'_>,
    (message, paths): (&Message, &[u8]),
    reply: &mut Reply,
) -> (Next, Option<Answered>) {
    let turn = match call.session.connection.turn(message.turn) {
        Ok(turn) => turn,
        Err((answer, until_sent)) => {
            *reply = from_answer(&answer);
            return (Next::Reply, Some(until_sent));
        }
    };
    let call = Call { turn: turn.as_ref(), ..call };
    let next = check_and_serve(call, (message, paths), reply);
    let Some(turn) = turn else { return (next, None) };
    let answered = match (&next, reply.status) {
        (Next::HandOff | Next::Again | Next::Parked, _) => {
            turn.postpone();
            None
        }
        // The handle that an open gives is of no use to another service.
        (_, Status::Done(_)) if turn.is_begun() && message.op == Op::Open => {
            Some(turn.found_again())
        }
        (_, Status::Done(_)) if turn.is_begun() => Some(turn.done(to_answer(reply).as_bytes())),
        _ => None,
    };
    (next, answered)
}

/// Checks and serves. A panic on the way is ours, not the client's doing: it costs this request.
fn check_and_serve(
    mut call: Call<'_>,
    (message, paths): (&Message, &[u8]),
    reply: &mut Reply,
) -> Next {
    let request =
        match FileRequest::check(message, paths, call.session.connection.channel.buffer_bytes()) {
            Ok(request) => request,
            Err(errno) => {
                *reply = failed(errno);
                return Next::Reply;
            }
        };
    let served = catch_unwind(AssertUnwindSafe(|| match serve::serve(&mut call, &request) {
        Ok(answer) => {
            *reply = answer;
            Next::Reply
        }
        Err(Failure::Errno(Errno::ENOSPC)) if !call.may_block => Next::Again,
        Err(Failure::Errno(errno) | Failure::Late(errno)) => {
            reply.status = Status::Failed(errno.0);
            Next::Reply
        }
        Err(Failure::UseKernel) => {
            reply.status = Status::UseKernel;
            Next::Reply
        }
        Err(Failure::HandOff) => Next::HandOff,
        Err(Failure::Parked) => Next::Parked,
    }));
    if served.is_err() {
        call.session.abandon(call.mailbox);
    }
    match (served, call.changed) {
        (Ok(Next::Reply) | Err(_), Some(changed)) => Next::TellKernel(changed),
        (Ok(next), _) => next,
        (Err(_), None) => Next::Reply,
    }
}

fn failed(errno: Errno) -> Reply {
    Reply::new(Status::Failed(errno.0))
}
