//! Volumes of another engine's containers: they stay while the engine has the container.
//!
//! An engine has the runtime delete a container at each stop, and make it again at each start. So a
//! volume that goes with the container outlives `delete` ([`end`]); the next `create` takes it up
//! ([`take_up`]), and commands remove those whose containers are gone ([`sweep`]). Where that is in
//! doubt nothing is removed.
//!
//! # Invariants
//!
//! - `upper.img` is of the container that `holder.json` tells. It is removed before another one is
//!   told. Without `holder.json` it is nobody's.
//! - `config.json` is there from before the runtime makes a container until it has deleted it. A
//!   directory without it that no command holds is of a container that does not run. So is one with
//!   it, where [`has_ended`](made::has_ended) says so, or the engine has the container no more and
//!   none of its lanes is mounted: the host went down.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_base::shown::Shown;
use polylane_pool::failure::{Failure, Result, say};
use polylane_pool::{lasting, mounted_at, within};
use rustix::fs::FlockOperation;

use crate::holder::{Holder, Known};
use crate::made;
use crate::place::{CONFIG, Lock, Place, UPPER};

/// The file that tells by which directory the engine has the container.
const HOLDER: &str = "holder.json";

/// At how many containers a command looks for what is to be removed.
const SWEPT_MAX: usize = 256;

/// How long a command waits for what is removed: engines' directories, and lanes of containers that
/// are gone, may be slow or not answer.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(2);

/// The directory of all containers of other engines.
pub(crate) fn all_dir() -> Result<PathBuf> {
    Ok(polylane_volume::state_dir()?.join("oci"))
}

/// Before lanes are mounted: leaves no volume but that of the container that `holder` tells.
///
/// # Errors
/// One line: the volume is another container's, which the engine has, or of which nothing is known.
pub(crate) fn take_up(place: &Place, _held: &Lock, holder: Option<&Holder>) -> Result<()> {
    let former = place.read::<Holder>(HOLDER)?;
    if former.as_ref() == holder && holder.is_some() {
        return Ok(());
    }
    let is_same = former.as_ref().zip(holder).is_some_and(|(former, now)| former.is_same(now));
    if !is_same {
        let why = match former.map_or(Known::Gone, |former| former.known()) {
            Known::Gone => None,
            Known::Here => Some("which its engine still has"),
            Known::Nothing => {
                Some("whose engine kept it in directories that are elsewhere now, or do not answer")
            }
        };
        let upper = place.file(UPPER);
        if let Some(why) = why.filter(|_| may_exist(&upper)) {
            return Err(Failure::failed(format!(
                "{}: what a container of this name changed, {why}: remove it to begin without",
                Shown::new(&upper)
            )));
        }
        remove_upper(place)?;
    }
    match holder {
        Some(holder) => place.write(HOLDER, holder),
        None => place.remove_file(HOLDER),
    }
}

/// Removes the volume; what is written afterwards is not durable before that is.
fn remove_upper(place: &Place) -> Result<()> {
    let failed = |error| Failure::path(place.dir(), "remove a volume in it", error);
    place.remove_volume()?;
    for entry in fs::read_dir(place.dir()).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if is_upper(&name) {
            fs::remove_file(place.dir().join(&name)).map_err(failed)?;
        }
    }
    File::open(place.dir()).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Whether a file is the volume, or lies beside it as a part of it.
fn is_upper(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(UPPER.as_bytes())
}

/// Whether a file is there, or that cannot be told.
fn may_exist(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// Where a container's lanes are mounted.
fn lanes(place: &Place) -> Vec<PathBuf> {
    let mut all = vec![place.root()];
    let mounts = fs::read_dir(place.file("mounts")).into_iter().flatten().flatten();
    all.extend(mounts.map(|entry| entry.path()));
    all
}

/// Unmounts a container's lanes.
///
/// # Errors
/// One line: not everything of one could be written back, which stays mounted then.
pub(crate) fn unmount(place: &Place) -> Result<()> {
    let all = lanes(place);
    let unmounted: Vec<_> = all.iter().filter(|at| at.exists()).map(|at| unmount_one(at)).collect();
    unmounted.into_iter().collect()
}

fn unmount_one(at: &Path) -> Result<()> {
    if let Some(was_in_the_way) =
        lasting::umount_all_losslessly(at).map_err(|stays| stays.failure)?
    {
        say(&was_in_the_way);
    }
    Ok(())
}

/// After the runtime's container has ended: unmounts its lanes and removes its files. The volume
/// stays, unless the engine has the container no more.
pub(crate) fn end(place: &Place, _held: &Lock) -> Result<()> {
    let ended = place.remove_file(CONFIG);
    unmount(place)?;
    ended?;
    match is_kept(place) {
        true => place.remove_but(|name| name == HOLDER || is_upper(name)),
        false => place.remove(),
    }
}

/// Whether there is a volume whose container the engine may still have.
fn is_kept(place: &Place) -> bool {
    let may_be = match place.read::<Holder>(HOLDER) {
        Ok(holder) => holder.is_some_and(|holder| holder.known() != Known::Gone),
        // Of a later version, or a medium that fails.
        Err(_) => true,
    };
    may_be && may_exist(&place.file(UPPER))
}

/// Whether the engine has the container no more.
fn is_gone(place: &Place) -> bool {
    let holder = place.read::<Holder>(HOLDER).ok().flatten();
    holder.is_some_and(|holder| holder.known() == Known::Gone)
}

/// Whether a lane of it is mounted, or that cannot be told.
fn has_lanes(place: &Place) -> bool {
    !lanes(place).iter().all(|at| matches!(mounted_at(at), Ok(None)))
}

/// Removes volumes of containers that their engines have no more, and what killed commands left: in
/// a process of its own, for a limited time.
///
/// # Errors
/// One line: the directory of containers cannot be told. What cannot be removed stays for the next
/// command.
pub fn sweep() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let all = all_dir()?;
    if all.exists() {
        let _ = within(SWEEP_TIME_MAX, move || clear_all(&all));
    }
    Ok(())
}

/// Looks at containers of all engines. One process does at a time: where one cannot be ended there
/// are no more of them.
fn clear_all(all: &Path) -> rustix::io::Result<()> {
    let only = File::open(all).map_err(|_| rustix::io::Errno::IO)?;
    rustix::fs::flock(&only, FlockOperation::NonBlockingLockExclusive)?;
    let engines = fs::read_dir(all).into_iter().flatten().flatten();
    let ids =
        engines.flat_map(|engine| fs::read_dir(engine.path()).into_iter().flatten().flatten());
    let mut all: Vec<PathBuf> = ids.map(|entry| entry.path()).collect();
    // The next command, of another number, begins elsewhere.
    let number = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() as usize;
    let begin = number.checked_rem(all.len()).unwrap_or(0);
    all.rotate_left(begin);
    for dir in all.into_iter().take(SWEPT_MAX) {
        let place = Place::at(dir);
        let _ = clear_gone(&place);
    }
    Ok(())
}

/// Removes a container's files, if there is no such container.
fn clear_gone(place: &Place) -> Result<()> {
    let is_left = || match may_exist(&place.file(CONFIG)) {
        false => !is_kept(place),
        true => made::has_ended(place) || is_gone(place) && !has_lanes(place),
    };
    if !is_left() {
        return Ok(());
    }
    match place.try_lock_dir()? {
        // It may have been made meanwhile.
        Some(lock) if is_left() => end(place, &lock),
        _ => Ok(()),
    }
}
