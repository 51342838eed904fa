//! One open file, as the library keeps account of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use polylane_ipc::handshake::LANES_MAX;
use polylane_ipc::stream::STREAMED_HANDLE;

use crate::kernel::config::LaneNumber;
use crate::kernel::lock::OffsetLock;

/// Being filled or emptied by one thread: neither free nor to be held.
pub(super) const CLAIMED: u32 = 1 << 30;

/// Whether a handle is one that the stream made (`rights::lease`), not the service.
pub(crate) fn is_streamed(handle: u64) -> bool {
    handle as u32 & STREAMED_HANDLE != 0
}

bitflags::bitflags! {
    /// What holds of an open file: bits of [`Record::state`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct FileBits: u32 {
        /// The kernel's file position counts; the private offset is without meaning.
        const KERNEL_OFFSET = 1;
        /// A directory: good for `*at` calls only.
        const DIRECTORY = 2;
        /// The slot must not be used again.
        const ESCAPED = 4;
        /// The service was told, or is about to be, that other processes have copies.
        const SHARED = 8;
        /// The kernel's descriptor has status flags, which its slot must not keep.
        const FLAGGED = 32;
        /// It took locks that belong to the open file: its close is waited for.
        const LOCKED = 16;
        /// It may be parked after its close: see `rights::handles`.
        const PARKABLE = 64;
        /// Others may change its status flags, or take entries of the directory: the kernel is
        /// asked for them. So it is with whatever was inherited or received, and with what was
        /// shared since it was opened.
        const COMMON = 128;
        /// The private offset is where the file ends: it was made under a lease, and nothing but
        /// appends that were streamed has changed either since.
        const AT_END = 256;
        /// It was made under a lease, and what is streamed about it may be missed by who meets it:
        /// the service was asked to show it, or to let the kernel have pages of it, or is about to
        /// be.
        const MET = 512;
        /// Its numbers are being given a descriptor of the file's own node, or were: see
        /// `ops::own`.
        const MOVES = 1024;
        /// Its opening made the file.
        const MADE = 2048;
    }
}

/// Where the number of the lane is in [`Record::state`].
const LANE_SHIFT: u32 = 28;
const _: () = assert!(FileBits::all().bits() < 1 << LANE_SHIFT);
const _: () = assert!(LANES_MAX <= 1 << (u32::BITS - LANE_SHIFT));

/// One open file. All zero is a free place.
#[repr(align(64))]
pub(crate) struct Record {
    /// Entries that name it and calls that use it; 0: free.
    pub(super) refs: AtomicU32,
    /// See [`FileBits`]; the bits from [`LANE_SHIFT`] on are the lane's place.
    state: AtomicU32,
    /// Orders uses of the offset.
    pub(crate) offset_lock: OffsetLock,
    /// The service's handle.
    pub(crate) handle: AtomicU64,
    /// The private offset.
    pub(crate) offset: AtomicU64,
    /// Number of the session that `handle` belongs to.
    pub(crate) session: AtomicU32,
    /// The slot it is bound to plus one; 0: none.
    pub(crate) slot: AtomicU32,
    /// Flags as `F_GETFL` reports them.
    pub(crate) flags: AtomicU32,
    /// Requests that could have shown it; once it is shown, those since something was found there.
    pub(crate) asked: AtomicU32,
    /// Where the service shows it: see `view`.
    pub(crate) view: AtomicU64,
    /// The kernel's inode number of descriptors that the kernel opened; 0: they are copies of the
    /// slot's.
    pub(crate) node: AtomicU64,
    /// Open files that the place has stood for: see `table::Glance`.
    pub(super) generation: AtomicU32,
}

const _: () = assert!(size_of::<Record>() == 64);

impl Record {
    pub(super) const fn new() -> Self {
        Record {
            refs: AtomicU32::new(0),
            state: AtomicU32::new(0),
            offset_lock: OffsetLock::new(),
            handle: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            session: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            view: AtomicU64::new(0),
            node: AtomicU64::new(0),
            generation: AtomicU32::new(0),
        }
    }

    /// The lane that the file is of.
    #[inline]
    pub(crate) fn lane(&self) -> LaneNumber {
        LaneNumber::at((self.state.load(Ordering::Relaxed) >> LANE_SHIFT) as usize)
    }

    /// Whether any bit of `bits` is set.
    #[inline]
    pub(crate) fn is(&self, bits: FileBits) -> bool {
        self.state.load(Ordering::Acquire) & bits.bits() != 0
    }

    /// Sets bits; returns whether all were set before.
    pub(crate) fn set(&self, bits: FileBits) -> bool {
        let bits = bits.bits();
        self.state.fetch_or(bits, Ordering::AcqRel) & bits == bits
    }

    /// The offset moves by another way than a streamed append, or is private no longer. Call with
    /// the offset locked.
    #[inline]
    pub(crate) fn leaves_end(&self) {
        if self.is(FileBits::AT_END) {
            self.state.fetch_and(!FileBits::AT_END.bits(), Ordering::AcqRel);
        }
    }

    /// The file is about to end elsewhere, by another way than a streamed append. Call without the
    /// lock of the offset.
    #[inline]
    pub(crate) fn end_moves(&self) {
        if self.is(FileBits::AT_END) {
            let _guard = self.offset_lock.lock();
            self.leaves_end();
        }
    }

    /// Whether it was opened with `O_APPEND`.
    #[inline]
    pub(crate) fn appends(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & libc::O_APPEND as u32 != 0
    }

    /// Whether the handle is one that the stream made.
    #[inline]
    pub(crate) fn is_streamed(&self) -> bool {
        is_streamed(self.handle.load(Ordering::Relaxed))
    }

    /// The file is about to be shown, or the kernel to get pages of it: what is streamed about it
    /// from now on would be missed.
    #[inline]
    pub(crate) fn meet(&self) {
        if self.is_streamed() && !self.is(FileBits::MET) {
            self.set(FileBits::MET);
            // A thread that streams posts first, and looks then.
            fence(Ordering::SeqCst);
        }
    }

    /// Access mode: `O_RDONLY`, `O_WRONLY` or `O_RDWR`.
    #[inline]
    pub(crate) fn access_mode(&self) -> i32 {
        self.flags.load(Ordering::Relaxed) as i32 & libc::O_ACCMODE
    }

    /// Blank again, for a file of that lane.
    pub(super) fn reset(&self, lane: LaneNumber) {
        // First: who reads anything of the new file finds that it is another.
        self.generation.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.state.store((lane.index() as u32) << LANE_SHIFT, Ordering::Relaxed);
        self.offset.store(0, Ordering::Relaxed);
        self.slot.store(0, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        self.handle.store(0, Ordering::Relaxed);
        self.session.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.view.store(0, Ordering::Relaxed);
        self.node.store(0, Ordering::Relaxed);
    }

    /// One more reference, unless the place is free, being filled or being emptied.
    #[inline]
    pub(super) fn hold(&self) -> bool {
        let mut refs = self.refs.load(Ordering::Relaxed);
        while refs != 0 && refs < CLAIMED {
            let (done, again) = (Ordering::Acquire, Ordering::Relaxed);
            match self.refs.compare_exchange_weak(refs, refs + 1, done, again) {
                Ok(_) => return true,
                Err(now) => refs = now,
            }
        }
        false
    }
}
