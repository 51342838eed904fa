//! Path walk and open(2): links, `..`, slashes, ways out of the lane, creation.

use polylane_base::Errno;
use polylane_vfs::{Cred, Kind, OpCtx, PathError};

use crate::common::*;

fn ino(lane: &Lane, path: &str) -> u64 {
    lane.vfs.resolve(&OpCtx::service(), &lane.root, path.as_bytes(), true).unwrap().ino().0
}

#[test]
fn names_dots_and_slashes() {
    let lane = lane();
    lane.dir("a");
    lane.dir("a/b");
    lane.file("a/b/f", b"x");
    let f = ino(&lane, "a/b/f");
    for path in ["a/b/f", "/a/b/f", "a//b///f", "./a/./b/../b/f", "a/b/../../a/b/f"] {
        assert_eq!(ino(&lane, path), f, "{path}");
    }
    assert_eq!(ino(&lane, "a/"), ino(&lane, "a"));
    assert_eq!(ino(&lane, "/"), lane.root.ino().0);
    assert_eq!(ino(&lane, "a/.."), lane.root.ino().0);
    let long = "n".repeat(256);
    for (path, expected) in [
        ("", Errno::ENOENT),
        ("a/b/f/", Errno::ENOTDIR),
        ("a/b/f/x", Errno::ENOTDIR),
        ("a/b/f/..", Errno::ENOTDIR),
        ("a/none", Errno::ENOENT),
        ("a/none/x", Errno::ENOENT),
        (long.as_str(), Errno::ENAMETOOLONG),
        ("a\0b", Errno::EINVAL),
        ("x/".repeat(2100).as_str(), Errno::ENAMETOOLONG),
    ] {
        assert_eq!(errno(lane.get(path)), Some(expected), "{path:?}");
    }
}

#[test]
fn links_are_followed_where_they_must_be() {
    let lane = lane();
    lane.dir("a");
    lane.file("a/f", b"x");
    lane.link("to-f", "a/f");
    lane.link("to-a", "a");
    lane.link("a/up", "../a/f");
    lane.link("absolute", "/lane/a/f");
    lane.link("slash", "a/");
    let f = ino(&lane, "a/f");
    for path in ["to-f", "to-a/f", "a/up", "to-a/up", "absolute", "slash/f"] {
        assert_eq!(ino(&lane, path), f, "{path}");
    }
    assert_eq!(lane.get("to-f").unwrap().kind(), Kind::Symlink, "a last link is not followed");
    assert_eq!(lane.get("to-a/").unwrap().kind(), Kind::Dir, "unless a slash follows");
    assert_eq!(lane.get("slash").unwrap().kind(), Kind::Symlink);
    assert_eq!(errno(lane.get("to-f/")), Some(Errno::ENOTDIR));
    assert_eq!(
        lane.vfs.readlink(&OpCtx::service(), &lane.get("a/up").unwrap()).unwrap(),
        b"../a/f"
    );
    assert_eq!(lane.vfs.readlink(&OpCtx::service(), &lane.root), Err(Errno::EINVAL));
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let lane = lane();
    lane.file("link0", b"");
    for n in 1..=41 {
        lane.link(&format!("link{n}"), &format!("link{}", n - 1));
    }
    assert_eq!(ino(&lane, "link40"), ino(&lane, "link0"));
    let open = |path: &str| lane.open(path, O_RDONLY);
    assert_eq!(errno(open("link41")), Some(Errno::ELOOP));
    lane.link("self", "self");
    assert_eq!(errno(open("self")), Some(Errno::ELOOP));
    assert_eq!(errno(lane.open("self", O_RDWR | O_CREAT)), Some(Errno::ELOOP));
}

#[test]
fn paths_that_leave_the_lane_say_so() {
    let lane = lane();
    lane.dir("a");
    lane.dir("dev");
    lane.dir("dev/pts");
    lane.dir(".polylane");
    lane.link("out", "/etc/passwd");
    lane.link("beside", "/lanes/x");
    lane.link("above", "../x");
    let follow =
        |path: &str| lane.vfs.resolve(&OpCtx::service(), &lane.root, path.as_bytes(), true);
    for path in ["..", "a/../..", "out", "beside", "above", ".polylane/socket", "dev/pts/0"] {
        assert!(leaves(follow(path)), "{path}");
    }
    assert!(leaves(lane.open("out", O_RDWR | O_CREAT)));
    assert!(leaves(lane.open(".polylane/x", O_RDWR | O_CREAT)));
    assert!(lane.get("dev").is_ok());
    lane.dir("a/.polylane");
    assert!(lane.get("a/.polylane").is_ok(), "only the covered directory itself");
    // The kernel knows which error `.` and `..` deserve as last names.
    for path in [".", "a/..", "a/.", "/"] {
        let last = lane.vfs.resolve_parent(&OpCtx::service(), &lane.root, path.as_bytes());
        assert!(leaves(last), "{path}");
    }
}

#[test]
fn a_lane_that_is_the_root_has_nothing_above() {
    let mut options = options();
    options.mount_path = b"/".to_vec();
    let lane = lane_with(options, |_| ());
    lane.dir("etc");
    lane.file("etc/passwd", b"x");
    lane.link("out", "/etc/passwd");
    assert_eq!(ino(&lane, "out"), ino(&lane, "etc/passwd"));
    assert_eq!(ino(&lane, "../../etc/passwd"), ino(&lane, "etc/passwd"));
}

#[test]
fn every_directory_must_be_searchable() {
    let lane = lane();
    let alice = user(1, 1, &[]);
    lane.make(&OpCtx::service(), "shut", Kind::Dir, 0o700, "");
    lane.make(&OpCtx::service(), "shut/open", Kind::Dir, 0o777, "");
    lane.make(&OpCtx::service(), "listed", Kind::Dir, 0o744, "");
    lane.link("in", "shut/open");
    for path in ["shut/open", "shut/none", "shut/.", "shut/..", "listed/x", "in"] {
        let found = lane.vfs.resolve(&OpCtx::as_user(&alice), &lane.root, path.as_bytes(), true);
        assert_eq!(errno(found), Some(Errno::EACCES), "{path}");
    }
    let checked = OpCtx::as_user(&alice).kernel_checked();
    assert!(lane.vfs.resolve(&checked, &lane.root, b"shut/open", true).is_ok());
}

#[test]
fn open_creates_follows_and_refuses() {
    let lane = lane();
    lane.dir("d");
    lane.file("f", b"data");
    lane.link("dangling", "d/new");
    lane.link("to-f", "f");
    let table: &[(&str, i32, Result<(), Errno>)] = &[
        ("none", O_RDONLY, Err(Errno::ENOENT)),
        ("f", O_RDWR | O_CREAT | O_EXCL, Err(Errno::EEXIST)),
        ("to-f", O_RDWR | O_CREAT | O_EXCL, Err(Errno::EEXIST)),
        ("to-f", O_RDONLY | O_NOFOLLOW, Err(Errno::ELOOP)),
        ("to-f", O_RDWR | O_CREAT | O_NOFOLLOW, Err(Errno::ELOOP)),
        ("to-f", O_PATH | O_NOFOLLOW, Ok(())),
        ("d", O_RDWR, Err(Errno::EISDIR)),
        ("d", O_RDONLY | O_CREAT, Err(Errno::EISDIR)),
        ("d", O_RDONLY | O_DIRECTORY, Ok(())),
        ("f", O_RDONLY | O_DIRECTORY, Err(Errno::ENOTDIR)),
        ("f/", O_RDONLY, Err(Errno::ENOTDIR)),
        ("new/", O_RDWR | O_CREAT, Err(Errno::EISDIR)),
        (".", O_RDWR | O_CREAT, Err(Errno::EISDIR)),
        ("new", O_RDWR | O_CREAT | O_DIRECTORY, Err(Errno::EINVAL)),
        ("none/new", O_RDWR | O_CREAT, Err(Errno::ENOENT)),
        ("dangling", O_RDWR | O_CREAT | O_EXCL, Err(Errno::EEXIST)),
        ("d", O_RDONLY | O_TMPFILE, Err(Errno::EINVAL)),
        ("f", O_RDWR | O_TMPFILE, Err(Errno::ENOTDIR)),
    ];
    for (path, flags, expected) in table {
        let result = lane.open(path, *flags).map(drop);
        assert_eq!(result, expected.map_err(PathError::Errno), "{path} {flags:o}");
    }
    assert!(errno(lane.get("d/new")).is_some());
    lane.open("dangling", O_RDWR | O_CREAT).unwrap();
    assert_eq!(lane.get("d/new").unwrap().kind(), Kind::File, "created through the link");
    let path_only = lane.open("f", O_PATH).unwrap();
    assert_eq!(path_only.read(&OpCtx::service(), 0, 4, &mut &mut [0; 4][..]), Err(Errno::EBADF));
}

#[test]
fn umask_mode_and_truncation_of_open() {
    let lane = lane();
    let cred = Cred::root();
    let open = |flags, perm, umask| {
        lane.vfs.open_path(&OpCtx::as_user(&cred), &lane.root, b"f", flags, perm, umask).unwrap()
    };
    // A file may be created with a mode that denies what its opening may do.
    let file = open(O_RDWR | O_CREAT, 0o444, 0o027);
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().perm, 0o440);
    write(&file, 0, b"hello");
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().size, 5);
    drop(open(O_WRONLY | O_TRUNC, 0, 0));
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().size, 0);
    assert_eq!(file.flags() & (O_CREAT | O_TRUNC), 0);
}

#[test]
fn append_is_at_the_end_whatever_the_offset() {
    for lane in [lane(), cached()] {
        let file = lane.file("f", b"abc");
        let log = lane.open("f", O_WRONLY | O_APPEND).unwrap();
        let cred = Cred::root();
        let written = log.write(&OpCtx::as_user(&cred), Some(0), &mut &b"de"[..]).unwrap();
        assert_eq!((written.count, written.end), (2, 5));
        log.set_flags(0).unwrap();
        log.write(&OpCtx::as_user(&cred), Some(0), &mut &b"A"[..]).unwrap();
        assert_eq!(read(&file, 0, 9), b"Abcde");
        assert_eq!(file.write(&OpCtx::as_user(&cred), None, &mut &b"f"[..]).unwrap().end, 6);
        assert_eq!(log.read(&OpCtx::service(), 0, 1, &mut &mut [0][..]), Err(Errno::EBADF));
    }
}

#[test]
fn files_without_a_name_can_get_one() {
    let lane = lane();
    let (cred, vfs) = (Cred::root(), &lane.vfs);
    lane.dir("d");
    let file = lane.open("d", O_RDWR | O_TMPFILE).unwrap();
    write(&file, 0, b"hidden");
    assert_eq!(vfs.getattr(&OpCtx::service(), file.node()).unwrap().nlink, 0);
    assert_eq!(names(&lane.open("d", O_RDONLY).unwrap()), [".", ".."]);
    vfs.link(&OpCtx::as_user(&cred), file.node(), &lane.root, b"seen").unwrap();
    assert_eq!(read(&lane.open("seen", O_RDONLY).unwrap(), 0, 9), b"hidden");
    lane.unlink("seen").unwrap();
    assert_eq!(
        vfs.link(&OpCtx::as_user(&cred), file.node(), &lane.root, b"again"),
        Err(Errno::ENOENT)
    );
    let exclusive = lane.open("d", O_RDWR | O_TMPFILE | O_EXCL).unwrap();
    assert_eq!(
        vfs.link(&OpCtx::as_user(&cred), exclusive.node(), &lane.root, b"x"),
        Err(Errno::ENOENT)
    );
}

/// The path of an open that makes a file is walked once, however often its last name is looked for.
#[test]
fn nothing_is_made_in_a_directory_that_was_removed() {
    let lane = lane();
    let dir = lane.dir("dir");
    let open = |path: &str, more| {
        let flags = O_RDWR | O_CREAT | more;
        errno(lane.vfs.open_path(&OpCtx::service(), &dir, path.as_bytes(), flags, 0o644, 0))
    };
    assert_eq!(open("f", 0), None);
    lane.link("dir/to", "g");
    assert_eq!(open("to", 0), None);
    ["dir/f", "dir/g", "dir/to"].iter().for_each(|path| lane.unlink(path).unwrap());
    lane.rmdir("dir").unwrap();
    for path in ["f", "./f", "g", "to"] {
        for more in [0, O_EXCL] {
            assert_eq!(open(path, more), Some(Errno::ENOENT), "{path} {more}");
        }
    }
}
