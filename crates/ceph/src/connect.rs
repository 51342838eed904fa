//! From settings to a mounted client, in two steps.
//!
//! [`Settings::prepare`] loads the library and reads the configuration: files are opened, no thread
//! starts. [`Prepared::mount`] connects; from then on there are threads, and no file is opened. In
//! between a service confines itself.

use std::ffi::CString;
use std::time::Duration;

use crate::client::Client;
use crate::conf;
use crate::failure::Failure;
use crate::ffi::{Unmounted, check};

/// What to mount, and as whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The Ceph user, without `client.`.
    pub user: String,
    /// The file system; `None`: the only one.
    pub fs: Option<String>,
    /// The directory that is mounted: lanes' files are in it or in directories of it.
    pub root: Vec<u8>,
    /// The configuration file to read; it is opened here.
    pub conf: CString,
    /// The user's secret; `None`: the cluster asks for none.
    pub key: Option<String>,
    /// Bytes of file data that the client caches.
    pub cache_bytes: u64,
    /// Names the sessions of this client at the MDS: those that a former process of the same name
    /// left are ended at once, and not by their time limit.
    pub session: String,
    /// How long the monitors and the MDS may take to answer at the start.
    pub timeout: Duration,
}

/// Whether there is a library, new enough.
///
/// # Errors
/// [`Failure::Library`] and [`Failure::TooOld`].
pub fn look() -> Result<(), Failure> {
    check().map_err(Failure::from)
}

/// A client that has read all its files.
pub struct Prepared {
    client: Unmounted,
    settings: Settings,
}

/// Rights were checked above, which libcephfs calls "by FUSE" for its calls by inode. The size of a
/// directory is a number of names: that of the bytes below it, which the library would give, comes
/// late, and tar takes a directory that grows for one that changes.
const OPTIONS: [(&str, &str); 3] = [
    ("client_permissions", "false"),
    ("fuse_default_permissions", "true"),
    ("client_dirsize_rbytes", "false"),
];

impl Settings {
    /// Loads the library and reads the configuration. Starts no thread.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn prepare(self) -> Result<Prepared, Failure> {
        let client = Unmounted::new(&self.user)?.map_err(Failure::Conf)?;
        client.read_conf(&self.conf).map_err(Failure::Conf)?;
        let set = |name, value: &str| {
            client.set(name, value).map_err(|errno| Failure::Option(name, errno))
        };
        for (name, value) in OPTIONS {
            set(name, value)?;
        }
        set("client_oc_size", &self.cache_bytes.to_string())?;
        conf::set_common(set, self.timeout, self.key.as_deref())?;
        Ok(Prepared { client, settings: self })
    }
}

impl Prepared {
    /// Connects and mounts. Threads start, with the signals that this thread has blocked.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn mount(self) -> Result<Client, Failure> {
        let Settings { fs, root, timeout, session, .. } = self.settings;
        let timeout = u32::try_from(timeout.as_secs().max(1)).unwrap_or(u32::MAX);
        let mount = self.client.mount(fs.as_deref(), &root, (timeout, &session));
        mount.and_then(|mount| Client::new(mount, root)).map_err(Failure::Mount)
    }
}
