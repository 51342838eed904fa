//! `polylane run`: from the options to COMMAND's exit status.
//!
//! The order matters: whatever can be refused is refused before anything exists; the keeper runs
//! before the first group or file is made; the init is forked while this process has one thread.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_ipc::layout::GROUPS_MAX;
use polylane_ipc::message::RESERVED_DIR;
use polylane_sys::ns::{self, SignalFd};
use polylane_vfs::mapped::IdMap;
use polylane_volume::cache::CacheSpec;
use polylane_volume::cpus::CpuList;
use polylane_volume::translation::Translation;
use polylane_volume::{self as volume, Kept, log};

use crate::build::Handed;
use crate::ceph;
use crate::cgroup::{self, Leaf};
use crate::copying::Copies;
use crate::failure::{Failure, Result, say};
use crate::fuse_device;
use crate::init::{Place, Plan, Rights};
use crate::keeper::{Duty, Keeper, Leftovers};
use crate::kernel_fs::{self, Disk, KernelLane, Tenant};
use crate::limits::{self, CallerLimits};
use crate::link::Link;
use crate::lower;
use crate::names::{self, PoolName, TakeLane};
use crate::orphans::wait_for_orphans;
use crate::pool_record::PoolRecord;
use crate::process::Process;
use crate::rbd::{self, ImageSpec};
use crate::relay::Relay;
use crate::share::member::Member;
use crate::share::profile::Profile;
use crate::share::{Meeting, Policy, WEIGHT_DEFAULT, Wanted};
use crate::skeleton::MountPoint;
use crate::solidify::Solidifying;
use crate::spec::{Backing, PoolSpec};
use crate::supervise::{AtEnd, Instances, Supervisor};
use crate::user_namespace::rootless;
use crate::watchdog::Watchdog;
use crate::{confine, preload, root};

mod beside;
mod check;
mod first;
mod instance;
mod options;
mod owner;

use beside::Beside;
pub use check::MEMORY_BYTES_MIN;
pub(crate) use check::{DIRTY_BYTES_MIN, check};
use first::{fork_failed, rights, start_init};
pub(crate) use instance::instance;
pub use options::{AT_DEFAULT, LaneBeside, RunOptions, Source};
pub(crate) use owner::Owner;
use owner::{joined, run_in_pool};

/// Name of a pool with a volume of its own that was given none.
const POOL_DEFAULT: &str = "default";

/// One inode for so many bytes of a lane in RAM, as tmpfs counts them (one per page of memory).
const BYTES_PER_INODE: u64 = 4096;

/// Fewest inodes of a lane in RAM.
const INODES_MIN: u64 = 1024;

/// Runs COMMAND in a pool; its exit status, or 128 + n when signal n ended it.
///
/// # Errors
/// One line and exit status 1 or 2 when COMMAND could not be started at all; nothing is left
/// behind.
pub(crate) fn run(options: RunOptions, take: TakeLane) -> Result<u8> {
    // Services of lanes whose supervisors were killed are none of this one's (`orphans`).
    let _ = rustix::process::set_child_subreaper(None);
    let mut lanes = beside::parted(&options)?;
    if options.command.is_empty() {
        return Err(Failure::usage("no COMMAND: write it after '--'"));
    }
    let record = joined(&options)?;
    if let Some(record) = &record {
        lanes = lanes.into_iter().map(|lane| lane.in_pool(record)).collect();
    }
    let limits = CallerLimits::lift_for_lane()?;
    let options = lanes.remove(0);
    let beside = beside::start(&lanes, record.as_ref(), take)?;
    let status = run_first(options, (record, take), &beside, limits)?;
    Ok(beside.status(status))
}

/// Runs COMMAND with the first lane of its run.
fn run_first(
    options: RunOptions,
    (record, take): (Option<PoolRecord>, TakeLane),
    beside: &Beside,
    limits: CallerLimits,
) -> Result<u8> {
    let place = match options.root {
        true => Place::Root,
        false => Place::At(MountPoint::find(&options.at)?),
    };
    let cpus = pool_cpus(options.cpus.as_ref())?;
    match (options.kernel_fs, record) {
        (Some(lane), _) => run_on_kernel_fs(options, lane, place, (&cpus, limits)),
        (None, Some(record)) => run_in_pool(record.name, take, |owner| {
            run_with_service(options, owner, (place, beside), (cpus, limits))
        }),
        (None, None) => {
            let owner = Owner::Run(pool_name(&options));
            run_with_service(options, owner, (place, beside), (cpus, limits))
        }
    }
}

fn run_with_service(
    mut options: RunOptions,
    owner: Owner,
    (place, beside): (Place, &Beside),
    (cpus, caller): (CpuList, CallerLimits),
) -> Result<u8> {
    let run_dir = match place {
        Place::At(_) => Some(names::run_dir(owner.name(), &place.path())?),
        // All that its programs load is the lane's.
        Place::Root => None,
    };
    let library = find_library(&options, run_dir.as_deref());
    let rootless = rootless();
    let plan = Plan {
        place: place.clone(),
        rootless,
        fuse: None,
        kernel_fs: None,
        library,
        run_dir: run_dir.clone(),
        beside: beside.places(),
        command: std::mem::take(&mut options.command),
        directory: working_directory(options.root),
        rights: Rights::default(),
    };
    let asked = options.clone();
    let first = |fuse, is_new| {
        let rights = rights(&asked, is_new, caller);
        start_init(Plan { fuse, rights, ..plan })
    };
    // With the init go its namespaces, and with them the mounts.
    serve(options, owner, (&place, run_dir.as_deref(), cpus), (first, beside.at_end()), None)
}

/// Serves a lane until its first process has ended; its status. `first` starts that process, which
/// mounts the lane: from the FUSE device, or from one that it opens itself. `at_home`: see
/// [`Supervisor`].
pub(crate) fn serve(
    mut options: RunOptions,
    owner: Owner,
    (place, run_dir, cpus): (&Place, Option<&Path>, CpuList),
    (first, at_end): (impl FnOnce(Option<OwnedFd>, bool) -> Result<(Process, Link)>, AtEnd),
    at_home: Option<OwnedFd>,
) -> Result<u8> {
    // Opened again in the user namespace when rootless: a FUSE mount belongs to its opener's.
    let device = fuse_device::open_fuse()?;
    // Last of what can be refused, since it may make a volume.
    let (handed, label, kept) = open_layers(&options, owner.pool())?;
    options.weight = options.weight.or(kept.weight);
    let uses = (options.cache.change(kept.cache), options.cache.translation.over(kept.translation));

    let mut groups = owner.groups(&options);
    let runtime_dir = names::runtime_dir();
    let (mut member, shares) = shares_of(&options, &handed, owner.name(), &mut groups)?.unzip();
    let (group_dirs, user) = (owner.own_groups(&groups), owner.user());
    let (dir, groups_made) = (runtime_dir.clone(), group_dirs.clone());
    let duty = Duty { dir, name: Some(owner.name().to_string()), groups: groups_made, shares };
    let keeper = Keeper::start(duty)?;
    let (name, log) = owner.take(&runtime_dir)?;
    if let Some(member) = &mut member {
        member.join()?;
    }
    let leftovers = Leftovers { name, groups: group_dirs };
    run_dir.map_or(Ok(()), |path| leftovers.name.make_run_dir(path))?;
    groups.create();
    let signals = watch_signals()?;
    pin(&cpus)?;
    let named = (leftovers.name.as_str(), leftovers.name.running_count());
    let mut spec = specify(&options, (label, uses, kept.bypass), named, place, cpus);
    spec.service_user = user.or(spec.service_user);
    spec.lowers = lower::specs(&options.lowers, &handed.lowers);
    spec.cluster = ceph::cluster(&options.ceph_places(), &options.cluster)?;
    let fuse = rootless().is_none().then_some(device);
    let fuse_again = fuse.as_ref().map(OwnedFd::try_clone).transpose().map_err(fork_failed)?;
    let (init, link) = first(fuse_again, kept.is_new)?;
    groups.attach(init.pid(), Leaf::Tenant);
    groups.say_not_enforced();
    let (handover, watchdog) = Watchdog::with_handover()?;
    let mut supervisor = Supervisor {
        handover,
        watchdog,
        relay: Relay::new(log).map_err(fork_failed)?,
        program: None,
        spec,
        handed,
        groups,
        keeper,
        signals,
        leftovers,
        init,
        link,
        member,
        restarts: vec![],
        copies: Copies::default(),
        solidifying: Solidifying::default(),
        unmounting: None,
        at_end,
        at_home,
        instances: Instances::new(options.for_instances),
        has_rested: Cell::default(),
    };
    match supervisor.begin(fuse)? {
        Some(doors) => supervisor.run(doors),
        None => supervisor.end_early(),
    }
}

/// Runs COMMAND on a file system of the kernel's; its exit status.
fn run_on_kernel_fs(
    options: RunOptions,
    lane: KernelLane,
    place: Place,
    (cpus, caller): (&CpuList, CallerLimits),
) -> Result<u8> {
    let rights = Rights { killed_first: false, ..rights(&options, false, caller) };
    let name = pool_name(&options);
    let path = match &options.source {
        Source::Volume(Some(path)) => path.clone(),
        _ => volume::default_path(&name)?,
    };
    let mut groups = cgroup::plan(&name, &options.limits());
    let group_dirs = groups.dirs();
    let runtime_dir = names::runtime_dir();
    let disk = Disk::open(&path, lane, options.asked(), options.cache)?;
    let mounted = Some(disk.mounted());
    let run = || {
        let (dir, groups_made) = (runtime_dir.clone(), group_dirs.clone());
        let duty = Duty { dir, name: Some(name.clone()), groups: groups_made, shares: None };
        let _keeper = Keeper::start(duty)?;
        let name = PoolName::take(&runtime_dir, &name)?;
        let _leftovers = Leftovers { name, groups: group_dirs.clone() };
        groups.create();
        let signals = watch_signals()?;
        pin(cpus)?;
        let plan = Plan {
            place,
            rootless: None,
            fuse: None,
            kernel_fs: mounted,
            library: None,
            run_dir: None,
            beside: Vec::new(),
            command: options.command,
            directory: working_directory(options.root),
            rights,
        };
        let (init, link) = start_init(plan)?;
        groups.attach(init.pid(), Leaf::Tenant);
        groups.say_not_enforced();
        Tenant { init, link, signals: &signals }.run()
    };
    kernel_fs::finish(run(), disk)
}

/// The lane's place among those of its device, and what its keeper is to know to coordinate it.
fn shares_of(
    options: &RunOptions,
    handed: &Handed,
    pool: &str,
    groups: &mut cgroup::Plan,
) -> Result<Option<(Member, (Meeting, Profile))>> {
    // What the kernel serves nobody could charge.
    let shared = options.qos != Some(Policy::None) && options.kernel_fs.is_none();
    let Some(files) = handed.volume.first().filter(|_| shared) else { return Ok(None) };
    let meeting = Meeting::of(&names::runtime_dir(), &files.plain)?;
    let wanted = Wanted { weight: options.weight, ..Wanted::default() };
    let mut member = Member::new(meeting.clone(), pool, wanted, options.qos);
    member.watch_io(groups.watch_io(pool));
    let profile = Profile::of(&meeting, &files.plain);
    Ok(Some((member, (meeting, profile))))
}

/// Bytes of file data that a service may cache in a pool with so much memory.
pub(crate) fn cache_bytes_limit(memory: Option<u64>) -> u64 {
    memory.unwrap_or_else(limits::total_memory) / 4
}

/// The pool's CPUs: those asked for, all of which must be allowed here, or all that are allowed.
pub(crate) fn pool_cpus(asked: Option<&CpuList>) -> Result<CpuList> {
    let failed = |error: std::io::Error| Failure::because("CPUs", "list them", error);
    let allowed = polylane_sys::cpu::allowed().map_err(|error| failed(error.into()))?;
    let allowed = CpuList::new(allowed.into_iter().map(|cpu| cpu as usize))
        .ok_or_else(|| Failure::failed("CPUs: none is allowed"))?;
    let Some(asked) = asked else { return Ok(allowed) };
    match asked.as_slice().iter().find(|cpu| !allowed.as_slice().contains(cpu)) {
        None => Ok(asked.clone()),
        Some(cpu) => Err(Failure::usage(format!(
            "--cpus {asked}: CPU {cpu} is not available here: choose from {allowed}"
        ))),
    }
}

/// Everything started from here on runs on the pool's CPUs, with or without a cpuset group.
pub(crate) fn pin(cpus: &CpuList) -> Result<()> {
    let cpus: Vec<u32> = cpus.as_slice().iter().map(|&cpu| cpu as u32).collect();
    polylane_sys::cpu::pin(&cpus).map_err(|error| Failure::because("CPUs", "stay on them", error))
}

/// The name of the pool that a run is in or has for itself.
fn name_of(options: &RunOptions) -> String {
    match (&options.pool, &options.source) {
        (Some(name), _) => name.clone(),
        (None, Source::Volume(None)) => POOL_DEFAULT.to_string(),
        (None, _) => format!("run-{}", std::process::id()),
    }
}

fn pool_name(options: &RunOptions) -> String {
    let name = name_of(options);
    log::name("polylane", &name);
    name
}

/// [`open_source`] and the lowers under it.
fn open_layers(options: &RunOptions, pool: &str) -> Result<(Handed, String, Kept)> {
    let lowers = lower::open(&options.lowers, options.source.as_layer().as_ref())?;
    let user = options.cluster_user()?;
    let ceph = user.map(|user| ceph::open_files(user, &options.cluster)).transpose()?;
    let (handed, label, mut kept) = open_source(options, pool)?;
    kept.is_new &= lowers.is_empty();
    Ok((Handed { lowers, ceph, ..handed }, label, kept))
}

/// What the lane's files are on, what messages call it, and what a volume's sidecar says of its
/// use.
fn open_source(options: &RunOptions, pool: &str) -> Result<(Handed, String, Kept)> {
    let path = match &options.source {
        Source::Mem => {
            let kept = Kept { is_new: true, ..Kept::default() };
            return Ok((Handed::default(), String::new(), kept));
        }
        Source::Lowers | Source::Ceph(_) => {
            return Ok((Handed::default(), String::new(), Kept::default()));
        }
        Source::Image(place) => {
            let is_new = rbd::ensure(place, options.size, &options.cluster)?;
            let kept = Kept { is_new, ..Kept::default() };
            return Ok((Handed::default(), place.to_string(), kept));
        }
        Source::Dir(path) => {
            // A directory has no lock: services of dead lanes may be writing to this one, to one
            // above it or below it.
            wait_for_orphans();
            let is_upper = !options.lowers.is_empty();
            let dir = lower::open_own(path, is_upper)?;
            if is_upper {
                lower::check_upper(&dir, path, lower::REACHERS)?;
            }
            let handed = Handed { dir: Some(dir), ..Handed::default() };
            return Ok((handed, Shown::new(path).to_string(), Kept::default()));
        }
        Source::Volume(Some(path)) => volume::resolve(path)?,
        Source::Volume(None) => volume::resolve(&volume::default_path(pool)?)?,
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (stack, kept) = volume::open_or_create(&path, options.asked(), &options.cache, owner)?;
    if !options.lowers.is_empty() {
        let mut all = stack.files.iter();
        all.try_for_each(|files| lower::check_upper(&files.plain, &path, lower::WRITERS))?;
    }
    Ok((Handed::volume(stack)?, Shown::new(&path).to_string(), kept))
}

/// The preload library, or a warning why the kernel path has to do.
pub(crate) fn find_library(options: &RunOptions, run_dir: Option<&Path>) -> Option<PathBuf> {
    if !options.preload {
        return None;
    }
    if let Some(dir) = run_dir.filter(|dir| !preload::can_name(dir)) {
        say(format_args!(
            "{}: the dynamic linker cannot preload from such a path: FUSE only",
            Shown::new(dir)
        ));
        return None;
    }
    let found = preload::find();
    if found.is_none() {
        say("libpolylane.so: not found beside the program (set POLYLANE_LIB): FUSE only");
    }
    found
}

/// The signals that end or concern COMMAND. One that the caller ignores (nohup) stays ignored.
fn watch_signals() -> Result<SignalFd> {
    let mut signals = vec![
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ];
    signals.retain(|&signal| !ns::is_ignored(signal));
    SignalFd::new(&signals).map_err(|error| Failure::because("signals", "watch them", error))
}

fn working_directory(root: bool) -> PathBuf {
    match root {
        true => PathBuf::from("/"),
        false => std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
    }
}

fn specify(
    options: &RunOptions,
    (label, (cache, translation), bypass): (String, (CacheSpec, Translation), Option<String>),
    (name, running): (&str, usize),
    place: &Place,
    cpus: CpuList,
) -> PoolSpec {
    use std::os::unix::ffi::OsStringExt;
    let memory = options.memory.unwrap_or_else(limits::total_memory);
    let bytes_limit = options.size.unwrap_or(memory / 2);
    let backing = match &options.source {
        Source::Mem => Backing::Mem {
            bytes_limit,
            inode_limit: (bytes_limit / BYTES_PER_INODE).max(INODES_MIN),
        },
        Source::Dir(_) => Backing::Dir,
        Source::Lowers => Backing::Lowers,
        Source::Ceph(place) => Backing::Ceph { place: place.clone() },
        Source::Volume(_) => Backing::Volume { label, cache, translation, bypass },
        Source::Image(place) => {
            let holder = format!("pool '{name}'");
            let image = ImageSpec::new(place, &options.cluster, &holder);
            Backing::Image { image, cache: rbd::cache_of(&options.cache) }
        }
    };
    let mounted: &[&str] = if *place == Place::Root { &root::COVERED } else { &[] };
    let covered = mounted.iter().chain([&RESERVED_DIR]).map(|name| name.as_bytes().to_vec());
    let covered = covered.chain(options.covered.iter().cloned());
    PoolSpec {
        name: name.to_string(),
        backing,
        lowers: Vec::new(),
        cluster: None,
        mount_path: place.path().into_os_string().into_vec(),
        covered: covered.collect(),
        worker_cpus: cpus.worker_cpus(running, GROUPS_MAX as usize),
        cpus,
        cache_bytes_limit: cache_bytes_limit(options.memory),
        write_back: options.write_back,
        weight: options.weight.unwrap_or(WEIGHT_DEFAULT),
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        service_user: confine::own_user(),
        map_users: options.map_users.iter().flat_map(IdMap::ranges).map(Into::into).collect(),
        id_maps: options.id_maps,
        kernel_cache: options.kernel_cache,
        access_times: options.access_times,
        incarnation: 0,
        device: None,
        fuse: None,
        instances: 0,
    }
}
