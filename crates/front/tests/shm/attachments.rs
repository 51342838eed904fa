//! Attachments by a client that speaks the wire without the library: nothing above the root,
//! nothing changed on a read-only mount, whatever is asked.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Gid, IdRange, TestClock, Uid};
use polylane_front::lane::nodes::Place;
use polylane_front::witness::{self, Looks, Refusal, Seen, Standing, Witness};
use polylane_ipc::message::{Message, NO_SLOT, Op, PATH_BYTES_MAX};
use polylane_ipc::owners::Owners;
use polylane_ipc::stream::{Change, Entry, Posted, ShortName};
use polylane_sys::event;
use polylane_sys::notice::Notice;
use polylane_sys::scm::{self, Identity};
use polylane_vfs::fs::NewNode;
use polylane_vfs::mapped::{IdMap, Mapped};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Create, FileSystem, Kind, Node, OpCtx, SetAttr};

use crate::shm_kit::{Client, House, USE_KERNEL, connect_as, count, lane, lane_of, wait_for};

/// Takes every process for one that sees the lane elsewhere.
struct Elsewhere {
    node: AtomicU64,
    read_only: AtomicBool,
    confined: AtomicBool,
    /// Node id of what comes as a file that was made in the root.
    made: AtomicU64,
    owners: Mutex<Option<Owners>>,
    /// Connections that were to be closed.
    closed: AtomicU64,
    /// Tells the last session of mounts in its lane.
    mounts: Mutex<Option<Notice>>,
    changes: OwnedFd,
}

impl Elsewhere {
    fn new(node: u64) -> Elsewhere {
        Elsewhere {
            node: AtomicU64::new(node),
            read_only: AtomicBool::default(),
            confined: AtomicBool::default(),
            made: AtomicU64::default(),
            owners: Mutex::default(),
            closed: AtomicU64::default(),
            mounts: Mutex::default(),
            changes: event::eventfd().unwrap(),
        }
    }
}

impl Witness for Elsewhere {
    fn look(&self, client: witness::Client<'_>) -> Result<Looks, Refusal> {
        Ok(Looks { number: client.pid, standing: Standing::Elsewhere })
    }

    fn home(&self) -> Option<Arc<Notice>> {
        None
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.changes.as_fd())
    }

    fn attach(
        &self,
        client: witness::Client<'_>,
        connection: BorrowedFd<'_>,
    ) -> Result<Seen, Refusal> {
        let pid = client.pid;
        let shown = witness::taken(connection).map_err(|_| Refusal::Unknown)?;
        let node = Some(self.node.load(Ordering::Relaxed)).filter(|node| *node != 0);
        let node = node.ok_or(Refusal::Mounts)?;
        let read_only = self.read_only.load(Ordering::Relaxed);
        let (mounts, notice) = Notice::unnamed(1).unwrap();
        *self.mounts.lock() = Some(mounts);
        let (number, other_numbers) = (pid, false);
        let confined = self.confined.load(Ordering::Relaxed);
        let shows_made = shown.len() == 2;
        let made = shows_made.then(|| self.made.load(Ordering::Relaxed));
        let owners = self.owners.lock().clone();
        Ok(Seen {
            number,
            node,
            read_only,
            confined,
            shows_made,
            made,
            other_numbers,
            owners,
            notice,
        })
    }

    fn close(&self, _: OwnedFd) -> Result<(), OwnedFd> {
        self.closed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn has_thread(&self, _: u32, _: u32) -> bool {
        false
    }

    fn identity(&self, _: BorrowedFd<'_>) -> polylane_base::Result<Option<Identity>> {
        Ok(None)
    }
}

struct Scene {
    house: House,
    witness: Arc<Elsewhere>,
    /// `/d`, `/d/sub`, `/outside`.
    dirs: [Node; 3],
}

impl Scene {
    /// `d` with `sub` and links in it; `outside` with a file; all of the test's own user.
    fn new() -> Scene {
        let (lane, ctx) = (lane(), OpCtx::service());
        let owner = (rustix::process::geteuid(), rustix::process::getegid());
        let owner = (Uid(owner.0.as_raw()), Gid(owner.1.as_raw()));
        let make = |dir: &Node, name: &str, kind, target: &str| {
            let (perm, target) = (0o777, target.as_bytes());
            let new = Create { kind, perm, umask: 0, rdev: 0, target };
            let node = lane.vfs.create(&ctx, dir, name.as_bytes(), &new).unwrap();
            let (uid, gid) = (Some(owner.0), Some(owner.1));
            let set = polylane_vfs::SetAttr { uid, gid, ..Default::default() };
            lane.vfs.setattr(&ctx, &node, &set).unwrap();
            node
        };
        let root = lane.vfs.root();
        let dir = make(&root, "d", Kind::Dir, "");
        let sub = make(&dir, "sub", Kind::Dir, "");
        let outside = make(&root, "outside", Kind::Dir, "");
        make(&dir, "file", Kind::File, "");
        make(&outside, "secret", Kind::File, "");
        make(&dir, "up", Kind::Symlink, "../outside/secret");
        make(&dir, "lane", Kind::Symlink, "/lane/outside/secret");
        make(&dir, "own", Kind::Symlink, "/other/file");
        let witness = Arc::new(Elsewhere::new(lane.nodes.remember(&dir, Place::NONE)));
        lane.slots.set_witness(witness.clone());
        let house = House::over(lane, Default::default());
        Scene { house, witness, dirs: [dir, sub, outside] }
    }

    fn client(&self) -> Client {
        let root = File::open("/").unwrap();
        Client::attach(&self.house.socket, "/other", &[root.as_fd()]).unwrap()
    }

    /// As another user of the host; `None` where this process may not be one.
    fn client_of(&self, user: u32) -> Option<Client> {
        let socket = &self.house.socket;
        fs::set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
        std::thread::scope(|scope| scope.spawn(|| as_user(user, || self.client())).join().unwrap())
    }

    /// A file of the directory `d` that is that user's and nobody else's.
    fn private(&self, name: &str, user: u32) {
        let (vfs, ctx) = (&self.house.lane.vfs, OpCtx::service());
        let new = Create { kind: Kind::File, perm: 0o600, umask: 0, rdev: 0, target: b"" };
        let node = vfs.create(&ctx, &self.dirs[0], name.as_bytes(), &new).unwrap();
        let (uid, gid) = (Some(Uid(user)), Some(Gid(user)));
        let set = polylane_vfs::SetAttr { uid, gid, ..Default::default() };
        vfs.setattr(&ctx, &node, &set).unwrap();
    }
}

/// Has the calling thread, which ends soon, be another user.
fn as_user<T>(user: u32, act: impl FnOnce() -> T) -> Option<T> {
    let (group, id) = (rustix::process::Gid::from_raw(user), rustix::process::Uid::from_raw(user));
    rustix::thread::set_thread_groups(&[]).ok()?;
    rustix::thread::set_thread_res_gid(group, group, group).ok()?;
    rustix::thread::set_thread_res_uid(id, id, id).ok()?;
    Some(act())
}

fn opened(client: &Client, path: &str) -> u64 {
    client.op_at(Op::OpenDir, path).unwrap().handle
}

#[test]
fn who_sees_the_lane_elsewhere_shows_its_root() {
    let scene = Scene::new();
    let refused =
        |mount, shown: &[BorrowedFd<'_>]| connect_as(&scene.house.socket, mount, shown).err();
    assert_eq!(refused("/lane", &[]), Some(Errno::EXDEV));
    assert_eq!(refused("/other", &[]), Some(Errno::EXDEV));
    assert_eq!(refused("other", &[]), Some(Errno::EPROTO));
    let root = File::open("/").unwrap();
    assert_eq!(refused("/other", &[root.as_fd(); 3]), Some(Errno::EACCES));
    drop(scene.client());
    scene.witness.node.store(0, Ordering::Relaxed);
    assert_eq!(refused("/other", &[root.as_fd()]), Some(Errno::EACCES));
    let not_admitted = scene.house.server.views().refused;
    assert!(not_admitted.contains(&("mounts", 1)), "{not_admitted:?}");
    // A node that the kernel was not told of, and one that is no directory of the lane's.
    for node in [77, 2, 3] {
        scene.witness.node.store(node, Ordering::Relaxed);
        let errno = refused("/other", &[root.as_fd()]);
        assert!(matches!(errno, Some(Errno::EACCES | Errno::ESTALE)), "{node}: {errno:?}");
    }
}

#[test]
fn nothing_above_the_root_is_reached() {
    let scene = Scene::new();
    let client = scene.client();
    for path in ["file", "/file", "sub/../file", "own", "./own"] {
        assert!(client.stat(path).is_ok(), "{path}");
    }
    let ways = ["..", "../outside/secret", "sub/../../outside", "up", "lane", "/..", "/../outside"];
    for path in ways {
        assert_eq!(client.stat(path).err(), Some(USE_KERNEL), "{path}");
        assert_eq!(client.open(path, libc::O_RDONLY).err(), Some(USE_KERNEL), "{path}");
    }
    assert_eq!(client.stat("/outside/secret").err(), Some(Errno::ENOENT));
    assert_eq!(client.op_at(Op::Mkdir, "../new").err(), Some(USE_KERNEL));
    // A directory that was moved out while the client had it.
    let sub = opened(&client, "sub");
    let (lane, [dir, _, outside]) = (&scene.house.lane, &scene.dirs);
    lane.vfs.rename(&OpCtx::service(), dir, b"sub", outside, b"sub", 0).unwrap();
    let below = |op: Op, path: &str| {
        client.call_at(Message { dir: sub, mode: 0o755, ..Message::new(op) }, path.as_bytes(), b"")
    };
    assert!(below(Op::Mkdir, "new").is_ok(), "it is the client's still");
    for path in ["..", "../secret", "new/../../secret"] {
        assert_eq!(below(Op::Stat, path).err(), Some(USE_KERNEL), "{path}");
    }
}

/// The file at rest that an open names is closed, whatever refuses the open.
#[test]
fn an_open_that_is_refused_closes_what_it_names() {
    let scene = Scene::new();
    let client = scene.client();
    let refused = |path: &str, flags: i32, slot: u64, changed: bool| {
        let handle = client.open("file", libc::O_RDONLY).unwrap().0;
        scene.witness.mounts.lock().as_ref().unwrap().tell(changed);
        let arg = [slot, 0, 0, handle];
        let message = Message { flags: flags as u32, arg, ..Message::new(Op::Open) };
        let answer = client.call_at(message, path.as_bytes(), b"").map(|reply| reply.handle);
        assert_eq!(client.close(handle).err(), Some(Errno::EBADF), "{answer:?}: it is open");
        answer.expect_err("it is refused")
    };
    let long = "x".repeat(PATH_BYTES_MAX + 1);
    assert_eq!(refused(&long, libc::O_RDONLY, NO_SLOT, false), Errno::ENAMETOOLONG);
    assert_eq!(refused("", libc::O_RDONLY, NO_SLOT, false), Errno::ENOENT);
    assert_eq!(refused("file", libc::O_RDONLY, u64::MAX - 1, false), Errno::EINVAL);
    assert_eq!(refused("file", libc::O_PATH, NO_SLOT, false), USE_KERNEL);
    assert_eq!(refused("file", libc::O_RDONLY, NO_SLOT, true), USE_KERNEL);
}

#[test]
fn nothing_is_changed_by_a_read_only_attachment() {
    let scene = Scene::new();
    scene.witness.read_only.store(true, Ordering::Relaxed);
    let client = scene.client();
    let (handle, before) = client.open("file", libc::O_RDONLY).unwrap();
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC, libc::O_CREAT] {
        assert_eq!(client.open("file", flags).err(), Some(USE_KERNEL), "{flags:o}");
    }
    let ops = [Op::Mkdir, Op::Mknod, Op::Unlink, Op::SetattrPath, Op::Lease, Op::Statfs];
    for op in ops {
        assert_eq!(client.op_at(op, "file").err(), Some(USE_KERNEL), "{op:?}");
    }
    for op in [Op::Rename, Op::Link, Op::Symlink, Op::Setxattr, Op::Removexattr] {
        let done = client.call_at(Message::new(op), b"file", b"user.x");
        assert_eq!(done.err(), Some(USE_KERNEL), "{op:?}");
    }
    let by_handle =
        Message { handle, mode: 0, arg: [1, 0, 0, 0], ..Message::new(Op::SetattrHandle) };
    assert_eq!(client.call(&by_handle).err(), Some(USE_KERNEL));
    assert_eq!(client.write(handle, 0, b"x").err(), Some(Errno::EBADF));
    let names = |op, mode| client.call_at(Message { mode, ..Message::new(op) }, b"file", b"");
    assert_eq!(names(Op::Access, libc::W_OK as u32).err(), Some(USE_KERNEL));
    assert!(names(Op::Access, libc::R_OK as u32).is_ok());
    let after = client.stat("file").unwrap();
    assert_eq!((before.mode, before.size, before.sec), (after.mode, after.size, after.sec));
    let listed = Message { length: 4096, ..Message::new(Op::OpenDir) };
    assert!(count(&client.call_at(listed, b".", b"").unwrap()) > 0, "it reads all the same");
}

#[test]
fn paths_are_the_kernels_as_soon_as_something_is_mounted_in_the_lane_whoever_minds_the_notice() {
    let scene = Scene::new();
    let client = scene.client();
    let (handle, _) = client.open("file", libc::O_RDWR).unwrap();
    let sub = opened(&client, "sub");
    let below =
        |op| client.call_at(Message { dir: sub, mode: 0o755, ..Message::new(op) }, b"x", b"");
    let tell = |changed| scene.witness.mounts.lock().as_ref().unwrap().tell(changed);
    assert!(client.op_at(Op::Lease, "sub").is_ok());
    tell(true);
    for op in [Op::Stat, Op::Open, Op::OpenDir, Op::Mkdir, Op::Unlink, Op::Readlink] {
        assert_eq!(client.op_at(op, "file").err(), Some(USE_KERNEL), "{op:?}");
        assert_eq!(below(op).err(), Some(USE_KERNEL), "{op:?}");
    }
    for op in [Op::SetattrPath, Op::Mknod, Op::Lease, Op::Statfs] {
        assert_eq!(client.op_at(op, "file").err(), Some(USE_KERNEL), "{op:?}");
    }
    for op in [Op::Rename, Op::Link, Op::Symlink, Op::Setxattr, Op::Removexattr] {
        let done = client.call_at(Message::new(op), b"file", b"user.x");
        assert_eq!(done.err(), Some(USE_KERNEL), "{op:?}");
    }
    assert_eq!(client.write(handle, 0, b"goes on"), Ok(7), "what is open is open");
    assert_eq!(client.read(handle, 0, 7), Ok(b"goes on".to_vec()));
    // Another client's session has mounts of its own.
    let other = scene.client();
    assert!(other.stat("file").is_ok());
    assert_eq!(client.stat("file").err(), Some(USE_KERNEL));
    tell(true);
    assert_eq!(other.stat("file").err(), Some(USE_KERNEL));
    tell(false);
    assert!(other.stat("file").is_ok());
}

/// A client with a lease on a directory, which asks for nothing from then on.
struct Silent {
    client: Client,
    lease: u8,
    mounts: Notice,
}

impl Silent {
    fn on(scene: &Scene, dir: &str) -> Silent {
        let client = scene.client();
        let lease = client.op_at(Op::Lease, dir).unwrap().value[0] as u8;
        let mounts = scene.witness.mounts.lock().take().unwrap();
        Silent { client, lease, mounts }
    }

    fn makes(&self, name: &str) -> Posted {
        let (change, lease, perm) = (Change::Make, self.lease, 0o644);
        let name = ShortName::new(name.as_bytes()).unwrap();
        let time = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64;
        let made = Entry { change, lease, name, perm, time, born: time, ..Entry::default() };
        self.client.channel.stream().post(&made)
    }

    fn is_over(&self) -> bool {
        self.client.channel.stream().is_shut()
    }
}

#[test]
fn a_lease_ends_with_the_mounts_that_it_went_by_whether_or_not_its_client_asks_for_anything() {
    let scene = Scene::new();
    scene.client().op_at(Op::Mkdir, "more").unwrap();
    let (one, other) = (Silent::on(&scene, "sub"), Silent::on(&scene, "more"));
    for silent in [&one, &other] {
        assert!(matches!(silent.makes("before"), Posted::Waiting(_)));
    }
    event::notify(&scene.witness.changes);
    one.mounts.tell(true);
    event::notify(&scene.witness.changes);
    wait_for("the lease's end", || one.is_over());
    assert_eq!(one.makes("after"), Posted::Shut);
    assert!(!other.is_over(), "its mounts are the same");
    assert!(matches!(other.makes("after"), Posted::Waiting(_)));
    let third = scene.client();
    let look = |path: &str| third.stat(path).map(|_| ());
    assert_eq!(look("sub/before"), Ok(()), "it was answered before");
    assert_eq!(look("sub/after"), Err(Errno::ENOENT));
    assert_eq!((look("more/before"), look("more/after")), (Ok(()), Ok(())));
    assert_eq!(scene.house.server.totals().stream_failed, 0);
    // As long as the mounts are others, there is none.
    assert_eq!(one.client.op_at(Op::Lease, "sub").err(), Some(USE_KERNEL));
}

#[test]
fn connections_that_may_hold_descriptors_are_the_witnesss_to_close() {
    let scene = Scene::new();
    let closed = |count| {
        wait_for("the close", || scene.witness.closed.load(Ordering::Relaxed) == count);
    };
    let root = File::open("/").unwrap();
    let refused = connect_as(&scene.house.socket, "/lane", &[root.as_fd(); 253]);
    assert_eq!(refused.err(), Some(Errno::EACCES));
    closed(0);
    drop(scene.client());
    let too_much = scm::connect(&scene.house.socket).unwrap();
    scm::send(&too_much, b"no hello", &[root.as_fd()]).unwrap();
    // The connection may be closed by then.
    let second = scm::send(&too_much, b"no hello", &[root.as_fd()]);
    assert!(matches!(second, Ok(()) | Err(Errno::ECONNRESET | Errno::EPIPE)), "{second:?}");
    closed(1);
    let silent = scm::connect(&scene.house.socket).unwrap();
    scm::send(&silent, b"no hello", &[root.as_fd()]).unwrap();
    closed(2);
    drop((silent, scm::connect(&scene.house.socket).unwrap()));
    // It was looked at after the others.
    drop(scene.client());
    closed(2);
}

/// Users of the host beside this test's own: one in two tests, in either order.
const USERS: [u32; 2] = [54321, 12345];

#[test]
fn a_user_may_in_an_attachment_what_the_user_may_in_the_lane() {
    let scene = Scene::new();
    let [user, other] = USERS;
    let Some(client) = scene.client_of(user) else { return eprintln!("not root: nobody else") };
    let second = scene.client_of(other).unwrap();
    scene.private("mine", user);
    scene.private("theirs", other);
    for (client, own, theirs) in [(&client, "mine", "theirs"), (&second, "theirs", "mine")] {
        assert!(client.open(own, libc::O_RDWR).is_ok());
        assert_eq!(client.open(theirs, libc::O_RDONLY).err(), Some(Errno::EACCES));
        let changed = Message { mode: 0o777, arg: [1, 0, 0, 0], ..Message::new(Op::SetattrPath) };
        let changed = client.call_at(changed, theirs.as_bytes(), b"");
        assert_eq!(changed.err(), Some(Errno::EPERM));
        for path in ["../outside/secret", "up", "lane"] {
            assert_eq!(client.open(path, libc::O_RDONLY).err(), Some(USE_KERNEL), "{path}");
        }
    }
    // Read-only it is for the owner, too.
    scene.witness.read_only.store(true, Ordering::Relaxed);
    let reader = scene.client_of(user).unwrap();
    assert!(reader.open("mine", libc::O_RDONLY).is_ok());
    assert_eq!(reader.open("mine", libc::O_RDWR).err(), Some(USE_KERNEL));
    assert_eq!(reader.op_at(Op::Unlink, "mine").err(), Some(USE_KERNEL));
    assert_eq!(reader.open("theirs", libc::O_RDONLY).err(), Some(Errno::EACCES));
    assert!(client.op_at(Op::Unlink, "mine").is_ok(), "the other view goes on");
}

#[test]
fn owners_are_the_kernels_where_a_client_has_other_numbers() {
    let scene = Scene::new();
    let [user, other] = USERS;
    let users = vec![IdRange { shown: 0, kept: user, count: 1 }];
    let owners = Owners { groups: users.clone(), users, overflow: [65534, 65534] };
    *scene.witness.owners.lock() = Some(owners.clone());
    let Some(client) = scene.client_of(user) else { return eprintln!("not root: nobody else") };
    assert_eq!(client.welcome.owners, Some(owners));
    scene.private("mine", user);
    scene.private("theirs", other);
    // The numbers on the wire are the lane's: the client shows its own.
    assert_eq!(client.stat("mine").unwrap().uid, user);
    assert_eq!(client.stat("theirs").unwrap().uid, other);
    let (handle, _) = client.open("mine", libc::O_RDWR).unwrap();
    assert_eq!(client.write(handle, 0, b"bytes"), Ok(5));
    // What is refused the client's capabilities may allow it.
    assert_eq!(client.open("theirs", libc::O_RDONLY).err(), Some(USE_KERNEL));
    for (what, path) in [(0, "mine"), (1, "mine"), (2, "mine"), (1, "theirs")] {
        let set =
            Message { mode: 0o4755, arg: [1 << what, 0, 0, 0], ..Message::new(Op::SetattrPath) };
        assert_eq!(client.call_at(set, path.as_bytes(), b"").err(), Some(USE_KERNEL), "{what}");
    }
    for (name, kernels) in [("system.posix_acl_access", true), ("security.x", true)] {
        let get = Message { length: 0, ..Message::new(Op::Getxattr) };
        let told = client.call_at(get, b"mine", name.as_bytes()).err();
        assert_eq!(told == Some(USE_KERNEL), kernels, "{name}: {told:?}");
    }
    assert_eq!(client.op_at(Op::Lease, "sub").err(), Some(USE_KERNEL));
    let made = |mode| Message { flags: libc::O_CREAT as u32, mode, ..Message::new(Op::Open) };
    assert_eq!(client.call_at(made(0o2755), b"new", b"").err(), Some(USE_KERNEL));
}

#[test]
fn who_is_confined_shows_that_it_may_write() {
    let scene = Scene::new();
    scene.witness.confined.store(true, Ordering::Relaxed);
    let root = File::open("/").unwrap();
    let socket = &scene.house.socket;
    let attach = |shown: &[BorrowedFd<'_>]| Client::attach(socket, "/other", shown);
    assert_eq!(attach(&[root.as_fd()]).err(), Some(Errno::EROFS));
    let writes = || {
        let client = attach(&[root.as_fd(); 2]).unwrap();
        assert!(client.open("file", libc::O_RDONLY).is_ok());
        client.open("file", libc::O_RDWR).is_ok()
    };
    assert!(!writes(), "what it shows is no file");
    let lane = &scene.house.lane;
    let made = |dir: &Node, thread| {
        let node = lane.vfs.create_unlinked(&OpCtx::service(), dir, 0o600, 0).unwrap();
        lane.made_unnamed(&node, dir, thread);
        scene.witness.made.store(lane.nodes.remember(&node, Place::NONE), Ordering::Relaxed);
        node
    };
    let me = std::process::id();
    let [dir, sub, _] = &scene.dirs;
    let _elsewhere = made(sub, me);
    assert!(!writes(), "it was made in another directory");
    let _others = made(dir, me + 1);
    assert!(!writes(), "another process made it");
    let _own = made(dir, me);
    assert!(writes());
    assert!(!writes(), "it counts once");
    // A mount that may not be written to needs no file, and is not written to with one.
    scene.witness.read_only.store(true, Ordering::Relaxed);
    let _late = made(dir, me);
    assert!(attach(&[root.as_fd()]).is_ok());
    assert!(!writes());
}

/// `mount --map-users`: the files' numbers are the lane's own, and each user of the host is judged
/// by the numbers that this host shows.
#[test]
fn a_user_without_a_number_in_the_files_owns_nothing() {
    let [user, other] = USERS;
    let files = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
    let ranges = vec![IdRange { kept: 0, shown: user - 5, count: 10 }];
    let mapped = Mapped::new(files.clone(), IdMap::new(ranges).unwrap());
    let house = House::over(lane_of(Arc::new(mapped)), Default::default());
    let client_of = |user| {
        fs::set_permissions(&house.socket, Permissions::from_mode(0o666)).unwrap();
        std::thread::scope(|scope| scope.spawn(|| as_user(user, || house.client())).join().unwrap())
    };
    let Some(client) = client_of(user) else { return eprintln!("not root: nobody else") };
    let second = client_of(other).unwrap();
    let (handle, made) = client.open("mine", libc::O_CREAT | libc::O_RDWR).unwrap();
    assert_eq!((made.uid, made.gid), (user, user));
    assert_eq!(client.write(handle, 0, b"bytes"), Ok(5));
    let ctx = OpCtx::service();
    let root = files.root().unwrap().ino;
    let stored = files.lookup(&ctx, root, b"mine").unwrap();
    assert_eq!((stored.uid, stored.gid), (Uid(5), Gid(5)));
    // The numbers of the files are nobody's rights.
    let of_other = SetAttr { uid: Some(Uid(other)), gid: Some(Gid(other)), ..SetAttr::default() };
    let new = NewNode { uid: Uid(other), gid: Gid(other), ..NewNode::new(Kind::File, 0o600) };
    let theirs = files.create(&ctx, root, b"theirs", &new).unwrap().node;
    assert_eq!(files.setattr(&ctx, theirs.ino, &of_other).unwrap().uid, Uid(other));
    assert_eq!(second.stat("theirs").unwrap().uid, u32::MAX, "no user's");
    assert_eq!(second.stat("mine").unwrap().uid, user);
    for client in [&client, &second, &house.client()] {
        assert_eq!(client.open("theirs", libc::O_RDWR).err(), Some(Errno::EACCES));
        assert!(client.op_at(Op::Unlink, "theirs").is_err());
    }
    assert_eq!(second.open("theirs", libc::O_RDONLY).err(), Some(Errno::EACCES));
    for client in [&second, &house.client()] {
        let made = client.open("new", libc::O_CREAT | libc::O_RDWR).err();
        assert_eq!(made, Some(Errno::EOVERFLOW));
        assert_eq!(client.op_at(Op::Mkdir, "dir").err(), Some(Errno::EOVERFLOW));
        assert!(client.op_at(Op::Lease, "").is_err(), "nothing could be made under one");
    }
    assert!(files.lookup(&ctx, root, b"new").is_err() && files.lookup(&ctx, root, b"dir").is_err());
    assert!(client.op_at(Op::Unlink, "mine").is_ok());
}
