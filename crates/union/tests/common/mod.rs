//! Unions and what is done to them, by paths.
#![allow(dead_code, reason = "each test uses its part")]

use polylane_base::{Ino, Result, TestClock};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::sim::{Image, SimDisk};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, DirEntry, FileSystem, Kind, NewNode, RenameMode, SetAttr};
use polylane_vfs::memfs::MemFs;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

pub type Fs = Arc<dyn FileSystem>;

pub fn memfs() -> Fs {
    Arc::new(MemFs::new(1 << 40, 1 << 20, Arc::new(TestClock::default())))
}

/// An ext4 that nothing is on.
pub fn empty_image() -> Option<Image> {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(12 << 20).expect("sparse");
    let args = ["-Fq", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0"];
    let Ok(made) = Command::new("mke2fs").args(args).arg(image.path()).output() else {
        eprintln!("skipped: mke2fs is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let bytes = std::fs::read(image.path()).expect("readable");
    Some(Image::new(bytes))
}

pub fn open(disk: &Arc<SimDisk>) -> Arc<Ext4> {
    let clock = Arc::new(TestClock::default());
    Arc::new(Ext4::open(disk.clone(), clock, &Options::default()).expect("opens"))
}

/// A union over `lowers`, the uppermost first.
pub fn union(lowers: &[&Fs], upper: Option<&Fs>) -> Arc<Union> {
    let lowers = lowers.iter().map(|fs| Layer::new((*fs).clone()).expect("a root")).collect();
    Arc::new(Union::open(lowers, upper.cloned().map(UpperOn::new)).expect("opens"))
}

/// Paths on a file system.
pub struct Tree<'a>(pub &'a dyn FileSystem);

impl Tree<'_> {
    pub fn find(&self, path: &str) -> Result<Attr> {
        let mut found = self.0.root()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            found = self.0.lookup(&OpCtx::service(), found.ino, name.as_bytes())?;
        }
        Ok(found)
    }

    pub fn ino(&self, path: &str) -> Ino {
        self.find(path).unwrap_or_else(|errno| panic!("{path}: {errno}")).ino
    }

    /// The directory and the last name.
    fn end<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.ino(dir), name.as_bytes())
    }

    pub fn mkdir(&self, path: &str) -> Ino {
        let (dir, name) = self.end(path);
        self.0
            .create(&OpCtx::service(), dir, name, &NewNode::new(Kind::Dir, 0o755))
            .expect(path)
            .node
            .ino
    }

    pub fn file(&self, path: &str, bytes: &[u8]) -> Ino {
        let (dir, name) = self.end(path);
        let made = self
            .0
            .create(&OpCtx::service(), dir, name, &NewNode::new(Kind::File, 0o644))
            .expect(path);
        self.write(made.node.ino, 0, bytes);
        made.node.ino
    }

    pub fn device(&self, path: &str) {
        let (dir, name) = self.end(path);
        self.0.create(&OpCtx::service(), dir, name, &NewNode::WHITEOUT).expect(path);
    }

    pub fn write(&self, ino: Ino, at: u64, bytes: &[u8]) {
        assert_eq!(self.0.write(&OpCtx::service(), ino, at, &mut &*bytes), Ok(bytes.len()));
    }

    pub fn read(&self, ino: Ino) -> Vec<u8> {
        let size = self.0.getattr(&OpCtx::service(), ino).expect("a file").size as usize;
        let mut bytes = vec![0xee; size + 10];
        let count = self
            .0
            .read(&OpCtx::service(), ino, 0, size + 10, &mut bytes.as_mut_slice())
            .expect("reads");
        bytes.truncate(count);
        bytes
    }

    pub fn link(&self, from: &str, to: &str) {
        let (dir, name) = self.end(to);
        self.0.link(&OpCtx::service(), self.ino(from), dir, name).expect(to);
    }

    pub fn unlink(&self, path: &str) {
        let (dir, name) = self.end(path);
        self.0.unlink(&OpCtx::service(), dir, name).expect(path);
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.end(path);
        self.0.rmdir(&OpCtx::service(), dir, name).map(|_| ())
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.end(from), self.end(to));
        self.0
            .rename(&OpCtx::service(), from_dir, from, to_dir, to, RenameMode::Replace)
            .map(|_| ())
    }

    pub fn chmod(&self, ino: Ino, perm: u32) {
        self.0
            .setattr(&OpCtx::service(), ino, &SetAttr { perm: Some(perm), ..SetAttr::default() })
            .expect("chmod");
    }

    pub fn truncate(&self, ino: Ino, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.0.setattr(&OpCtx::service(), ino, &set).expect("truncates");
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut each = |entry: DirEntry<'_>| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        };
        self.0.readdir(&OpCtx::service(), self.ino(path), 0, &mut each).expect(path);
        names.sort();
        names
    }

    /// Every path, with what is there.
    pub fn whole(&self) -> BTreeMap<String, (Kind, u32, Vec<u8>)> {
        let mut all = BTreeMap::new();
        let mut left = vec![String::new()];
        while let Some(dir) = left.pop() {
            for name in self.names(&dir) {
                let path = format!("{dir}/{name}");
                let attr = self.find(&path).expect("listed");
                let bytes = match attr.kind {
                    Kind::File => self.read(attr.ino),
                    Kind::Symlink => self.0.readlink(&OpCtx::service(), attr.ino).expect("a link"),
                    _ => Vec::new(),
                };
                if attr.kind == Kind::Dir {
                    left.push(path.clone());
                }
                all.insert(path, (attr.kind, attr.perm, bytes));
            }
        }
        all
    }
}

/// Bytes of which no two blocks are alike.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add((at % 251) as u8).wrapping_add((at >> 12) as u8)).collect()
}
