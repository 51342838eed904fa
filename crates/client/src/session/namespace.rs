//! What paths mean in this process: whether there is a lane, and where.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zerocopy::FromZeros;

use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;

/// Whether this library has anything to do with calls of this thread just now. `Kernel`: it has
/// not.
#[inline]
pub(crate) fn any_lane() -> Outcome<()> {
    match config::has_lane() && !thread::is_inside() {
        true => Ok(()),
        false => Err(Detour::Kernel),
    }
}

/// Lanes whose paths mean something else here than in the service (chroot, another mount
/// namespace), or whose service would take this process for more than it is: a bit for each. What a
/// child inherits with memory of its own, so that it stays until the next exec; one of a process
/// that shares its place goes on behind that ([`config::shares_place`]).
static ESTRANGED: AtomicU32 = AtomicU32::new(0);

/// Whether paths of that lane mean the same in this process as in its service.
#[inline]
pub(crate) fn is_at_home(lane: LaneNumber) -> bool {
    ESTRANGED.load(Ordering::SeqCst) & 1 << lane.index() == 0
}

/// From now on this process, and what is forked from it, has no session of any lane.
pub(crate) fn leave_home() {
    ESTRANGED.store(u32::MAX, Ordering::SeqCst);
}

/// From now on this process, and what is forked from it, has no session of that lane.
pub(crate) fn leave(lane: LaneNumber) {
    ESTRANGED.fetch_or(1 << lane.index(), Ordering::SeqCst);
}

/// Says once, where that is asked for, that the service refused this process a session.
pub(crate) fn say_refused(lane: LaneNumber) {
    let Some(mount) = config::mount(lane).filter(|_| config::says_why()) else { return };
    let line: [&[u8]; 3] = [
        b"polylane: ",
        mount,
        b"/: no fast way: this process is confined, or something is mounted in what it sees of the \
          lane, or its users have no numbers there: the kernel serves it\n",
    ];
    // Where standard error is closed there is nobody to be told.
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.concat());
}

/// The mount of a lane as the kernel knows it. Zero is "not known yet".
#[derive(FromZeros)]
pub(crate) struct Mount {
    /// `st_dev` plus one.
    device: AtomicU64,
    /// Inode number of the root.
    root_ino: AtomicU64,
}

impl Mount {
    pub(crate) const fn new() -> Self {
        Mount { device: AtomicU64::new(0), root_ino: AtomicU64::new(0) }
    }

    /// `st_dev` of the mount.
    #[inline]
    pub(crate) fn device(&self, lane: LaneNumber) -> Outcome<u64> {
        match self.device.load(Ordering::Relaxed).checked_sub(1) {
            Some(device) => Ok(device),
            None => self.find(lane).map(|(device, _)| device),
        }
    }

    /// The inode number of the mount's root.
    pub(crate) fn root_ino(&self, lane: LaneNumber) -> Outcome<u64> {
        match self.root_ino.load(Ordering::Relaxed) {
            0 => self.find(lane).map(|(_, root)| root),
            root => Ok(root),
        }
    }

    /// Device and inode number of the mount's root.
    #[cold]
    fn find(&self, lane: LaneNumber) -> Outcome<(u64, u64)> {
        let mut path = [0; config::MOUNT_BYTES_MAX + 1];
        let path = config::under_mount(lane, &mut path, b"").ok_or(Detour::Kernel)?;
        // After chroot there may be nothing of that name.
        let (device, root) = real::stat_cached(path).map_err(|_| Detour::Kernel)?;
        self.root_ino.store(root, Ordering::Relaxed);
        self.device.store(device + 1, Ordering::Relaxed);
        Ok((device, root))
    }
}
