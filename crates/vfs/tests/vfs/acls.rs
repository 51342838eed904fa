//! Access control lists of live inodes: who may set them, what they decide, what follows a chmod,
//! what new inodes inherit, and that nobody gets more than both states grant while they change.

use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::{Errno, Gid, Uid};
use polylane_testkit::acl::{NOBODY, value};
use polylane_testkit::fault::Call;
use polylane_vfs::fs::{AclKind, SetAttr, XattrMode};
use polylane_vfs::{Create, Cred, Kind, Node, OpCtx};

use crate::common::*;

const ACCESS: &[u8] = AclKind::Access.name();
const DEFAULT: &[u8] = AclKind::Default.name();

/// `u::7 u:2:5 g::4 m::5 o::0`, with tags as setfacl(1) writes them.
fn acl(text: &str) -> Vec<u8> {
    let entry = |entry: &str| {
        let mut parts = entry.split(':');
        let (class, id) = (parts.next().unwrap(), parts.next().unwrap());
        let rights: u16 = parts.next().unwrap().parse().unwrap();
        let tag: u16 = match (class, id.is_empty()) {
            ("u", true) => 1,
            ("u", false) => 2,
            ("g", true) => 4,
            ("g", false) => 8,
            ("m", _) => 16,
            _ => 32,
        };
        (tag, rights, id.parse().unwrap_or(NOBODY))
    };
    value(text.split(' ').map(entry))
}

impl Lane {
    fn set(&self, cred: &Cred, node: &Node, name: &[u8], text: &str) -> Result<(), Errno> {
        self.vfs.setxattr(&OpCtx::as_user(cred), node, name, &acl(text), XattrMode::Any)
    }

    fn perm(&self, node: &Node) -> u32 {
        self.vfs.getattr(&OpCtx::service(), node).unwrap().perm
    }

    fn list(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.vfs.getxattr(&OpCtx::service(), node, name)
    }

    fn chmod(&self, node: &Node, perm: u32) {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::service(), node, &set).unwrap();
    }

    /// Something of user 1 and group 10.
    fn of_alice(&self, name: &str, kind: Kind, perm: u32) -> Node {
        let node = self.make(&OpCtx::service(), name, kind, 0, "");
        let owner = SetAttr { uid: Some(Uid(1)), gid: Some(Gid(10)), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::service(), &node, &owner).unwrap();
        self.chmod(&node, perm);
        node
    }

    /// The rights that somebody has, as a mask.
    fn rights(&self, cred: &Cred, node: &Node) -> u32 {
        let may = |mask: &u32| self.vfs.access(&OpCtx::as_user(cred), node, *mask).is_ok();
        [4, 2, 1].into_iter().filter(may).sum()
    }
}

#[test]
fn a_list_decides_and_shows_in_the_mode() {
    for lane in [lane(), cached()] {
        let file = lane.of_alice("f", Kind::File, 0o640);
        let (bob, member) = (user(2, 99, &[10]), user(3, 10, &[]));
        let text = "u::6 u:2:7 g::4 g:11:7 m::6 o::0";
        lane.set(&user(1, 99, &[]), &file, ACCESS, text).unwrap();
        assert_eq!(lane.perm(&file), 0o660);
        assert_eq!(lane.list(&file, ACCESS), Ok(acl(text)));
        assert_eq!(lane.vfs.listxattr(&OpCtx::as_user(&bob), &file).unwrap(), [ACCESS.to_vec()]);
        assert_eq!(lane.rights(&bob, &file), 6, "named, though a member of the group");
        assert_eq!(lane.rights(&member, &file), 4, "the group bits are the mask");
        assert_eq!(lane.rights(&user(3, 99, &[11]), &file), 6);
        assert_eq!(lane.rights(&user(3, 99, &[]), &file), 0);
        assert_eq!(lane.rights(&Cred::root(), &file), 6);
        // chmod changes the mask; the entries stay, and come back with it.
        lane.chmod(&file, 0o604);
        assert_eq!(lane.list(&file, ACCESS), Ok(acl("u::6 u:2:7 g::4 g:11:7 m::0 o::4")));
        // As Linux: with a mask of nothing, who is named is one of the others.
        assert_eq!((lane.rights(&bob, &file), lane.rights(&member, &file)), (0, 0));
        assert_eq!(lane.rights(&user(2, 99, &[]), &file), 4);
        lane.chmod(&file, 0o670);
        assert_eq!(lane.rights(&bob, &file), 7);
        assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&user(1, 10, &[])), &file, ACCESS), Ok(()));
        assert_eq!(lane.perm(&file), 0o670);
        assert_eq!(lane.list(&file, ACCESS), Err(Errno::ENODATA));
        assert_eq!(lane.vfs.removexattr(&OpCtx::service(), &file, ACCESS), Ok(()));
        assert_eq!(lane.rights(&bob, &file), 7, "by his group now");
    }
}

#[test]
fn a_list_that_the_mode_says_is_not_kept() {
    let lane = lane();
    let file = lane.of_alice("f", Kind::File, 0o2610);
    lane.set(&Cred::root(), &file, ACCESS, "u::7 u:2:7 g::5 m::7 o::1").unwrap();
    lane.set(&Cred::root(), &file, ACCESS, "u::6 g::5 o::4").unwrap();
    assert_eq!(lane.perm(&file), 0o2654);
    assert_eq!(lane.list(&file, ACCESS), Err(Errno::ENODATA));
    // Its owner, who is not of its group, loses the set-gid bit.
    lane.set(&user(1, 99, &[10]), &file, ACCESS, "u::6 g::4 o::4").unwrap();
    assert_eq!(lane.perm(&file), 0o2644);
    lane.set(&user(1, 99, &[]), &file, ACCESS, "u::6 g::4 o::4").unwrap();
    assert_eq!(lane.perm(&file), 0o644);
    let empty = [2, 0, 0, 0];
    for value in [&empty[..], b""] {
        lane.set(&Cred::root(), &file, ACCESS, "u::7 u:2:7 g::5 m::7 o::1").unwrap();
        lane.vfs.setxattr(&OpCtx::service(), &file, ACCESS, value, XattrMode::Create).unwrap();
        assert_eq!(lane.list(&file, ACCESS), Err(Errno::ENODATA));
    }
}

#[test]
fn who_may_set_what_where() {
    let lane = lane();
    let (file, dir) = (lane.of_alice("f", Kind::File, 0o666), lane.of_alice("d", Kind::Dir, 0o777));
    let link = lane.link("l", "f");
    let (alice, bob, text) = (user(1, 10, &[]), user(2, 10, &[]), "u::7 u:2:7 g::5 m::7 o::1");
    for (node, name) in [(&file, ACCESS), (&dir, ACCESS), (&dir, DEFAULT)] {
        assert_eq!(lane.set(&bob, node, name, text), Err(Errno::EPERM));
        assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&bob), node, name), Err(Errno::EPERM));
        assert_eq!(lane.set(&alice, node, name, text), Ok(()));
        assert_eq!(lane.set(&alice, node, name, "u::7 u:2:7 g::5 o::1"), Err(Errno::EINVAL));
        assert_eq!(lane.list(node, name), Ok(acl(text)));
    }
    // The kernel looks at what the list says last.
    for list in [text, "u::7"] {
        assert_eq!(lane.set(&alice, &file, DEFAULT, list), Err(Errno::EACCES));
        assert_eq!(lane.set(&bob, &file, ACCESS, list), Err(Errno::EPERM));
    }
    assert_eq!(lane.vfs.removexattr(&OpCtx::as_user(&alice), &file, DEFAULT), Ok(()));
    assert_eq!(lane.set(&Cred::root(), &link, ACCESS, text), Err(Errno::EOPNOTSUPP));
    assert_eq!(lane.list(&link, ACCESS), Err(Errno::EOPNOTSUPP));
    let none = lane_with(options(), |character| character.acls = false);
    let file = none.of_alice("f", Kind::File, 0o666);
    assert_eq!(none.set(&alice, &file, ACCESS, text), Err(Errno::EOPNOTSUPP));
    assert_eq!(none.list(&file, ACCESS), Err(Errno::EOPNOTSUPP));
    let fixed = lane_with(options(), |character| character.read_only = true);
    assert_eq!(fixed.set(&Cred::root(), &fixed.root, ACCESS, text), Err(Errno::EROFS));
}

#[test]
fn walks_changes_of_names_and_opens_ask_the_list() {
    let lane = lane();
    let dir = lane.of_alice("d", Kind::Dir, 0o755);
    drop(lane.file("d/f", b"x"));
    let file = lane.get("d/f").ok().unwrap();
    let bob = user(2, 99, &[]);
    let open =
        |flags| errno(lane.vfs.open_path(&OpCtx::as_user(&bob), &lane.root, b"d/f", flags, 0, 0));
    assert_eq!(open(O_RDONLY), None);
    lane.set(&Cred::root(), &dir, ACCESS, "u::7 u:2:6 g::5 m::7 o::5").unwrap();
    assert_eq!(open(O_RDONLY), Some(Errno::EACCES), "no right to search");
    let make = |name: &[u8]| {
        let new = Create { kind: Kind::File, perm: 0o644, umask: 0, rdev: 0, target: b"" };
        lane.vfs.create(&OpCtx::as_user(&bob), &dir, name, &new).err()
    };
    assert_eq!(make(b"n"), Some(Errno::EACCES));
    lane.set(&Cred::root(), &dir, ACCESS, "u::7 u:2:7 g::5 m::7 o::0").unwrap();
    assert_eq!((make(b"n"), lane.vfs.unlink(&OpCtx::as_user(&bob), &dir, b"n")), (None, Ok(())));
    lane.chmod(&dir, 0o1770);
    assert_eq!(lane.vfs.unlink(&OpCtx::as_user(&bob), &dir, b"f"), Err(Errno::EPERM), "sticky");
    lane.set(&Cred::root(), &file, ACCESS, "u::6 u:2:2 g::4 m::6 o::4").unwrap();
    assert_eq!((open(O_WRONLY), open(O_RDONLY)), (None, Some(Errno::EACCES)));
}

#[test]
fn what_is_made_inherits() {
    for lane in [lane(), cached()] {
        let root = Cred::root();
        let dir = lane.of_alice("d", Kind::Dir, 0o2777);
        let text = "u::7 u:2:7 g::5 m::7 o::5";
        lane.set(&root, &dir, DEFAULT, text).unwrap();
        assert_eq!(lane.perm(&dir), 0o2777);
        let make = |name: &[u8], kind, perm| {
            let target: &[u8] = if kind == Kind::Symlink { b"t" } else { b"" };
            let new = Create { kind, perm, umask: 0o77, rdev: 0, target };
            lane.vfs.create(&OpCtx::service(), &dir, name, &new).unwrap()
        };
        let file = make(b"f", Kind::File, 0o664);
        // The umask does not count; the mode does.
        assert_eq!(lane.perm(&file), 0o664);
        assert_eq!(lane.list(&file, ACCESS), Ok(acl("u::6 u:2:7 g::5 m::6 o::4")));
        assert_eq!(lane.list(&file, DEFAULT), Err(Errno::ENODATA));
        assert_eq!(lane.rights(&user(2, 99, &[]), &file), 6);
        let below = make(b"s", Kind::Dir, 0o750);
        assert_eq!(lane.perm(&below), 0o2750);
        assert_eq!(lane.list(&below, ACCESS), Ok(acl("u::7 u:2:7 g::5 m::5 o::0")));
        assert_eq!(lane.list(&below, DEFAULT), Ok(acl(text)));
        assert_eq!(lane.perm(&make(b"p", Kind::Fifo, 0o600)), 0o600);
        let link = make(b"l", Kind::Symlink, 0);
        assert_eq!(lane.perm(&link), 0o777);
        let nameless = lane.vfs.create_unlinked(&OpCtx::service(), &dir, 0o640, 0o777).unwrap();
        assert_eq!(lane.list(&nameless, ACCESS), Ok(acl("u::6 u:2:7 g::5 m::4 o::0")));
        // A plain default list is a umask of the directory's own.
        lane.set(&root, &dir, DEFAULT, "u::7 g::7 o::0").unwrap();
        let plain = make(b"q", Kind::File, 0o666);
        assert_eq!(lane.perm(&plain), 0o660);
        assert_eq!(lane.list(&plain, ACCESS), Err(Errno::ENODATA));
        lane.vfs.removexattr(&OpCtx::service(), &dir, DEFAULT).unwrap();
        assert_eq!(lane.perm(&make(b"r", Kind::File, 0o666)), 0o600);
        // Forgotten and found again it is the same.
        drop((file, below));
        lane.vfs.sync(&OpCtx::service()).unwrap();
        assert_eq!(lane.rights(&user(2, 99, &[]), &lane.get("d/f").ok().unwrap()), 6);
    }
}

#[test]
fn an_inode_without_a_list_is_looked_at_once() {
    let lane = lane();
    let dir = lane.dir("d");
    let file = lane.of_alice("d/f", Kind::File, 0o664);
    let before = lane.fs.calls(Call::Look);
    let bob = user(2, 99, &[]);
    for _ in 0..10 {
        assert_eq!(lane.rights(&bob, &file), 4);
        lane.vfs.lookup(&OpCtx::as_user(&bob), &dir, b"f").unwrap();
    }
    assert_eq!(lane.fs.calls(Call::Look), before, "what is new has none");
    lane.set(&Cred::root(), &file, ACCESS, "u::6 u:2:6 g::4 m::6 o::4").unwrap();
    let before = lane.fs.calls(Call::Look);
    for _ in 0..10 {
        assert_eq!(lane.rights(&bob, &file), 6);
    }
    assert_eq!(lane.fs.calls(Call::Look), before, "and what was set is known");
}

#[test]
fn what_cannot_be_read_forbids() {
    let lane = lane();
    let bob = user(2, 99, &[]);
    // The root was there before; nobody knows of its list yet.
    lane.fs.fail_always(Call::Look, Some(Errno::EIO));
    assert_eq!(lane.vfs.access(&OpCtx::as_user(&bob), &lane.root, 1), Err(Errno::EIO));
    assert_eq!(lane.vfs.access(&OpCtx::service(), &lane.root, 1), Ok(()));
    lane.fs.fail_always(Call::Look, None);
    assert_eq!(lane.vfs.access(&OpCtx::as_user(&bob), &lane.root, 1), Ok(()));
    let file = lane.of_alice("f", Kind::File, 0o640);
    lane.fs.fail_once(Call::Change, 0, Errno::ENOSPC);
    let text = "u::6 u:2:6 g::4 m::6 o::0";
    assert_eq!(lane.set(&Cred::root(), &file, ACCESS, text), Err(Errno::ENOSPC));
    assert_eq!((lane.perm(&file), lane.rights(&bob, &file)), (0o640, 0));
    assert_eq!(lane.list(&file, ACCESS), Err(Errno::ENODATA));
}

/// The group has nothing under the list and the right to read without it; the mask has all.
#[test]
fn nobody_is_judged_by_the_mask_while_lists_come_and_go() {
    let lane = lane();
    let file = lane.of_alice("f", Kind::File, 0o640);
    let (member, bob) = (user(3, 10, &[]), user(2, 99, &[]));
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(lane.rights(&member, &file) & 3, 0, "of the mask");
                    assert_eq!(lane.rights(&user(4, 99, &[]), &file), 0);
                }
            });
        }
        for _ in 0..20_000 {
            lane.set(&Cred::root(), &file, ACCESS, "u::6 u:2:7 g::0 m::7 o::0").unwrap();
            assert_eq!((lane.rights(&bob, &file), lane.rights(&member, &file)), (7, 0));
            lane.set(&Cred::root(), &file, ACCESS, "u::6 g::4 o::0").unwrap();
            assert_eq!((lane.rights(&bob, &file), lane.rights(&member, &file)), (0, 4));
        }
        done.store(true, Ordering::Relaxed);
    });
}
