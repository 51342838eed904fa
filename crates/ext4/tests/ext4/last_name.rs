//! The last name of an inode, removed with it: by one change where nobody holds it; else it lives.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use polylane_base::{Errno, Ino, TestClock};
use polylane_block::ram::RamDevice;
use polylane_ext4::Ext4;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{FileSystem, Kind, Last, NewNode};
use polylane_vfs::{Create, Cred, Node, OpCtx, Vfs};

use crate::common;

const ROOT: Ino = Ino(2);
const O_RDWR: i32 = 2;
const O_CREAT: i32 = 0o100;

fn make(fs: &Ext4, name: &[u8], bytes: &[u8]) -> Ino {
    let ino = fs
        .create(&OpCtx::service(), ROOT, name, &NewNode::new(Kind::File, 0o644))
        .unwrap()
        .node
        .ino;
    fs.write(&OpCtx::service(), ino, 0, &mut &bytes[..]).unwrap();
    ino
}

fn unlink_last(fs: &Ext4, name: &[u8], is_over: bool) -> (Option<Last>, u32) {
    let mut asked = 0;
    let last = fs.unlink_last(&OpCtx::service(), ROOT, name, &mut || {
        asked += 1;
        is_over
    });
    (last.unwrap(), asked)
}

fn new_volume() -> (Arc<RamDevice>, Arc<Ext4>) {
    let device = common::make(64, common::LANE);
    let fs = common::open(&device);
    (device, fs)
}

#[test]
fn an_inode_that_nobody_holds_ends_with_its_name() {
    if !common::have_tools() {
        return;
    }
    let (device, fs) = new_volume();
    let before = fs.statfs(&OpCtx::service()).unwrap();
    for (name, len) in [(&b"empty"[..], 0), (b"small", 100), (b"large", 5 << 20)] {
        make(&fs, name, &vec![7; len]);
        let (last, asked) = unlink_last(&fs, name, true);
        assert!(last.is_some_and(|last| last.is_freed) && asked == 1);
        assert_eq!(fs.lookup(&OpCtx::service(), ROOT, name).err(), Some(Errno::ENOENT));
    }
    assert_eq!(fs.statfs(&OpCtx::service()).unwrap().ffree, before.ffree);
    fs.sync(&OpCtx::service()).unwrap();
    assert_eq!(fs.statfs(&OpCtx::service()).unwrap().bfree, before.bfree);
    fs.close().unwrap();
    assert_eq!(common::complaints(&device), None);
}

#[test]
fn one_that_somebody_holds_lives_until_it_is_forgotten() {
    if !common::have_tools() {
        return;
    }
    let (device, fs) = new_volume();
    let before = fs.statfs(&OpCtx::service()).unwrap();
    let ino = make(&fs, b"held", &[7; 9000]);
    let (last, asked) = unlink_last(&fs, b"held", false);
    assert!(last.is_some_and(|last| !last.is_freed) && asked == 1);
    assert_eq!(fs.getattr(&OpCtx::service(), ino).unwrap().nlink, 0);
    fs.write(&OpCtx::service(), ino, 9000, &mut &[8; 10][..]).unwrap();
    fs.forget(ino);
    assert_eq!(fs.getattr(&OpCtx::service(), ino).err(), Some(Errno::ESTALE));
    assert_eq!(fs.statfs(&OpCtx::service()).unwrap().ffree, before.ffree);
    fs.close().unwrap();
    assert_eq!(common::complaints(&device), None);
}

#[test]
fn one_with_other_names_and_what_has_none_are_left_alone() {
    if !common::have_tools() {
        return;
    }
    let (device, fs) = new_volume();
    let ino = make(&fs, b"one", b"bytes");
    fs.link(&OpCtx::service(), ino, ROOT, b"other").unwrap();
    assert_eq!(unlink_last(&fs, b"one", true), (None, 0));
    assert_eq!(fs.getattr(&OpCtx::service(), ino).unwrap().nlink, 2);
    fs.create(&OpCtx::service(), ROOT, b"dir", &NewNode::new(Kind::Dir, 0o755)).unwrap();
    let mut unasked = || -> bool { panic!("nothing can be removed") };
    assert_eq!(
        fs.unlink_last(&OpCtx::service(), ROOT, b"none", &mut unasked).err(),
        Some(Errno::ENOENT)
    );
    assert_eq!(
        fs.unlink_last(&OpCtx::service(), ROOT, b"dir", &mut unasked).err(),
        Some(Errno::EISDIR)
    );
    fs.close().unwrap();
    assert_eq!(common::complaints(&device), None);
}

/// One thread makes and removes files, the other opens them by name meanwhile: whoever got one can
/// go on with it, also when it has lost its name, and its number is nobody else's.
#[test]
fn who_comes_to_it_meanwhile_keeps_it() {
    if !common::have_tools() {
        return;
    }
    let (device, fs) = new_volume();
    let vfs = Vfs::new(fs.clone(), small_options(Arc::new(TestClock::default()), 4 << 20)).unwrap();
    let (cred, root, ended) = (Cred::root(), vfs.root(), AtomicBool::new(false));
    let file =
        |name: &[u8], flags| vfs.open_path(&OpCtx::as_user(&cred), &root, name, flags, 0o644, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..3000_u32 {
                let made = file(b"file", O_RDWR | O_CREAT).unwrap();
                made.write(&OpCtx::as_user(&cred), Some(0), &mut &round.to_le_bytes()[..]).unwrap();
                drop(made);
                vfs.unlink(&OpCtx::as_user(&cred), &root, b"file").unwrap();
                let other =
                    Create { kind: Kind::File, perm: 0o600, umask: 0, rdev: 0, target: b"" };
                drop(vfs.create(&OpCtx::as_user(&cred), &root, b"other", &other).unwrap());
                vfs.unlink(&OpCtx::as_user(&cred), &root, b"other").unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        });
        while !ended.load(Ordering::SeqCst) {
            let Ok(found) = file(b"file", O_RDWR) else { continue };
            let node: Node = found.node().clone();
            found.write(&OpCtx::as_user(&cred), Some(4), &mut &b"mine"[..]).unwrap();
            assert_eq!(vfs.getattr(&OpCtx::service(), &node).unwrap().perm, 0o644, "another file");
            drop(found);
        }
    });
    drop((root, vfs));
    fs.close().unwrap();
    assert_eq!(common::complaints(&device), None);
}
