//! Names and inodes: links, unlinked files that are open, the dentry and the inode table.

use polylane_base::{Errno, TestClock};
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::fs::{AccessTimes, FileSystem, NewNode};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Cred, Kind, Node, OpCtx, Vfs};
use std::sync::Arc;

use crate::common::*;

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    for lane in [lane(), cached()] {
        let file = lane.file("f", b"before");
        let second = lane.open("f", O_RDWR).unwrap();
        lane.unlink("f").unwrap();
        assert_eq!(errno(lane.get("f")), Some(Errno::ENOENT));
        assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().nlink, 0);
        write(&file, 6, b" after");
        assert_eq!(read(&second, 0, 99), b"before after");
        let forgotten = lane.fs.calls(Call::Forget);
        drop(file);
        assert_eq!(lane.fs.calls(Call::Forget), forgotten);
        drop(second);
        assert_eq!(lane.fs.calls(Call::Forget), forgotten + 1, "freed with its last user");
        assert_eq!(lane.vfs.stats().inodes, 1);
        assert_eq!(lane.vfs.stats().pages, 0);
        assert_eq!(lane.vfs.stats().dirty_bytes, 0);
    }
}

#[test]
fn hard_links_name_one_inode() {
    let lane = lane();
    let cred = Cred::root();
    let file = lane.file("f", b"x");
    lane.dir("d");
    let d = lane.get("d").unwrap();
    lane.vfs.link(&OpCtx::as_user(&cred), file.node(), &d, b"g").unwrap();
    assert_eq!(lane.get("d/g").unwrap().ino(), file.node().ino());
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().nlink, 2);
    assert_eq!(lane.vfs.link(&OpCtx::as_user(&cred), file.node(), &d, b"g"), Err(Errno::EEXIST));
    assert_eq!(lane.vfs.link(&OpCtx::as_user(&cred), &d, &lane.root, b"d2"), Err(Errno::EPERM));
    lane.unlink("f").unwrap();
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().nlink, 1);
    lane.unlink("d/g").unwrap();
    assert_eq!(
        lane.vfs.link(&OpCtx::as_user(&cred), file.node(), &lane.root, b"f"),
        Err(Errno::ENOENT)
    );
}

#[test]
fn unlink_and_rmdir_keep_to_their_kinds() {
    let lane = lane();
    lane.dir("d");
    lane.dir("d/e");
    lane.file("f", b"");
    lane.link("l", "d");
    assert_eq!(lane.unlink("d"), Err(Errno::EISDIR));
    assert_eq!(lane.rmdir("f"), Err(Errno::ENOTDIR));
    assert_eq!(lane.rmdir("l"), Err(Errno::ENOTDIR));
    assert_eq!(lane.rmdir("d"), Err(Errno::ENOTEMPTY));
    assert_eq!(lane.rmdir("none"), Err(Errno::ENOENT));
    assert_eq!(lane.unlink("l"), Ok(()));
    assert_eq!(lane.vfs.rmdir(&OpCtx::service(), &lane.root, b"."), Err(Errno::EINVAL));
    assert_eq!(lane.vfs.rmdir(&OpCtx::service(), &lane.root, b".."), Err(Errno::ENOTEMPTY));
    let gone = lane.open("d/e", O_RDONLY).unwrap();
    lane.rmdir("d/e").unwrap();
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), gone.node()).unwrap().nlink, 0);
    assert_eq!(gone.readdir(&OpCtx::service(), 0, &mut |_| true), Err(Errno::ENOENT));
    lane.rmdir("d").unwrap();
}

#[test]
fn the_dentry_table_answers_and_follows_every_change() {
    let lane = lane();
    lane.dir("d");
    lane.file("d/f", b"x");
    let looks = || lane.fs.calls(Call::Look);
    let quiet = |path: &str, there: bool| {
        let before = looks();
        assert_eq!(lane.get(path).is_ok(), there, "{path}");
        assert_eq!(looks(), before, "{path} was not known");
    };
    quiet("d/f", true);
    assert!(lane.get("d/none").is_err());
    quiet("d/none", false);
    lane.file("d/none", b"");
    quiet("d/none", true);
    lane.rename("d/none", "d/moved", 0).unwrap();
    quiet("d/moved", true);
    assert!(lane.get("d/none").is_err());
    lane.rename("d", "e", 0).unwrap();
    quiet("e/f", true);
    assert!(lane.get("d/f").is_err());
    lane.rename("e/f", "e/moved", polylane_vfs::RENAME_EXCHANGE).unwrap();
    quiet("e/f", true);
    lane.unlink("e/f").unwrap();
    assert!(lane.get("e/f").is_err());
    // A failed change keeps what is known.
    lane.fs.fail_once(Call::Change, 0, Errno::EIO);
    assert_eq!(lane.unlink("e/moved"), Err(Errno::EIO));
    quiet("e/moved", true);
}

#[test]
fn a_directory_that_comes_again_under_its_old_name_is_empty() {
    let lane = lane();
    lane.dir("d");
    lane.file("d/f", b"x");
    assert!(lane.get("d/none").is_err());
    lane.unlink("d/f").unwrap();
    lane.rmdir("d").unwrap();
    lane.dir("d");
    assert!(lane.get("d/f").is_err());
    lane.file("d/none", b"x");
    assert!(lane.get("d/none").is_ok());
}

/// memfs as somebody else sees it: changes under a volatile lane.
#[test]
fn a_volatile_file_system_is_asked_every_time() {
    let memfs = Arc::new(MemFs::new(1 << 20, 100, Arc::new(TestClock::default())));
    let mut character = memfs.character();
    character.volatile = true;
    let vfs = Vfs::new(Faulty::with_character(memfs.clone(), character), options()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root());
    let get = |path: &str| vfs.resolve(&OpCtx::as_user(&cred), &root, path.as_bytes(), true);
    assert!(get("f").is_err());
    let (uid, gid) = (cred.uid, cred.gid);
    let new = NewNode { uid, gid, ..NewNode::new(Kind::File, 0o600) };
    let made = memfs.create(&OpCtx::service(), root.ino(), b"f", &new).unwrap().node;
    let node = get("f").unwrap();
    assert_eq!(node.ino(), made.ino);
    memfs.write(&OpCtx::service(), made.ino, 0, &mut &b"behind"[..]).unwrap();
    assert_eq!(vfs.getattr(&OpCtx::service(), &node).unwrap().size, 6);
    let file = vfs.open(&OpCtx::as_user(&cred), &node, O_RDWR | O_APPEND).unwrap();
    assert_eq!(file.write(&OpCtx::as_user(&cred), None, &mut &b"!"[..]).unwrap().end, 7);
    memfs.unlink(&OpCtx::service(), root.ino(), b"f").unwrap();
    assert!(get("f").is_err());
}

#[test]
fn tables_are_bounded_and_what_leaves_them_is_forgotten_once() {
    const FILES: u64 = 100_000;
    let lane = lane();
    for n in 0..FILES {
        lane.open(&format!("file-{n}"), O_RDWR | O_CREAT).unwrap();
    }
    let stats = lane.vfs.stats();
    assert!(stats.dentries <= 1 << 16, "{stats:?}");
    assert!(stats.inodes <= (1 << 16) + 1, "{stats:?}");
    assert_eq!(lane.fs.calls(Call::Forget), FILES + 1 - stats.inodes);
    // What was forgotten is found again.
    for n in (0..FILES).step_by(997) {
        assert!(lane.get(&format!("file-{n}")).is_ok());
    }
    let forgotten_by = lane.fs.calls(Call::Forget);
    let inodes = lane.vfs.stats().inodes;
    let (fs, vfs) = (lane.fs.clone(), lane.vfs.clone());
    drop(lane);
    drop(vfs);
    assert_eq!(fs.calls(Call::Forget), forgotten_by + inodes, "all of them at the end");
}

#[test]
fn long_names_and_their_limit() {
    let lane = lane();
    for len in [1, 29, 30, 31, 255] {
        let name = "n".repeat(len);
        lane.file(&name, b"");
        let forgotten = lane.fs.calls(Call::Look);
        assert!(lane.get(&name).is_ok());
        assert_eq!(lane.fs.calls(Call::Look), forgotten);
    }
    let new = polylane_vfs::Create { kind: Kind::File, perm: 0, umask: 0, rdev: 0, target: b"" };
    for (name, expected) in [
        (&[b'n'; 256][..], Errno::ENAMETOOLONG),
        (b"", Errno::ENOENT),
        (b".", Errno::EEXIST),
        (b"a/b", Errno::EINVAL),
        (b"a\0", Errno::EINVAL),
    ] {
        let made = lane.vfs.create(&OpCtx::service(), &lane.root, name, &new);
        assert_eq!(made.err(), Some(expected), "{name:?}");
    }
    let long = vec![b't'; 4096];
    for (target, expected) in
        [(&b""[..], Errno::ENOENT), (&long, Errno::ENAMETOOLONG), (b"a\0b", Errno::EINVAL)]
    {
        let new = polylane_vfs::Create { kind: Kind::Symlink, target, ..new };
        let made = lane.vfs.create(&OpCtx::service(), &lane.root, b"link", &new);
        assert_eq!(made.err(), Some(expected));
    }
}

/// A chain of directories that only their children keep alive ends without recursion.
#[test]
fn a_very_deep_tree_goes_without_a_deep_stack() {
    const DEPTH: usize = 100_000;
    let lane = lane();
    let cred = Cred::root();
    let new = polylane_vfs::Create { kind: Kind::Dir, perm: 0o755, umask: 0, rdev: 0, target: b"" };
    let mut at = lane.root.clone();
    for _ in 0..DEPTH {
        at = lane.vfs.create(&OpCtx::as_user(&cred), &at, b"d", &new).unwrap();
    }
    assert_eq!(
        lane.vfs.rename(&OpCtx::as_user(&cred), &lane.root, b"d", &at, b"x", 0),
        Err(Errno::EINVAL)
    );
    let (fs, vfs) = (lane.fs.clone(), lane.vfs.clone());
    drop((lane, vfs));
    let before = fs.calls(Call::Forget);
    let end = std::thread::Builder::new().stack_size(128 << 10).spawn(move || drop(at)).unwrap();
    end.join().unwrap();
    assert_eq!(fs.calls(Call::Forget), before + DEPTH as u64 + 1);
}

#[test]
fn directory_streams_are_stable_and_begin_with_the_dots() {
    let lane = lane();
    lane.dir("d");
    for n in 0..100 {
        lane.file(&format!("d/f{n}"), b"");
    }
    let dir = lane.open("d", O_RDONLY).unwrap();
    let (mut seen, mut from) = (Vec::new(), 0);
    loop {
        let (before, mut taken) = (seen.len(), 0);
        dir.readdir(&OpCtx::service(), from, &mut |entry| {
            if taken == 7 {
                return false;
            }
            (taken, from) = (taken + 1, entry.next);
            seen.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
        // What was seen goes, something new comes.
        if let Some(name) = seen.last().filter(|name| name.starts_with('f')) {
            lane.unlink(&format!("d/{name}")).unwrap();
            lane.file(&format!("d/new-{name}"), b"");
        }
    }
    assert_eq!(seen[..2], [".", ".."]);
    let old: Vec<_> = seen.iter().filter(|name| name.starts_with('f')).collect();
    assert_eq!(old.len(), 100, "no old name twice");
    assert_eq!(old.iter().collect::<std::collections::BTreeSet<_>>().len(), 100, "every one");
}

#[test]
fn reading_moves_the_access_time_as_relatime_says() {
    for lane in [lane(), cached()] {
        let file = lane.file("f", b"data");
        let stat = || lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
        let written = stat();
        read(&file, 0, 1);
        let first = stat();
        assert!(first.atime > written.atime);
        assert_eq!(
            (first.mtime, first.ctime),
            (written.mtime, written.ctime),
            "nothing else moves"
        );
        read(&file, 0, 1);
        assert_eq!(stat().atime, first.atime, "already newer than the data");
        write(&file, 0, b"x");
        let quiet = lane.open("f", O_RDONLY | O_NOATIME).unwrap();
        read(&quiet, 0, 1);
        assert_eq!(stat().atime, first.atime, "O_NOATIME");
        read(&file, 0, 1);
        assert!(stat().atime > first.atime);
        let dir = lane.open(".", O_RDONLY).unwrap();
        let before = lane.vfs.getattr(&OpCtx::service(), &lane.root).unwrap().atime;
        names(&dir);
        assert!(lane.vfs.getattr(&OpCtx::service(), &lane.root).unwrap().atime > before);
    }
}

#[test]
fn reads_move_only_the_access_times_that_they_are_to() {
    for (times, of_files, of_dirs) in [
        (AccessTimes::Relatime, true, true),
        (AccessTimes::NotOfDirs, true, false),
        (AccessTimes::Never, false, false),
    ] {
        for cache_data in [false, true] {
            let lane = lane_with(options(), |character| {
                (character.access_times, character.cache_data) = (times, cache_data);
            });
            let (file, dir) = (lane.file("f", b"data"), lane.open(".", O_RDONLY).unwrap());
            let link = lane.link("l", "f");
            let atime = |node: &Node| lane.vfs.getattr(&OpCtx::service(), node).unwrap().atime;
            let all = [file.node(), &lane.root, &link];
            let before = all.map(atime);
            read(&file, 0, 1);
            names(&dir);
            lane.vfs.readlink(&OpCtx::service(), &link).unwrap();
            let moved = std::array::from_fn(|which| atime(all[which]) > before[which]);
            assert_eq!(moved, [of_files, of_dirs, of_files], "{times:?} {cache_data}");
        }
    }
}
