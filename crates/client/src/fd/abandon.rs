//! What becomes of the open files of a lane when it turns out that there will be no session of it
//! any more.

use std::sync::atomic::Ordering;

use crate::fd::file;
use crate::fd::preopened::SlotPool;
use crate::fd::record::FileBits;
use crate::fd::table::{FdTable, Records};
use crate::kernel::config::LaneNumber;

/// Every open file of a lane is the kernel's from here on: its position counts there, and its slot
/// is its own. Nobody is told, for there is no session.
pub(crate) fn leave_all_to_kernel(
    table: &FdTable,
    records: &'static Records,
    (lane, slots): (LaneNumber, &'static SlotPool),
) {
    table.stale_all();
    records.each(|file| {
        if file.lane() != lane {
            return;
        }
        if file.slot.load(Ordering::Relaxed) != 0 && !file.is(FileBits::SHARED) {
            file::publish(slots, file);
            file.set(FileBits::ESCAPED | FileBits::SHARED);
        }
        file.set(FileBits::COMMON);
    });
    // Free slots are of no use any more, and those of parked files hold these open.
    slots.shed(|_, _| {});
}
