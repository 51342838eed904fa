//! What a run is asked for.

use std::ffi::OsString;
use std::path::PathBuf;

use polylane_vfs::mapped::IdMap;
use polylane_volume::cpus::CpuList;
use polylane_volume::{self as volume, MediumKind, SetOptions};

use crate::ceph::{CephPlace, ClusterOptions};
use crate::cgroup::Limits;
use crate::kernel_fs::KernelLane;
use crate::lower::LowerSource;
use crate::rbd::ImagePlace;
use crate::share::Policy;
use crate::spec::{AccessTimes, WriteBack};

/// Mount path of a lane.
pub const AT_DEFAULT: &str = "/lane";

/// The libservice under the lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Files in RAM, gone with the lane.
    Mem,
    /// A directory of the host.
    Dir(PathBuf),
    /// A directory of a Ceph file system.
    Ceph(CephPlace),
    /// An ext4 on this volume, made if there is none; without a path, on the pool's own.
    Volume(Option<PathBuf>),
    /// The same on an image of a cluster.
    Image(ImagePlace),
    /// Nothing: the lane is read-only, what is in its lowers.
    Lowers,
}

/// One more lane of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneBeside {
    /// The libservice under it.
    pub source: Source,
    /// Layers under that, read-only, the uppermost first.
    pub lowers: Vec<LowerSource>,
    /// Its mount path as COMMAND sees it.
    pub at: PathBuf,
}

/// What `polylane run` was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The libservice under the lane.
    pub source: Source,
    /// Layers under it, read-only, the uppermost first.
    pub lowers: Vec<LowerSource>,
    /// How the cluster is reached that any of these are on.
    pub cluster: ClusterOptions,
    /// Mount path as COMMAND sees it; ignored with `root`.
    pub at: PathBuf,
    /// Other lanes, beside this one.
    pub more: Vec<LaneBeside>,
    /// The lane is COMMAND's root file system.
    pub root: bool,
    /// The pool's name; made up when absent.
    pub pool: Option<String>,
    /// CPUs of the pool.
    pub cpus: Option<CpuList>,
    /// Bytes of memory of the pool.
    pub memory: Option<u64>,
    /// Bytes of a lane in RAM, or of a new volume.
    pub size: Option<u64>,
    /// How the volume is reached: a new one is made so, an existing one must be.
    pub medium: Option<MediumKind>,
    /// The pool's share, 1–10000.
    pub weight: Option<u32>,
    /// How the volume is cached, where its sidecar shall not decide.
    pub cache: SetOptions,
    /// How what changed waits to be written to the volume.
    pub write_back: WriteBack,
    /// How lanes of the volume's device share it; `None`: as others there do, or by the ledger.
    pub qos: Option<Policy>,
    /// A file system of the kernel's on the volume, in place of a service.
    pub kernel_fs: Option<KernelLane>,
    /// Use the preload library.
    pub preload: bool,
    /// Set-id programs of the lane work, also at a path.
    pub suid: bool,
    /// COMMAND in a root file system keeps all rights of the caller.
    pub privileged: bool,
    /// COMMAND, and each user that it becomes, can become each user of the ranges of an ordinary
    /// user.
    pub become_users: bool,
    /// Owners of the files have other numbers on this host.
    pub map_users: Option<IdMap>,
    /// Mounts of the lane can be id-mapped by the kernel. Its requests name no user then, so there
    /// is no fast way.
    pub id_maps: bool,
    /// The kernel caches what programs read and write by FUSE, as it did before Linux 6.6.
    pub kernel_cache: bool,
    /// Which reads move access times.
    pub access_times: AccessTimes,
    /// Paths from the lane's root, without a slash before them, where whoever uses the lane mounts
    /// something else. The library leaves them to the kernel, and has the fast way beside them.
    pub covered: Vec<Vec<u8>>,
    /// Its service is there for further lanes over the same lowers, and ends with the last.
    pub for_instances: bool,
    /// COMMAND and its arguments.
    pub command: Vec<OsString>,
}

impl RunOptions {
    /// A run of COMMAND on `source` at `/lane`, and nothing else that is asked for.
    pub fn new(source: Source, command: Vec<OsString>) -> RunOptions {
        RunOptions {
            source,
            lowers: Vec::new(),
            cluster: ClusterOptions::default(),
            at: PathBuf::from(AT_DEFAULT),
            more: Vec::new(),
            root: false,
            pool: None,
            cpus: None,
            memory: None,
            size: None,
            medium: None,
            weight: None,
            cache: SetOptions::default(),
            write_back: WriteBack::default(),
            qos: None,
            kernel_fs: None,
            preload: true,
            suid: false,
            privileged: false,
            become_users: false,
            map_users: None,
            id_maps: false,
            kernel_cache: false,
            access_times: AccessTimes::Relatime,
            covered: Vec::new(),
            for_instances: false,
            command,
        }
    }

    pub(super) fn asked(&self) -> volume::Asked {
        volume::Asked { size: self.size, medium: self.medium }
    }

    pub(super) fn limits(&self) -> Limits {
        let (memory, cpus) = (self.memory, self.cpus.clone());
        Limits { memory, cpus, weight: self.weight, ..Limits::default() }
    }
}
