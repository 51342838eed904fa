//! One request on its way through an operation, and how it ends.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Gid, Result, Uid};
use polylane_vfs::handover::Turn;
use polylane_vfs::mapped::NOBODY;
use polylane_vfs::{Cred, Fsetid, Node, OpCtx, OpenFile, Origin};

use super::deferred::Again;
use super::handles::Handle;
use super::reply::Body;
use super::request::{Header, Reader, Request};
use super::session::Session;
use crate::lane::nodes::Target;
use crate::lane::notifier::Range;
use crate::lane::slots::Slot;

/// How an operation ended, when it did not fail.
pub(super) enum Outcome {
    /// The reply is in the body.
    Reply,
    /// There is no reply, or somebody else will send it.
    Silent,
    /// The reply may be sent when the pages of a range are dropped, except those under a node.
    ReplyAfter(Node, Range, Option<u64>),
    /// The reply may be sent when the pages of what was written are dropped and it is still there.
    ReplyWritten(Again, Range),
    /// The reply is in the body; then the pages of a range are dropped, except those under a node.
    ReplyBefore(Node, Range, Option<u64>),
    /// The reply is in the body, with a size; then the kernel is told if the file is longer by now.
    ReplyThenTell(Node, u64),
}

/// Why an operation did not end.
pub(super) enum Exit {
    /// It failed.
    Failed(Errno),
    /// It failed and is not tried again: nobody may be waited for, or something was changed.
    Late(Errno),
    /// What the kernel's pages of a range hold is refused for good: they are dropped, so that
    /// no program takes it for the file's. Not tried again.
    Refused(Errno, Node, Range),
    /// It must run on the thread that may wait for the kernel.
    Defer,
    /// It must run on the thread that may wait for the pages of files' own nodes.
    DeferFill,
}

impl From<Errno> for Exit {
    fn from(errno: Errno) -> Self {
        Exit::Failed(errno)
    }
}

/// The end of an operation.
pub(super) type End = Result<Outcome, Exit>;

/// One request on its way through an operation.
pub(super) struct Call<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) header: Header,
    pub(super) args: Reader<'a>,
    pub(super) request: &'a Request<'a>,
    pub(super) out: &'a mut Body,
    /// This thread may wait for the kernel.
    pub(super) deferred: bool,
    /// The request's turn, if it changes something.
    pub(super) turn: Option<&'a Turn>,
}

impl<'a> Call<'a> {
    /// The context of what is done for `cred`. The kernel checked permissions
    /// (`default_permissions`).
    pub(super) fn ctx<'c>(&self, cred: &'c Cred) -> OpCtx<'c>
    where
        'a: 'c,
    {
        OpCtx { turn: self.turn, ..OpCtx::new(Origin::Fuse, cred).kernel_checked() }
    }

    /// The kernel does not tell whose request it is, and decides all alone: of a lane whose mounts
    /// can be id-mapped, and a request that makes nothing. To the lane its user is nobody.
    pub(super) fn names_no_user(&self) -> bool {
        self.header.uid == NOBODY && self.session.has_id_maps()
    }

    /// Who asks, where the supplementary groups do not matter.
    pub(super) fn caller(&self) -> Cred {
        Cred {
            uid: Uid(self.header.uid),
            gid: Gid(self.header.gid),
            groups: self.session.no_groups.clone(),
            ..Cred::root()
        }
    }

    /// Who asks.
    pub(super) fn cred(&self) -> Result<Cred> {
        let groups = self.request.groups()?;
        Ok(Cred {
            uid: Uid(self.header.uid),
            gid: Gid(self.header.gid),
            groups: match groups.is_empty() {
                true => self.session.no_groups.clone(),
                false => groups.into(),
            },
            ..Cred::root()
        })
    }

    /// Who writes. Whether the writer keeps set-id bits is the kernel's word. Of the groups of a
    /// user who does not, it tells one; those of a slot's session are known as long as the slot has
    /// not escaped, and those of a process with a session that has a file's own node open, where
    /// they matter.
    pub(super) fn writer(&self, kills_suidgid: bool) -> Cred {
        let user = Uid(self.header.uid);
        let groups = match self.target() {
            Ok(Target::Slot(slot)) if kills_suidgid && !slot.escaped() => {
                self.session.lane.slots.groups(&slot, user)
            }
            Ok(Target::Node(node)) if kills_suidgid && node.is_set_gid_by_group() => {
                self.session.lane.slots.groups_of(self.header.pid, user)
            }
            _ => self.session.no_groups.clone(),
        };
        Cred {
            // A user who keeps them has capabilities; the kernel's own writes have no user.
            uid: if kills_suidgid { user } else { Uid(0) },
            gid: Gid(self.header.gid),
            groups,
            fsetid: if kills_suidgid { Fsetid::Dropped } else { Fsetid::Held },
            host: None,
        }
    }

    /// Who changes a file's contents by a request that does not say whether set-id bits are kept.
    /// Before it the kernel sends a SETATTR without a field where it takes them away, as far as it
    /// knows of them (`attrs`); of what it does not know, root alone keeps them.
    pub(super) fn changer(&self) -> Cred {
        self.writer(self.header.uid != 0)
    }

    /// What the request's node id stands for.
    pub(super) fn target(&self) -> Result<Target> {
        let target = self.session.lane.nodes.get(self.header.node_id)?;
        if let Target::Slot(slot) = &target {
            self.met(slot);
        }
        Ok(target)
    }

    /// The request is about a slot: to be called before anything is told of it or done to it.
    fn met(&self, slot: &Slot) {
        self.session.lane.slots.met(slot, self.header.pid);
    }

    /// The inode behind a node id; a slot stands for the bound file.
    pub(super) fn inode(&self, id: u64) -> Result<Node> {
        match self.session.lane.nodes.get(id)? {
            Target::Node(node) => Ok(node),
            Target::Slot(slot) => {
                self.met(&slot);
                Ok(slot.file()?.node().clone())
            }
            Target::Virtual(_) => Err(Errno::EPERM),
        }
    }

    /// The inode that the request is about.
    pub(super) fn node(&self) -> Result<Node> {
        self.inode(self.header.node_id)
    }

    /// An open file by number, to be read or changed. `EIO`: it has lost bytes.
    pub(super) fn handle(&self, fh: u64) -> Result<(Arc<Handle>, Arc<OpenFile>)> {
        let (handle, file) = self.lockable(fh)?;
        Ok((handle, file.whole()?))
    }

    /// An open file by number, to be locked, named or closed.
    pub(super) fn lockable(&self, fh: u64) -> Result<(Arc<Handle>, Arc<OpenFile>)> {
        let handle = self.session.handles.get(fh)?;
        if let Some(slot) = &handle.slot {
            self.met(slot);
        }
        let file = handle.file()?;
        Ok((handle, file))
    }

    /// Before data is read or changed: what mappings under other nodes hold comes in first.
    pub(super) fn settle(&self, node: &Node, range: Range) -> Result<(), Exit> {
        let node_id = self.header.node_id;
        match self.session.lane.others_change_pages(node, node_id) {
            false => Ok(()),
            true if !self.deferred => Err(Exit::Defer),
            true => {
                self.session.lane.invalidate(node, Some(node_id), range);
                Ok(())
            }
        }
    }

    /// Before a write: what mappings hold comes in first, under this very node too. The kernel
    /// dropped its pages before it asked, and may have filled some since.
    pub(super) fn before_write(&self, node: &Node, range: Range) -> Result<(), Exit> {
        let own = self.session.is_direct()
            && self.session.lane.has_pages_under(node, self.header.node_id);
        match own {
            false => self.settle(node, range),
            true if !self.deferred => Err(Exit::Defer),
            true => {
                self.session.lane.invalidate(node, None, range);
                Ok(())
            }
        }
    }

    /// Before a page of the kernel's is filled. The page is locked until the reply, and others wait
    /// for it, so this waits for less than [`settle`](Self::settle) does.
    pub(super) fn settle_fill(&self, node: &Node, range: Range) -> Result<(), Exit> {
        match self.session.lane.own_node_has_pages(node, self.header.node_id) {
            false => Ok(()),
            true if !self.deferred => Err(Exit::DeferFill),
            true => {
                self.session.lane.invalidate_own(node, range);
                Ok(())
            }
        }
    }

    /// After a page of the kernel's was written: others may wait for this very page, so the reply
    /// waits for nobody.
    pub(super) fn wrote_page(&self, node: &Node, range: Range) -> Outcome {
        match self.session.lane.others_have_pages(node, self.header.node_id) {
            false => Outcome::Reply,
            true => Outcome::ReplyBefore(node.clone(), range, Some(self.header.node_id)),
        }
    }

    /// After data was changed: the reply waits until other nodes' pages are dropped, and the kernel
    /// knows under the file's own node how long it is.
    pub(super) fn changed(&self, node: &Node, range: Range) -> Outcome {
        match self.session.lane.others_must_know(node, self.header.node_id) {
            false => Outcome::Reply,
            true => Outcome::ReplyAfter(node.clone(), range, Some(self.header.node_id)),
        }
    }
}
