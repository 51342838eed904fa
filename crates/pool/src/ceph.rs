//! A lane on a Ceph file system, or over layers on one: from `--ceph` to a mounted client.
//!
//! The supervisor opens the configuration and the keyring with its caller's rights; the service
//! gets them as descriptors, reads both before it is confined, and connects after that. A lane has
//! one client, for its own files and for its layers: all of them are of one file system and user.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use polylane_base::size::ByteSize;
use polylane_ceph::conf::{Sections, keyrings};
use polylane_ceph::rbd::RESIZE_TURN_TIME;
use polylane_ceph::{Caching, Prepared, Settings};
use polylane_volume::{self as volume, Links};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Where a configuration is unless it is named.
const CONF_DEFAULT: &str = "/etc/ceph/ceph.conf";

/// The user unless it is named.
pub(crate) const USER_DEFAULT: &str = "admin";

/// Most bytes of a configuration or a keyring.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long the cluster may take to answer at the start.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

// The turn of a resize that was killed is over by then.
const _: () = assert!(RESIZE_TURN_TIME.as_secs() < TIMEOUT_DEFAULT.as_secs());

/// A directory of a Ceph file system: `[USER@]FSNAME[:PATH]`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CephPlace {
    /// The Ceph user, without `client.`.
    pub user: String,
    /// The file system.
    pub fs: String,
    /// The directory in it.
    pub path: String,
}

impl FromStr for CephPlace {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (user, rest) = text.split_once('@').unwrap_or((USER_DEFAULT, text));
        let (fs, path) = rest.split_once(':').unwrap_or((rest, "/"));
        let user = user.strip_prefix("client.").unwrap_or(user);
        if user.is_empty() || fs.is_empty() || fs.contains('/') || !path.starts_with('/') {
            return Err("write [USER@]FSNAME[:/PATH], such as app@cephfs:/volumes/app".to_string());
        }
        let (user, fs, path) = (user.to_string(), fs.to_string(), path.to_string());
        Ok(CephPlace { user, fs, path })
    }
}

impl std::fmt::Display for CephPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}:{}", self.user, self.fs, self.path)
    }
}

impl CephPlace {
    /// Whether it is the other, or a directory below it.
    pub(crate) fn lies_in(&self, other: &CephPlace) -> bool {
        let names = self.names();
        (&self.user, &self.fs) == (&other.user, &other.fs)
            && names.starts_with(&other.names())
            && !names.contains(&"..")
    }

    /// The names that its path is made of.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.path.split('/').filter(|name| !name.is_empty() && *name != ".").collect()
    }
}

/// The Ceph file system that a lane's files, or layers under them, are on: its service has one
/// client of it, whose configuration and keyring it is handed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// The directory that is mounted, with all of them in it, and as whom.
    pub place: CephPlace,
    /// Milliseconds that the cluster may take to answer at the start.
    pub timeout_ms: u64,
    /// Milliseconds that a call may take afterwards until it is `EIO`; `None`: it waits.
    pub call_time_max_ms: Option<u64>,
    /// Names the lane's sessions at the MDS: the next service ends those of a former one.
    pub session: String,
    /// What of its client was asked for.
    #[serde(default)]
    pub client: ClientOptions,
}

/// Settings of a lane's client of a Ceph file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientOptions {
    /// Bytes of file data that it caches; `None`: half of the lane's cache.
    pub cache_bytes: Option<u64>,
    /// Most bytes that it reads ahead; 0: none; `None`: four stripes of the file.
    pub read_ahead_bytes: Option<u64>,
    /// Threads that wait for the cluster, so that others need not; `None`: 8.
    pub io_threads: Option<u32>,
}

/// Least of a client's cache: an object of a file in hand, and one that is written back.
const CACHE_BYTES_MIN: u64 = 8 << 20;

/// Most that is read ahead.
const READ_AHEAD_BYTES_MAX: u64 = 256 << 20;

/// Most threads that wait for the cluster.
const IO_THREADS_MAX: u32 = 256;

impl ClientOptions {
    /// These, and others where they say nothing.
    pub(crate) fn or(self, others: ClientOptions) -> ClientOptions {
        ClientOptions {
            cache_bytes: self.cache_bytes.or(others.cache_bytes),
            read_ahead_bytes: self.read_ahead_bytes.or(others.read_ahead_bytes),
            io_threads: self.io_threads.or(others.io_threads),
        }
    }

    /// Without a cache or threads of no size, by which a pool gives its own ones up.
    pub(crate) fn without_zeros(self) -> ClientOptions {
        ClientOptions {
            cache_bytes: self.cache_bytes.filter(|&bytes| bytes > 0),
            io_threads: self.io_threads.filter(|&count| count > 0),
            ..self
        }
    }

    /// The first of them that was given, by its name on the command line.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--ceph-cache", self.cache_bytes.is_some()),
            ("--ceph-read-ahead", self.read_ahead_bytes.is_some()),
            ("--ceph-threads", self.io_threads.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Refuses what a client cannot have; `cache_bytes_limit`: what the lane may cache in all.
    ///
    /// # Errors
    /// One line about the option.
    pub(crate) fn check(&self, cache_bytes_limit: u64) -> Result<()> {
        let most = cache_bytes_limit.max(CACHE_BYTES_MIN);
        if self.cache_bytes.is_some_and(|bytes| !(CACHE_BYTES_MIN..=most).contains(&bytes)) {
            let most = ByteSize(most);
            return Err(Failure::usage(format!(
                "--ceph-cache: from 8M to {most}, a quarter of the pool's memory"
            )));
        }
        if self.read_ahead_bytes.is_some_and(|bytes| bytes > READ_AHEAD_BYTES_MAX) {
            return Err(Failure::usage("--ceph-read-ahead: at most 256M"));
        }
        if self.io_threads.is_some_and(|count| !(1..=IO_THREADS_MAX).contains(&count)) {
            return Err(Failure::usage("--ceph-threads: from 1 to 256"));
        }
        Ok(())
    }
}

/// How the cluster is reached that a lane is on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterOptions {
    /// The configuration; `None`: the host's.
    pub conf: Option<PathBuf>,
    /// The user's keyring; `None`: the one that the configuration names.
    pub keyring: Option<PathBuf>,
    /// How long the cluster may take to answer; `None`: 30 s at the start, and without an end
    /// afterwards.
    pub timeout: Option<Duration>,
    /// Settings of a lane's client.
    pub client: ClientOptions,
}

impl ClusterOptions {
    /// The same by absolute paths.
    ///
    /// # Errors
    /// There is no current directory.
    pub fn absolute(self) -> Result<ClusterOptions> {
        let whole = |path: PathBuf| {
            std::path::absolute(&path).map_err(|error| Failure::path(&path, "find it", error))
        };
        let conf = self.conf.map(whole).transpose()?;
        Ok(ClusterOptions { conf, keyring: self.keyring.map(whole).transpose()?, ..self })
    }

    /// Milliseconds that the cluster may take to answer at the start.
    pub(crate) fn timeout_ms(&self) -> u64 {
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT).as_millis();
        u64::try_from(timeout).unwrap_or(u64::MAX)
    }
}

/// The client that a lane on these places needs; `None`: there are none.
///
/// # Errors
/// They are of several users or file systems.
pub(crate) fn cluster(places: &[&CephPlace], options: &ClusterOptions) -> Result<Option<Cluster>> {
    let Some((first, others)) = places.split_first() else { return Ok(None) };
    let client = |place: &CephPlace| (place.user.clone(), place.fs.clone());
    if let Some(other) = others.iter().find(|other| client(other) != client(first)) {
        return Err(Failure::usage(format!(
            "ceph:{other}: beside ceph:{first}: a lane has one client: use one user and one file \
             system for its files and its lowers"
        )));
    }
    let mut common = first.names();
    for other in others {
        let both = common.iter().zip(other.names()).take_while(|(one, other)| **one == *other);
        common.truncate(both.count());
    }
    Ok(Some(Cluster {
        place: CephPlace { path: format!("/{}", common.join("/")), ..(*first).clone() },
        timeout_ms: options.timeout_ms(),
        call_time_max_ms: options.timeout.map(|_| options.timeout_ms()),
        session: session(),
        client: options.client,
    }))
}

/// The files of a Ceph user, open.
#[derive(Debug)]
pub(crate) struct CephFiles {
    /// Its configuration.
    pub(crate) conf: OwnedFd,
    /// Its keyring; none where there is none, as in a cluster that asks for no key.
    pub(crate) keyring: Option<OwnedFd>,
}

impl CephFiles {
    /// The configuration's path in this process, and the user's secret. `place`: what messages
    /// call what they are for.
    ///
    /// # Errors
    /// The keyring cannot be read.
    pub(crate) fn read(
        &self,
        user: &str,
        place: &impl std::fmt::Display,
    ) -> Result<(CString, Option<String>)> {
        let failed = |error: std::io::Error| Failure::because(place, "read its keyring", error);
        let text = self.keyring.as_ref().map(read).transpose().map_err(failed)?;
        let key = text.and_then(|text| key(&text, user));
        let conf = CString::new(format!("/proc/self/fd/{}", self.conf.as_raw_fd()));
        Ok((conf.map_err(|error| failed(error.into()))?, key))
    }
}

fn read(file: &OwnedFd) -> std::io::Result<String> {
    // It may be read again, by the next service.
    let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn open(path: &Path) -> Result<OwnedFd> {
    let found = volume::expect(path, Links::ToTheirs, "open it")?;
    // Not one that would have to be waited for.
    let opened = found.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
    opened.map_err(|error| Failure::path(path, "open it", error))
}

/// Opens what the user's client reads.
///
/// # Errors
/// The configuration is not there or not readable, or a keyring that is there is not readable, or
/// has no key of the user.
pub(crate) fn open_files(user: &str, options: &ClusterOptions) -> Result<CephFiles> {
    let path = options.conf.as_deref().unwrap_or(Path::new(CONF_DEFAULT));
    let conf = open(path)?;
    let text = read(&conf).map_err(|error| Failure::path(path, "read it", error))?;
    let sections = Sections::parse(&text);
    let usual = || keyrings(&sections, user).into_iter().find(|path| path.exists());
    let found = options.keyring.clone().or_else(usual);
    let keyring = found.as_deref().map(open).transpose()?;
    if let (Some(path), Some(keyring)) = (&found, &keyring) {
        let text = read(keyring).map_err(|error| Failure::path(path, "read it", error))?;
        if key(&text, user).is_none() {
            let path = path.display();
            return Err(Failure::failed(format!(
                "{path}: has no key of client.{user}: add it, or name another user before '@'"
            )));
        }
    }
    Ok(CephFiles { conf, keyring })
}

/// The secret of a user, of a keyring or of a file that holds nothing else.
fn key(text: &str, user: &str) -> Option<String> {
    let alone = Some(text.trim()).filter(|text| !text.is_empty() && !text.contains(['[', '\n']));
    Sections::parse(text).key(user).or(alone).map(str::to_string)
}

/// A name for a lane's sessions that no other lane has.
pub(crate) fn session() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    id.map_or_else(|_| format!("polylane-{}", std::process::id()), |id| id.trim().to_string())
}

/// Loads the client library and reads the files. Call before the service is confined.
///
/// # Errors
/// One line that says what is missing.
pub(crate) fn prepare(cluster: &Cluster, caching: Caching, files: &CephFiles) -> Result<Prepared> {
    let Cluster { place, timeout_ms, session, client, .. } = cluster;
    let caching = Caching {
        bytes: client.cache_bytes.unwrap_or(caching.bytes),
        read_ahead_bytes: client.read_ahead_bytes,
        ..caching
    };
    let (conf, key) = files.read(&place.user, place)?;
    let settings = Settings {
        user: place.user.clone(),
        fs: Some(place.fs.clone()),
        root: place.path.clone().into_bytes(),
        conf,
        key,
        caching,
        session: session.clone(),
        timeout: Duration::from_millis(*timeout_ms),
    };
    settings.prepare().map_err(|failure| Failure::failed(format!("{place}: {failure}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String, String)> {
        let place = CephPlace::from_str(text).ok()?;
        Some((place.user, place.fs, place.path))
    }

    fn place(user: &str, fs: &str, path: &str) -> Option<(String, String, String)> {
        Some((user.to_string(), fs.to_string(), path.to_string()))
    }

    #[test]
    fn a_place_has_a_user_a_file_system_and_a_path() {
        assert_eq!(parse("cephfs"), place("admin", "cephfs", "/"));
        assert_eq!(parse("app@cephfs:/a:b"), place("app", "cephfs", "/a:b"));
        assert_eq!(parse("client.app@fs"), place("app", "fs", "/"));
        for bad in ["", "@fs", "app@", "fs:", "fs:a", "/a", "a@b/c"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let shown = CephPlace::from_str("app@fs:/x").map(|place| place.to_string());
        assert_eq!(shown.as_deref(), Ok("app@fs:/x"));
    }

    #[test]
    fn a_lane_has_one_client_of_the_directory_that_all_its_places_are_in() {
        let common = |places: &[&str]| {
            let places: Vec<CephPlace> =
                places.iter().map(|text| text.parse().expect("a place")).collect();
            let places: Vec<&CephPlace> = places.iter().collect();
            let found = cluster(&places, &ClusterOptions::default());
            found.map(|found| found.map(|found| found.place.path)).map_err(|error| error.status)
        };
        assert_eq!(common(&[]), Ok(None));
        for (places, path) in [
            (&["fs:/a/b"][..], "/a/b"),
            (&["fs:/a/b", "fs:/a//b/c/"], "/a/b"),
            (&["fs:/a/b", "fs:/a/bc"], "/a"),
            (&["fs:/a", "fs:/b", "fs:/a/c"], "/"),
        ] {
            assert_eq!(common(places), Ok(Some(path.to_string())), "{places:?}");
        }
        assert_eq!(common(&["fs:/a", "x@fs:/b"]), Err(2));
        assert_eq!(common(&["fs:/a", "other:/b"]), Err(2));
    }

    #[test]
    fn a_client_has_settings_that_fit_its_lane() {
        let checked = |client: ClientOptions, lane: u64| client.check(lane).map_err(|it| it.status);
        let none = ClientOptions::default();
        assert_eq!((none.given(), checked(none, 1)), (None, Ok(())));
        let cache = |bytes| ClientOptions { cache_bytes: Some(bytes), ..none };
        assert_eq!(checked(cache(CACHE_BYTES_MIN), 1 << 20), Ok(()));
        assert_eq!(checked(cache(CACHE_BYTES_MIN - 1), 1 << 30), Err(2));
        assert_eq!(checked(cache(1 << 30), 1 << 30), Ok(()));
        assert_eq!(checked(cache((1 << 30) + 1), 1 << 30), Err(2));
        let ahead = |bytes| ClientOptions { read_ahead_bytes: Some(bytes), ..none };
        assert_eq!(ahead(0).given(), Some("--ceph-read-ahead"));
        assert_eq!(checked(ahead(READ_AHEAD_BYTES_MAX), 1 << 30), Ok(()));
        assert_eq!(checked(ahead(READ_AHEAD_BYTES_MAX + 1), 1 << 30), Err(2));
        let threads = |count| ClientOptions { io_threads: Some(count), ..none };
        for (count, expected) in [(0, Err(2)), (1, Ok(())), (256, Ok(())), (257, Err(2))] {
            assert_eq!(checked(threads(count), 1 << 30), expected, "{count}");
        }
    }

    #[test]
    fn a_key_stands_in_a_keyring_or_alone() {
        for (text, expected) in [
            ("[client.a]\n\tkey = AQ==\n", Some("AQ==")),
            ("[client.b]\n\tkey = AQ==\n", None),
            ("AQ==\n", Some("AQ==")),
            ("", None),
        ] {
            assert_eq!(key(text, "a").as_deref(), expected, "{text}");
        }
    }
}
