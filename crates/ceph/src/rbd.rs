//! An image of a Ceph cluster as a medium.
//!
//! ```text
//!  Channel::submit ─► librbd ─► OSDs        a thread of librbd calls back: the completion is kept
//!  Channel::poll   ◄─ completions, an event descriptor for whoever waits
//! ```
//!
//! # Durability
//!
//! librbd's own cache is off, and the caches lie above: a write that has completed is on the OSDs.
//! Where the image's configuration, or its pool's, has librbd cache all the same, a durable change
//! is told when a flush behind it has ended.
//!
//! # One writer
//!
//! An image that is opened to be written to is locked for as long as it is open. A second opener
//! waits for [`Settings::timeout`] at most, in which the lock of a client that died is broken: by
//! its watch's end, 30 s after it fell silent, its address is barred from the cluster, and then
//! what it wrote before is all there ever is of it.
//!
//! # Requests that do not end
//!
//! They wait while the cluster is away, unless [`Settings::request_time_max`] says for how long:
//! then librados gives them up. One that was given up may have been done; a later one on the same
//! object is done after it in any case.

use std::time::Duration;

use polylane_base::Errno;
use polylane_base::sync::Arc;

use crate::conf;
use crate::connect::GRACE;
use crate::deadline;
use crate::ffi::{Cluster, Image, Mode, Pool, Unconnected};

mod configured;
mod device;
mod lock;
mod settings;
mod turn;

pub use device::RbdDevice;
pub use settings::{Failure, RESIZE_TURN_TIME, Settings};
use turn::Turn;

/// A client that has read all its files.
pub struct Prepared {
    client: Unconnected,
    settings: Settings,
}

/// Writes that complete are durable; discards are whole; a client whose lock is broken is barred
/// from the cluster, whatever the configuration file says: a late write of it would be another's
/// damage. An image's own configuration goes before these: see [`configured`].
const OPTIONS: [(&str, &str); 3] = [
    ("rbd_cache", "false"),
    ("rbd_skip_partial_discard", "false"),
    ("rbd_blocklist_on_break_lock", "true"),
];

/// Whether the libraries are there, new enough.
///
/// # Errors
/// [`Failure::Library`].
pub fn check() -> Result<(), Failure> {
    Image::check()?;
    Cluster::check()?;
    Ok(())
}

impl Settings {
    /// Loads the libraries and reads the configuration. Starts no thread.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn prepare(self) -> Result<Prepared, Failure> {
        check()?;
        let client = Unconnected::new(&self.user)?.map_err(Failure::Conf)?;
        client.read_conf(&self.conf).map_err(Failure::Conf)?;
        let set = |name, value: &str| {
            client.set(name, value).map_err(|errno| Failure::Option(name, errno))
        };
        for (name, value) in OPTIONS {
            set(name, value)?;
        }
        conf::set_common(set, self.timeout, self.key.as_deref())?;
        Ok(Prepared { client, settings: self })
    }
}

impl Prepared {
    /// Connects for a command: each of its steps ends in time.
    fn connect(self) -> Result<(Cluster, Settings), Failure> {
        self.limit_requests(self.settings.timeout)?;
        Ok((self.client.connect().map_err(Failure::Connect)?, self.settings))
    }

    /// From now on the OSDs may take so long for a request.
    fn limit_requests(&self, limit: Duration) -> Result<(), Failure> {
        const OPTION: &str = "rados_osd_op_timeout";
        let seconds = limit.as_secs_f64().to_string();
        self.client.set(OPTION, &seconds).map_err(|errno| Failure::Option(OPTION, errno))
    }

    fn pool(self) -> Result<(Pool, Settings), Failure> {
        let (cluster, settings) = self.connect()?;
        Ok((cluster.pool(&settings.pool).map_err(Failure::Pool)?, settings))
    }

    /// Makes the image, of so many bytes, all zeros, and opens it. Threads start.
    ///
    /// # Errors
    /// See [`Failure`]; [`Failure::Exists`].
    pub fn create(self, size: u64) -> Result<Arc<RbdDevice>, Failure> {
        let (cluster, settings) = self.connect()?;
        let pool = cluster.pool(&settings.pool).map_err(Failure::Pool)?;
        Image::create(&pool, &settings.image, size)?.map_err(made("make the image"))?;
        open(pool, &settings)
    }

    /// Opens the image, or its snapshot to be read. Threads start.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn open(self) -> Result<Arc<RbdDevice>, Failure> {
        if let Some(limit) = self.settings.request_time_max {
            self.limit_requests(limit)?;
        }
        let Prepared { client, settings } = self;
        // Connecting has the limit, and so has waiting for another's lock.
        let limit = settings.timeout.saturating_mul(2).saturating_add(GRACE);
        let opened = deadline::in_time(limit, move || {
            let cluster = client.connect().map_err(Failure::Connect)?;
            open(cluster.pool(&settings.pool).map_err(Failure::Pool)?, &settings)
        });
        opened.unwrap_or(Err(Failure::Open(Errno::ETIMEDOUT)))
    }

    /// Removes the image, or the snapshot.
    ///
    /// # Errors
    /// See [`Failure`]; [`Failure::HasOthers`].
    pub fn remove(self) -> Result<(), Failure> {
        let (pool, settings) = self.pool()?;
        let Some(snapshot) = &settings.snapshot else {
            return Image::remove(&pool, &settings.image)?.map_err(|errno| match errno {
                Errno::ENOENT => Failure::Open(errno),
                Errno::ENOTEMPTY => Failure::HasOthers("it has snapshots"),
                Errno::EBUSY => Failure::InUse(None),
                errno => Failure::Call("remove the image", errno),
            });
        };
        let image = unlocked(pool, &settings)?;
        image.remove_snapshot(snapshot).map_err(|errno| match errno {
            Errno::ENOENT => Failure::Open(errno),
            Errno::EBUSY => Failure::HasOthers("images are clones of it"),
            errno => Failure::Call("remove the snapshot", errno),
        })
    }

    /// Makes the snapshot that the settings name. A client that has the image goes on.
    ///
    /// # Errors
    /// See [`Failure`]; [`Failure::Exists`].
    pub fn snapshot(self) -> Result<(), Failure> {
        let (pool, settings) = self.pool()?;
        let name = settings.snapshot.clone().unwrap_or_default();
        unlocked(pool, &settings)?.snapshot(&name).map_err(made("make the snapshot"))
    }

    /// Gives the image a larger size, or the one that it has. A client that has it goes on, and may
    /// take the new size over.
    ///
    /// # Errors
    /// See [`Failure`]; [`Failure::Smaller`], also where the image grew meanwhile;
    /// [`Failure::Resizing`].
    pub fn grow(self, size: u64) -> Result<(), Failure> {
        let (cluster, settings) = self.connect()?;
        let pool = || cluster.pool(&settings.pool).map_err(Failure::Pool);
        let turn = Turn::take(pool()?, &unlocked(pool()?, &settings)?, &settings)?;
        turn.hold(|| {
            // Opened in its turn: it knows what the former ones have made of the image.
            let image = unlocked(pool()?, &settings)?;
            image.grow(size).map_err(|errno| match (errno, image.size()) {
                (Errno::EINVAL, Ok(has)) if has > size => Failure::Smaller(has),
                (errno, _) => Failure::Call("resize the image", errno),
            })
        })
    }

    /// Makes an image, in a pool, of the snapshot that the settings name.
    ///
    /// # Errors
    /// See [`Failure`]; [`Failure::Exists`].
    pub fn clone_to(self, pool: &str, image: &str) -> Result<(), Failure> {
        let (cluster, settings) = self.connect()?;
        let from = cluster.pool(&settings.pool).map_err(Failure::Pool)?;
        let to = cluster.pool(pool).map_err(Failure::Pool)?;
        let snapshot = settings.snapshot.clone().unwrap_or_default();
        let cloned = Image::clone_of((&from, &settings.image, &snapshot), (&to, image))?;
        cloned.map_err(|errno| match errno {
            Errno::ENOENT => Failure::Open(errno),
            errno => made("make the clone")(errno),
        })
    }

    /// Looks at all images of the pool, by their names.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn look_at_all(self, start: usize) -> Result<Vec<(String, Look)>, Failure> {
        let (cluster, settings) = self.connect()?;
        let pool = || cluster.pool(&settings.pool).map_err(Failure::Pool);
        let names = Image::list(&pool()?)?;
        let names = names.map_err(|errno| Failure::Call("list its images", errno))?;
        let looked = names.into_iter().filter_map(|name| {
            match look(&pool, (&name, None), start) {
                // One that was removed meanwhile.
                Err(Failure::Open(Errno::ENOENT)) => None,
                looked => Some(looked.map(|look| (name, look))),
            }
        });
        looked.collect()
    }

    /// Looks at the image, or the snapshot, and changes nothing. `start`: how many of its first
    /// bytes are to be read.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn look(self, start: usize) -> Result<Look, Failure> {
        let (cluster, settings) = self.connect()?;
        let pool = || cluster.pool(&settings.pool).map_err(Failure::Pool);
        look(&pool, (&settings.image, settings.snapshot.clone()), start)
    }
}

fn look(
    pool: &impl Fn() -> Result<Pool, Failure>,
    (name, snapshot): (&str, Option<String>),
    start: usize,
) -> Result<Look, Failure> {
    // Of an image that is open to be read librbd does not know the lock. A user that may only read
    // it is not told who has it.
    let holder = match snapshot {
        None => Image::open(pool()?, name, &Mode::Write)?.ok().as_ref().and_then(lock::holder),
        Some(_) => None,
    };
    let image = Image::open(pool()?, name, &Mode::Look(snapshot))?.map_err(Failure::Open)?;
    let call = |what| move |errno| Failure::Call(what, errno);
    let size = image.size().map_err(call("ask for its size"))?;
    Ok(Look {
        size,
        allocated: image.allocated(size).ok(),
        features: image.features().map_err(call("ask for its features"))?,
        snapshots: image.snapshots().map_err(call("list its snapshots"))?,
        holder,
        start: image.read_now(start).map_err(call("read it"))?,
    })
}

/// What is to be known of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// Bytes.
    pub size: u64,
    /// Bytes in objects of its own; `None`: the cluster does not say.
    pub allocated: Option<u64>,
    /// Its features, `RBD_FEATURE_*`.
    pub features: u64,
    /// Its snapshots.
    pub snapshots: Vec<String>,
    /// Who has it open to be written, for people.
    pub holder: Option<String>,
    /// Its first bytes.
    pub start: Vec<u8>,
}

/// Why something new could not be made.
fn made(what: &'static str) -> impl Fn(Errno) -> Failure {
    move |errno| match errno {
        Errno::EEXIST => Failure::Exists,
        errno => Failure::Call(what, errno),
    }
}

/// The image, for calls that whoever has it locked executes.
fn unlocked(pool: Pool, settings: &Settings) -> Result<Image, Failure> {
    Image::open(pool, &settings.image, &Mode::Write)?.map_err(Failure::Open)
}

fn open(pool: Pool, settings: &Settings) -> Result<Arc<RbdDevice>, Failure> {
    let mode = match &settings.snapshot {
        None => Mode::Write,
        snapshot => Mode::Look(snapshot.clone()),
    };
    let image = Image::open(pool, &settings.image, &mode)?.map_err(Failure::Open)?;
    let durable = match mode {
        Mode::Write => {
            let durable = configured::durable(&image)?;
            lock::lock(&image, settings)?;
            Some(durable)
        }
        Mode::Look(_) => None,
    };
    RbdDevice::new(image, durable)
}
