//! Names: creating, finding, listing, linking, removing.

use super::{Check, Subject, node};
use polylane_base::Errno;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode};
use std::collections::BTreeSet;

pub(super) const CHECKS: &[Check] = &[
    ("root is a directory", root_is_a_directory),
    ("create and lookup agree", create_and_lookup_agree),
    ("a name exists once", a_name_exists_once),
    ("any byte but slash and NUL is a name", any_bytes),
    ("symbolic links keep their target", symbolic_links),
    ("hard links count", hard_links),
    ("directories count their subdirectories", directory_links),
    ("rmdir refuses what is not empty", rmdir_not_empty),
    ("listing is whole and can be resumed", listing),
    ("listing is stable under change", stable_listing),
    ("wrong kinds are refused", wrong_kinds),
];

fn root_is_a_directory(s: &Subject) {
    let root = s.fs.root().unwrap();
    assert_eq!(root.kind, Kind::Dir);
    assert_eq!(s.fs.getattr(&OpCtx::service(), root.ino).unwrap().ino, root.ino);
    assert!(s.list(root.ino, 0).is_empty());
    s.gone(root.ino, "nothing");
}

fn create_and_lookup_agree(s: &Subject) {
    let kinds = [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket];
    for kind in kinds {
        let name = format!("{kind:?}");
        let made = s.create(s.root(), &name, kind);
        assert_eq!(made.node.kind, kind);
        assert_eq!(made.dir.ino, s.root());
        let found = s.lookup(s.root(), &name).unwrap();
        assert_eq!((found.ino, found.generation), (made.node.ino, made.node.generation));
        assert_eq!(found.kind, kind);
        assert_eq!(s.fs.getattr(&OpCtx::service(), found.ino).unwrap(), found);
    }
    let inos: BTreeSet<_> = s.list(s.root(), 0).into_iter().map(|entry| entry.1).collect();
    assert_eq!(inos.len(), kinds.len());
}

fn a_name_exists_once(s: &Subject) {
    s.file("a");
    for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo] {
        let new = NewNode { target: b"x", ..node(kind, 0o600) };
        assert_eq!(
            s.fs.create(&OpCtx::service(), s.root(), b"a", &new).unwrap_err(),
            Errno::EEXIST
        );
    }
    let b = s.file("b");
    assert_eq!(s.fs.link(&OpCtx::service(), b.ino, s.root(), b"a").unwrap_err(), Errno::EEXIST);
    assert_eq!(s.fs.getattr(&OpCtx::service(), b.ino).unwrap().nlink, 1);
    assert_eq!(s.names(s.root()), ["a", "b"]);
}

fn any_bytes(s: &Subject) {
    let long = [b'x'; 255];
    let names: [&[u8]; 7] =
        [b"...", b" ", b"\xff\xfe", b"\n", b"-rf", "\u{e4}\u{1F600}".as_bytes(), &long];
    for name in names {
        s.fs.create(&OpCtx::service(), s.root(), name, &node(Kind::File, 0o600)).unwrap();
    }
    let listed: BTreeSet<_> = s.list(s.root(), 0).into_iter().map(|entry| entry.0).collect();
    assert_eq!(listed, names.into_iter().map(<[u8]>::to_vec).collect());
    for name in names {
        s.fs.lookup(&OpCtx::service(), s.root(), name).unwrap();
        s.fs.unlink(&OpCtx::service(), s.root(), name).unwrap();
    }
    assert!(s.list(s.root(), 0).is_empty());
}

fn symbolic_links(s: &Subject) {
    let long = vec![b'y'; 4000];
    for (name, target) in [("short", &b"../x"[..]), ("long", &long), ("odd", b"\xff /\n")] {
        let new = NewNode { target, ..node(Kind::Symlink, 0o777) };
        let made = s.fs.create(&OpCtx::service(), s.root(), name.as_bytes(), &new).unwrap().node;
        assert_eq!(made.size, target.len() as u64);
        assert_eq!(s.fs.readlink(&OpCtx::service(), made.ino).unwrap(), target);
    }
    assert_eq!(s.fs.readlink(&OpCtx::service(), s.root()), Err(Errno::EINVAL));
}

fn hard_links(s: &Subject) {
    let a = s.file("a");
    let sub = s.mkdir(s.root(), "sub");
    s.write(a.ino, 0, b"shared");
    let linked = s.fs.link(&OpCtx::service(), a.ino, sub.ino, b"b").unwrap();
    assert_eq!((linked.node.ino, linked.node.nlink, linked.dir.ino), (a.ino, 2, sub.ino));
    assert_eq!(s.lookup(sub.ino, "b").unwrap().ino, a.ino);
    let removed = s.fs.unlink(&OpCtx::service(), s.root(), b"a").unwrap();
    assert_eq!((removed.node.ino, removed.node.nlink), (a.ino, 1));
    s.gone(s.root(), "a");
    assert_eq!(s.read(a.ino, 0, 10), b"shared");
    let link = s.create(s.root(), "link", Kind::Symlink).node;
    assert_eq!(s.fs.link(&OpCtx::service(), link.ino, s.root(), b"link2").unwrap().node.nlink, 2);
    assert_eq!(
        s.fs.readlink(&OpCtx::service(), s.lookup(s.root(), "link2").unwrap().ino).unwrap(),
        b"target"
    );
}

fn directory_links(s: &Subject) {
    // Some hosts (btrfs) always say 1: only differences where they are told are compared.
    let top = s.mkdir(s.root(), "top");
    let before = s.fs.getattr(&OpCtx::service(), top.ino).unwrap().nlink;
    if before == 1 {
        return;
    }
    assert_eq!(before, 2);
    let made = s.create(top.ino, "sub", Kind::Dir);
    assert_eq!((made.dir.nlink, made.node.nlink), (3, 2));
    s.create(top.ino, "file", Kind::File);
    assert_eq!(s.fs.getattr(&OpCtx::service(), top.ino).unwrap().nlink, 3);
    let removed = s.fs.rmdir(&OpCtx::service(), top.ino, b"sub").unwrap();
    assert_eq!((removed.dir.nlink, removed.node.nlink), (2, 0));
}

fn rmdir_not_empty(s: &Subject) {
    let top = s.mkdir(s.root(), "top");
    s.create(top.ino, "x", Kind::File);
    assert_eq!(s.fs.rmdir(&OpCtx::service(), s.root(), b"top").unwrap_err(), Errno::ENOTEMPTY);
    s.fs.unlink(&OpCtx::service(), top.ino, b"x").unwrap();
    let removed = s.fs.rmdir(&OpCtx::service(), s.root(), b"top").unwrap();
    assert_eq!(removed.node.ino, top.ino);
    s.gone(s.root(), "top");
    // A directory that was removed but is still held takes no names.
    let refused = s.fs.create(&OpCtx::service(), top.ino, b"late", &node(Kind::File, 0o600));
    assert_eq!(refused.unwrap_err(), Errno::ENOENT);
    let listed =
        s.fs.readdir(&OpCtx::service(), top.ino, 0, &mut |entry| panic!("{:?}", entry.name));
    assert!(matches!(listed, Ok(()) | Err(Errno::ENOENT)));
}

fn listing(s: &Subject) {
    let dir = s.mkdir(s.root(), "dir").ino;
    let count = 700;
    for i in 0..count {
        s.create(dir, &format!("entry-number-{i}"), Kind::File);
    }
    let all = s.list(dir, 0);
    assert_eq!(all.len(), count);
    for at in [0, 1, 99, count - 2, count - 1] {
        let rest: Vec<_> = s.list(dir, all[at].3).into_iter().map(|entry| entry.0).collect();
        let expected: Vec<_> = all[at + 1..].iter().map(|entry| entry.0.clone()).collect();
        assert_eq!(rest, expected, "resumed after entry {at}");
    }
    assert!(all.iter().all(|entry| entry.3 > 0 && entry.3 < i64::MAX as u64 - 1));
    for (name, ino, ..) in &all {
        assert_eq!(s.fs.lookup(&OpCtx::service(), dir, name).unwrap().ino, *ino);
    }
}

fn stable_listing(s: &Subject) {
    let dir = s.mkdir(s.root(), "dir").ino;
    for i in 0..300 {
        s.create(dir, &format!("stay{i}"), Kind::File);
        s.create(dir, &format!("go{i}"), Kind::File);
    }
    let (mut seen, mut from) = (Vec::new(), 0);
    for round in 0.. {
        let (mut taken, start) = (0, from);
        let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
            seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
            from = entry.next;
            taken += 1;
            taken < 10
        };
        s.fs.readdir(&OpCtx::service(), dir, start, &mut each).unwrap();
        if taken < 10 {
            break;
        }
        for i in (round % 7..300).step_by(7) {
            let _ = s.fs.unlink(&OpCtx::service(), dir, format!("go{i}").as_bytes());
        }
        s.create(dir, &format!("new{round}"), Kind::File);
    }
    let stays: Vec<_> = seen.iter().filter(|name| name.starts_with("stay")).collect();
    let distinct: BTreeSet<_> = stays.iter().collect();
    assert_eq!((stays.len(), distinct.len()), (300, 300));
    let all: BTreeSet<_> = seen.iter().collect();
    assert_eq!(all.len(), seen.len(), "an entry was seen twice");
}

fn wrong_kinds(s: &Subject) {
    let file = s.file("file");
    let dir = s.mkdir(s.root(), "dir");
    let fs: &dyn FileSystem = &*s.fs;
    assert_eq!(fs.lookup(&OpCtx::service(), file.ino, b"x").unwrap_err(), Errno::ENOTDIR);
    let refused = fs.create(&OpCtx::service(), file.ino, b"x", &node(Kind::File, 0o600));
    assert_eq!(refused.unwrap_err(), Errno::ENOTDIR);
    assert_eq!(
        fs.readdir(&OpCtx::service(), file.ino, 0, &mut |_| true).unwrap_err(),
        Errno::ENOTDIR
    );
    assert_eq!(fs.rmdir(&OpCtx::service(), s.root(), b"file").unwrap_err(), Errno::ENOTDIR);
    assert_eq!(fs.unlink(&OpCtx::service(), s.root(), b"dir").unwrap_err(), Errno::EISDIR);
    assert_eq!(fs.link(&OpCtx::service(), dir.ino, s.root(), b"dir2").unwrap_err(), Errno::EPERM);
    assert_eq!(fs.unlink(&OpCtx::service(), s.root(), b"none").unwrap_err(), Errno::ENOENT);
    assert_eq!(fs.rmdir(&OpCtx::service(), s.root(), b"none").unwrap_err(), Errno::ENOENT);
    let mut nothing: &mut [u8] = &mut [];
    assert_eq!(fs.read(&OpCtx::service(), dir.ino, 0, 0, &mut nothing).unwrap_err(), Errno::EISDIR);
}
