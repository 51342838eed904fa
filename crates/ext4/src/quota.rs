//! What users, groups and projects take (`quota`, `project`), kept in the image's quota files.
//!
//! Every change of an inode's owner, project, blocks or existence comes to [`Volume::store`] in a
//! handle; [`Accounts::settle`] compares it with what was charged and changes the entries in the
//! same transaction. So the files are right in every state that a power cut leaves. Entries of ids
//! that have none are made ahead by [`Accounts::enter`], in a handle of their own, and stay.
//!
//! Limits are enforced where the image's own mount options say so ([`crate::limits`]).
//!
//! # Locking
//!
//! `cell → handle → promised → ledger → a quota file → that file's cell → block`. A quota file's
//! cell is locked by nobody else, and stored without the ledger.

use polylane_base::sync::{Arc, Mutex};
use polylane_vfs::OpCtx;
use rustc_hash::FxHashMap;

use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Result, Structure};
use crate::extents::{self, Mapping};
use crate::format::FileBlock;
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::quota::{self, BLOCK_BYTES, Charge, Head, Info, Limit, QuotaKind};
use crate::format::superblock::Superblock;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::limits::{Ids, Ledger, Owed, Owner};
use crate::volume::{Accounts, Volume};
use crate::xattr;

/// Blocks that a new entry changes, those for room included.
const ENTER_CREDITS: usize = 40;
/// Blocks that a new entry takes at most: its own, four levels, and of the file's map.
const ENTER_BLOCKS: u64 = 10;

/// The quota files of an image.
pub struct Quotas {
    files: Vec<QuotaFile>,
    /// Inodes that are charged: the root, and those from here on which hold no quotas.
    first_inode: u32,
    /// Where a limit of any kind is enforced.
    owed: Option<Arc<Owed>>,
}

struct QuotaFile {
    kind: QuotaKind,
    cell: Arc<Cell>,
    /// Where the entry of each id is: a block and a place in it.
    entries: Mutex<FxHashMap<u32, (u32, usize)>>,
    /// Grace times in seconds of bytes and inodes, where limits are enforced.
    graces: Option<[u64; 2]>,
}

/// A block of a quota file: of the file system's, which holds it, and where it begins there.
struct Place {
    block: Arc<MetaBlock>,
    at: usize,
}

impl Place {
    fn look<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&self.block.read()[self.at..self.at + BLOCK_BYTES])
    }

    fn change<T>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut [u8]) -> T) -> T {
        change(&mut handle.modify(&self.block)[self.at..self.at + BLOCK_BYTES])
    }
}

impl Quotas {
    /// Of an image that is opened; `None`: it has none.
    ///
    /// # Errors
    /// The device's, or damaged quota files.
    pub fn open(volume: &Volume, superblock: &Superblock) -> Result<Option<Quotas>> {
        let mut files = Vec::new();
        for kind in QuotaKind::ALL {
            let ino = superblock.quota_inode(kind);
            if ino != 0 {
                let is_limited = superblock.asks_for_limits(kind);
                files.push(QuotaFile::open(volume, kind, ino, is_limited)?);
            }
        }
        let first_inode = superblock.first_inode();
        let owed = files.iter().any(|file| file.graces.is_some()).then(Arc::default);
        Ok((!files.is_empty()).then_some(Quotas { files, first_inode, owed }))
    }

    fn counts(&self, ino: u32) -> bool {
        let holds = |file: &QuotaFile| file.cell.ino == ino;
        (ino == 2 || ino >= self.first_inode) && !self.files.iter().any(holds)
    }
}

impl Accounts for Quotas {
    fn owed(&self) -> Option<&Arc<Owed>> {
        self.owed.as_ref()
    }

    fn allow(
        &self,
        ctx: &OpCtx<'_>,
        volume: &Volume,
        ledger: &Ledger,
        ids: Ids,
        (blocks, inodes): (u64, u64),
    ) -> Result<bool> {
        let block_bytes = u64::from(volume.geometry.block_bytes);
        let bytes = blocks.saturating_mul(block_bytes);
        let now = volume.now(ctx).sec as u64;
        for file in self.files.iter().filter(|file| file.graces.is_some()) {
            let Some(id) = ids[file.kind as usize] else { continue };
            let Some((number, index)) = file.entries.lock().get(&id).copied() else { continue };
            let place = file.place(volume, &file.cell.core.read(), number)?;
            let look = |block: &[u8]| (quota::limits(block, index), quota::usage(block, index));
            let ([of_bytes, of_inodes], (has_bytes, has_inodes)) = place.look(look);
            let (owed_blocks, owed_inodes) = ledger.of(file.kind, id);
            let owed_bytes = owed_blocks.saturating_mul(block_bytes);
            // What an image says may be any number.
            let all_bytes = has_bytes.saturating_add(owed_bytes).saturating_add(bytes);
            let all_inodes = has_inodes.saturating_add(owed_inodes).saturating_add(inodes);
            let refused = bytes > 0 && !of_bytes.allows(all_bytes, now)
                || inodes > 0 && !of_inodes.allows(all_inodes, now);
            if refused {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn values(&self, volume: &Volume, cell: &Cell, core: &Core) -> Result<u64> {
        match core.raw.has_flag(InodeFlags::EA_INODE) {
            true => Ok(0),
            false => xattr::values(volume, cell, core),
        }
    }

    fn project_room(&self, volume: &Volume, project: u32) -> Result<[Option<(u64, u64)>; 2]> {
        let (kind, none) = (QuotaKind::Project, Ok([None; 2]));
        let Some(owed) = &self.owed else { return none };
        let limited = |file: &&QuotaFile| file.kind == kind && file.graces.is_some();
        let Some(file) = self.files.iter().find(limited) else { return none };
        let Some((number, index)) = file.entries.lock().get(&project).copied() else { return none };
        let ledger = owed.lock();
        let place = file.place(volume, &file.cell.core.read(), number)?;
        let look = |block: &[u8]| (quota::limits(block, index), quota::usage(block, index));
        let ([of_bytes, of_inodes], (bytes, inodes)) = place.look(look);
        let (owed_blocks, _) = ledger.of(kind, project);
        let owed_bytes = owed_blocks.saturating_mul(volume.geometry.block_bytes.into());
        let left =
            |limit: Limit, taken| limit.lowest().map(|most| (most, most.saturating_sub(taken)));
        Ok([left(of_bytes, bytes.saturating_add(owed_bytes)), left(of_inodes, inodes)])
    }

    fn enter(&self, ctx: &OpCtx<'_>, volume: &Volume, ids: [u32; 3]) -> Result<()> {
        for file in &self.files {
            let id = ids[file.kind as usize];
            if !file.entries.lock().contains_key(&id) {
                let _promise = volume.promise(ENTER_BLOCKS)?;
                let handle = volume.start(ctx, ENTER_CREDITS)?;
                file.enter(volume, &handle, id)?;
                handle.complete();
            }
        }
        Ok(())
    }

    fn settle(
        &self,
        volume: &Volume,
        handle: &Handle<'_>,
        cell: &Cell,
        core: &mut Core,
    ) -> Result<()> {
        // A value counts for who has the attribute.
        if !self.counts(cell.ino) || core.raw.has_flag(InodeFlags::EA_INODE) {
            return Ok(());
        }
        let Some(owed) = &self.owed else { return self.charge(volume, handle, core) };
        let (booked, landed) = (std::mem::take(&mut core.booked), std::mem::take(&mut core.landed));
        let mut promised = cell.promised.lock();
        let mut ledger = owed.lock();
        let raw = &core.raw;
        if raw.mode() != 0 {
            let ids = [raw.uid(), raw.gid(), raw.project()];
            promised.owe_to(Owner::new(owed, ids), &mut ledger);
        }
        let charged = self.charge(volume, handle, core);
        promised.land(landed, &mut ledger);
        booked.settle(&mut ledger);
        charged
    }
}

impl Quotas {
    fn charge(&self, volume: &Volume, handle: &Handle<'_>, core: &mut Core) -> Result<()> {
        let block_bytes = volume.geometry.block_bytes;
        let (old, new) = (core.charged, Charge::of(&core.raw, core.values, block_bytes));
        if old == new {
            return Ok(());
        }
        core.charged = new;
        for file in &self.files {
            let (from, to) = (old.ids[file.kind as usize], new.ids[file.kind as usize]);
            if old.inodes > 0 && (from != to || new.inodes == 0) {
                file.charge(volume, handle, from, (old.bytes, old.inodes), (0, 0))?;
            }
            if new.inodes > 0 {
                let stays = old.inodes > 0 && from == to;
                let had = if stays { (old.bytes, old.inodes) } else { (0, 0) };
                file.charge(volume, handle, to, had, (new.bytes, new.inodes))?;
            }
        }
        Ok(())
    }
}

impl QuotaFile {
    fn open(volume: &Volume, kind: QuotaKind, ino: u32, is_limited: bool) -> Result<QuotaFile> {
        let cell = volume.cell(ino)?;
        let mut file = QuotaFile { kind, cell, entries: Mutex::default(), graces: None };
        if is_limited {
            let place = file.place(volume, &file.cell.core.read(), 0)?;
            file.graces = Some(place.look(quota::graces));
        }
        let mut entries = FxHashMap::default();
        file.read_tree(volume, quota::ROOT, 0, &mut entries)?;
        *file.entries.lock() = entries;
        Ok(file)
    }

    fn corrupt(&self, field: &'static str) -> crate::error::Error {
        Corrupt::new(Structure::Inode, self.cell.ino.into(), field).into()
    }

    fn info(&self, volume: &Volume, core: &Core) -> Result<(Place, Info)> {
        let place = self.place(volume, core, 0)?;
        let info = place.look(|block| Info::decode(block, self.kind));
        Ok((place, info.ok_or_else(|| self.corrupt("quota header"))?))
    }

    /// A block of the file.
    fn place(&self, volume: &Volume, core: &Core, number: u32) -> Result<Place> {
        let byte = u64::from(number) * BLOCK_BYTES as u64;
        let block_bytes = volume.io.block_bytes() as u64;
        let target = FileBlock((byte / block_bytes) as u32);
        match extents::map(volume, &self.cell, core, target)? {
            Mapping::Data(extent) if !extent.unwritten => {
                let block = volume.cache.get(&volume.io, extent.start, Seal::None, |_| Ok(()))?;
                Ok(Place { block, at: (byte % block_bytes) as usize })
            }
            _ => Err(self.corrupt("a hole among quotas")),
        }
    }

    /// Notes where all entries below a node are.
    fn read_tree(
        &self,
        volume: &Volume,
        number: u32,
        level: u32,
        entries: &mut FxHashMap<u32, (u32, usize)>,
    ) -> Result<()> {
        let core = self.cell.core.read();
        let (_, info) = self.info(volume, &core)?;
        let mut nodes = vec![(number, level)];
        let mut seen = rustc_hash::FxHashSet::default();
        while let Some((number, level)) = nodes.pop() {
            let place = self.place(volume, &core, number)?;
            if level == quota::LEVELS {
                place.look(|block| {
                    entries.extend(quota::ids(block).map(|(id, index)| (id, (number, index))));
                });
                continue;
            }
            let below = place.look(|block| {
                (0..BLOCK_BYTES).step_by(4).map(|at| quota::below(block, at)).collect::<Vec<_>>()
            });
            for number in below.into_iter().filter(|number| *number != 0) {
                if number <= quota::ROOT || number >= info.blocks {
                    return Err(self.corrupt("a block outside of quotas"));
                }
                if seen.insert(number) {
                    nodes.push((number, level + 1));
                } else if level + 1 < quota::LEVELS {
                    return Err(self.corrupt("a node of quotas twice"));
                }
            }
        }
        Ok(())
    }

    /// Changes what an id takes by the difference of two amounts of bytes and inodes. An id without
    /// an entry is damage that e2fsck mends.
    fn charge(
        &self,
        volume: &Volume,
        handle: &Handle<'_>,
        id: u32,
        (old_bytes, old_inodes): (u64, u64),
        (bytes, inodes): (u64, u64),
    ) -> Result<()> {
        let Some((number, index)) = self.entries.lock().get(&id).copied() else { return Ok(()) };
        let place = self.place(volume, &self.cell.core.read(), number)?;
        place.change(handle, |block| {
            let (has_bytes, has_inodes) = quota::usage(block, index);
            let less = (has_bytes.saturating_sub(old_bytes), has_inodes.saturating_sub(old_inodes));
            let now = (less.0.saturating_add(bytes), less.1.saturating_add(inodes));
            quota::set_usage(block, index, now);
            if let Some(graces) = self.graces {
                quota::set_times(block, index, volume.now(handle.ctx()).sec as u64, graces);
            }
        });
        Ok(())
    }

    /// Makes an entry, unless another thread did.
    fn enter(&self, volume: &Volume, handle: &Handle<'_>, id: u32) -> Result<()> {
        let mut entries = self.entries.lock();
        if entries.contains_key(&id) {
            return Ok(());
        }
        let mut core = self.cell.core.write();
        let (head, mut info) = self.info(volume, &core)?;
        let number = match info.free_entry {
            0 => {
                let number = self.new_block(volume, handle, &mut core, &mut info)?;
                info.free_entry = number;
                number
            }
            number => number,
        };
        let place = self.place(volume, &core, number)?;
        let (index, full, next) = place
            .change(handle, |block| {
                let index = quota::unused(block);
                let mut head = Head::decode(block);
                head.count += 1;
                let (full, next) = (usize::from(head.count) >= quota::ENTRIES, head.next);
                if full {
                    (head.next, head.before) = (0, 0);
                }
                head.encode(block);
                index
                    .inspect(|index| quota::begin(block, *index, id))
                    .map(|index| (index, full, next))
            })
            .ok_or_else(|| self.corrupt("a full block of quotas with room"))?;
        if full {
            info.free_entry = next;
            if next != 0 {
                self.place(volume, &core, next)?.change(handle, |block| {
                    Head { before: 0, ..Head::decode(block) }.encode(block);
                });
            }
        }
        self.name_block(volume, handle, (&mut core, &mut info), id, number)?;
        head.change(handle, |block| info.encode(block));
        volume.store(handle, &self.cell, &mut core, true)?;
        entries.insert(id, (number, index));
        Ok(())
    }

    /// Has the tree lead from `id` to a block of entries.
    fn name_block(
        &self,
        volume: &Volume,
        handle: &Handle<'_>,
        (core, info): (&mut Core, &mut Info),
        id: u32,
        leaf: u32,
    ) -> Result<()> {
        let mut node = quota::ROOT;
        for level in 0..quota::LEVELS {
            let place = self.place(volume, core, node)?;
            let slot = quota::slot(id, level);
            let last = level == quota::LEVELS - 1;
            let mut below = place.look(|block| quota::below(block, slot));
            if last || below == 0 {
                below = if last { leaf } else { self.new_block(volume, handle, core, info)? };
                place.change(handle, |block| quota::set_below(block, slot, below));
            }
            node = below;
        }
        Ok(())
    }

    /// A block of zeros: one that is not used any more, or one more at the end of the file.
    fn new_block(
        &self,
        volume: &Volume,
        handle: &Handle<'_>,
        core: &mut Core,
        info: &mut Info,
    ) -> Result<u32> {
        if info.free_block != 0 {
            let number = info.free_block;
            let place = self.place(volume, core, number)?;
            info.free_block = place.change(handle, |block| {
                let next = Head::decode(block).next;
                block.fill(0);
                next
            });
            return Ok(number);
        }
        let number = info.blocks;
        let end = (u64::from(number) + 1) * BLOCK_BYTES as u64;
        let first = FileBlock(((end - 1) / volume.io.block_bytes() as u64) as u32);
        if matches!(extents::map(volume, &self.cell, core, first)?, Mapping::Hole(_)) {
            let start = volume.allocate(handle, core, volume.goal(self.cell.ino))?;
            let extent = Extent { first, count: 1, start, unwritten: false };
            extents::insert(volume, handle, &self.cell, core, extent)?;
            core.add_blocks(1, volume.geometry.block_bytes);
            let block = volume.cache.create(&volume.io, start, Seal::None);
            drop(handle.modify(&block));
        }
        core.raw.set_size(core.raw.size().max(end));
        info.blocks += 1;
        let place = self.place(volume, core, number)?;
        place.change(handle, |block| block.fill(0));
        Ok(number)
    }
}
