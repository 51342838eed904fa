//! An engine as its keeper sees it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use polylane_volume::held::Ask;

use super::message::{ENGINE_TIME_MAX, FromEngine, Shape, ToEngine};
use crate::link::Link;
use crate::process::Process;
use crate::wait::wait_for;

/// The running engine and the line to it.
pub(super) struct Engine {
    pub(super) link: Link,
    pub(super) process: Process,
    pub(super) shape: Shape,
    /// Where it saw journals, if it said so since it was asked for something.
    pub(super) journals: RefCell<Option<Vec<(u64, u64)>>>,
    /// Other answers that came before those that were waited for.
    pub(super) early: RefCell<VecDeque<FromEngine>>,
}

impl Engine {
    /// What it says next; `None` at its end.
    pub(super) fn next(&self) -> polylane_base::Result<Option<FromEngine>> {
        match self.early.borrow_mut().pop_front() {
            Some(early) => Ok(Some(early)),
            None => Ok(self.link.receive()?.map(|(said, _)| said)),
        }
    }

    /// Passes on what a copy of the volume asks for.
    pub(super) fn copier(&self) -> impl Fn(Ask, &[BorrowedFd<'_>]) {
        // An engine that does not read it has ended, which shows at its process.
        |ask, fds| {
            let _ = self.link.send(&ToEngine::Copy(ask), fds);
        }
    }

    /// Asks for something; its answer.
    pub(super) fn ask(&self, question: ToEngine) -> Option<FromEngine> {
        self.link.send(&question, &[]).ok()?;
        self.answer(ENGINE_TIME_MAX, |answer| {
            !matches!(answer, FromEngine::Ended | FromEngine::Copied(_))
        })
    }

    /// The next message that is `wanted`.
    pub(super) fn answer(
        &self,
        limit: Duration,
        wanted: impl Fn(&FromEngine) -> bool,
    ) -> Option<FromEngine> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !wait_for(self.link.as_fd(), left) {
                return None;
            }
            match self.link.receive::<FromEngine>() {
                Ok(Some((FromEngine::Journals(found), _))) => {
                    self.journals.replace(Some(found));
                }
                Ok(Some((answer, _))) if wanted(&answer) => return Some(answer),
                Ok(Some((answer, _))) => self.early.borrow_mut().push_back(answer),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}
