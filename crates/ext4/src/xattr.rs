//! Extended attributes of inodes: as many as fit lie in the inode, the rest in one block.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Acls, XattrMode};

use crate::alloc::Promise;
use crate::cache::{MetaBlock, Seal};
use crate::data::TREE_BLOCKS;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::DeviceBlock;
use crate::format::acl;
use crate::format::inode::{InodeFlags, RawInode, Stamp};
use crate::format::xattr::{self, Attribute, Outside, cost};
use crate::inline;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::limits::Booking;
use crate::ops::NAME_CREDITS;
use crate::values;
use crate::volume::Volume;

/// Longest name, prefix included (`XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::Xattr, cell.ino.into(), field).into()
}

fn block(volume: &Volume, cell: &Cell, home: u64) -> Result<Arc<MetaBlock>> {
    let home = DeviceBlock(home);
    let seal = if volume.has_sums { Seal::Xattr(volume.seed, home) } else { Seal::None };
    volume.cache.get(&volume.io, home, seal, |bytes| match seal.verify(bytes) {
        true => Ok(()),
        false => Err(corrupt(cell, "checksum")),
    })
}

/// All attributes of an inode, without what is its inline data.
///
/// # Errors
/// The device's, or corrupt attributes.
pub fn all(volume: &Volume, cell: &Cell, core: &Core) -> Result<Vec<Attribute>> {
    let decoded = xattr::decode_inode(core.raw.xattr_area());
    let mut attributes = decoded.map_err(|field| corrupt(cell, field))?;
    if inline::is(core) {
        attributes.retain(|attribute| !attribute.is_inline_data());
    }
    if core.raw.xattr_block() != 0 {
        let outside = block(volume, cell, core.raw.xattr_block())?;
        let decoded = xattr::decode_block(&outside.read());
        attributes.extend(decoded.map_err(|field| corrupt(cell, field))?);
    }
    if !volume.traits.ea_inode && attributes.iter().any(|found| found.outside.is_some()) {
        return Err(corrupt(cell, "e_value_inum"));
    }
    Ok(attributes)
}

/// Refuses names that the format cannot hold.
///
/// # Errors
/// `EOPNOTSUPP` for a name without a known prefix, `ERANGE` for one that is too long.
pub fn known(name: &[u8]) -> Result<()> {
    let (_, rest) = xattr::split(name).ok_or(Errno::EOPNOTSUPP)?;
    match rest.len() <= 255 && name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(Errno::ERANGE.into()),
    }
}

/// The value of one attribute, as programs see it.
///
/// # Errors
/// `ENODATA` when there is none, as [`known`], the device's, or corrupt attributes.
pub fn get(volume: &Volume, cell: &Cell, core: &Core, name: &[u8]) -> Result<Vec<u8>> {
    known(name)?;
    let found = all(volume, cell, core)?.into_iter().find(|attribute| attribute.is_named(name));
    let value = values::read(volume, cell.ino, &found.ok_or(Errno::ENODATA)?)?;
    match is_acl(name) {
        true => acl::from_disk(&value).ok_or_else(|| corrupt(cell, "access control list")),
        false => Ok(value),
    }
}

fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// A change of an attribute.
pub struct Change<'a> {
    /// Its whole name.
    pub name: &'a [u8],
    /// What it is to be; `None`: it is to go.
    pub value: Option<&'a [u8]>,
    /// What may be there before.
    pub mode: XattrMode,
    /// Permission bits that the inode gets with it.
    pub perm: Option<u32>,
}

/// Sets or removes an attribute.
///
/// # Errors
/// `EEXIST` or `ENODATA` by the change's mode, as [`known`], `EINVAL` for an access control list
/// that is none, `ENOSPC`, the device's.
pub fn set(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    change: &Change<'_>,
) -> Result<()> {
    let name = change.name;
    known(name)?;
    let mut attributes = all(volume, cell, core)?;
    let existing = attributes.iter().position(|attribute| attribute.is_named(name));
    match (existing, change.mode) {
        (Some(_), XattrMode::Create) => return Err(Errno::EEXIST.into()),
        (None, XattrMode::Replace) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let new = change.value.map(|value| stored(name, value)).transpose()?;
    let same =
        |at: usize| attributes[at].outside.is_none() && new.as_ref() == Some(&attributes[at]);
    if existing.is_some_and(same)
        && change.perm.is_none_or(|perm| perm == u32::from(core.raw.mode() & 0o7777))
    {
        // As Linux does: no time moves.
        return Ok(());
    }
    let gone = existing.and_then(|at| attributes.remove(at).outside);
    attributes.extend(new);
    let (mut inside, mut outside) = plan(volume, core.raw.xattr_area().len(), attributes)?;
    inline::move_out(ctx, volume, cell, core)?;
    let moved = moved(volume, inside.iter().chain(&outside));
    let own = u64::from(takes_block(volume, cell, core, &outside)?);
    let booked = book(ctx, volume, core, (own, &moved))?;
    let _room = room(ctx, volume, (own, &moved))?;
    let kept = shared_values(volume, cell, core)?;
    let credits = 2 * (own + tree_blocks(&moved)) as usize + 2 * kept.len();
    let handle = volume.start(ctx, NAME_CREDITS + credits)?;
    make_values(volume, &handle, (cell, core), inside.iter_mut().chain(&mut outside))?;
    // A block that others share keeps its values; what stays here of them is held once more.
    for place in inside.iter().chain(&outside).filter_map(|attribute| attribute.outside) {
        if kept.contains(&place.ino) {
            values::refer(volume, &handle, place.ino, true)?;
        }
    }
    if let Some(gone) = gone {
        let blocks = values::blocks(volume, gone.size as usize);
        core.add_blocks(-(blocks as i64), volume.geometry.block_bytes);
        if !kept.contains(&gone.ino) {
            values::refer(volume, &handle, gone.ino, false)?;
        }
    }
    let all = inside.iter().chain(&outside);
    core.values = all.filter(|attribute| attribute.outside.is_some()).count() as u64;
    write(volume, &handle, cell, core, (&inside, &outside))?;
    if let Some(perm) = change.perm {
        core.raw.set_perm(perm);
    }
    core.raw.set_time(Stamp::Change, volume.now(ctx));
    volume.store_booked(&handle, cell, core, booked)?;
    handle.complete();
    values::free_unused(ctx, volume)
}

/// Books an attribute block, if one is taken, and values that get inodes, by their blocks: as with
/// Linux they count for who has the attribute.
fn book(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    core: &Core,
    (own, moved): (u64, &[u64]),
) -> Result<Booking> {
    let ids = [core.raw.uid(), core.raw.gid(), core.raw.project()].map(Some);
    match (own + moved.iter().sum::<u64>(), moved.len() as u64) {
        (0, 0) => Ok(Booking::default()),
        taken => volume.book(ctx, ids, taken),
    }
}

/// Blocks of each value that is to get an inode of its own.
fn moved<'a>(volume: &Volume, all: impl Iterator<Item = &'a Attribute>) -> Vec<u64> {
    let moving = all.filter(|attribute| attribute.outside.is_some_and(|place| place.ino == 0));
    moving.map(|attribute| values::blocks(volume, attribute.value.len())).collect()
}

/// Blocks that such values take at most.
fn tree_blocks(moved: &[u64]) -> u64 {
    moved.iter().map(|blocks| blocks + TREE_BLOCKS).sum()
}

/// Blocks and inodes that are promised to attributes.
pub struct ValueRoom<'v> {
    volume: &'v Volume,
    inodes: u32,
    _blocks: Option<Promise<'v>>,
}

impl Drop for ValueRoom<'_> {
    fn drop(&mut self) {
        if self.inodes > 0 {
            self.volume.alloc.unreserve_inodes(self.inodes);
        }
    }
}

fn room<'v>(
    ctx: &OpCtx<'_>,
    volume: &'v Volume,
    (own, moved): (u64, &[u64]),
) -> Result<ValueRoom<'v>> {
    let blocks = own + tree_blocks(moved);
    let _blocks = (blocks > 0).then(|| volume.promise_to(ctx, blocks)).transpose()?;
    let inodes = moved.len() as u32;
    if inodes > 0 {
        volume.alloc.reserve_inodes(inodes)?;
    }
    Ok(ValueRoom { volume, inodes, _blocks })
}

/// Moves values to inodes of their own. There is room for them.
fn make_values<'a>(
    volume: &Volume,
    handle: &Handle<'_>,
    (cell, core): (&Cell, &mut Core),
    all: impl Iterator<Item = &'a mut Attribute>,
) -> Result<()> {
    for attribute in all.filter(|it| it.outside.is_some_and(|place| place.ino == 0)) {
        let blocks = values::blocks(volume, attribute.value.len());
        values::make(volume, handle, (cell, core), attribute)?;
        core.add_blocks(blocks as i64, volume.geometry.block_bytes);
    }
    Ok(())
}

/// Where attributes go: into the inode, into the block, and the largest values, where the image has
/// that and the block is too small, into inodes of their own, which are still to be made.
fn plan(
    volume: &Volume,
    room: usize,
    mut all: Vec<Attribute>,
) -> Result<(Vec<Attribute>, Vec<Attribute>)> {
    loop {
        let (inside, mut outside) = distribute(room, all);
        if xattr::fit_block(volume.io.block_bytes(), &outside) {
            return Ok((inside, outside));
        }
        let largest = outside.iter_mut().max_by_key(|attribute| match attribute.outside {
            Some(_) => 0,
            None => attribute.value.len(),
        });
        match largest.filter(|attribute| volume.traits.ea_inode && !attribute.value.is_empty()) {
            Some(attribute) if attribute.outside.is_none() => {
                let size = attribute.value.len() as u32;
                attribute.outside = Some(Outside { ino: 0, size, hash: 0 });
            }
            _ => return Err(Errno::ENOSPC.into()),
        }
        all = inside.into_iter().chain(outside).collect();
    }
}

/// Inodes that hold values for a block which others share.
fn shared_values(volume: &Volume, cell: &Cell, core: &Core) -> Result<Vec<u32>> {
    if !volume.traits.ea_inode || core.raw.xattr_block() == 0 {
        return Ok(Vec::new());
    }
    let shared = block(volume, cell, core.raw.xattr_block())?;
    let bytes = shared.read();
    let found = xattr::decode_block(&bytes).map_err(|field| corrupt(cell, field))?;
    match xattr::references(&bytes) > 1 {
        true => Ok(found.iter().filter_map(|attribute| attribute.outside).map(|o| o.ino).collect()),
        false => Ok(Vec::new()),
    }
}

/// Blocks of all attributes that lie outside the inode, those in inodes of their own among them:
/// each inode that has such a value counts them.
///
/// # Errors
/// The device's, or corrupt attributes.
pub fn blocks(volume: &Volume, cell: &Cell, core: &Core) -> Result<u64> {
    let own = u64::from(core.raw.xattr_block() != 0);
    if !volume.traits.ea_inode {
        return Ok(own);
    }
    let all = all(volume, cell, core)?;
    let outside = all.iter().filter_map(|attribute| attribute.outside);
    Ok(own + outside.map(|place| values::blocks(volume, place.size as usize)).sum::<u64>())
}

/// Inodes that hold values of an inode's attributes.
///
/// # Errors
/// The device's, or corrupt attributes.
pub fn values(volume: &Volume, cell: &Cell, core: &Core) -> Result<u64> {
    if !volume.traits.ea_inode {
        return Ok(0);
    }
    let all = all(volume, cell, core)?;
    Ok(all.iter().filter(|attribute| attribute.outside.is_some()).count() as u64)
}

/// Lets go of all attributes of an inode that is freed.
///
/// # Errors
/// The device's, or corrupt attributes.
pub fn release(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<()> {
    if volume.traits.ea_inode && !core.raw.has_flag(InodeFlags::EA_INODE) {
        let decoded = xattr::decode_inode(core.raw.xattr_area());
        let mut held = decoded.map_err(|field| corrupt(cell, field))?;
        let kept = shared_values(volume, cell, core)?;
        if core.raw.xattr_block() != 0 && kept.is_empty() {
            let own = block(volume, cell, core.raw.xattr_block())?;
            let own = xattr::decode_block(&own.read()).map_err(|field| corrupt(cell, field))?;
            held.extend(own);
        }
        values::release(volume, handle, &held)?;
    }
    release_block(volume, handle, cell, core)
}

/// The access control lists of an inode that is to be made, and where they go.
#[derive(Default)]
pub struct Lists {
    inside: Vec<Attribute>,
    outside: Vec<Attribute>,
    /// Blocks of each that gets an inode of its own.
    moved: Vec<u64>,
}

impl Lists {
    /// # Errors
    /// `ENOSPC` for lists that are too long.
    pub fn of(volume: &Volume, acls: Acls<'_>) -> Result<Lists> {
        let each = acls.each().map(|(kind, acl)| stored(kind.name(), &acl.to_value()));
        let attributes = each.collect::<Result<Vec<_>>>()?;
        if attributes.is_empty() {
            return Ok(Lists::default());
        }
        let fresh = RawInode::new(volume.geometry.inode_bytes.into(), volume.traits.extra_isize);
        let (inside, outside) = plan(volume, fresh.xattr_area().len(), attributes)?;
        let moved = moved(volume, inside.iter().chain(&outside));
        Ok(Lists { inside, outside, moved })
    }

    /// Blocks of the inode itself: the one for attributes.
    pub fn own(&self) -> u64 {
        u64::from(!self.outside.is_empty())
    }

    /// Blocks and further inodes that count for its owner, beside `own` blocks.
    pub fn charged(&self, own: u64) -> (u64, u64) {
        (own + self.own() + self.moved.iter().sum::<u64>(), self.moved.len() as u64)
    }

    /// Credits for what has inodes of its own.
    pub fn credits(&self) -> usize {
        2 * tree_blocks(&self.moved) as usize
    }

    /// Room for what has inodes of its own.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn room<'v>(&self, ctx: &OpCtx<'_>, volume: &'v Volume) -> Result<ValueRoom<'v>> {
        room(ctx, volume, (0, &self.moved))
    }
}

/// Gives an inode that was just made its access control lists, in the handle that made it. The
/// caller stores the inode, and has room for them.
///
/// # Errors
/// The device's.
pub fn set_first(
    volume: &Volume,
    handle: &Handle<'_>,
    (cell, core): (&Cell, &mut Core),
    lists: Lists,
) -> Result<()> {
    let Lists { mut inside, mut outside, moved } = lists;
    if inside.is_empty() && outside.is_empty() {
        return Ok(());
    }
    make_values(volume, handle, (cell, core), inside.iter_mut().chain(&mut outside))?;
    core.values = moved.len() as u64;
    write(volume, handle, cell, core, (&inside, &outside))
}

/// An attribute as it is stored.
fn stored(name: &[u8], value: &[u8]) -> Result<Attribute> {
    let value = match is_acl(name) {
        true => acl::to_disk(value).ok_or(Errno::EINVAL)?,
        false => value.to_vec(),
    };
    Ok(Attribute::new(name, value).ok_or(Errno::EOPNOTSUPP)?)
}

fn write(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    (inside, outside): (&[Attribute], &[Attribute]),
) -> Result<()> {
    if !inside.is_empty() || !outside.is_empty() {
        volume.note_ext_attr(handle)?;
    }
    store_outside(volume, handle, cell, core, outside)?;
    match xattr::encode_inode(core.raw.xattr_area_mut(), inside) {
        true => Ok(()),
        false => Err(corrupt(cell, "attributes outgrow the inode")),
    }
}

/// The small ones inside, as many as fit.
fn distribute(room: usize, mut all: Vec<Attribute>) -> (Vec<Attribute>, Vec<Attribute>) {
    all.sort_by_key(cost);
    let mut used = xattr::INODE_HEADER + 4;
    let fits = all.iter().take_while(|attribute| {
        used += cost(attribute);
        used <= room
    });
    let count = fits.count();
    let outside = all.split_off(count);
    (all, outside)
}

/// Whether attributes that lie outside the inode need a block that it does not have to itself.
fn takes_block(volume: &Volume, cell: &Cell, core: &Core, outside: &[Attribute]) -> Result<bool> {
    match core.raw.xattr_block() {
        _ if outside.is_empty() => Ok(false),
        0 => Ok(true),
        old => Ok(xattr::references(&block(volume, cell, old)?.read()) != 1),
    }
}

fn store_outside(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    attributes: &[Attribute],
) -> Result<()> {
    let old = core.raw.xattr_block();
    if attributes.is_empty() {
        return release_block(volume, handle, cell, core);
    }
    let target = if !takes_block(volume, cell, core, attributes)? {
        block(volume, cell, old)?
    } else {
        release_block(volume, handle, cell, core)?;
        let home = volume.alloc.allocate(handle, volume.goal(cell.ino))?;
        core.raw.set_xattr_block(home.0);
        core.add_blocks(1, volume.geometry.block_bytes);
        let seal = if volume.has_sums { Seal::Xattr(volume.seed, home) } else { Seal::None };
        volume.cache.create(&volume.io, home, seal)
    };
    match xattr::encode_block(&mut handle.modify(&target), attributes) {
        true => Ok(()),
        false => Err(Errno::ENOSPC.into()),
    }
}

/// Lets go of the attribute block: one reference fewer, or freed. The caller stores the inode.
fn release_block(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<()> {
    let home = core.raw.xattr_block();
    if home == 0 {
        return Ok(());
    }
    let shared = block(volume, cell, home)?;
    // Counted and changed under one guard: other inodes let go of it too.
    let mut bytes = handle.modify(&shared);
    let references = xattr::references(&bytes);
    if references > 1 {
        xattr::set_references(&mut bytes, references - 1);
        drop(bytes);
    } else {
        drop(bytes);
        volume.alloc.free_metadata(handle, DeviceBlock(home), 1)?;
    }
    core.raw.set_xattr_block(0);
    core.add_blocks(-1, volume.geometry.block_bytes);
    Ok(())
}
