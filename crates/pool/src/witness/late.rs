//! A witness that needs no process before the service asks it something: most lanes have no client
//! of the library.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use polylane_sys::scm;

use super::Waiting;
use crate::process::Process;

/// How far such a witness is.
pub(crate) enum Late {
    Waits(Box<Waiting>),
    Looks {
        _process: Process,
    },
    /// The service has ended, or no process could be made: clients go without.
    Ended,
}

impl Late {
    /// Readable once it is asked something, or never will be again.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Late::Waits(waiting) => Some(waiting.line.as_fd()),
            Late::Looks { .. } | Late::Ended => None,
        }
    }

    /// Whether it was asked.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self, Late::Looks { .. })
    }

    /// Has a process answer from now on.
    pub(crate) fn begin(&mut self) {
        *self = match std::mem::replace(self, Late::Ended) {
            Late::Waits(waiting) => match waiting.start() {
                Ok(_process) => Late::Looks { _process },
                Err(_) => Late::Ended,
            },
            other => other,
        };
    }

    /// Hears the service, which asks or has ended. A question stays for the process: nothing that
    /// comes with one is received here, nor closed ([`ServiceLine`](crate::service_line)).
    pub(crate) fn hear(&mut self) {
        let Late::Waits(waiting) = self else { return };
        match scm::peek(&*waiting.line, &mut [0; 1]) {
            Ok(asked) if asked.count > 0 || asked.carries => self.begin(),
            _ => *self = Late::Ended,
        }
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Late::Waits(_) => "Waits",
            Late::Looks { .. } => "Looks",
            Late::Ended => "Ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_line::tests::{at_once, slow_to_close};
    use crate::spec::PoolSpec;

    /// A test's process has threads: it cannot fork, and has no witness.
    #[test]
    fn a_question_that_no_process_takes_keeps_the_supervisor_from_nothing() {
        for bytes in [&b""[..], b"question"] {
            let waiting = Waiting::of(std::process::id(), &PoolSpec::sample()).expect("a line");
            let (mut late, ends) = (Late::Waits(Box::new(waiting.0)), waiting.1);
            let (file, _peer) = slow_to_close();
            scm::send(&ends.line, bytes, &[file.as_fd()]).expect("send");
            drop(file);
            at_once(|| late.hear());
            assert!(late.as_fd().is_none(), "it is heard once");
        }
    }
}
