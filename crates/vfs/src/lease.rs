//! Leases on directories: a front end's client answers changes of names by itself.
//!
//! The holder of a lease may list the directory, knows every name in it and may count on it that no
//! other caller changes or even sees them. What its client changed meanwhile reaches the VFS later,
//! in order, by *streamed* calls ([`OpCtx::streamed`](crate::OpCtx::streamed)). Any other caller
//! that uses the directory first has the holder's front end apply all of it, and mostly ends the
//! lease:
//!
//! | who | does | then |
//! |---|---|---|
//! | anybody else | looks a name up, lists, changes names, rights or times | the lease ends |
//! | anybody | getattr or fsync of the directory, statfs, sync | what is outstanding is applied |
//! | anybody | renames a directory, changes a directory's rights, links a file | all leases end |
//! | anybody | sets inode flags of a file or directory | all leases end |
//! | the holder, by an ordinary call | looks a name up | nothing: its front end applied it before |
//! | the holder, by an ordinary call | lists, changes names, rights or times | the lease ends |
//! | anybody | finds no room for a new name | all leases end, then once more |
//!
//! # Why nothing is missed
//!
//! - A lease is granted, and names are changed by ordinary calls, with the entries of the directory
//!   locked; the flag [`LEASED`] is looked at again under that lock. So no change by another and no
//!   streamed change run side by side.
//! - Who looks a name up looks at the flag before and after: what it found under a lease of another
//!   that was granted meanwhile does not count.
//! - Streamed calls touch only the leased directory and files that nobody else has in hand, because
//!   a look ends the lease: those that the holder made in it since, and *sole* ones, which had no
//!   other name and no user when the lease was granted ([`Core::is_sole`]).
//! - The client finds the directory by a path without symbolic links. Such a path comes to mean
//!   something else, or to be forbidden, only by a rename of a directory or a change of its rights:
//!   all leases end before it, and none is granted until it is done ([`Core::change_paths`]).
//! - Room for what may be outstanding is set aside before the client is told of its lease; where
//!   the file system can do it, streamed calls make files out of that room alone.
//!
//! - The flag and the table of leases change under one lock, and each lease has a number. A holder
//!   is asked once to give one back: what it knows nothing of is over, and void where it was just
//!   being granted.
//!
//! # Locking
//!
//! `held` is a leaf. Holders are called without any lock of the VFS.

use std::collections::HashMap;

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use polylane_base::sync::{Arc, Mutex, RwLockWriteGuard, Weak};
use polylane_base::{Errno, Result, Time};

use crate::access::{self, EXEC, READ, WRITE};
use crate::acl::AclKind;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::flags::PROJECT_INHERIT;
use crate::fs::{Changed, Kind, NewNode};
use crate::inode::{Inode, LEASED, Node, ONLY_GROWS};
use crate::marks::Moving;
use crate::names::{check_alive, check_dir};
use crate::vfs::{PathError, Vfs};
use crate::walk::{Goal, Walk};

/// Most files of a directory that are looked at when a lease is granted.
const SOLE_MAX: usize = 1024;

/// A front end's session with leases. Called without locks of the VFS; may call the VFS.
pub trait Holder: Send + Sync {
    /// Applies everything that the client has done under its leases so far.
    fn settle(&self);

    /// Lets the client do nothing more under its leases, applies what it did, and gives them back
    /// ([`Vfs::end_lease`]). When it returns, the session has no lease, and one that is being
    /// granted to it is void.
    fn revoke(&self);
}

/// What is looked at, of the names in a directory, when a lease on it is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// The names alone.
    Names,
    /// Also whether each is sole, if that can be told without waiting for a device.
    Remembered,
    /// Also whether each is sole.
    Sole,
}

/// Blocks set aside for what is written under leases, and when the write was made.
#[derive(Clone, Copy, Debug)]
pub struct Aside {
    /// Blocks left.
    pub blocks: u64,
    /// The time that the file is to show.
    pub time: Time,
}

/// Where the blocks of a write come from.
pub(crate) enum Room<'a> {
    /// What is free.
    Free,
    /// What was set aside.
    Aside(&'a mut Aside),
}

/// A lease that was granted.
#[derive(Clone)]
pub struct Leased {
    dir: Node,
    number: u64,
}

impl Leased {
    /// The directory.
    pub fn dir(&self) -> &Node {
        &self.dir
    }
}

#[derive(Clone)]
struct Held {
    session: u64,
    holder: Weak<dyn Holder>,
    /// The lease's own, unlike that of any other.
    number: u64,
}

/// Names of files, one after the other.
#[derive(Default)]
struct Files {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Files {
    fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// The leases of one VFS, by the directory's id.
#[derive(Default)]
pub(crate) struct Leases {
    /// How many there are, for a look without the lock.
    count: AtomicU64,
    /// Changes under way that may give paths another meaning.
    changing: AtomicU64,
    /// Those done.
    epoch: AtomicU64,
    /// Names that room is set aside for.
    room: AtomicU64,
    /// Blocks that are set aside for data.
    blocks: AtomicU64,
    /// The flag [`LEASED`] of a directory changes under this lock, with what is here.
    held: Mutex<HashMap<u64, Held>>,
    /// Number of the last lease.
    number: AtomicU64,
}

/// Stands for a directory's id, of which there are never so many, where a session streams without a
/// lease.
fn streaming(session: u64) -> u64 {
    !session
}

impl Leases {
    pub(crate) fn any(&self) -> bool {
        self.count.load(SeqCst) != 0
    }

    /// Names that room is set aside for.
    pub(crate) fn room(&self) -> u64 {
        self.room.load(Relaxed)
    }

    /// Blocks that are set aside for data.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// A lease on a directory begins, on which nobody has one; its number.
    fn begin(&self, dir: &Inode, (session, holder): (u64, Weak<dyn Holder>)) -> u64 {
        let number = self.number.fetch_add(1, Relaxed) + 1;
        let mut held = self.held.lock();
        held.insert(dir.id, Held { session, holder, number });
        dir.raise(LEASED);
        self.count.fetch_add(1, SeqCst);
        number
    }

    /// The lease of that number on a directory is over, if it was not before.
    fn end(&self, dir: &Inode, number: u64) {
        let mut held = self.held.lock();
        if held.get(&dir.id).is_some_and(|held| held.number == number) {
            dir.lower(LEASED);
            self.count.fetch_sub(1, SeqCst);
            let former = held.remove(&dir.id);
            drop(held);
            drop(former);
        }
    }

    /// Whether paths may have changed their meaning since `epoch`, or are about to.
    fn moved_since(&self, epoch: u64) -> bool {
        self.changing.load(SeqCst) != 0 || self.epoch.load(SeqCst) != epoch
    }

    fn of_dir(&self, dir: &Inode) -> Option<Held> {
        self.held.lock().get(&dir.id).cloned()
    }

    fn of(&self, session: u64) -> Option<Arc<dyn Holder>> {
        let held = self.held.lock();
        held.values().find(|held| held.session == session).and_then(|held| held.holder.upgrade())
    }

    fn all(&self) -> Vec<Arc<dyn Holder>> {
        self.held.lock().values().filter_map(|held| held.holder.upgrade()).collect()
    }
}

impl Vfs {
    /// Grants the session of `ctx` a lease on the directory that `path` names, seen from `start`:
    /// an empty path is `start` itself. `each` is told the names in it, until it says false: too
    /// many; where `look` wants it, also whether a name is the only way to a regular file, which
    /// the session may remove. The front end must have room set aside for what its client may do
    /// ([`Vfs::reserve_names`]) before it lets it. `None`: for [`Look::Remembered`], something is
    /// not in memory. `EAGAIN`: paths are changing just now, or there are too many names;
    /// `EOPNOTSUPP`: the path has symbolic links or `..`, what is made there inherits access
    /// control lists, names there cannot be removed, the file system cannot promise room, or its
    /// files cannot be the caller's;
    /// `EACCES` without the right to list and to change the directory; the errors of a path walk.
    pub fn lease(
        &self,
        ctx: &OpCtx<'_>,
        (start, path): (&Node, &[u8]),
        holder: Weak<dyn Holder>,
        look: Look,
        each: &mut dyn FnMut(&[u8], bool) -> bool,
    ) -> Result<Option<Leased>, PathError> {
        let core = &self.core;
        core.fs.reserve_names(0)?;
        let epoch = core.leases.epoch.load(SeqCst);
        let dir = self.plain_directory(ctx, start, path)?;
        let entries = core.lock_entries(ctx, &dir);
        check_alive(&dir)?;
        core.writable()?;
        // To know every name is to list it.
        access::check(ctx, &dir, READ | EXEC | WRITE)?;
        // A rename within it is refused for what is of another project.
        let has_project = dir.attr().flags & PROJECT_INHERIT != 0;
        // What is made there must not fail when it is applied.
        if !core.fs.has_owner(ctx.uid(), ctx.gid()) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if has_project || dir.has(ONLY_GROWS) || dir.acl(ctx, AclKind::Default)?.is_some() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let number = core.leases.begin(&dir, (ctx.session(), holder));
        let leased = Leased { dir: dir.clone(), number };
        core.marks.leased();
        let (mut all, mut files) = (true, Files::default());
        let listed = core.fs.readdir(ctx, dir.ino(), 0, &mut |entry| {
            match look != Look::Names && entry.kind == Kind::File && files.ends.len() < SOLE_MAX {
                // A look at it waits for the end of the listing.
                true => files.push(entry.name),
                false => all = each(entry.name, false),
            }
            all
        });
        let mut known = true;
        all = all
            && files.names().all(|name| {
                let sole = core.is_sole(ctx, &dir, name, look);
                known = sole.is_some();
                sole.is_some_and(|sole| each(name, sole))
            });
        drop(entries);
        let good = all && !core.leases.moved_since(epoch);
        if listed.is_err() || !good {
            self.end_lease(&leased);
        }
        listed?;
        match (good, known) {
            (true, _) => Ok(Some(leased)),
            (false, true) => Err(Errno::EAGAIN.into()),
            (false, false) => Ok(None),
        }
    }

    /// Gives a lease back. Everything was applied.
    pub fn end_lease(&self, leased: &Leased) {
        self.core.leases.end(&leased.dir, leased.number);
    }

    /// From now on the holder of a session without a lease counts as one, too: its client streams
    /// writes to files on loan, out of room set aside.
    pub fn begin_streaming(&self, session: u64, holder: Weak<dyn Holder>) {
        let (leases, number) = (&self.core.leases, 0);
        leases.held.lock().insert(streaming(session), Held { session, holder, number });
        leases.count.fetch_add(1, SeqCst);
    }

    /// It does so no longer. Everything was applied.
    pub fn end_streaming(&self, session: u64) {
        let leases = &self.core.leases;
        let former = leases.held.lock().remove(&streaming(session));
        if former.is_some() {
            leases.count.fetch_sub(1, SeqCst);
        }
    }

    /// Sets room aside for `count` names of new files. `ENOSPC`; `EOPNOTSUPP`: the file system
    /// cannot promise any.
    pub fn reserve_names(&self, count: u32) -> Result<()> {
        self.core.fs.reserve_names(count)?;
        self.core.leases.room.fetch_add(count.into(), Relaxed);
        Ok(())
    }

    /// Gives room back that was set aside.
    pub fn release_names(&self, count: u32) {
        self.core.leases.room.fetch_sub(count.into(), Relaxed);
        self.core.fs.release_names(count);
    }

    /// Has all room that is set aside given back: all leases end. Call without locks.
    pub fn give_room_back(&self) {
        self.core.end_leases();
    }

    /// How many blocks it takes to write so many bytes in at most so many pieces; `None`: this file
    /// system sets none aside.
    pub fn blocks_for(&self, bytes: u64, pieces: u64) -> Option<u64> {
        self.core.fs.blocks_for(bytes, pieces)
    }

    /// Sets blocks aside for data. `ENOSPC`.
    pub fn reserve_blocks(&self, count: u64) -> Result<()> {
        self.core.fs.reserve_blocks(count)?;
        self.core.leases.blocks.fetch_add(count, Relaxed);
        Ok(())
    }

    /// Gives blocks back that were set aside.
    pub fn release_blocks(&self, count: u64) {
        self.used_blocks(count);
        self.core.fs.release_blocks(count);
    }

    /// So many blocks of those set aside were used.
    pub fn used_blocks(&self, count: u64) {
        self.core.leases.blocks.fetch_sub(count, Relaxed);
    }

    /// Whether streamed calls make files out of the room set aside, at which nobody else can be
    /// faster, and other changes of names need none. Elsewhere some of it is to be released first.
    pub fn creates_reserved(&self) -> bool {
        self.core.fs.creates_reserved()
    }

    /// The time by this VFS's clock.
    pub fn now(&self) -> Time {
        self.core.now(&OpCtx::service())
    }

    /// The directory of a path that means the same until a directory is renamed.
    fn plain_directory(
        &self,
        ctx: &OpCtx<'_>,
        start: &Node,
        path: &[u8],
    ) -> Result<Node, PathError> {
        let unfit = PathError::Errno(Errno::EOPNOTSUPP);
        let is_plain = |name: &[u8]| !matches!(name, b"." | b"..");
        if path.starts_with(b"/") || !path.split(|&byte| byte == b'/').all(is_plain) {
            return Err(unfit);
        }
        let dir = if path.is_empty() {
            start.clone()
        } else {
            let mut walk = Walk::new(self, ctx, start, path)?;
            walk.run(ctx, Goal::Follow)?;
            if walk.followed_links() {
                return Err(unfit);
            }
            walk.here()
        };
        check_dir(&dir)?;
        Ok(dir)
    }
}

impl Core {
    /// Looks a name up in `dir` while nobody else has a lease on it. Call without locks.
    #[inline]
    pub(crate) fn look<T>(&self, ctx: &OpCtx<'_>, dir: &Inode, look: impl Fn() -> T) -> T {
        loop {
            if dir.has(LEASED) {
                self.look_at_leased(ctx, dir);
            }
            let found = look();
            // What was found may be a file that its maker believes to be alone with: one that was
            // granted a lease meanwhile.
            if !dir.has(LEASED) || self.is_holder(ctx, dir) {
                return found;
            }
        }
    }

    #[cold]
    fn look_at_leased(&self, ctx: &OpCtx<'_>, dir: &Inode) {
        match self.leases.of_dir(dir) {
            Some(held) if held.session == ctx.session() => {}
            Some(held) => self.end(dir, &held),
            None => {}
        }
    }

    #[cold]
    fn is_holder(&self, ctx: &OpCtx<'_>, dir: &Inode) -> bool {
        self.leases.of_dir(dir).is_some_and(|held| held.session == ctx.session())
    }

    /// Creates a name; a streamed call does so out of the room set aside.
    pub(crate) fn create(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Inode,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Changed> {
        if !ctx.streamed || !self.fs.creates_reserved() {
            return self.fs.create(ctx, dir.ino(), name, new);
        }
        let changed = self.fs.create_reserved(ctx, dir.ino(), name, new)?;
        self.leases.room.fetch_sub(1, Relaxed);
        Ok(changed)
    }

    /// Does `work`, which makes a name. If there is no room, all that was set aside for leases is
    /// given back and it is done again. Call without locks.
    pub(crate) fn with_room<T>(&self, ctx: &OpCtx<'_>, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(Errno::ENOSPC) if !ctx.streamed && self.leases.any() => {
                self.end_leases();
                work()
            }
            done => done,
        }
    }

    /// Locks the entries of `dir` for a change by `ctx`, which ends the lease of whoever has one.
    pub(crate) fn lock_entries<'a>(
        &self,
        ctx: &OpCtx<'_>,
        dir: &'a Inode,
    ) -> RwLockWriteGuard<'a, ()> {
        loop {
            let entries = dir.lock.write();
            if !dir.has(LEASED) || ctx.streamed {
                return entries;
            }
            drop(entries);
            self.end_lease_on(dir);
        }
    }

    /// Whether a name of `dir` is the only way to a regular file, and `ctx` may remove it; `None`:
    /// that is not remembered. Call with the entries of `dir` locked for change and the flag
    /// [`LEASED`] up: whoever comes to the file from now on comes by this directory.
    fn is_sole(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        look: Look,
    ) -> Option<bool> {
        let found = match look {
            Look::Remembered => self.known_child(dir, name)?,
            Look::Names | Look::Sole => self.child_locked(ctx, dir, name),
        };
        let is_sole = |node: &Node| {
            node.kind() == Kind::File
                && node.nlink() == 1
                && access::check_remove(ctx, dir, node).is_ok()
                // The table of names has it, we, and those who have it in hand.
                && self.cache.holders(node) == 2
        };
        Some(found.is_ok_and(|node| is_sole(&node)))
    }

    /// Ends the lease on `dir`, if there is one. Call without locks.
    #[inline]
    pub(crate) fn end_lease_on(&self, dir: &Inode) {
        if dir.has(LEASED)
            && let Some(held) = self.leases.of_dir(dir)
        {
            self.end(dir, &held);
        }
    }

    fn end(&self, dir: &Inode, held: &Held) {
        if let Some(holder) = held.holder.upgrade() {
            holder.revoke();
        }
        // Its session is gone without a word, or was not told of the lease yet, which is void then.
        // There is nothing left to be applied.
        self.leases.end(dir, held.number);
    }

    /// Has everything applied that was done on `dir` under a lease. Call without locks.
    #[inline]
    pub(crate) fn settle(&self, dir: &Inode) {
        if dir.has(LEASED)
            && let Some(holder) = self.leases.of_dir(dir).and_then(|held| held.holder.upgrade())
        {
            holder.settle();
        }
    }

    /// Has everything applied that was done under any lease. Call without locks.
    pub(crate) fn settle_all(&self) {
        if self.leases.any() {
            self.leases.all().iter().for_each(|holder| holder.settle());
        }
    }

    /// Ends all leases. Call without locks.
    pub(crate) fn end_leases(&self) {
        if self.leases.any() {
            self.leases.all().iter().for_each(|holder| holder.revoke());
        }
    }

    /// Ends the leases of the session that asks. Call without locks.
    pub(crate) fn end_leases_of(&self, ctx: &OpCtx<'_>) {
        if self.leases.any() && !ctx.streamed {
            self.leases.of(ctx.session()).iter().for_each(|holder| holder.revoke());
        }
    }

    /// Before a change that may give paths another meaning, or other rights on the way: all leases
    /// end, and none is granted while what is returned lives. Call without locks.
    pub(crate) fn change_paths(&self) -> ChangingPaths<'_> {
        self.leases.changing.fetch_add(1, SeqCst);
        let announced = ChangingPaths(&self.leases, self.marks.moving());
        self.end_leases();
        announced
    }
}

/// See [`Core::change_paths`].
pub(crate) struct ChangingPaths<'a>(
    &'a Leases,
    #[expect(dead_code, reason = "dropped")] Moving<'a>,
);

impl Drop for ChangingPaths<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, SeqCst);
        self.0.changing.fetch_sub(1, SeqCst);
    }
}
