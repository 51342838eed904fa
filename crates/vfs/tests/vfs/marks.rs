//! Marks: whether what was found at a path is known to hold still, change by change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use polylane_testkit::acl;
use polylane_vfs::fs::{AclKind, SetAttr, XattrMode};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{
    Create, Cred, Holder, Kind, Look, MARK_PLACES, Mark, Marker, Node, OpCtx, PathError,
    RENAME_EXCHANGE, Vfs,
};

use crate::common::options;

struct Board(Vec<AtomicU64>);

impl Marker for Board {
    fn raise(&self, place: u32) {
        self.0[place as usize].fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self, place: u32) -> u64 {
        self.0[place as usize].load(Ordering::SeqCst)
    }
}

struct House {
    vfs: Arc<Vfs>,
    board: Arc<Board>,
    cred: Cred,
}

/// What was found: an inode number, or nothing.
type Found = (Option<u64>, Mark);

impl House {
    /// d/f, d/s/g, l → d/f, w → d
    fn new() -> House {
        let vfs = {
            let options = options();
            Vfs::new(Arc::new(MemFs::new(1 << 20, 1000, options.clock.clone())), options)
        }
        .unwrap();
        let board = Arc::new(Board((0..MARK_PLACES).map(|_| AtomicU64::new(0)).collect()));
        assert!(vfs.mark_with(board.clone()) && !vfs.mark_with(board.clone()));
        let house = House { vfs, board, cred: Cred::root() };
        let root = house.vfs.root();
        let d = house.make(&root, "d", Kind::Dir, "");
        house.make(&d, "f", Kind::File, "");
        let s = house.make(&d, "s", Kind::Dir, "");
        house.make(&s, "g", Kind::File, "");
        house.make(&root, "l", Kind::Symlink, "d/f");
        house.make(&root, "w", Kind::Symlink, "d");
        house
    }

    fn make(&self, dir: &Node, name: &str, kind: Kind, target: &str) -> Node {
        let new = Create { kind, perm: 0o755, umask: 0, rdev: 0, target: target.as_bytes() };
        self.vfs.create(&OpCtx::as_user(&self.cred), dir, name.as_bytes(), &new).unwrap()
    }

    fn node(&self, path: &str) -> Node {
        self.vfs
            .resolve(&OpCtx::as_user(&self.cred), &self.vfs.root(), path.as_bytes(), false)
            .unwrap()
    }

    fn try_find(&self, path: &str) -> (Option<u64>, Option<Mark>) {
        let path = (&self.vfs.root(), path.as_bytes());
        let ask = |node: &Node, _| {
            let attr = self.vfs.getattr(&OpCtx::service(), node);
            attr.map(|attr| attr.ino.0)
        };
        match self.vfs.resolve_marked(&OpCtx::as_user(&self.cred), path, true, ask) {
            (Ok(ino), mark) => (Some(ino), mark),
            (Err(PathError::Errno(polylane_base::Errno::ENOENT)), mark) => (None, mark),
            (Err(error), _) => panic!("{error:?}"),
        }
    }

    fn find(&self, path: &str) -> Found {
        let (found, mark) = self.try_find(path);
        (found, mark.unwrap_or_else(|| panic!("{path} has no mark")))
    }

    fn holds(&self, (_, mark): &Found) -> bool {
        let count = |place| self.board.count(place);
        count(0) + count(mark.name) + count(mark.state) == mark.sum
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str), flags: u32) {
        let dir = |path: &str| if path.is_empty() { self.vfs.root() } else { self.node(path) };
        let (from_dir, to_dir) = (dir(from.0), dir(to.0));
        let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
        self.vfs.rename(&OpCtx::as_user(&self.cred), &from_dir, from, &to_dir, to, flags).unwrap();
    }

    fn set_perm(&self, path: &str) {
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::as_user(&self.cred), &self.node(path), &set).unwrap();
    }

    fn set_acl(&self, path: &str, kind: AclKind) {
        let (node, value) = (self.node(path), acl::naming_one(7));
        self.vfs
            .setxattr(&OpCtx::as_user(&self.cred), &node, kind.name(), &value, XattrMode::Any)
            .unwrap();
    }

    fn unlink(&self, dir: &str, name: &str) {
        let dir = if dir.is_empty() { self.vfs.root() } else { self.node(dir) };
        self.vfs.unlink(&OpCtx::as_user(&self.cred), &dir, name.as_bytes()).unwrap();
    }
}

/// Who changes what, and whose answers are void then.
type Row = (&'static str, fn(&House), &'static [&'static str]);

const PATHS: [&str; 8] = ["d/f", "d/s/g", "l", "w/f", "d/none", "none", "d/s/none", "d"];

const ROWS: &[Row] = &[
    ("nothing", |_| (), &[]),
    ("a file is made", |h| drop(h.make(&h.node("d"), "none", Kind::File, "")), &["d/none", "d"]),
    ("another file is made", |h| drop(h.make(&h.node("d/s"), "x", Kind::File, "")), &[]),
    ("a file is removed", |h| h.unlink("d", "f"), &["d/f", "l", "w/f", "d"]),
    ("a file changes its rights", |h| h.set_perm("d/f"), &["d/f", "l", "w/f"]),
    (
        "a file is renamed",
        |h| h.rename(("d", "f"), ("d/s", "none"), 0),
        &["d/f", "l", "w/f", "d/s/none", "d"],
    ),
    (
        "files change places",
        |h| h.rename(("d", "f"), ("d/s", "g"), RENAME_EXCHANGE),
        &["d/f", "l", "w/f", "d/s/g", "d"],
    ),
    (
        "a file gets a second name",
        |h| h.vfs.link(&OpCtx::as_user(&h.cred), &h.node("d/f"), &h.vfs.root(), b"none").unwrap(),
        &["d/f", "l", "w/f", "none"],
    ),
    (
        "a file gets an access control list",
        |h| h.set_acl("d/f", AclKind::Access),
        &["d/f", "l", "w/f"],
    ),
    ("a directory gets one", |h| h.set_acl("d", AclKind::Access), &PATHS),
    ("a directory moves", |h| h.rename(("d", "s"), ("", "s"), 0), &PATHS),
    ("a directory changes its rights", |h| h.set_perm("d"), &PATHS),
    ("a link goes", |h| h.unlink("", "w"), &PATHS),
    ("a link is renamed", |h| h.rename(("", "l"), ("", "k"), 0), &PATHS),
];

#[test]
fn what_a_change_touches_holds_no_more() {
    for (what, change, void) in ROWS {
        let house = House::new();
        let found = PATHS.map(|path| (path, house.find(path)));
        change(&house);
        for (path, found) in &found {
            assert_eq!(house.holds(found), !void.contains(path), "{what}: {path}");
        }
    }
}

#[test]
fn a_file_that_is_written_holds_no_more() {
    let house = House::new();
    let found = house.find("d/f");
    let file = house.vfs.open(&OpCtx::as_user(&house.cred), &house.node("d/f"), 1).unwrap();
    file.write(&OpCtx::as_user(&house.cred), Some(0), &mut &b"abc"[..]).unwrap();
    assert!(!house.holds(&found));
}

#[test]
fn a_removed_directory_takes_what_is_not_in_it_along() {
    let house = House::new();
    let d = house.node("d");
    house.make(&d, "t", Kind::Dir, "");
    let found = house.find("d/t/none");
    assert_eq!(found.0, None);
    house.vfs.rmdir(&OpCtx::as_user(&house.cred), &d, b"t").unwrap();
    assert!(!house.holds(&found));
}

struct Nobody;

impl Holder for Nobody {
    fn settle(&self) {}

    fn revoke(&self) {}
}

#[test]
fn a_lease_voids_what_is_known_and_nothing_in_it_is_marked() {
    let house = House::new();
    let found = PATHS.map(|path| house.find(path));
    let holder: Weak<dyn Holder> = Weak::<Nobody>::new();
    let start = house.vfs.root();
    let path = (&start, &b"d"[..]);
    let names = &mut |_: &[u8], _| true;
    let dir = house
        .vfs
        .lease(&OpCtx::as_user(&house.cred), path, holder, Look::Names, names)
        .unwrap()
        .unwrap();
    assert!(found.iter().all(|found| !house.holds(found)));
    // The holder itself: it looks its own directory up without ending the lease.
    for path in ["d/f", "d/none", "d", "l"] {
        assert!(house.try_find(path).1.is_none(), "{path}");
    }
    house.vfs.end_lease(&dir);
    assert!(house.holds(&house.find("d/f")));
}

#[test]
fn a_loan_voids_the_state() {
    let house = House::new();
    let node = house.node("d/f");
    let found = house.find("d/f");
    // Nobody has a view of it, so it is not lent, and nothing changes.
    assert!(!house.vfs.lend(&node, 1, &mut || true));
    assert!(house.holds(&found));
}

#[test]
fn what_is_forgotten_holds_no_more() {
    let house = House::new();
    let found = [house.find("d/f"), house.find("d/s/none")];
    let board = house.board.clone();
    drop(house.vfs);
    let count = |place| board.count(place);
    for (_, mark) in found {
        assert_ne!(count(0) + count(mark.name) + count(mark.state), mark.sum);
    }
}
