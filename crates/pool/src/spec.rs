//! A pool as data: what the supervisor tells a service process, as JSON in a sealed memfd.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use polylane_base::IdRange;
/// How a lane's journal treats file data.
pub use polylane_ext4::DataMode as JournalMode;
use polylane_front::fuse::Params;
use polylane_volume::cache::CacheSpec;
use polylane_volume::cpus::CpuList;
use polylane_volume::translation::Translation;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ceph::{CephPlace, Cluster};
use crate::failure::{Failure, Result};
use crate::rbd::ImageSpec;

/// Largest specification in bytes.
const SPEC_BYTES_MAX: u64 = 1 << 20;

/// Where a lane's files are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Backing {
    /// In RAM.
    Mem {
        /// Bytes of file data and names together.
        bytes_limit: u64,
        /// Inodes.
        inode_limit: u64,
    },
    /// In a host directory that the service is handed as a descriptor.
    Dir,
    /// Nowhere: what is in the lowers is all there is.
    Lowers,
    /// In a directory of the Ceph file system that [`PoolSpec::cluster`] names.
    Ceph {
        /// Which, as whom.
        place: CephPlace,
    },
    /// On a volume, whose file the service is handed as descriptors.
    Volume {
        /// What messages call it.
        label: String,
        /// How it is cached.
        cache: CacheSpec,
        /// How it is translated.
        translation: Translation,
        /// Its id in its pool file, of a bypass volume.
        bypass: Option<String>,
    },
    /// On a volume that is an image of a cluster.
    Image {
        /// Which, as whom.
        image: ImageSpec,
        /// How it is cached.
        cache: CacheSpec,
    },
}

impl Backing {
    /// What it is, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Backing::Mem { .. } => "memory",
            Backing::Dir => "directory",
            Backing::Lowers => "lowers",
            Backing::Ceph { .. } => "ceph",
            Backing::Volume { .. } => "volume",
            Backing::Image { .. } => "image",
        }
    }
}

/// When what programs write reaches what lies below the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FileCacheMode {
    /// After the flush interval, or when it is synced.
    WriteBack,
    /// Before the write returns.
    WriteThrough,
}

impl FileCacheMode {
    /// Both.
    pub const ALL: [FileCacheMode; 2] = [FileCacheMode::WriteBack, FileCacheMode::WriteThrough];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FileCacheMode::WriteBack => "writeback",
            FileCacheMode::WriteThrough => "writethrough",
        }
    }

    /// The mode of that name.
    pub fn named(name: &str) -> Option<FileCacheMode> {
        FileCacheMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What a cache of a lane's files is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FileCachePlace {
    /// All that the lane is made of.
    #[default]
    All,
    /// The files that are its own, under the union with its lowers.
    Upper,
}

impl FileCachePlace {
    /// Both.
    pub const ALL: [FileCachePlace; 2] = [FileCachePlace::All, FileCachePlace::Upper];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FileCachePlace::All => "all",
            FileCachePlace::Upper => "upper",
        }
    }

    /// The place of that name.
    pub fn named(name: &str) -> Option<FileCachePlace> {
        FileCachePlace::ALL.into_iter().find(|place| place.name() == name)
    }
}

/// A lane's cache as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileCache {
    /// When writes go on.
    pub mode: FileCacheMode,
    /// Most bytes of file data that it keeps; `None`: as many as the service may cache.
    pub bytes: Option<u64>,
    /// What it is over.
    #[serde(default)]
    pub over: FileCachePlace,
}

/// The cache of a lower as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LowerCache {
    /// Most bytes of file data that it keeps; `None`: its share of what the service may cache.
    pub bytes: Option<u64>,
}

impl FileCache {
    /// Whether changes may wait in it.
    pub(crate) fn keeps_back(&self) -> bool {
        self.mode == FileCacheMode::WriteBack
    }
}

/// How what changed in a lane on a volume waits to be written there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WriteBack {
    /// Most bytes of changed file data, above which writers wait; `None`: a quarter of the cache.
    pub dirty_bytes_limit: Option<u64>,
    /// Microseconds that changed data, and changes in the journal, wait at most; `None`: 5 s.
    pub flush_interval_us: Option<u64>,
    /// How the journal treats file data; `None`: ordered.
    #[serde(with = "mode")]
    pub journal_mode: Option<JournalMode>,
    /// What is freed is given back to the volume at once.
    pub discard: bool,
    /// Over lowers: syncs are not waited for.
    #[serde(default)]
    pub volatile: bool,
    /// The cache of the lane's files, if there is one.
    #[serde(default)]
    pub file_cache: Option<FileCache>,
}

/// A journal's mode, told by its name.
mod mode {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::JournalMode;

    pub(super) fn serialize<S: Serializer>(
        mode: &Option<JournalMode>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        mode.map(JournalMode::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<JournalMode>, D::Error> {
        let unknown = |name: String| D::Error::custom(format!("no journal mode is '{name}'"));
        let known = |name: String| JournalMode::named(&name).ok_or_else(|| unknown(name));
        Option::<String>::deserialize(from)?.map(known).transpose()
    }
}

/// A layer under a lane's own files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LowerSpec {
    /// What messages call it.
    pub label: String,
    /// How many files its volume is in; `None`: it is a directory.
    pub files: Option<usize>,
    /// Its path in the Ceph file system that [`PoolSpec::cluster`] names; `None`: it is in none.
    #[serde(default)]
    pub ceph: Option<String>,
    /// Nothing of it is seen but data that files of other layers point to.
    #[serde(default)]
    pub is_data_only: bool,
    /// The cache over it, if there is one.
    #[serde(default)]
    pub cache: Option<LowerCache>,
    /// It stays as it is while the lane is over it.
    #[serde(default)]
    pub is_fixed: bool,
    /// Its layers, the uppermost first, where it is a union.
    #[serde(default)]
    pub layers: Vec<LowerSpec>,
}

impl LowerSpec {
    /// How many descriptors it comes with itself: a directory's, or three for each file of a
    /// volume.
    pub(crate) fn descriptor_count(&self) -> usize {
        match (self.files, &self.ceph) {
            (_, Some(_)) => 0,
            (files, None) => files.map_or(1, |count| count.saturating_mul(3)),
        }
    }

    /// It and all layers of the unions in it.
    pub(crate) fn all(&self) -> Vec<&LowerSpec> {
        std::iter::once(self).chain(self.layers.iter().flat_map(LowerSpec::all)).collect()
    }
}

/// A range of users and groups by other numbers: `U:H:N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserRange(pub u32, pub u32, pub u32);

impl From<&IdRange> for UserRange {
    fn from(range: &IdRange) -> UserRange {
        UserRange(range.kept, range.shown, range.count)
    }
}

impl From<UserRange> for IdRange {
    fn from(UserRange(kept, shown, count): UserRange) -> IdRange {
        IdRange { kept, shown, count }
    }
}

/// Which reads move access times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum AccessTimes {
    /// As `relatime` of mount(8) says.
    #[default]
    Relatime,
    /// The same, and none of directories.
    NotOfDirs,
    /// None.
    Never,
}

impl AccessTimes {
    /// As mount(8) calls them.
    pub fn name(self) -> &'static str {
        match self {
            AccessTimes::Relatime => "relatime",
            AccessTimes::NotOfDirs => "nodiratime",
            AccessTimes::Never => "noatime",
        }
    }
}

impl From<AccessTimes> for polylane_vfs::fs::AccessTimes {
    fn from(times: AccessTimes) -> Self {
        match times {
            AccessTimes::Relatime => Self::Relatime,
            AccessTimes::NotOfDirs => Self::NotOfDirs,
            AccessTimes::Never => Self::Never,
        }
    }
}

/// Everything a service process is told. Descriptors come beside it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolSpec {
    /// The pool's name.
    pub name: String,
    /// Where the files are.
    pub backing: Backing,
    /// The lowers under them, the uppermost first.
    #[serde(default)]
    pub lowers: Vec<LowerSpec>,
    /// The cluster that some of these files are on.
    #[serde(default)]
    pub cluster: Option<Cluster>,
    /// Mount path as COMMAND sees it.
    pub mount_path: Vec<u8>,
    /// Directories of the lane that other mounts cover, relative to its root.
    pub covered: Vec<Vec<u8>>,
    /// CPUs of the pool.
    pub cpus: CpuList,
    /// One worker of the service on each of these.
    pub worker_cpus: Vec<u32>,
    /// Bytes of file data that the service may cache.
    pub cache_bytes_limit: u64,
    /// How long changed data may wait, and how much of it.
    pub write_back: WriteBack,
    /// The pool's share, 1–10000. For people; its lane's page has the one that counts.
    pub weight: u32,
    /// Owner and group of the root of a lane in RAM.
    pub owner: (u32, u32),
    /// The host's user that the service becomes; `None`: it stays who it is.
    pub service_user: Option<u32>,
    /// Owners of files as this host has them; none: as the files have them.
    #[serde(default)]
    pub map_users: Vec<UserRange>,
    /// Mounts of the lane can be id-mapped.
    #[serde(default)]
    pub id_maps: bool,
    /// The kernel caches what programs read and write by FUSE.
    #[serde(default)]
    pub kernel_cache: bool,
    /// Which reads move access times.
    #[serde(default)]
    pub access_times: AccessTimes,
    /// Service processes of this pool before this one.
    pub incarnation: u16,
    /// Device of the lane's mount, as in mountinfo; `None` until it is mounted, or where that could
    /// not be read.
    #[serde(default)]
    pub device: Option<String>,
    /// What FUSE_INIT agreed on; `None` until it has.
    pub fuse: Option<Params>,
    /// So many further lanes, which the supervisor names at once, are served from the first.
    #[serde(default)]
    pub instances: u32,
}

impl PoolSpec {
    /// How long a service may take to be ready, of which it is `beside` without a cluster.
    pub(crate) fn start_time_max(&self, beside: Duration) -> Duration {
        let timeout_ms = self.cluster.as_ref().map_or(0, |cluster| cluster.timeout_ms);
        let image = match &self.backing {
            Backing::Image { image, .. } => image.start_time_max(),
            _ => Duration::ZERO,
        };
        Duration::from_millis(timeout_ms).saturating_add(image).saturating_add(beside)
    }

    /// Whether a service can go on with what a former one's programs had open.
    pub(crate) fn outlives_service(&self) -> bool {
        !matches!(self.backing, Backing::Mem { .. })
    }

    /// Whether bytes that were answered may wait in the service above the lane's own files: in a
    /// cache that was asked for, or in the pages that the whole of a union has where a lower is a
    /// volume.
    pub(crate) fn keeps_bytes_back(&self) -> bool {
        let mut lowers = self.lowers.iter().flat_map(LowerSpec::all);
        let over_volume = lowers.any(|lower| lower.files.is_some());
        match self.write_back.file_cache {
            Some(cache) if cache.over == FileCachePlace::All => cache.keeps_back(),
            Some(cache) => cache.keeps_back() || over_volume,
            None => over_volume,
        }
    }

    /// The specification in a sealed memfd.
    pub(crate) fn to_fd(&self) -> Result<OwnedFd> {
        seal(self)
    }

    /// Reads a specification from the start of `fd`.
    pub(crate) fn from_fd(fd: OwnedFd) -> Result<PoolSpec> {
        unseal(fd)
    }
}

/// A specification in a sealed memfd.
pub(crate) fn seal(spec: &impl Serialize) -> Result<OwnedFd> {
    let failed =
        |error: std::io::Error| Failure::because("service", "write its specification", error);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("polylane-spec", flags).map_err(|e| failed(e.into()))?;
    let mut file = std::fs::File::from(fd);
    let bytes = serde_json::to_vec(spec).map_err(|error| failed(error.into()))?;
    file.write_all(&bytes).map_err(failed)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|error| failed(error.into()))?;
    Ok(file.into())
}

/// Reads a specification from the start of `fd`.
pub(crate) fn unseal<T: DeserializeOwned>(fd: OwnedFd) -> Result<T> {
    let failed =
        |error: std::io::Error| Failure::because("service", "read its specification", error);
    // Its maker wrote through the same open file, so its offset is at the end.
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).map_err(|e| failed(e.into()))?;
    let mut bytes = Vec::new();
    std::fs::File::from(fd).take(SPEC_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use polylane_front::fuse::InitFlags;

    use super::*;
    use crate::ceph::ClientOptions;

    impl PoolSpec {
        /// One that says everything.
        pub(crate) fn sample() -> PoolSpec {
            PoolSpec {
                name: "one".to_string(),
                backing: Backing::Mem { bytes_limit: 1 << 30, inode_limit: 1 << 20 },
                lowers: vec![LowerSpec {
                    label: "below".to_string(),
                    files: Some(2),
                    ceph: Some("/a".to_string()),
                    is_data_only: true,
                    cache: Some(LowerCache { bytes: Some(1 << 20) }),
                    is_fixed: true,
                    layers: vec![LowerSpec::default()],
                }],
                cluster: Some(Cluster {
                    place: "u@fs:/".parse().expect("a place"),
                    timeout_ms: 5,
                    call_time_max_ms: Some(6),
                    session: "s".to_string(),
                    client: ClientOptions { io_threads: Some(3), ..ClientOptions::default() },
                }),
                mount_path: b"/lane \xff".to_vec(),
                covered: vec![b"proc".to_vec()],
                cpus: "0-1".parse().expect("cpus"),
                worker_cpus: vec![1],
                cache_bytes_limit: 5,
                write_back: WriteBack {
                    dirty_bytes_limit: Some(3),
                    journal_mode: Some(JournalMode::Writeback),
                    file_cache: Some(FileCache {
                        mode: FileCacheMode::WriteThrough,
                        bytes: None,
                        over: FileCachePlace::Upper,
                    }),
                    ..WriteBack::default()
                },
                weight: 100,
                owner: (1, 2),
                service_user: Some(3),
                map_users: vec![UserRange(0, 100_000, 65_536)],
                id_maps: true,
                kernel_cache: true,
                access_times: AccessTimes::NotOfDirs,
                incarnation: 3,
                device: Some("0:40".to_string()),
                fuse: Some(Params { minor: 45, flags: InitFlags::from_bits_retain(3) }),
                instances: 2,
            }
        }
    }

    #[test]
    fn a_specification_survives_the_way_to_the_service() {
        let spec = PoolSpec::sample();
        let fd = spec.to_fd().expect("memfd");
        assert!(rustix::io::write(&fd, b"x").is_err(), "sealed");
        assert_eq!(PoolSpec::from_fd(fd).expect("read"), spec);
    }
}
