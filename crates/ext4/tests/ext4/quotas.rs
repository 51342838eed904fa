//! Quotas: what users, groups and projects take is in the image's quota files as e2fsck counts it,
//! whoever makes, changes, gives away and removes what.

use std::process::Command;

use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, Ino, Uid};
use polylane_ext4::Ext4;
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, NewNode, RenameMode, SetAttr, XattrMode};
use polylane_vfs::{Cred, OpCtx};

use crate::common::{self, root};

const FORMATS: [&[&str]; 7] = [
    &["-t", "ext4", "-b", "4096", "-O", "quota"],
    &["-t", "ext4", "-b", "1024", "-O", "quota,project"],
    &["-t", "ext4", "-b", "4096", "-O", "quota,project,inline_data"],
    &["-t", "ext4", "-b", "2048", "-O", "quota,^metadata_csum", "-I", "128"],
    &["-t", "ext4", "-b", "4096", "-O", "quota,project,^has_journal"],
    &["-t", "ext4", "-b", "1024", "-O", "quota,project,ea_inode"],
    &["-t", "ext4", "-b", "4096", "-O", "quota,fast_commit,ea_inode,inline_data"],
];

const ANY: XattrMode = XattrMode::Any;

fn service() -> OpCtx<'static> {
    OpCtx::service()
}

fn owned(kind: Kind, owner: u32) -> NewNode<'static> {
    NewNode { uid: Uid(owner), gid: Gid(owner / 3), ..node(kind, 0o755) }
}

fn give(fs: &Ext4, ino: Ino, owner: u32) {
    let (uid, gid) = (Some(Uid(owner)), Some(Gid(owner / 2)));
    fs.setattr(&service(), ino, &SetAttr { uid, gid, ..SetAttr::default() }).expect("changes");
}

/// Random changes by owners of whom many come once: their entries need every level of the tree.
fn work(fs: &Ext4, seed: u64, steps: u32) {
    let mut rng = Rng::new(seed);
    let owner = |rng: &mut Rng| match rng.percent(30) {
        true => rng.next_u64() as u32,
        false => rng.below(6) as u32,
    };
    let mut files: Vec<(String, Ino)> = Vec::new();
    for step in 0..steps {
        let at = rng.below(files.len().max(1) as u64) as usize;
        match (rng.below(12), files.get(at).cloned()) {
            (0..=2, _) | (_, None) => {
                let name = format!("n{seed}-{step}");
                let kind = if rng.percent(20) { Kind::Dir } else { Kind::File };
                let new = owned(kind, owner(&mut rng));
                let made = fs.create(&service(), root(fs), name.as_bytes(), &new).expect("room");
                if kind == Kind::File {
                    files.push((name, made.node.ino));
                }
            }
            (3 | 4, Some((_, ino))) => {
                let (offset, len) = (rng.below(90_000), 1 + rng.below(70_000));
                let bytes = vec![7; len as usize];
                fs.write(&service(), ino, offset, &mut &bytes[..]).expect("room");
            }
            (5, Some((_, ino))) => {
                let set = SetAttr { size: Some(rng.below(100_000)), ..SetAttr::default() };
                fs.setattr(&service(), ino, &set).expect("changes");
            }
            (6, Some((_, ino))) => give(fs, ino, owner(&mut rng)),
            (7, Some((_, ino))) => {
                let keeps = Fallocate::Allocate { keep_size: rng.percent(50) };
                let mode = if rng.percent(50) { Fallocate::PunchHole } else { keeps };
                let (offset, len) = (rng.below(90_000), 1 + rng.below(50_000));
                fs.fallocate(&service(), ino, mode, offset, len).expect("room");
            }
            (8, Some((name, _))) => {
                // What is left under the old name is the caller's.
                let (uid, gid) = (Uid(owner(&mut rng)), Gid(owner(&mut rng)));
                let (cred, moved) = (Cred { uid, gid, ..Cred::root() }, format!("{name}+"));
                let (ctx, mode) = (OpCtx::as_user(&cred), RenameMode::Whiteout);
                let dir = root(fs);
                fs.rename(&ctx, dir, name.as_bytes(), dir, moved.as_bytes(), mode).expect("room");
                files[at].0 = moved;
            }
            (9 | 10, Some((_, ino))) => {
                // With ea_inode a large one lies in an inode of its own.
                let (name, len) = (format!("user.{}", rng.below(3)), rng.below(20_000) as usize);
                let set = match rng.percent(70) {
                    true => fs.setxattr(&service(), ino, name.as_bytes(), &vec![3; len], ANY),
                    false => fs.removexattr(&service(), ino, name.as_bytes()),
                };
                let refused = [Some(Errno::ENOSPC), Some(Errno::ENODATA), None];
                assert!(refused.contains(&set.as_ref().err().copied()), "{set:?}");
            }
            (_, Some((name, ino))) => {
                fs.unlink(&service(), root(fs), name.as_bytes()).expect("there");
                fs.forget(ino);
                files.swap_remove(at);
            }
        }
    }
}

#[test]
fn what_owners_take_is_kept_as_e2fsck_counts_it() {
    if !common::have_tools() {
        return;
    }
    for (seed, args) in FORMATS.iter().enumerate() {
        let device = common::make(64, args);
        for round in 0..2 {
            let fs = common::open(&device);
            assert_eq!(fs.read_only_reasons, Vec::<String>::new(), "{args:?}");
            work(&fs, 10 * seed as u64 + round, 250);
            assert_eq!(fs.stopped_by(), None, "{args:?}");
            fs.close().expect("closes");
            assert_eq!(common::complaints(&device), None, "{args:?}");
        }
    }
}

/// What e2fsck would say of wrong quotas, so that it is known to look.
#[test]
fn e2fsck_tells_wrong_quotas() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, FORMATS[0]);
    let fs = common::open(&device);
    fs.create(&service(), root(&fs), b"f", &owned(Kind::File, 1000)).expect("room");
    fs.close().expect("closes");
    let image = common::save(&device);
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-w", "-R", "set_inode_field f uid 1001"]).arg(image.path());
    assert!(debugfs.output().expect("debugfs runs").status.success());
    let changed = common::load(&std::fs::read(image.path()).expect("readable"));
    let said = common::complaints(&changed).expect("a complaint");
    assert!(said.contains("QUOTA") || said.contains("quota"), "{said}");
}

/// Images whose directories belong to a project: what is made there does, what is moved or linked
/// there from another project is not.
#[test]
fn projects_are_inherited_and_not_left_by_names() {
    if !common::have_tools() {
        return;
    }
    let device = common::make(64, FORMATS[1]);
    let fs = common::open(&device);
    let dir = fs.create(&service(), root(&fs), b"dir", &node(Kind::Dir, 0o755)).expect("room");
    let file = fs.create(&service(), root(&fs), b"file", &node(Kind::File, 0o644)).expect("room");
    fs.close().expect("closes");
    let image = common::save(&device);
    // 0x20000000: what is made in it belongs to its project; 0x80000: extents.
    for field in ["projid 77", "flags 0x20080000"] {
        let mut debugfs = Command::new("debugfs");
        debugfs.args(["-w", "-R", &format!("set_inode_field dir {field}")]).arg(image.path());
        assert!(debugfs.output().expect("debugfs runs").status.success());
    }
    let mended = Command::new("e2fsck").arg("-fy").arg(image.path()).output();
    assert!(mended.expect("e2fsck runs").status.code().is_some_and(|code| code <= 1));
    let device = common::load(&std::fs::read(image.path()).expect("readable"));
    let fs = common::open(&device);
    let (dir, file) = (dir.node.ino, file.node.ino);
    let inner = fs.create(&service(), dir, b"inner", &node(Kind::Dir, 0o755)).expect("room");
    let new = fs.create(&service(), inner.node.ino, b"new", &owned(Kind::File, 9)).expect("room");
    fs.write(&service(), new.node.ino, 0, &mut &[1; 50_000][..]).expect("room");
    let refused = fs.link(&service(), file, dir, b"linked").err();
    assert_eq!(refused, Some(Errno::EXDEV));
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Whiteout] {
        let refused = fs.rename(&service(), root(&fs), b"file", dir, b"moved", mode).err();
        assert_eq!(refused, Some(Errno::EXDEV), "{mode:?}");
    }
    let refused = fs.rename(&service(), root(&fs), b"file", dir, b"inner", RenameMode::Exchange);
    assert_eq!(refused.err(), Some(Errno::EXDEV));
    // From it to where projects do not matter.
    fs.rename(&service(), inner.node.ino, b"new", root(&fs), b"out", RenameMode::Replace)
        .expect("moved");
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
    let image = common::save(&device);
    let shown = Command::new("debugfs").args(["-R", "stat out"]).arg(image.path()).output();
    let shown = String::from_utf8_lossy(&shown.expect("debugfs runs").stdout).into_owned();
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.windows(2).any(|two| two == ["Project:", "77"]), "{shown}");
}

/// Limits in files of their own, as without the feature, are not kept: such an image is left alone.
#[test]
fn limits_in_files_of_their_own_make_an_image_read_only() {
    if !common::have_tools() {
        return;
    }
    for option in ["usrquota", "grpquota", "usrjquota=aquota.user"] {
        let device = common::make(64, &["-t", "ext4", "-b", "4096"]);
        let image = common::save(&device);
        let tuned = Command::new("tune2fs")
            .args(["-E", &format!("mount_opts={option}")])
            .arg(image.path())
            .output();
        assert!(tuned.expect("tune2fs runs").status.success());
        let device = common::load(&std::fs::read(image.path()).expect("readable"));
        let fs = common::open(&device);
        let why = fs.read_only_reasons.join(", ");
        assert!(why.contains("quotas in files"), "{option}: {why}");
    }
}
