//! The sessions of one worker: those it looks at in every round, and those that ring when they want
//! something.
//!
//! A client that asked for nothing of late is *dormant*: its channel says "asleep", so its next
//! request rings the doorbell, and a hundred idle clients cost the busy one nothing. All others are
//! *hot*: the worker looks at their queues, and tells them "asleep" only when it really sleeps.
//!
//! # Invariants
//!
//! - `sessions[..hot]` are hot, the rest dormant.
//! - While sessions of several users are hot, each user has one request in a round, however many
//!   sessions it has; which session of a user is looked at first changes from round to round.
//! - A session becomes dormant only after its queue was seen empty while its channel said "asleep":
//!   a request posted later rings.

use polylane_base::Uid;
use polylane_base::sync::Arc;
use polylane_ipc::MailboxIndex;

use super::session::Session;

/// Rounds without a request after which a session becomes dormant: many times the longest spin, so
/// that whoever comes back now and then still finds the worker awake.
const IDLE_ROUNDS: u32 = 8192;

/// A session and how long it has asked for nothing.
struct Served {
    session: Arc<Session>,
    idle_rounds: u32,
}

/// See the head of this file.
pub(super) struct Roster {
    group: usize,
    sessions: Vec<Served>,
    hot: usize,
    /// The users of the hot sessions: how many each has, and how many requests in this round.
    users: Vec<Turns>,
    /// The hot session that a round begins with while there are several users.
    first: usize,
}

/// A user's part of a round.
struct Turns {
    user: Uid,
    hot: usize,
    taken: usize,
}

impl Roster {
    /// Nobody yet, for the worker of a core group.
    pub(super) fn new(group: usize) -> Roster {
        Roster { group, sessions: Vec::new(), hot: 0, users: Vec::new(), first: 0 }
    }

    /// Sessions looked at in every round.
    pub(super) fn hot_count(&self) -> usize {
        self.hot
    }

    /// Whether some must be listened for.
    pub(super) fn any_dormant(&self) -> bool {
        self.hot < self.sessions.len()
    }

    /// A new session, hot.
    pub(super) fn add(&mut self, session: Arc<Session>, cpu: u32) {
        session.connection.channel.set_cpu(self.group, cpu);
        self.sessions.push(Served { session, idle_rounds: 0 });
        self.heat(self.sessions.len() - 1);
    }

    /// A session that ended.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(mut index) = self.position(id) else { return };
        if index < self.hot {
            self.cool(index);
            index = self.hot;
        }
        self.sessions.swap_remove(index);
    }

    /// The doorbell of a session rang.
    pub(super) fn rang(&mut self, id: u64, cpu: u32) {
        match self.position(id) {
            Some(index) if index >= self.hot => {
                let channel = &self.sessions[index].session.connection.channel;
                channel.set_cpu(self.group, cpu);
                channel.set_asleep(self.group, false);
                self.heat(index);
            }
            _ => {}
        }
    }

    /// One round over the hot sessions, at most `batch` requests of each where they are all of one
    /// user; returns how many there were.
    pub(super) fn round(
        &mut self,
        batch: usize,
        mut serve: impl FnMut(&Arc<Session>, MailboxIndex),
    ) -> usize {
        if self.users.len() > 1 {
            return self.round_by_user(serve);
        }
        let mut count = 0;
        for served in &mut self.sessions[..self.hot] {
            let before = count;
            while count - before < batch
                && let Some(mailbox) = served.session.connection.channel.take(self.group)
            {
                serve(&served.session, mailbox);
                count += 1;
            }
            served.noticed(count > before);
        }
        count
    }

    /// A round in which each user has one request.
    fn round_by_user(&mut self, mut serve: impl FnMut(&Arc<Session>, MailboxIndex)) -> usize {
        self.users.iter_mut().for_each(|turns| turns.taken = 0);
        self.first = (self.first + 1) % self.hot.max(1);
        let (behind, before) = self.sessions[..self.hot].split_at_mut(self.first);
        let mut count = 0;
        for served in before.iter_mut().chain(behind) {
            let user = served.session.connection.cred.uid;
            let turns = self.users.iter_mut().find(|turns| turns.user == user);
            let Some(turns) = turns.filter(|turns| turns.taken == 0) else { continue };
            let taken = served.session.connection.channel.take(self.group);
            served.noticed(taken.is_some());
            if let Some(mailbox) = taken {
                serve(&served.session, mailbox);
                (turns.taken, count) = (1, count + 1);
            }
        }
        count
    }

    /// Lets those that asked for nothing of late become dormant.
    pub(super) fn rest(&mut self) {
        for index in (0..self.hot).rev() {
            let Served { session, idle_rounds } = &mut self.sessions[index];
            if *idle_rounds < IDLE_ROUNDS {
                continue;
            }
            session.connection.channel.set_asleep(self.group, true);
            if session.connection.channel.has_requests(self.group) {
                session.connection.channel.set_asleep(self.group, false);
                *idle_rounds = 0;
            } else {
                self.cool(index);
            }
        }
    }

    /// Makes every session hot, for the last rounds.
    pub(super) fn heat_all(&mut self) {
        while self.hot < self.sessions.len() {
            self.heat(self.hot);
        }
    }

    /// Tells the hot sessions that the worker is about to sleep, or is back.
    pub(super) fn set_asleep(&self, asleep: bool) {
        for served in &self.sessions[..self.hot] {
            served.session.connection.channel.set_asleep(self.group, asleep);
        }
    }

    /// Tells the hot sessions where the worker runs.
    pub(super) fn set_cpu(&self, cpu: u32) {
        for served in &self.sessions[..self.hot] {
            served.session.connection.channel.set_cpu(self.group, cpu);
        }
    }

    /// Whether a hot session has something to take. A hint.
    pub(super) fn has_requests(&self) -> bool {
        self.sessions[..self.hot]
            .iter()
            .any(|served| served.session.connection.channel.has_requests(self.group))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.sessions.iter().position(|served| served.session.connection.id == id)
    }

    /// Moves a dormant session to the hot ones.
    fn heat(&mut self, index: usize) {
        self.sessions[index].idle_rounds = 0;
        let user = self.sessions[index].session.connection.cred.uid;
        match self.users.iter_mut().find(|turns| turns.user == user) {
            Some(turns) => turns.hot += 1,
            None => self.users.push(Turns { user, hot: 1, taken: 0 }),
        }
        self.sessions.swap(index, self.hot);
        self.hot += 1;
    }

    /// Moves a hot session to the dormant ones, where it is the first.
    fn cool(&mut self, index: usize) {
        self.hot -= 1;
        let user = self.sessions[index].session.connection.cred.uid;
        self.users.retain_mut(|turns| {
            turns.hot -= usize::from(turns.user == user);
            turns.hot > 0
        });
        self.sessions.swap(index, self.hot);
    }
}

impl Served {
    /// A round looked at it, and found a request or none.
    fn noticed(&mut self, any: bool) {
        self.idle_rounds = if any { 0 } else { self.idle_rounds.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use polylane_base::sync::atomic::AtomicBool;
    use polylane_ipc::channel::client::Trusting;
    use polylane_ipc::message::{Message, Op, Reply, Status};
    use polylane_ipc::{ClientChannel, CopyPlan, Geometry, ServiceChannel};
    use polylane_sys::event;
    use polylane_vfs::{Cred, LockOwner};

    use super::*;
    use crate::lane::Lane;
    use crate::lane::empty::lane;
    use crate::lane::slots::Token;
    use crate::shm::connection::Connection;
    use crate::shm::process::Process;
    use crate::shm::rights::FramesLeft;
    use crate::witness::Numbers;

    fn session(lane: &Arc<Lane>, id: u64) -> (Arc<Session>, ClientChannel) {
        session_of(lane, id, Uid(0))
    }

    fn session_of(lane: &Arc<Lane>, id: u64, uid: Uid) -> (Arc<Session>, ClientChannel) {
        let (geometry, plan) = (Geometry::default(), CopyPlan::default());
        let channel = ServiceChannel::create(geometry, plan).unwrap();
        let own = |fd: &std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        let mut fds: Vec<OwnedFd> = channel.client_fds().iter().map(own).collect();
        let client = ClientChannel::attach(fds.remove(0), fds, geometry, plan).unwrap();
        let (pidfd, gone) = (event::eventfd().unwrap(), AtomicBool::new(false));
        let holders = Arc::default();
        let (owner, locks) = (LockOwner(1), AtomicBool::new(false));
        let process = Process { pid: 1, pidfd, number: 1, owner, gone, locks, holders };
        let connection = Connection {
            id,
            key: id,
            cred: Cred { uid, ..Cred::root() },
            process: Arc::new(process),
            shown: 1,
            attachment: None,
            mounts: None,
            other_numbers: false,
            other_owners: false,
            channel,
            slots: lane.slots.open_session(
                Token::random().unwrap(),
                (uid, Arc::new([])),
                Numbers { pid: 0, thread: 0 },
            ),
            lane: lane.clone(),
            stats: Arc::default(),
        };
        let session = Session::new(connection, Arc::default(), Arc::new(FramesLeft::new(0)));
        (session, client)
    }

    fn post(client: &ClientChannel) {
        let mailbox = client.claim().unwrap();
        client.post(mailbox, &Message::new(Op::Ping), &Trusting).unwrap();
    }

    fn rings(session: &Session) -> bool {
        event::drain(session.connection.channel.doorbell(0).as_fd()) > 0
    }

    fn round(roster: &mut Roster) -> usize {
        roster.round(1, |session, mailbox| {
            session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
        })
    }

    #[test]
    fn the_quiet_become_dormant_and_ring_when_they_come_back() {
        let (lane, mut roster) = (lane(), Roster::new(0));
        let (quiet, quiet_client) = session(&lane, 1);
        let (busy, busy_client) = session(&lane, 2);
        roster.add(quiet.clone(), 0);
        roster.add(busy.clone(), 0);
        for _ in 0..IDLE_ROUNDS {
            post(&busy_client);
            assert_eq!(round(&mut roster), 1);
            busy_client.release(MailboxIndex(0));
        }
        roster.rest();
        assert_eq!((roster.hot_count(), roster.any_dormant()), (1, true));
        post(&busy_client);
        assert!(!rings(&busy), "a hot session's client need not ring");
        assert_eq!(round(&mut roster), 1);
        post(&quiet_client);
        assert!(rings(&quiet), "a dormant one must");
        assert_eq!(round(&mut roster), 0);
        roster.rang(1, 0);
        roster.rang(2, 0);
        assert_eq!((roster.hot_count(), roster.any_dormant()), (2, false));
        assert_eq!(round(&mut roster), 1);
    }

    /// One user floods by many sessions; another's request waits for one of its, in any order of
    /// sessions, and each of the many has its turn.
    #[test]
    fn users_take_turns_whatever_sessions_they_have() {
        let (lane, mut roster) = (lane(), Roster::new(0));
        let flood: Vec<_> = (0..6).map(|id| session_of(&lane, id, Uid(1))).collect();
        let (quiet, quiet_client) = session_of(&lane, 9, Uid(2));
        flood[..3].iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        roster.add(quiet, 0);
        flood[3..].iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        (0..4).for_each(|_| flood.iter().for_each(|(_, client)| post(client)));
        let mut served = [0; 10];
        for _ in 0..12 {
            post(&quiet_client);
            let count = roster.round(8, |session, mailbox| {
                served[session.connection.id as usize] += 1;
                session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
            });
            assert_eq!(count, 2, "one of each user");
            quiet_client.release(MailboxIndex(0));
        }
        assert_eq!(served[9], 12);
        assert!(served[..6].iter().all(|&count| count > 0), "{served:?}");
        roster.remove(9);
        assert!(round(&mut roster) > 1, "one user: one of each session");
    }

    #[test]
    fn who_asks_in_the_last_moment_stays_hot() {
        let (lane, mut roster) = (lane(), Roster::new(0));
        let (quiet, client) = session(&lane, 1);
        roster.add(quiet, 0);
        (0..IDLE_ROUNDS).for_each(|_| assert_eq!(round(&mut roster), 0));
        post(&client);
        roster.rest();
        assert_eq!(roster.hot_count(), 1);
        assert_eq!(round(&mut roster), 1);
    }

    #[test]
    fn sessions_leave_from_either_part() {
        let (lane, mut roster) = (lane(), Roster::new(0));
        let sessions: Vec<_> = (0..4).map(|id| session(&lane, id)).collect();
        sessions.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        (0..IDLE_ROUNDS).for_each(|_| assert_eq!(round(&mut roster), 0));
        roster.rest();
        assert_eq!(roster.hot_count(), 0);
        roster.rang(1, 0);
        roster.rang(2, 0);
        roster.remove(1);
        roster.remove(3);
        roster.remove(77);
        assert_eq!((roster.hot_count(), roster.any_dormant()), (1, true));
        roster.remove(0);
        post(&sessions[2].1);
        assert_eq!((roster.hot_count(), round(&mut roster), roster.any_dormant()), (1, 1, false));
    }
}
