//! The last syncs, one by one: the form that each took, why, of how many bytes, and how long.
//!
//! They are always kept, since a sync that was slow is asked about afterwards. A note is two looks
//! at the clock and a lock that is held for one copy; what nobody syncs makes none.

use std::collections::VecDeque;
use std::time::Instant;

use polylane_base::sync::Mutex;

/// Steps that are kept.
pub const STEPS: usize = 32;

/// A part of a sync that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The bytes went where they go.
    Write,
    /// A transaction became durable.
    Commit,
    /// What was written in place became durable, without a commit or after one that does not cover
    /// it.
    Flush,
}

impl Part {
    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Write => "write",
            Part::Commit => "commit",
            Part::Flush => "flush",
        }
    }
}

/// One of the last syncs, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which part.
    pub part: Part,
    /// Why it took its form: the name of a `Reason` of a write, of a `Form` of a commit.
    pub why: &'static str,
    /// Bytes written by the caller, or logged by the commit; 0 of a flush.
    pub bytes: u64,
    /// When it began, since the file system was opened.
    pub at_us: u64,
    /// How long it took.
    pub took_us: u64,
}

/// The last steps. Thread-safe.
#[derive(Debug)]
pub struct Trace {
    opened: Instant,
    steps: Mutex<VecDeque<Step>>,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { opened: Instant::now(), steps: Mutex::new(VecDeque::with_capacity(STEPS)) }
    }
}

impl Trace {
    /// Notes a step that `began` then and is over now.
    pub(crate) fn note(&self, (part, why): (Part, &'static str), bytes: u64, began: Instant) {
        let at_us = began.saturating_duration_since(self.opened).as_micros() as u64;
        let took_us = began.elapsed().as_micros() as u64;
        let mut steps = self.steps.lock();
        if steps.len() == STEPS {
            steps.pop_front();
        }
        steps.push_back(Step { part, why, bytes, at_us, took_us });
    }

    /// The last ones, in the order in which they ended.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().iter().copied().collect()
    }
}
