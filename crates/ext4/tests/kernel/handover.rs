//! Journals that change hands: ours in use, with small syncs of data in the log, goes to the
//! kernel, and the kernel's in use comes to us. Each replays the other's and then writes its own
//! kind of checksums.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_ext4::Ext4;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, Syncing};

use super::{Image, can_mount, common};

/// What dumpe2fs says of the journal's features.
fn features(image: &Path) -> String {
    let said = Command::new("dumpe2fs").arg("-h").arg(image).output().expect("dumpe2fs runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = said.lines().find(|line| line.starts_with("Journal features:"));
    line.unwrap_or_default().to_string()
}

/// A file of `bytes`, synced as the page cache does it; then a part of it anew.
fn keep(fs: &Arc<Ext4>, name: &str, bytes: &[u8]) {
    let file = common::create(fs, common::root(fs), name, Kind::File);
    let syncing = Syncing { bytes: bytes.len() as u64, data_only: false };
    for part in [bytes, &bytes[..100]] {
        assert_eq!(
            fs.write_synced(&OpCtx::service(), file, 0, &mut &part[..], syncing),
            Ok(part.len())
        );
        fs.fsync(&OpCtx::service(), file, false).expect("durable");
    }
}

fn content(value: u8) -> Vec<u8> {
    (0..9000u32).map(|at| value.wrapping_add((at / 50) as u8)).collect()
}

fn read(fs: &Ext4, name: &str) -> Vec<u8> {
    let attr = fs.lookup(&OpCtx::service(), common::root(fs), name.as_bytes()).expect("is there");
    let mut bytes = vec![0; attr.size as usize];
    fs.read(&OpCtx::service(), attr.ino, 0, bytes.len(), &mut &mut bytes[..]).expect("reads");
    bytes
}

#[test]
fn a_journal_in_use_changes_hands_both_ways() {
    if !can_mount() {
        return;
    }
    for (args, has_sums) in [
        (&[][..], true),
        (&["-b", "1024"][..], true),
        (&["-O", "^64bit"][..], true),
        (&["-O", "^metadata_csum,^64bit"][..], false),
        (&["-O", "fast_commit"][..], true),
    ] {
        let args = [common::LANE, args].concat();
        let device = common::make(64, &args);
        let fs = common::open(&device);
        keep(&fs, "ours", &content(1));
        let ours = Image { file: RefCell::new(common::save(&device)) };
        drop(fs);
        let of_ours = features(ours.file.borrow().path());
        assert!(of_ours.contains("journal_async_commit"), "{args:?}: {of_ours}");
        assert!(!of_ours.contains("journal_checksum_v"), "{args:?}: {of_ours}");
        let cut = {
            let mount = ours.mount();
            let found = std::fs::read(mount.path().join("ours")).expect("replayed");
            assert!(found == content(1), "{args:?}");
            std::fs::write(mount.path().join("theirs"), content(2)).expect("room");
            let root = std::fs::File::open(mount.path()).expect("opens");
            rustix::fs::syncfs(root).expect("syncs");
            std::fs::read(ours.file.borrow().path()).expect("readable")
        };
        let theirs = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(theirs.path(), cut).expect("written");
        let of_theirs = features(theirs.path());
        assert_eq!(of_theirs.contains("journal_checksum_v3"), has_sums, "{args:?}: {of_theirs}");
        assert!(!of_theirs.contains("journal_async_commit"), "{args:?}: {of_theirs}");
        let theirs = Image { file: RefCell::new(theirs) };
        theirs.ours(|fs| {
            assert!(read(fs, "ours") == content(1) && read(fs, "theirs") == content(2));
            keep(fs, "again", &content(3));
        });
        let again = features(theirs.file.borrow().path());
        assert!(!again.contains("journal_checksum_v"), "{args:?}: {again}");
        let mount = theirs.mount();
        let found = std::fs::read(mount.path().join("again")).expect("is there");
        assert!(found == content(3), "{args:?}");
    }
}
