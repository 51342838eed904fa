//! Open files at rest: a program that opens the same file again and again, without changing it,
//! closes and opens it without a request.
//!
//! The client opens it again by itself as long as the mark that came with the open holds: the path
//! leads to the same file, in the same state, which the client may read. What is left to be seen
//! here is that a file at rest is no reason to keep a file without a name: whoever removes the last
//! name raises the mark first, and then has files at rest taken back. The client says that a file
//! rests before it looks at the mark, so that one of the two sees what the other did.
//!
//! # Locking
//!
//! As the views'.

use polylane_base::sync::Arc;
use polylane_vfs::OpenFile;

use super::super::request::Handle;
use super::super::session::Session;

/// An open file that may rest.
#[derive(Clone, Copy)]
pub(super) struct Resting {
    pub(super) handle: Handle,
    /// Its own, unlike that of any other in the session.
    number: u64,
}

impl Session {
    /// Lets an open file rest from now on, if its view has none that may and half of all views are
    /// left to others: the number of the view, and that under which it may rest.
    pub(in super::super) fn let_rest(
        self: &Arc<Self>,
        handle: Handle,
        file: &OpenFile,
    ) -> Option<(u32, u64)> {
        if self.views.state.lock().is_half_full() {
            return None;
        }
        let view = self.view_of(handle, file.node())?;
        let mut state = self.views.state.lock();
        let number = state.rests + 1;
        let shown = state.get(view).filter(|view| view.watched && view.resting.is_none())?;
        shown.resting = Some(Resting { handle, number });
        state.rests = number;
        self.channel.views().put_rest(view, number);
        Some((view, number))
    }

    /// Closes the file of a view that rests.
    pub(super) fn end_rest(&self, view: u32) {
        let mut state = self.views.state.lock();
        let Some(shown) = state.get(view) else { return };
        let taken = |resting: &mut Resting| self.channel.views().take_rest(view, resting.number);
        let Some(resting) = shown.resting.take_if(taken) else { return };
        drop(state);
        // First what its client wrote by the stream: that names the handle.
        self.settle();
        // A hostile client may have closed it meanwhile.
        let _ = self.close(resting.handle, true);
    }
}
