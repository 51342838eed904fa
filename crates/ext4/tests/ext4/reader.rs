//! A reader that others wrote, the crate ext4-view, walks what we wrote: every name, kind, mode,
//! owner, size, time, target and byte is what we say it is. It checks the checksums of all that it
//! reads. It does not know the checksums that our journals have: what is in a log is for e2fsck
//! and the kernel to judge (`crash`). Nor does it know unwritten extents (it takes their flag for a
//! part of their length): files that have any are compared in all but their bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ext4_view::{Ext4Error, FileType};
use polylane_base::{Ino, TestClock};
use polylane_ext4::Ext4;
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::ops::{Generator, Limits, Op, Step};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Subject, VfsSubject, small_options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{DirEntry, FileSystem, Kind, Piece};

use crate::common;

const SEEDS: std::ops::Range<u64> = 1..4;
const STEPS: usize = 1500;
const CACHE_BYTES: u64 = 64 * 4096;
/// Open files that generated steps use.
const SLOTS: u8 = 4;

/// What both tell of an entry.
#[derive(PartialEq, Eq, Debug)]
struct Entry {
    kind: Kind,
    perm: u32,
    owner: (u32, u32),
    /// 0 for directories.
    size: u64,
    modified: (i64, u32),
    /// A file's bytes, a link's target; nothing of a file with unwritten extents.
    content: Vec<u8>,
}

impl Entry {
    /// A file whose bytes are not told.
    fn is_silent(&self) -> bool {
        self.kind == Kind::File && self.content.is_empty() && self.size > 0
    }
}

/// By path.
type Tree = BTreeMap<Vec<u8>, Entry>;

fn assert_same(ours: &Tree, theirs: &Tree, what: &str) {
    for (path, entry) in ours {
        let found = theirs.get(path);
        let text = String::from_utf8_lossy(path);
        assert!(found == Some(entry), "{what}: {text}: {}", brief(entry, found));
    }
    let more: Vec<_> = theirs.keys().filter(|path| !ours.contains_key(*path)).collect();
    assert!(more.is_empty(), "{what}: {more:?}");
}

/// Two entries without their bytes, but for the place of the first that differ.
fn brief(ours: &Entry, theirs: Option<&Entry>) -> String {
    let line = |entry: &Entry| {
        let Entry { kind, perm, owner, size, modified, content } = entry;
        let len = content.len();
        format!("{kind:?} {perm:o} {owner:?} {size} {modified:?} and {len} bytes")
    };
    let bytes = theirs.map_or(&[][..], |entry| &entry.content);
    let at = ours.content.iter().zip(bytes).position(|(ours, theirs)| ours != theirs);
    format!("{} and {}, at {at:?}", line(ours), theirs.map_or("nothing".into(), line))
}

fn ours(fs: &Ext4) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(Vec::new(), fs.root().expect("root").ino)];
    while let Some((path, ino)) = todo.pop() {
        let entry = our_entry(fs, ino);
        if entry.kind == Kind::Dir {
            let mut each = |found: DirEntry<'_>| {
                todo.push(([&path, found.name].join(&b'/'), found.ino));
                true
            };
            fs.readdir(&OpCtx::service(), ino, 0, &mut each).expect("lists");
        }
        tree.insert(path, entry);
    }
    tree
}

fn our_entry(fs: &Ext4, ino: Ino) -> Entry {
    let attr = fs.getattr(&OpCtx::service(), ino).expect("a state");
    let content = match attr.kind {
        Kind::Symlink => fs.readlink(&OpCtx::service(), ino).expect("a target"),
        Kind::File if has_unwritten(fs, ino) => Vec::new(),
        Kind::File => {
            let mut bytes = vec![0xee; attr.size as usize];
            let len = bytes.len();
            assert_eq!(fs.read(&OpCtx::service(), ino, 0, len, &mut &mut bytes[..]), Ok(len));
            bytes
        }
        _ => Vec::new(),
    };
    Entry {
        kind: attr.kind,
        perm: attr.perm,
        owner: (attr.uid.0, attr.gid.0),
        size: if attr.kind == Kind::Dir { 0 } else { attr.size },
        modified: (attr.mtime.sec, attr.mtime.nsec),
        content,
    }
}

fn has_unwritten(fs: &Ext4, ino: Ino) -> bool {
    let mut found = false;
    let mut each = |piece: Piece| {
        found |= piece.unwritten;
        true
    };
    fs.pieces(&OpCtx::service(), ino, 0, u64::MAX, &mut each).expect("pieces");
    found
}

/// What ext4-view sees in the image in this file, where we see `ours`.
fn theirs(image: &Path, ours: &Tree) -> Result<Tree, Ext4Error> {
    let silent = |path: &Vec<u8>| ours.get(path).is_some_and(Entry::is_silent);
    let fs = ext4_view::Ext4::load(Box::new(std::fs::read(image).expect("readable")))?;
    let mut tree = Tree::from([(Vec::new(), their_entry(&fs, b"/", false)?)]);
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        let at = if dir.is_empty() { b"/".to_vec() } else { dir.clone() };
        for found in fs.read_dir(&at[..])? {
            let found = found?;
            let name = found.file_name();
            if matches!(name.as_ref(), b"." | b"..") {
                continue;
            }
            let path = [&dir[..], name.as_ref()].join(&b'/');
            let entry = their_entry(&fs, &path, silent(&path))?;
            assert_eq!(found.file_type().map(kind)?, entry.kind, "a name and its inode");
            if entry.kind == Kind::Dir {
                todo.push(path.clone());
            }
            tree.insert(path, entry);
        }
    }
    Ok(tree)
}

fn their_entry(fs: &ext4_view::Ext4, path: &[u8], silent: bool) -> Result<Entry, Ext4Error> {
    let meta = fs.symlink_metadata(path)?;
    let content = match meta.file_type() {
        FileType::Regular if !silent => fs.read(path)?,
        FileType::Symlink => fs.read_link(path)?.as_ref().to_vec(),
        _ => Vec::new(),
    };
    Ok(Entry {
        kind: kind(meta.file_type()),
        perm: meta.mode().into(),
        owner: (meta.uid(), meta.gid()),
        size: if meta.is_dir() { 0 } else { meta.len() },
        modified: (meta.modified().seconds(), meta.modified().nanoseconds()),
        content,
    })
}

fn kind(of: FileType) -> Kind {
    match of {
        FileType::BlockDevice => Kind::Block,
        FileType::CharacterDevice => Kind::Char,
        FileType::Directory => Kind::Dir,
        FileType::Fifo => Kind::Fifo,
        FileType::Regular => Kind::File,
        FileType::Socket => Kind::Socket,
        FileType::Symlink => Kind::Symlink,
    }
}

/// A directory of two levels of names, and a file whose map has two.
fn furnish(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let new = |kind| polylane_testkit::fs_suite::node(kind, 0o750);
    let many = fs.create(&OpCtx::service(), root, b"many", &new(Kind::Dir)).expect("room").node.ino;
    for number in 0..1500 {
        let name = format!("name-{number}-{}", "n".repeat(number % 90));
        let made = fs
            .create(&OpCtx::service(), many, name.as_bytes(), &new(Kind::File))
            .expect("room")
            .node;
        fs.forget(made.ino);
    }
    let file =
        fs.create(&OpCtx::service(), root, b"pieces", &new(Kind::File)).expect("room").node.ino;
    for piece in (0..1000u64).step_by(2) {
        fs.write(&OpCtx::service(), file, piece * 4096 + piece, &mut &[piece as u8; 900][..])
            .expect("room");
    }
}

/// Random steps beside the reference, through the VFS and its page cache; all of it is written.
fn work(fs: &Arc<Ext4>, seed: u64, limits: Limits) {
    let mut reference = Reference::new(Arc::new(TestClock::default()));
    let options = small_options(Arc::new(TestClock::default()), CACHE_BYTES);
    let mut subject = VfsSubject::new(fs.clone(), options);
    let mut generator = Generator::new(seed, limits);
    for number in 0..STEPS {
        let step = generator.step();
        let (expected, got) = (reference.apply(&step), subject.apply(&step));
        // Where holes are is a matter of the image's blocks.
        let inexact = matches!(step.op, Op::Seek { .. });
        assert!(inexact || got == expected, "seed {seed}, step {number} {step:?}: {got:?}");
    }
    for slot in 0..SLOTS {
        let close = Step { who: 0, op: Op::Close { slot } };
        assert_eq!(subject.apply(&close), reference.apply(&close));
    }
    let exact = Exact { holes: false, ..Exact::ALL };
    let same = compare_trees(exact, &mut reference, &mut subject);
    assert_eq!(same, Ok(()), "seed {seed}");
}

/// Images as a lane has them, as an upstream mke2fs makes them, with small blocks and groups,
/// without any checksum, with the older ones, and with block maps.
const IMAGES: [&[&str]; 6] = [
    common::LANE,
    &["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
    &["-t", "ext4", "-b", "1024", "-g", "4096"],
    &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^64bit,^flex_bg,^dir_index"],
    &["-t", "ext4", "-b", "2048", "-g", "2048", "-O", "^metadata_csum,uninit_bg"],
    &["-t", "ext3", "-b", "1024"],
];

/// Whether it reads the image as we do; if not because it lacks a feature, says which.
fn reads(image: &Path, expected: &Tree, what: &str) -> bool {
    match theirs(image, expected) {
        Ok(found) => assert_same(expected, &found, what),
        Err(Ext4Error::Incompatible(why)) => {
            eprintln!("skipped: {what}: {why}");
            return false;
        }
        Err(error) => panic!("{what}: {error}"),
    }
    true
}

#[test]
fn another_reader_sees_what_we_wrote() {
    if !common::have_tools() {
        return;
    }
    let mut read = 0;
    for args in IMAGES {
        let image = common::image(48, args);
        for seed in SEEDS {
            let device = common::load(&image);
            let fs = common::open(&device);
            let gone = fs
                .rmdir(&OpCtx::service(), fs.root().expect("root").ino, b"lost+found")
                .expect("empty");
            fs.forget(gone.node.ino);
            // Block maps know no blocks that were not written.
            let no_fallocate = args.contains(&"ext3");
            work(&fs, seed, Limits { no_fallocate, ..Limits::default() });
            furnish(&fs);
            let expected = ours(&fs);
            fs.close().expect("closes");
            let what = format!("seed {seed}, {args:?}");
            read += u32::from(reads(common::save(&device).path(), &expected, &what));
            let silent = expected.values().filter(|entry| entry.is_silent()).count();
            assert!(expected.len() > 1500 && silent < 20, "{what}: {silent}");
            assert_eq!(common::complaints(&device), None, "{what}");
        }
    }
    assert!(read > 0, "none of our images");
}
