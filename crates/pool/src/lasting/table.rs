//! The mount table of a pool: mount path → (service, instance), a hash table in memory that all of
//! the pool's processes share.
//!
//! It is a file in the run-time directory, which is memory on every host that has a `/run`. Slots
//! are looked for by the hash of the path, one after the other until an empty one (open
//! addressing, as Polytropon's table); the longest prefix of a path is found by looking for each of
//! its ancestors.
//!
//! | bytes of a slot | field |
//! |---|---|
//! | 0 | state: 0 empty, 1 removed, 2 used |
//! | 4 | flags: 1 read-only, 2 starting |
//! | 8 | hash of the path (FNV-1a, 64 bits) |
//! | 16, 20 | service, instance |
//! | 24, 28 | how often mounted, process of the supervisor |
//! | 32 | device number of the mount, 0 as long as it starts |
//! | 40, 42 | bytes of the path, bytes of the source |
//! | 48 | hash of everything else in the slot |
//! | 56 | path, source |
//!
//! # Invariants
//!
//! - The caller holds the lock of all tables ([`Tables`](super::tables::Tables)).
//! - A slot is one page and written by one call, so a killed writer leaves the old slot or the new
//!   one. One whose hash is wrong all the same counts as removed.
//! - The file has the first slot (a header) before it has its name.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// Slots of a table, its header not counted.
const SLOTS: u64 = 256;

/// Mounts of a pool: what keeps probing short.
pub(crate) const MOUNTS_MAX: usize = 192;

/// Bytes of a slot: a page.
const SLOT_BYTES: usize = 4096;

/// Where the path begins in a slot.
const PATH_AT: usize = 56;

/// Where the slot's own hash is.
const SUM_AT: usize = 48;

/// Most bytes of path and source together.
pub(crate) const NAMES_BYTES_MAX: usize = SLOT_BYTES - PATH_AT;

/// The header: what the file is, in which version.
const MAGIC: &[u8] = b"polylane mount table 1\n";

const REMOVED: u32 = 1;
const USED: u32 = 2;

const READ_ONLY: u32 = 1;
const STARTING: u32 = 2;

/// One mount of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// Mount path, absolute.
    pub(crate) path: Vec<u8>,
    /// What is mounted, as [`Source`](super::source::LaneSource) writes it.
    pub(crate) source: Vec<u8>,
    /// The number of its service in the pool.
    pub(crate) service: u32,
    /// The number of the instance in its service.
    pub(crate) instance: u32,
    /// How often it was mounted; `umount` takes one away.
    pub(crate) count: u32,
    /// The supervisor's process.
    pub(crate) supervisor: u32,
    /// Device number of the mount; 0 as long as it starts.
    pub(crate) device: u64,
    /// Nothing can be changed through it.
    pub(crate) read_only: bool,
    /// It does not serve yet.
    pub(crate) starting: bool,
}

impl Entry {
    fn to_slot(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        let flags = u32::from(self.read_only) * READ_ONLY + u32::from(self.starting) * STARTING;
        put(0, &USED.to_le_bytes());
        put(4, &flags.to_le_bytes());
        put(8, &hash(&self.path).to_le_bytes());
        for (at, value) in
            [(16, self.service), (20, self.instance), (24, self.count), (28, self.supervisor)]
        {
            put(at, &value.to_le_bytes());
        }
        put(32, &self.device.to_le_bytes());
        let lengths = [self.path.len(), self.source.len()];
        for (at, length) in [40, 42].into_iter().zip(lengths) {
            put(at, &u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
        }
        put(PATH_AT, &self.path);
        put(PATH_AT + self.path.len(), &self.source);
        let sum = hash(&slot);
        slot[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    /// `None`: nothing that this module wrote.
    fn from_slot(slot: &[u8; SLOT_BYTES]) -> Option<Entry> {
        let word = |at: usize| {
            let bytes = slot.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let mut unsummed = *slot;
        unsummed[SUM_AT..SUM_AT + 8].fill(0);
        if word(0) != USED || hash(&unsummed) != long(SUM_AT) {
            return None;
        }
        let path_end = PATH_AT + (word(40) & 0xffff) as usize;
        let source_end = path_end + (word(40) >> 16) as usize;
        Some(Entry {
            path: slot.get(PATH_AT..path_end)?.to_vec(),
            source: slot.get(path_end..source_end)?.to_vec(),
            service: word(16),
            instance: word(20),
            count: word(24),
            supervisor: word(28),
            device: long(32),
            read_only: word(4) & READ_ONLY != 0,
            starting: word(4) & STARTING != 0,
        })
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A pool's table.
#[derive(Debug)]
pub(crate) struct Table {
    file: File,
    path: PathBuf,
}

/// What a slot holds.
enum Slot {
    Empty,
    Removed,
    Used(Entry),
}

impl Table {
    /// Where the table of `pool` belongs.
    pub(crate) fn path(dir: &Path, pool: &str) -> PathBuf {
        dir.join(format!("{pool}.table"))
    }

    /// The table at `path`; `None` when the pool has none, and so no mounts.
    ///
    /// # Errors
    /// One line when the file cannot be read or is no table.
    pub(crate) fn open(path: &Path) -> Result<Option<Table>> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = match File::options().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::path(path, "open the mount table", error)),
        };
        let mut magic = [0; MAGIC.len()];
        match file.read_exact_at(&mut magic, 0) {
            Ok(()) if magic == *MAGIC => Ok(Some(Table { file, path: path.to_path_buf() })),
            _ => Err(Failure::failed(format!(
                "{}: not a mount table of this version: end the lanes of its pool, then remove it",
                path.display()
            ))),
        }
    }

    /// The table at `path`, made if there is none.
    ///
    /// # Errors
    /// As [`open`](Table::open); it cannot be made.
    pub(crate) fn open_or_make(path: &Path) -> Result<Table> {
        if let Some(table) = Table::open(path)? {
            return Ok(table);
        }
        let failed = |error| Failure::path(path, "make the mount table", error);
        let draft = path.with_extension("table-new");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&draft).map_err(failed)?;
        let mut header = [0; SLOT_BYTES];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        file.write_all_at(&header, 0).map_err(failed)?;
        fs::rename(&draft, path).map_err(failed)?;
        Table::open(path)?.ok_or_else(|| failed(ErrorKind::NotFound.into()))
    }

    /// The mount at exactly this path.
    pub(crate) fn find(&self, path: &[u8]) -> Option<Entry> {
        self.probe(path).find_map(|(_, slot)| match slot {
            Slot::Used(entry) if entry.path == path => Some(entry),
            _ => None,
        })
    }

    /// The mount at the longest prefix of an absolute path, itself among them.
    pub(crate) fn find_longest(&self, path: &[u8]) -> Option<Entry> {
        let mut prefix = path;
        loop {
            if let Some(entry) = self.find(prefix) {
                return Some(entry);
            }
            let slash = prefix.iter().rposition(|&byte| byte == b'/')?;
            prefix = match slash {
                0 if prefix.len() > 1 => b"/",
                0 => return None,
                slash => prefix.get(..slash)?,
            };
        }
    }

    /// Puts a mount in, in place of one at the same path.
    ///
    /// # Errors
    /// One line: the names are too long, there are [`MOUNTS_MAX`] mounts, or it cannot be written.
    pub(crate) fn put(&self, entry: &Entry) -> Result<()> {
        if entry.path.len() + entry.source.len() > NAMES_BYTES_MAX {
            return Err(Failure::usage(format!(
                "mount: SOURCE and PATH are longer than {NAMES_BYTES_MAX} bytes together"
            )));
        }
        let mut free = None;
        for (index, slot) in self.probe(&entry.path) {
            match slot {
                Slot::Used(other) if other.path == entry.path => {
                    return self.write(index, &entry.to_slot());
                }
                Slot::Used(_) => {}
                Slot::Empty | Slot::Removed => free = free.or(Some(index)),
            }
        }
        match free.filter(|_| self.entries().len() < MOUNTS_MAX) {
            Some(index) => self.write(index, &entry.to_slot()),
            None => Err(Failure::failed(format!(
                "{}: the pool has {MOUNTS_MAX} mounts, and can have no more",
                self.path.display()
            ))),
        }
    }

    /// Takes the mount at `path` out; the file goes with the last one.
    ///
    /// # Errors
    /// One line when it cannot be written.
    pub(crate) fn remove(&self, path: &[u8]) -> Result<()> {
        let is_it = |slot: &Slot| matches!(slot, Slot::Used(entry) if entry.path == path);
        if let Some((index, _)) = self.probe(path).find(|(_, slot)| is_it(slot)) {
            let mut slot = [0; SLOT_BYTES];
            slot[..4].copy_from_slice(&REMOVED.to_le_bytes());
            self.write(index, &slot)?;
        }
        if self.entries().is_empty() {
            fs::remove_file(&self.path)
                .map_err(|error| Failure::path(&self.path, "remove the empty table", error))?;
        }
        Ok(())
    }

    /// All mounts, by service and instance.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let used = (1..=SLOTS).filter_map(|index| match self.read(index) {
            Slot::Used(entry) => Some(entry),
            Slot::Empty | Slot::Removed => None,
        });
        let mut entries: Vec<Entry> = used.collect();
        entries.sort_by_key(|entry| (entry.service, entry.instance));
        entries
    }

    /// The slots in which `path` can be, in order, up to the first empty one.
    fn probe(&self, path: &[u8]) -> impl Iterator<Item = (u64, Slot)> {
        let first = hash(path) % SLOTS;
        let mut ended = false;
        let slots = (0..SLOTS).map(move |step| 1 + (first + step) % SLOTS);
        slots.map(|index| (index, self.read(index))).take_while(move |(_, slot)| {
            let goes_on = !ended;
            ended |= matches!(slot, Slot::Empty);
            goes_on
        })
    }

    fn read(&self, index: u64) -> Slot {
        let at = index * SLOT_BYTES as u64;
        let mut slot = [0; SLOT_BYTES];
        // Past the end of the file, and in its holes, all slots are empty.
        let state = match self.file.read_exact_at(&mut slot[..4], at) {
            Ok(()) => u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]),
            Err(_) => return Slot::Empty,
        };
        if state == 0 {
            return Slot::Empty;
        }
        let whole = state == USED && self.file.read_exact_at(&mut slot, at).is_ok();
        match Entry::from_slot(&slot).filter(|_| whole) {
            Some(entry) => Slot::Used(entry),
            None => Slot::Removed,
        }
    }

    fn write(&self, index: u64, slot: &[u8; SLOT_BYTES]) -> Result<()> {
        let at = index * SLOT_BYTES as u64;
        self.file
            .write_all_at(slot, at)
            .map_err(|error| Failure::path(&self.path, "write the mount table", error))
    }
}

#[cfg(test)]
mod tests;
