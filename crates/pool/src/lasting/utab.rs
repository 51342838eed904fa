//! What util-linux is told of a lane's mount in `/run/mount/utab`: the helper of umount(8).
//!
//! umount(8) knows a FUSE mount by its magic number, as `fuse`, and finds no helper by that. It
//! asks the kernel, for which every lane is busy, since its run directory is mounted in it. Of a
//! mount that is listed here it reads the options, and starts the helper that `uhelper=` names.
//!
//! The file is libmount's, and so are its form and its lock. Lines of other mounts stay as they
//! are. It is a help for umount(8) alone: a mount that cannot be listed is no failure, nor is a
//! line that is left, which libmount compares with the kernel's table before it goes by it.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use rustix::fs::{FlockOperation, flock};

use super::places;

/// libmount's directory.
const DIR: &str = "/run/mount";

/// The helper is `umount.fuse.polylane`.
const HELPER: &str = "uhelper=fuse.polylane";

/// How long a command waits for another one that changes the file, which may be stopped.
const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// Lists the lane at PATH, with what mount(8) was told beside the options of a lane; once for each
/// time that it is mounted, since umount(8) takes a line away after each of its helpers.
pub fn list(path: &Path, options: &str, count: u32) {
    let Ok(path) = places::find(path) else { return };
    let mountinfo = fs::read("/proc/self/mountinfo").unwrap_or_default();
    if let Some(line) = line(&mountinfo, &path, options) {
        let _ = change(Path::new(DIR), &path, &line.repeat(count as usize));
    }
}

/// Takes the lane at PATH off the list.
pub fn unlist(path: &Path) {
    let Ok(path) = places::find(path) else { return };
    let is_listed = |text: Vec<u8>| lines(&text).any(|line| is_of(line, &path));
    if fs::read(Path::new(DIR).join("utab")).is_ok_and(is_listed) {
        let _ = change(Path::new(DIR), &path, &[]);
    }
}

/// The line of the uppermost mount at `path`; its words are escaped in mountinfo as in the file.
fn line(mountinfo: &[u8], path: &Path, options: &str) -> Option<Vec<u8>> {
    let at = escaped(path.as_os_str().as_bytes());
    let words = |line| -> Vec<&[u8]> { <[u8]>::split(line, |&byte| byte == b' ').collect() };
    let found = lines(mountinfo).map(words).rfind(|words| words.get(4) == Some(&&at[..]))?;
    let parted = found.iter().position(|word| word == b"-")?;
    let (root, source) = (found[3], found.get(parted + 2)?);
    let options = if options.is_empty() { HELPER } else { &format!("{options},{HELPER}") };
    let options = escaped(options.as_bytes());
    let parts: [&[u8]; 9] =
        [b"SRC=", source, b" TARGET=", &at, b" ROOT=", root, b" OPTS=", &options, b"\n"];
    Some(parts.concat())
}

fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn escaped(text: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    };
    text.iter().flat_map(escape).collect()
}

/// Whether a line is of a lane at `path`: it may lie on a mount of others.
fn is_of(line: &[u8], path: &Path) -> bool {
    let target = [b"TARGET=", &escaped(path.as_os_str().as_bytes())[..]].concat();
    let mut words = line.split(|&byte| byte == b' ');
    let options = words.clone().find_map(|word| word.strip_prefix(b"OPTS=")).unwrap_or_default();
    words.any(|word| word == target)
        && options.split(|&byte| byte == b',').any(|option| option == HELPER.as_bytes())
}

/// Replaces what is listed of `path`.
fn change(dir: &Path, path: &Path, own: &[u8]) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o755)))?,
    }
    let file = dir.join("utab");
    let open = || File::options().create(true).truncate(false).write(true).mode(0o644).clone();
    let lock = open().open(dir.join("utab.lock"))?;
    let begin = Instant::now();
    while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if begin.elapsed() > LOCK_TIME_MAX {
            return Err(errno.into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let text = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => text?,
    };
    let others = lines(&text).filter(|line| !is_of(line, path));
    let mut new: Vec<u8> = others.flat_map(|line| [line, b"\n"].concat()).collect();
    new.extend(own);
    // One process at a time writes it, by the lock; what a killed one left is written over.
    let made = dir.join("utab.polylane");
    let mut out = open().truncate(true).open(&made)?;
    // Users read it, whatever this process' mask of modes is.
    out.set_permissions(Permissions::from_mode(0o644))?;
    out.write_all(&new)?;
    fs::rename(made, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_the_uppermost_mount() {
        let table =
            b"30 1 0:9 / /m rw - tmpfs none rw\n31 30 0:41 / /m\\040x rw - fuse.polylane a rw
32 30 0:42 /sub /m\\040x rw,nosuid shared:7 - fuse.polylane mem:64M rw\n";
        let of = |path: &str, options| line(table, Path::new(path), options).expect("a line");
        let text = |line: Vec<u8>| String::from_utf8(line).expect("text");
        assert_eq!(
            text(of("/m x", "_netdev,x-a=b c")),
            "SRC=mem:64M TARGET=/m\\040x ROOT=/sub OPTS=_netdev,x-a=b\\040c,uhelper=fuse.polylane\n"
        );
        assert_eq!(line(table, Path::new("/n"), ""), None);
    }

    #[test]
    fn lines_of_others_stay_and_those_of_a_mount_are_replaced() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (dir, file) = (dir.path(), dir.path().join("utab"));
        // The second is below the lane.
        let other = "ID=7 SRC=/dev/sda TARGET=/m ROOT=/ OPTS=_netdev\n\
                     SRC=host:/x TARGET=/m\\040x ROOT=/ OPTS=_netdev,uhelper=nfs\n";
        fs::write(&file, other).expect("write");
        let path = Path::new("/m x");
        let text = || fs::read_to_string(&file).expect("read");
        for source in ["a", "b"] {
            let own = format!("SRC={source} TARGET=/m\\040x ROOT=/ OPTS={HELPER}\n").repeat(2);
            change(dir, path, own.as_bytes()).expect("listed");
            assert_eq!(text(), format!("{other}{own}"));
        }
        change(dir, path, &[]).expect("taken off");
        assert_eq!(text(), other);
        let lock = File::open(dir.join("utab.lock")).expect("open");
        flock(&lock, FlockOperation::LockExclusive).expect("lock");
        change(dir, path, b"x").expect_err("another has it, and does not get on");
        assert_eq!(text(), other);
    }
}
