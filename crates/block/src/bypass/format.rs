//! The directory of a pool file, byte by byte. The tables are in docs/design/bypass.md.
//!
//! Everything is little-endian. A page stands alone: it carries the pool's number, its own number,
//! a generation and a checksum, so that a page of some other file or place, an old one and a torn
//! one are told from the one that is meant.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

const BODY_BYTES: usize = PAGE_BYTES - 32;

const MAGIC: [u8; 8] = *b"plpool01";

/// Records of volumes in a page, and entries of chunks.
pub(super) const RECORDS_PER_PAGE: u32 = 63;
pub(super) const ENTRIES_PER_PAGE: u32 = 508;

/// A page on the disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskPage {
    magic: [u8; 8],
    number: U32,
    /// CRC32C of the page, with zeros here.
    checksum: U32,
    generation: U64,
    /// The first half of the pool's id, which stands for it.
    pool: [u8; 8],
    body: [u8; BODY_BYTES],
}

const _: () = assert!(size_of::<DiskPage>() == PAGE_BYTES);
const _: () = assert!(offset_of!(DiskPage, checksum) == 12 && offset_of!(DiskPage, pool) == 24);

/// The body of page 0.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskGeometry {
    chunks: U32,
    reserved: U32,
    chunk_bytes: U64,
    rest: [u8; BODY_BYTES - 16],
}

/// A volume's record on the disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskRecord {
    life: U32,
    chunks: U32,
    id: Id,
    size: U64,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<DiskRecord>() == 64 && offset_of!(DiskRecord, size) == 24);

/// The body of a page of records.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskRecords {
    records: [DiskRecord; RECORDS_PER_PAGE as usize],
    rest: [u8; BODY_BYTES - RECORDS_PER_PAGE as usize * size_of::<DiskRecord>()],
}

/// A chunk's entry on the disk.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    /// The record of the volume that has it plus one; 0: none.
    owner: U16,
    /// Bit 0: dirty.
    flags: U16,
    index: U32,
}

/// The body of a page of entries.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntries([DiskEntry; ENTRIES_PER_PAGE as usize]);

/// The id of a pool file or volume.
pub type Id = [u8; 16];

/// Where things are in a pool file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes before the directory: room for a swap area.
    pub head_bytes: u64,
    /// Pages of volume records.
    pub record_pages: u32,
    /// Pages of chunk entries.
    pub entry_pages: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
}

impl Layout {
    /// That of pool files: 1008 volumes, 982 GiB.
    pub const POOL: Layout =
        Layout { head_bytes: 1 << 20, record_pages: 16, entry_pages: 495, chunk_bytes: 4 << 20 };

    pub(super) fn pages(&self) -> u32 {
        1 + self.record_pages + self.entry_pages
    }

    /// Most chunks of a file.
    pub fn chunks_max(&self) -> u32 {
        self.entry_pages * ENTRIES_PER_PAGE
    }

    pub(super) fn volumes_max(&self) -> u32 {
        self.record_pages * RECORDS_PER_PAGE
    }

    /// First byte of a copy of a page.
    pub(super) fn page_at(&self, copy: usize, page: u32) -> u64 {
        let directory = u64::from(self.pages()) * PAGE_BYTES as u64;
        self.head_bytes + directory * copy as u64 + u64::from(page) * PAGE_BYTES as u64
    }

    /// First byte of the chunks.
    pub fn chunks_start(&self) -> u64 {
        self.page_at(2, 0).next_multiple_of(self.chunk_bytes)
    }

    /// First byte of a chunk.
    pub fn chunk_at(&self, chunk: u32) -> u64 {
        self.chunks_start() + u64::from(chunk) * self.chunk_bytes
    }

    pub(super) fn record_page(&self, slot: u32) -> (u32, u32) {
        (1 + slot / RECORDS_PER_PAGE, slot % RECORDS_PER_PAGE)
    }

    pub(super) fn entry_page(&self, chunk: u32) -> (u32, u32) {
        (1 + self.record_pages + chunk / ENTRIES_PER_PAGE, chunk % ENTRIES_PER_PAGE)
    }
}

const _: () = assert!(Layout::POOL.head_bytes as usize >= polylane_sys::swap::AREA_BYTES_MAX);

/// A page of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Page {
    pub(super) generation: u64,
    body: Box<[u8; BODY_BYTES]>,
}

/// What a volume's record says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Life {
    /// The record is free.
    #[default]
    None,
    /// It is being made; if nobody is at it, it is none.
    Making,
    /// It is there.
    Live,
    /// It is being removed.
    Ending,
}

/// A volume's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Record {
    pub(super) life: Life,
    pub(super) id: Id,
    /// Bytes.
    pub(super) size: u64,
    /// Chunks that it is made of.
    pub(super) chunks: u32,
}

/// A chunk's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry {
    /// The record of the volume that has it.
    pub(super) owner: Option<u16>,
    /// Which of the volume's chunks it is.
    pub(super) index: u32,
    /// It holds what some volume wrote: zeros go there before another has it.
    pub(super) dirty: bool,
}

/// The first half of a pool's id stands for it in pages.
fn mark(pool: &Id) -> [u8; 8] {
    let [first, _]: [[u8; 8]; 2] = zerocopy::transmute!(*pool);
    first
}

impl Page {
    pub(super) fn empty() -> Page {
        Page { generation: 0, body: Box::new([0; BODY_BYTES]) }
    }

    pub(super) fn encode(&self, pool: &Id, number: u32) -> [u8; PAGE_BYTES] {
        let mut page = DiskPage {
            magic: MAGIC,
            number: number.into(),
            checksum: 0.into(),
            generation: self.generation.into(),
            pool: mark(pool),
            body: *self.body,
        };
        page.checksum = crc32c::crc32c(page.as_bytes()).into();
        zerocopy::transmute!(page)
    }

    /// `None`: it is not that page of that pool, or is damaged.
    pub(super) fn decode(bytes: &[u8], pool: &Id, number: u32) -> Option<Page> {
        let mut page = DiskPage::read_from_bytes(bytes).ok()?;
        let checksum = std::mem::take(&mut page.checksum).get();
        let right = page.magic == MAGIC
            && page.number.get() == number
            && page.pool == mark(pool)
            && crc32c::crc32c(page.as_bytes()) == checksum;
        let generation = page.generation.get();
        right.then(|| Page { generation, body: Box::new(page.body) })
    }

    /// Of page 0: how many chunks the file has, and of how many bytes each.
    pub(super) fn geometry(&self) -> (u32, u64) {
        let geometry: &DiskGeometry = zerocopy::transmute_ref!(&*self.body);
        (geometry.chunks.get(), geometry.chunk_bytes.get())
    }

    pub(super) fn set_geometry(&mut self, chunks: u32, chunk_bytes: u64) {
        let geometry: &mut DiskGeometry = zerocopy::transmute_mut!(&mut *self.body);
        geometry.chunks = chunks.into();
        geometry.chunk_bytes = chunk_bytes.into();
    }

    /// `None` for a life that is none.
    pub(super) fn record(&self, number: u32) -> Option<Record> {
        let records: &DiskRecords = zerocopy::transmute_ref!(&*self.body);
        let record = &records.records[number as usize];
        let life = match record.life.get() {
            0 => Life::None,
            1 => Life::Making,
            2 => Life::Live,
            3 => Life::Ending,
            _ => return None,
        };
        let (size, chunks) = (record.size.get(), record.chunks.get());
        Some(Record { life, id: record.id, size, chunks })
    }

    pub(super) fn set_record(&mut self, number: u32, record: &Record) {
        let records: &mut DiskRecords = zerocopy::transmute_mut!(&mut *self.body);
        let life: u32 = match record.life {
            Life::None => return records.records[number as usize].zero(),
            Life::Making => 1,
            Life::Live => 2,
            Life::Ending => 3,
        };
        records.records[number as usize] = DiskRecord {
            life: life.into(),
            chunks: record.chunks.into(),
            id: record.id,
            size: record.size.into(),
            reserved: [0; 32],
        };
    }

    pub(super) fn entry(&self, number: u32) -> Entry {
        let entries: &DiskEntries = zerocopy::transmute_ref!(&*self.body);
        let entry = &entries.0[number as usize];
        let owner = entry.owner.get().checked_sub(1);
        Entry { owner, index: entry.index.get(), dirty: entry.flags.get() & 1 == 1 }
    }

    pub(super) fn set_entry(&mut self, number: u32, entry: Entry) {
        let entries: &mut DiskEntries = zerocopy::transmute_mut!(&mut *self.body);
        entries.0[number as usize] = DiskEntry {
            owner: entry.owner.map_or(0, |owner| owner + 1).into(),
            flags: u16::from(entry.dirty).into(),
            index: entry.index.into(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_any_damage_shows() {
        let mut page = Page { generation: 7, ..Page::empty() };
        let record = Record { life: Life::Live, id: [9; 16], size: 1 << 40, chunks: 1 << 18 };
        let entry = Entry { owner: Some(1007), index: 77, dirty: true };
        page.set_record(62, &record);
        let bytes = page.encode(&[3; 16], 5);
        let back = Page::decode(&bytes, &[3; 16], 5).expect("right");
        assert_eq!((back.record(62), back.record(0)), (Some(record), Some(Record::default())));
        assert_eq!(back, page);
        page.set_entry(507, entry);
        assert_eq!((page.entry(507), page.entry(506).owner), (entry, page.entry(506).owner));
        for at in (0..PAGE_BYTES).step_by(if cfg!(miri) { 1021 } else { 1 }) {
            let mut damaged = bytes;
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(Page::decode(&damaged, &[3; 16], 5), None, "byte {at}");
        }
        assert_eq!(Page::decode(&bytes, &[4; 16], 5), None);
        assert_eq!(Page::decode(&bytes, &[3; 16], 6), None);
        assert_eq!(Page::decode(&bytes[1..], &[3; 16], 5), None);
    }

    #[test]
    fn nothing_lies_over_anything_else() {
        let layout = Layout::POOL;
        assert!(layout.page_at(0, 0) >= layout.head_bytes);
        assert_eq!(layout.page_at(0, layout.pages()), layout.page_at(1, 0));
        assert!(layout.page_at(1, layout.pages()) <= layout.chunks_start());
        assert_eq!(layout.chunks_start(), 8 << 20);
        assert!(layout.volumes_max() < u32::from(u16::MAX));
        let last = layout.entry_page(layout.chunks_max() - 1);
        assert_eq!(last, (layout.pages() - 1, ENTRIES_PER_PAGE - 1));
    }
}
