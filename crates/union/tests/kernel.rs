//! The kernel's overlayfs as oracle: it mounts what we wrote, and what it wrote we go on with.
//! Needs root and overlayfs; says so where there is none.

mod common;

use common::{Fs, Tree, pattern};
use polylane_base::TestClock;
use polylane_block::file::{FileDevice, Files, Way};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::kernel::Kernel;
use polylane_testkit::subject::{VfsSubject, small_options};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::hostdir::HostDir;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const EXACT: Exact = Exact { holes: false, times: false, dir_links: false, leaving: true };

/// Layers: a directory of the host as the lower, and an upper.
struct Place {
    dir: tempfile::TempDir,
    on: On,
}

/// What an upper lies on, which tells the name space of its marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    /// A directory of the host: `user.overlay`.
    Dir,
    /// A volume: `trusted.overlay`.
    Volume,
}

/// A union of ours; goes when it is closed.
struct Ours {
    union: Arc<Union>,
    volume: Option<Arc<Ext4>>,
}

impl Ours {
    fn close(self) {
        drop(self.union);
        if let Some(volume) = self.volume {
            volume.close().expect("closes");
        }
    }
}

/// A mount of the kernel's; goes with this.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let umount = || Command::new("umount").arg(&self.0).output();
        let mut done = umount();
        // What another test starts has our descriptors until it is executed.
        for _ in 0..100 {
            if done.as_ref().is_ok_and(|done| done.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            done = umount();
        }
        assert!(std::thread::panicking(), "{done:?}");
    }
}

/// The kernel's union, and below it the volume that its upper lies on.
struct Mounts {
    merged: Mount,
    _volume: Option<Mount>,
}

fn sh(dir: &Path, script: &str) {
    let done = Command::new("sh").args(["-euc", script]).current_dir(dir).output().expect("sh");
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Mounts; `None`, with the reason, where it cannot be.
fn mount(args: &[&str], at: &Path) -> Option<Mount> {
    let done = Command::new("mount").args(args).arg(at).output().expect("mount runs");
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        eprintln!("skipped: no such mount here: {}", said.trim());
        return None;
    }
    Some(Mount(at.to_path_buf()))
}

impl Place {
    /// `None`, with the reason, where the kernel cannot be asked.
    fn new(on: On) -> Option<Place> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root mounts overlayfs");
            return None;
        }
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
        for name in ["big", "large"] {
            std::fs::write(lower.join(name), pattern(300_000, 5)).expect("written");
        }
        let place = Place { dir, on };
        if on == On::Volume {
            let image = std::fs::File::create(place.path("image")).expect("made");
            image.set_len(32 << 20).expect("sparse");
            let mut mke2fs = Command::new("mke2fs");
            mke2fs.args(["-Fq", "-t", "ext4", "-b", "4096"]).arg(place.path("image"));
            let Ok(made) = mke2fs.output() else {
                eprintln!("skipped: mke2fs is not installed");
                return None;
            };
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn host(&self, name: &str) -> Fs {
        let dir = std::fs::File::open(self.path(name)).expect("opens");
        Arc::new(HostDir::with_descriptors(dir.into(), 64).expect("a directory"))
    }

    fn volume(&self, image: &str) -> Arc<Ext4> {
        let open = || {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).open(self.path(image)).expect("opens").into()
        };
        let files = Files { io: open(), plain: open(), lock: open() };
        let device = FileDevice::open(files, Way::Calls).expect("a device");
        let clock = Arc::new(polylane_base::SystemClock);
        Arc::new(Ext4::open(device, clock, &Options::default()).expect("opens"))
    }

    /// Ours, its upper on the named image where it is to lie on a volume.
    fn ours(&self, image: &str) -> Ours {
        let lowers = vec![Layer::new(self.host("lower")).expect("a root")];
        let volume = (self.on == On::Volume).then(|| self.volume(image));
        let upper = match &volume {
            Some(volume) => volume.clone() as Fs,
            None => self.host("upper"),
        };
        let union = Union::open(lowers, Some(UpperOn::new(upper))).expect("opens");
        Ours { union: Arc::new(union), volume }
    }

    /// The kernel's mount of the same layers; `None`, with the reason, where it has none. A volume
    /// is the kernel's alone meanwhile.
    fn kernels(&self) -> Option<Mounts> {
        let [lower, upper, work, merged] =
            ["lower", "upper/upper", "upper/work", "merged"].map(|name| self.path(name));
        let image = self.path("image");
        let args = ["-o", "loop", image.to_str().expect("a path")];
        let (features, volume) = match self.on {
            On::Dir => ("userxattr", None),
            On::Volume => {
                ("redirect_dir=on,metacopy=on,index=on", Some(mount(&args, &self.path("upper"))?))
            }
        };
        let options = format!(
            "lowerdir={},upperdir={},workdir={},{features}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let merged = mount(&["-t", "overlay", "overlay", "-o", &options], &merged)?;
        Some(Mounts { merged, _volume: volume })
    }

    /// The kernel's tree is as ours.
    fn compare(&self) -> Option<()> {
        let options = || small_options(Arc::new(TestClock::default()), 1 << 20);
        let kept = self.path("kept");
        if self.on == On::Volume {
            // Each opener gets a volume of its own.
            std::fs::copy(self.path("image"), &kept).expect("copied");
        }
        let mounts = self.kernels()?;
        let mut kernels = Kernel::new(mounts.merged.0.clone());
        let ours = match self.on {
            On::Dir => self.ours("image"),
            On::Volume => self.ours("kept"),
        };
        let mut subject = VfsSubject::new(ours.union.clone(), options());
        if let Err(difference) = compare_trees(EXACT, &mut kernels, &mut subject) {
            panic!("{:?}: {difference}", self.on);
        }
        drop(subject);
        ours.close();
        Some(())
    }
}

/// What the kernel can do with the marks of either name space.
const WRITES: &str = "rm keep; rm -r gone; mkdir gone; echo n >gone/n; echo more >>d/e/two
    mv d/solo one; chmod 600 big; mkdir -p moved/in/deeper; rm full/n7; ln -s x y; rm -r full
    mkdir full; echo hello >full/n1; setfattr -n user.x -v 1 d/e/two";

/// And only with those of the trusted one: a directory moves, names stay one file.
const WRITES_TRUSTED: &str = "mv moved elsewhere; echo n >elsewhere/in/n; mkdir moved
    echo linked >>d/hard; chmod 640 large; chown 5:6 large; mv large larger";

#[test]
fn what_we_write_the_kernel_shows() {
    for on in [On::Dir, On::Volume] {
        let Some(place) = Place::new(on) else { return };
        let ours = place.ours("image");
        let u = Tree(&*ours.union);
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
        u.rename("link", "way").expect("renames");
        // Whole, and with all names: the kernel follows no parts and not our index.
        u.write(u.ino("big"), 100, b"changed");
        u.write(u.ino("d/hard"), 0, b"LINKED");
        ours.union.solidify().expect("room");
        if on == On::Volume {
            u.rename("moved", "elsewhere").expect("renames");
            u.file("elsewhere/in/n", b"n");
            u.mkdir("moved");
            u.chmod(u.ino("large"), 0o640);
            u.rename("large", "larger").expect("renames");
        }
        ours.close();
        let Some(()) = place.compare() else { return };
    }
}

#[test]
fn what_the_kernel_writes_we_show() {
    for on in [On::Dir, On::Volume] {
        let Some(place) = Place::new(on) else { return };
        // Makes the directories.
        place.ours("image").close();
        let Some(mounts) = place.kernels() else { return };
        sh(&mounts.merged.0, WRITES);
        if on == On::Volume {
            sh(&mounts.merged.0, WRITES_TRUSTED);
        }
        drop(mounts);
        let Some(()) = place.compare() else { return };
        let ours = place.ours("image");
        let u = Tree(&*ours.union);
        assert_eq!(u.names("full"), ["n1"]);
        assert_eq!(u.names("gone"), ["n"]);
        if on == On::Volume {
            assert_eq!(u.names("elsewhere/in"), ["deeper", "m", "n"]);
            assert_eq!(u.read(u.ino("d/one")), b"one\nlinked\n");
            assert_eq!(u.read(u.ino("larger")), pattern(300_000, 5));
        }
        ours.close();
    }
}

/// Under the other names, the kernel would show what the lower has.
#[test]
fn files_of_several_names_are_refused_by_the_kernel_until_all_are_in_the_upper() {
    for on in [On::Dir, On::Volume] {
        let Some(place) = Place::new(on) else { return };
        place.ours("image").close();
        let Some(mounts) = place.kernels() else { return };
        drop(mounts);
        let ours = place.ours("image");
        let u = Tree(&*ours.union);
        u.write(u.ino("d/hard"), 0, b"LINKED");
        ours.close();
        assert!(place.kernels().is_none(), "{on:?}");
        let ours = place.ours("image");
        ours.union.solidify().expect("room");
        assert_eq!(Tree(&*ours.union).find("d/one").map(|attr| attr.nlink), Ok(2));
        ours.close();
        assert!(place.kernels().is_some(), "{on:?}");
    }
}

/// Parts are refused by the kernel, never shown as zeros.
#[test]
fn files_in_parts_are_refused_by_the_kernel() {
    for on in [On::Dir, On::Volume] {
        let Some(place) = Place::new(on) else { return };
        let ours = place.ours("image");
        Tree(&*ours.union).write(Tree(&*ours.union).ino("big"), 100_000, b"changed");
        ours.close();
        let Some(mounts) = place.kernels() else { return };
        assert!(std::fs::read(mounts.merged.0.join("big")).is_err(), "{on:?}");
    }
}
