//! Symbolic links, FIFOs, sockets and devices that have several names in a lower, under an upper
//! that is a directory of the host, where they can have no marks.

mod common;

use common::{Fs, Tree, memfs, union};
use polylane_base::rng::Rng;
use polylane_base::{Errno, Ino, Result, Time};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode, SetAttr, SetTime};
use polylane_vfs::hostdir::HostDir;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Files of the lower, and names of each.
const FILES: usize = 5;
const NAMES: usize = 3;
const STEPS: usize = 120;
const SEEDS: std::ops::Range<u64> = 1..25;

fn host(path: &Path) -> Fs {
    let dir = std::fs::File::open(path).expect("opens");
    Arc::new(HostDir::with_descriptors(dir.into(), 64).expect("a directory"))
}

fn new_node(file: usize) -> NewNode<'static> {
    match file {
        0 => NewNode { target: b"some/where", ..NewNode::new(Kind::Symlink, 0o777) },
        1 => NewNode::new(Kind::Fifo, 0o600),
        2 => NewNode::new(Kind::Socket, 0o640),
        3 => NewNode { target: b"else/where", ..NewNode::new(Kind::Symlink, 0o777) },
        _ => NewNode::new(Kind::File, 0o600),
    }
}

/// A lower with all names in the directory `d`, and others in `e`.
fn lower() -> Fs {
    let (low, ctx) = (memfs(), &OpCtx::service());
    let tree = Tree(&*low);
    let dirs = [tree.mkdir("d"), tree.mkdir("e")];
    for file in 0..FILES {
        let name = format!("{file}-0");
        let made = low.create(ctx, dirs[0], name.as_bytes(), &new_node(file)).expect("made");
        for other in 1..NAMES {
            let name = format!("{file}-{other}");
            low.link(ctx, made.node.ino, dirs[other % 2], name.as_bytes()).expect("linked");
        }
    }
    low
}

/// What a program sees of a file.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    kind: Kind,
    nlink: u32,
    mtime: Time,
    target: Vec<u8>,
    /// The first of its names.
    first: String,
}

fn seen(fs: &dyn FileSystem) -> BTreeMap<String, Seen> {
    let tree = Tree(fs);
    let mut firsts: BTreeMap<Ino, String> = BTreeMap::new();
    let mut all = BTreeMap::new();
    for dir in ["d", "e"] {
        for name in tree.names(dir) {
            let path = format!("{dir}/{name}");
            let attr = tree.find(&path).expect("listed");
            let target = match attr.kind {
                Kind::Symlink => fs.readlink(&OpCtx::service(), attr.ino).expect("a link"),
                _ => Vec::new(),
            };
            let first = firsts.entry(attr.ino).or_insert_with(|| path.clone()).clone();
            let (kind, nlink, mtime) = (attr.kind, attr.nlink, attr.mtime);
            all.insert(path, Seen { kind, nlink, mtime, target, first });
        }
    }
    all
}

/// One change of names or times, of any names.
fn change(fs: &dyn FileSystem, rng: &mut Rng, what: u64) -> Result<()> {
    let ctx = &OpCtx::service();
    let tree = Tree(fs);
    let mut end = || {
        let name = format!("{}-{}", rng.below(FILES as u64), rng.below(NAMES as u64));
        (tree.ino(if rng.percent(50) { "d" } else { "e" }), name)
    };
    let ((dir, name), (to_dir, to)) = (end(), end());
    let second = rng.below(1 << 20);
    let (name, to) = (name.as_bytes(), to.as_bytes());
    let found = fs.lookup(ctx, dir, name)?.ino;
    match what {
        0..35 => fs.unlink(ctx, dir, name).map(drop),
        35..55 => fs.rename(ctx, dir, name, to_dir, to, RenameMode::Replace).map(drop),
        55..60 => fs.rename(ctx, dir, name, to_dir, to, RenameMode::Exchange).map(drop),
        60..80 => fs.link(ctx, found, to_dir, to).map(drop),
        _ => {
            let time = SetTime::At(Time { sec: second as i64, nsec: 0 });
            fs.setattr(ctx, found, &SetAttr { mtime: Some(time), ..SetAttr::default() }).map(drop)
        }
    }
}

/// An upper in memory, where every file has its marks, is the reference.
#[test]
fn random_changes_are_as_over_memory() {
    for seed in SEEDS {
        let dir = tempfile::tempdir().expect("tempdir");
        let (low, above) = (lower(), memfs());
        let mut both = [union(&[&low], Some(&above)), union(&[&low], Some(&host(dir.path())))];
        let mut rng = Rng::new(seed);
        for step in 0..STEPS {
            let (what, place) = (rng.below(100), rng.next_u64());
            match what {
                94..98 => {
                    drop(both);
                    both = [union(&[&low], Some(&above)), union(&[&low], Some(&host(dir.path())))];
                }
                98.. => {
                    for fs in &both {
                        fs.solidify().expect("made whole");
                    }
                }
                _ => {
                    let done = both.each_ref().map(|fs| change(&**fs, &mut Rng::new(place), what));
                    assert_eq!(done[1], done[0], "seed {seed}, step {step}, change {what}");
                }
            }
            let [memory, on_host] = both.each_ref().map(|fs| seen(&**fs));
            assert_eq!(on_host, memory, "seed {seed}, step {step}, change {what}");
        }
    }
}

/// One that is copied up has its number for ever, and with its last name everything of it goes.
#[test]
fn numbers_stay_and_nothing_is_left() {
    let dir = tempfile::tempdir().expect("tempdir");
    let low = lower();
    let fs = union(&[&low], Some(&host(dir.path())));
    let tree = Tree(&*fs);
    let number = tree.ino("d/0-0");
    tree.unlink("d/0-2");
    assert_eq!((tree.ino("d/0-0"), tree.ino("e/0-1")), (number, number));
    tree.rename("d/0-0", "d/moved").expect("renames");
    drop(fs);
    let fs = union(&[&low], Some(&host(dir.path())));
    let tree = Tree(&*fs);
    assert_eq!((tree.ino("d/moved"), tree.ino("e/0-1")), (number, number));
    assert_eq!(tree.find("d/moved").map(|attr| attr.nlink), Ok(2));
    let index = dir.path().join("work/polylane/index");
    let entries = || std::fs::read_dir(&index).expect("a directory").count();
    assert_eq!(entries(), 2);
    tree.unlink("d/moved");
    tree.unlink("e/0-1");
    assert_eq!(entries(), 0);
}

/// A kill between a stand-in and its entry leaves nothing that a later copy-up meets.
#[test]
fn a_stand_in_without_an_entry_goes() {
    let dir = tempfile::tempdir().expect("tempdir");
    let low = lower();
    let number = Tree(&*union(&[&low], Some(&host(dir.path())))).ino("d/1-0");
    let index = dir.path().join("work/polylane/index");
    std::fs::write(index.join(format!("{:016x}.marks", number.0)), b"").expect("written");
    let fs = union(&[&low], Some(&host(dir.path())));
    assert_eq!(std::fs::read_dir(&index).expect("a directory").count(), 0);
    Tree(&*fs).unlink("d/1-0");
    assert_eq!(Tree(&*fs).find("d/1-0"), Err(Errno::ENOENT));
    assert_eq!(Tree(&*fs).find("e/1-1").map(|attr| attr.nlink), Ok(2));
}
