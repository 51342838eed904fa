//! The sessions of one worker: those it looks at in every round, and those that ring when they want
//! something.
//!
//! A client that asked for nothing of late is *dormant*: its channel says "asleep", so its next
//! request rings the doorbell, and a hundred idle clients cost the busy one nothing. All others are
//! *hot*: the worker looks at their queues, and tells them "asleep" only when it really sleeps.
//!
//! # Invariants
//!
//! - Each user that has hot sessions is in `users` once, with all of them; the others are dormant.
//! - While sessions of several users are hot, users share the worker's time: a request is taken of
//!   one that had the least, and a pass looks at [`LOOKS_MAX`] sessions of a user at most, so that
//!   neither long requests nor many sessions of one user are waited for by another more than once.
//! - A session becomes dormant only after its queue was seen empty while its channel said "asleep":
//!   a request posted later rings.

use std::time::{Duration, Instant};

use polylane_base::Uid;
use polylane_base::sync::Arc;
use polylane_ipc::MailboxIndex;

use super::session::Session;

/// Rounds without a request after which a session becomes dormant: many times the longest spin, so
/// that whoever comes back now and then still finds the worker awake.
const IDLE_ROUNDS: u32 = 8192;

/// Sessions of a user that a pass looks at while others are hot: some 20 ns each where their
/// queues are empty.
const LOOKS_MAX: usize = 8;

/// How long the worker waits for a user who had less time than others: a client that asks again at
/// once does so within this.
const PATIENCE: Duration = Duration::from_micros(1);

/// A user is passed over for no more than this, also when one request of its took longer: the
/// worker's thread may have had no CPU meanwhile.
const AHEAD_MAX: Duration = Duration::from_millis(1);

/// A session and how long it has asked for nothing.
struct Served {
    session: Arc<Session>,
    idle_rounds: u32,
}

/// See the head of this file.
pub(super) struct Roster {
    group: usize,
    users: Vec<User>,
    dormant: Vec<Arc<Session>>,
    time: Laps,
    /// The time in which nothing was served.
    idle: Duration,
    /// The most that a user had had when a request of its began.
    level: Duration,
}

/// A user that has hot sessions.
struct User {
    uid: Uid,
    sessions: Vec<Served>,
    /// Where the next pass begins.
    next: usize,
    /// The time that its requests took and that it was waited for.
    had: Duration,
    /// The roster's idle time when it was answered or passed over last.
    since: Option<Duration>,
    /// It asked in time when it was waited for last.
    prompt: bool,
}

impl Roster {
    /// Nobody yet, for the worker of a core group.
    pub(super) fn new(group: usize) -> Roster {
        let (users, dormant) = (Vec::new(), Vec::new());
        let (idle, level) = (Duration::ZERO, Duration::ZERO);
        Roster { group, users, dormant, time: Laps::new(Instant::now), idle, level }
    }

    /// Sessions looked at in every round.
    pub(super) fn hot_count(&self) -> usize {
        self.users.iter().map(|user| user.sessions.len()).sum()
    }

    /// Whether some must be listened for.
    pub(super) fn any_dormant(&self) -> bool {
        !self.dormant.is_empty()
    }

    /// A new session, hot.
    pub(super) fn add(&mut self, session: Arc<Session>, cpu: u32) {
        session.connection.channel.set_cpu(self.group, cpu);
        self.heat(session);
    }

    /// A session that ended.
    pub(super) fn remove(&mut self, id: u64) {
        self.dormant.retain(|session| session.connection.id != id);
        for user in &mut self.users {
            user.sessions.retain(|served| served.session.connection.id != id);
        }
        self.users.retain(|user| !user.sessions.is_empty());
    }

    /// The doorbell of a session rang.
    pub(super) fn rang(&mut self, id: u64, cpu: u32) {
        let found = self.dormant.iter().position(|session| session.connection.id == id);
        if let Some(index) = found {
            let session = self.dormant.swap_remove(index);
            session.connection.channel.set_cpu(self.group, cpu);
            session.connection.channel.set_asleep(self.group, false);
            self.heat(session);
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
        for served in self.users.iter_mut().flat_map(|user| &mut user.sessions) {
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

    /// Passes over the users until one of them has had a request, or none has any. A user who had
    /// more time than one that asks is passed over.
    fn round_by_user(&mut self, mut serve: impl FnMut(&Arc<Session>, MailboxIndex)) -> usize {
        let most = self.users.iter().map(|user| user.sessions.len()).max().unwrap_or(0);
        let (mut looked, mut count) = (0, 0);
        while looked < most && count == 0 {
            self.idle += self.time.lap();
            let least = self.least();
            let mut passed_over = false;
            for user in &mut self.users {
                if let Some(least) = least.filter(|least| user.had > *least) {
                    (user.since, passed_over) = (Some(self.idle), true);
                    user.had = user.had.min(least + AHEAD_MAX);
                } else if let Some((session, mailbox)) = user.take(self.group) {
                    user.asks(self.idle, least, self.level);
                    self.level = self.level.max(user.had);
                    serve(&session, mailbox);
                    count += 1;
                    user.had += self.time.lap();
                    user.since = Some(self.idle);
                }
            }
            // Who is waited for has its moment to ask.
            looked += if passed_over { 0 } else { LOOKS_MAX };
        }
        count
    }

    /// The least time that a user had of those that are waited for.
    fn least(&self) -> Option<Duration> {
        let awaited = self.users.iter().filter(|user| user.is_awaited(self.idle));
        awaited.map(|user| user.had).min()
    }

    /// Lets those that asked for nothing of late become dormant.
    pub(super) fn rest(&mut self) {
        let (group, dormant) = (self.group, &mut self.dormant);
        for user in &mut self.users {
            user.sessions.retain_mut(|served| {
                let quiet = served.idle_rounds >= IDLE_ROUNDS && served.falls_asleep(group);
                if quiet {
                    dormant.push(served.session.clone());
                }
                !quiet
            });
        }
        self.users.retain(|user| !user.sessions.is_empty());
    }

    /// Makes every session hot, for the last rounds.
    pub(super) fn heat_all(&mut self) {
        while let Some(session) = self.dormant.pop() {
            self.heat(session);
        }
    }

    /// Tells the hot sessions that the worker is about to sleep, or is back.
    pub(super) fn set_asleep(&self, asleep: bool) {
        for session in self.hot() {
            session.connection.channel.set_asleep(self.group, asleep);
        }
    }

    /// Tells the hot sessions where the worker runs.
    pub(super) fn set_cpu(&self, cpu: u32) {
        for session in self.hot() {
            session.connection.channel.set_cpu(self.group, cpu);
        }
    }

    /// Whether a hot session has something to take. A hint.
    pub(super) fn has_requests(&self) -> bool {
        self.hot().any(|session| session.connection.channel.has_requests(self.group))
    }

    fn hot(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.users.iter().flat_map(|user| &user.sessions).map(|served| &served.session)
    }

    /// Puts a session to its user's hot ones.
    fn heat(&mut self, session: Arc<Session>) {
        let uid = session.connection.cred.uid;
        let served = Served { session, idle_rounds: 0 };
        match self.users.iter_mut().find(|user| user.uid == uid) {
            Some(user) => user.sessions.push(served),
            None => self.users.push(User {
                uid,
                sessions: vec![served],
                next: 0,
                had: Duration::ZERO,
                since: None,
                prompt: false,
            }),
        }
    }
}

impl User {
    /// The next request of its sessions, if one of those has any whose turn to be looked at it is.
    fn take(&mut self, group: usize) -> Option<(Arc<Session>, MailboxIndex)> {
        for _ in 0..self.sessions.len().min(LOOKS_MAX) {
            self.next = (self.next + 1) % self.sessions.len();
            let served = &mut self.sessions[self.next];
            let taken = served.session.connection.channel.take(group);
            served.noticed(taken.is_some());
            if let Some(mailbox) = taken {
                return Some((served.session.clone(), mailbox));
            }
        }
        None
    }

    /// Whether it asked for nothing for no longer than a moment in which the worker was free.
    fn is_prompt(&self, idle: Duration) -> bool {
        self.since.is_some_and(|since| idle.saturating_sub(since) <= PATIENCE)
    }

    /// Whether it is to have the next request, if it asks in time as it did before.
    fn is_awaited(&self, idle: Duration) -> bool {
        self.prompt && self.is_prompt(idle)
    }

    /// It asks. For how long it was waited for is its time. What it did not ask for while others
    /// had theirs is not kept for it: it begins where they are.
    fn asks(&mut self, idle: Duration, least: Option<Duration>, level: Duration) {
        self.prompt = self.is_prompt(idle);
        match self.prompt {
            true => self.had += idle.saturating_sub(self.since.unwrap_or(idle)),
            false => self.had = self.had.max(level),
        }
        self.had = self.had.max(least.unwrap_or_default());
    }
}

/// Time from one look at a clock to the next.
struct Laps {
    clock: fn() -> Instant,
    last: Instant,
}

impl Laps {
    fn new(clock: fn() -> Instant) -> Laps {
        Laps { clock, last: clock() }
    }

    /// The time since the last lap.
    fn lap(&mut self) -> Duration {
        let now = (self.clock)();
        now.saturating_duration_since(std::mem::replace(&mut self.last, now))
    }
}

impl Served {
    /// A round looked at it, and found a request or none.
    fn noticed(&mut self, any: bool) {
        self.idle_rounds = if any { 0 } else { self.idle_rounds.saturating_add(1) };
    }

    /// Tells it that it has to ring, unless it has asked meanwhile.
    fn falls_asleep(&mut self, group: usize) -> bool {
        let channel = &self.session.connection.channel;
        channel.set_asleep(group, true);
        if channel.has_requests(group) {
            channel.set_asleep(group, false);
            self.idle_rounds = 0;
            return false;
        }
        true
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
        let user = None;
        let process = Process { pid: 1, user, pidfd, number: 1, owner, gone, locks, holders };
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

    thread_local! {
        /// Of the clock that a test moves.
        static PASSED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
        static BEGIN: Instant = Instant::now();
    }

    fn moved_clock() -> Instant {
        BEGIN.with(|begin| *begin + PASSED.get())
    }

    fn pass(nanoseconds: u64) {
        PASSED.set(PASSED.get() + Duration::from_nanos(nanoseconds));
    }

    /// A clock on which each look at it takes 10 ns, and nothing else but what a test says.
    fn timed_roster() -> Roster {
        let clock = || {
            pass(10);
            moved_clock()
        };
        Roster { time: Laps::new(clock), ..Roster::new(0) }
    }

    /// Whose requests were served in which order, while user 1 always asks by many sessions, each
    /// request for `cost`, and user 2 asks by one session for 100 ns, `thinks` after each answer.
    fn order(cost: u64, thinks: u64, rounds: usize) -> Vec<u64> {
        let (lane, mut roster) = (lane(), timed_roster());
        let flood: Vec<_> = (0..20).map(|id| session_of(&lane, id, Uid(1))).collect();
        let (quiet, quiet_client) = session_of(&lane, 99, Uid(2));
        flood.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        roster.add(quiet, 0);
        flood.iter().for_each(|(_, client)| post(client));
        post(&quiet_client);
        let (mut order, mut answered) = (Vec::new(), None::<Duration>);
        for _ in 0..rounds {
            roster.round(8, |session, mailbox| {
                let id = session.connection.id;
                session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
                pass(if id == 99 { 100 } else { cost });
                order.push(if id == 99 { 2 } else { 1 });
                match flood.iter().find(|(flooding, _)| flooding.connection.id == id) {
                    Some((_, client)) => {
                        client.release(mailbox);
                        post(client);
                    }
                    None => answered = Some(PASSED.get()),
                }
            });
            if answered.is_some_and(|at| PASSED.get() >= at + Duration::from_nanos(thinks)) {
                answered = None;
                quiet_client.release(MailboxIndex(0));
                post(&quiet_client);
            }
        }
        order
    }

    #[test]
    fn users_share_the_time_whatever_sessions_they_have() {
        let count = |order: &[u64], user| order.iter().filter(|&&id| id == user).count();
        // Both always ask: 2000 ns for one are 20 requests of the other's, less its looks.
        let both = order(2000, 0, 2000);
        let part = count(&both, 2) as f64 / count(&both, 1) as f64;
        assert!((12.0..=20.5).contains(&part), "{part}");
        // As long as the other: by turns.
        let equal = order(100, 0, 2000);
        let part = count(&equal, 2) as f64 / count(&equal, 1) as f64;
        assert!((0.8..=1.25).contains(&part), "{part}");
        // Who thinks for longer waits for one request, and has none in store.
        let seldom = order(2000, 5000, 2000);
        assert!(seldom.windows(2).all(|pair| pair != [2, 2]), "one at a time");
        assert!(count(&seldom, 1) > 2 * count(&seldom, 2), "the other goes on");
    }

    /// What a user had while another was hot and asked for nothing, or seldom, is not held against
    /// it once that one floods: at random costs and pauses, neither waits for long.
    #[test]
    fn what_a_user_had_before_is_not_held_against_it() {
        for seed in 0..8 {
            let waits = longest_waits(seed);
            assert!(waits < Duration::from_micros(60), "seed {seed}: {waits:?}");
        }
    }

    /// Two users of one session each: one is busy for 100 ms while the other asks every 5 ms, then
    /// both ask after pauses of up to 3 µs. The longest time from a request to its begin.
    fn longest_waits(seed: u64) -> Duration {
        let (lane, mut roster) = (lane(), timed_roster());
        let users: Vec<_> = (0..2).map(|id| session_of(&lane, id, Uid(id as u32 + 1))).collect();
        users.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        let mut state = seed + 1;
        let mut below = move |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let begin = PASSED.get();
        let (mut asks_at, mut asked) = ([begin; 2], [None::<Duration>; 2]);
        let mut longest = Duration::ZERO;
        while PASSED.get() < begin + Duration::from_millis(200) {
            for user in 0..2 {
                if asked[user].is_none() && PASSED.get() >= asks_at[user] {
                    post(&users[user].1);
                    asked[user] = Some(PASSED.get());
                }
            }
            let seldom = PASSED.get() < begin + Duration::from_millis(100);
            roster.round(8, |session, mailbox| {
                let user = session.connection.id as usize;
                let waited = PASSED.get() - asked[user].take().expect("it asked");
                longest = longest.max(waited);
                pass(100 + below(3000));
                session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
                users[user].1.release(mailbox);
                let pause = if seldom && user == 1 { 5_000_000 } else { below(3000) };
                asks_at[user] = PASSED.get() + Duration::from_nanos(pause);
            });
        }
        longest
    }

    /// Each of a user's many sessions is looked at while another user is hot.
    #[test]
    fn sessions_of_a_user_take_turns() {
        let (lane, mut roster) = (lane(), timed_roster());
        let many: Vec<_> =
            (0..3 * LOOKS_MAX as u64 + 1).map(|id| session_of(&lane, id, Uid(1))).collect();
        let (other, _client) = session_of(&lane, 99, Uid(2));
        many.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
        roster.add(other, 0);
        for (session, client) in &many {
            post(client);
            let mut served = None;
            let count = roster.round(8, |session, mailbox| {
                session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
                served = Some(session.connection.id);
            });
            assert_eq!((count, served), (1, Some(session.connection.id)), "in one round");
        }
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
