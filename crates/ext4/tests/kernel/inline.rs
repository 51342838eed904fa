//! Inline data that the kernel made, directories among it, changed by us, and back.

use std::path::Path;

use polylane_base::Ino;
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, RenameMode};

use super::{can_mount, used_in_turns};

/// Directories of so many names of four bytes: in `i_block`, in the attribute too, in a block.
const NAMES: [usize; 6] = [0, 1, 4, 5, 8, 30];

fn furnish(root: &Path) {
    for size in [0, 5, 60, 61, 130, 200, 5000] {
        std::fs::write(root.join(format!("file-{size}")), vec![7; size]).expect("room");
    }
    std::os::unix::fs::symlink("t".repeat(90), root.join("link")).expect("made");
    for count in NAMES {
        for part in ["less", "more", "other", "swap"] {
            let dir = root.join(format!("{part}-{count}"));
            std::fs::create_dir(&dir).expect("made");
            for nth in 0..count {
                std::fs::write(dir.join(format!("n{nth:03}")), b"small").expect("room");
            }
        }
    }
}

fn change(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let find = |dir: Ino, name: &str| {
        fs.lookup(&OpCtx::service(), dir, name.as_bytes()).expect("there").ino
    };
    for count in NAMES {
        let dir = |part: &str| find(root, &format!("{part}-{count}"));
        let name = |nth: usize| format!("n{nth:03}");
        // Every other one goes, the first one first; then the rest from the end.
        for nth in (0..count).step_by(2).chain((0..count).rev().filter(|nth| nth % 2 == 1)) {
            let gone = fs
                .unlink(&OpCtx::service(), dir("less"), name(nth).as_bytes())
                .expect("there")
                .node
                .ino;
            fs.forget(gone);
        }
        fs.create(&OpCtx::service(), dir("more"), b"one more", &node(Kind::File, 0o600))
            .expect("room");
        let mode = RenameMode::Replace;
        if count > 1 {
            let other = dir("other");
            let over = fs
                .rename(&OpCtx::service(), other, b"n001", other, b"n000", mode)
                .expect("moved")
                .other;
            fs.forget(over.expect("it replaced one").ino);
            let mode = RenameMode::Exchange;
            let (from, to) = (name(count - 1), b"file-5");
            fs.rename(&OpCtx::service(), dir("swap"), from.as_bytes(), root, to, mode)
                .expect("exchanged");
        }
        // Its `..` changes.
        let from = format!("swap-{count}");
        fs.rename(&OpCtx::service(), root, from.as_bytes(), dir("more"), b"inside", mode)
            .expect("moved");
    }
    for size in [0, 5, 60, 61, 130, 200] {
        let ino = find(root, &format!("file-{size}"));
        let end = fs.getattr(&OpCtx::service(), ino).expect("a state").size;
        fs.write(&OpCtx::service(), ino, end, &mut &b"appended"[..]).expect("room");
    }
}

#[test]
fn inline_data_of_the_kernel_is_used_in_turns() {
    if !can_mount() {
        return;
    }
    for features in ["inline_data", "inline_data,^metadata_csum", "inline_data,fast_commit"] {
        let image = used_in_turns(features, furnish, change);
        let mount = image.mount();
        // The kernel makes inline what we had.
        std::fs::write(mount.path().join("last"), b"of the kernel's").expect("room");
        drop(mount);
        image.ours(|fs| {
            assert!(fs.lookup(&OpCtx::service(), fs.root().expect("root").ino, b"last").is_ok())
        });
    }
}
