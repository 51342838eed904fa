//! Fast commits that the kernel left: what each fsync promised is there, also where the power goes
//! while they are replayed.

use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::TestClock;
use polylane_base::rng::Rng;
use polylane_ext4::{Error, Ext4, Options};
use polylane_testkit::sim::{Crash, Image as Bytes, SimDisk, SimOptions, Tear};
use rustix::fs::{FallocateFlags, fallocate};

use super::snapshot::{self, Tree, WithoutTimes as _, of_kernel, of_ours};
use super::{Image, can_mount, common};

/// A name for its directory, and a file that is written from its end, so that each block is an
/// extent of its own.
fn scattered(path: &Path, blocks: u64) -> File {
    let file = File::create(path).expect("made");
    for block in (0..blocks).rev() {
        file.write_all_at(&[block as u8 + 1; 4096], 2 * block * 4096).expect("room");
        file.sync_data().expect("syncs");
    }
    file
}

/// What is there before, in full commits.
fn before(root: &Path) {
    for dir in ["a", "b"] {
        std::fs::create_dir(root.join(dir)).expect("made");
    }
    for nth in 0..30 {
        let name = format!("a/{}-{nth}", "n".repeat(40));
        std::fs::write(root.join(name), vec![nth as u8; 9000]).expect("room");
    }
    scattered(&root.join("old-tree"), 40);
    rustix::fs::syncfs(File::open(root).expect("opens")).expect("syncs");
}

/// Changes of every kind that fast commits know, synced one by one.
fn change(root: &Path) {
    let sync = |path: &Path| File::open(path).expect("opens").sync_all().expect("syncs");
    let name = |nth: u32| root.join(format!("a/{}-{nth}", "n".repeat(40)));
    // Longer, shorter, with holes, replaced.
    let file = File::options().write(true).open(name(0)).expect("opens");
    file.write_all_at(&[0xa0; 50_000], 7000).expect("room");
    file.sync_all().expect("syncs");
    File::options().write(true).open(name(1)).expect("opens").set_len(5000).expect("cut");
    sync(&name(1));
    let file = File::options().write(true).open(root.join("old-tree")).expect("opens");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 8 * 4096, 20 * 4096).expect("punched");
    file.sync_all().expect("syncs");
    file.write_all_at(&[0xb0; 8192], 10 * 4096).expect("room");
    file.sync_all().expect("syncs");
    // New ones: with many extents, with a name that is moved, linked, and gone.
    scattered(&root.join("b/new-tree"), 12);
    for nth in 0..40 {
        let path = root.join(format!("b/{}-{nth}", "m".repeat(60)));
        std::fs::write(&path, vec![nth as u8 + 1; 100 * nth]).expect("room");
        sync(&path);
    }
    std::fs::rename(name(2), root.join("b/moved")).expect("moved");
    std::fs::hard_link(name(3), root.join("b/linked")).expect("linked");
    std::fs::remove_file(name(4)).expect("removed");
    std::fs::rename(name(5), name(6)).expect("moved over another");
    std::fs::create_dir(root.join("b/dir")).expect("made");
    std::fs::write(root.join("b/dir/inside"), b"content").expect("room");
    symlink("a short target", root.join("b/short")).expect("linked");
    symlink("t".repeat(200), root.join("b/long")).expect("linked");
    sync(&root.join("b/dir/inside"));
    let file = File::create(root.join("reserved")).expect("made");
    fallocate(&file, FallocateFlags::empty(), 0, 300_000).expect("room");
    file.write_all_at(b"written", 100_000).expect("room");
    file.sync_all().expect("syncs");
}

/// The image as it is when the lights go out after those changes, and the tree that was there.
fn cut_off(features: &str) -> (Vec<u8>, Tree) {
    let image = Image::new(64, &[common::LANE, &["-O", features]].concat());
    let mount = image.mount();
    before(mount.path());
    change(mount.path());
    let bytes = std::fs::read(image.file.borrow().path()).expect("readable");
    (bytes, of_kernel(mount.path()).without_times_of_dirs())
}

fn opened(bytes: Bytes) -> (Arc<SimDisk>, Result<Ext4, Error>) {
    let disk = SimDisk::new(bytes, SimOptions { record: true, ..SimOptions::default() });
    let fs = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &Options::default());
    (disk, fs)
}

#[test]
fn fast_commits_of_the_kernel_are_replayed() {
    if !can_mount() {
        return;
    }
    for features in ["fast_commit", "fast_commit,^metadata_csum,^orphan_file"] {
        let (bytes, there) = cut_off(features);
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), &bytes).expect("written");
        let image = Image { file: RefCell::new(file) };
        let found = image.ours(|fs| {
            assert!(fs.recovered.fast_changes > 0, "{features}: {:?}", fs.recovered);
            of_ours(&**fs)
        });
        snapshot::assert_same(&found.without_times_of_dirs(), &there);
        // And they count no more.
        image.ours(|fs| assert_eq!(fs.recovered.fast_changes, 0));
        let mount = image.mount();
        snapshot::assert_same(&of_kernel(mount.path()).without_times_of_dirs(), &there);
    }
}

/// Opened, and cut off at every write of that: the next opening finds the same tree.
#[test]
fn the_replay_of_fast_commits_may_be_cut_off_anywhere() {
    if !can_mount() {
        return;
    }
    let (bytes, there) = cut_off("fast_commit");
    let base = Bytes::new(bytes);
    let (disk, fs) = opened(base.clone());
    let fs = fs.expect("opens");
    assert!(fs.recovered.fast_changes > 0);
    fs.close().expect("closes");
    let events = disk.events();
    let (mut crash, mut rng, mut replayed) = (Crash::new(&base, &events), Rng::new(5), [0, 0]);
    let tear = Tear { unit_bytes: 512, whole: Some(1024..2048) };
    while let Some(changed) = crash.advance() {
        if !changed {
            continue;
        }
        for fates in crash.choices(&mut rng, 1, 1) {
            let (_, fs) = opened(crash.image(&tear, |nth| fates[nth]));
            let fs = fs.unwrap_or_else(|why| panic!("after {} events: {why}", crash.position()));
            replayed[usize::from(fs.recovered.fast_changes > 0)] += 1;
            snapshot::assert_same(&of_ours(&fs).without_times_of_dirs(), &there);
            fs.close().expect("closes");
        }
    }
    assert!(replayed.iter().all(|times| *times > 0), "both sides of the commit: {replayed:?}");
}

/// Files of owners that quotas know and of others, that grow, shrink and change hands. Only what
/// fast commits know, so that no whole one tells what quotas were not told.
fn change_owners(root: &Path) {
    let sync = |path: &Path| File::open(path).expect("opens").sync_all().expect("syncs");
    for nth in 0..8u32 {
        let path = root.join(format!("f{nth}"));
        let file = File::create(&path).expect("made");
        chown(&path, Some(1000 * (nth % 4)), Some(70_000 + nth)).expect("given");
        file.write_all_at(&vec![nth as u8; 5000 * nth as usize], 0).expect("room");
        file.sync_all().expect("syncs");
    }
    for nth in 0..6u32 {
        let path = root.join(format!("old{nth}"));
        let file = File::options().write(true).open(&path).expect("opens");
        match nth % 3 {
            0 => chown(&path, Some(5), Some(6)).expect("given"),
            1 => file.set_len(100).expect("cut"),
            _ => file.write_all_at(&[1; 40_000], 10_000).expect("room"),
        }
        sync(&path);
    }
}

/// The bit of `quota` in the superblock and its copies in the log, which the kernel is not shown:
/// one that is built without quotas writes the image as one without them.
fn show_quotas(image: &Path, shown: bool) {
    let mut bytes = std::fs::read(image).expect("readable");
    let id = bytes[1024 + 0x68..1024 + 0x78].to_vec();
    for block in bytes.chunks_exact_mut(4096) {
        let superblock = &mut block[1024..2048];
        if superblock[0x38..0x3a] == [0x53, 0xef] && superblock[0x68..0x78] == id {
            superblock[0x65] = superblock[0x65] & !1 | u8::from(shown);
        }
    }
    std::fs::write(image, bytes).expect("written");
}

/// Usage follows from fast commits, too.
#[test]
fn quotas_are_right_after_fast_commits() {
    if !can_mount() {
        return;
    }
    let features = "fast_commit,^metadata_csum,orphan_file";
    let image = Image::new(64, &[common::LANE, &["-O", features]].concat());
    {
        let mount = image.mount();
        for nth in 0..6u32 {
            let path = mount.path().join(format!("old{nth}"));
            std::fs::write(&path, vec![7; 30_000]).expect("room");
            chown(&path, Some(1000), Some(1000)).expect("given");
        }
    }
    let path = image.file.borrow().path().to_owned();
    let tuned = Command::new("tune2fs").args(["-O", "quota"]).arg(&path).output();
    let tuned = tuned.expect("tune2fs runs");
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
    show_quotas(&path, false);
    let (bytes, there) = {
        // No whole commit after the first, which tells of no owner.
        let mount = image.mount_with("loop,commit=300");
        std::fs::set_permissions(mount.path(), Permissions::from_mode(0o711)).expect("set");
        rustix::fs::syncfs(File::open(mount.path()).expect("opens")).expect("syncs");
        change_owners(mount.path());
        let bytes = std::fs::read(&path).expect("readable");
        (bytes, of_kernel(mount.path()).without_times_of_dirs())
    };
    let cut = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(cut.path(), &bytes).expect("written");
    show_quotas(cut.path(), true);
    // e2fsck has the last word when it is closed.
    let image = Image { file: RefCell::new(cut) };
    let found = image.ours(|fs| {
        assert_eq!(fs.read_only_reasons, Vec::<String>::new());
        assert!(fs.recovered.fast_changes > 20, "{:?}", fs.recovered);
        of_ours(&**fs)
    });
    snapshot::assert_same(&found.without_times_of_dirs(), &there);
}
