//! The libservice on a cluster: what every file system must do, and two hosts on one directory.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the tests
//! say so and pass: `make test-ceph` starts one.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{CTX, cluster, directory, directory_of, mount, settings};
use polylane_base::{Errno, Gid, Uid};
use polylane_ceph::{CephFs, Client, Failure, Settings, TimedFs};
use polylane_testkit::fs_suite::{self, Can, node};
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode, SetAttr, Sink};

fn fresh(cluster: &std::path::Path) -> CephFs {
    mount(settings(cluster, &directory(cluster)))
}

/// A new directory by a client that is there: one for each check takes most of its time.
fn part(client: &Client) -> CephFs {
    let name = directory_of(&client.files(b"/").unwrap());
    client.files(name.as_bytes()).unwrap()
}

/// What a cluster has not: see the header of `fs`.
const CAN: Can = Can {
    unnamed: false,
    fallocate: false,
    whiteout: false,
    exact_holes: false,
    rename_flags: false,
    ..Can::ALL
};

#[test]
fn conforms() {
    let Some(cluster) = cluster() else { return };
    let client = settings(&cluster, "/").prepare().unwrap().mount().unwrap();
    let mut make = || Arc::new(part(&client)) as Arc<dyn FileSystem>;
    fs_suite::run(CAN, &mut make);
}

#[test]
fn conforms_with_calls_that_end_in_time() {
    let Some(cluster) = cluster() else { return };
    let client = settings(&cluster, "/").prepare().unwrap().mount().unwrap();
    let timed = || TimedFs::new(part(&client), Duration::from_secs(60));
    let mut make = || Arc::new(timed()) as Arc<dyn FileSystem>;
    fs_suite::run(CAN, &mut make);
}

#[test]
fn two_clients_see_what_each_other_does() {
    let Some(cluster) = cluster() else { return };
    let root = directory(&cluster);
    let (one, other) = (mount(settings(&cluster, &root)), mount(settings(&cluster, &root)));
    let (dir, dir_too) = (one.root().unwrap().ino, other.root().unwrap().ino);
    assert_eq!(other.lookup(&CTX, dir_too, b"f").err(), Some(Errno::ENOENT));
    let file = one.create(&CTX, dir, b"f", &node(Kind::File, 0o644)).unwrap().node;
    let seen = other.lookup(&CTX, dir_too, b"f").unwrap();
    assert_eq!(seen.ino, file.ino);
    for (round, (writer, reader)) in
        [(&one, &other), (&other, &one), (&one, &other)].into_iter().enumerate()
    {
        let text = format!("round {round}, {}", "x".repeat(round * 5000));
        assert_eq!(writer.write(&CTX, file.ino, 0, &mut text.as_bytes()), Ok(text.len()));
        let mut read = vec![0; text.len()];
        reader.read(&CTX, file.ino, 0, text.len(), &mut read.as_mut_slice()).unwrap();
        assert_eq!(read, text.as_bytes(), "round {round}");
        assert_eq!(reader.getattr(&CTX, file.ino).unwrap().size, text.len() as u64);
    }
    let owner = SetAttr { uid: Some(Uid(7)), gid: Some(Gid(8)), ..SetAttr::default() };
    other.setattr(&CTX, file.ino, &owner).unwrap();
    let attr = one.getattr(&CTX, file.ino).unwrap();
    assert_eq!((attr.uid, attr.gid), (Uid(7), Gid(8)));
    other.unlink(&CTX, dir_too, b"f").unwrap();
    assert_eq!(one.lookup(&CTX, dir, b"f").err(), Some(Errno::ENOENT));
}

/// Takes bytes by `put` alone, as a reply to the kernel does.
struct Put(Vec<u8>);

impl Sink for Put {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.put(at, &vec![0; len]);
    }
}

/// Also where the file ends within a step, and where it is not in the client's cache.
#[test]
fn what_is_stored_where_it_is_taken_is_what_is_handed_over() {
    let Some(cluster) = cluster() else { return };
    let root = directory(&cluster);
    let fs = mount(settings(&cluster, &root));
    let dir = fs.root().unwrap().ino;
    let file = fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap().node;
    let bytes: Vec<u8> = (0..300_001_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(fs.write(&CTX, file.ino, 0, &mut &bytes[..]), Ok(bytes.len()));
    fs.sync(&CTX).unwrap();
    let anew = mount(settings(&cluster, &root));
    let found = anew.lookup(&CTX, anew.root().unwrap().ino, b"f").unwrap().ino;
    for (fs, ino) in [(&anew, found), (&fs, file.ino)] {
        for (offset, len) in
            [(0, 400_000), (1, 65_536), (65_535, 131_074), (299_990, 64), (300_001, 9)]
        {
            let expected = &bytes[offset.min(bytes.len())..(offset + len).min(bytes.len())];
            let (mut filled, mut put) = (vec![7; len], Put(vec![7; len]));
            let got = fs.read(&CTX, ino, offset as u64, len, &mut filled.as_mut_slice());
            assert_eq!(got, Ok(expected.len()), "{len} bytes at {offset}");
            assert_eq!(fs.read(&CTX, ino, offset as u64, len, &mut put), got);
            for (way, read) in [("filled", &filled), ("put", &put.0)] {
                assert!(read[..expected.len()] == *expected, "{way}: {len} bytes at {offset}");
                assert!(read[expected.len()..].iter().all(|&byte| byte == 7), "{way}: the rest");
            }
        }
    }
}

#[test]
fn a_file_without_a_name_keeps_its_data_until_it_is_forgotten() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let dir = fs.root().unwrap().ino;
    let file = fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap().node;
    fs.write(&CTX, file.ino, 0, &mut &b"still here"[..]).unwrap();
    fs.unlink(&CTX, dir, b"f").unwrap();
    // Which changes the handle that its data lives on by.
    fs.fsync(&CTX, file.ino, false).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let mut read = [0; 10];
    assert_eq!(fs.read(&CTX, file.ino, 0, 10, &mut &mut read[..]), Ok(10));
    assert_eq!(&read, b"still here");
    assert_eq!(fs.getattr(&CTX, file.ino).unwrap().nlink, 0);
    fs.forget(file.ino);
    assert_eq!(fs.getattr(&CTX, file.ino).err(), Some(Errno::ESTALE));
}

/// A name that goes while the VFS holds its inode; only a file has data that must live on.
#[test]
fn last_names_of_all_kinds_go_while_they_are_held() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let dir = fs.root().unwrap().ino;
    for kind in [Kind::File, Kind::Symlink, Kind::Fifo, Kind::Socket] {
        let target: &[u8] = if kind == Kind::Symlink { b"nowhere" } else { b"" };
        let made = fs.create(&CTX, dir, b"x", &NewNode { target, ..node(kind, 0o600) }).unwrap();
        let gone = fs.unlink_last(&CTX, dir, b"x", &mut || false).unwrap();
        assert_eq!(gone.map(|last| last.is_freed), Some(false), "{kind:?}");
        assert_eq!(fs.lookup(&CTX, dir, b"x").err(), Some(Errno::ENOENT), "{kind:?}");
        fs.forget(made.node.ino);
    }
}

/// Also of the one that it was moved out of, which libcephfs does not tell by itself.
#[test]
fn directories_count_those_that_move_between_them() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let root = fs.root().unwrap().ino;
    let dirs = [b"a", b"b"].map(|name| {
        let made = fs.create(&CTX, root, name, &node(Kind::Dir, 0o700)).unwrap();
        made.node.ino
    });
    fs.create(&CTX, dirs[0], b"d", &node(Kind::Dir, 0o700)).unwrap();
    let links = |dir| fs.getattr(&CTX, dir).unwrap().nlink;
    assert_eq!(dirs.map(links), [3, 2]);
    let moved = fs.rename(&CTX, dirs[0], b"d", dirs[1], b"e", RenameMode::Replace).unwrap();
    assert_eq!((moved.from_dir.nlink, moved.to_dir.nlink), (2, 3));
    assert_eq!(dirs.map(links), [2, 3]);
}

#[test]
fn owners_and_modes_of_what_is_made_are_those_that_were_asked_for() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let dir = fs.root().unwrap().ino;
    for (name, kind) in [("f", Kind::File), ("d", Kind::Dir), ("p", Kind::Fifo)] {
        let new = NewNode { uid: Uid(11), gid: Gid(12), ..NewNode::new(kind, 0o2751) };
        let made = fs.create(&CTX, dir, name.as_bytes(), &new).unwrap().node;
        assert_eq!((made.uid, made.gid, made.perm), (Uid(11), Gid(12), 0o2751), "{name}");
    }
}

#[test]
fn a_directory_of_many_names_is_listed_in_pieces_of_any_length() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let dir = fs.root().unwrap().ino;
    let mut names: Vec<String> = (0..300).map(|number| format!("name-{number:03}")).collect();
    for name in &names {
        fs.create(&CTX, dir, name.as_bytes(), &node(Kind::File, 0o600)).unwrap();
    }
    names.sort();
    for piece in [1, 2, 7, 100, 1000] {
        let (mut listed, mut from) = (Vec::new(), 0);
        loop {
            let before = listed.len();
            fs.readdir(&CTX, dir, from, &mut |entry| {
                if listed.len() - before == piece {
                    return false;
                }
                listed.push(String::from_utf8(entry.name.to_vec()).unwrap());
                from = entry.next;
                true
            })
            .unwrap();
            if listed.len() == before {
                break;
            }
        }
        listed.sort();
        assert_eq!(listed, names, "pieces of {piece}");
    }
}

/// Also of a file system whose client was dropped, as a service does: other hosts may cache a file
/// again.
#[test]
fn a_handle_that_is_not_used_is_closed() {
    let Some(cluster) = cluster() else { return };
    let fs = fresh(&cluster);
    let dir = fs.root().unwrap().ino;
    let made = fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap();
    assert_eq!(fs.open_handles(), 1);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while fs.open_handles() > 0 {
        assert!(std::time::Instant::now() < end, "it stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs.getattr(&CTX, made.node.ino).unwrap().size, 0);
}

#[test]
fn what_is_not_there_is_named() {
    let Some(cluster) = cluster() else { return };
    let mounted = |settings: Settings| {
        let prepared = settings.prepare().unwrap();
        prepared.mount().map(drop).unwrap_err()
    };
    let nowhere = Settings { fs: Some("nope".to_string()), ..settings(&cluster, "/") };
    assert_eq!(mounted(nowhere), Failure::Mount(Errno::ENOENT));
    assert_eq!(mounted(settings(&cluster, "/nope")), Failure::Mount(Errno::ENOENT));
    let key = "AQBBBBBBBBBBBBAABBBBBBBBBBBBBBBBBBBBBA==".to_string();
    let stranger = Settings { key: Some(key), ..settings(&cluster, "/") };
    assert!(matches!(mounted(stranger), Failure::Mount(_)));
}
