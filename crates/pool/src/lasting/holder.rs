//! The first process of a lane that outlives its command: it holds the mount.
//!
//! It takes the place of a tenant's init (`init`), in the namespaces of the command that mounted:
//! it makes the mount, shows it at its path, tells the library of mounts there, and takes it away.
//! It is a process of its own because a process that looks at a lane may wait for its service,
//! which the supervisor must not.
//!
//! | what happens | what it does |
//! |---|---|
//! | `Unmount` | syncs, unmounts, ends; what is in use stays, and is said to |
//! | `Unmount { lazy }`, a signal to the supervisor | the same, in use or not |
//! | `Lost`, a further lane | detaches that one's mounts, removes their entries |
//! | the mount is gone (`umount -l PATH`) | ends |
//! | the supervisor is gone | detaches the mounts, waits for the service, removes the entries |
//!
//! Its end is the end of the lane; the supervisor lets the service write everything back then.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::Errno;
use polylane_base::shown::Shown;
use polylane_ipc::message::RESERVED_DIR;
use polylane_sys::footprint;
use polylane_sys::mount::MountId;
use polylane_sys::ns;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::{MountAttrFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::lock::Lock;
use super::places;
use super::point::{self, Point};
use super::table::Entry;
use super::tables::{self, After, LaneOwner, Tables};
use crate::failure::{FAILED, Failure, Result};
use crate::init;
use crate::link::{FromInit, Link, ToInit};
use crate::mount_table::MountTable;
use crate::mountinfo;
use crate::mounts;
use crate::orphans;
use crate::timely::{self, LAZY_SYNC_TIME_MAX, SYNC_TIME_MAX};

/// How long changes of mounts are collected that no session waits for.
const COLLECTED_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What a lane tells the command that waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FromLane {
    /// It serves.
    Ready,
    /// It does not: an exit status and a line.
    Failed(u8, String),
}

/// What the holder is to do; fixed before the fork.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The FUSE device.
    pub(crate) device: OwnedFd,
    /// The preload library, unless it is not wanted or not there.
    pub(crate) library: Option<PathBuf>,
    /// Where the lane's run directory is mounted outside of the lane.
    pub(crate) run_dir: PathBuf,
    /// The directory that the lane is mounted on.
    pub(crate) point: Point,
    /// What is not let through on the lane.
    pub(crate) attributes: MountAttrFlags,
    /// The run-time directory, the pool and the lane's entry in its table.
    pub(crate) dir: PathBuf,
    /// The pool's name.
    pub(crate) pool: String,
    /// The lane's name.
    pub(crate) lane: String,
    /// The lane's entry in the table.
    pub(crate) entry: Entry,
    /// The command that waits for the lane.
    pub(crate) caller: Link,
    /// Readable once a process that sees the same mounts has a session.
    pub(crate) at_home: OwnedFd,
}

/// The mount, once it is at its path.
struct Held {
    dir: PathBuf,
    pool: String,
    lane: String,
    entry: Entry,
    /// The mount's number.
    id: u64,
    /// Its number that no other mount has, where the kernel gives such.
    unique: Option<MountId>,
    /// What the library is told.
    notice: Option<MountTable>,
    /// Has an exceptional condition when anything is mounted or unmounted; `notice` has its own.
    changes: File,
    /// Readable once a process that sees the same mounts has a session; `None`: one has had.
    at_home: Option<OwnedFd>,
}

/// Runs the holder to its end.
pub(crate) fn main(plan: Plan, link: &Link) -> ! {
    let _ = rustix::thread::set_name(c"polylane-hold");
    let (caller, at_home) = (plan.caller.as_fd(), plan.at_home.as_fd());
    let kept = [link.as_fd(), plan.device.as_fd(), caller, plan.point.as_fd(), at_home];
    let _ = ns::keep_only(&kept);
    let caller = plan.caller.as_fd().try_clone_to_owned().map(Link::from_fd);
    let status = match begin(plan, link) {
        Ok(held) => {
            if let Ok(caller) = caller {
                let _ = caller.send(&FromLane::Ready, &[]);
            }
            hold(held, link)
        }
        Err(failure) => {
            if let Ok(caller) = caller {
                let _ = caller.send(&FromLane::Failed(failure.status, failure.line), &[]);
            }
            FAILED
        }
    };
    ns::exit_now(status.into())
}

/// Makes the mount and shows it.
fn begin(plan: Plan, link: &Link) -> Result<Held> {
    let Plan {
        device,
        library,
        run_dir,
        point,
        attributes,
        dir,
        pool,
        lane,
        mut entry,
        at_home,
        ..
    } = plan;
    init::expect(link, ToInit::Begin)?;
    // As fstab has it: by that mount(8) knows what is mounted already.
    let source = String::from_utf8_lossy(&entry.source).into_owned();
    let made = init::mount_lane(Some(device), (&source, attributes), link)?;
    let failed = |error: rustix::io::Errno| Failure::because("lane", "look at its root", error);
    let stat =
        rustix::fs::statx(&made.lane, "", AtFlags::EMPTY_PATH, StatxFlags::MODE).map_err(failed)?;
    entry.device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    entry.mount = point::mount_id(&made.lane).and_then(|id| id.try_into().ok()).unwrap_or(0);
    entry.unique = point::unique_of(&made.lane);
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&entry.path));
    let libraries = init::pick_up_libraries(library.as_deref())?;
    let tables = Tables::lock(&dir)?;
    tables.expect_own(&pool, &entry)?;
    // With its device's number before: what finds the mount there must find it in the table.
    tables.show(&pool, &entry, (&made.lane, &point))?;
    drop(point);
    let unique = MountId::of(&made.lane).ok();
    let shown = init::furnish(&made, &path, Some(&run_dir), &libraries);
    // None of these descriptors stays: that would keep the mounts busy.
    drop((made, libraries));
    if shown.is_err() {
        tables::detach_all(&dir, &LaneOwner::of(&pool, &entry));
    }
    let mut notice = shown?;
    if let Some(notice) = &mut notice {
        notice.begin();
    }
    let changes = File::open("/proc/self/mountinfo")
        .map_err(|error| Failure::because("mounts", "watch them", error))?;
    let gone = || Failure::failed(format!("{}: was unmounted at once", Shown::new(&path)));
    let id = match unique.map(MountId::state) {
        // Asked alone: a host with many lanes has a long table.
        Some(Ok(Some(_))) if entry.mount != 0 => entry.mount.into(),
        _ => places::mount_of(&entry).ok_or_else(gone)?.id,
    };
    entry.starting = false;
    let tables = Tables::lock(&dir)?;
    tables.expect_own(&pool, &entry)?;
    tables.put(&pool, &entry)?;
    drop(tables);
    let at_home = Some(at_home);
    Ok(Held { dir, pool, lane, entry, id, unique, notice, changes, at_home })
}

/// Waits until the mount is to go, or is gone; the exit status.
fn hold(mut held: Held, link: &Link) -> u8 {
    loop {
        let (told, changed) = match held.wait(link) {
            Ok(woken) => woken,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return FAILED,
        };
        if told {
            let order = match link.receive::<ToInit>() {
                Ok(Some((ToInit::Unmount { lazy }, _))) => lazy,
                Ok(Some((ToInit::Signal(_), _))) => true,
                Ok(Some((ToInit::Lost(id), _))) => {
                    let owner = LaneOwner::of(&held.pool, &held.entry);
                    tables::detach_lost(&held.dir, &owner, id);
                    continue;
                }
                Ok(Some(_)) => continue,
                Ok(None) | Err(_) => return held.supervisor_is_gone(),
            };
            match held.unmount(order, link) {
                Ok(()) => return 0,
                Err(errno) => drop(link.send(&FromInit::Stays(errno.0), &[])),
            }
        }
        if changed {
            // What the library is told says whether the mount is there, where the kernel tells of
            // it alone.
            let there = held.notice.as_mut().and_then(MountTable::look);
            if !there.unwrap_or_else(|| held.is_there()) {
                return 0;
            }
        }
    }
}

impl Held {
    /// What tells that anything was mounted or unmounted.
    fn changes(&self) -> &File {
        self.notice.as_ref().map_or(&self.changes, |notice| &notice.file)
    }

    /// Waits until the supervisor says something, and until mounts have changed; which of both.
    ///
    /// The start of a lane changes the mounts more than once, and wakes all holders of the host. As
    /// long as no session goes by what they tell, they look once at what changes within a while.
    fn wait(&mut self, link: &Link) -> rustix::io::Result<(bool, bool)> {
        let none = link.as_fd();
        let at_home = self.at_home.as_ref().map_or(none, AsFd::as_fd);
        let mut fds = [
            PollFd::new(link, PollFlags::IN),
            PollFd::from_borrowed_fd(at_home, PollFlags::IN),
            PollFd::new(self.changes(), PollFlags::PRI),
        ];
        footprint::wait(&mut fds)?;
        let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let changed = is(&fds[2]);
        if self.at_home.is_some() && !is(&fds[0]) && !is(&fds[1]) {
            // A signal ends it early.
            let (others, _) = fds.split_at_mut(2);
            let _ = rustix::event::poll(others, Some(&COLLECTED_TIME));
        }
        let (told, begun) = (is(&fds[0]), is(&fds[1]));
        // Mounts that changed before a session began are looked at now.
        let begins = begun && self.at_home.take().is_some();
        Ok((told, changed || begins))
    }

    /// Whether the mount is somewhere in this namespace.
    fn is_there(&self) -> bool {
        match self.unique.map(MountId::state) {
            Some(Ok(state)) => state.is_some(),
            // The kernel tells of no mount alone.
            _ => self.own().is_some(),
        }
    }

    /// Makes everything durable and takes the mount away.
    fn unmount(&mut self, lazy: bool, link: &Link) -> std::result::Result<(), Errno> {
        let _ = link.send(&FromInit::Alone, &[]);
        let Some(own) = self.own() else { return Ok(()) };
        let limit = if lazy { LAZY_SYNC_TIME_MAX } else { SYNC_TIME_MAX };
        let synced = timely::sync(Path::new(std::ffi::OsStr::from_bytes(&own.place)), limit);
        if lazy {
            let those = |tables: &Tables| {
                let owner = LaneOwner::of(&self.pool, &self.entry);
                let mut own = tables.of_lane(&owner)?;
                own.retain(|entry| entry.path == self.entry.path);
                Ok(own)
            };
            // From here on no command counts on the mount.
            return match tables::detach_those(&self.dir, &self.pool, those, After::Stays) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Errno(libc::ETIMEDOUT)),
                Err(_) => Err(Errno::EIO),
            };
        }
        synced?;
        let within = Path::new(std::ffi::OsStr::from_bytes(&own.place)).join(RESERVED_DIR);
        take_away(&within, || self.unmount_lane()).inspect_err(|_| {
            if let Some(notice) = &mut self.notice {
                notice.begin();
                notice.look();
            }
        })
    }

    /// The mount, wherever it is in this namespace.
    fn own(&self) -> Option<mountinfo::Seen> {
        // The table of all mounts is long where many lanes are.
        if let Some(Ok(state)) = self.unique.map(MountId::state) {
            let (id, device, kind) = (self.id, self.entry.device, mountinfo::LANE_KIND.to_string());
            let seen = |place| mountinfo::Seen {
                id,
                device,
                root: Vec::new(),
                place,
                kind,
                options: String::new(),
                propagates: false,
            };
            return state.map(|state| seen(state.place));
        }
        let is_own =
            |seen: &mountinfo::Seen| seen.id == self.id && seen.device == self.entry.device;
        mountinfo::seen().into_iter().find(is_own)
    }

    /// Unmounts the lane itself, unless another command counts on it, or has shared it while it was
    /// synced: none does as long as its path is locked. Nothing is asked of a service as long as
    /// the tables are.
    fn unmount_lane(&self) -> std::result::Result<(), Errno> {
        let _path = Lock::of_path(&self.dir, &self.entry.path).map_err(|_| Errno::EBUSY)?;
        let owner = LaneOwner::of(&self.pool, &self.entry);
        let all = Tables::lock(&self.dir).and_then(|tables| tables.of_lane(&owner));
        let all = all.map_err(|_| Errno::EBUSY)?;
        if all.iter().any(|entry| entry.count > 1 || entry.instance > 0) {
            return Err(Errno::EBUSY);
        }
        let own = self.own().ok_or(Errno::EBUSY)?;
        let unmounted = point::unmount_last(&own).map_err(|error| Errno(error.raw_os_error()))?;
        let listed = all.iter().find(|entry| entry.path == self.entry.path);
        if let (Ok(tables), Some(entry)) = (Tables::lock(&self.dir), listed) {
            let _ = tables.is_gone(&self.pool, entry);
        }
        unmounted.end();
        Ok(())
    }

    /// The supervisor was killed: the mount has no service any more, or will have none.
    fn supervisor_is_gone(self) -> u8 {
        let owner = LaneOwner::of(&self.pool, &self.entry);
        tables::detach_all(&self.dir, &owner);
        if self.own().is_some() {
            tables::detach_device(&self.dir, self.entry.device);
        }
        orphans::wait_for_service(&self.lane);
        tables::forget(&self.dir, &owner);
        FAILED
    }
}

/// Unmounts a lane by `unmount_lane`, and before that its run directory `within` it, which is put
/// back when something else keeps the lane. The run directory's other mount, which every user of
/// the host reaches, keeps nothing: it goes with the lane's files.
pub(super) fn take_away(
    within: &Path,
    unmount_lane: impl FnOnce() -> std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    let copy = mounts::copy_of(rustix::fs::CWD, within).ok();
    let done = unmount_all(within).and_then(|()| unmount_lane());
    done.inspect_err(|_| {
        if let Some(copy) = copy {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            while places::topmost(within.as_os_str().as_bytes()).is_some()
                && rustix::mount::unmount(within, flags).is_ok()
            {}
            let _ = mounts::attach_at(&copy, within);
        }
    })
}

/// Unmounts the run directory within the lane with what is in it; `EBUSY` when something is in use.
fn unmount_all(within: &Path) -> std::result::Result<(), Errno> {
    for seen in places::seen_below(within.as_os_str().as_bytes()).iter().rev() {
        point::unmount(seen).map_err(|error| Errno(error.raw_os_error()))?;
    }
    Ok(())
}
