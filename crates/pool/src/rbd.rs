//! Volumes that are images of a Ceph cluster: `rbd:[USER@]POOL/IMAGE[@SNAP]`.
//!
//! Commands that look at an image or change it as a whole are clients of the cluster themselves. A
//! lane's service and an attachment's engine each have a client of their own, which has the image's
//! exclusive lock; they are handed the configuration and the keyring as descriptors, like a service
//! on CephFS.
//!
//! librbd starts threads, so whoever is going to fork asks the cluster in a child process
//! (`ensure`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::size::ByteSize;
use polylane_base::sync::Arc;
use polylane_ceph::rbd::{Failure as Why, Look, Prepared, RbdDevice, Settings};
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_volume::cache::{CacheSpec, StoreKind};
use polylane_volume::{self as volume, Content, SetOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ceph::{self, CephFiles, ClusterOptions};
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::process::Process;

/// What the names of such volumes begin with.
const KIND: &str = "rbd:";

/// An image of a cluster, or a snapshot of one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImagePlace {
    /// The Ceph user, without `client.`.
    pub user: String,
    /// The pool.
    pub pool: String,
    /// The image.
    pub image: String,
    /// The snapshot that is meant.
    pub snapshot: Option<String>,
}

impl FromStr for ImagePlace {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let usage =
            || Err("write rbd:[USER@]POOL/IMAGE[@SNAP], such as rbd:app@rbd/web".to_string());
        let Some((before, after)) = text.split_once('/') else { return usage() };
        let (user, pool) = user_and_pool(before);
        let (image, snapshot) = match after.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (after, None),
        };
        let is_name = |word: &str| {
            !word.is_empty() && !word.contains(['/', '@']) && !word.contains(char::is_control)
        };
        let mut words = [user, pool, image].into_iter().chain(snapshot);
        if !words.all(is_name) {
            return usage();
        }
        Ok(ImagePlace {
            user: user.to_string(),
            pool: pool.to_string(),
            image: image.to_string(),
            snapshot: snapshot.map(str::to_string),
        })
    }
}

/// `[USER@]POOL`, as the user, without `client.`, and the pool.
fn user_and_pool(text: &str) -> (&str, &str) {
    let (user, pool) = text.split_once('@').unwrap_or((ceph::USER_DEFAULT, text));
    (user.strip_prefix("client.").unwrap_or(user), pool)
}

impl fmt::Display for ImagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImagePlace { user, pool, image, snapshot } = self;
        write!(f, "{KIND}{user}@{pool}/{image}")?;
        snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

impl ImagePlace {
    /// The image that a volume's name means; `None`: it is a path.
    ///
    /// # Errors
    /// It begins as an image's and is none.
    pub fn named(volume: &Path) -> Result<Option<ImagePlace>> {
        let Some(text) = volume.to_str().and_then(|text| text.strip_prefix(KIND)) else {
            return Ok(None);
        };
        let place = text.parse();
        place.map(Some).map_err(|why| Failure::usage(format!("{}: {why}", volume.display())))
    }

    /// Its name as a path, as tables have it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }

    fn failed(&self, why: &Why) -> Failure {
        Failure::failed(format!("{self}: {why}"))
    }

    fn whole(&self) -> ImagePlace {
        ImagePlace { snapshot: None, ..self.clone() }
    }

    fn refuse_snapshot(&self) -> Result<()> {
        match self.snapshot {
            None => Ok(()),
            Some(_) => Err(Failure::usage(format!(
                "{self}: a snapshot stays as it is: name an image without '@'"
            ))),
        }
    }
}

/// What a process is told that is going to be the client of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageSpec {
    /// The image.
    pub place: ImagePlace,
    /// Milliseconds that the cluster, and another's lock, may take at the start.
    pub timeout_ms: u64,
    /// Milliseconds that a request may take afterwards until it is `EIO`; `None`: it waits.
    #[serde(default)]
    pub request_time_max_ms: Option<u64>,
    /// Names the lane or attachment: its next process takes the image over from a former one.
    pub session: String,
    /// Who that is, for people who find the image in use.
    pub holder: String,
}

impl ImageSpec {
    /// Of an image that a lane or an attachment, which people call `holder`, is going to be on.
    pub(crate) fn new(place: &ImagePlace, options: &ClusterOptions, holder: &str) -> ImageSpec {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        ImageSpec {
            place: place.clone(),
            timeout_ms: options.timeout_ms(),
            request_time_max_ms: options.timeout.map(|_| options.timeout_ms()),
            session: ceph::session(),
            holder: format!("{holder} of host {host}"),
        }
    }

    /// How long the client may take until it has the image.
    pub(crate) fn start_time_max(&self) -> Duration {
        // The monitors first, then the lock.
        Duration::from_millis(self.timeout_ms).saturating_mul(2)
    }

    /// Loads the client library and reads the files. Call before the process is confined.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn prepare(&self, files: &CephFiles) -> Result<Prepared> {
        let ImageSpec { place, timeout_ms, request_time_max_ms, session, holder } = self;
        let (conf, key) = files.read(&place.user, place)?;
        let settings = Settings {
            user: place.user.clone(),
            pool: place.pool.clone(),
            image: place.image.clone(),
            snapshot: place.snapshot.clone(),
            conf,
            key,
            timeout: Duration::from_millis(*timeout_ms),
            request_time_max: request_time_max_ms.map(Duration::from_millis),
            session: session.clone(),
            holder: holder.clone(),
        };
        settings.prepare().map_err(|why| place.failed(&why))
    }

    /// Connects and opens the image. Threads start.
    ///
    /// # Errors
    /// One line: there is none, it is in use, by whom.
    pub(crate) fn open(&self, prepared: Prepared) -> Result<Arc<RbdDevice>> {
        prepared.open().map_err(|why| self.place.failed(&why))
    }
}

/// How an image is cached: the host's page cache has files of the host alone.
pub(crate) fn cache_of(options: &SetOptions) -> CacheSpec {
    options.change(CacheSpec { store: StoreKind::Own, ..CacheSpec::default() })
}

/// A client of the cluster, of a command that does one thing with an image.
fn client(place: &ImagePlace, options: &ClusterOptions) -> Result<Prepared> {
    let files = ceph::open_files(&place.user, options)?;
    let holder = format!("process {}", std::process::id());
    ImageSpec::new(place, options, &holder).prepare(&files)
}

/// Makes an image of so many bytes, 10 GiB if that is not said, with an ext4 on it if that is
/// wanted.
///
/// # Errors
/// It exists; the cluster's.
pub fn create(
    place: &ImagePlace,
    size: Option<u64>,
    ext4: bool,
    options: &ClusterOptions,
) -> Result<()> {
    place.refuse_snapshot()?;
    let size = volume::size_of_new(size)?;
    let device = client(place, options)?.create(size).map_err(|why| place.failed(&why))?;
    if !ext4 {
        return Ok(());
    }
    let formatted = volume::format_device(&place.path(), device, size);
    formatted.inspect_err(|_| {
        // What went wrong is said; that nothing stays behind is tried.
        let _ = client(place, options).map(Prepared::remove);
    })
}

/// Looks whether a lane can be on an image, and makes one, formatted, where there is none; whether
/// it did.
///
/// # Errors
/// One line: it has another size than was asked for, holds no ext4, or a longer one than it is;
/// the cluster's.
pub(crate) fn ensure(
    place: &ImagePlace,
    size: Option<u64>,
    options: &ClusterOptions,
) -> Result<bool> {
    in_child(place, || ensure_here(place, size, options))
}

/// Asks the cluster in a child process, so that this one has no threads and may fork afterwards.
fn in_child<T: Serialize + DeserializeOwned>(
    place: &ImagePlace,
    ask: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let failed = |error: std::io::Error| Failure::because(place, "ask its cluster", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => {
            drop(link);
            let found = ask().map_err(|failure| (failure.status, failure.line));
            let _ = other.send(&found, &[]);
            ns::exit_now(0)
        }
        Fork::Parent(child) => {
            drop(other);
            let told = link.receive::<std::result::Result<T, (u8, String)>>();
            drop(Process::new(child));
            match told {
                Ok(Some((found, _))) => found.map_err(|(status, line)| Failure { status, line }),
                _ => Err(failed(std::io::Error::from(Errno::EIO))),
            }
        }
    }
}

fn ensure_here(place: &ImagePlace, size: Option<u64>, options: &ClusterOptions) -> Result<bool> {
    let looked = match client(place, options)?.look(volume::START_BYTES) {
        Err(Why::Open(Errno::ENOENT)) if place.snapshot.is_none() => {
            return create(place, size, true, options).map(|()| true);
        }
        looked => looked.map_err(|why| place.failed(&why))?,
    };
    let wanted = size.map(|size| volume::size_of_new(Some(size))).transpose()?;
    if wanted.is_some_and(|wanted| wanted != looked.size) {
        return Err(Failure::failed(format!(
            "{place}: exists with {}: leave --size out, or use 'polylane volume resize' first",
            ByteSize(looked.size)
        )));
    }
    match volume::ext4_bytes(&looked.start) {
        None => Err(Failure::failed(format!(
            "{place}: holds no ext4 file system: format it with mke2fs, or remove it to have it \
             made"
        ))),
        Some(bytes) if bytes > looked.size => Err(Failure::failed(format!(
            "{place}: has {}, and the file system on it {}: grow it with 'polylane volume resize', \
             or copy what it was made of again",
            ByteSize(looked.size),
            ByteSize(bytes)
        ))),
        Some(_) => Ok(false),
    }
}

/// What is to be known of an image. Sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ImageInfo {
    /// Its name.
    pub path: String,
    /// As the tenant sees it.
    pub size_bytes: u64,
    /// What lies in objects of its own; `None` where the cluster cannot tell.
    pub allocated_bytes: Option<u64>,
    /// The file system.
    pub content: Content,
    /// Who has it open to be written.
    pub used_by: Option<String>,
    /// Its features, by `rbd`'s names.
    pub features: Vec<&'static str>,
    /// Its snapshots.
    pub snapshots: Vec<String>,
}

/// Features of images, by their bits.
const FEATURES: [&str; 12] = [
    "layering",
    "striping",
    "exclusive-lock",
    "object-map",
    "fast-diff",
    "deep-flatten",
    "journaling",
    "data-pool",
    "operations",
    "migrating",
    "non-primary",
    "dirty-cache",
];

impl ImageInfo {
    fn new(place: &ImagePlace, look: Look) -> ImageInfo {
        let has = |bit: &usize| look.features >> bit & 1 == 1;
        ImageInfo {
            path: place.to_string(),
            size_bytes: look.size,
            allocated_bytes: look.allocated,
            content: volume::content_of(&look.start),
            used_by: look.holder,
            features: (0..FEATURES.len()).filter(has).map(|bit| FEATURES[bit]).collect(),
            snapshots: look.snapshots,
        }
    }
}

/// Looks at an image.
///
/// # Errors
/// There is none; the cluster's.
pub fn info(place: &ImagePlace, options: &ClusterOptions) -> Result<ImageInfo> {
    let look = client(place, options)?.look(volume::START_BYTES);
    look.map(|look| ImageInfo::new(place, look)).map_err(|why| place.failed(&why))
}

/// The pool that `rbd:[USER@]POOL` means, as its user and its name; `None`: a path.
pub fn pool_named(dir: &Path) -> Option<(String, String)> {
    let text = dir.to_str()?.strip_prefix(KIND)?;
    let (user, pool) = user_and_pool(text);
    Some((user.to_string(), pool.to_string()))
}

/// Looks at all images of a pool, in the order of their names.
///
/// # Errors
/// There is no such pool; the cluster's.
pub fn list((user, pool): (&str, &str), options: &ClusterOptions) -> Result<Vec<ImageInfo>> {
    let place = |image: String| ImagePlace {
        user: user.to_string(),
        pool: pool.to_string(),
        image,
        snapshot: None,
    };
    let looked = client(&place(String::new()), options)?.look_at_all(volume::START_BYTES);
    let looked = looked.map_err(|why| Failure::failed(format!("{KIND}{user}@{pool}: {why}")))?;
    let info = |(name, look)| ImageInfo::new(&place(name), look);
    let mut infos: Vec<ImageInfo> = looked.into_iter().map(info).collect();
    infos.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(infos)
}

/// Removes an image that nobody uses, or a snapshot.
///
/// # Errors
/// It is in use, or has snapshots, or is the base of clones; the cluster's.
pub fn remove(place: &ImagePlace, options: &ClusterOptions) -> Result<()> {
    let used_by = || info(place, options).ok()?.used_by;
    client(place, options)?.remove().map_err(|why| match why {
        Why::InUse(None) => place.failed(&Why::InUse(used_by())),
        why => place.failed(&why),
    })
}

/// Gives an image a larger size; whether an ext4 is on it. Of one that is attached here the lock's
/// owner does it.
///
/// # Errors
/// It would shrink, or is in use otherwise; the cluster's.
pub(crate) fn grow(
    place: &ImagePlace,
    (size, is_attached): (u64, bool),
    options: &ClusterOptions,
) -> Result<bool> {
    place.refuse_snapshot()?;
    in_child(place, || {
        let ImageInfo { size_bytes, content, used_by, .. } = info(place, options)?;
        if let Some(by) = used_by.filter(|_| !is_attached) {
            return Err(Failure::failed(format!(
                "{place}: in use by {by}: it grows when that has ended, or while it is attached"
            )));
        }
        if size < size_bytes {
            return Err(place.failed(&Why::Smaller(size_bytes)));
        }
        client(place, options)?.grow(size).map_err(|why| place.failed(&why))?;
        Ok(content != Content::None)
    })
}

/// Makes a snapshot of an image, by RBD's own: `to` is the same image with the snapshot's name.
///
/// # Errors
/// `to` is none of the image; it exists; the cluster's.
pub fn snapshot(place: &ImagePlace, to: &ImagePlace, options: &ClusterOptions) -> Result<()> {
    place.refuse_snapshot()?;
    if to.snapshot.is_none() || to.whole() != *place {
        return Err(Failure::usage(format!("{to}: a snapshot is named {place}@SNAP")));
    }
    client(to, options)?.snapshot().map_err(|why| to.failed(&why))
}

/// Makes an image of a snapshot, by RBD's own: it shares the snapshot's blocks.
///
/// # Errors
/// `place` is no snapshot; `to` exists; the cluster's.
pub fn clone(place: &ImagePlace, to: &ImagePlace, options: &ClusterOptions) -> Result<()> {
    to.refuse_snapshot()?;
    if place.snapshot.is_none() {
        return Err(Failure::usage(format!(
            "{place}: an image is cloned by a snapshot: make one with 'polylane volume snapshot \
             {place} {place}@SNAP', then clone that"
        )));
    }
    if place.user != to.user {
        return Err(Failure::usage(format!("{to}: a clone is made by one user, {}", place.user)));
    }
    let cloned = client(place, options)?.clone_to(&to.pool, &to.image);
    cloned.map_err(|why| match why {
        Why::Exists => to.failed(&why),
        why => place.failed(&why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_a_user_a_pool_an_image_and_may_have_a_snapshot() {
        let parse = |text: &str| text.parse::<ImagePlace>().map(|place| place.to_string());
        assert_eq!(parse("rbd/web").as_deref(), Ok("rbd:admin@rbd/web"));
        assert_eq!(parse("client.app@p/i@s").as_deref(), Ok("rbd:app@p/i@s"));
        for bad in ["", "rbd", "/i", "p/", "@p/i", "u@/i", "p/i@", "p/ns/i", "p/i@s@t", "p/i\n"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let named = |text: &str| ImagePlace::named(Path::new(text));
        assert_eq!(named("rbd/web"), Ok(None));
        assert!(named("rbd:a@b/c").is_ok_and(|place| place.is_some()));
        assert_eq!(named("rbd:b").map_err(|failure| failure.status), Err(2));
        assert_eq!(pool_named(Path::new("rbd:a@b")), Some(("a".to_string(), "b".to_string())));
        assert_eq!(pool_named(Path::new("/rbd")), None);
    }
}
