//! ext4 does what every file system must, and e2fsck finds nothing to say afterwards.

use std::sync::Arc;

use polylane_base::TestClock;
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::{self, Can};
use polylane_testkit::subject::small_options;
use polylane_vfs::OpCtx;
use polylane_vfs::cached::Mode;
use polylane_vfs::fs::FileSystem;

use crate::common;

fn conforms(mib: u64, args: &[&str]) {
    conforms_in(mib, args, None);
}

fn conforms_in(mib: u64, args: &[&str], cache: Option<Mode>) {
    if !common::have_tools() {
        return;
    }
    let image = common::image(mib, args);
    let mut made = Vec::new();
    let mut make = || {
        let device = common::load(&image);
        let clock = Arc::new(TestClock::default());
        let fs = common::open_by(device.clone(), clock.clone());
        empty(&fs);
        made.push((device, fs.clone()));
        match cache {
            Some(mode) => common::cached(fs, mode, &small_options(clock, 1 << 20)),
            None => fs as Arc<dyn FileSystem>,
        }
    };
    fs_suite::run(Can::ALL, &mut make);
    for (device, fs) in made {
        assert_eq!(fs.stopped_by(), None);
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}

#[test]
fn a_lane_conforms() {
    conforms(32, common::LANE);
}

#[test]
fn a_lane_in_a_cache_conforms() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        conforms_in(32, common::LANE, Some(mode));
    }
}

/// What an upstream mke2fs makes.
#[test]
fn an_image_with_an_orphan_file_conforms() {
    conforms(32, &["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed"]);
}

#[test]
fn an_image_without_checksums_conforms() {
    let features = "^metadata_csum,^64bit,^flex_bg,^dir_index";
    conforms(32, &["-t", "ext4", "-b", "4096", "-O", features]);
}

/// What mke2fs made before it knew checksums of all metadata; most groups were never used.
#[test]
fn an_image_with_checksums_of_groups_alone_conforms() {
    let features = "^metadata_csum,uninit_bg";
    conforms(32, &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", features]);
}

/// The suite wants an empty root.
fn empty(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let gone = fs.rmdir(&OpCtx::service(), root, b"lost+found").expect("is there and empty");
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
