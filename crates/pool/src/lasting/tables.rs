//! The mount tables of all of a user's pools, under one lock.
//!
//! A mount path is unique over all pools, so they are looked at together. The lock is an flock(2)
//! of a file in the run-time directory, held for the length of a few file operations. Others cannot
//! open the file, and so not lock it; the directory may have been open to them once.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::places::{self, Sight, Views};
use super::table::{Entry, Table};
use super::{point, unserved};
use crate::failure::{Failure, Result};
use crate::names::{self, PoolName, ensure_private_dir, is_still};
use crate::timely;

/// The file whose lock is that of all tables. No pool has such a name.
const LOCK_FILE: &str = ".tables";

/// How long other commands may hold the lock, one after the other: a hundred that start at a time
/// on a busy host are done sooner. One that was stopped (Ctrl-Z) holds it for longer.
const LOCK_TIME_MAX: Duration = Duration::from_secs(30);

/// How long the mount of a dead lane may take to be taken away.
const DETACH_TIME_MAX: Duration = Duration::from_secs(1);

/// The same where that of another lane took too long.
const LATER_TIME_MAX: Duration = Duration::from_millis(100);

/// A mount and the pool that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    /// The pool's name.
    pub(crate) pool: String,
    /// Its entry in the pool's table.
    pub(crate) entry: Entry,
}

impl Mount {
    /// The name of the lane, which its supervisor holds.
    pub(crate) fn lane(&self) -> String {
        names::lane_name(&self.pool, self.entry.service)
    }
}

/// A lane as its own processes know it: its number alone may be another lane's by now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LaneOwner {
    /// The pool's name.
    pub(crate) pool: String,
    /// The number of its service.
    pub(crate) service: u32,
    /// Its supervisor's process.
    pub(crate) supervisor: u32,
}

impl LaneOwner {
    /// Of the lane that has this entry.
    pub(crate) fn of(pool: &str, entry: &Entry) -> LaneOwner {
        let Entry { service, supervisor, .. } = *entry;
        LaneOwner { pool: pool.to_string(), service, supervisor }
    }
}

/// Takes a dead lane's mount away; whether that is done. The directories above it may be of a file
/// system that does not answer, and who waits for it holds the tables.
fn detached(entry: &Entry, is_served: impl FnOnce() -> bool, limit: Duration) -> bool {
    if places::mount_of(entry).is_none() {
        return true;
    }
    let (entry, is_served) = (entry.clone(), is_served());
    let done = timely::within(limit, move || {
        unserved::detach(&entry, is_served);
        Ok(())
    });
    done != Err(polylane_base::Errno::ETIMEDOUT)
}

/// The lock of a file in the run-time directory. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

impl Lock {
    /// Locks the file of that name in the run-time directory `dir`, which is made.
    ///
    /// # Errors
    /// One line when the directory cannot be used, or another command holds the lock for long.
    pub(super) fn take(dir: &Path, name: String) -> Result<Lock> {
        let (start, path) = (Instant::now(), dir.join(name));
        let failed = |error: Errno| Failure::path(&path, "lock it", error);
        while start.elapsed() < LOCK_TIME_MAX {
            ensure_private_dir(dir)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                // The last holder of a name removed it.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error)),
            };
            // No thread waits for it in flock(2): who holds it forks.
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_still(&path, &file) => return Ok(Lock { path, _file: file }),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failure::failed(format!(
            "{}: other polylane commands hold it for {} s: end a stopped one",
            path.display(),
            LOCK_TIME_MAX.as_secs()
        )))
    }
}

impl Drop for Lock {
    /// The file goes before it is unlocked, and the directory with its last file, as for names.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// All tables, locked. Dropped, they are unlocked.
#[derive(Debug)]
pub(crate) struct Tables {
    dir: PathBuf,
    _lock: Lock,
}

impl Tables {
    /// Locks the tables of the run-time directory `dir`, which is made.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(crate) fn lock(dir: &Path) -> Result<Tables> {
        let lock = Lock::take(dir, LOCK_FILE.to_string())?;
        Ok(Tables { dir: dir.to_path_buf(), _lock: lock })
    }

    /// The pools that have tables.
    fn pools(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut pools: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".table").map(str::to_string)).collect();
        pools.sort();
        pools
    }

    fn table(&self, pool: &str) -> Result<Option<Table>> {
        Table::open(&Table::path(&self.dir, pool))
    }

    /// All mounts, by pool, service and instance.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) fn all(&self) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for pool in self.pools() {
            let Some(table) = self.table(&pool)? else { continue };
            let of_pool = |entry| Mount { pool: pool.clone(), entry };
            mounts.extend(table.entries().into_iter().map(of_pool));
        }
        Ok(mounts)
    }

    /// Removes what dead supervisors left: mounts, entries, files. The mounts that are gone so; the
    /// services of their lanes may still be writing back (`orphans`).
    ///
    /// # Errors
    /// As [`all`](Tables::all).
    pub(crate) fn clear_dead(&self) -> Result<Vec<Mount>> {
        let (mut dead, mut views, mut limit) = (Vec::new(), Views::default(), DETACH_TIME_MAX);
        let mut served = HashMap::new();
        for mount in self.all()? {
            let Ok(left) = PoolName::take_over(&self.dir, &mount.lane()) else {
                // Of a lane that lives, an instance that another unmounted, or that a killed
                // command did not get as far as to mount.
                if mount.entry.instance > 0 && views.now_at(&mount.entry) == Sight::Gone {
                    self.remove(&mount.pool, &mount.entry.path)?;
                }
                continue;
            };
            let has_service = |lane: &String| unserved::has_service(lane);
            let is_served = || *served.entry(mount.lane()).or_insert_with_key(has_service);
            if !detached(&mount.entry, is_served, limit) {
                // The next command tries again.
                limit = LATER_TIME_MAX;
                continue;
            }
            self.remove(&mount.pool, &mount.entry.path)?;
            if let Some(name) = left {
                name.remove_files();
            }
            dead.push(mount);
        }
        Ok(dead)
    }

    /// The mount at the longest prefix of `path` in a pool.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn longest(&self, pool: &str, path: &[u8]) -> Result<Option<Entry>> {
        Ok(self.table(pool)?.and_then(|table| table.find_longest(path)))
    }

    /// The mount at exactly this path, in whichever pool.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Mount>> {
        for pool in self.pools() {
            if let Some(entry) = self.table(&pool)?.and_then(|table| table.find(path)) {
                return Ok(Some(Mount { pool, entry }));
            }
        }
        Ok(None)
    }

    /// The mounts of one service, by instance.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn of_service(&self, pool: &str, service: u32) -> Result<Vec<Entry>> {
        let mut entries = self.table(pool)?.map(|table| table.entries()).unwrap_or_default();
        entries.retain(|entry| entry.service == service);
        Ok(entries)
    }

    /// The mounts of one lane, by instance. Lanes that had its number before are not among them: a
    /// number is free once its supervisor is dead, and its entries may be there for longer.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn of_lane(&self, owner: &LaneOwner) -> Result<Vec<Entry>> {
        let mut entries = self.of_service(&owner.pool, owner.service)?;
        entries.retain(|entry| entry.supervisor == owner.supervisor);
        Ok(entries)
    }

    /// Removes what earlier lanes left under the name of one whose name the caller has just taken;
    /// whether there was anything.
    ///
    /// # Errors
    /// The table cannot be read or written.
    pub(crate) fn clear_service(&self, pool: &str, service: u32) -> Result<bool> {
        let left = self.of_service(pool, service)?;
        let is_served = !left.is_empty() && unserved::has_service(&names::lane_name(pool, service));
        for entry in left.iter().rev() {
            unserved::detach(entry, is_served);
            self.remove(pool, &entry.path)?;
        }
        Ok(!left.is_empty())
    }

    /// Puts a mount in, in place of one at the same path.
    ///
    /// # Errors
    /// See [`Table::put`].
    pub(crate) fn put(&self, pool: &str, entry: &Entry) -> Result<()> {
        Table::open_or_make(&Table::path(&self.dir, pool))?.put(entry)
    }

    /// Notes that the mount of an entry was taken away, while the entry stays until its lane has
    /// ended: the kernel gives its numbers to the next mount, which may be another lane's.
    ///
    /// # Errors
    /// See [`Table::put`].
    pub(crate) fn is_gone(&self, pool: &str, entry: &Entry) -> Result<()> {
        self.put(pool, &Entry { device: 0, mount: 0, ..entry.clone() })
    }

    /// Takes the mount at `path` out.
    ///
    /// # Errors
    /// The table cannot be read or written.
    pub(crate) fn remove(&self, pool: &str, path: &[u8]) -> Result<()> {
        match self.table(pool)? {
            Some(table) => table.remove(path),
            None => Ok(()),
        }
    }
}

/// Takes all mounts of a lane away, the later instances first. The tables stay locked until their
/// entries say so: the kernel gives a path and a device number to the next mount once they are
/// free.
pub(crate) fn detach_all(dir: &Path, owner: &LaneOwner) {
    let Ok(tables) = Tables::lock(dir) else { return };
    for entry in tables.of_lane(owner).unwrap_or_default().iter().rev() {
        point::detach(entry);
        let _ = tables.is_gone(&owner.pool, entry);
    }
}

/// Takes all mounts of a further lane away that its service has lost, with their entries. One that
/// cannot be taken away in time keeps its entry.
pub(crate) fn detach_lost(dir: &Path, owner: &LaneOwner, id: u32) {
    let Ok(tables) = Tables::lock(dir) else { return };
    let mut entries = tables.of_lane(owner).unwrap_or_default();
    entries.retain(|entry| entry.instance > 0 && entry.id == id);
    // A process that waits for it has an error at once, also where its thread only comes up late.
    for entry in entries.iter().rev().filter(|entry| detached(entry, || false, DETACH_TIME_MAX)) {
        let _ = tables.remove(&owner.pool, &entry.path);
    }
}

/// Takes away what a dead lane still has in this mount namespace after a command in another one has
/// taken its entries out: all mounts of its device, unless that is another lane's by now.
pub(crate) fn detach_device(dir: &Path, device: u64) {
    let Ok(tables) = Tables::lock(dir) else { return };
    let is_free = |all: Vec<Mount>| all.iter().all(|mount| mount.entry.device != device);
    if tables.all().is_ok_and(is_free) {
        point::detach_device(device);
    }
}

/// Takes all entries of a lane out of its pool's table.
pub(crate) fn forget(dir: &Path, owner: &LaneOwner) {
    let Ok(tables) = Tables::lock(dir) else { return };
    for entry in tables.of_lane(owner).unwrap_or_default() {
        let _ = tables.remove(&owner.pool, &entry.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, service: u32) -> Entry {
        Entry { path: path.into(), service, count: 1, ..Entry::default() }
    }

    #[test]
    fn what_dead_supervisors_left_is_removed_and_what_lives_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let alive = PoolName::take_lane(&dir, "web").expect("a lane");
        let tables = Tables::lock(&dir).expect("lock");
        tables.put("web", &entry("/m/alive", 1)).expect("put");
        tables.put("web", &entry("/m/dead", 2)).expect("put");
        tables.put("db", &entry("/m/killed", 1)).expect("put");
        // A killed supervisor leaves its lock's file behind.
        drop(PoolName::take_lane(&dir, "db").expect("a lane"));
        let paths = |mounts: Vec<Mount>| {
            mounts.into_iter().map(|mount| mount.entry.path).collect::<Vec<_>>()
        };
        let expected: [&[u8]; 3] = [b"/m/killed", b"/m/alive", b"/m/dead"];
        assert_eq!(paths(tables.all().expect("all")), expected);
        let cleared = tables.clear_dead().expect("clear");
        assert_eq!(cleared.iter().map(Mount::lane).collect::<Vec<_>>(), ["db@1", "web@2"]);
        assert_eq!(paths(tables.all().expect("all")), [b"/m/alive"], "the others are removed");
        assert!(!dir.join("db@1.lock").exists() && !dir.join("db.table").exists());
        assert_eq!(tables.find(b"/m/alive").expect("find").map(|m| m.lane()), Some("web@1".into()));
        tables.remove("web", b"/m/alive").expect("remove");
        drop(tables);
        alive.remove_files();
        assert!(!dir.exists(), "the directory goes with its last file");
    }

    /// A supervisor that is killed loses its namespaces before its lock: what its lane shares would
    /// stay mounted for good without its entry.
    #[test]
    fn an_instance_is_removed_where_it_is_seen_to_be_gone_and_not_where_nothing_is_seen() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let alive = PoolName::take_lane(&dir, "web").expect("a lane");
        let tables = Tables::lock(&dir).expect("lock");
        let own = std::process::id();
        for (path, supervisor) in [("/m/gone", own), ("/m/unknown", u32::MAX)] {
            let entry = Entry { instance: 1, supervisor, ..entry(path, 1) };
            tables.put("web", &entry).expect("put");
        }
        assert_eq!(tables.clear_dead(), Ok(Vec::new()), "the lane lives");
        let left: Vec<_> = tables.all().expect("all").into_iter().map(|m| m.entry.path).collect();
        assert_eq!(left, [b"/m/unknown"]);
        drop((tables, alive));
    }

    #[test]
    fn a_mount_that_was_taken_away_is_none_of_the_next_of_its_numbers() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tables = Tables::lock(&dir.path().join("run")).expect("lock");
        let former = Entry { device: 60, mount: 100, ..entry("/m/a", 1) };
        tables.put("web", &former).expect("put");
        tables.is_gone("web", &former).expect("noted");
        let now = tables.find(b"/m/a").expect("find").expect("an entry until its lane has ended");
        assert_eq!((now.entry.device, now.entry.mount), (0, 0));
        assert_eq!(now.entry, Entry { device: 0, mount: 0, ..former });
        tables.remove("web", b"/m/a").expect("remove");
    }

    #[test]
    fn a_lane_forgets_its_own_entries_and_none_of_the_next_lane_of_its_number() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let by = |path: &str, service, supervisor| Entry { supervisor, ..entry(path, service) };
        let put = |entries: &[Entry]| {
            let tables = Tables::lock(&dir).expect("lock");
            entries.iter().for_each(|entry| tables.put("web", entry).expect("put"));
        };
        let all = || {
            let mounts = Tables::lock(&dir).and_then(|tables| tables.all()).expect("all");
            mounts.into_iter().map(|mount| mount.entry).collect::<Vec<_>>()
        };
        let old = [by("/m/old", 1, 10), by("/m/both", 1, 10), by("/m/other", 2, 11)];
        let new = by("/m/both", 1, 12);
        put(&old);
        put(std::slice::from_ref(&new));
        let owner = LaneOwner::of("web", &old[0]);
        detach_all(&dir, &owner);
        forget(&dir, &owner);
        assert_eq!(all(), [new.clone(), old[2].clone()], "the next lane's entry stays");
        forget(&dir, &LaneOwner { pool: "db".into(), ..LaneOwner::of("web", &new) });
        assert_eq!(all().len(), 2, "another pool's");
        let tables = Tables::lock(&dir).expect("lock");
        assert_eq!(tables.clear_service("web", 1), Ok(true));
        assert_eq!(tables.clear_service("web", 1), Ok(false));
        drop(tables);
        assert_eq!(all(), [old[2].clone()]);
    }

    #[test]
    fn one_command_at_a_time_holds_the_tables() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let held = Tables::lock(&dir).expect("lock");
        // Another user who had the directory open once.
        let opened = fs::File::open(&dir).expect("open");
        rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).expect("flock");
        let waiting = {
            let dir = dir.clone();
            std::thread::spawn(move || Tables::lock(&dir).map(drop))
        };
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(held);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    }
}
