//! The mount table of a pool: mount path → (service, instance), a hash table in memory that all of
//! the pool's processes share.
//!
//! It is a file in the run-time directory, which is memory on every host that has a `/run`. Slots
//! are looked for by the hash of the path, one after the other until an empty one (open
//! addressing, as Polytropon's table); the longest prefix of a path is found by looking for each of
//! its ancestors.
//!
//! # Invariants
//!
//! - The caller holds the lock of all tables ([`Tables`](super::tables::Tables)).
//! - A slot is one page and written by one call, so a killed writer leaves the old slot or the new
//!   one. One whose hash is wrong all the same counts as removed.
//! - The file has the first slot (a header) before it has its name.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use polylane_base::record;
use rustix::fs::SeekFrom;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::failure::{Failure, Result};
use crate::spec::AccessTimes;

/// Slots of a table, its header not counted.
const SLOTS: u64 = 256;

/// Mounts of a pool: what keeps probing short.
pub(crate) const MOUNTS_MAX: usize = 192;

record! {
    /// A slot: a page.
    struct SlotRecord: 4096 {
        0x00 state: U32,
        /// [`SlotFlags`].
        0x04 flags: U32,
        /// Of the path: FNV-1a, 64 bits.
        0x08 hash: U64,
        /// The number of its service in the pool.
        0x10 service: U32,
        /// The number of the instance in its service.
        0x14 instance: U32,
        /// How often it is mounted.
        0x18 count: U32,
        /// The supervisor's process.
        0x1c supervisor: U32,
        /// Device number of the mount; 0 as long as it starts.
        0x20 device: U64,
        0x28 path_len: U16,
        0x2a source_len: U16,
        /// Number of the mount in the mount namespace in which it was made.
        0x2c mount: U32,
        /// FNV-1a of the slot in which this field is 0.
        0x30 sum: U64,
        /// Path, source, map of users, each without an end; a zero after the last.
        0x38 names: [u8; 4028],
        /// The mount's number that no other mount has until the host starts again; 0: not known.
        0xff4 unique: U64,
        /// What no other lane of its service has had; 0: it is not a lane of its own in one.
        0xffc id: U32,
    }
}

/// Bytes of a slot.
const SLOT_BYTES: usize = size_of::<SlotRecord>();

/// Most bytes of path and source together.
pub(crate) const NAMES_BYTES_MAX: usize =
    offset_of!(SlotRecord, unique) - offset_of!(SlotRecord, names);

/// The header: what the file is, in which version.
const MAGIC: &[u8] = b"polylane mount table 1\n";

/// `state` of a slot that no mount has had.
const EMPTY: u32 = 0;
/// `state` of a slot whose mount is gone.
const REMOVED: u32 = 1;
/// `state` of a slot with a mount.
const USED: u32 = 2;

bitflags::bitflags! {
    /// `flags` of a slot.
    struct SlotFlags: u32 {
        /// Nothing can be changed through the mount.
        const READ_ONLY = 1;
        /// The mount does not serve yet.
        const STARTING = 2;
        /// The kernel maps users of its id-mapped mounts.
        const ID_MAPS = 4;
        /// Its service is there for further lanes over the same lowers.
        const GROUND = 8;
        /// The kernel caches what programs read and write by FUSE.
        const KERNEL_CACHE = 16;
        /// No read moves an access time.
        const NO_ATIME = 32;
        /// None of a directory does.
        const NO_DIR_ATIME = 64;
        const _ = !0;
    }
}

/// One mount of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// Mount path, absolute.
    pub(crate) path: Vec<u8>,
    /// What is mounted, as [`Source`](super::source::LaneSource) writes it.
    pub(crate) source: Vec<u8>,
    /// Owners of its files on this host, as [`users`](super::users) writes them; empty: the files'
    /// own.
    pub(crate) users: Vec<u8>,
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
    /// Number of the mount in the mount namespace in which it was made; 0: not known.
    pub(crate) mount: u32,
    /// The mount's number that no other mount has until the host starts again; 0: not known.
    pub(crate) unique: u64,
    /// What no other lane of its service has had; 0: it is not a lane of its own in one.
    pub(crate) id: u32,
    /// Nothing can be changed through it.
    pub(crate) read_only: bool,
    /// The kernel maps users of its id-mapped mounts.
    pub(crate) id_maps: bool,
    /// The kernel caches what programs read and write by FUSE.
    pub(crate) kernel_cache: bool,
    /// Which reads move access times.
    pub(crate) access_times: AccessTimes,
    /// It does not serve yet.
    pub(crate) starting: bool,
    /// Its service is there for further lanes over the same lowers.
    pub(crate) is_ground: bool,
}

impl Entry {
    fn to_slot(&self) -> SlotRecord {
        let mut flags = SlotFlags::empty();
        flags.set(SlotFlags::READ_ONLY, self.read_only);
        flags.set(SlotFlags::STARTING, self.starting);
        flags.set(SlotFlags::ID_MAPS, self.id_maps);
        flags.set(SlotFlags::KERNEL_CACHE, self.kernel_cache);
        flags.set(SlotFlags::GROUND, self.is_ground);
        match self.access_times {
            AccessTimes::Relatime => {}
            AccessTimes::NotOfDirs => flags.insert(SlotFlags::NO_DIR_ATIME),
            AccessTimes::Never => flags.insert(SlotFlags::NO_ATIME),
        }
        let len = |name: &[u8]| U16::new(u16::try_from(name.len()).unwrap_or(u16::MAX));
        let mut slot = SlotRecord {
            state: USED.into(),
            flags: flags.bits().into(),
            hash: hash(&self.path).into(),
            service: self.service.into(),
            instance: self.instance.into(),
            count: self.count.into(),
            supervisor: self.supervisor.into(),
            device: self.device.into(),
            mount: self.mount.into(),
            unique: self.unique.into(),
            id: self.id.into(),
            path_len: len(&self.path),
            source_len: len(&self.source),
            ..SlotRecord::new_zeroed()
        };
        let names = [&self.path[..], &self.source, &self.users].concat();
        slot.names[..names.len()].copy_from_slice(&names);
        slot.sum = slot.hashed().into();
        slot
    }

    /// `None`: nothing that this module wrote.
    fn from_slot(slot: &SlotRecord) -> Option<Entry> {
        let unsummed = SlotRecord { sum: 0.into(), ..*slot };
        if slot.state != USED || slot.sum != unsummed.hashed() {
            return None;
        }
        let flags = SlotFlags::from_bits_retain(slot.flags.get());
        let path_end = usize::from(slot.path_len.get());
        let source_end = path_end + usize::from(slot.source_len.get());
        Some(Entry {
            path: slot.names.get(..path_end)?.to_vec(),
            source: slot.names.get(path_end..source_end)?.to_vec(),
            users: slot.names.get(source_end..)?.split(|&byte| byte == 0).next()?.to_vec(),
            service: slot.service.get(),
            instance: slot.instance.get(),
            count: slot.count.get(),
            supervisor: slot.supervisor.get(),
            device: slot.device.get(),
            mount: slot.mount.get(),
            unique: slot.unique.get(),
            id: slot.id.get(),
            read_only: flags.contains(SlotFlags::READ_ONLY),
            id_maps: flags.contains(SlotFlags::ID_MAPS),
            kernel_cache: flags.contains(SlotFlags::KERNEL_CACHE),
            starting: flags.contains(SlotFlags::STARTING),
            is_ground: flags.contains(SlotFlags::GROUND),
            access_times: match () {
                () if flags.contains(SlotFlags::NO_ATIME) => AccessTimes::Never,
                () if flags.contains(SlotFlags::NO_DIR_ATIME) => AccessTimes::NotOfDirs,
                () => AccessTimes::Relatime,
            },
        })
    }
}

impl SlotRecord {
    /// FNV-1a of it. Most of it is zeros before the last two fields, one power of the prime:
    /// each command reads all slots several times.
    fn hashed(&self) -> u64 {
        let (front, last) = self.as_bytes().split_at(offset_of!(SlotRecord, unique));
        let is_zero = |part: &&[u8]| **part == [0; ZEROS];
        let zeros = front.rchunks_exact(ZEROS).take_while(is_zero).count() * ZEROS;
        let hash = hash_on(HASH_START, &front[..front.len() - zeros]);
        hash_on(hash.wrapping_mul(HASH_PRIME.wrapping_pow(zeros as u32)), last)
    }
}

/// Zeros of a slot that are looked for at a time.
const ZEROS: usize = 64;

const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    hash_on(HASH_START, bytes)
}

fn hash_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(HASH_PRIME))
}

/// A pool's table.
#[derive(Debug)]
pub(crate) struct Table {
    file: File,
    path: PathBuf,
}

/// A file that is where a table belongs.
#[derive(Debug)]
pub(crate) enum Found {
    /// A table.
    Table(Table),
    /// None of this version; the line that says so.
    Other(Failure),
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
        match Table::look(path)? {
            Some(Found::Table(table)) => Ok(Some(table)),
            Some(Found::Other(failure)) => Err(failure),
            None => Ok(None),
        }
    }

    /// What is at `path`; `None` when the pool has no table, and so no mounts.
    ///
    /// # Errors
    /// One line when the file cannot be read.
    pub(crate) fn look(path: &Path) -> Result<Option<Found>> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = match File::options().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::path(path, "open the mount table", error)),
        };
        let mut magic = [0; MAGIC.len()];
        match file.read_exact_at(&mut magic, 0) {
            Ok(()) if magic == *MAGIC => {
                Ok(Some(Found::Table(Table { file, path: path.to_path_buf() })))
            }
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                Err(Failure::path(path, "read the mount table", error))
            }
            _ => Ok(Some(Found::Other(Failure::failed(format!(
                "{}: not a mount table of this version: end the lanes of its pool, then remove it",
                path.display()
            ))))),
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
        if entry.path.len() + entry.source.len() + entry.users.len() > NAMES_BYTES_MAX {
            return Err(Failure::usage(format!(
                "mount: SOURCE, PATH and --map-users are together longer than {NAMES_BYTES_MAX} \
                 bytes"
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
            let slot = SlotRecord { state: REMOVED.into(), ..SlotRecord::new_zeroed() };
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
        let used = self.written().filter_map(|index| match self.read(index) {
            Slot::Used(entry) => Some(entry),
            Slot::Empty | Slot::Removed => None,
        });
        let mut entries: Vec<Entry> = used.collect();
        entries.sort_by_key(|entry| (entry.service, entry.instance));
        entries
    }

    /// The slots that were ever written, in order: the others are holes of the file, or past its
    /// end.
    fn written(&self) -> impl Iterator<Item = u64> {
        let mut next = 1;
        std::iter::from_fn(move || {
            let at = rustix::fs::seek(&self.file, SeekFrom::Data(next * SLOT_BYTES as u64)).ok()?;
            let index = at / SLOT_BYTES as u64;
            next = index + 1;
            (index <= SLOTS).then_some(index)
        })
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
        // Past the end of the file, and in its holes, all slots are empty.
        let mut slot = SlotRecord::new_zeroed();
        match self.file.read_exact_at(slot.as_mut_bytes(), at) {
            Ok(()) if slot.state == USED => {
                Entry::from_slot(&slot).map_or(Slot::Removed, Slot::Used)
            }
            _ if slot.state == EMPTY => Slot::Empty,
            _ => Slot::Removed,
        }
    }

    fn write(&self, index: u64, slot: &SlotRecord) -> Result<()> {
        let at = index * SLOT_BYTES as u64;
        self.file
            .write_all_at(slot.as_bytes(), at)
            .map_err(|error| Failure::path(&self.path, "write the mount table", error))
    }
}

#[cfg(test)]
mod tests;
