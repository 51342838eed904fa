//! Access control lists on the medium: where they lie, that there is room for them before anything
//! is made, and lists that no sound file system has.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use polylane_base::{Errno, Gid, Ino, TestClock, Uid};
use polylane_ext4::Ext4;
use polylane_testkit::acl::{self, NOBODY};
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{Acl, AclKind, Acls, FileSystem, Kind, NewNode, SetAttr, XattrMode};
use polylane_vfs::{Create, Cred, OpCtx, Vfs};

use crate::common;

const ROOT: Ino = Ino(2);
const ACCESS: &[u8] = AclKind::Access.name();

/// The attribute of a list that names that many users.
fn value(users: u32) -> Vec<u8> {
    let named = (0..users).map(|uid| (2u16, 6u16, 100 + uid));
    let ends = [(4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)];
    acl::value([(1, 6, NOBODY)].into_iter().chain(named).chain(ends))
}

fn acl(users: u32) -> Acl {
    Acl::parse(&value(users)).unwrap().unwrap()
}

fn node(kind: Kind, acls: Acls<'_>) -> NewNode<'_> {
    let (uid, gid) = (Uid(1), Gid(1));
    NewNode { kind, perm: 0o660, uid, gid, rdev: 0, target: b"", acls, flags: 0 }
}

/// Runs `work` on a fresh image; e2fsck finds nothing, before and after it is opened again.
fn on_image(args: &[&str], work: impl Fn(&Arc<Ext4>), again: impl Fn(&Arc<Ext4>)) {
    let device = common::make(16, args);
    for work in [&work as &dyn Fn(&Arc<Ext4>), &again] {
        let fs = common::open(&device);
        work(&fs);
        assert_eq!(fs.stopped_by(), None);
        fs.close().unwrap();
        drop(fs);
        assert_eq!(common::complaints(&device), None);
    }
}

#[test]
fn lists_of_every_length_are_inherited_and_freed() {
    if !common::have_tools() {
        return;
    }
    let small: &[&str] = &["-t", "ext4", "-b", "4096", "-I", "128"];
    for args in [common::LANE, small] {
        let lengths = [1, 5, 6, 7, 8, 9, 100, 490, 494];
        let name = |users: u32| format!("{users}").into_bytes();
        let make = |fs: &Arc<Ext4>| {
            for users in lengths {
                let own = acl(users);
                let acls = Acls { access: Some(&own), default: None };
                fs.create(&OpCtx::service(), ROOT, &name(users), &node(Kind::File, acls)).unwrap();
            }
            let default = acl(200);
            let acls = Acls { access: Some(&default), default: Some(&default) };
            fs.create(&OpCtx::service(), ROOT, b"dir", &node(Kind::Dir, acls)).unwrap();
            fs.create(
                &OpCtx::service(),
                ROOT,
                b"pipe",
                &node(Kind::Fifo, Acls { default: None, ..acls }),
            )
            .unwrap();
            let gone =
                fs.create_unlinked(&OpCtx::service(), ROOT, &node(Kind::File, acls)).unwrap();
            fs.forget(gone.ino);
        };
        let free = std::cell::Cell::new(0);
        let check = |fs: &Arc<Ext4>| {
            for users in lengths {
                let attr = fs.lookup(&OpCtx::service(), ROOT, &name(users)).unwrap();
                assert_eq!(
                    fs.getxattr(&OpCtx::service(), attr.ino, ACCESS),
                    Ok(value(users)),
                    "{users}"
                );
            }
            let dir = fs.lookup(&OpCtx::service(), ROOT, b"dir").unwrap().ino;
            for kind in [AclKind::Access, AclKind::Default] {
                assert_eq!(fs.getxattr(&OpCtx::service(), dir, kind.name()), Ok(value(200)));
            }
            for users in lengths {
                let gone = fs.unlink(&OpCtx::service(), ROOT, &name(users)).unwrap().node;
                fs.forget(gone.ino);
            }
            fs.forget(fs.unlink(&OpCtx::service(), ROOT, b"pipe").unwrap().node.ino);
            fs.forget(fs.rmdir(&OpCtx::service(), ROOT, b"dir").unwrap().node.ino);
            fs.sync(&OpCtx::service()).unwrap();
            free.set(fs.statfs(&OpCtx::service()).unwrap().bfree);
        };
        let whole = std::cell::Cell::new(0);
        let count_and_make = |fs: &Arc<Ext4>| {
            whole.set(fs.statfs(&OpCtx::service()).unwrap().bfree);
            make(fs);
        };
        on_image(args, count_and_make, check);
        assert_eq!(free.get(), whole.get(), "blocks of lists come back");
    }
}

#[test]
fn what_has_no_room_for_its_lists_is_not_made() {
    if !common::have_tools() {
        return;
    }
    let refuse = |fs: &Arc<Ext4>| {
        let free = fs.statfs(&OpCtx::service()).unwrap();
        // Each fits into a block, but not both.
        let long = acl(400);
        let acls = Acls { access: Some(&long), default: Some(&long) };
        let made = fs.create(&OpCtx::service(), ROOT, b"dir", &node(Kind::Dir, acls));
        assert_eq!(made.err(), Some(Errno::ENOSPC));
        let longer = acl(600);
        let acls = Acls { access: Some(&longer), default: None };
        assert_eq!(
            fs.create_unlinked(&OpCtx::service(), ROOT, &node(Kind::File, acls)).err(),
            Some(Errno::ENOSPC)
        );
        assert_eq!(fs.lookup(&OpCtx::service(), ROOT, b"dir").err(), Some(Errno::ENOENT));
        let file = fs
            .create(&OpCtx::service(), ROOT, b"file", &node(Kind::File, Acls::NONE))
            .unwrap()
            .node
            .ino;
        let set = fs.set_acl(&OpCtx::service(), file, AclKind::Access, Some(&longer), Some(0o600));
        assert_eq!(set.err(), Some(Errno::ENOSPC));
        assert_eq!(fs.getattr(&OpCtx::service(), file).unwrap().perm, 0o660);
        assert_eq!(fs.getxattr(&OpCtx::service(), file, ACCESS), Err(Errno::ENODATA));
        fs.forget(fs.unlink(&OpCtx::service(), ROOT, b"file").unwrap().node.ino);
        fs.sync(&OpCtx::service()).unwrap();
        let now = fs.statfs(&OpCtx::service()).unwrap();
        assert_eq!((now.bfree, now.ffree), (free.bfree, free.ffree));
    };
    on_image(common::LANE, refuse, |_| ());
}

/// As with Linux, where the image has that (`ea_inode`).
#[test]
fn lists_that_no_block_holds_are_inherited_in_inodes_of_their_own() {
    let long = acl(1500);
    let names = [ACCESS, AclKind::Default.name()];
    let held = |fs: &Ext4, ino: Ino| {
        let value = |name| fs.getxattr(&OpCtx::service(), ino, name);
        names.map(|name| value(name) == Ok(long.to_value()))
    };
    let work = |fs: &Arc<Ext4>| {
        let before = fs.statfs(&OpCtx::service()).unwrap();
        let both = Acls { access: Some(&long), default: Some(&long) };
        let one = Acls { access: Some(&long), default: None };
        let dir = fs.create(&OpCtx::service(), ROOT, b"dir", &node(Kind::Dir, both)).unwrap();
        assert_eq!(held(fs, dir.node.ino), [true, true]);
        let file = fs.create(&OpCtx::service(), ROOT, b"file", &node(Kind::File, one)).unwrap();
        assert_eq!(held(fs, file.node.ino), [true, false]);
        let nameless = fs.create_unlinked(&OpCtx::service(), ROOT, &node(Kind::File, one)).unwrap();
        assert_eq!(held(fs, nameless.ino), [true, false]);
        fs.forget(nameless.ino);
        fs.forget(fs.rmdir(&OpCtx::service(), ROOT, b"dir").unwrap().node.ino);
        fs.forget(fs.unlink(&OpCtx::service(), ROOT, b"file").unwrap().node.ino);
        fs.sync(&OpCtx::service()).unwrap();
        let now = fs.statfs(&OpCtx::service()).unwrap();
        assert_eq!((now.bfree, now.ffree), (before.bfree, before.ffree));
        // All inodes but one: that one is not enough.
        for nth in 1..now.ffree {
            let name = format!("{nth}");
            let new = node(Kind::File, Acls::NONE);
            fs.create(&OpCtx::service(), ROOT, name.as_bytes(), &new).unwrap();
        }
        let refused = fs.create(&OpCtx::service(), ROOT, b"dir", &node(Kind::Dir, both));
        assert_eq!(refused.err(), Some(Errno::ENOSPC));
        assert_eq!(fs.statfs(&OpCtx::service()).unwrap().ffree, 1);
        fs.forget(fs.unlink(&OpCtx::service(), ROOT, b"1").unwrap().node.ino);
        fs.forget(fs.unlink(&OpCtx::service(), ROOT, b"2").unwrap().node.ino);
        fs.create(&OpCtx::service(), ROOT, b"dir", &node(Kind::Dir, both)).unwrap();
    };
    let again = |fs: &Arc<Ext4>| {
        let dir = fs.lookup(&OpCtx::service(), ROOT, b"dir").unwrap().ino;
        assert_eq!(held(fs, dir), [true, true]);
    };
    for (bytes, features) in [
        ("1024", "ea_inode"),
        ("4096", "ea_inode,^metadata_csum"),
        ("4096", "ea_inode,quota,project"),
    ] {
        on_image(&["-t", "ext4", "-b", bytes, "-N", "32", "-O", features], work, again);
    }
}

/// A list without entries that every list has: nobody but the owner and root gets anything, and
/// the owner can take it away.
#[test]
fn a_list_that_is_none_forbids() {
    if !common::have_tools() {
        return;
    }
    let cut = value(1)[..4 + 2 * 8].to_vec();
    let store = |fs: &Arc<Ext4>| {
        for kind in [Kind::File, Kind::Dir] {
            let name: &[u8] = if kind == Kind::Dir { b"dir" } else { b"file" };
            let ino =
                fs.create(&OpCtx::service(), ROOT, name, &node(kind, Acls::NONE)).unwrap().node.ino;
            let perm = Some(0o775);
            fs.setattr(&OpCtx::service(), ino, &SetAttr { perm, ..SetAttr::default() }).unwrap();
            fs.setxattr(&OpCtx::service(), ino, ACCESS, &cut, XattrMode::Any).unwrap();
        }
        let dir = fs.lookup(&OpCtx::service(), ROOT, b"dir").unwrap().ino;
        fs.setxattr(&OpCtx::service(), dir, AclKind::Default.name(), &cut, XattrMode::Any).unwrap();
    };
    let judge = |fs: &Arc<Ext4>| {
        let vfs = Vfs::new(fs.clone(), small_options(Arc::new(TestClock::default()), 1 << 20));
        let vfs = vfs.unwrap();
        let find =
            |name: &[u8]| vfs.resolve(&OpCtx::service(), &vfs.root(), name, true).ok().unwrap();
        let of = |uid| Cred { uid: Uid(uid), gid: Gid(9), ..Cred::root() };
        for name in [&b"file"[..], b"dir"] {
            let node = find(name);
            assert_eq!(vfs.access(&OpCtx::as_user(&of(7)), &node, 4), Err(Errno::EIO));
            assert_eq!(vfs.access(&OpCtx::as_user(&of(1)), &node, 7), Ok(()));
            assert_eq!(vfs.access(&OpCtx::service(), &node, 7), Ok(()));
            assert_eq!(vfs.getxattr(&OpCtx::as_user(&of(1)), &node, ACCESS), Err(Errno::EIO));
            let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
            assert_eq!(vfs.setattr(&OpCtx::as_user(&of(1)), &node, &set).err(), Some(Errno::EIO));
        }
        let dir = find(b"dir");
        let new = Create { kind: Kind::File, perm: 0o644, umask: 0, rdev: 0, target: b"" };
        assert_eq!(vfs.create(&OpCtx::as_user(&of(1)), &dir, b"new", &new).err(), Some(Errno::EIO));
        assert_eq!(vfs.removexattr(&OpCtx::as_user(&of(1)), &dir, AclKind::Default.name()), Ok(()));
        assert_eq!(vfs.create(&OpCtx::as_user(&of(1)), &dir, b"new", &new).err(), None);
        assert_eq!(vfs.removexattr(&OpCtx::as_user(&of(1)), &dir, ACCESS), Ok(()));
        assert_eq!(vfs.access(&OpCtx::as_user(&of(7)), &dir, 5), Ok(()));
    };
    on_image(common::LANE, store, judge);
}
