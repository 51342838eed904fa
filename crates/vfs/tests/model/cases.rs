//! Shrunken failures of the past, by what was wrong. Each runs on every stack.

use super::everywhere;
use polylane_testkit::ops::{Op, Step};
use polylane_vfs::fs::Kind;

const CREATE: i32 = libc::O_CREAT | libc::O_RDWR;

fn step(who: usize, op: Op) -> Step {
    Step { who, op }
}

fn mkdir(who: usize, path: &str, perm: u32) -> Step {
    step(who, Op::Mkdir { path: path.into(), perm })
}

fn open(who: usize, slot: u8, path: &str, flags: i32, perm: u32) -> Step {
    step(who, Op::Open { slot, path: path.into(), flags, perm })
}

fn rename(who: usize, from: &str, to: &str, flags: u32) -> Step {
    step(who, Op::Rename { from: from.into(), to: to.into(), flags })
}

/// The kind is looked at before the rights.
#[test]
fn truncating_a_socket_of_another_user_is_einval() {
    everywhere(&[
        step(0, Op::Mknod { path: "b".into(), kind: Kind::Socket, perm: 0o600 }),
        step(1, Op::Truncate { path: "b".into(), size: 258_049 }),
    ]);
}

/// Set-gid without group execution is kept for members of the group only.
#[test]
fn a_write_by_a_non_member_clears_set_gid() {
    everywhere(&[
        open(0, 0, "e", CREATE, 0o2644),
        step(2, Op::Write { slot: 0, at: Some(0), len: 5354, fill: 214 }),
        step(0, Op::StatOpen { slot: 0 }),
    ]);
}

/// Set-id bits go before the range is looked at, as in ext4 of Linux.
#[test]
fn a_refused_fallocate_clears_set_id_bits() {
    everywhere(&[
        open(0, 0, "b", CREATE, 0o6755),
        step(1, Op::Fallocate { slot: 0, flags: 32, at: 69_632, len: 4096 }),
        step(0, Op::StatOpen { slot: 0 }),
    ]);
}

/// Both directories are walked to, then the old name is looked for, then the new one's length
/// counts.
#[test]
fn a_long_new_name_counts_after_directories_and_the_old_name() {
    let long = "n".repeat(256);
    everywhere(&[
        mkdir(0, "d", 0o777),
        rename(0, &format!("d/{long}"), "none/b", 0),
        rename(0, "d", &format!("none/{long}"), 0),
        rename(0, "none", &long, 0),
        rename(0, "d", &long, 0),
        rename(0, &long, "d", 2),
        step(0, Op::Link { from: "none".into(), to: long.clone() }),
        step(0, Op::Link { from: "d".into(), to: format!("none/{long}") }),
    ]);
}

/// Rights come before a name that is its prefix alone.
#[test]
fn attributes_without_a_name_are_refused_after_rights() {
    let change = |who| {
        let (path, name) = (String::from("b"), String::from("user."));
        step(who, Op::RemoveXattr { path, name })
    };
    let get = |who, path: &str| {
        let (path, name) = (String::from(path), String::from("user."));
        step(who, Op::GetXattr { path, name })
    };
    everywhere(&[
        open(0, 0, "b", CREATE, 0o600),
        step(0, Op::Mknod { path: "p".into(), kind: Kind::Fifo, perm: 0o600 }),
        change(1),
        change(0),
        get(1, "b"),
        get(0, "b"),
        get(0, "p"),
    ]);
}

/// What lies past the end of the source is not copied and does not overlap.
#[test]
fn copying_past_the_end_within_one_file_is_no_overlap() {
    everywhere(&[
        open(1, 0, "e", CREATE, 0o644),
        step(0, Op::Copy { from: 0, at: 0, to: 0, to_at: 81, len: 16_384 }),
        step(0, Op::Write { slot: 0, at: Some(0), len: 100, fill: 1 }),
        step(0, Op::Copy { from: 0, at: 50, to: 0, to_at: 100, len: 16_384 }),
        step(0, Op::Copy { from: 0, at: 50, to: 0, to_at: 100, len: 16_384 }),
    ]);
}

/// The copier of a range was taken for a member of group 0.
#[test]
fn a_copied_range_clears_set_gid_of_group_0() {
    everywhere(&[
        open(0, 0, "b", CREATE, 0o644),
        step(0, Op::Resize { slot: 0, size: 4096 }),
        open(0, 1, "c", CREATE, 0o2644),
        step(0, Op::Copy { from: 0, at: 22, to: 1, to_at: 12, len: 1833 }),
        step(1, Op::StatOpen { slot: 1 }),
    ]);
}

/// The new name is looked at before the file's last name.
#[test]
fn linking_a_removed_file_over_a_name_is_eexist() {
    everywhere(&[
        mkdir(0, "d", 0o777),
        open(0, 2, "c", CREATE, 0o755),
        step(2, Op::Unlink { path: "c".into() }),
        step(0, Op::LinkOpen { slot: 2, to: "d".into() }),
        step(0, Op::LinkOpen { slot: 2, to: "e".into() }),
    ]);
}

/// Two names of one inode: nothing happens, whoever asks.
#[test]
fn renaming_a_file_to_itself_needs_no_right() {
    everywhere(&[
        mkdir(0, "a", 0o555),
        open(0, 1, "a/c", CREATE, 0o600),
        step(0, Op::Link { from: "a/c".into(), to: "a/d".into() }),
        rename(2, "a/c", "a/c", 0),
        rename(2, "a/c", "a/d", 0),
        rename(2, "a/c", "a/d", 2),
        rename(2, "a/c", "a/d", 1),
        rename(2, "a/c", "a/e", 0),
    ]);
}
