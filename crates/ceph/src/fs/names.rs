//! Names found, made and moved, until the VFS holds the inodes that they stand for.
//!
//! A caller that tells the VFS of what was found adopts it. What is dropped instead, because its
//! call ended too late, leaves nothing.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::fs::{Changed, NewNode, RenameMode, Renamed};
use polylane_vfs::{Attr, Kind, OpCtx};

use super::{CephFs, attr};
use crate::ffi::{Caller, Inode, New, OpenFile, Stat, change};
use crate::inodes::is_in_snapshot;

/// An inode that the VFS does not hold yet, and its state.
pub(crate) type Found = (Inode, Stat);

/// What was made, with the handle that a file was opened by, and its directory.
pub(crate) struct Made {
    dir: Attr,
    inode: Inode,
    file: Option<(OpenFile, Arc<Caller>)>,
    stat: Stat,
}

/// What has moved, and what that changed.
pub(crate) struct Moved {
    from_dir: Attr,
    to_dir: Attr,
    inode: Inode,
    stat: Stat,
    other: Option<Attr>,
}

impl CephFs {
    /// What a name stands for.
    pub(crate) fn find(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Found> {
        self.inodes.get(dir)?.inode.lookup(&*self.caller(ctx)?, name)
    }

    /// An inode by its number, and of a directory the one that it is in.
    pub(crate) fn find_former(&self, ino: Ino) -> Result<(Found, Option<Ino>)> {
        let who = &self.mount.service;
        let inode = Inode::by_number(&self.mount, ino.0)?;
        let stat = inode.stat(who)?;
        let above = if stat.is_dir() { inode.lookup(who, b"..").ok() } else { None };
        let above = above.map(|(_, stat)| self.inodes.number_of(&stat));
        Ok(((inode, stat), above))
    }

    pub(crate) fn adopt(&self, (inode, stat): Found) -> Result<Attr> {
        let node = self.inodes.hold(inode, &stat);
        attr(node.ino, &stat)
    }

    /// `create`, until the VFS holds what is made.
    pub(crate) fn make(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Made> {
        let dir = self.inodes.get(dir)?;
        let who = self.caller(ctx)?;
        let owner = self.caller_as(ctx, (new.uid.0, new.gid.0))?;
        let (inode, file, mut stat) = match new.kind {
            Kind::File => {
                let (inode, file, stat) = dir.inode.create(&owner, name, new.perm)?;
                (inode, Some(file), stat)
            }
            kind => {
                let new = match kind {
                    Kind::Dir => New::Dir(new.perm),
                    Kind::Symlink => New::Symlink(new.target),
                    _ => New::Node(new.kind.mode_bits() | new.perm, new.rdev),
                };
                let (inode, stat) = dir.inode.make(&owner, name, new)?;
                (inode, None, stat)
            }
        };
        // The MDS takes some bits and the group from the directory; what was decided above counts,
        // but for a snapshot (a directory of `.snap`), which is as what it is of.
        let is_settled = new.kind == Kind::Symlink || is_in_snapshot(&stat);
        let (perm, gid) = (new.perm as u16 & 0o7777, new.gid.0);
        if !is_settled && (stat.mode & 0o7777, stat.gid) != (perm, gid) {
            let (mut wanted, mask) = (Stat::empty(), change::MODE | change::GID);
            (wanted.mode, wanted.gid) = (perm, gid);
            inode.change(&who, wanted, mask)?;
            stat = inode.stat(&who)?;
        }
        let file = file.map(|file| (file, who.clone()));
        Ok(Made { dir: Self::state(&who, &dir)?, inode, file, stat })
    }

    pub(crate) fn adopt_made(&self, Made { dir, inode, file, stat }: Made) -> Result<Changed> {
        let node = self.inodes.hold(inode, &stat);
        if let Some((file, who)) = file {
            self.inodes.put_writer(&node, file, who);
        }
        Ok(Changed { dir, node: attr(node.ino, &stat)? })
    }

    /// `rename`, until the VFS holds what has moved.
    pub(crate) fn rename_name(
        &self,
        ctx: &OpCtx<'_>,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Moved> {
        let (from_dir, to_dir) = (self.inodes.get(from_dir)?, self.inodes.get(to_dir)?);
        let who = self.caller(ctx)?;
        let (inode, stat) = from_dir.inode.lookup(&who, from)?;
        let replaced = match to_dir.inode.lookup(&who, to) {
            Ok(replaced) => Some(replaced),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        match mode {
            RenameMode::Replace => {}
            RenameMode::NoReplace if replaced.is_some() => return Err(Errno::EEXIST),
            RenameMode::Exchange if replaced.is_none() => return Err(Errno::ENOENT),
            // Other hosts could come in between two changes.
            RenameMode::NoReplace | RenameMode::Exchange | RenameMode::Whiteout => {
                return Err(Errno::EINVAL);
            }
        }
        if let Some((_, stat)) = &replaced {
            self.keep_data(&who, stat)?;
        }
        from_dir.inode.rename(&who, from, &to_dir.inode, to)?;
        if stat.is_dir() && from_dir.ino != to_dir.ino {
            // The client keeps the number of directories that it knew, until this has it ask.
            let _ = from_dir.inode.xattr(&who, b"ceph.dir.subdirs");
        }
        Ok(Moved {
            from_dir: Self::state(&who, &from_dir)?,
            to_dir: Self::state(&who, &to_dir)?,
            stat: inode.stat(&who)?,
            inode,
            other: replaced.map(|(inode, stat)| self.after(&who, &inode, &stat)).transpose()?,
        })
    }

    pub(crate) fn adopt_moved(&self, moved: Moved) -> Result<Renamed> {
        let Moved { from_dir, to_dir, inode, stat, other } = moved;
        Ok(Renamed { from_dir, to_dir, node: self.adopt((inode, stat))?, other })
    }

    /// A name of this inode is about to go. If it is the last one of a regular file that the VFS
    /// holds, the data lives on until the VFS forgets it.
    pub(super) fn keep_data(&self, who: &Arc<Caller>, stat: &Stat) -> Result<()> {
        if stat.is_file()
            && stat.nlink == 1
            && let Ok(node) = self.inodes.get(self.inodes.number_of(stat))
        {
            node.pin(who)?;
        }
        Ok(())
    }

    /// The state of an inode after a name of it went. It may be gone.
    pub(super) fn after(&self, who: &Caller, inode: &Inode, before: &Stat) -> Result<Attr> {
        let mut stat = inode.stat(who).unwrap_or(*before);
        stat.nlink = stat.nlink.min(before.nlink.saturating_sub(1));
        // A directory goes with its one name, whatever the client still remembers.
        if before.is_dir() {
            stat.nlink = 0;
        }
        attr(self.inodes.number_of(before), &stat)
    }
}
