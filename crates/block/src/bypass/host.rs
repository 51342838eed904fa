//! Which hosts are fit for pool files, and the disk under one.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_sys::extents as host;
use rustix::fs::{IFlags, Mode, OFlags, Stat, StatxAttributes, StatxFlags};

use super::error::{PoolError, Refused, Result, errno, failed};
use crate::device::SECTOR_BYTES;

/// `st_type` of the file systems that are fit.
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// The disk under a file.
#[derive(Debug)]
pub(super) struct Disk {
    /// With O_DIRECT.
    pub(super) fd: OwnedFd,
    pub(super) sectors: u64,
}

impl Disk {
    /// Finds and opens it, if its file system is fit.
    pub(super) fn under(file: &OwnedFd) -> Result<Disk> {
        let stat = rustix::fs::fstat(file).map_err(failed("look at it"))?;
        check_file_system(file, &stat)?;
        check_attributes(file)?;
        let path = device_path(&stat)?;
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| Refused::DeviceOpen(errno(error)))?;
        let found = rustix::fs::fstat(&fd).map_err(failed("look at its disk"))?;
        if found.st_rdev != stat.st_dev {
            return Err(no_device(&stat));
        }
        let block_bytes = rustix::fs::ioctl_blksszget(&fd).map_err(failed("look at its disk"))?;
        if block_bytes as usize != SECTOR_BYTES {
            return Err(Refused::BlockBytes(block_bytes).into());
        }
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0));
        let sectors = bytes.map_err(failed("find its disk's size"))? / SECTOR_BYTES as u64;
        Ok(Disk { fd, sectors })
    }
}

fn no_device(stat: &Stat) -> PoolError {
    let device = stat.st_dev;
    Refused::NoDevice(rustix::fs::major(device), rustix::fs::minor(device)).into()
}

fn check_file_system(file: &OwnedFd, stat: &Stat) -> Result<()> {
    let magic = rustix::fs::fstatfs(file).map_err(failed("look at its file system"))?.f_type as u64;
    let (kind, options) = mount_of(stat).unwrap_or_default();
    match magic {
        // Others of the family have the same number.
        EXT4 if kind == "ext4" && options.split(',').any(|it| it == "data=journal") => {
            Err(Refused::JournalledData.into())
        }
        EXT4 if kind == "ext4" => Ok(()),
        XFS => Ok(()),
        _ => Err(Refused::FileSystem(name_of(magic, kind)).into()),
    }
}

/// What a file system is called: some have a device number that no mount has.
fn name_of(magic: u64, kind: String) -> String {
    const NAMES: [(u64, &str); 10] = [
        (0x9123_683e, "btrfs"),
        (0x794c_7630, "overlay"),
        (0x0102_1994, "tmpfs"),
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x00c3_6400, "Ceph"),
        (0x0102_1997, "9P"),
        (0x6573_5546, "FUSE"),
        (0xca45_1a4e, "bcachefs"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name);
    match known {
        _ if !kind.is_empty() => kind,
        Some(name) => name.to_string(),
        None => format!("file system {magic:#x}"),
    }
}

/// Type and options of the file system of a file, by its device.
fn mount_of(stat: &Stat) -> Option<(String, String)> {
    let wanted = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == wanted).then_some(())?;
        let mut words = source.split(' ');
        let kind = words.next()?.to_string();
        let options = words.nth(1).unwrap_or_default();
        Some((kind, options.to_string()))
    })
}

fn check_attributes(file: &OwnedFd) -> Result<()> {
    let found = rustix::fs::statx(file, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::empty())
        .map_err(failed("look at it"))?;
    let unfit = StatxAttributes::COMPRESSED
        | StatxAttributes::ENCRYPTED
        | StatxAttributes::VERITY
        | StatxAttributes::DAX;
    if found.stx_attributes.intersects(unfit) {
        return Err(Refused::Attributes.into());
    }
    if rustix::fs::ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::JOURNALING)) {
        return Err(Refused::JournalledData.into());
    }
    match host::is_realtime(file) {
        Ok(true) => Err(Refused::Realtime.into()),
        _ => Ok(()),
    }
}

/// The node of a file's device: udev's link, else the name that the kernel gives it.
fn device_path(stat: &Stat) -> Result<PathBuf> {
    let number = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let link = Path::new("/dev/block").join(&number);
    if fs::metadata(&link).is_ok() {
        return Ok(link);
    }
    let told = fs::read_to_string(Path::new("/sys/dev/block").join(&number).join("uevent"));
    let told = told.map_err(|_| no_device(stat))?;
    let name = told.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map(|name| Path::new("/dev").join(name)).ok_or_else(|| no_device(stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_called_by_its_name() {
        let named =
            |magic, kind: &str| Refused::FileSystem(name_of(magic, kind.into())).to_string();
        // As a mount says it; where no mount has the device's number, as the magic number does.
        assert_eq!(named(0x6969, "nfs4"), "nfs4 is neither ext4 nor XFS");
        for (magic, name) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x794c_7630, "overlay")] {
            assert_eq!(named(magic, ""), format!("{name} is neither ext4 nor XFS"));
        }
        assert_eq!(named(7, ""), "file system 0x7 is neither ext4 nor XFS");
    }
}
