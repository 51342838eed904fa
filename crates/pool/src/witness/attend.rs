//! The threads of a witness: one hears and watches, others do what takes longer or is of a client's
//! choice.
//!
//! # Invariants
//!
//! - What a client chose is received, looked at and closed by threads of its user's alone, which it
//!   may keep for ever.
//!
//! # Locking
//!
//! `kept`, then `work`; `tenant` and either of them are never held together.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_front::witness::{self, Shows};
use polylane_sys::event;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::other_mounts::Awaited;
use super::{Answer, Closing, Question, Tenant, answer, attach, identify, status};
use crate::link::Link;

/// Most questions about one user's processes that threads look at together.
const LOOKS_PER_USER_MAX: usize = 16;

/// Most such questions of all users. What one user may have is far less.
const LOOKS_MAX: usize = 256;

/// Most threads of a process that is looked at without a thread for it.
const THREADS_QUICK_MAX: u64 = 16;

/// What the threads of a witness share.
struct Shared {
    line: Link,
    init: u32,
    tenant: Mutex<Tenant>,
    work: Mutex<Work>,
    /// Connections that the service is about to let go of, and whose they are.
    kept: Mutex<HashMap<u64, (u32, OwnedFd)>>,
    /// Tells that there is more to watch.
    more: OwnedFd,
}

/// What threads do.
#[derive(Default)]
struct Work {
    /// Questions that are looked at.
    looks: usize,
    users: HashMap<u32, User>,
}

/// What threads do for one user.
#[derive(Default)]
struct User {
    /// Questions that are looked at.
    looks: usize,
    /// To be closed.
    closing: Vec<OwnedFd>,
    /// A thread closes them.
    closes: bool,
}

impl Work {
    /// Counts a question about a user's process; whether it may be looked at.
    fn begin(&mut self, user: u32) -> bool {
        let own = self.users.entry(user).or_default();
        let may = own.looks < LOOKS_PER_USER_MAX && self.looks < LOOKS_MAX;
        own.looks += usize::from(may);
        self.looks += usize::from(may);
        self.tidy();
        may
    }

    /// A look that was begun is over.
    fn end(&mut self, user: u32) {
        if let Some(own) = self.users.get_mut(&user) {
            own.looks -= 1;
            self.looks -= 1;
        }
        self.tidy();
    }

    /// Whether somebody has to begin to close the user's connections, of which this is one.
    fn close(&mut self, user: u32, connection: OwnedFd) -> bool {
        let own = self.users.entry(user).or_default();
        own.closing.push(connection);
        !std::mem::replace(&mut own.closes, true)
    }

    /// `None`: there are no more, and nobody closes them from now on.
    fn next_to_close(&mut self, user: u32) -> Option<OwnedFd> {
        let next = self.users.get_mut(&user)?.closing.pop();
        if next.is_none() {
            self.stop_closing(user);
        }
        next
    }

    /// Nobody closes the user's connections until there is one more.
    fn stop_closing(&mut self, user: u32) {
        if let Some(own) = self.users.get_mut(&user) {
            own.closes = false;
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        self.users.retain(|_, own| own.looks > 0 || own.closes || !own.closing.is_empty());
    }
}

/// Answers until the other end is closed. The tenant's table of mounts keeps its mounts there, so
/// it is closed with the tenant.
pub(super) fn attend(tenant: Tenant, line: Link) {
    let Ok(more) = event::eventfd() else { return };
    let (init, tenant) = (tenant.init, Mutex::new(tenant));
    let (work, kept) = (Mutex::default(), Mutex::default());
    let shared = Arc::new(Shared { line, init, tenant, work, kept, more });
    let first = Pid::from_raw(init.cast_signed());
    let first = first.and_then(|first| pidfd_open(first, PidfdFlags::empty()).ok());
    shared.hear_all(first);
    // What nobody watches any more counts as changed.
    shared.tenant.lock().end();
}

impl Shared {
    /// Hears questions until the service is gone. `first`: the tenant's first process.
    fn hear_all(self: &Arc<Self>, mut first: Option<OwnedFd>) {
        loop {
            if let Some(pidfd) = &first {
                let (asked, ended) = self.watch(pidfd);
                if ended {
                    self.tenant.lock().end();
                    first = None;
                }
                if !asked {
                    continue;
                }
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

    /// Waits for a question or the tenant's end: which of both it was. What has changed meanwhile
    /// is told.
    fn watch(&self, first: &OwnedFd) -> (bool, bool) {
        let awaited = self.tenant.lock().awaited();
        let mut fds = vec![
            PollFd::new(&self.line, PollFlags::IN),
            PollFd::new(first, PollFlags::IN),
            PollFd::new(&self.more, PollFlags::IN),
        ];
        let own = fds.len();
        fds.extend(awaited.iter().map(Awaited::poll));
        // An interrupted wait says nothing of any.
        let _ = rustix::event::poll(&mut fds, None);
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let others = awaited.iter().zip(fds.iter().skip(own)).filter(|(_, fd)| is_ready(fd));
        let others: Vec<Awaited> = others.map(|(one, _)| one.clone()).collect();
        event::drain(&self.more);
        if !others.is_empty() {
            self.tenant.lock().wake(&others);
        }
        (is_ready(&fds[0]), is_ready(&fds[1]))
    }

    /// Answers at once what takes no time that a client has a say in; for the rest a thread begins.
    fn hear(self: &Arc<Self>, question: Question, mut fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (number, connection) = (question.number, fds.pop());
        let user = match (question.closing, &question.who, &connection) {
            (Some(closing), ..) => {
                self.keep(closing, number, connection);
                return Ok(());
            }
            // The service holds it, too.
            (None, None, Some(shown)) => {
                return self.line.send(&identify(shown.as_fd(), number), &[]);
            }
            (None, None, None) => status::owner(question.pid),
            (None, Some((user, ..)), _) => *user,
        };
        if connection.is_none() && status::thread_count(question.pid) <= THREADS_QUICK_MAX {
            return self.answer(&question, None);
        }
        if self.work.lock().begin(user) {
            return self.look(question, user, connection);
        }
        self.line.send(&Answer::none(number), &[])
    }

    /// Looks at a process in a thread of its own, which then closes what the process showed.
    fn look(
        self: &Arc<Self>,
        question: Question,
        user: u32,
        connection: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        let (shared, number) = (self.clone(), question.number);
        let run = move || {
            // An answer that cannot be sent is for nobody.
            let _ = shared.answer(&question, connection.as_ref());
            drop(connection);
            shared.work.lock().end(user);
        };
        let begun = thread::Builder::new().name("look".to_string()).spawn(run);
        begun.map(drop).or_else(|_| {
            self.work.lock().end(user);
            self.line.send(&Answer::none(number), &[])
        })
    }

    /// Answers about a process, which may be kept by what it shows in its connection.
    fn answer(&self, question: &Question, connection: Option<&OwnedFd>) -> Result<(), Errno> {
        let Some(connection) = connection else {
            let answer = answer(&self.tenant, self.init, question);
            let page = if question.page && !answer.apart { self.home() } else { None };
            let page: Vec<_> = page.iter().map(AsFd::as_fd).collect();
            return self.line.send(&answer, &page);
        };
        let shown = witness::taken(connection.as_fd()).unwrap_or_default();
        let mut fds = shown.iter().map(AsFd::as_fd);
        let Some(root) = fds.next() else {
            return self.line.send(&Answer::none(question.number), &[]);
        };
        let shows = Shows { root, made: fds.next() };
        let (answer, page) = attach(&self.tenant, question, &shows);
        event::notify(&self.more);
        let page: Vec<_> = page.iter().map(AsFd::as_fd).collect();
        self.line.send(&answer, &page)
    }

    /// The page that tells of the tenant's mounts, which are watched from now on.
    fn home(&self) -> Option<OwnedFd> {
        event::notify(&self.more);
        let tenant = self.tenant.lock();
        tenant.mounts.as_ref().and_then(|mounts| mounts.page.try_clone().ok())
    }

    /// Keeps a connection, or closes one that was kept behind its user's others.
    fn keep(self: &Arc<Self>, closing: Closing, number: u64, connection: Option<OwnedFd>) {
        let mut kept = self.kept.lock();
        match (closing, connection) {
            (Closing::Keep(user), Some(connection)) => {
                kept.insert(number, (user, connection));
            }
            (Closing::Close, _) => {
                let Some((user, connection)) = kept.remove(&number) else { return };
                if self.work.lock().close(user, connection) {
                    self.begin_to_close(user);
                }
            }
            (Closing::Keep(_), None) => {}
        }
    }

    /// What no thread can be had for is closed behind the user's next one.
    fn begin_to_close(self: &Arc<Self>, user: u32) {
        let shared = self.clone();
        let run = move || {
            loop {
                let next = shared.work.lock().next_to_close(user);
                if next.is_none() {
                    break;
                }
            }
        };
        if thread::Builder::new().name("close".to_string()).spawn(run).is_err() {
            self.work.lock().stop_closing(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_user_has_so_many_looks_and_closes_behind_itself() {
        let mut work = Work::default();
        let begun = (0..100).filter(|_| work.begin(7)).count();
        assert_eq!(begun, LOOKS_PER_USER_MAX);
        assert!(work.begin(8) && !work.begin(7));
        work.end(7);
        assert!(work.begin(7));
        let others = (100..1000).filter(|user| work.begin(*user)).count();
        assert_eq!(others, LOOKS_MAX - LOOKS_PER_USER_MAX - 1);
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(work.close(7, file()) && !work.close(7, file()) && work.close(9, file()));
        assert!(work.next_to_close(7).is_some() && work.next_to_close(7).is_some());
        assert!(work.next_to_close(7).is_none() && work.close(7, file()));
        // No thread could be had: the next one closes both.
        work.stop_closing(7);
        assert!(work.close(7, file()) && work.users[&7].closing.len() == 2);
        (0..LOOKS_PER_USER_MAX).for_each(|_| work.end(7));
        work.end(8);
        (100..100 + others as u32).for_each(|user| work.end(user));
        while work.next_to_close(7).is_some() || work.next_to_close(9).is_some() {}
        assert!(work.users.is_empty() && work.looks == 0);
    }
}
