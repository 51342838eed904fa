//! Copies of volumes: snapshots and clones that share blocks where the host can.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::file::Files;
use polylane_block::image::{self, Draft, ImageError};
use rustix::io::Errno;

use crate::chain;
use crate::copy::materialize;
use crate::cow::{self, Exchange};
use crate::failure::{Failure, Result};
use crate::holders::{Freeze, Holders, Still};
use crate::host::failure;
use crate::info;
use crate::make::introduce;
use crate::places::resolve;
use crate::sidecar::Sidecar;
use crate::stack::{Shape, Stack};

/// How long a process that no longer serves a volume may have it open, if nothing but that says
/// that it served it: it may as well be a stranger, who keeps it.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(1);

/// How long one may that has ended over the copy.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// Between the first two looks at that; each pause is twice the one before. A look asks every pool
/// and attachment.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The longest of these pauses.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// Processes that may end, one after the other, while the volume that they serve is copied.
const ENDS_MAX: usize = 8;

/// What a copy is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// A state to keep: never opened for writing.
    Snapshot,
    /// A volume of its own.
    Clone,
}

/// Copies a volume, in a moment whatever its size: blocks are shared by the host's file system
/// (FICLONE) where it can, else by copy-on-write of our own. To another file system the data is
/// copied. A volume that a pool or an attachment of this user has open stands still meanwhile.
///
/// # Errors
/// The volume is in use by somebody else, the copy exists, the host is full.
pub fn duplicate(from: &Path, to: &Path, kind: Copy, holders: &dyn Holders) -> Result<()> {
    let from = &resolve(from)?;
    let (mut limit, mut ends) = (LET_GO_TIME_MAX, 0);
    loop {
        match open_free(from, holders, limit, &mut ends)? {
            Opened::Free(own) => return duplicate_free(own, from, to, kind),
            Opened::Still(still) => {
                let frozen = Frozen { still: &*still, is_exchanged: Cell::new(false) };
                match duplicate_still(&frozen, from, to, kind) {
                    Err(_) if frozen.has_ended_before() => count_end(from, &mut ends)?,
                    done => return done,
                }
                limit = END_TIME_MAX;
            }
        }
    }
}

/// One more process ended over the copy.
fn count_end(from: &Path, ends: &mut usize) -> Result<()> {
    *ends += 1;
    match *ends < ENDS_MAX {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: each process that has it ends: try again",
            from.display()
        ))),
    }
}

/// A volume that is to be copied.
enum Opened {
    /// Nobody has it.
    Free(Files),
    /// The process that has it open makes it stand still.
    Still(Box<dyn Still>),
}

/// A volume that stands still, with what has become of its name.
struct Frozen<'a> {
    still: &'a dyn Still,
    /// Its overlay has its name, whatever was said of the exchange.
    is_exchanged: Cell<bool>,
}

impl Frozen<'_> {
    /// Whether its server has ended, and left it as it was.
    fn has_ended_before(&self) -> bool {
        self.still.has_ended() && !self.is_exchanged.get()
    }
}

impl Exchange for Frozen<'_> {
    fn exchange(&self, from: &Path, base: &Path, top: &Files) -> Result<()> {
        let said = self.still.exchange(from, base, top);
        self.is_exchanged.set(cow::names(from, top));
        said
    }
}

/// Opens a volume, or has whoever serves it make it stand still. One whose server ends is free in a
/// moment, for which it is waited up to `limit`; those that end meanwhile are counted.
fn open_free(
    from: &Path,
    holders: &dyn Holders,
    mut limit: Duration,
    ends: &mut usize,
) -> Result<Opened> {
    let (mut since, mut pause) = (Instant::now(), LOOK_AGAIN);
    loop {
        // Before the volume is opened: to ask who has it may take longer than that one does.
        let is_last = since.elapsed() > limit;
        let sidecar = Sidecar::load(from)?;
        let own = match sidecar.snapshot {
            // It does not change, and other volumes may be on it.
            true => image::open_snapshot(from),
            false => image::open(from),
        };
        let error = match own {
            Err(ImageError::InUse(_)) if sidecar.bypass.is_some() => {
                return Err(Failure::failed(format!(
                    "{}: is a bypass volume, which is copied when nobody uses it: end its lane or \
                     detach it first",
                    from.display()
                )));
            }
            Err(error @ ImageError::InUse(_)) => error,
            own => return own.map(Opened::Free).map_err(|error| failure(from, error)),
        };
        match holders.freeze(from)? {
            Freeze::Still(still) => return Ok(Opened::Still(still)),
            Freeze::Ended => {
                count_end(from, ends)?;
                (since, limit) = (Instant::now(), END_TIME_MAX);
            }
            Freeze::Nobody if is_last => return Err(failure(from, error)),
            Freeze::Nobody => {}
        }
        thread::sleep(pause);
        pause = LOOK_AGAIN_MAX.min(pause * 2);
    }
}

/// Copies a volume that nobody has.
fn duplicate_free(own: Files, from: &Path, to: &Path, kind: Copy) -> Result<()> {
    let mut stack = Stack::from_own(from, own)?;
    identify(from, &mut stack.sidecar)?;
    chain::tidy(from, &stack.files[0].plain, &mut stack.sidecar)?;
    let sidecar = stack.sidecar.clone();
    rustix::fs::fsync(&stack.files[0].plain)
        .map_err(|error| Failure::path(from, "sync it", error))?;
    if stack.pinned.is_some() {
        // Its blocks are nobody's to share: the copy is a file, and holds all of it.
        let draft = Draft::new(to, stack.size).map_err(|error| failure(to, error))?;
        materialize(from, stack, draft.file(), to)?;
        return finish_copy(draft, to, &sidecar, kind);
    }
    if stack.is_raw() {
        let draft = Draft::new(to, stack.size).map_err(|error| failure(to, error))?;
        if share_blocks(&stack.files[0].plain, &draft, to)? {
            return finish_copy(draft, to, &sidecar, kind);
        }
    }
    let shape = stack.shape();
    match (kind, sidecar.snapshot) {
        (Copy::Snapshot, false) => cow::snapshot(from, &shape, to, &cow::Closed),
        (Copy::Clone, _) => cow::clone(from, shape, to, &cow::Closed),
        (Copy::Snapshot, true) => {
            Err(Failure::failed(format!("{}: is a snapshot already", from.display())))
        }
    }
}

/// Copies a volume that stands still: by sharing the blocks where the host's file system can; else
/// by an overlay, over which its user goes on while its former file stays as it is.
///
/// # Errors
/// The copy exists, the host is full, it took too long.
fn duplicate_still(frozen: &Frozen<'_>, from: &Path, to: &Path, kind: Copy) -> Result<()> {
    let file = info::open_to_look(from)?;
    let mut shape = Shape::of(from, &file)?;
    identify(from, &mut shape.sidecar)?;
    chain::tidy(from, &file, &mut shape.sidecar)?;
    if shape.depth == 0 {
        let draft = Draft::new(to, shape.size).map_err(|error| failure(to, error))?;
        if share_blocks(&file, &draft, to)? {
            // Not before it is certain that nothing was written meanwhile.
            frozen.still.thaw(from)?;
            return finish_copy(draft, to, &shape.sidecar, kind);
        }
    }
    match kind {
        Copy::Snapshot => cow::snapshot(from, &shape, to, frozen),
        Copy::Clone => cow::clone(from, shape, to, frozen),
    }
}

/// Gives a volume an id that polylane did not make: a copy names what it is of.
fn identify(path: &Path, sidecar: &mut Sidecar) -> Result<()> {
    if sidecar.id.is_empty() {
        sidecar.id = Sidecar::fresh_id()?;
        sidecar.store(path)?;
    }
    Ok(())
}

/// Fills a draft with the blocks of a file, without copying them; whether the host can.
fn share_blocks(from: impl AsFd, draft: &Draft, to: &Path) -> Result<bool> {
    match rustix::fs::ioctl_ficlone(draft.file(), from) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => Ok(false),
        Err(error) => Err(Failure::path(to, "share the blocks", error)),
    }
}

/// Publishes a copy that has all its blocks.
fn finish_copy(draft: Draft, to: &Path, of: &Sidecar, kind: Copy) -> Result<()> {
    let copy = Sidecar {
        parent: Some(of.id.clone()),
        formatted: of.formatted.clone(),
        snapshot: kind == Copy::Snapshot,
        weight: of.weight,
        ..Sidecar::new()?
    };
    introduce(draft, to, &copy).map(drop)
}

#[cfg(test)]
mod tests;
