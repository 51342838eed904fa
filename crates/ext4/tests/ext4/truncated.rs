//! A truncation frees what was allocated past the end, also where the file's bytes are still in the
//! cache and the file system knows of no such size yet.

use std::sync::Arc;
use std::time::Duration;

use polylane_base::TestClock;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::SetAttr;
use polylane_vfs::{Cred, OpCtx, Options, Vfs};

use crate::common;

const PAGE: usize = 4096;
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;
const KEEP_SIZE: i32 = 1;

/// Pages that are left where 10 are allocated, and 5 written, and the file is truncated to `size`.
fn left(vfs: &Vfs, name: &[u8], size: usize) -> (u64, u64) {
    let (cred, root) = (Cred::root(), vfs.root());
    let file = vfs
        .open_path(&OpCtx::as_user(&cred), &root, name, O_RDWR | O_CREAT, 0o644, 0)
        .expect("made");
    file.fallocate(&OpCtx::as_user(&cred), KEEP_SIZE, 0, 10 * PAGE as u64).expect("room");
    file.write(&OpCtx::as_user(&cred), Some(0), &mut &vec![7; 5 * PAGE][..]).expect("written");
    let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
    vfs.setattr(&OpCtx::as_user(&cred), file.node(), &set).expect("truncated");
    file.fsync(&OpCtx::service(), false).expect("synced");
    let attr = vfs.getattr(&OpCtx::service(), file.node()).expect("a state");
    (attr.size, attr.blocks * 512 / PAGE as u64)
}

#[test]
fn what_lies_past_the_end_is_freed() {
    if !common::have_tools() {
        return;
    }
    let device = common::load(&common::image(32, common::LANE));
    let fs = common::open(&device);
    let small = small_options(Arc::new(TestClock::default()), 1 << 20);
    let options = Options { flush_interval: Duration::from_secs(3600), ..small };
    let vfs = Vfs::new(fs.clone(), options).expect("a root");
    let page = PAGE as u64;
    assert_eq!(left(&vfs, b"same", 5 * PAGE), (5 * page, 5));
    assert_eq!(left(&vfs, b"less", 3 * PAGE), (3 * page, 3));
    assert_eq!(left(&vfs, b"none", 0), (0, 0));
    // What makes a file longer frees nothing.
    assert_eq!(left(&vfs, b"more", 7 * PAGE), (7 * page, 10));
    drop(vfs);
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
}
