//! Damaged images.
//!
//! The input is a list of changes to a sound image (made by mke2fs at the start, with a tree of
//! everything in it): `{block: u16, offset: u16, how: u8, value: u32}` each, nine bytes,
//! little-endian; what the last one lacks is 0. `how & 3`: how many bytes of `value` are stored,
//! less one; `how & 4`: where the block is the superblock's it is sealed again with a right
//! checksum.
//!
//! # Oracle
//!
//! - No panic (overflow and debug assertions are on), no run longer than libFuzzer's `-timeout`, no
//!   memory beyond its `-rss_limit_mb`.
//! - An image that cannot be opened is refused with an error that has a name, never with
//!   "stopped": that is for what follows a first error.
//! - A file system that was opened, walked and changed, and closed without an error, opens again,
//!   and then shows the same names.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use polylane_base::{Ino, TestClock};
use polylane_block::Sector;
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_ext4::format::checksum::crc;
use polylane_ext4::{Error, Ext4, Options};
use polylane_sys::buffer::Buffer;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode, SetAttr, XattrMode};

const BLOCK: usize = 4096;
const IMAGE_BYTES: usize = 16 << 20;
/// Names looked at in one walk: damage can make directories point anywhere.
const NAMES_MAX: usize = 600;

/// The fuzzer acts for no user.
const CTX: &OpCtx<'static> = &OpCtx::service();

fn node(kind: Kind) -> NewNode<'static> {
    let target: &[u8] = if kind == Kind::Symlink { &[b't'; 200] } else { b"" };
    NewNode { target, ..NewNode::new(kind, 0o755) }
}

/// Blocks of an image that are not zeros, by their numbers.
type Blocks = BTreeMap<usize, Vec<u8>>;

/// A sound image with a bit of everything.
fn base() -> &'static Blocks {
    static BASE: OnceLock<Blocks> = OnceLock::new();
    BASE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("polylane-fuzz-{}", std::process::id()));
        std::fs::write(&path, vec![0; IMAGE_BYTES]).expect("temporary file");
        let arguments = "-Fq -t ext4 -b 4096 -g 2048 -N 512 -J size=4 -m 0 -O orphan_file";
        let made = Command::new("mke2fs").args(arguments.split(' ')).arg(&path).status();
        assert!(made.expect("mke2fs runs").success());
        let bytes = std::fs::read(&path).expect("readable");
        std::fs::remove_file(&path).expect("removed");
        let device = load(&blocks(&bytes));
        let fs = open(device.clone()).expect("a sound image");
        furnish(&fs).expect("room");
        fs.close().expect("closes");
        blocks(&save(&device))
    })
}

fn blocks(image: &[u8]) -> Blocks {
    let all = image.chunks(BLOCK).enumerate();
    all.filter(|(_, block)| *block != [0; BLOCK]).map(|(n, block)| (n, block.to_vec())).collect()
}

fn load(blocks: &Blocks) -> Arc<RamDevice> {
    let device = Arc::new(RamDevice::new((IMAGE_BYTES / 512) as u64));
    let waiter = Waiter::new(device.clone());
    for (number, block) in blocks {
        let sector = Sector((number * BLOCK / 512) as u64);
        waiter.write(sector, Buffer::copy_of(block), false).expect("in range");
    }
    device
}

fn save(device: &Arc<RamDevice>) -> Vec<u8> {
    let waiter = Waiter::new(device.clone());
    waiter.read(Sector(0), IMAGE_BYTES).expect("in range").to_vec()
}

fn open(device: Arc<RamDevice>) -> polylane_ext4::Result<Ext4> {
    Ext4::open(device, Arc::new(TestClock::default()), &Options::default())
}

fn furnish(fs: &Ext4) -> polylane_base::Result<()> {
    let root = fs.root()?.ino;
    let dir = fs.create(CTX, root, b"dir", &node(Kind::Dir))?.node.ino;
    for number in 0..150 {
        let name = format!("{number:03}{}", "n".repeat(60));
        fs.create(CTX, dir, name.as_bytes(), &node(Kind::File))?;
    }
    let file = fs.create(CTX, root, b"file", &node(Kind::File))?.node.ino;
    for number in 0..200 {
        fs.write(CTX, file, number * 8192, &mut &[7; 4096][..])?;
    }
    fs.setxattr(CTX, file, b"user.big", &[1; 3000], XattrMode::Any)?;
    fs.create(CTX, root, b"link", &node(Kind::Symlink))?;
    fs.link(CTX, file, dir, b"hard")?;
    fs.sync(CTX)
}

/// Applies the input's changes.
fn damage(image: &mut Blocks, input: &[u8]) {
    for given in input.chunks(9).take(32) {
        // A short one goes on with zeros, so that every input but the empty one is a change.
        let mut change = [0; 9];
        change[..given.len()].copy_from_slice(given);
        let word = |at: usize| usize::from(u16::from_le_bytes([change[at], change[at + 1]]));
        let number = word(0) % (IMAGE_BYTES / BLOCK);
        let block = image.entry(number).or_insert_with(|| vec![0; BLOCK]);
        let at = word(2) % (BLOCK - 4);
        let len = usize::from(change[4] & 3) + 1;
        block[at..][..len].copy_from_slice(&change[5..5 + len]);
        if change[4] & 4 != 0 && number == 0 {
            let sum = crc(!0, &block[1024..2044]);
            block[2044..2048].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Every name below the root, as far as it can be read.
fn walk(fs: &Ext4) -> polylane_base::Result<BTreeSet<Vec<u8>>> {
    let (mut todo, mut names) = (vec![(Vec::new(), fs.root()?.ino)], BTreeSet::new());
    while let Some((path, dir)) = todo.pop() {
        let mut found = Vec::new();
        fs.readdir(CTX, dir, 0, &mut |entry| {
            found.push(entry.name.to_vec());
            found.len() < NAMES_MAX
        })?;
        for name in found {
            let attr = fs.lookup(CTX, dir, &name)?;
            let full = [&path[..], b"/", &name].concat();
            look_at(fs, attr.ino, attr.kind)?;
            if attr.kind == Kind::Dir && names.len() + todo.len() < NAMES_MAX {
                todo.push((full.clone(), attr.ino));
            } else {
                fs.forget(attr.ino);
            }
            names.insert(full);
        }
        if !path.is_empty() {
            fs.forget(dir);
        }
    }
    Ok(names)
}

fn look_at(fs: &Ext4, ino: Ino, kind: Kind) -> polylane_base::Result<()> {
    match kind {
        Kind::File => drop(fs.read(CTX, ino, 0, 65_536, &mut &mut vec![0; 65_536][..])?),
        Kind::Symlink => drop(fs.readlink(CTX, ino)?),
        _ => {}
    }
    for name in fs.listxattr(CTX, ino)? {
        fs.getxattr(CTX, ino, &name)?;
    }
    Ok(())
}

/// Changes of every kind; what is refused is refused.
fn work(fs: &Ext4) -> polylane_base::Result<()> {
    let root = fs.root()?.ino;
    if let Ok(made) = fs.create(CTX, root, b"made", &node(Kind::File)) {
        let _ = fs.write(CTX, made.node.ino, 100, &mut &[9; 20_000][..]);
        let _ = fs.fsync(CTX, made.node.ino, false);
        let _ = fs.rename(CTX, root, b"made", root, b"moved", RenameMode::Replace);
        fs.forget(made.node.ino);
    }
    if let Ok(file) = fs.lookup(CTX, root, b"file") {
        let size = SetAttr { size: Some(10_000), ..SetAttr::default() };
        let _ = fs.setattr(CTX, file.ino, &size);
        let _ = fs.removexattr(CTX, file.ino, b"user.big");
        fs.forget(file.ino);
    }
    if let Ok(gone) = fs.unlink(CTX, root, b"link") {
        fs.forget(gone.node.ino);
    }
    fs.sync(CTX)
}

fuzz_target!(|input: &[u8]| {
    let mut image = base().clone();
    damage(&mut image, input);
    let device = load(&image);
    let fs = match open(device.clone()) {
        Ok(fs) => fs,
        Err(error) => {
            assert!(error != Error::Stopped && !error.to_string().is_empty());
            return;
        }
    };
    let whole = walk(&fs).is_ok() && work(&fs).is_ok();
    let names = walk(&fs);
    let closed = fs.close().is_ok() && !fs.is_stopped();
    drop(fs);
    if let (true, true, Ok(names)) = (whole, closed, names) {
        let again = open(device).expect("what was closed in order opens");
        assert_eq!(walk(&again), Ok(names));
    }
});
