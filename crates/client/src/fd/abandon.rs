//! What becomes of open files when it turns out that there will be no session any more.

use std::sync::atomic::Ordering;

use crate::fd::file;
use crate::fd::preopened::SlotPool;
use crate::fd::record::FileBits;
use crate::fd::table::{FdTable, Records};

/// Every open file is the kernel's from here on: its position counts there, and its slot is its
/// own. Nobody is told, for there is no session.
pub(crate) fn leave_all_to_kernel(
    table: &FdTable,
    records: &'static Records,
    slots: &'static SlotPool,
) {
    table.stale_all();
    records.each(|file| {
        if file.slot.load(Ordering::Relaxed) != 0 && !file.is(FileBits::SHARED) {
            file::publish(slots, file);
            file.set(FileBits::ESCAPED | FileBits::SHARED);
        }
        file.set(FileBits::COMMON);
    });
    // Free slots are of no use any more, and those of parked files hold these open.
    slots.shed(|_, _| {});
}
