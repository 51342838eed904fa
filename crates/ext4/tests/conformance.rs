//! ext4 does what every file system must, and e2fsck finds nothing to say afterwards.

mod common;

use std::sync::Arc;

use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::{self, Can};
use polylane_vfs::fs::FileSystem;

#[test]
fn conforms() {
    if !common::have_tools() {
        return;
    }
    let mut made = Vec::new();
    let mut make = || {
        let device = common::make(32, common::LANE);
        let fs = common::open(&device);
        empty(&*fs);
        made.push((device, fs.clone()));
        fs as Arc<dyn FileSystem>
    };
    fs_suite::run(Can::ALL, &mut make);
    for (device, fs) in made {
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}

/// The suite wants an empty root.
fn empty(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let gone = fs.rmdir(root, b"lost+found").expect("is there and empty");
    fs.forget(gone.node.ino);
}

#[test]
fn an_untouched_image_stays_clean() {
    if !common::have_tools() {
        return;
    }
    for args in [common::LANE, &["-t", "ext4"], &["-t", "ext4", "-O", "^has_journal"]] {
        let device = common::make(64, args);
        let opened = Ext4::open(
            device.clone(),
            Arc::new(polylane_base::TestClock::default()),
            &polylane_ext4::Options::default(),
        );
        if let Ok(fs) = opened {
            fs.close().expect("closes");
        }
        assert_eq!(common::complaints(&device), None, "{args:?}");
    }
}
