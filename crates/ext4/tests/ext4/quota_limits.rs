//! Limits of quotas: what a user, a group or a project may not take is refused before anything
//! changes, as Linux refuses it; root takes what it wants, and what is given back can be taken
//! again.

use std::process::Command;
use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_base::{Clock, Errno, Gid, IdRange, Ino, Time, Uid};
use polylane_block::ram::RamDevice;
use polylane_ext4::Ext4;
use polylane_testkit::acl;
use polylane_testkit::fs_suite::node;
use polylane_testkit::quota::{GROUPS, Limits, USERS, set_limits};
use polylane_vfs::fs::{Acl, Acls, Fallocate, FileSystem, Kind, NewNode, SetAttr, XattrMode};
use polylane_vfs::mapped::{IdMap, Mapped};
use polylane_vfs::{Cred, OpCtx};

use crate::common::{self, root};

const FORMATS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "4096", "-O", "quota"],
    &["-t", "ext4", "-b", "1024", "-O", "quota,project"],
    &["-t", "ext4", "-b", "2048", "-O", "quota,^metadata_csum", "-I", "128"],
    &["-t", "ext4", "-b", "4096", "-O", "quota,^extents,^64bit"],
];

/// The user that is limited, and another one.
const LIMITED: u32 = 1000;
const OTHER: u32 = 1001;

/// A clock that stands still.
struct At(i64);

impl Clock for At {
    fn now(&self) -> Time {
        Time { sec: self.0, nsec: 0 }
    }
}

fn user(id: u32) -> Cred {
    Cred { uid: Uid(id), gid: Gid(id), ..Cred::root() }
}

fn make(fs: &Ext4, ctx: &OpCtx<'_>, name: &str, kind: Kind) -> Result<Ino, Errno> {
    let new = NewNode { uid: ctx.uid(), gid: ctx.gid(), ..node(kind, 0o777) };
    fs.create(ctx, root(fs), name.as_bytes(), &new).map(|made| made.node.ino)
}

/// What the VFS does with a write that it keeps first.
fn write(fs: &Ext4, ctx: &OpCtx<'_>, ino: Ino, at: u64, len: u64) -> Result<(), Errno> {
    fs.reserve(ctx, ino, at, len)?;
    fs.write(ctx, ino, at, &mut &vec![7; len as usize][..]).map(|_| ())
}

/// An image on which the user, or the group of the same number, has these limits.
fn limited(format: &[&str], quota: u32, limits: Limits) -> (Arc<RamDevice>, u64) {
    let device = common::make(64, format);
    let fs = common::open(&device);
    for id in [LIMITED, OTHER] {
        // An inode of each has an entry made for it.
        let ino = make(&fs, &OpCtx::as_user(&user(id)), "first", Kind::File).expect("room");
        fs.unlink(&OpCtx::service(), root(&fs), b"first").expect("there");
        fs.forget(ino);
    }
    let block_bytes = fs.statfs(&OpCtx::service()).expect("told").bsize.into();
    fs.close().expect("closes");
    let image = common::save(&device);
    let option = if quota == USERS { "usrquota" } else { "grpquota" };
    let mut tune = Command::new("tune2fs");
    tune.args(["-E", &format!("mount_opts={option}")]).arg(image.path());
    assert!(tune.output().expect("tune2fs runs").status.success());
    set_limits(image.path(), (quota, LIMITED), limits);
    (common::load(&std::fs::read(image.path()).expect("readable")), block_bytes)
}

fn close(fs: &Arc<Ext4>, device: &Arc<RamDevice>) {
    assert_eq!(fs.stopped_by(), None);
    fs.close().expect("closes");
    assert_eq!(common::complaints(device), None);
}

#[test]
fn blocks_past_a_hard_limit_are_refused_and_come_back() {
    if !common::have_tools() {
        return;
    }
    for format in FORMATS {
        let (device, block) = limited(format, USERS, Limits { hard_kib: 64, ..Limits::default() });
        let fs = common::open(&device);
        assert_eq!(fs.read_only_reasons, Vec::<String>::new(), "{format:?}");
        let (limited, other) = (user(LIMITED), user(OTHER));
        let (limited, other) = (OpCtx::as_user(&limited), OpCtx::as_user(&other));
        let ino = make(&fs, &limited, "f", Kind::File).expect("room");
        for round in 0..2 {
            // Kept by the VFS, not written yet: it counts.
            fs.reserve(&limited, ino, 0, 40 << 10).expect("room");
            assert_eq!(fs.reserve(&limited, ino, 40 << 10, 25 << 10), Err(Errno::EDQUOT));
            write(&fs, &limited, ino, 0, 40 << 10).expect("promised");
            write(&fs, &limited, ino, 40 << 10, (24 << 10) - block).expect("room");
            let end = (64 << 10) - block;
            assert_eq!(write(&fs, &limited, ino, end, 2 * block), Err(Errno::EDQUOT));
            // What is there can be written over.
            write(&fs, &limited, ino, 0, 40 << 10).expect("nothing new");
            let mine = make(&fs, &other, &format!("other{round}"), Kind::File).expect("room");
            write(&fs, &other, mine, 0, 200 << 10).expect("not limited");
            write(&fs, &OpCtx::service(), ino, 0, 100 << 10).expect("root takes what it wants");
            assert_eq!(write(&fs, &limited, ino, 100 << 10, 1), Err(Errno::EDQUOT));
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&limited, ino, &cut).expect("cut");
        }
        close(&fs, &device);
    }
}

/// Users of a host whose files have other numbers: one of them is root to the files, and another of
/// the superblock's.
#[test]
fn who_is_kept_as_root_has_limits_and_the_hosts_root_has_none() {
    if !common::have_tools() {
        return;
    }
    const HOST: u32 = 100_000;
    let (device, block) =
        limited(FORMATS[0], GROUPS, Limits { hard_kib: 64, hard_inodes: 4, ..Limits::default() });
    let ext4 = common::open(&device);
    let range = |kept| IdRange { shown: HOST + kept, kept, count: 1 };
    let map = IdMap::new(vec![range(0), range(LIMITED)]).expect("a map");
    let fs = Mapped::new(ext4.clone(), map);
    let kept_as_root = Cred { uid: Uid(HOST), gid: Gid(HOST + LIMITED), ..Cred::root() };
    let ctx = OpCtx::as_user(&kept_as_root);
    let make = |name: &str| {
        let new = NewNode { uid: ctx.uid(), gid: ctx.gid(), ..node(Kind::File, 0o644) };
        fs.create(&ctx, root(&ext4), name.as_bytes(), &new).map(|made| made.node.ino)
    };
    let ino = make("f").expect("room");
    let stored = ext4.getattr(&OpCtx::service(), ino).expect("there");
    assert_eq!((stored.uid, stored.gid), (Uid(0), Gid(LIMITED)), "root's to the files");
    let write = |ctx: &OpCtx<'_>, at, len: u64| {
        fs.reserve(ctx, ino, at, len)?;
        fs.write(ctx, ino, at, &mut &vec![7; len as usize][..]).map(|_| ())
    };
    write(&ctx, 0, (64 << 10) - block).expect("room");
    assert_eq!(write(&ctx, 64 << 10, 2 * block), Err(Errno::EDQUOT));
    let mode = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&ctx, ino, mode, 0, 1 << 20).expect_err("as much as it may have");
    assert_eq!(make("a").and(make("b")).and(make("c")).err(), None, "four inodes");
    assert_eq!(make("d").err(), Some(Errno::EDQUOT));
    let host_root = Cred::root();
    write(&OpCtx::as_user(&host_root), 64 << 10, 1 << 20).expect("the host's root is not limited");
    close(&ext4, &device);
}

#[test]
fn a_directory_grows_no_further_than_its_owner_may() {
    if !common::have_tools() {
        return;
    }
    let (device, _) = limited(FORMATS[1], USERS, Limits { hard_kib: 3, ..Limits::default() });
    let fs = common::open(&device);
    let (limited, other) = (user(LIMITED), user(OTHER));
    let (limited, other) = (OpCtx::as_user(&limited), OpCtx::as_user(&other));
    let dir = make(&fs, &limited, "d", Kind::Dir).expect("room");
    let names = |index: u32| format!("{index:0200}");
    let new = NewNode { uid: Uid(OTHER), gid: Gid(OTHER), ..node(Kind::File, 0o644) };
    let create = |name: String| fs.create(&other, dir, name.as_bytes(), &new).map(|_| ());
    let refused = (0..100).map(names).find_map(|name| create(name).err());
    assert_eq!(refused, Some(Errno::EDQUOT));
    assert_eq!(make(&fs, &limited, "e", Kind::Dir).err(), Some(Errno::EDQUOT));
    close(&fs, &device);
}

#[test]
fn inodes_past_a_hard_limit_are_refused_and_come_back() {
    if !common::have_tools() {
        return;
    }
    for format in FORMATS {
        let (device, _) = limited(format, USERS, Limits { hard_inodes: 5, ..Limits::default() });
        let fs = common::open(&device);
        let limited = user(LIMITED);
        let limited = OpCtx::as_user(&limited);
        let kinds = [Kind::File, Kind::Dir, Kind::Fifo, Kind::Symlink, Kind::File];
        let mut made = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            let target: &[u8] = if kind == Kind::Symlink { b"target" } else { b"" };
            let new = NewNode { uid: Uid(LIMITED), target, ..node(kind, 0o755) };
            let name = format!("n{index}");
            made.push(
                fs.create(&limited, root(&fs), name.as_bytes(), &new).expect("room").node.ino,
            );
        }
        assert_eq!(make(&fs, &limited, "more", Kind::File).err(), Some(Errno::EDQUOT));
        let new = NewNode { uid: Uid(LIMITED), ..node(Kind::File, 0o644) };
        let unnamed = fs.create_unlinked(&limited, root(&fs), &new).err();
        assert_eq!(unnamed, Some(Errno::EDQUOT));
        fs.link(&limited, made[0], root(&fs), b"linked").expect("a name is no inode");
        fs.unlink(&limited, root(&fs), b"n4").expect("there");
        assert_eq!(make(&fs, &limited, "more", Kind::File).err(), Some(Errno::EDQUOT), "open");
        fs.forget(made[4]);
        make(&fs, &limited, "more", Kind::File).expect("one came back");
        close(&fs, &device);
    }
}

/// Lists that get inodes of their own when they are inherited count as those that are set.
#[test]
fn inodes_of_inherited_lists_count() {
    let format = &["-t", "ext4", "-b", "4096", "-O", "quota,ea_inode"];
    let (device, _) = limited(format, USERS, Limits { hard_inodes: 4, ..Limits::default() });
    let fs = common::open(&device);
    let limited = user(LIMITED);
    let limited = OpCtx::as_user(&limited);
    let ends = [(4, 4, acl::NOBODY), (16, 6, acl::NOBODY), (32, 0, acl::NOBODY)];
    let named = (0..1500).map(|uid| (2, 6, 100 + uid));
    let long = acl::value([(1, 6, acl::NOBODY)].into_iter().chain(named).chain(ends));
    let long = Acl::parse(&long).expect("well-formed").expect("a list");
    let new = |kind, access, default| NewNode {
        uid: Uid(LIMITED),
        acls: Acls { access, default },
        ..node(kind, 0o777)
    };
    let two = new(Kind::Dir, Some(&long), Some(&long));
    let first = make(&fs, &limited, "first", Kind::File).expect("one of four");
    make(&fs, &limited, "second", Kind::File).expect("two of four");
    let refused = fs.create(&limited, root(&fs), b"dir", &two);
    assert_eq!(refused.err(), Some(Errno::EDQUOT), "three more are five");
    fs.unlink(&limited, root(&fs), b"first").expect("there");
    fs.forget(first);
    fs.create(&limited, root(&fs), b"dir", &two).expect("four of four");
    let gone = fs.unlink(&limited, root(&fs), b"second").expect("there").node;
    fs.forget(gone.ino);
    let one = new(Kind::File, Some(&long), None);
    let nameless = fs.create_unlinked(&limited, root(&fs), &one);
    assert_eq!(nameless.err(), Some(Errno::EDQUOT));
    close(&fs, &device);
}

#[test]
fn a_soft_limit_is_passed_for_its_grace_time() {
    if !common::have_tools() {
        return;
    }
    let limits = Limits { soft_kib: 16, hard_kib: 64, soft_inodes: 3, ..Limits::default() };
    let (device, _) = limited(FORMATS[0], USERS, limits);
    let fs = common::open(&device);
    let cred = user(LIMITED);
    const WEEK: i64 = 7 * 24 * 3600;
    let begin = 1_000_000_100;
    let clocks = [begin, begin + WEEK - 1, begin + WEEK, begin + WEEK + 1].map(At);
    let at = |index: usize| OpCtx { clock: Some(&clocks[index]), ..OpCtx::as_user(&cred) };
    let ino = make(&fs, &at(0), "f", Kind::File).expect("room");
    write(&fs, &at(0), ino, 0, 20 << 10).expect("grace begins");
    write(&fs, &at(1), ino, 20 << 10, 4 << 10).expect("within");
    assert_eq!(write(&fs, &at(2), ino, 24 << 10, 4 << 10), Err(Errno::EDQUOT), "ended");
    let cut = SetAttr { size: Some(12 << 10), ..SetAttr::default() };
    fs.setattr(&at(2), ino, &cut).expect("cut");
    write(&fs, &at(2), ino, 12 << 10, 8 << 10).expect("grace begins anew");
    write(&fs, &at(3), ino, 20 << 10, 8 << 10).expect("within");
    for name in ["a", "b", "c"] {
        make(&fs, &at(0), name, Kind::File).expect("within");
    }
    make(&fs, &at(1), "d", Kind::File).expect("within");
    assert_eq!(make(&fs, &at(2), "e", Kind::File).err(), Some(Errno::EDQUOT));
    close(&fs, &device);
}

#[test]
fn what_is_given_to_a_group_has_to_fit() {
    if !common::have_tools() {
        return;
    }
    let limits = Limits { hard_kib: 32, hard_inodes: 2, ..Limits::default() };
    let (device, _) = limited(FORMATS[0], GROUPS, limits);
    let fs = common::open(&device);
    let cred = Cred { groups: Arc::new([Gid(LIMITED)]), ..user(OTHER) };
    let ctx = OpCtx::as_user(&cred);
    let give = |ino, gid| {
        let set = SetAttr { gid: Some(Gid(gid)), ..SetAttr::default() };
        fs.setattr(&ctx, ino, &set).map(|attr| attr.gid.0)
    };
    let files = ["a", "b", "c"].map(|name| make(&fs, &ctx, name, Kind::File).expect("room"));
    write(&fs, &ctx, files[0], 0, 40 << 10).expect("the user is not limited");
    assert_eq!(give(files[0], LIMITED), Err(Errno::EDQUOT));
    // What is promised to it counts.
    fs.reserve(&ctx, files[1], 0, 36 << 10).expect("room");
    assert_eq!(give(files[1], LIMITED), Err(Errno::EDQUOT));
    fs.unreserve(files[1], 20 << 10);
    assert_eq!(give(files[1], LIMITED), Ok(LIMITED));
    assert_eq!(fs.reserve(&ctx, files[1], 20 << 10, 16 << 10), Err(Errno::EDQUOT), "it went along");
    assert_eq!(give(files[1], LIMITED), Ok(LIMITED), "to whom it belongs");
    assert_eq!(give(files[2], LIMITED), Ok(LIMITED));
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&ctx, files[0], &cut).expect("cut");
    assert_eq!(give(files[0], LIMITED), Err(Errno::EDQUOT), "no inode more");
    assert_eq!(give(files[2], OTHER), Ok(OTHER));
    assert_eq!(give(files[0], LIMITED), Ok(LIMITED));
    close(&fs, &device);
}

#[test]
fn fallocate_and_attributes_stop_at_a_limit() {
    if !common::have_tools() {
        return;
    }
    let (device, _) = limited(FORMATS[0], USERS, Limits { hard_kib: 64, ..Limits::default() });
    let fs = common::open(&device);
    let cred = user(LIMITED);
    let ctx = OpCtx::as_user(&cred);
    let ino = make(&fs, &ctx, "f", Kind::File).expect("room");
    let mode = Fallocate::Allocate { keep_size: true };
    assert_eq!(fs.fallocate(&ctx, ino, mode, 0, 1 << 20).err(), Some(Errno::EDQUOT));
    assert_eq!(fs.getattr(&ctx, ino).expect("there").blocks, 128, "as much as it may have");
    let set = |value: usize| fs.setxattr(&ctx, ino, b"user.a", &vec![1; value], XattrMode::Any);
    assert_eq!(set(2000).err(), Some(Errno::EDQUOT));
    set(10).expect("within the inode");
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(&ctx, ino, &cut).expect("cut");
    set(2000).expect("room again");
    close(&fs, &device);
}

/// Random writes, cuts and removals: a limited user never has more than it may, and in the end
/// everything can be had again.
#[test]
fn nobody_has_more_than_allowed() {
    if !common::have_tools() {
        return;
    }
    for (seed, format) in FORMATS.iter().enumerate() {
        let limits = Limits { hard_kib: 256, hard_inodes: 12, ..Limits::default() };
        let (device, _) = limited(format, USERS, limits);
        let fs = common::open(&device);
        let cred = user(LIMITED);
        let ctx = OpCtx::as_user(&cred);
        let mut rng = Rng::new(seed as u64);
        let mut files: Vec<(String, Ino)> = Vec::new();
        let (mut refused, mut done) = (0, 0);
        for step in 0..400 {
            let at = rng.below(files.len().max(1) as u64) as usize;
            let result = match (rng.below(6), files.get(at).cloned()) {
                (0, _) | (_, None) => {
                    let name = format!("n{step}");
                    make(&fs, &ctx, &name, Kind::File).map(|ino| files.push((name, ino)))
                }
                (1..=3, Some((_, ino))) => {
                    write(&fs, &ctx, ino, rng.below(100_000), 1 + rng.below(60_000))
                }
                (4, Some((_, ino))) => {
                    let set = SetAttr { size: Some(rng.below(50_000)), ..SetAttr::default() };
                    fs.setattr(&ctx, ino, &set).map(|_| ())
                }
                (_, Some((name, ino))) => {
                    fs.unlink(&ctx, root(&fs), name.as_bytes()).expect("there");
                    fs.forget(ino);
                    files.swap_remove(at);
                    Ok(())
                }
            };
            match result {
                Ok(()) => done += 1,
                Err(Errno::EDQUOT) => refused += 1,
                Err(errno) => panic!("{errno} at step {step}"),
            }
            let sectors = |ino| fs.getattr(&ctx, ino).expect("there").blocks;
            let all: u64 = files.iter().map(|(_, ino)| sectors(*ino)).sum();
            // Blocks of a tree come with the write-back, and are not refused.
            assert!(all <= 2 * (256 + 64) && files.len() <= 12, "{all} sectors, {}", files.len());
        }
        assert!(refused > 5 && done > 50, "{refused} refused, {done} done");
        for (name, ino) in files.drain(..) {
            fs.unlink(&ctx, root(&fs), name.as_bytes()).expect("there");
            fs.forget(ino);
        }
        let ino = make(&fs, &ctx, "all", Kind::File).expect("room");
        write(&fs, &ctx, ino, 0, 200 << 10).expect("all of it");
        close(&fs, &device);
    }
}

/// Blocks that a file has, as it tells.
fn blocks_of(fs: &Ext4, ino: Ino, block: u64) -> u64 {
    fs.getattr(&OpCtx::service(), ino).expect("there").blocks * 512 / block
}

/// A file of the model: its owner, whose group has the same number, and blocks at its end that are
/// promised and not written.
struct Modelled {
    name: String,
    ino: Ino,
    owner: u32,
    pending: u64,
}

/// Who takes what of a file system on which one user, or the group of the same number, may have
/// [`KIB`] and [`INODES`].
struct Model<'a> {
    fs: &'a Ext4,
    block: u64,
    files: Vec<Modelled>,
}

const KIB: u64 = 80;
const INODES: u64 = 5;
const USERS_OF_MODEL: [u32; 3] = [LIMITED, OTHER, 0];

impl Model<'_> {
    /// Whether so many more blocks and inodes are within the limits.
    fn fits(&self, owner: u32, (blocks, inodes): (u64, u64)) -> bool {
        let his = self.files.iter().filter(|file| file.owner == owner);
        let (has_blocks, has_inodes) = his.fold((0, 0), |(blocks, inodes), file| {
            (blocks + blocks_of(self.fs, file.ino, self.block) + file.pending, inodes + 1)
        });
        let of_blocks = blocks == 0 || has_blocks + blocks <= KIB * 1024 / self.block;
        owner != LIMITED || of_blocks && (inodes == 0 || has_inodes + inodes <= INODES)
    }

    /// Behind all that a file has: what fallocate was refused half-way lies past its size.
    fn end_of(&self, ino: Ino) -> u64 {
        let size = self.fs.getattr(&OpCtx::service(), ino).expect("there").size;
        size.div_ceil(self.block).max(blocks_of(self.fs, ino, self.block))
    }

    /// A random change: whether it is within the limits, and what came of it.
    fn step(&mut self, rng: &mut Rng, ctx: &OpCtx<'_>, name: &str) -> (bool, Result<(), Errno>) {
        let (fs, block, is_root) = (self.fs, self.block, ctx.is_root());
        let at = rng.below(self.files.len().max(1) as u64) as usize;
        let place = self.files.get(at).map(|file| (file.ino, file.owner, file.pending));
        match (rng.below(9), place) {
            (0 | 1, _) | (_, None) => {
                let fits = is_root || self.fits(ctx.uid().0, (0, 1));
                let made = make(fs, ctx, name, Kind::File).map(|ino| {
                    let (name, owner) = (name.to_owned(), ctx.uid().0);
                    self.files.push(Modelled { name, ino, owner, pending: 0 });
                });
                (fits, made)
            }
            (2..=4, Some((ino, owner, pending))) => {
                let (from, more) = (self.end_of(ino) + pending, 1 + rng.below(24));
                let fits = is_root || self.fits(owner, (more, 0));
                let kept = fs.reserve(ctx, ino, from * block, more * block);
                (fits, kept.map(|()| self.files[at].pending += more))
            }
            (5, Some((ino, _, pending @ 1..))) => {
                // What the write-back does, whoever wrote: all that is promised.
                let (from, bytes) = (self.end_of(ino), vec![7; (pending * block) as usize]);
                self.files[at].pending = 0;
                let written =
                    fs.write(&OpCtx::service(), ino, from * block, &mut &bytes[..]).map(drop);
                (true, written)
            }
            (6, Some((ino, owner, pending))) => {
                let to = USERS_OF_MODEL[rng.below(3) as usize];
                let (uid, gid) = (Some(Uid(to)), Some(Gid(to)));
                let his = (blocks_of(fs, ino, block) + pending, 1);
                let fits = is_root || owner == to || self.fits(to, his);
                let given = fs.setattr(ctx, ino, &SetAttr { uid, gid, ..SetAttr::default() });
                (fits, given.map(|_| self.files[at].owner = to))
            }
            (7, Some((ino, owner, 0))) => {
                let (has, want) = (blocks_of(fs, ino, block), 1 + rng.below(20));
                let fits = is_root || self.fits(owner, (want, 0));
                let mode = Fallocate::Allocate { keep_size: false };
                let told = fs.fallocate(ctx, ino, mode, self.end_of(ino) * block, want * block);
                let all = blocks_of(fs, ino, block) - has;
                assert!(told.is_err() || all >= want, "{all} of {want}");
                (fits, told.map(drop))
            }
            (_, Some((ino, ..))) => {
                let file = self.files.swap_remove(at);
                fs.unlink(ctx, root(fs), file.name.as_bytes()).expect("there");
                fs.forget(ino);
                (true, Ok(()))
            }
        }
    }
}

/// Random changes by several users, each of them limited or not, also of whose files are: a change
/// is refused if, and only if, its owner would have more than it may with it.
#[test]
fn refusals_are_those_of_a_model() {
    if !common::have_tools() {
        return;
    }
    let (mut refused, mut done) = (0, 0);
    for seed in 0..6u64 {
        let kind = [USERS, GROUPS][seed as usize % 2];
        let limits = Limits { hard_kib: KIB, hard_inodes: INODES, ..Limits::default() };
        let (device, block) = limited(FORMATS[seed as usize % 2], kind, limits);
        let fs = common::open(&device);
        let mut rng = Rng::new(0x900 + seed);
        let mut model = Model { fs: &fs, block, files: Vec::new() };
        for step in 0..500 {
            let who = USERS_OF_MODEL[rng.below(3) as usize];
            let cred = Cred { groups: Arc::new([Gid(LIMITED), Gid(OTHER)]), ..user(who) };
            let (fits, told) = model.step(&mut rng, &OpCtx::as_user(&cred), &format!("n{step}"));
            match told {
                Ok(()) => done += 1,
                Err(Errno::EDQUOT) => refused += 1,
                Err(errno) => panic!("{errno} in step {step} of {seed}"),
            }
            assert_eq!(told.is_ok(), fits, "step {step} of {seed}: {told:?}");
        }
        close(&fs, &device);
    }
    assert!(refused > 80 && done > 500, "{refused} refused, {done} done");
}

/// Several threads at the last blocks and inodes at once, while root gives their files to and fro:
/// nobody gets more than it may, and nothing stays owed.
#[test]
fn many_at_once_have_no_more_than_allowed() {
    if !common::have_tools() {
        return;
    }
    let limits = Limits { hard_kib: 256, hard_inodes: 40, ..Limits::default() };
    let (device, block) = limited(FORMATS[0], USERS, limits);
    let fs = common::open(&device);
    let cred = user(LIMITED);
    let dirs = ["a", "b", "c"]
        .map(|name| make(&fs, &OpCtx::as_user(&cred), name, Kind::Dir).expect("room"));
    std::thread::scope(|scope| {
        for (seed, dir) in (1u64..).zip(dirs) {
            let (fs, cred) = (&fs, &cred);
            scope.spawn(move || {
                let (mut rng, ctx) = (Rng::new(seed), OpCtx::as_user(cred));
                for step in 0..300 {
                    let name = format!("{step:0100}");
                    let new = NewNode { uid: ctx.uid(), gid: ctx.gid(), ..node(Kind::File, 0o600) };
                    let made = fs.create(&ctx, dir, name.as_bytes(), &new);
                    let Ok(made) = made.inspect_err(|errno| assert_eq!(*errno, Errno::EDQUOT))
                    else {
                        continue;
                    };
                    let (ino, len) = (made.node.ino, 1 + rng.below(60_000));
                    let promised = fs.reserve(&ctx, ino, 0, len);
                    if rng.percent(30) {
                        let to = if rng.percent(50) { OTHER } else { LIMITED };
                        let set = SetAttr { uid: Some(Uid(to)), ..SetAttr::default() };
                        fs.setattr(&OpCtx::service(), ino, &set).expect("root may");
                    }
                    if promised.is_ok() {
                        let bytes = vec![7; len as usize];
                        fs.write(&OpCtx::service(), ino, 0, &mut &bytes[..]).expect("promised");
                    }
                    let mode = Fallocate::Allocate { keep_size: true };
                    let _ = fs.fallocate(&ctx, ino, mode, 0, rng.below(80_000) + 1);
                    fs.unlink(&ctx, dir, name.as_bytes()).expect("there");
                    fs.forget(ino);
                }
            });
        }
    });
    // All can be had again, and no more.
    let has = dirs.map(|dir| blocks_of(&fs, dir, block)).iter().sum::<u64>();
    let ctx = OpCtx::as_user(&cred);
    let ino = make(&fs, &ctx, "all", Kind::File).expect("room");
    let left = (256 << 10) / block - has;
    fs.reserve(&ctx, ino, 0, left * block).expect("nothing stayed owed");
    assert_eq!(fs.reserve(&ctx, ino, left * block, 1), Err(Errno::EDQUOT));
    close(&fs, &device);
}

/// A directory and its parent's growth count together, and so do names that are linked and moved
/// into a directory.
#[test]
fn growth_of_directories_counts() {
    if !common::have_tools() {
        return;
    }
    let (device, block) = limited(FORMATS[0], USERS, Limits { hard_kib: 12, ..Limits::default() });
    let fs = common::open(&device);
    let (limited, other) = (user(LIMITED), user(OTHER));
    let (limited, other) = (OpCtx::as_user(&limited), OpCtx::as_user(&other));
    let dir = make(&fs, &limited, "d", Kind::Dir).expect("room");
    let target = make(&fs, &other, "t", Kind::File).expect("room");
    let name = |index: u32| format!("{index:0250}");
    // The first block takes 15 such names. The one after takes two more: a leaf, and its split.
    for index in 0..15 {
        fs.link(&other, target, dir, name(index).as_bytes()).expect("room");
    }
    assert_eq!(blocks_of(&fs, dir, block), 1);
    let new = NewNode { uid: Uid(LIMITED), gid: Gid(LIMITED), ..node(Kind::Dir, 0o755) };
    let inner = fs.create(&limited, dir, name(15).as_bytes(), &new).err();
    assert_eq!(inner, Some(Errno::EDQUOT), "a block of its own and two of its parent");
    let file = make(&fs, &limited, "f", Kind::File).expect("room");
    fs.reserve(&limited, file, 0, block).expect("room");
    assert_eq!(fs.link(&other, target, dir, name(15).as_bytes()).err(), Some(Errno::EDQUOT));
    let moved = fs.rename(&other, root(&fs), b"t", dir, name(15).as_bytes(), Default::default());
    assert_eq!(moved.err(), Some(Errno::EDQUOT));
    fs.unreserve(file, 0);
    fs.link(&other, target, dir, name(15).as_bytes()).expect("room again");
    assert_eq!(blocks_of(&fs, dir, block), 3);
    close(&fs, &device);
}
