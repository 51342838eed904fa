//! Where everything lies in a channel's memory. `docs/design/wire.md` has the same as a table.
//!
//! ```text
//!  0      64         576     4096                              stream   mailboxes       views
//!  ├ header ┼ control[g] ┼ … ┼ queue[0] ┼ … ┼ queue[groups-1] ┼ stream ┼ mailbox 0 ┼ … ┼ views ┤
//!  mailbox: state, progress, cpu, words 16..208, waiting, payload from 256
//! ```

use polylane_base::{Errno, Result};

use crate::stream::STREAM_BYTES;
use crate::view::{self, FRAMES_MAX, WAYS};

/// First word of a channel: "plchan01".
pub const MAGIC: u64 = u64::from_le_bytes(*b"plchan01");

/// Most mailboxes in a channel.
pub const MAILBOXES_MAX: u32 = 1024;
/// Most core groups in a channel.
pub const GROUPS_MAX: u32 = 8;
/// Smallest payload buffer: two longest paths and the largest extended attribute fit.
pub const BUFFER_BYTES_MIN: u32 = 128 << 10;
/// Largest payload buffer.
pub const BUFFER_BYTES_MAX: u32 = 4 << 20;

const _: () = assert!(2 * crate::message::PATH_BYTES_MAX + 65536 <= BUFFER_BYTES_MIN as usize);

const PAGE: usize = 4096;
const LINE: usize = 64;

/// Offset of the first control line.
const CONTROL: usize = LINE;
/// Bytes before a mailbox's payload.
pub const MAILBOX_HEAD: usize = 256;

/// Offsets within the header line.
pub mod header {
    /// [`super::MAGIC`], u64.
    pub const MAGIC: usize = 0;
    /// Wire version, u32.
    pub const VERSION: usize = 8;
    /// Mailbox count, u32.
    pub const MAILBOXES: usize = 12;
    /// Payload bytes per mailbox, u32.
    pub const BUFFER: usize = 16;
    /// Queue kind, u32.
    pub const QUEUE: usize = 20;
    /// Core groups, u32.
    pub const GROUPS: usize = 24;
    /// Frames of the views, u32.
    pub const FRAMES: usize = 28;
}

/// Offsets within a core group's control line; the service writes, clients read.
pub mod control {
    /// CPU that the worker runs on, u32; `NO_CPU` when unknown.
    pub const CPU: usize = 0;
    /// Whether the worker sleeps, u32; see `queue::bell`.
    pub const ASLEEP: usize = 4;
    /// The mailbox whose state the worker looks at itself, plus one; 0: none. u32.
    pub const WATCHED: usize = 8;
}

/// Offsets within a mailbox.
pub mod mailbox {
    /// State, a futex, u32; see `channel::mailbox`.
    pub const STATE: usize = 0;
    /// Bytes of the payload that are ready, u32.
    pub const PROGRESS: usize = 4;
    /// CPU that the client posted from, u32: a hint for the worker's waiting.
    pub const CPU: usize = 8;
    /// The message or reply, `WORDS` × u64.
    pub const WORDS: usize = 16;
    /// Whether the client sleeps, u32; in a line that is not touched otherwise.
    pub const WAITING: usize = 208;
}

const _: () = assert!(mailbox::WORDS + 8 * crate::message::WORDS <= mailbox::WAITING);
const _: () = assert!(mailbox::WAITING + 4 <= MAILBOX_HEAD);

/// Which request queue a channel has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u32)]
pub enum QueueKind {
    /// A bitmap of the mailboxes that hold a request.
    #[default]
    Mailbox = 0,
    /// The relaxed concurrent queue of Polytropon, as published.
    Rcqb = 1,
    /// A ring whose slots carry their lap, so that no death can wedge one.
    LapRing = 2,
}

impl QueueKind {
    /// All kinds.
    pub const ALL: [QueueKind; 3] = [QueueKind::Mailbox, QueueKind::Rcqb, QueueKind::LapRing];

    /// The kind of that number, if there is one.
    pub fn from_number(number: u32) -> Option<QueueKind> {
        Self::ALL.into_iter().find(|&kind| kind as u32 == number)
    }

    /// Its name in reports and options.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Mailbox => "mailbox",
            QueueKind::Rcqb => "rcqb",
            QueueKind::LapRing => "lap-ring",
        }
    }
}

/// The shape of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Mailboxes: two per application thread are used, and two that threads without any share.
    pub mailbox_count: u32,
    /// Payload bytes of each mailbox.
    pub buffer_bytes: u32,
    /// Kind of the request queues.
    pub queue: QueueKind,
    /// Core groups, each with a request queue and a worker.
    pub groups: u32,
    /// Frames of the views: a power of two, or 0 for no views.
    pub frames: u32,
}

/// 128 MiB of frames: none takes memory before it is used.
const FRAMES_DEFAULT: u32 = 32768;

impl Default for Geometry {
    fn default() -> Self {
        Geometry {
            // Two for each of 64 threads and a few more; none takes memory before it is used.
            mailbox_count: 192,
            buffer_bytes: 256 << 10,
            queue: QueueKind::default(),
            groups: 1,
            frames: FRAMES_DEFAULT,
        }
    }
}

impl Geometry {
    /// The places of all parts; `EINVAL` when a number is out of its bounds.
    pub fn layout(&self) -> Result<Layout> {
        let fits = (1..=MAILBOXES_MAX).contains(&self.mailbox_count)
            && (1..=GROUPS_MAX).contains(&self.groups)
            && (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes)
            && (self.buffer_bytes as usize).is_multiple_of(PAGE)
            && (self.frames == 0 || self.frames.is_power_of_two())
            && (self.frames == 0 || (WAYS as u32..=FRAMES_MAX).contains(&self.frames));
        if fits { Ok(Layout::new(self)) } else { Err(Errno::EINVAL) }
    }
}

/// Offsets in bytes from the start of a channel. Made by [`Geometry::layout`] only, hence in range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    mailbox_count: usize,
    groups: usize,
    queue_bytes: usize,
    /// Slots of a ring: a power of two, at least one per mailbox, so that an honest client, which
    /// has one request per mailbox in flight, never finds it full.
    pub ring_slots: usize,
    stream: usize,
    mailboxes: usize,
    mailbox_bytes: usize,
    frames: usize,
}

impl Layout {
    fn new(geometry: &Geometry) -> Layout {
        let mailbox_count = geometry.mailbox_count as usize;
        let groups = geometry.groups as usize;
        let ring_slots = (2 * mailbox_count).next_power_of_two();
        let queue_bytes = (2 * LINE + ring_slots * LINE).next_multiple_of(PAGE);
        let stream = PAGE + groups * queue_bytes;
        let mailboxes = stream + STREAM_BYTES.next_multiple_of(PAGE);
        let mailbox_bytes = MAILBOX_HEAD + geometry.buffer_bytes as usize;
        let frames = geometry.frames as usize;
        Layout {
            mailbox_count,
            groups,
            queue_bytes,
            ring_slots,
            stream,
            mailboxes,
            mailbox_bytes,
            frames,
        }
    }

    /// Bytes of the whole channel.
    pub fn total_bytes(&self) -> usize {
        let views = if self.frames == 0 { 0 } else { view::bytes(self.frames) };
        self.views() + views
    }

    /// The views, if there are any frames.
    #[inline]
    pub fn views(&self) -> usize {
        (self.mailboxes + self.mailbox_count * self.mailbox_bytes).next_multiple_of(PAGE)
    }

    /// The control line of a core group.
    #[inline]
    pub fn control(&self, group: usize) -> usize {
        assert!(group < self.groups, "no such core group");
        CONTROL + group * LINE
    }

    /// The request queue of a core group.
    #[inline]
    pub fn queue(&self, group: usize) -> usize {
        assert!(group < self.groups, "no such core group");
        PAGE + group * self.queue_bytes
    }

    /// The session's stream.
    #[inline]
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// A mailbox.
    #[inline]
    pub fn mailbox(&self, index: usize) -> usize {
        assert!(index < self.mailbox_count, "no such mailbox");
        self.mailboxes + index * self.mailbox_bytes
    }
}

const _: () = assert!(CONTROL + GROUPS_MAX as usize * LINE <= PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_are_aligned() {
        for mailbox_count in [1, 63, 64, 65, 128, MAILBOXES_MAX] {
            for groups in [1, 3, GROUPS_MAX] {
                let geometry = Geometry { mailbox_count, groups, ..Geometry::default() };
                let layout = geometry.layout().unwrap();
                let doorbell_bytes = mailbox_count as usize / 8 + 8;
                assert!(layout.queue_bytes >= doorbell_bytes.max(128 + 64 * layout.ring_slots));
                assert!(layout.ring_slots >= mailbox_count as usize);
                let last_queue = layout.queue(groups as usize - 1) + layout.queue_bytes;
                assert_eq!(last_queue, layout.stream());
                assert!(last_queue + STREAM_BYTES <= layout.mailbox(0));
                let last = layout.mailbox(mailbox_count as usize - 1);
                assert!(last.is_multiple_of(64) && last + layout.mailbox_bytes <= layout.views());
                assert!(
                    layout.views() + view::bytes(FRAMES_DEFAULT as usize) == layout.total_bytes()
                );
            }
        }
    }

    #[test]
    fn unfit_numbers_are_refused() {
        let good = Geometry::default();
        for bad in [
            Geometry { mailbox_count: 0, ..good },
            Geometry { mailbox_count: MAILBOXES_MAX + 1, ..good },
            Geometry { groups: 0, ..good },
            Geometry { groups: GROUPS_MAX + 1, ..good },
            Geometry { buffer_bytes: BUFFER_BYTES_MIN - 4096, ..good },
            Geometry { buffer_bytes: BUFFER_BYTES_MIN + 1, ..good },
            Geometry { buffer_bytes: u32::MAX, ..good },
            Geometry { frames: 2, ..good },
            Geometry { frames: 100, ..good },
            Geometry { frames: FRAMES_MAX * 2, ..good },
        ] {
            assert_eq!(bad.layout().unwrap_err(), Errno::EINVAL, "{bad:?}");
        }
    }
}
