//! The service's end of the line to its witness.
//!
//! # Invariants
//!
//! - An answer reaches who asked, by its number: one that comes late reaches nobody, and costs no
//!   other question its answer.
//! - No descriptor of a client's choice is received here.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_front::witness::{Client, Looks, Refusal, Seen, Standing, Witness};
use polylane_ipc::owners::Owners;
use polylane_sys::notice::Notice;
use polylane_sys::scm::Identity;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::{Answer, Closing, GROUPS_MAX, Question, Sees};
use crate::link::Link;
use crate::wait::wait_for;

/// How long an answer may take: the witness reads a few small files.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// What is asked about.
enum About<'a> {
    /// Whose a connection is.
    Connection(BorrowedFd<'a>),
    /// A process, and a thread by its number in the tenant.
    Thread(u32, u32),
    /// A client; with its connection, in which its hello is, if it shows what it sees.
    Client(Client<'a>, Option<BorrowedFd<'a>>),
}

/// The service's end. Thread-safe: who waits for an answer receives those of the others, too.
pub(crate) struct Asker {
    line: Link,
    /// From a supervisor that gives one.
    changes: Option<OwnedFd>,
    last: AtomicU64,
    answers: Mutex<Answers>,
    more: Condvar,
    /// What tells of mounts in the lane as the tenant sees it.
    home: OnceLock<Arc<Notice>>,
    /// Users have other numbers here than there.
    own_ids: bool,
}

/// What was answered, by the number of the question. One that nobody waits for any more is none.
#[derive(Default)]
struct Answers {
    awaited: HashMap<u64, Option<(Answer, Vec<OwnedFd>)>>,
    /// Somebody receives.
    received: bool,
    /// No witness answers any more.
    ended: bool,
}

/// Bounds how long a question waits that is not taken.
///
/// # Errors
/// What setsockopt(2) says.
pub(super) fn limit(line: &Link) -> rustix::io::Result<()> {
    set_socket_timeout(line.as_fd(), Timeout::Send, Some(ANSWER_TIME_MAX))
}

impl Asker {
    /// By this end of the line, and what becomes readable when mounts change; whether users have
    /// other numbers here than at the other end.
    pub(crate) fn new(line: Link, changes: Option<OwnedFd>, own_ids: bool) -> Arc<Asker> {
        // One that does not take questions is none: whoever asks then goes without.
        let ended = limit(&line).is_err();
        let asker = Asker::by(line, changes, own_ids);
        asker.answers.lock().ended = ended;
        Arc::new(asker)
    }

    /// The same by a line whose other end's owner has [limited](limit) it: a confined service may
    /// not.
    pub(crate) fn limited(line: Link, changes: OwnedFd, own_ids: bool) -> Arc<Asker> {
        Arc::new(Asker::by(line, Some(changes), own_ids))
    }

    fn by(line: Link, changes: Option<OwnedFd>, own_ids: bool) -> Asker {
        let answers = Answers::default();
        let (last, more) = (AtomicU64::new(0), Condvar::new());
        let (answers, home) = (Mutex::new(answers), OnceLock::new());
        Asker { line, changes, last, answers, more, home, own_ids }
    }

    /// The number of the next question.
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// `None`: there is no answer in time.
    fn ask(&self, about: About<'_>) -> Option<(Answer, Vec<OwnedFd>)> {
        let number = self.next();
        let none = Question::none(number);
        let (question, shown) = match about {
            About::Connection(socket) => (none, Some(socket)),
            About::Thread(pid, thread) => (Question { pid, thread: Some(thread), ..none }, None),
            About::Client(Client { pid, identity: Identity { uid, gid, groups } }, connection) => {
                // Groups that fill a message more are told of nobody.
                let groups = Some(groups).filter(|groups| groups.len() <= GROUPS_MAX)?;
                let who = Some((*uid, *gid, groups.clone()));
                let (attaches, page) = (connection.is_some(), self.home.get().is_none());
                (Question { pid, who, attaches, page, ..none }, connection)
            }
        };
        self.answers.lock().awaited.insert(number, None);
        let fds: Vec<_> = shown.into_iter().collect();
        let asked = self.line.send(&question, &fds);
        let answer = asked.ok().and_then(|()| self.answer(number));
        self.answers.lock().awaited.remove(&number);
        answer
    }

    /// Waits for the answer to a question.
    fn answer(&self, number: u64) -> Option<(Answer, Vec<OwnedFd>)> {
        let end = Instant::now() + ANSWER_TIME_MAX;
        let mut answers = self.answers.lock();
        loop {
            if let Some(answer) = answers.awaited.get_mut(&number).and_then(Option::take) {
                return Some(answer);
            }
            let left = end.saturating_duration_since(Instant::now());
            if answers.ended || left.is_zero() {
                return None;
            }
            if answers.received {
                answers = self.more.wait_timeout(answers, left);
                continue;
            }
            answers.received = true;
            drop(answers);
            let got = wait_for(self.line.as_fd(), left).then(|| self.line.receive::<Answer>());
            answers = self.answers.lock();
            answers.received = false;
            match got {
                Some(Ok(Some((answer, fds)))) => {
                    // A late one is for nobody.
                    if let Some(place) = answers.awaited.get_mut(&answer.number) {
                        *place = Some((answer, fds));
                    }
                }
                Some(_) => answers.ended = true,
                None => {}
            }
            self.more.notify_all();
        }
    }
}

impl Witness for Asker {
    fn look(&self, client: Client<'_>) -> Result<Looks, Refusal> {
        let (answer, fds) = self.ask(About::Client(client, None)).ok_or(Refusal::Unknown)?;
        if let Some(page) = fds.first().and_then(|page| Notice::attach(page).ok()) {
            let _ = self.home.set(Arc::new(page));
        }
        let standing = match (answer.apart, answer.elsewhere) {
            (false, _) => Standing::AtHome,
            (true, true) => Standing::Elsewhere,
            (true, false) => Standing::Apart,
        };
        let number = answer.seen.ok_or(answer.refused.unwrap_or(Refusal::Unknown))?;
        Ok(Looks { number, standing })
    }

    fn home(&self) -> Option<Arc<Notice>> {
        self.home.get().cloned()
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    fn attach(&self, client: Client<'_>, connection: BorrowedFd<'_>) -> Result<Seen, Refusal> {
        let asked = self.ask(About::Client(client, Some(connection)));
        let (answer, mut fds) = asked.ok_or(Refusal::Unknown)?;
        let told = answer.seen.zip(answer.sees).zip(fds.pop());
        let ((number, sees), notice) =
            told.ok_or_else(|| answer.refused.unwrap_or(Refusal::Unknown))?;
        let Sees { node, read_only, confined, shows_made, made, other_numbers, owners } = sees;
        let owners = owners.map(|bytes| Owners::from_bytes(&bytes)).transpose();
        let owners = owners.map_err(|_| Refusal::Unknown)?;
        Ok(Seen {
            number,
            node,
            read_only,
            confined,
            shows_made,
            made,
            other_numbers,
            owners,
            notice,
        })
    }

    fn close(&self, connection: OwnedFd) -> Result<(), OwnedFd> {
        let number = self.next();
        let say = |closing| Question { closing: Some(closing), ..Question::none(number) };
        match self.line.send(&say(Closing::Keep), &[connection.as_fd()]) {
            Err(_) => Err(connection),
            Ok(()) => {
                drop(connection);
                // One that does not come is kept until the witness ends.
                let _ = self.line.send(&say(Closing::Close), &[]);
                Ok(())
            }
        }
    }

    fn has_thread(&self, pid: u32, thread: u32) -> bool {
        self.ask(About::Thread(pid, thread)).is_some_and(|(answer, _)| answer.has_thread)
    }

    fn identity(&self, socket: BorrowedFd<'_>) -> polylane_base::Result<Option<Identity>> {
        if !self.own_ids {
            return Ok(None);
        }
        let answer = self.ask(About::Connection(socket));
        let identity = answer.and_then(|(answer, _)| answer.identity);
        let (uid, gid, groups) = identity.ok_or(Errno::EACCES)?;
        Ok(Some(Identity { uid, gid, groups }))
    }
}
