//! The close of what a session has open: what is on loan ends first.

use polylane_base::Result;

use super::view::Viewing;
use crate::lane::locks::Whose;
use crate::lane::slots::Unbound;
use crate::shm::files::Open;
use crate::shm::request::Handle;

/// Closes what is open; whether its slot escaped. `parked`: its program closed it before.
pub(super) fn close(viewing: Viewing<'_>, handle: Handle, parked: bool) -> Result<bool> {
    let Viewing { connection, files, .. } = viewing;
    let Open::File { file, slot, view } = files.remove(handle)? else { return Ok(false) };
    if let Some(view) = view {
        if file.flags() & libc::O_ACCMODE != libc::O_RDONLY {
            // Other handles may be left by which nothing may be written.
            viewing.end_loan(view, file.node());
        }
        viewing.leave_view(view, Some(handle));
    }
    if !parked {
        // close(2) of any descriptor of a file drops the process's POSIX locks on it.
        let (node, process) = (file.node(), &connection.process);
        connection.lane.vfs.drop_locks(node, process.owner);
        let (ino, generation) = (node.ino().0, node.generation());
        connection.lane.kept.drop_all(Whose::Process { ino, generation, process: process.number });
    }
    // The slot is gone when the kernel has released it already.
    Ok(slot.is_some_and(|number| connection.slots.unbind(number) == Ok(Unbound::Escaped)))
}
