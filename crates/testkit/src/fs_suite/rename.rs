//! Renames in every mode.

use super::{Check, Subject};
use polylane_base::{Errno, Gid, Ino, Uid};
use polylane_vfs::fs::{Attr, Kind, RenameMode, Renamed, SetAttr};
use polylane_vfs::{Cred, OpCtx};

pub(super) const CHECKS: &[Check] = &[
    ("rename moves", moves),
    ("rename replaces a file", replaces),
    ("rename replaces an empty directory only", replaces_directory),
    ("rename between directories moves the parent's link", moves_directory),
    ("RENAME_NOREPLACE", no_replace),
    ("RENAME_EXCHANGE", exchange),
    ("RENAME_WHITEOUT", whiteout),
    ("a whiteout is its maker's", whiteouts_have_owners),
    ("a replaced file lives until forget", replaced_lives),
];

fn rename(s: &Subject, from: &str, to: &str, mode: RenameMode) -> Result<Renamed, Errno> {
    let root = s.root();
    s.fs.rename(&OpCtx::service(), root, from.as_bytes(), root, to.as_bytes(), mode)
}

fn moves(s: &Subject) {
    let a = s.file("a");
    let done = rename(s, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!((done.node.ino, done.node.nlink, done.other), (a.ino, 1, None));
    assert_eq!((done.from_dir, done.to_dir.ino), (done.to_dir, s.root()));
    s.gone(s.root(), "a");
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, a.ino);
    let missing = rename(s, "a", "c", RenameMode::Replace);
    assert_eq!(missing.unwrap_err(), Errno::ENOENT);
    assert_eq!(s.names(s.root()), ["b"]);
}

fn replaces(s: &Subject) {
    let (a, b) = (s.file("a"), s.file("b"));
    s.fs.link(&OpCtx::service(), b.ino, s.root(), b"b2").unwrap();
    let done = rename(s, "a", "b", RenameMode::Replace).unwrap();
    let other = done.other.unwrap();
    assert_eq!((done.node.ino, other.ino, other.nlink), (a.ino, b.ino, 1));
    assert_eq!(s.names(s.root()), ["b", "b2"]);
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, a.ino);
}

fn replaces_directory(s: &Subject) {
    let a = s.mkdir(s.root(), "a");
    let b = s.mkdir(s.root(), "b");
    s.create(b.ino, "inside", Kind::File);
    assert_eq!(rename(s, "a", "b", RenameMode::Replace).unwrap_err(), Errno::ENOTEMPTY);
    assert_eq!(s.names(s.root()), ["a", "b"]);
    s.fs.unlink(&OpCtx::service(), b.ino, b"inside").unwrap();
    let done = rename(s, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!((done.node.ino, done.other.unwrap().ino), (a.ino, b.ino));
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, a.ino);
}

fn links(s: &Subject, ino: Ino) -> u32 {
    s.fs.getattr(&OpCtx::service(), ino).unwrap().nlink
}

fn moves_directory(s: &Subject) {
    let (a, b) = (s.mkdir(s.root(), "a"), s.mkdir(s.root(), "b"));
    let moved = s.mkdir(a.ino, "moved");
    s.create(moved.ino, "deep", Kind::File);
    let done =
        s.fs.rename(&OpCtx::service(), a.ino, b"moved", b.ino, b"here", RenameMode::Replace)
            .unwrap();
    assert_eq!((done.from_dir.ino, done.to_dir.ino), (a.ino, b.ino));
    assert!(s.list(a.ino, 0).is_empty());
    assert_eq!(s.names(b.ino), ["here"]);
    assert_eq!(s.names(moved.ino), ["deep"]);
    if links(s, s.root()) > 1 {
        assert_eq!((links(s, a.ino), links(s, b.ino)), (2, 3));
    }
    // A file takes the place of nothing in the other direction.
    s.fs.rename(&OpCtx::service(), moved.ino, b"deep", a.ino, b"up", RenameMode::Replace).unwrap();
    assert_eq!(s.names(a.ino), ["up"]);
}

fn no_replace(s: &Subject) {
    let (a, b) = (s.file("a"), s.file("b"));
    assert_eq!(rename(s, "a", "b", RenameMode::NoReplace).unwrap_err(), Errno::EEXIST);
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, b.ino);
    if !s.can.rename_flags {
        return;
    }
    rename(s, "a", "c", RenameMode::NoReplace).unwrap();
    assert_eq!(s.lookup(s.root(), "c").unwrap().ino, a.ino);
}

fn exchange(s: &Subject) {
    let a = s.file("a");
    let dir = s.mkdir(s.root(), "dir");
    let sub = s.mkdir(dir.ino, "sub");
    assert_eq!(rename(s, "a", "none", RenameMode::Exchange).unwrap_err(), Errno::ENOENT);
    if !s.can.rename_flags {
        return;
    }
    let done =
        s.fs.rename(&OpCtx::service(), s.root(), b"a", dir.ino, b"sub", RenameMode::Exchange)
            .unwrap();
    assert_eq!((done.node.ino, done.other.unwrap().ino), (a.ino, sub.ino));
    assert_eq!(s.lookup(dir.ino, "sub").unwrap().ino, a.ino);
    assert_eq!(s.lookup(s.root(), "a").unwrap().ino, sub.ino);
    if links(s, dir.ino) > 1 {
        assert_eq!(links(s, dir.ino), 2);
    }
}

fn whiteout(s: &Subject) {
    if !s.can.whiteout {
        return;
    }
    let a = s.file("a");
    rename(s, "a", "b", RenameMode::Whiteout).unwrap();
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, a.ino);
    let left = s.lookup(s.root(), "a").unwrap();
    assert_eq!((left.kind, left.rdev, left.nlink), (Kind::Char, 0, 1));
    assert_eq!(s.names(s.root()), ["a", "b"]);
}

/// The caller's, in a set-group-ID directory of its group: that of the directory which loses the
/// name, wherever the name goes.
fn whiteouts_have_owners(s: &Subject) {
    if !s.can.whiteout || !s.can.own {
        return;
    }
    let (plain, shared) = (s.mkdir(s.root(), "plain"), s.mkdir(s.root(), "shared"));
    let set = SetAttr { perm: Some(0o2770), gid: Some(Gid(7)), ..SetAttr::default() };
    s.fs.setattr(&OpCtx::service(), shared.ino, &set).unwrap();
    let set = SetAttr { gid: Some(Gid(8)), ..SetAttr::default() };
    s.fs.setattr(&OpCtx::service(), plain.ino, &set).unwrap();
    let leave = |ctx: &OpCtx<'_>, from: &Attr, to: &Attr, name: &str| {
        s.create(from.ino, name, Kind::File);
        let moved = format!("moved-{}-{name}", from.ino.0);
        let mode = RenameMode::Whiteout;
        s.fs.rename(ctx, from.ino, name.as_bytes(), to.ino, moved.as_bytes(), mode).unwrap();
        let left = s.lookup(from.ino, name).unwrap();
        assert_eq!((left.kind, left.rdev, left.perm), (Kind::Char, 0, 0));
        (left.uid.0, left.gid.0)
    };
    for (uid, gid) in [(1001, 1002), (0, 5), (5, 0), (0, 0)] {
        let cred = Cred { uid: Uid(uid), gid: Gid(gid), ..Cred::root() };
        let (ctx, name) = (OpCtx::as_user(&cred), format!("{uid}-{gid}"));
        assert_eq!(leave(&ctx, &plain, &plain, &name), (uid, gid));
        assert_eq!(leave(&ctx, &shared, &plain, &name), (uid, 7));
        let name = format!("{name}-across");
        assert_eq!(leave(&ctx, &plain, &shared, &name), (uid, gid));
    }
    assert_eq!(leave(&OpCtx::service(), &shared, &shared, "own"), (0, 7));
}

fn replaced_lives(s: &Subject) {
    let (a, b) = (s.file("a"), s.file("b"));
    s.write(b.ino, 0, b"old");
    rename(s, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!(s.read(b.ino, 0, 10), b"old");
    s.write(b.ino, 3, b"er");
    assert_eq!(s.read(b.ino, 0, 10), b"older");
    assert_eq!(links(s, b.ino), 0);
    s.fs.forget(b.ino);
    assert_eq!(s.lookup(s.root(), "b").unwrap().ino, a.ino);
}
