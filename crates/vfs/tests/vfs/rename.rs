//! renameat2: what it refuses, its flags, and what names mean afterwards.

use polylane_base::Errno;
use polylane_vfs::fs::SetAttr;
use polylane_vfs::{Cred, Kind, OpCtx, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};

use crate::common::*;

const PLAIN: u32 = 0;

/// d/ d/sub/ d/f e/ e/g full/ full/x empty/ f g
fn tree() -> Lane {
    let lane = lane();
    for dir in ["d", "d/sub", "e", "full", "empty"] {
        lane.dir(dir);
    }
    for file in ["d/f", "e/g", "full/x", "f", "g"] {
        lane.file(file, file.as_bytes());
    }
    lane
}

fn exists(lane: &Lane, path: &str) -> bool {
    lane.get(path).is_ok()
}

#[test]
fn refusals_change_nothing() {
    for (from, to, flags, expected) in [
        ("none", "x", PLAIN, Errno::ENOENT),
        ("f", "g", RENAME_NOREPLACE | RENAME_EXCHANGE, Errno::EINVAL),
        ("f", "g", RENAME_WHITEOUT | RENAME_EXCHANGE, Errno::EINVAL),
        ("f", "g", 8, Errno::EINVAL),
        ("f", "g", RENAME_NOREPLACE, Errno::EEXIST),
        ("f", "g", RENAME_NOREPLACE | RENAME_WHITEOUT, Errno::EEXIST),
        ("f", "x", RENAME_EXCHANGE, Errno::ENOENT),
        ("d", "d/x", PLAIN, Errno::EINVAL),
        ("d", "d/sub/x", PLAIN, Errno::EINVAL),
        ("d", "d/sub", PLAIN, Errno::EINVAL),
        ("d/f", "d", PLAIN, Errno::ENOTEMPTY),
        ("d/sub", "d", PLAIN, Errno::ENOTEMPTY),
        ("d/sub", "d", RENAME_EXCHANGE, Errno::EINVAL),
        ("d", "d/sub", RENAME_EXCHANGE, Errno::EINVAL),
        ("d", "f", PLAIN, Errno::ENOTDIR),
        ("f", "d", PLAIN, Errno::EISDIR),
        ("d", "full", PLAIN, Errno::ENOTEMPTY),
    ] {
        let lane = tree();
        assert_eq!(lane.rename(from, to, flags), Err(expected), "{from} -> {to} {flags}");
        for path in ["d", "d/sub", "d/f", "e/g", "full/x", "f", "g", "empty"] {
            assert!(exists(&lane, path), "{from} -> {to} {flags}: {path} is gone");
        }
    }
}

#[test]
fn dots_are_busy() {
    let lane = tree();
    let (cred, root) = (Cred::root(), &lane.root);
    for (from, to) in [(&b"."[..], &b"x"[..]), (b"f", b".."), (b"..", b"x"), (b"d", b".")] {
        assert_eq!(
            lane.vfs.rename(&OpCtx::as_user(&cred), root, from, root, to, 0),
            Err(Errno::EBUSY)
        );
    }
}

#[test]
fn replacing_ends_the_target() {
    let lane = tree();
    let target = lane.open("g", O_RDONLY).unwrap();
    lane.rename("f", "g", PLAIN).unwrap();
    assert!(!exists(&lane, "f"));
    assert_eq!(read(&lane.open("g", O_RDONLY).unwrap(), 0, 9), b"f");
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), target.node()).unwrap().nlink, 0);
    assert_eq!(read(&target, 0, 9), b"g", "still open");
    let empty = lane.get("empty").unwrap();
    lane.rename("d", "empty", PLAIN).unwrap();
    assert!(exists(&lane, "empty/f") && !exists(&lane, "d"));
    let made = lane.vfs.lookup(&OpCtx::service(), &empty, b"x");
    assert_eq!(made.err(), Some(Errno::ENOENT));
    let new = polylane_vfs::Create { kind: Kind::File, perm: 0, umask: 0, rdev: 0, target: b"" };
    let made = lane.vfs.create(&OpCtx::service(), &empty, b"x", &new);
    assert_eq!(made.err(), Some(Errno::ENOENT), "nothing is created in a directory that is gone");
}

#[test]
fn two_names_of_one_file_stay() {
    let lane = tree();
    let f = lane.get("f").unwrap();
    lane.vfs.link(&OpCtx::service(), &f, &lane.root, b"f2").unwrap();
    lane.rename("f", "f2", PLAIN).unwrap();
    lane.rename("f", "f", PLAIN).unwrap();
    lane.rename("f", "f2", RENAME_EXCHANGE).unwrap();
    assert!(exists(&lane, "f") && exists(&lane, "f2"));
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), &f).unwrap().nlink, 2);
    assert_eq!(lane.rename("f", "f2", RENAME_NOREPLACE), Err(Errno::EEXIST));
}

#[test]
fn a_moved_directory_has_a_new_parent() {
    let lane = tree();
    let (d, e) = (lane.get("d").unwrap(), lane.get("e").unwrap());
    let links = |node| lane.vfs.getattr(&OpCtx::service(), node).unwrap().nlink;
    assert_eq!((links(&lane.root), links(&e)), (6, 2));
    lane.rename("d", "e/d", PLAIN).unwrap();
    assert_eq!((links(&lane.root), links(&e)), (5, 3));
    assert_eq!(lane.vfs.lookup(&OpCtx::service(), &d, b"..").unwrap().ino(), e.ino());
    assert_eq!(lane.get("e/d/..").unwrap().ino(), e.ino());
    assert_eq!(lane.rename("e", "e/d/sub/e", PLAIN), Err(Errno::EINVAL), "seen by its new parents");
    let opened = lane.open("e/d", O_RDONLY).unwrap();
    let mut parent = None;
    opened
        .readdir(&OpCtx::service(), 1, &mut |entry| {
            parent = Some((entry.name.to_vec(), entry.ino));
            false
        })
        .unwrap();
    assert_eq!(parent, Some((b"..".to_vec(), e.ino())));
}

#[test]
fn exchange_swaps_whatever_the_two_are() {
    let lane = tree();
    lane.rename("d", "e/g", RENAME_EXCHANGE).unwrap();
    assert_eq!(read(&lane.open("d", O_RDONLY).unwrap(), 0, 9), b"e/g");
    assert!(exists(&lane, "e/g/sub"));
    lane.rename("e/g/sub", "full", RENAME_EXCHANGE).unwrap();
    assert!(exists(&lane, "e/g/sub/x") && exists(&lane, "full") && !exists(&lane, "full/x"));
    let root = lane.root.ino();
    assert_eq!(lane.get("full/..").unwrap().ino(), root);
    assert_eq!(lane.get("e/g/sub/..").unwrap().ino(), lane.get("e/g").unwrap().ino());
    lane.rename("f", "g", RENAME_EXCHANGE).unwrap();
    assert_eq!(read(&lane.open("f", O_RDONLY).unwrap(), 0, 9), b"g");
}

#[test]
fn whiteout_leaves_a_mark_of_the_callers() {
    let lane = tree();
    let all = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    for dir in [&lane.root, &lane.get("e").unwrap()] {
        lane.vfs.setattr(&OpCtx::service(), dir, &all).unwrap();
    }
    let alice = user(1, 2, &[]);
    lane.rename_as(&OpCtx::as_user(&alice), "f", "e/f", RENAME_WHITEOUT).unwrap();
    let mark = lane.vfs.getattr(&OpCtx::service(), &lane.get("f").unwrap()).unwrap();
    assert_eq!((mark.kind, mark.rdev, mark.uid.0, mark.gid.0), (Kind::Char, 0, 1, 2));
    assert_eq!(read(&lane.open("e/f", O_RDONLY).unwrap(), 0, 9), b"f");
}

#[test]
fn moving_a_directory_changes_it_so_it_must_be_writable() {
    let lane = lane();
    let root = Cred::root();
    let all = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::as_user(&root), &lane.root, &all).unwrap();
    let alice = user(1, 1, &[]);
    lane.make(&OpCtx::as_user(&alice), "a", Kind::Dir, 0o777, "");
    lane.make(&OpCtx::as_user(&alice), "b", Kind::Dir, 0o777, "");
    lane.make(&OpCtx::as_user(&alice), "a/shut", Kind::Dir, 0o555, "");
    assert_eq!(
        lane.rename_as(&OpCtx::as_user(&alice), "a/shut", "b/shut", PLAIN),
        Err(Errno::EACCES)
    );
    assert_eq!(
        lane.rename_as(&OpCtx::as_user(&alice), "a/shut", "a/other", PLAIN),
        Ok(()),
        "same parent"
    );
    let bob = user(2, 2, &[]);
    lane.make(&OpCtx::as_user(&alice), "a/open", Kind::Dir, 0o777, "");
    assert_eq!(lane.rename_as(&OpCtx::as_user(&bob), "a/open", "b/open", PLAIN), Ok(()));
}

#[test]
fn too_many_subdirectories() {
    let lane = lane_with(options(), |character| {
        (character.max_links, character.max_dir_links) = (4, 4);
    });
    for dir in ["d", "x", "d/1", "d/2"] {
        lane.dir(dir);
    }
    let new = polylane_vfs::Create { kind: Kind::Dir, perm: 0, umask: 0, rdev: 0, target: b"" };
    let d = lane.get("d").unwrap();
    assert_eq!(lane.vfs.create(&OpCtx::service(), &d, b"3", &new).err(), Some(Errno::EMLINK));
    assert_eq!(lane.vfs.create(&OpCtx::service(), &d, b"1", &new).err(), Some(Errno::EEXIST));
    assert_eq!(lane.rename("x", "d/x", PLAIN), Err(Errno::EMLINK));
    assert_eq!(lane.rename("x", "d/1", PLAIN), Ok(()), "one goes, one comes");
    let file = lane.file("f", b"");
    for (name, expected) in [("g", None), ("h", None), ("i", None), ("j", Some(Errno::EMLINK))] {
        let made = lane.vfs.link(&OpCtx::service(), file.node(), &lane.root, name.as_bytes());
        assert_eq!(made.err(), expected, "{name}");
    }
}
