//! Random workloads on few names, so that operations meet.

use polylane_base::rng::Rng;
use polylane_vfs::fs::{Fallocate, Kind, RenameMode};

use super::script::Op;

const NAMES: &[&str] = &["foo", "bar", "x", "long-name-that-takes-more-room-in-a-directory-block"];
const DIRS: &[&str] = &["", "A", "B", "A/deep", "D"];

fn path(rng: &mut Rng) -> String {
    let (dir, name) = (*rng.pick(DIRS), *rng.pick(NAMES));
    if dir.is_empty() { name.into() } else { format!("{dir}/{name}") }
}

/// A directory that can be made, moved or removed.
fn dir(rng: &mut Rng) -> String {
    (*rng.pick(&["A", "B", "A/deep", "D", "B/sub", "D/sub"])).into()
}

fn span(rng: &mut Rng) -> (u64, usize) {
    let offset = match rng.below(4) {
        0 => 0,
        1 => rng.below(40) * 4096,
        _ => rng.below(60_000),
    };
    let len = match rng.below(8) {
        0 => 4096,
        1..=4 => 1 + rng.below(6000) as usize,
        5 | 6 => 1 + rng.below(30_000) as usize,
        _ => 100_000,
    };
    (offset, len)
}

fn fallocate(rng: &mut Rng) -> Fallocate {
    let keep_size = rng.percent(50);
    match rng.below(8) {
        0..=2 => Fallocate::Allocate { keep_size },
        3 | 4 => Fallocate::PunchHole,
        5 => Fallocate::ZeroRange { keep_size },
        6 => Fallocate::CollapseRange,
        _ => Fallocate::InsertRange,
    }
}

fn step(rng: &mut Rng, sync_percent: u64) -> Op {
    if rng.percent(sync_percent) {
        return match rng.below(10) {
            0 | 1 => Op::Sync,
            2 | 3 => Op::Fdatasync(path(rng)),
            4 | 5 => Op::Fsync(dir(rng)),
            6 => Op::FsyncSlot(rng.below(3) as u8),
            _ => Op::Fsync(path(rng)),
        };
    }
    let slot = rng.below(3) as u8;
    let ((offset, len), mode) = (span(rng), fallocate(rng));
    match rng.below(100) {
        0..=11 => Op::Create(path(rng)),
        12..=33 => Op::Write(path(rng), offset, len),
        34..=39 => Op::Truncate(path(rng), rng.below(80_000)),
        40..=45 => Op::Fallocate(path(rng), mode, offset / 4096 * 4096, 4096 * (1 + slot as u64)),
        46..=48 => Op::Fallocate(path(rng), mode, offset, len as u64),
        49..=56 => Op::Unlink(path(rng)),
        57..=62 => Op::Link(path(rng), path(rng)),
        63..=70 => {
            let mode = match rng.below(10) {
                0 => RenameMode::Exchange,
                1 => RenameMode::Whiteout,
                2 => RenameMode::NoReplace,
                _ => RenameMode::Replace,
            };
            match rng.percent(80) {
                true => Op::Rename(path(rng), path(rng), mode),
                false => Op::Rename(dir(rng), dir(rng), mode),
            }
        }
        71..=74 => Op::Mkdir(dir(rng)),
        75..=77 => Op::Rmdir(dir(rng)),
        78 => Op::Symlink(path(rng), 1 + rng.below(400) as usize),
        79 => Op::SetAcl(path(rng), rng.below(250) as usize),
        80 if rng.percent(50) => Op::Inherit(Kind::File, path(rng), rng.below(250) as usize),
        80 => Op::Inherit(Kind::Dir, dir(rng), rng.below(120) as usize),
        81..=83 => Op::SetXattr(path(rng), "user.a".into(), 1 + rng.below(80) as usize),
        84 => Op::SetXattr(path(rng), "user.b".into(), 1 + rng.below(3500) as usize),
        85 | 86 => Op::RemoveXattr(path(rng), "user.b".into()),
        87 => Op::Chmod(path(rng), rng.below(0o1000) as u32),
        88 => Op::Tmpfile(slot),
        89 | 90 => Op::LinkSlot(slot, path(rng)),
        91 | 92 => Op::Hold(slot, path(rng)),
        93 | 94 => Op::Release(slot),
        95..=97 => Op::WriteSlot(slot, offset, len),
        _ => Op::Mknod(path(rng)),
    }
}

/// `len` operations, `sync_percent` of them for durability.
pub fn workload(seed: u64, len: usize, sync_percent: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| step(&mut rng, sync_percent)).collect()
}

/// Many entries in one directory, so that its index grows, splits and is moved.
pub fn directory(seed: u64, names: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let name = |n: u64| format!("A/deep/{n:04}-{}", "n".repeat(60 + (n * 7 % 60) as usize));
    let mut ops = Vec::new();
    for n in 0..names as u64 {
        ops.push(Op::Create(name(n)));
        match rng.below(12) {
            0 => ops.push(Op::Unlink(name(rng.below(n + 1)))),
            1 => ops.push(Op::Rename(name(rng.below(n + 1)), name(n + 5000), RenameMode::Replace)),
            2 => ops.push(Op::Fsync("A/deep".into())),
            _ => {}
        }
    }
    ops
}
