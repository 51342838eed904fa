//! Owners by other numbers: what is shown, what is stored, and what nobody's files let anybody do.

use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, IdRange, TestClock, Uid};
use polylane_testkit::acl::{NOBODY as NO_ID, value};
use polylane_vfs::fs::{AclKind, FileSystem, NewNode, SetAttr, XattrMode};
use polylane_vfs::mapped::{IdMap, Mapped, NOBODY};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Create, Cred, Kind, Node, OpCtx, RENAME_WHITEOUT, Vfs};

use crate::common::*;

fn range(kept: u32, shown: u32, count: u32) -> IdRange {
    IdRange { kept, shown, count }
}

/// The same files with numbers from 0 on shown from 1000 on, and as they are.
struct Both {
    inner: Arc<MemFs>,
    vfs: Arc<Vfs>,
    root: Node,
}

impl Both {
    fn new() -> Both {
        let inner = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
        let map = IdMap::new(vec![range(0, 1000, 100)]).unwrap();
        let vfs = Vfs::new(Arc::new(Mapped::new(inner.clone(), map)), options()).unwrap();
        let root = vfs.root();
        let open = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        vfs.setattr(&OpCtx::as_user(&user(1000, 1000, &[])), &root, &open).unwrap();
        Both { inner, vfs, root }
    }

    fn make(&self, cred: &Cred, name: &str) -> Result<Node, Errno> {
        let new = Create { kind: Kind::File, perm: 0o644, umask: 0, rdev: 0, target: b"" };
        self.vfs.create(&OpCtx::as_user(cred), &self.root, name.as_bytes(), &new)
    }

    fn shown(&self, node: &Node) -> (u32, u32) {
        let attr = self.vfs.getattr(&OpCtx::service(), node).unwrap();
        (attr.uid.0, attr.gid.0)
    }

    fn stored(&self, node: &Node) -> (u32, u32) {
        let attr = self.inner.getattr(&OpCtx::service(), node.ino()).unwrap();
        (attr.uid.0, attr.gid.0)
    }
}

#[test]
fn what_is_stored_has_the_kept_numbers() {
    let both = Both::new();
    let (alice, root) = (user(1005, 1006, &[1007]), Cred::root());
    let node = both.make(&alice, "f").unwrap();
    assert_eq!((both.shown(&node), both.stored(&node)), ((1005, 1006), (5, 6)));
    let owners = |uid: u32, gid: u32| SetAttr {
        uid: Some(Uid(uid)),
        gid: Some(Gid(gid)),
        ..SetAttr::default()
    };
    both.vfs.setattr(&OpCtx::as_user(&root), &node, &owners(1099, 1000)).unwrap();
    assert_eq!((both.shown(&node), both.stored(&node)), ((1099, 1000), (99, 0)));
    for (uid, gid) in [(1100, 1000), (1000, 999), (5, 6), (0, 0)] {
        let refused = both.vfs.setattr(&OpCtx::as_user(&root), &node, &owners(uid, gid));
        assert_eq!(refused.map(drop), Err(Errno::EOVERFLOW), "{uid} {gid}");
    }
    assert_eq!(both.stored(&node), (99, 0), "nothing has changed");
}

#[test]
fn who_has_no_number_makes_nothing() {
    let both = Both::new();
    for other in [Cred::root(), user(1005, 5, &[]), user(5, 1005, &[]), user(1100, 1000, &[])] {
        assert_eq!(both.make(&other, "f").map(drop), Err(Errno::EOVERFLOW), "{other:?}");
        let ctx = OpCtx::as_user(&other);
        let made = both.vfs.create_unlinked(&ctx, &both.root, 0o600, 0);
        assert_eq!(made.map(drop), Err(Errno::EOVERFLOW));
    }
    let node = both.make(&user(1000, 1000, &[]), "f").unwrap();
    let renamed =
        both.vfs.rename(&OpCtx::service(), &both.root, b"f", &both.root, b"g", RENAME_WHITEOUT);
    assert_eq!(renamed, Err(Errno::EOVERFLOW), "a whiteout would be root's");
    assert_eq!(both.stored(&node), (0, 0));
}

/// As the kernel has it for an inode whose owner has no number.
#[test]
fn nobodys_files_are_changed_by_nobody() {
    let both = Both::new();
    let of_500 = NewNode { uid: Uid(500), gid: Gid(5), ..NewNode::new(Kind::File, 0o644) };
    both.inner.create(&OpCtx::service(), both.root.ino(), b"f", &of_500).unwrap();
    let node = both.vfs.resolve(&OpCtx::service(), &both.root, b"f", false).unwrap();
    assert_eq!(both.shown(&node), (NOBODY, 1005));
    for cred in [Cred::root(), user(1005, 1005, &[]), user(500, 500, &[])] {
        let ctx = OpCtx::as_user(&cred);
        assert_eq!(both.vfs.access(&ctx, &node, 4), Ok(()), "as one of the others: {cred:?}");
        assert_eq!(both.vfs.access(&ctx, &node, 2), Err(Errno::EACCES));
        let perm = SetAttr { perm: Some(0o666), ..SetAttr::default() };
        let changed = both.vfs.setattr(&ctx, &node, &perm).map(drop);
        assert_eq!(changed, Err(Errno::EOVERFLOW));
        assert_eq!(both.vfs.unlink(&ctx, &both.root, b"f"), Err(Errno::EOVERFLOW));
        assert_eq!(both.vfs.link(&ctx, &node, &both.root, b"g"), Err(Errno::EOVERFLOW));
        let set = both.vfs.setxattr(&ctx, &node, b"user.a", b"b", XattrMode::Any);
        assert_eq!(set, Err(Errno::EPERM));
    }
    let given = SetAttr { uid: Some(Uid(1007)), ..SetAttr::default() };
    both.vfs.setattr(&OpCtx::service(), &node, &given).unwrap();
    assert_eq!((both.shown(&node), both.stored(&node)), ((1007, 1005), (7, 5)), "root gave it");
}

#[test]
fn lists_name_the_shown_numbers() {
    let both = Both::new();
    if !both.inner.character().acls {
        println!("skipped: lists_name_the_shown_numbers: memfs keeps none");
        return;
    }
    let owner = user(1005, 1005, &[]);
    let node = both.make(&owner, "f").unwrap();
    let list =
        |id: u32| value([(1, 6, NO_ID), (2, 4, id), (4, 0, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)]);
    let name = AclKind::Access.name();
    let set = |id: u32| {
        both.vfs.setxattr(&OpCtx::as_user(&owner), &node, name, &list(id), XattrMode::Any)
    };
    assert_eq!(set(1100), Err(Errno::EOVERFLOW));
    set(1009).unwrap();
    assert_eq!(both.vfs.getxattr(&OpCtx::service(), &node, name), Ok(list(1009)));
    let stored = both.inner.getxattr(&OpCtx::service(), node.ino(), name);
    assert_eq!(stored, Ok(list(9)));
    for (uid, granted) in [(1009, true), (9, false), (1010, false)] {
        let reads = both.vfs.access(&OpCtx::as_user(&user(uid, 1, &[])), &node, 4);
        assert_eq!(reads.is_ok(), granted, "{uid}");
    }
}

#[test]
fn it_is_known_who_can_own() {
    let inner = Both::new().inner;
    let fs = Mapped::new(inner, IdMap::new(vec![range(0, 1000, 100)]).unwrap());
    for (uid, gid, can) in [(0, 0, false), (1000, 1099, true), (1000, 1100, false)] {
        assert_eq!(fs.has_owner(Uid(uid), Gid(gid)), can, "{uid} {gid}");
    }
}

#[test]
fn maps_go_there_and_back_and_never_overlap() {
    let mut rng = Rng::new(7);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..500 {
        let mut below = |limit: u64| rng.below(limit) as u32;
        let count = 1 + below(4);
        let ranges: Vec<IdRange> =
            (0..count).map(|_| range(below(60), below(60), below(20))).collect();
        let sides = |side: fn(&IdRange) -> u32| {
            let mut all: Vec<u32> =
                ranges.iter().flat_map(|one| side(one)..side(one) + one.count).collect();
            let len = all.len();
            all.sort_unstable();
            all.dedup();
            all.len() == len
        };
        let apart = sides(|one| one.kept) && sides(|one| one.shown);
        let fits = apart && ranges.iter().all(|one| one.count > 0);
        let map = IdMap::new(ranges.clone());
        assert_eq!(map.is_some(), fits, "{ranges:?}");
        let Some(map) = map else {
            bad += 1;
            continue;
        };
        good += 1;
        for kept in 0..100 {
            match map.shown(kept) {
                NOBODY => {
                    assert!(!ranges.iter().any(|r| (r.kept..r.kept + r.count).contains(&kept)))
                }
                shown => assert_eq!(map.kept(shown), Ok(kept)),
            }
        }
    }
    assert!(good > 20 && bad > 20, "{good} {bad}");
    let refused = [range(0, 0, u32::MAX), range(1, 0, u32::MAX), range(0, u32::MAX, 1)];
    let taken = refused.map(|range| IdMap::new(vec![range]).is_some());
    assert_eq!(taken, [true, false, false], "the last number is nobody's");
}
