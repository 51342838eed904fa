//! Unit tests of the parts of `hostdir` that need no host.

use super::descriptors::Descriptors;
use super::host::{HostStat, Key, component, stat};
use super::node::Node;
use super::table::Table;
use crate::fs::Kind;
use polylane_base::{Errno, Ino};
use std::sync::Arc;

fn directory() -> HostStat {
    stat(std::fs::File::open("/").unwrap()).unwrap()
}

/// The same host inode number, born at another time.
fn reborn(found: &HostStat, seconds: i64) -> HostStat {
    let mut key: Key = found.key;
    key.born.sec += seconds;
    HostStat { key, attr: found.attr, mount_root: false }
}

#[test]
fn only_single_names_pass() {
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
        assert_eq!(component(name), Err(Errno::EINVAL), "{name:?}");
    }
    assert_eq!(component(&[b'n'; 256]), Err(Errno::ENAMETOOLONG));
    for name in [&b"..."[..], b"a", b"-", b"\xff", &[b'n'; 255]] {
        assert_eq!(component(name), Ok(name));
    }
}

#[test]
fn a_deep_chain_of_places_is_dropped_without_recursion() {
    let found = directory();
    let mut node = Node::new(Ino(1), found.key, Kind::Dir, None);
    for depth in 2..300_000 {
        let below = Node::new(Ino(depth), found.key, Kind::Dir, None);
        below.put(&node, b"d");
        node = below;
    }
    drop(node);
}

#[test]
fn a_number_in_use_is_never_given_to_another_inode() {
    let found = directory();
    let (table, root) = Table::new(&found, None);
    let first = table.intern(&reborn(&found, 1), Some((&root, b"a")));
    let second = table.intern(&reborn(&found, 2), Some((&root, b"a")));
    assert!(root.ino != first.ino && first.ino != second.ino);
    assert!(Arc::ptr_eq(&table.get(first.ino).unwrap(), &first));
    table.forget(first.ino);
    assert_eq!(table.get(first.ino).err(), Some(Errno::ESTALE));
    let third = table.intern(&reborn(&found, 3), Some((&root, b"a")));
    assert!(third.ino != second.ino && third.ino != root.ino);
    assert!(Arc::ptr_eq(&table.intern(&reborn(&found, 2), None), &second));
}

#[test]
fn a_forgotten_directory_comes_back_while_something_below_lives() {
    let found = directory();
    let (table, root) = Table::new(&found, None);
    let dir = table.intern(&reborn(&found, 1), Some((&root, b"d")));
    let below = table.intern(&reborn(&found, 2), Some((&dir, b"f")));
    let (ino, weak) = (dir.ino, Arc::downgrade(&dir));
    drop(dir);
    table.forget(ino);
    let again = table.intern(&reborn(&found, 1), Some((&root, b"moved")));
    assert!(Arc::ptr_eq(&weak.upgrade().unwrap(), &again), "so that its new place counts below");
    table.forget(again.ino);
    drop(again);
    let below_ino = below.ino;
    drop(below);
    table.forget(below_ino);
    assert!(weak.upgrade().is_none());
}

/// The host takes set-id bits of a service that is not its root with each change of contents: they
/// come back, unless a user of the host changed mode or owner meanwhile.
#[test]
fn set_id_bits_come_back_to_a_file_that_is_as_it_was() {
    use std::os::unix::fs::{PermissionsExt, chown};

    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path();
    let chmod = |mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let fds = Descriptors::new(16).unwrap();
    let held = fds.counted(file.reopen().unwrap().into());
    for (before, now, after) in [
        (0o4755, 0o755, 0o4755),
        (0o6755, 0o755, 0o6755),
        (0o6755, 0o2755, 0o6755),
        (0o2755, 0o2755, 0o2755),
        (0o755, 0o700, 0o700),
        (0o4755, 0o4700, 0o4700),
        (0o4755, 0o711, 0o711),
        (0o4755, 0o777, 0o777),
        (0o4755, 0o2755, 0o2755),
    ] {
        chmod(before);
        let change = || {
            chmod(now);
            Ok(())
        };
        fds.keeping_set_id(&held, change).unwrap();
        assert_eq!(stat(&held).unwrap().attr.perm, after, "{before:o}, then {now:o}");
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped for owners: only root gives files away");
        return;
    }
    for (uid, gid) in [(Some(1000), None), (None, Some(1000))] {
        chown(path, Some(0), Some(0)).unwrap();
        chmod(0o6755);
        fds.keeping_set_id(&held, || {
            chown(path, uid, gid).unwrap();
            chmod(0o755);
            Ok(())
        })
        .unwrap();
        assert_eq!(stat(&held).unwrap().attr.perm, 0o755, "given to {uid:?} {gid:?}");
    }
}
