//! Values of attributes in inodes of their own: the kernel's, shared ones among them, used by us,
//! and ours used by the kernel.

use std::path::Path;

use polylane_ext4::Ext4;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, XattrMode};
use rustix::fs::{XattrFlags, setxattr};

use super::{can_mount, of_ours, used_in_turns};

fn value(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 7) as u8).collect()
}

/// Files one to four have equal values, which the kernel keeps once.
fn furnish(root: &Path) {
    for nth in 1..=6 {
        let path = root.join(format!("file-{nth}"));
        std::fs::write(&path, b"content").expect("room");
        let set = |name: &str, bytes: &[u8]| {
            setxattr(&path, name, bytes, XattrFlags::empty()).expect("room");
        };
        let size = if nth <= 4 { 20_000 } else { 8000 * nth };
        set("user.large", &value(size));
        set("user.small", b"in the inode");
        set("user.block", &value(1000));
    }
}

fn change(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let find = |nth: u32| {
        fs.lookup(&OpCtx::service(), root, format!("file-{nth}").as_bytes()).expect("there").ino
    };
    let set = |nth: u32, name: &[u8], bytes: &[u8]| {
        fs.setxattr(&OpCtx::service(), find(nth), name, bytes, XattrMode::Any).expect("room");
    };
    set(1, b"user.large", &value(50_000));
    set(2, b"user.more", &value(9000));
    set(3, b"user.block", b"short");
    fs.removexattr(&OpCtx::service(), find(4), b"user.large").expect("there");
    let gone = fs.unlink(&OpCtx::service(), root, b"file-5").expect("there").node.ino;
    fs.forget(gone);
    set(6, b"user.large", b"short");
}

#[test]
fn large_values_are_used_in_turns() {
    if !can_mount() {
        return;
    }
    for features in ["ea_inode", "ea_inode,^metadata_csum"] {
        let image = used_in_turns(features, furnish, change);
        let mount = image.mount();
        std::fs::remove_file(mount.path().join("file-1")).expect("removed");
        std::fs::remove_file(mount.path().join("file-2")).expect("removed");
        drop(mount);
        image.ours(|fs| assert_eq!(of_ours(&**fs).len(), 5, "the root, lost+found, three files"));
    }
}
