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
            // A session that is waited for has its moment to ask.
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
mod tests;
