//! From a specification to a running lane: libservice, VFS, lane, doors.
//!
//! One more libservice is one arm in [`libservice`]; one more door is one line in [`start`].

mod lowers;
mod stats;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_base::{Clock, Errno, Gid, SystemClock, Uid};
use polylane_block::bypass::{Claim, PoolFiles};
use polylane_block::file::Files;
use polylane_block::qos::governed::Hurry;
use polylane_ceph::{Client, Prepared, Watch, rbd};
use polylane_front::fuse::{Door, ServeOptions, Stats, Stop};
use polylane_front::{Handover, Lane, shm};
use polylane_ipc::calibrate;
use polylane_vfs::handover::{Heart, InFlight};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::mapped::{IdMap, Mapped};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{FileSystem, OpCtx, Options, SetAttr, Vfs};
use polylane_volume::disk::Disk;
use polylane_volume::held::{Answer, Ask};
use polylane_volume::pool_file::{self, Parts, Pinned};
use polylane_volume::stack::Stack;
use polylane_volume::translation::Translation;

use crate::ceph::CephFiles;
use crate::cluster::{self, check_upper, directory, mount_cluster};
use crate::confine::Confined;
use crate::failure::{FAILED, Failure, Result, say};
use crate::file_cache::{Caches, LaneCaches};
use crate::link::{FromService, Link};
use crate::lower::Lower;
use crate::spec::{Backing, FileCachePlace, PoolSpec};
use crate::witness::Asker;
use crate::{share, whole};
use lowers::{Lowers, Over};

pub(crate) use lowers::Layers;

/// Part of the cache's limit that a volume's metadata may have beside it, and the most of it.
const METADATA_PART: u64 = 8;
const METADATA_BYTES_MAX: u64 = 32 << 20;

/// Changed data may be this part of the cache.
const DIRTY_PART: u64 = 4;

/// Clients are shown copies of this part of the cache.
const VIEW_PART: u64 = 2;

/// Changed data waits at most this long, as the kernel's own (`dirty_expire_centisecs` is 30 s, its
/// flusher wakes every 5 s).
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// Threads that read FUSE requests: at least two, because one may wait for a page ...
const FUSE_THREADS_MIN: usize = 2;
/// ... and no more than keep each other from the one queue of the device.
const FUSE_THREADS_MAX: usize = 16;

/// How long the FUSE door may take to answer what it has in hand.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// How long the kernel may take to let go of the mount once the tenant is gone.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// What a lane's files are on, as open descriptors. The service holds no path of the host.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    /// The directory of a `--dir` lane.
    pub(crate) dir: Option<OwnedFd>,
    /// The layers under it, the uppermost first.
    pub(crate) lowers: Vec<Lower>,
    /// The files of the Ceph user, of a lane on a cluster or over layers on one.
    pub(crate) ceph: Option<CephFiles>,
    /// The file of a volume, and those of its bases.
    pub(crate) volume: Vec<Files>,
    /// The pool file of a bypass volume, which is in use as long as this lives.
    pub(crate) bypass: Option<(PoolFiles, Pinned)>,
}

impl Handed {
    /// What a volume is on.
    pub(crate) fn volume(stack: Stack) -> Result<Handed> {
        let Stack { files, pinned, .. } = stack;
        let bypass = pinned.map(|pinned| Ok::<_, Failure>((pinned.files()?, pinned)));
        Ok(Handed { volume: files, bypass: bypass.transpose()?, ..Handed::default() })
    }

    /// The descriptors with the service's options for them.
    pub(crate) fn options(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        let dir = self.dir.iter().map(|dir| ("--dir", dir.as_fd()));
        let lowers = self.lowers.iter().flat_map(Lower::descriptors).map(|fd| ("--lower", fd));
        let names = ["--volume", "--volume-plain", "--volume-lock"].into_iter().cycle();
        let bypass = self.bypass.iter().flat_map(|(files, _)| {
            [("--bypass-disk", files.disk.as_fd()), ("--bypass-pool", files.pool.as_fd())]
        });
        let conf = self.ceph.iter().map(|files| ("--ceph-conf", files.conf.as_fd()));
        let keyring = self.ceph.iter().filter_map(|files| files.keyring.as_ref());
        let ceph = conf.chain(keyring.map(|keyring| ("--ceph-keyring", keyring.as_fd())));
        let own = dir.chain(lowers).chain(names.zip(self.descriptors()));
        own.chain(bypass).chain(ceph)
    }

    /// The descriptors of the volume, three for each of its files, its own first.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.volume.iter().flat_map(|files| {
            let Files { io, plain, lock } = files;
            [io, plain, lock].map(AsFd::as_fd)
        })
    }
}

/// What a lane's files are on, in its service.
pub(crate) enum Store {
    /// Nothing: the lane is what is in its lowers.
    Nothing,
    /// The service's own memory.
    Memory,
    /// A host directory.
    Host(HostDir),
    /// The service's client of a cluster.
    Cluster,
    /// The file of a volume and those of its bases, or chunks of a pool file.
    Volume(Vec<Files>, Option<Claim>),
    /// An image of a cluster, whose client is not connected yet.
    Image(rbd::Prepared),
}

/// What a layer under a lane is on, in its service.
pub(crate) enum Below {
    /// A host directory.
    Host(HostDir),
    /// The files of a volume.
    Volume(Vec<Files>),
    /// A directory of the service's cluster.
    Cluster(String),
    /// The layers of a union, the uppermost first.
    Union(Vec<Below>),
}

/// The layers under a lane, the uppermost first.
pub(crate) enum Under {
    /// Its own.
    Own(Vec<Below>),
    /// Those of the service's first lane.
    Shared(Arc<Layers>),
}

/// What the files that a service shows are on.
pub(crate) struct Stores {
    /// The lane's own.
    pub(crate) own: Store,
    /// The layers under them.
    pub(crate) lowers: Under,
    /// The client of their cluster, which is not mounted yet.
    pub(crate) cluster: Option<Prepared>,
}

/// A lane with its doors open.
pub(crate) struct Running {
    confined: Confined,
    vfs: Arc<Vfs>,
    lane: Arc<Lane>,
    server: shm::Server,
    disk: Option<Disk>,
    /// The files, of a lane over lowers.
    union: Option<Over>,
    /// The lowers, which further instances are put over as well.
    layers: Arc<Layers>,
    /// The caches of its files, as far as it was asked to have any.
    caches: LaneCaches,
    /// At the end the union lets go of what it holds of its layers: others are over them, or they
    /// are on a cluster, whose session ends with the last reference to them.
    lets_go: bool,
    /// Looks at the client of a Ceph file system.
    watch: Option<Watch>,
    /// Keeps its place among the lanes of its device.
    share_link: Option<OwnedFd>,
    fuse: ServedFuse,
}

/// The FUSE door of a lane, which threads of its own serve.
struct ServedFuse {
    /// Ends when the kernel has let go of the mount, or the door was told to close.
    unmounted: Receiver<()>,
    /// Closes it.
    stop: Stop,
    /// What it has done.
    stats: Arc<Stats>,
}

/// What a lane takes over from a former service, and what it leaves to the next.
pub(crate) struct Passed {
    /// What a former service left, if the lane's files outlive one.
    pub(crate) handover: Option<Handover>,
    /// On which its threads beat.
    pub(crate) heart: Arc<Heart>,
    /// Requests that are being answered.
    pub(crate) in_flight: Arc<InFlight>,
}

/// How a lane is served, beside what its specification says.
pub(crate) struct Surroundings {
    /// What the service has given up.
    pub(crate) confined: Confined,
    /// The host keeps users from linking to files that are not theirs.
    pub(crate) guards_links: bool,
    /// Who looks at its clients.
    pub(crate) witness: Option<Arc<Asker>>,
    /// Who is told when the kernel has let go of the mount, of a further instance.
    pub(crate) instance: Option<Link>,
}

/// Opens both doors of the lane that `spec` describes: the FUSE device of its mount and its
/// listening socket. With a handover it goes on for a former service. Its workers beat on a heart.
pub(crate) fn start(
    spec: &PoolSpec,
    (fuse, socket): (OwnedFd, OwnedFd),
    stores: Stores,
    Passed { handover, heart, in_flight }: Passed,
    Surroundings { confined, guards_links, witness, instance }: Surroundings,
) -> Result<Running> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options = Options {
        clock: clock.clone(),
        cache_bytes_limit: spec.cache_bytes_limit,
        dirty_bytes_limit: dirty_bytes_limit(spec),
        flush_interval: flush_interval(spec),
        mount_path: spec.mount_path.clone(),
        covered: spec.covered.clone(),
    };
    let client = stores.cluster.map(|prepared| mount_cluster(spec, prepared)).transpose()?;
    let clock_of_disk = clock.clone();
    let own = (stores.own, client.as_ref());
    let (fs, disk) = libservice(spec, own, clock_of_disk, handover.is_some())?;
    let waits = (dirty_bytes_limit(spec), flush_interval(spec));
    let mut caches = Caches::new(spec, clock, waits);
    let fs = fs.map(|fs| caches.over(FileCachePlace::Upper, fs)).transpose()?;
    let layers = match stores.lowers {
        Under::Own(lowers) => {
            Arc::new(Lowers::new(spec, client.as_ref(), &mut caches).open(lowers)?)
        }
        Under::Shared(layers) => layers,
    };
    let (fs, union) = layers.under(spec, fs, (handover.as_ref(), instance.is_none()))?;
    let fs = caches.over(FileCachePlace::All, fs)?;
    let fs = by_their_map(spec, fs)?;
    let vfs = Vfs::with_access_times(fs, options, spec.access_times.into())
        .map_err(|error| Failure::because("lane", "start its VFS", error))?;
    let lane = match handover {
        Some(handover) => Lane::handed_over(vfs.clone(), handover),
        None => Lane::new(vfs.clone(), spec.incarnation),
    };
    if guards_links {
        lane.guard_links();
    }
    if let Some(witness) = witness {
        lane.slots.set_witness(witness);
    }
    let lets_go = instance.is_some() || spec.cluster.is_some();
    let fuse = serve_fuse(spec, fuse, (lane.clone(), in_flight), instance)?;
    let server = shm::Server::start(lane.clone(), socket, fast_way(spec, heart))
        .map_err(|error| Failure::because("lane", "open its fast way in", error))
        .inspect_err(|_| {
            fuse.stop.request();
            let _ = fuse.unmounted.recv_timeout(UNMOUNT_TIME_MAX);
            let _ = vfs.sync(&OpCtx::service());
        })?;
    Ok(Running {
        confined,
        vfs,
        lane,
        server,
        disk,
        union,
        layers,
        caches: caches.made(),
        lets_go,
        watch: client.as_ref().map(Client::watch),
        share_link: None,
        fuse,
    })
}

/// How the fast way in is served.
fn fast_way(spec: &PoolSpec, heart: Arc<Heart>) -> shm::Config {
    shm::Config {
        workers: spec.worker_cpus.iter().map(|&cpu| Some(cpu)).collect(),
        covered: spec.covered.clone(),
        plan: Arc::new(LazyLock::new(calibrate::plan)),
        view_bytes_max: spec.cache_bytes_limit / VIEW_PART,
        heart: Some(heart),
        helpers: cluster::io_threads(spec).unwrap_or(shm::Config::default().helpers),
        ..shm::Config::default()
    }
}

/// Files that are the lane's own.
type Own = Arc<dyn FileSystem>;

fn libservice(
    spec: &PoolSpec,
    (store, client): (Store, Option<&Client>),
    clock: Arc<dyn Clock>,
    goes_on: bool,
) -> Result<(Option<Own>, Option<Disk>)> {
    let failed = |error| Failure::because("lane", "open its files", error);
    match (&spec.backing, store) {
        (&Backing::Mem { bytes_limit, inode_limit }, Store::Memory) => {
            let fs = MemFs::new(bytes_limit, inode_limit, clock);
            let (uid, gid) = spec.owner;
            let owner = SetAttr { uid: Some(Uid(uid)), gid: Some(Gid(gid)), ..SetAttr::default() };
            let root = fs.root().map_err(failed)?;
            fs.setattr(&OpCtx::service(), root.ino, &owner).map_err(failed)?;
            Ok((Some(Arc::new(fs)), None))
        }
        (Backing::Dir, Store::Host(host)) => Ok((Some(Arc::new(host)), None)),
        (Backing::Lowers, Store::Nothing) => Ok((None, None)),
        (Backing::Ceph { place }, Store::Cluster) => {
            let fs = directory(spec, client, &place.path)?;
            if !spec.lowers.is_empty() {
                check_upper(place, spec.owner.0, &fs.root().map_err(failed)?)?;
            }
            Ok((Some(fs), None))
        }
        (Backing::Volume { label, cache, translation, bypass }, Store::Volume(files, claim)) => {
            let parts = pool_file::parts(files, claim, bypass.as_deref())?;
            let how = (*cache, translation.clone());
            let disk = Disk::open(label, parts, how, clock, &of_volume(spec, goes_on))?;
            Ok((Some(disk.fs.clone()), Some(disk)))
        }
        (Backing::Image { image, cache }, Store::Image(prepared)) => {
            let parts = Parts::remote(image.open(prepared)?);
            let (label, how) = (image.place.to_string(), (*cache, Translation::default()));
            let disk = Disk::open(&label, parts, how, clock, &of_volume(spec, goes_on))?;
            Ok((Some(disk.fs.clone()), Some(disk)))
        }
        _ => Err(Failure::failed("lane: what was handed down is not what its files are on")),
    }
}

/// How the lane's own ext4 is used; it may go on with files without a name.
fn of_volume(spec: &PoolSpec, goes_on: bool) -> polylane_ext4::Options {
    polylane_ext4::Options {
        commit_interval: flush_interval(spec),
        cache_blocks: metadata_blocks(spec),
        keep_nameless: goes_on,
        data: spec.write_back.journal_mode.unwrap_or_default(),
        discard: spec.write_back.discard,
        ..polylane_ext4::Options::default()
    }
}

/// The lane's files with the owners that this host is to see.
fn by_their_map(spec: &PoolSpec, fs: Own) -> Result<Own> {
    if spec.map_users.is_empty() {
        return Ok(fs);
    }
    let map = IdMap::new(spec.map_users.iter().map(|&range| range.into()).collect());
    let map = map.ok_or_else(|| Failure::failed("lane: its users' numbers overlap"))?;
    Ok(Arc::new(Mapped::new(fs, map)))
}

/// Blocks of metadata that an ext4 keeps in memory.
fn metadata_blocks(spec: &PoolSpec) -> usize {
    let bytes = (spec.cache_bytes_limit / METADATA_PART).min(METADATA_BYTES_MAX);
    usize::try_from(bytes / 4096).unwrap_or(usize::MAX)
}

/// How long what changed waits, in the cache and in the journal.
pub(crate) fn flush_interval(spec: &PoolSpec) -> Duration {
    spec.write_back.flush_interval_us.map_or(FLUSH_INTERVAL, Duration::from_micros)
}

/// Most changed data that waits to be written.
pub(crate) fn dirty_bytes_limit(spec: &PoolSpec) -> u64 {
    spec.write_back.dirty_bytes_limit.unwrap_or(spec.cache_bytes_limit / DIRTY_PART)
}

/// How many threads serve the mount.
pub(crate) fn fuse_threads(spec: &PoolSpec) -> usize {
    let least = cluster::io_threads(spec).unwrap_or(0);
    spec.cpus.as_slice().len().clamp(FUSE_THREADS_MIN, FUSE_THREADS_MAX).max(least)
}

/// Serves the mount from threads of its own. When it is gone, so is the reason for this process.
fn serve_fuse(
    spec: &PoolSpec,
    device: OwnedFd,
    (lane, in_flight): (Arc<Lane>, Arc<InFlight>),
    instance: Option<Link>,
) -> Result<ServedFuse> {
    let failed = |error| Failure::because("lane", "serve its FUSE mount", error);
    let options = ServeOptions {
        params: spec.fuse,
        incarnation: spec.incarnation,
        threads: fuse_threads(spec),
        in_flight: Some(in_flight),
    };
    // What a former service's programs have locked is theirs before anybody is let in.
    let door = Door::open(device, lane, options).map_err(failed)?;
    let stats = door.stats();
    let stop = Stop::new().map_err(failed)?;
    let for_thread = stop.clone();
    let (serving, unmounted) = mpsc::channel();
    thread::Builder::new()
        .name("fuse".to_string())
        .spawn(move || {
            let late = |error| say(Failure::because("lane", "start a thread yet", error));
            if let Err(error) = door.serve(&for_thread, late) {
                say(Failure::because("lane", "go on serving its FUSE mount", error));
                // The other lanes of the service go on.
                if instance.is_none() {
                    std::process::exit(FAILED.into());
                }
            }
            drop(serving);
            if let Some(supervisor) = instance {
                let _ = supervisor.send(&FromService::Unmounted, &[]);
            }
        })
        .map_err(failed)?;
    Ok(ServedFuse { unmounted, stop, stats })
}

impl Running {
    /// What further instances are put over.
    pub(crate) fn layers(&self) -> Arc<Layers> {
        self.layers.clone()
    }

    /// Closes the doors and makes everything durable; the errno if that fails.
    pub(crate) fn end(mut self) -> Option<i32> {
        let _hurry = self.hurry();
        self.thaw();
        // The tenant is gone, but its last files may still be on their way here: they are closed
        // before the mount ends. Nothing is ever sent; waiting ends with the sender.
        if self.fuse.unmounted.recv_timeout(UNMOUNT_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
            // Another mount or process keeps the file system. Nothing that the kernel sends from
            // now on is served: what is changed after the last sync would be lost.
            self.fuse.stop.request();
            let _ = self.fuse.unmounted.recv_timeout(UNMOUNT_TIME_MAX);
        }
        self.settle(Vfs::sync)
    }

    /// Closes the doors while the mount lives on and makes everything durable for the next service;
    /// the errno if that fails. Nothing that was answered is left out, and what the kernel has not
    /// sent yet waits for the next service.
    pub(crate) fn hand_over(self) -> Option<i32> {
        let _hurry = self.hurry();
        // First those who go on through the kernel when their session ends.
        self.server.stop();
        self.fuse.stop.request();
        if self.fuse.unmounted.recv_timeout(STOP_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
            return Some(Errno::ETIMEDOUT.0);
        }
        let store = self.lane.handover.as_ref().map(|handover| handover.store.clone());
        if let Some(disk) = &self.disk {
            disk.fs.leave_nameless();
        }
        let failed = self.settle(Vfs::sync_nameless);
        if let (Some(store), None) = (store, failed) {
            store.left_orderly();
        }
        failed
    }

    /// The end waits for the device, not for the lane's share of it.
    fn hurry(&self) -> Option<Hurry> {
        self.disk.as_ref().map(|disk| disk.governor.hurry())
    }

    fn settle(self, sync: fn(&Vfs, &OpCtx<'_>) -> polylane_base::Result<()>) -> Option<i32> {
        drop(self.server);
        if let Some(Over { union, .. }) = &self.union {
            union.wait_for_syncs();
        }
        let synced = sync(&self.vfs, &OpCtx::service());
        let synced = match &self.union {
            Some(over) => synced.and_then(|()| over.union.end_volatile()),
            _ => synced,
        };
        // With the doors and the VFS go the last references to removed files, whose space the file
        // system can free now. Whatever is held all the same, the next open frees.
        drop(self.lane);
        drop(self.vfs);
        drop(self.caches);
        if let Some(over) = self.union.filter(|_| self.lets_go) {
            over.close();
        }
        let closed = self.disk.map_or(Ok(()), Disk::close);
        synced.and(closed).err().map(|errno: Errno| errno.0)
    }

    /// Does what is asked for a copy of the lane's volume. The lane is settled before it stands
    /// still: what is dirty is written back, and the journal commits.
    pub(crate) fn answer(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> Answer {
        let Some(disk) = &mut self.disk else {
            return Some("lane: is on no volume".to_string());
        };
        let vfs = &self.vfs;
        disk.answer(ask, fds, || {
            vfs.sync(&OpCtx::service())
                .map_err(|error| Failure::because("lane", "write everything back", error))
        })
    }

    /// Makes the files of the upper whole; says so on `control` when they are.
    pub(crate) fn solidify(&self, control: &Link) {
        whole::start(self.union.as_ref().map(|over| over.union.clone()), control);
    }

    /// How long the lane's volume may stand still from now on; `None` when it does not.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.disk.as_ref().and_then(Disk::time_left)
    }

    /// Lets the lane's volume go on, if it stood still.
    pub(crate) fn thaw(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.thaw();
        }
    }

    /// Goes on with another page of shares. What is not one changes nothing.
    pub(crate) fn share(&mut self, fds: Vec<OwnedFd>) {
        if let Some(disk) = &self.disk
            && let Ok(link) = share::member::adopt(&disk.governor, fds)
        {
            self.share_link = Some(link);
        }
    }
}
