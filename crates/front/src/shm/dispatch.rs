//! One request on its way through: copied out, checked, served; replied to here, by a thread that
//! may wait, or by the one that makes room for a lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_vfs::handover::Answered;
use zerocopy::IntoBytes;

use super::connection::{from_answer, to_answer};
use super::guarded;
use super::helpers::{Expected, Helpers};
use super::request::{self, Brings, FileRequest, PATHS_BYTES_MAX};
use super::serve::{self, Call, Changed, Failure, Half, Left, Rest};
use super::session::{Pending, Session};
use super::stats::Stats;

/// What a worker sets aside for the paths of the request in its hands.
pub(super) type Scratch = Box<[u8; PATHS_BYTES_MAX]>;

/// What remains to be done after an attempt to serve.
enum Next {
    /// Reply.
    Reply,
    /// Tell the kernel what changed, data among it if so, then reply.
    TellKernel(Option<Changed>),
    /// Serve on a thread that may wait.
    HandOff,
    /// The same, on this thread if another serves others meanwhile.
    Wait,
    /// The same, once what gives room back is done.
    Again,
    /// Nothing: the reply comes from elsewhere.
    Parked,
    /// Leave the rest of a sync to a thread that commits the same, or wait for it.
    Leave(Rest),
}

/// A request that waits for a device; dropped, it ends with `EIO`.
pub(super) struct Waiting {
    pending: Pending,
    what: What,
}

/// What is to be done for a request that waits.
enum What {
    /// All of it.
    Request(Message, Vec<u8>),
    /// The rest of a sync.
    Rest(Rest),
}

/// A reply that is known, and not sent yet.
pub(super) struct Answer {
    pending: Pending,
    reply: Reply,
    /// To be dropped when the reply is sent.
    _until_sent: Option<Answered>,
}

/// Serves the request in a taken mailbox on a worker. Returns one that would wait for a device, but
/// for a small sync, which the worker does itself (`before_sync`).
pub(super) fn on_worker(
    session: &Arc<Session>,
    mailbox: MailboxIndex,
    scratch: &mut Scratch,
    (helpers, stats): (&Arc<Helpers>, &Stats),
) -> Option<Waiting> {
    let Some(message) = session.connection.channel.message(mailbox) else {
        stats.refused();
        session.connection.channel.reply(mailbox, &failed(Errno::EINVAL));
        return None;
    };
    stats.took(message.op);
    session.rights().settle();
    if let Some(rested) = Brings::instead_of(&message) {
        // Before anything refuses the open; what is closed already is none of its business.
        guarded(|| {
            let _ = session.rights().close(rested, true);
        });
    }
    let Ok(paths) = copy_paths(session, mailbox, &message, scratch) else {
        session.connection.channel.reply(mailbox, &failed(Errno::ENAMETOOLONG));
        return None;
    };
    let call = Call::new((session, mailbox), stats, false);
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
                let reply = told_kernel(&pending, changed.as_ref(), reply);
                Answer { pending, reply, _until_sent: until_sent }.send();
            };
            helpers.post(session.connection.cred.uid, session.connection.id, Box::new(job));
        }
        next @ (Next::HandOff | Next::Again) => {
            stats.handed_off();
            let waiting = Waiting::new(session, mailbox, (message, paths));
            let again = matches!(next, Next::Again);
            let job = move || {
                if again {
                    waiting.pending.session().connection.lane.reclaim();
                }
                waiting.serve_and_send();
            };
            helpers.post(session.connection.cred.uid, session.connection.id, Box::new(job));
        }
        Next::Wait => return Some(Waiting::new(session, mailbox, (message, paths))),
        Next::Parked => {}
        Next::Leave(Rest::Half(half)) => {
            return leave(Pending::new(session.clone(), mailbox), half, (helpers, stats));
        }
        Next::Leave(Rest::Whole(whole)) => {
            let (pending, is_long) = (Pending::new(session.clone(), mailbox), whole.is_long());
            let waiting = Waiting { pending, what: What::Rest(Rest::Whole(whole)) };
            match is_long {
                true => waiting.hand_off((helpers, stats)),
                false => return Some(waiting),
            }
        }
    }
    None
}

/// Leaves the rest of a sync to a thread that commits the same. Returns it where there is none.
fn leave(
    pending: Pending,
    half: Half,
    (helpers, stats): (&Arc<Helpers>, &Stats),
) -> Option<Waiting> {
    let mut owed = Some(pending);
    let left = half.leave(|half| {
        let (owed, expected) = (owed.take(), helpers.expect());
        Box::new(move |synced| {
            if let Some(pending) = owed {
                end((pending, half), synced, &expected);
            }
        })
    });
    match (owed, left) {
        (Some(pending), Left::Ended(half, synced)) => {
            end((pending, half), synced, &helpers.expect());
        }
        (Some(pending), Left::ToCaller(half)) => {
            return Some(Waiting { pending, what: What::Rest(Rest::Half(half)) });
        }
        _ => stats.left(),
    }
    None
}

/// Replies to a sync that has ended, on a thread that need not be one of ours: what waits for the
/// kernel, or for the end of a file that was closed meanwhile, is left to a helper.
fn end((pending, half): (Pending, Half), synced: Result<()>, expected: &Expected) {
    guarded(|| {
        let connection = &pending.session().connection;
        let (user, session) = (connection.cred.uid, connection.id);
        let (answer, file) = half.end(pending.session(), synced);
        let reply = to_reply(answer);
        if connection.lane.notifier.owes() {
            let job = move || {
                let reply = told_kernel(&pending, None, reply);
                pending.reply(&reply);
            };
            expected.post(user, session, Box::new(job));
        } else {
            pending.reply(&reply);
        }
        if let Some(closed) = Arc::into_inner(file) {
            expected.post(user, session, Box::new(move || drop(closed)));
        }
    });
}

impl Waiting {
    fn new(
        session: &Arc<Session>,
        mailbox: MailboxIndex,
        (message, paths): (Message, &[u8]),
    ) -> Waiting {
        let pending = Pending::new(session.clone(), mailbox);
        Waiting { pending, what: What::Request(message, paths.to_vec()) }
    }

    /// The CPU that it came from.
    pub(super) fn client_cpu(&self) -> u32 {
        self.pending.session().connection.channel.client_cpu(self.pending.mailbox())
    }

    /// Whether others may leave the rest of their syncs to the one that serves it.
    pub(super) fn can_lead(&self) -> bool {
        matches!(self.what, What::Rest(Rest::Half(_)))
    }

    /// The calling thread serves it next: what is begun now is left to it, where it is a sync that
    /// commits.
    pub(super) fn keep(mut self, stats: &Stats) -> Waiting {
        stats.kept();
        if let What::Rest(Rest::Half(half)) = &mut self.what {
            half.lead();
        }
        self
    }

    /// Leaves it to the thread that commits the same, if there is one now, else to a helper.
    pub(super) fn leave_or_hand_off(self, around: (&Arc<Helpers>, &Stats)) {
        let left = match self {
            Waiting { pending, what: What::Rest(Rest::Half(half)) } => leave(pending, half, around),
            other => Some(other),
        };
        if let Some(waiting) = left {
            waiting.hand_off(around);
        }
    }

    /// Has a helper serve it.
    pub(super) fn hand_off(self, (helpers, stats): (&Arc<Helpers>, &Stats)) {
        stats.handed_off();
        let connection = &self.pending.session().connection;
        let (user, session) = (connection.cred.uid, connection.id);
        helpers.post(user, session, Box::new(move || self.serve_and_send()));
    }

    /// Serves it on the calling thread, which may wait. `None`: the reply comes from elsewhere.
    pub(super) fn serve(self) -> Option<Answer> {
        let Waiting { pending, what } = self;
        let (session, mailbox) = (pending.session().clone(), pending.mailbox());
        let (message, paths) = match what {
            What::Request(message, paths) => (message, paths),
            What::Rest(rest) => {
                let reply = told_kernel(&pending, None, to_reply(rest.serve(&session)));
                return Some(Answer { pending, reply, _until_sent: None });
            }
        };
        let call = Call::new((&session, mailbox), &session.connection.stats, true);
        let mut reply = failed(Errno::EIO);
        let (next, until_sent) = attempt(call, (&message, &paths), &mut reply);
        let reply = match next {
            Next::Reply => reply,
            Next::TellKernel(changed) => told_kernel(&pending, changed.as_ref(), reply),
            Next::Parked => {
                pending.release();
                return None;
            }
            // This thread may block: dropping the pending reply says EIO should this ever come.
            Next::HandOff | Next::Again | Next::Wait | Next::Leave(_) => return None,
        };
        Some(Answer { pending, reply, _until_sent: until_sent })
    }

    fn serve_and_send(self) {
        if let Some(answer) = self.serve() {
            answer.send();
        }
    }
}

impl Answer {
    /// Replies.
    pub(super) fn send(self) {
        self.pending.reply(&self.reply);
    }
}

/// The kernel gives up its pages of what changed, and what it remembers: the reply after that.
fn told_kernel(pending: &Pending, changed: Option<&Changed>, reply: Reply) -> Reply {
    let tell = |changed: &Changed| changed.tell_kernel(pending.session(), pending.mailbox());
    let told = changed.map_or(Ok(()), tell);
    pending.session().connection.lane.notifier.settle();
    match told {
        Ok(()) => reply,
        Err(errno) => failed(errno),
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
            let owes = call.session.connection.lane.notifier.owes();
            let next = if owes { Next::TellKernel(None) } else { Next::Reply };
            return (next, Some(until_sent));
        }
    };
    let call = Call { turn: turn.as_ref(), ..call };
    let next = check_and_serve(call, (message, paths), reply);
    let Some(turn) = turn else { return (next, None) };
    let answered = match (&next, reply.status) {
        (Next::HandOff | Next::Again | Next::Wait | Next::Parked | Next::Leave(_), _) => {
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
        Err(Failure::Wait) => Next::Wait,
        Err(Failure::Parked) => Next::Parked,
        Err(Failure::Leave) => call.rest.take().map_or(Next::HandOff, Next::Leave),
    }));
    if served.is_err() {
        call.session.abandon(call.mailbox);
    }
    match (served, call.changed) {
        (Ok(Next::Reply) | Err(_), Some(changed)) => Next::TellKernel(Some(changed)),
        (Ok(Next::Reply) | Err(_), None) if call.session.connection.lane.notifier.owes() => {
            Next::TellKernel(None)
        }
        (Ok(next), _) => next,
        (Err(_), None) => Next::Reply,
    }
}

/// What is said of the rest of a sync.
fn to_reply(answer: serve::Answer) -> Reply {
    answer.unwrap_or_else(|failure| match failure {
        Failure::Errno(errno) | Failure::Late(errno) => failed(errno),
        // Nothing of a sync's rest asks for any of these.
        _ => failed(Errno::EIO),
    })
}

fn failed(errno: Errno) -> Reply {
    Reply::new(Status::Failed(errno.0))
}
