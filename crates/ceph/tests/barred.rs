//! Syncs of one file, at the same time, by a client that the cluster has barred.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the test says
//! so and passes: `make test-ceph` starts one.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;

use common::{CTX, cluster, directory, mount, settings};
use polylane_base::SystemClock;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::FileSystem;
use polylane_vfs::{OpCtx, OpenFile, Vfs};

fn ceph(cluster: &Path, words: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", "ceph", "-c"]).arg(cluster.join("ceph.conf")).args(words.split(' '));
    let output = command.output().unwrap();
    assert!(output.status.success(), "ceph {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Has the OSDs bar the clients that have this directory mounted.
fn bar(cluster: &Path, root: &str) {
    let listed = ceph(cluster, "tell mds.cephfs:0 session ls -f json");
    let list: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let sessions = list.as_array().unwrap().iter();
    for one in sessions.filter(|one| one["client_metadata"]["root"] == root) {
        let entity = &one["entity"]["addr"];
        let (address, nonce) = (entity["addr"].as_str().unwrap(), &entity["nonce"]);
        ceph(cluster, &format!("osd blocklist add {address}/{nonce}"));
    }
}

/// libcephfs says of the lost bytes to one of them: none of the others may take them for durable.
#[test]
fn syncs_that_overlap_the_loss_of_bytes_all_fail() {
    const FILES: usize = 300;
    const THREADS: usize = 3;
    let Some(cluster) = cluster() else { return };
    let root = directory(&cluster);
    let fs = Arc::new(mount(settings(&cluster, &root)));
    let vfs = Vfs::new(fs.clone(), small_options(Arc::new(SystemClock), 1 << 20)).unwrap();
    let ctx = &OpCtx::service();
    let open = |number: usize| {
        let (name, flags) = (format!("f{number}"), libc::O_RDWR | libc::O_CREAT);
        vfs.open_path(ctx, &vfs.root(), name.as_bytes(), flags, 0o600, 0).unwrap()
    };
    let files: Vec<[_; THREADS]> =
        (0..FILES).map(|number| [(); THREADS].map(|()| open(number))).collect();
    for file in &files {
        file[0].write(ctx, Some(0), &mut &[7; 4096][..]).unwrap();
    }
    bar(&cluster, &root);
    // By which the bytes are lost, and it does not say so.
    fs.sync(&CTX).unwrap();
    let (files, together) = (&files, &Barrier::new(THREADS));
    let told: Vec<Vec<_>> = thread::scope(|scope| {
        let sync = |file: &OpenFile| {
            together.wait();
            file.fsync(&OpCtx::service(), false)
        };
        let sync_all = |number: usize| {
            scope.spawn(move || files.iter().map(|file| sync(&file[number])).collect())
        };
        let threads: Vec<_> = (0..THREADS).map(sync_all).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let durable = told.iter().flatten().filter(|told| told.is_ok()).count();
    assert_eq!(durable, 0, "of {THREADS} syncs of each of {FILES} files: {told:?}");
}
