//! The service process of a pool: the hidden `polylane service` command.
//!
//! It is handed descriptors by number and a specification, and holds no path of the host. Before it
//! reads a byte of its tenant's it is confined (`confine`). Its main thread listens to the
//! supervisor; the doors have threads of their own. The end of the control line is the end of the
//! supervisor: flush and go.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use std::vec;

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_block::bypass::{Claim, PoolFiles};
use polylane_block::file::{Files, reserve_rings};
use polylane_ceph::{Caching, Prepared, rbd};
use polylane_front::beat::{self, Beat};
use polylane_front::{Handover, Survived, former_processes};
use polylane_sys::{balloon, footprint, frames, heap, ns, sched, uring};
use polylane_vfs::handover::{Heart, InFlight, Record, Store as Kept};
use polylane_vfs::hostdir::HostDir;
use polylane_volume::held::files_of;
use polylane_volume::log;
use polylane_volume::pool_file;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::build::{self, Below, Passed, Running, Store, Stores, Surroundings, Under};
use crate::ceph::{self, CephFiles};
use crate::confine::{Reach, confine};
use crate::excuse::Excuse;
use crate::failure::{FAILED, Failure, Result, USAGE, say};
use crate::link::{FromService, Link, ToService};
use crate::lower::Lower;
use crate::own_ids::{self, OwnIds};
use crate::spec::{Backing, LowerSpec, PoolSpec};
use crate::wait::wait_for;
use crate::watchdog::BEAT_PERIOD;
use crate::witness::Asker;

mod instance;

use instance::{Ground, Instances, asked_before};

/// Keeps the kernel's memory killer away from the service while there is anything else in its pool.
const OOM_SCORE_ADJ: &str = "-900";

/// The descriptors of a service, by number, as on its command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceFds {
    /// The specification, a sealed memfd.
    pub spec: RawFd,
    /// The FUSE device of the live mount.
    pub fuse: RawFd,
    /// The listening socket in the lane.
    pub socket: RawFd,
    /// The line to the supervisor.
    pub control: RawFd,
    /// What outlives the service.
    pub handover: RawFd,
    /// The line to the witness; none from a supervisor that knows of none.
    pub witness: Option<RawFd>,
    /// Becomes readable when mounts of its clients change; none from such a supervisor, either.
    pub mounts: Option<RawFd>,
    /// The host directory under the lane, for `--dir`.
    pub dir: Option<RawFd>,
    /// The layers below it, the uppermost first: each a host directory, or the files of a volume,
    /// three descriptors for each. The specification says which.
    pub lowers: Vec<RawFd>,
    /// Configuration and keyring of the Ceph user, of a lane on a cluster.
    pub ceph: Option<(RawFd, Option<RawFd>)>,
    /// The files of the volume, its own and those of its bases, for data.
    pub volume: Vec<RawFd>,
    /// The same files, without O_DIRECT.
    pub volume_plain: Vec<RawFd>,
    /// The same files, with their locks.
    pub volume_lock: Vec<RawFd>,
    /// The disk under a bypass volume's pool file, and the pool file.
    pub bypass: Option<(RawFd, RawFd)>,
}

/// Time slices of a service's threads. They are shorter than those of tenants' threads, which are
/// shorter than Linux' 3 ms: who waits for a service must not wait until some other tenant's thread
/// has used its slice up.
const SLICE: Duration = Duration::from_micros(100);

/// Runs a service to its end; its exit status. `confined` runs when the service has given up its
/// rights and has not begun to serve: a test does there what somebody would who took it over.
pub fn main(fds: ServiceFds, confined: impl FnOnce()) -> u8 {
    // It was started as /proc/self/exe, and would be called "exe".
    let _ = rustix::thread::set_name(c"polylane-svc");
    // Before any thread is made. A kernel that refuses has slices of its own.
    let _ = sched::set_slice(SLICE);
    // Without it, memory costs more.
    let _ = heap::share_one();
    if !balloon::reports_free_pages() {
        frames::use_huge_pages();
    }
    let control = match ns::inherited_fd(fds.control) {
        Ok(fd) => Link::from_fd(fd),
        Err(_) => {
            say("service: started by 'polylane run' only");
            return FAILED;
        }
    };
    match start(fds, &control, confined) {
        Ok((running, beat, mut instances)) => {
            let status = serve(running, beat, &control, Some(&mut instances));
            instances.end();
            status
        }
        Err(failure) => {
            // The supervisor says it; a lost line changes nothing about the end.
            let said = match failure.status {
                USAGE => FromService::Misused(failure.line),
                _ => FromService::Failed(failure.line),
            };
            let _ = control.send(&said, &[]);
            FAILED
        }
    }
}

fn start(
    fds: ServiceFds,
    control: &Link,
    and_then: impl FnOnce(),
) -> Result<(Running, Beat, Instances)> {
    let take = |number| {
        ns::inherited_fd(number)
            .map_err(|error| Failure::because("service", "take its files", error))
    };
    let spec = PoolSpec::from_fd(take(fds.spec)?)?;
    log::name("service", &spec.name);
    let dir: Option<OwnedFd> = fds.dir.map(take).transpose()?;
    let lowers = fds.lowers.into_iter().map(take).collect::<Result<Vec<OwnedFd>>>()?;
    let (dir, lowers, ids) = with_own_ids(dir, lowers_of(&spec.lowers, &mut lowers.into_iter())?);
    let mut volume = Vec::new();
    for ((io, plain), lock) in fds.volume.iter().zip(&fds.volume_plain).zip(&fds.volume_lock) {
        volume.push(Files { io: take(*io)?, plain: take(*plain)?, lock: take(*lock)? });
    }
    let (fuse, socket, kept) = (take(fds.fuse)?, take(fds.socket)?, take(fds.handover)?);
    let witness = fds.witness.map(take).transpose()?.map(Link::from_fd);
    // Users of clients have no numbers here in a namespace of the service's own, which an ordinary
    // user's has as well.
    let has_own_ids = ids.is_some() || !rustix::process::geteuid().is_root();
    let changes = fds.mounts.map(take).transpose()?;
    let witness = witness.map(|line| Asker::new(line, changes, has_own_ids));
    let pool = fds
        .bypass
        .map(|(disk, pool)| Ok::<_, Failure>(PoolFiles { disk: take(disk)?, pool: take(pool)? }));
    let claim = match (pool.transpose()?, volume.first()) {
        (Some(pool), Some(own)) => Some(pool_file::claim(own, pool)?),
        _ => None,
    };
    make_room();
    let failed = |error| Failure::because("lane", "open its files", error);
    let handover = take_over(&spec, &kept).map_err(failed)?;
    let (heart, beat) = beating(&kept)?;
    let others = asked_before(control, spec.instances);
    // It opens /proc, and must do so before nothing can be opened any more.
    let host = dir.as_ref().map(OwnedFd::try_clone).transpose().map_err(Errno::from);
    let open = |dir| match &handover {
        Some((store, records, _)) => HostDir::handed_over(dir, store.clone(), records),
        None => HostDir::new(dir),
    };
    let host = host.and_then(|dir| dir.map(open).transpose());
    let volume_count = volume.len();
    let ceph = fds.ceph.map(|(conf, keyring)| {
        Ok::<_, Failure>(CephFiles { conf: take(conf)?, keyring: keyring.map(take).transpose()? })
    });
    let (cluster, image) = prepare_clients(&spec, ceph.transpose()?.as_ref())?;
    let own = own_store(&spec, host.map_err(failed)?, (volume, claim), image);
    let (lowers, lower_dirs) = open_lowers(&spec, lowers)?;
    let passed = pass_on(handover, heart, &kept)?;
    let guards_links = guards_links();
    reserve_rings(ring_count(&spec, volume_count));
    let network = cluster.is_some() || matches!(own, Store::Image(_));
    let reach = Reach { host: dir.as_ref().map(AsFd::as_fd), lowers: &lower_dirs, network };
    let confined = confine(reach, spec.service_user, ids.as_ref())?;
    drop((dir, lower_dirs, ids));
    and_then();
    let stores = Stores { own, lowers: Under::Own(lowers), cluster };
    let surroundings = Surroundings { confined, guards_links, witness, instance: None };
    let running = build::start(&spec, (fuse, socket), stores, passed, surroundings)?;
    let ground = Ground { layers: running.layers(), confined, guards_links, has_own_ids };
    let mut instances = Instances { ground, threads: Vec::new() };
    others.into_iter().for_each(|asked| instances.begin(asked));
    Ok((running, beat, instances))
}

/// Whether this host keeps users from linking to files that are not theirs.
fn guards_links() -> bool {
    let links = std::fs::read("/proc/sys/fs/protected_hardlinks");
    links.is_ok_and(|text| !text.starts_with(b"0"))
}

/// What the threads of a lane beat on, and the beat of its main one, which is watched from now on:
/// one that hangs before its first beat must be seen, too.
fn beating(kept: &OwnedFd) -> Result<(Arc<Heart>, Beat)> {
    let failed = |error| Failure::because("lane", "open its files", error);
    let heart = Arc::new(Heart::attach(kept).map_err(failed)?);
    let mut beat = Beat::watched(heart.clone(), beat::MAIN);
    beat.busy();
    Ok((heart, beat))
}

/// What a lane has of a former service and leaves to the next. It looks at the processes that the
/// former one knew, and must do so before the service is confined.
fn pass_on(former: Option<Former>, heart: Arc<Heart>, kept: &OwnedFd) -> Result<Passed> {
    let failed = |error| Failure::because("lane", "open its files", error);
    let in_flight = Arc::new(InFlight::attach(kept).map_err(failed)?);
    let handover = former.map(|(store, records, survived)| {
        let processes = former_processes(&records);
        Handover::new(store, records, processes, survived)
    });
    Ok(Passed { handover, heart, in_flight })
}

/// What the lane's own files are on, of what came for them.
fn own_store(
    spec: &PoolSpec,
    host: Option<HostDir>,
    (volume, claim): (Vec<Files>, Option<Claim>),
    image: Option<rbd::Prepared>,
) -> Store {
    match (host, image) {
        (Some(host), _) => Store::Host(host),
        (None, Some(image)) => Store::Image(image),
        (None, None) if spec.backing == Backing::Lowers => Store::Nothing,
        (None, None) if matches!(spec.backing, Backing::Ceph { .. }) => Store::Cluster,
        (None, None) if volume.is_empty() => Store::Memory,
        (None, None) => Store::Volume(volume, claim),
    }
}

/// The clients of a cluster that the lane needs: of its files on CephFS, of its image.
fn prepare_clients(
    spec: &PoolSpec,
    files: Option<&CephFiles>,
) -> Result<(Option<Prepared>, Option<rbd::Prepared>)> {
    let Some(files) = files else { return Ok((None, None)) };
    let image = match &spec.backing {
        Backing::Image { image, .. } => Some(image.prepare(files)?),
        _ => None,
    };
    let cluster = match (&spec.cluster, &image) {
        (None, Some(_)) => None,
        _ => Some(prepare_client(spec, files)?),
    };
    Ok((cluster, image))
}

/// Reads what a client of a cluster reads, while files can be opened.
fn prepare_client(spec: &PoolSpec, files: &CephFiles) -> Result<Prepared> {
    let Some(cluster) = &spec.cluster else {
        return Err(Failure::failed("service: it was handed a cluster's files, and told of none"));
    };
    let caching = Caching {
        dirty_bytes_limit: build::dirty_bytes_limit(spec),
        flush_interval: build::flush_interval(spec),
        ..Caching::of(spec.cache_bytes_limit / CEPH_CACHE_PART)
    };
    ceph::prepare(cluster, caching, files)
}

/// Descriptors that all lowers of a union keep when the process may have very many.
const LOWER_DESCRIPTORS_MAX: u64 = 1 << 16;

/// The layers that are described so, of the descriptors that came for all of them.
fn lowers_of(specs: &[LowerSpec], fds: &mut vec::IntoIter<OwnedFd>) -> Result<Vec<Lower>> {
    let mut lowers = Vec::new();
    for lower in specs {
        if !lower.layers.is_empty() {
            lowers.push(Lower::Union(lowers_of(&lower.layers, fds)?));
            continue;
        }
        let mut its: Vec<OwnedFd> = fds.by_ref().take(lower.descriptor_count()).collect();
        if let Some(path) = &lower.ceph {
            lowers.push(Lower::Ceph(path.clone()));
            continue;
        }
        lowers.push(match (lower.files, its.pop()) {
            (None, Some(dir)) => Lower::Dir(dir),
            (Some(_), Some(last)) => {
                its.push(last);
                Lower::Volume(files_of(its))
            }
            (_, None) => {
                let label = &lower.label;
                return Err(Failure::failed(format!("{label}: it was not handed down")));
            }
        });
    }
    Ok(lowers)
}

/// The directories on mounts that show owners as numbers of a user namespace, and that; where there
/// is none, as they were.
fn with_own_ids(
    mut dir: Option<OwnedFd>,
    mut lowers: Vec<Lower>,
) -> (Option<OwnedFd>, Vec<Lower>, Option<OwnIds>) {
    let dirs = dir.iter_mut().chain(lowers.iter_mut().flat_map(Lower::dirs_mut));
    let ids = own_ids::map(&mut dirs.collect::<Vec<_>>());
    (dir, lowers, ids)
}

/// The lowers of a union, whose directories share a quarter of the descriptors that the process may
/// have, and these directories. They open /proc, and must do so before nothing can be opened any
/// more.
fn open_lowers(spec: &PoolSpec, lowers: Vec<Lower>) -> Result<(Vec<Below>, Vec<OwnedFd>)> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(LOWER_DESCRIPTORS_MAX);
    let count: usize = spec.lowers.iter().map(|lower| lower.all().len()).sum();
    let each = limit.min(LOWER_DESCRIPTORS_MAX) as usize / 4 / count.max(1);
    let mut dirs = Vec::new();
    let opened = open_union(&spec.lowers, lowers, each, &mut dirs)?;
    Ok((opened, dirs))
}

fn open_union(
    specs: &[LowerSpec],
    lowers: Vec<Lower>,
    each: usize,
    dirs: &mut Vec<OwnedFd>,
) -> Result<Vec<Below>> {
    let mut opened = Vec::new();
    for (LowerSpec { label, layers, .. }, lower) in specs.iter().zip(lowers) {
        let failed = |error| Failure::because(label, "open it as a lower", error);
        opened.push(match lower {
            Lower::Volume(files) => Below::Volume(files),
            Lower::Ceph(path) => Below::Cluster(path),
            Lower::Union(below) => Below::Union(open_union(layers, below, each, dirs)?),
            Lower::Dir(dir) => {
                let own = dir.try_clone().map_err(Errno::from);
                dirs.push(dir);
                let host = own.and_then(|dir| HostDir::layer(dir, each));
                Below::Host(host.map_err(failed)?)
            }
        });
    }
    Ok(opened)
}

/// The client library caches file data in this part of the lane's cache.
const CEPH_CACHE_PART: u64 = 2;

/// Threads of a service that read and write its volume, besides those that have a door.
const OTHER_THREADS: usize = 4;

/// How many rings a service needs: a confined one makes none. A channel on a volume has one for
/// each of its files, and a snapshot adds a file. Where one is missing, requests wait in calls.
fn ring_count(spec: &PoolSpec, files: usize) -> usize {
    let threads = spec.worker_cpus.len() + build::fuse_threads(spec) + OTHER_THREADS;
    match files {
        0 => 0,
        files => threads * (files + 1),
    }
}

/// What a former service left, and what is there of all that it had answered.
type Former = (Arc<Kept>, Vec<Record>, Survived);

/// Takes what a former service left. A host directory has all names, however that service ended,
/// and all bytes that did not wait in it; a volume only when it closed it in order. What was in
/// memory is gone.
fn take_over(spec: &PoolSpec, kept: &OwnedFd) -> polylane_base::Result<Option<Former>> {
    let (store, records) = Kept::attach(kept)?;
    let survived = match (&spec.backing, store.was_left_orderly()) {
        (Backing::Mem { .. }, _) => return Ok(None),
        (_, true) => Survived::All,
        (Backing::Dir | Backing::Lowers, false) if !spec.keeps_bytes_back() => Survived::All,
        (Backing::Dir | Backing::Lowers, false) => Survived::Names,
        // What the client library had not written back went with it.
        (Backing::Ceph { .. }, false) => Survived::Synced,
        (Backing::Volume { .. } | Backing::Image { .. }, false) => Survived::Synced,
    };
    Ok(Some((Arc::new(store), records, survived)))
}

/// The service holds many descriptors, and its tenant's files in RAM: in a pool that runs out of
/// memory it is the last to be killed. What an ordinary user may not have is done without.
fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
}

/// Whether workers may wait for a device, or for a cluster, that is away.
fn waits_for_others(excuse: &mut Excuse) -> bool {
    excuse.is_given(polylane_ceph::ask_calls(), Instant::now()) || uring::waiters() > 0
}

/// Answers the supervisor until it wants the end or is gone itself, and shows it that it lives.
fn serve(
    mut running: Running,
    mut beat: Beat,
    control: &Link,
    mut instances: Option<&mut Instances>,
) -> u8 {
    let ready = FromService::Ready { wire: polylane_ipc::message::VERSION };
    if control.send(&ready, &[]).is_err() {
        running.end();
        return FAILED;
    }
    // A question about a volume that stands still has to wait.
    let mut asked = false;
    let mut excuse = Excuse::default();
    // Until the first beat: what the first programs of the lane need is mapped by then.
    let mut starting = true;
    log::event("ready", serde_json::json!({}));
    loop {
        let left = running.time_left();
        if left.is_none() && std::mem::take(&mut asked) {
            let _ = control.send(&FromService::Stats(running.stats()), &[]);
        }
        if !wait_for(control.as_fd(), left.unwrap_or(BEAT_PERIOD).min(BEAT_PERIOD)) {
            if std::mem::take(&mut starting) {
                footprint::trim_heap();
                footprint::unmap_program();
            }
            // While the volume stands still, so may everybody who works on it.
            match left {
                None if !waits_for_others(&mut excuse) => beat.busy(),
                _ => beat.excused(),
            }
            if left.is_some_and(|left| left <= BEAT_PERIOD) {
                running.thaw();
            }
            continue;
        }
        beat.busy();
        match control.receive::<ToService>() {
            Ok(Some((ToService::Stats, _))) => asked = true,
            Ok(Some((ToService::Share, fds))) => running.share(fds),
            Ok(Some((ToService::Solidify, _))) => running.solidify(control),
            Ok(Some((ToService::Instance, fds))) => {
                if let (Some(instances), Some(asked)) = (&mut instances, instance::asked(fds)) {
                    instances.begin(asked);
                }
            }
            Ok(Some((ToService::Copy(ask), fds))) => {
                let answer = FromService::Copied(running.answer(ask, fds));
                let _ = control.send(&answer, &[]);
            }
            Ok(Some((ToService::Shutdown, _))) => {
                let stats = running.stats();
                let errno = running.end();
                log::event("end", serde_json::json!({ "errno": errno, "counters": stats }));
                let _ = control.send(&FromService::Flushed(errno), &[]);
                return 0;
            }
            Ok(Some((ToService::HandOver, _))) => {
                let errno = running.hand_over();
                let _ = control.send(&FromService::Flushed(errno), &[]);
                return 0;
            }
            Ok(None) | Err(_) => {
                running.end();
                return FAILED;
            }
        }
    }
}
