//! The directory of a pool file, byte by byte. The tables are in docs/design/bypass.md.
//!
//! Everything is little-endian. A page stands alone: it carries the pool's number, its own number,
//! a generation and a checksum, so that a page of some other file or place, an old one and a torn
//! one are told from the one that is meant.

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

const HEADER_BYTES: usize = 32;
const BODY_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

const MAGIC: [u8; 8] = *b"plpool01";

/// Bytes of a volume's record, and records in a page.
const RECORD_BYTES: usize = 64;
pub(super) const RECORDS_PER_PAGE: u32 = (BODY_BYTES / RECORD_BYTES) as u32;

/// Bytes of a chunk's entry, and entries in a page.
const ENTRY_BYTES: usize = 8;
pub(super) const ENTRIES_PER_PAGE: u32 = (BODY_BYTES / ENTRY_BYTES) as u32;

const _: () = assert!(RECORDS_PER_PAGE == 63 && ENTRIES_PER_PAGE == 508);

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

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// The first half of a pool's id stands for it in pages.
fn mark(pool: &Id) -> u64 {
    long(pool, 0)
}

impl Page {
    pub(super) fn empty() -> Page {
        Page { generation: 0, body: Box::new([0; BODY_BYTES]) }
    }

    pub(super) fn encode(&self, pool: &Id, number: u32) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&mark(pool).to_le_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&*self.body);
        let checksum = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: it is not that page of that pool, or is damaged.
    pub(super) fn decode(bytes: &[u8], pool: &Id, number: u32) -> Option<Page> {
        let mut bytes: [u8; PAGE_BYTES] = bytes.try_into().ok()?;
        let checksum = word(&bytes, 12);
        bytes[12..16].fill(0);
        let right = bytes[..8] == MAGIC
            && word(&bytes, 8) == number
            && long(&bytes, 24) == mark(pool)
            && crc32c::crc32c(&bytes) == checksum;
        let body = bytes[HEADER_BYTES..].try_into().ok()?;
        right.then(|| Page { generation: long(&bytes, 16), body: Box::new(body) })
    }

    /// Of page 0: how many chunks the file has, and of how many bytes each.
    pub(super) fn geometry(&self) -> (u32, u64) {
        (word(&*self.body, 0), long(&*self.body, 8))
    }

    pub(super) fn set_geometry(&mut self, chunks: u32, chunk_bytes: u64) {
        self.body[0..4].copy_from_slice(&chunks.to_le_bytes());
        self.body[8..16].copy_from_slice(&chunk_bytes.to_le_bytes());
    }

    /// `None` for a life that is none.
    pub(super) fn record(&self, number: u32) -> Option<Record> {
        let bytes = &self.body[number as usize * RECORD_BYTES..][..RECORD_BYTES];
        let life = match word(bytes, 0) {
            0 => Life::None,
            1 => Life::Making,
            2 => Life::Live,
            3 => Life::Ending,
            _ => return None,
        };
        let id = bytes[8..24].try_into().ok()?;
        Some(Record { life, id, size: long(bytes, 24), chunks: word(bytes, 4) })
    }

    pub(super) fn set_record(&mut self, number: u32, record: &Record) {
        let bytes = &mut self.body[number as usize * RECORD_BYTES..][..RECORD_BYTES];
        bytes.fill(0);
        let life: u32 = match record.life {
            Life::None => return,
            Life::Making => 1,
            Life::Live => 2,
            Life::Ending => 3,
        };
        bytes[..4].copy_from_slice(&life.to_le_bytes());
        bytes[4..8].copy_from_slice(&record.chunks.to_le_bytes());
        bytes[8..24].copy_from_slice(&record.id);
        bytes[24..32].copy_from_slice(&record.size.to_le_bytes());
    }

    pub(super) fn entry(&self, number: u32) -> Entry {
        let bytes = &self.body[number as usize * ENTRY_BYTES..][..ENTRY_BYTES];
        let (low, index) = (word(bytes, 0), word(bytes, 4));
        let owner = (low as u16).checked_sub(1);
        Entry { owner, index, dirty: low >> 16 & 1 == 1 }
    }

    pub(super) fn set_entry(&mut self, number: u32, entry: Entry) {
        let owner = entry.owner.map_or(0, |owner| u32::from(owner) + 1);
        let low = owner | u32::from(entry.dirty) << 16;
        let bytes = &mut self.body[number as usize * ENTRY_BYTES..][..ENTRY_BYTES];
        bytes[..4].copy_from_slice(&low.to_le_bytes());
        bytes[4..].copy_from_slice(&entry.index.to_le_bytes());
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
