//! `polylane umount`: everything of the lane is durable when it ends.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::shown::Shown;
use polylane_base::sync::thread;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::table::Entry;
use super::tables::{LaneOwner, Mount, Tables};
use super::{join, places, share};
use crate::failure::{Failure, Result};
use crate::mountinfo;
use crate::orphans::{self, wait_for_service};
use crate::stays::{Cause, Stays};
use crate::timely::{self, LAZY_SYNC_TIME_MAX, SYNC_TIME_MAX};
use crate::wait::wait_for;
use crate::{cgroup, names, process, upgrade};

/// How long a lane may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a lane may still start whose end is asked for in any case.
const LAZY_START_TIME: Duration = Duration::from_secs(2);

/// How long a supervisor may take to end once everything is durable.
const END_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a lane may be busy that nobody is seen to use.
const BUSY_TIME_MAX: Duration = Duration::from_secs(1);

/// Takes one mount of PATH away; how often it is still mounted. With `lazy` also one that is in
/// use, whose users get errors once the lane has ended.
///
/// # Errors
/// One line: no lane is mounted there, it is in use, or not everything could be written back.
pub fn umount(path: &Path, lazy: bool) -> Result<u32> {
    try_umount(path, lazy).map_err(|stays| stays.failure)
}

fn try_umount(path: &Path, lazy: bool) -> std::result::Result<u32, Stays> {
    let path = places::find(path)?;
    let dir = names::runtime_dir();
    let begin = Instant::now();
    loop {
        let stays = match take_away(&dir, &path, lazy) {
            Err(stays) if stays.cause.is_by_others() => stays,
            done => return done,
        };
        let tables = Tables::lock(&dir)?;
        // Another command has mounted it once more meanwhile, and so keeps it.
        if let Some(count) = take_one(&tables, &path)? {
            return Ok(count);
        }
        let mount = find(&tables, &path)?;
        drop(tables);
        // Or it did, and has unmounted it; or somebody looked at the path.
        let is_free = mount.is_some_and(|mount| !places::is_used(&mount.entry));
        if !is_free || begin.elapsed() > BUSY_TIME_MAX {
            return Err(stays);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Takes one away of a lane that is mounted more than once; how often it still is.
fn take_one(tables: &Tables, path: &Path) -> Result<Option<u32>> {
    let Some(Mount { pool, entry }) = find(tables, path)?.filter(|mount| mount.entry.count > 1)
    else {
        return Ok(None);
    };
    let count = entry.count - 1;
    tables.put(&pool, &Entry { count, ..entry })?;
    Ok(Some(count))
}

fn take_away(dir: &Path, path: &Path, lazy: bool) -> std::result::Result<u32, Stays> {
    let (mut tables, mut mount) = match started(dir, path, lazy)? {
        Found::Lane(tables, mount) => (tables, *mount),
        Found::None(dead) => return no_lane(path, &dead),
    };
    if mount.entry.instance > 0 && mount.entry.count == 1 {
        // Without the lock, which others must not wait for as long as for this service.
        drop(tables);
        sync(&mount, path, lazy)?;
        tables = Tables::lock(dir)?;
        mount = match find(&tables, path)? {
            Some(mount) => mount,
            None => return Ok(0),
        };
    }
    let instances = tables.of_service(&mount.pool, mount.entry.service)?;
    if let Some(count) = take_one(&tables, path)? {
        return Ok(count);
    }
    drop(tables);
    if join::is_own_lane(&mount.entry, &instances) {
        match lazy {
            true => join::detach(dir, &mount)?,
            false => join::unmount(dir, &mount, &instances)?,
        }
        join::end(&mount)?;
        return Ok(0);
    }
    if mount.entry.instance > 0 {
        match lazy {
            true => share::detach(dir, &mount)?,
            false => share::unmount(dir, &mount)?,
        }
        return Ok(0);
    }
    if let Some(other) = instances.iter().find(|entry| entry.instance > 0 && !lazy) {
        return Err(Stays::new(Cause::Shared, places::is_shared(&mount.entry, other)));
    }
    end(dir, &mount, lazy)?;
    Ok(0)
}

/// What is at a path.
enum Found {
    /// A lane; the tables are locked.
    Lane(Tables, Box<Mount>),
    /// None; these were of dead supervisors, and are cleared.
    None(Vec<Mount>),
}

/// The lane at `path`. One that starts is waited for: it would come up after an unmount that asked
/// it too early. With `lazy` one that takes long is ended: its source may never answer.
fn started(dir: &Path, path: &Path, lazy: bool) -> std::result::Result<Found, Stays> {
    let (begin, mut dead) = (Instant::now(), Vec::new());
    while begin.elapsed() < START_TIME_MAX {
        let (tables, cleared) = Tables::lock_cleared(dir)?;
        dead.extend(cleared);
        match find(&tables, path)? {
            None => return Ok(Found::None(dead)),
            Some(mount) if !mount.entry.starting => {
                return Ok(Found::Lane(tables, Box::new(mount)));
            }
            Some(mount) if lazy && begin.elapsed() > LAZY_START_TIME => {
                kill_supervisor(&mount);
                // Whichever command clears it.
                dead.push(mount);
            }
            Some(_) => {}
        }
        drop(tables);
        thread::sleep(Duration::from_millis(5));
    }
    let (path, seconds) = (Shown::new(path), START_TIME_MAX.as_secs());
    let line = format!("{path}: its lane has been starting for {seconds} s");
    Err(Stays::new(Cause::Starting, Failure::failed(line)))
}

/// Kills the supervisor of a lane that starts, which has its name; its keeper clears up.
fn kill_supervisor(mount: &Mount) {
    let holds = orphans::holders_of(&names::runtime_dir(), &mount.lane());
    for pid in process::pids().filter(|pid| holds(*pid)) {
        let process = Pid::from_raw(pid.cast_signed());
        let process = process.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        // Asked again: the number may have been another's before it was held.
        if let Some(process) = process.filter(|_| holds(pid)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// Takes all mounts of PATH away, however often they were counted. None is no error.
///
/// # Errors
/// As [`umount`]'s.
pub fn umount_all(path: &Path, lazy: bool) -> std::result::Result<(), Stays> {
    if is_below_nothing(path) {
        return Ok(());
    }
    while is_mounted(path)? {
        match try_umount(path, lazy) {
            Ok(_) => {}
            // Another command was faster; or it is gone, lazily, and not all was written back.
            Err(stays) if (stays.cause.is_by_others() || lazy) && !is_mounted(path)? => {
                return Ok(());
            }
            Err(stays) => return Err(stays),
        }
    }
    Ok(())
}

/// The same, lazily where nothing is lost by that: why it was in the way, for people.
///
/// # Errors
/// As [`umount`]'s: not all could be written back, or another mount shares the lane.
pub fn umount_all_losslessly(path: &Path) -> std::result::Result<Option<Failure>, Stays> {
    match umount_all(path, false) {
        // What something is still in goes when that goes; what was written is durable.
        Err(stays) if stays.cause.loses_nothing() => {
            umount_all(path, true).map(|()| Some(stays.failure))
        }
        done => done.map(|()| None),
    }
}

/// Whether the directory that PATH would be in does not exist.
fn is_below_nothing(path: &Path) -> bool {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.is_some_and(|above| above.try_exists().is_ok_and(|exists| !exists))
}

/// Whether a lane is mounted at PATH.
fn is_mounted(path: &Path) -> Result<bool> {
    let path = places::find(path)?;
    let (tables, _) = Tables::lock_cleared(&names::runtime_dir())?;
    Ok(find(&tables, &path)?.is_some())
}

/// The mount at `path`: by the table, or, where directories above it were renamed, by its number.
///
/// # Errors
/// A table cannot be read, and a lane is mounted there that may be of its pool.
fn find(tables: &Tables, path: &Path) -> Result<Option<Mount>> {
    let bytes = path.as_os_str().as_bytes();
    let named = tables.find(bytes)?;
    let all = mountinfo::seen();
    let moved = |entry: &Entry| {
        // One that is in another mount namespace has no other name here.
        places::own_of(entry, &all).is_some_and(|seen| seen.place != entry.path)
    };
    if named.as_ref().is_some_and(|mount| !moved(&mount.entry)) {
        return Ok(named);
    }
    let is_here =
        |mount: &Mount| places::own_of(&mount.entry, &all).is_some_and(|s| s.place == bytes);
    let here = tables.all()?.into_iter().find(is_here);
    if here.is_none() {
        tables.expect_none_unread(bytes)?;
    }
    Ok(here)
}

/// Makes durable what was changed through a mount; with `lazy` it goes away all the same.
fn sync(mount: &Mount, path: &Path, lazy: bool) -> std::result::Result<(), Stays> {
    let limit = if lazy { LAZY_SYNC_TIME_MAX } else { SYNC_TIME_MAX };
    match timely::sync(path, limit) {
        Err(errno) if !lazy => {
            let is_dead = errno.0 == libc::ENOTCONN;
            let cause = if is_dead { Cause::Dead } else { Cause::Failed };
            Err(Stays::new(cause, places::not_unmounted(&mount.entry, &errno)))
        }
        _ => Ok(()),
    }
}

/// The answer for a path that no living lane has: that of a lane whose supervisor was killed is
/// free now. Other dead lanes, which were cleared as well, say nothing of this path.
fn no_lane(path: &Path, dead: &[Mount]) -> std::result::Result<u32, Stays> {
    match dead.iter().find(|mount| mount.entry.path == path.as_os_str().as_bytes()) {
        Some(mount) => {
            wait_for_service(&mount.lane());
            Ok(0)
        }
        None => {
            let line = format!("{}: no lane is mounted there", Shown::new(path));
            Err(Stays::new(Cause::Gone, Failure::failed(line)))
        }
    }
}

/// Ends a lane; everything is durable then, and nothing of it left.
fn end(dir: &Path, mount: &Mount, lazy: bool) -> std::result::Result<(), Stays> {
    let lane = mount.lane();
    let supervisor = join::process_of(&mount.entry);
    upgrade::unmount(&lane, mount.entry.supervisor, lazy).map_err(|stays| Stays {
        failure: places::not_unmounted(&mount.entry, &stays.failure),
        ..stays
    })?;
    if let Some(supervisor) = supervisor
        && !wait_for(supervisor.as_fd(), END_TIME_MAX)
    {
        return Err(places::not_unmounted(&mount.entry, &"its supervisor does not end").into());
    }
    cgroup::remove_session_groups();
    // Where no supervisor was there to be asked: a lane of its name keeps the next command from
    // clearing up after it.
    let owner = LaneOwner::of(&mount.pool, &mount.entry);
    let left = Tables::lock(dir).and_then(|tables| tables.of_lane(&owner)).unwrap_or_default();
    let mut own = left.iter().filter(|entry| entry.path == mount.entry.path);
    match own.any(|entry| places::mount_of(entry).is_some()) {
        true => {
            let failure = places::not_unmounted(&mount.entry, &"its supervisor is dead");
            Err(Stays::new(Cause::Dead, failure))
        }
        false => Ok(()),
    }
}
