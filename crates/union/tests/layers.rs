//! What shows through which layer, and who is one file.

mod common;

use std::sync::Arc;

use common::{Fs, Tree, memfs, union};
use polylane_base::Errno;
use polylane_testkit::fault::Faulty;
use polylane_union::{Layer, OpenError, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, SetAttr, XattrMode};
use polylane_vfs::handover::Store;

#[test]
fn the_uppermost_layer_counts() {
    let (low, high, upper) = (memfs(), memfs(), memfs());
    let (l, h) = (Tree(&*low), Tree(&*high));
    for tree in [&l, &h] {
        tree.mkdir("d");
    }
    l.file("d/both", b"low");
    h.file("d/both", b"high");
    l.file("d/low", b"low");
    h.file("d/high", b"high");
    l.file("kind", b"a file");
    h.mkdir("kind");
    l.file("hidden", b"low");
    h.device("hidden");
    let fs = union(&[&high, &low], Some(&upper));
    let u = Tree(&*fs);
    assert_eq!(u.names("d"), ["both", "high", "low"]);
    assert_eq!(u.read(u.ino("d/both")), b"high");
    assert_eq!(u.find("kind").map(|attr| attr.kind), Ok(Kind::Dir));
    assert_eq!(u.names(""), ["d", "kind"]);
    assert_eq!(u.find("hidden"), Err(Errno::ENOENT));
}

#[test]
fn a_union_keeps_writes_where_its_upper_does() {
    let (memfs, keeping): (_, Fs) = (memfs(), Faulty::keeping(memfs()));
    for (upper, keeps) in [(Some(&keeping), true), (Some(&memfs), false), (None, false)] {
        let lower = if keeps { &memfs } else { &keeping };
        assert_eq!(union(&[lower], upper).keeps_writes(), keeps);
    }
}

#[test]
fn an_opaque_directory_hides_what_is_below_it() {
    let (low, high) = (memfs(), memfs());
    Tree(&*low).mkdir("d");
    Tree(&*low).file("d/low", b"");
    let dir = Tree(&*high).mkdir("d");
    high.setxattr(&OpCtx::service(), dir, b"trusted.overlay.opaque", b"y", XattrMode::Any)
        .expect("kept");
    let fs = union(&[&high, &low], None);
    assert_eq!(Tree(&*fs).names("d"), [""; 0]);
    assert!(fs.character().read_only);
}

#[test]
fn files_as_whiteouts_hide_names() {
    let (low, high) = (memfs(), memfs());
    Tree(&*low).mkdir("d");
    for name in ["a", "b"] {
        Tree(&*low).file(&format!("d/{name}"), b"low");
    }
    let dir = Tree(&*high).mkdir("d");
    let file = Tree(&*high).file("d/a", b"");
    high.setxattr(&OpCtx::service(), file, b"trusted.overlay.whiteout", b"y", XattrMode::Any)
        .expect("kept");
    let fs = union(&[&high, &low], None);
    assert_eq!(Tree(&*fs).names("d"), ["a", "b"], "only in a directory that says so");
    high.setxattr(&OpCtx::service(), dir, b"trusted.overlay.opaque", b"x", XattrMode::Any)
        .expect("kept");
    let fs = union(&[&high, &low], None);
    assert_eq!(Tree(&*fs).names("d"), ["b"]);
    assert_eq!(Tree(&*fs).find("d/a"), Err(Errno::ENOENT));
}

#[test]
fn names_of_one_file_stay_one() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("a", b"old");
    Tree(&*low).link("a", "b");
    Tree(&*low).link("a", "c");
    for time in 0..2 {
        let fs = union(&[&low], Some(&upper));
        let u = Tree(&*fs);
        assert_eq!(u.ino("a"), u.ino("b"), "opened {time} times");
        assert_eq!(u.find("a").map(|attr| attr.nlink), Ok(3));
        u.write(u.ino("a"), 0, if time == 0 { b"new" } else { b"now" });
        assert_eq!(u.read(u.ino("c")), u.read(u.ino("a")));
    }
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    u.unlink("b");
    assert_eq!(u.find("c").map(|attr| attr.nlink), Ok(2));
    u.rename("c", "d").expect("renames");
    assert_eq!(u.find("a").map(|attr| attr.nlink), Ok(2));
    u.unlink("a");
    assert_eq!((u.read(u.ino("d")), u.find("d").map(|attr| attr.nlink)), (b"now".into(), Ok(1)));
    u.unlink("d");
    let above = Tree(&*upper);
    assert_eq!(above.names("work/polylane/index"), [""; 0]);
    assert_eq!(Tree(&*low).read(Tree(&*low).ino("a")), b"old");
}

#[test]
fn numbers_stay() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).mkdir("d");
    Tree(&*low).file("d/f", b"x");
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let (dir, file) = (u.ino("d"), u.ino("d/f"));
    u.chmod(file, 0o600);
    u.rename("d", "e").expect("renames");
    u.rename("e/f", "g").expect("renames");
    assert_eq!((u.ino("e"), u.ino("g")), (dir, file));
    drop(fs);
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    assert_eq!((u.ino("e"), u.ino("g")), (dir, file));
    // And the directory stream says the same.
    let mut listed = Vec::new();
    fs.readdir(&OpCtx::service(), fs.root().expect("a root").ino, 0, &mut |entry| {
        listed.push((entry.name.to_vec(), entry.ino));
        true
    })
    .expect("lists");
    listed.sort();
    assert_eq!(listed, [(b"e".to_vec(), dir), (b"g".to_vec(), file)]);
}

#[test]
fn what_is_moved_away_does_not_come_back() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).mkdir("a");
    Tree(&*low).mkdir("a/b");
    Tree(&*low).file("a/b/f", b"low");
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    u.rename("a", "z").expect("renames");
    u.mkdir("a");
    assert_eq!(u.names("a"), [""; 0]);
    u.mkdir("a/b");
    assert_eq!(u.names("a/b"), [""; 0]);
    u.rename("z/b", "a/c").expect("renames");
    u.rmdir("z").expect("is empty");
    let whole = u.whole();
    drop(fs);
    let fs = union(&[&low], Some(&upper));
    assert_eq!(Tree(&*fs).whole(), whole);
    assert_eq!(whole["/a/c/f"].2, b"low");
}

/// An opaque directory on the way to a moved one hides the layers below there, too.
#[test]
fn a_redirect_does_not_pass_what_is_hidden() {
    let (low, high, upper) = (memfs(), memfs(), memfs());
    for fs in [&low, &high] {
        Tree(&**fs).mkdir("a");
        Tree(&**fs).mkdir("a/b");
    }
    Tree(&*low).file("a/b/low", b"");
    let dir = Tree(&*high).ino("a");
    high.setxattr(&OpCtx::service(), dir, b"trusted.overlay.opaque", b"y", XattrMode::Any)
        .expect("kept");
    let fs = union(&[&high, &low], Some(&upper));
    assert_eq!(Tree(&*fs).names("a/b"), [""; 0]);
    Tree(&*fs).rename("a/b", "c").expect("renames");
    drop(fs);
    let fs = union(&[&high, &low], Some(&upper));
    assert_eq!(Tree(&*fs).names("c"), [""; 0]);
}

/// A stream sees each name once, whatever is copied up, removed or made while it goes on.
#[test]
fn a_stream_sees_each_name_once_while_names_are_copied_up() {
    let (low, upper) = (memfs(), memfs());
    for number in 0..300 {
        Tree(&*low).file(&format!("f{number}"), b"");
    }
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    let root = u.ino("");
    let (mut seen, mut from) = (Vec::new(), 0);
    loop {
        let mut next = None;
        fs.readdir(&OpCtx::service(), root, from, &mut |entry| {
            next = Some((entry.name.to_vec(), entry.next));
            false
        })
        .expect("lists");
        let Some((name, position)) = next else { break };
        let name = String::from_utf8(name).expect("ours");
        match seen.len() % 3 {
            0 => u.chmod(u.ino(&name), 0o600),
            1 => u.unlink(&name),
            _ => u.rename(&name, &format!("moved-{name}")).expect("renames"),
        }
        seen.push(name);
        from = position;
    }
    let old = seen.iter().filter(|name| !name.starts_with("moved-")).count();
    seen.sort();
    seen.dedup();
    assert_eq!((old, seen.iter().filter(|name| !name.starts_with("moved-")).count()), (300, 300));
}

#[test]
fn marks_are_not_a_users() {
    let (low, upper) = (memfs(), memfs());
    let fs = union(&[&low], Some(&upper));
    let dir = Tree(&*fs).mkdir("d");
    let name = b"trusted.overlay.opaque";
    assert_eq!(fs.getxattr(&OpCtx::service(), dir, name), Err(Errno::ENODATA));
    fs.setxattr(&OpCtx::service(), dir, name, b"mine", XattrMode::Any).expect("kept");
    assert_eq!(fs.listxattr(&OpCtx::service(), dir), Ok(vec![name.to_vec()]));
    assert_eq!(fs.getxattr(&OpCtx::service(), dir, name), Ok(b"mine".to_vec()));
    let device = fs.create(&OpCtx::service(), dir, b"wh", &NewNode::WHITEOUT);
    assert_eq!(device.map(|_| ()), Err(Errno::EPERM));
}

#[test]
fn what_is_no_upper_is_refused_and_stays_as_it_is() {
    let (low, upper) = (memfs(), memfs());
    Tree(&*upper).file("mine", b"");
    let layer = polylane_union::Layer::new(low).expect("a root");
    let refused = Union::open(vec![layer], Some(UpperOn::new(upper.clone()))).err();
    assert_eq!(refused, Some(OpenError::NotAnUpper(b"mine".to_vec())));
    assert_eq!(Tree(&*upper).names(""), ["mine"]);
    assert_eq!(
        Union::open(Vec::new(), Some(UpperOn::new(memfs()))).err(),
        Some(OpenError::NoLayers)
    );
}

/// An entry of overlayfs' index does not tell which of several lowers it is of.
#[test]
fn an_index_of_overlayfs_needs_a_single_lower_and_a_known_handle() {
    let entry = |kind: u8| {
        let mut bytes = vec![0, 0xfb, 29, 0, kind];
        bytes.extend([0; 24]);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    for (kind, lowers, is_opened) in [(1, 1, true), (1, 2, false), (0x33, 1, false)] {
        let (low, high, upper) = (memfs(), memfs(), memfs());
        let u = Tree(&*upper);
        for dir in ["upper", "work", "work/index", "work/index/00fb1500"] {
            u.mkdir(dir);
        }
        u.file(&format!("work/index/{}", entry(kind)), b"of several names");
        let lowers = [&high, &low].into_iter().take(lowers);
        let lowers = lowers.map(|fs| Layer::new(fs.clone()).expect("a root")).collect();
        let opened = Union::open(lowers, Some(UpperOn::new(upper.clone())));
        let index = if is_opened { "work/polylane/index" } else { "work/index" };
        match opened {
            Ok(_) => assert!(is_opened, "{kind:#x}"),
            Err(error) => assert_eq!((error, is_opened), (OpenError::KernelsIndex, false)),
        }
        let names = u.names(index);
        assert_eq!(names.len(), if is_opened { 1 } else { 2 }, "{names:?}");
    }
}

/// What a killed service, or another user, left aside goes when the union is opened, however deep
/// it is: by a thread with a small stack.
#[test]
fn what_was_left_aside_is_removed_however_deep_it_is() {
    const DEPTH: usize = 20_000;
    let (low, upper) = (memfs(), memfs());
    Tree(&*low).file("f", b"low");
    drop(union(&[&low], Some(&upper)));
    let aside = "work/polylane/tmp";
    let ctx = OpCtx::service();
    let mut dir = Tree(&*upper).ino(aside);
    for level in 0..DEPTH {
        let new = |kind| NewNode::new(kind, 0o700);
        upper.create(&ctx, dir, b"file", &new(Kind::File)).expect("made");
        // Some have a second directory beside the way down.
        if level % 7 == 0 {
            upper.create(&ctx, dir, b"a", &new(Kind::Dir)).expect("made");
        }
        dir = upper.create(&ctx, dir, b"d", &new(Kind::Dir)).expect("made").node.ino;
    }
    let again = std::sync::Arc::clone(&upper);
    let opened = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let fs = union(&[&low], Some(&again));
        Tree(&*fs).read(Tree(&*fs).ino("f"))
    });
    assert_eq!(opened.expect("a thread").join().expect("no panic"), b"low");
    assert_eq!(Tree(&*upper).names(aside), [""; 0]);
}

/// A file whose marks say where in the data-only lowers its data is; see `lowerdir=LOWER::DATA` of
/// overlayfs.
fn pointing(fs: &dyn FileSystem, name: &str, path: &[u8], size: u64) {
    let ctx = &OpCtx::service();
    let ino = Tree(fs).file(name, b"");
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(ctx, ino, &set).expect("grows");
    for (mark, value) in [(&b"trusted.overlay.metacopy"[..], &b""[..]), (REDIRECT, path)] {
        fs.setxattr(ctx, ino, mark, value, XattrMode::Any).expect("kept");
    }
}

const REDIRECT: &[u8] = b"trusted.overlay.redirect";

#[test]
fn data_only_lowers_have_data_and_no_names() {
    let (meta, first, second, upper) = (memfs(), memfs(), memfs(), memfs());
    let blob = vec![7; 200_000];
    for (fs, name, data) in
        [(&first, "a", &blob[..]), (&second, "a", b"hidden"), (&second, "b", b"b")]
    {
        if Tree(&**fs).find("blobs").is_err() {
            Tree(&**fs).mkdir("blobs");
        }
        Tree(&**fs).file(&format!("blobs/{name}"), data);
    }
    Tree(&*second).mkdir("blobs/dir");
    let m = Tree(&*meta);
    m.mkdir("d");
    pointing(&*meta, "d/one", b"/blobs/a", 200_000);
    pointing(&*meta, "d/two", b"/blobs/b", 1);
    pointing(&*meta, "none", b"/blobs/c", 1);
    pointing(&*meta, "dir", b"/blobs/dir", 1);
    pointing(&*meta, "relative", b"a", 1);
    pointing(&*meta, "up", b"/blobs/../blobs/a", 1);
    m.file("plain", b"x");
    let open = |upper: Option<&Arc<dyn FileSystem>>| {
        let layer = |fs: &Arc<dyn FileSystem>| Layer::new(fs.clone()).expect("a root");
        let data = vec![layer(&first), layer(&second)];
        let upper = upper.cloned().map(UpperOn::new);
        Union::open_with_data(vec![layer(&meta)], data, upper).expect("opens")
    };
    let fs = open(None);
    let u = Tree(&fs);
    assert_eq!(u.names(""), ["d", "dir", "none", "plain", "relative", "up"]);
    assert_eq!(u.read(u.ino("d/one")), blob);
    assert_eq!(u.read(u.ino("d/two")), b"b");
    for name in ["none", "dir", "relative", "up"] {
        let ino = u.find(name).expect("its name is there").ino;
        let read = fs.read(&OpCtx::service(), ino, 0, 1, &mut [0].as_mut_slice());
        assert_eq!(read, Err(Errno::EIO), "{name}");
    }
    // Copied up by blocks, and after the union was opened again.
    let fs = open(Some(&upper));
    let u = Tree(&fs);
    u.write(u.ino("d/one"), 100_000, b"own");
    u.rename("d", "e").expect("renames");
    let mut expected = blob;
    expected[100_000..100_003].copy_from_slice(b"own");
    assert_eq!(u.read(u.ino("e/one")), expected);
    drop(fs);
    let fs = open(Some(&upper));
    let u = Tree(&fs);
    assert_eq!((u.read(u.ino("e/one")), u.read(u.ino("e/two"))), (expected.clone(), b"b".to_vec()));
    fs.solidify().expect("whole");
    drop(fs);
    let fs = union(&[&meta], Some(&upper));
    assert_eq!(Tree(&*fs).read(Tree(&*fs).ino("e/one")), expected, "needs no lower any more");
}

/// A service that did not wait for syncs was killed: its successor goes on, and in the end the
/// upper is refused, since what was said to be synced may be gone.
#[test]
fn a_volatile_upper_whose_service_was_killed_is_refused_in_the_end() {
    let (low, upper) = (memfs(), memfs());
    let fd = Store::create().expect("a store");
    let open = || {
        let (store, records) = Store::attach(&fd).expect("attach");
        let store = Arc::new(store);
        let lowers = vec![Layer::new(low.clone()).expect("a root")];
        let on = Some(UpperOn::new(upper.clone()).volatile(true));
        let union = Union::handed_over(lowers, Vec::new(), on, store.clone(), &records);
        (store, union)
    };
    let (store, first) = open();
    drop(first.expect("opens"));
    store.leave();
    let (store, second) = open();
    let second = second.expect("goes on");
    second.wait_for_syncs();
    second.sync(&OpCtx::service()).expect("syncs");
    second.end_volatile().expect("ends");
    drop(second);
    store.leave();
    let lowers = vec![Layer::new(low.clone()).expect("a root")];
    let alone = Union::open(lowers, Some(UpperOn::new(upper.clone())));
    assert_eq!(alone.err(), Some(OpenError::Volatile));
}

/// A union that did not end in order, or that overlayfs used as `volatile`, is opened by the next
/// service of the same lane alone.
#[test]
fn a_volatile_upper_is_used_again_when_it_ended_in_order() {
    const MARK: &str = "work/work/incompat/volatile";
    let ctx = &OpCtx::service();
    let (low, upper) = (memfs(), memfs());
    let open = |is_volatile: bool| {
        let lowers = vec![Layer::new(low.clone()).expect("a root")];
        Union::open(lowers, Some(UpperOn::new(upper.clone()).volatile(is_volatile)))
    };
    let u = Tree(&*upper);
    let first = open(true).expect("opens");
    assert!(u.find(MARK).is_ok(), "while it is used");
    let file = Tree(&first).file("f", b"bytes");
    first.fsync(ctx, file, false).expect("at once");
    drop(first);
    for is_volatile in [true, false] {
        assert_eq!(open(is_volatile).err(), Some(OpenError::Volatile));
    }
    let work = u.ino("work/work/incompat");
    upper.rmdir(ctx, work, b"volatile").expect("by hand");
    let again = open(true).expect("opens");
    again.wait_for_syncs();
    again.sync(ctx).expect("syncs");
    again.end_volatile().expect("ends");
    drop(again);
    assert_eq!(u.find(MARK), Err(Errno::ENOENT));
    let plain = open(false).expect("opens");
    assert_eq!(Tree(&plain).read(Tree(&plain).ino("f")), b"bytes");
    plain.end_volatile().expect("it was not");
    drop(plain);
    // As overlayfs leaves it.
    for dir in [MARK, &format!("{MARK}/dirty")] {
        u.mkdir(dir);
    }
    assert_eq!(open(false).err(), Some(OpenError::Volatile));
}
