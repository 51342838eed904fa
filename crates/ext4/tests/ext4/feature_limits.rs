//! Limits that an image's features impose: what is past them is refused with Linux's error, before
//! anything changes, and the file system goes on.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use polylane_base::{Errno, Gid, Ino, TestClock, Time, Uid};
use polylane_block::ram::RamDevice;
use polylane_ext4::{Error, Ext4, Options};
use polylane_testkit::acl::{self, NOBODY};
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{
    Acl, Acls, Fallocate, FileSystem, Kind, NewNode, RenameMode, SetAttr, SetTime, XattrMode,
};
use polylane_vfs::{Cred, HostIds, OpCtx};
use tempfile::NamedTempFile;

use crate::common::{self, create, on, root};

fn debugfs(image: &Path, requests: &[&str]) -> String {
    let mut said = String::new();
    for request in requests {
        let done = Command::new("debugfs").args(["-w", "-R", request]).arg(image).output();
        said += &String::from_utf8_lossy(&done.expect("debugfs runs").stdout);
    }
    said
}

/// What mke2fs makes of `args`, changed by debugfs.
fn edited(args: &[&str], requests: &[&str]) -> Arc<RamDevice> {
    let image = NamedTempFile::new().expect("temporary file");
    std::fs::write(image.path(), common::image(32, args)).expect("written");
    debugfs(image.path(), requests);
    common::load(&std::fs::read(image.path()).expect("readable"))
}

#[test]
fn a_symbolic_link_is_shorter_than_a_block() {
    for (block_bytes, size) in [("1024", 1024), ("2048", 2048)] {
        on(32, &["-t", "ext4", "-b", block_bytes], |fs| {
            let target = vec![b't'; size];
            let make = |name: &[u8], len: usize| {
                let link = NewNode { target: &target[..len], ..node(Kind::Symlink, 0o777) };
                fs.create(&OpCtx::service(), root(fs), name, &link).map(|made| made.node.ino)
            };
            let before = fs.statfs(&OpCtx::service()).expect("totals");
            assert_eq!(make(b"long", size), Err(Errno::ENAMETOOLONG));
            assert_eq!(fs.statfs(&OpCtx::service()).expect("totals"), before);
            let made = make(b"longest", size - 1).expect("its NUL has room");
            assert_eq!(fs.readlink(&OpCtx::service(), made), Ok(target[..size - 1].to_vec()));
        });
    }
}

/// One level of index nodes below the root of blocks of 1 KiB: some 15,000 leaves, three of the
/// longest names in each.
#[test]
fn a_full_index_refuses_names_and_the_rest_goes_on() {
    let args = ["-t", "ext4", "-b", "1024", "-N", "50000", "-m", "0", "-J", "size=8"];
    // Lists that have inodes of their own, which are given back.
    let named = (0..1500).map(|user| (2, 6, user));
    let ends = [(4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)];
    let list = acl::value([(1, 6, NOBODY)].into_iter().chain(named).chain(ends));
    let list = Acl::parse(&list).expect("a list").expect("of entries");
    let acls = Acls { access: Some(&list), default: Some(&list) };
    on(160, &[&args[..], &["-O", "ea_inode"]].concat(), |fs| {
        let dir = create(fs, root(fs), "dir", Kind::Dir);
        let file = create(fs, root(fs), "file", Kind::File);
        let name = |kind: char, n: u32| format!("{kind}{n:06}{}", "n".repeat(248));
        // Each name goes to a node of its own: until one of five finds its node full.
        let (mut made, mut lately) = (0, 0);
        while lately < 20 && made < 60_000 {
            let linked = fs.link(&OpCtx::service(), file, dir, name('a', made).as_bytes());
            made += 1;
            lately = if made % 100 == 0 { 0 } else { lately } + u32::from(linked.is_err());
        }
        assert!(lately == 20 && made > 10_000, "{made}");
        let rename = |new: &[u8], mode| {
            let moved = fs.rename(&OpCtx::service(), root(fs), b"file", dir, new, mode).map(drop);
            if moved.is_ok() {
                let back =
                    fs.rename(&OpCtx::service(), dir, new, root(fs), b"file", RenameMode::Replace);
                back.expect("its old name has room");
            }
            moved
        };
        let with_lists = NewNode { acls, ..node(Kind::Dir, 0o700) };
        let mut refused = [0; 5];
        for n in 0..150 {
            if refused.iter().all(|count| *count > 0) {
                break;
            }
            let names = ['b', 'c', 'd', 'e', 'f'].map(|kind| name(kind, n).into_bytes());
            let inodes = fs.statfs(&OpCtx::service()).expect("totals").ffree;
            let tries = [
                fs.link(&OpCtx::service(), file, dir, &names[0]).map(drop),
                fs.create(&OpCtx::service(), dir, &names[1], &with_lists).map(drop),
                rename(&names[2], RenameMode::Replace),
                rename(&names[3], RenameMode::NoReplace),
                rename(&names[4], RenameMode::Whiteout),
            ];
            for (tried, refused) in tries.iter().zip(&mut refused) {
                assert!(matches!(tried, Ok(()) | Err(Errno::ENOSPC)), "{tries:?}");
                *refused += u32::from(tried.is_err());
            }
            if tries.iter().all(Result::is_err) {
                assert_eq!(fs.statfs(&OpCtx::service()).expect("totals").ffree, inodes);
            }
        }
        assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
        create(fs, root(fs), "elsewhere", Kind::File);
        assert!(fs.lookup(&OpCtx::service(), dir, name('a', 0).as_bytes()).is_ok());
    });
}

/// Without an inode for the whiteout nothing is renamed.
#[test]
fn a_whiteout_without_an_inode_changes_nothing() {
    on(16, &["-t", "ext4", "-b", "4096", "-N", "64"], |fs| {
        let mut made = 0;
        let full = loop {
            let name = format!("f{made}");
            match fs.create(&OpCtx::service(), root(fs), name.as_bytes(), &node(Kind::File, 0o600))
            {
                Ok(_) => made += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::ENOSPC);
        let moved =
            fs.rename(&OpCtx::service(), root(fs), b"f0", root(fs), b"new", RenameMode::Whiteout);
        assert_eq!(moved.unwrap_err(), Errno::ENOSPC);
        assert!(fs.lookup(&OpCtx::service(), root(fs), b"f0").is_ok());
        assert_eq!(fs.lookup(&OpCtx::service(), root(fs), b"new").unwrap_err(), Errno::ENOENT);
    });
}

/// Links of a directory are counted past 65,000 only where there is a hash tree.
#[test]
fn a_linear_directory_has_65000_links_and_no_more() {
    if !common::have_tools() {
        return;
    }
    for (features, expected) in [("dir_nlink", Errno::EMLINK), ("^dir_nlink", Errno::EMLINK)] {
        let args = ["-t", "ext4", "-O", features];
        let device = edited(&args, &["mkdir full", "mkdir other", "sif full links_count 65000"]);
        let fs = common::open(&device);
        let full = fs.lookup(&OpCtx::service(), root(&fs), b"full").expect("there").ino;
        let made = fs.create(&OpCtx::service(), full, b"one more", &node(Kind::Dir, 0o700));
        assert_eq!(made.unwrap_err(), expected, "{features}");
        let moved =
            fs.rename(&OpCtx::service(), root(&fs), b"other", full, b"other", RenameMode::Replace);
        assert_eq!(moved.unwrap_err(), expected, "{features}");
        assert_eq!(fs.stopped_by(), None);
        let told = fs.character().max_dir_links > 65_000;
        assert_eq!(told, features == "dir_nlink");
    }
}

#[test]
fn the_first_file_past_two_gib_says_so() {
    let ways: [fn(&Ext4, Ino); 3] = [
        |fs, file| {
            let set = SetAttr { size: Some(3 << 30), ..SetAttr::default() };
            fs.setattr(&OpCtx::service(), file, &set).expect("longer");
        },
        |fs, file| {
            fs.write(&OpCtx::service(), file, (2 << 30) - 4, &mut &[1; 8][..]).expect("room");
        },
        |fs, file| {
            let mode = Fallocate::Allocate { keep_size: false };
            fs.fallocate(&OpCtx::service(), file, mode, 2 << 30, 4096).expect("room");
        },
    ];
    for way in ways {
        on(32, &["-t", "ext4", "-O", "^large_file"], |fs| {
            way(fs, create(fs, root(fs), "file", Kind::File));
        });
    }
}

#[test]
fn without_huge_file_two_tib_are_the_end() {
    for (block_bytes, most) in [("1024", (1u64 << 41) - 1024), ("4096", (1 << 41) - 4096)] {
        on(32, &["-t", "ext4", "-b", block_bytes, "-O", "^huge_file"], |fs| {
            let file = create(fs, root(fs), "file", Kind::File);
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(fs.character().max_file_size, most);
            for past in [most + 1, 3 << 40, 1 << 50] {
                assert_eq!(
                    fs.setattr(&OpCtx::service(), file, &size(past)).unwrap_err(),
                    Errno::EFBIG
                );
                assert_eq!(
                    fs.write(&OpCtx::service(), file, past, &mut &[1][..]).unwrap_err(),
                    Errno::EFBIG
                );
                let mode = Fallocate::Allocate { keep_size: true };
                assert_eq!(
                    fs.fallocate(&OpCtx::service(), file, mode, past, 1).unwrap_err(),
                    Errno::EFBIG
                );
                assert_eq!(fs.reserve(&OpCtx::service(), file, past, 1), Err(Errno::EFBIG));
            }
            fs.setattr(&OpCtx::service(), file, &size(most)).expect("as long as can be");
            fs.write(&OpCtx::service(), file, most - 1, &mut &[1][..]).expect("its last byte");
        });
    }
}

/// What an operation asks of the file system at a full disk: whether it was given a block.
type Ask = fn(&Ext4, &OpCtx<'_>, Ino) -> Result<(), Errno>;

/// What takes a block, each in a directory of its own whose only block has no room for a long name.
const ASKS: [(&str, Ask); 7] = [
    ("reserve", |fs, ctx, dir| fs.reserve(ctx, find(fs, dir, "own"), 0, 4096)),
    ("fallocate", |fs, ctx, dir| {
        let mode = Fallocate::Allocate { keep_size: false };
        fs.fallocate(ctx, find(fs, dir, "own"), mode, 0, 4096).map(drop)
    }),
    ("mkdir", |fs, ctx, dir| fs.create(ctx, dir, b"d", &node(Kind::Dir, 0o700)).map(drop)),
    ("symlink", |fs, ctx, dir| {
        let link = NewNode { target: &[b't'; 80], ..node(Kind::Symlink, 0o777) };
        fs.create(ctx, dir, b"s", &link).map(drop)
    }),
    ("link", |fs, ctx, dir| fs.link(ctx, find(fs, dir, "own"), dir, &[b'l'; 250]).map(drop)),
    ("rename", |fs, ctx, dir| {
        fs.rename(ctx, dir, b"own", dir, &[b'r'; 250], RenameMode::Replace).map(drop)
    }),
    ("setxattr", |fs, ctx, dir| {
        fs.setxattr(ctx, find(fs, dir, "own"), b"user.a", &[1; 2000], XattrMode::Any).map(drop)
    }),
];

fn find(fs: &Ext4, dir: Ino, name: &str) -> Ino {
    fs.lookup(&OpCtx::service(), dir, name.as_bytes()).expect("there").ino
}

/// A directory with the file `own`, and no room for a name of 250 bytes.
fn full_dir(fs: &Ext4, name: &str) -> Ino {
    let dir = create(fs, root(fs), name, Kind::Dir);
    create(fs, dir, "own", Kind::File);
    let mut nth = 0;
    while fs.getattr(&OpCtx::service(), dir).expect("there").size == 4096 {
        create(fs, dir, &format!("{nth:0240}"), Kind::File);
        nth += 1;
    }
    // The last one took a second block, which has room for as many as the first.
    for more in 2..nth {
        create(fs, dir, &format!("{:0240}", 100 + more), Kind::File);
    }
    assert_eq!(fs.getattr(&OpCtx::service(), dir).expect("there").size, 8192);
    dir
}

/// A user without groups.
fn user(uid: u32) -> Cred {
    Cred { uid: Uid(uid), gid: Gid(uid), ..Cred::root() }
}

/// What is kept for privileged users, root and the superblock's, is given to nobody else, whatever
/// is asked.
#[test]
fn kept_blocks_are_for_privileged_users() {
    if !common::have_tools() {
        return;
    }
    let args = ["-t", "ext4", "-b", "4096", "-m", "20", "-O", "^dir_index", "-E", "root_owner=0:0"];
    // Who is root, or the superblock's user, by the numbers of the files alone is neither.
    let of_host = |uid| HostIds { uid: Uid(uid), gid: Gid(uid), groups: Arc::new([]) };
    let kept_as = |kept, host| Cred { host: Some(of_host(host)), ..user(kept) };
    let (strangers, resuids) = ([user(7), kept_as(0, 7), kept_as(9, 7)], [user(9), kept_as(7, 9)]);
    let [resuid, mapped_resuid] = resuids.each_ref().map(OpCtx::as_user);
    for (privileged, stranger) in
        [OpCtx::service(), resuid, mapped_resuid].into_iter().zip(&strangers)
    {
        let device = edited(&args, &["ssv def_resuid 9"]);
        let fs = &common::open(&device);
        let stranger = OpCtx::as_user(stranger);
        let dirs: Vec<Ino> = ASKS.iter().map(|(name, _)| full_dir(fs, name)).collect();
        let spare = create(fs, root(fs), "spare", Kind::File);
        // All that a user may have, in smaller and smaller parts.
        let (mut at, mut len) = (0, 32 << 20);
        while len >= 4096 {
            match fs.reserve(&stranger, spare, at, len) {
                Ok(()) => at += len,
                Err(errno) => {
                    assert_eq!(errno, Errno::ENOSPC);
                    len /= 2;
                }
            }
        }
        for ((name, ask), dir) in ASKS.iter().zip(&dirs) {
            assert_eq!(ask(fs, &stranger, *dir), Err(Errno::ENOSPC), "{name} by a user");
        }
        let empty = NewNode { uid: Uid(7), gid: Gid(7), ..node(Kind::File, 0o600) };
        fs.create(&stranger, root(fs), b"empty", &empty).expect("takes no block");
        for ((name, ask), dir) in ASKS.iter().zip(&dirs) {
            assert_eq!(ask(fs, &privileged, *dir), Ok(()), "{name} by {:?}", privileged.uid());
        }
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None);
    }
}

/// Attributes whose prefixes are not known here stay as they are, in the inode and in its block.
#[test]
fn attributes_of_unknown_kinds_are_kept_and_not_shown() {
    if !common::have_tools() {
        return;
    }
    let long = "l".repeat(200);
    let mut requests: Vec<String> = vec!["write /etc/hostname f".into()];
    for name in ["user.a", "gnu.translator", "system.richacl", "system.other"] {
        requests.push(format!("ea_set f {name} short"));
    }
    requests.push(format!("ea_set f gnu.author {long}"));
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let device = edited(&["-t", "ext4"], &requests);
    assert_eq!(common::complaints(&device), None);
    let fs = common::open(&device);
    let file = fs.lookup(&OpCtx::service(), root(&fs), b"f").expect("there").ino;
    assert_eq!(fs.listxattr(&OpCtx::service(), file), Ok(vec![b"user.a".to_vec()]));
    assert_eq!(fs.getxattr(&OpCtx::service(), file, b"user.a"), Ok(b"short".to_vec()));
    assert_eq!(fs.getxattr(&OpCtx::service(), file, b"gnu.author"), Err(Errno::EOPNOTSUPP));
    fs.setxattr(&OpCtx::service(), file, b"user.b", &[b'b'; 300], XattrMode::Any).expect("room");
    fs.removexattr(&OpCtx::service(), file, b"user.a").expect("there");
    assert_eq!(fs.listxattr(&OpCtx::service(), file), Ok(vec![b"user.b".to_vec()]));
    assert_eq!(fs.stopped_by(), None);
    fs.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
    let said = debugfs(common::save(&device).path(), &["ea_list f"]);
    let others = ["system.richacl (5)", "system.other (5)", "gnu.author (200)"];
    for kept in others.into_iter().chain(["gnu.translator (5) = \"short\""]) {
        assert!(said.contains(kept), "{kept}: {said}");
    }
}

/// Without `ext_attr` in the superblock e2fsck takes attributes for damage, and removes them.
#[test]
fn the_first_attribute_sets_its_feature() {
    if !common::have_tools() {
        return;
    }
    for (args, length) in [(&["-I", "256"], 4), (&["-I", "256"], 400), (&["-I", "128"], 4)] {
        for journal in ["-O^ext_attr", "-O^ext_attr,^has_journal"] {
            let device = edited(&[&["-t", "ext4", journal][..], args].concat(), &[]);
            let fs = common::open(&device);
            let file = create(&fs, root(&fs), "file", Kind::File);
            let features = || debugfs(common::save(&device).path(), &["features"]);
            fs.sync(&OpCtx::service()).expect("syncs");
            assert!(!features().contains("ext_attr"));
            fs.setxattr(&OpCtx::service(), file, b"user.a", &vec![7; length], XattrMode::Any)
                .expect("room");
            fs.close().expect("closes");
            assert!(features().contains("ext_attr"), "{args:?} {length}: {}", features());
            assert_eq!(common::complaints(&device), None, "{args:?} {length}");
        }
    }
}

/// `tune2fs -o bsdgroups`, which the kernel follows without being told to at the mount.
#[test]
fn an_image_says_whose_group_new_files_have() {
    if !common::have_tools() {
        return;
    }
    for (option, group) in [("bsdgroups", 77), ("^bsdgroups", 5)] {
        let image = NamedTempFile::new().expect("temporary file");
        std::fs::write(image.path(), common::image(32, &["-t", "ext4"])).expect("written");
        let tuned = Command::new("tune2fs").args(["-o", option]).arg(image.path()).output();
        assert!(tuned.expect("tune2fs runs").status.success());
        let fs = common::open(&common::load(&std::fs::read(image.path()).expect("readable")));
        let dir = create(&fs, root(&fs), "dir", Kind::Dir);
        let owner = SetAttr { gid: Some(Gid(77)), ..SetAttr::default() };
        fs.setattr(&OpCtx::service(), dir, &owner).expect("set");
        for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo] {
            let new = NewNode { gid: Gid(5), target: b"to", ..node(kind, 0o755) };
            let name = format!("{kind:?}");
            let made = fs.create(&OpCtx::service(), dir, name.as_bytes(), &new).expect("room").node;
            assert_eq!(made.gid, Gid(group), "{kind:?}");
        }
        let cred = Cred { uid: Uid(6), gid: Gid(5), ..Cred::root() };
        let (ctx, mode) = (OpCtx::as_user(&cred), RenameMode::Whiteout);
        fs.rename(&ctx, dir, b"File", root(&fs), b"moved", mode).expect("room");
        let left = fs.lookup(&OpCtx::service(), dir, b"File").expect("a whiteout");
        assert_eq!((left.kind, left.uid, left.gid), (Kind::Char, Uid(6), Gid(group)));
        let new = NewNode { gid: Gid(5), ..node(Kind::File, 0o644) };
        assert_eq!(fs.create_unlinked(&OpCtx::service(), dir, &new).expect("room").gid, Gid(group));
    }
}

#[test]
fn times_end_where_the_inode_s_room_does() {
    if !common::have_tools() {
        return;
    }
    const EPOCHS: i64 = 3 << 32;
    let (first, last) = (i64::from(i32::MIN), i64::from(i32::MAX));
    for (inode_bytes, latest) in [("128", last), ("256", last + EPOCHS)] {
        on(32, &["-t", "ext4", "-I", inode_bytes], |fs| {
            let file = create(fs, root(fs), "file", Kind::File);
            for (asked, kept) in [(1 << 40, latest), (-1 << 40, first), (1000, 1000)] {
                let time = SetTime::At(Time { sec: asked, nsec: 5 });
                let set = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
                let attr = fs.setattr(&OpCtx::service(), file, &set).expect("set");
                let nsec = if kept == 1000 && inode_bytes == "256" { 5 } else { 0 };
                assert_eq!(attr.mtime, Time { sec: kept, nsec }, "{inode_bytes}");
                assert_eq!(attr.atime, Time { sec: kept, nsec }, "{inode_bytes}");
            }
            assert_eq!(fs.character().whole_seconds, inode_bytes == "128");
        });
    }
}

#[test]
fn group_descriptors_may_be_longer_than_ours() {
    for bytes in ["64", "128", "1024"] {
        let args = ["-t", "ext4", "-b", "1024", "-E", &format!("desc_size={bytes}")];
        on(40, &args, |fs| {
            let dir = create(fs, root(fs), "dir", Kind::Dir);
            for n in 0..200 {
                create(fs, dir, &format!("f{n}"), Kind::File);
            }
        });
    }
}

/// A head of the list of orphans that cannot be one is refused, and nothing is written.
#[test]
fn orphans_that_cannot_be_any_are_refused() {
    if !common::have_tools() {
        return;
    }
    // The root, the journal, a free inode, one that the image has not, a directory that is sound
    // but points to itself, a named pipe.
    for head in [2u32, 8, 500, 4_000_000, 12, 13] {
        let fill = ["mkdir d", "mknod p p", "sif d dtime 12"];
        let set = format!("ssv last_orphan {head}");
        let device = edited(&["-t", "ext4", "-O", "^orphan_file"], &[&fill[..], &[&set]].concat());
        let before = std::fs::read(common::save(&device).path()).expect("readable");
        let clock = Arc::new(TestClock::default());
        let opened = Ext4::open(device.clone(), clock, &Options::default());
        let refused = opened.err().unwrap_or_else(|| panic!("{head} is taken"));
        assert!(matches!(refused, Error::Corrupt(_)), "{head}: {refused}");
        let after = std::fs::read(common::save(&device).path()).expect("readable");
        assert!(before == after, "{head}: something was written");
    }
}
