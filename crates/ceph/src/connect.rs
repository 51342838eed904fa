//! From settings to a mounted client, in two steps.
//!
//! [`Settings::prepare`] loads the library and reads the configuration: files are opened, no thread
//! starts. [`Prepared::mount`] connects; from then on there are threads, and no file is opened. In
//! between a service confines itself.

use std::ffi::CString;
use std::time::Duration;

use polylane_base::Errno;

use crate::client::Client;
use crate::conf;
use crate::deadline;
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
    /// What the client keeps of file data, and for how long.
    pub caching: Caching,
    /// Names the sessions of this client at the MDS: those that a former process of the same name
    /// left are ended at once, and not by their time limit.
    pub session: String,
    /// How long the monitors and the MDS may take to answer at the start.
    pub timeout: Duration,
}

/// What a client keeps of file data, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caching {
    /// Bytes of file data that it caches.
    pub bytes: u64,
    /// Most of these that wait to be written back; writers wait above it. No more than half of the
    /// cache wait in any case.
    pub dirty_bytes_limit: u64,
    /// How long they wait at most.
    pub flush_interval: Duration,
    /// Most bytes that are read ahead of a program that reads one after the other; 0: none, `None`:
    /// four stripes of the file.
    pub read_ahead_bytes: Option<u64>,
}

impl Caching {
    /// So many bytes, and what the client library does by itself.
    pub const fn of(bytes: u64) -> Caching {
        Caching {
            bytes,
            dirty_bytes_limit: 100 << 20,
            flush_interval: Duration::from_secs(5),
            read_ahead_bytes: None,
        }
    }

    /// The options of the client library that say so.
    fn options(&self) -> Vec<(&'static str, String)> {
        let dirty_bytes = self.dirty_bytes_limit.min(self.bytes / 2);
        let mut options = vec![
            ("client_oc_size", self.bytes.to_string()),
            ("client_oc_max_dirty", dirty_bytes.to_string()),
            ("client_oc_target_dirty", (dirty_bytes / 2).min(TARGET_DIRTY_BYTES).to_string()),
            ("client_oc_max_dirty_age", self.flush_interval.as_secs_f64().to_string()),
        ];
        match self.read_ahead_bytes {
            None => {}
            // The least that it reads ahead at all.
            Some(0) => options.push(("client_readahead_min", "0".to_string())),
            Some(bytes) => options.push(("client_readahead_max_bytes", bytes.to_string())),
        }
        options
    }
}

/// Above so many bytes that wait, the library begins to write back: its own default.
const TARGET_DIRTY_BYTES: u64 = 8 << 20;

/// Whether there is a library, new enough.
///
/// # Errors
/// [`Failure::Library`] and [`Failure::TooOld`].
pub fn look() -> Result<(), Failure> {
    check().map_err(Failure::from)
}

/// How much longer than its own limits the library may take to say that one was reached.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A client that has read all its files.
pub struct Prepared {
    client: Unmounted,
    settings: Settings,
}

/// Rights were checked above, which libcephfs calls "by FUSE" for its calls by inode. The size of a
/// directory is a number of names: that of the bytes below it, which the library would give, comes
/// late, and tar takes a directory that grows for one that changes. Before a client first reads or
/// writes in a pool, libcephfs would ask by a write whether it may, which waits while the pool is
/// full.
const OPTIONS: [(&str, &str); 4] = [
    ("client_permissions", "false"),
    ("fuse_default_permissions", "true"),
    ("client_dirsize_rbytes", "false"),
    ("client_check_pool_perm", "false"),
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
        for (name, value) in self.caching.options() {
            set(name, &value)?;
        }
        conf::set_common(set, self.timeout, self.key.as_deref())?;
        client.settle().map_err(Failure::Conf)?;
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
        let seconds = u32::try_from(timeout.as_secs().max(1)).unwrap_or(u32::MAX);
        let (client, at) = (self.client, root.clone());
        let mount = move || client.mount(fs.as_deref(), &at, (seconds, &session));
        // The library has a limit for monitors, and none for an MDS that is not there.
        let mount = deadline::in_time(timeout.saturating_add(GRACE), mount);
        let mount = mount.unwrap_or(Err(Errno::ETIMEDOUT)).map_err(Failure::Mount)?;
        Client::new(mount, root).map_err(Failure::Mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_half_of_a_cache_waits_to_be_written() {
        let value = |caching: Caching, name: &str| {
            let options = caching.options();
            let found = options.iter().find(|(option, _)| *option == name);
            found.map(|(_, value)| value.clone())
        };
        let small = Caching::of(8 << 20);
        assert_eq!(value(small, "client_oc_size").as_deref(), Some("8388608"));
        assert_eq!(value(small, "client_oc_max_dirty").as_deref(), Some("4194304"));
        assert_eq!(value(small, "client_oc_target_dirty").as_deref(), Some("2097152"));
        assert_eq!(value(small, "client_readahead_min"), None);
        let large = Caching {
            dirty_bytes_limit: 64 << 20,
            flush_interval: Duration::from_millis(50),
            read_ahead_bytes: Some(0),
            ..Caching::of(1 << 30)
        };
        assert_eq!(value(large, "client_oc_max_dirty").as_deref(), Some("67108864"));
        assert_eq!(value(large, "client_oc_target_dirty").as_deref(), Some("8388608"));
        assert_eq!(value(large, "client_oc_max_dirty_age").as_deref(), Some("0.05"));
        assert_eq!(value(large, "client_readahead_min").as_deref(), Some("0"));
        let ahead = Caching { read_ahead_bytes: Some(4096), ..large };
        assert_eq!(value(ahead, "client_readahead_max_bytes").as_deref(), Some("4096"));
    }
}
