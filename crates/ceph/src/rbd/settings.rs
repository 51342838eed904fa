//! Which image a client is to use, and why it cannot.

use std::ffi::CString;
use std::fmt;
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::size::ByteSize;

use crate::failure::Failure as Loading;
use crate::ffi::Missing;

/// How long the turn to resize an image lasts that is not renewed: so long is one waited for whose
/// process was killed.
pub const RESIZE_TURN_TIME: Duration = Duration::from_secs(20);

/// Which image, and as whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The Ceph user, without `client.`.
    pub user: String,
    /// The pool.
    pub pool: String,
    /// The image.
    pub image: String,
    /// The snapshot of it that is to be read; `None`: the image, which is locked.
    pub snapshot: Option<String>,
    /// The configuration file to read; it is opened here.
    pub conf: CString,
    /// The user's secret; `None`: the cluster asks for none.
    pub key: Option<String>,
    /// How long the monitors may take to answer, and another's lock to end.
    pub timeout: Duration,
    /// How long a request to the open image may take until it is `EIO`; `None`: it waits.
    pub request_time_max: Option<Duration>,
    /// Names the client: the lock of a former process of the same name is broken at once.
    pub session: String,
    /// Who that is, for the people whom the image is refused meanwhile.
    pub holder: String,
}

/// Why an image cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The libraries.
    Library(Loading),
    /// The configuration cannot be read.
    Conf(Errno),
    /// An option is refused.
    Option(&'static str, Errno),
    /// The cluster does not answer, or not this user.
    Connect(Errno),
    /// The pool cannot be opened.
    Pool(Errno),
    /// The image cannot be opened.
    Open(Errno),
    /// The image is there already.
    Exists,
    /// The image cannot be removed, or not this snapshot of it, since others are on it.
    HasOthers(&'static str),
    /// The image has so many bytes, and would shrink.
    Smaller(u64),
    /// Another resize of the image is under way.
    Resizing,
    /// The image has no exclusive lock.
    NoLock,
    /// Its configuration lets a client go on whose lock was broken.
    BarsNobody,
    /// Another client has it; who that is.
    InUse(Option<String>),
    /// A call on the open image.
    Call(&'static str, Errno),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Library(why) => why.fmt(f),
            Failure::Conf(errno) => write!(f, "read its configuration: {errno}"),
            Failure::Option(name, errno) => write!(f, "set its option '{name}': {errno}"),
            Failure::Connect(Errno::ETIMEDOUT) => write!(
                f,
                "connect: no monitor answered in time: check 'mon host' in the configuration, and \
                 the cluster's health"
            ),
            Failure::Connect(Errno::EPERM | Errno::EACCES) => {
                write!(f, "connect: the cluster refuses this user or its key: see 'ceph auth get'")
            }
            Failure::Connect(errno) => write!(f, "connect: {errno}"),
            Failure::Pool(Errno::ENOENT) => {
                write!(f, "there is no such pool: see 'ceph osd pool ls'")
            }
            Failure::Pool(errno) => write!(f, "open its pool: {errno}"),
            Failure::Open(Errno::ENOENT) => write!(
                f,
                "there is no such image, or no such snapshot: make one with 'polylane volume \
                 create', or see 'rbd ls'"
            ),
            Failure::Open(Errno::ETIMEDOUT) => write!(
                f,
                "open the image: the cluster did not answer in time: check its health ('ceph -s')"
            ),
            Failure::Open(Errno::EPERM | Errno::EACCES) => {
                write!(f, "the cluster refuses this image to this user: see 'ceph auth get'")
            }
            Failure::Open(Errno::ENOSYS | Errno::EOPNOTSUPP) => write!(
                f,
                "the image has features that librbd does not know: see 'rbd info', 'rbd feature \
                 disable'"
            ),
            Failure::Open(errno) => write!(f, "open the image: {errno}"),
            Failure::Exists => write!(f, "it exists: choose another name"),
            Failure::HasOthers(what) => write!(f, "{what}: remove those first"),
            Failure::Smaller(has) => write!(
                f,
                "has {}, and an image only grows: make a smaller one and copy the files",
                ByteSize(*has)
            ),
            Failure::Resizing => write!(
                f,
                "another resize of it is under way, or was killed less than {} s ago: try again",
                RESIZE_TURN_TIME.as_secs()
            ),
            Failure::NoLock => write!(
                f,
                "the image has no exclusive lock, which keeps two lanes from writing to it: see \
                 'rbd feature enable POOL/IMAGE exclusive-lock'"
            ),
            Failure::BarsNobody => write!(
                f,
                "the image's or its pool's configuration has rbd_blocklist_on_break_lock=false, \
                 with which two lanes could write to it: see 'rbd config image remove POOL/IMAGE \
                 rbd_blocklist_on_break_lock', 'rbd config pool remove'"
            ),
            Failure::InUse(Some(owner)) => write!(f, "in use by {owner}: end that one first"),
            Failure::InUse(None) => write!(f, "in use: another client has it open"),
            Failure::Call(what, errno) => write!(f, "{what}: {errno}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Failure {
        Failure::Library(missing.into())
    }
}
