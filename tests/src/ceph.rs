//! A Ceph cluster that tests run on, and another client of it.
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::host::until;
use crate::{binary, skip, unavailable};

/// A cluster, by its folder.
#[derive(Clone, Debug)]
pub struct Cluster(PathBuf);

impl Cluster {
    /// The cluster, unless the test cannot run here; says why.
    pub fn for_test(test: &str) -> Option<Cluster> {
        if unavailable(test) {
            return None;
        }
        let dir = std::env::var_os("CEPH_CLUSTER").map(PathBuf::from);
        if dir.is_none() {
            skip(test, "CEPH_CLUSTER names no cluster: 'make test-ceph' starts one");
        }
        dir.map(Cluster)
    }

    /// The cluster of a folder.
    pub fn at(dir: &Path) -> Cluster {
        Cluster(dir.to_path_buf())
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A client's configuration.
    pub fn conf(&self) -> PathBuf {
        self.0.join("ceph.conf")
    }

    /// Options of a run in a lane on a place, `[USER@]FSNAME[:PATH]`.
    pub fn options(&self, place: &str) -> String {
        format!("--ceph {place} --ceph-conf {}", self.conf().display())
    }

    /// Runs a script in a lane on a place.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn run(&self, place: &str, more: &[&str], script: &str) -> Output {
        let mut command = Command::new(binary());
        command.arg("run").args(self.options(place).split(' ')).args(more);
        command.args(["--", "sh", "-ec", script]).output().expect("polylane run")
    }

    /// A new directory of the file system, by its path.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn directory(&self, word: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/{word}-{}-{count}", std::process::id());
        let made = self.run("admin@cephfs", &[], &format!("mkdir -p /lane{path}"));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        path
    }

    /// The sessions of clients that have this directory mounted, by their numbers.
    ///
    /// # Panics
    /// The MDS does not say.
    pub fn sessions(&self, root: &str) -> Vec<u64> {
        let listed = self.ceph("tell mds.cephfs:0 session ls -f json");
        let list: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let of_root = |one: &&serde_json::Value| one["client_metadata"]["root"] == root;
        let sessions = list.as_array().expect("a list").iter().filter(of_root);
        sessions.filter_map(|one| one["id"].as_u64()).collect()
    }

    /// All sessions of clients, by their numbers.
    ///
    /// # Panics
    /// The MDS does not say.
    pub fn all_sessions(&self) -> Vec<u64> {
        let listed = self.ceph("tell mds.cephfs:0 session ls -f json");
        let list: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let sessions = list.as_array().expect("a list").iter();
        sessions.filter_map(|one| one["id"].as_u64()).collect()
    }

    /// The addresses of the clients that have this directory mounted.
    ///
    /// # Panics
    /// The MDS does not say.
    pub fn addresses(&self, root: &str) -> Vec<String> {
        let listed = self.ceph("tell mds.cephfs:0 session ls -f json");
        let list: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let of_root = |one: &&serde_json::Value| one["client_metadata"]["root"] == root;
        let sessions = list.as_array().expect("a list").iter().filter(of_root);
        let address = |one: &serde_json::Value| {
            let entity = &one["entity"]["addr"];
            let (address, nonce) = (entity["addr"].as_str()?, entity["nonce"].as_u64()?);
            Some(format!("{address}/{nonce}"))
        };
        sessions.map(|one| address(one).expect("an address")).collect()
    }

    /// Has the OSDs alone bar clients, as `ceph osd blocklist add` does: the MDS goes on with them.
    ///
    /// # Panics
    /// The monitor does not do it.
    pub fn bar(&self, addresses: &[String]) {
        for address in addresses {
            self.ceph(&format!("osd blocklist add {address}"));
        }
    }

    /// Has the MDS bar the clients that have this directory mounted.
    pub fn evict(&self, root: &str) {
        for id in self.sessions(root) {
            self.ceph(&format!("tell mds.cephfs:0 client evict id={id}"));
        }
    }

    /// Kills a daemon, such as `osd.0`, until it is dropped: then it begins again.
    pub fn without(&self, daemon: &'static str) -> Killed {
        self.daemon("kill", daemon);
        Killed { cluster: self.clone(), daemon }
    }

    /// Makes a pool that has data full, by a quota, until this is dropped.
    ///
    /// # Panics
    /// It does not become full.
    pub fn with_full_pool(&self, pool: &'static str) -> Full {
        let full = Full { cluster: self.clone(), pool: Some(pool) };
        self.ceph(&format!("osd pool set-quota {pool} max_bytes 1"));
        full.until(pool, true);
        full
    }

    /// Makes the whole cluster full, as one whose OSDs have reached `full_ratio`, until this is
    /// dropped.
    ///
    /// # Panics
    /// It does not become full.
    pub fn full(&self) -> Full {
        let full = Full { cluster: self.clone(), pool: None };
        full.set_ratios(["0.001", "0.002", "0.003"]);
        full.until("cephfs_data", true);
        full
    }

    /// A Ceph user with such rights at the MDS, and its keyring.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn user(&self, name: &str, mds: &str) -> PathBuf {
        let keyring = self.0.join(format!("{name}.keyring"));
        let client = format!("client.{name}");
        let caps = ["mon", "allow r", "mds", mds, "osd", "allow rw tag cephfs data=cephfs"];
        let mut command = Command::new("timeout");
        command.args(["60", "ceph", "-c"]).arg(self.conf()).args(["auth", "get-or-create"]);
        command.arg(client).args(caps).arg("-o").arg(&keyring);
        assert!(command.status().expect("ceph").success(), "{name}");
        keyring
    }

    fn daemon(&self, action: &str, daemon: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("ceph/cluster.sh");
        let mut command = Command::new(script);
        let done = command.arg(action).arg(&self.0).arg(daemon).status().expect("cluster.sh");
        assert!(done.success(), "{action} {daemon}");
    }

    /// A command of Ceph's, which succeeds; what it prints.
    ///
    /// # Panics
    /// It fails, or takes longer than a minute.
    pub fn ceph(&self, words: &str) -> String {
        let output = self.try_ceph(words).expect("ceph");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ceph {words}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, for whom a failure of it is none.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn try_ceph(&self, words: &str) -> io::Result<Output> {
        let mut command = Command::new("timeout");
        command.args(["60", "ceph", "-c"]).arg(self.conf()).args(words.split(' ')).output()
    }
}

/// A daemon that was killed; dropped, it begins again.
#[derive(Debug)]
pub struct Killed {
    cluster: Cluster,
    daemon: &'static str,
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.cluster.daemon("begin", self.daemon);
    }
}

/// A pool, or a cluster, that is full; dropped, it has room again.
#[derive(Debug)]
pub struct Full {
    cluster: Cluster,
    /// `None`: the cluster.
    pool: Option<&'static str>,
}

impl Full {
    /// Those of nearly full, too full to be filled with others' data, and full.
    fn set_ratios(&self, ratios: [&str; 3]) {
        for (word, ratio) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
            self.cluster.ceph(&format!("osd set-{word}-ratio {ratio}"));
        }
    }

    fn until(&self, pool: &str, is_full: bool) {
        until("a pool is full, or not", || {
            let listed = self.cluster.ceph("osd pool ls detail -f json");
            let list: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
            let found =
                list.as_array().expect("a list").iter().find(|one| one["pool_name"] == pool);
            let flags = found.expect("the pool")["flags_names"].as_str().expect("flags");
            flags.split(',').any(|flag| flag == "full") == is_full
        });
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        match self.pool {
            Some(pool) => {
                drop(self.cluster.ceph(&format!("osd pool set-quota {pool} max_bytes 0")))
            }
            None => self.set_ratios(["0.85", "0.9", "0.95"]),
        }
        match std::thread::panicking() {
            false => self.until(self.pool.unwrap_or("cephfs_data"), false),
            // For the tests that follow; nothing may fail any more.
            true => std::thread::sleep(std::time::Duration::from_secs(10)),
        }
    }
}

/// A mount by ceph-fuse, until it is dropped.
#[derive(Debug)]
pub struct CephFuse(PathBuf);

impl CephFuse {
    /// Mounts a directory of the file system at a path, with options of a client.
    ///
    /// # Panics
    /// It cannot be mounted.
    pub fn new(cluster: &Cluster, root: &str, at: &Path, options: &[&str]) -> CephFuse {
        let mut command = Command::new("ceph-fuse");
        command.arg("-c").arg(cluster.conf()).args(["-n", "client.admin", "-r", root]);
        command.args(options).arg(at).stdin(Stdio::null());
        let output = command.output().expect("ceph-fuse");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        CephFuse(at.to_path_buf())
    }
}

impl Drop for CephFuse {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            Command::new("umount").args(options).arg(&self.0).output().expect("umount")
        };
        if !unmount(&[]).status.success() {
            unmount(&["-l"]);
        }
    }
}

/// Another host, as the cluster sees it: a network and a host name of its own.
#[derive(Debug)]
pub struct OtherHost {
    /// Its network namespace, and its host name.
    pub name: String,
    /// This end of its cable.
    cable: String,
}

fn ip(words: &str) -> Output {
    Command::new("ip").args(words.split(' ')).output().expect("ip")
}

impl OtherHost {
    /// A host on the cluster's network; `None`: the cluster has an address that no other host
    /// reaches, which is noted.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn new(test: &str, cluster: &Cluster) -> Option<OtherHost> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let conf = std::fs::read_to_string(cluster.conf()).expect("a configuration");
        let (_, address) = conf.split_once("mon host = v1:").expect("a monitor");
        let (address, _) = address.split_once(':').expect("a port");
        if address.starts_with("127.") {
            skip(test, "the cluster is on a loopback address: 'make test-ceph' makes a bridge");
            return None;
        }
        let listed = ip(&format!("-o addr show to {address}")).stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let bridge = listed.split_whitespace().nth(1).expect("an interface").to_string();
        let (net, _) = address.rsplit_once('.').expect("four numbers");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}{number}", std::process::id());
        let host = OtherHost { name: format!("plh{id}"), cable: format!("plc{id}") };
        let OtherHost { name, cable } = &host;
        // Of all test programs together.
        let last = 2 + (std::process::id() * 16 + number) % 250;
        for words in [
            format!("netns add {name}"),
            format!("link add {cable} type veth peer name eth0 netns {name}"),
            format!("link set {cable} master {bridge} up"),
            format!("-n {name} addr add {net}.{last}/24 dev eth0"),
            format!("-n {name} link set eth0 up"),
            format!("-n {name} link set lo up"),
        ] {
            let done = ip(&words);
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "ip {words}: {said}");
        }
        Some(host)
    }

    /// What starts a program on it.
    pub fn starter(&self) -> Vec<&str> {
        const NAMED: &str = "hostname \"$0\"; exec \"$@\"";
        vec!["ip", "netns", "exec", &self.name, "unshare", "-u", "sh", "-c", NAMED, &self.name]
    }

    /// A command on it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("env");
        command.args(self.starter()).arg(program);
        command
    }

    /// Pulls its cable.
    pub fn cut(&self) {
        assert!(ip(&format!("link set {} down", self.cable)).status.success());
    }

    /// Plugs it in again.
    pub fn mend(&self) {
        assert!(ip(&format!("link set {} up", self.cable)).status.success());
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.cable));
        ip(&format!("netns del {}", self.name));
    }
}
