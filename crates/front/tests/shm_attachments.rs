//! Attachments by a client that speaks the wire without the library: nothing above the root,
//! nothing changed on a read-only mount, whatever is asked.

mod shm_kit;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::{Errno, Gid, Uid};
use polylane_front::lane::nodes::Place;
use polylane_front::witness::{Looks, Seen, Standing, Witness};
use polylane_ipc::message::{Message, Op};
use polylane_sys::notice::Notice;
use polylane_sys::scm::Identity;
use polylane_vfs::{Create, Kind, Node, OpCtx};

use shm_kit::{Client, House, USE_KERNEL, connect_as, count, lane};

/// Takes every process for one that sees the lane elsewhere.
#[derive(Default)]
struct Elsewhere {
    node: AtomicU64,
    read_only: AtomicBool,
}

impl Witness for Elsewhere {
    fn look(&self, pid: u32) -> Option<Looks> {
        Some(Looks { number: pid, standing: Standing::Elsewhere })
    }

    fn attach(&self, pid: u32, _: BorrowedFd<'_>) -> Option<Seen> {
        let node = Some(self.node.load(Ordering::Relaxed)).filter(|node| *node != 0)?;
        let read_only = self.read_only.load(Ordering::Relaxed);
        let notice = Notice::unnamed(1).unwrap().1;
        Some(Seen { number: pid, node, read_only, other_numbers: false, notice })
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
        let witness = Arc::new(Elsewhere::default());
        witness.node.store(lane.nodes.remember(&dir, Place::NONE), Ordering::Relaxed);
        lane.slots.set_witness(witness.clone());
        let house = House::over(lane, Default::default());
        Scene { house, witness, dirs: [dir, sub, outside] }
    }

    fn client(&self) -> Client {
        let root = File::open("/").unwrap();
        Client::attach(&self.house.socket, "/other", root.as_fd()).unwrap()
    }
}

fn opened(client: &Client, path: &str) -> u64 {
    client.op_at(Op::OpenDir, path).unwrap().handle
}

#[test]
fn who_sees_the_lane_elsewhere_shows_its_root() {
    let scene = Scene::new();
    let refused = |mount, root| connect_as(&scene.house.socket, mount, root).err();
    assert_eq!(refused("/lane", None), Some(Errno::EXDEV));
    assert_eq!(refused("/other", None), Some(Errno::EXDEV));
    assert_eq!(refused("other", None), Some(Errno::EPROTO));
    let root = File::open("/").unwrap();
    drop(scene.client());
    scene.witness.node.store(0, Ordering::Relaxed);
    assert_eq!(refused("/other", Some(root.as_fd())), Some(Errno::EACCES));
    // A node that the kernel was not told of, and one that is no directory of the lane's.
    for node in [77, 2, 3] {
        scene.witness.node.store(node, Ordering::Relaxed);
        let errno = refused("/other", Some(root.as_fd()));
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
