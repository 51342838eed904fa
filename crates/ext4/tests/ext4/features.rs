//! Images with features that we lack: refused by name, or open for reading only. ext2 and ext3 are
//! read whole; what is written to them: `maps.rs`.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::{Errno, Ino, TestClock};
use polylane_ext4::{Error, Ext4, Options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, SetAttr};

use crate::common;

/// Opens what mke2fs makes of `args`.
fn open(mib: u64, args: &[&str]) -> Result<Ext4, Error> {
    let device = common::make(mib, args);
    Ext4::open(device, Arc::new(TestClock::default()), &Options::default())
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    if !common::have_tools() {
        return;
    }
    for feature in ["encrypt", "casefold", "mmp"] {
        let features = format!("{feature},^resize_inode");
        let refused = open(64, &["-t", "ext4", "-b", "4096", "-O", &features]).err();
        assert_eq!(refused, Some(Error::Incompatible(vec![feature.into()])), "{feature}");
    }
    for (name, args) in [
        ("bigalloc with blocks of 1 KiB", &["-b", "1024", "-O", "bigalloc"][..]),
        ("inline_data without extents", &["-O", "inline_data,^extents,^64bit"]),
        ("ea_inode without extents", &["-O", "ea_inode,^extents,^64bit"]),
        ("journal_dev", &["-O", "journal_dev"]),
        ("blocks of 8 KiB", &["-b", "8192"]),
        ("blocks of 64 KiB", &["-b", "65536"]),
    ] {
        let refused = open(64, &[&["-t", "ext4"], args].concat()).err();
        assert_eq!(refused, Some(Error::Incompatible(vec![name.into()])), "{name}");
    }
}

#[test]
fn what_cannot_be_written_is_read_only_and_says_why() {
    if !common::have_tools() {
        return;
    }
    for (feature, args) in [
        ("verity", &["-t", "ext4", "-b", "4096", "-O", "verity"][..]),
        ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc"]),
    ] {
        let fs = open(64, args).unwrap_or_else(|error| panic!("{feature}: {error}"));
        assert!(fs.read_only_reasons.iter().any(|reason| reason == feature), "{feature}");
        assert!(fs.character().read_only);
        let root = fs.root().expect("root").ino;
        let new = polylane_testkit::fs_suite::node(Kind::File, 0o600);
        assert_eq!(fs.create(&OpCtx::service(), root, b"new", &new).unwrap_err(), Errno::EROFS);
        assert_eq!(fs.rmdir(&OpCtx::service(), root, b"lost+found").unwrap_err(), Errno::EROFS);
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        assert_eq!(fs.setattr(&OpCtx::service(), root, &set).unwrap_err(), Errno::EROFS);
        assert_eq!(
            fs.lookup(&OpCtx::service(), root, b"lost+found").map(|attr| attr.kind),
            Ok(Kind::Dir)
        );
        fs.close().expect("nothing to do");
    }
}

/// A refusal says why, and who can help.
#[test]
fn what_is_not_written_and_must_be_replayed_is_refused_and_says_so() {
    if !common::have_tools() {
        return;
    }
    let image = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(image.path(), common::image(64, &["-t", "ext4", "-O", "verity"]))
        .expect("written");
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-w", "-R", "feature needs_recovery"]).arg(image.path());
    assert!(debugfs.output().expect("debugfs runs").status.success());
    let device = common::load(&std::fs::read(image.path()).expect("readable"));
    let refused = Ext4::open(device, Arc::new(TestClock::default()), &Options::default());
    let why = refused.err().expect("it needs what we do not do");
    let said = why.to_string();
    assert!(said.contains("journal must be replayed first") && said.contains("verity"), "{said}");
    assert!(said.contains("e2fsck") && !said.contains('\n'), "{said}");
    assert_eq!(Errno::from(why), Errno::EROFS);
}

#[test]
fn what_is_no_file_system_is_corrupt() {
    let device = common::load(&vec![0; 1 << 20]);
    let opened = Ext4::open(device, Arc::new(TestClock::default()), &Options::default());
    assert!(matches!(opened.err(), Some(Error::Corrupt(_))));
}

/// Files below `dir` that need every level of a block map, and a directory of many blocks.
fn furnish(dir: &Path) {
    let file = std::fs::File::create(dir.join("deep")).expect("made");
    // The last block of each level of a map with 1 KiB blocks, and what is around it.
    for kib in [0, 11, 12, 267, 268, 300, 65_803, 65_804, 65_805, 200_000] {
        file.write_all_at(format!("at {kib} KiB").as_bytes(), kib << 10).expect("written");
    }
    let mut long = Vec::new();
    (0..400_000u32).for_each(|number| long.extend(number.to_le_bytes()));
    std::fs::write(dir.join("long"), long).expect("written");
    std::fs::create_dir(dir.join("many")).expect("made");
    for number in 0..700 {
        let name = format!("many/name-{number}-{}", "n".repeat(number % 100));
        std::fs::write(dir.join(name), number.to_string()).expect("written");
    }
    std::os::unix::fs::symlink("s".repeat(800), dir.join("link")).expect("made");
}

/// Path to bytes of every file and link.
fn host(dir: &Path, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).expect("lists") {
        let at = entry.expect("an entry").path();
        let name = format!("{path}/{}", at.file_name().expect("named").to_string_lossy());
        if at.is_symlink() {
            let target = std::fs::read_link(&at).expect("a target");
            found.insert(name, target.to_string_lossy().into_owned().into_bytes());
        } else if at.is_dir() {
            host(&at, &name, found);
        } else {
            found.insert(name, std::fs::read(&at).expect("reads"));
        }
    }
}

fn ours(fs: &Ext4, dir: Ino, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    let mut entries = Vec::new();
    let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
        entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino, entry.kind));
        true
    };
    fs.readdir(&OpCtx::service(), dir, 0, &mut each).expect("lists");
    for (name, ino, kind) in entries {
        assert_eq!(
            fs.lookup(&OpCtx::service(), dir, name.as_bytes()).map(|attr| attr.ino),
            Ok(ino)
        );
        let path_here = format!("{path}/{name}");
        match kind {
            Kind::Dir => ours(fs, ino, &path_here, found),
            Kind::Symlink => drop(
                found.insert(path_here, fs.readlink(&OpCtx::service(), ino).expect("a target")),
            ),
            _ => {
                let size = fs.getattr(&OpCtx::service(), ino).expect("a state").size as usize;
                let mut bytes = vec![0xee; size];
                assert_eq!(fs.read(&OpCtx::service(), ino, 0, size, &mut &mut bytes[..]), Ok(size));
                found.insert(path_here, bytes);
            }
        }
    }
}

#[test]
fn ext2_and_ext3_are_read() {
    if !common::have_tools() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    furnish(dir.path());
    let mut expected = BTreeMap::new();
    host(dir.path(), "", &mut expected);
    let from = dir.path().to_str().expect("plain").to_string();
    for (kind, block_bytes) in
        [("ext2", "1024"), ("ext3", "1024"), ("ext2", "4096"), ("ext3", "2048")]
    {
        let fs = open(64, &["-t", kind, "-b", block_bytes, "-d", &from]);
        let fs = fs.unwrap_or_else(|error| panic!("{kind} {block_bytes}: {error}"));
        let mut found = BTreeMap::new();
        ours(&fs, fs.root().expect("root").ino, "", &mut found);
        assert_eq!(found.len(), expected.len(), "{kind} {block_bytes}");
        for (path, bytes) in &expected {
            assert!(found.get(path) == Some(bytes), "{kind} {block_bytes}: {path}");
        }
    }
}
