//! Images with features of which others make more use than we do: they are written, and everybody
//! finds them sound.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::TestClock;
use polylane_block::ram::RamDevice;
use polylane_ext4::{Error, Ext4, Options};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, SetAttr};
use tempfile::NamedTempFile;

use crate::common::{self, root};

fn try_open(device: &Arc<RamDevice>) -> Result<Ext4, Error> {
    Ext4::open(device.clone(), Arc::new(TestClock::default()), &Options::default())
}

/// Directories, files of all sizes, removals.
fn work(fs: &Ext4) {
    for n in 0..40 {
        let name = format!("dir{n}");
        let dir = fs
            .create(&OpCtx::service(), root(fs), name.as_bytes(), &node(Kind::Dir, 0o755))
            .expect("room");
        for size in [0, 1, 5000, 300_000] {
            let name = format!("file{size}");
            let file = fs.create(
                &OpCtx::service(),
                dir.node.ino,
                name.as_bytes(),
                &node(Kind::File, 0o644),
            );
            let file = file.expect("room").node.ino;
            fs.write(&OpCtx::service(), file, 0, &mut &vec![n as u8; size][..]).expect("room");
        }
        if n % 3 == 0 {
            let gone =
                fs.unlink(&OpCtx::service(), dir.node.ino, b"file300000").expect("there").node;
            fs.forget(gone.ino);
        }
    }
}

fn check_work(fs: &Ext4) {
    for n in 0..40 {
        let dir = fs
            .lookup(&OpCtx::service(), root(fs), format!("dir{n}").as_bytes())
            .expect("there")
            .ino;
        let file = fs.lookup(&OpCtx::service(), dir, b"file5000").expect("there");
        let mut bytes = vec![0xee; 5000];
        assert_eq!(fs.read(&OpCtx::service(), file.ino, 0, 5000, &mut &mut bytes[..]), Ok(5000));
        assert!(bytes.iter().all(|byte| *byte == n as u8), "{n}");
        assert_eq!(fs.lookup(&OpCtx::service(), dir, b"file300000").is_ok(), n % 3 != 0);
    }
}

/// Works on an image, which must come out clean and whole.
fn used(device: &Arc<RamDevice>, what: &str) {
    let fs = common::open(device);
    assert_eq!(fs.read_only_reasons, Vec::<String>::new(), "{what}");
    work(&fs);
    check_work(&fs);
    assert_eq!(fs.stopped_by(), None, "{what}");
    fs.close().expect("closes");
    assert_eq!(common::complaints(device), None, "{what}");
    let fs = common::open(device);
    check_work(&fs);
    fs.close().expect("closes");
}

/// Without a journal: written like others, and after a power cut nothing is written before e2fsck.
#[test]
fn without_a_journal_e2fsck_comes_after_a_power_cut() {
    if !common::have_tools() {
        return;
    }
    for args in [
        &["-t", "ext2"][..],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^orphan_file"],
    ] {
        let device = common::make(64, args);
        used(&device, &format!("{args:?}"));
        assert!(common::dumped(&device).contains("Filesystem state:         clean"));
        let fs = common::open(&device);
        let new = fs
            .create(&OpCtx::service(), root(&fs), b"synced", &node(Kind::File, 0o600))
            .expect("room")
            .node;
        fs.write(&OpCtx::service(), new.ino, 0, &mut &[7; 9000][..]).expect("room");
        fs.fsync(&OpCtx::service(), new.ino, false).expect("syncs");
        let cut = common::save(&device);
        drop(fs);
        let device = common::load(&std::fs::read(cut.path()).expect("readable"));
        assert!(common::dumped(&device).contains("not clean"));
        assert!(!common::dumped(&device).contains("needs_recovery"));
        let fs = try_open(&device).expect("opens");
        let why = fs.read_only_reasons.join(", ");
        assert!(why.contains("not unmounted cleanly") && why.contains("e2fsck"), "{why}");
        assert!(fs.character().read_only);
        assert_eq!(
            fs.lookup(&OpCtx::service(), root(&fs), b"synced").map(|attr| attr.size),
            Ok(9000)
        );
        drop(fs);
        let mended = Command::new("e2fsck").arg("-fy").arg(cut.path()).output();
        let mended = mended.expect("e2fsck runs").status.code();
        assert!(mended.is_some_and(|code| code <= 1), "{mended:?}");
        let device = common::load(&std::fs::read(cut.path()).expect("readable"));
        let fs = try_open(&device).expect("opens");
        assert!(!fs.character().read_only);
        let synced = fs.lookup(&OpCtx::service(), root(&fs), b"synced").expect("there");
        let mut bytes = [0; 9000];
        assert_eq!(fs.read(&OpCtx::service(), synced.ino, 0, 9000, &mut &mut bytes[..]), Ok(9000));
        assert!(bytes.iter().all(|byte| *byte == 7));
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}

/// Descriptors that lie in the groups that they describe.
#[test]
fn descriptors_of_meta_groups_are_found() {
    if !common::have_tools() {
        return;
    }
    for args in [
        &["-b", "1024", "-O", "meta_bg,^resize_inode"][..],
        &["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"],
        &["-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode,^flex_bg,^64bit,^sparse_super"],
        &["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^metadata_csum,uninit_bg"],
    ] {
        let device = common::make(96, &[&["-t", "ext4"], args].concat());
        used(&device, &format!("{args:?}"));
        // Every group is used, those among them that were never initialised.
        let fs = common::open(&device);
        let file = fs
            .create(&OpCtx::service(), root(&fs), b"all", &node(Kind::File, 0o600))
            .expect("room")
            .node
            .ino;
        let (mut at, piece) = (0, vec![1; 1 << 20]);
        while let Ok(count) = fs.write(&OpCtx::service(), file, at, &mut &piece[..]) {
            at += count as u64;
        }
        assert!(at > 70 << 20, "{args:?}: {at} bytes");
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None, "{args:?}");
    }
}

/// A third level of index nodes, where a full tree of two would refuse names.
#[test]
fn large_directories_get_one_level_more() {
    if !common::have_tools() {
        return;
    }
    let args = ["-t", "ext4", "-b", "1024", "-O", "large_dir", "-m", "0", "-J", "size=8"];
    let device = common::make(160, &args);
    let fs = common::open(&device);
    let dir = fs
        .create(&OpCtx::service(), root(&fs), b"dir", &node(Kind::Dir, 0o755))
        .expect("room")
        .node
        .ino;
    let file = fs
        .create(&OpCtx::service(), root(&fs), b"file", &node(Kind::File, 0o644))
        .expect("room")
        .node
        .ino;
    let name = |n: u32| format!("{n:06}{}", "n".repeat(249));
    // Two levels end at some 20,000 of them.
    const COUNT: u32 = 40_000;
    for n in 0..COUNT {
        fs.link(&OpCtx::service(), file, dir, name(n).as_bytes()).expect("room");
    }
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
    let image = common::save(&device);
    let said = Command::new("debugfs").args(["-R", "htree_dump dir"]).arg(image.path()).output();
    let said = String::from_utf8_lossy(&said.expect("debugfs runs").stdout).into_owned();
    assert!(said.contains("Indirect levels: 2"), "{}", &said[..said.len().min(400)]);
    let fs = common::open(&device);
    let mut listed = 0;
    fs.readdir(&OpCtx::service(), dir, 0, &mut |_| {
        listed += 1;
        true
    })
    .expect("lists");
    assert_eq!(listed, COUNT);
    for n in (0..COUNT).step_by(3) {
        fs.unlink(&OpCtx::service(), dir, name(n).as_bytes()).expect("there");
    }
    assert!(fs.lookup(&OpCtx::service(), dir, name(1).as_bytes()).is_ok());
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
}

/// What lies behind the log of an image with fast commits: tags that end one, whole or torn.
fn put_fast_commit(image: &Path, tid: u32, whole: bool) {
    let said = Command::new("debugfs").args(["-R", "blocks <8>"]).arg(image).output();
    let said = String::from_utf8(said.expect("debugfs runs").stdout).expect("text");
    let homes: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let log = common::log::Log::read(image);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let tag = |kind: u16, value: Vec<u8>| {
        let len = value.len() as u16;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), &value].concat()
    };
    // The root loses the range of a file that it is not: nothing changes that a program sees.
    let gone = tag(2, words(&[2, 1000, 1]));
    let mut block = [tag(9, words(&[0, tid])), gone, tag(8, words(&[tid, 0]))].concat();
    let at = block.len() - 4;
    let sum = polylane_ext4::format::checksum::crc(0, &block[..at]) ^ u32::from(!whole);
    block[at..].copy_from_slice(&sum.to_le_bytes());
    block.resize(common::BLOCK, 0);
    let file = std::fs::File::options().write(true).open(image).expect("writable");
    let place = homes[log.superblock.end() as usize + 1] * common::BLOCK as u64;
    std::os::unix::fs::FileExt::write_all_at(&file, &block, place).expect("inside");
}

/// An image whose journal keeps room for fast commits is written like others. Of those that are in
/// it the whole ones count that follow the last transaction.
#[test]
fn fast_commits_are_replayed_only_where_they_count() {
    if !common::have_tools() {
        return;
    }
    let args = [common::LANE, &["-O", "fast_commit"]].concat();
    let device = common::make(64, &args);
    used(&device, "fast_commit");
    for (behind, whole) in [(0u32, true), (1, true), (0, false)] {
        let image = NamedTempFile::new().expect("temporary file");
        std::fs::write(image.path(), common::image(64, &args)).expect("written");
        let one = common::author::Transaction {
            blocks: vec![(9000, vec![5; common::BLOCK])],
            revoked: Vec::new(),
            seconds: 100,
        };
        let sums = polylane_ext4::format::journal::JournalIncompat::CSUM_V3;
        common::author::write_fast(image.path(), sums, &[one]);
        let next = common::log::Log::read(image.path()).superblock.sequence() + 1;
        put_fast_commit(image.path(), next.wrapping_sub(behind), whole);
        let device = common::load(&std::fs::read(image.path()).expect("readable"));
        let fs = try_open(&device).expect("opens");
        assert_eq!(fs.recovered.transactions, 1);
        assert_eq!(fs.recovered.fast_changes, u32::from(behind == 0 && whole));
        work(&fs);
        // As after a power cut: what is left of the old ones counts for nothing.
        drop(fs);
        let fs = try_open(&device).expect("opens");
        let set = SetAttr { size: Some(1), ..SetAttr::default() };
        let file =
            fs.create(&OpCtx::service(), root(&fs), b"f", &node(Kind::File, 0o600)).expect("room");
        fs.setattr(&OpCtx::service(), file.node.ino, &set).expect("longer");
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}
