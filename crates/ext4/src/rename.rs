//! Renames: plan, then apply in one handle.

use polylane_base::Errno;
use polylane_base::sync::{Arc, RwLockWriteGuard};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Kind, RenameMode, Renamed};

use crate::dir::{self, Found, Name};
use crate::error::{Error, Result};
use crate::format::dirent::file_type;
use crate::format::inode::Stamp;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::limits::Booking;
use crate::ops::{
    NAME_CREDITS, Room, add_links, can_count, drop_link, make_whiteout, name_refused, named, undo,
    whiteout_of,
};
use crate::volume::Volume;

/// The directories of a rename: one or two.
enum Dirs<'a> {
    One(&'a mut Core),
    Two(&'a mut Core, &'a mut Core),
}

impl Dirs<'_> {
    fn from(&mut self) -> &mut Core {
        match self {
            Dirs::One(core) | Dirs::Two(core, _) => core,
        }
    }

    fn to(&mut self) -> &mut Core {
        match self {
            Dirs::One(core) | Dirs::Two(_, core) => core,
        }
    }
}

/// Moves a name.
///
/// # Errors
/// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `ENOSPC`, the device's, or a corrupt directory.
pub fn rename(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    (from_dir, from): (u32, &[u8]),
    (to_dir, to): (u32, &[u8]),
    mode: RenameMode,
    room: Room,
) -> Result<Renamed> {
    let (source, target) = (volume.dir(from_dir)?, volume.dir(to_dir)?);
    let (from, to) = (Name::new(volume, from), Name::new(volume, to));
    let move_ = Move { volume, source: &source, target: &target, from, to, mode, room };
    if from_dir == to_dir {
        return move_.run(ctx, Dirs::One(&mut source.core.write()));
    }
    // The VFS has both directories to itself: the order of these two locks cannot cross another's.
    let (mut left, mut right) = (source.core.write(), target.core.write());
    move_.run(ctx, Dirs::Two(&mut left, &mut right))
}

/// Credits of a rename: an entry more, an entry less, four inodes, `..`, a whiteout.
const RENAME_CREDITS: usize = NAME_CREDITS + 16;

type Locked<'a> = RwLockWriteGuard<'a, Core>;

/// Locks the inodes that a rename moves and replaces, in the order of their numbers: with hard
/// links two renames may meet on the same two inodes in directories of their own.
fn lock_both<'a>(cell: &'a Cell, other: Option<&'a Cell>) -> (Locked<'a>, Option<Locked<'a>>) {
    let Some(other) = other else { return (cell.core.write(), None) };
    if cell.ino < other.ino {
        let first = cell.core.write();
        return (first, Some(other.core.write()));
    }
    let second = other.core.write();
    (cell.core.write(), Some(second))
}

struct Move<'a> {
    volume: &'a Volume,
    source: &'a Arc<Cell>,
    target: &'a Arc<Cell>,
    from: Name<'a>,
    to: Name<'a>,
    mode: RenameMode,
    room: Room,
}

impl Move<'_> {
    fn run(&self, ctx: &OpCtx<'_>, mut dirs: Dirs<'_>) -> Result<Renamed> {
        let volume = self.volume;
        if dirs.to().raw.links() == 0 {
            return Err(Errno::ENOENT.into());
        }
        let (cell, found) = self.elsewhere(named(volume, self.source, dirs.from(), self.from)?)?;
        let existing = match named(volume, self.target, dirs.to(), self.to) {
            Ok(existing) => Some(self.elsewhere(existing)?),
            Err(crate::Error::Errno(Errno::ENOENT)) => None,
            Err(error) => return Err(error),
        };
        match (self.mode, existing) {
            (RenameMode::NoReplace, Some(_)) => Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => Err(Errno::ENOENT.into()),
            // Names of one inode: the VFS has refused that; here it would wait for its own lock.
            (_, Some((other, _))) if other.ino == cell.ino => Err(Errno::EINVAL.into()),
            (RenameMode::Exchange, Some((other, place))) => {
                self.exchange(ctx, dirs, (&cell, found), (&other, place))
            }
            (_, existing) => self.replace(ctx, dirs, (&cell, found), existing),
        }
    }

    /// Refuses a name of one of the two directories, which are locked: on a sound tree the VFS has
    /// refused that, since one is above the other.
    fn elsewhere(&self, (cell, found): (Arc<Cell>, Found)) -> Result<(Arc<Cell>, Found)> {
        match cell.ino == self.source.ino || cell.ino == self.target.ino {
            true => Err(Errno::EUCLEAN.into()),
            false => Ok((cell, found)),
        }
    }

    fn crosses(&self) -> bool {
        self.source.ino != self.target.ino
    }

    fn replace(
        &self,
        ctx: &OpCtx<'_>,
        mut dirs: Dirs<'_>,
        (cell, found): (&Cell, Found),
        existing: Option<(Arc<Cell>, Found)>,
    ) -> Result<Renamed> {
        let volume = self.volume;
        let (mut core, mut victim) = lock_both(cell, existing.as_ref().map(|(other, _)| &**other));
        volume.check_project(dirs.to(), &core)?;
        let mut booked = Booking::default();
        if self.mode == RenameMode::Whiteout {
            let new = whiteout_of(ctx, volume, self.source, dirs.from());
            let ids = [new.uid.0, new.gid.0, volume.project_within(dirs.from())];
            booked = volume.book_new(ctx, ids, (0, 0))?;
        }
        let is_dir = core.raw.mode() >> 12 == 4;
        if let (Some((other, _)), Some(victim)) = (&existing, &mut victim)
            && victim.raw.mode() >> 12 == 4
            && !dir::is_empty(volume, other, victim)?
        {
            return Err(Errno::ENOTEMPTY.into());
        }
        if is_dir && self.crosses() && victim.is_none() && !can_count(volume, dirs.to()) {
            return Err(Errno::EMLINK.into());
        }
        let (_promise, growth) = match existing {
            Some(_) => (None, Booking::default()),
            None => volume.room_for_name(ctx, self.room, (self.target, dirs.to()), self.to, 0)?,
        };
        let handle = volume.start(ctx, RENAME_CREDITS)?;
        let whiteout = self.whiteout(&handle, dirs.from(), booked)?;
        let kind = file_type(core.raw.mode());
        match &existing {
            Some((_, place)) => {
                let to = dirs.to();
                dir::replace(volume, &handle, self.target, to, *place, cell.ino, kind)?;
            }
            None => {
                let (target, to) = (self.target, dirs.to());
                let added = dir::insert(volume, &handle, target, to, self.to, cell.ino, kind);
                if let Err(refused) = added {
                    return Err(self.refuse(handle, whiteout, refused)?);
                }
            }
        }
        self.leave(&handle, &mut dirs, found, whiteout)?;
        let mut other = None;
        if let (Some((old, _)), Some(victim)) = (&existing, &mut victim) {
            if victim.raw.mode() >> 12 == 4 {
                add_links(dirs.to(), -1);
            }
            drop_link(volume, &handle, old, victim)?;
            other = Some(volume.attr(old, victim));
        }
        if is_dir && self.crosses() {
            dir::set_parent(volume, &handle, cell, &mut core, self.target.ino)?;
            add_links(dirs.from(), -1);
            add_links(dirs.to(), 1);
        }
        core.raw.set_time(Stamp::Change, volume.now(ctx));
        volume.store(&handle, cell, &mut core, true)?;
        let node = volume.attr(cell, &core);
        dirs.to().booked = growth;
        self.finish(ctx, handle, dirs, node, other)
    }

    /// The whiteout that this rename leaves, if it leaves one. Made first: what lacks an inode for
    /// it changes nothing.
    fn whiteout(
        &self,
        handle: &Handle<'_>,
        from: &Core,
        booked: Booking,
    ) -> Result<Option<Arc<Cell>>> {
        let wanted = self.mode == RenameMode::Whiteout;
        let make = || make_whiteout(self.volume, handle, self.source, from, booked);
        wanted.then(make).transpose()
    }

    /// Ends a rename whose new name found no room: everything is as it was.
    fn refuse(
        &self,
        handle: Handle<'_>,
        whiteout: Option<Arc<Cell>>,
        refused: Error,
    ) -> Result<Error> {
        if let Some(cell) = whiteout {
            undo(self.volume, &handle, &cell, &mut cell.core.write())?;
        }
        Ok(name_refused(handle, refused))
    }

    /// Takes the old name away, or puts a whiteout in its place. The entry may have moved since it
    /// was found: an insert into the same directory can split its block.
    fn leave(
        &self,
        handle: &Handle<'_>,
        dirs: &mut Dirs<'_>,
        found: Found,
        whiteout: Option<Arc<Cell>>,
    ) -> Result<()> {
        let volume = self.volume;
        let from = dirs.from();
        let found = dir::again(volume, self.source, from, self.from, found)?;
        let Some(whiteout) = whiteout else {
            return dir::remove(volume, handle, self.source, from, self.from, found);
        };
        let kind = file_type((Kind::Char.mode_bits()) as u16);
        dir::replace(volume, handle, self.source, from, found, whiteout.ino, kind)
    }

    fn exchange(
        &self,
        ctx: &OpCtx<'_>,
        mut dirs: Dirs<'_>,
        (cell, found): (&Cell, Found),
        (other, place): (&Cell, Found),
    ) -> Result<Renamed> {
        let volume = self.volume;
        let (mut core, second) = lock_both(cell, Some(other));
        let mut second = second.ok_or(Errno::EINVAL)?;
        volume.check_project(dirs.to(), &core)?;
        volume.check_project(dirs.from(), &second)?;
        let handle = volume.start(ctx, NAME_CREDITS)?;
        let (kind, other_kind) = (file_type(core.raw.mode()), file_type(second.raw.mode()));
        let from = dirs.from();
        dir::replace(volume, &handle, self.source, from, found, other.ino, other_kind)?;
        let to = dirs.to();
        dir::replace(volume, &handle, self.target, to, place, cell.ino, kind)?;
        if self.crosses() {
            if core.raw.mode() >> 12 == 4 {
                dir::set_parent(volume, &handle, cell, &mut core, self.target.ino)?;
                add_links(dirs.from(), -1);
                add_links(dirs.to(), 1);
            }
            if second.raw.mode() >> 12 == 4 {
                dir::set_parent(volume, &handle, other, &mut second, self.source.ino)?;
                add_links(dirs.to(), -1);
                add_links(dirs.from(), 1);
            }
        }
        for (cell, core) in [(cell, &mut core), (other, &mut second)] {
            core.raw.set_time(Stamp::Change, volume.now(ctx));
            volume.store(&handle, cell, core, true)?;
        }
        let (node, swapped) = (volume.attr(cell, &core), volume.attr(other, &second));
        self.finish(ctx, handle, dirs, node, Some(swapped))
    }

    fn finish(
        &self,
        ctx: &OpCtx<'_>,
        handle: Handle<'_>,
        mut dirs: Dirs<'_>,
        node: polylane_vfs::Attr,
        other: Option<polylane_vfs::Attr>,
    ) -> Result<Renamed> {
        let volume = self.volume;
        dirs.from().touch(volume.now(ctx));
        dirs.to().touch(volume.now(ctx));
        volume.store(&handle, self.source, dirs.from(), true)?;
        volume.store(&handle, self.target, dirs.to(), true)?;
        handle.complete();
        Ok(Renamed {
            from_dir: volume.attr(self.source, dirs.from()),
            to_dir: volume.attr(self.target, dirs.to()),
            node,
            other,
        })
    }
}
