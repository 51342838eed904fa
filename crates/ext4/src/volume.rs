//! An open file system: what all its parts share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Clock, Errno, Gid, Time, Uid};
use polylane_block::Error as DeviceError;

use crate::alloc::{Allocator, Blocks, Claim, Promise};
use crate::blockmap;
use crate::cache::{BlockCache, MetaBlock};
use crate::damage;
use crate::data_mode::DataMode;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents;
use crate::format::hash::HashVersion;
use crate::format::inode::{InodeFlags, RawInode};
use crate::format::quota::Charge;
use crate::format::superblock::{Compat, Geometry, Incompat, RoCompat, Superblock};
use crate::format::{DeviceBlock, GroupIndex};
use crate::inode::{Cell, Core, InodeTable, check, in_range};
use crate::io::BlockIo;
use crate::journal::{Handle, Journal};
use crate::limits::{Ids, Ledger, Owed};
use crate::orphan::{self, Orphans};
use crate::reason::Reasons;
use polylane_vfs::OpCtx;

/// Blocks that an operation changes in quota files: an entry of the former and one of the new owner
/// in each.
const ACCOUNT_CREDITS: usize = 6;

/// Keeps what users, groups and projects take. Safe from all threads.
pub trait Accounts: Send + Sync {
    /// Makes the accounts that a new owner's user, group and project lack. Call without a handle.
    ///
    /// # Errors
    /// `ENOSPC`, the device's, or damaged quota files.
    fn enter(&self, ctx: &OpCtx<'_>, volume: &Volume, ids: [u32; 3]) -> Result<()>;

    /// What is owed to those who have accounts, where limits are enforced.
    fn owed(&self) -> Option<&Arc<Owed>>;

    /// Whether users, groups and projects may take so many more blocks and inodes.
    ///
    /// # Errors
    /// The device's, or damaged quota files.
    fn allow(
        &self,
        ctx: &OpCtx<'_>,
        volume: &Volume,
        ledger: &Ledger,
        ids: Ids,
        more: (u64, u64),
    ) -> Result<bool>;

    /// What a project may have in all, and what it has left of that: bytes, and inodes. `None`: as
    /// much as there is.
    ///
    /// # Errors
    /// The device's, or damaged quota files.
    fn project_room(&self, volume: &Volume, project: u32) -> Result<[Option<(u64, u64)>; 2]>;

    /// Inodes that hold values of an inode's attributes.
    ///
    /// # Errors
    /// The device's, or corrupt attributes.
    fn values(&self, volume: &Volume, cell: &Cell, core: &Core) -> Result<u64>;

    /// Charges what an inode takes now, in the handle that stores it: nothing is owed for it then.
    ///
    /// # Errors
    /// The device's, or damaged quota files.
    fn settle(
        &self,
        volume: &Volume,
        handle: &Handle<'_>,
        cell: &Cell,
        core: &mut Core,
    ) -> Result<()>;
}

/// What the superblock says about names and new inodes. Constant while open.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Seed of the directory hashes.
    pub hash_seed: [u32; 4],
    /// The function that new hash trees use; `None` when it is unknown.
    pub tree_hash: Option<HashVersion>,
    /// Half MD4, which orders listings whatever a directory's tree uses.
    pub listing_hash: HashVersion,
    /// Characters are unsigned in hashes.
    pub unsigned_hash: bool,
    /// Directories get hash trees.
    pub dir_index: bool,
    /// Most levels of index nodes below the root of a hash tree.
    pub tree_levels: u8,
    /// Directories may have more subdirectories than links can count.
    pub dir_nlink: bool,
    /// Extra bytes of new inodes.
    pub extra_isize: u16,
    /// New files have extent trees; else block maps.
    pub extents: bool,
    /// Inodes may hold values of attributes (`ea_inode`).
    pub ea_inode: bool,
    /// Bytes of the largest file with a block map.
    pub map_bytes_max: u64,
    /// The user and the group that may take the blocks kept for privileged users, beside root;
    /// group 0: none.
    pub kept_for: (Uid, Gid),
    /// New files get their directory's group.
    pub bsd_groups: bool,
    /// Inodes belong to projects (`project`).
    pub projects: bool,
}

impl Traits {
    /// From the superblock.
    ///
    /// # Errors
    /// None that a known image could cause.
    pub fn new(superblock: &Superblock) -> Result<Traits> {
        let unsigned_hash = superblock.unsigned_hash();
        let version = superblock.default_hash_version();
        let block_bytes = superblock.geometry.block_bytes as usize;
        let huge_file = superblock.has_ro_compat(RoCompat::HUGE_FILE);
        Ok(Traits {
            hash_seed: superblock.hash_seed(),
            tree_hash: HashVersion::new(version, unsigned_hash),
            listing_hash: HashVersion::new(1, unsigned_hash).ok_or(Errno::EIO)?,
            unsigned_hash,
            dir_index: superblock.has_compat(Compat::DIR_INDEX),
            tree_levels: if superblock.has_incompat(Incompat::LARGE_DIR) { 2 } else { 1 },
            dir_nlink: superblock.has_ro_compat(RoCompat::DIR_NLINK),
            extra_isize: superblock.want_extra_isize().max(32),
            extents: superblock.has_incompat(Incompat::EXTENTS),
            ea_inode: superblock.has_incompat(Incompat::EA_INODE),
            map_bytes_max: blockmap::bytes_max(block_bytes, huge_file),
            kept_for: superblock.blocks_kept_for(),
            bsd_groups: superblock.wants_bsd_groups(),
            projects: superblock.has_ro_compat(RoCompat::PROJECT),
        })
    }
}

/// The shared state of an open file system. Nothing here is global.
pub struct Volume {
    /// The device.
    pub io: Arc<BlockIo>,
    /// Metadata blocks.
    pub cache: Arc<BlockCache>,
    /// Free space.
    pub alloc: Allocator,
    /// The journal; `None` when open for reading only.
    pub journal: Option<Journal>,
    /// Geometry of the image.
    pub geometry: Geometry,
    /// Blocks that no tenant's file can have: the format's own and the journal.
    pub overhead_blocks: u64,
    /// Seed of all checksums.
    pub seed: u32,
    /// Whether metadata carries checksums.
    pub has_sums: bool,
    /// How names are kept and inodes made.
    pub traits: Traits,
    /// What is freed is discarded.
    pub discard: bool,
    /// What is known of a new block's data when it becomes a file's.
    pub data: DataMode,
    /// Why the bytes of writes went where they went.
    pub reasons: Reasons,
    /// The superblock; counters in it are brought up to date at unmount.
    pub superblock: Mutex<Superblock>,
    /// What users, groups and projects take, where the image keeps it.
    pub accounts: Option<Box<dyn Accounts>>,
    /// Inodes in use.
    pub inodes: InodeTable,
    /// Inodes that a power cut must not leave as they are.
    pub orphans: Mutex<Orphans>,
    /// Seed of new inodes' generations.
    pub generation: AtomicU32,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// The medium had no room lately, and when.
    pub full: AtomicBool,
    /// See `full`.
    pub full_since: Mutex<Option<Instant>>,
    /// The image says that it has files past 2 GiB (`large_file`).
    pub large_file: AtomicBool,
    /// The image says that it has extended attributes (`ext_attr`).
    pub ext_attr: AtomicBool,
    /// The damage that stopped the file system was written down.
    pub damage_recorded: AtomicBool,
    /// Inodes of values of attributes that no attribute holds any more, to be freed.
    pub unused_values: Mutex<Vec<u32>>,
}

/// Largest file that needs no `large_file`: sizes below have 31 bits.
const SMALL_FILE_MAX: u64 = i32::MAX as u64;

/// How long writers are refused after the medium had no room.
const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Volume {
    /// Starts a change of at most `credits` metadata blocks.
    ///
    /// # Errors
    /// `EROFS` when open for reading only, [`Error::Stopped`] after a failure.
    pub fn start<'a>(&'a self, ctx: &OpCtx<'a>, credits: usize) -> Result<Handle<'a>> {
        match &self.journal {
            Some(journal) if self.accounts.is_some() => {
                journal.start(ctx, credits + ACCOUNT_CREDITS)
            }
            Some(journal) => journal.start(ctx, credits),
            None => Err(Errno::EROFS.into()),
        }
    }

    /// Prepares for inodes of a user, a group and a project. Call without a handle.
    ///
    /// # Errors
    /// `ENOSPC`, the device's, or damaged quota files.
    pub fn enter(&self, ctx: &OpCtx<'_>, ids: [u32; 3]) -> Result<()> {
        self.accounts.as_ref().map_or(Ok(()), |accounts| accounts.enter(ctx, self, ids))
    }

    /// The cell of `ino`, read from the inode table if need be. A free inode is `ESTALE`.
    ///
    /// # Errors
    /// The device's, or a corrupt inode.
    pub fn cell(&self, ino: u32) -> Result<Arc<Cell>> {
        if let Some(cell) = self.inodes.get(ino) {
            return Ok(cell);
        }
        self.read_cell(ino, false)
    }

    /// The same of an orphan, which may hold a value of an attribute.
    ///
    /// # Errors
    /// As [`Volume::cell`].
    pub fn orphan_cell(&self, ino: u32) -> Result<Arc<Cell>> {
        match self.inodes.get(ino) {
            Some(cell) => Ok(cell),
            None => self.read_cell(ino, self.traits.ea_inode),
        }
    }

    /// The inode that holds a value of an attribute.
    ///
    /// # Errors
    /// The device's, or an inode that holds none.
    pub fn value_inode(&self, ino: u32) -> Result<RawInode> {
        let none = || Corrupt::new(Structure::Inode, ino.into(), "holds no value of an attribute");
        if !in_range(&self.geometry, ino) || !self.traits.ea_inode {
            return Err(none().into());
        }
        let (raw, _) = self.read_raw(ino)?;
        match raw.mode() >> 12 == 8
            && raw.has_flag(InodeFlags::EA_INODE)
            && raw.has_flag(InodeFlags::EXTENTS)
        {
            true => Ok(raw),
            false => Err(none().into()),
        }
    }

    fn read_cell(&self, ino: u32, may_hold_value: bool) -> Result<Arc<Cell>> {
        if !in_range(&self.geometry, ino) {
            return Err(Errno::ESTALE.into());
        }
        let (raw, block) = self.read_raw(ino)?;
        if raw.mode() == 0 {
            return Err(Errno::ESTALE.into());
        }
        if raw.has_flag(InodeFlags::EA_INODE) && !may_hold_value {
            return Err(Corrupt::new(Structure::Inode, ino.into(), "holds an attribute").into());
        }
        let cell = Cell::new(ino, self.seed, raw);
        if let Some(accounts) = &self.accounts {
            let mut core = cell.core.write();
            core.values = accounts.values(self, &cell, &core)?;
            core.charged = Charge::of(&core.raw, core.values, self.geometry.block_bytes);
            self.owe(&cell, core.charged.ids);
        }
        if let Some(journal) = &self.journal {
            // What was changed before the inode was forgotten may not have committed yet.
            cell.note_change(journal.latest(&block), true);
        }
        Ok(self.inodes.enter(cell))
    }

    /// An inode of the table, checked unless it is free, and the block that it is in.
    fn read_raw(&self, ino: u32) -> Result<(RawInode, Arc<MetaBlock>)> {
        let (block, offset) = self.table_block(ino)?;
        let bytes = usize::from(self.geometry.inode_bytes);
        let data = block.read();
        let raw = RawInode::from_bytes(&data[offset..offset + bytes]);
        // One that was stored and not yet committed has no checksum to look at.
        let sums = self.has_sums && !block.is_stored(offset / bytes);
        drop(data);
        if raw.mode() != 0 {
            check(&self.geometry, sums.then_some(self.seed), ino, &raw)?;
        }
        Ok((raw, block))
    }

    fn table_block(&self, ino: u32) -> Result<(Arc<MetaBlock>, usize)> {
        let (home, offset) = self.alloc.inode_place(ino);
        let bytes = usize::from(self.geometry.inode_bytes);
        let seal = self.alloc.table_seal(ino - (offset / bytes) as u32);
        Ok((self.cache.get(&self.io, home, seal, |_| Ok(()))?, offset))
    }

    /// Puts the inode into the inode table, as part of the handle's transaction. `data`: fdatasync
    /// must save this change.
    ///
    /// # Errors
    /// The device's.
    pub fn store(
        &self,
        handle: &Handle<'_>,
        cell: &Cell,
        core: &mut Core,
        data: bool,
    ) -> Result<()> {
        let (block, offset) = self.table_block(cell.ino)?;
        if core.raw.size() > SMALL_FILE_MAX && !self.large_file.load(Ordering::Relaxed) {
            self.note_large_file(handle)?;
        }
        if let Some(next) = cell.next_orphan() {
            core.raw.set_dtime(next);
        }
        if let Some(accounts) = &self.accounts {
            accounts.settle(self, handle, cell, core)?;
        }
        let bytes = core.raw.bytes();
        let mut table = handle.modify(&block);
        table[offset..offset + bytes.len()].copy_from_slice(bytes);
        block.note_stored(offset / bytes.len());
        drop(table);
        cell.note_change(handle.tid(), data);
        Ok(())
    }

    /// Says in the superblock that there are files past 2 GiB, in the transaction that makes the
    /// first one, as Linux does.
    fn note_large_file(&self, handle: &Handle<'_>) -> Result<()> {
        self.note_feature(handle, &self.large_file, Superblock::set_large_file)
    }

    /// The same of extended attributes: without the feature e2fsck takes them for damage.
    ///
    /// # Errors
    /// The device's.
    pub fn note_ext_attr(&self, handle: &Handle<'_>) -> Result<()> {
        match self.ext_attr.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.note_feature(handle, &self.ext_attr, Superblock::set_ext_attr),
        }
    }

    fn note_feature(
        &self,
        handle: &Handle<'_>,
        noted: &AtomicBool,
        set: fn(&mut Superblock),
    ) -> Result<()> {
        let mut superblock = self.superblock.lock();
        set(&mut superblock);
        orphan::log_superblock(self, handle, &superblock)?;
        noted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Makes orphan `ino` point to `next` in the inode table. For the handle that seals a
    /// transaction: nobody else is at the table then.
    ///
    /// # Errors
    /// The device's.
    pub fn set_next_orphan(&self, handle: &Handle<'_>, ino: u32, next: u32) -> Result<()> {
        self.change_raw(handle, ino, |raw| raw.set_dtime(next))?;
        if let Some(cell) = self.inodes.get(ino) {
            cell.chain(Some(next));
        }
        Ok(())
    }

    /// Changes an inode in the table, and returns it. For inodes that no other handle changes now.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn change_raw(
        &self,
        handle: &Handle<'_>,
        ino: u32,
        change: impl FnOnce(&mut RawInode),
    ) -> Result<RawInode> {
        let (block, offset) = self.table_block(ino)?;
        let bytes = usize::from(self.geometry.inode_bytes);
        let mut data = handle.modify(&block);
        let mut raw = RawInode::from_bytes(&data[offset..offset + bytes]);
        change(&mut raw);
        data[offset..offset + bytes].copy_from_slice(raw.bytes());
        block.note_stored(offset / bytes);
        Ok(raw)
    }

    /// Promises `count` free blocks to the maps of files. Call without a handle.
    ///
    /// # Errors
    /// `ENOSPC`, or the device's.
    pub fn promise(&self, count: u64) -> Result<Promise<'_>> {
        self.with_space(|| self.alloc.promise(count, Blocks::Kept))
    }

    /// Promises `count` free blocks to an operation's names and attributes, of those that it may
    /// take. Call without a handle.
    ///
    /// # Errors
    /// `ENOSPC`, or the device's.
    pub fn promise_to(&self, ctx: &OpCtx<'_>, count: u64) -> Result<Promise<'_>> {
        self.with_space(|| self.alloc.promise(count, self.blocks_for(ctx)))
    }

    /// Which free blocks an operation may take: as Linux, the superuser's and those of the user and
    /// group of the superblock, by who they are on the host.
    pub fn blocks_for(&self, ctx: &OpCtx<'_>) -> Blocks {
        let (uid, gid) = self.traits.kept_for;
        let own = ctx.host_uid() == uid || gid != Gid(0) && ctx.in_host_group(gid);
        if ctx.has_sys_resource() || own { Blocks::Kept } else { Blocks::Common }
    }

    /// Runs `attempt`; when space runs out while some is on its way back, commits and tries once
    /// more, or twice: a checkpoint that began meanwhile may have kept it back. Call without a
    /// handle.
    ///
    /// # Errors
    /// The attempt's, or the device's.
    pub fn with_space<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..2 {
            match (attempt(), &self.journal) {
                (Err(Error::Errno(Errno::ENOSPC)), Some(journal)) if journal.freeing() > 0 => {
                    journal.commit(self)?;
                }
                (result, _) => return result,
            }
        }
        attempt()
    }

    /// Claims blocks for a file by `claim`, which is given the place to begin at: `goal`, and the
    /// first group where the file's map cannot name what was found there.
    ///
    /// # Errors
    /// `claim`'s, or `ENOSPC`.
    pub fn claim_for(
        &self,
        core: &Core,
        goal: DeviceBlock,
        claim: impl Fn(DeviceBlock) -> Result<Claim>,
    ) -> Result<Claim> {
        for goal in [goal, DeviceBlock(0)] {
            let found = claim(goal)?;
            if extents::is_tree(core) || blockmap::can_name(&found) {
                return Ok(found);
            }
            self.alloc.unclaim(found);
        }
        Err(Errno::ENOSPC.into())
    }

    /// Allocates one metadata block near `goal` that the file's map is to name.
    ///
    /// # Errors
    /// As [`Allocator::claim`].
    pub fn allocate(
        &self,
        handle: &Handle<'_>,
        core: &Core,
        goal: DeviceBlock,
    ) -> Result<DeviceBlock> {
        let claim = self.claim_for(core, goal, |goal| self.alloc.claim(goal, 1))?;
        let block = claim.start;
        self.alloc.mark(handle, claim);
        Ok(block)
    }

    /// Bytes of the largest file that the map of an inode can hold.
    pub fn max_file_bytes(&self, cell: &Cell) -> u64 {
        match cell.is_mapped {
            true => self.traits.map_bytes_max,
            false => self.geometry.file_bytes_max,
        }
    }

    /// Where blocks of `ino` should go: the group of its inode.
    pub fn goal(&self, ino: u32) -> DeviceBlock {
        let group = GroupIndex((ino - 1) / self.geometry.inodes_per_group);
        DeviceBlock(self.geometry.first_block(group))
    }

    /// A generation for a new inode: differs from its former owners' with all but certainty.
    pub fn next_generation(&self) -> u32 {
        let step = self.generation.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        step ^ self.clock.now().nsec
    }

    /// The time of an operation's changes.
    pub fn now(&self, ctx: &OpCtx<'_>) -> Time {
        ctx.now(&*self.clock)
    }

    /// Turns a failure of the medium or the format into a stop: nothing is written any more but,
    /// for damage, that e2fsck is wanted. Ordinary refusals pass through, and so does a medium
    /// without room. Call without locks.
    pub fn stop_on<T>(&self, result: Result<T>) -> Result<T> {
        let (Err(why), Some(journal)) = (&result, &self.journal) else { return result };
        match why {
            Error::Device(DeviceError::NoSpace) => self.note_full(),
            Error::Device(_) => journal.stop(Some(why)),
            Error::Corrupt(corrupt) => {
                journal.stop(Some(why));
                damage::record(self, corrupt);
            }
            _ => {}
        }
        result
    }

    fn note_full(&self) {
        *self.full_since.lock() = Some(Instant::now());
        self.full.store(true, Ordering::Release);
    }

    /// Notes that the medium got so many blocks back.
    pub fn found_room(&self, blocks: u64) {
        if blocks > 0 {
            self.note_room();
        }
    }

    /// Notes that a write found room.
    pub fn note_room(&self) {
        if self.full.load(Ordering::Relaxed) {
            self.full.store(false, Ordering::Release);
        }
    }

    /// Whether the medium had no room for something within the last second. Writers are then told
    /// before what they write becomes dirty pages; once a second one finds out whether there is
    /// room again.
    pub fn is_medium_full(&self) -> bool {
        if !self.full.load(Ordering::Acquire) {
            return false;
        }
        let since = self.full_since.lock();
        let full = since.is_some_and(|since| since.elapsed() < FULL_PAUSE);
        if !full {
            self.full.store(false, Ordering::Release);
        }
        full
    }
}
