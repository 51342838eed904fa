//! One layer: a libservice and the inodes of it that nodes of unions hold.
//!
//! One that never changes ([`Layer::fixed`]) is not asked again for a name that it did not have.
//!
//! The seam counts no lookups: one `forget` ends what any number of lookups began. Several nodes
//! may hold one inode of a layer, so each layer counts its holders and forgets an inode with the
//! last one.
//!
//! # Locking
//!
//! `asking → held`. A lookup shares `asking` until its result is counted; a `forget` has it alone,
//! so that no inode is forgotten between a lookup's answer and its count.

use std::fmt;

use polylane_base::sync::{Arc, Mutex, RwLock};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    AclKind, Attr, FileSystem, Kind, OF_OTHERS, Revived, granted, less_granted,
};
use rustc_hash::FxHashMap;

use crate::Union;
use crate::absent::{Absent, OfLayer};
use crate::marks::{Mark, Space};

/// A libservice as a layer of unions. Thread-safe; several unions may share one lower.
pub struct Layer {
    fs: Arc<dyn FileSystem>,
    root: Ino,
    space: Space,
    /// How many layers tell their numbers apart in the upper bits, where it is a union itself.
    layer_count: Option<u16>,
    /// Names that it does not have, where it never changes.
    absent: Option<OfLayer>,
    asking: RwLock<()>,
    held: Mutex<FxHashMap<Ino, u32>>,
}

/// An inode of a layer that is not forgotten while this lives.
pub(crate) struct Held {
    layer: Arc<Layer>,
    ino: Ino,
}

/// A name in a directory of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Above<'a> {
    pub(crate) dir: &'a Held,
    pub(crate) name: &'a [u8],
}

impl Layer {
    /// A layer whose root is that of `fs`. Errors: those of [`FileSystem::root`]; `ENOTDIR` when
    /// that is no directory.
    pub fn new(fs: Arc<dyn FileSystem>) -> Result<Arc<Layer>> {
        Layer::made(fs, None, None)
    }

    /// One whose files stay as they are: a name that is not there is asked for once. Errors:
    /// as of [`new`](Self::new).
    pub fn fixed(fs: Arc<dyn FileSystem>, absent: &Arc<Absent>) -> Result<Arc<Layer>> {
        Layer::made(fs, None, Some(absent))
    }

    /// One whose files are those of `union`, or of what caches them. Errors: as of
    /// [`new`](Self::new).
    pub fn of_union(
        fs: Arc<dyn FileSystem>,
        union: &Union,
        absent: Option<&Arc<Absent>>,
    ) -> Result<Arc<Layer>> {
        Layer::made(fs, Some(union.layer_count()), absent)
    }

    fn made(
        fs: Arc<dyn FileSystem>,
        layer_count: Option<u16>,
        absent: Option<&Arc<Absent>>,
    ) -> Result<Arc<Layer>> {
        let ctx = &OpCtx::service();
        let root = fs.root()?;
        if root.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        // What keeps no attributes of the trusted name space says so of any of them.
        let space = match fs.getxattr(ctx, root.ino, &Mark::Opaque.name(Space::Trusted)) {
            Ok(_) | Err(Errno::ENODATA) => Space::Trusted,
            Err(_) => Space::User,
        };
        let absent = absent.map(Absent::of_layer);
        let (asking, held) = (RwLock::new(()), Mutex::new(FxHashMap::default()));
        Ok(Arc::new(Layer { fs, root: root.ino, space, layer_count, absent, asking, held }))
    }

    /// The libservice.
    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    /// How many layers it has, where it is a union itself.
    pub(crate) fn layer_count(&self) -> Option<u16> {
        self.layer_count
    }

    /// The name space of its marks.
    pub(crate) fn space(&self) -> Space {
        self.space
    }

    /// Its root, which no `forget` ends.
    pub(crate) fn root(self: &Arc<Self>) -> Held {
        Held { layer: self.clone(), ino: self.root }
    }

    /// `FileSystem::lookup`; the result is held. `None` for `ENOENT`.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<(Held, Attr)>> {
        if self.absent.as_ref().is_some_and(|absent| absent.has(dir, name)) {
            return Ok(None);
        }
        let _asking = self.asking.read();
        match self.fs.lookup(ctx, dir, name) {
            Ok(attr) => Ok(Some((self.count(attr.ino), attr))),
            Err(Errno::ENOENT) => {
                if let Some(absent) = &self.absent {
                    absent.put(dir, name);
                }
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Holds an inode that was just made.
    pub(crate) fn adopt(self: &Arc<Self>, ino: Ino) -> Held {
        let _asking = self.asking.read();
        self.count(ino)
    }

    /// `FileSystem::revive`; the result is held.
    pub(crate) fn revive(
        self: &Arc<Self>,
        ino: Ino,
        generation: Option<u64>,
    ) -> Result<(Held, Revived)> {
        let _asking = self.asking.read();
        let revived = self.fs.revive(ino, generation)?;
        Ok((self.count(ino), revived))
    }

    /// A mark of an inode, if it has it.
    pub(crate) fn mark(&self, ctx: &OpCtx<'_>, ino: Ino, mark: Mark) -> Result<Option<Vec<u8>>> {
        match self.fs.getxattr(ctx, ino, &mark.name(self.space)) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::EPERM | Errno::EACCES) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn count(self: &Arc<Self>, ino: Ino) -> Held {
        if ino != self.root {
            *self.held.lock().entry(ino).or_insert(0) += 1;
        }
        Held { layer: self.clone(), ino }
    }

    fn let_go(&self, ino: Ino) {
        if ino == self.root {
            return;
        }
        let last = |held: &mut FxHashMap<Ino, u32>| {
            let Some(count) = held.get_mut(&ino) else { return false };
            *count -= 1;
            *count == 0
        };
        if !last(&mut self.held.lock()) {
            return;
        }
        let _asking = self.asking.write();
        // A lookup may have come between the two locks.
        let mut held = self.held.lock();
        if held.get(&ino) == Some(&0) {
            held.remove(&ino);
            drop(held);
            self.fs.forget(ino);
        }
    }
}

impl Held {
    /// Its number in its layer.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// Its layer.
    pub(crate) fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }

    /// The libservice of its layer.
    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.layer.fs
    }

    /// Its state.
    pub(crate) fn attr(&self, ctx: &OpCtx<'_>) -> Result<Attr> {
        self.fs().getattr(ctx, self.ino)
    }

    /// Its state as a union shows it: in one without access lists (`acls`), the mode grants nobody
    /// more than the list does.
    pub(crate) fn shown(&self, ctx: &OpCtx<'_>, acls: bool) -> Result<Attr> {
        let attr = self.attr(ctx)?;
        if acls || attr.kind == Kind::Symlink || attr.perm & OF_OTHERS == 0 {
            return Ok(attr);
        }
        let list = self.fs().getxattr(ctx, self.ino, AclKind::Access.name());
        Ok(Attr { perm: less_granted(attr.perm, granted(list)), ..attr })
    }

    /// A mark that it has.
    pub(crate) fn mark(&self, ctx: &OpCtx<'_>, mark: Mark) -> Result<Option<Vec<u8>>> {
        self.layer.mark(ctx, self.ino, mark)
    }

    /// An entry of it.
    pub(crate) fn lookup(&self, ctx: &OpCtx<'_>, name: &[u8]) -> Result<Option<(Held, Attr)>> {
        self.layer.lookup(ctx, self.ino, name)
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        // It is held, so it is not being forgotten.
        self.layer.count(self.ino)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.layer.let_go(self.ino);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ino.fmt(f)
    }
}
