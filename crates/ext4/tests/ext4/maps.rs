//! Files with block maps: those of ext2 and ext3, and what older tools leave on an ext4. Beside a
//! model of their bytes, with e2fsck as the judge.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Ino, TestClock};
use polylane_block::ram::RamDevice;
use polylane_ext4::{Ext4, Options};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, RenameMode, SetAttr};

use crate::common::{self, create, root};

const PAGE: u64 = 1024;
/// `EXT4_EXTENTS_FL`, as users see it.
const EXTENTS: u32 = 0x8_0000;

fn find(fs: &Ext4, dir: Ino, name: &str) -> Ino {
    fs.lookup(&OpCtx::service(), dir, name.as_bytes()).expect("is there").ino
}

fn has_map(fs: &Ext4, ino: Ino) -> bool {
    fs.getattr(&OpCtx::service(), ino).expect("a state").flags & EXTENTS == 0
}

fn truncate(fs: &Ext4, ino: Ino, size: u64) -> polylane_base::Result<u64> {
    fs.setattr(&OpCtx::service(), ino, &SetAttr { size: Some(size), ..SetAttr::default() })
        .map(|attr| attr.blocks)
}

fn remove(fs: &Ext4, dir: Ino, name: &str) {
    let gone = fs.unlink(&OpCtx::service(), dir, name.as_bytes()).expect("is there").node;
    fs.forget(gone.ino);
}

fn free(fs: &Ext4) -> (u64, u64) {
    fs.sync(&OpCtx::service()).expect("commits");
    fs.statfs(&OpCtx::service()).map(|totals| (totals.bfree, totals.ffree)).expect("totals")
}

fn close(fs: &Ext4, device: &Arc<RamDevice>, what: &str) {
    assert_eq!(fs.stopped_by(), None, "{what}");
    fs.close().expect("closes");
    assert_eq!(common::complaints(device), None, "{what}");
}

/// Runs a program of e2fsprogs on an image's bytes; returns what it made of them.
fn changed(image: Vec<u8>, program: &str, args: &[&str]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), image).expect("written");
    let done = Command::new(program).args(args).arg(file.path()).output().expect("runs");
    assert!(done.status.code().is_some_and(|code| code < 4), "{program} {args:?}: {done:?}");
    std::fs::read(file.path()).expect("readable")
}

/// A file's bytes by pages; those that it lacks are zeros.
#[derive(Default)]
struct Model {
    size: u64,
    pages: BTreeMap<u64, [u8; PAGE as usize]>,
}

impl Model {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.pages.entry(at / PAGE).or_insert([0; PAGE as usize])[(at % PAGE) as usize] = *byte;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    fn clear(&mut self, from: u64, to: u64) {
        self.pages.retain(|page, _| !(page * PAGE >= from && (page + 1) * PAGE <= to));
        for edge in [from / PAGE, to / PAGE] {
            if let Some(bytes) = self.pages.get_mut(&edge) {
                let within = |at: u64| at.saturating_sub(edge * PAGE).min(PAGE) as usize;
                bytes[within(from)..within(to)].fill(0);
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        self.clear(size, u64::MAX);
        self.size = size;
    }

    fn compare(&self, fs: &Ext4, ino: Ino, edges: &[u64], what: &str) {
        assert_eq!(fs.getattr(&OpCtx::service(), ino).expect("a state").size, self.size, "{what}");
        let around = edges.iter().flat_map(|edge| edge.saturating_sub(3)..edge + 3);
        let pages = self.pages.keys().copied().chain(around);
        for page in pages.filter(|page| page * PAGE < self.size) {
            let mut bytes = [0xee; PAGE as usize];
            let len = (self.size - page * PAGE).min(PAGE) as usize;
            let read = fs.read(&OpCtx::service(), ino, page * PAGE, len, &mut &mut bytes[..len]);
            assert_eq!(read, Ok(len), "{what}");
            let expected = self.pages.get(&page).unwrap_or(&[0; PAGE as usize]);
            assert!(bytes[..len] == expected[..len], "{what}: page {page}");
        }
    }
}

/// Where each level of a map begins, in pages.
fn edges(block_bytes: u64) -> [u64; 4] {
    let (per_page, per_block) = (block_bytes / PAGE, block_bytes / 4);
    let second = 12 + per_block + per_block * per_block;
    [0, 12, 12 + per_block, second].map(|block| block * per_page)
}

/// Writes, cuts and holes at random places, most of them where a map goes from one level to the
/// next; in between the image is closed and opened again.
#[test]
fn random_changes_agree_with_a_model() {
    if !common::have_tools() {
        return;
    }
    for (kind, block_bytes) in
        [("ext3", 1024), ("ext3", 2048), ("ext3", 4096), ("ext4", 1024), ("ext4", 4096)]
    {
        let what = format!("{kind}, {block_bytes} bytes");
        let mut device = common::make(64, &["-t", kind, "-b", &block_bytes.to_string()]);
        let mut fs = common::open(&device);
        let before = free(&fs);
        let mut ino = create(&fs, root(&fs), "file", Kind::File);
        assert_eq!(has_map(&fs, ino), kind == "ext3");
        let (mut model, edges) = (Model::default(), edges(block_bytes));
        let mut rng = Rng::new(block_bytes);
        let most = (edges[3] + 40) * PAGE;
        for step in 0..1200 {
            let near = *rng.pick(&edges) * PAGE + rng.below(40 * PAGE);
            let offset = near.saturating_sub(20 * PAGE).min(most);
            match rng.below(20) {
                0 => {
                    truncate(&fs, ino, offset).expect("cut");
                    model.truncate(offset);
                }
                1..=4 => {
                    let len = 1 + rng.below(12 * block_bytes);
                    fs.fallocate(&OpCtx::service(), ino, Fallocate::PunchHole, offset, len)
                        .expect("a hole");
                    model.clear(offset, (offset + len).min(model.size).max(offset));
                }
                _ => {
                    let len = 1 + rng.below(5 * block_bytes) as usize;
                    let bytes = vec![step as u8 | 1; len];
                    assert_eq!(
                        fs.write(&OpCtx::service(), ino, offset, &mut &bytes[..]),
                        Ok(len),
                        "{what}"
                    );
                    model.write(offset, &bytes);
                }
            }
            if step % 100 == 99 {
                model.compare(&fs, ino, &edges, &what);
            }
            if step % 300 == 299 {
                close(&fs, &device, &what);
                device = common::load(&std::fs::read(common::save(&device).path()).expect("read"));
                fs = common::open(&device);
                ino = find(&fs, root(&fs), "file");
                model.compare(&fs, ino, &edges, &what);
            }
        }
        truncate(&fs, ino, 0).expect("cut");
        assert_eq!(fs.getattr(&OpCtx::service(), ino).expect("a state").blocks, 0, "{what}");
        fs.write(&OpCtx::service(), ino, edges[3] * PAGE, &mut &[1; 5000][..]).expect("room");
        remove(&fs, root(&fs), "file");
        assert_eq!(free(&fs), before, "{what}");
        close(&fs, &device, &what);
    }
}

/// What extents alone can do is refused, and changes nothing; so is what no map can hold.
#[test]
fn what_a_map_cannot_do_is_refused() {
    if !common::have_tools() {
        return;
    }
    for (block_bytes, size_max) in [(1024, 17_247_252_480), (4096, 2_196_873_666_560)] {
        let device = common::make(64, &["-t", "ext3", "-b", &block_bytes.to_string()]);
        let fs = common::open(&device);
        let file = create(&fs, root(&fs), "file", Kind::File);
        fs.write(&OpCtx::service(), file, 0, &mut &[7; 50_000][..]).expect("room");
        let before = fs.getattr(&OpCtx::service(), file).expect("a state");
        for mode in [
            Fallocate::Allocate { keep_size: false },
            Fallocate::Allocate { keep_size: true },
            Fallocate::ZeroRange { keep_size: false },
            Fallocate::CollapseRange,
            Fallocate::InsertRange,
        ] {
            assert_eq!(
                fs.fallocate(&OpCtx::service(), file, mode, 8192, 8192),
                Err(Errno::EOPNOTSUPP),
                "{mode:?}"
            );
        }
        assert_eq!(fs.getattr(&OpCtx::service(), file), Ok(before));
        assert_eq!(truncate(&fs, file, size_max + 1), Err(Errno::EFBIG));
        assert_eq!(fs.write(&OpCtx::service(), file, size_max, &mut &[1][..]), Err(Errno::EFBIG));
        assert_eq!(fs.reserve(&OpCtx::service(), file, size_max, 1), Err(Errno::EFBIG));
        assert_eq!(fs.getattr(&OpCtx::service(), file), Ok(before));
        fs.write(&OpCtx::service(), file, size_max - 1, &mut &[1][..]).expect("the last byte");
        let mut byte = [0];
        assert_eq!(fs.read(&OpCtx::service(), file, size_max - 1, 1, &mut &mut byte[..]), Ok(1));
        assert_eq!((byte, truncate(&fs, file, 0)), ([1], Ok(0)));
        close(&fs, &device, "refused");
    }
}

/// Directories and long links have maps, too: they grow, are moved, emptied and removed.
#[test]
fn directories_with_maps_are_like_others() {
    let ctx = &OpCtx::service();
    if !common::have_tools() {
        return;
    }
    for block_bytes in [1024, 4096] {
        let args = ["-t", "ext3", "-b", &block_bytes.to_string(), "-N", "8192"];
        let device = common::make(64, &args);
        let fs = common::open(&device);
        let before = free(&fs);
        let top = create(&fs, root(&fs), "top", Kind::Dir);
        let name = |nth: u32| format!("{nth}-{}", "n".repeat(200));
        for nth in 0..2000 {
            create(&fs, top, &name(nth), if nth % 7 == 0 { Kind::Dir } else { Kind::File });
        }
        assert!(has_map(&fs, top));
        let target = "t".repeat(900);
        let link =
            polylane_vfs::fs::NewNode { target: target.as_bytes(), ..node(Kind::Symlink, 0o777) };
        let link = fs.create(ctx, top, b"link", &link).expect("room").node.ino;
        assert_eq!(fs.readlink(ctx, link).as_deref(), Ok(target.as_bytes()));
        let replaced = find(&fs, top, &name(2));
        fs.rename(ctx, top, name(1).as_bytes(), top, name(2).as_bytes(), RenameMode::Replace)
            .expect("replaces");
        fs.forget(replaced);
        fs.rename(ctx, top, name(7).as_bytes(), root(&fs), b"moved", RenameMode::Replace)
            .expect("moves");
        fs.rename(ctx, top, name(3).as_bytes(), root(&fs), b"moved", RenameMode::Exchange)
            .expect("exchanges");
        let from = fs.lookup(ctx, top, name(7 * 100).as_bytes()).expect("there").ino;
        assert_eq!(fs.lookup(ctx, from, b"none").unwrap_err(), Errno::ENOENT);
        let mut left = Vec::new();
        let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
            left.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
            true
        };
        fs.readdir(ctx, top, 0, &mut each).expect("lists");
        for (name, kind) in left {
            match kind {
                Kind::Dir => {
                    let gone = fs.rmdir(ctx, top, name.as_bytes()).expect("empty").node.ino;
                    fs.forget(gone);
                }
                _ => remove(&fs, top, &name),
            }
        }
        remove(&fs, root(&fs), "moved");
        let gone = fs.rmdir(ctx, root(&fs), b"top").expect("empty").node.ino;
        fs.forget(gone);
        assert_eq!(free(&fs), before);
        close(&fs, &device, "directories");
    }
}

/// An ext3 on which extents were switched on later: old files have maps, new ones trees.
#[test]
fn an_upgraded_image_has_both_kinds() {
    if !common::have_tools() {
        return;
    }
    let from = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(from.path().join("dir")).expect("made");
    for name in ["old", "dir/deep", "gone"] {
        std::fs::write(from.path().join(name), vec![5; 700_000]).expect("written");
    }
    let dir = from.path().to_str().expect("plain");
    let image = common::image(64, &["-t", "ext3", "-b", "1024", "-d", dir]);
    let image = changed(image, "tune2fs", &["-O", "extents,uninit_bg,dir_index"]);
    let device = common::load(&changed(image, "e2fsck", &["-fy"]));
    let fs = common::open(&device);
    let (old, dir) = (find(&fs, root(&fs), "old"), find(&fs, root(&fs), "dir"));
    assert!(has_map(&fs, old) && has_map(&fs, dir));
    let new = create(&fs, dir, "new", Kind::File);
    assert!(!has_map(&fs, new));
    for file in [old, new] {
        fs.write(&OpCtx::service(), file, 699_999, &mut &[6; 100_000][..]).expect("room");
        let mut bytes = [0; 2];
        assert_eq!(fs.read(&OpCtx::service(), file, 699_998, 2, &mut &mut bytes[..]), Ok(2));
        assert_eq!(bytes, if file == old { [5, 6] } else { [0, 6] });
    }
    let deep = find(&fs, dir, "deep");
    truncate(&fs, deep, 1000).expect("cut");
    assert_eq!(fs.getattr(&OpCtx::service(), deep).expect("a state").blocks, 2);
    remove(&fs, root(&fs), "gone");
    close(&fs, &device, "upgraded");
}

/// What was being cut or had no name when the power went is put right at the next opening.
#[test]
fn orphans_with_maps_are_freed_when_the_image_is_opened() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, &["-t", "ext3", "-b", "1024"]);
    let fs = common::open(&device);
    let before = free(&fs);
    let file = create(&fs, root(&fs), "file", Kind::File);
    fs.write(&OpCtx::service(), file, 0, &mut &vec![3; 3_000_000][..]).expect("room");
    fs.write(&OpCtx::service(), file, 66 << 20, &mut &[3; 3000][..]).expect("room");
    assert_eq!(fs.unlink(&OpCtx::service(), root(&fs), b"file").expect("there").node.nlink, 0);
    fs.sync(&OpCtx::service()).expect("commits");
    drop(fs);
    let fs = common::open(&device);
    assert_eq!(free(&fs), before);
    close(&fs, &device, "orphans");
}

/// lost+found as e2fsck makes it: by a map, on an image whose other files have extents.
#[test]
fn a_lost_and_found_of_e2fscks_is_used_and_removed() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, common::LANE);
    let fs = common::open(&device);
    let gone = fs.rmdir(&OpCtx::service(), root(&fs), b"lost+found").expect("empty").node.ino;
    fs.forget(gone);
    let dir = create(&fs, root(&fs), "dir", Kind::Dir);
    let file = create(&fs, dir, "file", Kind::File);
    fs.write(&OpCtx::service(), file, 0, &mut &[7; 5000][..]).expect("room");
    close(&fs, &device, "before");
    let image = std::fs::read(common::save(&device).path()).expect("readable");
    let image = changed(image, "debugfs", &["-w", "-R", "unlink /dir/file"]);
    let device = common::load(&changed(image, "e2fsck", &["-fy"]));
    let options = Options::default();
    let fs = Ext4::open(device.clone(), Arc::new(TestClock::default()), &options).expect("opens");
    let found = find(&fs, root(&fs), "lost+found");
    assert!(has_map(&fs, found), "e2fsck makes it otherwise by now: find another that does not");
    let mut names = Vec::new();
    let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(&OpCtx::service(), found, 0, &mut each).expect("lists");
    assert_eq!(names.len(), 1);
    fs.rename(&OpCtx::service(), found, &names[0], found, b"name", RenameMode::Replace)
        .expect("renames");
    create(&fs, found, "other", Kind::File);
    remove(&fs, found, "name");
    remove(&fs, found, "other");
    let gone = fs.rmdir(&OpCtx::service(), root(&fs), b"lost+found").expect("empty").node.ino;
    fs.forget(gone);
    close(&fs, &device, "after");
}

/// A root directory that e2fsck made anew takes names, and gives them up again.
#[test]
fn a_root_of_e2fscks_is_used() {
    if !common::have_tools() {
        return;
    }
    let image = changed(common::image(64, common::LANE), "debugfs", &["-w", "-R", "clri <2>"]);
    let device = common::load(&changed(image, "e2fsck", &["-fy"]));
    let fs = common::open(&device);
    assert!(
        has_map(&fs, root(&fs)),
        "e2fsck makes it otherwise by now: find another that does not"
    );
    let name = |nth: u32| format!("{nth}-{}", "n".repeat(200));
    for nth in 0..300 {
        create(&fs, root(&fs), &name(nth), Kind::File);
    }
    (0..300).step_by(2).for_each(|nth| remove(&fs, root(&fs), &name(nth)));
    close(&fs, &device, "root");
}

/// What a write was promised it gets, on a disk that is full meanwhile, though each block of a
/// sparse file may need others that name it.
#[test]
fn promises_count_the_blocks_of_numbers() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(24, &["-t", "ext3", "-b", "1024"]);
    let fs = common::open(&device);
    let before = free(&fs);
    let file = create(&fs, root(&fs), "file", Kind::File);
    let offsets = || (1..60_000u64).map(|nth| nth * 256 * 1024);
    let promised = offsets()
        .take_while(|offset| fs.reserve(&OpCtx::service(), file, *offset, 100).is_ok())
        .count();
    assert!(promised > 5000, "{promised} of {} blocks", before.0);
    // One may be left, which is too few for a block and one that names it.
    let other = create(&fs, root(&fs), "other", Kind::File);
    let written = fs.write(&OpCtx::service(), other, 0, &mut &[1; 100_000][..]);
    assert!(matches!(written, Ok(1024) | Err(Errno::ENOSPC)), "{written:?}");
    assert_eq!(fs.write(&OpCtx::service(), other, 1024, &mut &[1; 1024][..]), Err(Errno::ENOSPC));
    for offset in offsets().take(promised).step_by(2) {
        assert_eq!(fs.write(&OpCtx::service(), file, offset, &mut &[1; 100][..]), Ok(100));
    }
    // The others are never written: what was made for them goes with the file.
    fs.unreserve(file, 0);
    close(&fs, &device, "promised");
    let fs = common::open(&device);
    remove(&fs, root(&fs), "file");
    remove(&fs, root(&fs), "other");
    assert_eq!(free(&fs), before);
    close(&fs, &device, "removed");
}
