//! Taking mounts away with their entries.

use std::os::fd::OwnedFd;
use std::path::Path;

use polylane_sys::mount::MountId;
use rustix::io::Errno;

use super::{LaneOwner, Tables, with_roots};
use crate::failure::Result;
use crate::lasting::elsewhere::{self, Sighting};
use crate::lasting::table::Entry;
use crate::lasting::{point, unserved};
use crate::mountinfo::{self, Seen};

/// Processes through whose root directories one mount is looked for: its user chooses how many see
/// it.
const VIEWS_MAX: usize = 4;

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

impl Tables {
    /// Takes the mount of a dead lane's entry away, in whichever mount namespace it is, with copies
    /// at its path in this one; whether the entry is needed no more. The lane's connection to the
    /// kernel ends with it unless the lane still has a service: copies elsewhere give errors.
    ///
    /// The kernel gives the numbers of a mount and of a device that are gone to the next ones, and
    /// those may be a living lane's. So a connection ends only where the very mount was found: as
    /// long as its root is open its device's number is no other file system's.
    pub(super) fn detach_dead(&self, entry: &Entry, is_served: impl FnOnce() -> bool) -> bool {
        if entry.device == 0 {
            return true;
        }
        let is_it = |seen: &Seen| seen.id == u64::from(entry.mount) && is_of_device(seen, entry);
        let all = mountinfo::seen();
        let copies = copies_of(entry, &all);
        let sightings: Vec<_> = match all.iter().find(|seen| is_it(seen)) {
            Some(own) => vec![Sighting::own(own)],
            None => {
                let all = self.elsewhere.get_or_init(elsewhere::sightings).iter();
                all.filter(|one| is_it(&one.seen)).take(VIEWS_MAX).cloned().collect()
            }
        };
        let mut is_later = false;
        for one in &sightings {
            match self.root_of(one) {
                Ok(root) if is_mount_of(entry, one, &root) => {
                    return self.end_dead(entry, (one, root), &copies, is_served);
                }
                // Its numbers are another mount's by now.
                Ok(_) => {}
                Err(error) => is_later |= !says_gone(error),
            }
        }
        if is_later || copies.is_empty() {
            return !is_later;
        }
        let is_others = |mount: &super::Mount| {
            mount.entry.device == entry.device && mount.entry.supervisor != entry.supervisor
        };
        let is_known = self.all().is_ok_and(|all| !all.iter().any(is_others));
        !is_known || self.detach_copies(&copies)
    }

    /// Ends the mount of a dead lane that was found, with this root, and then these copies.
    fn end_dead(
        &self,
        entry: &Entry,
        (one, root): (&Sighting, OwnedFd),
        copies: &[&Seen],
        is_served: impl FnOnce() -> bool,
    ) -> bool {
        let is_served = !one.seen.is_lane() || is_served();
        let detached = match one.by {
            None => point::detach(&root),
            Some(by) => elsewhere::detach(by, &root),
        };
        let mut done = detached.map_or_else(says_gone, |()| true);
        // Open until the tables are not locked any more.
        self.gone.borrow_mut().push(root);
        done &= self.detach_copies(copies);
        if !is_served && let Ok(connection) = unserved::Connection::of(entry.device) {
            connection.end();
        }
        done
    }

    /// Takes copies away; whether nothing is left of them.
    fn detach_copies(&self, copies: &[&Seen]) -> bool {
        copies.iter().all(|seen| self.detach_seen(seen).unwrap_or(true))
    }
}

/// What of these mounts is of the device of an entry at its path, besides its own mount: the
/// uppermost first.
fn copies_of<'a>(entry: &Entry, all: &'a [Seen]) -> Vec<&'a Seen> {
    let is_it = |seen: &&Seen| {
        seen.place == entry.path && seen.id != u64::from(entry.mount) && is_of_device(seen, entry)
    };
    all.iter().rev().filter(is_it).collect()
}

fn is_of_device(seen: &Seen, entry: &Entry) -> bool {
    seen.device == entry.device && seen.kind.starts_with("fuse")
}

/// Whether the mount with this root, whose number and device are an entry's, is the entry's: by the
/// number that no other mount has, where both are known. Elsewhere it has to be at its path else.
fn is_mount_of(entry: &Entry, one: &Sighting, root: &OwnedFd) -> bool {
    match MountId::of(root) {
        Ok(id) if entry.unique != 0 => id.number() == entry.unique,
        _ => one.by.is_none() || one.seen.place == entry.path,
    }
}

/// Whether an error says that a mount is not there any more, or below another one.
pub(super) fn says_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::INVAL | Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_mount_is_an_entrys_by_the_number_that_no_other_has_and_by_its_path_where_that_is_unknown()
    {
        let root = OwnedFd::from(File::open("/proc").expect("/proc"));
        let seen = mountinfo::seen().into_iter().find(|seen| seen.place == b"/proc");
        let own = Sighting::own(&seen.expect("a mount"));
        let other = Sighting { by: Some(1), ..own.clone() };
        let is = |unique, path: &[u8]| {
            let entry = Entry { unique, path: path.to_vec(), ..Entry::default() };
            [&own, &other].map(|one| is_mount_of(&entry, one, &root))
        };
        assert_eq!(is(0, b"/proc"), [true, true]);
        assert_eq!(is(0, b"/m"), [true, false]);
        let Ok(id) = MountId::of(&root) else {
            return println!("skipped: numbers that no other mount has: Linux 6.8");
        };
        assert_eq!(is(id.number(), b"/m"), [true, true]);
        assert_eq!(is(id.number() + 1, b"/proc"), [false, false]);
    }
}
