//! Open files: reading, writing, space, directory streams.

mod ends;
mod streamed;
mod synced;

pub use synced::HalfSynced;

use std::sync::OnceLock;

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use polylane_base::{Errno, Result};
use rustix::fs::OFlags;

use crate::cache::{FilePages, PAGE, ReadAhead};
use crate::ctx::OpCtx;
use crate::fs::{DirEntry, Fallocate, Kind, SeekFor, Sink, Source};
use crate::handover::Op;
use crate::inode::{APPENDED, ATIME_DUE, FROZEN, Node, ONLY_GROWS};
use crate::lock::By;
use crate::oplock::Guard;
use crate::stats::Count;

/// How far a write came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes written.
    pub count: usize,
    /// Offset after the last byte written.
    pub end: u64,
}

/// Flags that act when a file is opened and are not kept.
const CREATION: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::NOCTTY)
    .union(OFlags::TRUNC)
    .union(OFlags::CLOEXEC);

/// Flags that `F_SETFL` changes.
const SETTABLE: OFlags =
    OFlags::APPEND.union(OFlags::DIRECT).union(OFlags::NOATIME).union(OFlags::NONBLOCK);

/// Of asm-generic/fcntl.h; `rustix` has one name for both. Synchronous writes ...
const O_SYNC: i32 = 0o4_010_000;
/// ... and those of the data alone, which every synchronous write is, too.
const O_DSYNC: i32 = 0o10_000;

/// Positions of `.` and `..` in a directory stream; those of the libservice follow.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// Whether writes by a descriptor with these flags are durable when they return; then, whether
/// their data alone is.
pub fn synchronous(flags: i32) -> Option<bool> {
    let all = flags & O_SYNC == O_SYNC;
    (flags & O_DSYNC != 0).then_some(!all)
}

/// Bytes that one step of `copy_range` moves.
const COPY_BYTES: usize = 64 * 1024;

/// An open file description. Dropping the last `Arc` closes it. Thread-safe.
#[derive(Debug)]
pub struct OpenFile {
    node: Node,
    flags: AtomicI32,
    /// It is counted by [`Inode::is_open`](crate::Inode::is_open).
    counts: AtomicBool,
    pub(crate) guard: Guard,
    pub(crate) by: By,
    ahead: ReadAhead,
    /// Write-back failures of the file that this opening knows of; for a directory, whether it
    /// knows, or need not, of names that a former service took along.
    failures_seen: AtomicU64,
    /// Failed syncs of the file that this opening knows of.
    syncs_seen: AtomicU64,
    tag: AtomicU64,
    attached: OnceLock<Attached>,
    lost: AtomicBool,
    /// It made the file.
    pub(crate) made: AtomicBool,
}

/// What goes with an open file.
struct Attached(#[expect(dead_code, reason = "it is held until the end")] Box<dyn Send + Sync>);

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attached")
    }
}

impl OpenFile {
    pub(crate) fn new(node: Node, flags: i32) -> Arc<OpenFile> {
        node.opens.add(flags);
        if flags & OFlags::APPEND.bits().cast_signed() != 0 && node.has(ONLY_GROWS) {
            node.raise(APPENDED);
        }
        let flags = AtomicI32::new(flags & !CREATION.bits().cast_signed());
        let failures_seen = match node.is_dir() {
            true => u64::from(node.core.was_told_of_lost_names(&node)),
            false => node.pages_used().map_or(0, FilePages::failures),
        };
        let failures_seen = AtomicU64::new(failures_seen);
        let syncs_seen = AtomicU64::new(node.core.known_failures(&node));
        let (by, ahead) = (By::default(), ReadAhead::default());
        let (tag, attached) = (AtomicU64::new(0), OnceLock::new());
        let (counts, guard) = (AtomicBool::new(true), Guard::default());
        let (lost, made) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(OpenFile {
            node,
            flags,
            counts,
            guard,
            by,
            ahead,
            failures_seen,
            syncs_seen,
            tag,
            attached,
            lost,
            made,
        })
    }

    /// Bytes of the file were lost with a former service: whoever had it open is not to go on with
    /// it. Its locks stay.
    pub fn lose(&self) {
        self.lost.store(true, Relaxed);
    }

    /// Whether it has lost bytes: good for locks and a close alone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// For whatever reads or changes the file. `EIO`: it has lost bytes.
    pub fn whole(self: Arc<Self>) -> Result<Arc<Self>> {
        if self.is_lost() { Err(Errno::EIO) } else { Ok(self) }
    }

    /// The kernel has it from now on, and knows by itself whether it has the inode open.
    pub fn leave_to_kernel(&self) {
        if self.counts.swap(false, Relaxed) {
            self.node.opens.remove(self.flags());
        }
    }

    /// Whether the kernel has it: [`leave_to_kernel`](Self::leave_to_kernel).
    pub fn is_kernels(&self) -> bool {
        !self.counts.load(Relaxed)
    }

    /// A word that the front ends own. Starts as 0; the VFS never looks at it.
    pub fn tag(&self) -> &AtomicU64 {
        &self.tag
    }

    /// Keeps what `make` makes until the file is closed; once, later calls do nothing.
    pub fn attach(&self, make: impl FnOnce() -> Box<dyn Send + Sync>) {
        self.attached.get_or_init(|| Attached(make()));
    }

    /// The inode that is open.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whether this opening made the file.
    pub fn made_it(&self) -> bool {
        self.made.load(Relaxed)
    }

    /// open(2) flags, those that only matter at the opening taken away.
    pub fn flags(&self) -> i32 {
        self.flags.load(Relaxed)
    }

    /// `F_SETFL`: `O_APPEND`, `O_DIRECT`, `O_NOATIME` and `O_NONBLOCK` become those in `flags`.
    /// `EPERM`: what can be appended to only stays as it was opened.
    pub fn set_flags(&self, flags: i32) -> Result<()> {
        let mask = SETTABLE.bits().cast_signed();
        let old = self.flags();
        if (old ^ flags) & OFlags::APPEND.bits().cast_signed() != 0 && self.node.has(ONLY_GROWS) {
            return Err(Errno::EPERM);
        }
        self.flags.store(old & !mask | flags & mask, Relaxed);
        Ok(())
    }

    /// Sets or clears `O_APPEND` alone, unless the file can be appended to only.
    pub fn set_appends(&self, appends: bool) {
        let append = OFlags::APPEND.bits().cast_signed();
        let flags = self.flags();
        if appends != (flags & append != 0) && !self.node.has(ONLY_GROWS) {
            self.flags.store(flags ^ append, Relaxed);
        }
    }

    fn wish(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags().cast_unsigned())
    }

    /// The inode, if this opening may read it.
    pub(crate) fn readable(&self) -> Result<&Node> {
        self.usable(OFlags::WRONLY)
    }

    /// The inode, if this opening may change it.
    fn writable(&self) -> Result<&Node> {
        let node = self.usable(OFlags::RDONLY)?;
        node.core.writable()?;
        Ok(node)
    }

    fn usable(&self, forbidden: OFlags) -> Result<&Node> {
        let wish = self.wish();
        let mode = wish & OFlags::ACCMODE;
        if wish.contains(OFlags::PATH) || mode == forbidden || mode == OFlags::ACCMODE {
            return Err(Errno::EBADF);
        }
        match self.node.kind() {
            Kind::File => Ok(&self.node),
            Kind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Reads at most `len` bytes at `offset`; fewer only at the end of the file. `EBADF` when not
    /// open for reading, `EISDIR`.
    pub fn read(
        &self,
        ctx: &OpCtx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let count = self.peek(ctx, offset, len, sink)?;
        self.was_read(ctx, len);
        Ok(count)
    }

    /// As [`OpenFile::read`], for a reader who keeps pages of its own of what it reads: of a file
    /// that is cached below as well, none are kept here.
    pub fn read_to_keep(
        &self,
        ctx: &OpCtx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let count = self.look(ctx, offset, len, sink, true)?;
        self.was_read(ctx, len);
        Ok(count)
    }

    fn was_read(&self, ctx: &OpCtx<'_>, len: usize) {
        if len > 0 && self.moves_atime() {
            self.node.core.touch(ctx, &self.node);
        }
    }

    /// As [`OpenFile::read`], for who may not read it in the end: no access time moves.
    pub fn peek(
        &self,
        ctx: &OpCtx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.look(ctx, offset, len, sink, false)
    }

    fn look(
        &self,
        ctx: &OpCtx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
        keeps: bool,
    ) -> Result<usize> {
        let node = self.readable()?;
        let core = &node.core;
        core.count(Count::Ops);
        let _data = core.lock_shared(node);
        match node.pages() {
            Some(pages) => {
                core.cached_read(ctx, node, pages, (&self.ahead, keeps), offset, len, sink)
            }
            None => core.fs.read(ctx, node.ino(), offset, len, sink),
        }
    }

    /// Whether the next read moves the access time.
    fn moves_atime(&self) -> bool {
        self.node.has(ATIME_DUE) && !self.is_noatime()
    }

    /// Whether it was opened with `O_NOATIME`, or set to it: reads move no access time.
    pub fn is_noatime(&self) -> bool {
        self.wish().contains(OFlags::NOATIME)
    }

    /// Whether the file ends at `offset` or before, as far as is known: others may be changing it.
    pub fn ends_by(&self, offset: u64) -> bool {
        self.size() <= offset
    }

    /// The size of the file, as far as is known: others may be changing it.
    pub fn size(&self) -> u64 {
        self.node.size()
    }

    /// Writes at `at`, or at the end of the file with `None` or `O_APPEND`. Set-id bits go unless
    /// `ctx` is root. Short only when space or the largest file size ran out after the first
    /// bytes. `EBADF`, `EPERM` when it is immutable, `EFBIG`, `ENOSPC`.
    pub fn write(
        &self,
        ctx: &OpCtx<'_>,
        at: Option<u64>,
        source: &mut dyn Source,
    ) -> Result<Written> {
        let at = at.filter(|_| !self.wish().contains(OFlags::APPEND));
        self.write_if(ctx, at, source, check_unfrozen)
    }

    /// Writes at `at`, or at the end with `None`, whatever the open file does otherwise. `EPERM`
    /// where nothing but appending is allowed; otherwise as [`OpenFile::write`].
    pub fn write_placed(
        &self,
        ctx: &OpCtx<'_>,
        at: Option<u64>,
        source: &mut dyn Source,
    ) -> Result<Written> {
        self.write_if(ctx, at, source, |node| match at.is_some() && node.has(ONLY_GROWS) {
            true => Err(Errno::EPERM),
            false => check_unfrozen(node),
        })
    }

    /// `EACCES` for what may be appended to only and is open for writing: not even a mapping to
    /// read by is shared then, as in Linux.
    pub fn may_be_mapped_shared(&self) -> Result<()> {
        let reads = self.wish() & OFlags::ACCMODE == OFlags::RDONLY;
        if reads || !self.node.has(ONLY_GROWS) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Stores bytes of a mapping at `at`, also where the file is open for appending, and though it
    /// became immutable since it was mapped. `EPERM` where this opening, or one since, may append
    /// alone: the kernel sends pages by whichever it likes. Else as [`OpenFile::write`].
    pub fn write_mapped(
        &self,
        ctx: &OpCtx<'_>,
        at: u64,
        source: &mut dyn Source,
    ) -> Result<Written> {
        let appends = self.wish().contains(OFlags::APPEND);
        self.write_if(ctx, Some(at), source, |node| {
            let appended = appends || node.has(APPENDED);
            if appended && node.has(ONLY_GROWS) { Err(Errno::EPERM) } else { Ok(()) }
        })
    }

    /// Writes, if `allowed` says so with the data locked.
    fn write_if(
        &self,
        ctx: &OpCtx<'_>,
        at: Option<u64>,
        source: &mut dyn Source,
        allowed: impl FnOnce(&Node) -> Result<()>,
    ) -> Result<Written> {
        let node = self.writable()?;
        let core = &node.core;
        core.count(Count::Ops);
        let pages = node.pages();
        if pages.is_some() {
            core.throttle(source.len())?;
        }
        let _data = core.lock_exclusive(node);
        allowed(node)?;
        let at = match (at, ctx.former(Op::Append)) {
            (Some(at), _) => at,
            // Where a former service put, or began to put, these very bytes.
            (None, Some([end, ..])) => end,
            (None, None) => {
                let end = node.end(ctx)?;
                ctx.intend(Op::Append, [end, 0, 0, 0]);
                end
            }
        };
        if source.is_empty() {
            return Ok(Written { count: 0, end: at });
        }
        let len = room(core.character.max_file_size, at, source.len())?;
        core.kill_set_id(Some(ctx), node)?;
        core.begins_to_change(node);
        node.data_changes(at, at + len as u64);
        let count = core.put(ctx, node, (at, len), source)?;
        Ok(Written { count, end: at + count as u64 })
    }

    /// fallocate(2) with `FALLOC_FL_*` flags. `EBADF`, `EINVAL`, `EPERM`, `EFBIG`,
    /// `ENOSPC`, `EOPNOTSUPP`.
    pub fn fallocate(&self, ctx: &OpCtx<'_>, flags: i32, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let mode = Fallocate::from_flags(flags)?;
        let node = self.writable().map_err(|_| Errno::EBADF)?;
        let core = &node.core;
        core.count(Count::Ops);
        match offset.checked_add(len) {
            Some(end) if end <= core.character.max_file_size => (),
            _ => return Err(Errno::EFBIG),
        }
        let _data = core.lock_exclusive(node);
        check_unfrozen(node)?;
        if node.has(ONLY_GROWS) && !matches!(mode, Fallocate::Allocate { .. }) {
            return Err(Errno::EPERM);
        }
        if ctx.is_once() && node.shifted_before(ctx, mode, len)? {
            return Ok(());
        }
        core.begins_to_change(node);
        // Nothing lies there. A program that closes a log does this after truncating it, and all of
        // it would be written back, often right before it is removed.
        if let (Fallocate::PunchHole, Some(pages)) = (mode, node.pages())
            && offset >= node.size()
        {
            core.retime(node, pages, core.now(ctx), None);
            return core.kill_set_id(Some(ctx), node);
        }
        if mode != (Fallocate::Allocate { keep_size: true }) {
            node.data_changes(0, u64::MAX);
        }
        let done = match node.pages() {
            Some(pages) => core.cached_fallocate(ctx, node, pages, mode, (offset, len)),
            None => {
                let mut held = node.attr();
                let new = core.fs.fallocate(ctx, node.ino(), mode, offset, len);
                new.map(|new| node.keep(&mut held, new))
            }
        };
        // ext4 takes the file for changed before it looks at range, map and room.
        if node.pages().is_some() || !matches!(done, Err(Errno::EOPNOTSUPP)) {
            core.kill_set_id(Some(ctx), node)?;
        }
        if let (Err(_), Some(pages)) = (done, node.pages()) {
            core.retime(node, pages, core.now(ctx), None);
        }
        done
    }

    /// `lseek` SEEK_DATA and SEEK_HOLE. `ENXIO` when there is nothing more.
    pub fn seek(&self, ctx: &OpCtx<'_>, offset: u64, target: SeekFor) -> Result<u64> {
        if self.node.kind() != Kind::File || self.wish().contains(OFlags::PATH) {
            return Err(Errno::EINVAL);
        }
        let core = &self.node.core;
        let _data = core.lock_shared(&self.node);
        let Some(pages) = self.node.pages_used() else {
            return core.fs.seek(ctx, self.node.ino(), offset, target);
        };
        // The libservice must know the data to tell it from a hole.
        core.write_back(&self.node, pages)?;
        let _backing = pages.backing.read();
        core.fs.seek(ctx, self.node.ino(), offset, target)
    }

    /// Lists the directory from position `from` (0: the start, or a former [`DirEntry::next`]), `.`
    /// and `..` included, until `each` returns false. Stable: a name that is neither added nor
    /// removed meanwhile is seen exactly once. `each` must not call the VFS. `ENOTDIR`, `ENOENT`
    /// when the directory was removed.
    pub fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = &self.node;
        node.core.count(Count::Ops);
        if !node.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        node.core.end_lease_on(node);
        if node.nlink() == 0 {
            return Err(Errno::ENOENT);
        }
        let mut dot = |name: &[u8], ino, next| each(DirEntry { ino, next, kind: Kind::Dir, name });
        if from < AFTER_DOT && !dot(b".", node.ino(), AFTER_DOT) {
            return Ok(());
        }
        if from < AFTER_DOT_DOT && !dot(b"..", node.parent().ino(), AFTER_DOT_DOT) {
            return Ok(());
        }
        let from = from.saturating_sub(AFTER_DOT_DOT);
        node.core.fs.readdir(ctx, node.ino(), from, &mut |mut entry| {
            entry.next = entry.next.saturating_add(AFTER_DOT_DOT);
            each(entry)
        })?;
        if self.moves_atime() {
            node.core.touch(ctx, node);
        }
        Ok(())
    }

    /// copy_file_range(2) by `ctx`: at most `len` bytes at `from` of this file to `at` of `to`.
    /// `EINVAL` when the two ranges of one file overlap.
    pub fn copy_range(
        &self,
        ctx: &OpCtx<'_>,
        from: u64,
        (to, at): (&OpenFile, u64),
        len: u64,
    ) -> Result<u64> {
        if self.node.is_dir() || to.node.is_dir() {
            return Err(Errno::EISDIR);
        }
        let source = self.readable()?;
        let target = to.writable()?;
        if to.wish().contains(OFlags::APPEND) {
            return Err(Errno::EBADF);
        }
        check_unfrozen(target)?;
        // What lies past the end is not copied, so it cannot overlap either.
        let len = len.min(source.fresh_attr(ctx)?.size.saturating_sub(from));
        let (from_end, to_end) = (from.saturating_add(len), at.saturating_add(len));
        if source.id == target.id && from < to_end && at < from_end {
            return Err(Errno::EINVAL);
        }
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            let want = copied_at_once(at + done, buffer.len(), len - done);
            let count = self.read(ctx, from + done, want, &mut &mut buffer[..want])?;
            if count == 0 {
                break;
            }
            let written = match to.write(ctx, Some(at + done), &mut &buffer[..count]) {
                Ok(written) => written.count,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            };
            done += written as u64;
            if written < count {
                break;
            }
        }
        Ok(done)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Nobody has it any more: it is not counted either.
        self.leave_to_kernel();
        self.guard.end(&self.node);
        self.end_locks();
    }
}

/// How much of `left` bytes to `at` is copied at once: all that a buffer of `room` bytes takes, or
/// what ends with a page, so that a reader of the file in between finds each page old or new.
fn copied_at_once(at: u64, room: usize, left: u64) -> usize {
    match usize::try_from(left).ok().filter(|&left| left <= room) {
        Some(left) => left,
        None => room - (at.wrapping_add(room as u64) % PAGE as u64) as usize,
    }
}

/// `EPERM` for what is immutable. Exact while the data is locked.
fn check_unfrozen(node: &Node) -> Result<()> {
    if node.has(FROZEN) { Err(Errno::EPERM) } else { Ok(()) }
}

/// The first bytes of a source.
pub(crate) struct Front<'s> {
    pub(crate) source: &'s mut dyn Source,
    pub(crate) len: usize,
}

impl Source for Front<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        self.source.get(at, into);
    }
}

/// How many of `len` bytes at `at` fit into the largest file. `EFBIG` when none does.
pub(crate) fn room(size_max: u64, at: u64, len: usize) -> Result<usize> {
    if at >= size_max {
        return Err(Errno::EFBIG);
    }
    Ok(usize::try_from(size_max - at).map_or(len, |room| len.min(room)))
}
