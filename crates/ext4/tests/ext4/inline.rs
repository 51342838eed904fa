//! Inline data, as mke2fs makes it: read as it is, changed as other files are, and nobody finds
//! anything wrong with it. As the kernel makes it: `kernel/inline.rs`.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use polylane_base::{Errno, Ino};
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, RenameMode, SeekFor, SetAttr, XattrMode};

use crate::common::{self, create, root};

const FEATURES: &[&str] = &["-t", "ext4", "-b", "1024", "-m", "0", "-I", "256"];

/// Sizes around what fits into `i_block`, and into the inode.
const SIZES: [usize; 8] = [0, 1, 59, 60, 61, 100, 132, 150];

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| at as u8 | 1).collect()
}

/// An image of mke2fs' whose files are inline as far as they can be.
fn image(features: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for size in SIZES {
        for part in ["read", "write", "cut", "long", "attr", "late", "hole"] {
            std::fs::write(at(&format!("{part}-{size}")), bytes(size)).expect("written");
        }
    }
    symlink("t".repeat(100), at("link")).expect("made");
    for name in ["empty", "dir", "from", "gone"] {
        std::fs::create_dir(at(name)).expect("made");
    }
    let from = dir.path().to_str().expect("plain").to_string();
    common::image(16, &[FEATURES, &["-O", features, "-d", &from]].concat())
}

fn find(fs: &Ext4, name: &str) -> Ino {
    fs.lookup(&OpCtx::service(), root(fs), name.as_bytes()).expect("there").ino
}

fn content(fs: &Ext4, ino: Ino) -> Vec<u8> {
    let size = fs.getattr(&OpCtx::service(), ino).expect("a state").size as usize;
    let mut found = vec![0xee; size];
    assert_eq!(fs.read(&OpCtx::service(), ino, 0, size + 10, &mut &mut found[..]), Ok(size));
    found
}

fn set_size(fs: &Ext4, ino: Ino, size: u64) {
    fs.setattr(&OpCtx::service(), ino, &SetAttr { size: Some(size), ..SetAttr::default() })
        .expect("room");
}

/// What changes a file of `size` bytes; what its bytes are then is known.
fn change(fs: &Ext4, size: usize) {
    let named = |part: &str| find(fs, &format!("{part}-{size}"));
    let write = named("write");
    let end = size as u64;
    assert_eq!(fs.write(&OpCtx::service(), write, end / 2, &mut &b"changed"[..]), Ok(7));
    let mut expected = bytes(size);
    expected.resize((size / 2 + 7).max(size), 0);
    expected[size / 2..size / 2 + 7].copy_from_slice(b"changed");
    assert_eq!(content(fs, write), expected, "{size}");
    set_size(fs, named("cut"), end / 2);
    assert_eq!(content(fs, named("cut")), bytes(size)[..size / 2]);
    set_size(fs, named("long"), 5000);
    let mut long = bytes(size);
    long.resize(5000, 0);
    assert_eq!(content(fs, named("long")), long);
    let attr = named("attr");
    fs.setxattr(&OpCtx::service(), attr, b"user.name", &[5; 90], XattrMode::Any).expect("room");
    assert_eq!(content(fs, attr), bytes(size));
    assert_eq!(fs.listxattr(&OpCtx::service(), attr), Ok(vec![b"user.name".to_vec()]));
    let late = named("late");
    fs.reserve(&OpCtx::service(), late, 0, 3000).expect("room");
    assert_eq!(content(fs, late), bytes(size));
    assert_eq!(fs.write(&OpCtx::service(), late, 0, &mut &[9; 3000][..]), Ok(3000));
    fs.fallocate(&OpCtx::service(), named("hole"), Fallocate::PunchHole, 0, 30).expect("a hole");
    let mut hole = bytes(size);
    hole.iter_mut().take(30).for_each(|byte| *byte = 0);
    assert_eq!(content(fs, named("hole")), hole);
}

fn read_all(fs: &Ext4) {
    for size in SIZES {
        let ino = find(fs, &format!("read-{size}"));
        assert_eq!(content(fs, ino), bytes(size), "{size}");
        assert_eq!(fs.listxattr(&OpCtx::service(), ino), Ok(vec![]));
        assert_eq!(fs.getxattr(&OpCtx::service(), ino, b"system.data"), Err(Errno::EOPNOTSUPP));
        let mut part = [0; 10];
        let len = size.saturating_sub(7).min(10);
        assert_eq!(fs.read(&OpCtx::service(), ino, 7, 10, &mut &mut part[..]), Ok(len));
        assert_eq!(part[..len], bytes(size)[size.min(7)..size.min(7) + len]);
        if size > 0 {
            assert_eq!(fs.seek(&OpCtx::service(), ino, 0, SeekFor::Data), Ok(0));
            assert_eq!(fs.seek(&OpCtx::service(), ino, 0, SeekFor::Hole), Ok(size as u64));
        }
    }
    assert_eq!(fs.readlink(&OpCtx::service(), find(fs, "link")), Ok(vec![b't'; 100]));
}

fn change_directories(fs: &Ext4) {
    let (dir, from) = (find(fs, "dir"), find(fs, "from"));
    fs.rename(&OpCtx::service(), root(fs), b"from", dir, b"moved", RenameMode::Replace)
        .expect("moved");
    assert_eq!(fs.revive(from, None).map(|found| found.dir), Ok(Some(dir)));
    for nth in 0..30 {
        create(fs, from, &format!("name-{nth}-{}", "n".repeat(nth)), Kind::File);
    }
    let gone = fs.rmdir(&OpCtx::service(), root(fs), b"gone").expect("empty").node.ino;
    fs.forget(gone);
    fs.setxattr(&OpCtx::service(), find(fs, "empty"), b"user.of", b"a directory", XattrMode::Any)
        .expect("room");
    fs.setxattr(&OpCtx::service(), find(fs, "link"), b"trusted.of", b"a link", XattrMode::Any)
        .expect("room");
    assert_eq!(fs.readlink(&OpCtx::service(), find(fs, "link")), Ok(vec![b't'; 100]));
}

#[test]
fn what_is_inline_is_read_and_changed() {
    if !common::have_tools() {
        return;
    }
    for features in ["inline_data", "inline_data,^metadata_csum"] {
        let device = common::load(&image(features));
        let fs = common::open(&device);
        read_all(&fs);
        SIZES.into_iter().for_each(|size| change(&fs, size));
        change_directories(&fs);
        read_all(&fs);
        let free = |fs: &Arc<Ext4>| fs.statfs(&OpCtx::service()).expect("totals").bfree;
        let before = free(&fs);
        for size in SIZES {
            let name = format!("read-{size}");
            let last = fs.unlink_last(&OpCtx::service(), root(&fs), name.as_bytes(), &mut || true);
            assert!(last.is_ok_and(|last| last.is_some_and(|last| last.is_freed)), "{size}");
        }
        fs.sync(&OpCtx::service()).expect("syncs");
        assert!(free(&fs) >= before);
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None, "{features}");
        let fs = common::open(&device);
        assert_eq!(content(&fs, find(&fs, "late-60")), vec![9; 3000]);
        fs.close().expect("closes");
    }
}

/// On a full disk what is inline is read, removed and replaced; what needs a block is `ENOSPC`.
#[test]
fn a_full_disk_leaves_what_is_inline() {
    if !common::have_tools() {
        return;
    }
    let device = common::load(&image("inline_data"));
    let fs = common::open(&device);
    let mut fillers = 0;
    let file = create(&fs, root(&fs), "filler", Kind::File);
    let mode = |keep_size| Fallocate::Allocate { keep_size };
    let (mut at, mut piece) = (0, 1 << 20);
    while piece >= 1024 {
        match fs.fallocate(&OpCtx::service(), file, mode(false), at, piece) {
            Ok(_) => at += piece,
            Err(_) => piece /= 2,
        }
    }
    let mut long = node(Kind::Symlink, 0o777);
    long.target = &[b'l'; 500];
    while fs.create(&OpCtx::service(), root(&fs), format!("f{fillers}").as_bytes(), &long).is_ok() {
        fillers += 1;
    }
    let full = find(&fs, "write-60");
    assert_eq!(fs.write(&OpCtx::service(), full, 0, &mut &b"changed"[..]), Err(Errno::ENOSPC));
    assert_eq!(content(&fs, full), bytes(60));
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    assert_eq!(fs.setattr(&OpCtx::service(), full, &set).map(drop), Err(Errno::ENOSPC));
    read_all(&fs);
    let gone = fs.unlink(&OpCtx::service(), root(&fs), b"cut-60").expect("a name less").node.ino;
    fs.forget(gone);
    assert_eq!(fs.stopped_by(), None);
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
}
