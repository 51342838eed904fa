//! What clients may do unasked, and how it is taken back: the service's side of the client's
//! `rights`, by the same names but for `locks`, whose client side is `ops/lock`, and `shown`.
//!
//! | module | what it does for the client |
//! |---|---|
//! | `closing` | ends what is on loan of a file, then closes it |
//! | `handles` | lets it park files, takes those back that lose their name |
//! | `inline_data` | answers an open with a small file's bytes, and the state they count at |
//! | `lease` | lets it change names and write new files, applies its stream in order |
//! | `locks` | lends it the POSIX locks of a file |
//! | `lookup` | counts by which answers about paths hold |
//! | `view` | shows it what open files hold, lends it pages to write |
//! | `shown` | the record of what is shown: which page lies in which frame |
//!
//! A right lies above those that it works on: a lease's entries close files and write to files on
//! loan. What a call works on is handed down to it; [`RightsOf`] is the one door from above.

mod closing;
mod handles;
mod inline_data;
mod lease;
mod locks;
pub(super) mod lookup;
mod shown;
mod view;

use polylane_base::Result;
use polylane_base::sync::{Arc, Weak};
use polylane_vfs::{Holder, LockLender, Look, Node, OpCtx, OpenFile, PathError, Viewer};

use self::inline_data::Opened;
use self::lease::{Granted, Holding, Leases};
use self::locks::LockLoans;
use self::shown::Shown;
use self::view::{Viewing, Views};
use super::connection::Connection;
use super::files::OpenFiles;
use super::request::Handle;
use crate::lane::locks::Given;

pub(super) use self::shown::FramesLeft;
pub(super) use self::view::Wish;

/// The rights of one session's client. Thread-safe.
pub(super) struct Rights {
    leases: Leases,
    views: Views,
    locks: LockLoans,
    shown: Shown,
}

impl Rights {
    /// None yet. The VFS is given `holder`, `viewer` and `lender`, to call when others come near.
    pub(super) fn new(
        holder: Weak<dyn Holder>,
        viewer: Weak<dyn Viewer>,
        lender: Weak<dyn LockLender>,
        frames_left: Arc<FramesLeft>,
    ) -> Rights {
        Rights {
            leases: Leases::new(holder),
            views: Views::new(viewer),
            locks: LockLoans::new(lender),
            shown: Shown::new(frames_left),
        }
    }

    /// The rights with the rest of their session.
    #[inline]
    pub(super) fn of<'a>(
        &'a self,
        connection: &'a Connection,
        files: &'a OpenFiles,
    ) -> RightsOf<'a> {
        let Rights { leases, views, locks, shown } = self;
        RightsOf(Holding { leases, views, shown, locks, connection, files })
    }
}

/// The rights of a session, for one call.
#[derive(Clone, Copy)]
pub(super) struct RightsOf<'a>(Holding<'a>);

/// Names: leases and their stream.
impl RightsOf<'_> {
    /// As [`Holding::settle`].
    #[inline]
    pub(super) fn settle(&self) {
        self.0.settle();
    }

    /// As [`Holding::revoke`].
    pub(super) fn revoke(&self) {
        self.0.revoke();
    }

    /// As [`Holding::streamed_well`].
    pub(super) fn streamed_well(&self) -> Result<()> {
        self.0.streamed_well()
    }

    /// As [`Holding::grant`].
    pub(super) fn grant(
        &self,
        path: (&Node, &[u8]),
        look: Look,
    ) -> Result<Option<Granted>, PathError> {
        self.0.grant(path, look)
    }

    /// As [`Holding::as_holder`].
    pub(super) fn as_holder<T>(
        &self,
        ctx: &OpCtx<'_>,
        dir: Option<&Node>,
        work: impl Fn(&OpCtx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.0.as_holder(ctx, dir, work)
    }

    /// As [`Holding::has_leases`].
    pub(super) fn has_leases(&self) -> bool {
        self.0.has_leases()
    }

    /// As [`Holding::was_refused`].
    pub(super) fn was_refused(&self, position: u32) -> bool {
        self.0.was_refused(position)
    }
}

/// Open files: what is shown, lent and kept of them.
impl RightsOf<'_> {
    fn views(&self) -> Viewing<'_> {
        self.0.viewing()
    }

    /// As [`Viewing::show_state`].
    pub(super) fn show_state(&self, handle: Handle, file: &OpenFile) -> u64 {
        self.views().show_state(handle, file)
    }

    /// As [`Viewing::show_end`].
    pub(super) fn show_end(&self, wish: Wish, file: &OpenFile) -> u64 {
        self.views().show_end(wish, file)
    }

    /// As [`Viewing::show_read`].
    pub(super) fn show_read(&self, wish: Wish, found: bool, file: &OpenFile) -> u64 {
        self.views().show_read(wish, found, file)
    }

    /// As [`Viewing::show_written`].
    pub(super) fn show_written(&self, wish: Wish, changes: Option<u64>, file: &OpenFile) -> u64 {
        self.views().show_written(wish, changes, file)
    }

    /// As [`Viewing::changes_of`].
    pub(super) fn changes_of(&self, node: &Node) -> Option<u64> {
        self.views().changes_of(node)
    }

    /// As [`Viewing::is_lent`].
    pub(super) fn is_lent(&self, handle: Handle) -> bool {
        self.views().is_lent(handle)
    }

    /// As [`Viewing::is_first_question`].
    pub(super) fn is_first_question(&self, handle: Handle) -> bool {
        self.views().is_first_question(handle)
    }

    /// As [`Viewing::lend_again`].
    pub(super) fn lend_again(&self, handle: Handle, file: &OpenFile) {
        self.views().lend_again(handle, file);
    }

    /// As [`Viewing::extend_loan`].
    pub(super) fn extend_loan(&self, handle: Handle, node: &Node) {
        self.views().extend_loan(handle, node);
    }

    /// As [`inline_data::show_opened`].
    pub(super) fn show_opened(
        &self,
        opened: (Handle, bool),
        file: &OpenFile,
        bring: impl FnOnce() -> bool,
    ) -> Option<Opened> {
        inline_data::show_opened(self.views(), opened, file, bring)
    }

    /// Lets the client park an open file from now on, if its view has none that may be and half of
    /// all views are left to others: the number of the view, and that of the right.
    pub(super) fn let_park(&self, handle: Handle, file: &OpenFile) -> Option<(u32, u64)> {
        let Holding { shown, connection, .. } = self.0;
        if shown.lock().is_half_full() {
            return None;
        }
        let view = self.views().view_of(handle, file.node())?;
        let number = handles::let_park(shown, &connection.channel, (view, handle))?;
        Some((view, number))
    }

    /// Lends the POSIX locks of an open file, of which this client was just given one. Returns the
    /// number of the file's view plus one, 0 for none. `given`: that lock as the next service is to
    /// know it, and the process as the tenant numbers it.
    pub(super) fn lend_locks(
        &self,
        handle: Handle,
        file: &OpenFile,
        given: (Option<Given>, u32),
    ) -> u64 {
        let Holding { shown, connection, locks, .. } = self.0;
        let Some(number) = self.views().view_of(handle, file.node()) else { return 0 };
        locks.lend((shown, connection), number, file, given);
        u64::from(number) + 1
    }

    /// As [`Viewing::is_on_loan`].
    pub(super) fn is_on_loan(&self, handle: Handle) -> bool {
        self.views().is_on_loan(handle)
    }

    /// As [`closing::close`].
    pub(super) fn close(&self, handle: Handle, parked: bool) -> Result<bool> {
        closing::close(self.views(), handle, parked)
    }
}

/// What is taken back: for the VFS, and at the end.
impl RightsOf<'_> {
    /// As [`Viewer::data_changes`].
    pub(super) fn data_changes(&self, view: u32, start: u64, end: u64) {
        self.views().data_changes(view, start, end);
    }

    /// As [`Viewer::attr_changed`].
    pub(super) fn attr_changed(&self, view: u32) {
        self.views().attr_changed(view);
    }

    /// As [`Viewer::end_loan`].
    pub(super) fn end_loan(&self, view: u32, node: &Node) {
        self.views().end_loan(view, node);
    }

    /// As [`Viewer::is_unwritten`].
    pub(super) fn is_unwritten(&self, view: u32, node: &Node) -> bool {
        self.views().is_unwritten(view, node)
    }

    /// As [`LockLender::end_lock_loan`].
    pub(super) fn end_lock_loan(&self, view: u32) {
        let Holding { shown, connection, locks, .. } = self.0;
        locks.end((shown, connection), view);
    }

    /// Closes the file of a view if it is parked, and ends the view if no handle refers to it: the
    /// file has no name any more.
    pub(super) fn let_go(&self, view: u32) {
        let Holding { shown, connection, .. } = self.0;
        if let Some(handle) = handles::take_back(shown, &connection.channel, view) {
            // First what its client wrote by the stream: that names the handle.
            self.settle();
            // A hostile client may have closed it meanwhile.
            let _ = self.close(handle, true);
        }
        self.views().give_up(view);
    }

    /// The session is over: what the client streamed is applied, and it has no rights from now on.
    pub(super) fn end(&self) {
        self.0.end();
        self.views().end();
    }
}
