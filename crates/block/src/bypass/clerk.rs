//! The clerk: a thread that does for a volume's channels what waits, and answers by their bells.
//!
//! Flushes come first, and all that are there are one: a flush answers whoever asked before it
//! began. Zeros that take space are written in turns, between which others have theirs.

use std::time::Instant;

use super::desk::{Answer, Job, TICK, Work};
use super::volume::Shared;
use crate::device::Sector;

/// A clerk's life.
pub(super) fn run(shared: &Shared) {
    let mut looked = Instant::now();
    while let Some(jobs) = shared.desk.take(TICK) {
        if looked.elapsed() >= TICK {
            shared.look();
            looked = Instant::now();
        }
        let (flushes, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.work == Work::Flush);
        if !flushes.is_empty() {
            let done = shared.flush();
            flushes.iter().for_each(|job| job.bell.ring(job.slot, Answer::Done(done)));
        }
        for Job { work, bell, slot } in others {
            let answer = match work {
                Work::Flush => Answer::Done(shared.flush()),
                Work::Zero(op, sector, count) => match shared.zero(op, sector, count) {
                    Ok(done) if done < count => {
                        let work = Work::Zero(op, Sector(sector.0 + done), count - done);
                        shared.desk.push(Job { work, bell, slot });
                        continue;
                    }
                    done => Answer::Done(done.map(|_| ())),
                },
                Work::Fill(index) => match shared.fill(index) {
                    Ok(()) => Answer::Again,
                    Err(error) => Answer::Done(Err(error)),
                },
                Work::Again => Answer::Again,
            };
            bell.ring(slot, answer);
        }
    }
}
