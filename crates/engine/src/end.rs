//! Signals to containers, and their end.

use std::time::Duration;

use polylane_pool::failure::{Failure, Result};

use crate::container::{Container, END_TIME_MAX, State};

impl Container {
    /// Sends a signal to the container's first process.
    ///
    /// # Errors
    /// One line: it does not run, or there is no such signal.
    pub fn kill(&self, signal: &str) -> Result<()> {
        if let State::Running(_) = self.state()? {
            let sent = self.runtime().kill(signal);
            // It may end by itself, or by another command, at this very moment.
            if sent.is_ok() || matches!(self.state()?, State::Running(_)) {
                return sent;
            }
        }
        Err(Failure::failed(format!("{}: does not run", self.record.name)))
    }

    /// Asks the container to end, kills it after `patience`, and waits until it is cleared up. One
    /// that does not run is no error.
    ///
    /// # Errors
    /// One line: it cannot be ended or cleared up.
    pub fn stop(&self, patience: Duration) -> Result<()> {
        if let State::Running(_) = self.state()? {
            let asked = self.runtime().kill(&self.record.stop_signal);
            if asked.is_ok() && !patience.is_zero() {
                self.wait_ended(patience)?;
            }
            if let State::Running(_) = self.state()? {
                // It may end by itself at this very moment.
                let killed = self.runtime().kill("SIGKILL");
                self.kill_first()?;
                self.wait_ended(END_TIME_MAX)?;
                if let State::Running(_) = self.state()? {
                    return killed.and(Err(Failure::failed(format!(
                        "{}: is still there {} s after SIGKILL",
                        self.record.name,
                        END_TIME_MAX.as_secs()
                    ))));
                }
            }
        }
        self.place.wait_unwatched(END_TIME_MAX)?;
        // Where nobody was left who clears up.
        let Some(_lock) = self.place.lock_if_there()? else { return Ok(()) };
        match self.state()? {
            State::Running(_) => Ok(()),
            _ => self.clear(),
        }
    }
}
