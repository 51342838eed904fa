//! `mount --share` of a volume over layers: one more lane in the service of the pool that is over
//! the same layers, which is started for that if there is none. It has a FUSE mount, a volume and
//! caches of its own; what it shares are the layers.
//!
//! Until the mount is at its path a killed command leaves nothing: with its last descriptor goes
//! the mount, and with that the lane in the service.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::shown::Shown;
use polylane_base::sync::thread;
use polylane_block::image::{self, ImageError};
use polylane_front::fuse;
use polylane_ipc::message::RESERVED_DIR;
use rustix::mount::MountAttrFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::lock::Lock;
use super::options::MountOptions;
use super::point::{self, Point};
use super::source::LaneSource;
use super::table::Entry;
use super::tables::{After, Mount, Tables, detach_those};
use super::{holder, places};
use crate::copying::Target;
use crate::failure::{Failure, Result};
use crate::init::{self, LaneMounts, Place};
use crate::instance::{self, Joined, Joining, Left};
use crate::orphans::wait_for_volume;
use crate::pool_record::PoolRecord;
use crate::run::{self, RunOptions, Source};
use crate::skeleton::MountPoint;
use crate::spec::PoolSpec;
use crate::stays::{Cause, Stays};
use crate::wait::wait_for;
use crate::{cgroup, fuse_device, names};

/// How long a lane that was unmounted may hold its volume.
const VOLUME_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a supervisor may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(60);

/// Whether a lane of these options may be one of a service's over the same layers. The service
/// reaches no directory of the host but its lowers, so what is the lane's own is on a volume. Lanes
/// of a pool that was not made may be of different tenants, who share no service.
pub(super) fn may_join(options: &MountOptions, record: Option<&PoolRecord>) -> bool {
    let LaneSource { source, lowers, subtree, .. } = &options.source;
    options.share
        && record.is_some()
        && matches!(source, Source::Volume(Some(_)))
        && subtree.as_os_str().is_empty()
        && !lowers.is_empty()
        && lowers.iter().all(|lower| lower.ceph().is_none() && lower.layers().is_empty())
}

/// The service that such a lane joins, as a lane: its lowers, and nothing of its own.
pub(super) fn ground(options: &MountOptions) -> MountOptions {
    let asked = &options.lane;
    let lane = RunOptions {
        lowers: asked.lowers.clone(),
        pool: asked.pool.clone(),
        cpus: asked.cpus.clone(),
        memory: asked.memory,
        preload: false,
        for_instances: true,
        ..RunOptions::new(Source::Lowers, Vec::new())
    };
    MountOptions {
        source: options.source.ground(),
        path: PathBuf::new(),
        pool: options.pool.clone(),
        share: false,
        read_only: true,
        once: true,
        lane,
    }
}

/// The service in a pool over the layers of `source` that sees the same mounts as this process: one
/// in another mount namespace would not see the lane's.
///
/// # Errors
/// A table cannot be read.
pub(super) fn find(tables: &Tables, pool: &str, source: &LaneSource) -> Result<Option<Entry>> {
    let text = source.ground().text();
    let is_it = |entry: &Entry| {
        entry.is_ground && entry.source == text && places::has_own_view(entry.supervisor)
    };
    Ok(tables.of_pool(pool)?.into_iter().find(is_it))
}

/// Has the service serve a lane, and shows that at its path.
///
/// # Errors
/// One line: its volume cannot be opened, it cannot be mounted. Nothing is left behind.
pub(super) fn join(
    options: &MountOptions,
    (pool, ground): (&str, &Entry),
    point: &Point,
) -> Result<Joined> {
    let lane = names::lane_name(pool, ground.service);
    if let Source::Volume(Some(path)) = &options.lane.source {
        wait_for_volume(path);
        wait_for_last(pool, options, path)?;
    }
    let place = Place::At(MountPoint { exists: options.path.clone(), missing: PathBuf::new() });
    let mut asked = options.lane.clone();
    let (handed, mut spec) = run::instance(&mut asked, (pool, &lane), &place)?;
    if handed.bypass.is_some() {
        // What is on a disk without a file system has files beside the volume's.
        return Ok(Joined::Unlike);
    }
    let lowers = asked.lowers.iter().map(|lower| {
        let failed = |error| Failure::path(&lower.path(), "use it as a lower", error);
        let found = lower.path().metadata().map_err(failed)?;
        Ok(Target { device: found.dev(), inode: found.ino() })
    });
    let lowers = lowers.collect::<Result<Vec<_>>>()?;
    let (mounted, device) = Mounted::make(options, &mut spec, &lane)?;
    let joining = Joining {
        id: mounted.id,
        spec,
        lowers,
        policy: asked.qos,
        weight: asked.weight,
        run_dir: mounted.run_dir.clone(),
    };
    let socket = mounted.socket.as_fd();
    let fds: Vec<_> = [device.as_fd(), socket].into_iter().chain(handed.descriptors()).collect();
    let joined = instance::join((&lane, ground.supervisor), &joining, &fds)?;
    drop((device, handed));
    match joined {
        Joined::Serves => mounted.show(options, (pool, ground), point),
        other => Ok(other),
    }
}

/// Waits for the lane that had the volume last: its mount is gone, and it is written back.
fn wait_for_last(pool: &str, options: &MountOptions, volume: &Path) -> Result<()> {
    let (begin, text) = (Instant::now(), options.source.text());
    let is_mounted = || {
        let tables = Tables::lock(&names::runtime_dir())?;
        Ok(tables.of_pool(pool)?.iter().any(|entry| entry.source == text))
    };
    while matches!(image::open(volume), Err(ImageError::InUse(_)))
        && begin.elapsed() < VOLUME_TIME_MAX
        && !is_mounted()?
    {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The mounts of a lane that is at no path yet.
struct Mounted {
    lane: LaneMounts,
    socket: OwnedFd,
    /// The device's number.
    device: u64,
    /// What no other lane of its service has had.
    id: u32,
    run_dir: PathBuf,
}

impl Mounted {
    /// Makes them, and agrees with the kernel on a protocol; with the FUSE device.
    fn make(options: &MountOptions, spec: &mut PoolSpec, lane: &str) -> Result<(Mounted, OwnedFd)> {
        let device = fuse_device::open_fuse()?;
        let source = options.source.text();
        let source = String::from_utf8_lossy(&source);
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.lane.suid);
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
        let (lane_mounts, socket, (major, minor)) =
            init::make_mounts(&device, (&source, attributes))?;
        let RunOptions { id_maps, kernel_cache, .. } = options.lane;
        let wants = fuse::Wants { acls: true, id_maps, kernel_cache };
        spec.fuse = Some(init::negotiate(&device, wants)?);
        spec.device = Some(format!("{major}:{minor}"));
        let (device_number, id) = (rustix::fs::makedev(major, minor), names::fresh_number(lane)?);
        let run_dir = names::run_dir(&format!("{lane}.{id}"), &options.path)?;
        let mounted = Mounted { lane: lane_mounts, socket, device: device_number, id, run_dir };
        Ok((mounted, device))
    }

    /// Puts the mount at its path and into the table.
    fn show(
        self,
        options: &MountOptions,
        (pool, ground): (&str, &Entry),
        point: &Point,
    ) -> Result<Joined> {
        let libraries = init::pick_up_libraries(
            run::find_library(&options.lane, Some(&self.run_dir)).as_deref(),
        )?;
        let dir = names::runtime_dir();
        let _own = Lock::of_path(&dir, options.path.as_os_str().as_bytes())?;
        let tables = Tables::lock(&dir)?;
        let instances = tables.of_service(pool, ground.service)?;
        let mut own = instances.iter().filter(|entry| entry.supervisor == ground.supervisor);
        if !own.any(|entry| entry.is_ground) {
            return Ok(Joined::Ends);
        }
        if tables.find(options.path.as_os_str().as_bytes())?.is_some() {
            return Err(Failure::failed(format!(
                "{}: busy: another lane was mounted there meanwhile",
                Shown::new(&options.path)
            )));
        }
        let last = instances.iter().map(|entry| entry.instance).max().unwrap_or(0);
        let number = point::mount_id(&self.lane.lane).and_then(|id| id.try_into().ok());
        let entry = Entry {
            service: ground.service,
            instance: last + 1,
            supervisor: ground.supervisor,
            device: self.device,
            id: self.id,
            mount: number.unwrap_or(0),
            unique: point::unique_of(&self.lane.lane),
            ..options.entry(&options.path)
        };
        tables.show(pool, &entry, (&self.lane.lane, point))?;
        let furnished = names::make_run_dir(&dir, &self.run_dir).and_then(|()| {
            init::furnish(&self.lane, &options.path, Some(&self.run_dir), &libraries)
        });
        drop(self.lane);
        match furnished {
            Ok(notice) => {
                if let Some(mut notice) = notice {
                    notice.begin();
                }
                Ok(Joined::Serves)
            }
            Err(failure) => {
                detach(&dir, &Mount { pool: pool.to_string(), entry })?;
                Err(failure)
            }
        }
    }
}

/// Whether an entry is a lane of its own in a service of others, and not one more path of one.
pub(super) fn is_own_lane(entry: &Entry, instances: &[Entry]) -> bool {
    let is_before = |other: &Entry| {
        other.service == entry.service
            && other.device == entry.device
            && other.instance < entry.instance
    };
    entry.instance > 0 && !instances.iter().any(is_before)
}

/// Other paths of such a lane.
fn shared<'a>(entry: &Entry, instances: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
    let (device, instance) = (entry.device, entry.instance);
    instances.iter().filter(move |other| other.device == device && other.instance > instance)
}

/// Takes the mount of such a lane away, in use or not, with all paths that share it.
///
/// # Errors
/// One line: the table cannot be read or written, one is in a lane that does not answer.
pub(super) fn detach(dir: &Path, mount: &Mount) -> Result<()> {
    let entry = &mount.entry;
    let those = |tables: &Tables| {
        let instances = tables.of_service(&mount.pool, entry.service)?;
        let is_it = |own: &&Entry| own.path == entry.path && own.id == entry.id;
        let own = instances.iter().filter(is_it).chain(shared(entry, &instances));
        Ok(own.cloned().collect())
    };
    match detach_those(dir, &mount.pool, those, After::Goes)? {
        true => Ok(()),
        false => Err(places::not_unmounted(entry, &Errno(libc::ETIMEDOUT))),
    }
}

/// Takes the mount of such a lane away, with what is its own in it. Its service is asked for that,
/// so the tables are not locked meanwhile. `instances`: those of its service.
///
/// # Errors
/// One line: it is in use.
pub(super) fn unmount(
    dir: &Path,
    mount: &Mount,
    instances: &[Entry],
) -> std::result::Result<(), Stays> {
    let entry = &mount.entry;
    if let Some(other) = shared(entry, instances).next() {
        return Err(Stays::new(Cause::Shared, places::is_shared(entry, other)));
    }
    // Two that put the run directory back would be in each other's way.
    let _own = Lock::of_path(dir, &entry.path)?;
    let Some(seen) = places::mount_of(entry) else {
        // Another command was faster.
        return match is_listed(&Tables::lock(dir)?, mount)? {
            true => Err(places::stays(entry, Errno::ENOENT)),
            false => Ok(()),
        };
    };
    let within = Path::new(std::ffi::OsStr::from_bytes(&seen.place)).join(RESERVED_DIR);
    holder::take_away(&within, || unmount_lane(dir, mount)).map_err(|why| places::stays(entry, why))
}

/// Whether a mount is still in its table.
fn is_listed(tables: &Tables, mount: &Mount) -> Result<bool> {
    let now = tables.find(&mount.entry.path)?;
    Ok(now.is_some_and(|now| now.entry.id == mount.entry.id))
}

/// Unmounts the lane itself, unless another command counts on it.
fn unmount_lane(dir: &Path, mount: &Mount) -> std::result::Result<(), Errno> {
    let entry = &mount.entry;
    let tables = Tables::lock(dir).map_err(|_| Errno::EBUSY)?;
    let instances = tables.of_service(&mount.pool, entry.service).map_err(|_| Errno::EIO)?;
    let is_it = |now: &&Entry| now.path == entry.path && now.id == entry.id;
    // Without it another command has taken the mount away.
    let Some(now) = instances.iter().find(is_it) else { return Ok(()) };
    if now.count > 1 || shared(entry, &instances).next().is_some() {
        return Err(Errno::EBUSY);
    }
    drop(tables);
    let seen = places::mount_of(entry).ok_or(Errno::ENOENT)?;
    let unmounted = point::unmount_last(&seen).map_err(|error| Errno(error.raw_os_error()))?;
    let removed = Tables::lock(dir).and_then(|tables| tables.remove(&mount.pool, &entry.path));
    unmounted.end();
    removed.map_err(|_| Errno::EIO)
}

/// The supervisor of a lane.
pub(super) fn process_of(entry: &Entry) -> Option<OwnedFd> {
    let pid = Pid::from_raw(entry.supervisor.cast_signed())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until the lane of a mount that is gone has ended in its service, durably; with the last
/// one the service ends.
///
/// # Errors
/// One line: not everything could be written back.
pub(super) fn end(mount: &Mount) -> Result<()> {
    let entry = &mount.entry;
    let supervisor = process_of(entry);
    let failed = |why: &str| {
        let path = Shown::new(std::ffi::OsStr::from_bytes(&entry.path)).to_string();
        Failure::failed(format!("{path}: unmounted, but {why}"))
    };
    let left = instance::leave((&mount.lane(), entry.supervisor), entry.id);
    match left.map_err(|failure| failed(&failure.to_string()))? {
        Left::Ended { is_last: false } => Ok(()),
        Left::Ended { is_last: true } => {
            if let Some(supervisor) = supervisor
                && !wait_for(supervisor.as_fd(), END_TIME_MAX)
            {
                return Err(failed("its supervisor does not end"));
            }
            cgroup::remove_session_groups();
            Ok(())
        }
        Left::Lost(why) => Err(failed(&why)),
    }
}
