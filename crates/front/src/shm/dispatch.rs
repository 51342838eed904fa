//! One request on its way through: copied out, checked, served; replied to here, or by a helper, or by
//! whoever makes room for a lock.

use std::panic::{AssertUnwindSafe, catch_unwind};

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Message, Reply, Status};
use polylane_vfs::Node;

use super::helpers::Helpers;
use super::request::{self, FileRequest, PATHS_BYTES_MAX};
use super::serve::{self, Call, Failure};
use super::session::{Pending, Session};
use super::stats::Stats;
use crate::notifier::Range;

/// What a worker sets aside for the paths of the request in its hands.
pub(super) type Scratch = Box<[u8; PATHS_BYTES_MAX]>;

/// How one attempt to serve ended.
struct Outcome {
    /// The reply, or why there is none from this thread.
    result: Result<Reply, Detour>,
    /// What the kernel must be told before the reply.
    changed: Option<(Node, Range)>,
}

/// Why the thread that serves does not reply.
enum Detour {
    HandOff,
    Parked,
}

/// Serves the request in a taken mailbox on a worker: never waits.
pub(super) fn on_worker(
    session: &Arc<Session>,
    mailbox: MailboxIndex,
    scratch: &mut Scratch,
    (helpers, stats): (&Helpers, &Stats),
) {
    let message = session.channel.message(mailbox);
    let Some((message, paths)) = message.and_then(|message| {
        stats.took(message.op);
        Some((message, copy_paths(session, mailbox, &message, scratch)?))
    }) else {
        stats.refused();
        return session.channel.reply(mailbox, &failed(Errno::EINVAL));
    };
    let outcome = attempt(session, mailbox, (&message, paths), (false, stats));
    match (outcome.result, outcome.changed) {
        (Ok(reply), None) => {
            stats.ended(reply.status);
            session.channel.reply(mailbox, &reply);
        }
        (Ok(reply), Some(changed)) => {
            stats.handed_off();
            let pending = Pending::new(session.clone(), mailbox);
            helpers.post(session.id, Box::new(move || tell_kernel(pending, &changed, &reply)));
        }
        (Err(Detour::HandOff), _) => {
            stats.handed_off();
            let pending = Pending::new(session.clone(), mailbox);
            let paths = paths.to_vec();
            helpers.post(session.id, Box::new(move || on_helper(pending, &message, &paths)));
        }
        (Err(Detour::Parked), _) => {}
    }
}

/// Serves the same request on a thread that may wait.
fn on_helper(pending: Pending, message: &Message, paths: &[u8]) {
    let (session, mailbox) = (pending.session().clone(), pending.mailbox());
    let outcome = attempt(&session, mailbox, (message, paths), (true, &session.stats));
    match (outcome.result, outcome.changed) {
        (Ok(reply), None) => pending.reply(&reply),
        (Ok(reply), Some(changed)) => tell_kernel(pending, &changed, &reply),
        (Err(Detour::Parked), _) => pending.release(),
        // A helper may block: dropping the pending reply says EIO should this ever come.
        (Err(Detour::HandOff), _) => drop(pending),
    }
}

/// The kernel gives up its pages of what changed, then the client hears that it changed.
fn tell_kernel(pending: Pending, (node, range): &(Node, Range), reply: &Reply) {
    pending.session().lane.changed(node, *range);
    pending.reply(reply);
}

/// Copies the paths of a message out, once.
fn copy_paths<'a>(
    session: &Session,
    mailbox: MailboxIndex,
    message: &Message,
    scratch: &'a mut Scratch,
) -> Option<&'a [u8]> {
    let len = request::path_bytes(message, session.channel.buffer_bytes()).ok()?;
    let paths = &mut scratch[..len];
    if len > 0 {
        session.channel.payload_get(mailbox, 0, paths);
    }
    Some(paths)
}

/// Checks and serves. A panic on the way is ours, not the client's doing: it costs this request.
fn attempt(
    session: &Arc<Session>,
    mailbox: MailboxIndex,
    (message, paths): (&Message, &[u8]),
    (may_block, stats): (bool, &Stats),
) -> Outcome {
    let request = match FileRequest::check(message, paths, session.channel.buffer_bytes()) {
        Ok(request) => request,
        Err(errno) => return Outcome { result: Ok(failed(errno)), changed: None },
    };
    let mut call = Call { session, mailbox, stats, may_block, changed: None };
    let served = catch_unwind(AssertUnwindSafe(|| serve::serve(&mut call, &request)));
    let result = match served {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(Failure::Errno(errno))) => Ok(failed(errno)),
        Ok(Err(Failure::UseKernel)) => Ok(Reply::new(Status::UseKernel)),
        Ok(Err(Failure::HandOff)) => Err(Detour::HandOff),
        Ok(Err(Failure::Parked)) => Err(Detour::Parked),
        Err(_) => {
            session.abandon(mailbox);
            Ok(failed(Errno::EIO))
        }
    };
    Outcome { result, changed: call.changed }
}

fn failed(errno: Errno) -> Reply {
    Reply::new(Status::Failed(errno.0))
}
