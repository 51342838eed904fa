//! `hostdir`: conformance, confinement, behaviour beside a host that changes things itself.

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, Ino, Uid};
use polylane_testkit::acl::{self, NOBODY};
use polylane_testkit::fs_suite::{self, Can, node};
use polylane_testkit::probe;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Acl, AclKind, FileSystem, Kind, NewNode, RenameMode, SetAttr};
use polylane_vfs::hostdir::HostDir;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a race is run.
const RACE: Duration = Duration::from_millis(700);

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What this host and this user allow.
fn can() -> Can {
    probe::host(tempfile::tempdir().unwrap().path())
}

/// `inside` is served; `outside` must never be reached from it.
struct Place {
    dir: tempfile::TempDir,
    fs: HostDir,
}

impl Place {
    fn new(descriptors: usize) -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("inside")).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("outside/secret"), "secret").unwrap();
        let root = open(&dir.path().join("inside"));
        let fs = HostDir::with_descriptors(root, descriptors).unwrap();
        Place { dir, fs }
    }

    fn inside(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("inside").join(name)
    }

    fn outside(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("outside").join(name)
    }

    fn root(&self) -> Ino {
        self.fs.root().unwrap().ino
    }

    fn lookup(&self, dir: Ino, name: &str) -> Result<Ino, Errno> {
        self.fs.lookup(&OpCtx::service(), dir, name.as_bytes()).map(|attr| attr.ino)
    }

    fn read(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; 100];
        let count = self.fs.read(&OpCtx::service(), ino, 0, 100, &mut buffer.as_mut_slice())?;
        buffer.truncate(count);
        Ok(buffer)
    }

    /// Makes the instance close descriptors by using many other files.
    fn churn(&self) {
        for i in 0..100 {
            let name = format!("churn{i}");
            let _ = self.fs.create(
                &OpCtx::service(),
                self.root(),
                name.as_bytes(),
                &node(Kind::File, 0o600),
            );
            if let Ok(ino) = self.lookup(self.root(), &name) {
                self.read(ino).unwrap();
            }
        }
    }
}

#[test]
fn conforms() {
    let mut dirs = Vec::new();
    let mut make = || {
        let dir = tempfile::tempdir().unwrap();
        let fs = HostDir::new(open(dir.path())).unwrap();
        dirs.push(dir);
        Arc::new(fs) as Arc<dyn FileSystem>
    };
    fs_suite::run(can(), &mut make);
}

#[test]
fn conforms_with_hardly_any_descriptors() {
    let mut dirs = Vec::new();
    let mut make = || {
        let dir = tempfile::tempdir().unwrap();
        let fs = HostDir::with_descriptors(open(dir.path()), 1).unwrap();
        dirs.push(dir);
        Arc::new(fs) as Arc<dyn FileSystem>
    };
    fs_suite::run(can(), &mut make);
}

#[test]
fn only_a_directory_can_be_served() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    let refused = HostDir::new(open(&dir.path().join("f")));
    assert_eq!(refused.err(), Some(Errno::ENOTDIR));
}

/// Whether the time of change of a file moves by `change`, which is done again until the clock of
/// files has gone on.
fn moves(path: &Path, change: impl Fn()) -> bool {
    let changed = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let (before, begin) = (changed(path), Instant::now());
    let clock = path.with_extension("clock");
    std::fs::write(&clock, "").unwrap();
    while changed(&clock) <= before {
        assert!(begin.elapsed() < Duration::from_secs(10), "the clock of files stands still");
        std::fs::write(&clock, "").unwrap();
    }
    change();
    changed(path) != before
}

#[test]
fn chown_of_neither_moves_the_time_of_change_where_the_host_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "").unwrap();
    let fs = HostDir::new(open(dir.path())).unwrap();
    let ino = fs.lookup(&OpCtx::service(), fs.root().unwrap().ino, b"f").unwrap().ino;
    let by_host = moves(&path, || rustix::fs::chown(&path, None, None).unwrap());
    let by_lane = moves(&path, || {
        fs.setattr(&OpCtx::service(), ino, &SetAttr::default()).unwrap();
    });
    assert_eq!(by_lane, by_host);
}

/// Of a file that the VFS knows already: the host's kernel would take the bits away, and the
/// service may.
#[test]
fn set_id_bits_that_came_on_the_host_go_by_no_strangers_chown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "").unwrap();
    let fs = HostDir::new(open(dir.path())).unwrap();
    let vfs = polylane_vfs::Vfs::new(Arc::new(fs), crate::common::options()).unwrap();
    let node = vfs.lookup(&OpCtx::service(), &vfs.root(), b"f").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    let stranger = crate::common::user(4711, 4711, &[]);
    let done = vfs.setattr(&OpCtx::as_user(&stranger), &node, &SetAttr::default());
    assert_eq!(done.unwrap_err(), Errno::EPERM);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o4755);
}

#[test]
fn names_that_are_paths_are_refused_everywhere() {
    let p = Place::new(64);
    std::fs::write(p.inside("f"), "").unwrap();
    let (fs, root) = (&p.fs, p.root());
    let file = p.lookup(root, "f").unwrap();
    let new = node(Kind::File, 0o600);
    for name in [&b".."[..], b".", b"", b"../outside", b"../outside/secret", b"a/b", b"/", b"f\0"] {
        assert!(fs.lookup(&OpCtx::service(), root, name).is_err());
        assert!(fs.create(&OpCtx::service(), root, name, &new).is_err());
        assert!(fs.create(&OpCtx::service(), root, name, &node(Kind::Dir, 0o700)).is_err());
        assert!(fs.link(&OpCtx::service(), file, root, name).is_err());
        assert!(fs.unlink(&OpCtx::service(), root, name).is_err());
        assert!(fs.rmdir(&OpCtx::service(), root, name).is_err());
        assert!(fs.rename(&OpCtx::service(), root, b"f", root, name, RenameMode::Replace).is_err());
        assert!(fs.rename(&OpCtx::service(), root, name, root, b"g", RenameMode::Replace).is_err());
    }
    assert!(p.outside("secret").exists());
    assert_eq!(std::fs::read_dir(p.outside("")).unwrap().count(), 1);
}

#[test]
fn links_are_read_and_never_followed() {
    let p = Place::new(64);
    let targets =
        ["../outside", "../outside/secret", "/", "/etc/passwd", "/proc/self/root", "loop"];
    for (i, target) in targets.iter().enumerate() {
        let name = format!("link{i}");
        symlink(target, p.inside(&name)).unwrap();
        let attr = p.fs.lookup(&OpCtx::service(), p.root(), name.as_bytes()).unwrap();
        assert_eq!((attr.kind, attr.size), (Kind::Symlink, target.len() as u64));
        assert_eq!(p.fs.readlink(&OpCtx::service(), attr.ino).unwrap(), target.as_bytes());
        assert!(p.lookup(attr.ino, "secret").is_err());
        assert!(p.fs.readdir(&OpCtx::service(), attr.ino, 0, &mut |_| true).is_err());
        assert!(p.read(attr.ino).is_err());
        assert!(p.fs.write(&OpCtx::service(), attr.ino, 0, &mut &b"x"[..]).is_err());
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert!(p.fs.setattr(&OpCtx::service(), attr.ino, &cut).is_err());
        assert!(
            p.fs.create(&OpCtx::service(), attr.ino, b"new", &node(Kind::File, 0o600)).is_err()
        );
        let taken =
            p.fs.create(&OpCtx::service(), p.root(), name.as_bytes(), &node(Kind::File, 0o600));
        assert_eq!(taken.unwrap_err(), Errno::EEXIST, "creation does not follow");
        if is_root() {
            let own = SetAttr { uid: Some(Uid(7)), ..SetAttr::default() };
            assert_eq!(p.fs.setattr(&OpCtx::service(), attr.ino, &own).unwrap().uid, Uid(7));
        }
    }
    assert_eq!(std::fs::read(p.outside("secret")).unwrap(), b"secret");
    assert_ne!(std::fs::metadata(p.outside("")).unwrap().uid(), 7);
}

/// Runs `attack` while another thread swaps `inside/d` (or whatever `a` and `b` are) to and fro.
fn race(p: &Place, a: &str, b: &str, attack: impl Fn()) {
    let stop = AtomicBool::new(false);
    let dir = std::fs::File::open(p.inside("")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&dir, a, &dir, b, flags).unwrap();
            }
        });
        let end = Instant::now() + RACE;
        while Instant::now() < end {
            attack();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_directory_that_turns_into_a_link_leads_nowhere() {
    // One descriptor: nearly every step opens its directories anew.
    let p = Place::new(1);
    std::fs::create_dir(p.inside("d")).unwrap();
    std::fs::write(p.inside("d/own"), "own").unwrap();
    symlink(p.outside(""), p.inside("other")).unwrap();
    let reached = AtomicBool::new(false);
    race(&p, "d", "other", || {
        let Ok(dir) = p.lookup(p.root(), "d") else { return };
        assert!(p.lookup(dir, "secret").is_err(), "reached through a link");
        let _ = p.fs.create(&OpCtx::service(), dir, b"planted", &node(Kind::File, 0o600));
        let _ = p.fs.unlink(&OpCtx::service(), dir, b"secret");
        let _ = p.fs.rename(
            &OpCtx::service(),
            dir,
            b"secret",
            p.root(),
            b"stolen",
            RenameMode::Replace,
        );
        let _ = p.fs.readdir(&OpCtx::service(), dir, 0, &mut |entry| {
            assert_ne!(entry.name, b"secret");
            true
        });
        if let Ok(own) = p.lookup(dir, "own") {
            reached.store(p.read(own).is_ok_and(|bytes| bytes == b"own"), Ordering::Relaxed);
        }
        p.fs.forget(dir);
    });
    assert!(reached.load(Ordering::Relaxed), "the race must sometimes let us in");
    assert_eq!(std::fs::read_dir(p.outside("")).unwrap().count(), 1, "nothing was planted");
    assert!(p.outside("secret").exists() && !p.inside("stolen").exists());
}

#[test]
fn a_file_that_turns_into_a_link_is_not_opened() {
    let p = Place::new(1);
    std::fs::write(p.inside("f"), "own").unwrap();
    symlink(p.outside("secret"), p.inside("other")).unwrap();
    race(&p, "f", "other", || {
        let Ok(ino) = p.lookup(p.root(), "f") else { return };
        if let Ok(bytes) = p.read(ino) {
            assert_eq!(bytes, b"own");
        }
        let _ = p.fs.write(&OpCtx::service(), ino, 0, &mut &b"OWN"[..]);
        let _ = p.fs.write(&OpCtx::service(), ino, 0, &mut &b"own"[..]);
        let touched = SetAttr { perm: Some(0o606), ..SetAttr::default() };
        let _ = p.fs.setattr(&OpCtx::service(), ino, &touched);
        p.fs.forget(ino);
    });
    assert_eq!(std::fs::read(p.outside("secret")).unwrap(), b"secret");
    let mode = std::fs::metadata(p.outside("secret")).unwrap().permissions().mode();
    assert_ne!(mode & 0o777, 0o606);
}

#[test]
fn what_is_no_file_is_never_opened() {
    let p = Place::new(64);
    let mut kinds = vec![Kind::Fifo, Kind::Socket];
    if is_root() {
        kinds.push(Kind::Char);
    }
    for kind in kinds {
        let name = format!("{kind:?}");
        let new = NewNode { rdev: rustix::fs::makedev(1, 5), ..node(kind, 0o666) };
        let made = p.fs.create(&OpCtx::service(), p.root(), name.as_bytes(), &new).unwrap().node;
        assert_eq!(made.kind, kind);
        // Opening the pipe would hang, reading /dev/zero would succeed.
        assert_eq!(p.read(made.ino), Err(Errno::EBADF));
        assert_eq!(p.fs.write(&OpCtx::service(), made.ino, 0, &mut &b"x"[..]), Err(Errno::EBADF));
        assert!(p.fs.getxattr(&OpCtx::service(), made.ino, b"user.x").is_err());
        p.fs.fsync(&OpCtx::service(), made.ino, false).unwrap();
        p.fs.setattr(
            &OpCtx::service(),
            made.ino,
            &SetAttr { perm: Some(0o600), ..SetAttr::default() },
        )
        .unwrap();
        p.fs.unlink(&OpCtx::service(), p.root(), name.as_bytes()).unwrap();
    }
}

/// Unmounts at the end of a test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn other_mounts_are_not_entered() {
    let p = Place::new(64);
    let point = p.inside("mnt");
    std::fs::create_dir(&point).unwrap();
    let ino = p.lookup(p.root(), "mnt").unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("none", &point, "tmpfs", flags, None::<&std::ffi::CStr>).is_err() {
        eprintln!("skipped: mounting is not allowed here");
        return;
    }
    let _mounted = Mounted(point.clone());
    std::fs::write(point.join("secret"), "").unwrap();
    assert_eq!(p.lookup(p.root(), "mnt"), Err(Errno::EXDEV));
    assert!(p.lookup(ino, "secret").is_err());
    p.churn();
    assert!(p.lookup(ino, "secret").is_err());
    assert!(p.fs.rmdir(&OpCtx::service(), p.root(), b"mnt").is_err());
}

#[test]
fn a_file_can_be_executed_on_the_host_while_it_is_known_here() {
    let p = Place::new(64);
    let program = std::fs::read("/bin/true").unwrap();
    let made =
        p.fs.create(&OpCtx::service(), p.root(), b"true", &node(Kind::File, 0o755)).unwrap().node;
    assert_eq!(
        p.fs.write(&OpCtx::service(), made.ino, 0, &mut program.as_slice()),
        Ok(program.len())
    );
    p.read(made.ino).unwrap();
    let status = std::process::Command::new(p.inside("true")).status();
    assert!(status.unwrap().success());
}

#[test]
fn what_moves_behind_our_back_is_found_again() {
    let p = Place::new(1);
    std::fs::create_dir(p.inside("d")).unwrap();
    std::fs::write(p.inside("d/f"), "here").unwrap();
    let dir = p.lookup(p.root(), "d").unwrap();
    let file = p.lookup(dir, "f").unwrap();
    assert_eq!(p.read(file).unwrap(), b"here");
    std::fs::rename(p.inside("d"), p.inside("e")).unwrap();
    p.churn();
    assert_eq!(p.read(file), Err(Errno::ESTALE), "its place is not there");
    let dir = p.lookup(p.root(), "e").unwrap();
    assert_eq!(p.lookup(dir, "f").unwrap(), file);
    assert_eq!(p.read(file).unwrap(), b"here");
    // Another file in its place is another inode.
    std::fs::write(p.inside("e/g"), "other").unwrap();
    std::fs::rename(p.inside("e/g"), p.inside("e/f")).unwrap();
    p.churn();
    assert!(matches!(p.read(file), Err(Errno::ESTALE)));
    assert_ne!(p.lookup(dir, "f").unwrap(), file);
}

#[test]
fn an_unlinked_file_outlives_any_number_of_others() {
    let p = Place::new(1);
    let file =
        p.fs.create(&OpCtx::service(), p.root(), b"f", &node(Kind::File, 0o600)).unwrap().node.ino;
    p.fs.link(&OpCtx::service(), file, p.root(), b"g").unwrap();
    p.fs.write(&OpCtx::service(), file, 0, &mut &b"kept"[..]).unwrap();
    p.fs.unlink(&OpCtx::service(), p.root(), b"g").unwrap();
    p.churn();
    assert_eq!(p.read(file).unwrap(), b"kept", "by its other name");
    p.fs.unlink(&OpCtx::service(), p.root(), b"f").unwrap();
    p.churn();
    assert_eq!(p.read(file).unwrap(), b"kept");
    assert_eq!(p.fs.getattr(&OpCtx::service(), file).unwrap().nlink, 0);
}

#[test]
fn new_files_belong_to_whom_they_should() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let p = Place::new(64);
    let shared = SetAttr { perm: Some(0o2777), gid: Some(Gid(55)), ..SetAttr::default() };
    p.fs.setattr(&OpCtx::service(), p.root(), &shared).unwrap();
    for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo] {
        let name = format!("{kind:?}");
        let target: &[u8] = if kind == Kind::Symlink { b"t" } else { b"" };
        let perm = if kind == Kind::Symlink { 0o777 } else { 0o4711 };
        let new = NewNode { uid: Uid(1000), gid: Gid(1001), target, ..NewNode::new(kind, perm) };
        let made = p.fs.create(&OpCtx::service(), p.root(), name.as_bytes(), &new).unwrap().node;
        assert_eq!((made.uid, made.gid, made.perm), (Uid(1000), Gid(1001), perm), "{kind:?}");
        let host = std::fs::symlink_metadata(p.inside(&name)).unwrap();
        assert_eq!((host.uid(), host.gid(), host.mode() & 0o7777), (1000, 1001, perm));
    }
    let nobody = NewNode { uid: Uid(u32::MAX), ..node(Kind::File, 0o600) };
    assert_eq!(p.fs.create(&OpCtx::service(), p.root(), b"x", &nobody).unwrap_err(), Errno::EINVAL);
    assert!(!p.inside("x").exists(), "what fails half-way is removed");
}

/// Runs `work` on a thread that is user 65534 and nothing else.
fn as_nobody(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let id = 65534;
            let (uid, gid) = (rustix::fs::Uid::from_raw(id), rustix::fs::Gid::from_raw(id));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work();
        });
    });
}

#[test]
fn without_privileges_it_does_what_the_kernel_allows() {
    if !is_root() {
        eprintln!("skipped: becomes another user");
        return;
    }
    let p = Place::new(64);
    std::os::unix::fs::chown(p.inside(""), Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(p.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    as_nobody(|| {
        let file =
            p.fs.create(&OpCtx::service(), p.root(), b"f", &node(Kind::File, 0o444)).unwrap().node;
        assert_eq!((file.uid, file.perm), (Uid(65534), 0o444));
        // Open for writing above us, read-only here.
        assert_eq!(p.fs.write(&OpCtx::service(), file.ino, 0, &mut &b"text"[..]), Ok(4));
        let none = SetAttr { perm: Some(0), ..SetAttr::default() };
        p.fs.setattr(&OpCtx::service(), file.ino, &none).unwrap();
        assert_eq!(p.read(file.ino).unwrap(), b"text");
        assert_eq!(p.fs.write(&OpCtx::service(), file.ino, 4, &mut &b"!"[..]), Ok(1));
        p.fs.fsync(&OpCtx::service(), file.ino, false).unwrap();
        assert_eq!(p.fs.getattr(&OpCtx::service(), file.ino).unwrap().perm, 0);
        let own = SetAttr { uid: Some(Uid(0)), ..SetAttr::default() };
        assert_eq!(p.fs.setattr(&OpCtx::service(), file.ino, &own).unwrap_err(), Errno::EPERM);
        let other = NewNode { uid: Uid(0), gid: Gid(0), ..node(Kind::File, 0o600) };
        assert_eq!(
            p.fs.create(&OpCtx::service(), p.root(), b"g", &other).unwrap_err(),
            Errno::EPERM
        );
        let device = NewNode { rdev: rustix::fs::makedev(1, 3), ..node(Kind::Char, 0o666) };
        assert_eq!(
            p.fs.create(&OpCtx::service(), p.root(), b"null", &device).unwrap_err(),
            Errno::EPERM
        );
    });
    assert!(!p.inside("g").exists());
}

/// Access lists of the host's files do not count, and grant nobody more by the mode, whoever sets
/// them when: lists, modes and contents change at random, and each state that is shown is judged.
#[test]
fn access_lists_of_the_host_grant_no_more_by_the_mode() {
    if !is_root() {
        // A user's own files could have lists as well, whose group it cannot choose.
        return;
    }
    let p = Place::new(64);
    let ctx = &OpCtx::service();
    std::fs::write(p.inside("f"), "").unwrap();
    std::fs::create_dir(p.inside("d")).unwrap();
    let value = acl::value([(1, 7, NOBODY), (4, 5, NOBODY), (32, 5, NOBODY)]);
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(p.inside("f"), AclKind::Access.name(), &value, flags).is_err() {
        return eprintln!("skipped: the file system of temporary files has no access lists");
    }
    let names = ["f", "d"].map(|name| (p.inside(name), p.lookup(p.root(), name).unwrap()));
    let mut random = Rng::new(31);
    for round in 0..400 {
        let (path, ino) = &names[random.below(2) as usize];
        let bits = |random: &mut Rng| random.below(8) as u16;
        match random.below(4) {
            0 => {
                let list = [
                    (1, 7, NOBODY),
                    (2, bits(&mut random), 1000),
                    (4, bits(&mut random), NOBODY),
                    (8, bits(&mut random), 2000),
                    (16, bits(&mut random), NOBODY),
                    (32, bits(&mut random), NOBODY),
                ];
                let flags = rustix::fs::XattrFlags::empty();
                let value = acl::value(list);
                rustix::fs::setxattr(path, AclKind::Access.name(), &value, flags).unwrap();
            }
            1 => {
                let perm = 0o700 | random.below(64) as u32;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(perm)).unwrap();
            }
            2 => {
                let _ = rustix::fs::removexattr(path, AclKind::Access.name());
            }
            _ if random.below(4) == 0 => std::thread::sleep(Duration::from_millis(25)),
            _ => {}
        }
        let shown = p.fs.getattr(ctx, *ino).unwrap().perm;
        let mode = std::fs::metadata(path).unwrap().mode() & 0o7777;
        let mut value = Vec::with_capacity(256);
        let spare = rustix::buffer::spare_capacity(&mut value);
        let list = rustix::fs::getxattr(path, AclKind::Access.name(), spare).ok();
        let list = list.and_then(|_| Acl::parse(&value).unwrap());
        let due = list.map_or(0o777, |list| list.mode_alone());
        assert_eq!(shown, mode & due, "round {round}");
    }
}
