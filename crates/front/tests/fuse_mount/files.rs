//! Names, attributes and data of files by the kernel's calls.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use polylane_base::sync::thread;
use polylane_front::Lane;
use polylane_vfs::OpCtx;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Mounted, errno};

#[test]
#[ignore = "in a private mount namespace"]
fn files_are_made_written_read_and_removed() {
    let lane = Mounted::new("files");
    let mut file = lane.file("a");
    file.write_all(b"hello world").expect("written");
    file.seek(SeekFrom::Start(6)).expect("sought");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "world");
    let large: Vec<u8> = (0..5 << 20).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(lane.path("large"), &large).expect("written");
    assert!(fs::read(lane.path("large")).expect("read") == large);
    assert_eq!(fs::metadata(lane.path("large")).expect("state").len(), large.len() as u64);

    fs::rename(lane.path("a"), lane.path("b")).expect("renamed");
    assert_eq!(errno(fs::metadata(lane.path("a"))), libc::ENOENT);
    fs::hard_link(lane.path("b"), lane.path("c")).expect("linked");
    assert_eq!(fs::metadata(lane.path("c")).expect("state").nlink(), 2);
    symlink("b", lane.path("s")).expect("linked");
    assert_eq!(fs::read_link(lane.path("s")).expect("read"), Path::new("b"));
    assert_eq!(fs::read(lane.path("s")).expect("followed"), b"hello world");
    fs::remove_file(lane.path("b")).expect("removed");
    fs::remove_file(lane.path("c")).expect("removed");
    // Open and nameless, it lives on.
    assert_eq!(file.metadata().expect("state").nlink(), 0);
    file.write_all_at(b"HELLO", 0).expect("written");
    let mut start = [0; 5];
    file.read_exact_at(&mut start, 0).expect("read");
    assert_eq!(&start, b"HELLO");
    assert_eq!(errno(fs::write(lane.path(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_kernel_gives_back_what_it_no_longer_knows() {
    let lane = Mounted::new("forget");
    for i in 0..200 {
        fs::create_dir(lane.path(&format!("d{i}"))).expect("made");
        fs::write(lane.path(&format!("d{i}/f")), b"x").expect("written");
    }
    for i in 0..200 {
        fs::remove_dir_all(lane.path(&format!("d{i}"))).expect("removed");
    }
    for _ in 0..100 {
        if lane.lane.nodes.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still known", lane.lane.nodes.len());
}

/// Lookups, forgets, creations and removals of the same few names, all at once, from outside and
/// inside the kernel: in the end every count must be back at nothing.
#[test]
#[ignore = "in a private mount namespace"]
fn counts_stay_exact_under_a_crowd() {
    let lane = Mounted::new("crowd");
    thread::scope(|scope| {
        for seed in 0..4 {
            let lane = &lane;
            scope.spawn(move || crowd_from_outside(lane, seed));
        }
        let door = &lane.lane;
        scope.spawn(|| crowd_from_inside(door));
    });
    for name in 0..NAMES {
        let _gone = fs::remove_file(lane.path(&format!("{name}")));
        let _gone = fs::remove_dir(lane.path(&format!("{name}")));
    }
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    for _ in 0..200 {
        if lane.lane.nodes.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still known", lane.lane.nodes.len());
}

const NAMES: u64 = 12;
const ROUNDS: usize = 1500;

fn crowd_from_outside(lane: &Mounted, seed: u64) {
    let mut rng = polylane_base::rng::Rng::new(seed);
    for _ in 0..ROUNDS {
        let path = lane.path(&rng.below(NAMES).to_string());
        let other = lane.path(&rng.below(NAMES).to_string());
        let _any_outcome = match rng.below(9) {
            0 | 1 => fs::write(&path, b"data"),
            2 => fs::read(&path).map(drop),
            3 => fs::metadata(&path).map(drop),
            4 => fs::remove_file(&path),
            5 => fs::rename(&path, &other),
            6 => fs::hard_link(&path, &other),
            7 => fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)),
            _ => fs::read_dir(&lane.at).map(|entries| assert!(entries.count() < 1000)),
        };
    }
}

/// What the fast lane does to the same names.
fn crowd_from_inside(door: &Lane) {
    let (mut rng, root) = (polylane_base::rng::Rng::new(99), polylane_vfs::Cred::root());
    let dir = door.vfs.root();
    for _ in 0..ROUNDS {
        let name = rng.below(NAMES).to_string().into_bytes();
        let other = rng.below(NAMES).to_string().into_bytes();
        if rng.percent(50) {
            if let Ok(Some(gone)) = door.vfs.take_unlinked(&OpCtx::as_user(&root), &dir, &name) {
                door.name_gone(&dir, &name, &gone);
            }
        } else if let Ok(names) =
            door.vfs.take_renamed(&OpCtx::as_user(&root), &dir, &name, &dir, &other, 0)
        {
            door.name_moved(&dir, &name, &names.moved);
            if let Some(replaced) = names.replaced {
                door.name_gone(&dir, &other, &replaced);
            }
        }
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
#[ignore = "in a private mount namespace"]
fn modes_owners_times_and_sizes_change() {
    let lane = Mounted::new("attrs");
    let path = lane.path("a");
    let file = lane.file("a");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
    assert_eq!(file.metadata().expect("state").mode(), 0o104_751);
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
    let state = file.metadata().expect("state");
    assert_eq!((state.uid(), state.gid(), state.mode()), (12, 34, 0o100_751), "set-id goes");
    file.set_len(10_000).expect("grown");
    let times = fs::FileTimes::new();
    let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_times(times.set_accessed(then).set_modified(then)).expect("times");
    let state = file.metadata().expect("state");
    assert_eq!(
        (state.mtime(), state.mtime_nsec(), state.len()),
        (1_000_000_000, 123_456_789, 10_000)
    );
    assert!(state.created().is_ok(), "a time of birth");
    file.set_len(3).expect("shrunk");
    assert_eq!(fs::read(&path).expect("read"), [0; 3]);
    rustix::fs::access(&path, rustix::fs::Access::READ_OK).expect("readable");
    let totals = rustix::fs::statvfs(&path).expect("totals");
    assert_eq!((totals.f_namemax, totals.f_frsize), (255, 4096));
    assert!(totals.f_bfree <= totals.f_blocks && totals.f_blocks == 65_536);
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_umask_and_set_gid_directories_are_honoured() {
    let lane = Mounted::new("umask");
    let mode = |path: &Path| fs::symlink_metadata(path).expect("state").mode() & 0o7777;
    let old = rustix::process::umask(Mode::from_raw_mode(0o027));
    fs::create_dir(lane.path("d")).expect("made");
    drop(lane.file("d/f"));
    rustix::fs::mknodat(CWD, lane.path("p"), rustix::fs::FileType::Fifo, 0o666.into(), 0)
        .expect("a fifo");
    rustix::process::umask(old);
    assert_eq!(mode(&lane.path("d")), 0o750);
    assert_eq!(mode(&lane.path("d/f")), 0o640);
    assert_eq!(mode(&lane.path("p")), 0o640);
    std::os::unix::fs::chown(lane.path("d"), None, Some(77)).expect("chown");
    fs::set_permissions(lane.path("d"), fs::Permissions::from_mode(0o2777)).expect("chmod");
    fs::create_dir(lane.path("d/sub")).expect("made");
    let sub = fs::metadata(lane.path("d/sub")).expect("state");
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (77, 0o2000));
}

#[test]
#[ignore = "in a private mount namespace"]
fn device_nodes_keep_their_numbers() {
    let lane = Mounted::new("nodes");
    let device = rustix::fs::makedev(0x123, 0x6_789a);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(CWD, lane.path("c"), kind, 0o600.into(), device).expect("a node");
    assert_eq!(fs::metadata(lane.path("c")).expect("state").rdev(), device);
}

#[test]
#[ignore = "in a private mount namespace"]
fn renameat2_swaps_refuses_and_whites_out() {
    let lane = Mounted::new("rename");
    let (a, b) = (lane.path("a"), lane.path("b"));
    fs::write(&a, b"a").expect("written");
    fs::write(&b, b"b").expect("written");
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).expect("swapped");
    assert_eq!(
        (fs::read(&a).expect("read"), fs::read(&b).expect("read")),
        (b"b".into(), b"a".into())
    );
    rename(RenameFlags::WHITEOUT).expect("moved");
    assert_eq!(fs::metadata(&a).expect("a whiteout").rdev(), 0);
    assert_eq!(fs::read(&b).expect("read"), b"b");
    fs::create_dir(lane.path("d")).expect("made");
    let into_itself = fs::rename(lane.path("d"), lane.path("d/e"));
    assert_eq!(errno(into_itself), libc::EINVAL);
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_nameless_file_gets_a_name() {
    let lane = Mounted::new("tmpfile");
    let flags = libc::O_TMPFILE;
    let mut file =
        OpenOptions::new().write(true).custom_flags(flags).open(&lane.at).expect("opened");
    file.write_all(b"kept").expect("written");
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, lane.path("named"), AtFlags::SYMLINK_FOLLOW)
        .expect("linked");
    assert_eq!(fs::read(lane.path("named")).expect("read"), b"kept");
}

#[test]
#[ignore = "in a private mount namespace"]
fn holes_are_made_found_and_filled() {
    let lane = Mounted::new("holes");
    let file = lane.file("a");
    file.write_all_at(&[1; 65_536], 0).expect("written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).expect("punched");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(12_288));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(70_000)), Err(Errno::NXIO));
    assert_eq!(file.metadata().expect("state").blocks(), (65_536 - 8192) / 512);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 65_536, 4096).expect("grown");
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 69_632, 4096).expect("reserved");
    assert_eq!(file.metadata().expect("state").len(), 69_632);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 100).expect("zeroed");
    let mut start = [9; 101];
    file.read_exact_at(&mut start, 0).expect("read");
    assert_eq!((start[99], start[100]), (0, 1));
    file.sync_all().expect("synced");
    file.sync_data().expect("synced");
}

#[test]
#[ignore = "in a private mount namespace"]
fn ranges_are_copied_inside() {
    let lane = Mounted::new("copy");
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253) as u8).collect();
    fs::write(lane.path("a"), &data).expect("written");
    assert_eq!(fs::copy(lane.path("a"), lane.path("b")).expect("copied"), data.len() as u64);
    assert!(fs::read(lane.path("b")).expect("read") == data);
    let (a, c) = (lane.file("a"), lane.file("c"));
    let (mut from, mut to) = (1000, 5);
    let copied = rustix::fs::copy_file_range(&a, Some(&mut from), &c, Some(&mut to), 70_000);
    assert_eq!(copied, Ok(70_000));
    let mut piece = vec![0; 70_000];
    c.read_exact_at(&mut piece, 5).expect("read");
    assert!(piece == data[1000..71_000]);
}

/// As for a file system without access control lists.
const POSIX_ACL: u64 = 1 << 20;

#[test]
#[ignore = "in a private mount namespace"]
fn extended_attributes_come_and_go() {
    let lane = Mounted::new("xattr");
    let path = lane.path("a");
    fs::write(&path, b"").expect("written");
    let set = |name: &str, value: &[u8], how| rustix::fs::setxattr(&path, name, value, how);
    set("user.one", b"1", XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.one", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.two", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("trusted.three", &[3; 4000], XattrFlags::empty()).expect("set");
    let mut names = vec![0; 1024];
    let count = rustix::fs::listxattr(&path, names.as_mut_slice()).expect("listed");
    let mut list: Vec<_> =
        names[..count].split(|byte| *byte == 0).filter(|n| !n.is_empty()).collect();
    list.sort_unstable();
    assert_eq!(list, [b"trusted.three".as_slice(), b"user.one"]);
    let mut value = vec![0; 8000];
    assert_eq!(rustix::fs::getxattr(&path, "trusted.three", value.as_mut_slice()), Ok(4000));
    assert_eq!(rustix::fs::getxattr(&path, "trusted.three", &mut value[..10]), Err(Errno::RANGE));
    rustix::fs::removexattr(&path, "user.one").expect("removed");
    assert_eq!(rustix::fs::getxattr(&path, "user.one", value.as_mut_slice()), Err(Errno::NODATA));
    let acl = "system.posix_acl_access";
    assert_eq!(rustix::fs::getxattr(&path, acl, value.as_mut_slice()), Err(Errno::NODATA));
    drop(lane);
    // As mounted for a file system without access control lists, or by a former version.
    let lane = Mounted::without("xattr", POSIX_ACL);
    let path = lane.path("a");
    fs::write(&path, b"").expect("written");
    assert_eq!(rustix::fs::getxattr(&path, acl, value.as_mut_slice()), Err(Errno::OPNOTSUPP));
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_listing_survives_removal_of_what_it_lists() {
    let lane = Mounted::new("list");
    const COUNT: usize = 10_000;
    for i in 0..COUNT {
        drop(lane.file(&format!("{i}")));
    }
    let mut seen = std::collections::HashSet::new();
    for entry in fs::read_dir(&lane.at).expect("opened") {
        let name = entry.expect("an entry").file_name();
        fs::remove_file(lane.at.join(&name)).expect("removed");
        assert!(seen.insert(name), "seen twice");
    }
    assert_eq!(seen.len(), COUNT);
    assert_eq!(fs::read_dir(&lane.at).expect("opened").count(), 0);
    for dir in ["t/u/v", "t/w", "t/u/x"] {
        fs::create_dir_all(lane.path(dir)).expect("made");
        fs::write(lane.path(dir).join("f"), dir).expect("written");
    }
    assert_eq!(errno(fs::remove_dir(lane.path("t"))), libc::ENOTEMPTY);
    fs::remove_dir_all(lane.path("t")).expect("removed");
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_reserved_names_are_hidden() {
    let lane = Mounted::new("reserved");
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    let state = fs::metadata(lane.path(".polylane")).expect("there");
    assert_eq!((state.is_dir(), state.mode() & 0o777), (true, 0o755));
    assert_eq!(fs::read_dir(lane.path(".polylane")).expect("listed").count(), 0);
    assert_eq!(errno(fs::create_dir(lane.path(".polylane"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(lane.path(".polylane"))), libc::EBUSY);
    assert_eq!(errno(File::create(lane.path(".polylane/x"))), libc::EPERM);
    assert_eq!(errno(File::create(lane.path(".polylane-slots/x"))), libc::EACCES);
    // Something can be mounted on it: the run directory.
    let at = lane.path(".polylane");
    rustix::mount::mount("run", &at, "tmpfs", MountFlags::empty(), None).expect("mounted");
    fs::write(at.join("socket"), b"").expect("written");
    rustix::mount::unmount(&at, UnmountFlags::empty()).expect("unmounted");
}

#[test]
#[ignore = "in a private mount namespace"]
fn programs_run_from_the_lane() {
    let lane = Mounted::new("exec");
    let (from, to) = (Path::new("/bin/echo"), lane.path("echo"));
    fs::copy(from, &to).expect("copied");
    let output = Command::new(&to).arg("it runs").output().expect("started");
    assert_eq!(output.stdout, b"it runs\n");
    fs::write(lane.path("script"), "#!/bin/sh\nexit 7\n").expect("written");
    fs::set_permissions(lane.path("script"), fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(Command::new(lane.path("script")).status().expect("started").code(), Some(7));
}
