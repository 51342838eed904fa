//! The kernel's overlayfs as oracle: it mounts what we wrote, and what it wrote we go on with.
//! Needs root and overlayfs; says so where there is none.

mod common;

use common::{Fs, Tree, pattern};
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::kernel::Kernel;
use polylane_testkit::subject::{VfsSubject, small_options};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::hostdir::HostDir;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const EXACT: Exact = Exact { holes: false, times: false, dir_links: false, leaving: true };

/// Directories of the host: a lower with something of everything in it, and an upper.
struct Place {
    dir: tempfile::TempDir,
}

/// A mount of the kernel's; goes with this.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn sh(dir: &Path, script: &str) {
    let done = Command::new("sh").args(["-euc", script]).current_dir(dir).output().expect("sh");
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["lower", "upper", "merged"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
        }
        let lower = dir.path().join("lower");
        sh(
            &lower,
            "mkdir -p d/e/f gone/deep moved/in full; echo one >d/one; echo two >d/e/two
             echo x >gone/x; echo deep >gone/deep/y; ln -s d/one link; echo m >moved/in/m
             ln d/one d/hard; cp d/one d/solo; chmod 751 d/e; mkfifo pipe; echo keep >keep
             for number in $(seq 300); do : >full/n$number; done",
        );
        std::fs::write(lower.join("big"), pattern(300_000, 5)).expect("written");
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn host(&self, name: &str) -> Fs {
        let dir = std::fs::File::open(self.path(name)).expect("opens");
        Arc::new(HostDir::with_descriptors(dir.into(), 64).expect("a directory"))
    }

    fn union(&self) -> Arc<Union> {
        let lowers = vec![Layer::new(self.host("lower")).expect("a root")];
        Arc::new(Union::open(lowers, Some(UpperOn::new(self.host("upper")))).expect("opens"))
    }

    /// The kernel's mount of the same layers; `None`, with the reason, where it has none.
    fn mount(&self) -> Option<Mount> {
        let [lower, upper, work, merged] =
            ["lower", "upper/upper", "upper/work", "merged"].map(|name| self.path(name));
        let options = format!(
            "lowerdir={},upperdir={},workdir={},userxattr",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged);
        let done = command.output().expect("mount runs");
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            eprintln!("skipped: no overlayfs here: {}", said.trim());
            return None;
        }
        Some(Mount(merged))
    }

    fn compare(&self, union: Arc<Union>) {
        let options = small_options(Arc::new(polylane_base::TestClock::default()), 1 << 20);
        let mut ours = VfsSubject::new(union, options);
        let mut kernels = Kernel::new(self.path("merged"));
        if let Err(difference) = compare_trees(EXACT, &mut kernels, &mut ours) {
            panic!("{difference}");
        }
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root mounts overlayfs");
    }
    is_root
}

#[test]
fn what_we_write_the_kernel_shows() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let union = place.union();
    let u = Tree(&*union);
    u.unlink("keep");
    for name in ["gone/deep/y", "gone/x"] {
        u.unlink(name);
    }
    u.rmdir("gone/deep").expect("is empty");
    u.rmdir("gone").expect("is empty");
    u.mkdir("gone");
    u.file("gone/new", b"new");
    u.write(u.ino("d/e/two"), 1, b"HERE");
    u.rename("d/solo", "first").expect("renames");
    u.file("d/solo", b"another");
    u.chmod(u.ino("d/e"), 0o700);
    // Whole: the kernel follows neither parts nor redirects with `userxattr`.
    u.write(u.ino("big"), 100, b"changed");
    union.solidify().expect("room");
    let Some(_mount) = place.mount() else { return };
    drop(union);
    place.compare(place.union());
}

#[test]
fn what_the_kernel_writes_we_show() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    // Makes the directories.
    drop(place.union());
    let Some(mount) = place.mount() else { return };
    sh(
        &mount.0,
        "rm keep; rm -r gone; mkdir gone; echo n >gone/n; echo more >>d/e/two; mv d/solo one
         chmod 600 big; mkdir -p moved/in/deeper; rm full/n7; ln -s x y; rm -r full; mkdir full
         echo hello >full/n1; setfattr -n user.x -v 1 d/e/two || true",
    );
    place.compare(place.union());
    drop(mount);
    let union = place.union();
    assert_eq!(Tree(&*union).names("full"), ["n1"]);
    assert_eq!(Tree(&*union).names("gone"), ["n"]);
}

/// Parts are refused by the kernel, never shown as zeros.
#[test]
fn files_in_parts_are_refused_by_the_kernel() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let union = place.union();
    Tree(&*union).write(Tree(&*union).ino("big"), 100_000, b"changed");
    drop(union);
    let Some(mount) = place.mount() else { return };
    assert!(std::fs::read(mount.0.join("big")).is_err());
}
