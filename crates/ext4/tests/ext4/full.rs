//! No room at every allocation in turn: with so many blocks or inodes left and no more, each
//! operation is done or says `ENOSPC`, nothing is half done, and what is freed can be used again.

use polylane_base::{Errno, Ino, Result};
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, RenameMode, SetAttr, XattrMode};

use crate::common;

/// Small, so that it is full soon: 4 MiB of journal, 2 % of the rest for names alone.
const SMALL: &[&str] = &["-J", "size=4", "-N", "256"];
const MIB: u64 = 16;

/// A target that takes a block.
const LONG: &[u8] = &[b'l'; 500];

fn make(fs: &Ext4, dir: Ino, name: &str, kind: Kind) -> Result<Ino> {
    let mut new = node(kind, 0o755);
    if kind == Kind::Symlink {
        new.target = LONG;
    }
    Ok(fs.create(&OpCtx::service(), dir, name.as_bytes(), &new)?.node.ino)
}

fn remove(fs: &Ext4, dir: Ino, name: &str) {
    if let Ok(gone) = fs.unlink(&OpCtx::service(), dir, name.as_bytes()) {
        fs.forget(gone.node.ino);
    }
}

/// Something of everything that allocates; what was refused, by its number.
fn work(fs: &Ext4, prefix: &str) -> Vec<usize> {
    let root = fs.root().expect("root").ino;
    let name = |part: &str| format!("{prefix}{part}");
    let mut refused = Vec::new();
    let mut number = 0;
    let mut note = |done: Result<()>| {
        match done {
            Ok(()) => {}
            Err(Errno::ENOSPC) => refused.push(number),
            Err(other) => panic!("{prefix}, operation {number}: {other}"),
        }
        number += 1;
    };
    let dir = make(fs, root, &name("dir"), Kind::Dir);
    note(dir.map(drop));
    let dir = dir.unwrap_or(root);
    for entry in 0..40 {
        let long = format!("{prefix}{entry}{}", "n".repeat(200));
        note(make(fs, dir, &long, Kind::Fifo).map(drop));
    }
    note(make(fs, dir, &name("link"), Kind::Symlink).map(drop));
    let file = make(fs, dir, &name("file"), Kind::File);
    note(file.map(drop));
    let Ok(file) = file else { return refused };
    for at in [0, 300_000, 100_000] {
        note(fs.write(&OpCtx::service(), file, at, &mut &[1; 30_000][..]).map(drop));
    }
    // Every other block: the extents leave the inode.
    for block in 0..12u64 {
        note(
            fs.write(&OpCtx::service(), file, (200 + block * 2) * 4096, &mut &[2; 10][..])
                .map(drop),
        );
    }
    note(fs.setxattr(&OpCtx::service(), file, b"user.big", &[3; 3000], XattrMode::Any).map(drop));
    let keep_size = true;
    note(
        fs.fallocate(&OpCtx::service(), file, Fallocate::Allocate { keep_size }, 2 << 20, 60_000)
            .map(drop),
    );
    note(fs.fallocate(&OpCtx::service(), file, Fallocate::PunchHole, 4096, 8192).map(drop));
    // Ranges behind the end are refused, and it may be there.
    if fs.getattr(&OpCtx::service(), file).expect("a state").size > 16384 {
        note(fs.fallocate(&OpCtx::service(), file, Fallocate::InsertRange, 4096, 4096).map(drop));
        note(fs.fallocate(&OpCtx::service(), file, Fallocate::CollapseRange, 8192, 4096).map(drop));
    }
    note(fs.link(&OpCtx::service(), file, root, name("second").as_bytes()).map(drop));
    let (from, to) = (name("second"), name("third"));
    let mode = RenameMode::NoReplace;
    if !is_missing(fs, root, &from) {
        note(
            fs.rename(&OpCtx::service(), root, from.as_bytes(), dir, to.as_bytes(), mode).map(drop),
        );
    }
    note(
        fs.setattr(&OpCtx::service(), file, &SetAttr { size: Some(5000), ..SetAttr::default() })
            .map(drop),
    );
    refused
}

/// Whether `name` was not made.
fn is_missing(fs: &Ext4, dir: Ino, name: &str) -> bool {
    fs.lookup(&OpCtx::service(), dir, name.as_bytes()).is_err()
}

/// Takes every block, those for names too; the names of what holds one each.
fn fill(fs: &Ext4) -> Vec<String> {
    let root = fs.root().expect("root").ino;
    let file = make(fs, root, "filler", Kind::File).expect("room");
    let (mut at, mut piece) = (0, 1 << 20);
    while piece >= 4096 {
        let mode = Fallocate::Allocate { keep_size: false };
        match fs.fallocate(&OpCtx::service(), file, mode, at, piece) {
            Ok(_) => at += piece,
            Err(_) => piece /= 2,
        }
    }
    let names = (0..).map(|number| format!("filler-{number}"));
    names.take_while(|name| make(fs, root, name, Kind::Symlink).is_ok()).collect()
}

/// Runs the work with `left` blocks, and again when there is room. Whether something was refused.
fn with_blocks_left(base: &[u8], left: usize) -> bool {
    let device = common::load(base);
    let fs = common::open(&device);
    let root = fs.root().expect("root").ino;
    let fillers = fill(&fs);
    assert!(fillers.len() > 20, "{} fillers", fillers.len());
    fillers.iter().take(left).for_each(|name| remove(&fs, root, name));
    fs.sync(&OpCtx::service()).expect("syncs");
    let refused = work(&fs, "full-");
    fs.sync(&OpCtx::service()).expect("a full file system syncs");
    fillers.iter().for_each(|name| remove(&fs, root, name));
    remove(&fs, root, "filler");
    assert_eq!(work(&fs, "free-"), [0; 0], "with room again, after {left} blocks");
    assert_eq!(fs.stopped_by(), None);
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None, "after {left} blocks");
    !refused.is_empty()
}

#[test]
fn every_allocation_may_find_no_block() {
    if !common::have_tools() {
        return;
    }
    let base = common::image(MIB, &[common::LANE, SMALL].concat());
    let several = (0..12).chain([16, 24, 40, 60]);
    let refused: Vec<bool> = several.map(|left| with_blocks_left(&base, left)).collect();
    assert!(refused[0], "without a block something is refused");
}

#[test]
fn every_allocation_may_find_no_inode() {
    if !common::have_tools() {
        return;
    }
    let base = common::image(MIB, &[common::LANE, SMALL].concat());
    for left in (0..44).step_by(4) {
        let device = common::load(&base);
        let fs = common::open(&device);
        let root = fs.root().expect("root").ino;
        let free = fs.statfs(&OpCtx::service()).expect("totals").ffree as usize;
        let names: Vec<String> =
            (0..free - left).map(|number| format!("filler-{number}")).collect();
        for name in &names {
            make(&fs, root, name, Kind::Fifo).expect("an inode");
        }
        assert!(!work(&fs, "full-").is_empty(), "with {left} inodes");
        names.iter().for_each(|name| remove(&fs, root, name));
        assert_eq!(work(&fs, "free-"), [0; 0], "with inodes again, after {left}");
        assert_eq!(fs.stopped_by(), None);
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None, "after {left} inodes");
    }
}

/// Where new files have block maps no block is kept back, as with Linux: the last one goes to data,
/// and what takes no block is done then.
#[test]
fn an_ext3_gives_its_last_block_and_keeps_its_names_going() {
    if !common::have_tools() {
        return;
    }
    let args = ["-t", "ext3", "-b", "1024", "-m", "0", "-J", "size=1", "-N", "64"];
    let device = common::load(&common::image(8, &args));
    let fs = common::open(&device);
    let root = fs.root().expect("root").ino;
    let file = make(&fs, root, "data", Kind::File).expect("room");
    let (mut end, piece) = (0, vec![7; 256 << 10]);
    loop {
        match fs.write(&OpCtx::service(), file, end, &mut &piece[..]) {
            Ok(0) | Err(Errno::ENOSPC) => break,
            Ok(count) => end += count as u64,
            Err(other) => panic!("{other}"),
        }
    }
    let totals = fs.statfs(&OpCtx::service()).expect("totals");
    assert_eq!((totals.bfree, totals.bavail), (0, 0));
    assert_eq!(fs.reserve(&OpCtx::service(), file, end, 1024), Err(Errno::ENOSPC));
    make(&fs, root, "name", Kind::File).expect("the directory has room");
    fs.link(&OpCtx::service(), file, root, b"second").expect("the directory has room");
    let mode = RenameMode::Replace;
    fs.rename(&OpCtx::service(), root, b"second", root, b"third", mode)
        .expect("the directory has room");
    fs.setxattr(&OpCtx::service(), file, b"user.small", b"1", XattrMode::Any)
        .expect("the inode has room");
    let outside = fs.setxattr(&OpCtx::service(), file, b"user.large", &[3; 700], XattrMode::Any);
    assert_eq!(outside.map(drop), Err(Errno::ENOSPC));
    assert_eq!(make(&fs, root, "dir", Kind::Dir), Err(Errno::ENOSPC));
    fs.fallocate(&OpCtx::service(), file, Fallocate::PunchHole, 1024, 1024)
        .expect("a hole takes no block");
    fs.fallocate(&OpCtx::service(), file, Fallocate::PunchHole, 400 << 10, 1024)
        .expect("a hole takes no block");
    make(&fs, root, "dir", Kind::Dir).expect("one block is free");
    assert_eq!(
        fs.write(&OpCtx::service(), file, 1024, &mut &[1; 1024][..]),
        Ok(1024),
        "so was the other"
    );
    assert_eq!(
        fs.write(&OpCtx::service(), file, 400 << 10, &mut &[1; 1024][..]),
        Err(Errno::ENOSPC)
    );
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
}
