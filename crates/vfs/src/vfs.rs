//! The file door: one lane's files, as front ends see them.

use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_base::{Clock, Errno, Ino, Result};

use crate::cache::start_flusher;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::flags;
use crate::fs::{AccessTimes, Character, FileSystem, Kind, StatFs, Work};
use crate::inode::Node;
use crate::name::Name;
use crate::stats::{Count, Stats};

/// How a [`Vfs`] is to behave. Sizes in bytes; a limit of 0 means "the smallest that works".
#[derive(Clone)]
pub struct Options {
    /// Time stamps of delayed writes and access times.
    pub clock: Arc<dyn Clock>,
    /// Most bytes of file data kept in the page cache.
    pub cache_bytes_limit: u64,
    /// Most bytes of changed data waiting to be written back; writers wait above it.
    pub dirty_bytes_limit: u64,
    /// Longest time that changed data waits before it is written back.
    pub flush_interval: Duration,
    /// Where the lane is mounted in the tenant's name space, absolute: `/lane`, or `/`.
    pub mount_path: Vec<u8>,
    /// Directories of the lane on which the kernel has something else mounted, as paths from the
    /// lane's root: `.polylane`, `dev/pts`.
    pub covered: Vec<Vec<u8>>,
}

/// Why a path was not resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// The operation fails with this.
    Errno(Errno),
    /// The path leaves the lane (an absolute link out of the mount path, `..` above the root, a
    /// covered directory), or ends in `.` or `..` where a name is needed: the kernel knows better.
    Leaves,
}

impl From<Errno> for PathError {
    fn from(errno: Errno) -> Self {
        PathError::Errno(errno)
    }
}

/// A directory and a name in it that may or may not exist.
#[derive(Clone, Debug)]
pub struct Last {
    /// The directory.
    pub dir: Node,
    /// The name: never empty, `.` or `..`, no slash. One that is too long is here, too: what looks
    /// it up answers `ENAMETOOLONG`.
    pub name: Name,
    /// The path ended in a slash.
    pub must_be_dir: bool,
}

/// What to create under a name.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// Kind of the new inode.
    pub kind: Kind,
    /// Permission bits asked for, before `umask`.
    pub perm: u32,
    /// Bits to take away.
    pub umask: u32,
    /// Device number, for devices.
    pub rdev: u64,
    /// Target, for symbolic links.
    pub target: &'a [u8],
}

/// The private VFS of one lane. All state hangs off it; two of them share nothing. Thread-safe.
///
/// Dropping it writes everything back and lets go of every inode that no front end holds.
pub struct Vfs {
    pub(crate) core: Arc<Core>,
    pub(crate) root: Node,
    flusher: Option<thread::JoinHandle<()>>,
}

impl Vfs {
    /// Opens the file system's root, and starts the flusher where data is cached. Fails if the
    /// libservice cannot give its root; `ENOTDIR`; `EINVAL` for a libservice whose data is to be
    /// cached although it may change behind our back.
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Arc<Vfs>> {
        Vfs::with_access_times(fs, options, AccessTimes::Relatime)
    }

    /// The same; access times move by reads of which both `times` and the libservice say so.
    ///
    /// # Errors
    /// As [`new`](Vfs::new)'s.
    pub fn with_access_times(
        fs: Arc<dyn FileSystem>,
        options: Options,
        times: AccessTimes,
    ) -> Result<Arc<Vfs>> {
        let own = fs.character();
        let access_times = own.access_times.max(times);
        let core = Core::with_character(fs, Character { access_times, ..own }, options);
        if core.character.cache_data && core.character.volatile {
            return Err(Errno::EINVAL);
        }
        let attr = core.fs.root()?;
        if attr.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let root = core.adopt_root(attr);
        let flusher = core.loses_writes().then(|| start_flusher(&core)).transpose()?;
        Ok(Arc::new(Vfs { core, root, flusher }))
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        self.root.clone()
    }

    /// Where the lane is in its tenant's name space.
    pub fn mount_path(&self) -> &[u8] {
        &self.core.options.mount_path
    }

    /// An inode that a former service of the same files held. `ESTALE` when it cannot be found
    /// again. To be called before anything else is done with the files.
    pub fn revive(&self, ino: Ino, generation: u64) -> Result<Node> {
        self.core.revive(&self.root, ino, generation)
    }

    /// The inode of that number, if it is alive: in use, or not long ago. Nothing is asked of the
    /// file system, which finds inodes by their names.
    pub fn live(&self, ino: Ino) -> Option<Node> {
        self.core.inodes.live(ino)
    }

    /// No more inodes of a former service are going to be asked for.
    pub fn end_revival(&self) {
        self.core.fs.end_revival();
    }

    /// What the file system said about itself.
    pub fn character(&self) -> Character {
        self.core.character
    }

    /// Whether such work of the file system waits for others than this process just now.
    pub fn is_slow(&self, work: Work) -> bool {
        self.core.fs.is_slow(work)
    }

    /// Whether data may wait in this process until it is synced, here or in the file system.
    pub fn keeps_writes(&self) -> bool {
        self.core.loses_writes()
    }

    /// Totals of the file system.
    pub fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs> {
        self.begin();
        self.core.settle_all();
        self.core.end_nameless();
        let mut totals = self.core.fs.statfs(ctx)?;
        // Space that is set aside goes to the caller that needs it.
        let names = self.core.leases.room();
        let blocks = self.core.leases.blocks() + names * self.core.fs.name_blocks();
        totals.ffree = totals.ffree.saturating_add(names);
        totals.bfree = totals.bfree.saturating_add(blocks);
        totals.bavail = totals.bavail.saturating_add(blocks);
        Ok(totals)
    }

    /// The same as they are for what is in `node`: a directory whose project may have less than
    /// there is shows what that may have.
    pub fn statfs_at(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<StatFs> {
        let totals = self.statfs(ctx)?;
        match node.is_dir() && node.attr().flags & flags::PROJECT_INHERIT != 0 {
            true => self.core.fs.statfs_within(node.ino(), totals),
            false => Ok(totals),
        }
    }

    /// Makes everything durable.
    pub fn sync(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.sync_files(ctx, false)
    }

    /// Makes everything durable, with what is in files without a name: another service goes on
    /// with them. Errors as of [`Vfs::sync`].
    pub fn sync_nameless(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.sync_files(ctx, true)
    }

    fn sync_files(&self, ctx: &OpCtx<'_>, nameless: bool) -> Result<()> {
        self.begin();
        self.core.settle_all();
        self.core.end_loans();
        let begun = self.core.begin_sync_all();
        let written = self.core.write_back_files(nameless);
        let synced = self.core.fs.sync(ctx);
        match written.and(synced) {
            Ok(()) => self.core.end_sync_all(ctx, begun),
            failed => failed,
        }
    }

    /// Counters, for `polylane stats` and for tests.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Counts an operation.
    pub(crate) fn begin(&self) {
        self.core.count(Count::Ops);
    }
}

impl Drop for Vfs {
    fn drop(&mut self) {
        self.core.end_loans();
        self.core.cache.flusher.stop();
        if let Some(flusher) = self.flusher.take() {
            // A flusher that panicked has said so; what it left is written below.
            let _ = flusher.join();
        }
        // Nobody is left to be told of an error; `sync` reported it to whoever asked.
        let _ = self.core.write_back_files(false);
        // These hold inodes, and inodes hold the core: this opens the circles.
        self.core.cache.abandon();
        self.core.dentries.clear();
    }
}
