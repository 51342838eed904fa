//! Mounts one by one, by calls that rustix lacks: their attributes (mount_setattr(2)), their
//! numbers that no other mount ever has, and what the kernel tells of one of them (statmount(2),
//! listmount(2): from Linux 6.8 on). The table of all mounts is not printed for that.
#![expect(unsafe_code, reason = "UNSAFETY: raw system calls with structs")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use polylane_base::{Errno, Result};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::MountAttrFlags;

use crate::region::errno;

/// `struct mount_attr` of linux/mount.h, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Gives a mount (a descriptor of its root) and the mounts below it these attributes besides those
/// that it has.
///
/// # Errors
/// `EBUSY` when a file on it is open to be written and it is to be read-only; `EPERM`, `EINVAL`:
/// see mount_setattr(2).
pub fn restrict(mount: impl AsFd, attributes: MountAttrFlags) -> Result<()> {
    let wanted = Attributes { set: attributes.bits().into(), ..Attributes::default() };
    change(mount.as_fd(), libc::AT_RECURSIVE, &wanted)
}

/// Shows the owners of files on a detached mount (a descriptor of its root) as the numbers that
/// they have on the host in this user namespace, for good; owners without a number there have none.
///
/// # Errors
/// `EINVAL` when the file system lets no mount be id-mapped; `EPERM` when this one is already, or
/// the caller may not.
pub fn map_ids(mount: impl AsFd, user_namespace: BorrowedFd<'_>) -> Result<()> {
    let wanted = Attributes {
        set: MountAttrFlags::MOUNT_ATTR_IDMAP.bits().into(),
        user_namespace: user_namespace.as_raw_fd() as u64,
        ..Attributes::default()
    };
    change(mount.as_fd(), 0, &wanted)
}

fn change(mount: BorrowedFd<'_>, flags: libc::c_int, wanted: &Attributes) -> Result<()> {
    let flags = libc::AT_EMPTY_PATH | flags;
    // SAFETY: the path is an empty string, and the kernel reads as many bytes of the struct as it
    // has.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(wanted),
            size_of::<Attributes>(),
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

/// `STATX_MNT_ID_UNIQUE`
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The same on all architectures.
const STATMOUNT: libc::c_long = 457;
const LISTMOUNT: libc::c_long = 458;

/// `STATMOUNT_MNT_BASIC`, `STATMOUNT_MNT_POINT`
const WANTED: u64 = 0x2 | 0x10;

/// Most bytes of a mount's place, with its terminator.
const PLACE_BYTES: usize = 4096;

/// Mounts that one call lists.
const LISTED: usize = 64;

/// `struct mnt_id_req` of linux/mount.h, in its first version.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    parameter: u64,
}

impl Request {
    fn new(mount: u64, parameter: u64) -> Request {
        Request { size: size_of::<Request>() as u32, spare: 0, mount, parameter }
    }
}

/// `struct statmount` of linux/mount.h, with room for its text.
#[repr(C)]
struct RawStatus {
    size: u32,
    options: u32,
    mask: u64,
    file_system: [u32; 6],
    mount: u64,
    parent: u64,
    former_numbers: [u32; 2],
    attributes: u64,
    propagation: [u64; 4],
    root: u32,
    /// Where in `text` the mount point stands.
    point: u32,
    more: [u64; 50],
    text: [u8; PLACE_BYTES],
}

/// A mount's number that no other mount of this host has until it is started again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MountId(u64);

/// What the kernel tells of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountState {
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Where it is, from the calling process's root.
    pub place: Vec<u8>,
}

impl MountId {
    /// Of the mount that a descriptor was opened through. Asks no file system.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 6.8; what statx(2) says.
    pub fn of(file: impl AsFd) -> Result<MountId> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(file, "", flags, UNIQUE).map_err(errno)?;
        match stat.stx_mask & UNIQUE.bits() {
            0 => Err(Errno::ENOSYS),
            _ => Ok(MountId(stat.stx_mnt_id)),
        }
    }

    /// The number itself, which is never 0.
    pub fn number(self) -> u64 {
        self.0
    }

    /// What it is; `None`: the calling process's mount namespace has it no more.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 6.8, `EPERM` where it is out of this process's sight, `EOVERFLOW` when
    /// its place is longer than a path may be.
    pub fn state(self) -> Result<Option<MountState>> {
        let request = Request::new(self.0, WANTED);
        // SAFETY: the structure is plain numbers, for which all zeros is a value.
        let mut status: RawStatus = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel reads as many bytes of the request as that says, and writes at most
        // those of the structure; both outlive the call.
        let done = unsafe {
            libc::syscall(
                STATMOUNT,
                std::ptr::from_ref(&request),
                std::ptr::from_mut(&mut status),
                size_of::<RawStatus>(),
                0,
            )
        };
        match done {
            0 => status.state().map(Some),
            _ => match Errno::from(std::io::Error::last_os_error()) {
                Errno::ENOENT => Ok(None),
                error => Err(error),
            },
        }
    }

    /// The mounts in it and, in turn, in those.
    ///
    /// # Errors
    /// `ENOENT`: the calling process's mount namespace has it no more; else as
    /// [`state`](MountId::state).
    pub fn mounts_in(self) -> Result<Vec<MountId>> {
        let mut all = Vec::new();
        loop {
            // It goes on after the last one that was told.
            let after = all.last().map_or(0, |last: &MountId| last.0);
            let request = Request::new(self.0, after);
            let mut listed = [0_u64; LISTED];
            // SAFETY: as above; it writes at most as many numbers as it is told there is room for.
            let count = unsafe {
                libc::syscall(
                    LISTMOUNT,
                    std::ptr::from_ref(&request),
                    listed.as_mut_ptr(),
                    LISTED,
                    0,
                )
            };
            let Ok(count) = usize::try_from(count) else {
                return Err(Errno::from(std::io::Error::last_os_error()));
            };
            all.extend(listed.iter().take(count).map(|&number| MountId(number)));
            if count < LISTED {
                return Ok(all);
            }
        }
    }
}

impl RawStatus {
    fn state(&self) -> Result<MountState> {
        if self.mask & WANTED != WANTED {
            return Err(Errno::EPROTO);
        }
        let place = self.text.get(self.point as usize..).ok_or(Errno::EPROTO)?;
        let place: Vec<u8> = place.iter().copied().take_while(|&byte| byte != 0).collect();
        let read_only = self.attributes & u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits()) != 0;
        Ok(MountState { read_only, place })
    }
}

const _: () = assert!(size_of::<RawStatus>() == 512 + PLACE_BYTES);
const _: () = assert!(std::mem::offset_of!(RawStatus, mount) == 40);
const _: () = assert!(std::mem::offset_of!(RawStatus, attributes) == 64);
const _: () = assert!(std::mem::offset_of!(RawStatus, point) == 108);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, File};

    use super::*;

    /// Lines of this process's own table, as words.
    fn table() -> Vec<Vec<String>> {
        let text = fs::read_to_string("/proc/self/mountinfo").expect("a table");
        text.lines().map(|line| line.split(' ').map(str::to_string).collect()).collect()
    }

    #[test]
    fn a_mount_is_told_of_as_the_table_does() {
        let root = File::open("/proc").expect("/proc");
        let id = match MountId::of(&root) {
            Ok(id) => id,
            Err(error) => {
                println!("skipped: a_mount_is_told_of_as_the_table_does: statx: {error:?}");
                return;
            }
        };
        let state = match id.state() {
            Ok(state) => state.expect("it is there"),
            Err(error) => {
                println!("skipped: a_mount_is_told_of_as_the_table_does: statmount: {error:?}");
                return;
            }
        };
        assert_eq!(state.place, b"/proc");
        let line = table().into_iter().rfind(|words| words[4] == "/proc").expect("a line");
        assert_eq!(state.read_only, line[5].split(',').any(|option| option == "ro"));
    }

    #[test]
    fn mounts_in_the_root_are_those_of_the_table() {
        let id = match MountId::of(File::open("/").expect("/")) {
            Ok(id) if id.state().is_ok() => id,
            _ => {
                println!("skipped: mounts_in_the_root_are_those_of_the_table: no statmount here");
                return;
            }
        };
        let told: HashSet<MountId> = id.mounts_in().expect("a list").into_iter().collect();
        assert!(!told.contains(&id), "a mount is not in itself");
        let places: HashSet<Vec<u8>> =
            told.iter().filter_map(|id| id.state().ok()?).map(|state| state.place).collect();
        let plain = |place: &String| !place.contains('\\') && place != "/";
        let lines = table().into_iter().map(|words| words[4].clone()).filter(plain);
        let missed: Vec<String> = lines.filter(|line| !places.contains(line.as_bytes())).collect();
        assert!(missed.is_empty(), "{missed:?} are not among {places:?}");
    }

    #[test]
    fn a_mount_that_never_was_is_none() {
        match MountId(u64::MAX).state() {
            Ok(state) => assert_eq!(state, None),
            Err(error) => println!("skipped: a_mount_that_never_was_is_none: {error:?}"),
        }
    }
}
