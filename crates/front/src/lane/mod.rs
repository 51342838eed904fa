//! A lane's tables, shared by its front ends.
//!
//! One [`Lane`] exists per service; several mounts of it share the tables. `fuse/` and `shm/` both
//! serve it: what they must know of each other is here and nowhere else, and nothing here knows how
//! either speaks.
//!
//! | module | what |
//! |---|---|
//! | `tag` | which files the kernel may have pages of, or open |
//! | `nodes` | node ids: what the kernel knows |
//! | `slots` | kernel descriptors that clients opened ahead |
//! | `tickets` | open files on their way from a kernel descriptor to a channel |
//! | `locks` | locks that the next service must know |
//! | `memory` | lanes of which the kernel remembers names and states |
//! | `notifier`, `progress` | what the kernel is to be told; what it sent and is not served yet |
//! | `handover`, `record`, `restore` | what passes from one service to the next |
//!
//! # Coherence
//!
//! The kernel caches no names and no attributes of a lane (timeouts 0; but see `memory`), and
//! writes bypass its page cache (before Linux 6.6 they do not). What is left are pages of files
//! that were opened to be read while no open file wrote to them, which it keeps from one open to
//! the next, and those of mapped files. [`mod@tag`] says whether there can be any, and whether
//! programs may change them.
//!
//! `shm` calls [`Lane::before_io`] before it reads or changes data and [`Lane::changed`] after a
//! change and before the reply, holding no lock. Both cost one atomic load when no bit is set.
//! Pages that the kernel keeps of a file that it has not open are all dropped at the first change:
//! the next one finds none.
//! `fuse` does the same for each node: `Call::settle`, `Call::before_write`, `Call::changed`.
//!
//! How long the kernel takes a file to be decides what it does by itself: where sendfile, splice,
//! copy_file_range and mappings end, and where `RWF_APPEND` writes. While it has the file's own
//! node open it is told of each growth before the change is answered; what makes such a file
//! shorter is done by the kernel's way, since no notification lowers a size.
//!
//! A page that the kernel fills between the two holds the old bytes, and where a program stores
//! into it at once, all of it comes back with that store: over the change. So who writes looks
//! whether pages were filled meanwhile and came back, and then writes again (`Lane::after_write`).

pub(crate) mod handover;
pub(crate) mod locks;
pub(crate) mod memory;
pub mod nodes;
pub mod notifier;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod restore;
pub mod slots;
pub mod tag;
pub mod tickets;

use std::collections::VecDeque;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Ino, Result};
use polylane_vfs::fs::Attr;
use polylane_vfs::mapped::is_nobodys;
use polylane_vfs::{Attachment, Kind, Node, OpCtx, OpenFile, Vfs, Written};

use self::locks::Kept;
use self::nodes::{NodeTable, Place, Target};
use self::notifier::{Level, NAMES_PATIENCE, Notifier, Range};
use self::progress::Progress;
use self::slots::SlotTable;
use self::tag::{
    Beside, Moment, TAG_KEPT, TAG_OPEN, TAG_PAGES, TAG_SLOT_PAGES, kernel_changes_pages,
    kernel_has_pages, tag,
};
use self::tickets::TicketTable;
use crate::pace::Syncs;

pub use self::handover::{Handover, Survived};

/// Times that a write is done again, at most: a program that stores all the time has to win each of
/// as many races.
const WRITES_MAX: u32 = 100;

/// What a session sees of the lane, where that is not all of it as its tenant does.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The root of it: held, so that the bounds hold.
    pub(crate) root: Node,
    /// What bounds the session's paths.
    pub(crate) bounds: Attachment,
}

/// Everything the front ends of one mounted instance share. Thread-safe.
pub struct Lane {
    /// The file door.
    pub vfs: Arc<Vfs>,
    /// What the kernel knows under which node id.
    pub nodes: NodeTable,
    /// Kernel descriptors opened ahead by clients.
    pub slots: SlotTable,
    /// Open files on their way from a kernel descriptor to a channel.
    pub tickets: TicketTable,
    /// What the kernel is to be told.
    pub notifier: Arc<Notifier>,
    /// The kernel remembers names and states; see `memory.rs`.
    remembers: AtomicBool,
    /// How far its front end has come with what the kernel sent.
    pub progress: Progress,
    /// How long an fsync takes here.
    pub(crate) syncs: Syncs,
    /// What the next service is to know.
    pub handover: Option<Handover>,
    /// Locks that it is to know.
    pub(crate) kept: Arc<Kept>,
    /// Those of sessions; what is over is left out.
    attachments: Mutex<Vec<Weak<Attached>>>,
    /// Files that the kernel made without a name, the newest last.
    unnamed: Mutex<VecDeque<Unnamed>>,
    /// As the host's `fs.protected_hardlinks`, which the kernel minds for FUSE alone.
    guards_links: AtomicBool,
}

/// Files made without a name that are remembered, at most: each is asked for right after.
const UNNAMED_MAX: usize = 1024;

/// A file made without a name by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unnamed {
    file: Ino,
    dir: Ino,
    /// The thread that asked, as the kernel's FUSE requests have it.
    thread: u32,
}

/// Whether a program with these bits of its mode runs as another user or group than its caller.
pub(crate) fn runs_as_another(attr: &Attr) -> bool {
    let as_group = libc::S_ISGID | libc::S_IXGRP;
    attr.perm & libc::S_ISUID != 0 || attr.perm & as_group == as_group
}

impl Lane {
    /// A lane on `vfs`. `incarnation` counts the service processes of this mount from 0.
    pub fn new(vfs: Arc<Vfs>, incarnation: u16) -> Arc<Lane> {
        let nodes = NodeTable::new(vfs.root(), incarnation);
        Lane::with(vfs, nodes, SlotTable::default(), None)
    }

    /// A lane on `vfs` that goes on for a former service of the same mount, and is followed by
    /// others in the same way. What of the former's cannot be found again is left out.
    pub fn handed_over(vfs: Arc<Vfs>, handover: Handover) -> Arc<Lane> {
        vfs.names_were_lost(handover.lost_names.iter().copied());
        let (nodes, slots) = restore::nodes(&vfs, &handover);
        vfs.tell_unsynced(handover.store.clone());
        Lane::with(vfs, nodes, slots, Some(handover))
    }

    fn with(
        vfs: Arc<Vfs>,
        nodes: NodeTable,
        slots: SlotTable,
        handover: Option<Handover>,
    ) -> Arc<Lane> {
        let kept = Kept::new(handover.as_ref().map(|handover| handover.store.clone()));
        Arc::new(Lane {
            kept,
            nodes,
            vfs,
            slots,
            tickets: TicketTable::default(),
            notifier: Arc::default(),
            remembers: AtomicBool::new(false),
            progress: Progress::default(),
            syncs: Syncs::default(),
            handover,
            attachments: Mutex::default(),
            unnamed: Mutex::default(),
            guards_links: AtomicBool::new(false),
        })
    }

    /// The kernel made `file` in `dir` without a name, for that thread.
    pub fn made_unnamed(&self, file: &Node, dir: &Node, thread: u32) {
        let mut all = self.unnamed.lock();
        if all.len() >= UNNAMED_MAX {
            all.pop_front();
        }
        all.push_back(Unnamed { file: file.ino(), dir: dir.ino(), thread });
    }

    /// The thread for which the kernel made `file` in `dir` without a name; asked once.
    pub(crate) fn take_unnamed(&self, file: &Node, dir: &Node) -> Option<u32> {
        let mut all = self.unnamed.lock();
        // A number is used again: the newest of it counts.
        let at = all.iter().rposition(|one| one.file == file.ino())?;
        all.remove(at).filter(|one| one.dir == dir.ino()).map(|one| one.thread)
    }

    /// A session has this attachment from now on.
    pub(crate) fn attached(&self, attachment: &Arc<Attached>) {
        let mut all = self.attachments.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(attachment));
    }

    /// Whether a session sees that directory as the root of its lane: slots are made there.
    pub(crate) fn is_attached(&self, dir: &Node) -> bool {
        let all = self.attachments.lock();
        all.iter().filter_map(Weak::upgrade).any(|one| Arc::ptr_eq(&one.root, dir))
    }

    /// From now on files are given names only by who owns them or may read and write them.
    pub fn guard_links(&self) {
        self.guards_links.store(true, Ordering::Relaxed);
    }

    /// Whether it may be given the inode a name more, wherever: the kernel's `may_linkat`.
    pub(crate) fn may_link(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<bool> {
        if !self.guards_links.load(Ordering::Relaxed) || ctx.is_root() {
            return Ok(true);
        }
        let attr = self.vfs.getattr(ctx, node)?;
        // Nobody's: the VFS says so, as the kernel does before it looks at rights.
        if is_nobodys(attr.uid, attr.gid) {
            return Ok(true);
        }
        let can_use = || self.vfs.access(ctx, node, (libc::R_OK | libc::W_OK) as u32).is_ok();
        let harmless = node.kind() == Kind::File && !runs_as_another(&attr);
        Ok(ctx.uid() == attr.uid || harmless && can_use())
    }

    /// To be called by the shared-memory front end before it reads, writes, truncates or syncs
    /// `range` of a file: what was stored through mappings is written back to the VFS. May wait for
    /// the kernel; no lock may be held.
    pub fn before_io(&self, node: &Node, range: Range) {
        if kernel_changes_pages(node) {
            self.invalidate(node, None, range);
        }
    }

    /// To be called after a bit of the tag was set: what clients write unasked would not be what
    /// the kernel reads, nor what they see what programs store through mappings. One atomic load
    /// when no bit is set.
    pub(crate) fn has_pages(&self, node: &Node) {
        if kernel_changes_pages(node) {
            self.vfs.blind_views(node);
        } else if kernel_has_pages(node) {
            self.vfs.end_loan_of(node);
        }
    }

    /// Whether a file that the kernel opens to be read may be read through its page cache: nobody
    /// writes to it, nor can without a word to this service.
    pub(crate) fn may_cache(&self, node: &Node, id: u64) -> bool {
        let is_ours = !self.vfs.character().volatile && node.kind() == Kind::File;
        is_ours && !node.is_written() && self.nodes.may_cache(id)
    }

    /// Has the kernel drop what it read of files from a former service: they may be as they were
    /// before, in this one. To be called once by a thread that serves nothing.
    pub(crate) fn drop_stale(&self) {
        for id in self.nodes.stale() {
            self.notifier.invalidate(&[(Level::Own, id)], Range::ALL);
            self.nodes.is_fresh(id);
        }
    }

    /// To be called by the shared-memory front end after a change of data and before its reply:
    /// pages that the kernel read before the change are dropped. As [`Lane::before_io`].
    pub fn changed(&self, node: &Node, range: Range) {
        if kernel_has_pages(node) {
            self.invalidate(node, None, range);
            self.tell_growth(node);
        }
    }

    /// To be called after bytes of a range were written, while some pages were filled (`beside`),
    /// and before the reply: drops the kernel's pages, and has the same written `again`, unless
    /// that fails, as long as stores through mappings came back meanwhile, perhaps with what was
    /// there before. Pages that were filled after the write hold it, and what programs stored there
    /// is newer. Whether it was written again.
    pub(crate) fn after_write(
        &self,
        (node, range): (&Node, Range),
        mut beside: Beside,
        mut again: impl FnMut() -> bool,
    ) -> bool {
        let mut times = 0;
        while times < WRITES_MAX {
            let next = Moment::of(node);
            self.invalidate(node, None, range);
            if !beside.came_back(node) || !again() {
                break;
            }
            times += 1;
            beside = next.until_now(node);
        }
        self.tell_growth(node);
        times > 0
    }

    /// As [`Lane::after_write`] for what an open file wrote: `again` writes so many of the first
    /// bytes, those that lie within the file still. What the file's `flags` of open(2) demand of a
    /// write is done for the last one, too.
    pub(crate) fn keep_written(
        &self,
        (file, flags): (&OpenFile, i32),
        range: Range,
        beside: Beside,
        mut again: impl FnMut(usize) -> Result<Written>,
    ) -> Result<()> {
        let twice = self.after_write((file.node(), range), beside, || {
            let within = file.size().saturating_sub(range.offset).min(range.len);
            again(within as usize).is_ok()
        });
        if twice { file.sync_written(&OpCtx::service(), flags) } else { Ok(()) }
    }

    /// To be called after a file may have grown without the kernel, and before the reply: what the
    /// kernel does by itself ends where it knows that the file does, and nothing makes it ask again
    /// while it has the file open. No lock may be held; not for the threads that read requests.
    pub(crate) fn tell_growth(&self, node: &Node) {
        let (open, pages) = (tag(node) & TAG_OPEN != 0, tag(node) & TAG_KEPT != 0);
        let grown = if open { self.growth(node) } else { None };
        let Some((id, size)) = grown else { return };
        // The kernel takes a page's lock for this: without pages no thread has it for long.
        if pages || !self.notifier.grow_now(id, size) {
            self.notifier.grow(id, size);
        }
        self.nodes.told_growth(id, size);
    }

    /// Tells the kernel how long a file is that it has open, if that is more than it was told by a
    /// reply that may have come late: it takes back what it learned before.
    pub(crate) fn tell_size(&self, node: &Node, told: u64) {
        let size = self.vfs.getattr(&OpCtx::service(), node).map_or(0, |attr| attr.size);
        if let Some(id) = self.nodes.id_of(node).filter(|_| size > told) {
            self.notifier.grow(id, size);
            self.nodes.told_growth(id, size);
        }
    }

    /// The node's id, and its size where the kernel takes it to be shorter.
    pub(crate) fn growth(&self, node: &Node) -> Option<(u64, u64)> {
        let (id, size) =
            (self.nodes.id_of(node)?, self.vfs.getattr(&OpCtx::service(), node).ok()?.size);
        let known = self.nodes.size_of(id)?;
        (known < size).then_some((id, size))
    }

    /// Whether a file that is about to be `size` bytes long must be cut by the kernel's way: it has
    /// the file open and takes it to be longer.
    pub(crate) fn is_cut_by_kernel(&self, node: &Node, size: u64) -> bool {
        let known = || self.nodes.id_of(node).and_then(|id| self.nodes.size_of(id));
        tag(node) & TAG_OPEN != 0 && known().is_some_and(|known| known > size)
    }

    /// To be called by the shared-memory front end after `name` in `dir` ceased to name `node`: it
    /// was removed or replaced. If the kernel knows the inode, it lets go of the name, which would
    /// keep the inode and its blocks. Never waits; one atomic load when the kernel does not know
    /// the inode.
    pub fn name_gone(&self, dir: &Node, name: &[u8], node: &Node) {
        if self.nodes.id_of(node).is_some()
            && let Some(dir_id) = self.nodes.id_of(dir)
        {
            // Told just now, beside the change: else the kernel would have made it.
            if self.is_name_told(node) {
                return self.notifier.owe_name(dir_id, name, false);
            }
            self.notifier.forget_name(dir_id, name, || self.nodes.len());
        }
    }

    /// As [`Lane::name_gone`], after the inode got another name instead, or another inode the name.
    /// A directory's is left to the kernel: a process may work there, and would lose the path. The
    /// kernel changes it when somebody looks at the new name, as the client does. Where it
    /// remembers names, it looks a directory's up again.
    pub fn name_moved(&self, dir: &Node, name: &[u8], node: &Node) {
        if node.kind() != Kind::Dir {
            self.name_gone(dir, name, node);
        } else if self.is_name_told(node)
            && let Some(dir_id) = self.nodes.id_of(dir)
        {
            self.notifier.owe_name(dir_id, name, true);
        }
    }

    /// To be called after the kernel was told that `name` in `dir` is `node`: if that is over, it
    /// lets go of the name. So whoever takes the name from an inode either finds that the kernel
    /// knows it, or is found here. Whether it is over.
    pub(crate) fn name_told(&self, (dir, dir_id): (&Node, u64), name: &[u8], node: &Node) -> bool {
        let is_other = match self.vfs.known_child(dir, name) {
            Some(other) => !Arc::ptr_eq(&other, node),
            // Not even that: a process that works in a directory keeps its path.
            None => self.vfs.keeps_names() && node.kind() != Kind::Dir,
        };
        let is_over = is_other || self.vfs.is_unlinked(node);
        if is_over {
            self.notifier.forget_name(dir_id, name, || self.nodes.len());
        }
        is_over
    }

    /// Whether a name that was gone names something else by now, and the kernel has heard so: then
    /// it has dropped what the name meant before, and must not drop it again, since somebody may
    /// work there.
    pub(crate) fn is_known_anew(&self, dir_id: u64, name: &[u8]) -> bool {
        let Ok(Target::Node(dir)) = self.nodes.get(dir_id) else { return false };
        let node = self.vfs.known_child(&dir, name);
        node.is_some_and(|node| self.nodes.is_known_as(&node, Place::of(dir_id, name)))
    }

    /// Waits, for a moment at most, until the kernel has dropped the names that are gone. Call
    /// without locks, on a thread that may wait.
    pub(crate) fn settle_names(&self) {
        self.notifier.settle_names(NAMES_PATIENCE);
    }

    /// Waits, for a moment at most, for what gives room back: inodes without a name that only the
    /// kernel remembers, and what is set aside for clients that stream. To be called before an
    /// operation is refused for want of room; no lock may be held.
    pub(crate) fn reclaim(&self) {
        self.settle_names();
        self.progress.settle();
        self.vfs.give_room_back();
    }

    /// Whether a change that the kernel itself brought through node `door` must not be answered
    /// before it was told of it under *other* nodes.
    pub(crate) fn others_must_know(&self, node: &Node, door: u64) -> bool {
        let is_own = || self.nodes.id_of(node) == Some(door);
        self.others_have_pages(node, door) || tag(node) & TAG_OPEN != 0 && !is_own()
    }

    /// Whether a change that the kernel itself brings through node `door` must not be answered
    /// before pages under *other* nodes are dropped.
    pub(crate) fn others_have_pages(&self, node: &Node, door: u64) -> bool {
        self.others_have(node, door, TAG_KEPT)
    }

    /// Whether what the kernel itself reads through node `door` must not be read before pages under
    /// *other* nodes are dropped.
    pub(crate) fn others_change_pages(&self, node: &Node, door: u64) -> bool {
        self.others_have(node, door, TAG_PAGES)
    }

    fn others_have(&self, node: &Node, door: u64, own: u64) -> bool {
        let tag = tag(node);
        match tag & TAG_SLOT_PAGES {
            0 => tag & own != 0 && self.nodes.id_of(node) != Some(door),
            _ => self.kernel_nodes(node).iter().any(|(_, id)| *id != door),
        }
    }

    /// Whether the kernel may have pages under node `door` itself.
    pub(crate) fn has_pages_under(&self, node: &Node, door: u64) -> bool {
        kernel_has_pages(node) && self.kernel_nodes(node).iter().any(|(_, id)| *id == door)
    }

    /// Drops the pages of `range` under every node but `except`; all of those that the kernel keeps
    /// of a file that it has not open.
    pub(crate) fn invalidate(&self, node: &Node, except: Option<u64>, range: Range) {
        let own = self.nodes.id_of(node).filter(|id| Some(*id) != except);
        let kept = own.and_then(|id| self.nodes.kept_alone(id));
        let mut nodes = self.kernel_nodes(node);
        nodes.retain(|(_, id)| Some(*id) != except);
        self.notifier.invalidate(&nodes, if kept.is_some() { Range::ALL } else { range });
        kept.into_iter().for_each(|kept| self.nodes.dropped(kept));
    }

    /// Whether the kernel's fill of a page under node `door` must wait until the pages of the
    /// file's own node are dropped. Those under slots need not: what is mapped is the own node.
    pub(crate) fn own_node_has_pages(&self, node: &Node, door: u64) -> bool {
        tag(node) & TAG_PAGES != 0 && self.nodes.id_of(node) != Some(door)
    }

    /// Drops the pages of `range` under the file's own node.
    pub(crate) fn invalidate_own(&self, node: &Node, range: Range) {
        if let Some(id) = self.nodes.id_of(node) {
            self.notifier.invalidate(&[(Level::Own, id)], range);
        }
    }

    fn kernel_nodes(&self, node: &Node) -> Vec<(Level, u64)> {
        let slots = self.slots.mapped.node_ids(node).into_iter().map(|id| (Level::Slots, id));
        let own = self.nodes.id_of(node).filter(|_| tag(node) & TAG_KEPT != 0);
        slots.chain(own.map(|id| (Level::Own, id))).collect()
    }
}

/// Whether a name in the root of a lane is none of the tenant's.
pub fn is_reserved(name: &[u8]) -> bool {
    name == polylane_ipc::message::RESERVED_DIR.as_bytes()
        || name == polylane_ipc::message::SLOT_DIR.as_bytes()
}

/// A name that only the kernel's way knows: the virtual directories in the root.
pub(crate) fn is_virtual(vfs: &Vfs, dir: &Node, name: &[u8]) -> bool {
    name.starts_with(b".polylane") && is_reserved(name) && Arc::ptr_eq(dir, &vfs.root())
}

/// What tests of tables and threads stand on: an empty lane in memory.
#[cfg(test)]
pub(crate) mod empty {
    use std::time::Duration;

    use polylane_base::SystemClock;
    use polylane_vfs::Options;
    use polylane_vfs::memfs::MemFs;

    use super::*;

    pub(crate) fn vfs() -> Arc<Vfs> {
        let clock = Arc::new(SystemClock);
        let options = Options {
            clock: clock.clone(),
            cache_bytes_limit: 0,
            dirty_bytes_limit: 0,
            flush_interval: Duration::from_secs(5),
            mount_path: b"/".to_vec(),
            covered: Vec::new(),
        };
        Vfs::new(Arc::new(MemFs::new(1 << 20, 100, clock)), options).unwrap()
    }

    pub(crate) fn lane() -> Arc<Lane> {
        Lane::new(vfs(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::empty::lane;
    use super::*;

    #[test]
    fn a_write_is_done_again_as_long_as_pages_filled_beside_it_come_back() {
        let lane = lane();
        let node = lane.vfs.root();
        let times = |beside: Beside, succeeds: bool| {
            let mut times = 0;
            let again = lane.after_write((&node, Range::ALL), beside, || {
                times += 1;
                succeeds
            });
            assert_eq!(again, times > 0 && succeeds);
            times
        };
        let before = Moment::of(&node);
        Moment::store(&node);
        assert_eq!(times(before.until_now(&node), true), 0, "none was filled");
        let before = Moment::of(&node);
        Moment::fill(&node);
        let beside = before.until_now(&node);
        assert!(beside.filled());
        assert_eq!(times(beside, true), 0, "none came back");
        Moment::store(&node);
        assert_eq!(times(beside, true), 1);
        assert_eq!(times(beside, false), 1);
        // Beside the second write, too.
        let mut left = 5;
        lane.after_write((&node, Range::ALL), beside, || {
            left -= 1;
            if left > 0 {
                Moment::fill(&node);
                Moment::store(&node);
            }
            true
        });
        assert_eq!(left, 0);
    }
}
