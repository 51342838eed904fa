//! Short workloads, all of them: every operation on every kind of object, with every way of asking
//! for durability behind it (after ACE of CrashMonkey, OSDI 2018).

use polylane_base::rng::Rng;
use polylane_vfs::fs::{Fallocate, Kind, RenameMode};

use super::script::Op;

fn s(text: &str) -> String {
    text.to_string()
}

/// What is there before each workload.
pub fn setup() -> Vec<Op> {
    let mut ops = vec![
        Op::Mkdir(s("A")),
        Op::Mkdir(s("B")),
        Op::Mkdir(s("A/deep")),
        Op::Create(s("foo")),
        Op::Write(s("foo"), 0, 6000),
        Op::Create(s("A/bar")),
        Op::Write(s("A/bar"), 0, 20_000),
        Op::Create(s("A/empty")),
        Op::Symlink(s("A/link"), 20),
        Op::SetXattr(s("A/bar"), s("user.old"), 40),
        Op::Create(s("A/deep/holes")),
    ];
    // Removed again: free blocks and inodes with a past.
    ops.extend((0..8).map(|n| Op::Write(s("A/deep/holes"), n * 24_576, 4096)));
    ops.extend([Op::Create(s("gone")), Op::Write(s("gone"), 0, 100_000)]);
    ops.extend([Op::Unlink(s("gone")), Op::Sync]);
    ops
}

/// An operation (or a few that belong together), the object it is about, and that object's parent.
type Case = (Vec<Op>, &'static str, &'static str);

fn one(op: Op, about: &'static str, parent: &'static str) -> Case {
    (vec![op], about, parent)
}

fn names() -> Vec<Case> {
    let rename = |from: &str, to: &str, mode| Op::Rename(s(from), s(to), mode);
    let replace = RenameMode::Replace;
    vec![
        one(Op::Create(s("new")), "new", ""),
        one(Op::Create(s("A/new")), "A/new", "A"),
        one(Op::Mkdir(s("A/dir")), "A/dir", "A"),
        one(Op::Mknod(s("B/pipe")), "B/pipe", "B"),
        one(Op::Symlink(s("short"), 30), "short", ""),
        one(Op::Symlink(s("A/long"), 300), "A/long", "A"),
        one(Op::Link(s("foo"), s("A/new")), "foo", "A"),
        one(Op::Link(s("A/bar"), s("B/new")), "A/bar", "B"),
        one(Op::Unlink(s("foo")), "A", ""),
        one(Op::Unlink(s("A/bar")), "B", "A"),
        one(Op::Unlink(s("A/link")), "foo", "A"),
        one(Op::Unlink(s("A/deep/holes")), "foo", "A/deep"),
        one(Op::Rmdir(s("B")), "A", ""),
        one(rename("foo", "new", replace), "new", ""),
        one(rename("foo", "A/new", replace), "A/new", "A"),
        one(rename("foo", "A/bar", replace), "A/bar", ""),
        one(rename("A/empty", "A/bar", replace), "A/bar", "A"),
        one(rename("A/deep", "D", replace), "D", ""),
        one(rename("A/deep", "B", replace), "B", "A"),
        one(rename("A/bar", "B/bar", RenameMode::NoReplace), "B/bar", "B"),
        one(rename("foo", "A/bar", RenameMode::Exchange), "A/bar", ""),
        one(rename("B", "A/deep", RenameMode::Exchange), "B", "A"),
        one(rename("foo", "A/foo", RenameMode::Whiteout), "A/foo", ""),
        (vec![Op::Hold(1, s("foo")), Op::Unlink(s("foo"))], "A", ""),
        (vec![Op::Hold(1, s("foo")), Op::Unlink(s("foo")), Op::WriteSlot(1, 5000, 9000)], "A", ""),
        (vec![Op::Hold(1, s("A/bar")), Op::Unlink(s("A/bar")), Op::Release(1)], "foo", "A"),
        (vec![Op::Tmpfile(2)], "foo", ""),
        (vec![Op::Tmpfile(2), Op::WriteSlot(2, 0, 7000)], "foo", ""),
        (
            vec![Op::Tmpfile(2), Op::WriteSlot(2, 0, 7000), Op::LinkSlot(2, s("B/made"))],
            "B/made",
            "B",
        ),
    ]
}

fn contents() -> Vec<Case> {
    let write = |path: &str, offset, len| Op::Write(s(path), offset, len);
    let fallocate = |path: &str, mode, at, len| Op::Fallocate(s(path), mode, at, len);
    let (keep, grow) = (true, false);
    let allocate = |keep_size| Fallocate::Allocate { keep_size };
    let zero = |keep_size| Fallocate::ZeroRange { keep_size };
    vec![
        one(write("foo", 6000, 3000), "foo", ""),
        one(write("foo", 0, 4096), "foo", ""),
        one(write("foo", 100, 500), "foo", ""),
        one(write("foo", 4000, 9000), "foo", ""),
        one(write("A/bar", 50_000, 100), "A/bar", "A"),
        one(write("A/empty", 0, 150_000), "A/empty", "A"),
        one(write("A/deep/holes", 4096, 20_480), "A/deep/holes", "A"),
        one(Op::Truncate(s("foo"), 0), "foo", ""),
        one(Op::Truncate(s("foo"), 100), "foo", ""),
        one(Op::Truncate(s("A/bar"), 8192), "A/bar", "A"),
        one(Op::Truncate(s("foo"), 30_000), "foo", ""),
        one(Op::Truncate(s("A/deep/holes"), 30_000), "A/deep/holes", "A"),
        one(fallocate("foo", allocate(keep), 0, 30_000), "foo", ""),
        one(fallocate("foo", allocate(grow), 4000, 30_000), "foo", ""),
        one(fallocate("A/deep/holes", allocate(grow), 0, 190_000), "A/deep/holes", "A"),
        one(fallocate("A/bar", Fallocate::PunchHole, 4096, 8192), "A/bar", "A"),
        one(fallocate("A/bar", Fallocate::PunchHole, 100, 9000), "A/bar", "A"),
        one(fallocate("A/bar", zero(keep), 1000, 10_000), "A/bar", "A"),
        one(fallocate("A/bar", zero(grow), 16_384, 20_000), "A/bar", "A"),
        one(fallocate("A/bar", Fallocate::CollapseRange, 4096, 4096), "A/bar", "A"),
        one(fallocate("A/bar", Fallocate::InsertRange, 4096, 8192), "A/bar", "A"),
        (vec![fallocate("foo", allocate(grow), 0, 40_000), write("foo", 9000, 9000)], "foo", ""),
        (vec![Op::Truncate(s("foo"), 100), write("foo", 5000, 3000)], "foo", ""),
        (vec![Op::Create(s("new")), write("new", 0, 5000)], "new", ""),
        (
            vec![
                Op::Create(s("new")),
                write("new", 0, 5000),
                Op::Rename(s("new"), s("foo"), RenameMode::Replace),
            ],
            "foo",
            "",
        ),
        one(Op::SetXattr(s("foo"), s("user.a"), 30), "foo", ""),
        one(Op::SetXattr(s("foo"), s("user.big"), 3000), "foo", ""),
        one(Op::SetXattr(s("A/bar"), s("user.old"), 2000), "A/bar", "A"),
        one(Op::RemoveXattr(s("A/bar"), s("user.old")), "A/bar", "A"),
        (
            vec![
                Op::SetXattr(s("foo"), s("user.big"), 3000),
                Op::RemoveXattr(s("foo"), s("user.big")),
            ],
            "foo",
            "",
        ),
        one(Op::SetAcl(s("foo"), 2), "foo", ""),
        one(Op::SetAcl(s("A/bar"), 200), "A/bar", "A"),
        (vec![Op::SetAcl(s("foo"), 200), Op::SetAcl(s("foo"), 1)], "foo", ""),
        one(Op::Inherit(Kind::File, s("A/new"), 2), "A/new", "A"),
        one(Op::Inherit(Kind::File, s("new"), 200), "new", ""),
        one(Op::Inherit(Kind::Dir, s("A/dir"), 100), "A/dir", "A"),
        one(Op::Chmod(s("foo"), 0o600), "foo", ""),
        one(Op::Chmod(s("A"), 0o700), "A", ""),
    ]
}

fn cases() -> Vec<Case> {
    [names(), contents()].concat()
}

fn persist(about: &str, parent: &str) -> [Vec<Op>; 5] {
    [
        vec![],
        vec![Op::Sync],
        vec![Op::Fsync(s(about))],
        vec![Op::Fdatasync(s(about))],
        vec![Op::Fsync(s(parent))],
    ]
}

/// Something after the point of durability, never synced: it must not undo what was promised.
fn later() -> Vec<Op> {
    vec![Op::Create(s("A/later")), Op::Write(s("A/later"), 0, 5000), Op::Unlink(s("A/empty"))]
}

/// Every operation with every way of asking for durability.
pub fn depth_one() -> Vec<Vec<Op>> {
    let with = |(ops, about, parent): Case| {
        persist(about, parent).map(|sync| [ops.clone(), sync, later()].concat())
    };
    cases().into_iter().flat_map(with).collect()
}

/// Three operations, with or without durability behind each, as `seed` chooses.
pub fn triple(seed: u64) -> Vec<Op> {
    let (mut rng, cases, mut all) = (Rng::new(seed), cases(), Vec::new());
    for _ in 0..3 {
        let (ops, about, parent) = &cases[rng.below(cases.len() as u64) as usize];
        let sync = persist(about, parent)[rng.below(5) as usize].clone();
        all.extend([ops.clone(), sync].concat());
    }
    all
}

/// Every pair of operations: durable between them or not, durable behind them or not.
pub fn depth_two() -> Vec<Vec<Op>> {
    let mut all = Vec::new();
    for (first, about, _) in cases() {
        for (second, about_second, parent) in cases() {
            for (between, behind) in [(0, 2), (2, 4), (1, 0), (2, 3), (0, 4)] {
                let between = persist(about, "")[between].clone();
                let behind = persist(about_second, parent)[behind].clone();
                all.push([first.clone(), between, second.clone(), behind].concat());
            }
        }
    }
    all
}
