//! Directories of more than 2 GiB and 4 GiB, for which `large_dir` is there.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use polylane_base::{Errno, Ino};
use polylane_block::Sector;
use polylane_block::wait::Waiter;
use polylane_ext4::Ext4;
use polylane_ext4::format::extent::{Entries, Extent, Index, Node};
use polylane_ext4::format::hash::HashVersion;
use polylane_ext4::format::htree::{self, IndexEntry, Place, RootInfo};
use polylane_ext4::format::superblock::Superblock;
use polylane_ext4::format::{DeviceBlock, FileBlock, dirent};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};

use crate::common::{self, BLOCK, root};

/// The code of a file in an entry.
const FILE: u8 = 1;
/// What mke2fs is told: the tests make blocks of directories themselves, without sums.
const ARGS: &[&str] =
    &["-t", "ext4", "-b", "4096", "-m", "0", "-J", "size=8", "-O", "large_dir,^metadata_csum"];

fn file(fs: &Ext4, name: &str) -> Ino {
    let made = fs.create(&OpCtx::service(), root(fs), name.as_bytes(), &node(Kind::File, 0o644));
    made.expect("room").node.ino
}

fn put(fs: &Ext4, ino: Ino, at: usize, bytes: &[u8]) {
    let put = fs.write(&OpCtx::service(), ino, (at * BLOCK) as u64, &mut &bytes[..]);
    assert_eq!(put, Ok(bytes.len()));
}

fn listed(fs: &Ext4, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut count = 0;
    fs.readdir(&OpCtx::service(), dir, 0, &mut |entry| {
        count += 1;
        names.insert(entry.name.to_vec())
    })
    .expect("lists");
    assert_eq!(names.len(), count, "each once");
    names
}

fn debugfs(image: &Path, writes: bool, commands: &[String]) -> String {
    let mut script = tempfile::NamedTempFile::new().expect("temporary file");
    std::io::Write::write_all(&mut script, commands.join("\n").as_bytes()).expect("written");
    let mut debugfs = Command::new("debugfs");
    debugfs.args(writes.then_some("-w")).arg("-f").arg(script.path()).arg(image);
    let said = debugfs.output().expect("debugfs runs");
    String::from_utf8(said.stdout).expect("text")
}

/// The device blocks of a file, in order.
fn blocks(image: &Path, ino: Ino) -> Vec<u64> {
    let said = debugfs(image, false, &[format!("blocks <{}>", ino.0)]);
    said.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// What makes an inode's map one node that lies in a block of its own.
fn mapped_by(dir: Ino, child: u64) -> Vec<String> {
    let index = Index { first: FileBlock(0), child: DeviceBlock(child) };
    let mut map = [0; 60];
    Node { depth: 1, entries: Entries::Inner(vec![index]) }.encode(&mut map);
    let words = map.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    words.enumerate().map(|(at, word)| format!("sif <{}> block[{at}] {word}", dir.0)).collect()
}

/// A directory without a tree in which names lie on both sides of 2 GiB and of 4 GiB. All other
/// blocks are empty, and the same few on the device again and again: e2fsck would not have it.
#[test]
fn names_past_2_and_4_gib_are_found() {
    if !common::have_tools() {
        return;
    }
    const GIB: u32 = (1 << 30) / BLOCK as u32;
    const PLACES: [u32; 5] = [2 * GIB - 1, 2 * GIB, 4 * GIB - 1, 4 * GIB, 4 * GIB + 15];
    let device = common::make(64, ARGS);
    let fs = common::open(&device);
    let dir = common::create(&fs, root(&fs), "dir", Kind::Dir);
    let [target, few, free, map] = ["target", "few", "free", "map"].map(|name| file(&fs, name));
    let mut empty = vec![0; BLOCK];
    dirent::put_empty(&mut empty, false);
    for (at, place) in PLACES.iter().enumerate() {
        let mut block = empty.clone();
        let name = format!("in {place}");
        dirent::insert(&mut block, false, 0, (target.0 as u32, FILE, name.as_bytes())).unwrap();
        put(&fs, few, at, &block);
    }
    put(&fs, free, 0, &empty.repeat(8192));
    put(&fs, map, 0, &[0; BLOCK]);
    fs.close().expect("closes");
    let image = common::save(&device);
    let [own, few, free, map] = [dir, few, free, map].map(|ino| blocks(image.path(), ino));
    let run = 1 + free.windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count();
    let (mut extents, mut at) = (Vec::new(), 0);
    let mut extend = |count: u32, start: u64| {
        let (first, start) = (FileBlock(at), DeviceBlock(start));
        extents.push(Extent { first, count, start, unwritten: false });
        at += count;
        at
    };
    let mut end = extend(1, own[0]);
    for (place, start) in PLACES.iter().zip(&few) {
        while end < *place {
            end = extend((place - end).min(run as u32), free[0]);
        }
        end = extend(1, *start);
    }
    let mut bytes = vec![0; BLOCK];
    Node { depth: 0, entries: Entries::Leaf(extents) }.encode(&mut bytes);
    let writable = File::options().write(true).open(image.path()).expect("writable");
    writable.write_all_at(&bytes, map[0] * BLOCK as u64).expect("inside");
    let size = format!("sif <{}> size {}", dir.0, u64::from(end) * BLOCK as u64);
    debugfs(image.path(), true, &[mapped_by(dir, map[0]), vec![size]].concat());
    let device = common::load(&std::fs::read(image.path()).expect("readable"));
    let fs = common::open(&device);
    let size = fs.getattr(&OpCtx::service(), dir).expect("a state").size;
    assert_eq!(size, (4 << 30) + 16 * BLOCK as u64);
    let mut names: BTreeSet<_> =
        PLACES.iter().map(|place| format!("in {place}").into_bytes()).collect();
    assert_eq!(listed(&fs, dir), names);
    for name in &names {
        assert_eq!(fs.lookup(&OpCtx::service(), dir, name).map(|found| found.ino), Ok(target));
    }
    // New ones go to the end, and those of both sides go.
    for gone in [2 * GIB, 4 * GIB] {
        let name = format!("in {gone}").into_bytes();
        fs.unlink(&OpCtx::service(), dir, &name).expect("there");
        assert_eq!(fs.lookup(&OpCtx::service(), dir, &name).map(drop), Err(Errno::ENOENT));
        let new = format!("for {gone}").into_bytes();
        fs.link(&OpCtx::service(), target, dir, &new).expect("room");
        assert!(names.remove(&name) && names.insert(new));
    }
    fs.close().expect("closes");
    let fs = common::open(&device);
    assert_eq!(listed(&fs, dir), names);
}

/// Names of a directory with a tree, in the order of their hashes: many leaves of one name each,
/// then leaves that have no room.
struct Leaves {
    sparse: Vec<u32>,
    full: Vec<u32>,
    /// Names that belong to the full leaves and are not there.
    more: Vec<u32>,
}

/// Names whose hash is as large lie in full leaves.
const FULL_FROM: u32 = u32::MAX - (1 << 22);
const PER_FULL: usize = 15;

fn long_name(number: u32) -> Vec<u8> {
    format!("{number:08}{}", "n".repeat(247)).into_bytes()
}

impl Leaves {
    fn choose(count: u32, hash: impl Fn(u32) -> u32) -> Leaves {
        let mut sparse: Vec<u32> = (0..count).collect();
        sparse.sort_by_cached_key(|number| hash(*number));
        sparse.dedup_by_key(|number| hash(*number));
        let (mut full, mut more) = (Vec::new(), Vec::new());
        for number in count.. {
            match hash(number) >= FULL_FROM {
                false => {}
                true if full.len() < 20 * PER_FULL => full.push(number),
                true if more.len() < 10 * PER_FULL => more.push(number),
                true => break,
            }
        }
        sparse.retain(|number| hash(*number) < FULL_FROM);
        full.sort_by_cached_key(|number| hash(*number));
        Leaves { sparse, full, more }
    }
}

/// The blocks of a directory with these leaves below two levels of nodes and the root.
fn tree(dir: Ino, target: Ino, leaves: &Leaves, hash: impl Fn(u32) -> u32) -> Vec<Vec<u8>> {
    const PER_NODE: usize = 400;
    let mut blocks = vec![vec![0; BLOCK]];
    htree::put_root(&mut blocks[0], RootInfo { hash_version: 1, levels: 2 }, dir.0 as u32, 2);
    let mut level = Vec::new();
    for numbers in leaves.sparse.chunks(1).chain(leaves.full.chunks(PER_FULL)) {
        let mut block = vec![0; BLOCK];
        dirent::put_empty(&mut block, false);
        for number in numbers {
            let entry = (target.0 as u32 + number % 10, FILE, &long_name(*number)[..]);
            dirent::insert(&mut block, false, 0, entry).unwrap().expect("room");
        }
        let at = FileBlock(blocks.len() as u32);
        level.push(IndexEntry { hash: hash(numbers[0]), block: at });
        blocks.push(block);
    }
    level[0].hash = 0;
    for _ in 0..2 {
        let mut above = Vec::new();
        for entries in level.chunks(PER_NODE) {
            let mut block = vec![0; BLOCK];
            htree::put_node(&mut block);
            htree::put_entries(&mut block, Place::Node, false, entries);
            let at = FileBlock(blocks.len() as u32);
            above.push(IndexEntry { hash: entries[0].hash, block: at });
            blocks.push(block);
        }
        level = above;
    }
    htree::put_entries(&mut blocks[0], Place::Root, false, &level);
    blocks
}

/// What e2fsck makes of an image: its status and words.
fn e2fsck(image: &Path, how: &str) -> (Option<i32>, String) {
    let done = Command::new("e2fsck").arg(how).arg(image).output().expect("e2fsck runs");
    (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
}

#[test]
fn a_directory_below_three_levels_of_nodes_is_used() {
    use_directory(64, 3000);
}

#[test]
#[ignore = "moves some 15 GiB: for the campaign"]
fn a_directory_of_more_than_2_gib_is_used() {
    let size = use_directory(3072, 530_000).expect("e2fsprogs are installed");
    assert!(size > 2 << 30, "{size}");
}

/// A directory with so many leaves and some more: names are found, come, split leaves at its end,
/// and go. Its size.
fn use_directory(mib: u64, leaves: u32) -> Option<u64> {
    if !common::have_tools() {
        return None;
    }
    let device = common::make(mib, ARGS);
    let block = Waiter::new(device.clone()).read(Sector(2), 1024).expect("in range");
    let superblock = Superblock::decode(block[..].try_into().expect("1024 bytes")).expect("one");
    let version = HashVersion::new(superblock.default_hash_version(), false).expect("known");
    assert_eq!(version.on_disk(), 1, "half MD4");
    let hash = |number: u32| version.hash(&long_name(number), superblock.hash_seed()).major;
    let leaves = Leaves::choose(leaves, hash);
    let fs = common::open(&device);
    let dir = file(&fs, "dir");
    let targets: Vec<Ino> = (0..10).map(|nth| file(&fs, &format!("t{nth}"))).collect();
    assert!(targets.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{targets:?}");
    let blocks = tree(dir, targets[0], &leaves, hash);
    for (nth, piece) in blocks.chunks(256).enumerate() {
        put(&fs, dir, nth * 256, &piece.concat());
    }
    let size = (blocks.len() * BLOCK) as u64;
    drop(blocks);
    fs.close().expect("closes");
    let image = common::save(&device);
    drop(device);
    let mut made = vec![format!("sif <{}> mode 040755", dir.0)];
    made.push(format!("sif <{}> flags 0x81000", dir.0));
    debugfs(image.path(), true, &made);
    // Its links, its kind in the root, the targets' links and the group's counts are not right yet.
    let (status, said) = e2fsck(image.path(), "-fy");
    let start = &said[..said.len().min(2000)];
    assert_eq!(status, Some(1), "{start}");
    assert!(!said.contains("HTREE") && !said.contains("hole"), "{start}");
    assert_eq!(e2fsck(image.path(), "-fn").0, Some(0));

    let device = common::load(&std::fs::read(image.path()).expect("readable"));
    drop(image);
    let fs = common::open(&device);
    assert_eq!(fs.getattr(&OpCtx::service(), dir).expect("a state").size, size);
    let all = || leaves.sparse.iter().chain(&leaves.full);
    let mut names: BTreeSet<Vec<u8>> = all().map(|number| long_name(*number)).collect();
    assert!(listed(&fs, dir) == names, "another list");
    for number in all().step_by(1000).chain(&leaves.full) {
        let found = fs.lookup(&OpCtx::service(), dir, &long_name(*number)).map(|found| found.ino);
        assert_eq!(found, Ok(targets[*number as usize % 10]));
    }
    for number in &leaves.more {
        let target = targets[*number as usize % 10];
        fs.link(&OpCtx::service(), target, dir, &long_name(*number)).expect("room");
        names.insert(long_name(*number));
    }
    let grown = fs.getattr(&OpCtx::service(), dir).expect("a state").size;
    assert!(grown >= size + 5 * BLOCK as u64, "{grown} after {size}");
    for number in leaves.full.iter().chain(&leaves.more).chain(&leaves.sparse[..1000]).step_by(2) {
        fs.unlink(&OpCtx::service(), dir, &long_name(*number)).expect("there");
        names.remove(&long_name(*number));
    }
    fs.close().expect("closes");
    let fs = common::open(&device);
    assert!(listed(&fs, dir) == names, "another list");
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
    println!("{} names in {grown} bytes", names.len());
    Some(size)
}
