//! Journals that change hands: ours in use, with small syncs of data in the log, goes to the
//! kernel, and the kernel's in use comes to us. Each replays the other's and then writes its own
//! kind of checksums.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::TestClock;
use polylane_ext4::{Ext4, Options};
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
        (&["-b", "2048"][..], true),
        (&["-b", "1024", "-O", "^64bit,fast_commit"][..], true),
        (&["-O", "^64bit"][..], true),
        (&["-O", "^metadata_csum,^64bit"][..], false),
        (&["-b", "2048", "-O", "^metadata_csum"][..], false),
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

/// A loop device on a file, which goes with this.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Loop {
        let done = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let done = done.expect("losetup runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Loop(String::from_utf8_lossy(&done.stdout).trim().to_string())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// The kernel alone uses a journal on another device: what it closed we read, what it did not close
/// is refused and stays as it is.
#[test]
fn an_image_with_its_journal_elsewhere_is_read_when_it_was_closed() {
    if !can_mount() {
        return;
    }
    let (journal, image) = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file")).into();
    journal.as_file().set_len(8 << 20).expect("a length");
    image.as_file().set_len(64 << 20).expect("a length");
    let journal = Loop::new(journal.path());
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).output().expect("it runs");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("mke2fs", &["-Fq", "-b", "4096", "-O", "journal_dev", &journal.0]);
    let (at, path) = (format!("device={}", journal.0), image.path().to_string_lossy());
    run("mke2fs", &["-Fq", "-t", "ext4", "-b", "4096", "-J", &at, &path]);
    let image = Image { file: RefCell::new(image) };
    let in_use = {
        let mount = image.mount();
        std::fs::write(mount.path().join("theirs"), content(1)).expect("room");
        let root = std::fs::File::open(mount.path()).expect("opens");
        rustix::fs::syncfs(root).expect("syncs");
        std::fs::read(image.file.borrow().path()).expect("readable")
    };
    let open = |bytes: &[u8]| {
        let device = common::load(bytes);
        let opened =
            Ext4::open(device.clone(), Arc::new(TestClock::default()), &Options::default());
        let left = std::fs::read(common::save(&device).path()).expect("readable");
        assert!(left == bytes, "written to");
        opened
    };
    let refused = open(&in_use).err().expect("its log is not here").to_string();
    assert!(refused.contains("another device") && refused.contains("replayed"), "{refused}");
    let closed = std::fs::read(image.file.borrow().path()).expect("readable");
    let fs = open(&closed).expect("opens");
    assert!(fs.read_only_reasons.iter().any(|why| why == "its journal is on another device"));
    assert!(read(&fs, "theirs") == content(1));
}
