//! Live inodes.
//!
//! # Invariants
//!
//! - One `Inode` per live inode number: the inode table holds a weak reference to it, see
//!   [`inodes`](crate::inodes).
//! - `perm`, `owner`, `nlink` and `size` repeat fields of `attr`, so that path walks and reads need
//!   no lock. They are stored while `attr` is locked. A reader may see `perm` of one change and
//!   `owner` of the next, as in any kernel that reads the two without a lock.
//! - A live directory other than the root has its parent in `parent`.

use std::sync::OnceLock;

use polylane_base::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use polylane_base::sync::atomic::{AtomicU32, AtomicU64};
use polylane_base::sync::{Arc, Mutex, MutexGuard, RwLock};
use polylane_base::{Errno, Gid, Ino, Result, Time, Uid};

use crate::acl::Acl;
use crate::acls::unknown_acls;
use crate::cache::FilePages;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::flags;
use crate::fs::{Attr, Kind, SET_GID};
use crate::oplock::Opens;
use crate::view::Viewed;

/// A live inode of one [`Vfs`](crate::Vfs); cheap to clone. While one is held, the inode lives.
pub type Node = Arc<Inode>;

/// The libservice changed the inode in a way it did not report: ask again before believing `attr`.
pub(crate) const STALE: u32 = 1;
/// The next read moves the access time (`relatime`).
pub(crate) const ATIME_DUE: u32 = 2;
/// Made by `create_unlinked`; `link` may give it a first name.
pub(crate) const LINKABLE: u32 = 4;
/// The lock table knows the inode.
pub(crate) const LOCKED: u32 = 8;
/// A directory on which somebody has a lease. Changes while its entries are locked, or ends.
pub(crate) const LEASED: u32 = 16;
/// A regular file that somebody keeps views of. Changes with `views` locked.
pub(crate) const VIEWED: u32 = 32;
/// A regular file whose newest bytes may be with a client; see [`view`](crate::view). Goes up with
/// the data locked for change.
pub(crate) const LENT: u32 = 64;
/// A regular file that is known to have no `security.capability`. Changes with `attr` locked.
pub(crate) const NO_CAPS: u32 = 128;
/// A regular file that changed since it was made durable; see [`unsynced`](crate::unsynced).
pub(crate) const UNSYNCED: u32 = 256;
/// Its state was marked; see [`marks`](crate::marks). Never goes down.
pub(crate) const MARKED: u32 = 512;
/// A directory of which a name was marked. Goes up with its entries locked, and never down.
pub(crate) const NAMED: u32 = 1024;

/// It is known to have no default access control list. Changes with `acls` locked.
pub(crate) const NO_DEFAULT_ACL: u32 = 2048;

/// It is immutable; see [`flags`], as for the next two. These follow the state.
pub(crate) const FROZEN: u32 = 4096;
/// It can be appended to only.
pub(crate) const ONLY_GROWS: u32 = 8192;
/// Reading it moves no access time.
pub(crate) const NO_ATIME: u32 = 16384;

/// The libservice has freed it: it is not to be forgotten any more.
pub(crate) const FREED: u32 = 32768;

/// Beside the permission bits: they may belong to an access control list. In one word with them, so
/// that nobody takes the bits that come with a list for those of an inode without one.
pub(crate) const LISTED: u32 = 1 << 31;

/// The kernel was told its state, and may remember it; see [`marks`](crate::marks).
pub(crate) const TOLD: u32 = 65536;
/// The libservice has left its access time as it was: reads move it no more until its state
/// changes.
pub(crate) const ATIME_STAYS: u32 = 131_072;
/// It was opened to append while that was all that was allowed: no mapping is written any more,
/// since the kernel does not say whose it is. Never goes down.
pub(crate) const APPENDED: u32 = 262_144;

/// A live inode. Thread-safe.
pub struct Inode {
    pub(crate) core: Arc<Core>,
    /// Unlike `ino` never used twice: the key of the dentry table.
    pub(crate) id: u64,
    ino: Ino,
    generation: u64,
    kind: Kind,
    tag: AtomicU64,
    flags: AtomicU32,
    /// Permission bits, and [`LISTED`], which changes with `acls` locked.
    pub(crate) perm: AtomicU32,
    nlink: AtomicU32,
    pub(crate) opens: Opens,
    owner: AtomicU64,
    size: AtomicU64,
    attr: Mutex<Attr>,
    /// Directory: its entries. Regular file: its data (shared to read, exclusive to change).
    pub(crate) lock: RwLock<()>,
    parent: Mutex<Option<Node>>,
    target: OnceLock<Box<[u8]>>,
    /// Its access control lists, as far as they are known; by [`AclKind`](crate::acl::AclKind).
    pub(crate) acls: Mutex<[Option<Arc<Acl>>; 2]>,
    pages: OnceLock<Box<FilePages>>,
    /// Who shows its clients what is in the file.
    pub(crate) views: Mutex<Vec<Viewed>>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({}.{} {:?})", self.ino, self.generation, self.kind)
    }
}

impl Inode {
    /// Whether anybody has it open but the kernel, which knows what it has open itself.
    pub fn is_open(&self) -> bool {
        self.opens.are_any()
    }

    /// Whether anybody but the kernel has it open for writing.
    pub fn is_written(&self) -> bool {
        self.opens.are_written()
    }

    /// Whether a writer's groups decide if its set-gid bit stays: its group may not execute it.
    pub fn is_set_gid_by_group(&self) -> bool {
        self.perm() & (SET_GID | 0o010) == SET_GID
    }

    /// Whether the next read moves its access time.
    pub fn moves_atime(&self) -> bool {
        self.has(ATIME_DUE)
    }

    /// Inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Tells a reused inode number from its former owner.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A word that the front ends own. Starts as 0; the VFS never looks at it.
    pub fn tag(&self) -> &AtomicU64 {
        &self.tag
    }

    pub(crate) fn new(core: Arc<Core>, id: u64, attr: Attr, parent: Option<Node>) -> Inode {
        let (listed, flags) = unknown_acls(&attr, &core.character);
        let inode = Inode {
            core,
            id,
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            tag: AtomicU64::new(0),
            flags: AtomicU32::new(flags),
            perm: AtomicU32::new(listed),
            nlink: AtomicU32::new(0),
            opens: Opens::default(),
            owner: AtomicU64::new(0),
            size: AtomicU64::new(0),
            attr: Mutex::new(attr),
            lock: RwLock::new(()),
            parent: Mutex::new(parent),
            target: OnceLock::new(),
            acls: Mutex::default(),
            pages: OnceLock::new(),
            views: Mutex::default(),
        };
        inode.mirror(&attr);
        inode
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    pub(crate) fn perm(&self) -> u32 {
        self.perm.load(Relaxed) & 0o7777
    }

    pub(crate) fn uid(&self) -> Uid {
        Uid((self.owner.load(Relaxed) >> 32) as u32)
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid(self.owner.load(Relaxed) as u32)
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.nlink.load(Acquire)
    }

    /// Bytes. Exact while the data lock is held, for file systems that are not volatile.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Acquire)
    }

    /// Whether any of the flags is up.
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Acquire) & flag != 0
    }

    /// Puts all of the flags up. A look first: most of the time they are, and the line stays
    /// shared.
    pub(crate) fn raise(&self, flags: u32) {
        if self.flags.load(Acquire) & flags != flags {
            self.flags.fetch_or(flags, AcqRel);
        }
    }

    /// Takes a flag down; true when it was up.
    pub(crate) fn lower(&self, flag: u32) -> bool {
        self.has(flag) && self.flags.fetch_and(!flag, AcqRel) & flag != 0
    }

    /// Whether `link` may give it a first name: it was made without one (`O_TMPFILE`). Thread-safe.
    pub fn is_linkable(&self) -> bool {
        self.has(LINKABLE)
    }

    /// It is as [`is_linkable`](Self::is_linkable) says, by the word of a former service.
    pub fn make_linkable(&self) {
        self.raise(LINKABLE);
    }

    /// The state, locked. A thread that changes the inode through the libservice holds this over
    /// the call, so that results are kept in the order in which they happened.
    pub(crate) fn attr(&self) -> MutexGuard<'_, Attr> {
        self.attr.lock()
    }

    /// Keeps a state that the libservice returned.
    pub(crate) fn keep(&self, held: &mut Attr, mut new: Attr) {
        if let Some(pages) = self.pages.get() {
            pages.keep_delayed(held, &mut new);
        }
        *held = new;
        self.mirror(&new);
    }

    /// [`keep`](Self::keep) for results that need no order: the caller holds the directory lock.
    pub(crate) fn keep_now(&self, new: Attr) {
        self.keep(&mut self.attr.lock(), new);
    }

    /// Keeps a state that a lookup brought, unless the data passes through pages: then the size may
    /// have changed since, and is asked for in turn. The first page comes after its size.
    pub(crate) fn keep_found(&self, new: Attr) {
        let mut held = self.attr.lock();
        if self.pages_used().is_none() {
            self.keep(&mut held, new);
        }
    }

    /// It lost its last name while nobody held it; `is_freed` by the libservice, too.
    pub(crate) fn ended(&self, is_freed: bool) {
        self.nlink.store(0, Release);
        if is_freed {
            self.raise(FREED);
        }
    }

    /// Keeps the time of a change of its names, of which nothing else is to be known.
    pub(crate) fn set_ctime(&self, held: &mut Attr, ctime: Time) {
        held.ctime = ctime;
        self.attr_changed();
    }

    /// Repeats the fields that are read without a lock. Call with `attr` locked.
    pub(crate) fn mirror(&self, attr: &Attr) {
        let listed = self.perm.load(Relaxed) & LISTED;
        self.perm.store(attr.perm & 0o7777 | listed, Release);
        self.owner.store(u64::from(attr.uid.0) << 32 | u64::from(attr.gid.0), Relaxed);
        self.nlink.store(attr.nlink, Release);
        self.size.store(attr.size, Release);
        self.mirror_flags(attr.flags);
        self.lower(ATIME_STAYS);
        if attr.atime <= attr.mtime || attr.atime <= attr.ctime {
            self.atime_is_due();
        }
        self.attr_changed();
    }

    fn mirror_flags(&self, flags: u32) {
        const ALL: u32 = FROZEN | ONLY_GROWS | NO_ATIME;
        let held = flags::held(flags);
        if self.flags.load(Acquire) & ALL != held {
            self.flags.fetch_or(held, AcqRel);
            let gone = if held & NO_ATIME == 0 { 0 } else { ATIME_DUE };
            self.flags.fetch_and(!(ALL & !held | gone), AcqRel);
        }
    }

    /// The next read moves the access time, if any read does.
    pub(crate) fn atime_is_due(&self) {
        if self.core.character.access_times.has(self.kind) && !self.has(NO_ATIME | ATIME_STAYS) {
            self.raise(ATIME_DUE);
        }
    }

    /// The state, asked for anew where the kept one may be old.
    pub(crate) fn fresh_attr(&self, ctx: &OpCtx<'_>) -> Result<MutexGuard<'_, Attr>> {
        let mut held = self.attr.lock();
        if self.core.character.volatile || self.lower(STALE) {
            match self.core.fs.getattr(ctx, self.ino) {
                Ok(new) => self.keep(&mut held, new),
                Err(errno) => {
                    self.raise(STALE);
                    return Err(errno);
                }
            }
        }
        Ok(held)
    }

    /// The parent of a directory; the root is its own.
    pub(crate) fn parent(self: &Arc<Self>) -> Node {
        self.parent.lock().as_ref().unwrap_or(self).clone()
    }

    /// Moves a directory below another parent. Returns the former one, to be dropped without locks.
    pub(crate) fn set_parent(&self, parent: Node) -> Option<Node> {
        self.parent.lock().replace(parent)
    }

    /// The target of a symbolic link; it never changes, so it is asked for once.
    pub(crate) fn target(&self, ctx: &OpCtx<'_>) -> Result<&[u8]> {
        if let Some(target) = self.target.get() {
            return Ok(target);
        }
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let target = self.core.fs.readlink(ctx, self.ino)?;
        Ok(self.target.get_or_init(|| target.into()))
    }

    /// The file's part of the page cache; `None` when its data does not pass through it.
    pub(crate) fn pages(&self) -> Option<&FilePages> {
        if !self.core.character.cache_data || self.kind != Kind::File {
            return None;
        }
        Some(self.pages.get_or_init(Box::default))
    }

    /// The file's part of the page cache if it was ever used.
    pub(crate) fn pages_used(&self) -> Option<&FilePages> {
        self.pages.get().map(|pages| &**pages)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.core.retire(self);
        // A chain of directories that only their children kept alive is taken apart in a loop: by
        // recursion, a deep enough tree would exhaust the stack.
        let mut next = self.parent.get_mut().take();
        while let Some(mut parent) = next.and_then(Arc::into_inner) {
            next = parent.parent.get_mut().take();
        }
    }
}
