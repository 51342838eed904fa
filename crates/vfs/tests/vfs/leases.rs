//! Leases on directories: who ends them, who has them settled, who leaves them alone; row by row of
//! the table at the head of `lease.rs`. The holder is a front end of few lines: a queue of changes,
//! applied in order by streamed calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, Uid};
use polylane_testkit::acl;
use polylane_vfs::fs::{AclKind, SetAttr, SetTime, XattrMode};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{
    Create, Cred, Holder, Kind, Leased, Look, Node, OpCtx, Origin, PathError, RENAME_EXCHANGE, Vfs,
    flags,
};

use crate::common::{self, O_CREAT, O_RDONLY, O_TMPFILE, errno, options, user};

/// Names that a holder has room for.
const ROOM: u32 = 64;

#[derive(Clone, Debug)]
enum Change {
    Make(String),
    Rename(String, String),
    Unlink(String),
}

#[derive(Default)]
struct State {
    dir: Option<Leased>,
    waiting: Vec<Change>,
    room: u32,
}

/// A session with at most one lease.
struct Session {
    vfs: Arc<Vfs>,
    number: u64,
    cred: Cred,
    state: Mutex<State>,
    /// Ends of leases, for the grant that overlaps one.
    ends: AtomicU32,
    settled: AtomicU32,
    revoked: AtomicU32,
    failed: AtomicU32,
    streamed: AtomicU32,
}

/// What `session` does on behalf of `cred`.
fn by(session: u64, cred: &Cred) -> OpCtx<'_> {
    OpCtx::new(Origin::Library { session }, cred)
}

impl Session {
    fn new(vfs: &Arc<Vfs>, number: u64) -> Arc<Session> {
        Session::of(vfs, number, Cred::root())
    }

    fn of(vfs: &Arc<Vfs>, number: u64, cred: Cred) -> Arc<Session> {
        Arc::new(Session {
            vfs: vfs.clone(),
            number,
            cred,
            state: Mutex::default(),
            ends: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            revoked: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            streamed: AtomicU32::new(0),
        })
    }

    fn ctx(&self) -> OpCtx<'_> {
        by(self.number, &self.cred)
    }

    fn streamed(&self) -> OpCtx<'_> {
        OpCtx { streamed: true, ..self.ctx() }
    }

    fn lease(self: &Arc<Self>, start: &Node, path: &str) -> Result<BTreeSet<String>, PathError> {
        Ok(self.lease_and_sole(start, path, Look::Names)?.into_keys().collect())
    }

    /// The same, and which names are sole.
    fn lease_and_sole(
        self: &Arc<Self>,
        start: &Node,
        path: &str,
        look: Look,
    ) -> Result<BTreeMap<String, bool>, PathError> {
        let ends = self.ends.load(Ordering::SeqCst);
        let mut names = BTreeMap::new();
        let weak: Weak<Session> = Arc::downgrade(self);
        let path = (start, path.as_bytes());
        let dir = self.vfs.lease(&self.ctx(), path, weak, look, &mut |name, sole| {
            names.insert(String::from_utf8(name.to_vec()).unwrap(), sole);
            true
        })?;
        let Some(dir) = dir else { return Err(Errno(libc::EINPROGRESS).into()) };
        let mut state = self.state.lock().unwrap();
        if self.ends.load(Ordering::SeqCst) != ends || self.vfs.reserve_names(ROOM).is_err() {
            self.vfs.end_lease(&dir);
            return Err(Errno::EAGAIN.into());
        }
        *state = State { dir: Some(dir), waiting: Vec::new(), room: ROOM };
        Ok(names)
    }

    /// What the client does: true if it could, as long as there is a lease.
    fn stream(&self, change: Change) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.dir.is_none() {
            return false;
        }
        if state.waiting.len() == ROOM as usize {
            self.apply(&mut state);
        }
        if state.dir.is_some() {
            state.waiting.push(change);
            self.streamed.fetch_add(1, Ordering::SeqCst);
        }
        state.dir.is_some()
    }

    fn make(&self, name: &str) {
        assert!(self.stream(Change::Make(name.into())));
    }

    fn has_lease(&self) -> bool {
        self.state.lock().unwrap().dir.is_some()
    }

    fn counts(&self) -> (u32, u32) {
        (self.settled.load(Ordering::SeqCst), self.revoked.load(Ordering::SeqCst))
    }

    fn apply(&self, state: &mut State) {
        let Some(leased) = state.dir.clone() else { return };
        let dir = leased.dir();
        let ctx = &self.streamed();
        for change in std::mem::take(&mut state.waiting) {
            let done = match &change {
                Change::Make(name) => {
                    let new =
                        Create { kind: Kind::File, perm: 0o644, umask: 0, rdev: 0, target: b"" };
                    self.vfs.create(ctx, dir, name.as_bytes(), &new).map(|_| state.room -= 1)
                }
                Change::Rename(a, b) => {
                    self.vfs.rename(ctx, dir, a.as_bytes(), dir, b.as_bytes(), 0)
                }
                Change::Unlink(name) => self.vfs.unlink(ctx, dir, name.as_bytes()),
            };
            if let Err(error) = done {
                eprintln!("{change:?}: {error:?}");
                self.failed.fetch_add(1, Ordering::SeqCst);
            }
        }
        let missing = ROOM - state.room;
        if self.vfs.reserve_names(missing).is_ok() {
            state.room = ROOM;
        } else {
            self.end(state);
        }
    }

    fn end(&self, state: &mut State) {
        if let Some(dir) = state.dir.take() {
            self.vfs.end_lease(&dir);
            self.vfs.release_names(std::mem::take(&mut state.room));
        }
    }
}

impl Holder for Session {
    fn settle(&self) {
        self.settled.fetch_add(1, Ordering::SeqCst);
        self.apply(&mut self.state.lock().unwrap());
    }

    fn revoke(&self) {
        self.revoked.fetch_add(1, Ordering::SeqCst);
        self.ends.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        self.apply(&mut state);
        self.end(&mut state);
    }
}

struct Lane {
    vfs: Arc<Vfs>,
    root: Node,
}

/// With `d` and, beside it, `d/sub`, `d/old`, `e`, and the link `l` to `d`.
fn lane() -> Lane {
    lane_of(1 << 20)
}

fn lane_of(inodes: u64) -> Lane {
    let options = options();
    let fs = MemFs::new(1 << 30, inodes, options.clock.clone());
    let vfs = Vfs::new(Arc::new(fs), options).unwrap();
    let root = vfs.root();
    let lane = Lane { vfs, root };
    lane.make("d", Kind::Dir, "");
    lane.make("d/sub", Kind::Dir, "");
    lane.make("d/old", Kind::File, "");
    lane.make("e", Kind::Dir, "");
    lane.make("l", Kind::Symlink, "d");
    lane
}

impl Lane {
    fn make(&self, path: &str, kind: Kind, target: &str) -> Node {
        self.make_as(&OpCtx::service(), path, kind, target).unwrap()
    }

    fn make_as(
        &self,
        ctx: &OpCtx<'_>,
        path: &str,
        kind: Kind,
        target: &str,
    ) -> Result<Node, Errno> {
        let last = self.vfs.resolve_parent(ctx, &self.root, path.as_bytes()).unwrap();
        let perm = if kind == Kind::Dir { 0o755 } else { 0o644 };
        let new = Create { kind, perm, umask: 0, rdev: 0, target: target.as_bytes() };
        self.vfs.create(ctx, &last.dir, &last.name, &new)
    }

    fn get(&self, path: &str) -> Result<Node, PathError> {
        self.vfs.resolve(&OpCtx::service(), &self.root, path.as_bytes(), false)
    }

    fn node(&self, path: &str) -> Node {
        self.get(path).unwrap()
    }

    fn rename(&self, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
        let cred = Cred::root();
        let last = |path: &str| {
            self.vfs.resolve_parent(&OpCtx::as_user(&cred), &self.root, path.as_bytes()).unwrap()
        };
        let (a, b) = (last(from), last(to));
        self.vfs.rename(&OpCtx::as_user(&cred), &a.dir, &a.name, &b.dir, &b.name, flags)
    }

    fn chmod(&self, path: &str, perm: u32) {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        self.vfs.setattr(&OpCtx::service(), &self.node(path), &set).unwrap();
    }

    fn set_acl(&self, path: &str, kind: AclKind) {
        let (node, value, mode) = (self.node(path), acl::naming_one(7), XattrMode::Any);
        self.vfs.setxattr(&OpCtx::service(), &node, kind.name(), &value, mode).unwrap();
    }

    /// Names in a directory, by a stranger's listing.
    fn list(&self, path: &str) -> BTreeSet<String> {
        let cred = Cred::root();
        let dir = self
            .vfs
            .open_path(&OpCtx::as_user(&cred), &self.root, path.as_bytes(), O_RDONLY, 0, 0)
            .unwrap();
        let mut names = BTreeSet::new();
        dir.readdir(&OpCtx::service(), 0, &mut |entry| {
            names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        names.retain(|name| name != "." && name != "..");
        names
    }
}

/// Has a session with a lease on `d` make `d/new`, then lets `work` be done. Returns the session.
fn leased(lane: &Lane, work: impl FnOnce(&Lane, &Arc<Session>)) -> Arc<Session> {
    let session = Session::new(&lane.vfs, 7);
    let names =
        session.lease(&lane.root, "d").unwrap_or_else(|e| panic!("{:?}", errno::<()>(Err(e))));
    assert!(names.contains("old") && names.contains("sub") && !names.contains("new"));
    session.make("new");
    work(lane, &session);
    session
}

/// `work` ends the lease, and all that was streamed is there.
fn ends(what: &str, work: impl FnOnce(&Lane)) {
    let lane = lane();
    let session = leased(&lane, |lane, _| work(lane));
    assert!(!session.has_lease(), "{what} left the lease");
    assert_eq!(session.failed.load(Ordering::SeqCst), 0, "{what}");
}

/// `work` has what was streamed applied, and the lease goes on.
fn settles(what: &str, work: impl FnOnce(&Lane, &Node)) {
    let lane = lane();
    let dir = lane.node("d");
    let session = leased(&lane, |lane, _| work(lane, &dir));
    assert!(session.has_lease(), "{what} ended the lease");
    assert!(session.state.lock().unwrap().waiting.is_empty(), "{what} did not settle");
}

/// `work` of the holder changes nothing about the lease.
fn leaves_alone(what: &str, work: impl FnOnce(&Lane, &Arc<Session>)) {
    let lane = lane();
    let session = leased(&lane, work);
    assert!(session.has_lease(), "{what} ended the lease");
    assert_eq!(session.counts(), (0, 0), "{what}");
}

#[test]
fn a_foreign_look_ends_it() {
    ends("lookup", |lane| {
        let dir = lane.node("d");
        assert!(lane.vfs.lookup(&OpCtx::service(), &dir, b"new").is_ok());
    });
    ends("lookup of what is not there", |lane| {
        let dir = lane.node("d");
        assert_eq!(lane.vfs.lookup(&OpCtx::service(), &dir, b"x").err(), Some(Errno::ENOENT));
    });
    ends("walk", |lane| assert!(lane.get("d/new").is_ok()));
    ends("walk through a link", |lane| assert!(lane.get("l/new").is_ok()));
    ends("walk through", |lane| assert_eq!(errno(lane.get("d/sub/x")), Some(Errno::ENOENT)));
    ends("listing", |lane| {
        assert_eq!(lane.list("d"), ["new", "old", "sub"].map(String::from).into());
    });
}

#[test]
fn a_directory_opened_before_lists_what_was_streamed() {
    let lane = lane();
    let open = lane.vfs.open_path(&OpCtx::service(), &lane.root, b"d", O_RDONLY, 0, 0).unwrap();
    let session = leased(&lane, |_, _| {
        let mut found = false;
        open.readdir(&OpCtx::service(), 0, &mut |entry| {
            found |= entry.name == b"new";
            true
        })
        .unwrap();
        assert!(found);
    });
    assert!(!session.has_lease());
}

#[test]
fn a_foreign_change_of_names_ends_it() {
    ends("create", |lane| {
        assert_eq!(
            lane.make_as(&OpCtx::service(), "d/new", Kind::File, "").err(),
            Some(Errno::EEXIST)
        );
    });
    ends("open and create", |lane| {
        let flags = O_CREAT | common::O_EXCL | common::O_RDWR;
        let opened = lane.vfs.open_path(&OpCtx::service(), &lane.root, b"d/new", flags, 0o644, 0);
        assert_eq!(errno(opened), Some(Errno::EEXIST));
    });
    ends("mkdir", |lane| drop(lane.make("d/made", Kind::Dir, "")));
    ends("symlink", |lane| drop(lane.make("d/made", Kind::Symlink, "t")));
    ends("unlink", |lane| {
        let dir = lane.node("d");
        lane.vfs.unlink(&OpCtx::service(), &dir, b"new").unwrap();
    });
    ends("rmdir of a name in it", |lane| {
        let dir = lane.node("d");
        lane.vfs.rmdir(&OpCtx::service(), &dir, b"sub").unwrap();
    });
    ends("rename in it", |lane| lane.rename("d/new", "d/newer", 0).unwrap());
    ends("rename out of it", |lane| lane.rename("d/new", "e/new", 0).unwrap());
    ends("rename into it", |lane| {
        lane.make("e/other", Kind::File, "");
        lane.rename("e/other", "d/new", 0).unwrap();
    });
    ends("link into it", |lane| {
        let file = lane.make("e/other", Kind::File, "");
        let dir = lane.node("d");
        let linked = lane.vfs.link(&OpCtx::service(), &file, &dir, b"new");
        assert_eq!(linked, Err(Errno::EEXIST));
    });
    ends("O_TMPFILE in it", |lane| {
        let flags = O_TMPFILE | common::O_RDWR;
        drop(lane.vfs.open_path(&OpCtx::service(), &lane.root, b"d", flags, 0o600, 0).unwrap());
    });
}

#[test]
fn changes_of_the_directory_itself_end_it() {
    ends("chmod", |lane| lane.chmod("d", 0o700));
    ends("chmod of a directory above", |lane| lane.chmod(".", 0o700));
    ends("chmod of any directory", |lane| lane.chmod("e", 0o700));
    for kind in [AclKind::Access, AclKind::Default] {
        ends("an access control list", |lane| lane.set_acl("d", kind));
    }
    ends("one of any directory", |lane| lane.set_acl("e", AclKind::Access));
    ends("chown", |lane| {
        let set = SetAttr { uid: Some(Uid(5)), gid: Some(Gid(5)), ..SetAttr::default() };
        lane.vfs.setattr(&OpCtx::service(), &lane.node("d"), &set).unwrap();
    });
    ends("utimens", |lane| {
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        lane.vfs.setattr(&OpCtx::service(), &lane.node("d"), &set).unwrap();
    });
    ends("rename of it", |lane| {
        lane.rename("d", "moved", 0).unwrap();
        assert!(lane.get("moved/new").is_ok());
    });
    ends("exchange of it", |lane| {
        lane.rename("d", "e", RENAME_EXCHANGE).unwrap();
        assert!(lane.get("e/new").is_ok());
    });
    ends("rename of another directory", |lane| lane.rename("e", "f", 0).unwrap());
    ends("rmdir", |lane| {
        let failed = lane.vfs.rmdir(&OpCtx::service(), &lane.root, b"d");
        assert_eq!(failed, Err(Errno::ENOTEMPTY));
    });
    ends("rename over it", |lane| {
        assert_eq!(lane.rename("e", "d", 0), Err(Errno::ENOTEMPTY));
    });
}

/// An empty directory is leased; it is not empty any more when others want it gone.
#[test]
fn a_leased_empty_directory_is_full_in_time() {
    for (what, work) in [
        (
            "rmdir",
            (|lane: &Lane| lane.vfs.rmdir(&OpCtx::service(), &lane.root, b"e")) as fn(&Lane) -> _,
        ),
        ("rename over it", |lane: &Lane| lane.rename("d", "e", 0)),
    ] {
        let lane = lane();
        let session = Session::new(&lane.vfs, 3);
        assert!(session.lease(&lane.root, "e").is_ok_and(|names| names.is_empty()));
        session.make("late");
        assert_eq!(work(&lane), Err(Errno::ENOTEMPTY), "{what}");
        assert!(!session.has_lease());
        // Nor does one that is gone get a lease, or a file.
        lane.vfs.unlink(&OpCtx::service(), &lane.node("e"), b"late").unwrap();
        let kept = lane.node("e");
        session.lease(&lane.root, "e").ok().unwrap();
        assert_eq!(work(&lane), Ok(()), "{what}");
        assert!(!session.has_lease());
        if what == "rmdir" {
            assert_eq!(errno(session.lease(&kept, "")), Some(Errno::ENOENT));
        }
    }
}

#[test]
fn attributes_and_totals_are_settled() {
    settles("getattr", |lane, dir| {
        let before = lane.vfs.getattr(&OpCtx::service(), &lane.root).unwrap();
        let after = lane.vfs.getattr(&OpCtx::service(), dir).unwrap();
        assert!(after.mtime >= before.mtime);
    });
    settles("statfs", |lane, _| {
        let files = |lane: &Lane| {
            let totals = lane.vfs.statfs(&OpCtx::service()).unwrap();
            totals.files - totals.ffree
        };
        // The root, d, d/sub, d/old, e, l and d/new: what is set aside counts as free.
        assert_eq!(files(lane), 7);
    });
    settles("fsync", |lane, dir| {
        lane.vfs
            .open(&OpCtx::service(), dir, O_RDONLY)
            .unwrap()
            .fsync(&OpCtx::service(), false)
            .unwrap();
    });
    settles("sync", |lane, _| lane.vfs.sync(&OpCtx::service()).unwrap());
}

#[test]
fn the_holder_itself_looks_without_ending_it() {
    leaves_alone("lookup", |lane, session| {
        let dir = lane.node("d");
        assert!(lane.vfs.lookup(&session.ctx(), &dir, b"old").is_ok());
        assert!(lane.vfs.resolve(&session.ctx(), &lane.root, b"d/old", true).is_ok());
    });
    leaves_alone("getattr of a file", |lane, session| {
        let old = lane.vfs.resolve(&session.ctx(), &lane.root, b"d/old", true).ok().unwrap();
        lane.vfs.getattr(&OpCtx::service(), &old).unwrap();
    });
    leaves_alone("somebody elsewhere", |lane, _| {
        lane.make("e/f", Kind::File, "");
        lane.rename("e/f", "e/g", 0).unwrap();
        lane.list("e");
        lane.chmod("e/g", 0o600);
        drop(lane.node("d"));
    });
}

#[test]
fn the_holder_ends_it_by_ordinary_changes() {
    let lane = lane();
    for what in 0..4 {
        let session = Session::new(&lane.vfs, 7);
        session.lease(&lane.root, "d").ok().unwrap();
        session.make(&format!("mine{what}"));
        let dir = lane.vfs.resolve(&session.ctx(), &lane.root, b"d", true).ok().unwrap();
        match what {
            0 => drop(
                lane.make_as(&OpCtx::as_user(&session.cred), "d/ordinary", Kind::File, "").unwrap(),
            ),
            1 => lane.vfs.unlink(&session.ctx(), &dir, b"ordinary").unwrap(),
            // The file's new name may be anywhere.
            2 => {
                let file = lane.vfs.lookup(&session.ctx(), &dir, b"old").unwrap();
                let to = lane.vfs.resolve(&session.ctx(), &lane.root, b"e", true).ok().unwrap();
                lane.vfs.link(&session.ctx(), &file, &to, b"hard").unwrap();
            }
            _ => {
                let open = lane.vfs.open(&session.ctx(), &dir, O_RDONLY).unwrap();
                open.readdir(&OpCtx::service(), 0, &mut |_| true).unwrap();
            }
        }
        assert!(!session.has_lease(), "{what}");
        assert!(lane.get(&format!("d/mine{what}")).is_ok());
    }
}

#[test]
fn streamed_calls_pass_and_move_no_directory() {
    leaves_alone("streamed calls", |lane, session| {
        let streamed = session.streamed();
        let dir = lane.vfs.resolve(&session.ctx(), &lane.root, b"d", true).ok().unwrap();
        let rename =
            |from: &[u8], to: &[u8], flags| lane.vfs.rename(&streamed, &dir, from, &dir, to, flags);
        rename(b"old", b"older", 0).unwrap();
        rename(b"older", b"old", 0).unwrap();
        // These would end leases while the holder is at work: by itself, for ever.
        assert_eq!(rename(b"sub", b"sub2", 0), Err(Errno::EISDIR));
        assert_eq!(rename(b"old", b"sub", 0), Err(Errno::EISDIR));
        assert_eq!(rename(b"old", b"sub", RENAME_EXCHANGE), Err(Errno::EISDIR));
        assert_eq!(rename(b"sub", b"old", RENAME_EXCHANGE), Err(Errno::EISDIR));
    });
}

#[test]
fn a_grant_is_refused_where_the_path_is_not_plain() {
    let lane = lane();
    let session = Session::new(&lane.vfs, 7);
    for path in ["l", "l/", "..", "d/..", "d/./sub", ".", "/d", "d/../d"] {
        let granted = session.lease(&lane.root, path);
        assert_eq!(errno(granted), Some(Errno::EOPNOTSUPP), "{path}");
    }
    assert_eq!(errno(session.lease(&lane.root, "d/old")), Some(Errno::ENOTDIR));
    lane.set_acl("e", AclKind::Default);
    assert_eq!(errno(session.lease(&lane.root, "e")), Some(Errno::EOPNOTSUPP));
    assert_eq!(errno(session.lease(&lane.root, "d/none")), Some(Errno::ENOENT));
    for path in ["d", "d/sub", "d//sub", ""] {
        session.lease(&lane.root, path).unwrap_or_else(|_| panic!("{path}"));
        Holder::revoke(&*session);
    }
}

#[test]
fn a_grant_is_refused_without_the_right_to_change_names() {
    let lane = lane();
    let stranger = Session::of(&lane.vfs, 9, user(1000, 1000, &[]));
    assert_eq!(errno(stranger.lease(&lane.root, "d")), Some(Errno::EACCES));
    lane.chmod("d", 0o757);
    assert!(stranger.lease(&lane.root, "d").is_ok());
    lane.chmod(".", 0o700);
    assert!(!stranger.has_lease());
    assert_eq!(errno(stranger.lease(&lane.root, "d")), Some(Errno::EACCES));
}

#[test]
fn names_are_told_to_who_may_list_them_alone() {
    let lane = lane();
    let owner = SetAttr { uid: Some(Uid(1000)), gid: Some(Gid(500)), ..SetAttr::default() };
    lane.vfs.setattr(&OpCtx::service(), &lane.node("d"), &owner).unwrap();
    // Which class counts for whom, and the modes with which that one may list and change names.
    let classes = [
        ("owner", user(1000, 7, &[]), 0o700),
        ("group", user(1001, 500, &[]), 0o070),
        ("a group beside", user(1001, 7, &[8, 500]), 0o070),
        ("anybody", user(1002, 7, &[]), 0o007),
        ("root", Cred::root(), 0),
    ];
    for (who, cred, class) in classes {
        for perm in [0o1733, 0o733, 0o333, 0o373, 0o337, 0o777, 0o1777, 0o755, 0o666, 0o700] {
            lane.chmod("d", perm);
            let session = Session::of(&lane.vfs, 9, cred.clone());
            let mut told = 0;
            let holder: Arc<dyn Holder> = session.clone();
            let granted = lane.vfs.lease(
                &session.ctx(),
                (&lane.root, b"d"),
                Arc::downgrade(&holder),
                Look::Names,
                &mut |_, _| {
                    told += 1;
                    true
                },
            );
            let may = perm & class == class;
            assert_eq!((granted.is_ok(), told > 0), (may, may), "{who}, {perm:o}");
            granted.ok().flatten().iter().for_each(|leased| lane.vfs.end_lease(leased));
        }
    }
}

#[test]
fn two_sessions_take_a_lease_from_each_other() {
    let lane = lane();
    let (a, b) = (Session::new(&lane.vfs, 1), Session::new(&lane.vfs, 2));
    for turn in 0..10 {
        let (mine, other) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let names = mine.lease(&lane.root, "d").ok().unwrap();
        assert!(!other.has_lease());
        assert_eq!(names.len(), 2 + turn, "what the other streamed is listed");
        mine.make(&format!("n{turn}"));
    }
}

#[test]
fn file_systems_that_promise_no_room_grant_nothing() {
    let lane = common::lane();
    lane.dir("d");
    let session = Session::new(&lane.vfs, 1);
    assert_eq!(errno(session.lease(&lane.root, "d")), Some(Errno::EOPNOTSUPP));
}

/// What a client was told to exist exists, however full it is; and what is only set aside is
/// everybody's who needs it.
#[test]
fn room_is_kept_and_given() {
    let used = 6;
    let lane = lane_of(used + u64::from(ROOM) + 10);
    let session = Session::new(&lane.vfs, 1);
    session.lease(&lane.root, "d").ok().unwrap();
    (0..ROOM).for_each(|n| session.make(&format!("s{n}")));
    // Ten are left; the eleventh needs what the session has not used: nothing.
    for n in 0..10 {
        lane.make(&format!("e/x{n}"), Kind::File, "");
    }
    let full = lane.make_as(&OpCtx::service(), "e/x10", Kind::File, "");
    assert_eq!(full.err(), Some(Errno::ENOSPC));
    assert_eq!(session.failed.load(Ordering::SeqCst), 0);
    assert_eq!(lane.list("d").len(), 2 + ROOM as usize);

    let lane = lane_of(used + u64::from(ROOM) + 10);
    session_that_does_nothing_takes_nothing(&lane);
}

fn session_that_does_nothing_takes_nothing(lane: &Lane) {
    let session = Session::new(&lane.vfs, 1);
    session.lease(&lane.root, "d").ok().unwrap();
    assert_eq!(lane.vfs.statfs(&OpCtx::service()).unwrap().ffree, u64::from(ROOM) + 10);
    for n in 0..ROOM + 10 {
        lane.make(&format!("e/x{n}"), Kind::File, "");
    }
    assert!(!session.has_lease());
    let full = lane.make_as(&OpCtx::service(), "e/full", Kind::Dir, "");
    assert_eq!(full.err(), Some(Errno::ENOSPC));
    assert_eq!(errno(session.lease(&lane.root, "d")), Some(Errno::EAGAIN));
    assert_eq!(lane.vfs.statfs(&OpCtx::service()).unwrap().ffree, 0);
}

/// While a directory is renamed to and fro, leases come and go; one that is granted is on the
/// directory that the path means then, and stays so until it ends.
#[test]
fn a_path_means_the_same_while_a_lease_lasts() {
    let lane = Arc::new(lane());
    lane.make("e/sub", Kind::Dir, "");
    let (d, e) = (lane.node("d/sub"), lane.node("e/sub"));
    let done = Arc::new(AtomicBool::new(false));
    let mover = {
        let (lane, done) = (lane.clone(), done.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                lane.rename("d", "e", RENAME_EXCHANGE).unwrap();
            }
        })
    };
    let session = Session::new(&lane.vfs, 5);
    let (mut granted, mut refused) = (0, 0);
    while granted < 300 {
        match session.lease(&lane.root, "d/sub") {
            Ok(_) => granted += 1,
            Err(error) => {
                assert_eq!(errno::<()>(Err(error)), Some(Errno::EAGAIN));
                refused += 1;
                continue;
            }
        }
        // The state's lock keeps the lease: nobody has moved the directory meanwhile.
        let state = session.state.lock().unwrap();
        if let Some(leased) = &state.dir {
            let here = lane.vfs.resolve(&session.ctx(), &lane.root, b"d/sub", true).ok().unwrap();
            assert!(Arc::ptr_eq(leased.dir(), &here));
            assert!(Arc::ptr_eq(leased.dir(), &d) || Arc::ptr_eq(leased.dir(), &e));
        }
    }
    done.store(true, Ordering::SeqCst);
    mover.join().unwrap();
    eprintln!("{granted} granted, {refused} refused");
}

const STRESS_STEPS: usize = 20_000;

/// What the holder's thread does: changes of its own names, streamed while it has a lease, else the
/// ordinary way; returns the names that must be there at the end.
fn hold(lane: &Lane, session: &Arc<Session>, seed: u64) -> BTreeSet<String> {
    let (mut rng, mut mine) = (Rng::new(seed), BTreeSet::new());
    for step in 0.. {
        if step >= STRESS_STEPS {
            // On a busy machine strangers may have had no turn yet.
            if session.counts().1 > 2 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if !session.has_lease() && rng.percent(30) {
            let _ = session.lease(&lane.root, "d");
        }
        let name = format!("h{seed}-{step}");
        let old = mine.iter().nth(rng.below(8) as usize).cloned();
        let change = match old {
            Some(old) if rng.percent(40) => Change::Unlink(old),
            Some(old) if rng.percent(40) => Change::Rename(old, name),
            _ => Change::Make(name),
        };
        if !session.stream(change.clone()) {
            let dir = lane.node("d");
            let (vfs, cred) = (&lane.vfs, &session.cred);
            match &change {
                Change::Make(name) => {
                    drop(lane.make_as(&OpCtx::as_user(cred), &format!("d/{name}"), Kind::File, ""))
                }
                Change::Rename(a, b) => {
                    vfs.rename(&OpCtx::as_user(cred), &dir, a.as_bytes(), &dir, b.as_bytes(), 0)
                        .unwrap();
                }
                Change::Unlink(name) => {
                    vfs.unlink(&OpCtx::as_user(cred), &dir, name.as_bytes()).unwrap()
                }
            }
        }
        match change {
            Change::Make(name) => drop(mine.insert(name)),
            Change::Rename(a, b) => drop((mine.remove(&a), mine.insert(b))),
            Change::Unlink(name) => drop(mine.remove(&name)),
        }
    }
    mine
}

/// What everybody else does.
fn disturb(lane: &Lane, seed: u64, done: &AtomicBool) {
    let (mut rng, cred) = (Rng::new(seed), Cred::root());
    while !done.load(Ordering::SeqCst) {
        let name = format!("o{seed}-{}", rng.below(4));
        let path = format!("d/{name}");
        match rng.below(12) {
            0 => drop(lane.list("d")),
            1 => drop(lane.make_as(&OpCtx::as_user(&cred), &path, Kind::File, "")),
            2 => drop(lane.make_as(&OpCtx::as_user(&cred), &path, Kind::Dir, "")),
            3 => _ = lane.vfs.unlink(&OpCtx::as_user(&cred), &lane.node("d"), name.as_bytes()),
            4 => _ = lane.vfs.rmdir(&OpCtx::as_user(&cred), &lane.node("d"), name.as_bytes()),
            5 => _ = lane.rename(&path, &format!("e/{name}"), 0),
            6 => _ = lane.rename(&format!("e/{name}"), &path, RENAME_EXCHANGE),
            7 => lane.chmod("d", 0o755),
            8 => drop(lane.vfs.getattr(&OpCtx::service(), &lane.node("d"))),
            9 => drop(lane.vfs.statfs(&OpCtx::service())),
            10 => {
                let moved = lane.rename("d/sub", "e/sub", 0);
                let _ = moved.or_else(|_| lane.rename("e/sub", "d/sub", 0));
            }
            _ => drop(lane.get(&path)),
        }
        std::thread::sleep(Duration::from_micros(rng.below(300)));
    }
}

/// Nothing is lost, nothing hangs, and the directory is free at the end.
#[test]
fn holders_and_strangers_at_once() {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        stress();
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(Duration::from_secs(120)).expect("no deadlock and no panic");
}

fn stress() {
    let lane = Arc::new(lane());
    let done = Arc::new(AtomicBool::new(false));
    let strangers: Vec<_> = (0..3)
        .map(|seed| {
            let (lane, done) = (lane.clone(), done.clone());
            std::thread::spawn(move || disturb(&lane, seed, &done))
        })
        .collect();
    let holders: Vec<_> = (1..=2)
        .map(|number| {
            let lane = lane.clone();
            std::thread::spawn(move || {
                let session = Session::new(&lane.vfs, number);
                (hold(&lane, &session, number), session)
            })
        })
        .collect();
    let ends: Vec<_> = holders.into_iter().map(|holder| holder.join().unwrap()).collect();
    done.store(true, Ordering::SeqCst);
    strangers.into_iter().for_each(|stranger| stranger.join().unwrap());
    let names = lane.list("d");
    for (number, (mine, session)) in (1..).zip(&ends) {
        let prefix = format!("h{number}-");
        let found: BTreeSet<_> =
            names.iter().filter(|name| name.starts_with(&prefix)).cloned().collect();
        assert_eq!(found, *mine, "names of holder {number}");
        let (_, ends) = session.counts();
        let streamed = session.streamed.load(Ordering::SeqCst);
        // How often strangers come in between depends on the machine.
        assert!(ends > 2 && streamed > 1000, "{ends} leases ended, {streamed} streamed");
        assert_eq!(session.failed.load(Ordering::SeqCst), 0);
        assert!(!session.has_lease());
    }
    let totals = lane.vfs.statfs(&OpCtx::service()).unwrap();
    assert!(totals.ffree > (1 << 20) - 10_000, "room leaked: {} free", totals.ffree);
}

/// Which names of `d` a session that may do what `cred` may is told are sole.
fn sole(lane: &Lane, (number, cred): (u64, Cred)) -> BTreeSet<String> {
    let session = Session::of(&lane.vfs, number, cred);
    let names = session.lease_and_sole(&lane.root, "d", Look::Sole).ok().unwrap();
    session.revoke();
    names.into_iter().filter_map(|(name, sole)| sole.then_some(name)).collect()
}

#[test]
fn a_name_is_sole_as_long_as_nobody_can_come_by_another_way() {
    let lane = lane();
    let names =
        |text: &str| -> BTreeSet<String> { text.split_whitespace().map(String::from).collect() };
    lane.make("d/other", Kind::File, "");
    lane.make("d/link", Kind::Symlink, "other");
    let mine = || (7, Cred::root());
    assert_eq!(sole(&lane, mine()), names("old other"));
    let held = lane.node("d/old");
    assert_eq!(sole(&lane, mine()), names("other"));
    drop(held);
    let (other, e) = (lane.node("d/other"), lane.node("e"));
    lane.vfs.link(&OpCtx::service(), &other, &e, b"again").unwrap();
    drop(other);
    assert_eq!(sole(&lane, mine()), names("old"), "another name");
    lane.vfs.unlink(&OpCtx::service(), &e, b"again").unwrap();
    assert_eq!(sole(&lane, mine()), names("old other"));
    // In a sticky directory only one's own.
    lane.chmod("d", 0o1777);
    let stranger = (8, common::user(1000, 1000, &[]));
    assert_eq!(sole(&lane, stranger), names(""));
    assert_eq!(sole(&lane, mine()), names("old other"));
}

#[test]
fn whether_names_are_sole_is_told_without_a_device_once_all_were_looked_up() {
    let options = options();
    let fs = Arc::new(MemFs::new(1 << 30, 1 << 10, options.clock.clone()));
    let of = |fs: &Arc<MemFs>| {
        let vfs = Vfs::new(fs.clone(), options.clone()).unwrap();
        let root = vfs.root();
        Lane { vfs, root }
    };
    let lane = of(&fs);
    lane.make("d", Kind::Dir, "");
    for name in ["d/one", "d/two"] {
        lane.make(name, Kind::File, "");
    }
    // A service that has just begun remembers nothing.
    drop(lane);
    let lane = of(&fs);
    let session = Session::of(&lane.vfs, 7, Cred::root());
    let remembered = || session.lease_and_sole(&lane.root, "d", Look::Remembered);
    lane.node("d/one");
    assert_eq!(errno(remembered()), Some(Errno(libc::EINPROGRESS)));
    assert!(!session.has_lease());
    assert_eq!(session.lease(&lane.root, "d").unwrap_or_default().len(), 2, "there is none now");
    session.revoke();
    lane.node("d/two");
    assert!(remembered().is_ok_and(|names| names.len() == 2 && names.values().all(|sole| *sole)));
}

#[test]
fn inode_flags_end_leases_and_keep_them_away() {
    let lane = lane();
    let session = Session::new(&lane.vfs, 7);
    let sole = |session: &Arc<Session>| session.lease_and_sole(&lane.root, "d", Look::Sole);
    let set = |node: &Node, to| lane.vfs.set_flags(&session.ctx(), node, to).unwrap();
    assert!(sole(&session).unwrap()["old"]);
    // The holder's own look ends nothing.
    let old = lane.vfs.resolve(&session.ctx(), &lane.root, b"d/old", false).unwrap();
    assert!(session.has_lease());
    for to in [flags::IMMUTABLE, flags::APPEND] {
        set(&old, to);
        assert!(!session.has_lease());
        assert!(!sole(&session).unwrap()["old"]);
        assert!(session.stream(Change::Unlink("old".into())));
        lane.node("d/old");
        assert_eq!(session.failed.swap(0, Ordering::SeqCst), 1);
    }
    set(&old, 0);
    drop(old);
    assert!(sole(&session).unwrap()["old"]);
    let dir = lane.node("d");
    set(&dir, flags::APPEND);
    assert!(!session.has_lease());
    assert_eq!(errno(sole(&session)), Some(Errno::EOPNOTSUPP));
    set(&dir, flags::IMMUTABLE);
    assert_eq!(errno(sole(&session)), Some(Errno::EPERM));
    set(&dir, 0);
    sole(&session).unwrap();
}

/// A front end that has not been told of its lease yet, or lost it.
struct Unaware;

impl Holder for Unaware {
    fn settle(&self) {}

    fn revoke(&self) {}
}

#[test]
fn a_lease_that_its_holder_knows_nothing_of_is_over() {
    let lane = lane();
    let unaware = Arc::new(Unaware);
    let grant = || {
        let weak: Weak<Unaware> = Arc::downgrade(&unaware);
        let path = (&lane.root, &b"d"[..]);
        lane.vfs
            .lease(&by(7, &Cred::root()), path, weak, Look::Names, &mut |_, _| true)
            .ok()
            .unwrap()
            .unwrap()
    };
    // Whoever looks, and whoever changes a name, goes on.
    grant();
    let dir = lane.vfs.lookup(&OpCtx::service(), &lane.root, b"d").unwrap();
    lane.vfs.lookup(&OpCtx::service(), &dir, b"old").unwrap();
    let late = grant();
    lane.vfs.unlink(&OpCtx::service(), &dir, b"old").unwrap();
    // Who hears of it too late, and gives it back, ends nobody else's.
    let session = Session::new(&lane.vfs, 8);
    session.lease(&lane.root, "d").ok().unwrap();
    lane.vfs.end_lease(&late);
    session.make("new");
    lane.vfs.lookup(&OpCtx::service(), &dir, b"new").unwrap();
    assert_eq!(session.counts().1, 1);
}
