//! The cluster that tests run on.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use polylane_ceph::conf::Sections;

/// Its folder; `None`, and a line that says so, where there is none.
pub fn cluster() -> Option<PathBuf> {
    let dir = std::env::var_os("CEPH_CLUSTER");
    if dir.is_none() {
        eprintln!("skipped: CEPH_CLUSTER names no cluster ('make test-ceph' starts one)");
    }
    dir.map(PathBuf::from)
}

/// Its configuration file.
pub fn conf(cluster: &Path) -> CString {
    CString::new(cluster.join("ceph.conf").into_os_string().into_encoded_bytes()).unwrap()
}

/// The secret of its administrator.
pub fn key(cluster: &Path) -> Option<String> {
    let keyring = std::fs::read_to_string(cluster.join("keyring")).unwrap();
    Sections::parse(&keyring).key("admin").map(str::to_string)
}
