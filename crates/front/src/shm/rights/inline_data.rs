//! What comes with the answer to an open: all bytes of a small file, with the state at which they
//! count, so that a program that opens a file to read it needs no request more.

use polylane_ipc::view::{HAS_ATTR, HAS_DATA};
use polylane_vfs::OpenFile;

use super::shown::PAGE;
use super::view::Viewing;
use crate::lane::tag::kernel_changes_pages;
use crate::shm::request::Handle;

/// What is shown of a file that was just opened.
pub(in crate::shm) struct Opened {
    pub(in crate::shm) view: u32,
    /// The number of its state.
    pub(in crate::shm) sequence: u32,
}

/// Shows the state of a file that was just opened, if all of it is cached, and has `bring`
/// bring its bytes. They are the file's as long as the state is that one; of a file that is
/// opened again, or may rest and is not opened `first`, they are put into frames instead, where
/// they outlive the close. Where reading
/// moves the access time the client notes that it did, if nobody else has a view. Leaves views
/// as `show_end` does.
pub(super) fn show_opened(
    viewing: Viewing<'_>,
    (handle, first): (Handle, bool),
    file: &OpenFile,
    bring: impl FnOnce() -> bool,
) -> Option<Opened> {
    let (vfs, node) = (&viewing.connection.lane.vfs, file.node());
    let pages = 0..file.size().div_ceil(PAGE);
    let is_cached = vfs.cached_around(node, 0..0, pages.clone()) == pages;
    if !is_cached || kernel_changes_pages(node) || viewing.shown.lock().is_half_full() {
        return None;
    }
    let view = viewing.view_of(handle, node)?;
    viewing.show_attr(view, node).ok()?;
    let look = viewing.connection.channel.views().look(view).filter(|look| look.has(HAS_ATTR))?;
    if look.has(HAS_DATA) {
        let there = viewing.show_again((view, first), node, pages) || bring();
        return there.then_some(Opened { view, sequence: look.sequence() });
    }
    // What was just changed may change again: frames are for files that are read for longer.
    let changes = viewing.changes_of(node).filter(|_| !file.is_noatime())?;
    let sequence = if bring() { viewing.lend_reads(view, node, changes)? } else { return None };
    Some(Opened { view, sequence })
}
