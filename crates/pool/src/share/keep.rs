//! A lane in a process that has no supervisor, such as an attached volume's: candidate, member and
//! governor together, kept by a thread.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_block::qos::governed::Governor;
use polylane_sys::event;

use super::coordinator::Candidate;
use super::member::{Member, adopt};
use super::profile::Profile;
use super::{Meeting, Policy, Wanted};
use crate::failure::{Failure, Result};
use crate::keeper::wait_either;
use crate::names;

/// How long the thread sleeps without a reason to wake up.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// A lane. Dropped, it is gone.
#[derive(Debug)]
pub struct Kept {
    governor: Arc<Governor>,
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

impl Kept {
    /// Joins, as `name`, the lanes of the device that `file` is on; put what is built on the file
    /// under [`Kept::governor`]. With [`Policy::None`] everything goes.
    ///
    /// # Errors
    /// The device's lanes share it in another way; the host has no thread to give.
    pub fn start(file: impl AsFd, name: &str, wanted: Wanted, policy: Policy) -> Result<Kept> {
        Kept::start_at(Meeting::of(&names::runtime_dir(), file)?, name, wanted, policy)
    }

    fn start_at(meeting: Meeting, name: &str, wanted: Wanted, policy: Policy) -> Result<Kept> {
        let failed = |error: std::io::Error| Failure::because("shares", "join them", error);
        let governor = Governor::new();
        let stop = event::eventfd().map_err(|error| failed(error.into()))?;
        if policy == Policy::None {
            return Ok(Kept { governor, stop, thread: None });
        }
        let candidate = Candidate::start(meeting.clone(), Profile::of(&meeting))?;
        let mut member = Member::new(meeting, name, wanted, policy);
        member.join()?;
        let (kept, stopped) = (governor.clone(), stop.try_clone().map_err(failed)?);
        let run = move || {
            keep(&mut member, &kept, &stopped);
            // The lane ends first, so that a successor does not see it.
            kept.set(None);
            drop(member);
            drop(candidate);
        };
        let thread =
            thread::Builder::new().name("polylane-share".to_string()).spawn(run).map_err(failed)?;
        Ok(Kept { governor, stop, thread: Some(thread) })
    }

    /// Whose turn it is.
    pub fn governor(&self) -> Arc<Governor> {
        self.governor.clone()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        event::notify(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Takes the lane's place again whenever the coordinator is gone.
fn keep(member: &mut Member, governor: &Governor, stop: &OwnedFd) {
    // Held as long as the lane.
    let mut _link = share(member, governor);
    loop {
        let limit = member.retry_in().unwrap_or(LOOK_AGAIN);
        let link = member.link().unwrap_or(stop.as_fd());
        let (stopped, news) = wait_either(stop.as_fd(), link, limit);
        if stopped {
            return;
        }
        if news {
            member.news();
        }
        if member.link().is_none() && member.rejoin() {
            _link = share(member, governor);
        }
    }
}

fn share(member: &Member, governor: &Governor) -> Option<OwnedFd> {
    let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().ok();
    adopt(governor, member.fds().into_iter().filter_map(copy).collect()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_block::qos::page::Terms;
    use std::time::Instant;

    fn lane(dir: &std::path::Path, name: &str, weight: u32, policy: Policy) -> Result<Kept> {
        let file = std::fs::File::open(dir).expect("directory");
        let meeting = Meeting::of(dir, &file)?;
        let wanted = Wanted { weight: Some(weight), ..Wanted::default() };
        Kept::start_at(meeting, name, wanted, policy)
    }

    /// Waits until the lane's coordinator has written something since `after`.
    fn coordinated(kept: &Kept, after: u64) -> u64 {
        let start = Instant::now();
        loop {
            let lane = kept.governor.lane();
            let terms = lane.and_then(|lane| Terms::read(lane.words())).unwrap_or_default();
            if terms.start > after {
                return terms.start;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "no coordinator");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_role_goes_on_and_nothing_is_left() {
        let dir = tempfile::tempdir().expect("tempdir");
        let run = dir.path().join("run");
        std::fs::create_dir(&run).expect("mkdir");
        let first = lane(&run, "a", 300, Policy::Ledger).expect("first");
        let second = lane(&run, "b", 100, Policy::Ledger).expect("second");
        let seen = coordinated(&first, 0).max(coordinated(&second, 0));
        let refused = lane(&run, "c", 1, Policy::Wdt).expect_err("another policy");
        assert!(refused.line.contains("share it by 'ledger'"), "{refused}");
        // The first one coordinates; with it goes the coordinator.
        drop(first);
        coordinated(&second, seen);
        drop(second);
        assert!(!run.exists(), "files of the meeting are left");
    }

    #[test]
    fn a_killed_coordinators_files_are_taken_over() {
        let dir = tempfile::tempdir().expect("tempdir");
        let run = dir.path().join("run");
        std::fs::create_dir(&run).expect("mkdir");
        let meeting = Meeting::of(&run, std::fs::File::open(&run).expect("open")).expect("meeting");
        std::fs::write(meeting.holder(), "").expect("write");
        std::fs::write(meeting.socket(), "").expect("write");
        coordinated(&lane(&run, "a", 1, Policy::WdtSharedLock).expect("lane"), 0);
    }
}
