//! The loop of a witness: one thread that hears questions and watches tables of mounts and closers.
//!
//! # Invariants
//!
//! - What a client chose is received, looked at and closed by closers alone
//!   ([`closer`](super::closer)). Of clients this process has connections, which the service or a
//!   closer has as well: its close is never the last, nor is the one at its end.
//! - It never waits for a closer that may have something of a client's to wait for.

use std::os::fd::{AsFd, OwnedFd};

use polylane_base::Errno;
use polylane_front::witness::Refusal;
use polylane_sys::footprint;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::account::Accounts;
use super::closer::Said;
use super::crew::Crew;
use super::other_mounts::{Awaited, Found};
use super::{Answer, Closing, Question, Stand, Tenant, has_thread, identify, status};
use crate::link::Link;

/// Most threads of a process that is looked at without a closer for it.
const THREADS_QUICK_MAX: u64 = 16;

/// What a witness has.
struct Attendant {
    line: Link,
    tenant: Tenant,
    accounts: Accounts,
    crew: Crew,
}

/// What a wait found.
#[derive(Default)]
struct Ready {
    line: bool,
    /// The tenant's first process has ended.
    first: bool,
    mounts: Vec<Awaited>,
    /// Closers that said something, or whose processes have ended.
    closers: Vec<(u64, bool)>,
}

/// Answers until the other end is closed. The tenant's table of mounts keeps its mounts there, so
/// it is closed with the tenant.
pub(super) fn attend(tenant: Tenant, line: Link, crew: Crew) {
    let first = Pid::from_raw(tenant.place.init.cast_signed());
    let first = first.and_then(|first| pidfd_open(first, PidfdFlags::empty()).ok());
    let mut attendant = Attendant { line, tenant, accounts: Accounts::here(), crew };
    attendant.hear_all(first);
    attendant.crew.end();
    // What nobody watches any more counts as changed.
    attendant.tenant.end();
}

impl Attendant {
    /// Hears questions until the service is gone. `first`: the tenant's first process.
    fn hear_all(&mut self, mut first: Option<OwnedFd>) {
        loop {
            let ready = self.wait(first.as_ref());
            if ready.first {
                self.tenant.end();
                first = None;
            }
            if !ready.mounts.is_empty() {
                self.tenant.wake(&ready.mounts);
            }
            for (closer, ended) in ready.closers {
                match ended {
                    true => self.crew.ended(closer),
                    false => self.hear_closer(closer),
                }
            }
            self.crew.try_again();
            if !ready.line {
                continue;
            }
            let heard = match self.line.receive::<Question>() {
                Ok(Some((question, fds))) => self.hear(question, fds),
                Ok(None) => break,
                // It has no answer: no descriptor was left for what came with it.
                Err(Errno::EPROTO) => Ok(()),
                Err(errno) => Err(errno),
            };
            if heard.is_err() {
                break;
            }
        }
    }

    /// Waits until something is to be done.
    fn wait(&self, first: Option<&OwnedFd>) -> Ready {
        let (mounts, closers): (Vec<_>, Vec<_>) =
            (self.tenant.awaited(), self.crew.awaited().collect());
        // One that is not there is the line in its place.
        let first_at = first.map_or(self.line.as_fd(), AsFd::as_fd);
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.line.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(first_at, PollFlags::IN),
        ];
        let mounts_at = fds.len();
        fds.extend(mounts.iter().map(Awaited::poll));
        let closers_at = fds.len();
        let of_closer = |(_, _, fd): &(u64, bool, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN);
        fds.extend(closers.iter().map(of_closer));
        if footprint::wait(&mut fds).is_err() {
            // An interrupted wait says nothing of any.
            return Ready::default();
        }
        let is = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (line, first) = (is(0), first.is_some() && is(1));
        let ready = closers.iter().enumerate().filter(|(at, _)| is(closers_at + at));
        let closers = ready.map(|(_, (closer, ended, _))| (*closer, *ended)).collect();
        let ready = mounts.iter().enumerate().filter(|(at, _)| is(mounts_at + at));
        let mounts = ready.map(|(_, one)| one.clone()).collect();
        Ready { line, first, mounts, closers }
    }

    /// Answers at once what takes no time that a client has a say in; the rest a closer does.
    fn hear(&mut self, question: Question, mut fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (number, connection) = (question.number, fds.pop());
        self.accounts.refresh();
        if let Some(closing) = question.closing {
            self.close(closing, number, connection);
            return Ok(());
        }
        let account = match (&question.who, &connection) {
            // The service holds it, too.
            (None, Some(shown)) => {
                return self.line.send(&identify(shown.as_fd(), number), &[]);
            }
            (Some(_), Some(connection)) => self.accounts.of_connection(connection.as_fd()),
            (Some((user, ..)), None) => self.accounts.of(question.pid, *user),
            (None, None) => self.accounts.of(question.pid, status::owner(question.pid)),
        };
        if self.tenant.place.id_maps && question.who.is_some() {
            let refused = Some(Refusal::Mounts);
            return self.line.send(&Answer { refused, ..Answer::none(number) }, &[]);
        }
        if connection.is_none() && status::thread_count(question.pid) <= THREADS_QUICK_MAX {
            return self.answer(&question);
        }
        if self.crew.look(account, &question, connection.as_ref()) {
            return Ok(());
        }
        self.line.send(&Answer::none(number), &[])
    }

    /// Has a connection held, or one closed that is held.
    fn close(&mut self, closing: Closing, number: u64, connection: Option<OwnedFd>) {
        match (closing, connection) {
            (Closing::Keep, Some(connection)) => {
                let account = self.accounts.of_connection(connection.as_fd());
                self.crew.hold(account, number, connection);
            }
            (Closing::Keep, None) => {}
            (Closing::Close, _) => self.crew.let_go(number),
        }
    }

    /// Answers a question that shows nothing.
    fn answer(&mut self, question: &Question) -> Result<(), Errno> {
        let init = self.tenant.place.init;
        match &question.who {
            None => self.tell_thread(question, has_thread(init, question)),
            Some(who) => self.tell_stand(question, Stand::of(init, question.pid, who)),
        }
    }

    fn tell_thread(&self, question: &Question, has_thread: bool) -> Result<(), Errno> {
        self.line.send(&Answer { has_thread, ..Answer::none(question.number) }, &[])
    }

    fn tell_stand(
        &mut self,
        question: &Question,
        stand: Result<Stand, Refusal>,
    ) -> Result<(), Errno> {
        let none = Answer::none(question.number);
        let stand = match stand {
            Err(why) => return self.line.send(&Answer { refused: Some(why), ..none }, &[]),
            Ok(stand) => stand,
        };
        let (apart, elsewhere) = stand.apart(|| self.tenant.is_plain());
        let answer = Answer { seen: Some(stand.seen), apart, elsewhere, ..none };
        let page = if question.page && !apart { self.tenant.page() } else { None };
        let page: Vec<_> = page.iter().map(AsFd::as_fd).collect();
        self.line.send(&answer, &page)
    }

    /// Answers by what a closer has found.
    fn hear_closer(&mut self, closer: u64) {
        let Some((account, question, said, fds)) = self.crew.hear(closer) else { return };
        // The service that would get an answer that cannot be sent has ended.
        let _ = match said {
            Said::HasThread(has_thread) => self.tell_thread(&question, has_thread),
            Said::Stands(stand) => self.tell_stand(&question, stand),
            Said::Shows(Err(why)) => {
                let none = Answer::none(question.number);
                self.line.send(&Answer { refused: Some(why), ..none }, &[])
            }
            Said::Shows(Ok(sight)) => {
                let found = Found::from_parts(sight.found, fds);
                let (answer, page) = self.tenant.attach(account, &question, sight, found);
                let page: Vec<_> = page.iter().map(AsFd::as_fd).collect();
                self.line.send(&answer, &page)
            }
            Said::Ready | Said::Free => Ok(()),
        };
    }
}
