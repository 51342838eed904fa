//! Whose chunks are whose: the directory of a pool file, and the changes that can be made to it.
//!
//! # Power cut
//!
//! A page is written to its second place, durably, then to its first: whatever is cut, one of the
//! two is whole, and both are equal once the change is acknowledged. A process that changes a
//! directory after a change was cut short makes both equal first ([`Directory::load_to_change`]):
//! else the next cut could bring back the content from before a change that others have read since.
//! The order of changes does the rest:
//!
//! - A new volume's record says that it is being made before any chunk names it as its owner, and
//!   that it is there after all of them do and hold zeros. A removed one's says so before the first
//!   of its chunks is free. [`Directory::reclaim`] ends what was begun.
//! - A chunk that some volume has written to is marked when it is freed, and zeros are durable in
//!   it before another volume has it.
//!
//! # Locking
//!
//! None here: whoever changes a directory that others use too holds the file's lock, and reads the
//! directory after he has got it.

use std::fmt;

use polylane_sys::buffer::Buffer;

use super::format::{Entry, Id, Layout, Life, PAGE_BYTES, Page, Record};
use crate::device::Error;

/// A pool file's bytes, for code that waits.
pub trait PoolBytes {
    /// Reads `bytes` bytes from byte `at` on.
    ///
    /// # Errors
    /// See [`Error`].
    fn read(&self, at: u64, bytes: usize) -> Result<Buffer, Error>;

    /// Writes whole sectors, durably.
    ///
    /// # Errors
    /// See [`Error`].
    fn write(&self, at: u64, data: Buffer) -> Result<(), Error>;

    /// Writes zeros; durable after the next flush.
    ///
    /// # Errors
    /// See [`Error`].
    fn zero(&self, at: u64, bytes: u64) -> Result<(), Error>;

    /// Makes durable what is written.
    ///
    /// # Errors
    /// See [`Error`].
    fn flush(&self) -> Result<(), Error>;
}

/// What is wrong with a directory, or in the way of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryError {
    /// Both copies of a page are damaged.
    Page(u32),
    /// The geometry is not that of this version: chunks, and bytes of each.
    Geometry(u32, u64),
    /// A record says what none can say.
    Record(u32),
    /// A chunk's entry names no volume, or a place that its volume does not have.
    Entry(u32),
    /// Two chunks say that they are the same one of a volume.
    Twice(u32, u32),
    /// There is no such volume.
    NoVolume,
    /// There are as many volumes as can be.
    Full,
    /// This many chunks are free, and more are needed.
    NoChunks {
        /// Free ones.
        free: u32,
        /// Needed ones.
        needed: u32,
    },
    /// Its bytes cannot be read or written.
    Medium(Error),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::Page(page) => {
                write!(f, "directory page {page} is damaged, both copies of it")
            }
            DirectoryError::Geometry(chunks, bytes) => {
                write!(f, "directory page 0 tells of {chunks} chunks of {bytes} bytes")
            }
            DirectoryError::Record(slot) => write!(f, "directory record {slot} is damaged"),
            DirectoryError::Entry(chunk) => write!(f, "directory entry of chunk {chunk} is wrong"),
            DirectoryError::Twice(one, other) => {
                write!(f, "directory entries of chunks {one} and {other} are the same")
            }
            DirectoryError::NoVolume => f.write_str("directory: has no such volume"),
            DirectoryError::Full => f.write_str("directory: has no room for one more volume"),
            DirectoryError::NoChunks { free, needed } => {
                write!(f, "{needed} free chunks are needed, {free} are there")
            }
            DirectoryError::Medium(error) => write!(f, "directory: {error}"),
        }
    }
}

impl From<Error> for DirectoryError {
    fn from(error: Error) -> Self {
        DirectoryError::Medium(error)
    }
}

type Result<T, E = DirectoryError> = std::result::Result<T, E>;

/// A live volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its record.
    pub slot: u16,
    /// Its id.
    pub id: Id,
    /// Bytes.
    pub size: u64,
    /// Chunks that it is made of, there or not.
    pub chunks: u32,
}

/// A directory in memory, as it was when it was read.
#[derive(Clone, Debug)]
pub struct Directory {
    layout: Layout,
    pool: Id,
    pages: Vec<Page>,
    /// Changed, and not written yet.
    changed: Vec<u32>,
    /// Pages of which one place, 0 or 1, does not hold what counts: a change was cut short.
    stale: Vec<(u32, usize)>,
}

impl Directory {
    /// Writes the directory of a new pool file of `chunks` chunks, all of them zeros.
    ///
    /// # Errors
    /// The medium's.
    pub fn format(bytes: &dyn PoolBytes, layout: Layout, pool: Id, chunks: u32) -> Result<Self> {
        let pages = (0..layout.pages()).map(|_| Page::empty()).collect();
        let (changed, stale) = (Vec::new(), Vec::new());
        let mut new = Directory { layout, pool, pages, changed, stale };
        new.pages[0].set_geometry(chunks, layout.chunk_bytes);
        for copy in 0..2 {
            let mut all = Buffer::zeroed(new.pages.len() * PAGE_BYTES);
            for (number, page) in new.pages.iter().enumerate() {
                let encoded = page.encode(&pool, number as u32);
                all[number * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(&encoded);
            }
            bytes.write(layout.page_at(copy, 0), all)?;
        }
        Ok(new)
    }

    /// Reads a directory, and checks all of it.
    ///
    /// # Errors
    /// What is wrong with it, or the medium.
    pub fn load(bytes: &dyn PoolBytes, layout: Layout, pool: Id) -> Result<Self> {
        let count = layout.pages() as usize;
        let copies = [0, 1].map(|copy| bytes.read(layout.page_at(copy, 0), count * PAGE_BYTES));
        let [one, other] = copies;
        let (one, other) = (one?, other?);
        let (mut pages, mut stale) = (Vec::with_capacity(count), Vec::new());
        for number in 0..count {
            let range = number * PAGE_BYTES..(number + 1) * PAGE_BYTES;
            let decode = |copy: &Buffer| Page::decode(&copy[range.clone()], &pool, number as u32);
            let both = [decode(&one), decode(&other)];
            let newest = both.iter().flatten().max_by_key(|page| page.generation).cloned();
            let newest = newest.ok_or(DirectoryError::Page(number as u32))?;
            let old = both.iter().position(|page| page.as_ref() != Some(&newest));
            stale.extend(old.map(|copy| (number as u32, copy)));
            pages.push(newest);
        }
        let directory = Directory { layout, pool, pages, changed: Vec::new(), stale };
        directory.check()?;
        Ok(directory)
    }

    /// The same for somebody who is going to change it, and keeps all others from that: what a
    /// power cut left half done is ended first.
    ///
    /// # Errors
    /// What is wrong with it, or the medium.
    pub fn load_to_change(bytes: &dyn PoolBytes, layout: Layout, pool: Id) -> Result<Self> {
        let mut directory = Directory::load(bytes, layout, pool)?;
        for (number, copy) in std::mem::take(&mut directory.stale) {
            directory.write_page(bytes, copy, number)?;
        }
        Ok(directory)
    }

    fn check(&self) -> Result<()> {
        let (chunks, chunk_bytes) = self.pages[0].geometry();
        if chunk_bytes != self.layout.chunk_bytes || chunks > self.layout.chunks_max() {
            return Err(DirectoryError::Geometry(chunks, chunk_bytes));
        }
        for slot in 0..self.layout.volumes_max() {
            let record = self.record(slot)?;
            let fits = record.size.div_ceil(self.layout.chunk_bytes) == u64::from(record.chunks);
            if record.life != Life::None && (!fits || record.size == 0) {
                return Err(DirectoryError::Record(slot));
            }
        }
        for chunk in 0..self.layout.chunks_max() {
            let entry = self.entry(chunk);
            let Some(owner) = entry.owner else { continue };
            let record = self.record(owner.into())?;
            let right = chunk < chunks && record.life != Life::None && entry.index < record.chunks;
            if !right || (entry.dirty && record.life == Life::Live) {
                return Err(DirectoryError::Entry(chunk));
            }
        }
        Ok(())
    }

    /// Where things are.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Chunks of the file.
    pub fn chunk_count(&self) -> u32 {
        self.pages[0].geometry().0
    }

    /// Chunks that no volume has.
    pub fn free_chunks(&self) -> u32 {
        let free = |chunk: &u32| self.entry(*chunk).owner.is_none();
        (0..self.chunk_count()).filter(free).count() as u32
    }

    /// Chunks that no volume has once [`reclaim`](Self::reclaim) has been there.
    pub fn free_chunks_reclaimed(&self) -> u32 {
        let live = |owner: u16| self.record(owner.into()).is_ok_and(|it| it.life == Life::Live);
        let free = |chunk: &u32| self.entry(*chunk).owner.is_none_or(|owner| !live(owner));
        (0..self.chunk_count()).filter(free).count() as u32
    }

    /// All live volumes.
    pub fn volumes(&self) -> Vec<Volume> {
        let live = |slot| {
            let record = self.record(slot).ok().filter(|record| record.life == Life::Live)?;
            let Record { id, size, chunks, .. } = record;
            Some(Volume { slot: slot as u16, id, size, chunks })
        };
        (0..self.layout.volumes_max()).filter_map(live).collect()
    }

    /// A live volume.
    ///
    /// # Errors
    /// [`DirectoryError::NoVolume`].
    pub fn find(&self, id: &Id) -> Result<Volume> {
        let found = self.volumes().into_iter().find(|volume| volume.id == *id);
        found.ok_or(DirectoryError::NoVolume)
    }

    /// The chunks of a volume, by what they are to it; `None`: it has none there and reads as
    /// zeros.
    ///
    /// # Errors
    /// [`DirectoryError::Twice`].
    pub fn chunks_of(&self, volume: &Volume) -> Result<Vec<Option<u32>>> {
        let mut found = vec![None; volume.chunks as usize];
        for chunk in 0..self.chunk_count() {
            let entry = self.entry(chunk);
            if entry.owner != Some(volume.slot) {
                continue;
            }
            let place = found.get_mut(entry.index as usize).ok_or(DirectoryError::Entry(chunk))?;
            if let Some(other) = place.replace(chunk) {
                return Err(DirectoryError::Twice(other, chunk));
            }
        }
        Ok(found)
    }

    /// Tells of more chunks, all of them zeros.
    ///
    /// # Errors
    /// More than there can be; the medium's.
    pub fn extend(&mut self, bytes: &dyn PoolBytes, chunks: u32) -> Result<()> {
        if chunks > self.layout.chunks_max() || chunks < self.chunk_count() {
            return Err(DirectoryError::Geometry(chunks, self.layout.chunk_bytes));
        }
        self.pages[0].set_geometry(chunks, self.layout.chunk_bytes);
        self.changed.push(0);
        self.commit(bytes)
    }

    /// Begins a volume of `size` bytes: its chunks are its own from here on, and some have to be
    /// zeroed ([`unclean`](Self::unclean)) before [`finish`](Self::finish).
    ///
    /// # Errors
    /// No room; the medium's.
    pub fn begin(&mut self, bytes: &dyn PoolBytes, id: Id, size: u64) -> Result<Volume> {
        let needed = size.div_ceil(self.layout.chunk_bytes);
        let free = self.free_chunks();
        let chunks = u32::try_from(needed).unwrap_or(u32::MAX);
        if chunks > free {
            return Err(DirectoryError::NoChunks { free, needed: chunks });
        }
        let unused = |slot: &u32| self.record(*slot).is_ok_and(|it| it.life == Life::None);
        let slot = (0..self.layout.volumes_max()).find(unused).ok_or(DirectoryError::Full)?;
        self.set_record(slot, &Record { life: Life::Making, id, size, chunks });
        self.commit(bytes)?;
        let volume = Volume { slot: slot as u16, id, size, chunks };
        for (index, chunk) in (0..).zip(self.in_one_piece(chunks)) {
            let entry = self.entry(chunk);
            self.set_entry(chunk, Entry { owner: Some(volume.slot), index, ..entry });
        }
        self.commit(bytes)?;
        Ok(volume)
    }

    /// Free chunks: those of a run that is long enough, else the first ones.
    fn in_one_piece(&self, count: u32) -> Vec<u32> {
        let free = |chunk: &u32| self.entry(*chunk).owner.is_none();
        let (mut start, mut at) = (0, 0);
        while at < self.chunk_count() && at - start < count {
            at += 1;
            if !free(&(at - 1)) {
                start = at;
            }
        }
        match at - start == count {
            true => (start..at).collect(),
            false => (0..self.chunk_count()).filter(free).take(count as usize).collect(),
        }
    }

    /// Chunks of a volume that hold what others wrote.
    pub fn unclean(&self, volume: &Volume) -> Vec<u32> {
        let wanted = |chunk: &u32| {
            let entry = self.entry(*chunk);
            entry.owner == Some(volume.slot) && entry.dirty
        };
        (0..self.chunk_count()).filter(wanted).collect()
    }

    /// Ends the making of a volume, in whose chunks zeros are durable.
    ///
    /// # Errors
    /// The medium's.
    pub fn finish(&mut self, bytes: &dyn PoolBytes, volume: &Volume) -> Result<()> {
        for chunk in self.unclean(volume) {
            let entry = self.entry(chunk);
            self.set_entry(chunk, Entry { dirty: false, ..entry });
        }
        self.commit(bytes)?;
        let Volume { slot, id, size, chunks } = *volume;
        self.set_record(slot.into(), &Record { life: Life::Live, id, size, chunks });
        self.commit(bytes)
    }

    /// Removes a volume.
    ///
    /// # Errors
    /// The medium's.
    pub fn remove(&mut self, bytes: &dyn PoolBytes, volume: &Volume) -> Result<()> {
        let Volume { slot, id, size, chunks } = *volume;
        self.set_record(slot.into(), &Record { life: Life::Ending, id, size, chunks });
        self.commit(bytes)?;
        let all = 0..self.chunk_count();
        let its: Vec<u32> = all.filter(|at| self.entry(*at).owner == Some(slot)).collect();
        self.free(bytes, &its)?;
        self.set_record(slot.into(), &Record::default());
        self.commit(bytes)
    }

    /// Removes what nobody makes any more, and what nobody ended removing.
    ///
    /// # Errors
    /// The medium's.
    pub fn reclaim(&mut self, bytes: &dyn PoolBytes) -> Result<()> {
        for slot in 0..self.layout.volumes_max() {
            let Record { life, id, size, chunks } = self.record(slot)?;
            if matches!(life, Life::Making | Life::Ending) {
                self.remove(bytes, &Volume { slot: slot as u16, id, size, chunks })?;
            }
        }
        Ok(())
    }

    /// Frees chunks, to which nothing is written any more.
    ///
    /// # Errors
    /// The medium's.
    pub fn free(&mut self, bytes: &dyn PoolBytes, chunks: &[u32]) -> Result<()> {
        for chunk in chunks {
            self.set_entry(*chunk, Entry { dirty: true, ..Entry::default() });
        }
        self.commit(bytes)
    }

    /// Gives a volume chunks of zeros at `indices`, where it has none: those that are clean first.
    ///
    /// # Errors
    /// Not enough are free, and none is taken; the medium's.
    pub fn take(
        &mut self,
        bytes: &dyn PoolBytes,
        volume: &Volume,
        indices: &[u32],
    ) -> Result<Vec<u32>> {
        let is_free = |chunk: &u32| self.entry(*chunk).owner.is_none();
        let mut free: Vec<u32> = (0..self.chunk_count()).filter(is_free).collect();
        if free.len() < indices.len() {
            let (free, needed) = (free.len() as u32, indices.len() as u32);
            return Err(DirectoryError::NoChunks { free, needed });
        }
        free.sort_by_key(|chunk| self.entry(*chunk).dirty);
        free.truncate(indices.len());
        let dirty: Vec<u32> = free.iter().copied().filter(|it| self.entry(*it).dirty).collect();
        for chunk in &dirty {
            bytes.zero(self.layout.chunk_at(*chunk), self.layout.chunk_bytes)?;
        }
        if !dirty.is_empty() {
            bytes.flush()?;
        }
        for (chunk, index) in free.iter().zip(indices) {
            let entry = Entry { owner: Some(volume.slot), index: *index, dirty: false };
            self.set_entry(*chunk, entry);
        }
        self.commit(bytes)?;
        Ok(free)
    }

    fn record(&self, slot: u32) -> Result<Record> {
        let (page, number) = self.layout.record_page(slot);
        self.pages[page as usize].record(number).ok_or(DirectoryError::Record(slot))
    }

    fn set_record(&mut self, slot: u32, record: &Record) {
        let (page, number) = self.layout.record_page(slot);
        self.pages[page as usize].set_record(number, record);
        self.changed.push(page);
    }

    fn entry(&self, chunk: u32) -> Entry {
        let (page, number) = self.layout.entry_page(chunk);
        self.pages[page as usize].entry(number)
    }

    fn set_entry(&mut self, chunk: u32, entry: Entry) {
        let (page, number) = self.layout.entry_page(chunk);
        self.pages[page as usize].set_entry(number, entry);
        self.changed.push(page);
    }

    /// Writes what was changed, durably.
    fn commit(&mut self, bytes: &dyn PoolBytes) -> Result<()> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        for number in &changed {
            self.pages[*number as usize].generation += 1;
        }
        for copy in [1, 0] {
            changed.iter().try_for_each(|number| self.write_page(bytes, copy, *number))?;
        }
        Ok(())
    }

    fn write_page(&self, bytes: &dyn PoolBytes, copy: usize, number: u32) -> Result<()> {
        let encoded = self.pages[number as usize].encode(&self.pool, number);
        bytes.write(self.layout.page_at(copy, number), Buffer::copy_of(&encoded))?;
        Ok(())
    }
}
