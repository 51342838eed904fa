//! Inline data: contents in the inode itself, the first 60 bytes in `i_block`, what follows in the
//! value of the attribute `system.data`, which always lies in the inode.
//!
//! ```text
//! file, symbolic link   the first i_size bytes of both
//! directory             inode of the parent, then 56 bytes of entries; more entries in the value.
//!                       Each part is filled by its records; `.` and `..` are not there
//! ```
//! What is there is read, and names are removed and changed in place. All that may need more room
//! moves the contents to a block of their own first: nothing of ours becomes inline. A directory
//! is seen as the block that it then becomes, so that its index in memory stays right.

use polylane_base::record;
use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;

use crate::cache::{MetaBlock, Seal};
use crate::data::{self, map_credits};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents;
use crate::format::FileBlock;
use crate::format::dirent::{self, Entries};
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::xattr::{self, Attribute};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::ops::NAME_CREDITS;
use crate::volume::Volume;
use polylane_vfs::OpCtx;
use zerocopy::little_endian::U32;

/// A directory's parent, before its entries.
type ParentRecord = U32;
/// Its bytes.
const PARENT_BYTES: usize = size_of::<ParentRecord>();

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::Inode, cell.ino.into(), field).into()
}

/// Whether an inode's contents are inline.
pub fn is(core: &Core) -> bool {
    core.raw.has_flag(InodeFlags::INLINE_DATA)
}

fn attributes(cell: &Cell, core: &Core) -> Result<Vec<Attribute>> {
    let decoded = xattr::decode_inode(core.raw.xattr_area());
    decoded.map_err(|field| Corrupt::new(Structure::Xattr, cell.ino.into(), field).into())
}

/// The bytes of a file or a target.
///
/// # Errors
/// A size that the inode cannot hold, or corrupt attributes.
pub fn content(cell: &Cell, core: &Core) -> Result<Vec<u8>> {
    let mut bytes = core.raw.block().to_vec();
    let more = attributes(cell, core)?.into_iter().find(Attribute::is_inline_data);
    bytes.extend(more.map(|more| more.value).unwrap_or_default());
    match usize::try_from(core.raw.size()) {
        Ok(size) if size <= bytes.len() => {
            bytes.truncate(size);
            Ok(bytes)
        }
        _ => Err(corrupt(cell, "i_size: more than is inline")),
    }
}

/// A directory as the block that it will be.
///
/// # Errors
/// Broken entries, or corrupt attributes.
pub fn directory(volume: &Volume, cell: &Cell, core: &Core) -> Result<Buffer> {
    let (block_bytes, has_sums) = (volume.io.block_bytes(), volume.has_sums);
    let mut block = Buffer::zeroed(block_bytes);
    dirent::put_first(&mut block, has_sums, cell.ino, parent(core));
    let more = attributes(cell, core)?.into_iter().find(Attribute::is_inline_data);
    let more = more.map(|more| more.value).unwrap_or_default();
    for part in [&core.raw.block()[PARENT_BYTES..], &more] {
        for entry in Entries::new(part, false) {
            let entry = entry.map_err(|field| corrupt(cell, field))?;
            if entry.ino == 0 {
                continue;
            }
            let entry = (entry.ino, entry.file_type, entry.name);
            let put = dirent::insert(&mut block, has_sums, 0, entry);
            put.map_err(|field| corrupt(cell, field))?
                .ok_or_else(|| corrupt(cell, "inline entries outgrow a block"))?;
        }
    }
    Ok(block)
}

/// The directory as a block in memory, to look into.
///
/// # Errors
/// As [`directory`].
pub fn directory_block(volume: &Volume, cell: &Cell, core: &Core) -> Result<Arc<MetaBlock>> {
    Ok(MetaBlock::apart(directory(volume, cell, core)?))
}

/// Changes the entry of `name` where it lies. The caller stores the inode, and builds the
/// directory's index anew.
fn change_entry(
    cell: &Cell,
    core: &mut Core,
    name: &[u8],
    change: impl Fn(&mut [u8], usize) -> Result<(), &'static str>,
) -> Result<()> {
    let find = |part: &[u8]| -> Result<Option<usize>> {
        for entry in Entries::new(part, false) {
            let entry = entry.map_err(|field| corrupt(cell, field))?;
            if entry.ino != 0 && entry.name == name {
                return Ok(Some(entry.offset));
            }
        }
        Ok(None)
    };
    core.index = None;
    if let Some(at) = find(&core.raw.block()[PARENT_BYTES..])? {
        let part = &mut core.raw.block_mut()[PARENT_BYTES..];
        return change(part, at).map_err(|field| corrupt(cell, field));
    }
    let mut all = attributes(cell, core)?;
    for more in all.iter_mut().filter(|attribute| attribute.is_inline_data()) {
        let Some(at) = find(&more.value)? else { continue };
        change(&mut more.value, at).map_err(|field| corrupt(cell, field))?;
        return put_attributes(cell, core, &all);
    }
    Err(corrupt(cell, "inline entry is gone"))
}

fn put_attributes(cell: &Cell, core: &mut Core, all: &[Attribute]) -> Result<()> {
    match xattr::encode_inode(core.raw.xattr_area_mut(), all) {
        true => Ok(()),
        false => Err(corrupt(cell, "attributes outgrow the inode")),
    }
}

/// Removes a name. The caller stores the inode.
///
/// # Errors
/// Broken entries, or corrupt attributes.
pub fn remove_name(cell: &Cell, core: &mut Core, name: &[u8]) -> Result<()> {
    change_entry(cell, core, name, |part, at| dirent::remove(part, false, at).map(drop))
}

/// Makes a name mean another inode. The caller stores the inode.
///
/// # Errors
/// As [`remove_name`].
pub fn set_target(cell: &Cell, core: &mut Core, name: &[u8], (ino, kind): (u32, u8)) -> Result<()> {
    change_entry(cell, core, name, |part, at| {
        dirent::set_target(part, at, ino, kind);
        Ok(())
    })
}

/// The directory that `..` names.
pub fn parent(core: &Core) -> u32 {
    record::at::<ParentRecord>(core.raw.block(), 0).get()
}

/// Makes `..` name `parent`. The caller stores the inode.
pub fn set_parent(core: &mut Core, parent: u32) {
    record::at_mut::<ParentRecord>(core.raw.block_mut(), 0).set(parent);
    core.index = None;
}

/// The inode holds no contents any more, but an empty tree.
fn give_tree(cell: &Cell, core: &mut Core) -> Result<()> {
    let mut rest = attributes(cell, core)?;
    rest.retain(|attribute| !attribute.is_inline_data());
    put_attributes(cell, core, &rest)?;
    core.raw.set_flag(InodeFlags::INLINE_DATA, false);
    core.raw.set_flag(InodeFlags::EXTENTS, true);
    extents::init(core);
    Ok(())
}

/// Moves the contents to a block of their own, if they are inline. Call without a handle.
///
/// # Errors
/// `ENOSPC`, the device's, or what is inline is corrupt: nothing has changed then.
pub fn move_out(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, core: &mut Core) -> Result<()> {
    if !is(core) {
        return Ok(());
    }
    let promise = volume.promise(1)?;
    match core.raw.mode() >> 12 {
        4 | 10 => {
            let handle = volume.start(ctx, NAME_CREDITS)?;
            match core.raw.mode() >> 12 {
                4 => move_out_directory(volume, &handle, cell, core)?,
                _ => {
                    let target = content(cell, core)?;
                    move_out_block(volume, &handle, cell, core, (&target, Seal::None))?;
                }
            }
            volume.store(&handle, cell, core, true)?;
            handle.complete();
        }
        _ => move_out_file(ctx, volume, cell, core)?,
    }
    drop(promise);
    Ok(())
}

/// Data is on the medium before the inode names it, as with all new blocks.
fn move_out_file(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, core: &mut Core) -> Result<()> {
    let bytes = content(cell, core)?;
    if bytes.is_empty() {
        let handle = volume.start(ctx, data::INODE_CREDITS)?;
        give_tree(cell, core)?;
        volume.store(&handle, cell, core, true)?;
        handle.complete();
        return Ok(());
    }
    let mut block = volume.io.buffer(volume.io.block_bytes());
    block.fill(0);
    block[..bytes.len()].copy_from_slice(&bytes);
    let claim = volume.alloc.claim(volume.goal(cell.ino), 1)?;
    let written = volume.io.write(claim.start, block).map_err(Error::from);
    let credits = map_credits(core);
    let started =
        written.map(|block| volume.io.keep_buffer(block)).and_then(|()| volume.start(ctx, credits));
    if started.is_ok() {
        give_tree(cell, core)?;
    }
    let first = FileBlock(0);
    let (handle, _) = data::link_claim(volume, cell, core, (claim, started), first, false)?;
    volume.store(&handle, cell, core, true)?;
    handle.complete();
    Ok(())
}

/// Moves a directory's entries to a block of their own, if they are inline. A block was promised;
/// the caller stores the inode.
///
/// # Errors
/// `ENOSPC`, the device's, or what is inline is corrupt: nothing has changed then.
pub fn move_out_directory(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
) -> Result<()> {
    if !is(core) {
        return Ok(());
    }
    let block = directory(volume, cell, core)?;
    let seal = if volume.has_sums { Seal::Directory(cell.seed) } else { Seal::None };
    move_out_block(volume, handle, cell, core, (&block, seal))?;
    core.raw.set_size(volume.geometry.block_bytes.into());
    Ok(())
}

fn move_out_block(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    (bytes, seal): (&[u8], Seal),
) -> Result<()> {
    let claim = volume.alloc.claim(volume.goal(cell.ino), 1)?;
    let start = claim.start;
    volume.alloc.mark(handle, claim);
    give_tree(cell, core)?;
    let extent = Extent { first: FileBlock(0), count: 1, start, unwritten: false };
    extents::insert(volume, handle, cell, core, extent)?;
    core.add_blocks(1, volume.geometry.block_bytes);
    let block = volume.cache.create(&volume.io, start, seal);
    handle.modify(&block)[..bytes.len()].copy_from_slice(bytes);
    Ok(())
}
