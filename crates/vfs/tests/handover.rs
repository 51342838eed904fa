//! A host directory whose service is killed: the next one knows its inodes, and does what was in
//! flight once.
//!
//! A kill is played by `Store::leave`: from then on what the service does changes no record.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result, SystemClock};
use polylane_vfs::fs::XattrMode;
use polylane_vfs::handover::{RequestId, Store, Turn, Turns};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::{Create, Kind, Node, OpCtx, Options, Vfs};

struct Service {
    store: Arc<Store>,
    turns: Arc<Turns>,
    vfs: Arc<Vfs>,
}

impl Service {
    fn start(fd: &OwnedFd, dir: &Path) -> Service {
        let (store, records) = Store::attach(fd).expect("attach");
        let (store, clock) = (Arc::new(store), Arc::new(SystemClock));
        let open = std::fs::File::open(dir).expect("open").into();
        let host = HostDir::handed_over(open, store.clone(), &records).expect("serve");
        let options = Options {
            clock,
            cache_bytes_limit: 0,
            dirty_bytes_limit: 0,
            flush_interval: Duration::from_secs(5),
            mount_path: b"/lane".to_vec(),
            covered: vec![],
        };
        let vfs = Vfs::new(Arc::new(host), options).expect("root");
        Service { turns: Turns::new(store.clone(), &records, true), store, vfs }
    }

    fn make(&self, ctx: &OpCtx<'_>, dir: &Node, name: &str, kind: Kind) -> Result<Node> {
        let target: &[u8] = if kind == Kind::Symlink { b"to" } else { b"" };
        let new = Create { kind, perm: 0o751, umask: 0o022, rdev: 0, target };
        self.vfs.create(ctx, dir, name.as_bytes(), &new)
    }

    fn find(&self, name: &str) -> Result<Node> {
        self.vfs.lookup(&OpCtx::service(), &self.vfs.root(), name.as_bytes())
    }

    fn kill(self) {
        self.store.leave();
    }
}

#[test]
fn inodes_are_known_to_the_next_service_wherever_they_are_now() {
    let (dir, fd) = (tempfile::tempdir().unwrap(), Store::create().unwrap());
    let first = Service::start(&fd, dir.path());
    let root = first.vfs.root();
    let upper = first.make(&OpCtx::service(), &root, "upper", Kind::Dir).unwrap();
    let lower = first.make(&OpCtx::service(), &upper, "lower", Kind::Dir).unwrap();
    let file = first.make(&OpCtx::service(), &lower, "file", Kind::File).unwrap();
    let gone = first.make(&OpCtx::service(), &lower, "gone", Kind::File).unwrap();
    let forgotten = first.make(&OpCtx::service(), &root, "forgotten", Kind::File).unwrap().ino();
    first.vfs.rename(&OpCtx::service(), &root, b"upper", &root, b"moved", 0).unwrap();
    first.vfs.rename(&OpCtx::service(), &lower, b"file", &upper, b"there", 0).unwrap();
    first.vfs.unlink(&OpCtx::service(), &lower, b"gone").unwrap();
    let of = |node: &Node| (node.ino(), node.generation());
    let [lower, file, gone] = [of(&lower), of(&file), of(&gone)];
    first.kill();

    let second = Service::start(&fd, dir.path());
    let revive = |(ino, generation)| second.vfs.revive(ino, generation);
    let again = revive(file).unwrap();
    assert_eq!(of(&again), file);
    assert_eq!(revive(lower).unwrap().kind(), Kind::Dir);
    let up = second.vfs.lookup(&OpCtx::service(), &revive(lower).unwrap(), b"..").unwrap();
    assert_eq!(up.ino(), second.find("moved").unwrap().ino());
    assert_eq!(revive(gone).err(), Some(Errno::ESTALE));
    assert_eq!(revive((file.0, file.1 ^ 1)).err(), Some(Errno::ESTALE));
    second.vfs.end_revival();
    assert_eq!(second.vfs.revive(forgotten, 0).err(), Some(Errno::ESTALE));
    let records = second.store.len();
    drop((again, up));
    second
        .vfs
        .rename(
            &OpCtx::service(),
            &second.find("moved").unwrap(),
            b"there",
            &second.vfs.root(),
            b"t",
            0,
        )
        .unwrap();
    assert!(second.store.len() <= records);
    // Another directory under the same store: nothing of the old one counts.
    let elsewhere = tempfile::tempdir().unwrap();
    second.kill();
    let third = Service::start(&fd, elsewhere.path());
    assert_eq!(third.vfs.revive(file.0, file.1).err(), Some(Errno::ESTALE));
    assert_eq!(third.store.len(), 1, "the root");
}

/// What is done once: what there is before, the operation, what there is after, and how a host
/// looks where the service died before it began.
struct Once {
    name: &'static str,
    before: fn(&Path),
    act: fn(&Service, &OpCtx<'_>) -> Result<()>,
    after: fn(&Path) -> bool,
    undo: fn(&Path),
}

fn in_turn(turn: &Turn) -> OpCtx<'_> {
    OpCtx { turn: Some(turn), ..OpCtx::service() }
}

fn shift(service: &Service, ctx: &OpCtx<'_>, flags: i32) -> Result<()> {
    let node = service.find("f")?;
    let file = service.vfs.open(ctx, &node, libc::O_RDWR)?;
    file.fallocate(ctx, flags, 4096, 4096)
}

fn append(service: &Service, ctx: &OpCtx<'_>) -> Result<()> {
    let node = service.find("f")?;
    let file = service.vfs.open(ctx, &node, libc::O_WRONLY | libc::O_APPEND)?;
    let written = file.write(ctx, None, &mut &b"-more"[..])?;
    assert_eq!((written.count, written.end), (5, 9));
    Ok(())
}

fn write(dir: &Path, bytes: usize) {
    let bytes: Vec<u8> = (0..bytes).map(|at| (at / 4096) as u8).collect();
    std::fs::write(dir.join("f"), bytes).unwrap();
}

fn xattr(dir: &Path) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 16];
    let got = rustix::fs::getxattr(dir.join("f"), "user.a", &mut bytes).ok()?;
    bytes.truncate(got);
    Some(bytes)
}

const CASES: &[Once] = &[
    Once {
        name: "mkdir",
        before: |_| (),
        act: |service, ctx| service.make(ctx, &service.vfs.root(), "d", Kind::Dir).map(drop),
        after: |dir| dir.join("d").metadata().is_ok_and(|found| found.mode() & 0o7777 == 0o751),
        undo: |dir| std::fs::remove_dir(dir.join("d")).unwrap(),
    },
    Once {
        name: "mkdir that was not finished",
        before: |_| (),
        act: |service, ctx| service.make(ctx, &service.vfs.root(), "d", Kind::Dir).map(drop),
        after: |dir| dir.join("d").metadata().is_ok_and(|found| found.mode() & 0o7777 == 0o751),
        undo: |dir| {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(dir.join("d"), mode).unwrap();
        },
    },
    Once {
        name: "create",
        before: |_| (),
        act: |service, ctx| service.make(ctx, &service.vfs.root(), "d", Kind::File).map(drop),
        after: |dir| dir.join("d").is_file(),
        undo: |dir| std::fs::remove_file(dir.join("d")).unwrap(),
    },
    Once {
        name: "symlink",
        before: |_| (),
        act: |service, ctx| service.make(ctx, &service.vfs.root(), "d", Kind::Symlink).map(drop),
        after: |dir| std::fs::read_link(dir.join("d")).is_ok_and(|to| to == Path::new("to")),
        undo: |dir| std::fs::remove_file(dir.join("d")).unwrap(),
    },
    Once {
        name: "unlink",
        before: |dir| write(dir, 10),
        act: |service, ctx| service.vfs.unlink(ctx, &service.vfs.root(), b"f"),
        after: |dir| !dir.join("f").exists(),
        undo: |_| (),
    },
    Once {
        name: "unlink, and somebody made it anew",
        before: |dir| write(dir, 10),
        act: |service, ctx| service.vfs.unlink(ctx, &service.vfs.root(), b"f"),
        after: |dir| !dir.join("f").exists() || std::fs::read(dir.join("f")).unwrap() == b"new",
        undo: |dir| std::fs::write(dir.join("f"), "new").unwrap(),
    },
    Once {
        name: "rmdir",
        before: |dir| std::fs::create_dir(dir.join("f")).unwrap(),
        act: |service, ctx| service.vfs.rmdir(ctx, &service.vfs.root(), b"f"),
        after: |dir| !dir.join("f").exists(),
        undo: |_| (),
    },
    Once {
        name: "rename",
        before: |dir| write(dir, 10),
        act: |service, ctx| {
            let root = service.vfs.root();
            service.vfs.rename(ctx, &root, b"f", &root, b"g", 0)
        },
        after: |dir| !dir.join("f").exists() && dir.join("g").exists(),
        undo: |dir| std::fs::rename(dir.join("g"), dir.join("f")).unwrap(),
    },
    Once {
        name: "exchange",
        before: |dir| {
            write(dir, 10);
            std::fs::write(dir.join("g"), "g").unwrap();
        },
        act: |service, ctx| {
            let (root, exchange) = (service.vfs.root(), 2);
            service.vfs.rename(ctx, &root, b"f", &root, b"g", exchange)
        },
        after: |dir| std::fs::read(dir.join("f")).unwrap() == b"g",
        undo: |dir| {
            std::fs::rename(dir.join("g"), dir.join("x")).unwrap();
            std::fs::rename(dir.join("f"), dir.join("g")).unwrap();
            std::fs::rename(dir.join("x"), dir.join("f")).unwrap();
        },
    },
    Once {
        name: "link",
        before: |dir| write(dir, 10),
        act: |service, ctx| {
            let node = service.find("f")?;
            service.vfs.link(ctx, &node, &service.vfs.root(), b"g")
        },
        after: |dir| dir.join("g").metadata().is_ok_and(|found| found.nlink() == 2),
        undo: |dir| std::fs::remove_file(dir.join("g")).unwrap(),
    },
    Once {
        name: "append",
        before: |dir| std::fs::write(dir.join("f"), "once").unwrap(),
        act: append,
        after: |dir| std::fs::read(dir.join("f")).unwrap() == b"once-more",
        undo: |dir| std::fs::write(dir.join("f"), "once").unwrap(),
    },
    Once {
        name: "append of which a part was written",
        before: |dir| std::fs::write(dir.join("f"), "once").unwrap(),
        act: append,
        after: |dir| std::fs::read(dir.join("f")).unwrap() == b"once-more",
        undo: |dir| std::fs::write(dir.join("f"), "once-m").unwrap(),
    },
    Once {
        name: "collapse",
        before: |dir| write(dir, 4 * 4096),
        act: |service, ctx| shift(service, ctx, libc::FALLOC_FL_COLLAPSE_RANGE),
        after: |dir| dir.join("f").metadata().unwrap().len() == 3 * 4096,
        undo: |dir| write(dir, 4 * 4096),
    },
    Once {
        name: "insert",
        before: |dir| write(dir, 4 * 4096),
        act: |service, ctx| shift(service, ctx, libc::FALLOC_FL_INSERT_RANGE),
        after: |dir| dir.join("f").metadata().unwrap().len() == 5 * 4096,
        undo: |dir| write(dir, 4 * 4096),
    },
    Once {
        name: "setxattr",
        before: |dir| write(dir, 10),
        act: |service, ctx| {
            let (node, create) = (service.find("f")?, XattrMode::Create);
            service.vfs.setxattr(ctx, &node, b"user.a", b"value", create)
        },
        after: |dir| xattr(dir).is_some_and(|value| value == b"value"),
        undo: |dir| rustix::fs::removexattr(dir.join("f"), "user.a").unwrap(),
    },
    Once {
        name: "removexattr",
        before: |dir| {
            write(dir, 10);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(dir.join("f"), "user.a", b"value", flags).unwrap();
        },
        act: |service, ctx| service.vfs.removexattr(ctx, &service.find("f")?, b"user.a"),
        after: |dir| xattr(dir).is_none(),
        undo: |_| (),
    },
];

#[test]
fn an_operation_in_flight_is_done_once() {
    let request = RequestId(0, 6);
    for Once { name, before, act, after, undo } in CASES {
        for done in [true, false] {
            let (dir, fd) = (tempfile::tempdir().unwrap(), Store::create().unwrap());
            before(dir.path());
            let first = Service::start(&fd, dir.path());
            let turn = first.turns.begin(request);
            match act(&first, &in_turn(&turn)) {
                // This host's file system cannot do it at all.
                Err(Errno::EOPNOTSUPP) => continue,
                result => assert_eq!(result, Ok(()), "{name}"),
            }
            assert!(after(dir.path()), "{name}");
            first.store.leave();
            drop(turn);
            first.kill();
            if !done {
                undo(dir.path());
            }
            let second = Service::start(&fd, dir.path());
            assert!(second.turns.recall(request).is_none(), "{name}: it was not answered");
            let turn = second.turns.begin(request);
            assert_eq!(act(&second, &in_turn(&turn)), Ok(()), "{name}, done: {done}");
            drop(turn.done(b""));
            assert!(after(dir.path()), "{name}, done: {done}");
        }
    }
}

#[test]
fn an_answer_that_was_not_sent_is_sent() {
    let (dir, fd) = (tempfile::tempdir().unwrap(), Store::create().unwrap());
    let first = Service::start(&fd, dir.path());
    let turn = first.turns.begin(RequestId(0, 10));
    first.make(&in_turn(&turn), &first.vfs.root(), "d", Kind::Dir).unwrap();
    let answered = turn.done(b"the entry");
    first.store.leave();
    drop(answered);
    first.kill();
    // Others have removed it since.
    std::fs::remove_dir(dir.path().join("d")).unwrap();
    let second = Service::start(&fd, dir.path());
    assert!(second.turns.recall(RequestId(0, 12)).is_none());
    let (answer, until_sent) = second.turns.recall(RequestId(0, 10)).expect("answered");
    assert_eq!(answer, b"the entry");
    drop(until_sent);
    assert!(second.turns.recall(RequestId(0, 10)).is_none());
    assert!(!dir.path().join("d").exists());
}
