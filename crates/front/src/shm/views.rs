//! How many sessions see the lane in which way, and why processes have none: counters for people.

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::connection::Connection;
use crate::witness::Refusal;

/// Ways to see a lane, as people are told of them.
const NAMES: [&str; 4] = ["as_tenant", "own_view", "read_only", "other_users"];

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Views {
    sessions: [AtomicU64; NAMES.len()],
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// What they say at one moment, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewTotals {
    /// Sessions just now, by what they see of the lane.
    pub sessions: Vec<(&'static str, u64)>,
    /// Sessions that processes did not get since the start, by the reason.
    pub refused: Vec<(&'static str, u64)>,
}

impl Views {
    fn of(&self, connection: &Connection) -> &AtomicU64 {
        let way = match (&connection.attachment, connection.other_owners) {
            (None, _) => 0,
            (Some(_), true) => 3,
            (Some(_), false) if connection.is_read_only() => 2,
            (Some(_), false) => 1,
        };
        &self.sessions[way]
    }

    /// A session began.
    pub(super) fn began(&self, connection: &Connection) {
        self.of(connection).fetch_add(1, Relaxed);
    }

    /// It ended.
    pub(super) fn ended(&self, connection: &Connection) {
        self.of(connection).fetch_sub(1, Relaxed);
    }

    /// A process did not get one.
    pub(super) fn refused(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn totals(&self) -> ViewTotals {
        let count = |count: &AtomicU64| count.load(Relaxed);
        let sessions = NAMES.into_iter().zip(self.sessions.iter().map(count)).collect();
        let refused = Refusal::ALL.map(Refusal::name).into_iter();
        ViewTotals { sessions, refused: refused.zip(self.refused.iter().map(count)).collect() }
    }
}
