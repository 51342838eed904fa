//! Who a container's process is: `USER[:GROUP]` by the image's own `/etc/passwd` and `/etc/group`.
//!
//! Both are read as untrusted text, below the container's root and never outside of it.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use polylane_pool::failure::{Failure, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Most bytes of a file that are read.
const BYTES_MAX: u64 = 4 << 20;

/// A process's user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Further groups.
    pub(crate) groups: Vec<u32>,
    /// Its home directory.
    pub(crate) home: String,
}

/// Opens a path of the container's root as the container's processes would, never outside of it.
pub(crate) fn open_inside(root: impl AsFd, path: &str, flags: OFlags) -> rustix::io::Result<File> {
    // A fifo or a terminal of the image is not waited for; with O_PATH nothing is opened.
    let more = if flags.contains(OFlags::PATH) {
        OFlags::empty()
    } else {
        OFlags::NONBLOCK | OFlags::NOCTTY
    };
    let flags = flags | more | OFlags::CLOEXEC;
    let mode =
        if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
    // No magic links: those of a /proc in an image lead to the host's files.
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags, mode, inside).map(File::from)
}

fn text(root: impl AsFd, path: &str) -> String {
    let Ok(file) = open_inside(root, path, OFlags::RDONLY) else { return String::new() };
    let mut text = Vec::new();
    // What is no file, or cannot be read, names nobody.
    let regular = file.metadata().is_ok_and(|found| found.is_file());
    let read = regular && file.take(BYTES_MAX).read_to_end(&mut text).is_ok();
    if read { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
}

/// The user of that text in the root file system at `root`.
///
/// # Errors
/// One line: the image has no such user or group.
pub(crate) fn find(root: &Path, asked: &str) -> Result<User> {
    let dir = File::open(root).map_err(|error| Failure::path(root, "open it", error))?;
    of(&text(&dir, "etc/passwd"), &text(&dir, "etc/group"), asked)
        .map_err(|what| Failure::failed(format!("{what}: the image has no such user or group")))
}

/// The user by the text of both files; else what is not in them.
fn of<'a>(passwd: &str, group: &str, asked: &'a str) -> std::result::Result<User, &'a str> {
    let (name, group_name) = match asked.split_once(':') {
        Some((name, group)) => (name, Some(group).filter(|group| !group.is_empty())),
        None => (asked, None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let number = name.parse::<u32>().ok();
    let entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut entries = entries.filter(|fields| fields.len() >= 6);
    let found = entries.find(|fields| match number {
        Some(number) => fields[2].parse() == Ok(number),
        None => fields[0] == name,
    });
    let parsed = found.as_ref().and_then(|f| Some((f[2].parse().ok()?, f[3].parse().ok()?)));
    let (uid, own_gid) = parsed.or(number.map(|number| (number, 0))).ok_or(name)?;
    let groups: Vec<Vec<&str>> = group
        .lines()
        .map(|line| line.split(':').collect())
        .filter(|f: &Vec<_>| f.len() >= 4)
        .collect();
    let gid = match group_name {
        None => own_gid,
        Some(name) => {
            let named = groups.iter().find(|f| f[0] == name).and_then(|f| f[2].parse().ok());
            named.or_else(|| name.parse().ok()).ok_or(name)?
        }
    };
    let login = found.as_ref().map(|fields| fields[0]);
    let is_member = |f: &&Vec<&str>| login.is_some_and(|login| f[3].split(',').any(|m| m == login));
    let groups = match group_name {
        Some(_) => Vec::new(),
        None => groups.iter().filter(is_member).filter_map(|f| f[2].parse().ok()).collect(),
    };
    let home = found.map(|fields| fields[5]).filter(|home| home.starts_with('/'));
    Ok(User { uid, gid, groups, home: home.unwrap_or("/").to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\nbad\nweb:x:33:34::/var/www:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\nextra:x:50:web,other\nx:y\n";

    #[test]
    fn users_are_those_of_the_image() {
        let user = |asked| of(PASSWD, GROUP, asked).map(|u| (u.uid, u.gid, u.groups, u.home));
        let is =
            |uid, gid, groups: &[u32], home: &str| Ok((uid, gid, groups.to_vec(), home.into()));
        assert_eq!(user(""), is(0, 0, &[], "/root"));
        assert_eq!(user("web"), is(33, 34, &[50], "/var/www"));
        assert_eq!(user("33"), is(33, 34, &[50], "/var/www"));
        assert_eq!(user("web:extra"), is(33, 50, &[], "/var/www"));
        assert_eq!(user("7:9"), is(7, 9, &[], "/"));
        assert_eq!(user("7"), is(7, 0, &[], "/"));
        assert_eq!(user("nobody"), Err("nobody"));
        assert_eq!(user("web:none"), Err("none"));
        assert_eq!(of("", "", "").map(|u| u.uid), Ok(0));
    }

    #[test]
    fn nothing_outside_of_the_root_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(dir.path().join("secret"), "web:x:5:5::/x:/y\n").unwrap();
        for target in ["../../secret", dir.path().join("secret").to_str().unwrap()] {
            let link = root.join("etc/passwd");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(find(&root, "web").is_err(), "{target}");
        }
    }
}
