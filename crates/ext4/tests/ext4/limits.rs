//! Where the format ends: links, subdirectories, names in a directory, extents of a file, space.

use std::io::Write as _;
use std::sync::Arc;

use polylane_base::{Errno, Ino};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, SetAttr};

use crate::common::{self, create, on, root};

fn remove(fs: &Ext4, dir: Ino, name: &str) {
    let gone = fs.unlink(&OpCtx::service(), dir, name.as_bytes()).expect("is there").node;
    if gone.nlink == 0 {
        fs.forget(gone.ino);
    }
}

#[test]
fn a_file_has_65000_names_and_no_more() {
    on(64, common::LANE, |fs| {
        let (root, file) = (root(fs), create(fs, root(fs), "file", Kind::File));
        let dir = create(fs, root, "dir", Kind::Dir);
        for number in 1..65_000 {
            fs.link(&OpCtx::service(), file, dir, format!("link{number}").as_bytes())
                .expect("one more");
        }
        assert_eq!(fs.link(&OpCtx::service(), file, dir, b"too many").unwrap_err(), Errno::EMLINK);
        for number in (1..65_000).step_by(2) {
            remove(fs, dir, &format!("link{number}"));
        }
        assert_eq!(fs.getattr(&OpCtx::service(), file).expect("a state").nlink, 32_500);
    });
}

/// Past 65000 the link count of a directory stays 1 (`dir_nlink`).
#[test]
fn directories_without_number() {
    let args = ["-t", "ext4", "-b", "1024", "-N", "66000", "-m", "0"];
    on(160, &args, |fs| {
        let top = create(fs, root(fs), "top", Kind::Dir);
        for number in 0..65_100 {
            create(fs, top, &format!("d{number}"), Kind::Dir);
        }
        assert_eq!(fs.getattr(&OpCtx::service(), top).expect("a state").nlink, 1);
        for number in 0..100 {
            let gone = fs
                .rmdir(&OpCtx::service(), top, format!("d{number}").as_bytes())
                .expect("empty")
                .node;
            fs.forget(gone.ino);
        }
        assert_eq!(fs.getattr(&OpCtx::service(), top).expect("a state").nlink, 1);
    });
}

/// Every second block: an extent each, a tree of several leaves, cut in many transactions on a
/// journal of 4 MiB.
#[test]
fn a_file_of_many_extents_is_cut_and_punched() {
    on(400, &[common::LANE, &["-J", "size=4"]].concat(), |fs| {
        let file = create(fs, root(fs), "file", Kind::File);
        for block in (0..40_000u64).step_by(2) {
            fs.write(&OpCtx::service(), file, block * 4096, &mut &[block as u8; 100][..])
                .expect("room");
        }
        fs.fallocate(&OpCtx::service(), file, Fallocate::PunchHole, 10_001 * 4096, 9999 * 4096)
            .expect("a hole");
        let collapse = Fallocate::CollapseRange;
        fs.fallocate(&OpCtx::service(), file, collapse, 30_000 * 4096, 1000 * 4096).expect("moves");
        fs.fallocate(&OpCtx::service(), file, Fallocate::InsertRange, 20_000 * 4096, 8192)
            .expect("moves");
        let mut byte = [0];
        for (block, value) in [(10_000u64, 16), (10_002, 0), (20_002, 32), (38_998, 60)] {
            fs.read(&OpCtx::service(), file, block * 4096, 1, &mut &mut byte[..]).expect("reads");
            assert_eq!(byte[0], value, "{block}");
        }
        fs.setattr(&OpCtx::service(), file, &SetAttr { size: Some(5), ..SetAttr::default() })
            .expect("cut");
        assert_eq!(fs.getattr(&OpCtx::service(), file).expect("a state").blocks, 8);
    });
}

#[test]
fn a_file_cut_to_its_size_keeps_nothing_past_its_end() {
    on(64, common::LANE, |fs| {
        let file = create(fs, root(fs), "file", Kind::File);
        fs.write(&OpCtx::service(), file, 0, &mut &[7; 5000][..]).expect("room");
        let written = fs.getattr(&OpCtx::service(), file).expect("a state").blocks;
        let past = Fallocate::Allocate { keep_size: true };
        fs.fallocate(&OpCtx::service(), file, past, 0, 4 << 20).expect("room");
        assert!(fs.getattr(&OpCtx::service(), file).expect("a state").blocks > written);
        let longer = SetAttr { size: Some(6000), ..SetAttr::default() };
        let attr = fs.setattr(&OpCtx::service(), file, &longer).expect("a longer file");
        assert!(attr.blocks > written, "what lies past a growing end is going to be used");
        let attr = fs.setattr(&OpCtx::service(), file, &longer).expect("the same size");
        assert_eq!((attr.size, attr.blocks), (6000, written));
    });
}

#[test]
fn a_full_disk_has_room_again_after_a_removal() {
    on(32, common::LANE, |fs| {
        let root = root(fs);
        for round in 0..20 {
            let file = create(fs, root, "file", Kind::File);
            let bytes = vec![round as u8; 1 << 20];
            let mut size = 0;
            let full = loop {
                match fs.write(&OpCtx::service(), file, size, &mut &bytes[..]) {
                    Ok(count) => size += count as u64,
                    Err(errno) => break errno,
                }
            };
            assert_eq!(full, Errno::ENOSPC);
            assert!(size > 20 << 20, "round {round}: only {size} bytes");
            // Names can still be added and removed: metadata has a pool of its own.
            create(fs, root, "dir", Kind::Dir);
            let gone = fs.rmdir(&OpCtx::service(), root, b"dir").expect("removed").node;
            fs.forget(gone.ino);
            remove(fs, root, "file");
        }
    });
}

#[test]
fn inodes_run_out_and_come_back() {
    on(32, &[common::LANE, &["-N", "256"]].concat(), |fs| {
        for _ in 0..3 {
            let mut made = 0;
            let full = loop {
                let name = format!("f{made}");
                match fs.create(
                    &OpCtx::service(),
                    root(fs),
                    name.as_bytes(),
                    &node(Kind::File, 0o600),
                ) {
                    Ok(_) => made += 1,
                    Err(errno) => break errno,
                }
            };
            assert_eq!(
                (full, fs.statfs(&OpCtx::service()).expect("totals").ffree),
                (Errno::ENOSPC, 0)
            );
            (0..made).for_each(|number| remove(fs, root(fs), &format!("f{number}")));
        }
    });
}

/// Files without a name when the lights go out are gone when they come back, and their space is
/// free.
#[test]
fn open_files_without_names_do_not_survive_a_crash() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, common::LANE);
    let fs = common::open(&device);
    fs.sync(&OpCtx::service()).expect("syncs");
    let free = fs.statfs(&OpCtx::service()).expect("totals");
    for number in 0..300 {
        let name = format!("f{number}");
        let file = create(&fs, root(&fs), &name, Kind::File);
        fs.write(&OpCtx::service(), file, 0, &mut &[1; 20_000][..]).expect("room");
        fs.unlink(&OpCtx::service(), root(&fs), name.as_bytes()).expect("is there");
        if number % 3 == 0 {
            fs.forget(file);
        }
        if number % 50 == 0 {
            fs.sync(&OpCtx::service()).expect("syncs");
        }
    }
    fs.sync(&OpCtx::service()).expect("syncs");
    // Dropped, not closed: as after a power cut.
    drop(fs);
    let fs = common::open(&device);
    assert!(fs.recovered.transactions > 0);
    let now = fs.statfs(&OpCtx::service()).expect("totals");
    assert_eq!((now.bfree, now.ffree), (free.bfree, free.ffree));
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
}

/// The orphan file holds them while the file system is open, as Linux' does: e2fsck empties it
/// after a crash, and an orderly close leaves it empty.
#[test]
fn the_orphan_file_holds_files_without_names() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, &[common::LANE, &["-O", "orphan_file"]].concat());
    let fs = common::open(&device);
    let files: Vec<Ino> = (0..3000)
        .map(|_| {
            fs.create_unlinked(&OpCtx::service(), root(&fs), &node(Kind::File, 0o600))
                .expect("room")
                .ino
        })
        .collect();
    fs.sync(&OpCtx::service()).expect("syncs");
    files.iter().step_by(2).for_each(|file| fs.forget(*file));
    fs.sync(&OpCtx::service()).expect("syncs");
    drop(fs);
    let features = |image: &std::path::Path| {
        let said = std::process::Command::new("dumpe2fs").arg("-h").arg(image).output();
        String::from_utf8_lossy(&said.expect("dumpe2fs runs").stdout).into_owned()
    };
    let image = common::save(&device);
    let said = features(image.path());
    assert!(said.contains("orphan_present") && !said.contains("First orphan inode"), "{said}");
    let mended = std::process::Command::new("e2fsck").arg("-fy").arg(image.path()).output();
    let mended = String::from_utf8_lossy(&mended.expect("e2fsck runs").stdout).into_owned();
    assert_eq!(mended.matches("Clearing orphaned inode").count(), 1500, "{mended}");
    let fs = common::open(&device);
    let totals = fs.statfs(&OpCtx::service()).expect("totals");
    assert_eq!(totals.files - totals.ffree, 12);
    fs.close().expect("closes");
    let image = common::save(&device);
    assert!(!features(image.path()).contains("orphan_present"));
    assert_eq!(common::complaints(&device), None);
}

/// A directory with two levels of index nodes, until no more names fit or there are many.
#[test]
fn a_directory_of_many_names() {
    let args = ["-t", "ext4", "-b", "1024", "-N", "1000", "-m", "0"];
    on(64, &args, |fs| {
        let dir = create(fs, root(fs), "dir", Kind::Dir);
        let file = create(fs, root(fs), "file", Kind::File);
        let name = |number: u32| format!("{number:06}-{}", "n".repeat(number as usize % 30));
        let mut last = 0;
        for number in 0..60_000 {
            match fs.link(&OpCtx::service(), file, dir, name(number).as_bytes()) {
                Ok(_) => last = number,
                Err(errno) => {
                    assert_eq!(errno, Errno::ENOSPC, "the tree of 1 KiB blocks is full");
                    break;
                }
            }
        }
        assert!(last > 30_000, "{last}");
        let mut count = 0;
        let mut each = |_: polylane_vfs::fs::DirEntry<'_>| {
            count += 1;
            true
        };
        fs.readdir(&OpCtx::service(), dir, 0, &mut each).expect("lists");
        assert_eq!(count, last + 1);
        (0..=last).for_each(|number| remove(fs, dir, &name(number)));
        let gone = fs.rmdir(&OpCtx::service(), root(fs), b"dir").expect("empty").node;
        fs.forget(gone.ino);
    });
}

/// Freed blocks go back to the device: after each commit when that was asked for, else at a trim.
#[test]
fn freed_space_is_given_back() {
    if !common::have_tools() {
        return;
    }
    for (asked, image_wants) in [(true, false), (false, false), (false, true)] {
        let mut bytes = common::image(64, common::LANE);
        if image_wants {
            let mut image = tempfile::NamedTempFile::new().expect("file");
            image.write_all(&bytes).expect("written");
            let mut done = std::process::Command::new("tune2fs");
            done.args(["-o", "discard"]);
            assert!(done.arg(image.path()).output().expect("tune2fs runs").status.success());
            bytes = std::fs::read(image.path()).expect("readable");
        }
        let device = common::load(&bytes);
        let discard = asked || image_wants;
        let options = Options { discard: asked, ..Options::default() };
        let clock = Arc::new(polylane_base::TestClock::default());
        let fs = Ext4::open(device.clone(), clock, &options).expect("opens");
        let kept = create(&fs, root(&fs), "kept", Kind::File);
        fs.write(&OpCtx::service(), kept, 0, &mut &[5; 1 << 20][..]).expect("room");
        fs.sync(&OpCtx::service()).expect("syncs");
        let before = device.allocated_bytes();
        let file = create(&fs, root(&fs), "file", Kind::File);
        fs.write(&OpCtx::service(), file, 0, &mut &vec![7; 20 << 20][..]).expect("room");
        remove(&fs, root(&fs), "file");
        fs.sync(&OpCtx::service()).expect("syncs");
        if !discard {
            assert!(device.allocated_bytes() > before + (15 << 20));
            let bytes = FileSystem::trim(&fs, &OpCtx::service(), 65_536).expect("trims");
            assert!(bytes > 20 << 20);
        }
        assert!(device.allocated_bytes() < before + (1 << 20), "discard: {discard}");
        let mut bytes = vec![0; 1 << 20];
        fs.read(&OpCtx::service(), kept, 0, bytes.len(), &mut &mut bytes[..]).expect("reads");
        assert!(bytes.iter().all(|byte| *byte == 5));
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}

/// Names that room was set aside for are made and renamed when nothing else is left: no block for
/// data, none for metadata, no inode.
#[test]
fn names_that_were_promised_are_made_on_a_full_disk() {
    const NAMES: u32 = 128;
    on(16, &[common::LANE, &["-N", "512"]].concat(), |fs| {
        let long = |number: u32| format!("{number:04}-{}", "n".repeat(230));
        let dir = create(fs, root(fs), "leased", Kind::Dir);
        for number in 0..40 {
            create(fs, dir, &long(9000 + number), Kind::File);
        }
        fs.reserve_names(NAMES).expect("room");
        let other = create(fs, root(fs), "other", Kind::Dir);
        let data = create(fs, root(fs), "data", Kind::File);
        let mut size = 0;
        while fs
            .write(&OpCtx::service(), data, size, &mut &[7; 65_536][..])
            .is_ok_and(|count| count > 0)
        {
            size += 65_536;
        }
        // Links take metadata, also from the pool.
        let linked = (0..20_000).take_while(|number| {
            fs.link(&OpCtx::service(), data, other, long(*number).as_bytes()).is_ok()
        });
        assert!((100..20_000).contains(&linked.count()));
        let files = (0..).take_while(|number| {
            fs.create_unlinked(&OpCtx::service(), other, &node(Kind::File, 0o600)).is_ok()
                && *number < 1000
        });
        assert!(files.count() < 512);
        for number in 0..NAMES {
            let new = node(Kind::File, 0o644);
            let made = fs
                .create_reserved(&OpCtx::service(), dir, long(number).as_bytes(), &new)
                .expect("was promised");
            fs.forget(made.node.ino);
        }
        let new = node(Kind::File, 0o644);
        assert_eq!(
            fs.create(&OpCtx::service(), dir, b"more", &new).map(|_| ()),
            Err(Errno::ENOSPC)
        );
        assert_eq!(fs.statfs(&OpCtx::service()).expect("totals").ffree, 0);
    });
}

/// A promise that is taken back leaves as much as there was.
#[test]
fn promises_of_names_come_back() {
    on(16, common::LANE, |fs| {
        let before = fs.statfs(&OpCtx::service()).expect("totals");
        fs.reserve_names(100).expect("room");
        let dir = create(fs, root(fs), "dir", Kind::Dir);
        for number in 0..40 {
            let (new, name) = (node(Kind::File, 0o644), format!("f{number}"));
            let made = fs
                .create_reserved(&OpCtx::service(), dir, name.as_bytes(), &new)
                .expect("was promised");
            assert_eq!(
                fs.create_reserved(&OpCtx::service(), dir, name.as_bytes(), &new).map(|_| ()),
                Err(Errno::EEXIST)
            );
            fs.rename_reserved(&OpCtx::service(), dir, name.as_bytes(), b"moved")
                .expect("was promised");
            fs.unlink(&OpCtx::service(), dir, b"moved").expect("is there");
            fs.forget(made.node.ino);
        }
        fs.release_names(60);
        let gone = fs.rmdir(&OpCtx::service(), root(fs), b"dir").expect("empty").node;
        fs.forget(gone.ino);
        fs.sync(&OpCtx::service()).expect("syncs");
        let after = fs.statfs(&OpCtx::service()).expect("totals");
        assert_eq!((after.bfree, after.ffree), (before.bfree, before.ffree));
    });
}
