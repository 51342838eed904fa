//! Extent trees beside the kernel's own, of the same writes; block maps that both change in turns.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use polylane_base::rng::Rng;
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, SetAttr};

use super::{Image, can_mount};

/// Tree nodes of a file that takes so many sectors and has a block for each write.
fn nodes(sectors: u64, block_bytes: u64, order: &[u64]) -> u64 {
    sectors * 512 / block_bytes - order.len() as u64
}

fn kernels(block_bytes: u64, order: &[u64]) -> u64 {
    let image = Image::new(64, &["-t", "ext4", "-b", &block_bytes.to_string()]);
    let mount = image.mount();
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).custom_flags(synced());
    let file = options.open(mount.path().join("file")).expect("made");
    for block in order {
        file.write_all_at(&[7; 10], block * block_bytes).expect("room");
    }
    let meta = file.metadata().expect("a state");
    nodes(std::os::unix::fs::MetadataExt::blocks(&meta), block_bytes, order)
}

/// Each write is there before the next one begins: none waits to be written with others.
fn synced() -> i32 {
    rustix::fs::OFlags::DSYNC.bits().cast_signed()
}

fn ours(block_bytes: u64, order: &[u64]) -> u64 {
    let image = Image::new(64, &["-t", "ext4", "-b", &block_bytes.to_string()]);
    image.ours(|fs| {
        let root = fs.root().expect("root").ino;
        let file = fs
            .create(&OpCtx::service(), root, b"file", &node(Kind::File, 0o600))
            .expect("room")
            .node
            .ino;
        for block in order {
            fs.write(&OpCtx::service(), file, block * block_bytes, &mut &[7; 10][..])
                .expect("room");
        }
        nodes(fs.getattr(&OpCtx::service(), file).expect("a state").blocks, block_bytes, order)
    })
}

fn compare(block_bytes: u64, writes: u64) {
    let mut rng = Rng::new(9);
    let ascending: Vec<u64> = (0..writes).map(|nth| 2 * nth).collect();
    let descending = ascending.iter().rev().copied().collect();
    let mut random = ascending.clone();
    for at in (1..random.len()).rev() {
        random.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let mut strided = ascending;
    strided.sort_by_key(|block| (block / 2 % 31, *block));
    for (name, order) in [("descending", descending), ("random", random), ("strided", strided)] {
        let (ours, kernels) = (ours(block_bytes, &order), kernels(block_bytes, &order));
        let told = format!("{block_bytes} bytes, {name}: {ours} nodes, the kernel {kernels}");
        println!("{told}");
        assert!(kernels > 0 && ours * 10 <= kernels * 13 + 10, "{told}");
    }
}

/// Blocks of 1 KiB, and what is in each that is not a hole.
type Blocks = BTreeMap<u64, u8>;

/// A change of a file with a map, of whole blocks.
enum Change {
    Write(u64, u8),
    Punch(u64, u64),
    Cut(u64),
}

/// Changes around the places where a map of 1 KiB blocks goes from one level to the next.
fn changes(rng: &mut Rng, blocks: &mut Blocks) -> Vec<Change> {
    let mut all = Vec::new();
    for nth in 0..300 {
        let at = *rng.pick(&[12, 12 + 256, 12 + 256 + 65_536, 700]) - 12 + rng.below(40);
        all.push(match rng.below(12) {
            0 => {
                let count = 1 + rng.below(30);
                blocks.retain(|block, _| !(at..at + count).contains(block));
                Change::Punch(at, count)
            }
            1 if nth > 250 => {
                blocks.retain(|block, _| *block < at);
                Change::Cut(at)
            }
            _ => {
                blocks.insert(at, nth as u8 | 1);
                Change::Write(at, nth as u8 | 1)
            }
        });
    }
    all
}

/// A block behind all others keeps the size apart from what is cut.
const LAST: u64 = 70_000;

#[test]
fn block_maps_are_changed_in_turns_with_the_kernel() {
    if !can_mount() {
        return;
    }
    let image = Image::new(64, &["-t", "ext3", "-b", "1024"]);
    let (mut rng, mut blocks) = (Rng::new(4), Blocks::new());
    for _ in 0..4 {
        let todo = changes(&mut rng, &mut blocks);
        let mount = image.mount();
        let path = mount.path().join("file");
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("opens");
        for change in todo {
            match change {
                Change::Write(at, byte) => {
                    file.write_all_at(&[byte; 1024], at << 10).expect("room");
                }
                Change::Punch(at, count) => {
                    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE;
                    let hole = hole | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, hole, at << 10, count << 10).expect("a hole");
                }
                Change::Cut(at) => file.set_len(at << 10).expect("cut"),
            }
        }
        file.set_len(LAST << 10).expect("a size");
        drop((file, mount));
        let todo = changes(&mut rng, &mut blocks);
        image.ours(|fs| {
            let root = fs.root().expect("root").ino;
            let file = fs.lookup(&OpCtx::service(), root, b"file").expect("is there").ino;
            let size = |blocks: u64| SetAttr { size: Some(blocks << 10), ..SetAttr::default() };
            for change in todo {
                match change {
                    Change::Write(at, byte) => {
                        fs.write(&OpCtx::service(), file, at << 10, &mut &[byte; 1024][..])
                            .map(drop)
                            .expect("room");
                    }
                    Change::Punch(at, count) => {
                        let hole = Fallocate::PunchHole;
                        fs.fallocate(&OpCtx::service(), file, hole, at << 10, count << 10)
                            .map(drop)
                            .expect("a hole");
                    }
                    Change::Cut(at) => {
                        fs.setattr(&OpCtx::service(), file, &size(at)).map(drop).expect("cut")
                    }
                }
            }
            fs.setattr(&OpCtx::service(), file, &size(LAST)).expect("a size");
        });
        let mount = image.mount();
        let bytes = std::fs::read(mount.path().join("file")).expect("reads");
        for (at, block) in (0..).zip(bytes.chunks(1024)) {
            let byte = blocks.get(&at).copied().unwrap_or(0);
            assert!(block.iter().all(|found| *found == byte), "block {at}");
        }
    }
}

#[test]
fn trees_are_not_much_larger_than_the_kernels() {
    if can_mount() {
        compare(1024, 350);
    }
}

#[test]
#[ignore = "thousands of synced writes: for the campaign"]
fn large_trees_are_not_much_larger_than_the_kernels() {
    if can_mount() {
        compare(1024, 8000);
        compare(4096, 12_000);
    }
}
