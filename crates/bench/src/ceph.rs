//! A Ceph cluster that figures are measured on: directories of it for the tenants of each way in,
//! and mounts of ceph-fuse.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polylane_ceph::conf::{DEBUG, Sections, keyrings};
use polylane_pool::ceph::CephPlace;

use crate::Options;
use crate::tools::{command, cpu_seconds, path, polylane};

/// What names the file system to a worker of [`Way::Library`]; its configuration is `CEPH_CONF`.
const PLACE_VARIABLE: &str = "POLYLANE_BENCH_CEPH";

/// The file system unless it is named.
const FS_DEFAULT: &str = "cephfs";

/// How long ceph-fuse may take to mount.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(30);

/// `f_type` of FUSE.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// A way into a directory of a Ceph file system. Each tenant has a client of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The client library called by the program itself.
    Library,
    /// A lane, by the preload library.
    Lane,
    /// The same by FUSE alone.
    LaneFuse,
    /// ceph-fuse as it comes: the kernel caches file data.
    CephFuse,
    /// ceph-fuse that leaves caching to its client, so that programs see what other hosts write.
    CephFuseUncached,
}

impl Way {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Way::Library => "libcephfs",
            Way::Lane => "lane (ceph)",
            Way::LaneFuse => "lane (ceph, FUSE)",
            Way::CephFuse => "ceph-fuse",
            Way::CephFuseUncached => "ceph-fuse, no page cache",
        }
    }

    /// The name of its directories.
    fn dir(self) -> &'static str {
        match self {
            Way::Library => "library",
            Way::Lane => "lane",
            Way::LaneFuse => "lane-fuse",
            Way::CephFuse => "ceph-fuse",
            Way::CephFuseUncached => "ceph-fuse-uncached",
        }
    }

    /// Whether it is a mount of ceph-fuse.
    pub fn is_peer(self) -> bool {
        matches!(self, Way::CephFuse | Way::CephFuseUncached)
    }
}

/// A file system of a cluster, and as whom it is used.
#[derive(PartialEq, Eq, Debug)]
pub struct Cluster {
    conf: PathBuf,
    place: CephPlace,
}

impl Cluster {
    /// The one that the options name. It lives as long as the program, since places refer to it.
    ///
    /// # Errors
    /// They name none, or its configuration cannot be read.
    pub fn of(options: &Options) -> Result<&'static Cluster> {
        let Some(conf) = &options.ceph_conf else {
            bail!(
                "needs a Ceph cluster: 'tests/ceph/cluster.sh start DIR' starts one; name its \
                 configuration: --ceph-conf DIR/ceph.conf"
            );
        };
        let conf = conf.canonicalize().with_context(|| format!("open {}", conf.display()))?;
        let named = options.ceph.as_deref().unwrap_or(FS_DEFAULT);
        let place: CephPlace = named.parse().map_err(anyhow::Error::msg)?;
        Ok(Box::leak(Box::new(Cluster { conf, place })))
    }

    /// Its configuration.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// Its user, without `client.`.
    pub fn user(&self) -> &str {
        &self.place.user
    }

    /// The one that a worker is told of by [`Cluster::environment`].
    ///
    /// # Errors
    /// It was told of none.
    pub(crate) fn of_environment() -> Result<Cluster> {
        let conf = std::env::var_os("CEPH_CONF").context("CEPH_CONF")?.into();
        let place = std::env::var(PLACE_VARIABLE).context("the file system's name")?;
        Ok(Cluster { conf, place: place.parse().map_err(anyhow::Error::msg)? })
    }

    /// Its file system.
    pub(crate) fn fs(&self) -> &str {
        &self.place.fs
    }

    /// The user's secret; `None`: there is no keyring, as in a cluster that asks for none.
    ///
    /// # Errors
    /// The configuration or the keyring cannot be read.
    pub(crate) fn key(&self) -> Result<Option<String>> {
        let user = self.user();
        let text = std::fs::read_to_string(&self.conf).context("the configuration")?;
        let keyring = keyrings(&Sections::parse(&text), user).into_iter().find(|it| it.exists());
        let Some(keyring) = keyring else { return Ok(None) };
        let text = std::fs::read_to_string(&keyring);
        let text = text.with_context(|| format!("read {}", keyring.display()))?;
        Ok(Sections::parse(&text).key(user).map(str::to_string))
    }

    fn named(&self, path: &str) -> String {
        CephPlace { path: path.to_string(), ..self.place.clone() }.to_string()
    }

    /// The arguments of `polylane` for a lane on a directory.
    pub(crate) fn lane(&self, dir: &Path, way: Way) -> Vec<OsString> {
        let place = self.named(&dir.to_string_lossy());
        let mut words: Vec<OsString> =
            ["run", "--ceph", &place, "--ceph-conf"].map(Into::into).into();
        words.push(self.conf.clone().into());
        if way == Way::LaneFuse {
            words.push("--no-preload".into());
        }
        words
    }

    /// What tells a worker where its client's file system is.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [("CEPH_CONF", self.conf.clone().into()), (PLACE_VARIABLE, self.named("/").into())]
    }
}

/// Runs a program in a lane on the whole file system.
fn by_lane(cluster: &Cluster, words: &[&str]) -> Result<()> {
    let mut all = cluster.lane(Path::new("/"), Way::LaneFuse);
    all.extend(["--"].iter().chain(words).map(Into::into));
    polylane(&all).map(drop)
}

/// The name of a directory of this process in the file system.
fn own_dir(cluster: &Cluster, of: &str) -> String {
    let above = cluster.place.path.trim_end_matches('/');
    format!("{above}/polylane-bench-{}{of}", std::process::id())
}

/// Removes such a directory, and says where that failed.
fn remove(cluster: &Cluster, dir: &str) {
    if let Err(error) = by_lane(cluster, &["rm", "-rf", &format!("/lane{dir}")]) {
        eprintln!("polylane: bench: remove {dir} of the cluster: {error:#}");
    }
}

/// A directory of a file system that holds layers and branches of unions, shown by a client of its
/// own: files of lowers are written there. Dropped, it is gone.
pub(crate) struct Layers {
    cluster: &'static Cluster,
    dir: String,
    /// Taken when the directory is removed.
    mount: Option<CephFuse>,
    host: tempfile::TempDir,
}

impl Layers {
    /// An empty one.
    ///
    /// # Errors
    /// Not root, the cluster does not answer, or ceph-fuse is missing or ends.
    pub(crate) fn new(cluster: &'static Cluster) -> Result<Layers> {
        let dir = own_dir(cluster, "-layers");
        by_lane(cluster, &["mkdir", "-p", &format!("/lane{dir}")])?;
        let host = tempfile::tempdir().context("mount point of ceph-fuse")?;
        let at = host.path().to_path_buf();
        let mut layers = Layers { cluster, dir, mount: None, host };
        layers.mount = Some(layers.show(at)?);
        Ok(layers)
    }

    /// The directory, shown by a client of its own.
    ///
    /// # Errors
    /// ceph-fuse is missing or ends.
    pub(crate) fn show(&self, at: PathBuf) -> Result<CephFuse> {
        let mut mount = CephFuse::start(self.cluster, Way::CephFuse, &self.dir, at)?;
        mount.wait()?;
        Ok(mount)
    }

    /// Where it is shown first.
    pub(crate) fn at(&self) -> &Path {
        self.host.path()
    }

    /// What `polylane` calls a directory in it.
    pub(crate) fn source(&self, name: &str) -> String {
        format!("ceph:{}", self.cluster.named(&format!("{}/{name}", self.dir)))
    }

    /// The cluster's configuration.
    pub(crate) fn conf(&self) -> &Path {
        self.cluster.conf()
    }
}

impl Drop for Layers {
    fn drop(&mut self) {
        drop(self.mount.take());
        remove(self.cluster, &self.dir);
    }
}

/// Directories of tenants on a cluster. Dropped, they are gone, and ceph-fuse with them.
pub(crate) struct Tenants {
    cluster: &'static Cluster,
    /// The directory of all of them in the file system.
    dir: String,
    count: usize,
    ready: Vec<(Way, PathBuf)>,
    mounts: Vec<CephFuse>,
}

impl Tenants {
    /// None yet, for so many tenants of each way.
    pub(crate) fn new(cluster: &'static Cluster, count: usize) -> Tenants {
        let dir = own_dir(cluster, "");
        Tenants { cluster, dir, count, ready: Vec::new(), mounts: Vec::new() }
    }

    /// Makes a way ready; the directory in which each tenant has its own, by number: below `host`
    /// for ceph-fuse, in the file system for the others.
    ///
    /// # Errors
    /// The cluster does not answer, or ceph-fuse is missing or ends.
    pub(crate) fn prepare(&mut self, way: Way, host: &Path) -> Result<PathBuf> {
        if let Some((_, dir)) = self.ready.iter().find(|(ready, _)| *ready == way) {
            return Ok(dir.clone());
        }
        let below = format!("{}/{}", self.dir, way.dir());
        let list: Vec<_> = (0..self.count).map(|number| format!("/lane{below}/{number}")).collect();
        let list: Vec<_> = list.iter().map(String::as_str).collect();
        by_lane(self.cluster, &[&["mkdir", "-p"], &list[..]].concat())?;
        let mut shared = PathBuf::from(&below);
        if way.is_peer() {
            shared = host.join(way.dir());
            for number in 0..self.count {
                let at = shared.join(number.to_string());
                std::fs::create_dir_all(&at).context("mount point of ceph-fuse")?;
                let mount = CephFuse::start(self.cluster, way, &format!("{below}/{number}"), at)?;
                self.mounts.push(mount);
            }
            self.mounts.iter_mut().try_for_each(CephFuse::wait)?;
        }
        self.ready.push((way, shared.clone()));
        Ok(shared)
    }

    /// CPU time of all mounts of this way, in seconds.
    pub(crate) fn cpu_seconds(&self, way: Way) -> f64 {
        let own = self.mounts.iter().filter(|mount| mount.way == way);
        own.map(|mount| cpu_seconds(mount.child.id())).sum()
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.mounts.clear();
        if !self.ready.is_empty() {
            remove(self.cluster, &self.dir);
        }
    }
}

/// A mount of ceph-fuse. It ends with this object, or with this process.
pub(crate) struct CephFuse {
    way: Way,
    at: PathBuf,
    child: Child,
}

impl CephFuse {
    /// Begins to mount a directory of the file system.
    fn start(cluster: &Cluster, way: Way, dir: &str, at: PathBuf) -> Result<CephFuse> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ceph-fuse", "-f", "-c"]).arg(&cluster.conf);
        command.args(["-n", &format!("client.{}", cluster.user()), "-r", dir]);
        command.arg(format!("--client_fs={}", cluster.place.fs));
        // As a lane's client: else debug lines take most of the time of short calls.
        command.args(DEBUG.map(|name| format!("--{name}=0/0")));
        if way == Way::CephFuseUncached {
            command.arg("--fuse_disable_pagecache=true");
        }
        command.arg(&at).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("run setpriv of util-linux")?;
        Ok(CephFuse { way, at, child })
    }

    /// Waits until it is mounted.
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        let is_mounted =
            |at: &Path| Ok::<_, anyhow::Error>(rustix::fs::statfs(at)?.f_type == FUSE_MAGIC);
        while !is_mounted(&self.at)? {
            let ended = self.child.try_wait().context("ceph-fuse")?;
            ensure!(ended.is_none(), "ceph-fuse ended: see its log");
            ensure!(begun.elapsed() < MOUNT_TIME_MAX, "ceph-fuse did not mount in time");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for CephFuse {
    fn drop(&mut self) {
        let unmounted = path(&self.at).and_then(|at| command("umount", &[at]));
        if unmounted.is_err() {
            let _ = self.child.kill();
            let _ = path(&self.at).and_then(|at| command("umount", &["-l", at]));
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_cluster_is_told_what_is_missing() {
        let error = Cluster::of(&Options::default()).expect_err("no cluster").to_string();
        assert!(error.contains("--ceph-conf") && !error.contains('\n'), "{error}");
        let conf = tempfile::NamedTempFile::new().expect("a file");
        let named = |ceph: Option<&str>| Options {
            ceph_conf: Some(conf.path().to_path_buf()),
            ceph: ceph.map(str::to_string),
            ..Options::default()
        };
        let cluster = Cluster::of(&named(Some("app@web:/x"))).expect("a cluster");
        let words = cluster.lane(Path::new("/x/lane/3"), Way::LaneFuse);
        assert!(words.contains(&"app@web:/x/lane/3".into()), "{words:?}");
        assert!(Cluster::of(&named(None)).is_ok_and(|cluster| cluster.user() == "admin"));
        assert!(Cluster::of(&named(Some("@"))).is_err());
        let gone = Options { ceph_conf: Some("/not/there".into()), ..Options::default() };
        assert!(Cluster::of(&gone).expect_err("none").to_string().contains("/not/there"));
    }
}
