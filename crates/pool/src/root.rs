//! `--root`: the lane becomes the root of COMMAND's file tree.
//!
//! `/proc`, `/sys` and `/dev` are put into it; their directories are made in the lane when missing.
//! `/dev` is a small tmpfs with the nodes that programs need, the terminals of the host and a
//! private `/dev/shm`.
//!
//! For a COMMAND that root runs they are what OCI runtimes give a container: what shows or changes
//! the host is hidden or read-only (`MASKED`, `READ_ONLY`), `/sys` is read-only, and of the control
//! groups there are the tenant's own. More only with `--privileged`.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode};
use rustix::io::{Errno, Result as SysResult};
use rustix::mount::MountAttrFlags;

use crate::failure::{Failure, Result, say};
use crate::{mounts, skeleton};

/// Device nodes of the host that every program may expect.
const NODES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx"];

/// Directories that COMMAND gets from outside of its lane.
pub(crate) const COVERED: [&str; 3] = ["proc", "sys", "dev"];

/// What of `/proc` and `/sys` a container does not see ...
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// ... and what it sees and does not change.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where control groups are, and `f_type` of their version 2.
const GROUPS: &str = "/sys/fs/cgroup";
const GROUPS_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// A detached `/proc` of this pid namespace, or why there cannot be one: in some containers the
/// kernel refuses because their own `/proc` is partly hidden.
pub(crate) fn new_proc() -> SysResult<OwnedFd> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mounts::create("proc", &[], attributes)
}

/// Puts the new `/proc` in place. Without one the host's stays, and that is said.
pub(crate) fn attach_proc(proc: SysResult<OwnedFd>, path: &Path) -> Result<()> {
    match proc {
        Ok(proc) => mounts::attach_at(&proc, path)
            .map_err(|error| Failure::path(path, "mount the tenant's processes there", error)),
        Err(_) => {
            say(
                "/proc: this host allows no new one; COMMAND sees the host's process numbers there",
            );
            Ok(())
        }
    }
}

/// Makes the lane the root. On return `/` is the lane, with `/proc`, `/sys` and `/dev` in it, as a
/// container is shown them if that is asked for.
pub(crate) fn enter(lane: &OwnedFd, contained: bool) -> Result<()> {
    let failed = |error| Failure::because("lane", "make it the root", error);
    let proc = new_proc();
    let old_proc = mounts::copy_of(CWD, Path::new("/proc")).map_err(failed)?;
    let sys_failed = |error| Failure::because("/sys", "bring it into the lane", error);
    let (sys, groups) = match contained {
        true => contained_sys().map_err(sys_failed)?,
        false => (mounts::copy_of(CWD, Path::new("/sys")).map_err(sys_failed)?, None),
    };
    let dev = pick_up_devices();
    for name in COVERED {
        match rustix::fs::mkdirat(lane, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                return Err(Failure::because(format!("/{name}"), "make it in the lane", error));
            }
        }
    }
    mounts::attach_at(lane, Path::new("/")).map_err(failed)?;
    mounts::switch_root(lane).map_err(failed)?;
    if proc.is_err() {
        mounts::attach_at(&old_proc, Path::new("/proc")).map_err(failed)?;
    }
    attach_proc(proc, Path::new("/proc"))?;
    mounts::attach_at(&sys, Path::new("/sys")).map_err(failed)?;
    if let Some(groups) = groups {
        mounts::attach_at(&groups, Path::new(GROUPS)).map_err(sys_failed)?;
    }
    build_dev(&dev).map_err(|error| Failure::because("/dev", "fill it", error))?;
    if contained {
        hide_the_host()?;
    }
    Ok(())
}

/// A `/sys` that nothing can be changed in, and the tenant's own control groups where the host has
/// their version 2.
fn contained_sys() -> SysResult<(OwnedFd, Option<OwnedFd>)> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let version = rustix::fs::statfs(GROUPS).map(|found| found.f_type);
    // Without a name space of their own they would be the host's.
    let own = polylane_sys::ns::unshare_groups().is_ok() && version == Ok(GROUPS_MAGIC);
    let groups = own.then(|| mounts::create("cgroup2", &[], attributes)).transpose()?;
    match mounts::create("sysfs", &[], attributes) {
        Ok(sys) => Ok((sys, groups)),
        // In some containers, whose own is partly hidden.
        Err(_) => {
            let sys = mounts::copy_of(CWD, Path::new("/sys"))?;
            mounts::make_read_only(&sys)?;
            Ok((sys, groups))
        }
    }
}

/// Covers what shows the host, and makes read-only what would change it.
fn hide_the_host() -> Result<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    for path in MASKED.map(Path::new) {
        let cover = match std::fs::symlink_metadata(path) {
            Err(_) => continue,
            Ok(found) if found.is_dir() => mounts::tmpfs(0o555, "4k", attributes),
            Ok(_) => mounts::copy_of(CWD, Path::new("/dev/null")),
        };
        cover
            .and_then(|cover| mounts::attach_at(&cover, path))
            .map_err(|error| Failure::path(path, "hide it", error))?;
    }
    for path in READ_ONLY.map(Path::new).into_iter().filter(|path| path.exists()) {
        mounts::copy_of(CWD, path)
            .and_then(|copy| mounts::make_read_only(&copy).map(|()| copy))
            .and_then(|copy| mounts::attach_at(&copy, path))
            .map_err(|error| Failure::path(path, "make it read-only", error))?;
    }
    Ok(())
}

/// Detached copies of the host's devices.
struct Devices {
    nodes: Vec<(&'static str, OwnedFd)>,
    terminals: Option<OwnedFd>,
}

/// What the host lacks, COMMAND lacks too.
fn pick_up_devices() -> Devices {
    let copy = |name: &str| mounts::copy_of(CWD, &Path::new("/dev").join(name)).ok();
    Devices {
        nodes: NODES.into_iter().filter_map(|name| Some((name, copy(name)?))).collect(),
        terminals: copy("pts"),
    }
}

fn build_dev(devices: &Devices) -> SysResult<()> {
    let dev = mounts::tmpfs(0o755, "64k", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    mounts::attach_at(&dev, Path::new("/dev"))?;
    for (name, node) in &devices.nodes {
        skeleton::make_file(&dev, Path::new(name))?;
        mounts::attach(node, &dev, Path::new(name))?;
    }
    if let Some(terminals) = &devices.terminals {
        rustix::fs::mkdirat(&dev, "pts", Mode::from_raw_mode(0o755))?;
        mounts::attach(terminals, &dev, Path::new("pts"))?;
    }
    rustix::fs::mkdirat(&dev, "shm", Mode::from_raw_mode(0o1777))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mounts::attach(&mounts::tmpfs(0o1777, "50%", attributes)?, &dev, Path::new("shm"))?;
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ] {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    Ok(())
}
