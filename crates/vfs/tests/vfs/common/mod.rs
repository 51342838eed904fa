//! What the tests of the VFS share: lanes on memfs, credentials, short forms of calls.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod forgetful;

use std::sync::Arc;
use std::time::Duration;

use polylane_base::{Errno, Gid, TestClock, Uid};
use polylane_testkit::fault::Faulty;
use polylane_vfs::fs::{Character, FileSystem};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Create, Cred, Kind, Node, OpCtx, OpenFile, Options, PathError, Vfs};

pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_CREAT: i32 = 0o100;
pub const O_EXCL: i32 = 0o200;
pub const O_TRUNC: i32 = 0o1000;
pub const O_APPEND: i32 = 0o2000;
pub const O_DIRECTORY: i32 = 0o200_000;
pub const O_NOFOLLOW: i32 = 0o400_000;
pub const O_NOATIME: i32 = 0o1_000_000;
pub const O_PATH: i32 = 0o10_000_000;
pub const O_TMPFILE: i32 = 0o20_000_000 | O_DIRECTORY;

pub const PAGE: usize = 4096;

/// A lane whose libservice can be watched and made to fail.
pub struct Lane {
    pub vfs: Arc<Vfs>,
    pub fs: Arc<Faulty>,
    pub root: Node,
}

pub fn options() -> Options {
    Options {
        clock: Arc::new(TestClock::default()),
        cache_bytes_limit: 1 << 20,
        dirty_bytes_limit: 256 << 10,
        // Tests that want the flusher set an interval of their own.
        flush_interval: Duration::from_secs(3600),
        mount_path: b"/lane".to_vec(),
        covered: vec![b".polylane".to_vec(), b"dev/pts".to_vec()],
    }
}

pub fn lane_with(options: Options, change: impl FnOnce(&mut Character)) -> Lane {
    let memfs = Arc::new(MemFs::new(1 << 30, 1 << 20, options.clock.clone()));
    let mut character = memfs.character();
    change(&mut character);
    let fs = Faulty::with_character(memfs, character);
    let vfs = Vfs::new(fs.clone(), options).unwrap();
    let root = vfs.root();
    Lane { vfs, fs, root }
}

/// A lane on memfs.
pub fn lane() -> Lane {
    lane_with(options(), |_| ())
}

/// A lane on memfs behind the page cache.
pub fn cached() -> Lane {
    lane_with(options(), |character| character.cache_data = true)
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    let groups = groups.iter().map(|gid| Gid(*gid)).collect();
    Cred { uid: Uid(uid), gid: Gid(gid), groups, ..Cred::root() }
}

/// The errno of a failed path operation.
pub fn errno<T>(result: Result<T, PathError>) -> Option<Errno> {
    match result {
        Err(PathError::Errno(errno)) => Some(errno),
        _ => None,
    }
}

pub fn leaves<T>(result: Result<T, PathError>) -> bool {
    matches!(result, Err(PathError::Leaves))
}

impl Lane {
    pub fn make(&self, ctx: &OpCtx<'_>, path: &str, kind: Kind, perm: u32, target: &str) -> Node {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        let new = Create { kind, perm, umask: 0, rdev: 0, target: target.as_bytes() };
        self.vfs.create(ctx, &self.get(dir).unwrap(), name.as_bytes(), &new).unwrap()
    }

    pub fn dir(&self, path: &str) -> Node {
        self.make(&OpCtx::service(), path, Kind::Dir, 0o755, "")
    }

    pub fn link(&self, path: &str, target: &str) -> Node {
        self.make(&OpCtx::service(), path, Kind::Symlink, 0, target)
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<Arc<OpenFile>, PathError> {
        self.vfs.open_path(&OpCtx::service(), &self.root, path.as_bytes(), flags, 0o644, 0)
    }

    /// Creates or replaces a file with these bytes.
    pub fn file(&self, path: &str, bytes: &[u8]) -> Arc<OpenFile> {
        let file = self.open(path, O_RDWR | O_CREAT | O_TRUNC).unwrap();
        write(&file, 0, bytes);
        file
    }

    pub fn get(&self, path: &str) -> Result<Node, PathError> {
        self.vfs.resolve(&OpCtx::service(), &self.root, path.as_bytes(), false)
    }

    pub fn unlink(&self, path: &str) -> Result<(), Errno> {
        let last = self.vfs.resolve_parent(&OpCtx::service(), &self.root, path.as_bytes()).unwrap();
        self.vfs.unlink(&OpCtx::service(), &last.dir, &last.name)
    }

    pub fn rmdir(&self, path: &str) -> Result<(), Errno> {
        let last = self.vfs.resolve_parent(&OpCtx::service(), &self.root, path.as_bytes()).unwrap();
        self.vfs.rmdir(&OpCtx::service(), &last.dir, &last.name)
    }

    pub fn rename(&self, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
        self.rename_as(&OpCtx::service(), from, to, flags)
    }

    pub fn rename_as(
        &self,
        ctx: &OpCtx<'_>,
        from: &str,
        to: &str,
        flags: u32,
    ) -> Result<(), Errno> {
        let last = |path: &str| {
            self.vfs.resolve_parent(&OpCtx::service(), &self.root, path.as_bytes()).unwrap()
        };
        let (a, b) = (last(from), last(to));
        self.vfs.rename(ctx, &a.dir, &a.name, &b.dir, &b.name, flags)
    }
}

pub fn write(file: &OpenFile, at: u64, bytes: &[u8]) {
    let written = file.write(&OpCtx::service(), Some(at), &mut &bytes[..]).unwrap();
    assert_eq!(written.count, bytes.len());
}

pub fn read(file: &OpenFile, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let count = file.read(&OpCtx::service(), at, len, &mut &mut bytes[..]).unwrap();
    bytes.truncate(count);
    bytes
}

/// The names in a directory, `.` and `..` included, in stream order.
pub fn names(dir: &OpenFile) -> Vec<String> {
    let mut names = Vec::new();
    dir.readdir(&OpCtx::service(), 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .unwrap();
    names
}
