//! A closer: a process of the witness's that receives what a client chose, looks at it and closes
//! it. Any of these may never return, and no signal ends it then: a close of a file on a client's
//! FUSE file system waits for that file system.
//!
//! # Invariants
//!
//! - Its descriptors are its own: no other process shares the table, and it has none but its line
//!   and what it was given for one account. What it waits for keeps nothing else open.
//! - It has no client's descriptor when it says [`Said::Free`].

use std::os::fd::{AsFd, OwnedFd};

use polylane_front::witness::{self, Refusal, Shows};
use serde::{Deserialize, Serialize};

use super::{Place, Question, Sight, Stand, has_thread};
use crate::link::Link;

/// What a closer is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Answer this; the connection of the process, which may come along, is closed then.
    Look(Question),
    /// Hold the connection that comes along.
    Hold,
    /// Close what was to be held.
    Close,
}

/// What a closer says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// It has begun, and has none of the witness's descriptors any more.
    Ready,
    /// Whether a process has the thread.
    HasThread(bool),
    /// What a process is.
    Stands(Result<Stand, Refusal>),
    /// What a process shows; with it come a descriptor of the process and its table of mounts.
    Shows(Result<Sight, Refusal>),
    /// All is closed.
    Free,
}

/// What a closer does until the other end of its line is closed.
pub(super) fn work(line: &Link, place: &Place) {
    let mut held = Vec::new();
    if line.send(&Said::Ready, &[]).is_err() {
        return;
    }
    while let Ok(Some((task, fds))) = line.receive::<Task>() {
        match task {
            Task::Hold => {
                held.extend(fds);
                continue;
            }
            Task::Look(question) => look(line, place, &question, fds.into_iter().next()),
            Task::Close => held.clear(),
        }
        // A witness that does not read it has ended, and so does this process.
        let _ = line.send(&Said::Free, &[]);
    }
}

/// Answers a question, and closes what the process showed afterwards.
fn look(line: &Link, place: &Place, question: &Question, connection: Option<OwnedFd>) {
    let shown = match &connection {
        Some(connection) => witness::taken(connection.as_fd()).unwrap_or_default(),
        None => Vec::new(),
    };
    let (said, fds) = match (&connection, &question.who) {
        (Some(_), _) => {
            let mut all = shown.iter().map(AsFd::as_fd);
            let shows = all.next().map(|root| Shows { root, made: all.next() });
            let sight = shows.ok_or(Refusal::Unknown);
            match sight.and_then(|shows| Sight::of(place, question, &shows)) {
                Ok((sight, fds)) => (Said::Shows(Ok(sight)), Vec::from(fds)),
                Err(why) => (Said::Shows(Err(why)), Vec::new()),
            }
        }
        (None, Some(who)) => (Said::Stands(Stand::of(place.init, question.pid, who)), Vec::new()),
        (None, None) => (Said::HasThread(has_thread(place.init, question)), Vec::new()),
    };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let _ = line.send(&said, &fds);
}
