//! Orphans: inodes without a name that must be freed, and files whose truncation was cut short,
//! also after a power cut.
//!
//! Two forms are known. The *list* starts in the superblock and goes on in each inode's `i_dtime`.
//! The *orphan file* is an array of inode numbers in a file of its own, each block ending in
//! `{magic 0x0b10ca04, checksum over inode seed, block number and entries}`; an inode in it needs
//! no change of its own. The file is used where the image has one, the list where it has none and
//! where the file is full.
//!
//! Either is kept in memory and goes to disk when a transaction is closed. So an inode that loses
//! its last name and is freed within one transaction, or a file that is cut within one, costs
//! nothing at all.
//!
//! # Locking
//!
//! `orphans → block data`; nothing else is taken under it.

use polylane_base::record;
use rustc_hash::{FxHashMap, FxHashSet};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::cache::Seal;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::{self, Mapping};
use crate::format::checksum::crc;
use crate::format::superblock::{BYTES, Compat, OFFSET, Superblock};
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core, in_range};
use crate::journal::Handle;
use crate::volume::Volume;

polylane_base::record! {
    /// `struct ext4_orphan_block_tail`.
    struct TailRecord: 8 {
        0x00 magic: U32,
        0x04 checksum: U32,
    }
}

/// Magic number at the end of an orphan file's block.
const MAGIC: u32 = 0x0b10_ca04;
const TAIL_BYTES: usize = size_of::<TailRecord>();
/// Bytes of a slot: an inode's number.
const SLOT_BYTES: usize = size_of::<U32>();
/// Most blocks of the orphan file read at a time.
const RUN_BLOCKS_MAX: usize = 256;

/// The orphans that the image names: the list, and the orphan file if there is one.
///
/// # Errors
/// The device's, or a list or file that names what cannot be an orphan: nothing is written then.
pub fn read(volume: &Volume, superblock: &Superblock) -> Result<(Vec<u32>, Option<OrphanFile>)> {
    let (mut list, mut seen) = (Vec::new(), FxHashSet::default());
    let mut ino = superblock.last_orphan();
    let corrupt = |ino: u32, field| Corrupt::new(Structure::Orphan, ino.into(), field);
    while ino != 0 {
        if !can_be(volume, superblock, ino) || !seen.insert(ino) {
            return Err(corrupt(ino, "list").into());
        }
        list.push(ino);
        let cell = match volume.orphan_cell(ino) {
            Ok(cell) if volume.alloc.inode_in_use(ino)? => cell,
            Ok(_) | Err(Error::Errno(_)) => return Err(corrupt(ino, "list: inode is free").into()),
            Err(error) => return Err(error),
        };
        let core = cell.core.read();
        // With a name: it was being cut. Without: it is to be freed.
        if core.raw.links() > 0 && !matches!(core.raw.mode() >> 12, 4 | 8 | 10) {
            return Err(corrupt(ino, "list: nothing to cut").into());
        }
        ino = core.raw.dtime();
    }
    let has_file = superblock.has_compat(Compat::ORPHAN_FILE);
    let file = has_file.then(|| OrphanFile::read(volume, superblock.orphan_file_inode()));
    let file = file.transpose()?;
    let filed = file.iter().flat_map(|file| file.slots.keys());
    match filed.copied().find(|ino| !can_be(volume, superblock, *ino)) {
        Some(ino) => Err(corrupt(ino, "orphan file").into()),
        None => Ok((list, file)),
    }
}

/// Whether `ino` may be an orphan: the format's own inodes never are.
fn can_be(volume: &Volume, superblock: &Superblock, ino: u32) -> bool {
    let own = superblock.has_compat(Compat::ORPHAN_FILE) && ino == superblock.orphan_file_inode();
    in_range(&volume.geometry, ino) && ino >= superblock.first_inode() && !own
}

/// The orphan file: which of its slots hold what. All numbers in it are in range.
pub struct OrphanFile {
    /// Its blocks.
    homes: Vec<DeviceBlock>,
    /// Seed of their checksums.
    seed: u32,
    /// Slots in a block.
    per_block: u32,
    /// The slot of each orphan.
    slots: FxHashMap<u32, u32>,
    /// Slots below `next` that hold none, lowest last.
    free: Vec<u32>,
    /// No slot from here on holds any.
    next: u32,
}

impl OrphanFile {
    fn read(volume: &Volume, ino: u32) -> Result<OrphanFile> {
        let cell = volume.cell(ino)?;
        let per_block = (volume.io.block_bytes() - TAIL_BYTES) / SLOT_BYTES;
        let mut file = OrphanFile {
            homes: Vec::new(),
            seed: cell.seed,
            per_block: per_block as u32,
            slots: FxHashMap::default(),
            free: Vec::new(),
            next: 0,
        };
        file.find_homes(volume, &cell)?;
        let mut index = 0;
        while let Some(first) = file.homes.get(index) {
            let rest = file.homes[index..].iter().take(RUN_BLOCKS_MAX).enumerate();
            let run = rest.take_while(|(step, home)| home.0 == first.0 + *step as u64).count();
            let bytes = volume.io.read_run(*first, run)?;
            for block in bytes.chunks_exact(volume.io.block_bytes()) {
                file.take_in(volume, ino, (index as u32, block))?;
                index += 1;
            }
        }
        file.next = file.slots.values().max().map_or(0, |slot| slot + 1);
        let used: FxHashSet<u32> = file.slots.values().copied().collect();
        file.free = (0..file.next).rev().filter(|slot| !used.contains(slot)).collect();
        Ok(file)
    }

    /// Finds its blocks. A map that is damaged may name more than there are.
    fn find_homes(&mut self, volume: &Volume, cell: &Cell) -> Result<()> {
        let corrupt = |field| Err(Corrupt::new(Structure::Orphan, cell.ino.into(), field).into());
        let core = cell.core.read();
        let blocks = core.raw.size() / volume.io.block_bytes() as u64;
        let slots = blocks.checked_mul(self.per_block.into());
        if blocks > volume.geometry.block_count || slots.is_none_or(|n| n > u32::MAX.into()) {
            return corrupt("size");
        }
        while (self.homes.len() as u64) < blocks {
            let at = self.homes.len() as u32;
            let Mapping::Data(extent) = extents::map(volume, cell, &core, FileBlock(at))? else {
                return corrupt("hole");
            };
            let count = u64::from(extent.count).min(blocks - u64::from(at));
            self.homes.extend((0..count).map(|n| DeviceBlock(extent.start.0 + n)));
        }
        Ok(())
    }

    /// Takes the slots of one block, which was read past the cache: most are never changed.
    fn take_in(&mut self, volume: &Volume, ino: u32, (index, bytes): (u32, &[u8])) -> Result<()> {
        self.check(volume, bytes, index, ino)?;
        let numbers: &[U32] = record::slice(bytes, 0, self.per_block as usize);
        let corrupt = |field| Err(Corrupt::new(Structure::Orphan, ino.into(), field).into());
        for (slot, number) in
            (index * self.per_block..).zip(numbers.iter().map(|number| number.get()))
        {
            if number == 0 {
                continue;
            }
            if !in_range(&volume.geometry, number) {
                return corrupt("entry out of range");
            }
            if self.slots.insert(number, slot).is_some() {
                return corrupt("entry is there twice");
            }
        }
        Ok(())
    }

    fn seal_of(&self, volume: &Volume, index: u32) -> Seal {
        match volume.has_sums {
            true => Seal::Orphans(self.seed, self.homes[index as usize]),
            false => Seal::None,
        }
    }

    fn check(&self, volume: &Volume, bytes: &[u8], index: u32, ino: u32) -> Result<()> {
        let corrupt = |field| Err(Corrupt::new(Structure::Orphan, ino.into(), field).into());
        match () {
            () if tail(bytes).magic != MAGIC => corrupt("magic number"),
            () if !self.seal_of(volume, index).verify(bytes) => corrupt("checksum"),
            () => Ok(()),
        }
    }

    /// The lowest slot that holds none.
    fn take_slot(&mut self) -> Option<u32> {
        let fresh = || (self.next < self.homes.len() as u32 * self.per_block).then_some(self.next);
        let slot = self.free.pop().or_else(fresh)?;
        self.next = self.next.max(slot + 1);
        Some(slot)
    }

    /// Brings the slots up to date with `members`. Those for whom there is none, or that are in the
    /// list already, are left to the list.
    fn seal(
        &mut self,
        volume: &Volume,
        handle: &Handle<'_>,
        members: &FxHashSet<u32>,
        listed: &FxHashMap<u32, u32>,
    ) -> Result<()> {
        let gone: Vec<(u32, u32)> = self
            .slots
            .iter()
            .filter(|(ino, _)| !members.contains(ino))
            .map(|(ino, slot)| (*ino, *slot))
            .collect();
        for (ino, slot) in gone {
            self.put(volume, handle, slot, 0)?;
            self.slots.remove(&ino);
            self.free.push(slot);
        }
        self.free.sort_unstable_by(|one, other| other.cmp(one));
        for ino in members {
            if listed.contains_key(ino) || self.slots.contains_key(ino) {
                continue;
            }
            let Some(slot) = self.take_slot() else { break };
            self.put(volume, handle, slot, *ino)?;
            self.slots.insert(*ino, slot);
        }
        Ok(())
    }

    fn put(&self, volume: &Volume, handle: &Handle<'_>, slot: u32, number: u32) -> Result<()> {
        let index = slot / self.per_block;
        let (home, seal) = (self.homes[index as usize], self.seal_of(volume, index));
        let check = |bytes: &[u8]| self.check(volume, bytes, index, number);
        let block = volume.cache.get(&volume.io, home, seal, check)?;
        let at = (slot % self.per_block) as usize * SLOT_BYTES;
        record::at_mut::<U32>(&mut handle.modify(&block), at).set(number);
        Ok(())
    }
}

/// Makes the checksum of an orphan file's block.
pub fn put_checksum(block: &mut [u8], seed: u32, home: DeviceBlock) {
    let sum = checksum(block, seed, home);
    let at = block.len() - TAIL_BYTES;
    record::at_mut::<TailRecord>(block, at).checksum.set(sum);
}

/// What a block ends with.
fn tail(block: &[u8]) -> &TailRecord {
    record::at(block, block.len() - TAIL_BYTES)
}

/// Whether an orphan file's block carries its checksum.
pub fn checksum_ok(block: &[u8], seed: u32, home: DeviceBlock) -> bool {
    tail(block).checksum == checksum(block, seed, home)
}

fn checksum(block: &[u8], seed: u32, home: DeviceBlock) -> u32 {
    crc(crc(seed, U64::new(home.0).as_bytes()), &block[..block.len() - TAIL_BYTES])
}

/// The orphans of an open file system.
#[derive(Default)]
pub struct Orphans {
    /// Those that must be on disk when the running transaction is closed.
    members: FxHashSet<u32>,
    /// The list as the image has it, its head last: each with the one it points to.
    chain: Vec<(u32, u32)>,
    /// The orphan file as the image has it.
    file: Option<OrphanFile>,
    changed: bool,
}

impl Orphans {
    /// Takes over what the image names.
    pub fn take_over(&mut self, list: &[u32], file: Option<OrphanFile>) {
        let filed = file.iter().flat_map(|file| file.slots.keys().copied());
        self.members.extend(list.iter().copied().chain(filed));
        let nexts = list.iter().skip(1).copied().chain([0]);
        self.chain = list.iter().copied().zip(nexts).collect();
        self.chain.reverse();
        self.file = file;
        self.changed = true;
    }

    /// Forgets an inode that is free already.
    pub fn drop_stale(&mut self, ino: u32) {
        self.changed |= self.members.remove(&ino);
    }

    /// Whether `ino` is one.
    pub fn has(&self, ino: u32) -> bool {
        self.members.contains(&ino)
    }

    /// All of them.
    pub fn members(&self) -> Vec<u32> {
        self.members.iter().copied().collect()
    }
}

/// From now on the inode is an orphan.
pub fn add(volume: &Volume, cell: &Cell) {
    let mut orphans = volume.orphans.lock();
    orphans.changed |= orphans.members.insert(cell.ino);
}

/// From now on the inode is none; the caller stores it with the same handle.
pub fn remove(volume: &Volume, cell: &Cell, core: &mut Core) {
    let mut orphans = volume.orphans.lock();
    if orphans.members.remove(&cell.ino) {
        orphans.changed = true;
        cell.chain(None);
        core.raw.set_dtime(0);
    }
}

/// Brings file and list on disk up to date, as the last change of a transaction. What came and went
/// within one transaction never gets there.
///
/// # Errors
/// The device's.
pub fn seal(volume: &Volume, handle: &Handle<'_>) -> Result<()> {
    let mut guard = volume.orphans.lock();
    let Orphans { members, chain, file, changed } = &mut *guard;
    if !std::mem::take(changed) {
        return Ok(());
    }
    let old: FxHashMap<u32, u32> = chain.iter().copied().collect();
    if let Some(file) = file {
        file.seal(volume, handle, members, &old)?;
    }
    let is_filed = |ino: &u32| file.as_ref().is_some_and(|file| file.slots.contains_key(ino));
    let kept = chain.iter().map(|(ino, _)| *ino).filter(|ino| members.contains(ino));
    let mut list: Vec<u32> = kept.collect();
    list.extend(members.iter().filter(|ino| !old.contains_key(ino) && !is_filed(ino)));
    let head = chain.last().map(|(ino, _)| *ino);
    let nexts = [0].into_iter().chain(list.iter().copied());
    *chain = list.iter().copied().zip(nexts).collect();
    for (ino, next) in chain.iter().filter(|(ino, next)| old.get(ino) != Some(next)) {
        volume.set_next_orphan(handle, *ino, *next)?;
    }
    match chain.last().map(|(ino, _)| *ino) {
        same if same == head => Ok(()),
        new => set_head(volume, handle, new.unwrap_or(0)),
    }
}

fn set_head(volume: &Volume, handle: &Handle<'_>, ino: u32) -> Result<()> {
    let mut superblock = volume.superblock.lock();
    superblock.set_last_orphan(ino);
    log_superblock(volume, handle, &superblock)
}

/// Makes the superblock part of the handle's transaction.
///
/// # Errors
/// The device's.
pub fn log_superblock(volume: &Volume, handle: &Handle<'_>, superblock: &Superblock) -> Result<()> {
    let (home, at) = superblock_home(volume);
    let block = volume.cache.get(&volume.io, home, Seal::None, |_| Ok(()))?;
    handle.modify(&block)[at..at + BYTES].copy_from_slice(&superblock.encode());
    Ok(())
}

/// The block that holds the superblock, and where in it.
pub fn superblock_home(volume: &Volume) -> (DeviceBlock, usize) {
    let block_bytes = volume.io.block_bytes() as u64;
    (DeviceBlock(OFFSET / block_bytes), (OFFSET % block_bytes) as usize)
}
