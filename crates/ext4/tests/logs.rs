//! Journals as others leave them: logs that debugfs wrote in every form, journals whose features
//! are not ours, logs that nobody wants replayed any more, and maps that lead nowhere. debugfs and
//! e2fsck are the oracle.

mod common;

use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::BLOCK;
use common::log::cat;
use polylane_base::TestClock;
use polylane_block::Error as DeviceError;
use polylane_block::ram::RamDevice;
use polylane_ext4::format::journal::{JournalCompat, JournalIncompat, JournalSuperblock};
use polylane_ext4::{Error, Ext4, Options};
use polylane_testkit::sim::{Fault, FaultOn, Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};
use tempfile::NamedTempFile;

/// What the tests make has the same shape, whatever this machine's mke2fs.conf says.
const FORMAT: &[&str] = &["-t", "ext4", "-b", "4096", "-J", "size=4"];

/// Far more than an image of this size needs; what the tests hold themselves is less than half.
const MEMORY_KIB_MAX: u64 = 400 << 10;

/// An image in a file, formatted with `features`.
fn format(features: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("temporary file");
    let args = [FORMAT, &["-O", features]].concat();
    std::fs::write(file.path(), common::image(32, &args)).expect("written");
    file
}

fn load(image: &Path) -> Arc<RamDevice> {
    common::load(&std::fs::read(image).expect("readable"))
}

fn open(device: &Arc<RamDevice>) -> Result<Ext4, Error> {
    Ext4::open(device.clone(), Arc::new(TestClock::default()), &Options::default())
}

/// Has debugfs do `commands`, a line for each; what it said.
fn debugfs(image: &Path, commands: &str) -> String {
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-w").arg(image).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = debugfs.stderr(Stdio::null()).spawn().expect("debugfs runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(commands.as_bytes()).expect("read by it");
    drop(input);
    let said = child.wait_with_output().expect("ends").stdout;
    String::from_utf8_lossy(&said).into_owned()
}

fn e2fsck(flags: &str, image: &Path) -> (Option<i32>, String) {
    let done = Command::new("e2fsck").arg(flags).arg(image).output().expect("e2fsck runs");
    (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Bytes of `count` blocks from `first` on.
fn blocks(image: &Path, first: u64, count: usize) -> Vec<u8> {
    let file = std::fs::File::open(image).expect("readable");
    let mut bytes = vec![0; count * BLOCK];
    file.read_exact_at(&mut bytes, first * BLOCK as u64).expect("inside");
    bytes
}

/// Changes the journal's superblock as bytes; makes its checksum right where it has one.
fn edit_journal(image: &Path, edit: impl FnOnce(&mut [u8])) {
    let mut block = cat(image, "<8>")[..BLOCK].to_vec();
    edit(&mut block);
    let incompat = u32::from_be_bytes(block[0x28..0x2c].try_into().expect("4 bytes"));
    if incompat & (JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3).bits() != 0 {
        block[0xfc..0x100].fill(0);
        let sum = polylane_ext4::format::checksum::crc(!0, &block[..1024]);
        block[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
    common::log::put(image, 0, &block);
}

fn set_bits(block: &mut [u8], at: usize, bits: u32) {
    let old = u32::from_be_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    block[at..at + 4].copy_from_slice(&(old | bits).to_be_bytes());
}

/// A file of `count` blocks that differ; the second one begins as the journal's own do.
fn content(count: usize) -> NamedTempFile {
    let mut bytes: Vec<u8> = (0..count).flat_map(|n| vec![1 + (n % 251) as u8; BLOCK]).collect();
    bytes[BLOCK..BLOCK + 4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
    let file = NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), bytes).expect("written");
    file
}

/// Makes a file durable; its bytes.
fn keep(fs: &Ext4, name: &str) -> Vec<u8> {
    let bytes: Vec<u8> = (0..40_000u32).map(|n| (n % 253) as u8).collect();
    let root = fs.root().expect("root").ino;
    let new = polylane_testkit::fs_suite::node(Kind::File, 0o600);
    let file = fs.create(&OpCtx::service(), root, name.as_bytes(), &new).expect("room").node.ino;
    assert_eq!(fs.write(&OpCtx::service(), file, 0, &mut &bytes[..]), Ok(bytes.len()));
    fs.fsync(&OpCtx::service(), file, false).expect("durable");
    bytes
}

/// Has debugfs write three transactions into a log that it opens by `jo`; what it said.
fn write_three(image: &Path, jo: &str, source: &Path) -> String {
    let from = source.display();
    let script = format!("{jo}\njw -b 5000-5403 {from}\njw -r 5002\njw -b 5500 {from}\njc\n");
    debugfs(image, &script)
}

/// Every form of a log is replayed as e2fsck does: several descriptors, escapes, revokes.
#[test]
fn logs_of_every_form_are_replayed() {
    if !common::have_tools() {
        return;
    }
    let source = content(404);
    for (features, jo) in [
        ("64bit,metadata_csum", "jo -c -v 2"),
        ("^64bit,metadata_csum", "jo -c -v 2"),
        ("64bit,metadata_csum", "jo -c -v 3"),
        ("^64bit,metadata_csum", "jo -c -v 3"),
        ("64bit,^metadata_csum", "jo"),
        ("^64bit,^metadata_csum", "jo"),
    ] {
        let image = format(features);
        let said = write_three(image.path(), jo, source.path());
        let device = load(image.path());
        let fs = open(&device).unwrap_or_else(|error| panic!("{features} {jo}: {error}"));
        assert_eq!(fs.recovered.transactions, 3, "{features} {jo}: {said}");
        let kept = keep(&fs, "kept");
        fs.close().expect("closes");
        let ours = common::save(&device);
        assert_eq!(e2fsck("-fy", image.path()).0, Some(0), "{features} {jo}");
        let same = |first, count| {
            let theirs = blocks(image.path(), first, count);
            assert!(theirs.iter().any(|byte| *byte != 0), "{features} {jo}: e2fsck replays it");
            assert!(blocks(ours.path(), first, count) == theirs, "{features} {jo}: {first}");
        };
        same(5000, 404);
        same(5500, 1);
        assert_eq!(common::complaints(&device), None, "{features} {jo}");
        assert!(cat(ours.path(), "/kept") == kept, "{features} {jo}");
    }
}

/// An image with three transactions in its log, each with one checksum (v1), as Linux writes it
/// with `journal_checksum` and, where it does not wait, with `journal_async_commit`.
fn summed(source: &Path, is_async: bool) -> NamedTempFile {
    let image = format("64bit,^metadata_csum");
    write_three(image.path(), "jo", source);
    edit_journal(image.path(), |block| {
        set_bits(block, 0x24, JournalCompat::CHECKSUM.bits());
        set_bits(block, 0x28, if is_async { JournalIncompat::ASYNC_COMMIT.bits() } else { 0 });
    });
    let log = common::log::Log::read(image.path());
    assert!(log.superblock.has_transaction_checksums());
    for transaction in log.transactions() {
        let mut commit = log.block(transaction.commit).to_vec();
        commit[12..14].copy_from_slice(&[1, 4]);
        commit[16..20].copy_from_slice(&log.sum(&transaction).to_be_bytes());
        common::log::put(image.path(), transaction.commit, &commit);
    }
    image
}

/// A log with one checksum for each transaction is replayed up to the first that is not whole. It
/// may be torn where commits did not wait, and nothing may follow; else it is damaged, and refused.
/// e2fsck agrees in each case.
#[test]
fn checksums_of_whole_transactions_count() {
    if !common::have_tools() {
        return;
    }
    let source = content(404);
    for (is_async, damaged, transactions) in [
        (false, None, Some(3)),
        (true, None, Some(3)),
        (true, Some(2), Some(2)),
        (false, Some(2), None),
        (true, Some(0), None),
        (false, Some(0), None),
    ] {
        let what = format!("async {is_async}, damaged {damaged:?}");
        let image = summed(source.path(), is_async);
        let log = common::log::Log::read(image.path());
        let all = log.transactions();
        assert_eq!(all.len(), 3, "{what}");
        if let Some(damaged) = damaged {
            common::log::damage(image.path(), &log, &all[damaged]);
        }
        let device = load(image.path());
        let opened = open(&device);
        let (_, said) = e2fsck("-fy", image.path());
        assert_eq!(said.contains("corrupt"), transactions.is_none(), "{what}: {said}");
        let Some(transactions) = transactions else {
            let error = opened.err().expect("damage is refused");
            let named = error.to_string().contains("checksum of a transaction");
            assert!(matches!(error, Error::Corrupt(_)) && named, "{what}: {error}");
            continue;
        };
        let fs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(fs.recovered.transactions, transactions, "{what}");
        fs.close().expect("closes");
        let ours = common::save(&device);
        for (first, count) in [(5000, 404), (5500, 1)] {
            let theirs = blocks(image.path(), first, count);
            assert!(blocks(ours.path(), first, count) == theirs, "{what}: {first}");
        }
        assert_eq!(common::complaints(&device), None, "{what}");
    }
}

/// What a journal can be like that its last user left empty.
const FORMS: [&str; 6] = ["plain", "v1", "v1 async", "v2", "v2 async", "first version"];

fn form(kind: &str) -> NamedTempFile {
    let image = format("64bit,metadata_csum,^orphan_file");
    if kind.starts_with("v2") {
        debugfs(image.path(), "jo -c -v 2\njc\n");
    }
    edit_journal(image.path(), |block| match kind {
        "v1" => set_bits(block, 0x24, JournalCompat::CHECKSUM.bits()),
        "v1 async" => {
            set_bits(block, 0x24, JournalCompat::CHECKSUM.bits());
            set_bits(block, 0x28, JournalIncompat::ASYNC_COMMIT.bits());
        }
        "v2 async" => set_bits(block, 0x28, JournalIncompat::ASYNC_COMMIT.bits()),
        "first version" => {
            block[4..8].copy_from_slice(&3u32.to_be_bytes());
            block[0x24..].fill(0);
        }
        _ => {}
    });
    let incompat = JournalSuperblock::decode(&journal_block(image.path()), 4096, 1024);
    let incompat = incompat.expect("a journal").incompat();
    assert_eq!(incompat.contains(JournalIncompat::CSUM_V2), kind.starts_with("v2"), "{kind}");
    image
}

fn journal_block(image: &Path) -> Vec<u8> {
    let mut found = Vec::new();
    edit_journal(image, |block| found = block.to_vec());
    found
}

/// A journal that cannot be replayed, or not surely: refused by name, as by Linux and e2fsck, and
/// not a byte is written.
#[test]
fn a_journal_that_is_not_understood_is_refused_before_anything_is_written() {
    if !common::have_tools() {
        return;
    }
    let source = content(8);
    let from = source.path().display();
    let (compat, incompat, ro_compat) = (0x24, 0x28, 0x2c);
    let v1 = JournalCompat::CHECKSUM.bits();
    let sums = JournalIncompat::CSUM_V2.bits() | JournalIncompat::CSUM_V3.bits();
    type Edit<'a> = &'a dyn Fn(&mut [u8]);
    let cases: [(&str, &str, Edit<'_>); 8] = [
        ("journal unknown (0x80000000)", "3", &|block| set_bits(block, incompat, 1 << 31)),
        ("journal ro_compat (0x8)", "3", &|block| set_bits(block, ro_compat, 8)),
        ("s_blocksize", "3", &|block| block[0xc..0x10].copy_from_slice(&1024u32.to_be_bytes())),
        ("two kinds of checksums", "3", &|block| set_bits(block, compat, v1)),
        ("two kinds of checksums", "2", &|block| set_bits(block, compat, v1)),
        ("two kinds of checksums", "3", &|block| set_bits(block, incompat, sums)),
        ("s_checksum_type", "3", &|block| block[0x50] = 1),
        ("s_maxlen", "3", &|block| block[0x10..0x14].copy_from_slice(&9999u32.to_be_bytes())),
    ];
    for (why, version, edit) in cases {
        let image = format("64bit,metadata_csum,^orphan_file");
        let wrote = format!("jo -c -v {version}\njw -b 5000-5007 {from}\njc\n");
        debugfs(image.path(), &wrote);
        edit_journal(image.path(), edit);
        let device = load(image.path());
        let refused = open(&device).err().unwrap_or_else(|| panic!("{why}: opened"));
        assert!(refused.to_string().contains(why), "{why}: {refused}");
        let before = std::fs::read(image.path()).expect("readable");
        let after = std::fs::read(common::save(&device).path()).expect("readable");
        assert!(before == after, "{why}: written to");
        let (code, said) = e2fsck("-fn", image.path());
        assert_ne!(code, Some(0), "{why}: e2fsck takes it: {said}");
    }
}

/// One read of the journal fails, or of what leads to it: the image is not opened, and nothing of a
/// log is lost; where reads are good again it is replayed.
#[test]
fn a_log_that_cannot_be_read_is_kept() {
    if !common::have_tools() {
        return;
    }
    let source = content(20);
    let image = format("64bit,metadata_csum,^orphan_file");
    let from = source.path().display();
    debugfs(image.path(), &format!("jo -c -v 3\njw -b 5000-5019 {from}\njc\n"));
    let bytes = std::fs::read(image.path()).expect("readable");
    let open_with = |fault: Option<Fault>| {
        let options = SimOptions { fault, record: true, ..SimOptions::default() };
        let disk = SimDisk::new(Image::new(bytes.clone()), options);
        let opened = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &Options::default());
        (disk, opened)
    };
    let (mut refused, mut nth) = (0, 0);
    loop {
        let (disk, opened) = open_with(Some(Fault::eio(FaultOn::Read, nth)));
        match opened {
            Err(Error::Device(_)) => refused += 1,
            Err(why) => panic!("read {nth}: {why}"),
            // Behind what opening reads, or in what it can do without.
            Ok(fs) => {
                assert_eq!(fs.recovered.transactions, 1, "read {nth}");
                if nth > 60 {
                    break;
                }
            }
        }
        let left = disk.image().rebased();
        let fs = Ext4::open(
            SimDisk::new(left, SimOptions::default()),
            Arc::new(TestClock::default()),
            &Options::default(),
        );
        let fs = fs.unwrap_or_else(|why| panic!("after read {nth} failed: {why}"));
        fs.close().expect("closes");
        nth += 1;
    }
    assert!(refused > 20, "{refused} of {nth}");
}

/// An image that may not be written, or a medium without durable writes: what is in the log cannot
/// be brought home, so the image is refused by name, and stays as it is.
#[test]
fn a_log_that_cannot_be_brought_home_is_kept() {
    if !common::have_tools() {
        return;
    }
    let source = content(8);
    let image = format("64bit,metadata_csum,^orphan_file");
    let from = source.path().display();
    debugfs(image.path(), &format!("jo -c -v 3\njw -b 5000-5007 {from}\njc\n"));
    let bytes = std::fs::read(image.path()).expect("readable");
    let read_only = Options { read_only: Some("you are asked to"), ..Options::default() };
    let device = load(image.path());
    let opened = Ext4::open(device.clone(), Arc::new(TestClock::default()), &read_only);
    let why = opened.err().expect("its log is not empty").to_string();
    assert!(why.contains("journal must be replayed first"), "{why}");
    assert!(std::fs::read(common::save(&device).path()).expect("readable") == bytes);
    for on in [FaultOn::Write, FaultOn::Flush] {
        let error = DeviceError::Unsupported;
        let fault = Some(Fault { on, nth: 0, error, lasting: true });
        let disk =
            SimDisk::new(Image::new(bytes.clone()), SimOptions { fault, ..SimOptions::default() });
        let opened = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &Options::default());
        assert!(matches!(opened.err(), Some(Error::Device(DeviceError::Unsupported))), "{on:?}");
        let left = SimDisk::new(disk.image().rebased(), SimOptions::default());
        let fs = Ext4::open(left, Arc::new(TestClock::default()), &Options::default());
        assert_eq!(fs.expect("replayed").recovered.transactions, 1, "{on:?}");
    }
}

/// Whatever checksums a journal had before us: e2fsck takes it, also in the middle of our use, and
/// finds in the log what was synced.
#[test]
fn a_journal_of_any_form_is_one_that_others_can_replay() {
    if !common::have_tools() {
        return;
    }
    for kind in FORMS {
        let image = form(kind);
        let (code, said) = e2fsck("-fn", image.path());
        assert_eq!(code, Some(0), "{kind}: {said}");
        let device = load(image.path());
        let fs = open(&device).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let kept = keep(&fs, "kept");
        let cut = common::save(&device);
        fs.close().expect("closes");
        let (code, said) = e2fsck("-fy", cut.path());
        assert!(code.is_some_and(|code| code <= 1), "{kind}: {said}");
        assert!(said.contains("recovering journal") && !said.contains("corrupt"), "{kind}: {said}");
        assert!(cat(cut.path(), "/kept") == kept, "{kind}: what was synced is lost");
        assert_eq!(common::complaints(&device), None, "{kind}");
        assert!(cat(common::save(&device).path(), "/kept") == kept, "{kind}");
        drop(fs);
        drop(open(&load(cut.path())).expect("opens again"));
    }
}

/// A log that the superblock does not want replayed is passed over, and none of it ever comes back
/// behind a transaction of ours: whatever length that has, the old one's successor may follow it.
#[test]
fn a_log_that_is_not_wanted_does_not_come_back() {
    if !common::have_tools() {
        return;
    }
    let source = content(20);
    for length in 1..16 {
        let image = format("64bit,metadata_csum,^orphan_file");
        let from = source.path().display();
        let last = 5000 + length - 1;
        debugfs(
            image.path(),
            &format!("jo -c -v 3\njw -b 5000-{last} {from}\njw -b 5500 {from}\njc\n"),
        );
        // The flag goes behind debugfs' back: it would ask for a replay.
        debugfs(image.path(), "feature -needs_recovery\n");
        let device = load(image.path());
        let fs = open(&device).expect("opens");
        assert_eq!(fs.recovered.transactions, 0);
        keep(&fs, "kept");
        let cut = common::save(&device);
        for judge in ["ours", "e2fsck"] {
            let seen = match judge {
                "ours" => {
                    let device = load(cut.path());
                    open(&device).expect("opens").close().expect("closes");
                    common::save(&device)
                }
                _ => {
                    let copy = NamedTempFile::new().expect("temporary file");
                    std::fs::copy(cut.path(), copy.path()).expect("copied");
                    let (code, said) = e2fsck("-fy", copy.path());
                    assert!(code.is_some_and(|code| code <= 1), "{length}: {said}");
                    copy
                }
            };
            let old = [blocks(seen.path(), 5000, 1), blocks(seen.path(), 5500, 1)].concat();
            assert!(old.iter().all(|byte| *byte == 0), "{length}: {judge} replays the old log");
        }
    }
}

/// Makes inode `ino` a file with a map of blocks that leads to one block again and again.
fn into_a_circle(image: &Path, ino: u32, size: u64) {
    let said = debugfs(image, "ffb 1\n");
    let free = said.lines().find_map(|line| line.strip_prefix("Free blocks found:"));
    let free: u64 = free.and_then(|rest| rest.trim().parse().ok()).expect("a free block");
    let said = debugfs(image, &format!("bmap <{ino}> 0\n"));
    let first = said.lines().filter_map(|line| line.trim().parse::<u64>().ok()).next_back();
    let first = first.expect("a first block");
    let mut commands = format!("setb {free}\nsif <{ino}> flags 0\nsif <{ino}> size {size}\n");
    for n in 0..12 {
        commands += &format!("sif <{ino}> block[{n}] {}\n", if n == 0 { first } else { free });
    }
    for level in ["IND", "DIND", "TIND"] {
        commands += &format!("sif <{ino}> block[{level}] {free}\n");
    }
    debugfs(image, &commands);
    let bytes: Vec<u8> = (0..BLOCK / 4).flat_map(|_| (free as u32).to_le_bytes()).collect();
    let file = std::fs::File::options().write(true).open(image).expect("writable");
    file.write_all_at(&bytes, free * BLOCK as u64).expect("inside");
}

/// Most memory that this process ever had, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Maps of the journal and of the orphan file that name more blocks than there are cost no more
/// than the device is worth.
#[test]
fn maps_larger_than_the_device_are_not_followed() {
    if !common::have_tools() {
        return;
    }
    for (features, ino) in [("^orphan_file", 8), ("orphan_file,^metadata_csum", 12)] {
        let image = format(features);
        into_a_circle(image.path(), ino, 20_000_000 * BLOCK as u64);
        // Either is right: what the journal's superblock speaks of is there.
        match open(&load(image.path())) {
            Ok(fs) => drop(fs.close()),
            Err(error) => assert!(matches!(error, Error::Corrupt(_)), "{ino}: {error}"),
        }
        let peak = memory_peak_kib();
        assert!(peak < MEMORY_KIB_MAX, "{ino}: {peak} KiB");
    }
}
