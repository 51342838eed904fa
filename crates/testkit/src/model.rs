//! A file system in plain maps: slow, small, obviously right.
//!
//! One lock around everything, a `BTreeMap` of inodes, file bytes in one vector, names in a map,
//! entries in the order of their cookies. It is the reference that others are compared with, and
//! a libservice with `cache_data: true` below a `Vfs` whose page cache is under test.

use crate::model_rules::{PAGE, check_xattr, time};
use polylane_base::{Clock, Errno, Ino, Result, Time};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    AccessTimes, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind, NewNode,
    RenameMode, Renamed, SeekFor, SetAttr, Sink, Source, StatFs, XattrMode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Largest file: bytes lie in one vector.
pub const FILE_SIZE_MAX: u64 = 64 << 20;
/// The root's number.
const ROOT: u64 = 1;

type Bytes = Vec<u8>;

struct Node {
    attr: Attr,
    data: Bytes,
    /// Pages that hold data, by number; others are holes.
    pages: BTreeSet<u64>,
    /// Pages reserved by `fallocate` without data.
    reserved: BTreeSet<u64>,
    names: BTreeMap<Bytes, u64>,
    order: BTreeMap<u64, Bytes>,
    target: Bytes,
    xattrs: BTreeMap<Bytes, Bytes>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<u64, Node>,
    last_ino: u64,
    last_cookie: u64,
}

/// See the module header. Thread-safe.
pub struct Model {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

impl Model {
    /// Empty; the root belongs to user 0, mode 0755.
    pub fn new(clock: Arc<dyn Clock>) -> Model {
        let mut state = State::default();
        state.add(&NewNode::new(Kind::Dir, 0o755), 2, clock.now());
        Model { state: Mutex::new(state), clock }
    }

    fn with<T>(
        &self,
        ctx: &OpCtx<'_>,
        work: impl FnOnce(&mut State, Time) -> Result<T>,
    ) -> Result<T> {
        work(&mut self.state.lock().unwrap(), ctx.now(&*self.clock))
    }
}

impl Node {
    fn kind(&self) -> Kind {
        self.attr.kind
    }

    fn settle(&mut self) {
        if self.kind() == Kind::File {
            self.attr.size = self.data.len() as u64;
            self.attr.blocks = 8 * (self.pages.len() + self.reserved.len()) as u64;
        }
    }

    fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        let first = size.div_ceil(PAGE);
        self.pages.retain(|&page| page < first);
        self.reserved.retain(|&page| page < first);
    }

    fn zero(&mut self, start: u64, end: u64) {
        let (start, end) = (start.min(self.data.len() as u64), end.min(self.data.len() as u64));
        self.data[start as usize..end as usize].fill(0);
    }

    fn fallocate(&mut self, mode: Fallocate, start: u64, end: u64) -> Result<()> {
        let size = self.data.len() as u64;
        let len = end - start;
        let aligned = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        let touched = start / PAGE..end.div_ceil(PAGE);
        let whole = start.div_ceil(PAGE)..end / PAGE;
        match mode {
            Fallocate::Allocate { .. } => {}
            Fallocate::ZeroRange { .. } => {
                self.zero(start, end);
                self.pages.retain(|page| !whole.contains(page));
            }
            Fallocate::PunchHole => {
                self.zero(start, end);
                // The page that the file ends in counts as whole.
                let last = if end >= size { end.div_ceil(PAGE) } else { end / PAGE };
                let whole = start.div_ceil(PAGE)..last;
                self.pages.retain(|page| !whole.contains(page));
                self.reserved.retain(|page| !whole.contains(page));
            }
            Fallocate::CollapseRange if !aligned || end >= size => return Err(Errno::EINVAL),
            Fallocate::CollapseRange => {
                drop(self.data.drain(start as usize..end as usize));
                for set in [&mut self.pages, &mut self.reserved] {
                    set.retain(|page| !whole.contains(page));
                    let moved =
                        |&page: &u64| if page * PAGE >= end { page - len / PAGE } else { page };
                    *set = set.iter().map(moved).collect();
                }
            }
            Fallocate::InsertRange if !aligned || start >= size => return Err(Errno::EINVAL),
            Fallocate::InsertRange => {
                drop(self.data.splice(start as usize..start as usize, vec![0; len as usize]));
                for set in [&mut self.pages, &mut self.reserved] {
                    let moved =
                        |&page: &u64| if page * PAGE >= start { page + len / PAGE } else { page };
                    *set = set.iter().map(moved).collect();
                }
            }
        }
        if let Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } = mode {
            for page in touched.filter(|page| !self.pages.contains(page)) {
                self.reserved.insert(page);
            }
            if !keep_size && end > size {
                self.data.resize(end as usize, 0);
            }
        }
        Ok(())
    }
}

impl State {
    fn add(&mut self, new: &NewNode<'_>, nlink: u32, now: Time) -> Attr {
        self.last_ino += 1;
        let attr = Attr {
            ino: Ino(self.last_ino),
            generation: 1,
            kind: new.kind,
            perm: new.perm,
            nlink,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: new.target.len() as u64,
            blocks: 0,
            blksize: PAGE as u32,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: 0,
        };
        let node = Node {
            attr,
            data: Bytes::new(),
            pages: BTreeSet::new(),
            reserved: BTreeSet::new(),
            names: BTreeMap::new(),
            order: BTreeMap::new(),
            target: new.target.to_vec(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(self.last_ino, node);
        attr
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(Errno::ESTALE)
    }

    fn file(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.node(ino)?;
        match node.kind() {
            Kind::File => Ok(node),
            Kind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.node(ino)?;
        if node.kind() == Kind::Dir { Ok(node) } else { Err(Errno::ENOTDIR) }
    }

    fn entry(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.dir(dir)?.names.get(name).map(|&ino| Ino(ino)).ok_or(Errno::ENOENT)
    }

    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        self.node(ino).map(|node| node.attr)
    }

    fn insert(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Time) -> Result<()> {
        let is_dir = self.attr(ino)?.kind == Kind::Dir;
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let dir = self.dir(dir)?;
        if dir.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if dir.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.names.insert(name.to_vec(), ino.0);
        dir.order.insert(cookie, name.to_vec());
        dir.attr.nlink += u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        Ok(())
    }

    fn remove(&mut self, dir: Ino, name: &[u8], now: Time) -> Result<Ino> {
        let ino = self.entry(dir, name)?;
        let is_dir = self.attr(ino)?.kind == Kind::Dir;
        let dir = self.dir(dir)?;
        dir.names.remove(name);
        dir.order.retain(|_, listed| listed != name);
        dir.attr.nlink -= u32::from(is_dir);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        Ok(ino)
    }

    /// One name less for an inode; a directory that loses its name is dead.
    fn drop_link(&mut self, ino: Ino, now: Time) -> Result<Attr> {
        let node = self.node(ino)?;
        node.attr.nlink = if node.kind() == Kind::Dir { 0 } else { node.attr.nlink - 1 };
        node.attr.ctime = now;
        Ok(node.attr)
    }

    fn check_replace(&mut self, moved: Ino, other: Ino) -> Result<()> {
        let moved = self.attr(moved)?.kind == Kind::Dir;
        let other = self.node(other)?;
        match (moved, other.kind() == Kind::Dir) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if !other.names.is_empty() => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn touch(&mut self, ino: Ino, now: Time) -> Result<Attr> {
        let node = self.node(ino)?;
        node.attr.ctime = now;
        Ok(node.attr)
    }
}

impl FileSystem for Model {
    fn character(&self) -> Character {
        Character {
            cache_data: true,
            volatile: false,
            access_times: AccessTimes::Relatime,
            read_only: false,
            max_file_size: FILE_SIZE_MAX,
            max_links: 1000,
            max_dir_links: 1000,
            whole_seconds: false,
            ..Character::VOLATILE
        }
    }

    fn root(&self) -> Result<Attr> {
        self.getattr(&OpCtx::service(), Ino(ROOT))
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.with(ctx, |state, _| {
            let ino = state.entry(dir, name)?;
            state.attr(ino)
        })
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.with(ctx, |state, _| state.attr(ino))
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.with(ctx, |state, now| {
            if let Some(size) = set.size {
                if size > FILE_SIZE_MAX {
                    return Err(Errno::EFBIG);
                }
                let file = state.file(ino)?;
                file.resize(size);
                file.settle();
                file.attr.mtime = now;
            }
            let attr = &mut state.node(ino)?.attr;
            attr.perm = set.perm.unwrap_or(attr.perm);
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            attr.atime = time(set.atime, attr.atime, now);
            attr.mtime = time(set.mtime, attr.mtime, now);
            attr.ctime = set.ctime.unwrap_or(now);
            Ok(*attr)
        })
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        self.with(ctx, |state, now| {
            match state.entry(dir, name) {
                Ok(_) => return Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
            if state.attr(dir)?.nlink == 0 {
                return Err(Errno::ENOENT);
            }
            let node = state.add(new, if new.kind == Kind::Dir { 2 } else { 1 }, now);
            state.insert(dir, name, node.ino, now)?;
            Ok(Changed { dir: state.attr(dir)?, node })
        })
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        self.with(ctx, |state, now| {
            state.dir(dir)?;
            Ok(state.add(new, 0, now))
        })
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.with(ctx, |state, now| {
            if state.attr(ino)?.kind == Kind::Dir {
                return Err(Errno::EPERM);
            }
            state.insert(dir, name, ino, now)?;
            state.node(ino)?.attr.nlink += 1;
            Ok(Changed { node: state.touch(ino, now)?, dir: state.attr(dir)? })
        })
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.with(ctx, |state, now| {
            let ino = state.entry(dir, name)?;
            if state.attr(ino)?.kind == Kind::Dir {
                return Err(Errno::EISDIR);
            }
            state.remove(dir, name, now)?;
            Ok(Changed { node: state.drop_link(ino, now)?, dir: state.attr(dir)? })
        })
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.with(ctx, |state, now| {
            let ino = state.entry(dir, name)?;
            if !state.dir(ino)?.names.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            state.remove(dir, name, now)?;
            Ok(Changed { node: state.drop_link(ino, now)?, dir: state.attr(dir)? })
        })
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
        self.with(ctx, |state, now| {
            let moved = state.entry(from_dir, from)?;
            let other = match state.entry(to_dir, to) {
                Err(Errno::ENOENT) => None,
                other => Some(other?),
            };
            match (mode, other) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
                (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
                (RenameMode::Exchange, _) | (_, None) => {}
                (_, Some(other)) => state.check_replace(moved, other)?,
            }
            if Some(moved) != other {
                state.remove(from_dir, from, now)?;
                if other.is_some() {
                    state.remove(to_dir, to, now)?;
                }
                state.insert(to_dir, to, moved, now)?;
                match (mode, other) {
                    (RenameMode::Exchange, Some(other)) => {
                        state.insert(from_dir, from, other, now)?;
                        state.touch(other, now)?;
                    }
                    (_, Some(other)) => drop(state.drop_link(other, now)?),
                    _ => {}
                }
                if mode == RenameMode::Whiteout {
                    let new = NewNode::whiteout(ctx, &state.attr(from_dir)?);
                    let left = state.add(&new, 1, now);
                    state.insert(from_dir, from, left.ino, now)?;
                }
            }
            Ok(Renamed {
                from_dir: state.attr(from_dir)?,
                to_dir: state.attr(to_dir)?,
                node: state.touch(moved, now)?,
                other: other.map(|other| state.attr(other)).transpose()?,
            })
        })
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.with(ctx, |state, _| {
            let node = state.node(ino)?;
            if node.kind() == Kind::Symlink { Ok(node.target.clone()) } else { Err(Errno::EINVAL) }
        })
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let listed: Vec<(u64, Bytes, Attr)> = self.with(ctx, |state, _| {
            let dir = state.dir(dir)?;
            let names: Vec<_> =
                dir.order.range(from + 1..).map(|(&at, name)| (at, name.clone())).collect();
            let inos: Vec<_> = names.iter().map(|(_, name)| Ino(dir.names[name])).collect();
            let attrs: Result<Vec<Attr>> = inos.into_iter().map(|ino| state.attr(ino)).collect();
            Ok(names.into_iter().zip(attrs?).map(|((at, name), attr)| (at, name, attr)).collect())
        })?;
        for (next, name, attr) in listed {
            if !each(DirEntry { ino: attr.ino, next, kind: attr.kind, name: &name }) {
                break;
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
        self.with(ctx, |state, _| {
            let data = &state.file(ino)?.data;
            let start = (offset as usize).min(data.len());
            let bytes = &data[start..data.len().min(start.saturating_add(len))];
            sink.put(0, bytes);
            Ok(bytes.len())
        })
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        self.with(ctx, |state, now| {
            let len = source.len() as u64;
            let end = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX);
            let end = end.ok_or(Errno::EFBIG)?;
            let file = state.file(ino)?;
            if len > 0 {
                file.data.resize(file.data.len().max(end as usize), 0);
                source.get(0, &mut file.data[offset as usize..end as usize]);
                for page in offset / PAGE..end.div_ceil(PAGE) {
                    file.pages.insert(page);
                    file.reserved.remove(&page);
                }
            }
            (file.attr.mtime, file.attr.ctime) = (now, now);
            file.settle();
            Ok(len as usize)
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
        self.with(ctx, |state, now| {
            let end = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX);
            let end = end.ok_or(Errno::EFBIG)?;
            let file = state.file(ino)?;
            let size = file.attr.size;
            file.fallocate(mode, offset, end)?;
            file.settle();
            file.attr.ctime = now;
            if file.attr.size != size || !matches!(mode, Fallocate::Allocate { .. }) {
                file.attr.mtime = now;
            }
            Ok(file.attr)
        })
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.with(ctx, |state, _| {
            let file = state.file(ino)?;
            let size = file.data.len() as u64;
            let wanted = target == SeekFor::Data;
            let mut at = offset;
            while at < size {
                if file.pages.contains(&(at / PAGE)) == wanted {
                    return Ok(at);
                }
                at = (at / PAGE + 1) * PAGE;
            }
            if offset < size && !wanted { Ok(size) } else { Err(Errno::ENXIO) }
        })
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr(name)?;
        self.with(ctx, |state, _| state.node(ino)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA))
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
        if value.len() > 65536 {
            return Err(Errno::E2BIG);
        }
        self.with(ctx, |state, now| {
            let node = state.node(ino)?;
            match (node.xattrs.contains_key(name), mode) {
                (true, XattrMode::Create) => return Err(Errno::EEXIST),
                (false, XattrMode::Replace) => return Err(Errno::ENODATA),
                _ => {}
            }
            node.xattrs.insert(name.to_vec(), value.to_vec());
            state.touch(ino, now)
        })
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with(ctx, |state, _| Ok(state.node(ino)?.xattrs.keys().cloned().collect()))
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        check_xattr(name)?;
        self.with(ctx, |state, now| {
            state.node(ino)?.xattrs.remove(name).ok_or(Errno::ENODATA)?;
            state.touch(ino, now)
        })
    }

    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, _data_only: bool) -> Result<()> {
        self.with(ctx, |state, _| state.node(ino).map(|_| ()))
    }

    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        let many = 1 << 30;
        let used = self.state.lock().unwrap().nodes.len() as u64;
        Ok(StatFs {
            bsize: PAGE as u32,
            blocks: many,
            bfree: many,
            bavail: many,
            files: many,
            ffree: many - used,
            namelen: 255,
            magic: 0x6d6f_6465,
        })
    }

    fn forget(&self, ino: Ino) {
        let mut state = self.state.lock().unwrap();
        if state.nodes.get(&ino.0).is_some_and(|node| node.attr.nlink == 0) {
            state.nodes.remove(&ino.0);
        }
    }
}
