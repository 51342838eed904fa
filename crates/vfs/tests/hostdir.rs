//! `hostdir`: conformance, confinement, many files with few descriptors.

use polylane_testkit::fs_suite::{self, Can};
use polylane_vfs::fs::FileSystem;
use polylane_vfs::hostdir::HostDir;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

/// What this host and this user allow.
fn can() -> Can {
    let root = rustix::process::geteuid().is_root();
    Can { own: root, whiteout: root, exact_holes: false, fine_times: false, ..Can::ALL }
}

#[test]
fn conforms() {
    let mut dirs = Vec::new();
    let mut make = || {
        let dir = tempfile::tempdir().unwrap();
        let fs = HostDir::new(open(dir.path())).unwrap();
        dirs.push(dir);
        Arc::new(fs) as Arc<dyn FileSystem>
    };
    fs_suite::run(can(), &mut make);
}
