//! What commands order a supervisor to do, and what its first process tells it.

use polylane_base::Errno;

use super::late::{Deadline, Late};
use super::{Doors, FLUSH_TIME_MAX, KILLED_TIME_MAX, Service, Supervisor};
use crate::failure::Result;
use crate::link::{FromInit, ToInit};
use crate::stays::Cause;
use crate::upgrade::{Order, Wish};

/// What is done when the first process has ended and before the service ends, which waits for the
/// lane's mount to go.
pub(crate) struct AtEnd(pub(crate) Box<dyn Fn()>);

impl std::fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtEnd")
    }
}

impl Supervisor {
    /// Does what a command asks for.
    pub(super) fn obey(&mut self, wish: Wish, doors: &Doors, service: &mut Service) -> Result<()> {
        let Wish { client, order } = wish;
        match order {
            Order::Upgrade(program) => {
                Wish::answer(&client, &self.upgrade(doors, service, program)?);
            }
            Order::Unmount { .. } if self.unmounting.is_some() => {
                let line = "another command unmounts it".to_string();
                Wish::stays(&client, Cause::Changing, line);
            }
            Order::Unmount { lazy } => {
                let _ = self.link.send(&ToInit::Unmount { lazy }, &[]);
                self.unmounting = Some(client);
            }
            Order::Join(fds) => self.join(client, fds, service),
            Order::Leave(id) => self.instances.leave(client, id),
        }
        Ok(())
    }

    /// Tells the command that unmounts the lane what came of it.
    pub(super) fn answer_unmount(&mut self, outcome: std::result::Result<String, String>) {
        if let Some(client) = self.unmounting.take() {
            Wish::answer(&client, &outcome);
        }
    }

    /// Hears the first process; how long it may take from now on.
    pub(super) fn hear_init(&mut self, deadline: Deadline) -> Deadline {
        match self.link.receive() {
            Ok(Some((FromInit::Ended, _))) => Late::Killed.after(KILLED_TIME_MAX),
            Ok(Some((FromInit::Alone, _))) => Late::Synced.after(FLUSH_TIME_MAX),
            Ok(Some((FromInit::Stays(errno), _))) => {
                let cause = match Errno(errno) {
                    Errno::EBUSY => Cause::InUse,
                    _ => Cause::Failed,
                };
                if let Some(client) = self.unmounting.take() {
                    Wish::stays(&client, cause, Errno(errno).to_string());
                }
                None
            }
            _ => deadline,
        }
    }
}
