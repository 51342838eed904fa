//! `polylane mount`: from a SOURCE and a PATH to a lane that serves.
//!
//! The order matters, since every step may be the last one of a process that is killed:
//!
//! 1. Under the lock of the tables: PATH is looked for; the lane's name is taken, which the kernel
//!    lets go of when its last holder ends; the entry is made, as one that starts.
//! 2. The supervisor is forked, which inherits the name, and goes on without the command.
//! 3. It opens the source and forks the keeper and the holder; the holder makes the mount, writes
//!    its device number into the entry, shows it at PATH, and marks the entry as one that serves.
//! 4. The command is told, and ends.
//!
//! Until 2 a kill leaves an entry whose name no process holds: any later command removes it. From 3
//! on the keeper and the holder clear up after a supervisor that is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polylane_base::shown::Shown;
use polylane_base::sync::thread;
use polylane_sys::event;
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_volume::{self as volume, log};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::holder::{self, FromLane};
use super::options::{MountOptions, Mounted};
use super::point::Point;
use super::share::{self, Shared, Wanted};
use super::table::Entry;
use super::tables::{LaneOwner, Mount, Tables, detach_all, forget};
use super::users;
use super::{join, places};
use crate::cgroup;
use crate::failure::{Failure, Result, say};
use crate::init::Place;
use crate::instance::Joined;
use crate::limits::CallerLimits;
use crate::link::Link;
use crate::names::{self, PoolName};
use crate::orphans::{wait_for_service, wait_for_volume};
use crate::own_log::OwnLog;
use crate::pool_record::PoolRecord;
use crate::process::Process;
use crate::run::{self, Owner, Source};
use crate::skeleton::MountPoint;
use crate::supervise::AtEnd;
use crate::user_namespace::rootless;

/// The pool of lanes that are mounted in none.
pub const POOL_DEFAULT: &str = "default";

/// How long another command that mounts the same may take.
const OTHER_TIME_MAX: Duration = Duration::from_secs(60);

/// Most of a lane's messages that are passed on to the command that waits for it.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// Mounts a lane that outlives this process.
///
/// # Errors
/// One line: PATH cannot be used or has another lane, the source cannot be opened, no such pool.
/// Nothing is left behind.
pub fn mount(mut options: MountOptions) -> Result<Mounted> {
    CallerLimits::lift_for_lane()?;
    let path = places::find(&options.path)?;
    if rootless().is_some() {
        return Err(Failure::failed(
            "mount: only root can show a lane to this host: use 'polylane run', or root's shell of \
             a user namespace (unshare --user --map-root-user --mount)",
        ));
    }
    options.lane.source = options.source.source.clone();
    options.lane.size = options.lane.size.or(options.source.size);
    options.lane.lowers.clone_from(&options.source.lowers);
    options.lane.at.clone_from(&path);
    let record = record_of(&options)?;
    if let Some(record) = &record {
        options.lane = options.lane.in_pool(record);
    }
    run::check(&options.lane)?;
    options.path = path;
    let (mut joins, begun) = (join::may_join(&options, record.as_ref()), Instant::now());
    loop {
        match reserve(&options, joins)? {
            Reserved::Served(mounted) => return Ok(mounted),
            Reserved::New(new, cleared) => {
                start(options, *new, &cleared)?;
                return Ok(Mounted::New);
            }
            Reserved::Ground(new, cleared) => start(join::ground(&options), *new, &cleared)?,
            Reserved::Joins(ground, point) => {
                let pool = options.pool.as_deref().unwrap_or(POOL_DEFAULT);
                match join::join(&options, (pool, &ground), &point)? {
                    Joined::Serves => return Ok(Mounted::Shared),
                    Joined::Ends => wait_for_other(&options, begun)?,
                    Joined::Unlike => joins = false,
                    Joined::Failed(line) => return Err(Failure::failed(line)),
                }
            }
        }
    }
}

/// The pool that the lane is to be in; `None`: that of lanes in none, unless it was made.
fn record_of(options: &MountOptions) -> Result<Option<PoolRecord>> {
    let state = volume::state_dir()?;
    match options.pool.as_deref() {
        Some(pool) if pool != POOL_DEFAULT => PoolRecord::expect(&state, pool).map(Some),
        _ => PoolRecord::load(&state, POOL_DEFAULT),
    }
}

/// What the tables say to a mount.
enum Reserved {
    /// It is there already, or is now.
    Served(Mounted),
    /// This lane is to be; services of these dead ones may still be writing back to its source.
    New(Box<Reservation>, Vec<String>),
    /// A service is to be first, which this lane can join then.
    Ground(Box<Reservation>, Vec<String>),
    /// The lane can join this service.
    Joins(Entry, Point),
}

/// A lane whose entry says that it starts.
struct Reservation {
    dir: PathBuf,
    pool: String,
    record: Option<PoolRecord>,
    name: PoolName,
    entry: Entry,
    point: Point,
    log: OwnLog,
}

/// Finds out what is at PATH, and makes the entry of a new lane.
fn reserve(options: &MountOptions, joins: bool) -> Result<Reserved> {
    let dir = names::runtime_dir();
    let start = Instant::now();
    let mut opened: Option<(Shared, OwnedFd)> = None;
    let (source, mut cleared, mut refused_before) = (options.source.text(), Vec::new(), false);
    loop {
        // Before the lock: it may be in another lane, whose service may be stopped.
        let point = Point::open(&options.path);
        let (tables, dead) = Tables::lock_cleared(&dir)?;
        // Services of other sources are none of this lane's to wait for.
        let same = dead.iter().filter(|mount| mount.entry.source == source);
        cleared.extend(same.map(Mount::lane));
        let path = options.path.as_os_str().as_bytes();
        let Some(there) = tables.find(path)? else {
            tables.expect_none_unread(path)?;
            // A lane may have been there when the path was opened, and gone since: by this command
            // or by another one.
            if point.is_err() && !(refused_before && dead.is_empty()) {
                refused_before = true;
                continue;
            }
            let point = point?;
            let pool = options.pool.as_deref().unwrap_or(POOL_DEFAULT);
            let (source, path) = (&options.source, options.path.as_path());
            let users = users::text(options.lane.map_users.as_ref());
            let (read_only, lane) = (options.read_only, &options.lane);
            let access_times = lane.access_times;
            let flags = [lane.id_maps, lane.kernel_cache];
            let wanted = Wanted { source, path, read_only, users: &users, flags, access_times };
            let found = if options.share { share::base(&tables, pool, &wanted)? } else { None };
            if let Some(shared) = found {
                if attach(tables, (pool, shared), &mut opened, &wanted, &point)? {
                    return Ok(Reserved::Served(Mounted::Shared));
                }
                wait_for_other(options, start)?;
                continue;
            }
            refuse_subtree(options, pool)?;
            match if joins { join::find(&tables, pool, source)? } else { None } {
                Some(ground) if !ground.starting => return Ok(Reserved::Joins(ground, point)),
                // Another command starts it now.
                Some(_) => drop(tables),
                None => {
                    return Reservation::reserve(&tables, dir, (options, joins), point, cleared);
                }
            }
            wait_for_other(options, start)?;
            continue;
        };
        refuse_other(options, &there)?;
        let is_still = !there.entry.starting && !tables.is_changing(&there.entry.path);
        let now = places::now_at(&there.entry).filter(|_| is_still);
        if let Some(place) = now {
            refuse_elsewhere(options, &there.entry, &place)?;
            let count = there.entry.count + u32::from(!options.once);
            if !options.once {
                tables.put(&there.pool, &Entry { count, ..there.entry })?;
            }
            return Ok(Reserved::Served(Mounted::Again(count)));
        }
        // Another command mounts or unmounts the very same now.
        drop(tables);
        wait_for_other(options, start)?;
    }
}

/// Mounts one more path of a service; `false`: it is to be tried again, with the directory that is
/// `opened` by then, or after another command.
fn attach(
    tables: Tables,
    (pool, shared): (&str, Shared),
    opened: &mut Option<(Shared, OwnedFd)>,
    wanted: &Wanted<'_>,
    point: &Point,
) -> Result<bool> {
    if let Some((_, root)) = opened.take().filter(|(of, _)| *of == shared) {
        return share::attach(tables, pool, (&shared.base, &root), wanted, point);
    }
    // Services are asked, which others are not to wait for.
    drop(tables);
    let root = shared.root().and_then(|root| shared.open(root))?;
    *opened = Some((shared, root));
    Ok(false)
}

/// Waits a moment for another command that mounts or unmounts the same since `start`.
fn wait_for_other(options: &MountOptions, start: Instant) -> Result<()> {
    if start.elapsed() > OTHER_TIME_MAX {
        return Err(Failure::failed(format!(
            "{}: another command has been mounting or unmounting it for {} s",
            Shown::new(&options.path),
            OTHER_TIME_MAX.as_secs()
        )));
    }
    thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Refuses a directory in a lane that is not there to be shared.
fn refuse_subtree(options: &MountOptions, pool: &str) -> Result<()> {
    if options.source.subtree.as_os_str().is_empty() {
        return Ok(());
    }
    let text = options.source.text();
    let source = Shown::new(OsStr::from_bytes(&text)).to_string();
    Err(match options.share {
        true => Failure::failed(format!(
            "{source}: no lane of which this is a part is in pool '{pool}': mount that first"
        )),
        false => Failure::usage(format!(
            "{source}: a directory in a lane: write --share to mount it from the lane's service"
        )),
    })
}

/// Refuses a path whose lane is at another `place` now, or in another mount namespace.
fn refuse_elsewhere(options: &MountOptions, entry: &Entry, place: &[u8]) -> Result<()> {
    let path = Shown::new(&options.path);
    if place != entry.path {
        return Err(Failure::failed(format!(
            "{path}: the lane that was mounted there is at {} now: umount it first",
            Shown::new(OsStr::from_bytes(place))
        )));
    }
    match places::mount_of(entry) {
        Some(_) => Ok(()),
        None => Err(Failure::failed(format!(
            "{path}: busy: in another mount namespace, that of process {}, a lane is mounted \
             there: umount it first",
            entry.supervisor
        ))),
    }
}

/// Refuses a mount where something else is.
fn refuse_other(options: &MountOptions, there: &Mount) -> Result<()> {
    let entry = &there.entry;
    let (asked, has) = (options.source.text(), &entry.source);
    let path = Shown::new(&options.path);
    if asked != *has {
        let (asked, has) = (OsStr::from_bytes(&asked), OsStr::from_bytes(has));
        return Err(Failure::failed(format!(
            "{path}: busy: {} is mounted there, and {} cannot be: umount it first",
            Shown::new(has),
            Shown::new(asked)
        )));
    }
    if let Some(pool) = options.pool.as_ref().filter(|pool| **pool != there.pool) {
        return Err(Failure::failed(format!(
            "{path}: busy: mounted in pool '{}', and cannot be in '{pool}': umount it first",
            there.pool
        )));
    }
    let (asked, has) = (users::text(options.lane.map_users.as_ref()), &entry.users);
    if asked.as_bytes() != has {
        let words = |users: &str| match users {
            "" => "its files' own users".to_string(),
            users => format!("--map-users {users}"),
        };
        let has = String::from_utf8_lossy(has);
        return Err(Failure::failed(format!(
            "{path}: busy: mounted with {}, and cannot be with {}: umount it first",
            words(&has),
            words(&asked)
        )));
    }
    let flags = [
        ("--idmap", options.lane.id_maps, entry.id_maps),
        ("--kernel-cache", options.lane.kernel_cache, entry.kernel_cache),
    ];
    if let Some((flag, asked, has)) = flags.into_iter().find(|(_, asked, has)| asked != has) {
        let words = |is| if is { "with" } else { "without" };
        return Err(Failure::failed(format!(
            "{path}: busy: mounted {} {flag}, and cannot be {}: umount it first",
            words(has),
            words(asked)
        )));
    }
    if options.lane.access_times != entry.access_times {
        return Err(Failure::failed(format!(
            "{path}: busy: mounted with {}, and cannot be with {}: umount it first",
            entry.access_times.name(),
            options.lane.access_times.name()
        )));
    }
    match options.read_only == entry.read_only {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{path}: busy: mounted {}: umount it first",
            if entry.read_only { "read-only" } else { "to be written to" }
        ))),
    }
}

impl Reservation {
    /// Of the lane, or of the service that it joins.
    fn reserve(
        tables: &Tables,
        dir: PathBuf,
        (options, joins): (&MountOptions, bool),
        point: Point,
        mut cleared: Vec<String>,
    ) -> Result<Reserved> {
        if joins {
            let ground = join::ground(options);
            let new = Reservation::make(tables, dir, &ground, None, &mut cleared)?;
            return Ok(Reserved::Ground(Box::new(new), cleared));
        }
        let new = Reservation::make(tables, dir, options, Some(point), &mut cleared)?;
        Ok(Reserved::New(Box::new(new), cleared))
    }

    /// Adds to `cleared` the lane that had the number until a moment ago. Without a `point` the
    /// lane is where nobody sees it.
    fn make(
        tables: &Tables,
        dir: PathBuf,
        options: &MountOptions,
        point: Option<Point>,
        cleared: &mut Vec<String>,
    ) -> Result<Reservation> {
        let pool = options.pool.clone().unwrap_or_else(|| POOL_DEFAULT.to_string());
        // Under the lock of the tables, which 'pool rm' holds as well.
        let record = record_of(options)?;
        let (name, had) = tables.take_lane(&pool)?;
        let (_, service) = names::lane_number(name.as_str()).unwrap_or_default();
        if had {
            cleared.push(name.as_str().to_string());
        }
        let made = (|| {
            let (path, point) = match point {
                Some(point) => (options.path.clone(), point),
                None => {
                    let path = name.make_ground()?;
                    let point = Point::open(&path)?;
                    (path, point)
                }
            };
            let supervisor = std::process::id();
            let entry = Entry { service, supervisor, starting: true, ..options.entry(&path) };
            // The entry last: what fails before it leaves none.
            let log = OwnLog::make(&name.log_file())?;
            tables.put(&pool, &entry)?;
            Ok((entry, point, log))
        })();
        match made {
            Ok((entry, point, log)) => {
                Ok(Reservation { dir, pool, record, name, entry, point, log })
            }
            Err(failure) => {
                name.remove_files();
                Err(failure)
            }
        }
    }
}

/// Forks the supervisor and waits until its lane serves.
fn start(mut options: MountOptions, new: Reservation, cleared: &[String]) -> Result<()> {
    options.path = PathBuf::from(OsStr::from_bytes(&new.entry.path));
    options.lane.at.clone_from(&options.path);
    let failed = |error| Failure::because("lane", "start its supervisor", error);
    let (own, other) = Link::pair().map_err(|error| failed(error.into()))?;
    let log = new.log.file().try_clone().map_err(failed)?;
    // A fork, not a thread: it goes on when this process has ended.
    let mut supervisor = match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => {
            drop(own);
            supervise(options, new, cleared, other)
        }
        Fork::Parent(child) => Process::new(child),
    };
    // The child has the name now.
    drop((new, other));
    let told = own.receive::<FromLane>();
    pass_on(log);
    let outcome = match told {
        Ok(Some((FromLane::Ready, _))) => Ok(()),
        Ok(Some((FromLane::Failed(status, line), _))) => Err(Failure { status, line }),
        _ => Err(Failure::failed("lane: its supervisor ended before it served")),
    };
    match outcome {
        // The supervisor outlives this command.
        Ok(()) => supervisor.release(),
        Err(_) => drop(supervisor.wait()),
    }
    outcome
}

/// Says what the lane has said so far.
fn pass_on(mut log: File) {
    use std::io::Seek;
    let mut text = String::new();
    let rewound = log.rewind().is_ok();
    if rewound && log.take(LOG_BYTES_MAX).read_to_string(&mut text).is_ok() {
        eprint!("{text}");
    }
}

/// The supervisor's life.
fn supervise(options: MountOptions, mut new: Reservation, cleared: &[String], caller: Link) -> ! {
    new.entry.supervisor = std::process::id();
    let (dir, owner) = (new.dir.clone(), LaneOwner::of(&new.pool, &new.entry));
    let refusal = caller.as_fd().try_clone_to_owned().map(Link::from_fd);
    let served = Tables::lock(&dir)
        .and_then(|tables| tables.put(&new.pool, &new.entry))
        .and_then(|()| leave_surroundings(&new.log))
        .and_then(|()| serve(options, new, cleared, caller));
    // Where it did not get as far as to its end.
    detach_all(&dir, &owner);
    forget(&dir, &owner);
    let name = names::lane_name(&owner.pool, owner.service);
    if let Ok(Some(name)) = PoolName::take_over(&dir, &name) {
        name.remove_files();
    }
    let status = match served {
        Ok(status) => status,
        Err(failure) => {
            let told = FromLane::Failed(failure.status, failure.line.clone());
            // A command that has its answer is not there any more.
            if refusal.is_err() || refusal.is_ok_and(|link| link.send(&told, &[]).is_err()) {
                say(&failure);
            }
            failure.status
        }
    };
    ns::exit_now(status.into())
}

/// Leaves the session, the directory, the files and the groups of the command.
fn leave_surroundings(log: &OwnLog) -> Result<()> {
    let failed = |error: rustix::io::Errno| Failure::because("lane", "leave the session", error);
    rustix::process::setsid().map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    rustix::stdio::dup2_stderr(log.file()).map_err(failed)?;
    ns::close_inherited()
        .map_err(|error| Failure::because("lane", "close its caller's files", error))?;
    cgroup::leave_session();
    Ok(())
}

/// Serves the lane until it is unmounted; the exit status.
fn serve(options: MountOptions, new: Reservation, cleared: &[String], caller: Link) -> Result<u8> {
    let Reservation { dir, pool, record, name, entry, point, log } = new;
    log::name("polylane", name.as_str());
    let lane_owner = LaneOwner::of(&pool, &entry);
    // Before the volume is opened: they may hold it.
    cleared.iter().for_each(|lane| wait_for_service(lane));
    if let Source::Volume(Some(path)) = &options.lane.source {
        wait_for_volume(path);
    }
    let place = Place::At(MountPoint { exists: options.path.clone(), missing: PathBuf::new() });
    let cpus = run::pool_cpus(options.lane.cpus.as_ref())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.lane.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    let run_dir = names::run_dir(name.as_str(), &options.path)?;
    let library = run::find_library(&options.lane, Some(&run_dir));
    let for_serve = run_dir.clone();
    let lane = name.as_str().to_string();
    let for_holder = pool.clone();
    let failed = |error: std::io::Error| Failure::because("lane", "start its first process", error);
    let at_home = event::eventfd().map_err(|errno| failed(errno.into()))?;
    let waited = at_home.try_clone().map_err(failed)?;
    let plan = |device| holder::Plan {
        device,
        library,
        run_dir,
        point,
        attributes,
        dir,
        pool: for_holder,
        lane,
        entry,
        caller,
        at_home: waited,
    };
    let owner = Owner::Pool { pool, record, lane: name, log: Some(log) };
    let first = |device: Option<OwnedFd>, _| {
        let device = device.ok_or_else(|| Failure::failed("/dev/fuse: only root can hold it"))?;
        start_holder(plan(device))
    };
    // A holder that was killed has left them.
    let at_end = AtEnd(Box::new(move || detach_all(&names::runtime_dir(), &lane_owner)));
    let place = (&place, Some(for_serve.as_path()), cpus);
    run::serve(options.lane, owner, place, (first, at_end), Some(at_home))
}

fn start_holder(plan: holder::Plan) -> Result<(Process, Link)> {
    let failed = |error: std::io::Error| Failure::because("lane", "start its first process", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => holder::main(plan, &other),
        Fork::Parent(child) => Ok((Process::new(child), link)),
    }
}
