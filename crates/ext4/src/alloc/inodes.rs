//! Inode numbers: a bitmap per group.

use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_base::sync::Arc;

use super::{Allocator, Group};
use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Result, Structure};
use crate::format::group::GroupFlags;
use crate::format::{DeviceBlock, GroupIndex, bitmap};
use crate::journal::Handle;

impl Allocator {
    /// Allocates an inode near `parent`; directories at the top are spread over the groups,
    /// everything else stays in its directory's group if that has room.
    ///
    /// # Errors
    /// `ENOSPC`, the device's, or a corrupt bitmap.
    pub fn allocate_inode(
        &self,
        handle: &Handle<'_>,
        parent: u32,
        is_dir: bool,
        spread: bool,
    ) -> Result<u32> {
        self.take_inode()?;
        let found = self.find_inode(handle, parent, is_dir, spread);
        if found.is_err() {
            self.free_inodes.fetch_add(1, Ordering::AcqRel);
        }
        found
    }

    /// Allocates an inode that is not a directory near `parent`, one of those that were promised.
    /// The promise is the caller's to end.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn allocate_promised_inode(&self, handle: &Handle<'_>, parent: u32) -> Result<u32> {
        let found = self.find_inode(handle, parent, false, false)?;
        self.free_inodes.fetch_sub(1, Ordering::AcqRel);
        Ok(found)
    }

    fn find_inode(
        &self,
        handle: &Handle<'_>,
        parent: u32,
        is_dir: bool,
        spread: bool,
    ) -> Result<u32> {
        let near = GroupIndex((parent - 1) / self.geometry.inodes_per_group);
        let first = if is_dir && spread { self.emptiest() } else { near };
        for mut group in self.candidates(first) {
            let index = group.index;
            if group.descriptor.free_inodes() == 0 {
                continue;
            }
            let bits = self.load_inodes(&mut group)?;
            let floor = if index.0 == 0 { self.layout.superblock.first_inode() - 1 } else { 0 };
            let limit = self.geometry.inodes_per_group;
            let floor = floor.max(group.first_free_inode);
            let found = bitmap::first_clear(&bits.read(), floor, limit);
            group.first_free_inode = found.map_or(limit, |bit| bit + 1);
            let Some(bit) = found else { continue };
            let ino = index.0 * limit + bit + 1;
            self.mark_inode(handle, &mut group, &bits, (ino, is_dir));
            return Ok(ino);
        }
        Err(Errno::ENOSPC.into())
    }

    /// Marks a free inode in use.
    fn mark_inode(
        &self,
        handle: &Handle<'_>,
        group: &mut Group,
        bits: &Arc<MetaBlock>,
        (ino, is_dir): (u32, bool),
    ) {
        let limit = self.geometry.inodes_per_group;
        let bit = (ino - 1) % limit;
        self.begin_table_block(&bits.read(), ino);
        bitmap::set(&mut handle.modify(bits), bit, 1);
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes().saturating_sub(1));
        descriptor.set_directories(descriptor.directories() + u32::from(is_dir));
        descriptor.set_unused_inodes(descriptor.unused_inodes().min(limit - bit - 1));
        descriptor.set_flags(descriptor.flags() & !GroupFlags::INODE_UNINIT);
        group.touch(handle);
    }

    /// Marks `ino` in use if it is free.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn take_inode_number(&self, handle: &Handle<'_>, ino: u32, is_dir: bool) -> Result<()> {
        let per_group = self.geometry.inodes_per_group;
        let mut group = self.group(GroupIndex((ino - 1) / per_group));
        let bits = self.load_inodes(&mut group)?;
        let used = bitmap::get(&bits.read(), (ino - 1) % per_group);
        if !used {
            self.mark_inode(handle, &mut group, &bits, (ino, is_dir));
            self.free_inodes.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Frees an inode.
    ///
    /// # Errors
    /// The device's, or a bitmap that says it is free already.
    pub fn free_inode(&self, handle: &Handle<'_>, ino: u32, is_dir: bool) -> Result<()> {
        let per_group = self.geometry.inodes_per_group;
        let (index, bit) = (GroupIndex((ino - 1) / per_group), (ino - 1) % per_group);
        let mut group = self.group(index);
        let bits = self.load_inodes(&mut group)?;
        if !bitmap::get(&bits.read(), bit) {
            let field = "freed inode is free already";
            return Err(Corrupt::new(Structure::InodeBitmap, index.0.into(), field).into());
        }
        bitmap::clear(&mut handle.modify(&bits), bit, 1);
        group.first_free_inode = group.first_free_inode.min(bit);
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes() + 1);
        let directories = descriptor.directories().saturating_sub(is_dir.into());
        descriptor.set_directories(directories);
        group.touch(handle);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn emptiest(&self) -> GroupIndex {
        let free = |index: &GroupIndex| {
            let group = self.group(*index);
            (group.descriptor.free_inodes(), std::cmp::Reverse(group.descriptor.directories()))
        };
        let all = (0..self.geometry.group_count).map(GroupIndex);
        all.max_by_key(free).unwrap_or_default()
    }

    fn load_inodes(&self, group: &mut Group) -> Result<Arc<MetaBlock>> {
        if let Some(bits) = &group.inodes {
            return Ok(bits.clone());
        }
        let home = group.descriptor.inode_bitmap();
        let per_group = self.geometry.inodes_per_group;
        let block = if group.descriptor.flags().contains(GroupFlags::INODE_UNINIT) {
            let block = self.cache.create(&self.io, home, Seal::None);
            let mut bits = block.data.write();
            let end = bits.len() as u32 * 8;
            bitmap::set(&mut bits, per_group, end - per_group);
            drop(bits);
            block
        } else {
            self.cache.get(&self.io, home, Seal::None, |bits| {
                let sum = self.inodes_sum(bits);
                let stored = group.descriptor.inode_bitmap_checksum();
                match !self.layout.has_sums || group.descriptor.checksum_matches(stored, sum) {
                    true => Ok(()),
                    false => {
                        let object = group.index.0.into();
                        Err(Corrupt::new(Structure::InodeBitmap, object, "checksum").into())
                    }
                }
            })?
        };
        group.inodes = Some(block.clone());
        Ok(block)
    }

    /// Whether `ino` is marked in use.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn inode_in_use(&self, ino: u32) -> Result<bool> {
        let per_group = self.geometry.inodes_per_group;
        let mut group = self.group(GroupIndex((ino - 1) / per_group));
        let bits = self.load_inodes(&mut group)?;
        let used = bitmap::get(&bits.read(), (ino - 1) % per_group);
        Ok(used)
    }

    /// Before `ino` is marked in use: a block of the inode table in which no inode is in use need
    /// not be read, since what is there means nothing. Under the group's lock, so that nobody has
    /// stored another inode in it meanwhile.
    fn begin_table_block(&self, bits: &[u8], ino: u32) {
        let bytes = u32::from(self.geometry.inode_bytes);
        let (home, offset) = self.inode_place(ino);
        let index = offset as u32 / bytes;
        let first_bit = (ino - 1) % self.geometry.inodes_per_group - index;
        let in_block = self.geometry.block_bytes / bytes;
        let count = in_block.min(self.geometry.inodes_per_group - first_bit);
        if bitmap::all_clear(bits, first_bit, count) && self.cache.peek(home).is_none() {
            self.cache.create(&self.io, home, self.table_seal(ino - index));
        }
    }

    /// How a block of the inode table is sealed whose first inode is `first`.
    pub fn table_seal(&self, first: u32) -> Seal {
        match self.layout.has_sums {
            true => Seal::Inodes(self.layout.seed, first, self.geometry.inode_bytes.into()),
            false => Seal::None,
        }
    }

    /// Where `ino` lies: the block of the inode table and the offset in it.
    pub fn inode_place(&self, ino: u32) -> (DeviceBlock, usize) {
        let per_group = self.geometry.inodes_per_group;
        let table = self.inode_tables[((ino - 1) / per_group) as usize];
        let byte = u64::from((ino - 1) % per_group) * u64::from(self.geometry.inode_bytes);
        let block_bytes = u64::from(self.geometry.block_bytes);
        (DeviceBlock(table.0 + byte / block_bytes), (byte % block_bytes) as usize)
    }
}
