//! Giving up capabilities and a user, for good.

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Becomes `user`, keeps these capabilities and nothing else, for good. Whether it became that
/// user: in a user namespace it may not be mapped.
///
/// # Errors
/// What capset(2), prctl(2) and setresuid(2) say.
pub fn keep_only(kept: CapabilitySet, user: Option<u32>) -> rustix::io::Result<bool> {
    for capability in CapabilitySet::all().difference(kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not know.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let held = rustix::thread::capabilities(None)?.permitted & kept;
    rustix::thread::set_keep_capabilities(!held.is_empty())?;
    let became = match user.map(become_user) {
        Some(Ok(())) => true,
        None | Some(Err(Errno::INVAL | Errno::PERM)) => false,
        Some(Err(error)) => return Err(error),
    };
    let sets =
        CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::set_keep_capabilities(false)?;
    Ok(became)
}

/// Takes on a user, the group of that number and no other.
fn become_user(user: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}
