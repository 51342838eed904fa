//! One inode: its state, its content by kind, its extended attributes, and what it is charged for.
//!
//! # Invariants
//!
//! - `attr.size` and `attr.blocks` agree with the content whenever the slot's lock is free.
//! - A directory with `nlink` 0 is dead: it is empty and takes no new names.

use super::dir::{Directory, Target};
use super::pages::{Freed, Pages};
use super::space::{PAGE_SIZE, Space};
use crate::flags::SETTABLE;
use crate::fs::{
    Acl, AclKind, Attr, Fallocate, Kind, NewNode, SeekFor, SetAttr, SetTime, Source, XattrMode,
};
use polylane_base::{Errno, Ino, Result, Time};
use std::collections::BTreeMap;

/// Largest file. Offsets are `off_t`.
pub(super) const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes a directory entry adds to the size of its directory, as tmpfs shows it.
const ENTRY_SIZE: u64 = 20;
/// Longest target of a symbolic link that costs nothing beside its inode.
const SHORT_TARGET: usize = 128;
/// Charge of an extended attribute beside its name and value: its place in the tree.
const XATTR_CHARGE: u64 = 64;
/// XATTR_SIZE_MAX of linux/limits.h.
const XATTR_VALUE_MAX: usize = 65536;
/// XATTR_LIST_MAX of linux/limits.h: all names of an inode with their NULs.
const XATTR_LIST_MAX: usize = 65536;
/// XATTR_NAME_MAX of linux/limits.h.
const XATTR_NAME_MAX: usize = 255;

/// What an inode holds.
pub(super) enum Body {
    File(Pages),
    Dir(Directory),
    Symlink(Box<[u8]>),
    Special,
}

/// An inode in the table.
pub(super) struct Inode {
    /// State as the VFS sees it.
    pub(super) attr: Attr,
    /// Content.
    pub(super) body: Body,
    xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

impl Inode {
    /// A new inode; its number comes from the table. Directories start with two links, others with
    /// `nlink`.
    pub(super) fn new(new: &NewNode<'_>, nlink: u32, now: Time) -> Inode {
        let (body, size) = match new.kind {
            Kind::File => (Body::File(Pages::default()), 0),
            Kind::Dir => (Body::Dir(Directory::default()), 2 * ENTRY_SIZE),
            Kind::Symlink => (Body::Symlink(new.target.into()), new.target.len() as u64),
            _ => (Body::Special, 0),
        };
        let device = matches!(new.kind, Kind::Char | Kind::Block);
        let attr = Attr {
            ino: Ino(0),
            generation: 0,
            kind: new.kind,
            perm: new.perm & 0o7777,
            nlink: if new.kind == Kind::Dir { 2 } else { nlink },
            uid: new.uid,
            gid: new.gid,
            rdev: if device { new.rdev } else { 0 },
            size,
            blocks: 0,
            blksize: PAGE_SIZE as u32,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: new.flags,
        };
        let value = |(kind, acl): (AclKind, &Acl)| (kind.name().into(), acl.to_value().into());
        let mut inode = Inode { attr, body, xattrs: new.acls.each().map(value).collect() };
        inode.attr.blocks = inode.target_charge() / 512;
        inode
    }

    /// Bytes this inode is charged for.
    pub(super) fn charge(&self) -> u64 {
        let pages = match &self.body {
            Body::File(pages) => pages.count() * PAGE_SIZE,
            _ => 0,
        };
        let xattrs = self.xattrs.iter().map(|(name, value)| xattr_charge(name, value));
        pages + self.target_charge() + xattrs.sum::<u64>()
    }

    /// Takes out the pages of an inode that goes away.
    pub(super) fn take_pages(&mut self) -> Freed {
        match &mut self.body {
            Body::File(pages) => pages.cut(0),
            _ => Freed::default(),
        }
    }

    /// The pages of a regular file; `EISDIR` or `EINVAL` for anything else.
    pub(super) fn file(&self) -> Result<&Pages> {
        match &self.body {
            Body::File(pages) => Ok(pages),
            Body::Dir(_) => Err(Errno::EISDIR),
            Body::Symlink(_) | Body::Special => Err(Errno::EINVAL),
        }
    }

    fn file_mut(&mut self) -> Result<&mut Pages> {
        match &mut self.body {
            Body::File(pages) => Ok(pages),
            Body::Dir(_) => Err(Errno::EISDIR),
            Body::Symlink(_) | Body::Special => Err(Errno::EINVAL),
        }
    }

    /// The names of a directory; `ENOTDIR` for anything else.
    pub(super) fn dir(&self) -> Result<&Directory> {
        match &self.body {
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Changes the names of a living directory; its size and times follow.
    pub(super) fn change_dir<T>(
        &mut self,
        now: Time,
        change: impl FnOnce(&mut Directory) -> Result<T>,
    ) -> Result<T> {
        let Body::Dir(names) = &mut self.body else { return Err(Errno::ENOTDIR) };
        if self.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let value = change(names)?;
        self.attr.size = (2 + names.len() as u64) * ENTRY_SIZE;
        (self.attr.mtime, self.attr.ctime) = (now, now);
        Ok(value)
    }

    /// Adds a name to this directory, and the link that a subdirectory's `..` is.
    pub(super) fn add_name(&mut self, name: &[u8], target: Target, now: Time) -> Result<()> {
        self.change_dir(now, |names| names.insert(name, target))?;
        self.attr.nlink += u32::from(target.kind == Kind::Dir);
        Ok(())
    }

    /// Removes a name, and the link that a subdirectory's `..` was.
    pub(super) fn remove_name(&mut self, name: &[u8], now: Time) -> Result<Target> {
        let target = self.change_dir(now, |names| names.remove(name))?;
        self.attr.nlink -= u32::from(target.kind == Kind::Dir);
        Ok(target)
    }

    /// Lets an existing name stand for `target`; the link count follows the kinds.
    pub(super) fn replace_name(&mut self, name: &[u8], target: Target, now: Time) -> Result<()> {
        let old = self.dir()?.get(name).ok_or(Errno::ENOENT)?;
        self.change_dir(now, |names| names.replace(name, target))?;
        self.attr.nlink += u32::from(target.kind == Kind::Dir);
        self.attr.nlink -= u32::from(old.kind == Kind::Dir);
        Ok(())
    }

    /// Marks an empty directory dead; `ENOTEMPTY` when it holds names.
    pub(super) fn bury_dir(&mut self, now: Time) -> Result<Attr> {
        match self.dir()?.len() {
            0 => {
                self.attr.nlink = 0;
                self.attr.ctime = now;
                Ok(self.attr)
            }
            _ => Err(Errno::ENOTEMPTY),
        }
    }

    /// Writes to a file; the count may be short when space runs out, `ENOSPC` when it is 0.
    pub(super) fn write(
        &mut self,
        offset: u64,
        source: &mut dyn Source,
        space: &Space,
        now: Time,
    ) -> Result<usize> {
        let wanted = source.len();
        let in_range = offset.checked_add(wanted as u64).is_some_and(|end| end <= FILE_SIZE_MAX);
        if !in_range {
            return Err(Errno::EFBIG);
        }
        let pages = self.file_mut()?;
        let count = pages.write(offset, source, space);
        let blocks = pages.count() * (PAGE_SIZE / 512);
        if count == 0 && wanted > 0 {
            return Err(Errno::ENOSPC);
        }
        self.attr.blocks = blocks;
        self.attr.size = self.attr.size.max(if count > 0 { offset + count as u64 } else { 0 });
        (self.attr.mtime, self.attr.ctime) = (now, now);
        Ok(count)
    }

    /// Applies `set`. What a shrinking file loses comes back as [`Freed`].
    pub(super) fn set(&mut self, set: &SetAttr, now: Time) -> Result<Freed> {
        let mut freed = Freed::default();
        if let Some(size) = set.size {
            if size > FILE_SIZE_MAX {
                return Err(Errno::EFBIG);
            }
            let shrinks = size < self.attr.size;
            let pages = self.file_mut()?;
            if shrinks {
                freed = pages.cut(size);
            }
            self.attr.blocks = pages_blocks(self.file()?);
            self.attr.size = size;
            self.attr.mtime = now;
        }
        let attr = &mut self.attr;
        attr.perm = set.perm.map_or(attr.perm, |perm| perm & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if let Some(flags) = set.flags {
            attr.flags = attr.flags & !SETTABLE | flags & SETTABLE;
        }
        attr.atime = chosen(set.atime, attr.atime, now);
        attr.mtime = chosen(set.mtime, attr.mtime, now);
        attr.ctime = set.ctime.unwrap_or(now);
        Ok(freed)
    }

    /// `fallocate(2)`, see fallocate(2) for the rules of each mode.
    pub(super) fn fallocate(
        &mut self,
        mode: Fallocate,
        offset: u64,
        len: u64,
        space: &Space,
        now: Time,
    ) -> Result<Freed> {
        let size = self.attr.size;
        let end = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        let pages = self.file_mut()?;
        let mut freed = Freed::default();
        let new_size = match mode {
            Fallocate::Allocate { keep_size } => {
                reserve(pages, offset, end, space)?;
                if keep_size { size } else { size.max(end) }
            }
            Fallocate::ZeroRange { keep_size } => {
                reserve(pages, offset, end, space)?;
                freed = pages.zero(offset, end);
                if keep_size { size } else { size.max(end) }
            }
            Fallocate::PunchHole => {
                // The page that the file ends in goes whole: what follows the end is zeros anyway.
                let end = if end >= size { end.next_multiple_of(PAGE_SIZE) } else { end };
                freed = pages.punch(offset, end);
                size
            }
            Fallocate::CollapseRange => {
                check_shift(offset, len, end < size)?;
                freed = pages.collapse(offset / PAGE_SIZE, end / PAGE_SIZE);
                size - len
            }
            Fallocate::InsertRange => {
                check_shift(offset, len, offset < size)?;
                if size.checked_add(len).is_none_or(|grown| grown > FILE_SIZE_MAX) {
                    return Err(Errno::EFBIG);
                }
                pages.insert(offset / PAGE_SIZE, len / PAGE_SIZE);
                size + len
            }
        };
        self.attr.blocks = pages_blocks(self.file()?);
        self.attr.size = new_size;
        self.attr.ctime = now;
        if new_size != size || !matches!(mode, Fallocate::Allocate { .. }) {
            self.attr.mtime = now;
        }
        Ok(freed)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`. Reserved pages are holes; the end of the file is one too.
    pub(super) fn seek(&self, offset: u64, target: SeekFor) -> Result<u64> {
        let pages = self.file()?;
        if offset >= self.attr.size {
            return Err(Errno::ENXIO);
        }
        let from = offset / PAGE_SIZE;
        let found = match target {
            SeekFor::Data => pages.next_data(from).ok_or(Errno::ENXIO)?,
            SeekFor::Hole => pages.next_hole(from),
        };
        let at = found.saturating_mul(PAGE_SIZE).max(offset);
        match target {
            SeekFor::Data if at >= self.attr.size => Err(Errno::ENXIO),
            _ => Ok(at.min(self.attr.size)),
        }
    }

    /// An extended attribute's value.
    pub(super) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if AclKind::from_name(name).is_none() {
            check_xattr_name(name)?;
        }
        self.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::ENODATA)
    }

    /// The names of all extended attributes.
    pub(super) fn xattr_names(&self) -> Vec<Vec<u8>> {
        self.xattrs.keys().map(|name| name.to_vec()).collect()
    }

    /// Writes an extended attribute and settles its charge.
    pub(super) fn set_xattr(
        &mut self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        space: &Space,
        now: Time,
    ) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        let old = match (self.xattrs.get(name), mode) {
            (Some(_), XattrMode::Create) => return Err(Errno::EEXIST),
            (None, XattrMode::Replace) => return Err(Errno::ENODATA),
            (Some(old), _) => xattr_charge(name, old),
            (None, _) => self.check_xattr_room(name).map(|()| 0)?,
        };
        let new = xattr_charge(name, value);
        if !space.take_bytes(new.saturating_sub(old)) {
            return Err(Errno::ENOSPC);
        }
        self.xattrs.insert(name.into(), value.into());
        space.give_bytes(old.saturating_sub(new));
        self.attr.ctime = now;
        Ok(())
    }

    /// Sets or removes an access control list and settles its charge.
    pub(super) fn set_acl(
        &mut self,
        kind: AclKind,
        acl: Option<&Acl>,
        space: &Space,
    ) -> Result<()> {
        let (name, value) = (kind.name(), acl.map(Acl::to_value));
        let old = self.xattrs.get(name).map_or(0, |old| xattr_charge(name, old));
        let new = value.as_ref().map_or(0, |value| xattr_charge(name, value));
        if !space.take_bytes(new.saturating_sub(old)) {
            return Err(Errno::ENOSPC);
        }
        match value {
            Some(value) => self.xattrs.insert(name.into(), value.into()),
            None => self.xattrs.remove(name),
        };
        space.give_bytes(old.saturating_sub(new));
        Ok(())
    }

    /// Removes an extended attribute and its charge.
    pub(super) fn remove_xattr(&mut self, name: &[u8], space: &Space, now: Time) -> Result<()> {
        check_xattr_name(name)?;
        let value = self.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        space.give_bytes(xattr_charge(name, &value));
        self.attr.ctime = now;
        Ok(())
    }

    fn check_xattr_room(&self, name: &[u8]) -> Result<()> {
        let listed: usize = self.xattrs.keys().map(|name| name.len() + 1).sum();
        match listed + name.len() < XATTR_LIST_MAX {
            true => Ok(()),
            false => Err(Errno::ENOSPC),
        }
    }

    fn target_charge(&self) -> u64 {
        match &self.body {
            Body::Symlink(target) => target_charge(target),
            _ => 0,
        }
    }
}

/// What a symbolic link with this target is charged for.
pub(super) fn target_charge(target: &[u8]) -> u64 {
    match target.len() > SHORT_TARGET {
        true => (target.len() as u64).next_multiple_of(PAGE_SIZE),
        false => 0,
    }
}

fn xattr_charge(name: &[u8], value: &[u8]) -> u64 {
    XATTR_CHARGE + (name.len() + value.len()) as u64
}

/// Attributes with a meaning are refused: access control lists are set by themselves.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let Some(space) = known.iter().find(|space| name.starts_with(space)) else {
        return Err(Errno::EOPNOTSUPP);
    };
    match name.len() {
        n if n > XATTR_NAME_MAX => Err(Errno::ERANGE),
        n if n == space.len() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn pages_blocks(pages: &Pages) -> u64 {
    pages.count() * (PAGE_SIZE / 512)
}

fn reserve(pages: &mut Pages, offset: u64, end: u64, space: &Space) -> Result<()> {
    match pages.reserve(offset / PAGE_SIZE, end.div_ceil(PAGE_SIZE), space) {
        true => Ok(()),
        false => Err(Errno::ENOSPC),
    }
}

/// Ranges that move pages must be whole pages and lie before the end.
fn check_shift(offset: u64, len: u64, inside: bool) -> Result<()> {
    match offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && inside {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn chosen(set: Option<SetTime>, old: Time, now: Time) -> Time {
    match set {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(time)) => time,
    }
}
