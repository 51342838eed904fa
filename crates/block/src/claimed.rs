//! What the kernel itself uses: mounted, swapped to, part of another device. Two writers break a
//! file system, and the kernel takes no notice of locks.
//!
//! A block device tells by `O_EXCL` (open(2)): one opener at a time has the claim, and what the
//! kernel uses has it all the time, but for loop devices over it. A regular file tells nothing; but
//! loop devices name what is under them, and `/proc/swaps` names swap files.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use polylane_sys::loopdev;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat};

/// A use by the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The loop device by which a file is used.
    pub by: Option<PathBuf>,
    /// Where it is mounted, as far as can be seen from here.
    pub at: Option<PathBuf>,
}

/// Claims a block device: opens it anew. `None`: the kernel or another program has the claim.
///
/// # Errors
/// The host's.
pub(crate) fn claim(device: &Path, flags: OFlags) -> rustix::io::Result<Option<OwnedFd>> {
    match rustix::fs::open(device, flags | OFlags::EXCL, Mode::empty()) {
        Ok(claimed) => Ok(Some(claimed)),
        Err(rustix::io::Errno::BUSY) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The use of a block device that could not be claimed.
pub(crate) fn use_of_device(device: impl AsFd) -> Claimed {
    let number = fstat(device).map(|stat| stat.st_rdev).unwrap_or_default();
    Claimed { by: None, at: mounted_at(&[number_text(number)]) }
}

/// How the kernel uses a regular file, if it does: in any way, or to write to it.
pub(crate) fn use_of_file(file: impl AsFd, any: bool) -> Option<Claimed> {
    let stat = fstat(file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    use_over(&Below::of(&stat), any, LOOPS_MAX).or_else(|| use_as_swap(&stat))
}

/// How the kernel uses a loop device over a block device, if it does: the claim of a device is
/// nothing to those.
pub(crate) fn use_over_device(device: impl AsFd) -> Option<Claimed> {
    use_over(&Below::of(&fstat(device).ok()?), true, LOOPS_MAX)
}

/// Loop devices over loop devices that are followed.
const LOOPS_MAX: u32 = 8;

/// What a loop device may have under it.
struct Below {
    /// Device and inode number of a file, or of a device's node.
    file: (u64, u64),
    /// A device's number, which other nodes may have, too.
    device: Option<u64>,
}

impl Below {
    fn of(stat: &Stat) -> Below {
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Below { file: (stat.st_dev, stat.st_ino), device: is_device.then_some(stat.st_rdev) }
    }
}

/// How the kernel uses a loop device over this, or one over that.
fn use_over(below: &Below, any: bool, depth: u32) -> Option<Claimed> {
    let loops = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = loops.map(|entry| entry.path());
    let mut over = loops.filter(|at| is_over(at, below) && (any || !is_read_only(at)));
    over.find_map(|at| {
        use_of_loop(&at).or_else(|| {
            let node = rustix::fs::stat(node(&at)).ok().filter(|_| depth > 0)?;
            use_over(&Below::of(&node), any, depth - 1)
        })
    })
}

/// Whether the loop device at `device` in sysfs has this under it.
fn is_over(device: &Path, below: &Below) -> bool {
    let Ok(under) = fs::read_to_string(device.join("loop/backing_file")) else { return false };
    let found = rustix::fs::stat(under.trim_end_matches('\n')).ok().map(|stat| Below::of(&stat));
    if found.as_ref().is_some_and(|found| found.device.is_some() && found.device == below.device) {
        return true;
    }
    match open_node(device, OFlags::empty()).and_then(|node| loopdev::backing(&node).ok()) {
        Some(backing) => backing == below.file,
        // A caller that may not open the device is judged by the path.
        None => found.is_some_and(|found| found.file == below.file),
    }
}

/// Whether a device takes no writes, however it is opened (`ro` in sysfs; `BLKROGET`).
pub(crate) fn is_read_only_device(stat: &Stat) -> bool {
    is_read_only(&Path::new("/sys/dev/block").join(number_text(stat.st_rdev)))
}

fn is_read_only(device: &Path) -> bool {
    fs::read_to_string(device.join("ro")).is_ok_and(|text| text.trim() == "1")
}

fn is_file(path: &Path, file: &Stat) -> bool {
    fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (file.st_dev, file.st_ino))
}

/// The node of a device of sysfs.
fn node(device: &Path) -> PathBuf {
    Path::new("/dev").join(device.file_name().unwrap_or_default())
}

fn open_node(device: &Path, flags: OFlags) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | flags;
    rustix::fs::open(node(device), flags, Mode::empty()).ok()
}

/// How the kernel uses a loop device, one of its partitions, or a device over either.
fn use_of_loop(device: &Path) -> Option<Claimed> {
    let mut numbers: Vec<String> = fs::read_dir(device)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("dev")).ok())
        .chain(fs::read_to_string(device.join("dev")))
        .map(|text| text.trim().to_string())
        .collect();
    numbers.dedup();
    let at = mounted_at(&numbers);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let is_free = at.is_none() && !matches!(claim(&node(device), flags), Ok(None));
    let is_held =
        || fs::read_dir(device.join("holders")).is_ok_and(|mut held| held.next().is_some());
    match is_free && !is_held() {
        true => None,
        false => Some(Claimed { by: Some(node(device)), at }),
    }
}

fn use_as_swap(file: &Stat) -> Option<Claimed> {
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    let mut names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let found = names.any(|name| is_file(Path::new(&unescaped(name)), file));
    found.then_some(Claimed { by: None, at: None })
}

/// A device's number as the kernel writes it in tables.
fn number_text(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// The first place where a device of one of these numbers is mounted.
fn mounted_at(numbers: &[String]) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let number = words.next()?;
        let place = words.nth(1)?;
        numbers.iter().any(|own| own == number).then(|| PathBuf::from(unescaped(place)))
    })
}

/// A name from a table of the kernel's: blanks and backslashes are in octal there.
fn unescaped(name: &str) -> String {
    let (mut text, mut rest) = (String::new(), name);
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|code| u8::from_str_radix(code, 8).ok());
        text.push(code.map_or('\\', char::from));
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_tables_are_read_as_they_are() {
        assert_eq!(unescaped(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescaped(r"\x\04"), r"\x\04");
        assert_eq!(number_text(rustix::fs::makedev(7, 3)), "7:3");
    }

    #[test]
    fn a_file_that_nobody_mounted_is_free() {
        let file = tempfile::tempfile().expect("temporary file");
        assert_eq!(use_of_file(&file, true), None);
        let device = fs::File::open("/dev/null").expect("there");
        assert_eq!(use_of_file(&device, true), None);
        let root = fs::metadata("/").expect("there").dev();
        assert!(mounted_at(&[number_text(root)]).is_some());
        assert_eq!(mounted_at(&["999:999".to_string()]), None);
    }
}
