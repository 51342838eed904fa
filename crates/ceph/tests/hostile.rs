//! What a hostile program or client can ask for: no argument ends the service, whose client library
//! checks some of its own with assertions.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the test says
//! so and passes: `make test-ceph` starts one. `POLYLANE_SEED` chooses another course.

mod common;

use common::{CTX, cluster, directory, mount, settings};
use polylane_base::rng::Rng;
use polylane_base::{Errno, Gid, Ino, Time, Uid};
use polylane_ceph::CephFs;
use polylane_testkit::effort;
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{
    Fallocate, FileSystem, Kind, NewNode, RenameMode, SeekFor, SetTime, SharedLocks, XattrMode,
};
use polylane_vfs::{LockFamily, LockKind, LockOwner, LockRequest, SetAttr};

/// Numbers at which something overflows, changes its sign or means something else.
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    0xfff_ffff,
    1 << 28,
    1 << 40,
    1 << 62,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

fn number(random: &mut Rng) -> u64 {
    match random.below(3) {
        0 => random.next_u64(),
        1 => random.next_u64() >> random.below(64),
        _ => *random.pick(&NUMBERS),
    }
}

fn names(fs: &CephFs, dir: Ino, from: u64) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
    let mut names = Vec::new();
    fs.readdir(&CTX, dir, from, &mut |entry| {
        names.push((entry.name.to_vec(), entry.next));
        names.len() < 2000
    })?;
    Ok(names)
}

#[test]
fn no_argument_ends_the_client() {
    let Some(cluster) = cluster() else { return };
    let seed = effort::number("POLYLANE_SEED", 1);
    let fs = mount(settings(&cluster, &directory(&cluster)));
    let mut random = Rng::new(seed);
    positions_of_listings(&fs, &mut random);
    offsets_and_states(&fs, &mut random);
    attributes(&fs, &mut random);
    names_and_snapshots(&fs, &mut random);
    locks(&fs, &mut random);
    let root = fs.root().unwrap().ino;
    let made = fs.create(&CTX, root, b"after", &node(Kind::File, 0o600)).unwrap().node;
    fs.write(&CTX, made.ino, 0, &mut &b"all"[..]).unwrap();
    fs.fsync(&CTX, made.ino, false).unwrap_or_else(|errno| panic!("seed {seed}: {errno}"));
}

fn positions_of_listings(fs: &CephFs, random: &mut Rng) {
    let root = fs.root().unwrap().ino;
    let dir = fs.create(&CTX, root, b"listed", &node(Kind::Dir, 0o700)).unwrap().node.ino;
    for number in 0..60 {
        let name = format!("name-{number}");
        fs.create(&CTX, dir, name.as_bytes(), &node(Kind::Fifo, 0o600)).unwrap();
    }
    let whole = names(fs, dir, 0).unwrap();
    assert_eq!(whole.len(), 60);
    for _ in 0..300 {
        let near = whole[random.below(60) as usize].1;
        let from = match random.below(3) {
            0 => near ^ (1 << random.below(64)),
            1 => near.wrapping_add(number(random)),
            _ => number(random),
        };
        if let Ok(listed) = names(fs, dir, from) {
            assert!(listed.len() <= 60, "from {from:#x}: {} names", listed.len());
        }
    }
    assert_eq!(names(fs, dir, 0).unwrap(), whole);
}

fn offsets_and_states(fs: &CephFs, random: &mut Rng) {
    let root = fs.root().unwrap().ino;
    let ino = fs.create(&CTX, root, b"data", &node(Kind::File, 0o600)).unwrap().node.ino;
    let hole =
        |at, len| fs.fallocate(&CTX, ino, Fallocate::PunchHole, at, len).map(|attr| attr.size);
    fs.write(&CTX, ino, 5, &mut &b"bytes"[..]).unwrap();
    // The library would make a list of all objects that this could be in.
    assert_eq!(hole(7, 1 << 62), Ok(10));
    let mut start = [1; 20];
    assert_eq!(fs.read(&CTX, ino, 0, start.len(), &mut start.as_mut_slice()), Ok(10));
    assert_eq!(&start[..10], b"\0\0\0\0\0by\0\0\0");
    for _ in 0..300 {
        let (at, len) = (number(random), number(random));
        let few = (len % 70_000) as usize;
        let time = |random: &mut Rng| {
            let nsec = random.next_u64() as u32 % 1_000_000_000;
            Some(SetTime::At(Time { sec: number(random).cast_signed(), nsec }))
        };
        let _ = match random.below(6) {
            0 => fs.read(&CTX, ino, at, few, &mut vec![0; few].as_mut_slice()).map(drop),
            1 => fs.write(&CTX, ino, at, &mut vec![7; few].as_slice()).map(drop),
            2 => hole(at, len).map(drop),
            3 => fs.seek(&CTX, ino, at, SeekFor::Hole).map(drop),
            4 => {
                let set =
                    SetAttr { atime: time(random), mtime: time(random), ..SetAttr::default() };
                fs.setattr(&CTX, ino, &set).map(drop)
            }
            _ => {
                // Where the VFS lets it be: sizes past the largest one are refused there.
                let size = at % fs.character().max_file_size;
                let (perm, uid) = (Some(len as u32), Some(Uid(at as u32)));
                let set = SetAttr { size: Some(size), perm, uid, ..SetAttr::default() };
                fs.setattr(&CTX, ino, &set).map(drop)
            }
        };
    }
    fs.setattr(&CTX, ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.fsync(&CTX, ino, false).unwrap();
}

fn attributes(fs: &CephFs, random: &mut Rng) {
    const NAMES: [&str; 20] = [
        "ceph.",
        "ceph.dir.layout",
        "ceph.dir.layout.pool",
        "ceph.dir.layout.stripe_unit",
        "ceph.dir.layout.json",
        "ceph.file.layout",
        "ceph.file.layout.object_size",
        "ceph.quota",
        "ceph.quota.max_bytes",
        "ceph.quota.max_files",
        "ceph.dir.pin",
        "ceph.dir.pin.random",
        "ceph.dir.pin.distributed",
        "ceph.dir.subvolume",
        "ceph.dir.rctime",
        "ceph.snap.btime",
        "ceph.caps",
        "ceph.mirror.info",
        "user.x",
        "security.x",
    ];
    const VALUES: [&[u8]; 12] = [
        b"",
        b"0",
        b"1",
        b"-1",
        b"99999999999999999999",
        b"0.5",
        b"max_bytes=1 max_files=-5",
        b"stripe_unit=65536 stripe_count=0 object_size=1",
        b"stripe_unit=3 object_size=18446744073709551615 pool=",
        b"pool=nothing",
        b"{\"stripe_unit\": 1",
        b"\x00\xff=\n =",
    ];
    let root = fs.root().unwrap().ino;
    for kind in [Kind::Dir, Kind::File, Kind::Fifo, Kind::Symlink] {
        let name = format!("attributes-{kind:?}");
        let new = NewNode { target: b"nowhere", ..node(kind, 0o700) };
        let ino = fs.create(&CTX, root, name.as_bytes(), &new).unwrap().node.ino;
        for _ in 0..60 {
            let name = random.pick(&NAMES).as_bytes();
            let value = *random.pick(&VALUES);
            let mode = *random.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
            let _ = match random.below(4) {
                0 => fs.getxattr(&CTX, ino, name).map(drop),
                1 => fs.removexattr(&CTX, ino, name).map(drop),
                2 => fs.listxattr(&CTX, ino).map(drop),
                _ => fs.setxattr(&CTX, ino, name, value, mode).map(drop),
            };
        }
    }
}

fn names_and_snapshots(fs: &CephFs, random: &mut Rng) {
    let root = fs.root().unwrap().ino;
    let dir = fs.create(&CTX, root, b"named", &node(Kind::Dir, 0o700)).unwrap().node.ino;
    fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap();
    let snapshots = fs.lookup(&CTX, dir, b".snap").unwrap().ino;
    fs.create(&CTX, snapshots, b"one", &node(Kind::Dir, 0o700)).unwrap();
    let within = fs.lookup(&CTX, snapshots, b"one").unwrap().ino;
    let old = fs.lookup(&CTX, within, b"f").unwrap().ino;
    let dirs = [root, dir, snapshots, within, old];
    let long = vec![b'n'; 255];
    let names: [&[u8]; 9] =
        [b"f", b"g", b".snap", b"one", b"two", b"_one_1", b"\xff\xfe", &long, b"named"];
    for _ in 0..200 {
        let (one, other) = (*random.pick(&dirs), *random.pick(&dirs));
        let (from, to) = (*random.pick(&names), *random.pick(&names));
        let kind = *random.pick(&[Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Char]);
        let new = NewNode { target: from, uid: Uid(7), gid: Gid(8), ..node(kind, 0o4755) };
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        let _ = match random.below(12) {
            0 => fs.create(&CTX, one, to, &new).map(drop),
            1 => fs.link(&CTX, old, one, to).map(drop),
            2 => fs.unlink(&CTX, one, from).map(drop),
            3 => fs.rmdir(&CTX, one, from).map(drop),
            4 => fs.rename(&CTX, one, from, other, to, RenameMode::Replace).map(drop),
            5 => fs.setattr(&CTX, one, &set).map(drop),
            6 => fs.setxattr(&CTX, one, b"user.x", b"y", XattrMode::Any).map(drop),
            7 => fs.fsync(&CTX, one, false),
            8 => fs.readlink(&CTX, one).map(drop),
            9 => fs.write(&CTX, one, 0, &mut &b"x"[..]).map(drop),
            10 => self::names(fs, one, 0).map(drop),
            _ => fs.lookup(&CTX, one, from).map(drop),
        };
    }
}

fn locks(fs: &CephFs, random: &mut Rng) {
    let root = fs.root().unwrap().ino;
    let ino = fs.create(&CTX, root, b"locked", &node(Kind::File, 0o600)).unwrap().node.ino;
    let dir = fs.create(&CTX, root, b"locked-dir", &node(Kind::Dir, 0o700)).unwrap().node.ino;
    for _ in 0..150 {
        let kinds = [LockKind::Read, LockKind::Write, LockKind::Unlock];
        let families = [LockFamily::Posix, LockFamily::Ofd, LockFamily::Flock];
        let (one, other) = (number(random), number(random));
        let lock = LockRequest {
            owner: LockOwner(random.below(3).into()),
            family: *random.pick(&families),
            kind: *random.pick(&kinds),
            start: one.min(other),
            end: one.max(other),
            pid: number(random) as u32,
            user: None,
        };
        let ino = if random.below(5) == 0 { dir } else { ino };
        let _ = match random.below(3) {
            0 => SharedLocks::get(fs, ino, &lock).map(drop),
            _ => SharedLocks::set(fs, ino, &lock),
        };
    }
}
