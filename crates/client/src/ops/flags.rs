//! Inode flags (chattr(1)). They are asked for by the program's own descriptor: the kernel would
//! open another handle of a slot's node, which there may not be yet.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::state::State;
use super::{file, pieces};
use crate::kernel::outcome::{Detour, Outcome};
use crate::session;

/// Before flags are asked for or set by a descriptor; whether it is the library's own. `Kernel`: it
/// is not on a lane.
pub(crate) fn announce(state: &'static State, fd: RawFd) -> Outcome<bool> {
    if !pieces::on_fuse(fd) {
        return Err(Detour::Kernel);
    }
    // What was made under a lease is from now on written as everything else is.
    let number = file::find(state, fd).map(|file| file.session.load(Ordering::Relaxed)).ok();
    if let Some(session) = number.and_then(session::of) {
        state.get().lane(session.lane).leases.meets(session);
    }
    Ok(number.is_some())
}
