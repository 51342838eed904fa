//! What tests on a cluster share.

pub mod cluster;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polylane_ceph::{Caching, CephFs, Settings};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};

pub use self::cluster::cluster;

/// A number for each directory that a test has to itself.
static DIRECTORIES: AtomicU32 = AtomicU32::new(0);

pub const CTX: OpCtx<'static> = OpCtx::service();

pub fn settings(cluster: &std::path::Path, root: &str) -> Settings {
    Settings {
        user: "admin".to_string(),
        fs: Some("cephfs".to_string()),
        root: root.as_bytes().to_vec(),
        conf: cluster::conf(cluster),
        key: cluster::key(cluster),
        caching: Caching::of(32 << 20),
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
    directory_of(&mount(settings(cluster, "/")))
}

/// The same in the root of a file system.
pub fn directory_of(fs: &CephFs) -> String {
    let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{}-{number}", std::process::id());
    fs.create(&CTX, fs.root().unwrap().ino, name.as_bytes(), &node(Kind::Dir, 0o755)).unwrap();
    format!("/{name}")
}
