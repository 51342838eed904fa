//! Cached handles: a program that opens the same file again and again, without changing it, closes
//! and opens it without a request.
//!
//! The client parks the file when its program closes it, and opens it again by itself as long as
//! the mark that came with the open holds: the path leads to the same file, in the same state,
//! which the client may read. What is left to be seen here is that a parked file is no reason to
//! keep a file without a name: the request that removes the last name raises the mark first, and
//! then has parked files taken back. The client says that a file is parked before it looks at the
//! mark, so that one of the two sees what the other did.

use polylane_ipc::ServiceChannel;

use super::shown::{CachedHandle, Shown};
use crate::shm::request::Handle;

/// Lets the client park an open file from now on, if its view has none that may be: the number of
/// the right.
pub(super) fn let_park(
    shown: &Shown,
    channel: &ServiceChannel,
    (view, handle): (u32, Handle),
) -> Option<u64> {
    let mut state = shown.lock();
    let number = state.handles_cached + 1;
    let shown = state.get(view).filter(|view| view.watched && view.cached.is_none())?;
    shown.cached = Some(CachedHandle { handle, number });
    state.handles_cached = number;
    channel.views().put_rest(view, number);
    Some(number)
}

/// Takes the file of a view back that is parked: its handle, to be closed.
pub(super) fn take_back(shown: &Shown, channel: &ServiceChannel, view: u32) -> Option<Handle> {
    let mut state = shown.lock();
    let taken = |cached: &mut CachedHandle| channel.views().take_rest(view, cached.number);
    state.get(view)?.cached.take_if(taken).map(|cached| cached.handle)
}
