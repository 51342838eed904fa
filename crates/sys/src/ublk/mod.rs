//! ublk: block devices that are served by a process (`include/uapi/linux/ublk_cmd.h`), in copy
//! mode. Commands of both kinds go through io_uring.
//!
//! What this module promises above: structures of the kernel's layout, complete. A queue owns the
//! memory that the kernel copies data to and from for as long as the kernel may do so.
//!
//! | file | what |
//! |---|---|
//! | `control.rs` | makes, starts, stops and recovers devices |
//! | `queue.rs` | the requests of one queue |

mod control;
mod queue;

pub use control::{CONTROL, Control, State};
pub use queue::{Op, Queue, Wanted};

const SECTOR_BYTES: u32 = 512;

/// How a device is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Queues, each by one thread.
    pub queues: u16,
    /// Requests of each at a time.
    pub depth: u16,
    /// Largest transfer in bytes.
    pub transfer_bytes: u32,
}
