//! Namespace operations: create, link, unlink, remove directories, free inodes. Renames have their
//! own file.
//!
//! Each is one journal handle: what it changes becomes durable together or not at all. The VFS
//! keeps other changes of the same directory away.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Gid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, Changed, Kind, Last, NewNode};

use crate::alloc::Promise;
use crate::cache::Seal;
use crate::dir::{self, Found, Name};
use crate::error::{Error, Result};
use crate::extents;
use crate::format::dirent::file_type;
use crate::format::extent::Extent;
use crate::format::inode::{InodeFlags, RawInode, Stamp};
use crate::format::{FileBlock, extent::ROOT_BYTES};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::limits::Booking;
use crate::orphan;
use crate::promised;
use crate::space::{self, remove_credits};
use crate::values;
use crate::volume::Volume;
use crate::xattr::{self, Lists};

/// Credits for adding a name: directory blocks that split up to the root, bitmaps, two inodes.
pub const NAME_CREDITS: usize = 48;

/// Blocks that adding a name may take: two leaves, four index nodes, the directory's tree nodes,
/// and the first block of a new directory or link, and one for the access control lists that it
/// inherits.
pub const NAME_BLOCKS: u64 = 15;

/// Link counts stop here; directories then count as 1 (`dir_nlink`).
pub const LINKS_MAX: u32 = 65000;

/// Blocks set aside for each new name that somebody wants to be sure of. Where many names are made
/// one takes at most a new leaf, and few one more; what one operation wants to be sure of at a time
/// ([`NAME_BLOCKS`]) is a few names' share.
pub const NAME_SHARE: u64 = 3;

/// Where the room for a new name comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// What is free.
    Free,
    /// What was set aside for names: [`NAME_SHARE`] blocks and an inode for each. Making a file
    /// takes its share away, a rename does not.
    SetAside,
}

impl Volume {
    /// What a new name's blocks are promised from. Where less is left than a name may take at most,
    /// what it does take is looked up: `own` blocks of the inode that is made with it, and the
    /// directory's. What the directory grows by is booked for its owner. Call without a handle.
    pub(crate) fn room_for_name(
        &self,
        ctx: &OpCtx<'_>,
        room: Room,
        (parent, above): (&Cell, &mut Core),
        name: Name<'_>,
        own: u64,
    ) -> Result<(Option<Promise<'_>>, Booking)> {
        if room == Room::SetAside {
            return Ok((None, Booking::default()));
        }
        let booked = self.book_growth(ctx, (parent, above), name)?;
        let promise = match self.promise_to(ctx, NAME_BLOCKS) {
            Err(Error::Errno(Errno::ENOSPC)) => {
                let grown = dir::growth(self, parent, above, name)?;
                self.promise_to(ctx, grown.unwrap_or(NAME_BLOCKS) + own)?
            }
            promised => promised?,
        };
        Ok((Some(promise), booked))
    }

    pub(crate) fn attr(&self, cell: &Cell, core: &Core) -> Attr {
        core.attr(cell.ino, self.geometry.block_bytes)
    }

    /// The cell of a directory that the VFS named.
    pub(crate) fn dir(&self, ino: u32) -> Result<Arc<Cell>> {
        let cell = self.cell(ino)?;
        let is_dir = cell.core.read().raw.mode() >> 12 == 4;
        if is_dir { Ok(cell) } else { Err(Errno::ENOTDIR.into()) }
    }
}

/// Finds a name.
///
/// # Errors
/// `ENOENT`, the device's, or a corrupt directory.
pub fn lookup(volume: &Volume, dir: u32, name: &[u8]) -> Result<Arc<Cell>> {
    let parent = volume.dir(dir)?;
    let found = dir::lookup(volume, &parent, &mut parent.core.write(), Name::new(volume, name))?;
    match found {
        Some(found) => volume.cell(found.ino).map_err(dangling),
        None => Err(Errno::ENOENT.into()),
    }
}

/// An entry that names a free inode is damage, not staleness.
fn dangling(error: Error) -> Error {
    match error {
        Error::Errno(Errno::ESTALE) => Error::Errno(Errno::EUCLEAN),
        other => other,
    }
}

/// A new node in the directory `above`, with the group that it has there.
fn grouped<'n>(volume: &Volume, above: &Core, new: &NewNode<'n>) -> NewNode<'n> {
    let gid = if volume.traits.bsd_groups { Gid(above.raw.gid()) } else { new.gid };
    let is_dir = new.kind == Kind::Dir;
    let inherits = is_dir && above.raw.has_flag(InodeFlags::PROJECT_INHERIT);
    let flag = if inherits { InodeFlags::PROJECT_INHERIT.bits() } else { 0 };
    NewNode { gid, flags: new.flags | flag, ..*new }
}

/// Makes an inode with everything but a name.
fn make_inode(
    volume: &Volume,
    handle: &Handle<'_>,
    (parent, project): (u32, u32),
    new: &NewNode<'_>,
    room: Room,
) -> Result<Arc<Cell>> {
    let is_dir = new.kind == Kind::Dir;
    let ino = match room {
        Room::Free => volume.alloc.allocate_inode(handle, parent, is_dir, parent == 2)?,
        Room::SetAside => volume.alloc.allocate_promised_inode(handle, parent)?,
    };
    let bytes = volume.geometry.inode_bytes.into();
    let mut raw = RawInode::new(bytes, volume.traits.extra_isize);
    raw.set_mode((new.kind.mode_bits() | new.perm) as u16);
    raw.set_uid(new.uid.0);
    raw.set_gid(new.gid.0);
    raw.set_project(project);
    raw.set_flags(InodeFlags::from_bits_retain(new.flags));
    let is_short = new.kind == Kind::Symlink && new.target.len() < ROOT_BYTES;
    let has_blocks = matches!(new.kind, Kind::File | Kind::Dir | Kind::Symlink) && !is_short;
    raw.set_flag(InodeFlags::EXTENTS, has_blocks && volume.traits.extents);
    let now = volume.now(handle.ctx());
    for stamp in [Stamp::Access, Stamp::Change, Stamp::Modify, Stamp::Birth] {
        raw.set_time(stamp, now);
    }
    raw.set_generation(volume.next_generation());
    raw.set_links(if is_dir { 2 } else { 1 });
    let cell = Cell::new(ino, volume.seed, raw);
    volume.inodes.replace(cell.clone());
    Ok(cell)
}

fn fill_inode(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    parent: u32,
    (new, lists): (&NewNode<'_>, Lists),
) -> Result<()> {
    match new.kind {
        Kind::Char | Kind::Block => core.raw.set_rdev(new.rdev),
        Kind::Fifo | Kind::Socket => {}
        Kind::Symlink if new.target.len() < ROOT_BYTES => {
            core.raw.block_mut()[..new.target.len()].copy_from_slice(new.target);
            core.raw.set_size(new.target.len() as u64);
        }
        Kind::File | Kind::Dir | Kind::Symlink => {
            extents::init(core);
        }
    }
    xattr::set_first(volume, handle, (cell, core), lists)?;
    match new.kind {
        Kind::Dir => dir::init(volume, handle, cell, core, parent),
        Kind::Symlink if new.target.len() >= ROOT_BYTES => {
            long_symlink(volume, handle, cell, core, new.target)
        }
        _ => Ok(()),
    }
}

fn long_symlink(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    target: &[u8],
) -> Result<()> {
    let start = volume.allocate(handle, core, volume.goal(cell.ino))?;
    let extent = Extent { first: FileBlock(0), count: 1, start, unwritten: false };
    extents::insert(volume, handle, cell, core, extent)?;
    core.add_blocks(1, volume.geometry.block_bytes);
    core.raw.set_size(target.len() as u64);
    let block = volume.cache.create(&volume.io, start, Seal::None);
    handle.modify(&block)[..target.len()].copy_from_slice(target);
    Ok(())
}

/// Creates a name with a new inode.
///
/// # Errors
/// `EEXIST`, `ENOSPC`, the device's, or a corrupt directory.
pub fn create(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    dir: u32,
    name: &[u8],
    new: &NewNode<'_>,
    room: Room,
) -> Result<Changed> {
    // Linux counts the target's NUL in.
    if new.target.len() >= volume.io.block_bytes() {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let name = Name::new(volume, name);
    let parent = volume.dir(dir)?;
    let mut above = parent.core.write();
    can_take(volume, &parent, &mut above, name)?;
    if new.kind == Kind::Dir && !can_count(volume, &above) {
        return Err(Errno::EMLINK.into());
    }
    let own = own_blocks(new);
    let lists = Lists::of(volume, new.acls)?;
    let (project, new) = (volume.project_within(&above), &grouped(volume, &above, new));
    let booked = volume.book_new(ctx, [new.uid.0, new.gid.0, project], lists.charged(own))?;
    let (_promise, growth) =
        volume.room_for_name(ctx, room, (&parent, &mut above), name, own + lists.own())?;
    let _room = lists.room(ctx, volume)?;
    let handle = volume.start(ctx, NAME_CREDITS + lists.credits())?;
    let cell = make_inode(volume, &handle, (dir, project), new, room)?;
    let mut core = cell.core.write();
    let kind = file_type(core.raw.mode());
    let added = fill_inode(volume, &handle, &cell, &mut core, dir, (new, lists))
        .and_then(|()| dir::insert(volume, &handle, &parent, &mut above, name, cell.ino, kind));
    if let Err(error) = added {
        return Err(give_up((ctx, volume), handle, &cell, &mut core, error)?);
    }
    volume.store_booked(&handle, &cell, &mut core, booked)?;
    if new.kind == Kind::Dir {
        add_links(&mut above, 1);
    }
    above.touch(volume.now(handle.ctx()));
    volume.store_booked(&handle, &parent, &mut above, growth)?;
    handle.complete();
    if room == Room::SetAside {
        volume.alloc.unreserve_inodes(1);
        volume.alloc.unreserve(NAME_SHARE);
    }
    Ok(Changed { dir: volume.attr(&parent, &above), node: volume.attr(&cell, &core) })
}

/// Blocks that a new inode has from the beginning: a directory's, or a long target's.
fn own_blocks(new: &NewNode<'_>) -> u64 {
    u64::from(new.kind == Kind::Dir || new.target.len() >= ROOT_BYTES)
}

/// Whether a directory can take a new name: it is still there, and has none such.
fn can_take(volume: &Volume, parent: &Cell, above: &mut Core, name: Name<'_>) -> Result<()> {
    if above.raw.links() == 0 {
        return Err(Errno::ENOENT.into());
    }
    match dir::lookup(volume, parent, above, name)? {
        Some(_) => Err(Errno::EEXIST.into()),
        None => Ok(()),
    }
}

/// Whether a directory can have one more directory in it: links are counted past the limit only
/// with `dir_nlink`, and only where the directory has a hash tree.
pub(crate) fn can_count(volume: &Volume, above: &Core) -> bool {
    let uncounted =
        volume.traits.dir_nlink && volume.traits.dir_index && above.raw.has_flag(InodeFlags::INDEX);
    uncounted || u32::from(above.raw.links()) < LINKS_MAX
}

/// Ends a handle in which a directory had no room for a name: it is as it was, and what else was
/// done is undone. All other failures stop the journal.
pub(crate) fn name_refused(handle: Handle<'_>, refused: Error) -> Error {
    if matches!(refused, Error::Errno(_)) {
        handle.complete();
    }
    refused
}

/// Ends the making of an inode that was refused. An entry that a directory cannot take leaves it as
/// it was; all else stops the journal.
fn give_up(
    (ctx, volume): (&OpCtx<'_>, &Volume),
    handle: Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    refused: Error,
) -> Result<Error> {
    undo(volume, &handle, cell, core)?;
    let refused = name_refused(handle, refused);
    if matches!(refused, Error::Errno(_)) {
        values::free_unused(ctx, volume)?;
    }
    Ok(refused)
}

/// A new inode that got no name is given back in the handle that made it.
pub(crate) fn undo(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
) -> Result<()> {
    if extents::has_map(core) {
        extents::remove(volume, handle, cell, core, FileBlock(0), 1 << 32)?;
    }
    xattr::release(volume, handle, cell, core)?;
    release_number(volume, handle, cell, core)
}

fn release_number(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
) -> Result<()> {
    let is_dir = core.raw.mode() >> 12 == 4;
    volume.inodes.remove(cell.ino);
    core.raw.set_links(0);
    core.raw.set_mode(0);
    core.raw.set_size(0);
    core.raw.set_dtime(volume.now(handle.ctx()).sec as u32);
    volume.store(handle, cell, core, true)?;
    volume.alloc.free_inode(handle, cell.ino, is_dir)
}

/// Creates a file without a name: an orphan until it is linked.
///
/// # Errors
/// `ENOSPC` or the device's.
pub fn create_unlinked(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    dir: u32,
    new: &NewNode<'_>,
) -> Result<Attr> {
    let parent = volume.dir(dir)?;
    let above = parent.core.read();
    let (project, new) = (volume.project_within(&above), &grouped(volume, &above, new));
    drop(above);
    let lists = Lists::of(volume, new.acls)?;
    let booked = volume.book_new(ctx, [new.uid.0, new.gid.0, project], lists.charged(0))?;
    let own = lists.own();
    let _promise = (own > 0).then(|| volume.promise_to(ctx, own)).transpose()?;
    let _room = lists.room(ctx, volume)?;
    let handle = volume.start(ctx, NAME_CREDITS + lists.credits())?;
    let cell = make_inode(volume, &handle, (dir, project), new, Room::Free)?;
    let mut core = cell.core.write();
    if let Err(error) = fill_inode(volume, &handle, &cell, &mut core, dir, (new, lists)) {
        return Err(give_up((ctx, volume), handle, &cell, &mut core, error)?);
    }
    core.raw.set_links(0);
    orphan::add(volume, &cell);
    volume.store_booked(&handle, &cell, &mut core, booked)?;
    handle.complete();
    Ok(volume.attr(&cell, &core))
}

/// What a rename of the caller's leaves in a directory, with the owner that it has there.
pub(crate) fn whiteout_of(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    parent: &Cell,
    above: &Core,
) -> NewNode<'static> {
    let new = NewNode::whiteout(ctx, &volume.attr(parent, above));
    grouped(volume, above, &new)
}

/// Makes the device 0/0 that stands for a removed name in a union.
pub(crate) fn make_whiteout(
    volume: &Volume,
    handle: &Handle<'_>,
    parent: &Cell,
    above: &Core,
    booked: Booking,
) -> Result<Arc<Cell>> {
    let new = whiteout_of(handle.ctx(), volume, parent, above);
    let place = (parent.ino, volume.project_within(above));
    let cell = make_inode(volume, handle, place, &new, Room::Free)?;
    volume.store_booked(handle, &cell, &mut cell.core.write(), booked)?;
    Ok(cell)
}

/// Gives an inode one more name.
///
/// # Errors
/// `EEXIST`, `EMLINK`, `ENOSPC`, the device's, or a corrupt directory.
pub fn link(ctx: &OpCtx<'_>, volume: &Volume, ino: u32, dir: u32, name: &[u8]) -> Result<Changed> {
    let name = Name::new(volume, name);
    let (cell, parent) = (volume.cell(ino)?, volume.dir(dir)?);
    let mut above = parent.core.write();
    can_take(volume, &parent, &mut above, name)?;
    if cell.ino == parent.ino {
        return Err(Errno::EPERM.into());
    }
    let mut core = cell.core.write();
    if core.raw.mode() >> 12 == 4 {
        return Err(Errno::EPERM.into());
    }
    if u32::from(core.raw.links()) >= LINKS_MAX {
        return Err(Errno::EMLINK.into());
    }
    volume.check_project(&above, &core)?;
    let (_promise, growth) =
        volume.room_for_name(ctx, Room::Free, (&parent, &mut above), name, 0)?;
    let handle = volume.start(ctx, NAME_CREDITS)?;
    let kind = file_type(core.raw.mode());
    if let Err(refused) = dir::insert(volume, &handle, &parent, &mut above, name, ino, kind) {
        return Err(name_refused(handle, refused));
    }
    orphan::remove(volume, &cell, &mut core);
    let links = core.raw.links() + 1;
    core.raw.set_links(links);
    core.raw.set_time(Stamp::Change, volume.now(handle.ctx()));
    volume.store(&handle, &cell, &mut core, true)?;
    above.touch(volume.now(handle.ctx()));
    volume.store_booked(&handle, &parent, &mut above, growth)?;
    handle.complete();
    Ok(Changed { dir: volume.attr(&parent, &above), node: volume.attr(&cell, &core) })
}

/// Removes the name of something that is not a directory.
///
/// # Errors
/// `ENOENT`, `EISDIR`, the device's, or a corrupt directory.
pub fn unlink(ctx: &OpCtx<'_>, volume: &Volume, dir: u32, name: &[u8]) -> Result<Changed> {
    let name = Name::new(volume, name);
    let parent = volume.dir(dir)?;
    let mut above = parent.core.write();
    let (cell, found) = named(volume, &parent, &mut above, name)?;
    let mut core = cell.core.write();
    if core.raw.mode() >> 12 == 4 {
        return Err(Errno::EISDIR.into());
    }
    let handle = volume.start(ctx, NAME_CREDITS)?;
    dir::remove(volume, &handle, &parent, &mut above, name, found)?;
    drop_link(volume, &handle, &cell, &mut core)?;
    above.touch(volume.now(handle.ctx()));
    volume.store(&handle, &parent, &mut above, true)?;
    handle.complete();
    Ok(Changed { dir: volume.attr(&parent, &above), node: volume.attr(&cell, &core) })
}

/// Removes the last name of something that is not a directory; if `is_over` says that nobody holds
/// the inode, it is freed with it, unless its blocks need more than one handle. `None`: it has
/// other names, and nothing was done.
///
/// # Errors
/// `ENOENT`, `EISDIR`, the device's, or a corrupt directory or tree.
pub fn unlink_last(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    dir: u32,
    name: &[u8],
    is_over: &mut dyn FnMut() -> bool,
) -> Result<Option<Last>> {
    let name = Name::new(volume, name);
    let parent = volume.dir(dir)?;
    let mut above = parent.core.write();
    let (cell, found) = named(volume, &parent, &mut above, name)?;
    let mut core = cell.core.write();
    match core.raw.mode() >> 12 {
        4 => return Err(Errno::EISDIR.into()),
        _ if core.raw.links() != 1 => return Ok(None),
        _ => {}
    }
    let handle = volume.start(ctx, NAME_CREDITS + remove_credits(&core))?;
    dir::remove(volume, &handle, &parent, &mut above, name, found)?;
    let is_freed = is_over() && free_with(volume, &handle, &cell, &mut core)?;
    if !is_freed {
        drop_link(volume, &handle, &cell, &mut core)?;
    }
    above.touch(volume.now(handle.ctx()));
    volume.store(&handle, &parent, &mut above, true)?;
    handle.complete();
    if volume.traits.ea_inode {
        values::free_unused(ctx, volume)?;
    }
    Ok(Some(Last { dir: volume.attr(&parent, &above), is_freed }))
}

/// Frees an inode that lost its last name, with the same handle. False: its blocks need more.
fn free_with(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<bool> {
    promised::release(volume, cell, 0, u32::MAX);
    let has_blocks = core.raw.sectors(volume.geometry.block_bytes) > 0;
    if extents::has_map(core)
        && has_blocks
        && extents::remove(volume, handle, cell, core, FileBlock(0), 1 << 32)?.is_some()
    {
        return Ok(false);
    }
    end_inode(volume, handle, cell, core)?;
    Ok(true)
}

/// Removes an empty directory.
///
/// # Errors
/// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, the device's, or a corrupt directory.
pub fn rmdir(ctx: &OpCtx<'_>, volume: &Volume, dir: u32, name: &[u8]) -> Result<Changed> {
    let name = Name::new(volume, name);
    let parent = volume.dir(dir)?;
    let mut above = parent.core.write();
    let (cell, found) = named(volume, &parent, &mut above, name)?;
    let mut core = cell.core.write();
    if core.raw.mode() >> 12 != 4 {
        return Err(Errno::ENOTDIR.into());
    }
    if !dir::is_empty(volume, &cell, &mut core)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    let handle = volume.start(ctx, NAME_CREDITS)?;
    dir::remove(volume, &handle, &parent, &mut above, name, found)?;
    drop_link(volume, &handle, &cell, &mut core)?;
    add_links(&mut above, -1);
    above.touch(volume.now(handle.ctx()));
    volume.store(&handle, &parent, &mut above, true)?;
    handle.complete();
    Ok(Changed { dir: volume.attr(&parent, &above), node: volume.attr(&cell, &core) })
}

/// The inode that a name of a locked directory means.
pub(crate) fn named(
    volume: &Volume,
    parent: &Cell,
    above: &mut Core,
    name: Name<'_>,
) -> Result<(Arc<Cell>, Found)> {
    let found = dir::lookup(volume, parent, above, name)?.ok_or(Errno::ENOENT)?;
    if found.ino == parent.ino {
        return Err(Errno::EUCLEAN.into());
    }
    Ok((volume.cell(found.ino).map_err(dangling)?, found))
}

/// One link fewer; the last one makes an orphan, freed when the VFS forgets the inode.
pub(crate) fn drop_link(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
) -> Result<()> {
    let is_dir = core.raw.mode() >> 12 == 4;
    let links = if is_dir { 0 } else { core.raw.links().saturating_sub(1) };
    core.raw.set_links(links);
    core.raw.set_time(Stamp::Change, volume.now(handle.ctx()));
    if links == 0 {
        orphan::add(volume, cell);
    }
    volume.store(handle, cell, core, true)
}

/// Changes a directory's link count; one that cannot be counted stays 1.
pub(crate) fn add_links(core: &mut Core, change: i32) {
    let links = u32::from(core.raw.links());
    let next = match links {
        1 => 1,
        links if links.saturating_add_signed(change) > LINKS_MAX => 1,
        links => links.saturating_add_signed(change),
    };
    core.raw.set_links(next as u16);
}

/// Frees an inode without links: its blocks, its attributes, its number.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn free_inode(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, core: &mut Core) -> Result<()> {
    let has_blocks = core.raw.sectors(volume.geometry.block_bytes) > 0;
    if extents::has_map(core) && has_blocks {
        space::remove_blocks(ctx, volume, cell, core, FileBlock(0), 1 << 32)?;
    }
    promised::release(volume, cell, 0, u32::MAX);
    let handle = volume.start(ctx, NAME_CREDITS)?;
    end_inode(volume, &handle, cell, core)?;
    handle.complete();
    match volume.traits.ea_inode {
        true => values::free_unused(ctx, volume),
        false => Ok(()),
    }
}

/// Frees an inode that has neither names nor blocks.
fn end_inode(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<()> {
    xattr::release(volume, handle, cell, core)?;
    orphan::remove(volume, cell, core);
    release_number(volume, handle, cell, core)
}
