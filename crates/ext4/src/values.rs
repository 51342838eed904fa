//! Values of attributes in inodes of their own (`ea_inode`): those that no block can hold.
//!
//! Such an inode is a file without a name. Its references are counted in the inode; its checksum is
//! crc32c over the value, by the file system's seed. Its blocks are metadata: they go through the
//! journal, and are revoked when they are freed. Several inodes may share one, which Linux makes so
//! and we do not. `i_blocks` of each inode that has the attribute counts the value's blocks.

use polylane_base::Time;

use crate::cache::Seal;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::{self, Mapping};
use crate::format::checksum::crc;
use crate::format::extent::Extent;
use crate::format::inode::{InodeFlags, RawInode, Stamp};
use crate::format::xattr::{Attribute, Outside, outside_hash};
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::ops;
use crate::orphan;
use crate::volume::Volume;
use polylane_vfs::OpCtx;

/// Longest value (`XATTR_SIZE_MAX`).
pub const VALUE_BYTES_MAX: usize = 64 << 10;

fn corrupt(ino: u32, field: &'static str) -> Error {
    Corrupt::new(Structure::Xattr, ino.into(), field).into()
}

/// The value that an inode holds for `owner`.
///
/// # Errors
/// The device's, or an inode that is none of a value, or of another one.
pub fn read(volume: &Volume, owner: u32, attribute: &Attribute) -> Result<Vec<u8>> {
    let Some(outside) = attribute.outside else { return Ok(attribute.value.clone()) };
    let (ino, size) = (outside.ino, outside.size as usize);
    let raw = volume.value_inode(ino)?;
    if size > VALUE_BYTES_MAX || raw.size() != size as u64 {
        return Err(corrupt(ino, "size of a value"));
    }
    let (sum, made_by_lustre) = (raw.value_sum(), raw.time(Stamp::Modify).sec == i64::from(owner));
    let cell = Cell::new(ino, volume.seed, raw);
    let core = cell.core.read();
    let mut value = Vec::with_capacity(size);
    for at in 0..size.div_ceil(volume.io.block_bytes()) as u32 {
        let Mapping::Data(extent) = extents::map(volume, &cell, &core, FileBlock(at))? else {
            return Err(corrupt(ino, "hole in a value"));
        };
        let block = volume.cache.get(&volume.io, extent.start, Seal::None, |_| Ok(()))?;
        value.extend_from_slice(&block.read());
    }
    value.truncate(size);
    let right =
        sum == crc(volume.seed, &value) && outside.hash == outside_hash(&attribute.rest, sum);
    match right || made_by_lustre {
        true => Ok(value),
        false => Err(corrupt(ino, "checksum of a value")),
    }
}

/// Blocks that a value takes in an inode of its own.
pub fn blocks(volume: &Volume, size: usize) -> u64 {
    size.div_ceil(volume.io.block_bytes()) as u64
}

/// Moves the value of an attribute to an inode of its own. An inode and blocks were promised.
///
/// # Errors
/// The device's, or a corrupt bitmap.
pub fn make(
    volume: &Volume,
    handle: &Handle<'_>,
    (owner, of): (&Cell, &Core),
    attribute: &mut Attribute,
) -> Result<()> {
    let value = std::mem::take(&mut attribute.value);
    let sum = crc(volume.seed, &value);
    let ino = volume.alloc.allocate_promised_inode(handle, owner.ino)?;
    let mut raw = RawInode::new(volume.geometry.inode_bytes.into(), volume.traits.extra_isize);
    raw.set_mode(0o100_600);
    raw.set_uid(of.raw.uid());
    raw.set_gid(of.raw.gid());
    raw.set_flags(InodeFlags::EA_INODE | InodeFlags::EXTENTS);
    raw.set_links(1);
    raw.set_generation(volume.next_generation());
    raw.set_time(Stamp::Modify, volume.now(handle.ctx()));
    raw.set_time(Stamp::Birth, volume.now(handle.ctx()));
    raw.set_time(Stamp::Change, Time { sec: 0, nsec: 0 });
    raw.set_value_references(1);
    raw.set_value_sum(sum);
    raw.set_size(value.len() as u64);
    let cell = Cell::new(ino, volume.seed, raw);
    let mut core = cell.core.write();
    extents::init(&mut core);
    put(volume, handle, &cell, &mut core, &value)?;
    volume.store(handle, &cell, &mut core, true)?;
    let hash = outside_hash(&attribute.rest, sum);
    attribute.outside = Some(Outside { ino, size: value.len() as u32, hash });
    Ok(())
}

fn put(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    value: &[u8],
) -> Result<()> {
    let block_bytes = volume.io.block_bytes();
    let (mut first, mut goal) = (0u32, volume.goal(cell.ino));
    let total = blocks(volume, value.len()) as u32;
    let mut pieces = value.chunks(block_bytes);
    while first < total {
        let claim = volume.alloc.claim(goal, total - first)?;
        let (start, count) = (claim.start, claim.count);
        volume.alloc.mark(handle, claim);
        let extent = Extent { first: FileBlock(first), count, start, unwritten: false };
        extents::insert(volume, handle, cell, core, extent)?;
        core.add_blocks(count.into(), volume.geometry.block_bytes);
        for (step, piece) in (0..u64::from(count)).zip(&mut pieces) {
            let home = DeviceBlock(start.0 + step);
            let block = volume.cache.create(&volume.io, home, Seal::None);
            handle.modify(&block)[..piece.len()].copy_from_slice(piece);
        }
        (first, goal) = (first + count, DeviceBlock(start.0 + u64::from(count)));
    }
    Ok(())
}

/// One attribute more holds the value, or one fewer. Without any the inode is an orphan, which
/// [`free_unused`] frees.
///
/// # Errors
/// The device's, or an inode that is none of a value.
pub fn refer(volume: &Volume, handle: &Handle<'_>, ino: u32, one_more: bool) -> Result<()> {
    volume.value_inode(ino)?;
    let mut left = 0;
    let raw = volume.change_raw(handle, ino, |raw| {
        let count = raw.value_references();
        left = if one_more { count.saturating_add(1) } else { count.saturating_sub(1) };
        raw.set_value_references(left);
        raw.set_links(u16::from(left > 0));
    })?;
    if left == 0 {
        orphan::add(volume, &Cell::new(ino, volume.seed, raw));
        volume.unused_values.lock().push(ino);
    }
    Ok(())
}

/// Lets go of all values that attributes hold in inodes.
///
/// # Errors
/// As [`refer`].
pub fn release(volume: &Volume, handle: &Handle<'_>, attributes: &[Attribute]) -> Result<()> {
    let outside = attributes.iter().filter_map(|attribute| attribute.outside);
    outside.map(|outside| outside.ino).try_for_each(|ino| refer(volume, handle, ino, false))
}

/// Frees the inodes of values that no attribute holds any more. Call without a handle.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn free_unused(ctx: &OpCtx<'_>, volume: &Volume) -> Result<()> {
    while let Some(ino) = next_unused(volume) {
        let cell = volume.orphan_cell(ino)?;
        let mut core = cell.core.write();
        ops::free_inode(ctx, volume, &cell, &mut core)?;
    }
    Ok(())
}

fn next_unused(volume: &Volume) -> Option<u32> {
    volume.unused_values.lock().pop()
}
