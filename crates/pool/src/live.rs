//! Copies of volumes that are in use, and their change to other bases: the command's side of
//! `copying`.
//!
//! Whoever serves the volume makes it stand still, and the copy is made meanwhile.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::file::Files;
use polylane_block::image::{self, ImageError};
use polylane_volume::cow::Exchange;
use polylane_volume::stack::Stack;
use polylane_volume::{self as volume, Holders, Sidecar};

use crate::attach;
use crate::awake::Mute;
use crate::copying::{Step, Target, Told, Wish};
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::stats::{self, MINE_TIME_MAX, Question};
use crate::wait::wait_for;

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How long a holder may take to write everything back, or to go over to other files.
const DONE_TIME_MAX: Duration = Duration::from_secs(300);

/// The pools and attachments of this user.
pub struct PoolsAndAttachments;

impl Holders for PoolsAndAttachments {
    fn freeze(&self, path: &Path) -> Result<volume::Freeze> {
        let file = volume::open_to_look(path)?;
        // A volume whose pool cannot be asked is in use: its lock says so.
        let Holder::Has(holder) = holder_of(path, &file, Wish::Copy)? else {
            return Ok(volume::Freeze::Nobody);
        };
        match answer(&holder, path, "cannot be copied")? {
            Answer::Done => {
                Ok(volume::Freeze::Still(Box::new(Still { holder, has_ended: Cell::new(false) })))
            }
            Answer::Ended => Ok(volume::Freeze::Ended),
        }
    }

    fn rebase(&self, path: &Path) -> Result<()> {
        /// A copy of the volume that another command makes meanwhile is over by then.
        const TIME_MAX: Duration = Duration::from_secs(30);
        let begun = Instant::now();
        loop {
            match try_rebase(path) {
                Err(kept) if kept.may_go && begun.elapsed() < TIME_MAX => thread::sleep(TRY_AGAIN),
                done => return done.map_err(|kept| kept.failure),
            }
        }
    }

    fn resize(&self, path: &Path, size: u64) -> Result<Option<()>> {
        attach::resize(path, size)
    }
}

/// A volume that stands still. It goes on when this is dropped.
struct Still {
    holder: Link,
    has_ended: Cell<bool>,
}

impl Still {
    fn say(&self, path: &Path, step: &Step, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = self.holder.send(step, fds);
        match sent.map_or(Ok(Answer::Ended), |()| answer(&self.holder, path, "cannot be copied"))? {
            Answer::Done => Ok(()),
            Answer::Ended => {
                self.has_ended.set(true);
                Err(ended(path))
            }
        }
    }
}

impl volume::Still for Still {
    fn thaw(&self, path: &Path) -> Result<()> {
        self.say(path, &Step::Thaw, &[])
    }

    fn has_ended(&self) -> bool {
        self.has_ended.get()
    }
}

/// Which pool or attachment of this user has a volume.
enum Holder {
    /// It was told what is wanted.
    Has(Link),
    /// None.
    Nobody,
    /// None of those that answer; this one does not.
    Unasked(String, Mute),
}

/// The pool or attachment of this user that has the volume, told what is wanted of it.
fn holder_of(path: &Path, file: impl AsFd, wish: Wish) -> Result<Holder> {
    let target = Target::of(file).map_err(|error| Failure::path(path, "look at it", error))?;
    let question = match wish {
        Wish::Copy => Question::Copy(target),
        Wish::Rebase => Question::Rebase(target),
    };
    let attached = attach::copier(path, wish, target).map(|link| (String::new(), Ok(link)));
    let mut unasked = None;
    for (pool, link) in attached.into_iter().chain(stats::ask_each(question)) {
        let link = match link {
            Ok(link) if wait_for(link.as_fd(), MINE_TIME_MAX) => link,
            Ok(_) => {
                unasked = Some((pool, Mute::Silent));
                continue;
            }
            Err(mute) => {
                // One that is busy may answer later.
                unasked =
                    unasked.filter(|(_, other)| *other == Mute::Silent).or(Some((pool, mute)));
                continue;
            }
        };
        match tell(&link, Duration::ZERO) {
            Some(Told::Mine) => return Ok(Holder::Has(link)),
            Some(Told::Failed(line)) => return Err(Failure::failed(line)),
            _ => {}
        }
    }
    Ok(unasked.map_or(Holder::Nobody, |(pool, mute)| Holder::Unasked(pool, mute)))
}

/// What a holder says when it was told to do something.
enum Answer {
    Done,
    /// Nothing: it has ended, or the process that served the volume has.
    Ended,
}

/// Waits for the holder's answer. `otherwise`: what its failure means.
fn answer(holder: &Link, path: &Path, otherwise: &str) -> Result<Answer> {
    match tell(holder, DONE_TIME_MAX) {
        Some(Told::Done) => Ok(Answer::Done),
        Some(Told::Failed(line)) => {
            // The process that serves a volume knows no name for it.
            let why = line.strip_prefix("volume: ").unwrap_or(&line);
            Err(Failure::failed(format!("{}: {otherwise}: {why}", path.display())))
        }
        Some(Told::Ended) => Ok(Answer::Ended),
        _ if wait_for(holder.as_fd(), Duration::ZERO) => Ok(Answer::Ended),
        _ => Err(ended(path)),
    }
}

fn ended(path: &Path) -> Failure {
    Failure::failed(format!(
        "{}: the process that has it does not answer, or has ended: try again",
        path.display()
    ))
}

/// Why a volume goes on over its former bases.
struct Kept {
    failure: Failure,
    /// The next try may succeed.
    may_go: bool,
}

impl From<Failure> for Kept {
    fn from(failure: Failure) -> Kept {
        Kept { failure, may_go: true }
    }
}

fn try_rebase(path: &Path) -> std::result::Result<(), Kept> {
    let file = volume::open_to_look(path)?;
    let holder = match holder_of(path, &file, Wish::Rebase)? {
        Holder::Has(holder) => holder,
        Holder::Unasked(pool, mute) if is_in_use(path) => {
            let failure = Failure::failed(format!("{}: {}", path.display(), mute.failure(&pool)));
            return Err(Kept { failure, may_go: mute == Mute::Silent });
        }
        // Or it has another file since just now.
        Holder::Nobody | Holder::Unasked(..) => {
            return match names(path, &file) {
                true => Ok(()),
                false => {
                    Err(Failure::failed(format!("{}: has just been copied", path.display())).into())
                }
            };
        }
    };
    // From here on the volume cannot be copied: what it is on stays.
    let bases = Stack::bases(path, &OwnedFd::from(file), &Sidecar::load(path)?)?;
    let fds: Vec<_> =
        bases.iter().flat_map(|Files { io, plain, lock }| [io, plain, lock]).collect();
    let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
    let sent = holder.send(&Step::Rebase, &fds);
    sent.map_err(|error| Failure::path(path, "talk to the process that has it", error))?;
    match answer(&holder, path, "does not go over to the snapshots that are left")? {
        Answer::Done => Ok(()),
        Answer::Ended => Err(ended(path).into()),
    }
}

/// Whether a process has the volume, which may be the one that cannot be asked.
fn is_in_use(path: &Path) -> bool {
    matches!(image::open(path), Err(ImageError::InUse(_)))
}

/// Whether the path names this file.
fn names(path: &Path, file: impl AsFd) -> bool {
    let target = Target::of(file).ok();
    target.is_some_and(|target| target.is_at(path))
}

fn tell(holder: &Link, limit: Duration) -> Option<Told> {
    wait_for(holder.as_fd(), limit).then(|| holder.receive().ok().flatten())?.map(|(told, _)| told)
}

/// The holder exchanges the names, and goes on over the new file.
impl Exchange for Still {
    fn exchange(&self, from: &Path, base: &Path, top: &Files) -> Result<()> {
        let (volume, base) = (volume::absolute(from)?, volume::absolute(base)?);
        let fds = [top.io.as_fd(), top.plain.as_fd(), top.lock.as_fd()];
        self.say(from, &Step::Exchange { volume, base }, &fds)
    }
}
