//! The lanes of a run besides its first, each at a path of its own.
//!
//! Each has a supervisor and a service of its own, as a lane of the same pool that is named
//! `POOL@N`. Its mount is made in a mount namespace of the run, from which COMMAND's is copied. It
//! ends when COMMAND and all of the tenant's processes have ended, or when the run is killed, which
//! shows at the end of a line.
//!
//! The library has the fast way into them as into a lane that lasts: by an attachment, since their
//! mount namespace is not COMMAND's.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use polylane_base::shown::Shown;
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_volume::{self as volume, log};
use rustix::event::{PollFd, PollFlags};
use rustix::mount::{MountAttrFlags, UnmountFlags};
use serde::{Deserialize, Serialize};

use super::{LaneBeside, Owner, RunOptions, Source, check, name_of, pool_cpus, serve};
use crate::ceph::ClusterOptions;
use crate::failure::{FAILED, Failure, Result};
use crate::init::{self, Place};
use crate::link::{FromInit, Link, ToInit};
use crate::names::{self, PoolName, TakeLane};
use crate::pool_record::PoolRecord;
use crate::preload::LanePlace;
use crate::process::Process;
use crate::skeleton::{self, MountPoint};
use crate::spec::{FileCachePlace, WriteBack};
use crate::supervise::AtEnd;
use crate::timely::{self, SYNC_TIME_MAX};
use crate::user_namespace::rootless;
use crate::{cgroup, mounts};

/// The lanes that run. Dropped, they have ended durably.
#[derive(Debug, Default)]
pub(super) struct Beside {
    lanes: Rc<RefCell<Vec<Running>>>,
    /// The pool's groups, where they are the run's own.
    groups: Vec<PathBuf>,
    failed: Rc<RefCell<bool>>,
}

#[derive(Debug)]
struct Running {
    /// Its end is the lane's.
    link: Link,
    supervisor: Process,
    /// `None`: it did not start.
    place: Option<LanePlace>,
}

impl Running {
    /// Ends the lane; whether everything is durable.
    fn end(self) -> bool {
        let Running { link, mut supervisor, place: _ } = self;
        drop(link);
        supervisor.wait().is_ok_and(|ended| ended.status() == 0)
    }
}

/// What a lane tells the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum FromLane {
    /// Its run directory, and its mount path.
    Ready(Vec<u8>, Vec<u8>),
    /// An exit status and a line.
    Failed(u8, String),
}

/// The options of each lane of a run, the first one's first: what only another one can use is left
/// out.
///
/// # Errors
/// One line: what no lane can use, paths that are the same or within another, and what a run of
/// several lanes cannot be.
pub(super) fn parted(options: &RunOptions) -> Result<Vec<RunOptions>> {
    if options.more.is_empty() {
        check(options)?;
        return Ok(vec![options.clone()]);
    }
    if options.root || options.kernel_fs.is_some() {
        let what = if options.root { "--root" } else { "--kernel-fs" };
        return Err(Failure::usage(format!("{what}: only for a run of a single lane")));
    }
    if rootless().is_some() {
        return Err(Failure::failed(
            "--at: only root can have several lanes in one run: put one run into another",
        ));
    }
    let first = LaneBeside {
        source: options.source.clone(),
        lowers: options.lowers.clone(),
        at: options.at.clone(),
    };
    let lanes: Vec<LaneBeside> = std::iter::once(first).chain(options.more.clone()).collect();
    refuse_overlaps(&lanes)?;
    let whole = lanes.iter().map(|lane| options.with(lane));
    let mut refused = whole.clone().map(|options| check(&options));
    // What one lane can use is asked for with reason.
    if let Some(Err(failure)) = refused.next().filter(|_| refused.all(|one| one.is_err())) {
        return Err(failure);
    }
    let own: Vec<RunOptions> = whole.map(RunOptions::that_apply).collect();
    own.iter().try_for_each(check)?;
    Ok(own)
}

/// Refuses lanes of which one would cover another.
fn refuse_overlaps(lanes: &[LaneBeside]) -> Result<()> {
    let paths = lanes.iter().map(|lane| MountPoint::find(&lane.at).map(|point| point.path()));
    let paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
    for (index, path) in paths.iter().enumerate() {
        let others = paths.iter().enumerate().filter(|(other, _)| *other != index);
        if let Some((_, other)) = others.into_iter().find(|(_, other)| path.starts_with(other)) {
            let (path, other) = (Shown::new(path), Shown::new(other));
            return Err(Failure::usage(format!(
                "--at {path}: a lane of this run is at {other}: choose a path outside of it"
            )));
        }
    }
    Ok(())
}

impl RunOptions {
    /// These options for a lane.
    fn with(&self, lane: &LaneBeside) -> RunOptions {
        RunOptions {
            source: lane.source.clone(),
            lowers: lane.lowers.clone(),
            at: lane.at.clone(),
            more: Vec::new(),
            ..self.clone()
        }
    }

    /// Without what a lane on such a source has not.
    fn that_apply(mut self) -> RunOptions {
        if !self.source.is_volume() {
            self.cache = polylane_volume::SetOptions::default();
            let WriteBack { volatile, file_cache, dirty_bytes_limit, flush_interval_us, .. } =
                self.write_back;
            let kept = WriteBack { volatile, file_cache, ..WriteBack::default() };
            self.write_back = match file_cache.is_some_and(|cache| cache.keeps_back()) {
                true => WriteBack { dirty_bytes_limit, flush_interval_us, ..kept },
                false => kept,
            };
        }
        if !matches!(self.source, Source::Volume(_)) {
            (self.medium, self.qos) = (None, None);
        }
        if !self.source.is_volume() && self.source != Source::Mem {
            self.size = None;
        }
        let is_upper = !self.lowers.is_empty() && self.source != Source::Lowers;
        self.write_back.volatile &= is_upper;
        if !is_upper && let Some(cache) = &mut self.write_back.file_cache {
            cache.over = FileCachePlace::All;
        }
        if self.ceph_places().is_empty() && !matches!(self.source, Source::Image(_)) {
            self.cluster = ClusterOptions::default();
        }
        self
    }
}

/// Starts lanes, and enters a mount namespace in which they are.
///
/// # Errors
/// One line when one cannot be started; then none is.
pub(super) fn start(
    lanes: &[RunOptions],
    record: Option<&PoolRecord>,
    take: TakeLane,
) -> Result<Beside> {
    let mut beside = Beside::default();
    let Some(one) = lanes.first() else { return Ok(beside) };
    let pool = name_of(one);
    if record.is_none() {
        beside.groups = cgroup::plan_lanes(&pool, &one.limits()).dirs();
    }
    let failed = |error| Failure::because("mount namespace", "make one", error);
    ns::unshare_mounts().map_err(failed)?;
    mounts::cut_off().map_err(failed)?;
    for options in lanes {
        let started = start_one(options, (&pool, record, take), &beside)?;
        beside.lanes.borrow_mut().push(started);
    }
    Ok(beside)
}

fn start_one(
    options: &RunOptions,
    (pool, record, take): (&str, Option<&PoolRecord>, TakeLane),
    earlier: &Beside,
) -> Result<Running> {
    let failed = |error: std::io::Error| Failure::because("lane", "start its supervisor", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    let supervisor = match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => {
            drop(link);
            // They end when the run's own ends of their lines close.
            for lane in earlier.lanes.borrow_mut().drain(..) {
                lane.supervisor.release();
            }
            supervise(options.clone(), (pool, record, take), other)
        }
        Fork::Parent(child) => Process::new(child),
    };
    drop(other);
    let told = link.receive::<FromLane>();
    let mut running = Running { link, supervisor, place: None };
    let refused = match told {
        Ok(Some((FromLane::Ready(run_dir, mount), _))) => {
            let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
            running.place = Some(LanePlace { run_dir: path(run_dir), mount: path(mount) });
            return Ok(running);
        }
        Ok(Some((FromLane::Failed(status, line), _))) => Failure { status, line },
        _ => Failure::failed("lane: its supervisor ended before it served"),
    };
    running.end();
    Err(refused)
}

/// The life of a lane's supervisor.
fn supervise(
    options: RunOptions,
    (pool, record, take): (&str, Option<&PoolRecord>, TakeLane),
    caller: Link,
) -> ! {
    // The terminal's signals are for COMMAND.
    let _ = rustix::process::setsid();
    let dir = names::runtime_dir();
    let refusal = caller.as_fd().try_clone_to_owned().map(Link::from_fd);
    let served = take(&dir, pool).and_then(|lane| {
        let name = lane.as_str().to_string();
        log::name("polylane", &name);
        let status = serve_one(options, (pool, record), lane, caller);
        // Where it did not get as far as to its end.
        if let Ok(Some(name)) = PoolName::take_over(&dir, &name) {
            name.remove_files();
        }
        status
    });
    let status = served.unwrap_or_else(|failure| {
        let told = FromLane::Failed(failure.status, failure.line.clone());
        if refusal.is_err() || refusal.is_ok_and(|link| link.send(&told, &[]).is_err()) {
            crate::failure::say(&failure);
        }
        failure.status
    });
    ns::exit_now(status.into())
}

fn serve_one(
    options: RunOptions,
    (pool, record): (&str, Option<&PoolRecord>),
    lane: PoolName,
    caller: Link,
) -> Result<u8> {
    // 'pool rm' looks for names of lanes before and after it removes the record.
    let record = match record {
        Some(_) => Some(PoolRecord::expect(&volume::state_dir()?, pool)?),
        None => None,
    };
    let point = MountPoint::find(&options.at)?;
    let run_dir = names::run_dir(lane.as_str(), &point.path())?;
    let cpus = pool_cpus(options.cpus.as_ref())?;
    let place = Place::At(point.clone());
    let suid = options.suid;
    let (dir, of_holder) = (run_dir.clone(), point.path());
    let first = |device: Option<OwnedFd>, is_new| {
        let device = device.ok_or_else(|| Failure::failed("/dev/fuse: only root can hold it"))?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !(suid || is_new));
        start_holder(Plan { device, run_dir: dir, point, attributes, caller })
    };
    let at_end = AtEnd(Box::new(move || detach(&of_holder)));
    let pool = pool.to_string();
    let owner = match record {
        Some(_) => Owner::Pool { pool, record, lane, log: None },
        None => Owner::Beside { pool, lane },
    };
    serve(options, owner, (&place, Some(&run_dir), cpus), (first, at_end), None)
}

/// What the first process of a lane is to do; fixed before the fork.
struct Plan {
    device: OwnedFd,
    run_dir: PathBuf,
    point: MountPoint,
    attributes: MountAttrFlags,
    caller: Link,
}

fn start_holder(plan: Plan) -> Result<(Process, Link)> {
    let failed = |error: std::io::Error| Failure::because("lane", "start its first process", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => hold(plan, &other),
        Fork::Parent(child) => Ok((Process::new(child), link)),
    }
}

/// The life of a lane's first process, in place of a tenant's init: it makes the mount and takes it
/// away. It is a process of its own because looking at a lane may wait for its service, which the
/// supervisor must not.
fn hold(plan: Plan, link: &Link) -> ! {
    let _ = rustix::thread::set_name(c"polylane-hold");
    let kept = [link.as_fd(), plan.device.as_fd(), plan.caller.as_fd()];
    let _ = ns::keep_only(&kept);
    let Plan { device, run_dir, point, attributes, caller } = plan;
    let path = point.path();
    let made = init::expect(link, ToInit::Begin)
        .and_then(|()| init::mount_lane(Some(device), (mounts::SOURCE, attributes), link))
        .and_then(|made| {
            let failed = |error| Failure::path(&path, "mount the lane there", error);
            skeleton::build(&point).map_err(failed)?;
            mounts::attach_at(&made.lane, &path).map_err(failed)?;
            init::furnish(&made, &path, Some(&run_dir), &[]).map(drop)
        });
    if let Err(Failure { status, line }) = made {
        let _ = caller.send(&FromLane::Failed(status, line), &[]);
        ns::exit_now(FAILED.into());
    }
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let _ = caller.send(&FromLane::Ready(bytes(&run_dir), bytes(&path)), &[]);
    wait_for_end(link, &caller);
    let _ = link.send(&FromInit::Alone, &[]);
    // Mapped files: the service must have every byte that the kernel still holds.
    // What is not written then its service says.
    let _ = timely::sync(&path, SYNC_TIME_MAX);
    detach(&path);
    ns::exit_now(0)
}

/// Waits until the run's end of the line closes, or the supervisor's, or that one asks for it.
fn wait_for_end(link: &Link, caller: &Link) {
    loop {
        let mut fds = [PollFd::new(link, PollFlags::IN), PollFd::new(caller, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        match link.receive::<ToInit>() {
            // Other signals are for COMMAND, with which the lane ends.
            Ok(Some((ToInit::Signal(libc::SIGKILL) | ToInit::Unmount { .. }, _))) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

fn detach(path: &Path) {
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

impl Beside {
    /// Where the library finds them.
    pub(super) fn places(&self) -> Vec<LanePlace> {
        self.lanes.borrow().iter().filter_map(|lane| lane.place.clone()).collect()
    }

    /// What is done at the end of the first lane, before its groups are removed.
    pub(super) fn at_end(&self) -> AtEnd {
        let (lanes, failed) = (Rc::clone(&self.lanes), Rc::clone(&self.failed));
        AtEnd(Box::new(move || {
            // All begin to write back before the first is waited for.
            let ending: Vec<Running> = lanes.borrow_mut().drain(..).collect();
            let (links, supervisors): (Vec<Link>, Vec<Process>) =
                ending.into_iter().map(|lane| (lane.link, lane.supervisor)).unzip();
            drop(links);
            for mut supervisor in supervisors {
                if !supervisor.wait().is_ok_and(|ended| ended.status() == 0) {
                    *failed.borrow_mut() = true;
                }
            }
        }))
    }

    /// The status of a run that ended so, with what came of these lanes.
    pub(super) fn status(self, status: u8) -> u8 {
        (self.at_end().0)();
        match (*self.failed.borrow(), status) {
            (true, 0) => FAILED,
            (_, status) => status,
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let there = !self.lanes.borrow().is_empty();
        (self.at_end().0)();
        if there {
            cgroup::remove(&self.groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(source: Source, at: &str) -> LaneBeside {
        LaneBeside { source, lowers: Vec::new(), at: PathBuf::from(at) }
    }

    fn options(at: &str, more: Vec<LaneBeside>) -> RunOptions {
        let at = PathBuf::from(at);
        RunOptions { at, more, ..RunOptions::new(Source::Mem, vec!["true".into()]) }
    }

    #[test]
    fn each_lane_has_the_options_that_it_can_use() {
        let volume = Source::Volume(Some("/v.img".into()));
        let dir = Source::Dir("/srv".into());
        let more = vec![lane(volume.clone(), "/no/b"), lane(dir.clone(), "/no/c")];
        let mut all = options("/no/a", more);
        (all.size, all.weight) = (Some(64 << 20), Some(7));
        all.write_back.discard = true;
        let lanes = parted(&all).expect("right");
        let of: Vec<_> = lanes
            .iter()
            .map(|one| (one.source.clone(), one.size, one.write_back.discard, one.weight))
            .collect();
        let size = Some(64 << 20);
        let expected = [
            (Source::Mem, size, false, Some(7)),
            (volume, size, true, Some(7)),
            (dir, None, false, Some(7)),
        ];
        assert_eq!(of, expected);
        assert!(lanes.iter().all(|one| one.more.is_empty()));
        all.more.remove(0);
        let failure = parted(&all).expect_err("no lane is on a volume");
        assert!(failure.status == 2 && failure.line.contains("--discard"), "{failure}");
    }

    #[test]
    fn lanes_do_not_cover_each_other() {
        for (one, other, covered) in [
            ("/no/a", "/no/a", true),
            ("/no/a", "/no/a/b", true),
            ("/no/a/b", "/no/a", true),
            ("/no/a", "/no/ab", false),
        ] {
            let parts = parted(&options(one, vec![lane(Source::Mem, other)]));
            assert_eq!(parts.is_err(), covered, "{one} {other}");
            assert!(parts.err().is_none_or(|failure| failure.status == 2));
        }
        let mut root = options("/no/a", vec![lane(Source::Mem, "/no/b")]);
        root.root = true;
        assert_eq!(parted(&root).expect_err("refused").status, 2);
    }
}
