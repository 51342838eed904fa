//! `mount --share`: one more path for a service that serves the same source.
//!
//! The new instance is one more mount of the service's file system, of its root: it has the same
//! caches, locks and journal, and costs no process. It has no `.polylane`, so programs reach it
//! through FUSE; the library knows one path of a service.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use polylane_base::shown::Shown;
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree};

use super::places;
use super::point::{self, Point};
use super::table::Entry;
use super::tables::{Mount, Tables};
use crate::failure::{Failure, Result};
use crate::mounts;

/// One more path for a source.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// The source, as the table has it.
    pub(crate) source: &'a [u8],
    /// Where.
    pub(crate) path: &'a Path,
    /// Nothing can be changed through it.
    pub(crate) read_only: bool,
    /// Owners of the files on this host, as the table has them.
    pub(crate) users: &'a str,
}

/// The mount whose service a new mount shares: the one at the longest prefix of its path if that is
/// of the same source, else any of the pool that is.
///
/// # Errors
/// A table cannot be read; what is there cannot be shared.
pub(crate) fn base(tables: &Tables, pool: &str, wanted: &Wanted<'_>) -> Result<Option<Entry>> {
    let is_same = |entry: &Entry| entry.source == wanted.source && entry.instance == 0;
    let near = tables.longest(pool, wanted.path.as_os_str().as_bytes())?.filter(is_same);
    let found = match near {
        Some(entry) => Some(entry),
        None => {
            let all = tables.all()?.into_iter();
            let mut own = all.filter(|mount| mount.pool == pool).map(|mount| mount.entry);
            own.find(is_same)
        }
    };
    let Some(entry) = found else { return Ok(None) };
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
    match entry.read_only && !wanted.read_only {
        true => Err(Failure::failed(format!("{at}: mounted read-only: share it with --ro"))),
        false => Ok(Some(entry)),
    }
}

/// Mounts one more instance of the service of `base` at the path of `wanted`.
///
/// # Errors
/// One line; nothing is left behind.
pub(crate) fn attach(
    tables: &Tables,
    pool: &str,
    base: &Entry,
    wanted: &Wanted<'_>,
    point: &Point,
) -> Result<()> {
    let from = Path::new(OsStr::from_bytes(&base.path));
    let failed = |error| Failure::path(wanted.path, "share the lane there", error);
    let root = places::mount_of(base).and_then(|seen| point::open_root(&seen).ok());
    let Some(root) = root else {
        let from = Shown::new(from);
        return Err(Failure::failed(format!(
            "{from}: is covered, or not mounted here: not shared"
        )));
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(&root, "", flags).map_err(failed)?;
    if wanted.read_only {
        mounts::make_read_only(&mount).map_err(failed)?;
    }
    let instances = tables.of_service(pool, base.service)?;
    let last = instances.iter().map(|entry| entry.instance).max().unwrap_or(0);
    let path = wanted.path.as_os_str().as_bytes().to_vec();
    let (instance, read_only) = (last + 1, wanted.read_only);
    let number = point::mount_id(&mount).and_then(|id| id.try_into().ok()).unwrap_or(0);
    let entry = Entry { path, instance, read_only, count: 1, mount: number, ..base.clone() };
    tables.put(pool, &entry)?;
    point.mount(&mount).inspect_err(|_| drop(tables.remove(pool, &entry.path)))
}

/// Takes an instance other than a service's first away, through which everything was made durable.
///
/// # Errors
/// One line: it is in use, or something covers it.
pub(crate) fn detach(tables: &Tables, mount: &Mount, lazy: bool) -> Result<()> {
    let failed = |error: Errno| {
        let why = polylane_base::Errno(error.raw_os_error());
        places::not_unmounted(&mount.entry, &why)
    };
    match lazy {
        true => point::detach(&mount.entry),
        false => {
            let seen = places::mount_of(&mount.entry).ok_or_else(|| failed(Errno::NOENT))?;
            point::unmount(&seen, UnmountFlags::empty()).map_err(failed)?;
        }
    }
    tables.remove(&mount.pool, &mount.entry.path)
}
