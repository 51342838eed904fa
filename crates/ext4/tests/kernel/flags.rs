//! Inode flags: the kernel's, minded and changed by us, and ours by the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_base::{Errno, TestClock, Time};
use polylane_testkit::ops::UMASK;
use polylane_testkit::subject::small_options;
use polylane_vfs::fs::{Kind, SetAttr, SetTime, XattrMode};
use polylane_vfs::{Create, Cred, Node, OpCtx, Vfs, flags};
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use super::{Image, can_mount, common};

const STEPS: usize = 3000;
/// Flags that steps set and clear.
const TOGGLED: [u32; 5] =
    [flags::IMMUTABLE, flags::APPEND, flags::NODUMP, flags::NOATIME, flags::PROJECT_INHERIT];

/// What is done to a tree as root, by the kernel and by us.
#[derive(Debug)]
enum Step {
    Make(Kind, String),
    /// These flags become the others.
    Toggle(String, u32),
    Open(String, OFlags),
    Append(String),
    Truncate(String, u64),
    Mode(String),
    Times(String, [SetTime; 2]),
    Xattr(String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, bool),
}

struct Steps {
    rng: Rng,
    dirs: Vec<String>,
    all: Vec<String>,
}

impl Steps {
    /// One of the last ones: most others are gone by now.
    fn recent(&mut self, of: impl Fn(&Steps) -> &Vec<String>, count: usize) -> String {
        let all = of(self);
        let last = all[all.len().saturating_sub(count)..].to_vec();
        self.rng.pick(&last).clone()
    }

    fn new_path(&mut self) -> String {
        let dir = self.recent(|steps| &steps.dirs, 8);
        // Where flags forbid to make anything, go on at the top.
        let dir = if self.rng.percent(20) { "top".to_owned() } else { dir };
        let path = format!("{dir}/{}", self.all.len());
        self.all.push(path.clone());
        path
    }

    fn time(&mut self) -> SetTime {
        match self.rng.percent(60) {
            true => SetTime::Now,
            false => SetTime::At(Time { sec: 1_000_000, nsec: 5 }),
        }
    }

    fn next(&mut self) -> Step {
        let any = self.recent(|steps| &steps.all, 40);
        match self.rng.below(24) {
            0..6 => {
                let kind = if self.rng.percent(70) { Kind::File } else { Kind::Dir };
                let path = self.new_path();
                if kind == Kind::Dir {
                    self.dirs.push(path.clone());
                }
                Step::Make(kind, path)
            }
            // Mostly one, which goes again with the same odds.
            6..12 => Step::Toggle(any, *self.rng.pick(&TOGGLED) | *self.rng.pick(&TOGGLED)),
            12 | 13 => {
                let ways = [
                    OFlags::RDONLY,
                    OFlags::RDWR,
                    OFlags::WRONLY | OFlags::APPEND,
                    OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC,
                ];
                Step::Open(any, *self.rng.pick(&ways))
            }
            14 => Step::Append(any),
            15 => Step::Truncate(any, self.rng.below(10)),
            16 => Step::Mode(any),
            17 => Step::Times(any, [self.time(), self.time()]),
            18 => Step::Xattr(any),
            19 => Step::Link(any, self.new_path()),
            20 => Step::Unlink(any),
            21 => Step::Rmdir(any),
            22 => Step::Rename(any, self.recent(|steps| &steps.all, 40), self.rng.percent(30)),
            _ => Step::Rename(any, self.new_path(), false),
        }
    }
}

fn steps(seed: u64) -> Vec<Step> {
    let top = vec!["top".to_owned()];
    let mut steps = Steps { rng: Rng::new(seed), dirs: top, all: vec!["top/0".to_owned()] };
    let mut all = vec![Step::Make(Kind::Dir, "top".into())];
    all.extend((1..STEPS).map(|_| steps.next()));
    all
}

fn open(at: &Path, how: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    rustix::fs::open(at, how | OFlags::CLOEXEC, Mode::empty())
}

fn by_kernel(root: &Path, step: &Step) -> Result<(), Errno> {
    let at = |path: &String| root.join(path);
    let time = |time: &SetTime| match time {
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        SetTime::At(time) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
    };
    let done = match step {
        Step::Make(Kind::Dir, path) => rustix::fs::mkdir(at(path), Mode::from(0o755)),
        Step::Make(_, path) => {
            let regular = rustix::fs::FileType::RegularFile;
            rustix::fs::mknodat(CWD, at(path), regular, Mode::from(0o644), 0)
        }
        Step::Toggle(path, toggled) => open(&at(path), OFlags::RDONLY).and_then(|file| {
            let old = rustix::fs::ioctl_getflags(&file)?;
            rustix::fs::ioctl_setflags(&file, old ^ IFlags::from_bits_retain(*toggled))
        }),
        Step::Open(path, how) => open(&at(path), *how).map(drop),
        Step::Append(path) => open(&at(path), OFlags::WRONLY | OFlags::APPEND)
            .and_then(|file| rustix::io::write(&file, b"more").map(drop)),
        Step::Truncate(path, size) => open(&at(path), OFlags::WRONLY | OFlags::APPEND)
            .and_then(|file| rustix::fs::ftruncate(&file, *size)),
        Step::Mode(path) => rustix::fs::chmod(at(path), Mode::from(0o600)),
        Step::Times(path, times) => {
            let times =
                Timestamps { last_access: time(&times[0]), last_modification: time(&times[1]) };
            rustix::fs::utimensat(CWD, at(path), &times, AtFlags::empty())
        }
        Step::Xattr(path) => rustix::fs::setxattr(at(path), "trusted.x", b"1", XattrFlags::empty()),
        Step::Link(path, new) => rustix::fs::link(at(path), at(new)),
        Step::Unlink(path) => rustix::fs::unlink(at(path)),
        Step::Rmdir(path) => rustix::fs::rmdir(at(path)),
        Step::Rename(from, to, exchange) => {
            let all = rustix::fs::RenameFlags::empty();
            let how = if *exchange { rustix::fs::RenameFlags::EXCHANGE } else { all };
            rustix::fs::renameat_with(CWD, at(from), CWD, at(to), how)
        }
    };
    done.map_err(|errno| Errno(errno.raw_os_error()))
}

fn by_us(vfs: &Vfs, step: &Step) -> Result<(), Errno> {
    let ctx = &OpCtx::service();
    let root = Cred::root();
    let find = |path: &String| match vfs.resolve(
        &OpCtx::as_user(&root),
        &vfs.root(),
        path.as_bytes(),
        false,
    ) {
        Ok(node) => Ok(node),
        Err(polylane_vfs::PathError::Errno(errno)) => Err(errno),
        Err(error) => panic!("{path}: {error:?}"),
    };
    let last = |path: &String| {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = if dir.is_empty() { vfs.root() } else { find(&dir.to_owned())? };
        match dir.kind() {
            Kind::Dir => Ok((dir, name.as_bytes().to_vec())),
            _ => Err(Errno::ENOTDIR),
        }
    };
    let open = |path, how: OFlags| {
        vfs.open(&OpCtx::as_user(&root), &find(path)?, how.bits().cast_signed())
    };
    let set = |node: &Node, set: SetAttr| vfs.setattr(&OpCtx::as_user(&root), node, &set).map(drop);
    match step {
        Step::Make(kind, path) => {
            let (dir, name) = last(path)?;
            let perm = if *kind == Kind::Dir { 0o755 } else { 0o644 };
            let new = Create { kind: *kind, perm, umask: UMASK, rdev: 0, target: b"" };
            vfs.create(&OpCtx::as_user(&root), &dir, &name, &new).map(drop)
        }
        Step::Toggle(path, toggled) => {
            let node = find(path)?;
            vfs.set_flags(&OpCtx::as_user(&root), &node, vfs.flags(ctx, &node)? ^ toggled)
        }
        Step::Open(path, how) => open(path, *how).map(drop),
        Step::Append(path) => {
            let file = open(path, OFlags::WRONLY | OFlags::APPEND)?;
            file.write(&OpCtx::as_user(&root), None, &mut &b"more"[..]).map(drop)
        }
        Step::Truncate(path, size) => {
            let file = open(path, OFlags::WRONLY | OFlags::APPEND)?;
            set(file.node(), SetAttr { size: Some(*size), ..SetAttr::default() })
        }
        Step::Mode(path) => set(&find(path)?, SetAttr { perm: Some(0o600), ..SetAttr::default() }),
        Step::Times(path, [atime, mtime]) => {
            let (atime, mtime) = (Some(*atime), Some(*mtime));
            set(&find(path)?, SetAttr { atime, mtime, ..SetAttr::default() })
        }
        Step::Xattr(path) => {
            vfs.setxattr(&OpCtx::as_user(&root), &find(path)?, b"trusted.x", b"1", XattrMode::Any)
        }
        Step::Link(path, new) => {
            let (node, (dir, name)) = (find(path)?, last(new)?);
            vfs.link(&OpCtx::as_user(&root), &node, &dir, &name)
        }
        Step::Unlink(path) => {
            last(path).and_then(|(dir, name)| vfs.unlink(&OpCtx::as_user(&root), &dir, &name))
        }
        Step::Rmdir(path) => {
            last(path).and_then(|(dir, name)| vfs.rmdir(&OpCtx::as_user(&root), &dir, &name))
        }
        Step::Rename(from, to, exchange) => {
            let ((from_dir, from), (to_dir, to)) = (last(from)?, last(to)?);
            let how = if *exchange { polylane_vfs::RENAME_EXCHANGE } else { 0 };
            vfs.rename(&OpCtx::as_user(&root), &from_dir, &from, &to_dir, &to, how)
        }
    }
}

/// A lane's VFS on the image, for as long as `work` takes.
fn with_vfs<T>(image: &Image, work: impl FnOnce(&Vfs) -> T) -> T {
    image.ours(|fs| {
        let options = small_options(Arc::new(TestClock::default()), 1 << 20);
        work(&Vfs::new(fs.clone(), options).expect("opens"))
    })
}

/// Flags by path.
type Shape = BTreeMap<String, u32>;

/// Paths that steps make, and whatever they become.
fn paths(steps: &[Step]) -> Vec<String> {
    let made = steps.iter().filter_map(|step| match step {
        Step::Make(_, path) | Step::Link(_, path) | Step::Rename(_, path, _) => Some(path.clone()),
        _ => None,
    });
    made.collect()
}

fn shape_of_kernel(root: &Path, paths: &[String]) -> Shape {
    let each = paths.iter().filter_map(|path| {
        let file = open(&root.join(path), OFlags::RDONLY).ok()?;
        Some((path.clone(), rustix::fs::ioctl_getflags(&file).expect("known").bits()))
    });
    each.collect()
}

fn shape_of_ours(vfs: &Vfs, paths: &[String]) -> Shape {
    let each = paths.iter().filter_map(|path| {
        let node = vfs.resolve(&OpCtx::service(), &vfs.root(), path.as_bytes(), false).ok()?;
        Some((path.clone(), vfs.flags(&OpCtx::service(), &node).expect("known")))
    });
    each.collect()
}

/// The same steps by both on an image each, then each has the other's image: answers and flags are
/// the same.
#[test]
fn flags_are_set_inherited_and_minded_as_by_the_kernel() {
    if !can_mount() {
        return;
    }
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    let old: &[&str] = &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit,^metadata_csum"];
    for (seed, args) in [(1, common::LANE), (2, common::LANE), (3, old)] {
        let (of_theirs, of_us) = (Image::new(64, args), Image::new(64, args));
        let steps = steps(seed);
        let paths = paths(&steps);
        let mut answers = Vec::new();
        let theirs = {
            let mount = of_theirs.mount();
            answers.extend(steps.iter().map(|step| by_kernel(mount.path(), step)));
            shape_of_kernel(mount.path(), &paths)
        };
        let refused = answers.iter().filter(|answer| **answer == Err(Errno::EPERM)).count();
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(refused > STEPS / 20 && done > STEPS / 10, "{refused} refused, {done} done");
        with_vfs(&of_us, |vfs| {
            for (at, (step, answer)) in steps.iter().zip(&answers).enumerate() {
                assert_eq!(by_us(vfs, step), *answer, "{seed}, {at}: {step:?}");
            }
            assert_eq!(theirs, shape_of_ours(vfs, &paths));
        });
        for image in [&of_us, &of_theirs] {
            with_vfs(image, |vfs| assert_eq!(theirs, shape_of_ours(vfs, &paths)));
        }
        assert_eq!(theirs, shape_of_kernel(of_us.mount().path(), &paths));
    }
}

/// Flags that we do not set: kept, inherited as by the kernel, and refused to be changed.
#[test]
fn flags_that_we_do_not_honour_stay_as_the_kernel_left_them() {
    if !can_mount() {
        return;
    }
    let image = Image::new(64, common::LANE);
    let both = flags::SYNC | flags::DIRSYNC;
    {
        let mount = image.mount();
        std::fs::create_dir(mount.path().join("dir")).expect("made");
        let dir = open(&mount.path().join("dir"), OFlags::RDONLY).expect("opens");
        let old = rustix::fs::ioctl_getflags(&dir).expect("known");
        rustix::fs::ioctl_setflags(&dir, old | IFlags::from_bits_retain(both)).expect("set");
    }
    with_vfs(&image, |vfs| {
        let root = Cred::root();
        let dir = vfs.resolve(&OpCtx::as_user(&root), &vfs.root(), b"dir", true).expect("is there");
        for (kind, name) in [(Kind::File, &b"file"[..]), (Kind::Dir, b"below")] {
            let new = Create { kind, perm: 0o700, umask: 0, rdev: 0, target: b"" };
            vfs.create(&OpCtx::as_user(&root), &dir, name, &new).expect("made");
        }
        let had = vfs.flags(&OpCtx::service(), &dir).expect("known");
        assert_eq!(had & both, both);
        assert_eq!(
            vfs.set_flags(&OpCtx::as_user(&root), &dir, had ^ flags::SYNC),
            Err(Errno::EOPNOTSUPP)
        );
        vfs.set_flags(&OpCtx::as_user(&root), &dir, had | flags::NODUMP).expect("set");
    });
    let mount = image.mount();
    let of = |path: &str| {
        let file = open(&mount.path().join(path), OFlags::RDONLY).expect("opens");
        rustix::fs::ioctl_getflags(&file).expect("known").bits()
    };
    assert_eq!(of("dir"), both | flags::NODUMP | flags::EXTENTS);
    assert_eq!(
        (of("dir/file"), of("dir/below")),
        (flags::SYNC | flags::EXTENTS, both | flags::EXTENTS,)
    );
}
