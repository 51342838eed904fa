//! The libservice: a Ceph file system behind the [`FileSystem`] seam.
//!
//! Rights were checked above, so libcephfs checks none. The cluster is told on whose behalf each
//! call is, since a key may be limited to some users (`uid=`, `root_squash`); what is made gets its
//! owner so. A file that is open already is read and written by a handle, whoever opened it.
//!
//! # What Ceph does not have
//!
//! Files without a name (`O_TMPFILE`), `renameat2` with flags, `fallocate` but for holes:
//! `EOPNOTSUPP` or `EINVAL`, as on the kernel's own client.

mod names;

use std::time::SystemTime;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Clock, Errno, Gid, Ino, Result, Time, Uid};
use polylane_sys::room::Room;
use polylane_vfs::fs::{
    Changed, Character, DirEntry, Fallocate, Last, NewNode, RenameMode, Renamed, Revived, SeekFor,
    SetTime, SharedLocks, Sink, Source, StatFs, Work, XattrMode,
};
use polylane_vfs::{Attr, FileSystem, Kind, OpCtx, SetAttr};

use crate::ffi::{Caller, Inode, Mount, Stat, change};
use crate::inodes::{Inodes, Node, Tables};
use crate::listing::Listing;

/// Bytes of one read or write: larger ones would hold the client's lock for long.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Bytes of one read where the client has what is read, so that a program has the first ones while
/// later ones are copied.
const STEP_BYTES: usize = 64 << 10;

/// Bytes of a hole that are asked for at once.
const HOLE_BYTES_MAX: u64 = 1 << 30;

/// A hole that takes many calls, of which a lane makes one at a time: each holds a thread that
/// waits for the cluster, of which there are few.
struct LongHole<'a>(&'a AtomicBool);

impl LongHole<'_> {
    /// `EBUSY`: there is one.
    fn begin(has_one: &AtomicBool) -> Result<LongHole<'_>> {
        match has_one.swap(true, Ordering::Relaxed) {
            true => Err(Errno::EBUSY),
            false => Ok(LongHole(has_one)),
        }
    }
}

impl Drop for LongHole<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// `f_type` of a Ceph file system.
const MAGIC: u32 = 0x00c3_6400;

/// The only one that an inode number ever has: the cluster uses none again.
const GENERATION: u64 = 1;

/// A directory of a mounted client as a file system. Thread-safe.
pub struct CephFs {
    mount: Arc<Mount>,
    inodes: Arc<Inodes>,
    root: Arc<Node>,
    /// The root is the directory that is mounted, whose quota the client library knows.
    is_mounted: bool,
    pieces: Pieces,
    has_long_hole: AtomicBool,
    /// As long as it is there, idle handles are closed, also when the client it came from is gone.
    _tables: Arc<Tables>,
}

impl CephFs {
    /// The directory `root` of a client.
    pub(crate) fn new(
        mount: &Arc<Mount>,
        root: Inode,
        is_mounted: bool,
        tables: &Arc<Tables>,
    ) -> Result<CephFs> {
        let stat = root.stat(&mount.service)?;
        let inodes = Arc::new(Inodes::default());
        let root = inodes.hold(root, &stat);
        let (mount, _tables) = (mount.clone(), tables.clone());
        let (pieces, has_long_hole) = Default::default();
        Ok(CephFs { mount, inodes, root, is_mounted, pieces, has_long_hole, _tables })
    }

    /// How many files have an open handle, which keeps other hosts from caching what they write.
    pub fn open_handles(&self) -> usize {
        self.inodes.open_handles()
    }

    /// The inodes that the VFS holds.
    pub(crate) fn inodes(&self) -> &Arc<Inodes> {
        &self.inodes
    }

    /// On whose behalf a call is made.
    fn caller(&self, ctx: &OpCtx<'_>) -> Result<Arc<Caller>> {
        match ctx.cred {
            None => Ok(self.mount.service.clone()),
            Some(cred) => self.caller_as(ctx, (cred.uid.0, cred.gid.0)),
        }
    }

    /// The same as another user and group.
    fn caller_as(&self, ctx: &OpCtx<'_>, ids: (u32, u32)) -> Result<Arc<Caller>> {
        let groups = ctx.cred.iter().flat_map(|cred| cred.groups.iter().map(|gid| gid.0));
        self.mount.caller(ids, groups.collect())
    }

    fn state(who: &Caller, node: &Node) -> Result<Attr> {
        attr(node.ino, &node.inode.stat(who)?)
    }

    /// Bytes of one read: what the cluster is asked for is asked for at once.
    fn step_bytes(&self) -> usize {
        match self.mount.counters.is_slow(Work::Read) {
            true => PIECE_BYTES,
            false => STEP_BYTES,
        }
    }

    fn changed(who: &Caller, dir: &Node, node: Attr) -> Result<Changed> {
        Ok(Changed { dir: Self::state(who, dir)?, node })
    }
}

/// Buffers of one piece each, which are used again: a fresh one's pages would be faulted in and
/// zeroed for each call.
#[derive(Default)]
struct Pieces(Mutex<Vec<Vec<u8>>>);

/// Buffers that are kept while nothing is read or written.
const PIECES_KEPT: usize = 8;

impl Pieces {
    /// Does something with a buffer of [`PIECE_BYTES`], in which is what others left.
    fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let kept = self.0.lock().pop();
        let mut piece = kept.unwrap_or_else(|| vec![0; PIECE_BYTES]);
        let result = work(&mut piece);
        let mut kept = self.0.lock();
        if kept.len() < PIECES_KEPT {
            kept.push(piece);
        }
        result
    }
}

/// The clock that libcephfs stamps its own changes with: a coarser one would step back behind it.
pub(crate) struct FineClock;

impl Clock for FineClock {
    fn now(&self) -> Time {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time { sec: now.as_secs().cast_signed(), nsec: now.subsec_nanos() }
    }
}

/// Name spaces of extended attributes; `ceph.` has layouts, quotas and statistics.
const NAME_SPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"ceph."];

/// Longest name of an extended attribute, as in Linux.
const XATTR_NAME_MAX: usize = 255;

/// Refuses names of extended attributes that Linux refuses, and libcephfs does not.
fn check_xattr(name: &[u8]) -> Result<()> {
    match NAME_SPACES.iter().any(|space| name.starts_with(space)) {
        _ if name.len() > XATTR_NAME_MAX => Err(Errno::ERANGE),
        true => Ok(()),
        false => Err(Errno::EOPNOTSUPP),
    }
}

fn time(stamp: libc::timespec) -> Time {
    Time { sec: stamp.tv_sec, nsec: u32::try_from(stamp.tv_nsec).unwrap_or_default() }
}

fn attr(ino: Ino, stat: &Stat) -> Result<Attr> {
    let mode = u32::from(stat.mode);
    Ok(Attr {
        ino,
        generation: GENERATION,
        kind: Kind::from_mode(mode).ok_or(Errno::EIO)?,
        perm: mode & 0o7777,
        nlink: stat.nlink,
        uid: Uid(stat.uid),
        gid: Gid(stat.gid),
        rdev: stat.rdev,
        size: stat.size,
        blocks: stat.blocks,
        blksize: stat.blksize,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        btime: time(stat.btime),
        flags: 0,
    })
}

fn stamp(now: Time, set: SetTime) -> libc::timespec {
    let Time { sec, nsec } = match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    libc::timespec { tv_sec: sec, tv_nsec: nsec.into() }
}

/// What of `set` the cluster keeps, and the mask that names it.
fn changes(now: Time, set: &SetAttr) -> (Stat, i32) {
    let (mut stat, mut mask) = (Stat::empty(), 0);
    if let Some(perm) = set.perm {
        stat.mode = perm as u16 & 0o7777;
        mask |= change::MODE;
    }
    if let Some(uid) = set.uid {
        stat.uid = uid.0;
        mask |= change::UID;
    }
    if let Some(gid) = set.gid {
        stat.gid = gid.0;
        mask |= change::GID;
    }
    if let Some(size) = set.size {
        stat.size = size;
        mask |= change::SIZE;
    }
    if let Some(atime) = set.atime {
        stat.atime = stamp(now, atime);
        mask |= change::ATIME;
    }
    // A size that stays moves it, too, which libcephfs leaves out.
    if let Some(mtime) = set.mtime.or(set.size.map(|_| SetTime::Now)) {
        stat.mtime = stamp(now, mtime);
        mask |= change::MTIME;
    }
    (stat, mask)
}

impl FileSystem for CephFs {
    fn character(&self) -> Character {
        // Other hosts change the files beside us, and libcephfs' cache holds them already.
        Character::VOLATILE
    }

    fn root(&self) -> Result<Attr> {
        Self::state(&self.mount.service, &self.root)
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.adopt(self.find(ctx, dir, name)?)
    }

    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        Some(self)
    }

    fn keeps_writes(&self) -> bool {
        // libcephfs writes back when it likes to.
        true
    }

    fn is_slow(&self, work: Work) -> bool {
        self.mount.counters.is_slow(work)
    }

    fn own_xattrs(&self) -> &'static [u8] {
        b"ceph."
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        Self::state(&*self.caller(ctx)?, &*self.inodes.get(ino)?)
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let (who, node) = (self.caller(ctx)?, self.inodes.get(ino)?);
        let (stat, mask) = changes(ctx.now(&FineClock), set);
        if mask != 0 {
            node.inode.change(&who, stat, mask)?;
        }
        Self::state(&who, &node)
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        self.adopt_made(self.make(ctx, dir, name, new)?)
    }

    fn create_unlinked(&self, _: &OpCtx<'_>, _: Ino, _: &NewNode<'_>) -> Result<Attr> {
        Err(Errno::EOPNOTSUPP)
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let who = self.caller(ctx)?;
        let (node, dir) = (self.inodes.get(ino)?, self.inodes.get(dir)?);
        if node.is_dir() {
            return Err(Errno::EPERM);
        }
        node.inode.link(&who, &dir.inode, name)?;
        Self::changed(&who, &dir, Self::state(&who, &node)?)
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let (who, dir) = (self.caller(ctx)?, self.inodes.get(dir)?);
        let (inode, stat) = dir.inode.lookup(&who, name)?;
        self.keep_data(&who, &stat)?;
        dir.inode.unlink(&who, name)?;
        Self::changed(&who, &dir, self.after(&who, &inode, &stat)?)
    }

    fn unlink_last(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Last>> {
        let (who, dir) = (self.caller(ctx)?, self.inodes.get(dir)?);
        let (_inode, stat) = dir.inode.lookup(&who, name)?;
        if stat.nlink != 1 {
            return Ok(None);
        }
        let is_freed = is_over();
        if !is_freed {
            self.keep_data(&who, &stat)?;
        }
        dir.inode.unlink(&who, name)?;
        if is_freed {
            self.inodes.forget(self.inodes.number_of(&stat));
        }
        Ok(Some(Last { dir: Self::state(&who, &dir)?, is_freed }))
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let (who, dir) = (self.caller(ctx)?, self.inodes.get(dir)?);
        let (inode, stat) = dir.inode.lookup(&who, name)?;
        dir.inode.rmdir(&who, name)?;
        Self::changed(&who, &dir, self.after(&who, &inode, &stat)?)
    }

    fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.adopt_moved(self.rename_name(ctx, (from_dir, from), (to_dir, to), mode)?)
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.inodes.get(ino)?.inode.readlink(&*self.caller(ctx)?)
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.inodes.get(dir)?;
        let kept = node.listing.lock().take().filter(|kept| kept.goes_on_at(from));
        let mut listing = match kept {
            Some(kept) => kept,
            None => Listing::at(&*self.caller(ctx)?, &node.inode, from)?,
        };
        while let Some(listed) = listing.next(from)? {
            let (name, next) = (listed.name(), listed.next());
            // By a hostile client: a program would take it for another file's.
            if name.is_empty() || name.contains(&b'/') {
                return Err(Errno::EIO);
            }
            let kind = Kind::from_mode(listed.stat.mode.into()).ok_or(Errno::EIO)?;
            let ino = self.inodes.number_of(&listed.stat);
            if !each(DirEntry { ino, next, kind, name }) {
                listing.stop_at(listed);
                *node.listing.lock() = Some(listing);
                return Ok(());
            }
        }
        Ok(())
    }

    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let file = self.inodes.reader(ino, || self.caller(ctx))?;
        let mut done = 0;
        while done < len {
            let (at, wanted) = (offset + done as u64, (len - done).min(self.step_bytes()));
            let got = match sink.fill(done, wanted, &mut |room| file.read(at, room)) {
                Some(got) => got?,
                None => self.pieces.with(|piece| -> Result<usize> {
                    let got = file.read(at, Room::of(&mut piece[..wanted]))?;
                    sink.put(done, &piece[..got]);
                    Ok(got)
                })?,
            };
            done += got;
            if got < wanted {
                break;
            }
        }
        Ok(done)
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let file = self.inodes.writer(ino, || self.caller(ctx))?;
        let len = source.len();
        self.pieces.with(|whole| {
            let mut done = 0;
            while done < len {
                let piece = &mut whole[..(len - done).min(PIECE_BYTES)];
                source.get(done, piece);
                let written = match file.write(offset + done as u64, piece) {
                    Ok(written) => written,
                    Err(errno) if done == 0 => return Err(errno),
                    Err(_) => return Ok(done),
                };
                done += written;
                if written < piece.len() {
                    break;
                }
            }
            Ok(done)
        })
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        if mode != Fallocate::PunchHole {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let who = self.caller(ctx)?;
        let file = self.inodes.writer(ino, || Ok(who.clone()))?;
        let node = self.inodes.get(ino)?;
        // Nothing lies behind the end, and libcephfs lists all objects of what it is told.
        let end = offset.saturating_add(len).min(node.inode.stat(&who)?.size);
        let _long = match end.saturating_sub(offset) > HOLE_BYTES_MAX {
            true => Some(LongHole::begin(&self.has_long_hole)?),
            false => None,
        };
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(HOLE_BYTES_MAX);
            file.fallocate(flags, at, piece)?;
            at += piece;
        }
        Self::state(&who, &node)
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        let size = self.inodes.get(ino)?.inode.stat(&*self.caller(ctx)?)?.size;
        match target {
            _ if offset >= size => Err(Errno::ENXIO),
            // The cluster does not tell of holes.
            SeekFor::Data => Ok(offset),
            SeekFor::Hole => Ok(size),
        }
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr(name)?;
        self.inodes.get(ino)?.inode.xattr(&*self.caller(ctx)?, name)
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        check_xattr(name)?;
        let (who, node) = (self.caller(ctx)?, self.inodes.get(ino)?);
        let flags = match mode {
            XattrMode::Any => 0,
            XattrMode::Create => libc::XATTR_CREATE,
            XattrMode::Replace => libc::XATTR_REPLACE,
        };
        node.inode.set_xattr(&who, name, value, flags)?;
        Self::state(&who, &node)
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let names = self.inodes.get(ino)?.inode.xattrs(&*self.caller(ctx)?)?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        check_xattr(name)?;
        let (who, node) = (self.caller(ctx)?, self.inodes.get(ino)?);
        node.inode.remove_xattr(&who, name)?;
        Self::state(&who, &node)
    }

    fn fsync(&self, _: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.inodes.get(ino)?.sync(data_only)
    }

    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        self.mount.sync()
    }

    fn revive(&self, ino: Ino, _: Option<u64>) -> Result<Revived> {
        let (found, dir) = self.find_former(ino)?;
        Ok(Revived { attr: self.adopt(found)?, dir })
    }

    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        let totals = self.root.inode.totals()?;
        let bsize = u32::try_from(totals.f_frsize).unwrap_or(u32::MAX);
        let all = (totals.f_blocks, totals.f_bfree);
        let (blocks, free) = match self.is_mounted {
            true => all,
            false => self.root.within_quota(bsize.into(), all),
        };
        Ok(StatFs {
            bsize,
            blocks,
            bfree: free,
            bavail: totals.f_bavail.min(free),
            // There is no limit, which `df` shows for none of both.
            files: 0,
            ffree: 0,
            namelen: 255,
            magic: MAGIC,
        })
    }

    fn forget(&self, ino: Ino) {
        if ino != self.root.ino {
            self.inodes.forget(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_hole_is_made_at_a_time() {
        let has_one = AtomicBool::new(false);
        let first = LongHole::begin(&has_one).expect("none yet");
        assert_eq!(LongHole::begin(&has_one).err(), Some(Errno::EBUSY));
        drop(first);
        assert!(LongHole::begin(&has_one).is_ok());
    }
}
