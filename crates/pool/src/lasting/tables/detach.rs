//! Taking mounts away with their entries.

use std::path::Path;

use super::{LaneOwner, Tables, with_roots};
use crate::failure::Result;
use crate::lasting::table::Entry;
use crate::mountinfo::{self, Seen};

/// What becomes of the entry of a mount that was taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// It stays until its lane has ended.
    Stays,
    /// It goes.
    Goes,
}

/// Takes mounts of a pool away, in use or not, the later instances first; whether all are. The
/// tables stay locked until their entries say so: the kernel gives a path and a device number to
/// the next mount once they are free.
///
/// # Errors
/// The table cannot be read or written.
pub(crate) fn detach_those(
    dir: &Path,
    pool: &str,
    those: impl Fn(&Tables) -> Result<Vec<Entry>>,
    after: After,
) -> Result<bool> {
    let mut all = true;
    with_roots(dir, |tables| {
        all = true;
        for entry in those(tables)?.iter().rev() {
            match (tables.detach(entry), after) {
                (false, _) => all = false,
                (true, After::Stays) => tables.is_gone(pool, entry)?,
                (true, After::Goes) => tables.remove(pool, &entry.path)?,
            }
        }
        Ok(())
    })?;
    Ok(all)
}

/// Takes all mounts of a lane away.
pub(crate) fn detach_all(dir: &Path, owner: &LaneOwner) {
    let _ = detach_those(dir, &owner.pool, |tables| tables.of_lane(owner), After::Stays);
}

/// Takes all mounts of a further lane away that its service has lost, with their entries. One that
/// cannot be taken away in time keeps its entry.
pub(crate) fn detach_lost(dir: &Path, owner: &LaneOwner, id: u32) {
    let _ = with_roots(dir, |tables| {
        let mut entries = tables.of_lane(owner)?;
        entries.retain(|entry| entry.instance > 0 && entry.id == id);
        for entry in entries.iter().rev() {
            // A process that waits for it has an error at once, also where its thread only comes
            // up late.
            if tables.detach_dead(entry, || false) {
                tables.remove(&owner.pool, &entry.path)?;
            }
        }
        Ok(())
    });
}

/// Takes away what a dead lane still has in this mount namespace after a command in another one has
/// taken its entries out: all mounts of its device, unless that is another lane's by now.
pub(crate) fn detach_device(dir: &Path, device: u64) {
    let _ = with_roots(dir, |tables| {
        let is_others = tables.all()?.iter().any(|mount| mount.entry.device == device);
        if is_others || tables.unreadable().next().is_some() {
            return Ok(());
        }
        let is_it = |seen: &&Seen| seen.device == device && seen.is_lane();
        for seen in mountinfo::seen().iter().rev().filter(is_it) {
            tables.detach_seen(seen);
        }
        Ok(())
    });
}
