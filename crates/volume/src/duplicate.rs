//! Copies of volumes: snapshots and clones that share blocks where the host can.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::file::Files;
use polylane_block::image::{self, Draft, ImageError};
use rustix::io::Errno;

use crate::chain;
use crate::copy::materialize;
use crate::cow;
use crate::failure::{Failure, Result};
use crate::holders::{Freeze, Holders, Still};
use crate::host::failure;
use crate::info;
use crate::make::introduce;
use crate::places::resolve;
use crate::sidecar::Sidecar;
use crate::stack::{Shape, Stack};

/// How long a process that no longer serves a volume may have it open.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(1);

/// Between two looks at that.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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
    for _ in 0..ENDS_MAX {
        match open_free(from, holders)? {
            Opened::Free(own) => return duplicate_free(own, from, to, kind),
            Opened::Still(still) => match duplicate_still(&*still, from, to, kind) {
                Err(_) if still.has_ended() => {}
                done => return done,
            },
        }
    }
    Err(Failure::failed(format!("{}: each process that has it ends: try again", from.display())))
}

/// A volume that is to be copied.
enum Opened {
    /// Nobody has it.
    Free(Files),
    /// Who has it makes it stand still.
    Still(Box<dyn Still>),
}

/// Opens a volume, or has whoever serves it make it stand still. One whose server ends is free in a
/// moment.
fn open_free(from: &Path, holders: &dyn Holders) -> Result<Opened> {
    let mut since = Instant::now();
    loop {
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
            Freeze::Ended => since = Instant::now(),
            Freeze::Nobody if since.elapsed() > LET_GO_TIME_MAX => {
                return Err(failure(from, error));
            }
            Freeze::Nobody => {}
        }
        thread::sleep(LOOK_AGAIN);
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
fn duplicate_still(still: &dyn Still, from: &Path, to: &Path, kind: Copy) -> Result<()> {
    let file = info::open_to_look(from)?;
    let mut shape = Shape::of(from, &file)?;
    identify(from, &mut shape.sidecar)?;
    chain::tidy(from, &file, &mut shape.sidecar)?;
    if shape.depth == 0 {
        let draft = Draft::new(to, shape.size).map_err(|error| failure(to, error))?;
        if share_blocks(&file, &draft, to)? {
            // Not before it is certain that nothing was written meanwhile.
            still.thaw(from)?;
            return finish_copy(draft, to, &shape.sidecar, kind);
        }
    }
    match kind {
        Copy::Snapshot => cow::snapshot(from, &shape, to, still),
        Copy::Clone => cow::clone(from, shape, to, still),
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
