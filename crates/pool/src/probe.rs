//! What only trying shows: a FUSE mount in namespaces of its own, made and gone in a child process.

use polylane_front::fuse::{self, Params, Wants};
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::mount::MountAttrFlags;

use crate::failure::{FAILED, Failure, Result};
use crate::fuse_device;
use crate::link::Link;
use crate::mounts;
use crate::process::Process;
use crate::user_namespace::{map_user, rootless};

/// How long the kernel may take to send FUSE_INIT.
const INIT_TIME_MAX_MS: u32 = 5_000;

/// Mounts, negotiates, and lets go again. What the kernel and this version of polylane have in
/// common.
///
/// # Errors
/// The one line that `polylane run` would end with.
pub(crate) fn fuse_mount() -> Result<Params> {
    let failed = |error: std::io::Error| Failure::because("namespaces", "make them", error);
    let rootless = rootless();
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    let namespaces = Namespaces { user: rootless.is_some(), mount: true, pid: false };
    match ns::fork(namespaces).map_err(failed)? {
        Fork::Child => {
            let answer = try_mount(rootless).map_err(|failure| failure.line);
            let sent = other.send(&answer, &[]).is_ok();
            ns::exit_now(if sent { 0 } else { FAILED.into() })
        }
        Fork::Parent(child) => {
            drop(other);
            let _child = Process::new(child);
            match link.receive::<Result<Params, String>>() {
                Ok(Some((answer, _))) => answer.map_err(Failure::failed),
                _ => Err(Failure::failed("the process that tried it ended")),
            }
        }
    }
}

fn try_mount(rootless: Option<(u32, u32)>) -> Result<Params> {
    if let Some((uid, gid)) = rootless {
        map_user(uid, gid)?;
    }
    let failed = |error| Failure::because("lane", "mount it through FUSE", error);
    let device = fuse_device::open_fuse()?;
    let _mount =
        mounts::fuse(&device, mounts::SOURCE, MountAttrFlags::MOUNT_ATTR_NODEV).map_err(failed)?;
    fuse::negotiate(
        &device,
        INIT_TIME_MAX_MS,
        Wants { acls: true, id_maps: true, ..Wants::default() },
    )
    .map_err(|error| Failure::because(fuse_device::FUSE_DEVICE, "agree on a protocol", error))
}
