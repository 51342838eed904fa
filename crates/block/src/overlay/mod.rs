//! Copy-on-write by blocks: a device whose first content is another, read-only device's.
//!
//! ```text
//!  request ─► cut into runs by the map ─┬─ here ──► top   (own file: data, then the map)
//!                                       └─ absent ─► base  (reads only)
//! ```
//!
//! # On `top`
//!
//! | sectors | what |
//! |---|---|
//! | 0 .. [`Layout::head`] | a label: what this file is, for tools that look for a file system |
//! | head .. size | data of the blocks that are here, each at its own place |
//! | [`Layout::map_start`] .. | the map: a bit per block of 4096 bytes, lowest first; set: here |
//! | [`Layout::head_start`] .. | data of the device's first [`Layout::head`] sectors |
//!
//! In [`Format::V1`] the head is empty: all data lies at its own place, without a label.
//!
//! # Invariants
//!
//! - A bit goes from 0 to 1 and never back. A zeroed or discarded block is here, and a hole.
//! - A set bit reaches the medium only after the block's data is durable: a flush takes a copy of
//!   the changed parts of the map *before* it flushes the data, and writes that copy after. So
//!   after a power cut an absent bit shows the base's content, the last durable one, and a present
//!   bit shows data that was durable, or later. A torn write of the map is a mixture of such bits.
//! - Whoever writes to absent blocks has *claimed* them: nobody else brings the same block up.
//! - The base is never written; it must not change as long as an overlay of it exists.
//!
//! # Locking
//!
//! `claims` alone, held for a look or an insertion. Reads, and writes to blocks that are here, take
//! no lock; durable ones look at it once.

mod channel;
mod claims;
mod head;
mod present;

use std::ops::Range;
use std::sync::Arc;

use polylane_sys::buffer::Buffer;

use crate::device::{Allocation, BlockDevice, Channel, Error, SECTOR_BYTES, Sector};
use crate::wait::Waiter;
use claims::Claims;
use present::Present;

/// Sectors in a block, the unit of copying.
const BLOCK_SECTORS: u64 = 8;

/// Bytes in a block.
pub const BLOCK_BYTES: u64 = BLOCK_SECTORS * SECTOR_BYTES as u64;

/// Bytes of the map that are written together.
const PAGE_BYTES: usize = 4096;

/// Pages of the map that are read together.
const LOAD_PAGES: usize = 256;

/// Blocks whose bits lie in one page of the map.
const PAGE_BLOCKS: u64 = PAGE_BYTES as u64 * 8;

/// Sectors of the head: 128 KiB, where GPT, LVM, ext4, XFS, btrfs, swap and ISO 9660 have what they
/// are recognized by.
pub const HEAD_SECTORS: u64 = 256;

/// How data lies on `top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// All of it at its own place.
    V1,
    /// The first [`HEAD_SECTORS`] behind the map, a label at their place.
    V2,
}

/// Where things are on `top`, in sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Size of the device.
    pub size: u64,
    /// Sectors at the start of the device that do not lie at their own place.
    pub head: u64,
    /// First sector of the map.
    pub map_start: u64,
    /// Sectors of the map.
    pub map_count: u64,
}

impl Layout {
    /// The layout for a device of `size` sectors; `None` for sizes beyond reason.
    pub fn new(format: Format, size: u64) -> Option<Layout> {
        let map_start = size.checked_next_multiple_of(BLOCK_SECTORS)?;
        let pages = (map_start / BLOCK_SECTORS).div_ceil(PAGE_BLOCKS);
        let map_count = pages * (PAGE_BYTES / SECTOR_BYTES) as u64;
        let head = match format {
            Format::V1 => 0,
            Format::V2 => HEAD_SECTORS.min(map_start),
        };
        let end = map_start.checked_add(map_count)?.checked_add(head)?;
        end.checked_mul(SECTOR_BYTES as u64)?;
        Some(Layout { size, head, map_start, map_count })
    }

    /// Where the data of the head is.
    pub fn head_start(&self) -> u64 {
        self.map_start + self.map_count
    }

    /// Where the data of a sector of the device is.
    pub fn place(&self, sector: Sector) -> Sector {
        match sector.0 < self.head {
            true => Sector(self.head_start() + sector.0),
            false => sector,
        }
    }

    /// Sectors that `top` must have.
    pub fn total(&self) -> u64 {
        self.head_start() + self.head
    }
}

/// The device. See the [module](self).
pub struct Overlay {
    base: Arc<dyn BlockDevice>,
    top: Arc<dyn BlockDevice>,
    layout: Layout,
    present: Present,
    claims: Claims,
}

impl Overlay {
    /// Opens an overlay on `base`; a `top` whose map is zeros is a new one. Reads the whole map:
    /// 32 KiB per GiB.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `top` is smaller than its layout or `base` larger or smaller than
    /// the device; those of the medium.
    pub fn open(
        base: Arc<dyn BlockDevice>,
        top: Arc<dyn BlockDevice>,
        format: Format,
    ) -> Result<Arc<Self>, Error> {
        let layout = Layout::new(format, base.sector_count()).ok_or(Error::OutOfRange)?;
        if top.sector_count() < layout.total() {
            return Err(Error::OutOfRange);
        }
        let present = Present::new(layout.map_count as usize * SECTOR_BYTES);
        let waiter = Waiter::new(top.clone());
        for first in (0..present.page_count()).step_by(LOAD_PAGES) {
            let pages = LOAD_PAGES.min(present.page_count() - first);
            let sector = Sector(layout.map_start + page_sector(first));
            let read = waiter.read(sector, pages * PAGE_BYTES)?;
            for (page, bytes) in (first..).zip(read.chunks(PAGE_BYTES)) {
                present.load(page, bytes);
            }
        }
        if !top.read_only() {
            // A medium without space for it refuses later.
            let _ = give_map_space(&waiter, &layout);
        }
        Ok(Arc::new(Overlay { base, top, layout, present, claims: Claims::default() }))
    }

    /// The first run of sectors at or after `sector`, the start of a block, that are its own and
    /// lie in its file alike: as data, or as a hole. Whole blocks; the device's last one may be
    /// cut.
    pub fn own_run(&self, sector: Sector) -> Option<(Range<u64>, Allocation)> {
        let blocks = self.layout.map_start / BLOCK_SECTORS;
        let mut block = sector.0 / BLOCK_SECTORS;
        while block < blocks {
            let (end, here) = self.present.run(block..blocks);
            if here {
                let start = sector.0.max(block * BLOCK_SECTORS);
                let end = (end * BLOCK_SECTORS).min(self.layout.size);
                let (allocation, count) = self.own_allocation(start..end);
                return Some((start..start + count, allocation)).filter(|_| count > 0);
            }
            block = end;
        }
        None
    }

    /// What the first of these sectors are in its file, and how many; whole blocks. All are its
    /// own, and the first begins one.
    fn own_allocation(&self, Range { start, end }: Range<u64>) -> (Allocation, u64) {
        let (place, end) = self.in_one_piece(start..end);
        let most = end.saturating_sub(start);
        let (allocation, count) = self.top.allocation(place, most);
        let (allocation, count) = match (allocation, count - count % BLOCK_SECTORS) {
            (_, _) if count >= most => (allocation, most),
            // Data follows within the block.
            (_, 0) => (Allocation::Data, BLOCK_SECTORS.min(most)),
            (Allocation::Data, _) => (allocation, count.next_multiple_of(BLOCK_SECTORS)),
            (_, blocks) => (allocation, blocks),
        };
        (allocation, count.min(most))
    }

    /// Where the first of these sectors lie in its file, and the end of those that lie together:
    /// the head lies elsewhere than the rest.
    fn in_one_piece(&self, Range { start, end }: Range<u64>) -> (Sector, u64) {
        let end = if start < self.layout.head { end.min(self.layout.head) } else { end };
        (self.layout.place(Sector(start)), end)
    }

    /// The first run of sectors in `sectors`, which begin with a block, that are not its own.
    pub fn absent_run(&self, sectors: &Range<u64>) -> Option<Range<u64>> {
        let end = sectors.end.div_ceil(BLOCK_SECTORS);
        let mut block = sectors.start / BLOCK_SECTORS;
        while block < end {
            let (until, here) = self.present.run(block..end);
            if !here {
                let found = block * BLOCK_SECTORS..(until * BLOCK_SECTORS).min(sectors.end);
                return Some(found);
            }
            block = until;
        }
        None
    }

    /// Blocks of its own, and of how many.
    pub fn blocks(&self) -> (u64, u64) {
        (self.present.count(), self.layout.map_start / BLOCK_SECTORS)
    }
}

/// Gives the map and the head space, by zeros where nothing else does: what is written to blocks
/// that have space needs their bits.
fn give_map_space(top: &Waiter, layout: &Layout) -> Result<(), Error> {
    let (mut at, end) = (layout.map_start, layout.total());
    match top.device().reserve(Sector(at), end - at) {
        Err(Error::Unsupported) => {}
        done => return done,
    }
    while at < end {
        let most = (end - at).min((LOAD_PAGES * PAGE_BYTES / SECTOR_BYTES) as u64);
        let (allocation, count) = top.device().allocation(Sector(at), most);
        let count = count.clamp(1, most);
        if allocation == Allocation::Hole {
            let zeros = Buffer::zeroed(count as usize * SECTOR_BYTES);
            top.write(Sector(at), zeros, false)?;
        }
        at += count;
    }
    Ok(())
}

/// First sector of a page of the map, counted from the map's start.
fn page_sector(page: usize) -> u64 {
    (page * (PAGE_BYTES / SECTOR_BYTES)) as u64
}

impl BlockDevice for Overlay {
    fn sector_count(&self) -> u64 {
        self.layout.size
    }

    fn read_only(&self) -> bool {
        self.top.read_only()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(channel::OverlayChannel::new(self))
    }

    /// Blocks of its own are what they are in its file. Others read as the base, and may have space
    /// there: the map does not say.
    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        if count == 0 {
            return (Allocation::Data, 0);
        }
        let end = sector.0 + count;
        let blocks = sector.0 / BLOCK_SECTORS..end.div_ceil(BLOCK_SECTORS);
        let (until, here) = self.present.run(blocks);
        let end = (until * BLOCK_SECTORS).min(end);
        match here {
            false => (Allocation::Base, end - sector.0),
            true => {
                let (place, end) = self.in_one_piece(sector.0..end);
                self.top.allocation(place, end - sector.0)
            }
        }
    }

    /// Space in its file, of whole blocks: what is written to a part of one has the rest follow
    /// from the base.
    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        let first = sector.0 - sector.0 % BLOCK_SECTORS;
        let last = (sector.0 + count).next_multiple_of(BLOCK_SECTORS).min(self.layout.size);
        let mut at = first;
        while at < last {
            let (place, end) = self.in_one_piece(at..last);
            self.top.reserve(place, end - at)?;
            at = end;
        }
        Ok(())
    }

    fn keeps_writes(&self) -> bool {
        self.top.keeps_writes()
    }

    /// Blocks of its own lie at their place, but for the head, which is too small to be marked.
    fn mark_journal(&self, sector: Sector, count: u64) {
        let first = sector.0.max(self.layout.head);
        let count = (sector.0 + count).saturating_sub(first);
        if count > 0 {
            self.top.mark_journal(Sector(first), count);
        }
    }
}
