//! Extent trees beside the kernel's own, of the same writes.

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use polylane_base::rng::Rng;
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{FileSystem, Kind};

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
        let file = fs.create(root, b"file", &node(Kind::File, 0o600)).expect("room").node.ino;
        for block in order {
            fs.write(file, block * block_bytes, &mut &[7; 10][..]).expect("room");
        }
        nodes(fs.getattr(file).expect("a state").blocks, block_bytes, order)
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
