//! Values of attributes that no block can hold, in inodes of their own (`ea_inode`). Beside the
//! kernel: `kernel/large_values.rs`.

use std::sync::Arc;

use polylane_base::{Errno, Ino};
use polylane_ext4::Ext4;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, StatFs, XattrMode};

use crate::common::{self, create, root};

fn value(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect()
}

fn set(fs: &Ext4, ino: Ino, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    fs.setxattr(&OpCtx::service(), ino, name.as_bytes(), bytes, XattrMode::Any).map(drop)
}

fn free(fs: &Ext4) -> (u64, u64) {
    let StatFs { bfree, ffree, .. } = fs.statfs(&OpCtx::service()).expect("totals");
    (bfree, ffree)
}

fn removed(fs: &Ext4, name: &str) {
    let ino = fs.unlink(&OpCtx::service(), root(fs), name.as_bytes()).expect("there").node.ino;
    fs.forget(ino);
}

/// Set, replaced, removed, with their file: what each took comes back.
fn work(fs: &Arc<Ext4>) {
    let (file, other) =
        (create(fs, root(fs), "file", Kind::File), create(fs, root(fs), "other", Kind::Dir));
    fs.sync(&OpCtx::service()).expect("syncs");
    let before = free(fs);
    for ino in [file, other] {
        for (nth, size) in [65_536, 5000, 300, 20_000, 9000].into_iter().enumerate() {
            set(fs, ino, &format!("user.{nth}"), &value(size, nth as u8)).expect("room");
        }
        set(fs, ino, "user.0", &value(30_000, 9)).expect("room");
        for (nth, size, seed) in [(0, 30_000, 9), (1, 5000, 1), (2, 300, 2), (3, 20_000, 3)] {
            let found = fs.getxattr(&OpCtx::service(), ino, format!("user.{nth}").as_bytes());
            assert!(found == Ok(value(size, seed)), "{nth}");
        }
        assert_eq!(fs.listxattr(&OpCtx::service(), ino).map(|names| names.len()), Ok(5));
        fs.removexattr(&OpCtx::service(), ino, b"user.3").expect("there");
        assert_eq!(fs.getxattr(&OpCtx::service(), ino, b"user.3"), Err(Errno::ENODATA));
        set(fs, ino, "user.1", b"short").expect("room");
    }
    for nth in [0, 1, 2, 4] {
        fs.removexattr(&OpCtx::service(), file, format!("user.{nth}").as_bytes()).expect("there");
        fs.removexattr(&OpCtx::service(), other, format!("user.{nth}").as_bytes()).expect("there");
    }
    fs.sync(&OpCtx::service()).expect("syncs");
    assert_eq!(free(fs), before);
    create(fs, root(fs), "gone", Kind::File);
    let gone = fs.lookup(&OpCtx::service(), root(fs), b"gone").expect("there").ino;
    set(fs, gone, "user.large", &value(40_000, 5)).expect("room");
    let last = fs.unlink_last(&OpCtx::service(), root(fs), b"gone", &mut || true);
    assert!(last.is_ok_and(|last| last.is_some_and(|last| last.is_freed)));
    fs.sync(&OpCtx::service()).expect("syncs");
    assert_eq!(free(fs), before);
    set(fs, file, "user.stays", &value(33_333, 6)).expect("room");
}

#[test]
fn large_values_have_inodes_of_their_own() {
    let plain = ",^metadata_csum,^orphan_file";
    for (bytes, more) in [
        ("1024", ""),
        ("4096", ""),
        ("4096", plain),
        ("1024", ",quota"),
        ("4096", ",quota,project"),
    ] {
        let features = format!("ea_inode{more}");
        common::on(32, &["-t", "ext4", "-b", bytes, "-O", &features], work);
    }
}

/// A disk without blocks or inodes for a value leaves all as it was.
#[test]
fn a_value_that_finds_no_room_changes_nothing() {
    let args = ["-t", "ext4", "-b", "4096", "-m", "0", "-N", "16", "-O", "ea_inode"];
    common::on(16, &args, |fs| {
        let file = create(fs, root(fs), "file", Kind::File);
        set(fs, file, "user.large", &value(20_000, 1)).expect("room");
        let inodes = free(fs).1;
        for nth in 0..inodes {
            create(fs, root(fs), &nth.to_string(), Kind::Fifo);
        }
        assert_eq!(set(fs, file, "user.more", &value(20_000, 2)), Err(Errno::ENOSPC));
        assert_eq!(set(fs, file, "user.large", &value(30_000, 3)), Err(Errno::ENOSPC));
        assert!(fs.getxattr(&OpCtx::service(), file, b"user.large") == Ok(value(20_000, 1)));
        assert_eq!(fs.listxattr(&OpCtx::service(), file), Ok(vec![b"user.large".to_vec()]));
        (0..inodes).for_each(|nth| removed(fs, &nth.to_string()));
        set(fs, file, "user.large", &value(30_000, 3)).expect("room");
    });
}

/// Without the feature a value ends where a block does.
#[test]
fn without_the_feature_a_value_ends_where_a_block_does() {
    common::on(16, &["-t", "ext4", "-b", "4096"], |fs| {
        let file = create(fs, root(fs), "file", Kind::File);
        assert_eq!(set(fs, file, "user.large", &value(5000, 1)), Err(Errno::ENOSPC));
    });
}
