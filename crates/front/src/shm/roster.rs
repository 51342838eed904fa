//! The sessions of one worker: those it looks at in every round, and those that ring when they want
//! something.
//!
//! A client that asked for nothing of late is *dormant*: its channel says "asleep", so its next request
//! rings the doorbell, and a hundred idle clients cost the busy one nothing. All others are *hot*: the
//! worker looks at their queues, and tells them "asleep" only when it really sleeps.
//!
//! # Invariants
//!
//! - `sessions[..hot]` are hot, the rest dormant.
//! - A session becomes dormant only after its queue was seen empty while its channel said "asleep": a
//!   request posted later rings.

use polylane_base::sync::Arc;
use polylane_ipc::MailboxIndex;

use super::session::Session;

/// Rounds without a request after which a session becomes dormant: many times the longest spin, so that
/// whoever comes back now and then still finds the worker awake.
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
}

impl Roster {
    /// Nobody yet, for the worker of a core group.
    pub(super) fn new(group: usize) -> Roster {
        Roster { group, sessions: Vec::new(), hot: 0 }
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
        session.channel.set_cpu(self.group, cpu);
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
                let channel = &self.sessions[index].session.channel;
                channel.set_cpu(self.group, cpu);
                channel.set_asleep(self.group, false);
                self.heat(index);
            }
            _ => {}
        }
    }

    /// One round over the hot sessions, at most `batch` requests of each; returns how many there were.
    pub(super) fn round(
        &mut self,
        batch: usize,
        mut serve: impl FnMut(&Arc<Session>, MailboxIndex),
    ) -> usize {
        let mut count = 0;
        for served in &mut self.sessions[..self.hot] {
            let before = count;
            while count - before < batch
                && let Some(mailbox) = served.session.channel.take(self.group)
            {
                serve(&served.session, mailbox);
                count += 1;
            }
            let idle = served.idle_rounds.saturating_add(1);
            served.idle_rounds = if count > before { 0 } else { idle };
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
            session.channel.set_asleep(self.group, true);
            if session.channel.has_requests(self.group) {
                session.channel.set_asleep(self.group, false);
                *idle_rounds = 0;
            } else {
                self.cool(index);
            }
        }
    }

    /// Makes every session hot, for the last rounds.
    pub(super) fn heat_all(&mut self) {
        self.hot = self.sessions.len();
    }

    /// Tells the hot sessions that the worker is about to sleep, or is back.
    pub(super) fn set_asleep(&self, asleep: bool) {
        for served in &self.sessions[..self.hot] {
            served.session.channel.set_asleep(self.group, asleep);
        }
    }

    /// Tells the hot sessions where the worker runs.
    pub(super) fn set_cpu(&self, cpu: u32) {
        for served in &self.sessions[..self.hot] {
            served.session.channel.set_cpu(self.group, cpu);
        }
    }

    /// Whether a hot session has something to take. A hint.
    pub(super) fn has_requests(&self) -> bool {
        self.sessions[..self.hot]
            .iter()
            .any(|served| served.session.channel.has_requests(self.group))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.sessions.iter().position(|served| served.session.id == id)
    }

    /// Moves a dormant session to the hot ones.
    fn heat(&mut self, index: usize) {
        self.sessions[index].idle_rounds = 0;
        self.sessions.swap(index, self.hot);
        self.hot += 1;
    }

    /// Moves a hot session to the dormant ones, where it is the first.
    fn cool(&mut self, index: usize) {
        self.hot -= 1;
        self.sessions.swap(index, self.hot);
    }
}
