//! The kernel's ext4 as oracle: what we write it reads, what it writes we read and go on using.
//! Every tree is compared whole: states, times, bytes, links, attributes. Needs root and a loop
//! device; says so where there is none.

mod acls;
mod collisions;
#[path = "../common/mod.rs"]
mod common;
mod fast;
mod flags;
mod handover;
mod inline;
mod large_values;
mod snapshot;
mod trees;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::{Ino, TestClock};
use polylane_ext4::Ext4;
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::kernel::Kernel;
use polylane_testkit::ops::{Generator, Limits, Op, Step, UMASK};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Failure, Subject, VfsSubject, small_options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, NewNode, Piece, SetAttr, SetTime, XattrMode};
use snapshot::{of_kernel, of_ours};

const ROUNDS: usize = 6;
const STEPS_PER_ROUND: usize = 400;
/// Times that a busy mount is taken off again: ten seconds.
const UMOUNT_TRIES: usize = 500;

/// An image in a file, mounted by the kernel or opened by us. What we wrote goes to a new file: a
/// loop device that lives a little longer than its mount would show the kernel what was there.
struct Image {
    file: RefCell<tempfile::NamedTempFile>,
}

/// The kernel's mount of an image; goes with this.
struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A program that another test is about to start holds our open files until it runs.
        for _ in 0..UMOUNT_TRIES {
            let done = Command::new("umount").arg(self.dir.path()).output();
            if done.is_ok_and(|done| done.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} stays mounted", self.dir.path().display());
    }
}

impl Image {
    fn new(mib: u64, args: &[&str]) -> Image {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), common::image(mib, args)).expect("written");
        Image { file: RefCell::new(file) }
    }

    fn mount(&self) -> Mount {
        self.mount_with("loop,user_xattr,acl")
    }

    fn mount_with(&self, options: &str) -> Mount {
        let dir = tempfile::tempdir().expect("a place to mount at");
        let done = Command::new("mount")
            .args(["-t", "ext4", "-o", options])
            .args([self.file.borrow().path(), dir.path()])
            .output()
            .expect("mount runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Mount { dir }
    }

    /// Runs `work` on our file system on the image, closes it and lets e2fsck judge.
    fn ours<T>(&self, work: impl FnOnce(&Arc<Ext4>) -> T) -> T {
        let device = common::load(&std::fs::read(self.file.borrow().path()).expect("readable"));
        let fs = common::open(&device);
        let result = catch_unwind(AssertUnwindSafe(|| work(&fs)));
        assert_eq!(fs.stopped_by(), None);
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
        self.file.replace(common::save(&device));
        result
    }
}

/// What the kernel made in an image with these features is the same to us, and what we change there
/// is the same to the kernel. The image.
fn used_in_turns(features: &str, furnish: fn(&Path), change: fn(&Ext4)) -> Image {
    let image = Image::new(32, &[common::LANE, &["-O", features]].concat());
    let mount = image.mount();
    furnish(mount.path());
    let root = std::fs::File::open(mount.path()).expect("opens");
    rustix::fs::syncfs(root).expect("syncs");
    drop(mount);
    let kernels = of_kernel(image.mount().path());
    snapshot::assert_same(&image.ours(|fs| of_ours(&**fs)), &kernels);
    let changed = image.ours(|fs| {
        change(fs);
        of_ours(&**fs)
    });
    snapshot::assert_same(&of_kernel(image.mount().path()), &changed);
    image
}

/// Whether the kernel can be asked here; says so when not.
fn can_mount() -> bool {
    if !common::have_tools() {
        return false;
    }
    let image = Image::new(8, common::LANE);
    let dir = tempfile::tempdir().expect("a place to mount at");
    let mounted = rustix::process::geteuid().is_root()
        && Command::new("mount")
            .args(["-t", "ext4", "-o", "loop"])
            .args([image.file.borrow().path(), dir.path()])
            .output()
            .is_ok_and(|done| done.status.success());
    if mounted {
        drop(Mount { dir });
    } else {
        eprintln!("skipped: needs root, a loop device and the kernel's ext4");
    }
    mounted
}

fn new(kind: Kind, perm: u32, target: &[u8]) -> NewNode<'_> {
    let (uid, gid) = (polylane_base::Uid(70_000), polylane_base::Gid(80_000));
    NewNode { uid, gid, target, ..NewNode::new(kind, perm) }
}

/// A tree with everything that the format knows.
fn furnish(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let make = |dir, name: &[u8], new: &NewNode<'_>| {
        fs.create(&OpCtx::service(), dir, name, new).expect("new").node
    };
    let many = make(root, b"many", &new(Kind::Dir, 0o755, b"")).ino;
    for number in 0..6000 {
        let name = format!("entry-{number}-{}", "x".repeat(number % 60));
        make(many, name.as_bytes(), &new(Kind::File, 0o640, b""));
    }
    for number in (0..6000).step_by(3) {
        let name = format!("entry-{number}-{}", "x".repeat(number % 60));
        let gone = fs.unlink(&OpCtx::service(), many, name.as_bytes()).expect("is there").node;
        fs.forget(gone.ino);
    }
    let file = make(root, b"sparse", &new(Kind::File, 0o4755, b"")).ino;
    for block in (0..2000u64).step_by(2) {
        let bytes = vec![block as u8; 3000];
        fs.write(&OpCtx::service(), file, block * 4096 + block % 1000, &mut &bytes[..])
            .expect("room");
    }
    fs.write(&OpCtx::service(), file, 1 << 36, &mut &b"far away"[..]).expect("room");
    fs.fallocate(
        &OpCtx::service(),
        file,
        Fallocate::Allocate { keep_size: true },
        1 << 30,
        5 << 20,
    )
    .expect("room");
    fs.fallocate(&OpCtx::service(), file, Fallocate::PunchHole, 40_000, 100_000).expect("a hole");
    for (size, name) in
        [(0, "none"), (10, "short"), (59, "long-inside"), (60, "block"), (4095, "max")]
    {
        let target = vec![b'l'; size];
        if size > 0 {
            make(root, name.as_bytes(), &new(Kind::Symlink, 0o777, &target));
        }
    }
    for (kind, rdev) in [(Kind::Char, (1, 3)), (Kind::Block, (300, 70_000)), (Kind::Fifo, (0, 0))] {
        let rdev = rustix::fs::makedev(rdev.0, rdev.1);
        make(root, format!("{kind:?}").as_bytes(), &NewNode { rdev, ..new(kind, 0o600, b"") });
    }
    let deep = (0..40).fold(many, |dir, _| make(dir, b"deeper", &new(Kind::Dir, 0o711, b"")).ino);
    fs.link(&OpCtx::service(), file, deep, b"linked").expect("a link");
    for (name, length) in [("user.small", 5), ("user.large", 3000), ("security.x", 0)] {
        let value = vec![b'v'; length];
        fs.setxattr(&OpCtx::service(), file, name.as_bytes(), &value, XattrMode::Any)
            .expect("room");
        fs.setxattr(
            &OpCtx::service(),
            deep,
            name.as_bytes(),
            &value[..length.min(20)],
            XattrMode::Any,
        )
        .expect("room");
    }
    for (name, sec) in [("1901", -0x7fff_ffff), ("2038", 1 << 31), ("2446", 0x3_7fff_ffff)] {
        let ino = make(root, name.as_bytes(), &new(Kind::File, 0o600, b"")).ino;
        let at = Some(SetTime::At(polylane_base::Time { sec, nsec: 999_999_999 }));
        let set = SetAttr { mtime: at, atime: at, ..SetAttr::default() };
        fs.setattr(&OpCtx::service(), ino, &set).expect("a time");
    }
}

#[test]
fn the_kernel_sees_what_we_wrote() {
    if !can_mount() {
        return;
    }
    let image = Image::new(96, common::LANE);
    let ours = image.ours(|fs| {
        furnish(fs);
        of_ours(&**fs)
    });
    assert!(ours.len() > 4000);
    {
        let mount = image.mount();
        snapshot::assert_same(&ours, &of_kernel(mount.path()));
        // And it can go on: names into our hash tree, blocks into our extents.
        for number in 0..3000 {
            std::fs::write(mount.path().join(format!("many/kernel-{number}")), b"k").expect("room");
        }
        let sparse = std::fs::OpenOptions::new().write(true).open(mount.path().join("sparse"));
        let sparse = sparse.expect("is there");
        for block in (1..2000u64).step_by(2) {
            sparse.write_all_at(&[9; 4096], block * 4096).expect("room");
        }
        std::fs::remove_file(mount.path().join("2038")).expect("is there");
    }
    let theirs = of_kernel(image.mount().path());
    let again = image.ours(|fs| of_ours(&**fs));
    snapshot::assert_same(&theirs, &again);
}

/// A file's pieces: offset, place, length, in blocks.
type Pieces = Vec<(u64, u64, u64)>;

fn pieces_of_ours(fs: &Ext4, ino: Ino) -> Pieces {
    let mut found = Pieces::new();
    let each = &mut |piece: Piece| {
        found.push((piece.offset / 4096, piece.place / 4096, piece.len / 4096));
        true
    };
    fs.pieces(&OpCtx::service(), ino, 0, u64::MAX, each).expect("pieces");
    found
}

/// As filefrag tells them, those that lie together as one.
fn pieces_of_kernel(path: &Path) -> Option<Pieces> {
    let done = Command::new("filefrag").args(["-b4096", "-v"]).arg(path).output().ok()?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut found = Pieces::new();
    for line in said.lines() {
        let parts: Vec<u64> =
            line.split([':', '.']).take(8).filter_map(|part| part.trim().parse().ok()).collect();
        let [_, offset, _, place, _, length] = parts[..] else { continue };
        match found.last_mut() {
            Some(last) if (last.0 + last.2, last.1 + last.2) == (offset, place) => last.2 += length,
            _ => found.push((offset, place, length)),
        }
    }
    Some(found)
}

/// Where a file lies, by FIEMAP and by us: written, unwritten, and past its end.
#[test]
fn the_kernel_finds_files_where_we_do() {
    if !can_mount() {
        return;
    }
    let image = Image::new(96, common::LANE);
    let ours = image.ours(|fs| {
        furnish(fs);
        let sparse = fs
            .lookup(&OpCtx::service(), fs.root().expect("root").ino, b"sparse")
            .expect("is there")
            .ino;
        pieces_of_ours(fs, sparse)
    });
    assert!(ours.len() > 900, "{}", ours.len());
    let mount = image.mount();
    match pieces_of_kernel(&mount.path().join("sparse")) {
        Some(theirs) => assert_eq!(theirs, ours),
        None => eprintln!("skipped: filefrag is not installed"),
    }
}

/// What the kernel's own tools make: trees of names and extents of its shape, unwritten extents,
/// shared attribute blocks, ACLs.
fn furnish_as_kernel(root: &Path) {
    std::fs::create_dir(root.join("many")).expect("made");
    for number in 0..8000 {
        let name = format!("name-{number:x}-{}", "y".repeat(number % 90));
        std::fs::write(root.join("many").join(name), number.to_string()).expect("written");
    }
    for number in (0..8000).step_by(5) {
        let name = format!("name-{number:x}-{}", "y".repeat(number % 90));
        std::fs::remove_file(root.join("many").join(name)).expect("removed");
    }
    let sparse = std::fs::File::create(root.join("sparse")).expect("made");
    for block in (0..3000u64).step_by(2) {
        sparse.write_all_at(&[block as u8; 4096], block * 4096).expect("written");
    }
    sparse.write_all_at(b"end", 1 << 40).expect("written");
    let unwritten = std::fs::File::create(root.join("unwritten")).expect("made");
    rustix::fs::fallocate(&unwritten, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 9 << 20)
        .expect("allocated");
    unwritten.write_all_at(b"in the middle", 5 << 20).expect("written");
    symlink("a/short/target", root.join("short")).expect("made");
    symlink("z".repeat(1000), root.join("long")).expect("made");
    std::fs::hard_link(root.join("sparse"), root.join("many/hard")).expect("linked");
    for number in 0..20 {
        let path = root.join(format!("with-attributes-{number}"));
        std::fs::write(&path, b"").expect("written");
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.big", &[b'b'; 700], none).expect("set");
        rustix::fs::setxattr(&path, "trusted.small", number.to_string().as_bytes(), none)
            .expect("set");
    }
    let _ = Command::new("setfacl").args(["-m", "u:1234:rw"]).arg(root.join("sparse")).status();
}

/// Changes all that the kernel made, so that its shapes meet our code.
fn use_further(fs: &Ext4) {
    let root = fs.root().expect("root").ino;
    let find = |name: &[u8]| fs.lookup(&OpCtx::service(), root, name).expect("is there").ino;
    let many = find(b"many");
    let mut names = Vec::new();
    let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(&OpCtx::service(), many, 0, &mut each).expect("lists");
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (6401, 6401));
    for (number, name) in names.iter().enumerate() {
        match number % 4 {
            0 => {
                let gone = fs.unlink(&OpCtx::service(), many, name).expect("is there").node;
                fs.forget(gone.ino);
            }
            1 => {
                let to = format!("moved-{number}");
                let mode = polylane_vfs::fs::RenameMode::NoReplace;
                fs.rename(&OpCtx::service(), many, name, many, to.as_bytes(), mode).expect("moves");
            }
            _ => {}
        }
    }
    let sparse = find(b"sparse");
    for block in (1..3000u64).step_by(4) {
        fs.write(&OpCtx::service(), sparse, block * 4096 + 100, &mut &[1; 2000][..]).expect("room");
    }
    fs.setattr(
        &OpCtx::service(),
        sparse,
        &SetAttr { size: Some(11_000_000), ..SetAttr::default() },
    )
    .expect("cut");
    fs.write(&OpCtx::service(), find(b"unwritten"), 1_000_001, &mut &[2; 300_000][..])
        .expect("room");
    for number in 0..10 {
        let name = format!("with-attributes-{number}");
        let ino = find(name.as_bytes());
        fs.setxattr(&OpCtx::service(), ino, b"user.more", b"more", XattrMode::Create)
            .expect("room");
        if number % 2 == 0 {
            fs.removexattr(&OpCtx::service(), ino, b"user.big").expect("is there");
        }
    }
    let gone = fs.unlink(&OpCtx::service(), root, b"with-attributes-19").expect("is there").node;
    fs.forget(gone.ino);
    let gone = fs.unlink(&OpCtx::service(), root, b"long").expect("is there").node;
    fs.forget(gone.ino);
}

#[test]
fn we_see_what_the_kernel_wrote_and_go_on() {
    if !can_mount() {
        return;
    }
    // Plain defaults, what a lane has, and the lazily initialised tables of a default mke2fs.
    let recent: &[&str] = &["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed"];
    let plain: &[&str] = &["-t", "ext4", "-b", "4096"];
    let small: &[&str] = &["-t", "ext4", "-b", "1024"];
    let old: &[&str] = &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit,^metadata_csum"];
    // As mke2fs made them before it knew checksums of all metadata, and with 64bit.
    let former: &[&str] = &["-t", "ext4", "-b", "4096", "-O", "^64bit,^metadata_csum,uninit_bg"];
    let wide: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "64bit,^metadata_csum,uninit_bg"];
    for args in [common::LANE, recent, plain, small, old, former, wide] {
        let image = Image::new(200, args);
        let theirs = {
            let mount = image.mount();
            furnish_as_kernel(mount.path());
            of_kernel(mount.path())
        };
        let ours = image.ours(|fs| of_ours(&**fs));
        snapshot::assert_same(&theirs, &ours);
        let ours = image.ours(|fs| {
            use_further(fs);
            of_ours(&**fs)
        });
        snapshot::assert_same(&ours, &of_kernel(image.mount().path()));
    }
}

/// Files in use that have no name any more: of one block, of a tree of extents, with attributes in
/// a block, empty.
fn hold_without_names(root: &Path) -> Vec<std::fs::File> {
    let make = |number: usize| {
        let path = root.join(format!("held-{number}"));
        let file = std::fs::File::create(&path).expect("made");
        match number % 4 {
            0 => file.write_all_at(b"small", 0).expect("written"),
            1 => {
                for block in (0..800u64).step_by(2) {
                    file.write_all_at(&[7; 4096], block * 4096).expect("written");
                }
            }
            2 => {
                let none = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&path, "user.big", &[b'b'; 900], none).expect("set");
            }
            _ => {}
        }
        std::fs::remove_file(&path).expect("removed");
        file
    };
    (0..24).map(make).collect()
}

/// Ranges moved and zeroed, names removed and made again: transactions that are in the log only.
fn change_as_kernel(root: &Path) {
    use rustix::fs::FallocateFlags as Flags;
    let sparse = std::fs::OpenOptions::new().write(true).open(root.join("sparse"));
    let sparse = sparse.expect("is there");
    for (flags, block, count) in [
        (Flags::COLLAPSE_RANGE, 100, 33),
        (Flags::INSERT_RANGE, 700, 5),
        (Flags::ZERO_RANGE, 301, 64),
        (Flags::PUNCH_HOLE | Flags::KEEP_SIZE, 900, 77),
    ] {
        let bytes = |blocks: u64| blocks * 4096;
        rustix::fs::fallocate(&sparse, flags, bytes(block), bytes(count)).expect("moved");
    }
    for number in (1..8000).step_by(5) {
        let name = format!("name-{number:x}-{}", "y".repeat(number % 90));
        std::fs::remove_file(root.join("many").join(name)).expect("removed");
    }
    for number in 0..500 {
        let dir = root.join(format!("dir-{}", number % 7));
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(dir.join(format!("after-{number}")), [1; 5000]).expect("written");
    }
    std::fs::remove_dir_all(root.join("dir-3")).expect("removed");
}

/// The kernel's log and its list or file of orphans, as the lights go out: we bring back what it
/// brings back itself, and nothing is lost of what nobody has a name for.
#[test]
fn we_recover_what_the_kernel_left() {
    if !can_mount() {
        return;
    }
    for features in ["^orphan_file", "orphan_file,metadata_csum_seed"] {
        let image = Image::new(120, &[common::LANE, &["-O", features]].concat());
        let cut = {
            let mount = image.mount();
            furnish_as_kernel(mount.path());
            let dir = std::fs::File::open(mount.path()).expect("opens");
            rustix::fs::syncfs(&dir).expect("syncs");
            change_as_kernel(mount.path());
            let held = hold_without_names(mount.path());
            rustix::fs::syncfs(&dir).expect("syncs");
            let bytes = std::fs::read(image.file.borrow().path()).expect("readable");
            drop(held);
            bytes
        };
        let copy = || {
            let file = tempfile::NamedTempFile::new().expect("temporary file");
            std::fs::write(file.path(), &cut).expect("written");
            Image { file: RefCell::new(file) }
        };
        let (for_us, for_kernel) = (copy(), copy());
        let ours = for_us.ours(|fs| {
            assert!(fs.recovered.transactions > 0, "{features}: {:?}", fs.recovered);
            (of_ours(&**fs), fs.statfs(&OpCtx::service()).expect("totals").ffree)
        });
        let mount = for_kernel.mount();
        snapshot::assert_same(&ours.0, &of_kernel(mount.path()));
        let free = rustix::fs::statvfs(mount.path()).expect("totals").f_ffree;
        assert_eq!(ours.1, free, "{features}: inodes that nobody has");
    }
}

/// The kernel's log where commits wait for nothing and each has one checksum: whole, and with one
/// block of the last transaction not as it was logged, which then does not count.
#[test]
fn we_recover_what_the_kernel_did_not_wait_for() {
    if !can_mount() {
        return;
    }
    let image = Image::new(120, &[common::LANE, &["-O", "^metadata_csum"]].concat());
    let cut = {
        let mount = image.mount_with("loop,data=writeback,journal_async_commit");
        furnish_as_kernel(mount.path());
        let dir = std::fs::File::open(mount.path()).expect("opens");
        rustix::fs::syncfs(&dir).expect("syncs");
        change_as_kernel(mount.path());
        rustix::fs::syncfs(&dir).expect("syncs");
        std::fs::write(mount.path().join("last"), b"in later transactions").expect("room");
        rustix::fs::syncfs(&dir).expect("syncs");
        std::fs::read(image.file.borrow().path()).expect("readable")
    };
    let recovered = [false, true].map(|damaged| {
        let copy = || {
            let file = tempfile::NamedTempFile::new().expect("temporary file");
            std::fs::write(file.path(), &cut).expect("written");
            let log = common::log::Log::read(file.path());
            assert!(log.superblock.has_transaction_checksums(), "as the options want it");
            assert!(log.superblock.has_async_commits());
            if damaged {
                let all = log.transactions();
                common::log::damage(file.path(), &log, all.last().expect("transactions"));
            }
            Image { file: RefCell::new(file) }
        };
        let (for_us, for_kernel) = (copy(), copy());
        let (count, ours) = for_us.ours(|fs| (fs.recovered.transactions, of_ours(&**fs)));
        assert!(damaged || ours.contains_key(&b"/last"[..]));
        snapshot::assert_same(&ours, &of_kernel(for_kernel.mount().path()));
        count
    });
    // What the kernel puts into the last one is its own affair.
    assert_eq!(recovered[1] + 1, recovered[0], "all but the last one");
}

/// Random steps on one image, in turns by us and by the kernel.
#[test]
fn one_image_used_in_turns() {
    turns(common::LANE);
}

/// Groups that were never used, whose descriptors alone have a checksum, an older one.
#[test]
fn one_image_of_a_former_mke2fs_used_in_turns() {
    let former = ["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^metadata_csum,uninit_bg"];
    turns(&former);
    turns(&[&former[..6], &["-O", "^64bit,^flex_bg,^metadata_csum,uninit_bg"]].concat());
}

fn turns(args: &[&str]) {
    if !can_mount() {
        return;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    let exact = Exact { holes: false, times: false, dir_links: true, leaving: false };
    let limits = Limits { host: true, ..Limits::default() };
    for seed in 1..4 {
        let image = Image::new(32, args);
        let mut reference = Reference::new(Arc::new(TestClock::default()));
        let mut generator = Generator::new(seed, limits);
        let open = Step { who: 0, op: Op::Chmod { path: "/".into(), perm: 0o777 } };
        {
            let mount = image.mount();
            let mut kernel = Kernel::new(mount.path().into());
            std::fs::remove_dir(mount.path().join("lost+found")).expect("is there");
            assert_eq!(kernel.apply(&open), reference.apply(&open));
        }
        let mut play = |subject: &mut dyn Subject, what: &str| {
            let found = compare_trees(exact, &mut reference, subject);
            assert_eq!(found, Ok(()), "seed {seed}, {what}");
            for _ in 0..STEPS_PER_ROUND {
                let step = generator.step();
                let expected = reference.apply(&step);
                if expected == Err(Failure::Leaves) {
                    continue;
                }
                let got = subject.apply(&step);
                assert_eq!(got.is_ok(), expected.is_ok(), "seed {seed}, {what}: {step:?}: {got:?}");
            }
            for slot in 0..4 {
                let close = Step { who: 0, op: Op::Close { slot } };
                let _ = (reference.apply(&close), subject.apply(&close));
            }
        };
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                image.ours(|fs| {
                    let options = small_options(Arc::new(TestClock::default()), 64 * 4096);
                    play(&mut VfsSubject::new(fs.clone(), options), "ours");
                });
            } else {
                let mount = image.mount();
                play(&mut Kernel::new(mount.path().into()), "kernel");
            }
        }
        image.ours(|fs| {
            let options = small_options(Arc::new(TestClock::default()), 64 * 4096);
            play(&mut VfsSubject::new(fs.clone(), options), "last");
        });
    }
}

/// What df(1) shows: a new file system is as good as empty, and as large as the kernel says.
#[test]
fn the_kernel_counts_the_same_room() {
    if !can_mount() {
        return;
    }
    let kinds: [&[&str]; 5] = [
        common::LANE,
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit"],
        &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"],
        &["-t", "ext3"],
    ];
    for kind in kinds {
        let image = Image::new(64, kind);
        let device = common::load(&std::fs::read(image.file.borrow().path()).expect("readable"));
        let ours = common::open(&device).statfs(&OpCtx::service()).expect("statfs");
        let mount = image.mount();
        let theirs = rustix::fs::statfs(mount.path()).expect("statfs");
        let theirs = (theirs.f_blocks, theirs.f_bfree, theirs.f_bavail, theirs.f_files);
        assert_eq!((ours.blocks, ours.bfree, ours.bavail, ours.files), theirs, "{kind:?}");
    }
}
