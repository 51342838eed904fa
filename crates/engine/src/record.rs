//! What a container is, as its directory has it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_pool::ceph::{CephPlace, ClusterOptions};
use serde::{Deserialize, Serialize};

/// The only version there is.
pub(crate) const VERSION: u32 = 1;

/// What the network of a container is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// One of its own, with the loopback device alone.
    #[default]
    None,
    /// The host's.
    Host,
}

/// Whose namespaces a container has, of those that its pool has for its containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamespacesOf {
    /// The pool's.
    #[default]
    Pool,
    /// Its own.
    Own,
}

/// What a container sees at a path besides its image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// A path of the host, or a lane's source as `polylane mount` takes it.
    pub source: String,
    /// Where, in the container.
    pub target: String,
    /// Nothing can be changed through it.
    pub read_only: bool,
}

impl Mount {
    /// Whether it is a lane's source, and not a path of the host.
    pub(crate) fn is_lane(&self) -> bool {
        !self.source.starts_with('/')
    }

    /// Whether it is in a cluster, which options say how to reach.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.source.starts_with("ceph:") || self.source.starts_with("rbd:")
    }

    /// `SOURCE:TARGET[:ro]`, where SOURCE may have colons of its own.
    ///
    /// # Errors
    /// One line: it is not of that form.
    pub fn parse(text: &str) -> Result<Mount, String> {
        let (rest, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        match rest.rsplit_once(':') {
            Some((source, target)) if !source.is_empty() => {
                Mount { source: source.into(), target: target.into(), read_only }.checked()
            }
            _ => Err(format!("{text}: write it as SOURCE:TARGET or SOURCE:TARGET:ro")),
        }
    }

    /// `type=bind,source=SOURCE,target=TARGET[,readonly]`.
    ///
    /// # Errors
    /// One line: it is not of that form.
    pub fn parse_fields(text: &str) -> Result<Mount, String> {
        let mut mount = Mount { source: String::new(), target: String::new(), read_only: false };
        for field in text.split(',') {
            match field.split_once('=').unwrap_or((field, "")) {
                ("type", "bind") => {}
                ("source" | "src", value) => mount.source = value.to_string(),
                ("target" | "dst" | "destination", value) => mount.target = value.to_string(),
                ("readonly" | "ro", "" | "true") => mount.read_only = true,
                _ => {
                    return Err(format!(
                        "{text}: '{field}' is not known: fields are type=bind, \
                                         source, target and readonly"
                    ));
                }
            }
        }
        mount.checked()
    }

    fn checked(self) -> Result<Mount, String> {
        let parts = || self.target.split('/').skip(1).filter(|part| !part.is_empty());
        let plain = self.target.starts_with('/') && parts().all(|part| part != ".." && part != ".");
        match plain && parts().next().is_some() && !self.source.is_empty() {
            true => Ok(self),
            false => Err(format!(
                "{}: not a path of a container, which begins with '/' and has no '..'",
                self.target
            )),
        }
    }

    /// TARGET without slashes that say nothing, from the root.
    pub(crate) fn target_parts(&self) -> String {
        let parts: Vec<&str> = self.target.split('/').filter(|part| !part.is_empty()).collect();
        parts.join("/")
    }
}

/// A cache of the files of a container's root, as `polylane mount` takes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileCache {
    /// `writeback` or `writethrough`.
    pub mode: String,
    /// Most bytes in it.
    pub bytes: Option<u64>,
}

impl FileCache {
    /// As options of `polylane mount`.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut options = vec!["--file-cache".into(), OsString::from(&self.mode)];
        let size = self.bytes.map(|bytes| bytes.to_string());
        options.extend(size.into_iter().flat_map(|size| ["--file-cache-size".into(), size.into()]));
        options
    }
}

/// How the cluster is reached that lanes of a container are on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The configuration; none: the host's.
    pub conf: Option<PathBuf>,
    /// The user's keyring; none: the one that the configuration names.
    pub keyring: Option<PathBuf>,
    /// Microseconds that the cluster may take to answer.
    pub timeout_us: Option<u64>,
}

impl Cluster {
    /// The same, as a run is given it.
    pub(crate) fn of_run(&self) -> ClusterOptions {
        ClusterOptions {
            conf: self.conf.clone(),
            keyring: self.keyring.clone(),
            timeout: self.timeout_us.map(Duration::from_micros),
            ..ClusterOptions::default()
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Cluster::default()
    }

    /// The same, as options of `polylane mount`.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        let files = [("--ceph-conf", &self.conf), ("--ceph-keyring", &self.keyring)];
        for (option, file) in files {
            options.extend(file.iter().flat_map(|file| [option.into(), file.into()]));
        }
        let timeout = self.timeout_us.map(|us| format!("{us}us"));
        options.extend(timeout.into_iter().flat_map(|time| ["--timeout".into(), time.into()]));
        options
    }
}

/// A place below a store's directory.
pub(crate) fn below(store: &CephPlace, path: &Path) -> CephPlace {
    let path = Path::new(&store.path).join(path).to_string_lossy().into_owned();
    CephPlace { path, ..store.clone() }
}

/// Where a container's changes are, from the store's directory.
pub(crate) fn changes_of(id: &str) -> PathBuf {
    Path::new("containers").join(id)
}

/// How far a container has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// A command makes it.
    Making,
    /// It can be started.
    Ready,
    /// A command removes it.
    Removing,
}

/// A container, as `record.json` has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub(crate) version: u32,
    pub(crate) stage: Stage,
    /// 16 hexadecimal digits.
    pub id: String,
    /// Its name, which no other container has.
    pub name: String,
    /// The pool of its lanes and processes; none: the default one.
    pub(crate) pool: Option<String>,
    /// The image's name.
    pub(crate) image: String,
    /// The image's digest.
    pub(crate) image_id: String,
    /// Directories of the image's layers, the uppermost first; in a store sources of a lane.
    pub(crate) layers: Vec<String>,
    /// The directory of a cluster in which its layers and its changes are; none: they are in the
    /// state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<CephPlace>,
    /// How the cluster of its store and of its mounts is reached.
    #[serde(default, skip_serializing_if = "Cluster::is_default")]
    pub(crate) cluster: Cluster,
    /// The cache of its root's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_cache: Option<FileCache>,
    /// When it was made, in seconds since 1970.
    pub(crate) created: u64,
    /// The runtime's program.
    pub(crate) runtime: String,
    /// What is executed.
    pub(crate) args: Vec<String>,
    /// Its environment, without what gives the fast way.
    pub(crate) env: Vec<String>,
    /// Its working directory.
    pub(crate) cwd: String,
    /// `USER[:GROUP]`, names or numbers.
    pub(crate) user: String,
    /// What asks it to end.
    pub(crate) stop_signal: String,
    pub(crate) hostname: String,
    pub(crate) network: Network,
    #[serde(default)]
    pub(crate) namespaces: NamespacesOf,
    /// Thousandths of a CPU.
    pub(crate) cpus: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) mounts: Vec<Mount>,
    /// Bytes of its volume.
    pub(crate) size: Option<u64>,
    /// Whether its processes have the library.
    pub(crate) preload: bool,
    pub(crate) terminal: bool,
    pub(crate) interactive: bool,
    /// It is removed when it ends.
    pub(crate) remove: bool,
}

impl Record {
    /// Where its changes are, if they are in a store.
    pub(crate) fn branch(&self) -> Option<CephPlace> {
        self.store.as_ref().map(|store| below(store, &changes_of(&self.id)))
    }
}

/// How a container ended, as `exit.json` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// Its status; 128 and the signal's number if one ended it.
    pub(crate) status: u8,
    /// When, in seconds since 1970.
    pub(crate) ended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let mount = |text| Mount::parse(text).map(|m| (m.source, m.target, m.read_only));
        let is = |s: &str, t: &str, ro| Ok((s.to_string(), t.to_string(), ro));
        assert_eq!(mount("/a:/b"), is("/a", "/b", false));
        assert_eq!(mount("/a:/b:ro"), is("/a", "/b", true));
        assert_eq!(mount("volume:/a:b:/c"), is("volume:/a:b", "/c", false));
        for bad in ["", "/a", ":/b", "/a:b", "/a:/", "/a:/x/../y", "/a:/./b"] {
            assert!(mount(bad).is_err(), "{bad}");
        }
        let fields = |text| Mount::parse_fields(text).map(|m| (m.source, m.target, m.read_only));
        assert_eq!(fields("type=bind,source=/a,target=/b,readonly"), is("/a", "/b", true));
        assert_eq!(fields("src=mem:1G,dst=/b"), is("mem:1G", "/b", false));
        for bad in ["type=volume,source=a,target=/b", "source=/a", "target=/b", "x"] {
            assert!(fields(bad).is_err(), "{bad}");
        }
        assert_eq!(Mount::parse("/a://b//c/").unwrap().target_parts(), "b/c");
    }

    #[test]
    fn how_a_cluster_is_reached_is_said_by_options() {
        assert!(Cluster::default().is_default() && Cluster::default().options().is_empty());
        let cluster =
            Cluster { conf: Some("/c".into()), keyring: Some("/k".into()), timeout_us: Some(5) };
        let said = ["--ceph-conf", "/c", "--ceph-keyring", "/k", "--timeout", "5us"];
        assert_eq!(cluster.options(), said);
        assert_eq!(cluster.of_run().timeout, Some(Duration::from_micros(5)));
    }

    #[test]
    fn places_are_below_the_stores() {
        let store: CephPlace = "app@fs:/volumes/app/".parse().expect("a place");
        let branch = below(&store, &changes_of("0123456789abcdef"));
        assert_eq!(branch.to_string(), "app@fs:/volumes/app/containers/0123456789abcdef");
    }
}
