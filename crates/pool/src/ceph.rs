//! A lane on a Ceph file system: from `--ceph` to a mounted client.
//!
//! The supervisor opens the configuration and the keyring with its caller's rights; the service
//! gets them as descriptors, reads both before it is confined, and connects after that.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use polylane_ceph::conf::{Sections, keyrings};
use polylane_ceph::{Prepared, Settings};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Where a configuration is unless it is named.
const CONF_DEFAULT: &str = "/etc/ceph/ceph.conf";

/// The user unless it is named.
const USER_DEFAULT: &str = "admin";

/// Most bytes of a configuration or a keyring.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long the cluster may take to answer at the start.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

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

/// What `--ceph` and its companions say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CephOptions {
    /// What becomes the lane.
    pub place: CephPlace,
    /// The configuration; `None`: the host's.
    pub conf: Option<PathBuf>,
    /// How long the cluster may take to answer at the start; `None`: 30 s.
    pub timeout: Option<Duration>,
}

impl CephOptions {
    /// Milliseconds that the cluster may take to answer at the start.
    pub(crate) fn timeout_ms(&self) -> u64 {
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT).as_millis();
        u64::try_from(timeout).unwrap_or(u64::MAX)
    }
}

/// The files of a Ceph user, open.
#[derive(Debug)]
pub(crate) struct CephFiles {
    /// Its configuration.
    pub(crate) conf: OwnedFd,
    /// Its keyring; none where there is none, as in a cluster that asks for no key.
    pub(crate) keyring: Option<OwnedFd>,
}

fn read(file: &OwnedFd) -> std::io::Result<String> {
    // It may be read again, by the next service.
    let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn open(path: &Path) -> Result<OwnedFd> {
    let file = File::open(path).map_err(|error| Failure::path(path, "open it", error))?;
    Ok(file.into())
}

/// Opens what the user's client reads.
///
/// # Errors
/// The configuration is not there or not readable, or a keyring that is there is not readable, or
/// has no key of the user.
pub(crate) fn open_files(options: &CephOptions) -> Result<CephFiles> {
    let path = options.conf.as_deref().unwrap_or(Path::new(CONF_DEFAULT));
    let conf = open(path)?;
    let text = read(&conf).map_err(|error| Failure::path(path, "read it", error))?;
    let user = &options.place.user;
    let sections = Sections::parse(&text);
    let found = keyrings(&sections, user).into_iter().find(|path| path.exists());
    let keyring = found.as_deref().map(open).transpose()?;
    if let (Some(path), Some(keyring)) = (&found, &keyring) {
        let text = read(keyring).map_err(|error| Failure::path(path, "read it", error))?;
        if Sections::parse(&text).key(user).is_none() {
            let path = path.display();
            return Err(Failure::failed(format!(
                "{path}: has no key of client.{user}: add it, or name another user before '@'"
            )));
        }
    }
    Ok(CephFiles { conf, keyring })
}

/// A name for a lane's sessions that no other lane has.
pub(crate) fn session() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    id.map_or_else(|_| format!("polylane-{}", std::process::id()), |id| id.trim().to_string())
}

/// Loads the client library and reads the files; `session` names the lane's sessions. Call before
/// the service is confined.
///
/// # Errors
/// One line that says what is missing.
pub(crate) fn prepare(
    place: &CephPlace,
    (timeout_ms, session): (u64, &str),
    cache_bytes: u64,
    files: &CephFiles,
) -> Result<Prepared> {
    let failed = |error: std::io::Error| Failure::because(place, "read its keyring", error);
    let text = files.keyring.as_ref().map(read).transpose().map_err(failed)?;
    let key = text.and_then(|text| Sections::parse(&text).key(&place.user).map(str::to_string));
    let conf = CString::new(format!("/proc/self/fd/{}", files.conf.as_raw_fd()));
    let settings = Settings {
        user: place.user.clone(),
        fs: Some(place.fs.clone()),
        root: place.path.clone().into_bytes(),
        conf: conf.map_err(|error| failed(error.into()))?,
        key,
        cache_bytes,
        session: session.to_string(),
        timeout: Duration::from_millis(timeout_ms),
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
}
