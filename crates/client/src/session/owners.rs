//! Numbers of users and groups, where this process is of another user namespace than the lane's
//! tenant: what the lane keeps is shown as the kernel shows it.

use std::sync::OnceLock;

use polylane_base::{Errno, Result};
use polylane_ipc::owners::Owners;

/// Those of this process: of one user namespace until the next exec, since who goes to another has
/// no session any more.
static OWNERS: OnceLock<Owners> = OnceLock::new();

/// Takes over what a service says of this process.
///
/// # Errors
/// `EACCES` where that is not what one said before.
pub(super) fn adopt(owners: Option<Owners>) -> Result<()> {
    let same = match owners {
        None => OWNERS.get().is_none(),
        Some(owners) => *OWNERS.get_or_init(|| owners.clone()) == owners,
    };
    if same { Ok(()) } else { Err(Errno::EACCES) }
}

/// What the kernel shows for an owner that has no number (`/proc/sys/kernel/overflowuid`).
const OVERFLOW: u32 = 65_534;

/// User and group as this process sees them.
#[inline]
pub(crate) fn shown(user: u32, group: u32) -> (u32, u32) {
    // On a lane with a map of its own (`mount --map-users`) an owner may have none.
    let known = |id: u32| if id == u32::MAX { OVERFLOW } else { id };
    match OWNERS.get() {
        None => (known(user), known(group)),
        Some(owners) => (owners.user(user), owners.group(group)),
    }
}
