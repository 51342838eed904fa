//! Names of equal hash: a leaf of the tree may end between two of them, and goes on in the next.

use std::collections::BTreeSet;
use std::process::Command;

use polylane_base::Ino;
use polylane_ext4::Ext4;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{DirEntry, FileSystem, Kind};

use crate::{Image, can_mount, common, new};

/// Blocks of 1 KiB hold four of these names. The seed makes pairs of them alike.
const FORMAT: &[&str] =
    &["-t", "ext4", "-b", "1024", "-E", "hash_seed=706f6c79-6c61-4e65-8c61-6e656c616e65"];
/// Found by trying: the half MD4 of both names of each pair is equal in all of its major 32 bits.
const PAIRS: [[u32; 2]; 24] = [
    [78_377, 159_539],
    [11_402, 60_628],
    [110_233, 339_168],
    [87_816, 365_844],
    [30_576, 43_856],
    [153_090, 282_122],
    [40_075, 59_852],
    [93_602, 220_956],
    [19_450, 336_109],
    [84_057, 342_745],
    [49_232, 270_789],
    [34_957, 214_747],
    [60_820, 330_408],
    [19_520, 229_405],
    [39_367, 245_473],
    [200_109, 206_656],
    [19_804, 332_309],
    [194_024, 254_318],
    [195_362, 324_052],
    [132_072, 384_126],
    [22_165, 144_783],
    [48_933, 151_145],
    [167_171, 193_583],
    [206_997, 246_771],
];
/// In these steps through the 48 names each comes once.
const STEPS: [usize; 8] = [1, 5, 7, 11, 13, 17, 19, 23];

fn name(number: u32) -> String {
    format!("{number:06}-{}", "n".repeat(203))
}

fn names(step: usize) -> impl Iterator<Item = String> {
    let all = PAIRS.as_flattened();
    (0..all.len()).map(move |at| name(all[at * step % all.len()]))
}

fn listed(fs: &Ext4, dir: Ino) -> Vec<String> {
    let mut found = Vec::new();
    let mut each = |entry: DirEntry<'_>| {
        found.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    fs.readdir(&OpCtx::service(), dir, 0, &mut each).expect("lists");
    found
}

/// Leaves that go on where the one before ends, by debugfs: their hash is odd.
fn continued(image: &Image, dir: &str) -> usize {
    let done = Command::new("debugfs")
        .args(["-R", &format!("htree_dump /{dir}")])
        .arg(image.file.borrow().path())
        .output()
        .expect("debugfs runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let hashes =
        said.lines().filter_map(|line| line.split_once("Hash 0x")?.1.split([',', ' ']).next());
    hashes.filter(|hash| u32::from_str_radix(hash, 16).is_ok_and(|hash| hash & 1 == 1)).count()
}

#[test]
fn names_of_equal_hash_are_found_by_both() {
    if !common::have_tools() {
        return;
    }
    let image = Image::new(16, FORMAT);
    image.ours(|fs| {
        let root = fs.root().expect("root").ino;
        for step in STEPS {
            let dir = format!("ours{step}");
            let dir = fs
                .create(&OpCtx::service(), root, dir.as_bytes(), &new(Kind::Dir, 0o755, b""))
                .expect("new");
            for name in names(step) {
                let made = fs.create(
                    &OpCtx::service(),
                    dir.node.ino,
                    name.as_bytes(),
                    &new(Kind::File, 0o600, b""),
                );
                made.expect("room");
            }
            let found = listed(fs, dir.node.ino);
            let once: BTreeSet<String> = found.iter().cloned().collect();
            assert_eq!((found.len(), once), (48, names(1).collect()));
        }
    });
    let ours: usize = STEPS.iter().map(|step| continued(&image, &format!("ours{step}"))).sum();
    assert!(ours > 0, "no leaf ends between two of a pair");
    if !can_mount() {
        return;
    }
    {
        let mount = image.mount();
        for step in STEPS {
            let (ours, theirs) = (format!("ours{step}"), format!("theirs{step}"));
            let (ours, theirs) = (mount.path().join(ours), mount.path().join(theirs));
            std::fs::create_dir(&theirs).expect("made");
            for name in names(step) {
                assert!(ours.join(&name).is_file(), "the kernel does not find {name}");
                std::fs::write(theirs.join(&name), b"").expect("room");
            }
            // One of each pair goes: the other one is to be found all the same.
            for [first, _] in PAIRS {
                std::fs::remove_file(ours.join(name(first))).expect("is there");
            }
        }
    }
    let theirs: usize = STEPS.iter().map(|step| continued(&image, &format!("theirs{step}"))).sum();
    assert!(theirs > 0, "no leaf of the kernel's ends between two of a pair");
    image.ours(|fs| {
        let root = fs.root().expect("root").ino;
        for step in STEPS {
            let dir = |name: String| {
                fs.lookup(&OpCtx::service(), root, name.as_bytes()).expect("is there").ino
            };
            let (ours, theirs) = (dir(format!("ours{step}")), dir(format!("theirs{step}")));
            assert_eq!((listed(fs, ours).len(), listed(fs, theirs).len()), (24, 48));
            for name in names(step) {
                fs.lookup(&OpCtx::service(), theirs, name.as_bytes()).expect("is there");
            }
            for [first, second] in PAIRS {
                assert!(fs.lookup(&OpCtx::service(), ours, name(first).as_bytes()).is_err());
                fs.unlink(&OpCtx::service(), ours, name(second).as_bytes()).expect("is there");
                fs.unlink(&OpCtx::service(), theirs, name(first).as_bytes()).expect("is there");
            }
        }
    });
}
