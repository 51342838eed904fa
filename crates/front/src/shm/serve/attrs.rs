//! The state of inodes and of the lane.

use polylane_base::Errno;
use polylane_vfs::{Cred, Kind, SetAttr};

use super::{Answer, Call, done, with_attr};
use crate::notifier::Range;
use crate::shm::request::{Handle, Object};
use crate::shm::session::Open;

impl Call<'_> {
    pub(super) fn stat(&mut self, object: Object<'_>) -> Answer {
        let node = self.node(object)?;
        Ok(with_attr(&self.vfs().getattr(&node)?))
    }

    /// The state of an open file or directory; a file's is shown from now on if it is to be.
    pub(super) fn fstat(&mut self, handle: Handle, show: bool) -> Answer {
        let open = self.session.get(handle)?;
        let mut reply = with_attr(&self.vfs().getattr(open.node())?);
        if let (true, Open::File { file, .. }) = (show && self.can_show(), &open) {
            reply.handle = self.session.show_state(handle, file);
        }
        Ok(reply)
    }

    /// Whether files change through this service only, so that what is shown of them stays true.
    pub(super) fn can_show(&self) -> bool {
        !self.vfs().character().volatile
    }

    pub(super) fn access(&mut self, object: Object<'_>, mask: u32) -> Answer {
        let node = self.node(object)?;
        self.vfs().access(self.cred(), &node, mask)?;
        Ok(done(0))
    }

    pub(super) fn setattr(&mut self, object: Object<'_>, set: &SetAttr) -> Answer {
        let node = self.node(object)?;
        if set.size.is_some() {
            self.before_io(&node, Range::ALL)?;
        }
        let attr = match (object, set.size) {
            (Object::Handle(handle), Some(size)) => self.set_open(handle, size, set)?,
            _ => self.vfs().setattr(self.cred(), &node, set)?,
        };
        if set.size.is_some() {
            self.changed(&node, Range::ALL);
        }
        Ok(with_attr(&attr))
    }

    /// ftruncate(2): the descriptor's mode decides about the size, not the permission bits;
    /// whatever else is set has its usual rules.
    fn set_open(
        &self,
        handle: Handle,
        size: u64,
        set: &SetAttr,
    ) -> Result<polylane_vfs::Attr, Errno> {
        let file = self.session.file(handle).map_err(|_| Errno::EINVAL)?;
        let node = file.node();
        if node.kind() != Kind::File || file.flags() & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::EINVAL);
        }
        let rest = SetAttr { size: None, ..*set };
        if rest != SetAttr::default() {
            self.vfs().setattr(self.cred(), node, &rest)?;
        }
        let checked = Cred { kernel_checked: true, ..self.cred().clone() };
        self.vfs().setattr(&checked, node, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    pub(super) fn statfs(&mut self) -> Answer {
        let stat = self.vfs().statfs()?;
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
