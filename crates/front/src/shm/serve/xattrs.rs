//! Extended attributes.

use polylane_base::Errno;
use polylane_vfs::fs::XattrMode;

use super::{Answer, Call, done};
use crate::shm::request::Object;

impl Call<'_> {
    pub(super) fn getxattr(&mut self, object: Object<'_>, name: &[u8], len: usize) -> Answer {
        let node = self.node(object)?;
        let value = self.vfs().getxattr(&self.ctx(), &node, name)?;
        self.give(&value, len)
    }

    pub(super) fn setxattr(
        &mut self,
        object: Object<'_>,
        name: &[u8],
        (value_at, len): (usize, usize),
        mode: XattrMode,
    ) -> Answer {
        let node = self.node(object)?;
        let mut value = vec![0; len];
        self.session.connection.channel.payload_get(self.mailbox, value_at, &mut value);
        self.vfs().setxattr(&self.ctx(), &node, name, &value, mode)?;
        Ok(done(0))
    }

    pub(super) fn listxattr(&mut self, object: Object<'_>, len: usize) -> Answer {
        let node = self.node(object)?;
        let mut names = Vec::new();
        for name in self.vfs().listxattr(&self.ctx(), &node)? {
            names.extend(name);
            names.push(0);
        }
        self.give(&names, len)
    }

    pub(super) fn removexattr(&mut self, object: Object<'_>, name: &[u8]) -> Answer {
        let node = self.node(object)?;
        self.vfs().removexattr(&self.ctx(), &node, name)?;
        Ok(done(0))
    }

    /// Puts `bytes` into the buffer; a caller with room for nothing asks for the size only.
    fn give(&self, bytes: &[u8], room: usize) -> Answer {
        match room {
            0 => Ok(done(bytes.len())),
            room if room < bytes.len() => Err(Errno::ERANGE.into()),
            _ => {
                self.session.connection.channel.payload_put(self.mailbox, 0, bytes);
                Ok(done(bytes.len()))
            }
        }
    }
}
