//! Inode state: modes, owners, times, extended attributes.

use super::{Check, Subject, node};
use polylane_base::{Errno, Gid, Time, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Kind, NewNode, SetAttr, SetTime, XattrMode};

pub(super) const CHECKS: &[Check] = &[
    ("new nodes have the given mode and owner", given_state),
    ("modes can be changed", chmod),
    ("owners can be changed", chown),
    ("times can be set", set_times),
    ("times move with changes", times_move),
    ("extended attributes", xattrs),
    ("large extended attributes", large_xattrs),
];

fn given_state(s: &Subject) {
    for (i, perm) in [0, 0o644, 0o4755, 0o2750, 0o1777, 0o7777].into_iter().enumerate() {
        for kind in [Kind::File, Kind::Dir, Kind::Fifo] {
            let (uid, gid) = if s.can.own { (Uid(1234), Gid(4321)) } else { super::own_ids() };
            let new = NewNode { uid, gid, ..node(kind, perm) };
            let name = format!("{kind:?}{i}");
            let made =
                s.fs.create(&OpCtx::service(), s.root(), name.as_bytes(), &new).unwrap().node;
            assert_eq!((made.perm, made.uid, made.gid), (perm, uid, gid), "{kind:?} {perm:o}");
            assert_eq!(s.lookup(s.root(), &name).unwrap().perm, perm);
        }
    }
    if s.can.own {
        let rdev = rustix::fs::makedev(1, 3);
        let new = NewNode { rdev, ..node(Kind::Char, 0o666) };
        assert_eq!(
            s.fs.create(&OpCtx::service(), s.root(), b"null", &new).unwrap().node.rdev,
            rdev
        );
        let new = NewNode { uid: Uid(7), gid: Gid(8), target: b"t", ..node(Kind::Symlink, 0o777) };
        let link = s.fs.create(&OpCtx::service(), s.root(), b"link", &new).unwrap().node;
        assert_eq!((link.uid, link.gid), (Uid(7), Gid(8)));
    }
}

fn chmod(s: &Subject) {
    for attr in [s.file("f"), s.mkdir(s.root(), "d"), s.create(s.root(), "p", Kind::Fifo).node] {
        for perm in [0o700, 0o7777, 0o755] {
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            let now = s.fs.setattr(&OpCtx::service(), attr.ino, &set).unwrap();
            assert_eq!((now.perm, now.kind), (perm, attr.kind));
        }
    }
}

fn chown(s: &Subject) {
    if !s.can.own {
        return;
    }
    for attr in [s.file("f"), s.mkdir(s.root(), "d"), s.create(s.root(), "l", Kind::Symlink).node] {
        let set = SetAttr { uid: Some(Uid(77)), ..SetAttr::default() };
        let now = s.fs.setattr(&OpCtx::service(), attr.ino, &set).unwrap();
        assert_eq!((now.uid, now.gid), (Uid(77), attr.gid));
        let set = SetAttr { gid: Some(Gid(88)), ..SetAttr::default() };
        let now = s.fs.setattr(&OpCtx::service(), attr.ino, &set).unwrap();
        assert_eq!((now.uid, now.gid), (Uid(77), Gid(88)));
    }
}

fn set_times(s: &Subject) {
    let at = |sec| SetTime::At(Time { sec, nsec: 123_456_789 });
    for attr in [s.file("f"), s.mkdir(s.root(), "d"), s.create(s.root(), "l", Kind::Symlink).node] {
        let set = SetAttr { atime: Some(at(1000)), mtime: Some(at(2000)), ..SetAttr::default() };
        let now = s.fs.setattr(&OpCtx::service(), attr.ino, &set).unwrap();
        assert_eq!(now.atime, Time { sec: 1000, nsec: 123_456_789 });
        assert_eq!(now.mtime, Time { sec: 2000, nsec: 123_456_789 });
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let now = s.fs.setattr(&OpCtx::service(), attr.ino, &set).unwrap();
        assert_eq!(now.atime.sec, 1000);
        assert!(now.mtime >= attr.mtime);
    }
}

fn times_move(s: &Subject) {
    if !s.can.fine_times {
        return;
    }
    let dir = s.mkdir(s.root(), "d");
    let made = s.create(dir.ino, "f", Kind::File);
    assert!(made.dir.mtime > dir.mtime && made.dir.ctime > dir.ctime);
    let mut file = made.node;
    let mut step = |what: &str, data: bool| {
        let now = s.fs.getattr(&OpCtx::service(), file.ino).unwrap();
        assert!(now.ctime > file.ctime, "{what}: ctime");
        assert_eq!(now.mtime > file.mtime, data, "{what}: mtime");
        assert_eq!(now.btime, file.btime, "{what}: btime");
        file = now;
    };
    s.write(made.node.ino, 0, b"x");
    step("write", true);
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    s.fs.setattr(&OpCtx::service(), made.node.ino, &set).unwrap();
    step("chmod", false);
    let set = SetAttr { size: Some(1), ..SetAttr::default() };
    s.fs.setattr(&OpCtx::service(), made.node.ino, &set).unwrap();
    step("truncate to the same size", true);
    s.fs.link(&OpCtx::service(), made.node.ino, dir.ino, b"g").unwrap();
    step("link", false);
    s.fs.unlink(&OpCtx::service(), dir.ino, b"g").unwrap();
    step("unlink", false);
    s.fs.setxattr(&OpCtx::service(), made.node.ino, b"user.x", b"", XattrMode::Any).unwrap();
    step("setxattr", false);
}

fn xattrs(s: &Subject) {
    if !s.can.xattrs {
        return;
    }
    for ino in [s.file("f").ino, s.mkdir(s.root(), "d").ino] {
        let set = |name: &[u8], value: &[u8], mode| {
            s.fs.setxattr(&OpCtx::service(), ino, name, value, mode)
                .map(|attr| assert_eq!(attr.ino, ino))
        };
        assert_eq!(s.fs.getxattr(&OpCtx::service(), ino, b"user.a"), Err(Errno::ENODATA));
        assert_eq!(set(b"user.a", b"1", XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(set(b"user.a", b"1", XattrMode::Create), Ok(()));
        assert_eq!(set(b"user.a", b"2", XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(set(b"user.a", b"\0\xff", XattrMode::Replace), Ok(()));
        assert_eq!(set(b"user.b", b"", XattrMode::Any), Ok(()));
        assert_eq!(s.fs.getxattr(&OpCtx::service(), ino, b"user.a").unwrap(), b"\0\xff");
        assert_eq!(s.fs.getxattr(&OpCtx::service(), ino, b"user.b").unwrap(), b"");
        let mut names = s.fs.listxattr(&OpCtx::service(), ino).unwrap();
        names.sort();
        assert_eq!(names, [b"user.a", b"user.b"]);
        s.fs.removexattr(&OpCtx::service(), ino, b"user.a").unwrap();
        assert_eq!(
            s.fs.removexattr(&OpCtx::service(), ino, b"user.a").unwrap_err(),
            Errno::ENODATA
        );
        assert_eq!(s.fs.listxattr(&OpCtx::service(), ino).unwrap(), [b"user.b"]);
        assert_eq!(
            s.fs.getxattr(&OpCtx::service(), ino, b"nonsense").unwrap_err(),
            Errno::EOPNOTSUPP
        );
    }
}

fn large_xattrs(s: &Subject) {
    if !s.can.xattrs {
        return;
    }
    // ext4 keeps no more than a block; every host keeps 3000 bytes.
    let ino = s.file("f").ino;
    let value = vec![b'v'; 3000];
    s.fs.setxattr(&OpCtx::service(), ino, b"user.large", &value, XattrMode::Any).unwrap();
    assert_eq!(s.fs.getxattr(&OpCtx::service(), ino, b"user.large").unwrap(), value);
    let huge = vec![b'h'; 70_000];
    assert!(s.fs.setxattr(&OpCtx::service(), ino, b"user.huge", &huge, XattrMode::Any).is_err());
    let long = [b"user.".as_slice(), &[b'n'; 251]].concat();
    assert!(s.fs.setxattr(&OpCtx::service(), ino, &long, b"", XattrMode::Any).is_err());
    assert_eq!(s.fs.getxattr(&OpCtx::service(), ino, b"user.large").unwrap(), value);
}
