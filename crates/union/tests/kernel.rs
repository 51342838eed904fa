//! The kernel's overlayfs as oracle: it mounts what we wrote, and what it wrote we go on with.
//! Needs root and overlayfs; says so where there is none.

mod common;

use common::{Fs, Tree, pattern};
use polylane_base::{Errno, TestClock, Time};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::fault::Faulty;
use polylane_testkit::kernel::Kernel;
use polylane_testkit::subject::{VfsSubject, small_options};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, SetAttr, SetTime};
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
        self.ours_with(image, |upper| upper)
    }

    /// The same, with something made of the upper's file system.
    fn ours_with(&self, image: &str, wrap: fn(Fs) -> Fs) -> Ours {
        let lowers = vec![Layer::new(self.host("lower")).expect("a root")];
        let volume = (self.on == On::Volume).then(|| self.volume(image));
        let upper = wrap(match &volume {
            Some(volume) => volume.clone() as Fs,
            None => self.host("upper"),
        });
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

    /// The kernel's mount of the upper as one more lower.
    fn kernels_lowers(&self) -> Option<Mounts> {
        let image = self.path("image");
        let args = ["-o", "loop", image.to_str().expect("a path")];
        let (features, volume) = match self.on {
            On::Dir => (",userxattr", None),
            On::Volume => ("", Some(mount(&args, &self.path("upper"))?)),
        };
        let [upper, lower] = ["upper/upper", "lower"].map(|name| self.path(name));
        let options = format!("ro,lowerdir={}:{}{features}", upper.display(), lower.display());
        let merged = mount(&["-t", "overlay", "overlay", "-o", &options], &self.path("merged"))?;
        Some(Mounts { merged, _volume: volume })
    }

    /// The kernel's tree is as ours.
    fn compare(&self) -> Option<()> {
        self.compare_with(Place::kernels)
    }

    fn compare_with(&self, mount: fn(&Place) -> Option<Mounts>) -> Option<()> {
        let options = || small_options(Arc::new(TestClock::default()), 1 << 20);
        let kept = self.path("kept");
        if self.on == On::Volume {
            // Each opener gets a volume of its own.
            std::fs::copy(self.path("image"), &kept).expect("copied");
        }
        let mounts = mount(self)?;
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

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// What is on files of the lower that are copied up.
const KEPT: [(&str, &str); 7] = [
    ("big", ACCESS),
    ("big", "user.note"),
    ("d/solo", ACCESS),
    ("d/solo", "security.capability"),
    ("d/e", ACCESS),
    ("d/e", DEFAULT),
    ("d/e", "user.note"),
];

/// An extended attribute of a file of the host.
fn kept(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let got = rustix::fs::getxattr(path, name, &mut value[..]);
    got.ok().map(|count| value[..count].to_vec())
}

fn all_kept(root: &Path) -> Vec<Option<Vec<u8>>> {
    KEPT.iter().map(|(path, name)| kept(&root.join(path), name)).collect()
}

/// Whichever of the two copies a file up, it keeps its access lists and attributes, a directory its
/// default list too, for the other one as well. Lower and upper are volumes: a directory of the
/// host has no access lists for a lane.
#[test]
fn access_lists_and_attributes_survive_a_copy_up_by_either() {
    if Command::new("setfacl").arg("--version").output().is_err() {
        eprintln!("skipped: setfacl is not installed");
        return;
    }
    for is_kernels in [false, true] {
        let Some(place) = Place::new(On::Volume) else { return };
        sh(
            &place.path("lower"),
            "setfacl -m u:7:rw,g:8:r,m:rw big; setfacl -m u:7:---,m:r d/solo
             setfacl -m u:7:rwx d/e; setfacl -d -m u:9:rwx,g:9:r-x d/e
             setfattr -n user.note -v file big; setfattr -n user.note -v dir d/e
             setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 d/solo",
        );
        let before = all_kept(&place.path("lower"));
        assert!(before.iter().all(Option::is_some), "{before:?}");
        let image = place.path("low.img");
        sh(
            place.dir.path(),
            "truncate -s 32M low.img; mke2fs -Fq -t ext4 low.img; mkdir low
             unshare -m sh -euc 'mount -o loop low.img low; cp -a lower/. low; umount low'
             rm -r lower/*",
        );
        let mounted = || mount(&["-o", "loop,ro", image.to_str()?], &place.path("lower"));
        let ours = || {
            let (low, volume) = (place.volume("low.img"), place.volume("image"));
            let lowers = vec![Layer::new(low).expect("a root")];
            let upper = UpperOn::new(volume.clone() as Fs);
            let union = Arc::new(Union::open(lowers, Some(upper)).expect("opens"));
            Ours { union, volume: Some(volume) }
        };
        let union = ours();
        if !is_kernels {
            let (u, ctx) = (Tree(&*union.union), &OpCtx::service());
            let time = SetTime::At(Time { sec: 9, nsec: 0 });
            for path in ["big", "d/solo", "d/e"] {
                let set = SetAttr { mtime: Some(time), ..SetAttr::default() };
                union.union.setattr(ctx, u.ino(path), &set).expect("set");
            }
            u.write(u.ino("big"), 100, b"changed");
            union.union.solidify().expect("room");
        }
        union.close();
        let Some(low) = mounted() else { return };
        let Some(mounts) = place.kernels() else { return };
        let merged = &mounts.merged.0;
        if is_kernels {
            sh(merged, "touch -d @9 d/solo d/e; echo more >>big");
        }
        assert_eq!(all_kept(merged), before, "{is_kernels}: by the kernel");
        let upper = all_kept(&place.path("upper/upper"));
        assert_eq!(upper, before, "{is_kernels}: in the upper");
        // What is made in the directory has its default list.
        sh(merged, "touch d/e/new; getfacl -c d/e/new | grep -q '^user:9:rwx'");
        drop(mounts);
        drop(low);
        let union = ours();
        let (u, ctx) = (Tree(&*union.union), &OpCtx::service());
        let of = |(path, name): &(&str, &str)| {
            union.union.getxattr(ctx, u.ino(path), name.as_bytes()).ok()
        };
        let seen: Vec<_> = KEPT.iter().map(of).collect();
        assert_eq!(seen, before, "{is_kernels}: by us");
        union.close();
    }
}

/// Where no device can be made, whiteouts are attributes: the kernel reads them in lowers.
#[test]
fn attributes_that_are_our_whiteouts_hide_names_for_the_kernel() {
    for (on, in_root) in
        [(On::Dir, false), (On::Dir, true), (On::Volume, false), (On::Volume, true)]
    {
        let Some(place) = Place::new(on) else { return };
        let ours = place.ours_with("image", |fs| Faulty::without_devices(fs));
        let u = Tree(&*ours.union);
        for name in ["gone/deep/y", "d/e/two"] {
            u.unlink(name);
        }
        u.rmdir("gone/deep").expect("is empty");
        u.file("d/e/three", b"three");
        u.mkdir("gone/other");
        if in_root {
            u.unlink("keep");
            u.rename("link", "d/link").expect("renames");
        }
        ours.close();
        let Some(()) = place.compare_with(Place::kernels_lowers) else { return };
        let Some(mounts) = place.kernels_lowers() else { return };
        let (merged, upper) = (&mounts.merged.0, place.path("upper/upper"));
        assert!(!merged.join("gone/deep").exists() && merged.join("gone/x").exists(), "{on:?}");
        assert!(!merged.join("d/e/two").exists(), "{on:?}");
        assert_eq!(merged.join("keep").exists(), !in_root, "{on:?}");
        let kind = upper.join("d/e/two").symlink_metadata().expect("there").file_type();
        assert!(kind.is_file(), "{on:?}: it is no device");
    }
}

/// The reverse: such a layer as others make it, over a lower.
#[test]
fn attributes_that_are_whiteouts_of_others_hide_names_for_us() {
    for on in [On::Dir, On::Volume] {
        let Some(place) = Place::new(on) else { return };
        place.ours("image").close();
        let image = place.path("image");
        let args = ["-o", "loop", image.to_str().expect("a path")];
        let volume = match on {
            On::Dir => None,
            On::Volume => match mount(&args, &place.path("upper")) {
                Some(volume) => Some(volume),
                None => return,
            },
        };
        let space = if on == On::Dir { "user" } else { "trusted" };
        let script = format!(
            "mark() {{ setfattr -n {space}.overlay.$1 -v \"$2\" \"$3\"; }}
             mark opaque x .; : >keep; mark whiteout y keep
             mkdir -p d/e full; mark opaque x d/e; : >d/e/two; mark whiteout '' d/e/two
             mark opaque x full; for n in 1 2 300; do : >full/n$n; mark whiteout y full/n$n; done
             : >full/n4; echo x >full/n5; mark whiteout y full/n5"
        );
        sh(&place.path("upper/upper"), &script);
        drop(volume);
        let Some(()) = place.compare_with(Place::kernels_lowers) else { return };
        let ours = place.ours("image");
        let u = Tree(&*ours.union);
        assert_eq!(u.find("keep").err(), Some(Errno::ENOENT), "{on:?}");
        assert_eq!(u.names("d/e"), ["f"], "{on:?}");
        assert_eq!(u.names("full").len(), 297, "{on:?}");
        ours.close();
    }
}

/// A union that is a layer of another one, by the kernel and by us: whiteouts in both forms, opaque
/// directories, and marks that are the outer union's and lie in layers of the inner one.
#[test]
fn a_union_in_a_union_is_the_kernels() {
    let Some(place) = Place::new(On::Dir) else { return };
    let script = "mkdir a b c in outer
        mkdir -p a/d a/gone a/only b/d/e b/gone b/same b/under c/d/e c/under/deep c/same
        for layer in a b c; do echo $layer >$layer/same$layer; echo $layer >$layer/d/all; done
        echo a >a/d/a; echo b >b/d/b; echo b >b/d/e/b; echo c >c/d/c; echo c >c/d/e/c
        ln -s d b/link
        mknod a/d/b c 0 0; mknod c/d/none c 0 0; mknod b/file c 0 0; echo c >c/file
        setfattr -n user.overlay.opaque -v y b/gone; echo x >b/gone/x
        mkdir c/gone; echo y >c/gone/y
        setfattr -n user.overlay.overlay.opaque -v y b/under; echo b >b/under/b; echo c >c/under/c
        echo c >c/d/hidden; : >b/d/hidden; setfattr -n user.overlay.overlay.opaque -v x b/d
        setfattr -n user.overlay.overlay.opaque -v x a/d  # which is the inner directory, too
        setfattr -n user.overlay.overlay.whiteout -v y b/d/hidden
        mkdir z; echo z >z/d; mkdir z/under z/same; echo z >z/same/z; echo z >z/under/z; cp -a c y";
    sh(place.dir.path(), script);
    let at = |names: &[&str]| {
        let paths: Vec<String> =
            names.iter().map(|name| place.path(name).display().to_string()).collect();
        format!("ro,userxattr,lowerdir={}", paths.join(":"))
    };
    // Above it, below it, and one in each other.
    for outer in [["a", "in", "c"], ["in", "c", "z"], ["z", "in", "c"]] {
        let inner = if outer[0] == "a" { ["b", "y"] } else { ["a", "b"] };
        let overlay = |options: &str, to: &str| {
            mount(&["-t", "overlay", "overlay", "-o", options], &place.path(to))
        };
        let Some(_inner) = overlay(&at(&inner), "in") else { return };
        let Some(merged) = overlay(&at(&outer), "outer") else { return };
        let layer = |name: &str| Layer::new(place.host(name)).expect("a root");
        let layers = outer.iter().map(|name| match *name {
            "in" => {
                let layers = inner.iter().map(|name| layer(name)).collect();
                let union = Arc::new(Union::open(layers, None).expect("opens"));
                Layer::of_union(union.clone(), &union, None).expect("a root")
            }
            name => layer(name),
        });
        let union = Union::open(layers.collect(), None).expect("opens");
        let options = small_options(Arc::new(TestClock::default()), 1 << 20);
        let mut subject = VfsSubject::new(Arc::new(union), options);
        let mut kernels = Kernel::new(merged.0.clone());
        if let Err(difference) = compare_trees(EXACT, &mut kernels, &mut subject) {
            panic!("{outer:?}: {difference}");
        }
    }
}
