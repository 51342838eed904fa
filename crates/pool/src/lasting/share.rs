//! `mount --share`: one more path for a service that serves the same source.
//!
//! The new instance is one more mount of the service's file system, of its root or of a directory
//! in it: it has the same caches, locks and journal, and costs no process. What is above that
//! directory no path leads to, as in any bind mount; the library has an attachment there.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::lock::Lock;
use super::point::{self, Point};
use super::source::{Base, LaneSource};
use super::table::Entry;
use super::tables::{After, Mount, Tables, detach_those};
use super::{join, places};
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::spec::AccessTimes;
use crate::stays::Stays;

/// One more path for a source.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// The source.
    pub(crate) source: &'a LaneSource,
    /// Where.
    pub(crate) path: &'a Path,
    /// Nothing can be changed through it.
    pub(crate) read_only: bool,
    /// Owners of the files on this host, as the table has them.
    pub(crate) users: &'a str,
    /// Its mounts can be id-mapped; the kernel caches what programs read and write by FUSE.
    pub(crate) flags: [bool; 2],
    /// Which reads move access times.
    pub(crate) access_times: AccessTimes,
}

/// The first mount of a service that a new mount shares, and the directory in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shared {
    pub(crate) base: Entry,
    pub(crate) subtree: PathBuf,
}

/// The mount whose service a new mount shares: the one at the longest prefix of its path if that is
/// of the same source, or of a directory above it; else any of the pool that is, the nearest first.
///
/// # Errors
/// A table cannot be read; what is there cannot be shared.
pub(crate) fn base(tables: &Tables, pool: &str, wanted: &Wanted<'_>) -> Result<Option<Shared>> {
    let bases = wanted.source.bases();
    let instances = tables.of_pool(pool)?;
    let part_of = |entry: &Entry| {
        let is_first = entry.instance == 0 || join::is_own_lane(entry, &instances);
        let is_it = |base: &Base| base.source == entry.source && is_first && !entry.is_ground;
        bases.iter().position(is_it)
    };
    let near = tables.longest(pool, wanted.path.as_os_str().as_bytes())?;
    let near = near.and_then(|entry| Some((part_of(&entry)?, entry)));
    let found = match near {
        Some(found) => Some(found),
        None => {
            let own = instances.iter().filter_map(|entry| Some((part_of(entry)?, entry.clone())));
            own.min_by_key(|(distance, _)| *distance)
        }
    };
    let Some((which, entry)) = found else { return Ok(None) };
    let at = Shown::new(OsStr::from_bytes(&entry.path));
    if entry.starting {
        return Err(Failure::failed(format!("{at}: starts only now: try again")));
    }
    if entry.users != wanted.users.as_bytes() {
        return Err(Failure::failed(format!(
            "{at}: mounted with another --map-users, and one service shows each owner by one \
             number: share it with the same"
        )));
    }
    let flags = [("--idmap", entry.id_maps), ("--kernel-cache", entry.kernel_cache)];
    let mut flags = flags.into_iter().zip(wanted.flags);
    if let Some(((flag, has), _)) = flags.find(|((_, has), wanted)| has != wanted) {
        let has = if has { "with" } else { "without" };
        return Err(Failure::failed(format!(
            "{at}: mounted {has} {flag}, which holds for all mounts of a service: share it {has} \
             {flag}"
        )));
    }
    if entry.access_times != wanted.access_times {
        let has = entry.access_times.name();
        return Err(Failure::failed(format!(
            "{at}: mounted with {has}, which holds for all mounts of a lane: share it with the same"
        )));
    }
    match entry.read_only && !wanted.read_only {
        true => Err(Failure::failed(format!("{at}: mounted read-only: share it with --ro"))),
        false => Ok(Some(Shared { base: entry, subtree: bases[which].subtree.clone() })),
    }
}

impl Shared {
    /// The root of the lane, without a request to its service.
    ///
    /// # Errors
    /// One line when something covers it.
    pub(crate) fn root(&self) -> Result<OwnedFd> {
        let root = places::mount_of(&self.base).and_then(|seen| point::open_root(&seen).ok());
        root.ok_or_else(|| {
            let from = Shown::new(OsStr::from_bytes(&self.base.path));
            Failure::failed(format!("{from}: is covered, or not mounted here: not shared"))
        })
    }

    /// The directory in the lane with this root, which asks its service. No link leads there, and
    /// nothing that is mounted in the lane.
    ///
    /// # Errors
    /// One line when there is none.
    pub(crate) fn open(&self, root: OwnedFd) -> Result<OwnedFd> {
        if self.subtree.as_os_str().is_empty() {
            return Ok(root);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&root, &self.subtree, flags, Mode::empty(), within).map_err(|error| {
            let from = Path::new(OsStr::from_bytes(&self.base.path)).join(&self.subtree);
            let refused = |why| Failure::failed(format!("{}: {why}", Shown::new(&from)));
            match error {
                Errno::LOOP => refused("a symbolic link: write the directory that it leads to"),
                Errno::XDEV => refused("something else is mounted there, or above it"),
                error => Failure::path(&from, "find the directory in the lane", error),
            }
        })
    }
}

/// Mounts one more instance of the service of `base`, from a directory of it on, at the path of
/// `wanted`; `false`: another command is at one of both paths.
///
/// # Errors
/// One line; nothing is left behind.
pub(crate) fn attach(
    tables: Tables,
    pool: &str,
    (base, root): (&Entry, &OwnedFd),
    wanted: &Wanted<'_>,
    point: &Point,
) -> Result<bool> {
    let path = wanted.path.as_os_str().as_bytes().to_vec();
    // Without the other mounts its lane ends.
    let own = match tables.is_changing(&base.path) {
        false => tables.lock_path(&path)?,
        true => None,
    };
    let Some(_own) = own else { return Ok(false) };
    let failed = |error| Failure::path(wanted.path, "share the lane there", error);
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(root, "", flags).map_err(failed)?;
    if wanted.read_only {
        mounts::make_read_only(&mount).map_err(failed)?;
    }
    let instances = tables.of_service(pool, base.service)?;
    let last = instances.iter().map(|entry| entry.instance).max().unwrap_or(0);
    let (instance, read_only) = (last + 1, wanted.read_only);
    let number = point::mount_id(&mount).and_then(|id| id.try_into().ok()).unwrap_or(0);
    let entry = Entry {
        path,
        source: wanted.source.text(),
        instance,
        read_only,
        count: 1,
        mount: number,
        unique: point::unique_of(&mount),
        ..base.clone()
    };
    tables.show(pool, &entry, (&mount, point)).map(|()| true)
}

/// Takes an instance other than a service's first away, in use or not.
///
/// # Errors
/// One line: it is in a lane that does not answer.
pub(crate) fn detach(dir: &Path, mount: &Mount) -> Result<()> {
    let those = |tables: &Tables| {
        let mut own = tables.of_service(&mount.pool, mount.entry.service)?;
        own.retain(|entry| entry.path == mount.entry.path);
        Ok(own)
    };
    match detach_those(dir, &mount.pool, those, After::Goes)? {
        true => Ok(()),
        false => Err(places::not_unmounted(&mount.entry, &polylane_base::Errno(libc::ETIMEDOUT))),
    }
}

/// Takes an instance other than a service's first away, through which everything was made durable.
///
/// # Errors
/// One line: it is in use, or something covers it.
pub(crate) fn unmount(dir: &Path, mount: &Mount) -> std::result::Result<(), Stays> {
    let (pool, entry) = (&mount.pool, &mount.entry);
    let failed = |error: Errno| places::stays(entry, polylane_base::Errno(error.raw_os_error()));
    let _own = Lock::of_path(dir, &entry.path)?;
    let now = Tables::lock(dir)?.of_service(pool, entry.service)?;
    match now.into_iter().find(|now| now.path == entry.path) {
        // Another command was faster.
        None => return Ok(()),
        Some(now) if now.count > 1 => return Err(failed(Errno::BUSY)),
        Some(_) => {}
    }
    let seen = places::mount_of(entry).ok_or_else(|| failed(Errno::NOENT))?;
    let _kept = point::unmount(&seen).map_err(failed)?;
    Ok(Tables::lock(dir)?.remove(pool, &entry.path)?)
}
