//! New file systems: e2fsck finds nothing, resize2fs grows them, programs find them empty.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use polylane_base::TestClock;
use polylane_ext4::format::superblock::fresh::{BLOCK_BYTES, Identity};
use polylane_ext4::make::{NewFs, make};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode};

use crate::common;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn new(bytes: u64) -> NewFs {
    let identity = Identity { uuid: [0x5a; 16], hash_seed: [1, 2, 3, 4], now: 1_800_000_000 };
    NewFs { bytes, identity, owner: (1000, 70_000) }
}

/// A sparse file with a new file system of so many bytes.
fn file(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("file");
    file.as_file().set_len(bytes).expect("sparse");
    for (block, data) in make(&new(bytes)).expect("made") {
        file.as_file().write_all_at(&data, block.0 * u64::from(BLOCK_BYTES)).expect("written");
    }
    file
}

fn run(program: &str, args: &[&str], path: &Path) -> Output {
    let output = Command::new(program).env("LC_ALL", "C").args(args).arg(path).output();
    output.expect("e2fsprogs is installed")
}

fn check(path: &Path, what: &str) {
    let output = run("e2fsck", &["-fn"], path);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{what}: {said}");
}

/// What dumpe2fs says behind `name`.
fn field(path: &Path, name: &str) -> String {
    let output = run("dumpe2fs", &["-h"], path);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name}: {said}")).trim().to_string()
}

#[test]
fn e2fsck_finds_nothing_in_new_file_systems() {
    if !common::have_tools() {
        return;
    }
    let mut sizes = vec![16 * MIB, 20 * MIB + 4096, 100 * MIB, 127 * MIB, 128 * MIB + 4096];
    sizes.extend([130 * MIB, 138 * MIB, 500 * MIB, 511 * MIB, 512 * MIB, GIB, 2 * GIB - 4096]);
    sizes.extend([2 * GIB, 5 * GIB + 12_288, 10 * GIB, 16 * GIB - 4096, 16 * GIB, 20 * GIB]);
    sizes.extend([32 * GIB + 200 * MIB, 33 * GIB, 64 * GIB, 200 * GIB, 1024 * GIB, 5000 * GIB]);
    for bytes in sizes {
        let image = file(bytes);
        let what = format!("{} MiB and {}", bytes / MIB, bytes % MIB);
        check(image.path(), &what);
        let blocks: u64 = field(image.path(), "Block count").parse().expect("a number");
        let lost = bytes / 4096 - blocks;
        assert!(lost < 700, "{what}: {lost} blocks at the end are left out");
        let host = run("du", &["-k"], image.path()).stdout;
        let kib: u64 = String::from_utf8_lossy(&host)
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number");
        let most = 400 + bytes / GIB * 16;
        assert!(kib <= most, "{what}: {kib} KiB on the host, of {most}");
        let features = field(image.path(), "Filesystem features");
        for feature in ["has_journal", "resize_inode", "metadata_csum", "64bit", "flex_bg"] {
            assert!(features.contains(feature), "{what}: {features}");
        }
    }
}

/// As many inodes, and as much room for files.
#[test]
fn a_new_file_system_has_what_mke2fs_gives() {
    if !common::have_tools() {
        return;
    }
    for bytes in [16 * MIB, 100 * MIB, 600 * MIB, 10 * GIB, 20 * GIB, 64 * GIB] {
        let (ours, theirs) = (file(bytes), tempfile::NamedTempFile::new().expect("file"));
        theirs.as_file().set_len(bytes).expect("sparse");
        let args = ["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-E", "nodiscard"];
        assert!(run("mke2fs", &args, theirs.path()).status.success());
        for name in ["Inode count", "Inode size", "Blocks per group", "Flex block group size"] {
            let [ours, theirs] = [&ours, &theirs].map(|image| field(image.path(), name));
            assert_eq!(ours, theirs, "{name} of {} MiB", bytes / MIB);
        }
        let free = |image: &tempfile::NamedTempFile| -> u64 {
            field(image.path(), "Free blocks").parse().expect("a number")
        };
        // A small one has more room to grow in place.
        assert!(free(&ours) + 16 > free(&theirs), "{} of {}", free(&ours), free(&theirs));
    }
}

#[test]
fn resize2fs_grows_a_new_file_system_also_past_the_room_for_its_tables() {
    if !common::have_tools() {
        return;
    }
    for (from, to) in [(100 * MIB, GIB), (GIB, 15 * GIB), (GIB, 300 * GIB), (10 * GIB, 400 * GIB)] {
        let image = file(from);
        image.as_file().set_len(to).expect("sparse");
        let grown = run("resize2fs", &["-f"], image.path());
        assert!(grown.status.success(), "{}", String::from_utf8_lossy(&grown.stderr));
        check(image.path(), &format!("{} MiB grown to {}", from / MIB, to / MIB));
        let blocks: u64 = field(image.path(), "Block count").parse().expect("a number");
        assert_eq!(blocks, to / 4096);
    }
}

/// Files in every group, by us; e2fsck agrees with what we took the unwritten bitmaps for.
#[test]
fn a_new_file_system_is_empty_and_takes_files() {
    if !common::have_tools() {
        return;
    }
    const BYTES: u64 = 300 * MIB;
    let mut image = Image::zeroed(BYTES as usize);
    for (block, data) in make(&new(BYTES)).expect("made") {
        image.write((block.0 * u64::from(BLOCK_BYTES)) as usize, &data);
    }
    let disk = SimDisk::new(image, SimOptions::default());
    let fs = Ext4::open(disk.clone(), Arc::new(TestClock::default()), &Options::default());
    let fs = fs.expect("opens");
    let (ctx, root) = (OpCtx::service(), fs.root().expect("root"));
    assert_eq!((root.uid.0, root.gid.0), (1000, 70_000));
    let mut names = Vec::new();
    let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(&ctx, root.ino, 0, &mut each).expect("lists");
    assert_eq!(names, Vec::<Vec<u8>>::new());
    let content = vec![7; 1 << 20];
    for number in 0..250 {
        let node = NewNode::new(Kind::File, 0o600);
        let name = format!("file {number}");
        let ino = fs.create(&ctx, root.ino, name.as_bytes(), &node).expect("room").node.ino;
        fs.write(&ctx, ino, 0, &mut &content[..]).expect("room");
        fs.forget(ino);
    }
    fs.close().expect("closes");
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("file");
    disk.image().save(&mut file.reopen().expect("again")).expect("written");
    check(file.path(), "250 files");
}

#[test]
fn what_is_too_small_or_too_large_is_refused() {
    assert!(make(&new(0)).is_err());
    assert!(make(&new(1 << 62)).is_err());
}

#[test]
fn pieces_do_not_overlap() {
    for bytes in [16 * MIB, 300 * MIB, 20 * GIB, 200 * GIB] {
        let mut pieces: Vec<_> = make(&new(bytes))
            .expect("made")
            .iter()
            .map(|(block, data)| (block.0, block.0 + data.len() as u64 / 4096))
            .collect();
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|two| two[0].1 <= two[1].0), "{pieces:?}");
        assert!(pieces.last().expect("some").1 <= bytes / 4096);
    }
}
