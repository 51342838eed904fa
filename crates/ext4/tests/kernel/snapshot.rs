//! All that can be seen of a tree, through our file system and through the kernel.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use polylane_base::Ino;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind};

/// Bytes hashed at a time.
const PIECE: usize = 1 << 20;

/// What an entry is.
#[derive(PartialEq, Eq, Debug, Clone)]
pub struct Entry {
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    rdev: u64,
    size: u64,
    blocks: u64,
    times: [(i64, u32); 2],
    /// The target of a link, the hash of a file's bytes.
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// By path.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// A tree that is compared with another without what fast commits do not keep.
pub trait WithoutTimes {
    /// The same with no times of directories.
    fn without_times_of_dirs(self) -> Self;
}

impl WithoutTimes for Tree {
    fn without_times_of_dirs(mut self) -> Tree {
        let dirs = self.values_mut().filter(|entry| entry.mode >> 12 == 4);
        dirs.for_each(|entry| entry.times = [(0, 0); 2]);
        self
    }
}

/// Fails with the first entry that differs.
pub fn assert_same(left: &Tree, right: &Tree) {
    for (path, entry) in left {
        let path_text = String::from_utf8_lossy(path);
        assert_eq!(Some(entry), right.get(path), "{path_text}");
    }
    let more: Vec<_> = right.keys().filter(|path| !left.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?}");
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

/// The bytes of a file of `size` bytes, where `next_data` says that there are any.
fn digest(
    size: u64,
    mut next_data: impl FnMut(u64) -> Option<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> usize,
) -> Vec<u8> {
    let (mut hasher, mut at) = (DefaultHasher::new(), 0);
    let mut piece = vec![0; PIECE];
    while at < size {
        // Holes are not read: only bytes that differ from zero count, with their place.
        let Some(data) = next_data(at) else { break };
        at = data / PIECE as u64 * PIECE as u64;
        let want = PIECE.min((size - at) as usize);
        assert_eq!(read(at, &mut piece[..want]), want);
        for (index, word) in piece[..want].chunks(8).enumerate() {
            if word.iter().any(|byte| *byte != 0) {
                hasher.write_u64(at + index as u64 * 8);
                hasher.write(word);
            }
        }
        at += PIECE as u64;
    }
    hasher.finish().to_le_bytes().to_vec()
}

/// Everything below the root, through our file system.
pub fn of_ours(fs: &dyn FileSystem) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(Vec::new(), fs.root().expect("root").ino)];
    while let Some((path, ino)) = todo.pop() {
        let entry = our_entry(fs, ino);
        if entry.mode >> 12 == 4 {
            let mut found = Vec::new();
            let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
                found.push((entry.name.to_vec(), entry.ino));
                true
            };
            fs.readdir(&OpCtx::service(), ino, 0, &mut each).expect("lists");
            for (name, below) in found {
                assert_eq!(
                    fs.lookup(&OpCtx::service(), ino, &name).map(|attr| attr.ino),
                    Ok(below)
                );
                todo.push((join(&path, &name), below));
            }
        }
        tree.insert(path, entry);
    }
    tree
}

fn our_entry(fs: &dyn FileSystem, ino: Ino) -> Entry {
    let attr = fs.getattr(&OpCtx::service(), ino).expect("has a state");
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(&OpCtx::service(), ino).expect("lists") {
        let value = fs.getxattr(&OpCtx::service(), ino, &name).expect("is there");
        xattrs.insert(name, value);
    }
    let content = match attr.kind {
        Kind::Symlink => fs.readlink(&OpCtx::service(), ino).expect("a target"),
        Kind::File => digest(
            attr.size,
            |at| fs.seek(&OpCtx::service(), ino, at, polylane_vfs::fs::SeekFor::Data).ok(),
            |at, mut into| {
                let len = into.len();
                fs.read(&OpCtx::service(), ino, at, len, &mut into).expect("reads")
            },
        ),
        _ => Vec::new(),
    };
    let dir = attr.kind == Kind::Dir;
    Entry {
        mode: attr.mode(),
        nlink: attr.nlink.into(),
        owner: (attr.uid.0, attr.gid.0),
        rdev: attr.rdev,
        size: if dir { 0 } else { attr.size },
        blocks: attr.blocks,
        times: [attr.mtime, attr.ctime].map(|time| (time.sec, time.nsec)),
        content,
        xattrs,
    }
}

/// Everything below a mount point, through the kernel.
pub fn of_kernel(root: &Path) -> Tree {
    let top = std::fs::File::open(root).expect("opens");
    rustix::fs::syncfs(&top).expect("delayed blocks are counted when they are written");
    let mut tree = Tree::new();
    let mut todo = vec![(Vec::new(), root.to_path_buf())];
    while let Some((path, at)) = todo.pop() {
        let entry = kernel_entry(&at);
        if entry.mode >> 12 == 4 {
            for found in std::fs::read_dir(&at).expect("lists") {
                let found = found.expect("an entry");
                todo.push((join(&path, found.file_name().as_bytes()), found.path()));
            }
        }
        tree.insert(path, entry);
    }
    tree
}

fn kernel_entry(path: &Path) -> Entry {
    let meta = std::fs::symlink_metadata(path).expect("has a state");
    let kind = meta.file_type();
    let content = if kind.is_symlink() {
        std::fs::read_link(path).expect("a target").as_os_str().as_bytes().to_vec()
    } else if kind.is_file() {
        let file = std::fs::File::open(path).expect("opens");
        digest(
            meta.len(),
            |at| rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)).ok(),
            |at, into| {
                std::os::unix::fs::FileExt::read_exact_at(&file, into, at).expect("reads");
                into.len()
            },
        )
    } else {
        Vec::new()
    };
    let device = kind.is_char_device() || kind.is_block_device();
    Entry {
        mode: meta.mode(),
        nlink: meta.nlink(),
        owner: (meta.uid(), meta.gid()),
        rdev: if device { meta.rdev() } else { 0 },
        size: if kind.is_dir() { 0 } else { meta.len() },
        blocks: meta.blocks(),
        times: [(meta.mtime(), meta.mtime_nsec() as u32), (meta.ctime(), meta.ctime_nsec() as u32)],
        content,
        xattrs: kernel_xattrs(path),
    }
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let count = rustix::fs::llistxattr(path, &mut names[..]).expect("lists");
    names.truncate(count);
    let mut xattrs = BTreeMap::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        let count = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("is there");
        value.truncate(count);
        xattrs.insert(name.to_vec(), value);
    }
    xattrs
}
