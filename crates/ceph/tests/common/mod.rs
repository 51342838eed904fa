//! What tests on a cluster share.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polylane_ceph::conf::Sections;
use polylane_ceph::{CephFs, Settings};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};

/// A number for each directory that a test has to itself.
static DIRECTORIES: AtomicU32 = AtomicU32::new(0);

pub const CTX: OpCtx<'static> = OpCtx::service();

pub fn cluster() -> Option<PathBuf> {
    let dir = std::env::var_os("CEPH_CLUSTER");
    if dir.is_none() {
        eprintln!("skipped: CEPH_CLUSTER names no cluster ('make test-ceph' starts one)");
    }
    dir.map(PathBuf::from)
}

pub fn settings(cluster: &std::path::Path, root: &str) -> Settings {
    let keyring = std::fs::read_to_string(cluster.join("keyring")).unwrap();
    let conf = cluster.join("ceph.conf").into_os_string().into_encoded_bytes();
    Settings {
        user: "admin".to_string(),
        fs: Some("cephfs".to_string()),
        root: root.as_bytes().to_vec(),
        conf: CString::new(conf).unwrap(),
        key: Sections::parse(&keyring).key("admin").map(str::to_string),
        cache_bytes: 32 << 20,
        session: format!("test-{}", DIRECTORIES.fetch_add(1, Ordering::Relaxed)),
        timeout: Duration::from_secs(30),
    }
}

pub fn mount(settings: Settings) -> CephFs {
    let root = settings.root.clone();
    settings.prepare().unwrap().mount().unwrap().files(&root).unwrap()
}

/// A new directory of the cluster, by its path.
pub fn directory(cluster: &std::path::Path) -> String {
    let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{}-{number}", std::process::id());
    let fs = mount(settings(cluster, "/"));
    fs.create(&CTX, fs.root().unwrap().ino, name.as_bytes(), &node(Kind::Dir, 0o755)).unwrap();
    format!("/{name}")
}
