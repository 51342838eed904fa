//! The state of inodes and of the lane.

use polylane_base::{Errno, Result};
use polylane_ipc::message::{KERNEL_KNOWS, Reply, Status};
use polylane_vfs::{Kind, Node, PathError, SetAttr};

use super::{Answer, Call, Failure, can_show, done, with_attr};
use crate::lane::notifier::Range;
use crate::shm::files::Open;
use crate::shm::request::{At, Handle, Object};
use crate::shm::rights::lookup;

impl Call<'_> {
    pub(super) fn stat(&mut self, object: Object<'_>, mark: bool) -> Answer {
        if let (Object::Path { at, follow }, true) = (object, mark) {
            let (vfs, ctx) = (self.vfs(), self.ctx());
            return self.marked(at, follow, |node, marked| {
                // What has a mark is remembered.
                let attr = match marked {
                    true => vfs.getattr(&ctx, node)?,
                    false => vfs.getattr_beside_loan(&ctx, node)?,
                };
                Ok(with_attr(&attr))
            });
        }
        let node = self.node(object)?;
        let mut reply = with_attr(&self.vfs().getattr_beside_loan(&self.ctx(), &node)?);
        if self.session.connection.lane.kernel_knows(&node) {
            reply.value[0] = KERNEL_KNOWS;
        }
        Ok(reply)
    }

    /// What `ask` says about the inode of a path, with a mark where there is one. That there is no
    /// inode is an answer like others.
    fn marked(
        &self,
        at: At<'_>,
        follow: bool,
        ask: impl FnOnce(&Node, bool) -> Result<Reply>,
    ) -> Answer {
        let start = self.start(at)?;
        let path = (&start, at.path);
        let (answer, mark) = self.vfs().resolve_marked(&self.ctx(), path, follow, ask);
        let mut reply = match answer {
            Err(PathError::Errno(Errno::ENOENT)) => Reply::new(Status::Failed(Errno::ENOENT.0)),
            answer => answer?,
        };
        reply.value = lookup::values(mark);
        Ok(reply)
    }

    /// The state of an open file or directory; a file's is shown from now on if it is to be.
    pub(super) fn fstat(&mut self, handle: Handle, show: bool) -> Answer {
        let open = self.session.files.get(handle)?;
        let rights = self.session.rights();
        let goes_on = rights.is_first_question(handle);
        let vfs = self.vfs();
        let attr = match goes_on {
            true => vfs.getattr_beside_loan(&self.ctx(), open.node())?,
            false => vfs.getattr(&self.ctx(), open.node())?,
        };
        let mut reply = with_attr(&attr);
        if let (true, Open::File { file, .. }) = (show && self.can_show(), &open)
            && !file.is_lost()
            && !(goes_on && rights.is_lent(handle))
        {
            reply.handle = rights.show_state(handle, file);
        }
        Ok(reply)
    }

    /// Whether files change through this service only, so that what is shown of them stays true.
    pub(super) fn can_show(&self) -> bool {
        can_show(self.session)
    }

    pub(super) fn access(&mut self, object: Object<'_>, mask: u32, mark: bool) -> Answer {
        if let (Object::Path { at, follow }, true) = (object, mark) {
            let (vfs, ctx) = (self.vfs(), self.ctx());
            return self.marked(at, follow, |node, _| {
                vfs.access(&ctx, node, mask)?;
                Ok(done(0))
            });
        }
        let node = self.node(object)?;
        self.vfs().access(&self.ctx(), &node, mask)?;
        Ok(done(0))
    }

    pub(super) fn setattr(&mut self, object: Object<'_>, set: &SetAttr) -> Answer {
        let node = self.node(object)?;
        if let Some(size) = set.size {
            self.before_cut(&node, size)?;
            self.before_io(&node, Range::ALL)?;
        }
        let by_path = set.size.is_some() && !matches!(object, Object::Handle(_));
        let _open = if by_path { self.open_to_cut(&node)? } else { None };
        let attr = match (object, set.size) {
            (Object::Handle(handle), Some(size)) => self.set_open(handle, size, set)?,
            _ => self.vfs().setattr(&self.ctx(), &node, set)?,
        };
        if set.size.is_some() {
            self.changed(&node, Range::ALL);
        }
        Ok(with_attr(&attr))
    }

    /// Before a file gets another size: what the kernel takes to be longer is cut by its own way,
    /// the only one by which it learns of that.
    pub(super) fn before_cut(&self, node: &Node, size: u64) -> Result<(), Failure> {
        match self.session.connection.lane.is_cut_by_kernel(node, size) {
            true => Err(Failure::UseKernel),
            false => Ok(()),
        }
    }

    /// ftruncate(2): the descriptor's mode decides about the size, not the permission bits;
    /// whatever else is set has its usual rules.
    fn set_open(
        &self,
        handle: Handle,
        size: u64,
        set: &SetAttr,
    ) -> Result<polylane_vfs::Attr, Errno> {
        let file = self.session.files.file(handle).map_err(|_| Errno::EINVAL)?;
        let node = file.node();
        if node.kind() != Kind::File || file.flags() & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::EINVAL);
        }
        let rest = SetAttr { size: None, ..*set };
        if rest != SetAttr::default() {
            self.vfs().setattr(&self.ctx(), node, &rest)?;
        }
        let checked = self.ctx().kernel_checked();
        self.vfs().setattr(&checked, node, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    pub(super) fn statfs(&mut self) -> Answer {
        if self.vfs().tells_nameless() {
            self.blocking()?;
        }
        let stat = self.vfs().statfs(&self.ctx())?;
        let mut reply = done(0);
        reply.value = [
            u64::from(stat.bsize),
            stat.blocks,
            stat.bfree,
            stat.bavail,
            stat.files,
            stat.ffree,
            u64::from(stat.namelen),
            u64::from(stat.magic),
        ];
        Ok(reply)
    }
}
