//! An upper of a union that needs its lowers no more: `polylane volume solidify`.
//!
//! ```text
//!  command            supervisor                        service
//!    Target ───────────►
//!    ◄── Answer::Mine      ── ToService::Solidify ──────►  a thread of its own, while
//!                                                          the lane is served
//!    ◄── Answer::Solid ◄────────────────── FromService::Solid
//! ```
//!
//! An upper that no lane has is put under one for as long as it takes, whose COMMAND asks it.

use std::os::fd::AsFd;
use std::path::Path;

use polylane_base::shown::Shown;
use polylane_volume as volume;
use serde::{Deserialize, Serialize};

use crate::build::Handed;
use crate::copying::Target;
use crate::failure::{Failure, Result};
use crate::link::{Link, ToService};
use crate::stats::{self, MINE_TIME_MAX, Question};
use crate::wait::wait_for;

/// What a command is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Answer {
    /// It is another lane's.
    NotMine,
    /// It is this lane's.
    Mine,
    /// So many files were made whole, and all are.
    Solid(u64),
    /// Not all are; one line says why.
    Failed(String),
}

/// The command that waits for a lane's upper to be whole, as the supervisor sees it.
#[derive(Debug, Default)]
pub(crate) struct Solidifying(Option<Link>);

impl Solidifying {
    /// Begins, if the upper is what this lane is on.
    pub(crate) fn begin(
        &mut self,
        client: Link,
        target: Target,
        (handed, has_lowers, service): (&Handed, bool, &Link),
    ) {
        let volume = handed.volume.first().map(|files| files.plain.as_fd());
        let own = volume.or(handed.dir.as_ref().map(AsFd::as_fd));
        let is_mine = own.and_then(|own| Target::of(own).ok()) == Some(target);
        let answer = match (is_mine, &self.0) {
            (false, _) => Answer::NotMine,
            (true, _) if !has_lowers => Answer::Failed("has no lowers: it is whole".to_string()),
            (true, Some(_)) => Answer::Failed("another command makes it whole".to_string()),
            (true, None) => Answer::Mine,
        };
        if client.send(&answer, &[]).is_ok() && answer == Answer::Mine {
            // Its end shows at its process.
            let _ = service.send(&ToService::Solidify, &[]);
            self.0 = Some(client);
        }
    }

    /// Tells the command what came of it. One that has gone away is told nothing.
    pub(crate) fn answered(&mut self, outcome: std::result::Result<u64, String>) {
        if let Some(client) = self.0.take() {
            let answer = outcome.map_or_else(Answer::Failed, Answer::Solid);
            let _ = client.send(&answer, &[]);
        }
    }

    /// The service has ended before it was done.
    pub(crate) fn service_ended(&mut self) {
        self.answered(Err("its service ended: run it again, and it goes on".to_string()));
    }
}

/// Makes the files of an upper whole in the lane that is on it, and waits until they are; how many
/// that were. `None`: no lane of this user is on it.
///
/// # Errors
/// One line: it is not there, its lane has no lowers, no room is left.
pub fn solidify(upper: &Path) -> Result<Option<u64>> {
    let unseen = |error| Failure::path(upper, "look at it", error);
    let target = match upper.is_dir() {
        true => Target::of(std::fs::File::open(upper).map_err(unseen)?),
        false => Target::of(volume::open_to_look(upper)?),
    };
    let asked = stats::ask_each(Question::Solidify(target.map_err(unseen)?));
    for link in asked.filter_map(|(_, link)| link.ok()) {
        if !wait_for(link.as_fd(), MINE_TIME_MAX) {
            continue;
        }
        match link.receive().ok().flatten().map(|(answer, _)| answer) {
            Some(Answer::Mine) => return done(upper, &link).map(Some),
            Some(Answer::Failed(why)) => return Err(failed(upper, &why)),
            _ => {}
        }
    }
    Ok(None)
}

fn failed(upper: &Path, why: &str) -> Failure {
    Failure::failed(format!("{}: {why}", Shown::new(upper)))
}

fn done(upper: &Path, link: &Link) -> Result<u64> {
    match link.receive().ok().flatten().map(|(answer, _)| answer) {
        Some(Answer::Solid(files)) => Ok(files),
        Some(Answer::Failed(why)) => Err(failed(upper, &why)),
        _ => Err(failed(upper, "its lane ended: run it again, and it goes on")),
    }
}
