//! An answer from below comes late: what was learned meanwhile stays.

use std::sync::Arc;
use std::thread;

use polylane_base::{Ino, SystemClock, Uid};
use polylane_testkit::fault::{Call, Faulty};
use polylane_testkit::fs_suite::node;
use polylane_vfs::OpCtx;
use polylane_vfs::cached::{Cached, Mode};
use polylane_vfs::fs::{FileSystem, Kind, RenameMode, SetAttr};

use crate::{MODES, memfs, settings};

const BYTES: [u8; 10_000] = [7; 10_000];

fn ctx() -> OpCtx<'static> {
    OpCtx::service()
}

/// One call is answered after a write to the same file and its way below.
fn late(mode: Mode, volatile: bool, class: Call, call: fn(&Cached, Ino)) {
    let below = if volatile { Faulty::volatile(memfs()) } else { Faulty::new(memfs()) };
    let fs = Cached::new(below.clone(), settings(mode, Arc::new(SystemClock))).unwrap();
    let root = fs.root().unwrap().ino;
    let ino = fs.create(&ctx(), root, b"f", &node(Kind::File, 0o644)).unwrap().node.ino;
    let other = fs.create(&ctx(), root, b"other", &node(Kind::File, 0o644)).unwrap().node.ino;
    fs.link(&ctx(), ino, root, b"second").unwrap();
    below.keep_answer_back(class);
    thread::scope(|scope| {
        scope.spawn(|| call(&fs, root));
        below.await_kept_back();
        fs.write(&ctx(), ino, 0, &mut &BYTES[..]).unwrap();
        fs.fsync(&ctx(), ino, false).unwrap();
        below.answer();
    });
    assert_eq!(fs.getattr(&ctx(), ino).unwrap().size, BYTES.len() as u64);
    let mut bytes = vec![0; 20_000];
    let count = fs.read(&ctx(), ino, 0, 20_000, &mut bytes.as_mut_slice()).unwrap();
    assert_eq!(bytes[..count], BYTES, "{mode:?}, volatile: {volatile}");
    assert_eq!(fs.getattr(&ctx(), other).unwrap().size, 0);
}

fn in_all(class: Call, call: fn(&Cached, Ino)) {
    for mode in MODES {
        late(mode, false, class, call);
        late(mode, true, class, call);
    }
}

#[test]
fn the_answer_of_a_rename() {
    in_all(Call::Change, |fs, root| {
        fs.rename(&ctx(), root, b"f", root, b"to", RenameMode::Replace).unwrap();
    });
}

#[test]
fn the_answer_of_a_rename_that_replaces_a_name_of_the_file() {
    in_all(Call::Change, |fs, root| {
        let moved = fs.rename(&ctx(), root, b"other", root, b"f", RenameMode::Replace).unwrap();
        assert_eq!(moved.other.map(|other| other.nlink), Some(1));
    });
}

#[test]
fn the_answer_of_an_exchange() {
    in_all(Call::Change, |fs, root| {
        fs.rename(&ctx(), root, b"other", root, b"f", RenameMode::Exchange).unwrap();
    });
}

#[test]
fn the_answer_of_an_unlink() {
    in_all(Call::Change, |fs, root| {
        assert_eq!(fs.unlink(&ctx(), root, b"f").unwrap().node.nlink, 1);
    });
}

/// Rights that were taken away meanwhile are not back.
#[test]
fn the_answer_of_a_rename_brings_no_rights_back() {
    for mode in MODES {
        let below = Faulty::new(memfs());
        let fs = Cached::new(below.clone(), settings(mode, Arc::new(SystemClock))).unwrap();
        let root = fs.root().unwrap().ino;
        let ino = fs.create(&ctx(), root, b"f", &node(Kind::File, 0o4755)).unwrap().node.ino;
        below.keep_answer_back(Call::Change);
        thread::scope(|scope| {
            scope.spawn(|| {
                fs.rename(&ctx(), root, b"f", root, b"to", RenameMode::Replace).unwrap();
            });
            below.await_kept_back();
            let set = SetAttr { perm: Some(0), uid: Some(Uid(1000)), ..SetAttr::default() };
            fs.setattr(&ctx(), ino, &set).unwrap();
            below.answer();
        });
        let attr = fs.lookup(&ctx(), root, b"to").unwrap();
        assert_eq!((attr.perm, attr.uid), (0, Uid(1000)), "{mode:?}");
    }
}

/// Where others change the files, names are looked up each time: also while the file is read.
#[test]
fn the_answer_of_a_lookup() {
    // More than is asked for below at once.
    const LEN: usize = 70 * 4096;
    for mode in MODES {
        let memfs = memfs();
        let below = Faulty::volatile(memfs.clone());
        let fs = Cached::new(below.clone(), settings(mode, Arc::new(SystemClock))).unwrap();
        let root = fs.root().unwrap().ino;
        let ino = fs.create(&ctx(), root, b"f", &node(Kind::File, 0o644)).unwrap().node.ino;
        fs.read(&ctx(), ino, 0, 1, &mut [0; 1].as_mut_slice()).unwrap();
        below.keep_answer_back(Call::Look);
        let mut bytes = vec![0; LEN];
        thread::scope(|scope| {
            let found = scope.spawn(|| fs.lookup(&ctx(), root, b"f").unwrap());
            below.await_kept_back();
            memfs.write(&ctx(), ino, 0, &mut &[7; LEN][..]).unwrap();
            below.block(Call::Read, true);
            scope.spawn(|| {
                let count = fs.read(&ctx(), ino, 0, LEN, &mut bytes.as_mut_slice());
                assert_eq!(count, Ok(LEN), "{mode:?}");
            });
            below.await_blocked(1);
            below.answer();
            let found = found.join().unwrap();
            below.block(Call::Read, false);
            assert_eq!(found.size, LEN as u64);
        });
        assert_eq!(bytes, [7; LEN], "{mode:?}");
    }
}
