//! `hostdir`: a directory of the host as a libservice, confined to what lies below it.
//!
//! | file | what |
//! |---|---|
//! | `host.rs` | host calls, one confined component at a time |
//! | `node.rs` | a known inode: identity, place, descriptors |
//! | `table.rs` | our inode numbers |
//! | `descriptors.rs` | path and real descriptors, bounded |
//! | `create.rs` | new inodes with owner and mode |
//! | `granted.rs` | modes of files that have access lists |
//! | `saved.rs`, `former.rs` | what the next service is to know, and what a former one left |
//! | `stream.rs` | directory streams |
//! | `xattr.rs` | extended attributes |
//!
//! # Confinement
//!
//! The only paths the host ever sees are single components relative to a descriptor of a
//! directory below the root, never `.`/`..` from outside, never followed when they are symbolic
//! links, and `/proc/self/fd/N` of a descriptor whose inode was checked. Links are read, not
//! followed: the VFS walks them. Nested mounts are refused (`EXDEV`), so nothing but this mount
//! is reached. Devices, pipes and sockets are listed, made, renamed and removed, but never
//! opened.
//!
//! # What is the host's
//!
//! Others may change the directory at any time (`volatile`). An inode that was moved behind our
//! back and whose descriptor had to be closed is `ESTALE` until it is looked up again. Time
//! stamps come from the host's clock; a given `ctime` is ignored. A service that is not root
//! passes on what the kernel says to chown and mknod. Extended attributes: `user.*` of files and
//! directories; the other name spaces mean something to the host and are not a tenant's.

mod create;
mod descriptors;
mod former;
mod granted;
mod host;
mod node;
mod saved;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod xattr;

use crate::ctx::OpCtx;
use crate::fs::{
    AccessTimes, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind, NewNode,
    RenameMode, Renamed, Revived, SeekFor, SetAttr, SetTime, Sink, Source, StatFs, XattrMode,
};
use crate::handover::{Record, Store};
use descriptors::Descriptors;
use host::{HostStat, component, errno};
use node::{Held, Node};
use polylane_base::{Errno, Ino, Result, Time};
use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use table::Table;
pub use table::is_own_number;
use xattr::Shown;

/// Bytes moved per host call, and so per buffer.
const CHUNK_SIZE: usize = 256 << 10;
/// Descriptors kept when the process may have very many.
const DESCRIPTORS_MAX: u64 = 1 << 16;

/// A host directory. Thread-safe. To be made in the process that uses it: it holds `/proc/self/fd`.
pub struct HostDir {
    table: Table,
    fds: Descriptors,
    root: Arc<Node>,
    shown: Shown,
    /// The kernel takes a detached mount out of all namespaces with the last copy of the descriptor
    /// that made it. Each use of such a mount ends under the host's lock of all mounts, and lets
    /// openat2(2) calls that stay below a directory fail with `EAGAIN`.
    _dir: OwnedFd,
}

impl HostDir {
    /// Serves the directory that `dir` stands for (`O_PATH` suffices), with at most half of the
    /// descriptors that the process may have. `ENOTDIR` when it is none.
    pub fn new(dir: OwnedFd) -> Result<HostDir> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let half = limit.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX) / 2;
        HostDir::open(dir, half as usize, None)
    }

    /// As [`HostDir::new`], with a bound on the descriptors kept.
    pub fn with_descriptors(dir: OwnedFd, limit: usize) -> Result<HostDir> {
        HostDir::open(dir, limit, None)
    }

    /// A layer of a union, whose upper takes what is changed: besides `user.*` attributes it shows
    /// access control lists and capabilities of programs. Else as
    /// [`HostDir::with_descriptors`].
    pub fn layer(dir: OwnedFd, limit: usize) -> Result<HostDir> {
        let dir = HostDir::open(dir, limit, None)?;
        Ok(HostDir { shown: Shown::OfLayers, ..dir })
    }

    /// As [`HostDir::new`], to go on for a former service of this directory that left `records`,
    /// and to be followed by others in the same way.
    pub fn handed_over(dir: OwnedFd, store: Arc<Store>, records: &[Record]) -> Result<HostDir> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let half = limit.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX) / 2;
        HostDir::open(dir, half as usize, Some((store, records)))
    }

    fn open(
        dir: OwnedFd,
        limit: usize,
        former: Option<(Arc<Store>, &[Record])>,
    ) -> Result<HostDir> {
        let found = host::stat(&dir)?;
        if found.attr.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let fds = Descriptors::new(limit.max(16))?;
        let (table, root) = Table::new(&found, former);
        let path = fds.as_path(&dir)?;
        fds.keep_path(&root, path);
        Ok(HostDir { table, fds, root, shown: Shown::OfUsers, _dir: dir })
    }

    fn dir(&self, ino: Ino) -> Result<(Arc<Node>, Arc<Held>)> {
        let node = self.table.get(ino)?;
        let path = self.fds.path(&node)?;
        Ok((node, path))
    }

    fn stat(&self, node: &Arc<Node>) -> Result<Attr> {
        let found = node.host_stat(|dir| self.fds.path(dir))?;
        Ok(self.shown(node, &found))
    }

    /// The state as it is shown. Where access lists are not, the mode grants nobody more than the
    /// list does.
    fn shown(&self, node: &Arc<Node>, found: &HostStat) -> Attr {
        let attr = Attr { ino: node.ino, ..found.attr };
        match self.shown {
            Shown::OfLayers => attr,
            Shown::OfUsers => Attr { perm: granted::perm(&self.fds, node, &attr), ..attr },
        }
    }

    /// Looks at an entry; mount points below are not ours.
    fn find(&self, dir: &Held, name: &[u8]) -> Result<HostStat> {
        let found = host::stat_at(dir, name)?;
        match found.mount_root {
            true => Err(Errno::EXDEV),
            false => Ok(found),
        }
    }

    /// Before a name goes: if the VFS holds its inode, a descriptor keeps it reachable without one.
    fn hold(&self, found: &HostStat) -> Result<Option<Arc<Node>>> {
        let Some(node) = self.table.known(&found.key) else { return Ok(None) };
        self.fds.path(&node)?;
        Ok(Some(node))
    }

    /// After a name went: the state of its inode.
    fn after_removal(
        &self,
        held: Option<Arc<Node>>,
        found: HostStat,
        place: (&Arc<Node>, &[u8]),
    ) -> Result<Attr> {
        match held {
            Some(node) => {
                node.leave(place.0, place.1);
                self.stat(&node)
            }
            None => {
                let nlink = if found.attr.kind == Kind::Dir { 0 } else { found.attr.nlink - 1 };
                Ok(Attr { nlink, ..found.attr })
            }
        }
    }

    fn remove(&self, dir: Ino, name: &[u8], flags: AtFlags) -> Result<Changed> {
        let name = component(name)?;
        let (dir, path) = self.dir(dir)?;
        let found = self.find(&path, name)?;
        let held = self.hold(&found)?;
        rustix::fs::unlinkat(&path, name, flags).map_err(errno)?;
        let node = self.after_removal(held, found, (&dir, name))?;
        Ok(Changed { dir: self.stat(&dir)?, node })
    }

    fn set_times(&self, path: &Held, set: &SetAttr) -> Result<()> {
        if set.atime.is_none() && set.mtime.is_none() {
            return Ok(());
        }
        let times =
            Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
        rustix::fs::utimensat(path, "", &times, AtFlags::EMPTY_PATH).map_err(errno)
    }
}

impl FileSystem for HostDir {
    fn character(&self) -> Character {
        // The host changes its files beside us, and its page cache holds them already.
        Character { access_times: AccessTimes::Never, ..Character::VOLATILE }
    }

    fn root(&self) -> Result<Attr> {
        self.stat(&self.root)
    }

    fn lookup(&self, _: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let name = component(name)?;
        let (dir, path) = self.dir(dir)?;
        let found = self.find(&path, name)?;
        let node = self.table.intern(&found, Some((&dir, name)));
        Ok(self.shown(&node, &found))
    }

    fn getattr(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.stat(&self.table.get(ino)?)
    }

    fn setattr(&self, _: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.table.get(ino)?;
        let path = self.fds.path(&node)?;
        if let Some(size) = set.size {
            let fd = self.fds.writer(&node)?;
            self.fds.keeping_set_id(&fd, || rustix::fs::ftruncate(&fd, size).map_err(errno))?;
        }
        // chown(-1, -1) moves the time of change on the host, too.
        if set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default() {
            let uid = set.uid.map(create::host_uid).transpose()?;
            let gid = set.gid.map(create::host_gid).transpose()?;
            rustix::fs::chownat(&path, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        if let Some(perm) = set.perm {
            self.fds.chmod(&path, perm)?;
        }
        self.set_times(&path, set)?;
        self.stat(&node)
    }

    fn create(&self, _: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let name = component(name)?;
        let (dir, path) = self.dir(dir)?;
        let (fd, found) = create::named(&self.fds, &path, name, new)?;
        let node = self.table.intern(&found, Some((&dir, name)));
        self.fds.keep_path(&node, fd);
        Ok(Changed { dir: self.stat(&dir)?, node: self.shown(&node, &found) })
    }

    fn create_unlinked(&self, _: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        let (_, path) = self.dir(dir)?;
        let (fd, found) = create::unnamed(&self.fds, &path, new)?;
        let node = self.table.intern(&found, None);
        self.fds.keep_path(&node, fd);
        Ok(self.shown(&node, &found))
    }

    fn link(&self, _: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let name = component(name)?;
        let node = self.table.get(ino)?;
        let (dir, dir_path) = self.dir(dir)?;
        self.fds.link(&*self.fds.path(&node)?, &dir_path, name)?;
        node.put(&dir, name);
        Ok(Changed { dir: self.stat(&dir)?, node: self.stat(&node)? })
    }

    fn unlink(&self, _: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.remove(dir, name, AtFlags::empty())
    }

    fn rmdir(&self, _: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.remove(dir, name, AtFlags::REMOVEDIR)
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
        let (from, to) = (component(from)?, component(to)?);
        let (from_node, from_path) = self.dir(from_dir)?;
        let (to_node, to_path) = self.dir(to_dir)?;
        let found = self.find(&from_path, from)?;
        let other = match self.find(&to_path, to) {
            Ok(other) => Some((self.hold(&other)?, other)),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        let flags = rename_flags(mode);
        rustix::fs::renameat_with(&from_path, from, &to_path, to, flags).map_err(errno)?;
        let node = self.table.intern(&found, Some((&to_node, to)));
        let other = match (other, mode) {
            (None, _) => None,
            (Some((_, other)), RenameMode::Exchange) => {
                let node = self.table.intern(&other, Some((&from_node, from)));
                Some(self.stat(&node)?)
            }
            (Some((held, other)), _) => Some(self.after_removal(held, other, (&to_node, to))?),
        };
        if mode == RenameMode::Whiteout {
            let new = NewNode::whiteout(ctx, &self.stat(&from_node)?);
            create::own_whiteout(&self.fds, &from_path, from, &new);
        }
        Ok(Renamed {
            from_dir: self.stat(&from_node)?,
            to_dir: self.stat(&to_node)?,
            node: self.stat(&node)?,
            other,
        })
    }

    fn readlink(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        let path = self.fds.path(&self.table.get(ino)?)?;
        let target = rustix::fs::readlinkat(&path, "", Vec::new());
        match target {
            Ok(target) => Ok(target.into_bytes()),
            // What a descriptor that is no link says.
            Err(rustix::io::Errno::NOENT) => Err(Errno::EINVAL),
            Err(error) => Err(errno(error)),
        }
    }

    fn readdir(
        &self,
        _: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.table.get(dir)?;
        if dir.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let mut from = from;
        loop {
            let batch = stream::batch(&self.fds, &dir, from)?;
            let Some(last) = batch.last() else { return Ok(()) };
            from = last.next;
            for entry in &batch {
                let stream::Listed { ino, next, kind, ref name } = *entry;
                if !each(DirEntry { ino, next, kind, name }) {
                    return Ok(());
                }
            }
        }
    }

    /// By the host's page cache.
    fn is_cached_below(&self, _: Ino) -> bool {
        true
    }

    fn read(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let node = self.table.get(ino)?;
        if node.kind == Kind::Dir {
            return Err(Errno::EISDIR);
        }
        let fd = self.fds.reader(&node)?;
        let mut buffer = Vec::with_capacity(len.min(CHUNK_SIZE));
        let mut done = 0;
        while done < len {
            buffer.clear();
            buffer.reserve_exact((len - done).min(CHUNK_SIZE));
            let spare = rustix::buffer::spare_capacity(&mut buffer);
            let count = match rustix::io::pread(&fd, spare, offset + done as u64) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(errno)?,
            };
            if count == 0 {
                break;
            }
            let wanted = count.min(len - done);
            sink.put(done, &buffer[..wanted]);
            done += wanted;
        }
        Ok(done)
    }

    fn write(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let node = self.table.get(ino)?;
        let fd = self.fds.writer(&node)?;
        self.fds.keeping_set_id(&fd, || write_all(&fd, offset, source))
    }

    fn fallocate(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        let node = self.table.get(ino)?;
        let fd = self.fds.writer(&node)?;
        let flags = fallocate_flags(mode);
        self.fds.keeping_set_id(&fd, || {
            rustix::fs::fallocate(&fd, flags, offset, len).map_err(errno)
        })?;
        self.stat(&node)
    }

    fn seek(&self, _: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        let fd = self.fds.reader(&self.table.get(ino)?)?;
        let target = match target {
            SeekFor::Data => SeekFrom::Data(offset),
            SeekFor::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(fd, target).map_err(errno)
    }

    fn getxattr(&self, _: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        xattr::get(&self.fds, &self.table.get(ino)?, (name, self.shown))
    }

    fn setxattr(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        let node = self.table.get(ino)?;
        xattr::set(&self.fds, &node, name, value, mode)?;
        self.stat(&node)
    }

    fn listxattr(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        xattr::list(&self.fds, &self.table.get(ino)?, self.shown)
    }

    fn removexattr(&self, _: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        let node = self.table.get(ino)?;
        xattr::remove(&self.fds, &node, name)?;
        self.stat(&node)
    }

    fn fsync(&self, _: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        let node = self.table.get(ino)?;
        if !matches!(node.kind, Kind::File | Kind::Dir) {
            return Ok(());
        }
        let fd = self.fds.reader(&node)?;
        match data_only {
            true => rustix::fs::fdatasync(fd).map_err(errno),
            false => rustix::fs::fsync(fd).map_err(errno),
        }
    }

    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        rustix::fs::syncfs(self.fds.reader(&self.root)?).map_err(errno)
    }

    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        let found = rustix::fs::fstatfs(self.fds.path(&self.root)?).map_err(errno)?;
        Ok(StatFs {
            bsize: found.f_bsize as u32,
            blocks: found.f_blocks,
            bfree: found.f_bfree,
            bavail: found.f_bavail,
            files: found.f_files,
            ffree: found.f_ffree,
            namelen: found.f_namelen as u32,
            magic: found.f_type as u32,
        })
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let node = self.table.revive(ino)?;
        let attr = self.stat(&node)?;
        if generation.is_some_and(|generation| generation != attr.generation) {
            return Err(Errno::ESTALE);
        }
        let dir = node.look().0.map(|place| place.dir.ino);
        Ok(Revived { attr, dir })
    }

    fn end_revival(&self) {
        self.table.end_revival();
    }

    fn forget(&self, ino: Ino) {
        if ino != self.root.ino {
            self.table.forget(ino);
        }
    }
}

/// Writes what a source has; how much of it the host took.
fn write_all(fd: &Held, offset: u64, source: &mut dyn Source) -> Result<usize> {
    let len = source.len();
    let mut buffer = vec![0; len.min(CHUNK_SIZE)];
    let mut done = 0;
    while done < len {
        let chunk = &mut buffer[..(len - done).min(CHUNK_SIZE)];
        source.get(done, chunk);
        let (count, failed) = write_chunk(fd, chunk, offset + done as u64);
        done += count;
        match failed {
            Some(failed) if done == 0 => return Err(failed),
            Some(_) => break,
            None => {}
        }
    }
    Ok(done)
}

/// Writes a buffer; how much was written and what stopped it.
fn write_chunk(fd: &Held, chunk: &[u8], offset: u64) -> (usize, Option<Errno>) {
    let mut done = 0;
    while done < chunk.len() {
        match rustix::io::pwrite(fd, &chunk[done..], offset + done as u64) {
            Ok(0) => return (done, Some(Errno::EIO)),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return (done, Some(errno(error))),
        }
    }
    (done, None)
}

fn rename_flags(mode: RenameMode) -> RenameFlags {
    match mode {
        RenameMode::Replace => RenameFlags::empty(),
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
        RenameMode::Whiteout => RenameFlags::WHITEOUT,
    }
}

fn fallocate_flags(mode: Fallocate) -> FallocateFlags {
    let kept = |keep_size| match keep_size {
        true => FallocateFlags::KEEP_SIZE,
        false => FallocateFlags::empty(),
    };
    match mode {
        Fallocate::Allocate { keep_size } => kept(keep_size),
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | kept(keep_size),
        Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
    }
}

fn timespec(set: Option<SetTime>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match set {
        None => special(rustix::fs::UTIME_OMIT),
        Some(SetTime::Now) => special(rustix::fs::UTIME_NOW),
        Some(SetTime::At(Time { sec, nsec })) => Timespec { tv_sec: sec, tv_nsec: nsec.into() },
    }
}
