//! The upper has no room at any step of a change: the change fails with `ENOSPC`, the tree is as it
//! was, for this service and for the next, and the change succeeds once there is room.

mod common;

use std::process::Command;
use std::sync::Arc;

use common::{Fs, Tree, memfs, pattern, union};
use polylane_base::{Errno, Result, TestClock};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::fault::{Call, Faulty, Plan};
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, Kind, NewNode, RenameMode, SetAttr, XattrMode};

/// A change of a union by one call.
type Change = (&'static str, fn(&Tree<'_>) -> Result<()>);

const CTX: OpCtx<'static> = OpCtx::service();

const CHANGES: &[Change] = &[
    ("chmod of a large file", |u| set(u, "d/big", |set| set.perm = Some(0o600))),
    ("a truncation", |u| set(u, "d/big", |set| set.size = Some(150_001))),
    ("a longer size", |u| set(u, "d/big", |set| set.size = Some(500_001))),
    ("one block", |u| write(u, "d/big", 81_920, &[7; 4096])),
    ("bytes within a block", |u| write(u, "d/big", 120_100, b"changed")),
    ("an append", |u| write(u, "d/big", 200_000, b"appended")),
    ("a small file", |u| write(u, "d/deep/small", 10, b"changed")),
    ("one of two names", |u| set(u, "d/one", |set| set.perm = Some(0o600))),
    ("a hole", |u| {
        u.0.fallocate(&CTX, u.ino("d/big"), Fallocate::PunchHole, 40_960, 8192).map(drop)
    }),
    ("an attribute", |u| {
        u.0.setxattr(&CTX, u.ino("d/deep/small"), b"user.x", b"y", XattrMode::Any).map(drop)
    }),
    ("a new file", |u| {
        u.0.create(&CTX, u.ino("d/deep"), b"new", &NewNode::new(Kind::File, 0o644)).map(drop)
    }),
    ("a new directory", |u| {
        u.0.create(&CTX, u.ino("d/deep"), b"new", &NewNode::new(Kind::Dir, 0o755)).map(drop)
    }),
    ("a file goes", |u| u.0.unlink(&CTX, u.ino("d"), b"one").map(drop)),
    ("a directory goes", |u| u.0.rmdir(&CTX, u.ino("d"), b"empty").map(drop)),
    ("one more name", |u| u.0.link(&CTX, u.ino("d/big"), u.ino("d/deep"), b"more").map(drop)),
    ("a file moves", |u| rename(u, ("d", "one"), ("d/deep", "moved"))),
    ("a file takes another's place", |u| rename(u, ("d", "one"), ("d/deep", "small"))),
    ("a directory moves", |u| rename(u, ("d", "deep"), ("", "moved"))),
];

fn set(tree: &Tree<'_>, path: &str, how: fn(&mut SetAttr)) -> Result<()> {
    let mut set = SetAttr::default();
    how(&mut set);
    tree.0.setattr(&CTX, tree.ino(path), &set).map(drop)
}

fn write(tree: &Tree<'_>, path: &str, at: u64, mut bytes: &[u8]) -> Result<()> {
    let len = bytes.len();
    let count = tree.0.write(&CTX, tree.ino(path), at, &mut bytes)?;
    assert_eq!(count, len, "{path}: all of so little, or nothing");
    Ok(())
}

fn rename(tree: &Tree<'_>, from: (&str, &str), to: (&str, &str)) -> Result<()> {
    let (from_dir, to_dir) = (tree.ino(from.0), tree.ino(to.0));
    let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
    tree.0.rename(&CTX, from_dir, from, to_dir, to, RenameMode::Replace).map(drop)
}

fn lower() -> Fs {
    let low = memfs();
    let tree = Tree(&*low);
    for dir in ["d", "d/deep", "d/empty"] {
        tree.mkdir(dir);
    }
    tree.file("d/big", &pattern(200_000, 1));
    tree.file("d/deep/small", &pattern(5000, 2));
    tree.file("d/one", b"linked");
    tree.link("d/one", "d/two");
    low
}

/// Fails at every step that there is, with each class of calls that need room.
fn each_step_fails(what: &str, make: &dyn Fn() -> Fs) {
    let low = lower();
    let mut refused = 0;
    for (name, change) in CHANGES {
        let expected = {
            let upper = make();
            let union = union(&[&low], Some(&upper));
            change(&Tree(&*union)).expect(name);
            let whole = Tree(&*union).whole();
            union.close();
            whole
        };
        for call in [Call::Change, Call::Write] {
            for skip in 0.. {
                let faulty = Faulty::new(make());
                let upper: Fs = faulty.clone();
                let first = union(&[&low], Some(&upper));
                let before = Tree(&*first).whole();
                faulty.plan(call, Plan { skip, count: u64::MAX, errno: Some(Errno::ENOSPC) });
                let ended = change(&Tree(&*first));
                faulty.fail_always(call, None);
                let whole = Tree(&*first).whole();
                if ended.is_ok() {
                    assert!(whole == expected, "{what}, {name}: succeeded");
                    first.close();
                    break;
                }
                let at = format!("{what}, {name}, {call:?} {skip}");
                assert_eq!(ended, Err(Errno::ENOSPC), "{at}");
                assert!(whole == before, "{at}: the tree has changed");
                first.close();
                drop(first);
                let next = union(&[&low], Some(&upper));
                assert!(Tree(&*next).whole() == before, "{at}: another tree for the next service");
                assert_eq!(change(&Tree(&*next)), Ok(()), "{at}: with room");
                assert!(Tree(&*next).whole() == expected, "{at}: with room");
                next.close();
                refused += 1;
            }
        }
    }
    assert!(refused > 3 * CHANGES.len(), "{what}: {refused} steps only");
}

#[test]
fn an_upper_in_memory_that_is_full_at_any_step_is_as_before() {
    each_step_fails("memory", &memfs);
}

#[test]
fn an_ext4_that_is_full_at_any_step_is_as_before() {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(12 << 20).expect("sparse");
    let args = ["-Fq", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0"];
    let Ok(made) = Command::new("mke2fs").args(args).arg(image.path()).output() else {
        eprintln!("skipped: mke2fs is not installed");
        return;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let image = Image::new(std::fs::read(image.path()).expect("readable"));
    each_step_fails("ext4", &|| {
        let disk = SimDisk::new(image.clone(), SimOptions::default());
        let clock = Arc::new(TestClock::default());
        Arc::new(Ext4::open(disk, clock, &Options::default()).expect("opens"))
    });
}
