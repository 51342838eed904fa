//! Files whose data is in two layers: no data moves, and every byte is whose it should be.

mod common;

use common::{Fs, Tree, memfs, pattern, union};
use polylane_base::rng::Rng;
use polylane_base::sync::Mutex;
use polylane_base::{Errno, Gid, Ino, TestClock, Time, Uid};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_ext4::{Ext4, Options};
use polylane_sys::buffer::Buffer;
use polylane_union::{Layer, OpenError, Solid, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, SeekFor, SetAttr, SetTime, XattrMode};
use std::process::Command;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// A fresh ext4; none where there is no mke2fs.
fn ext4(args: &[&str]) -> Option<Fs> {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(64 << 20).expect("sparse");
    let made = Command::new("mke2fs").arg("-Fq").args(args).arg(image.path()).output();
    let Ok(made) = made else {
        eprintln!("skipped: mke2fs is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let bytes = std::fs::read(image.path()).expect("readable");
    let device = Arc::new(RamDevice::new(bytes.len() as u64 / 512));
    let waiter = Waiter::new(device.clone());
    for (index, piece) in bytes.chunks(MIB).enumerate() {
        if piece.iter().any(|&byte| byte != 0) {
            let sector = polylane_block::Sector((index * MIB / 512) as u64);
            waiter.write(sector, Buffer::copy_of(piece), false).expect("in range");
        }
    }
    let clock = Arc::new(TestClock::default());
    Some(Arc::new(Ext4::open(device, clock, &Options::default()).expect("opens")))
}

/// Every kind of upper that is to be had here.
fn uppers() -> Vec<(&'static str, Fs)> {
    let mut all = vec![("memfs", memfs())];
    let kinds: [(&str, &[&str]); 3] = [
        ("ext4", &["-t", "ext4", "-O", "inline_data"]),
        ("small blocks", &["-t", "ext4", "-b", "1024"]),
        ("ext3", &["-t", "ext3"]),
    ];
    for (name, args) in kinds {
        all.extend(ext4(args).map(|fs| (name, fs)));
    }
    all
}

/// Blocks of 512 bytes that an upper has in use.
fn used(upper: &Fs) -> u64 {
    let totals = upper.statfs(&OpCtx::service()).expect("totals");
    (totals.blocks - totals.bfree) * u64::from(totals.bsize) / 512
}

#[test]
fn changes_of_a_large_file_move_no_data() {
    let low = memfs();
    let bytes = pattern(32 * MIB, 1);
    Tree(&*low).file("big", &bytes);
    for (name, upper) in uppers() {
        let fs = union(&[&low], Some(&upper));
        let u = Tree(&*fs);
        let before = used(&upper);
        let big = u.ino("big");
        u.chmod(big, 0o600);
        let set = SetAttr { uid: Some(Uid(5)), ..SetAttr::default() };
        fs.setattr(&OpCtx::service(), big, &set).expect("chown");
        u.rename("big", "moved").expect("renames");
        u.link("moved", "other");
        assert_eq!(u.read(big), bytes, "{name}");
        u.write(big, bytes.len() as u64, b"appended");
        u.write(big, 5 * MIB as u64 + 100, b"inside");
        u.truncate(big, 20 * MIB as u64 + 7);
        let grown = (used(&upper) - before) * 512;
        assert!(grown < MIB as u64, "{name}: the upper grew by {grown} bytes");
        let mut expected = bytes[..20 * MIB + 7].to_vec();
        expected[5 * MIB + 100..][..6].copy_from_slice(b"inside");
        assert!(u.read(big) == expected, "{name}");
        assert_eq!(
            u.find("other").map(|attr| (attr.size, attr.nlink)),
            Ok((20 * MIB as u64 + 7, 2))
        );
    }
    assert!(Tree(&*low).read(Tree(&*low).ino("big")) == bytes, "lowers are not written");
}

/// The size that is usual where copies hurt: a lower of mostly holes stands for it.
#[test]
fn changes_of_a_file_of_two_gib_move_no_data() {
    const SIZE: u64 = 2 << 30;
    let (low, ctx) = (memfs(), &OpCtx::service());
    let big = Tree(&*low).file("big", b"");
    Tree(&*low).truncate(big, SIZE);
    let places = [0, SIZE / 2 - 3, SIZE - 9];
    places.iter().for_each(|at| Tree(&*low).write(big, *at, b"the lower"));
    let (time, appended) = (Time { sec: 5, nsec: 7 }, pattern(MIB, 1));
    let sets = [
        SetAttr { perm: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(Uid(5)), gid: Some(Gid(6)), ..SetAttr::default() },
        SetAttr {
            atime: Some(SetTime::At(time)),
            mtime: Some(SetTime::At(time)),
            ..SetAttr::default()
        },
    ];
    for (name, upper) in uppers() {
        let fs = union(&[&low], Some(&upper));
        let before = used(&upper);
        let grown = || (used(&upper) - before) * 512;
        let big = Tree(&*fs).ino("big");
        for set in &sets {
            fs.setattr(ctx, big, set).expect("set");
        }
        Tree(&*fs).rename("big", "moved").expect("renames");
        let attr = Tree(&*fs).find("moved").expect("there");
        assert_eq!((attr.perm, attr.uid, attr.gid), (0o600, Uid(5), Gid(6)), "{name}");
        assert_eq!((attr.atime, attr.mtime, attr.size), (time, time, SIZE), "{name}");
        let of_states = grown();
        assert!(of_states < 256 << 10, "{name}: the upper grew by {of_states} bytes");
        Tree(&*fs).write(big, SIZE, &appended);
        assert!(grown() <= 2 << 20, "{name}: the upper grew by {} bytes", grown());
        let read = |fs: &Union, at: u64, len: usize| {
            let mut bytes = vec![0xee; len];
            let read = fs.read(ctx, big, at, len, &mut bytes.as_mut_slice());
            assert_eq!(read, Ok(len), "{name}: at {at}");
            bytes
        };
        drop(fs);
        let fs = union(&[&low], Some(&upper));
        assert_eq!(Tree(&*fs).ino("moved"), big, "{name}");
        places.iter().for_each(|at| assert_eq!(read(&fs, *at, 9), b"the lower", "{name}"));
        assert!(read(&fs, SIZE, MIB) == appended, "{name}");
        Tree(&*fs).truncate(big, SIZE / 2);
        Tree(&*fs).truncate(big, SIZE);
        let cut = [&b"the"[..], &[0; 6]].concat();
        assert_eq!(read(&fs, SIZE / 2 - 3, 9), cut, "{name}");
        assert_eq!(read(&fs, SIZE - 9, 9), [0; 9], "{name}");
        assert!(grown() <= 2 << 20, "{name}: the upper grew by {} bytes", grown());
    }
}

/// One change, as the file and as plain bytes see it.
fn change(fs: &Union, ino: Ino, bytes: &mut Vec<u8>, rng: &mut Rng) {
    let size = bytes.len() as u64;
    let at = rng.below(size + 5000);
    let len = 1 + match rng.below(3) {
        0 => rng.below(100),
        1 => rng.below(5000),
        _ => rng.below(60_000),
    };
    let (start, end) = (at as usize, (at + len) as usize);
    match rng.below(8) {
        0..4 => {
            let new = pattern(len as usize, at as u8);
            assert_eq!(fs.write(&OpCtx::service(), ino, at, &mut &new[..]), Ok(new.len()));
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(&new);
        }
        4 => {
            let size = rng.below(size + 20_000);
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            fs.setattr(&OpCtx::service(), ino, &set).expect("truncates");
            bytes.resize(size as usize, 0);
        }
        mode => {
            let mode = match mode {
                5 => Fallocate::PunchHole,
                6 => Fallocate::ZeroRange { keep_size: false },
                _ => Fallocate::Allocate { keep_size: false },
            };
            match fs.fallocate(&OpCtx::service(), ino, mode, at, len) {
                // Block maps know no allocation without writing.
                Err(Errno::EOPNOTSUPP) => return,
                done => drop(done.expect("allocates")),
            }
            if mode != Fallocate::PunchHole {
                bytes.resize(bytes.len().max(end), 0);
            }
            let end = end.min(bytes.len());
            if start < end && mode != (Fallocate::Allocate { keep_size: false }) {
                bytes[start..end].fill(0);
            }
        }
    }
}

#[test]
fn random_changes_are_as_of_plain_bytes() {
    for seed in 0..12 {
        let low = memfs();
        let mut rng = Rng::new(seed);
        let old = pattern(70_000 + rng.below(400_000) as usize, seed as u8);
        Tree(&*low).file("f", &old);
        for (name, upper) in uppers() {
            let mut bytes = old.clone();
            for round in 0..5 {
                // Each round knows nothing but what the layers tell.
                let fs = union(&[&low], Some(&upper));
                let ino = Tree(&*fs).ino("f");
                assert!(Tree(&*fs).read(ino) == bytes, "{name}, seed {seed}, opened for {round}");
                for step in 0..12 {
                    change(&fs, ino, &mut bytes, &mut rng);
                    let got = Tree(&*fs).read(ino);
                    let differs = got.iter().zip(&bytes).position(|(a, b)| a != b);
                    assert_eq!(
                        (got.len(), differs),
                        (bytes.len(), None),
                        "{name}, seed {seed}, round {round}, step {step}"
                    );
                }
            }
            let fs = union(&[&low], Some(&upper));
            fs.solidify().expect("room");
            drop(fs);
            let own = Tree(&*upper);
            assert!(own.read(own.ino("upper/f")) == bytes, "{name}, seed {seed}: not whole");
        }
    }
}

/// One actor writes, cuts, punches and renames; another makes everything whole again and again.
#[test]
fn files_are_made_whole_while_they_are_changed() {
    for (seed, (name, upper)) in uppers().into_iter().enumerate() {
        let low = memfs();
        let mut rng = Rng::new(seed as u64);
        let mut bytes: Vec<Vec<u8>> = (0..4).map(|at| pattern(3 << 20, at)).collect();
        for (at, bytes) in bytes.iter().enumerate() {
            Tree(&*low).file(&format!("f{at}"), bytes);
        }
        let fs = union(&[&low], Some(&upper));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    fs.solidify().expect("room");
                }
            });
            for step in 0..150 {
                let at = rng.below(4) as usize;
                let path = format!("f{at}");
                let ino = Tree(&*fs).ino(&path);
                change(&fs, ino, &mut bytes[at], &mut rng);
                if step % 10 == 0 {
                    Tree(&*fs).rename(&path, "g").expect("renamed");
                    Tree(&*fs).rename("g", &path).expect("renamed back");
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let last = fs.solidify().expect("room");
        assert!(!last.is_partial, "{name}: no name changes any more");
        drop(fs);
        for (at, bytes) in bytes.iter().enumerate() {
            let own = Tree(&*upper);
            let got = own.read(own.ino(&format!("upper/f{at}")));
            let differs = got.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!((got.len(), differs), (bytes.len(), None), "{name}, file {at}");
        }
        assert_eq!(Tree(&*upper).find("upper/.polylane-blocks"), Err(Errno::ENOENT), "{name}");
    }
}

/// A walk that makes files whole holds none of them: what the VFS forgets is gone.
#[test]
fn files_that_were_made_whole_keep_their_times_and_numbers() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(300_000, 9));
    let fs = union(&[&low], Some(&upper));
    let ino = Tree(&*fs).ino("f");
    Tree(&*fs).chmod(ino, 0o600);
    let before = Tree(&*fs).find("f").expect("there");
    assert_eq!(fs.solidify(), Ok(Solid { files: 1, is_partial: false }));
    assert_eq!(fs.solidify(), Ok(Solid::default()));
    let after = Tree(&*fs).find("f").expect("there");
    assert_eq!((after.ino, after.mtime, after.ctime), (before.ino, before.mtime, before.ctime));
    fs.forget(ino);
    assert_eq!(fs.getattr(&OpCtx::service(), ino).err(), Some(Errno::ESTALE));
    assert_eq!(fs.solidify(), Ok(Solid::default()));
    assert_eq!(fs.getattr(&OpCtx::service(), ino).err(), Some(Errno::ESTALE), "not held by a walk");
}

#[test]
fn a_file_that_was_opened_before_sees_what_is_written() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(200_000, 3));
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let reader = u.ino("f");
    let before = u.read(reader);
    u.write(u.ino("f"), 70_000, b"new");
    let after = u.read(reader);
    assert_eq!(&after[70_000..70_003], b"new");
    assert_eq!((&after[..70_000], &after[70_003..]), (&before[..70_000], &before[70_003..]));
}

#[test]
fn a_removed_file_of_a_lower_can_be_read_and_written() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(200_000, 3));
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let open = u.ino("f");
    u.unlink("f");
    assert_eq!(u.read(open), pattern(200_000, 3));
    u.write(open, 100_000, b"new");
    assert_eq!(
        &u.read(open)[99_999..100_003],
        [&pattern(200_000, 3)[99_999..100_000], b"new"].concat()
    );
    assert_eq!(fs.getattr(&OpCtx::service(), open).map(|attr| attr.nlink), Ok(0));
    assert_eq!(u.find("f"), Err(Errno::ENOENT));
}

#[test]
fn a_lower_that_changed_is_an_error() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(200_000, 3));
    Tree(&*low).file("g", b"g");
    let fs = union(&[&low], Some(&upper));
    Tree(&*fs).write(Tree(&*fs).ino("f"), 70_000, b"new");
    drop(fs);
    Tree(&*low).truncate(Tree(&*low).ino("f"), 100_000);
    let fs = union(&[&low], Some(&upper));
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    fs.on_changed_lower(move |lower, path| to.lock().push((lower, path.to_vec())));
    let cannot_be_read = || {
        let found = Tree(&*fs).find("f").expect("its name is there");
        let mut byte = [0];
        fs.read(&OpCtx::service(), found.ino, 70_000, 1, &mut byte.as_mut_slice())
            == Err(Errno::EIO)
    };
    assert!(cannot_be_read() && cannot_be_read());
    assert_eq!(*told.lock(), [(0, b"/f".to_vec())], "once");
    // The directory is not lost with it.
    assert_eq!(Tree(&*fs).names(""), ["f", "g"]);
    assert_eq!(Tree(&*fs).find("g").map(|attr| attr.size), Ok(1));
}

/// A union whose upper has parts of files whose lowers changed, or went, since.
fn spoiled() -> (Fs, Fs, Arc<Union>) {
    let (low, upper) = (memfs(), memfs());
    let l = Tree(&*low);
    l.mkdir("d");
    for name in ["f", "g", "h", "d/f", "gone"] {
        l.file(name, &pattern(200_000, 3));
    }
    l.link("g", "same");
    let fs = union(&[&low], Some(&upper));
    for name in ["f", "g", "h", "d/f", "gone"] {
        Tree(&*fs).write(Tree(&*fs).ino(name), 70_000, b"new");
    }
    drop(fs);
    for name in ["f", "g", "h", "d/f"] {
        l.truncate(l.ino(name), 100_000);
    }
    l.unlink("gone");
    let fs = union(&[&low], Some(&upper));
    (low, upper, fs)
}

/// Nothing is read of them, and nothing mixed; what needs no data is done.
#[test]
fn files_whose_lower_changed_can_go() {
    let (low, upper, fs) = spoiled();
    let (u, ctx) = (Tree(&*fs), &OpCtx::service());
    let new = u.file("new", b"new");
    for name in ["f", "g", "same", "h", "d/f", "gone"] {
        let ino = u.ino(name);
        let refused = Err(Errno::EIO);
        let mut byte = [0];
        assert_eq!(fs.read(ctx, ino, 70_000, 1, &mut byte.as_mut_slice()), refused, "{name}");
        assert_eq!(fs.write(ctx, ino, 0, &mut &b"x"[..]), refused, "{name}");
        assert_eq!(fs.seek(ctx, ino, 0, SeekFor::Data), Err(Errno::EIO), "{name}");
        let punch = fs.fallocate(ctx, ino, Fallocate::PunchHole, 0, 4096);
        assert_eq!(punch, Err(Errno::EIO), "{name}");
        let cut = SetAttr { size: Some(10), ..SetAttr::default() };
        assert_eq!(fs.setattr(ctx, ino, &cut), Err(Errno::EIO), "{name}");
        let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        assert_eq!(fs.setattr(ctx, ino, &mode).map(|attr| attr.perm), Ok(0o600), "{name}");
        assert_eq!(u.rename(name, "other"), Err(Errno::EIO), "its marks stay where they are");
    }
    assert!(fs.solidify().is_err(), "nothing is made of zeros");
    u.unlink("f");
    u.rename("new", "h").expect("replaces it");
    assert_eq!(u.ino("h"), new);
    u.unlink("d/f");
    fs.rmdir(ctx, u.ino(""), b"d").expect("nothing is left in it");
    u.unlink("g");
    u.unlink("same");
    // Cut to nothing, a file needs no lower.
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.setattr(ctx, u.ino("gone"), &empty).map(|attr| attr.size), Ok(0));
    u.write(u.ino("gone"), 100_000, b"again");
    let again = [&[0; 100_000][..], b"again"].concat();
    assert_eq!(u.read(u.ino("gone")), again);
    drop(fs);
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    assert_eq!(u.names(""), ["gone", "h"]);
    assert_eq!((u.read(u.ino("gone")), u.read(u.ino("h"))), (again, b"new".to_vec()));
}

/// An upper with files in parts, one of them in a directory that no lower has; what they hold.
fn in_parts() -> (Fs, Fs, [(&'static str, Vec<u8>); 2]) {
    let (low, upper) = (memfs(), memfs());
    let mut bytes = pattern(200_000, 3);
    for name in ["big", "other"] {
        Tree(&*low).file(name, &bytes);
    }
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    u.write(u.ino("big"), 70_000, b"new");
    u.mkdir("made");
    u.rename("other", "made/other").expect("renames");
    u.write(u.ino("made/other"), 70_000, b"new");
    bytes[70_000..70_003].copy_from_slice(b"new");
    drop(fs);
    (low, upper, [("big", bytes.clone()), ("made/other", bytes)])
}

/// A copy may lose one mark and keep the others: a file is as it was or cannot be read.
#[test]
fn a_mark_that_was_lost_alone_leaves_no_zeros() {
    let ctx = &OpCtx::service();
    let mut spoiled = 0;
    for (path, mark) in [
        ("big", "metacopy"),
        ("big", "polylane"),
        ("big", "origin"),
        ("made/other", "metacopy"),
        ("made/other", "polylane"),
        ("made/other", "redirect"),
        ("made", "impure"),
    ] {
        let (low, upper, files) = in_parts();
        let at = Tree(&*upper).ino(&format!("upper/{path}"));
        let name = format!("trusted.overlay.{mark}");
        upper.removexattr(ctx, at, name.as_bytes()).expect("it was there");
        let fs = union(&[&low], Some(&upper));
        for (name, bytes) in &files {
            let ino = Tree(&*fs).ino(name);
            let mut got = vec![0xee; bytes.len()];
            match fs.read(ctx, ino, 0, bytes.len(), &mut got.as_mut_slice()) {
                Ok(_) => assert!(got == *bytes, "{mark} of {path}: {name} is something else"),
                Err(errno) => {
                    assert_eq!((errno, *name), (Errno::EIO, path), "{mark} of {path}");
                    spoiled += 1;
                }
            }
        }
        let whole = fs.solidify();
        drop(fs);
        for (name, bytes) in &files {
            let own = Tree(&*upper);
            let is_whole = own.read(own.ino(&format!("upper/{name}"))) == *bytes;
            assert!(whole.is_err() || is_whole, "{mark} of {path}: {name} was made of zeros");
        }
    }
    assert_eq!(spoiled, 5, "a lost `origin` or `impure` spoils nothing");
}

/// Puts a copy in the place of a file, or of a whiteout, of the upper: its bytes, holes as zeros,
/// and its marks.
fn copy_in_place(upper: &Fs, path: &str) {
    let (own, ctx) = (Tree(&**upper), &OpCtx::service());
    let found = own.find(path).expect("there");
    let (former, is_file) = (found.ino, found.kind == Kind::File);
    let bytes = if is_file { own.read(former) } else { Vec::new() };
    let names = upper.listxattr(ctx, former).expect("lists");
    let all: Vec<_> = names
        .into_iter()
        .map(|name| (upper.getxattr(ctx, former, &name).expect("listed"), name))
        .collect();
    own.unlink(path);
    match is_file {
        true => _ = own.file(path, &bytes),
        false => own.device(path),
    }
    let copy = own.ino(path);
    for (value, name) in all {
        upper.setxattr(ctx, copy, &name, &value, XattrMode::Any).expect("kept");
    }
}

/// A copy with all marks has other holes: those of a file, or of all of them.
#[test]
fn copies_with_all_marks_are_no_parts_of_files() {
    let ctx = &OpCtx::service();
    let (low, upper, [(name, _), (other, bytes)]) = in_parts();
    copy_in_place(&upper, &format!("upper/{name}"));
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let mut byte = [0];
    let read = fs.read(ctx, u.ino(name), 0, 1, &mut byte.as_mut_slice());
    assert_eq!(read, Err(Errno::EIO));
    assert_eq!(fs.write(ctx, u.ino(name), 0, &mut &b"x"[..]), Err(Errno::EIO));
    assert!(u.read(u.ino(other)) == bytes);
    assert_eq!(fs.solidify(), Err(Errno::EIO));
    drop(fs);
    copy_in_place(&upper, "upper/.polylane-blocks");
    let opened = |upper: &Fs| {
        let lowers = vec![Layer::new(low.clone()).expect("a root")];
        Union::open(lowers, Some(UpperOn::new(upper.clone()))).err()
    };
    assert_eq!(opened(&upper), Some(OpenError::Copied));
    // A canary of a former version is no copy, and is one from then on.
    let canary = Tree(&*upper).ino("upper/.polylane-blocks");
    upper.setxattr(ctx, canary, b"trusted.overlay.polylane", b"", XattrMode::Any).expect("kept");
    assert_eq!(opened(&upper), None);
    copy_in_place(&upper, "upper/.polylane-blocks");
    assert_eq!(opened(&upper), Some(OpenError::Copied));
}

/// A file whose mark was lost is emptied and used again.
#[test]
fn a_file_that_lost_its_mark_can_be_cut_to_nothing() {
    let (low, upper, _) = in_parts();
    let ctx = &OpCtx::service();
    let at = Tree(&*upper).ino("upper/big");
    upper.removexattr(ctx, at, b"trusted.overlay.metacopy").expect("it was there");
    for _ in 0..2 {
        let fs = union(&[&low], Some(&upper));
        let u = Tree(&*fs);
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        fs.setattr(ctx, u.ino("big"), &empty).expect("needs no data");
        u.write(u.ino("big"), 100_000, b"again");
        drop(fs);
        let fs = union(&[&low], Some(&upper));
        let again = [&[0; 100_000][..], b"again"].concat();
        assert_eq!(Tree(&*fs).read(Tree(&*fs).ino("big")), again);
    }
}

/// A file that was open when its lower changed is no mixture for its readers once that is known,
/// and is read again when the lower is as it was.
#[test]
fn a_lower_that_is_put_back_is_read_again() {
    let (low, upper) = (memfs(), memfs());
    let (l, ctx) = (Tree(&*low), &OpCtx::service());
    let ino = l.file("f", &pattern(200_000, 3));
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let open = u.ino("f");
    u.write(open, 70_000, b"new");
    let mtime = low.getattr(ctx, ino).expect("there").mtime;
    l.write(ino, 150_000, b"changed");
    assert_eq!(u.ino("f"), open);
    let mut bytes = [0; 7];
    let read = fs.read(ctx, open, 150_000, 7, &mut bytes.as_mut_slice());
    assert_eq!(read, Err(Errno::EIO));
    l.write(ino, 150_000, &pattern(200_000, 3)[150_000..150_007]);
    let back = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    low.setattr(ctx, ino, &back).expect("set");
    assert_eq!(u.read(open)[70_000..70_003], *b"new");
    u.rename("f", "g").expect("moves");
    assert_eq!(u.read(u.ino("g")).len(), 200_000);
}

#[test]
fn an_upper_that_lost_its_marks_is_refused() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(200_000, 3));
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    u.write(u.ino("f"), 70_000, b"new");
    assert_eq!(u.names(""), ["f"], "the canary is not seen");
    let made = fs.create(
        &OpCtx::service(),
        u.ino(""),
        b".polylane-blocks",
        &polylane_testkit::fs_suite::node(Kind::File, 0o600),
    );
    assert_eq!(made.map(|_| ()), Err(Errno::EPERM));
    drop(fs);
    // As in a copy without attributes.
    let own = Tree(&*upper);
    let canary = own.ino("upper/.polylane-blocks");
    upper.removexattr(&OpCtx::service(), canary, b"trusted.overlay.polylane").expect("was there");
    let lowers = vec![Layer::new(low.clone()).expect("a root")];
    assert_eq!(
        Union::open(lowers, Some(UpperOn::new(upper.clone()))).err(),
        Some(OpenError::Copied)
    );
    upper
        .setxattr(&OpCtx::service(), canary, b"trusted.overlay.polylane", b"", XattrMode::Any)
        .expect("kept");
    let fs = union(&[&low], Some(&upper));
    assert_eq!(fs.solidify(), Ok(Solid { files: 1, is_partial: false }));
    assert_eq!(own.find("upper/.polylane-blocks"), Err(Errno::ENOENT));
}

#[test]
fn what_is_the_lowers_counts_as_data() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", &pattern(200_000, 3));
    let fs = union(&[&low], Some(&upper));
    let ino = Tree(&*fs).ino("f");
    Tree(&*fs).write(ino, 70_000, b"new");
    Tree(&*fs).truncate(ino, 1 << 20);
    assert_eq!(fs.seek(&OpCtx::service(), ino, 5000, SeekFor::Data), Ok(5000));
    let hole = fs.seek(&OpCtx::service(), ino, 0, SeekFor::Hole).expect("there is one");
    assert!((200_000..205_000).contains(&hole), "{hole}");
    assert_eq!(fs.seek(&OpCtx::service(), ino, 300_000, SeekFor::Data), Err(Errno::ENXIO));
}
