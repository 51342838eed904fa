//! Views: copies of a file that a front end keeps where its client reads and writes them unasked.
//!
//! Whoever keeps a view of a file is told before the file's data changes and after its state did,
//! so that what it shows is never older than what anybody was told. A view may also be *lent* for
//! writing: then the newest bytes are with its client, and whoever else comes near the file first
//! has them brought back.
//!
//! | who | does | then |
//! |---|---|---|
//! | anybody | changes data or size | views lose the range before, or all of it |
//! | anybody | changes the state in any way | views lose the state |
//! | anybody, by a request | reads, changes, syncs | a loan ends |
//! | anybody, by a request | asks for the state | a loan ends, or goes on unwritten |
//! | anybody | sets an attribute, a list of access control, inode flags | a loan ends |
//! | a program | maps the file through the kernel | a loan ends, views lose all |
//! | anybody | removes the last name; lends the file to another | a view that nobody uses goes |
//!
//! # Why nothing is missed
//!
//! - Pages are put into a view with the file's data locked against change, and lost with it locked
//!   for change; the state is put there with the attributes locked, as it is changed.
//! - A loan begins with the data locked for change ([`LENT`] goes up), and everybody who locks the
//!   data looks at the flag under that lock. Where it is up, all viewers are asked once: what none
//!   of them has is not on loan.
//!
//! # Locking
//!
//! An inode's data, then its attributes, then its `views`; a [`Viewer`] is told of changes under
//! all three and takes its own lock last. It is asked to bring back a loan without any of them.

use std::convert::Infallible;
use std::ops::Range;

use polylane_base::sync::{RwLockReadGuard, RwLockWriteGuard, Weak};
use polylane_base::{Errno, Result, Time};

use crate::access::{READ, SET_UID};
use crate::cache::ReadAhead;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Attr, Kind, SET_GID, SetAttr, SetTime, Source};
use crate::inode::{ATIME_DUE, FROZEN, Inode, LENT, NO_CAPS, Node, ONLY_GROWS, VIEWED};
use crate::lease::Room;
use crate::vfs::Vfs;

/// A front end's session that keeps views. Its own lock is taken after any of the VFS.
pub trait Viewer: Send + Sync {
    /// Bytes from `start` to before `end` are about to change, the size perhaps too. Called with
    /// the data locked for change.
    fn data_changes(&self, view: u32, start: u64, end: u64);

    /// The state has changed. Called with locks of the inode held.
    fn attr_changed(&self, view: u32);

    /// Brings back what the client wrote on loan ([`Vfs::bring_back`]) and ends the loan
    /// ([`Vfs::end_loan`]). Called without locks of the VFS. When it returns, the loan is over.
    fn end_loan(&self, view: u32, node: &Node);

    /// Whether the client has written nothing on the loan, which then goes on while the state is
    /// told; its reads were noted before ([`Vfs::note_read`]). Called without locks of the VFS. A
    /// viewer that cannot tell answers no: the loan ends.
    fn is_unwritten(&self, _view: u32, _node: &Node) -> bool {
        false
    }

    /// The file has lost its last name, or somebody else would have it on loan: a view that was
    /// kept though its client has the file open no longer is given up. Called without locks of the
    /// VFS. A viewer that keeps no such views has nothing to do.
    fn let_go(&self, _view: u32) {}
}

/// Where a client wrote on loan, and what.
pub type Part<'a> = (u64, &'a mut dyn Source);

/// One view of an inode.
#[derive(Clone)]
pub(crate) struct Viewed {
    viewer: Weak<dyn Viewer>,
    session: u64,
    view: u32,
}

impl Vfs {
    /// From now on the session's view `view` of a regular file is told of changes. One view of a
    /// file per session. `EOPNOTSUPP` where files change behind our back, and for what is no
    /// regular file.
    pub fn add_view(
        &self,
        node: &Node,
        (session, view): (u64, u32),
        viewer: Weak<dyn Viewer>,
    ) -> Result<()> {
        if self.core.character.volatile || node.kind() != Kind::File {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut views = node.views.lock();
        views.push(Viewed { viewer, session, view });
        node.raise(VIEWED);
        Ok(())
    }

    /// The session's view of a file is told of nothing any more. Its loan must have ended.
    pub fn remove_view(&self, node: &Node, (session, view): (u64, u32)) {
        let mut views = node.views.lock();
        views.retain(|viewed| (viewed.session, viewed.view) != (session, view));
        if views.is_empty() {
            node.lower(VIEWED);
        }
    }

    /// Hands the state of a viewed file, and whether the next read must go through the VFS because
    /// it moves the access time, to `show`, with the data and the attributes locked.
    pub fn show_attr(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        show: &mut dyn FnMut(&Attr, bool),
    ) -> Result<()> {
        let _data = self.core.lock_shared(node);
        let held = node.fresh_attr(ctx)?;
        let mut attr = *held;
        if let Some(pages) = node.pages_used() {
            attr.blocks += pages.blocks_to_come(&attr);
        }
        show(&attr, node.has(ATIME_DUE));
        Ok(())
    }

    /// Lends a view for writing, if it is the only one of the file and nothing forbids it; `begin`
    /// has the last word, with the data locked for change. The client may write where the file
    /// system has given room, and nowhere else: within the size, and past it up to where
    /// [`Vfs::reserve_ahead`] was asked to.
    pub fn lend(&self, node: &Node, session: u64, begin: &mut dyn FnMut() -> bool) -> bool {
        let several = node.views.lock().len() > 1;
        if several {
            self.core.let_go_of(node);
        }
        let _data = self.core.lock_exclusive(node);
        // Writing would take set-id bits and capabilities away.
        let plain = node.perm() & (SET_UID | SET_GID) == 0
            && node.has(NO_CAPS)
            && self.core.may_take(node).is_ok();
        if !plain || !node.is_viewed_by(session) {
            return false;
        }
        self.core.begins_to_change(node);
        let begun = self.core.begin_loan(node, begin);
        if !begun {
            self.core.fs.unreserve(node.ino(), node.size());
        }
        begun
    }

    /// Lends the only view of a file whose access time the next read moves, for reading alone: the
    /// client may read what it is shown, and notes when it did first. It needs no right to write,
    /// so nothing that the client wrote is ever stored for it: [`Vfs::bring_back`] is given none.
    /// Otherwise as [`Vfs::lend`], but for views of others, which stay.
    pub fn lend_reads(&self, node: &Node, session: u64, begin: &mut dyn FnMut() -> bool) -> bool {
        let _data = self.core.lock_exclusive(node);
        node.is_viewed_by(session) && self.core.begin_loan(node, begin)
    }

    /// Whether a file has no name any more, and lives only as long as somebody holds it. Once true
    /// it stays so, but for a file made without a name that is given one.
    pub fn is_unlinked(&self, node: &Node) -> bool {
        node.nlink() == 0
    }

    /// Whether a process may read a file, so that a part of a page that it writes may be shown to
    /// it whole.
    pub fn may_read(&self, ctx: &OpCtx<'_>, node: &Node) -> bool {
        crate::access::check(ctx, node, READ).is_ok()
    }

    /// Promises room past the end of a file whose view is about to be lent: call from `begin` of
    /// [`Vfs::lend`]. It is given back by [`Vfs::bring_back`]. `ENOSPC`; `EOPNOTSUPP` where writes
    /// are not kept here first.
    pub fn reserve_ahead(&self, ctx: &OpCtx<'_>, node: &Node, end: u64) -> Result<()> {
        let size = node.size();
        let len = end.checked_sub(size).ok_or(Errno::EINVAL)?;
        node.pages().filter(|_| !self.core.fs.has_limits()).ok_or(Errno::EOPNOTSUPP)?;
        self.core.fs.reserve(ctx, node.ino(), size, len)
    }

    /// Stores what a client wrote on loan: offsets, and bytes of which those past the end of the
    /// file are dropped. `end`: where that is if the client made it longer, within what was
    /// reserved for it. `written`: when it wrote last, if it did; `read`: when it read first. It
    /// takes set-id bits and capabilities away as a write does. `EPERM`, and nothing is stored,
    /// where the file is immutable or may be appended to only; `EROFS`. For [`Viewer::end_loan`] of
    /// a loan to write only.
    pub fn bring_back(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        (parts, end): (&mut [Part<'_>], Option<u64>),
        (written, read): (Option<Time>, Option<Time>),
    ) -> Result<()> {
        let _data = node.lock.write();
        let size = end.unwrap_or(0).max(node.size());
        let done = written.map_or(Ok(()), |time| self.put_lent(node, (parts, size), time));
        if end.is_some() {
            self.core.fs.unreserve(node.ino(), node.size());
        }
        if let Some(time) = read.filter(|_| node.has(ATIME_DUE)) {
            self.core.accessed(ctx, node, time);
        }
        done
    }

    /// A client that has a file on loan read it first at `time`, and the loan goes on. For
    /// [`Viewer::is_unwritten`].
    pub fn note_read(&self, ctx: &OpCtx<'_>, node: &Node, time: Time) {
        let _data = node.lock.read();
        if node.has(ATIME_DUE) {
            self.core.accessed(ctx, node, time);
        }
    }

    /// Stores what a client wrote on loan behind the end of a file, `part`, while the loan goes on;
    /// it wrote last at `written`. Whether the loan may go on. For [`Viewer`]s only, which see to
    /// it that the loan does not end meanwhile.
    pub fn take_in(&self, node: &Node, part: Part<'_>, written: Time) -> Result<bool> {
        let core = &self.core;
        if core.cache.is_pressed() {
            core.cache.flusher.kick();
        }
        let _data = node.lock.write();
        let size = part.0.saturating_add(part.1.len() as u64);
        let special = node.perm() & (SET_UID | SET_GID) != 0;
        self.put_lent(node, (&mut [part], size), written)?;
        Ok(!special)
    }

    /// Stores what was written on loan, if it may still be: whatever changes that has the loan
    /// ended before, so it is asked once more where it counts.
    fn put_lent(&self, node: &Node, parts: (&mut [Part<'_>], u64), time: Time) -> Result<()> {
        self.core.may_take(node)?;
        self.core.kill_set_id(None, node)?;
        self.put_parts(node, parts, time)
    }

    fn put_parts(
        &self,
        node: &Node,
        (parts, size): (&mut [Part<'_>], u64),
        time: Time,
    ) -> Result<()> {
        let ctx = &OpCtx::service();
        let (core, mut result) = (&self.core, Ok(()));
        for (offset, source) in parts {
            let len = size.saturating_sub(*offset).min(source.len() as u64);
            if len > 0 {
                let written = core.put(ctx, node, (*offset, len as usize), &mut **source);
                let whole = |count| if count as u64 == len { Ok(()) } else { Err(Errno::ENOSPC) };
                result = result.and(written.and_then(whole));
            }
        }
        if let Some(pages) = node.pages() {
            core.retime(node, pages, time, result.err());
            return result;
        }
        let mtime = Some(SetTime::At(time));
        let set = SetAttr { mtime, ctime: Some(time), ..SetAttr::default() };
        result.and(core.set(ctx, node, &set).map(|_| ()))
    }

    /// A loan is over: everything was brought back.
    pub fn end_loan(&self, node: &Node) {
        self.core.loans.end(node);
    }

    /// What was lent of a file comes back: before the kernel gets pages of it, which programs read
    /// without a word, and before its dirty bytes are counted.
    pub fn end_loan_of(&self, node: &Node) {
        self.core.end_loan_on(node);
    }

    /// Before the kernel gets pages of a file, which programs change without a word: what was lent
    /// comes back, and views lose what they show.
    pub fn blind_views(&self, node: &Node) {
        self.core.end_loan_on(node);
        node.data_changes(0, u64::MAX);
    }
}

impl Vfs {
    /// Reads for a view of which the client may see all: `show` gets the bytes while nobody can
    /// change them, those past the end of the file left as they were, and no access time moves.
    pub fn show(
        &self,
        node: &Node,
        offset: u64,
        into: &mut [u8],
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let ctx = &OpCtx::service();
        let core = &self.core;
        let _data = core.lock_shared(node);
        let (len, mut sink) = (into.len(), &mut *into);
        match node.pages() {
            Some(pages) => {
                // Not the file's own: what is shown again says nothing of how it is read.
                let ahead = ReadAhead::default();
                core.cached_read(ctx, node, pages, (&ahead, false), offset, len, &mut sink)?
            }
            None => core.fs.read(ctx, node.ino(), offset, len, &mut sink)?,
        };
        show(into);
        Ok(())
    }
}

impl Vfs {
    /// The pages around `pages`, within `limit`, that [`Vfs::show`] shows at the cost of a copy.
    pub fn cached_around(&self, node: &Node, pages: Range<u64>, limit: Range<u64>) -> Range<u64> {
        match node.pages() {
            Some(cached) => cached.around(pages, limit),
            // Kept in memory by the libservice itself.
            None => limit,
        }
    }
}

impl Inode {
    /// Whether a session has the only view.
    fn is_viewed_by(&self, session: u64) -> bool {
        let views = self.views.lock();
        views.len() == 1 && views[0].session == session
    }

    /// Tells the views that bytes are about to change. Call with the data locked for change.
    #[inline]
    pub(crate) fn data_changes(&self, start: u64, end: u64) {
        if self.has(VIEWED) {
            self.tell(|viewer, view| viewer.data_changes(view, start, end));
        }
    }

    /// Tells the views, and by its mark everybody, that the state has changed. Call with the
    /// attributes locked.
    #[inline]
    pub(crate) fn attr_changed(&self) {
        self.core.marks.state_changed(self);
        self.core.told.state_changed(self);
        if self.has(VIEWED) {
            self.tell(|viewer, view| viewer.attr_changed(view));
        }
    }

    /// A session has let go of all that is open before its last reference goes: to drop that one
    /// here does nothing.
    #[cold]
    fn tell(&self, what: impl Fn(&dyn Viewer, u32)) {
        for viewed in self.views.lock().iter() {
            if let Some(viewer) = viewed.viewer.upgrade() {
                what(&*viewer, viewed.view);
            }
        }
    }
}

/// A file's data as `lock` locks it, once nothing of it is on loan; `end_loan` is called without
/// that lock.
#[inline]
fn locked<G, E>(
    node: &Node,
    lock: impl Fn() -> G,
    end_loan: impl Fn() -> Result<(), E>,
) -> Result<G, E> {
    loop {
        let data = lock();
        if !node.has(LENT) {
            return Ok(data);
        }
        drop(data);
        end_loan()?;
    }
}

impl Core {
    /// Locks a file's data against change, with nothing of it on loan. Call without locks.
    #[inline]
    pub(crate) fn lock_shared<'a>(&self, node: &'a Node) -> RwLockReadGuard<'a, ()> {
        let Ok(data) = locked(node, || node.lock.read(), || self.end_any_loan(node));
        data
    }

    /// Locks a file's data for change, with nothing of it on loan. Call without locks.
    #[inline]
    pub(crate) fn lock_exclusive<'a>(&self, node: &'a Node) -> RwLockWriteGuard<'a, ()> {
        let Ok(data) = locked(node, || node.lock.write(), || self.end_any_loan(node));
        data
    }

    /// As [`Core::lock_shared`] for the one of `ctx`: a streamed call ends loans of its own
    /// session alone. `EPERM`: another has one.
    pub(crate) fn lock_shared_as<'a>(
        &self,
        ctx: &OpCtx<'_>,
        node: &'a Node,
    ) -> Result<RwLockReadGuard<'a, ()>> {
        locked(node, || node.lock.read(), || self.end_loan_as(ctx, node))
    }

    /// As [`Core::lock_exclusive`], otherwise as [`Core::lock_shared_as`].
    pub(crate) fn lock_exclusive_as<'a>(
        &self,
        ctx: &OpCtx<'_>,
        node: &'a Node,
    ) -> Result<RwLockWriteGuard<'a, ()>> {
        locked(node, || node.lock.write(), || self.end_loan_as(ctx, node))
    }

    fn end_any_loan(&self, node: &Node) -> Result<(), Infallible> {
        self.end_loan_on(node);
        Ok(())
    }

    fn end_loan_as(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<()> {
        if ctx.streamed && !node.is_viewed_by(ctx.session()) {
            return Err(Errno::EPERM);
        }
        self.end_loan_on(node);
        Ok(())
    }

    /// Whether what a client writes on loan may be stored in a file. Call with its data locked.
    fn may_take(&self, node: &Node) -> Result<()> {
        self.writable()?;
        if node.has(FROZEN | ONLY_GROWS) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// A loan begins, if `begin` says so. Call with the data locked for change.
    fn begin_loan(&self, node: &Node, begin: &mut dyn FnMut() -> bool) -> bool {
        self.loans.begin(node);
        self.marks.state_changed(node);
        self.told.state_changed(node);
        let begun = begin();
        if !begun {
            self.loans.end(node);
        }
        begun
    }

    /// Has what is on loan of a file brought back. Call without locks.
    #[inline]
    pub(crate) fn end_loan_on(&self, node: &Node) {
        if node.has(LENT) {
            self.end_loan(node);
        }
    }

    /// Whether the state of a file may be told though it is on loan: nothing was written on that.
    /// Call without locks.
    pub(crate) fn is_unwritten(&self, node: &Node) -> bool {
        let views = node.views.lock().clone();
        views.iter().any(|viewed| {
            viewed.viewer.upgrade().is_some_and(|viewer| viewer.is_unwritten(viewed.view, node))
        })
    }

    #[cold]
    fn end_loan(&self, node: &Node) {
        // One that is beginning counts before its viewer has it: that is over once the lock is had.
        let loan = {
            let _data = node.lock.read();
            self.loans.of(node)
        };
        let Some(loan) = loan else { return };
        let views = node.views.lock().clone();
        for viewed in views {
            if let Some(viewer) = viewed.viewer.upgrade() {
                viewer.end_loan(viewed.view, node);
            }
        }
        // Nobody who could have it has it: its session is gone without a word, or lost count of it.
        // There is nothing left to be brought.
        self.loans.end_if(node, loan);
    }

    /// Has views of a file given up that nobody uses. Call without locks.
    pub(crate) fn let_go_of(&self, node: &Node) {
        if !node.has(VIEWED) {
            return;
        }
        let views = node.views.lock().clone();
        for viewed in views {
            if let Some(viewer) = viewed.viewer.upgrade() {
                viewer.let_go(viewed.view);
            }
        }
    }

    /// Has all that is on loan brought back. Call without locks.
    pub(crate) fn end_loans(&self) {
        self.loans.files().iter().for_each(|node| self.end_loan_on(node));
    }

    /// Writes to the cache or the libservice. Call with the data locked for change.
    pub(crate) fn put(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        (at, len): (u64, usize),
        source: &mut dyn Source,
    ) -> Result<usize> {
        if let Some(pages) = node.pages() {
            return self.cached_write(ctx, node, pages, (at, len), source, Room::Free);
        }
        let count = self.fs.write(ctx, node.ino(), at, &mut crate::file::Front { source, len })?;
        node.grew(at + count as u64);
        Ok(count)
    }
}
