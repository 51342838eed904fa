//! Bytes: reading, writing, holes, sizes.

use super::{Check, Subject};
use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, SeekFor, SetAttr};

pub(super) const CHECKS: &[Check] = &[
    ("what is written is read", written_is_read),
    ("reads end at the end", reads_end),
    ("holes are zeros", holes),
    ("a shrunken file forgets its tail", shrink_and_grow),
    ("random writes against a vector", random_writes),
    ("fallocate against a vector", random_fallocate),
    ("seek finds data and holes", seek),
    ("ranges that cannot be are refused", bad_ranges),
    ("sync", sync),
];

fn written_is_read(s: &Subject) {
    let file = s.file("f").ino;
    s.write(file, 0, b"hello");
    s.write(file, 5, b", world");
    s.write(file, 0, b"J");
    assert_eq!(s.read(file, 0, 100), b"Jello, world");
    assert_eq!(s.read(file, 7, 3), b"wor");
    assert_eq!(s.fs.getattr(&OpCtx::service(), file).unwrap().size, 12);
    s.write(file, 3, b"");
    assert_eq!(s.fs.getattr(&OpCtx::service(), file).unwrap().size, 12);
}

fn reads_end(s: &Subject) {
    let file = s.file("f").ino;
    assert_eq!(s.read(file, 0, 10), b"");
    s.write(file, 0, &[7; 5000]);
    assert_eq!(s.read(file, 4999, 10), [7]);
    assert_eq!(s.read(file, 5000, 10), b"");
    assert_eq!(s.read(file, 1 << 40, 10), b"");
    assert_eq!(s.read(file, 10, 0), b"");
}

fn holes(s: &Subject) {
    let file = s.file("f").ino;
    let far = 10 << 20;
    s.write(file, far, b"x");
    assert_eq!(s.fs.getattr(&OpCtx::service(), file).unwrap().size, far + 1);
    assert_eq!(s.read(file, far - 4096, 5000), [&[0; 4096][..], b"x"].concat());
    assert!(s.read(file, 0, 100_000).iter().all(|&byte| byte == 0));
    if s.can.exact_holes {
        assert_eq!(s.fs.getattr(&OpCtx::service(), file).unwrap().blocks, 8);
    }
}

fn set_size(s: &Subject, ino: polylane_base::Ino, size: u64) {
    let attr =
        s.fs.setattr(&OpCtx::service(), ino, &SetAttr { size: Some(size), ..SetAttr::default() })
            .unwrap();
    assert_eq!(attr.size, size);
}

fn shrink_and_grow(s: &Subject) {
    let file = s.file("f").ino;
    s.write(file, 0, &[9; 20_000]);
    for size in [12_345, 8192, 4097, 1, 0] {
        set_size(s, file, size);
        set_size(s, file, 20_000);
        let bytes = s.read(file, 0, 20_000);
        assert!(bytes[..size as usize].iter().all(|&byte| byte == 9), "kept {size}");
        assert!(bytes[size as usize..].iter().all(|&byte| byte == 0), "cut to {size}");
    }
}

fn random_writes(s: &Subject) {
    let file = s.file("f").ino;
    let mut rng = Rng::new(1);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..300u32 {
        let at = rng.below(2 << 20) as usize;
        match rng.below(10) {
            0 => {
                model.resize(at, 0);
                set_size(s, file, at as u64);
            }
            _ => {
                let bytes = vec![step as u8; 1 + rng.below(40_000) as usize];
                let end = at + bytes.len();
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(&bytes);
                s.write(file, at as u64, &bytes);
            }
        }
        let at = rng.below(2 << 20) as usize;
        let expected =
            &model[at.min(model.len())..(at + 50_000).min(model.len()).max(at.min(model.len()))];
        assert_eq!(s.read(file, at as u64, 50_000), expected, "step {step}");
    }
    assert_eq!(s.read(file, 0, 4 << 20), model);
}

/// `fallocate` on a vector.
fn allocate(model: &mut Vec<u8>, mode: Fallocate, at: usize, len: usize) {
    let end = at + len;
    match mode {
        Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
            if !keep_size {
                model.resize(model.len().max(end), 0);
            }
            if matches!(mode, Fallocate::ZeroRange { .. }) {
                let size = model.len();
                model[at.min(size)..end.min(size)].fill(0);
            }
        }
        Fallocate::PunchHole => {
            let size = model.len();
            model[at.min(size)..end.min(size)].fill(0);
        }
        Fallocate::CollapseRange => drop(model.drain(at..end)),
        Fallocate::InsertRange => drop(model.splice(at..at, vec![0; len])),
    }
}

fn random_fallocate(s: &Subject) {
    if !s.can.fallocate {
        return;
    }
    let file = s.file("f").ino;
    let mut rng = Rng::new(2);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..400u32 {
        let (at, len) = (rng.below(100_000), 1 + rng.below(30_000));
        let (page_at, page_len) = (at / 4096 * 4096, len.div_ceil(4096) * 4096);
        let keep_size = rng.percent(50);
        let size = model.len() as u64;
        let (mode, at, len) = match rng.below(7) {
            0 => (Fallocate::Allocate { keep_size }, at, len),
            1 => (Fallocate::ZeroRange { keep_size }, at, len),
            2 => (Fallocate::PunchHole, at, len),
            3 if page_at + page_len < size => (Fallocate::CollapseRange, page_at, page_len),
            4 if page_at < size && size < 400_000 => (Fallocate::InsertRange, page_at, page_len),
            _ => {
                let bytes = vec![1 + (step % 255) as u8; len as usize];
                model.resize(model.len().max((at + len) as usize), 0);
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                s.write(file, at, &bytes);
                continue;
            }
        };
        let done = s.fs.fallocate(&OpCtx::service(), file, mode, at, len);
        allocate(&mut model, mode, at as usize, len as usize);
        let done = done.unwrap_or_else(|errno| panic!("step {step} {mode:?}: {errno:?}"));
        assert_eq!(done.size, model.len() as u64, "step {step} {mode:?}");
        assert_eq!(s.read(file, 0, 1 << 20), model, "step {step} {mode:?} {at}+{len}");
    }
}

fn seek(s: &Subject) {
    if !s.can.exact_holes {
        return;
    }
    let file = s.file("f").ino;
    let find = |at, target| s.fs.seek(&OpCtx::service(), file, at, target);
    assert_eq!(find(0, SeekFor::Data), Err(Errno::ENXIO));
    s.write(file, 3 << 12, &[1; 4096]);
    s.write(file, 7 << 12, &[1; 10]);
    assert_eq!(find(0, SeekFor::Data), Ok(3 << 12));
    assert_eq!(find(0, SeekFor::Hole), Ok(0));
    assert_eq!(find((3 << 12) + 5, SeekFor::Data), Ok((3 << 12) + 5));
    assert_eq!(find((3 << 12) + 5, SeekFor::Hole), Ok(4 << 12));
    assert_eq!(find(4 << 12, SeekFor::Data), Ok(7 << 12));
    assert_eq!(find(7 << 12, SeekFor::Hole), Ok((7 << 12) + 10));
    assert_eq!(find((7 << 12) + 10, SeekFor::Hole), Err(Errno::ENXIO));
    set_size(s, file, 20 << 12);
    assert_eq!(find(8 << 12, SeekFor::Data), Err(Errno::ENXIO));
    assert_eq!(find(8 << 12, SeekFor::Hole), Ok(8 << 12));
    // Runs of pages that touch each other, over the borders of any inner structure.
    s.write(file, 0, &vec![1; 5 << 20]);
    assert_eq!(find(0, SeekFor::Hole), Ok(5 << 20));
}

fn bad_ranges(s: &Subject) {
    let file = s.file("f").ino;
    s.write(file, 0, &[1; 10_000]);
    let beyond = s.fs.write(&OpCtx::service(), file, u64::MAX - 2, &mut &b"abc"[..]);
    assert!(beyond.is_err());
    assert!(s.fs.write(&OpCtx::service(), file, i64::MAX as u64, &mut &b"abc"[..]).is_err());
    let set = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert!(s.fs.setattr(&OpCtx::service(), file, &set).is_err());
    if s.can.fallocate {
        for (mode, at, len) in [
            (Fallocate::CollapseRange, 0, 100),
            (Fallocate::CollapseRange, 100, 4096),
            (Fallocate::CollapseRange, 4096, 8192),
            (Fallocate::InsertRange, 1, 4096),
            (Fallocate::InsertRange, 12_288, 4096),
        ] {
            let refused = s.fs.fallocate(&OpCtx::service(), file, mode, at, len).unwrap_err();
            assert_eq!(refused, Errno::EINVAL, "{mode:?} {at}+{len}");
        }
    }
    assert_eq!(s.read(file, 0, 20_000), [1; 10_000]);
}

fn sync(s: &Subject) {
    let file = s.file("f").ino;
    s.write(file, 0, b"x");
    s.fs.fsync(&OpCtx::service(), file, true).unwrap();
    s.fs.fsync(&OpCtx::service(), file, false).unwrap();
    s.fs.fsync(&OpCtx::service(), s.root(), false).unwrap();
    s.fs.sync(&OpCtx::service()).unwrap();
}
