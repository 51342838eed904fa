//! Who may do what: classes, sticky and set-gid directories, chmod, chown, utimens, set-id bits,
//! xattrs.

use polylane_base::{Errno, Gid, Result, Time, Uid};
use polylane_vfs::fs::{SetAttr, SetTime, XattrMode};
use polylane_vfs::{Create, Cred, Fsetid, Kind, Node, OpCtx, OpenFile};

use crate::common::*;

fn perm(lane: &Lane, node: &Node) -> u32 {
    lane.vfs.getattr(&OpCtx::service(), node).unwrap().perm
}

/// A file of alice (1), group 10.
fn file_of_alice(lane: &Lane, name: &str, perm: u32) -> Node {
    let node = lane.make(&OpCtx::service(), name, Kind::File, 0, "");
    let owner = SetAttr { uid: Some(Uid(1)), gid: Some(Gid(10)), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::service(), &node, &owner).unwrap();
    lane.vfs
        .setattr(&OpCtx::service(), &node, &SetAttr { perm: Some(perm), ..SetAttr::default() })
        .unwrap();
    node
}

#[test]
fn exactly_one_class_counts() {
    let lane = lane();
    // (permission bits, rights of owner, of a member of the group, of others, of root)
    let table = [
        (0o000, 0, 0, 0, 6),
        (0o700, 7, 0, 0, 7),
        (0o070, 0, 7, 0, 7),
        (0o007, 0, 0, 7, 7),
        (0o640, 6, 4, 0, 6),
        (0o604, 6, 0, 4, 6),
        (0o421, 4, 2, 1, 7),
        (0o124, 1, 2, 4, 7),
    ];
    let owner = user(1, 99, &[]);
    let member = user(2, 99, &[7, 10]);
    let first_group = user(2, 10, &[]);
    let other = user(3, 99, &[1]);
    for (bits, of_owner, of_group, of_other, of_root) in table {
        let node = file_of_alice(&lane, &format!("f{bits:o}"), bits);
        for (who, rights) in [
            (&owner, of_owner),
            (&member, of_group),
            (&first_group, of_group),
            (&other, of_other),
            (&Cred::root(), of_root),
        ] {
            for mask in 0..=7 {
                let expected = if rights & mask == mask { Ok(()) } else { Err(Errno::EACCES) };
                let got = lane.vfs.access(&OpCtx::as_user(who), &node, mask);
                assert_eq!(got, expected, "{bits:o} mask {mask} uid {}", who.uid);
            }
        }
    }
    // Root may search a directory that nobody may search.
    let dir = lane.make(&OpCtx::service(), "d", Kind::Dir, 0, "");
    assert_eq!(lane.vfs.access(&OpCtx::service(), &dir, 7), Ok(()));
}

#[test]
fn opening_needs_the_rights_of_its_mode() {
    let lane = lane();
    let node = file_of_alice(&lane, "f", 0o640);
    let member = user(2, 10, &[]);
    for (flags, expected) in [
        (O_RDONLY, Ok(())),
        (O_WRONLY, Err(Errno::EACCES)),
        (O_RDWR, Err(Errno::EACCES)),
        (O_RDONLY | O_TRUNC, Err(Errno::EACCES)),
        (O_RDONLY | O_NOATIME, Err(Errno::EPERM)),
        (O_PATH, Ok(())),
    ] {
        assert_eq!(
            lane.vfs.open(&OpCtx::as_user(&member), &node, flags).map(drop),
            expected,
            "{flags:o}"
        );
    }
}

fn create(lane: &Lane, cred: &Cred, dir: &Node, name: &str, kind: Kind, perm: u32) -> Result<Node> {
    let new = Create { kind, perm, umask: 0o022, rdev: 0, target: b"t" };
    lane.vfs.create(&OpCtx::as_user(cred), dir, name.as_bytes(), &new)
}

#[test]
fn names_need_write_and_search_on_the_directory() {
    let lane = lane();
    let root = Cred::root();
    let alice = user(1, 10, &[]);
    for (bits, may) in [(0o777, true), (0o776, false), (0o775, false), (0o770, false)] {
        let dir = lane.make(&OpCtx::as_user(&root), &format!("d{bits:o}"), Kind::Dir, 0, "");
        lane.vfs
            .setattr(
                &OpCtx::as_user(&root),
                &dir,
                &SetAttr { perm: Some(bits), ..Default::default() },
            )
            .unwrap();
        lane.make(&OpCtx::as_user(&root), &format!("d{bits:o}/there"), Kind::File, 0o600, "");
        let expected = if may { None } else { Some(Errno::EACCES) };
        let made = create(&lane, &alice, &dir, "new", Kind::File, 0o644).err();
        assert_eq!(made, expected, "create in {bits:o}");
        let again = create(&lane, &alice, &dir, "there", Kind::File, 0o644).err();
        assert_eq!(again, Some(Errno::EEXIST), "what exists is said first");
        let gone = lane.vfs.unlink(&OpCtx::as_user(&alice), &dir, b"there").err();
        assert_eq!(gone, expected, "unlink in {bits:o}");
        assert_eq!(
            lane.vfs.unlink(&OpCtx::as_user(&alice), &dir, b"none").err(),
            Some(Errno::ENOENT)
        );
    }
}

#[test]
fn sticky_directories_protect_other_owners_names() {
    let lane = lane();
    let root = Cred::root();
    let (alice, bob) = (user(1, 10, &[]), user(2, 20, &[]));
    let tmp = lane.make(&OpCtx::as_user(&root), "tmp", Kind::Dir, 0o777, "");
    let sticky = SetAttr { perm: Some(0o1777), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::as_user(&root), &tmp, &sticky).unwrap();
    for name in ["a", "b", "c"] {
        create(&lane, &alice, &tmp, name, Kind::File, 0o666).unwrap();
    }
    create(&lane, &bob, &tmp, "of-bob", Kind::File, 0o666).unwrap();
    assert_eq!(lane.vfs.unlink(&OpCtx::as_user(&bob), &tmp, b"a"), Err(Errno::EPERM));
    assert_eq!(lane.rename_as(&OpCtx::as_user(&bob), "tmp/a", "tmp/x", 0), Err(Errno::EPERM));
    assert_eq!(lane.rename_as(&OpCtx::as_user(&bob), "tmp/of-bob", "tmp/a", 0), Err(Errno::EPERM));
    assert_eq!(lane.vfs.unlink(&OpCtx::as_user(&bob).kernel_checked(), &tmp, b"c"), Ok(()));
    assert_eq!(lane.vfs.unlink(&OpCtx::as_user(&alice), &tmp, b"a"), Ok(()));
    assert_eq!(lane.vfs.unlink(&OpCtx::as_user(&root), &tmp, b"b"), Ok(()));
}

#[test]
fn a_set_gid_directory_gives_its_group() {
    let lane = lane();
    let root = Cred::root();
    let dir = lane.make(&OpCtx::as_user(&root), "d", Kind::Dir, 0o777, "");
    let set = SetAttr { gid: Some(Gid(50)), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::as_user(&root), &dir, &set).unwrap();
    lane.vfs
        .setattr(
            &OpCtx::as_user(&root),
            &dir,
            &SetAttr { perm: Some(0o2777), ..Default::default() },
        )
        .unwrap();
    let alice = user(1, 10, &[]);
    let attr = |node: &Node| lane.vfs.getattr(&OpCtx::service(), node).unwrap();
    let sub = attr(&create(&lane, &alice, &dir, "sub", Kind::Dir, 0o777).unwrap());
    assert_eq!((sub.uid, sub.gid, sub.perm), (Uid(1), Gid(50), 0o2755));
    let file = attr(&create(&lane, &alice, &dir, "file", Kind::File, 0o2775).unwrap());
    assert_eq!((file.gid, file.perm), (Gid(50), 0o755), "no set-gid program of a foreign group");
    let (ctx, kind) = (OpCtx::as_user(&alice), Kind::File);
    let new = Create { kind, perm: 0o2777, umask: 0o077, rdev: 0, target: b"" };
    let file = attr(&lane.vfs.create(&ctx, &dir, b"asked", &new).unwrap());
    assert_eq!((file.gid, file.perm), (Gid(50), 0o700), "it counts what was asked for");
    let new = Create { perm: 0o2767, ..new };
    let file = attr(&lane.vfs.create(&ctx, &dir, b"no program", &new).unwrap());
    assert_eq!((file.gid, file.perm), (Gid(50), 0o2700));
    let member = user(1, 10, &[50]);
    let file = attr(&create(&lane, &member, &dir, "mine", Kind::File, 0o2775).unwrap());
    assert_eq!((file.gid, file.perm), (Gid(50), 0o2755));
}

/// What `cred` gets for a change of alice's file with these bits.
fn try_set(cred: &Cred, bits: u32, set: SetAttr) -> Result<(u32, u32, u32)> {
    let lane = lane();
    let node = file_of_alice(&lane, "f", bits);
    let attr = lane.vfs.setattr(&OpCtx::as_user(cred), &node, &set)?;
    assert_eq!(attr, lane.vfs.getattr(&OpCtx::service(), &node).unwrap());
    Ok((attr.uid.0, attr.gid.0, attr.perm))
}

#[test]
fn chmod_and_chown_follow_posix() {
    let chmod = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
    let chown = |uid: Option<u32>, gid: Option<u32>| SetAttr {
        uid: uid.map(Uid),
        gid: gid.map(Gid),
        ..SetAttr::default()
    };
    let (root, bob) = (Cred::root(), user(2, 10, &[]));
    let alice = user(1, 10, &[11]);
    let (outside, stranger) = (user(1, 77, &[]), user(3, 99, &[]));
    let eperm = Err(Errno::EPERM);
    for (line, who, bits, set, expected) in [
        (1, &alice, 0o644, chmod(0o600), Ok((1, 10, 0o600))),
        (2, &bob, 0o666, chmod(0o600), eperm),
        (3, &root, 0o644, chmod(0o7777), Ok((1, 10, 0o7777))),
        (4, &alice, 0o644, chmod(0o2755), Ok((1, 10, 0o2755))),
        (5, &outside, 0o644, chmod(0o2755), Ok((1, 10, 0o755))),
        (6, &alice, 0o644, chown(Some(2), None), eperm),
        (7, &alice, 0o644, chown(Some(1), None), Ok((1, 10, 0o644))),
        (8, &bob, 0o666, chown(Some(2), None), eperm),
        (9, &alice, 0o644, chown(None, Some(11)), Ok((1, 11, 0o644))),
        (10, &alice, 0o644, chown(None, Some(12)), eperm),
        (11, &outside, 0o644, chown(None, Some(10)), Ok((1, 10, 0o644))),
        (12, &bob, 0o666, chown(None, Some(10)), eperm),
        (13, &root, 0o6755, chown(Some(2), Some(20)), Ok((2, 20, 0o755))),
        (14, &alice, 0o6755, chown(None, Some(11)), Ok((1, 11, 0o755))),
        (15, &root, 0o6745, chown(Some(2), None), Ok((2, 10, 0o2745))),
        (16, &alice, 0o6777, chown(None, None), Ok((1, 10, 0o777))),
        (17, &alice, 0o6767, chown(None, None), Ok((1, 10, 0o2767))),
        (18, &outside, 0o2767, chown(None, None), Ok((1, 10, 0o767))),
        (19, &root, 0o6777, chown(None, None), Ok((1, 10, 0o777))),
        (20, &root, 0o6767, chown(None, None), Ok((1, 10, 0o2767))),
        (21, &stranger, 0o4777, chown(None, None), eperm),
        (22, &stranger, 0o2767, chown(None, None), eperm),
        (23, &bob, 0o2767, chown(None, None), Ok((1, 10, 0o2767))),
        (24, &stranger, 0o777, chown(None, None), Ok((1, 10, 0o777))),
    ] {
        assert_eq!(try_set(who, bits, set), expected, "line {line}");
    }
}

#[test]
fn times_are_the_owners_and_now_the_writers() {
    let now = Some(SetTime::Now);
    let at = Some(SetTime::At(Time { sec: 5, nsec: 6 }));
    let times = |atime, mtime| SetAttr { atime, mtime, ..SetAttr::default() };
    let alice = user(1, 10, &[]);
    let (writer, reader) = (user(2, 10, &[]), user(3, 99, &[]));
    for (line, who, set, expected) in [
        (1, &alice, times(at, at), None),
        (2, &alice, times(None, now), None),
        (3, &writer, times(now, now), None),
        (4, &writer, times(now, None), Some(Errno::EPERM)),
        (5, &writer, times(at, now), Some(Errno::EPERM)),
        (6, &reader, times(now, now), Some(Errno::EACCES)),
        (7, &reader, times(at, at), Some(Errno::EPERM)),
        (8, &Cred::root(), times(at, at), None),
    ] {
        assert_eq!(try_set(who, 0o664, set).err(), expected, "line {line}");
    }
}

#[test]
fn truncation_needs_the_right_to_write_and_a_regular_file() {
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let (alice, bob) = (user(1, 10, &[]), user(2, 99, &[]));
    assert_eq!(try_set(&alice, 0o644, size(9)).err(), None);
    assert_eq!(try_set(&bob, 0o644, size(9)).err(), Some(Errno::EACCES));
    assert_eq!(try_set(&bob, 0o646, size(9)).err(), None);
    let lane = lane();
    let file = file_of_alice(&lane, "f", 0o644);
    let checked = OpCtx::as_user(&bob).kernel_checked();
    assert_eq!(
        lane.vfs.setattr(&checked, &file, &size(9)).err(),
        None,
        "ftruncate of an open file"
    );
    lane.vfs.unlink(&OpCtx::service(), &lane.root, b"f").unwrap();
    let root = Cred::root();
    assert_eq!(lane.vfs.setattr(&OpCtx::as_user(&root), &lane.root, &size(0)), Err(Errno::EISDIR));
    let link = lane.link("l", "x");
    assert_eq!(lane.vfs.setattr(&OpCtx::as_user(&root), &link, &size(0)), Err(Errno::EINVAL));
    let file = lane.file("f", b"");
    assert_eq!(
        lane.vfs.setattr(&OpCtx::as_user(&root), file.node(), &size(u64::MAX)),
        Err(Errno::EFBIG)
    );
}

/// Also when root does it, and by any change of bytes, size or owner; reading and other attributes
/// leave them.
#[test]
fn changes_of_data_or_owner_take_capabilities_away() {
    const NAME: &[u8] = b"security.capability";
    // `struct vfs_cap_data`, revision 2, with no capability in it.
    const EMPTY: [u8; 20] = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let root = Cred::root();
    for lane in [lane(), cached()] {
        let file = lane.file("f", b"bytes");
        let node = file.node();
        let size = SetAttr { size: Some(3), ..SetAttr::default() };
        let owner = SetAttr { uid: Some(Uid(5)), ..SetAttr::default() };
        let perm = SetAttr { perm: Some(0o755), ..SetAttr::default() };
        let none = SetAttr::default();
        let changes: [(&str, bool, &dyn Fn()); 7] = [
            ("read", true, &|| drop(read(&file, 0, 3))),
            ("chmod", true, &|| _ = lane.vfs.setattr(&OpCtx::as_user(&root), node, &perm).unwrap()),
            ("write", false, &|| write(&file, 1, b"x")),
            ("truncate", false, &|| {
                _ = lane.vfs.setattr(&OpCtx::as_user(&root), node, &size).unwrap()
            }),
            ("chown", false, &|| {
                _ = lane.vfs.setattr(&OpCtx::as_user(&root), node, &owner).unwrap()
            }),
            ("chown(-1, -1)", false, &|| {
                _ = lane.vfs.setattr(&OpCtx::as_user(&root), node, &none).unwrap()
            }),
            ("fallocate", false, &|| file.fallocate(&OpCtx::as_user(&root), 0, 0, 100).unwrap()),
        ];
        for (what, kept, change) in changes {
            lane.vfs.setxattr(&OpCtx::as_user(&root), node, NAME, &EMPTY, XattrMode::Any).unwrap();
            change();
            assert_eq!(
                lane.vfs.getxattr(&OpCtx::as_user(&root), node, NAME).is_ok(),
                kept,
                "{what}"
            );
        }
    }
}

#[test]
fn changes_of_data_take_set_id_bits_away() {
    let alice = user(1, 10, &[]);
    for lane in [lane(), cached()] {
        let write = |cred: &Cred, node: &Node| {
            let file = lane.vfs.open(&OpCtx::as_user(cred), node, O_WRONLY).unwrap();
            file.write(&OpCtx::as_user(cred), Some(0), &mut &b"x"[..]).unwrap();
            perm(&lane, node)
        };
        for (n, (before, after)) in
            [(0o6777, 0o777), (0o4777, 0o777), (0o2777, 0o777), (0o2767, 0o2767), (0o1777, 0o1777)]
                .into_iter()
                .enumerate()
        {
            let node = file_of_alice(&lane, &format!("f{n}"), before);
            assert_eq!(write(&Cred::root(), &node), before, "root keeps them");
            assert_eq!(write(&alice, &node), after, "{before:o}");
            let node = file_of_alice(&lane, &format!("t{n}"), before);
            let size = SetAttr { size: Some(3), ..SetAttr::default() };
            assert_eq!(
                lane.vfs.setattr(&OpCtx::as_user(&alice), &node, &size).unwrap().perm,
                after,
                "{before:o}"
            );
            let node = file_of_alice(&lane, &format!("a{n}"), before);
            let file = lane.vfs.open(&OpCtx::as_user(&alice), &node, O_RDWR).unwrap();
            file.fallocate(&OpCtx::as_user(&alice), 0, 0, 10).unwrap();
            assert_eq!(perm(&lane, &node), after, "fallocate of {before:o}");
        }
    }
}

/// By each change of contents: what counts is `CAP_FSETID`, not the user's number.
#[test]
fn set_id_bits_stay_for_who_has_the_capability() {
    let file_of_root = |lane: &Lane, name: &str| {
        let node = file_of_alice(lane, name, 0o600);
        let (uid, gid) = (Some(Uid(0)), Some(Gid(0)));
        lane.vfs
            .setattr(&OpCtx::service(), &node, &SetAttr { uid, gid, ..SetAttr::default() })
            .unwrap();
        let perm = Some(0o6777);
        lane.vfs
            .setattr(&OpCtx::service(), &node, &SetAttr { perm, ..SetAttr::default() })
            .unwrap();
        node
    };
    let (root, alice) = (Cred::root(), user(1, 10, &[]));
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    for (lane, fsetid) in [lane(), cached()].iter().flat_map(|lane| {
        [Fsetid::OfUser, Fsetid::Held, Fsetid::Dropped].map(|fsetid| (lane, fsetid))
    }) {
        let source = lane.file("source", b"some bytes");
        for who in [&root, &alice] {
            let who = &Cred { fsetid, ..who.clone() };
            let ctx = &OpCtx::as_user(who).kernel_checked();
            let keeps = match fsetid {
                Fsetid::OfUser => who.uid == Uid(0),
                Fsetid::Held => true,
                Fsetid::Dropped => false,
            };
            let changes: [(&str, Change<'_>); 5] = [
                ("write", &|file| _ = file.write(ctx, Some(0), &mut &b"x"[..]).unwrap()),
                ("fallocate", &|file| file.fallocate(ctx, 0, 0, 10).unwrap()),
                ("punch", &|file| file.fallocate(ctx, 3, 1 << 20, 4096).unwrap()),
                ("truncate", &|file| _ = lane.vfs.setattr(ctx, file.node(), &size).unwrap()),
                ("copy", &|file| _ = source.copy_range(ctx, 0, (file, 0), 5).unwrap()),
            ];
            for (what, change) in changes {
                let node = file_of_root(lane, what);
                change(&lane.vfs.open(&OpCtx::as_user(&root), &node, O_RDWR).unwrap());
                let after = if keeps { 0o6777 } else { 0o777 };
                assert_eq!(perm(lane, &node), after, "{what} by {:?}, {fsetid:?}", who.uid);
                lane.vfs.unlink(&OpCtx::as_user(&root), &lane.root, what.as_bytes()).unwrap();
            }
        }
        lane.vfs.unlink(&OpCtx::as_user(&root), &lane.root, b"source").unwrap();
    }
}

type Change<'a> = &'a dyn Fn(&OpenFile);

/// Whoever checked the rights: that a caller may write does not make a member of the group of it.
#[test]
fn changes_by_who_is_no_member_take_set_gid_away() {
    let (stranger, member) = (user(2, 99, &[7]), user(2, 99, &[7, 10]));
    let size = SetAttr { size: Some(3), ..SetAttr::default() };
    for (which, lane) in [lane(), cached()].iter().enumerate() {
        for (who, after) in [(&stranger, 0o666), (&member, 0o2666)] {
            let ctx = &OpCtx::as_user(who).kernel_checked();
            // The second punches where nothing lies: a way of its own.
            let changes: [(&str, Change<'_>); 4] = [
                ("write", &|file| _ = file.write(ctx, Some(0), &mut &b"x"[..]).unwrap()),
                ("fallocate", &|file| file.fallocate(ctx, 0, 0, 10).unwrap()),
                ("punch", &|file| file.fallocate(ctx, 3, 1 << 20, 4096).unwrap()),
                ("truncate", &|file| _ = lane.vfs.setattr(ctx, file.node(), &size).unwrap()),
            ];
            for (what, change) in changes {
                let node = file_of_alice(lane, &format!("{what}-{after:o}"), 0o6666);
                change(&lane.vfs.open(&OpCtx::service(), &node, O_RDWR).unwrap());
                assert_eq!(perm(lane, &node), after, "{what} of lane {which}");
            }
        }
    }
}

#[test]
fn devices_are_for_root_and_whiteouts_for_all() {
    let lane = lane();
    let all = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::service(), &lane.root, &all).unwrap();
    let alice = user(1, 10, &[]);
    let make = |cred: &Cred, name: &str, kind, rdev| {
        let new = Create { kind, perm: 0o666, umask: 0, rdev, target: b"" };
        lane.vfs.create(&OpCtx::as_user(cred), &lane.root, name.as_bytes(), &new)
    };
    assert_eq!(make(&alice, "null", Kind::Char, 0x103).err(), Some(Errno::EPERM));
    assert_eq!(make(&alice, "disk", Kind::Block, 0x800).err(), Some(Errno::EPERM));
    assert!(make(&alice, "gone", Kind::Char, 0).is_ok());
    assert!(make(&alice, "pipe", Kind::Fifo, 0).is_ok());
    let null = make(&Cred::root(), "null", Kind::Char, 0x103).unwrap();
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), &null).unwrap().rdev, 0x103);
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), &null).unwrap().mode(), 0o020_666);
}

#[test]
fn xattr_name_spaces() {
    let lane = lane();
    let file = file_of_alice(&lane, "f", 0o644);
    let link = lane.link("l", "f");
    let (alice, bob) = (user(1, 10, &[]), user(2, 99, &[]));
    let root = Cred::root();
    let set = |cred: &Cred, node: &Node, name: &[u8]| {
        lane.vfs.setxattr(&OpCtx::as_user(cred), node, name, b"v", XattrMode::Any).err()
    };
    let get = |cred: &Cred, node: &Node, name: &[u8]| {
        lane.vfs.getxattr(&OpCtx::as_user(cred), node, name)
    };
    assert_eq!(set(&alice, &file, b"user.a"), None);
    assert_eq!(set(&bob, &file, b"user.a"), Some(Errno::EACCES));
    assert_eq!(get(&bob, &file, b"user.a"), Ok(b"v".to_vec()));
    assert_eq!(set(&root, &link, b"user.a"), Some(Errno::EPERM));
    assert_eq!(get(&root, &link, b"user.a"), Err(Errno::ENODATA));
    assert_eq!(set(&alice, &file, b"trusted.a"), Some(Errno::EPERM));
    assert_eq!(set(&root, &file, b"trusted.a"), None);
    assert_eq!(get(&alice, &file, b"trusted.a"), Err(Errno::ENODATA));
    assert_eq!(set(&alice, &file, b"security.a"), Some(Errno::EPERM));
    assert_eq!(set(&root, &file, b"security.a"), None);
    assert_eq!(get(&alice, &file, b"security.a"), Ok(b"v".to_vec()));
    for name in [&b"system.posix_acl_accessory"[..], b"system.a", b"other.a", b"plain"] {
        assert_eq!(set(&root, &file, name), Some(Errno::EOPNOTSUPP));
        assert_eq!(get(&root, &file, name), Err(Errno::EOPNOTSUPP));
    }
    // Linux asks for permission before it finds that nothing keeps such attributes.
    assert_eq!(set(&bob, &file, b"other.a"), Some(Errno::EACCES));
    assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&bob), &file, b"other.a"), Err(Errno::EACCES));
    assert_eq!(get(&bob, &file, b"other.a"), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&bob, &file, b"system.a"), Some(Errno::EOPNOTSUPP));
    assert_eq!(set(&root, &file, b"user."), Some(Errno::EINVAL));
    assert_eq!(set(&root, &file, &[b'u'; 256]), Some(Errno::ERANGE));
    let big = vec![0; 65537];
    let big = lane.vfs.setxattr(&OpCtx::as_user(&root), &file, b"user.big", &big, XattrMode::Any);
    assert_eq!(big, Err(Errno::E2BIG));
    let list = |cred: &Cred| {
        let mut names = lane.vfs.listxattr(&OpCtx::as_user(cred), &file).unwrap();
        names.sort();
        names.join(&b' ')
    };
    assert_eq!(list(&alice), b"security.a user.a");
    assert_eq!(list(&root), b"security.a trusted.a user.a");
    let sticky = lane.make(&OpCtx::as_user(&root), "s", Kind::Dir, 0o777, "");
    lane.vfs
        .setattr(
            &OpCtx::as_user(&root),
            &sticky,
            &SetAttr { perm: Some(0o1777), ..Default::default() },
        )
        .unwrap();
    assert_eq!(set(&alice, &sticky, b"user.a"), Some(Errno::EPERM));
    assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&bob), &file, b"user.a"), Err(Errno::EACCES));
    assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&alice), &file, b"user.a"), Ok(()));
    assert_eq!(
        lane.vfs.removexattr(&OpCtx::as_user(&alice), &file, b"user.a"),
        Err(Errno::ENODATA)
    );
}

#[test]
fn a_read_only_file_system_refuses_every_change() {
    let lane = lane_with(options(), |character| character.read_only = true);
    let (root, vfs) = (Cred::root(), &lane.vfs);
    let erofs = Some(Errno::EROFS);
    assert_eq!(create(&lane, &root, &lane.root, "x", Kind::File, 0o644).err(), erofs);
    assert_eq!(vfs.setattr(&OpCtx::as_user(&root), &lane.root, &SetAttr::default()).err(), erofs);
    assert_eq!(vfs.access(&OpCtx::as_user(&root), &lane.root, 2).err(), erofs);
    assert_eq!(vfs.access(&OpCtx::as_user(&root), &lane.root, 5), Ok(()));
    assert_eq!(errno(lane.open("x", O_RDWR | O_CREAT)), erofs);
    assert_eq!(errno(lane.open("x", O_RDONLY)), Some(Errno::ENOENT));
    assert_eq!(errno(lane.open(".", O_RDWR | O_TMPFILE)), erofs);
    let xattr = vfs.setxattr(&OpCtx::as_user(&root), &lane.root, b"user.a", b"v", XattrMode::Any);
    assert_eq!(xattr.err(), erofs);
}

/// The last number is that of no user: no process could change or remove what belongs to it.
#[test]
fn nothing_is_given_to_the_number_of_nobody() {
    let lane = lane();
    let node = file_of_alice(&lane, "f", 0o644);
    let (uid, gid) = (Some(Uid(u32::MAX)), Some(Gid(u32::MAX)));
    for set in [
        SetAttr { uid, ..SetAttr::default() },
        SetAttr { gid, ..SetAttr::default() },
        SetAttr { uid, gid, perm: Some(0o600), ..SetAttr::default() },
    ] {
        for ctx in [OpCtx::service(), OpCtx::as_user(&Cred::root())] {
            assert_eq!(lane.vfs.setattr(&ctx, &node, &set).err(), Some(Errno::EINVAL));
        }
    }
    assert_eq!(perm(&lane, &node), 0o644);
}
