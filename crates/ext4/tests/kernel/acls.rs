//! Access control lists: the kernel's, judged and changed by us, and ours by the kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, TestClock, Uid};
use polylane_testkit::acl::{NOBODY, value};
use polylane_testkit::ops::UMASK;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{AclKind, FileSystem, Kind, SetAttr, XattrMode};
use polylane_vfs::{Create, Cred, OpCtx, Vfs};
use rustix::fs::{CWD, Mode, XattrFlags};

use super::{Image, can_mount, common, of_kernel, of_ours, snapshot};

const STEPS: usize = 1500;
/// Who is asked about: user, group, other groups. Lists name users 1 to 4 and groups 10 to 13.
const PEOPLE: [(u32, u32, &[u32]); 6] =
    [(1, 10, &[]), (2, 99, &[10, 12]), (3, 11, &[13]), (4, 99, &[]), (9, 13, &[12]), (9, 99, &[])];

/// What is done to a tree, by the kernel and by us.
#[derive(Debug)]
enum Step {
    Make(Kind, String, u32),
    Mode(String, u32),
    Owner(String, u32, u32),
    Set(String, AclKind, Vec<u8>),
    Remove(String, AclKind),
}

fn random_list(rng: &mut Rng) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut put = |tag: u16, rights: u64, id: u32| entries.push((tag, rights as u16, id));
    let mut any = || rng.below(8);
    let [owner, group, mask, others] = std::array::from_fn(|_| any());
    // Long ones do not fit into an inode.
    let counts = match rng.below(12) {
        0 => [60, 60],
        1..3 => [0, 0],
        _ => [rng.below(4), rng.below(4)],
    };
    put(1, owner, NOBODY);
    (0..counts[0]).for_each(|at| put(2, rng.below(8), 1 + (at + rng.below(3)) as u32));
    put(4, group, NOBODY);
    (0..counts[1]).for_each(|at| put(8, rng.below(8), 10 + (at + rng.below(3)) as u32));
    if counts != [0, 0] || rng.percent(50) {
        put(16, mask, NOBODY);
    }
    put(32, others, NOBODY);
    value(entries)
}

struct Steps {
    rng: Rng,
    dirs: Vec<String>,
    all: Vec<String>,
}

impl Steps {
    fn next(&mut self) -> Step {
        let any = self.rng.pick(&self.all).clone();
        let dir = self.rng.pick(&self.dirs).clone();
        let kind = if self.rng.percent(50) { AclKind::Default } else { AclKind::Access };
        match self.rng.below(12) {
            0..5 => {
                let kinds = [Kind::File, Kind::File, Kind::Dir, Kind::Fifo, Kind::Symlink];
                let kind = *self.rng.pick(&kinds);
                let path = format!("{dir}/{}", self.all.len());
                self.all.push(path.clone());
                if kind == Kind::Dir {
                    self.dirs.push(path.clone());
                }
                Step::Make(kind, path, self.rng.below(0o1000) as u32)
            }
            5 | 6 => Step::Mode(any, self.rng.below(0o10000) as u32),
            7 => Step::Owner(any, self.rng.below(5) as u32, 10 + self.rng.below(4) as u32),
            8 => Step::Remove(any, kind),
            9 => Step::Set(dir, AclKind::Default, random_list(&mut self.rng)),
            _ => Step::Set(any, kind, random_list(&mut self.rng)),
        }
    }
}

fn steps(seed: u64) -> Vec<Step> {
    let top = vec!["top".to_owned()];
    let mut steps = Steps { rng: Rng::new(seed), dirs: top.clone(), all: top };
    let mut all = vec![Step::Make(Kind::Dir, "top".into(), 0o777)];
    all.extend((1..STEPS).map(|_| steps.next()));
    all
}

fn by_kernel(root: &Path, step: &Step) -> Result<(), Errno> {
    let at = |path: &String| root.join(path);
    let done = match step {
        Step::Make(Kind::Symlink, path, _) => rustix::fs::symlink("nowhere", at(path)),
        Step::Make(Kind::Dir, path, perm) => rustix::fs::mkdir(at(path), Mode::from(*perm)),
        Step::Make(kind, path, perm) => {
            let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
            rustix::fs::mknodat(CWD, at(path), kind, Mode::from(*perm), 0)
        }
        // Links have no mode of their own.
        Step::Mode(path, _) if at(path).is_symlink() => Ok(()),
        Step::Mode(path, perm) => rustix::fs::chmod(at(path), Mode::from(*perm)),
        Step::Owner(path, uid, gid) => {
            std::os::unix::fs::lchown(at(path), Some(*uid), Some(*gid)).expect("changed");
            Ok(())
        }
        Step::Set(path, kind, value) => {
            rustix::fs::lsetxattr(at(path), kind.name(), value, XattrFlags::empty())
        }
        Step::Remove(path, kind) => rustix::fs::lremovexattr(at(path), kind.name()),
    };
    done.map_err(|errno| Errno(errno.raw_os_error()))
}

fn by_us(vfs: &Vfs, step: &Step) -> Result<(), Errno> {
    let root = Cred::root();
    let find = |path: &String| {
        vfs.resolve(&OpCtx::as_user(&root), &vfs.root(), path.as_bytes(), false).ok()
    };
    let node = |path: &String| find(path).ok_or(Errno::ENOENT);
    match step {
        Step::Make(kind, path, perm) => {
            let Ok(last) = vfs.resolve_parent(&OpCtx::as_user(&root), &vfs.root(), path.as_bytes())
            else {
                return Err(Errno::ENOENT);
            };
            let target: &[u8] = if *kind == Kind::Symlink { b"nowhere" } else { b"" };
            let new = Create { kind: *kind, perm: *perm, umask: UMASK, rdev: 0, target };
            vfs.create(&OpCtx::as_user(&root), &last.dir, &last.name, &new).map(drop)
        }
        Step::Mode(path, _) if node(path)?.kind() == Kind::Symlink => Ok(()),
        Step::Mode(path, perm) => {
            let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            vfs.setattr(&OpCtx::as_user(&root), &node(path)?, &set).map(drop)
        }
        Step::Owner(path, uid, gid) => {
            let (uid, gid) = (Some(Uid(*uid)), Some(Gid(*gid)));
            vfs.setattr(
                &OpCtx::as_user(&root),
                &node(path)?,
                &SetAttr { uid, gid, ..SetAttr::default() },
            )
            .map(drop)
        }
        Step::Set(path, kind, value) => {
            vfs.setxattr(&OpCtx::as_user(&root), &node(path)?, kind.name(), value, XattrMode::Any)
        }
        Step::Remove(path, kind) => {
            vfs.removexattr(&OpCtx::as_user(&root), &node(path)?, kind.name())
        }
    }
}

/// A lane's VFS on the image, for as long as `work` takes.
fn with_vfs<T>(image: &Image, work: impl FnOnce(&Vfs) -> T) -> T {
    image.ours(|fs| {
        let options = small_options(Arc::new(TestClock::default()), 1 << 20);
        let vfs = Vfs::new(fs.clone(), options).expect("opens");
        work(&vfs)
    })
}

/// Modes, owners and lists by path.
type Shape = BTreeMap<String, (u32, u32, u32, [Option<Vec<u8>>; 2])>;

const KINDS: [AclKind; 2] = [AclKind::Access, AclKind::Default];

fn shape_of_kernel(root: &Path, paths: &[String]) -> Shape {
    let each = paths.iter().filter_map(|path| {
        let at = root.join(path);
        let meta = std::fs::symlink_metadata(&at).ok()?;
        let lists = KINDS.map(|kind| {
            let mut value = vec![0; 4096];
            let count = rustix::fs::lgetxattr(&at, kind.name(), &mut value[..]).ok()?;
            value.truncate(count);
            Some(value)
        });
        Some((path.clone(), (meta.permissions().mode(), meta.uid(), meta.gid(), lists)))
    });
    each.collect()
}

fn shape_of_ours(vfs: &Vfs, paths: &[String]) -> Shape {
    let each = paths.iter().filter_map(|path| {
        let node = vfs.resolve(&OpCtx::service(), &vfs.root(), path.as_bytes(), false).ok()?;
        let attr = vfs.getattr(&OpCtx::service(), &node).expect("known");
        let lists = KINDS.map(|kind| vfs.getxattr(&OpCtx::service(), &node, kind.name()).ok());
        Some((path.clone(), (attr.mode(), attr.uid.0, attr.gid.0, lists)))
    });
    each.collect()
}

fn assert_same(left: &Shape, right: &Shape) {
    for (path, shape) in left {
        assert_eq!(Some(shape), right.get(path), "{path}");
    }
    assert_eq!(left.len(), right.len());
}

/// Whom the kernel lets do what, one line each; by `test`, in somebody's name.
fn judged_by_kernel(root: &Path, paths: &[String]) -> String {
    let mut script = String::new();
    for path in paths {
        let _ = writeln!(script, "for r in r w x; do test -$r {path} && printf $r; done");
        let _ = writeln!(script, "echo ' {path}'");
    }
    let mut lines = String::new();
    for (uid, gid, groups) in PEOPLE {
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        let groups = match groups.is_empty() {
            true => "--clear-groups".to_owned(),
            false => format!("--groups={}", groups.join(",")),
        };
        let who = [format!("--reuid={uid}"), format!("--regid={gid}"), groups];
        let done = Command::new("setpriv")
            .args(who)
            .args(["sh", "-c", &script])
            .current_dir(root)
            .output()
            .expect("setpriv runs");
        assert_eq!(String::from_utf8_lossy(&done.stderr), "");
        lines.push_str(&String::from_utf8_lossy(&done.stdout));
    }
    lines
}

fn judged_by_us(vfs: &Vfs, paths: &[String]) -> String {
    let mut lines = String::new();
    for (uid, gid, groups) in PEOPLE {
        let groups = groups.iter().map(|gid| Gid(*gid)).collect();
        let cred = Cred { uid: Uid(uid), gid: Gid(gid), groups, ..Cred::root() };
        for path in paths {
            let may = |mask| {
                let node = vfs.resolve(&OpCtx::as_user(&cred), &vfs.root(), path.as_bytes(), true);
                node.is_ok_and(|node| vfs.access(&OpCtx::as_user(&cred), &node, mask).is_ok())
            };
            for (mask, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
                lines.extend(may(mask).then_some(letter));
            }
            let _ = writeln!(lines, " {path}");
        }
    }
    lines
}

/// Fails with the first line that differs.
fn assert_lines(kernel: &str, ours: &str) {
    for (kernel, ours) in kernel.lines().zip(ours.lines()) {
        assert_eq!(kernel, ours, "the kernel's first");
    }
    assert_eq!(kernel.lines().count(), ours.lines().count());
}

/// The same steps by both on an image each, then each has the other's image: modes, owners and
/// lists are the same, and so is what anybody may do.
#[test]
fn lists_are_set_inherited_and_judged_as_by_the_kernel() {
    if !can_mount() || Command::new("setpriv").arg("--version").output().is_err() {
        return;
    }
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    let old: &[&str] = &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit,^metadata_csum"];
    for (seed, args) in [(1, common::LANE), (2, common::LANE), (3, old)] {
        let (of_theirs, of_us) = (Image::new(64, args), Image::new(64, args));
        let steps = steps(seed);
        let mut paths = Vec::new();
        let mut answers = Vec::new();
        let (theirs, judged) = {
            let mount = of_theirs.mount();
            std::fs::set_permissions(mount.path(), PermissionsExt::from_mode(0o755)).expect("set");
            for step in &steps {
                answers.push(by_kernel(mount.path(), step));
                if let Step::Make(_, path, _) = step {
                    paths.push(path.clone());
                }
            }
            (shape_of_kernel(mount.path(), &paths), judged_by_kernel(mount.path(), &paths))
        };
        let lists = |kind: usize| theirs.values().filter(|shape| shape.3[kind].is_some()).count();
        assert!(lists(0) > 100 && lists(1) > 30, "{} {}", lists(0), lists(1));
        with_vfs(&of_us, |vfs| {
            for (step, answer) in steps.iter().zip(&answers) {
                assert_eq!(by_us(vfs, step), *answer, "{step:?}");
            }
            assert_same(&theirs, &shape_of_ours(vfs, &paths));
            assert_lines(&judged, &judged_by_us(vfs, &paths));
        });
        // As read from the image, ours and theirs.
        for image in [&of_us, &of_theirs] {
            with_vfs(image, |vfs| {
                assert_lines(&judged, &judged_by_us(vfs, &paths));
                assert_same(&theirs, &shape_of_ours(vfs, &paths));
            });
        }
        let mount = of_us.mount();
        assert_same(&theirs, &shape_of_kernel(mount.path(), &paths));
        assert_lines(&judged, &judged_by_kernel(mount.path(), &paths));
    }
}

/// setfacl's lists seen by us, ours by getfacl, and both whole after the other changed them.
#[test]
fn lists_pass_between_setfacl_and_us() {
    if !can_mount() || Command::new("setfacl").arg("--version").output().is_err() {
        return;
    }
    let image = Image::new(64, common::LANE);
    let run = |program: &str, args: &[&str], root: &Path| {
        let done = Command::new(program).args(args).current_dir(root).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    {
        let mount = image.mount();
        std::fs::create_dir(mount.path().join("d")).expect("made");
        run("setfacl", &["-m", "u:7:rwx,g:8:rx,d:u:7:rw,d:g:8:r", "d"], mount.path());
    }
    with_vfs(&image, |vfs| {
        let dir = vfs.resolve(&OpCtx::service(), &vfs.root(), b"d", true).expect("is there");
        let seven = Cred { uid: Uid(7), gid: Gid(1), ..Cred::root() };
        assert_eq!(vfs.access(&OpCtx::as_user(&seven), &dir, 7), Ok(()));
        let new = Create { kind: Kind::File, perm: 0o666, umask: 0o77, rdev: 0, target: b"" };
        let file = vfs.create(&OpCtx::as_user(&seven), &dir, b"f", &new).expect("by the list");
        let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        vfs.setattr(&OpCtx::as_user(&seven), &file, &set).expect("owns it");
    });
    let mount = image.mount();
    let said = run("getfacl", &["-n", "-c", "d/f"], mount.path());
    let lines: Vec<&str> = said.split_whitespace().collect();
    let want = ["user::rw-", "user:7:rw-", "#effective:r--", "group::r-x", "#effective:r--"];
    let more = ["group:8:r--", "mask::r--", "other::---"];
    assert_eq!(lines, [&want[..], &more[..]].concat());
    let theirs = of_kernel(mount.path());
    drop(mount);
    snapshot::assert_same(&theirs, &image.ours(|fs| of_ours(&**fs as &dyn FileSystem)));
}
