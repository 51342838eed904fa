//! The mount tables of all of a user's pools, under one lock.
//!
//! A mount path is unique over all pools, so they are looked at together. The lock is an flock(2)
//! of a file in the run-time directory, held for the length of a few file operations. Others cannot
//! open the file, and so not lock it; the directory may have been open to them once.
//!
//! # Locking
//!
//! Path → tables. The lock of a path is held by a command that mounts or unmounts there, which may
//! wait for the file system that the path is in, and for the lane's. Under the lock of the tables
//! nothing is asked of a file system that a tenant serves: a mount is taken away by its root. Its
//! root is found by what the kernel has in memory, else before the lock, for a limited time
//! ([`with_roots`]). What may wait for a lane at its close is closed after the lock.

mod detach;

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_base::shown::Shown;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::elsewhere::Sighting;
use super::lock::{Lock, PATH_LOCKS, path_lock};
use super::places::{self, Sight, Views};
use super::point::{self, Point};
use super::table::{Entry, Found, Table};
use super::unserved;
use crate::failure::{Failure, Result};
use crate::mountinfo::{self, Seen};
use crate::names::{self, PoolName};
use crate::timely;

pub(crate) use detach::{After, detach_all, detach_device, detach_lost, detach_those};

/// The file whose lock is that of all tables. No pool has such a name.
const LOCK_FILE: &str = ".tables";

/// How long file systems above a mount may take to find it.
const FIND_TIME_MAX: Duration = Duration::from_millis(500);

/// The same once one of them took too long.
const LATER_TIME_MAX: Duration = Duration::from_millis(20);

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

/// All tables, locked. Dropped, they are unlocked.
#[derive(Debug)]
pub(crate) struct Tables {
    dir: PathBuf,
    /// `None` at its end.
    lock: Option<Lock>,
    /// Roots of mounts that could not be found under the lock, by the mount's number.
    known: Vec<(u64, OwnedFd)>,
    /// Mounts that could not be taken away, since a file system has to be asked for their roots.
    unknown: RefCell<Vec<Sighting>>,
    /// Roots of mounts that were taken away.
    gone: RefCell<Vec<OwnedFd>>,
    /// What processes in other mount namespaces see of lanes, looked at once.
    elsewhere: OnceCell<Vec<Sighting>>,
}

impl Drop for Tables {
    /// Closing a mount may wait for its service, so the tables are unlocked before.
    fn drop(&mut self) {
        drop(self.lock.take());
        let known = std::mem::take(&mut self.known).into_iter().map(|(_, root)| root);
        timely::close(self.gone.take().into_iter().chain(known).collect());
    }
}

impl Tables {
    /// Locks the tables of the run-time directory `dir`, which is made.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(crate) fn lock(dir: &Path) -> Result<Tables> {
        let lock = Some(Lock::take(dir, LOCK_FILE.to_string())?);
        let (unknown, gone, elsewhere) = Default::default();
        Ok(Tables { dir: dir.to_path_buf(), lock, known: Vec::new(), unknown, gone, elsewhere })
    }

    /// Locks the tables, and removes what dead supervisors left: mounts, entries, files. The mounts
    /// that are gone so; the services of their lanes may still be writing back (`orphans`).
    ///
    /// # Errors
    /// As [`lock`](Tables::lock); a table cannot be written.
    pub(crate) fn lock_cleared(dir: &Path) -> Result<(Tables, Vec<Mount>)> {
        let mut dead = Vec::new();
        let tables = with_roots(dir, |tables| {
            dead.extend(tables.clear_dead()?);
            Ok(())
        })?;
        Ok((tables, dead))
    }

    /// Locks what is to be mounted at a path, under the lock of the tables; `None`: another command
    /// holds it.
    ///
    /// # Errors
    /// One line when the directory cannot be used.
    pub(crate) fn lock_path(&self, path: &[u8]) -> Result<Option<Lock>> {
        let file = self.dir.join(path_lock(path));
        match Lock::try_take(&file, OFlags::CREATE) {
            Ok(lock) => Ok(Some(lock)),
            Err(Errno::WOULDBLOCK | Errno::NOENT) => Ok(None),
            Err(error) => Err(Failure::path(&file, "lock it", error)),
        }
    }

    /// Whether a command mounts or unmounts at a path now.
    pub(crate) fn is_changing(&self, path: &[u8]) -> bool {
        // What a killed command left goes with its lock.
        let lock = Lock::try_take(&self.dir.join(path_lock(path)), OFlags::empty());
        lock.is_err_and(|error| error == Errno::WOULDBLOCK)
    }

    /// Takes the mount of an entry away, in use or not; whether none is left. Other mounts at its
    /// path stay, and it stays below what covers it.
    pub(crate) fn detach(&self, entry: &Entry) -> bool {
        while let Some(seen) = places::mount_of(entry) {
            if let Some(done) = self.detach_seen(&seen) {
                return done;
            }
        }
        true
    }

    /// `None`: it was taken away; else whether it never can be, or only not now.
    fn detach_seen(&self, seen: &Seen) -> Option<bool> {
        let root = self.root_of(&Sighting::own(seen));
        match root.and_then(|root| point::detach(&root).map(|()| root)) {
            Ok(root) => {
                self.gone.borrow_mut().push(root);
                None
            }
            Err(error) => Some(detach::says_gone(error)),
        }
    }

    /// The root of a mount, without a request to a file system. `EAGAIN`: one has to be asked, and
    /// will be without the lock.
    fn root_of(&self, one: &Sighting) -> rustix::io::Result<OwnedFd> {
        if let Some((_, root)) = self.known.iter().find(|(id, _)| *id == one.seen.id) {
            return root.try_clone().map_err(|_| Errno::MFILE);
        }
        let root = point::root_at_once(one);
        if root.as_ref().is_err_and(|error| *error == Errno::AGAIN) {
            self.unknown.borrow_mut().push(one.clone());
        }
        root
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

    /// The table of a pool; `None` also for one of another version, which holds up no other pool
    /// ([`unreadable`](Tables::unreadable)).
    fn known_table(&self, pool: &str) -> Result<Option<Table>> {
        match Table::look(&Table::path(&self.dir, pool))? {
            Some(Found::Table(table)) => Ok(Some(table)),
            Some(Found::Other(_)) | None => Ok(None),
        }
    }

    /// All mounts of tables of this version, by pool, service and instance.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) fn all(&self) -> Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for pool in self.pools() {
            let Some(table) = self.known_table(&pool)? else { continue };
            let of_pool = |entry| Mount { pool: pool.clone(), entry };
            mounts.extend(table.entries().into_iter().map(of_pool));
        }
        Ok(mounts)
    }

    /// What keeps tables from being read, of which there may be mounts.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = Failure> {
        self.pools().into_iter().filter_map(|pool| self.table(&pool).err())
    }

    /// Refuses to take a path for free where a lane is mounted that no readable table has.
    ///
    /// # Errors
    /// A table cannot be read, whose pool may have that lane.
    pub(crate) fn expect_none_unread(&self, path: &[u8]) -> Result<()> {
        let Some(unreadable) = self.unreadable().next() else { return Ok(()) };
        let all = self.all()?;
        let is_known = |seen: &Seen| all.iter().any(|mount| mount.entry.device == seen.device);
        let is_it = |seen: &Seen| seen.is_lane() && seen.place == path && !is_known(seen);
        if mountinfo::seen().iter().any(is_it) { Err(unreadable) } else { Ok(()) }
    }

    /// Removes what dead supervisors left, but for mounts that only file systems can find.
    fn clear_dead(&self) -> Result<Vec<Mount>> {
        let (mut dead, mut views, mut served) = (Vec::new(), Views::default(), HashMap::new());
        // Lanes of one service are many, and are asked for once.
        let mut living = HashSet::new();
        self.remove_path_locks();
        for mount in self.all()? {
            let lane = mount.lane();
            let left = (!living.contains(&lane)).then(|| PoolName::take_over(&self.dir, &lane));
            let Some(Ok(left)) = left else {
                living.insert(lane);
                // Of a lane that lives, an instance that another unmounted, or that a killed
                // command did not get as far as to mount.
                let path = &mount.entry.path;
                if mount.entry.instance > 0
                    && views.now_at(&mount.entry) == Sight::Gone
                    && !self.is_changing(path)
                {
                    self.remove(&mount.pool, path)?;
                }
                continue;
            };
            let has_service = |lane: &String| unserved::has_service(lane);
            let is_served = || *served.entry(mount.lane()).or_insert_with_key(has_service);
            if !self.detach_dead(&mount.entry, is_served) {
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

    /// The mount at exactly this path, in whichever pool whose table is of this version.
    ///
    /// # Errors
    /// A table cannot be read.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Mount>> {
        for pool in self.pools() {
            if let Some(entry) = self.known_table(&pool)?.and_then(|table| table.find(path)) {
                return Ok(Some(Mount { pool, entry }));
            }
        }
        Ok(None)
    }

    /// The mounts of one pool, by service and instance.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn of_pool(&self, pool: &str) -> Result<Vec<Entry>> {
        Ok(self.table(pool)?.map(|table| table.entries()).unwrap_or_default())
    }

    /// The mounts of one service, by instance.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn of_service(&self, pool: &str, service: u32) -> Result<Vec<Entry>> {
        let mut entries = self.of_pool(pool)?;
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

    /// Takes the name of a new lane; whether earlier ones of that name have left anything, which is
    /// removed. Where a mount of theirs cannot be taken away now they keep their name.
    ///
    /// # Errors
    /// All names are in use; the table cannot be read or written.
    pub(crate) fn take_lane(&self, pool: &str) -> Result<(PoolName, bool)> {
        let mut kept = Vec::new();
        loop {
            let name = PoolName::take_lane(&self.dir, pool)?;
            let (_, service) = names::lane_number(name.as_str()).unwrap_or_default();
            match self.clear_service(pool, service)? {
                Some(had) => return Ok((name, had)),
                None => kept.push(name),
            }
        }
    }

    /// Takes the name of a run's lane, which has no entry: one that no dead lane's entry has. Those
    /// stay, since the run may be in a mount namespace of its own.
    ///
    /// # Errors
    /// All names are in use; the table cannot be read.
    pub(crate) fn take_unlisted(&self, pool: &str) -> Result<PoolName> {
        let mut kept = Vec::new();
        loop {
            let name = PoolName::take_lane(&self.dir, pool)?;
            let (_, service) = names::lane_number(name.as_str()).unwrap_or_default();
            match self.of_service(pool, service)?.is_empty() {
                true => return Ok(name),
                false => kept.push(name),
            }
        }
    }

    /// Removes what earlier lanes left; `None`: not all of it can be now.
    fn clear_service(&self, pool: &str, service: u32) -> Result<Option<bool>> {
        let (left, mut all) = (self.of_service(pool, service)?, true);
        let is_served = !left.is_empty() && unserved::has_service(&names::lane_name(pool, service));
        for entry in left.iter().rev() {
            match self.detach_dead(entry, || is_served) {
                true => self.remove(pool, &entry.path)?,
                false => all = false,
            }
        }
        Ok(all.then_some(!left.is_empty()))
    }

    /// Puts a mount in, and at its path. The tables are not locked then: the directory may be in
    /// another lane. The caller has the lock of the path, or its entry says that it starts.
    ///
    /// # Errors
    /// One line; the mount is nowhere, and not in the table.
    pub(crate) fn show(
        self,
        pool: &str,
        entry: &Entry,
        (mount, point): (&OwnedFd, &Point),
    ) -> Result<()> {
        self.put(pool, entry)?;
        let dir = self.dir.clone();
        drop(self);
        let shown = point.mount(mount);
        let listed = Tables::lock(&dir).and_then(|tables| {
            let listed = tables.is_listed(pool, entry)?;
            if shown.is_err() && listed {
                tables.remove(pool, &entry.path)?;
            }
            Ok(listed)
        });
        match listed {
            Ok(true) => shown,
            listed => {
                shown?;
                // Its lane ended meanwhile, and who cleared up did not find it.
                let _ = point::detach(mount);
                listed.and(Err(is_killed(entry)))
            }
        }
    }

    /// Refuses to go on once the lane's entry is gone, or another lane's: its supervisor was
    /// killed, so others may use the path.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn expect_own(&self, pool: &str, entry: &Entry) -> Result<()> {
        match self.is_listed(pool, entry)? {
            true => Ok(()),
            false => Err(is_killed(entry)),
        }
    }

    fn is_listed(&self, pool: &str, entry: &Entry) -> Result<bool> {
        let entries = self.of_lane(&LaneOwner::of(pool, entry))?;
        Ok(entries.iter().any(|own| own.path == entry.path && own.instance == entry.instance))
    }

    /// What commands that were killed left of the locks of paths.
    fn remove_path_locks(&self) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let is_lock = |entry: &fs::DirEntry| {
            entry.file_name().as_encoded_bytes().starts_with(PATH_LOCKS.as_bytes())
        };
        for entry in entries.filter(is_lock) {
            drop(Lock::try_take(&entry.path(), OFlags::empty()));
        }
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
        self.put(pool, &Entry { device: 0, mount: 0, unique: 0, ..entry.clone() })
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

/// The line for a lane that has no entry any more.
fn is_killed(entry: &Entry) -> Failure {
    let path = Shown::new(OsStr::from_bytes(&entry.path)).to_string();
    Failure::failed(format!("{path}: its supervisor was killed: not mounted"))
}

/// Does `work` with the tables locked; they are still. Mounts whose roots were not to be found so
/// are looked for then, without the lock and for a limited time, and `work` is done once more.
fn with_roots(dir: &Path, mut work: impl FnMut(&Tables) -> Result<()>) -> Result<Tables> {
    let tables = Tables::lock(dir)?;
    work(&tables)?;
    let unknown = tables.unknown.take();
    if unknown.is_empty() {
        return Ok(tables);
    }
    drop(tables);
    let (mut known, mut limit) = (Vec::new(), FIND_TIME_MAX);
    for one in unknown {
        let id = one.seen.id;
        match timely::opened_within(limit, move || point::open_sighted(&one)) {
            Ok(root) => known.push((id, root)),
            Err(polylane_base::Errno::ETIMEDOUT) => limit = LATER_TIME_MAX,
            Err(_) => {}
        }
    }
    let mut tables = Tables::lock(dir)?;
    tables.known = known;
    work(&tables)?;
    Ok(tables)
}

/// Takes all entries of a lane out of its pool's table, but those whose mounts are still there.
pub(crate) fn forget(dir: &Path, owner: &LaneOwner) {
    let Ok(tables) = Tables::lock(dir) else { return };
    for entry in tables.of_lane(owner).unwrap_or_default() {
        if places::mount_of(&entry).is_none() {
            let _ = tables.remove(&owner.pool, &entry.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FlockOperation;

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
        let all = || tables.all().expect("readable");
        assert_eq!(paths(all()), expected);
        let cleared = tables.clear_dead().expect("clear");
        assert_eq!(cleared.iter().map(Mount::lane).collect::<Vec<_>>(), ["db@1", "web@2"]);
        assert_eq!(paths(all()), [b"/m/alive"], "the others are removed");
        assert!(!dir.join("db@1.lock").exists() && !dir.join("db.table").exists());
        let alive_one = tables.find(b"/m/alive").expect("readable");
        assert_eq!(alive_one.map(|m| m.lane()), Some("web@1".into()));
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
        let left = tables.all().expect("readable");
        let left: Vec<_> = left.into_iter().map(|m| m.entry.path).collect();
        assert_eq!(left, [b"/m/unknown"]);
        drop((tables, alive));
    }

    #[test]
    fn a_mount_that_was_taken_away_is_none_of_the_next_of_its_numbers() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tables = Tables::lock(&dir.path().join("run")).expect("lock");
        let former = Entry { device: 60, mount: 100, unique: 1 << 31, ..entry("/m/a", 1) };
        tables.put("web", &former).expect("put");
        tables.is_gone("web", &former).expect("noted");
        let now = tables.find(b"/m/a").expect("readable");
        let now = now.expect("an entry until its lane has ended");
        assert_eq!(now.entry, Entry { device: 0, mount: 0, unique: 0, ..former });
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
            let mounts = Tables::lock(&dir).expect("locked").all().expect("readable");
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
        assert_eq!(tables.clear_service("web", 1), Ok(Some(true)));
        assert_eq!(tables.clear_service("web", 1), Ok(Some(false)));
        drop(tables);
        assert_eq!(all(), [old[2].clone()]);
    }

    #[test]
    fn only_a_mount_that_is_gone_or_covered_is_taken_for_none() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tables = Tables::lock(&dir.path().join("run")).expect("lock");
        let root = mountinfo::seen().into_iter().next().expect("a mount");
        let detached = |place: &str| {
            let seen = Seen { id: u64::MAX, place: place.into(), ..root.clone() };
            tables.detach_seen(&seen)
        };
        let base = dir.path().canonicalize().expect("canonical");
        let base = base.to_str().expect("UTF-8");
        // In the kernel's memory from here on.
        fs::create_dir(format!("{base}/covered")).expect("mkdir");
        assert!(fs::exists(format!("{base}/covered")).expect("looked at"));
        assert_eq!(detached(&format!("{base}/covered")), Some(true), "another mount is there");
        let long = format!("{base}/{}", "x".repeat(300));
        assert_eq!(detached(&long), Some(false), "nothing is known of it");
    }

    #[test]
    fn a_table_of_another_version_is_passed_over_and_one_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let tables = Tables::lock(&dir).expect("lock");
        tables.put("web", &entry("/m/a", 1)).expect("put");
        fs::write(dir.join("later.table"), "polylane mount table 2\n").expect("write");
        assert_eq!(tables.all().expect("readable").len(), 1);
        assert_eq!(tables.find(b"/m/b"), Ok(None));
        tables.expect_none_unread(b"/m/b").expect("no lane is mounted there");
        fs::create_dir(dir.join("dir.table")).expect("mkdir");
        for failure in [tables.all().expect_err("it is"), tables.find(b"/m/b").expect_err("it is")]
        {
            assert!(failure.to_string().contains("dir.table"), "{failure}");
        }
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
