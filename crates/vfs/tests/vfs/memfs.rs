//! `memfs`: conformance, and its limits to the byte.

use polylane_base::{Errno, Ino, TestClock};
use polylane_testkit::fs_suite::{self, Can};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, NewNode, SetAttr, XattrMode};
use polylane_vfs::memfs::MemFs;
use std::sync::Arc;

const PAGE: u64 = 4096;

fn memfs(pages: u64, inodes: u64) -> MemFs {
    MemFs::new(pages * PAGE, inodes, Arc::new(TestClock::default()))
}

fn root(fs: &MemFs) -> Ino {
    fs.root().unwrap().ino
}

fn file(fs: &MemFs, name: &str) -> Result<Ino, Errno> {
    let new = NewNode::new(Kind::File, 0o644);
    fs.create(&OpCtx::service(), root(fs), name.as_bytes(), &new).map(|made| made.node.ino)
}

fn free_pages(fs: &MemFs) -> u64 {
    fs.statfs(&OpCtx::service()).unwrap().bfree
}

fn write(fs: &MemFs, ino: Ino, page: u64, pages: usize) -> Result<usize, Errno> {
    fs.write(&OpCtx::service(), ino, page * PAGE, &mut vec![1; pages * PAGE as usize].as_slice())
}

#[test]
fn conforms() {
    let mut make = || Arc::new(memfs(1 << 20, 1 << 20)) as Arc<dyn FileSystem>;
    fs_suite::run(Can::ALL, &mut make);
}

#[test]
fn space_ends_exactly_at_the_limit_and_comes_back() {
    let fs = memfs(10, 100);
    let f = file(&fs, "f").unwrap();
    assert_eq!(write(&fs, f, 0, 10), Ok(10 * PAGE as usize));
    assert_eq!(write(&fs, f, 10, 1), Err(Errno::ENOSPC));
    assert_eq!(free_pages(&fs), 0);
    assert_eq!(write(&fs, f, 3, 4), Ok(4 * PAGE as usize), "what is paid for can be overwritten");
    assert_eq!(fs.getattr(&OpCtx::service(), f).unwrap().size, 10 * PAGE);
    fs.fallocate(&OpCtx::service(), f, Fallocate::PunchHole, 2 * PAGE, 3 * PAGE).unwrap();
    assert_eq!(free_pages(&fs), 3);
    let g = file(&fs, "g").unwrap();
    assert_eq!(write(&fs, g, 0, 5), Ok(3 * PAGE as usize), "short, then nothing");
    assert_eq!(write(&fs, g, 3, 1), Err(Errno::ENOSPC));
    fs.setattr(&OpCtx::service(), f, &SetAttr { size: Some(PAGE + 1), ..SetAttr::default() })
        .unwrap();
    assert_eq!(free_pages(&fs), 5);
    fs.unlink(&OpCtx::service(), root(&fs), b"g").unwrap();
    assert_eq!(free_pages(&fs), 5, "an unlinked file keeps its space until it is forgotten");
    fs.forget(g);
    assert_eq!(free_pages(&fs), 8);
    fs.unlink(&OpCtx::service(), root(&fs), b"f").unwrap();
    fs.forget(f);
    assert_eq!(free_pages(&fs), 10);
}

#[test]
fn reserved_space_cannot_be_taken_by_others() {
    let fs = memfs(10, 100);
    let (f, g) = (file(&fs, "f").unwrap(), file(&fs, "g").unwrap());
    let keep = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&OpCtx::service(), f, keep, 0, 6 * PAGE).unwrap();
    assert_eq!((free_pages(&fs), fs.getattr(&OpCtx::service(), f).unwrap().size), (4, 0));
    let more =
        fs.fallocate(&OpCtx::service(), g, Fallocate::Allocate { keep_size: false }, 0, 5 * PAGE);
    assert_eq!(more.unwrap_err(), Errno::ENOSPC);
    assert_eq!(
        (free_pages(&fs), fs.getattr(&OpCtx::service(), g).unwrap().size),
        (4, 0),
        "all or nothing"
    );
    assert_eq!(write(&fs, g, 0, 4), Ok(4 * PAGE as usize));
    assert_eq!(write(&fs, f, 0, 6), Ok(6 * PAGE as usize), "the reserved pages are there");
    assert_eq!(write(&fs, f, 6, 1), Err(Errno::ENOSPC));
    let zero = Fallocate::ZeroRange { keep_size: true };
    fs.fallocate(&OpCtx::service(), f, zero, 0, 6 * PAGE).unwrap();
    assert_eq!(free_pages(&fs), 0, "zeroed pages stay reserved");
    fs.fallocate(&OpCtx::service(), f, Fallocate::CollapseRange, 0, 2 * PAGE).unwrap();
    assert_eq!(free_pages(&fs), 2);
}

#[test]
fn inodes_and_names_are_limited() {
    let fs = memfs(10, 4);
    let a = file(&fs, "a").unwrap();
    file(&fs, "b").unwrap();
    fs.link(&OpCtx::service(), a, root(&fs), b"a2").unwrap();
    assert_eq!(file(&fs, "c"), Err(Errno::ENOSPC));
    assert_eq!(fs.link(&OpCtx::service(), a, root(&fs), b"a3").unwrap_err(), Errno::ENOSPC);
    assert_eq!(fs.getattr(&OpCtx::service(), a).unwrap().nlink, 2);
    fs.unlink(&OpCtx::service(), root(&fs), b"a").unwrap();
    assert_eq!(fs.statfs(&OpCtx::service()).unwrap().ffree, 1);
    fs.unlink(&OpCtx::service(), root(&fs), b"a2").unwrap();
    fs.forget(a);
    assert_eq!(fs.statfs(&OpCtx::service()).unwrap().ffree, 2);
    file(&fs, "c").unwrap();
    file(&fs, "d").unwrap();
    assert_eq!(file(&fs, "e"), Err(Errno::ENOSPC));
}

#[test]
fn attributes_and_long_links_are_counted() {
    let fs = memfs(3, 100);
    let f = file(&fs, "f").unwrap();
    let value = vec![0; 2 * PAGE as usize];
    fs.setxattr(&OpCtx::service(), f, b"user.v", &value, XattrMode::Any).unwrap();
    assert_eq!(free_pages(&fs), 0);
    let again = fs.setxattr(&OpCtx::service(), f, b"user.w", &value, XattrMode::Any);
    assert_eq!(again.unwrap_err(), Errno::ENOSPC);
    fs.setxattr(&OpCtx::service(), f, b"user.v", b"", XattrMode::Replace).unwrap();
    assert_eq!(free_pages(&fs), 2);
    fs.removexattr(&OpCtx::service(), f, b"user.v").unwrap();
    assert_eq!(free_pages(&fs), 3);
    let target = vec![b't'; 200];
    let new = NewNode { target: &target, ..NewNode::new(Kind::Symlink, 0o777) };
    let link = fs.create(&OpCtx::service(), root(&fs), b"l", &new).unwrap().node;
    assert_eq!((free_pages(&fs), link.blocks), (2, 8));
    fs.setxattr(&OpCtx::service(), f, b"user.v", &value, XattrMode::Any).unwrap_err();
    fs.unlink(&OpCtx::service(), root(&fs), b"l").unwrap();
    fs.forget(link.ino);
    assert_eq!(free_pages(&fs), 3);
}

#[test]
fn a_sparse_giant_costs_what_it_holds() {
    let fs = memfs(100, 100);
    let f = file(&fs, "f").unwrap();
    let far = i64::MAX as u64 - 1;
    assert_eq!(fs.write(&OpCtx::service(), f, far, &mut &b"x"[..]), Ok(1));
    assert_eq!(fs.write(&OpCtx::service(), f, far, &mut &b"xy"[..]), Err(Errno::EFBIG));
    assert_eq!(fs.getattr(&OpCtx::service(), f).unwrap().size, i64::MAX as u64);
    assert_eq!(free_pages(&fs), 99);
    let huge = Fallocate::Allocate { keep_size: false };
    let refused = fs.fallocate(&OpCtx::service(), f, huge, 0, i64::MAX as u64);
    assert_eq!(refused.unwrap_err(), Errno::ENOSPC);
    fs.fallocate(&OpCtx::service(), f, Fallocate::PunchHole, 0, i64::MAX as u64).unwrap();
    assert_eq!(free_pages(&fs), 100);
}

#[test]
fn counts_are_exact_under_threads() {
    let fs = memfs(64, 1000);
    let files: Vec<Ino> = (0..4).map(|i| file(&fs, &format!("f{i}")).unwrap()).collect();
    std::thread::scope(|scope| {
        for &f in &files {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..2000u64 {
                    let _ = write(fs, f, round % 40, 1);
                    if round % 7 == 0 {
                        fs.fallocate(&OpCtx::service(), f, Fallocate::PunchHole, 0, 20 * PAGE)
                            .unwrap();
                    }
                }
            });
        }
    });
    let used: u64 =
        files.iter().map(|&f| fs.getattr(&OpCtx::service(), f).unwrap().blocks / 8).sum();
    assert_eq!(free_pages(&fs), 64 - used);
}

#[test]
fn two_instances_share_nothing() {
    let (a, b) = (memfs(1, 10), memfs(1, 10));
    let f = file(&a, "f").unwrap();
    assert_eq!(write(&a, f, 0, 1), Ok(PAGE as usize));
    assert_eq!(file(&b, "f"), Ok(f), "numbers are counted for each alone");
    assert_eq!(free_pages(&b), 1);
}
