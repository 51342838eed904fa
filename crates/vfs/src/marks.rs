//! Marks: counts that tell a client, without asking, that an answer it was given still holds.
//!
//! What a path leads to depends on three things: the directories and links on its way, the last
//! name that was looked up, and the state of what it names. Each has a *mark*, a count that is
//! raised when that changes. A front end shows the counts to its clients; an answer is handed out
//! with the sum of its three ([`Mark`]), and holds as long as the sum is the same: counts only
//! grow. Names and inodes share places by a hash, which at worst has somebody ask once too often.
//!
//! # Why an answer never holds too long
//!
//! - *Ways*: a thread that is about to take a directory or a link from its name, or to change a
//!   directory's rights, says so before ([`Marks::moving`]); until it is done no mark is handed
//!   out.
//! - *Names*: a name's mark is raised with the entries of its directory locked for change, before
//!   the change. A thread that hands a mark out looks at the count and at the name with them locked
//!   to read.
//! - *States*: an inode's mark is raised with its attributes locked, as they are changed; who hands
//!   a mark out looks at the count before it locks them.
//! - Under a lease or a loan a client changes names, or a file, by itself: the mark is raised as it
//!   begins, and none is handed out of a leased directory. A loan ends when its state is asked for.
//! - Marks of an inode that nobody has marked need not be raised ([`MARKED`], [`NAMED`]: these are
//!   lost with the inode, so its marks are raised then).
//!
//! # States that the kernel was told
//!
//! A front end that tells the kernel a state for good ([`Vfs::tell_attr`]) has the flag [`TOLD`]
//! put up with the attributes locked. Whatever changes them takes it down, with them locked, and
//! has the front end's [`Teller`] know; the front end answers no change before the kernel has
//! heard of it. So each state that the kernel remembers costs one word to it at most. What is asked
//! again later has its flag up again. A loan's begin takes the flag down as well, and nothing is
//! told for good while it lasts: flag and loan lie in one word, so one of the two who come at once
//! sees the other.

use std::hash::Hasher;
use std::sync::OnceLock;

use rustc_hash::FxHasher;

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
use polylane_base::{Errno, Result};

use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Attr, Kind};
use crate::inode::{Inode, LEASED, LENT, MARKED, NAMED, Node, TOLD};
use crate::vfs::{PathError, Vfs};
use crate::walk::{Goal, Walk};

/// Places that marks are kept in. Place 0 is that of all directories and links.
pub const MARK_PLACES: u32 = 8192;

/// Where a front end keeps the counts. Called with locks of the VFS held: it must take none.
pub trait Marker: Send + Sync {
    /// Raises the count of a place below [`MARK_PLACES`]. Sequentially consistent.
    fn raise(&self, place: u32);

    /// The count of a place.
    fn count(&self, place: u32) -> u64;
}

/// What an answer depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The place of the last name that was looked up; 0: none was.
    pub name: u32,
    /// The place of the inode's state; 0: there is no inode.
    pub state: u32,
    /// The counts of these two and of place 0, added up.
    pub sum: u64,
}

/// The marks of one VFS.
#[derive(Default)]
pub(crate) struct Marks {
    marker: OnceLock<Arc<dyn Marker>>,
    /// Changes of ways that are under way.
    moving: AtomicU64,
}

/// The mark of all ways.
const WAYS: u32 = 0;

fn place(hash: u64) -> u32 {
    1 + (hash >> 32) as u32 % (MARK_PLACES - 1)
}

fn place_of_name(dir: &Inode, name: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(dir.id);
    hasher.write(name);
    place(hasher.finish().wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn place_of_state(inode: &Inode) -> u32 {
    place(inode.id.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

impl Marks {
    fn raise(&self, place: u32) {
        if let Some(marker) = self.marker.get() {
            marker.raise(place);
        }
    }

    /// Before a change of what lies on the way of paths. None is handed a mark while what is
    /// returned lives.
    pub(crate) fn moving(&self) -> Moving<'_> {
        self.moving.fetch_add(1, SeqCst);
        self.raise(WAYS);
        Moving(self)
    }

    /// All that was handed out is void: a directory's names are a client's own from now on.
    pub(crate) fn leased(&self) {
        self.raise(WAYS);
    }

    /// Before a change of what `name` in `dir` names, with the entries locked for change.
    #[inline]
    pub(crate) fn name_changes(&self, dir: &Inode, name: &[u8]) {
        if dir.has(NAMED) {
            self.raise(place_of_name(dir, name));
        }
    }

    /// The state of an inode changes: call with the attributes locked, or as a loan of it begins,
    /// with the data locked for change.
    #[inline]
    pub(crate) fn state_changed(&self, inode: &Inode) {
        if inode.has(MARKED) {
            self.raise(place_of_state(inode));
        }
    }

    /// An inode is forgotten, and that it was marked with it.
    pub(crate) fn forgets(&self, inode: &Inode) {
        self.state_changed(inode);
        if inode.has(NAMED) {
            self.raise(WAYS);
        }
    }
}

/// See [`Marks::moving`].
pub(crate) struct Moving<'a>(&'a Marks);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, SeqCst);
    }
}

impl Vfs {
    /// Where marks are kept from now on. False: they are kept elsewhere already, or files change
    /// behind our back and there are none.
    pub fn mark_with(&self, marker: Arc<dyn Marker>) -> bool {
        !self.core.character.volatile && self.core.marks.marker.set(marker).is_ok()
    }

    /// As [`Vfs::resolve`], then asks about what was found. `ask` answers from its state and from
    /// nothing else that may change; it is told whether there is a mark. With the answer, and with
    /// `ENOENT`, comes the mark by which it is known to hold; `None`: it may be another at any
    /// time.
    pub fn resolve_marked<T>(
        &self,
        ctx: &OpCtx<'_>,
        (start, path): (&Node, &[u8]),
        follow: bool,
        ask: impl FnOnce(&Node, bool) -> Result<T>,
    ) -> (Result<T, PathError>, Option<Mark>) {
        self.begin();
        // The count first: whoever moves something later raises it.
        let marks = &self.core.marks;
        let ways = marks.marker.get().map(|marker| marker.count(WAYS));
        let ways = ways.filter(|_| marks.moving.load(SeqCst) == 0);
        let mut walk = match Walk::new(self, ctx, start, path) {
            Ok(walk) => walk.keeping(),
            Err(error) => return (Err(error), None),
        };
        let walked = walk.run(ctx, if follow { Goal::Follow } else { Goal::NoFollow });
        let name = walk.take_looked_up();
        match walked {
            Ok(_) => {
                let node = walk.here();
                let mark = ways.and_then(|ways| self.core.mark(ctx, ways, name, Some(&node)));
                let answer = ask(&node, mark.is_some()).map_err(PathError::Errno);
                (answer, mark)
            }
            Err(PathError::Errno(Errno::ENOENT)) => {
                let mark = ways.and_then(|ways| self.core.mark(ctx, ways, name, None));
                (Err(Errno::ENOENT.into()), mark)
            }
            Err(error) => (Err(error), None),
        }
    }
}

impl Core {
    /// The mark of `node` (`None`: of nothing) as what the name names that was looked up last.
    fn mark(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        ways: u64,
        name: Option<(Node, Vec<u8>)>,
        node: Option<&Node>,
    ) -> Option<Mark> {
        let marker = self.marks.marker.get()?;
        let mut mark = Mark { name: WAYS, state: WAYS, sum: 0 };
        let name_count = match &name {
            Some((dir, name)) => {
                mark.name = place_of_name(dir, name);
                self.count_name(ctx, &**marker, (dir, name), node)?
            }
            None if node.is_none() => return None,
            None => ways,
        };
        let state_count = match node {
            Some(node) if node.has(LEASED) => return None,
            Some(node) => {
                // Up before the count is looked at: who changes the state later sees it.
                node.raise(MARKED);
                mark.state = place_of_state(node);
                marker.count(mark.state)
            }
            None => ways,
        };
        mark.sum = ways.wrapping_add(name_count).wrapping_add(state_count);
        Some(mark)
    }

    /// The count of a name that still names `node`, or nothing. A name on the way of a link that
    /// leads back to a directory is not the node's own: it is told apart by what it names.
    fn count_name(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        marker: &dyn Marker,
        (dir, name): (&Node, &[u8]),
        node: Option<&Node>,
    ) -> Option<u64> {
        let _entries = dir.lock.read();
        if dir.has(LEASED) {
            return None;
        }
        dir.raise(NAMED);
        let count = marker.count(place_of_name(dir, name));
        let same = match (self.child_locked(ctx, dir, name), node) {
            (Ok(found), Some(node)) => found.id == node.id,
            (Err(Errno::ENOENT), None) => true,
            _ => false,
        };
        same.then_some(count)
    }
}

/// A front end that tells states for good.
pub trait Teller: Send + Sync {
    /// The state of an inode is another one from now on. Called with locks of the VFS held: it must
    /// take none, and wait for no other thread.
    fn state_changed(&self, inode: &Inode);
}

/// Whom to tell.
#[derive(Default)]
pub(crate) struct Told(OnceLock<Arc<dyn Teller>>);

impl Told {
    /// The state of an inode changes: call with the attributes locked, or as a loan of it begins.
    #[inline]
    pub(crate) fn state_changed(&self, inode: &Inode) {
        if inode.has(TOLD) {
            self.tell(inode);
        }
    }

    #[cold]
    fn tell(&self, inode: &Inode) {
        if let (true, Some(teller)) = (inode.lower(TOLD), self.0.get()) {
            teller.state_changed(inode);
        }
    }
}

impl Vfs {
    /// Who is told of changes from now on. False: somebody is already, or names and states may
    /// change without a word to this VFS.
    pub fn tell_with(&self, teller: Arc<dyn Teller>) -> bool {
        let character = self.core.character;
        character.remembered && !character.volatile && self.core.told.0.set(teller).is_ok()
    }

    /// The state of an inode, and whether it may be told for good: the teller hears of its next
    /// change then.
    pub fn tell_attr(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<(Attr, bool)> {
        self.begin();
        self.core.settle(node);
        self.core.end_loan_on(node);
        let held = node.fresh_attr(ctx)?;
        let lasts = self.core.may_last(node);
        if lasts {
            node.raise(TOLD);
        }
        let attr = *held;
        drop(held);
        Ok((Vfs::with_blocks_to_come(node, attr), lasts && !node.has(LENT)))
    }

    /// Something of an inode's state was told for good, or is about to be: the teller hears of the
    /// next change.
    pub fn is_told(&self, node: &Node) {
        node.raise(TOLD);
    }

    /// Whether the kernel may remember the state of an inode, and its name, if it knows it.
    pub fn is_remembered(&self, node: &Node) -> bool {
        node.has(TOLD) && self.is_original(node)
    }

    /// Whether what a name leads to is as it will be found again after any loss.
    pub fn is_original(&self, node: &Node) -> bool {
        self.core.fs.is_original(node.ino())
    }
}

impl Core {
    /// Whether a state may be told for good: that of a directory, and of what nothing has changed.
    /// Of other files it would be told anew after each write.
    fn may_last(&self, node: &Node) -> bool {
        match node.kind() {
            Kind::Dir => !node.has(LEASED),
            _ => self.fs.is_original(node.ino()),
        }
    }
}
