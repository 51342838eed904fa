//! Lives of inodes: names go, inodes stay until they are forgotten, numbers come back anew.

use super::{Check, Subject, node};
use polylane_base::{Errno, Ino};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, Kind, RenameMode, SeekFor, SetAttr, XattrMode};
use std::collections::HashSet;

/// Directories below each other.
const DEPTH: usize = 1000;

pub(super) const CHECKS: &[Check] = &[
    ("an unlinked file lives until forget", unlinked),
    ("a file without a name can be given one", unnamed),
    ("a forgotten inode is found again", forgotten),
    ("a reused number has a new generation", generations),
    ("numbers that were never given are refused", never_given),
    ("a deep tree can be built, forgotten and taken down", deep),
    ("a chain of directories can be moved as a whole", moved_ancestor),
    ("threads in directories of their own", threads),
];

fn unlinked(s: &Subject) {
    let file = s.file("f").ino;
    s.write(file, 0, b"before");
    let removed = s.fs.unlink(&OpCtx::service(), s.root(), b"f").unwrap();
    assert_eq!((removed.node.ino, removed.node.nlink), (file, 0));
    s.write(file, 6, b" after");
    assert_eq!(s.read(file, 0, 100), b"before after");
    let set = SetAttr { perm: Some(0o400), size: Some(3), ..SetAttr::default() };
    assert_eq!(s.fs.setattr(&OpCtx::service(), file, &set).unwrap().size, 3);
    let again = s.file("f").ino;
    assert_ne!(again, file);
    assert_eq!(s.read(file, 0, 100), b"bef");
    assert_eq!(s.read(again, 0, 100), b"");
    s.fs.fsync(&OpCtx::service(), file, false).unwrap();
    s.fs.forget(file);
    assert_eq!(s.names(s.root()), ["f"]);
}

fn unnamed(s: &Subject) {
    if !s.can.unnamed {
        return;
    }
    let made = s.fs.create_unlinked(&OpCtx::service(), s.root(), &node(Kind::File, 0o640)).unwrap();
    assert_eq!((made.kind, made.nlink, made.perm, made.size), (Kind::File, 0, 0o640, 0));
    assert!(s.list(s.root(), 0).is_empty());
    s.write(made.ino, 0, b"hidden");
    let linked = s.fs.link(&OpCtx::service(), made.ino, s.root(), b"shown").unwrap();
    assert_eq!((linked.node.ino, linked.node.nlink), (made.ino, 1));
    assert_eq!(s.read(s.lookup(s.root(), "shown").unwrap().ino, 0, 10), b"hidden");
    let lost = s.fs.create_unlinked(&OpCtx::service(), s.root(), &node(Kind::File, 0o600)).unwrap();
    s.fs.forget(lost.ino);
    assert_eq!(s.names(s.root()), ["shown"]);
}

fn forgotten(s: &Subject) {
    let dir = s.mkdir(s.root(), "d");
    let file = s.create(dir.ino, "f", Kind::File).node;
    s.write(file.ino, 0, b"kept");
    s.fs.forget(file.ino);
    s.fs.forget(dir.ino);
    let dir = s.lookup(s.root(), "d").unwrap();
    let file = s.lookup(dir.ino, "f").unwrap();
    assert_eq!(s.read(file.ino, 0, 10), b"kept");
}

fn generations(s: &Subject) {
    let mut seen = HashSet::new();
    for round in 0..200 {
        let file = s.file("f");
        assert!(seen.insert((file.ino, file.generation)), "round {round}");
        s.fs.unlink(&OpCtx::service(), s.root(), b"f").unwrap();
        s.fs.forget(file.ino);
        // Hosts tell births apart by their clock's tick only.
        if !s.can.fine_times {
            std::thread::sleep(std::time::Duration::from_millis(11));
            if round > 10 {
                return;
            }
        }
    }
}

fn never_given(s: &Subject) {
    let file = s.file("f").ino;
    let fs = &s.fs;
    for ino in [Ino(0), Ino(u64::MAX), Ino(1 << 40), Ino(file.0 ^ (1 << 62))] {
        let mut buffer: &mut [u8] = &mut [0; 4];
        assert!(fs.getattr(&OpCtx::service(), ino).is_err());
        assert!(fs.lookup(&OpCtx::service(), ino, b"x").is_err());
        assert!(fs.create(&OpCtx::service(), ino, b"x", &node(Kind::File, 0o600)).is_err());
        assert!(fs.create_unlinked(&OpCtx::service(), ino, &node(Kind::File, 0o600)).is_err());
        assert!(fs.link(&OpCtx::service(), ino, s.root(), b"x").is_err());
        assert!(fs.unlink(&OpCtx::service(), ino, b"x").is_err());
        assert!(fs.rmdir(&OpCtx::service(), ino, b"x").is_err());
        assert!(
            fs.rename(&OpCtx::service(), ino, b"x", s.root(), b"y", RenameMode::Replace).is_err()
        );
        assert!(
            fs.rename(&OpCtx::service(), s.root(), b"f", ino, b"y", RenameMode::Replace).is_err()
        );
        assert!(fs.readlink(&OpCtx::service(), ino).is_err());
        assert!(fs.readdir(&OpCtx::service(), ino, 0, &mut |_| true).is_err());
        assert!(fs.read(&OpCtx::service(), ino, 0, 4, &mut buffer).is_err());
        assert!(fs.write(&OpCtx::service(), ino, 0, &mut &b"x"[..]).is_err());
        assert!(fs.setattr(&OpCtx::service(), ino, &SetAttr::default()).is_err());
        assert!(fs.fallocate(&OpCtx::service(), ino, Fallocate::PunchHole, 0, 1).is_err());
        assert!(fs.seek(&OpCtx::service(), ino, 0, SeekFor::Data).is_err());
        assert!(fs.getxattr(&OpCtx::service(), ino, b"user.x").is_err());
        assert!(fs.setxattr(&OpCtx::service(), ino, b"user.x", b"", XattrMode::Any).is_err());
        assert!(fs.listxattr(&OpCtx::service(), ino).is_err());
        assert!(fs.removexattr(&OpCtx::service(), ino, b"user.x").is_err());
        fs.forget(ino);
    }
    assert_eq!(s.names(s.root()), ["f"]);
}

fn deep(s: &Subject) {
    let mut dirs = vec![s.root()];
    for _ in 0..DEPTH {
        dirs.push(s.mkdir(dirs[dirs.len() - 1], "d").ino);
    }
    let last = dirs[dirs.len() - 1];
    s.create(last, "f", Kind::File);
    for &dir in &dirs[1..dirs.len() - 1] {
        s.fs.forget(dir);
    }
    // The deepest one must still be of use, with everything above it forgotten.
    s.fs.unlink(&OpCtx::service(), last, b"f").unwrap();
    s.fs.forget(last);
    let mut path = vec![s.root()];
    for _ in 0..DEPTH {
        path.push(s.lookup(path[path.len() - 1], "d").unwrap().ino);
    }
    while let (Some(gone), Some(&dir)) = (path.pop(), path.last()) {
        s.fs.rmdir(&OpCtx::service(), dir, b"d").unwrap();
        s.fs.forget(gone);
    }
    assert!(s.list(s.root(), 0).is_empty());
}

fn moved_ancestor(s: &Subject) {
    let top = s.mkdir(s.root(), "top").ino;
    let mid = s.mkdir(top, "mid").ino;
    let file = s.create(mid, "f", Kind::File).node.ino;
    let other = s.mkdir(s.root(), "other").ino;
    s.fs.rename(&OpCtx::service(), s.root(), b"top", other, b"moved", RenameMode::Replace).unwrap();
    s.write(file, 0, b"x");
    s.create(mid, "g", Kind::File);
    let top = s.lookup(other, "moved").unwrap().ino;
    let mid = s.lookup(top, "mid").unwrap().ino;
    assert_eq!(s.names(mid), ["f", "g"]);
    assert_eq!(s.lookup(s.root(), "top").unwrap_err(), Errno::ENOENT);
}

fn threads(s: &Subject) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let dir = s.mkdir(s.root_dir_for(thread), "work").ino;
                for round in 0..100 {
                    let name = format!("f{round}");
                    let file = s.create(dir, &name, Kind::File).node.ino;
                    let bytes = vec![(thread * 50 + round) as u8; 10_000];
                    s.write(file, 0, &bytes);
                    let to = format!("g{round}");
                    let (from, to) = (name.as_bytes(), to.as_bytes());
                    s.fs.rename(&OpCtx::service(), dir, from, dir, to, RenameMode::Replace)
                        .unwrap();
                    assert_eq!(s.read(file, 0, 20_000), bytes);
                    if round % 2 == 0 {
                        s.fs.unlink(&OpCtx::service(), dir, to).unwrap();
                    }
                    s.fs.forget(file);
                }
                assert_eq!(s.list(dir, 0).len(), 50);
            });
        }
    });
}

impl Subject {
    /// A directory for a thread. The seam never changes one directory from two threads, so the root
    /// is guarded here as the VFS would.
    fn root_dir_for(&self, thread: usize) -> Ino {
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap();
        self.mkdir(self.root(), &format!("thread{thread}")).ino
    }
}
