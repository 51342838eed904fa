//! Directories: handles to start paths from, and listings.

use polylane_base::Errno;
use polylane_ipc::message::Reply;
use polylane_vfs::Kind;
use polylane_vfs::fs::DirEntry;

use super::{Answer, Call, done, with_attr};
use crate::shm::request::{At, Handle, Object, Start};
use crate::shm::session::Open;

/// Bytes of `linux_dirent64` before the name: inode, position, record length, type.
const DIRENT_HEAD: usize = 19;

impl Call<'_> {
    pub(super) fn open_dir(&mut self, at: At<'_>, follow: bool) -> Answer {
        let node = self.node(Object::Path { at, follow })?;
        if node.kind() != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        let attr = self.vfs().getattr(&node)?;
        let handle = self.session.add(Open::Dir { node, listing: None })?;
        Ok(Reply { handle: handle.to_wire(), ..with_attr(&attr) })
    }

    /// A lease on a directory, and the names in it.
    pub(super) fn lease(&mut self, start: Start, path: &[u8], tell_sole: bool) -> Answer {
        let start = self.session.start(start)?;
        self.device()?;
        if self.session.slots.has_strays() {
            return Err(Errno::EAGAIN.into());
        }
        let granted = self.session.grant((&start, path), tell_sole)?;
        self.session.channel.payload_put(self.mailbox, 0, &granted.names);
        let mut reply = done(granted.count);
        let told = [granted.lease.into(), granted.afresh.into(), granted.data.into()];
        reply.value[..3].copy_from_slice(&told);
        Ok(reply)
    }

    pub(super) fn readdir(&mut self, handle: Handle, position: u64, len: usize) -> Answer {
        let file = self.session.listing(handle)?;
        let mut records = Records { bytes: Vec::with_capacity(len.min(32 << 10)), limit: len };
        let mut cut = false;
        file.readdir(position, &mut |entry| {
            cut = !records.add(&entry);
            !cut
        })?;
        if records.bytes.is_empty() && cut {
            return Err(Errno::EINVAL.into());
        }
        self.session.channel.payload_put(self.mailbox, 0, &records.bytes);
        Ok(done(records.bytes.len()))
    }
}

/// Packed directory entries.
struct Records {
    bytes: Vec<u8>,
    limit: usize,
}

impl Records {
    /// Appends an entry; false when there is no room for it.
    fn add(&mut self, entry: &DirEntry<'_>) -> bool {
        let size = (DIRENT_HEAD + entry.name.len() + 1).next_multiple_of(8);
        let Ok(record_len) = u16::try_from(size) else { return false };
        if self.bytes.len() + size > self.limit {
            return false;
        }
        let end = self.bytes.len() + size;
        self.bytes.extend(entry.ino.0.to_ne_bytes());
        self.bytes.extend(entry.next.to_ne_bytes());
        self.bytes.extend(record_len.to_ne_bytes());
        self.bytes.push(entry.kind as u8);
        self.bytes.extend(entry.name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::Ino;

    use super::*;

    #[test]
    fn records_have_the_kernel_form_and_keep_the_limit() {
        let mut records = Records { bytes: Vec::new(), limit: 64 };
        let entry = |name| DirEntry { ino: Ino(5), next: 9, kind: Kind::Dir, name };
        assert!(records.add(&entry(b"abcd")));
        assert_eq!(records.bytes.len(), 24);
        assert_eq!(&records.bytes[16..18], &24u16.to_ne_bytes());
        assert_eq!(&records.bytes[18..24], b"\x04abcd\0");
        assert!(records.add(&entry(b"abcde")));
        assert_eq!(records.bytes.len(), 24 + 32);
        assert!(!records.add(&entry(b"x")));
        assert_eq!(records.bytes.len(), 24 + 32);
    }
}
